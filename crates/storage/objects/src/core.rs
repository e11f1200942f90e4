//! The zones of one writer, on their home shard: what was appended, and the calls of the contract.
//!
//! # Promises
//! - An append is copied, has its address at once, and can be read from then on. Bytes that aren't uploaded
//!   are at most `memory`; then appends wait, and the longest open piece is uploaded.
//! - A flush uploads the open pieces of its zones, and returns after a manifest names them.
//! - On demand flushes, finishes and resets are in the manifests in the order in which they began (`order`).
//! - With keys, bytes are sealed before they are uploaded, and with a key store a reset returns after the
//!   zone's key is destroyed.
//! - A piece that can't be uploaded is uploaded again, under another name, until the store answers. While it
//!   doesn't, flushes wait, and then appends.
//!
//! - A close makes everything durable, and notes a clean stop, within a time limit.
//!
//! # Structure
//! `zone`: a zone in memory, and its lock. `append`, `read` with `compressed`, `commit` (flush, finish,
//! reset) in their `order`: the calls. `upload`: pieces, and the memory of appends. `keys`: keys of zones.
//! `merge`: merging of small pieces. `gc`: search for garbage. `settings`.
//!
//! Left to others: manifests (`manifest_log`), deletions (`garbage`).

mod append;
mod commit;
mod compressed;
mod gc;
mod keys;
mod merge;
mod order;
mod read;
mod settings;
mod upload;
mod zone;

pub(crate) use read::MAX_READ;
pub use settings::Settings;

use self::keys::ZoneKeys;
use self::merge::Merging;
use self::order::Order;
use self::upload::Uploads;
use self::zone::Zone;
use crate::compression::{Compression, Compressor};
use crate::garbage::Garbage;
use crate::key_store::KeyStore;
use crate::manifest_log::ManifestLog;
use crate::manifests::Manifests;
use crate::open_piece::OpenPieces;
use crate::opening::Opened;
use crate::table::{Change, State};
use block::{EraseGuarantee, Error, Result, ZoneGeometry, ZoneIndex, ZoneReport, ZoneState};
use runtime::sync::{Notify, Semaphore};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use zones::limits::Limits;

/// Unit of appends and reads, in bytes.
pub(crate) const GRANULARITY: u32 = 512;
/// Bytes of responses of the store at the same time.
const READ_MEMORY: usize = 16 << 20;

/// The zones.
pub(crate) struct Core {
    pub log: Rc<ManifestLog>,
    pub garbage: Rc<Garbage>,
    manifests: Manifests,
    settings: Settings,
    geometry: ZoneGeometry,
    zones: RefCell<Vec<Zone>>,
    limits: Limits,
    keys: Option<ZoneKeys>,
    compressor: Option<Rc<Compressor>>,
    memory: Rc<Semaphore>,
    open_pieces: RefCell<OpenPieces>,
    /// Memory of responses.
    reads: Rc<Semaphore>,
    uploads: Uploads,
    order: Order,
    pub merging: Merging,
    /// Notified when an append to a locked zone has ended, a zone isn't locked any more, and when the log has
    /// failed.
    changed: Notify,
    is_closed: Cell<bool>,
    /// Whether another machine writes the zones.
    is_reader: Cell<bool>,
}

/// Error of a call after the close.
pub(crate) fn closed() -> Error {
    Error::closed("the zones are closed: open them again")
}

impl Core {
    /// Returns the zones of an opened volume.
    ///
    /// # Errors
    /// [`Error::Invalid`] for settings that can't be.
    pub fn new(
        manifests: Manifests,
        settings: Settings,
        opened: Opened,
        store: Option<Rc<KeyStore>>,
    ) -> Result<Rc<Core>> {
        let Opened { identity, table, position, garbage: found, .. } = opened;
        let keys = manifests.keys.clone().map(|keys| ZoneKeys::new(keys, identity.volume, store));
        let erase = keys.as_ref().map_or(EraseGuarantee::None, ZoneKeys::guarantee);
        let geometry = settings.geometry(table.zones.len() as u32, table.zone_size)?;
        let geometry = ZoneGeometry { erase, ..geometry };
        let zones: Vec<Zone> = table.zones.iter().map(Zone::new).collect();
        let limits = Limits::new(settings.max_open, settings.max_active);
        zones.iter().for_each(|zone| limits.moved(ZoneState::Empty, zone.state));
        let garbage = Garbage::new(manifests.store.clone(), manifests.names.clone(), settings.grace);
        garbage.add(found);
        let log = ManifestLog::new(manifests.clone(), identity, table, position, garbage.clone());
        let next = keys::first_serial(keys.is_some());
        let core = Rc::new(Core {
            log,
            garbage,
            manifests,
            settings,
            geometry,
            zones: RefCell::new(zones),
            limits,
            keys,
            compressor: (settings.compression == Compression::Lz4).then(|| Rc::new(Compressor::new())),
            memory: Semaphore::new(settings.memory as usize),
            open_pieces: RefCell::new(OpenPieces::new()),
            reads: Semaphore::new(READ_MEMORY),
            uploads: Uploads::new(next),
            order: Order::default(),
            merging: Merging::new(&settings),
            changed: Notify::new(),
            is_closed: Cell::new(false),
            is_reader: Cell::new(false),
        });
        core.note_all();
        Ok(core)
    }

    /// Makes changes durable in the order in which they begin, from now on.
    pub fn keep_order(&self) {
        self.order.keep();
    }

    /// Makes the zones those of another writer: changes fail with this error.
    pub fn refuse_changes(&self, error: Error) {
        self.is_reader.set(true);
        self.log.stop(error);
    }

    /// Generation of a zone that exists, as the manifests have it.
    pub fn generation(&self, zone: ZoneIndex) -> u64 {
        self.log.with_table(|table| table.zones[zone.0 as usize].generation)
    }

    /// Settings of this writer.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Geometry of the zones.
    pub fn geometry(&self) -> &ZoneGeometry {
        &self.geometry
    }

    fn check(&self) -> Result<()> {
        if self.is_closed.get() {
            return Err(closed());
        }
        self.log.check()
    }

    /// Returns the states of zones.
    pub fn report(&self, first: ZoneIndex, count: u32) -> Result<Vec<ZoneReport>> {
        if !self.is_reader.get() {
            self.check()?;
        }
        if first.0 > self.geometry.zones {
            return self.geometry.check_zone(first).map(|()| Vec::new());
        }
        let end = first.0.saturating_add(count).min(self.geometry.zones);
        let zones = self.zones.borrow();
        let report = |index: u32| {
            let Zone { state, write_pointer, generation, .. } = zones[index as usize];
            ZoneReport { zone: ZoneIndex(index), state, write_pointer, generation }
        };
        Ok((first.0..end).map(report).collect())
    }

    /// Makes all appends durable and notes a clean stop, within the limit of a close.
    pub async fn close(self: Rc<Self>) -> Result<()> {
        let outcome = runtime::timeout(self.settings.close_limit, self.clone().close_now()).await;
        self.is_closed.set(true);
        let unsaved = self.unsaved();
        self.log.stop(closed());
        self.garbage.stop();
        self.changed.notify_all();
        self.zones.borrow().iter().for_each(Zone::notify_flushes);
        outcome.unwrap_or_else(|_| {
            Err(Error::timed_out(format!(
                "the object store didn't take the last changes within {:?}: {unsaved} bytes weren't uploaded and are lost, and so are changes that weren't flushed",
                self.settings.close_limit
            )))
        })
    }

    async fn close_now(self: Rc<Self>) -> Result<()> {
        self.check()?;
        // Further calls are refused. A finish or a reset that has begun ends first.
        self.is_closed.set(true);
        self.changed.notify_all();
        while self.zones.borrow().iter().any(|zone| zone.is_locked) {
            self.changed.notified().await;
        }
        let begun = self.begun();
        self.clone().upload_and_commit(begun.clone()).await?;
        // Zones that were opened, and have no bytes.
        self.log.push(begun.iter().map(|index| Change::State { zone: index.0, state: State::Begun }));
        let clean = self.log.push_clean();
        self.log.wait_until_durable(clean).await
    }

    /// Bytes that aren't uploaded.
    pub fn unsaved(&self) -> u64 {
        let taken = self.settings.memory - self.memory.available() as u64;
        taken - self.merging.held.get()
    }

    /// Counters of the client.
    pub fn counts(&self) -> object_store::Counts {
        self.manifests.store.counts()
    }

    /// Zones that are open, and active.
    pub fn active(&self) -> (usize, usize) {
        let zones = self.zones.borrow();
        let count = |is: fn(ZoneState) -> bool| zones.iter().filter(|zone| is(zone.state)).count();
        (count(ZoneState::is_open), count(ZoneState::is_active))
    }
}
