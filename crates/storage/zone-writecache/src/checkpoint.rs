//! Checkpoints: the states of all zones at the cut, in one of two slots of the fast device.

use crate::core::Core;
use crate::format::{PAGE, Superblock, ZONES_OF_PAGE, Zone, append_page, decode_page};
use crate::layout::Layout;
use crate::table::ZoneTable;
use block::{Buffer, Device, Durability, Result};
use zones::record::Identity;

/// Bytes of pages that are written or read with one request.
const STEP: u64 = 1 << 20;

/// Writes the pages of a table into the slot of this checkpoint, and flushes the fast device.
///
/// # Errors
/// Errors of the fast device.
pub async fn write_table(
    fast: &dyn Device,
    layout: &Layout,
    identity: &Identity,
    number: u64,
    zones: &[Zone],
) -> Result<()> {
    let step = STEP.next_multiple_of(layout.block_size);
    let pages_of_step = (step / PAGE as u64) as usize;
    for (part, some) in zones.chunks(pages_of_step * ZONES_OF_PAGE).enumerate() {
        let pages = some.len().div_ceil(ZONES_OF_PAGE);
        let bytes = ((pages * PAGE) as u64).next_multiple_of(layout.block_size);
        let mut buffer = Buffer::new(bytes as usize);
        for (page, zones) in some.chunks(ZONES_OF_PAGE).enumerate() {
            append_page(identity, number, (part * pages_of_step + page) as u32, zones, &mut buffer);
        }
        buffer.append_zeroes(buffer.missing());
        let place = layout.checkpoint(number, part as u64 * step);
        let written = fast.write(place, buffer.into(), Durability::Visible).await;
        written.map_err(|error| error.in_context("writing a checkpoint of the write cache of zones"))?;
    }
    fast.flush().await
}

/// Reads the table of the checkpoint that a superblock names.
///
/// # Errors
/// Errors of the fast device; [`block::Error::Corrupt`] for a damaged page.
pub async fn read(fast: &dyn Device, layout: &Layout, superblock: &Superblock) -> Result<Vec<Zone>> {
    let mut zones = Vec::with_capacity(superblock.zones as usize);
    let step = STEP.next_multiple_of(layout.block_size);
    let mut at = 0;
    let mut page = 0;
    while at < layout.slot() {
        let bytes = step.min(layout.slot() - at);
        let place = layout.checkpoint(superblock.checkpoint, at);
        let (outcome, buffer) = fast.read(place, Buffer::new(bytes as usize)).await;
        outcome.map_err(|error| error.in_context("reading a checkpoint of the write cache of zones"))?;
        for bytes in buffer.filled().chunks_exact(PAGE) {
            if zones.len() == superblock.zones as usize {
                break;
            }
            zones.extend(decode_page(bytes, &superblock.identity, superblock.checkpoint, page)?);
            page += 1;
        }
        at += bytes;
    }
    match zones.len() == superblock.zones as usize {
        true => Ok(zones),
        false => Err(block::Error::corrupt(format!(
            "checkpoint of the write cache of zones with {} zones; expected {}; restore the fast device, or give an empty one with \
             new_fast=true",
            zones.len(),
            superblock.zones
        ))),
    }
}

/// Writes the cut as a new checkpoint.
///
/// # Errors
/// Errors of the fast device.
pub async fn write(core: &Core) -> Result<()> {
    let Superblock { identity, checkpoint, tail, .. } = core.superblock.get();
    let number = checkpoint + 1;
    // Only the uploader moves the cut, and it waits for this.
    let table: ZoneTable = core.cut.borrow().clone();
    write_table(&*core.fast, &core.layout, &identity, number, table.zones()).await?;
    // After a failed flush of others the pages may be lost, whatever the flush here returned.
    core.health.check_device()?;
    core.write_superblock(|superblock| {
        superblock.checkpoint = number;
        superblock.checkpoint_at = tail;
    })
    .await
}
