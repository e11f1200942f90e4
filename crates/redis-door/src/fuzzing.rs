//! Entry point for a fuzz target and property tests: requests of untrusted bytes, with their invariants.

use crate::command::{Request, parse};
use kv::MAX_VALUE_BYTES;
use resp::{Parser, Step};

/// Parses arbitrary bytes, in pieces of `piece` bytes, as requests of a redis client. Invariants: no panic,
/// each step consumes only bytes that arrived, and each command is a request or is refused with one line.
///
/// # Panics
/// If an invariant is violated.
pub fn redis_requests(piece: usize, bytes: &[u8]) {
    let mut parser = Parser::new(MAX_VALUE_BYTES);
    let (mut begin, mut end) = (0, 0);
    loop {
        match parser.next(&bytes[begin..end]) {
            Ok(Step::Incomplete) if end == bytes.len() => return,
            Ok(Step::Incomplete) => end = (end + piece.max(1)).min(bytes.len()),
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_are_requests_or_refused(
            words in proptest::collection::vec("[ -~]{0,12}|[0-9'\" *-]{1,3}|SCAN|KEYS|SET|MATCH|COUNT", 0..20),
            ends in proptest::collection::vec(proptest::sample::select(&["\r\n", " ", "\n"][..]), 20),
            piece in 1usize..20,
        ) {
            let text: String = words.iter().zip(&ends).flat_map(|(word, end)| [word.as_str(), end]).collect();
            redis_requests(piece, text.as_bytes());
        }
    }
}
