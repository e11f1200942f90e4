//! Mounts whose server has ended though their connection is still open, because another process has a device
//! of the session or the server can't end. All requests to them wait.

use crate::mount::{detach_now, own_path};
use block::{Error, Result};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, UnmountFlags};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

/// Time limit for the server of a mount to answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// Folder of the kernel's connections.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";
/// Type of the mounts of siltstone.
const TYPE: &str = "fuse.siltstone";

/// A mount of siltstone.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Found {
    /// Minor number of `st_dev`: the number of its connection.
    connection: u32,
    path: PathBuf,
    source: String,
}

/// Decodes a word of mountinfo, in which blanks and backslashes are octal.
fn decoded(word: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(word.to_owned(), |word, (code, character)| word.replace(code, character))
}

/// Returns the topmost mount at a path, if it is one of siltstone; `text` is the text of
/// `/proc/self/mountinfo` (proc(5)).
fn topmost(text: &str, path: &Path) -> Option<Found> {
    let of_line = |line: &str| {
        let (first, last) = line.split_once(" - ")?;
        let mut first = first.split(' ').skip(2);
        let (_, minor) = first.next()?.split_once(':')?;
        let at = PathBuf::from(decoded(first.nth(1)?));
        let mut last = last.split(' ');
        let kind = last.next()?;
        Some((
            kind == TYPE,
            Found { connection: minor.parse().ok()?, path: at, source: decoded(last.next()?) },
        ))
    };
    let (is_ours, found) = text.lines().filter_map(of_line).rfind(|(_, found)| found.path == path)?;
    is_ours.then_some(found)
}

/// Asks the server of a mount; `None` if it doesn't answer within `limit`. The asking thread then continues
/// to wait.
fn asked(path: &Path, limit: Duration) -> Option<rustix::io::Result<()>> {
    let (sender, receiver) = mpsc::channel();
    let path = path.to_owned();
    // Attributes may be cached; sizes aren't.
    let asking = move || {
        // After the limit the receiver is dropped.
        let _late = sender.send(rustix::fs::statfs(&path).map(drop));
    };
    std::thread::Builder::new().name("fuse-asked".into()).spawn(asking).ok()?;
    receiver.recv_timeout(limit).ok()
}

/// Ends a connection: all its requests fail.
fn abort(found: &Found) -> Result<()> {
    let flags = UnmountFlags::NOFOLLOW | UnmountFlags::FORCE | UnmountFlags::DETACH;
    match rustix::mount::unmount(&found.path, flags) {
        Err(Errno::PERM) => {}
        other => return other.map_err(|error| Error::from_io(&error.into(), "aborting a FUSE connection")),
    }
    // The file belongs to the user of the mount.
    let file = format!("{CONNECTIONS}/{}/abort", found.connection);
    std::fs::write(&file, "1").map_err(|error| Error::from_io(&error, &format!("aborting by {file}")))?;
    detach_now(&found.path)
}

/// Removes the mount at a path if its server doesn't answer and its source is `source`, an absolute path. The
/// caller has opened the storage that the mount's server had locked, so that server has ended. Blocks the
/// thread.
///
/// # Errors
/// [`Error::Busy`] for a mount of another source that doesn't answer; errors of the kernel.
pub fn remove_lost(path: &Path, source: &str) -> Result<()> {
    remove_lost_within(path, source, ANSWER_LIMIT)
}

fn remove_lost_within(path: &Path, source: &str, limit: Duration) -> Result<()> {
    let Ok(path) = own_path(path) else { return Ok(()) };
    let text = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let Some(found) = topmost(&text, &path) else { return Ok(()) };
    if asked(&path, limit).is_some() {
        return Ok(());
    }
    if found.source != source || !Path::new(source).is_absolute() {
        return Err(Error::busy(format!(
            "mount point {}: the server of {}, which is mounted there, doesn't answer within {limit:?}; \
             expected an answer; if it has ended, run: umount -f {}",
            path.display(),
            found.source,
            path.display()
        )));
    }
    abort(&found)?;
    tracing::warn!("{}: the server of the mount had ended; aborted its connection", path.display());
    Ok(())
}

/// Returns the number of the connection of the topmost mount at a path, if it is one of siltstone. Sends no
/// request to its server.
pub(crate) fn number_at(path: &Path) -> Option<u32> {
    let text = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    Some(topmost(&text, &own_path(path).ok()?)?.connection)
}

/// Opens the file that aborts a connection; `None` for another user than that of the mount, or without
/// fusectl. It never means a later connection of the same number.
pub(crate) fn open_abort(connection: u32) -> Option<OwnedFd> {
    let file = std::fs::OpenOptions::new().write(true).open(format!("{CONNECTIONS}/{connection}/abort"));
    Some(file.ok()?.into())
}

/// As [`open_abort`] where fusectl isn't mounted, as in many containers: by a mount without a path, which
/// needs privileges.
pub(crate) fn open_abort_detached(connection: u32) -> rustix::io::Result<OwnedFd> {
    let context = rustix::mount::fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
    rustix::mount::fsconfig_create(context.as_fd())?;
    let flags = FsMountFlags::FSMOUNT_CLOEXEC;
    let root = rustix::mount::fsmount(context.as_fd(), flags, MountAttrFlags::empty())?;
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    rustix::fs::openat(root, format!("{connection}/abort"), flags, Mode::empty())
}

/// Aborts a connection by its mount at a path, and removes the mount. A mount of another connection stays.
/// Blocks the thread.
///
/// # Errors
/// The kernel's error.
pub(crate) fn abort_mount(path: &Path, connection: u32) -> Result<()> {
    let text = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    match topmost(&text, path).filter(|found| found.connection == connection) {
        Some(found) => abort(&found),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn the_topmost_mount_at_a_path_is_found() {
        let text = "36 35 0:41 / /mnt rw,noatime master:1 - ext4 /dev/root rw
40 36 0:57 / /mnt/a\\040b rw,nosuid - fuse.siltstone /srv/x\\134y.img rw,user_id=0
41 36 0:58 / /mnt/other rw - fuse.siltstone /srv/o rw
42 41 0:59 / /mnt/other rw - tmpfs tmpfs rw
";
        let found = Found { connection: 57, path: "/mnt/a b".into(), source: "/srv/x\\y.img".into() };
        assert_eq!(topmost(text, Path::new("/mnt/a b")), Some(found));
        for none in ["/mnt/other", "/mnt", "/nowhere"] {
            assert_eq!(topmost(text, Path::new(none)), None, "{none}");
        }
    }

    #[test]
    fn a_mount_that_does_not_answer_is_removed_for_its_own_source_alone() {
        if !rustix::process::getuid().is_root() || !Path::new(crate::mount::DEVICE).exists() {
            return println!(
                "SKIPPED: a_mount_that_does_not_answer_is_removed_for_its_own_source_alone: needs root and /dev/fuse"
            );
        }
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("mounted");
        std::fs::create_dir(&path).expect("a folder");
        let device = runtime::message_device::open(Path::new(crate::mount::DEVICE)).expect("opened");
        let data =
            format!("fd={},rootmode=40000,user_id=0,group_id=0", std::os::fd::AsRawFd::as_raw_fd(&device));
        let data = std::ffi::CString::new(data).expect("text");
        let flags = rustix::mount::MountFlags::NOSUID;
        rustix::mount::mount("/srv/a.img", &path, TYPE, flags, data.as_c_str()).expect("mounted");
        let limit = Duration::from_millis(200);
        let other = remove_lost_within(&path, "/srv/b.img", limit);
        let own = remove_lost_within(&path, "/srv/a.img", limit);
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("mounts");
        let is_left = topmost(&mounts, &path).is_some();
        let _gone = Command::new("umount").args(["-f", "-l"]).arg(&path).output();
        assert!(matches!(other, Err(Error::Busy(_))), "{other:?}");
        assert_eq!(own, Ok(()));
        assert!(!is_left);
    }
}
