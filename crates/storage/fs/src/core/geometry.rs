//! Requirements on zones: the number of zones that a file system needs, and the number that it holds open.
//!
//! Each shard has open zones of its own: one for each append in flight, and one to which the cleaner moves
//! blocks. The roots and checkpoints have open zones as well. If a drive allows fewer, appends in flight are
//! reduced first, to one for each shard, and then the number of shards. So each purpose has permits for all
//! zones that it holds at a time, and a zone is opened as soon as the previous one is finished.

use crate::core::entry::ATOMIC_BLOCKS;
use crate::core::settings::{Settings, reserved_zones};
use crate::format::{BLOCK, MAX_SHARDS};
use crate::metadata::change::Change;
use block::{BlockSize, Error, Result, ZoneGeometry};
use logkit::Layout;
use logkit::layout::ROOT_ZONES;
use logkit::pool::budget::Demand;
use logkit::record::Header;

/// Fewest open zones with which a file system works: those of roots, and one for each purpose.
pub const MIN_OPEN: u32 = ROOT_ZONES + Demand::FEWEST;

/// Blocks that are reserved for the pages of an empty file system: its root directory and the directory of
/// the checkpoint, three times.
const MIN_PAGES: u64 = 6;

/// Demand for open zones with `shards` shards and `lanes` appends in flight on each.
pub(crate) fn demand(zones: &ZoneGeometry, shards: u32, lanes: u32) -> Demand {
    let limit = [zones.max_open, zones.max_active].into_iter().filter(|limit| *limit != 0).min();
    let limit = limit.map(|limit| limit.saturating_sub(ROOT_ZONES));
    Demand { limit, log: shards * lanes, tables: shards }
}

/// Whether the limits permit all zones that the purposes hold at a time.
pub(crate) fn fits(demand: &Demand) -> bool {
    demand.limit.is_none_or(|limit| demand.log + demand.tables < limit)
}

/// Most shards, up to `wanted`, and most appends in flight on each, up to `lanes`, whose open zones the
/// limits of these zones permit; each at least one.
fn most(zones: &ZoneGeometry, wanted: u32, lanes: u32) -> (u32, u32) {
    let fit = |shards: u32, lanes: u32| fits(&demand(zones, shards, lanes));
    let shards = (1..=wanted.clamp(1, MAX_SHARDS)).rev().find(|shards| fit(*shards, 1)).unwrap_or(1);
    (shards, (1..=lanes).rev().find(|lanes| fit(shards, *lanes)).unwrap_or(1))
}

impl Settings {
    /// Returns these settings with shards and appends in flight reduced to what the limits of these zones
    /// permit.
    #[must_use]
    pub(crate) fn for_zones(self, zones: &ZoneGeometry) -> Self {
        let wanted = self.shards.unwrap_or(runtime::shard_count() as u32);
        let (shards, appends_in_flight) = most(zones, wanted, self.appends_in_flight);
        Settings { shards: Some(shards), appends_in_flight, ..self }
    }
}

/// Least number of zones of this layout with which a new file system has space for files; `directory` is the
/// number of blocks of a checkpoint's directory.
pub(crate) fn least_zones(layout: &Layout, lanes: u32, shards: u32, directory: u64) -> u32 {
    // Pages of a root directory and the directory of the checkpoint. One more zone has space for files.
    let pages = 3 * (1 + directory.max(1));
    let usable = u64::from(layout.data_blocks(Change::MAX_WITH_BLOCKS));
    let for_pages = pages.div_ceil((usable - usable / 16).max(1)) as u32;
    reserved_zones(lanes, shards) + for_pages + 1
}

/// Error for fewer zones of this layout than a new file system needs.
pub(crate) fn too_few(layout: &Layout, least: u32) -> Error {
    Error::invalid(format!(
        "{} zones of {} blocks of 4 KiB are too few for a file system: expected at least {least} zones of this size, {} KiB; take more or larger ones",
        layout.zones,
        layout.zone_blocks,
        (u64::from(least) * u64::from(layout.zone_blocks) * BLOCK) >> 10,
    ))
}

/// Refuses zones that are too few or too small for a new file system, or that permit too few open zones.
/// Opens nothing.
///
/// # Errors
/// [`Error::Invalid`] with the numbers.
pub fn check_new(zones: &ZoneGeometry) -> Result<()> {
    let layout = Layout::new(zones, BlockSize::new(BLOCK)?)?;
    if !layout.takes(ATOMIC_BLOCKS, Header::length(ATOMIC_BLOCKS as usize, Change::MAX_WITH_BLOCKS)) {
        return Err(Error::invalid(format!(
            "zones of {} blocks of 4 KiB with appends of up to {} blocks are too small for a file system; expected zones of at least {} blocks and appends \
             of at least {} blocks; take larger zones",
            layout.zone_blocks,
            layout.max_append,
            ATOMIC_BLOCKS + 2,
            ATOMIC_BLOCKS + 1
        )));
    }
    // With few zones, the file system has one shard.
    let (_, lanes) = most(zones, 1, Settings::default().appends_in_flight);
    let zones_of_files = u64::from(layout.zones.saturating_sub(reserved_zones(lanes, 1)));
    let blocks = zones_of_files * u64::from(layout.data_blocks(Change::MAX_WITH_BLOCKS));
    if blocks - blocks / 16 <= MIN_PAGES {
        return Err(too_few(&layout, least_zones(&layout, lanes, 1, 1)));
    }
    match fits(&demand(zones, 1, 1)) {
        true => Ok(()),
        false => Err(Error::invalid(format!(
            "the zones allow max_open={}, max_active={}; expected 0 (no limit) or at least {MIN_OPEN}, the fewest open zones of a file system: \
             take zones that allow more",
            zones.max_open, zones.max_active
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zones(zones: u32, limit: u32) -> ZoneGeometry {
        ZoneGeometry {
            zones,
            zone_size: 1 << 20,
            zone_capacity: 1 << 20,
            append_granularity: 4096,
            read_granularity: 4096,
            max_append: 256 << 10,
            max_open: limit,
            max_active: 0,
            durable: block::Durable::OnFlush,
            erase: block::EraseGuarantee::None,
        }
    }

    #[test]
    fn appends_in_flight_are_fewer_first_and_then_shards() {
        let lines = [
            (0, 16, (16, 2)),
            (0, 32, (16, 2)),
            (5, 8, (1, 1)),
            (6, 1, (1, 2)),
            (14, 4, (4, 1)),
            (14, 3, (3, 2)),
            (14, 16, (5, 1)),
        ];
        for (limit, wanted, expected) in lines {
            assert_eq!(most(&zones(400, limit), wanted, 2), expected, "limit {limit}, {wanted} shards");
        }
    }

    #[test]
    fn zones_that_are_too_few_or_too_rarely_open_are_refused_with_the_numbers() {
        let refused = |count, limit| check_new(&zones(count, limit)).unwrap_err().to_string();
        assert!(refused(64, 4).contains("max_open=4, max_active=0; expected 0 (no limit) or at least 5"));
        let few = refused(8, 0);
        assert!(
            few.contains("8 zones of 256 blocks of 4 KiB are too few for a file system: expected at least"),
            "{few}"
        );
        for limit in [0, 5, 14] {
            assert_eq!(check_new(&zones(64, limit)), Ok(()));
        }
    }
}
