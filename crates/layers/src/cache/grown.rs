//! An origin that has grown since the cache was last open.
//!
//! Where it ended inside of a part that the cache has, the table says of the whole part that it is there, and the slot has
//! anything behind the old end: an earlier block's bytes. What the origin has there comes in before anybody may ask for it.

use super::shape::Shape;
use super::state::Entry;
use crate::table::{Medium, Table};
use block::{Durability, Result};

/// How much comes in at a time, in bytes.
const AT_ONCE: u64 = 1 << 20;

/// Brings in the rest of the part in which an origin ended that had so many bytes and has grown, and makes it durable on both
/// sides. To be done before the table's owner says the new size: until then another opening does it again.
///
/// # Errors
/// Those of the devices.
pub(super) async fn fill_last_part(
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
    let has_it = |slot: &u32| {
        let entry = Entry::from_words(table.get(*slot));
        entry.block == block && entry.valid >> part & 1 != 0
    };
    let Some(slot) = (0..table.layout().entries as u32).find(has_it) else { return Ok(()) };
    let end = shape.bytes(block, part..part + 1).end;
    let (on_fast, on_slow) = (table.layout().data(slot), block * shape.block);
    // The devices may have larger blocks than when the origin ended there: of the first one the beginning stays.
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
    // Where the part is clean both sides have to have the same, whatever happens.
    slow.flush().await?;
    fast.flush().await
}
