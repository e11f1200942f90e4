//! The process of another server: asked to end, and awaited.

use crate::failure::Failure;
use crate::unix_connect;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

/// Time limit for a server to make everything durable and to end. It ends itself before, unless its storage
/// keeps completing requests.
pub const END_LIMIT: Duration = Duration::from_secs(660);

/// A process. A number may be reused; the descriptor keeps referring to the process.
pub struct ServerProcess {
    number: Pid,
    descriptor: OwnedFd,
}

impl ServerProcess {
    /// Returns the process that listens on a unix socket; `None` if there is none.
    ///
    /// # Errors
    /// A process of another program; errors of the kernel.
    pub fn of_socket(path: &Path) -> Result<Option<ServerProcess>, Failure> {
        let failed = |error: std::io::Error| Failure::World(format!("unix:{}: {error}", path.display()));
        let stream = match unix_connect::connect(path) {
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {
                return Ok(None);
            }
            other => other.map_err(failed)?,
        };
        let peer = rustix::net::sockopt::socket_peercred(&stream).map_err(|error| failed(error.into()))?;
        let process = ServerProcess::of(u64::try_from(peer.pid.as_raw_nonzero().get()).ok())?;
        // It may also be systemd, or a program that has nothing to do with this one. The connection is open,
        // so its listener is still there.
        let name =
            std::fs::read_to_string(format!("/proc/{}/comm", peer.pid.as_raw_nonzero())).map_err(failed)?;
        match name.trim_end() {
            "siltstone" => Ok(process),
            other => Err(Failure::Usage(format!(
                "unix:{}: process {} ({other}) listens there; expected a server of siltstone",
                path.display(),
                peer.pid.as_raw_nonzero()
            ))),
        }
    }

    /// Returns a process by its number in a status; `None` for a number that can't be one.
    ///
    /// # Errors
    /// Errors of the kernel: no such process.
    pub fn of(number: Option<u64>) -> Result<Option<ServerProcess>, Failure> {
        let number = number.and_then(|number| i32::try_from(number).ok()).and_then(Pid::from_raw);
        let Some(number) = number else { return Ok(None) };
        let descriptor = pidfd_open(number, PidfdFlags::empty()).map_err(|error| {
            Failure::World(format!("watching the server, process {}: {error}", number.as_raw_nonzero()))
        })?;
        Ok(Some(ServerProcess { number, descriptor }))
    }

    /// Number of the process.
    pub fn number(&self) -> i32 {
        self.number.as_raw_nonzero().get()
    }

    /// Asks for an orderly end (SIGTERM).
    ///
    /// # Errors
    /// A process of another user.
    pub fn terminate(&self) -> Result<(), Failure> {
        match pidfd_send_signal(&self.descriptor, Signal::TERM) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(error) => Err(Failure::World(format!(
                "stopping the server, process {}: {error}; expected a process of this user; run the command as root or as its user",
                self.number()
            ))),
        }
    }

    /// Waits for the end. Returns whether it came within `limit`.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn has_ended(&self, limit: Duration) -> Result<bool, Failure> {
        let mut ended = [rustix::event::PollFd::new(&self.descriptor, rustix::event::PollFlags::IN)];
        let limit = rustix::event::Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: 0 };
        let count = rustix::event::poll(&mut ended, Some(&limit)).map_err(|error| {
            Failure::World(format!("watching the server, process {}: {error}", self.number()))
        })?;
        Ok(count > 0)
    }
}
