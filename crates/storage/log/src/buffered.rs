//! Write buffer: data that was acknowledged from memory (`ack = "buffer"`) and hasn't committed. Reads look
//! here first.
//!
//! Any shard may read the buffer; only the home shard changes it. A block is removed after the map has its
//! new location, and reads look here before they look into the map. So every acknowledged block is found in
//! the buffer or in the map.

use crate::format::VersionId;
use block::{Data, Payload};
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Write buffer of a home shard, read by all shards.
#[derive(Debug, Default)]
pub struct Buffered {
    blocks: Mutex<BTreeMap<(VersionId, u64), (u64, Data)>>,
    count: AtomicUsize,
    /// Number of the last buffered write.
    last: AtomicU64,
    /// Number of uncommitted blocks by write, blocks that a later write has overwritten included.
    waiting: Mutex<BTreeMap<u64, u64>>,
}

/// The write buffers of all home shards of a log.
#[derive(Debug, Clone)]
pub struct Buffers(SmallVec<[Arc<Buffered>; 1]>);

impl Buffers {
    /// Returns the buffers of the home and of the other shards.
    pub fn new(home: Arc<Buffered>, others: Vec<Arc<Buffered>>) -> Self {
        Buffers(std::iter::once(home).chain(others).collect())
    }

    /// Returns whether all buffers are empty: one load for each.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|buffer| buffer.is_empty())
    }

    /// Returns the buffered blocks of a range, with their data, in order.
    pub fn find(&self, version: VersionId, block: u64, count: u64) -> Vec<(u64, Data)> {
        if let [only] = self.0.as_slice() {
            return only.find(version, block, count);
        }
        let mut found: Vec<_> = self.0.iter().flat_map(|buffer| buffer.find(version, block, count)).collect();
        found.sort_by_key(|(block, _)| *block);
        found
    }
}

impl Buffered {
    /// Returns whether the buffer is empty: one load, for the many reads of logs without a buffer.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<(VersionId, u64), (u64, Data)>> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn waiting(&self) -> MutexGuard<'_, BTreeMap<u64, u64>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a write block by block, and returns its number.
    pub fn insert(&self, version: VersionId, block: u64, payload: &Payload, block_bytes: usize) -> u64 {
        let ticket = self.last.load(Ordering::Relaxed) + 1;
        self.last.store(ticket, Ordering::Relaxed);
        let mut blocks = self.lock();
        for number in 0..payload.len() / block_bytes {
            let data = payload.slice(number * block_bytes..(number + 1) * block_bytes).to_data();
            blocks.insert((version, block + number as u64), (ticket, data));
        }
        self.count.store(blocks.len(), Ordering::Release);
        self.waiting().insert(ticket, (payload.len() / block_bytes) as u64);
        ticket
    }

    /// Returns the buffered blocks of a range, with their data.
    pub fn find(&self, version: VersionId, block: u64, count: u64) -> Vec<(u64, Data)> {
        let blocks = self.lock();
        let found = blocks.range((version, block)..(version, block + count));
        found.map(|((_, block), (_, data))| (*block, data.clone())).collect()
    }

    /// Removes the blocks of a committed write, except those that a later write has overwritten in the
    /// buffer.
    pub fn committed_write(&self, version: VersionId, block: u64, count: u32, ticket: u64) {
        let mut blocks = self.lock();
        for block in block..block + u64::from(count) {
            if blocks.get(&(version, block)).is_some_and(|(own, _)| *own == ticket) {
                blocks.remove(&(version, block));
            }
        }
        self.count.store(blocks.len(), Ordering::Release);
        // A large write commits in parts.
        let mut waiting = self.waiting();
        if let Some(left) = waiting.get_mut(&ticket) {
            *left = left.saturating_sub(u64::from(count));
            if *left == 0 {
                waiting.remove(&ticket);
            }
        }
    }

    /// Returns the number of the last buffered write.
    pub fn last_ticket(&self) -> u64 {
        self.last.load(Ordering::Relaxed)
    }

    /// Returns whether every write up to this one has committed completely.
    pub fn has_committed(&self, ticket: u64) -> bool {
        self.waiting().first_key_value().is_none_or(|(first, _)| *first > ticket)
    }
}
