//! The table at the end of a run, for a terminal.

use crate::matrix::{self, Matrix};
use crate::results::{Comparison, DIRECTIONS, DirectionFigures, Figure, Published, Ratios, Results, Table};
use crate::units;
use std::fmt::Write;

/// Verdict about the ratios of pairs. A difference of up to two percent is called the same, and there is no
/// verdict if pairs contradict each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// In favour of the subject.
    Better,
    /// Within two percent.
    Same,
    /// In favour of the baseline.
    Worse,
    /// No verdict: the difference is within the scatter of the pairs.
    Unclear,
}

impl Verdict {
    /// Returns the verdict about these ratios of this figure. With at least 5 pairs, the interval of pairs
    /// that has to be on one side of 1 contains the true median with a probability of more than 90 %: all
    /// pairs, and with at least 8 all but the most extreme ones (order statistics).
    pub fn of(figure: Figure, ratios: &Ratios) -> Verdict {
        let advantage = |ratio: f64| if figure.more_is_better() { ratio } else { 1.0 / ratio };
        let mut pairs: Vec<f64> = ratios.pairs.iter().map(|ratio| advantage(*ratio)).collect();
        pairs.sort_by(f64::total_cmp);
        let left_out = pairs.len().saturating_sub(2) / 6;
        let (low, high) = match pairs.get(left_out..pairs.len() - left_out) {
            Some([low, .., high]) => (*low, *high),
            _ => (advantage(ratios.median), advantage(ratios.median)),
        };
        match advantage(ratios.median) {
            median if (1.0 / 1.02..=1.02).contains(&median) => Verdict::Same,
            median if median > 1.0 && low > 1.0 => Verdict::Better,
            median if median < 1.0 && high < 1.0 => Verdict::Worse,
            _ => Verdict::Unclear,
        }
    }

    /// Verdict as a word.
    pub fn word(self) -> &'static str {
        match self {
            Verdict::Better => "better",
            Verdict::Same => "same",
            Verdict::Worse => "worse",
            Verdict::Unclear => "unclear",
        }
    }

    /// Verdict as a sign, for readers who don't see colours.
    pub fn sign(self) -> &'static str {
        match self {
            Verdict::Better => "▲",
            Verdict::Same => "≈",
            Verdict::Worse => "▼",
            Verdict::Unclear => "?",
        }
    }
}

/// Cell of a [`Grid`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cell {
    /// Text, aligned to the left.
    Word(String),
    /// A number, aligned to the right with its whole column.
    Figure(String),
    /// No value: a dash, aligned with its column.
    Nothing,
}

impl Cell {
    fn text(&self) -> &str {
        match self {
            Cell::Word(text) | Cell::Figure(text) => text,
            Cell::Nothing => "-",
        }
    }
}

/// Rows of cells in columns as wide as their widest cell.
#[derive(Debug, Default)]
pub struct Grid {
    rows: Vec<Vec<Cell>>,
}

impl Grid {
    /// A grid with this heading.
    pub fn new(heading: &[&str]) -> Grid {
        Grid { rows: vec![heading.iter().map(|word| Cell::Word((*word).to_owned())).collect()] }
    }

    /// Adds a row.
    pub fn push(&mut self, row: Vec<Cell>) {
        self.rows.push(row);
    }

    /// Adds a row of `words` words and then figures.
    fn push_figures(&mut self, words: usize, cells: impl IntoIterator<Item = String>) {
        let cells = cells.into_iter().enumerate();
        self.push(cells.map(|(at, it)| if at < words { Cell::Word(it) } else { Cell::Figure(it) }).collect());
    }

    /// Writes the rows, each with `indent` spaces before it.
    pub fn write(&self, indent: usize, out: &mut String) {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let cells = |column: usize| self.rows.iter().filter_map(move |row| row.get(column));
        let layout = |column: usize| {
            let width = cells(column).map(|cell| cell.text().chars().count()).max().unwrap_or(0);
            (width, cells(column).any(|cell| matches!(cell, Cell::Figure(_))))
        };
        let layout: Vec<(usize, bool)> = (0..columns).map(layout).collect();
        for row in &self.rows {
            let mut line = " ".repeat(indent);
            for (cell, (width, has_figures)) in row.iter().zip(&layout) {
                let padding = " ".repeat(width - cell.text().chars().count());
                let (before, after) = if *has_figures { (&padding[..], "") } else { ("", &padding[..]) };
                let _ = write!(line, "{before}{}{after}  ", cell.text());
            }
            out.push_str(line.trim_end());
            out.push('\n');
        }
    }
}

/// Spaces before each line of a table at the end of a run.
const INDENT: usize = 2;

/// Renders all measurements, workload by workload, medians first and ratios below.
pub fn render(results: &Results) -> String {
    let mut out = String::new();
    for table in &results.tables {
        let _ = writeln!(out, "\n{}", table.title.as_ref().unwrap_or(&table.name));
        out.push_str(&of_table(table));
    }
    for matrix in matrix::large(results) {
        out.push_str(&of_matrix(results, &matrix));
    }
    for workload in matrix::others(results) {
        let _ = writeln!(out, "\n{workload}");
        figures(results, &workload).write(INDENT, &mut out);
        let comparisons: Vec<_> = results.comparisons.iter().filter(|it| it.workload == workload).collect();
        if !comparisons.is_empty() {
            out.push('\n');
            ratios(&comparisons).write(INDENT, &mut out);
        }
        let published: Vec<_> = results.published.iter().filter(|it| it.workload == workload).collect();
        if !published.is_empty() {
            out.push('\n');
            beside(&published).write(INDENT, &mut out);
        }
    }
    for note in &results.notes {
        let _ = writeln!(out, "\nnote: {note}");
    }
    if results.interrupted {
        out.push_str("\nstopped before the end: these are the completed runs\n");
    }
    out
}

/// Renders the table that a command has printed.
pub fn of_table(table: &Table) -> String {
    let mut grid = Grid::default();
    grid.push_figures(1, table.columns.iter().map(|column| column.title.clone()));
    for row in &table.rows {
        grid.push_figures(1, table.columns.iter().map(|column| column.unit.say(row.get(&column.name))));
    }
    let mut out = String::new();
    grid.write(INDENT, &mut out);
    out
}

/// Renders the corners of a matrix that has too many points for a terminal.
fn of_matrix(results: &Results, matrix: &Matrix) -> String {
    let mut out = String::new();
    for (load, corner) in matrix.corners() {
        let _ = writeln!(out, "\n{}: {load}", matrix.section);
        let mut grid = Grid::new(&["", "", "IOPS", "bandwidth", "p50", "p99", "p99.99"]);
        for (words, workload) in &corner {
            for subject in results.subjects(workload) {
                let mut row = vec![words.clone(), subject.clone()];
                for value in matrix::Value::ALL {
                    let found = value.median(results, workload, &subject);
                    row.push(found.map_or_else(|| "–".into(), |found| value.say(found)));
                }
                grid.push_figures(2, row);
            }
        }
        grid.write(INDENT, &mut out);
    }
    let _ = writeln!(out, "\nthe other points of {} are in the report", matrix.section);
    out
}

fn figures(results: &Results, workload: &str) -> Grid {
    let mut heading = vec!["", "IOPS", "spread", "bandwidth", "p50", "p99", "CPU/op"];
    let runs = results.runs.iter().filter(|run| run.workload.name == workload);
    let has_server = runs.clone().any(|run| run.measurement.server_cpu_seconds.is_some());
    if has_server {
        heading.push("server CPU/op");
    }
    let has_amplification = runs.clone().any(|run| run.measurement.write_amplification.is_some());
    if has_amplification {
        heading.push(Figure::WriteAmplification.title());
    }
    let has_hits = results.has_hits(workload);
    if has_hits {
        heading.extend(["read hits", "write hits"]);
    }
    let mut grid = Grid::new(&heading);
    for subject in results.subjects(workload) {
        let median = |figure| results.median_of(workload, &subject, figure);
        let time = |figure, unit: f64| {
            median(figure).map_or_else(|| "–".into(), |value| units::nanoseconds(value * unit))
        };
        let bandwidths: Vec<f64> =
            results.of(workload, &subject).map(|run| run.measurement.bandwidth).collect();
        let mut row = vec![
            subject.clone(),
            median(Figure::Iops).map_or_else(|| "–".into(), units::count),
            spread(results, workload, &subject, Figure::Iops)
                .map_or_else(String::new, |spread| format!("±{spread:.1} %")),
            crate::results::median(&bandwidths).map_or_else(|| "–".into(), units::bandwidth),
            time(Figure::P50, 1.0),
            time(Figure::P99, 1.0),
            time(Figure::CpuPerOperation, 1e9),
        ];
        if has_server {
            row.push(time(Figure::ServerCpuPerOperation, 1e9));
        }
        if has_amplification {
            let factor = median(Figure::WriteAmplification);
            row.push(factor.map_or_else(|| "–".into(), units::number));
        }
        if has_hits {
            row.push(results.say_hits(workload, &subject, |ratio| ratio.reads));
            row.push(results.say_hits(workload, &subject, |ratio| ratio.writes));
        }
        for (repetition, iops) in outliers(results, workload, &subject) {
            row.push(format!("repetition {repetition}: {} IOPS!", units::count(iops)));
        }
        let errors: u64 = results.of(workload, &subject).map(|run| run.measurement.errors).sum();
        if errors > 0 {
            row.push(format!("{errors} ERRORS"));
        }
        grid.push_figures(1, row);
        for (name, of) in DIRECTIONS {
            let median = |figure: fn(&DirectionFigures) -> Option<f64>, say: fn(f64) -> String| {
                results.median_of_direction(workload, &subject, of, figure).map(say)
            };
            let Some(iops) = median(|it| Some(it.iops), units::count) else { continue };
            let others = [
                Some(String::new()),
                median(|it| Some(it.bandwidth), units::bandwidth),
                median(|it| Some(it.latency_ns?.p50 as f64), units::nanoseconds),
                median(|it| Some(it.latency_ns?.p99 as f64), units::nanoseconds),
            ];
            let others = others.into_iter().map(|cell| cell.unwrap_or_else(|| "–".into()));
            grid.push_figures(1, [format!("  {name}"), iops].into_iter().chain(others));
        }
    }
    grid
}

/// Repetitions, numbered from 1, with less than half or more than twice the median of IOPS. Their cause is
/// outside of the workload.
pub(crate) fn outliers(results: &Results, workload: &str, subject: &str) -> Vec<(usize, f64)> {
    let iops: Vec<f64> =
        results.of(workload, subject).filter_map(|run| Figure::Iops.of(&run.measurement)).collect();
    let median = crate::results::median(&iops).filter(|_| iops.len() > 2);
    let is_far = |value: f64| median.is_some_and(|median| value * 2.0 < median || value > median * 2.0);
    iops.into_iter()
        .enumerate()
        .filter(|(_, value)| is_far(*value))
        .map(|(index, value)| (index + 1, value))
        .collect()
}

/// Half of the distance between the lowest and the highest repetition, in percent of the median.
pub(crate) fn spread(results: &Results, workload: &str, subject: &str, figure: Figure) -> Option<f64> {
    let runs = results.of(workload, subject);
    let values: Vec<f64> = runs.filter_map(|run| figure.of(&run.measurement)).collect();
    let (low, high) =
        values.iter().fold((f64::MAX, 0.0_f64), |(low, high), it| (low.min(*it), high.max(*it)));
    let median = crate::results::median(&values)?;
    (values.len() > 1).then(|| (high - low) / 2.0 / median * 100.0)
}

fn ratios(comparisons: &[&Comparison]) -> Grid {
    let mut grid = Grid::default();
    for comparison in comparisons {
        let mut row = vec![format!("{} / {}", comparison.subject, comparison.baseline)];
        let mut pairs = 0;
        for (figure, ratios) in &comparison.ratios {
            let verdict = Verdict::of(*figure, ratios);
            let ratio = units::ratio(ratios.median);
            row.push(format!("{} {ratio} {} {}", figure.title(), verdict.sign(), verdict.word()));
            pairs = pairs.max(ratios.pairs.len());
        }
        row.push(format!("({pairs} {})", if pairs == 1 { "pair" } else { "pairs" }));
        grid.push(row.into_iter().map(Cell::Word).collect());
    }
    grid
}

/// Renders measurements beside published figures of others.
fn beside(published: &[&Published]) -> Grid {
    let mut grid = Grid::default();
    for published in published {
        let mut row = vec![format!("{} / published", published.subject)];
        row.extend(published.figures.iter().map(|(figure, found)| {
            let ratio = units::ratio(found.ratio);
            format!("{} {ratio} of {}", figure.title(), figure.say(found.published))
        }));
        grid.push(row.into_iter().map(Cell::Word).collect());
    }
    grid
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::tests::sample;

    #[test]
    fn aligned_with_ratios() {
        let mut results = sample();
        results.notes.push("qsd is left out: qemu-storage-daemon is not installed".into());
        let text = render(&results);
        println!("{text}");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[1], "randread iodepth=1");
        let column =
            |line: &str, word: &str| line.split(word).next().unwrap().chars().count() + word.chars().count();
        assert_eq!(column(lines[2], "IOPS"), column(lines[3], "11.0 k"));
        assert_eq!(column(lines[2], "bandwidth"), column(lines[4], "39.1 MiB/s"));
        assert!(lines[6].contains("file / fio") && lines[6].contains("IOPS ×1.10 ▲ better"), "{}", lines[6]);
        assert!(lines[6].contains("(3 pairs)"));
        assert!(text.contains("note: qsd is left out"));
    }

    #[test]
    fn published_figures_stand_below() {
        let mut results = sample();
        let figures = vec![(Figure::Iops, 12_000.0), (Figure::P99, 4e6)];
        let workload = Some("randread iodepth=1".into());
        results.set_beside(&[crate::plan::Published { subject: "file".into(), workload, figures }]);
        let text = render(&results);
        assert_eq!(text.matches("file / published").count(), 1, "{text}");
        assert!(text.contains("file / published  IOPS ×0.92 of 12.0 k  p99 ×"), "{text}");
    }

    #[test]
    fn reads_and_writes_of_a_mixed_workload_stand_apart() {
        let mut results = sample();
        assert!(!render(&results).contains("  reads"));
        crate::results::tests::mix(&mut results);
        let text = render(&results);
        let lines: Vec<&str> = text.lines().filter(|line| line.trim_start().starts_with("reads")).collect();
        assert_eq!(lines.len(), text.matches("writes").count(), "{text}");
        assert!(lines[0].contains("7.00 k") && lines[0].contains("123"), "{text}");
        let writes = text.lines().find(|line| line.trim_start().starts_with("writes")).unwrap();
        assert!(writes.contains("3.00 k") && writes.contains("456"), "{text}");
    }

    #[test]
    fn verdicts_know_what_is_good() {
        let verdict = |figure, pairs: &[f64]| {
            let median = crate::results::median(pairs).unwrap();
            Verdict::of(figure, &Ratios { median, pairs: pairs.to_vec() })
        };
        assert_eq!(verdict(Figure::Iops, &[1.1]), Verdict::Better);
        assert_eq!(verdict(Figure::P99, &[1.1]), Verdict::Worse);
        assert_eq!(verdict(Figure::P99, &[0.99]), Verdict::Same);
        assert_eq!(verdict(Figure::Iops, &[1.05, 1.15, 1.04]), Verdict::Better);
        // Pairs that contradict each other.
        assert_eq!(verdict(Figure::Iops, &[1.03, 1.15, 0.84]), Verdict::Unclear);
        assert_eq!(verdict(Figure::P99, &[1.03, 1.15, 0.84]), Verdict::Unclear);
        assert_eq!(verdict(Figure::Iops, &[1.02, 1.15, 0.84]), Verdict::Same);
        // One contradicting pair of many has no effect.
        assert_eq!(verdict(Figure::Iops, &[1.1, 1.2, 1.1, 0.9, 1.2, 1.3, 1.1, 1.2]), Verdict::Better);
        assert_eq!(verdict(Figure::Iops, &[1.1, 0.8, 1.1, 0.9, 1.2, 1.3, 1.1, 1.2]), Verdict::Unclear);
    }

    #[test]
    fn a_repetition_far_from_the_others_is_flagged() {
        let mut results = sample();
        assert!(!render(&results).contains('!'));
        let run = results.runs.iter_mut().find(|run| run.subject == "file").unwrap();
        run.measurement.iops = 622.0;
        let text = render(&results);
        assert!(text.contains("repetition 1: 622 IOPS!"), "{text}");
    }
}
