//! Output in fio's JSON, limited to the fields that plans read.

use crate::Outcome;
use bench::peer::output::Output;
use block::Status;
use serde_json::json;

/// Prints the result of a benchmark, the bytes that it wrote to the medium, and the status of the store.
pub fn print(outcome: &Outcome, written: u64, status: &Status) {
    let measured = &outcome.measured;
    let mut job = Output {
        name: &format!("kv-load {}", outcome.name),
        writes: outcome.writes,
        latencies: &measured.latencies,
        bytes: measured.bytes,
        time: outcome.time,
        cpu: outcome.cpu,
        wall: outcome.time,
        failed: false,
    }
    .job();
    job["found"] = json!(measured.found);
    if outcome.writes && measured.bytes > 0 {
        let factor = written as f64 / measured.bytes as f64;
        job["write_amplification"] = json!({"data": factor, "all": factor});
    }
    println!("{}", json!({"jobs": [job], "store": status}));
}
