//! Warnings of parts that fill up, as of dm-thin's low-water mark: one at each level that is reached.
//!
//! [`FullnessWarning`] only decides: it has no clock, does no I/O and logs nothing. A server asks its parts
//! ([`block::Part::fullness`]) and passes the answers on.

use block::Fullness;
use serde_json::Value;
use std::sync::atomic::{AtomicU8, Ordering};

/// Default of the key `warn_at`.
pub const DEFAULT_LEVELS: &str = "80%, 90%, 95%";

/// Percentage points by which the use must fall below a level before it warns again.
pub const MARGIN: u8 = 5;

/// Levels of a part, and the highest one that it has warned about. One task at a time notes the use; any
/// shard may look at the level.
#[derive(Debug)]
pub struct FullnessWarning {
    /// Percentages from 1 to 100 in ascending order.
    levels: Vec<u8>,
    /// Highest level that doesn't warn before the use has fallen; 0 for none. All levels below it don't
    /// either.
    warned: AtomicU8,
}

impl FullnessWarning {
    /// Creates a warning at these percentages, in any order.
    pub fn new(mut levels: Vec<u8>) -> Self {
        levels.sort_unstable();
        FullnessWarning { levels, warned: AtomicU8::new(0) }
    }

    /// Notes the use of the part. Returns the level to warn about: the highest one that has been reached
    /// since the last call, and that didn't warn since the use was [`MARGIN`] percentage points below it.
    pub fn note(&self, fullness: &Fullness) -> Option<u8> {
        let before = self.warned.load(Ordering::Relaxed);
        let is_reached = |percent: u8| fullness.can_fill && is_at(fullness, percent);
        let is_still_warned = |level: u8| level <= before && is_reached(level.saturating_sub(MARGIN));
        let highest = |holds: &dyn Fn(u8) -> bool| {
            self.levels.iter().rev().copied().find(|level| holds(*level)).unwrap_or(0)
        };
        let warned = highest(&is_still_warned);
        let reached = highest(&is_reached);
        self.warned.store(warned.max(reached), Ordering::Relaxed);
        (reached > warned).then_some(reached)
    }

    /// Highest level that the part has warned about, until the use has fallen [`MARGIN`] percentage points
    /// below it.
    pub fn warned_at(&self) -> Option<u8> {
        match self.warned.load(Ordering::Relaxed) {
            0 => None,
            level => Some(level),
        }
    }
}

/// Whether at least this percentage of the limit is used, exactly. Level 0 is always reached.
fn is_at(fullness: &Fullness, percent: u8) -> bool {
    let (used, limit) = (u128::from(fullness.used_bytes), u128::from(fullness.limit_bytes));
    percent == 0 || used > 0 && used * 100 >= limit * u128::from(percent)
}

/// Returns the entry `fullness` of a part's status: its use, and `warned_at` of its warning, null if none.
pub fn status(fullness: &Fullness, warning: Option<&FullnessWarning>) -> Value {
    let mut entry = fullness.to_json();
    let warned = warning.and_then(FullnessWarning::warned_at);
    entry["warned_at"] = warned.map(|level| format!("{level}%")).into();
    entry
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn full(used_bytes: u64, limit_bytes: u64) -> Fullness {
        Fullness { resource: "space", used_bytes, limit_bytes, can_fill: true, remedy: "discard some data" }
    }

    fn default_levels() -> FullnessWarning {
        FullnessWarning::new(vec![80, 90, 95])
    }

    #[test]
    fn each_level_warns_once_until_the_use_falls_below_it() {
        let warning = default_levels();
        let note = |used| (warning.note(&full(used, 1000)), warning.warned_at());
        assert_eq!(note(799), (None, None));
        assert_eq!(note(800), (Some(80), Some(80)));
        assert_eq!(note(899), (None, Some(80)));
        // The use varies around the level.
        assert_eq!(note(750), (None, Some(80)));
        assert_eq!(note(810), (None, Some(80)));
        assert_eq!(note(900), (Some(90), Some(90)));
        assert_eq!(note(1000), (Some(95), Some(95)));
        // 95% may warn again, 90% not yet.
        assert_eq!(note(899), (None, Some(90)));
        assert_eq!(note(920), (None, Some(90)));
        assert_eq!(note(950), (Some(95), Some(95)));
        assert_eq!(note(749), (None, None));
        // A jump warns about the highest level only.
        assert_eq!(note(999), (Some(95), Some(95)));
    }

    #[test]
    fn some_parts_never_warn() {
        let never = FullnessWarning::new(Vec::new());
        assert_eq!((never.note(&full(10, 10)), never.warned_at()), (None, None));
        let warning = default_levels();
        let thick = Fullness { can_fill: false, ..full(10, 10) };
        assert_eq!((warning.note(&thick), warning.warned_at()), (None, None));
        assert_eq!(warning.note(&full(0, 0)), None);
        assert_eq!(warning.note(&full(1, 0)), Some(95));
        // Once users' writes can't fill it any more, it warns the next time that they can.
        assert_eq!((warning.note(&thick), warning.warned_at()), (None, None));
        assert_eq!(warning.note(&full(u64::MAX, u64::MAX)), Some(95));
        let all = FullnessWarning::new((1..=100).collect());
        assert_eq!([all.note(&full(0, 100)), all.note(&full(1, 100))], [None, Some(1)]);
    }

    #[test]
    fn a_status_names_the_level() {
        let warning = default_levels();
        warning.note(&full(91, 100));
        let entry = status(&full(91, 100), Some(&warning));
        assert_eq!(entry["warned_at"], "90%");
        assert_eq!((&entry["percent"], &entry["limit_bytes"]), (&91.into(), &100.into()));
        assert!(status(&full(91, 100), None)["warned_at"].is_null());
    }

    proptest! {
        /// Against a model with a state for each level.
        #[test]
        fn levels_are_independent_of_each_other(
            levels in proptest::collection::btree_set(1_u8..=100, 0..5),
            uses in proptest::collection::vec((0_u64..1100, any::<bool>()), 1..100),
        ) {
            let warning = FullnessWarning::new(levels.iter().copied().collect());
            let mut armed: std::collections::BTreeMap<u8, bool> = levels.iter().map(|level| (*level, true)).collect();
            for (used, can_fill) in uses {
                let percent = used as f64 / 10.0;
                let mut due = None;
                for (level, is_armed) in &mut armed {
                    let level_percent = f64::from(*level);
                    *is_armed |= !can_fill || (percent < level_percent - f64::from(MARGIN) && *level > MARGIN);
                    if can_fill && used > 0 && percent >= level_percent {
                        due = if *is_armed { Some(*level) } else { due };
                        *is_armed = false;
                    }
                }
                let found = warning.note(&Fullness { can_fill, ..full(used, 1000) });
                prop_assert_eq!(found, due);
                let highest = armed.iter().rev().find(|(_, is_armed)| !**is_armed).map(|(level, _)| *level);
                prop_assert_eq!(warning.warned_at(), highest);
            }
        }
    }
}
