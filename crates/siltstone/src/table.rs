//! JSON as text for operators: keys and values, and objects with the same keys as a table.
//!
//! A key determines the unit of its number: `…_ns` and values inside it are times; `bytes`, `…_bytes`,
//! `bytes_…` and `…_size` are bytes; all others are plain numbers. Texts may come from a medium, so control
//! characters, which could affect a terminal, are replaced.

use bench::table::{Cell, Grid};
use bench::units;
use serde_json::{Map, Value};
use std::fmt::Write;

/// Limit of the shown elements of a list of lists.
const MAX_LISTED: usize = 50;

/// Returns the cell of a value under its key.
pub fn cell(key: &str, value: &Value) -> Cell {
    match value {
        Value::Null => Cell::Nothing,
        Value::Number(_) => Cell::Figure(figure(key, value)),
        _ => Cell::Word(figure(key, value)),
    }
}

/// Writes a heading and an object below it, with an empty line before it unless it is the first.
pub fn section(out: &mut String, heading: &str, object: &Map<String, Value>) {
    if !out.is_empty() {
        out.push('\n');
    }
    let _ = writeln!(out, "{heading}");
    self::object(out, 2, object);
}

/// Writes an object: plain values first, then nested ones.
pub fn object(out: &mut String, indent: usize, object: &Map<String, Value>) {
    let mut plain_values = Grid::default();
    for (key, value) in object.iter().filter(|(_, value)| is_plain(value)) {
        // One value per line needs no alignment to the right.
        plain_values.push(vec![Cell::Word(plain(key)), Cell::Word(figure(key, value))]);
    }
    plain_values.write(indent, out);
    let inside: Vec<(&String, &Value)> = object.iter().filter(|(_, value)| !is_plain(value)).collect();
    let inner: Vec<(&str, &Map<String, Value>)> =
        inside.iter().filter_map(|(key, value)| Some((key.as_str(), value.as_object()?))).collect();
    match is_table(&inner) {
        true => rows(out, indent, inner.iter().map(|(key, row)| (Some(*key), *row))),
        false => {
            for (key, value) in inner {
                let _ = writeln!(out, "{:indent$}{}", "", plain(key));
                self::object(out, indent + 2, value);
            }
        }
    }
    for (key, value) in inside {
        let Value::Array(list) = value else { continue };
        let _ = writeln!(out, "{:indent$}{}", "", plain(key));
        self::list(out, indent + 2, list);
    }
}

fn list(out: &mut String, indent: usize, list: &[Value]) {
    if list.iter().all(Value::is_object) {
        return rows(out, indent, list.iter().filter_map(Value::as_object).map(|row| (None, row)));
    }
    for value in list.iter().take(MAX_LISTED) {
        let _ = writeln!(out, "{:indent$}{}", "", plain(&value.to_string()));
    }
    if list.len() > MAX_LISTED {
        let _ = writeln!(out, "{:indent$}… {} more", "", list.len() - MAX_LISTED);
    }
}

/// Formats objects as rows, with a column for each key that one of them has.
pub fn rows<'a>(
    out: &mut String,
    indent: usize,
    objects: impl Iterator<Item = (Option<&'a str>, &'a Map<String, Value>)>,
) {
    let objects: Vec<_> = objects.map(|(name, object)| (name, flat(object))).collect();
    let has_names = objects.iter().any(|(name, _)| name.is_some());
    let mut columns: Vec<&str> = Vec::new();
    for (_, object) in &objects {
        for (key, _) in object {
            if !columns.contains(&key.as_str()) {
                columns.push(key);
            }
        }
    }
    let mut table = Grid::default();
    let name = |word: &str| Cell::Word(plain(word));
    let heading = columns.iter().map(|column| name(column));
    table.push(has_names.then(|| name("")).into_iter().chain(heading).collect());
    for (row, object) in &objects {
        let cell = |column: &&str| {
            let found = object.iter().find(|(key, _)| key == column);
            found.map_or(Cell::Nothing, |(_, cell)| cell.clone())
        };
        table.push(row.map(name).into_iter().chain(columns.iter().map(cell)).collect());
    }
    table.write(indent, out);
}

/// Returns the keys and cells of an object and of the objects in it. A nested key is shown alone if it is
/// unambiguous.
fn flat(object: &Map<String, Value>) -> Vec<(String, Cell)> {
    let mut cells: Vec<(String, Cell)> = Vec::new();
    for (key, value) in object {
        match value {
            Value::Object(inner) => {
                for (inner_key, value) in inner {
                    let is_taken =
                        object.contains_key(inner_key) || cells.iter().any(|(key, _)| key == inner_key);
                    let name = if is_taken { format!("{key}.{inner_key}") } else { inner_key.clone() };
                    let meaning = if key.ends_with("_ns") { key } else { inner_key };
                    cells.push((name, self::cell(meaning, value)));
                }
            }
            _ => cells.push((key.clone(), self::cell(key, value))),
        }
    }
    cells
}

/// Whether objects are similar and flat enough to be rows of one table.
fn is_table(objects: &[(&str, &Map<String, Value>)]) -> bool {
    let [(_, first), _, ..] = objects else { return false };
    let is_shallow = |object: &Map<String, Value>| {
        let is_row = |value: &Value| {
            is_plain(value) || value.as_object().is_some_and(|inner| inner.values().all(is_plain))
        };
        object.values().all(is_row)
    };
    let is_alike = |object: &Map<String, Value>| object.keys().any(|key| first.contains_key(key));
    objects.iter().all(|(_, object)| is_shallow(object) && is_alike(object))
}

/// Whether a value fits on one line: anything but objects with keys, and lists of lists or objects.
fn is_plain(value: &Value) -> bool {
    match value {
        Value::Object(inner) => inner.is_empty(),
        Value::Array(list) => list.iter().all(|value| !value.is_object() && !value.is_array()),
        _ => true,
    }
}

fn figure(key: &str, value: &Value) -> String {
    let is_bytes =
        key == "bytes" || key.ends_with("_bytes") || key.starts_with("bytes_") || key.ends_with("_size");
    match (value, value.as_f64()) {
        (_, Some(number)) if key.ends_with("_ns") => units::nanoseconds(number),
        (_, Some(number)) if is_bytes => units::bytes(number),
        (Value::Null, _) => "-".into(),
        (Value::Array(list), _) if list.is_empty() => "-".into(),
        (Value::Object(inner), _) if inner.is_empty() => "-".into(),
        (Value::String(text), _) => plain(text),
        (Value::Array(list), _) => list.iter().map(|value| figure(key, value)).collect::<Vec<_>>().join(", "),
        (Value::Object(_), _) => plain(&value.to_string()),
        _ => value.to_string(),
    }
}

/// Replaces the control characters of a text by `?`.
pub fn plain(text: &str) -> String {
    text.chars().map(|letter| if letter.is_control() { '?' } else { letter }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn shown(value: &Value) -> String {
        let mut out = String::new();
        object(&mut out, 0, value.as_object().unwrap());
        out
    }

    #[test]
    fn plain_values_come_first() {
        let value = json!({
            "inside": { "free": 3, "policy": "greedy" },
            "bytes_unique": 1536, "wait_ns": 1500, "ratio": 0.5, "list": [1, 2], "none": null, "empty": {}, "on": true,
        });
        let expected = "bytes_unique  1.50 KiB\nwait_ns       1.50 µs\nratio         0.5\nlist          1, 2\n\
                        none          -\nempty         -\non            true\ninside\n  free    3\n  policy  greedy\n";
        assert_eq!(shown(&value), expected);
    }

    #[test]
    fn objects_alike_are_rows() {
        let value = json!({ "a": { "n": 1, "bytes": 4096 }, "long": { "n": 100 } });
        assert_eq!(shown(&value), "        n  bytes\na       1  4 KiB\nlong  100      -\n");
        let value =
            json!({ "rules": [{ "text": "read error", "injected": 2 }, { "text": "x", "injected": 10 }] });
        assert_eq!(
            shown(&value),
            "rules\n  text        injected\n  read error         2\n  x                 10\n"
        );
        let value = json!({ "a": { "n": 1 }, "b": { "m": 1 } });
        assert_eq!(shown(&value), "a\n  n  1\nb\n  m  1\n", "nothing in common");
    }

    #[test]
    fn keys_inside_are_told_apart() {
        let value =
            json!({ "r": { "read_ns": { "max": 1 }, "write_ns": { "max": 2 } }, "s": { "read_ns": 3 } });
        assert_eq!(
            shown(&value),
            "    max  write_ns.max  read_ns\nr  1 ns          2 ns        -\ns     -             -     3 ns\n"
        );
    }

    #[test]
    fn terminals_are_left_alone() {
        let text = shown(&json!({ "name\u{1b}": "\u{1b}[2J\r", "list": [["\u{7}"]] }));
        assert!(!text.chars().any(|letter| letter.is_control() && letter != '\n'), "{text:?}");
    }

    #[test]
    fn long_lists_are_cut() {
        let text = shown(&json!({ "ranges": (0..60).map(|n| json!([n, 1])).collect::<Vec<_>>() }));
        assert!(text.lines().count() == 52 && text.ends_with("… 10 more\n"), "{text}");
    }
}
