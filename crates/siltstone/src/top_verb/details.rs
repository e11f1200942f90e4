//! Pages of `siltstone top` besides the table: a part with its calls, latencies and status, and the help.

use super::app::App;
use super::columns::{COLUMNS, count, mebibytes, shown_name};
use super::rows::status_of;
use super::sample::{Counts, Sample, growth};
use crate::table::{self, plain};
use bench::table::{Cell, Grid};
use bench::units;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Width of the longest bar of a histogram.
const MAX_BAR: usize = 50;

/// Returns the lines of a part: its calls in the last interval, their latencies since the origin, its status.
pub fn lines(app: &App, name: &str, is_door: bool, width: usize) -> Vec<String> {
    let Some(sample) = &app.sample else { return Vec::new() };
    let row = app.rows.iter().find(|row| row.name == name && row.is_door == is_door);
    let kind = row.map_or("?", |row| row.kind.as_str());
    let noun = if is_door { "door" } else { "part" };
    let mut text = format!("{noun} \"{}\", {}\n", plain(name), plain(kind));
    let since = |before: &Option<Sample>| {
        let before = before.as_ref().filter(|before| sample.continues(before))?;
        let seconds = (sample.nanoseconds - before.nanoseconds) as f64 / 1e9;
        Some((growth(&before.calls(name, is_door), &sample.calls(name, is_door))?, seconds))
    };
    if let Some((calls, seconds)) = since(&app.before) {
        text.push_str("\ncalls in the last interval\n");
        rates(&mut text, &calls, seconds);
    }
    if let Some((calls, seconds)) = since(&app.origin) {
        let mut calls: Vec<_> = calls.iter().filter(|(_, counts)| !counts.latency_ns.is_empty()).collect();
        calls.sort_by_key(|(_, counts)| std::cmp::Reverse(counts.operations));
        for (call, counts) in calls {
            text.push_str(&format!(
                "\nlatency of {} in the last {}\n",
                plain(call),
                units::nanoseconds(seconds * 1e9)
            ));
            histogram(&mut text, counts, width);
        }
    }
    if let Some(Value::Object(status)) = status_of(&sample.status, name, is_door) {
        let status: Map<String, Value> = status
            .iter()
            .filter(|(key, _)| *key != "kind")
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        text.push_str("\nstatus\n");
        table::object(&mut text, 2, &status);
    }
    text.lines().map(str::to_owned).collect()
}

fn rates(text: &mut String, calls: &BTreeMap<String, Counts>, seconds: f64) {
    let mut grid =
        Grid::new(&["call", "calls/s", "MiB/s", "mean", "p50", "p99", "p99.9", "in flight", "errors/s"]);
    for (call, counts) in calls {
        let latency =
            |value: Option<f64>| value.map_or(Cell::Nothing, |value| Cell::Figure(units::nanoseconds(value)));
        let quantile = |share| latency(counts.quantile(share).map(|value| value as f64));
        let mean = (counts.operations > 0).then(|| counts.latency_sum_ns as f64 / counts.operations as f64);
        grid.push(vec![
            Cell::Word(plain(call)),
            Cell::Figure(count(counts.operations as f64 / seconds)),
            Cell::Figure(mebibytes(counts.bytes as f64 / seconds)),
            latency(mean),
            quantile(0.5),
            quantile(0.99),
            quantile(0.999),
            Cell::Figure(counts.in_flight.to_string()),
            Cell::Figure(count(counts.errors as f64 / seconds)),
        ]);
    }
    match calls.is_empty() {
        true => text.push_str("  none yet\n"),
        false => grid.write(2, text),
    }
}

/// Writes a bar for each power of two of nanoseconds between the fastest and the slowest call.
fn histogram(text: &mut String, counts: &Counts, width: usize) {
    let mut bars = BTreeMap::<u32, u64>::new();
    for (middle, count) in &counts.latency_ns {
        let bar = bars.entry(middle.max(&1).ilog2()).or_default();
        *bar = bar.saturating_add(*count);
    }
    let (Some((first, _)), Some((last, _))) = (bars.first_key_value(), bars.last_key_value()) else { return };
    let all: u64 = bars.values().fold(0, |sum, count| sum.saturating_add(*count));
    let most = bars.values().copied().max().unwrap_or(1).max(1);
    let longest = width.saturating_sub(30).clamp(1, MAX_BAR);
    for power in *first..=*last {
        let counted = bars.get(&power).copied().unwrap_or(0);
        // A bar with calls is never empty.
        let length = (counted as f64 / most as f64 * longest as f64).round() as usize;
        let bar = "█".repeat(length.max(usize::from(counted > 0)));
        let end = units::nanoseconds(2_f64.powi(power as i32 + 1));
        let share = if counted == 0 {
            String::new()
        } else {
            format!("{:.2} %", 100.0 * counted as f64 / all as f64)
        };
        let line = format!("  < {end:<8} {share:>9}  {bar}");
        text.push_str(line.trim_end());
        text.push('\n');
    }
}

/// Returns the lines of the help.
pub fn help() -> Vec<String> {
    let keys = [
        ("q, Ctrl-C", "quit"),
        ("h, ?", "this help"),
        ("< >", "sort by the next column to the left or right"),
        ("r, R", "reverse the order"),
        ("t", "order of the stack: doors on top, parts below their users"),
        ("i", "hide or show parts without calls"),
        ("s, d", "set the interval, such as 500ms or 2"),
        ("space", "pause, and continue"),
        ("↑ ↓ j k", "select a part; also page up and down, home, end"),
        ("enter, →", "details of the selected part: calls, latencies, status"),
        ("z", "count the latencies of the details from now on"),
        ("Ctrl-Z", "suspend"),
    ];
    let mut lines = vec!["keys".to_owned()];
    lines.extend(keys.map(|(key, does)| format!("  {key:<10} {does}")));
    lines.push(String::new());
    lines.push("columns".to_owned());
    lines.extend(COLUMNS.map(|column| format!("  {:<10} {}", column.title, column.help)));
    lines.push("  A narrow terminal shows the most important ones.".to_owned());
    lines
}

/// Returns the table as plain text.
pub fn plain_table(rows: &[super::rows::Row]) -> String {
    let has_fullness = rows.iter().any(|row| row.fullness.is_some());
    let columns = || COLUMNS.iter().filter(|column| has_fullness || column.title != "full");
    let mut grid = Grid::default();
    let titles = columns().map(|column| Cell::Figure(column.title.to_owned()));
    grid.push(
        [Cell::Word("part".to_owned()), Cell::Word("kind".to_owned())].into_iter().chain(titles).collect(),
    );
    for row in rows.iter().filter(|row| !row.is_repeated) {
        let figures = columns().map(|column| match (column.figure)(row) {
            Some(figure) => Cell::Figure((column.text)(figure)),
            None => Cell::Nothing,
        });
        let words = [Cell::Word(shown_name(row)), Cell::Word(plain(&row.kind))];
        grid.push(words.into_iter().chain(figures).collect());
    }
    let mut text = String::new();
    grid.write(0, &mut text);
    text
}
