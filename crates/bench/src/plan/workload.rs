//! Workloads of a plan: fio's options in TOML, where a list makes a matrix.

use super::reader::{Entry, Kind, Reader, Value};
use super::{RateShare, Workload};
use crate::job::{Job, PerDirection};
use crate::job_file::number::Units;
use crate::job_file::options;
use crate::problem::Place;
use std::collections::BTreeSet;
use std::time::Duration;

/// How many points a matrix may have: more are a slip of the pen.
const MOST_POINTS: usize = 1000;

/// Options that say where a job runs, which is a stack's or a peer's to say.
const ELSEWHERE: &[&str] = &["filename", "ioengine", "direct", "buffered", "group_reporting", "stonewall"];

/// A value of an option as one point of the matrix has it.
#[derive(Clone, Copy)]
struct Choice<'a> {
    entry: &'a Entry,
    value: &'a Value,
    /// Whether it is one of several and so belongs to the point's name.
    is_named: bool,
}

/// What a `[workload.NAME]` says beside its options.
pub(super) struct Extras {
    pub subjects: Option<Vec<String>>,
    pub repetitions: u32,
    pub warm_up: Duration,
    pub one_setup: bool,
}

/// The points of one workload's matrix, the last list's values changing fastest.
pub(super) fn points(
    reader: &mut Reader,
    entry: &Entry,
    entries: &[Entry],
    extras: &Extras,
) -> Vec<Workload> {
    let mut points: Vec<Vec<Choice<'_>>> = vec![Vec::new()];
    for option in entries.iter().filter(|entry| !super::WORKLOAD_KEYS.contains(&entry.key.as_str())) {
        if ELSEWHERE.contains(&option.key.as_str()) {
            let key = &option.key;
            reader.refuse(
                option.place,
                format!("{key}: a workload says what is done; {key} belongs to a stack or peer"),
            );
            continue;
        }
        let (values, is_named) = match &option.value.kind {
            Kind::List(values) => (&values[..], true),
            _ => (std::slice::from_ref(&option.value), false),
        };
        if values.is_empty() {
            reader.refuse(option.value.place, format!("{}: expected at least one value", option.key));
            continue;
        }
        if points.len() * values.len() > MOST_POINTS {
            reader.refuse(entry.place, format!("workload {}: more than {MOST_POINTS} points", entry.key));
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
    let before = reader.problems.len();
    let mut job = Job::new(entry.key.clone());
    job.ramp_time = extras.warm_up;
    let mut name = entry.key.clone();
    let mut named = Vec::new();
    let mut rate_share = None;
    let mut said = BTreeSet::new();
    for Choice { entry: option, value, is_named } in choices {
        let Some(text) = value.as_option() else {
            reader.refuse(value.place, format!("{}: expected one value, or a list of values", option.key));
            continue;
        };
        if *is_named {
            name.push_str(&format!(" {}={text}", option.key));
            named.push((option.key.clone(), text.clone()));
        }
        match option.key.as_str() {
            "rate_iops" if text.contains('%') => match share(&text, value.place) {
                Some(share) => {
                    said.insert("rate_iops");
                    rate_share = Some(share);
                }
                None => reader.refuse(
                    value.place,
                    format!(
                        "rate_iops={text}: expected a number, or a share of a measured rate: \"50% of fio\""
                    ),
                ),
            },
            key => match options::find(key) {
                Err(message) => reader.refuse(option.place, message),
                Ok(known) => {
                    said.insert(known.name);
                    if let Err(message) = known.apply(&mut job, &text, Units::Iec) {
                        reader.refuse(value.place, message);
                    }
                }
            },
        }
    }
    for (option, message) in options::check(&job, &said) {
        let place =
            choices.iter().find(|choice| choice.entry.key == option).map_or(entry.place, |it| it.entry.place);
        reader.refuse(place, format!("workload {}: {message}", entry.key));
    }
    job.name.clone_from(&name);
    job.group_reporting = true;
    (reader.problems.len() == before).then(|| Workload {
        name,
        section: entry.key.clone(),
        choices: named,
        one_setup: extras.one_setup,
        job,
        subjects: extras.subjects.clone().unwrap_or_default(),
        repetitions: extras.repetitions,
        rate_share,
    })
}

/// `50% of fio`.
fn share(text: &str, place: Place) -> Option<RateShare> {
    let (percent, of) = text.split_once('%')?;
    let of = of.trim_start().strip_prefix("of ")?.trim();
    let percent: f64 = percent.trim().parse().ok()?;
    let is_fine = percent > 0.0 && percent <= 1000.0 && !of.is_empty();
    is_fine.then(|| RateShare { percent, of: of.into(), place })
}

impl RateShare {
    /// The job at this share of a measured rate: of `iops` in all, divided over its clones and, in a mix, over
    /// its directions.
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
