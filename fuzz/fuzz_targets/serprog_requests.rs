//! Arbitrary bytes as the requests of a programmer: no panic, and every step stays within the bytes that
//! there are and the limits.
#![no_main]

use libfuzzer_sys::fuzz_target;
use spi::serprog::{Action, MAX_READ, MAX_REQUEST, MAX_SENT, Session, Step};

fuzz_target!(|input: (u8, &[u8])| {
    let (piece, bytes) = (usize::from(input.0).max(1), input.1);
    let mut session = Session::default();
    let (mut begin, mut end) = (0, 0);
    loop {
        match session.next(&bytes[begin..end]) {
            Step::Wait if end == bytes.len() => return,
            Step::Wait => {
                assert!(end - begin < MAX_REQUEST);
                end = (end + piece).min(bytes.len());
            }
            Step::Skip(count) => {
                assert!(count > 0 && begin + count <= end);
                begin += count;
            }
            Step::Do { consumed, action, answer } => {
                assert!(consumed > 0 && begin + consumed <= end && !answer.bytes().is_empty());
                begin += consumed;
                if let Action::Transfer { sent, read, .. } = action {
                    assert!(sent.len() <= MAX_SENT && read <= MAX_READ);
                }
            }
        }
    }
});
