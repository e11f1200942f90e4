//! Arbitrary bytes as a request of the kernel: no panic, and the returned names are components of a path.
#![no_main]

use fuse::Operation;
use fuse::request::{Message, header, parse};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (bool, &[u8])| {
    let (extended, bytes) = input;
    let Ok(head) = header(bytes, bytes.len()) else { return };
    let arguments = bytes.get(40..).unwrap_or_default();
    match parse(&head, arguments, None, extended) {
        Ok(Message::Operation(Operation::Unlink { name } | Operation::Create { name, .. })) => {
            assert!(!name.is_empty() && name != b"." && name != b"..");
            assert!(!name.contains(&0) && !name.contains(&b'/'));
        }
        Ok(Message::Operation(Operation::SetExtended { value, .. })) => assert!(value.len() <= bytes.len()),
        Ok(Message::BatchForget(forgets)) => assert!(forgets.iter().count() * 16 <= bytes.len()),
        _ => {}
    }
});
