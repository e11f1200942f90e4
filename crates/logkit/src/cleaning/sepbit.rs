//! SepBIT as published (Wang et al., "Separating data via block invalidation time inference for write amplification
//! reduction in log-structured storage", FAST 2022): the model and the yardstick of [`lifetime`](super::lifetime).
//!
//! Users' writes go to class 0 if the version that they replace lived less than ℓ, the mean lifespan of the last zones
//! of class 0 that were cleaned, else to class 1. What is moved from class 0 goes to class 2; what is moved from
//! anywhere else to class 3, 4 or 5, by its age since a user wrote it: below 4ℓ, below 16ℓ, or more. Cleaned next is the
//! zone with the highest (1 - u) · age / u.
//!
//! With ages that are known per block, the blocks of one zone may go to four classes, each of which may need a new zone
//! then.

use super::lifetime::{Lifespan, benefit};
use super::{Arrival, Candidate, Policy, Pressure, highest};
use block::ZoneIndex;

/// The word by which a stack names it.
pub const NAME: &str = "sepbit";

/// See the module.
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
        if !pressure.is_asked() {
            return None;
        }
        highest(candidates, |candidate| benefit(candidate, now))
    }

    fn cleaned(&mut self, candidate: Candidate, now: u64) {
        if candidate.class == 0 {
            self.lifespan.learn(now.saturating_sub(candidate.opened));
        }
    }
}
