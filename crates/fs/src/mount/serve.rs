//! Requests of the kernel, each of which is sent to the core that has the inode.

use super::actions::{self, os};
use super::control::{Control, Controlled};
use super::refused_reads::RefusedReads;
use super::slots::Slots;
use super::snapshots::WithSnapshots;
use crate::core::Core;
use crate::core::cores::Cores;
use crate::file_system::Mounting;
use crate::metadata::inode::{FileType, ROOT};
use crate::names::namespace::New;
use block::{Buffer, Call, Data, Payload, Result};
use fuse::protocol::{init_flag, open_flag};
use fuse::{
    CachedAttributes, Context, CopyRange, DirectoryEntries, DirectoryEntriesPlus, Entry, FileSystem,
    FileSystemPart, Notifier, Opened, Read, Release, SetAttributes, Statistics, Write,
};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

/// Number of files for which a free block has space, for `statfs`: an estimate.
const FILES_PER_BLOCK: u64 = 8;

/// Sender of notifications, set from start to end of the session.
pub(super) type Notifying = Arc<Mutex<Option<Notifier>>>;

/// File system as a part that serves a FUSE session.
#[derive(Debug, Clone)]
pub(super) struct ServedPart {
    pub(super) cores: Cores,
    pub(super) controlled: Controlled,
    pub(super) notifying: Notifying,
    pub(super) slots: Arc<Slots>,
    pub(super) refused_reads: RefusedReads,
    /// The file system is mounted as long as a shard serves it.
    pub(super) _mounting: Arc<Mounting>,
}

impl FileSystemPart for ServedPart {
    fn capabilities(&self) -> u64 {
        init_flag::WRITEBACK_CACHE
            | init_flag::DO_READDIRPLUS
            | init_flag::READDIRPLUS_AUTO
            | init_flag::CACHE_SYMLINKS
            | init_flag::HANDLE_KILLPRIV_V2
    }

    fn open(&self) -> Call<'_, Result<Rc<dyn FileSystem>>> {
        Call::ready(Ok(Rc::new(WithSnapshots(Served(self.clone()))) as Rc<dyn FileSystem>))
    }
}

/// File system on one shard.
pub(super) struct Served(pub(super) ServedPart);

impl Served {
    /// Carries out a request on the core of a node.
    fn at<R, Fut>(
        &self,
        node: u64,
        work: impl FnOnce(Rc<Core>) -> Fut + Send + 'static,
    ) -> Call<'_, Result<R>>
    where
        R: Send + 'static,
        Fut: Future<Output = Result<R>> + 'static,
    {
        let core = self.0.cores.of(node);
        Call::new(async move { core.with(work).await })
    }

    /// Carries out a request on a name, on the core that holds the name.
    fn at_name<R, Fut>(
        &self,
        parent: u64,
        name: &[u8],
        work: impl FnOnce(Rc<Core>, Vec<u8>) -> Fut + Send + 'static,
    ) -> Call<'_, Result<R>>
    where
        R: Send + 'static,
        Fut: Future<Output = Result<R>> + 'static,
    {
        let (holder, name) = (self.0.cores.holder(parent, name), name.to_vec());
        self.at(holder.inode, move |core| work(core, name))
    }

    /// Carries out a request that doesn't wait.
    fn at_once<R: Send + 'static>(
        &self,
        node: u64,
        work: impl FnOnce(&Rc<Core>) -> Result<R> + Send + 'static,
    ) -> Call<'_, Result<R>> {
        self.at(node, move |core| async move { work(&core) })
    }

    /// Carries out a request without a result.
    fn tell(&self, node: u64, work: impl FnOnce(&Rc<Core>) + Send + 'static) {
        let home = self.0.cores.of(node);
        if home.is_here() {
            if let Ok(core) = home.get() {
                work(&core);
            }
            return;
        }
        let home = home.clone();
        runtime::spawn(async move {
            let told = home.with(move |core| async move {
                work(&core);
                Ok(())
            });
            // An ended core has no state to update.
            told.await.ok()
        })
        .detach();
    }
}

fn new(context: Context, kind: FileType, mode: u32) -> New {
    New { mode: kind as u32 | mode & 0o7777, uid: context.uid, gid: context.gid, ..New::default() }
}

/// Flags of an opened file that can't be changed.
pub(super) const OPENED: Opened = Opened { handle: 0, flags: open_flag::KEEP_CACHE };

impl FileSystem for Served {
    fn lookup<'a>(&'a self, _: Context, parent: u64, name: &'a [u8]) -> Call<'a, Result<Entry>> {
        self.at_name(
            parent,
            name,
            move |core, name| async move { actions::lookup(&core, parent, &name).await },
        )
    }

    fn forget(&self, node: u64, lookups: u64) {
        self.tell(node, move |core| actions::forget(core, node, lookups));
    }

    fn attributes(&self, _: Context, node: u64, handle: Option<u64>) -> Call<'_, Result<CachedAttributes>> {
        self.at(node, move |core| async move { actions::attributes_for(&core, node, handle).await })
    }

    fn set_attributes(
        &self,
        _: Context,
        node: u64,
        set: SetAttributes,
    ) -> Call<'_, Result<CachedAttributes>> {
        self.at(node, move |core| async move { actions::set_attributes(&core, node, &set).await })
    }

    fn read_link(&self, _: Context, node: u64) -> Call<'_, Result<Data>> {
        self.at_once(node, move |core| core.read_link(node).map(|target| Data::copy_of(&target)))
    }

    fn symbolic_link<'a>(
        &'a self,
        context: Context,
        parent: u64,
        name: &'a [u8],
        target: &'a [u8],
    ) -> Call<'a, Result<Entry>> {
        let new = New { target: target.to_vec(), ..new(context, FileType::Link, 0o777) };
        self.at_name(parent, name, move |core, name| async move {
            actions::create(&core, parent, &name, &new).await
        })
    }

    fn make_node<'a>(
        &'a self,
        context: Context,
        parent: u64,
        name: &'a [u8],
        mode: u32,
        _: u32,
        device: u32,
    ) -> Call<'a, Result<Entry>> {
        self.at_name(parent, name, move |core, name| async move {
            let kind =
                FileType::of(mode).filter(|kind| !matches!(kind, FileType::Directory | FileType::Link));
            let kind = kind.ok_or_else(|| os(libc::EINVAL, format!("mknod with mode {mode:o}")))?;
            let is_device = matches!(kind, FileType::Block | FileType::Character);
            let new = New { device: if is_device { device } else { 0 }, ..new(context, kind, mode) };
            actions::create(&core, parent, &name, &new).await
        })
    }

    fn make_directory<'a>(
        &'a self,
        context: Context,
        parent: u64,
        name: &'a [u8],
        mode: u32,
        _: u32,
    ) -> Call<'a, Result<Entry>> {
        let new = new(context, FileType::Directory, mode);
        self.at_name(parent, name, move |core, name| async move {
            actions::create(&core, parent, &name, &new).await
        })
    }

    fn unlink<'a>(&'a self, _: Context, parent: u64, name: &'a [u8]) -> Call<'a, Result<()>> {
        self.at_name(parent, name, move |core, name| async move { core.unlink(parent, &name).await })
    }

    fn remove_directory<'a>(&'a self, _: Context, parent: u64, name: &'a [u8]) -> Call<'a, Result<()>> {
        self.at_name(
            parent,
            name,
            move |core, name| async move { core.remove_directory(parent, &name).await },
        )
    }

    fn rename<'a>(
        &'a self,
        _: Context,
        parent: u64,
        name: &'a [u8],
        new_parent: u64,
        new_name: &'a [u8],
        flags: u32,
    ) -> Call<'a, Result<()>> {
        let new_name = new_name.to_vec();
        self.at_name(parent, name, move |core, name| async move {
            let renaming = actions::renaming(flags)?;
            core.rename((parent, &name), (new_parent, &new_name), renaming).await
        })
    }

    fn link<'a>(
        &'a self,
        _: Context,
        node: u64,
        new_parent: u64,
        new_name: &'a [u8],
    ) -> Call<'a, Result<Entry>> {
        self.at_name(new_parent, new_name, move |core, new_name| async move {
            core.link(node, new_parent, &new_name).await?;
            actions::entry_elsewhere(&core, node).await
        })
    }

    fn open(&self, _: Context, node: u64, flags: i32) -> Call<'_, Result<Opened>> {
        self.at(node, move |core| async move { actions::open(&core, node, flags).await })
    }

    fn create<'a>(
        &'a self,
        context: Context,
        parent: u64,
        name: &'a [u8],
        mode: u32,
        _: u32,
        flags: i32,
    ) -> Call<'a, Result<(Entry, Opened)>> {
        let new = new(context, FileType::Regular, mode);
        self.at_name(parent, name, move |core, name| async move {
            actions::create_and_open(&core, parent, &name, &new, flags).await
        })
    }

    fn temporary_file(
        &self,
        context: Context,
        parent: u64,
        mode: u32,
        _: u32,
        flags: i32,
    ) -> Call<'_, Result<(Entry, Opened)>> {
        let new = new(context, FileType::Regular, mode);
        self.at(parent, move |core| async move {
            let node = core.create_unnamed(parent, &new).await?;
            actions::note_open(&node, flags);
            let opened = actions::opened(flags, true, core.is_short());
            Ok((actions::entry(&core, node.inode).await?, opened))
        })
    }

    fn read(&self, _: Context, node: u64, read: Read) -> Call<'_, Result<Payload>> {
        let refused = self.0.refused_reads.clone();
        self.at(node, move |core| async move {
            core.check_alive()?;
            let found = core.read(node, read.offset, read.size as usize).await;
            refused.read_by_program(None, node, found)
        })
    }

    fn write(&self, _: Context, node: u64, write: Write, data: Buffer) -> Call<'_, Result<u32>> {
        self.at(node, move |core| async move { actions::write(&core, node, write, data).await })
    }

    fn statistics(&self, _: Context, _: u64) -> Call<'_, Result<Statistics>> {
        self.at_once(ROOT, |core| {
            let found = core.statistics();
            let free_nodes = found.free.saturating_mul(FILES_PER_BLOCK);
            Ok(Statistics {
                block_size: crate::format::BLOCK as u32,
                blocks: found.blocks,
                free: found.free,
                available: found.free,
                nodes: found.inodes.saturating_add(free_nodes),
                free_nodes,
                name_bytes: crate::metadata::directory::MAX_NAME as u32,
            })
        })
    }

    // FLUSH isn't implemented: on close(2) the kernel has already written back its cache, and sends no FLUSH
    // after the first ENOSYS.

    fn release(&self, _: Context, node: u64, release: Release) -> Call<'_, Result<()>> {
        self.at_once(node, move |core| {
            actions::release(core, node, release.flags);
            Ok(())
        })
    }

    fn sync(&self, _: Context, node: u64, _: u64, _: bool) -> Call<'_, Result<()>> {
        self.at(node, move |core| async move { core.sync_inode(node).await })
    }

    fn set_extended<'a>(
        &'a self,
        context: Context,
        node: u64,
        name: &'a [u8],
        value: &'a [u8],
        flags: i32,
    ) -> Call<'a, Result<()>> {
        match Control::of(name) {
            Ok(None) => {}
            Ok(Some(_)) if context.uid != 0 => {
                return Call::ready(Err(os(libc::EPERM, "only root controls a file system")));
            }
            Ok(Some(control)) => return Call::new(self.0.controlled.set(node, control)),
            Err(error) => return Call::ready(Err(error)),
        }
        let (name, value) = (name.to_vec(), value.to_vec());
        self.at(node, move |core| async move {
            actions::check_namespace(&name)?;
            core.set_attribute(node, &name, &value, actions::setting(flags)?).await
        })
    }

    fn extended<'a>(&'a self, _: Context, node: u64, name: &'a [u8]) -> Call<'a, Result<Data>> {
        match Control::of(name) {
            Ok(None) => {}
            Ok(Some(control)) => {
                let controlled = &self.0.controlled;
                return Call::new(async move {
                    controlled.get(node, control).await.map(|text| Data::copy_of(&text))
                });
            }
            Err(error) => return Call::ready(Err(error)),
        }
        let name = name.to_vec();
        self.at_once(node, move |core| {
            actions::check_namespace(&name)?;
            core.attribute(node, &name).map(|value| Data::copy_of(&value))
        })
    }

    fn list_extended(&self, context: Context, node: u64) -> Call<'_, Result<Data>> {
        self.at_once(node, move |core| {
            let names = actions::extended_names(core, node, context.uid == 0)?;
            Ok(Data::copy_of(&names))
        })
    }

    fn remove_extended<'a>(&'a self, _: Context, node: u64, name: &'a [u8]) -> Call<'a, Result<()>> {
        let name = name.to_vec();
        self.at(node, move |core| async move {
            actions::check_namespace(&name)?;
            core.remove_attribute(node, &name).await
        })
    }

    fn open_directory(&self, _: Context, node: u64, _: i32) -> Call<'_, Result<Opened>> {
        self.at_once(node, move |core| actions::open_directory(core, node).map(|()| Opened::default()))
    }

    fn read_directory(
        &self,
        _: Context,
        node: u64,
        _: u64,
        offset: u64,
        entries: DirectoryEntries,
    ) -> Call<'_, Result<DirectoryEntries>> {
        self.at(node, move |core| async move { actions::read_directory(&core, node, offset, entries).await })
    }

    fn read_directory_plus(
        &self,
        _: Context,
        node: u64,
        _: u64,
        offset: u64,
        entries: DirectoryEntriesPlus,
    ) -> Call<'_, Result<DirectoryEntriesPlus>> {
        self.at(node, move |core| async move { actions::read_directory(&core, node, offset, entries).await })
    }

    fn release_directory(&self, _: Context, node: u64, _: Release) -> Call<'_, Result<()>> {
        self.at_once(node, move |core| {
            actions::release(core, node, libc::O_RDONLY);
            Ok(())
        })
    }

    fn sync_directory(&self, _: Context, node: u64, _: u64, _: bool) -> Call<'_, Result<()>> {
        self.at(node, move |core| async move { core.sync_inode(node).await })
    }

    fn allocate(
        &self,
        context: Context,
        node: u64,
        _: u64,
        offset: u64,
        length: u64,
        mode: i32,
    ) -> Call<'_, Result<()>> {
        self.at(node, move |core| async move {
            actions::allocate(&core, node, (offset, length), mode).await?;
            match context.uid {
                0 => Ok(()),
                _ => actions::take_privileges(&core, node).await,
            }
        })
    }

    fn seek(&self, _: Context, node: u64, _: u64, offset: u64, whence: i32) -> Call<'_, Result<u64>> {
        let notifier = self.0.notifying.lock().unwrap_or_else(PoisonError::into_inner).clone();
        self.at(node, move |core| async move { actions::seek(&core, notifier, node, offset, whence).await })
    }

    fn copy_range(&self, context: Context, node: u64, copy: CopyRange) -> Call<'_, Result<u64>> {
        self.at(copy.to_node, move |core| async move {
            let bytes = actions::copy_range(&core, node, &copy).await?;
            if context.uid != 0 && bytes > 0 {
                actions::take_privileges(&core, copy.to_node).await?;
            }
            Ok(bytes)
        })
    }

    fn sync_all(&self, _: Context, _: u64) -> Call<'_, Result<()>> {
        Call::new(async move {
            for core in self.0.cores.all() {
                core.with(|core: Rc<Core>| async move { core.sync_all().await }).await?;
            }
            Ok(())
        })
    }
}
