//! Creation of a control socket: at a path, or under a name of the stack in the default folder.
//!
//! # Promises
//! - Its mode is 0600 from its creation.
//! - A starting server removes the sockets that killed servers left in the default folder.
//!
//! [`SocketFolder`] and [`Listener::close`] replace and remove files.

use super::place::{self, ControlAddress, Identity};
use block::{Error, Result};
use runtime::net::{Access, LOCK_LIMIT, Listener, SocketFolder};
use std::path::{Path, PathBuf};

/// Permissions of a control socket.
const OWNER_ONLY: u32 = 0o600;

/// Limit of the files that are examined for sockets of killed servers.
const MAX_SWEPT: usize = 1000;

/// Listens at this address, or at the first free one that is derived from it.
///
/// # Errors
/// [`Error::Busy`] if a running server listens there; errors of the kernel.
pub(super) async fn take(place: &ControlAddress) -> Result<(PathBuf, Listener)> {
    let attempt = || match place {
        ControlAddress::At(path) => take_path(path).map_err(in_context),
        ControlAddress::Of(identity) => take_name(identity),
    };
    runtime::retry_while_busy(LOCK_LIMIT, async || attempt()).await
}

fn in_context(error: Error) -> Error {
    error.in_context("the control socket (--control PATH, --no-control)")
}

fn take_path(path: &Path) -> Result<(PathBuf, Listener)> {
    let listener = SocketFolder::of(path)?.listen(path, Access::with_mode(OWNER_ONLY))?;
    Ok((path.to_owned(), listener))
}

/// Takes a free name of the stack.
fn take_name(identity: &Identity) -> Result<(PathBuf, Listener)> {
    // The server of a file may have its socket in another folder.
    if identity.is_file()
        && let Some((path, _)) = place::servers(identity)?.first()
    {
        return Err(Error::busy(format!(
            "control socket {}: another server of this stack listens there; stop it, or give this one another socket \
             with --control PATH, or none with --no-control",
            path.display()
        )));
    }
    let path = place::make_folder()?;
    let folder = SocketFolder::lock(&path).map_err(in_context)?;
    sweep(&folder, &path);
    let mut outcome = Err(Error::busy("no name for a control socket"));
    for path in identity.names().map(|name| path.join(name)) {
        outcome = folder.listen(&path, Access::with_mode(OWNER_ONLY)).map(|listener| (path, listener));
        if !matches!(outcome, Err(Error::Busy(_))) {
            break;
        }
    }
    outcome.map_err(in_context)
}

/// Removes the sockets of killed servers of other stacks.
fn sweep(folder: &SocketFolder, path: &Path) {
    let Ok(entries) = std::fs::read_dir(path) else { return };
    let names = entries.flatten().take(MAX_SWEPT).map(|entry| entry.path());
    for path in names.filter(|path| path.extension().is_some_and(|ending| ending == "sock")) {
        // A socket that can't be removed does no harm.
        let _ = folder.remove_stale(&path);
    }
}
