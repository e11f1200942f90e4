//! Opening a log whose map is at home: the home replaces the directory and the pages of a checkpoint.

use super::{Known, MapHome, Medium, Opened};
use crate::directory::Directory;
use crate::format::Own;
use crate::layout::Layout;
use crate::versions::{Version, Versions};
use block::{Error, Result, ZoneReport, ZoneState};
use logkit::directory::ZoneEntry;
use logkit::recovery::known_zones;
use logkit::root::Root;
use logkit::{Sequences, ZonePool};
use std::rc::Rc;
use std::sync::Arc;

/// State of a log at its home's last transaction, from which records are replayed.
#[derive(Debug)]
pub struct AtHome {
    /// The root, with the home's moment.
    pub root: Root,
    /// The zones that hold records, as in a directory.
    pub known: Vec<ZoneEntry>,
    /// The versions, as in a directory.
    pub directory: Directory,
    /// State of the zones.
    pub pool: ZonePool,
    /// The maps.
    pub versions: Versions,
    /// The home that keeps the maps; `None` if it was opened read-only.
    pub home: Option<MapHome>,
}

/// Opens the home of a log with this root, which demands transaction `demanded` or a later one.
///
/// # Errors
/// Errors of [`MapHome::open`]; [`Error::Corrupt`] if disk and home don't belong together.
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
        covered: Sequences::new(&moment.covered),
        clock: moment.clock,
        // Epochs that had ended at the home's moment are covered.
        own: Own { home: Some(known.sequence) }.encode(),
        boundaries: root.boundaries.iter().filter(|it| it.epoch >= moment.epoch).cloned().collect(),
        ..root.clone()
    };
    let (entries, directory) = known.directory();
    let pool = known_zones(layout, &root, &entries, reports);
    known.restore(&pool);
    let mut versions = Versions { next: moment.next_version, ..Versions::default() };
    for ((entry, _), map) in known.versions.into_iter().zip(maps) {
        versions.list.push(Version::new(entry, Arc::new(map)));
    }
    Ok(AtHome { root, known: entries, directory, pool, versions, home })
}

/// Checks that the disk isn't older than the home: everything that the home covers must be on the disk.
fn check_age(
    layout: &Layout,
    root: &Root,
    demanded: u64,
    reports: &[ZoneReport],
    known: &Known,
) -> Result<()> {
    let is_older = |what: String| {
        Err(Error::corrupt(format!(
            "it is newer than the disk: {what}; restore the disk and this file from the same time"
        )))
    };
    let moment = &known.moment;
    if moment.epoch > root.epoch {
        return is_older(format!("it has epoch {}, the disk epoch {}", moment.epoch, root.epoch));
    }
    if root.clean && known.sequence > demanded {
        return is_older(format!(
            "the log was closed with transaction {demanded}, this file has transaction {}",
            known.sequence
        ));
    }
    for zone in &known.zones {
        let Some(report) = reports.get(zone.entry.zone as usize) else { continue };
        // If no record of the zone is covered, its reset may not have been durable.
        if zone.committed == 0 || report.state == ZoneState::Offline {
            continue;
        }
        let end = (report.write_pointer >> layout.block_size.shift()) as u32;
        let is_same = report.generation == zone.entry.generation;
        let lacks = is_same && (end < zone.committed || report.state == ZoneState::Empty);
        if report.generation < zone.entry.generation || lacks {
            return is_older(format!("zone {} lacks records that were durable", report.zone));
        }
    }
    Ok(())
}
