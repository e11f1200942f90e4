//! Greedy: the next victim is the zone with the least live data. Users' writes and the cleaner's go to
//! separate zones.
//!
//! Greedy is optimal if all blocks are equally likely to be overwritten. With hot and cold blocks it isn't:
//! zones of cold data stay slightly below full, and their dead blocks are never reclaimed.

use super::{Candidate, Policy, Pressure, highest};
use block::ZoneIndex;

/// Name of the policy in a stack.
pub const NAME: &str = "greedy";

/// The greedy policy.
#[derive(Debug, Clone, Copy, Default)]
pub struct Greedy;

impl Policy for Greedy {
    fn name(&self) -> &'static str {
        NAME
    }

    fn choose(
        &mut self,
        candidates: &mut dyn Iterator<Item = Candidate>,
        pressure: Pressure,
        _now: u64,
    ) -> Option<ZoneIndex> {
        highest(candidates, pressure, |candidate| -candidate.live_share())
    }
}
