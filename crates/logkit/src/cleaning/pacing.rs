//! How many blocks are moved per block that users write: enough to never run out of zones, in no bursts.
//!
//! Cleaning a zone of which v blocks are live and d aren't moves v blocks and gains d. So v/d moves per user block keep
//! the room as it is. That rate, for the mean of the last victims, is multiplied by a factor that falls with the room:
//!
//! ```text
//!   factor
//!     ∞ │▏            users wait
//!       │▏
//!       │ ▏
//!     2 │  ╲__
//!       │   · ╲__
//!     1 │   ·    ╲__    in balance: the room stays where it is
//!       │   ·       ╲__
//!     0 │   ·          ╲____________
//!       └───┴───────────┴────────── room
//!       stop low       high
//! ```
//!
//! Twice the balanced rate at `low` gains a block of room for each that users write. Below that it grows without
//! bound, so that `stop` is never passed: users wait until something was moved.
//!
//! # What room is
//! The data units of empty zones, of what is left of open ones, and of what has been passed (moved or found dead) of the
//! zone being cleaned. So it changes by one with each block written and has no steps: a user's block costs one, a
//! moved block nothing, passing a dead block gains one.
//!
//! The marks are the owner's ([`Marks`]); it waits at `stop` itself, and decides what a user's write waits for.
//!
//! # Why nobody starves
//! With [`Marks::for_classes`]: of the room above `stop` = (classes + 1) zones, at most one zone's worth was passed in the victim, and a class that
//! needs a zone has no open one, so open zones have less than (classes - 1) zones' worth. At least two zones are
//! therefore empty whenever a user's class needs one, and one is left for the cleaner. That is enough to clean a zone
//! if all of its blocks go to one class (all policies do that with ages at the granularity of zones), and a zone that
//! is cleaned is an empty one again. An owner whose zones are not empty at once after cleaning (they wait for a
//! checkpoint, readers or a reset) adds as many as may wait, or counts empty zones itself before it lets users take
//! one, as the log device does; its own argument then stands there.

use super::{Candidate, Pressure};

/// How much earlier victims count against a new one: the last twenty or so make the mean. Fewer make bursts where hot
/// and cold zones are cleaned by turns.
const REMEMBERED: f64 = 0.95;
/// The least from `low` to `high`, in zones: with less, room comes and goes in steps that are as large as that. More is
/// gentler and keeps room from users' data; what it costs is in `tests/cleaning_simulation.rs`.
pub const SPAN: u64 = 2;

/// How many blocks are moved per block that a user writes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pace {
    /// So many have to be, on average over a few writes; infinite: users wait until there is room.
    pub must: f64,
    /// So many are paid for by the room that they gain: what a policy cleans unasked goes at this rate while users
    /// write, and at any rate while nobody does. Never less than `must`.
    pub may: f64,
}

/// How much room is how little. In data units, whole zones each, `stop` < `low` < `high`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Marks {
    /// With no more room than this users wait.
    pub stop: u64,
    /// Below this cleaning is urgent.
    pub low: u64,
    /// From here on nothing has to be moved. What is kept free for good: a volume's data should leave this much, and
    /// what it wants for cleaning to be cheap on top.
    pub high: u64,
}

impl Marks {
    /// For zones of `zone` data units of which as many may be open as a policy has classes, and of which up to
    /// `waiting` may be clean and not yet writable: as little as the module's argument needs.
    pub fn for_classes(zone: u64, classes: u8, waiting: u32) -> Self {
        let stop = zone * (u64::from(classes) + 1 + u64::from(waiting));
        Marks { stop, low: stop + zone, high: stop + zone + SPAN * zone }
    }

    /// What a policy is told, with this much room of `total` zones of `zone` data units.
    pub fn pressure(&self, zone: u64, room: u64, total: u32) -> Pressure {
        let zones = |units: u64| u32::try_from(units / zone).unwrap_or(u32::MAX);
        Pressure { free: zones(room), total, low: zones(self.low), high: zones(self.high) }
    }
}

/// See the module.
#[derive(Debug, Clone)]
pub struct Pacer {
    zone: u64,
    moved: f64,
    gained: f64,
}

impl Pacer {
    /// For zones of `zone` data units.
    ///
    /// # Panics
    /// If zones have no data units.
    pub fn new(zone: u64) -> Self {
        assert!(zone > 0, "a zone holds something");
        // Before anything is known, victims are half live.
        Pacer { zone, moved: 1.0, gained: 1.0 }
    }

    /// A zone is about to be cleaned.
    pub fn begin(&mut self, victim: &Candidate) {
        self.moved = self.moved * REMEMBERED + victim.live as f64 / self.zone as f64;
        self.gained =
            self.gained * REMEMBERED + victim.written.saturating_sub(victim.live) as f64 / self.zone as f64;
    }

    /// How fast to move, with this much room in data units.
    pub fn pace(&self, room: u64, marks: &Marks) -> Pace {
        // One move per 16 blocks even if all victims were dead: the one in hand may not be.
        let balanced = (self.moved / self.gained.max(1e-6)).max(1.0 / 16.0);
        let Marks { stop, low, high } = *marks;
        let share = |part: u64, of: u64| part as f64 / of as f64;
        let factor = if room >= high {
            0.0
        } else if room >= low {
            2.0 * share(high - room, high - low)
        } else if room > stop {
            2.0 / share(room - stop, low - stop)
        } else {
            f64::INFINITY
        };
        let must = balanced * factor;
        Pace { must, may: must.max(balanced) }
    }
}
