//! Durability of a part's file: its syncs, and its state after one of them has failed.
//!
//! # Promises
//! - Once a sync or a durable write has failed, every later flush and durable write fails until the part is
//!   built again.
//! - Once a sync or a durable write has failed, every later flush and durable write fails until the part is
//!   built again. Linux drops the data that failed write-back didn't write, and reports the error once per
//!   open file description (errseq). So a later sync that succeeds doesn't show that this data is durable.
//! - One sync runs at a time, on a file description that all shards share and that has no other use. It is
//!   opened with the part, so it reports an error of write-back for every write of the part, and a durable
//!   write can't consume that error.
//! - A flush during a sync waits for the next sync, and shares it with the other waiting flushes.
//!
//! A caller that must not abandon a sync carries it to its end ([`runtime::carry`]). A sync that is dropped
//! with its shard is treated as failed.

use block::{Error, Result};
use runtime::file::File;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

/// Durability of a part's file, shared by all shards.
#[derive(Default)]
pub(super) struct FileDurability {
    failed: AtomicBool,
    syncs: Mutex<Syncs>,
}

#[derive(Default)]
struct Syncs {
    /// Number of syncs that have begun.
    begun: u64,
    /// Number of syncs that have ended: one less than `begun` during a sync.
    ended: u64,
    /// Wakers of the flushes that wait for the sync in flight.
    waiting: Vec<Waker>,
}

/// The sync in flight. If it is dropped before its result is known, it is treated as failed.
struct Running<'a> {
    durability: &'a FileDurability,
    succeeded: bool,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if !self.succeeded {
            self.durability.fail();
        }
        let mut syncs = self.durability.lock();
        syncs.ended = syncs.begun;
        syncs.waiting.drain(..).for_each(Waker::wake);
    }
}

impl FileDurability {
    /// Whether a sync or a durable write has failed.
    pub(super) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// Makes every later flush and durable write fail.
    pub(super) fn fail(&self) {
        self.failed.store(true, Ordering::Release);
    }

    /// Returns an error if a sync or a durable write has failed.
    pub(super) fn check(&self, name: &str) -> Result<()> {
        if self.has_failed() {
            return Err(Error::io(format!(
                "{name}: an earlier flush or durable write failed, so what was written before it may be lost; reopen and \
                 check it"
            )));
        }
        Ok(())
    }

    /// Makes every write durable that ended before this call. `file` is a descriptor of the part's file
    /// description for syncs.
    pub(super) async fn sync(&self, file: &File) -> Result<()> {
        self.check(file.name())?;
        let Some(mut running) = self.begin_or_share().await else { return self.check(file.name()) };
        let result = file.sync_data().await;
        running.succeeded = result.is_ok();
        drop(running);
        // A durable write may have failed meanwhile; the kernel has then reported the error only to that
        // write.
        result.and_then(|()| self.check(file.name()))
    }

    /// Begins a sync as soon as none is in flight. `None` if another caller's sync began after this call and
    /// has ended.
    async fn begin_or_share(&self) -> Option<Running<'_>> {
        let arrival = self.lock().begun;
        poll_fn(|context| {
            let mut syncs = self.lock();
            if syncs.ended > arrival {
                return Poll::Ready(None);
            }
            if syncs.begun > syncs.ended {
                if !syncs.waiting.iter().any(|waker| waker.will_wake(context.waker())) {
                    syncs.waiting.push(context.waker().clone());
                }
                return Poll::Pending;
            }
            syncs.begun += 1;
            Poll::Ready(Some(Running { durability: self, succeeded: false }))
        })
        .await
    }

    fn lock(&self) -> MutexGuard<'_, Syncs> {
        self.syncs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
