//! Zones on any Device: it is divided into zones of one size. Their headers are at its beginning, one after
//! the other.
//!
//! # Promises
//! - Those of [`block::Zones`] on any device, after any power cut that keeps the device's own promises.
//!   Appends are durable on flush if the device has a volatile cache, otherwise at once.
//! - An append to an open zone takes no lock, and adds no I/O to the device's own write. The first append to
//!   an empty zone also writes its header, durably.
//! - A header with the state Empty means that no data of its generation exists. After an unclean stop a zone
//!   that was begun and not finished is interrupted, with the capacity as the upper bound of its write
//!   pointer.
//! - Opening a closed zone and closing a zone do no I/O. Opening an empty one writes its header, as its first
//!   append does.
//! - A device without a whole volume of this version, or with one of another device, is refused with an error
//!   that names its contents. A zone whose header is damaged is offline; the others are usable.
//!
//! Before zone 0 there may be a staging area ([`block::Staging`]), which a store overwrites in place. Its
//! bytes are the store's; a format writes zeros, so that its space is allocated.
//!
//! The zone's data is never checked: records carry their own checksums. A full zone is a finished one; a zone
//! without free space stays open until it is finished, and counts against `max_open`.
//!
//! Modules: `slot` describes the one atomic word per zone that all shards share, `usage` the mark that the
//! volume is in use, `volume` the operations, [`mod@format`] the bytes, `open` formatting and recovery,
//! `layout` the positions on the device, `staging` the area of writes that aren't in a zone yet, `defaults`
//! the zones of stores on the log kit.

pub mod defaults;
pub mod format;
mod kind;
mod layout;
mod open;
mod slot;
mod staging;
mod usage;
mod volume;

use block::{
    Buffer, Call, Device, DevicePart, EraseGuarantee, Part, Payload, ReadOutcome, Result, Staging, Status,
    ZoneAddress, ZoneGeometry, ZoneIndex, ZoneReport, ZoneState, Zones, ZonesPart,
};
pub use kind::KIND;
use std::rc::Rc;
use std::sync::Arc;
use volume::Volume;

/// Default size of a zone, in bytes.
pub const DEFAULT_ZONE_SIZE: u64 = 64 << 20;
/// Default largest append, in bytes.
pub const DEFAULT_MAX_APPEND: u64 = 1 << 20;

/// Options of opening a volume.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// Format the whole device as an empty volume first. Its contents are lost.
    pub format: bool,
    /// Distance between two zones, in bytes; must match an existing volume. By default, that of the volume,
    /// or [`DEFAULT_ZONE_SIZE`].
    pub zone_size: Option<u64>,
    /// Size in bytes of the staging area that a format leaves for acknowledged writes of a store; by default
    /// 1 MiB if at least 16 zones of at least 4 MiB fit beside it.
    pub staging: Option<u64>,
    /// Limit of open zones; 0 is no limit.
    pub max_open: u32,
    /// Limit of active zones; 0 is no limit.
    pub max_active: u32,
    /// Largest append, in bytes; by default [`DEFAULT_MAX_APPEND`], or the capacity of a zone if that is
    /// smaller.
    pub max_append: Option<u64>,
    /// Refuse every change and write nothing.
    pub read_only: bool,
}

/// Geometry of the zones that a device of this geometry would have.
///
/// # Errors
/// As [`OnDevice::open`] with `format`, for options that don't fit.
pub fn geometry(device: &block::DeviceGeometry, zone_size: u64, max_append: u64) -> Result<ZoneGeometry> {
    let layout = layout::Layout::for_device(device, zone_size, None)?;
    let options = Options { max_append: Some(max_append), ..Options::default() };
    open::zone_geometry(device, &layout, &options)
}

/// A set of zones on a device.
pub struct OnDevice {
    device: Arc<dyn DevicePart>,
    volume: Arc<Volume>,
}

impl OnDevice {
    /// Opens the volume on this device, or formats it with `options.format`. That it is in use is recorded on
    /// the medium before its first change: opening an existing volume writes nothing.
    ///
    /// # Errors
    /// [`Error::Protocol`](block::Error::Protocol) for a device with other contents or another version,
    /// [`Error::Corrupt`](block::Error::Corrupt) for damaged superblocks,
    /// [`Error::Invalid`](block::Error::Invalid) for options or a device that don't fit the volume.
    pub async fn open(device: Arc<dyn DevicePart>, options: Options) -> Result<OnDevice> {
        if options.format && options.read_only {
            return Err(block::Error::invalid(
                "zones can't be formatted and opened read-only at the same time",
            ));
        }
        let handle = device.open().await?;
        if options.format {
            open::format(&*handle, &options).await?;
        }
        let volume = open::read(&*handle, &options).await?;
        drop(handle);
        Ok(OnDevice { device, volume: Arc::new(volume) })
    }

    /// Opens the volume on this device to look at it: every change is refused, and nothing is written.
    /// `max_append` is that of [`Options`].
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub async fn open_read_only(device: Arc<dyn DevicePart>, max_append: Option<u64>) -> Result<OnDevice> {
        Self::open(device, Options { max_append, read_only: true, ..Options::default() }).await
    }

    /// UUID of the volume.
    pub fn uuid(&self) -> format::Uuid {
        self.volume.uuid
    }
}

impl Part for OnDevice {
    fn kind(&self) -> &'static str {
        KIND.name
    }

    fn status(&self) -> Call<'_, Status> {
        let mut counts = [0_u64; 6];
        let mut offline = Vec::new();
        for slot in &self.volume.slots {
            match slot.look().0.state() {
                ZoneState::Empty => counts[0] += 1,
                ZoneState::ImplicitlyOpen | ZoneState::ExplicitlyOpen => counts[1] += 1,
                ZoneState::Closed => counts[2] += 1,
                ZoneState::Interrupted => counts[3] += 1,
                ZoneState::Full => counts[4] += 1,
                ZoneState::ReadOnly | ZoneState::Offline => {
                    counts[5] += 1;
                    offline.extend(slot.trouble().map(|trouble| trouble.to_string()));
                }
            }
        }
        // A few errors are enough; the status stays small.
        offline.truncate(8);
        let mut status = Status::new();
        status.insert("uuid".into(), self.volume.uuid.to_string().into());
        status.insert("zone_size".into(), self.volume.geometry.zone_size.into());
        status.insert("zones".into(), self.volume.geometry.zones.into());
        for (name, count) in
            ["empty", "open", "closed", "interrupted", "full", "offline"].into_iter().zip(counts)
        {
            status.insert(name.into(), count.into());
        }
        if !offline.is_empty() {
            status.insert("damage".into(), offline.into());
        }
        Call::ready(status)
    }

    fn close(&self) -> Call<'_, Result<()>> {
        let (device, volume) = (self.device.clone(), self.volume.clone());
        runtime::carry(async move {
            let device = device.open().await?;
            volume.close(&*device).await
        })
    }
}

impl ZonesPart for OnDevice {
    fn geometry(&self) -> &ZoneGeometry {
        &self.volume.geometry
    }

    fn keeps_acknowledged(&self) -> bool {
        self.device.keeps_acknowledged()
    }

    fn can_rewind(&self) -> bool {
        true
    }

    fn open(&self) -> Call<'_, Result<Rc<dyn Zones>>> {
        Call::new(async move {
            let device = self.device.open().await?;
            let volume = self.volume.clone();
            Ok(Rc::new(Handle { device, volume }) as Rc<dyn Zones>)
        })
    }
}

struct Handle {
    device: Rc<dyn Device>,
    volume: Arc<Volume>,
}

impl Handle {
    fn check_change(&self, zone: ZoneIndex) -> Result<()> {
        self.volume.geometry.check_zone(zone)?;
        self.volume.check_writable()
    }
}

impl Zones for Handle {
    fn geometry(&self) -> &ZoneGeometry {
        &self.volume.geometry
    }

    fn append(&self, zone: ZoneIndex, payload: Payload) -> Call<'_, Result<ZoneAddress>> {
        let checked = self.volume.geometry.check_append(zone, payload.len());
        if let Err(error) = checked.and_then(|()| self.volume.check_writable()) {
            return Call::ready(Err(error));
        }
        let (device, volume) = (self.device.clone(), self.volume.clone());
        runtime::carry(async move { volume.append(&*device, zone, None, payload).await })
    }

    fn append_at(&self, at: ZoneAddress, payload: Payload) -> Call<'_, Result<()>> {
        let checked = self.volume.geometry.check_append_at(at, payload.len());
        if let Err(error) = checked.and_then(|()| self.volume.check_writable()) {
            return Call::ready(Err(error));
        }
        let (device, volume) = (self.device.clone(), self.volume.clone());
        runtime::carry(
            async move { volume.append(&*device, at.zone, Some(at.offset.0), payload).await.map(drop) },
        )
    }

    fn open(&self, zone: ZoneIndex) -> Call<'_, Result<()>> {
        if let Err(error) = self.check_change(zone) {
            return Call::ready(Err(error));
        }
        let (device, volume) = (self.device.clone(), self.volume.clone());
        runtime::carry(async move { volume.open(&*device, zone).await })
    }

    fn close(&self, zone: ZoneIndex) -> Call<'_, Result<()>> {
        if let Err(error) = self.check_change(zone) {
            return Call::ready(Err(error));
        }
        let volume = self.volume.clone();
        runtime::carry(async move { volume.close_zone(zone).await })
    }

    fn read(&self, at: ZoneAddress, mut buffer: Buffer) -> Call<'_, ReadOutcome> {
        buffer.clear();
        match self.volume.check_read(at, buffer.len()) {
            Ok(()) => self.device.read(self.volume.layout.data(at.zone.0, at.offset.0), buffer),
            Err(error) => Call::ready((Err(error), buffer)),
        }
    }

    fn flush<'a>(&'a self, zones: &'a [ZoneIndex]) -> Call<'a, Result<()>> {
        match zones.iter().try_for_each(|zone| self.volume.geometry.check_zone(*zone)) {
            Ok(()) if zones.is_empty() => Call::ready(Ok(())),
            Ok(()) => self.device.flush(),
            Err(error) => Call::ready(Err(error)),
        }
    }

    fn finish(&self, zone: ZoneIndex) -> Call<'_, Result<()>> {
        if let Err(error) = self.check_change(zone) {
            return Call::ready(Err(error));
        }
        let (device, volume) = (self.device.clone(), self.volume.clone());
        runtime::carry(async move { volume.finish(&*device, zone).await })
    }

    fn reset(&self, zone: ZoneIndex, erase: EraseGuarantee) -> Call<'_, Result<u64>> {
        if let Err(error) = self.check_change(zone) {
            return Call::ready(Err(error));
        }
        let (device, volume) = (self.device.clone(), self.volume.clone());
        runtime::carry(async move { volume.reset(&*device, zone, erase).await })
    }

    fn reserve(&self, zone: ZoneIndex, bytes: u64) -> Call<'_, Result<()>> {
        if let Err(error) = self.check_change(zone) {
            return Call::ready(Err(error));
        }
        let (device, volume) = (self.device.clone(), self.volume.clone());
        runtime::carry(async move { volume.reserve(&*device, zone, bytes).await })
    }

    fn rewind(&self, at: ZoneAddress) -> Call<'_, Result<()>> {
        let checked = self.volume.geometry.check_read(at, 0);
        if let Err(error) = checked.and_then(|()| self.volume.check_writable()) {
            return Call::ready(Err(error));
        }
        let (device, volume) = (self.device.clone(), self.volume.clone());
        runtime::carry(async move { volume.rewind(&*device, at).await })
    }

    fn staging(&self) -> Option<Rc<dyn Staging>> {
        let range = self.volume.layout.staging_range()?;
        let (device, volume) = (self.device.clone(), self.volume.clone());
        Some(Rc::new(staging::StagingArea { device, volume, range }))
    }

    fn report(&self, first: ZoneIndex, count: u32) -> Call<'_, Result<Vec<ZoneReport>>> {
        Call::ready(self.volume.report(first, count))
    }
}
