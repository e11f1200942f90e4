//! What was acknowledged from memory (`ack = "buffer"`) and hasn't committed: reads look here first.
//!
//! Any shard may look; only the home shard changes it. A block is taken out after the map has its new place, and reads
//! look here before they look into the map, so there is no moment at which neither has it.

use crate::format::VersionId;
use block::{Data, Payload};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// See the module's head.
#[derive(Debug, Default)]
pub struct Buffered {
    blocks: Mutex<BTreeMap<(VersionId, u64), (u64, Data)>>,
    count: AtomicUsize,
    /// The number of the last write that was put here, and of the last one that committed: they do so in order.
    last: AtomicU64,
    committed: AtomicU64,
}

impl Buffered {
    /// Whether there is nothing: one load, for the many reads of logs without a buffer.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<(VersionId, u64), (u64, Data)>> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a write here, block by block, and returns its number.
    pub fn insert(&self, version: VersionId, block: u64, payload: &Payload, block_bytes: usize) -> u64 {
        let ticket = self.last.load(Ordering::Relaxed) + 1;
        self.last.store(ticket, Ordering::Relaxed);
        let mut blocks = self.lock();
        for number in 0..payload.len() / block_bytes {
            let data = payload.slice(number * block_bytes..(number + 1) * block_bytes).to_data();
            blocks.insert((version, block + number as u64), (ticket, data));
        }
        self.count.store(blocks.len(), Ordering::Release);
        ticket
    }

    /// What is here of a range.
    pub fn find(&self, version: VersionId, block: u64, count: u64) -> Vec<(u64, Data)> {
        let blocks = self.lock();
        let found = blocks.range((version, block)..(version, block + count));
        found.map(|((_, block), (_, data))| (*block, data.clone())).collect()
    }

    /// A write has committed: what of it hasn't been overwritten here goes.
    pub fn committed_write(&self, version: VersionId, block: u64, count: u32, ticket: u64) {
        let mut blocks = self.lock();
        for block in block..block + u64::from(count) {
            if blocks.get(&(version, block)).is_some_and(|(own, _)| *own == ticket) {
                blocks.remove(&(version, block));
            }
        }
        self.count.store(blocks.len(), Ordering::Release);
        // A large write commits in parts; the last one has the same number.
        self.committed.store(ticket, Ordering::Relaxed);
    }

    /// The number of the last write that was put here.
    pub fn last_ticket(&self) -> u64 {
        self.last.load(Ordering::Relaxed)
    }

    /// Every write before this one has committed, and this one at least in part.
    pub fn committed(&self) -> u64 {
        self.committed.load(Ordering::Relaxed)
    }

    /// Whether every write up to this one has committed as a whole.
    pub fn has_committed(&self, ticket: u64) -> bool {
        let committed = self.committed();
        committed > ticket || committed == ticket && !self.lock().values().any(|(own, _)| *own == ticket)
    }
}
