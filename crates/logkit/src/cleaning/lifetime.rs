//! Blocks that are likely to die at about the same time are written beside each other, so that zones die as a whole.
//!
//! Users' writes, as in SepBIT (Wang et al., "Separating data via block invalidation time inference for write
//! amplification reduction in log-structured storage", FAST 2022): what is overwritten soon is likely to be
//! overwritten soon again. So a version goes to class 0 if the one that it replaces lived less than ℓ, the mean time
//! from beginning to cleaning of the last zones of class 0; else, and if there was none, to class 1.
//!
//! What the cleaner moves: the longer a block has lived, the longer it will. SepBIT sorts by age (against 4ℓ and 16ℓ),
//! which needs the time of every block's write to be kept across moves. Here a block goes one class on whenever it is
//! moved and thus has outlived another zone: from class 0 to the first class of the cleaner's, from class 1 to the
//! second, and so on up to the last. That needs no times at all and saves as much with fewer classes
//! (`tests/cleaning_simulation.rs` compares them). For users' writes the age of the zone in which the old version lies
//! is enough: zones of hot blocks fill and die fast, and a block that was moved counts from its move.
//!
//! The zone with the highest (1 - u) · age / u is cleaned next: cost-benefit, with what is written as the cost.

use super::{Arrival, Candidate, Policy, Pressure, highest};
use block::{Error, Result, ZoneIndex};
use std::collections::VecDeque;

/// The word by which a stack names it.
pub const NAME: &str = "lifetime";

/// The most classes that the cleaner's zones may have.
pub const MAX_GENERATIONS: u8 = 8;

/// Users' classes: what is expected to die soon, and the rest.
const SOON: u8 = 0;
const LATER: u8 = 1;
/// How many classes users have; the cleaner's begin here.
const USERS: u8 = 2;

/// See the module.
#[derive(Debug, Clone)]
pub struct Lifetime {
    generations: u8,
    lifespan: Lifespan,
}

impl Lifetime {
    /// With this many classes for the cleaner. Each sorts more finely and costs a zone of room:
    /// [`Parameters::for_zones`](super::Parameters::for_zones) knows what pays.
    ///
    /// # Errors
    /// `Invalid` if that isn't 1 to [`MAX_GENERATIONS`].
    pub fn new(generations: u8) -> Result<Self> {
        if !(1..=MAX_GENERATIONS).contains(&generations) {
            return Err(Error::invalid(format!(
                "{generations} generations of the cleaning policy \"{NAME}\": expected 1 to {MAX_GENERATIONS}"
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
        if !pressure.is_asked() {
            return None;
        }
        highest(candidates, |candidate| benefit(candidate, now))
    }

    fn cleaned(&mut self, candidate: Candidate, now: u64) {
        if candidate.class == SOON {
            self.lifespan.learn(now.saturating_sub(candidate.opened));
        }
    }
}

/// (1 - u) · age / u; beyond everything for what is wholly dead.
pub(super) fn benefit(candidate: &Candidate, now: u64) -> f64 {
    let live = candidate.live_share();
    if candidate.live == 0 { f64::INFINITY } else { (1.0 - live) * candidate.age(now) / live }
}

/// The mean lifespan ℓ of the zones of class 0 that were cleaned last; as long as there were none, for ever.
#[derive(Debug, Clone, Default)]
pub(super) struct Lifespan {
    recent: VecDeque<u64>,
    /// Of them all: whoever places a block asks.
    sum: u64,
}

impl Lifespan {
    /// As many as in SepBIT.
    const ZONES: usize = 16;

    pub fn learn(&mut self, lifespan: u64) {
        if self.recent.len() == Self::ZONES {
            self.sum -= self.recent.pop_front().unwrap_or(0);
        }
        // A log that had written 2^60 blocks would be at its end.
        let lifespan = lifespan.min(u64::MAX / (2 * Self::ZONES as u64));
        self.recent.push_back(lifespan);
        self.sum += lifespan;
    }

    /// Whether `times` lifespans are longer than this.
    pub fn times_is_longer_than(&self, times: u64, age: u64) -> bool {
        let zones = self.recent.len() as u64;
        zones == 0 || u128::from(self.sum) * u128::from(times) > u128::from(age) * u128::from(zones)
    }

    pub fn is_longer_than(&self, age: u64) -> bool {
        self.times_is_longer_than(1, age)
    }
}
