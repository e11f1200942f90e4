//! Writes and updates (read, then write) of the same keys take turns, in the order in which they arrive.
//!
//! Keys share a number of slots by their hash. Writes of a slot are in it together; an update has the slots of its keys alone.

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

/// Slots of keys.
type Slots = SmallVec<[usize; 4]>;

fn slot_of(key: &[u8]) -> usize {
    (key_hash(key) >> 32) as usize % SLOTS
}

impl KeyGate {
    /// Enters with the writes of a batch, once no update has a slot of theirs.
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

    /// Enters to update keys, once no write and no other update has their slots.
    pub async fn enter_alone<'a>(&self, keys: impl Iterator<Item = &'a [u8]>) -> Entered {
        let mut entered = Entered::new();
        entered.push(self.updates.acquire(1).await);
        self.enter_slots(keys.map(slot_of).collect(), PERMITS, &mut entered).await;
        entered
    }

    /// Takes permits of slots in rising order, so that no two batches wait for each other.
    async fn enter_slots(&self, mut slots: Slots, permits: usize, entered: &mut Entered) {
        slots.sort_unstable();
        slots.dedup();
        for slot in slots {
            entered.push(self.slots[slot].acquire(permits).await);
        }
    }
}
