//! Operations that wait for the fast device, in the order in which they are written. A record takes the first
//! ones, which count as queued until it is written.

use crate::format::{Entry, MAX_ENTRIES};
use block::{Payload, Result};
use runtime::sync::{Notify, OneshotSender};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

/// An operation that waits for the fast device.
pub struct Queued {
    /// The operation.
    pub entry: Entry,
    /// Data of an append.
    pub payload: Payload,
    /// Completes the call.
    pub done: OneshotSender<Result<()>>,
}

/// The queue.
#[derive(Default)]
pub struct Queue {
    list: RefCell<VecDeque<Queued>>,
    /// Appended bytes of the list and of the record in flight.
    bytes: Cell<u64>,
    /// Number of operations that were pushed since the cache was opened.
    pushed: Cell<u64>,
    /// Number of these operations that completed.
    completed: Cell<u64>,
    /// Wakes the writer.
    arrived: Notify,
}

impl Queue {
    /// Adds an operation after all others.
    pub fn push(&self, entry: Entry, payload: Payload, done: OneshotSender<Result<()>>) {
        self.bytes.set(self.bytes.get() + entry.length());
        self.pushed.set(self.pushed.get() + 1);
        self.list.borrow_mut().push_back(Queued { entry, payload, done });
        self.arrived.notify_one();
    }

    /// Whether no operation waits to be taken.
    pub fn is_empty(&self) -> bool {
        self.list.borrow().is_empty()
    }

    /// Number of operations that wait to be taken.
    pub fn len(&self) -> usize {
        self.list.borrow().len()
    }

    /// Appended bytes of the queue and of the record in flight.
    pub fn bytes(&self) -> u64 {
        self.bytes.get()
    }

    /// Number of operations that were pushed so far.
    pub fn pushed(&self) -> u64 {
        self.pushed.get()
    }

    /// Whether the first `count` operations since the open have completed.
    pub fn has_completed(&self, count: u64) -> bool {
        self.completed.get() >= count
    }

    /// Waits until an operation is pushed, or [`wake`](Self::wake) is called.
    pub async fn arrival(&self) {
        self.arrived.notified().await;
    }

    /// Wakes the writer.
    pub fn wake(&self) {
        self.arrived.notify_all();
    }

    /// Takes the operations of the next record: at least one, with at most `max_bytes` of data unless one
    /// append is longer.
    pub fn take_record(&self, max_bytes: u64) -> Vec<Queued> {
        let mut list = self.list.borrow_mut();
        let mut bytes = 0;
        let fitting = list.iter().take(MAX_ENTRIES).take_while(|queued| {
            bytes += queued.entry.length();
            bytes <= max_bytes
        });
        let count = fitting.count().max(1).min(list.len());
        list.drain(..count).collect()
    }

    /// Takes all operations.
    pub fn take_all(&self) -> Vec<Queued> {
        self.list.borrow_mut().drain(..).collect()
    }

    /// Completes the calls of operations that were taken.
    pub fn complete(&self, queued: Vec<Queued>, outcome: &Result<()>) {
        let bytes: u64 = queued.iter().map(|queued| queued.entry.length()).sum();
        self.bytes.set(self.bytes.get() - bytes);
        self.completed.set(self.completed.get() + queued.len() as u64);
        for Queued { done, .. } in queued {
            // The receiver of a call that was dropped doesn't exist any more.
            let _ = done.send(outcome.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::Action;
    use block::ZoneIndex;
    use runtime::sync::oneshot;

    #[test]
    fn a_record_takes_what_fits_and_one_longer_append_alone() {
        let queue = Queue::default();
        let push = |length| {
            let (done, _) = oneshot();
            queue.push(Entry { length, ..Entry::of(Action::Append, ZoneIndex(0), 0) }, Payload::new(), done);
        };
        [100, 200, 5000, 300].into_iter().for_each(push);
        let lengths = |queued: &[Queued]| queued.iter().map(|queued| queued.entry.length).collect::<Vec<_>>();
        let first = queue.take_record(1000);
        assert_eq!(lengths(&first), [100, 200]);
        assert_eq!((queue.len(), queue.bytes(), queue.has_completed(1)), (2, 5600, false));
        queue.complete(first, &Ok(()));
        assert_eq!((queue.bytes(), queue.has_completed(2), queue.has_completed(3)), (5300, true, false));
        assert_eq!(lengths(&queue.take_record(1000)), [5000]);
        (0..MAX_ENTRIES as u32).for_each(|_| push(0));
        assert_eq!(queue.take_record(1000).len(), MAX_ENTRIES);
        assert_eq!((queue.take_all().len(), queue.take_record(1000).len()), (1, 0));
        assert_eq!(queue.pushed(), 4 + MAX_ENTRIES as u64);
    }
}
