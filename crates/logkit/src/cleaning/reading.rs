//! Which parts of a zone that is being cleaned are read: all of it, its live fragments, or something between.
//!
//! A request costs a fixed amount, here in data units that could have been transferred meanwhile, and its length. A
//! gap between two live runs is read through if that costs less than another request. For requests of any length that
//! is optimal, as each gap is decided for itself; with a largest length it is off by less than a request's cost per
//! request. "All of it" and "only the fragments" are what comes out for a zone that is nearly full and one that is
//! nearly empty (SeastarFS's authors ask for such a choice by estimate, 2.5.2).

use std::ops::Range;

/// What reading costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadCost {
    /// The fixed cost of a request, in data units transferred in the same time: latency or processor time per request
    /// over time per unit. 4 KiB blocks on an SSD that gives 100 000 small reads or 2 GB a second: 5.
    pub request: u64,
    /// The largest gap of dead data that is read through even if it were cheap: memory and bandwidth are not only the
    /// cleaner's. 0 reads what is live and nothing else.
    pub largest_gap: u64,
    /// The longest request in data units; at least 1.
    pub largest_request: u64,
}

/// The requests that read these runs of live data (in order, not overlapping; empty ones are left out) at least cost:
/// in order, not overlapping, each beginning and ending with live data and no longer than the longest.
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
