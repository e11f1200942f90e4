//! The process of another server: asked to end, and awaited.

use crate::failure::Failure;
use crate::unix_connect;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::io::ErrorKind;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
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
    /// As [`of_peer`](Self::of_peer).
    pub fn of_socket(path: &Path) -> Result<Option<ServerProcess>, Failure> {
        let stream = match unix_connect::connect(path) {
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {
                return Ok(None);
            }
            other => other.map_err(|error| Failure::World(format!("unix:{}: {error}", path.display())))?,
        };
        ServerProcess::of_peer(&format!("unix:{}", path.display()), &stream).map(Some)
    }

    /// Returns the process at the other end of an open connection. The number that a server
    /// reports proves nothing: it is one of the server's namespace, and may belong to any process here.
    ///
    /// # Errors
    /// As [`of`](Self::of).
    pub fn of_peer(name: &str, stream: &UnixStream) -> Result<ServerProcess, Failure> {
        let number = runtime::peer_process(stream.as_fd())
            .map_err(|error| Failure::World(format!("{name}: asking for its process: {error}")))?;
        ServerProcess::of(name, u64::from(number))
    }

    /// Returns a process by its number. `name` is what it serves, for errors.
    ///
    /// # Errors
    /// A number of no process here, such as 0 for a process of another namespace; a process of another
    /// program, such as systemd, which listens on behalf of servers; errors of the kernel.
    pub fn of(name: &str, number: u64) -> Result<ServerProcess, Failure> {
        let process = i32::try_from(number).ok().and_then(Pid::from_raw).ok_or_else(|| {
            Failure::World(format!(
                "{name}: process {number} serves it; expected a process that is visible from here; if the server runs in a \
                 container, run the command in there"
            ))
        })?;
        let failed = |error: std::io::Error| {
            Failure::World(format!("{name}: watching the server, process {number}: {error}"))
        };
        let descriptor = pidfd_open(process, PidfdFlags::empty()).map_err(|error| failed(error.into()))?;
        // The descriptor is open, so this is the name of its process, or of none if it has ended meanwhile.
        let program = std::fs::read_to_string(format!("/proc/{number}/comm")).map_err(failed)?;
        match program.trim_end() {
            "siltstone" => Ok(ServerProcess { number: process, descriptor }),
            other => Err(Failure::Usage(format!(
                "{name}: process {number} ({other}) serves it; expected a server of siltstone; if the server runs in a \
                 container, run the command in there"
            ))),
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_process_of_this_program_is_a_server() {
        let refused = |number| match ServerProcess::of("vol.toml", number) {
            Ok(_) => panic!("process {number} is a server"),
            Err(failure) => failure.to_string(),
        };
        assert!(refused(0).contains("visible from here"), "{}", refused(0));
        assert!(refused(u64::MAX).contains("visible from here"));
        // The number that a server in a namespace of its own often has there.
        assert!(refused(1).contains("expected a server of siltstone"), "{}", refused(1));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        assert!(ServerProcess::of_socket(&path).unwrap().is_none());
        let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let Err(failure) = ServerProcess::of_socket(&path) else { panic!("a test is a server") };
        let text = failure.to_string();
        assert!(text.contains(&format!("process {} ", std::process::id())), "{text}");
    }
}
