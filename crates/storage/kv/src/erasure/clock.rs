//! Clock of deadlines: it never goes back, and runs at least as fast as time passes.
//!
//! It follows the system clock while that goes forward, also when it is set forward. After the system clock
//! is set back, the deadline clock continues by the time since boot, which includes suspended time. So it is
//! never behind the system clock. Checkpoints save it, and the next opening continues from there. Expiries
//! are times of the system clock; [`ahead`](DeadlineClock::ahead) converts them.

use crate::key_version::Timestamp;
use std::sync::atomic::{AtomicU64, Ordering};

/// A clock that never goes back.
#[derive(Debug, Default)]
pub struct DeadlineClock {
    /// Lead over the time since boot, in milliseconds; never decreases.
    offset: AtomicU64,
}

impl DeadlineClock {
    /// Present time of the clock, in milliseconds since 1970.
    pub fn now(&self) -> Timestamp {
        self.read(crate::key_version::now(), since_boot())
    }

    /// Lead over the system clock, in milliseconds.
    pub fn ahead(&self) -> u64 {
        let wall = crate::key_version::now();
        self.read(wall, since_boot()).saturating_sub(wall)
    }

    /// Advances the clock to `time`, which it has shown before, unless it is later already.
    pub fn raise(&self, time: Timestamp) {
        self.offset.fetch_max(time.saturating_sub(since_boot()), Ordering::Relaxed);
    }

    /// Present time of the clock, for these readings of the system clock and of the time since boot.
    fn read(&self, wall: Timestamp, since_boot: u64) -> Timestamp {
        let wanted = wall.saturating_sub(since_boot);
        since_boot.saturating_add(self.offset.fetch_max(wanted, Ordering::Relaxed).max(wanted))
    }
}

fn since_boot() -> u64 {
    runtime::boot_clock().as_millis() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_follows_steps_forward_and_goes_on_after_steps_back() {
        let clock = DeadlineClock::default();
        // System clock and time since boot, with the expected time.
        let readings = [
            ((10_000, 100), 10_000),
            ((10_050, 150), 10_050),
            // Set back by an hour.
            ((10_060 - 3600, 160), 10_060),
            ((10_160 - 3600, 260), 10_160),
            // Set forward again, and beyond.
            ((10_200, 300), 10_200),
            ((20_000, 400), 20_000),
            // Suspended, first seen by both clocks, then only by the time since boot.
            ((30_000, 10_400), 30_000),
            ((30_000, 20_400), 40_000),
        ];
        for ((wall, boot), expected) in readings {
            assert_eq!(clock.read(wall, boot), expected, "{wall}, {boot}");
        }
    }
}
