//! Opening a log whose map is at home: in place of a checkpoint's directory and pages, what the home says.

use super::{Known, MapHome, Medium, Opened};
use crate::directory::Directory;
use crate::layout::Layout;
use crate::recovery::known_zones;
use crate::root::Root;
use crate::table::ZoneTable;
use crate::versions::{PageSet, Version, Versions};
use block::{Error, Result, ZoneReport, ZoneState};
use std::rc::Rc;
use std::sync::Arc;

/// What a log is like at the moment of its home: over it, records are replayed.
#[derive(Debug)]
pub struct AtHome {
    /// The root, with what the home says of its moment.
    pub root: Root,
    /// The zones and versions, as a directory would tell them.
    pub directory: Directory,
    /// What is known of the zones.
    pub table: ZoneTable,
    /// The maps.
    pub versions: Versions,
    /// What keeps them at home; none if it was opened to be looked at.
    pub home: Option<MapHome>,
}

/// Opens the home of a log with this root, which demands transaction `demanded` or a later one.
///
/// # Errors
/// As [`MapHome::open`]; [`Error::Corrupt`] where disk and home are not of one time.
pub async fn open(
    layout: &Layout,
    root: &Root,
    demanded: u64,
    reports: &[ZoneReport],
    medium: Rc<dyn Medium>,
    look_only: bool,
) -> Result<AtHome> {
    let Opened { known, maps, home } =
        MapHome::open(medium.clone(), root.identity, layout.zones, demanded, look_only).await?;
    check_age(layout, root, demanded, reports, &known)
        .map_err(|error| error.in_context(format!("the map's home {}", medium.name())))?;
    let moment = &known.moment;
    let root = Root {
        covered: moment.covered,
        clock: moment.clock,
        // Lives that had ended at its moment are behind it.
        home: Some(known.sequence),
        boundaries: root.boundaries.iter().copied().filter(|life| life.epoch >= moment.epoch).collect(),
        ..root.clone()
    };
    let directory = known.directory();
    let table = known_zones(layout, &root, &directory, reports);
    known.restore(&table);
    let mut versions = Versions { next: moment.next_version, ..Versions::default() };
    for ((entry, _), map) in known.versions.into_iter().zip(maps) {
        versions.list.push(Version {
            id: entry.id,
            parent: entry.parent,
            writable: entry.writable,
            created: entry.created,
            blocks: entry.blocks,
            name: entry.name,
            is_leaving: false,
            map: Arc::new(map),
            dirty: PageSet::default(),
            writing: PageSet::default(),
            unsaved: 0,
            table: entry.table,
        });
    }
    Ok(AtHome { root, directory, table, versions, home })
}

/// Refuses a disk that is older than the home: what the home says was durable must be there.
fn check_age(
    layout: &Layout,
    root: &Root,
    demanded: u64,
    reports: &[ZoneReport],
    known: &Known,
) -> Result<()> {
    let is_older = |what: String| {
        Err(Error::corrupt(format!(
            "it is newer than the disk: {what}; put back the disk and this file of one time"
        )))
    };
    let moment = &known.moment;
    if moment.epoch > root.epoch {
        return is_older(format!("it has seen life {}, and the disk life {}", moment.epoch, root.epoch));
    }
    if root.clean && known.sequence > demanded {
        return is_older(format!(
            "the log was closed with transaction {demanded}, and here is {}",
            known.sequence
        ));
    }
    for zone in &known.zones {
        let Some(report) = reports.get(zone.entry.zone as usize) else { continue };
        // Without a record in it, that a zone was reset may not have been durable yet.
        if zone.committed == 0 || report.state == ZoneState::Offline {
            continue;
        }
        let end = (report.write_pointer >> layout.block_size.shift()) as u32;
        let is_same = report.generation == zone.entry.generation;
        let lacks = is_same && (end < zone.committed || report.state == ZoneState::Empty);
        if report.generation < zone.entry.generation || lacks {
            return is_older(format!("zone {} lacks records that had been durable", report.zone));
        }
    }
    Ok(())
}
