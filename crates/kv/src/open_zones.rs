//! How many zones a store has open at a time, on drives that allow few.
//!
//! Each shard has open zones of its own: of the write-ahead log, one for each append in flight, and of tables, one for each class of lifetimes. Beside them
//! there are zones of the roots and of checkpoints. Where a drive allows fewer, the classes of tables fold into one first, and then one append is in
//! flight. A new store has no more shards than then fit. A store that was made on a drive with a higher limit uses zones in turns: it wastes space, but
//! what it holds can be read and copied.

use block::{Error, Result, ZoneGeometry};
use logkit::layout::ROOT_ZONES;
use logkit::pool::budget::Demand;

/// Most appends in flight of a shard.
pub(crate) const LANES: u32 = 2;
/// Zones that are open whatever the number of shards: of roots, and one of checkpoints.
const FIXED: u32 = ROOT_ZONES + 1;
/// Zones that a shard has open at least: one of the log, and one of tables.
const FEWEST_OF_SHARD: u32 = 2;

/// Open zones of each shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OpenZones {
    /// Appends to the write-ahead log in flight.
    pub lanes: u32,
    /// Classes of tables.
    pub classes: u8,
    /// Most open zones, those of roots excluded.
    limit: Option<u32>,
    shards: u16,
}

/// Zones that a drive allows to be open or begun at a time; `None` for no limit.
fn limit_of(zones: &ZoneGeometry) -> Option<u32> {
    [zones.max_open, zones.max_active].into_iter().filter(|limit| *limit != 0).min()
}

/// Open zones that a store of so many shards needs.
fn needed(shards: u16) -> u32 {
    FIXED + FEWEST_OF_SHARD * u32::from(shards)
}

/// Most shards of a new store on these zones, as far as their limit of open ones goes.
pub(crate) fn most_shards(zones: &ZoneGeometry) -> u16 {
    let most = limit_of(zones).map(|limit| limit.saturating_sub(FIXED) / FEWEST_OF_SHARD);
    most.map_or(u16::MAX, |most| most.min(u32::from(u16::MAX)) as u16)
}

/// Refuses to make a store of so many shards on zones of which too few may be open.
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
    /// Open zones of a store of so many shards and classes of tables on these zones.
    ///
    /// # Errors
    /// [`Error::Invalid`] with the numbers where the zones allow fewer than any store needs.
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
        // Open zones are partly empty, so of few zones they aren't the most.
        let most = data.unwrap_or(u32::MAX).min(zones.zones.saturating_sub(ROOT_ZONES) / 3);
        // One more than are held, so that not every zone waits until the one before it is sealed.
        let fits = |lanes: u32, classes: u32| u32::from(shards) * (lanes + classes) + 2 <= most;
        let lanes = (1..=LANES).rev().find(|lanes| fits(*lanes, 1)).unwrap_or(1);
        let classes = (1..=classes).rev().find(|classes| fits(lanes, u32::from(*classes))).unwrap_or(1);
        Ok(OpenZones { lanes, classes, limit: data, shards })
    }

    /// Whether the zones have no limit of open ones.
    pub fn is_unlimited(&self) -> bool {
        self.limit.is_none()
    }

    /// Demand for open zones, for the log's budget.
    pub fn demand(&self) -> Demand {
        let shards = u32::from(self.shards);
        Demand { limit: self.limit, log: shards * self.lanes, tables: shards * u32::from(self.classes) }
    }

    /// Class of the zone of a table for which a class was chosen from all that there are.
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
