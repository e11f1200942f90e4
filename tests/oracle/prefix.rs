//! Prefix consistency: the contents are the result of some prefix of the operations, in an order that agrees
//! with all that the client could observe.
//!
//! An operation that had completed before another was submitted precedes it. So all operations that had
//! completed before the newest visible one was submitted must be visible, unless a later one replaced them.
//! For a client with one operation at a time this is the whole rule; concurrent operations may have any
//! order. Zeros can be the result of several operations, and so don't say which of them happened.

use super::stamp;
use layers::record::replay::{History, Operation};
use std::collections::BTreeMap;

/// Checks the contents of a client's device: those of each group of blocks.
///
/// # Errors
/// The missing operation, and the later one that was found.
pub(super) fn check(history: &History, contents: &[u8], group_of: fn(u64) -> u32) -> Result<(), String> {
    let size = history.geometry().block_size;
    let mut groups: BTreeMap<u32, Vec<(u64, &[u8])>> = BTreeMap::new();
    for (block, bytes) in (0..).zip(contents.chunks_exact(size.bytes() as usize)) {
        groups.entry(group_of(block)).or_default().push((block, bytes));
    }
    groups.values().try_for_each(|blocks| check_group(history, blocks))
}

fn check_group(history: &History, blocks: &[(u64, &[u8])]) -> Result<(), String> {
    let size = history.geometry().block_size;
    let holds = |operation: &Operation, block: u64, found: &[u8]| {
        let start = block << size.shift();
        let covers = operation.range.start <= start && start + size.bytes() <= operation.range.end;
        let mut bytes = vec![0; found.len()];
        covers && {
            operation.copy_to(start, &mut bytes);
            bytes == found
        }
    };
    // The newest visible write; every write has unique contents.
    let mut newest: Option<&Operation> = None;
    for (block, found) in blocks.iter().filter(|(_, found)| found.iter().any(|byte| *byte != 0)) {
        let mut writes = history.operations().iter().filter(|operation| !operation.is_zeros());
        let write = writes.find(|operation| holds(operation, *block, found));
        if let Some(write) = write
            && newest.is_none_or(|newest| newest.submitted < write.submitted)
        {
            newest = Some(write);
        }
    }
    let Some(newest) = newest else { return Ok(()) };
    for (block, found) in blocks {
        let start = block << size.shift();
        let touching: Vec<&Operation> =
            history.operations().iter().filter(|operation| operation.range.contains(&start)).collect();
        // Operations that must have happened replace earlier contents.
        let must: Vec<&&Operation> =
            touching.iter().filter(|operation| operation.is_before(newest)).collect();
        let is_gone = |operation: &Operation| must.iter().any(|later| operation.is_before(later));
        let is_legal =
            touching.iter().any(|operation| !is_gone(operation) && holds(operation, *block, found));
        let is_untouched = must.is_empty() && found.iter().all(|byte| *byte == 0);
        if !is_legal && !is_untouched {
            return Err(format!(
                "no prefix: block {block} holds {}, and what was submitted in event {} is there, before which {} \
                 operations on this block had completed",
                stamp::describe(found),
                newest.submitted,
                must.len()
            ));
        }
    }
    Ok(())
}
