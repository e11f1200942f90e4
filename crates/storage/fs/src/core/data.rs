//! Reading and writing the data of files.
//!
//! A write of whole blocks goes to the log unchanged. A write of partial blocks reads the rest of these
//! blocks first. The blocks of a write are locked, so overlapping writes take effect one after the other.
//! Reads take no lock, and see each block as before or after a write.

use crate::classes::fair_queue::{ClassNumber, DEFAULT};
use crate::core::{Core, Times, now};
use crate::data::cut::Cut;
use crate::data::node::{Appending, Node};
use crate::format::BLOCK;
use crate::metadata::Metadata;
use crate::metadata::change::{Attributes, Change, Changes};
use crate::metadata::extents::{Extent, extents};
use crate::metadata::inode::{InodeNumber, end_of};
use crate::metadata::versions::SnapshotNumber;
use block::{Buffer, Data, Error, Payload, Result};
use std::ops::Range;
use std::rc::Rc;

/// Most blocks of one read of the medium: 1 MiB. A longer buffer would be rounded up to a power of two; with
/// pieces, one is verified while others are read.
const READ_BLOCKS: u64 = 256;

impl Core {
    /// Writes to a file. Reads see the data when this returns.
    ///
    /// # Errors
    /// EFBIG, [`Error::NoSpace`]; errors of reading the rest of a block; the failure of the log.
    pub async fn write(
        self: &Rc<Self>,
        class: ClassNumber,
        node: &Rc<Node>,
        offset: u64,
        data: Payload,
    ) -> Result<()> {
        let end = end_of(offset, data.len() as u64)?;
        if data.is_empty() {
            return Ok(());
        }
        self.write_range(Some(class), node, offset, data, (end, Times::Present), None).await.map(drop)
    }

    /// Writes data that a kernel had cached. Differs from [`write`](Self::write) in that the times of the
    /// file stay unchanged: the kernel sets them.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub async fn write_back(self: &Rc<Self>, node: &Rc<Node>, offset: u64, data: Payload) -> Result<()> {
        let end = end_of(offset, data.len() as u64)?;
        match data.is_empty() {
            true => Ok(()),
            false => {
                self.write_range(Some(DEFAULT), node, offset, data, (end, Times::Kept), None).await.map(drop)
            }
        }
    }

    /// Appends to a file. Concurrent appends get consecutive ranges. Returns the offset.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub async fn append_to(
        self: &Rc<Self>,
        class: ClassNumber,
        node: &Rc<Node>,
        data: Payload,
    ) -> Result<u64> {
        // The turn is taken before the offset is chosen: an append of another class may overtake this one
        // without leaving a hole.
        let _turn = self.admission.classes.take(class, data.len() as u64).await;
        loop {
            let size = self.metadata.borrow().inode(node.inode)?.size;
            let offset = if node.appends.get() > 0 { size.max(node.end.get()) } else { size };
            let end = end_of(offset, data.len() as u64)?;
            if data.is_empty() {
                return Ok(offset);
            }
            let appending = node.begin_append(offset..end);
            let size = (end, Times::Present);
            let written = self.write_range(None, node, offset, data.clone(), size, Some(&appending));
            if written.await? {
                return Ok(offset);
            }
        }
    }

    /// Writes data in the turn of a class, unless the request already has a turn, and raises the size of the
    /// file to at least `size` bytes. Returns false without a write for an append whose offset isn't the end
    /// of the file once the range is locked.
    async fn write_range(
        self: &Rc<Self>,
        class: Option<ClassNumber>,
        node: &Rc<Node>,
        offset: u64,
        data: Payload,
        (size, times): (u64, Times),
        appending: Option<&Appending<'_>>,
    ) -> Result<bool> {
        let range = offset..offset + data.len() as u64;
        let whole = range.start / BLOCK * BLOCK..range.end.div_ceil(BLOCK) * BLOCK;
        let blocks = (whole.end - whole.start) / BLOCK;
        self.set_back(node, times).await?;
        let permit = self.admission.admit_data(class, blocks).await;
        self.admission.gate.pass().await;
        let first = whole.start / BLOCK;
        let held = node.lock.ask(first..first + blocks).await;
        self.check_open()?;
        if let Some(appending) = appending
            && appending.is_misplaced(self.metadata.borrow().inode(node.inode)?.size)
        {
            return Ok(false);
        }
        self.check_growth(node.inode, first..first + blocks)?;
        let data = match whole == range {
            true => data,
            false => {
                let data = self.fill_up(node.inode, &range, &whole, &data).await?;
                // Other writes may have taken the space while this one waited.
                self.check_growth(node.inode, first..first + blocks)?;
                data
            }
        };
        if let Some(appending) = appending {
            appending.is_being_queued();
        }
        let modified = times.of_change();
        let change = Change::Map { inode: node.inode, block: first, blocks: blocks as u32, size, modified };
        let ticket = self.queue_write(Changes::from_elem(change, 1), data, permit, held).await?;
        node.note(ticket);
        Ok(true)
    }

    /// Sets the modification time of a file to the present if it is ahead of the clock and `times` are to be
    /// set. Changes of the data only raise this time, because their order in memory differs from that of a
    /// replay.
    pub(crate) async fn set_back(&self, node: &Node, times: Times) -> Result<()> {
        let is_ahead = || Ok::<_, Error>(self.metadata.borrow().inode(node.inode)?.modified > now());
        if times == Times::Kept || !is_ahead()? {
            return Ok(());
        }
        // With the whole file locked, no write is in flight: each write's time is set before or after this
        // one.
        let _held = node.lock.ask(0..u64::MAX).await;
        let decide = |metadata: &Metadata| {
            let now = now();
            let set = Attributes { modified: Some(now), changed: Some(now), ..Attributes::default() };
            let is_ahead = metadata.inode(node.inode)?.modified > now;
            let changes = is_ahead.then(|| Change::set(node.inode, set));
            Ok(((), changes.into_iter().collect::<Changes>()))
        };
        let ((), ticket) = self.change(decide).await?;
        node.note(ticket);
        Ok(())
    }

    /// Refuses a write that needs more space than is free; blocks that it replaces need none.
    fn check_growth(&self, inode: InodeNumber, blocks: Range<u64>) -> Result<()> {
        self.check_memory_for_extent(inode, &blocks)?;
        let count = blocks.end - blocks.start;
        if self.admission.check_space(count).is_ok() {
            return Ok(());
        }
        let metadata = self.metadata.borrow();
        let mut replaced = 0;
        for extent in extents(&metadata.items, inode, blocks.clone()) {
            replaced += metadata.freed_by(inode, &extent?.part(&blocks))?;
        }
        drop(metadata);
        match count - replaced {
            0 => Ok(()),
            more => self.admission.check_space(more),
        }
    }

    /// Refuses a write that adds an extent when the memory for metadata is used up: a file system that needs
    /// more than its budget can't be opened again. A write that replaces whole extents needs no memory.
    fn check_memory_for_extent(&self, inode: InodeNumber, blocks: &Range<u64>) -> Result<()> {
        let Err(error) = self.admission.check_memory(32) else { return Ok(()) };
        let metadata = self.metadata.borrow();
        let mut replaced = 0;
        for extent in extents(&metadata.items, inode, blocks.clone()) {
            let extent = extent?;
            let (first, end) = (extent.block, extent.block + u64::from(extent.blocks));
            replaced += u64::from(extent.blocks);
            if first < blocks.start || end > blocks.end || extent.is_preallocated() {
                return Err(error);
            }
        }
        match replaced == blocks.end - blocks.start {
            true => Ok(()),
            false => Err(error),
        }
    }

    /// Extends data for a part of `whole` with the present contents of the rest.
    async fn fill_up(
        &self,
        inode: InodeNumber,
        range: &Range<u64>,
        whole: &Range<u64>,
        data: &Payload,
    ) -> Result<Payload> {
        let mut buffer = Buffer::new((whole.end - whole.start) as usize);
        if whole.start < range.start {
            self.append_old(inode, whole.start..range.start, &mut buffer).await?;
        }
        data.slices().iter().for_each(|slice| buffer.append(slice));
        if range.end < whole.end {
            debug_assert!(whole.end - range.end < BLOCK);
            self.append_old(inode, range.end..whole.end, &mut buffer).await?;
        }
        Ok(buffer.freeze().into())
    }

    /// Appends the contents of a range of a file to a buffer; bytes after the end of the file are zeros.
    async fn append_old(&self, inode: InodeNumber, range: Range<u64>, buffer: &mut Buffer) -> Result<()> {
        let wanted = (range.end - range.start) as usize;
        let old = self.read_version(None, inode, range.start, wanted).await?;
        old.slices().iter().for_each(|slice| buffer.append(slice));
        buffer.append_zeroes(wanted - old.len());
        Ok(())
    }

    /// Reads `length` bytes of a file, or fewer at its end.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for data with a wrong checksum; errors of reading.
    pub async fn read(&self, inode: InodeNumber, offset: u64, length: usize) -> Result<Payload> {
        self.read_in(DEFAULT, None, inode, offset, length).await
    }

    /// Reads as [`read`](Self::read) does, in the turn of a class, from a snapshot or, with `None`, the
    /// present version.
    ///
    /// # Errors
    /// As [`read_version`](Self::read_version).
    pub async fn read_in(
        &self,
        class: ClassNumber,
        version: Option<SnapshotNumber>,
        inode: InodeNumber,
        offset: u64,
        length: usize,
    ) -> Result<Payload> {
        // Programs may pass a huge length to read the whole file.
        let size = self.in_version(version, |metadata| metadata.inode(inode))?.size;
        let length = length.min(usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX));
        // The turn is taken before zones are kept from being reset: writes that wait for zones hold turns.
        let _turn = self.admission.classes.take(class, length as u64).await;
        self.read_version(version, inode, offset, length).await
    }

    /// Reads as [`read_in`](Self::read_in) does, without a turn.
    ///
    /// # Errors
    /// As [`read`](Self::read); ESTALE for a deleted snapshot.
    pub async fn read_version(
        &self,
        version: Option<SnapshotNumber>,
        inode: InodeNumber,
        offset: u64,
        length: usize,
    ) -> Result<Payload> {
        // No zone is reset between the lookup and the end of the reads.
        let _reading = self.reader.reads.begin();
        let (end, parts) = self.in_version(version, |metadata| parts(metadata, inode, offset, length))?;
        if offset >= end {
            return Ok(Payload::new());
        }
        let reads = parts.iter().map(|extent| self.reader.read_extent(inode, extent));
        let mut payload = Payload::with_capacity(2 * parts.len() + 1);
        let mut at = offset;
        let mut push = |data: Data, range: Range<u64>, at: &mut u64| {
            let (from, to) = (range.start.max(offset), range.end.min(end));
            payload.push(data.slice((from - range.start) as usize..(to - range.start) as usize));
            *at = to;
        };
        let hole = |at: u64, to: u64| Buffer::zeroed((to - at) as usize).freeze();
        for (extent, data) in parts.iter().zip(runtime::join_all(reads).await) {
            let range = extent.block * BLOCK..extent.end() * BLOCK;
            if at < range.start {
                push(hole(at, range.start), at..range.start, &mut at);
            }
            push(data?, range, &mut at);
        }
        if at < end {
            push(hole(at, end), at..end, &mut at);
        }
        Ok(payload)
    }

    /// Truncates a file, or punches a hole ([`Cut`]).
    pub(crate) async fn cut_out(self: &Rc<Self>, node: &Rc<Node>, cut: Cut, times: Times) -> Result<()> {
        let (inode, blocks) = (node.inode, cut.blocks());
        self.set_back(node, times).await?;
        let permit = self.admission.admit_data(None, 2).await;
        self.admission.gate.pass().await;
        let held = node.lock.ask(cut.touched()).await;
        self.check_open()?;
        let size = self.metadata.borrow().inode(inode)?.size;
        let (mut changes, mut data) = (Changes::new(), Payload::new());
        for (block, zeros) in cut.edges() {
            if block * BLOCK + zeros.start as u64 >= size || !self.is_mapped(inode, block)? {
                continue;
            }
            let mut buffer = Buffer::new(BLOCK as usize);
            self.append_old(inode, block * BLOCK..(block + 1) * BLOCK, &mut buffer).await?;
            buffer.filled_mut()[zeros].fill(0);
            data.push(buffer.freeze());
            changes.push(Change::Map { inode, block, blocks: 1, size: 0, modified: times.of_change() });
        }
        let is_any = extents(&self.metadata.borrow().items, inode, blocks.clone()).next().is_some();
        if is_any && !blocks.is_empty() {
            changes.push(Change::Unmap { inode, from: blocks.start, to: blocks.end });
        }
        let size = cut.size();
        let set = times.to_set();
        let attributes = Attributes { size, modified: set, changed: set, ..Attributes::default() };
        changes.push(Change::set(inode, attributes));
        if let Some(size) = size {
            node.was_cut(size);
        }
        let ticket = match data.is_empty() {
            true => {
                let ticket = self.submit(changes, Some(self.admit().await?))?;
                drop(held);
                ticket
            }
            false => self.queue_write(changes, data, permit, held).await?,
        };
        if let Some(size) = size {
            // Appends that began meanwhile have read the old size.
            node.was_cut(size);
        }
        node.note(ticket);
        Ok(())
    }

    /// Whether a block of a file has data.
    fn is_mapped(&self, inode: InodeNumber, block: u64) -> Result<bool> {
        let metadata = self.metadata.borrow();
        let extent = extents(&metadata.items, inode, block..block + 1).next().transpose()?;
        Ok(extent.is_some_and(|extent| !extent.is_preallocated()))
    }
}

/// Returns the end of a read, at most the end of the file, and the extents with data before it, in pieces of
/// at most [`READ_BLOCKS`] blocks.
fn parts(metadata: &Metadata, inode: InodeNumber, offset: u64, length: usize) -> Result<(u64, Vec<Extent>)> {
    let end = offset.saturating_add(length as u64).min(metadata.inode(inode)?.size);
    let blocks = offset / BLOCK..end.div_ceil(BLOCK);
    if offset >= end {
        return Ok((end, Vec::new()));
    }
    let mut parts = Vec::new();
    for extent in extents(&metadata.items, inode, blocks.clone()) {
        let part = extent?.part(&blocks);
        if !part.is_preallocated() {
            let pieces = (part.block..part.end()).step_by(READ_BLOCKS as usize);
            parts.extend(pieces.map(|from| part.part(&(from..from + READ_BLOCKS))));
        }
    }
    Ok((end, parts))
}
