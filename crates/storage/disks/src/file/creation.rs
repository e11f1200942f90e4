//! Creation of a file with contents: it appears at its path once the contents are complete and durable. And
//! opening it by programs without a stack.
//!
//! - Where there is no file, the contents are written to a file without a name (O_TMPFILE), which then gets
//!   the path (linkat). A file system without such files gets one of the name `.NAME.NUMBER` beside the path,
//!   which is renamed; a killed process leaves that one.
//! - An empty file is filled in place, while it is locked, and so keeps its owner and its mode. Until it is
//!   complete it is longer by `MARK`, by which the next creation recognizes what a killed process left.
//!
//! No file that another program made is replaced or removed. A process that is killed at any step leaves at
//! the path what was there, an incomplete file that the next creation fills, or a complete one.

use super::{FilePart, Settings, existing, lock};
use block::{DevicePart, Error, Part, Result};
use runtime::file::{File, SharedFile};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Last bytes of a file that is being filled. No device has a length with these 64 bytes.
const MARK: &[u8; 64] = b"siltstone: the creation of this file has not ended; not a store\n";
/// Number of times that a path is looked at again after its file has changed meanwhile.
const ATTEMPTS: usize = 16;

/// State of the file at a path.
enum Found {
    Nothing,
    /// A regular file that is empty, or that was being filled.
    Unfilled,
    Other,
}

fn look(path: &Path) -> Result<Found> {
    let Some(found) = existing(path)? else { return Ok(Found::Nothing) };
    let is_unfilled = found.is_file
        && (found.length == 0
            || is_marked(path, found.length).map_err(|error| doing(&error, "reading", path))?);
    Ok(if is_unfilled { Found::Unfilled } else { Found::Other })
}

/// Whether the file at a path ends with the mark.
fn is_marked(path: &Path, length: u64) -> std::io::Result<bool> {
    let mark = MARK.len() as u64;
    if length % 512 != mark {
        return Ok(false);
    }
    let mut end = [0; MARK.len()];
    let read = std::fs::File::open(path).and_then(|file| file.read_exact_at(&mut end, length - mark));
    match read {
        Ok(()) => Ok(end == *MARK),
        // It has become shorter, or isn't readable: it will be opened for writing, and that error is clearer.
        Err(error) => match error.kind() {
            std::io::ErrorKind::UnexpectedEof | std::io::ErrorKind::PermissionDenied => Ok(false),
            _ => Err(error),
        },
    }
}

/// Whether there is no file at a path, an empty one, or one whose creation didn't end.
///
/// # Errors
/// Errors of stat(2) other than [`Error::NotFound`], and of reading.
pub fn is_absent(path: &Path) -> Result<bool> {
    Ok(!matches!(look(path)?, Found::Other))
}

/// Creates a sparse file of `size` bytes with the contents that `fill` writes. If another program creates the
/// file meanwhile, its file stays, and `fill` may have been called for another one. A file that is empty or
/// wasn't completed is filled in place.
///
/// # Errors
/// [`Error::Busy`] while another program has the empty file locked; [`Error::Invalid`] for a symbolic link
/// without a target; errors of `fill` and of the file.
pub async fn create(
    path: &Path,
    size: u64,
    fill: impl AsyncFn(Arc<dyn DevicePart>) -> Result<()>,
) -> Result<()> {
    create_by(path, size, fill, open_nameless).await
}

/// Opens the contents of a file; creates the file first if it [is absent](is_absent) and `new_size`, in
/// bytes, is given. `contents` names them in errors. `fill` writes them to a new file, `open` opens them.
/// Returns what `open` returned, and the file, which the caller closes.
///
/// # Errors
/// All name the path. [`Error::NotFound`] for an absent file without a size; [`Error::Protocol`] for a file
/// with anything else; errors of [`create`], of `open` and of the file.
pub async fn open_or_create<T>(
    path: &Path,
    contents: &str,
    new_size: Option<u64>,
    fill: impl AsyncFn(Arc<dyn DevicePart>) -> Result<()>,
    open: impl AsyncFnOnce(Arc<dyn DevicePart>) -> Result<T>,
) -> Result<(T, Arc<FilePart>)> {
    let shown = path.display();
    if is_absent(path)? {
        let size = new_size.ok_or_else(|| {
            Error::not_found(format!(
                "{shown}: no such file; expected one with a {contents}; check the path, or set `create`"
            ))
        })?;
        let fill = async |device| fill(device).await.map_err(|error| error.in_context(path.display()));
        create(path, size, fill).await?;
    }
    let file = Arc::new(FilePart::open_path(path, None).await?);
    match open(file.clone()).await {
        Ok(opened) => Ok((opened, file)),
        Err(Error::Protocol(detail)) => Err(Error::protocol(format!(
            "{shown}: it holds no {contents} ({detail}); expected a file with one, or a path without a file"
        ))),
        Err(error) => Err(error.in_context(shown)),
    }
}

/// Creates a file; `begin` makes the file that is filled if there is none.
async fn create_by(
    path: &Path,
    size: u64,
    fill: impl AsyncFn(Arc<dyn DevicePart>) -> Result<()>,
    begin: fn(&Path) -> Result<New>,
) -> Result<()> {
    for _ in 0..ATTEMPTS {
        match look(path)? {
            Found::Other => return Ok(()),
            Found::Unfilled => {
                // It is locked under its path (`open_locked`), but may have been filled before that.
                let Some(locked) = lock(path, true, true).await? else { continue };
                if matches!(look(path)?, Found::Unfilled) && locked.here()?.is_at(path)? {
                    return fill_in_place(path, size, locked, &fill).await;
                }
            }
            Found::Nothing => {
                refuse_link(path)?;
                let new = begin(path)?;
                let shared = new.share(path)?;
                let part = FilePart::of_locked(Settings::of_path(path, Some(size)), shared).await?;
                write(&part, size, &fill).await?;
                if new.give_name(path)? {
                    part.locked.here()?.sync_all().await?;
                    return runtime::file::sync_directory(folder_of(path)).await;
                }
            }
        }
    }
    Err(Error::busy(format!(
        "{}: other programs change what is at this path again and again",
        path.display()
    )))
}

/// Fills a new or marked file through a part, and makes it durable.
async fn write(
    part: &Arc<FilePart>,
    size: u64,
    fill: &impl AsyncFn(Arc<dyn DevicePart>) -> Result<()>,
) -> Result<()> {
    debug_assert_eq!(part.geometry().bytes(), size);
    fill(part.clone()).await?;
    part.close().await
}

/// Fills a file that is there.
async fn fill_in_place(
    path: &Path,
    size: u64,
    locked: SharedFile,
    fill: &impl AsyncFn(Arc<dyn DevicePart>) -> Result<()>,
) -> Result<()> {
    let file = locked.here()?;
    // The mark is durable before anything else is. The length follows it, so that it is never in the middle.
    file.set_len(0).await?;
    let filled = async {
        let mark = block::Data::copy_of(MARK).into();
        file.write_at(size, mark, block::Durability::Visible).await?;
        file.sync_all().await?;
        let part = FilePart::of_locked(Settings::of_path(path, Some(size)), locked).await?;
        write(&part, size, fill).await?;
        file.set_len(size).await?;
        file.sync_all().await
    };
    let filled = filled.await;
    if filled.is_err() {
        // The first error is returned. The file is this one whatever the path leads to.
        let _ = file.set_len(0).await;
    }
    filled
}

/// Refuses a symbolic link to nothing: it isn't replaced, and its target may be on a file system that isn't
/// mounted.
fn refuse_link(path: &Path) -> Result<()> {
    match std::fs::read_link(path) {
        Ok(target) => Err(Error::invalid(format!(
            "{} is a symbolic link to {}, which doesn't exist; expected a file or an unused path; create an empty file \
             there, or remove the link",
            path.display(),
            target.display()
        ))),
        Err(_) => Ok(()),
    }
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn doing(error: &std::io::Error, what: &str, path: &Path) -> Error {
    Error::from_io(error, &format!("{what} {}", path.display()))
}

/// A file that is being created, and isn't at its path yet.
struct New {
    file: OwnedFd,
    /// Name until it has the path; `None` if it has none.
    name: Option<PathBuf>,
}

/// Opens a file without a name in the folder of a path, or one with a hidden name.
fn open_nameless(path: &Path) -> Result<New> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    match rustix::fs::openat(CWD, folder_of(path), flags, Mode::RUSR | Mode::WUSR) {
        Ok(file) => Ok(New { file, name: None }),
        // What file systems and kernels without such files return.
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT | Errno::INVAL) => open_hidden(path),
        Err(error) => Err(doing(&error.into(), "creating a file for", path)),
    }
}

/// Creates a file with a hidden name beside a path.
fn open_hidden(path: &Path) -> Result<New> {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".{:016x}", runtime::random_u64()));
    let name = folder_of(path).join(name);
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::RDWR | OFlags::CLOEXEC;
    let file = rustix::fs::openat(CWD, &name, flags, Mode::RUSR | Mode::WUSR)
        .map_err(|error| doing(&error.into(), "creating", &name))?;
    Ok(New { file, name: Some(name) })
}

impl New {
    /// Locks the file for its part.
    fn share(&self, path: &Path) -> Result<SharedFile> {
        let file =
            self.file.try_clone().map_err(|error| doing(&error, "duplicating a descriptor of", path))?;
        let file = File::from_descriptor(file, &path.display().to_string());
        file.lock(true)?;
        file.share()
    }

    /// Gives the file its path. Returns false if something is there.
    fn give_name(mut self, path: &Path) -> Result<bool> {
        let given = match &self.name {
            None => {
                let own = format!("/proc/self/fd/{}", self.file.as_raw_fd());
                rustix::fs::linkat(CWD, own, CWD, path, AtFlags::SYMLINK_FOLLOW)
            }
            Some(name) => match rustix::fs::renameat_with(CWD, name, CWD, path, RenameFlags::NOREPLACE) {
                Ok(()) => {
                    self.name = None;
                    Ok(())
                }
                // Not every file system can rename without replacing; the first name is removed on drop.
                Err(Errno::INVAL | Errno::NOSYS) => {
                    rustix::fs::linkat(CWD, name, CWD, path, AtFlags::empty())
                }
                Err(error) => Err(error),
            },
        };
        match given {
            Ok(()) => Ok(true),
            Err(Errno::EXIST) => Ok(false),
            Err(error) => Err(doing(&error.into(), "creating", path)),
        }
    }
}

impl Drop for New {
    fn drop(&mut self) {
        let Some(name) = self.name.take() else { return };
        let own = self.file.try_clone().map(std::fs::File::from).and_then(|file| file.metadata());
        // Only the file that was created here is removed.
        if let (Ok(own), Ok(there)) = (own, std::fs::symlink_metadata(&name))
            && (own.dev(), own.ino()) == (there.dev(), there.ino())
        {
            // It is a leftover then, and the error that led here is returned.
            let _ = std::fs::remove_file(&name);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use runtime::Config;

    #[test]
    fn without_nameless_files_the_path_also_gets_a_complete_file_and_nothing_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data");
        for (appears, fails) in [(false, true), (true, false), (false, false)] {
            let own = path.clone();
            let created = runtime::run(Config::default(), move || async move {
                let fill = async |_device| {
                    if appears {
                        std::fs::write(&own, "another's").unwrap();
                    }
                    if fails { Err(Error::io("on purpose")) } else { Ok(()) }
                };
                create_by(&own, 1 << 20, fill, open_hidden).await
            });
            assert_eq!(created.unwrap().is_err(), fails);
            let length = std::fs::metadata(&path).ok().map(|found| found.len());
            let expected = if appears { Some(9) } else { Some(1 << 20).filter(|_| !fails) };
            assert_eq!(length, expected);
            assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), usize::from(length.is_some()));
            if appears {
                std::fs::remove_file(&path).unwrap();
            }
        }
    }

    /// Each thread locks the file, and puts another one in its place while it has the lock.
    #[test]
    fn a_locked_file_is_at_its_path() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data");
        std::fs::write(&path, "0").unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (path, next) = (path.clone(), folder.path().join(format!("next{thread}")));
                scope.spawn(move || {
                    let rounds = move || async move {
                        for round in 0..300 {
                            match lock(&path, true, true).await {
                                Ok(locked) => {
                                    let file = locked.unwrap().here().unwrap();
                                    assert!(file.is_at(&path).unwrap(), "thread {thread}, round {round}");
                                    std::fs::write(&next, "1").unwrap();
                                    std::fs::rename(&next, &path).unwrap();
                                }
                                Err(error) => assert!(matches!(error, Error::Busy(_)), "{error}"),
                            }
                        }
                    };
                    runtime::run(Config::default(), rounds).unwrap();
                });
            }
        });
    }
}
