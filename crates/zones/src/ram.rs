//! Zones in memory that behave as badly as the contract allows: a model for tests, not a fast store.
//!
//! - Appends land out of order: each waits a random number of turns before it takes its place, so addresses
//!   don't follow the order of submission, not even of one task.
//! - Appends are durable only once their zone is finished; `flush` finishes the zones that it is given.
//! - [`RamZones::crash`] is a power cut: of the appends to zones that weren't finished some survive, some
//!   don't, some in part, and those zones are closed.
//!
//! Memory is bounded by the number of zones times their capacity. Shards share each zone behind a mutex that is
//! never held over an await. Chance comes from the runtime, so a simulation's seed decides it.

use crate::gate::Gate;
use crate::limits::Limits;
use block::{
    Buffer, Call, Durable, EraseGuarantee, Error, Part, Payload, ReadOutcome, Result, Status, ZoneAddress,
    ZoneGeometry, ZoneIndex, ZoneReport, ZoneState, Zones, ZonesPart,
};
use runtime::Random;
use stack::{Arguments, Built, Contract, Key, Kind, Shape, ValueKind};
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
        Key::optional("zones", ValueKind::Integer { min: 1, max: 1 << 20 }, "how many zones there are")
            .or("16"),
        Key::optional("zone_size", ValueKind::Size, "how many bytes a zone takes").or("1MiB"),
        Key::optional("granularity", ValueKind::Size, "the unit of appends and reads").or("512"),
        Key::optional("max_append", ValueKind::Size, "the largest append").or("256KiB"),
        MAX_OPEN,
        MAX_ACTIVE,
    ],
    messages: &[],
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

/// The key for [`ZoneGeometry::max_open`].
pub(crate) const MAX_OPEN: Key = Key::optional(
    "max_open",
    ValueKind::Integer { min: 0, max: u32::MAX as u64 },
    "zones open at a time; 0: no limit",
)
.or("0");
/// The key for [`ZoneGeometry::max_active`].
pub(crate) const MAX_ACTIVE: Key = Key::optional(
    "max_active",
    ValueKind::Integer { min: 0, max: u32::MAX as u64 },
    "zones begun and not finished at a time; 0: no limit",
)
.or("0");

/// A whole number whose declared range fits 32 bits.
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
    })
}

/// How many turns an append waits at most before it lands.
const MOST_TURNS: u64 = 6;

/// The shape of zones in memory.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// How many zones there are.
    pub zones: u32,
    /// How many bytes a zone takes.
    pub zone_size: u64,
    /// The unit of appends and reads, in bytes.
    pub granularity: u32,
    /// The largest append, in bytes.
    pub max_append: u64,
    /// How many zones may be open at a time; 0 is no limit.
    pub max_open: u32,
    /// How many zones may be open or closed at a time; 0 is no limit.
    pub max_active: u32,
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
    /// Raised by every crash. A call that began before one ends with an error and without an effect.
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
    /// Somebody finishes or resets the zone; appends wait.
    owned: bool,
    in_flight: u32,
    generation: u64,
    /// What was appended, in order of landing.
    bytes: Vec<u8>,
    /// Where the appends lie, for a crash.
    appends: Vec<Range<usize>>,
    /// In bytes; behind `bytes` only after a crash.
    write_pointer: u64,
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
            write_pointer: 0,
        }
    }

    /// Loses what a power cut loses of a zone that wasn't finished.
    fn crash(&mut self, geometry: &ZoneGeometry, random: &mut Random) {
        (self.owned, self.in_flight) = (false, 0);
        if matches!(self.state, ZoneState::Empty | ZoneState::Full) {
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
        self.state = ZoneState::Closed;
        self.write_pointer = geometry.zone_capacity;
    }
}

impl RamZones {
    /// Empty zones.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a shape that can't be.
    pub fn new(options: Options) -> Result<Self> {
        let Options { zones, zone_size, granularity, max_append, max_open, max_active } = options;
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
            durable: Durable::OnFinish,
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

    /// A power cut: every zone that wasn't finished becomes closed, with random holes where its appends were, and
    /// handles that are open now are dead. Calls in flight fail and have no effect.
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

    /// Finishes every zone that was begun: nothing else makes one durable.
    fn close(&self) -> Call<'_, Result<()>> {
        Call::new(async move {
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

    /// Locks a zone that nobody owns, of a set that didn't crash. The epoch is looked at under the lock, so
    /// what is done before the lock is given back is done before the crash.
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

    async fn append(&self, zone: ZoneIndex, payload: Payload, epoch: u64) -> Result<ZoneAddress> {
        {
            let mut guard = self.lock_unowned(zone, epoch).await?;
            match guard.state {
                ZoneState::Open => {}
                ZoneState::Empty => {
                    let opened = self.limits.open_one();
                    opened.map_err(|busy| busy.in_context(format!("append to empty zone {zone}")))?;
                    guard.state = ZoneState::Open;
                }
                state => {
                    let text = format!("zone {zone} is {state:?}: finish or reset it, and take another");
                    return Err(Error::invalid(text));
                }
            }
            guard.in_flight += 1;
        }
        for _ in 0..runtime::random_u64() % (MOST_TURNS + 1) {
            runtime::yield_now().await;
        }
        let slot = self.slot(zone);
        let mut guard = slot.lock();
        self.check_alive(epoch)?;
        guard.in_flight -= 1;
        let landed = self.land(&mut guard, zone, &payload);
        let awaited = guard.owned && guard.in_flight == 0;
        drop(guard);
        if awaited {
            slot.gate.open();
        }
        landed
    }

    fn land(&self, zone: &mut Zone, index: ZoneIndex, payload: &Payload) -> Result<ZoneAddress> {
        let left = self.geometry.zone_capacity - zone.write_pointer;
        if payload.len() as u64 > left {
            return Err(Error::no_space(format!(
                "append of {} bytes to zone {index}, which has room for {left}: finish it and take another",
                payload.len()
            )));
        }
        let offset = zone.bytes.len();
        payload.slices().iter().for_each(|slice| zone.bytes.extend_from_slice(slice));
        zone.appends.push(offset..zone.bytes.len());
        zone.write_pointer = zone.bytes.len() as u64;
        Ok(ZoneAddress::new(index.0, offset as u64))
    }

    /// Becomes the owner of a zone once nobody else is, waits for appends in flight, and changes the zone.
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

    fn read(&self, at: ZoneAddress, buffer: &mut Buffer) -> Result<()> {
        let length = buffer.len();
        self.geometry.check_read(at, length)?;
        let zone = self.slot(at.zone).lock();
        let start = at.offset.0 as usize;
        if (start + length) as u64 > zone.write_pointer {
            return Err(Error::invalid(format!(
                "read of {length} bytes at {at}: nothing was appended from byte {} on",
                zone.write_pointer
            )));
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
        runtime::carry(async move { shared.append(zone, payload, epoch).await })
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
        runtime::carry(async move {
            for zone in zones {
                // Nothing was appended to an empty zone, so there is nothing to finish.
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

    fn report(&self, first: ZoneIndex, count: u32) -> Call<'_, Result<Vec<ZoneReport>>> {
        let alive = self.shared.check_alive(self.epoch);
        Call::ready(alive.and_then(|()| self.shared.report(first, count)))
    }
}
