//! fio's command line and JSON.

use crate::job::Job;
use crate::latency::{CURVE, CurvePoint, Latency};
use crate::results::{Measurement, WriteAmplification};
use block::{Error, Result};
use serde_json::Value;
use std::path::Path;

/// Device and engine of fio.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fio {
    /// File or block device, relative to the plan's folder; `None` for engines with an address of their own
    /// (nbd's `uri`).
    pub filename: Option<String>,
    /// fio's engine.
    pub ioengine: String,
    /// Whether the page cache is bypassed.
    pub direct: bool,
    /// Further options, passed on unchanged.
    pub options: Vec<(String, String)>,
}

impl Fio {
    /// Arguments of fio for a workload.
    pub fn arguments(&self, job: &Job, directory: &Path) -> Vec<String> {
        let mut arguments = job_arguments(job);
        let mut push = |key: &str, value: &str| arguments.push(format!("--{key}={value}"));
        push("ioengine", &self.ioengine);
        if let Some(filename) = &self.filename {
            // An unescaped colon would end the name for fio.
            let path = directory.join(filename).display().to_string().replace(':', "\\:");
            // For a replay, this replaces the files that the log names.
            push(if job.is_replay() { "replay_redirect" } else { "filename" }, &path);
            push("direct", if self.direct { "1" } else { "0" });
        }
        for (key, value) in &self.options {
            push(key, value);
        }
        arguments
    }
}

/// Arguments of fio for a job and for a report that [`measurement`] parses, without the device.
pub fn job_arguments(job: &Job) -> Vec<String> {
    let name = job.name.replace(|letter: char| !letter.is_ascii_alphanumeric(), "-");
    let mut arguments = vec![format!("--name={name}")];
    // A peer must not overwrite the job's log; the peer's device determines where a log is replayed.
    let is_its = |key: &str| !["write_iolog", "replay_redirect"].contains(&key);
    let options = job.options().into_iter().filter(|(key, _)| is_its(key));
    arguments.extend(options.map(|(key, value)| format!("--{key}={value}")));
    // The engine also measures total latency. Reads and writes of a mix are one distribution.
    let percentiles: Vec<String> = CURVE.iter().map(f64::to_string).collect();
    arguments.push(format!("--percentile_list={}", percentiles.join(":")));
    for report in
        ["--lat_percentiles=1", "--clat_percentiles=0", "--group_reporting=1", "--output-format=json"]
    {
        arguments.push(report.into());
    }
    if job.rw.is_mixed() || job.is_replay() {
        arguments.push("--unified_rw_reporting=mixed".into());
    }
    arguments.push("--eta=never".into());
    arguments
}

/// Parses fio's output: its JSON, after lines of an engine. A command may add `"write_amplification":
/// {"data": 1.5, "all": 1.6}` to its job.
///
/// # Errors
/// [`Error::Protocol`] without such JSON, or for more than one group in it; [`Error::Io`] if fio reports that
/// a job failed.
pub fn measurement(text: &str) -> Result<Measurement> {
    let report = find_report(text)?;
    let jobs = report.get("jobs").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let [job] = jobs else {
        return Err(Error::protocol(format!(
            "fio's JSON with {} jobs: expected one group (--group_reporting)",
            jobs.len()
        )));
    };
    let errno = number(job, "error") as i32;
    if errno != 0 {
        let reason = std::io::Error::from_raw_os_error(errno);
        return Err(Error::io(format!("fio's job failed: {reason}")));
    }
    let directions = ["mixed", "read", "write", "trim"].map(|name| job.get(name));
    let used: Vec<&Value> =
        directions.into_iter().flatten().filter(|direction| number(direction, "total_ios") > 0.0).collect();
    let sum = |key: &str| used.iter().map(|direction| number(direction, key)).sum::<f64>();
    let longest = used.iter().map(|direction| number(direction, "runtime")).fold(0.0, f64::max);
    // CPU time and runtime are both sums over fio's processes, so their ratio is that of the job.
    let cpu_percent = number(job, "usr_cpu") + number(job, "sys_cpu");
    let mut measurement = Measurement {
        operations: sum("total_ios") as u64,
        bytes: sum("io_bytes") as u64,
        seconds: longest / 1000.0,
        iops: sum("iops"),
        bandwidth: sum("bw_bytes"),
        cpu_seconds: cpu_percent / 100.0 * number(job, "job_runtime") / 1000.0,
        ..Measurement::default()
    };
    measurement.write_amplification = job
        .get("write_amplification")
        .map(|factor| WriteAmplification { data: number(factor, "data"), all: number(factor, "all") });
    if let [direction] = used[..] {
        let points = curve(direction);
        measurement.latency_ns = latency(direction, &points);
        let supported = |point: &CurvePoint| measurement.operations as f64 * (100.0 - point.percent) >= 99.9;
        measurement.curve = points.into_iter().filter(supported).collect();
    }
    Ok(measurement)
}

/// Returns the first JSON object that begins a line and has jobs.
fn find_report(text: &str) -> Result<Value> {
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        if line.starts_with('{') {
            let mut values = serde_json::Deserializer::from_str(&text[start..]).into_iter::<Value>();
            if let Some(Ok(value)) =
                values.next().filter(|value| value.as_ref().is_ok_and(|it| it.get("jobs").is_some()))
            {
                return Ok(value);
            }
        }
        start += line.len();
    }
    let beginning: String = text.chars().take(200).collect();
    Err(Error::protocol(format!("expected fio's JSON, found {beginning:?}")))
}

fn number(value: &Value, key: &str) -> f64 {
    value.get(key).and_then(Value::as_f64).unwrap_or(0.0)
}

/// Total latencies; completion latencies if a command uses fio's defaults.
fn latencies(direction: &Value) -> Option<&Value> {
    let has_percentiles = |found: &&Value| found.get("percentile").is_some();
    ["lat_ns", "clat_ns"].iter().filter_map(|key| direction.get(key)).find(has_percentiles)
}

fn curve(direction: &Value) -> Vec<CurvePoint> {
    let percentiles =
        latencies(direction).and_then(|found| found.get("percentile")).and_then(Value::as_object);
    let mut points: Vec<CurvePoint> = percentiles
        .into_iter()
        .flatten()
        .filter_map(|(percent, ns)| Some(CurvePoint { percent: percent.parse().ok()?, ns: ns.as_u64()? }))
        .filter(|point| point.percent.is_finite())
        .collect();
    points.sort_by(|a, b| a.percent.total_cmp(&b.percent));
    points
}

fn latency(direction: &Value, curve: &[CurvePoint]) -> Option<Latency> {
    let found = latencies(direction)?;
    let at = |percent: f64| {
        curve.iter().find(|point| (point.percent - percent).abs() < 1e-6).map(|point| point.ns)
    };
    Some(Latency {
        min: number(found, "min") as u64,
        mean: number(found, "mean"),
        p50: at(50.0)?,
        p90: at(90.0)?,
        p95: at(95.0)?,
        p99: at(99.0)?,
        p99_9: at(99.9)?,
        p99_99: at(99.99)?,
        max: number(found, "max") as u64,
    })
}
