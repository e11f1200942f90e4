//! Prefix consistency: the contents are what some prefix of the operations left, in an order that keeps whatever the client
//! could know of it.
//!
//! An operation that had completed before another was submitted stands before it. So of the newest submission that is to
//! be seen, everything that had completed before it is there, too, or something later in its place. For a client with
//! one operation at a time this is all there is to say; with more, concurrent ones may stand in any order. Zeros can
//! come from several operations, and say nothing about which of them happened.

use super::stamp;
use layers::record::replay::{History, Operation};

/// Checks all of a client's device.
///
/// # Errors
/// What is missing, and what was found that came later.
pub(super) fn check(history: &History, contents: &[u8]) -> Result<(), String> {
    let size = history.geometry().block_size;
    let blocks: Vec<(u64, &[u8])> = (0..).zip(contents.chunks_exact(size.bytes() as usize)).collect();
    let holds = |operation: &Operation, block: u64, found: &[u8]| {
        let start = block << size.shift();
        let covers = operation.range.start <= start && start + size.bytes() <= operation.range.end;
        let mut bytes = vec![0; found.len()];
        covers && {
            operation.copy_to(start, &mut bytes);
            bytes == found
        }
    };
    // The newest of what is to be seen; every write has contents of its own.
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
    for (block, found) in &blocks {
        let start = block << size.shift();
        let touching: Vec<&Operation> =
            history.operations().iter().filter(|operation| operation.range.contains(&start)).collect();
        // What must have happened takes the place of what was before it.
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
