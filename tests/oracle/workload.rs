//! The client's workload: several tasks at once, all on few blocks, with many flushes.

use super::stamp::stamped;
use block::{BlockIndex, BlockRange, Buffer, Device, Durability, Payload, Result, ZeroMode};
use runtime::Random;
use std::cell::Cell;
use std::rc::Rc;

/// A seeded workload.
#[derive(Debug, Clone)]
pub struct Workload {
    /// Decides everything but the order of completions.
    pub seed: u64,
    /// Number of operations of all tasks together.
    pub operations: u64,
    /// Number of tasks, which is the number of operations in flight.
    pub queue_depth: u64,
    /// Longest operation, in blocks.
    pub longest: u64,
    /// Whether the whole device is discarded now and then.
    pub discards_all: bool,
}

impl Workload {
    /// A few hundred operations, four at a time.
    pub fn new(seed: u64) -> Self {
        Workload { seed, operations: 240, queue_depth: 4, longest: 3, discards_all: false }
    }

    /// Runs to the end, with a flush.
    ///
    /// # Errors
    /// The first operation that failed.
    pub async fn run(&self, device: &Rc<dyn Device>) -> Result<()> {
        let sequence = Rc::new(Cell::new(0));
        let tasks = (0..self.queue_depth).map(|task| {
            let random = Random::new(self.seed ^ (task + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
            runtime::spawn(client(device.clone(), random, sequence.clone(), self.clone()))
        });
        let tasks: Vec<_> = tasks.collect();
        runtime::join_all(tasks).await.into_iter().collect::<Result<()>>()?;
        device.flush().await
    }
}

async fn client(
    device: Rc<dyn Device>,
    mut random: Random,
    sequence: Rc<Cell<u64>>,
    workload: Workload,
) -> Result<()> {
    let (blocks, size) = (device.geometry().blocks.0, device.geometry().block_size);
    while sequence.get() < workload.operations {
        sequence.set(sequence.get() + 1);
        let number = sequence.get();
        let count = 1 + random.below(workload.longest.min(blocks));
        let range = BlockRange::new(random.below(blocks - count + 1), count);
        let durability = if random.chance(0.2) { Durability::Durable } else { Durability::Visible };
        match random.below(100) {
            0..62 => {
                device.write(range.start, Payload::from(stamped(range, number, size)), durability).await?;
            }
            62..76 => device.flush().await?,
            76..84 => device.write_zeroes(range, ZeroMode::default(), durability).await?,
            84..85 if workload.discards_all => device.discard(BlockRange::new(0, blocks)).await?,
            84..92 => device.discard(range).await?,
            _ => {
                let length = size.bytes_of(range.count) as usize;
                device.read(BlockIndex(range.start.0), Buffer::new(length)).await.0?;
            }
        }
    }
    Ok(())
}
