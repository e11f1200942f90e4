//! Choice of the leg for a read, by expected latency.

use crate::leg::{LegCounters, Mask, each};
use block::Result;
use runtime::Instant;
use std::sync::atomic::Ordering;

/// Number of reads per probe: a read of another leg in the background that measures its latency.
const PROBE_EVERY: u64 = 512;
/// A sequential read stays on its leg unless another leg is expected to take less than 1/`STAY` of its time.
const STAY: u64 = 2;

/// Chooses the leg with the least expected latency; a read that continues a leg's last one prefers that leg.
pub fn choose(legs: &[LegCounters], among: Mask, block: u64) -> usize {
    let first = among.trailing_zeros() as usize;
    if among & (among - 1) == 0 {
        return first;
    }
    let (mut best, mut least, mut stays) = (first, u64::MAX, None);
    for leg in each(among) {
        let expected = legs[leg].expected();
        if expected < least {
            (best, least) = (leg, expected);
        }
        if legs[leg].next.load(Ordering::Relaxed) == block {
            stays = Some((leg, expected));
        }
    }
    match stays {
        Some((leg, expected)) if expected / STAY <= least => leg,
        _ => best,
    }
}

/// Returns a leg to probe with every [`PROBE_EVERY`]th read, each in turn.
pub fn probe(reads: u64, among: Mask, chosen: usize) -> Option<usize> {
    if !reads.is_multiple_of(PROBE_EVERY) || among.count_ones() < 2 {
        return None;
    }
    let others: Mask = among & !(1 << chosen);
    each(others).nth((reads / PROBE_EVERY % u64::from(others.count_ones())) as usize)
}

/// A read in flight, counted by its leg.
pub struct Timed<'a> {
    leg: &'a LegCounters,
    began: Instant,
}

impl<'a> Timed<'a> {
    /// Begins a read that ends before block `end`.
    pub fn begin(leg: &'a LegCounters, end: u64) -> Self {
        leg.in_flight.fetch_add(1, Ordering::Relaxed);
        leg.next.store(end, Ordering::Relaxed);
        Timed { leg, began: runtime::now() }
    }

    /// Notes the end of the read.
    pub fn end(self, outcome: &Result<()>) {
        match outcome {
            Ok(()) => {
                self.leg.reads.fetch_add(1, Ordering::Relaxed);
                self.leg.took(self.began.elapsed().as_nanos() as u64);
            }
            Err(_) => drop(self.leg.read_errors.fetch_add(1, Ordering::Relaxed)),
        }
    }
}

impl Drop for Timed<'_> {
    fn drop(&mut self) {
        self.leg.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn legs(latencies: &[u64]) -> Vec<LegCounters> {
        let leg = |latency: &u64| {
            let counters = LegCounters::default();
            counters.latency.store(*latency, Ordering::Relaxed);
            counters
        };
        latencies.iter().map(leg).collect()
    }

    #[test]
    fn a_slow_leg_takes_only_what_it_answers_sooner() {
        let legs = legs(&[100, 1000]);
        let mut chosen = Vec::new();
        let timed: Vec<Timed<'_>> = (0..12)
            .map(|number| {
                // No read continues another one.
                let leg = choose(&legs, 0b11, 1000 + 10 * number);
                chosen.push(leg);
                Timed::begin(&legs[leg], 0)
            })
            .collect();
        // With nine reads in flight on the fast leg, a tenth one would take there as long as on the slow leg.
        assert_eq!(chosen.iter().filter(|leg| **leg == 1).count(), 1, "{chosen:?}");
        assert_eq!(chosen[..9], [0; 9]);
        drop(timed);
        assert_eq!(legs[0].in_flight.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn what_goes_on_stays_where_it_is() {
        let legs = legs(&[100, 150]);
        legs[1].next.store(64, Ordering::Relaxed);
        assert_eq!((choose(&legs, 0b11, 64), choose(&legs, 0b11, 65)), (1, 0));
        // But a leg that takes twice the time isn't preferred.
        legs[1].latency.store(300, Ordering::Relaxed);
        assert_eq!(choose(&legs, 0b11, 64), 0);
    }

    #[test]
    fn others_are_asked_now_and_then() {
        let probes: Vec<usize> = (0..4 * PROBE_EVERY).filter_map(|reads| probe(reads, 0b1011, 0)).collect();
        assert_eq!(probes, [1, 3, 1, 3]);
        assert_eq!(probe(0, 0b1, 0), None);
    }
}
