//! Zones in an object store as a part, its status and its handles.
//!
//! # Promises
//! - All calls are carried out on the home shard, which has the client, to their end.
//! - The status of a volume that isn't claimed sends no request.
//!
//! Left to others: the claim (`volume`), the calls (`core`), words of states (`state`).

use crate::KIND;
use crate::core::{Core, Settings};
use crate::encryption::{self, Encryption};
use crate::key_store::KeyStore;
use crate::manifests::Manifests;
use crate::message::Message;
use crate::names::Names;
use crate::opening::NewZones;
use crate::state;
use crate::table::Table;
use crate::volume::{Existing, Volume};
use block::{
    Buffer, Call, Claim, ClaimToken, EraseGuarantee, Error, Part, Payload, ReadOutcome, Result, Status,
    ZoneAddress, ZoneChange, ZoneGeometry, ZoneIndex, ZoneReport, Zones, ZonesPart,
};
use object_store::{Config, Counts, Kind, Store};
use runtime::Home;
use serde_json::{Map, Value, json};
use stack::Tell;
use std::rc::Rc;
use std::time::Duration;

/// Zones to create.
#[derive(Debug, Clone, Copy)]
pub struct NewVolume {
    /// Number of zones.
    pub zones: u32,
    /// Bytes of a zone.
    pub zone_size: u64,
    /// Whether the store's conditional writes are checked first: one that isn't atomic is refused.
    pub probe: bool,
}

/// A volume in a bucket.
#[derive(Debug, Clone)]
pub struct Options {
    /// The bucket, and the client's limits.
    pub store: Config,
    /// Prefix of all keys; empty for the whole bucket.
    pub prefix: String,
    /// Name of this writer for operators, such as its host and process.
    pub writer: String,
    /// Zones to create, in place of existing ones; `None` to open.
    pub format: Option<NewVolume>,
    /// Number and size of zones that an existing volume must have.
    pub expected: (Option<u32>, Option<u64>),
    /// Settings.
    pub settings: Settings,
    /// Encryption, which a volume has from its creation on.
    pub encryption: Option<Encryption>,
    /// Interval at which a reader follows the writer; `None` for a writer.
    pub follow: Option<Duration>,
}

/// Zones in an object store.
#[derive(Debug)]
pub struct ObjectsPart {
    home: Home<Volume>,
    geometry: ZoneGeometry,
}

impl ObjectsPart {
    /// Finds zones, or prepares to create them; the calling shard becomes the home shard. The first handle
    /// claims them, which fences another writer, or [`ZonesPart::claim`] before it. Until then the bucket
    /// isn't changed, except by the probe of a new volume.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is no volume; [`Error::Unsupported`] for a store whose conditional writes
    /// aren't atomic, and for other versions; [`Error::Corrupt`] for damaged manifests; [`Error::Busy`] if
    /// another writer opens the zones at the same time; [`Error::Invalid`] for settings that can't be, or
    /// that differ from the volume's; errors of the store.
    pub async fn find(options: Options) -> Result<ObjectsPart> {
        let Options { store, prefix, writer, format, expected, settings, encryption, .. } = options;
        let (names, store) = (Names::new(&prefix)?, Store::new(store)?);
        let zones = format.as_ref().map(|new| new.zones);
        let (keys, secrets) = encryption::open(encryption.as_ref(), zones).await?;
        if let Some(new) = &format {
            settings.geometry(new.zones, new.zone_size)?;
            if new.probe {
                store.probe(names.prefix()).await?;
            }
        }
        let new = format.map(|new| NewZones { zones: new.zones, zone_size: new.zone_size });
        let erase = encryption.as_ref().map_or(EraseGuarantee::None, Encryption::guarantee);
        let manifests = Manifests::new(store, names, keys);
        let existing = Existing { zones: expected, encryption, secrets };
        let volume = Volume::find(manifests, writer, new, existing, settings).await?;
        let geometry = settings.geometry(volume.zones.zones, volume.zones.zone_size)?;
        Ok(ObjectsPart { home: Home::here(volume), geometry: ZoneGeometry { erase, ..geometry } })
    }

    /// Opens or creates zones, which fences another writer of them.
    ///
    /// # Errors
    /// As [`find`](Self::find); errors of the claim.
    pub async fn open(options: Options) -> Result<ObjectsPart> {
        let part = Self::find(options).await?;
        part.get_or_claim().await?;
        Ok(part)
    }

    /// Zones of this writer, which claims them if it hasn't yet.
    async fn get_or_claim(&self) -> Result<Home<Core>> {
        self.home.with(|volume| async move { volume.get_or_claim(None).await.map(|(core, _)| core) }).await
    }
}

/// Status before the claim, on the home shard.
fn status_of_found(volume: &Volume) -> Status {
    let value = json!({
        "state": state::of_found(volume.failure().is_some()),
        "error": volume.failure().map(|error| error.to_string()),
        "epoch": volume.epoch(),
        "zones": volume.zones.zones,
        "zone_size": volume.zones.zone_size,
    });
    known(value)
}

/// The fields of a status that have a value.
pub(crate) fn known(value: Value) -> Status {
    let Value::Object(mut status) = value else { return Status::new() };
    status.retain(|_, value| !value.is_null());
    status
}

/// Counters of a client, for the status.
pub(crate) fn requests(counts: &Counts) -> Status {
    let requests: Map<String, Value> =
        Kind::ALL.iter().map(|(kind, name)| ((*name).to_owned(), counts.requests(*kind).into())).collect();
    let value = json!({
        "requests": requests,
        "retries": counts.retries,
        "timeouts": counts.timeouts,
        "slow_downs": counts.slow_downs,
        "hedged_reads": counts.hedges,
        "connections": counts.connections,
        "sent_bytes": counts.sent_bytes,
        "received_bytes": counts.received_bytes,
    });
    known(value)
}

/// Status of the zones, on their home shard.
fn status(core: &Core) -> Status {
    let stored = core.log.with_table(Table::stored);
    let (open, active) = core.active();
    let failure = core.log.check().err();
    let value = json!({
        "state": state::of_writer(failure.is_some(), core.is_waiting_for_store()),
        "error": failure.map(|error| error.to_string()),
        "writer": core.log.identity().writer.name,
        "epoch": core.log.identity().epoch,
        "manifest": core.log.number(),
        "zones": core.geometry().zones,
        "zone_size": core.geometry().zone_size,
        "open": open,
        "active": active,
        "encryption": encryption::cipher(core.is_encrypted()),
        "erase": core.geometry().erase.to_string(),
        "zones_without_key": core.key_store().map(KeyStore::lost),
        "compression": core.settings().compression.name(),
        "pieces": stored.pieces,
        "stored_bytes": stored.bytes,
        "object_bytes": stored.object_bytes(core.is_encrypted()),
        "unsaved_bytes": core.unsaved(),
        "garbage_objects": core.garbage.waiting(),
        "deleted_objects": core.garbage.deleted(),
        "dropped_objects": core.garbage.dropped(),
        "merged_objects": core.merging.replaced.get(),
        "merged_bytes": core.merging.moved.get(),
    });
    let mut status = known(value);
    status.extend(requests(&core.counts()));
    status
}

impl Part for ObjectsPart {
    fn kind(&self) -> &'static str {
        KIND.name
    }

    fn status(&self) -> Call<'_, Status> {
        self.home.status(|volume| match volume.core() {
            Some(core) => status(&core),
            None => status_of_found(volume),
        })
    }

    fn message<'a>(&'a self, message: &'a str) -> Call<'a, Result<String>> {
        self.tell_text(&KIND, message)
    }

    fn close(&self) -> Call<'_, Result<()>> {
        Call::new(async move {
            let claimed = self.home.close(async |volume| match volume.core_to_close().await? {
                Some(core) => core.close(Core::close).await,
                None => Ok(()),
            });
            claimed.await
        })
    }
}

impl Tell for ObjectsPart {
    type Message = Message;

    fn tell(&self, message: Message) -> Call<'_, Result<String>> {
        match message {
            Message::Flush => Call::new(async move {
                self.get_or_claim().await?.with(|core: Rc<Core>| core.flush_all()).await?;
                Ok("everything that was written is in the bucket".to_owned())
            }),
            Message::CollectGarbage => Call::new(async move {
                let count = self.get_or_claim().await?.with(|core: Rc<Core>| core.collect_garbage()).await?;
                Ok(format!("{count} objects will be deleted"))
            }),
        }
    }
}

impl ZonesPart for ObjectsPart {
    fn geometry(&self) -> &ZoneGeometry {
        &self.geometry
    }

    fn can_rewind(&self) -> bool {
        true
    }

    /// Returns true: the pieces of a flush are in one manifest, which names no bytes that were appended
    /// later.
    fn flushes_atomically(&self) -> bool {
        true
    }

    /// Returns true on the home shard: messages from other shards may begin in another order.
    fn keep_order(&self) -> bool {
        self.home.is_here() && self.home.get().is_ok_and(|volume| volume.keep_order())
    }

    fn last_claim(&self) -> Call<'_, Result<Option<Claim>>> {
        Call::new(self.home.with(Volume::last_claim))
    }

    fn claim(&self, token: ClaimToken) -> Call<'_, Result<Option<Claim>>> {
        Call::new(self.home.with(move |volume| async move { volume.claim(token).await.map(Some) }))
    }

    fn open(&self) -> Call<'_, Result<Rc<dyn Zones>>> {
        Call::new(async move {
            let home = self.get_or_claim().await?;
            Ok(Rc::new(Handle::new(&home, &self.geometry)?) as Rc<dyn Zones>)
        })
    }
}

/// A handle of one shard.
struct Handle {
    home: Home<Core>,
    /// The zones; set on the home shard.
    core: Option<Rc<Core>>,
    geometry: ZoneGeometry,
}

impl Handle {
    /// Returns a handle of this shard.
    ///
    /// # Errors
    /// [`Error::Closed`] once the zones are closed.
    pub fn new(home: &Home<Core>, geometry: &ZoneGeometry) -> Result<Handle> {
        let core = if home.is_here() { Some(home.get()?) } else { None };
        Ok(Handle { home: home.clone(), core, geometry: geometry.clone() })
    }

    /// Carries a call out on the home shard, to its end.
    fn call<T: Send + 'static, Fut: Future<Output = Result<T>> + 'static>(
        &self,
        checked: Result<()>,
        work: impl FnOnce(Rc<Core>) -> Fut + Send + 'static,
    ) -> Call<'_, Result<T>> {
        match (checked, &self.core) {
            (Err(error), _) => Call::ready(Err(error)),
            (Ok(()), Some(core)) => runtime::carry(work(core.clone())),
            (Ok(()), None) => Call::new(self.home.with(work)),
        }
    }
}

impl Zones for Handle {
    fn geometry(&self) -> &ZoneGeometry {
        &self.geometry
    }

    fn append(&self, zone: ZoneIndex, payload: Payload) -> Call<'_, Result<ZoneAddress>> {
        let checked = self.geometry.check_append(zone, payload.len());
        self.call(checked, move |core| core.append(zone, None, payload))
    }

    fn append_at(&self, at: ZoneAddress, payload: Payload) -> Call<'_, Result<()>> {
        let checked = self.geometry.check_append_at(at, payload.len());
        self.call(checked, move |core| async move {
            core.append(at.zone, Some(at.offset.0), payload).await.map(drop)
        })
    }

    fn open(&self, zone: ZoneIndex) -> Call<'_, Result<()>> {
        self.call(self.geometry.check_zone(zone), move |core| core.open(zone))
    }

    fn close(&self, zone: ZoneIndex) -> Call<'_, Result<()>> {
        self.call(self.geometry.check_zone(zone), move |core| core.close_zone(zone))
    }

    fn read(&self, at: ZoneAddress, mut buffer: Buffer) -> Call<'_, ReadOutcome> {
        buffer.clear();
        if let Err(error) = self.geometry.check_read(at, buffer.len()) {
            return Call::ready((Err(error), buffer));
        }
        if let Some(core) = &self.core {
            return Call::new(core.clone().read(at, buffer));
        }
        let length = buffer.len();
        Call::new(async move {
            let read = move |core: Rc<Core>| async move { Ok(core.read(at, buffer).await) };
            self.home.with(read).await.unwrap_or_else(|error| (Err(error), Buffer::new(length)))
        })
    }

    fn flush<'a>(&'a self, zones: &'a [ZoneIndex]) -> Call<'a, Result<()>> {
        let checked = zones.iter().try_for_each(|zone| self.geometry.check_zone(*zone));
        let zones = zones.to_vec();
        self.call(checked, move |core| core.flush(zones))
    }

    fn finish(&self, zone: ZoneIndex) -> Call<'_, Result<()>> {
        self.call(self.geometry.check_zone(zone), move |core| core.finish(zone))
    }

    fn change_together(&self, changes: Vec<ZoneChange>) -> Call<'_, Result<()>> {
        let has_reset = changes.iter().any(|change| matches!(change, ZoneChange::Reset(_)));
        let checked = match has_reset && self.geometry.erase == EraseGuarantee::Key {
            false => changes.iter().try_for_each(|change| self.geometry.check_zone(change.zone())),
            true => Err(Error::unsupported(
                "resetting zones of an object store with a key store together with other changes: each reset destroys a key; \
                 reset them one by one",
            )),
        };
        self.call(checked, move |core| core.change_together(changes))
    }

    fn reset(&self, zone: ZoneIndex, erase: EraseGuarantee) -> Call<'_, Result<u64>> {
        let checked = self.geometry.check_zone(zone).and_then(|()| match erase {
            erase if erase <= self.geometry.erase => Ok(()),
            _ => Err(Error::unsupported(format!(
                "resetting zone {zone} with the guarantee \"{erase}\": zones in an object store give \"none\" without a key store, since objects are deleted later, and a bucket may keep their versions"
            ))),
        });
        self.call(checked, move |core| core.reset(zone))
    }

    fn rewind(&self, at: ZoneAddress) -> Call<'_, Result<()>> {
        let checked = self.geometry.check_append_at(at, self.geometry.append_granularity as usize);
        self.call(checked, move |core| core.rewind(at))
    }

    fn report(&self, first: ZoneIndex, count: u32) -> Call<'_, Result<Vec<ZoneReport>>> {
        self.call(Ok(()), move |core| async move { core.report(first, count) })
    }
}
