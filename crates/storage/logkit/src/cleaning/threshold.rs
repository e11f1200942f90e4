//! Threshold: the rule of SeastarFS ("SeastarFS: system plików dla bazy danych Scylla", 2.5.1). A zone is a
//! candidate while its live share is below `k`. Once X candidates of one zone's size satisfy (X + 1) · k ≥ M,
//! so that their live data is about worth one read of M, all of them are cleaned as one round. Users' writes
//! and the cleaner's go to separate zones.
//!
//! It cleans by its own rule, independent of the pressure, and in large reads. Zones above `k` are cleaned
//! only while cleaning is urgent: then the zone with the least live data is the next victim whatever its
//! share. (SeastarFS fails with "no space" instead.) On a full volume it therefore behaves like `greedy` with
//! less free space.

use super::{Candidate, Policy, Pressure};
use block::{Error, Result, ZoneIndex};
use std::collections::BTreeSet;

/// Name of the policy in a stack.
pub const NAME: &str = "threshold";

/// Rule for the limit `k` of the live share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Limit {
    /// The configured limit.
    #[default]
    Fixed,
    /// The share of free zones, at most the configured limit, as in section 2.5.1 of the source. The fuller
    /// the volume, the less is cleaned before it is urgent.
    Free,
    /// The share of zones that aren't free, at most the configured limit, as in section 3.1.2 of the source.
    /// While there is free space, zones with little to gain aren't cleaned.
    Used,
}

/// The threshold policy.
#[derive(Debug, Clone)]
pub struct Threshold {
    live_share: f64,
    limit: Limit,
    read_at_once: u64,
    /// Remaining zones of the round.
    round: BTreeSet<ZoneIndex>,
}

impl Threshold {
    /// Returns the policy with this limit of the live share (0 to 1; the upper bound of a dynamic limit), and
    /// M in data units.
    ///
    /// # Errors
    /// `Invalid` for a share out of range 0..=1.
    pub fn new(live_share: f64, limit: Limit, read_at_once: u64) -> Result<Self> {
        if !(0.0..=1.0).contains(&live_share) {
            return Err(Error::invalid(format!(
                "cleaning policy \"{NAME}\": live share {live_share}; expected a number from 0 to 1"
            )));
        }
        Ok(Threshold { live_share, limit, read_at_once, round: BTreeSet::new() })
    }

    /// Returns the current limit `k`.
    fn k(&self, pressure: Pressure) -> f64 {
        let free = f64::from(pressure.free.min(pressure.total)) / f64::from(pressure.total.max(1));
        match self.limit {
            Limit::Fixed => self.live_share,
            Limit::Free => self.live_share.min(free),
            Limit::Used => self.live_share.min(1.0 - free),
        }
    }
}

impl Policy for Threshold {
    fn name(&self) -> &'static str {
        NAME
    }

    fn choose(
        &mut self,
        candidates: &mut dyn Iterator<Item = Candidate>,
        pressure: Pressure,
        _now: u64,
    ) -> Option<ZoneIndex> {
        let k = self.k(pressure);
        let mut below = Vec::new();
        // The zones with the least live data: of the current round, and of all.
        let (mut of_round, mut of_all): (Option<Candidate>, Option<Candidate>) = (None, None);
        let emptier = |a: &Candidate, b: Option<Candidate>| b.is_none_or(|b| a.live_share() < b.live_share());
        for candidate in candidates.filter(Candidate::gains) {
            // Strictly below, as in the paper; but a zone without live data is a candidate even if k is 0.
            if candidate.live_share() < k || candidate.live == 0 {
                below.push(candidate);
            }
            if self.round.contains(&candidate.zone) && emptier(&candidate, of_round) {
                of_round = Some(candidate);
            }
            if emptier(&candidate, of_all) {
                of_all = Some(candidate);
            }
        }
        let mut next = of_round;
        if next.is_none() {
            self.round.clear();
            // Zones that were finished early may differ in size: the mean is used as the size of a zone.
            let units: u64 = below.iter().map(|candidate| candidate.written).sum();
            let mean = units as f64 / below.len().max(1) as f64;
            if !below.is_empty() && (units as f64 + mean) * k >= self.read_at_once as f64 {
                self.round.extend(below.iter().map(|candidate| candidate.zone));
                next = below.into_iter().min_by(|a, b| a.live_share().total_cmp(&b.live_share()));
            }
        }
        let chosen = next.or(of_all.filter(|_| pressure.is_urgent()))?;
        self.round.remove(&chosen.zone);
        Some(chosen.zone)
    }
}
