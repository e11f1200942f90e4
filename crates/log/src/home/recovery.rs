//! Opening a log whose map is at home: in place of a checkpoint's directory and pages, what the home says.

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

/// What a log is like at the moment of its home: over it, records are replayed.
#[derive(Debug)]
pub struct AtHome {
    /// The root, with what the home says of its moment.
    pub root: Root,
    /// The zones that hold records, as a directory would name them.
    pub known: Vec<ZoneEntry>,
    /// The versions, as a directory would name them.
    pub directory: Directory,
    /// State of the zones.
    pub pool: ZonePool,
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
        covered: Sequences::new(&moment.covered),
        clock: moment.clock,
        // Epochs that had ended at its moment are covered.
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
