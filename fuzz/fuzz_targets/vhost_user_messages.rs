//! Arbitrary bytes as a message of a vhost-user front-end: no panic, and no field larger than a message.
#![no_main]

use doors::vhost_user::protocol::{HEADER_BYTES, Header, MAX_PAYLOAD, MAX_REGIONS, Message, parse};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u8, &[u8])| {
    let (descriptors, bytes) = (usize::from(input.0 % 34), input.1);
    let Some((head, payload)) = bytes.split_first_chunk::<HEADER_BYTES>() else { return };
    let Ok(header) = Header::parse(head) else { return };
    assert!(header.payload <= MAX_PAYLOAD);
    let payload = &payload[..payload.len().min(header.payload)];
    if let Ok(Message::SetMemory(regions)) = parse(header.number, payload, descriptors) {
        assert!(regions.len() <= MAX_REGIONS && regions.len() == descriptors);
    }
});
