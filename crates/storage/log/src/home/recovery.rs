//! Opening a log whose map is at home: the home replaces the directory and the pages of a checkpoint.

use super::{FileMedium, Known, MapHome, Medium, Opened, Places};
use crate::core::MapKeeper;
use crate::format::Own;
use crate::layout::Layout;
use crate::map::Map;
use crate::recovery::{AtHome, HomeFiles, HomeStorage, NewHome};
use crate::versions::{Version, Versions};
use block::{Call, Error, Result, ZoneReport, ZoneState};
use logkit::Sequences;
use logkit::record::Identity;
use logkit::recovery::known_zones;
use logkit::root::Root;
use std::rc::Rc;
use std::sync::Arc;

/// Functions for homes in files.
pub const FILES: HomeFiles = HomeFiles {
    lock: FileMedium::lock_for_stack,
    open: |path, file_use, locked| {
        Call::new(async move { Ok(storage(FileMedium::open(path, file_use, locked).await?)) })
    },
};

/// Returns this medium as the storage of a home.
pub fn storage(medium: Rc<dyn Medium>) -> Rc<dyn HomeStorage> {
    Rc::new(Storage(medium))
}

struct Storage(Rc<dyn Medium>);

impl HomeStorage for Storage {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn create(&self, identity: Identity, zones: u32, blocks: u64) -> Call<'_, Result<NewHome>> {
        Call::new(async move {
            let places = Places::new(zones, blocks);
            let (home, map) = MapHome::create(self.0.clone(), identity, zones, blocks, places).await?;
            Ok((Rc::new(home) as Rc<dyn MapKeeper>, Arc::new(map) as Arc<dyn Map>))
        })
    }

    fn open<'a>(
        &'a self,
        layout: &'a Layout,
        root: &'a Root,
        demanded: u64,
        reports: &'a [ZoneReport],
        look_only: bool,
    ) -> Call<'a, Result<AtHome>> {
        Call::new(async move {
            let Opened { known, maps, home } =
                MapHome::open(self.0.clone(), root.identity, layout.zones, demanded, look_only).await?;
            check_age(layout, root, demanded, reports, &known)
                .map_err(|error| error.in_context(format!("the map's home {}", self.0.name())))?;
            let moment = &known.moment;
            let root = Root {
                covered: Sequences::new(&moment.covered),
                clock: moment.clock,
                // Epochs that had ended at the home's moment are covered.
                own: Own { home: Some(known.sequence), stripes: None }.encode(),
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
            let home = home.map(|home| Rc::new(home) as Rc<dyn MapKeeper>);
            Ok(AtHome { root, known: entries, directory, pool, versions, home })
        })
    }
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
