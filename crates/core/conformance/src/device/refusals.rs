//! Calls that have to be refused without an effect, and calls with an empty range, which succeed.

use super::Suite;
use super::model::{Operation, refused_read};
use crate::suite::{Check, ensure, fails, invalid, read_only, succeeds};
use block::{BlockIndex, BlockRange, Buffer, Data, Device, Durability, Payload, ZeroMode};

fn junk(length: usize) -> Payload {
    Data::copy_of(&vec![0x99; length]).into()
}

/// Ranges that aren't inside a device of `blocks` blocks.
fn outside(blocks: u64) -> Vec<(u64, u64)> {
    vec![(blocks, 1), (blocks - 1, 2), (blocks + 1, 1), (u64::MAX, 1), (u64::MAX - 1, 3), (0, blocks + 1)]
}

async fn last_block(device: &dyn Device) -> Check<Buffer> {
    let geometry = device.geometry();
    let at = BlockIndex(geometry.blocks.0 - 1);
    let (outcome, buffer) = device.read(at, Buffer::new(geometry.block_size.bytes() as usize)).await;
    succeeds(outcome, format!("a read of the last block, {at}")).map(|()| buffer)
}

/// Checks that ranges that are out of bounds, or no whole number of blocks, are refused without a change.
pub(super) async fn refusals(suite: &mut Suite) -> Check {
    let device = suite.device.clone();
    let (block, blocks) = (device.geometry().block_size.bytes() as usize, device.geometry().blocks.0);
    // The last block is written first, since it may be outside of the window.
    let last = BlockRange::new(blocks - 1, 1);
    if blocks == suite.model.blocks {
        let write = Operation::Write(last, Durability::Visible, suite.model.number());
        suite.model.step(&*device, write, suite.random.next_u64()).await?;
    } else {
        let payload = Data::copy_of(&vec![0x42; block]).into();
        succeeds(device.write(last.start, payload, Durability::Visible).await, "a write of the last block")?;
    }
    let before = last_block(&*device).await?;

    for (start, count) in outside(blocks) {
        let what = |call: &str| format!("{call} of {count} blocks at block {start} of {blocks}");
        let range = BlockRange::new(start, count);
        if count < 1000 {
            refused_read(&*device, start, count as usize * block).await?;
            for durability in [Durability::Visible, Durability::Durable] {
                let outcome = device.write(BlockIndex(start), junk(count as usize * block), durability).await;
                fails(outcome, &invalid(), what("a write"))?;
            }
        }
        fails(device.discard(range).await, &invalid(), what("a discard"))?;
        for mode in [ZeroMode::MayDeallocate, ZeroMode::KeepAllocated] {
            let outcome = device.write_zeroes(range, mode, Durability::Visible).await;
            fails(outcome, &invalid(), what("write_zeroes"))?;
        }
        fails(device.extents(range).await, &invalid(), what("extents"))?;
    }
    for length in [1, 100, block - 1, block + 1, 2 * block - 8] {
        refused_read(&*device, 0, length).await?;
        let outcome = device.write(BlockIndex(0), junk(length), Durability::Visible).await;
        fails(outcome, &invalid(), format!("a write of {length} bytes at block 0"))?;
    }

    let after = last_block(&*device).await?;
    ensure(before.filled() == after.filled(), || {
        format!("a call that was refused has changed the last block, {}", blocks - 1)
    })?;
    let unchanged = suite.model.check_all(&*device).await;
    unchanged.map_err(|broken| format!("a call that was refused has changed something: {broken}"))
}

/// Checks that an empty range succeeds and changes nothing.
pub(super) async fn empty_ranges(suite: &mut Suite) -> Check {
    let device = suite.device.clone();
    for start in [0, 1, device.geometry().blocks.0] {
        let (at, range) = (BlockIndex(start), BlockRange::new(start, 0));
        let what = |call: &str| format!("{call} of nothing at block {start}");
        let (outcome, buffer) = device.read(at, Buffer::new(0)).await;
        succeeds(outcome, what("a read"))?;
        ensure(buffer.is_empty(), || what("a read gave bytes;"))?;
        for durability in [Durability::Visible, Durability::Durable] {
            succeeds(device.write(at, Payload::new(), durability).await, what("a write"))?;
            for mode in [ZeroMode::MayDeallocate, ZeroMode::KeepAllocated] {
                succeeds(device.write_zeroes(range, mode, durability).await, what("write_zeroes"))?;
            }
        }
        succeeds(device.discard(range).await, what("a discard"))?;
        let extents = succeeds(device.extents(range).await, what("extents"))?;
        ensure(extents.is_empty(), || what("extents gave some;"))?;
    }
    suite.model.check_all(&*device).await
}

/// Checks that a read-only device serves reads, and refuses every change.
pub(super) async fn read_only_device(device: &dyn Device) -> Check {
    let block = device.geometry().block_size.bytes() as usize;
    let (at, range) = (BlockIndex(0), BlockRange::new(0, 1));
    let (outcome, before) = device.read(at, Buffer::new(block)).await;
    succeeds(outcome, "a read of block 0")?;
    for durability in [Durability::Visible, Durability::Durable] {
        fails(device.write(at, junk(block), durability).await, &read_only(), "a write")?;
        for mode in [ZeroMode::MayDeallocate, ZeroMode::KeepAllocated] {
            fails(device.write_zeroes(range, mode, durability).await, &read_only(), "write_zeroes")?;
        }
    }
    fails(device.discard(range).await, &read_only(), "a discard")?;
    succeeds(device.flush().await, "a flush")?;
    let (outcome, after) = device.read(at, Buffer::new(block)).await;
    succeeds(outcome, "a read of block 0")?;
    ensure(before.filled() == after.filled(), || "a change that was refused took effect at block 0".into())?;
    let blocks = device.geometry().blocks.0;
    for (start, count) in outside(blocks).into_iter().filter(|(_, count)| *count < 1000) {
        refused_read(device, start, count as usize * block).await?;
    }
    refused_read(device, 0, block - 1).await
}
