//! Queued changes: they wait in order of arrival until a lane puts them into a record.
//!
//! A change that is longer than a record becomes several items of one request. The memory that a request
//! reserves is released when its last item has completed. In steady state queueing allocates nothing.

use crate::format::{Action, ENTRY, Entry};
use crate::ring::Ring;
use block::{Payload, Result};
use runtime::sync::{Notify, Permit, Semaphore};
use runtime::{RequestKey, Requests, Waiting};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

/// One change of a record.
#[derive(Debug)]
pub struct Item {
    /// Changed blocks, and the effect on them.
    pub entry: Entry,
    /// Data of a write, else empty.
    pub payload: Payload,
    /// Request to complete.
    request: RequestKey,
}

/// Limits of one record.
#[derive(Debug, Clone, Copy)]
pub struct RecordLimits {
    /// Data blocks.
    pub blocks: u64,
    /// Bytes of the header for entries and checksums.
    pub bytes: usize,
}

/// Changes that wait for a record, and the requests that they belong to.
pub struct Queue {
    items: RefCell<VecDeque<Item>>,
    /// Requests of queued items and of items in flight.
    requests: Requests,
    /// Bytes that requests may still reserve.
    memory: Rc<Semaphore>,
    /// All bytes that requests may reserve.
    memory_limit: usize,
    arrived: Notify,
}

/// Minimum data blocks per record in a full ring, if they are queued: below it headers take too large a share
/// of the ring.
const MIN_DATA: u64 = 16;

/// Number of blocks of the ring that the next record needs, where the segment has this many left. The record
/// takes the first item, and the following ones up to [`MIN_DATA`] blocks as long as they fit into the
/// segment.
fn space_for(data_blocks: impl Iterator<Item = u64>, left: u64) -> u64 {
    let mut blocks = 0;
    for more in data_blocks {
        if blocks > 0 && (blocks + more > MIN_DATA || blocks + more >= left) {
            break;
        }
        blocks += more;
    }
    match blocks < left {
        true => blocks + 1,
        // The rest of the segment stays unused.
        false => left + blocks + 1,
    }
}

impl Queue {
    /// Creates an empty queue with this limit to the bytes of requests.
    pub fn new(memory: usize) -> Self {
        Queue {
            items: RefCell::default(),
            requests: Requests::default(),
            memory: Semaphore::new(memory),
            memory_limit: memory,
            arrived: Notify::new(),
        }
    }

    /// Number of queued items.
    pub fn len(&self) -> usize {
        self.items.borrow().len()
    }

    /// Whether nothing is queued.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.items.borrow().is_empty()
    }

    /// Reserves memory if it is free and no other request waits for some. A larger request than the limit
    /// reserves all of it.
    pub fn try_reserve(&self, bytes: usize) -> Option<Permit> {
        self.memory.try_acquire(bytes.min(self.memory_limit))
    }

    /// Waits for memory.
    pub async fn reserve(&self, bytes: usize) -> Permit {
        self.memory.acquire(bytes.min(self.memory_limit)).await
    }

    /// Queues a change. The returned future waits until all of it has completed.
    pub fn submit(&self, entry: Entry, payload: Payload, memory: Option<Permit>, ring: &Ring) -> Waiting<'_> {
        let longest = ring.max_data();
        let mut items = self.items.borrow_mut();
        let request;
        if entry.count <= longest || entry.action != Action::Write {
            request = self.requests.begin(1, memory);
            items.push_back(Item { entry, payload, request });
        } else {
            request = self.requests.begin(entry.count.div_ceil(longest) as u32, memory);
            for at in (0..entry.count).step_by(longest as usize) {
                let count = longest.min(entry.count - at);
                let part = Entry { block: entry.block + at, count, ..entry };
                let payload = payload.slice(ring.bytes(at)..ring.bytes(at + count));
                items.push_back(Item { entry: part, payload, request });
            }
        }
        drop(items);
        self.arrived.notify_one();
        self.requests.wait(request)
    }

    /// Waits for an item to be queued.
    pub fn arrived(&self) -> impl Future<Output = ()> + '_ {
        self.arrived.notified()
    }

    /// Wakes all lanes.
    pub fn wake_all(&self) {
        self.arrived.notify_all();
    }

    /// Data blocks of the first item.
    pub fn first_data_blocks(&self) -> Option<u64> {
        Some(self.items.borrow().front()?.entry.data_blocks())
    }

    /// Number of blocks of the ring that the next record needs, where the segment has this many left.
    pub fn space_for_next(&self, left: u64) -> u64 {
        space_for(self.items.borrow().iter().map(|item| item.entry.data_blocks()), left)
    }

    /// Moves the first items, as many as fit a record, to a list. Returns the number of their data blocks.
    pub fn take(&self, into: &mut Vec<Item>, limits: RecordLimits) -> u64 {
        let mut queue = self.items.borrow_mut();
        let (mut items, mut blocks, mut left) = (0, 0, limits.bytes);
        for item in &*queue {
            let more = item.entry.data_blocks();
            let bytes = ENTRY + 4 * more as usize;
            if blocks + more > limits.blocks || bytes > left {
                break;
            }
            (items, blocks, left) = (items + 1, blocks + more, left - bytes);
        }
        into.extend(queue.drain(..items));
        blocks
    }

    /// Completes an item.
    pub fn complete(&self, item: Item, outcome: &Result<()>) {
        drop(item.payload);
        self.requests.item_ended(item.request, outcome);
    }

    /// Completes all queued items with this outcome.
    pub fn complete_all(&self, outcome: &Result<()>) {
        let items = self.items.take();
        items.iter().for_each(|item| self.requests.item_ended(item.request, outcome));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_waits_for_a_header_and_the_data_that_is_queued() {
        assert_eq!(space_for([1].into_iter(), 16), 2);
        assert_eq!(space_for([1; 40].into_iter(), 64), MIN_DATA + 1);
        assert_eq!(space_for([40, 1].into_iter(), 64), 41, "the first item goes at any length");
        assert_eq!(space_for([3, 2].into_iter(), 5), 4, "the second item would not fit into the segment");
        assert_eq!(space_for([5].into_iter(), 5), 11, "the rest of the segment stays unused");
    }
}
