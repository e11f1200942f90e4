//! The state of a write cache on its home shard: one owner for each concern, and the decisions that need
//! several of them.

use crate::around::Around;
use crate::autocommit::Autocommit;
use crate::cleaner::Cleaner;
use crate::counters::Counters;
use crate::damage::Damage;
use crate::demand::Demand;
use crate::epoch::FlushEpoch;
use crate::grace::GracePeriods;
use crate::health::Health;
use crate::index::Index;
use crate::log::{Log, Position};
use crate::origin::Origin;
use crate::queue::Queue;
use crate::records::Records;
use crate::recovery::Recovered;
use crate::ring::Ring;
use crate::settings::{Options, Settings, Thresholds};
use crate::space::SpaceWaiters;
use crate::superblock::Superblocks;
use crate::throttle::Throttle;
use block::{Device, Error, Result};
use runtime::TaskGroup;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

/// The state of a write cache.
pub struct Core {
    pub(crate) settings: Settings,
    pub(crate) thresholds: Thresholds,
    pub(crate) ring: Ring,
    /// The cache device.
    pub(crate) fast: Rc<dyn Device>,
    pub(crate) origin: Origin,
    pub(crate) index: RefCell<Index>,
    pub(crate) log: Log,
    pub(crate) epoch: FlushEpoch,
    pub(crate) superblocks: Superblocks,
    pub(crate) queue: Queue,
    pub(crate) records: Records,
    pub(crate) space: SpaceWaiters,
    pub(crate) throttle: Throttle,
    pub(crate) demand: Demand,
    pub(crate) autocommit: Autocommit,
    pub(crate) cleaner: Cleaner,
    pub(crate) around: Around,
    /// Reads of the cache device.
    pub(crate) readers: GracePeriods,
    pub(crate) health: Health,
    pub(crate) damage: Damage,
    /// Lanes, write-back, committer, and calls of other shards.
    pub(crate) tasks: TaskGroup,
    pub(crate) counters: Arc<Counters>,
}

impl Core {
    /// Creates the state from the result of opening.
    pub fn new(recovered: Recovered, options: Options, origin: Rc<dyn Device>, fast: Rc<dyn Device>) -> Self {
        let Recovered { ring, superblock, index, head, flush_epoch, oldest } = recovered;
        let thresholds = Thresholds::new(&options, &ring);
        let Options { cleaner, settings, .. } = options;
        let tail = Position { address: superblock.tail, record: superblock.tail_record };
        let around = Around::new(origin.geometry().volatile_cache);
        let shift = ring.block_size.shift() - origin.geometry().block_size.shift();
        Core {
            thresholds,
            ring,
            origin: Origin::new(origin, shift, settings.pause),
            index: RefCell::new(index),
            log: Log::new(ring.blocks(), tail, head),
            epoch: FlushEpoch::new(flush_epoch),
            superblocks: Superblocks::new(fast.clone(), ring, superblock),
            fast,
            queue: Queue::new(settings.dirty),
            records: Records::default(),
            space: SpaceWaiters::default(),
            throttle: Throttle::new(thresholds.batch, ring.max_step()),
            demand: Demand::new(thresholds, settings.max_age, oldest),
            autocommit: Autocommit::new(settings.autocommit_blocks, settings.autocommit_time),
            cleaner: Cleaner::new(cleaner, head.address, tail.address),
            around,
            readers: GracePeriods::default(),
            health: Health::default(),
            damage: Damage::default(),
            tasks: TaskGroup::default(),
            counters: Arc::new(Counters::default()),
            settings,
        }
    }

    /// Number of blocks of the ring that writers may use now. In a nearly full ring writers continue at the
    /// origin's speed, on space that is reserved for this, instead of waiting for a whole batch.
    pub fn space_for_writers(&self) -> u64 {
        let head = self.log.head().address;
        let space = self.throttle.space(head, self.log.free());
        if !self.cleaner.is_on() || self.log.used() == 0 {
            return space;
        }
        space.min(self.cleaner.allowance(head, self.log.tail().address + self.throttle.done()))
    }

    /// Whether blocks at or after this address are to be written back regardless of the watermarks.
    pub fn is_urgent(&self, written: u64) -> bool {
        self.space.has_lanes()
            || self.cleaner.is_on()
            || self.health.is_closing()
            || written < self.demand.target()
    }

    /// Whether nothing is cached, queued or in flight: everything is on the origin.
    pub fn is_drained(&self) -> bool {
        self.index.borrow().is_empty()
            && self.log.used() == 0
            && self.queue.is_empty()
            && self.records.is_empty()
    }

    /// Turns the mode `cleaner` on.
    pub fn begin_cleaning(&self) {
        self.cleaner.begin(self.log.head().address, self.log.tail().address);
        self.demand.wake();
    }

    /// Refuses further writes: the cache device failed.
    pub fn fail(&self, error: &Error) {
        self.health.fail(error);
        self.queue.wake_all();
        self.space.notify();
    }

    /// Destages everything that is committed now, and waits until that is done.
    ///
    /// # Errors
    /// The error that stops write-back.
    pub async fn write_back_all(&self) -> Result<()> {
        let target = self.log.committed().address;
        self.demand.raise_target(target);
        self.demand.wake();
        while self.log.tail().address < target {
            self.space.changed().await;
            // Write-back ends with a close, so the target may never be reached.
            if self.health.is_closing() && self.log.tail().address < target {
                return self.health.check_open();
            }
            self.health.check_writeback()?;
        }
        Ok(())
    }

    /// Ends all tasks, and records the end of the log in both superblocks.
    ///
    /// # Errors
    /// Errors of either device; the failure of the cache device.
    pub async fn close(self: Rc<Self>) -> Result<()> {
        if self.demand.is_on_close() {
            self.write_back_all().await?;
        }
        self.health.close();
        self.queue.wake_all();
        self.space.notify();
        self.demand.wake();
        self.autocommit.wake();
        // Lanes, write-back, committer, and calls of other shards. Open handles don't delay a close: a client
        // may keep one forever.
        self.tasks.ended().await;
        self.health.check_device()?;
        self.commit().await?;
        self.around.flush(&self.origin).await?;
        // Both superblocks, so that either one has the last durable record.
        self.superblocks.write(self.log.durable_record()).await?;
        self.superblocks.write(self.log.durable_record()).await
    }
}
