//! A core of the file system, with its shards: an owner of the log kit whose entries are changes of metadata, with the data of files.
//!
//! An operation on names or attributes of one core is decided and takes effect in one turn, without waiting for anything; its
//! changes are queued, and written with others in one record. A write takes effect when its record is written. All of them
//! are numbered, and written in the order of their numbers, so making a file durable is waiting for a number.
//!
//! Operations that concern several cores are in `joint`.

use crate::change::{Change, Changes, Recorded};
use crate::checkpoint::Frozen;
use crate::classes::fair_queue::ClassNumber;
use crate::classes::{BACKGROUND_SHARES, Classes, IO_DEPTH, Turn};
use crate::cores::{Cores, Totals};
use crate::extents::{Blocks, Place};
use crate::format::{BLOCK, MOST_CORES};
use crate::gate::Gate;
use crate::inode::{InodeNumber, Time};
use crate::item::{Item, Lost, Origin};
use crate::locks::Locks;
use crate::metadata::Metadata;
use crate::node::{Node, Nodes};
use crate::snapshot_list::SnapshotList;
use crate::sums::Sums;
use crate::tickets::Tickets;
use crate::tree::Released;
use block::{Data, Error, Payload, Result};
use logkit::cleaning::{Arrival, Policy};
use logkit::layout::ROOT_ZONES;
use logkit::pool::{Accounts, Usage};
use logkit::readers::ShardReads;
use logkit::{Appender, Joint, Kit, Mover, Owner, Piece, StreamId, Victim, count, flusher, lane, mover};
use runtime::Requests;
use runtime::range_lock::RangeGuard;
use runtime::sync::{Permit, Semaphore};
use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Stream of what users do on a core.
pub fn user_stream(core: u32) -> StreamId {
    StreamId(2 * core as u16)
}

/// Stream of what the cleaner moves of a core's files.
pub fn cleaner_stream(core: u32) -> StreamId {
    StreamId(2 * core as u16 + 1)
}

/// Number of streams.
pub const STREAMS: usize = 2 * MOST_CORES as usize;

/// Zones that users leave to the cleaner: one is filled, one is being sealed, and the blocks of a victim go to a zone of each core.
fn cleaner_reserve(cores: u32) -> u32 {
    2 + cores
}

/// How a file system works; none of it is on the medium.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Appends in flight at a time.
    pub appends_in_flight: u32,
    /// Bytes of writes in memory; further writers wait.
    pub dirty_bytes: u64,
    /// Operations in memory that aren't written; further ones wait.
    pub queued_operations: u32,
    /// Bytes that are written between checkpoints.
    pub checkpoint_after: u64,
    /// Bytes of checksums that are kept in memory.
    pub sums_bytes: u64,
    /// Most bytes of memory for metadata. A file system that needs more isn't opened, and one that has seven eighths of it takes no more files.
    pub metadata_bytes: u64,
    /// Number of cores among which the shards are divided, as far as the file system has shards and zones for them; `None` for
    /// those of the runtime.
    pub cores: Option<u32>,
    /// The policy of cleaning by its name, and its parameters; without these, the best known ones for the number of zones.
    pub cleaning: (String, Option<logkit::cleaning::Parameters>),
    /// [`logkit::Settings::read_request_bytes`].
    pub read_request_bytes: u64,
    /// Shares of the class of the cleaner, scrub and defragmentation.
    pub background_shares: u32,
    /// Most bytes of requests in flight on a core, where [classes](crate::classes) compete; a request counts
    /// [16 KiB](crate::classes::REQUEST_COST) beside its bytes.
    pub io_depth: u64,
    /// Number of names above which the names of a directory are divided among [stripes](crate::stripes) on all cores; an estimate if it
    /// is more than 64.
    pub stripe_above: u64,
    /// Rule that is broken on purpose, for tests that must notice it. Programs built for release keep all rules.
    #[doc(hidden)]
    pub broken: Option<Broken>,
}

/// Rules that tests break.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Broken {
    /// Syncs return at once.
    NeverFlushes,
    /// Blocks die when the operation that frees them is submitted.
    DiesWhenSubmitted,
    /// Pages of the previous checkpoint die before the next one is durable.
    FreesPagesEarly,
    /// Changes that the checkpoint shows are replayed.
    ReplaysShown,
    /// The live blocks of one file aren't counted when its name is removed.
    ForgetsLost,
    /// Inodes without names stay.
    KeepsOrphans,
    /// An operation on inodes of several cores is a record for each.
    SplitsOperations,
    /// Blocks that the present tree loses die although a snapshot has them.
    ForgetsSnapshots,
    /// A file that is cloned isn't told that others have its blocks, which die with it.
    ForgetsSource,
    /// The cleaner moves shared blocks only for the files that they were written for.
    IgnoresShared,
    /// No rule: the cores keep their trees for a snapshot one long after the other.
    SlowSnapshots,
    /// A snapshot is taken of each core at another moment, long after the other ones.
    SnapshotsApart,
    /// Requests of all classes are started in order of arrival.
    IgnoresShares,
    /// A directory is made striped before the copies of its names are written.
    StripesEarly,
    /// The names of a directory are copied to its stripes while others change them.
    StripesUnlocked,
    /// An operation on a name that has waited doesn't look whether its directory is striped by then.
    ForgetsStripes,
    /// The cleaner waits for its turn although writers wait for the cleaner.
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
            stripe_above: 16_384,
            broken: None,
        }
    }
}

/// What a write in flight holds: its memory, and the turn of its class.
#[derive(Debug)]
pub(crate) struct Admitted {
    permit: Permit,
    turn: Option<Turn>,
}

/// The time of an operation.
pub fn now() -> Time {
    runtime::wall_clock().as_nanos() as Time
}

/// A core of a file system.
pub struct Core {
    /// Its number.
    pub(crate) index: u32,
    /// Where all are; set once they have been made.
    cores: OnceCell<Cores>,
    pub(crate) totals: Arc<Totals>,
    pub(crate) kit: Rc<Kit>,
    pub(crate) appender: Appender<Item>,
    pub(crate) requests: Requests,
    /// Reads in progress: a zone isn't reset under one.
    pub(crate) reads: Arc<ShardReads>,
    pub(crate) metadata: RefCell<Metadata>,
    /// Places of pages that the next checkpoint no longer has.
    pub(crate) released: Released,
    pub(crate) nodes: Nodes,
    /// Inodes that operations of several cores are about to change.
    pub(crate) locks: Locks,
    /// Before operations, while a snapshot is taken.
    pub(crate) gate: Gate,
    /// The snapshots of the file system; of the home.
    pub(crate) snapshot_list: SnapshotList,
    /// Blocks that only deleted snapshots had: they die when the next checkpoint is durable.
    pub(crate) dropped: RefCell<Lost>,
    /// Zones to which the cleaner moves blocks of this core, where this isn't the home.
    mover: RefCell<Option<Mover>>,
    /// The checkpoint that is being written.
    pub(crate) frozen: RefCell<Option<Frozen>>,
    pub(crate) sums: RefCell<Sums>,
    /// Size of requests in bytes that programs are told to prefer.
    pub(crate) block_size: u64,
    metadata_bytes: u64,
    /// Whose reads, writes and syncs are next.
    pub(crate) classes: Rc<Classes>,
    /// Number of names above which a directory is made striped.
    pub(crate) stripe_above: u64,
    /// Whether a directory of this core is being made striped: one at a time is.
    pub(crate) is_striping: Cell<bool>,
    dirty: Rc<Semaphore>,
    dirty_blocks: u64,
    queued: Rc<Semaphore>,
    /// Reads of checksums from zones at a time.
    pub(crate) loading: Rc<Semaphore>,
    /// Blocks of capacity that are reserved for writes in flight.
    growing: Cell<u64>,
    tickets: RefCell<Tickets>,
    /// Number of changes that took effect when they were submitted, and whose records haven't committed.
    shown: Cell<u64>,
    /// Number of the last operation up to which all are durable.
    pub(crate) durable: Cell<u64>,
    /// Number of records that were replayed at the opening.
    pub(crate) replayed: Cell<u64>,
    /// Class of zones that users' records go to: one, so that they are written in the order of their numbers.
    class: u8,
    broken: Option<Broken>,
}

impl std::fmt::Debug for Core {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "fs::Core({})", self.kit.identity.uuid)
    }
}

/// Counts blocks that files get and lose.
struct Accounting<'a, 'b> {
    accounts: &'a mut Accounts<'b>,
    clock: u64,
}

impl Accounting<'_, '_> {
    /// Counts blocks that an operation freed when it was submitted.
    fn dying(&mut self, zone: u32, blocks: u32) {
        self.accounts.remove_dying(zone, blocks, self.clock);
    }
}

impl Blocks for Accounting<'_, '_> {
    fn live(&mut self, zone: u32, blocks: u32) {
        self.accounts.add_live(zone, blocks);
    }

    fn dead(&mut self, zone: u32, blocks: u32) {
        self.accounts.remove_live(zone, blocks, self.clock);
    }
}

/// Settings of the kit for these of a file system.
pub fn kit_settings(
    settings: &Settings,
    layout: &logkit::Layout,
    (core, cores): (u32, u32),
) -> logkit::Settings {
    logkit::Settings {
        user_stream: user_stream(core),
        cleaner_stream: cleaner_stream(core),
        appends_in_flight: settings.appends_in_flight,
        data_blocks: layout.data_blocks(Change::LONGEST_WITH_BLOCKS),
        record_blocks: layout.record_blocks(Change::LONGEST_WITH_BLOCKS),
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
    /// A core with this state, recovered or new. The caller starts lanes and cleaner.
    pub fn new(
        (index, totals): (u32, Arc<Totals>),
        kit: impl FnOnce(Box<dyn Policy>) -> Rc<Kit>,
        policy: Box<dyn Policy>,
        (mut metadata, released): (Metadata, Released),
        settings: &Settings,
        block_size: u64,
    ) -> Rc<Self> {
        metadata.snapshots.keeps_nothing =
            cfg!(debug_assertions) && settings.broken == Some(Broken::ForgetsSnapshots);
        metadata.snapshots.ignores_shared =
            cfg!(debug_assertions) && settings.broken == Some(Broken::IgnoresShared);
        metadata.forgets_source = cfg!(debug_assertions) && settings.broken == Some(Broken::ForgetsSource);
        let (classes, class) = (policy.classes(), policy.place(Arrival::New));
        let kit = kit(policy);
        let layout = kit.layout;
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
            stripe_above: settings.stripe_above,
            is_striping: Cell::new(false),
            dirty: Semaphore::new(dirty_blocks as usize),
            dirty_blocks,
            loading: Semaphore::new(2),
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

    /// Tells the core where all are.
    pub(crate) fn set_cores(&self, cores: Cores) {
        // They are told once.
        self.cores.set(cores).ok();
    }

    /// Where all cores are.
    pub(crate) fn cores(&self) -> &Cores {
        self.cores.get().expect("cores are told of each other before anything else")
    }

    /// Whether this core has an inode.
    #[inline]
    pub(crate) fn is_here(&self, inode: InodeNumber) -> bool {
        self.totals.cores() == 1 || self.cores().index_of(inode) == self.index
    }

    /// Tells other cores what this one uses.
    pub(crate) fn publish(&self) {
        let (metadata, used) = (self.metadata.borrow(), self.totals.of(self.index));
        used.preallocated.store(metadata.preallocated, Relaxed);
        used.growing.store(self.growing.get(), Relaxed);
        let pages = match metadata.snapshots.is_empty() {
            true => metadata.items.pages(),
            // All pages that are shared with a snapshot may have to be copied.
            false => metadata.items.family_pages() + metadata.items.pages(),
        };
        used.pages.store(pages as u64, Relaxed);
        used.unstored.store(metadata.items.unstored_pages() as u64, Relaxed);
        used.memory.store(metadata.items.memory() as u64, Relaxed);
        used.inodes.store(metadata.count(), Relaxed);
    }

    /// A file in use.
    pub(crate) fn node(&self, inode: InodeNumber) -> Rc<Node> {
        self.nodes.get(inode, self.tickets.borrow().issued())
    }

    /// Whether a test breaks this rule.
    #[inline]
    pub(crate) fn breaks(&self, rule: Broken) -> bool {
        cfg!(debug_assertions) && self.broken == Some(rule)
    }

    /// Number of changes that a checkpoint of this moment shows, and whose records follow it.
    pub(crate) fn shown(&self) -> u64 {
        self.shown.get()
    }

    /// Files in use.
    pub fn nodes(&self) -> &Nodes {
        &self.nodes
    }

    /// Refuses operations on a file system that has failed or is closed.
    ///
    /// # Errors
    /// The failure of the log; [`Error::Closed`].
    pub fn check_open(&self) -> Result<()> {
        match self.kit.failure() {
            Some(error) => Err(error),
            None if self.kit.is_closing() => Err(Error::closed("the file system is closed; open it again")),
            None => self.kit.space.check(),
        }
    }

    /// Most blocks of files, beside the pages of checkpoints, what users leave to the cleaner, and zones that are being written.
    pub fn capacity(&self) -> u64 {
        let layout = &self.kit.layout;
        let (lanes, cores) = (self.kit.settings.appends_in_flight, self.totals.cores());
        let reserved = reserved_zones(lanes, cores) + self.kit.pool.damaged();
        let zones = u64::from(layout.zones.saturating_sub(reserved));
        // The durable checkpoint, at its loosest packing, and the next one.
        let pages =
            3 * (self.totals.sum(|used| &used.pages) + self.kit.checkpoints.directory_blocks(&self.kit));
        let blocks = zones * u64::from(self.kit.settings.data_blocks);
        // Cleaning a file system without any slack would never end.
        (blocks - blocks / 16).saturating_sub(pages)
    }

    /// Blocks of files, with preallocated ones and those that are reserved for writes in flight.
    pub fn used(&self) -> u64 {
        self.kit.pool.live_data()
            + self.totals.sum(|used| &used.preallocated)
            + self.totals.sum(|used| &used.growing)
    }

    /// Refuses operations that need space.
    ///
    /// # Errors
    /// [`Error::NoSpace`] with both numbers.
    pub fn check_space(&self, blocks: u64) -> Result<()> {
        let (used, capacity) = (self.used(), self.capacity());
        match used + blocks <= capacity {
            true => Ok(()),
            false => Err(Error::no_space(format!(
                "the file system is full: {used} of {capacity} blocks of 4 KiB are in use; remove files or snapshots, or grow it"
            ))),
        }
    }

    /// Refuses operations without data that need space. They take effect when they are submitted and can't be refused later, so they are
    /// also refused as long as the device below has no space beside that of the last zones, which are left to removals.
    ///
    /// # Errors
    /// As [`check_space`](Self::check_space); [`Error::NoSpace`] of the device below.
    pub fn check_space_for_item(&self) -> Result<()> {
        self.kit.check_known_space(self.kept_zones())?;
        let memory = self.totals.sum(|used| &used.memory);
        // Writes and removals aren't refused, and a file system that needs more than the budget isn't opened again: an eighth is left to them.
        match memory < self.metadata_bytes - self.metadata_bytes / 8 {
            true => self.check_space(1),
            false => Err(Error::no_space(format!(
                "the metadata takes {memory} bytes of memory, and its budget is {}, of which new files leave an eighth; remove files or \
                 snapshots, or mount it with a larger budget",
                self.metadata_bytes
            ))),
        }
    }

    /// Waits until an operation may be queued.
    ///
    /// # Errors
    /// As [`check_open`](Self::check_open).
    pub async fn admit(&self) -> Result<Permit> {
        self.check_open()?;
        let permit = match self.queued.try_acquire(1) {
            Some(permit) => permit,
            None => self.queued.acquire(1).await,
        };
        self.gate.pass().await;
        self.check_open()?;
        Ok(permit)
    }

    /// Lets an operation on names or attributes take effect, and queues it. Returns its number.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for a damaged item: the file system takes no more changes then.
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
            // A part of it may have taken effect.
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
        // As much as making a file with a short name takes.
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

    /// This core's part of a record that another one has written.
    pub(crate) fn shared_item(&self, changes: Changes) -> Item {
        let ticket = self.tickets.borrow_mut().issue();
        Item { changes, data: Payload::default(), origin: Origin::Shared, ticket }
    }

    /// Turn of a class and permits for a write in memory. Without a class it takes no turn.
    pub(crate) async fn admit_data(&self, class: Option<ClassNumber>, blocks: u64) -> Admitted {
        let turn = match class {
            // Before the permits, which classes share.
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

    /// Queues a write of whole blocks for which there is space, and waits until its changes have taken effect. Returns its
    /// number. Several changes are atomic. `held` is the range of the file that they change.
    ///
    /// # Errors
    /// [`Error::NoSpace`] where no zone takes it; the failure of the log.
    pub(crate) async fn append(
        &self,
        changes: Changes,
        data: Payload,
        Admitted { permit, turn }: Admitted,
        held: RangeGuard,
    ) -> Result<u64> {
        // No lane takes it once they have ended.
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
    /// The failure of the log, which stays; what flushing returns; [`Error::NoSpace`] while a record waits for space.
    pub async fn sync(&self, ticket: u64) -> Result<()> {
        if self.durable.get() >= ticket || self.breaks(Broken::NeverFlushes) {
            return Ok(());
        }
        let written = self.written(ticket).await?;
        let flushed = flusher::flush(self).await;
        if let Err(error) = &flushed {
            // What was written may be lost, whatever later flushes say.
            self.fail(&error.in_context("making files durable"));
        }
        flushed?;
        self.durable.set(self.durable.get().max(written));
        Ok(())
    }

    /// Waits until the operations up to this one have taken effect and are written. Returns the last one of which that is so.
    ///
    /// # Errors
    /// The failure of the log; [`Error::NoSpace`] while a record waits for space: the operations are written once there is some.
    pub(crate) async fn written(&self, ticket: u64) -> Result<u64> {
        loop {
            let committed = self.kit.events.committed.notified();
            if let Some(error) = self.kit.failure() {
                return Err(error);
            }
            let done = self.tickets.borrow().done();
            if done >= ticket {
                return Ok(done);
            }
            self.kit.space.check()?;
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

    /// Completes an item that has taken effect, or won't.
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

/// Name of data in a zone: a block of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name {
    inode: InodeNumber,
    block: u64,
}

impl Owner for Core {
    type Entry = Item;
    type Name = Name;

    #[inline]
    fn kit(&self) -> &Rc<Kit> {
        &self.kit
    }

    #[inline]
    fn appender(&self) -> &Appender<Item> {
        &self.appender
    }

    fn commit(&self, items: &[Item], zone: u32, position: u32) {
        let mut failed = Ok(());
        let mut at = Place { zone, position };
        let mut metadata = self.metadata.borrow_mut();
        let mut accounts = self.kit.pool.accounts();
        let mut blocks = Accounting { accounts: &mut accounts, clock: self.kit.clock() };
        let (mut user_blocks, mut moved_blocks) = (0, 0);
        for item in items {
            match &item.origin {
                Origin::Submitted { lost, .. } => {
                    lost.0.iter().for_each(|(zone, count)| blocks.dying(*zone, *count));
                }
                Origin::Joint { .. } | Origin::Shared => {
                    for change in item.changes.iter().filter(|change| self.is_here(change.inode())) {
                        failed = failed.and(metadata.apply(change, at, &mut blocks));
                    }
                }
                Origin::Write { .. } | Origin::Move | Origin::Answered { .. } => {
                    for change in &item.changes {
                        failed = failed.and(metadata.apply(change, at, &mut blocks));
                        at.position += change.blocks();
                    }
                    let written = match item.origin {
                        Origin::Move => &mut moved_blocks,
                        _ => &mut user_blocks,
                    };
                    *written += u64::from(logkit::Entry::blocks(item));
                }
            }
        }
        drop((metadata, accounts));
        self.kit.note_user_blocks(user_blocks);
        count(&self.kit.counters.moved_blocks, moved_blocks);
        if let Err(error) = &failed {
            self.fail(error);
        }
        items.iter().for_each(|item| self.end(item, &failed));
        self.publish();
        self.kit.events.committed.notify_all();
        if self.kit.is_stuck() {
            self.kit.look_again();
        }
    }

    fn note_sums(&self, zone: u32, position: u32, sums: &[u32]) {
        let mut known = self.sums.borrow_mut();
        known.note(zone, position, sums);
        known.shrink(|zone| self.is_being_written(zone));
    }

    fn refuse(&self, item: &Item, error: &Error) {
        self.end(item, &Err(error.clone()));
        self.publish();
        self.kit.events.committed.notify_all();
    }

    fn answer(&self, item: &mut Item, error: &Error) {
        // The write may still take effect, so what it reserved stays until it does.
        match &mut item.origin {
            Origin::Write { request, growth, held, .. } => {
                self.growing.set(self.growing.get() - u64::from(*growth));
                self.requests.item_ended(*request, &Err(error.clone()));
                item.origin = Origin::Answered { held: held.take() };
            }
            Origin::Joint { request, .. } => {
                self.requests.item_ended(*request, &Err(error.clone()));
                item.origin = Origin::Shared;
            }
            _ => {}
        }
    }

    fn cut(&self, item: &mut Item, blocks: u32) -> Item {
        if let Origin::Write { request, .. } = item.origin {
            self.requests.item_was_cut(request);
        }
        item.cut(blocks, self.kit.layout.block_bytes())
    }

    async fn flush_all(&self) -> Result<()> {
        for core in self.cores().all() {
            core.with(|core: Rc<Core>| async move { core.flush_own().await }).await?;
        }
        Ok(())
    }

    fn share(&self, joint: &Arc<Joint>, items: &[Item], zone: u32, position: u32) {
        self.pass_on(joint, items, zone, position);
    }

    async fn free_dead(self: &Rc<Self>) -> Result<()> {
        self.cores().first().with(|core: Rc<Core>| async move { mover::free_dead(&core).await }).await
    }

    fn checkpoint_cost(&self) -> u64 {
        self.totals.sum(|used| &used.unstored) + self.kit.checkpoints.directory_blocks(&self.kit) + 2
    }

    fn checkpoint_zones(&self) -> u32 {
        let per_zone = u64::from(self.kit.layout.zone_blocks - 3).max(1);
        let cost = self.checkpoint_cost();
        (cost + cost / 4).div_ceil(per_zone) as u32 + 1
    }

    async fn take_checkpoint(self: &Rc<Self>, clean: bool) -> Result<()> {
        self.write_checkpoint(clean).await
    }

    async fn live(&self, victim: &Victim) -> Result<Vec<Piece<Name>>> {
        let (zone, mut live) = (victim.zone(), Vec::new());
        for (core, pieces) in self.cores().all().iter().zip(self.pieces_of(victim)?) {
            if !pieces.is_empty() {
                live.extend(
                    core.with(move |core: Rc<Core>| async move { core.live_here(zone, pieces) }).await?,
                );
            }
        }
        Ok(live)
    }

    /// What other cores have is moved in any case: a move of a block that has died meanwhile takes no effect.
    fn still_live(&self, victim: &Victim, piece: &Piece<Name>, visit: &mut dyn FnMut(u32, u32)) {
        if !self.is_here(piece.name.inode) {
            return visit(0, piece.count);
        }
        let place = Place { zone: victim.zone(), position: piece.position };
        let first = piece.name.block + u64::from(piece.offset);
        let metadata = self.metadata.borrow();
        let (inode, range) = (piece.name.inode, (first, piece.count));
        let found = metadata.snapshots.visit_at_any(&metadata.items, inode, range, place, |from, count| {
            visit((from - first) as u32, count);
        });
        if let Err(error) = found {
            drop(metadata);
            self.fail(&error);
        }
    }

    async fn relocate(
        self: &Rc<Self>,
        victim: &Victim,
        class: u8,
        mut pieces: Vec<(Piece<Name>, Data)>,
        mover: &mut Mover,
    ) -> Result<()> {
        let start = |piece: &Piece<Name>| (piece.name.inode, piece.name.block + u64::from(piece.offset));
        // Neighbours in a file become neighbours in a zone.
        pieces.sort_by_key(|(piece, _)| start(piece));
        let mut moves: Vec<Vec<Moved>> = self.cores().all().iter().map(|_| Vec::new()).collect();
        for (piece, data) in pieces {
            let (inode, block) = start(&piece);
            let from = Place { zone: victim.zone(), position: piece.position };
            let change = Change::Move { inode, block, blocks: piece.count, from };
            moves[self.cores().index_of(inode) as usize].push((change, data));
        }
        for (index, moves) in (0..).zip(moves) {
            if index == self.index {
                mover.append(self, class, moves.into_iter().map(moved_item)).await?;
            } else if !moves.is_empty() {
                self.kit.pace.moved(moves.iter().map(|(change, _)| change.blocks()).sum());
                let core = &self.cores().all()[index as usize];
                core.with(move |core: Rc<Core>| core.move_here(class, moves)).await?;
            }
        }
        Ok(())
    }

    async fn read_to_move<R>(&self, bytes: u64, read: impl Future<Output = R>) -> R {
        let _turn = self.turn_of_cleaner(bytes).await;
        read.await
    }

    fn space_advice(&self) -> &'static str {
        "remove files or snapshots"
    }
}

/// A move of the cleaner, with its data.
type Moved = (Change, Data);

fn moved_item((change, data): Moved) -> Item {
    Item { changes: Changes::from_elem(change, 1), data: data.into(), origin: Origin::Move, ticket: 0 }
}

/// Zones that aren't for files: of each lane and of the cleaner, on each core, a zone is open and one is being sealed; a checkpoint has one.
pub(crate) fn reserved_zones(lanes: u32, cores: u32) -> u32 {
    ROOT_ZONES + cleaner_reserve(cores) + cores * 2 * (lanes + 1) + 2
}

impl Core {
    /// What the records of a zone gave to files, by the core that has the file.
    fn pieces_of(&self, victim: &Victim) -> Result<Vec<Vec<Piece<Name>>>> {
        let mut pieces: Vec<Vec<Piece<Name>>> = self.cores().all().iter().map(|_| Vec::new()).collect();
        for (record, found) in victim.records().iter().enumerate() {
            let mut first = 0;
            for Recorded { change, .. } in Change::decode_record(&found.meta, found.header.blocks)? {
                let (Change::Map { inode, block, blocks, .. } | Change::Move { inode, block, blocks, .. }) =
                    change
                else {
                    continue;
                };
                let position = found.header.position + 1 + first;
                let name = Name { inode, block };
                let piece = Piece { position, count: blocks, name, offset: 0, record, first };
                pieces[self.cores().index_of(inode) as usize].push(piece);
                first += blocks;
            }
        }
        Ok(pieces)
    }

    /// The parts of these pieces, of files of this core, that are live.
    fn live_here(&self, zone: u32, pieces: Vec<Piece<Name>>) -> Result<Vec<Piece<Name>>> {
        let (mut live, metadata) = (Vec::new(), self.metadata.borrow());
        for piece in pieces {
            let (Name { inode, block }, place) = (piece.name, Place { zone, position: piece.position });
            let range = (block, piece.count);
            metadata.snapshots.visit_at_any(&metadata.items, inode, range, place, |from, count| {
                let skipped = (from - block) as u32;
                let position = piece.position + skipped;
                let name = Name { inode, block: from };
                live.push(Piece { position, count, name, first: piece.first + skipped, ..piece });
            })?;
        }
        Ok(live)
    }

    /// Moves blocks of this core for the home's cleaner.
    async fn move_here(self: Rc<Self>, class: u8, moves: Vec<Moved>) -> Result<()> {
        let taken = self.mover.borrow_mut().take();
        let Some(mut mover) = taken else {
            return Err(Error::closed("the file system is being closed: nothing is moved any more"));
        };
        let outcome = mover.append(&self, class, moves.into_iter().map(moved_item)).await;
        *self.mover.borrow_mut() = Some(mover);
        outcome
    }

    /// Seals the zones to which the cleaner has moved blocks of this core.
    pub(crate) async fn close_mover(&self) {
        let mover = self.mover.borrow_mut().take();
        if let Some(mut mover) = mover {
            mover.close(self).await;
        }
    }

    /// Makes durable what this core has appended.
    async fn flush_own(&self) -> Result<()> {
        let flushed = self.kit.flush().await;
        if let Err(error) = &flushed {
            // What was written may be lost, whatever later flushes say.
            self.fail(&error.in_context("making files durable"));
        }
        flushed
    }

    /// Whether a zone may still be written: its checksums can't be read from it.
    pub(crate) fn is_being_written(&self, zone: u32) -> bool {
        self.kit.pool.get(zone).usage == Usage::Open
    }
}
