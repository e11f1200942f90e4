//! State of the marks of one shard ([`idle`](crate::idle) appends them).

use crate::record::StreamId;
use crate::stream::Streams;
use runtime::sync::Notify;
use std::cell::Cell;

/// State of the marks of one shard.
#[derive(Debug)]
pub(crate) struct Marks {
    /// Streams of this shard, each with the number of the last record that needs no mark.
    pub(crate) streams: [(StreamId, Cell<u64>); 2],
    /// Number of appended records, marks excluded: in total, and at the time of the last request for a mark.
    pub(crate) appended: Cell<u64>,
    pub(crate) asked: Cell<u64>,
    /// A lane should append marks.
    pub(crate) is_wanted: Cell<bool>,
    /// The device below had no space since the log was opened: its remaining space isn't spent on marks.
    pub(crate) is_off: Cell<bool>,
    /// A mark was appended and isn't flushed.
    pub(crate) is_unflushed: Cell<bool>,
    /// Notified when the first record after a mark or a mark was appended, or the log is being closed.
    pub(crate) changed: Notify,
}

impl Marks {
    pub(crate) fn new(streams: &Streams, own: [StreamId; 2]) -> Self {
        Marks {
            // Recovered records are durable.
            streams: own.map(|stream| (stream, Cell::new(streams.committed(stream)))),
            appended: Cell::new(0),
            asked: Cell::new(0),
            is_wanted: Cell::new(false),
            is_off: Cell::new(false),
            is_unflushed: Cell::new(false),
            changed: Notify::new(),
        }
    }

    /// Notes that a record other than a mark was appended.
    pub(crate) fn appended(&self) {
        let is_first = self.appended.replace(self.appended.get() + 1) == self.asked.get();
        if is_first {
            self.changed.notify_all();
        }
    }

    /// Whether a lane should append marks.
    pub(crate) fn is_wanted(&self) -> bool {
        self.is_wanted.get()
    }

    /// Ends the marks because the device below has no space. A mark that failed for this reason would cost
    /// the rest of its zone.
    pub(crate) fn turn_off(&self) {
        self.is_off.set(true);
        self.is_wanted.set(false);
    }

    /// Wakes the task that requests marks.
    pub(crate) fn wake(&self) {
        self.changed.notify_all();
    }
}
