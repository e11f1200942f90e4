//! Operations on inodes, each decided and in effect in one turn of the shard ([`crate::namespace`]); the data of files is in
//! [`crate::data`].

use crate::attributes;
use crate::change::{Attributes, Change, Changes, KEEP_TIMES};
use crate::core::{Broken, Core, now};
use crate::data::{Cut, end_of};
use crate::directory::{self, Entry};
use crate::extents::extents;
use crate::format::BLOCK;
use crate::inode::{FileType, Inode, InodeNumber, ROOT, Time};
use crate::metadata::{Metadata, orphan};
use crate::namespace::{self, New, Renaming};
use crate::node::Node;
use block::{Error, Result};
use smallvec::smallvec;
use std::ops::Range;
use std::rc::Rc;

/// Blocks of a removed file that are taken from it at a time.
const REMOVED_AT_ONCE: usize = 512;
/// Files with more blocks than this are removed piece by piece, in the background.
const REMOVED_WHOLE: u64 = 4096;

/// Sizes of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Statistics {
    /// Blocks of 4 KiB for data.
    pub blocks: u64,
    /// Of these, the free ones.
    pub free: u64,
    /// Number of files.
    pub inodes: u64,
    /// Number of records that were replayed when it was opened; 0 after a clean end.
    pub replayed: u64,
}

impl Core {
    /// Carries out an operation that `decide` finds the changes of.
    async fn change<T>(&self, decide: impl FnOnce(&Metadata) -> Result<(T, Changes)>) -> Result<(T, u64)> {
        let permit = self.admit().await?;
        let decided = decide(&self.metadata.borrow());
        let (result, changes) = decided?;
        let ticket = self.submit(changes, Some(permit))?;
        Ok((result, ticket))
    }

    /// Attributes of an inode.
    ///
    /// # Errors
    /// ESTALE for one that isn't there.
    pub fn inode(&self, inode: InodeNumber) -> Result<Inode> {
        self.metadata.borrow().inode(inode)
    }

    /// Looks a name up. `.` and `..` are names, too.
    ///
    /// # Errors
    /// [`Error::NotFound`], ENOTDIR, ENAMETOOLONG.
    pub fn lookup(&self, directory: InodeNumber, name: &[u8]) -> Result<InodeNumber> {
        match self.find(directory, name)? {
            Some((inode, _)) => Ok(inode),
            None => Err(namespace::missing(directory, name)),
        }
    }

    /// Looks a name up: the file and its type, if it is there.
    ///
    /// # Errors
    /// ENOTDIR, ENAMETOOLONG.
    pub fn find(&self, directory: InodeNumber, name: &[u8]) -> Result<Option<(InodeNumber, FileType)>> {
        let metadata = self.metadata.borrow();
        match name {
            b"." => metadata.inode(directory).map(|_| Some((directory, FileType::Directory))),
            b".." => {
                let parent = metadata.inode(directory)?.parent.max(ROOT);
                Ok(Some((parent, FileType::Directory)))
            }
            _ => {
                let found = namespace::find(&metadata, directory, name)?;
                Ok(found.and_then(|found| Some((found.inode, FileType::of(u32::from(found.code) << 12)?))))
            }
        }
    }

    /// Makes a file. Returns its number.
    ///
    /// # Errors
    /// As [`namespace::create`]; [`Error::NoSpace`].
    pub async fn create(&self, directory: InodeNumber, name: &[u8], new: &New) -> Result<InodeNumber> {
        self.check_space(1)?;
        let decide = |metadata: &Metadata| {
            let changes = namespace::create(metadata, directory, name, new, now())?;
            Ok((metadata.next_inode, changes))
        };
        let (inode, ticket) = self.change(decide).await?;
        self.note(&[inode, directory], ticket);
        Ok(inode)
    }

    /// Makes a file without a name and opens it.
    ///
    /// # Errors
    /// As [`create`](Self::create).
    pub async fn create_unnamed(&self, directory: InodeNumber, new: &New) -> Result<Rc<Node>> {
        self.check_space(1)?;
        let decide = |metadata: &Metadata| {
            let changes = namespace::create_unnamed(metadata, directory, new, now())?;
            Ok((metadata.next_inode, changes))
        };
        let (inode, ticket) = self.change(decide).await?;
        let node = self.open_present(inode);
        node.has_lost_names.set(true);
        node.note(ticket);
        Ok(node)
    }

    /// Notes an operation on files that are in use, so that making one of them durable waits for it.
    fn note(&self, inodes: &[InodeNumber], ticket: u64) {
        inodes.iter().filter_map(|inode| self.nodes.find(*inode)).for_each(|node| node.note(ticket));
    }

    /// Gives a file another name.
    ///
    /// # Errors
    /// As [`namespace::link`]; [`Error::NoSpace`].
    pub async fn link(&self, inode: InodeNumber, directory: InodeNumber, name: &[u8]) -> Result<()> {
        self.check_space(1)?;
        let is_open = |inode| self.nodes.is_open(inode);
        let decide = |metadata: &Metadata| {
            Ok(((), namespace::link(metadata, inode, directory, name, is_open, now())?))
        };
        let ((), ticket) = self.change(decide).await?;
        self.note(&[inode, directory], ticket);
        Ok(())
    }

    /// Whether an inode without names stays for now: it is open, or so large that it is removed piece by piece.
    fn stays(&self, metadata: &Metadata, inode: InodeNumber) -> bool {
        let is_large = metadata.inode(inode).is_ok_and(|inode| inode.blocks > REMOVED_WHOLE);
        is_large || self.nodes.is_open(inode)
    }

    /// Removes a name that isn't a directory's.
    ///
    /// # Errors
    /// As [`namespace::unlink`].
    pub async fn unlink(self: &Rc<Self>, directory: InodeNumber, name: &[u8]) -> Result<()> {
        let decide = |metadata: &Metadata| {
            let inode = namespace::lookup(metadata, directory, name)?.inode;
            let stays = |inode| self.stays(metadata, inode);
            Ok((inode, namespace::unlink(metadata, directory, name, stays, now())?))
        };
        let (inode, ticket) = self.change(decide).await?;
        self.note(&[inode, directory], ticket);
        self.remove_unused(inode);
        Ok(())
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// As [`namespace::remove_directory`].
    pub async fn remove_directory(self: &Rc<Self>, directory: InodeNumber, name: &[u8]) -> Result<()> {
        let decide = |metadata: &Metadata| {
            let stays = |inode| self.stays(metadata, inode);
            let inode = namespace::lookup(metadata, directory, name)?.inode;
            Ok((inode, namespace::remove_directory(metadata, directory, name, stays, now())?))
        };
        let (inode, ticket) = self.change(decide).await?;
        self.note(&[directory], ticket);
        self.remove_unused(inode);
        Ok(())
    }

    /// Renames a file.
    ///
    /// # Errors
    /// As [`namespace::rename`]; [`Error::NoSpace`] for a longer name.
    pub async fn rename(
        self: &Rc<Self>,
        from: (InodeNumber, &[u8]),
        to: (InodeNumber, &[u8]),
        renaming: Renaming,
    ) -> Result<()> {
        if to.1.len() > from.1.len() {
            // Names take space in the tree.
            self.check_space(1)?;
        }
        let decide = |metadata: &Metadata| {
            let replaced = directory::find(&metadata.tree, to.0, to.1)?.map(|found| found.inode);
            let stays = |inode| self.stays(metadata, inode);
            Ok((replaced, namespace::rename(metadata, from, to, renaming, stays, now())?))
        };
        let (replaced, ticket) = self.change(decide).await?;
        self.note(&[from.0, to.0], ticket);
        if let Ok(moved) = self.lookup(to.0, to.1) {
            self.note(&[moved], ticket);
        }
        if let Some(replaced) = replaced {
            self.remove_unused(replaced);
        }
        Ok(())
    }

    /// Names of a directory, from an offset on, as many as `visit` takes.
    ///
    /// # Errors
    /// ENOTDIR; ESTALE.
    pub fn read_directory(
        &self,
        directory: InodeNumber,
        from: u64,
        mut visit: impl FnMut(Entry) -> bool,
    ) -> Result<()> {
        let metadata = self.metadata.borrow();
        if !metadata.inode(directory)?.is_directory() {
            return Err(Error::from_errno(libc::ENOTDIR, format!("inode {directory} isn't a directory")));
        }
        for entry in directory::entries(&metadata.tree, directory, from) {
            if !visit(entry?) {
                break;
            }
        }
        Ok(())
    }

    /// Target of a symbolic link.
    ///
    /// # Errors
    /// [`Error::Invalid`] for another file.
    pub fn read_link(&self, inode: InodeNumber) -> Result<Vec<u8>> {
        namespace::target(&self.metadata.borrow(), inode)
    }

    /// Opens a file: it stays until it is [closed](Self::close), whatever becomes of its names.
    ///
    /// # Errors
    /// ESTALE.
    pub fn open(&self, inode: InodeNumber) -> Result<Rc<Node>> {
        self.metadata.borrow().inode(inode)?;
        Ok(self.open_present(inode))
    }

    /// Opens a file that is there.
    pub(crate) fn open_present(&self, inode: InodeNumber) -> Rc<Node> {
        let node = self.node(inode);
        node.opened();
        node
    }

    /// Closes a file that was [opened](Self::open).
    pub fn close(self: &Rc<Self>, node: &Rc<Node>) {
        // It may have lost its names while it was open.
        if node.closed() && node.has_lost_names.get() {
            self.remove_unused(node.inode);
        }
    }

    /// Removes an inode that has no names and isn't open, in the background.
    pub(crate) fn remove_unused(self: &Rc<Self>, inode: InodeNumber) {
        if let Some(node) = self.nodes.find(inode).filter(|node| node.is_open()) {
            node.has_lost_names.set(true);
            return;
        }
        let is_unused = move |core: &Core| {
            let metadata = core.metadata.borrow();
            metadata.tree.get(&orphan(inode)).is_some() && !core.nodes.is_open(inode)
        };
        if !is_unused(self) || self.check_open().is_err() {
            return;
        }
        let core = self.clone();
        let removing = async move {
            while let Ok(permit) = core.admit().await {
                if !is_unused(&core) {
                    break;
                }
                let (changes, is_last) = match next_removal(&core.metadata.borrow(), inode) {
                    Ok(next) => next,
                    Err(error) => {
                        tracing::warn!("inode {inode} has no names and can't be removed: {error}");
                        break;
                    }
                };
                if core.submit(changes, Some(permit)).is_err() || is_last {
                    break;
                }
                runtime::yield_now().await;
            }
        };
        self.kit.tasks.spawn(removing).detach();
    }

    /// Removes inodes that have no names: they were open when the file system was last closed or lost.
    pub fn remove_orphans(self: &Rc<Self>) {
        if self.breaks(Broken::KeepsOrphans) {
            return;
        }
        let orphans = self.metadata.borrow().orphans();
        orphans.into_iter().for_each(|inode| self.remove_unused(inode));
    }

    /// Sets attributes but the size.
    ///
    /// # Errors
    /// ESTALE; the failure of the log.
    pub async fn set_attributes(&self, inode: InodeNumber, attributes: Attributes) -> Result<Inode> {
        // A write in flight sets the time when its record is written.
        let node = attributes.modified.map(|_| self.node(inode));
        let _held = match &node {
            Some(node) => Some(node.lock.ask(0..u64::MAX).await),
            None => None,
        };
        let decide = |metadata: &Metadata| {
            metadata.inode(inode)?;
            let attributes = Attributes { changed: attributes.changed.or(Some(now())), ..attributes };
            Ok(((), smallvec![Change::Set { inode, attributes }]))
        };
        let ((), ticket) = self.change(decide).await?;
        self.note(&[inode], ticket);
        self.inode(inode)
    }

    fn check_regular(&self, inode: InodeNumber) -> Result<Inode> {
        let file = self.inode(inode)?;
        match file.file_type() {
            FileType::Regular => Ok(file),
            FileType::Directory => {
                Err(Error::from_errno(libc::EISDIR, format!("inode {inode} is a directory")))
            }
            _ => Err(Error::invalid(format!("inode {inode} isn't a regular file"))),
        }
    }

    /// Sets the size of a file: cuts off what is behind it, or adds zeros.
    ///
    /// # Errors
    /// EFBIG, EISDIR, [`Error::Invalid`]; as [`write`](Self::write) where the end is within a block.
    pub async fn truncate(self: &Rc<Self>, node: &Rc<Node>, size: u64) -> Result<()> {
        end_of(size, 0)?;
        self.check_regular(node.inode)?;
        self.cut_out(node, Cut::From(size), now()).await
    }

    /// Frees the blocks of a range, which reads as zeros then.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub async fn punch(self: &Rc<Self>, node: &Rc<Node>, range: Range<u64>) -> Result<()> {
        self.free(node, range, now()).await
    }

    /// As [`punch`](Self::punch), with the time of the change, which may be [`KEEP_TIMES`].
    pub(crate) async fn free(
        self: &Rc<Self>,
        node: &Rc<Node>,
        range: Range<u64>,
        modified: Time,
    ) -> Result<()> {
        self.check_regular(node.inode)?;
        match range.is_empty() {
            true => Ok(()),
            false => self.cut_out(node, Cut::Range(range), modified).await,
        }
    }

    /// Reserves space for a range, so that writes to it find some. With `size`, the file is at least as long as the range then.
    ///
    /// # Errors
    /// EFBIG, [`Error::NoSpace`].
    pub async fn preallocate(self: &Rc<Self>, node: &Rc<Node>, range: Range<u64>, size: bool) -> Result<()> {
        self.reserve(node, range, size, now()).await
    }

    /// As [`preallocate`](Self::preallocate), with the time of the change, which may be [`KEEP_TIMES`].
    pub(crate) async fn reserve(
        self: &Rc<Self>,
        node: &Rc<Node>,
        range: Range<u64>,
        size: bool,
        time: Time,
    ) -> Result<()> {
        let inode = node.inode;
        let old = self.check_regular(inode)?;
        end_of(range.start, range.end - range.start)?;
        let (from, to) = (range.start / BLOCK, range.end.div_ceil(BLOCK));
        let _held = node.lock.ask(from..to).await;
        let size = (size && range.end > old.size).then_some(range.end);
        let changed = (time != KEEP_TIMES).then_some(time);
        let attributes = Attributes { size, changed, ..Attributes::default() };
        let decide = |metadata: &Metadata| {
            metadata.inode(inode)?;
            let mut wanted = to - from;
            for extent in extents(&metadata.tree, inode, from..to) {
                wanted -= u64::from(extent?.part(&(from..to)).blocks);
            }
            if wanted > 0 {
                self.check_space(wanted)?;
            }
            let preallocate = Change::Preallocate { inode, from, to };
            Ok(((), smallvec![preallocate, Change::Set { inode, attributes }]))
        };
        let ((), ticket) = self.change(decide).await?;
        node.note(ticket);
        Ok(())
    }

    /// The first offset from this one on with data, or without.
    ///
    /// # Errors
    /// ENXIO where the file ends before.
    pub fn seek(&self, inode: InodeNumber, offset: u64, data: bool) -> Result<u64> {
        let metadata = self.metadata.borrow();
        let size = metadata.inode(inode)?.size;
        let none =
            || Error::from_errno(libc::ENXIO, format!("inode {inode} ends at byte {size}, before {offset}"));
        if offset >= size {
            return Err(none());
        }
        let mut at = offset;
        for extent in extents(&metadata.tree, inode, offset / BLOCK..size.div_ceil(BLOCK)) {
            let extent = extent?;
            if extent.is_preallocated() {
                continue;
            }
            let (from, to) = (extent.block * BLOCK, extent.end() * BLOCK);
            if data && to > at {
                return Ok(from.max(at));
            }
            if !data && from > at {
                return Ok(at);
            }
            at = at.max(to);
        }
        match data {
            true => Err(none()),
            false => Ok(at.min(size)),
        }
    }

    /// Value of an extended attribute.
    ///
    /// # Errors
    /// ENODATA.
    pub fn attribute(&self, inode: InodeNumber, name: &[u8]) -> Result<Vec<u8>> {
        attributes::get(&self.metadata.borrow(), inode, name)
    }

    /// Names of the extended attributes of an inode.
    ///
    /// # Errors
    /// ESTALE.
    pub fn attribute_names(&self, inode: InodeNumber) -> Result<Vec<Vec<u8>>> {
        attributes::names(&self.metadata.borrow(), inode)
    }

    /// Sets an extended attribute.
    ///
    /// # Errors
    /// As [`attributes::set`]; [`Error::NoSpace`].
    pub async fn set_attribute(
        &self,
        inode: InodeNumber,
        name: &[u8],
        value: &[u8],
        setting: attributes::Setting,
    ) -> Result<()> {
        self.check_space(1)?;
        let decide =
            |metadata: &Metadata| Ok(((), attributes::set(metadata, inode, name, value, setting, now())?));
        let ((), ticket) = self.change(decide).await?;
        self.note(&[inode], ticket);
        Ok(())
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// ENODATA.
    pub async fn remove_attribute(&self, inode: InodeNumber, name: &[u8]) -> Result<()> {
        let decide = |metadata: &Metadata| Ok(((), attributes::remove(metadata, inode, name, now())?));
        let ((), ticket) = self.change(decide).await?;
        self.note(&[inode], ticket);
        Ok(())
    }

    /// Sizes of the file system.
    pub fn statistics(&self) -> Statistics {
        let (blocks, used) = (self.capacity(), self.used());
        let inodes = self.metadata.borrow().inodes;
        Statistics { blocks, free: blocks.saturating_sub(used), inodes, replayed: self.replayed.get() }
    }
}

/// The next changes that remove an inode, and whether they are the last.
fn next_removal(metadata: &Metadata, inode: InodeNumber) -> Result<(Changes, bool)> {
    let mut blocks = 0_u64;
    let mut end = 0;
    for extent in extents(&metadata.tree, inode, 0..u64::MAX).take(REMOVED_AT_ONCE) {
        let extent = extent?;
        blocks += 1;
        end = extent.end();
    }
    let is_last = (blocks as usize) < REMOVED_AT_ONCE;
    let changes: Changes = match is_last {
        true => smallvec![Change::Remove { inode }, Change::Delete { key: orphan(inode) }],
        false => smallvec![Change::Unmap { inode, from: 0, to: end }],
    };
    Ok((changes, is_last))
}
