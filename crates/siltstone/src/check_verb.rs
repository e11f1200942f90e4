//! `siltstone check`: checks a whole log device for damage.

use crate::arguments;
use crate::failure::Failure;
use crate::lifted;
use crate::output::{counted, print, print_json};
use crate::progress::Reading;
use crate::table::plain;
use log::check::{CheckReport, Finding, Hit};
use std::fmt::Write;

/// Checks the device, and prints the findings.
///
/// # Errors
/// A wrong stack or part; a served stack; [`Failure::Said`] for damage.
pub fn check(arguments: &arguments::Check) -> Result<(), Failure> {
    let (stack, part) = (&arguments.stack, arguments.part.as_deref());
    let report = lifted::with_zones(stack, part, arguments.writable, async |zones, home| {
        let reading = Reading::new();
        log::check::check(zones, home, &|done, total| reading.at(done, total)).await
    })?;
    match arguments.json {
        true => {
            let value = serde_json::to_value(&report)
                .map_err(|error| Failure::World(format!("the report can't be written as JSON: {error}")))?;
            print_json(&value)?;
        }
        false => print(&page(&report))?,
    }
    if report.is_damaged() { Err(Failure::Said) } else { Ok(()) }
}

fn page(report: &CheckReport) -> String {
    let mut out = String::new();
    let checked = &report.checked;
    let ended = if report.clean { "closed cleanly" } else { "not closed cleanly" };
    let _ = writeln!(out, "log {}: {ended}, opened {}", report.uuid, times(report.epoch));
    let _ = writeln!(
        out,
        "read {}, {}, {} and {}; compared {} of {} with them",
        counted(checked.zones, "zone", "zones"),
        counted(checked.records, "record", "records"),
        counted(checked.data_blocks, "block of data", "blocks of data"),
        counted(checked.pages, "page of maps", "pages of maps"),
        counted(checked.mapped_blocks, "mapped block", "mapped blocks"),
        match checked.versions.saturating_sub(1) {
            0 => "the volume".to_owned(),
            others =>
                format!("the volume and {}", counted(others, "snapshot or clone", "snapshots and clones")),
        }
    );
    if report.replayed > 0 || report.discarded > 0 {
        let _ = writeln!(
            out,
            "after the checkpoint: {} records to be replayed, {} not valid",
            report.replayed, report.discarded
        );
    }
    list(&mut out, "damage", &report.damage, report.not_listed.0);
    list(&mut out, "notes", &report.notes, report.not_listed.1);
    out.push_str(&match (report.is_damaged(), report.damaged_blocks) {
        (false, _) => "\nno damage\n".to_owned(),
        (true, 0) => "\nDAMAGED\n".to_owned(),
        (true, blocks) => format!("\nDAMAGED: {blocks} blocks are lost, or may be\n"),
    });
    out
}

fn times(count: u64) -> String {
    if count == 1 { "once".to_owned() } else { format!("{count} times") }
}

fn list(out: &mut String, heading: &str, findings: &[Finding], not_listed: u64) {
    if findings.is_empty() {
        return;
    }
    let _ = writeln!(out, "\n{heading}: {}", findings.len() as u64 + not_listed);
    for finding in findings {
        let place = match (finding.zone, finding.block, finding.blocks) {
            (Some(zone), Some(block), 2..) => {
                format!(
                    "zone {zone}, blocks {block} to {}: ",
                    u64::from(block) + u64::from(finding.blocks) - 1
                )
            }
            (Some(zone), Some(block), 1) => format!("zone {zone}, block {block}: "),
            (Some(zone), ..) => format!("zone {zone}: "),
            _ => String::new(),
        };
        let _ = writeln!(out, "  {place}{}", plain(&finding.what));
        for hit in &finding.hits {
            let _ = writeln!(out, "    {}", lost(hit));
        }
        if finding.hits_not_listed > 0 {
            let _ = writeln!(out, "    … {} more blocks", finding.hits_not_listed);
        }
    }
    if not_listed > 0 {
        let _ = writeln!(out, "  … {not_listed} more");
    }
}

fn lost(hit: &Hit) -> String {
    let owner = match (hit.version, hit.name.as_str()) {
        (1, _) => "the volume".to_owned(),
        (version, "") => format!("version {version}"),
        (_, name) => format!("\"{}\"", plain(name)),
    };
    match hit.count {
        1 => format!("{owner}: block {}", hit.block),
        count => format!("{owner}: blocks {} to {}", hit.block, hit.block + count - 1),
    }
}
