//! Any bytes as the requests of a redis client: no panic, every step takes only bytes that are there, and every command is a request or
//! is refused with one line.
#![no_main]

use kv::redis::command::{Request, parse};
use kv::redis::resp::{Parser, Step};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u8, &[u8])| {
    let (piece, bytes) = (usize::from(input.0).max(1), input.1);
    let mut parser = Parser::default();
    let (mut begin, mut end) = (0, 0);
    loop {
        match parser.next(&bytes[begin..end]) {
            Ok(Step::Incomplete) if end == bytes.len() => return,
            Ok(Step::Incomplete) => end = (end + piece).min(bytes.len()),
            Ok(Step::Empty(count)) => {
                assert!(count > 0 && begin + count <= end);
                begin += count;
            }
            Ok(Step::Command(count)) => {
                assert!(count > 0 && begin + count <= end);
                match parse(parser.arguments(&bytes[begin..end]), || 1_700_000_000_000) {
                    Ok(Request::Scan { pattern: Some(pattern), .. } | Request::Keys { pattern }) => {
                        pattern.matches(&bytes[..bytes.len().min(1000)]);
                    }
                    Ok(_) => {}
                    Err(failure) => assert!(failure.0.len() < 1000 + bytes.len()),
                }
                begin += count;
            }
            Err(error) => {
                assert!(!error.text().is_empty());
                return;
            }
        }
    }
});
