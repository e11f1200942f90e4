//! Workloads of a plan: fio's options in TOML, where a list makes a matrix.

use super::reader::{Entry, Reader, option_of};
use super::{RateShare, Workload};
use crate::job::{Job, PerDirection};
use crate::job_file::number::Units;
use crate::job_file::options;
use stack::{At, RawValue, Span};
use std::collections::BTreeSet;
use std::time::Duration;

/// Most points of a matrix: more are probably a mistake.
const MAX_POINTS: usize = 1000;

/// Options of the device, which belong to a stack or a peer.
const ELSEWHERE: &[&str] = &["filename", "ioengine", "direct", "buffered", "group_reporting", "stonewall"];

/// Value of an option at one point of the matrix.
#[derive(Clone, Copy)]
struct Choice<'a> {
    entry: &'a Entry,
    value: &'a At<RawValue>,
    /// Whether the option has several values, so that this one is part of the point's name.
    is_named: bool,
}

/// Keys of a `[workload.NAME]` other than fio's options.
pub(super) struct Extras {
    pub subjects: Option<Vec<String>>,
    pub repetitions: u32,
    pub warm_up: Duration,
    pub one_setup: bool,
}

/// Returns the points of one workload's matrix, the last list's values changing fastest.
pub(super) fn points(
    reader: &mut Reader,
    entry: &Entry,
    entries: &[Entry],
    extras: &Extras,
) -> Vec<Workload> {
    let mut points: Vec<Vec<Choice<'_>>> = vec![Vec::new()];
    for option in entries.iter().filter(|entry| !super::WORKLOAD_KEYS.contains(&entry.key.value.as_str())) {
        if ELSEWHERE.contains(&option.key.value.as_str()) {
            let At { value: key, span } = &option.key;
            let message = format!("{key}: not an option of a workload; {key} belongs to a stack or peer");
            reader.refuse(span, message);
            continue;
        }
        let (values, is_named) = match &option.value.value {
            RawValue::List(values) => (&values[..], true),
            _ => (std::slice::from_ref(&option.value), false),
        };
        if values.is_empty() {
            reader.refuse(&option.value.span, format!("{}: expected at least one value", option.key.value));
            continue;
        }
        if points.len() * values.len() > MAX_POINTS {
            let message = format!("workload {}: more than {MAX_POINTS} points", entry.key.value);
            reader.refuse(&entry.key.span, message);
            return Vec::new();
        }
        let mut extended = Vec::with_capacity(points.len() * values.len());
        for point in &points {
            for value in values {
                let mut point = point.clone();
                point.push(Choice { entry: option, value, is_named });
                extended.push(point);
            }
        }
        points = extended;
    }
    points.iter().filter_map(|choices| self::point(reader, entry, choices, extras)).collect()
}

fn point(reader: &mut Reader, entry: &Entry, choices: &[Choice<'_>], extras: &Extras) -> Option<Workload> {
    let before = reader.problems.count();
    let mut job = Job::new(entry.key.value.clone());
    job.ramp_time = extras.warm_up;
    let mut name = entry.key.value.clone();
    let mut named = Vec::new();
    let mut rate_share = None;
    let mut said = BTreeSet::new();
    for Choice { entry: option, value, is_named } in choices {
        let (key, span) = (option.key.value.as_str(), &value.span);
        let Some(text) = option_of(&value.value) else {
            reader.refuse(span, format!("{key}: expected one value, or a list of values"));
            continue;
        };
        if *is_named {
            name.push_str(&format!(" {key}={text}"));
            named.push((key.to_owned(), text.clone()));
        }
        match key {
            "rate_iops" if text.contains('%') => match share(&text, span) {
                Some(share) => {
                    said.insert("rate_iops");
                    rate_share = Some(share);
                }
                None => {
                    let expected = "expected a number, or a share of a measured rate: \"50% of fio\"";
                    reader.refuse(span, format!("rate_iops={text}: {expected}"));
                }
            },
            key => match options::find(key) {
                Err(message) => reader.refuse(&option.key.span, message),
                Ok(known) => {
                    said.insert(known.name);
                    if let Err(message) = known.apply(&mut job, &text, Units::Iec) {
                        reader.refuse(span, message);
                    }
                }
            },
        }
    }
    for (option, message) in options::check(&job, &said) {
        let found = choices.iter().find(|choice| choice.entry.key.value == option);
        let key = found.map_or(&entry.key, |choice| &choice.entry.key);
        reader.refuse(&key.span, format!("workload {}: {message}", entry.key.value));
    }
    job.name.clone_from(&name);
    job.group_reporting = true;
    (reader.problems.count() == before).then(|| Workload {
        name,
        section: entry.key.value.clone(),
        choices: named,
        one_setup: extras.one_setup,
        job,
        subjects: extras.subjects.clone().unwrap_or_default(),
        repetitions: extras.repetitions,
        rate_share,
    })
}

/// Parses `50% of fio`.
fn share(text: &str, span: &Span) -> Option<RateShare> {
    let (percent, of) = text.split_once('%')?;
    let of = of.trim_start().strip_prefix("of ")?.trim();
    let percent: f64 = percent.trim().parse().ok()?;
    let is_fine = percent > 0.0 && percent <= 1000.0 && !of.is_empty();
    is_fine.then(|| RateShare { percent, of: of.into(), span: span.clone() })
}

impl RateShare {
    /// Returns the job at this share of a measured rate: `iops` in total, divided over its clones and, in a
    /// mix, over its directions.
    pub fn apply(&self, job: &Job, iops: f64) -> Job {
        let each = iops * self.percent / 100.0 / f64::from(job.numjobs.max(1));
        let part = |share: f64| Some(((each * share).round() as u64).max(1));
        let reads = f64::from(job.rwmixread) / 100.0;
        let mut job = job.clone();
        job.rate_iops = match job.rw.is_mixed() {
            true => PerDirection { read: part(reads), write: part(1.0 - reads), trim: None },
            false => PerDirection::all(part(1.0)),
        };
        job
    }
}
