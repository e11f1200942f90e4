//! Cost-benefit: the next victim is the zone with the highest (1 - u) · age / (1 + u), with u the live share:
//! the freed space, times how long it will stay free, over the cost of cleaning (Rosenblum and Ousterhout,
//! "The design and implementation of a log-structured file system", 1992). Users' writes and the cleaner's go
//! to separate zones.
//!
//! The 1 in the divisor is the cost of reading the whole zone, u that of writing the live data. The paper's
//! age is that of the youngest block in the segment. Here it is the zone's age, which needs no bookkeeping
//! per block; for a zone of the cleaner it is the time since the data was moved.

use super::{Candidate, Policy, Pressure, highest};
use block::ZoneIndex;

/// Name of the policy in a stack.
pub const NAME: &str = "cost-benefit";

/// The cost-benefit policy.
#[derive(Debug, Clone, Copy, Default)]
pub struct CostBenefit;

impl Policy for CostBenefit {
    fn name(&self) -> &'static str {
        NAME
    }

    fn choose(
        &mut self,
        candidates: &mut dyn Iterator<Item = Candidate>,
        pressure: Pressure,
        now: u64,
    ) -> Option<ZoneIndex> {
        highest(candidates, pressure, |candidate| {
            let live = candidate.live_share();
            (1.0 - live) * candidate.age(now) / (1.0 + live)
        })
    }
}
