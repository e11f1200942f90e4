//! The zones of a log: the state of each (free, open, full or dead), and its number of live blocks.
//!
//! Any shard may use the pool: a mutex is held for a few instructions and never over an await. For each zone
//! the pool knows the allocated space of the device below ([`space`](crate::space)); a reset doesn't change
//! it. A *backed* zone has space for most of its blocks.
//!
//! Left to others: opening and sealing zones (`zone_writer`), limiting open zones ([`budget`]), resetting
//! dead zones (`reset`), and choosing victims ([`cleaning`](crate::cleaning)).

pub mod budget;
mod candidates;
mod last_records;

use crate::record::StreamId;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

pub use last_records::LastRecords;

/// Class of zones that hold checkpoints.
pub const CHECKPOINT_CLASS: u8 = 0xFF;

/// Use of a zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Usage {
    /// Empty, and not taken.
    Free,
    /// Holds roots.
    Root,
    /// Being written or finished.
    Open,
    /// Sealed: takes no more records.
    Full,
    /// Being cleaned.
    Cleaning,
    /// Without live blocks; waits for a reset.
    Dead,
    /// Couldn't be read or finished; not used until the log is opened again.
    Damaged,
}

/// State of one zone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Zone {
    /// Use of the zone.
    pub usage: Usage,
    /// Class of the zone's records.
    pub class: u8,
    /// Number of resets of the zone.
    pub generation: u64,
    /// Number of live data blocks.
    pub live: u32,
    /// Number of live blocks that an operation has freed and whose record hasn't committed. They can't be
    /// moved, and die when the record commits.
    pub dying: u32,
    /// Number of data blocks written.
    pub written: u32,
    /// Number of the written blocks that the cleaner has appended since the log was opened.
    pub moved: u32,
    /// Number of blocks written, headers and summary included; for an open zone, those of committed records.
    pub end: u32,
    /// Block before which all records have committed; 0 if unknown.
    pub committed: u32,
    /// Clock when the zone was opened.
    pub opened: u64,
    /// Clock when the latest of its blocks died.
    pub changed: u64,
    /// Last record of each replayed stream.
    pub last: LastRecords,
    /// Number of blocks from the start that are known to have space on the device below.
    pub space: u32,
    /// An append to the zone has failed since the log was opened: it may have blocks that no record
    /// describes.
    pub has_failed: bool,
}

impl Zone {
    /// Whether all data was appended by the cleaner, and at least three quarters of the zone's blocks are
    /// written.
    fn is_packed(&self, zone_blocks: u32) -> bool {
        self.moved == self.written && self.end >= zone_blocks - zone_blocks / 4
    }

    fn free(generation: u64) -> Self {
        Zone {
            usage: Usage::Free,
            class: 0,
            generation,
            live: 0,
            dying: 0,
            written: 0,
            moved: 0,
            end: 0,
            committed: 0,
            opened: 0,
            changed: 0,
            last: LastRecords::default(),
            space: 0,
            has_failed: false,
        }
    }
}

/// A zone that was taken for writing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Taken {
    /// Number of the zone.
    pub zone: u32,
    /// Number of resets of the zone.
    pub generation: u64,
    /// Number of blocks from the start that may be written while the device below has no other space; `None`
    /// for all.
    pub limit: Option<u32>,
    /// Whether the zone was opened ahead: it is open on the medium.
    pub is_open: bool,
}

#[derive(Debug)]
struct State {
    zones: Vec<Zone>,
    /// Free zones; the one that was freed last is at the end.
    free: VecDeque<u32>,
    /// Number of free zones that are backed.
    free_backed: u32,
    /// Blocks of [useful](Self::useful) space in free zones.
    free_space: u64,
    /// Number of blocks with space at which a zone is backed.
    backed_blocks: u32,
    /// Whether only the known space of zones is used, because the device below has no other.
    only_backed: bool,
    /// Dead zones that wait for a reset.
    dead: Vec<u32>,
    /// Number of dead zones that resets have taken and haven't reset yet.
    resetting: u32,
    /// Zones without records that are already open on the medium; each is free, or taken and not yet appended
    /// to.
    prepared: SmallVec<[u32; 8]>,
    /// Number of zones that aren't free because they are being opened ahead, or reset after that.
    preparing: u32,
    /// Zones for data that were taken; some are no longer open.
    open: Vec<u32>,
    /// Zones that changed since the last [`ZonePool::take_touched`].
    touched: Vec<u32>,
    /// For each zone, whether it is in `touched`.
    is_touched: Vec<bool>,
}

/// Counters that each write reads: changed under the state's lock, read without it.
#[derive(Debug)]
struct Counts {
    /// Live data blocks in zones that aren't for checkpoints.
    live_data: AtomicU64,
    damaged: AtomicU32,
}

/// Clock when a zone was opened, shifted by 8 bits, and its class in the lowest 8 bits: a copy that each
/// write reads without the lock.
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
    /// By zone; set at the end of a recovery, and when a zone is taken.
    opened: Box<[Opened]>,
}

/// Guard for several changes to the counts of live blocks. Holds the pool's lock: calling other methods of
/// the pool would deadlock.
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
        self.zones[zone as usize].space >= self.backed_blocks
    }

    /// Number of blocks of a zone that are used while the device below has no other space: at most those of a
    /// backed zone, and 0 below half of these, because headers and summaries would take too large a share.
    fn useful(&self, zone: u32) -> u32 {
        match self.zones[zone as usize].space {
            space if space < self.backed_blocks.div_ceil(2) => 0,
            space => space.min(self.backed_blocks),
        }
    }

    /// Adds the space of a zone that becomes free, or subtracts that of a zone that is taken.
    fn count_space(&mut self, zone: u32, is_free: bool) {
        let (backed, useful) = (u32::from(self.is_backed(zone)), u64::from(self.useful(zone)));
        match is_free {
            true => {
                (self.free_backed, self.free_space) = (self.free_backed + backed, self.free_space + useful)
            }
            false => {
                (self.free_backed, self.free_space) = (self.free_backed - backed, self.free_space - useful)
            }
        }
    }

    /// Known space of free zones, as a number of backed zones.
    fn free_known(&self) -> u32 {
        (self.free_space / u64::from(self.backed_blocks)) as u32
    }

    fn free(&self) -> u32 {
        match self.only_backed {
            true => self.free_known(),
            false => self.free.len() as u32,
        }
    }

    /// Index in `free` of the zone to take while the device below has no other space: for users the one with
    /// the most space, because some of their records can't be divided; otherwise the one with the least.
    fn choose_known(&self, is_users: bool) -> Option<usize> {
        let known =
            self.free.iter().map(|zone| self.useful(*zone)).enumerate().filter(|(_, space)| *space > 0);
        match is_users {
            true => known.rev().max_by_key(|(_, space)| *space),
            false => known.min_by_key(|(_, space)| *space),
        }
        .map(|(at, _)| at)
    }

    /// Index in `free` of the zone to take; prepared zones first or last. Non-backed zones are preferred if
    /// at most `keep` are backed.
    fn choose(&self, keep: u32, prepared_first: bool) -> Option<usize> {
        let has_prepared = self.free_prepared() > 0;
        let find = |is_wanted: &dyn Fn(u32) -> bool| {
            let is_preferred = |zone: u32| self.prepared.contains(&zone) == prepared_first && is_wanted(zone);
            // Without a free prepared zone, the search would visit all free zones and find none.
            let preferred = match has_prepared {
                true => self.free.iter().position(|zone| is_preferred(*zone)),
                false => None,
            };
            preferred.or_else(|| self.free.iter().position(|zone| is_wanted(*zone)))
        };
        match self.only_backed {
            true => self.choose_known(prepared_first),
            // Backed zones are left to the cleaner and to checkpoints, unless more than `keep` are backed.
            false if self.free_backed <= keep => {
                find(&|zone| !self.is_backed(zone)).or_else(|| find(&|_| true))
            }
            false => find(&|_| true),
        }
    }

    /// Number of prepared zones that aren't taken.
    fn free_prepared(&self) -> usize {
        self.prepared.iter().filter(|zone| self.zones[**zone as usize].usage == Usage::Free).count()
    }

    fn forget_prepared(&mut self, zone: u32) {
        self.prepared.retain(|prepared| *prepared != zone);
    }

    /// Makes a zone empty, with its space unchanged, and adds that to the free space.
    fn make_free(&mut self, zone: u32, generation: u64) {
        let space = self.zones[zone as usize].space;
        *self.change(zone) = Zone { space, ..Zone::free(generation) };
        self.count_space(zone, true);
    }

    fn mark_dead(&mut self, zone: u32) {
        // Reset twice, it would be free twice, and have two writers.
        debug_assert!(!self.dead.contains(&zone), "zone {zone} is dead already");
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
    /// Adds live blocks to a zone.
    #[inline]
    pub fn add_live(&mut self, zone: u32, blocks: u32) {
        let entry = self.state.change(zone);
        entry.live += blocks;
        if entry.class != CHECKPOINT_CLASS {
            self.live_data
                .store(self.live_data.load(Ordering::Relaxed) + u64::from(blocks), Ordering::Relaxed);
        }
    }

    /// Notes that an operation has freed live blocks of a zone, which die when its record commits
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

    /// Removes [dying](Self::begin_dying) blocks of a zone from its live blocks, at this clock.
    #[inline]
    pub fn remove_dying(&mut self, zone: u32, blocks: u32, clock: u64) {
        let entry = self.state.change(zone);
        entry.dying = entry.dying.saturating_sub(blocks);
        self.remove_live(zone, blocks, clock);
    }

    /// Removes live blocks from a zone, at this clock; marks a full zone without live blocks as dead.
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
    /// Creates a pool of `zones` zones whose state is unknown: they are damaged until it is set.
    pub fn new(zones: u32) -> Self {
        let counts = Counts { live_data: AtomicU64::new(0), damaged: AtomicU32::new(zones) };
        let state = Mutex::new(State {
            zones: vec![Zone { usage: Usage::Damaged, ..Zone::free(0) }; zones as usize],
            free: VecDeque::new(),
            free_backed: 0,
            free_space: 0,
            backed_blocks: 1,
            only_backed: false,
            dead: Vec::new(),
            resetting: 0,
            prepared: SmallVec::new(),
            preparing: 0,
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

    /// Locks the counts of live blocks for the changes of a committing record.
    #[inline]
    pub fn accounts(&self) -> Accounts<'_> {
        Accounts { state: self.lock(), live_data: &self.counts.live_data }
    }

    /// Returns a copy of a zone's state.
    pub fn get(&self, zone: u32) -> Zone {
        self.lock().zones[zone as usize].clone()
    }

    /// Number of live blocks of a zone.
    pub fn live(&self, zone: u32) -> u32 {
        self.lock().zones[zone as usize].live
    }

    /// Clock when a zone was opened, and its class; for zones that aren't free.
    #[inline]
    pub fn opened(&self, zone: u32) -> (u64, u8) {
        let opened = self.opened[zone as usize].0.load(Ordering::Relaxed);
        (opened >> 8, opened as u8)
    }

    /// Returns copies of all zones, with their numbers.
    pub fn list(&self) -> Vec<(u32, Zone)> {
        self.select(|number, zone| Some((number, zone.clone())))
    }

    /// Returns what `select` returns for each zone and its number, in order. The pool is locked meanwhile:
    /// calling other methods of the pool would deadlock.
    pub fn select<T>(&self, mut select: impl FnMut(u32, &Zone) -> Option<T>) -> Vec<T> {
        (0..).zip(&self.lock().zones).filter_map(|(number, zone)| select(number, zone)).collect()
    }

    /// Number of zones.
    pub fn zones(&self) -> u32 {
        self.opened.len() as u32
    }

    /// Whether each of these zones has been reset since it had the given generation.
    pub fn have_been_reset(&self, zones: &[(u32, u64)]) -> bool {
        let state = self.lock();
        zones.iter().all(|(zone, generation)| state.zones[*zone as usize].generation > *generation)
    }

    /// Number of zones for which `is_wanted` holds.
    pub fn count(&self, is_wanted: impl Fn(&Zone) -> bool) -> u32 {
        self.lock().zones.iter().filter(|zone| is_wanted(zone)).count() as u32
    }

    /// Returns the zones among `zones` for which `is_wanted` holds.
    pub fn filter(&self, zones: &[u32], is_wanted: impl Fn(&Zone) -> bool) -> Vec<u32> {
        let state = self.lock();
        zones.iter().copied().filter(|zone| is_wanted(&state.zones[*zone as usize])).collect()
    }

    /// Changes the state of a zone while the pool is built from the medium.
    pub fn restore<T>(&self, zone: u32, change: impl FnOnce(&mut Zone) -> T) -> T {
        change(self.lock().change(zone))
    }

    /// Marks a zone as changed.
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

    /// Makes a zone free, with this generation and no known space.
    pub fn set_free(&self, zone: u32, generation: u64) {
        let mut state = self.lock();
        *state.change(zone) = Zone::free(generation);
        state.free.push_back(zone);
    }

    /// Notes that a zone was reset to this generation. Its space of the device below is unchanged.
    pub fn set_reset(&self, zone: u32, generation: u64) {
        let mut state = self.lock();
        state.forget_prepared(zone);
        state.make_free(zone, generation);
        state.free.push_back(zone);
    }

    /// Sets the number of blocks with space at which a zone is backed; at least 1.
    pub fn set_backed_blocks(&self, blocks: u32) {
        let state = &mut *self.lock();
        state.backed_blocks = blocks.max(1);
        (state.free_backed, state.free_space) = (0, 0);
        for at in 0..state.free.len() {
            state.count_space(state.free[at], true);
        }
    }

    /// Number of free zones; while the device below has no other space, the result of
    /// [`free_known`](Self::free_known).
    pub fn free(&self) -> u32 {
        self.lock().free()
    }

    /// Number of free zones, backed or not.
    pub fn all_free(&self) -> u32 {
        self.lock().free.len() as u32
    }

    /// Number of free zones that are backed.
    #[cfg(test)]
    fn free_backed(&self) -> u32 {
        self.lock().free_backed
    }

    /// Known space of free zones, as a number of backed zones.
    pub fn free_known(&self) -> u32 {
        self.lock().free_known()
    }

    /// Sets whether only the known space of zones is used.
    pub fn set_only_backed(&self, only: bool) {
        self.lock().only_backed = only;
    }

    /// Number of zones that aren't used because they couldn't be read or finished.
    pub fn damaged(&self) -> u32 {
        self.counts.damaged.load(Ordering::Relaxed)
    }

    /// Ends a recovery: recounts live data and damaged zones, and sorts free zones by generation.
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

    /// Takes the free zone that isn't backed and would be used last, to [reserve](block::Zones::reserve)
    /// space for it; a prepared zone only if there is no other. [`end_reserving`](Self::end_reserving)
    /// follows.
    pub fn begin_reserving(&self) -> Option<u32> {
        let state = &mut *self.lock();
        let is_wanted = |zone: &u32| !state.is_backed(*zone);
        // A zone is found whenever any isn't backed: otherwise the cleaner would ask in a loop.
        let unprepared = |zone: &u32| is_wanted(zone) && !state.prepared.contains(zone);
        let at =
            state.free.iter().rposition(unprepared).or_else(|| state.free.iter().rposition(is_wanted))?;
        let zone = state.free.remove(at)?;
        state.count_space(zone, false);
        Some(zone)
    }

    /// Returns a zone whose first `blocks` blocks now have space: it is used last if it is backed, otherwise
    /// first.
    pub fn end_reserving(&self, zone: u32, blocks: u32) {
        let mut state = self.lock();
        let entry = state.change(zone);
        entry.space = entry.space.max(blocks);
        state.count_space(zone, true);
        match state.is_backed(zone) {
            true => state.free.push_back(zone),
            false => state.free.push_front(zone),
        }
    }

    /// Takes a free zone for a class, if more than `keep` are free; prepared zones first or last.
    pub fn take(&self, class: u8, keep: u32, prepared_first: bool, clock: u64) -> Option<Taken> {
        let mut state = self.lock();
        if state.free() <= keep {
            return None;
        }
        let at = state.choose(keep, prepared_first)?;
        let zone = state.free.remove(at)?;
        state.count_space(zone, false);
        let only_backed = state.only_backed;
        let entry = state.change(zone);
        debug_assert_eq!(entry.usage, Usage::Free, "zone {zone} is taken");
        let limit = only_backed.then_some(entry.space);
        entry.usage = Usage::Open;
        (entry.class, entry.opened, entry.changed) = (class, clock, clock);
        self.opened[zone as usize].set(entry);
        let generation = entry.generation;
        if class != CHECKPOINT_CLASS {
            let State { open, zones, .. } = &mut *state;
            open.retain(|other| *other != zone && zones[*other as usize].usage == Usage::Open);
            open.push(zone);
        }
        let is_open = state.prepared.contains(&zone);
        Some(Taken { zone, generation, limit, is_open })
    }

    /// Takes a free zone to be opened ahead, if more than `keep` zones are free and fewer than `most`
    /// prepared; `None` also while the device below has no space. [`end_preparing`](Self::end_preparing)
    /// follows.
    pub fn begin_preparing(&self, keep: u32, most: u32) -> Option<u32> {
        let state = &mut *self.lock();
        if state.only_backed || state.free() <= keep || state.prepared.len() as u32 + state.preparing >= most
        {
            return None;
        }
        let at = state.choose(keep, false)?;
        let zone = state.free[at];
        if state.prepared.contains(&zone) {
            return None;
        }
        state.free.remove(at);
        state.count_space(zone, false);
        state.preparing += 1;
        Some(zone)
    }

    /// Returns a zone that was taken to be opened ahead; it is used next. `is_open` is whether it is now open
    /// on the medium.
    pub fn end_preparing(&self, zone: u32, is_open: bool) {
        let state = &mut *self.lock();
        state.preparing -= 1;
        state.count_space(zone, true);
        state.free.push_front(zone);
        if is_open {
            state.prepared.push(zone);
        }
    }

    /// Notes that opening a zone ahead, or resetting it after that, has failed: it isn't free.
    pub fn fail_preparing(&self, zone: u32) {
        let mut state = self.lock();
        state.preparing -= 1;
        state.change(zone).usage = Usage::Open;
    }

    /// Makes a free zone that isn't prepared dead, so that it is reset again. Returns whether it is dead now.
    pub fn retire_free(&self, zone: u32) -> bool {
        let state = &mut *self.lock();
        let Some(at) = state.free.iter().position(|free| *free == zone) else { return false };
        if state.prepared.contains(&zone) {
            return false;
        }
        state.free.remove(at);
        state.count_space(zone, false);
        state.mark_dead(zone);
        true
    }

    /// Takes a free prepared zone, to be reset. [`end_discarding`](Self::end_discarding) or
    /// [`fail_preparing`](Self::fail_preparing) follows.
    pub fn begin_discarding(&self) -> Option<u32> {
        let state = &mut *self.lock();
        let at = state.free.iter().position(|zone| state.prepared.contains(zone))?;
        let zone = state.free.remove(at)?;
        state.forget_prepared(zone);
        state.count_space(zone, false);
        state.preparing += 1;
        Some(zone)
    }

    /// Notes that a prepared zone was reset to this generation.
    pub fn end_discarding(&self, zone: u32, generation: u64) {
        self.lock().preparing -= 1;
        self.set_reset(zone, generation);
    }

    /// Number of prepared zones that aren't taken.
    pub fn prepared(&self) -> u32 {
        self.lock().free_prepared() as u32
    }

    /// Number of zones that aren't free because they are being opened ahead, or reset after that.
    pub fn preparing(&self) -> u32 {
        self.lock().preparing
    }

    /// Notes that the drive has opened a zone that was taken, before its first append.
    pub(crate) fn note_opened(&self, zone: u32) {
        self.lock().prepared.push(zone);
    }

    /// Returns a zone that was taken and not written to; it is used next.
    pub fn put_back(&self, zone: u32) {
        let mut state = self.lock();
        let generation = state.zones[zone as usize].generation;
        state.make_free(zone, generation);
        state.free.push_front(zone);
    }

    /// Notes that a record with `blocks` data blocks, `moved` of them by the cleaner, is about to be
    /// appended. `numbers` are its numbers in replayed streams.
    pub fn note_append(&self, zone: u32, numbers: &[(StreamId, u64)], blocks: u32, moved: u32) {
        let mut state = self.lock();
        state.forget_prepared(zone);
        let entry = state.change(zone);
        numbers.iter().for_each(|(stream, sequence)| entry.last.note(*stream, *sequence));
        entry.written += blocks;
        entry.moved += moved;
    }

    /// Notes that the record that ends before block `position` has committed. `is_in_order` is whether all
    /// earlier records in the zone have committed.
    pub fn note_committed(&self, zone: u32, position: u32, is_in_order: bool) {
        let mut state = self.lock();
        let entry = state.change(zone);
        entry.end = entry.end.max(position);
        if is_in_order {
            entry.committed = entry.committed.max(position);
        }
    }

    /// Number of open zones for data, and of data blocks that still fit them, if `data_blocks` of a zone's
    /// `zone_blocks` blocks are data.
    pub fn open_space(&self, data_blocks: u32, zone_blocks: u32) -> (u32, u64) {
        let state = self.lock();
        let left = |zone: &Zone| {
            u64::from(zone_blocks.saturating_sub(zone.end)) * u64::from(data_blocks) / u64::from(zone_blocks)
        };
        let open = state.open.iter().map(|zone| &state.zones[*zone as usize]);
        let open = open.filter(|zone| zone.usage == Usage::Open);
        open.fold((0, 0), |(zones, space), zone| (zones + 1, space + left(zone)))
    }

    /// Number of live data blocks, those of checkpoints excluded.
    pub fn live_data(&self) -> u64 {
        self.counts.live_data.load(Ordering::Relaxed)
    }

    /// Adds live blocks to a zone.
    pub fn add_live(&self, zone: u32, blocks: u32) {
        self.accounts().add_live(zone, blocks);
    }

    /// Removes live blocks from a zone, at this clock.
    pub fn remove_live(&self, zone: u32, blocks: u32, clock: u64) {
        self.accounts().remove_live(zone, blocks, clock);
    }

    /// Notes the end of a zone that takes no more records: it has space up to there. `is_all` is whether it
    /// has no more space, because a later append has failed.
    pub fn note_end(&self, zone: u32, end: u32, is_all: bool) {
        let mut state = self.lock();
        let entry = state.change(zone);
        let before = if is_all { 0 } else { entry.space };
        (entry.end, entry.space) = (end, before.max(end));
        entry.has_failed |= is_all;
    }

    /// Seals a zone: it takes no more records. Returns whether it is dead.
    pub fn set_full(&self, zone: u32) -> bool {
        self.lock().set_full(zone)
    }

    /// Excludes a zone from use until the log is opened again.
    pub fn set_damaged(&self, zone: u32) {
        let mut state = self.lock();
        let was = std::mem::replace(&mut state.change(zone).usage, Usage::Damaged);
        if was != Usage::Damaged {
            self.counts.damaged.store(self.damaged() + 1, Ordering::Relaxed);
        }
    }

    /// Takes the dead zones. [`return_dead`](Self::return_dead) follows.
    pub fn take_dead(&self) -> Vec<u32> {
        let mut state = self.lock();
        let dead = std::mem::take(&mut state.dead);
        state.resetting += dead.len() as u32;
        dead
    }

    /// Notes that `zones` of the taken dead zones have been reset or have live blocks again. Several resets
    /// may run.
    pub fn end_resetting(&self, zones: usize) {
        self.lock().resetting -= zones as u32;
    }

    /// Returns dead zones that couldn't be reset yet.
    pub fn return_dead(&self, zones: Vec<u32>) {
        let mut state = self.lock();
        state.resetting -= zones.len() as u32;
        state.dead.extend(zones);
    }

    /// Number of dead zones that no reset has taken.
    pub fn dead(&self) -> u32 {
        self.lock().dead.len() as u32
    }

    /// Number of dead zones that running resets have taken and haven't reset yet.
    pub fn resetting(&self) -> u32 {
        self.lock().resetting
    }

    /// Number of zones that are free, or will be after a reset or after opening ahead.
    pub fn free_soon(&self) -> u32 {
        let state = self.lock();
        state.free() + state.dead.len() as u32 + state.resetting + state.preparing
    }

    /// Whether `is_wanted` holds for any dead zone that no reset has taken.
    pub fn any_dead(&self, is_wanted: impl Fn(&Zone) -> bool) -> bool {
        let state = self.lock();
        state.dead.iter().any(|zone| is_wanted(&state.zones[*zone as usize]))
    }
}

#[cfg(test)]
mod tests;
