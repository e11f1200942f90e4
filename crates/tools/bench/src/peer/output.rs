//! Output of a plan's command that measures: the fields of fio's JSON that
//! [`measurement`](super::fio::measurement) reads.

use crate::latency::CURVE;
use runtime::histogram::Histogram;
use serde_json::{Map, Value, json};
use std::time::Duration;

/// One measurement of a program.
#[derive(Debug, Clone, Copy)]
pub struct Output<'a, const PRECISION: u32> {
    /// Name of the program and of its workload.
    pub name: &'a str,
    /// Whether the operations were writes.
    pub writes: bool,
    /// A latency for each operation, in nanoseconds.
    pub latencies: &'a Histogram<PRECISION>,
    /// Bytes that all operations transferred.
    pub bytes: u64,
    /// Measured time.
    pub time: Duration,
    /// Processor time of the program during `wall`.
    pub cpu: Duration,
    /// Time of the whole job, its ramp included.
    pub wall: Duration,
    /// Whether an operation failed, or had a wrong result.
    pub failed: bool,
}

/// Latencies in fio's form.
pub fn latencies<const PRECISION: u32>(latencies: &Histogram<PRECISION>) -> Value {
    let percentiles: Map<String, Value> = CURVE
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

impl<const PRECISION: u32> Output<'_, PRECISION> {
    /// fio's object for a job, to which a program may add further fields.
    pub fn job(&self) -> Value {
        let (count, seconds) = (self.latencies.count(), self.time.as_secs_f64().max(1e-9));
        let wall = self.wall.as_secs_f64().max(1e-9);
        let direction = json!({
            "total_ios": count,
            "io_bytes": self.bytes,
            "runtime": seconds * 1000.0,
            "iops": count as f64 / seconds,
            "bw_bytes": self.bytes as f64 / seconds,
            "lat_ns": latencies(self.latencies),
        });
        json!({
            "jobname": self.name,
            "error": if self.failed { 5 } else { 0 },
            "usr_cpu": 100.0 * self.cpu.as_secs_f64() / wall,
            "sys_cpu": 0.0,
            "job_runtime": wall * 1000.0,
            (if self.writes { "write" } else { "read" }): direction,
        })
    }
}
