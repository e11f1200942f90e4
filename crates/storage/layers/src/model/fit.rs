//! Fits a profile to a run of fio on a real device, [`JOB`]. Each number of the profile follows from one or
//! two of its jobs, except the write buffer: a disk's is searched by trials, a solid-state device's is found
//! by [`fill`] in a run of its own.

use super::fill::{self, Filled};
use super::profile::{Disk, Profile, Service, SolidState, WriteBuffer};
use super::trial::{Load, trial};
use block::{Error, Result};
use serde_json::Value;
use std::time::Duration;

/// Job file for fio. The report is searched for its jobs by name.
pub const JOB: &str = include_str!("fit.fio");

/// Depth of the `deep` jobs, and share of the device that the `near` jobs use, as in [`JOB`].
const DEPTH: usize = 32;
const NEAR: f64 = 0.01;
/// Mean of the square root of the distance between two random offsets of a device of length 1.
const MEAN_ROOT: f64 = 8.0 / 15.0;
/// Capacity for trials of a disk; the model depends only on distances relative to it.
const CAPACITY: u64 = 1 << 40;
/// Flush latency in seconds up to which a device has no volatile cache.
const NO_FLUSH: f64 = 20e-6;

/// fio's measurements of one job.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Measured {
    iops: f64,
    /// Bytes per second.
    bandwidth: f64,
    /// Mean and standard deviation of the latency in seconds.
    mean: f64,
    deviation: f64,
    /// Mean latency of a flush in seconds.
    flush: f64,
}

/// A fitted profile, and its accuracy.
#[derive(Debug, Clone, PartialEq)]
pub struct Fitted {
    /// The profile.
    pub profile: Profile,
    /// Per job: measured operations per second, and those of the profile without its write buffer.
    pub compared: Vec<(&'static str, f64, f64)>,
    /// Write buffer of a solid-state device, if its log was given and one was found.
    pub filled: Option<Filled>,
}

/// Fits a profile to fio's JSON report of [`JOB`]: that of a disk with `rpm` revolutions per minute, or of a
/// solid-state device, whose write buffer is fitted to `fill`, fio's log of [`fill::JOB`], if that is given.
///
/// # Errors
/// [`Error::Invalid`] if the text isn't fio's report, if a job is missing or failed, or if both `rpm` and
/// `fill` are given.
pub fn fit(report: &str, title: &str, rpm: Option<u32>, fill: Option<&str>) -> Result<Fitted> {
    if rpm.is_some() && fill.is_some() {
        return Err(Error::invalid(
            "both rpm and a fill log are given; expected one of them: a disk's write buffer is fitted without a fill log",
        ));
    }
    // fio prints warnings before the report.
    let start = report.find('{').ok_or_else(|| {
        Error::invalid("fio's report: not JSON; expected the output of --output-format=json")
    })?;
    let report: Value = serde_json::from_str(&report[start..])
        .map_err(|error| Error::invalid(format!("fio's report: {error}; expected --output-format=json")))?;
    let mut profile = match rpm {
        Some(rpm) => Profile::Disk(disk(&report, title, rpm)?),
        None => Profile::SolidState(solid_state(&report, title)?),
    };
    let mut compared = Vec::new();
    for (name, load) in loads(rpm.is_some()) {
        let operations = if rpm.is_some() { 4000 } else { 40_000 };
        compared.push((name, job(&report, name)?.iops, trial(&profile, CAPACITY, load, operations).iops));
    }
    let filled = fill.map(fill::fit).transpose()?.flatten();
    if let (Profile::SolidState(profile), Some(filled)) = (&mut profile, &filled) {
        let size = whole_mebibytes(filled.buffer.size as f64);
        let drain = whole_mebibytes(filled.buffer.drain as f64);
        profile.write_buffer = Some(WriteBuffer { size, drain });
        // The stream job may have averaged the speeds before and after the buffer was full.
        profile.write.bandwidth = profile.write.bandwidth.max(whole_mebibytes(filled.fast));
    }
    Ok(Fitted { profile, compared, filled })
}

/// Loads of the jobs.
fn loads(is_disk: bool) -> Vec<(&'static str, Load)> {
    let small = |is_write, depth, span| Load { is_write, span: Some(span), bytes: 4096, depth };
    let stream = |is_write| Load { is_write, span: None, bytes: 1 << 20, depth: 4 };
    let mut loads = vec![
        ("read-alone", small(false, 1, 1.0)),
        ("read-deep", small(false, DEPTH, 1.0)),
        ("read-stream", stream(false)),
        ("write-alone", small(true, 1, 1.0)),
        ("write-deep", small(true, DEPTH, 1.0)),
        ("write-stream", stream(true)),
    ];
    if is_disk {
        loads.push(("read-near", small(false, 1, NEAR)));
    }
    loads
}

fn job(report: &Value, name: &str) -> Result<Measured> {
    let jobs = report.get("jobs").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let found = jobs.iter().find(|job| job.get("jobname").and_then(Value::as_str) == Some(name));
    let found = found.ok_or_else(|| {
        Error::invalid(format!(
            "fio's report: job \"{name}\" is missing; run the jobs that `siltstone model job` prints"
        ))
    })?;
    let direction = &found[if name.starts_with("read") { "read" } else { "write" }];
    let number = |value: &Value| value.as_f64().unwrap_or(0.0);
    let measured = Measured {
        iops: number(&direction["iops"]),
        bandwidth: number(&direction["bw_bytes"]),
        mean: number(&direction["lat_ns"]["mean"]) / 1e9,
        deviation: number(&direction["lat_ns"]["stddev"]) / 1e9,
        flush: number(&found["sync"]["lat_ns"]["mean"]) / 1e9,
    };
    match measured.iops > 0.0 && measured.mean > 0.0 && measured.bandwidth >= 1.0 {
        true => Ok(measured),
        false => Err(Error::invalid(format!(
            "fio's report: job \"{name}\" has no completed operations; see its errors"
        ))),
    }
}

fn whole_mebibytes(bytes: f64) -> u64 {
    ((bytes / f64::from(1 << 20)).round().max(1.0) as u64) << 20
}

fn seconds(value: f64) -> Duration {
    Duration::from_nanos((value * 1e9).round() as u64)
}

fn solid_state(report: &Value, title: &str) -> Result<SolidState> {
    let flush = job(report, "write-flush")?.flush;
    let service = |alone: Measured, deep: Measured, stream: Measured| {
        // Little's law gives the parallelism. If it is close to the job's depth, the device may have more.
        let served = deep.iops * alone.mean;
        let is_bound = served < 0.9 * DEPTH as f64;
        let parallelism = if is_bound { served.round().max(1.0) } else { DEPTH as f64 };
        let latency = if is_bound { parallelism / deep.iops } else { alone.mean };
        Service {
            latency: seconds(latency),
            bandwidth: whole_mebibytes(stream.bandwidth),
            parallelism: Some(parallelism as u32),
        }
    };
    let (read, write) = (job(report, "read-alone")?, job(report, "write-alone")?);
    let spread = ((read.deviation / read.mean + write.deviation / write.mean) / 2.0).min(1.0);
    Ok(SolidState {
        title: title.to_owned(),
        parallelism: DEPTH as u32,
        spread: (spread * 100.0).round() / 100.0,
        volatile_cache: flush > NO_FLUSH,
        flush: seconds(if flush > NO_FLUSH { flush } else { 0.0 }),
        read: service(read, job(report, "read-deep")?, job(report, "read-stream")?),
        write: service(write, job(report, "write-deep")?, job(report, "write-stream")?),
        write_buffer: None,
    })
}

fn disk(report: &Value, title: &str, rpm: u32) -> Result<Disk> {
    if rpm == 0 {
        return Err(Error::invalid("rpm 0: expected the revolutions per minute of the disk, at least 1"));
    }
    let (far, near) = (job(report, "read-alone")?.mean, job(report, "read-near")?.mean);
    let write = job(report, "write-alone")?.mean;
    let half_turn = 30.0 / f64::from(rpm);
    // Both contain half a rotation and the track-to-track seek; the rest is proportional to the root of the
    // distance.
    let range = ((far - near) / (MEAN_ROOT * (1.0 - NEAR.sqrt()))).max(0.0);
    let track = (near - half_turn - range * MEAN_ROOT * NEAR.sqrt()).max(100e-6);
    let flushed = job(report, "write-flush")?.flush;
    let mut disk = Disk {
        title: title.to_owned(),
        rpm,
        track_seek: seconds(track),
        full_seek: seconds(track + range),
        bandwidth: whole_mebibytes(job(report, "read-stream")?.bandwidth),
        // A single write only goes to the write buffer.
        interface: seconds(if write < 1e-3 { write } else { 60e-6 }),
        queue_depth: DEPTH as u32,
        write_buffer: 1,
        volatile_cache: flushed > NO_FLUSH,
    };
    let wanted = job(report, "write-deep")?.iops;
    let load = Load { is_write: true, span: Some(1.0), bytes: 4096, depth: DEPTH };
    let distance = |write_buffer: u32| {
        let profile = Profile::Disk(Disk { write_buffer, ..disk.clone() });
        // Enough operations for the buffer to be full most of the time.
        let outcome = trial(&profile, CAPACITY, load, 2000 + 8 * write_buffer as usize);
        (outcome.iops / wanted).ln().abs()
    };
    let sizes = (0..=11).map(|power| 1u32 << power);
    let nearest = sizes.map(|size| (distance(size), size)).min_by(|left, right| left.0.total_cmp(&right.0));
    disk.write_buffer = nearest.map_or(1, |(_, size)| size);
    Ok(disk)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::profile::known;
    use serde_json::json;

    /// Returns the report that fio would write for a device with this profile.
    fn report(profile: &Profile) -> Value {
        let mut jobs = Vec::new();
        for (name, load) in loads(true) {
            let outcome = trial(profile, CAPACITY, load, 20_000);
            let mean = load.depth as f64 / outcome.iops * 1e9;
            let direction = json!({
                "iops": outcome.iops,
                "bw_bytes": outcome.iops * load.bytes as f64,
                "lat_ns": { "mean": mean, "stddev": mean * 0.4 },
            });
            jobs.push(json!({ "jobname": name, if load.is_write { "write" } else { "read" }: direction }));
        }
        let flush = json!({ "iops": 100.0, "bw_bytes": 409600.0, "lat_ns": { "mean": 20e6, "stddev": 1e6 } });
        jobs.push(json!({ "jobname": "write-flush", "write": flush, "sync": { "lat_ns": { "mean": 1e6 } } }));
        json!({ "jobs": jobs })
    }

    fn comes_near(name: &str, rpm: Option<u32>) -> Fitted {
        let known = known().expect("they are right").remove(name).expect("it is known");
        let text = format!("fio: a warning\n{}", report(&known));
        let fitted = fit(&text, "again", rpm, None).expect("all jobs are there");
        println!("{}{:#?}", fitted.profile.to_toml(name), fitted.compared);
        for (job, measured, modelled) in &fitted.compared {
            let share = modelled / measured;
            assert!((0.9..1.1).contains(&share), "{name}, {job}: {measured} measured, {modelled} modelled");
        }
        fitted
    }

    #[test]
    fn what_was_measured_on_a_model_gives_that_model() {
        comes_near("sata-ssd", None);
        comes_near("as2280p4u", None);
        comes_near("optane-900p", None);
        let Profile::Disk(disk) = comes_near("wd43purz", Some(5400)).profile else { panic!("it turns") };
        assert_eq!(disk.write_buffer, 512);
        assert!(disk.volatile_cache, "a flush took a millisecond");
    }

    #[test]
    fn a_log_of_filling_adds_the_write_buffer() {
        let known = known().expect("they are right").remove("sata-ssd").expect("it is known");
        let text = report(&known).to_string();
        let line = |(at, speed): (u64, u64)| format!("{}, {}, 1, 0, 0\n", at * 250, speed << 10);
        let log: String = (1..=40).map(|at| line((at, if at <= 16 { 600 } else { 100 }))).collect();
        let fitted = fit(&text, "again", None, Some(&log)).expect("all is there");
        let Profile::SolidState(profile) = fitted.profile else { panic!("it has no arm") };
        // 4 s at 600 MiB/s, of which 100 MiB/s have left the buffer.
        assert_eq!(profile.write_buffer, Some(WriteBuffer { size: 2000 << 20, drain: 100 << 20 }));
        assert_eq!(profile.write.bandwidth, 600 << 20);
        let steady: String = (1..=40).map(|at| line((at, 600))).collect();
        let fitted = fit(&text, "again", None, Some(&steady)).expect("all is there");
        assert!(fitted.filled.is_none());
    }

    #[test]
    fn reports_that_lack_something_are_refused() {
        let refused = |text: &str, rpm| fit(text, "", rpm, None).expect_err(text).to_string();
        assert!(refused("fio: no such device", None).contains("--output-format=json"));
        assert!(refused("{ \"jobs\": [] }", None).contains("job \"write-flush\" is missing"));
        let known = known().expect("they are right").remove("sata-ssd").expect("it is known");
        let mut report = report(&known);
        assert!(refused(&report.to_string(), Some(0)).contains("rpm 0"));
        let both =
            fit(&report.to_string(), "", Some(7200), Some("")).expect_err("a disk that turns").to_string();
        assert!(both.contains("expected one of them"), "{both}");
        report["jobs"][0]["read"]["iops"] = json!(0.0);
        assert!(
            refused(&report.to_string(), None).contains("job \"read-alone\" has no completed operations")
        );
    }
}
