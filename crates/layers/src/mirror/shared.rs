//! What all shards see of a mirror: which legs may be read without asking, and what `status` says.

use super::core::Core;
use super::format::SlotState;
use super::leg::{LegCounters, Mask, each};
use block::{DeviceGeometry, Status};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// See the module's head.
#[derive(Debug)]
pub struct Shared {
    /// The shape of the mirror.
    pub geometry: DeviceGeometry,
    /// Legs that any shard may read anywhere; none where the home has to be asked.
    pub readable: AtomicU32,
    /// By number.
    pub legs: Vec<LegCounters>,
    /// Reads so far, for the probes of legs that nobody chooses.
    pub reads: AtomicU64,
    /// Writes that are behind.
    pub behind_writes: AtomicU64,
    /// The bytes that these hold.
    pub behind_bytes: AtomicU64,
    /// Bytes that were copied from leg to leg.
    pub copied_bytes: AtomicU64,
    /// Bytes that a scrub has compared since it began.
    pub scrubbed_bytes: AtomicU64,
    /// Sectors of 512 bytes that the last scrub found different.
    pub mismatches: AtomicU64,
    /// What changes seldom.
    pub summary: Mutex<Summary>,
}

/// What changes seldom.
#[derive(Debug, Clone, Default)]
pub struct Summary {
    array: String,
    legs: Vec<(String, &'static str, bool)>,
    places: usize,
    active: Mask,
    events: u64,
    source: usize,
    chunk: u64,
    chunks: u64,
    dirty: u64,
    differ: u64,
    lacking: u64,
    fast_flush: bool,
    /// `check`, `repair` or none.
    scrub: Option<&'static str>,
}

impl Shared {
    /// For so many legs.
    pub fn new(geometry: DeviceGeometry, legs: usize) -> Self {
        Shared {
            geometry,
            readable: AtomicU32::new(0),
            legs: (0..legs).map(|_| LegCounters::default()).collect(),
            reads: AtomicU64::new(0),
            behind_writes: AtomicU64::new(0),
            behind_bytes: AtomicU64::new(0),
            copied_bytes: AtomicU64::new(0),
            scrubbed_bytes: AtomicU64::new(0),
            mismatches: AtomicU64::new(0),
            summary: Mutex::default(),
        }
    }

    /// What `status` says.
    pub fn status(&self) -> Status {
        let summary = self.summary.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut status = Status::new();
        let number = |value: &AtomicU64| value.load(Ordering::Relaxed);
        status.insert("array".into(), summary.array.into());
        status.insert("bytes".into(), self.geometry.bytes().into());
        let is_whole = summary.active.count_ones() as usize == summary.places;
        let state = match () {
            () if !is_whole && summary.lacking > 0 => "degraded, rebuilding",
            () if !is_whole => "degraded",
            () if summary.differ > 0 => "resyncing",
            () => "clean",
        };
        status.insert("state".into(), state.into());
        let behind = number(&self.behind_bytes);
        // What differs is whole on the source alone; without other legs, so is everything.
        let unequal = match summary.active.count_ones() {
            1 => self.geometry.bytes(),
            _ => (summary.differ * summary.chunk).min(self.geometry.bytes()),
        };
        status.insert("behind_writes".into(), number(&self.behind_writes).into());
        status.insert("behind_bytes".into(), behind.into());
        status.insert("one_copy_bytes".into(), unequal.max(behind).into());
        status.insert("flush".into(), if summary.fast_flush { "fast" } else { "all" }.into());
        status.insert("events".into(), summary.events.into());
        status.insert("bitmap_chunk".into(), summary.chunk.into());
        status.insert("dirty_chunks".into(), summary.dirty.into());
        status.insert("chunks".into(), summary.chunks.into());
        status.insert("chunks_to_copy".into(), summary.differ.max(summary.lacking).into());
        status.insert("copied_bytes".into(), number(&self.copied_bytes).into());
        status.insert("sync_action".into(), summary.scrub.unwrap_or("idle").into());
        status.insert("scrubbed_bytes".into(), number(&self.scrubbed_bytes).into());
        status.insert("mismatch_sectors".into(), number(&self.mismatches).into());
        let source = summary.source;
        let legs = summary.legs.iter().zip(&self.legs).enumerate();
        let legs = legs.map(|(index, ((name, state, write_mostly), leg))| {
            let mut status = Status::new();
            status.insert("leg".into(), name.as_str().into());
            status.insert("state".into(), (*state).into());
            status.insert("write_mostly".into(), (*write_mostly).into());
            status.insert("source".into(), (index == source).into());
            status.insert("read_latency_ns".into(), number(&leg.latency).into());
            status.insert("reads".into(), number(&leg.reads).into());
            status.insert("writes".into(), number(&leg.writes).into());
            status.insert("read_errors".into(), number(&leg.read_errors).into());
            status.insert("corrected".into(), number(&leg.corrected).into());
            serde_json::Value::Object(status)
        });
        status.insert("legs".into(), legs.collect::<Vec<_>>().into());
        status
    }
}

impl Core {
    /// Lets the other shards see how things are.
    pub fn publish(&self) {
        let active = self.active.get();
        let fast = active & !self.settings.write_mostly;
        let readable = match () {
            () if self.chunks.differ() > 0 && active.count_ones() > 1 => 0,
            // What is being copied may have been read already, from a leg that is lost by now.
            () if self.copying.get() > 0 => 0,
            () if fast != 0 => fast,
            // What is behind has to arrive first: the home knows.
            () if self.lanes() != 0 => 0,
            () => active,
        };
        self.shared.readable.store(readable, Ordering::Release);
        self.summarize();
        self.publish_behind();
    }

    /// What is behind.
    pub fn publish_behind(&self) {
        self.shared.behind_writes.store(self.behind.writes(), Ordering::Relaxed);
        self.shared.behind_bytes.store(self.behind.bytes(), Ordering::Relaxed);
    }

    /// For `status`.
    pub fn summarize(&self) {
        let slots = self.slots.borrow();
        let state = |slot: Option<usize>| slot.map_or("not a member", |slot| slots[slot].state.word());
        let legs = self.legs.iter().enumerate();
        let legs = legs.map(|(number, leg)| {
            let is_avoided = self.settings.write_mostly & 1 << number != 0;
            (leg.name.clone(), state(leg.slot.get()), is_avoided)
        });
        let mut legs: Vec<_> = legs.collect();
        // Places whose legs the stack doesn't give.
        for (number, slot) in slots.iter().enumerate() {
            if slot.state == SlotState::Active && !self.has(number) {
                legs.push((format!("place {number}"), "missing", slot.write_mostly));
            }
        }
        let summary = Summary {
            array: self.array.to_string(),
            legs,
            places: slots.len(),
            active: self.active.get(),
            events: self.events.get(),
            source: self.source.get(),
            chunk: self.layout.chunk,
            chunks: self.chunks.len(),
            dirty: self.chunks.dirty(),
            differ: self.chunks.differ(),
            lacking: self.chunks.lacking(),
            fast_flush: self.settings.fast_flush,
            scrub: self.scrub.borrow().as_ref().map(|scrub| scrub.word()),
        };
        drop(slots);
        *self.shared.summary.lock().unwrap_or_else(PoisonError::into_inner) = summary;
    }

    fn has(&self, slot: usize) -> bool {
        each(self.active.get() | self.rebuilding.get()).any(|leg| self.legs[leg].slot.get() == Some(slot))
    }
}
