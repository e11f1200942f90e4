//! The zone with the least live data is cleaned next; users' writes and the cleaner's go to zones of their own.
//!
//! The best there is where every block is as likely to be overwritten as any other. Where some are written often
//! and others hardly ever it isn't: zones of rarely written data stay a little below full for ever, and each of
//! them holds dead blocks that are never regained.

use super::{Candidate, Policy, Pressure, highest};
use block::ZoneIndex;

/// The word by which a stack names it.
pub const NAME: &str = "greedy";

/// See the module.
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
        if !pressure.is_asked() {
            return None;
        }
        highest(candidates, |candidate| -candidate.live_share())
    }
}
