//! Responses in HTTP/1.1 (RFC 9112), without I/O.
//!
//! # Promises
//! - For any bytes the parser never panics, and the memory it takes is bounded: a head has at most
//!   [`MAX_HEAD`] bytes and [`MAX_HEADERS`] headers, a line of a chunked body [`MAX_CHUNK_LINE`] bytes, its
//!   trailer [`MAX_TRAILER`] bytes, and a body the bytes that its caller permits.
//! - A body without a known end is refused: its end can't be distinguished from a lost connection.

use block::{Error, Result};

/// Longest head of a response, in bytes.
pub const MAX_HEAD: usize = 16 << 10;
/// Limit of the headers of a response.
pub const MAX_HEADERS: usize = 64;
/// Longest line with the size of a chunk, in bytes, its extensions included.
pub const MAX_CHUNK_LINE: usize = 256;
/// Longest trailer of a chunked body, in bytes.
pub const MAX_TRAILER: usize = 4 << 10;

/// Method of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Method {
    Get,
    Head,
    Put,
    Post,
    Delete,
}

impl Method {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Method::Get => "GET",
            Method::Head => "HEAD",
            Method::Put => "PUT",
            Method::Post => "POST",
            Method::Delete => "DELETE",
        }
    }
}

/// Status and headers of a response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    /// Status code, 100 to 999.
    pub status: u16,
    /// Whether the server keeps the connection open after this response.
    pub keeps_alive: bool,
    headers: Vec<(String, String)>,
}

impl Head {
    /// Value of the first header with this name, which is in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(other, _)| other == name).map(|(_, value)| &**value)
    }

    /// Whether the response is an interim one, after which another head follows.
    pub fn is_interim(&self) -> bool {
        (100..200).contains(&self.status)
    }
}

/// Form of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    /// The response has no body.
    Empty,
    /// A body of this many bytes.
    Length(u64),
    /// A body in chunks (RFC 9112, section 7.1).
    Chunked,
}

/// Parses the head at the start of received bytes. Returns it with its number of bytes; `None` if it isn't
/// complete.
///
/// # Errors
/// [`Error::Protocol`] for a head that isn't HTTP/1, or is too long.
pub fn parse_head(bytes: &[u8]) -> Result<Option<(Head, usize)>> {
    let looked_at = &bytes[..bytes.len().min(MAX_HEAD)];
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut response = httparse::Response::new(&mut headers);
    let length = match response.parse(looked_at) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) if bytes.len() < MAX_HEAD => return Ok(None),
        Ok(httparse::Status::Partial) => {
            return Err(Error::protocol(format!("the head of the response exceeds {MAX_HEAD} bytes")));
        }
        Err(httparse::Error::TooManyHeaders) => {
            return Err(Error::protocol(format!("the response has more than {MAX_HEADERS} headers")));
        }
        Err(error) => {
            return Err(Error::protocol(format!(
                "the response isn't HTTP/1.1: {error}; expected a status line"
            )));
        }
    };
    let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
    let headers: Vec<(String, String)> = response
        .headers
        .iter()
        .map(|header| (header.name.to_ascii_lowercase(), text(header.value)))
        .collect();
    let has_option = |option: &str| {
        let values = headers.iter().filter(|(name, _)| name == "connection");
        values.flat_map(|(_, value)| value.split(',')).any(|it| it.trim().eq_ignore_ascii_case(option))
    };
    let keeps_alive = match response.version {
        Some(1) => !has_option("close"),
        _ => has_option("keep-alive"),
    };
    let status = response.code.unwrap_or_default();
    Ok(Some((Head { status, keeps_alive, headers }, length)))
}

/// Form of the body that follows a head, in the answer to HEAD if `is_head`.
///
/// # Errors
/// [`Error::Protocol`] for headers that contradict each other, and for a body whose end isn't known.
pub fn framing(head: &Head, is_head: bool) -> Result<Framing> {
    if is_head || head.is_interim() || matches!(head.status, 204 | 304) {
        return Ok(Framing::Empty);
    }
    let values = |name: &'static str| head.headers.iter().filter(move |header| header.0 == name);
    let refused =
        |what: &str| Err(Error::protocol(format!("{what}; expected one Content-Length, or chunks")));
    match (values("transfer-encoding").count(), values("content-length").count()) {
        (1, 0) => match head.header("transfer-encoding") {
            Some(coding) if coding.trim().eq_ignore_ascii_case("chunked") => Ok(Framing::Chunked),
            _ => refused("the response has an unknown Transfer-Encoding"),
        },
        (0, 1) => {
            let value = head.header("content-length").unwrap_or_default().trim();
            let is_number = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
            match value.parse().ok().filter(|_| is_number) {
                Some(length) => Ok(Framing::Length(length)),
                None => refused("the response has an invalid Content-Length"),
            }
        }
        (0, 0) => refused("the response has a body of unknown length"),
        _ => refused("the response has more than one length"),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ChunkState {
    /// Before the line with a chunk's size.
    Size,
    /// Inside a chunk with this many bytes left.
    Data(u64),
    /// Before the line end of a chunk.
    End,
    /// In the trailer, of which this many bytes were consumed.
    Trailer(usize),
    Complete,
}

/// Decoder of a body in chunks.
#[derive(Debug)]
pub struct Chunks {
    state: ChunkState,
    /// Bytes that further chunks may have.
    permitted: u64,
}

impl Chunks {
    /// Returns a decoder of a body of at most `limit` bytes.
    pub fn new(limit: u64) -> Self {
        Chunks { state: ChunkState::Size, permitted: limit }
    }

    /// Whether the body is complete.
    pub fn is_complete(&self) -> bool {
        self.state == ChunkState::Complete
    }

    /// Consumes received bytes as far as they are decodable, and appends data to `body`. Returns the number
    /// of consumed bytes.
    ///
    /// # Errors
    /// [`Error::Protocol`] for anything but chunks, and for a body above its limit.
    pub fn decode(&mut self, bytes: &[u8], body: &mut Vec<u8>) -> Result<usize> {
        let mut used = 0;
        loop {
            let rest = &bytes[used..];
            match self.state {
                ChunkState::Size => match self.size(rest)? {
                    Some(length) => used += length,
                    None => return Ok(used),
                },
                ChunkState::Data(left) => {
                    if rest.is_empty() {
                        return Ok(used);
                    }
                    let count = usize::try_from(left).unwrap_or(usize::MAX).min(rest.len());
                    body.extend_from_slice(&rest[..count]);
                    used += count;
                    let left = left - count as u64;
                    self.state = if left == 0 { ChunkState::End } else { ChunkState::Data(left) };
                }
                ChunkState::End => match rest {
                    [b'\r', b'\n', ..] => {
                        used += 2;
                        self.state = ChunkState::Size;
                    }
                    [] | [b'\r'] => return Ok(used),
                    _ => return Err(Error::protocol("a chunk of the response is longer than its size")),
                },
                ChunkState::Trailer(before) => {
                    let line = rest.iter().position(|byte| *byte == b'\n').map(|end| end + 1);
                    let after = before + line.unwrap_or(rest.len());
                    if after > MAX_TRAILER {
                        let text = format!("the trailer of the response exceeds {MAX_TRAILER} bytes");
                        return Err(Error::protocol(text));
                    }
                    let Some(line) = line else { return Ok(used) };
                    used += line;
                    let is_last = matches!(&rest[..line], b"\r\n" | b"\n");
                    self.state = if is_last { ChunkState::Complete } else { ChunkState::Trailer(after) };
                }
                ChunkState::Complete => return Ok(used),
            }
        }
    }

    /// Parses the line with a chunk's size. Returns its length; `None` if it isn't complete.
    fn size(&mut self, bytes: &[u8]) -> Result<Option<usize>> {
        let looked_at = &bytes[..bytes.len().min(MAX_CHUNK_LINE)];
        match httparse::parse_chunk_size(looked_at) {
            Ok(httparse::Status::Complete((length, size))) => {
                let Some(permitted) = self.permitted.checked_sub(size) else {
                    return Err(Error::protocol("the body of the response is longer than expected"));
                };
                self.permitted = permitted;
                self.state = if size == 0 { ChunkState::Trailer(0) } else { ChunkState::Data(size) };
                Ok(Some(length))
            }
            Ok(httparse::Status::Partial) if bytes.len() < MAX_CHUNK_LINE => Ok(None),
            _ => Err(Error::protocol(
                "a chunk of the response has an invalid size; expected hexadecimal digits",
            )),
        }
    }
}

/// Checks the parsers on arbitrary bytes, for fuzzing: no panic, no more bytes than there are, and the same
/// result whether the bytes arrive at once or in pieces of `piece` bytes.
///
/// # Panics
/// If a check fails.
pub fn check_any_bytes(bytes: &[u8], piece: usize) {
    const LIMIT: u64 = 1 << 16;
    let text = String::from_utf8_lossy(bytes);
    crate::xml::check_any_text(&text);
    crate::batches::check_any_text(&text);
    crate::retry::check_any_text(&text);
    crate::credentials::check_any_text(&text);
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

    fn head(text: &str) -> Head {
        parse_head(text.as_bytes()).expect("a head").expect("a complete head").0
    }

    #[test]
    fn a_head_is_parsed_once_it_is_complete() {
        let text = "HTTP/1.1 206 Partial Content\r\nETag: \"a\"\r\nContent-Length: 3\r\n\r\nabc";
        let (parsed, length) = parse_head(text.as_bytes()).unwrap().unwrap();
        assert_eq!((parsed.status, parsed.keeps_alive, length), (206, true, text.len() - 3));
        assert_eq!((parsed.header("etag"), parsed.header("x")), (Some("\"a\""), None));
        assert_eq!(framing(&parsed, false), Ok(Framing::Length(3)));
        assert_eq!(framing(&parsed, true), Ok(Framing::Empty), "the answer to HEAD");
        assert_eq!(parse_head(b"HTTP/1.1 200 OK\r\n"), Ok(None));
        assert!(!head("HTTP/1.1 200 OK\r\nConnection: x, Close\r\n\r\n").keeps_alive);
        assert!(!head("HTTP/1.0 200 OK\r\n\r\n").keeps_alive);
    }

    #[test]
    fn heads_are_bounded() {
        let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "a: b\r\n".repeat(MAX_HEADERS + 1));
        assert!(parse_head(many.as_bytes()).unwrap_err().to_string().contains("64 headers"));
        let long = format!("HTTP/1.1 200 OK\r\na: {}", "b".repeat(MAX_HEAD));
        assert!(parse_head(long.as_bytes()).unwrap_err().to_string().contains("16384 bytes"));
        assert!(parse_head(b"\x16\x03\x01\x02").is_err(), "TLS isn't HTTP");
    }

    #[test]
    fn a_body_has_exactly_one_length() {
        let with = |headers: &str| framing(&head(&format!("HTTP/1.1 200 OK\r\n{headers}\r\n")), false);
        assert_eq!(with("Transfer-Encoding: Chunked\r\n"), Ok(Framing::Chunked));
        for refused in [
            "",
            "Content-Length: -1\r\n",
            "Content-Length: +1\r\n",
            "Content-Length: 99999999999999999999\r\n",
            "Content-Length: 1\r\nContent-Length: 1\r\n",
            "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n",
            "Transfer-Encoding: gzip, chunked\r\n",
        ] {
            assert!(matches!(with(refused), Err(Error::Protocol(_))), "{refused:?}");
        }
    }

    #[test]
    fn chunks_are_joined() {
        let text = b"3\r\nabc\r\n1;x=y\r\nd\r\n0\r\nsum: 1\r\n\r\nrest";
        for limit in [4, 100] {
            let (mut chunks, mut body) = (Chunks::new(limit), Vec::new());
            assert_eq!(chunks.decode(text, &mut body), Ok(text.len() - 4));
            assert!(chunks.is_complete() && body == b"abcd");
        }
        for refused in [&b"3\r\nabcd\r\n"[..], b"x\r\n", b"ffffffffffffffffff\r\n", b"5\r\n", &[b'0'; 300]] {
            let outcome = Chunks::new(4).decode(refused, &mut Vec::new());
            assert!(matches!(outcome, Err(Error::Protocol(_))), "{refused:?}");
        }
        let trailer = format!("0\r\n{}", "a: b\r\n".repeat(1000));
        assert!(Chunks::new(4).decode(trailer.as_bytes(), &mut Vec::new()).is_err());
    }

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
