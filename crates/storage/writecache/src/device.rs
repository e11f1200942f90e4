//! The write cache as a part, and its handles: all work is done on the home shard, to which requests go
//! whole.

use crate::core::Core;
use crate::counters::count;
use crate::format::{Action, Entry};
use crate::message::Message;
use crate::settings::Options;
use crate::{append, commit, recovery, writeback};
use block::{
    BlockCount, BlockRange, BlockSize, Buffer, Call, Device, DeviceGeometry, DevicePart, Durability, Error,
    Extent, Fullness, Part, PartUse, Payload, ReadOutcome, Result, Status, ZeroMode,
};
use runtime::{Home, HomeDevice, LimitedPart, TaskGroup};
use stack::Tell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A write cache over an origin.
pub struct WriteCachePart {
    home: Home<Core>,
    geometry: DeviceGeometry,
    /// Number of blocks in the index, for every shard.
    cached_blocks: Arc<AtomicU64>,
    /// Origin and cache device, which live as long as this part.
    below: [Arc<LimitedPart>; 2],
    /// Whether it was opened in the mode `cleaner`.
    is_cleaner: bool,
    /// Whether a close should have written everything back, and hasn't.
    is_incomplete: Arc<AtomicBool>,
}

impl WriteCachePart {
    /// Opens the cache of `origin` on the cache device `fast`. This shard becomes its home.
    ///
    /// # Errors
    /// [`Error::Protocol`] and [`Error::Corrupt`] for a device without a cache, or with a damaged one;
    /// [`Error::Invalid`] for devices that don't fit; [`Error::ReadOnly`] for a read-only device.
    pub async fn open(
        origin: Arc<dyn DevicePart>,
        fast: Arc<dyn DevicePart>,
        options: Options,
    ) -> Result<Self> {
        for (name, device) in [("origin", &origin), ("cache device", &fast)] {
            if device.geometry().read_only {
                return Err(Error::read_only(format!(
                    "the {name} of a write cache is read-only; expected a writable device"
                )));
            }
        }
        let is_cleaner = options.cleaner;
        let block_size = origin.geometry().block_size.max(fast.geometry().block_size);
        let origin_blocks = origin.geometry().bytes() / block_size.bytes();
        let below = [(origin, "the origin"), (fast, "the cache device")];
        let below = below.map(|(part, name)| LimitedPart::new(part, name, options.timeout));
        let (origin_device, fast_device) = (below[0].open().await?, below[1].open().await?);
        if options.format {
            recovery::format(&*fast_device, block_size, origin_blocks).await?;
        }
        let recovered = recovery::open(&fast_device, block_size, origin_blocks).await?;
        let geometry = geometry(&*origin_device, &*fast_device, block_size, origin_blocks);
        let cached_blocks = recovered.index.blocks_for_all_shards();
        let core = Rc::new(Core::new(recovered, options, origin_device, fast_device));
        for _ in 0..append::LANES {
            core.tasks.spawn(append::lane(core.clone())).detach();
        }
        core.tasks.spawn(writeback::run(core.clone())).detach();
        if core.fast.geometry().volatile_cache {
            core.tasks.spawn(commit::run(core.clone())).detach();
        }
        let (home, is_incomplete) = (Home::here(core), Arc::default());
        Ok(WriteCachePart { home, geometry, cached_blocks, below, is_cleaner, is_incomplete })
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
        // Records are atomic; writes around the cache are as atomic as the origin's.
        atomic_write: slow.atomic_write.min(block_size.bytes() as u32),
        // In the mode `cleaner` writes go to the origin.
        volatile_cache: quick.volatile_cache || slow.volatile_cache,
        read_only: false,
    }
}

/// Number of unreadable addresses that a status names.
const MAX_UNREADABLE: usize = 8;

impl Core {
    /// Bytes that are cached and not on the origin.
    fn only_in_cache(&self) -> u64 {
        self.index.borrow().blocks() * self.ring.block_size.bytes()
    }

    /// Blocks of the ring that hold records: they become free in the order of the ring, once all before them
    /// are on the origin.
    fn fullness(&self) -> Fullness {
        let block = self.ring.block_size.bytes();
        Fullness {
            resource: "space for dirty data",
            used_bytes: self.log.used() * block,
            limit_bytes: self.ring.blocks() * block,
            can_fill: true,
            remedy: "write less until the origin has caught up, look for errors of the origin, or give a larger cache device",
        }
    }

    fn status(&self) -> Status {
        let mut status = Status::new();
        let ring = self.ring.blocks();
        let block = self.ring.block_size.bytes();
        status.insert("uuid".into(), self.superblocks.identity().uuid.to_string().into());
        status.insert("block_size".into(), block.into());
        status.insert("blocks".into(), ring.into());
        status.insert("free_blocks".into(), self.log.free().into());
        status.insert(
            "used_percent".into(),
            ((self.log.used() as f64 * 1000.0 / ring as f64).round() / 10.0).into(),
        );
        let index = self.index.borrow();
        status.insert("cached_blocks".into(), index.blocks().into());
        status.insert("discarded_ranges".into(), index.ranges().into());
        status.insert("index_bytes".into(), index.bytes().into());
        status.insert("only_in_cache_bytes".into(), self.only_in_cache().into());
        let unreadable = self.damage.unreadable(MAX_UNREADABLE);
        if !unreadable.is_empty() {
            status.insert("unreadable_addresses".into(), unreadable.into());
        }
        let mode = if self.cleaner.is_on() { "cleaner" } else { "writeback" };
        status.insert("mode".into(), mode.into());
        for (name, value) in self.counters.all() {
            status.insert(name.into(), value.into());
        }
        let errors =
            [("error", self.health.check_device()), ("writeback_error", self.health.check_writeback())];
        for (name, outcome) in errors {
            if let Err(error) = outcome {
                status.insert(name.into(), error.to_string().into());
            }
        }
        status
    }
}

impl Part for WriteCachePart {
    fn kind(&self) -> &'static str {
        crate::KIND.name
    }

    fn status(&self) -> Call<'_, Status> {
        self.home.status(Core::status)
    }

    fn fullness(&self) -> Call<'_, Option<Fullness>> {
        Call::new(async { self.home.with(|core| async move { Ok(core.fullness()) }).await.ok() })
    }

    fn message<'a>(&'a self, message: &'a str) -> Call<'a, Result<String>> {
        self.tell_text(&crate::KIND, message)
    }

    fn close(&self) -> Call<'_, Result<()>> {
        let is_incomplete = self.is_incomplete.clone();
        Call::new(self.home.close(move |core: Rc<Core>| async move {
            let closed = core.clone().close().await;
            is_incomplete.store(closed.is_err() && core.demand.is_on_close(), Ordering::Release);
            // Notices that a device doesn't answer before the stack closes it.
            let _ = runtime::join_all([core.origin.device().flush(), core.fast.flush()]).await;
            closed
        }))
    }

    fn use_of(&self, below: &dyn Part) -> PartUse {
        // An origin that is closed cleanly would seem to have everything.
        match self.below[0].is(below) && self.is_incomplete.load(Ordering::Acquire) {
            true => PartUse::Stalled,
            false => LimitedPart::use_among(&self.below, below),
        }
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

    fn keeps_acknowledged(&self) -> bool {
        let [origin, fast] = self.below.each_ref().map(|limited| limited.part());
        // Destaged blocks are flushed before their records are freed. In the mode `cleaner` writes go around
        // the cache.
        let keeps_origin = if self.is_cleaner { origin.keeps_acknowledged() } else { origin.keeps_flushed() };
        fast.keeps_acknowledged() && keeps_origin
    }

    fn keeps_flushed(&self) -> bool {
        self.below.iter().all(|limited| limited.part().keeps_flushed())
    }

    fn open(&self) -> Call<'_, Result<Rc<dyn Device>>> {
        Call::ready(self.home.open(&self.geometry))
    }
}

fn entry(action: Action, range: BlockRange) -> Entry {
    Entry { action, block: range.start.0, count: range.count.0 }
}

impl HomeDevice for Core {
    fn calls(&self) -> Option<&TaskGroup> {
        Some(&self.tasks)
    }

    fn read(self: &Rc<Self>, range: BlockRange, buffer: Buffer) -> Call<'_, ReadOutcome> {
        self.read_blocks(range.start.0, buffer)
    }

    fn write(
        self: &Rc<Self>,
        range: BlockRange,
        payload: Payload,
        durability: Durability,
    ) -> Call<'_, Result<()>> {
        self.begin_write(entry(Action::Write, range), payload, durability)
    }

    fn flush(self: &Rc<Self>) -> Call<'_, Result<()>> {
        Call::new(self.make_durable())
    }

    fn discard(self: &Rc<Self>, range: BlockRange) -> Call<'_, Result<()>> {
        count(&self.counters.discard_requests, 1);
        Call::new(self.change(entry(Action::Discard, range), Payload::new(), Durability::Visible))
    }

    fn write_zeroes(
        self: &Rc<Self>,
        range: BlockRange,
        mode: ZeroMode,
        durability: Durability,
    ) -> Call<'_, Result<()>> {
        let action = match mode {
            ZeroMode::MayDeallocate => Action::Discard,
            ZeroMode::KeepAllocated => Action::Zero,
        };
        Call::new(self.change(entry(action, range), Payload::new(), durability))
    }

    fn extents(self: &Rc<Self>, range: BlockRange) -> Call<'_, Result<Vec<Extent>>> {
        Call::new(self.known_extents(range))
    }
}
