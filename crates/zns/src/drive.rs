//! The drive: zones over flash, on memory or on a file.
//!
//! - Shards share each zone with a mutex that is never held over an await; the schedule and the counts have one each. An
//!   append to an open zone takes its zone's and the schedule's.
//! - Openings, finishes and resets own their zone (`owned`) over their awaits; other calls to it wait at its gate.
//! - A power cut raises the epoch. A call of an earlier epoch ends with an error, and has no effect from then on.
//! - Bytes lie in the cells as soon as they are appended. Which of them a power cut loses follows from the schedule
//!   (`Zone::losses`).

use crate::flash::{Layout, Schedule};
use crate::format::{self, AREA, Superblock};
use crate::machine::{Command, Resources, State, ZoneStatus};
use crate::profile::{Finish, Profile};
use crate::reliability::{self, PageId, Reliability, Stress};
use crate::zone::{Program, Slot, Zone, apply_key};
use block::{
    Buffer, Data, Durability, EraseGuarantee, Error, Payload, ReadOutcome, Result, ZoneAddress, ZoneGeometry,
    ZoneIndex, ZoneReport,
};
use runtime::file::{File, SharedFile};
use runtime::{Instant, Random};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use zones::gate::Gate;

/// Bytes that are written at a time when a zone of a file is erased.
const ERASE_STEP: u64 = 1 << 20;

/// Faults that are drawn from the seed.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Faults {
    /// Probability that a program fails.
    pub program: f64,
    /// Probability that the erase of a block fails.
    pub erase: f64,
    /// Whether reads meet bit errors.
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
    /// Whether a clean stop was noted: a power cut changes nothing any more.
    pub(crate) stopped: AtomicBool,
    /// Time at which the drive was opened, and the second of its clock then.
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
struct Request<'a>(&'a Drive);

impl Drop for Request<'_> {
    fn drop(&mut self) {
        if self.0.requests.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.idle.open();
        }
    }
}

impl Drive {
    pub(crate) fn slot(&self, zone: ZoneIndex) -> &Slot {
        &self.slots[zone.0 as usize]
    }

    /// Nanoseconds of the runtime's clock; 0 for a drive without times.
    pub(crate) fn now(&self) -> u64 {
        if self.timed { runtime::now().nanoseconds() } else { 0 }
    }

    /// Second of the drive's clock.
    pub(crate) fn clock(&self) -> u64 {
        lock(&self.superblock).clock + self.opened.elapsed().as_secs()
    }

    async fn until(&self, deadline: u64) {
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

    fn request(&self) -> Request<'_> {
        self.requests.fetch_add(1, Ordering::AcqRel);
        Request(self)
    }

    /// Locks a zone without an owner.
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

    /// Becomes the owner of a zone and waits for its appends in flight.
    async fn own(&self, zone: ZoneIndex, epoch: u64) -> Result<()> {
        let slot = self.slot(zone);
        self.lock_unowned(zone, epoch).await?.owned = true;
        slot.gate.wait_until(|| slot.lock().in_flight == 0 || self.check_alive(epoch).is_err()).await;
        self.check_alive(epoch)
    }

    #[cold]
    fn refusal(
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

    fn interrupted(index: ZoneIndex, zone: &Zone) -> Error {
        let why = zone.trouble.as_deref().unwrap_or("an unclean stop");
        Error::invalid(format!("zone {index} is Interrupted ({why}): scan it, then finish or reset it"))
    }

    /// Writes a zone's area durably.
    pub(crate) async fn write_header(&self, access: &Access, zone: ZoneIndex) -> Result<()> {
        let Some(file) = &access.file else { return Ok(()) };
        let area = {
            let guard = self.slot(zone).lock();
            self.check_alive(access.epoch)?;
            let uuid = lock(&self.superblock).uuid;
            format::encode_zone(uuid, zone.0, &guard.header(), &guard.blocks)
        };
        let _request = self.request();
        let written = file.write_at(Superblock::zone_area(zone.0), area.into(), Durability::Durable).await;
        written.map_err(|error| error.in_context(format!("writing the header of zone {zone}")))
    }

    pub(crate) fn cells_at(&self, zone: ZoneIndex) -> u64 {
        Superblock::first_zone(self.geometry.zones) + u64::from(zone.0) * self.geometry.zone_capacity
    }

    /// Opens an empty zone: its stale cells are erased, a key is drawn, and the medium notes that it is begun.
    async fn begin(&self, access: &Access, zone: ZoneIndex, explicit: bool) -> Result<()> {
        let stale = {
            let mut guard = self.lock_unowned(zone, access.epoch).await?;
            if guard.machine.state != State::Empty {
                return Ok(());
            }
            let mut resources = lock(&self.resources);
            let opened = guard.machine.apply(Command::Open, self.geometry.zone_capacity, &mut resources);
            if let Err(status) = opened {
                return Err(self.refusal(zone, &guard, status, 0, None));
            }
            drop(resources);
            if !explicit {
                guard.machine.state = State::ImplicitlyOpened;
            }
            guard.owned = true;
            guard.stale
        };
        let began = async {
            let key = self.draw_key().await?;
            if stale {
                self.erase(access, zone, false).await?;
            }
            {
                let mut guard = self.slot(zone).lock();
                self.check_alive(access.epoch)?;
                (guard.key, guard.begun) = (key, self.clock());
                if access.file.is_none() && guard.cells.capacity() == 0 {
                    guard.cells.reserve_exact(self.geometry.zone_capacity as usize);
                }
            }
            self.write_header(access, zone).await
        };
        let began = began.await;
        if let Err(error) = &began {
            self.interrupt(zone, access.epoch, error);
        }
        self.release(zone, access.epoch);
        began
    }

    async fn draw_key(&self) -> Result<[u8; 32]> {
        let mut key = [0; 32];
        if !lock(&self.superblock).encrypted {
            return Ok(key);
        }
        if runtime::is_simulated() {
            Random::new(runtime::random_u64()).fill(&mut key);
            return Ok(key);
        }
        let source = File::open("/dev/urandom".as_ref(), runtime::file::OpenOptions::default()).await?;
        let (read, bytes) = source.read_exact_at(0, Buffer::new(32)).await;
        read?;
        key.copy_from_slice(bytes.filled());
        Ok(key)
    }

    /// Leaves a zone interrupted after a failure that may have left a hole.
    fn interrupt(&self, zone: ZoneIndex, epoch: u64, error: &Error) {
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

    /// Erases the blocks of a zone that the caller owns. With `wipe` a file's bytes are overwritten; otherwise they are
    /// deallocated.
    async fn erase(&self, access: &Access, index: ZoneIndex, wipe: bool) -> Result<()> {
        let (deadline, failed) = {
            let mut guard = self.slot(index).lock();
            self.check_alive(access.epoch)?;
            let zone = &mut *guard;
            let now = self.now();
            let (mut deadline, mut failed) = (now, None);
            let mut timing = lock(&self.timing);
            timing.schedule.advance(now);
            for lane in 0..self.layout.lanes {
                let die = self.layout.die(index.0, lane);
                let block = &mut zone.blocks[lane as usize];
                block.erases += 1;
                block.reads = 0;
                if self.timed {
                    deadline = deadline.max(timing.schedule.erase(&self.profile, die, now).1);
                }
                let row = self.layout.place(index.0, 0).block;
                let worn = block.erases > zone.last_erases[lane as usize]
                    && !self.reliability.fails_in_program(die, row);
                if worn || (self.faults.erase > 0.0 && timing.random.chance(self.faults.erase)) {
                    block.failed = true;
                    failed = Some(format!(
                        "block {row} of die {die} failed to erase after {} erases",
                        block.erases
                    ));
                }
            }
            drop(timing);
            self.counters.erases.fetch_add(u64::from(self.layout.lanes), Ordering::Relaxed);
            zone.erasing = Some((now, deadline));
            if let Some(why) = &failed {
                self.fail_zone(zone, State::Offline, why.clone());
            }
            (deadline, failed)
        };
        if let Some(why) = failed {
            self.write_header(access, index).await?;
            return Err(Error::io(format!("erasing zone {index}: {why}; the zone is offline")));
        }
        self.until(deadline).await;
        let request = {
            let mut guard = self.slot(index).lock();
            self.check_alive(access.epoch)?;
            guard.erasing = None;
            guard.cells.fill(0xFF);
            guard.cells.clear();
            self.request()
        };
        if let Some(file) = &access.file {
            self.erase_file(file, index, wipe).await?;
        }
        drop(request);
        let mut guard = self.slot(index).lock();
        self.check_alive(access.epoch)?;
        guard.stale = false;
        Ok(())
    }

    async fn erase_file(&self, file: &File, zone: ZoneIndex, wipe: bool) -> Result<()> {
        let (start, capacity) = (self.cells_at(zone), self.geometry.zone_capacity);
        if wipe {
            let ones = Data::copy_of(&vec![0xFF; ERASE_STEP.min(capacity) as usize]);
            let mut at = 0;
            while at < capacity {
                let length = ERASE_STEP.min(capacity - at);
                let payload = ones.slice(0..length as usize).into();
                file.write_at(start + at, payload, Durability::Visible).await?;
                at += length;
            }
            file.sync_data().await?;
        }
        file.punch_hole(start, capacity).await?;
        file.sync_data().await
    }

    /// Passes an append to the flash. Returns when it is acknowledged, in nanoseconds.
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
        // With a buffer whole units are programmed, without one every append is.
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

    /// Time from which on the bytes up to `end` fit the zone's buffer.
    fn buffered_from(&self, zone: &Zone, end: u64) -> u64 {
        let drained = end.saturating_sub(self.profile.buffer);
        if self.profile.buffer == 0 || drained == 0 {
            return 0;
        }
        zone.programs.iter().find(|program| program.to >= drained).map_or(0, |program| program.end)
    }

    /// Programs bytes of one unit of a zone. Returns the end, in nanoseconds.
    fn program(
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
        let (length, capacity) = (payload.len() as u64, self.geometry.zone_capacity);
        let (start, deadline, key, request) = loop {
            let mut guard = self.lock_unowned(index, access.epoch).await?;
            let zone = &mut *guard;
            if zone.interrupted {
                return Err(Self::interrupted(index, zone));
            }
            let checked = zone.machine.check_write(wanted, length, capacity);
            checked.map_err(|status| self.refusal(index, zone, status, length, wanted))?;
            if zone.machine.state == State::Empty {
                drop(guard);
                self.begin(access, index, false).await?;
                continue;
            }
            let start = zone.machine.write_pointer;
            let applied = if zone.machine.state.is_open() && start + length < capacity {
                zone.machine.write_pointer += length;
                Ok(start)
            } else {
                let command = Command::Write { at: start, length };
                zone.machine.apply(command, capacity, &mut lock(&self.resources))
            };
            applied.map_err(|status| self.refusal(index, zone, status, length, wanted))?;
            let deadline = match self.accept(index, zone, start, length) {
                Ok(deadline) => deadline,
                Err(error) => {
                    drop(guard);
                    self.write_header(access, index).await?;
                    return Err(error);
                }
            };
            zone.in_flight += 1;
            let key = self.is_encrypted().then_some(zone.key);
            if access.file.is_some() {
                break (start, deadline, key, Some(self.request()));
            }
            payload.slices().iter().for_each(|slice| zone.cells.extend_from_slice(slice));
            if let Some(key) = &key {
                apply_key(key, start, &mut zone.cells[start as usize..]);
            }
            break (start, deadline, None, None);
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

    fn is_encrypted(&self) -> bool {
        self.geometry.erase == EraseGuarantee::Key
    }

    pub(crate) async fn open(&self, access: &Access, index: ZoneIndex) -> Result<()> {
        loop {
            let mut guard = self.lock_unowned(index, access.epoch).await?;
            if guard.interrupted {
                return Err(Self::interrupted(index, &guard));
            }
            if guard.machine.state != State::Empty {
                let mut resources = lock(&self.resources);
                let opened = guard.machine.apply(Command::Open, self.geometry.zone_capacity, &mut resources);
                return opened.map(drop).map_err(|status| self.refusal(index, &guard, status, 0, None));
            }
            drop(guard);
            return self.begin(access, index, true).await;
        }
    }

    pub(crate) async fn close(&self, access: &Access, index: ZoneIndex) -> Result<()> {
        let mut guard = self.lock_unowned(index, access.epoch).await?;
        if guard.interrupted {
            return Err(Self::interrupted(index, &guard));
        }
        let mut resources = lock(&self.resources);
        let closed = guard.machine.apply(Command::Close, self.geometry.zone_capacity, &mut resources);
        closed.map(drop).map_err(|status| self.refusal(index, &guard, status, 0, None))
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
            return Err(Error::invalid(format!(
                "read of {length} bytes at {at}: no data was appended from byte {} on",
                zone.machine.write_pointer
            )));
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

    /// Returns the end of a read, in nanoseconds. Bytes that are still in the buffer take no time on a die.
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
    /// [`Error::Io`] if a codeword has more of them than are corrected.
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

    /// Programs what is left in the buffer of a zone, and waits for all its programs.
    async fn drain(&self, access: &Access, index: ZoneIndex, pad: bool) -> Result<()> {
        let (deadline, reached) = {
            let mut guard = self.slot(index).lock();
            self.check_alive(access.epoch)?;
            let zone = &mut *guard;
            let now = self.now();
            let mut timing = lock(&self.timing);
            timing.schedule.advance(now);
            let end = zone.machine.write_pointer;
            if zone.programmed < end {
                let from = zone.programmed;
                self.program(index, zone, &mut timing, from, end, now)?;
                // A part of a unit is programmed again, with its rest, once that is there.
                zone.programmed = if pad { end } else { end / self.layout.unit * self.layout.unit };
            }
            let mut deadline = zone.programs.iter().map(|program| program.end).max().unwrap_or(now);
            if pad && self.timed && self.profile.finish == Finish::Pad {
                let mut from = end.next_multiple_of(self.layout.unit);
                while from < self.geometry.zone_capacity {
                    let die = self.layout.place(index.0, from).die;
                    let bytes = self.layout.unit;
                    let (_, done) = timing.schedule.program(&self.profile, &self.layout, die, now, bytes);
                    deadline = deadline.max(done);
                    from += bytes;
                }
            }
            (deadline, end)
        };
        self.until(deadline).await;
        if let Some(file) = &access.file {
            let _request = self.request();
            file.sync_data().await?;
        }
        let mut guard = self.slot(index).lock();
        self.check_alive(access.epoch)?;
        guard.durable = guard.durable.max(reached);
        Ok(())
    }

    /// Makes the appends to a zone durable.
    pub(crate) async fn flush(&self, access: &Access, index: ZoneIndex) -> Result<()> {
        {
            let guard = self.slot(index).lock();
            self.check_alive(access.epoch)?;
            let state = guard.machine.state;
            let is_durable = access.file.is_none() && guard.durable >= guard.machine.write_pointer;
            if matches!(state, State::Empty | State::ReadOnly | State::Offline) || guard.sealed || is_durable
            {
                return Ok(());
            }
        }
        if self.profile.protected {
            if let Some(file) = &access.file {
                let _request = self.request();
                file.sync_data().await?;
            }
            return Ok(());
        }
        self.drain(access, index, false).await
    }

    pub(crate) async fn finish(&self, access: &Access, index: ZoneIndex) -> Result<()> {
        {
            let guard = self.lock_unowned(index, access.epoch).await?;
            match guard.machine.state {
                State::Full if guard.sealed => return Ok(()),
                State::ReadOnly | State::Offline => {
                    return Err(self.refusal(index, &guard, ZoneStatus::InvalidTransition, 0, None));
                }
                _ => {}
            }
        }
        self.own(index, access.epoch).await?;
        let finished = async {
            self.drain(access, index, true).await?;
            {
                let mut guard = self.slot(index).lock();
                self.check_alive(access.epoch)?;
                let mut resources = lock(&self.resources);
                let done = guard.machine.apply(Command::Finish, self.geometry.zone_capacity, &mut resources);
                drop(resources);
                done.map_err(|status| self.refusal(index, &guard, status, 0, None))?;
                (guard.interrupted, guard.sealed, guard.trouble) = (false, true, None);
            }
            self.write_header(access, index).await
        };
        let finished = finished.await;
        if let Err(error) = &finished {
            self.slot(index).lock().sealed = false;
            self.interrupt(index, access.epoch, error);
        }
        self.release(index, access.epoch);
        finished.map_err(|error| error.in_context(format!("finishing zone {index}")))
    }

    pub(crate) async fn reset(
        &self,
        access: &Access,
        index: ZoneIndex,
        erase: EraseGuarantee,
    ) -> Result<u64> {
        if erase > self.geometry.erase {
            return Err(Error::unsupported(format!(
                "resetting zone {index} with the guarantee \"{erase}\": this drive gives at most \"{}\"; encrypted = true gives \
                 \"key\"",
                self.geometry.erase
            )));
        }
        {
            let guard = self.lock_unowned(index, access.epoch).await?;
            if matches!(guard.machine.state, State::ReadOnly | State::Offline) {
                return Err(self.refusal(index, &guard, ZoneStatus::InvalidTransition, 0, None));
            }
        }
        self.own(index, access.epoch).await?;
        let emptied = async {
            {
                let mut guard = self.slot(index).lock();
                self.check_alive(access.epoch)?;
                guard.stale |= guard.machine.state != State::Empty;
            }
            if erase == EraseGuarantee::Erased && self.slot(index).lock().stale {
                self.erase(access, index, true).await?;
            }
            let generation = {
                let mut guard = self.slot(index).lock();
                self.check_alive(access.epoch)?;
                let mut resources = lock(&self.resources);
                let reset = guard.machine.apply(Command::Reset, self.geometry.zone_capacity, &mut resources);
                drop(resources);
                reset.map_err(|status| self.refusal(index, &guard, status, 0, None))?;
                guard.emptied();
                guard.generation += 1;
                if erase >= EraseGuarantee::Erased {
                    guard.key = [0; 32];
                }
                guard.generation
            };
            self.write_header(access, index).await.map(|()| generation)
        };
        let emptied = emptied.await;
        if let Err(error) = &emptied {
            self.interrupt(index, access.epoch, error);
        }
        self.release(index, access.epoch);
        self.counters.resets.fetch_add(1, Ordering::Relaxed);
        emptied.map_err(|error| error.in_context(format!("resetting zone {index}")))
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

    /// Makes everything durable and notes a clean stop.
    pub(crate) async fn stop(&self, access: &Access) -> Result<()> {
        for index in (0..self.geometry.zones).map(ZoneIndex) {
            let (begun, touched) = {
                let guard = self.slot(index).lock();
                let active =
                    guard.machine.state.is_active() || (guard.machine.state == State::Full && !guard.sealed);
                (active, active || guard.blocks.iter().any(|block| block.reads > 0))
            };
            if !touched {
                continue;
            }
            if begun {
                self.own(index, access.epoch).await?;
                let drained = self.drain(access, index, false).await;
                {
                    let mut guard = self.slot(index).lock();
                    guard.sealed |= guard.machine.state == State::Full && drained.is_ok();
                }
                self.release(index, access.epoch);
                drained?;
            }
            self.write_header(access, index).await?;
        }
        if let Some(file) = &access.file {
            self.write_superblock(file, true).await?;
        }
        self.stopped.store(true, Ordering::Release);
        Ok(())
    }
}

/// Encrypts a payload.
fn sealed(key: &[u8; 32], offset: u64, payload: &Payload) -> Payload {
    let mut buffer = Buffer::new(payload.len());
    payload.slices().iter().for_each(|slice| buffer.append(slice));
    apply_key(key, offset, buffer.filled_mut());
    buffer.freeze().into()
}
