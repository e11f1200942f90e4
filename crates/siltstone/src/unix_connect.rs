//! Connections of operators to servers and holders of this machine, within a time limit.
//!
//! The kernel makes a connection wait while the listener's queue is full, as that of a stopped process is after a while.

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::io::{Error, ErrorKind};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Time limit for a connection, and for the first answer over it.
pub const LIMIT: Duration = Duration::from_secs(10);

/// Connects to a socket within [`LIMIT`]. Blocks the thread. The stream itself has no time limits.
///
/// # Errors
/// [`ErrorKind::TimedOut`] if the listener accepts nothing; those of the kernel.
pub fn connect(path: &Path) -> Result<UnixStream, Error> {
    connect_within(path, LIMIT)
}

fn connect_within(path: &Path, limit: Duration) -> Result<UnixStream, Error> {
    let address = SocketAddrUnix::new(path)?;
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // Linux limits the wait for the listener's queue by the time limit for sending.
    set_socket_timeout(&socket, Timeout::Send, Some(limit))?;
    let connected = loop {
        match rustix::net::connect(&socket, &address) {
            Err(rustix::io::Errno::INTR) => {}
            other => break other,
        }
    };
    match connected {
        Err(rustix::io::Errno::AGAIN) => {
            let seconds = limit.as_secs();
            Err(Error::new(
                ErrorKind::TimedOut,
                format!("no connection was accepted in {seconds} s: is its process stopped?"),
            ))
        }
        other => {
            other?;
            set_socket_timeout(&socket, Timeout::Send, None)?;
            Ok(socket.into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn a_listener_that_accepts_nothing_is_given_up() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        assert_eq!(connect(&path).unwrap_err().kind(), ErrorKind::NotFound);
        let listener = UnixListener::bind(&path).unwrap();
        let first = connect(&path).unwrap();
        assert_eq!(first.write_timeout().unwrap(), None);
        let mut queue = Vec::new();
        let error = loop {
            match connect_within(&path, Duration::from_millis(50)) {
                Ok(stream) => queue.push(stream),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
        assert!(error.to_string().contains("stopped"), "{error}");
        drop(listener);
        assert_eq!(connect(&path).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    }
}
