//! Write buffers of a shard: the active one takes writes, frozen ones wait for their flush.

use super::uncommitted::Uncommitted;
use super::{Core, add, zone_bytes};
use crate::batch::Write;
use crate::broken::if_broken;
use crate::erasure::Erasure;
use crate::key_version::{KeyVersion, RangeTombstone, Sequence, Timestamp, Value};
use crate::log_entry::Body;
use crate::memory::buffer::{Flushed, WriteBuffer};
use crate::memory::memtable::Memtable;
use crate::replay::ReplayedWrites;
use crate::staged_block;
use crate::tree::manifest::write_stream;
use block::{Error, Result};
use logkit::{Owner, ZonePool};
use std::cell::{Cell, Ref, RefCell};
use std::rc::Rc;
use std::sync::Arc;

/// Maximum number of frozen buffers; with as many, writes wait for a flush.
pub(crate) const MAX_FROZEN: usize = 3;

/// Write buffers of a shard.
pub(crate) struct Buffers {
    /// Size in bytes at which the active buffer is frozen.
    capacity: usize,
    active: RefCell<Rc<WriteBuffer>>,
    /// Frozen buffers, oldest first.
    frozen: RefCell<Vec<Rc<WriteBuffer>>>,
    flushed: Cell<Flushed>,
    /// Last record up to which replay needs none: below `flushed` if a later entry begins before that.
    covered: Cell<u64>,
    /// Sequence of the newest write.
    sequence: Cell<Sequence>,
    uncommitted: Uncommitted,
    /// Whether the committing record gave the active buffer another zone.
    has_new_zone: Cell<bool>,
    /// Error of the last flush; `None` if it succeeded.
    pub(super) error: RefCell<Option<Error>>,
}

impl Buffers {
    /// Returns an empty buffer; `flushed` is the position in the log up to which writes are in tables, and
    /// `covered` the last record up to which replay needs none.
    pub fn new(pool: &Arc<ZonePool>, capacity: usize, flushed: Flushed, covered: u64) -> Self {
        Buffers {
            capacity,
            active: RefCell::new(WriteBuffer::new(pool, capacity)),
            frozen: RefCell::default(),
            flushed: Cell::new(flushed),
            covered: Cell::new(covered),
            sequence: Cell::new(flushed.sequence),
            uncommitted: Uncommitted::default(),
            has_new_zone: Cell::new(false),
            error: RefCell::default(),
        }
    }

    /// The active buffer.
    #[inline]
    pub fn active(&self) -> Ref<'_, Rc<WriteBuffer>> {
        self.active.borrow()
    }

    /// Frozen buffers, oldest first.
    #[inline]
    pub fn frozen(&self) -> Ref<'_, Vec<Rc<WriteBuffer>>> {
        self.frozen.borrow()
    }

    /// Whether all writes are in tables.
    pub fn is_empty(&self) -> bool {
        self.active().is_empty() && self.frozen().is_empty()
    }

    /// Bytes of all memtables.
    pub fn bytes(&self) -> usize {
        let frozen: usize = self.frozen().iter().map(|buffer| buffer.memtable.bytes()).sum();
        self.active().memtable.bytes() + frozen
    }

    /// Oldest of the times that `of` returns for the memtables.
    pub fn oldest(&self, of: impl Fn(&Memtable) -> Option<Timestamp>) -> Option<Timestamp> {
        let active = of(&self.active().memtable);
        self.frozen().iter().filter_map(|buffer| of(&buffer.memtable)).chain(active).min()
    }

    /// Sequence of the newest write.
    pub fn sequence(&self) -> Sequence {
        self.sequence.get()
    }

    /// Sequence of the newest write whose record has committed.
    pub fn committed_sequence(&self) -> Sequence {
        self.uncommitted.committed_sequence(self.sequence())
    }

    /// Position in the log up to which writes are in tables.
    pub fn flushed(&self) -> Flushed {
        self.flushed.get()
    }

    /// Notes that all writes are in tables, up to this position, and that replay needs no record up to
    /// `covered`.
    pub fn note_flushed(&self, flushed: Flushed, covered: u64) {
        self.flushed.set(flushed);
        self.covered.set(covered);
    }

    /// Last record up to which replay needs none.
    pub fn covered(&self) -> u64 {
        self.covered.get()
    }

    /// Notes that a record in `zone` has writes of the active buffer.
    pub fn note_zone(&self, zone: u32) {
        if self.active().note_zone(zone) {
            self.has_new_zone.set(true);
        }
    }

    /// Notes that an earlier part of an entry, whose last part has committed now, is in `zone`. The zone
    /// isn't new: it was counted when that part committed, perhaps for a buffer that is frozen since.
    pub fn note_old_zone(&self, zone: u32) {
        self.active().note_zone(zone);
    }

    /// Whether records since the last call gave the active buffer another zone.
    pub fn take_new_zone(&self) -> bool {
        self.has_new_zone.take()
    }

    /// Whether these are all writes that have taken effect and aren't in a log entry.
    pub fn has_queued(&self, writes: &[u8]) -> bool {
        staged_block::count(writes) == Ok(self.uncommitted.pending())
    }

    /// Notes that the queued writes, which have taken effect, were submitted in a log entry.
    pub fn early_submitted(&self, body: &Rc<Body>) {
        self.uncommitted.submitted(body);
    }

    /// Notes that the first log entry of writes that have taken effect before has committed.
    pub fn early_committed(&self) {
        self.uncommitted.note_committed();
    }

    /// Releases frozen buffers whose writes are in tables, up to this position.
    pub fn release(&self, flushed: Flushed, clock: u64) {
        self.flushed.set(flushed);
        let is_of = |last: Flushed| last.sequence <= flushed.sequence && last.record <= flushed.record;
        let mut frozen = self.frozen.borrow_mut();
        while frozen.first().is_some_and(|buffer| is_of(buffer.last())) {
            let released = frozen.remove(0);
            self.covered.set(released.covered());
            released.release(clock);
        }
    }
}

impl Core {
    /// Applies writes of the log that aren't in a table.
    pub(super) fn replay(&self, writes: Vec<ReplayedWrites>) -> Result<()> {
        // For each log entry, the first record that it or a later entry needs.
        let mut needed: Vec<u64> = Vec::with_capacity(writes.len());
        for replayed in writes.iter().rev() {
            let after = needed.last().copied().unwrap_or(u64::MAX);
            needed.push(after.min(replayed.first));
        }
        needed.reverse();
        for (number, replayed) in writes.iter().enumerate() {
            let buffer = self.buffers.active().clone();
            replayed.zones.iter().for_each(|zone| _ = buffer.note_zone(*zone));
            self.apply(&replayed.bytes)?;
            let record = replayed.record;
            let covered = needed.get(number + 1).map_or(record, |first| record.min(first - 1));
            buffer.note_last(Flushed { record, sequence: self.buffers.sequence() }, covered);
            if ends_record(&writes, number) && buffer.memtable.bytes() >= self.buffers.capacity {
                self.push_frozen();
            }
        }
        Ok(())
    }

    /// Applies writes to the active buffer.
    pub(crate) fn apply(&self, writes: &[u8]) -> Result<()> {
        let buffer = self.buffers.active().clone();
        let mut sequence = self.buffers.sequence();
        let mut bytes = 0;
        Write::decode_all(writes, |write| {
            sequence += 1;
            bytes += apply_write(&buffer.memtable, &write, sequence, &self.erasure);
        })?;
        self.erasure.took(sequence - self.buffers.sequence.replace(sequence));
        add(&self.work.client_bytes, bytes);
        Ok(())
    }

    /// Applies writes before they are in a log entry.
    pub(super) fn apply_early(&self, writes: &[u8]) -> Result<()> {
        let before = self.buffers.sequence();
        self.apply(writes)?;
        self.buffers.uncommitted.add(self.buffers.sequence() - before);
        Ok(())
    }

    /// Freezes the active buffer if its records take much more space than its writes, or if free zones are
    /// scarce and the flush frees one. Otherwise a table of few writes would take more space than it frees: a
    /// delete of a short value, as a table of its own, takes a block of data, two headers, and its part of
    /// the manifest.
    pub(crate) fn freeze_if_wasteful(&self) {
        let zone_bytes = zone_bytes(&self.kit.layout);
        let log_bytes = self.buffers.active().zones() as u64 * zone_bytes;
        let is_wasteful = log_bytes > 2 * zone_bytes + 4 * self.buffers.capacity as u64;
        let is_short = || self.kit.pool.free() <= self.kept_zones() + 2 * u32::from(self.peers.shards);
        let frees_zone = || self.buffers.active().has_sealed_zone() && self.buffers.frozen().is_empty();
        if is_wasteful || is_short() && frees_zone() {
            self.freeze();
        }
    }

    /// Freezes the active buffer of a full store, so that its deletes are in a table and its zones of the log
    /// become free; unless a flush is due, which may free enough: small tables take more than they free.
    pub(crate) fn freeze_for_space(&self) {
        if self.buffers.frozen().is_empty() {
            self.freeze();
        }
    }

    /// Freezes the active buffer if it has reached its size.
    pub(crate) fn freeze_if_full(&self) {
        if self.buffers.active().memtable.bytes() >= self.buffers.capacity {
            self.freeze();
        }
    }

    /// Freezes the active buffer unless it is empty.
    pub(crate) fn freeze(&self) {
        if self.buffers.active().is_empty() {
            return;
        }
        let flushed =
            Flushed { record: self.committed_record(), sequence: self.buffers.committed_sequence() };
        let covered = self.commit.last_complete_record(self.peers.shard);
        self.buffers.active().note_last(flushed, covered);
        self.push_frozen();
    }

    /// Last record whose entries have all taken effect, also while it commits.
    fn committed_record(&self) -> u64 {
        if_broken!(CountsTwice, return self.commit.last_complete_record(self.peers.shard));
        self.commit.appender.committed(write_stream(self.peers.shard))
    }

    /// Freezes the active buffer, and replaces it by a new one.
    fn push_frozen(&self) {
        let next = WriteBuffer::new(&self.kit.pool, self.buffers.capacity);
        self.commit.for_each_incomplete_zone(|zone| _ = next.note_zone(zone));
        let buffers = &self.buffers;
        buffers.uncommitted.carry_over(
            (&buffers.active(), &next),
            &self.commit.pending(),
            buffers.sequence(),
        );
        let full = buffers.active.replace(next);
        buffers.frozen.borrow_mut().push(full);
        self.events.changed.notify_all();
    }
}

/// Whether no later entry ends in the same record as this one: a flush has all entries of its last record.
fn ends_record(writes: &[ReplayedWrites], number: usize) -> bool {
    if_broken!(DividesRecords, return true);
    writes.get(number + 1).is_none_or(|next| next.record > writes[number].record)
}

/// Applies a write to a memtable; returns the bytes of its keys and value.
fn apply_write(memtable: &Memtable, write: &Write<'_>, sequence: Sequence, erasure: &Erasure) -> u64 {
    match *write {
        Write::Put { key, value, expires } => {
            memtable.insert(KeyVersion { key, sequence, value: Value::Put { bytes: value, expires } });
            if let Some(expires) = expires {
                erasure.deleted(erasure.stamp(expires));
            }
            (key.len() + value.len()) as u64
        }
        Write::Delete { key, deleted } => {
            let deleted = erasure.stamp(deleted);
            memtable.insert(KeyVersion { key, sequence, value: Value::Tombstone { deleted } });
            erasure.deleted(deleted);
            key.len() as u64
        }
        Write::DeleteRange { from, to, deleted } => {
            let deleted = erasure.stamp(deleted);
            let range = RangeTombstone { from: from.to_vec(), to: to.to_vec(), sequence, deleted };
            memtable.insert_range_tombstone(range);
            erasure.deleted(deleted);
            (from.len() + to.len()) as u64
        }
    }
}
