//! Operations of the kernel, each of which is sent to the shard that has the inode or the name.

use super::actions::{self, os};
use super::control::{Control, Controls};
use super::listing::{ListedVersion, read_directory};
use super::refused_reads::RefusedReads;
use super::slots::Slots;
use super::snapshots::FilesAndSnapshots;
use crate::classes::fair_queue::DEFAULT;
use crate::core::Core;
use crate::core::shards::Shards;
use crate::file_system::Mounting;
use crate::metadata::inode::{FileType, InodeNumber, ROOT};
use crate::metadata::versions::SnapshotNumber;
use crate::metadata::{Metadata, attributes, seek};
use crate::names::namespace::{self, New};
use block::{Call, Data, Payload, Result};
use fuse::protocol::{init_flag, open_flag};
use fuse::{Context, FileSystem, FileSystemPart, Notifier, Opened, Operation, Reply};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

/// Sender of notifications; `None` before the session has started and after its end.
pub(super) type SharedNotifier = Arc<Mutex<Option<Notifier>>>;

/// Part that a FUSE session serves: an open file system, and the state of its mount.
#[derive(Debug, Clone)]
pub(super) struct FilesPart {
    pub(super) shards: Shards,
    pub(super) controls: Controls,
    pub(super) notifier: SharedNotifier,
    pub(super) slots: Arc<Slots>,
    pub(super) refused_reads: RefusedReads,
    /// The file system is mounted as long as a shard serves it.
    pub(super) _mounting: Arc<Mounting>,
}

impl FilesPart {
    /// Returns the sender of notifications, if there is a session.
    pub(super) fn notifier(&self) -> Option<Notifier> {
        self.notifier.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl FileSystemPart for FilesPart {
    fn capabilities(&self) -> u64 {
        init_flag::WRITEBACK_CACHE
            | init_flag::DO_READDIRPLUS
            | init_flag::READDIRPLUS_AUTO
            | init_flag::CACHE_SYMLINKS
            | init_flag::HANDLE_KILLPRIV_V2
    }

    fn open(&self) -> Call<'_, Result<Rc<dyn FileSystem>>> {
        Call::ready(Ok(
            Rc::new(FilesAndSnapshots { present: PresentFiles { part: self.clone() } }) as Rc<dyn FileSystem>
        ))
    }
}

/// Files of the present version, on one shard.
pub(super) struct PresentFiles {
    pub(super) part: FilesPart,
}

/// Call that returns the reply to an operation.
pub(super) type ReplyCall<'a> = Call<'a, Result<Reply>>;

impl PresentFiles {
    /// Executes an operation on the shard of a node.
    fn at<R, Fut>(
        &self,
        node: InodeNumber,
        work: impl FnOnce(Rc<Core>) -> Fut + Send + 'static,
    ) -> ReplyCall<'_>
    where
        R: Into<Reply> + Send + 'static,
        Fut: Future<Output = Result<R>> + 'static,
    {
        let core = self.part.shards.of(node);
        Call::new(async move { core.with(work).await.map(Into::into) })
    }

    /// Executes an operation on a name, on the shard that holds the name.
    fn at_name<R, Fut>(
        &self,
        parent: InodeNumber,
        name: &[u8],
        work: impl FnOnce(Rc<Core>, Vec<u8>) -> Fut + Send + 'static,
    ) -> ReplyCall<'_>
    where
        R: Into<Reply> + Send + 'static,
        Fut: Future<Output = Result<R>> + 'static,
    {
        let (holder, name) = (self.part.shards.holder(parent, name), name.to_vec());
        self.at(holder.inode, move |core| work(core, name))
    }

    /// Executes an operation that doesn't wait.
    fn at_once<R: Into<Reply> + Send + 'static>(
        &self,
        node: InodeNumber,
        work: impl FnOnce(&Rc<Core>) -> Result<R> + Send + 'static,
    ) -> ReplyCall<'_> {
        self.at(node, move |core| async move { work(&core) })
    }

    /// Reads the metadata of a file of a version.
    fn at_version<R: Into<Reply> + Send + 'static>(
        &self,
        version: Option<SnapshotNumber>,
        inode: InodeNumber,
        read: impl FnOnce(&Metadata) -> Result<R> + Send + 'static,
    ) -> ReplyCall<'_> {
        self.at_once(inode, move |core| {
            if version.is_some() {
                core.admission.check_alive()?;
            }
            core.in_version(version, read)
        })
    }

    /// Executes an operation on a name of the directory `context.node`; no other one is implemented.
    fn serve_name<'a>(&'a self, context: Context, operation: Operation<'a>) -> ReplyCall<'a> {
        let parent = context.node;
        match operation {
            Operation::Lookup { name } => {
                self.at_name(parent, name, move |core, name| actions::lookup(core, parent, name))
            }
            Operation::SymbolicLink { name, target } => {
                let new = New { target: target.to_vec(), ..new(context, FileType::Link, 0o777) };
                self.create(parent, name, new)
            }
            Operation::MakeNode { name, mode, device, .. } => match new_node(context, mode, device) {
                Ok(new) => self.create(parent, name, new),
                Err(error) => Call::ready(Err(error)),
            },
            Operation::MakeDirectory { name, mode, .. } => {
                self.create(parent, name, new(context, FileType::Directory, mode))
            }
            Operation::Unlink { name } => {
                self.at_name(parent, name, move |core, name| async move { core.unlink(parent, &name).await })
            }
            Operation::RemoveDirectory { name } => {
                let remove = move |core: Rc<Core>, name: Vec<u8>| async move {
                    core.remove_directory(parent, &name).await
                };
                self.at_name(parent, name, remove)
            }
            Operation::Rename { name, new_parent, new_name, flags } => {
                let to = (new_parent, new_name.to_vec());
                self.at_name(parent, name, move |core, name| actions::rename(core, (parent, name), to, flags))
            }
            Operation::Link { linked, name } => {
                self.at_name(parent, name, move |core, name| actions::link(core, linked, (parent, name)))
            }
            Operation::Create { name, mode, flags, .. } => {
                let new = new(context, FileType::Regular, mode);
                let create = move |core, name| actions::create_and_open(core, (parent, name), new, flags);
                self.at_name(parent, name, create)
            }
            _ => Call::ready(Err(fuse::not_implemented())),
        }
    }

    fn create(&self, parent: InodeNumber, name: &[u8], new: New) -> ReplyCall<'_> {
        self.at_name(parent, name, move |core, name| actions::create(core, (parent, name), new))
    }

    /// Executes an operation that reads a file of a snapshot or, with `None`, of the present version. `inode`
    /// replaces the node of the context; no other operation is implemented.
    pub(super) fn serve_read<'a>(
        &'a self,
        context: Context,
        version: Option<SnapshotNumber>,
        inode: InodeNumber,
        operation: Operation<'a>,
    ) -> ReplyCall<'a> {
        match operation {
            Operation::Read(read) => {
                let refused = self.part.refused_reads.clone();
                self.at(inode, move |core| async move {
                    core.admission.check_alive()?;
                    let (offset, length) = (read.offset, read.size as usize);
                    let found = core.read_in(DEFAULT, version, inode, offset, length).await;
                    refused.log(version, inode, found)
                })
            }
            Operation::ReadDirectory(read) => {
                let entries = read.entries();
                let version = ListedVersion(version.map(|number| (number, self.part.slots.clone())));
                self.at(inode, move |core| read_directory(core, version, inode, read.offset, entries))
            }
            Operation::ReadLink => self.at_version(version, inode, move |metadata| {
                namespace::target(metadata, inode).map(|target| Payload::from(Data::copy_of(&target)))
            }),
            Operation::GetExtended { name, .. } => {
                let name = name.to_vec();
                self.at_version(version, inode, move |metadata| {
                    actions::check_namespace(&name)?;
                    attributes::get(metadata, inode, &name).map(|value| Data::copy_of(&value))
                })
            }
            Operation::ListExtended { .. } => self.at_version(version, inode, move |metadata| {
                Ok(actions::shown_names(attributes::names(metadata, inode)?, context.uid == 0))
            }),
            Operation::Seek { offset, whence, .. } => self.at_version(version, inode, move |metadata| {
                seek(metadata, inode, offset, actions::is_for_data(whence)?).map(Reply::Offset)
            }),
            _ => Call::ready(Err(fuse::not_implemented())),
        }
    }

    fn seek(&self, node: InodeNumber, offset: u64, whence: i32) -> ReplyCall<'_> {
        let notifier = self.part.notifier();
        self.at(node, move |core| async move {
            actions::seek(&core, notifier, node, offset, whence).await.map(Reply::Offset)
        })
    }

    async fn sync_all(&self) -> Result<Reply> {
        for core in self.part.shards.all() {
            core.with(|core: Rc<Core>| async move { core.sync_all().await }).await?;
        }
        Ok(Reply::Done)
    }

    fn set_extended(&self, context: Context, name: &[u8], value: &[u8], flags: i32) -> ReplyCall<'_> {
        let node = context.node;
        match Control::of(name) {
            Ok(None) => {
                let (name, value) = (name.to_vec(), value.to_vec());
                self.at(node, move |core| actions::set_extended(core, node, (name, value), flags))
            }
            Ok(Some(_)) if context.uid != 0 => {
                Call::ready(Err(os(libc::EPERM, "only root controls a file system")))
            }
            Ok(Some(control)) => answer(self.part.controls.set(node, control)),
            Err(error) => Call::ready(Err(error)),
        }
    }

    /// Executes an operation on the shard of a node, without an answer.
    fn send(&self, node: InodeNumber, work: impl FnOnce(&Rc<Core>) + Send + 'static) {
        let home = self.part.shards.of(node);
        if home.is_here() {
            if let Ok(core) = home.get() {
                work(&core);
            }
            return;
        }
        let home = home.clone();
        runtime::spawn(async move {
            let sent = home.with(move |core| async move {
                work(&core);
                Ok(())
            });
            // An ended shard has no state to update.
            sent.await.ok()
        })
        .detach();
    }
}

/// Boxes the future of an answer.
pub(super) fn answer<'a, R: Into<Reply>>(future: impl Future<Output = Result<R>> + 'a) -> ReplyCall<'a> {
    Call::new(async move { future.await.map(Into::into) })
}

fn new(context: Context, kind: FileType, mode: u32) -> New {
    New { mode: kind as u32 | mode & 0o7777, uid: context.uid, gid: context.gid, ..New::default() }
}

/// Returns the attributes of a new node for mknod(2).
fn new_node(context: Context, mode: u32, device: u32) -> Result<New> {
    let kind = FileType::of(mode).filter(|kind| !matches!(kind, FileType::Directory | FileType::Link));
    let kind = kind.ok_or_else(|| os(libc::EINVAL, format!("mknod with mode {mode:o}")))?;
    let is_device = matches!(kind, FileType::Block | FileType::Character);
    Ok(New { device: if is_device { device } else { 0 }, ..new(context, kind, mode) })
}

/// Flags of an opened file that can't be changed.
pub(super) const OPENED: Opened = Opened { handle: 0, flags: open_flag::KEEP_CACHE };

impl FileSystem for PresentFiles {
    // FLUSH isn't implemented: on close(2) the kernel has already written back its cache, and sends no FLUSH
    // after the first ENOSYS. It checks permissions itself, so ACCESS isn't needed.
    fn serve<'a>(&'a self, context: Context, operation: Operation<'a>) -> ReplyCall<'a> {
        let node = context.node;
        match operation {
            Operation::Read(_)
            | Operation::ReadDirectory(_)
            | Operation::ReadLink
            | Operation::ListExtended { .. } => self.serve_read(context, None, node, operation),
            Operation::Write(write) => self.at(node, move |core| actions::write(core, node, write)),
            Operation::GetAttributes { handle } => {
                self.at(node, move |core| actions::attributes_for(core, node, handle))
            }
            Operation::SetAttributes(set) => {
                self.at(node, move |core| async move { actions::set_attributes(&core, node, &set).await })
            }
            Operation::Open { flags } => self.at(node, move |core| actions::open(core, node, flags)),
            Operation::TemporaryFile { mode, flags, .. } => {
                let new = new(context, FileType::Regular, mode);
                self.at(node, move |core| actions::create_unnamed(core, node, new, flags))
            }
            Operation::Release { flags, .. } => {
                self.at_once(node, move |core| actions::release(core, node, flags))
            }
            Operation::ReleaseDirectory { .. } => {
                self.at_once(node, move |core| actions::release(core, node, libc::O_RDONLY))
            }
            Operation::Sync { .. } | Operation::SyncDirectory { .. } => {
                self.at(node, move |core| async move { core.sync_inode(node).await })
            }
            Operation::SyncAll => Call::new(self.sync_all()),
            Operation::Statistics => self.at_once(ROOT, |core| Ok(actions::statistics(core))),
            Operation::SetExtended { name, value, flags } => self.set_extended(context, name, value, flags),
            Operation::GetExtended { name, .. } => match Control::of(name) {
                Ok(None) => self.serve_read(context, None, node, operation),
                Ok(Some(control)) => answer(self.part.controls.get(node, control)),
                Err(error) => Call::ready(Err(error)),
            },
            Operation::RemoveExtended { name } => {
                let name = name.to_vec();
                self.at(node, move |core| actions::remove_extended(core, node, name))
            }
            Operation::OpenDirectory { .. } => {
                self.at_once(node, move |core| actions::open_directory(core, node))
            }
            Operation::Allocate { offset, length, mode, .. } => {
                self.at(node, move |core| actions::allocate(core, context, (offset, length), mode))
            }
            Operation::Seek { offset, whence, .. } => self.seek(node, offset, whence),
            Operation::CopyRange(copy) => {
                self.at(copy.to_node, move |core| actions::copy_range(core, context, copy))
            }
            other => self.serve_name(context, other),
        }
    }

    fn forget(&self, node: u64, lookups: u64) {
        self.send(node, move |core| actions::forget(core, node, lookups));
    }
}
