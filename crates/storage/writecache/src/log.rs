//! The positions of the log in the ring.
//!
//! Invariant: tail ≤ durable ≤ committed ≤ head, and from tail to head there are at most as many blocks as
//! the ring has. All four only grow.

use std::cell::Cell;

/// The boundary between two records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// Address of the log, in blocks.
    pub address: u64,
    /// Number of the record that begins there.
    pub record: u64,
}

/// The positions of the log.
#[derive(Debug)]
pub struct Log {
    /// Blocks of the ring.
    capacity: u64,
    /// End of the log: the next record begins there.
    head: Cell<Position>,
    /// Records before it are on the cache device and in the index.
    committed: Cell<Position>,
    /// Records before it are durable on the cache device.
    durable: Cell<Position>,
    /// Records before it are durable on the origin, and their space is free.
    tail: Cell<Position>,
}

impl Log {
    /// Creates the log of a ring of this many blocks, all of it durable.
    pub fn new(capacity: u64, tail: Position, head: Position) -> Self {
        let (committed, durable) = (Cell::new(head), Cell::new(head));
        Log { capacity, head: Cell::new(head), committed, durable, tail: Cell::new(tail) }
    }

    /// End of the log.
    #[inline]
    pub fn head(&self) -> Position {
        self.head.get()
    }

    /// Position before which all records are on the cache device and in the index.
    #[inline]
    pub fn committed(&self) -> Position {
        self.committed.get()
    }

    /// Position before which all records are durable on the cache device.
    #[inline]
    pub fn durable(&self) -> Position {
        self.durable.get()
    }

    /// Number of the last durable record.
    #[inline]
    pub fn durable_record(&self) -> u64 {
        self.durable.get().record - 1
    }

    /// Position before which all records are durable on the origin and their space is free.
    #[inline]
    pub fn tail(&self) -> Position {
        self.tail.get()
    }

    /// Number of used blocks of the ring.
    #[inline]
    pub fn used(&self) -> u64 {
        self.head.get().address - self.tail.get().address
    }

    /// Number of free blocks of the ring.
    #[inline]
    pub fn free(&self) -> u64 {
        self.capacity - self.used()
    }

    /// Appends a record that ends at this address. Returns its number.
    pub fn append(&self, end: u64) -> u64 {
        let Position { address, record } = self.head.get();
        debug_assert!(end > address && end - self.tail.get().address <= self.capacity);
        self.head.set(Position { address: end, record: record + 1 });
        record
    }

    /// Commits the records before this position.
    pub fn commit(&self, to: Position) {
        debug_assert!(to.address > self.committed.get().address && to.address <= self.head.get().address);
        self.committed.set(to);
    }

    /// Notes that the records before this position are durable. An earlier position than the present one is
    /// ignored: flushes may complete in any order.
    pub fn make_durable(&self, to: Position) {
        debug_assert!(to.address <= self.committed.get().address);
        if to.address > self.durable.get().address {
            self.durable.set(to);
        }
    }

    /// Frees the space of the records before this position.
    pub fn free_to(&self, to: Position) {
        debug_assert!(to.address > self.tail.get().address && to.address <= self.durable.get().address);
        self.tail.set(to);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_follow_each_other_and_late_flushes_change_nothing() {
        let at = |address, record| Position { address, record };
        let log = Log::new(16, at(16, 1), at(16, 1));
        assert_eq!((log.append(20), log.append(25)), (1, 2));
        assert_eq!((log.used(), log.free(), log.head()), (9, 7, at(25, 3)));
        log.commit(at(20, 2));
        log.commit(at(25, 3));
        log.make_durable(at(25, 3));
        log.make_durable(at(20, 2));
        assert_eq!((log.durable(), log.durable_record()), (at(25, 3), 2));
        log.free_to(at(20, 2));
        assert_eq!((log.used(), log.tail()), (5, at(20, 2)));
    }
}
