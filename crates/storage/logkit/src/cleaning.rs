//! Cleaning policies: the choice of the next victim, and of the class of each written block.
//!
//! A policy only decides: it does no I/O. The same policy therefore works for every owner of zones and in
//! simulations. Time is the number of data units (blocks or bytes, the owner's choice) that users have
//! written, as in the literature.
//!
//! - [`greedy`], [`cost_benefit`], [`threshold`], [`lifetime`], [`sepbit`]: the policies; [`make`] makes one
//!   by name.
//! - [`pacing`]: how many blocks are moved per block that users write.
//! - [`reading`]: which parts of a victim are read.
//!
//! # Inputs and contract of a policy
//! - Ages may be known at the granularity of zones only: the age of a block is then the age of its zone. No
//!   policy improves with finer ages (`tests/cleaning_simulation.rs` shows it).
//! - With such ages all blocks of a victim go to one class, so an owner that reserves one empty zone can
//!   always finish cleaning a zone.
//! - A restart loses a policy's statistics; they are collected again within a few zones.
//!
//! Other modules read and move the live blocks and reserve free zones for that (the owner of the zones), and
//! decide when to begin ([`Pressure`] holds the free space; a policy may ask for more cleaning than is
//! urgent).

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

/// Default policy; the book's page on cleaning gives the reasons.
pub const DEFAULT: &str = lifetime::NAME;

/// A zone that could be cleaned: it takes no more appends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    /// Number of the zone.
    pub zone: ZoneIndex,
    /// Number of live data units.
    pub live: u64,
    /// Number of data units that the zone takes up: those written, and those that can't be written any more
    /// because it was finished early. Cleaning gains the ones that aren't live.
    pub written: u64,
    /// The class under which it was written (see [`Policy::place`]).
    pub class: u8,
    /// Time of its opening: user data units written by then.
    pub opened: u64,
    /// When its last data unit became dead or, if none did, when it took its last append.
    pub changed: u64,
}

impl Candidate {
    /// Returns the live share of the zone, from 0 to 1. The share of an empty zone is 1: cleaning gains
    /// nothing.
    pub fn live_share(&self) -> f64 {
        if self.written == 0 { 1.0 } else { self.live as f64 / self.written as f64 }
    }

    /// Returns whether cleaning the zone gains anything.
    pub fn gains(&self) -> bool {
        self.live < self.written
    }

    /// Returns the time since the zone was opened, in user data units; at least 1, so that scores multiplied
    /// by it still differ between zones.
    fn age(&self, now: u64) -> f64 {
        now.saturating_sub(self.opened).max(1) as f64
    }
}

/// Amount of free space, computed by [`Marks::pressure`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pressure {
    /// Free space in whole zones: empty zones, the rest of open ones, and the passed part of the victim.
    pub free: u32,
    /// Zones that data may use, free or not.
    pub total: u32,
    /// Low watermark: with fewer free zones, cleaning is urgent.
    pub low: u32,
    /// High watermark: with fewer free zones, cleaning is requested. With at least this many, only a policy
    /// with a starting rule of its own (`threshold`) chooses a zone.
    pub high: u32,
}

impl Pressure {
    /// Returns whether cleaning is urgent.
    pub fn is_urgent(&self) -> bool {
        self.free < self.low
    }

    /// Returns whether cleaning is requested.
    pub fn is_asked(&self) -> bool {
        self.free < self.high
    }
}

/// Origin of a block that is about to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// First write of the block by a user.
    New,
    /// Overwrite by a user. The previous version was written this long ago (or is in a zone that was opened
    /// this long ago), under this class.
    Overwrite {
        /// Age of the previous version in user data units.
        age: u64,
        /// Class of the previous version's zone.
        class: u8,
    },
    /// Move by the cleaner.
    Moved {
        /// Time since a user wrote the block, as far as it is known, in user data units.
        age: u64,
        /// Class of the victim.
        class: u8,
    },
}

/// A cleaning policy.
pub trait Policy: std::fmt::Debug {
    /// Returns the name of the policy in a stack: one of [`NAMES`].
    fn name(&self) -> &'static str;

    /// Returns the number of classes of zones, counted from 0. Each class has open zones of its own. By
    /// default, together with the next two methods, users' writes (0) and the cleaner's (1) are separated.
    fn classes(&self) -> u8 {
        2
    }

    /// Returns whether the class is for users' writes; otherwise it is for the cleaner's. No class takes
    /// both.
    fn is_users(&self, class: u8) -> bool {
        class == 0
    }

    /// Returns the class of a block that is about to be written.
    fn place(&self, arrival: Arrival) -> u8 {
        u8::from(matches!(arrival, Arrival::Moved { .. }))
    }

    /// Returns the zone to clean next, at time `now`; `None` if no zone is worth cleaning or cleaning isn't
    /// requested. While cleaning is urgent, `None` means that no zone gains anything. The cost is linear in
    /// the number of candidates, so call this once per victim, not per block.
    fn choose(
        &mut self,
        candidates: &mut dyn Iterator<Item = Candidate>,
        pressure: Pressure,
        now: u64,
    ) -> Option<ZoneIndex>;

    /// Notes that a chosen zone is being cleaned, for the policy's statistics.
    fn cleaned(&mut self, candidate: Candidate, now: u64) {
        let _ = (candidate, now);
    }
}

/// Parameters of all policies; each uses its own.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Parameters {
    /// `threshold`: the live share below which a zone is a candidate, or its cap where it is dynamic; 0 to 1.
    pub live_share: f64,
    /// `threshold`: rule for the current limit.
    pub limit: Limit,
    /// `threshold`: number of data units per read: a round begins when its zones hold about as much live
    /// data.
    pub read_at_once: u64,
    /// `lifetime`: number of classes of the cleaner's zones, 1 to [`lifetime::MAX_GENERATIONS`].
    pub generations: u8,
}

impl Parameters {
    /// Returns the best known parameters for this number of zones; the book's page on cleaning has the
    /// measurements. A fixed limit of 0.3 and reads of 65536 data units (256 MiB in blocks of 4 KiB), as in
    /// SeastarFS; the more zones, the more generations.
    pub fn for_zones(zones: u32) -> Self {
        let generations = match zones {
            0..64 => 1,
            64..256 => 2,
            _ => 3,
        };
        Parameters { live_share: 0.3, limit: Limit::Fixed, read_at_once: 65536, generations }
    }
}

/// Returns the policy with this name.
///
/// # Errors
/// `Invalid` for an unknown name, or if one of the policy's parameters is out of range.
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

/// Returns the candidate with the highest score of those that gain anything; of equals the one opened first.
/// `None` unless cleaning is requested.
fn highest(
    candidates: &mut dyn Iterator<Item = Candidate>,
    pressure: Pressure,
    score: impl Fn(&Candidate) -> f64,
) -> Option<ZoneIndex> {
    if !pressure.is_asked() {
        return None;
    }
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
