//! Promises that one call at a time can break.

use super::Suite;
use super::model::{Operation, check_cover};
use crate::suite::{Check, ensure, succeeds};
use block::{BlockIndex, BlockRange, Buffer, Durability, ExtentState, ZeroMode};

/// Writes the whole window, then reads it: its contents are known afterwards.
pub(super) async fn fill(suite: &mut Suite) -> Check {
    let mut start = 0;
    while start < suite.model.blocks {
        let range = BlockRange::new(start, (suite.model.blocks - start).min(20));
        let write = Operation::Write(range, Durability::Visible, suite.model.number());
        suite.model.step(&*suite.device, write, suite.random.next_u64()).await?;
        start = range.end().0;
    }
    suite.model.check_all(&*suite.device).await
}

/// Checks that writes of every length and place, with and without FUA, are read back at once, and that a
/// flush doesn't tear them.
pub(super) async fn writes_and_reads(suite: &mut Suite) -> Check {
    for round in 0..60 {
        let range = suite.model.any_range(&mut suite.random);
        let durability = if round % 2 == 0 { Durability::Visible } else { Durability::Durable };
        let write = Operation::Write(range, durability, suite.model.number());
        let chance = suite.random.next_u64();
        suite.model.step(&*suite.device, write, chance).await?;
        suite.model.step(&*suite.device, Operation::Read(range), chance).await?;
        if round % 5 == 0 {
            suite.model.step(&*suite.device, Operation::Flush, 0).await?;
            suite.model.step(&*suite.device, Operation::Read(range), 0).await?;
        }
    }
    suite.model.check_all(&*suite.device).await
}

/// Checks that discarded and zeroed blocks read as zeros, that their neighbours are unchanged, and that later
/// writes to them persist.
pub(super) async fn zeroes(suite: &mut Suite) -> Check {
    for _ in 0..12 {
        for kind in 0..5 {
            let range = suite.model.any_range(&mut suite.random);
            let write = Operation::Write(range, Durability::Visible, suite.model.number());
            let operation = match kind {
                0 => Operation::Discard(range),
                1 => Operation::WriteZeroes(range, ZeroMode::MayDeallocate, Durability::Visible),
                2 => Operation::WriteZeroes(range, ZeroMode::KeepAllocated, Durability::Visible),
                3 => Operation::WriteZeroes(range, ZeroMode::MayDeallocate, Durability::Durable),
                _ => Operation::WriteZeroes(range, ZeroMode::KeepAllocated, Durability::Durable),
            };
            // The blocks are written first, so that old zeros can't pass; they are read with their
            // neighbours.
            let around = BlockRange::new(
                range.start.0.saturating_sub(1),
                (range.count.0 + 2).min(suite.model.blocks - range.start.0.saturating_sub(1)),
            );
            for step in [write, operation, Operation::Read(around), Operation::Extents(around)] {
                suite.model.step(&*suite.device, step, suite.random.next_u64()).await?;
            }
            if suite.random.below(2) == 0 {
                let part = BlockRange::new(range.start.0, 1 + suite.random.below(range.count.0));
                let write = Operation::Write(part, Durability::Visible, suite.model.number());
                for step in [write, Operation::Read(around), Operation::Extents(around)] {
                    suite.model.step(&*suite.device, step, suite.random.next_u64()).await?;
                }
            }
        }
    }
    suite.model.check_all(&*suite.device).await
}

/// Checks that a read fills the caller's buffer in place, also if the buffer was used before or is a slice of
/// a larger one.
pub(super) async fn buffers(suite: &mut Suite) -> Check {
    let block = suite.device.geometry().block_size.bytes() as usize;
    for (at, used) in [(0, false), (1, true)] {
        let mut whole =
            if used { Buffer::copy_of(&vec![0x77; block + 100]) } else { Buffer::new(block + 100) };
        let mut piece = whole.split_off(100);
        let address = piece.address();
        let (outcome, filled) = suite.device.read(BlockIndex(at), piece).await;
        piece = filled;
        succeeds(outcome, format!("a read of block {at} into a piece of a buffer"))?;
        ensure(piece.address() == address && piece.len() == block && piece.missing() == 0, || {
            format!("a read of block {at}: {piece:?} came back instead of the buffer that was given, full")
        })?;
        let (outcome, again) = suite.other.read(BlockIndex(at), Buffer::new(block)).await;
        succeeds(outcome, format!("a read of block {at}"))?;
        ensure(piece.filled() == again.filled(), || {
            format!("a read of block {at} into a piece of a buffer (used before: {used}) shows other bytes")
        })?;
        whole.join(piece);
    }
    Ok(())
}

/// Checks that repeated queries, each from the end of the last answer, cover the whole device with extents,
/// and that the first and the last block of each extent that is reported as zeros read as zeros.
pub(super) async fn all_extents(suite: &mut Suite) -> Check {
    let device = suite.device.clone();
    let whole = device.geometry().whole();
    let block = device.geometry().block_size.bytes() as usize;
    let mut start = whole.start;
    let mut answers = 0;
    // A device may answer in small portions: 500 of them are enough.
    while start < whole.end() && answers < 500 {
        let range = BlockRange { start, count: whole.end() - start };
        let extents = succeeds(device.extents(range).await, format!("extents of {range}"))?;
        check_cover(range, &extents)?;
        for extent in extents.iter().filter(|extent| extent.state != ExtentState::Data).take(100) {
            for at in [extent.range.start, BlockIndex(extent.range.end().0 - 1)] {
                let (outcome, buffer) = device.read(at, Buffer::new(block)).await;
                succeeds(outcome, format!("a read of block {at}"))?;
                ensure(buffer.filled().iter().all(|byte| *byte == 0), || {
                    format!("block {at} is said to be {:?}, and doesn't read as zeros", extent.state)
                })?;
            }
        }
        start = extents.last().map_or(whole.end(), |extent| extent.range.end());
        answers += 1;
    }
    Ok(())
}
