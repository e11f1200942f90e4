//! A pseudo-terminal as a serial port: programmers open its other end.

use block::{Error, Result};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{OptionalActions, tcgetattr, tcsetattr};
use std::os::fd::OwnedFd;
use std::path::PathBuf;

/// A pseudo-terminal in raw mode.
pub struct Pty {
    /// The end of the server.
    pub(crate) controller: OwnedFd,
    /// The other end, kept open: otherwise the server's end would fail after each client.
    pub(crate) terminal: OwnedFd,
    /// Path of the other end, such as `/dev/pts/3`.
    pub path: PathBuf,
}

impl Pty {
    /// Creates a pseudo-terminal.
    ///
    /// # Errors
    /// Errors of posix_openpt(3) and its companions: no /dev/ptmx, or no free pseudo-terminal.
    pub fn create() -> Result<Pty> {
        let failed = |error: rustix::io::Errno| Error::from_io(&error.into(), "creating a pseudo-terminal");
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let controller = openpt(flags).map_err(failed)?;
        grantpt(&controller).map_err(failed)?;
        unlockpt(&controller).map_err(failed)?;
        let name = ptsname(&controller, Vec::new()).map_err(failed)?;
        let path = PathBuf::from(name.to_string_lossy().into_owned());
        let options = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NOCTTY | rustix::fs::OFlags::CLOEXEC;
        let terminal = rustix::fs::open(&path, options, rustix::fs::Mode::empty()).map_err(failed)?;
        let mut modes = tcgetattr(&terminal).map_err(failed)?;
        modes.make_raw();
        tcsetattr(&terminal, OptionalActions::Now, &modes).map_err(failed)?;
        Ok(Pty { controller, terminal, path })
    }
}
