//! Owner and permissions of a unix socket's file.
//!
//! # Promises
//! - They are set between bind and listen. Until listen the kernel refuses every connection.
//! - Permissions that are given are exact: the umask doesn't change them.
//! - A file that isn't a socket of this user isn't changed, also if another process puts it in the socket's
//!   place.
#![allow(unsafe_code)] // The databases of users and groups.

use super::socket_file::replaced;
use block::{Error, Result};
use rustix::fs::{AtFlags, CWD, Gid, Mode, OFlags, Uid, chownat, fchmod, openat};
use std::ffi::CString;
use std::fs::Metadata;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::str::FromStr;

/// Largest mode: permissions alone.
const MAX_MODE: u32 = 0o777;
/// First length of the memory for an entry of a database, in bytes.
const ENTRY_BYTES: usize = 4 << 10;
/// Largest length of that memory: groups may have many members.
const MAX_ENTRY_BYTES: usize = 4 << 20;

/// Owner and permissions of a unix socket's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Access {
    /// Permissions, at most 0777; `None` leaves those of the umask.
    pub mode: Option<u32>,
    /// Owner.
    pub owner: Owner,
}

/// User and group of a file. `None` keeps those that the process creates files with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Owner {
    /// Number of the user.
    pub user: Option<u32>,
    /// Number of the group.
    pub group: Option<u32>,
}

impl Access {
    /// Permissions 0600.
    pub const OWNER_ONLY: Access = Access { mode: Some(0o600), owner: Owner { user: None, group: None } };

    /// Returns the access by permissions alone.
    pub fn with_mode(mode: u32) -> Access {
        Access { mode: Some(mode), owner: Owner::default() }
    }

    /// Parses permissions, in octal digits, as chmod takes them.
    ///
    /// # Errors
    /// [`Error::Invalid`] for other text and for numbers above 0777.
    pub fn parse_mode(text: &str) -> Result<u32> {
        let is_octal = (1..=4).contains(&text.len()) && text.bytes().all(|byte| matches!(byte, b'0'..=b'7'));
        let mode = u32::from_str_radix(text, 8).ok().filter(|mode| is_octal && *mode <= MAX_MODE);
        mode.ok_or_else(|| {
            Error::invalid(format!(
                "not permissions: \"{text}\"; expected octal digits up to 0777, such as 0660"
            ))
        })
    }

    /// Sets mode 0 on the unbound socket, which its file inherits: no user has access before
    /// [`apply`](Self::apply).
    pub(super) fn prepare(&self, socket: &OwnedFd) -> rustix::io::Result<()> {
        self.mode.map_or(Ok(()), |_| fchmod(socket, Mode::empty()))
    }

    /// Gives the file at a path its owner and permissions, if it is the one that `is_own` knows.
    ///
    /// # Errors
    /// [`Error::AlreadyExists`] for another file; errors of the kernel, such as `PermissionDenied` where only
    /// root may change the owner.
    pub(super) fn apply(&self, path: &Path, is_own: impl FnOnce(&Metadata) -> bool) -> Result<()> {
        if *self == Access::default() {
            return Ok(());
        }
        let named = |error: std::io::Error, doing: &str| {
            Error::from_io(&error, &format!("socket \"{}\": {doing}", path.display()))
        };
        // Without following links; the file that is checked is the one that is changed.
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(CWD, path, flags, Mode::empty())
            .map_err(|error| named(error.into(), "reading its attributes"))?;
        let by_descriptor = format!("/proc/self/fd/{}", file.as_raw_fd());
        let found =
            std::fs::metadata(&by_descriptor).map_err(|error| named(error, "reading its attributes"))?;
        if !is_own(&found) {
            return Err(replaced(path));
        }
        let Owner { user, group } = self.owner;
        if self.owner != Owner::default() {
            let (user, group) = (user.map(Uid::from_raw), group.map(Gid::from_raw));
            chownat(file.as_fd(), "", user, group, AtFlags::EMPTY_PATH)
                .map_err(|error| named(error.into(), "changing its owner"))?;
        }
        // After the owner: the group's permissions must not apply to the old group.
        match self.mode {
            Some(mode) => {
                std::fs::set_permissions(&by_descriptor, std::os::unix::fs::PermissionsExt::from_mode(mode))
                    .map_err(|error| named(error, "changing its permissions"))
            }
            None => Ok(()),
        }
    }
}

impl FromStr for Owner {
    type Err = Error;

    /// Looks up `USER`, `USER:GROUP`, `:GROUP`, or `USER:` with the user's own group, as chown does: by name,
    /// else by number.
    fn from_str(text: &str) -> Result<Owner> {
        let expected = "expected USER, USER:GROUP or :GROUP, each a name or a number";
        let (user, group) = match text.split_once(':') {
            Some((user, group)) => (user, Some(group)),
            None => (text, None),
        };
        if user.is_empty() && group.unwrap_or("").is_empty() {
            return Err(Error::invalid(format!("not an owner: \"{text}\"; {expected}")));
        }
        let unknown =
            |what: &str, name: &str| Error::invalid(format!("unknown {what}: \"{name}\"; {expected}"));
        let found = match user {
            "" => None,
            name => Some(user_of(name)?.ok_or_else(|| unknown("user", name))?),
        };
        let group = match (group, found) {
            (None, _) => None,
            (Some(""), found) => Some(found.and_then(|(_, group)| group).ok_or_else(|| {
                Error::invalid(format!("user without a group of its own: \"{user}\"; expected USER:GROUP"))
            })?),
            (Some(name), _) => Some(group_of(name)?.ok_or_else(|| unknown("group", name))?),
        };
        Ok(Owner { user: found.map(|(user, _)| user), group })
    }
}

/// Number in decimal digits. The largest one means "unchanged" to the kernel.
fn number_of(text: &str) -> Option<u32> {
    text.bytes()
        .all(|byte| byte.is_ascii_digit())
        .then(|| text.parse().ok())?
        .filter(|number| *number != u32::MAX)
}

/// Returns the number of a user and of its group; the group is known for a user of the database alone.
fn user_of(text: &str) -> Result<Option<(u32, Option<u32>)>> {
    let by_name = look_up("user", text, |name, memory| {
        // SAFETY: all zeros is a valid entry.
        let mut entry: libc::passwd = unsafe { std::mem::zeroed() };
        let mut found = std::ptr::null_mut();
        // SAFETY: name, entry and memory live during the call, and the length is the memory's.
        let code = unsafe {
            libc::getpwnam_r(name.as_ptr(), &mut entry, memory.as_mut_ptr().cast(), memory.len(), &mut found)
        };
        (code, (!found.is_null()).then_some((entry.pw_uid, Some(entry.pw_gid))))
    })?;
    Ok(by_name.or_else(|| number_of(text).map(|number| (number, None))))
}

/// Returns the number of a group.
fn group_of(text: &str) -> Result<Option<u32>> {
    let by_name = look_up("group", text, |name, memory| {
        // SAFETY: all zeros is a valid entry.
        let mut entry: libc::group = unsafe { std::mem::zeroed() };
        let mut found = std::ptr::null_mut();
        // SAFETY: name, entry and memory live during the call, and the length is the memory's.
        let code = unsafe {
            libc::getgrnam_r(name.as_ptr(), &mut entry, memory.as_mut_ptr().cast(), memory.len(), &mut found)
        };
        (code, (!found.is_null()).then_some(entry.gr_gid))
    })?;
    Ok(by_name.or_else(|| number_of(text)))
}

/// Looks a name up with as much memory as its entry needs.
fn look_up<T>(
    what: &str,
    text: &str,
    ask: impl Fn(&CString, &mut [u8]) -> (i32, Option<T>),
) -> Result<Option<T>> {
    let Ok(name) = CString::new(text) else { return Ok(None) };
    let mut length = ENTRY_BYTES;
    loop {
        match ask(&name, &mut vec![0; length]) {
            (_, Some(found)) => return Ok(Some(found)),
            // Databases report an unknown name differently (getpwnam(3)).
            (0 | libc::ENOENT | libc::ESRCH | libc::EBADF | libc::EPERM, None) => return Ok(None),
            (libc::EINTR, None) => {}
            (libc::ERANGE, None) if length < MAX_ENTRY_BYTES => length *= 4,
            (code, None) => {
                let error = std::io::Error::from_raw_os_error(code);
                return Err(Error::from_io(&error, &format!("looking up {what} \"{text}\"")));
            }
        }
    }
}

#[cfg(test)]
#[path = "access_tests.rs"]
mod tests;
