//! Lifetime: blocks that are likely to die at about the same time are written to the same zone, so that zones
//! die as a whole.
//!
//! Users' writes are placed as in SepBIT (Wang et al., "Separating data via block invalidation time inference
//! for write amplification reduction in log-structured storage", FAST 2022): a block that is overwritten soon
//! is likely to be overwritten soon again. A version goes to class 0 if the version that it replaces lived
//! less than ℓ, the mean time from opening to cleaning of the last zones of class 0. Otherwise, and if it
//! replaces none, it goes to class 1.
//!
//! Moved blocks: the longer a block has lived, the longer it is expected to live. SepBIT sorts by age
//! (against 4ℓ and 16ℓ), which requires each block's write time to be kept across moves. Here a block
//! advances by one class on each move, as it has outlived another zone: from class 0 to the first class of
//! the cleaner, from class 1 to the second, and so on up to the last. This needs no times and saves as much
//! with fewer classes (`tests/cleaning_simulation.rs` compares them). For users' writes the age of the
//! previous version's zone is precise enough: zones of hot blocks fill and die fast, and the age of a moved
//! block starts at its move.
//!
//! The next victim is the zone with the highest (1 - u) · age / u: cost-benefit, with the moved blocks as the
//! cost.

use super::{Arrival, Candidate, Policy, Pressure, highest};
use block::{Error, Result, ZoneIndex};
use std::collections::VecDeque;

/// Name of the policy in a stack.
pub const NAME: &str = "lifetime";

/// Most classes of the cleaner's zones.
pub const MAX_GENERATIONS: u8 = 8;

/// Users' class of blocks that are expected to die soon; the others go to the next class.
const SOON: u8 = 0;
const LATER: u8 = 1;
/// Number of users' classes, and the first class of the cleaner's.
const USERS: u8 = 2;

/// The lifetime policy.
#[derive(Debug, Clone)]
pub struct Lifetime {
    generations: u8,
    lifespan: Lifespan,
}

impl Lifetime {
    /// Creates the policy with this many classes for the cleaner. Each class sorts more finely and needs a
    /// zone of free space: [`Parameters::for_zones`](super::Parameters::for_zones) returns the best known
    /// number.
    ///
    /// # Errors
    /// `Invalid` unless the number is 1 to [`MAX_GENERATIONS`].
    pub fn new(generations: u8) -> Result<Self> {
        if !(1..=MAX_GENERATIONS).contains(&generations) {
            return Err(Error::invalid(format!(
                "cleaning policy \"{NAME}\": {generations} generations; expected 1 to {MAX_GENERATIONS}"
            )));
        }
        Ok(Lifetime { generations, lifespan: Lifespan::default() })
    }
}

impl Policy for Lifetime {
    fn name(&self) -> &'static str {
        NAME
    }

    fn classes(&self) -> u8 {
        USERS + self.generations
    }

    fn is_users(&self, class: u8) -> bool {
        class < USERS
    }

    fn place(&self, arrival: Arrival) -> u8 {
        match arrival {
            Arrival::Overwrite { age, .. } if self.lifespan.is_longer_than(age) => SOON,
            Arrival::New | Arrival::Overwrite { .. } => LATER,
            Arrival::Moved { class, .. } => {
                let generation = if class < USERS { class } else { class - USERS + 1 };
                USERS + generation.min(self.generations - 1)
            }
        }
    }

    fn choose(
        &mut self,
        candidates: &mut dyn Iterator<Item = Candidate>,
        pressure: Pressure,
        now: u64,
    ) -> Option<ZoneIndex> {
        highest(candidates, pressure, |candidate| benefit(candidate, now))
    }

    fn cleaned(&mut self, candidate: Candidate, now: u64) {
        if candidate.class == SOON {
            self.lifespan.learn(now.saturating_sub(candidate.opened));
        }
    }
}

/// Returns (1 - u) · age / u; infinite for a zone without live data.
pub(super) fn benefit(candidate: &Candidate, now: u64) -> f64 {
    let live = candidate.live_share();
    if candidate.live == 0 { f64::INFINITY } else { (1.0 - live) * candidate.age(now) / live }
}

/// Mean lifespan ℓ of the zones of class 0 that were cleaned last; infinite before the first.
#[derive(Debug, Clone, Default)]
pub(super) struct Lifespan {
    recent: VecDeque<u64>,
    /// Sum of `recent`, kept because every placement needs the mean.
    sum: u64,
}

impl Lifespan {
    /// Number of zones in the mean, as in SepBIT.
    const ZONES: usize = 16;

    pub fn learn(&mut self, lifespan: u64) {
        if self.recent.len() == Self::ZONES {
            self.sum -= self.recent.pop_front().unwrap_or(0);
        }
        // Bounds the sum; no log reaches a lifespan of 2^59 units.
        let lifespan = lifespan.min(u64::MAX / (2 * Self::ZONES as u64));
        self.recent.push_back(lifespan);
        self.sum += lifespan;
    }

    /// Returns whether `times` lifespans are longer than this age.
    pub fn times_is_longer_than(&self, times: u64, age: u64) -> bool {
        let zones = self.recent.len() as u64;
        zones == 0 || u128::from(self.sum) * u128::from(times) > u128::from(age) * u128::from(zones)
    }

    pub fn is_longer_than(&self, age: u64) -> bool {
        self.times_is_longer_than(1, age)
    }
}
