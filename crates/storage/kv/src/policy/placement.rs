//! Placement of new tables: tables with similar ends of life share zones, so that zones become free as a
//! whole.
//!
//! - `lifetime`: by level, with the hints of RocksDB and the zones of ZenFS: levels 0 and 1 are medium-lived,
//!   level 2 is long-lived, deeper ones are extremely long-lived. ZenFS may also put a table in an open zone
//!   of a longer-lived class if its own class has none; here each class has one.
//! - `zap`: as `lifetime`, but tables with tombstones end by a deadline (Nie et al., 2025; see
//!   [`zap`](super::zap)). A table with less remaining time than the mean lifetime of level 1 is placed with
//!   the low levels; one with less than the 75th percentile of its level is placed in a class of expiring
//!   tables. Tables are placed by level until enough lifetimes are known.
//!
//! Each class has an open zone; a drive permits few (14 on a ZN540).

use super::lifetimes::Lifetimes;
use crate::key_version::Timestamp;
use block::{Error, Result};

/// Names of all placement policies, as accepted by `placement`.
pub const PLACEMENTS: [&str; 2] = [LIFETIME, ZAP];

/// Name of placement by level.
pub const LIFETIME: &str = "lifetime";
/// Name of placement by level and deadline.
pub const ZAP: &str = "zap";

/// Class of the write-ahead log.
pub const LOG: u8 = 0;
/// Class of tables of levels 0 and 1.
const MEDIUM: u8 = 1;
/// Class of tables of level 2.
const LONG: u8 = 2;
/// Class of tables of deeper levels.
const EXTREME: u8 = 3;
/// Class of tables whose deadline ends them earlier than others of their level.
const EXPIRING: u8 = 4;

/// Percentile of a level's lifetimes below which a table is expiring.
const EXPIRING_SHARE: f64 = 0.75;

/// A table that is about to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewTable {
    /// Level of the table.
    pub level: usize,
    /// Time by which the table leaves its level ([`Compaction::due`](super::Compaction::due)); `None` without
    /// tombstones or deadlines.
    pub due: Option<Timestamp>,
}

/// A placement policy.
pub trait Placement: std::fmt::Debug {
    /// Returns the number of classes, including class 0 ([`LOG`]) of the write-ahead log.
    fn classes(&self) -> u8;

    /// Returns the class of a new table, from 1 to `classes() - 1`.
    fn place(&self, table: &NewTable, lifetimes: &Lifetimes, now: Timestamp) -> u8;
}

/// Returns the placement policy with this name.
///
/// # Errors
/// `Invalid` for an unknown name.
pub fn placement(name: &str) -> Result<Box<dyn Placement>> {
    Ok(match name {
        LIFETIME => Box::new(ByLevel),
        ZAP => Box::new(ByDeadline),
        _ => {
            let names = PLACEMENTS.join(", ");
            return Err(Error::invalid(format!(
                "placement policy \"{name}\" is unknown; expected one of {names}"
            )));
        }
    })
}

/// Placement by level.
#[derive(Debug, Clone, Copy)]
pub struct ByLevel;

impl Placement for ByLevel {
    fn classes(&self) -> u8 {
        EXTREME + 1
    }

    fn place(&self, table: &NewTable, _: &Lifetimes, _: Timestamp) -> u8 {
        match table.level {
            0 | 1 => MEDIUM,
            2 => LONG,
            _ => EXTREME,
        }
    }
}

/// Placement by level and deadline.
#[derive(Debug, Clone, Copy)]
pub struct ByDeadline;

impl Placement for ByDeadline {
    fn classes(&self) -> u8 {
        EXPIRING + 1
    }

    fn place(&self, table: &NewTable, lifetimes: &Lifetimes, now: Timestamp) -> u8 {
        let left = table.due.map(|due| due.saturating_sub(now));
        let is_below = |life: Option<u64>| left.zip(life).is_some_and(|(left, life)| left < life);
        if is_below(lifetimes.mean(1)) {
            MEDIUM
        } else if is_below(lifetimes.percentile(table.level, EXPIRING_SHARE)) {
            EXPIRING
        } else {
            ByLevel.place(table, lifetimes, now)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tables of level 1 live for 100 ms, those of level 3 for 100 to 6400 ms.
    fn lifetimes() -> Lifetimes {
        let mut lifetimes = Lifetimes::default();
        for table in 1..=64 {
            lifetimes.died(1, 0, 100);
            lifetimes.died(3, 0, 100 * table);
        }
        lifetimes
    }

    #[test]
    fn policies_are_made_by_name_and_others_refused_with_the_known_names() {
        for name in PLACEMENTS {
            assert!(placement(name).unwrap().classes() <= 6, "at most five classes of tables");
        }
        let error = placement("hot").unwrap_err().to_string();
        assert!(error.contains("\"hot\"") && error.contains("lifetime, zap"), "{error}");
    }

    #[test]
    fn lifetime_places_by_level() {
        let place = |level| ByLevel.place(&NewTable { level, due: Some(0) }, &lifetimes(), 0);
        assert_eq!([0, 1, 2, 3, 6].map(place), [MEDIUM, MEDIUM, LONG, EXTREME, EXTREME]);
    }

    #[test]
    fn zap_places_by_the_time_that_is_left() {
        let lifetimes = lifetimes();
        let place = |level, left: u64| {
            ByDeadline.place(&NewTable { level, due: Some(5000 + left) }, &lifetimes, 5000)
        };
        assert_eq!(place(3, 99), MEDIUM, "less than the mean of level 1");
        assert_eq!(place(3, 100), EXPIRING);
        assert_eq!(place(3, 4799), EXPIRING, "less than the 75th percentile of its level");
        assert_eq!(place(3, 4800), EXTREME);
        assert_eq!(place(2, 4799), LONG, "no lifetimes of level 2 are known");
        assert_eq!(
            ByDeadline.place(&NewTable { level: 3, due: Some(10) }, &lifetimes, 5000),
            MEDIUM,
            "overdue"
        );
        assert_eq!(
            ByDeadline.place(&NewTable { level: 3, due: None }, &lifetimes, 5000),
            EXTREME,
            "no tombstones"
        );
        assert_eq!(
            ByDeadline.place(&NewTable { level: 3, due: Some(5001) }, &Lifetimes::default(), 5000),
            EXTREME
        );
    }
}
