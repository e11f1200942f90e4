//! Roles of the legs: which are active, which are being rebuilt, and which one is the source.
//!
//! A leg in no role isn't a member: it gets no changes. The state of each slot, as the superblocks record it,
//! is kept beside the roles.

use crate::assembly::Assembly;
use crate::format::{Slot, SlotState, Uuid};
use crate::leg::Mask;
use std::cell::{Cell, Ref, RefCell};

/// Roles of the legs of a mirror.
pub struct Members {
    /// Legs that reads avoid.
    write_mostly: Mask,
    /// All slots of the mirror.
    slots: RefCell<Vec<Slot>>,
    active: Cell<Mask>,
    rebuilding: Cell<Mask>,
    source: Cell<usize>,
    trusted: Mask,
    /// Number of joins of legs.
    joined: Cell<u64>,
}

/// Role that a leg lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removed {
    /// An active leg.
    Active,
    /// A leg that was being rebuilt.
    Rebuilding,
}

impl Members {
    /// Creates the roles that opening has decided.
    pub fn new(assembly: &Assembly, write_mostly: Mask, trusted: Mask) -> Self {
        Members {
            write_mostly,
            slots: RefCell::new(assembly.slots.clone()),
            active: Cell::new(assembly.active),
            rebuilding: Cell::new(assembly.rebuilding),
            source: Cell::new(assembly.source),
            trusted,
            joined: Cell::new(0),
        }
    }

    /// Legs that have all data, except in chunks that may differ.
    #[inline]
    pub fn active(&self) -> Mask {
        self.active.get()
    }

    /// Whether a leg is active.
    pub fn is_active(&self, leg: usize) -> bool {
        self.active() & 1 << leg != 0
    }

    /// Legs that get all changes, and lack some chunks.
    #[inline]
    pub fn rebuilding(&self) -> Mask {
        self.rebuilding.get()
    }

    /// Legs that get all changes.
    #[inline]
    pub fn all(&self) -> Mask {
        self.active() | self.rebuilding()
    }

    /// Whether a leg gets all changes.
    pub fn has(&self, leg: usize) -> bool {
        self.all() & 1 << leg != 0
    }

    /// Whether more than one leg is active, so that legs may differ.
    pub fn may_differ(&self) -> bool {
        self.active().count_ones() > 1
    }

    /// Leaves out write-mostly legs, unless all of these legs are.
    #[inline]
    pub fn prefer_fast(&self, legs: Mask) -> Mask {
        match legs & !self.write_mostly {
            0 => legs,
            fast => fast,
        }
    }

    /// Leg from which chunks that may differ are copied.
    pub fn source(&self) -> usize {
        self.source.get()
    }

    /// Makes the first active leg that isn't write-mostly the source.
    pub fn choose_source(&self) {
        self.source.set(self.prefer_fast(self.active()).trailing_zeros() as usize);
    }

    /// Whether the source is a write-mostly leg although another active leg could be the source.
    pub fn should_move_source(&self) -> bool {
        self.write_mostly & 1 << self.source() != 0 && self.active() & !self.write_mostly != 0
    }

    /// Active legs that may replace the source for unreadable blocks in chunks that may differ. A leg that
    /// lagged while flushes left it out isn't one of them: it may lack flushed data.
    pub fn substitutes(&self) -> Mask {
        self.active() & self.trusted & !(1 << self.source())
    }

    /// Number of joins of legs since the mirror was opened.
    pub fn joined(&self) -> u64 {
        self.joined.get()
    }

    /// Makes a leg one that is being rebuilt.
    pub fn join(&self, leg: usize) {
        self.rebuilding.set(self.rebuilding() | 1 << leg);
        self.joined.set(self.joined() + 1);
    }

    /// Makes legs active that were being rebuilt.
    pub fn activate(&self, legs: Mask) {
        self.active.set(self.active() | legs);
        self.rebuilding.set(self.rebuilding() & !legs);
    }

    /// Takes a leg's role away. Returns the role; `None` if it had none.
    pub fn remove(&self, leg: usize) -> Option<Removed> {
        let bit = 1 << leg;
        if self.rebuilding() & bit != 0 {
            self.rebuilding.set(self.rebuilding() & !bit);
            return Some(Removed::Rebuilding);
        }
        let was_active = self.active() & bit != 0;
        self.active.set(self.active() & !bit);
        was_active.then_some(Removed::Active)
    }

    /// All slots.
    pub fn slots(&self) -> Ref<'_, Vec<Slot>> {
        self.slots.borrow()
    }

    /// Sets the state of a slot.
    pub fn set_state(&self, slot: usize, state: SlotState) {
        self.slots.borrow_mut()[slot].state = state;
    }

    /// Sets the identity of a slot's leg.
    pub fn set_leg(&self, slot: usize, leg: Uuid) {
        self.slots.borrow_mut()[slot].leg = leg;
    }

    /// Whether every slot has a leg that is active or being rebuilt.
    pub fn is_whole(&self) -> bool {
        self.all().count_ones() as usize == self.slots().len()
    }
}
