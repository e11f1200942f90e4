//! The expected state of every zone, and the calls that change it.

use super::open_handles;
use crate::stamp::{append_bytes, scattered};
use crate::suite::{Check, ensure, succeeds};
use block::{
    Buffer, EraseGuarantee, Payload, Result, ZoneAddress, ZoneGeometry, ZoneIndex, ZoneReport, ZoneState,
    Zones, ZonesPart,
};
use runtime::Random;
use std::rc::Rc;
use std::sync::Arc;

/// An append that has completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Known {
    pub(super) id: u64,
    pub(super) offset: u64,
    pub(super) length: usize,
}

/// Expected state of a zone.
#[derive(Debug, Clone)]
pub(super) struct ZoneModel {
    /// State without failures: never interrupted, read-only or offline.
    pub(super) state: ZoneState,
    pub(super) generation: u64,
    pub(super) appends: Vec<Known>,
}

impl ZoneModel {
    /// End of the last known append, in bytes.
    pub(super) fn end(&self) -> u64 {
        self.appends.iter().map(|known| known.offset + known.length as u64).max().unwrap_or(0)
    }
}

/// State that the sections share. It has no handles while the part is closed.
pub(super) struct Suite {
    part: Option<Arc<dyn ZonesPart>>,
    handles: Vec<Rc<dyn Zones>>,
    pub(super) geometry: ZoneGeometry,
    pub(super) seed: u64,
    pub(super) random: Random,
    pub(super) zones: Vec<ZoneModel>,
    next_id: u64,
}

impl Suite {
    pub(super) async fn new(part: Arc<dyn ZonesPart>, seed: u64, most_zones: u32) -> Check<Suite> {
        let handles = open_handles(&part).await?.to_vec();
        let geometry = part.geometry().clone();
        let used = geometry.zones.min(most_zones.max(4));
        let unknown = ZoneModel { state: ZoneState::Full, generation: 0, appends: Vec::new() };
        let zones = vec![unknown; used as usize];
        Ok(Suite { part: Some(part), handles, geometry, seed, random: Random::new(seed), zones, next_id: 1 })
    }

    pub(super) fn part(&self) -> Arc<dyn ZonesPart> {
        self.part.clone().expect("sections run while the part is open")
    }

    pub(super) fn first(&self) -> Rc<dyn Zones> {
        self.handles[0].clone()
    }

    pub(super) fn any_handle(&mut self) -> Rc<dyn Zones> {
        self.handles[self.random.below(2) as usize].clone()
    }

    pub(super) async fn close(&mut self) -> Check {
        self.handles.clear();
        let part = self.part.take().expect("a part is closed once");
        succeeds(part.close().await, "closing the part")
    }

    /// Drops all handles and returns the part.
    pub(super) fn take_part(&mut self) -> Arc<dyn ZonesPart> {
        self.handles.clear();
        self.part.take().expect("a part is taken once")
    }

    pub(super) async fn reopen(&mut self, part: Arc<dyn ZonesPart>) -> Check {
        self.handles = open_handles(&part).await?.to_vec();
        self.part = Some(part);
        Ok(())
    }

    pub(super) fn all_zones(&self) -> std::ops::Range<u32> {
        0..self.zones.len() as u32
    }

    /// Most zones that may be open at a time.
    pub(super) fn limit(&self) -> u32 {
        let limits = [self.geometry.max_open, self.geometry.max_active];
        limits.into_iter().filter(|limit| *limit != 0).min().unwrap_or(u32::MAX)
    }

    /// Random guarantee that these zones support.
    pub(super) fn any_guarantee(&mut self) -> EraseGuarantee {
        let all =
            [EraseGuarantee::None, EraseGuarantee::Deallocated, EraseGuarantee::Erased, EraseGuarantee::Key];
        let given: Vec<_> = all.into_iter().filter(|erase| *erase <= self.geometry.erase).collect();
        given[self.random.below(given.len() as u64) as usize]
    }

    /// Random length that fits into `room` bytes, often a small one.
    pub(super) fn any_length(&mut self, room: u64) -> usize {
        let unit = u64::from(self.geometry.append_granularity);
        let most = self.geometry.max_append.min(room) / unit;
        let most = if self.random.below(8) == 0 { most } else { most.min(32) };
        ((1 + self.random.below(most.max(1))) * unit) as usize
    }

    /// Number and bytes of a new append.
    pub(super) fn payload(&mut self, length: usize) -> (u64, Payload) {
        let id = self.next_id;
        self.next_id += 1;
        let bytes = append_bytes(self.seed, id, length);
        (id, scattered(&mut self.random, &bytes))
    }

    pub(super) async fn report(&self) -> Check<Vec<ZoneReport>> {
        let all = self.first().report(ZoneIndex(0), self.geometry.zones).await;
        let reports = succeeds(all, "a report of all zones")?;
        ensure(reports.len() == self.geometry.zones as usize, || {
            format!("a report of {} zones has {} entries", self.geometry.zones, reports.len())
        })?;
        for (index, report) in reports.iter().enumerate() {
            ensure(report.zone.0 as usize == index, || {
                format!("entry {index} is about zone {}", report.zone)
            })?;
            self.check_report(report)?;
        }
        Ok(reports)
    }

    pub(super) async fn report_of(&self, zone: u32) -> Check<ZoneReport> {
        let reports =
            succeeds(self.first().report(ZoneIndex(zone), 1).await, format!("report of zone {zone}"))?;
        match reports.as_slice() {
            [report] if report.zone.0 == zone => self.check_report(report).map(|()| *report),
            other => Err(format!("report of zone {zone}: {other:?}")),
        }
    }

    /// Checks the invariants of a report that hold for every zone.
    fn check_report(&self, report: &ZoneReport) -> Check {
        let ZoneReport { zone, state, write_pointer, .. } = *report;
        ensure(write_pointer <= self.geometry.zone_capacity, || {
            format!("zone {zone}: write pointer {write_pointer} beyond its capacity")
        })?;
        ensure(state != ZoneState::Empty || write_pointer == 0, || {
            format!("zone {zone} is empty, with write pointer {write_pointer}")
        })
    }

    /// Resets every zone that isn't empty, also unused ones: they count against limits.
    pub(super) async fn empty_all(&mut self) -> Check {
        for report in self.report().await? {
            if report.state != ZoneState::Empty {
                let handle = self.any_handle();
                let reset = handle.reset(report.zone, EraseGuarantee::None).await;
                let generation = succeeds(reset, format!("reset of zone {}", report.zone))?;
                ensure(generation > report.generation, || {
                    format!(
                        "reset of zone {}: generation {} after {}",
                        report.zone, generation, report.generation
                    )
                })?;
            }
        }
        for report in self.report().await? {
            ensure(report.state == ZoneState::Empty, || {
                format!("zone {} is {:?} after its reset", report.zone, report.state)
            })?;
            if let Some(zone) = self.zones.get_mut(report.zone.0 as usize) {
                let generation = report.generation;
                *zone = ZoneModel { state: ZoneState::Empty, generation, appends: Vec::new() };
            }
        }
        Ok(())
    }

    /// Appends `length` bytes, which has to succeed.
    pub(super) async fn append(&mut self, zone: u32, length: usize) -> Check<Known> {
        let (id, payload) = self.payload(length);
        let outcome = self.any_handle().append(ZoneIndex(zone), payload).await;
        let at = succeeds(outcome, format!("append of {length} bytes to zone {zone}"))?;
        self.landed(zone, id, length, at)
    }

    /// Adds a completed append to the model. It must not overlap another one.
    pub(super) fn landed(&mut self, zone: u32, id: u64, length: usize, at: ZoneAddress) -> Check<Known> {
        let known = Known { id, offset: at.offset.0, length };
        let end = known.offset.checked_add(length as u64);
        ensure(at.zone.0 == zone, || format!("an append to zone {zone} landed at {at}"))?;
        let inside = end.is_some_and(|end| end <= self.geometry.zone_capacity);
        let aligned = known.offset.is_multiple_of(u64::from(self.geometry.read_granularity));
        ensure(inside && aligned, || format!("an append of {length} bytes landed at {at}"))?;
        let model = &mut self.zones[zone as usize];
        let end = known.offset + length as u64;
        let other = model
            .appends
            .iter()
            .find(|other| other.offset < end && known.offset < other.offset + other.length as u64);
        if let Some(other) = other {
            return Err(format!(
                "zone {zone}: append {id} landed at bytes {}..{end}, on append {} at byte {}",
                known.offset, other.id, other.offset
            ));
        }
        model.appends.push(known);
        if matches!(model.state, ZoneState::Empty | ZoneState::Closed) {
            model.state = ZoneState::ImplicitlyOpen;
        }
        Ok(known)
    }

    /// Appends `length` bytes at `offset`, which has to succeed.
    pub(super) async fn append_at(&mut self, zone: u32, offset: u64, length: usize) -> Check<Known> {
        let (id, payload) = self.payload(length);
        let at = ZoneAddress::new(zone, offset);
        let outcome = self.any_handle().append_at(at, payload).await;
        succeeds(outcome, format!("append of {length} bytes at {at}"))?;
        self.landed(zone, id, length, at)
    }

    pub(super) async fn open(&mut self, zone: u32) -> Check {
        succeeds(self.any_handle().open(ZoneIndex(zone)).await, format!("opening zone {zone}"))?;
        self.zones[zone as usize].state = ZoneState::ExplicitlyOpen;
        Ok(())
    }

    pub(super) async fn close_zone(&mut self, zone: u32) -> Check {
        succeeds(self.any_handle().close(ZoneIndex(zone)).await, format!("closing zone {zone}"))?;
        self.zones[zone as usize].state = ZoneState::Closed;
        Ok(())
    }

    pub(super) async fn check_one(&self, handle: &dyn Zones, zone: u32, known: Known) -> Check {
        check_append(handle, self.seed, zone, known).await
    }

    /// Reads every append of a zone through both handles, and compares the zone's report.
    pub(super) async fn check_zone(&self, zone: u32) -> Check {
        let model = &self.zones[zone as usize];
        for known in &model.appends {
            for handle in &self.handles {
                self.check_one(&**handle, zone, *known).await?;
            }
        }
        let report = self.report_of(zone).await?;
        let filled_up = model.state.is_active()
            && report.state == ZoneState::Full
            && report.write_pointer == self.geometry.zone_capacity;
        ensure(report.state == model.state || filled_up, || {
            format!("zone {zone} must be {:?}, and is {:?}", model.state, report.state)
        })?;
        ensure(report.write_pointer >= model.end(), || {
            format!(
                "zone {zone}: write pointer {}, and an append ends at {}",
                report.write_pointer,
                model.end()
            )
        })?;
        ensure(report.generation == model.generation, || {
            format!("zone {zone}: generation {}, expected {}", report.generation, model.generation)
        })
    }

    pub(super) async fn check_all(&self) -> Check {
        for zone in self.all_zones() {
            self.check_zone(zone).await?;
        }
        Ok(())
    }

    pub(super) async fn finish(&mut self, zone: u32) -> Check {
        succeeds(self.any_handle().finish(ZoneIndex(zone)).await, format!("finish of zone {zone}"))?;
        self.zones[zone as usize].state = ZoneState::Full;
        Ok(())
    }

    pub(super) async fn reset(&mut self, zone: u32, erase: EraseGuarantee) -> Check {
        let outcome = self.any_handle().reset(ZoneIndex(zone), erase).await;
        let generation = succeeds(outcome, format!("reset of zone {zone} with the guarantee {erase}"))?;
        self.was_reset(zone, generation)
    }

    pub(super) fn was_reset(&mut self, zone: u32, generation: u64) -> Check {
        let model = &mut self.zones[zone as usize];
        ensure(generation > model.generation, || {
            format!("zone {zone}: a reset gave generation {generation} after {}", model.generation)
        })?;
        *model = ZoneModel { state: ZoneState::Empty, generation, appends: Vec::new() };
        Ok(())
    }
}

/// Reads bytes of a zone; a failed read must return none.
pub(super) async fn read(
    handle: &dyn Zones,
    at: ZoneAddress,
    length: usize,
    used: bool,
) -> Check<Result<Buffer>> {
    let buffer = if used { Buffer::copy_of(&vec![0x77; length]) } else { Buffer::new(length) };
    let (outcome, buffer) = handle.read(at, buffer).await;
    ensure(buffer.len() == length, || format!("a read of {length} bytes at {at} gave back {buffer:?}"))?;
    match outcome {
        Ok(()) => {
            ensure(buffer.missing() == 0, || {
                format!("a read of {length} bytes at {at} succeeded with {buffer:?}")
            })?;
            Ok(Ok(buffer))
        }
        Err(error) => {
            ensure(buffer.filled().is_empty(), || {
                format!("a failed read at {at} shows {buffer:?}; expected nothing")
            })?;
            Ok(Err(error))
        }
    }
}

/// Reads one append back and compares it.
pub(super) async fn check_append(handle: &dyn Zones, seed: u64, zone: u32, known: Known) -> Check {
    let Known { id, offset, length } = known;
    let at = ZoneAddress::new(zone, offset);
    let what = || format!("a read of append {id}, {length} bytes at {at}");
    let buffer = succeeds(read(handle, at, length, id % 2 == 0).await?, what())?;
    let expected = append_bytes(seed, id, length);
    let differs = buffer.filled().iter().zip(&expected).position(|(found, expected)| found != expected);
    match differs {
        None => Ok(()),
        Some(byte) => Err(format!("{}: byte {byte} isn't what was appended", what())),
    }
}
