//! An older state: the contents are what a power cut could have left, if not at this moment, then at an earlier one.
//!
//! What a device holds without the cache in front of it may lag behind, but must be such a state: nothing may be there
//! that was submitted after a flush, without all that the flush had made durable. The earliest such moment is right behind the
//! submission of the newest that is to be seen; zeros don't say what they come from, so later ones are tried, too.

use layers::record::replay::{Cursor, History, Mismatch};
use std::sync::Arc;

/// Checks all of a client's device against the cuts up to `cut`.
///
/// # Errors
/// Why it can't be the state at the earliest cut that is possible, with the cursor there.
pub(super) fn check(
    history: &Arc<History>,
    cut: u64,
    contents: &[u8],
) -> Result<(), Box<(Cursor, Mismatch)>> {
    let unit = history.geometry().atomic_write as usize;
    let mut newest = 0;
    let mut bytes = vec![0; unit];
    for (start, found) in (0..).step_by(unit).zip(contents.chunks_exact(unit)) {
        if found.iter().all(|byte| *byte == 0) {
            continue;
        }
        let writes = history.operations().iter().filter(|operation| !operation.is_zeros());
        for operation in writes.filter(|operation| operation.range.contains(&start)) {
            if operation.submitted < newest {
                continue;
            }
            operation.copy_to(start, &mut bytes);
            if bytes == found {
                newest = operation.submitted + 1;
            }
        }
    }
    let mut cursor = Cursor::new(history.clone());
    cursor.advance_to(newest.min(cut));
    let Err(first) = cursor.check(0, contents) else { return Ok(()) };
    let earliest = cursor.clone();
    while let Some(next) = cursor.next_change().filter(|next| *next <= cut) {
        cursor.advance_to(next);
        if cursor.check(0, contents).is_ok() {
            return Ok(());
        }
    }
    Err(Box::new((earliest, first)))
}
