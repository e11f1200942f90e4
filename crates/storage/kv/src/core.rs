//! A shard of the store: an owner of the log kit, with write buffers and a tree of tables.
//!
//! A write is appended to the log, and takes effect in the active buffer when its record commits. A full
//! buffer is frozen, and written as a table of level 0; compaction merges tables of one level with those of
//! the next. An edit of the manifest adds and removes tables, in one record.
//!
//! Parts: `commit` (group commit), `staging` (acknowledged writes without a record), `gate` (order of writes
//! of a key), `buffers`, `tables`, `table_zones` (appends to tables), `compactions`, `peers` (the other
//! shards). The fields of each part are private to its file, except parts of their own: the appender and the
//! requests of `commit`, the snapshots of `tables`, the write controller of `compactions`, and the shared
//! space and the numbers of `peers`. `owner` is the log kit's interface for owners.
//!
//! Elsewhere: opening (`recovery`), and clients (`store`).

mod buffers;
mod checkpoint;
mod cleaning;
mod commit;
mod compactions;
mod cross_shard;
mod eraser;
mod flush;
mod gate;
mod manual_compaction;
pub mod open_zones;
mod owner;
mod peers;
mod reads;
mod reclaim;
mod reserve;
mod snapshot;
mod staging;
mod status;
mod table_writer;
mod table_zones;
mod tables;
mod uncommitted;
mod write_controller;

pub(crate) use cross_shard::{BatchCondition, Parts};
pub(crate) use peers::SharedSpace;
pub use snapshot::Snapshot;
pub use status::TableFacts;

use crate::erasure::Erasure;
use crate::log_entry::MAX_META;
use crate::replay::RecoveredShard;
use crate::settings::Settings;
use crate::tree::manifest::{TableId, table_stream, write_stream};
use crate::tree::salvage::{self, Lost};
use crate::tree::tables::salt_of;
use block::{Error, Result};
use buffers::{Buffers, MAX_FROZEN};
use commit::Commit;
use compactions::Compactions;
use gate::KeyGate;
use logkit::cleaning::Policy;
use logkit::recovery::Goal;
use logkit::{Appender, Kit};
use open_zones::{LANES, OpenZones};
use peers::Peers;
use runtime::sync::Notify;
use staging::Staging;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use table_zones::TableZones;
use tables::Tables;
use write_controller::WriteController;

/// Interval of checks whether the log has failed.
const FAILURE_LOOK: Duration = Duration::from_millis(200);

/// Counters for the status.
#[derive(Debug, Default)]
pub struct Work {
    /// Bytes of tables that flushes wrote.
    pub flushed_bytes: Cell<u64>,
    /// Bytes of tables that compactions read.
    pub compacted_bytes: Cell<u64>,
    /// Bytes of tables that compactions wrote.
    pub written_bytes: Cell<u64>,
    /// Bytes of keys and values that clients wrote.
    pub client_bytes: Cell<u64>,
    /// Bytes of tables that the cleaner moved.
    pub moved_bytes: Cell<u64>,
    /// Number of compactions.
    pub compactions: Cell<u64>,
    /// Number of waits of writes for a flush or a compaction.
    pub stalls: Cell<u64>,
    /// Number of writes that were slowed because level 0 has many tables.
    pub slowed: Cell<u64>,
}

/// Adds to a counter.
pub(crate) fn add(counter: &Cell<u64>, value: u64) {
    counter.set(counter.get() + value);
}

/// Events of a shard.
pub(crate) struct Events {
    /// Notified when buffers or tables have changed.
    pub changed: Notify,
    /// Notified when the store is being closed.
    pub stopping: Notify,
}

/// One shard of an open store.
pub struct Core {
    pub(crate) peers: Peers,
    pub(crate) kit: Rc<Kit>,
    settings: Settings,
    pub(crate) gate: KeyGate,
    commit: Commit,
    pub(crate) buffers: Buffers,
    pub(crate) tables: Tables,
    pub(crate) table_zones: TableZones,
    compactions: Compactions,
    /// Zones that must be reset in time.
    pub(crate) erasure: Arc<Erasure>,
    events: Events,
    work: Work,
}

/// Settings of the kit for a shard.
pub fn kit_settings(
    settings: &Settings,
    layout: &logkit::Layout,
    (shard, shards): (u16, u16),
    open_zones: OpenZones,
) -> logkit::Settings {
    let table_blocks = layout.blocks_in(settings.table_bytes);
    let cleaner_reserve = reserve::cleaner_reserve(shards);
    // Two zones are for checkpoints.
    let buffered =
        cleaner_reserve + 2 + zones_of_buffered(layout, shards, settings.buffer_bytes * MAX_FROZEN as u64);
    let low_watermark = 0.05_f64.max(f64::from(buffered) / f64::from(layout.zones)).min(0.3);
    logkit::Settings {
        user_stream: write_stream(shard),
        cleaner_stream: table_stream(shard),
        appends_in_flight: open_zones.lanes,
        data_blocks: layout.data_blocks(MAX_META),
        record_blocks: layout.record_blocks(MAX_META),
        // The pieces of a victim go to zones of each shard. A flush of a buffer must be possible, or zones of
        // the log can't be freed.
        cleaner_reserve,
        checkpoint_blocks: (4 * layout.blocks_in(settings.buffer_bytes)).max(4 * table_blocks),
        low_watermark,
        high_watermark: low_watermark + 0.1,
        most_steps: u64::MAX,
        read_request_bytes: logkit::READ_REQUEST_BYTES,
        prepare_zones: false,
    }
}

impl Core {
    /// Returns a shard with this state. The caller starts lanes, jobs and the cleaner.
    pub(crate) fn new(
        (shard, shards, open_zones): (u16, u16, OpenZones),
        kit: impl FnOnce(Box<dyn Policy>) -> Rc<Kit>,
        settings: &Settings,
        found: RecoveredShard,
        erasure: impl FnOnce(&Rc<Kit>) -> Arc<Erasure>,
        space: &Arc<SharedSpace>,
    ) -> Result<Rc<Self>> {
        let placement = crate::policy::placement(&settings.placement)?;
        let policy = cleaning::TableCleaning::new(placement.classes());
        let classes = policy.classes();
        let kit = kit(Box::new(policy));
        let erasure = erasure(&kit);
        let own = [write_stream(shard), table_stream(shard)];
        let (lanes, steps) = (kit.settings.appends_in_flight, kit.settings.most_steps);
        let RecoveredShard { manifest, writes, staged, lost, .. } = found;
        let lost = (settings.goal == Goal::Salvage).then(|| Rc::new(Lost::new(lost)));
        if !erasure.counts_operations() {
            manifest.tables.iter().for_each(|table| erasure.clock().raise(table.created));
        }
        let appender = Appender::new(kit.layout, classes, lanes, steps, &kit.streams, &own);
        let compaction =
            settings.compaction(shards, u64::from(kit.layout.zones) * zone_bytes(&kit.layout))?;
        let controller = WriteController::of(settings, shards);
        // An entry that isn't in a table may begin before the last flush.
        let needed = writes.iter().map(|replayed| replayed.first).min();
        let flushed = manifest.flushed;
        let covered = needed.map_or(flushed.record, |first| flushed.record.min(first - 1));
        let (cache_bytes, buffer_bytes) =
            (settings.cache_bytes / u64::from(shards), settings.buffer_bytes / u64::from(shards));
        // With persistent deletes, values would stay in the staging area beyond their deadline.
        let is_staged = settings.delete_persistence.is_none() && settings.goal == Goal::Serve;
        let staging = is_staged.then(|| Staging::new(&*kit.zones, &kit, (shard, shards))).flatten();
        let core = Rc::new(Core {
            peers: Peers::new((shard, shards), space),
            settings: settings.clone(),
            gate: KeyGate::default(),
            commit: Commit::new(appender, staging),
            buffers: Buffers::new(&kit.pool, buffer_bytes as usize, flushed, covered),
            tables: Tables::new(&kit, &erasure, cache_bytes, manifest.next_table, lost),
            table_zones: TableZones::new(classes, open_zones, placement),
            compactions: Compactions::new(compaction, controller),
            erasure,
            events: Events { changed: Notify::new(), stopping: Notify::new() },
            work: Work::default(),
            kit,
        });
        let tables = manifest.tables.into_iter().map(|meta| core.tables.found(meta));
        let tables: Vec<_> = tables.collect();
        let deletes = tables.iter().filter_map(|table| core.erasure.oldest_delete(&table.meta.summary));
        deletes.for_each(|at| core.erasure.deleted(at));
        core.set_levels(tables);
        core.replay(writes)?;
        staged.iter().try_for_each(|writes| core.apply(writes))?;
        core.note_unwritten(0);
        // Replayed writes were already counted before the crash.
        core.work.client_bytes.set(0);
        Ok(core)
    }

    /// Starts the tasks of this shard, except the lanes.
    pub(crate) fn start_tasks(self: &Rc<Self>) {
        let tasks = &self.kit.tasks;
        tasks.spawn(self.clone().run_commits()).detach();
        tasks.spawn(self.clone().run_flushes()).detach();
        tasks.spawn(self.clone().run_compactions()).detach();
        if self.peers.shard == 0 {
            tasks.spawn(self.clone().run_eraser()).detach();
        }
        // A failure of the log, also on another shard, wakes all waiting tasks of this shard, and so does a
        // lack of space on the device below.
        let core = Rc::downgrade(self);
        let watch = async move {
            while let Some(core) = core.upgrade().filter(|core| !core.kit.is_closing()) {
                if core.kit.failure().is_some() {
                    core.wake();
                }
                if let Err(error) = core.kit.space.check() {
                    core.refuse_pending(&error);
                }
                // Puts of other shards may wait.
                core.freeze_for_puts();
                drop(core);
                runtime::sleep(FAILURE_LOOK).await;
            }
        };
        runtime::spawn(watch).detach();
    }

    /// Options of the format of a new table.
    pub(crate) fn table_options(&self, id: TableId) -> crate::table::Options {
        crate::table::Options { salt: salt_of(id, self.peers.shard), ..self.settings.table }
    }

    /// Refuses jobs if the log has failed or the store is being closed.
    fn check_running(&self) -> Result<()> {
        match self.kit.failure() {
            Some(error) => Err(error),
            None if self.kit.is_closing() => Err(Error::closed("the store is closed")),
            None => Ok(()),
        }
    }

    /// Refuses writes if the store has failed or is being closed.
    pub(crate) fn check_open(&self) -> Result<()> {
        self.check_running()?;
        if self.tables.lost().is_some() {
            return Err(salvage::refusal());
        }
        self.kit.space.check()
    }

    /// Wakes tasks that wait for the store to close or fail.
    pub(crate) fn wake(&self) {
        self.events.stopping.notify_all();
        self.commit.wake();
        self.events.changed.notify_all();
    }
}

/// Number of zones that must be free for `bytes` bytes of writes of all shards that are acknowledged before
/// they are in the log. Each lane may leave a zone with little in it.
fn zones_of_buffered(layout: &logkit::Layout, shards: u16, bytes: u64) -> u32 {
    LANES * u32::from(shards) + 3 + (2 * bytes / zone_bytes(layout)) as u32
}

/// Size of a zone in bytes.
fn zone_bytes(layout: &logkit::Layout) -> u64 {
    u64::from(layout.zone_blocks) * layout.block_size.bytes()
}

/// Class of the zones of the write-ahead log.
pub const WRITE_CLASS: u8 = crate::policy::placement::LOG;
/// Class of zones for edits without new tables, as of trivial moves and dropped tables: the edit itself needs
/// a zone.
pub const TABLE_CLASS: u8 = WRITE_CLASS + 1;
