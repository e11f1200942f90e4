//! What may be called durable: the syncs of a part's file, and what becomes of it after a failure.
//!
//! Promises: once a sync or a durable write has failed, every later flush and durable write fails until the part is built again.
//! Linux drops what failed write-back didn't write, and reports that once per open file description (errseq), so a later sync
//! that succeeds says nothing. One sync runs at a time, on one file description for all shards that nothing else uses: it is as old
//! as the part, so it has an error to report for every write of the part, and no durable write can take that error. A flush that
//! arrives while a sync runs waits for the next one, and shares it with all others that wait.
//!
//! Left to others: carrying a sync to its end when its caller goes away ([`runtime::carry`]); a sync that is torn down with its
//! shard counts as failed.

use block::{Error, Result};
use runtime::file::File;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

/// State of a part's file that all shards share.
#[derive(Default)]
pub(super) struct FileDurability {
    failed: AtomicBool,
    syncs: Mutex<Syncs>,
}

#[derive(Default)]
struct Syncs {
    /// Number of syncs that have begun.
    begun: u64,
    /// Number of syncs that have ended: one less than `begun` while one runs.
    ended: u64,
    /// Flushes that wait for the sync that runs.
    waiting: Vec<Waker>,
}

/// The sync that runs. Dropped before its result is known, it has failed.
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

    pub(super) fn fail(&self) {
        self.failed.store(true, Ordering::Release);
    }

    /// Fails if nothing can be called durable any more.
    pub(super) fn check(&self, name: &str) -> Result<()> {
        if self.has_failed() {
            return Err(Error::io(format!(
                "{name}: an earlier flush or durable write failed, so what was written before it may be lost; reopen and \
                 check it"
            )));
        }
        Ok(())
    }

    /// Makes durable what was written before this call. `file` is a descriptor of the part's description for syncs.
    pub(super) async fn sync(&self, file: &File) -> Result<()> {
        self.check(file.name())?;
        let Some(mut running) = self.begin_or_share().await else { return self.check(file.name()) };
        let result = file.sync_data().await;
        running.succeeded = result.is_ok();
        drop(running);
        // A durable write may have failed meanwhile, and have been told what would have been told here.
        result.and_then(|()| self.check(file.name()))
    }

    /// Begins a sync as soon as none runs; `None` once another caller's sync, which began after this call, has ended.
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
