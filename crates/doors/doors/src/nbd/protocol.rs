//! Constants and messages of the NBD protocol, and their encoding. Sans-io, without state.
//!
//! Source of every number: "The NBD protocol", doc/proto.md of the NetworkBlockDevice project. All integers
//! on the wire are big-endian. The state of a session is in [`negotiation`](super::negotiation); the check of
//! a request against its export in [`request`](super::request).

use block::{Error, Result};

/// First eight bytes of a server, `NBDMAGIC`.
pub const INITIAL_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// Second eight bytes of a newstyle server, and the first of every option: `IHAVEOPT`.
pub const OPTION_MAGIC: u64 = 0x4948_4156_454F_5054;
/// First eight bytes of every reply to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// First four bytes of a request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// First four bytes of a simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// First four bytes of a structured reply's chunk.
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

/// Length of a server's greeting, in bytes.
pub const GREETING_BYTES: usize = 18;
/// Length of an option before its data, in bytes.
pub const OPTION_HEADER_BYTES: usize = 16;
/// Length of an option's reply before its data, in bytes.
pub const OPTION_REPLY_HEADER_BYTES: usize = 20;
/// Length of a request before its payload, in bytes.
pub const REQUEST_BYTES: usize = 28;
/// Length of a simple reply before its data, in bytes.
pub const SIMPLE_REPLY_BYTES: usize = 16;
/// Length of a structured reply's chunk before its payload, in bytes.
pub const CHUNK_BYTES: usize = 20;
/// Length of an OFFSET_DATA chunk before the data, in bytes.
pub const DATA_CHUNK_BYTES: usize = CHUNK_BYTES + 8;
/// Longest string that the protocol allows, in bytes.
pub const MAX_STRING: usize = 4096;
/// Largest payload of a request or a reply, in bytes: the default of the specification, and the value that
/// this server advertises.
pub const MAXIMUM_PAYLOAD: u32 = 1 << 25;
/// Number of zeros after the reply to EXPORT_NAME, unless both sides agreed to omit them.
pub const EXPORT_NAME_PADDING: usize = 124;
/// Name of the one metadata context that the specification defines.
pub const ALLOCATION_CONTEXT: &str = "base:allocation";

/// Flags that the server sends first, and (with the same bits) those with which the client answers.
pub mod handshake_flag {
    /// Options are answered, and unknown ones don't end the session.
    pub const FIXED_NEWSTYLE: u16 = 1 << 0;
    /// The reply to EXPORT_NAME has no padding.
    pub const NO_ZEROES: u16 = 1 << 1;
}

/// Capabilities of an export.
pub mod transmission_flag {
    /// Always set.
    pub const HAS_FLAGS: u16 = 1 << 0;
    /// Writes are refused.
    pub const READ_ONLY: u16 = 1 << 1;
    /// FLUSH is supported.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// The FUA flag is supported.
    pub const SEND_FUA: u16 = 1 << 3;
    /// TRIM is supported.
    pub const SEND_TRIM: u16 = 1 << 5;
    /// WRITE_ZEROES and its NO_HOLE are supported.
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// The DF flag is supported; only with structured replies.
    pub const SEND_DF: u16 = 1 << 7;
    /// FLUSH and FUA on one connection cover the writes of all connections.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
}

/// Options of the handshake.
pub mod option {
    /// Select this export and begin transmission; can't be answered with an error.
    pub const EXPORT_NAME: u32 = 1;
    /// End the session.
    pub const ABORT: u32 = 2;
    /// List all exports.
    pub const LIST: u32 = 3;
    /// Begin TLS.
    pub const STARTTLS: u32 = 5;
    /// Describe an export.
    pub const INFO: u32 = 6;
    /// Describe an export and begin transmission.
    pub const GO: u32 = 7;
    /// Use structured replies.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// List the metadata contexts.
    pub const LIST_META_CONTEXT: u32 = 9;
    /// Select metadata contexts.
    pub const SET_META_CONTEXT: u32 = 10;
}

/// Types of replies to options.
pub mod option_reply {
    /// Success.
    pub const ACK: u32 = 1;
    /// Name of an export.
    pub const SERVER: u32 = 2;
    /// Information about an export.
    pub const INFO: u32 = 3;
    /// A metadata context.
    pub const META_CONTEXT: u32 = 4;
    /// Set in every error.
    pub const ERROR_BIT: u32 = 1 << 31;
    /// The option is unknown.
    pub const ERR_UNSUP: u32 = ERROR_BIT | 1;
    /// The option is not allowed here.
    pub const ERR_POLICY: u32 = ERROR_BIT | 2;
    /// The option is malformed, or came at the wrong time.
    pub const ERR_INVALID: u32 = ERROR_BIT | 3;
    /// The option needs TLS.
    pub const ERR_TLS_REQD: u32 = ERROR_BIT | 5;
    /// There is no such export.
    pub const ERR_UNKNOWN: u32 = ERROR_BIT | 6;
    /// The option or its reply is too large.
    pub const ERR_TOO_BIG: u32 = ERROR_BIT | 9;
}

/// Types of information about an export.
pub mod info {
    /// Size and transmission flags.
    pub const EXPORT: u16 = 0;
    /// Canonical name.
    pub const NAME: u16 = 1;
    /// Text for users.
    pub const DESCRIPTION: u16 = 2;
    /// Minimum, preferred and maximum block sizes.
    pub const BLOCK_SIZE: u16 = 3;
}

/// Types of requests.
pub mod command {
    /// Read bytes.
    pub const READ: u16 = 0;
    /// Write the bytes that follow.
    pub const WRITE: u16 = 1;
    /// Finish the requests in flight and close.
    pub const DISC: u16 = 2;
    /// Make acknowledged writes durable.
    pub const FLUSH: u16 = 3;
    /// Deallocate the bytes.
    pub const TRIM: u16 = 4;
    /// Prefetch; not offered by this server.
    pub const CACHE: u16 = 5;
    /// Make the bytes read as zeros.
    pub const WRITE_ZEROES: u16 = 6;
    /// Describe extents.
    pub const BLOCK_STATUS: u16 = 7;
}

/// Flags of requests.
pub mod command_flag {
    /// Durable before it is acknowledged.
    pub const FUA: u16 = 1 << 0;
    /// WRITE_ZEROES keeps the space allocated.
    pub const NO_HOLE: u16 = 1 << 1;
    /// READ is answered with one content chunk.
    pub const DF: u16 = 1 << 2;
    /// BLOCK_STATUS is answered with one extent.
    pub const REQ_ONE: u16 = 1 << 3;
    /// WRITE_ZEROES fails unless it is faster than writing.
    pub const FAST_ZERO: u16 = 1 << 4;
}

/// Flag of a structured reply's last chunk.
pub const REPLY_FLAG_DONE: u16 = 1 << 0;

/// Types of chunks of structured replies.
pub mod chunk_type {
    /// No payload.
    pub const NONE: u16 = 0;
    /// Data of a read.
    pub const OFFSET_DATA: u16 = 1;
    /// Zeros of a read.
    pub const OFFSET_HOLE: u16 = 2;
    /// Extents.
    pub const BLOCK_STATUS: u16 = 5;
    /// Set in every error.
    pub const ERROR_BIT: u16 = 1 << 15;
    /// The request failed.
    pub const ERROR: u16 = ERROR_BIT | 1;
}

/// Flags of an extent in the context `base:allocation`.
pub mod extent_flag {
    /// Not allocated.
    pub const HOLE: u32 = 1 << 0;
    /// Reads as zeros.
    pub const ZERO: u32 = 1 << 1;
}

/// Error numbers of replies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum ErrorNumber {
    /// Not permitted: also for writes to a read-only export.
    NotPermitted = 1,
    /// The medium failed.
    Io = 5,
    /// Out of memory.
    OutOfMemory = 12,
    /// The request is invalid.
    Invalid = 22,
    /// No free space: also for writes beyond the end.
    NoSpace = 28,
    /// The length exceeds the server's limit.
    Overflow = 75,
    /// Only for FAST_ZERO.
    NotSupported = 95,
    /// The server is shutting down.
    Shutdown = 108,
}

impl ErrorNumber {
    /// Number for a device's error. The specification reserves EOVERFLOW and ENOTSUP for cases that a device
    /// can't know of, so those of a device become EINVAL.
    pub fn of(error: &Error) -> Self {
        match error.errno() {
            libc::EPERM | libc::EACCES | libc::EROFS => ErrorNumber::NotPermitted,
            libc::ENOMEM => ErrorNumber::OutOfMemory,
            libc::EINVAL | libc::EOPNOTSUPP | libc::EOVERFLOW => ErrorNumber::Invalid,
            libc::ENOSPC | libc::EDQUOT | libc::EFBIG => ErrorNumber::NoSpace,
            libc::ECANCELED | libc::ESHUTDOWN => ErrorNumber::Shutdown,
            _ => ErrorNumber::Io,
        }
    }

    /// Error of the client for a number; one that isn't in the specification counts as EINVAL.
    pub fn to_error(number: u32, what: String) -> Error {
        match number {
            1 => Error::permission_denied(what),
            5 => Error::io(what),
            12 => Error::out_of_memory(what),
            28 => Error::no_space(what),
            75 => Error::overflow(what),
            95 => Error::unsupported(what),
            108 => Error::disconnected(what),
            _ => Error::invalid(what),
        }
    }
}

/// Decoder of big-endian numbers and strings from the front of some bytes.
#[derive(Debug, Clone, Copy)]
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    /// Takes `count` bytes; `None` if there are fewer.
    pub fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (front, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(front)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (front, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*front)
    }

    /// Takes 16 bits.
    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    /// Takes 32 bits.
    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    /// Takes 64 bits.
    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    /// Takes a string after its 32-bit length: UTF-8, no NUL, within the protocol's limit.
    pub fn string(&mut self) -> Option<&'a str> {
        let length = self.u32()? as usize;
        if length > MAX_STRING {
            return None;
        }
        string(self.take(length)?)
    }
}

/// Checks bytes as a string of the protocol: UTF-8, no NUL, not too long.
pub fn string(bytes: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(bytes).ok()?;
    (bytes.len() <= MAX_STRING && !text.contains('\0')).then_some(text)
}

/// A request as on the wire; only its magic number is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// [`command_flag`]s.
    pub flags: u16,
    /// One of [`command`], or an unknown one.
    pub command: u16,
    /// Chosen by the client and returned in every reply.
    pub cookie: u64,
    /// Offset in the export, in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub length: u32,
}

impl Request {
    /// Decodes the first [`REQUEST_BYTES`] bytes; `None` if there are fewer.
    ///
    /// # Errors
    /// [`Error::Protocol`] if they don't begin with the magic number.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Option<Request>> {
        let Some((bytes, _)) = bytes.split_first_chunk::<REQUEST_BYTES>() else {
            // A wrong beginning is an error before all bytes have arrived.
            let expected = REQUEST_MAGIC.to_be_bytes();
            let have = bytes.len().min(expected.len());
            return match bytes[..have] == expected[..have] {
                true => Ok(None),
                false => Err(wrong_magic(&bytes[..have])),
            };
        };
        let field = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        if field(0) != REQUEST_MAGIC {
            return Err(wrong_magic(&bytes[..4]));
        }
        Ok(Some(Request {
            flags: (field(4) >> 16) as u16,
            command: field(4) as u16,
            cookie: u64::from(field(8)) << 32 | u64::from(field(12)),
            offset: u64::from(field(16)) << 32 | u64::from(field(20)),
            length: field(24),
        }))
    }

    /// Encodes the request.
    pub fn encode(&self) -> [u8; REQUEST_BYTES] {
        let mut bytes = [0; REQUEST_BYTES];
        bytes[0..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        bytes[4..6].copy_from_slice(&self.flags.to_be_bytes());
        bytes[6..8].copy_from_slice(&self.command.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.offset.to_be_bytes());
        bytes[24..28].copy_from_slice(&self.length.to_be_bytes());
        bytes
    }
}

#[cold]
fn wrong_magic(bytes: &[u8]) -> Error {
    Error::protocol(format!("a request begins with {bytes:02x?}: expected {REQUEST_MAGIC:#010x}"))
}

/// Encodes a simple reply; the data of a read follows it. Error 0 is success.
#[inline]
pub fn simple_reply(cookie: u64, error: u32) -> [u8; SIMPLE_REPLY_BYTES] {
    let mut bytes = [0; SIMPLE_REPLY_BYTES];
    bytes[0..4].copy_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
    bytes[4..8].copy_from_slice(&error.to_be_bytes());
    bytes[8..16].copy_from_slice(&cookie.to_be_bytes());
    bytes
}

/// Encodes the head of a structured reply's chunk whose payload has `length` bytes.
#[inline]
pub fn chunk(flags: u16, chunk_type: u16, cookie: u64, length: u32) -> [u8; CHUNK_BYTES] {
    let mut bytes = [0; CHUNK_BYTES];
    bytes[0..4].copy_from_slice(&STRUCTURED_REPLY_MAGIC.to_be_bytes());
    bytes[4..6].copy_from_slice(&flags.to_be_bytes());
    bytes[6..8].copy_from_slice(&chunk_type.to_be_bytes());
    bytes[8..16].copy_from_slice(&cookie.to_be_bytes());
    bytes[16..20].copy_from_slice(&length.to_be_bytes());
    bytes
}

/// Encodes the head of the only content chunk of a successful read; `length` bytes of data follow it.
#[inline]
pub fn data_chunk(cookie: u64, offset: u64, length: u32) -> [u8; DATA_CHUNK_BYTES] {
    let mut bytes = [0; DATA_CHUNK_BYTES];
    let head = chunk(REPLY_FLAG_DONE, chunk_type::OFFSET_DATA, cookie, length + 8);
    bytes[..CHUNK_BYTES].copy_from_slice(&head);
    bytes[CHUNK_BYTES..].copy_from_slice(&offset.to_be_bytes());
    bytes
}

/// Encodes the greeting of a fixed newstyle server.
pub fn greeting() -> [u8; GREETING_BYTES] {
    let flags = handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES;
    let mut bytes = [0; GREETING_BYTES];
    bytes[0..8].copy_from_slice(&INITIAL_MAGIC.to_be_bytes());
    bytes[8..16].copy_from_slice(&OPTION_MAGIC.to_be_bytes());
    bytes[16..18].copy_from_slice(&flags.to_be_bytes());
    bytes
}

/// Appends an option to `bytes`.
pub fn put_option(bytes: &mut Vec<u8>, option: u32, data: &[u8]) {
    bytes.extend_from_slice(&OPTION_MAGIC.to_be_bytes());
    bytes.extend_from_slice(&option.to_be_bytes());
    bytes.extend_from_slice(&(data.len() as u32).to_be_bytes());
    bytes.extend_from_slice(data);
}

/// Appends a reply to an option to `bytes`; `data` in pieces.
pub fn put_option_reply(bytes: &mut Vec<u8>, option: u32, reply: u32, data: &[&[u8]]) {
    let length: usize = data.iter().map(|piece| piece.len()).sum();
    bytes.extend_from_slice(&OPTION_REPLY_MAGIC.to_be_bytes());
    bytes.extend_from_slice(&option.to_be_bytes());
    bytes.extend_from_slice(&reply.to_be_bytes());
    bytes.extend_from_slice(&(length as u32).to_be_bytes());
    data.iter().for_each(|piece| bytes.extend_from_slice(piece));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn magic_numbers_are_the_documents_words() {
        assert_eq!(&INITIAL_MAGIC.to_be_bytes(), b"NBDMAGIC");
        assert_eq!(&OPTION_MAGIC.to_be_bytes(), b"IHAVEOPT");
        assert_eq!(greeting(), *b"NBDMAGICIHAVEOPT\x00\x03");
    }

    #[test]
    fn a_request_from_its_bytes() {
        let bytes = [
            0x25, 0x60, 0x95, 0x13, 0x00, 0x01, 0x00, 0x06, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 1, 0, 0, 0x10,
            0, 0, 0, 2, 0,
        ];
        let request = Request::parse(&bytes).expect("valid").expect("whole");
        let expected = Request {
            flags: command_flag::FUA,
            command: command::WRITE_ZEROES,
            cookie: 0x0102_0304_0506_0708,
            offset: 0x1_0000_1000,
            length: 512,
        };
        assert_eq!(request, expected);
        assert_eq!(request.encode(), bytes);
        for cut in 0..REQUEST_BYTES {
            assert_eq!(Request::parse(&bytes[..cut]), Ok(None), "cut at {cut}");
        }
    }

    #[test]
    fn a_wrong_beginning_is_refused_before_the_request_is_whole() {
        assert!(Request::parse(b"G").is_err());
        assert!(Request::parse(b"GET / HTTP/1.1\r\n").is_err());
        assert!(Request::parse(&[0x25, 0x60, 0x95]).expect("a beginning").is_none());
        assert!(Request::parse(&[0xff; 28]).is_err());
    }

    #[test]
    fn replies_as_the_document_has_them() {
        assert_eq!(simple_reply(9, 22), [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 22, 0, 0, 0, 0, 0, 0, 0, 9]);
        let bytes = data_chunk(1, 0x200, 512);
        assert_eq!(&bytes[..8], &[0x66, 0x8e, 0x33, 0xef, 0, 1, 0, 1]);
        assert_eq!(&bytes[16..], &[0, 0, 2, 8, 0, 0, 0, 0, 0, 0, 2, 0]);
    }

    #[test]
    fn every_errno_becomes_an_allowed_number() {
        let allowed = [1, 5, 12, 22, 28, 75, 95, 108];
        for errno in 1..140 {
            let number = ErrorNumber::of(&Error::from_errno(errno, "x"));
            assert!(allowed.contains(&(number as u32)), "errno {errno}");
        }
        assert_eq!(ErrorNumber::of(&Error::read_only("x")), ErrorNumber::NotPermitted);
        assert_eq!(ErrorNumber::of(&Error::corrupt("x")), ErrorNumber::Io);
    }

    #[test]
    fn strings_are_checked() {
        assert_eq!(Reader(&[0, 0, 0, 2, b'h', b'i', 9]).string(), Some("hi"));
        assert_eq!(Reader(&[0, 0, 0, 3, b'h', b'i']).string(), None);
        assert_eq!(Reader(&[0xff, 0xff, 0xff, 0xff]).string(), None);
        assert_eq!(Reader(&[0, 0, 0, 1, 0]).string(), None);
        assert_eq!(Reader(&[0, 0, 0, 1, 0xff]).string(), None);
    }
}
