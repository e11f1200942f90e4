//! `siltstone dump`: contents of a log device's disk.

use crate::arguments;
use crate::failure::Failure;
use crate::lifted;
use crate::output::{print, print_json};
use crate::table;
use block::ZoneIndex;
use serde_json::{Map, Value};

/// Shows the contents.
///
/// # Errors
/// A wrong stack, part or zone; a served stack; a disk without a log.
pub fn dump(arguments: &arguments::Dump) -> Result<(), Failure> {
    let (stack, part, zone) = (&arguments.stack, arguments.part.as_deref(), arguments.zone);
    let value = lifted::with_zones(stack, part, arguments.writable, async move |zones, home| {
        log::dump::dump(zones, home, zone.map(ZoneIndex)).await
    })?;
    if arguments.json { print_json(&value) } else { print(&page(value)) }
}

/// Formats as tables: rows for roots, versions, zones and records, and everything else above them.
fn page(mut value: Value) -> String {
    let mut out = String::new();
    let mut take = |key: &str| value.as_object_mut().and_then(|object| object.remove(key));
    let lists = ["roots", "versions", "zone_list", "records"].map(|key| (key, take(key)));
    let (directory, home, tail) = (take("directory"), take("home"), take("tail"));
    if let Some(object) = value.as_object() {
        table::section(&mut out, "log", object);
    }
    for (heading, part) in [("directory", directory), ("map's home", home), ("tail", tail)] {
        if let Some(object) = part.as_ref().and_then(Value::as_object) {
            table::section(&mut out, heading, object);
        }
    }
    for (key, list) in lists {
        let Some(Value::Array(rows)) = list else { continue };
        let rows: Vec<Value> = rows.into_iter().map(row).collect();
        out.push('\n');
        let heading = if key == "zone_list" { "zones" } else { key };
        table::object(&mut out, 0, &Map::from_iter([(heading.to_owned(), Value::Array(rows))]));
    }
    out
}

/// Returns a row without the values that contain lists; JSON has them.
fn row(mut value: Value) -> Value {
    if let Some(object) = value.as_object_mut() {
        object.remove("directory");
        object.remove("boundaries");
        if let Some(entries) = object.remove("entries") {
            object.insert("entries".to_owned(), entries_in_words(&entries).into());
        }
    }
    value
}

fn entries_in_words(entries: &Value) -> String {
    /// Limit of listed values; further ones are counted.
    const MAX: usize = 8;
    let Some(list) = entries.as_array() else { return table::plain(&entries.to_string()) };
    let mut words: Vec<String> = list.iter().take(MAX).map(entry_in_words).collect();
    if list.len() > MAX {
        words.push(format!("… {} more", list.len() - MAX));
    }
    words.join(", ")
}

fn entry_in_words(entry: &Value) -> String {
    let number = |key: &str| entry[key].as_u64().unwrap_or(0);
    let range = || {
        let version =
            if number("version") == 1 { String::new() } else { format!(" of {}", number("version")) };
        match number("count") {
            0 | 1 => format!("{}{version}", number("block")),
            count => format!("{}+{count}{version}", number("block")),
        }
    };
    match entry["change"].as_str() {
        Some("move") => {
            let from = &entry["from"];
            format!("move {} from {}/{}", range(), from["zone"], from["block"])
        }
        Some("create") => {
            let name = entry["name"].as_str().unwrap_or("?");
            format!("create {} \"{}\" of {}", number("version"), table::plain(name), number("parent"))
        }
        Some("delete") => format!("delete {}", number("version")),
        Some("grow") => format!("grow {} to {}", number("version"), number("blocks")),
        Some(change) => format!("{change} {}", range()),
        None => format!("page {} of {}", number("page"), number("version")),
    }
}
