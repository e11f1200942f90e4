//! Record of the requests in flight, in memory that the front-end keeps, so that they are resubmitted after
//! the server was killed ("Inflight I/O tracking" of the vhost-user specification, split virtqueue).
//!
//! A queue has a header of 16 bytes (features, version, number of entries, head of the last batch, used
//! index) and an entry of 16 bytes per descriptor (whether it is in flight, the next head of its batch, its
//! number in the order of submission). The order of the stores is that of the specification, so that
//! [`InflightQueue::recover`] can read the state after a kill at any moment. The front-end isn't trusted: an
//! index out of range is an error.

use super::protocol::InflightDescription;
use block::{Error, Result};
use runtime::shared_memory::SharedMemory;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const ENTRY_BYTES: usize = 16;
const HEADER_BYTES: usize = 16;
/// Alignment of a queue's part, in bytes.
const ALIGNMENT: usize = 64;
const VERSION: u16 = 1;
/// Offsets in the header, in bytes.
const VERSION_AT: usize = 8;
const ENTRIES_AT: usize = 10;
const LAST_BATCH_AT: usize = 12;
const USED_AT: usize = 14;
/// Offsets in an entry, in bytes.
const NEXT_AT: usize = 6;
const NUMBER_AT: usize = 8;

/// Shared memory for the requests in flight of all queues.
#[derive(Clone)]
pub struct Inflight {
    memory: Arc<SharedMemory>,
    queues: u16,
    queue_size: u16,
}

/// Part of one queue.
pub struct InflightQueue {
    memory: Arc<SharedMemory>,
    start: usize,
    entries: u16,
    /// Number of the next request.
    next_number: u64,
    /// Heads that were completed and not published yet.
    batch: Vec<u16>,
}

fn bytes_per_queue(queue_size: u16) -> usize {
    (HEADER_BYTES + ENTRY_BYTES * usize::from(queue_size)).next_multiple_of(ALIGNMENT)
}

fn check(description: &InflightDescription, most_queues: usize) -> Result<u64> {
    let InflightDescription { queues, queue_size, .. } = *description;
    if queues == 0 || usize::from(queues) > most_queues || queue_size == 0 {
        return Err(Error::protocol(format!(
            "requests in flight of {queues} queues of {queue_size} entries: expected 1 to {most_queues} queues with entries"
        )));
    }
    Ok(bytes_per_queue(queue_size) as u64 * u64::from(queues))
}

impl Inflight {
    /// Creates memory for this many queues. Returns its description and descriptor.
    ///
    /// # Errors
    /// [`Error::Protocol`] for numbers out of range; errors of the kernel.
    pub fn create(asked: &InflightDescription, most_queues: usize) -> Result<(InflightDescription, OwnedFd)> {
        let length = check(asked, most_queues)?;
        let (_, descriptor) = SharedMemory::create("vhost-user-inflight", length)?;
        Ok((InflightDescription { length, offset: 0, ..*asked }, descriptor))
    }

    /// Maps memory that the front-end keeps.
    ///
    /// # Errors
    /// [`Error::Protocol`] for numbers out of range, or memory that is too small for them; errors of the
    /// kernel.
    pub fn map(given: &InflightDescription, descriptor: &OwnedFd, most_queues: usize) -> Result<Inflight> {
        let needed = check(given, most_queues)?;
        if given.length < needed {
            return Err(Error::protocol(format!(
                "requests in flight: {} bytes of memory; expected at least {needed}",
                given.length
            )));
        }
        let memory = SharedMemory::map(descriptor, given.offset, needed)?;
        if !memory.is_aligned(0, 8) {
            return Err(Error::protocol(
                "requests in flight: memory at an odd offset; expected a multiple of 8",
            ));
        }
        Ok(Inflight { memory: Arc::new(memory), queues: given.queues, queue_size: given.queue_size })
    }

    /// Returns the part of a queue of `size` entries.
    ///
    /// # Errors
    /// [`Error::Protocol`] for a queue index out of range, or a queue with more entries than the memory has.
    pub fn queue(&self, index: usize, size: u16) -> Result<InflightQueue> {
        if index >= usize::from(self.queues) || size > self.queue_size {
            return Err(Error::protocol(format!(
                "requests in flight of {} queues of {} entries: queue {index} has {size} entries",
                self.queues, self.queue_size
            )));
        }
        let start = index * bytes_per_queue(self.queue_size);
        Ok(InflightQueue {
            memory: self.memory.clone(),
            start,
            entries: size,
            next_number: 0,
            batch: Vec::new(),
        })
    }
}

impl InflightQueue {
    fn entry(&self, head: u16) -> usize {
        debug_assert!(head < self.entries);
        self.start + HEADER_BYTES + ENTRY_BYTES * usize::from(head)
    }

    fn load(&self, at: usize) -> u16 {
        u16::from_le(self.memory.u16(self.start + at).load(Ordering::Acquire))
    }

    fn store(&self, at: usize, value: u16) {
        self.memory.u16(self.start + at).store(value.to_le(), Ordering::Release);
    }

    fn check_head(&self, head: u16) -> Result<u16> {
        match head < self.entries {
            true => Ok(head),
            false => Err(Error::protocol(format!(
                "requests in flight: head {head} out of range 0..{}",
                self.entries
            ))),
        }
    }

    /// Returns the heads that were in flight when the previous server ended, in the order of their
    /// submission. `used` is the index of the queue's used ring.
    ///
    /// # Errors
    /// [`Error::Protocol`] for an invalid record.
    pub fn recover(&mut self, used: u16) -> Result<Vec<u16>> {
        if self.load(VERSION_AT) == 0 {
            self.store(ENTRIES_AT, self.entries);
            self.store(USED_AT, used);
            self.store(VERSION_AT, VERSION);
        }
        let (version, entries) = (self.load(VERSION_AT), self.load(ENTRIES_AT));
        if version != VERSION || entries < self.entries {
            return Err(Error::protocol(format!(
                "requests in flight: version {version} with {entries} entries; expected version {VERSION} with {}",
                self.entries
            )));
        }
        // The server ended between publishing a batch and recording that.
        let unrecorded = used.wrapping_sub(self.load(USED_AT));
        if unrecorded > self.entries {
            return Err(Error::protocol(format!(
                "requests in flight: a batch of {unrecorded}; expected at most {}",
                self.entries
            )));
        }
        let mut head = self.load(LAST_BATCH_AT);
        for _ in 0..unrecorded {
            let entry = self.entry(self.check_head(head)?);
            self.memory.u8(entry).store(0, Ordering::Release);
            head = self.load(entry - self.start + NEXT_AT);
        }
        self.store(USED_AT, used);
        let in_flight = (0..self.entries).filter_map(|head| {
            let entry = self.entry(head);
            let number = u64::from_le(self.memory.u64(entry + NUMBER_AT).load(Ordering::Acquire));
            (self.memory.u8(entry).load(Ordering::Acquire) != 0).then_some((number, head))
        });
        let mut in_flight: Vec<(u64, u16)> = in_flight.collect();
        in_flight.sort_unstable();
        self.next_number = in_flight.last().map_or(0, |last| last.0.wrapping_add(1));
        Ok(in_flight.into_iter().map(|(_, head)| head).collect())
    }

    /// Records that a request is submitted.
    #[inline]
    pub fn submit(&mut self, head: u16) {
        let entry = self.entry(head);
        self.memory.u64(entry + NUMBER_AT).store(self.next_number.to_le(), Ordering::Release);
        self.next_number = self.next_number.wrapping_add(1);
        self.memory.u8(entry).store(1, Ordering::SeqCst);
    }

    /// Records that a request is completed, before the batch that it belongs to is published.
    #[inline]
    pub fn complete(&mut self, head: u16) {
        let entry = self.entry(head);
        self.store(entry - self.start + NEXT_AT, self.load(LAST_BATCH_AT));
        self.store(LAST_BATCH_AT, head);
        self.batch.push(head);
    }

    /// Records that the batch was published with this index of the used ring.
    #[inline]
    pub fn published(&mut self, used: u16) {
        for head in self.batch.drain(..) {
            let entry = self.start + HEADER_BYTES + ENTRY_BYTES * usize::from(head);
            self.memory.u8(entry).store(0, Ordering::SeqCst);
        }
        self.store(USED_AT, used);
    }

    /// Whether the record is still in the memory that the front-end keeps.
    pub fn is_intact(&self) -> bool {
        self.memory.is_intact()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fresh() -> (Inflight, OwnedFd, InflightDescription) {
        let asked = InflightDescription { length: 0, offset: 0, queues: 2, queue_size: 8 };
        let (description, descriptor) = Inflight::create(&asked, 4).expect("memory");
        let inflight = Inflight::map(&description, &descriptor, 4).expect("mapped");
        (inflight, descriptor, description)
    }

    #[test]
    fn a_killed_server_leaves_its_requests_in_order() {
        let (inflight, descriptor, description) = fresh();
        let mut queue = inflight.queue(1, 8).expect("a queue");
        assert_eq!(queue.recover(0), Ok(vec![]));
        [5, 2, 7, 0].into_iter().for_each(|head| queue.submit(head));
        queue.complete(2);
        queue.published(1);
        // Killed here; its successor is killed between publishing and recording that.
        let again = Inflight::map(&description, &descriptor, 4).expect("mapped");
        let mut queue = again.queue(1, 8).expect("a queue");
        assert_eq!(queue.recover(1), Ok(vec![5, 7, 0]));
        queue.submit(3);
        queue.complete(7);
        queue.complete(5);
        let mut last = inflight.queue(1, 8).expect("a queue");
        assert_eq!(last.recover(3), Ok(vec![0, 3]));
        assert_eq!(inflight.queue(0, 8).expect("the other queue").recover(0), Ok(vec![]));
    }

    #[test]
    fn a_completion_that_wasnt_published_is_still_in_flight() {
        let (inflight, ..) = fresh();
        let mut queue = inflight.queue(0, 8).expect("a queue");
        assert_eq!(queue.recover(100), Ok(vec![]));
        [1, 4].into_iter().for_each(|head| queue.submit(head));
        queue.complete(4);
        let mut next = inflight.queue(0, 8).expect("a queue");
        assert_eq!(next.recover(100), Ok(vec![1, 4]));
    }

    #[test]
    fn records_that_cant_be_are_refused() {
        let (inflight, descriptor, description) = fresh();
        assert!(inflight.queue(2, 8).is_err() && inflight.queue(0, 16).is_err());
        let larger = InflightDescription { queues: 3, ..description };
        assert!(Inflight::map(&larger, &descriptor, 4).is_err(), "not as much memory");
        for (queues, queue_size) in [(0, 8), (5, 8), (1, 0)] {
            let asked = InflightDescription { queues, queue_size, ..description };
            assert!(Inflight::create(&asked, 4).is_err());
        }
        let odd = InflightDescription { offset: 4, queues: 1, ..description };
        assert!(Inflight::map(&odd, &descriptor, 4).is_err());
        let mut queue = inflight.queue(0, 8).expect("a queue");
        queue.recover(0).expect("fresh");
        assert!(queue.recover(9).is_err(), "a batch of nine");
        queue.store(LAST_BATCH_AT, 8);
        assert!(queue.recover(1).is_err(), "a head out of range");
        queue.store(VERSION_AT, 2);
        assert!(queue.recover(0).is_err());
    }
}
