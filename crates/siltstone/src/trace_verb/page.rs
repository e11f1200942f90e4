//! Lines of a trace, and its summary.

use crate::output::counted;
use crate::table::plain;
use bench::table::{Cell, Grid};
use bench::units;
use runtime::histogram::Histogram;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Most rows of the summary; the names come from the server.
const MAX_ROWS: usize = 100;

const HEADING: [&str; 9] =
    ["TIME", "DOOR", "CLIENT", "PART", "CALL", "POSITION", "BYTES", "LATENCY", "ERROR"];
/// Columns that are aligned to the right.
const FIGURES: [bool; 9] = [false, false, false, false, false, false, true, true, false];
/// Widths of the columns before the first line; `write_zeroes` is the longest call. The last one has none.
const WIDTHS: [usize; 9] = [15, 8, 25, 8, 12, 14, 8, 7, 0];
/// Width above which a column isn't widened.
const MAX_WIDTH: usize = 60;

/// Lines of a trace.
pub struct Page {
    widths: [usize; 9],
    /// Calls by door or part and by kind of call.
    calls: BTreeMap<(String, String), Calls>,
    /// Number of calls that were lost.
    pub lost: u64,
    count: u64,
}

#[derive(Default)]
struct Calls {
    latency: Histogram<5>,
    errors: u64,
}

impl Default for Page {
    fn default() -> Self {
        Page { widths: WIDTHS, calls: BTreeMap::new(), lost: 0, count: 0 }
    }
}

impl Page {
    /// Returns the heading of the lines.
    pub fn heading(&self) -> String {
        let mut text = String::new();
        self.put(&HEADING.map(str::to_owned), &mut text);
        text
    }

    /// Adds the line of a call, after another heading if it needs wider columns.
    pub fn line(&mut self, event: &Value, text: &mut String) {
        let name = |key: &str| event[key].as_str().map_or_else(|| "-".to_owned(), plain);
        let number = |key: &str| event[key].as_u64();
        let position = match (number("block"), number("zone"), number("offset")) {
            (Some(block), ..) => format!("block {block}"),
            (None, Some(zone), Some(offset)) => format!("{zone}:{offset}"),
            (None, Some(zone), None) => format!("zone {zone}"),
            (None, None, _) => "-".to_owned(),
        };
        let figure = |key: &str, format: fn(f64) -> String| match number(key) {
            Some(number) if number > 0 => format(number as f64),
            _ => "-".to_owned(),
        };
        let error = match event["errno"].as_i64().and_then(|errno| i32::try_from(errno).ok()) {
            None | Some(0) => "-".to_owned(),
            Some(errno) => std::io::Error::from_raw_os_error(errno).to_string(),
        };
        let cells = [
            time_of_day(number("time_ns").unwrap_or(0)),
            name("door"),
            name("client"),
            name("part"),
            name("call"),
            position,
            figure("bytes", units::bytes),
            figure("took_ns", units::nanoseconds),
            error,
        ];
        if self.widen(&cells) {
            text.push_str(&self.heading());
        }
        self.put(&cells, text);
    }

    /// Makes the columns wide enough for these cells; returns whether any became wider.
    fn widen(&mut self, cells: &[String; 9]) -> bool {
        let before = self.widths;
        for (cell, width) in cells[..8].iter().zip(&mut self.widths) {
            *width = (*width).max(cell.chars().count().min(MAX_WIDTH));
        }
        self.widths != before
    }

    fn put(&self, cells: &[String; 9], text: &mut String) {
        let mut line = String::new();
        for ((cell, width), is_figure) in cells.iter().zip(self.widths).zip(FIGURES) {
            let gap = if line.is_empty() { "" } else { "  " };
            let _ = match is_figure {
                true => write!(line, "{gap}{cell:>width$}"),
                false => write!(line, "{gap}{cell:<width$}"),
            };
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }

    /// Counts a call for the summary.
    pub fn count(&mut self, event: &Value) {
        self.count += 1;
        let name = |key: &str| event[key].as_str();
        let whose = match (name("door"), name("part")) {
            (Some(door), _) => format!("door \"{}\"", plain(door)),
            (None, part) => format!("part \"{}\"", plain(part.unwrap_or("-"))),
        };
        let key = (whose, plain(name("call").unwrap_or("-")));
        if self.calls.len() >= MAX_ROWS && !self.calls.contains_key(&key) {
            return;
        }
        let calls = self.calls.entry(key).or_default();
        match event["errno"].as_i64() {
            None | Some(0) => calls.latency.record(event["took_ns"].as_u64().unwrap_or(0)),
            Some(_) => calls.errors += 1,
        }
    }

    /// Returns the numbers of calls, and their latencies by door or part.
    pub fn summary(&self) -> String {
        let mut text = counted(self.count, "call", "calls");
        if self.lost > 0 {
            let _ = write!(text, ", and {} lost", self.lost);
        }
        text.push('\n');
        let mut grid = Grid::new(&["", "", "calls", "errors", "p50", "p99", "max"]);
        for ((whose, call), calls) in &self.calls {
            let number = |number: u64| Cell::Figure(number.to_string());
            let latency = |value: u64| match calls.latency.count() {
                0 => Cell::Nothing,
                _ => Cell::Figure(units::nanoseconds(value as f64)),
            };
            grid.push(vec![
                Cell::Word(whose.clone()),
                Cell::Word(call.clone()),
                number(calls.latency.count() + calls.errors),
                number(calls.errors),
                latency(calls.latency.quantile(0.5)),
                latency(calls.latency.quantile(0.99)),
                latency(calls.latency.largest()),
            ]);
        }
        if self.count > 0 {
            grid.write(2, &mut text);
        }
        text.trim_end().to_owned()
    }
}

/// Formats the time of day, UTC, of a time in nanoseconds since 1970: `19:05:27.123456`.
fn time_of_day(nanoseconds: u64) -> String {
    let (seconds, rest) = (nanoseconds / 1_000_000_000 % 86_400, nanoseconds % 1_000_000_000);
    format!("{:02}:{:02}:{:02}.{:06}", seconds / 3600, seconds % 3600 / 60, seconds % 60, rest / 1000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn lines_are_aligned_and_plain() {
        let mut page = Page::default();
        let mut text = page.heading();
        let events = [
            json!({ "time_ns": 1_795_234_546_123_456_789_u64, "door": "vol", "client": "process 4711 (qemu)", "part": "disk",
                "call": "read", "block": 12, "bytes": 4096, "took_ns": 81_000, "errno": 0 }),
            json!({ "time_ns": 1, "part": "z\u{1b}[2J", "call": "append", "zone": 3, "offset": 8192, "bytes": 512,
                "took_ns": 1_500_000, "errno": 5 }),
            json!({ "time_ns": 86_400_000_000_001_u64, "part": "z", "call": "flush", "took_ns": 10, "errno": 0, "bytes": 0 }),
        ];
        for event in &events {
            page.count(event);
            page.line(event, &mut text);
        }
        let expected = "\
TIME             DOOR      CLIENT                     PART      CALL          POSITION           BYTES  LATENCY  ERROR
04:15:46.123456  vol       process 4711 (qemu)        disk      read          block 12           4 KiB  81.0 µs  -
00:00:00.000000  -         -                          z?[2J     append        3:8192             512 B  1.50 ms  Input/output error (os error 5)
00:00:00.000000  -         -                          z         flush         -                      -    10 ns  -
";
        assert_eq!(text, expected);
        // A wider cell comes with another heading, above which and below which columns are aligned.
        let long = json!({ "client": "process 4194304 (qemu-system-x86)", "part": "z", "call": "read" });
        let mut text = String::new();
        (0..2).for_each(|_| page.line(&long, &mut text));
        let lines: Vec<&str> = text.lines().collect();
        let columns = |line: &str| ["PART", "z "].iter().find_map(|cell| line.find(cell));
        assert!(lines.len() == 3 && lines[0].starts_with("TIME "), "{text}");
        assert!(lines.iter().all(|line| columns(line) == Some(62)), "{text}");
        page.lost = 7;
        let summary = page.summary();
        assert!(summary.starts_with("3 calls, and 7 lost\n"), "{summary}");
        let rows: Vec<Vec<&str>> =
            summary.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[0], ["calls", "errors", "p50", "p99", "max"]);
        assert_eq!(rows[1][..5], ["door", "\"vol\"", "read", "1", "0"]);
        assert_eq!(rows[2], ["part", "\"z\"", "flush", "1", "0", "10", "ns", "10", "ns", "10", "ns"]);
        assert_eq!(rows[3], ["part", "\"z?[2J\"", "append", "1", "1", "-", "-", "-"]);
    }

    /// A name that is hostile or long neither widens lines without limit nor adds rows.
    #[test]
    fn hostile_names_are_bounded() {
        let mut page = Page::default();
        let mut text = String::new();
        for number in 0..2 * MAX_ROWS {
            let event = json!({ "part": format!("{}\n{number}", "x".repeat(1000)), "call": "read" });
            page.count(&event);
            page.line(&event, &mut text);
        }
        page.line(&json!({ "part": "y", "call": 7 }), &mut text);
        assert_eq!(text.lines().count(), 2 * MAX_ROWS + 2, "one more heading");
        assert!(text.lines().last().unwrap().len() < 250);
        assert_eq!(page.summary().lines().count(), MAX_ROWS + 2);
    }
}
