//! Listening sockets that systemd has passed to this process (socket activation, sd_listen_fds(3)).
//!
//! A server that listens on the address of a passed socket uses that socket: connections that came before the
//! server started are served, and the file of a unix socket stays when the server ends.

use super::{Address, Listener, set_option};
use crate::shard;
use rustix::net::sockopt::{socket_acceptconn, socket_type};
use rustix::net::{SocketType, getsockname};
use std::net::SocketAddr;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::sync::{Mutex, PoisonError};

/// First descriptor that is passed (SD_LISTEN_FDS_START).
const FIRST: RawFd = 3;
/// Limit of the descriptors that are looked at.
const MAX_PASSED: RawFd = 1024;

/// Sockets that no listener has taken; `None` before the first look.
static PASSED: Mutex<Option<Vec<(Address, OwnedFd)>>> = Mutex::new(None);

/// Number of sockets that are passed to a process, by LISTEN_PID and LISTEN_FDS.
fn count(process: Option<&str>, descriptors: Option<&str>, own: u32) -> RawFd {
    let is_own = process.and_then(|process| process.parse().ok()) == Some(own);
    let count = descriptors.and_then(|count| count.parse().ok()).filter(|_| is_own);
    count.unwrap_or(0).clamp(0, MAX_PASSED)
}

/// Address of a listening stream socket; `None` for any other descriptor.
fn address_of(socket: &OwnedFd) -> Option<Address> {
    let is_listening = socket_acceptconn(socket).ok()? && socket_type(socket).ok()? == SocketType::STREAM;
    let address = getsockname(socket).ok().filter(|_| is_listening)?;
    if let Ok(tcp) = SocketAddr::try_from(address.clone()) {
        return Some(Address::Tcp(tcp));
    }
    let unix = rustix::net::SocketAddrUnix::try_from(address).ok()?;
    let path = unix.path_bytes()?;
    format!("unix:{}", std::str::from_utf8(path).ok()?).parse().ok()
}

fn passed() -> Vec<(Address, OwnedFd)> {
    let variable = |name| std::env::var(name).ok();
    let (process, descriptors) = (variable("LISTEN_PID"), variable("LISTEN_FDS"));
    let count = count(process.as_deref(), descriptors.as_deref(), std::process::id());
    let own = |number| {
        // SAFETY: by the protocol the descriptor belongs to this process, and this is its only owner: the
        // list is made once.
        let socket = unsafe { OwnedFd::from_raw_fd(number) };
        // Programs that this one starts don't inherit it.
        rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC).ok()?;
        Some((address_of(&socket)?, socket))
    };
    (FIRST..FIRST + count).filter_map(own).collect()
}

fn with_passed<R>(work: impl FnOnce(&mut Vec<(Address, OwnedFd)>) -> R) -> R {
    // Nothing panics while the lock is held.
    let mut all = PASSED.lock().unwrap_or_else(PoisonError::into_inner);
    work(all.get_or_insert_with(passed))
}

/// Takes the passed socket of this address.
pub(super) fn take(address: &Address) -> Option<Listener> {
    let socket = with_passed(|all| {
        let at = all.iter().position(|(other, _)| other == address)?;
        Some(all.swap_remove(at).1)
    })?;
    // The ring waits for connections; other programs may have made the shared socket non-blocking.
    rustix::io::ioctl_fionbio(&socket, false).ok()?;
    if matches!(address, Address::Tcp(_)) {
        set_option(&socket, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1);
    }
    let descriptor = Rc::new(shard::with_current(|shard| shard.adopt(socket)));
    Some(Listener { descriptor, address: address.clone(), file: None })
}

/// Takes the only passed socket, which listens for connections and blocks, whatever its address is; `None`
/// if there is none or more than one.
pub fn take_only_passed_socket() -> Option<OwnedFd> {
    let socket = with_passed(|all| if all.len() == 1 { all.pop() } else { None })?.1;
    rustix::io::ioctl_fionbio(&socket, false).ok()?;
    Some(socket)
}

/// Addresses of passed sockets that nothing has listened on so far: clients that connect there wait for ever.
pub fn unused_passed_sockets() -> Vec<Address> {
    with_passed(|all| all.iter().map(|(address, _)| address.clone()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_for_the_process_that_is_named() {
        assert_eq!(count(Some("7"), Some("2"), 7), 2);
        assert_eq!(count(Some("8"), Some("2"), 7), 0);
        assert_eq!(count(None, Some("2"), 7), 0);
        assert_eq!(count(Some("7"), Some("many"), 7), 0);
        assert_eq!(count(Some("7"), Some("-1"), 7), 0);
        assert_eq!(count(Some("7"), Some("99999"), 7), MAX_PASSED);
    }

    #[test]
    fn only_listening_streams_have_an_address() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let unix = OwnedFd::from(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert_eq!(address_of(&unix), Some(Address::Unix(path.clone())));
        let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = Address::Tcp(tcp.local_addr().unwrap());
        assert_eq!(address_of(&OwnedFd::from(tcp)), Some(address));
        let connected = std::os::unix::net::UnixStream::connect(&path).unwrap();
        assert_eq!(address_of(&OwnedFd::from(connected)), None);
        assert_eq!(address_of(&OwnedFd::from(std::fs::File::open("/dev/null").unwrap())), None);
    }
}
