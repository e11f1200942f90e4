//! Contents of the medium as JSON, for operators and programs. Nothing is written.
//!
//! Roots and directory are shown as stored. Versions and live counts are those that opening the log would
//! yield. If the log can't be opened, `trouble` has the error, and the versions are those of the checkpoint,
//! without counts.

use crate::check::{Window, name_of};
use crate::check::{roots, zone::header_at};
use crate::directory::{Directory, PageTable};
use crate::format::{Change, Own, VersionId};
use crate::layout::Layout;
use crate::map::Physical;
use crate::recovery::{self, HomeStorage, Recovered};
use crate::stripes::{Stripes, cleaner_stream, user_stream};
use crate::versions::Versions;
use block::{Error, Result, ZoneIndex, ZoneReport, ZoneState, Zones, ZonesPart};
use logkit::layout::ROOT_ZONES;
use logkit::pool::CHECKPOINT_CLASS;
use logkit::record::{Header, Kind, sum_of};
use logkit::root::{self, Root};
use logkit::{StreamId, ZonePool};
use serde_json::{Value, json};
use std::rc::Rc;
use std::sync::Arc;

/// Number of the newest roots of each root zone that are shown.
const ROOTS: usize = 8;

/// Returns the contents of the log on these zones; with `zone`, also each record of that zone. A log whose
/// map is at home needs its home, opened read-only.
///
/// # Errors
/// [`Error::Protocol`] if there is no log, [`Error::Invalid`] for a zone that doesn't exist; errors of
/// reading.
pub async fn dump(
    zones: Arc<dyn ZonesPart>,
    home: Option<Rc<dyn HomeStorage>>,
    zone: Option<ZoneIndex>,
) -> Result<Value> {
    let handle = zones.open().await?;
    let (found, layout) = recovery::find(&*handle).await?;
    let root = &found.root;
    let reports = handle.report(ZoneIndex(0), layout.zones).await?;
    if let Some(zone) = zone
        && zone.0 >= layout.zones
    {
        return Err(Error::invalid(format!("zone {zone} out of range 0..{}", layout.zones)));
    }
    let mut value = json!({
        "uuid": root.identity.uuid.to_string(),
        "block_size": root.block_size.bytes(),
        "zone_blocks": root.zone_blocks,
        "zones": root.zones,
        "shards": layout.stripes.shards(),
        "epoch": root.epoch,
        "clean": root.clean,
        "roots": all_roots(&*handle, &layout, root, &reports).await,
    });
    let is_at_home = recovery::demanded(root, home.clone())?.is_some();
    let directory = match is_at_home {
        true => Ok((Vec::new(), Directory::default())),
        false => recovery::read_directory(&*handle, &layout, root).await,
    };
    match directory {
        Ok((known, directory)) => {
            let told = json!({
                "bytes": root.directory_length,
                "extents": root.directory.len(),
                "versions": directory.versions.len(),
                "next_version": directory.next_version,
                "zones": known.len(),
            });
            match Own::decode(&root.own)?.home {
                Some(demanded) => value["home"] = json!({ "demanded_transaction": demanded }),
                None => value["directory"] = told,
            }
            // The state after opening, or that of the checkpoint if the log can't be opened.
            match recovery::recover(handle.clone(), crate::map::NAMES[0], home, recovery::Access::Inspect)
                .await
            {
                Ok((state, recovered)) => {
                    value["tail"] = tail(&recovered, &state.parts, layout.stripes);
                    value["versions"] = versions(&state.versions);
                    value["zone_list"] = zone_list(&layout, &reports, &state.parts.pool, true);
                }
                Err(error) => {
                    value["trouble"] = error.to_string().into();
                    value["versions"] = versions_of(&directory);
                    let pool = logkit::recovery::known_zones(&layout, root, &known, &reports);
                    value["zone_list"] = zone_list(&layout, &reports, &pool, false);
                }
            }
        }
        Err(error) => {
            value["trouble"] = error.to_string().into();
            let pool = ZonePool::new(layout.zones);
            value["zone_list"] = zone_list(&layout, &reports, &pool, false);
        }
    }
    if let Some(zone) = zone {
        value["records"] = records(handle, &layout, root, &reports[zone.0 as usize]).await;
    }
    Ok(value)
}

async fn all_roots(zones: &dyn Zones, layout: &Layout, newest: &Root, reports: &[ZoneReport]) -> Vec<Value> {
    let mut all = Vec::new();
    for report in reports.iter().take(ROOT_ZONES as usize) {
        if matches!(report.state, ZoneState::Empty | ZoneState::Offline) {
            continue;
        }
        let end = (report.write_pointer >> layout.block_size.shift()) as u32;
        let mut window = Window::new(zones, layout, report.zone, end);
        let mut here = Vec::new();
        for position in 0..end {
            let bytes = window.blocks(position, 1).await;
            if let Ok(place) = roots::read(bytes, &newest.identity, report, position) {
                here.push(place);
            }
        }
        let skipped = here.len().saturating_sub(ROOTS);
        all.extend(here.into_iter().skip(skipped).map(|place| {
            let roots::RootCopy { position, number, root } = place;
            let boundary = |boundary: &root::Boundary| {
                let mut value = last_records(layout.stripes, |stream| boundary.last.of(stream));
                value["epoch"] = boundary.epoch.into();
                value
            };
            json!({
                "number": number,
                "zone": report.zone.0,
                "block": position,
                "epoch": root.epoch,
                "clean": root.clean,
                "covered": last_records(layout.stripes, |stream| root.covered.of(stream)),
                "checkpoint": root.checkpoint,
                "home": Own::decode(&root.own).ok().and_then(|own| own.home),
                "clock": root.clock,
                "boundaries": root.boundaries.iter().map(boundary).collect::<Vec<_>>(),
                "directory": root.directory.iter().map(|extent| {
                    json!({ "zone": extent.zone, "block": extent.position, "blocks": extent.blocks })
                }).collect::<Vec<_>>(),
            })
        }));
    }
    all.sort_by_key(|root| root["number"].as_u64());
    all
}

/// Returns the last records of the streams; those of several shards are listed by shard.
fn last_records(stripes: Stripes, last: impl Fn(StreamId) -> u64) -> Value {
    let by_shard = |stream: fn(u32) -> StreamId| match stripes.shards() {
        1 => last(stream(0)).into(),
        shards => (0..shards).map(|shard| Value::from(last(stream(shard)))).collect::<Value>(),
    };
    json!({ "users": by_shard(user_stream), "cleaner": by_shard(cleaner_stream) })
}

fn tail(recovered: &Recovered, parts: &logkit::Parts, stripes: Stripes) -> Value {
    let committed = parts.streams.all_committed();
    let mut last = last_records(stripes, |stream| committed.of(stream));
    last["checkpoint"] = parts.checkpoints.root().checkpoint.into();
    json!({
        "replayed": recovered.replayed,
        "discarded": recovered.discarded,
        "last": last,
        "clock": parts.clock,
    })
}

fn version(
    id: VersionId,
    parent: Option<VersionId>,
    name: &str,
    (writable, created, blocks): (bool, u64, u64),
    table: &PageTable,
) -> Value {
    json!({
        "version": id.0,
        "name": name,
        "parent": parent.map(|parent| parent.0),
        "writable": writable,
        "created": created,
        "blocks": blocks,
        "pages": table.iter().count(),
    })
}

fn versions(versions: &Versions) -> Value {
    let one = |entry: &crate::versions::Version| {
        let facts = (entry.writable, entry.created, entry.blocks);
        let mut value = version(entry.id, entry.parent, &entry.name, facts, &entry.table);
        let mut mapped = 0;
        entry.map.lookup_range(0..entry.blocks, &mut |piece| {
            mapped += if piece.physical.is_mapped() { piece.count } else { 0 };
        });
        value["mapped_blocks"] = mapped.into();
        value
    };
    versions.list.iter().map(one).collect()
}

fn versions_of(directory: &Directory) -> Value {
    let one = |entry: &crate::directory::VersionEntry| {
        let facts = (entry.writable, entry.created, entry.blocks);
        version(entry.id, entry.parent, &entry.name, facts, &entry.table)
    };
    directory.versions.iter().map(one).collect()
}

fn zone_list(layout: &Layout, reports: &[ZoneReport], pool: &ZonePool, has_counts: bool) -> Value {
    let one = |report: &ZoneReport| {
        let zone = report.zone.0;
        let entry = pool.get(zone);
        let mut value = json!({
            "zone": zone,
            "state": format!("{:?}", report.state).to_lowercase(),
            "generation": report.generation,
            "end": report.write_pointer >> layout.block_size.shift(),
        });
        let holds_records =
            zone >= ROOT_ZONES && !matches!(report.state, ZoneState::Empty | ZoneState::Offline);
        value["use"] = match entry.class {
            _ if zone < ROOT_ZONES => "roots",
            _ if !holds_records => "none",
            CHECKPOINT_CLASS => "checkpoints",
            _ => "data",
        }
        .into();
        if holds_records {
            value["class"] = entry.class.into();
            value["live"] = if has_counts { entry.live.into() } else { Value::Null };
            value["written"] = entry.written.into();
            value["opened"] = entry.opened.into();
            value["changed"] = entry.changed.into();
            let mut last = last_records(layout.stripes, |stream| entry.last.of(stream));
            value["last_user"] = last["users"].take();
            value["last_cleaner"] = last["cleaner"].take();
        }
        value
    };
    reports.iter().map(one).collect()
}

/// Returns every record of a zone whose header is readable, at any position.
async fn records(zones: Rc<dyn Zones>, layout: &Layout, root: &Root, report: &ZoneReport) -> Value {
    let mut all = Vec::new();
    if matches!(report.state, ZoneState::Empty | ZoneState::Offline) {
        return all.into();
    }
    let end = (report.write_pointer >> layout.block_size.shift()) as u32;
    let mut window = Window::new(&*zones, layout, report.zone, end);
    let mut position = 0;
    while position < end {
        let bytes = window.blocks(position, 1).await;
        let Ok(parsed) = header_at(bytes, &root.identity, report, position) else {
            position += 1;
            continue;
        };
        let header = parsed.header;
        let sums: Vec<u32> = (0..header.blocks as usize).map(|number| parsed.sum(number)).collect();
        let entries = entries(&header, parsed.meta, layout);
        let mut value = json!({
            "block": position,
            "stream": name_of(&header),
            "sequence": header.sequence,
            "epoch": header.epoch,
            "after": parsed.links().first().map(|link| link.sequence),
            "durable": header.durable,
            "clock": header.clock,
            "class": header.class,
            "blocks": header.blocks,
            "counts": root.admits(&header),
            "entries": entries,
        });
        // Roots and pages aren't replayed, so they are neither valid nor invalid.
        if header.kind != Kind::Entries {
            value["counts"] = Value::Null;
        }
        position += 1;
        if header.blocks <= end - position {
            let data = window.blocks(position, header.blocks).await;
            let blocks = data.chunks_exact(layout.block_bytes()).zip(&sums);
            value["bad_blocks"] = blocks.filter(|(bytes, sum)| sum_of(bytes) != **sum).count().into();
            position += header.blocks;
        }
        all.push(value);
    }
    all.into()
}

fn entries(header: &Header, meta: &[u8], layout: &Layout) -> Value {
    if header.kind != Kind::Entries {
        // Pages by version and number; parts of a directory and roots have no names.
        let is_pages = header.kind == Kind::Checkpoint && meta.len() == 8 * header.blocks as usize;
        let pages = if is_pages { meta.as_chunks::<8>().0 } else { &[] };
        let page = |bytes: &[u8; 8]| {
            let number =
                |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
            json!({ "page": number(4), "version": number(0) })
        };
        return pages.iter().map(page).collect();
    }
    let changes = match Change::decode_all(meta) {
        Ok(changes) => changes,
        Err(error) => return error.to_string().into(),
    };
    changes.iter().map(|change| entry(change, layout)).collect()
}

fn entry(change: &Change, layout: &Layout) -> Value {
    let place = |physical: Physical| {
        let at = layout.place(physical);
        json!({ "zone": at.zone.0, "block": at.block })
    };
    match change {
        Change::Write { version, block, count } => {
            json!({ "change": "write", "version": version.0, "block": block, "count": count })
        }
        Change::Unmap { version, block, count } => {
            json!({ "change": "unmap", "version": version.0, "block": block, "count": count })
        }
        Change::Move { version, block, count, from } => json!({
            "change": "move", "version": version.0, "block": block, "count": count, "from": place(*from),
        }),
        Change::Create { version, parent, writable, created, name } => json!({
            "change": "create", "version": version.0, "parent": parent.0, "writable": writable,
            "created": created, "name": name,
        }),
        Change::Delete { version } => json!({ "change": "delete", "version": version.0 }),
        Change::Grow { version, blocks } => {
            json!({ "change": "grow", "version": version.0, "blocks": blocks })
        }
    }
}
