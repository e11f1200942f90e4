//! Defragmentation of a file on request: runs of blocks that lie at several places are rewritten to one.
//!
//! The cleaner has the same effect, because it sorts its moves by file and block. Contents, times and holes
//! don't change. Shared blocks aren't moved: a rewritten copy would take space of its own.

use crate::classes::fair_queue::BACKGROUND;
use crate::core::Core;
use crate::core::entry::ATOMIC_BLOCKS;
use crate::data::node::Node;
use crate::format::BLOCK;
use crate::metadata::change::{Change, Changes, KEEP_TIMES};
use crate::metadata::extents::{Extent, extents};
use crate::metadata::inode::InodeNumber;
use block::Result;
use std::ops::Range;
use std::rc::Rc;

/// Most blocks of one rewrite.
const MAX_RUN: u64 = 256;

/// Number of fragments of a file: extents with data that aren't contiguous in a zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Fragments {
    /// Number before.
    pub before: u64,
    /// Number after.
    pub after: u64,
    /// Number of rewritten blocks.
    pub blocks: u64,
}

/// Returns the runs of these extents that are worth rewriting, in blocks of a file: contiguous in the file,
/// at several places, and at most `longest` blocks. The end of a zone may split a rewritten run, unless it is
/// short enough to be atomic.
fn fragmented(extents: impl IntoIterator<Item = Range<u64>>, longest: u64) -> Vec<Range<u64>> {
    let mut runs: Vec<(Range<u64>, u64)> = Vec::new();
    for extent in extents {
        let mut at = extent.start;
        while at < extent.end {
            let end = extent.end.min((at / longest + 1) * longest);
            match runs.last_mut() {
                Some((run, pieces)) if run.end == at && run.start / longest == at / longest => {
                    run.end = end;
                    *pieces += 1;
                }
                _ => runs.push((at..end, 1)),
            }
            at = end;
        }
    }
    let is_whole = |run: &Range<u64>| run.end - run.start <= u64::from(ATOMIC_BLOCKS);
    let is_worth_it = |(run, pieces): &(Range<u64>, u64)| *pieces > 2 || *pieces == 2 && is_whole(run);
    runs.into_iter().filter(is_worth_it).map(|(run, _)| run).collect()
}

/// Returns the ranges of a file that may be rewritten, one for each extent.
fn data_of(core: &Core, inode: InodeNumber, range: Range<u64>) -> Result<Vec<Range<u64>>> {
    let extents = extents_of(core, inode, range)?.into_iter().filter(|extent| !extent.is_shared);
    Ok(extents.map(|extent| extent.block..extent.end()).collect())
}

/// Returns the extents of a file with data, clipped to a range.
fn extents_of(core: &Core, inode: InodeNumber, range: Range<u64>) -> Result<Vec<Extent>> {
    let metadata = core.metadata.borrow();
    let mut found = Vec::new();
    for extent in extents(&metadata.items, inode, range.clone()) {
        let extent = extent?.part(&range);
        if !extent.is_preallocated() {
            found.push(extent);
        }
    }
    Ok(found)
}

/// Most blocks of one rewrite, limited by the size of a record.
fn longest_run(core: &Core) -> u64 {
    MAX_RUN.min(core.kit.settings.data_blocks.max(1).into())
}

/// Number of fragments of a file.
///
/// # Errors
/// ESTALE.
pub fn fragments(core: &Core, inode: InodeNumber) -> Result<u64> {
    core.inode(inode)?;
    Ok(extents_of(core, inode, 0..u64::MAX)?.len() as u64)
}

/// Rewrites the fragmented parts of a file.
///
/// # Errors
/// [`Error::NoSpace`](block::Error::NoSpace); as [`read`](Core::read).
pub async fn defragment(core: &Rc<Core>, node: &Rc<Node>) -> Result<Fragments> {
    core.check_regular(node.inode)?;
    let mut found = Fragments { before: fragments(core, node.inode)?, ..Fragments::default() };
    for run in fragmented(data_of(core, node.inode, 0..u64::MAX)?, longest_run(core)) {
        found.blocks += write_again(core, node, run).await?;
    }
    found.after = fragments(core, node.inode)?;
    Ok(found)
}

/// Rewrites a run of blocks without holes. Returns the number of blocks.
async fn write_again(core: &Rc<Core>, node: &Rc<Node>, run: Range<u64>) -> Result<u64> {
    let blocks = run.end - run.start;
    let permit = core.admission.admit_data(Some(BACKGROUND), blocks).await;
    let held = node.lock.ask(run.clone()).await;
    core.check_open()?;
    // The run may have changed before the lock was granted.
    if fragmented(data_of(core, node.inode, run.clone())?, longest_run(core)) != [run.clone()] {
        return Ok(0);
    }
    core.admission.check_space(blocks)?;
    let length = (blocks * BLOCK) as usize;
    let mut data = core.read_version(None, node.inode, run.start * BLOCK, length).await?;
    let missing = blocks * BLOCK - data.len() as u64;
    if missing > 0 {
        data.push(block::Buffer::zeroed(missing as usize).freeze());
    }
    let change = Change::Map {
        inode: node.inode,
        block: run.start,
        blocks: blocks as u32,
        size: 0,
        modified: KEEP_TIMES,
    };
    let ticket = core.queue_write(Changes::from_elem(change, 1), data, permit, held).await?;
    node.note(ticket);
    Ok(blocks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_in_several_places_are_written_again_and_holes_stay() {
        let runs = |extents: &[(u64, u64)]| {
            let ranges = extents.iter().map(|(from, to)| *from..*to);
            fragmented(ranges, 256).into_iter().map(|run| (run.start, run.end)).collect::<Vec<_>>()
        };
        assert_eq!(runs(&[(0, 1000)]), []);
        assert_eq!(runs(&[(0, 3), (3, 5), (6, 7)]), [(0, 5)]);
        assert_eq!(runs(&[(0, 3), (4, 5), (6, 7)]), []);
        assert_eq!(runs(&[(250, 300), (300, 302), (302, 310)]), [(256, 310)]);
        assert_eq!(runs(&[(0, 200), (200, 300), (300, 600), (600, 601), (601, 602)]), [(512, 602)]);
    }
}
