//! Zones as the target of a queue's requests.
//!
//! # Promises
//! - A write lands at its address or fails; an append is answered with its address.
//! - A flush makes every append durable that was answered before, through any queue. A zone whose flush
//!   failed fails every later flush until it is finished or reset.
//! - A zone that was written up to its capacity is finished and counts against no limit.
//! - While the limit of open zones is reached, an implicitly open zone is closed to open another one, as an
//!   NVMe controller does.
//! - While the limit of active zones is reached, an interrupted zone, which the kernel treats as full, is
//!   finished to open another one.
//! - Bytes at and after the write pointer read as zeros.
//!
//! A read during a reset of its zone returns the zone's old bytes or zeros, or fails.

use super::protocol::{Action, MAX_REQUEST_BYTES};
use super::queue::{Done, Target};
use super::zoned::{DESCRIPTION_BYTES, Layout, ZoneOperation, parse};
use crate::served::counters::counters;
use block::{
    Buffer, Call, Data, Durability, EraseGuarantee, Error, Result, ZoneAddress, ZoneGeometry, ZoneIndex,
    ZoneReport, ZoneState, Zones,
};
use runtime::ublk_driver::RequestDescriptor;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Number of zones in one report.
const LOOK: u32 = 1024;
/// Most zones that are closed for one opening; other requests may open them again meanwhile.
const MAX_CLOSED: u32 = 64;

/// Served zones, shared by all shards.
pub(super) struct ZonesExport {
    /// Layout on the block device.
    pub(super) layout: Layout,
    /// Whether changes are refused.
    pub(super) read_only: bool,
    /// Totals of the requests that have ended.
    pub(super) counters: ZoneCounters,
    /// Guarantee that resets ask for.
    erase: EraseGuarantee,
    unflushed: Unflushed,
    /// Zone that was last closed to open another one; initially none.
    closed: AtomicU32,
}

impl ZonesExport {
    /// Returns the export of zones with this geometry.
    ///
    /// # Errors
    /// Errors of [`Layout::of`].
    pub(super) fn new(geometry: &ZoneGeometry, read_only: bool) -> Result<ZonesExport> {
        Ok(ZonesExport {
            layout: Layout::of(geometry)?,
            read_only,
            counters: ZoneCounters::default(),
            erase: geometry.erase.min(EraseGuarantee::Deallocated),
            unflushed: Unflushed::default(),
            closed: AtomicU32::new(u32::MAX),
        })
    }
}

counters! {
    ZoneCounters, ZoneTally:
    reads,
    read_bytes,
    writes,
    written_bytes,
    appends,
    appended_bytes,
    flushes,
    opens,
    closes,
    finishes,
    resets,
    reports,
    errors,
}

/// Number of interrupted zones.
///
/// # Errors
/// Errors of [`Zones::report`].
pub(super) async fn interrupted(zones: &dyn Zones) -> Result<u32> {
    let mut count = 0;
    each_zone(zones, |report| count += u32::from(report.state == ZoneState::Interrupted)).await?;
    Ok(count)
}

/// Passes the reports of all zones to `visit`, in order.
async fn each_zone(zones: &dyn Zones, mut visit: impl FnMut(&ZoneReport)) -> Result<()> {
    let mut next = 0;
    while next < zones.geometry().zones {
        let reports = zones.report(ZoneIndex(next), LOOK).await?;
        reports.iter().for_each(&mut visit);
        next = next.saturating_add(LOOK);
    }
    Ok(())
}

async fn report_of(zones: &dyn Zones, zone: ZoneIndex) -> Result<ZoneReport> {
    let report = zones.report(zone, 1).await?.first().copied();
    report.ok_or_else(|| Error::invalid(format!("zone {zone}: there is no report of it")))
}

/// Zones with unflushed appends, each with the number of its last append.
#[derive(Default)]
struct Unflushed(Mutex<(u64, BTreeMap<ZoneIndex, u64>)>);

/// Zones, each with the number of its last append that a flush covers.
type Covered = Vec<(ZoneIndex, u64)>;

impl Unflushed {
    fn lock(&self) -> MutexGuard<'_, (u64, BTreeMap<ZoneIndex, u64>)> {
        // Nothing panics while the lock is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn appended(&self, zone: ZoneIndex) {
        let mut state = self.lock();
        state.0 += 1;
        let number = state.0;
        state.1.insert(zone, number);
    }

    fn all(&self) -> Covered {
        self.lock().1.iter().map(|(zone, number)| (*zone, *number)).collect()
    }

    fn of(&self, zone: ZoneIndex) -> Covered {
        self.lock().1.get(&zone).map(|number| (zone, *number)).into_iter().collect()
    }

    /// Removes zones without an append after the covered one.
    fn forget(&self, covered: &Covered) {
        let mut state = self.lock();
        for (zone, number) in covered {
            if state.1.get(zone) == Some(number) {
                state.1.remove(zone);
            }
        }
    }
}

/// Zones for the requests of one queue.
pub(super) struct ZonesTarget<'d> {
    export: &'d ZonesExport,
    zones: &'d dyn Zones,
    tally: ZoneTally,
}

impl<'d> ZonesTarget<'d> {
    /// Returns the target of a shard's requests; `zones` is the shard's handle.
    pub(super) fn new(export: &'d ZonesExport, zones: &'d dyn Zones) -> Self {
        ZonesTarget { export, zones, tally: ZoneTally::default() }
    }
}

impl<'d> Target for ZonesTarget<'d> {
    type Operation = ZoneOperation;
    type Work = Call<'d, Result<Done>>;

    fn parse(&self, request: &RequestDescriptor) -> Action<ZoneOperation> {
        parse(request, &self.export.layout, self.export.read_only)
    }

    fn payload(operation: ZoneOperation) -> Option<usize> {
        operation.payload()
    }

    fn begin(&self, operation: ZoneOperation, payload: Option<Buffer>) -> Self::Work {
        let served = Served { export: self.export, zones: self.zones };
        let data = payload.map_or_else(|| Data::copy_of(&[]), Buffer::freeze);
        Call::new(served.carry_out(operation, data))
    }

    fn count(&mut self, operation: ZoneOperation) {
        use ZoneOperation::*;
        let tally = &mut self.tally;
        match operation {
            Read(_, length) => {
                (tally.reads, tally.read_bytes) = (tally.reads + 1, tally.read_bytes + u64::from(length))
            }
            Write(_, length, _) => {
                (tally.writes, tally.written_bytes) =
                    (tally.writes + 1, tally.written_bytes + u64::from(length))
            }
            Append(_, length, _) => {
                (tally.appends, tally.appended_bytes) =
                    (tally.appends + 1, tally.appended_bytes + u64::from(length))
            }
            Flush => tally.flushes += 1,
            Open(_) => tally.opens += 1,
            Close(_) => tally.closes += 1,
            Finish(_) => tally.finishes += 1,
            Reset(_) | ResetAll => tally.resets += 1,
            Report(..) => tally.reports += 1,
        }
    }

    fn count_error(&mut self) {
        self.tally.errors += 1;
    }

    fn publish(&mut self) {
        if self.tally != ZoneTally::default() {
            self.export.counters.add(&mut self.tally);
        }
    }

    /// The kernel accepts few errors from a disk; all others become I/O errors.
    fn errno(error: &Error) -> i32 {
        const KNOWN: [i32; 7] = [
            libc::ENOSPC,
            libc::EOPNOTSUPP,
            libc::ETIMEDOUT,
            libc::ENOMEM,
            libc::EROFS,
            OPEN_ZONES_EXCEEDED,
            ACTIVE_ZONES_EXCEEDED,
        ];
        let errno = error.errno();
        if KNOWN.contains(&errno) { errno } else { libc::EIO }
    }
}

/// The block layer's BLK_STS_ZONE_OPEN_RESOURCE.
const OPEN_ZONES_EXCEEDED: i32 = libc::ETOOMANYREFS;
/// The block layer's BLK_STS_ZONE_ACTIVE_RESOURCE.
const ACTIVE_ZONES_EXCEEDED: i32 = libc::EOVERFLOW;

/// Summary of a report: numbers of open and active zones, and candidates to close or finish.
struct Opened {
    open: u32,
    active: u32,
    /// State of the zone that is to be opened.
    state: ZoneState,
    /// Implicitly open zone after the one that was closed last.
    victim: Option<ZoneIndex>,
    /// An interrupted zone.
    interrupted: Option<ZoneIndex>,
}

/// Zones on a shard, and the state of the export that all shards share.
#[derive(Clone, Copy)]
struct Served<'d> {
    export: &'d ZonesExport,
    zones: &'d dyn Zones,
}

impl Served<'_> {
    async fn carry_out(self, operation: ZoneOperation, data: Data) -> Result<Done> {
        let Served { export, zones } = self;
        match operation {
            ZoneOperation::Read(at, length) => {
                let data = self.read(at, length as usize).await?;
                return Ok(Done { data: Some(data), result: length as i32, sector: 0 });
            }
            ZoneOperation::Write(at, length, durability) => {
                self.with_room(at.zone, || zones.append_at(at, data.clone().into())).await?;
                self.appended(at, length, durability).await?;
                return Ok(Done { result: length as i32, ..Done::default() });
            }
            ZoneOperation::Append(zone, length, durability) => {
                let at = self.with_room(zone, || zones.append(zone, data.clone().into())).await?;
                self.appended(at, length, durability).await?;
                let sector = export.layout.sector(at);
                return Ok(Done { data: None, result: length as i32, sector });
            }
            ZoneOperation::Flush => self.flush(export.unflushed.all()).await?,
            ZoneOperation::Open(zone) => self.with_room(zone, || zones.open(zone)).await?,
            ZoneOperation::Close(zone) => zones.close(zone).await?,
            ZoneOperation::Finish(zone) => self.finish(zone).await?,
            ZoneOperation::Reset(zone) => self.reset(zone).await?,
            ZoneOperation::ResetAll => self.reset_all().await?,
            ZoneOperation::Report(first, count) => {
                let reports = zones.report(first, count).await?;
                let mut described = Buffer::new(reports.len() * DESCRIPTION_BYTES);
                reports.iter().for_each(|report| described.append(&export.layout.describe(report)));
                // The kernel's memory for a report may be longer than the zones that it asks for. It asks
                // again for the rest of a short result, and uses a longer result as if it were complete.
                let result = MAX_REQUEST_BYTES as i32;
                return Ok(Done { data: Some(described.freeze()), result, sector: 0 });
            }
        }
        Ok(Done::default())
    }

    async fn read(self, at: ZoneAddress, length: usize) -> Result<Data> {
        let capacity = self.export.layout.capacity;
        if at.offset.0 + length as u64 <= capacity {
            let (outcome, buffer) = self.zones.read(at, Buffer::new(length)).await;
            match outcome {
                Ok(()) => return whole(buffer),
                Err(Error::Invalid(_)) => {}
                Err(error) => return Err(error),
            }
        }
        // Part of the range was never written.
        let report = report_of(self.zones, at.zone).await?;
        if report.state == ZoneState::Offline {
            return Err(Error::io(format!("read of {length} bytes at {at}: the zone is offline")));
        }
        let written = report.write_pointer.min(capacity).saturating_sub(at.offset.0).min(length as u64);
        let mut bytes = Buffer::new(length);
        if written > 0 {
            let (outcome, part) = self.zones.read(at, Buffer::new(written as usize)).await;
            outcome?;
            bytes.append(&whole(part)?);
        }
        bytes.append_zeroes(length - written as usize);
        Ok(bytes.freeze())
    }

    /// Completes the steps that an append needs before it is answered.
    async fn appended(self, at: ZoneAddress, length: u32, durability: Durability) -> Result<()> {
        let export = self.export;
        if export.layout.volatile_cache {
            export.unflushed.appended(at.zone);
            if durability == Durability::Durable {
                self.flush(export.unflushed.of(at.zone)).await?;
            }
        }
        let is_last = at.offset.0 + u64::from(length) >= export.layout.capacity;
        if is_last && let Err(error) = self.finish(at.zone).await {
            // The append itself has succeeded.
            tracing::warn!("a zone that was written up to its capacity: {error}");
        }
        Ok(())
    }

    async fn flush(self, covered: Covered) -> Result<()> {
        let zones: Vec<ZoneIndex> = covered.iter().map(|(zone, _)| *zone).collect();
        if !zones.is_empty() {
            self.zones.flush(&zones).await?;
            self.export.unflushed.forget(&covered);
        }
        Ok(())
    }

    async fn finish(self, zone: ZoneIndex) -> Result<()> {
        let covered = self.export.unflushed.of(zone);
        self.zones.finish(zone).await?;
        self.export.unflushed.forget(&covered);
        Ok(())
    }

    async fn reset(self, zone: ZoneIndex) -> Result<()> {
        let covered = self.export.unflushed.of(zone);
        if report_of(self.zones, zone).await?.state != ZoneState::Empty {
            self.zones.reset(zone, self.export.erase).await?;
        }
        self.export.unflushed.forget(&covered);
        Ok(())
    }

    /// Resets all zones that can be reset, also after an error, which is returned.
    async fn reset_all(self) -> Result<()> {
        let mut held = Vec::new();
        let is_held = |state| !matches!(state, ZoneState::Empty | ZoneState::ReadOnly | ZoneState::Offline);
        each_zone(self.zones, |report| held.extend(is_held(report.state).then_some(report.zone))).await?;
        let mut outcome = Ok(());
        for zone in held {
            outcome = outcome.and(self.reset(zone).await);
        }
        outcome
    }

    /// Repeats an operation that opens a zone while other zones can be closed or finished for it.
    ///
    /// # Errors
    /// ETOOMANYREFS or EOVERFLOW where the limit of open or active zones is reached; errors of the operation.
    async fn with_room<'c, T>(self, zone: ZoneIndex, attempt: impl Fn() -> Call<'c, Result<T>>) -> Result<T> {
        for _ in 0..MAX_CLOSED {
            match attempt().await {
                Err(Error::Busy(_)) => self.make_room(zone).await?,
                other => return other,
            }
        }
        let detail = format!("zone {zone}: other zones are opened as fast as they are closed for it");
        Err(Error::from_errno(OPEN_ZONES_EXCEEDED, detail))
    }

    async fn make_room(self, zone: ZoneIndex) -> Result<()> {
        let Layout { max_open, max_active, .. } = self.export.layout;
        let Opened { open, active, state, victim, interrupted } = self.opened(zone).await?;
        if !state.is_active() && max_active != 0 && active >= max_active {
            if let Some(interrupted) = interrupted {
                return self.finish(interrupted).await;
            }
            let detail = format!("zone {zone}: {active} zones are active, the limit; finish or reset one");
            return Err(Error::from_errno(ACTIVE_ZONES_EXCEEDED, detail));
        }
        if max_open == 0 || open < max_open {
            // Another request has closed a zone meanwhile.
            return Ok(());
        }
        let Some(victim) = victim else {
            let detail = format!("zone {zone}: {open} zones are explicitly open, the limit; close one");
            return Err(Error::from_errno(OPEN_ZONES_EXCEEDED, detail));
        };
        self.export.closed.store(victim.0, Ordering::Relaxed);
        match self.zones.close(victim).await {
            // The zone's state has changed meanwhile.
            Err(Error::Invalid(_)) => Ok(()),
            other => other,
        }
    }

    async fn opened(self, zone: ZoneIndex) -> Result<Opened> {
        let last = self.export.closed.load(Ordering::Relaxed);
        let (mut open, mut active, mut state) = (0, 0, ZoneState::Empty);
        let (mut first, mut next, mut interrupted) = (None, None, None);
        let visit = |report: &ZoneReport| {
            open += u32::from(report.state.is_open());
            active += u32::from(report.state.is_active());
            if report.zone == zone {
                state = report.state;
            } else if report.state == ZoneState::ImplicitlyOpen {
                first = first.or(Some(report.zone));
                next = next.or((report.zone.0 > last).then_some(report.zone));
            } else if report.state == ZoneState::Interrupted {
                interrupted = Some(report.zone);
            }
        };
        each_zone(self.zones, visit).await?;
        Ok(Opened { open, active, state, victim: next.or(first), interrupted })
    }
}

/// Bytes of a read that must be complete.
fn whole(buffer: Buffer) -> Result<Data> {
    match buffer.missing() {
        0 => Ok(buffer.freeze()),
        missing => Err(Error::io(format!(
            "the zones returned {} bytes: expected {}",
            buffer.filled().len(),
            buffer.filled().len() + missing
        ))),
    }
}

#[cfg(test)]
#[path = "zone_target_tests.rs"]
mod tests;
