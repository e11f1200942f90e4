//! Admission of a change: capacity is reserved for it, it is queued, and its request waits until it has
//! committed.
//!
//! A change without capacity waits for changes in flight, or for a checkpoint if that can free capacity,
//! before it is refused. Other modules append queued changes (`logkit::lane`), commit them (`commit.rs`), and
//! compute the capacity (`capacity.rs`).

use super::{Acknowledge, Changes, Core};
use crate::entry::LogEntry;
use crate::format::Change;
use block::{Call, Durability, Error, Fullness, Payload, Result};
use logkit::cleaning::Arrival;
use logkit::lane;
use runtime::sync::{Permit, Semaphore};
use runtime::{RequestKey, Requests};
use std::rc::Rc;
use std::time::Duration;

/// Advice to operators of a full log.
const REMEDY: &str = "discard some data, delete snapshots, or grow the disk";

/// Most blocks of a request to one of several shards that is larger than the limit of dirty blocks; a handle
/// divides larger ones.
pub const MAX_REQUEST_BLOCKS: u64 = 1 << 13;
/// Time after which a change looks again whether another shard has returned capacity.
const BETWEEN_LOOKS: Duration = Duration::from_millis(1);

/// Open requests, and their data in memory.
#[derive(Debug)]
pub(super) struct Admission {
    requests: Requests,
    /// Permits for blocks of dirty data.
    dirty: Rc<Semaphore>,
}

impl Admission {
    /// Creates the admission of up to `dirty_blocks` blocks of dirty data.
    pub(super) fn new(dirty_blocks: u64) -> Self {
        Admission { requests: Requests::default(), dirty: Semaphore::new(dirty_blocks as usize) }
    }

    /// Number of open requests.
    pub(super) fn requests(&self) -> usize {
        self.requests.len()
    }

    /// Completes an entry's request with an error; the entry itself may still be committed later.
    pub(super) fn answer(&self, entry: &mut LogEntry, error: &Error) {
        if let Some(request) = entry.request.take() {
            self.requests.item_ended(request, &Err(error.clone()));
        }
    }

    /// Notes that an entry was split.
    pub(super) fn was_cut(&self, entry: &LogEntry) {
        if let Some(request) = entry.request {
            self.requests.item_was_cut(request);
        }
    }
}

impl Core {
    /// Carries out a write of a version as [`change`](Self::change) does. A write that has to wait only for
    /// its record is queued at once; the returned call only waits.
    ///
    /// # Errors
    /// Errors of [`change`](Self::change).
    pub fn write<'a>(
        self: &'a Rc<Self>,
        write: Change,
        payload: Payload,
        durability: Durability,
    ) -> Call<'a, Result<()>> {
        let is_plain = durability == Durability::Visible && self.check_open().is_ok();
        let permit = is_plain.then(|| self.admission.dirty.try_acquire(self.wanted(&payload))).flatten();
        if let Some(permit) = permit
            && let Ok(Some(growth)) = self.admit(std::slice::from_ref(&write))
        {
            let buffers = self.buffers();
            let request = self.admission.requests.begin(1, Some(permit));
            self.queue(write, payload, request, growth, buffers);
            self.kit.events.work.notify_one();
            let waiting = self.admission.requests.wait(request);
            // A write that is acknowledged from the buffer continues without a waiter.
            return if buffers { Call::ready(Ok(())) } else { Call::new(waiting) };
        }
        Call::new(self.change(Changes::from_elem(write, 1), payload, durability))
    }

    /// Number of permits for this data: its blocks, at most the limit.
    fn wanted(&self, payload: &Payload) -> usize {
        let blocks = (payload.len() >> self.layout.block_size.shift()) as u64;
        blocks.min(self.settings.dirty_blocks) as usize
    }

    /// Whether writes are acknowledged from the buffer. While the device below may have no space, they are
    /// acknowledged only after they are written.
    fn buffers(&self) -> bool {
        self.settings.acknowledge == Acknowledge::Buffer && !self.kit.space.is_doubtful()
    }

    /// Carries out changes of a version with their data. Waits until they have committed or, if writes are
    /// acknowledged from the buffer, until they are buffered. The blocks must be in range.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if there is no capacity, [`Error::ReadOnly`] for a log that has failed.
    pub async fn change(
        self: &Rc<Self>,
        changes: Changes,
        payload: Payload,
        durability: Durability,
    ) -> Result<()> {
        let wanted = self.wanted(&payload);
        let mut permit = match wanted {
            0 => Some(None),
            _ => self.admission.dirty.try_acquire(wanted).map(Some),
        };
        if let Some(permit) = &mut permit {
            self.check_open()?;
            match self.admit(&changes) {
                Ok(Some(growth)) => {
                    return self.carry_out(changes, payload, durability, (permit.take(), growth)).await;
                }
                Err(error) if !self.checkpoint_may_help() => return Err(error),
                _ => {}
            }
        }
        // Dropping the call while it waits for capacity doesn't cancel the write.
        let core = self.clone();
        let task = self.kit.tasks.spawn(async move {
            let permit = match permit {
                Some(permit) => permit,
                None => Some(core.admission.dirty.acquire(wanted).await),
            };
            let mut is_certain = false;
            let growth = loop {
                core.check_open()?;
                let settled = core.kit.events.settled.notified();
                match core.admit(&changes) {
                    Ok(Some(growth)) => break growth,
                    Ok(None) if core.peers.is_alone() => settled.await,
                    // Capacity that another shard returns isn't notified here.
                    Ok(None) => drop(runtime::timeout(BETWEEN_LOOKS, settled).await),
                    Err(_) if !is_certain && core.checkpoint_may_help() => {
                        is_certain = true;
                        core.checkpoint_at_home().await?;
                    }
                    Err(error) => return Err(error),
                }
            };
            core.carry_out(changes, payload, durability, (permit, growth)).await
        });
        task.await
    }

    /// Completes the request of an entry that has committed or failed, and returns the reserved capacity.
    pub(crate) fn complete(&self, entry: &LogEntry, outcome: Result<()>) {
        if entry.growth > 0 {
            self.peers.release(u64::from(entry.growth));
            self.kit.events.settled.notify_all();
        }
        if let Some(request) = entry.request {
            self.admission.requests.item_ended(request, &outcome);
        }
    }

    /// Waits until every write acknowledged from the buffer so far has committed.
    ///
    /// # Errors
    /// The failure of the log; [`Error::NoSpace`] while a record waits for space.
    pub(super) async fn drain_buffer(&self) -> Result<()> {
        let ticket = self.buffer.last_ticket();
        while !self.buffer.has_committed(ticket) {
            if let Some(error) = self.kit.failure() {
                return Err(error);
            }
            self.kit.space.check()?;
            self.kit.events.committed.notified().await;
        }
        Ok(())
    }

    /// Waits until no write is in flight; further writes wait until the permit is dropped.
    pub async fn without_writes(&self) -> Permit {
        self.admission.dirty.acquire(self.settings.dirty_blocks as usize).await
    }

    fn check_open(&self) -> Result<()> {
        match self.kit.failure() {
            Some(error) => Err(error),
            None if self.kit.is_closing() => Err(Error::closed("log: it is closed; open it again")),
            None if self.lost.is_some() => Err(crate::salvage::refusal()),
            None => self.kit.space.check(),
        }
    }

    /// Queues changes for which capacity is reserved, and waits for them.
    async fn carry_out(
        self: &Rc<Self>,
        changes: Changes,
        mut payload: Payload,
        durability: Durability,
        (permit, growth): (Option<Permit>, u32),
    ) -> Result<()> {
        let has_data = !payload.is_empty();
        let buffers = self.buffers();
        let mut at = 0;
        let mut left = growth;
        let request = self.admission.requests.begin(changes.len() as u32, permit);
        let shift = self.layout.block_size.shift();
        for change in changes {
            let bytes = (change.data_blocks() as usize) << shift;
            let payload = match at == 0 && bytes == payload.len() {
                true => std::mem::take(&mut payload),
                false => payload.slice(at..at + bytes),
            };
            at += bytes;
            let growth = take_share(&mut left, &change);
            self.queue(change, payload, request, growth, buffers);
        }
        self.kit.events.work.notify_one();
        let waiting = self.admission.requests.wait(request);
        if buffers && has_data && durability == Durability::Visible {
            // The write continues; reads find its data in the buffer.
            return Ok(());
        }
        waiting.await?;
        match durability {
            Durability::Visible => Ok(()),
            Durability::Durable => self.flush_committed().await,
        }
    }

    /// Queues a change of a request, with the capacity that is reserved for it. The caller wakes a lane.
    #[inline]
    fn queue(&self, change: Change, payload: Payload, request: RequestKey, growth: u32, buffers: bool) {
        let class = self.class_of(&change);
        let ticket = match &change {
            Change::Write { version, block, .. } if buffers => {
                self.buffer.insert(*version, *block, &payload, self.layout.block_bytes())
            }
            _ => 0,
        };
        let joins = self.joins_of(&change);
        lane::push(self, class, LogEntry { change, payload, request: Some(request), growth, joins, ticket });
    }

    /// Reserves capacity for the blocks that the changes add. `None` if that depends on changes in flight:
    /// they may have reserved more than they need, because the blocks that they overwrite are looked up only
    /// when capacity is short. Fails with [`Error::NoSpace`] if there is no capacity.
    fn admit(&self, changes: &[Change]) -> Result<Option<u32>> {
        let most: u64 = changes.iter().map(|change| u64::from(change.data_blocks())).sum();
        if most == 0 {
            return Ok(Some(0));
        }
        // Reserved before the live blocks are read: a shard counts blocks as live before it returns their
        // reservation.
        let own = self.peers.reserve(most);
        let growing = own + self.most_of_others();
        let (live, capacity) = (self.kit.pool.live_data(), self.capacity(growing + most));
        // While the device below has no space, requests are answered before their changes, which keep their
        // capacity: other shards may have reserved more than the limit of their requests.
        let is_certain = self.peers.is_alone() || !self.kit.space.is_doubtful();
        if live + growing + most > capacity || !is_certain {
            self.peers.release(most);
            return self.admit_exactly(changes, capacity);
        }
        self.note_space(live + growing + most, capacity, false);
        Ok(Some(most as u32))
    }

    /// Most blocks that other shards may have reserved: far from a full log, a write doesn't read what they
    /// have, whose cache lines change with every write there.
    fn most_of_others(&self) -> u64 {
        u64::from(self.peers.count() - 1) * self.settings.dirty_blocks.max(MAX_REQUEST_BLOCKS)
    }

    /// Reserves capacity for the blocks that the changes add exactly, in a log that is nearly full.
    fn admit_exactly(&self, changes: &[Change], capacity: u64) -> Result<Option<u32>> {
        let versions = self.versions.borrow();
        let growth = changes.iter().map(|change| match change {
            Change::Write { version, block, count } => versions
                .position(*version)
                .map_or(0, |position| versions.growth(position, *block, u64::from(*count))),
            _ => 0,
        });
        let growth: u64 = growth.sum();
        drop(versions);
        let growing = self.peers.reserve(growth) + self.peers.growing_of_others();
        let live = self.kit.pool.live_data();
        let has_room = growth == 0 || live + growing + growth <= self.capacity(growing + growth);
        if has_room {
            self.note_space(live + growing + growth, capacity, false);
            return Ok(Some(growth as u32));
        }
        self.peers.release(growth);
        if growing > 0 && live + growth <= self.capacity(growth) {
            return Ok(None);
        }
        self.note_space(live + growing, capacity, true);
        Err(Error::no_space(format!(
            "the log is full: {live} blocks of data, of {}; {REMEDY}",
            self.capacity(growth)
        )))
    }

    /// Warns once if the log refused a write because it is full.
    fn note_space(&self, used: u64, capacity: u64, refused: bool) {
        if self.peers.totals().warning.note(used, capacity, refused) {
            tracing::warn!(
                "log {}: the log is full, writes are refused: {used} of {capacity} blocks are used; {REMEDY}",
                self.kit.identity.uuid,
            );
        }
    }

    /// Whether the versions together may have more blocks than the capacity.
    fn may_fill(&self, capacity: u64) -> bool {
        let blocks = self.versions.borrow().list.iter().map(|version| version.blocks).sum::<u64>();
        blocks > capacity
    }

    /// Whether the log refused a write, and has had no free capacity since then.
    pub(crate) fn is_full(&self) -> bool {
        self.peers.totals().warning.is_full(self.kit.pool.live_data(), self.capacity(0))
    }

    /// Live blocks of the capacity; what the cleaner can give back isn't used.
    pub(crate) fn fullness(&self) -> Fullness {
        let (capacity, block) = (self.capacity(0), self.layout.block_size.bytes());
        Fullness {
            resource: "space",
            used_bytes: self.kit.pool.live_data() * block,
            limit_bytes: capacity * block,
            can_fill: self.lost.is_none() && self.may_fill(capacity),
            remedy: REMEDY,
        }
    }

    fn class_of(&self, change: &Change) -> u8 {
        let policy = self.kit.policy.borrow();
        let arrival = match change {
            // Acknowledged writes are numbered in the order of acknowledgement, so they share one queue.
            _ if self.settings.acknowledge == Acknowledge::Buffer => Arrival::New,
            Change::Write { version, block, .. } => {
                let versions = self.versions.borrow();
                let old = versions.get(*version).map(|version| version.map.lookup(*block));
                match old.filter(|old| old.is_mapped()) {
                    Some(old) => {
                        let (opened, class) = self.kit.pool.opened(self.layout.place(old).zone.0);
                        Arrival::Overwrite { age: self.kit.clock().saturating_sub(opened), class }
                    }
                    None => Arrival::New,
                }
            }
            _ => Arrival::New,
        };
        policy.place(arrival)
    }
}

/// Takes the share of a change in the capacity that is left of its request's: each change returns its own
/// when it has committed, so that none is returned before the blocks that it is for are live.
fn take_share(left: &mut u32, change: &Change) -> u32 {
    let share = change.data_blocks().min(*left);
    *left -= share;
    share
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::VersionId;

    #[test]
    fn each_change_of_a_request_has_a_share_of_its_capacity() {
        let write = |count| Change::Write { version: VersionId::HEAD, block: 0, count };
        let unmap = Change::Unmap { version: VersionId::HEAD, block: 0, count: 9 };
        let changes = [write(8), unmap, write(3), write(8)];
        for (growth, expected) in [(19, [8, 0, 3, 8]), (10, [8, 0, 2, 0]), (0, [0; 4])] {
            let mut left = growth;
            assert_eq!(changes.each_ref().map(|change| take_share(&mut left, change)), expected);
            assert_eq!(left, 0);
        }
    }
}
