//! Rows of `siltstone top`: two successive answers of a server become one line for each door and part, in the
//! order in which the stack is drawn. Nothing here waits.

use super::sample::{Counts, PartCalls, Sample, growth};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// Limit of the parts and doors that are shown; also bounds the depth of the tree.
const MAX_ROWS: usize = 500;

/// A door, or a part.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// Name, not made plain.
    pub name: String,
    /// Whether it is a door; else a device or zones.
    pub is_door: bool,
    /// Kind, not made plain.
    pub kind: String,
    /// Lines of the tree before the name.
    pub branch: String,
    /// Number of parts above it.
    pub depth: usize,
    /// Whether another user has shown it above: it is shown again, without figures.
    pub is_repeated: bool,
    /// Calls in flight; `None` for a door whose calls aren't counted.
    pub in_flight: Option<u64>,
    /// Rates; `None` without an earlier answer to compare with.
    pub rates: Option<Rates>,
    /// Fullness; `None` for a part without a limit.
    pub fullness: Option<Fullness>,
}

/// Growth of the counts of a part, for each second.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Rates {
    /// Reads.
    pub reads: f64,
    /// Writes and appends.
    pub writes: f64,
    /// Other calls, such as flushes and discards.
    pub others: f64,
    /// Bytes of the reads.
    pub read_bytes: f64,
    /// Bytes of the writes.
    pub write_bytes: f64,
    /// Failed calls of all kinds.
    pub errors: f64,
    /// Mean number of calls in flight, by Little's law, from the latencies of calls that succeeded.
    pub queue: f64,
    /// Median of the latencies of reads and writes, in nanoseconds; `None` if there were none.
    pub p50: Option<u64>,
    /// 99th percentile of them.
    pub p99: Option<u64>,
}

/// Fullness of a part.
#[derive(Debug, Clone, PartialEq)]
pub struct Fullness {
    /// Used share of the limit, in percent.
    pub percent: f64,
    /// Highest warning level that is reached, such as `80%`.
    pub warned_at: Option<String>,
}

/// Whether the calls with this name write data.
fn is_write(call: &str) -> bool {
    matches!(call, "write" | "write_fua" | "append")
}

impl Rates {
    fn new(calls: &BTreeMap<String, Counts>, seconds: f64) -> Rates {
        let mut rates = Rates::default();
        let mut data = Counts::default();
        for (call, counts) in calls {
            let operations = counts.operations as f64 / seconds;
            let bytes = counts.bytes as f64 / seconds;
            match call.as_str() {
                "read" => (rates.reads, rates.read_bytes) = (operations, bytes),
                write if is_write(write) => {
                    rates.writes += operations;
                    rates.write_bytes += bytes;
                }
                _ => rates.others += operations,
            }
            if call == "read" || is_write(call) {
                data.add(counts);
            }
            rates.errors += counts.errors as f64 / seconds;
            rates.queue += counts.latency_sum_ns as f64 / 1e9 / seconds;
        }
        (rates.p50, rates.p99) = (data.quantile(0.5), data.quantile(0.99));
        rates
    }

    fn add(&mut self, other: &Rates) {
        self.reads += other.reads;
        self.writes += other.writes;
        self.others += other.others;
        self.read_bytes += other.read_bytes;
        self.write_bytes += other.write_bytes;
        self.errors += other.errors;
        self.queue += other.queue;
    }

    /// Whether there was no call.
    pub fn is_idle(&self) -> bool {
        self.reads + self.writes + self.others + self.errors == 0.0
    }
}

impl Fullness {
    fn of(status: &Value) -> Option<Fullness> {
        let fullness = status.get("fullness")?;
        let percent = fullness.get("percent").and_then(Value::as_f64);
        let warned_at = fullness.get("warned_at").and_then(Value::as_str).map(str::to_owned);
        Some(Fullness { percent: percent.filter(|percent| percent.is_finite())?, warned_at })
    }
}

impl Row {
    /// Returns the row as JSON, without its place in the tree but the depth.
    pub fn to_json(&self) -> Value {
        let mut object = json!({
            "name": self.name, "door": self.is_door, "kind": self.kind, "depth": self.depth, "in_flight": self.in_flight,
        });
        let rates = self.rates.map(|rates| {
            json!({
                "reads_per_second": rates.reads, "writes_per_second": rates.writes,
                "others_per_second": rates.others, "read_bytes_per_second": rates.read_bytes,
                "write_bytes_per_second": rates.write_bytes, "errors_per_second": rates.errors,
                "queue_mean": rates.queue, "p50_ns": rates.p50, "p99_ns": rates.p99,
            })
        });
        if let (Some(object), Some(Value::Object(rates))) = (object.as_object_mut(), rates) {
            object.extend(rates);
        }
        object["full_percent"] = json!(self.fullness.as_ref().map(|fullness| fullness.percent));
        object
    }
}

/// Returns the rows: doors first, parts below their users. A part with several users has its figures where it
/// is drawn first. Without an earlier answer, or after a restart of the server, rows have no rates.
pub fn rows(before: Option<&Sample>, after: &Sample) -> Vec<Row> {
    let mut tree = Tree {
        before: before.filter(|before| after.continues(before)),
        after,
        drawn: BTreeSet::new(),
        rows: Vec::new(),
    };
    let doors = after.status.get("doors").and_then(Value::as_object);
    let mut roots: Vec<(&str, bool)> =
        doors.into_iter().flatten().map(|(name, _)| (name.as_str(), true)).collect();
    let counted = after.parts.iter().filter_map(|calls| calls.door.as_deref());
    for door in counted {
        if !roots.contains(&(door, true)) {
            roots.push((door, true));
        }
    }
    let used: BTreeSet<&str> =
        after.parts.iter().flat_map(|calls| &calls.below).map(String::as_str).collect();
    let parts =
        || after.parts.iter().filter(|calls| calls.door.is_none()).map(|calls| calls.part.as_str()).rev();
    roots.extend(parts().filter(|part| !used.contains(part)).map(|part| (part, false)));
    for (name, is_door) in roots {
        tree.draw(name, is_door, 0, "", "");
    }
    // Parts that only use each other, which no stack has.
    for part in parts() {
        if !tree.drawn.contains(&(false, part)) {
            tree.draw(part, false, 0, "", "");
        }
    }
    tree.rows
}

/// Returns the sum of the rates of doors, or of the parts on top of a stack without doors.
pub fn total(rows: &[Row]) -> Rates {
    let has_doors = rows.iter().any(|row| row.is_door && row.rates.is_some());
    let mut sum = Rates::default();
    for row in rows.iter().filter(|row| row.depth == 0 && row.is_door == has_doors) {
        sum.add(&row.rates.unwrap_or_default());
    }
    sum
}

struct Tree<'a> {
    before: Option<&'a Sample>,
    after: &'a Sample,
    drawn: BTreeSet<(bool, &'a str)>,
    rows: Vec<Row>,
}

impl<'a> Tree<'a> {
    /// Draws a part and all below it. Recurses as deep as there are rows, which are limited.
    fn draw(&mut self, name: &'a str, is_door: bool, depth: usize, branch: &str, below_branch: &str) {
        if self.rows.len() >= MAX_ROWS {
            return;
        }
        let is_repeated = !self.drawn.insert((is_door, name));
        self.rows.push(self.row(name, is_door, depth, branch, is_repeated));
        if is_repeated {
            return;
        }
        let mut below: Vec<&str> = Vec::new();
        let after = self.after;
        for part in
            after.parts.iter().filter(|calls| is_of(calls, name, is_door)).flat_map(|calls| &calls.below)
        {
            if !below.contains(&part.as_str()) {
                below.push(part);
            }
        }
        for (index, part) in below.iter().enumerate() {
            let (this, next) = if index + 1 == below.len() { ("└─", "  ") } else { ("├─", "│ ") };
            self.draw(
                part,
                false,
                depth + 1,
                &format!("{below_branch}{this}"),
                &format!("{below_branch}{next}"),
            );
        }
    }

    fn row(&self, name: &str, is_door: bool, depth: usize, branch: &str, is_repeated: bool) -> Row {
        let found = self.after.parts.iter().find(|calls| is_of(calls, name, is_door));
        let status = status_of(&self.after.status, name, is_door);
        let kind = match found {
            Some(calls) => Some(calls.kind.as_str()),
            None => status.and_then(|status| status.get("kind")?.as_str()),
        };
        let mut row = Row {
            name: name.to_owned(),
            is_door,
            kind: kind.unwrap_or("?").to_owned(),
            branch: branch.to_owned(),
            depth,
            is_repeated,
            in_flight: None,
            rates: None,
            fullness: None,
        };
        if is_repeated {
            return row;
        }
        row.fullness = status.and_then(Fullness::of);
        if found.is_some() {
            let now = self.after.calls(name, is_door);
            row.in_flight = Some(now.values().fold(0, |sum, counts| sum.saturating_add(counts.in_flight)));
            row.rates = self.before.and_then(|before| {
                let seconds = (self.after.nanoseconds - before.nanoseconds) as f64 / 1e9;
                Some(Rates::new(&growth(&before.calls(name, is_door), &now)?, seconds))
            });
        }
        row
    }
}

/// Whether these are calls of this door, or of all users to this part.
fn is_of(calls: &PartCalls, name: &str, is_door: bool) -> bool {
    match &calls.door {
        Some(door) => is_door && door == name,
        None => !is_door && calls.part == name,
    }
}

/// Returns the status of a door or a part.
pub fn status_of<'a>(status: &'a Map<String, Value>, name: &str, is_door: bool) -> Option<&'a Value> {
    let sections: &[&str] = if is_door { &["doors"] } else { &["devices", "zones"] };
    sections.iter().find_map(|section| status.get(*section)?.get(name))
}

#[cfg(test)]
mod tests;
