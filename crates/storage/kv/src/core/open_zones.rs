//! Number of open zones of a store, for drives with a low limit.
//!
//! Each shard has its own open zones: of the write-ahead log, one for each append in flight, and of tables,
//! one for each class of lifetimes. Roots and checkpoints also have open zones. If a drive permits fewer,
//! first the classes of tables are reduced to one, then the appends in flight. A new store has at most as
//! many shards as then fit. A store that was created on a drive with a higher limit uses zones in turns: this
//! wastes space, but its data can be read and copied.

use block::{Error, Result, ZoneGeometry};
use logkit::layout::ROOT_ZONES;
use logkit::pool::budget::Demand;

/// Maximum number of appends in flight of a shard.
pub(crate) const LANES: u32 = 2;
/// Number of open zones independent of the shards: those of roots, and one of checkpoints.
const FIXED: u32 = ROOT_ZONES + 1;
/// Minimum number of open zones of a shard: one of the log, and one of tables.
const MIN_OF_SHARD: u32 = 2;

/// Open zones of each shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OpenZones {
    /// Number of appends to the write-ahead log in flight.
    pub lanes: u32,
    /// Number of classes of tables.
    pub classes: u8,
    /// Limit of open zones, without those of roots; `None` is unlimited.
    limit: Option<u32>,
    shards: u16,
}

/// Number of zones that a drive permits to be open or active at a time; `None` is unlimited.
fn limit_of(zones: &ZoneGeometry) -> Option<u32> {
    [zones.max_open, zones.max_active].into_iter().filter(|limit| *limit != 0).min()
}

/// Number of open zones that a store of `shards` shards needs.
fn needed(shards: u16) -> u32 {
    FIXED + MIN_OF_SHARD * u32::from(shards)
}

/// Maximum number of shards of a new store that the limit of open zones permits.
pub(crate) fn most_shards(zones: &ZoneGeometry) -> u16 {
    let most = limit_of(zones).map(|limit| limit.saturating_sub(FIXED) / MIN_OF_SHARD);
    most.map_or(u16::MAX, |most| most.min(u32::from(u16::MAX)) as u16)
}

/// Refuses `shards` shards for a new store if the zones permit too few open ones.
///
/// # Errors
/// [`Error::Invalid`] with the numbers.
pub(crate) fn check_new(zones: &ZoneGeometry, shards: u16) -> Result<()> {
    let most = most_shards(zones);
    if shards <= most {
        return Ok(());
    }
    let advice = if most == 0 {
        "take zones that allow more".to_owned()
    } else {
        format!("take shards={most} or fewer")
    };
    Err(Error::invalid(format!(
        "the zones allow max_open={}, max_active={}; expected 0 (no limit) or at least {}, the open zones of a store of {shards} shards: {advice}",
        zones.max_open,
        zones.max_active,
        needed(shards)
    )))
}

impl OpenZones {
    /// Returns the open zones of a store with this number of shards and classes of tables.
    ///
    /// # Errors
    /// [`Error::Invalid`] with the numbers if the zones permit fewer open ones than any store needs.
    pub fn on(zones: &ZoneGeometry, shards: u16, classes: u8) -> Result<Self> {
        let fewest = ROOT_ZONES + Demand::FEWEST;
        let limit = limit_of(zones);
        let data = limit.map(|limit| limit.saturating_sub(ROOT_ZONES));
        if limit.is_some_and(|limit| limit < fewest) {
            return Err(Error::invalid(format!(
                "the zones allow max_open={}, max_active={}; expected 0 (no limit) or at least {fewest}, the fewest open zones of a store: \
                 open it with higher limits",
                zones.max_open, zones.max_active
            )));
        }
        // Open zones are partly empty, so they must not be the majority of few zones.
        let most = data.unwrap_or(u32::MAX).min(zones.zones.saturating_sub(ROOT_ZONES) / 3);
        // One spare zone, so that opening a zone doesn't always wait until the previous one is sealed.
        let fits = |lanes: u32, classes: u32| u32::from(shards) * (lanes + classes) + 2 <= most;
        let lanes = (1..=LANES).rev().find(|lanes| fits(*lanes, 1)).unwrap_or(1);
        let classes = (1..=classes).rev().find(|classes| fits(lanes, u32::from(*classes))).unwrap_or(1);
        Ok(OpenZones { lanes, classes, limit: data, shards })
    }

    /// Demand for open zones, for the log's budget.
    pub fn demand(&self) -> Demand {
        let shards = u32::from(self.shards);
        Demand { limit: self.limit, log: shards * self.lanes, tables: shards * u32::from(self.classes) }
    }

    /// Class of the zone for a table of class `class`, reduced to the available classes.
    pub fn class(&self, class: u8) -> u8 {
        class.min(self.classes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zones(max_open: u32, max_active: u32) -> ZoneGeometry {
        ZoneGeometry {
            zones: 1024,
            zone_size: 1 << 20,
            zone_capacity: 1 << 20,
            append_granularity: 4096,
            read_granularity: 4096,
            max_append: 256 << 10,
            max_open,
            max_active,
            durable: block::Durable::OnFlush,
            erase: block::EraseGuarantee::None,
        }
    }

    #[test]
    fn classes_fold_first_and_then_lanes() {
        let of =
            |limit, shards| OpenZones::on(&zones(limit, 0), shards, 3).map(|open| (open.lanes, open.classes));
        let lines = [
            (0, 16, 2, 3),
            (14, 1, 2, 3),
            (14, 2, 2, 3),
            (14, 3, 2, 1),
            (14, 4, 1, 1),
            (14, 16, 1, 1),
            (5, 1, 1, 1),
            (7, 1, 2, 1),
        ];
        for (limit, shards, lanes, classes) in lines {
            assert_eq!(of(limit, shards), Ok((lanes, classes)), "limit {limit}, {shards} shards");
        }
        let refused = of(4, 1).unwrap_err().to_string();
        assert!(
            refused.contains("max_open=4, max_active=0; expected 0 (no limit) or at least 5"),
            "{refused}"
        );
    }

    #[test]
    fn a_new_store_has_no_more_shards_than_the_lower_limit_permits() {
        let most = [(0, 0), (14, 0), (0, 14), (14, 9), (5, 14), (4, 4), (3, 3)]
            .map(|(open, active)| most_shards(&zones(open, active)));
        assert_eq!(most, [u16::MAX, 5, 5, 3, 1, 0, 0]);
        let refused = check_new(&zones(14, 14), 6).unwrap_err().to_string();
        assert!(
            refused.contains("at least 15, the open zones of a store of 6 shards: take shards=5 or fewer"),
            "{refused}"
        );
        assert!(check_new(&zones(3, 0), 1).unwrap_err().to_string().contains("at least 5"));
        assert!(check_new(&zones(14, 14), 5).is_ok());
    }
}
