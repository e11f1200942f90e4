//! Addresses of sockets, as text and in the kernel's form.
#![allow(unsafe_code)] // Views of a sockaddr_storage.

use block::{Error, Result};
use std::fmt;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::str::FromStr;

/// Address of a listener: a path or a TCP address.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Address {
    /// A unix socket.
    Unix(PathBuf),
    /// TCP, as a numeric address: names are not resolved.
    Tcp(SocketAddr),
}

impl Address {
    /// Refuses an address that other machines can reach, unless `is_permitted`. Called by every server
    /// without authentication or encryption. `permission` says how to permit the address, such as
    /// `give --allow-remote if you trust all machines of the network`.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an address that is neither a unix socket nor loopback.
    pub fn check_reach(&self, is_permitted: bool, permission: &str) -> Result<()> {
        match self {
            Address::Tcp(tcp) if !is_permitted && !tcp.ip().to_canonical().is_loopback() => {
                Err(Error::invalid(format!(
                    "address \"{self}\": can be reached from other machines without TLS and certificates or passwords; \
                     expected a unix socket or a loopback address, such as 127.0.0.1:{}; to serve other machines, \
                     {permission}",
                    tcp.port()
                )))
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Unix(path) => write!(formatter, "unix:{}", path.display()),
            Address::Tcp(address) => address.fmt(formatter),
        }
    }
}

impl FromStr for Address {
    type Err = Error;

    fn from_str(text: &str) -> Result<Address> {
        if let Some(path) = text.strip_prefix("unix:") {
            let fits = (1..UNIX_PATH_ROOM).contains(&path.len()) && !path.contains('\0');
            return match fits {
                true => Ok(Address::Unix(PathBuf::from(path))),
                false => Err(Error::invalid(format!(
                    "address \"{text}\": a unix socket's path has 1 to {} bytes",
                    UNIX_PATH_ROOM - 1
                ))),
            };
        }
        let with_address = text.replacen("localhost:", "127.0.0.1:", 1);
        with_address.parse().map(Address::Tcp).map_err(|_| {
            Error::invalid(format!(
                "address \"{text}\": expected unix:PATH or IP:PORT, such as 127.0.0.1:10809"
            ))
        })
    }
}

/// Bytes of `sun_path`, including the final NUL.
const UNIX_PATH_ROOM: usize = 108;

/// Address in the kernel's form.
pub(crate) struct SocketAddress {
    storage: libc::sockaddr_storage,
    length: libc::socklen_t,
}

impl SocketAddress {
    pub(crate) fn of(address: &Address) -> Result<Self> {
        // SAFETY: all zeros is a valid storage of no family.
        let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
        let length = match address {
            Address::Unix(path) => {
                let bytes = path.as_os_str().as_bytes();
                if bytes.len() >= UNIX_PATH_ROOM {
                    return Err(Error::invalid(format!(
                        "unix socket {}: its path is {} bytes long, at most {} fit",
                        path.display(),
                        bytes.len(),
                        UNIX_PATH_ROOM - 1
                    )));
                }
                // SAFETY: a storage is as large and aligned as any address.
                let unix = unsafe { &mut *std::ptr::from_mut(&mut storage).cast::<libc::sockaddr_un>() };
                unix.sun_family = libc::AF_UNIX as libc::sa_family_t;
                for (target, byte) in unix.sun_path.iter_mut().zip(bytes) {
                    *target = *byte as libc::c_char;
                }
                std::mem::offset_of!(libc::sockaddr_un, sun_path) + bytes.len() + 1
            }
            Address::Tcp(SocketAddr::V4(address)) => {
                // SAFETY: as above.
                let inet = unsafe { &mut *std::ptr::from_mut(&mut storage).cast::<libc::sockaddr_in>() };
                inet.sin_family = libc::AF_INET as libc::sa_family_t;
                inet.sin_port = address.port().to_be();
                inet.sin_addr.s_addr = u32::from_ne_bytes(address.ip().octets());
                size_of::<libc::sockaddr_in>()
            }
            Address::Tcp(SocketAddr::V6(address)) => {
                // SAFETY: as above.
                let inet = unsafe { &mut *std::ptr::from_mut(&mut storage).cast::<libc::sockaddr_in6>() };
                inet.sin6_family = libc::AF_INET6 as libc::sa_family_t;
                inet.sin6_port = address.port().to_be();
                inet.sin6_addr.s6_addr = address.ip().octets();
                inet.sin6_scope_id = address.scope_id();
                size_of::<libc::sockaddr_in6>()
            }
        };
        Ok(SocketAddress { storage, length: length as libc::socklen_t })
    }

    pub(crate) fn as_ptr(&self) -> *const libc::sockaddr {
        std::ptr::from_ref(&self.storage).cast()
    }

    pub(crate) fn len(&self) -> libc::socklen_t {
        self.length
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_other_machines_reach_need_permission() {
        let check = |text: &str, is_permitted| {
            text.parse::<Address>().expect("an address").check_reach(is_permitted, "say so")
        };
        for local in
            ["unix:/run/kv.sock", "127.0.0.1:6379", "127.3.2.1:0", "[::1]:6379", "[::ffff:127.0.0.1]:6379"]
        {
            assert_eq!(check(local, false), Ok(()), "{local}");
        }
        for remote in
            ["0.0.0.0:6379", "192.168.1.5:6379", "[::]:6379", "[fe80::1]:6379", "[::ffff:10.0.0.1]:6379"]
        {
            let refused = check(remote, false).expect_err(remote).to_string();
            assert!(refused.contains(remote) && refused.contains("say so"), "{refused}");
            assert_eq!(check(remote, true), Ok(()), "{remote}");
        }
    }
}
