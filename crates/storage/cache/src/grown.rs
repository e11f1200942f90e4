//! An origin that has grown since the cache was last open.
//!
//! If the origin ended inside a cached part, the table has the whole part as valid, and the slot's bytes past
//! the old end are those of an earlier block. Before the first request these bytes are therefore copied from
//! the origin.

use crate::shape::Shape;
use crate::state::Entry;
use crate::table::{Medium, Table};
use block::{Durability, Result};

/// Largest copy at a time, in bytes.
const AT_ONCE: u64 = 1 << 20;

/// Copies the rest of the part in which an origin of `old` bytes ended, and makes it durable on both sides.
/// The caller records the new size afterwards; until then the next open repeats the copy.
///
/// # Errors
/// Errors of the devices.
pub(crate) async fn fill_last_part(
    fast: &Medium,
    slow: &Medium,
    table: &Table,
    shape: &Shape,
    old: u64,
) -> Result<()> {
    let (block, from) = (old / shape.block, old % shape.block);
    if from % shape.part == 0 {
        return Ok(());
    }
    let part = from / shape.part;
    let is_cached = |slot: &u32| {
        let entry = Entry::from_words(table.get(*slot));
        entry.block == block && entry.valid >> part & 1 != 0
    };
    let Some(slot) = (0..table.layout().entries as u32).find(is_cached) else { return Ok(()) };
    let end = shape.bytes(block, part..part + 1).end;
    let (on_fast, on_slow) = (table.layout().data(slot), block * shape.block);
    // The devices' blocks may be larger than at the old end: the bytes of the first block before the old end
    // are kept.
    let size = fast.geometry().block_size.max(slow.geometry().block_size).bytes();
    let mut at = from - from % size;
    while at < end {
        let length = (end - at).min(AT_ONCE);
        let mut bytes = slow.bytes(on_slow + at, length).await?;
        if at < from {
            let kept = (from - at) as usize;
            let there = fast.bytes(on_fast + at, size).await?;
            bytes.filled_mut()[..kept].copy_from_slice(&there.filled()[..kept]);
        }
        fast.write(on_fast + at, bytes.into(), Durability::Visible).await?;
        at += length;
    }
    // If the part is clean, both sides have to be durably equal.
    slow.flush().await?;
    fast.flush().await
}
