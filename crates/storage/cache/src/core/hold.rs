//! A slot that is closed to writers while parts of its block are filled from the origin.

use super::Core;
use crate::state::{EXCLUSIVE, State};
use eviction::Policy;
use std::rc::Rc;

/// A slot that is held: it takes no writes, and its block isn't evicted, until this is dropped.
pub(super) struct Held {
    core: Rc<Core>,
    slot: u32,
    is_new: bool,
}

impl Held {
    /// Holds a slot; `is_new` if it was allocated for the fill. Without any part filled it is released then.
    pub fn new(core: &Rc<Core>, state: &mut State, slot: u32, is_new: bool) -> Self {
        state.slot(slot).flags |= EXCLUSIVE;
        Held { core: core.clone(), slot, is_new }
    }

    /// Number of the slot.
    pub fn slot(&self) -> u32 {
        self.slot
    }

    /// Whether the slot was allocated for the fill.
    pub fn is_new(&self) -> bool {
        self.is_new
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        {
            let mut state = self.core.state.borrow_mut();
            state.slot(self.slot).flags &= !EXCLUSIVE;
            if self.is_new && state.slot(self.slot).valid == 0 {
                // The fill failed; the table has no entry for the block.
                state.policy.remove(self.slot);
                state.release(self.slot);
            }
        }
        self.core.calls.wake();
        self.core.upkeep.wake();
    }
}
