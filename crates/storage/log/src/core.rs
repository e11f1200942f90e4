//! The log device on a home shard: an owner of the kit whose entries are changes of versions.
//!
//! Writes to the blocks of this shard are sent here from all shards with their data and numbered in the order
//! of arrival, so overlapping writes need no lock. Reads look up the map on any shard and don't involve the
//! home shards. A log has one home shard or several (`shards`); the first of them is the home of what
//! belongs to the whole log.

mod admission;
mod capacity;
mod checkpoint;
mod commit;
mod joint;
mod moves;
mod owner;
mod shards;

use crate::buffered::Buffered;
use crate::capacity::Images;
use crate::damaged::Damaged;
use crate::entry::LogEntry;
use crate::format::{Change, VersionId};
use crate::layout::Layout;
use crate::salvage::Lost;
use crate::versions::{VersionSeeds, Versions};
use admission::Admission;
pub use admission::MAX_REQUEST_BLOCKS;
use block::{Call, Result};
use checkpoint::Superseded;
use logkit::cleaning::Policy;
use logkit::{Appender, Kit, Peer, flusher};
use moves::Moves;
use runtime::sync::Permit;
pub use shards::{Homes, Peers, Totals, place_of};
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

/// State of a home shard of a log device.
pub struct Core {
    kit: Rc<Kit>,
    appender: Appender<LogEntry>,
    admission: Admission,
    /// This shard among the others.
    pub peers: Peers,
    moves: Moves,
    /// Keeps writes from this shard while a version is created.
    gate: RefCell<Option<Permit>>,
    /// Division of the zones.
    pub layout: Layout,
    /// Settings.
    pub settings: Settings,
    /// The maps.
    pub versions: RefCell<Versions>,
    /// Space that checkpoints may take, and the number of its zones while no thin page is dirty.
    pub images: Cell<(Images, u64)>,
    /// Number of times that the home had computed them.
    images_number: Cell<u64>,
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
    /// Creates the core of the home of a log in this state.
    pub fn new(
        state: State,
        settings: Settings,
        kit_settings: logkit::Settings,
        policy: Box<dyn Policy>,
        totals: Arc<Totals>,
    ) -> Rc<Self> {
        let State { layout, zones, parts, versions, damaged, home, lost } = state;
        let own = [kit_settings.user_stream, kit_settings.cleaner_stream];
        let classes = policy.classes();
        let kit = Kit::new(parts, zones, kit_settings, policy, &own);
        let (peers, damaged) = (Peers::new(0, totals), Arc::new(damaged));
        let core = Self::with(kit, classes, (layout, versions, damaged), settings, peers, (home, lost));
        core.measure_images();
        core.publish_directory();
        core
    }

    /// Creates the core of another shard of a log, with the versions that the home gave it.
    pub fn join(
        (peer, zones): (Peer, Rc<dyn block::Zones>),
        (layout, versions, damaged): (Layout, VersionSeeds, Arc<Damaged>),
        settings: Settings,
        kit_settings: logkit::Settings,
        policy: Box<dyn Policy>,
        peers: Peers,
    ) -> Rc<Self> {
        let own = [kit_settings.user_stream, kit_settings.cleaner_stream];
        let classes = policy.classes();
        let kit = Kit::join(peer, zones, kit_settings, policy, &own);
        Self::with(kit, classes, (layout, versions.plant(), damaged), settings, peers, (None, None))
    }

    fn with(
        kit: Rc<Kit>,
        classes: u8,
        (layout, versions, damaged): (Layout, Versions, Arc<Damaged>),
        settings: Settings,
        peers: Peers,
        (home, lost): (Option<Rc<dyn MapKeeper>>, Option<Lost>),
    ) -> Rc<Self> {
        let own = [kit.settings.user_stream, kit.settings.cleaner_stream];
        let (lanes, steps) = (kit.settings.appends_in_flight, kit.settings.most_steps);
        Rc::new(Core {
            appender: Appender::new(kit.layout, classes, lanes, steps, &kit.streams, &own),
            kit,
            admission: Admission::new(settings.dirty_blocks),
            peers,
            moves: Moves::new(classes),
            gate: RefCell::default(),
            layout,
            versions: RefCell::new(versions),
            images: Cell::default(),
            images_number: Cell::new(0),
            superseded: Superseded::default(),
            damaged,
            home,
            lost,
            views: RefCell::default(),
            handles: Cell::new(0),
            buffer: Arc::default(),
            settings,
        })
    }

    /// Makes all acknowledged writes to the blocks of this shard durable.
    ///
    /// # Errors
    /// The failure of the log; errors of flushing.
    pub async fn flush_acknowledged(self: &Rc<Self>) -> Result<()> {
        self.drain_buffer().await?;
        match &self.home {
            Some(home) => home.clone().flush(self.clone()).await,
            None => self.flush_committed().await,
        }
    }

    /// Makes what has committed on this shard durable, with the records of other shards that it depends on.
    pub(crate) async fn flush_committed(&self) -> Result<()> {
        match self.peers.is_alone() {
            true => self.kit.flush().await,
            false => flusher::flush(self).await,
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

    /// Whether a version is open as a device.
    pub fn is_viewed(&self, id: VersionId) -> bool {
        self.views.borrow().iter().filter_map(Weak::upgrade).any(|view| view.0 == id)
    }

    /// Whether the version exists and is writable.
    pub fn version_is_writable(&self, id: VersionId) -> bool {
        self.versions.borrow().get(id).is_some_and(|version| version.writable)
    }
}

/// Changes of one request, nearly always one.
pub type Changes = smallvec::SmallVec<[Change; 1]>;
