//! Reads from nodes: the slot of a page, and the pieces after it.
//!
//! Of several copies the one on the fastest node is read. If that takes longer than 99 % of the node's reads,
//! another copy is also read, and the first answer is used. A copy without the slot is damaged: another one
//! is read, and the damaged one is replaced.
//!
//! A read whose pieces are covered by a read in flight waits for that one: a kernel that swaps in reads
//! neighbouring pages at the same time.

use super::{Core, add};
use crate::arena::{BLOCK, BLOCK_GRANULES};
use crate::entry::{Entry, Place, lost, pieces_of};
use crate::nodes::Node;
use crate::slot::{GRANULE, PAGE, append_page};
use crate::zones::Replica;
use block::{Buffer, Error, Result};
use runtime::sync::Notify;
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::ops::Range;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

/// Number of attempts at a read whose page is moved meanwhile.
const ATTEMPTS: u32 = 16;
/// Reads in flight for which memory is reserved.
const RESERVED_READS: usize = 256;
/// Pieces of a block.
const BLOCK_PIECES: u64 = (BLOCK / PAGE) as u64;

/// Reads of nodes in flight.
#[derive(Debug, Default)]
pub(crate) struct Fetches {
    /// Id and pieces of each.
    ranges: RefCell<Vec<(u64, Range<u64>)>>,
    last_id: Cell<u64>,
    ended: Notify,
}

impl Fetches {
    pub fn new() -> Self {
        Fetches { ranges: RefCell::new(Vec::with_capacity(RESERVED_READS)), ..Fetches::default() }
    }

    /// Registers a read of pieces, until the returned value is dropped.
    fn begin(&self, pieces: Range<u64>) -> Fetch<'_> {
        let id = self.last_id.get() + 1;
        self.last_id.set(id);
        self.ranges.borrow_mut().push((id, pieces));
        Fetch { fetches: self, id }
    }

    /// Returns the id of a read in flight that covers these pieces.
    fn find_covering(&self, pieces: &Range<u64>) -> Option<u64> {
        let ranges = self.ranges.borrow();
        let found = ranges.iter().find(|(_, range)| range.start <= pieces.start && pieces.end <= range.end);
        found.map(|(id, _)| *id)
    }

    /// Waits until a read has ended.
    async fn wait_for(&self, id: u64) {
        while self.ranges.borrow().iter().any(|(other, _)| *other == id) {
            self.ended.notified().await;
        }
    }
}

/// A registered read; dropping it wakes the reads that wait for it.
struct Fetch<'f> {
    fetches: &'f Fetches,
    id: u64,
}

impl Drop for Fetch<'_> {
    fn drop(&mut self) {
        self.fetches.ranges.borrow_mut().retain(|(id, _)| *id != self.id);
        self.fetches.ended.notify_all();
    }
}

/// A readable copy: number of its node, `None` for the backup device, and its region.
pub(crate) type Source = (Option<u8>, u32);

impl Core {
    /// Reads a page from a node, and appends it to a buffer.
    pub(crate) async fn fetch(self: &Rc<Self>, number: u32, ahead: u32, buffer: &mut Buffer) -> Result<()> {
        let mut has_waited = false;
        for _ in 0..ATTEMPTS {
            if self.append_here(number, buffer)? {
                return Ok(());
            }
            let Entry::Stored(place) = self.arena.entry(number) else { continue };
            let (first, end) = pieces_of(place);
            // Waits only once: after a failed read its waiters go to the nodes at the same time, not one
            // after another.
            if !has_waited && let Some(fetch) = self.fetches.find_covering(&(first..end)) {
                has_waited = true;
                self.fetches.wait_for(fetch).await;
                continue;
            }
            match self.fetch_place(number, place, ahead, buffer).await {
                Ok(()) => return Ok(()),
                Err(error) if self.arena.entry(number) == Entry::Stored(place) => return Err(error),
                // The page was rewritten or moved meanwhile.
                Err(_) => {}
            }
        }
        Err(Error::io(format!("page {number} is moved all the time; {ATTEMPTS} reads didn't find it")))
    }

    /// Reads a page from this place.
    async fn fetch_place(
        self: &Rc<Self>,
        number: u32,
        place: Place,
        ahead: u32,
        buffer: &mut Buffer,
    ) -> Result<()> {
        let (first, end) = pieces_of(place);
        let in_block = first % BLOCK_PIECES;
        let asked = end - first;
        let wanted = asked + u64::from(ahead.max(self.frames.borrow().window().saturating_sub(asked as u32)));
        let count = wanted.min(BLOCK_PIECES - in_block);
        let (zone, block_offset) = self.zone_of(place.granule / BLOCK_GRANULES);
        let offset = block_offset + in_block * PAGE as u64;
        let bytes = count as usize * PAGE;
        let _fetch = self.fetches.begin(first..first + count);
        let mut sources = self.sources(zone);
        let mut unreachable = self.unreachable(zone);
        let (mut has_retried, mut restarts) = (false, 0);
        while !sources.is_empty() {
            let (source, outcome) = self.read_sources(&mut sources, offset, bytes).await;
            let found = match outcome {
                Ok(found) => found,
                Err(error) => {
                    unreachable = Some(error);
                    // Error of one request: other copies are read, and the last one once more.
                    if self.node_of(source).is_up() {
                        self.set_damaged(zone, source);
                        if sources.is_empty() && !std::mem::replace(&mut has_retried, true) {
                            sources.push(source);
                        }
                    }
                    continue;
                }
            };
            add(&self.counters.node_read, bytes as u64);
            // The read begins with the piece in which the slot begins.
            let at = place.granule as usize * GRANULE % PAGE;
            let slot = self.slot_at(number, place, &found.filled()[at..]);
            if append_page(buffer, |page| Ok(slot.is_some_and(|slot| self.unpack(&slot, page))))? {
                self.keep(first, asked, &found);
                return Ok(());
            }
            if self.arena.entry(number) != Entry::Stored(place) {
                return Err(lost(number));
            }
            // The copy's region may have been released meanwhile, after a new copy was made.
            if !self.sources(zone).contains(&source) && restarts < ATTEMPTS {
                sources = self.sources(zone);
                restarts += 1;
                continue;
            }
            // A single copy is read once more: the bytes may have been damaged in transit.
            if !self.note_damaged(zone, source) && !has_retried {
                has_retried = true;
                sources.push(source);
            }
        }
        if let Some(error) = unreachable {
            return Err(error);
        }
        if self.arena.entry(number) == Entry::Stored(place) {
            self.replace(number, Entry::Lost);
        }
        Err(lost(number))
    }

    /// Caches the pieces of a read. The slot was valid, so the zone wasn't reset meanwhile.
    fn keep(&self, first: u64, asked: u64, found: &Buffer) {
        let mut frames = self.frames.borrow_mut();
        for (piece, bytes) in (first..).zip(found.filled().chunks_exact(PAGE)) {
            frames.put(&self.arena, piece, bytes, piece < first + asked);
        }
    }

    /// Readable copies of a zone: whole ones, the fastest first, then others, and last the backup device.
    /// Checksums reject stale contents.
    pub(crate) fn sources(&self, zone: u32) -> SmallVec<[Source; 4]> {
        let known = self.zones.get(zone);
        let mut up: SmallVec<[Replica; 4]> =
            known.copies.iter().filter(|copy| self.nodes[usize::from(copy.node)].is_up()).copied().collect();
        up.sort_by_key(|copy| (!copy.is_whole, self.nodes[usize::from(copy.node)].latency(0.5)));
        let mut sources: SmallVec<[Source; 4]> =
            up.iter().map(|copy| (Some(copy.node), copy.region)).collect();
        if self.backup.as_ref().is_some_and(Node::is_up) {
            sources.push((None, zone));
        }
        sources
    }

    /// Error of a copy that may exist on a node that doesn't answer.
    pub(crate) fn unreachable(&self, zone: u32) -> Option<Error> {
        let known = self.zones.get(zone);
        let nodes = known.copies.iter().map(|copy| &self.nodes[usize::from(copy.node)]);
        let down = nodes.chain(&self.backup).find(|node| !node.is_up())?;
        Some(Error::disconnected(format!("node {} is down", down.name)))
    }

    /// Node of a source.
    pub(crate) fn node_of(&self, source: Source) -> &Node {
        match source.0 {
            Some(node) => &self.nodes[usize::from(node)],
            None => self.backup.as_ref().expect("a source names the backup device only if there is one"),
        }
    }

    /// Reads from the first source and, if it is slow, also from the second one. Removes the source that
    /// answered from the list, and returns it.
    async fn read_sources(
        &self,
        sources: &mut SmallVec<[Source; 4]>,
        offset: u64,
        bytes: usize,
    ) -> (Source, Result<Buffer>) {
        let first = sources.remove(0);
        let node = self.node_of(first);
        let mut one = pin!(node.read(first.1, offset, bytes));
        let Some(second) = sources.first().copied().filter(|second| second.0.is_some()) else {
            return (first, one.await);
        };
        if let Ok(outcome) = runtime::timeout(node.hedge_after(), one.as_mut()).await {
            return (first, outcome);
        }
        add(&self.counters.hedged, 1);
        let mut other = pin!(self.node_of(second).read(second.1, offset, bytes));
        let (mut failed_one, mut failed_other) = (None, false);
        let answer = poll_fn(|context| {
            if failed_one.is_none()
                && let Poll::Ready(outcome) = one.as_mut().poll(context)
            {
                match outcome {
                    Ok(buffer) => return Poll::Ready((first, Ok(buffer))),
                    Err(error) => failed_one = Some(error),
                }
            }
            if !failed_other && let Poll::Ready(outcome) = other.as_mut().poll(context) {
                match outcome {
                    Ok(buffer) => return Poll::Ready((second, Ok(buffer))),
                    Err(_) => failed_other = true,
                }
            }
            match failed_one.take() {
                Some(error) if failed_other => Poll::Ready((first, Err(error))),
                error => {
                    failed_one = error;
                    Poll::Pending
                }
            }
        });
        let (source, outcome) = answer.await;
        sources.remove(0);
        // The source that didn't answer may still be needed.
        sources.push(if source == second { first } else { second });
        (source, outcome)
    }

    /// Notes that a copy lacks a slot. Returns the result of [`set_damaged`](Self::set_damaged).
    fn note_damaged(&self, zone: u32, source: Source) -> bool {
        let node = self.node_of(source);
        add(&node.corrupt, 1);
        // A node that lost its memory lacks the slots of all pages: only powers of two are logged.
        let lost = node.corrupt.get();
        if lost.is_power_of_two() {
            let name = &node.name;
            tracing::warn!(
                "zone {zone}: node {name} doesn't have what was written to it; so far: {lost} slots"
            );
        }
        self.set_damaged(zone, source)
    }

    /// Notes that a part of a copy can't be read. Returns true if the copy is made again, because another one
    /// exists, or was already incomplete.
    pub(crate) fn set_damaged(&self, zone: u32, (node, region): Source) -> bool {
        let is_up = |copy: &Replica| self.nodes[usize::from(copy.node)].is_up();
        let backup_is_up = self.backup.as_ref().is_some_and(Node::is_up);
        let known = self.zones.get(zone);
        let was_whole = match node {
            Some(node) => known.copies.contains(&Replica { node, region, is_whole: true }),
            None => known.has_backup,
        };
        let on_backup = usize::from(known.has_backup && backup_is_up);
        let whole = known.copies.iter().filter(|copy| copy.is_whole && is_up(copy)).count() + on_backup;
        let has_other = whole > 1;
        if was_whole && has_other {
            self.set_not_whole(zone, (node, region));
        }
        !was_whole || has_other
    }
}
