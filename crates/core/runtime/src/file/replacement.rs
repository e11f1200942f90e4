//! Replacing a small file as a whole.

use block::{Error, Result};
use std::fs::{File, OpenOptions, Permissions};
use std::io::{BufWriter, ErrorKind, IntoInnerError};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Writes a file that replaces the one at `path`, if there is one. A reader sees the old contents or all of
/// the new ones, also after a crash of the machine. The file is durable when this returns.
///
/// The contents are written to `PATH.new`, which is created for this (O_EXCL, O_NOFOLLOW), and renamed. A
/// leftover of a killed process is removed first, so two processes must not replace the same path at the same
/// time: the later one makes the earlier one fail. `mode` is the mode of the file; `None` is 0666 less the
/// umask. The call blocks: on a shard, large contents are written in [`crate::blocking`].
///
/// # Errors
/// Errors of `write` and of the file system. The file at `path` is then unchanged, except if only syncing its
/// directory failed.
pub fn replace(
    path: &Path,
    mode: Option<u32>,
    write: impl FnOnce(&mut BufWriter<File>) -> std::io::Result<()>,
) -> Result<()> {
    let new = new_path(path);
    let created = remove_stale(&new).and_then(|()| create(&new, mode));
    let written = created.and_then(|file| {
        let finished = finish(&file, &new, path, mode, write);
        if finished.is_err() && is_at(&file, &new) {
            // The first error is returned.
            let _ = std::fs::remove_file(&new);
        }
        finished
    });
    let synced = written.and_then(|()| match path.parent() {
        Some(folder) if folder.as_os_str().is_empty() => File::open(".")?.sync_all(),
        Some(folder) => File::open(folder)?.sync_all(),
        None => Ok(()),
    });
    synced.map_err(|error| Error::from_io(&error, &format!("writing {}", path.display())))
}

/// Returns the path of the new contents before they are renamed.
fn new_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    name.into()
}

fn remove_stale(new: &Path) -> std::io::Result<()> {
    match std::fs::remove_file(new) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn create(new: &Path, mode: Option<u32>) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC);
    // Other users can't read the file before it has its final mode.
    options.mode(if mode.is_some() { 0o600 } else { 0o666 });
    options.open(new)
}

fn finish(
    file: &File,
    new: &Path,
    path: &Path,
    mode: Option<u32>,
    write: impl FnOnce(&mut BufWriter<File>) -> std::io::Result<()>,
) -> std::io::Result<()> {
    let mut writer = BufWriter::new(file.try_clone()?);
    write(&mut writer)?;
    writer.into_inner().map_err(IntoInnerError::into_error)?;
    if let Some(mode) = mode {
        file.set_permissions(Permissions::from_mode(mode))?;
    }
    file.sync_all()?;
    if !is_at(file, new) {
        return Err(std::io::Error::other(format!("{} was replaced by another process", new.display())));
    }
    std::fs::rename(new, path)
}

fn is_at(file: &File, path: &Path) -> bool {
    match (file.metadata(), std::fs::symlink_metadata(path)) {
        (Ok(own), Ok(there)) => (own.dev(), own.ino()) == (there.dev(), there.ino()),
        _ => false,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::io::Write;

    fn put(path: &Path, mode: Option<u32>, text: &str) -> Result<()> {
        replace(path, mode, |file| file.write_all(text.as_bytes()))
    }

    fn entries(folder: &Path) -> usize {
        std::fs::read_dir(folder).unwrap().count()
    }

    #[test]
    fn a_file_is_replaced_with_its_mode_and_nothing_is_left_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        for (text, mode) in [("one", 0o640), ("", 0o600), ("three", 0o644)] {
            put(&path, Some(mode), text).unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
            assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o7777, mode);
            assert_eq!(entries(folder.path()), 1);
        }
        put(&path, None, "four").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "four");
    }

    #[test]
    fn an_error_leaves_the_old_contents() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        put(&path, None, "old").unwrap();
        let error = replace(&path, None, |file| {
            file.write_all(b"new")?;
            Err(std::io::Error::other("no more"))
        });
        let error = error.unwrap_err().to_string();
        assert!(error.contains("/a: no more"), "{error}");
        assert_eq!((std::fs::read_to_string(&path).unwrap().as_str(), entries(folder.path())), ("old", 1));
        assert!(put(&folder.path().join("none/a"), None, "x").is_err());
    }

    #[test]
    fn a_link_in_the_place_of_the_new_contents_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let (path, victim) = (folder.path().join("a"), folder.path().join("victim"));
        std::fs::write(&victim, "precious").unwrap();
        std::os::unix::fs::symlink(&victim, folder.path().join("a.new")).unwrap();
        put(&path, None, "text").unwrap();
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "precious");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "text");
        assert!(!std::fs::symlink_metadata(&path).unwrap().is_symlink());
    }

    #[test]
    fn of_two_that_replace_a_file_at_the_same_time_the_earlier_fails() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let outer = replace(&path, None, |file| {
            put(&path, None, "later").unwrap();
            file.write_all(b"earlier")
        });
        assert!(outer.unwrap_err().to_string().contains("a.new was replaced by another process"));
        assert_eq!((std::fs::read_to_string(&path).unwrap().as_str(), entries(folder.path())), ("later", 1));
    }
}
