//! Zones that another machine writes: opened without a fence, read only, and followed at an interval.
//!
//! # Promises
//! - Nothing is written, and the writer isn't fenced. Changes are refused with the reason.
//! - A call sees the state of one manifest as a whole. A [view](ZonesPart::view) keeps its state; a handle of
//!   the part itself sees the newest one at each call.
//! - What the writer has deleted since the manifest that is read is looked for in the newest one: there it is
//!   if it was merged. After a reset it is an error of the read.
//! - While the store doesn't answer, the last state stays.
//! - A key store is read, and never written: the secrets of a state are read after its manifest. Those of a
//!   view stay in memory while it is there, also if the writer has destroyed them since.
//!
//! Left to others: finding states (`readable`), reads (`core`).

use crate::KIND;
use crate::core::{Core, Settings, closed};
use crate::encryption;
use crate::key_store::KeyStore;
use crate::manifests::{Manifests, age_of};
use crate::names::Names;
use crate::offline::read_only;
use crate::opening;
use crate::part::{Options, known, requests};
use crate::readable::Readable;
use crate::state;
use crate::volume::check_expected;
use block::{
    Buffer, Call, EraseGuarantee, Error, Part, Payload, ReadOutcome, Result, Status, View, ZoneAddress,
    ZoneGeometry, ZoneIndex, ZoneReport, Zones, ZonesPart,
};
use object_store::Store;
use runtime::sync::{Notify, Semaphore};
use runtime::{FailureRun, Home, TaskGroup};
use serde_json::json;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Zones of another writer.
#[derive(Debug)]
pub struct ReaderPart {
    home: Home<ReaderZones>,
    geometry: ZoneGeometry,
}

/// The zones, on their home shard.
struct Reader {
    manifests: Manifests,
    settings: Settings,
    state: RefCell<Latest>,
    /// Number of states so far.
    number: Cell<u64>,
    failures: FailureRun,
    error: RefCell<Option<Error>>,
    /// One follow at a time, so that a state never takes the place of a later one.
    following: Rc<Semaphore>,
    is_closed: Cell<bool>,
    closed: Notify,
    tasks: TaskGroup,
}

/// Zones of a handle: the newest state, or always the same one.
struct ReaderZones {
    reader: Rc<Reader>,
    fixed: Option<Rc<Core>>,
}

/// A state and the zones with it.
struct Latest {
    found: Rc<Readable>,
    core: Rc<Core>,
}

/// Error of a change.
fn refusal() -> Error {
    Error::read_only(
        "zones in a bucket with open=reader take no changes: another machine writes them; change them there, or leave out \
         open=reader here, which fences that writer",
    )
}

impl ReaderPart {
    /// Opens zones for reading. The calling shard becomes the home shard, which reads the newest manifest
    /// again after each `interval`.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is no volume; [`Error::Corrupt`] and [`Error::Unsupported`] for damaged
    /// manifests and other versions; [`Error::Invalid`] for settings that can't be, or that differ from the
    /// volume's, and for the key store of another volume; errors of the store and of the key store.
    pub async fn open(options: Options, interval: Duration) -> Result<ReaderPart> {
        let Options { store, prefix, expected, settings, encryption, .. } = options;
        let keys = encryption::keys(encryption.as_ref())?;
        let manifests = Manifests::new(Store::new(store)?, Names::new(&prefix)?, keys);
        let found = Readable::find(&manifests, encryption.as_ref()).await?;
        let found = found.ok_or_else(|| opening::no_volume(&manifests))?;
        check_expected(expected, &found.looked.table)?;
        let core = read_only(manifests.clone(), settings, &found, refusal())?;
        let geometry = core.geometry().clone();
        let reader = Rc::new(Reader {
            manifests,
            settings,
            state: RefCell::new(Latest { found: Rc::new(found), core }),
            number: Cell::new(1),
            failures: FailureRun::default(),
            error: RefCell::new(None),
            following: Semaphore::new(1),
            is_closed: Cell::new(false),
            closed: Notify::new(),
            tasks: TaskGroup::default(),
        });
        reader.tasks.spawn(reader.clone().run(interval)).detach();
        let zones = Rc::new(ReaderZones { reader, fixed: None });
        Ok(ReaderPart { home: Home::here(zones), geometry })
    }

    /// Reads the newest manifest now.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub async fn follow(&self) -> Result<()> {
        self.home.with(|zones: Rc<ReaderZones>| async move { zones.reader.follow().await }).await
    }
}

impl Reader {
    async fn run(self: Rc<Self>, interval: Duration) {
        while !self.is_closed.get() {
            let _ = runtime::timeout(interval, self.closed.notified()).await;
            if self.is_closed.get() {
                break;
            }
            match self.follow().await {
                Ok(()) => self.failures.ended(self.task()),
                Err(error) => {
                    self.failures.failed(format!("{}: {error}; the last state stays", self.task()));
                    self.error.replace(Some(error));
                }
            }
        }
    }

    /// Describes the work of [`run`](Self::run), for logs.
    fn task(&self) -> String {
        let (store, prefix) = (self.manifests.store.name(), self.manifests.names.prefix());
        format!("following the writer of the volume below the prefix \"{prefix}\" of the bucket \"{store}\"")
    }

    async fn follow(&self) -> Result<()> {
        let _only = self.following.acquire(1).await;
        let before = self.state.borrow().found.clone();
        let later = before.follow(&self.manifests).await?;
        self.error.replace(None);
        let Some(found) = later else { return Ok(()) };
        let core = read_only(self.manifests.clone(), self.settings, &found, refusal())?;
        self.state.replace(Latest { found: Rc::new(found), core });
        self.number.set(self.number.get() + 1);
        Ok(())
    }

    /// Zones with the newest state.
    fn core(&self) -> Result<Rc<Core>> {
        match self.is_closed.get() {
            true => Err(closed()),
            false => Ok(self.state.borrow().core.clone()),
        }
    }

    fn status(&self) -> Status {
        let state = self.state.borrow();
        let (looked, counts) = (&state.found.looked, self.manifests.store.counts());
        let stored = looked.table.stored();
        let value = json!({
            "state": state::READING,
            "error": self.error.borrow().as_ref().map(ToString::to_string),
            "writer": looked.manifest.writer.name,
            "written": age_of(looked.manifest.time),
            "epoch": looked.manifest.epoch,
            "manifest": looked.manifest.number,
            "states": self.number.get(),
            "zones": looked.table.zones.len(),
            "zone_size": looked.table.zone_size,
            "encryption": encryption::cipher(self.manifests.is_encrypted()),
            "zones_without_key": state.found.secrets.as_deref().map(KeyStore::lost),
            "pieces": stored.pieces,
            "stored_bytes": stored.bytes,
            "object_bytes": stored.object_bytes(self.manifests.is_encrypted()),
        });
        let mut status = known(value);
        status.extend(requests(&counts));
        status
    }

    async fn close(self: Rc<Self>) -> Result<()> {
        self.is_closed.set(true);
        self.closed.notify_all();
        // A request that is in progress has its own limit; it changes nothing.
        let _ = runtime::timeout(self.settings.close_limit, self.tasks.ended()).await;
        Ok(())
    }
}

impl ReaderZones {
    fn core(&self) -> Result<Rc<Core>> {
        self.fixed.clone().map_or_else(|| self.reader.core(), Ok)
    }

    /// Fills the buffer with bytes of a zone. What was merged since has the same bytes in other pieces, which
    /// a newer manifest tells.
    async fn read(&self, at: ZoneAddress, buffer: Buffer) -> ReadOutcome {
        let core = match self.core() {
            Ok(core) => core,
            Err(error) => return (Err(error), buffer),
        };
        let (outcome, buffer) = core.clone().read(at, buffer).await;
        let is_missing = matches!(outcome, Err(Error::NotFound(_)));
        if !is_missing || self.reader.is_closed.get() || self.reader.follow().await.is_err() {
            return (outcome, buffer);
        }
        match self.reader.core() {
            Ok(newer) if newer.generation(at.zone) == core.generation(at.zone) => {
                newer.read(at, buffer).await
            }
            _ => (outcome, buffer),
        }
    }
}

impl Part for ReaderPart {
    fn kind(&self) -> &'static str {
        KIND.name
    }

    fn status(&self) -> Call<'_, Status> {
        self.home.status(|zones: &ReaderZones| zones.reader.status())
    }

    fn message<'a>(&'a self, message: &'a str) -> Call<'a, Result<String>> {
        Call::ready(Err(refusal().in_context(format!("message \"{}\"", message.escape_debug()))))
    }

    fn close(&self) -> Call<'_, Result<()>> {
        Call::new(self.home.close(|zones: Rc<ReaderZones>| zones.reader.clone().close()))
    }
}

impl ZonesPart for ReaderPart {
    fn geometry(&self) -> &ZoneGeometry {
        &self.geometry
    }

    fn open(&self) -> Call<'_, Result<Rc<dyn Zones>>> {
        let handle = ReaderHandle { home: self.home.clone(), geometry: self.geometry.clone() };
        Call::ready(Ok(Rc::new(handle)))
    }

    fn view(&self) -> Call<'_, Result<Option<View>>> {
        let geometry = self.geometry.clone();
        Call::new(self.home.with(move |zones: Rc<ReaderZones>| async move {
            let (reader, core) = (zones.reader.clone(), zones.core()?);
            let number = reader.number.get();
            let home = Home::here(Rc::new(ReaderZones { reader, fixed: Some(core) }));
            Ok(Some(View { number, zones: Arc::new(ViewPart { home, geometry }) }))
        }))
    }

    fn state(&self) -> Call<'_, Result<u64>> {
        Call::new(self.home.with(|zones: Rc<ReaderZones>| async move {
            zones.core()?;
            Ok(zones.reader.number.get())
        }))
    }
}

/// Zones in one state.
#[derive(Debug)]
struct ViewPart {
    home: Home<ReaderZones>,
    geometry: ZoneGeometry,
}

impl Part for ViewPart {
    fn kind(&self) -> &'static str {
        KIND.name
    }

    fn close(&self) -> Call<'_, Result<()>> {
        Call::new(self.home.forget())
    }
}

impl ZonesPart for ViewPart {
    fn geometry(&self) -> &ZoneGeometry {
        &self.geometry
    }

    fn open(&self) -> Call<'_, Result<Rc<dyn Zones>>> {
        let handle = ReaderHandle { home: self.home.clone(), geometry: self.geometry.clone() };
        Call::ready(Ok(Rc::new(handle)))
    }
}

/// A handle on the newest state at each call, or on that of a view.
struct ReaderHandle {
    home: Home<ReaderZones>,
    geometry: ZoneGeometry,
}

impl ReaderHandle {
    fn refuse<T: 'static>(&self) -> Call<'_, Result<T>> {
        Call::ready(Err(refusal()))
    }
}

impl Zones for ReaderHandle {
    fn geometry(&self) -> &ZoneGeometry {
        &self.geometry
    }

    fn append(&self, _zone: ZoneIndex, _payload: Payload) -> Call<'_, Result<ZoneAddress>> {
        self.refuse()
    }

    fn append_at(&self, _at: ZoneAddress, _payload: Payload) -> Call<'_, Result<()>> {
        self.refuse()
    }

    fn open(&self, _zone: ZoneIndex) -> Call<'_, Result<()>> {
        self.refuse()
    }

    fn close(&self, _zone: ZoneIndex) -> Call<'_, Result<()>> {
        self.refuse()
    }

    fn read(&self, at: ZoneAddress, mut buffer: Buffer) -> Call<'_, ReadOutcome> {
        buffer.clear();
        if let Err(error) = self.geometry.check_read(at, buffer.len()) {
            return Call::ready((Err(error), buffer));
        }
        let length = buffer.len();
        Call::new(async move {
            let read = move |zones: Rc<ReaderZones>| async move { Ok(zones.read(at, buffer).await) };
            self.home.with(read).await.unwrap_or_else(|error| (Err(error), Buffer::new(length)))
        })
    }

    /// Returns at once: all that can be read is durable.
    fn flush<'a>(&'a self, zones: &'a [ZoneIndex]) -> Call<'a, Result<()>> {
        Call::ready(zones.iter().try_for_each(|zone| self.geometry.check_zone(*zone)))
    }

    fn finish(&self, _zone: ZoneIndex) -> Call<'_, Result<()>> {
        self.refuse()
    }

    fn reset(&self, _zone: ZoneIndex, _erase: EraseGuarantee) -> Call<'_, Result<u64>> {
        self.refuse()
    }

    fn report(&self, first: ZoneIndex, count: u32) -> Call<'_, Result<Vec<ZoneReport>>> {
        Call::new(
            self.home.with(move |zones: Rc<ReaderZones>| async move { zones.core()?.report(first, count) }),
        )
    }
}
