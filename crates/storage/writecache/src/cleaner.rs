//! The mode `cleaner`: cached blocks are destaged, and once the cache is empty, writes are no longer cached.
//!
//! Until then writers get half of the space that write-back frees, so the cache drains while they continue.
//! Writes go straight to the origin once the cache is **sealed**: both superblocks durably have the tail at
//! the end of the log. An older tail would destage an older version over such a write after a power cut, or
//! when the newer superblock is corrupt.

use std::cell::Cell;

/// State of the mode `cleaner`.
#[derive(Debug)]
pub struct Cleaner {
    is_on: Cell<bool>,
    /// Head and tail when the mode began.
    since: Cell<(u64, u64)>,
    is_sealed: Cell<bool>,
}

impl Cleaner {
    /// Creates the state, with the mode on or off and the log from tail to head.
    pub fn new(is_on: bool, head: u64, tail: u64) -> Self {
        Cleaner { is_on: Cell::new(is_on), since: Cell::new((head, tail)), is_sealed: Cell::new(false) }
    }

    /// Whether the mode is on.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.is_on.get()
    }

    /// Turns the mode on.
    pub fn begin(&self, head: u64, tail: u64) {
        if !self.is_on.replace(true) {
            self.since.set((head, tail));
        }
    }

    /// Blocks that writers may use at this head, if write-back has freed or destaged everything before this
    /// address.
    pub fn allowance(&self, head: u64, destaged: u64) -> u64 {
        let (head_before, tail_before) = self.since.get();
        (head_before + (destaged - tail_before) / 2).saturating_sub(head)
    }

    /// Whether both superblocks record that the cache is empty.
    pub fn is_sealed(&self) -> bool {
        self.is_sealed.get()
    }

    /// Notes whether both superblocks record that the cache is empty.
    pub fn set_sealed(&self, is_sealed: bool) {
        self.is_sealed.set(is_sealed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writers_get_half_of_what_is_destaged() {
        let cleaner = Cleaner::new(false, 0, 0);
        cleaner.begin(100, 40);
        cleaner.begin(110, 50);
        assert_eq!((cleaner.allowance(100, 40), cleaner.allowance(100, 60)), (0, 10));
        assert_eq!(cleaner.allowance(111, 60), 0);
    }
}
