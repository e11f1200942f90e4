//! Evictions: the evictor, which keeps slots free, and evictions on request.

use super::Core;
use crate::commits::Level;
use crate::state::{Slot, is_idle};
use block::{Error, Result};
use std::rc::Rc;
use std::time::Duration;

/// Largest number of slots that one round of the evictor frees.
const AT_ONCE: usize = 128;
/// Sleep of the evictor, or of a detach, when no slot can be evicted: all are dirty, in use or hot.
pub(crate) const PATIENCE: Duration = Duration::from_millis(20);

/// Keeps slots free, until the cache closes.
pub async fn run(core: Rc<Core>) {
    let low = core.low_water();
    while !core.upkeep.is_ending() {
        let missing = low.saturating_sub(core.state.borrow().free.len());
        if missing == 0 || core.commits.has_failed() {
            core.upkeep.set_wants_clean(false);
            core.upkeep.woken().await;
            continue;
        }
        let most = (missing + low / 2).min(AT_ONCE);
        let may = |number: u32, slot: &Slot| core.is_evictable(number, slot.epoch);
        let chosen = core.state.borrow_mut().evict(most, &may);
        if chosen > 0 {
            // After a failure clean blocks remain readable; the failure is reported through `failure`.
            let _: Result<(), Error> = core.commit(Level::Marks).await;
            continue;
        }
        core.upkeep.set_wants_clean(true);
        core.upkeep.wake();
        let waiting = core.upkeep.woken();
        let _ = runtime::timeout(PATIENCE, waiting).await;
    }
}

impl Core {
    /// Whether the block of a clean, idle slot may be evicted: its entry has no dirty parts that still need a
    /// flush of the origin.
    pub fn is_evictable(&self, number: u32, epoch: u64) -> bool {
        self.entry(number).dirty == 0 || self.slow.covers(epoch)
    }

    /// Evicts `block` from a slot once the slot is idle, and waits until the table records it. Returns false
    /// if the block is dirty.
    pub async fn evict_block(&self, number: u32, block: u64) -> Result<bool> {
        loop {
            let flushes;
            {
                let mut state = self.state.borrow_mut();
                let slot = *state.slot(number);
                if slot.block != block {
                    return Ok(true);
                }
                if slot.dirty != 0 {
                    return Ok(false);
                }
                self.check_slot(&slot)?;
                if is_idle(&slot) && self.is_evictable(number, slot.epoch) {
                    state.begin_eviction(number);
                    break;
                }
                flushes = is_idle(&slot);
            }
            match flushes {
                true => self.slow.flush_now().await?,
                false => self.calls.changed().await,
            }
        }
        self.commit(Level::Marks).await?;
        Ok(true)
    }
}
