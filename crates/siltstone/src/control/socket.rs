//! A control socket's file: taken, and given back.
//!
//! # Promises
//! - Its mode is 0600 from its first moment on.
//! - A file that a dead server left is replaced, and removed from the usual folder by whoever comes next. One that a
//!   live server listens on, and anything that isn't a socket, is left alone and refused. Servers that start at the
//!   same time don't take each other's.
//! - It is removed when the server gives it back, unless another one has its name by then.

use super::place::{self, Identity, Place};
use block::{Error, Result};
use runtime::net::{Address, Listener};
use rustix::fs::{FlockOperation, Mode, flock};
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long the socket of a server that was killed may still seem to be in use.
const RESTART_LIMIT: Duration = Duration::from_secs(1);

/// How many files are looked at for what dead servers left.
const MOST_SWEPT: usize = 1000;

/// A file that is ours.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    device: u64,
    inode: u64,
}

/// Takes the place, or one of those that it stands for.
///
/// # Errors
/// [`Error::Busy`] where a live server has it; those of the kernel.
pub(super) async fn take(place: &Place) -> Result<(SocketFile, Listener)> {
    let attempt = || match place {
        Place::At(path) => bind_alone(path),
        Place::Of(identity) => take_in_folder(identity),
    };
    runtime::retry_while_busy(RESTART_LIMIT, async || attempt()).await
}

/// A name of the stack's that is free.
fn take_in_folder(identity: &Identity) -> Result<(SocketFile, Listener)> {
    // It may have its socket in the other folder.
    if identity.is_file()
        && let Some((path, _)) = place::servers(identity)?.first()
    {
        return Err(in_use(path));
    }
    let folder = place::make_folder()?;
    let _alone = lock(&folder)?;
    sweep(&folder);
    let mut outcome = Err(Error::busy("no name for a control socket"));
    for name in identity.names() {
        outcome = bind(&folder.join(name));
        if !matches!(outcome, Err(Error::Busy(_))) {
            break;
        }
    }
    outcome
}

/// Removes what dead servers of other stacks have left: nobody else would.
fn sweep(folder: &Path) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    let names = entries.flatten().take(MOST_SWEPT).map(|entry| entry.path());
    for path in names.filter(|path| path.extension().is_some_and(|ending| ending == "sock")) {
        // What can't be removed is in nobody's way.
        let _ = remove_stale(&path);
    }
}

fn in_use(path: &Path) -> Error {
    Error::busy(format!(
        "control socket {}: another server of this stack listens there; stop it, or give this one another socket \
         with --control PATH, or none with --no-control",
        path.display()
    ))
}

fn bind_alone(path: &Path) -> Result<(SocketFile, Listener)> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let _alone =
        lock(folder).map_err(|error| error.in_context(format!("control socket {}", path.display())))?;
    bind(path)
}

/// Listens, in place of what a dead server left; the folder is locked.
fn bind(path: &Path) -> Result<(SocketFile, Listener)> {
    remove_stale(path)?;
    // Nothing else of this process runs yet that could make files.
    let before = rustix::process::umask(Mode::RWXG | Mode::RWXO | Mode::XUSR);
    let listener = Listener::bind(&Address::Unix(path.to_owned()));
    rustix::process::umask(before);
    let listener =
        listener.map_err(|error| error.in_context("the control socket (--control PATH, --no-control)"))?;
    let found = std::fs::symlink_metadata(path)
        .map_err(|error| Error::from_io(&error, &format!("looking at control socket {}", path.display())))?;
    Ok((SocketFile { path: path.to_owned(), device: found.dev(), inode: found.ino() }, listener))
}

/// Holds others off who want a socket in the same folder, until it is dropped. Without it two could find what a dead
/// server left, and the later one remove in truth the other's new socket.
fn lock(folder: &Path) -> Result<std::fs::File> {
    let file = std::fs::File::open(folder)
        .map_err(|error| Error::from_io(&error, &format!("opening folder {}", folder.display())))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(_) => Err(Error::busy(format!(
            "another program has locked folder {}; choose another one with --control PATH",
            folder.display()
        ))),
    }
}

/// Removes a socket that nobody listens on; anything else that is there is an error.
fn remove_stale(path: &Path) -> Result<()> {
    let named = |error: &std::io::Error, doing| {
        Error::from_io(error, &format!("control socket {}: {doing}", path.display()))
    };
    let found = match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(named(&error, "looking at it")),
        Ok(found) => found,
    };
    if !found.file_type().is_socket() {
        return Err(Error::already_exists(format!(
            "control socket {}: there is something of this name that is no socket; remove it, or choose another path",
            path.display()
        )));
    }
    match place::connect(path)? {
        Some(_) => Err(in_use(path)),
        None => std::fs::remove_file(path).map_err(|error| named(&error, "removing what a dead server left")),
    }
}

impl SocketFile {
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes it.
    pub(super) fn give_back(self) {
        let is_ours = std::fs::symlink_metadata(&self.path)
            .is_ok_and(|found| (found.dev(), found.ino()) == (self.device, self.inode));
        if is_ours && let Err(error) = std::fs::remove_file(&self.path) {
            tracing::warn!("removing control socket {}: {error}", self.path.display());
        }
    }
}
