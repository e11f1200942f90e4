//! Columns of `siltstone top`: titles, widths, texts, and the choice of those that fit.

use super::rows::Row;
use bench::units;

/// Column beside the name.
#[derive(Debug)]
pub struct Column {
    /// Title, at most as wide as the column.
    pub title: &'static str,
    /// Explanation for the help.
    pub help: &'static str,
    /// Width in characters.
    pub width: usize,
    /// Rank by importance: the largest is left out first.
    rank: u8,
    /// Figure; `None` if the row has none.
    pub figure: fn(&Row) -> Option<f64>,
    /// Text of a figure.
    pub text: fn(f64) -> String,
}

/// A title is that of one column.
impl PartialEq for Column {
    fn eq(&self, other: &Column) -> bool {
        self.title == other.title
    }
}

/// Narrowest name.
const MIN_NAME: usize = 12;
/// Width of the name from which on all columns may be shown.
const COMFORTABLE: usize = 16;

/// All columns, from left to right.
pub const COLUMNS: [Column; 11] = [
    Column {
        title: "r/s",
        help: "reads per second",
        width: 5,
        rank: 0,
        figure: |row| Some(row.rates?.reads),
        text: count,
    },
    Column {
        title: "w/s",
        help: "writes and appends per second",
        width: 5,
        rank: 1,
        figure: |row| Some(row.rates?.writes),
        text: count,
    },
    Column {
        title: "o/s",
        help: "other calls per second: flushes, discards, resets and so on",
        width: 5,
        rank: 9,
        figure: |row| Some(row.rates?.others),
        text: count,
    },
    Column {
        title: "rMiB/s",
        help: "read MiB per second",
        width: 6,
        rank: 5,
        figure: |row| Some(row.rates?.read_bytes),
        text: mebibytes,
    },
    Column {
        title: "wMiB/s",
        help: "written MiB per second",
        width: 6,
        rank: 6,
        figure: |row| Some(row.rates?.write_bytes),
        text: mebibytes,
    },
    Column {
        title: "p50",
        help: "median latency of reads and writes",
        width: 6,
        rank: 7,
        figure: |row| Some(row.rates?.p50? as f64),
        text: time,
    },
    Column {
        title: "p99",
        help: "99th percentile of it",
        width: 6,
        rank: 3,
        figure: |row| Some(row.rates?.p99? as f64),
        text: time,
    },
    Column {
        title: "qd",
        help: "queue depth: calls in flight at the end of the interval",
        width: 4,
        rank: 4,
        figure: |row| Some(row.in_flight? as f64),
        text: count,
    },
    Column {
        title: "aqu",
        help: "mean queue depth in the interval",
        width: 5,
        rank: 10,
        figure: |row| Some(row.rates?.queue),
        text: mean,
    },
    Column {
        title: "err/s",
        help: "failed calls per second",
        width: 5,
        rank: 8,
        figure: |row| Some(row.rates?.errors),
        text: count,
    },
    Column {
        title: "full",
        help: "used share of the space, for parts with a limit",
        width: 4,
        rank: 2,
        figure: |row| Some(row.fullness.as_ref()?.percent),
        text: |percent| format!("{percent:.0}%"),
    },
];

/// Width of a name beside which the kind is shown; longer names are shortened for it.
const GENEROUS: usize = 24;

/// Columns that fit, and the width of the name.
#[derive(Debug)]
pub struct Layout {
    /// Width of the name.
    pub name: usize,
    /// Width of the kind; 0 if it isn't shown.
    pub kind: usize,
    /// Width of the bar of fullness; 0 if it isn't shown.
    pub bar: usize,
    /// Columns, from left to right.
    pub columns: Vec<&'static Column>,
}

/// Chooses the columns for a width. Fullness is shown if a row has it.
pub fn layout(width: usize, rows: &[Row]) -> Layout {
    let has_fullness = rows.iter().any(|row| row.fullness.is_some());
    let mut columns: Vec<&Column> =
        COLUMNS.iter().filter(|column| has_fullness || column.title != "full").collect();
    let taken = |columns: &[&Column]| columns.iter().map(|column| column.width + 1).sum::<usize>();
    let wanted_name = rows.iter().map(|row| shown_name(row).chars().count()).max().unwrap_or(0);
    loop {
        // The least important columns need more space beside them.
        let last = columns.iter().max_by_key(|column| column.rank);
        let needed = match last {
            Some(column) if column.rank >= 8 => wanted_name.clamp(MIN_NAME, COMFORTABLE),
            _ => MIN_NAME,
        };
        let Some(last) = last.filter(|_| taken(&columns) + needed > width) else { break };
        let rank = last.rank;
        columns.retain(|column| column.rank != rank);
    }
    let left = width.saturating_sub(taken(&columns));
    let wanted_kind = rows.iter().map(|row| row.kind.chars().count()).max().unwrap_or(0).clamp(4, 14);
    let kind = if left > wanted_name.min(GENEROUS) + wanted_kind { wanted_kind } else { 0 };
    let left = left - if kind > 0 { kind + 1 } else { 0 };
    let name = wanted_name.max(MIN_NAME).min(left).max(1);
    let bar = if has_fullness && left > name + 6 { (left - name - 1).min(20) } else { 0 };
    Layout { name, kind, bar, columns }
}

/// Returns the name of a row with the lines of the tree before it.
pub fn shown_name(row: &Row) -> String {
    format!("{}{}", row.branch, crate::table::plain(&row.name))
}

/// Shortens a text to a width: a door, whose name is often a path, at its start, if possible at a `/`, and
/// others at their ends.
pub fn shortened(text: &str, width: usize, is_door: bool) -> String {
    let count = text.chars().count();
    if count <= width {
        return text.to_owned();
    }
    let kept = width.saturating_sub(1);
    match is_door {
        true => {
            let end: String = text.chars().skip(count - kept).collect();
            let end = end.find('/').map_or(&end[..], |slash| &end[slash..]);
            "…".chars().chain(end.chars()).take(width).collect()
        }
        false => text.chars().take(kept).chain("…".chars()).take(width).collect(),
    }
}

/// Formats a number in at most 5 characters: `0`, `0.25`, `950`, `1.25k`.
pub fn count(value: f64) -> String {
    units::count(value).replace(' ', "")
}

/// Formats a mean in at most 5 characters.
fn mean(value: f64) -> String {
    if value >= 999.5 { count(value) } else { fixed(value) }
}

/// Formats bytes as MiB in at most 6 characters.
pub fn mebibytes(bytes: f64) -> String {
    let value = bytes / f64::from(1 << 20);
    if value >= 9999.5 { count(value) } else { fixed(value) }
}

/// Formats three digits, at most two of them decimals.
fn fixed(value: f64) -> String {
    match value {
        0.0 => "0".to_owned(),
        value if value < 9.995 => format!("{value:.2}"),
        value if value < 99.95 => format!("{value:.1}"),
        value => format!("{value:.0}"),
    }
}

/// Formats nanoseconds in at most 6 characters: `850ns`, `12.3µs`.
pub fn time(value: f64) -> String {
    units::nanoseconds(value).replace(' ', "")
}
