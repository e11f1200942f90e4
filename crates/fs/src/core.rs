//! A core of the file system, with its shards. It is an owner of the log kit: its entries are changes of
//! metadata, with the data of files.
//!
//! An operation on names or attributes of one core is decided and takes effect in one turn, without waiting.
//! Its changes are queued, and written with those of others in one record. A write takes effect when its
//! record is written. All operations are numbered and written in the order of their numbers, so a sync waits
//! until a number is durable.
//!
//! In other modules: operations on several cores (`joint`), and the callbacks of the log kit (`owner`).

pub(crate) mod checkpoint;
pub(crate) mod cores;
mod data;
pub(crate) mod entry;
pub mod geometry;
mod holders;
pub(crate) mod inodes;
mod names;
mod owner;
mod tickets;
mod turns;

pub(crate) use owner::Accounting;

use crate::classes::fair_queue::ClassNumber;
use crate::classes::{BACKGROUND_SHARES, Classes, IO_DEPTH, Turn};
use crate::core::checkpoint::FrozenTrees;
use crate::core::cores::{Cores, Totals};
use crate::core::entry::{Item, Origin};
use crate::core::tickets::Tickets;
use crate::data::checksums::Sums;
use crate::data::node::{Node, Nodes};
use crate::format::{BLOCK, MAX_CORES};
use crate::metadata::Metadata;
use crate::metadata::change::{Change, Changes, KEEP_TIMES};
use crate::metadata::extents::{Lost, Place};
use crate::metadata::inode::{InodeNumber, Time};
use crate::names::locks::Locks;
use crate::snapshots::gate::Gate;
use crate::snapshots::list::SnapshotList;
use crate::tree::Released;
use block::{Error, Payload, Result};
use logkit::cleaning::{Arrival, Policy};
use logkit::layout::ROOT_ZONES;
use logkit::readers::ShardReads;
use logkit::recovery::Goal;
use logkit::recovery::LostParts;
use logkit::{Appender, Kit, Mover, Owner, StreamId, flusher, lane, mover};
use runtime::Requests;
use runtime::range_lock::RangeGuard;
use runtime::sync::{Permit, Semaphore};
use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Default number of names above which a directory becomes striped, with several cores.
const STRIPE_ABOVE: u64 = 16_384;

/// Stream of users' records of a core.
pub fn user_stream(core: u32) -> StreamId {
    StreamId(2 * core as u16)
}

/// Stream of the cleaner's moves of a core's files.
pub fn cleaner_stream(core: u32) -> StreamId {
    StreamId(2 * core as u16 + 1)
}

/// Number of streams.
pub const STREAMS: usize = 2 * MAX_CORES as usize;

/// Free bytes below which new files of a mount are written through, so that writes fail when there is no
/// space. This is more than a kernel usually caches of writes to one mount, which is 1 % of all writes that
/// it caches.
const SHORT: u64 = 256 << 20;

/// Zones for the records of removals, which the cleaner doesn't use: blocks of removed files can't be reused
/// until these records are written.
pub(crate) const REMOVAL_RESERVE: u32 = 1;

/// Time after a checkpoint without space in which operations don't try another one.
const BETWEEN_CHECKPOINTS: Duration = Duration::from_secs(1);

/// Number of free zones in addition to those of a checkpoint at or below which operations wait for one.
const CHECKPOINT_MARGIN: u32 = REMOVAL_RESERVE + 1;

/// Number of zones that are reserved for the cleaner and for records of removals. The cleaner fills one zone,
/// has one that is being sealed, and moves the blocks of a victim to a zone of each core.
fn cleaner_reserve(cores: u32) -> u32 {
    2 + cores + REMOVAL_RESERVE
}

/// Settings of an open file system; none of them is stored on the medium.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Most appends in flight on a core.
    pub appends_in_flight: u32,
    /// Most bytes of writes in memory on a core; further writes wait.
    pub dirty_bytes: u64,
    /// Most operations in memory on a core whose records aren't written; further operations wait.
    pub queued_operations: u32,
    /// Least number of bytes that are written between two checkpoints.
    pub checkpoint_after: u64,
    /// Most bytes of checksums in memory on a core.
    pub sums_bytes: u64,
    /// Most bytes of memory for metadata. Opening a file system that needs more fails; at seven eighths of
    /// it, new files are refused.
    pub metadata_bytes: u64,
    /// Number of cores among which the shards are divided, limited by the numbers of shards and zones; `None`
    /// for the number of the runtime's shards.
    pub cores: Option<u32>,
    /// Name and parameters of the cleaning policy; `None` for parameters chosen by the number of zones.
    pub cleaning: (String, Option<logkit::cleaning::Parameters>),
    /// [`logkit::Settings::read_request_bytes`].
    pub read_request_bytes: u64,
    /// Shares of the class of the cleaner, scrub and defragmentation.
    pub background_shares: u32,
    /// Most bytes of requests in flight on a core where [classes](crate::classes) compete; each request
    /// counts [16 KiB](crate::classes::REQUEST_COST) in addition to its bytes.
    pub io_depth: u64,
    /// Number of names above which the names of a directory are divided among [stripes](crate::metadata::stripes) on
    /// all cores; values above 64 are compared with an estimate. `None` for 16384 on several cores, and for
    /// no limit on one core.
    pub stripe_above: Option<u64>,
    /// Purpose of the opening: use or salvage.
    pub goal: Goal,
    /// Invariant to violate on purpose, for tests that must detect it. Release builds ignore it.
    #[doc(hidden)]
    pub broken: Option<Broken>,
}

/// Invariants that tests violate on purpose.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Broken {
    /// Syncs return at once.
    NeverFlushes,
    /// Blocks die when the operation that frees them is submitted, not when its record is written.
    DiesWhenSubmitted,
    /// Pages of the previous checkpoint die before the next one is durable.
    FreesPagesEarly,
    /// Changes that the checkpoint includes are replayed.
    ReplaysShown,
    /// The live blocks of one file aren't subtracted when its name is removed.
    ForgetsLost,
    /// Inodes without names aren't removed.
    KeepsOrphans,
    /// An operation on inodes of several cores is written as one record for each core.
    SplitsOperations,
    /// Blocks that the present version loses die even if a snapshot has them.
    ForgetsSnapshots,
    /// The extents of the source of a clone aren't marked as shared: its blocks die with it.
    ForgetsSource,
    /// The cleaner moves shared blocks only for the file that they were written for.
    IgnoresShared,
    /// Violates nothing: the cores pause for long between cloning their trees for a snapshot.
    SlowSnapshots,
    /// The gates stay open, and the cores pause for long between cloning their trees for a snapshot.
    SnapshotsApart,
    /// Requests of all classes are started in order of arrival.
    IgnoresShares,
    /// A directory is made striped before the copies of its names are written.
    StripesEarly,
    /// The names of a directory are copied to its stripes while others change them.
    StripesUnlocked,
    /// An operation on a name that has waited doesn't check whether its directory has become striped.
    ForgetsStripes,
    /// The cleaner waits for its turn even if writers wait for the cleaner.
    CleanerWaits,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            appends_in_flight: 2,
            dirty_bytes: 64 << 20,
            queued_operations: 16_384,
            checkpoint_after: 64 << 20,
            sums_bytes: 64 << 20,
            metadata_bytes: u64::MAX,
            cores: None,
            cleaning: (logkit::cleaning::DEFAULT.to_owned(), None),
            read_request_bytes: logkit::READ_REQUEST_BYTES,
            background_shares: BACKGROUND_SHARES,
            io_depth: IO_DEPTH,
            stripe_above: None,
            goal: Goal::Serve,
            broken: None,
        }
    }
}

/// Permits of a write in flight: its memory, and the turn of its class.
#[derive(Debug)]
pub(crate) struct Admitted {
    permit: Permit,
    turn: Option<Turn>,
}

/// Returns the present time.
pub fn now() -> Time {
    runtime::wall_clock().as_nanos() as Time
}

/// Times that a file gets from a change of its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Times {
    /// Times stay unchanged, because the kernel sets them.
    Kept,
    /// Time at which the change is queued, so that times have the order of the changes.
    Present,
}

impl Times {
    /// Time for a change that is queued now; [`KEEP_TIMES`] for [`Kept`](Self::Kept).
    pub(crate) fn of_change(self) -> Time {
        match self {
            Times::Kept => KEEP_TIMES,
            Times::Present => now(),
        }
    }

    /// Time to set in an inode now; `None` for [`Kept`](Self::Kept).
    pub(crate) fn to_set(self) -> Option<Time> {
        (self == Times::Present).then(now)
    }
}

/// A core of a file system.
pub struct Core {
    /// Number of the core.
    pub(crate) index: u32,
    /// All cores; set once, after they are created.
    cores: OnceCell<Cores>,
    pub(crate) totals: Arc<Totals>,
    pub(crate) kit: Rc<Kit>,
    pub(crate) appender: Appender<Item>,
    pub(crate) requests: Requests,
    /// Reads in progress: a zone isn't reset while reads that began before are in progress.
    pub(crate) reads: Arc<ShardReads>,
    pub(crate) metadata: RefCell<Metadata>,
    /// Places of pages that the next checkpoint no longer uses.
    pub(crate) released: Released,
    pub(crate) nodes: Nodes,
    /// Locks of operations on several cores.
    pub(crate) locks: Locks,
    /// Blocks the beginning of operations while a snapshot is taken.
    pub(crate) gate: Gate,
    /// Snapshots of the file system; used on the home only.
    pub(crate) snapshot_list: SnapshotList,
    /// Blocks that only deleted snapshots had: they die when the next checkpoint is durable.
    pub(crate) dropped: RefCell<Lost>,
    /// Zones to which the cleaner moves blocks of this core; unused on the home.
    mover: RefCell<Option<Mover>>,
    /// Whether the drive limits the number of open zones.
    pub(crate) is_limited: bool,
    /// With such a limit, the first class that the policy chose, which is used for all moves, so that the
    /// mover of a core has one open zone.
    move_class: Cell<Option<u8>>,
    /// Checkpoint that is being written.
    pub(crate) frozen: RefCell<Option<FrozenTrees>>,
    pub(crate) sums: RefCell<Sums>,
    /// Preferred size of requests in bytes, as reported to programs.
    pub(crate) block_size: u64,
    metadata_bytes: u64,
    /// Classes, which order reads, writes and syncs.
    pub(crate) classes: Rc<Classes>,
    /// Number of names above which a directory is made striped.
    pub(crate) stripe_above: u64,
    /// Whether a directory of this core is being made striped; at most one at a time.
    pub(crate) is_striping: Cell<bool>,
    dirty: Rc<Semaphore>,
    dirty_blocks: u64,
    queued: Rc<Semaphore>,
    /// Whether the file system is open for salvage: every change is refused.
    pub(crate) is_salvaged: bool,
    /// Losses found by a salvage.
    pub(crate) lost: RefCell<LostParts>,
    /// Held by an operation that writes a checkpoint before it begins.
    storing: Rc<Semaphore>,
    /// Time of the last such checkpoint that found no space.
    stored_in_vain: Cell<Option<runtime::Instant>>,
    /// Permits for reads of checksums from zones.
    pub(crate) loading: Rc<Semaphore>,
    /// Blocks of capacity that are reserved for writes in flight.
    growing: Cell<u64>,
    tickets: RefCell<Tickets>,
    /// Number of changes that took effect on submission and whose records haven't committed.
    shown: Cell<u64>,
    /// Number of the operation up to which all operations are durable.
    pub(crate) durable: Cell<u64>,
    /// Number of records that were replayed when the file system was opened.
    pub(crate) replayed: Cell<u64>,
    /// The only class of zones for users' records: records are written in the order of their numbers.
    class: u8,
    broken: Option<Broken>,
}

impl std::fmt::Debug for Core {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "fs::Core({})", self.kit.identity.uuid)
    }
}

/// Number of zones that files can't use: those of roots, the reserve of the cleaner, two zones for each lane
/// and mover of a core (one open, one being sealed), and two of checkpoints.
pub(crate) fn reserved_zones(lanes: u32, cores: u32) -> u32 {
    ROOT_ZONES + cleaner_reserve(cores) + cores * 2 * (lanes + 1) + 2
}

/// Returns the settings of the log kit for these settings of a file system.
pub fn kit_settings(
    settings: &Settings,
    layout: &logkit::Layout,
    (core, cores): (u32, u32),
) -> logkit::Settings {
    logkit::Settings {
        user_stream: user_stream(core),
        cleaner_stream: cleaner_stream(core),
        appends_in_flight: settings.appends_in_flight,
        data_blocks: layout.data_blocks(Change::MAX_WITH_BLOCKS),
        record_blocks: layout.record_blocks(Change::MAX_WITH_BLOCKS),
        cleaner_reserve: cleaner_reserve(cores),
        checkpoint_blocks: layout.blocks_in(settings.checkpoint_after),
        low_watermark: 0.05,
        high_watermark: 0.2,
        most_steps: u64::MAX,
        read_request_bytes: settings.read_request_bytes,
        prepare_zones: true,
    }
}

impl Core {
    /// Returns a core with this state, recovered or new. The caller starts lanes and cleaner.
    pub fn new(
        (index, totals): (u32, Arc<Totals>),
        kit: impl FnOnce(Box<dyn Policy>) -> Rc<Kit>,
        policy: Box<dyn Policy>,
        (mut metadata, released): (Metadata, Released),
        settings: &Settings,
        block_size: u64,
    ) -> Rc<Self> {
        let usual = if totals.cores() > 1 { STRIPE_ABOVE } else { u64::MAX };
        let stripe_above = settings.stripe_above.unwrap_or(usual);
        metadata.snapshots.keeps_nothing =
            cfg!(debug_assertions) && settings.broken == Some(Broken::ForgetsSnapshots);
        metadata.snapshots.ignores_shared =
            cfg!(debug_assertions) && settings.broken == Some(Broken::IgnoresShared);
        metadata.forgets_source = cfg!(debug_assertions) && settings.broken == Some(Broken::ForgetsSource);
        let (classes, class) = (policy.classes(), policy.place(Arrival::New));
        let kit = kit(policy);
        let layout = kit.layout;
        let demand = geometry::demand(kit.zones.geometry(), totals.cores(), settings.appends_in_flight);
        let is_limited = demand.limit.is_some();
        if geometry::fits(&demand) {
            kit.budget().set(demand);
        }
        let dirty_blocks = (settings.dirty_bytes / layout.block_size.bytes()).max(1);
        let own = [user_stream(index), cleaner_stream(index)];
        let core = Rc::new(Core {
            index,
            cores: OnceCell::new(),
            totals,
            locks: Locks::default(),
            gate: Gate::default(),
            snapshot_list: SnapshotList::default(),
            dropped: RefCell::default(),
            mover: RefCell::new(Some(Mover::new(classes))),
            is_limited,
            move_class: Cell::new(None),
            frozen: RefCell::default(),
            appender: Appender::new(
                layout,
                classes,
                settings.appends_in_flight,
                u64::MAX,
                &kit.streams,
                &own,
            ),
            requests: Requests::default(),
            reads: kit.readers.here(),
            metadata: RefCell::new(metadata),
            released,
            nodes: Nodes::default(),
            sums: RefCell::new(Sums::new(layout.zone_blocks, settings.sums_bytes)),
            block_size,
            metadata_bytes: settings.metadata_bytes,
            classes: Classes::new(
                settings.io_depth,
                settings.background_shares,
                cfg!(debug_assertions) && settings.broken == Some(Broken::IgnoresShares),
            ),
            stripe_above,
            is_striping: Cell::new(false),
            dirty: Semaphore::new(dirty_blocks as usize),
            dirty_blocks,
            loading: Semaphore::new(2),
            storing: Semaphore::new(1),
            stored_in_vain: Cell::new(None),
            is_salvaged: settings.goal == Goal::Salvage,
            lost: RefCell::default(),
            queued: Semaphore::new(settings.queued_operations.max(1) as usize),
            growing: Cell::new(0),
            tickets: RefCell::default(),
            durable: Cell::new(0),
            shown: Cell::new(0),
            replayed: Cell::new(0),
            class,
            broken: settings.broken,
            kit,
        });
        core.publish();
        core
    }

    /// Sets the handles of all cores; called once.
    pub(crate) fn set_cores(&self, cores: Cores) {
        self.cores.set(cores).ok();
    }

    /// All cores.
    pub(crate) fn cores(&self) -> &Cores {
        self.cores.get().expect("cores are told of each other before anything else")
    }

    /// Whether an inode belongs to this core.
    #[inline]
    pub(crate) fn is_here(&self, inode: InodeNumber) -> bool {
        self.totals.cores() == 1 || self.cores().index_of(inode) == self.index
    }

    /// Publishes this core's use of memory and space to the other cores.
    pub(crate) fn publish(&self) {
        let (metadata, used) = (self.metadata.borrow(), self.totals.of(self.index));
        used.preallocated.store(metadata.preallocated, Relaxed);
        used.growing.store(self.growing.get(), Relaxed);
        let pages = match metadata.snapshots.is_empty() {
            true => metadata.items.pages(),
            // Each page that is shared with a snapshot may have to be copied.
            false => metadata.items.family_pages() + metadata.items.pages(),
        };
        used.pages.store(pages as u64, Relaxed);
        used.unstored.store(metadata.items.unstored_pages() as u64, Relaxed);
        used.memory.store(metadata.items.memory() as u64, Relaxed);
        used.inodes.store(metadata.count(), Relaxed);
    }

    /// Returns the node of a file in use.
    pub(crate) fn node(&self, inode: InodeNumber) -> Rc<Node> {
        self.nodes.get(inode, self.tickets.borrow().issued())
    }

    /// Whether a test violates this invariant.
    #[inline]
    pub(crate) fn breaks(&self, rule: Broken) -> bool {
        cfg!(debug_assertions) && self.broken == Some(rule)
    }

    /// Number of changes that a checkpoint would include now and whose records would follow it.
    pub(crate) fn shown(&self) -> u64 {
        self.shown.get()
    }

    /// Files in use.
    pub fn nodes(&self) -> &Nodes {
        &self.nodes
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

    /// Most blocks of files: those of all zones, less the pages of checkpoints, the reserve of the cleaner,
    /// and zones that are being written.
    pub fn capacity(&self) -> u64 {
        let layout = &self.kit.layout;
        let (lanes, cores) = (self.kit.settings.appends_in_flight, self.totals.cores());
        let reserved = reserved_zones(lanes, cores) + self.kit.pool.damaged();
        let zones = u64::from(layout.zones.saturating_sub(reserved));
        // The durable checkpoint at its loosest packing, and the next one.
        let pages =
            3 * (self.totals.sum(|used| &used.pages) + self.kit.checkpoints.directory_blocks(&self.kit));
        let blocks = zones * u64::from(self.kit.settings.data_blocks);
        // Without slack, cleaning would free too little space to make progress.
        (blocks - blocks / 16).saturating_sub(pages)
    }

    /// Least number of zones of this size with which a new file system has space for files.
    pub(crate) fn least_zones(&self) -> u32 {
        let (lanes, cores) = (self.kit.settings.appends_in_flight, self.totals.cores());
        let directory = self.kit.checkpoints.directory_blocks(&self.kit);
        geometry::least_zones(&self.kit.layout, lanes, cores, directory)
    }

    /// Number of blocks of files, including preallocated ones and those reserved for writes in flight.
    pub fn used(&self) -> u64 {
        self.kit.pool.live_data()
            + self.totals.sum(|used| &used.preallocated)
            + self.totals.sum(|used| &used.growing)
    }

    /// Whether less space is free than the writes that a kernel may have cached.
    pub(crate) fn is_short(&self) -> bool {
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
    pub fn check_space_for_item(&self) -> Result<()> {
        self.kit.check_known_space(self.kept_zones())?;
        // An eighth is reserved for writes and removals.
        self.check_memory(8)?;
        self.check_space(1)
    }

    /// Refuses an operation if less than 1/`parts` of the memory budget for metadata is free.
    ///
    /// # Errors
    /// [`Error::NoSpace`] with used and permitted memory.
    pub(crate) fn check_memory(&self, parts: u64) -> Result<()> {
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

    /// Writes a checkpoint before the dirty pages need more zones than are reserved for them. Changes without
    /// data fill few zones, but may make all pages dirty.
    ///
    /// # Errors
    /// The failure of the log. If the checkpoint finds no space, this succeeds, and a later operation tries
    /// again.
    async fn leave_space_for_pages(&self) -> Result<()> {
        let is_due = || {
            // Operations don't each retry a checkpoint that found no space.
            if self.stored_in_vain.get().is_some_and(|at| at.elapsed() < BETWEEN_CHECKPOINTS) {
                return false;
            }
            let unstored = self.totals.sum(|used| &used.unstored);
            let least = u64::from(self.kit.layout.zone_blocks / 2).max(16);
            unstored >= least && self.kit.pool.free() <= self.checkpoint_zones() + CHECKPOINT_MARGIN
        };
        if !is_due() {
            return Ok(());
        }
        let _alone = self.storing.acquire(1).await;
        if !is_due() {
            return Ok(());
        }
        let write = |core: Rc<Core>| async move { mover::free_dead(&core).await };
        match Box::pin(self.cores().first().with(write)).await {
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
        self.check_open()?;
        self.leave_space_for_pages().await?;
        let permit = match self.queued.try_acquire(1) {
            Some(permit) => permit,
            None => self.queued.acquire(1).await,
        };
        self.gate.pass().await;
        self.check_open()?;
        Ok(permit)
    }

    /// Applies an operation on names or attributes, and queues it for its record. Returns its number.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for a damaged item: the file system refuses all changes after that.
    pub fn submit(&self, changes: Changes, permit: Option<Permit>) -> Result<u64> {
        if changes.is_empty() {
            return Ok(self.tickets.borrow().done());
        }
        let mut lost = Lost::default();
        let mut metadata = self.metadata.borrow_mut();
        let applied =
            changes.iter().try_for_each(|it| metadata.apply(it, Place { zone: 0, position: 0 }, &mut lost));
        drop(metadata);
        if let Err(error) = applied {
            // Some of the changes may have taken effect.
            self.fail(&error);
            return Err(error);
        }
        if self.breaks(Broken::ForgetsLost) {
            lost = Lost::default();
        }
        let mut accounts = self.kit.pool.accounts();
        lost.0.iter().for_each(|(zone, count)| accounts.begin_dying(*zone, *count));
        if self.breaks(Broken::DiesWhenSubmitted) {
            std::mem::take(&mut lost.0)
                .into_iter()
                .for_each(|(zone, count)| accounts.remove_dying(zone, count, self.kit.clock()));
        }
        drop(accounts);
        let count = changes.len() as u32;
        self.shown.set(self.shown.get() + u64::from(count));
        self.publish();
        // Capacity for the changes that create a file with a short name.
        let mut meta = Vec::with_capacity(64);
        Change::encode_submitted(&changes, &mut meta);
        let origin = Origin::Submitted { lost, meta, count, _permit: permit };
        Ok(self.queue(Changes::new(), Payload::default(), origin))
    }

    /// Numbers and queues an item.
    pub(crate) fn queue(&self, changes: Changes, data: Payload, origin: Origin) -> u64 {
        let ticket = self.tickets.borrow_mut().issue();
        lane::push(self, self.class, Item { changes, data, origin, ticket });
        self.kit.events.work.notify_one();
        ticket
    }

    /// Returns the item for this core's part of a record that another core has written.
    pub(crate) fn shared_item(&self, changes: Changes) -> Item {
        let ticket = self.tickets.borrow_mut().issue();
        Item { changes, data: Payload::default(), origin: Origin::Shared, ticket }
    }

    /// Waits for the turn of a class and for the memory of a write. With `None` it takes no turn.
    pub(crate) async fn admit_data(&self, class: Option<ClassNumber>, blocks: u64) -> Admitted {
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

    /// Queues a write of whole blocks for which there is space, and waits until its changes have taken
    /// effect. Returns its number. Several changes are atomic. `held` is the lock on the range of the file
    /// that they change.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if no zone has space for it; the failure of the log.
    pub(crate) async fn append(
        &self,
        changes: Changes,
        data: Payload,
        Admitted { permit, turn }: Admitted,
        held: RangeGuard,
    ) -> Result<u64> {
        // Ended lanes take no items.
        self.check_open()?;
        let growth = changes.iter().map(Change::blocks).sum();
        self.growing.set(self.growing.get() + u64::from(growth));
        self.publish();
        let request = self.requests.begin(1, Some(permit));
        let origin = Origin::Write { request, growth, held: Some(held), _turn: turn };
        let ticket = self.queue(changes, data, origin);
        self.requests.wait(request).await?;
        Ok(ticket)
    }

    /// Makes the operations up to this one durable.
    ///
    /// # Errors
    /// The failure of the log, which is permanent; errors of flushing; [`Error::NoSpace`] while a record
    /// waits for space.
    pub async fn sync(&self, ticket: u64) -> Result<()> {
        if self.durable.get() >= ticket || self.breaks(Broken::NeverFlushes) {
            return Ok(());
        }
        let written = self.written(ticket).await?;
        let flushed = flusher::flush(self).await;
        if let Err(error) = &flushed {
            // Writes before the failed flush may be lost even if a later flush succeeds.
            self.fail(&error.in_context("making files durable"));
        }
        flushed?;
        self.durable.set(self.durable.get().max(written));
        Ok(())
    }

    /// Waits until the operations up to this one are written and have taken effect. Returns the number of the
    /// last such operation.
    ///
    /// # Errors
    /// The failure of the log; [`Error::NoSpace`] while a record waits for space: the operations are written
    /// once there is some.
    pub(crate) async fn written(&self, ticket: u64) -> Result<u64> {
        self.wait_until_done(ticket, || self.kit.space.check()).await
    }

    /// Waits until an operation of this core has ended, even if its request was answered before because there
    /// was no space. The failure of the log also ends the wait.
    pub(crate) async fn ended(&self, ticket: u64) {
        self.wait_until_done(ticket, || Ok(())).await.ok();
    }

    /// Waits until the operations up to this one have ended, or `go_on` returns an error. Returns the number
    /// of the last operation that has ended.
    async fn wait_until_done(&self, ticket: u64, go_on: impl Fn() -> Result<()>) -> Result<u64> {
        loop {
            let committed = self.kit.events.committed.notified();
            if let Some(error) = self.kit.failure() {
                return Err(error);
            }
            let done = self.tickets.borrow().done();
            if done >= ticket {
                return Ok(done);
            }
            go_on()?;
            committed.await;
        }
    }

    /// Number of the last operation.
    pub(crate) fn issued(&self) -> u64 {
        self.tickets.borrow().issued()
    }

    /// Makes all operations of this core durable.
    ///
    /// # Errors
    /// As [`sync`](Self::sync).
    pub async fn sync_all(&self) -> Result<()> {
        self.sync(self.issued()).await
    }

    /// Completes an item that has taken effect, or failed.
    fn end(&self, item: &Item, outcome: &Result<()>) {
        match &item.origin {
            Origin::Write { request, growth, .. } => {
                self.growing.set(self.growing.get() - u64::from(*growth));
                self.requests.item_ended(*request, outcome);
            }
            Origin::Submitted { count, .. } => self.shown.set(self.shown.get() - u64::from(*count)),
            Origin::Joint { request, .. } => self.requests.item_ended(*request, outcome),
            Origin::Shared | Origin::Move | Origin::Answered { .. } => {}
        }
        self.tickets.borrow_mut().end(item.ticket);
    }
}
