//! Cleaning policies: which zone is emptied next, and what is written beside what.
//!
//! A policy decides and does nothing else: it reads no zone and moves no block. So one that is written once works in
//! everything that stands on zones, and in a simulation without any I/O. Time is counted in data units (blocks,
//! bytes: the owner's choice) that users have written, as in the literature: a policy has no clock.
//!
//! - [`greedy`], [`cost_benefit`], [`threshold`], [`lifetime`], [`sepbit`]: the policies; [`make`] makes one by name.
//! - [`pacing`]: how many blocks are moved per block that users write.
//! - [`reading`]: which parts of a victim are read.
//!
//! # What a policy may be told, and what it promises
//! - Ages may be known at the granularity of zones only: the age of a block is then the age of its zone. No policy
//!   gets better by more (`tests/cleaning_simulation.rs` shows it).
//! - With such ages all blocks of one zone that is cleaned go to one class. So an owner that keeps one empty zone
//!   from its users can always finish cleaning a zone.
//! - After a restart a policy knows nothing that it learned before, and learns it again within some zones.
//!
//! Left to others: reading what is live and moving it, keeping room for that (the owner of the zones), and when to
//! begin ([`Pressure`] says how much room is left; a policy may ask for more cleaning than is urgent).

pub mod cost_benefit;
pub mod greedy;
pub mod lifetime;
pub mod pacing;
pub mod reading;
pub mod sepbit;
pub mod threshold;

pub use cost_benefit::CostBenefit;
pub use greedy::Greedy;
pub use lifetime::Lifetime;
pub use pacing::{Marks, Pace, Pacer};
pub use reading::{ReadCost, read_plan};
pub use sepbit::SepBit;
pub use threshold::{Limit, Threshold};

use block::{Error, Result, ZoneIndex};

/// The names of all policies, as [`make`] takes them.
pub const NAMES: [&str; 5] =
    [greedy::NAME, cost_benefit::NAME, threshold::NAME, lifetime::NAME, sepbit::NAME];

/// The policy where none is named. Why this one: the book's page on cleaning.
pub const DEFAULT: &str = lifetime::NAME;

/// A zone that could be cleaned: it takes no more appends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    /// Which zone.
    pub zone: ZoneIndex,
    /// How many data units of it are live.
    pub live: u64,
    /// How many data units it takes up: those written, and those that can't be any more because it was finished
    /// early. What isn't live of these is what cleaning it gains.
    pub written: u64,
    /// The class under which it was written (see [`Policy::place`]).
    pub class: u8,
    /// When it was begun: user data units written by then.
    pub opened: u64,
    /// When its last data unit became dead or, if none did, when it took its last append.
    pub changed: u64,
}

impl Candidate {
    /// The share of it that is live, from 0 to 1. A zone without anything in it counts as live: there is nothing
    /// to gain.
    pub fn live_share(&self) -> f64 {
        if self.written == 0 { 1.0 } else { self.live as f64 / self.written as f64 }
    }

    /// Whether cleaning it gains anything.
    pub fn gains(&self) -> bool {
        self.live < self.written
    }

    /// How long ago it was begun, in user data units; at least 1, so that products with it tell zones apart.
    fn age(&self, now: u64) -> f64 {
        now.saturating_sub(self.opened).max(1) as f64
    }
}

/// How much room there is. [`Marks::pressure`] fills it in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pressure {
    /// Room in whole zones: empty ones, what is left of open ones, what has been passed of one being cleaned.
    pub free: u32,
    /// Zones that data may use, free or not.
    pub total: u32,
    /// The fewest free zones with which writing goes on undisturbed: below this, cleaning is urgent.
    pub low: u32,
    /// With this many free zones nothing needs to be cleaned: below this, cleaning is asked for; from here on only a
    /// policy with a rule of its own for when to begin (`threshold`) names a zone.
    pub high: u32,
}

impl Pressure {
    /// Whether cleaning is urgent.
    pub fn is_urgent(&self) -> bool {
        self.free < self.low
    }

    /// Whether cleaning is asked for.
    pub fn is_asked(&self) -> bool {
        self.free < self.high
    }
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
    /// The word by which a stack names it: one of [`NAMES`].
    fn name(&self) -> &'static str;

    /// How many classes of zones it tells apart, counted from 0. Each has open zones of its own. These three methods
    /// together: without more, users' writes (0) and the cleaner's (1) are kept apart.
    fn classes(&self) -> u8 {
        2
    }

    /// Whether users' writes go to this class; else the cleaner's do. No class takes both.
    fn is_users(&self, class: u8) -> bool {
        class == 0
    }

    /// Under which class this is written.
    fn place(&self, arrival: Arrival) -> u8 {
        u8::from(matches!(arrival, Arrival::Moved { .. }))
    }

    /// The zone to clean next, at time `now`; none if cleaning is not worth it, or not asked for, yet. While
    /// cleaning is urgent it names a zone as long as one of them would gain anything. It looks at every candidate:
    /// ask once per zone that is cleaned, not once per block.
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

/// What can be set about policies; each takes what concerns it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Parameters {
    /// `threshold`: the live share below which a zone is a candidate, or its cap where it is dynamic; 0 to 1.
    pub live_share: f64,
    /// `threshold`: where the limit lies at any time.
    pub limit: Limit,
    /// `threshold`: how many data units are read at once: a round begins when its zones hold about as much live data.
    pub read_at_once: u64,
    /// `lifetime`: how many classes the cleaner's zones have, 1 to [`lifetime::MAX_GENERATIONS`].
    pub generations: u8,
}

impl Parameters {
    /// What is best for so many zones, as far as that is known; the figures are in the book's page on cleaning.
    /// A limit of 0.3 that doesn't move and reads of 65536 data units (256 MiB in blocks of 4 KiB), as in SeastarFS;
    /// the more zones, the more generations.
    pub fn for_zones(zones: u32) -> Self {
        let generations = match zones {
            0..64 => 1,
            64..256 => 2,
            _ => 3,
        };
        Parameters { live_share: 0.3, limit: Limit::Fixed, read_at_once: 65536, generations }
    }
}

/// The policy with this name.
///
/// # Errors
/// `Invalid` if there is none, or a parameter that concerns it is out of range.
pub fn make(name: &str, parameters: Parameters) -> Result<Box<dyn Policy>> {
    Ok(match name {
        greedy::NAME => Box::new(Greedy),
        cost_benefit::NAME => Box::new(CostBenefit),
        threshold::NAME => {
            let Parameters { live_share, limit, read_at_once, .. } = parameters;
            Box::new(Threshold::new(live_share, limit, read_at_once)?)
        }
        lifetime::NAME => Box::new(Lifetime::new(parameters.generations)?),
        sepbit::NAME => Box::new(SepBit::default()),
        _ => {
            let names = NAMES.join(", ");
            return Err(Error::invalid(format!("cleaning policy \"{name}\": expected one of {names}")));
        }
    })
}

/// The candidate with the highest score of those that gain anything; of equals the one begun first.
fn highest(
    candidates: &mut dyn Iterator<Item = Candidate>,
    score: impl Fn(&Candidate) -> f64,
) -> Option<ZoneIndex> {
    let mut best: Option<(f64, Candidate)> = None;
    for candidate in candidates.filter(Candidate::gains) {
        let score = score(&candidate);
        let better = best.is_none_or(|(highest, first)| {
            score.total_cmp(&highest).then(first.opened.cmp(&candidate.opened)).is_gt()
        });
        if better {
            best = Some((score, candidate));
        }
    }
    best.map(|(_, candidate)| candidate.zone)
}
