//! Zones whose changes stay in memory: the zones below are read and never written.
//!
//! Recovery of a damaged log writes roots and finishes zones; over an overlay it leaves the medium unchanged.
//!
//! # Promises
//! - No call changes the zones below. Zones that are partly written there are readable and accept no appends:
//!   they are finished or reset, in memory.
//! - Appends take memory up to [`Overlay::new`]'s limit; beyond it they fail with [`Error::NoSpace`].
//! - Appends are in order, and nothing is durable: a flush has no effect.

use crate::errors;
use block::{
    Buffer, CachedBytes, Call, Durable, EraseGuarantee, Error, Part, Payload, ReadOutcome, Result, Staging,
    Status, ZoneAddress, ZoneGeometry, ZoneIndex, ZoneReport, ZoneState, Zones, ZonesPart,
};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Zones below, and the changes to them.
pub struct Overlay {
    below: Arc<dyn ZonesPart>,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    geometry: ZoneGeometry,
    /// Limit of the appended bytes in memory.
    most_bytes: u64,
    /// Held for a lookup or a copy, never over an await.
    changes: Mutex<Changes>,
}

#[derive(Debug, Default)]
struct Changes {
    /// The zones that were changed.
    zones: BTreeMap<ZoneIndex, Changed>,
    /// Number of appended bytes of all these zones.
    bytes: u64,
}

/// A zone that was changed.
#[derive(Debug)]
enum Changed {
    /// Finished in memory: its contents are those below, up to the write pointer of this report.
    Finished(ZoneReport),
    /// Reset, or empty below; its contents are in memory.
    Own { state: ZoneState, generation: u64, bytes: Vec<u8> },
}

impl Changed {
    fn report(&self, zone: ZoneIndex) -> ZoneReport {
        match self {
            Changed::Finished(report) => *report,
            Changed::Own { state, generation, bytes } => {
                ZoneReport { zone, state: *state, write_pointer: bytes.len() as u64, generation: *generation }
            }
        }
    }
}

impl Overlay {
    /// Creates an overlay over zones; `most_bytes` limits the appended bytes in memory.
    pub fn new(below: Arc<dyn ZonesPart>, most_bytes: u64) -> Self {
        let geometry = ZoneGeometry {
            max_open: 0,
            max_active: 0,
            durable: Durable::OnFlush,
            erase: EraseGuarantee::Erased,
            ..below.geometry().clone()
        };
        Overlay { below, shared: Arc::new(Shared { geometry, most_bytes, changes: Mutex::default() }) }
    }
}

impl std::fmt::Debug for Overlay {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Overlay").field("shared", &self.shared).finish_non_exhaustive()
    }
}

impl Part for Overlay {
    fn kind(&self) -> &'static str {
        "overlay"
    }

    fn status(&self) -> Call<'_, Status> {
        let mut status = Status::new();
        let changes = self.shared.changes();
        status.insert("changed_zones".into(), changes.zones.len().into());
        status.insert("memory_bytes".into(), changes.bytes.into());
        Call::ready(status)
    }

    fn close(&self) -> Call<'_, Result<()>> {
        self.below.close()
    }
}

impl ZonesPart for Overlay {
    fn geometry(&self) -> &ZoneGeometry {
        &self.shared.geometry
    }

    fn open(&self) -> Call<'_, Result<Rc<dyn Zones>>> {
        Call::new(async move {
            let below = self.below.open().await?;
            Ok(Rc::new(Handle { below, shared: self.shared.clone() }) as Rc<dyn Zones>)
        })
    }
}

impl Shared {
    fn changes(&self) -> MutexGuard<'_, Changes> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Handle {
    below: Rc<dyn Zones>,
    shared: Arc<Shared>,
}

impl Handle {
    /// State of a zone.
    async fn state_of(&self, zone: ZoneIndex) -> Result<ZoneReport> {
        self.shared.geometry.check_zone(zone)?;
        if let Some(changed) = self.shared.changes().zones.get(&zone) {
            return Ok(changed.report(zone));
        }
        let reports = self.below.report(zone, 1).await?;
        reports.first().copied().ok_or_else(|| Error::invalid(format!("zone {zone}: it has no report")))
    }

    /// Changes the contents of a zone in memory; an empty zone gets its contents there first.
    async fn change<T>(
        &self,
        zone: ZoneIndex,
        change: impl FnOnce(&mut ZoneState, &mut Vec<u8>, &mut u64) -> Result<T>,
    ) -> Result<T> {
        let found = self.state_of(zone).await?;
        let mut changes = self.shared.changes();
        let Changes { zones, bytes: total } = &mut *changes;
        if found.state == ZoneState::Empty {
            let own = Changed::Own { state: found.state, generation: found.generation, bytes: Vec::new() };
            // Another handle may have changed the zone since its state was read.
            zones.entry(zone).or_insert(own);
        }
        match zones.get_mut(&zone) {
            Some(Changed::Own { state, bytes, .. })
                if state.is_open() || matches!(state, ZoneState::Empty | ZoneState::Closed) =>
            {
                change(state, bytes, total)
            }
            _ => Err(Error::invalid(format!(
                "zone {zone} is {:?} below the overlay: appends need an empty or reset zone; finish or reset it, and use another",
                found.state
            ))),
        }
    }

    async fn append(&self, zone: ZoneIndex, wanted: Option<u64>, payload: Payload) -> Result<ZoneAddress> {
        let (capacity, most) = (self.shared.geometry.zone_capacity, self.shared.most_bytes);
        self.change(zone, |state, bytes, total| {
            let at = bytes.len() as u64;
            if let Some(wanted) = wanted.filter(|wanted| *wanted != at) {
                return Err(errors::misplaced(zone, wanted, at));
            }
            let length = payload.len() as u64;
            if length > capacity - at {
                return Err(errors::exceeds_zone(zone, length, capacity - at));
            }
            if length > most - (*total).min(most) {
                return Err(Error::no_space(format!(
                    "append of {length} bytes to zone {zone}: changes over these zones are held in memory, at most {most} bytes of them"
                )));
            }
            payload.slices().iter().for_each(|slice| bytes.extend_from_slice(slice));
            *total += length;
            if !state.is_open() {
                *state = ZoneState::ImplicitlyOpen;
            }
            Ok(ZoneAddress::new(zone.0, at))
        })
        .await
    }

    async fn finish(&self, zone: ZoneIndex) -> Result<()> {
        let found = self.state_of(zone).await?;
        if found.state == ZoneState::Offline {
            return Err(Error::invalid(format!("zone {zone} is offline: it can't be finished")));
        }
        let mut changes = self.shared.changes();
        match changes.zones.get_mut(&zone) {
            Some(Changed::Own { state, .. }) => *state = ZoneState::Full,
            Some(Changed::Finished(_)) => {}
            None if found.state == ZoneState::Empty => {
                let own =
                    Changed::Own { state: ZoneState::Full, generation: found.generation, bytes: Vec::new() };
                changes.zones.insert(zone, own);
            }
            None => {
                changes.zones.insert(zone, Changed::Finished(ZoneReport { state: ZoneState::Full, ..found }));
            }
        }
        Ok(())
    }

    async fn reset(&self, zone: ZoneIndex) -> Result<u64> {
        // This includes a zone that is offline below: its new contents are in memory.
        let found = self.state_of(zone).await?;
        let mut changes = self.shared.changes();
        let generation =
            changes.zones.get(&zone).map_or(found, |changed| changed.report(zone)).generation + 1;
        let own = Changed::Own { state: ZoneState::Empty, generation, bytes: Vec::new() };
        if let Some(Changed::Own { bytes, .. }) = changes.zones.insert(zone, own) {
            changes.bytes -= bytes.len() as u64;
        }
        Ok(generation)
    }

    /// Reads a zone whose contents are in memory; `None` for one whose contents are below.
    fn read_own(&self, at: ZoneAddress, buffer: &mut Buffer) -> Option<Result<()>> {
        let length = buffer.len();
        let changes = self.shared.changes();
        let Changed::Own { bytes, .. } = changes.zones.get(&at.zone)? else { return None };
        let start = at.offset.0 as usize;
        buffer.clear();
        let there = start.checked_add(length).and_then(|end| bytes.get(start..end));
        Some(match there {
            Some(bytes) => {
                buffer.append(bytes);
                Ok(())
            }
            None => Err(errors::exceeds_write_pointer(at, length, bytes.len() as u64)),
        })
    }
}

/// Staging area below, which the overlay doesn't change: what it holds is ignored once a store over the
/// overlay has read it.
struct UnchangedStaging(Rc<dyn Staging>);

impl Staging for UnchangedStaging {
    fn bytes(&self) -> u64 {
        self.0.bytes()
    }

    fn read(&self) -> Call<'_, Result<Buffer>> {
        self.0.read()
    }

    fn erase(&self) -> Call<'_, Result<()>> {
        Call::ready(Ok(()))
    }

    fn open_cached(&self) -> Option<Box<dyn CachedBytes>> {
        None
    }
}

impl Zones for Handle {
    fn geometry(&self) -> &ZoneGeometry {
        &self.shared.geometry
    }

    fn staging(&self) -> Option<Rc<dyn Staging>> {
        self.below.staging().map(|below| Rc::new(UnchangedStaging(below)) as Rc<dyn Staging>)
    }

    fn append(&self, zone: ZoneIndex, payload: Payload) -> Call<'_, Result<ZoneAddress>> {
        match self.shared.geometry.check_append(zone, payload.len()) {
            Ok(()) => Call::new(self.append(zone, None, payload)),
            Err(error) => Call::ready(Err(error)),
        }
    }

    fn append_at(&self, at: ZoneAddress, payload: Payload) -> Call<'_, Result<()>> {
        match self.shared.geometry.check_append_at(at, payload.len()) {
            Ok(()) => {
                Call::new(async move { self.append(at.zone, Some(at.offset.0), payload).await.map(drop) })
            }
            Err(error) => Call::ready(Err(error)),
        }
    }

    fn open(&self, zone: ZoneIndex) -> Call<'_, Result<()>> {
        Call::new(self.change(zone, |state, _, _| {
            *state = ZoneState::ExplicitlyOpen;
            Ok(())
        }))
    }

    fn close(&self, zone: ZoneIndex) -> Call<'_, Result<()>> {
        Call::new(self.change(zone, move |state, _, _| match state {
            ZoneState::Empty => {
                Err(Error::invalid(format!("zone {zone} is empty: it is open from its first append on")))
            }
            state => {
                *state = ZoneState::Closed;
                Ok(())
            }
        }))
    }

    fn read(&self, at: ZoneAddress, mut buffer: Buffer) -> Call<'_, ReadOutcome> {
        if let Err(error) = self.shared.geometry.check_read(at, buffer.len()) {
            buffer.clear();
            return Call::ready((Err(error), buffer));
        }
        match self.read_own(at, &mut buffer) {
            Some(outcome) => Call::ready((outcome, buffer)),
            None => self.below.read(at, buffer),
        }
    }

    fn flush<'a>(&'a self, zones: &'a [ZoneIndex]) -> Call<'a, Result<()>> {
        Call::ready(zones.iter().try_for_each(|zone| self.shared.geometry.check_zone(*zone)))
    }

    fn finish(&self, zone: ZoneIndex) -> Call<'_, Result<()>> {
        Call::new(self.finish(zone))
    }

    fn reset(&self, zone: ZoneIndex, erase: EraseGuarantee) -> Call<'_, Result<u64>> {
        if erase > self.shared.geometry.erase {
            return Call::ready(Err(Error::unsupported(format!(
                "resetting zone {zone} with the guarantee \"{erase}\": expected at most \"{}\"",
                self.shared.geometry.erase
            ))));
        }
        Call::new(self.reset(zone))
    }

    fn report(&self, first: ZoneIndex, count: u32) -> Call<'_, Result<Vec<ZoneReport>>> {
        Call::new(async move {
            let mut reports = self.below.report(first, count).await?;
            let changes = self.shared.changes();
            for report in &mut reports {
                if let Some(changed) = changes.zones.get(&report.zone) {
                    *report = changed.report(report.zone);
                }
            }
            Ok(reports)
        })
    }
}
