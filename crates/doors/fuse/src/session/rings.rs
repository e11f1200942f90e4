//! Rings: requests come in entries of memory that the kernel has, one command for each reply and the next
//! request, instead of a read and a write of `/dev/fuse` and of a poll where there is no request yet.
//!
//! The kernel has a queue for each possible processor, with the requests of the programs that run there. The
//! queues are distributed over the shards. The kernel begins to use the rings when every queue has an entry;
//! if it refuses one, all requests come by the devices. FORGET, INTERRUPT and notifications always take the
//! devices.
//!
//! # Memory
//! All queues together have at most [`REQUESTS`] entries for each shard, each with [`MAX_WRITE`] bytes, which
//! take pages at their first use.
//!
//! # End
//! A command can't be cancelled, and it keeps the connection open. So a session with rings that ends without
//! an unmount aborts its connection. The kernel neither fails nor resends requests in the rings of a server
//! that was killed while another process has a device of the connection. So sessions that another process may
//! take over have no rings.

use super::{Ended, REQUESTS, Served, Workers, reply_to, until, violation};
use crate::negotiation::MAX_WRITE;
use crate::protocol::opcode;
use crate::{reply, ring_frame};
use block::{Error, Result};
use runtime::fuse_ring::{self, RingEntry};
use std::cell::Cell;
use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::Ordering;

/// Number of entries of a queue that are reserved for the kernel's write-back: seeks that wait for it don't
/// take them.
const WRITE_BACK_ENTRIES: usize = 4;
/// Fewest entries of a queue with which rings are used.
const MIN_ENTRIES: usize = 2 * WRITE_BACK_ENTRIES;

/// Number of queues of a connection, and of entries of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rings {
    queues: usize,
    entries: usize,
}

impl Rings {
    /// Returns the rings of a session with this number of shards; `None` if each queue would have less than
    /// [`MIN_ENTRIES`].
    pub fn of(shards: usize) -> Option<Rings> {
        Rings::with(fuse_ring::queue_count()?, shards)
    }

    fn with(queues: usize, shards: usize) -> Option<Rings> {
        let entries = (REQUESTS * shards / queues.max(1)).min(REQUESTS);
        (entries >= MIN_ENTRIES).then_some(Rings { queues, entries })
    }
}

/// A queue of the kernel on its shard.
struct Queue {
    /// Number of its requests that may wait for the kernel's write-back, which needs entries as well.
    seeks_left: Cell<usize>,
    /// Whether the kernel has refused an entry.
    is_refused: Cell<bool>,
}

/// Gives the entries of this shard's queues to the kernel.
///
/// # Errors
/// Errors of [`RingEntry::new`].
pub(super) fn start(workers: &Rc<Workers>, served: &Served, rings: Rings) -> Result<()> {
    let (shard, shards) = (runtime::current_shard().0, runtime::shard_count());
    let mut entries = Vec::new();
    for number in (shard..rings.queues).step_by(shards) {
        let seeks_left = Cell::new(rings.entries - WRITE_BACK_ENTRIES);
        let queue = Rc::new(Queue { seeks_left, is_refused: Cell::new(false) });
        for _ in 0..rings.entries {
            entries.push((queue.clone(), RingEntry::new(&served.device, number as u16, MAX_WRITE)?));
        }
    }
    // All or none: the caller serves nothing after an error.
    entries.into_iter().for_each(|(queue, entry)| add_worker(workers, served, queue, entry));
    Ok(())
}

fn add_worker(workers: &Rc<Workers>, served: &Served, queue: Rc<Queue>, entry: RingEntry) {
    workers.entries.set(workers.entries.get() + 1);
    let (workers, served) = (workers.clone(), served.clone());
    runtime::spawn(async move {
        let ended = work(&workers, &served, &queue, entry).await;
        drop(served);
        workers.entries.set(workers.entries.get() - 1);
        workers.ended.notify_all();
        if let Err(ended) = ended {
            workers.shared.end(ended);
        }
    })
    .detach();
}

/// Answers the requests of an entry until the session ends.
async fn work(workers: &Workers, served: &Served, queue: &Queue, entry: RingEntry) -> Result<(), Ended> {
    let mut stopped = pin!(workers.stop.notified());
    let (mut fetching, mut is_registered) = (entry.register(&served.device), false);
    while !workers.stopping.get() {
        let Some((result, mut entry)) = until(stopped.as_mut(), fetching).await else { return Ok(()) };
        if result != 0 {
            return end(-result, is_registered, queue);
        }
        if !is_registered {
            is_registered = true;
            workers.shared.uses_rings.store(true, Ordering::Relaxed);
        }
        let (request, commit) = ring_frame::request(entry.headers(), entry.payload()).map_err(violation)?;
        let unique = request.header.unique;
        let reply = match request.header.opcode {
            opcode::LSEEK if queue.seeks_left.get() == 0 => Some(reply::error(unique, libc::EBUSY)),
            opcode::LSEEK => {
                queue.seeks_left.set(queue.seeks_left.get() - 1);
                let reply = reply_to(workers, served, request).await;
                queue.seeks_left.set(queue.seeks_left.get() + 1);
                reply?
            }
            _ => reply_to(workers, served, request).await?,
        };
        let (headers, payload) = entry.parts_mut();
        ring_frame::put_reply(&reply.unwrap_or_else(|| reply::done(unique)), commit, headers, payload);
        fetching = entry.commit_and_fetch(&served.device, commit);
    }
    Ok(())
}

/// Ends an entry whose command failed with this error number.
fn end(errno: i32, is_registered: bool, queue: &Queue) -> Result<(), Ended> {
    match errno {
        // The connection has ended. Its devices say why.
        libc::ENOTCONN | libc::ECONNABORTED | libc::ECANCELED => Ok(()),
        // The kernel sends all requests to the devices.
        _ if !is_registered => {
            if !queue.is_refused.replace(true) {
                let error = Error::from_errno(errno, "giving entries of a ring to the kernel");
                tracing::warn!("{error}; requests are read from the FUSE device");
            }
            Ok(())
        }
        _ => Err(Ended::Failed(Error::from_errno(errno, "answering a FUSE request by a ring"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_queues_together_have_the_requests_of_the_shards() {
        for (queues, shards, expected) in
            [(2, 2, Some(64)), (2, 1, Some(32)), (2, 8, Some(64)), (8, 1, Some(8)), (9, 1, None)]
        {
            let rings = Rings::with(queues, shards);
            assert_eq!(rings.map(|rings| rings.entries), expected, "{queues} queues, {shards} shards");
            assert!(rings.is_none_or(|rings| rings.entries * queues <= REQUESTS * shards));
        }
        assert!(fuse_ring::queue_count().is_some_and(|count| count >= 1));
    }
}
