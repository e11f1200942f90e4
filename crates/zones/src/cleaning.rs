//! Cleaning policies: which zone is emptied next, and what is written beside what.
//!
//! A policy decides and does nothing else: it reads no zone and moves no block. So one that is written once works in
//! everything that stands on zones, and in a simulation without any I/O. Time is counted in data units (blocks,
//! bytes: the owner's choice) that users have written, as in the literature: a policy has no clock.
//!
//! Left to others: reading what is live and moving it, keeping room for that (the owner of the zones), and when to
//! begin ([`Pressure`] says how much room is left; a policy may ask for more cleaning than is urgent).

use block::ZoneIndex;

/// A zone that could be cleaned: it takes no more appends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    /// Which zone.
    pub zone: ZoneIndex,
    /// How many data units of it are live.
    pub live: u64,
    /// How many data units were written to it.
    pub written: u64,
    /// The class under which it was written (see [`Policy::place`]).
    pub class: u8,
    /// When it was begun: user data units written by then.
    pub opened: u64,
    /// When its last data unit became dead or, if none did, when it took its last append.
    pub changed: u64,
}

/// How much room there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pressure {
    /// Zones without data that can be written.
    pub free: u32,
    /// Zones that data may use, free or not.
    pub total: u32,
    /// The fewest free zones with which writing goes on undisturbed: below this, cleaning is urgent.
    pub low: u32,
}

/// What is about to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// By a user, for the first time.
    New,
    /// By a user, over a version that was written so long ago (or: into a zone that was begun so long ago) under
    /// this class.
    Overwrite {
        /// In user data units.
        age: u64,
        /// The class of the zone in which the old version lies.
        class: u8,
    },
    /// By the cleaner, from a zone of this class.
    Moved {
        /// How long ago a user wrote it, as well as that is known, in user data units.
        age: u64,
        /// The class of the zone from which it comes.
        class: u8,
    },
}

/// A cleaning policy.
pub trait Policy: std::fmt::Debug {
    /// The word by which a stack names it: `greedy`, `cost-benefit`, `threshold`, `lifetime`.
    fn name(&self) -> &'static str;

    /// How many classes of zones it tells apart, counted from 0. Each has open zones of its own.
    fn classes(&self) -> u8;

    /// Whether users' writes go to this class; else the cleaner's do. No class takes both.
    fn is_users(&self, class: u8) -> bool;

    /// Under which class this is written.
    fn place(&self, arrival: Arrival) -> u8;

    /// The zone to clean next, at time `now`; none if cleaning is not worth it, or not asked for, yet. While
    /// cleaning is urgent it names a zone as long as one of them has anything dead in it.
    fn choose(
        &mut self,
        candidates: &mut dyn Iterator<Item = Candidate>,
        pressure: Pressure,
        now: u64,
    ) -> Option<ZoneIndex>;

    /// A zone that was chosen is being cleaned: what the policy learns from it.
    fn cleaned(&mut self, candidate: Candidate, now: u64) {
        let _ = (candidate, now);
    }
}
