//! The log device on its home shard: an owner of the kit whose entries are changes of versions.
//!
//! Writes of all shards are sent here with their data and numbered in the order of arrival, so overlapping
//! writes need no lock. Reads look up the map on any shard and don't involve the home shard.

mod admission;
mod capacity;
mod checkpoint;
mod commit;

use crate::buffered::Buffered;
use crate::capacity::Images;
use crate::damaged::Damaged;
use crate::entry::LogEntry;
use crate::format::{Change, VersionId};
use crate::layout::Layout;
use crate::map::Physical;
use crate::salvage::Lost;
use crate::versions::{Effect, Versions};
use admission::Admission;
use block::{Call, Error, Payload, Result, ZoneBlock, ZoneIndex};
use checkpoint::Superseded;
use logkit::cleaning::Policy;
use logkit::{Appender, Kit, Mover, Owner, Piece, Victim};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::{Arc, Weak};

/// Point at which a write is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acknowledge {
    /// After its record is written.
    Log,
    /// After it is in the buffer, a volatile cache.
    Buffer,
}

/// Settings of a log device, in addition to the kit's [`Settings`](logkit::Settings). They aren't persistent.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Point at which a write is acknowledged.
    pub acknowledge: Acknowledge,
    /// Limit of blocks of users' writes in memory; further writers wait.
    pub dirty_blocks: u64,
    /// Largest number of blocks of data if the volume has no snapshots.
    pub capacity: u64,
    /// Number of zones for checkpoints that `capacity` leaves free.
    pub reserved_zones: u64,
    /// Number of blocks that are discarded, or released after a deletion, between two yields to other tasks.
    pub blocks_at_once: u64,
}

/// Keeper of the map outside of the log's zones. Its transactions take the place of checkpoints: a
/// transaction covers every record that had committed when it began, and these are durable before it is.
///
/// The log has no checkpoints then, and reserves no zones for them.
pub trait MapKeeper {
    /// Makes everything that has committed durable, and commits a transaction, so that opening has nothing to
    /// replay. Concurrent calls share a transaction.
    ///
    /// # Errors
    /// Errors of flushing the zones. If only the home has no space, that is logged as a warning: the writes
    /// are durable in the log and are replayed.
    fn flush(self: Rc<Self>, core: Rc<Core>) -> Call<'static, Result<()>>;

    /// Commits a transaction in place of a checkpoint. With `clean`, it is the last one before the log is
    /// closed.
    ///
    /// # Errors
    /// Errors of the flush and of the home, and of the root for the last one.
    fn checkpoint(self: Rc<Self>, core: Rc<Core>, clean: bool) -> Call<'static, Result<()>>;

    /// Makes the newest root demand the newest transaction, unless it already does. The caller's next step,
    /// such as a reset of a zone, depends on it.
    ///
    /// # Errors
    /// Errors of writing the root, after which the log has failed.
    fn demand(self: Rc<Self>, core: Rc<Core>) -> Call<'static, Result<()>>;

    /// Returns the home's part of the status.
    fn status(&self) -> serde_json::Value;
}

/// A version that is open as a device.
#[derive(Debug)]
pub struct View(pub VersionId);

/// State of a log device. Belongs to its home shard.
pub struct Core {
    kit: Rc<Kit>,
    appender: Appender<LogEntry>,
    admission: Admission,
    /// Division of the zones.
    pub layout: Layout,
    /// Settings.
    pub settings: Settings,
    /// The maps.
    pub versions: RefCell<Versions>,
    /// Space that checkpoints may take, and the number of its zones while no thin page is dirty.
    pub images: Cell<(Images, u64)>,
    /// Pages that the next checkpoint frees.
    pub superseded: Superseded,
    /// Blocks that are known to be damaged.
    pub damaged: Arc<Damaged>,
    /// The map's home; `None` if the map is in memory.
    pub home: Option<Rc<dyn MapKeeper>>,
    /// Unreadable parts of a log that is salvaged; `None` for a log in normal use.
    pub lost: Option<Lost>,
    /// Snapshots and clones that are open as devices.
    pub views: RefCell<Vec<Weak<View>>>,
    /// Number of handles that are open on this shard.
    pub handles: Cell<usize>,
    /// Data of writes that were acknowledged from the buffer and haven't committed.
    pub buffer: Arc<Buffered>,
}

impl std::fmt::Debug for Core {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Core({})", self.kit.identity.uuid)
    }
}

/// Recovered state that a log device is opened with.
pub struct State {
    /// Division of the zones.
    pub layout: Layout,
    /// The zones.
    pub zones: Rc<dyn block::Zones>,
    /// The kit's part.
    pub parts: logkit::Parts,
    /// The maps.
    pub versions: Versions,
    /// Blocks that are known to be damaged.
    pub damaged: Damaged,
    /// The map's home; `None` if the map is in memory.
    pub home: Option<Rc<dyn MapKeeper>>,
    /// Unreadable parts of a log that is salvaged; `None` for a log in normal use.
    pub lost: Option<Lost>,
}

impl Core {
    /// Creates a log device in this state.
    pub fn new(
        state: State,
        settings: Settings,
        kit_settings: logkit::Settings,
        policy: Box<dyn Policy>,
    ) -> Rc<Self> {
        let classes = policy.classes();
        let own = [crate::format::USER, crate::format::CLEANER];
        let (lanes, steps) = (kit_settings.appends_in_flight, kit_settings.most_steps);
        let kit = Kit::new(state.parts, state.zones, kit_settings, policy, &own);
        let core = Rc::new(Core {
            appender: Appender::new(kit.layout, classes, lanes, steps, &kit.streams, &own),
            kit,
            admission: Admission::new(settings.dirty_blocks),
            layout: state.layout,
            versions: RefCell::new(state.versions),
            images: Cell::default(),
            superseded: Superseded::default(),
            damaged: Arc::new(state.damaged),
            home: state.home,
            lost: state.lost,
            views: RefCell::default(),
            handles: Cell::new(0),
            buffer: Arc::default(),
            settings,
        });
        core.measure_images();
        core
    }

    /// Makes all acknowledged writes durable.
    ///
    /// # Errors
    /// The failure of the log; errors of flushing.
    pub async fn flush_acknowledged(self: &Rc<Self>) -> Result<()> {
        self.drain_buffer().await?;
        match &self.home {
            Some(home) => home.clone().flush(self.clone()).await,
            None => self.kit.flush().await,
        }
    }

    /// Describes the log's work in progress, for operators.
    pub fn occupation(&self) -> String {
        let (appends, changes) = self.appender.in_flight();
        format!(
            "{} changes queued, {appends} appends with {changes} changes in flight, {} requests not answered, \
             {} zones free, {} dead",
            self.appender.queued(),
            self.admission.requests(),
            self.kit.pool.free(),
            self.kit.pool.dead()
        )
    }

    /// Returns the location of a block of a victim.
    fn place(&self, victim: &Victim, block: u32) -> Physical {
        self.layout.physical(ZoneBlock { zone: ZoneIndex(victim.zone()), block })
    }

    /// Whether a version is open as a device.
    pub fn is_viewed(&self, id: VersionId) -> bool {
        self.views.borrow().iter().filter_map(Weak::upgrade).any(|view| view.0 == id)
    }

    /// Whether the version exists and is writable.
    pub fn version_is_writable(&self, id: VersionId) -> bool {
        self.versions.borrow().get(id).is_some_and(|version| version.writable)
    }
}

/// Name of live data in a zone: the first block of a change in a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name {
    version: VersionId,
    block: u64,
}

impl Owner for Core {
    type Entry = LogEntry;
    type Name = Name;

    #[inline]
    fn kit(&self) -> &Rc<Kit> {
        &self.kit
    }

    #[inline]
    fn appender(&self) -> &Appender<LogEntry> {
        &self.appender
    }

    fn commit(&self, entries: &[LogEntry], zone: u32, position: u32) {
        self.commit_entries(entries, ZoneBlock { zone: ZoneIndex(zone), block: position });
    }

    fn refuse(&self, entry: &LogEntry, error: &Error) {
        self.complete(entry, Err(error.clone()));
    }

    fn answer(&self, entry: &mut LogEntry, error: &Error) {
        self.admission.answer(entry, error);
    }

    fn cut(&self, entry: &mut LogEntry, blocks: u32) -> LogEntry {
        let bytes = (blocks as usize) << self.layout.block_size.shift();
        let payload = entry.payload.slice(0..bytes);
        entry.payload = entry.payload.slice(bytes..entry.payload.len());
        let growth = entry.growth.min(blocks);
        entry.growth -= growth;
        let change = entry.change.cut(blocks);
        self.admission.was_cut(entry);
        LogEntry { change, payload, request: entry.request, growth, ticket: entry.ticket }
    }

    fn has_pieces(&self) -> bool {
        !self.versions.borrow().dying.is_empty()
    }

    fn free_piece(&self) -> bool {
        if !self.has_pieces() {
            return false;
        }
        let mut versions = self.versions.borrow_mut();
        let mut accounts = self.kit.pool.accounts();
        let mut died = false;
        let any = versions.release(self.settings.blocks_at_once, &mut |physical| {
            self.account(&mut accounts, Effect::Dead(physical, 1));
            died = true;
        });
        drop((versions, accounts));
        if died && self.kit.is_stuck() {
            self.kit.look_again();
        }
        any
    }

    fn checkpoint_cost(&self) -> u64 {
        self.pages_cost()
    }

    fn checkpoint_zones(&self) -> u32 {
        self.zones_for_checkpoint()
    }

    fn space_advice(&self) -> &'static str {
        "discard some data, or delete snapshots"
    }

    async fn take_checkpoint(self: &Rc<Self>, clean: bool) -> Result<()> {
        self.write_checkpoint(clean).await
    }

    async fn prepare_reset(self: &Rc<Self>) -> Result<()> {
        match &self.home {
            Some(home) => home.clone().demand(self.clone()).await,
            None => Ok(()),
        }
    }

    async fn grace(&self) -> Result<()> {
        let maps: Vec<_> = self.versions.borrow().list.iter().map(|version| version.map.clone()).collect();
        let graces: Vec<u64> = maps.iter().map(|map| map.begin_grace()).collect();
        self.kit.readers.grace().await?;
        maps.iter().zip(graces).for_each(|(map, grace)| map.end_grace(grace));
        Ok(())
    }

    /// Moves exclude checkpoints while several versions exist: the pages of two versions could name different
    /// locations of the same block, and recovery couldn't detect that it is one block.
    fn moves_exclude_checkpoints(&self) -> bool {
        self.versions.borrow().list.len() > 1
    }

    async fn live(&self, victim: &Victim) -> Result<Vec<Piece<Name>>> {
        let versions = self.versions.borrow();
        let mut pieces = Vec::new();
        for (record, found) in victim.records().iter().enumerate() {
            let mut first = 0;
            for change in Change::decode_all(&found.meta)? {
                let (Change::Write { version, block, count } | Change::Move { version, block, count, .. }) =
                    change
                else {
                    continue;
                };
                let position = found.header.position + 1 + first;
                let at = self.place(victim, position);
                let name = Name { version, block };
                let whole = Piece { position, count, name, offset: 0, record, first };
                versions.live(block, u64::from(count), at, &mut |offset, length| {
                    pieces.push(whole.part(offset as u32, length as u32));
                });
                first += count;
            }
        }
        Ok(pieces)
    }

    fn still_live(&self, victim: &Victim, piece: &Piece<Name>, visit: &mut dyn FnMut(u32, u32)) {
        let at = self.place(victim, piece.position);
        let block = piece.name.block + u64::from(piece.offset);
        let versions = self.versions.borrow();
        versions.live(block, u64::from(piece.count), at, &mut |offset, length| {
            visit(offset as u32, length as u32);
        });
    }

    /// Moves pieces in the order of the volume.
    async fn relocate(
        self: &Rc<Self>,
        victim: &Victim,
        class: u8,
        mut pieces: Vec<(Piece<Name>, block::Data)>,
        mover: &mut Mover,
    ) -> Result<()> {
        pieces.sort_by_key(|(piece, _)| (piece.name.version, piece.name.block + u64::from(piece.offset)));
        let entries = pieces.into_iter().map(|(piece, data)| {
            let from = self.place(victim, piece.position);
            let block = piece.name.block + u64::from(piece.offset);
            let change = Change::Move { version: piece.name.version, block, count: piece.count, from };
            LogEntry { change, payload: Payload::from(data), request: None, growth: 0, ticket: 0 }
        });
        mover.append(self, class, entries).await
    }
}

/// Changes of one request, nearly always one.
pub type Changes = smallvec::SmallVec<[Change; 1]>;
