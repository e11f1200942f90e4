//! Tracking of reads in progress: a zone is reset, and a map's memory reused, only after all reads of it have
//! ended.
//!
//! Each shard with a handle counts its own reads; no other shard accesses the count. A grace period runs a
//! task on every shard, which switches to the other of two counts and waits until the reads of the previous
//! one have ended. So a read costs two additions and no fence.

use block::Result;
use runtime::ShardIndex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};

/// Reads of one shard. All accesses are on that shard; the type is `Sync` only so that a message can carry it
/// there.
#[derive(Debug)]
pub struct ShardReads {
    shard: ShardIndex,
    /// Index of the count for new reads.
    page: AtomicU32,
    running: [AtomicU32; 2],
    /// Task that waits for the reads of a page to end.
    waiting: Mutex<Option<Waker>>,
    /// Grace periods that wait to switch the page; one runs at a time.
    turning: Mutex<Vec<Waker>>,
    is_turning: AtomicU32,
}

/// Guard of a read in progress.
#[derive(Debug)]
pub struct Reading<'a> {
    reads: &'a ShardReads,
    page: u32,
}

fn add(count: &AtomicU32, value: u32) -> u32 {
    // Only this shard changes the count: a load and a store are enough.
    let sum = count.load(Ordering::Relaxed).wrapping_add(value);
    count.store(sum, Ordering::Relaxed);
    sum
}

impl ShardReads {
    /// Creates the state of a shard without reads.
    pub fn new(shard: ShardIndex) -> Arc<Self> {
        Arc::new(ShardReads {
            shard,
            page: AtomicU32::new(0),
            running: [AtomicU32::new(0), AtomicU32::new(0)],
            waiting: Mutex::default(),
            turning: Mutex::default(),
            is_turning: AtomicU32::new(0),
        })
    }

    /// Begins a read: the results of lookups since the last await stay valid until the guard is dropped.
    #[inline]
    pub fn begin(&self) -> Reading<'_> {
        let page = self.page.load(Ordering::Relaxed);
        add(&self.running[page as usize], 1);
        Reading { reads: self, page }
    }

    /// Waits until every read that has already begun has ended. Must run on this shard.
    async fn drain(&self) {
        std::future::poll_fn(|context| {
            if self.is_turning.load(Ordering::Relaxed) == 0 {
                self.is_turning.store(1, Ordering::Relaxed);
                return Poll::Ready(());
            }
            lock(&self.turning).push(context.waker().clone());
            Poll::Pending
        })
        .await;
        let page = self.page.load(Ordering::Relaxed);
        self.page.store(1 - page, Ordering::Relaxed);
        std::future::poll_fn(|context| {
            if self.running[page as usize].load(Ordering::Relaxed) == 0 {
                return Poll::Ready(());
            }
            *lock(&self.waiting) = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
        self.is_turning.store(0, Ordering::Relaxed);
        let turning = std::mem::take(&mut *lock(&self.turning));
        turning.into_iter().for_each(Waker::wake);
    }
}

impl Drop for Reading<'_> {
    #[inline]
    fn drop(&mut self) {
        let left = add(&self.reads.running[self.page as usize], u32::MAX);
        if left == 0 && self.page != self.reads.page.load(Ordering::Relaxed) {
            let waiting = lock(&self.reads.waiting).take();
            if let Some(waker) = waiting {
                waker.wake();
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The reads of all shards.
#[derive(Debug, Default)]
pub struct Readers(Mutex<Vec<Arc<ShardReads>>>);

impl Readers {
    /// Returns the reads of this shard.
    pub fn here(&self) -> Arc<ShardReads> {
        let shard = runtime::current_shard();
        let mut all = lock(&self.0);
        if let Some(reads) = all.iter().find(|reads| reads.shard == shard) {
            return reads.clone();
        }
        let reads = ShardReads::new(shard);
        all.push(reads.clone());
        reads
    }

    /// Waits for a grace period: until every lookup and read, on any shard, that began before this call has
    /// ended.
    ///
    /// # Errors
    /// [`block::Error::Cancelled`] if a shard ends meanwhile.
    pub async fn grace(&self) -> Result<()> {
        let all: Vec<_> = lock(&self.0).clone();
        for reads in all {
            if reads.shard == runtime::current_shard() {
                reads.drain().await;
            } else {
                runtime::spawn_on(reads.shard, move || async move { reads.drain().await }).await?;
            }
        }
        Ok(())
    }
}
