//! Copies of ranges of files: blocks are shared where that is possible, and other data is copied.
//!
//! Whole blocks of 4 KiB are shared, between files of one inode group or within one file, if both ranges
//! have the same offset within a block. A partial last block of the source is shared if the target file
//! also ends there. A block with `MAX_OWNERS` owners is copied.
//!
//! Writes in flight to either range take effect before its blocks are shared; later writes take effect after.
//! One step shares up to [`EXTENTS_AT_ONCE`] extents, and is atomic over a power cut. Another write may take
//! effect between two steps.

use crate::classes::fair_queue::ClassNumber;
use crate::core::{Core, Times};
use crate::data::node::Node;
use crate::format::BLOCK;
use crate::metadata::Metadata;
use crate::metadata::change::{Change, Changes};
use crate::metadata::extents::extents;
use crate::metadata::inode::{InodeNumber, end_of};
use crate::metadata::shared::{shareable, unshareable};
use block::{Error, Result};
use runtime::range_lock::RangeGuard;
use smallvec::smallvec;
use std::ops::Range;
use std::rc::Rc;

/// Bytes of one copy step.
const COPIED_AT_ONCE: u64 = 1 << 20;
/// Most extents that are shared in one turn of the shard.
pub const EXTENTS_AT_ONCE: usize = 512;
/// Approximate number of extents whose items take a page of the tree.
const EXTENTS_PER_PAGE: u64 = 32;

/// Outcome of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cloned {
    /// Number of bytes from the beginning of the range that were copied or shared.
    pub bytes: u64,
    /// Number of these bytes that both files share, holes included; the others were copied.
    pub shared: u64,
}

/// A range to copy to another file, or within a file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Copied {
    /// Class in whose turns data is read and written.
    pub class: ClassNumber,
    /// The source.
    pub from: InodeNumber,
    /// First byte in the source.
    pub from_offset: u64,
    /// First byte in the other file.
    pub to_offset: u64,
    /// Number of bytes.
    pub length: u64,
}

impl Copied {
    /// Returns the rest of the range after a number of bytes.
    fn after(self, bytes: u64) -> Self {
        let (from_offset, to_offset) = (self.from_offset + bytes, self.to_offset + bytes);
        Copied { from_offset, to_offset, length: self.length - bytes, ..self }
    }

    /// Whether both ranges have the same offset within a block.
    fn is_even(&self) -> bool {
        self.from_offset % BLOCK == self.to_offset % BLOCK
    }

    /// Blocks of both ranges, which begin at block boundaries.
    fn blocks(&self) -> (Range<u64>, Range<u64>) {
        let count = self.length.div_ceil(BLOCK);
        let (from, to) = (self.from_offset / BLOCK, self.to_offset / BLOCK);
        (from..from + count, to..to + count)
    }
}

/// Copies a range of a file to a file of this shard, as copy_file_range(2) does. Ends at the end of the
/// source, or after `most_copied` bytes that couldn't be shared.
///
/// # Errors
/// EISDIR; [`Error::Invalid`] for overlapping ranges of one file, and for other than regular files;
/// EFBIG, [`Error::NoSpace`]; errors of [`read`](Core::read). If an error occurs after some bytes, the
/// number of these bytes is returned instead.
pub(crate) async fn copy_range(
    core: &Rc<Core>,
    node: &Rc<Node>,
    copied: Copied,
    most_copied: u64,
    times: Times,
) -> Result<Cloned> {
    let source = core.shards().of(copied.from);
    let from = copied.from;
    let regular = move |core: Rc<Core>| async move { core.check_regular(from).map(|inode| inode.size) };
    let size = source.with(regular).await?;
    core.check_regular(node.inode)?;
    let length = copied.length.min(size.saturating_sub(copied.from_offset));
    let all = Copied { length, ..copied };
    end_of(all.to_offset, length)?;
    let is_apart = all.from_offset + length <= all.to_offset || all.to_offset + length <= all.from_offset;
    if from == node.inode && !is_apart {
        return Err(Error::invalid(format!(
            "inode {from}: copy of {length} bytes from byte {} to byte {}: the ranges overlap; expected disjoint ranges within one file",
            all.from_offset, all.to_offset
        )));
    }
    let mut done = Cloned::default();
    while done.bytes < length && done.bytes - done.shared < most_copied {
        match copy_step(core, node, all.after(done.bytes), times).await {
            Ok(Cloned { bytes: 0, .. }) => break,
            Ok(step) => {
                done.bytes += step.bytes;
                done.shared += step.shared;
            }
            Err(_) if done.bytes > 0 => break,
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

/// Shares as much of the rest as possible, or else copies a part of it.
async fn copy_step(core: &Rc<Core>, node: &Rc<Node>, rest: Copied, times: Times) -> Result<Cloned> {
    let group_of = |inode| core.metadata.borrow().items.group_of(inode);
    let may_share = rest.is_even() && group_of(rest.from) == group_of(node.inode);
    let until_block = match may_share {
        true => rest.from_offset.next_multiple_of(BLOCK) - rest.from_offset,
        false => 0,
    };
    if may_share && until_block == 0 {
        let shared = share_blocks(core, node, rest, times).await?;
        if shared > 0 {
            return Ok(Cloned { bytes: shared, shared });
        }
    }
    let piece = match may_share {
        // After this part, both ranges continue at a block boundary.
        true if until_block > 0 => rest.length.min(until_block),
        // A partial block, or blocks with the greatest number of owners.
        true => rest.length.min(unshareable_bytes(core, rest)?),
        false => rest.length.min(COPIED_AT_ONCE),
    };
    let Copied { class, from, from_offset: offset, .. } = rest;
    let read =
        move |core: Rc<Core>| async move { core.read_in(class, None, from, offset, piece as usize).await };
    let data = core.shards().of(from).with(read).await?;
    let bytes = data.len() as u64;
    match times {
        Times::Kept => core.write_back(node, rest.to_offset, data).await?,
        Times::Present => core.write(class, node, rest.to_offset, data).await?,
    }
    Ok(Cloned { bytes, shared: 0 })
}

/// Returns the number of bytes before the next block that may be shared: at least one block, at most
/// [`COPIED_AT_ONCE`].
fn unshareable_bytes(core: &Core, rest: Copied) -> Result<u64> {
    let metadata = core.metadata.borrow();
    let (from, _) = rest.blocks();
    let range = from.start..from.end.min(from.start + COPIED_AT_ONCE / BLOCK);
    let mut end = range.start;
    for extent in extents(&metadata.items, rest.from, range.clone()) {
        let part = extent?.part(&range);
        if part.block == end {
            end += u64::from(unshareable(&metadata.items, rest.from, &part)?);
        }
        if end < part.end() {
            break;
        }
    }
    Ok((end - range.start).max(1) * BLOCK)
}

/// Locks the blocks of both files, in the same order for all callers. Also holds the source's node: a
/// file that isn't in use would get another lock.
async fn lock_both(
    core: &Core,
    node: &Rc<Node>,
    copied: &Copied,
) -> (RangeGuard, Option<RangeGuard>, Rc<Node>) {
    let (from, to) = copied.blocks();
    let source = core.node(copied.from);
    if copied.from == node.inode {
        // One lock covers both ranges: with two, requests could deadlock on each other's second lock.
        let all = from.start.min(to.start)..from.end.max(to.end);
        return (node.lock.ask(all).await, None, source);
    }
    let (first, second) = match copied.from < node.inode {
        true => (source.lock.ask(from).await, node.lock.ask(to).await),
        false => (node.lock.ask(to).await, source.lock.ask(from).await),
    };
    (first, Some(second), source)
}

/// Shares blocks from the beginning of a range up to the first block that can't be shared. Returns the
/// number of bytes.
async fn share_blocks(core: &Rc<Core>, node: &Rc<Node>, rest: Copied, times: Times) -> Result<u64> {
    core.set_back(node, times).await?;
    core.admission.gate.pass().await;
    let _held = lock_both(core, node, &rest).await;
    let mut done = 0;
    while done < rest.length {
        let decide = |metadata: &Metadata| {
            let piece = Piece::next(metadata, node.inode, rest.after(done))?;
            if piece.blocks == 0 {
                return Ok((0, Changes::new()));
            }
            core.admission.check_space_for_operation()?;
            core.admission.check_space(1 + piece.extents / EXTENTS_PER_PAGE)?;
            let (from, to) = rest.after(done).blocks();
            let share = Change::Share {
                inode: node.inode,
                block: to.start,
                count: piece.blocks,
                from_inode: rest.from,
                from_block: from.start,
                size: rest.to_offset + done + piece.bytes,
                modified: times.of_change(),
            };
            Ok((piece.bytes, smallvec![share]))
        };
        match core.change(decide).await {
            Ok((0, _)) => break,
            Ok((bytes, ticket)) => {
                node.note(ticket);
                done += bytes;
            }
            Err(_) if done > 0 => break,
            Err(error) => return Err(error),
        }
        runtime::yield_now().await;
    }
    Ok(done)
}

/// Blocks that are shared in one turn of the shard.
#[derive(Debug, Default)]
struct Piece {
    blocks: u64,
    /// Bytes of these blocks.
    bytes: u64,
    /// Number of extents of the source in these blocks.
    extents: u64,
}

impl Piece {
    /// Returns the first blocks of a range that can be shared in one turn.
    fn next(metadata: &Metadata, inode: InodeNumber, rest: Copied) -> Result<Self> {
        let (source, target) = (metadata.inode(rest.from)?, metadata.inode(inode)?);
        let length = rest.length.min(source.size.saturating_sub(rest.from_offset));
        let ends_both = rest.from_offset + length == source.size && rest.to_offset + length >= target.size;
        // A partial block is copied unless both files end in it.
        let length = if ends_both { length } else { length / BLOCK * BLOCK };
        let (from, _) = Copied { length, ..rest }.blocks();
        let (mut end, mut count) = (from.end, 0);
        for extent in extents(&metadata.items, rest.from, from.clone()) {
            let part = extent?.part(&from);
            count += 1;
            let most = shareable(&metadata.items, rest.from, &part)?;
            if most < part.blocks {
                end = part.block + u64::from(most);
                break;
            }
            if count as usize == EXTENTS_AT_ONCE {
                end = part.end();
                break;
            }
        }
        let blocks = end - from.start;
        Ok(Piece { blocks, bytes: length.min(blocks * BLOCK), extents: count })
    }
}
