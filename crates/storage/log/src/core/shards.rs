//! A home shard of the log among the others.
//!
//! The first shard is the home of the log: its core has the versions' page tables, and runs the cleaner,
//! resets, checkpoints and changes of versions. Each shard has maps, streams, lanes and admission for its
//! blocks.

use super::Core;
use crate::full_warning::FullWarning;
use block::Result;
use runtime::{Home, ShardIndex};
use std::cell::OnceCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Addresses of the cores of all shards.
pub type Homes = Arc<[Home<Core>]>;

/// Shard of the runtime that runs a shard of a log which is opened on this one.
pub fn place_of(shard: u32) -> ShardIndex {
    let here = runtime::current_shard().0;
    ShardIndex((here + shard as usize) % runtime::shard_count())
}

/// Use of space by one shard, which alone writes it; all shards read it.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Used {
    /// Blocks of capacity that are reserved for changes that are queued or in flight.
    growing: AtomicU64,
    /// Dirty pages of all versions.
    dirty: AtomicU64,
    /// Dirty pages of versions larger than the disk, those that a checkpoint is writing included.
    thin: AtomicU64,
}

/// Use of space by all shards.
#[derive(Debug)]
pub struct Totals {
    used: Box<[Used]>,
    /// Blocks of the newest directory, as the home knows them.
    directory: AtomicU64,
    pub(super) warning: FullWarning,
}

impl Totals {
    /// Returns totals of 0 for a number of shards.
    pub fn new(shards: u32) -> Arc<Self> {
        Arc::new(Totals {
            used: (0..shards).map(|_| Used::default()).collect(),
            directory: AtomicU64::new(0),
            warning: FullWarning::default(),
        })
    }
}

/// A shard among the others.
pub struct Peers {
    index: u32,
    totals: Arc<Totals>,
    /// All shards; set once, after they are created.
    homes: OnceCell<Homes>,
}

impl Peers {
    /// Returns the shard with this number, before it knows the others.
    pub fn new(index: u32, totals: Arc<Totals>) -> Self {
        Peers { index, totals, homes: OnceCell::new() }
    }

    /// Sets the addresses of all shards; called once.
    pub fn set(&self, homes: Homes) {
        self.homes.set(homes).ok();
    }

    /// Number of the shard.
    #[inline]
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Number of shards.
    #[inline]
    pub fn count(&self) -> u32 {
        self.totals.used.len() as u32
    }

    /// Whether the log has one shard.
    #[inline]
    pub fn is_alone(&self) -> bool {
        self.totals.used.len() == 1
    }

    /// Addresses of all shards.
    pub fn homes(&self) -> &Homes {
        self.homes.get().expect("the addresses of all shards are set before any operation")
    }

    /// The home of the log.
    pub fn first(&self) -> &Home<Core> {
        &self.homes()[0]
    }

    pub(super) fn totals(&self) -> &Totals {
        &self.totals
    }

    /// Reserves capacity for a change of this shard. Returns the blocks that it had reserved before.
    pub(super) fn reserve(&self, blocks: u64) -> u64 {
        let growing = &self.totals.used[self.index as usize].growing;
        let before = growing.load(Ordering::Relaxed);
        growing.store(before + blocks, Ordering::Release);
        before
    }

    /// Blocks that the other shards have reserved. Of two shards that reserve blocks and then ask for those
    /// of the other, at least one sees them.
    pub(super) fn growing_of_others(&self) -> u64 {
        if self.is_alone() {
            return 0;
        }
        fence(Ordering::SeqCst);
        // A shard returns capacity after it has counted the blocks as live.
        self.sum_of_others(|used| used.growing.load(Ordering::Acquire))
    }

    fn sum_of_others(&self, part: impl Fn(&Used) -> u64) -> u64 {
        let others = self.totals.used.iter().enumerate().filter(|(index, _)| *index != self.index as usize);
        others.map(|(_, used)| part(used)).sum()
    }

    /// Returns reserved capacity.
    pub(super) fn release(&self, blocks: u64) {
        let growing = &self.totals.used[self.index as usize].growing;
        growing.store(growing.load(Ordering::Relaxed) - blocks, Ordering::Release);
    }

    /// Publishes the number of dirty pages of this shard, and of those of versions larger than the disk.
    pub(super) fn publish_dirty(&self, dirty: u64, thin: u64) {
        let own = &self.totals.used[self.index as usize];
        own.dirty.store(dirty, Ordering::Relaxed);
        own.thin.store(thin, Ordering::Relaxed);
    }

    /// Sum of the published dirty pages of the other shards: of all versions, and of those larger than the
    /// disk.
    pub(super) fn dirty_of_others(&self) -> (u64, u64) {
        let sum =
            |part: fn(&Used) -> &AtomicU64| self.sum_of_others(|used| part(used).load(Ordering::Relaxed));
        (sum(|used| &used.dirty), sum(|used| &used.thin))
    }

    /// Publishes the number of blocks of the newest directory.
    pub(super) fn publish_directory(&self, blocks: u64) {
        self.totals.directory.store(blocks, Ordering::Relaxed);
    }

    /// Number of blocks of the newest directory that the home has published.
    pub(super) fn directory(&self) -> u64 {
        self.totals.directory.load(Ordering::Relaxed)
    }

    /// Runs `work` on each other shard, one after the other, and collects the results.
    ///
    /// # Errors
    /// The first error of `work`; [`block::Error::Closed`] for a shard that has ended.
    pub async fn each_other<R, Fut>(
        &self,
        work: impl Fn(std::rc::Rc<Core>) -> Fut + Clone + Send + 'static,
    ) -> Result<Vec<R>>
    where
        R: Send + 'static,
        Fut: Future<Output = Result<R>> + 'static,
    {
        if self.is_alone() {
            return Ok(Vec::new());
        }
        let others = self.homes().iter().enumerate().filter(|(index, _)| *index != self.index as usize);
        let calls = others.map(|(_, home)| home.with(work.clone()));
        runtime::join_all(calls).await.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_blocks_of_all_shards_are_seen() {
        let totals = Totals::new(3);
        let [a, b] = [0, 2].map(|index| Peers::new(index, totals.clone()));
        assert_eq!([a.reserve(5), b.reserve(7), a.reserve(1)], [0, 0, 5]);
        assert_eq!([a.growing_of_others(), b.growing_of_others()], [7, 6]);
        b.release(7);
        assert_eq!(a.growing_of_others(), 0);
        a.publish_dirty(3, 2);
        b.publish_dirty(10, 0);
        assert_eq!([a.dirty_of_others(), b.dirty_of_others()], [(10, 0), (3, 2)]);
    }
}
