//! The zones of a log: which are free, being written, full or dead, and how much of each is live.
//!
//! Any shard may use the pool: a mutex is held for a few instructions and never over an await. The space of the device below
//! is told apart by zone ([`space`](crate::space)): a *backed* zone keeps its space when it is reset.
//!
//! Left to others: opening and sealing zones (`zone_writer`), resetting dead ones (`reset`), choosing which to clean
//! ([`cleaning`](crate::cleaning)).

use crate::cleaning::Candidate;
use crate::stream::{Sequences, StreamId};
use block::ZoneIndex;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Class of zones that hold checkpoints.
pub const CHECKPOINT_CLASS: u8 = 0xFF;

/// What a zone is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Usage {
    /// Empty, and not taken.
    Free,
    /// Holds roots.
    Root,
    /// Being written, or about to be finished.
    Open,
    /// Takes no more records.
    Full,
    /// Being cleaned.
    Cleaning,
    /// Nothing in it is live; it waits to be reset.
    Dead,
    /// Couldn't be read or finished; it is left as it is.
    Damaged,
}

/// The last record of each stream in a zone. Few streams share a zone.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LastRecords(SmallVec<[(StreamId, u64); 2]>);

impl LastRecords {
    /// Notes a record.
    #[inline]
    pub fn note(&mut self, stream: StreamId, sequence: u64) {
        match self.0.iter_mut().find(|(own, _)| *own == stream) {
            Some((_, last)) => *last = (*last).max(sequence),
            None => self.0.push((stream, sequence)),
        }
    }

    /// The last record of this stream; 0 without one.
    pub fn of(&self, stream: StreamId) -> u64 {
        self.0.iter().find(|(own, _)| *own == stream).map_or(0, |(_, last)| *last)
    }

    /// Whether every record is at or below the number of its stream.
    pub fn is_within(&self, sequences: &Sequences) -> bool {
        self.0.iter().all(|(stream, last)| *last <= sequences.of(*stream))
    }

    /// Lowers every number to at most that of its stream.
    pub fn lower_to(&mut self, sequences: &Sequences) {
        self.0.iter_mut().for_each(|(stream, last)| *last = (*last).min(sequences.of(*stream)));
    }

    /// The streams with their last records.
    pub fn iter(&self) -> impl Iterator<Item = (StreamId, u64)> + '_ {
        self.0.iter().copied()
    }
}

impl FromIterator<(StreamId, u64)> for LastRecords {
    fn from_iter<I: IntoIterator<Item = (StreamId, u64)>>(numbers: I) -> Self {
        let mut last = LastRecords::default();
        numbers
            .into_iter()
            .filter(|(_, sequence)| *sequence > 0)
            .for_each(|(stream, it)| last.note(stream, it));
        last
    }
}

/// State of one zone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Zone {
    /// What it is used for.
    pub usage: Usage,
    /// Class under which it is written.
    pub class: u8,
    /// Number of times that it has been reset.
    pub generation: u64,
    /// Number of its data blocks that are live.
    pub live: u32,
    /// Of these, the number that an operation has freed whose record hasn't committed. They can't be moved, and die when it does.
    pub dying: u32,
    /// Number of data blocks that were written to it.
    pub written: u32,
    /// Number of its blocks that were written, headers and summary included; of an open zone, by records that have committed.
    pub end: u32,
    /// All records before this block have committed; 0 where that isn't known.
    pub committed: u32,
    /// Clock when it was opened.
    pub opened: u64,
    /// Clock when its last block died.
    pub changed: u64,
    /// Its last record of each stream that is replayed.
    pub last: LastRecords,
    /// The device below has space for its first [`backed_blocks`](crate::layout::Layout::backed_blocks), as far as is known.
    pub backed: bool,
}

impl Zone {
    fn free(generation: u64) -> Self {
        Zone {
            usage: Usage::Free,
            class: 0,
            generation,
            live: 0,
            dying: 0,
            written: 0,
            end: 0,
            committed: 0,
            opened: 0,
            changed: 0,
            last: LastRecords::default(),
            backed: false,
        }
    }
}

/// A zone that was taken to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Taken {
    /// Its number.
    pub zone: u32,
    /// Number of times that it has been reset.
    pub generation: u64,
    /// Only its backed blocks may be written.
    pub only_backed: bool,
}

#[derive(Debug)]
struct State {
    zones: Vec<Zone>,
    /// Free zones, the one that was freed last at the end.
    free: VecDeque<u32>,
    /// Number of free zones that are backed.
    free_backed: u32,
    /// The device below has no space: only backed zones are taken.
    only_backed: bool,
    /// Dead zones that wait to be reset.
    dead: Vec<u32>,
    /// Number of the dead zones that a reset has taken and not reset yet.
    resetting: u32,
    /// Zones for data that were taken; some of them are no longer open.
    open: Vec<u32>,
    /// Zones that changed since [`ZonePool::take_touched`], and of each zone whether it is one of them.
    touched: Vec<u32>,
    is_touched: Vec<bool>,
}

/// Counts that are read for each write: changed under the lock of the state, read without it.
#[derive(Debug)]
struct Counts {
    /// Live data blocks in zones that aren't for checkpoints.
    live_data: AtomicU64,
    damaged: AtomicU32,
}

/// Clock when a zone was opened, and its class in the lowest 8 bits: a copy that is read for each write without the lock.
#[derive(Debug, Default)]
struct Opened(AtomicU64);

impl Opened {
    fn set(&self, zone: &Zone) {
        self.0.store(zone.opened << 8 | u64::from(zone.class), Ordering::Relaxed);
    }
}

/// All zones of a log.
#[derive(Debug)]
pub struct ZonePool {
    state: Mutex<State>,
    counts: Counts,
    /// By zone; set when a recovery ends, and when a zone is taken.
    opened: Box<[Opened]>,
}

/// Access to the counts of live blocks for several changes. Holds the pool's lock: no other method of it may be called.
#[derive(Debug)]
pub struct Accounts<'a> {
    state: MutexGuard<'a, State>,
    live_data: &'a AtomicU64,
}

impl State {
    #[inline]
    fn change(&mut self, zone: u32) -> &mut Zone {
        self.touch(zone);
        &mut self.zones[zone as usize]
    }

    #[inline]
    fn touch(&mut self, zone: u32) {
        if !std::mem::replace(&mut self.is_touched[zone as usize], true) {
            self.touched.push(zone);
        }
    }

    fn is_backed(&self, zone: u32) -> bool {
        self.zones[zone as usize].backed
    }

    fn count_backed(&mut self, backed: bool, change: i32) {
        if backed {
            self.free_backed = self.free_backed.saturating_add_signed(change);
        }
    }

    fn free(&self) -> u32 {
        match self.only_backed {
            true => self.free_backed,
            false => self.free.len() as u32,
        }
    }

    /// Makes a zone empty, keeps what is known of its space, and counts it.
    fn make_free(&mut self, zone: u32, generation: u64) {
        let backed = self.is_backed(zone);
        *self.change(zone) = Zone { backed, ..Zone::free(generation) };
        self.count_backed(backed, 1);
    }

    fn mark_dead(&mut self, zone: u32) {
        self.change(zone).usage = Usage::Dead;
        self.dead.push(zone);
    }

    fn set_full(&mut self, zone: u32) -> bool {
        let entry = self.change(zone);
        entry.usage = Usage::Full;
        let is_dead = entry.live == 0;
        if is_dead {
            self.mark_dead(zone);
        }
        is_dead
    }
}

impl Accounts<'_> {
    /// Notes that so many more blocks of a zone are live.
    #[inline]
    pub fn add_live(&mut self, zone: u32, blocks: u32) {
        let entry = self.state.change(zone);
        entry.live += blocks;
        if entry.class != CHECKPOINT_CLASS {
            self.live_data
                .store(self.live_data.load(Ordering::Relaxed) + u64::from(blocks), Ordering::Relaxed);
        }
    }

    /// Notes that an operation has freed so many live blocks of a zone, which die when its record commits
    /// ([`remove_dying`](Self::remove_dying)).
    #[inline]
    pub fn begin_dying(&mut self, zone: u32, blocks: u32) {
        let entry = self.state.change(zone);
        entry.dying += blocks;
        debug_assert!(
            entry.dying <= entry.live,
            "zone {zone}: {} of {} live blocks die",
            entry.dying,
            entry.live
        );
    }

    /// Notes that so many blocks died, at this clock, which [were dying](Self::begin_dying).
    #[inline]
    pub fn remove_dying(&mut self, zone: u32, blocks: u32, clock: u64) {
        let entry = self.state.change(zone);
        entry.dying = entry.dying.saturating_sub(blocks);
        self.remove_live(zone, blocks, clock);
    }

    /// Notes that so many blocks of a zone died, at this clock.
    #[inline]
    pub fn remove_live(&mut self, zone: u32, blocks: u32, clock: u64) {
        let entry = self.state.change(zone);
        debug_assert!(entry.live >= blocks, "zone {zone}: {blocks} of {} live blocks die", entry.live);
        entry.live = entry.live.saturating_sub(blocks);
        entry.changed = clock;
        let (class, is_dead) = (entry.class, entry.live == 0 && entry.usage == Usage::Full);
        if class != CHECKPOINT_CLASS {
            let live = self.live_data.load(Ordering::Relaxed).saturating_sub(u64::from(blocks));
            self.live_data.store(live, Ordering::Relaxed);
        }
        if is_dead {
            self.state.mark_dead(zone);
        }
    }
}

impl ZonePool {
    /// Pool of so many zones, about which nothing is known.
    pub fn new(zones: u32) -> Self {
        let counts = Counts { live_data: AtomicU64::new(0), damaged: AtomicU32::new(zones) };
        let state = Mutex::new(State {
            zones: vec![Zone { usage: Usage::Damaged, ..Zone::free(0) }; zones as usize],
            free: VecDeque::new(),
            free_backed: 0,
            only_backed: false,
            dead: Vec::new(),
            resetting: 0,
            open: Vec::new(),
            touched: Vec::new(),
            is_touched: vec![false; zones as usize],
        });
        ZonePool { state, counts, opened: (0..zones).map(|_| Opened::default()).collect() }
    }

    #[inline]
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the counts of live blocks, for the changes of a record that commits.
    #[inline]
    pub fn accounts(&self) -> Accounts<'_> {
        Accounts { state: self.lock(), live_data: &self.counts.live_data }
    }

    /// A copy of a zone's state.
    pub fn get(&self, zone: u32) -> Zone {
        self.lock().zones[zone as usize].clone()
    }

    /// Number of live blocks of a zone.
    pub fn live(&self, zone: u32) -> u32 {
        self.lock().zones[zone as usize].live
    }

    /// Clock when a zone was opened, and its class, of a zone that isn't free.
    #[inline]
    pub fn opened(&self, zone: u32) -> (u64, u8) {
        let opened = self.opened[zone as usize].0.load(Ordering::Relaxed);
        (opened >> 8, opened as u8)
    }

    /// Copies of all zones with their numbers.
    pub fn list(&self) -> Vec<(u32, Zone)> {
        (0..).zip(self.lock().zones.iter().cloned()).collect()
    }

    /// Whether every one of these zones has been reset since it had this generation.
    pub fn have_been_reset(&self, zones: &[(u32, u64)]) -> bool {
        let state = self.lock();
        zones.iter().all(|(zone, generation)| state.zones[*zone as usize].generation > *generation)
    }

    /// Number of zones that are wanted.
    pub fn count(&self, is_wanted: impl Fn(&Zone) -> bool) -> u32 {
        self.lock().zones.iter().filter(|zone| is_wanted(zone)).count() as u32
    }

    /// Number of zones of these that are wanted.
    pub fn filter(&self, zones: &[u32], is_wanted: impl Fn(&Zone) -> bool) -> Vec<u32> {
        let state = self.lock();
        zones.iter().copied().filter(|zone| is_wanted(&state.zones[*zone as usize])).collect()
    }

    /// Changes the state of a zone; for a pool that is made from what is on the medium.
    pub fn restore<T>(&self, zone: u32, change: impl FnOnce(&mut Zone) -> T) -> T {
        change(self.lock().change(zone))
    }

    /// Makes a zone count as changed.
    pub fn touch(&self, zone: u32) {
        self.lock().touch(zone);
    }

    /// Returns the zones that changed since the last call, in order.
    pub fn take_touched(&self) -> Vec<u32> {
        let mut state = self.lock();
        let mut taken = std::mem::take(&mut state.touched);
        taken.iter().for_each(|zone| state.is_touched[*zone as usize] = false);
        taken.sort_unstable();
        taken
    }

    /// Makes a zone free with this generation, of whose space nothing is known.
    pub fn set_free(&self, zone: u32, generation: u64) {
        let mut state = self.lock();
        *state.change(zone) = Zone::free(generation);
        state.free.push_back(zone);
    }

    /// Notes that a zone was reset, to this generation. It keeps the space below that it had taken.
    pub fn set_reset(&self, zone: u32, generation: u64) {
        let mut state = self.lock();
        state.make_free(zone, generation);
        state.free.push_back(zone);
    }

    /// Number of free zones; while the device below has no space, of those that are backed.
    pub fn free(&self) -> u32 {
        self.lock().free()
    }

    /// Number of free zones, backed or not.
    pub fn all_free(&self) -> u32 {
        self.lock().free.len() as u32
    }

    /// Number of free zones that are backed.
    pub fn free_backed(&self) -> u32 {
        self.lock().free_backed
    }

    /// Whether only backed zones are taken.
    pub fn is_only_backed(&self) -> bool {
        self.lock().only_backed
    }

    /// Sets whether only backed zones are taken.
    pub fn set_only_backed(&self, only: bool) {
        self.lock().only_backed = only;
    }

    /// Number of zones that are left as they are because they couldn't be read or finished.
    pub fn damaged(&self) -> u32 {
        self.counts.damaged.load(Ordering::Relaxed)
    }

    /// Counts live data and damaged zones again and orders free zones by generation: ends a recovery.
    pub fn recount(&self) {
        let state = &mut *self.lock();
        self.opened.iter().zip(&state.zones).for_each(|(opened, zone)| opened.set(zone));
        let of_data = state.zones.iter().filter(|zone| zone.class != CHECKPOINT_CLASS);
        self.counts.live_data.store(of_data.map(|zone| u64::from(zone.live)).sum(), Ordering::Relaxed);
        let damaged = state.zones.iter().filter(|zone| zone.usage == Usage::Damaged).count();
        self.counts.damaged.store(damaged as u32, Ordering::Relaxed);
        let zones = &state.zones;
        state.free.make_contiguous().sort_by_key(|zone| zones[*zone as usize].generation);
    }

    /// Takes the free zone that isn't backed and would be used last out of the others, to be
    /// [reserved](block::Zones::reserve); [`end_reserving`](Self::end_reserving) follows.
    pub fn begin_reserving(&self) -> Option<u32> {
        let state = &mut *self.lock();
        let zones = &state.zones;
        let at = state.free.iter().rposition(|zone| !zones[*zone as usize].backed)?;
        state.free.remove(at)
    }

    /// Puts a zone back: it is used last if it is backed now, else first.
    pub fn end_reserving(&self, zone: u32, backed: bool) {
        let mut state = self.lock();
        state.change(zone).backed = backed;
        state.count_backed(backed, 1);
        match backed {
            true => state.free.push_back(zone),
            false => state.free.push_front(zone),
        }
    }

    /// Takes a free zone for this class, if more than `keep` are free.
    pub fn take(&self, class: u8, keep: u32, clock: u64) -> Option<Taken> {
        let mut state = self.lock();
        if state.free() <= keep {
            return None;
        }
        let zone = match state.only_backed {
            true => state
                .free
                .iter()
                .position(|zone| state.is_backed(*zone))
                .and_then(|at| state.free.remove(at))?,
            // The backed ones stay for the cleaner and for checkpoints, unless there are more of them.
            false if state.free_backed <= keep => {
                let at = state.free.iter().position(|zone| !state.is_backed(*zone)).unwrap_or(0);
                state.free.remove(at)?
            }
            false => state.free.pop_front()?,
        };
        let backed = state.is_backed(zone);
        state.count_backed(backed, -1);
        let entry = state.change(zone);
        entry.usage = Usage::Open;
        (entry.class, entry.opened, entry.changed) = (class, clock, clock);
        self.opened[zone as usize].set(entry);
        let generation = entry.generation;
        if class != CHECKPOINT_CLASS {
            let State { open, zones, .. } = &mut *state;
            open.retain(|other| *other != zone && zones[*other as usize].usage == Usage::Open);
            open.push(zone);
        }
        Some(Taken { zone, generation, only_backed: state.only_backed })
    }

    /// Puts back a zone that was taken and not written to; it is used next.
    pub fn put_back(&self, zone: u32) {
        let mut state = self.lock();
        let generation = state.zones[zone as usize].generation;
        state.make_free(zone, generation);
        state.free.push_front(zone);
    }

    /// Notes that a record is about to be appended, with its numbers in the streams that are replayed.
    pub fn note_append(&self, zone: u32, numbers: &[(StreamId, u64)], blocks: u32) {
        let mut state = self.lock();
        let entry = state.change(zone);
        numbers.iter().for_each(|(stream, sequence)| entry.last.note(*stream, *sequence));
        entry.written += blocks;
    }

    /// Notes that the record that ends before this block has committed; `is_in_order`: and all before it in the zone.
    pub fn note_committed(&self, zone: u32, position: u32, is_in_order: bool) {
        let mut state = self.lock();
        let entry = state.change(zone);
        entry.end = entry.end.max(position);
        if is_in_order {
            entry.committed = entry.committed.max(position);
        }
    }

    /// Number of zones for data that are open, and of the data blocks that they can still take: of `zone_blocks` blocks of a
    /// zone, `data_blocks` are data.
    pub fn open_space(&self, data_blocks: u32, zone_blocks: u32) -> (u32, u64) {
        let state = self.lock();
        let left = |zone: &Zone| {
            u64::from(zone_blocks.saturating_sub(zone.end)) * u64::from(data_blocks) / u64::from(zone_blocks)
        };
        let open = state.open.iter().map(|zone| &state.zones[*zone as usize]);
        let open = open.filter(|zone| zone.usage == Usage::Open);
        open.fold((0, 0), |(zones, space), zone| (zones + 1, space + left(zone)))
    }

    /// Number of live data blocks, those of checkpoints not included.
    pub fn live_data(&self) -> u64 {
        self.counts.live_data.load(Ordering::Relaxed)
    }

    /// Notes that so many more blocks of a zone are live.
    pub fn add_live(&self, zone: u32, blocks: u32) {
        self.accounts().add_live(zone, blocks);
    }

    /// Notes that so many blocks of a zone died, at this clock.
    pub fn remove_live(&self, zone: u32, blocks: u32, clock: u64) {
        self.accounts().remove_live(zone, blocks, clock);
    }

    /// Notes where a zone ends that takes no more records, and whether it is backed.
    pub fn note_end(&self, zone: u32, end: u32, backed: bool) {
        let mut state = self.lock();
        let entry = state.change(zone);
        (entry.end, entry.backed) = (end, backed);
    }

    /// Notes that a zone takes no more records. Returns whether nothing in it is live.
    pub fn set_full(&self, zone: u32) -> bool {
        self.lock().set_full(zone)
    }

    /// Leaves a zone as it is until the log is opened again.
    pub fn set_damaged(&self, zone: u32) {
        let mut state = self.lock();
        let was = std::mem::replace(&mut state.change(zone).usage, Usage::Damaged);
        if was != Usage::Damaged {
            self.counts.damaged.store(self.damaged() + 1, Ordering::Relaxed);
        }
    }

    /// Notes that a zone is being cleaned.
    pub fn begin_cleaning(&self, zone: u32) {
        self.lock().change(zone).usage = Usage::Cleaning;
    }

    /// Takes the zones that wait to be reset. [`return_dead`](Self::return_dead) follows.
    pub fn take_dead(&self) -> Vec<u32> {
        let mut state = self.lock();
        let dead = std::mem::take(&mut state.dead);
        state.resetting = dead.len() as u32;
        dead
    }

    /// Notes that so many of the dead zones that were taken haven't been reset yet.
    pub fn note_resetting(&self, zones: usize) {
        self.lock().resetting = zones as u32;
    }

    /// Gives back dead zones that couldn't be reset yet.
    pub fn return_dead(&self, zones: impl IntoIterator<Item = u32>) {
        let mut state = self.lock();
        state.dead.extend(zones);
        state.resetting = 0;
    }

    /// Number of zones that wait to be reset.
    pub fn dead(&self) -> u32 {
        self.lock().dead.len() as u32
    }

    /// Number of dead zones that the running reset has taken and hasn't reset yet.
    pub fn resetting(&self) -> u32 {
        self.lock().resetting
    }

    /// Number of zones that are free, or will be after a reset.
    pub fn free_soon(&self) -> u32 {
        let state = self.lock();
        state.free() + state.dead.len() as u32 + state.resetting
    }

    /// Whether any zone that waits to be reset is wanted.
    pub fn any_dead(&self, is_wanted: impl Fn(&Zone) -> bool) -> bool {
        let state = self.lock();
        state.dead.iter().any(|zone| is_wanted(&state.zones[*zone as usize]))
    }

    /// The full zones with data of which cleaning would gain anything. A zone that the cleaner fills takes `data_blocks`.
    /// Zones with a record that hasn't committed are left out: what is live in them can still grow. Returns whether there is
    /// any of these, too.
    pub fn candidates(&self, data_blocks: u32, committed: &Sequences) -> (Vec<Candidate>, bool) {
        let state = self.lock();
        let full = state.zones.iter().enumerate().filter(|(_, zone)| {
            let to_move = zone.live.saturating_sub(zone.dying);
            // Of a zone whose blocks are all dying nothing can be moved.
            let is_dying = to_move == 0 && zone.live > 0;
            zone.usage == Usage::Full && zone.class != CHECKPOINT_CLASS && to_move < data_blocks && !is_dying
        });
        let mut has_uncommitted = false;
        let mut candidates = Vec::new();
        for (number, zone) in full {
            if !zone.last.is_within(committed) {
                has_uncommitted = true;
                continue;
            }
            candidates.push(Candidate {
                zone: ZoneIndex(number as u32),
                live: zone.live.saturating_sub(zone.dying).into(),
                // What records cost beside their data is garbage, too, as soon as they can be packed better.
                written: data_blocks.into(),
                class: zone.class,
                opened: zone.opened,
                changed: zone.changed,
            });
        }
        (candidates, has_uncommitted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_the_filler_leave_open_which_records_before_them_have_committed() {
        let pool = ZonePool::new(4);
        pool.set_free(3, 7);
        let taken = pool.take(0, 0, 11).expect("a free zone");
        assert_eq!(taken, Taken { zone: 3, generation: 7, only_backed: false });
        pool.note_committed(3, 5, false);
        assert_eq!((pool.get(3).end, pool.get(3).committed), (5, 0));
        pool.note_committed(3, 9, true);
        assert_eq!((pool.get(3).end, pool.get(3).committed), (9, 9));
    }

    #[test]
    fn clock_and_class_of_a_zone_are_those_of_its_last_opening() {
        let pool = ZonePool::new(4);
        pool.restore(1, |zone| (zone.opened, zone.class) = (9, CHECKPOINT_CLASS));
        pool.set_free(2, 7);
        pool.recount();
        assert_eq!(pool.opened(1), (9, CHECKPOINT_CLASS));
        let taken = pool.take(5, 0, 1 << 40).expect("a free zone");
        assert_eq!((taken.zone, pool.opened(2)), (2, (1 << 40, 5)));
    }

    #[test]
    fn blocks_that_are_dying_are_not_moved_and_keep_their_zone() {
        let pool = ZonePool::new(4);
        pool.set_free(2, 1);
        pool.take(0, 0, 0).expect("a free zone");
        pool.add_live(2, 5);
        pool.set_full(2);
        let live = || {
            let (candidates, _) = pool.candidates(100, &Sequences::default());
            candidates.iter().map(|it| it.live).collect::<Vec<_>>()
        };
        pool.accounts().begin_dying(2, 2);
        assert_eq!((live(), pool.live(2), pool.get(2).dying), (vec![3], 5, 2));
        pool.remove_live(2, 3, 1);
        assert_eq!((live(), pool.get(2).usage), (vec![], Usage::Full), "nothing is left to move");
        pool.accounts().remove_dying(2, 2, 2);
        assert_eq!((pool.get(2).usage, pool.get(2).dying, pool.live_data()), (Usage::Dead, 0, 0));
    }

    #[test]
    fn a_full_zone_is_dead_once_its_last_block_is() {
        let pool = ZonePool::new(4);
        pool.set_free(2, 1);
        pool.take(0, 0, 0).expect("a free zone");
        pool.add_live(2, 3);
        assert!(!pool.set_full(2));
        pool.remove_live(2, 2, 5);
        assert_eq!((pool.dead(), pool.live_data()), (0, 1));
        pool.remove_live(2, 1, 6);
        assert_eq!(
            (pool.dead(), pool.live_data(), pool.get(2).usage, pool.get(2).changed),
            (1, 0, Usage::Dead, 6)
        );
        // While it is being reset it is neither free nor dead, and counts as free soon.
        assert_eq!((pool.take_dead(), pool.dead(), pool.free_soon()), (vec![2], 0, 1));
        pool.set_reset(2, 2);
        pool.return_dead([]);
        assert_eq!((pool.free(), pool.get(2).generation), (1, 2));
    }
}
