//! fio's JSON, as far as plans read it.

use crate::{Latencies, Outcome};
use block::Status;
use serde_json::{Map, Value, json};

const PERCENTILES: [f64; 7] = [50.0, 90.0, 95.0, 99.0, 99.9, 99.99, 100.0];

/// Latencies as fio has them.
pub fn latencies(latencies: &Latencies) -> Value {
    let percentiles: Map<String, Value> = PERCENTILES
        .iter()
        .map(|percent| (format!("{percent:.6}"), json!(latencies.quantile(percent / 100.0))))
        .collect();
    json!({
        "min": latencies.smallest(),
        "mean": latencies.mean(),
        "max": latencies.largest(),
        "percentile": percentiles,
    })
}

/// Prints a benchmark, the bytes that it wrote to the medium, and the status of the store.
pub fn print(outcome: &Outcome, written: u64, status: &Status) {
    let measured = &outcome.measured;
    let seconds = outcome.time.as_secs_f64().max(1e-9);
    let count = measured.latencies.count();
    let direction = json!({
        "total_ios": count,
        "io_bytes": measured.bytes,
        "runtime": seconds * 1000.0,
        "iops": count as f64 / seconds,
        "bw_bytes": measured.bytes as f64 / seconds,
        "lat_ns": latencies(&measured.latencies),
    });
    let mut job = json!({
        "jobname": format!("kv-load {}", outcome.name),
        "error": 0,
        "usr_cpu": 100.0 * outcome.cpu.as_secs_f64() / seconds,
        "sys_cpu": 0.0,
        "job_runtime": seconds * 1000.0,
        "found": measured.found,
    });
    job[if outcome.writes { "write" } else { "read" }] = direction;
    if outcome.writes && measured.bytes > 0 {
        let factor = written as f64 / measured.bytes as f64;
        job["write_amplification"] = json!({"data": factor, "all": factor});
    }
    println!("{}", json!({"jobs": [job], "store": status}));
}
