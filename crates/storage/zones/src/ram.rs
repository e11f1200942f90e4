//! Zones in memory with the weakest guarantees of the contract: a model for tests, not a fast store.
//!
//! - Appends land out of order: each waits a random number of turns before it takes its offset, so addresses
//!   don't follow the order of submission, not even within one task. An append with a wanted address has it
//!   from its submission; earlier appends land below it, later ones above.
//! - Appends are durable only once their zone is finished; `flush` finishes the zones that it is given. With
//!   [`Durable::OnFlush`] a flush makes them durable and leaves the zone open.
//! - [`RamZones::crash`] is a power cut: of the appends to zones that weren't finished some survive, some
//!   don't, some in part, and those zones are interrupted.
//!
//! Memory is bounded by the number of zones times their capacity. Shards share each zone with a mutex that is
//! never held over an await. Randomness comes from the runtime, so a simulation's seed decides it.

use crate::errors;
use crate::gate::Gate;
use crate::limits::Limits;
use block::{
    Buffer, Call, Durable, EraseGuarantee, Error, Part, Payload, ReadOutcome, Result, Status, ZoneAddress,
    ZoneGeometry, ZoneIndex, ZoneReport, ZoneState, Zones, ZonesPart,
};
use runtime::Random;
use stack::{Arguments, Built, Contract, Key, Kind, Metric, Shape, ValueKind};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// `ramzones(zones=64, zone_size=1MiB)`.
pub const KIND: Kind = Kind {
    name: "ramzones",
    contract: Contract::Zones,
    summary: "zones in memory: out of order, durable on finish; for tests",
    keys: &[
        Key::optional("zones", ValueKind::Integer { min: 1, max: 1 << 20 }, "number of zones").or("16"),
        Key::optional("zone_size", ValueKind::Size, "capacity of a zone").or("1MiB"),
        Key::optional("granularity", ValueKind::Size, "unit of appends and reads").or("512"),
        Key::optional("max_append", ValueKind::Size, "largest append").or("256KiB"),
        MAX_OPEN,
        MAX_ACTIVE,
        Key::optional(
            "durable",
            ValueKind::Choice(&["finish", "flush"]),
            "moment at which a simulated power cut keeps appends; finish: a flush finishes its zones",
        )
        .or("finish"),
    ],
    messages: &[],
    metrics: &[METRICS],
    shareable: false,
    example: "ramzones(zones=64, zone_size=1MiB)",
    plan: |arguments| {
        let geometry = RamZones::new(from_arguments(arguments)?)?.shared.geometry.clone();
        Ok(Shape::of_zones(geometry))
    },
    build: |arguments| {
        Call::new(async move { Ok(Built::Zones(Arc::new(RamZones::new(from_arguments(&arguments)?)?))) })
    },
};

/// Numbers of the status for monitoring systems.
const METRICS: &[Metric] = &[
    Metric::gauge("zones", "zones", "Zones of the part"),
    Metric::gauge("memory_bytes", "memory_bytes", "Memory that the part has taken"),
];

/// Key of [`ZoneGeometry::max_open`].
pub(crate) const MAX_OPEN: Key = Key::optional(
    "max_open",
    ValueKind::Integer { min: 0, max: u32::MAX as u64 },
    "limit of open zones; 0 is no limit",
)
.or("0");
/// Key of [`ZoneGeometry::max_active`].
pub(crate) const MAX_ACTIVE: Key = Key::optional(
    "max_active",
    ValueKind::Integer { min: 0, max: u32::MAX as u64 },
    "limit of active zones (begun and not finished); 0 is no limit",
)
.or("0");

/// Value of a key whose declared range fits 32 bits.
pub(crate) fn small(arguments: &Arguments, key: &str) -> Result<u32> {
    let value = arguments.integer(key)?;
    u32::try_from(value).map_err(|_| Error::overflow(format!("{key} {value}: expected at most {}", u32::MAX)))
}

fn from_arguments(arguments: &Arguments) -> Result<Options> {
    let granularity = arguments.size("granularity")?;
    let granularity = u32::try_from(granularity).map_err(|_| {
        arguments.refuse("granularity", format!("granularity {granularity}: expected less than 4 GiB"))
    })?;
    Ok(Options {
        zones: small(arguments, "zones")?,
        zone_size: arguments.size("zone_size")?,
        granularity,
        max_append: arguments.size("max_append")?,
        max_open: small(arguments, "max_open")?,
        max_active: small(arguments, "max_active")?,
        durable: match arguments.choice("durable")? {
            "flush" => Durable::OnFlush,
            _ => Durable::OnFinish,
        },
    })
}

/// Limit of the turns that an append waits before it lands.
const MAX_TURNS: u64 = 6;

/// Geometry of zones in memory.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Number of zones.
    pub zones: u32,
    /// Capacity of a zone, in bytes.
    pub zone_size: u64,
    /// Unit of appends and reads, in bytes.
    pub granularity: u32,
    /// Largest append, in bytes.
    pub max_append: u64,
    /// Limit of open zones; 0 is no limit.
    pub max_open: u32,
    /// Limit of active zones; 0 is no limit.
    pub max_active: u32,
    /// Moment at which appends are durable.
    pub durable: Durable,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            zones: 16,
            zone_size: 1 << 20,
            granularity: 512,
            max_append: 1 << 18,
            max_open: 0,
            max_active: 0,
            durable: Durable::OnFinish,
        }
    }
}

/// A set of zones in memory.
#[derive(Debug)]
pub struct RamZones {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    geometry: ZoneGeometry,
    zones: Vec<Slot>,
    limits: Limits,
    /// Number of crashes. A call that began before a crash ends with an error and without an effect.
    epoch: AtomicU64,
}

#[derive(Debug)]
struct Slot {
    zone: Mutex<Zone>,
    gate: Gate,
}

#[derive(Debug)]
struct Zone {
    state: ZoneState,
    /// Whether a finish or a reset owns the zone; appends wait.
    owned: bool,
    in_flight: u32,
    generation: u64,
    /// Appended bytes, with zeros where an append is in flight.
    bytes: Vec<u8>,
    /// Ranges of the appends that aren't durable, for a crash.
    appends: Vec<Range<usize>>,
    /// End of bytes that were durable when the zone was flushed; a rewind keeps them so.
    flushed: usize,
    /// Write pointer in bytes, after the offsets of appends in flight; after the end of `bytes` only after a
    /// crash.
    write_pointer: u64,
    /// Regions that appends in flight fill in any order, by their first byte, with the filled length. An
    /// append at an address ends the last region.
    regions: BTreeMap<u64, u64>,
    /// First byte of the region that the next append joins.
    region: u64,
}

impl Zone {
    fn new() -> Self {
        Zone {
            state: ZoneState::Empty,
            owned: false,
            in_flight: 0,
            generation: 1,
            bytes: Vec::new(),
            appends: Vec::new(),
            flushed: 0,
            write_pointer: 0,
            regions: BTreeMap::new(),
            region: 0,
        }
    }

    /// Reserves space for an append, and its offset if that is fixed. Returns the region of the append, a
    /// region of its own for a fixed offset.
    fn reserve(&mut self, length: u64, is_fixed: bool) -> u64 {
        let start = self.write_pointer;
        self.write_pointer += length;
        let end = self.bytes.len().max(self.write_pointer as usize);
        self.bytes.resize(end, 0);
        self.in_flight += 1;
        if is_fixed {
            self.regions.insert(start, start);
            self.region = self.write_pointer;
            return start;
        }
        let region = self.region;
        self.regions.entry(region).or_insert(region);
        region
    }

    /// Puts an append in flight at the next free offset of its region.
    fn land(&mut self, region: u64, payload: &Payload) -> u64 {
        let next = self.regions.entry(region).or_insert(region);
        let start = *next as usize;
        *next += payload.len() as u64;
        let mut at = start;
        for slice in payload.slices() {
            self.bytes[at..at + slice.len()].copy_from_slice(slice);
            at += slice.len();
        }
        let start_of_unflushed = start.max(self.flushed);
        if start_of_unflushed < at {
            self.appends.push(start_of_unflushed..at);
        }
        self.in_flight -= 1;
        if self.in_flight == 0 {
            self.regions.clear();
            self.region = self.write_pointer;
        }
        start as u64
    }

    /// Makes the appends that have landed durable.
    fn flush(&mut self) {
        self.appends.clear();
        if self.in_flight == 0 {
            self.flushed = self.flushed.max(self.write_pointer as usize);
        }
    }

    /// Applies a power cut to a zone that wasn't finished.
    fn crash(&mut self, geometry: &ZoneGeometry, random: &mut Random) {
        (self.owned, self.in_flight) = (false, 0);
        self.regions.clear();
        if !self.state.is_active() {
            return;
        }
        for append in std::mem::take(&mut self.appends) {
            let whole = random.below(3);
            for granule in self.bytes[append].chunks_mut(geometry.append_granularity as usize) {
                if whole == 0 || (whole == 1 && random.below(2) == 0) {
                    granule.fill(random.below(2) as u8 * 0xA5);
                }
            }
        }
        self.state = ZoneState::Interrupted;
        self.write_pointer = geometry.zone_capacity;
    }
}

impl RamZones {
    /// Creates empty zones.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a geometry out of range.
    pub fn new(options: Options) -> Result<Self> {
        let Options { zones, zone_size, granularity, max_append, max_open, max_active, durable } = options;
        let unit = u64::from(granularity);
        if unit == 0 || zone_size == 0 || zone_size % unit != 0 || zone_size > isize::MAX as u64 {
            return Err(Error::invalid(format!(
                "zone_size {zone_size}: expected a multiple of the granularity, {granularity}"
            )));
        }
        if max_append < unit || max_append % unit != 0 || zones == 0 {
            return Err(Error::invalid(format!(
                "{zones} zones, max_append {max_append}: expected at least one zone and a multiple of the \
                 granularity, {granularity}"
            )));
        }
        let geometry = ZoneGeometry {
            zones,
            zone_size,
            zone_capacity: zone_size,
            append_granularity: granularity,
            read_granularity: granularity,
            max_append: max_append.min(zone_size),
            max_open,
            max_active,
            durable,
            erase: EraseGuarantee::Erased,
        };
        let slot = || Slot { zone: Mutex::new(Zone::new()), gate: Gate::default() };
        let shared = Shared {
            geometry,
            zones: (0..zones).map(|_| slot()).collect(),
            limits: Limits::new(max_open, max_active),
            epoch: AtomicU64::new(0),
        };
        Ok(RamZones { shared: Arc::new(shared) })
    }

    /// Cuts the power: every zone that was begun and not finished becomes interrupted, with random holes in
    /// place of its appends, and open handles become unusable. Calls in flight fail and have no effect.
    pub fn crash(&self, random: &mut Random) {
        self.shared.epoch.fetch_add(1, Ordering::AcqRel);
        for slot in &self.shared.zones {
            let mut zone = slot.lock();
            let before = zone.state;
            zone.crash(&self.shared.geometry, random);
            self.shared.limits.moved(before, zone.state);
            drop(zone);
            slot.gate.open();
        }
    }
}

impl Part for RamZones {
    fn kind(&self) -> &'static str {
        KIND.name
    }

    fn status(&self) -> Call<'_, Status> {
        let mut status = Status::new();
        let bytes: u64 = self.shared.zones.iter().map(|slot| slot.lock().bytes.capacity() as u64).sum();
        status.insert("zones".into(), self.shared.geometry.zones.into());
        status.insert("memory_bytes".into(), bytes.into());
        Call::ready(status)
    }

    /// Finishes every zone that was begun, where only finished zones are durable; closes it otherwise.
    fn close(&self) -> Call<'_, Result<()>> {
        Call::new(async move {
            if self.shared.geometry.durable == Durable::OnFlush {
                self.shared.stop();
                return Ok(());
            }
            let epoch = self.shared.epoch.load(Ordering::Acquire);
            for zone in (0..self.shared.geometry.zones).map(ZoneIndex) {
                if self.shared.slot(zone).lock().state != ZoneState::Empty {
                    self.shared.finish(zone, epoch).await?;
                }
            }
            Ok(())
        })
    }
}

impl ZonesPart for RamZones {
    fn geometry(&self) -> &ZoneGeometry {
        &self.shared.geometry
    }

    fn can_rewind(&self) -> bool {
        true
    }

    fn open(&self) -> Call<'_, Result<Rc<dyn Zones>>> {
        let shared = self.shared.clone();
        let epoch = shared.epoch.load(Ordering::Acquire);
        Call::ready(Ok(Rc::new(Handle { shared, epoch })))
    }
}

impl Slot {
    fn lock(&self) -> MutexGuard<'_, Zone> {
        self.zone.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    fn slot(&self, zone: ZoneIndex) -> &Slot {
        &self.zones[zone.0 as usize]
    }

    fn check_alive(&self, epoch: u64) -> Result<()> {
        match self.epoch.load(Ordering::Acquire) == epoch {
            true => Ok(()),
            false => Err(Error::closed("the power was cut: open the zones again")),
        }
    }

    /// Locks a zone without an owner, unless the zones crashed. The epoch is checked under the lock, so a
    /// change made under the lock is made before the crash.
    async fn lock_unowned(&self, zone: ZoneIndex, epoch: u64) -> Result<MutexGuard<'_, Zone>> {
        let slot = self.slot(zone);
        loop {
            {
                let guard = slot.lock();
                self.check_alive(epoch)?;
                if !guard.owned {
                    return Ok(guard);
                }
            }
            let free = || !slot.lock().owned || self.check_alive(epoch).is_err();
            slot.gate.wait_until(free).await;
        }
    }

    /// Opens a zone that is empty or closed.
    fn open_locked(&self, zone: &mut Zone, index: ZoneIndex, to: ZoneState) -> Result<()> {
        let opened = self.limits.open_one(zone.state);
        opened.map_err(|busy| busy.in_context(format!("opening zone {index}")))?;
        zone.state = to;
        Ok(())
    }

    /// Appends, at byte `wanted` if that is given.
    async fn append(
        &self,
        zone: ZoneIndex,
        wanted: Option<u64>,
        payload: Payload,
        epoch: u64,
    ) -> Result<ZoneAddress> {
        let region = {
            let mut guard = self.lock_unowned(zone, epoch).await?;
            if !(guard.state.is_open() || matches!(guard.state, ZoneState::Empty | ZoneState::Closed)) {
                return Err(errors::wrong_state(zone, guard.state));
            }
            if let Some(wanted) = wanted.filter(|wanted| *wanted != guard.write_pointer) {
                return Err(errors::misplaced(zone, wanted, guard.write_pointer));
            }
            if !guard.state.is_open() {
                self.open_locked(&mut guard, zone, ZoneState::ImplicitlyOpen)?;
            }
            let left = self.geometry.zone_capacity - guard.write_pointer;
            if payload.len() as u64 > left {
                return Err(errors::exceeds_zone(zone, payload.len() as u64, left));
            }
            guard.reserve(payload.len() as u64, wanted.is_some())
        };
        for _ in 0..runtime::random_u64() % (MAX_TURNS + 1) {
            runtime::yield_now().await;
        }
        let slot = self.slot(zone);
        let mut guard = slot.lock();
        self.check_alive(epoch)?;
        let landed = guard.land(region, &payload);
        let awaited = guard.owned && guard.in_flight == 0;
        drop(guard);
        if awaited {
            slot.gate.open();
        }
        Ok(ZoneAddress::new(zone.0, landed))
    }

    /// Records a clean stop: open zones are closed, and their appends durable.
    fn stop(&self) {
        for slot in &self.zones {
            let mut zone = slot.lock();
            zone.flush();
            if zone.state.is_open() {
                let before = std::mem::replace(&mut zone.state, ZoneState::Closed);
                self.limits.moved(before, ZoneState::Closed);
            }
        }
    }

    async fn open(&self, zone: ZoneIndex, epoch: u64) -> Result<()> {
        let mut guard = self.lock_unowned(zone, epoch).await?;
        match guard.state {
            ZoneState::Empty | ZoneState::Closed => {
                self.open_locked(&mut guard, zone, ZoneState::ExplicitlyOpen)
            }
            state if state.is_open() => {
                guard.state = ZoneState::ExplicitlyOpen;
                Ok(())
            }
            state => Err(errors::wrong_state(zone, state)),
        }
    }

    async fn close(&self, zone: ZoneIndex, epoch: u64) -> Result<()> {
        let mut guard = self.lock_unowned(zone, epoch).await?;
        match guard.state {
            ZoneState::Closed => Ok(()),
            state if state.is_open() => {
                guard.state = ZoneState::Closed;
                self.limits.moved(state, ZoneState::Closed);
                Ok(())
            }
            state => Err(errors::wrong_state(zone, state)),
        }
    }

    /// Becomes the owner of a zone once it has none, waits for appends in flight, and changes the zone.
    async fn change<T>(
        &self,
        zone: ZoneIndex,
        epoch: u64,
        unneeded: impl Fn(&Zone) -> Option<T>,
        change: impl FnOnce(&mut Zone) -> T,
    ) -> Result<T> {
        let slot = self.slot(zone);
        {
            let mut guard = self.lock_unowned(zone, epoch).await?;
            if let Some(result) = unneeded(&guard) {
                return Ok(result);
            }
            guard.owned = true;
        }
        let idle = || slot.lock().in_flight == 0 || self.check_alive(epoch).is_err();
        slot.gate.wait_until(idle).await;
        let mut guard = slot.lock();
        self.check_alive(epoch)?;
        let before = guard.state;
        let result = change(&mut guard);
        guard.owned = false;
        self.limits.moved(before, guard.state);
        drop(guard);
        slot.gate.open();
        Ok(result)
    }

    async fn finish(&self, zone: ZoneIndex, epoch: u64) -> Result<()> {
        let full = |zone: &Zone| (zone.state == ZoneState::Full).then_some(());
        let change = |zone: &mut Zone| {
            zone.state = ZoneState::Full;
            zone.appends = Vec::new();
            zone.bytes.shrink_to_fit();
        };
        self.change(zone, epoch, full, change).await
    }

    async fn reset(&self, zone: ZoneIndex, epoch: u64) -> Result<u64> {
        let change = |zone: &mut Zone| {
            zone.bytes.fill(0);
            *zone = Zone { generation: zone.generation + 1, ..Zone::new() };
            zone.generation
        };
        self.change(zone, epoch, |_| None, change).await
    }

    async fn rewind(&self, at: ZoneAddress, epoch: u64) -> Result<()> {
        let change = |zone: &mut Zone| {
            if !zone.state.is_active() || at.offset.0 > zone.write_pointer {
                return Err(Error::invalid(format!(
                    "rewinding to {at}: expected a begun zone, and at most its write pointer, byte {}",
                    zone.write_pointer
                )));
            }
            (zone.state, zone.write_pointer, zone.region) = (ZoneState::Closed, at.offset.0, at.offset.0);
            // Bytes after the write pointer stay: they may be durable.
            Ok(())
        };
        self.change(at.zone, epoch, |_| None, change).await?
    }

    fn read(&self, at: ZoneAddress, buffer: &mut Buffer) -> Result<()> {
        let length = buffer.len();
        self.geometry.check_read(at, length)?;
        let zone = self.slot(at.zone).lock();
        let start = at.offset.0 as usize;
        if (start + length) as u64 > zone.write_pointer {
            return Err(errors::exceeds_write_pointer(at, length, zone.write_pointer));
        }
        let there = zone.bytes.get(start..).unwrap_or_default();
        buffer.append(&there[..length.min(there.len())]);
        buffer.append_zeroes(buffer.missing());
        Ok(())
    }

    fn report(&self, first: ZoneIndex, count: u32) -> Result<Vec<ZoneReport>> {
        if first.0 > self.geometry.zones {
            return self.geometry.check_zone(first).map(|()| Vec::new());
        }
        let end = first.0.saturating_add(count).min(self.geometry.zones);
        let report = |index| {
            let zone = self.slot(ZoneIndex(index)).lock();
            let Zone { state, write_pointer, generation, .. } = *zone;
            ZoneReport { zone: ZoneIndex(index), state, write_pointer, generation }
        };
        Ok((first.0..end).map(report).collect())
    }
}

struct Handle {
    shared: Arc<Shared>,
    epoch: u64,
}

impl Zones for Handle {
    fn geometry(&self) -> &ZoneGeometry {
        &self.shared.geometry
    }

    fn append(&self, zone: ZoneIndex, payload: Payload) -> Call<'_, Result<ZoneAddress>> {
        if let Err(error) = self.shared.geometry.check_append(zone, payload.len()) {
            return Call::ready(Err(error));
        }
        let (shared, epoch) = (self.shared.clone(), self.epoch);
        runtime::carry(async move { shared.append(zone, None, payload, epoch).await })
    }

    fn append_at(&self, at: ZoneAddress, payload: Payload) -> Call<'_, Result<()>> {
        if let Err(error) = self.shared.geometry.check_append_at(at, payload.len()) {
            return Call::ready(Err(error));
        }
        let (shared, epoch) = (self.shared.clone(), self.epoch);
        runtime::carry(
            async move { shared.append(at.zone, Some(at.offset.0), payload, epoch).await.map(drop) },
        )
    }

    fn open(&self, zone: ZoneIndex) -> Call<'_, Result<()>> {
        if let Err(error) = self.shared.geometry.check_zone(zone) {
            return Call::ready(Err(error));
        }
        let (shared, epoch) = (self.shared.clone(), self.epoch);
        runtime::carry(async move { shared.open(zone, epoch).await })
    }

    fn close(&self, zone: ZoneIndex) -> Call<'_, Result<()>> {
        if let Err(error) = self.shared.geometry.check_zone(zone) {
            return Call::ready(Err(error));
        }
        let (shared, epoch) = (self.shared.clone(), self.epoch);
        runtime::carry(async move { shared.close(zone, epoch).await })
    }

    fn read(&self, at: ZoneAddress, mut buffer: Buffer) -> Call<'_, ReadOutcome> {
        buffer.clear();
        let alive = self.shared.check_alive(self.epoch);
        let outcome = alive.and_then(|()| self.shared.read(at, &mut buffer));
        Call::ready((outcome, buffer))
    }

    fn flush<'a>(&'a self, zones: &'a [ZoneIndex]) -> Call<'a, Result<()>> {
        if let Err(error) = zones.iter().try_for_each(|zone| self.shared.geometry.check_zone(*zone)) {
            return Call::ready(Err(error));
        }
        let (shared, epoch, zones) = (self.shared.clone(), self.epoch, zones.to_vec());
        if shared.geometry.durable == Durable::OnFlush {
            let kept = shared.check_alive(epoch);
            if kept.is_ok() {
                zones.iter().for_each(|zone| shared.slot(*zone).lock().flush());
            }
            return Call::ready(kept);
        }
        runtime::carry(async move {
            for zone in zones {
                // An empty zone has no appends, so a finish is unnecessary.
                if shared.slot(zone).lock().state != ZoneState::Empty {
                    shared.finish(zone, epoch).await?;
                }
            }
            Ok(())
        })
    }

    fn finish(&self, zone: ZoneIndex) -> Call<'_, Result<()>> {
        if let Err(error) = self.shared.geometry.check_zone(zone) {
            return Call::ready(Err(error));
        }
        let (shared, epoch) = (self.shared.clone(), self.epoch);
        runtime::carry(async move { shared.finish(zone, epoch).await })
    }

    fn reset(&self, zone: ZoneIndex, erase: EraseGuarantee) -> Call<'_, Result<u64>> {
        if let Err(error) = self.shared.geometry.check_zone(zone) {
            return Call::ready(Err(error));
        }
        if erase > self.shared.geometry.erase {
            return Call::ready(Err(Error::unsupported(format!(
                "resetting zone {zone} with the guarantee \"{erase}\": zones in memory give at most \"{}\"",
                self.shared.geometry.erase
            ))));
        }
        let (shared, epoch) = (self.shared.clone(), self.epoch);
        runtime::carry(async move { shared.reset(zone, epoch).await })
    }

    fn rewind(&self, at: ZoneAddress) -> Call<'_, Result<()>> {
        if let Err(error) = self.shared.geometry.check_read(at, 0) {
            return Call::ready(Err(error));
        }
        let (shared, epoch) = (self.shared.clone(), self.epoch);
        runtime::carry(async move { shared.rewind(at, epoch).await })
    }

    fn report(&self, first: ZoneIndex, count: u32) -> Call<'_, Result<Vec<ZoneReport>>> {
        let alive = self.shared.check_alive(self.epoch);
        Call::ready(alive.and_then(|()| self.shared.report(first, count)))
    }
}
