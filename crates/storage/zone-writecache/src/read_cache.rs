//! The read cache: chunks of the origin's zones in a region of the fast device after the ring, with an index
//! in memory. It is empty after an open.
//!
//! # Promises
//! - A chunk is keyed by its zone and the zone's generation, and only bytes below the end that is durable at
//!   the origin are admitted. So no read returns bytes of an earlier generation.
//! - A chunk is part of at most one fetch at a time.
//! - All memory is bounded.
//!
//! This module decides, without I/O; `cached_reads` does the I/O.

mod counters;
mod fetches;
mod region;
mod slots;
mod streams;

pub use counters::{Counters, METRICS};
pub use fetches::Fetch;
pub use region::{Region, SIZES, check_size};
pub use slots::{Part, Sums};

use crate::counters::count;
use block::{Status, ZoneAddress, ZoneIndex};
use fetches::Fetches;
use slots::{ChunkKey, Slots};
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;
use streams::{Note, Streams};

/// Longest wait for reads of a zone of the origin before it is reset there.
const MAX_FETCH_WAIT: Duration = Duration::from_secs(30);

/// State of a zone for which reads and fetches are planned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ZoneEnd {
    /// The zone.
    pub zone: ZoneIndex,
    /// Generation that users see.
    pub generation: u64,
    /// Bytes of this generation that are durable at the origin; 0 if it has another generation.
    pub durable: u64,
}

/// Source of a piece of a read.
#[derive(Debug, Clone)]
pub enum Source {
    /// A chunk of the cache, which has a reader until [`ReadCache::end_read`].
    Slot(Part),
    /// Bytes of a fetch, after this number of bytes.
    Fetch(Rc<Fetch>, usize),
    /// The origin; the bytes aren't admitted.
    Origin,
}

/// A read that is divided into pieces, and the fetches to start for it.
#[derive(Debug, Default)]
pub struct Plan {
    /// Bytes and source of each piece, in order.
    pub pieces: Vec<(usize, Source)>,
    /// New fetches.
    pub fetches: Vec<Rc<Fetch>>,
    /// Bytes that follow a sequential read and are to be fetched ahead.
    pub ahead: Option<Ahead>,
}

/// Bytes of a zone to fetch ahead of a sequential read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ahead {
    /// First byte.
    pub from: u64,
    /// End.
    pub to: u64,
    /// Stream of the read.
    stream: usize,
}

/// Mutable state of the cache.
struct State {
    slots: Slots,
    fetches: Fetches,
    streams: Streams,
}

/// The read cache.
pub struct ReadCache {
    region: Option<Region>,
    state: RefCell<State>,
    /// Counters since the cache was opened.
    pub counters: Counters,
    fetch_ended: runtime::sync::Notify,
}

impl ReadCache {
    /// Creates an empty cache in a region, for an origin with this number of zones. Without a region every
    /// read goes to the origin.
    pub fn new(region: Option<Region>, zones: u32) -> Self {
        let limit = region.as_ref().map_or(0, |region| region.fetch_bytes(zones));
        let slots = region.as_ref().map_or(0, |region| region.slots);
        let window = region.as_ref().map_or(0, |region| region.max_window(zones));
        let chunk = region.as_ref().map_or(1, |region| region.chunk);
        ReadCache {
            state: RefCell::new(State {
                slots: Slots::new(slots as usize),
                fetches: Fetches::new(limit),
                streams: Streams::new(chunk, window),
            }),
            region,
            counters: Counters::default(),
            fetch_ended: runtime::sync::Notify::new(),
        }
    }

    /// The region; `None` if reads aren't cached.
    pub fn region(&self) -> Option<&Region> {
        self.region.as_ref()
    }

    /// Divides a read of a zone into pieces, and begins the fetches of chunks that are missing. Each fetch of
    /// the plan has to be carried out, and ended.
    pub fn plan(&self, zone: ZoneEnd, offset: u64, length: u64) -> Plan {
        let mut plan = Plan::default();
        let Some(region) = &self.region else {
            plan.pieces.push((length as usize, Source::Origin));
            return plan;
        };
        let state = &mut *self.state.borrow_mut();
        let end = offset + length;
        let durable = region.whole_units(zone.durable);
        let mut at = offset;
        while at < end.min(durable) {
            let chunk = region.chunk_at(at, durable);
            let part = at - chunk.start..chunk.end.min(end) - chunk.start;
            let key = ChunkKey::new(zone.zone, zone.generation, chunk.start / region.chunk);
            let bytes = part.end - part.start;
            if let Some(found) = state.slots.begin_read(key, part.clone()) {
                self.counters.hit(bytes, found.was_ahead.then_some(chunk.end - chunk.start));
                plan.pieces.push((bytes as usize, Source::Slot(found)));
            } else {
                count(&self.counters.read_cache_misses, 1);
                count(&self.counters.read_cache_missed_bytes, bytes);
                match state.fetches.find(key) {
                    Some(fetch) if fetch.covers(at + bytes) => {
                        if fetch.use_chunk(chunk.start, region.chunk) {
                            count(&self.counters.read_ahead_used_bytes, chunk.end - chunk.start);
                        }
                        add_piece(&mut plan.pieces, bytes, fetch, at);
                    }
                    Some(_) => add_origin(&mut plan.pieces, bytes),
                    None => {
                        let run = state.missing_run(region, zone, chunk.start, end.min(durable), durable);
                        let until = run.end.min(end);
                        match state.fetches.begin(region, zone, run, false) {
                            Some(fetch) => {
                                add_piece(&mut plan.pieces, until - at, fetch.clone(), at);
                                plan.fetches.push(fetch);
                            }
                            None => add_origin(&mut plan.pieces, until - at),
                        }
                        at = until;
                        continue;
                    }
                }
            }
            at += bytes;
        }
        if at < end {
            add_origin(&mut plan.pieces, end - at);
        }
        let note = Note { zone: zone.zone, generation: zone.generation, offset, length };
        plan.ahead = state.streams.note(note, durable).map(|(stream, bytes)| Ahead {
            from: bytes.start,
            to: bytes.end,
            stream,
        });
        plan
    }

    /// Begins the fetches of what is missing in a range ahead of a sequential read, without the chunks for
    /// which `is_held` returns true. Each of them has to be carried out, and ended.
    pub fn begin_ahead(
        &self,
        zone: ZoneEnd,
        ahead: Ahead,
        mut is_held: impl FnMut(ZoneAddress, u64) -> bool,
    ) -> Vec<Rc<Fetch>> {
        let Some(region) = &self.region else { return Vec::new() };
        let state = &mut *self.state.borrow_mut();
        let durable = region.whole_units(zone.durable);
        let mut fetches = Vec::new();
        let mut at = ahead.from / region.chunk * region.chunk;
        let end = ahead.to.min(durable);
        while at < end {
            let chunk = region.chunk_at(at, durable);
            let key = ChunkKey::new(zone.zone, zone.generation, chunk.start / region.chunk);
            let length = chunk.end - chunk.start;
            let is_there = state.slots.has(key, length)
                || state.fetches.find(key).is_some()
                || is_held(ZoneAddress::new(zone.zone.0, at), length);
            if is_there {
                at = chunk.end;
                continue;
            }
            let mut run = state.missing_run(region, zone, at, end, durable);
            // A chunk in the log ends the request as well.
            let mut next = chunk.end;
            while next < run.end {
                let chunk = region.chunk_at(next, durable);
                if is_held(ZoneAddress::new(zone.zone.0, next), chunk.end - chunk.start) {
                    run.end = next;
                }
                next = chunk.end;
            }
            let Some(fetch) = state.fetches.begin(region, zone, run.clone(), true) else { break };
            count(&self.counters.read_ahead_requests, 1);
            count(&self.counters.read_ahead_bytes, run.end - run.start);
            fetches.push(fetch);
            at = run.end;
        }
        state.streams.set_ahead(ahead.stream, zone.zone, ahead.to.min(at));
        fetches
    }

    /// Ends a read of a chunk. A chunk whose bytes were wrong is removed, and its slot is retired until the
    /// next open.
    pub fn end_read(&self, part: &Part, is_good: bool) {
        let state = &mut *self.state.borrow_mut();
        if !is_good {
            count(&self.counters.read_cache_errors, 1);
        }
        state.slots.end_read(part, is_good);
    }

    /// Takes a slot for a chunk that is written next; `None` if all are in use.
    pub fn take_slot(&self) -> Option<u32> {
        let (slot, wasted) = self.state.borrow_mut().slots.take()?;
        count(&self.counters.read_ahead_wasted_bytes, wasted);
        Some(slot)
    }

    /// Frees a slot whose chunk isn't admitted.
    pub fn release_slot(&self, slot: u32) {
        self.state.borrow_mut().slots.release(slot);
    }

    /// Retires a slot that was taken, and can't be written, until the next open.
    pub fn retire_slot(&self) {
        count(&self.counters.read_cache_errors, 1);
        self.state.borrow_mut().slots.retire();
    }

    /// Admits the chunk of a fetch that begins at this byte of its zone, which was written to a slot.
    pub fn admit(&self, fetch: &Fetch, start: u64, length: u64, slot: u32, sums: Sums) {
        let Some(region) = &self.region else { return };
        let state = &mut *self.state.borrow_mut();
        let key = ChunkKey::new(fetch.at.zone, fetch.generation, start / region.chunk);
        let is_ahead = fetch.is_unused_ahead(start, region.chunk);
        let wasted = state.slots.admit(slot, key, length, sums, is_ahead);
        count(&self.counters.read_ahead_wasted_bytes, wasted);
        count(&self.counters.read_cache_fills, 1);
        count(&self.counters.read_cache_filled_bytes, length);
    }

    /// Notes that a chunk of a fetch isn't admitted.
    pub fn drop_chunk(&self, fetch: &Fetch, start: u64, length: u64) {
        let Some(region) = &self.region else { return };
        if fetch.is_unused_ahead(start, region.chunk) {
            count(&self.counters.read_ahead_wasted_bytes, length);
        }
    }

    /// Ends a fetch: its chunks are in the cache, or may be fetched again.
    pub fn end_fetch(&self, fetch: &Rc<Fetch>) {
        let Some(region) = &self.region else { return };
        self.state.borrow_mut().fetches.end(region, fetch);
        self.fetch_ended.notify_all();
    }

    /// Removes the chunks of a zone, which was reset; `end` is the end of its bytes before that.
    pub fn forget_zone(&self, zone: ZoneIndex, generation: u64, end: u64) {
        let Some(region) = &self.region else { return };
        let state = &mut *self.state.borrow_mut();
        let wasted = state.slots.forget_zone(zone, generation, end.div_ceil(region.chunk));
        state.streams.forget_zone(zone);
        count(&self.counters.read_ahead_wasted_bytes, wasted);
    }

    /// Waits until no fetch of this zone is in flight: a zone that is reset at the origin has no readers. The
    /// caller has changed the zone's generation, so that no other fetch begins, and the bytes of those in
    /// flight aren't used. The wait ends after [`MAX_FETCH_WAIT`], so that a fetch that never ends doesn't
    /// stop the uploads.
    pub async fn wait_until_fetches_ended(&self, zone: ZoneIndex) {
        let ended = async {
            while self.state.borrow().fetches.has_zone(zone) {
                self.fetch_ended.notified().await;
            }
        };
        if runtime::timeout(MAX_FETCH_WAIT, ended).await.is_err() {
            tracing::warn!(
                "zone {zone} is reset at the origin, although a read of it hasn't ended within {MAX_FETCH_WAIT:?}"
            );
        }
    }

    /// Adds the fields of the status.
    pub fn add_status(&self, status: &mut Status) {
        let state = self.state.borrow();
        let (bytes, chunk) = self.region.as_ref().map_or((0, 0), |region| (region.bytes(), region.chunk));
        status.insert("read_cache_bytes".into(), bytes.into());
        status.insert("read_cache_chunk_bytes".into(), chunk.into());
        status.insert("read_cache_used_bytes".into(), (state.slots.used() as u64 * chunk).into());
        status.insert("read_cache_lost_bytes".into(), (state.slots.retired() as u64 * chunk).into());
        status.insert("read_cache_fetching_bytes".into(), state.fetches.bytes().into());
        for (name, value) in self.counters.all() {
            status.insert(name.into(), value.into());
        }
    }
}

impl State {
    /// Bytes from a missing chunk to the next one that is cached or being fetched, within one request and up
    /// to `end`.
    fn missing_run(
        &self,
        region: &Region,
        zone: ZoneEnd,
        start: u64,
        end: u64,
        durable: u64,
    ) -> std::ops::Range<u64> {
        let limit = region.request_end(start);
        let mut run = start..region.chunk_at(start, durable).end;
        while run.end < end.min(limit) {
            let chunk = region.chunk_at(run.end, durable);
            let key = ChunkKey::new(zone.zone, zone.generation, chunk.start / region.chunk);
            if self.slots.has(key, chunk.end - chunk.start) || self.fetches.find(key).is_some() {
                break;
            }
            run.end = chunk.end;
        }
        run
    }
}

/// Adds bytes of a fetch, to the last piece if that is of the same fetch.
fn add_piece(pieces: &mut Vec<(usize, Source)>, bytes: u64, fetch: Rc<Fetch>, at: u64) {
    if let Some((last, Source::Fetch(of, _))) = pieces.last_mut()
        && Rc::ptr_eq(of, &fetch)
    {
        *last += bytes as usize;
        return;
    }
    let skipped = (at - fetch.at.offset.0) as usize;
    pieces.push((bytes as usize, Source::Fetch(fetch, skipped)));
}

/// Adds bytes of the origin, to the last piece if that is of the origin as well.
fn add_origin(pieces: &mut Vec<(usize, Source)>, bytes: u64) {
    match pieces.last_mut() {
        Some((last, Source::Origin)) => *last += bytes as usize,
        _ => pieces.push((bytes as usize, Source::Origin)),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // A failing test panics.
mod tests;
