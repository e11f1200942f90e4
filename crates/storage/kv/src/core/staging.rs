//! Staging of acknowledged writes: a ring of blocks in the staging area, which a plain call writes by bytes
//! into the page cache.
//!
//! With `acknowledge = "written"` a write is acknowledged once it is staged and in the memtable. Its record
//! follows with those of other writes, as for `buffered`, so that small writes cost their bytes and no record
//! each. A block is used again once the records of all its writes have committed. Writes that don't fit wait
//! for their records.

use super::Core;
use crate::batch::Batch;
use crate::broken::if_broken;
use crate::key_version::Sequence;
use crate::staged_block::{Division, ENTRY_OVERHEAD, HEADER, Writer};
use block::{CachedBytes, Zones};
use logkit::Kit;
use std::cell::{Cell, RefCell};

/// Part of its blocks that a shard fills before these writes are put into a record: two records are in flight
/// while further writes arrive.
const PARTS: u64 = 4;

/// Staged writes of a shard.
pub(super) struct Staging {
    bytes: Box<dyn CachedBytes>,
    writer: Writer,
    division: Division,
    ring: RefCell<Ring>,
    /// Set after a failed write: what the area holds is unknown, so it takes no more until the next opening.
    has_failed: Cell<bool>,
    /// Last write that took effect before its record and without being staged; later ones can't be staged
    /// until its record has committed, or recovery would find a gap.
    unstaged: Cell<Sequence>,
    /// Bytes of staged writes so far.
    staged_bytes: Cell<u64>,
}

/// Blocks in use.
#[derive(Debug)]
struct Ring {
    /// Block that takes the next entry, and the bytes in use of it; 0: it isn't begun.
    block: u64,
    used: usize,
    /// Sequence after the last staged write.
    next: Sequence,
    /// Last write in each block.
    last: Vec<Sequence>,
    /// Encoded bytes, and those that a checksum covers, reused.
    encoded: Vec<u8>,
    scratch: Vec<u8>,
}

impl Ring {
    fn new(division: Division) -> Self {
        let last = vec![0; division.blocks as usize];
        Ring { block: 0, used: 0, next: 0, last, encoded: Vec::new(), scratch: Vec::new() }
    }

    /// Chooses the place of an entry of `length` bytes whose first write is `first`: the block, and whether
    /// it is begun with the entry. `None` if the next block has writes whose records haven't committed, or
    /// the entry is too long for any.
    fn place(
        &self,
        division: Division,
        (first, length): (Sequence, usize),
        committed: impl FnOnce() -> Sequence,
    ) -> Option<(u64, bool)> {
        let capacity = division.block as usize;
        if HEADER + length > capacity {
            return None;
        }
        let is_near = first - self.next <= u64::from(u32::MAX);
        if self.used > 0 && is_near && self.used + length <= capacity {
            return Some((self.block, false));
        }
        let next = if self.used == 0 { self.block } else { (self.block + 1) % division.blocks };
        (self.last[next as usize] <= committed()).then_some((next, true))
    }
}

impl Staging {
    /// Begins with an empty staging area; `None` where the zones have none that plain calls can write.
    pub fn new(zones: &dyn Zones, kit: &Kit, (shard, shards): (u16, u16)) -> Option<Self> {
        let area = zones.staging()?;
        let division = Division::new(area.bytes(), shards)?;
        let writer = Writer { uuid: kit.identity.uuid.into_bytes(), epoch: kit.epoch, shard };
        Some(Staging {
            bytes: area.open_cached()?,
            writer,
            division,
            ring: RefCell::new(Ring::new(division)),
            has_failed: Cell::new(false),
            unstaged: Cell::new(0),
            staged_bytes: Cell::new(0),
        })
    }

    /// Bytes of staged writes after which these are put into a record.
    pub fn record_bytes(&self) -> usize {
        (self.division.part() / PARTS) as usize
    }

    /// Bytes of staged writes so far.
    pub fn staged_bytes(&self) -> u64 {
        self.staged_bytes.get()
    }

    /// Notes that writes up to this one have taken effect before their record, and aren't staged.
    pub fn note_unstaged(&self, last: Sequence) {
        self.unstaged.set(last);
    }

    /// Stages writes, the first of which gets the sequence `first`. Returns whether they survive the end of
    /// the process now; otherwise their record has to be waited for. `committed` returns the last write whose
    /// record has committed.
    pub fn stage(&self, first: Sequence, batch: &Batch, committed: impl Fn() -> Sequence) -> bool {
        if self.has_failed.get() || self.unstaged.get() > 0 && self.unstaged.get() > committed() {
            return false;
        }
        self.unstaged.set(0);
        let mut ring = self.ring.borrow_mut();
        let length = batch.bytes().len() + ENTRY_OVERHEAD;
        let Some((block, is_begun)) = ring.place(self.division, (first, length), committed) else {
            return false;
        };
        let Ring { encoded, scratch, next, .. } = &mut *ring;
        encoded.clear();
        if is_begun {
            self.writer.encode_header(first, encoded);
        }
        let skipped = if is_begun { 0 } else { (first - *next) as u32 };
        self.writer.encode_entry((first, skipped), batch.bytes(), scratch, encoded);
        let used = if is_begun { 0 } else { ring.used };
        let at = self.division.place(self.writer.shard, block).start + used as u64;
        if let Err(error) = self.bytes.write(at, &ring.encoded) {
            self.fail(at, ring.encoded.len(), &error);
            return false;
        }
        ring.block = block;
        ring.used = used + ring.encoded.len();
        ring.next = first + u64::from(batch.len());
        ring.last[block as usize] = ring.next - 1;
        self.staged_bytes.set(self.staged_bytes.get() + batch.bytes().len() as u64);
        true
    }

    /// Ends staging after a failed write. The entry may be whole in the page cache, and its write may be
    /// refused now: zeros over it, if they can be written, keep the next opening from finding it.
    #[cold]
    fn fail(&self, at: u64, length: usize, error: &block::Error) {
        self.has_failed.set(true);
        let erased = self.bytes.write(at, &vec![0; length]);
        tracing::warn!(
            "shard {}: staging a write failed: {error}; writes wait for their records until the store is opened again{}",
            self.writer.shard,
            erased.err().map_or(String::new(), |error| format!("; erasing it failed also: {error}")),
        );
    }
}

impl Core {
    /// Stages a batch that takes effect next. Returns whether it may be acknowledged then.
    pub(super) fn stage(&self, batch: &Batch) -> bool {
        if_broken!(StagesNothing, return self.commit.staging().is_some());
        let sequence = self.buffers.sequence();
        let committed = || self.buffers.committed_sequence();
        self.commit.staging().is_some_and(|staging| staging.stage(sequence + 1, batch, committed))
    }
}
