//! Status of a store as text for operators.

use crate::output::counted;
use bench::table::{Cell, Grid};
use bench::units;
use serde_json::{Map, Value, json};
use stack::format_duration;
use std::fmt::Write;
use std::time::Duration;

type Status = Map<String, Value>;

fn number(status: &Status, name: &str) -> u64 {
    status.get(name).and_then(Value::as_u64).unwrap_or(0)
}

/// Returns the bytes written to the zones: the log, tables, moves, headers and checkpoints.
fn written(status: &Status) -> u64 {
    ["log_bytes", "overhead_bytes", "moved_bytes"].iter().map(|name| number(status, name)).sum()
}

/// Returns the bytes written to the zones per byte that clients wrote; `None` before their first write.
pub fn write_amplification(status: &Status) -> Option<f64> {
    let client = number(status, "client_bytes");
    (client > 0).then(|| written(status) as f64 / client as f64)
}

/// Returns the share of block lookups that hit the cache; `None` before the first lookup.
fn hit_rate(status: &Status) -> Option<f64> {
    let (hits, misses) = (number(status, "cache_hits"), number(status, "cache_misses"));
    (hits + misses > 0).then(|| hits as f64 / (hits + misses) as f64)
}

/// Adds the ratios to a status.
pub fn with_ratios(mut status: Status) -> Status {
    status.insert("write_amplification".into(), json!(write_amplification(&status)));
    status.insert("cache_hit_rate".into(), json!(hit_rate(&status)));
    status
}

fn size(status: &Status, name: &str) -> String {
    units::bytes(number(status, name) as f64)
}

/// Returns the numbers of tables and bytes by level, summed over all shards.
fn levels(status: &Status) -> Vec<(u64, u64)> {
    let mut sums: Vec<(u64, u64)> = Vec::new();
    for shard in status.get("levels").and_then(Value::as_array).into_iter().flatten() {
        for (level, found) in shard.as_array().into_iter().flatten().enumerate() {
            sums.resize(sums.len().max(level + 1), (0, 0));
            let of = |name: &str| found.get(name).and_then(Value::as_u64).unwrap_or(0);
            sums[level] = (sums[level].0 + of("tables"), sums[level].1 + of("bytes"));
        }
    }
    sums
}

/// Describes the promise of deletes, and returns an alarm if it is broken.
fn deletes(promise: &Status) -> (String, Option<String>) {
    let seconds = |name: &str| {
        Duration::from_secs_f64(promise.get(name).and_then(Value::as_f64).unwrap_or(0.0).max(0.0))
    };
    let (overdue, late) = (number(promise, "zones_overdue"), number(promise, "zones_late"));
    let shown = |name: &str| format_duration(Duration::from_millis(seconds(name).as_millis() as u64));
    let (within, longest) = match promise.contains_key("operations") {
        true => (
            counted(number(promise, "operations"), "write", "writes"),
            counted(number(promise, "longest_zone_operations"), "write", "writes"),
        ),
        false => (shown("seconds"), shown("longest_zone_seconds")),
    };
    let mut text = format!("every copy of a deleted key is erased within {within}");
    if !longest.starts_with('0') {
        let _ = write!(text, "; the slowest zone took {longest} of its share");
    }
    let reason = promise.get("reason").and_then(Value::as_str).unwrap_or("");
    let alarm = match (overdue, late) {
        (0, 0) => None,
        (0, late) => Some(format!(
            "{} too late since the store was opened",
            counted(late, "zone was reset", "zones were reset")
        )),
        (overdue, late) => Some(format!(
            "{} overdue: {}{}",
            counted(overdue, "zone is", "zones are"),
            crate::table::plain(reason),
            if late > 0 {
                format!("; {} too late before", counted(late, "zone was reset", "zones were reset"))
            } else {
                String::new()
            }
        )),
    };
    (text, alarm)
}

/// Formats a status.
pub fn page(status: &Status) -> String {
    let mut out = format!(
        "{}: {} in {}, {} ({})\n",
        counted(number(status, "shards"), "shard", "shards"),
        size(status, "table_bytes"),
        counted(number(status, "tables"), "table", "tables"),
        counted(number(status, "entries"), "entry", "entries"),
        counted(number(status, "tombstones"), "tombstone", "tombstones"),
    );
    let levels = levels(status);
    if !levels.is_empty() {
        let mut grid = Grid::new(&["level", "tables", "size"]);
        for (level, (tables, bytes)) in levels.into_iter().enumerate() {
            let row = [level.to_string(), tables.to_string(), units::bytes(bytes as f64)];
            grid.push(row.into_iter().map(Cell::Figure).collect());
        }
        out.push('\n');
        grid.write(0, &mut out);
    }
    out.push_str("\nsince it was opened\n");
    traffic(status).write(2, &mut out);
    out.push('\n');
    let (rows, alarm) = present_state(status);
    rows.write(0, &mut out);
    if let Some(alarm) = alarm {
        let _ = writeln!(out, "\nALARM: {alarm}");
    }
    out
}

/// Traffic since the store was opened.
fn traffic(status: &Status) -> Grid {
    let tables = number(status, "flushed_bytes") + number(status, "written_bytes");
    let mut rows = Grid::default();
    let mut row = |name: &str, text: String| rows.push(vec![Cell::Word(name.to_owned()), Cell::Word(text)]);
    row("written by clients", size(status, "client_bytes"));
    row("log", units::bytes(number(status, "log_bytes").saturating_sub(tables) as f64));
    row("tables from buffers", size(status, "flushed_bytes"));
    row("tables from compaction", {
        let count = number(status, "compactions");
        format!("{} ({})", size(status, "written_bytes"), counted(count, "compaction", "compactions"))
    });
    row("headers and checkpoints", size(status, "overhead_bytes"));
    row("moved by zone reclaim", {
        let zones = number(status, "reset_zones");
        format!("{} ({})", size(status, "moved_bytes"), counted(zones, "zone reset", "zones reset"))
    });
    row(
        "write amplification",
        match write_amplification(status) {
            Some(ratio) => format!("{ratio:.2}"),
            None => "- (clients wrote nothing)".to_owned(),
        },
    );
    row("write stalls", number(status, "stalls").to_string());
    rows
}

/// Memory, zones and deletes, and an alarm if the promise of deletes is broken.
fn present_state(status: &Status) -> (Grid, Option<String>) {
    let mut rows = Grid::default();
    let mut row = |name: &str, text: String| rows.push(vec![Cell::Word(name.to_owned()), Cell::Word(text)]);
    row("write buffers", size(status, "buffer_bytes"));
    row(
        "block cache",
        match hit_rate(status) {
            Some(rate) => format!("{}, {:.1} % of reads", size(status, "cache_bytes"), rate * 100.0),
            None => format!("{}, no reads", size(status, "cache_bytes")),
        },
    );
    let (zones, free, damaged) =
        (number(status, "zones"), number(status, "free_zones"), number(status, "damaged_zones"));
    let damage = if damaged > 0 { format!(", {damaged} damaged") } else { String::new() };
    row("zones", format!("{zones}, {free} free{damage}"));
    row("snapshots", (number(status, "snapshots") / number(status, "shards").max(1)).to_string());
    let mut alarm = None;
    row(
        "deletes",
        match status.get("delete_persistence").and_then(Value::as_object) {
            None => "no promise when deleted keys are erased (delete_persistence isn't set)".to_owned(),
            Some(promise) => {
                let (text, found) = deletes(promise);
                alarm = found;
                text
            }
        },
    );
    (rows, alarm)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Status {
        let status = json!({
            "shards": 2, "tables": 3, "table_bytes": 3145728, "entries": 1000, "tombstones": 1,
            "levels": [[{"tables": 1, "bytes": 1048576}], [{"tables": 0, "bytes": 0}, {"tables": 2, "bytes": 2097152}]],
            "client_bytes": 1048576, "log_bytes": 4194304, "overhead_bytes": 1048576, "moved_bytes": 0,
            "flushed_bytes": 1048576, "written_bytes": 2097152, "compactions": 2, "stalls": 0, "reset_zones": 1,
            "buffer_bytes": 0, "cache_bytes": 4096, "cache_hits": 3, "cache_misses": 1, "snapshots": 2,
            "zones": 32, "free_zones": 20, "damaged_zones": 0,
        });
        status.as_object().unwrap().clone()
    }

    #[test]
    fn a_page() {
        let expected = "\
2 shards: 3 MiB in 3 tables, 1000 entries (1 tombstone)

level  tables   size
    0       1  1 MiB
    1       2  2 MiB

since it was opened
  written by clients       1 MiB
  log                      1 MiB
  tables from buffers      1 MiB
  tables from compaction   2 MiB (2 compactions)
  headers and checkpoints  1 MiB
  moved by zone reclaim    0 B (1 zone reset)
  write amplification      5.00
  write stalls             0

write buffers  0 B
block cache    4 KiB, 75.0 % of reads
zones          32, 20 free
snapshots      1
deletes        no promise when deleted keys are erased (delete_persistence isn't set)
";
        assert_eq!(page(&example()), expected);
    }

    #[test]
    fn an_alarm_says_how_many_zones_and_why() {
        let mut status = example();
        let promise = json!({
            "seconds": 600.0, "zones_overdue": 2, "zones_late": 1, "longest_zone_seconds": 12.5,
            "reason": "a snapshot or an iterator is older than the deadline",
        });
        status.insert("delete_persistence".into(), promise);
        let text = page(&status);
        assert!(
            text.contains("is erased within 10m; the slowest zone took 12500ms of its share\n"),
            "{text}"
        );
        let alarm = "\nALARM: 2 zones are overdue: a snapshot or an iterator is older than the deadline; 1 zone was reset too late before\n";
        assert!(text.ends_with(alarm), "{text}");
    }
}
