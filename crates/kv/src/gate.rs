//! Writes and updates (read, then write) of the same key take turns, in the order in which they arrive.
//!
//! Keys share a number of slots by their hash. Writes of a slot are in it together; an update has it alone.

use crate::batch::{Batch, Write};
use crate::table::key_hash;
use runtime::sync::{Permit, Semaphore};
use smallvec::SmallVec;
use std::rc::Rc;

const SLOTS: usize = 512;
/// Most writes in a slot at a time; an update takes all of its permits.
const PERMITS: usize = 1 << 20;

/// What the writes of a shard pass.
#[derive(Debug)]
pub struct KeyGate {
    slots: Vec<Rc<Semaphore>>,
    /// Permits of updates, each of which takes one; the deletion of a range takes all.
    updates: Rc<Semaphore>,
}

impl Default for KeyGate {
    fn default() -> Self {
        let slots = (0..SLOTS).map(|_| Semaphore::new(PERMITS)).collect();
        KeyGate { slots, updates: Semaphore::new(PERMITS) }
    }
}

/// Permits that are held until this is dropped.
pub type Entered = SmallVec<[Permit; 2]>;

fn slot_of(key: &[u8]) -> usize {
    (key_hash(key) >> 32) as usize % SLOTS
}

impl KeyGate {
    /// Enters with the writes of a batch, once no update has a slot of theirs. Slots are entered in rising order, so that no two
    /// batches wait for each other.
    pub async fn enter(&self, batch: &Batch) -> Entered {
        let mut entered = Entered::new();
        if let Some(key) = batch.only_key() {
            entered.push(self.slots[slot_of(key)].acquire(1).await);
            return entered;
        }
        let mut slots: SmallVec<[usize; 4]> = SmallVec::new();
        let mut deletes_range = false;
        batch.for_each(|write| match write {
            Write::Put { key, .. } | Write::Delete { key, .. } => slots.push(slot_of(key)),
            Write::DeleteRange { .. } => deletes_range = true,
        });
        slots.sort_unstable();
        slots.dedup();
        if deletes_range {
            entered.push(self.updates.acquire(PERMITS).await);
        }
        for slot in slots {
            entered.push(self.slots[slot].acquire(1).await);
        }
        entered
    }

    /// Enters to update a key, once no write and no other update has its slot.
    pub async fn update(&self, key: &[u8]) -> Entered {
        let mut entered = Entered::new();
        entered.push(self.updates.acquire(1).await);
        entered.push(self.slots[slot_of(key)].acquire(PERMITS).await);
        entered
    }
}
