//! Output of `siltstone objects` for operators.

use super::objects_of;
use crate::output::counted;
use crate::table::{self, plain};
use bench::units;
use objects::{CheckReport, Collected, Epoch};
use serde_json::{Map, Value};
use std::fmt::Write;

/// Formats a status.
pub fn status(name: &str, mut status: Map<String, Value>) -> String {
    date(&mut status, "written_at");
    if let Some(Value::Object(fenced)) = status.get_mut("fenced") {
        date(fenced, "at");
    }
    let estimate = status.remove("estimate");
    let mut out = String::new();
    table::section(&mut out, &format!("bucket \"{}\"", plain(name)), &status);
    if let Some(Value::Object(estimate)) = estimate {
        let currency = estimate.get("currency").and_then(Value::as_str).unwrap_or_default();
        let costs = estimate.iter().filter_map(|(key, cost)| {
            let text = format!("{:.4} {currency}", cost.as_f64()?);
            Some((key.clone(), Value::from(text.trim_end())))
        });
        table::section(&mut out, "estimate", &costs.collect());
    }
    out
}

/// Replaces seconds since 1970 by a date.
fn date(object: &mut Map<String, Value>, key: &str) {
    if let Some(seconds) = object.get(key).and_then(Value::as_u64) {
        object.insert(key.to_owned(), format!("{} UTC", units::date(seconds)).into());
    }
}

/// Formats the findings of a check.
pub fn check(report: &CheckReport) -> String {
    let mut out = String::new();
    if let Some((epoch, manifest)) = report.manifest {
        let _ = writeln!(out, "epoch {epoch}, manifest {manifest}, writer \"{}\"", plain(&report.writer));
        let zones = counted(report.zones.into(), "zone", "zones");
        let _ = writeln!(out, "{zones}; pieces: {}", objects_of(report.pieces));
        let _ = match report.verified_bytes {
            Some(bytes) => writeln!(out, "read and verified: {}", units::bytes(bytes as f64)),
            None => writeln!(out, "data wasn't read; --data reads and verifies it"),
        };
    }
    for (what, count) in [
        ("garbage", report.garbage),
        ("named by no manifest yet", report.unsettled),
        ("of other programs", report.foreign),
    ] {
        if count.objects > 0 {
            let _ = writeln!(out, "{what}: {}", objects_of(count));
        }
    }
    if !report.damage.is_empty() {
        let _ = writeln!(out, "\ndamage: {}", report.damaged_objects);
    }
    for damage in &report.damage {
        let place = match damage.zone {
            Some(zone) => format!("zone {zone}, bytes {} to {}: ", damage.bytes.start, damage.bytes.end - 1),
            None => String::new(),
        };
        let object = match damage.object.is_empty() {
            true => String::new(),
            false => format!("object {}: ", damage.object),
        };
        let _ = writeln!(out, "  {place}{object}{}", plain(&damage.what));
    }
    let listed = report.damage.len() as u64;
    if listed < report.damaged_objects {
        let _ = writeln!(out, "  … {} more", report.damaged_objects - listed);
    }
    out.push_str(&match (report.is_damaged(), report.lost_bytes) {
        (false, _) => "\nno damage\n".to_owned(),
        (true, 0) => "\nDAMAGED\n".to_owned(),
        (true, bytes) => format!("\nDAMAGED: {bytes} bytes of zones are lost\n"),
    });
    out
}

/// Formats the outcome of a search for garbage.
pub fn collected(found: &Collected, is_dry: bool) -> String {
    let mut out = format!("garbage: {}\n", objects_of(found.garbage));
    if found.unsettled.objects > 0 {
        let _ = writeln!(out, "left to the volume's writer: {}", objects_of(found.unsettled));
    }
    if !is_dry {
        let deleted = counted(found.deleted, "object", "objects");
        let _ = writeln!(out, "deleted: {deleted}, after a grace of {} s", found.waited.as_secs());
    }
    if !is_dry && found.deleted < found.garbage.objects {
        out.push_str("run it again for the others\n");
    }
    out
}

/// Formats whom a fence has ended.
pub fn fenced(epoch: &Epoch) -> String {
    format!("fenced: {}{}\n", plain(&epoch.describe()), ended(epoch))
}

/// Says whether the writer of an epoch had ended before.
pub fn ended(epoch: &Epoch) -> String {
    match &epoch.sealed {
        Some(seal) => format!(" (fenced before, by \"{}\")", plain(&seal.creator)),
        None if epoch.is_closed => " (closed before)".to_owned(),
        None => String::new(),
    }
}
