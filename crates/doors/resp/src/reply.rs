//! Parser of the replies of a server, without I/O.
//!
//! # Promises
//! - Any bytes are a reply, the beginning of one, or an [`Error::Protocol`]; parsing never panics.
//! - Memory grows with bytes that have arrived, never with lengths that a server announces, and a reply has
//!   at most the number of bytes that the caller permits.

use block::{Error, Result};

/// Deepest nesting of arrays.
const DEEPEST: usize = 8;
/// Longest line: a length, or a text.
const MAX_LINE: usize = 64 << 10;

/// A reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// A text such as `OK`.
    Simple(String),
    /// An error: a code and a text.
    Error(String),
    /// A number.
    Integer(i64),
    /// Bytes; `None` for null.
    Bulk(Option<Vec<u8>>),
    /// Replies.
    Array(Vec<Reply>),
}

/// First line of a reply: a whole reply, or the length of the following bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Head<'a> {
    /// As [`Reply::Simple`].
    Simple(&'a str),
    /// As [`Reply::Error`].
    Error(&'a str),
    /// As [`Reply::Integer`].
    Integer(i64),
    /// Number of bytes that follow, before a line end; `None` for null.
    Bulk(Option<usize>),
    /// Number of replies that follow.
    Array(usize),
}

/// Error of bytes that aren't RESP 2.
pub fn invalid(what: &str) -> Error {
    Error::protocol(format!("invalid RESP 2: {what}"))
}

/// Error of a valid reply that exceeds a limit.
fn too_large(what: &str, limit: usize) -> Error {
    Error::protocol(format!("reply too large: {what}; expected {limit} at most"))
}

/// Splits a line and its end from the front of bytes; `None` while it is incomplete.
fn line(bytes: &[u8]) -> Result<Option<(&str, usize)>> {
    let Some(end) = bytes.windows(2).take(MAX_LINE).position(|pair| pair == b"\r\n") else {
        return match bytes.len() > MAX_LINE {
            true => Err(too_large("a line of more bytes", MAX_LINE)),
            false => Ok(None),
        };
    };
    let text = std::str::from_utf8(&bytes[..end]).map_err(|_| invalid("a line isn't UTF-8"))?;
    Ok(Some((text, end + 2)))
}

/// Parses the first line of the reply at the front of bytes; `None` while it is incomplete. Also returns its
/// length.
///
/// # Errors
/// [`Error::Protocol`] for bytes that don't begin a reply.
pub fn head(bytes: &[u8]) -> Result<Option<(Head<'_>, usize)>> {
    let Some((kind, rest)) = bytes.split_first() else { return Ok(None) };
    if !b"+-:$*".contains(kind) {
        return Err(invalid(&format!("first byte {kind:#04x}; expected one of + - : $ *")));
    }
    let Some((text, taken)) = line(rest)? else { return Ok(None) };
    let number = || text.parse::<i64>().map_err(|_| invalid("a number isn't one of 64 bits"));
    let length = || usize::try_from(number()?).map_err(|_| invalid("a length is negative"));
    let head = match kind {
        b'+' => Head::Simple(text),
        b'-' => Head::Error(text),
        b':' => Head::Integer(number()?),
        b'$' if text == "-1" => Head::Bulk(None),
        b'$' => Head::Bulk(Some(length()?)),
        _ => Head::Array(length()?),
    };
    Ok(Some((head, 1 + taken)))
}

/// Parses the reply at the front of bytes, which has at most `most` bytes; `None` while it is incomplete.
/// Also returns its length.
///
/// # Errors
/// [`Error::Protocol`] for bytes that aren't a reply of RESP 2, and for a reply that is too large.
pub fn parse(bytes: &[u8], most: usize) -> Result<Option<(Reply, usize)>> {
    let parsed = parse_at(bytes, most, DEEPEST)?;
    match parsed.as_ref().map_or(bytes.len(), |(_, length)| *length) > most {
        true => Err(too_large("more bytes", most)),
        false => Ok(parsed),
    }
}

fn parse_at(bytes: &[u8], most: usize, depth: usize) -> Result<Option<(Reply, usize)>> {
    let Some((head, begin)) = head(bytes)? else { return Ok(None) };
    let reply = match head {
        Head::Simple(text) => Reply::Simple(text.to_owned()),
        Head::Error(text) => Reply::Error(text.to_owned()),
        Head::Integer(number) => Reply::Integer(number),
        Head::Bulk(None) => Reply::Bulk(None),
        Head::Bulk(Some(length)) => {
            if length > most {
                return Err(too_large(&format!("a bulk string of {length} bytes"), most));
            }
            let end = begin + length;
            let Some(after) = bytes.get(end..end + 2) else { return Ok(None) };
            if after != b"\r\n" {
                return Err(invalid("a bulk string isn't followed by CRLF"));
            }
            return Ok(Some((Reply::Bulk(Some(bytes[begin..end].to_vec())), end + 2)));
        }
        Head::Array(count) => {
            if count > most {
                return Err(too_large(&format!("an array of {count} replies"), most));
            }
            if depth == 0 {
                return Err(too_large("arrays are nested more deeply", DEEPEST));
            }
            let (mut replies, mut at) = (Vec::new(), begin);
            for _ in 0..count {
                let Some((reply, taken)) = parse_at(&bytes[at..], most, depth - 1)? else { return Ok(None) };
                replies.push(reply);
                at += taken;
            }
            return Ok(Some((Reply::Array(replies), at)));
        }
    };
    Ok(Some((reply, begin)))
}

/// Finds the end of a reply whose bytes arrive in pieces. Each byte is scanned once, except in a line that is
/// incomplete.
#[derive(Debug)]
pub struct Scanner {
    most: usize,
    /// Number of scanned bytes.
    at: usize,
    /// Number of replies that haven't ended: the reply, and those inside of it.
    missing: usize,
}

impl Scanner {
    /// Creates a scanner of a reply of at most `most` bytes.
    pub fn new(most: usize) -> Self {
        Scanner { most, at: 0, missing: 1 }
    }

    /// Returns the number of bytes of the reply once it is complete. `bytes` are the received bytes of the
    /// reply: those of the last call, with any number of further ones.
    ///
    /// # Errors
    /// [`Error::Protocol`], as [`parse`], which may also refuse bytes that this accepts.
    pub fn next(&mut self, bytes: &[u8]) -> Result<Option<usize>> {
        while self.missing > 0 {
            let found = head(&bytes[self.at..])?;
            let Some((head, taken)) = found else { break };
            let end = match head {
                Head::Bulk(Some(length)) if length <= self.most => self.at + taken + length + 2,
                Head::Array(count) if count <= self.most => {
                    self.missing += count;
                    self.at + taken
                }
                Head::Bulk(Some(_)) | Head::Array(_) => self.most + 1,
                _ => self.at + taken,
            };
            if end > self.most {
                return Err(too_large("more bytes", self.most));
            }
            if end > bytes.len() {
                break;
            }
            (self.at, self.missing) = (end, self.missing - 1);
        }
        match self.missing {
            0 => Ok(Some(self.at)),
            _ if bytes.len() > self.most => Err(too_large("more bytes", self.most)),
            _ => Ok(None),
        }
    }
}

/// Parses arbitrary bytes as a reply, for fuzzing: there is no panic, a reply consumes only existing bytes,
/// and a prefix of it is incomplete.
///
/// # Panics
/// If one of these properties doesn't hold.
pub fn check_any_bytes(bytes: &[u8]) {
    const MAX: usize = 1 << 30;
    let parsed = parse(bytes, MAX);
    let (mut scanner, mut end) = (Scanner::new(MAX), Ok(None));
    for count in 0..=bytes.len() {
        if end == Ok(None) {
            end = scanner.next(&bytes[..count]);
        }
    }
    // For invalid bytes the scanner may find an end: it doesn't check the bytes after a string or the depth
    // of arrays.
    if let Ok(parsed) = &parsed {
        assert_eq!(end, Ok(parsed.as_ref().map(|(_, length)| *length)));
    }
    let Ok(Some((reply, length))) = parsed else { return };
    assert!(0 < length && length <= bytes.len());
    assert_eq!(parse(&bytes[..length], length), Ok(Some((reply, length))));
    assert_eq!(parse(&bytes[..length - 1], MAX), Ok(None));
    assert!(parse(bytes, length - 1).is_err());
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MAX: usize = 1 << 20;

    #[test]
    fn replies_are_parsed_once_they_are_complete() {
        let all = b"+OK\r\n-ERR no\r\n:-7\r\n$3\r\na\r\n\r\n$-1\r\n*3\r\n$0\r\n\r\n*0\r\n:1\r\n";
        let expected = [
            Reply::Simple("OK".into()),
            Reply::Error("ERR no".into()),
            Reply::Integer(-7),
            Reply::Bulk(Some(b"a\r\n".to_vec())),
            Reply::Bulk(None),
            Reply::Array(vec![Reply::Bulk(Some(Vec::new())), Reply::Array(Vec::new()), Reply::Integer(1)]),
        ];
        let mut at = 0;
        for reply in expected {
            let (found, length) = parse(&all[at..], MAX).unwrap().unwrap();
            assert_eq!(found, reply);
            for cut in 0..length {
                assert_eq!(parse(&all[at..at + cut], MAX).unwrap(), None, "cut at {cut} of {reply:?}");
            }
            at += length;
        }
        assert_eq!(at, all.len());
    }

    #[test]
    fn invalid_and_large_replies_are_errors() {
        for bytes in [
            &b"?"[..],
            b":x\r\n",
            b"$-2\r\n",
            b"$1\r\nabc",
            b"$999999999999\r\n",
            b"$18446744073709551616\r\n",
            b"*-1\r\n",
            b"*1048577\r\n",
            b"+\xFF\r\n",
        ] {
            assert!(matches!(parse(bytes, MAX), Err(Error::Protocol(_))), "{bytes:?}");
        }
        assert!(parse("*1\r\n".repeat(DEEPEST + 1).as_bytes(), MAX).is_err());
        assert!(parse(&vec![b'+'; MAX_LINE + 2], MAX).is_err());
        // Many small replies, as large as a long one.
        let small = [&b"*1000\r\n"[..], &b":1\r\n".repeat(500)].concat();
        assert_eq!(parse(&small, small.len()), Ok(None));
        assert!(parse(&small, small.len() - 1).is_err());
        assert_eq!(Scanner::new(small.len()).next(&small), Ok(None));
        assert!(Scanner::new(small.len() - 1).next(&small).is_err());
        assert!(Scanner::new(MAX).next("*1048576\r\n".repeat(200_000).as_bytes()).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_reply_or_none(bytes in proptest::collection::vec(
            prop_oneof![proptest::sample::select(&b"+-:$*\r\n0123"[..]), any::<u8>()], 0..60)) {
            check_any_bytes(&bytes);
        }
    }
}
