//! Any bytes as the reply of a server to the client of the command line: no panic, and a reply takes only bytes that are there; fewer of them are no reply.
#![no_main]

use kv::redis::client::parse;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(Some((reply, length))) = parse(bytes) else { return };
    assert!(0 < length && length <= bytes.len());
    assert_eq!(parse(&bytes[..length]), Ok(Some((reply, length))));
    assert_eq!(parse(&bytes[..length - 1]), Ok(None));
});
