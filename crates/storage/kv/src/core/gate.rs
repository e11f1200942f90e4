//! Mutual exclusion of writes and updates (read, then write) of the same keys, in the order of arrival.
//!
//! Keys are hashed to slots. Writes share a slot; an update has the slots of its keys exclusively.
//!
//! A batch for several shards enters the gate of each of its shards; the gate keeps the permits of the batch
//! until it leaves. The gate of the home numbers these batches and limits them; a snapshot of all shards
//! excludes them.

use crate::batch::{Batch, Write};
use crate::table::key_hash;
use runtime::sync::{Permit, Semaphore};
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

const SLOTS: usize = 512;
/// Maximum number of concurrent writes in a slot; an update takes all permits.
const PERMITS: usize = 1 << 20;

/// Gate that all writes of a shard enter, also those of batches for several shards.
#[derive(Debug)]
pub struct KeyGate {
    slots: Vec<Rc<Semaphore>>,
    /// Permits of updates: an update takes one; the deletion of a range takes all.
    updates: Rc<Semaphore>,
    /// Permits of batches for several shards, and number of the next one; used on the home.
    batches: Rc<Semaphore>,
    next_batch: Cell<u64>,
    /// Permits that batches for several shards hold here, by number of the batch.
    held: RefCell<BTreeMap<u64, Entered>>,
}

impl Default for KeyGate {
    fn default() -> Self {
        let slots = (0..SLOTS).map(|_| Semaphore::new(PERMITS)).collect();
        KeyGate {
            slots,
            updates: Semaphore::new(PERMITS),
            batches: Semaphore::new(MAX_CROSS_SHARD),
            next_batch: Cell::new(0),
            held: RefCell::default(),
        }
    }
}

/// Maximum number of concurrent batches for several shards; a snapshot takes all permits.
const MAX_CROSS_SHARD: usize = 64;

/// Permits of the gate, released on drop.
pub type Entered = SmallVec<[Permit; 2]>;

/// Numbers of the slots of keys.
type Slots = SmallVec<[usize; 4]>;

fn slot_of(key: &[u8]) -> usize {
    (key_hash(key) >> 32) as usize % SLOTS
}

impl KeyGate {
    /// Enters for the writes of a batch, when no update has their slots.
    pub async fn enter(&self, batch: &Batch) -> Entered {
        let mut entered = Entered::new();
        if let Some(key) = batch.only_key() {
            entered.push(self.slots[slot_of(key)].acquire(1).await);
            return entered;
        }
        let mut slots = Slots::new();
        let mut deletes_range = false;
        batch.for_each(|write| match write {
            Write::Put { key, .. } | Write::Delete { key, .. } => slots.push(slot_of(key)),
            Write::DeleteRange { .. } => deletes_range = true,
        });
        if deletes_range {
            entered.push(self.updates.acquire(PERMITS).await);
        }
        self.enter_slots(slots, 1, &mut entered).await;
        entered
    }

    /// Enters for an update of keys, when no write and no other update has their slots.
    pub async fn enter_alone<'a>(&self, keys: impl Iterator<Item = &'a [u8]>) -> Entered {
        let mut entered = Entered::new();
        entered.push(self.updates.acquire(1).await);
        self.enter_slots(keys.map(slot_of).collect(), PERMITS, &mut entered).await;
        entered
    }

    /// Begins a batch for several shards; returns its permit and its number.
    pub async fn begin_batch(&self) -> (Permit, u64) {
        let permit = self.batches.acquire(1).await;
        (permit, self.next_batch.replace(self.next_batch.get() + 1))
    }

    /// Excludes batches for several shards.
    pub async fn exclude_batches(&self) -> Permit {
        self.batches.acquire(MAX_CROSS_SHARD).await
    }

    /// Holds permits for a batch of several shards, until [`leave`](Self::leave).
    pub fn hold(&self, number: u64, entered: Entered) {
        self.held.borrow_mut().insert(number, entered);
    }

    /// Releases the permits of a batch of several shards.
    pub fn leave(&self, number: u64) {
        self.held.borrow_mut().remove(&number);
    }

    /// Whether a batch of several shards holds permits.
    pub fn has_batches(&self) -> bool {
        !self.held.borrow().is_empty()
    }

    /// Takes permits of slots in ascending order, so that batches can't deadlock.
    async fn enter_slots(&self, mut slots: Slots, permits: usize, entered: &mut Entered) {
        slots.sort_unstable();
        slots.dedup();
        for slot in slots {
            entered.push(self.slots[slot].acquire(permits).await);
        }
    }
}
