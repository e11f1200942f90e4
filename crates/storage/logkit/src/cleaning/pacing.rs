//! Pacing: the number of blocks moved per block that users write, so that zones never run out and cleaning
//! has no bursts.
//!
//! Cleaning a zone of v live and d dead blocks moves v blocks and gains d. So v/d moves per user block keep
//! the free space constant. That rate, for the mean of the last victims, is multiplied by a factor that falls
//! with the free space:
//!
//! ```text
//!   factor
//!     ∞ │▏            users wait
//!       │▏
//!       │ ▏
//!     2 │  ╲__
//!       │   · ╲__
//!     1 │   ·    ╲__    in balance: the headroom is constant
//!       │   ·       ╲__
//!     0 │   ·          ╲____________
//!       └───┴───────────┴────────── headroom
//!       stop low       high
//! ```
//!
//! At `low` the rate is twice the balanced one: each block that users write gains a block of free space.
//! Below `low` the factor grows without bound, so that `stop` is never passed: users wait until a block was
//! moved.
//!
//! # Free space
//! The free space (headroom) is the data units of empty zones, of the rest of open ones, and of the passed
//! part (moved or found dead) of the victim. So it changes by one with each block and has no steps: a user's
//! block takes one, a moved block none, and passing a dead block gains one.
//!
//! The owner sets the watermarks ([`Marks`]), waits at `stop`, and decides when a waiting write continues.
//!
//! # Freedom from starvation
//! With [`Marks::for_classes`]: of the free space above `stop` = (classes + 1) zones, at most one zone's
//! worth was passed in the victim. A class that needs a zone has no open one, so open zones have less than
//! (classes - 1) zones' worth. So at least two zones are empty whenever a user's class needs one, and one is
//! left for the cleaner. That is enough to clean a zone if all of its blocks go to one class (as in all
//! policies with ages at the granularity of zones), and a cleaned zone is empty again. If an owner's zones
//! aren't empty at once after cleaning (they wait for a checkpoint, readers or a reset), the owner adds the
//! most zones that may wait, or counts empty zones itself before users take one, as the log device does; the
//! owner then proves its own bound.

use super::{Candidate, Pressure};

/// Weight of earlier victims against a new one: the mean covers the last twenty or so. With fewer,
/// alternating hot and cold victims cause bursts.
const REMEMBERED: f64 = 0.95;
/// Least distance from `low` to `high`, in zones: with less, the free space varies in steps of that size.
/// More is smoother and takes space from users' data; `tests/cleaning_simulation.rs` has the cost.
pub const SPAN: u64 = 2;

/// Number of blocks to move per block that a user writes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pace {
    /// Required moves, on average over a few writes; infinite if users wait until there is free space.
    pub must: f64,
    /// Moves that the free space they gain pays for. A policy cleans without a request at this rate while
    /// users write, and at any rate while no user does. Never less than `must`.
    pub may: f64,
}

/// Watermarks of the free space in data units, whole zones each, `stop` < `low` < `high`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Marks {
    /// Users wait at or below this.
    pub stop: u64,
    /// Below this, cleaning is urgent.
    pub low: u64,
    /// At or above this, no move is required. This space stays free permanently: a volume should have this
    /// much space in excess of its data, and more to keep cleaning cheap.
    pub high: u64,
}

impl Marks {
    /// Returns the lowest watermarks without starvation, for zones of `zone` data units, with one open zone
    /// for each of the policy's `classes`, and up to `waiting` zones that are clean and not yet writable.
    pub fn for_classes(zone: u64, classes: u8, waiting: u32) -> Self {
        let stop = zone * (u64::from(classes) + 1 + u64::from(waiting));
        Marks { stop, low: stop + zone, high: stop + zone + SPAN * zone }
    }

    /// Returns the pressure for this much free space of `total` zones of `zone` data units.
    pub fn pressure(&self, zone: u64, headroom: u64, total: u32) -> Pressure {
        let zones = |units: u64| u32::try_from(units / zone).unwrap_or(u32::MAX);
        Pressure { free: zones(headroom), total, low: zones(self.low), high: zones(self.high) }
    }
}

/// Computes the pace from the last victims.
#[derive(Debug, Clone)]
pub struct Pacer {
    zone: u64,
    moved: f64,
    gained: f64,
}

impl Pacer {
    /// Returns a pacer for zones of `zone` data units.
    ///
    /// # Panics
    /// If zones have no data units.
    pub fn new(zone: u64) -> Self {
        assert!(zone > 0, "a zone holds something");
        // Initial estimate: victims are half live.
        Pacer { zone, moved: 1.0, gained: 1.0 }
    }

    /// Notes that a zone is about to be cleaned.
    pub fn begin(&mut self, victim: &Candidate) {
        self.moved = self.moved * REMEMBERED + victim.live as f64 / self.zone as f64;
        self.gained =
            self.gained * REMEMBERED + victim.written.saturating_sub(victim.live) as f64 / self.zone as f64;
    }

    /// Returns the pace for this much free space in data units.
    pub fn pace(&self, headroom: u64, marks: &Marks) -> Pace {
        // At least one move per 16 blocks even if all victims were dead: the current one may not be.
        let balanced = (self.moved / self.gained.max(1e-6)).max(1.0 / 16.0);
        let Marks { stop, low, high } = *marks;
        let share = |part: u64, of: u64| part as f64 / of as f64;
        let factor = if headroom >= high {
            0.0
        } else if headroom >= low {
            2.0 * share(high - headroom, high - low)
        } else if headroom > stop {
            2.0 / share(headroom - stop, low - stop)
        } else {
            f64::INFINITY
        };
        let must = balanced * factor;
        Pace { must, may: must.max(balanced) }
    }
}
