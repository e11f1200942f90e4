//! Operations on inodes. Operations on names are in [`crate::core::names`], those on data in
//! [`crate::core::data`].

use crate::broken::if_broken;
use crate::classes::fair_queue::DEFAULT;
use crate::core::{Core, Times, now};
use crate::data::cut::Cut;
use crate::data::node::Node;
use crate::format::BLOCK;
use crate::metadata::change::{Attributes, Change, Changes};
use crate::metadata::extents::extents;
use crate::metadata::inode::{FileType, Inode, InodeNumber, end_of};
use crate::metadata::stripes::{self, Stripes};
use crate::metadata::{Metadata, attributes, directory, orphan, seek};
use crate::names::joint::{self, View, Wanted};
use crate::names::namespace::{self, New};
use block::{Error, Result};
use runtime::sync::Permit;
use smallvec::smallvec;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

/// Blocks of a removed file that are unmapped at a time.
const REMOVED_AT_ONCE: usize = 512;
/// Names of a removed directory that are removed at a time.
const NAMES_REMOVED_AT_ONCE: usize = 64;
/// Most blocks of a file that is removed in one operation; larger files are removed in steps, in the
/// background.
const REMOVED_WHOLE: u64 = 4096;

/// Time between attempts to remove an inode, or to close the file system, while records wait for space.
pub(crate) const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(100);

/// Sizes and counts of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Statistics {
    /// Capacity for data in blocks of 4 KiB.
    pub blocks: u64,
    /// Number of free blocks of the capacity.
    pub free: u64,
    /// Number of files.
    pub inodes: u64,
    /// Number of records that were replayed when the file system was opened; 0 after a clean close.
    pub replayed: u64,
}

impl Core {
    /// Carries out an operation with the changes that `decide` returns.
    pub(crate) async fn change<T>(
        &self,
        decide: impl Fn(&Metadata) -> Result<(T, Changes)>,
    ) -> Result<(T, u64)> {
        let done = self.change_here(|metadata| decide(metadata).map(Some)).await?;
        done.ok_or_else(|| Error::io("an operation on one shard was decided for several"))
    }

    /// As [`change`](Self::change); without a change if `decide` returns `None`, because the operation
    /// involves inodes of other shards.
    pub(crate) async fn change_here<T>(
        &self,
        decide: impl Fn(&Metadata) -> Result<Option<(T, Changes)>>,
    ) -> Result<Option<(T, u64)>> {
        loop {
            let permit = self.admit().await?;
            let decided = decide(&self.metadata.borrow());
            let Some((result, changes)) = decided? else { return Ok(None) };
            if self.peers.locks.holds_any(changes.iter().map(Change::inode)) {
                let released = self.peers.locks.released();
                drop(permit);
                released.await;
                continue;
            }
            let ticket = self.submit(changes, Some(permit))?;
            return Ok(Some((result, ticket)));
        }
    }

    /// Attributes of an inode.
    ///
    /// # Errors
    /// ESTALE for an inode that doesn't exist.
    pub fn inode(&self, inode: InodeNumber) -> Result<Inode> {
        self.metadata.borrow().inode(inode)
    }

    /// Creates a file without a name and opens it.
    ///
    /// # Errors
    /// As [`create`](Self::create).
    pub async fn create_unnamed(&self, directory: InodeNumber, new: &New) -> Result<Rc<Node>> {
        self.admission.check_space_for_operation()?;
        let decide = |metadata: &Metadata| {
            let number = metadata.next_inode(metadata.items.group_of(directory));
            Ok((number, namespace::create_unnamed(metadata, number, directory, new, now())?))
        };
        let (inode, ticket) = self.change(decide).await?;
        let node = self.open_present(inode);
        node.has_lost_names.set(true);
        node.note(ticket);
        Ok(node)
    }

    /// Notes an operation on files, if they are in use, so that a sync of one of them waits for it.
    pub(crate) fn note(&self, inodes: &[InodeNumber], ticket: u64) {
        inodes.iter().filter_map(|inode| self.nodes.find(*inode)).for_each(|node| node.note(ticket));
    }

    /// Makes the operations on an inode of this shard durable; for a directory, also those on its names.
    ///
    /// # Errors
    /// The failure of the log, which is permanent.
    pub async fn sync_inode(&self, inode: InodeNumber) -> Result<()> {
        self.shards().sync_stripes(inode).await?;
        match self.nodes.find(inode) {
            Some(node) if node.is_open() => self.sync_in(DEFAULT, node.ticket.get()).await,
            _ => self.sync_all().await,
        }
    }

    /// Whether an inode without names is kept for now: it is open, or so large that it is removed in steps.
    pub(crate) fn stays(&self, number: InodeNumber, inode: &Inode) -> bool {
        inode.blocks > REMOVED_WHOLE || self.nodes.is_open(number)
    }

    /// Target of a symbolic link.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a file of another type.
    pub fn read_link(&self, inode: InodeNumber) -> Result<Vec<u8>> {
        namespace::target(&self.metadata.borrow(), inode)
    }

    /// Opens a file: the inode is kept until it is [closed](Self::close), even without names.
    ///
    /// # Errors
    /// ESTALE.
    pub fn open(&self, inode: InodeNumber) -> Result<Rc<Node>> {
        self.metadata.borrow().inode(inode)?;
        Ok(self.open_present(inode))
    }

    /// Opens a file that exists.
    pub(crate) fn open_present(&self, inode: InodeNumber) -> Rc<Node> {
        let node = self.node(inode);
        node.opened();
        node
    }

    /// Closes a file that was [opened](Self::open).
    pub fn close(self: &Rc<Self>, node: &Rc<Node>) {
        // The file may have lost its last name while it was open.
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
            metadata.items.get(&orphan(inode)).is_some() && !core.nodes.is_open(inode)
        };
        if !is_unused(self) || !matches!(self.check_open(), Ok(()) | Err(Error::NoSpace(_))) {
            return;
        }
        let core = self.clone();
        let removing = async move {
            loop {
                let Some(permit) = core.admit_removal(inode).await else { break };
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
            if core.inode(inode).is_err() {
                core.shards().striped().set(inode, None);
            }
        };
        self.kit.tasks.spawn(removing).detach();
    }

    /// Waits until a background removal of an inode may be queued, and no operation locks the inode; `None`
    /// after the end of the file system. Retries without space, since otherwise what is to be removed would
    /// remain until the file system is opened again.
    pub(crate) async fn admit_removal(&self, inode: InodeNumber) -> Option<Permit> {
        loop {
            match self.admit().await {
                Ok(permit) if self.peers.locks.holds_any([inode]) => {
                    let released = self.peers.locks.released();
                    drop(permit);
                    released.await;
                }
                Ok(permit) => return Some(permit),
                Err(Error::NoSpace(_)) if self.kit.failure().is_none() => {
                    runtime::sleep(BETWEEN_ATTEMPTS).await;
                }
                Err(_) => return None,
            }
        }
    }

    /// Removes inodes without names, which were open when the file system was closed or lost power.
    pub fn remove_orphans(self: &Rc<Self>) {
        if_broken!(KeepsOrphans, return);
        let orphans = self.metadata.borrow().orphans();
        orphans.into_iter().for_each(|inode| self.remove_unused(inode));
    }

    /// Sets attributes other than the size.
    ///
    /// # Errors
    /// ESTALE; the failure of the log.
    pub async fn set_attributes(
        self: &Rc<Self>,
        inode: InodeNumber,
        attributes: Attributes,
    ) -> Result<Inode> {
        let sets_modified = attributes.modified.is_some();
        self.decide_attributes(inode, sets_modified, move |_| Some(attributes)).await
    }

    /// Sets the attributes that `decide` returns for the present ones, within one turn; `None` changes
    /// nothing. `sets_modified` is true if they may include the modification time.
    ///
    /// # Errors
    /// As [`set_attributes`](Self::set_attributes).
    pub(crate) async fn decide_attributes(
        self: &Rc<Self>,
        inode: InodeNumber,
        sets_modified: bool,
        decide: impl Fn(&Inode) -> Option<Attributes> + Clone + 'static,
    ) -> Result<Inode> {
        // A write in flight sets the time when its record is written, so the file is locked.
        let node = sets_modified.then(|| self.node(inode));
        let _held = match &node {
            Some(node) => Some(node.lock.ask(0..u64::MAX).await),
            None => None,
        };
        loop {
            if let Some(stripes) = self.shards().striped().find(inode) {
                self.set_attributes_with_stripes(inode, &stripes, decide.clone()).await?;
                return self.inode(inode);
            }
            let decide = |metadata: &Metadata| {
                let attributes = decide(&metadata.inode(inode)?).map(with_time);
                if self.shards().striped().has(inode) {
                    return Ok(None);
                }
                let changes = attributes.map(|attributes| Change::set(inode, attributes));
                Ok(Some(((), changes.into_iter().collect())))
            };
            if let Some(((), ticket)) = self.change_here(decide).await? {
                self.note(&[inode], ticket);
                return self.inode(inode);
            }
        }
    }

    /// Sets attributes of a directory and of its stripes.
    async fn set_attributes_with_stripes(
        self: &Rc<Self>,
        directory: InodeNumber,
        stripes: &Stripes,
        decide: impl Fn(&Inode) -> Option<Attributes> + 'static,
    ) -> Result<()> {
        let mut inodes = vec![directory];
        inodes.extend(stripes.all());
        let all = inodes.clone();
        let decide = move |view: &View| {
            let Some(attributes) = decide(&view.metadata.inode(directory)?).map(with_time) else {
                return Ok(Some(((), Changes::new())));
            };
            // Stripes of a removed directory no longer exist.
            let there = all.iter().filter(|inode| view.metadata.inode(**inode).is_ok());
            Ok(Some(((), there.map(|inode| Change::set(*inode, attributes)).collect())))
        };
        joint::jointly(self, Wanted { inodes, ..Wanted::default() }, decide).await.map(drop)
    }

    pub(crate) fn check_regular(&self, inode: InodeNumber) -> Result<Inode> {
        let file = self.inode(inode)?;
        match file.file_type() {
            FileType::Regular => Ok(file),
            FileType::Directory => {
                Err(Error::from_errno(libc::EISDIR, format!("inode {inode} is a directory")))
            }
            _ => Err(Error::invalid(format!("inode {inode} isn't a regular file"))),
        }
    }

    /// Sets the size of a file: removes the data after it, or adds zeros.
    ///
    /// # Errors
    /// EFBIG, EISDIR, [`Error::Invalid`]; errors of [`write`](Self::write) if the new end is within a block.
    pub async fn truncate(self: &Rc<Self>, node: &Rc<Node>, size: u64) -> Result<()> {
        end_of(size, 0)?;
        self.check_regular(node.inode)?;
        self.cut_out(node, Cut::From(size), Times::Present).await
    }

    /// Frees the blocks of a range, which then reads as zeros.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub(crate) async fn punch(
        self: &Rc<Self>,
        node: &Rc<Node>,
        range: Range<u64>,
        times: Times,
    ) -> Result<()> {
        self.check_regular(node.inode)?;
        match range.is_empty() {
            true => Ok(()),
            false => self.cut_out(node, Cut::Range(range), times).await,
        }
    }

    /// Reserves space for later writes to a range. With `grows`, raises the size of the file to at least the
    /// end of the range.
    ///
    /// # Errors
    /// EFBIG, [`Error::NoSpace`].
    pub(crate) async fn preallocate(
        self: &Rc<Self>,
        node: &Rc<Node>,
        range: Range<u64>,
        grows: bool,
        times: Times,
    ) -> Result<()> {
        let inode = node.inode;
        self.check_regular(inode)?;
        end_of(range.start, range.end - range.start)?;
        let (from, to) = (range.start / BLOCK, range.end.div_ceil(BLOCK));
        let _held = node.lock.ask(from..to).await;
        let decide = |metadata: &Metadata| {
            metadata.inode(inode)?;
            let mut wanted = to - from;
            for extent in extents(&metadata.items, inode, from..to) {
                wanted -= u64::from(extent?.part(&(from..to)).blocks);
            }
            if wanted > 0 {
                self.admission.check_space(wanted)?;
            }
            let mut changes: Changes = smallvec![Change::Preallocate { inode, from, to }];
            if grows {
                // Writes in flight to other blocks may raise the size further.
                changes.push(Change::Grow { inode, size: range.end });
            }
            if let Some(changed) = times.to_set() {
                let attributes = Attributes { changed: Some(changed), ..Attributes::default() };
                changes.push(Change::set(inode, attributes));
            }
            Ok(((), changes))
        };
        let ((), ticket) = self.change(decide).await?;
        node.note(ticket);
        Ok(())
    }

    /// First offset at or after `offset` with data (`SEEK_DATA`) or, if `data` is false, in a hole
    /// (`SEEK_HOLE`).
    ///
    /// # Errors
    /// ENXIO if `offset` isn't below the size of the file, or if no data follows.
    pub fn seek(&self, inode: InodeNumber, offset: u64, data: bool) -> Result<u64> {
        seek(&self.metadata.borrow(), inode, offset, data)
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
    /// As `attributes::set`; [`Error::NoSpace`].
    pub async fn set_attribute(
        &self,
        inode: InodeNumber,
        name: &[u8],
        value: &[u8],
        setting: attributes::Setting,
    ) -> Result<()> {
        self.admission.check_space_for_operation()?;
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

    /// Sizes and counts of the file system.
    pub fn statistics(&self) -> Statistics {
        let (blocks, used) = (self.admission.capacity(), self.admission.used());
        let inodes = self.totals().sum(|used| &used.inodes);
        Statistics { blocks, free: blocks.saturating_sub(used), inodes, replayed: self.opened.replayed }
    }
}

/// Adds the time of the last change of the inode: the present, unless it is given.
fn with_time(attributes: Attributes) -> Attributes {
    Attributes { changed: attributes.changed.or(Some(now())), ..attributes }
}

/// Returns the next changes that remove an inode, and whether they are the last.
fn next_removal(metadata: &Metadata, inode: InodeNumber) -> Result<(Changes, bool)> {
    // A stripe that isn't in use, or a directory with leftovers, still has names.
    let names = directory::removal(&metadata.items, inode, NAMES_REMOVED_AT_ONCE);
    if !names.is_empty() {
        return Ok((names, false));
    }
    let mut blocks = 0_u64;
    let mut end = 0;
    for extent in extents(&metadata.items, inode, 0..u64::MAX).take(REMOVED_AT_ONCE) {
        let extent = extent?;
        blocks += 1;
        end = extent.end();
    }
    let is_last = (blocks as usize) < REMOVED_AT_ONCE;
    let mut changes: Changes = match is_last {
        true => smallvec![Change::Remove { inode }, Change::Delete { key: orphan(inode) }],
        false => smallvec![Change::Unmap { inode, from: 0, to: end }],
    };
    if is_last && stripes::read(&metadata.items, inode)?.is_some() {
        changes.push(Change::Delete { key: stripes::key(inode) });
    }
    Ok((changes, is_last))
}
