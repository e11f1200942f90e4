//! Files of unix sockets: created when a server starts to listen, removed when it stops.
//!
//! # Promises
//! - A socket that no process listens on is replaced. Any other file at the path remains, and is an error
//!   that names the path, the kind of file and the remedy.
//! - [`Listener::close`] removes the inode that its own bind created, and no other.
//! - Both happen under a lock (flock) of the folder, so that servers that start or stop at the same time
//!   never remove each other's socket. The wait for the lock is bounded by [`LOCK_LIMIT`].
//!
//! Programs that don't take the lock aren't protected against.

use super::{Access, Address, Listener, SocketAddress, inherited, new_socket};
use crate::shard;
use crate::timer::retry_while_busy;
use block::{Error, Result};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::{File, FileType, Metadata};
use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Longest wait for the lock of a folder, and for the socket of a killed process to stop taking connections.
pub const LOCK_LIMIT: Duration = Duration::from_secs(1);

/// Inode that a bind has created. No other file gets its number as long as the socket is open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SocketFile {
    path: PathBuf,
    device: u64,
    inode: u64,
}

/// Locked folder of sockets, unlocked when dropped.
#[derive(Debug)]
pub struct SocketFolder {
    /// Open folder, which holds the lock.
    _folder: File,
}

impl SocketFolder {
    /// Locks a folder, without waiting.
    ///
    /// # Errors
    /// [`Error::Busy`] where another process, or another part of this one, holds the lock; errors of the
    /// kernel.
    pub fn lock(folder: &Path) -> Result<SocketFolder> {
        let name = folder.display();
        let file =
            File::open(folder).map_err(|error| Error::from_io(&error, &format!("opening folder {name}")))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(SocketFolder { _folder: file }),
            Err(Errno::WOULDBLOCK) => Err(Error::busy(format!(
                "folder \"{name}\": locked by another process; expected a lock (flock) that is free within \
                 {LOCK_LIMIT:?}; end that process, or choose a path in another folder"
            ))),
            Err(error) => Err(Error::from_io(&error.into(), &format!("locking folder {name}"))),
        }
    }

    /// Locks the folder of a path, as [`lock`](Self::lock) does.
    ///
    /// # Errors
    /// Errors of [`lock`](Self::lock).
    pub fn of(path: &Path) -> Result<SocketFolder> {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        SocketFolder::lock(folder.unwrap_or(Path::new(".")))
            .map_err(|error| error.in_context(format_args!("socket \"{}\"", path.display())))
    }

    /// Listens on a unix socket in this folder, in place of one that no process listens on. The file has the
    /// owner and the permissions of `access` before the first connection is possible, and at no time wider
    /// permissions.
    ///
    /// # Errors
    /// [`Error::Busy`] where a process listens there; [`Error::AlreadyExists`] where the path has a file that
    /// isn't a socket; errors of the kernel. No file is left.
    pub fn listen(&self, path: &Path, access: Access) -> Result<Listener> {
        self.remove_stale(path)?;
        let mut created = None;
        let bound = Listener::bind_with(
            &Address::Unix(path.to_owned()),
            |socket| access.prepare(socket),
            || {
                let found =
                    std::fs::symlink_metadata(path).map_err(|error| named(path, &error, "looking at it"))?;
                if !found.file_type().is_socket() || found.uid() != rustix::process::geteuid().as_raw() {
                    return Err(replaced(path));
                }
                created = Some(SocketFile { path: path.to_owned(), device: found.dev(), inode: found.ino() });
                access.apply(path, |found| is_same(&created, found))
            },
        );
        match bound {
            Ok(mut listener) => {
                listener.file = created;
                Ok(listener)
            }
            Err(error) => {
                // The first error is returned. The folder is locked, so the path can't have another server's
                // socket.
                let is_own = std::fs::symlink_metadata(path).is_ok_and(|found| is_same(&created, &found));
                let _ = if is_own { remove(path) } else { Ok(()) };
                Err(error)
            }
        }
    }

    /// Removes a socket in this folder that no process listens on. A path without a file is no error.
    ///
    /// # Errors
    /// As [`listen`](Self::listen).
    pub fn remove_stale(&self, path: &Path) -> Result<()> {
        let found = match std::fs::symlink_metadata(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(named(path, &error, "looking at it")),
            Ok(found) => found,
        };
        if !found.file_type().is_socket() {
            return Err(Error::already_exists(format!(
                "socket \"{}\": not a socket: {}; expected a socket or no file; remove it or choose another path",
                path.display(),
                kind_of(found.file_type())
            )));
        }
        if is_listened_on(path)? {
            return Err(Error::busy(format!(
                "socket \"{}\": a server listens there; expected no server; stop it or choose another path",
                path.display()
            )));
        }
        remove(path)
    }
}

fn is_same(file: &Option<SocketFile>, found: &Metadata) -> bool {
    file.as_ref().is_some_and(|file| (found.dev(), found.ino()) == (file.device, file.inode))
}

fn named(path: &Path, error: &std::io::Error, doing: &str) -> Error {
    Error::from_io(error, &format!("socket \"{}\": {doing}", path.display()))
}

fn remove(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(named(path, &error, "removing it")),
        _ => Ok(()),
    }
}

fn kind_of(file_type: FileType) -> &'static str {
    match file_type {
        other if other.is_file() => "a regular file",
        other if other.is_dir() => "a directory",
        other if other.is_symlink() => "a symbolic link",
        other if other.is_fifo() => "a FIFO",
        other if other.is_block_device() => "a block device",
        other if other.is_char_device() => "a character device",
        _ => "a file of an unknown type",
    }
}

/// Whether a process listens on a socket, also a stopped one that accepts nothing. Never waits. The kernel
/// refuses connections to a socket without a listener.
///
/// # Errors
/// The kernel's error; [`Error::PermissionDenied`] for users who may not connect.
pub fn is_listened_on(path: &Path) -> Result<bool> {
    let address = Address::Unix(path.to_owned());
    let (kernel, socket) = (SocketAddress::of(&address)?, new_socket(&address, libc::SOCK_NONBLOCK)?);
    // SAFETY: the address is valid for its length during the call.
    if unsafe { libc::connect(socket.as_raw_fd(), kernel.as_ptr(), kernel.len()) } == 0 {
        return Ok(true);
    }
    let error = std::io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::ECONNREFUSED | libc::ENOENT) => Ok(false),
        // A process was killed before it gave its socket permissions. No running process is at that point:
        // the folder is locked.
        Some(libc::EACCES) if has_no_permissions(path) => Ok(false),
        // EAGAIN: the listener's queue is full. EPROTOTYPE: the socket is of another type, such as datagrams.
        Some(libc::EAGAIN | libc::EPROTOTYPE) => Ok(true),
        _ => Err(named(path, &error, "connecting to it")),
    }
}

/// Whether a socket is this user's, and without any permissions.
fn has_no_permissions(path: &Path) -> bool {
    std::fs::symlink_metadata(path)
        .is_ok_and(|found| found.uid() == rustix::process::geteuid().as_raw() && found.mode() & 0o777 == 0)
}

/// Error for a path that has another file than the socket that was created there.
pub(super) fn replaced(path: &Path) -> Error {
    Error::already_exists(format!(
        "socket \"{}\": another process replaced it; expected the socket that was created; choose a folder that only this user may \
         write to",
        path.display()
    ))
}

impl SocketFile {
    fn remove_if_own(&self) -> Result<()> {
        let _locked = SocketFolder::of(&self.path)?;
        let is_own = std::fs::symlink_metadata(&self.path)
            .is_ok_and(|found| (found.dev(), found.ino()) == (self.device, self.inode));
        if is_own { remove(&self.path) } else { Ok(()) }
    }
}

impl Listener {
    /// Listens as [`bind`](Self::bind) does. The file of a unix socket that a killed process left is
    /// replaced, has the owner and the permissions of `access`, and is removed by [`close`](Self::close). TCP
    /// and simulated sockets have neither. A socket of this address that systemd has passed is used as it is.
    ///
    /// # Errors
    /// Errors of [`SocketFolder::listen`], [`Error::Busy`] after at most [`LOCK_LIMIT`].
    pub async fn replace_stale(address: &Address, access: Access) -> Result<Listener> {
        if shard::is_simulated() {
            return Listener::bind(address);
        }
        if let Some(listener) = inherited::take(address) {
            return Ok(listener);
        }
        match address {
            Address::Unix(path) => {
                retry_while_busy(LOCK_LIMIT, async || SocketFolder::of(path)?.listen(path, access)).await
            }
            _ => Listener::bind(address),
        }
    }

    /// Stops listening. Removes the file of a unix socket that [`replace_stale`](Self::replace_stale) or
    /// [`SocketFolder::listen`] has created, unless the path now leads to another file.
    ///
    /// # Errors
    /// [`Error::Busy`] where the folder was locked for [`LOCK_LIMIT`]; errors of the kernel. The socket is
    /// then closed, and its file remains.
    pub async fn close(self) -> Result<()> {
        // The socket remains open until the end of this call, so that the inode's number isn't reused before.
        match &self.file {
            Some(file) => retry_while_busy(LOCK_LIMIT, async || file.remove_if_own()).await,
            None => Ok(()),
        }
    }
}

#[cfg(test)]
#[path = "socket_file_tests.rs"]
mod tests;
