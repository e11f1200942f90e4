//! What a plan's runs gave: `results.json`, and the ratios between runs of the same pair.
//!
//! Ratios are computed pair by pair, subject and baseline of one workload in the same repetition, and their
//! median is what counts: what drifts in the machine meets both. The file's layout is described in the book;
//! [`SCHEMA`] names its version.

use crate::environment::Environment;
use crate::latency::{CurvePoint, Latency};
use crate::series::Series;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The name and version of the layout of `results.json`.
pub const SCHEMA: &str = "siltstone-results-1";

/// A whole `results.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// [`SCHEMA`].
    pub schema: String,
    /// The plan's name.
    pub name: String,
    /// What the plan is about, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// When it began, in seconds since 1970.
    pub started: u64,
    /// Whether it was stopped before all runs had been made.
    #[serde(default)]
    pub interrupted: bool,
    /// The machine.
    pub environment: Environment,
    /// What a reader must know: peers left out, engines stood in for.
    #[serde(default)]
    pub notes: Vec<String>,
    /// What commands have printed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tables: Vec<Table>,
    /// Every run that was measured, in the order in which they ran.
    pub runs: Vec<RunResult>,
    /// The ratios that the plan asked for.
    #[serde(default)]
    pub comparisons: Vec<Comparison>,
    /// What was measured beside what others have published.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub published: Vec<Published>,
    /// Where that was published.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub published_in: Option<String>,
}

/// One measured run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunResult {
    /// Subject, workload and repetition in one word: `file/randread-qd32/1`.
    pub name: String,
    /// The name of the stack or peer that ran.
    pub subject: String,
    /// The stack's one-line form, or the peer's command.
    pub stack: String,
    /// What it did.
    pub workload: Workload,
    /// Which repetition, from 1.
    pub repetition: u32,
    /// Whether it is a peer, not ours.
    pub peer: bool,
    /// The figures.
    #[serde(flatten)]
    pub measurement: Measurement,
}

/// A workload as results name it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Workload {
    /// Its name in the plan, with the values of its matrix: `randread iodepth=32`.
    pub name: String,
    /// Of a point of a matrix: which.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub point: Option<Point>,
    /// Its options in fio's words.
    pub options: BTreeMap<String, String>,
    /// What holds when one of its writes is acknowledged; None without writes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acknowledged: Option<String>,
}

impl Workload {
    /// Of this job, under the name that the plan gives it.
    pub fn new(name: impl Into<String>, job: &crate::job::Job) -> Self {
        let options = job.options().into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        Workload { name: name.into(), point: None, options, acknowledged: job.acknowledged() }
    }

    /// Of a plan's workload, doing this job.
    pub fn of_point(workload: &crate::plan::Workload, job: &crate::job::Job) -> Self {
        let choices = workload.choices.iter().map(|(option, value)| Choice::new(option, value)).collect();
        let point = Point { section: workload.section.clone(), choices };
        Workload {
            point: (!workload.choices.is_empty()).then_some(point),
            ..Workload::new(workload.name.clone(), job)
        }
    }
}

/// Where a workload stands in the matrix of its section of the plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Point {
    /// The section's name.
    pub section: String,
    /// What tells it from the matrix's other points, in the order of the plan.
    pub choices: Vec<Choice>,
}

/// The value of an option that has several in a matrix.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Choice {
    /// fio's word.
    pub option: String,
    /// As the plan says it.
    pub value: String,
}

impl Choice {
    /// This value of this option.
    pub fn new(option: impl Into<String>, value: impl Into<String>) -> Self {
        Choice { option: option.into(), value: value.into() }
    }
}

/// A table that a command has printed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Table {
    /// Its name in the plan; nothing of the command's.
    #[serde(default)]
    pub name: String,
    /// What it shows, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// What a reader should know of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub about: Option<String>,
    /// The command; nothing that it prints itself.
    #[serde(default)]
    pub command: String,
    /// The columns, the first of which names the rows.
    pub columns: Vec<Column>,
    /// The rows: by the columns' names, numbers, or texts that are shown as they are.
    pub rows: Vec<serde_json::Map<String, serde_json::Value>>,
}

impl Table {
    /// The column of this name.
    pub fn column(&self, name: &str) -> Option<&Column> {
        self.columns.iter().find(|column| column.name == name)
    }
}

/// A column of a table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Column {
    /// What rows call it.
    pub name: String,
    /// Its heading.
    pub title: String,
    /// What its numbers count.
    #[serde(default)]
    pub unit: Unit,
}

/// What a number counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// As it is, to three digits.
    #[default]
    Number,
    /// Many things: with k and M.
    Count,
    /// Bytes: with KiB and MiB.
    Bytes,
    /// Nanoseconds.
    Nanoseconds,
}

impl Unit {
    /// A cell for people; a dash where there is nothing.
    pub fn say(self, cell: Option<&serde_json::Value>) -> String {
        use crate::units;
        match cell {
            Some(serde_json::Value::String(text)) => text.clone(),
            Some(value) => match (value.as_f64(), self) {
                (None, _) => "–".into(),
                (Some(number), Unit::Number) => units::number(number),
                (Some(number), Unit::Count) => units::count(number),
                (Some(number), Unit::Bytes) => units::bytes(number),
                (Some(number), Unit::Nanoseconds) => units::nanoseconds(number),
            },
            None => "–".into(),
        }
    }
}

/// What is written for each block that a user writes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct WriteAmplification {
    /// Users' blocks and those that had to be moved.
    pub data: f64,
    /// And what describes them.
    pub all: f64,
}

/// How much of what a cache was asked for it had, from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct HitRatio {
    /// Of reads and writes.
    pub all: f64,
    /// Of reads; None without any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reads: Option<f64>,
    /// Of writes; None without any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub writes: Option<f64>,
}

/// The figures of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// How many operations were completed, flushes not among them.
    pub operations: u64,
    /// How many bytes they transferred.
    pub bytes: u64,
    /// How long it was measured, in seconds.
    pub seconds: f64,
    /// Operations per second.
    pub iops: f64,
    /// Bytes per second.
    pub bandwidth: f64,
    /// From submission to completion, in nanoseconds; None where nothing was completed or timed.
    pub latency_ns: Option<Latency>,
    /// CPU time of the process that did the I/O, user and system, in seconds.
    pub cpu_seconds: f64,
    /// CPU time of the server that it talked to, in seconds, where there is one of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_cpu_seconds: Option<f64>,
    /// How many operations failed or were not what `verify` expected.
    #[serde(default)]
    pub errors: u64,
    /// The first of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_error: Option<String>,
    /// What was written per block that was written by the job; None where no layer counts it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_amplification: Option<WriteAmplification>,
    /// The hit ratios of the caches in the stack over the measured time, by their names in it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub hit_ratios: BTreeMap<String, HitRatio>,
    /// Each layer's own statistics, by its name in the stack.
    #[serde(default)]
    pub layers: serde_json::Map<String, serde_json::Value>,
    /// The percentile curve.
    #[serde(default)]
    pub curve: Vec<CurvePoint>,
    /// Operations and their latencies over time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub series: Option<Series>,
}

impl Measurement {
    /// CPU time per operation in seconds, or None without operations.
    pub fn cpu_per_operation(&self) -> Option<f64> {
        (self.operations > 0).then(|| self.cpu_seconds / self.operations as f64)
    }

    /// The server's CPU time per operation in seconds.
    pub fn server_cpu_per_operation(&self) -> Option<f64> {
        self.server_cpu_seconds.filter(|_| self.operations > 0).map(|cpu| cpu / self.operations as f64)
    }
}

/// A figure that runs are compared by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Figure {
    /// Operations per second: more is better.
    Iops,
    /// Bytes per second: more is better. Ratios say it where the two made requests of different sizes.
    Bandwidth,
    /// The median latency: less is better.
    P50,
    /// The 99th percentile of latency: less is better.
    P99,
    /// CPU time per operation: less is better.
    CpuPerOperation,
    /// The server's CPU time per operation: less is better.
    ServerCpuPerOperation,
    /// Blocks written for each block that the job wrote, without metadata: less is better.
    WriteAmplification,
}

impl Figure {
    /// All of them.
    pub const ALL: [Figure; 7] = [
        Figure::Iops,
        Figure::Bandwidth,
        Figure::P50,
        Figure::P99,
        Figure::CpuPerOperation,
        Figure::ServerCpuPerOperation,
        Figure::WriteAmplification,
    ];

    /// Its value for a run; None where the run doesn't have it.
    pub fn of(self, measurement: &Measurement) -> Option<f64> {
        let value = match self {
            Figure::Iops => Some(measurement.iops),
            Figure::Bandwidth => Some(measurement.bandwidth),
            Figure::P50 => measurement.latency_ns.map(|latency| latency.p50 as f64),
            Figure::P99 => measurement.latency_ns.map(|latency| latency.p99 as f64),
            Figure::CpuPerOperation => measurement.cpu_per_operation(),
            Figure::ServerCpuPerOperation => measurement.server_cpu_per_operation(),
            Figure::WriteAmplification => measurement.write_amplification.map(|factor| factor.data),
        };
        value.filter(|value| value.is_finite() && *value > 0.0)
    }

    /// Its name for people.
    pub fn title(self) -> &'static str {
        match self {
            Figure::Iops => "IOPS",
            Figure::Bandwidth => "bandwidth",
            Figure::P50 => "p50",
            Figure::P99 => "p99",
            Figure::CpuPerOperation => "CPU/op",
            Figure::ServerCpuPerOperation => "server CPU/op",
            Figure::WriteAmplification => "write amp.",
        }
    }

    /// A value of it for people.
    pub fn say(self, value: f64) -> String {
        use crate::units;
        match self {
            Figure::Iops => units::count(value),
            Figure::Bandwidth => units::bandwidth(value),
            Figure::P50 | Figure::P99 => units::nanoseconds(value),
            Figure::CpuPerOperation | Figure::ServerCpuPerOperation => units::nanoseconds(value * 1e9),
            Figure::WriteAmplification => units::number(value),
        }
    }

    /// Whether a ratio above 1 is good.
    pub fn more_is_better(self) -> bool {
        matches!(self, Figure::Iops | Figure::Bandwidth)
    }
}

/// The ratios of one subject to one baseline on one workload.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// The workload's name.
    pub workload: String,
    /// Whose figures are divided.
    pub subject: String,
    /// By whose.
    pub baseline: String,
    /// For each figure that both have: the ratios pair by pair, in the order of repetitions, and their median.
    pub ratios: BTreeMap<Figure, Ratios>,
}

/// Ratios of the pairs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ratios {
    /// The median: what counts.
    pub median: f64,
    /// One for each pair.
    pub pairs: Vec<f64>,
}

/// What was measured of a subject beside what others have published about it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Published {
    /// The workload's name.
    pub workload: String,
    /// Whose figures they are.
    pub subject: String,
    /// Figure by figure.
    pub figures: BTreeMap<Figure, PublishedFigure>,
}

/// A published figure and ours, in the figure's own unit: per second, bytes per second, nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PublishedFigure {
    /// What was published.
    pub published: f64,
    /// What was measured: the median of the repetitions.
    pub measured: f64,
    /// Measured divided by published.
    pub ratio: f64,
}

impl Results {
    /// The hit ratios of a subject's caches for people, medians of the repetitions: `93.1 %`; with their names where there
    /// are several; a dash where there is none. `pick` takes one of a cache's ratios.
    pub fn say_hits(&self, workload: &str, subject: &str, pick: impl Fn(&HitRatio) -> Option<f64>) -> String {
        let mut of_caches: BTreeMap<&String, Vec<f64>> = BTreeMap::new();
        for run in self.of(workload, subject) {
            for (name, ratio) in &run.measurement.hit_ratios {
                of_caches.entry(name).or_default().extend(pick(ratio));
            }
        }
        let is_alone = of_caches.len() == 1;
        let said = of_caches.into_iter().filter_map(|(name, ratios)| {
            let percent = format!("{:.1} %", median(&ratios)? * 100.0);
            Some(if is_alone { percent } else { format!("{name} {percent}") })
        });
        let said: Vec<String> = said.collect();
        if said.is_empty() { "–".into() } else { said.join(", ") }
    }

    /// Whether any cache took part in a workload.
    pub fn has_hits(&self, workload: &str) -> bool {
        let mut runs = self.runs.iter().filter(|run| run.workload.name == workload);
        runs.any(|run| !run.measurement.hit_ratios.is_empty())
    }

    /// Sets these published figures beside what was measured, wherever there is something.
    pub fn set_beside(&mut self, published: &[crate::plan::Published]) {
        let mut beside = Vec::new();
        for workload in self.workloads() {
            for subject in self.subjects(&workload) {
                let is_meant = |it: &&crate::plan::Published| {
                    let section = self.of(&workload, &subject).find_map(|run| run.workload.point.as_ref());
                    let names = [Some(&workload), section.map(|point| &point.section)];
                    it.subject == subject
                        && it.workload.as_ref().is_none_or(|name| names.contains(&Some(name)))
                };
                let figures = published.iter().filter(is_meant).flat_map(|it| &it.figures);
                let figures = figures.filter_map(|(figure, published)| {
                    let measured = self.median_of(&workload, &subject, *figure)?;
                    let (published, ratio) = (*published, measured / published);
                    Some((*figure, PublishedFigure { published, measured, ratio }))
                });
                let figures: BTreeMap<_, _> = figures.collect();
                if !figures.is_empty() {
                    beside.push(Published { workload: workload.clone(), subject, figures });
                }
            }
        }
        self.published = beside;
    }

    /// What was published about a subject on a workload.
    pub fn published_of(&self, workload: &str, subject: &str, figure: Figure) -> Option<PublishedFigure> {
        let found = self.published.iter().find(|it| it.workload == workload && it.subject == subject)?;
        found.figures.get(&figure).copied()
    }

    /// Computes [`Results::comparisons`] for these pairs of subject and baseline, on every workload that both
    /// have run. A repetition in which one of the two is missing or had errors doesn't count.
    pub fn compare(&mut self, pairs: &[(String, String)]) {
        let mut comparisons = Vec::new();
        for workload in self.workloads() {
            for (subject, baseline) in pairs {
                let comparison = Comparison {
                    workload: workload.clone(),
                    subject: subject.clone(),
                    baseline: baseline.clone(),
                    ratios: self.ratios(&workload, subject, baseline),
                };
                if !comparison.ratios.is_empty() {
                    comparisons.push(comparison);
                }
            }
        }
        self.comparisons = comparisons;
    }

    fn ratios(&self, workload: &str, subject: &str, baseline: &str) -> BTreeMap<Figure, Ratios> {
        let mut all = BTreeMap::new();
        for figure in Figure::ALL {
            let mut pairs = Vec::new();
            for run in self.of(workload, subject) {
                let other = self.of(workload, baseline).find(|other| other.repetition == run.repetition);
                let Some(other) =
                    other.filter(|other| other.measurement.errors + run.measurement.errors == 0)
                else {
                    continue;
                };
                if let (Some(ours), Some(theirs)) =
                    (figure.of(&run.measurement), figure.of(&other.measurement))
                    && (figure != Figure::Bandwidth || have_other_sizes(&run.measurement, &other.measurement))
                {
                    pairs.push(ours / theirs);
                }
            }
            if let Some(median) = median(&pairs) {
                all.insert(figure, Ratios { median, pairs });
            }
        }
        all
    }

    /// The names of the workloads, in the order in which they first ran.
    pub fn workloads(&self) -> Vec<String> {
        distinct(self.runs.iter().map(|run| &run.workload.name))
    }

    /// The subjects that ran a workload, in the order of their first repetition.
    pub fn subjects(&self, workload: &str) -> Vec<String> {
        let runs = self.runs.iter().filter(|run| run.workload.name == workload);
        distinct(runs.map(|run| &run.subject))
    }

    /// The runs of a subject on a workload.
    pub fn of<'a>(&'a self, workload: &'a str, subject: &'a str) -> impl Iterator<Item = &'a RunResult> {
        self.runs.iter().filter(move |run| run.workload.name == workload && run.subject == subject)
    }

    /// The median of a figure over the repetitions that had no errors.
    pub fn median_of(&self, workload: &str, subject: &str, figure: Figure) -> Option<f64> {
        let runs = self.of(workload, subject).filter(|run| run.measurement.errors == 0);
        let values: Vec<f64> = runs.filter_map(|run| figure.of(&run.measurement)).collect();
        median(&values)
    }

    /// The comparisons of a subject on a workload.
    pub fn comparisons_of<'a>(
        &'a self,
        workload: &'a str,
        subject: &'a str,
    ) -> impl Iterator<Item = &'a Comparison> {
        let all = self.comparisons.iter();
        all.filter(move |comparison| comparison.workload == workload && comparison.subject == subject)
    }

    /// As text for `results.json`.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("results hold only what JSON can say")
    }
}

/// Whether the requests of two runs had different sizes: else bandwidth says what IOPS say.
fn have_other_sizes(one: &Measurement, other: &Measurement) -> bool {
    let size = |it: &Measurement| it.bytes as f64 / it.operations.max(1) as f64;
    (size(one) / size(other) - 1.0).abs() > 0.01
}

fn distinct<'a>(names: impl Iterator<Item = &'a String>) -> Vec<String> {
    let mut seen = Vec::new();
    for name in names {
        if !seen.contains(name) {
            seen.push(name.clone());
        }
    }
    seen
}

/// The middle value, or the mean of the two middle ones; None of nothing.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(sorted[middle]),
        _ => Some((sorted[middle - 1] + sorted[middle]) / 2.0),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::job::Job;
    use crate::latency::{Histogram, curve};
    use crate::series::Recorder;

    pub(crate) fn run(subject: &str, workload: &str, repetition: u32, iops: f64) -> RunResult {
        let mut histogram = Histogram::new();
        for step in 1..=2000u64 {
            histogram.record((1e9 / iops) as u64 * 32 + step * step / 9);
        }
        let mut recorder = Recorder::default();
        for index in 0..2000 {
            recorder.record(index * 1_000_000, (1e9 / iops) as u64 * 32 + index * 50);
        }
        let measurement = Measurement {
            operations: (iops * 2.0) as u64,
            bytes: (iops * 2.0) as u64 * 4096,
            seconds: 2.0,
            iops,
            bandwidth: iops * 4096.0,
            latency_ns: Latency::of(&histogram),
            cpu_seconds: 1.0,
            curve: curve(&histogram),
            series: (subject != "fio").then(|| recorder.series()),
            ..Measurement::default()
        };
        RunResult {
            name: format!("{subject}/{workload}/{repetition}"),
            subject: subject.into(),
            stack: "file(quick.img, size=1GiB)".into(),
            workload: Workload::new(workload, &Job::new(workload)),
            repetition,
            peer: subject == "fio",
            measurement,
        }
    }

    pub(crate) fn sample() -> Results {
        let mut runs = Vec::new();
        for (workload, scale) in [("randread iodepth=1", 1.0), ("randread iodepth=32", 4.0)] {
            for repetition in 1..=3 {
                runs.push(run("file", workload, repetition, scale * (11_000.0 + f64::from(repetition))));
                runs.push(run("fio", workload, repetition, scale * 10_000.0));
            }
        }
        let mut results = Results {
            schema: SCHEMA.into(),
            name: "quick".into(),
            title: None,
            started: 1_800_000_000,
            interrupted: false,
            environment: Environment::default(),
            notes: vec![],
            tables: vec![],
            runs,
            comparisons: vec![],
            published: vec![],
            published_in: None,
        };
        results.compare(&[("file".into(), "fio".into())]);
        results
    }

    #[test]
    fn ratios_are_medians_of_pairs() {
        let results = sample();
        assert_eq!(results.comparisons.len(), 2);
        let ratios = &results.comparisons[0].ratios[&Figure::Iops];
        assert_eq!(ratios.pairs, [1.1001, 1.1002, 1.1003]);
        assert_eq!(ratios.median, 1.1002);
        assert!(!results.comparisons[0].ratios.contains_key(&Figure::ServerCpuPerOperation));
    }

    #[test]
    fn a_run_with_errors_makes_no_pair() {
        let mut results = sample();
        results.runs[0].measurement.errors = 1;
        results.compare(&[("file".into(), "fio".into()), ("file".into(), "nobody".into())]);
        assert_eq!(results.comparisons[0].ratios[&Figure::Iops].pairs.len(), 2);
        assert_eq!(results.comparisons.len(), 2);
    }

    #[test]
    fn json_comes_back_and_has_the_promised_names() {
        let results = sample();
        let json = results.to_json();
        let back: Results = serde_json::from_str(&json).unwrap();
        assert_eq!((back.runs.len(), &back.environment), (results.runs.len(), &results.environment));
        assert_eq!(back.runs[0].measurement.latency_ns, results.runs[0].measurement.latency_ns);
        assert!((back.comparisons[1].ratios[&Figure::P99].median - 0.94).abs() < 0.01);
        let value: serde_json::Value = serde_json::from_str(&json).unwrap();
        let run = &value["runs"][0];
        for key in
            ["name", "stack", "workload", "repetition", "peer", "iops", "bandwidth", "cpu_seconds", "layers"]
        {
            assert!(!run[key].is_null(), "{key}");
        }
        for key in ["min", "mean", "p50", "p90", "p95", "p99", "p99_9", "p99_99", "max"] {
            assert!(run["latency_ns"][key].is_number(), "{key}");
        }
        assert!(value["comparisons"][0]["ratios"]["cpu_per_operation"]["median"].is_number());
    }

    #[test]
    fn published_figures_stand_beside_measured_ones() {
        let mut results = sample();
        let published = |subject: &str, workload: Option<&str>, figures: &[(Figure, f64)]| {
            let workload = workload.map(str::to_owned);
            crate::plan::Published { subject: subject.into(), workload, figures: figures.to_vec() }
        };
        results.set_beside(&[
            published("file", Some("randread iodepth=32"), &[(Figure::Iops, 88_016.0), (Figure::P50, 1e6)]),
            published("fio", None, &[(Figure::Iops, 20_000.0)]),
            published("nobody", None, &[(Figure::Iops, 1.0)]),
        ]);
        let ratio = |workload, subject, figure| {
            results.published_of(workload, subject, figure).map(|found| found.ratio)
        };
        assert_eq!(ratio("randread iodepth=32", "file", Figure::Iops), Some(0.5));
        assert_eq!(ratio("randread iodepth=1", "file", Figure::Iops), None);
        assert_eq!(ratio("randread iodepth=1", "fio", Figure::Iops), Some(0.5));
        assert_eq!(ratio("randread iodepth=32", "fio", Figure::Iops), Some(2.0));
        let json: serde_json::Value = serde_json::from_str(&results.to_json()).unwrap();
        let found = &json["published"][1];
        assert_eq!((&found["subject"], &found["figures"]["iops"]["ratio"]), (&"file".into(), &0.5.into()));
        assert!(found["figures"]["p50"]["measured"].is_number());
    }

    #[test]
    fn medians() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0]), Some(2.5));
    }
}
