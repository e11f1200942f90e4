//! Write buffers: a memtable, and the zones of the log whose records contain its writes.
//!
//! A zone of the write-ahead log counts as live, and isn't cleaned, as long as a buffer has writes in it that
//! aren't in a table.

use crate::key_version::Sequence;
use crate::memory::memtable::Memtable;
use logkit::ZonePool;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

/// Number of blocks that count as live in each zone with writes of a buffer.
const LIVE: u32 = 1;

/// Position in a shard's log up to which writes are in tables.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Flushed {
    /// Last record of the stream of users whose writes are in tables.
    pub record: u64,
    /// Sequence of the last write up to that record.
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

    /// Notes the last record with writes of this buffer.
    pub fn note_last(&self, last: Flushed) {
        self.last.set(last);
    }

    /// Last record with writes of this buffer.
    pub fn last(&self) -> Flushed {
        self.last.get()
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
