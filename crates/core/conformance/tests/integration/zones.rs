//! The suite for zones accepts correct zones and rejects every faulty set.

use block::{
    Buffer, Call, Durable, EraseGuarantee, Error, Part, Payload, ReadOutcome, Result, ZoneAddress,
    ZoneGeometry, ZoneIndex, ZoneReport, ZoneState, Zones, ZonesPart,
};
use conformance::zones::{Options, run};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// Injected fault of a set of zones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    Overlaps,
    WrongAddress,
    ForgetsAppends,
    ReversesSlices,
    AppendsToFull,
    FinishDoesNothing,
    FinishDoesNotWait,
    ResetDoesNotWait,
    ResetKeepsGeneration,
    ReportsOldGeneration,
    ResetKeepsState,
    IgnoresGuarantee,
    RefusedResetEmpties,
    EraseKeepsData,
    NoLimit,
    LimitLeaks,
    RefusedZoneOpens,
    AcceptsUnaligned,
    AcceptsEmpty,
    AcceptsTooLong,
    NoSpaceFills,
    RefusesWhatFits,
    ReadsOtherZone,
    ShowsAfterFailure,
    KeepsUsedBuffer,
    LowPointer,
    DropsAbandoned,
    ShardsApart,
    ForgetsOnClose,
    CloseIsNotDurable,
    FinishLosesTail,
    FinishIsNotDurable,
    CrashLosesFlushed,
    CrashLosesFull,
    CrashLeavesOpen,
    CrashLosesGeneration,
    CrashLowPointer,
    CrashEmptiesZones,
    ContinuesAfterCrash,
    PlaceIgnored,
    MisplacedWrites,
    MisplacedOpens,
    MisplacedSaysNothing,
    OpenDoesNothing,
    OpenIgnoresLimit,
    OpensAfterCrash,
    CloseDoesNothing,
    CloseOfEmpty,
    CloseLosesData,
    CloseKeepsOpenCount,
    ClosedIsRefused,
    ClosesImplicitly,
    AppendMakesImplicit,
    ActiveIgnoresClosed,
    StopKeepsOpen,
}

use Fault as F;
const ALL: [Fault; 55] = [
    F::Overlaps,
    F::WrongAddress,
    F::ForgetsAppends,
    F::ReversesSlices,
    F::AppendsToFull,
    F::FinishDoesNothing,
    F::FinishDoesNotWait,
    F::ResetDoesNotWait,
    F::ResetKeepsGeneration,
    F::ReportsOldGeneration,
    F::ResetKeepsState,
    F::IgnoresGuarantee,
    F::RefusedResetEmpties,
    F::EraseKeepsData,
    F::NoLimit,
    F::LimitLeaks,
    F::RefusedZoneOpens,
    F::AcceptsUnaligned,
    F::AcceptsEmpty,
    F::AcceptsTooLong,
    F::NoSpaceFills,
    F::RefusesWhatFits,
    F::ReadsOtherZone,
    F::ShowsAfterFailure,
    F::KeepsUsedBuffer,
    F::LowPointer,
    F::DropsAbandoned,
    F::ShardsApart,
    F::ForgetsOnClose,
    F::CloseIsNotDurable,
    F::FinishLosesTail,
    F::FinishIsNotDurable,
    F::CrashLosesFlushed,
    F::CrashLosesFull,
    F::CrashLeavesOpen,
    F::CrashLosesGeneration,
    F::CrashLowPointer,
    F::CrashEmptiesZones,
    F::ContinuesAfterCrash,
    F::PlaceIgnored,
    F::MisplacedWrites,
    F::MisplacedOpens,
    F::MisplacedSaysNothing,
    F::OpenDoesNothing,
    F::OpenIgnoresLimit,
    F::OpensAfterCrash,
    F::CloseDoesNothing,
    F::CloseOfEmpty,
    F::CloseLosesData,
    F::CloseKeepsOpenCount,
    F::ClosedIsRefused,
    F::ClosesImplicitly,
    F::AppendMakesImplicit,
    F::ActiveIgnoresClosed,
    F::StopKeepsOpen,
];

const UNIT: usize = 512;
const CAPACITY: usize = 128 * UNIT;
const ZONES: u32 = 8;
const MAX_OPEN: u32 = 4;
const MAX_ACTIVE: u32 = 6;

#[derive(Clone)]
struct Zone {
    state: ZoneState,
    generation: u64,
    bytes: Vec<u8>,
    pointer: usize,
    /// Bytes that a flush has made durable.
    durable: usize,
    durable_generation: u64,
    in_flight: u32,
    owned: bool,
    after_crash: bool,
}

impl Zone {
    fn new(generation: u64) -> Zone {
        Zone {
            state: ZoneState::Empty,
            generation,
            bytes: vec![0; CAPACITY],
            pointer: 0,
            durable: 0,
            durable_generation: generation,
            in_flight: 0,
            owned: false,
            after_crash: false,
        }
    }
}

struct Medium {
    zones: Vec<Zone>,
    /// Number of zones that a faulty count still treats as open.
    leaked: u32,
    appends: u64,
    /// Whether the part is closed.
    stopped: bool,
}

impl Medium {
    /// Opens a zone. The error names the limit that is reached.
    fn open(&mut self, zone: ZoneIndex, to: ZoneState, fault: Fault) -> Result<()> {
        let count =
            |counts: fn(ZoneState) -> bool| self.zones.iter().filter(|zone| counts(zone.state)).count();
        let (open, active) =
            (count(ZoneState::is_open) as u32 + self.leaked, count(ZoneState::is_active) as u32);
        let is_active = self.zones[zone.0 as usize].state.is_active();
        let ignores =
            fault == F::NoLimit || (fault == F::OpenIgnoresLimit && to == ZoneState::ExplicitlyOpen);
        if fault == F::ClosesImplicitly && open == MAX_OPEN && (is_active || active < MAX_ACTIVE) {
            let other = self.zones.iter_mut().find(|zone| zone.state == ZoneState::ImplicitlyOpen);
            if let Some(other) = other {
                other.state = ZoneState::Closed;
                self.zones[zone.0 as usize].state = to;
                return Ok(());
            }
        }
        let beyond_active = !is_active && active >= MAX_ACTIVE && fault != F::ActiveIgnoresClosed;
        if !ignores && (open >= MAX_OPEN || beyond_active) {
            if fault == F::RefusedZoneOpens {
                self.zones[zone.0 as usize].state = ZoneState::Interrupted;
            }
            return Err(Error::busy("too many open zones"));
        }
        self.zones[zone.0 as usize].state = to;
        Ok(())
    }
}

struct TestPart {
    geometry: ZoneGeometry,
    medium: Arc<Mutex<Medium>>,
    alive: Arc<AtomicBool>,
    fault: Fault,
}

impl TestPart {
    fn with(medium: Medium, fault: Fault) -> TestPart {
        let geometry = ZoneGeometry {
            zones: ZONES,
            zone_size: CAPACITY as u64,
            zone_capacity: CAPACITY as u64,
            append_granularity: UNIT as u32,
            read_granularity: UNIT as u32,
            max_append: 40 * UNIT as u64,
            max_open: MAX_OPEN,
            max_active: MAX_ACTIVE,
            durable: Durable::OnFlush,
            erase: EraseGuarantee::Erased,
        };
        TestPart {
            geometry,
            medium: Arc::new(Mutex::new(medium)),
            alive: Arc::new(AtomicBool::new(true)),
            fault,
        }
    }

    fn new(fault: Fault) -> TestPart {
        let zones = (0..ZONES).map(|_| Zone::new(1)).collect();
        TestPart::with(Medium { zones, leaked: 0, appends: 0, stopped: false }, fault)
    }

    /// Part after a power cut.
    fn crash(&self) -> TestPart {
        self.alive.store(false, Ordering::Release);
        let medium = self.medium.lock().unwrap();
        let mut zones = medium.zones.clone();
        for zone in &mut zones {
            (zone.owned, zone.in_flight) = (false, 0);
            if self.fault == F::CrashLosesGeneration {
                zone.generation = zone.durable_generation.max(1) - 1;
            }
            if self.fault == F::FinishIsNotDurable && zone.state == ZoneState::Full {
                zone.bytes[zone.durable..].fill(0xCC);
            }
            if self.fault == F::CrashLosesFull && zone.state == ZoneState::Full {
                zone.bytes.fill(0);
            }
            if self.fault == F::CrashEmptiesZones && zone.state.is_open() {
                *zone = Zone::new(zone.generation);
            }
            if !zone.state.is_active() || self.fault == F::CrashLeavesOpen {
                continue;
            }
            let keep = if self.fault == F::CrashLosesFlushed { zone.durable / 2 } else { zone.durable };
            zone.bytes[keep..].fill(0xCC);
            if medium.stopped {
                continue;
            }
            zone.state = ZoneState::Interrupted;
            zone.after_crash = true;
            zone.pointer = if self.fault == F::CrashLowPointer { zone.durable / 2 } else { CAPACITY };
        }
        TestPart::with(Medium { zones, leaked: 0, appends: 0, stopped: false }, self.fault)
    }
}

impl Part for TestPart {
    fn kind(&self) -> &'static str {
        "test"
    }

    fn close(&self) -> Call<'_, Result<()>> {
        let mut medium = self.medium.lock().unwrap();
        medium.stopped = true;
        let zones = &mut medium.zones;
        if self.fault == F::ForgetsOnClose {
            zones[1].bytes[..UNIT].fill(1);
        }
        if self.fault != F::CloseIsNotDurable {
            zones.iter_mut().for_each(|zone| zone.durable = zone.pointer);
        }
        let open = zones.iter_mut().filter(|zone| zone.state.is_open() && self.fault != F::StopKeepsOpen);
        open.for_each(|zone| zone.state = ZoneState::Closed);
        Call::ready(Ok(()))
    }
}

impl ZonesPart for TestPart {
    fn geometry(&self) -> &ZoneGeometry {
        &self.geometry
    }

    fn open(&self) -> Call<'_, Result<Rc<dyn Zones>>> {
        let medium = match self.fault {
            F::ShardsApart if runtime::current_shard().0 != 0 => TestPart::new(F::None).medium,
            _ => self.medium.clone(),
        };
        self.medium.lock().unwrap().stopped = false;
        let core =
            Core { geometry: self.geometry.clone(), medium, alive: self.alive.clone(), fault: self.fault };
        Call::ready(Ok(Rc::new(Handle(core))))
    }
}

#[derive(Clone)]
struct Core {
    geometry: ZoneGeometry,
    medium: Arc<Mutex<Medium>>,
    alive: Arc<AtomicBool>,
    fault: Fault,
}

struct Handle(Core);

impl Core {
    /// Waits for a condition by polling it on each turn of the run queue.
    async fn wait(&self, zone: ZoneIndex, ready: impl Fn(&Zone) -> bool) {
        while self.alive.load(Ordering::Acquire)
            && !ready(&self.medium.lock().unwrap().zones[zone.0 as usize])
        {
            runtime::yield_now().await;
        }
    }

    /// Runs `work` once the zone has no owner.
    async fn when_unowned<T>(&self, zone: ZoneIndex, work: impl Fn(&mut Medium) -> T) -> T {
        loop {
            self.wait(zone, |zone| !zone.owned).await;
            let mut medium = self.medium.lock().unwrap();
            if !medium.zones[zone.0 as usize].owned || !self.alive.load(Ordering::Acquire) {
                return work(&mut medium);
            }
        }
    }

    fn begin_append(&self, medium: &mut Medium, index: ZoneIndex) -> Result<u64> {
        let fault = self.fault;
        medium.appends += 1;
        let number = medium.appends;
        let zone = &mut medium.zones[index.0 as usize];
        match zone.state {
            ZoneState::ExplicitlyOpen if fault == F::AppendMakesImplicit => {
                zone.state = ZoneState::ImplicitlyOpen;
            }
            state if state.is_open() => {}
            ZoneState::Closed if fault == F::ClosedIsRefused => return Err(Error::invalid("closed")),
            ZoneState::Empty | ZoneState::Closed => medium.open(index, ZoneState::ImplicitlyOpen, fault)?,
            ZoneState::Full if fault == F::AppendsToFull => return Ok(number),
            ZoneState::Interrupted if fault == F::ContinuesAfterCrash && zone.after_crash => {
                (zone.state, zone.pointer) = (ZoneState::ImplicitlyOpen, 0);
            }
            _ => return Err(Error::invalid("full or interrupted")),
        }
        medium.zones[index.0 as usize].in_flight += 1;
        Ok(number)
    }

    /// Waits for all appends in flight, so that the write pointer is after them.
    async fn append_at(self, at: ZoneAddress, bytes: Vec<u8>) -> Result<()> {
        if self.fault == F::PlaceIgnored {
            return self.append(at.zone, bytes).await.map(drop);
        }
        self.own(at.zone, true).await;
        let mut medium = self.medium.lock().unwrap();
        let outcome = self.append_owned(&mut medium, at, &bytes);
        medium.zones[at.zone.0 as usize].owned = false;
        outcome
    }

    fn append_owned(&self, medium: &mut Medium, at: ZoneAddress, bytes: &[u8]) -> Result<()> {
        if !self.alive.load(Ordering::Acquire) {
            return Err(Error::closed("no power"));
        }
        let zone = &medium.zones[at.zone.0 as usize];
        let (state, pointer) = (zone.state, zone.pointer);
        if at.offset.0 != pointer as u64 && (state.is_active() || state == ZoneState::Empty) {
            if self.fault == F::MisplacedOpens {
                self.begin_append(medium, at.zone)?;
                medium.zones[at.zone.0 as usize].in_flight -= 1;
            }
            if self.fault == F::MisplacedWrites && at.offset.0 < pointer as u64 {
                let zone = &mut medium.zones[at.zone.0 as usize];
                zone.bytes[at.offset.0 as usize..][..bytes.len()].copy_from_slice(bytes);
            }
            return Err(Error::misplaced(match self.fault {
                F::MisplacedSaysNothing => "elsewhere".to_owned(),
                _ => format!("expected byte {pointer}"),
            }));
        }
        self.begin_append(medium, at.zone)?;
        let zone = &mut medium.zones[at.zone.0 as usize];
        zone.in_flight = zone.in_flight.saturating_sub(1);
        if bytes.len() > CAPACITY - zone.pointer {
            return Err(Error::no_space("no room"));
        }
        zone.bytes[zone.pointer..][..bytes.len()].copy_from_slice(bytes);
        zone.pointer += bytes.len();
        Ok(())
    }

    /// Opens or closes a zone.
    async fn change(self, index: ZoneIndex, opens: bool) -> Result<()> {
        self.when_unowned(index, |medium| self.change_unowned(medium, index, opens)).await
    }

    fn change_unowned(&self, medium: &mut Medium, index: ZoneIndex, opens: bool) -> Result<()> {
        if !self.alive.load(Ordering::Acquire) {
            return Err(Error::closed("no power"));
        }
        let state = medium.zones[index.0 as usize].state;
        let zone = &mut medium.zones[index.0 as usize];
        match (opens, state) {
            (true, _) if self.fault == F::OpenDoesNothing => {}
            (true, ZoneState::Interrupted) if self.fault == F::OpensAfterCrash => {}
            (true, state) if state.is_open() => zone.state = ZoneState::ExplicitlyOpen,
            (true, ZoneState::Empty | ZoneState::Closed) => {
                medium.open(index, ZoneState::ExplicitlyOpen, self.fault)?;
            }
            (false, ZoneState::Empty) if self.fault == F::CloseOfEmpty => zone.state = ZoneState::Closed,
            (false, state) if state.is_open() && self.fault == F::CloseDoesNothing => {}
            (false, state) if state.is_open() || state == ZoneState::Closed => {
                zone.state = ZoneState::Closed;
                if self.fault == F::CloseLosesData && zone.pointer >= UNIT {
                    zone.bytes[..UNIT].fill(0);
                }
                if self.fault == F::CloseKeepsOpenCount && state.is_open() {
                    medium.leaked += 1;
                }
            }
            _ => return Err(Error::invalid("not in a state for it")),
        }
        Ok(())
    }

    async fn append(self, index: ZoneIndex, bytes: Vec<u8>) -> Result<ZoneAddress> {
        let number = self.when_unowned(index, |medium| self.begin_append(medium, index)).await?;
        for _ in 0..number % 5 {
            runtime::yield_now().await;
        }
        if !self.alive.load(Ordering::Acquire) {
            return Err(Error::closed("no power"));
        }
        let mut medium = self.medium.lock().unwrap();
        let zone = &mut medium.zones[index.0 as usize];
        zone.in_flight = zone.in_flight.saturating_sub(1);
        let room = CAPACITY - zone.pointer;
        let refuses = self.fault == F::RefusesWhatFits && bytes.len() == room && room < 20 * UNIT;
        if bytes.len() > room || refuses {
            if self.fault == F::NoSpaceFills {
                zone.state = ZoneState::Full;
            }
            return Err(Error::no_space("no room"));
        }
        let mut at = zone.pointer;
        if self.fault == F::Overlaps && number % 17 == 0 && at >= UNIT {
            at -= UNIT;
        }
        if self.fault != F::ForgetsAppends || number % 37 != 0 {
            zone.bytes[at..at + bytes.len()].copy_from_slice(&bytes);
        }
        zone.pointer = at + bytes.len();
        let shown = if self.fault == F::WrongAddress && number % 29 == 0 { at + UNIT } else { at };
        Ok(ZoneAddress::new(index.0, shown as u64))
    }

    async fn own(&self, zone: ZoneIndex, waits: bool) {
        self.when_unowned(zone, |medium| medium.zones[zone.0 as usize].owned = true).await;
        if waits {
            self.wait(zone, |zone| zone.in_flight == 0).await;
        }
        // The call takes at least one turn.
        runtime::yield_now().await;
    }

    async fn finish(self, zone: ZoneIndex) -> Result<()> {
        self.own(zone, self.fault != F::FinishDoesNotWait).await;
        if !self.alive.load(Ordering::Acquire) {
            return Err(Error::closed("no power"));
        }
        let mut medium = self.medium.lock().unwrap();
        let zone = &mut medium.zones[zone.0 as usize];
        if self.fault != F::FinishDoesNothing {
            if self.fault == F::FinishLosesTail && zone.state.is_open() && zone.pointer >= UNIT {
                zone.bytes[zone.pointer - UNIT..].fill(0);
            }
            zone.state = ZoneState::Full;
            if self.fault != F::FinishIsNotDurable {
                zone.durable = zone.pointer;
            }
        }
        zone.owned = false;
        Ok(())
    }

    async fn reset(self, index: ZoneIndex, erase: EraseGuarantee) -> Result<u64> {
        self.own(index, self.fault != F::ResetDoesNotWait).await;
        if !self.alive.load(Ordering::Acquire) {
            return Err(Error::closed("no power"));
        }
        let mut medium = self.medium.lock().unwrap();
        let zone = &mut medium.zones[index.0 as usize];
        let old = zone.clone();
        let raised = if self.fault == F::ResetKeepsGeneration { old.generation } else { old.generation + 1 };
        *zone = Zone::new(raised);
        if erase == EraseGuarantee::None || self.fault == F::EraseKeepsData {
            zone.bytes = old.bytes;
        }
        zone.in_flight = old.in_flight;
        if self.fault == F::ResetKeepsState && old.state == ZoneState::Full {
            zone.state = ZoneState::Full;
        }
        if self.fault == F::ReportsOldGeneration {
            zone.generation = old.generation;
        }
        if self.fault == F::LimitLeaks && old.state.is_open() {
            medium.leaked += 1;
        }
        Ok(raised)
    }

    fn check_append(&self, zone: ZoneIndex, length: usize) -> Result<()> {
        let accepted = match self.fault {
            F::AcceptsUnaligned => !length.is_multiple_of(UNIT),
            F::AcceptsEmpty => length == 0,
            F::AcceptsTooLong => length as u64 > self.geometry.max_append,
            _ => false,
        };
        if accepted { self.geometry.check_zone(zone) } else { self.geometry.check_append(zone, length) }
    }
}

impl Zones for Handle {
    fn geometry(&self) -> &ZoneGeometry {
        &self.0.geometry
    }

    fn append(&self, zone: ZoneIndex, payload: Payload) -> Call<'_, Result<ZoneAddress>> {
        if let Err(error) = self.0.check_append(zone, payload.len()) {
            return Call::ready(Err(error));
        }
        let mut slices = payload.slices().to_vec();
        if self.0.fault == F::ReversesSlices {
            slices.reverse();
        }
        let bytes = slices.iter().flat_map(|slice| slice.to_vec()).collect();
        let work = self.0.clone().append(zone, bytes);
        if self.0.fault == F::DropsAbandoned {
            return Call::new(work);
        }
        Call::new(async move { runtime::spawn(work).await })
    }

    fn append_at(&self, at: ZoneAddress, payload: Payload) -> Call<'_, Result<()>> {
        if let Err(error) = self.0.geometry.check_append_at(at, payload.len()) {
            return Call::ready(Err(error));
        }
        let work = self.0.clone().append_at(at, payload.to_data().to_vec());
        Call::new(async move { runtime::spawn(work).await })
    }

    fn open(&self, zone: ZoneIndex) -> Call<'_, Result<()>> {
        if let Err(error) = self.0.geometry.check_zone(zone) {
            return Call::ready(Err(error));
        }
        let work = self.0.clone().change(zone, true);
        Call::new(async move { runtime::spawn(work).await })
    }

    fn close(&self, zone: ZoneIndex) -> Call<'_, Result<()>> {
        if let Err(error) = self.0.geometry.check_zone(zone) {
            return Call::ready(Err(error));
        }
        let work = self.0.clone().change(zone, false);
        Call::new(async move { runtime::spawn(work).await })
    }

    fn read(&self, at: ZoneAddress, mut buffer: Buffer) -> Call<'_, ReadOutcome> {
        let checked = self.0.geometry.check_read(at, buffer.len());
        if self.0.fault != F::KeepsUsedBuffer && (self.0.fault != F::ShowsAfterFailure || checked.is_ok()) {
            buffer.clear();
        }
        if let Err(error) = checked {
            if self.0.fault == F::KeepsUsedBuffer {
                buffer.clear();
            }
            return Call::ready((Err(error), buffer));
        }
        let zone =
            if self.0.fault == F::ReadsOtherZone && at.offset.0 > 9000 { 0 } else { at.zone.0 as usize };
        let medium = self.0.medium.lock().unwrap();
        let start = at.offset.0 as usize + buffer.filled().len();
        let missing = buffer.missing();
        buffer.append(&medium.zones[zone].bytes[start..start + missing]);
        Call::ready((Ok(()), buffer))
    }

    fn flush<'a>(&'a self, zones: &'a [ZoneIndex]) -> Call<'a, Result<()>> {
        for zone in zones {
            if let Err(error) = self.0.geometry.check_zone(*zone) {
                return Call::ready(Err(error));
            }
            let mut medium = self.0.medium.lock().unwrap();
            let zone = &mut medium.zones[zone.0 as usize];
            zone.durable = zone.pointer;
        }
        Call::ready(Ok(()))
    }

    fn finish(&self, zone: ZoneIndex) -> Call<'_, Result<()>> {
        if let Err(error) = self.0.geometry.check_zone(zone) {
            return Call::ready(Err(error));
        }
        let work = self.0.clone().finish(zone);
        Call::new(async move { runtime::spawn(work).await })
    }

    fn reset(&self, zone: ZoneIndex, erase: EraseGuarantee) -> Call<'_, Result<u64>> {
        if let Err(error) = self.0.geometry.check_zone(zone) {
            return Call::ready(Err(error));
        }
        let mut refused = erase > self.0.geometry.erase;
        if refused && self.0.fault == F::IgnoresGuarantee {
            refused = false;
        }
        if refused {
            if self.0.fault == F::RefusedResetEmpties {
                self.0.medium.lock().unwrap().zones[zone.0 as usize].bytes.fill(0);
            }
            return Call::ready(Err(Error::unsupported("no such guarantee")));
        }
        let work = self.0.clone().reset(zone, erase);
        Call::new(async move { runtime::spawn(work).await })
    }

    fn report(&self, first: ZoneIndex, count: u32) -> Call<'_, Result<Vec<ZoneReport>>> {
        let medium = self.0.medium.lock().unwrap();
        let end = first.0.saturating_add(count).min(ZONES);
        let report = |index: u32| {
            let zone = &medium.zones[index as usize];
            let low = self.0.fault == F::LowPointer && zone.pointer > 4 * UNIT;
            let write_pointer = (if low { zone.pointer - UNIT } else { zone.pointer }) as u64;
            ZoneReport {
                zone: ZoneIndex(index),
                state: zone.state,
                write_pointer,
                generation: zone.generation,
            }
        };
        Call::ready(Ok((first.0..end).map(report).collect()))
    }
}

fn judge(fault: Fault, shards: usize) -> Result<(), String> {
    judge_seed(fault, shards, None)
}

fn judge_seed(fault: Fault, shards: usize, seed: Option<u64>) -> Result<(), String> {
    let config = runtime::Config::default().with_shards(shards);
    let judged = runtime::run(config, move || async move {
        let current = Arc::new(Mutex::new(Arc::new(TestPart::new(fault))));
        let make = async || current.lock().unwrap().clone() as Arc<dyn ZonesPart>;
        let held = current.clone();
        let crash = move |_: Arc<dyn ZonesPart>| {
            let mut part = held.lock().unwrap();
            *part = Arc::new(part.crash());
            Call::ready(part.clone() as Arc<dyn ZonesPart>)
        };
        let options = Options { seed, persistent: true, crash: Some(Rc::new(crash)), ..Options::default() };
        run(make, options).await
    });
    judged.expect("the runtime runs")
}

#[test]
fn right_zones_pass() {
    for shards in [1, 2] {
        judge(Fault::None, shards).expect("the zones keep their promises");
    }
}

#[test]
fn all_wrong_zones_are_caught() {
    for fault in ALL {
        // A single run may miss a fault that depends on how requests interleave.
        let caught = (1..=5).find_map(|seed| judge_seed(fault, 2, Some(seed)).err());
        let broken = caught.unwrap_or_else(|| panic!("{fault:?} must be caught"));
        println!("{fault:?}: {broken}");
        assert!(broken.contains("SILTSTONE_SEED="), "{fault:?}: {broken}");
    }
}
