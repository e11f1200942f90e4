//! Negotiation of INIT: the minor version, the capabilities and the limits of a connection.

use crate::protocol::{InitIn, InitOut, MAJOR, MIN_MINOR, MINOR, init_flag};
use block::{Error, Result};
use serde::{Deserialize, Serialize};

/// Largest write and read in one request, in bytes: the most that the kernel sends by default
/// (`fs.fuse.max_pages_limit`).
pub const MAX_WRITE: usize = 1 << 20;

/// Capabilities that every session requests.
const WANTED: u64 = init_flag::ASYNC_READ
    | init_flag::BIG_WRITES
    | init_flag::ASYNC_DIO
    | init_flag::PARALLEL_DIROPS
    | init_flag::ABORT_ERROR
    | init_flag::MAX_PAGES
    | init_flag::SETXATTR_EXT
    | init_flag::INIT_EXT
    | init_flag::DIRECT_IO_ALLOW_MMAP
    | init_flag::HAS_RESEND;

/// Result of the negotiation. It belongs to the connection, not to the process: a server that adopts the
/// connection of an earlier one gets no INIT and needs these values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Negotiated {
    /// Minor version of the protocol that both sides support.
    pub minor: u32,
    /// Capabilities ([`init_flag`]) that both sides have.
    pub flags: u64,
    /// Largest write in one request, in bytes.
    pub max_write: u32,
    /// Number of asynchronous requests that the kernel has in flight.
    pub max_background: u16,
}

impl Negotiated {
    /// Whether both sides have all of these capabilities.
    #[inline]
    pub fn has(&self, flags: u64) -> bool {
        self.flags & flags == flags
    }

    /// Checks values that another process has passed.
    ///
    /// # Errors
    /// [`Error::Invalid`] for values that can't result from a negotiation of this version.
    pub fn check(&self) -> Result<()> {
        if !(MIN_MINOR..=MINOR).contains(&self.minor) {
            return Err(Error::invalid(format!(
                "FUSE connection to adopt: minor version {} out of range {MIN_MINOR}..={MINOR}",
                self.minor
            )));
        }
        if self.max_write as usize > MAX_WRITE {
            return Err(Error::invalid(format!(
                "FUSE connection to adopt: max_write {} out of range 0..={MAX_WRITE}",
                self.max_write
            )));
        }
        Ok(())
    }
}

/// Answers INIT. `capabilities` are those that the file system requests in addition to those of every
/// session; `requests` is the number of requests that the session executes at a time.
///
/// # Errors
/// [`Error::Unsupported`] for a kernel older than Linux 5.17.
pub fn negotiate(init: &InitIn, capabilities: u64, requests: usize) -> Result<(Negotiated, InitOut)> {
    if init.major != MAJOR || init.minor < MIN_MINOR {
        return Err(Error::unsupported(format!(
            "FUSE protocol {}.{} of the kernel: expected {MAJOR}.{MIN_MINOR} or higher; use Linux 6.1 or newer",
            init.major, init.minor
        )));
    }
    let offered = u64::from(init.flags) | u64::from(init.flags2) << 32;
    let flags = offered & (WANTED | capabilities);
    let max_background = requests.clamp(16, usize::from(u16::MAX)) as u16;
    let negotiated =
        Negotiated { minor: init.minor.min(MINOR), flags, max_write: MAX_WRITE as u32, max_background };
    let out = InitOut {
        major: MAJOR,
        minor: MINOR,
        max_readahead: init.max_readahead,
        flags: flags as u32,
        flags2: (flags >> 32) as u32,
        max_background,
        congestion_threshold: max_background / 4 * 3,
        max_write: MAX_WRITE as u32,
        time_gran: 1,
        max_pages: (MAX_WRITE / rustix::param::page_size()).max(1) as u16,
        ..InitOut::default()
    };
    Ok((negotiated, out))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_offered_is_taken() {
        let offered = init_flag::ASYNC_READ | init_flag::INIT_EXT | init_flag::HAS_RESEND | 1 << 60;
        let init = InitIn {
            major: 7,
            minor: 99,
            flags: offered as u32,
            flags2: (offered >> 32) as u32,
            ..InitIn::default()
        };
        let (negotiated, out) = negotiate(&init, init_flag::WRITEBACK_CACHE, 128).expect("a known version");
        assert_eq!(negotiated.minor, MINOR);
        assert_eq!(negotiated.flags, offered & !(1 << 60));
        assert!(negotiated.has(init_flag::HAS_RESEND) && !negotiated.has(init_flag::WRITEBACK_CACHE));
        assert_eq!((out.flags, out.flags2), (negotiated.flags as u32, (negotiated.flags >> 32) as u32));
        assert_eq!(u32::from(out.max_pages) * rustix::param::page_size() as u32, out.max_write);
        negotiated.check().expect("sound");
        let text = serde_json::to_string(&negotiated).expect("text");
        assert_eq!(serde_json::from_str::<Negotiated>(&text).expect("the same"), negotiated);
    }

    #[test]
    fn unknown_versions_are_refused() {
        for (major, minor) in [(6, 40), (8, 40), (7, 35)] {
            let init = InitIn { major, minor, ..InitIn::default() };
            assert!(negotiate(&init, 0, 1).is_err(), "{major}.{minor}");
        }
        let sound = Negotiated { minor: 40, flags: 0, max_write: 4096, max_background: 16 };
        assert!(Negotiated { minor: 46, ..sound }.check().is_err());
        assert!(Negotiated { max_write: 1 << 30, ..sound }.check().is_err());
    }
}
