//! `siltstone snapshot` and `siltstone resize`: messages to a log device, and its answers as tables.
//!
//! The message to the part (`snapshot create NAME`, `resize SIZE`, …) is one line of words. Its answer is a
//! JSON object, which `--json` prints unchanged. The part checks names and sizes.

use crate::arguments::{LogPart, Operated, Resize, SnapshotVerb};
use crate::control::protocol::{Recipient, Request};
use crate::control::reach;
use crate::failure::Failure;
use crate::kinds::registry;
use crate::output::{print, print_line};
use crate::table::{self, cell};
use bench::table::{Cell, Grid};
use bench::units;
use serde_json::{Map, Value};
use stack::{Registry, format_size, parse_size};
use std::fmt::Write;

/// Kind of the parts of these verbs.
const KIND: &str = "log";

/// Runs one of the verbs.
///
/// # Errors
/// A wrong stack, part or name; the part's error.
pub fn snapshot(verb: &SnapshotVerb) -> Result<(), Failure> {
    let (operated, log) = match verb {
        SnapshotVerb::Create { operated, log, .. }
        | SnapshotVerb::List { operated, log }
        | SnapshotVerb::Delete { operated, log, .. }
        | SnapshotVerb::Clone { operated, log, .. }
        | SnapshotVerb::Diff { operated, log, .. } => (operated, log),
    };
    let text = text(verb)?;
    let show = match verb {
        SnapshotVerb::List { .. } => list,
        SnapshotVerb::Diff { .. } => diff,
        _ => done,
    };
    tell(operated, log, text, show)
}

/// Changes the size of a log device.
///
/// # Errors
/// A wrong stack, part or size; the part's error.
pub fn resize(arguments: &Resize) -> Result<(), Failure> {
    let wrong = |error: block::Error| Failure::Usage(format!("SIZE: {}", error.detail()));
    let bytes = parse_size(&arguments.size).map_err(wrong)?;
    tell(&arguments.operated, &arguments.log, format!("resize {bytes}"), done)
}

/// Returns the message to the part.
fn text(verb: &SnapshotVerb) -> Result<String, Failure> {
    let (word, names) = match verb {
        SnapshotVerb::Create { name, .. } => ("create", vec![name]),
        SnapshotVerb::List { .. } => ("list", vec![]),
        SnapshotVerb::Delete { name, .. } => ("delete", vec![name]),
        SnapshotVerb::Clone { name, new, .. } => ("clone", vec![name, new]),
        SnapshotVerb::Diff { name, other, .. } => {
            ("diff", [Some(name), other.as_ref()].into_iter().flatten().collect())
        }
    };
    let mut text = format!("snapshot {word}");
    for name in names {
        // The part would parse it as two names, or none.
        if name.is_empty() || name.contains(|letter: char| letter.is_whitespace() || letter.is_control()) {
            let name = name.escape_debug();
            return Err(Failure::Usage(format!("snapshot \"{name}\": expected a name without spaces")));
        }
        text.push(' ');
        text.push_str(name);
    }
    Ok(text)
}

fn tell(
    operated: &Operated,
    log: &LogPart,
    text: String,
    show: fn(&Map<String, Value>) -> String,
) -> Result<(), Failure> {
    let answer = ask(operated, &registry(), log.part.clone(), text)?;
    if log.json {
        return print_line(&answer);
    }
    let wrong = |what: &str| Failure::World(format!("the part answered {what}: {}", table::plain(&answer)));
    match serde_json::from_str(&answer) {
        Ok(Value::Object(object)) => print(&show(&object)),
        Ok(_) => Err(wrong("something that is no JSON object")),
        Err(_) => Err(wrong("something that is no JSON")),
    }
}

fn ask(
    operated: &Operated,
    registry: &Registry,
    part: Option<String>,
    text: String,
) -> Result<String, Failure> {
    let to = part.map_or_else(|| Recipient::Kind(KIND.into()), Recipient::Part);
    let is_named = matches!(to, Recipient::Part(_));
    let asked = reach::ask(operated, registry, Request::Message { to, text });
    let reached = asked.map_err(|failure| match failure {
        Failure::Usage(said) if !is_named && said.contains("expected the name of one of them") => {
            Failure::Usage(format!("{said}; give it with --part NAME"))
        }
        other => other,
    })?;
    match reached.answer {
        Value::String(answer) => Ok(answer),
        other => Ok(other.to_string()),
    }
}

/// Formats the answer to a completed operation.
fn done(answer: &Map<String, Value>) -> String {
    let mut out = String::new();
    table::object(&mut out, 0, answer);
    if out.is_empty() { "done\n".into() } else { out }
}

fn list(answer: &Map<String, Value>) -> String {
    let Some(snapshots) = answer.get("snapshots").and_then(Value::as_array) else { return done(answer) };
    if snapshots.is_empty() {
        return "no snapshots\n".into();
    }
    let mut table = Grid::new(&["name", "kind", "created", "unique", "parent"]);
    for snapshot in snapshots {
        let created = match snapshot["created"].as_u64() {
            Some(seconds) => Cell::Word(format!("{} UTC", units::date(seconds))),
            None => cell("created", &snapshot["created"]),
        };
        let cell = |key: &str| cell(key, &snapshot[key]);
        table.push(vec![cell("name"), cell("kind"), created, cell("bytes_unique"), cell("parent")]);
    }
    let mut out = String::new();
    table.write(0, &mut out);
    out
}

fn diff(answer: &Map<String, Value>) -> String {
    let ranges = answer.get("ranges").and_then(Value::as_array);
    let (Some(ranges), Some(block_size)) = (ranges, answer.get("block_size").and_then(Value::as_u64)) else {
        return done(answer);
    };
    let mut table = Grid::new(&["first block", "blocks", "bytes"]);
    let mut blocks: u64 = 0;
    for range in ranges {
        let (first, count) = (range[0].as_u64().unwrap_or(0), range[1].as_u64().unwrap_or(0));
        blocks = blocks.saturating_add(count);
        let bytes = units::bytes(count as f64 * block_size as f64);
        table.push([first.to_string(), count.to_string(), bytes].map(Cell::Figure).into());
    }
    let mut out = String::new();
    if !ranges.is_empty() {
        table.write(0, &mut out);
    }
    let bytes = units::bytes(blocks as f64 * block_size as f64);
    let _ = writeln!(
        out,
        "{} {}: {blocks} blocks of {}, {bytes}",
        ranges.len(),
        if ranges.len() == 1 { "range differs" } else { "ranges differ" },
        format_size(block_size)
    );
    out
}

#[cfg(test)]
mod tests;
