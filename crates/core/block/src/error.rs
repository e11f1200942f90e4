//! The one error type of the I/O path.
//!
//! A variant has the meaning of the POSIX error of the same name, so that every door translates it to its own
//! protocol and `errno` passes through the stack unchanged. The text names the object, the value, the
//! expected value and the remedy.

use std::borrow::Cow;
use std::fmt;

/// Result of a call on the I/O path.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Text of an [`Error`].
pub type Detail = Cow<'static, str>;

macro_rules! errors {
    ($($(#[$doc:meta])* $variant:ident = $errno:ident, $constructor:ident, $meaning:literal;)*) => {
        /// Error of the I/O path: a kind and a text.
        #[derive(Debug, Clone, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum Error {
            $($(#[$doc])* $variant(Detail),)*
            /// Error of the kernel without a variant of its own: its number and the operation.
            Os(i32, Detail),
        }

        impl Error {
            $(
                #[doc = concat!("An [`Error::", stringify!($variant), "`] with this text.")]
                #[cold]
                pub fn $constructor(detail: impl Into<Detail>) -> Self {
                    Error::$variant(detail.into())
                }
            )*

            /// Text that `Display` appends.
            fn meaning(&self) -> Detail {
                match self {
                    $(Error::$variant(_) => $meaning.into(),)*
                    Error::Os(errno, _) => format!("errno {errno}").into(),
                }
            }

            /// POSIX error number of this error.
            pub fn errno(&self) -> i32 {
                match self {
                    $(Error::$variant(_) => libc::$errno,)*
                    Error::Os(errno, _) => *errno,
                }
            }

            /// Text without the meaning that `Display` appends.
            pub fn detail(&self) -> &str {
                match self {
                    $(Error::$variant(detail) => detail,)*
                    Error::Os(_, detail) => detail,
                }
            }

            /// Returns the same kind of error with another text, for a layer that has more information than
            /// the layer below it.
            #[cold]
            pub fn with_detail(&self, detail: impl Into<Detail>) -> Self {
                match self {
                    $(Error::$variant(_) => Error::$variant(detail.into()),)*
                    Error::Os(errno, _) => Error::Os(*errno, detail.into()),
                }
            }

            /// Returns the error of this POSIX error number.
            #[cold]
            pub fn from_errno(errno: i32, detail: impl Into<Detail>) -> Self {
                match errno {
                    $(libc::$errno => Error::$variant(detail.into()),)*
                    other => Error::Os(other, detail.into()),
                }
            }
        }
    };
}

errors! {
    /// EIO: the medium failed; the contents that were to be read or written are unknown.
    Io = EIO, io, "input/output error";
    /// EBADMSG: data was read, but its checksum or format shows that it differs from the data that was
    /// written.
    Corrupt = EBADMSG, corrupt, "corrupt data";
    /// ENOSPC: there is no free space; reads, deletes and cleaning still work.
    NoSpace = ENOSPC, no_space, "no space left";
    /// EINVAL: the call itself is wrong: out of range, unaligned, an invalid value.
    Invalid = EINVAL, invalid, "invalid argument";
    /// ESPIPE: an append named an offset other than the write pointer of its zone; the text has the write
    /// pointer.
    Misplaced = ESPIPE, misplaced, "not at the write pointer";
    /// EROFS: the device accepts no writes, by configuration or after a failure.
    ReadOnly = EROFS, read_only, "read-only";
    /// EOPNOTSUPP: the device, file system or kernel doesn't support the operation.
    Unsupported = EOPNOTSUPP, unsupported, "not supported";
    /// ENOENT: the file, zone, export or name doesn't exist.
    NotFound = ENOENT, not_found, "not found";
    /// EEXIST: the object exists already.
    AlreadyExists = EEXIST, already_exists, "already exists";
    /// EBUSY: the object is in use, or a limit on concurrent use (open zones, writers) is reached.
    Busy = EBUSY, busy, "busy";
    /// EACCES: the kernel doesn't permit the operation.
    PermissionDenied = EACCES, permission_denied, "permission denied";
    /// ETIMEDOUT: the operation did not complete within its time limit.
    TimedOut = ETIMEDOUT, timed_out, "timed out";
    /// ECANCELED: the caller, or the end of the runtime, cancelled the operation.
    Cancelled = ECANCELED, cancelled, "cancelled";
    /// ECONNRESET: the peer closed the connection.
    Disconnected = ECONNRESET, disconnected, "disconnected";
    /// EPROTO: the peer, or the bytes on the medium, don't follow the expected format.
    Protocol = EPROTO, protocol, "protocol error";
    /// ENOMEM: a memory limit is reached.
    OutOfMemory = ENOMEM, out_of_memory, "out of memory";
    /// EOVERFLOW: a number doesn't fit its field.
    Overflow = EOVERFLOW, overflow, "value too large";
    /// EBADF: the file, socket or handle is closed.
    Closed = EBADF, closed, "closed";
}

impl Error {
    /// Converts an error of the standard library; `doing` names the operation and its object.
    #[cold]
    pub fn from_io(error: &std::io::Error, doing: &str) -> Self {
        let detail = format!("{doing}: {error}");
        match error.raw_os_error() {
            Some(errno) => Error::from_errno(errno, detail),
            None => match error.kind() {
                std::io::ErrorKind::NotFound => Error::not_found(detail),
                std::io::ErrorKind::TimedOut => Error::timed_out(detail),
                std::io::ErrorKind::InvalidInput => Error::invalid(detail),
                std::io::ErrorKind::UnexpectedEof => Error::disconnected(detail),
                _ => Error::io(detail),
            },
        }
    }

    /// Whether the text has the kernel's own words for the error, as [`from_io`](Self::from_io) puts them
    /// there.
    fn is_explained(&self) -> bool {
        self.detail().contains("(os error ")
    }

    /// Returns the same error with `what: ` before its text.
    #[cold]
    pub fn in_context(&self, what: impl std::fmt::Display) -> Self {
        self.with_detail(format!("{what}: {}", self.detail()))
    }
}

impl std::error::Error for Error {}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.detail())?;
        match self.is_explained() {
            true => Ok(()),
            false => write!(formatter, " ({})", self.meaning()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errno_survives_both_ways() {
        for errno in 1..140 {
            assert_eq!(Error::from_errno(errno, "x").errno(), errno);
        }
    }

    #[test]
    fn text_names_thing_and_meaning() {
        let error = Error::no_space("writing 4096 bytes at 8192 of disk.img");
        assert_eq!(error.to_string(), "writing 4096 bytes at 8192 of disk.img (no space left)");
        assert_eq!(error.in_context("vol").detail(), "vol: writing 4096 bytes at 8192 of disk.img");
    }

    /// The kernel's words are the meaning.
    #[test]
    fn text_says_the_meaning_once() {
        let kernel = |errno| std::io::Error::from_raw_os_error(errno);
        let missing = Error::from_io(&kernel(libc::ENOENT), "opening disk.img").in_context("file \"disk\"");
        let text = "file \"disk\": opening disk.img: No such file or directory (os error 2)";
        assert_eq!(missing.to_string(), text);
        let used = Error::from_io(&kernel(libc::EADDRINUSE), "listening on 127.0.0.1:1");
        assert_eq!(used.to_string(), "listening on 127.0.0.1:1: Address already in use (os error 98)");
        assert_eq!(Error::from_errno(libc::EADDRINUSE, "listening").to_string(), "listening (errno 98)");
    }
}
