//! State of one shard, with its inode groups. It is an owner of the log kit: its entries are changes of
//! metadata, with the data of files.
//!
//! An operation on names or attributes of one shard is decided and takes effect in one turn, without waiting.
//! Its changes are queued, and written with those of others in one record. A write takes effect when its
//! record is written. All operations are numbered and written in the order of their numbers, so a sync waits
//! until a number is durable.
//!
//! Its parts have private state: `admission` refuses and delays operations, `durability` numbers them and
//! knows how far they are written, `checkpoint` freezes trees, `moves` has the zones of the cleaner's
//! moves. Open are only parts of parts, with private state of their own: the gate and the classes of
//! `admission`, the locks of `Peers`, and the reads in progress of `Reader`.
//!
//! Operations of clients on one shard are in `names`, `inodes`, `data` and `holders`, the callbacks of the
//! log kit in `owner`. In other modules: operations on several shards ([`crate::names`]).

mod admission;
#[cfg(feature = "broken-rules")]
mod broken;
pub(crate) mod checkpoint;
mod data;
mod durability;
pub(crate) mod entry;
pub mod geometry;
mod holders;
pub(crate) mod inodes;
mod moves;
mod names;
mod owner;
pub(crate) mod settings;
pub(crate) mod shards;
mod tickets;
pub(crate) mod times;
mod turns;

pub(crate) use owner::Accounting;
pub(crate) use settings::reserved_zones;
pub use settings::{STREAMS, Settings, cleaner_stream, kit_settings, user_stream};
pub(crate) use times::Times;
pub use times::now;

use crate::broken::if_broken;
use crate::core::admission::{Admission, Admitted};
use crate::core::checkpoint::Checkpointer;
use crate::core::durability::Durability;
use crate::core::entry::{EntrySource, FsEntry};
use crate::core::moves::Moves;
use crate::core::shards::{Peers, Shards, Totals};
use crate::data::node::{Node, Nodes};
use crate::data::reader::Reader;
use crate::metadata::Metadata;
use crate::metadata::change::{Change, Changes};
use crate::metadata::extents::Lost;
use crate::metadata::inode::InodeNumber;
use crate::names::striping::Striping;
use crate::snapshots::list::SnapshotList;
use crate::tree::Released;
use block::{Payload, Result, ZoneBlock};
use logkit::cleaning::{Arrival, Policy};
use logkit::recovery::LostParts;
use logkit::{Appender, Kit, Owner, flusher, lane};
use runtime::range_lock::RangeGuard;
use runtime::sync::Permit;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

/// Values that the opening of the file system found.
pub(crate) struct OpeningReport {
    /// Preferred size of requests in bytes, as reported to programs.
    pub block_size: u64,
    /// Number of records that were replayed.
    pub replayed: u64,
    /// Losses found by a salvage.
    pub lost: RefCell<LostParts>,
}

/// State of one shard of a file system.
pub struct Core {
    pub(crate) kit: Rc<Kit>,
    pub(crate) peers: Peers,
    pub(crate) opened: OpeningReport,
    pub(crate) metadata: RefCell<Metadata>,
    pub(crate) nodes: Nodes,
    pub(crate) admission: Admission,
    pub(crate) durability: Durability,
    pub(crate) reader: Reader,
    pub(crate) striping: Striping,
    /// Snapshots of the file system; used on the home only.
    pub(crate) snapshot_list: SnapshotList,
    pub(crate) checkpointer: Checkpointer,
    pub(crate) moves: Moves,
}

impl std::fmt::Debug for Core {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "fs::Core({})", self.kit.identity.uuid)
    }
}

impl Core {
    /// Returns a shard with this state, recovered or new. The caller starts lanes and cleaner.
    pub(crate) fn new(
        (index, totals): (u32, Arc<Totals>),
        kit: impl FnOnce(Box<dyn Policy>) -> Rc<Kit>,
        policy: Box<dyn Policy>,
        (metadata, released): (Metadata, Released),
        settings: &Settings,
        opened: OpeningReport,
    ) -> Rc<Self> {
        let (classes, class) = (policy.classes(), policy.place(Arrival::New));
        let kit = kit(policy);
        let (lanes, shards) = (settings.appends_in_flight, totals.shards());
        let demand = geometry::demand(kit.zones.geometry(), shards, lanes);
        if geometry::fits(&demand) {
            kit.budget().set(demand);
        }
        let own = [user_stream(index), cleaner_stream(index)];
        let appender = Appender::new(kit.layout, classes, lanes, u64::MAX, &kit.streams, &own);
        let core = Rc::new(Core {
            opened,
            metadata: RefCell::new(metadata),
            nodes: Nodes::default(),
            admission: Admission::new(kit.clone(), totals.clone(), settings),
            peers: Peers::new(index, totals),
            durability: Durability::new(appender, class),
            reader: Reader::new(kit.clone(), settings.sums_bytes),
            striping: Striping::new(settings.stripe_above, shards),
            snapshot_list: SnapshotList::default(),
            checkpointer: Checkpointer::new(released),
            moves: Moves::new(classes, demand.limit.is_some()),
            kit,
        });
        core.publish();
        core
    }

    /// Number of the shard.
    pub(crate) fn index(&self) -> u32 {
        self.peers.index()
    }

    /// All shards.
    pub(crate) fn shards(&self) -> &Shards {
        self.peers.all()
    }

    /// Memory and space that all shards use.
    pub(crate) fn totals(&self) -> &Totals {
        self.peers.totals()
    }

    /// Whether an inode belongs to this shard.
    #[inline]
    pub(crate) fn is_here(&self, inode: InodeNumber) -> bool {
        self.peers.has(inode)
    }

    /// Publishes this shard's use of memory and space to the other shards.
    pub(crate) fn publish(&self) {
        self.totals().of(self.index()).publish(&self.metadata.borrow(), self.admission.growing());
    }

    /// Returns the node of a file in use.
    pub(crate) fn node(&self, inode: InodeNumber) -> Rc<Node> {
        self.nodes.get(inode, self.durability.issued())
    }

    /// Files in use.
    pub fn nodes(&self) -> &Nodes {
        &self.nodes
    }

    /// Preferred size of requests in bytes, as reported to programs.
    pub(crate) fn block_size(&self) -> u64 {
        self.opened.block_size
    }

    /// Refuses changes if the file system has failed or is closed, or if a record waits for space of the
    /// device.
    ///
    /// # Errors
    /// The failure of the log; [`ReadOnly`](block::Error::ReadOnly) for a salvage;
    /// [`NoSpace`](block::Error::NoSpace).
    pub fn check_open(&self) -> Result<()> {
        self.admission.check_open()
    }

    /// Waits until an operation may be queued; before that, writes a checkpoint if one is due.
    ///
    /// # Errors
    /// As [`check_open`](Self::check_open).
    pub(crate) async fn admit(&self) -> Result<Permit> {
        self.check_open()?;
        let free_dead = |core: Rc<Core>| async move { logkit::reset::free_dead(&core).await };
        self.admission.leave_space_for_pages(|| self.shards().first().with(free_dead)).await?;
        self.admission.admit().await
    }

    /// Applies an operation on names or attributes, and queues it for its record. Returns its number.
    ///
    /// # Errors
    /// [`Corrupt`](block::Error::Corrupt) for a damaged tree item: the file system refuses all changes after
    /// that.
    pub fn submit(&self, changes: Changes, permit: Option<Permit>) -> Result<u64> {
        if changes.is_empty() {
            return Ok(self.durability.done());
        }
        let mut lost = Lost::default();
        let mut metadata = self.metadata.borrow_mut();
        let applied = changes.iter().try_for_each(|it| metadata.apply(it, ZoneBlock::new(0, 0), &mut lost));
        drop(metadata);
        if let Err(error) = applied {
            // Some of the changes may have taken effect.
            self.fail(&error);
            return Err(error);
        }
        if_broken!(ForgetsLost, lost = Lost::default());
        let mut accounts = self.kit.pool.accounts();
        lost.0.iter().for_each(|(zone, count)| accounts.begin_dying(*zone, *count));
        drop(accounts);
        if_broken!(DiesWhenSubmitted, broken::end_dying(self, &mut lost));
        let count = changes.len() as u32;
        self.publish();
        // Capacity for the changes that create a file with a short name.
        let mut meta = Vec::with_capacity(64);
        Change::encode_submitted(&changes, &mut meta);
        let source = EntrySource::Submitted { lost, meta, count, _permit: permit };
        Ok(self.queue(Changes::new(), Payload::default(), source))
    }

    /// Numbers and queues a log entry.
    pub(crate) fn queue(&self, changes: Changes, data: Payload, source: EntrySource) -> u64 {
        let entry = self.durability.number(changes, data, source);
        let ticket = entry.ticket;
        lane::push(self, self.durability.class(), entry);
        self.kit.events.work.notify_one();
        ticket
    }

    /// Queues a write of whole blocks for which there is space, and waits until its changes have taken
    /// effect. Returns its number. Several changes are atomic. `held` is the lock on the range of the file
    /// that they change.
    ///
    /// # Errors
    /// [`NoSpace`](block::Error::NoSpace) if no zone has space for it; the failure of the log.
    pub(crate) async fn queue_write(
        &self,
        changes: Changes,
        data: Payload,
        Admitted { permit, turn }: Admitted,
        held: RangeGuard,
    ) -> Result<u64> {
        // Ended lanes take no entries.
        self.check_open()?;
        let growth = changes.iter().map(Change::blocks).sum();
        self.admission.reserve(growth);
        self.publish();
        let request = self.durability.requests().begin(1, Some(permit));
        let source = EntrySource::Write { request, growth, held: Some(held), _turn: turn };
        let ticket = self.queue(changes, data, source);
        self.durability.requests().wait(request).await?;
        Ok(ticket)
    }

    /// Makes the operations up to this one durable.
    ///
    /// # Errors
    /// The failure of the log, which is permanent; errors of flushing; [`NoSpace`](block::Error::NoSpace)
    /// while a record waits for space.
    pub async fn sync(&self, ticket: u64) -> Result<()> {
        if_broken!(NeverFlushes, return Ok(()));
        if self.durability.is_durable(ticket) {
            return Ok(());
        }
        let written = self.written(ticket).await?;
        let flushed = flusher::flush(self).await;
        if let Err(error) = &flushed {
            // Writes before the failed flush may be lost even if a later flush succeeds.
            self.fail(&error.in_context("making files durable"));
        }
        flushed?;
        self.durability.note_durable(written);
        Ok(())
    }

    /// Waits until the operations up to this one are written and have taken effect. Returns the number of the
    /// last such operation.
    ///
    /// # Errors
    /// The failure of the log; [`NoSpace`](block::Error::NoSpace) while a record waits for space: the
    /// operations are written once there is some.
    pub(crate) async fn written(&self, ticket: u64) -> Result<u64> {
        self.durability.wait_until_done(&self.kit, ticket, || self.kit.space.check()).await
    }

    /// Waits until an operation of this shard has ended, even if its request was answered before because
    /// there was no space. The failure of the log also ends the wait.
    pub(crate) async fn ended(&self, ticket: u64) {
        self.durability.wait_until_done(&self.kit, ticket, || Ok(())).await.ok();
    }

    /// Makes all operations of this shard durable.
    ///
    /// # Errors
    /// As [`sync`](Self::sync).
    pub async fn sync_all(&self) -> Result<()> {
        self.sync(self.durability.issued()).await
    }

    /// Completes a log entry that has taken effect, or failed.
    fn end(&self, entry: &FsEntry, outcome: &Result<()>) {
        if let EntrySource::Write { growth, .. } = entry.source {
            self.admission.release(growth);
        }
        self.durability.end(entry, outcome);
    }
}
