//! The parts of a victim that are read: all of it, its live fragments, or a plan in between.
//!
//! A request costs a fixed amount, in data units that could be transferred in the same time, plus its length.
//! A gap between two live runs is read through if that is cheaper than another request. With unlimited
//! request lengths this is optimal, as gaps are independent; with a limit the excess is below one request's
//! cost per request. The result is one read for a zone that is nearly full, and only the fragments for one
//! that is nearly empty (the authors of SeastarFS suggest such a choice by estimate, 2.5.2).

use std::ops::Range;

/// Costs and limits of reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadCost {
    /// Fixed cost of a request, in data units transferred in the same time: latency or processor time per
    /// request over time per unit. For 4 KiB blocks on an SSD with 100 000 small reads or 2 GB a second: 5.
    pub request: u64,
    /// Largest gap of dead data that is read through, even if that is cheaper: the cleaner shares memory and
    /// bandwidth with users. 0 reads only live data.
    pub largest_gap: u64,
    /// Longest request in data units; at least 1.
    pub largest_request: u64,
}

/// Returns the requests that read these runs of live data at the least cost. Runs and requests are in
/// ascending order and don't overlap; empty runs are ignored. Each request begins and ends with live data and
/// has at most [`ReadCost::largest_request`] units.
///
/// # Panics
/// If the runs aren't in order, or the longest request is of length 0.
pub fn read_plan(live: impl IntoIterator<Item = Range<u64>>, cost: ReadCost) -> Vec<Range<u64>> {
    assert!(cost.largest_request > 0, "requests read something");
    let through = cost.request.min(cost.largest_gap);
    let mut plan: Vec<Range<u64>> = Vec::new();
    let mut behind = 0;
    for run in live {
        assert!(run.start >= behind && run.end >= run.start, "runs of live data are in order");
        behind = run.end;
        let mut start = run.start;
        if run.is_empty() {
            continue;
        }
        if let Some(last) = plan.last_mut() {
            let longest = last.start + cost.largest_request;
            if start - last.end <= through && start < longest {
                last.end = run.end.min(longest);
                start = last.end;
            }
        }
        while start < run.end {
            let end = run.end.min(start + cost.largest_request);
            plan.push(start..end);
            start = end;
        }
    }
    plan
}
