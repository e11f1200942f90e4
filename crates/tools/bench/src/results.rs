//! Results of a plan: `results.json`, and the ratios between runs of the same pair.
//!
//! Ratios are computed pair by pair, for subject and baseline of one workload in the same repetition, and
//! their median is the result: drift of the machine affects both. The book describes the file's layout;
//! [`SCHEMA`] names its version.

use crate::environment::Environment;
use crate::latency::{CurvePoint, Latency};
use crate::series::Series;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Name and version of the layout of `results.json`.
pub const SCHEMA: &str = "siltstone-results-1";

/// Contents of a `results.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// [`SCHEMA`].
    pub schema: String,
    /// Name of the plan.
    pub name: String,
    /// Title of the plan, for display.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// Start time, in seconds since 1970.
    pub started: u64,
    /// Whether the benchmark was stopped before its end.
    #[serde(default)]
    pub interrupted: bool,
    /// Environment.
    pub environment: Environment,
    /// Notes for readers, such as omitted peers and replaced engines.
    #[serde(default)]
    pub notes: Vec<String>,
    /// Tables that commands have printed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tables: Vec<Table>,
    /// Measured runs, in order.
    pub runs: Vec<RunResult>,
    /// Ratios that the plan asks for.
    #[serde(default)]
    pub comparisons: Vec<Comparison>,
    /// Measurements beside published figures of others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub published: Vec<Published>,
    /// Source of the published figures.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub published_in: Option<String>,
}

/// One measured run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunResult {
    /// Subject, workload and repetition: `file/randread-qd32/1`.
    pub name: String,
    /// Name of the stack or peer that ran.
    pub subject: String,
    /// One-line form of the stack, or the peer's command.
    pub stack: String,
    /// Workload.
    pub workload: Workload,
    /// Number of the repetition, from 1.
    pub repetition: u32,
    /// Whether the subject is a peer.
    pub peer: bool,
    /// Figures.
    #[serde(flatten)]
    pub measurement: Measurement,
}

/// Workload in results.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Workload {
    /// Name in the plan, with the values of its matrix: `randread iodepth=32`.
    pub name: String,
    /// Point of a matrix; `None` without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub point: Option<Point>,
    /// Options in fio's terms.
    pub options: BTreeMap<String, String>,
    /// Guarantee of an acknowledged write; `None` without writes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acknowledged: Option<String>,
}

impl Workload {
    /// Workload of this job, under the name that the plan gives it.
    pub fn new(name: impl Into<String>, job: &crate::job::Job) -> Self {
        let options = job.options().into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        Workload { name: name.into(), point: None, options, acknowledged: job.acknowledged() }
    }

    /// Workload of a plan's point with this job.
    pub fn of_point(workload: &crate::plan::Workload, job: &crate::job::Job) -> Self {
        let choices = workload.choices.iter().map(|(option, value)| Choice::new(option, value)).collect();
        let point = Point { section: workload.section.clone(), choices };
        Workload {
            point: (!workload.choices.is_empty()).then_some(point),
            ..Workload::new(workload.name.clone(), job)
        }
    }
}

/// Position of a workload in the matrix of its section of the plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Point {
    /// Name of the section.
    pub section: String,
    /// Options that distinguish the point from the matrix's other points, in the order of the plan.
    pub choices: Vec<Choice>,
}

/// Value of an option that has several in a matrix.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Choice {
    /// Name of the option in fio.
    pub option: String,
    /// Value as in the plan.
    pub value: String,
}

impl Choice {
    /// Choice of this value of this option.
    pub fn new(option: impl Into<String>, value: impl Into<String>) -> Self {
        Choice { option: option.into(), value: value.into() }
    }
}

/// Table that a command has printed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Table {
    /// Name in the plan; not part of the command's output.
    #[serde(default)]
    pub name: String,
    /// Title, for display.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// Description for readers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub about: Option<String>,
    /// The command; not part of its output.
    #[serde(default)]
    pub command: String,
    /// Columns; the first one names the rows.
    pub columns: Vec<Column>,
    /// Names of columns that the report draws as lines over the first one, which then has numbers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lines: Vec<String>,
    /// Whether both axes of the lines are logarithmic.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub logarithmic: bool,
    /// Rows: numbers, or texts that are shown unchanged, by the columns' names.
    pub rows: Vec<serde_json::Map<String, serde_json::Value>>,
}

impl Table {
    /// Returns the column of this name.
    pub fn column(&self, name: &str) -> Option<&Column> {
        self.columns.iter().find(|column| column.name == name)
    }
}

/// A column of a table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Column {
    /// Name in the rows.
    pub name: String,
    /// Heading.
    pub title: String,
    /// Unit of its numbers.
    #[serde(default)]
    pub unit: Unit,
}

/// Unit of a number.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// None: shown to three digits.
    #[default]
    Number,
    /// Count: shown with k and M.
    Count,
    /// Bytes: shown with KiB and MiB.
    Bytes,
    /// Nanoseconds.
    Nanoseconds,
}

impl Unit {
    /// Formats a cell for display; a dash if it is empty.
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

/// Write amplification: blocks written per block that the user writes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct WriteAmplification {
    /// User blocks and blocks moved by the cleaner.
    pub data: f64,
    /// Also with metadata blocks.
    pub all: f64,
}

/// Hit ratio of a cache, from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct HitRatio {
    /// Ratio over reads and writes.
    pub all: f64,
    /// Ratio over reads; `None` without any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reads: Option<f64>,
    /// Ratio over writes; `None` without any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub writes: Option<f64>,
}

/// Figures of the reads or of the writes of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct DirectionFigures {
    /// Number of completed operations.
    pub operations: u64,
    /// Number of transferred bytes.
    pub bytes: u64,
    /// Operations per second.
    pub iops: f64,
    /// Bytes per second.
    pub bandwidth: f64,
    /// Latency from submission to completion, in nanoseconds; `None` if no operation was timed.
    pub latency_ns: Option<Latency>,
}

/// Selects the figures of one direction from those of a run.
pub type OfDirection = fn(&Measurement) -> Option<&DirectionFigures>;
/// Directions that reports show apart, by their names.
pub const DIRECTIONS: [(&str, OfDirection); 2] =
    [("reads", |of| of.reads.as_ref()), ("writes", |of| of.writes.as_ref())];

/// Figures of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// Number of completed operations, without flushes.
    pub operations: u64,
    /// Number of transferred bytes.
    pub bytes: u64,
    /// Measured time, in seconds.
    pub seconds: f64,
    /// Operations per second.
    pub iops: f64,
    /// Bytes per second.
    pub bandwidth: f64,
    /// Latency from submission to completion, in nanoseconds; `None` if no operation was completed or timed.
    pub latency_ns: Option<Latency>,
    /// Figures of the reads; `None` for runs that aren't mixed and for peers that don't tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reads: Option<DirectionFigures>,
    /// Figures of the writes; `None` as those of `reads`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub writes: Option<DirectionFigures>,
    /// CPU time of the process that did the I/O, user and system, in seconds.
    pub cpu_seconds: f64,
    /// CPU time of the run's own server, in seconds; `None` without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_cpu_seconds: Option<f64>,
    /// Number of operations that failed or failed verification.
    #[serde(default)]
    pub errors: u64,
    /// First error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_error: Option<String>,
    /// Blocks written per block that the job wrote; `None` if no layer counts them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_amplification: Option<WriteAmplification>,
    /// Hit ratios of the stack's caches over the measured time, by their names.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub hit_ratios: BTreeMap<String, HitRatio>,
    /// Statistics of each layer, by its name in the stack.
    #[serde(default)]
    pub layers: serde_json::Map<String, serde_json::Value>,
    /// Percentile curve.
    #[serde(default)]
    pub curve: Vec<CurvePoint>,
    /// Operations and their latencies over time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub series: Option<Series>,
}

impl Measurement {
    /// CPU time per operation in seconds; `None` without operations.
    pub fn cpu_per_operation(&self) -> Option<f64> {
        (self.operations > 0).then(|| self.cpu_seconds / self.operations as f64)
    }

    /// CPU time of the server per operation in seconds.
    pub fn server_cpu_per_operation(&self) -> Option<f64> {
        self.server_cpu_seconds.filter(|_| self.operations > 0).map(|cpu| cpu / self.operations as f64)
    }
}

/// Figure by which runs are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Figure {
    /// Operations per second: more is better.
    Iops,
    /// Bytes per second: more is better. Ratios include it if the requests of the two runs had different
    /// sizes.
    Bandwidth,
    /// Median latency: less is better.
    P50,
    /// 99th percentile of latency: less is better.
    P99,
    /// CPU time per operation: less is better.
    CpuPerOperation,
    /// CPU time of the server per operation: less is better.
    ServerCpuPerOperation,
    /// Blocks written for each block that the job wrote, without metadata: less is better.
    WriteAmplification,
}

impl Figure {
    /// All figures.
    pub const ALL: [Figure; 7] = [
        Figure::Iops,
        Figure::Bandwidth,
        Figure::P50,
        Figure::P99,
        Figure::CpuPerOperation,
        Figure::ServerCpuPerOperation,
        Figure::WriteAmplification,
    ];

    /// Value for a run; `None` if the run doesn't have it.
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

    /// Title for display.
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

    /// Formats a value for display.
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

    /// Whether a ratio above 1 is an improvement.
    pub fn more_is_better(self) -> bool {
        matches!(self, Figure::Iops | Figure::Bandwidth)
    }
}

/// Ratios of one subject to one baseline on one workload.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// Name of the workload.
    pub workload: String,
    /// Subject: the numerator.
    pub subject: String,
    /// Baseline: the denominator.
    pub baseline: String,
    /// For each figure of both: the ratios of the pairs, in the order of repetitions, and their median.
    pub ratios: BTreeMap<Figure, Ratios>,
}

/// Ratios of the pairs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ratios {
    /// Median: the result.
    pub median: f64,
    /// Ratio of each pair.
    pub pairs: Vec<f64>,
}

/// Measurement of a subject beside published figures of others about it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Published {
    /// Name of the workload.
    pub workload: String,
    /// Subject of the figures.
    pub subject: String,
    /// Figures.
    pub figures: BTreeMap<Figure, PublishedFigure>,
}

/// Published and measured figure, in the figure's own unit: per second, bytes per second, nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PublishedFigure {
    /// Published value.
    pub published: f64,
    /// Measured value: the median of the repetitions.
    pub measured: f64,
    /// Measured divided by published.
    pub ratio: f64,
}

impl Results {
    /// Formats the hit ratios of a subject's caches, medians of the repetitions: `93.1 %`; with their names
    /// if there are several; a dash if there is none. `pick` selects one of a cache's ratios.
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

    /// Whether a workload has hit ratios of a cache.
    pub fn has_hits(&self, workload: &str) -> bool {
        let mut runs = self.runs.iter().filter(|run| run.workload.name == workload);
        runs.any(|run| !run.measurement.hit_ratios.is_empty())
    }

    /// Adds the measured values to those published figures that have one.
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

    /// Published figure of a subject on a workload.
    pub fn published_of(&self, workload: &str, subject: &str, figure: Figure) -> Option<PublishedFigure> {
        let found = self.published.iter().find(|it| it.workload == workload && it.subject == subject)?;
        found.figures.get(&figure).copied()
    }

    /// Computes [`Results::comparisons`] for these pairs of subject and baseline, on every workload that both
    /// have run. A repetition in which one of the two is missing or had errors is ignored.
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

    /// Names of the workloads, in the order in which they first ran.
    pub fn workloads(&self) -> Vec<String> {
        distinct(self.runs.iter().map(|run| &run.workload.name))
    }

    /// Subjects that ran a workload, in the order of their first repetition.
    pub fn subjects(&self, workload: &str) -> Vec<String> {
        let runs = self.runs.iter().filter(|run| run.workload.name == workload);
        distinct(runs.map(|run| &run.subject))
    }

    /// Runs of a subject on a workload.
    pub fn of<'a>(&'a self, workload: &'a str, subject: &'a str) -> impl Iterator<Item = &'a RunResult> {
        self.runs.iter().filter(move |run| run.workload.name == workload && run.subject == subject)
    }

    /// Median of a figure over the repetitions without errors.
    pub fn median_of(&self, workload: &str, subject: &str, figure: Figure) -> Option<f64> {
        let runs = self.of(workload, subject).filter(|run| run.measurement.errors == 0);
        let values: Vec<f64> = runs.filter_map(|run| figure.of(&run.measurement)).collect();
        median(&values)
    }

    /// Median of a figure of one direction over the repetitions without errors; `None` if directions weren't
    /// measured apart.
    pub fn median_of_direction(
        &self,
        workload: &str,
        subject: &str,
        of: OfDirection,
        figure: impl Fn(&DirectionFigures) -> Option<f64>,
    ) -> Option<f64> {
        let runs = self.of(workload, subject).filter(|run| run.measurement.errors == 0);
        let values: Vec<f64> = runs.filter_map(|run| figure(of(&run.measurement)?)).collect();
        median(&values)
    }

    /// Returns the text of `results.json`.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("results hold only what JSON can say")
    }
}

/// Whether the requests of two runs had different sizes: otherwise bandwidth has the same ratio as IOPS.
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

/// Middle value, or the mean of the two middle ones; `None` without values.
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

    /// Makes all runs mixed ones, with 7000 reads of a median of 123 µs and 3000 writes of one of 456 µs per
    /// second.
    pub(crate) fn mix(results: &mut Results) {
        let figures = |iops: f64, latency: u64| {
            let mut histogram = Histogram::new();
            histogram.record(latency);
            let (operations, bandwidth) = (iops as u64 * 2, iops * 4096.0);
            let latency_ns = Latency::of(&histogram);
            Some(DirectionFigures { operations, bytes: operations * 4096, iops, bandwidth, latency_ns })
        };
        for run in &mut results.runs {
            run.measurement.reads = figures(7000.0, 123_000);
            run.measurement.writes = figures(3000.0, 456_000);
        }
    }

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
