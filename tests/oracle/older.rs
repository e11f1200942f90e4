//! An older state: contents that a power cut could have left at this moment or at an earlier one.
//!
//! A device without the cache above it may lag behind, but must be in such a state: no write may be visible
//! that was submitted after a flush, unless everything is there that the flush had made durable. The earliest
//! possible moment is right after the submission of the newest visible write. Zeros don't identify a write,
//! so later moments are tried as well.

use layers::record::replay::{Cursor, History, Mismatch};
use std::sync::Arc;

/// Checks the contents of a client's device against the cuts up to `cut`.
///
/// # Errors
/// The mismatch with the state at the earliest possible cut, with the cursor there.
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
