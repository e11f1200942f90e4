//! `[published.NAME]`: published figures of others about a subject, shown beside the measurements.

use super::reader::{Entry, Reader, find, option_of};
use crate::job_file::number::{self, Units};
use crate::results::Figure;

/// Published figures of a subject.
#[derive(Debug, Clone, PartialEq)]
pub struct Published {
    /// Name of the subject in the plan.
    pub subject: String,
    /// Workload, or the section of a matrix; `None`: every workload of the subject.
    pub workload: Option<String>,
    /// Figures: operations per second, bytes per second, nanoseconds.
    pub figures: Vec<(Figure, f64)>,
}

/// Figures that can be compared with published ones, by the key.
const FIGURES: &[(&str, Figure)] =
    &[("iops", Figure::Iops), ("bandwidth", Figure::Bandwidth), ("p50", Figure::P50), ("p99", Figure::P99)];

pub(super) fn published(reader: &mut Reader, entry: &Entry) -> Option<Published> {
    let entries = reader.table(entry);
    let what = format!("[published.{}]", entry.key.value);
    let mut known: Vec<&str> = FIGURES.iter().map(|(key, _)| *key).collect();
    known.push("workload");
    reader.check_keys(&what, entries, &known);
    let mut figures = Vec::new();
    for (key, figure) in FIGURES {
        let Some(found) = find(entries, key) else { continue };
        let text = option_of(&found.value.value).unwrap_or_default();
        let value = match figure {
            Figure::Iops => number::count(&text),
            Figure::Bandwidth => number::bytes(&text, Units::Iec),
            _ => number::time(&text).map(|time| time.as_nanos() as u64),
        };
        match value {
            Ok(value) if value > 0 => figures.push((*figure, value as f64)),
            Ok(_) => reader.refuse(&found.value.span, format!("{key} = {text}: expected more than 0")),
            Err(message) => reader.refuse(&found.value.span, format!("{key} = {message}")),
        }
    }
    if figures.is_empty() {
        reader.refuse(&entry.key.span, format!("{what}: expected a figure, such as iops = 180000"));
        return None;
    }
    Some(Published { subject: entry.key.value.clone(), workload: reader.text(entries, "workload"), figures })
}
