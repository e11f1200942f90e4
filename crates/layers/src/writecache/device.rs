//! The write cache as a part, and its handles: everything happens on the home shard, to which requests go whole.

use super::core::{Core, Counters, Order, Settings, count};
use super::format::{Action, Entry};
use super::message::Message;
use super::progress::Progress;
use super::readers::Readers;
use super::recovery::{self, Recovered};
use super::{append, writeback};
use crate::distant::Distant;
use block::{
    BlockCount, BlockIndex, BlockRange, BlockSize, Buffer, Call, Device, DeviceGeometry, DevicePart,
    Durability, Error, Extent, Part, Payload, ReadOutcome, Result, Status, ZeroMode,
};
use runtime::sync::{Notify, Semaphore};
use runtime::{GroupMember, Home, Requests, TaskGroup};
use stack::Tell;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A write cache over an origin.
pub struct WriteCachePart {
    home: Home<Core>,
    geometry: DeviceGeometry,
    /// Number of blocks in the index, for every shard.
    cached_blocks: Arc<AtomicU64>,
    /// So that they live as long as this does.
    _devices: [Arc<dyn DevicePart>; 2],
}

/// How a cache is opened.
#[derive(Debug, Clone)]
pub struct Options {
    /// Make it anew first; what was in it is gone.
    pub format: bool,
    /// In percent of the ring.
    pub high_watermark: u64,
    /// In percent of the ring.
    pub low_watermark: u64,
    /// Nothing new is cached, and what is there is written back.
    pub cleaner: bool,
    /// How much is written back at a time, in bytes.
    pub batch: u64,
    /// Everything else; watermarks and batch are computed.
    pub settings: Settings,
}

impl Default for Options {
    /// As a stack has it where it says nothing.
    fn default() -> Self {
        Options {
            format: false,
            high_watermark: 50,
            low_watermark: 45,
            cleaner: false,
            batch: 64 << 20,
            settings: Settings {
                high: 0,
                low: 0,
                jobs: 64,
                autocommit_blocks: 65536,
                autocommit_time: Duration::from_secs(1),
                pause: Duration::ZERO,
                max_age: None,
                fua: false,
                order: Order::Flushes,
                batch: 0,
                dirty: 64 << 20,
            },
        }
    }
}

impl WriteCachePart {
    /// Opens the cache on `fast` of what is on `origin`; this shard becomes its home.
    ///
    /// # Errors
    /// [`Error::Protocol`] and [`Error::Corrupt`] for a device that holds no cache, or a damaged one; [`Error::Invalid`] for
    /// devices that don't fit; [`Error::ReadOnly`] where one of them is.
    pub async fn open(
        origin: Arc<dyn DevicePart>,
        fast: Arc<dyn DevicePart>,
        options: Options,
    ) -> Result<Self> {
        for (name, device) in [("origin", &origin), ("cache device", &fast)] {
            if device.geometry().read_only {
                return Err(Error::read_only(format!("the {name} of a write cache can't be read-only")));
            }
        }
        let block_size = origin.geometry().block_size.max(fast.geometry().block_size);
        let origin_blocks = origin.geometry().bytes() / block_size.bytes();
        let (origin_device, fast_device) = (origin.open().await?, fast.open().await?);
        if options.format {
            recovery::format(&*fast_device, block_size, origin_blocks).await?;
        }
        let recovered = recovery::open(&fast_device, block_size, origin_blocks).await?;
        let geometry = geometry(&*origin_device, &*fast_device, block_size, origin_blocks);
        let cached_blocks = recovered.index.blocks_for_all_shards();
        let core = Rc::new(core(recovered, options, origin_device, fast_device));
        for _ in 0..append::LANES {
            core.tasks.spawn(append::lane(core.clone())).detach();
        }
        core.tasks.spawn(writeback::run(core.clone())).detach();
        if core.fast.geometry().volatile_cache {
            core.tasks.spawn(writeback::committer(core.clone())).detach();
        }
        Ok(WriteCachePart { home: Home::here(core), geometry, cached_blocks, _devices: [origin, fast] })
    }
}

fn geometry(
    origin: &dyn Device,
    fast: &dyn Device,
    block_size: BlockSize,
    origin_blocks: u64,
) -> DeviceGeometry {
    let (slow, quick) = (origin.geometry(), fast.geometry());
    DeviceGeometry {
        block_size,
        blocks: BlockCount(origin_blocks),
        // Records are whole or not there; what goes around the cache is as whole as the origin's writes.
        atomic_write: slow.atomic_write.min(block_size.bytes() as u32),
        // In the mode `cleaner` writes go to the origin.
        volatile_cache: quick.volatile_cache || slow.volatile_cache,
        read_only: false,
    }
}

fn core(recovered: Recovered, options: Options, origin: Rc<dyn Device>, fast: Rc<dyn Device>) -> Core {
    let Recovered { ring, superblock, index, head, next_record, flush_epoch, oldest } = recovered;
    let percent = |percent: u64| (ring.blocks() as u128 * u128::from(percent) / 100) as u64;
    let batch = (options.batch / ring.block_size.bytes()).clamp(1, ring.blocks() / 8);
    let settings = Settings {
        high: percent(options.high_watermark),
        low: percent(options.low_watermark),
        batch,
        ..options.settings
    };
    let origin_shift = ring.block_size.shift() - origin.geometry().block_size.shift();
    // What fits no more into a segment is left out: it is shorter than the record.
    let progress = Progress::new(batch, 2 * (ring.most_data() + 1));
    Core {
        ring,
        origin_shift,
        origin,
        fast,
        index: RefCell::new(index),
        queue: RefCell::default(),
        requests: Requests::default(),
        room: Semaphore::new(settings.dirty),
        pending: RefCell::default(),
        spare: RefCell::default(),
        superblock: Cell::new(superblock),
        head: Cell::new(head),
        next_record: Cell::new(next_record),
        committed: Cell::new(head),
        committed_record: Cell::new(next_record - 1),
        durable: Cell::new(head),
        durable_record: Cell::new(next_record - 1),
        tail: Cell::new(superblock.tail),
        progress,
        flush_epoch: Cell::new(flush_epoch),
        has_written: Cell::new(false),
        uncommitted: Cell::new(0),
        work: Notify::new(),
        freed: Notify::new(),
        writeback: Notify::new(),
        committer: Notify::new(),
        waiting_for_room: Cell::new(0),
        flush_to: Cell::new(0),
        cleaner: Cell::new(options.cleaner),
        cleaner_since: Cell::new((head, superblock.tail)),
        around: Cell::new(0),
        around_flushed: Cell::new(0),
        writers_around: Readers::default(),
        flush_on_suspend: Cell::new(false),
        sealed: Cell::new(false),
        give_up_rotten: Cell::new(false),
        unreadable: RefCell::default(),
        released: RefCell::default(),
        closing: Cell::new(false),
        tasks: TaskGroup::default(),
        readers: Readers::default(),
        origin_used: Cell::new(None),
        oldest: Cell::new(oldest),
        failure: RefCell::default(),
        stuck: RefCell::default(),
        counters: Arc::new(Counters::default()),
        settings,
    }
}

/// Number of unreadable addresses that a status names.
const MOST_TOLD: usize = 8;

impl Core {
    /// Waits until everything that is committed now has been written back.
    ///
    /// # Errors
    /// What keeps write-back from getting on.
    pub async fn write_back_all(&self) -> Result<()> {
        let target = self.committed.get();
        self.flush_to.set(self.flush_to.get().max(target));
        self.writeback.notify_all();
        while self.tail.get() < target {
            self.freed.notified().await;
            // Write-back ends with a close, so this may never be reached.
            if self.closing.get() && self.tail.get() < target {
                return self.check_open();
            }
            if let Some(error) = &*self.stuck.borrow() {
                return Err(error.clone());
            }
        }
        Ok(())
    }

    /// Ends what runs, and notes where the log ends.
    async fn close(self: Rc<Self>) -> Result<()> {
        if self.flush_on_suspend.get() {
            self.write_back_all().await?;
        }
        self.closing.set(true);
        for notify in [&self.work, &self.freed, &self.writeback, &self.committer] {
            notify.notify_all();
        }
        // Lanes, write-back, committer, and calls of other shards. A handle that is still open may never be dropped, so it
        // isn't waited for.
        self.tasks.ended().await;
        if let Some(error) = &*self.failure.borrow() {
            return Err(error.clone());
        }
        self.commit().await?;
        self.flush_around().await?;
        // Both, so that whichever one is left says what was durable.
        self.write_superblock(|_| {}).await?;
        self.write_superblock(|_| {}).await
    }

    /// Bytes that are cached and not on the origin.
    fn only_in_cache(&self) -> u64 {
        self.index.borrow().blocks() * self.ring.block_size.bytes()
    }

    fn status(&self) -> Status {
        let mut status = Status::new();
        let ring = self.ring.blocks();
        let block = self.ring.block_size.bytes();
        status.insert("uuid".into(), self.superblock.get().identity.uuid.to_string().into());
        status.insert("block_size".into(), block.into());
        status.insert("blocks".into(), ring.into());
        status.insert("free_blocks".into(), self.free_blocks().into());
        status.insert(
            "used_percent".into(),
            ((self.used() as f64 * 1000.0 / ring as f64).round() / 10.0).into(),
        );
        let index = self.index.borrow();
        status.insert("cached_blocks".into(), index.blocks().into());
        status.insert("discarded_ranges".into(), index.ranges().into());
        status.insert("index_bytes".into(), index.bytes().into());
        status.insert("only_in_cache_bytes".into(), self.only_in_cache().into());
        let unreadable: Vec<u64> = self.unreadable.borrow().iter().take(MOST_TOLD).copied().collect();
        if !unreadable.is_empty() {
            status.insert("unreadable_addresses".into(), unreadable.into());
        }
        let mode = if self.cleaner.get() { "cleaner" } else { "writeback" };
        status.insert("mode".into(), mode.into());
        for (name, value) in self.counters.all() {
            status.insert(name.into(), value.into());
        }
        let errors = [("error", &self.failure), ("writeback_error", &self.stuck)];
        for (name, error) in errors {
            if let Some(error) = &*error.borrow() {
                status.insert(name.into(), error.to_string().into());
            }
        }
        status
    }
}

impl Part for WriteCachePart {
    fn kind(&self) -> &'static str {
        super::KIND.name
    }

    fn status(&self) -> Call<'_, Status> {
        self.home.status(Core::status)
    }

    fn message<'a>(&'a self, message: &'a str) -> Call<'a, Result<String>> {
        self.tell_text(&super::KIND, message)
    }

    fn close(&self) -> Call<'_, Result<()>> {
        Call::new(async move {
            let closed = self.home.with(Core::close).await;
            self.home.forget().await?;
            closed
        })
    }
}

impl Tell for WriteCachePart {
    type Message = Message;

    fn tell(&self, message: Message) -> Call<'_, Result<String>> {
        Call::new(self.home.with(|core: Rc<Core>| async move {
            let _call = core.tasks.enter();
            message.carry_out(&core).await
        }))
    }
}

impl DevicePart for WriteCachePart {
    fn geometry(&self) -> &DeviceGeometry {
        &self.geometry
    }

    fn only_in_cache(&self) -> Option<u64> {
        Some(self.cached_blocks.load(Ordering::Relaxed) * self.geometry.block_size.bytes())
    }

    fn open(&self) -> Call<'_, Result<Rc<dyn Device>>> {
        Call::new(async move {
            let geometry = self.geometry.clone();
            if !self.home.is_here() {
                return Ok(Distant::open(geometry, self.home.clone(), Handle::new));
            }
            let core = self.home.get()?;
            Ok(Rc::new(Handle { geometry, core, _call: None }) as Rc<dyn Device>)
        })
    }
}

/// A handle on the home shard.
struct Handle {
    geometry: DeviceGeometry,
    core: Rc<Core>,
    /// Of one that lives for one call of another shard. `None` of one that a shard keeps, perhaps for ever.
    _call: Option<GroupMember>,
}

impl Handle {
    /// A handle for one call of another shard.
    fn new(geometry: DeviceGeometry, core: Rc<Core>) -> Self {
        let call = core.tasks.enter();
        Handle { geometry, core, _call: Some(call) }
    }
}

/// The change that a call asks for; none where there is nothing to do.
fn entry(geometry: &DeviceGeometry, range: BlockRange, action: Action) -> Result<Option<Entry>> {
    geometry.check_writable()?;
    geometry.check(range)?;
    let entry = Entry { action, block: range.start.0, count: range.count.0 };
    Ok((!range.is_empty()).then_some(entry))
}

fn write_entry(geometry: &DeviceGeometry, at: BlockIndex, payload: &Payload) -> Result<Option<Entry>> {
    entry(geometry, geometry.range(at, payload.len())?, Action::Write)
}

fn zero_action(mode: ZeroMode) -> Action {
    match mode {
        ZeroMode::MayDeallocate => Action::Discard,
        ZeroMode::KeepAllocated => Action::Zero,
    }
}

impl Device for Handle {
    fn geometry(&self) -> &DeviceGeometry {
        &self.geometry
    }

    fn read(&self, at: BlockIndex, mut buffer: Buffer) -> Call<'_, ReadOutcome> {
        match self.geometry.range(at, buffer.len()) {
            Ok(range) if !range.is_empty() => self.core.read(at.0, buffer),
            other => {
                buffer.clear();
                Call::ready((other.map(drop), buffer))
            }
        }
    }

    fn write(&self, at: BlockIndex, payload: Payload, durability: Durability) -> Call<'_, Result<()>> {
        match write_entry(&self.geometry, at, &payload) {
            Ok(Some(entry)) => Call::new(self.core.change(entry, payload, durability)),
            other => Call::ready(other.map(drop)),
        }
    }

    fn flush(&self) -> Call<'_, Result<()>> {
        Call::new(self.core.flush())
    }

    fn discard(&self, range: BlockRange) -> Call<'_, Result<()>> {
        match entry(&self.geometry, range, Action::Discard) {
            Ok(Some(entry)) => {
                count(&self.core.counters.discard_requests, 1);
                Call::new(self.core.change(entry, Payload::new(), Durability::Visible))
            }
            other => Call::ready(other.map(drop)),
        }
    }

    fn write_zeroes(
        &self,
        range: BlockRange,
        mode: ZeroMode,
        durability: Durability,
    ) -> Call<'_, Result<()>> {
        match entry(&self.geometry, range, zero_action(mode)) {
            Ok(Some(entry)) => Call::new(self.core.change(entry, Payload::new(), durability)),
            other => Call::ready(other.map(drop)),
        }
    }

    fn extents(&self, range: BlockRange) -> Call<'_, Result<Vec<Extent>>> {
        match self.geometry.check(range) {
            Ok(()) => Call::new(self.core.extents(range)),
            Err(error) => Call::ready(Err(error)),
        }
    }
}
