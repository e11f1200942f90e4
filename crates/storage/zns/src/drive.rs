//! The drive: zones over flash, on memory or on a file.
//!
//! - Shards share each zone with a mutex that is never held over an await; the schedule and the counters have
//!   one mutex each. An append to an open zone takes its zone's mutex and the schedule's.
//! - Openings, finishes and resets own their zone (`owned`) over their awaits; other calls to it wait at its
//!   gate.
//! - A power cut raises the epoch. Calls of an earlier epoch end with an error, and have no further effect.
//! - Bytes are in the cells as soon as they are appended. The schedule determines which of them a power cut
//!   loses (`Zone::losses`).

use crate::flash::{Layout, Schedule};
use crate::format::{self, AREA, Superblock};
use crate::machine::{Command, Lengths, Resources, State, ZoneStatus};
use crate::profile::Profile;
use crate::reliability::{self, PageId, Reliability, Stress};
use crate::zone::{Program, Slot, Zone, apply_key};
use block::{
    Buffer, Durability, EraseGuarantee, Error, Payload, ReadOutcome, Result, ZoneAddress, ZoneGeometry,
    ZoneIndex, ZoneReport,
};
use runtime::file::{File, SharedFile};
use runtime::{Instant, Random};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use zones::gate::Gate;

/// Faults that are drawn from the seed.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Faults {
    /// Probability that a program fails.
    pub program: f64,
    /// Probability that the erase of a block fails.
    pub erase: f64,
    /// Whether reads have bit errors.
    pub bits: bool,
}

/// Schedule and randomness.
#[derive(Debug)]
pub(crate) struct Timing {
    pub(crate) schedule: Schedule,
    pub(crate) random: Random,
}

/// Counters of a drive.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) appends: AtomicU64,
    pub(crate) appended_bytes: AtomicU64,
    pub(crate) reads: AtomicU64,
    pub(crate) resets: AtomicU64,
    pub(crate) erases: AtomicU64,
    pub(crate) programs: AtomicU64,
    pub(crate) uncorrectable: AtomicU64,
    pub(crate) corrected_bits: AtomicU64,
    pub(crate) power_cuts: AtomicU64,
}

/// State that all shards share.
#[derive(Debug)]
pub(crate) struct Drive {
    pub(crate) geometry: ZoneGeometry,
    pub(crate) profile: Profile,
    pub(crate) layout: Layout,
    pub(crate) reliability: Reliability,
    pub(crate) faults: Faults,
    /// Whether operations take the profile's time.
    pub(crate) timed: bool,
    pub(crate) slots: Vec<Slot>,
    pub(crate) resources: Mutex<Resources>,
    pub(crate) timing: Mutex<Timing>,
    pub(crate) superblock: Mutex<Superblock>,
    pub(crate) file: Option<SharedFile>,
    /// Number of power cuts.
    pub(crate) epoch: AtomicU64,
    /// Requests to the file in flight.
    pub(crate) requests: AtomicU32,
    pub(crate) idle: Gate,
    /// Whether a clean stop was recorded: a later power cut changes nothing.
    pub(crate) stopped: AtomicBool,
    /// Time at which the drive was opened, with the seconds of its clock at that time.
    pub(crate) opened: Instant,
    pub(crate) counters: Counters,
}

/// One shard's access to the drive's medium.
#[derive(Debug, Clone)]
pub(crate) struct Access {
    pub(crate) file: Option<File>,
    pub(crate) epoch: u64,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A request to the file, counted while it lives.
pub(crate) struct Request<'a>(&'a Drive);

impl Drop for Request<'_> {
    fn drop(&mut self) {
        if self.0.requests.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.idle.open();
        }
    }
}

/// Reserved range of an append.
struct Reserved<'a> {
    /// Offset in the zone.
    start: u64,
    /// Time of the acknowledgement, in nanoseconds.
    deadline: u64,
    /// Key for bytes that haven't been written to a file.
    key: Option<[u8; 32]>,
    request: Option<Request<'a>>,
}

impl Drive {
    pub(crate) fn slot(&self, zone: ZoneIndex) -> &Slot {
        &self.slots[zone.0 as usize]
    }

    /// Time of the runtime's clock, in nanoseconds; 0 for a drive without times.
    pub(crate) fn now(&self) -> u64 {
        if self.timed { runtime::now().nanoseconds() } else { 0 }
    }

    /// Time of the drive's clock, in seconds.
    pub(crate) fn clock(&self) -> u64 {
        lock(&self.superblock).clock + self.opened.elapsed().as_secs()
    }

    pub(crate) async fn until(&self, deadline: u64) {
        if self.timed && deadline > 0 {
            runtime::sleep_until_precisely(Instant::from_nanoseconds(deadline)).await;
        }
    }

    pub(crate) fn check_alive(&self, epoch: u64) -> Result<()> {
        match self.epoch.load(Ordering::Acquire) == epoch {
            true => Ok(()),
            false => Err(Error::closed("the power of the drive was cut: open its zones again")),
        }
    }

    pub(crate) fn request(&self) -> Request<'_> {
        self.requests.fetch_add(1, Ordering::AcqRel);
        Request(self)
    }

    /// Locks a zone without an owner.
    pub(crate) async fn lock_unowned(&self, zone: ZoneIndex, epoch: u64) -> Result<MutexGuard<'_, Zone>> {
        let slot = self.slot(zone);
        loop {
            {
                let guard = slot.lock();
                self.check_alive(epoch)?;
                if !guard.owned {
                    return Ok(guard);
                }
            }
            slot.gate.wait_until(|| !slot.lock().owned || self.check_alive(epoch).is_err()).await;
        }
    }

    /// Ends the ownership of a zone.
    pub(crate) fn release(&self, zone: ZoneIndex, epoch: u64) {
        let slot = self.slot(zone);
        let mut guard = slot.lock();
        if self.check_alive(epoch).is_ok() {
            guard.owned = false;
        }
        drop(guard);
        slot.gate.open();
    }

    /// Takes the ownership of a zone and waits for its appends in flight.
    pub(crate) async fn own(&self, zone: ZoneIndex, epoch: u64) -> Result<()> {
        let slot = self.slot(zone);
        self.lock_unowned(zone, epoch).await?.owned = true;
        slot.gate.wait_until(|| slot.lock().in_flight == 0 || self.check_alive(epoch).is_err()).await;
        self.check_alive(epoch)
    }

    /// Lengths of a zone for the state machine.
    pub(crate) fn lengths(&self) -> Lengths {
        Lengths { size: self.geometry.zone_size, capacity: self.geometry.zone_capacity }
    }

    #[cold]
    pub(crate) fn refusal(
        &self,
        index: ZoneIndex,
        zone: &Zone,
        status: ZoneStatus,
        length: u64,
        wanted: Option<u64>,
    ) -> Error {
        let left = self.geometry.zone_capacity.saturating_sub(zone.machine.write_pointer);
        let why = zone.trouble.as_ref().map(|why| format!(" ({why})")).unwrap_or_default();
        match status {
            ZoneStatus::BoundaryError => Error::no_space(format!(
                "append of {length} bytes to zone {index}: expected at most {left}, the rest of the zone; finish it and use \
                 another: {status}"
            )),
            ZoneStatus::InvalidWrite => Error::misplaced(format!(
                "append at byte {} of zone {index}: expected its write pointer, byte {}: {status}",
                wanted.unwrap_or_default(),
                zone.machine.write_pointer
            )),
            ZoneStatus::TooManyActive => Error::busy(format!(
                "zone {index}: {} zones are active, the limit max_active: finish or reset one: {status}",
                self.geometry.max_active
            )),
            ZoneStatus::TooManyOpen => Error::busy(format!(
                "zone {index}: {} zones are open, the limit max_open: close, finish or reset one: {status}",
                self.geometry.max_open
            )),
            ZoneStatus::ReadOnly => Error::read_only(format!("zone {index} is read-only{why}: {status}")),
            _ => Error::invalid(format!("zone {index} is {:?}{why}: {status}", zone.state())),
        }
    }

    pub(crate) fn interrupted(index: ZoneIndex, zone: &Zone) -> Error {
        let why = zone.trouble.as_deref().unwrap_or("an unclean stop");
        Error::invalid(format!("zone {index} is Interrupted ({why}): scan it, then finish or reset it"))
    }

    /// Writes a zone's area durably.
    pub(crate) async fn write_header(&self, access: &Access, zone: ZoneIndex) -> Result<()> {
        let Some(file) = &access.file else { return Ok(()) };
        // The request begins under the zone's lock, so that a power cut waits for it.
        let (area, _request) = {
            let guard = self.slot(zone).lock();
            self.check_alive(access.epoch)?;
            let uuid = lock(&self.superblock).uuid;
            (format::encode_zone(uuid, zone.0, &guard.header(), &guard.blocks), self.request())
        };
        let written = file.write_at(Superblock::zone_area(zone.0), area.into(), Durability::Durable).await;
        written.map_err(|error| error.in_context(format!("writing the header of zone {zone}")))
    }

    pub(crate) fn cells_at(&self, zone: ZoneIndex) -> u64 {
        Superblock::first_zone(self.geometry.zones) + u64::from(zone.0) * self.geometry.zone_capacity
    }

    /// Leaves a zone interrupted after a failure that may have left a hole.
    pub(crate) fn interrupt(&self, zone: ZoneIndex, epoch: u64, error: &Error) {
        let mut guard = self.slot(zone).lock();
        let state = guard.machine.state;
        if self.check_alive(epoch).is_err() || matches!(state, State::ReadOnly | State::Offline) {
            return;
        }
        guard.machine.fail(State::Closed, &mut lock(&self.resources));
        guard.interrupted = true;
        guard.trouble = Some(error.to_string());
    }

    /// Puts a zone into a state after a failure of the medium.
    pub(crate) fn fail_zone(&self, zone: &mut Zone, to: State, why: String) {
        zone.machine.fail(to, &mut lock(&self.resources));
        zone.interrupted = false;
        zone.trouble = Some(why);
    }

    /// Passes an append to the flash. Returns the time of its acknowledgement, in nanoseconds.
    fn accept(&self, index: ZoneIndex, zone: &mut Zone, start: u64, length: u64) -> Result<u64> {
        let (profile, end) = (&self.profile, start + length);
        let now = self.now();
        let mut timing = lock(&self.timing);
        let timing = &mut *timing;
        let mut ack = now;
        if self.timed {
            timing.schedule.advance(now);
            zone.settle(now);
            let pages = length.div_ceil(4096);
            ack += profile.write_overhead + profile.write_4k_overhead * pages;
            ack = timing.schedule.link(profile, ack, length);
        }
        let unit = self.layout.unit;
        // With a buffer, whole units are programmed; without one, every append is.
        let whole =
            if end == self.geometry.zone_capacity || profile.buffer == 0 { end } else { end / unit * unit };
        let mut arrived = ack;
        while zone.programmed < whole {
            let from = zone.programmed;
            let to = ((from / unit + 1) * unit).min(whole);
            arrived = arrived.max(self.buffered_from(zone, to));
            let finished = self.program(index, zone, timing, from, to, arrived)?;
            if profile.buffer == 0 {
                ack = ack.max(finished);
            }
        }
        if profile.buffer > 0 {
            ack = arrived.max(self.buffered_from(zone, end));
        }
        if profile.protected {
            zone.durable = end;
        }
        Ok(ack)
    }

    /// Time after which the bytes up to `end` fit the zone's buffer.
    fn buffered_from(&self, zone: &Zone, end: u64) -> u64 {
        let drained = end.saturating_sub(self.profile.buffer);
        if self.profile.buffer == 0 || drained == 0 {
            return 0;
        }
        zone.programs.iter().find(|program| program.to >= drained).map_or(0, |program| program.end)
    }

    /// Programs bytes of one unit of a zone. Returns the end, in nanoseconds.
    pub(crate) fn program(
        &self,
        index: ZoneIndex,
        zone: &mut Zone,
        timing: &mut Timing,
        from: u64,
        to: u64,
        arrived: u64,
    ) -> Result<u64> {
        let place = self.layout.place(index.0, from);
        let block = &mut zone.blocks[place.lane as usize];
        let worn = block.erases > zone.last_erases[place.lane as usize]
            && self.reliability.fails_in_program(place.die, place.block);
        if worn || (self.faults.program > 0.0 && timing.random.chance(self.faults.program)) {
            block.failed = true;
            let why = format!(
                "page {} of block {} of die {} failed to program after {} erases",
                place.page, place.block, place.die, block.erases
            );
            self.fail_zone(zone, State::ReadOnly, why.clone());
            return Err(Error::io(format!("append to zone {index}: {why}; the zone is read-only")));
        }
        self.counters.programs.fetch_add(1, Ordering::Relaxed);
        zone.programmed = to;
        if !self.timed {
            zone.durable = zone.durable.max(to);
            return Ok(0);
        }
        let (begin, end) =
            timing.schedule.program(&self.profile, &self.layout, place.die, arrived, to - from);
        zone.programs.push_back(Program { from, to, begin, end });
        Ok(end)
    }

    pub(crate) async fn append(
        &self,
        access: &Access,
        index: ZoneIndex,
        wanted: Option<u64>,
        payload: Payload,
    ) -> Result<ZoneAddress> {
        let length = payload.len() as u64;
        let Reserved { start, deadline, key, request } = loop {
            let reserved = {
                let mut guard = self.lock_unowned(index, access.epoch).await?;
                self.reserve(access, index, &mut guard, wanted, &payload)
            };
            match reserved {
                Ok(Some(reserved)) => break reserved,
                Ok(None) => self.begin(access, index, false).await?,
                Err(error) => {
                    if matches!(error, Error::Io(_)) {
                        self.write_header(access, index).await?;
                    }
                    return Err(error);
                }
            }
        };
        let mut outcome = Ok(());
        if let (Some(file), Some(request)) = (&access.file, request) {
            let payload = match key {
                Some(key) => sealed(&key, start, &payload),
                None => payload,
            };
            outcome = file.write_at(self.cells_at(index) + start, payload, Durability::Visible).await;
            drop(request);
        }
        self.until(deadline).await;
        if let Err(error) = &outcome {
            self.interrupt(index, access.epoch, error);
        }
        let slot = self.slot(index);
        let mut guard = slot.lock();
        self.check_alive(access.epoch)?;
        guard.in_flight -= 1;
        let awaited = guard.owned && guard.in_flight == 0;
        drop(guard);
        if awaited {
            slot.gate.open();
        }
        self.counters.appends.fetch_add(1, Ordering::Relaxed);
        self.counters.appended_bytes.fetch_add(length, Ordering::Relaxed);
        outcome.map(|()| ZoneAddress::new(index.0, start))
    }

    /// Reserves an append's range in its zone, and copies the payload there if the cells are in memory.
    /// Returns `None` for an empty zone, which has to be opened first.
    ///
    /// # Errors
    /// [`Error::Io`] if a program failed, which makes the zone read-only; other errors change nothing.
    fn reserve<'a>(
        &'a self,
        access: &Access,
        index: ZoneIndex,
        zone: &mut Zone,
        wanted: Option<u64>,
        payload: &Payload,
    ) -> Result<Option<Reserved<'a>>> {
        let (length, capacity) = (payload.len() as u64, self.geometry.zone_capacity);
        if zone.interrupted {
            return Err(Self::interrupted(index, zone));
        }
        let checked = zone.machine.check_write(wanted, length, capacity);
        checked.map_err(|status| self.refusal(index, zone, status, length, wanted))?;
        if zone.machine.state == State::Empty {
            return Ok(None);
        }
        let start = zone.machine.write_pointer;
        if zone.machine.state.is_open() && start + length < capacity {
            zone.machine.write_pointer += length;
        } else {
            let command = Command::Write { at: start, length };
            let applied = zone.machine.apply(command, self.lengths(), &mut lock(&self.resources));
            applied.map_err(|status| self.refusal(index, zone, status, length, wanted))?;
        }
        let deadline = self.accept(index, zone, start, length)?;
        zone.in_flight += 1;
        let key = self.is_encrypted().then_some(zone.key);
        if access.file.is_some() {
            return Ok(Some(Reserved { start, deadline, key, request: Some(self.request()) }));
        }
        payload.slices().iter().for_each(|slice| zone.cells.extend_from_slice(slice));
        if let Some(key) = &key {
            apply_key(key, start, &mut zone.cells[start as usize..]);
        }
        Ok(Some(Reserved { start, deadline, key: None, request: None }))
    }

    fn is_encrypted(&self) -> bool {
        self.geometry.erase == EraseGuarantee::Key
    }

    pub(crate) async fn read(&self, access: &Access, at: ZoneAddress, mut buffer: Buffer) -> ReadOutcome {
        buffer.clear();
        let (deadline, key, request) = match self.begin_read(access, at, &mut buffer) {
            Ok(begun) => begun,
            Err(error) => {
                buffer.clear();
                return (Err(error), buffer);
            }
        };
        if let (Some(file), Some(request)) = (&access.file, request) {
            let (outcome, read) = file.read_exact_at(self.cells_at(at.zone) + at.offset.0, buffer).await;
            buffer = read;
            drop(request);
            if let Err(error) = outcome {
                buffer.clear();
                return (Err(error), buffer);
            }
        }
        let corrected = self.correct(at, buffer.filled());
        if let Some(key) = key {
            apply_key(&key, at.offset.0, buffer.filled_mut());
        }
        self.until(deadline).await;
        if let Err(error) = corrected.and_then(|()| self.check_alive(access.epoch)) {
            buffer.clear();
            return (Err(error), buffer);
        }
        self.counters.reads.fetch_add(1, Ordering::Relaxed);
        (Ok(()), buffer)
    }

    #[allow(clippy::type_complexity)]
    fn begin_read<'a>(
        &'a self,
        access: &Access,
        at: ZoneAddress,
        buffer: &mut Buffer,
    ) -> Result<(u64, Option<[u8; 32]>, Option<Request<'a>>)> {
        let length = buffer.len() as u64;
        self.geometry.check_read(at, buffer.len())?;
        let mut guard = self.slot(at.zone).lock();
        self.check_alive(access.epoch)?;
        let zone = &mut *guard;
        let end = at.offset.0 + length;
        if zone.machine.state == State::Offline {
            return Err(self.refusal(at.zone, zone, ZoneStatus::Offline, length, None));
        }
        if end > zone.machine.write_pointer {
            return Err(zones::errors::exceeds_write_pointer(at, buffer.len(), zone.machine.write_pointer));
        }
        let deadline = self.schedule_read(at, zone, length);
        let key = self.is_encrypted().then_some(zone.key);
        if access.file.is_some() {
            return Ok((deadline, key, Some(self.request())));
        }
        let there = zone.cells.get(at.offset.0 as usize..).unwrap_or_default();
        buffer.append(&there[..buffer.len().min(there.len())]);
        while buffer.missing() > 0 {
            buffer.append(&[0xFF; 512][..buffer.missing().min(512)]);
        }
        Ok((deadline, key, None))
    }

    /// Returns the end of a read, in nanoseconds. Bytes that are still in the buffer need no time on a die.
    fn schedule_read(&self, at: ZoneAddress, zone: &mut Zone, length: u64) -> u64 {
        let (profile, page) = (&self.profile, self.layout.page);
        let (now, end) = (self.now(), at.offset.0 + length);
        let mut timing = self.timed.then(|| lock(&self.timing));
        let overhead = if length <= 4096 { profile.read_4k_overhead } else { profile.read_overhead };
        let begin = now + overhead;
        let mut done = begin;
        if let Some(timing) = &mut timing {
            timing.schedule.advance(now);
            zone.settle(now);
        }
        let on_flash = zone.programs.front().map_or(zone.programmed, |program| program.from);
        let mut from = at.offset.0;
        while from < end {
            let to = ((from / page + 1) * page).min(end);
            let place = self.layout.place(at.zone.0, from);
            let block = &mut zone.blocks[place.lane as usize];
            block.reads = block.reads.saturating_add(1);
            if let Some(timing) = &mut timing
                && from < on_flash
            {
                let read = timing.schedule.read(profile, &self.layout, place.die, begin, to - from);
                done = done.max(timing.schedule.link(profile, read, to - from));
            }
            from = to;
        }
        done
    }

    /// Counts the bit errors of cells that were read.
    ///
    /// # Errors
    /// [`Error::Io`] if a codeword has more errors than can be corrected.
    fn correct(&self, at: ZoneAddress, cells: &[u8]) -> Result<()> {
        if !self.faults.bits {
            return Ok(());
        }
        let mut known: Option<(PageId, Stress, f64)> = None;
        for (number, codeword) in cells.chunks(reliability::CODEWORD).enumerate() {
            let offset = at.offset.0 + (number * reliability::CODEWORD) as u64;
            let (page, stress) = self.page(at.zone, offset);
            let rate = match known {
                Some((known, _, rate)) if known == page => rate,
                _ => self.reliability.rate(page, stress),
            };
            known = Some((page, stress, rate));
            let within = (offset % self.layout.page) as u32 / reliability::CODEWORD as u32;
            let errors = self.reliability.errors(page, stress, rate, within, codeword);
            if errors > reliability::CORRECTABLE {
                self.counters.uncorrectable.fetch_add(1, Ordering::Relaxed);
                return Err(Error::io(format!(
                    "read at byte {offset} of zone {}: {errors} bit errors in {} bytes, {} are corrected: Unrecovered Read Error, \
                     NVMe status 81h",
                    at.zone,
                    codeword.len(),
                    reliability::CORRECTABLE
                )));
            }
            self.counters.corrected_bits.fetch_add(u64::from(errors), Ordering::Relaxed);
        }
        Ok(())
    }

    /// Page of a byte of a zone, and its stress.
    pub(crate) fn page(&self, zone: ZoneIndex, offset: u64) -> (PageId, Stress) {
        let clock = self.clock();
        let guard = self.slot(zone).lock();
        let place = self.layout.place(zone.0, offset);
        let block = guard.blocks[place.lane as usize];
        let hours = clock.saturating_sub(guard.begun) as f64 / 3600.0;
        (
            PageId { die: place.die, block: place.block, page: place.page, pages: self.layout.pages() },
            Stress { cycles: block.erases, hours, reads: block.reads },
        )
    }

    pub(crate) fn report(&self, first: ZoneIndex, count: u32) -> Result<Vec<ZoneReport>> {
        if first.0 > self.geometry.zones {
            return self.geometry.check_zone(first).map(|()| Vec::new());
        }
        let end = first.0.saturating_add(count).min(self.geometry.zones);
        let report = |index| {
            let zone = self.slot(ZoneIndex(index)).lock();
            let (state, write_pointer) = (zone.state(), zone.machine.write_pointer);
            ZoneReport { zone: ZoneIndex(index), state, write_pointer, generation: zone.generation }
        };
        Ok((first.0..end).map(report).collect())
    }

    /// Writes a superblock.
    pub(crate) async fn write_superblock(&self, file: &File, clean: bool) -> Result<()> {
        let (area, sequence) = {
            let clock = self.clock();
            let mut superblock = lock(&self.superblock);
            superblock.sequence += 1;
            let written = Superblock { clean, clock, ..superblock.clone() };
            (written.encode(), superblock.sequence)
        };
        let written = file.write_at(sequence % 2 * AREA, area.into(), Durability::Durable).await;
        written.map_err(|error| error.in_context("writing a superblock of the emulated drive"))
    }
}

/// Encrypts a payload.
fn sealed(key: &[u8; 32], offset: u64, payload: &Payload) -> Payload {
    let mut buffer = Buffer::new(payload.len());
    payload.slices().iter().for_each(|slice| buffer.append(slice));
    apply_key(key, offset, buffer.filled_mut());
    buffer.freeze().into()
}
