//! Checks of all parsers on arbitrary bytes, for fuzzing: what a store, or a file with credentials, may say.
//! The same check runs with random bytes in every `cargo test`.

use crate::http::{Chunks, MAX_HEAD, framing, parse_head};
use crate::{batches, credentials, retry, xml};
use block::Error;

/// Checks the parsers on arbitrary bytes, for fuzzing: no panic, no more bytes than there are, and the same
/// result whether the bytes arrive at once or in pieces of `piece` bytes.
///
/// # Panics
/// If a check fails.
pub fn check_any_bytes(bytes: &[u8], piece: usize) {
    const LIMIT: u64 = 1 << 16;
    let text = String::from_utf8_lossy(bytes);
    xml::check_any_text(&text);
    batches::check_any_text(&text);
    retry::check_any_text(&text);
    credentials::check_any_text(&text);
    let at_once = parse_head(bytes);
    if let Ok(Some((head, length))) = &at_once {
        assert!((1..=bytes.len().min(MAX_HEAD)).contains(length));
        assert_eq!(parse_head(&bytes[..*length]), Ok(Some((head.clone(), *length))));
        assert_eq!(parse_head(&bytes[..*length - 1]), Ok(None), "a part of a head");
        let _ = framing(head, false);
    }
    // The same bytes, or those after a head, as a body in chunks.
    let start = at_once.ok().flatten().map_or(0, |(_, length)| length);
    let decode = |piece: usize| {
        let (mut chunks, mut body, mut begin, mut end) = (Chunks::new(LIMIT), Vec::new(), start, start);
        loop {
            end = (end + piece).min(bytes.len());
            begin += chunks.decode(&bytes[begin..end], &mut body)?;
            assert!(begin <= end && body.len() as u64 <= LIMIT);
            if chunks.is_complete() || end == bytes.len() {
                return Ok::<_, Error>((chunks.is_complete(), begin, body));
            }
        }
    };
    let (whole, pieces) = (decode(bytes.len().max(1)), decode(piece.max(1)));
    assert_eq!(whole.is_ok(), pieces.is_ok(), "at once, and in pieces of {piece}");
    if let (Ok(whole), Ok(pieces)) = (whole, pieces) {
        assert_eq!(whole, pieces, "at once, and in pieces of {piece}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_are_parsed_or_refused(
            bytes in prop::collection::vec(
                prop_oneof![
                    any::<u8>(),
                    prop::sample::select(b"HTTP/1.1 20 OK\r\n: 0123456789abcdef<>&;Error".to_vec()),
                ],
                0..400,
            ),
            has_head in any::<bool>(),
            piece in 1..40_usize,
        ) {
            let head: &[u8] = if has_head { b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" } else { b"" };
            check_any_bytes(&[head, &bytes].concat(), piece);
        }
    }
}
