//! Snapshots for programs: taking, deleting and reading.

use crate::classes::Class;
use crate::classes::fair_queue::{ClassNumber, DEFAULT};
use crate::core::Core;
use crate::file_system::{FileSystem, split};
use crate::metadata::directory::Entry;
use crate::metadata::inode::{FileType, Inode, InodeNumber};
use crate::metadata::versions::{SnapshotInfo, SnapshotNumber};
use crate::metadata::{Metadata, attributes};
use crate::names::namespace;
use crate::names::path::Walk;
use crate::snapshots::taking;
use block::{Error, Payload, Result};
use std::rc::Rc;

/// The file system as it was when a snapshot was taken. It doesn't change.
#[derive(Debug, Clone)]
pub struct SnapshotView {
    files: FileSystem,
    info: SnapshotInfo,
}

/// A file of a snapshot.
#[derive(Debug, Clone)]
pub struct SnapshotFile {
    view: SnapshotView,
    inode: InodeNumber,
    class: ClassNumber,
}

impl FileSystem {
    /// Takes a snapshot of the whole file system at one point in time. The snapshot and its contents are
    /// durable when this returns; after a power cut before that, there is no snapshot. It includes every
    /// operation that returned before this call, and may include a part of a write in flight of more than 64
    /// KiB.
    ///
    /// # Errors
    /// [`Error::AlreadyExists`], [`Error::Invalid`], ENAMETOOLONG for the name; [`Error::NoSpace`]; the
    /// failure of the log.
    pub async fn create_snapshot(&self, name: &str) -> Result<SnapshotInfo> {
        let name = name.to_owned();
        self.home().with(move |core: Rc<Core>| async move { taking::create(&core, name).await }).await
    }

    /// Deletes a snapshot. Space that only it used is free when this returns.
    ///
    /// # Errors
    /// [`Error::NotFound`]; the failure of the log; [`Error::NoSpace`], after which the snapshot still
    /// exists.
    pub async fn delete_snapshot(&self, name: &str) -> Result<()> {
        let name = name.to_owned();
        self.home().with(move |core: Rc<Core>| async move { taking::delete(&core, name).await }).await
    }

    /// Returns the snapshots, oldest first.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub async fn snapshots(&self) -> Result<Vec<SnapshotInfo>> {
        self.home().with(|core: Rc<Core>| async move { Ok(core.snapshot_list.there()) }).await
    }

    /// Opens a snapshot for reading.
    ///
    /// # Errors
    /// [`Error::NotFound`].
    pub async fn snapshot(&self, name: &str) -> Result<SnapshotView> {
        let name = name.to_owned();
        let find = move |core: Rc<Core>| async move { core.snapshot_list.find(&name) };
        let info = self.home().with(find).await?;
        Ok(SnapshotView { files: self.clone(), info })
    }
}

impl SnapshotView {
    /// Name, number and time of the snapshot.
    pub fn info(&self) -> &SnapshotInfo {
        &self.info
    }

    /// Reads the metadata of an inode on its shard.
    async fn of<R: Send + 'static>(
        &self,
        inode: InodeNumber,
        work: impl FnOnce(&Metadata) -> Result<R> + Send + 'static,
    ) -> Result<R> {
        let version = Some(self.info.number);
        let read = move |core: Rc<Core>| async move { core.in_version(version, work) };
        self.files.shards().of(inode).with(read).await
    }

    async fn walk(&self, path: &str) -> Result<(InodeNumber, FileType)> {
        Walk::begin(Some(self.info.number), path)?.end(self.files.shards()).await
    }

    /// Attributes of a file. A symbolic link is followed.
    ///
    /// # Errors
    /// ESTALE after the snapshot was deleted; errors of resolving the path.
    pub async fn attributes(&self, path: &str) -> Result<Inode> {
        let (inode, _) = self.walk(path).await?;
        self.files.shards().attributes_in(Some(self.info.number), inode).await
    }

    /// Names of a directory, in no particular order.
    ///
    /// # Errors
    /// ENOTDIR; as [`attributes`](Self::attributes).
    pub async fn read_directory(&self, path: &str) -> Result<Vec<Entry>> {
        let (inode, file_type) = self.walk(path).await?;
        if file_type != FileType::Directory {
            return Err(Error::from_errno(libc::ENOTDIR, format!("\"{path}\" isn't a directory")));
        }
        self.files.shards().entries_in(Some(self.info.number), inode).await
    }

    /// Target of a symbolic link.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a file of another type; as [`attributes`](Self::attributes).
    pub async fn read_link(&self, path: &str) -> Result<Vec<u8>> {
        let (above, name) = split(path);
        let above = self.walk(above).await?.0;
        let (holder, name) =
            (self.files.shards().holder_in(self.info.number, above, name).await?, name.to_vec());
        let link =
            self.of(holder, move |metadata| Ok(namespace::lookup(metadata, holder, &name)?.inode)).await?;
        self.of(link, move |metadata| namespace::target(metadata, link)).await
    }

    /// Opens a file.
    ///
    /// # Errors
    /// EISDIR; as [`attributes`](Self::attributes).
    pub async fn open_file(&self, path: &str) -> Result<SnapshotFile> {
        match self.walk(path).await? {
            (_, FileType::Directory) => {
                Err(Error::from_errno(libc::EISDIR, format!("\"{path}\" is a directory")))
            }
            (inode, _) => Ok(SnapshotFile { view: self.clone(), inode, class: DEFAULT }),
        }
    }
}

impl SnapshotFile {
    /// Inode number of the file.
    pub fn inode(&self) -> InodeNumber {
        self.inode
    }

    /// Returns the same file with its reads in a class.
    pub fn in_class(self, class: &Class) -> Self {
        SnapshotFile { class: class.number, ..self }
    }

    /// Attributes of the file.
    ///
    /// # Errors
    /// ESTALE after the snapshot was deleted.
    pub async fn attributes(&self) -> Result<Inode> {
        let inode = self.inode;
        self.view.of(inode, move |metadata| metadata.inode(inode)).await
    }

    /// Names and values of the extended attributes of the file.
    ///
    /// # Errors
    /// ESTALE after the snapshot was deleted.
    pub async fn extended_attributes(&self) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let inode = self.inode;
        let read = move |metadata: &Metadata| {
            let names = attributes::names(metadata, inode)?.into_iter();
            let with_value =
                |name: Vec<u8>| attributes::get(metadata, inode, &name).map(|value| (name, value));
            names.map(with_value).collect()
        };
        self.view.of(inode, read).await
    }

    /// Reads `length` bytes, or fewer at the end of the file.
    ///
    /// # Errors
    /// ESTALE after the snapshot was deleted; [`Error::Corrupt`] for data with a wrong checksum; errors of
    /// reading.
    pub async fn read_at(&self, offset: u64, length: usize) -> Result<Payload> {
        let (class, inode) = (self.class, self.inode);
        let version: Option<SnapshotNumber> = Some(self.view.info.number);
        let read =
            move |core: Rc<Core>| async move { core.read_in(class, version, inode, offset, length).await };
        self.view.files.shards().of(inode).with(read).await
    }
}
