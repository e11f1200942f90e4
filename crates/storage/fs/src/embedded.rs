//! The file system for programs that aren't built on the runtime of this workspace: any thread, any executor.
//!
//! [`FileSystem::open`] opens an image, or creates it, and starts the threads that run the file system. The
//! handles are `Send + Sync + Clone`. Each call returns a [`Pending`], which is awaited on any executor, or
//! waited for by a thread with [`blocking`](Pending::blocking). Names of calls are those of `std::fs` and
//! `tokio::fs`.
//!
//! ```
//! use siltstone_fs::embedded::{FileSystem, Options};
//!
//! # let folder = tempfile::tempdir().map_err(|error| block::Error::from_io(&error, "a folder"))?;
//! # std::env::set_current_dir(&folder).map_err(|error| block::Error::from_io(&error, "the folder"))?;
//! let files = FileSystem::open("disk.img", Options::default()).blocking()?;
//! files.create_dir("/logs").blocking()?;
//! let file = files.create_file("/logs/today").blocking()?;
//! file.write_at(0, "committed").blocking()?;
//! file.sync_all().blocking()?;
//! assert_eq!(files.read("/logs/today").blocking()?, b"committed");
//! for entry in files.read_dir("/logs").blocking()? {
//!     println!("{}", entry.file_name().display());
//! }
//! # drop(file);
//! files.close().blocking()?;
//! # Ok::<(), block::Error>(())
//! ```
//!
//! # Promises
//! - A change that has returned is seen by every later call, and survives a crash after the next
//!   [`File::sync_all`] or [`FileSystem::sync`].
//! - One program has the image open at a time; a second one gets [`Error::Busy`].
//! - Dropping the last handle closes the file system, and waits for that; [`close`](FileSystem::close) also
//!   returns the error. Open files and futures are handles. Closing waits while the disk of the image is
//!   full.
//! - A call whose future is dropped after its first poll runs to its end.
//!
//! The image is that of `siltstone fs format`: `siltstone fs mount` mounts it when no program has it open.
//!
//! [`FileSystem`] and [`File`] have the names of [`crate::FileSystem`] and [`crate::File`], which are the
//! same objects for tasks of this workspace's shards, as `tokio::fs::File` has that of `std::fs::File`.

mod file;
mod metadata;
mod open;

pub use crate::file_system::OpenOptions;
pub use block::{Error, Result, Status};
pub use file::File;
pub use metadata::{DirEntry, FileType, Metadata};
pub use open::Options;
pub use runtime::embedded::Pending;

use crate::names::namespace::Renaming;
use open::Opened;
use runtime::embedded::Embedded;
use runtime::{Config, ShardIndex};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Handle of an open file system. Clones refer to the same one.
///
/// Paths begin at its root, with or without a slash. Errors of resolving a path are [`Error::NotFound`],
/// ENOTDIR and ELOOP; every call fails with [`Error::Closed`] after [`close`](Self::close).
#[derive(Debug, Clone)]
pub struct FileSystem {
    embedded: Embedded<Opened>,
}

impl FileSystem {
    /// Opens the file system of an image; creates it if there is no file, or an empty one.
    ///
    /// # Errors
    /// [`Error::Busy`] if another program has the image open, or this one; [`Error::Protocol`] for a file
    /// without a file system, [`Error::Corrupt`] for a damaged one; [`Error::NotFound`] without `create`;
    /// [`Error::Invalid`] for options out of range; errors of the file, and of starting threads.
    pub fn open(path: impl AsRef<Path>, options: Options) -> Pending<FileSystem> {
        let path = path.as_ref().to_path_buf();
        let config = Config::default().with_shards(options.shards).polling();
        let open = move || async move { Opened::open(&path, &options).await };
        let close = |opened: Arc<Opened>| async move { opened.close().await };
        let started = runtime::embedded::start(config, open, close);
        Pending::of(async move { Ok(FileSystem { embedded: started.await? }) })
    }

    /// Returns a call on the first shard, which has the root.
    fn call<T, Fut>(&self, work: impl FnOnce(Arc<Opened>) -> Fut + Send + 'static) -> Pending<T>
    where
        T: Send + 'static,
        Fut: Future<Output = Result<T>> + 'static,
    {
        self.embedded.call(ShardIndex(0), work)
    }

    /// Opens an existing file, for reading and writing.
    ///
    /// # Errors
    /// EISDIR; errors of resolving the path.
    pub fn open_file(&self, path: impl Into<String>) -> Pending<File> {
        self.open_file_with(path, OpenOptions::default())
    }

    /// Opens a file without data, creating it if it doesn't exist.
    ///
    /// # Errors
    /// As [`open_file`](Self::open_file); [`Error::NoSpace`].
    pub fn create_file(&self, path: impl Into<String>) -> Pending<File> {
        let options = OpenOptions { create: true, truncate: true, ..OpenOptions::default() };
        self.open_file_with(path, options)
    }

    /// Opens a file with options.
    ///
    /// # Errors
    /// As [`create_file`](Self::create_file); [`Error::AlreadyExists`] with `create_new`.
    pub fn open_file_with(&self, path: impl Into<String>, options: OpenOptions) -> Pending<File> {
        let (path, embedded) = (path.into(), self.embedded.clone());
        // The handle is made on the shard, so that a file is closed whose caller was dropped.
        self.call(move |opened| async move {
            Ok(File::new(opened.files.open_file(&path, options).await?, embedded))
        })
    }

    /// Returns the contents of a file.
    ///
    /// # Errors
    /// As [`open_file`](Self::open_file) and [`File::read_at`].
    pub fn read(&self, path: impl Into<String>) -> Pending<Vec<u8>> {
        let path = path.into();
        self.call(move |opened| async move {
            let file = opened.files.open_file(&path, OpenOptions::default()).await?;
            let size = file.attributes().await?.size;
            file::read(&file, 0, size as usize).await
        })
    }

    /// Replaces the contents of a file, creating it if it doesn't exist.
    ///
    /// # Errors
    /// As [`create_file`](Self::create_file) and [`File::write_at`].
    pub fn write(&self, path: impl Into<String>, data: impl AsRef<[u8]>) -> Pending<()> {
        let (path, data) = (path.into(), block::Data::copy_of(data.as_ref()));
        self.call(move |opened| async move { opened.files.create(&path).await?.write_at(0, data).await })
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// [`Error::AlreadyExists`], [`Error::NoSpace`]; errors of resolving the path.
    pub fn create_dir(&self, path: impl Into<String>) -> Pending<()> {
        let path = path.into();
        self.call(move |opened| async move { opened.files.make_directory(&path).await })
    }

    /// Makes a directory, and those above it that don't exist.
    ///
    /// # Errors
    /// As [`create_dir`](Self::create_dir), if the path isn't a directory afterwards.
    pub fn create_dir_all(&self, path: impl Into<String>) -> Pending<()> {
        let path = path.into();
        self.call(move |opened| async move {
            let ends = path.match_indices('/').map(|(at, _)| at).chain([path.len()]);
            for directory in ends.map(|end| &path[..end]).filter(|directory| !directory.ends_with('/')) {
                match opened.files.make_directory(directory).await {
                    Err(Error::AlreadyExists(_)) => {}
                    _ if directory.is_empty() => {}
                    made => made?,
                }
            }
            opened.files.directory(&path).await.map(drop)
        })
    }

    /// Names of a directory, in no particular order.
    ///
    /// # Errors
    /// ENOTDIR; errors of resolving the path.
    pub fn read_dir(&self, path: impl Into<String>) -> Pending<Vec<DirEntry>> {
        let path = path.into();
        self.call(move |opened| async move {
            let entries = opened.files.read_directory(&path).await?.into_iter();
            Ok(entries.filter(|entry| !matches!(&entry.name[..], b"." | b"..")).map(DirEntry::new).collect())
        })
    }

    /// Attributes of a file. A symbolic link is followed.
    ///
    /// # Errors
    /// Errors of resolving the path.
    pub fn metadata(&self, path: impl Into<String>) -> Pending<Metadata> {
        let path = path.into();
        self.call(move |opened| async move { Ok(Metadata(opened.files.attributes(&path).await?)) })
    }

    /// Whether a file exists.
    ///
    /// # Errors
    /// Errors of resolving the path other than [`Error::NotFound`].
    pub fn try_exists(&self, path: impl Into<String>) -> Pending<bool> {
        let path = path.into();
        self.call(move |opened| async move {
            match opened.files.attributes(&path).await {
                Ok(_) => Ok(true),
                Err(Error::NotFound(_)) => Ok(false),
                Err(error) => Err(error),
            }
        })
    }

    /// Renames a file or directory; a file with the new name is replaced.
    ///
    /// # Errors
    /// As rename(2); errors of resolving the paths.
    pub fn rename(&self, from: impl Into<String>, to: impl Into<String>) -> Pending<()> {
        let (from, to) = (from.into(), to.into());
        self.call(move |opened| async move { opened.files.rename(&from, &to, Renaming::Replace).await })
    }

    /// Removes a name of a file other than a directory.
    ///
    /// # Errors
    /// EISDIR; errors of resolving the path.
    pub fn remove_file(&self, path: impl Into<String>) -> Pending<()> {
        let path = path.into();
        self.call(move |opened| async move { opened.files.unlink(&path).await })
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// ENOTDIR, ENOTEMPTY; errors of resolving the path.
    pub fn remove_dir(&self, path: impl Into<String>) -> Pending<()> {
        let path = path.into();
        self.call(move |opened| async move { opened.files.remove_directory(&path).await })
    }

    /// Creates another name of a file.
    ///
    /// # Errors
    /// [`Error::AlreadyExists`]; EPERM for a directory; errors of resolving the paths.
    pub fn hard_link(&self, original: impl Into<String>, link: impl Into<String>) -> Pending<()> {
        let (original, link) = (original.into(), link.into());
        self.call(move |opened| async move { opened.files.link(&original, &link).await })
    }

    /// Makes a symbolic link to `original`.
    ///
    /// # Errors
    /// As [`create_dir`](Self::create_dir).
    pub fn symlink(&self, original: impl Into<String>, link: impl Into<String>) -> Pending<()> {
        let (original, link) = (original.into(), link.into());
        self.call(move |opened| async move { opened.files.symbolic_link(&original, &link).await })
    }

    /// Target of a symbolic link.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a file of another type; errors of resolving the path.
    pub fn read_link(&self, path: impl Into<String>) -> Pending<PathBuf> {
        let path = path.into();
        self.call(move |opened| async move {
            Ok(PathBuf::from(OsString::from_vec(opened.files.read_link(&path).await?)))
        })
    }

    /// Makes all changes durable.
    ///
    /// # Errors
    /// The failure of the log, which is permanent; [`Error::NoSpace`] while the disk of the image is full.
    pub fn sync(&self) -> Pending<()> {
        self.call(|opened| async move { opened.files.sync().await })
    }

    /// Numbers for operators, as `siltstone fs status` shows them.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn status(&self) -> Pending<Status> {
        self.call(|opened| async move { opened.files.status().await })
    }

    /// Makes all changes durable, and closes the file system for all handles and files, after the calls in
    /// flight. Later calls fail with [`Error::Closed`]. The threads have ended when this returns; it may be
    /// called again, with the same result.
    ///
    /// # Errors
    /// Errors of writing; [`Error::Cancelled`] with the panic's text if a thread of the file system panicked.
    pub fn close(&self) -> Pending<()> {
        self.embedded.close()
    }
}
