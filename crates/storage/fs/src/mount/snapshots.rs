//! Snapshots in a mount: the directory `.snapshots` in the root, which directory listings omit, with a
//! directory for each snapshot. In it, mkdir(2) takes a snapshot, and rmdir(2) deletes one. Everything below
//! is read-only.
//!
//! Nodes of snapshots are those of [`slots`](super::slots); their generation is the number of the snapshot.

use super::actions::os;
use super::convert::{self, CACHED};
use super::listing::{AFTER_PARENT, AFTER_SELF};
use super::serve::{OPENED, PresentFiles, ReplyCall, answer};
use super::slots::{DIRECTORY, NodeKind, Slots};
use crate::core::Core;
use crate::core::shards::Shards;
use crate::metadata::Metadata;
use crate::metadata::directory::show;
use crate::metadata::inode::{FileType, InodeNumber, ROOT};
use crate::metadata::versions::SnapshotNumber;
use crate::names::namespace::resolve;
use crate::snapshots::taking;
use block::{Call, Data, Error, Result};
use fuse::{
    CachedAttributes, Context, DirectoryEntries, Entry, FileSystem, Opened, Operation, ReadDirectory, Reply,
};
use std::rc::Rc;
use std::time::Duration;

/// Name of the directory of snapshots in the root.
const NAME: &[u8] = b".snapshots";
/// Time limit for writing back a file before a snapshot while seeks have all other files written back.
const WRITE_BACK_LIMIT: Duration = Duration::from_secs(10);

/// A file of a snapshot.
type FileOfSnapshot = (SnapshotNumber, InodeNumber);

#[cold]
fn read_only() -> Error {
    os(libc::EROFS, "a snapshot can't be changed; change the present file")
}

/// Name of a snapshot as text, refusing other bytes.
fn name_of(name: &[u8]) -> Result<String> {
    let text = std::str::from_utf8(name);
    text.map(str::to_owned).map_err(|_| {
        Error::invalid(format!("snapshot \"{}\": the name isn't UTF-8; expected one that is", show(name)))
    })
}

/// Files of the present version and of all snapshots, on one shard.
pub(super) struct FilesAndSnapshots {
    /// Files of the present version.
    pub(super) present: PresentFiles,
}

impl FilesAndSnapshots {
    fn shards(&self) -> &Shards {
        &self.present.part.shards
    }

    fn slots(&self) -> &Slots {
        &self.present.part.slots
    }

    /// Adds the kernel's reference to an entry that it gets.
    fn referred(&self, entry: Entry) -> Entry {
        self.slots().refer(entry.attributes.node);
        entry
    }

    /// Reads the metadata of an inode of a snapshot on its shard.
    async fn read_at<R: Send + 'static>(
        &self,
        (number, inode): FileOfSnapshot,
        work: impl FnOnce(&Core, &Metadata) -> Result<R> + Send + 'static,
    ) -> Result<R> {
        let read = move |core: Rc<Core>| async move {
            core.admission.check_alive()?;
            core.in_version(Some(number), |metadata| work(&core, metadata))
        };
        self.shards().of(inode).with(read).await
    }

    /// Attributes of the directory of snapshots, which has the owner of the root.
    async fn directory_attributes(&self) -> Result<CachedAttributes> {
        let read = |core: Rc<Core>| async move { Ok((core.inode(ROOT)?, core.block_size())) };
        let (root, block_size) = self.shards().of(ROOT).with(read).await?;
        let inode = crate::metadata::inode::Inode {
            mode: FileType::Directory as u32 | 0o755,
            links: 2,
            size: 0,
            blocks: 0,
            ..root
        };
        Ok((convert::attributes(DIRECTORY, &inode, block_size), Duration::ZERO))
    }

    /// Looks the directory of snapshots up. An existing file of its name takes precedence.
    async fn lookup_directory(&self, context: Context) -> Result<Reply> {
        match self.present.serve(context, Operation::Lookup { name: NAME }).await? {
            Reply::Entry(found) if found.attributes.node == 0 => {
                let (attributes, attributes_time) = self.directory_attributes().await?;
                Ok(Entry { attributes, generation: 0, name_time: CACHED, attributes_time }.into())
            }
            found => Ok(found),
        }
    }

    /// Looks a snapshot up. Others may delete it, so the kernel doesn't cache the answer.
    async fn snapshot_entry(&self, name: &[u8]) -> Result<Entry> {
        let Ok(name) = name_of(name) else { return Ok(Entry::default()) };
        let look = move |core: Rc<Core>| async move { core.snapshot_list.find(&name) };
        match self.shards().first().with(look).await {
            Ok(info) => {
                let mut entry = self.entry((info.number, ROOT)).await?;
                entry.name_time = Duration::ZERO;
                Ok(self.referred(entry))
            }
            Err(Error::NotFound(_)) => Ok(Entry::default()),
            Err(error) => Err(error),
        }
    }

    async fn attributes(&self, file: FileOfSnapshot) -> Result<CachedAttributes> {
        Ok((self.entry(file).await?.attributes, CACHED))
    }

    async fn entry(&self, file: FileOfSnapshot) -> Result<Entry> {
        let (number, inode) = file;
        let block_size = self.read_at(file, |core, _| Ok(core.block_size())).await?;
        let found = self.shards().attributes_in(Some(number), inode).await?;
        let node = self.slots().node(number, inode)?;
        let mut attributes = convert::attributes(node, &found, block_size);
        if inode == ROOT {
            // The times of a snapshot's directory are the time at which it was taken.
            let list = |core: Rc<Core>| async move { Ok(core.snapshot_list.there()) };
            let all = self.shards().first().with(list).await?;
            if let Some(info) = all.iter().find(|info| info.number == number) {
                attributes.changed = convert::timestamp(info.created);
            }
        }
        Ok(Entry { attributes, generation: number.into(), name_time: CACHED, attributes_time: CACHED })
    }

    async fn lookup(&self, (number, parent): FileOfSnapshot, name: &[u8]) -> Result<Entry> {
        let name = name.to_vec();
        let holder = self.shards().holder_in(number, parent, &name).await?;
        let look = move |_: &Core, metadata: &Metadata| resolve(metadata, holder, &name);
        match self.read_at((number, holder), look).await? {
            Some((inode, _)) => self.entry((number, inode)).await.map(|entry| self.referred(entry)),
            None => Ok(Entry { name_time: CACHED, ..Entry::default() }),
        }
    }

    /// Takes a snapshot that includes the data in the kernel's cache.
    async fn take(&self, name: &[u8]) -> Result<Entry> {
        let text = name_of(name)?;
        if let Some(notifier) = self.present.part.notifier() {
            for core in self.shards().all() {
                let written = |core: Rc<Core>| async move { Ok(core.nodes.written_by_mount()) };
                for inode in core.with(written).await? {
                    let write_back = async || notifier.write_back(inode).await;
                    runtime::retry_while_busy(WRITE_BACK_LIMIT, write_back).await?;
                }
            }
        }
        let create = move |core: Rc<Core>| async move { taking::create(&core, text).await };
        self.shards().first().with(create).await?;
        self.snapshot_entry(name).await
    }

    async fn delete(&self, name: &[u8]) -> Result<()> {
        let name = name_of(name)?;
        let delete = move |core: Rc<Core>| async move { taking::delete(&core, name).await };
        self.shards().first().with(delete).await
    }

    /// Reads the directory of snapshots.
    async fn list_snapshots(&self, read: ReadDirectory) -> Result<DirectoryEntries> {
        let mut entries = read.entries();
        for (next, node, name) in self.snapshots().await? {
            if next > read.offset && !entries.add(node, next, libc::DT_DIR, &name) {
                break;
            }
        }
        Ok(entries)
    }

    /// Names in the directory of snapshots, as (offset after the name, node, name).
    async fn snapshots(&self) -> Result<Vec<(u64, u64, Vec<u8>)>> {
        let list = |core: Rc<Core>| async move { Ok(core.snapshot_list.there()) };
        let mut found: Vec<_> = self.shards().first().with(list).await?.into_iter().collect();
        found.sort_by_key(|info| info.number);
        let entry = |info: crate::SnapshotInfo| {
            let node = self.slots().node(info.number, ROOT)?;
            Ok((AFTER_PARENT + u64::from(info.number), node, info.name.into_bytes()))
        };
        let dots = [(AFTER_SELF, DIRECTORY, b".".to_vec()), (AFTER_PARENT, ROOT, b"..".to_vec())];
        dots.into_iter().map(Ok).chain(found.into_iter().map(entry)).collect()
    }

    /// Refuses operations on two nodes of which one is in a snapshot, if the other one alone would be served.
    fn check_pair(&self, node: u64, operation: &Operation<'_>) -> Result<()> {
        let is_present = |node| self.slots().kind(node) == NodeKind::Present;
        match operation {
            Operation::Rename { new_parent, .. } if !is_present(*new_parent) => Err(read_only()),
            Operation::Link { linked, .. } if is_present(node) && !is_present(*linked) => {
                Err(os(libc::EXDEV, "a link to a file of a snapshot; copy the file"))
            }
            // The kernel falls back to reading and writing.
            Operation::CopyRange(copy) if !is_present(node) || !is_present(copy.to_node) => {
                Err(os(libc::EXDEV, "a copy from a snapshot"))
            }
            _ => Ok(()),
        }
    }

    /// Executes an operation on the directory of snapshots.
    fn serve_directory<'a>(&'a self, operation: Operation<'a>) -> ReplyCall<'a> {
        Call::ready(match operation {
            Operation::Lookup { name } => return answer(self.snapshot_entry(name)),
            Operation::GetAttributes { .. } => return answer(self.directory_attributes()),
            Operation::MakeDirectory { name, .. } => return answer(self.take(name)),
            Operation::RemoveDirectory { name } => return answer(self.delete(name)),
            Operation::ReadDirectory(read) => return answer(self.list_snapshots(read)),
            Operation::ListExtended { .. } => Ok(Data::copy_of(&[]).into()),
            Operation::GetExtended { .. } => {
                Err(os(libc::ENODATA, "the directory of snapshots has no attributes"))
            }
            other => read_only_reply(&other),
        })
    }

    /// Executes an operation on a file of a snapshot.
    fn serve_file<'a>(
        &'a self,
        context: Context,
        file: FileOfSnapshot,
        operation: Operation<'a>,
    ) -> ReplyCall<'a> {
        let (number, inode) = file;
        match operation {
            Operation::Lookup { name } => answer(self.lookup(file, name)),
            Operation::GetAttributes { .. } => answer(self.attributes(file)),
            Operation::Open { flags } if flags & (libc::O_ACCMODE | libc::O_TRUNC) == libc::O_RDONLY => {
                answer(self.read_at(file, move |_, metadata| metadata.inode(inode).map(|_| OPENED)))
            }
            read @ (Operation::Read(_)
            | Operation::ReadDirectory(_)
            | Operation::ReadLink
            | Operation::GetExtended { .. }
            | Operation::ListExtended { .. }
            | Operation::Seek { .. }) => self.present.serve_read(context, Some(number), inode, read),
            other => Call::ready(read_only_reply(&other)),
        }
    }
}

/// Reply to operations that change nothing, and refusal of all others.
fn read_only_reply(operation: &Operation<'_>) -> Result<Reply> {
    match operation {
        Operation::OpenDirectory { .. } => Ok(Opened::default().into()),
        Operation::Release { .. }
        | Operation::ReleaseDirectory { .. }
        | Operation::Sync { .. }
        | Operation::SyncDirectory { .. } => Ok(Reply::Done),
        Operation::Flush { .. } | Operation::Access { .. } => Err(fuse::not_implemented()),
        _ => Err(read_only()),
    }
}

impl FileSystem for FilesAndSnapshots {
    fn serve<'a>(&'a self, context: Context, operation: Operation<'a>) -> ReplyCall<'a> {
        if let Err(error) = self.check_pair(context.node, &operation) {
            return Call::ready(Err(error));
        }
        match (self.slots().kind(context.node), operation) {
            (NodeKind::Present, Operation::Lookup { name: NAME }) if context.node == ROOT => {
                Call::new(self.lookup_directory(context))
            }
            (NodeKind::Present, other) | (_, other @ (Operation::Statistics | Operation::SyncAll)) => {
                self.present.serve(context, other)
            }
            (NodeKind::Directory, operation) => self.serve_directory(operation),
            (NodeKind::Snapshot(number, inode), operation) => {
                self.serve_file(context, (number, inode), operation)
            }
        }
    }

    fn forget(&self, node: u64, lookups: u64) {
        match self.slots().kind(node) {
            NodeKind::Present => self.present.forget(node, lookups),
            NodeKind::Directory => {}
            NodeKind::Snapshot(..) => self.slots().forget(node, lookups),
        }
    }
}
