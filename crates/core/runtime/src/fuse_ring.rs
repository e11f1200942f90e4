//! Entries of the rings of `/dev/fuse` (Documentation/filesystems/fuse/fuse-io-uring.rst): each holds one
//! request at a time, in memory to which the kernel copies it and from which the kernel copies the reply.
//!
//! # Promises
//! - The kernel accesses the memory of an entry only while a command of the entry is in flight; the command
//!   owns the entry meanwhile.
//! - A command can't be cancelled. One whose future is dropped keeps its entry until the kernel completes it:
//!   when the connection ends, or when the ring of the shard is closed, after which the kernel no longer
//!   copies to the entry.
//!
//! The callers interpret requests and replies.

use crate::in_flight::{InFlight, submit};
use crate::message_device::MessageDevice;
use crate::operation::Operation;
use crate::shard;
use block::{Error, Result};
use std::pin::Pin;
use std::task::{Context, Poll};

pub use crate::ring_entry::{HEADER_BYTES, RingEntry};

/// Number of queues of a connection: that of the processors that the machine may have; `None` if the kernel
/// doesn't say it.
pub fn queue_count() -> Option<usize> {
    count(&std::fs::read_to_string("/sys/devices/system/cpu/possible").ok()?)
}

/// Number of processors in a list such as `0-3,8`.
fn count(list: &str) -> Option<usize> {
    let ranges = list.trim().split(',').map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (first.parse::<usize>().ok()?, last.parse::<usize>().ok()?);
        last.checked_sub(first)?.checked_add(1)
    });
    ranges.sum()
}

impl RingEntry {
    /// Returns an entry of a queue of the device's connection. Its memory takes pages at their first use.
    ///
    /// # Errors
    /// Errors of mmap(2); [`Error::Unsupported`] under simulation.
    pub fn new(device: &MessageDevice, queue: u16, payload_bytes: usize) -> Result<RingEntry> {
        if shard::is_simulated() {
            return Err(Error::unsupported("a ring of the kernel's under simulation"));
        }
        RingEntry::map(queue, payload_bytes)
            .map_err(|error| Error::from_io(&error, &format!("mapping an entry of {}", device.name())))
    }

    /// Gives the entry to the kernel, for the device's connection, and waits for its first request.
    pub fn register(self, device: &MessageDevice) -> Fetching {
        let file = device.descriptor();
        Fetching(submit(Operation::FuseEntry { file, entry: self, commit: None }))
    }

    /// Answers the request with this commit ID by the reply in the entry, and waits for the next request.
    #[inline]
    pub fn commit_and_fetch(self, device: &MessageDevice, commit: u64) -> Fetching {
        let file = device.descriptor();
        Fetching(submit(Operation::FuseEntry { file, entry: self, commit: Some(commit) }))
    }
}

/// A command of an entry in flight. Its result is 0 if the entry has a request, else a negative error number.
pub struct Fetching(InFlight);

impl Future for Fetching {
    type Output = (i32, RingEntry);

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<(i32, RingEntry)> {
        Pin::new(&mut self.0).poll(context).map(|(result, operation)| match operation {
            Operation::FuseEntry { entry, .. } => (result, entry),
            _ => unreachable!("a command of an entry comes back as one"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_of_a_list_are_counted() {
        for (list, expected) in
            [("0\n", Some(1)), ("0-1\n", Some(2)), ("0-3,8-9,11", Some(7)), ("", None), ("3-1", None)]
        {
            assert_eq!(count(list), expected, "{list:?}");
        }
    }
}
