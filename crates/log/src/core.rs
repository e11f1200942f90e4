//! The log device on its home shard: an owner of the kit whose entries are changes of versions.
//!
//! Writes of all shards come here whole and are numbered in the order in which they arrive, so overlapping ones need no
//! lock. Reads don't come here: they look into the map, which any shard may do.

mod admission;

use crate::buffered::Buffered;
use crate::capacity::Images;
use crate::checkpoint::Superseded;
use crate::commit::Effect;
use crate::format::{Change, VersionId};
use crate::home::MapHome;
use crate::layout::Layout;
use crate::transaction::Transactions;
use crate::versions::Versions;
use admission::Admission;
use block::{Error, Payload, Result};
use logkit::cleaning::Policy;
use logkit::{Appender, Entry, Kit, Mover, Owner, Piece, Victim};
use runtime::RequestKey;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

/// When a write is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acknowledge {
    /// When its record is on the disk.
    Log,
    /// When it is in the buffer: a volatile cache.
    Buffer,
}

/// How a log device works, beside what the kit's [`Settings`](logkit::Settings) say; none of it is on the medium.
#[derive(Debug, Clone)]
pub struct Settings {
    /// When a write is acknowledged.
    pub acknowledge: Acknowledge,
    /// Most blocks of users' writes in memory; writers wait beyond it.
    pub dirty_blocks: u64,
    /// Most blocks of data that the log holds if the volume has no snapshots.
    pub capacity: u64,
    /// Number of zones for checkpoints that `capacity` leaves free.
    pub reserved_zones: u64,
    /// Blocks of a volume that are discarded, or released after a deletion, before other tasks get their turn.
    pub blocks_at_once: u64,
}

/// A change, with its data.
#[derive(Debug)]
pub struct Item {
    /// The change.
    pub change: Change,
    /// Its data.
    pub payload: Payload,
    /// Request to complete; `None` for the cleaner's moves.
    pub request: Option<RequestKey>,
    /// Number of blocks by which it may grow the live data; capacity is set aside for them.
    pub growth: u32,
    /// Number of its data in the buffer, if it was acknowledged from there; else 0.
    pub ticket: u64,
}

impl Entry for Item {
    #[inline]
    fn blocks(&self) -> u32 {
        self.change.data_blocks()
    }

    #[inline]
    fn payload(&self) -> &Payload {
        &self.payload
    }

    #[inline]
    fn meta_length(&self) -> usize {
        self.change.encoded_length()
    }

    fn encode_meta(&self, meta: &mut Vec<u8>) {
        self.change.encode(meta);
    }

    fn steps(&self) -> u64 {
        match &self.change {
            Change::Unmap { count, .. } => u64::from(*count),
            _ => 0,
        }
    }

    fn only_frees(&self) -> bool {
        matches!(self.change, Change::Unmap { .. } | Change::Delete { .. })
    }

    fn is_acknowledged(&self) -> bool {
        self.ticket != 0
    }
}

/// State of a log device. Belongs to its home shard.
pub struct Core {
    kit: Rc<Kit>,
    appender: Appender<Item>,
    admission: Admission,
    /// Division of the zones.
    pub layout: Layout,
    /// How it works.
    pub settings: Settings,
    /// The maps.
    pub versions: RefCell<Versions>,
    /// What checkpoints may take, and the zones of that while no thin page is dirty.
    pub images: Cell<(Images, u64)>,
    /// Pages that the next checkpoint makes free.
    pub superseded: Superseded,
    /// Where the map is kept, if it has a home of its own.
    pub home: Option<MapHome>,
    /// Transactions of the home.
    pub transactions: Transactions,
    /// Snapshots and clones that are open as devices.
    pub views: RefCell<Vec<(VersionId, std::sync::Weak<crate::device::Shared>)>>,
    /// Number of handles that are open on this shard.
    pub handles: Cell<usize>,
    /// Data that was acknowledged and hasn't committed, where that is allowed.
    pub buffer: Arc<Buffered>,
}

impl std::fmt::Debug for Core {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Core({})", self.kit.identity.uuid)
    }
}

/// What a log device is opened with, beside its settings.
pub struct State {
    /// Division of the zones.
    pub layout: Layout,
    /// The zones.
    pub zones: Rc<dyn block::Zones>,
    /// The kit's part.
    pub parts: logkit::Parts,
    /// The maps.
    pub versions: Versions,
    /// Where the map is kept, if it has a home of its own.
    pub home: Option<MapHome>,
}

impl Core {
    /// A log in this state.
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
            home: state.home,
            transactions: Transactions::default(),
            views: RefCell::default(),
            handles: Cell::new(0),
            buffer: Arc::default(),
            settings,
        });
        core.measure_images();
        core
    }

    /// Makes everything durable that was acknowledged by now.
    ///
    /// # Errors
    /// The failure of the log; what flushing returns.
    pub async fn flush_acknowledged(self: &Rc<Self>) -> Result<()> {
        self.drain_buffer().await?;
        match self.home.is_some() {
            true => self.flush_home().await,
            false => self.kit.flush().await,
        }
    }

    /// What the log is busy with, for operators.
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

    /// Whether there is such a version and it takes writes.
    pub fn version_is_writable(&self, id: VersionId) -> bool {
        self.versions.borrow().get(id).is_some_and(|version| version.writable)
    }

    /// The newest durable root's number of the home's transaction that it demands.
    pub fn demanded_transaction(&self) -> Option<u64> {
        crate::format::Own::decode(&self.kit.checkpoints.root().own).ok().and_then(|own| own.home)
    }
}

/// Name of live data in a zone: the first block of a change in a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name {
    version: VersionId,
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
        self.commit_items(items, zone, position);
    }

    fn refuse(&self, item: &Item, error: &Error) {
        self.complete(item, Err(error.clone()));
    }

    fn answer(&self, item: &mut Item, error: &Error) {
        self.admission.answer(item, error);
    }

    fn cut(&self, item: &mut Item, blocks: u32) -> Item {
        let bytes = (blocks as usize) << self.layout.block_size.shift();
        let payload = item.payload.slice(0..bytes);
        item.payload = item.payload.slice(bytes..item.payload.len());
        let growth = item.growth.min(blocks);
        item.growth -= growth;
        let change = item.change.cut(blocks);
        self.admission.was_cut(item);
        Item { change, payload, request: item.request, growth, ticket: item.ticket }
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
        self.demand_home().await
    }

    async fn grace(&self) -> Result<()> {
        let maps: Vec<_> = self.versions.borrow().list.iter().map(|version| version.map.clone()).collect();
        let graces: Vec<u64> = maps.iter().map(|map| map.begin_grace()).collect();
        self.kit.readers.grace().await?;
        maps.iter().zip(graces).for_each(|(map, grace)| map.end_grace(grace));
        Ok(())
    }

    /// Several versions may have a block that is moved: the page of one would show it here, the page of another there, and
    /// recovery couldn't tell that it is one block.
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
                let at = self.layout.physical(victim.zone(), position);
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
        let at = self.layout.physical(victim.zone(), piece.position);
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
        let zone = victim.zone();
        let items = pieces.into_iter().map(|(piece, data)| {
            let from = self.layout.physical(zone, piece.position);
            let block = piece.name.block + u64::from(piece.offset);
            let change = Change::Move { version: piece.name.version, block, count: piece.count, from };
            Item { change, payload: Payload::from(data), request: None, growth: 0, ticket: 0 }
        });
        mover.append(self, class, items).await
    }
}

/// The changes of one request; nearly always one.
pub type Changes = smallvec::SmallVec<[Change; 1]>;
