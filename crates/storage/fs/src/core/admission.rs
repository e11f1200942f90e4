//! Admission of operations: refuses those for which there is no space or memory, and delays those that exceed
//! the bounds of operations and writes in memory, that compete with other classes, or that begin while a
//! snapshot is taken.

use crate::classes::fair_queue::ClassNumber;
use crate::classes::{Classes, Turn};
use crate::core::geometry;
use crate::core::settings::{REMOVAL_RESERVE, Settings, reserved_zones};
use crate::core::shards::Totals;
use crate::format::BLOCK;
use crate::snapshots::gate::Gate;
use block::{Error, Result};
use logkit::Kit;
use logkit::recovery::Goal;
use runtime::sync::{Permit, Semaphore};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Free bytes below which new files of a mount are written through, so that writes fail when there is no
/// space. This is more than a kernel usually caches of writes to one mount, which is 1 % of all writes that
/// it caches.
const SHORT: u64 = 256 << 20;

/// Time after a checkpoint without space in which operations don't try another one.
const BETWEEN_CHECKPOINTS: Duration = Duration::from_secs(1);

/// Number of free zones in addition to those of a checkpoint at or below which operations wait for one.
const CHECKPOINT_MARGIN: u32 = REMOVAL_RESERVE + 1;

/// Permits of a write in flight: its memory, and the turn of its class.
#[derive(Debug)]
pub(crate) struct Admitted {
    /// Permit for the memory of the data.
    pub permit: Permit,
    /// Turn of the class; `None` if the caller has one.
    pub turn: Option<Turn>,
}

/// Bounds of a shard, and its use of the space and memory that all shards share.
pub(crate) struct Admission {
    kit: Rc<Kit>,
    totals: Arc<Totals>,
    /// Blocks the beginning of operations while a snapshot is taken.
    pub gate: Gate,
    /// Classes, which order reads, writes and syncs.
    pub classes: Rc<Classes>,
    metadata_bytes: u64,
    dirty: Rc<Semaphore>,
    dirty_blocks: u64,
    queued: Rc<Semaphore>,
    /// Whether the file system is open for salvage: every change is refused.
    is_salvaged: bool,
    /// Held by an operation that writes a checkpoint before it begins.
    storing: Rc<Semaphore>,
    /// Time of the last such checkpoint that found no space.
    stored_in_vain: Cell<Option<runtime::Instant>>,
    /// Blocks of capacity that are reserved for writes in flight.
    growing: Cell<u64>,
}

/// Blocks of files in this number of zones with `data_blocks` blocks each, of which checkpoints take `pages`.
fn capacity(zones: u32, data_blocks: u32, pages: u64) -> u64 {
    let blocks = u64::from(zones) * u64::from(data_blocks);
    // Without slack, cleaning would free too little space to make progress.
    (blocks - blocks / 16).saturating_sub(pages)
}

impl Admission {
    /// Returns the admission of a shard without operations.
    pub fn new(kit: Rc<Kit>, totals: Arc<Totals>, settings: &Settings) -> Self {
        let dirty_blocks = (settings.dirty_bytes / kit.layout.block_size.bytes()).max(1);
        Admission {
            kit,
            totals,
            gate: Gate::default(),
            classes: Classes::new(settings.io_depth, settings.background_shares),
            metadata_bytes: settings.metadata_bytes,
            dirty: Semaphore::new(dirty_blocks as usize),
            dirty_blocks,
            queued: Semaphore::new(settings.queued_operations.max(1) as usize),
            is_salvaged: settings.goal == Goal::Salvage,
            storing: Semaphore::new(1),
            stored_in_vain: Cell::new(None),
            growing: Cell::new(0),
        }
    }

    /// Whether the file system is open for salvage.
    pub fn is_salvaged(&self) -> bool {
        self.is_salvaged
    }

    /// Blocks of capacity that are reserved for writes in flight on this shard.
    pub fn growing(&self) -> u64 {
        self.growing.get()
    }

    /// Reserves capacity for a write.
    pub fn reserve(&self, blocks: u32) {
        self.growing.set(self.growing.get() + u64::from(blocks));
    }

    /// Releases the capacity of a write that has taken effect or failed.
    pub fn release(&self, blocks: u32) {
        self.growing.set(self.growing.get() - u64::from(blocks));
    }

    /// Refuses reads of a file system that has failed or is closed.
    ///
    /// # Errors
    /// The failure of the log; [`Error::Closed`].
    pub fn check_alive(&self) -> Result<()> {
        match self.kit.failure() {
            Some(error) => Err(error),
            None if self.kit.is_closing() => Err(Error::closed("the file system is closed; open it again")),
            None => Ok(()),
        }
    }

    /// Refuses changes if the file system has failed or is closed, or if a record waits for space of the
    /// device.
    ///
    /// # Errors
    /// As [`check_alive`](Self::check_alive); [`Error::ReadOnly`] for a salvage; [`Error::NoSpace`].
    pub fn check_open(&self) -> Result<()> {
        self.check_alive()?;
        if self.is_salvaged {
            return Err(Error::read_only(
                "the file system is mounted for salvage: changes are refused; copy its files to another file system",
            ));
        }
        self.kit.space.check()
    }

    /// Number of appends in flight on a shard, and number of shards.
    fn lanes_and_shards(&self) -> (u32, u32) {
        (self.kit.settings.appends_in_flight, self.totals.shards())
    }

    /// Most blocks of files: those of all zones, less the pages of checkpoints, the reserve of the cleaner,
    /// and zones that are being written.
    pub fn capacity(&self) -> u64 {
        let (lanes, shards) = self.lanes_and_shards();
        let reserved = reserved_zones(lanes, shards) + self.kit.pool.damaged();
        // The durable checkpoint at its loosest packing, and the next one.
        let pages = 3
            * (self.totals.sum(|used| &used.pages) + self.kit.checkpoints.directory_blocks(&self.kit.layout));
        capacity(self.kit.layout.zones.saturating_sub(reserved), self.kit.settings.data_blocks, pages)
    }

    /// Least number of zones of this size with which a new file system has space for files.
    pub fn least_zones(&self) -> u32 {
        let (lanes, shards) = self.lanes_and_shards();
        let directory = self.kit.checkpoints.directory_blocks(&self.kit.layout);
        geometry::least_zones(&self.kit.layout, lanes, shards, directory)
    }

    /// Number of blocks of files, including preallocated ones and those reserved for writes in flight.
    pub fn used(&self) -> u64 {
        self.kit.pool.live_data()
            + self.totals.sum(|used| &used.preallocated)
            + self.totals.sum(|used| &used.growing)
    }

    /// Whether less space is free than the writes that a kernel may have cached.
    pub fn is_short(&self) -> bool {
        self.capacity().saturating_sub(self.used()) < SHORT / BLOCK
    }

    /// Refuses an operation that needs `blocks` blocks if fewer are free.
    ///
    /// # Errors
    /// [`Error::NoSpace`] with used and total blocks.
    pub fn check_space(&self, blocks: u64) -> Result<()> {
        let (used, capacity) = (self.used(), self.capacity());
        match used + blocks <= capacity {
            true => Ok(()),
            false => Err(Error::no_space(format!(
                "the file system is full: {used} of {capacity} blocks of 4 KiB are in use; remove files or snapshots, or grow it"
            ))),
        }
    }

    /// Refuses operations without data that need space. They take effect on submission, and can't be refused
    /// later. So they are also refused while the device below has space only for the zones that are reserved
    /// for removals.
    ///
    /// # Errors
    /// As [`check_space`](Self::check_space); [`Error::NoSpace`] of the device below.
    pub fn check_space_for_operation(&self) -> Result<()> {
        self.kit.check_known_space(self.kept_zones())?;
        // An eighth is reserved for writes and removals.
        self.check_memory(8)?;
        self.check_space(1)
    }

    /// Refuses an operation if less than 1/`parts` of the memory budget for metadata is free.
    ///
    /// # Errors
    /// [`Error::NoSpace`] with used and permitted memory.
    pub fn check_memory(&self, parts: u64) -> Result<()> {
        let left = self.metadata_bytes / parts;
        let memory = self.totals.sum(|used| &used.memory);
        match memory < self.metadata_bytes - left {
            true => Ok(()),
            false => Err(Error::no_space(format!(
                "the metadata takes {memory} bytes of memory, and its budget is {}, of which this operation leaves {left} bytes; remove files or \
                 snapshots, or mount it with a larger budget",
                self.metadata_bytes
            ))),
        }
    }

    /// Number of blocks that a checkpoint writes now.
    pub fn checkpoint_cost(&self) -> u64 {
        self.totals.sum(|used| &used.unstored) + self.kit.checkpoints.directory_blocks(&self.kit.layout) + 2
    }

    /// Number of zones that a checkpoint fills now.
    pub fn checkpoint_zones(&self) -> u32 {
        let per_zone = u64::from(self.kit.layout.zone_blocks - 3).max(1);
        let cost = self.checkpoint_cost();
        (cost + cost / 4).div_ceil(per_zone) as u32 + 1
    }

    /// Number of free zones that users leave to the cleaner and to checkpoints.
    pub fn kept_zones(&self) -> u32 {
        self.kit.settings.cleaner_reserve + self.checkpoint_zones()
    }

    /// Whether dirty pages will soon need more zones than are reserved for them.
    fn is_checkpoint_due(&self) -> bool {
        // Operations don't each retry a checkpoint that found no space.
        if self.stored_in_vain.get().is_some_and(|at| at.elapsed() < BETWEEN_CHECKPOINTS) {
            return false;
        }
        let unstored = self.totals.sum(|used| &used.unstored);
        let least = u64::from(self.kit.layout.zone_blocks / 2).max(16);
        unstored >= least && self.kit.pool.free() <= self.checkpoint_zones() + CHECKPOINT_MARGIN
    }

    /// Writes a checkpoint before the dirty pages need more zones than are reserved for them. Changes without
    /// data fill few zones, but may make all pages dirty.
    ///
    /// # Errors
    /// The failure of the log. If the checkpoint finds no space, this succeeds, and a later operation tries
    /// again.
    pub async fn leave_space_for_pages<F>(&self, write: impl FnOnce() -> F) -> Result<()>
    where
        F: Future<Output = Result<()>>,
    {
        if !self.is_checkpoint_due() {
            return Ok(());
        }
        let _alone = self.storing.acquire(1).await;
        if !self.is_checkpoint_due() {
            return Ok(());
        }
        match Box::pin(write()).await {
            Err(Error::NoSpace(_)) => {
                self.stored_in_vain.set(Some(runtime::now()));
                Ok(())
            }
            outcome => outcome,
        }
    }

    /// Waits until an operation may be queued.
    ///
    /// # Errors
    /// As [`check_open`](Self::check_open).
    pub async fn admit(&self) -> Result<Permit> {
        let permit = match self.queued.try_acquire(1) {
            Some(permit) => permit,
            None => self.queued.acquire(1).await,
        };
        self.gate.pass().await;
        self.check_open()?;
        Ok(permit)
    }

    /// Waits for the turn of a class and for the memory of a write. With `None` it takes no turn.
    pub async fn admit_data(&self, class: Option<ClassNumber>, blocks: u64) -> Admitted {
        let turn = match class {
            // The turn is taken before the permits, which classes share.
            Some(class) => Some(self.classes.take(class, blocks * BLOCK).await),
            None => None,
        };
        let wanted = blocks.min(self.dirty_blocks) as usize;
        let permit = match self.dirty.try_acquire(wanted) {
            Some(permit) => permit,
            None => self.dirty.acquire(wanted).await,
        };
        Admitted { permit, turn }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sixteenth_of_the_blocks_and_the_pages_of_checkpoints_are_left_to_the_cleaner() {
        assert_eq!(capacity(10, 160, 0), 1500);
        assert_eq!((capacity(10, 160, 1499), capacity(10, 160, 1501), capacity(0, 160, 3)), (1, 0, 0));
    }
}
