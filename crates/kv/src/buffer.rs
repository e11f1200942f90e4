//! Write buffers: a memtable, and the zones whose records have its writes.
//!
//! A zone of the write-ahead log counts as live as long as a buffer has writes in it that are in no table. It isn't cleaned meanwhile.

use crate::item::Flushed;
use crate::memtable::Memtable;
use logkit::ZonePool;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

/// Blocks that count as live for each zone that has writes of a buffer.
const LIVE: u32 = 1;

/// Writes that are in no table yet.
#[derive(Debug)]
pub struct WriteBuffer {
    /// The writes.
    pub memtable: Rc<Memtable>,
    pool: Arc<ZonePool>,
    zones: RefCell<Vec<u32>>,
    last: Cell<Flushed>,
}

impl WriteBuffer {
    /// Returns an empty buffer, which will have about this many bytes.
    pub fn new(pool: &Arc<ZonePool>, bytes: usize) -> Rc<Self> {
        let memtable = Rc::new(Memtable::with_capacity(bytes));
        Rc::new(WriteBuffer {
            memtable,
            pool: pool.clone(),
            zones: RefCell::default(),
            last: Cell::default(),
        })
    }

    /// Notes that a record with writes of this buffer is in a zone. Returns whether it is the first one there.
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

    /// Number of zones that have its writes.
    pub fn zones(&self) -> usize {
        self.zones.borrow().len()
    }

    /// Notes the last record whose writes it has.
    pub fn note_last(&self, last: Flushed) {
        self.last.set(last);
    }

    /// The last record whose writes it has.
    pub fn last(&self) -> Flushed {
        self.last.get()
    }

    /// Whether it has no write, and no record counts as its own.
    pub fn is_empty(&self) -> bool {
        self.memtable.is_empty() && self.zones.borrow().is_empty()
    }

    /// Whether a record with its writes is in a zone.
    pub fn is_in(&self, zone: u32) -> bool {
        self.zones.borrow().contains(&zone)
    }

    /// Counts its zones as live no more: its writes are in a table.
    pub fn release(&self, clock: u64) {
        let mut accounts = self.pool.accounts();
        self.zones.take().into_iter().for_each(|zone| accounts.remove_dying(zone, LIVE, clock));
    }
}
