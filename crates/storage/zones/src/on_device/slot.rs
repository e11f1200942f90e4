//! The state of one zone, shared by all shards.
//!
//! Phase, appends in flight and write pointer are one atomic word. An append to an open zone is one
//! compare-and-swap to reserve its offset and one subtraction when it has ended: no lock. A change of state
//! (open, finish, reset) is a compare-and-swap into a transitional phase. The task that succeeds owns the
//! zone until it settles it again, over any number of awaits; other tasks wait at the gate. So there is no
//! lock to hold over an await, and no owner shard.

use crate::gate::Gate;
use block::{Error, ZoneState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Phase of a zone. A zone in a transitional phase has an owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Phase {
    Empty,
    /// Transitional: an empty zone's header is written, or a closed zone is counted as open.
    Opening,
    ImplicitlyOpen,
    ExplicitlyOpen,
    Closed,
    Interrupted,
    /// Transitional: a finish, or the close of the volume, waits for appends in flight and writes the header.
    Finishing,
    /// Transitional: a reset waits for appends in flight and writes the header.
    Resetting,
    Full,
    Offline,
}

impl Phase {
    fn from_bits(bits: u64) -> Phase {
        const ALL: [Phase; 16] = [
            Phase::Empty,
            Phase::Opening,
            Phase::ImplicitlyOpen,
            Phase::ExplicitlyOpen,
            Phase::Closed,
            Phase::Interrupted,
            Phase::Finishing,
            Phase::Resetting,
            Phase::Full,
            Phase::Offline,
            // The other values are never stored.
            Phase::Offline,
            Phase::Offline,
            Phase::Offline,
            Phase::Offline,
            Phase::Offline,
            Phase::Offline,
        ];
        ALL[(bits & 15) as usize]
    }

    /// Whether the zone accepts appends in this phase.
    fn is_open(self) -> bool {
        matches!(self, Phase::ImplicitlyOpen | Phase::ExplicitlyOpen)
    }

    /// Whether the zone has an owner.
    pub(super) fn is_passing(self) -> bool {
        matches!(self, Phase::Opening | Phase::Finishing | Phase::Resetting)
    }

    /// State of the zone in a report.
    pub(super) fn state(self) -> ZoneState {
        match self {
            Phase::Empty => ZoneState::Empty,
            Phase::ImplicitlyOpen => ZoneState::ImplicitlyOpen,
            Phase::ExplicitlyOpen => ZoneState::ExplicitlyOpen,
            Phase::Opening | Phase::Closed | Phase::Finishing | Phase::Resetting => ZoneState::Closed,
            Phase::Interrupted => ZoneState::Interrupted,
            Phase::Full => ZoneState::Full,
            Phase::Offline => ZoneState::Offline,
        }
    }
}

impl From<ZoneState> for Phase {
    fn from(state: ZoneState) -> Phase {
        match state {
            ZoneState::Empty => Phase::Empty,
            ZoneState::ImplicitlyOpen => Phase::ImplicitlyOpen,
            ZoneState::ExplicitlyOpen => Phase::ExplicitlyOpen,
            ZoneState::Closed => Phase::Closed,
            ZoneState::Interrupted => Phase::Interrupted,
            ZoneState::Full => Phase::Full,
            ZoneState::ReadOnly | ZoneState::Offline => Phase::Offline,
        }
    }
}

/// Bits 0..41: the write pointer in blocks. Bits 41..60: appends in flight. Bits 60..64: the phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Word(u64);

const POINTER_BITS: u32 = 41;
const FLIGHT_BITS: u32 = 19;
const PHASE_SHIFT: u32 = POINTER_BITS + FLIGHT_BITS;
const ONE_IN_FLIGHT: u64 = 1 << POINTER_BITS;
const MAX_IN_FLIGHT: u64 = (1 << FLIGHT_BITS) - 1;
/// Limit of the blocks of a zone.
pub(super) const MAX_BLOCKS: u64 = (1 << POINTER_BITS) - 1;

impl Word {
    fn new(phase: Phase, in_flight: u64, pointer: u64) -> Word {
        Word((phase as u64) << PHASE_SHIFT | in_flight << POINTER_BITS | pointer)
    }

    fn phase(self) -> Phase {
        Phase::from_bits(self.0 >> PHASE_SHIFT)
    }

    fn in_flight(self) -> u64 {
        self.0 >> POINTER_BITS & MAX_IN_FLIGHT
    }

    fn pointer(self) -> u64 {
        self.0 & MAX_BLOCKS
    }
}

/// Result of an attempt to reserve an offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reserved {
    /// The append goes to this block of the zone's data; [`Slot::ended`] must follow.
    At(u64),
    /// The zone is empty or closed, as the phase says, and has to be opened first.
    NotOpen(Phase),
    /// The write pointer is at this block, not at the wanted one.
    Elsewhere(u64),
    /// Another task is changing the zone: wait until it has settled.
    Passing,
    /// Only this many blocks are left.
    NoRoom(u64),
    /// Too many appends are in flight.
    Crowded,
    /// The zone accepts no appends.
    Refused(Phase),
}

/// One zone.
#[derive(Debug)]
pub(super) struct Slot {
    word: AtomicU64,
    /// Written only by the owner of a passing phase.
    generation: AtomicU64,
    gate: Gate,
    /// Error that interrupted the zone or took it offline. The lock is held only to copy it, on failed paths.
    trouble: Mutex<Option<Error>>,
}

impl Slot {
    pub(super) fn new(state: ZoneState, generation: u64, pointer: u64, trouble: Option<Error>) -> Self {
        Slot {
            word: AtomicU64::new(Word::new(state.into(), 0, pointer).0),
            generation: AtomicU64::new(generation),
            gate: Gate::default(),
            trouble: Mutex::new(trouble),
        }
    }

    fn load(&self) -> Word {
        Word(self.word.load(Ordering::Acquire))
    }

    /// Replaces the word if `change` returns another one; returns the word before, and whether it was
    /// replaced.
    fn update(&self, change: impl Fn(Word) -> Option<Word>) -> (Word, bool) {
        let mut word = self.load();
        loop {
            let Some(next) = change(word) else { return (word, false) };
            match self.word.compare_exchange_weak(word.0, next.0, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return (word, true),
                Err(other) => word = Word(other),
            }
        }
    }

    /// Phase and write pointer (in blocks), read together.
    pub(super) fn look(&self) -> (Phase, u64) {
        let word = self.load();
        (word.phase(), word.pointer())
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    pub(super) fn trouble(&self) -> Option<Error> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set_trouble(&self, trouble: Option<Error>) {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
    }

    /// Reserves `blocks` blocks of a zone with `capacity` blocks, at block `wanted` if that is given.
    #[inline]
    pub(super) fn reserve(&self, wanted: Option<u64>, blocks: u64, capacity: u64) -> Reserved {
        let elsewhere = |word: Word| wanted.is_some_and(|wanted| wanted != word.pointer());
        let fits = |word: Word| capacity - word.pointer() >= blocks;
        let (word, done) = self.update(|word| {
            let is_ready = word.phase().is_open() && word.in_flight() < MAX_IN_FLIGHT;
            let possible = is_ready && fits(word) && !elsewhere(word);
            possible.then(|| Word(word.0 + ONE_IN_FLIGHT + blocks))
        });
        match word.phase() {
            _ if done => Reserved::At(word.pointer()),
            phase @ (Phase::Empty | Phase::Closed) => Reserved::NotOpen(phase),
            phase if phase.is_open() && elsewhere(word) => Reserved::Elsewhere(word.pointer()),
            phase if phase.is_open() && !fits(word) => Reserved::NoRoom(capacity - word.pointer()),
            phase if phase.is_open() => Reserved::Crowded,
            phase if phase.is_passing() => Reserved::Passing,
            phase => Reserved::Refused(phase),
        }
    }

    /// Ends an append that had reserved an offset, successful or not.
    pub(super) fn ended(&self) {
        let word = Word(self.word.fetch_sub(ONE_IN_FLIGHT, Ordering::AcqRel));
        if word.in_flight() == 1 && word.phase().is_passing() {
            self.gate.open();
        }
    }

    /// Changes the phase from `from` to `to`, unless the zone has left `from`; appends in flight stay in
    /// flight. After a change to a transitional phase the caller is the owner.
    pub(super) fn begin(&self, from: Phase, to: Phase) -> bool {
        let next = |word: Word| Word::new(to, word.in_flight(), word.pointer());
        self.update(|word| (word.phase() == from).then(|| next(word))).1
    }

    /// Ends the ownership of an opening, during which appends may be in flight.
    pub(super) fn settle_opening(&self, to: Phase) {
        let settled = self.begin(Phase::Opening, to);
        debug_assert!(settled, "the owner alone ends a passing phase");
        self.gate.open();
    }

    /// Ends the ownership. No append is in flight: the owner has [`drained`](Self::drained) them, or the zone
    /// was empty.
    pub(super) fn settle(&self, phase: Phase, pointer: u64) {
        debug_assert!(self.load().phase().is_passing() && self.load().in_flight() == 0);
        self.word.store(Word::new(phase, 0, pointer).0, Ordering::Release);
        self.gate.open();
    }

    /// As [`settle`](Self::settle), as an empty zone of this generation.
    pub(super) fn settle_empty(&self, generation: u64) {
        self.generation.store(generation, Ordering::Release);
        self.settle(Phase::Empty, 0);
    }

    /// Waits until the zone has no owner.
    pub(super) async fn settled(&self) {
        self.gate.wait_until(|| !self.load().phase().is_passing()).await;
    }

    /// Waits, as the owner, until no append is in flight.
    pub(super) async fn drained(&self) {
        self.gate.wait_until(|| self.load().in_flight() == 0).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_a_word_do_not_touch() {
        for phase in (0..10).map(Phase::from_bits) {
            let word = Word::new(phase, MAX_IN_FLIGHT, MAX_BLOCKS);
            assert_eq!((word.phase(), word.in_flight(), word.pointer()), (phase, MAX_IN_FLIGHT, MAX_BLOCKS));
            let word = Word::new(phase, 0, 1);
            assert_eq!((word.phase(), word.in_flight(), word.pointer()), (phase, 0, 1));
        }
    }

    #[test]
    fn places_are_reserved_in_turn_until_there_is_no_room() {
        let slot = Slot::new(ZoneState::ImplicitlyOpen, 1, 0, None);
        assert_eq!(slot.reserve(None, 3, 8), Reserved::At(0));
        assert_eq!(slot.reserve(Some(0), 3, 8), Reserved::Elsewhere(3));
        assert_eq!(slot.reserve(Some(3), 3, 8), Reserved::At(3));
        assert_eq!(slot.reserve(Some(3), 3, 8), Reserved::Elsewhere(6));
        assert_eq!(slot.reserve(None, 3, 8), Reserved::NoRoom(2));
        // Appends in flight outlive a close and an open.
        assert!(slot.begin(Phase::ImplicitlyOpen, Phase::Closed));
        assert_eq!(slot.reserve(None, 1, 8), Reserved::NotOpen(Phase::Closed));
        assert!(slot.begin(Phase::Closed, Phase::Opening));
        assert_eq!(slot.reserve(None, 1, 8), Reserved::Passing);
        slot.settle_opening(Phase::ExplicitlyOpen);
        assert_eq!(slot.reserve(Some(6), 1, 8), Reserved::At(6));
        assert!(slot.begin(Phase::ExplicitlyOpen, Phase::Interrupted));
        assert_eq!(slot.reserve(None, 1, 8), Reserved::Refused(Phase::Interrupted));
        (0..3).for_each(|_| slot.ended());
        assert!(!slot.begin(Phase::ExplicitlyOpen, Phase::Finishing));
        assert!(slot.begin(Phase::Interrupted, Phase::Resetting));
        assert_eq!(slot.reserve(None, 1, 8), Reserved::Passing);
        slot.settle_empty(2);
        assert_eq!((slot.reserve(None, 1, 8), slot.generation()), (Reserved::NotOpen(Phase::Empty), 2));
    }

    #[test]
    fn threads_never_get_the_same_place() {
        let slot = Slot::new(ZoneState::ExplicitlyOpen, 1, 0, None);
        let capacity = 4000;
        let mut places: Vec<u64> = std::thread::scope(|scope| {
            let take = || {
                std::iter::from_fn(|| match slot.reserve(None, 2, capacity) {
                    Reserved::At(place) => {
                        slot.ended();
                        Some(place)
                    }
                    _ => None,
                })
                .collect::<Vec<_>>()
            };
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(take)).collect();
            threads.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect()
        });
        places.sort_unstable();
        assert!(places.into_iter().eq((0..capacity).step_by(2)));
    }
}
