//! Corrupt and unreadable blocks of the ring, and the operator's permission to lose them (`give_up_rotten`).
//!
//! Only addresses that were reported as unreadable are released: a block that becomes unreadable later stops
//! write-back again.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

/// Blocks of the ring that stop write-back.
#[derive(Debug, Default)]
pub struct Damage {
    accepts_corrupt: Cell<bool>,
    unreadable: RefCell<BTreeSet<u64>>,
    released: RefCell<BTreeSet<u64>>,
}

impl Damage {
    /// Accepts blocks with wrong checksums, and releases the unreadable addresses reported so far. Returns
    /// the number of released addresses.
    pub fn accept_loss(&self) -> usize {
        self.accepts_corrupt.set(true);
        let unreadable = self.unreadable.take();
        let count = unreadable.len();
        self.released.borrow_mut().extend(unreadable);
        count
    }

    /// Whether blocks with wrong checksums are written back as they are.
    pub fn accepts_corrupt(&self) -> bool {
        self.accepts_corrupt.get()
    }

    /// Whether the block at this address may be lost if it is unreadable.
    pub fn is_released(&self, address: u64) -> bool {
        self.released.borrow().contains(&address)
    }

    /// Reports unreadable addresses; released ones are left out.
    pub fn report(&self, unreadable: impl Iterator<Item = u64>) {
        let released = self.released.borrow();
        self.unreadable.borrow_mut().extend(unreadable.filter(|address| !released.contains(address)));
    }

    /// The lowest unreadable addresses, at most this many.
    pub fn unreadable(&self, limit: usize) -> Vec<u64> {
        self.unreadable.borrow().iter().take(limit).copied().collect()
    }

    /// Forgets addresses before this one: their space is free.
    pub fn free_to(&self, end: u64) {
        for addresses in [&self.unreadable, &self.released] {
            let mut addresses = addresses.borrow_mut();
            if addresses.first().is_some_and(|first| *first < end) {
                *addresses = addresses.split_off(&end);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_reported_is_released() {
        let damage = Damage::default();
        damage.report([3, 5].into_iter());
        assert_eq!((damage.accept_loss(), damage.accepts_corrupt()), (2, true));
        damage.report([3, 7].into_iter());
        assert_eq!(damage.unreadable(8), [7]);
        assert!(damage.is_released(3) && !damage.is_released(7));
        damage.free_to(5);
        assert!(!damage.is_released(3) && damage.is_released(5));
    }
}
