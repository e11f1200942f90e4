//! The state as the other shards see it: legs that may be read directly, and the status.

use super::Core;
use crate::format::SlotState;
use crate::shared::{Lag, LegSummary, Summary};
use block::Error;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

impl Core {
    /// Publishes the state to the other shards.
    pub fn publish(&self) {
        let active = self.members.active();
        let fast = active & !self.setup.settings.write_mostly;
        let readable = match () {
            () if self.chunks.differ() > 0 && active.count_ones() > 1 => 0,
            // Data of a copy in flight may have been read from a leg that is lost by now.
            () if self.copies.are_in_flight() => 0,
            () if fast != 0 => fast,
            // Reads of lagging legs wait for outstanding writes, on the home shard.
            () if self.lanes() != 0 => 0,
            () => active,
        };
        self.shared.readable.store(readable, Ordering::Release);
        self.summarize();
        self.publish_behind();
    }

    /// Publishes the outstanding write-behind writes.
    pub fn publish_behind(&self) {
        let lag = Lag { writes: self.behind.writes(), bytes: self.behind.bytes() };
        self.shared.behind.store(lag.to_word(), Ordering::Relaxed);
    }

    /// Publishes the summary for the status.
    pub fn summarize(&self) {
        let slots = self.members.slots();
        let legs = self.legs.iter().enumerate().map(|(number, leg)| LegSummary {
            name: leg.name.clone(),
            state: match (&leg.missing, leg.slot.get()) {
                (Some(_), _) => "missing",
                (None, Some(slot)) => slots[slot].state.word(),
                (None, None) => "not a member",
            },
            write_mostly: self.setup.settings.write_mostly & 1 << number != 0,
            error: leg.missing.as_ref().map(Error::to_string),
        });
        let mut legs: Vec<_> = legs.collect();
        // Slots without a leg of the stack.
        for (number, slot) in slots.iter().enumerate() {
            if self.legs.iter().all(|leg| leg.slot.get() != Some(number)) {
                let state = if slot.state == SlotState::Removed { "removed" } else { "missing" };
                let (name, write_mostly) = (format!("slot {number}"), slot.write_mostly);
                legs.push(LegSummary { name, state, write_mostly, error: None });
            }
        }
        let summary = Summary {
            array: self.setup.array.to_string(),
            legs,
            places: slots.len(),
            active: self.members.active(),
            rebuilding: self.members.rebuilding(),
            events: self.superblocks.events(),
            source: self.members.source(),
            chunk: self.setup.layout.chunk,
            chunks: self.chunks.len(),
            dirty: self.chunks.dirty(),
            differ: self.chunks.differ(),
            lacking: self.chunks.lacking(),
            fast_flush: self.setup.settings.fast_flush,
            scrub: self.upkeep.scrub().map(|scrub| scrub.word()),
        };
        drop(slots);
        *self.shared.summary.lock().unwrap_or_else(PoisonError::into_inner) = summary;
    }
}
