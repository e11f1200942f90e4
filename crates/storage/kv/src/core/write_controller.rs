//! Throttling of a shard's writes: they are slowed before they must stop, so that level 0 seldom reaches the
//! number of tables at which writes wait for a compaction.
//!
//! With at least [`slow_tables`] tables, writes are admitted at a limited rate: the rate at which compaction
//! empties level 0, times the remaining share of tables up to `stop_tables`. So the rate falls in steps, and
//! each step lasts longer than the one before. (This is RocksDB's delayed write rate.) Buffers that wait for
//! a flush count as tables.
//!
//! Longest wait of a write, unless the store is full or counts operations:
//! - slowed: [`MAX_DELAY`];
//! - with `MAX_FROZEN` full buffers: until one of them is written as a table, which doesn't wait for
//!   compactions;
//! - with `stop_tables` tables in level 0: until the running compaction and the following one of level 0 have
//!   ended. This happens only if writers have more bytes in flight than are admitted in `MAX_DELAY`, or
//!   if one compaction takes longer than all the steps.
//!
//! Elsewhere: full stores (`reserve`), the order of compactions (`compactions`, `manual_compaction`).

use super::buffers::MAX_FROZEN;
use super::{Core, add};
use crate::settings::Settings;
use block::Result;
use runtime::Instant;
use std::cell::Cell;
use std::time::Duration;

/// Longest delay of a slowed write.
pub(crate) const MAX_DELAY: Duration = Duration::from_secs(1);
/// Minimum rate at which writes are admitted, in bytes per second.
const MIN_RATE: u64 = 64 << 10;

/// Number of tables in level 0 at which writes are slowed: the midpoint of the numbers at which a compaction
/// is due and at which writes stop.
fn slow_tables(level0_tables: usize, stop_tables: usize) -> usize {
    level0_tables.midpoint(stop_tables).max(level0_tables.saturating_add(1))
}

/// Rate in bytes per second at which writes are admitted with this number of tables in level 0 and frozen
/// buffers; `None` is unlimited. `compaction_rate` is the rate at which compaction empties level 0.
fn admitted_rate(tables: usize, slow: usize, stop: usize, compaction_rate: u64) -> Option<u64> {
    if tables < slow || slow >= stop {
        return None;
    }
    let (steps, left) = ((stop - slow) as u64, stop.saturating_sub(tables).max(1) as u64);
    Some((compaction_rate / steps * left).max(MIN_RATE))
}

/// Admission control for the writes of one shard.
#[derive(Debug)]
pub(crate) struct WriteController {
    slow_tables: usize,
    stop_tables: usize,
    /// Measured rate of compactions of level 0, in bytes per second.
    compaction_rate: Cell<u64>,
    /// Time at which the admitted writes have passed at the admitted rate.
    passed: Cell<Instant>,
    /// End of the last compaction of level 0, and whether writes were slowed since.
    compacted: Cell<Option<Instant>>,
    has_slowed: Cell<bool>,
}

impl WriteController {
    /// Returns a controller that assumes this compaction rate, in bytes per second, until one is measured.
    pub fn new(level0_tables: usize, stop_tables: usize, compaction_rate: u64) -> Self {
        WriteController {
            slow_tables: slow_tables(level0_tables, stop_tables),
            stop_tables,
            compaction_rate: Cell::new(compaction_rate),
            passed: Cell::new(Instant::from_nanoseconds(0)),
            compacted: Cell::new(None),
            has_slowed: Cell::new(false),
        }
    }

    /// Returns the controller of one of `shards` shards.
    pub fn of(settings: &Settings, shards: u16) -> Self {
        let rate = (settings.compaction_rate / u64::from(shards)).max(1);
        WriteController::new(settings.level0_tables, settings.stop_tables, rate)
    }

    /// Whether writes stop with `level0` tables in level 0.
    #[inline]
    fn stops(&self, level0: usize) -> bool {
        level0 >= self.stop_tables
    }

    /// Notes that a compaction that began at `begun` has merged `bytes` bytes of level 0. If writes were
    /// slowed since the previous one, the time between counts also, because other compactions took it.
    pub fn note_compaction(&self, bytes: u64, begun: Instant, now: Instant) {
        let before = self.compacted.replace(Some(now));
        let begun = if self.has_slowed.replace(false) { before.unwrap_or(begun) } else { begun };
        let rate = u128::from(bytes) * 1_000_000_000 / (now - begun).as_nanos().max(1);
        let rate = u64::try_from(rate).unwrap_or(u64::MAX);
        self.compaction_rate.set(self.compaction_rate.get() / 2 + rate / 2);
    }

    /// Whether writes are slowed with this number of tables.
    #[inline]
    fn slows(&self, tables: usize) -> bool {
        tables >= self.slow_tables
    }

    /// Admits a write of `bytes` bytes; returns its delay, caused by the writes before it.
    fn admit(&self, tables: usize, bytes: u64, now: Instant) -> Duration {
        let rate = admitted_rate(tables, self.slow_tables, self.stop_tables, self.compaction_rate.get());
        let Some(rate) = rate else { return Duration::ZERO };
        self.has_slowed.set(true);
        let begin = self.passed.get().max(now).min(now + MAX_DELAY);
        self.passed.set(begin + Duration::from_secs_f64(bytes as f64 / rate as f64));
        begin - now
    }
}

impl Core {
    /// Delays a write of `bytes` bytes. Then waits while [`MAX_FROZEN`] buffers are frozen, level 0 has
    /// `stop_tables` tables, or the eraser grants no operation. Puts also wait for free zones. Deletes don't
    /// wait for a compaction that has no space in a full store. Returns the error of a background job if
    /// there is one.
    pub(crate) async fn stall(&self, frees: bool, bytes: usize) -> Result<()> {
        if !frees {
            self.admit_puts(bytes).await?;
        }
        let mut has_waited = false;
        let tables = self.tables.level0() + self.buffers.frozen().len();
        if self.compactions.controller.slows(tables) && !(frees && self.is_low()) {
            let delay = self.compactions.controller.admit(tables, bytes as u64, runtime::now());
            if !delay.is_zero() {
                add(&self.work.slowed, 1);
                runtime::sleep(delay).await;
                has_waited = true;
            }
        }
        let mut has_counted = false;
        loop {
            self.ask_for_operations();
            let is_behind = self.buffers.frozen().len() >= MAX_FROZEN
                || self.compactions.controller.stops(self.tables.level0()) && !(frees && self.is_low())
                || !self.erasure.may_write();
            if !is_behind && std::mem::take(&mut has_waited) && !frees {
                // Other puts may have taken the zones meanwhile.
                self.admit_puts(bytes).await?;
                continue;
            }
            if !is_behind {
                return Ok(());
            }
            if let Some(error) = self.background_error() {
                return Err(error);
            }
            self.check_open()?;
            if !std::mem::replace(&mut has_counted, true) {
                add(&self.work.stalls, 1);
            }
            self.events.changed.notified().await;
            has_waited = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn writes_are_slowed_from_halfway_on_and_more_with_each_table() {
        assert_eq!([slow_tables(4, 20), slow_tables(4, 6), slow_tables(1, 2)], [12, 5, 2]);
        let rates = |tables| admitted_rate(tables, 12, 20, 16 * MIB).map(|rate| rate / MIB);
        assert_eq!(
            [0, 11, 12, 13, 16, 19, 20, 25].map(rates),
            [None, None, Some(16), Some(14), Some(8), Some(2), Some(2), Some(2)]
        );
        assert_eq!(admitted_rate(19, 12, 20, 0), Some(MIN_RATE));
        // Without steps between, writes only stop.
        assert_eq!(admitted_rate(9, 5, 5, MIB), None);
    }

    #[test]
    fn a_write_waits_for_those_before_it_and_no_longer_than_the_longest_delay() {
        let controller = WriteController::new(4, 20, 8 * MIB);
        let at = |milliseconds: u64| Instant::from_nanoseconds(1_000_000_000 + milliseconds * 1_000_000);
        let admit = |tables, bytes, now| controller.admit(tables, bytes, at(now)).as_millis();
        assert_eq!(admit(11, 64 * MIB, 0), 0, "level 0 is short");
        assert_eq!([admit(12, MIB, 0), admit(12, MIB, 0), admit(12, MIB, 0)], [0, 125, 250]);
        assert_eq!(admit(16, MIB, 375), 0, "those before it have passed");
        assert_eq!(admit(16, MIB, 375), 250, "half of the rate");
        assert_eq!(admit(19, 64 * MIB, 375), 500);
        assert_eq!(admit(19, MIB, 375), 1000);
        assert_eq!(admit(19, MIB, 375), 1000);
    }

    #[test]
    fn the_rate_follows_what_compactions_take() {
        let controller = WriteController::new(4, 20, 32 * MIB);
        let note = |second| controller.note_compaction(4 * MIB, at_second(second), at_second(second + 1));
        (0..20).for_each(|number| note(10 * number));
        assert_eq!((controller.compaction_rate.get() + MIB / 2) / MIB, 4);
        // While writes are slowed, the time of other compactions counts.
        for number in 20..40 {
            controller.admit(12, 1, at_second(10 * number));
            note(10 * number);
        }
        assert_eq!((controller.compaction_rate.get() * 10 + MIB / 2) / MIB, 4);
    }

    #[test]
    fn many_small_writers_never_fill_level_0_while_one_compaction_runs() {
        // A compaction takes a minute, during which level 0 doesn't shrink; 50 clients write 1000 bytes each
        // at the admitted rate.
        const BUFFER: u64 = 64 * MIB;
        let controller = WriteController::new(4, 20, 16 * MIB);
        let (mut now, mut tables, mut filled) = (at_second(1), 12, 0);
        let mut longest = Duration::ZERO;
        while now - at_second(1) < Duration::from_secs(60) {
            let delay = (0..50).map(|_| controller.admit(tables, 1000, now)).max().unwrap_or_default();
            longest = longest.max(delay);
            now += delay.max(Duration::from_micros(100));
            filled += 50_000;
            tables += (filled / BUFFER) as usize;
            filled %= BUFFER;
        }
        assert!(tables < 20 && longest < Duration::from_millis(50), "{tables} tables, {longest:?}");
    }

    fn at_second(second: u64) -> Instant {
        Instant::from_nanoseconds(second * 1_000_000_000)
    }
}
