//! Matrices: the points of one workload of a plan with lists, if they are too many for a display of each.
//!
//! The layout follows from the options that have lists: clones (`numjobs`) and depth (`iodepth`) are the load
//! and become the rows and columns of a grid; every other option divides the grids into panels. The *corners*
//! are the points with the least and with the most load, at the middle of all other numeric options. The
//! report draws the grids.

use crate::latency::Latency;
use crate::results::{Measurement, Results, median};
use crate::units;
use std::collections::BTreeSet;

/// Most points that are shown one by one; larger matrices are shown as grids.
const MAX_SHOWN_SINGLY: usize = 12;

/// Options that determine the load.
const ROWS: &str = "numjobs";
const COLUMNS: &str = "iodepth";

/// An option with a list of values, in the order of the plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Axis {
    /// Name in fio.
    pub option: String,
    /// Values as in the plan.
    pub values: Vec<String>,
}

impl Axis {
    fn is_numeric(&self) -> bool {
        self.values.iter().all(|value| value.starts_with(|letter: char| letter.is_ascii_digit()))
    }
}

/// The points of one section of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Matrix {
    /// Name of the section.
    pub section: String,
    /// Options with several values.
    pub axes: Vec<Axis>,
    /// For each point, the index of its value on each axis, and the name of its workload.
    points: Vec<(Vec<usize>, String)>,
}

/// Label of a point, unique among those shown together, and the name of its workload.
pub type Labelled = (String, String);

impl Matrix {
    /// Axis of the rows and axis of the columns of a grid, if there are any.
    pub fn grid_axes(&self) -> (Option<usize>, Option<usize>) {
        let find = |option: &str| self.axes.iter().position(|axis| axis.option == option);
        let (mut rows, mut columns) = (find(ROWS), find(COLUMNS));
        // Without a load, the axes that change fastest are used.
        let mut others =
            (0..self.axes.len()).rev().filter(|axis| ![find(ROWS), find(COLUMNS)].contains(&Some(*axis)));
        if columns.is_none() {
            columns = others.next();
        }
        if rows.is_none() && self.axes.len() > 1 {
            rows = others.next();
        }
        (rows, columns)
    }

    /// Axes that divide grids into panels.
    pub fn panel_axes(&self) -> Vec<usize> {
        let (rows, columns) = self.grid_axes();
        (0..self.axes.len()).filter(|axis| ![rows, columns].contains(&Some(*axis))).collect()
    }

    /// All combinations of values of some axes, the last one's values changing fastest.
    pub fn combinations(&self, axes: &[usize]) -> Vec<Vec<usize>> {
        axes.iter().fold(vec![Vec::new()], |all, axis| {
            let values = 0..self.axes[*axis].values.len();
            all.iter()
                .flat_map(|before| values.clone().map(|value| [before.as_slice(), &[value]].concat()))
                .collect()
        })
    }

    /// Values of axes as text: `bs=8KiB iodepth=32`.
    pub fn words(&self, axes: &[usize], values: &[usize]) -> String {
        let word = |(axis, value): (&usize, &usize)| {
            format!("{}={}", self.axes[*axis].option, self.axes[*axis].values[*value])
        };
        axes.iter().zip(values).map(word).collect::<Vec<_>>().join(" ")
    }

    /// Workload with these values of all axes, given in any order; `None` if it hasn't run.
    pub fn workload(&self, axes: &[usize], values: &[usize]) -> Option<&str> {
        let is_it = |point: &[usize]| axes.iter().zip(values).all(|(axis, value)| point[*axis] == *value);
        self.points.iter().find(|(point, _)| is_it(point)).map(|(_, workload)| workload.as_str())
    }

    /// Points with the most load and points with the least: their common values, and each of them. Empty for
    /// a matrix without a load.
    pub fn corners(&self) -> Vec<(String, Vec<Labelled>)> {
        let is_load = |axis: usize| [ROWS, COLUMNS].contains(&self.axes[axis].option.as_str());
        let is_kept = |axis: &usize| !is_load(*axis) && !self.axes[*axis].is_numeric();
        let all: Vec<usize> = (0..self.axes.len()).collect();
        if !all.iter().any(|axis| is_load(*axis)) {
            return Vec::new();
        }
        let (kept, fixed): (Vec<usize>, Vec<usize>) = all.iter().partition(|axis| is_kept(axis));
        let corner = |heaviest: bool| {
            let value = |axis: &usize| {
                let count = self.axes[*axis].values.len();
                match (is_load(*axis), heaviest) {
                    (true, true) => count - 1,
                    (true, false) => 0,
                    (false, _) => (count - 1) / 2,
                }
            };
            let values: Vec<usize> = fixed.iter().map(value).collect();
            let axes = [fixed.as_slice(), &kept].concat();
            let labelled = self.combinations(&kept).into_iter().filter_map(|chosen| {
                let workload = self.workload(&axes, &[values.as_slice(), &chosen].concat())?;
                let words =
                    kept.iter().zip(&chosen).map(|(axis, value)| self.axes[*axis].values[*value].clone());
                Some((words.collect::<Vec<_>>().join(" "), workload.to_owned()))
            });
            (self.words(&fixed, &values), labelled.collect())
        };
        vec![corner(true), corner(false)]
    }

    /// Names of the matrix's workloads.
    pub fn workloads(&self) -> impl Iterator<Item = &str> {
        self.points.iter().map(|(_, workload)| workload.as_str())
    }
}

/// Matrices with many points, in the order of their first runs.
pub fn large(results: &Results) -> Vec<Matrix> {
    let mut matrices: Vec<Matrix> = Vec::new();
    let mut seen = BTreeSet::new();
    for workload in results.runs.iter().map(|run| &run.workload) {
        let Some(point) = &workload.point else { continue };
        if !seen.insert(&workload.name) {
            continue;
        }
        let options = || point.choices.iter().map(|choice| &choice.option);
        let index = matrices.iter().position(|matrix| {
            matrix.section == point.section && matrix.axes.iter().map(|axis| &axis.option).eq(options())
        });
        let index = index.unwrap_or_else(|| {
            let axes = options().map(|option| Axis { option: option.clone(), values: Vec::new() }).collect();
            matrices.push(Matrix { section: point.section.clone(), axes, points: Vec::new() });
            matrices.len() - 1
        });
        let matrix = &mut matrices[index];
        let place = |(axis, value): (&mut Axis, &String)| {
            let known = axis.values.iter().position(|known| known == value);
            known.unwrap_or_else(|| {
                axis.values.push(value.clone());
                axis.values.len() - 1
            })
        };
        let values = point.choices.iter().map(|choice| &choice.value);
        let place = matrix.axes.iter_mut().zip(values).map(place).collect();
        matrix.points.push((place, workload.name.clone()));
    }
    matrices.retain(|matrix| matrix.points.len() > MAX_SHOWN_SINGLY);
    matrices
}

/// Workloads that are not points of a large matrix.
pub fn others(results: &Results) -> Vec<String> {
    let matrices = large(results);
    let points: BTreeSet<&str> = matrices.iter().flat_map(Matrix::workloads).collect();
    let mut workloads = results.workloads();
    workloads.retain(|workload| !points.contains(workload.as_str()));
    workloads
}

/// Figure of a point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value {
    /// Operations per second.
    Iops,
    /// Bytes per second.
    Bandwidth,
    /// The median latency.
    P50,
    /// The latency that 1 of 100 exceeds.
    P99,
    /// The latency that 1 of 10,000 exceeds.
    P9999,
}

impl Value {
    /// All values.
    pub const ALL: [Value; 5] = [Value::Iops, Value::Bandwidth, Value::P50, Value::P99, Value::P9999];

    fn of(self, measurement: &Measurement) -> Option<f64> {
        let latency = |pick: fn(&Latency) -> u64| measurement.latency_ns.as_ref().map(|it| pick(it) as f64);
        let value = match self {
            Value::Iops => Some(measurement.iops),
            Value::Bandwidth => Some(measurement.bandwidth),
            Value::P50 => latency(|it| it.p50),
            Value::P99 => latency(|it| it.p99),
            Value::P9999 => latency(|it| it.p99_99),
        };
        value.filter(|value| value.is_finite() && *value > 0.0)
    }

    /// Median over the repetitions without errors.
    pub fn median(self, results: &Results, workload: &str, subject: &str) -> Option<f64> {
        let runs = results.of(workload, subject).filter(|run| run.measurement.errors == 0);
        median(&runs.filter_map(|run| self.of(&run.measurement)).collect::<Vec<_>>())
    }

    /// Title for display.
    pub fn title(self) -> &'static str {
        match self {
            Value::Iops => "IOPS",
            Value::Bandwidth => "bandwidth",
            Value::P50 => "p50",
            Value::P99 => "p99",
            Value::P9999 => "p99.99",
        }
    }

    /// Formats a value for display.
    pub fn say(self, value: f64) -> String {
        match self {
            Value::Iops => units::count(value),
            Value::Bandwidth => units::bandwidth(value),
            Value::P50 | Value::P99 | Value::P9999 => units::nanoseconds(value),
        }
    }

    /// Ratio of a value to the best, from 0 to 1.
    pub fn share(self, value: f64, best: f64) -> f64 {
        if self.more_is_better() { value / best } else { best / value }
    }

    /// Returns the better of two values.
    pub fn better(self, one: f64, other: f64) -> f64 {
        if self.more_is_better() { one.max(other) } else { one.min(other) }
    }

    fn more_is_better(self) -> bool {
        matches!(self, Value::Iops | Value::Bandwidth)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::results::tests::{run, sample};
    use crate::results::{Choice, Point};

    /// Two subjects on every point of `rw` × `bs` × `numjobs` × `iodepth`, in addition to the sample.
    pub(crate) fn with_matrix() -> Results {
        let mut results = sample();
        for rw in ["randread", "randwrite"] {
            for bs in ["4KiB", "8KiB", "64KiB"] {
                for (numjobs, iodepth) in [(1, 1), (1, 32), (8, 1), (8, 32)] {
                    let name = format!("every rw={rw} bs={bs} numjobs={numjobs} iodepth={iodepth}");
                    for (subject, rate) in [("radix", 1000.0), ("hash", 900.0), ("ram", 4000.0)] {
                        let mut run = run(subject, &name, 1, rate * f64::from(numjobs * iodepth + 1));
                        run.workload.point = Some(Point {
                            section: "every".into(),
                            choices: vec![
                                Choice::new("rw", rw),
                                Choice::new("bs", bs),
                                Choice::new("numjobs", numjobs.to_string()),
                                Choice::new("iodepth", iodepth.to_string()),
                            ],
                        });
                        results.runs.push(run);
                    }
                }
            }
        }
        results.compare(
            &[("radix", "ram"), ("hash", "ram"), ("file", "fio")]
                .map(|(one, other)| (one.into(), other.into())),
        );
        results
    }

    #[test]
    fn the_layout_follows_the_lists() {
        let results = with_matrix();
        let matrices = large(&results);
        assert_eq!(matrices.len(), 1, "the two points of the sample are shown one by one");
        assert_eq!(others(&results), ["randread iodepth=1", "randread iodepth=32"]);
        let matrix = &matrices[0];
        assert_eq!((matrix.grid_axes(), matrix.panel_axes()), ((Some(2), Some(3)), vec![0, 1]));
        assert_eq!(matrix.combinations(&[0, 1]).len(), 6);
        assert_eq!(matrix.words(&[1, 3], &[2, 1]), "bs=64KiB iodepth=32");
        assert_eq!(
            matrix.workload(&[3, 2, 1, 0], &[1, 0, 1, 1]),
            Some("every rw=randwrite bs=8KiB numjobs=1 iodepth=32")
        );
    }

    #[test]
    fn corners_are_the_most_and_the_least_load_in_the_middle_of_the_sizes() {
        let results = with_matrix();
        let corners = large(&results)[0].corners();
        assert_eq!(corners[0].0, "bs=8KiB numjobs=8 iodepth=32");
        assert_eq!(corners[1].0, "bs=8KiB numjobs=1 iodepth=1");
        let words: Vec<&str> = corners[0].1.iter().map(|(words, _)| words.as_str()).collect();
        assert_eq!(words, ["randread", "randwrite"]);
        assert_eq!(corners[1].1[1].1, "every rw=randwrite bs=8KiB numjobs=1 iodepth=1");
    }

    #[test]
    fn without_a_load_the_fastest_axes_make_the_grid() {
        let mut results = with_matrix();
        for run in &mut results.runs {
            if let Some(point) = &mut run.workload.point {
                point.choices[2].option = "rwmixread".into();
                point.choices[3].option = "fsync".into();
            }
        }
        let matrix = &large(&results)[0];
        assert_eq!((matrix.grid_axes(), matrix.panel_axes()), ((Some(2), Some(3)), vec![0, 1]));
        assert!(matrix.corners().is_empty());
    }

    #[test]
    fn less_latency_is_better() {
        assert_eq!((Value::Iops.share(50.0, 100.0), Value::P9999.share(200.0, 100.0)), (0.5, 0.5));
        assert_eq!((Value::Iops.better(1.0, 2.0), Value::P50.better(1.0, 2.0)), (2.0, 1.0));
    }
}
