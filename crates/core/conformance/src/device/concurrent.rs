//! Promises that need several calls in flight, several handles or several shards.

use super::Suite;
use super::model::{Answer, Operation, perform};
use crate::suite::{Check, begin_and_drop, ensure, succeeds};
use block::{BlockIndex, BlockRange, Buffer, Device, DevicePart, Durability};
use runtime::ShardIndex;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Most calls of a round.
const WIDEST: u64 = 8;
/// Number of reads that look for the effect of a dropped call, and the time between two.
const LOOKS: u32 = 2000;
const BETWEEN_LOOKS: Duration = Duration::from_millis(5);
/// Number of consecutive looks that have to see a dropped write. A device with several copies may show it in
/// one of them first.
const LOOKS_IN_A_ROW: u32 = 3;
/// Number of writes that are dropped.
const DROPPED_WRITES: u64 = 12;

type Calls = Vec<(Operation, u64)>;

/// Makes calls one after the other on a handle of this shard.
async fn in_turn(device: Rc<dyn Device>, calls: Calls, seed: u64) -> Check<Vec<(Operation, Answer)>> {
    let mut answers = Vec::new();
    for (operation, chance) in calls {
        answers.push((operation, perform(&*device, operation, seed, chance).await?));
    }
    Ok(answers)
}

/// Does the same as [`in_turn`] on another shard. The future is boxed because its type can't be named here.
async fn on_shard(
    part: Arc<dyn DevicePart>,
    shard: usize,
    calls: Calls,
    seed: u64,
) -> Check<Vec<(Operation, Answer)>> {
    let work = move || async move {
        let device = succeeds(part.open().await, format!("opening a handle on shard {shard}"))?;
        in_turn(device, calls, seed).await
    };
    let answered = runtime::spawn_on(ShardIndex(shard), work).await;
    succeeds(answered, format!("running on shard {shard}"))?
}

impl Suite {
    /// Makes all calls at the same time, each on one of the handles, and judges the answers together.
    async fn round(&mut self, calls: Calls) -> Check {
        let seed = self.model.seed;
        let running: Vec<_> =
            calls.into_iter().map(|call| in_turn(self.handle(), vec![call], seed)).collect();
        let mut answers = Vec::new();
        for answer in runtime::join_all(running).await {
            answers.extend(answer?);
        }
        self.model.judge(&answers)
    }

    fn calls(&mut self, count: u64) -> Calls {
        (0..count).map(|_| (self.model.any_operation(&mut self.random), self.random.next_u64())).collect()
    }
}

/// Checks that a write through one handle is visible through every other one, on every shard, and that calls
/// of all shards at once keep the promises about overlapping calls.
pub(super) async fn handles(suite: &mut Suite) -> Check {
    let seed = suite.model.seed;
    for _ in 0..20 {
        let range = suite.model.any_range(&mut suite.random);
        let write = Operation::Write(range, Durability::Visible, suite.model.number());
        suite.model.step(&*suite.device, write, suite.random.next_u64()).await?;
        suite.model.step(&*suite.other, Operation::Read(range), 0).await?;
    }
    let shards = runtime::shard_count();
    let here = runtime::current_shard().0;
    for round in 0..3 * shards {
        let shard = round % shards;
        if shard == here {
            continue;
        }
        // Another shard writes and this one reads, then the reverse.
        let range = suite.model.any_range(&mut suite.random);
        let write = Operation::Write(range, Durability::Visible, suite.model.number());
        suite.model.step(&*suite.device, write, suite.random.next_u64()).await?;
        let again = suite.model.any_range(&mut suite.random);
        let writes = Operation::Write(again, Durability::Visible, suite.model.number());
        let calls = vec![(Operation::Read(range), 0), (writes, suite.random.next_u64())];
        let answers = on_shard(suite.part.clone(), shard, calls, seed).await;
        let answers = answers.map_err(|broken| format!("on shard {shard}, {broken}"))?;
        for answer in answers {
            let judged = suite.model.judge(&[answer]);
            judged
                .map_err(|broken| format!("shard {shard} doesn't see what shard {here} wrote: {broken}"))?;
        }
        let seen = suite.model.step(&*suite.device, Operation::Read(again), 0).await;
        seen.map_err(|broken| format!("shard {here} doesn't see what shard {shard} wrote: {broken}"))?;
    }
    if shards > 1 {
        for _ in 0..10 {
            let running: Vec<_> =
                (0..shards).map(|shard| on_shard(suite.part.clone(), shard, suite.calls(12), seed)).collect();
            let mut answers = Vec::new();
            for answer in runtime::join_all(running).await {
                answers.extend(answer?);
            }
            suite.model.judge(&answers)?;
        }
    }
    suite.model.check_all(&*suite.device).await
}

/// Checks that a call that was dropped after it had begun still takes effect, and that it doesn't touch
/// memory that is reused.
///
/// The caller can't observe the end of a dropped write, not even by a read that returns its bytes: a layer
/// with two copies may have changed only the one that was read. Until the write has ended, every read of its
/// blocks overlaps it and may return old bytes. The model therefore treats it as in flight until the close,
/// where a layer that changes several places waits for outstanding calls. No two of these writes overlap,
/// since their order would be undefined.
pub(super) async fn dropped_calls(suite: &mut Suite) -> Check {
    let (device, seed) = (suite.device.clone(), suite.model.seed);
    let block = device.geometry().block_size.bytes();
    let writes = DROPPED_WRITES.min(suite.model.blocks);
    for index in 0..writes {
        let range = suite.model.range_in_stretch(&mut suite.random, index, writes);
        let number = suite.model.number();
        let per_block = block / crate::stamp::SECTOR as u64;
        let (first, count) = (range.start.0 * per_block, range.count.0 * per_block);
        let payload = crate::stamp::sectors_payload(&mut suite.random, seed, number, first, count);
        let write = Operation::Write(range, Durability::Visible, number);
        let ended = begin_and_drop(device.write(range.start, payload, Durability::Visible)).await;
        // If the payload's memory was freed too early, these buffers reuse it, and the device shows their
        // bytes.
        let length = (range.count.0 * block) as usize;
        let pieces = ((8 << 20) / length).clamp(2, 64);
        let litter: Vec<Buffer> = (0..pieces).map(|_| Buffer::copy_of(&vec![0x66; length])).collect();
        match ended {
            Some(outcome) => {
                succeeds(outcome, format!("a write of {range}"))?;
                suite.model.judge(&[(write, Answer::Done)])?;
            }
            None => suite.model.dropped(write),
        }
        let (mut looks, mut in_a_row) = (0, 0);
        loop {
            in_a_row = if suite.model.sees(&*device, write).await? { in_a_row + 1 } else { 0 };
            if in_a_row == LOOKS_IN_A_ROW {
                break;
            }
            looks += 1;
            ensure(looks < LOOKS, || format!("a write of {range} whose call was dropped never took effect"))?;
            runtime::sleep(BETWEEN_LOOKS).await;
        }
        drop(litter);
    }
    for at in 0..8 {
        let length = (block * 2) as usize;
        drop(
            begin_and_drop(device.read(BlockIndex(at % (suite.model.blocks - 1)), Buffer::new(length))).await,
        );
        let reused: Vec<Buffer> = (0..64).map(|_| Buffer::copy_of(&vec![0x66; length])).collect();
        for _ in 0..4 {
            runtime::sleep(BETWEEN_LOOKS).await;
            ensure(reused.iter().all(|buffer| buffer.filled().iter().all(|byte| *byte == 0x66)), || {
                format!("a read of block {at} whose call was dropped wrote into reused memory")
            })?;
        }
    }
    suite.model.check_all(&*device).await
}

/// Many concurrent writes and reads of the same few blocks: every byte read is from one of the writes.
pub(super) async fn overlapping(suite: &mut Suite) -> Check {
    for _ in 0..60 {
        let start = suite.random.below(suite.model.blocks.min(8));
        let range = BlockRange::new(start, 1 + suite.random.below((suite.model.blocks - start).min(4)));
        let calls = (0..4)
            .flat_map(|_| {
                let write = Operation::Write(range, Durability::Visible, suite.model.number());
                [(write, suite.random.next_u64()), (Operation::Read(range), suite.random.next_u64())]
            })
            .collect();
        suite.round(calls).await?;
        suite.model.step(&*suite.other, Operation::Read(range), 0).await?;
    }
    Ok(())
}

/// Compares random calls, up to [`WIDEST`] at a time, with the model.
pub(super) async fn random(suite: &mut Suite, operations: usize) -> Check {
    let mut made = 0;
    while made < operations {
        let count = 1 + suite.random.below(WIDEST);
        let calls = suite.calls(count);
        made += calls.len();
        suite.round(calls).await?;
    }
    Ok(())
}
