//! Snapshots in a mount: the directory `.snapshots` in the root, which directory listings omit, with a
//! directory for each snapshot. In it, mkdir(2) takes a snapshot, and rmdir(2) deletes one. Everything below
//! is read-only.
//!
//! Nodes of snapshots are those of [`slots`](super::slots); their generation is the number of the snapshot.

use super::actions::{Listing, check_namespace, os};
use super::convert::{self, CACHED};
use super::serve::{OPENED, Served};
use super::slots::{DIRECTORY, Place, Slots};
use crate::classes::fair_queue::DEFAULT;
use crate::core::Core;
use crate::core::cores::Cores;
use crate::metadata::attributes;
use crate::metadata::directory::{self, show};
use crate::metadata::inode::{FileType, InodeNumber, ROOT};
use crate::metadata::stripes;
use crate::metadata::versions::SnapshotNumber;
use crate::metadata::{Metadata, seek};
use crate::names::namespace;
use crate::names::namespace::resolve;
use crate::snapshots::taking;
use block::{Buffer, Call, Data, Error, Payload, Result};
use fuse::{
    CachedAttributes, Context, CopyRange, DirectoryEntries, DirectoryEntriesPlus, Entry, FileSystem, Opened,
    Read, Release, SetAttributes, Statistics, Write,
};
use std::rc::Rc;
use std::sync::PoisonError;
use std::time::Duration;

/// Name of the directory of snapshots in the root.
const NAME: &[u8] = b".snapshots";
/// Time limit for writing back a file before a snapshot while seeks have all other files written back.
const WRITE_BACK_LIMIT: Duration = Duration::from_secs(10);
/// Offsets in a directory after `.`, and after `..`.
const DOTS: [u64; 2] = [1, 2];

fn refused<'a, R: 'a>(what: &str) -> Call<'a, Result<R>> {
    Call::ready(Err(read_only(what)))
}

#[cold]
fn read_only(what: &str) -> Error {
    os(libc::EROFS, format!("{what} in a snapshot, which can't be changed; change the present file"))
}

/// Name of a snapshot as text, refusing other bytes.
fn name_of(name: &[u8]) -> Result<String> {
    let text = std::str::from_utf8(name);
    text.map(str::to_owned).map_err(|_| {
        Error::invalid(format!("snapshot \"{}\": the name isn't UTF-8; expected one that is", show(name)))
    })
}

/// File system with its snapshots.
pub(super) struct WithSnapshots(pub(super) Served);

impl WithSnapshots {
    fn cores(&self) -> &Cores {
        &self.0.0.cores
    }

    fn slots(&self) -> &Slots {
        &self.0.0.slots
    }

    fn place(&self, node: u64) -> Place {
        self.slots().place(node)
    }

    /// Adds the kernel's reference to an entry that it gets.
    fn referred(&self, entry: Entry) -> Entry {
        self.slots().refer(entry.attributes.node);
        entry
    }

    /// Reads the metadata of an inode of a snapshot on its core.
    fn read_at<R: Send + 'static>(
        &self,
        (number, inode): (SnapshotNumber, InodeNumber),
        work: impl FnOnce(&Core, &Metadata) -> Result<R> + Send + 'static,
    ) -> Call<'_, Result<R>> {
        let core = self.cores().of(inode);
        let read = move |core: Rc<Core>| async move {
            core.check_alive()?;
            core.in_version(Some(number), |metadata| work(&core, metadata))
        };
        Call::new(async move { core.with(read).await })
    }

    /// Attributes of the directory of snapshots, which has the owner of the root.
    async fn directory_attributes(&self) -> Result<fuse::Attributes> {
        let read = |core: Rc<Core>| async move { Ok((core.inode(ROOT)?, core.block_size())) };
        let (root, block_size) = self.cores().of(ROOT).with(read).await?;
        let inode = crate::metadata::inode::Inode {
            mode: FileType::Directory as u32 | 0o755,
            links: 2,
            size: 0,
            blocks: 0,
            ..root
        };
        Ok(convert::attributes(DIRECTORY, &inode, block_size))
    }

    async fn directory_entry(&self) -> Result<Entry> {
        let attributes = self.directory_attributes().await?;
        Ok(Entry { attributes, generation: 0, name_time: CACHED, attributes_time: Duration::ZERO })
    }

    /// Looks a snapshot up. Others may delete it, so the kernel doesn't cache the answer.
    async fn snapshot_entry(&self, name: &[u8]) -> Result<Entry> {
        let Ok(name) = name_of(name) else { return Ok(Entry::default()) };
        let look = move |core: Rc<Core>| async move { core.snapshot_list.find(&name) };
        match self.cores().first().with(look).await {
            Ok(info) => {
                let mut entry = self.entry(info.number, ROOT).await?;
                entry.name_time = Duration::ZERO;
                Ok(self.referred(entry))
            }
            Err(Error::NotFound(_)) => Ok(Entry::default()),
            Err(error) => Err(error),
        }
    }

    async fn entry(&self, number: SnapshotNumber, inode: InodeNumber) -> Result<Entry> {
        let block_size = |core: &Core, _: &Metadata| Ok(core.block_size());
        let block_size = self.read_at((number, inode), block_size).await?;
        let found = self.cores().attributes_in(Some(number), inode).await?;
        let node = self.slots().node(number, inode)?;
        let mut attributes = convert::attributes(node, &found, block_size);
        if inode == ROOT {
            // The times of a snapshot's directory are the time at which it was taken.
            let list = |core: Rc<Core>| async move { Ok(core.snapshot_list.there()) };
            let all = self.cores().first().with(list).await?;
            if let Some(info) = all.iter().find(|info| info.number == number) {
                attributes.changed = convert::timestamp(info.created);
            }
        }
        Ok(Entry { attributes, generation: number.into(), name_time: CACHED, attributes_time: CACHED })
    }

    async fn lookup_in(&self, number: SnapshotNumber, parent: InodeNumber, name: Vec<u8>) -> Result<Entry> {
        let holder = self.cores().holder_in(number, parent, &name).await?;
        let look = move |_: &Core, metadata: &Metadata| resolve(metadata, holder, &name);
        match self.read_at((number, holder), look).await? {
            Some((inode, _)) => self.entry(number, inode).await.map(|entry| self.referred(entry)),
            None => Ok(Entry { name_time: CACHED, ..Entry::default() }),
        }
    }

    /// Takes a snapshot that includes the data in the kernel's cache.
    async fn take(&self, name: &[u8]) -> Result<Entry> {
        let text = name_of(name)?;
        let notifier = self.0.0.notifying.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(notifier) = notifier {
            for core in self.cores().all() {
                let written = |core: Rc<Core>| async move { Ok(core.nodes.written_by_mount()) };
                for inode in core.with(written).await? {
                    let write_back = async || notifier.write_back(inode).await;
                    runtime::retry_while_busy(WRITE_BACK_LIMIT, write_back).await?;
                }
            }
        }
        let create = move |core: Rc<Core>| async move { taking::create(&core, text).await };
        self.cores().first().with(create).await?;
        self.snapshot_entry(name).await
    }

    /// Names in the directory of snapshots, as (offset after the name, node, name).
    async fn snapshots(&self) -> Result<Vec<(u64, u64, Vec<u8>)>> {
        let list = |core: Rc<Core>| async move { Ok(core.snapshot_list.there()) };
        let mut found: Vec<_> = self.cores().first().with(list).await?.into_iter().collect();
        found.sort_by_key(|info| info.number);
        let entry = |info: crate::SnapshotInfo| {
            let node = self.slots().node(info.number, ROOT)?;
            Ok((DOTS[1] + u64::from(info.number), node, info.name.into_bytes()))
        };
        let dots = [(DOTS[0], DIRECTORY, b".".to_vec()), (DOTS[1], ROOT, b"..".to_vec())];
        dots.into_iter().map(Ok).chain(found.into_iter().map(entry)).collect()
    }
}

/// Adds names of an inode of a snapshot, a directory or a stripe, at or after an offset. Returns whether all
/// fit.
fn add_names(
    slots: &Slots,
    metadata: &Metadata,
    (number, holder): (SnapshotNumber, InodeNumber),
    from: u64,
    found: &mut impl Listing,
) -> Result<bool> {
    for entry in directory::entries(&metadata.items, holder, from) {
        let entry = entry?;
        if !found.add_name(entry.next, slots.node(number, entry.inode)?, entry.code, &entry.name) {
            return Ok(false);
        }
    }
    Ok(true)
}

impl WithSnapshots {
    /// Reads a directory of a snapshot at or after an offset, beginning with `.` and `..`.
    async fn list<L: Listing>(
        &self,
        (number, directory): (SnapshotNumber, InodeNumber),
        offset: u64,
        mut found: L,
    ) -> Result<L> {
        let from = if offset <= DOTS[1] { 0 } else { offset };
        let slots = self.0.0.slots.clone();
        let begin = move |_: &Core, metadata: &Metadata| {
            let parent = metadata.inode(directory)?.parent.max(ROOT);
            let above = if directory == ROOT { DIRECTORY } else { slots.node(number, parent)? };
            let own = slots.node(number, directory)?;
            let dots = [(DOTS[0], own, b".".as_slice()), (DOTS[1], above, b"..".as_slice())];
            for (next, node, name) in dots {
                if offset < next && !found.add_name(next, node, libc::DT_DIR, name) {
                    return Ok((found, None));
                }
            }
            let striped = stripes::read(&metadata.items, directory)?;
            if striped.is_none() {
                add_names(&slots, metadata, (number, directory), from, &mut found)?;
            }
            Ok((found, striped))
        };
        let striped;
        (found, striped) = self.read_at((number, directory), begin).await?;
        for stripe in striped.iter().flat_map(|striped| striped.stripes.from(from)) {
            let (at, slots) = ((number, *stripe), self.0.0.slots.clone());
            let go_on = move |_: &Core, metadata: &Metadata| {
                let fit = add_names(&slots, metadata, at, from, &mut found)?;
                Ok((found, fit))
            };
            let fit;
            (found, fit) = self.read_at(at, go_on).await?;
            if !fit {
                break;
            }
        }
        Ok(found)
    }
}

impl FileSystem for WithSnapshots {
    fn lookup<'a>(&'a self, context: Context, parent: u64, name: &'a [u8]) -> Call<'a, Result<Entry>> {
        match self.place(parent) {
            Place::Present if parent == ROOT && name == NAME => Call::new(async move {
                // An existing file of this name takes precedence.
                match self.0.lookup(context, parent, name).await? {
                    found if found.attributes.node != 0 => Ok(found),
                    _ => self.directory_entry().await,
                }
            }),
            Place::Present => self.0.lookup(context, parent, name),
            Place::Directory => Call::new(self.snapshot_entry(name)),
            Place::Snapshot(number, parent) => Call::new(self.lookup_in(number, parent, name.to_vec())),
        }
    }

    fn forget(&self, node: u64, lookups: u64) {
        match self.place(node) {
            Place::Present => self.0.forget(node, lookups),
            Place::Directory => {}
            Place::Snapshot(..) => self.slots().forget(node, lookups),
        }
    }

    fn attributes(
        &self,
        context: Context,
        node: u64,
        handle: Option<u64>,
    ) -> Call<'_, Result<CachedAttributes>> {
        match self.place(node) {
            Place::Present => self.0.attributes(context, node, handle),
            Place::Directory => {
                Call::new(async move { Ok((self.directory_attributes().await?, Duration::ZERO)) })
            }
            Place::Snapshot(number, inode) => Call::new(async move {
                let entry = self.entry(number, inode).await?;
                Ok((entry.attributes, CACHED))
            }),
        }
    }

    fn set_attributes(
        &self,
        context: Context,
        node: u64,
        set: SetAttributes,
    ) -> Call<'_, Result<CachedAttributes>> {
        match self.place(node) {
            Place::Present => self.0.set_attributes(context, node, set),
            _ => refused("setting attributes"),
        }
    }

    fn read_link(&self, context: Context, node: u64) -> Call<'_, Result<Data>> {
        match self.place(node) {
            Place::Snapshot(number, inode) => self.read_at((number, inode), move |_, metadata| {
                namespace::target(metadata, inode).map(|target| Data::copy_of(&target))
            }),
            _ => self.0.read_link(context, node),
        }
    }

    fn symbolic_link<'a>(
        &'a self,
        context: Context,
        parent: u64,
        name: &'a [u8],
        target: &'a [u8],
    ) -> Call<'a, Result<Entry>> {
        match self.place(parent) {
            Place::Present => self.0.symbolic_link(context, parent, name, target),
            _ => refused("a symbolic link"),
        }
    }

    fn make_node<'a>(
        &'a self,
        context: Context,
        parent: u64,
        name: &'a [u8],
        mode: u32,
        umask: u32,
        device: u32,
    ) -> Call<'a, Result<Entry>> {
        match self.place(parent) {
            Place::Present => self.0.make_node(context, parent, name, mode, umask, device),
            _ => refused("a new file"),
        }
    }

    fn make_directory<'a>(
        &'a self,
        context: Context,
        parent: u64,
        name: &'a [u8],
        mode: u32,
        umask: u32,
    ) -> Call<'a, Result<Entry>> {
        match self.place(parent) {
            Place::Present => self.0.make_directory(context, parent, name, mode, umask),
            Place::Directory => Call::new(self.take(name)),
            Place::Snapshot(..) => refused("a new directory"),
        }
    }

    fn unlink<'a>(&'a self, context: Context, parent: u64, name: &'a [u8]) -> Call<'a, Result<()>> {
        match self.place(parent) {
            Place::Present => self.0.unlink(context, parent, name),
            _ => refused("removing a file"),
        }
    }

    fn remove_directory<'a>(&'a self, context: Context, parent: u64, name: &'a [u8]) -> Call<'a, Result<()>> {
        match self.place(parent) {
            Place::Present => self.0.remove_directory(context, parent, name),
            Place::Directory => Call::new(async move {
                let name = name_of(name)?;
                let delete = move |core: Rc<Core>| async move { taking::delete(&core, name).await };
                self.cores().first().with(delete).await
            }),
            Place::Snapshot(..) => refused("removing a directory"),
        }
    }

    fn rename<'a>(
        &'a self,
        context: Context,
        parent: u64,
        name: &'a [u8],
        new_parent: u64,
        new_name: &'a [u8],
        flags: u32,
    ) -> Call<'a, Result<()>> {
        match (self.place(parent), self.place(new_parent)) {
            (Place::Present, Place::Present) => {
                self.0.rename(context, parent, name, new_parent, new_name, flags)
            }
            _ => refused("a rename"),
        }
    }

    fn link<'a>(
        &'a self,
        context: Context,
        node: u64,
        new_parent: u64,
        new_name: &'a [u8],
    ) -> Call<'a, Result<Entry>> {
        match (self.place(node), self.place(new_parent)) {
            (Place::Present, Place::Present) => self.0.link(context, node, new_parent, new_name),
            (_, Place::Present) => {
                Call::ready(Err(os(libc::EXDEV, "a link to a file of a snapshot; copy the file")))
            }
            _ => refused("a link"),
        }
    }

    fn open(&self, context: Context, node: u64, flags: i32) -> Call<'_, Result<Opened>> {
        match self.place(node) {
            Place::Snapshot(number, inode) => {
                if flags & libc::O_ACCMODE != libc::O_RDONLY || flags & libc::O_TRUNC != 0 {
                    return refused("writing");
                }
                self.read_at((number, inode), move |_, metadata| metadata.inode(inode).map(|_| OPENED))
            }
            _ => self.0.open(context, node, flags),
        }
    }

    fn create<'a>(
        &'a self,
        context: Context,
        parent: u64,
        name: &'a [u8],
        mode: u32,
        umask: u32,
        flags: i32,
    ) -> Call<'a, Result<(Entry, Opened)>> {
        match self.place(parent) {
            Place::Present => self.0.create(context, parent, name, mode, umask, flags),
            _ => refused("a new file"),
        }
    }

    fn temporary_file(
        &self,
        context: Context,
        parent: u64,
        mode: u32,
        umask: u32,
        flags: i32,
    ) -> Call<'_, Result<(Entry, Opened)>> {
        match self.place(parent) {
            Place::Present => self.0.temporary_file(context, parent, mode, umask, flags),
            _ => refused("a new file"),
        }
    }

    fn read(&self, context: Context, node: u64, read: Read) -> Call<'_, Result<Payload>> {
        match self.place(node) {
            Place::Snapshot(number, inode) => {
                let (core, refused) = (self.cores().of(inode), self.0.0.refused_reads.clone());
                let work = move |core: Rc<Core>| async move {
                    core.check_alive()?;
                    let (offset, length) = (read.offset, read.size as usize);
                    let found = core.read_in(DEFAULT, Some(number), inode, offset, length).await;
                    refused.read_by_program(Some(number), inode, found)
                };
                Call::new(async move { core.with(work).await })
            }
            _ => self.0.read(context, node, read),
        }
    }

    fn write(&self, context: Context, node: u64, write: Write, data: Buffer) -> Call<'_, Result<u32>> {
        match self.place(node) {
            Place::Present => self.0.write(context, node, write, data),
            _ => refused("writing"),
        }
    }

    fn statistics(&self, context: Context, _: u64) -> Call<'_, Result<Statistics>> {
        self.0.statistics(context, ROOT)
    }

    fn release(&self, context: Context, node: u64, release: Release) -> Call<'_, Result<()>> {
        match self.place(node) {
            Place::Present => self.0.release(context, node, release),
            _ => Call::ready(Ok(())),
        }
    }

    fn sync(&self, context: Context, node: u64, handle: u64, data_only: bool) -> Call<'_, Result<()>> {
        match self.place(node) {
            Place::Present => self.0.sync(context, node, handle, data_only),
            _ => Call::ready(Ok(())),
        }
    }

    fn set_extended<'a>(
        &'a self,
        context: Context,
        node: u64,
        name: &'a [u8],
        value: &'a [u8],
        flags: i32,
    ) -> Call<'a, Result<()>> {
        match self.place(node) {
            Place::Present => self.0.set_extended(context, node, name, value, flags),
            _ => refused("setting an extended attribute"),
        }
    }

    fn extended<'a>(&'a self, context: Context, node: u64, name: &'a [u8]) -> Call<'a, Result<Data>> {
        match self.place(node) {
            Place::Present => self.0.extended(context, node, name),
            Place::Directory => {
                Call::ready(Err(os(libc::ENODATA, "the directory of snapshots has no attributes")))
            }
            Place::Snapshot(number, inode) => {
                let name = name.to_vec();
                self.read_at((number, inode), move |_, metadata| {
                    check_namespace(&name)?;
                    attributes::get(metadata, inode, &name).map(|value| Data::copy_of(&value))
                })
            }
        }
    }

    fn list_extended(&self, context: Context, node: u64) -> Call<'_, Result<Data>> {
        match self.place(node) {
            Place::Present => self.0.list_extended(context, node),
            Place::Directory => Call::ready(Ok(Data::copy_of(&[]))),
            Place::Snapshot(number, inode) => self.read_at((number, inode), move |_, metadata| {
                let names =
                    super::actions::shown_names(attributes::names(metadata, inode)?, context.uid == 0);
                Ok(Data::copy_of(&names))
            }),
        }
    }

    fn remove_extended<'a>(&'a self, context: Context, node: u64, name: &'a [u8]) -> Call<'a, Result<()>> {
        match self.place(node) {
            Place::Present => self.0.remove_extended(context, node, name),
            _ => refused("removing an extended attribute"),
        }
    }

    fn open_directory(&self, context: Context, node: u64, flags: i32) -> Call<'_, Result<Opened>> {
        match self.place(node) {
            Place::Present => self.0.open_directory(context, node, flags),
            _ => Call::ready(Ok(Opened::default())),
        }
    }

    fn read_directory(
        &self,
        context: Context,
        node: u64,
        handle: u64,
        offset: u64,
        mut entries: DirectoryEntries,
    ) -> Call<'_, Result<DirectoryEntries>> {
        match self.place(node) {
            Place::Present => self.0.read_directory(context, node, handle, offset, entries),
            Place::Directory => Call::new(async move {
                for (next, node, name) in self.snapshots().await? {
                    if next > offset && !entries.add(node, next, libc::DT_DIR, &name) {
                        break;
                    }
                }
                Ok(entries)
            }),
            Place::Snapshot(number, inode) => Call::new(self.list((number, inode), offset, entries)),
        }
    }

    fn read_directory_plus(
        &self,
        context: Context,
        node: u64,
        handle: u64,
        offset: u64,
        mut entries: DirectoryEntriesPlus,
    ) -> Call<'_, Result<DirectoryEntriesPlus>> {
        match self.place(node) {
            Place::Present => self.0.read_directory_plus(context, node, handle, offset, entries),
            Place::Directory => Call::new(async move {
                for (next, node, name) in self.snapshots().await? {
                    if next > offset && !entries.add_name(node, next, libc::DT_DIR, &name) {
                        break;
                    }
                }
                Ok(entries)
            }),
            Place::Snapshot(number, inode) => Call::new(self.list((number, inode), offset, entries)),
        }
    }

    fn release_directory(&self, context: Context, node: u64, release: Release) -> Call<'_, Result<()>> {
        match self.place(node) {
            Place::Present => self.0.release_directory(context, node, release),
            _ => Call::ready(Ok(())),
        }
    }

    fn sync_directory(
        &self,
        context: Context,
        node: u64,
        handle: u64,
        data_only: bool,
    ) -> Call<'_, Result<()>> {
        match self.place(node) {
            Place::Present => self.0.sync_directory(context, node, handle, data_only),
            _ => Call::ready(Ok(())),
        }
    }

    fn allocate(
        &self,
        context: Context,
        node: u64,
        handle: u64,
        offset: u64,
        length: u64,
        mode: i32,
    ) -> Call<'_, Result<()>> {
        match self.place(node) {
            Place::Present => self.0.allocate(context, node, handle, offset, length, mode),
            _ => refused("allocating space"),
        }
    }

    fn seek(
        &self,
        context: Context,
        node: u64,
        handle: u64,
        offset: u64,
        whence: i32,
    ) -> Call<'_, Result<u64>> {
        match self.place(node) {
            Place::Snapshot(number, inode) => self.read_at((number, inode), move |_, metadata| {
                let is_for_data = super::actions::is_for_data(whence)?;
                seek(metadata, inode, offset, is_for_data)
            }),
            _ => self.0.seek(context, node, handle, offset, whence),
        }
    }

    fn copy_range(&self, context: Context, node: u64, copy: CopyRange) -> Call<'_, Result<u64>> {
        match (self.place(node), self.place(copy.to_node)) {
            (Place::Present, Place::Present) => self.0.copy_range(context, node, copy),
            // The kernel falls back to reading and writing.
            _ => Call::ready(Err(os(libc::EXDEV, "a copy from a snapshot"))),
        }
    }

    fn sync_all(&self, context: Context, _: u64) -> Call<'_, Result<()>> {
        self.0.sync_all(context, ROOT)
    }
}
