//! SepBIT as published (Wang et al., "Separating data via block invalidation time inference for write
//! amplification reduction in log-structured storage", FAST 2022): the model of
//! [`lifetime`](super::lifetime), and the baseline to compare it with.
//!
//! Users' writes go to class 0 if the version that they replace lived less than ℓ, the mean lifespan of the
//! last zones of class 0 that were cleaned, otherwise to class 1. Blocks moved from class 0 go to class 2.
//! Blocks moved from other classes go to class 3, 4 or 5, by their age since a user wrote them: below 4ℓ,
//! below 16ℓ, or more. The next victim is the zone with the highest (1 - u) · age / u.
//!
//! With ages that are known per block, the blocks of one zone may go to four classes, each of which may need
//! a new zone.

use super::lifetime::{Lifespan, benefit};
use super::{Arrival, Candidate, Policy, Pressure, highest};
use block::ZoneIndex;

/// Name of the policy in a stack.
pub const NAME: &str = "sepbit";

/// The SepBIT policy.
#[derive(Debug, Clone, Default)]
pub struct SepBit {
    lifespan: Lifespan,
}

impl Policy for SepBit {
    fn name(&self) -> &'static str {
        NAME
    }

    fn classes(&self) -> u8 {
        6
    }

    fn is_users(&self, class: u8) -> bool {
        class < 2
    }

    fn place(&self, arrival: Arrival) -> u8 {
        match arrival {
            Arrival::Overwrite { age, .. } if self.lifespan.is_longer_than(age) => 0,
            Arrival::New | Arrival::Overwrite { .. } => 1,
            Arrival::Moved { class: 0, .. } => 2,
            Arrival::Moved { age, .. } if self.lifespan.times_is_longer_than(4, age) => 3,
            Arrival::Moved { age, .. } if self.lifespan.times_is_longer_than(16, age) => 4,
            Arrival::Moved { .. } => 5,
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
        if candidate.class == 0 {
            self.lifespan.learn(now.saturating_sub(candidate.opened));
        }
    }
}
