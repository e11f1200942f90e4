//! `siltstone kv audit`: searches the cells of an emulated drive for given keys.

use super::text::{bytes_of, escaped, insert};
use crate::arguments::KvAudit;
use crate::failure::Failure;
use crate::output::{print, print_json};
use crate::zns_verb;
use bench::units;
use block::{Buffer, Error, Result, ZoneAddress, ZoneIndex, ZonesPart};
use kv::audit::Findings;
use serde_json::{Map, json};
use zns::Zns;

/// Bytes per read.
const READ: u64 = 4 << 20;
/// Bytes per read of a zone that may have holes.
const UNIT: u64 = 4 << 10;

/// Runs the verb.
///
/// # Errors
/// A wrong drive or key; [`Failure::Said`] for a key that was found.
pub fn audit(arguments: &KvAudit) -> Result<(), Failure> {
    let keys = arguments.keys.iter().map(|key| bytes_of("KEY", key, arguments.hex));
    let keys = keys.collect::<Result<Vec<_>, _>>()?;
    let wanted = keys.clone();
    let findings = zns_verb::look(&arguments.drive, async move |zns| look_for(&zns, &wanted).await)?;
    match arguments.drive.json {
        true => print_json(&json!({
            "gone": findings.found.is_empty(),
            "found": findings.found.iter().map(|found| {
                let mut object = Map::new();
                insert(&mut object, "key", &keys[found.key], arguments.hex);
                object.insert("zone".to_owned(), json!(found.zone));
                object.insert("offset".to_owned(), json!(found.offset));
                object.insert("in".to_owned(), json!(found.what));
                object
            }).collect::<Vec<_>>(),
            "records": findings.records,
            "blocks": findings.blocks,
            "undecodable_bytes": findings.undecodable,
        }))?,
        false => print(&page(&keys, &findings))?,
    }
    if findings.found.is_empty() { Ok(()) } else { Err(Failure::Said) }
}

fn page(keys: &[Vec<u8>], findings: &Findings) -> String {
    let mut out = format!(
        "looked at {} records and {} blocks of tables; {} of tables are in no whole block\n",
        findings.records,
        findings.blocks,
        units::bytes(findings.undecodable as f64)
    );
    for (number, key) in keys.iter().enumerate() {
        let mut places = findings.found.iter().filter(|found| found.key == number).peekable();
        if places.peek().is_none() {
            out += &format!("{}: not found\n", escaped(key));
        }
        for place in places {
            out += &format!(
                "{}: FOUND in zone {}, byte {}: {}\n",
                escaped(key),
                place.zone,
                place.offset,
                place.what
            );
        }
    }
    out
}

async fn look_for(zns: &Zns, keys: &[Vec<u8>]) -> Result<Findings> {
    let geometry = ZonesPart::geometry(zns).clone();
    if !zns.superblock().encrypted {
        let cells = async |zone: u32| {
            let mut shown = Vec::new();
            while (shown.len() as u64) < geometry.zone_capacity {
                let length = READ.min(geometry.zone_capacity - shown.len() as u64);
                shown.extend(zns.raw(ZoneIndex(zone), shown.len() as u64, length, false).await?);
            }
            Ok(shown)
        };
        return kv::audit::audit(geometry.zones, cells, keys).await;
    }
    // The cells hold ciphertext under a key per zone; a zone without its key is unreadable.
    let handle = ZonesPart::open(zns).await?;
    let cells = async |zone: u32| {
        let report = handle.report(ZoneIndex(zone), 1).await?;
        let end = report.first().map_or(0, |report| report.write_pointer);
        let mut shown = Vec::new();
        while (shown.len() as u64) < end {
            let at = ZoneAddress::new(zone, shown.len() as u64);
            let length = UNIT.min(end - at.offset.0);
            let (outcome, buffer) = handle.read(at, Buffer::new(length as usize)).await;
            match outcome {
                Ok(()) => shown.extend_from_slice(buffer.filled()),
                // A hole of an interrupted zone, or an unreadable page.
                Err(Error::Io(_) | Error::Invalid(_) | Error::Corrupt(_)) => {
                    shown.resize(shown.len() + length as usize, 0)
                }
                Err(error) => return Err(error),
            }
        }
        Ok(shown)
    };
    kv::audit::audit(geometry.zones, cells, keys).await
}
