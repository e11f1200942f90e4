//! The one error type of the I/O path.
//!
//! A variant means what the POSIX error of the same name means, so that every door can say it in its own
//! protocol's words and `errno` survives a trip through the stack. The text names the thing, the value,
//! what was expected and what to do.

use std::borrow::Cow;

/// The result of anything on the I/O path.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The text of an [`Error`].
pub type Detail = Cow<'static, str>;

macro_rules! errors {
    ($($(#[$doc:meta])* $variant:ident = $errno:ident, $constructor:ident, $meaning:literal;)*) => {
        /// What went wrong, and the words that explain it.
        #[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
        #[non_exhaustive]
        pub enum Error {
            $($(#[$doc])* #[error("{0} ({meaning})", meaning = $meaning)] $variant(Detail),)*
            /// An error of the kernel's that has no variant of its own: its number, and what was being done.
            #[error("{1} (errno {0})")]
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

            /// The POSIX error number of this error.
            pub fn errno(&self) -> i32 {
                match self {
                    $(Error::$variant(_) => libc::$errno,)*
                    Error::Os(errno, _) => *errno,
                }
            }

            /// The text, without the meaning that `Display` puts behind it.
            pub fn detail(&self) -> &str {
                match self {
                    $(Error::$variant(detail) => detail,)*
                    Error::Os(_, detail) => detail,
                }
            }

            /// The same kind of error with other words, for a layer that knows more than the one below it.
            #[cold]
            pub fn with_detail(&self, detail: impl Into<Detail>) -> Self {
                match self {
                    $(Error::$variant(_) => Error::$variant(detail.into()),)*
                    Error::Os(errno, _) => Error::Os(*errno, detail.into()),
                }
            }

            /// The error that this POSIX error number stands for.
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
    /// EIO: the medium failed; nothing is known about the data that was asked for or written.
    Io = EIO, io, "input/output error";
    /// EBADMSG: data was read, but its checksum or form says that it isn't what was written.
    Corrupt = EBADMSG, corrupt, "corrupt data";
    /// ENOSPC: there is no room; reads, deletes and cleaning still work.
    NoSpace = ENOSPC, no_space, "no space left";
    /// EINVAL: the call itself is wrong: out of range, unaligned, a bad value.
    Invalid = EINVAL, invalid, "invalid argument";
    /// ESPIPE: an append named an offset that isn't the write pointer of its zone; the text has the write pointer.
    Misplaced = ESPIPE, misplaced, "not at the write pointer";
    /// EROFS: the device takes no writes, by configuration or because it had to stop taking them.
    ReadOnly = EROFS, read_only, "read-only";
    /// EOPNOTSUPP: this device, file system or kernel can't do that.
    Unsupported = EOPNOTSUPP, unsupported, "not supported";
    /// ENOENT: there is no such file, zone, export or name.
    NotFound = ENOENT, not_found, "not found";
    /// EEXIST: it is there already.
    AlreadyExists = EEXIST, already_exists, "already exists";
    /// EBUSY: somebody else holds it, or a limit on concurrent use (open zones, writers) is reached.
    Busy = EBUSY, busy, "busy";
    /// EACCES: the kernel doesn't allow it.
    PermissionDenied = EACCES, permission_denied, "permission denied";
    /// ETIMEDOUT: it did not happen in the time that was given.
    TimedOut = ETIMEDOUT, timed_out, "timed out";
    /// ECANCELED: the caller, or the end of the runtime, stopped it.
    Cancelled = ECANCELED, cancelled, "cancelled";
    /// ECONNRESET: the peer is gone.
    Disconnected = ECONNRESET, disconnected, "disconnected";
    /// EPROTO: the peer, or the bytes on the medium, don't speak the format that was expected.
    Protocol = EPROTO, protocol, "protocol error";
    /// ENOMEM: a budget of memory is used up.
    OutOfMemory = ENOMEM, out_of_memory, "out of memory";
    /// EOVERFLOW: a number doesn't fit its field.
    Overflow = EOVERFLOW, overflow, "value too large";
    /// EBADF: the file, socket or handle is closed.
    Closed = EBADF, closed, "closed";
}

impl Error {
    /// From an error of the standard library, with what was being done to what.
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

    /// The same error with `what: ` put before its text.
    #[cold]
    pub fn in_context(&self, what: impl std::fmt::Display) -> Self {
        self.with_detail(format!("{what}: {}", self.detail()))
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
}
