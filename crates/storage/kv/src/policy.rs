//! Policies of compaction and placement: the tables to compact next, and the zones for new tables.
//!
//! A policy only decides: it reads no table, writes no zone and has no clock. The store describes its tree
//! ([`Tree`]), runs the [`Job`] that [`Compaction::next`] returns, and asks again. A policy keeps no state
//! between calls, so its decisions are the same after a restart.
//!
//! - [`saturation`], [`fade`], [`zap`]: the compaction policies; [`compaction`] returns one by name.
//! - [`mod@placement`]: the class of the zone for a new table; [`lifetimes`]: measured lifetimes of tables.
//! - [`shape`]: common functions of the compaction policies: sizes of levels, overlaps, the construction of
//!   jobs.
//!
//! # Contract of a job
//! The store runs one job of a tree at a time, concurrently with flushes to level 0. It merges the inputs,
//! writes the result to the target level, and cuts it into tables anywhere except between versions of one
//! key. The range of the outputs lies in the range from the smallest to the largest key of the participating
//! tables. A policy returns only jobs that keep the order of the tree:
//! 1. All tables of the target level that overlap the range of the inputs participate.
//! 2. No table of a level between overlaps the range of the inputs.
//! 3. With a table of level 0, all tables of level 0 that overlap it participate; no older one stays above.
//!
//! # Obligations of the store
//! - A merge drops a tombstone if no table below the target level overlaps its key and no snapshot needs it.
//! - A merge keeps a tombstone that a newer value hides, while older versions that it deletes are below: the
//!   newer value has no deadline that would move it down to them. Of several tombstones of a key it keeps the
//!   oldest, with the earliest time.
//! - [`TableView::oldest_tombstone`] is exact after each job. A table whose tombstones a snapshot keeps is
//!   marked as [`held`](TableView::is_held); otherwise a job on it would repeat forever.

pub mod fade;
pub mod lifetimes;
pub mod placement;
pub mod saturation;
pub mod shape;
pub mod zap;

#[cfg(test)]
mod properties;
#[cfg(test)]
mod simulation;

pub use fade::Fade;
pub use lifetimes::Lifetimes;
pub use placement::{NewTable, PLACEMENTS, Placement, placement};
pub use saturation::Saturation;
pub use zap::Zap;

use crate::key_version::Timestamp;
use block::{Error, Result};
use shape::Shape;
use std::ops::Range;
use std::time::Duration;

/// Names of all compaction policies, as accepted by `compaction`.
pub const COMPACTIONS: [&str; 3] = [saturation::NAME, fade::NAME, zap::NAME];

/// Maximum number of levels of a tree. Also bounds the levels in a manifest: raising it makes manifests that
/// earlier versions of the program refuse, lowering it makes existing ones unreadable.
pub const MAX_LEVELS: usize = 8;

/// Description of a table for policies.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TableView<'a> {
    /// Number of the table; newer tables have higher numbers.
    pub id: u64,
    /// Size in bytes.
    pub bytes: u64,
    /// Smallest key of its entries and range tombstones.
    pub smallest: &'a [u8],
    /// Largest key, inclusive; a range tombstone contributes the end of its range.
    pub largest: &'a [u8],
    /// Number of entries, including tombstones.
    pub entries: u64,
    /// Number of tombstones, of keys and of ranges.
    pub tombstones: u64,
    /// Time of the oldest deletion: of a tombstone, or the expiry of a value, which may be in the future;
    /// `None` without any.
    pub oldest_tombstone: Option<Timestamp>,
    /// Whether a snapshot that still exists kept tombstones from being dropped when the table was written.
    /// Such a table isn't rewritten in its level.
    pub is_held: bool,
    /// Share of dead blocks in the table's zones, 0 to 1.
    pub garbage: f64,
}

impl TableView<'_> {
    fn overlaps(&self, smallest: &[u8], largest: &[u8]) -> bool {
        self.smallest <= largest && smallest <= self.largest
    }
}

/// The tree of one shard.
///
/// Tables of level 0 overlap and are ordered by age, newest first. Tables of each other level are ordered by
/// key and disjoint.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Tree<'a> {
    /// Tables by level, from level 0; levels at the end may be empty or missing.
    pub levels: Vec<Vec<TableView<'a>>>,
    /// Whether the drive had no space for the outputs of a job: further jobs then take as few inputs as
    /// possible.
    pub is_short: bool,
}

impl<'a> Tree<'a> {
    /// Returns a tree of these levels, on a drive with space.
    #[cfg(test)]
    pub fn of(levels: Vec<Vec<TableView<'a>>>) -> Self {
        Tree { levels, is_short: false }
    }

    /// Returns the tables of a level; empty if the level is missing.
    pub fn level(&self, level: usize) -> &[TableView<'a>] {
        self.levels.get(level).map_or(&[], Vec::as_slice)
    }

    /// Returns the deepest level with tables, or 0.
    pub fn last(&self) -> usize {
        self.levels.iter().rposition(|level| !level.is_empty()).unwrap_or(0)
    }

    /// Returns the size of a level in bytes.
    pub fn bytes(&self, level: usize) -> u64 {
        self.level(level).iter().map(|table| table.bytes).sum()
    }

    /// Returns the indices of the tables of a level other than 0 that overlap a range of keys, both ends
    /// included.
    pub fn overlapping(&self, level: usize, smallest: &[u8], largest: &[u8]) -> Range<usize> {
        debug_assert!(level > 0, "tables of level 0 aren't in order of keys");
        let tables = self.level(level);
        let start = tables.partition_point(|table| table.largest < smallest);
        let end = start + tables[start..].partition_point(|table| table.smallest <= largest);
        start..end
    }

    /// Returns the size in bytes of the tables of a level that overlap a range of keys.
    pub fn overlapping_bytes(&self, level: usize, smallest: &[u8], largest: &[u8]) -> u64 {
        self.level(level)[self.overlapping(level, smallest, largest)].iter().map(|table| table.bytes).sum()
    }

    /// Returns the first level below `level` with tables that overlap a range of keys; `None` if a merge of
    /// this range drops all tombstones.
    pub fn next_overlapping(&self, level: usize, smallest: &[u8], largest: &[u8]) -> Option<usize> {
        (level + 1..self.levels.len()).find(|&below| !self.overlapping(below, smallest, largest).is_empty())
    }
}

/// A compaction: a merge of tables into a level.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// Level of the inputs.
    pub level: usize,
    /// Numbers of the participating tables of this level, in its order; at least one.
    pub inputs: Vec<u64>,
    /// Level of the outputs: a deeper one, or the same if a table is rewritten to drop its tombstones. Levels
    /// between are skipped only if they have no table in the range of the inputs.
    pub target: usize,
    /// Numbers of the participating tables of the target level, in its order. Their entries are older than
    /// those of the inputs.
    pub overlapped: Vec<u64>,
    /// Whether the inputs need no merge: they become tables of the target level unchanged.
    pub is_trivial_move: bool,
}

/// A compaction policy.
pub trait Compaction: std::fmt::Debug {
    /// Returns the next job; `None` if none is due at `now`.
    fn next(&self, tree: &Tree<'_>, now: Timestamp) -> Option<Job>;

    /// Returns the time at which a deadline makes a job due if the tree doesn't change; `None` without
    /// deadlines.
    fn wakes_at(&self, tree: &Tree<'_>) -> Option<Timestamp>;

    /// Returns the time at which a table with this oldest tombstone must have left `level`, for placement;
    /// `None` if the policy has no deadlines. `last` is the deepest level with tables.
    fn due(&self, level: usize, last: usize, oldest_tombstone: Timestamp) -> Option<Timestamp>;
}

/// Parameters of compaction policies; each policy uses some of them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CompactionParameters {
    /// Number of tables of level 0 that makes a job due; at least 1.
    pub level0_tables: usize,
    /// Target size of level 1 in bytes.
    pub level_bytes: u64,
    /// Target size of a level relative to the level above it, for level 2 and deeper; at least 2.
    pub multiplier: u64,
    /// Number of levels, 2 to [`MAX_LEVELS`]. The last one has no target size.
    pub levels: usize,
    /// Total size in bytes of a job's inputs up to which it takes further tables.
    pub job_bytes: u64,
    /// Time within which a deletion is persistent: every zone that held an older version has been reset;
    /// `None` without a promise.
    pub delete_persistence: Option<Duration>,
    /// Share of `delete_persistence` that is left to cleaning and resets after the last compaction, 0 to 0.9.
    pub reset_share: f64,
    /// `zap`: minimum rate of compaction, in bytes per second, while a deadline is near.
    pub bytes_per_second: u64,
}

impl Default for CompactionParameters {
    fn default() -> Self {
        CompactionParameters {
            level0_tables: 4,
            level_bytes: 256 << 20,
            multiplier: 10,
            levels: 7,
            job_bytes: 2 << 30,
            delete_persistence: None,
            reset_share: 0.25,
            bytes_per_second: 32 << 20,
        }
    }
}

impl CompactionParameters {
    /// Returns the time in milliseconds within which tables must drop a tombstone: `delete_persistence`
    /// without the share of resets.
    pub fn deadline(&self) -> Option<u64> {
        let persistence = self.delete_persistence?;
        Some((persistence.as_secs_f64() * 1000.0 * (1.0 - self.reset_share)) as u64)
    }

    fn check(&self, name: &str) -> Result<()> {
        let refuse = |what: &str, value: String, expected: &str| {
            Err(Error::invalid(format!(
                "compaction policy \"{name}\": {what} is {value}; expected {expected}"
            )))
        };
        if self.level0_tables == 0 {
            return refuse("level0_tables", self.level0_tables.to_string(), "at least 1");
        }
        if self.level_bytes == 0 {
            return refuse("level_bytes", self.level_bytes.to_string(), "at least 1 byte");
        }
        if self.multiplier < 2 {
            return refuse("multiplier", self.multiplier.to_string(), "at least 2");
        }
        if !(2..=MAX_LEVELS).contains(&self.levels) {
            return refuse("levels", self.levels.to_string(), &format!("2 to {MAX_LEVELS}"));
        }
        if !(0.0..=0.9).contains(&self.reset_share) {
            return refuse("reset_share", self.reset_share.to_string(), "0 to 0.9");
        }
        if self.bytes_per_second == 0 {
            return refuse("bytes_per_second", self.bytes_per_second.to_string(), "at least 1");
        }
        if self.deadline() == Some(0) {
            return refuse(
                "delete_persistence",
                format!("{:?}", self.delete_persistence.unwrap_or_default()),
                "at least 10 ms",
            );
        }
        Ok(())
    }
}

/// Returns the compaction policy with this name.
///
/// # Errors
/// `Invalid` for an unknown name, or if a parameter is out of range.
pub fn compaction(name: &str, parameters: CompactionParameters) -> Result<Box<dyn Compaction>> {
    if !COMPACTIONS.contains(&name) {
        let names = COMPACTIONS.join(", ");
        return Err(Error::invalid(format!(
            "compaction policy \"{name}\" is unknown; expected one of {names}"
        )));
    }
    parameters.check(name)?;
    let shape = Shape::new(&parameters);
    Ok(match name {
        saturation::NAME => Box::new(Saturation::new(shape)),
        fade::NAME => Box::new(Fade::new(shape, &parameters)),
        _ => Box::new(Zap::new(shape, &parameters)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_made_by_name_and_others_refused_with_the_known_names() {
        for name in COMPACTIONS {
            assert!(compaction(name, CompactionParameters::default()).is_ok());
        }
        let error = compaction("tiered", CompactionParameters::default()).unwrap_err().to_string();
        assert!(error.contains("\"tiered\"") && error.contains("saturation, fade, zap"), "{error}");
    }

    #[test]
    fn parameters_out_of_range_are_refused() {
        let good = CompactionParameters::default();
        let bad = [
            (CompactionParameters { level0_tables: 0, ..good }, "level0_tables is 0; expected at least 1"),
            (CompactionParameters { level_bytes: 0, ..good }, "level_bytes is 0"),
            (CompactionParameters { multiplier: 1, ..good }, "multiplier is 1; expected at least 2"),
            (CompactionParameters { levels: 17, ..good }, "levels is 17; expected 2 to 8"),
            (CompactionParameters { reset_share: f64::NAN, ..good }, "reset_share is NaN; expected 0 to 0.9"),
            (CompactionParameters { bytes_per_second: 0, ..good }, "bytes_per_second is 0"),
            (
                CompactionParameters { delete_persistence: Some(Duration::ZERO), ..good },
                "delete_persistence is 0ns; expected at least 10 ms",
            ),
        ];
        for (parameters, message) in bad {
            let error = compaction(zap::NAME, parameters).unwrap_err().to_string();
            assert!(error.contains(message), "{error}; expected {message}");
        }
    }
}
