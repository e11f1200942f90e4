//! Positions of the log, and which of its records are durable.
//!
//! Records are written one after the other. A record is durable after a flush of the fast device that began
//! after it was written, or after a durable write of its own. The log counts it as durable once all records
//! before it are, since recovery ends at the first record that is missing.

use crate::format::Position;
use block::Durability;
use runtime::sync::Notify;
use std::cell::Cell;

/// Positions of the log.
#[derive(Debug, Default)]
pub struct Log {
    /// Address and number of the next record.
    pub head: Cell<Position>,
    /// Number of the last record that was written; all earlier ones were written as well.
    completed: Cell<u64>,
    /// Number of a record up to which all records are durable.
    durable: Cell<u64>,
    /// First and last number of a run of durably written records that follows one that isn't durable yet.
    ahead: Cell<Option<(u64, u64)>>,
    /// Number of flushes by users.
    flush_epoch: Cell<u64>,
    /// Whether a record was formed since the last flush by a user.
    is_epoch_used: Cell<bool>,
    /// Whether a flush of the fast device is in flight.
    pub is_flushing: Cell<bool>,
    /// Notified at the end of each flush.
    pub flushed: Notify,
}

impl Log {
    /// Continues after recovery.
    pub fn new(head: Position, flush_epoch: u64) -> Self {
        let last = head.record - 1;
        Log {
            head: Cell::new(head),
            completed: Cell::new(last),
            durable: Cell::new(last),
            flush_epoch: Cell::new(flush_epoch),
            ..Log::default()
        }
    }

    /// Returns the flush epoch of a record that is formed now, and whether it is the first one of that epoch.
    pub fn add_record(&self) -> (u64, bool) {
        (self.flush_epoch.get(), !self.is_epoch_used.replace(true))
    }

    /// Ends the flush epoch: records that are formed later follow a flush.
    pub fn end_epoch(&self) {
        if self.is_epoch_used.replace(false) {
            self.flush_epoch.set(self.flush_epoch.get() + 1);
        }
    }

    /// Number of the last record that was written; all earlier ones were written as well.
    pub fn completed(&self) -> u64 {
        self.completed.get()
    }

    /// Number of a record up to which all records are durable.
    pub fn durable(&self) -> u64 {
        self.durable.get()
    }

    /// Notes that the next record was written, with this guarantee.
    pub fn note_written(&self, record: u64, durability: Durability) {
        self.completed.set(record);
        if durability == Durability::Durable {
            let before = self.ahead.get().filter(|(_, last)| last + 1 == record);
            self.ahead.set(Some((before.map_or(record, |(first, _)| first), record)));
            self.note_durable(self.durable.get());
        }
    }

    /// Notes that all records up to this one are durable.
    pub fn note_durable(&self, record: u64) {
        let record = self.durable.get().max(record);
        let durable = match self.ahead.get() {
            Some((first, last)) if first <= record + 1 => {
                self.ahead.set(None);
                record.max(last)
            }
            _ => record,
        };
        self.durable.set(durable);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Durability::{Durable, Visible};

    /// Log whose last record has number 10.
    fn log() -> Log {
        Log::new(Position { record: 11, ..Position::default() }, 0)
    }

    #[test]
    fn the_first_record_after_a_flush_begins_an_epoch() {
        let log = log();
        assert_eq!(log.add_record(), (0, true));
        assert_eq!(log.add_record(), (0, false));
        log.end_epoch();
        log.end_epoch();
        assert_eq!((log.add_record(), log.add_record()), ((1, true), (1, false)));
    }

    #[test]
    fn a_record_is_durable_once_all_before_it_are() {
        let log = log();
        log.note_written(11, Durable);
        assert_eq!(log.durable(), 11);
        log.note_written(12, Visible);
        log.note_written(13, Durable);
        log.note_written(14, Durable);
        assert_eq!((log.completed(), log.durable()), (14, 11));
        log.note_durable(11);
        assert_eq!(log.durable(), 11, "a flush that began before record 12 was written");
        log.note_durable(12);
        assert_eq!(log.durable(), 14);
        log.note_durable(12);
        assert_eq!(log.durable(), 14, "a flush that ends late");
    }

    #[test]
    fn durable_records_between_others_need_a_flush() {
        let log = log();
        for (record, durability) in [(11, Visible), (12, Durable), (13, Visible), (14, Durable)] {
            log.note_written(record, durability);
        }
        log.note_durable(11);
        assert!(log.durable() < 13);
        log.note_durable(13);
        assert_eq!(log.durable(), 14);
    }

    #[test]
    fn a_flush_covers_durable_records_as_well() {
        let log = log();
        log.note_written(11, Visible);
        log.note_written(12, Durable);
        log.note_durable(12);
        assert_eq!(log.durable(), 12);
        log.note_written(13, Visible);
        assert_eq!(log.durable(), 12);
    }
}
