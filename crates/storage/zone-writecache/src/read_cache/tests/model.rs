//! Random orders of reads, fetches, fills, appends, uploads and resets, against a model of one zone; and
//! versions with a rule that is broken on purpose, which the model must find.

use super::super::*;
use super::{CHUNK, KIB, cache};
use block::Buffer;
use runtime::Random;
use std::collections::VecDeque;

/// Bytes of an append.
const BLOCK: u64 = 16 * KIB;
/// Blocks of the zone.
const BLOCKS: u64 = 24;

/// A rule that is broken on purpose.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Broken {
    None,
    /// A reset neither changes the key of a chunk nor removes it.
    Reset,
    /// Keys have no generation, and a fill that was in flight at a reset is admitted.
    Fill,
    /// Bytes are admitted that aren't durable at the origin.
    Durable,
}

enum Operation {
    Append(u64, u32),
    Reset,
}

/// A fetch in flight.
struct Flight {
    fetch: Rc<Fetch>,
    /// Generation in which it began.
    generation: u64,
    /// Stamps that were read from the origin.
    stamps: Option<Vec<u32>>,
    /// Slots that are being written, with the starts of their chunks.
    fills: Option<VecDeque<(u64, u32)>>,
}

/// The zone, its origin, and the cache.
struct World {
    broken: Broken,
    random: Random,
    cache: ReadCache,
    /// Stamps of the bytes that users see.
    local: Vec<u32>,
    generation: u64,
    pending: VecDeque<Operation>,
    origin: Vec<u32>,
    cut_generation: u64,
    next_stamp: u32,
    flights: Vec<Flight>,
    /// Stamps in the slots.
    slots: Vec<Vec<u32>>,
    hits: u64,
}

impl World {
    fn new(seed: u64, broken: Broken) -> Self {
        let cache = cache(1 << 20);
        World {
            broken,
            random: Random::new(seed),
            slots: vec![Vec::new(); cache.region().unwrap().slots as usize],
            cache,
            local: Vec::new(),
            generation: 1,
            pending: VecDeque::new(),
            origin: Vec::new(),
            cut_generation: 1,
            next_stamp: 1,
            flights: Vec::new(),
            hits: 0,
        }
    }

    fn key_generation(&self) -> u64 {
        if matches!(self.broken, Broken::Reset | Broken::Fill) { 0 } else { self.generation }
    }

    fn zone_end(&self) -> ZoneEnd {
        let durable = match self.broken {
            Broken::Durable => self.local.len(),
            _ if self.cut_generation != self.generation => 0,
            _ => self.origin.len(),
        };
        ZoneEnd { zone: ZoneIndex(3), generation: self.key_generation(), durable: durable as u64 * BLOCK }
    }

    fn step(&mut self) -> Result<(), String> {
        match self.random.below(100) {
            0..30 if (self.local.len() as u64) < BLOCKS => {
                self.local.push(self.next_stamp);
                self.pending.push_back(Operation::Append(self.generation, self.next_stamp));
                self.next_stamp += 1;
            }
            30..55 => self.upload(),
            55..58 => self.reset(),
            58..75 => return self.read(),
            _ => self.advance_flight(),
        }
        Ok(())
    }

    fn upload(&mut self) {
        match self.pending.front() {
            Some(Operation::Append(generation, stamp)) => {
                assert_eq!(*generation, self.cut_generation);
                self.origin.push(*stamp);
            }
            // The origin's zone has no readers.
            Some(Operation::Reset) if self.flights.is_empty() => {
                self.origin.clear();
                self.cut_generation += 1;
            }
            _ => return,
        }
        self.pending.pop_front();
    }

    fn reset(&mut self) {
        let (before, end) = (self.key_generation(), self.local.len() as u64 * BLOCK);
        self.local.clear();
        self.generation += 1;
        self.pending.push_back(Operation::Reset);
        if self.broken != Broken::Reset {
            self.cache.forget_zone(ZoneIndex(3), before, end);
        }
    }

    /// Reads blocks that the origin has.
    fn read(&mut self) -> Result<(), String> {
        let zone = self.zone_end();
        let readable = if self.cut_generation == self.generation { self.origin.len() as u64 } else { 0 };
        let readable = if self.broken == Broken::Durable { self.local.len() as u64 } else { readable };
        if readable == 0 {
            return Ok(());
        }
        let first = self.random.below(readable);
        let length = 1 + self.random.below(readable - first);
        let plan = self.cache.plan(zone, first * BLOCK, length * BLOCK);
        let mut at = first;
        for (bytes, source) in &plan.pieces {
            let end = at + *bytes as u64 / BLOCK;
            if let Source::Slot(part) = source {
                self.cache.end_read(part, true);
                let from = (part.bytes.start / BLOCK) as usize;
                let found = &self.slots[part.slot as usize][from..from + (end - at) as usize];
                let expected = &self.local[at as usize..end as usize];
                if found != expected {
                    return Err(format!("blocks {at} to {end}: {found:?}; expected {expected:?}"));
                }
                self.hits += 1;
            }
            at = end;
        }
        let mut fetches = plan.fetches;
        if let Some(ahead) = plan.ahead {
            fetches.extend(self.cache.begin_ahead(zone, ahead, |_, _| false));
        }
        let generation = self.generation;
        let flights =
            fetches.into_iter().map(|fetch| Flight { fetch, generation, stamps: None, fills: None });
        self.flights.extend(flights);
        Ok(())
    }

    /// Carries out the next step of a fetch.
    fn advance_flight(&mut self) {
        if self.flights.is_empty() {
            return;
        }
        let number = self.random.below(self.flights.len() as u64) as usize;
        let is_current = self.flights[number].generation == self.generation || self.broken != Broken::None;
        let flight = &mut self.flights[number];
        let at = (flight.fetch.at.offset.0 / BLOCK) as usize;
        let Some(stamps) = &flight.stamps else {
            // Bytes that the origin doesn't have are undefined.
            let stamp = |block: usize| self.origin.get(block).copied().unwrap_or(0);
            flight.stamps = Some((at..at + (flight.fetch.length / BLOCK) as usize).map(stamp).collect());
            return;
        };
        let of_chunk = (CHUNK / BLOCK) as usize;
        let Some(fills) = &mut flight.fills else {
            flight.fetch.finish(Ok(Buffer::zeroed(flight.fetch.length as usize).freeze()));
            let mut fills = VecDeque::new();
            for (chunk, stamps) in stamps.chunks(of_chunk).enumerate().filter(|_| is_current) {
                if let Some(slot) = self.cache.take_slot() {
                    self.slots[slot as usize] = stamps.to_vec();
                    fills.push_back((flight.fetch.at.offset.0 + chunk as u64 * CHUNK, slot));
                }
            }
            flight.fills = Some(fills);
            return;
        };
        match fills.pop_front() {
            Some((start, slot)) if is_current => {
                let length = self.slots[slot as usize].len() as u64 * BLOCK;
                self.cache.admit(&flight.fetch, start, length, slot, Sums::default());
            }
            Some((_, slot)) => self.cache.release_slot(slot),
            None => {
                let flight = self.flights.swap_remove(number);
                self.cache.end_fetch(&flight.fetch);
            }
        }
    }
}

/// Runs a world. Returns the number of hits, or the stale read.
fn run(seed: u64, broken: Broken) -> Result<u64, String> {
    let mut world = World::new(seed, broken);
    for _ in 0..2000 {
        world.step()?;
    }
    Ok(world.hits)
}

#[test]
fn no_order_of_events_returns_bytes_of_another_generation() {
    let hits: u64 =
        (0..200).map(|seed| run(seed, Broken::None).unwrap_or_else(|it| panic!("{seed}: {it}"))).sum();
    assert!(hits > 1000, "{hits}");
}

#[test]
fn a_broken_rule_is_found() {
    for broken in [Broken::Reset, Broken::Fill, Broken::Durable] {
        let found = (0..200).find_map(|seed| run(seed, broken).err().map(|stale| (seed, stale)));
        println!("{broken:?}: {found:?}");
        assert!(found.is_some(), "{broken:?}");
    }
}
