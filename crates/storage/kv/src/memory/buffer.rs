//! Write buffers: a memtable, and the zones of the log whose records contain its writes.
//!
//! A zone of the write-ahead log counts as live, and isn't cleaned, as long as a buffer has writes in it that
//! aren't in a table.

use crate::key_version::Sequence;
use crate::memory::memtable::Memtable;
use logkit::ZonePool;
use logkit::pool::Usage;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

/// Number of blocks that count as live in each zone with writes of a buffer.
const LIVE: u32 = 1;

/// Position in a shard's log up to which writes are in tables.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Flushed {
    /// Last record of the stream of users such that all entries that end in it or before are in tables.
    pub record: u64,
    /// Sequence of the last write of these entries. Recovery counts the writes of later entries from here on,
    /// so it is exact.
    pub sequence: Sequence,
}

/// Writes that aren't in a table yet.
#[derive(Debug)]
pub struct WriteBuffer {
    /// Memtable with the writes.
    pub memtable: Rc<Memtable>,
    pool: Arc<ZonePool>,
    zones: RefCell<Vec<u32>>,
    last: Cell<Flushed>,
    covered: Cell<u64>,
}

impl WriteBuffer {
    /// Returns an empty buffer with capacity for about `bytes` bytes.
    pub fn new(pool: &Arc<ZonePool>, bytes: usize) -> Rc<Self> {
        let memtable = Rc::new(Memtable::with_capacity(bytes));
        Rc::new(WriteBuffer {
            memtable,
            pool: pool.clone(),
            zones: RefCell::default(),
            last: Cell::default(),
            covered: Cell::default(),
        })
    }

    /// Notes that `zone` has a record with writes of this buffer. Returns whether it is the first such record
    /// in the zone.
    pub fn note_zone(&self, zone: u32) -> bool {
        let mut zones = self.zones.borrow_mut();
        let is_new = !zones.contains(&zone);
        if is_new {
            zones.push(zone);
            let mut accounts = self.pool.accounts();
            accounts.add_live(zone, LIVE);
            accounts.begin_dying(zone, LIVE);
        }
        is_new
    }

    /// Number of zones with writes of this buffer.
    pub fn zones(&self) -> usize {
        self.zones.borrow().len()
    }

    /// Whether any of several zones with writes of this buffer takes no more records: a flush of the buffer
    /// lets it be reset.
    pub fn has_sealed_zone(&self) -> bool {
        let zones = self.zones.borrow();
        zones.len() > 1 && !self.pool.filter(&zones, |zone| zone.usage != Usage::Open).is_empty()
    }

    /// Notes the last record with writes of this buffer, and the last record up to which replay needs none
    /// once the buffer is in a table: an entry that begins before the end of the buffer may end after it.
    pub fn note_last(&self, last: Flushed, covered: u64) {
        self.last.set(last);
        self.covered.set(covered);
    }

    /// Last record with writes of this buffer.
    pub fn last(&self) -> Flushed {
        self.last.get()
    }

    /// Last record up to which replay needs none once this buffer is in a table.
    pub fn covered(&self) -> u64 {
        self.covered.get()
    }

    /// Whether the buffer has neither writes nor zones.
    pub fn is_empty(&self) -> bool {
        self.memtable.is_empty() && self.zones.borrow().is_empty()
    }

    /// Whether `zone` has a record with writes of this buffer.
    pub fn is_in(&self, zone: u32) -> bool {
        self.zones.borrow().contains(&zone)
    }

    /// Ends the liveness of the buffer's zones; its writes are in a table.
    pub fn release(&self, clock: u64) {
        let mut accounts = self.pool.accounts();
        self.zones.take().into_iter().for_each(|zone| accounts.remove_dying(zone, LIVE, clock));
    }
}
