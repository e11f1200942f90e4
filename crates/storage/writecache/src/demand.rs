//! When write-back runs: watermarks, age, and demands of operators.

use crate::settings::Thresholds;
use runtime::sync::Notify;
use std::cell::Cell;
use std::time::Duration;

/// Demand for write-back.
#[derive(Debug)]
pub struct Demand {
    thresholds: Thresholds,
    max_age: Option<Duration>,
    /// Everything before this address is to be destaged, by an operator's message or for want of ranges.
    target: Cell<u64>,
    /// Wall-clock time at which the oldest record was written, in ms; `None` if that isn't known.
    oldest: Cell<Option<u64>>,
    /// Everything is destaged before the cache is closed.
    on_close: Cell<bool>,
    changed: Notify,
}

impl Demand {
    /// Creates the demand of a cache whose oldest record was written at this time.
    pub fn new(thresholds: Thresholds, max_age: Option<Duration>, oldest: Option<u64>) -> Self {
        Demand {
            thresholds,
            max_age,
            target: Cell::new(0),
            oldest: Cell::new(oldest),
            on_close: Cell::new(false),
            changed: Notify::new(),
        }
    }

    /// Demands that everything before this address is destaged. Takes back an earlier demand that went
    /// further.
    pub fn set_target(&self, address: u64) {
        self.target.set(address);
    }

    /// Raises the target to this address, unless it is already higher.
    pub fn raise_target(&self, address: u64) {
        self.target.set(self.target.get().max(address));
    }

    /// Address before which everything is to be destaged.
    pub fn target(&self) -> u64 {
        self.target.get()
    }

    /// Demands that everything is destaged before the cache is closed.
    pub fn set_on_close(&self) {
        self.on_close.set(true);
    }

    /// Whether everything is destaged before the cache is closed.
    pub fn is_on_close(&self) -> bool {
        self.on_close.get()
    }

    /// Notes when the oldest record was written.
    pub fn set_oldest(&self, oldest: Option<u64>) {
        self.oldest.set(oldest);
    }

    /// Notes that a record was written now, if none is older.
    #[inline]
    pub fn note_record(&self) {
        if self.oldest.get().is_none() {
            self.oldest.set(Some(runtime::wall_clock().as_millis() as u64));
        }
    }

    /// Whether the age of records matters.
    pub fn has_age_limit(&self) -> bool {
        self.max_age.is_some()
    }

    fn is_too_old(&self) -> bool {
        let (Some(age), Some(oldest)) = (self.max_age, self.oldest.get()) else { return false };
        runtime::wall_clock().as_millis() as u64 >= oldest.saturating_add(age.as_millis() as u64)
    }

    /// Whether a batch is to be written back now. `used` is the number of blocks of the ring outside of
    /// batches; `running` tells whether a batch was just written back.
    pub fn is_due(&self, used: u64, running: bool) -> bool {
        self.is_high(used) || running && used >= self.thresholds.low || self.is_too_old()
    }

    /// Whether this many used blocks reach the high watermark.
    #[inline]
    pub fn is_high(&self, used: u64) -> bool {
        used >= self.thresholds.high
    }

    /// Whether write-back may pause for clients: half of the ring above the high watermark is free.
    pub fn may_pause(&self, used: u64, capacity: u64) -> bool {
        used < self.thresholds.high + (capacity - self.thresholds.high) / 2
    }

    /// Wakes write-back.
    #[inline]
    pub fn wake(&self) {
        self.changed.notify_all();
    }

    /// Waits for a demand, at most this long.
    pub async fn changed_within(&self, limit: Duration) {
        let _ = runtime::timeout(limit, self.changed.notified()).await;
    }

    /// Waits for a demand, or for the time to check the age of records.
    pub async fn changed(&self) {
        match self.max_age {
            None => self.changed.notified().await,
            Some(age) => {
                let interval = (age / 8).clamp(Duration::from_millis(5), Duration::from_secs(1));
                self.changed_within(interval).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn write_back_begins_at_the_high_watermark_and_ends_at_the_low_one() {
        let demand = Demand::new(Thresholds { high: 50, low: 40, batch: 8 }, None, None);
        let due = |used| (demand.is_due(used, false), demand.is_due(used, true));
        assert_eq!((due(39), due(40), due(50)), ((false, false), (false, true), (true, true)));
        assert!(demand.may_pause(74, 100) && !demand.may_pause(75, 100));
    }
}
