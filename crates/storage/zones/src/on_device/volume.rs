//! State that all handles of one volume share, and the operations on its zones.
//!
//! Every function that changes a zone is carried to its end by its caller (`carry`), so an owner of a
//! transitional phase always settles it.

use super::format::{Superblock, Uuid, ZoneHeader};
use super::layout::Layout;
use super::slot::{Phase, Reserved, Slot};
use super::usage::{self, Usage};
use crate::errors;
use crate::limits::Limits;
use block::{
    BlockCount, BlockIndex, BlockRange, Buffer, Device, Durability, EraseGuarantee, Error, ExtentState,
    Payload, Result, ZeroMode, ZoneAddress, ZoneGeometry, ZoneIndex, ZoneReport, ZoneState,
};
use std::sync::atomic::{AtomicU64, Ordering};

/// The zones of one device.
#[derive(Debug)]
pub(super) struct Volume {
    pub(super) geometry: ZoneGeometry,
    pub(super) layout: Layout,
    pub(super) uuid: Uuid,
    /// Sequence of the newest superblock. Only opening and closing, which run alone, change it.
    pub(super) sequence: AtomicU64,
    pub(super) slots: Vec<Slot>,
    pub(super) limits: Limits,
    pub(super) usage: Usage,
    pub(super) read_only: bool,
}

impl Volume {
    fn slot(&self, zone: ZoneIndex) -> &Slot {
        &self.slots[zone.0 as usize]
    }

    fn bytes_of(&self, blocks: u64) -> u64 {
        self.layout.block_size.bytes_of(BlockCount(blocks))
    }

    /// Refuses changes of a volume that is read-only or closed.
    pub(super) fn check_writable(&self) -> Result<()> {
        if self.read_only {
            return Err(Error::read_only("the zones are read-only, or the device below them is"));
        }
        match self.usage.is_closed() {
            true => Err(usage::closed()),
            false => Ok(()),
        }
    }

    fn refusal(&self, zone: ZoneIndex, phase: Phase) -> Error {
        let state = match phase {
            Phase::Full => "full: reset it first",
            Phase::Offline => "offline",
            Phase::Empty => "empty: it is open from its first append on",
            _ => "interrupted: finish or reset it",
        };
        match self.slot(zone).trouble() {
            Some(trouble) => Error::invalid(format!("zone {zone} is {state}: {trouble}")),
            None => Error::invalid(format!("zone {zone} is {state}")),
        }
    }

    /// Checks that bytes `offset..offset + length` of a zone are below its write pointer.
    pub(super) fn check_read(&self, at: ZoneAddress, length: usize) -> Result<()> {
        self.geometry.check_read(at, length)?;
        let slot = self.slot(at.zone);
        let (phase, pointer) = slot.look();
        if phase == Phase::Offline {
            let offline = || Error::corrupt(format!("zone {} is offline", at.zone));
            return Err(slot.trouble().unwrap_or_else(offline));
        }
        let written = self.bytes_of(pointer);
        if at.offset.0 + length as u64 > written {
            return Err(errors::exceeds_write_pointer(at, length, written));
        }
        Ok(())
    }

    /// Appends, at byte `wanted` if that is given.
    pub(super) async fn append(
        &self,
        device: &dyn Device,
        zone: ZoneIndex,
        wanted: Option<u64>,
        payload: Payload,
    ) -> Result<ZoneAddress> {
        let slot = self.slot(zone);
        let shift = self.layout.block_size.shift();
        let blocks = payload.len() as u64 >> shift;
        let wanted_block = wanted.map(|byte| byte >> shift);
        let failures = self.usage.failures();
        let at = loop {
            match slot.reserve(wanted_block, blocks, self.geometry.zone_capacity >> shift) {
                Reserved::At(block) => break self.bytes_of(block),
                Reserved::NotOpen(phase) => {
                    self.check_place(zone, wanted, slot.look().1)?;
                    self.open_zone(device, zone, (phase, Phase::ImplicitlyOpen), failures).await?;
                }
                Reserved::Elsewhere(block) => self.check_place(zone, wanted, block)?,
                Reserved::Passing => slot.settled().await,
                Reserved::NoRoom(left) => {
                    return Err(errors::exceeds_zone(zone, payload.len() as u64, self.bytes_of(left)));
                }
                Reserved::Crowded => {
                    return Err(Error::busy(format!("zone {zone}: too many appends are in flight")));
                }
                Reserved::Refused(phase) => return Err(self.refusal(zone, phase)),
            }
        };
        let written = device.write(self.layout.data(zone.0, at), payload, Durability::Visible).await;
        if let Err(error) = &written {
            self.interrupt(zone, error.in_context(format!("an append at byte {at} failed"))).await;
        }
        slot.ended();
        written.map(|()| ZoneAddress::new(zone.0, at))
    }

    /// Refuses an append at another byte than the write pointer, which is at block `pointer`.
    fn check_place(&self, zone: ZoneIndex, wanted: Option<u64>, pointer: u64) -> Result<()> {
        let pointer = self.bytes_of(pointer);
        match wanted {
            Some(wanted) if wanted != pointer => Err(crate::misplaced(zone, wanted, pointer)),
            _ => Ok(()),
        }
    }

    /// Interrupts a zone after a failed append, which left a hole below the write pointer: the zone accepts
    /// no more appends.
    async fn interrupt(&self, zone: ZoneIndex, trouble: Error) {
        let slot = self.slot(zone);
        slot.set_trouble(Some(trouble));
        loop {
            let (phase, _) = slot.look();
            match phase {
                Phase::ImplicitlyOpen | Phase::ExplicitlyOpen | Phase::Closed => {
                    if slot.begin(phase, Phase::Interrupted) {
                        self.limits.moved(phase.state(), ZoneState::Interrupted);
                        return;
                    }
                }
                // An opening doesn't wait for appends.
                Phase::Opening => slot.settled().await,
                // A finish or a reset waits for this append, and settles the zone.
                _ => return,
            }
        }
    }

    async fn write_header(
        &self,
        device: &dyn Device,
        zone: ZoneIndex,
        state: ZoneState,
        generation: u64,
        pointer: u64,
    ) -> Result<()> {
        let write_pointer = self.bytes_of(pointer);
        let header = ZoneHeader { uuid: self.uuid, zone: zone.0, state, generation, write_pointer };
        let payload = header.encode(self.layout.block_size.bytes());
        let written = device.write(self.layout.header(zone.0), payload, Durability::Durable).await;
        written.map_err(|error| error.in_context(format!("writing the header of zone {zone}")))
    }

    /// Records on the medium that the volume is in use, before the first change of a zone since it was
    /// opened: a volume that is only looked at stays as it is. `failures` is [`Usage::failures`] when the
    /// change began.
    async fn begin_use(&self, device: &dyn Device, failures: u64) -> Result<()> {
        self.usage.begin(failures, self.write_superblock(device, false)).await
    }

    /// Opens a zone that is empty or closed; does nothing if it no longer is. A zone that can't be opened
    /// because of a limit, or because the volume can't be marked as in use, stays as it was.
    ///
    /// The header is durable before the first byte of data is written, so a header with the state Empty means
    /// that no data of its generation exists. A closed zone has its header already.
    async fn open_zone(
        &self,
        device: &dyn Device,
        zone: ZoneIndex,
        (from, to): (Phase, Phase),
        failures: u64,
    ) -> Result<()> {
        let slot = self.slot(zone);
        if !slot.begin(from, Phase::Opening) {
            return Ok(());
        }
        if let Err(busy) = self.limits.open_one(from.state()) {
            slot.settle_opening(from);
            return Err(busy.in_context(format!("opening zone {zone}")));
        }
        if let Err(error) = self.begin_use(device, failures).await {
            self.limits.moved(to.state(), from.state());
            slot.settle_opening(from);
            return Err(error);
        }
        let written = match from {
            Phase::Empty => self.write_header(device, zone, ZoneState::Closed, slot.generation(), 0).await,
            _ => Ok(()),
        };
        match &written {
            Ok(()) => slot.settle_opening(to),
            Err(error) => {
                slot.set_trouble(Some(error.clone()));
                self.limits.moved(to.state(), ZoneState::Interrupted);
                slot.settle_opening(Phase::Interrupted);
            }
        }
        written
    }

    /// Opens a zone explicitly.
    pub(super) async fn open(&self, device: &dyn Device, zone: ZoneIndex) -> Result<()> {
        let slot = self.slot(zone);
        let failures = self.usage.failures();
        loop {
            let (phase, _) = slot.look();
            match phase {
                Phase::ExplicitlyOpen => return Ok(()),
                Phase::ImplicitlyOpen => drop(slot.begin(phase, Phase::ExplicitlyOpen)),
                Phase::Empty | Phase::Closed => {
                    self.open_zone(device, zone, (phase, Phase::ExplicitlyOpen), failures).await?;
                }
                phase if phase.is_passing() => slot.settled().await,
                phase => return Err(self.refusal(zone, phase)),
            }
        }
    }

    /// Closes an open zone. Writes nothing: the header on the medium marks it as begun already.
    pub(super) async fn close_zone(&self, zone: ZoneIndex) -> Result<()> {
        let slot = self.slot(zone);
        loop {
            let (phase, _) = slot.look();
            match phase {
                Phase::Closed => return Ok(()),
                Phase::ImplicitlyOpen | Phase::ExplicitlyOpen => {
                    if slot.begin(phase, Phase::Closed) {
                        self.limits.moved(phase.state(), ZoneState::Closed);
                        return Ok(());
                    }
                }
                phase if phase.is_passing() => slot.settled().await,
                phase => return Err(self.refusal(zone, phase)),
            }
        }
    }

    /// Becomes the owner of a zone for a finish or a reset, once it has no other owner and no append is in
    /// flight, and marks the volume as in use. Returns the phase before, or `None` if it is in `done`
    /// already.
    async fn own(
        &self,
        device: &dyn Device,
        zone: ZoneIndex,
        passing: Phase,
        done: Option<Phase>,
    ) -> Result<Option<Phase>> {
        let slot = self.slot(zone);
        let failures = self.usage.failures();
        let before = loop {
            let (phase, _) = slot.look();
            if phase == Phase::Offline {
                return Err(self.refusal(zone, phase));
            }
            if Some(phase) == done {
                return Ok(None);
            }
            if phase.is_passing() {
                slot.settled().await;
            } else if slot.begin(phase, passing) {
                break phase;
            }
        };
        slot.drained().await;
        match self.begin_use(device, failures).await {
            Ok(()) => Ok(Some(before)),
            Err(error) => {
                self.settle_unchanged(zone, before, before);
                Err(error)
            }
        }
    }

    /// Ends the ownership of a zone that was in phase `before` without a change, in phase `to`; interrupted
    /// if an append has failed meanwhile.
    fn settle_unchanged(&self, zone: ZoneIndex, before: Phase, to: Phase) {
        let slot = self.slot(zone);
        let has_hole = before.state().is_active() && slot.trouble().is_some();
        let to = if has_hole { Phase::Interrupted } else { to };
        self.limits.moved(before.state(), to.state());
        slot.settle(to, slot.look().1);
    }

    /// Ends the ownership of a zone: in its new state or, after a failure, interrupted.
    fn settle(&self, zone: ZoneIndex, from: Phase, outcome: &Result<()>, to: Phase, pointer: u64) {
        let slot = self.slot(zone);
        let to = if outcome.is_ok() { to } else { Phase::Interrupted };
        slot.set_trouble(outcome.as_ref().err().cloned());
        self.limits.moved(from.state(), to.state());
        slot.settle(to, pointer);
    }

    pub(super) async fn finish(&self, device: &dyn Device, zone: ZoneIndex) -> Result<()> {
        let Some(before) = self.own(device, zone, Phase::Finishing, Some(Phase::Full)).await? else {
            return Ok(());
        };
        let slot = self.slot(zone);
        let (_, pointer) = slot.look();
        let finished = async {
            device.flush().await?;
            self.write_header(device, zone, ZoneState::Full, slot.generation(), pointer).await
        };
        let finished = finished.await.map_err(|error| error.in_context(format!("finishing zone {zone}")));
        self.settle(zone, before, &finished, Phase::Full, pointer);
        finished
    }

    /// Moves the write pointer of a begun zone back, and closes the zone.
    pub(super) async fn rewind(&self, device: &dyn Device, at: ZoneAddress) -> Result<()> {
        let zone = at.zone;
        let slot = self.slot(zone);
        let Some(before) = self.own(device, zone, Phase::Finishing, Some(Phase::Full)).await? else {
            return Err(self.refusal(zone, Phase::Full));
        };
        let (_, pointer) = slot.look();
        let block = at.offset.0 >> self.layout.block_size.shift();
        if before == Phase::Empty || block > pointer {
            self.settle_unchanged(zone, before, before);
            return Err(Error::invalid(format!(
                "rewinding to {at}: expected a begun zone, and at most its write pointer, byte {}",
                self.bytes_of(pointer)
            )));
        }
        // The header of a zone that was interrupted at a clean stop has an upper bound, which later appends
        // exceed.
        let written = match before {
            Phase::Interrupted => {
                self.write_header(device, zone, ZoneState::Closed, slot.generation(), block).await
            }
            _ => Ok(()),
        };
        self.settle(zone, before, &written, Phase::Closed, block);
        written
    }

    pub(super) async fn reset(
        &self,
        device: &dyn Device,
        zone: ZoneIndex,
        erase: EraseGuarantee,
    ) -> Result<u64> {
        if erase > self.geometry.erase {
            return Err(Error::unsupported(format!(
                "resetting zone {zone} with the guarantee \"{erase}\": zones on a device give at most \"{}\"",
                self.geometry.erase
            )));
        }
        let Some(before) = self.own(device, zone, Phase::Resetting, None).await? else {
            return Err(Error::invalid(format!("zone {zone} can't be reset")));
        };
        let slot = self.slot(zone);
        let (_, pointer) = slot.look();
        let generation = slot.generation() + 1;
        let emptied = self.erase_and_mark(device, zone, erase, generation).await;
        let emptied = emptied.map_err(|error| error.in_context(format!("resetting zone {zone}")));
        if emptied.is_err() {
            // The medium may already have the state Empty, with the generation that the next attempt writes
            // again.
            self.settle(zone, before, &emptied, Phase::Interrupted, pointer);
            return emptied.map(|()| generation);
        }
        slot.set_trouble(None);
        self.limits.moved(before.state(), ZoneState::Empty);
        slot.settle_empty(generation);
        Ok(generation)
    }

    async fn erase_and_mark(
        &self,
        device: &dyn Device,
        zone: ZoneIndex,
        erase: EraseGuarantee,
        generation: u64,
    ) -> Result<()> {
        let data = self.layout.data_range(zone.0);
        match erase {
            EraseGuarantee::None => {}
            EraseGuarantee::Deallocated => {
                device.discard(data).await?;
                device.flush().await?;
            }
            EraseGuarantee::Erased | EraseGuarantee::Key => {
                overwrite_with_zeros(device, data).await?;
                device.flush().await?;
            }
        }
        self.write_header(device, zone, ZoneState::Empty, generation, 0).await
    }

    /// Allocates the space of the device for the next bytes of a zone: its holes there are filled with zeros.
    /// The headers were all written when the volume was formatted.
    pub(super) async fn reserve(&self, device: &dyn Device, zone: ZoneIndex, bytes: u64) -> Result<()> {
        let _reserving = self.usage.reserve()?;
        let shift = self.layout.block_size.shift();
        let (_, pointer) = self.slot(zone).look();
        let capacity = self.geometry.zone_capacity >> shift;
        let start = self.layout.data(zone.0, self.bytes_of(pointer));
        let count = bytes.div_ceil(1 << shift).min(capacity.saturating_sub(pointer));
        let mut rest = BlockRange { start, count: BlockCount(count) };
        while !rest.is_empty() {
            let mut known = rest.start;
            for extent in device.extents(rest).await? {
                if extent.state == ExtentState::Hole {
                    let taken =
                        device.write_zeroes(extent.range, ZeroMode::KeepAllocated, Durability::Visible);
                    taken.await.map_err(|error| error.in_context(format!("taking space for zone {zone}")))?;
                }
                known = extent.range.end();
            }
            if known == rest.start {
                break;
            }
            rest = BlockRange { start: known, count: rest.end() - known };
        }
        Ok(())
    }

    pub(super) fn report(&self, first: ZoneIndex, count: u32) -> Result<Vec<ZoneReport>> {
        if first.0 > self.geometry.zones {
            return self.geometry.check_zone(first).map(|()| Vec::new());
        }
        let end = first.0.saturating_add(count).min(self.geometry.zones);
        Ok((first.0..end).map(|zone| self.report_one(ZoneIndex(zone))).collect())
    }

    fn report_one(&self, zone: ZoneIndex) -> ZoneReport {
        let slot = self.slot(zone);
        // A reset between the looks would pair the old generation with the new pointer. While it runs, the
        // zone shows as closed, with either generation.
        loop {
            let generation = slot.generation();
            let (phase, pointer) = slot.look();
            if slot.generation() == generation {
                let write_pointer = self.bytes_of(pointer);
                return ZoneReport { zone, state: phase.state(), write_pointer, generation };
            }
        }
    }

    pub(super) async fn write_superblock(&self, device: &dyn Device, clean: bool) -> Result<()> {
        let sequence = self.sequence.load(Ordering::Acquire) + 1;
        let superblock = Superblock {
            block_size: self.layout.block_size.bytes() as u32,
            uuid: self.uuid,
            sequence,
            zone_size: self.layout.zone_size,
            first_zone: self.layout.first_zone,
            zones: self.layout.zones,
            staging: self.layout.staging as u32,
            clean,
        };
        let block: BlockIndex = Layout::superblock(self.layout.block_size, sequence % 2);
        let written = device.write(block, superblock.encode(), Durability::Durable).await;
        written.map_err(|error| error.in_context("writing a superblock of the zones"))?;
        self.sequence.store(sequence, Ordering::Release);
        Ok(())
    }

    /// Writes the write pointer of every begun zone, then that the volume is clean. Writes nothing if no zone
    /// was changed: the medium is as it was. Afterwards no zone is open, so an append that waited for the
    /// close is refused.
    ///
    /// # Errors
    /// Errors of writing; a further close also returns them, since the medium marks the volume as in use.
    pub(super) async fn close(&self, device: &dyn Device) -> Result<()> {
        match self.read_only {
            true => Ok(()),
            false => self.usage.close(|is_in_use| self.write_close(device, is_in_use)).await,
        }
    }

    /// Carries out the close of a volume that takes no more changes.
    async fn write_close(&self, device: &dyn Device, is_in_use: bool) -> Result<()> {
        if !is_in_use {
            return Ok(());
        }
        let mut owned = Vec::new();
        for zone in (0..self.geometry.zones).map(ZoneIndex) {
            loop {
                let slot = self.slot(zone);
                let (phase, _) = slot.look();
                if phase.is_passing() {
                    slot.settled().await;
                } else if !phase.state().is_active() {
                    break;
                } else if slot.begin(phase, Phase::Finishing) {
                    slot.drained().await;
                    owned.push((zone, phase));
                    break;
                }
            }
        }
        let noted = self.note_write_pointers(device, &owned).await;
        for (zone, phase) in owned {
            let to = if phase == Phase::Interrupted { phase } else { Phase::Closed };
            self.settle_unchanged(zone, phase, to);
        }
        noted?;
        self.write_superblock(device, true).await
    }

    async fn note_write_pointers(&self, device: &dyn Device, zones: &[(ZoneIndex, Phase)]) -> Result<()> {
        // Data below the recorded write pointers must be durable before the headers.
        device.flush().await?;
        for (zone, phase) in zones {
            let (_, pointer) = self.slot(*zone).look();
            // An append that failed while another one was being drained also interrupts the zone.
            let failed = *phase == Phase::Interrupted || self.slot(*zone).trouble().is_some();
            let state = if failed { ZoneState::Interrupted } else { ZoneState::Closed };
            self.write_header(device, *zone, state, self.slot(*zone).generation(), pointer).await?;
        }
        Ok(())
    }
}

/// Writes zeros as data, 1 MiB at a time. `write_zeroes` would not do: a file system may answer it by marking
/// extents as unwritten, and the old bytes stay on the medium.
pub(super) async fn overwrite_with_zeros(device: &dyn Device, range: BlockRange) -> Result<()> {
    const STEP: u64 = 1 << 20;
    let block_size = device.geometry().block_size;
    let step = BlockCount((STEP >> block_size.shift()).max(1));
    let zeros = Buffer::zeroed(block_size.bytes_of(step) as usize).freeze();
    let mut at = range.start;
    while at < range.end() {
        let count = step.min(range.end() - at);
        let payload = zeros.slice(0..block_size.bytes_of(count) as usize).into();
        device.write(at, payload, Durability::Visible).await?;
        at += count;
    }
    Ok(())
}
