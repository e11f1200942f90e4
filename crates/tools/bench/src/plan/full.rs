//! `[full]`: changes of a plan for a full run with the settings of the figures' source.
//!
//! It has the plan's own sections and, in them, only the keys that change: `[full.workload.randwrite] runtime
//! = "5m"`. It is always parsed and checked, even if it isn't used. Names that the plan doesn't have are
//! refused: a full run only changes runs of the plan.

use super::reader::{Entry, Reader, find};
use stack::{At, RawValue, did_you_mean};

/// Sections with named entries.
const NAMED: &[&str] = &["stack", "workload", "peer", "server", "table"];

/// Returns the plan with `[full]` applied.
pub(super) fn laid_over(reader: &mut Reader, document: &[Entry], full: &Entry) -> Vec<Entry> {
    let sections = reader.table(full);
    reader.check_keys("[full]", sections, &[&["plan"], NAMED].concat());
    let mut document = document.to_vec();
    for section in sections {
        let changes = reader.table(section);
        let name = section.key.value.as_str();
        if name == "plan" && find(&document, name).is_none() {
            let value = At::new(RawValue::Table(Vec::new()), section.value.span.clone());
            document.push(Entry { key: section.key.clone(), value });
        }
        let Some(found) = document.iter_mut().find(|entry| entry.key.value == name) else {
            reader.refuse(&section.key.span, format!("[full.{name}]: the plan has no [{name}] to change"));
            continue;
        };
        let RawValue::Table(entries) = &mut found.value.value else { continue };
        if !NAMED.contains(&name) {
            lay_over(entries, changes);
            continue;
        }
        for change in changes {
            let keys = reader.table(change);
            let known: Vec<String> = entries.iter().map(|entry| entry.key.value.clone()).collect();
            let found = entries.iter_mut().find(|entry| entry.key.value == change.key.value);
            match found.map(|entry| &mut entry.value.value) {
                Some(RawValue::Table(entries)) => lay_over(entries, keys),
                Some(_) => {}
                None => {
                    let key = &change.key;
                    let near = did_you_mean(&key.value, known.iter().map(String::as_str));
                    let (key, span, known) = (&key.value, &key.span, known.join(", "));
                    reader.refuse(
                        span,
                        format!("[full.{name}]: the plan has no {name} \"{key}\"{near} (known: {known})"),
                    );
                }
            }
        }
    }
    document
}

fn lay_over(entries: &mut Vec<Entry>, changes: &[Entry]) {
    for change in changes {
        match entries.iter_mut().find(|entry| entry.key.value == change.key.value) {
            Some(entry) => *entry = change.clone(),
            None => entries.push(change.clone()),
        }
    }
}
