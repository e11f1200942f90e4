//! The drive as a part of a stack, and a shard's handle on it.

use crate::drive::{Access, Counters, Drive, Faults, Timing, lock};
use crate::flash::{Layout, Schedule};
use crate::format::{AREA, Block, Stored, Superblock, ZoneHeader, decode_zone, encode_zone};
use crate::kind::{KIND, ZnsMessage};
use crate::machine::{Resources, State};
use crate::profile::Profile;
use crate::reliability::Reliability;
use crate::zone::{Slot, Zone};
use block::{
    Buffer, Call, Durability, Durable, EraseGuarantee, Error, Part, Payload, ReadOutcome, Result, Status,
    ZoneAddress, ZoneGeometry, ZoneIndex, ZoneReport, Zones, ZonesPart,
};
use runtime::Random;
use runtime::file::{File, OpenOptions};
use stack::Tell;
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use zones::gate::Gate;
use zones::sector;

/// Bound of the random first generations of a new drive.
const FIRST_GENERATIONS: u64 = 1 << 48;

/// Shape of a new drive.
#[derive(Debug, Clone, PartialEq)]
pub struct Shape {
    /// Name of the profile.
    pub profile: String,
    /// Number of zones.
    pub zones: u32,
    /// Distance between two zones, in bytes.
    pub zone_size: u64,
    /// Writable bytes of a zone.
    pub zone_capacity: u64,
    /// Whether each zone has a key.
    pub encrypted: bool,
    /// Seed of block failures and bit errors; `None` draws one.
    pub seed: Option<u64>,
    /// Guaranteed erases of a block; `None` takes those of the profile.
    pub endurance: Option<u32>,
}

impl Default for Shape {
    fn default() -> Self {
        Shape {
            profile: "zn540".into(),
            zones: 64,
            zone_size: 16 << 20,
            zone_capacity: 16 << 20,
            encrypted: false,
            seed: None,
            endurance: None,
        }
    }
}

/// Settings of an open drive that aren't stored on its medium.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Settings {
    /// Limit of open zones; 0 is no limit.
    pub max_open: u32,
    /// Limit of active zones; 0 is no limit.
    pub max_active: u32,
    /// Largest append, in bytes.
    pub max_append: u64,
    /// Whether operations take the profile's time.
    pub timed: bool,
    /// Faults.
    pub faults: Faults,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { max_open: 0, max_active: 0, max_append: 1 << 20, timed: false, faults: Faults::default() }
    }
}

impl Shape {
    /// Superblock of a new drive of this shape.
    ///
    /// # Errors
    /// [`Error::Invalid`] for sizes that don't fit, [`Error::NotFound`] for an unknown profile.
    pub fn superblock(&self) -> Result<Superblock> {
        let superblock = self.superblock_with(zones::on_device::format::draw_uuid())?;
        let seed = self.seed.unwrap_or_else(runtime::random_u64);
        Ok(Superblock { seed, ..superblock })
    }

    pub(crate) fn superblock_with(&self, uuid: uuid::Uuid) -> Result<Superblock> {
        let profile = Profile::named(&self.profile)?;
        let Shape { zones, zone_size, zone_capacity, .. } = *self;
        if zone_capacity == 0 || !zone_capacity.is_multiple_of(AREA) || zone_capacity > zone_size {
            return Err(Error::invalid(format!(
                "zone_capacity {zone_capacity}: expected a multiple of {AREA} up to the zone_size, {zone_size}"
            )));
        }
        if zones == 0 || u128::from(zones) * u128::from(zone_size) >= 1 << 61 {
            return Err(Error::invalid(format!(
                "{zones} zones of {zone_size} bytes: expected at least 1, below 2 EiB"
            )));
        }
        Ok(Superblock {
            uuid,
            sequence: 0,
            zones,
            zone_size,
            zone_capacity,
            first_zone: Superblock::first_zone(zones),
            seed: self.seed.unwrap_or_default(),
            clock: 0,
            endurance: self.endurance.unwrap_or(profile.endurance),
            profile: self.profile.clone(),
            encrypted: self.encrypted,
            clean: true,
        })
    }
}

/// Geometry of the zones of a drive with this superblock and these settings.
pub fn geometry(superblock: &Superblock, settings: &Settings, in_memory: bool) -> Result<ZoneGeometry> {
    let profile = Profile::named(&superblock.profile)?;
    let granularity = AREA as u32;
    if settings.max_append < AREA || !settings.max_append.is_multiple_of(AREA) {
        return Err(Error::invalid(format!(
            "max_append {}: expected a multiple of {AREA}",
            settings.max_append
        )));
    }
    Ok(ZoneGeometry {
        zones: superblock.zones,
        zone_size: superblock.zone_size,
        zone_capacity: superblock.zone_capacity,
        append_granularity: granularity,
        read_granularity: granularity,
        max_append: settings.max_append.min(superblock.zone_capacity),
        max_open: settings.max_open,
        max_active: settings.max_active,
        // Contents of a file are durable after a flush.
        durable: if in_memory && (profile.protected || profile.buffer == 0) {
            Durable::OnAppend
        } else {
            Durable::OnFlush
        },
        erase: if superblock.encrypted { EraseGuarantee::Key } else { EraseGuarantee::Erased },
    })
}

/// An emulated ZNS drive.
#[derive(Debug, Clone)]
pub struct Zns {
    pub(crate) drive: Arc<Drive>,
}

type Medium = Vec<(Result<ZoneHeader>, Vec<Block>)>;

impl Zns {
    /// Creates a drive in memory.
    ///
    /// # Errors
    /// As [`Shape::superblock`].
    pub fn in_memory(shape: &Shape, settings: Settings) -> Result<Zns> {
        let superblock = shape.superblock()?;
        let lanes = Profile::named(&superblock.profile)?.dies_per_zone() as usize;
        let header = new_header();
        let medium = (0..superblock.zones).map(|_| (Ok(header), vec![Block::default(); lanes])).collect();
        Self::build(superblock, medium, settings, None)
    }

    /// Formats a file as an empty drive. Its contents are lost.
    ///
    /// # Errors
    /// As [`Shape::superblock`]; errors of the file.
    pub async fn format(file: &File, shape: &Shape) -> Result<()> {
        let superblock = shape.superblock()?;
        let lanes = Profile::named(&superblock.profile)?.dies_per_zone() as usize;
        let zeros = || Buffer::zeroed(AREA as usize).freeze().into();
        for copy in [0, 1] {
            file.write_at(copy * AREA, zeros(), Durability::Durable).await?;
        }
        file.set_len(0).await?;
        file.set_len(superblock.cells(superblock.zones)).await?;
        let header = new_header();
        let blocks = vec![Block::default(); lanes];
        for zone in 0..superblock.zones {
            let area = encode_zone(superblock.uuid, zone, &header, &blocks);
            file.write_at(Superblock::zone_area(zone), area.into(), Durability::Visible).await?;
        }
        file.sync_all().await?;
        for sequence in [0, 1] {
            let area = Superblock { sequence, ..superblock.clone() }.encode();
            file.write_at(sequence * AREA, area.into(), Durability::Durable).await?;
        }
        Ok(())
    }

    /// Opens the drive in a file, and records there that the drive is in use. The caller has locked the file.
    ///
    /// # Errors
    /// [`Error::NotFound`] for a file with other contents, [`Error::Protocol`] for another version,
    /// [`Error::Corrupt`] for damaged superblocks.
    pub async fn open_file(file: &File, settings: Settings) -> Result<Zns> {
        let zns = Self::look_at(file, settings).await?;
        zns.drive.write_superblock(file, false).await?;
        Ok(zns)
    }

    /// Opens the drive in a file, without changing it.
    ///
    /// # Errors
    /// As [`open_file`](Self::open_file).
    pub async fn look_at(file: &File, settings: Settings) -> Result<Zns> {
        let superblock = read_superblock(file).await?;
        let needed = superblock.cells(superblock.zones);
        if file.length()? < needed {
            return Err(Error::corrupt(format!(
                "{}: {} bytes, expected at least {needed}: the file was cut",
                file.name(),
                file.length()?
            )));
        }
        let lanes = Profile::named(&superblock.profile)?.dies_per_zone();
        let mut medium = Vec::new();
        for zone in 0..superblock.zones {
            let (read, area) =
                file.read_exact_at(Superblock::zone_area(zone), Buffer::new(AREA as usize)).await;
            read?;
            let decoded = decode_zone(area.filled(), superblock.uuid, zone, superblock.zone_capacity, lanes);
            medium.push(match decoded {
                Ok((header, blocks)) => (Ok(header), blocks),
                Err(error) => (Err(error), vec![Block::default(); lanes as usize]),
            });
        }
        Self::build(superblock, medium, settings, Some(file))
    }

    fn build(superblock: Superblock, medium: Medium, settings: Settings, file: Option<&File>) -> Result<Zns> {
        let profile = Profile::named(&superblock.profile)?;
        let geometry = geometry(&superblock, &settings, file.is_none())?;
        let layout = Layout::new(&profile, superblock.zone_capacity);
        let reliability = Reliability::new(&profile, superblock.seed, superblock.endurance);
        let mut resources = Resources {
            max_open: settings.max_open,
            max_active: settings.max_active,
            ..Resources::default()
        };
        let slots = medium.into_iter().enumerate().map(|(index, (header, blocks))| {
            let index = index as u32;
            let row = layout.place(index, 0).block;
            let ends = (0..layout.lanes).map(|lane| reliability.last_erase(layout.die(index, lane), row));
            let trouble = header.as_ref().err().map(ToString::to_string);
            let header = header.unwrap_or(ZoneHeader { state: Stored::Offline, ..new_header() });
            let mut zone =
                Zone::stored(&header, blocks, ends.collect(), superblock.clean, superblock.zone_capacity);
            zone.trouble = trouble;
            resources.moved(State::Empty, zone.machine.state);
            Slot { zone: Mutex::new(zone), gate: Gate::default() }
        });
        let slots = slots.collect();
        let timing = Timing { schedule: Schedule::new(&profile), random: Random::new(superblock.seed) };
        let drive = Drive {
            geometry,
            layout,
            reliability,
            faults: settings.faults,
            timed: settings.timed,
            slots,
            resources: Mutex::new(resources),
            timing: Mutex::new(timing),
            superblock: Mutex::new(superblock),
            file: file.map(File::share).transpose()?,
            epoch: AtomicU64::new(0),
            requests: AtomicU32::new(0),
            idle: Gate::default(),
            stopped: AtomicBool::new(false),
            opened: runtime::now(),
            counters: Counters::default(),
            profile,
        };
        Ok(Zns { drive: Arc::new(drive) })
    }

    /// Superblock, as it was when the drive was opened.
    pub fn superblock(&self) -> Superblock {
        lock(&self.drive.superblock).clone()
    }

    fn access(&self) -> Result<Access> {
        let file = self.drive.file.as_ref().map(|file| file.here()).transpose()?;
        Ok(Access { file, epoch: self.drive.epoch.load(Ordering::Acquire) })
    }

    /// Cuts the power: calls in flight fail, and handles become unusable. `power.rs` has the details.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the power is off; errors of the file.
    pub async fn power_off(&self) -> Result<()> {
        let file = self.access()?.file;
        self.drive.cut(file.as_ref()).await
    }

    /// Switches the power on. Afterwards new handles can be opened.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the power is on.
    pub fn power_on(&self) -> Result<()> {
        self.drive.power_on()
    }

    /// Ages the drive by `hours`, during which its cells lose charge.
    pub fn age(&self, hours: u64) {
        let mut superblock = lock(&self.drive.superblock);
        superblock.clock = superblock.clock.saturating_add(hours.saturating_mul(3600));
    }

    /// Puts a zone into the state Read Only or Offline, as a failure of its flash does.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a zone that doesn't exist, and for changing an offline one to read-only.
    pub async fn fail_zone(&self, zone: ZoneIndex, to: State) -> Result<()> {
        self.drive.geometry.check_zone(zone)?;
        {
            let mut guard = self.drive.slot(zone).lock();
            if guard.machine.state == State::Offline && to == State::ReadOnly {
                return Err(Error::invalid(format!("zone {zone} is offline: it can't become read-only")));
            }
            self.drive.fail_zone(&mut guard, to, "by a message".into());
        }
        self.drive.write_header(&self.access()?, zone).await
    }
}

fn new_header() -> ZoneHeader {
    ZoneHeader {
        state: Stored::Empty,
        stale: false,
        generation: runtime::random_u64() % FIRST_GENERATIONS + 1,
        write_pointer: 0,
        begun: 0,
        key: [0; 32],
    }
}

/// Reads both superblocks and returns the newer one; clean only if both agree.
async fn read_superblock(file: &File) -> Result<Superblock> {
    let length = file.length()?.min(2 * AREA);
    let (read, bytes) = file.read_exact_at(0, Buffer::new(length as usize)).await;
    read?;
    let copy = |copy: usize| {
        let rest = bytes.filled().get(copy * AREA as usize..).unwrap_or_default();
        Superblock::decode(rest)
    };
    let (first, second) = (copy(0), copy(1));
    let both = first.is_ok() && second.is_ok();
    let newest = sector::newest([first, second], |superblock| superblock.sequence);
    let mut superblock = newest.map_err(|error| {
        error.in_context(file.name().to_owned()).with_detail(format!(
            "{}: {}; expected a drive; siltstone format --force makes a new one, which loses the contents",
            file.name(),
            error.detail()
        ))
    })?;
    superblock.clean &= both;
    Ok(superblock)
}

impl Part for Zns {
    fn kind(&self) -> &'static str {
        KIND.name
    }

    fn status(&self) -> Call<'_, Status> {
        Call::ready(self.status_now())
    }

    fn message<'a>(&'a self, message: &'a str) -> Call<'a, Result<String>> {
        self.tell_text(&KIND, message)
    }

    fn close(&self) -> Call<'_, Result<()>> {
        Call::new(async move {
            if self.drive.is_off() {
                return Ok(());
            }
            let access = self.access()?;
            self.drive.stop(&access).await
        })
    }
}

impl Tell for Zns {
    type Message = ZnsMessage;

    fn tell(&self, message: ZnsMessage) -> Call<'_, Result<String>> {
        Call::new(async move {
            match message {
                ZnsMessage::PowerOff => self.power_off().await?,
                ZnsMessage::PowerOn => self.power_on()?,
                ZnsMessage::Age(hours) => self.age(hours),
                ZnsMessage::ReadOnly(zone) => self.fail_zone(ZoneIndex(zone), State::ReadOnly).await?,
                ZnsMessage::Offline(zone) => self.fail_zone(ZoneIndex(zone), State::Offline).await?,
                ZnsMessage::Zones => return Ok(self.zones_now().to_string()),
                ZnsMessage::Wear => return Ok(self.wear_now().to_string()),
            }
            Ok(String::new())
        })
    }
}

impl ZonesPart for Zns {
    fn geometry(&self) -> &ZoneGeometry {
        &self.drive.geometry
    }

    fn open(&self) -> Call<'_, Result<Rc<dyn Zones>>> {
        Call::new(async move {
            if self.drive.is_off() {
                return Err(Error::closed("the drive has no power: send it the message power-on"));
            }
            let handle = Handle { drive: self.drive.clone(), access: self.access()? };
            Ok(Rc::new(handle) as Rc<dyn Zones>)
        })
    }
}

struct Handle {
    drive: Arc<Drive>,
    access: Access,
}

impl Handle {
    fn both(&self) -> (Arc<Drive>, Access) {
        (self.drive.clone(), self.access.clone())
    }
}

impl Zones for Handle {
    fn geometry(&self) -> &ZoneGeometry {
        &self.drive.geometry
    }

    fn append(&self, zone: ZoneIndex, payload: Payload) -> Call<'_, Result<ZoneAddress>> {
        if let Err(error) = self.drive.geometry.check_append(zone, payload.len()) {
            return Call::ready(Err(error));
        }
        let (drive, access) = self.both();
        runtime::carry(async move { drive.append(&access, zone, None, payload).await })
    }

    fn append_at(&self, at: ZoneAddress, payload: Payload) -> Call<'_, Result<()>> {
        if let Err(error) = self.drive.geometry.check_append_at(at, payload.len()) {
            return Call::ready(Err(error));
        }
        let (drive, access) = self.both();
        runtime::carry(
            async move { drive.append(&access, at.zone, Some(at.offset.0), payload).await.map(drop) },
        )
    }

    fn open(&self, zone: ZoneIndex) -> Call<'_, Result<()>> {
        if let Err(error) = self.drive.geometry.check_zone(zone) {
            return Call::ready(Err(error));
        }
        let (drive, access) = self.both();
        runtime::carry(async move { drive.open(&access, zone).await })
    }

    fn close(&self, zone: ZoneIndex) -> Call<'_, Result<()>> {
        if let Err(error) = self.drive.geometry.check_zone(zone) {
            return Call::ready(Err(error));
        }
        let (drive, access) = self.both();
        runtime::carry(async move { drive.close(&access, zone).await })
    }

    fn read(&self, at: ZoneAddress, buffer: Buffer) -> Call<'_, ReadOutcome> {
        Call::new(self.drive.read(&self.access, at, buffer))
    }

    fn flush<'a>(&'a self, zones: &'a [ZoneIndex]) -> Call<'a, Result<()>> {
        if let Err(error) = zones.iter().try_for_each(|zone| self.drive.geometry.check_zone(*zone)) {
            return Call::ready(Err(error));
        }
        let ((drive, access), zones) = (self.both(), zones.to_vec());
        runtime::carry(async move {
            let flushes = zones.iter().map(|zone| drive.flush(&access, *zone));
            runtime::join_all(flushes).await.into_iter().collect()
        })
    }

    fn finish(&self, zone: ZoneIndex) -> Call<'_, Result<()>> {
        if let Err(error) = self.drive.geometry.check_zone(zone) {
            return Call::ready(Err(error));
        }
        let (drive, access) = self.both();
        runtime::carry(async move { drive.finish(&access, zone).await })
    }

    fn reset(&self, zone: ZoneIndex, erase: EraseGuarantee) -> Call<'_, Result<u64>> {
        if let Err(error) = self.drive.geometry.check_zone(zone) {
            return Call::ready(Err(error));
        }
        let (drive, access) = self.both();
        runtime::carry(async move { drive.reset(&access, zone, erase).await })
    }

    fn report(&self, first: ZoneIndex, count: u32) -> Call<'_, Result<Vec<ZoneReport>>> {
        let alive = self.drive.check_alive(self.access.epoch);
        Call::ready(alive.and_then(|()| self.drive.report(first, count)))
    }
}

/// Opens and locks the file of a drive; `None` if it doesn't exist.
pub(crate) async fn lock_file(path: &Path) -> Result<Option<File>> {
    let attempt = async || {
        let file = match File::open(path, OpenOptions::read_write()).await {
            Err(Error::NotFound(_)) => return Ok(None),
            other => other?,
        };
        file.lock(true).map_err(|error| match error {
            Error::Busy(_) => Error::busy(format!(
                "{} is in use by another stack, or twice in this one: stop the other one first, or take another file",
                path.display()
            )),
            other => other,
        })?;
        Ok(Some(file))
    };
    runtime::retry_while_busy(runtime::file::RESTART_LIMIT, attempt).await
}
