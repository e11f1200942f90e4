//! Answer to a request for the counts of all calls, as JSON.
//!
//! ```json
//! {"nanoseconds": 81234567,
//!  "parts": [{"part": "vol", "door": null, "kind": "log", "contract": "device", "below": ["disk"],
//!             "calls": {"read": {"operations": 3, "bytes": 12288, "errors": 0, "in_flight": 1,
//!                                "latency_sum_ns": 81000, "latency_ns": [[26623, 2], [27647, 1]]}}}],
//!  "status": {…}}
//! ```
//!
//! `parts` has the parts from the bottom up, each followed by its doors: `door` is the name of the door whose
//! calls to the part these are, and `kind` its kind. Counts begin with the first request. `latency_ns` has
//! the buckets that aren't empty: the middle of the bucket and the number of calls, as
//! [`histogram`](runtime::histogram) divides them. Readers take differences.

use layers::observation::{Observation, ObservedCalls};
use layers::stats::CallCounts;
use serde_json::{Map, Value, json};
use std::time::Duration;

/// Time for which calls are counted after a request.
const LOOK_TIME: Duration = Duration::from_secs(30);

/// Returns the counts of all calls, and lets calls be counted for the next time.
pub fn observe(observation: &Observation) -> Value {
    observation.count_for(LOOK_TIME);
    let parts: Vec<Value> = observation.parts().iter().map(|calls| part(calls)).collect();
    json!({ "nanoseconds": runtime::now().nanoseconds(), "parts": parts })
}

fn part(calls: &ObservedCalls) -> Value {
    let counts: Map<String, Value> =
        calls.counts().into_iter().map(|(name, counts)| (name.to_owned(), call(&counts))).collect();
    json!({
        "part": calls.part,
        "door": calls.door,
        "kind": calls.kind,
        "contract": calls.contract.section(),
        "below": calls.below,
        "calls": counts,
    })
}

fn call(counts: &CallCounts) -> Value {
    json!({
        "operations": counts.latency.count(),
        "bytes": counts.bytes,
        "errors": counts.errors,
        "in_flight": counts.in_flight,
        "latency_sum_ns": u64::try_from(counts.latency.sum()).unwrap_or(u64::MAX),
        "latency_ns": counts.latency.middles().collect::<Vec<_>>(),
    })
}
