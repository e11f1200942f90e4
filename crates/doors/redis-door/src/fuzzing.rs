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
    use proptest::collection::vec;
    use proptest::prelude::*;

    /// A word of a command: a name, an option, a number, text or any bytes.
    fn word() -> impl Strategy<Value = Vec<u8>> {
        let text = "[ -~]{0,12}|[0-9'\" *-]{1,3}|SCAN|KEYS|SET|MATCH|COUNT";
        prop_oneof![text.prop_map(String::into_bytes), vec(any::<u8>(), 0..12)]
    }

    /// Bytes of a client: words of inline commands with their ends, a command as an array, or any bytes.
    fn sent() -> impl Strategy<Value = Vec<u8>> {
        let inline = (word(), proptest::sample::select(&["\r\n", " ", "\n"][..]));
        let inline = inline.prop_map(|(word, end)| [&word, end.as_bytes()].concat());
        let array = vec(word(), 0..6).prop_map(|words| {
            let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
            let mut bytes = Vec::new();
            resp::put_command(&mut bytes, &words);
            bytes
        });
        prop_oneof![8 => inline, 8 => array, 1 => vec(any::<u8>(), 0..12)]
    }

    proptest! {
        #[test]
        fn any_bytes_are_requests_or_refused(sent in vec(sent(), 0..20), piece in 1usize..20) {
            redis_requests(piece, &sent.concat());
        }
    }
}
