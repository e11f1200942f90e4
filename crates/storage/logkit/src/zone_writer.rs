//! An open zone, with one append at a time, so that the location of each record is known before it is
//! written; and the summary at the zone's end.

use crate::layout::Layout;
use crate::pool::Taken;
use crate::pool::budget::{Permit, Requests};
use crate::record::{Header, Identity};
use crate::summary::{BlockAddress, Builder};
use block::{Buffer, Error, Payload, Result, ZoneIndex, Zones};
use runtime::Instant;
use std::rc::Rc;
use std::time::Duration;

/// Time, divided by the number of tasks that wait, for which a holder that has records for a zone keeps it
/// although they ask for it; the least such time; and the share of the capacity, 1/2, after which it doesn't.
/// Without a quantum, tasks with one permit too few would use a zone for each record; with a longer one, they
/// would wait longer.
pub(crate) const QUANTUM: Duration = Duration::from_secs(1);
const MIN_QUANTUM: Duration = Duration::from_millis(50);
const QUANTUM_SHARE: u32 = 2;

/// Time that is left of a quantum at a position of a zone, `age` after the first request for it.
fn quantum_left(position: u32, capacity: u32, age: Duration, waiting: u32) -> Duration {
    match position >= capacity / QUANTUM_SHARE {
        true => Duration::ZERO,
        false => (QUANTUM / waiting.max(1)).max(MIN_QUANTUM).saturating_sub(age),
    }
}

/// An open zone with its write pointer and the headers of its records.
#[derive(Debug)]
pub struct ZoneWriter {
    zone: u32,
    generation: u64,
    class: u8,
    position: u32,
    capacity: u32,
    summary: Builder,
    /// A zone was opened ahead to follow this one.
    has_next: bool,
    /// The zone was opened before its first append, which doesn't open it.
    is_open: bool,
    /// Permit of the budget of open zones, returned when dropped after the zone was finished.
    permit: Option<Permit>,
    /// Time at which the holder first saw that waiting tasks ask for the zone.
    asked: Option<Instant>,
    /// Numbers of [requests to seal](crate::seals) that don't concern this zone: those before it was opened.
    seals_before: Requests,
    /// Counts the zone among those of its shard's lanes, as long as a lane holds it.
    of_lanes: Option<Rc<()>>,
}

impl ZoneWriter {
    /// Creates the writer of an empty zone. The memory of `summary` is reused.
    pub fn new(taken: Taken, class: u8, layout: &Layout, mut summary: Builder) -> Self {
        summary.clear();
        let capacity = taken.limit.map_or(layout.zone_blocks, |limit| limit.min(layout.zone_blocks));
        let Taken { zone, generation, is_open, .. } = taken;
        ZoneWriter {
            zone,
            generation,
            class,
            position: 0,
            capacity,
            summary,
            has_next: false,
            is_open,
            permit: None,
            asked: None,
            seals_before: Requests::default(),
            of_lanes: None,
        }
    }

    /// The writer, which holds a permit of the budget of open zones as long as it exists. `seals_before` are
    /// the numbers of requests to seal zones before it was opened.
    #[must_use]
    pub(crate) fn with_permit(self, permit: Permit, seals_before: Requests) -> Self {
        ZoneWriter { permit: Some(permit), seals_before, ..self }
    }

    /// Notes that the drive is about to open this zone: requests that were made before because the drive
    /// opened no zone, `for_drive` of them, don't concern it.
    pub(crate) fn note_opening(&mut self, for_drive: u64) {
        self.seals_before.for_drive = for_drive;
        self.asked = None;
    }

    /// Whether the zone is open on the drive, so that an append doesn't open it.
    pub(crate) fn is_open(&self) -> bool {
        self.is_open || !self.is_empty()
    }

    /// Whether an append failed with this error because the drive didn't open the zone, also after
    /// [waiting](crate::kit::Kit::append_opening) for it.
    pub(crate) fn was_refused(&self, error: &Error) -> bool {
        matches!(error, Error::Busy(_)) && !self.is_open()
    }

    /// Notes that the drive has opened the zone before its first append.
    pub(crate) fn set_open(&mut self) {
        self.is_open = true;
    }

    /// Whether a request concerns this zone that was made because the drive opened no zone.
    pub(crate) fn is_asked_for_drive(&self, requests: Requests) -> bool {
        self.seals_before.for_drive < requests.for_drive
    }

    /// Returns the number of tasks that wait and ask for this zone. `requests` are the numbers of requests,
    /// read before. If no task waits any more, these requests don't concern the zone from now on.
    pub(crate) fn waiting(&mut self, requests: Requests) -> u32 {
        let waiting = self.permit.as_ref().map_or(0, |permit| permit.waiting(self.seals_before, requests));
        if waiting == 0 {
            (self.seals_before, self.asked) = (requests, None);
        }
        waiting
    }

    /// Time left of the [quantum](QUANTUM), in which a holder with records for this zone keeps it, though
    /// this many tasks wait. It begins with the first call.
    pub(crate) fn quantum_left(&mut self, waiting: u32) -> Duration {
        let asked = *self.asked.get_or_insert_with(runtime::now);
        quantum_left(self.position, self.capacity, asked.elapsed(), waiting)
    }

    /// Counts the zone among those of lanes until it is sealed or dropped: there is one more reference to
    /// `of_lanes`.
    pub(crate) fn count_among(&mut self, of_lanes: &Rc<()>) {
        self.of_lanes.get_or_insert_with(|| of_lanes.clone());
    }

    /// Notes that the zone is being sealed, so that its permit is returned soon.
    pub(crate) fn begin_sealing(&mut self) {
        self.of_lanes = None;
        let is_open = self.is_open();
        if let Some(permit) = &mut self.permit {
            permit.begin_return(is_open);
        }
    }

    /// Takes the permit, which must be held while the zone is open on the drive.
    pub(crate) fn take_permit(&mut self) -> Option<Permit> {
        self.permit.take()
    }

    /// The zone.
    pub fn zone(&self) -> u32 {
        self.zone
    }

    /// Generation: number of resets of the zone.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Class of the zone's records.
    pub fn class(&self) -> u8 {
        self.class
    }

    /// First block of the next record.
    pub fn position(&self) -> u32 {
        self.position
    }

    /// Whether the zone has no record.
    pub fn is_empty(&self) -> bool {
        self.position == 0
    }

    /// Number of blocks that can be written, the summary included.
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Whether a zone was [opened ahead](crate::prepare) to follow this one.
    pub(crate) fn has_next(&self) -> bool {
        self.has_next
    }

    /// Notes that a zone is being opened ahead to follow this one.
    pub(crate) fn set_next(&mut self) {
        self.has_next = true;
    }

    /// Whether a record with `blocks` data blocks and `meta` bytes of metadata can be appended: its header
    /// fits a block, the record fits an append, and the zone has space for it and for the summary after it.
    pub fn takes(&self, layout: &Layout, blocks: u32, meta: usize) -> bool {
        let header = Header::length(blocks as usize, meta);
        let summary = self.summary.blocks_with(header, layout.block_bytes()) as u32;
        header <= layout.block_bytes()
            && blocks < layout.max_append
            && self.position + 1 + blocks + summary <= self.capacity
    }

    /// Returns the largest number of data blocks, at most `wanted`, of a record whose metadata takes
    /// `meta(blocks)` bytes; 0 if not even one fits. `meta` must not decrease.
    pub fn most_blocks(&self, layout: &Layout, wanted: u32, meta: impl Fn(u32) -> usize) -> u32 {
        let (mut low, mut high) = (0, wanted.min(layout.zone_blocks));
        while low < high {
            let middle = (low + high).div_ceil(2);
            if self.takes(layout, middle, meta(middle)) { low = middle } else { high = middle - 1 }
        }
        low
    }

    /// Appends a record whose header is the first `header` bytes of the payload.
    ///
    /// # Errors
    /// Errors of the append. The zone must not be appended to afterwards.
    pub async fn append(
        &mut self,
        zones: &dyn Zones,
        layout: &Layout,
        header: &[u8],
        payload: Payload,
    ) -> Result<()> {
        let blocks = layout.blocks_in(payload.len() as u64) as u32;
        let landed = zones.append(ZoneIndex(self.zone), payload).await?;
        if landed != layout.address(self.zone, self.position) {
            return Err(Error::io(format!(
                "append to the log: the record was written at {landed}; expected block {} of zone {}; another program writes to it",
                self.position, self.zone
            )));
        }
        self.position += blocks;
        self.summary.push(header);
        Ok(())
    }

    /// Writes the summary and finishes the zone, which makes it durable. Returns the number of all blocks
    /// that were written, and the memory of the summary for reuse.
    ///
    /// # Errors
    /// Errors of appending and finishing.
    pub async fn seal(
        self,
        zones: &dyn Zones,
        layout: &Layout,
        identity: &Identity,
    ) -> Result<(u32, Builder)> {
        let block = layout.block_bytes();
        let blocks = self.summary.blocks_with(0, block);
        let mut buffer = Buffer::zeroed(blocks * block);
        let place = BlockAddress { zone: self.zone, generation: self.generation, position: self.position };
        self.summary.encode(place, identity, block, buffer.filled_mut());
        let payload = Payload::from(buffer);
        // A long summary takes several appends, which are contiguous because they are sent one at a time.
        let most = layout.max_append as usize * block;
        let mut from = 0;
        while from < payload.len() {
            let to = (from + most).min(payload.len());
            zones.append(ZoneIndex(self.zone), payload.slice(from..to)).await?;
            from = to;
        }
        zones.finish(ZoneIndex(self.zone)).await?;
        Ok((self.position + blocks as u32, self.summary))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantum_ends_with_half_the_capacity_or_a_time_that_tasks_share() {
        let ms = Duration::from_millis;
        let left = |position, age, waiting| quantum_left(position, 15, ms(age), waiting);
        assert_eq!([left(0, 0, 1), left(6, 999, 1), left(0, 100, 4)], [QUANTUM, ms(1), ms(150)]);
        assert_eq!([left(0, 0, 100), left(0, 49, 100)], [MIN_QUANTUM, ms(1)]);
        assert_eq!([left(0, 1000, 1), left(7, 0, 1), left(6, 5000, 1), left(0, 50, 99)], [Duration::ZERO; 4]);
    }
}
