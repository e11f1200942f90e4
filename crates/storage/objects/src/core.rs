//! The zones of one writer, on their home shard: what was appended, and the calls of the contract.
//!
//! # Promises
//! - An append is copied, has its address at once, and can be read from then on. Bytes that aren't uploaded
//!   are at most `memory`; then appends wait, and the longest gathered bytes are uploaded as a piece.
//! - A flush uploads the gathered bytes of its zones, and returns after a manifest names them.
//! - On demand flushes, finishes and resets are in the manifests in the order in which they began (`order`).
//! - With keys, bytes are sealed before they are uploaded, and with a key store a reset returns after the
//!   zone's key is destroyed.
//! - A piece that can't be uploaded is uploaded again, under another name, until the store answers. While it
//!   doesn't, flushes wait, and then appends.
//!
//! Left to others: manifests (`manifest_log`), deletions (`garbage`).

mod compressed;
mod gc;
mod keys;
mod merge;
mod order;
mod read;
mod upload;

pub(crate) use read::MAX_READ;

use self::keys::ZoneKeys;
use self::order::Turn;
use crate::compression::{Compression, Compressor, Size};
use crate::garbage::Garbage;
use crate::gather::{Gather, Gathering, Sealed};
use crate::key_store::KeyStore;
use crate::manifest_log::ManifestLog;
use crate::manifests::Manifests;
use crate::names::Name;
use crate::opening::Opened;
use crate::table::{Change, State};
use block::{
    Durable, EraseGuarantee, Error, Payload, Result, ZoneAddress, ZoneGeometry, ZoneIndex, ZoneReport,
    ZoneState,
};
use runtime::sync::{Notify, Permit, Semaphore};
use runtime::{FailureRun, TaskGroup};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;
use zones::limits::Limits;

/// Unit of appends and reads, in bytes.
pub(crate) const GRANULARITY: u32 = 512;
/// Bytes of responses of the store at the same time.
const READ_MEMORY: usize = 16 << 20;
/// Pieces that are uploaded at the same time.
const MAX_UPLOADS: usize = 16;

/// Settings of a writer.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Number of bytes at which a piece is uploaded.
    pub piece_size: u64,
    /// Most bytes that aren't uploaded yet; at least a piece, and two appends.
    pub memory: u64,
    /// Largest append, in bytes.
    pub max_append: u64,
    /// Limit of open zones; 0 is no limit.
    pub max_open: u32,
    /// Limit of active zones; 0 is no limit.
    pub max_active: u32,
    /// Time until objects are deleted that no manifest names any more.
    pub grace: Duration,
    /// Time limit of a close.
    pub close_limit: Duration,
    /// Whether small pieces are merged.
    pub merge: bool,
    /// Compression of new objects; all are read, whatever it is.
    pub compression: Compression,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            piece_size: 8 << 20,
            memory: 32 << 20,
            max_append: 1 << 20,
            max_open: 0,
            max_active: 0,
            grace: Duration::from_secs(60),
            close_limit: Duration::from_secs(60),
            merge: true,
            compression: Compression::None,
        }
    }
}

impl Settings {
    /// Geometry of zones with these settings.
    ///
    /// # Errors
    /// [`Error::Invalid`] for settings that can't be, which the text names.
    pub fn geometry(&self, zones: u32, zone_size: u64) -> Result<ZoneGeometry> {
        let is_unit = |bytes: u64| bytes > 0 && bytes.is_multiple_of(GRANULARITY.into());
        if !is_unit(self.piece_size) || self.piece_size > 1 << 30 {
            return Err(Error::invalid(format!(
                "piece_size {}: expected a multiple of {GRANULARITY} bytes, up to 1 GiB",
                self.piece_size
            )));
        }
        if !is_unit(self.max_append) {
            return Err(Error::invalid(format!(
                "max_append {}: expected a multiple of {GRANULARITY} bytes",
                self.max_append
            )));
        }
        let least = self.piece_size.max(2 * self.max_append);
        if self.memory < least || self.memory > 1 << 40 {
            return Err(Error::invalid(format!(
                "memory {}: expected at least {least}, a piece and two appends",
                self.memory
            )));
        }
        Ok(ZoneGeometry {
            zones,
            zone_size,
            zone_capacity: zone_size,
            append_granularity: GRANULARITY,
            read_granularity: GRANULARITY,
            max_append: self.max_append.min(zone_size),
            max_open: self.max_open,
            max_active: self.max_active,
            durable: Durable::OnFlush,
            erase: EraseGuarantee::None,
        })
    }
}

/// A piece that isn't in a durable manifest yet.
struct Pending {
    offset: u64,
    length: u64,
    /// Bytes of its object if it is compressed; else 0.
    compressed: u32,
    /// Bytes of the piece, until it is stored.
    sealed: Option<Rc<Sealed>>,
    /// Serial number under which it is stored.
    serial: u64,
    /// Whether a batch of changes has it.
    is_queued: bool,
}

impl Pending {
    fn size(&self) -> Size {
        Size { length: self.length, compressed: self.compressed }
    }
}

/// A zone.
struct Zone {
    state: ZoneState,
    generation: u64,
    /// Whether a finish, a reset or a rewind owns it: other changes wait.
    is_owned: bool,
    /// Appends that have begun, such as those that wait for memory: an owner waits for their end.
    appending: usize,
    write_pointer: u64,
    /// End of the bytes that are there: after a rewind they go on after the write pointer.
    end: u64,
    /// Number of resets of this writer: a flush that waits for pieces of an earlier life ends.
    resets: u64,
    gather: Option<Box<Gather>>,
    /// In the order of their offsets, after those in the table.
    pending: VecDeque<Pending>,
    /// Batch of the last change.
    batch: u64,
    /// Notified when a piece was stored, for flushes that wait for that: the number of others costs nothing.
    stored: Option<Rc<Notify>>,
}

/// An append that has begun.
struct Appending<'c> {
    core: &'c Core,
    index: ZoneIndex,
}

impl Drop for Appending<'_> {
    fn drop(&mut self) {
        let is_awaited = {
            let zone = &mut self.core.zones.borrow_mut()[self.index.0 as usize];
            zone.appending -= 1;
            zone.is_owned
        };
        if is_awaited {
            self.core.changed.notify_all();
        }
    }
}

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
    gathering: RefCell<Gathering>,
    /// Memory of responses.
    reads: Rc<Semaphore>,
    uploads: upload::Uploads,
    order: order::Order,
    pub merging: merge::Merging,
    /// Notified when an append to an owned zone has ended, a zone has no owner any more, and when the log has
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

fn refusal(zone: ZoneIndex, state: ZoneState) -> Error {
    let remedy = match state {
        ZoneState::Empty => "it is open from its first append on",
        ZoneState::Full => "reset it, or use another",
        _ => "finish or reset it, and use another",
    };
    Error::invalid(format!("zone {zone} is {state:?}: {remedy}"))
}

impl Zone {
    /// Wakes flushes that wait for its pieces.
    fn notify_flushes(&self) {
        self.stored.iter().for_each(|stored| stored.notify_all());
    }

    fn new(entry: &crate::table::Entry) -> Zone {
        let state = match entry.state {
            State::Empty => ZoneState::Empty,
            State::Begun => ZoneState::Closed,
            State::Full => ZoneState::Full,
            State::Interrupted => ZoneState::Interrupted,
        };
        Zone {
            state,
            generation: entry.generation,
            is_owned: false,
            appending: 0,
            write_pointer: entry.end(),
            end: entry.end(),
            resets: 0,
            gather: None,
            pending: VecDeque::new(),
            batch: 0,
            stored: None,
        }
    }
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
        let next = Cell::new(keys::first_serial(keys.is_some()));
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
            gathering: RefCell::new(Gathering::new()),
            reads: Semaphore::new(READ_MEMORY),
            uploads: upload::Uploads {
                slots: Semaphore::new(MAX_UPLOADS),
                tasks: TaskGroup::default(),
                next,
                attempts: RefCell::default(),
                waiting: Cell::new(0),
                in_flight: Cell::new(0),
                failures: FailureRun::default(),
            },
            order: order::Order::default(),
            merging: merge::Merging::new(&settings),
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

    /// Runs on a zone that no call owns, waiting for that.
    async fn with_zone<R>(&self, zone: ZoneIndex, act: impl FnOnce(&mut Zone) -> R) -> Result<R> {
        let mut act = Some(act);
        loop {
            self.check()?;
            {
                let mut zones = self.zones.borrow_mut();
                let zone = &mut zones[zone.0 as usize];
                if let Some(act) = act.take_if(|_| !zone.is_owned) {
                    return Ok(act(zone));
                }
            }
            self.changed.notified().await;
        }
    }

    fn open_locked(&self, zone: &mut Zone, index: ZoneIndex, to: ZoneState) -> Result<()> {
        // A zone whose key is unknown stays as it is.
        self.zone_key(index, zone.generation)?;
        let opened = self.limits.open_one(zone.state);
        opened.map_err(|busy| busy.in_context(format!("opening zone {index}")))?;
        zone.state = to;
        Ok(())
    }

    /// Appends, at byte `wanted` if that is given.
    pub async fn append(
        self: Rc<Self>,
        index: ZoneIndex,
        wanted: Option<u64>,
        payload: Payload,
    ) -> Result<ZoneAddress> {
        self.with_zone(index, |zone| zone.appending += 1).await?;
        let begun = Appending { core: &self, index };
        let memory = self.take_memory(payload.len()).await?;
        self.check()?;
        let landed =
            self.land(&mut self.zones.borrow_mut()[index.0 as usize], index, wanted, &payload, memory);
        drop(begun);
        landed.map(|offset| ZoneAddress::new(index.0, offset))
    }

    /// Copies an append to a zone, and uploads pieces that are full.
    fn land(
        self: &Rc<Self>,
        zone: &mut Zone,
        index: ZoneIndex,
        wanted: Option<u64>,
        payload: &Payload,
        memory: Permit,
    ) -> Result<u64> {
        if !(zone.state.is_open() || matches!(zone.state, ZoneState::Empty | ZoneState::Closed)) {
            return Err(refusal(index, zone.state));
        }
        if let Some(wanted) = wanted.filter(|wanted| *wanted != zone.write_pointer) {
            return Err(zones::misplaced(index, wanted, zone.write_pointer));
        }
        let left = self.geometry.zone_capacity - zone.write_pointer;
        if !zone.state.is_open() {
            self.open_locked(zone, index, ZoneState::ImplicitlyOpen)?;
        }
        if payload.len() as u64 > left {
            return Err(Error::no_space(format!(
                "append of {} bytes to zone {index}: expected at most {left}, the rest of the zone; finish it and use another",
                payload.len()
            )));
        }
        // An append that is in several pieces needs its memory until all of them are stored.
        let (at, memory, mut is_kept) = (zone.write_pointer, Rc::new(memory), false);
        // Those that a rewind repeats are there already.
        let mut repeated = zone.end - at;
        for slice in payload.slices() {
            let known = repeated.min(slice.len() as u64);
            (repeated, zone.write_pointer) = (repeated - known, zone.write_pointer + known);
            let mut bytes = &slice[known as usize..];
            while !bytes.is_empty() {
                let pointer = zone.write_pointer;
                if zone.gather.is_none() {
                    let key = self.zone_key(index, zone.generation)?;
                    let sealer = self.sealer(self.name(zone, index, pointer, 0), key.as_ref());
                    zone.gather = Some(Box::new(self.new_gather(pointer, sealer)));
                }
                let Some(gather) = &mut zone.gather else { break };
                let before = gather.length();
                let taken = gather.push(bytes, self.settings.piece_size);
                self.gathering.borrow_mut().changed(index.0, before, gather.length());
                (bytes, zone.write_pointer) = (&bytes[taken..], pointer + taken as u64);
                zone.end = zone.write_pointer;
                if !is_kept {
                    gather.keep(memory.clone());
                }
                is_kept = gather.length() < self.settings.piece_size;
                if !is_kept {
                    self.upload(zone, index);
                }
            }
        }
        Ok(at)
    }

    /// Opens a zone explicitly.
    pub async fn open(self: Rc<Self>, index: ZoneIndex) -> Result<()> {
        let open = |zone: &mut Zone| match zone.state {
            ZoneState::Empty | ZoneState::Closed => self.open_locked(zone, index, ZoneState::ExplicitlyOpen),
            state if state.is_open() => {
                zone.state = ZoneState::ExplicitlyOpen;
                Ok(())
            }
            state => Err(refusal(index, state)),
        };
        self.with_zone(index, open).await?
    }

    /// Closes an open zone.
    pub async fn close_zone(self: Rc<Self>, index: ZoneIndex) -> Result<()> {
        let close = |zone: &mut Zone| match zone.state {
            ZoneState::Closed => Ok(()),
            state if state.is_open() => {
                zone.state = ZoneState::Closed;
                self.limits.moved(state, ZoneState::Closed);
                Ok(())
            }
            state => Err(refusal(index, state)),
        };
        self.with_zone(index, close).await?
    }

    /// Moves the write pointer of a begun zone back, and closes the zone. Its bytes after that are kept.
    pub async fn rewind(self: Rc<Self>, at: ZoneAddress) -> Result<()> {
        let rewind = |zone: &mut Zone| {
            let before = zone.state;
            if !before.is_active() {
                return Err(refusal(at.zone, before));
            }
            if at.offset.0 > zone.write_pointer {
                return Err(Error::invalid(format!(
                    "rewind to {at}: expected at most the write pointer, byte {}",
                    zone.write_pointer
                )));
            }
            if before == ZoneState::Interrupted {
                // Before the pieces of later flushes, in the order of the log.
                zone.batch = self.log.push([Change::State { zone: at.zone.0, state: State::Begun }]);
            }
            (zone.state, zone.write_pointer) = (ZoneState::Closed, at.offset.0);
            Ok(())
        };
        // Appends that have begun land before.
        self.own(at.zone, None).await?;
        let mut rewound = Ok(());
        self.release(at.zone, |zone| rewound = rewind(zone));
        rewound
    }

    /// Makes all completed appends durable.
    ///
    /// # Errors
    /// Errors of [`flush`](Self::flush).
    pub async fn flush_all(self: Rc<Self>) -> Result<()> {
        let begun = self.begun();
        self.flush(begun).await
    }

    /// Zones that were begun, and that take appends.
    fn begun(&self) -> Vec<ZoneIndex> {
        let is_begun = |state: ZoneState| state.is_active() && state != ZoneState::Interrupted;
        let zones = self.zones.borrow();
        let begun = (0..).zip(&*zones).filter(|(_, zone)| is_begun(zone.state));
        begun.map(|(index, _)| ZoneIndex(index)).collect()
    }

    /// Makes the completed appends to these zones durable.
    pub async fn flush(self: Rc<Self>, indices: Vec<ZoneIndex>) -> Result<()> {
        self.check()?;
        self.flush_now(indices).await
    }

    async fn flush_now(self: Rc<Self>, indices: Vec<ZoneIndex>) -> Result<()> {
        let turn = self.order.begin();
        let mut targets = Vec::with_capacity(indices.len());
        for index in indices {
            let zone = &mut self.zones.borrow_mut()[index.0 as usize];
            self.upload(zone, index);
            targets.push((index, zone.resets, zone.write_pointer));
        }
        for (index, resets, _) in &targets {
            self.stored(*index, *resets).await?;
        }
        self.comes(&turn).await?;
        let mut batch = 0;
        for (index, resets, end) in targets {
            let zone = &mut self.zones.borrow_mut()[index.0 as usize];
            if zone.resets == resets {
                self.queue(zone, index, end);
                batch = batch.max(zone.batch);
            }
        }
        drop(turn);
        self.log.durable(batch).await
    }

    /// Waits until a change may be added to the manifests.
    ///
    /// # Errors
    /// Errors of a log that has ended.
    async fn comes(&self, turn: &Turn<'_>) -> Result<()> {
        self.log.unless_ended(turn.comes()).await
    }

    /// Waits until all pieces of a zone that were sealed are stored, or the zone was reset.
    async fn stored(&self, index: ZoneIndex, resets: u64) -> Result<()> {
        let last = {
            let zones = self.zones.borrow();
            let zone = &zones[index.0 as usize];
            zone.pending.back().map(|piece| piece.offset)
        };
        let Some(last) = last else { return Ok(()) };
        loop {
            let stored = {
                let zone = &mut self.zones.borrow_mut()[index.0 as usize];
                let waits = |piece: &Pending| piece.offset <= last && piece.sealed.is_some();
                if zone.resets != resets || !zone.pending.iter().any(waits) {
                    return Ok(());
                }
                zone.stored.get_or_insert_default().clone()
            };
            self.log.check()?;
            stored.notified().await;
        }
    }

    /// Puts the stored pieces of a zone below `end` into the next batch, in order, and forgets those that are
    /// durable.
    fn queue(&self, zone: &mut Zone, index: ZoneIndex, end: u64) {
        let named = self.log.with_table(|table| table.zones[index.0 as usize].end());
        // A reset empties the list, and appends begin after its manifest: what the table has is of this life.
        while zone.pending.front().is_some_and(|piece| piece.is_queued && piece.offset < named) {
            zone.pending.pop_front();
        }
        let mut changes = Vec::new();
        for piece in zone.pending.iter_mut().skip_while(|piece| piece.is_queued) {
            if piece.sealed.is_some() || piece.offset >= end {
                break;
            }
            piece.is_queued = true;
            changes.push(Change::Piece {
                zone: index.0,
                offset: piece.offset,
                length: piece.length as u32,
                compressed: piece.compressed,
                serial: piece.serial,
            });
        }
        if !changes.is_empty() {
            zone.batch = self.log.push(changes);
            self.note(index);
        }
    }

    /// Becomes the owner of a zone, once the appends to it that have begun have ended; false if it is in the
    /// state `done` then. Appends that wait for memory get it by uploads alone, or end with the log.
    async fn own(&self, index: ZoneIndex, done: Option<ZoneState>) -> Result<bool> {
        self.with_zone(index, |zone| zone.is_owned = true).await?;
        let state = loop {
            let (state, appending) = {
                let zone = &self.zones.borrow()[index.0 as usize];
                (zone.state, zone.appending)
            };
            if appending == 0 {
                break state;
            }
            self.changed.notified().await;
        };
        let is_done = Some(state) == done;
        if is_done {
            self.release(index, |_| ());
        }
        Ok(!is_done)
    }

    /// Ends the ownership of a zone.
    fn release(&self, index: ZoneIndex, change: impl FnOnce(&mut Zone)) {
        let mut zones = self.zones.borrow_mut();
        let zone = &mut zones[index.0 as usize];
        let before = zone.state;
        change(zone);
        zone.is_owned = false;
        self.limits.moved(before, zone.state);
        drop(zones);
        self.changed.notify_all();
    }

    /// Finishes a zone.
    pub async fn finish(self: Rc<Self>, index: ZoneIndex) -> Result<()> {
        if !self.own(index, Some(ZoneState::Full)).await? {
            return Ok(());
        }
        let finished = self.finish_owned(index).await;
        self.release(index, |zone| {
            if finished.is_ok() {
                (zone.state, zone.write_pointer) = (ZoneState::Full, zone.end);
                zone.pending.clear();
            }
        });
        self.note_finished(index);
        finished
    }

    async fn finish_owned(self: &Rc<Self>, index: ZoneIndex) -> Result<()> {
        let turn = self.order.begin();
        let resets = {
            let zone = &mut self.zones.borrow_mut()[index.0 as usize];
            self.upload(zone, index);
            zone.resets
        };
        self.stored(index, resets).await?;
        self.comes(&turn).await?;
        let batch = {
            let zone = &mut self.zones.borrow_mut()[index.0 as usize];
            self.queue(zone, index, u64::MAX);
            zone.batch = self.log.push([Change::State { zone: index.0, state: State::Full }]);
            zone.batch
        };
        drop(turn);
        self.log.durable(batch).await
    }

    /// Resets a zone, and returns its new generation.
    pub async fn reset(self: Rc<Self>, index: ZoneIndex) -> Result<u64> {
        self.own(index, None).await?;
        let turn = self.order.begin();
        if let Err(error) = self.check_renewable(index).await {
            self.release(index, |_| ());
            return Err(error);
        }
        if let Err(error) = self.comes(&turn).await {
            self.release(index, |_| ());
            return Err(error);
        }
        let (generation, batch) = {
            let zone = &mut self.zones.borrow_mut()[index.0 as usize];
            zone.resets += 1;
            if let Some(gather) = zone.gather.take() {
                self.gathering.borrow_mut().changed(index.0, gather.length(), 0);
            }
            // Pieces that are stored and in no batch are in no manifest ever; uploads that are in progress
            // find that their zone was reset.
            let stored = zone.pending.iter().filter(|piece| piece.sealed.is_none() && !piece.is_queued);
            let names = stored.map(|piece| Name::Piece(self.name(zone, index, piece.offset, piece.serial)));
            self.garbage.add(names);
            zone.pending.clear();
            zone.notify_flushes();
            let generation = zone.generation + 1;
            zone.batch = self.log.push([Change::Reset { zone: index.0, generation }]);
            (generation, zone.batch)
        };
        drop(turn);
        let raised = self.log.durable(batch).await;
        // Only now: a crash before would leave data without its key.
        let raised = match raised {
            Ok(()) => self.renew(index, generation).await,
            failed => failed,
        };
        self.release(index, |zone| {
            if raised.is_ok() {
                (zone.state, zone.generation) = (ZoneState::Empty, generation);
                (zone.write_pointer, zone.end) = (0, 0);
            }
        });
        self.merging.forget(index);
        raised.map(|()| generation)
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
        while self.zones.borrow().iter().any(|zone| zone.is_owned) {
            self.changed.notified().await;
        }
        let begun = self.begun();
        self.clone().flush_now(begun.clone()).await?;
        // Zones that were opened, and have no bytes.
        self.log.push(begun.iter().map(|index| Change::State { zone: index.0, state: State::Begun }));
        let clean = self.log.push_clean();
        self.log.durable(clean).await
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
