//! `record` over zones.

use super::device::{Log, Membership};
use super::format::{DeviceEntry, Role, Shape, SubmissionFields};
use super::recorder::Recorder;
use block::layer::ZonesLayer;
use block::{
    Buffer, Call, EraseGuarantee, Part, Payload, ReadOutcome, Result, Staging, Status, ZoneAddress,
    ZoneGeometry, ZoneIndex, ZoneReport, Zones, ZonesPart, without_cached,
};
use std::rc::Rc;
use std::sync::Arc;

/// Zones whose appends, opens, closes, flushes, finishes and resets are recorded.
pub struct RecordZonesPart {
    inner: Arc<dyn ZonesPart>,
    membership: Membership,
}

impl RecordZonesPart {
    /// Records the calls to `inner` under this name.
    pub fn new(inner: Arc<dyn ZonesPart>, recorder: Arc<Recorder>, name: &str, role: Role) -> Result<Self> {
        let shape = Shape::Zones(inner.geometry().clone());
        let entry = DeviceEntry { name: name.to_owned(), role, shape };
        Ok(RecordZonesPart { inner, membership: Membership::join(recorder, &entry)? })
    }

    /// Number of these zones in the timeline.
    pub fn number(&self) -> u16 {
        self.membership.number
    }
}

impl Part for RecordZonesPart {
    fn kind(&self) -> &'static str {
        super::ZONES_NAME
    }

    fn status(&self) -> Call<'_, Status> {
        Call::ready(self.membership.status())
    }

    fn close(&self) -> Call<'_, Result<()>> {
        Call::new(self.membership.leave())
    }
}

impl ZonesLayer for RecordZonesPart {
    fn below(&self) -> &Arc<dyn ZonesPart> {
        &self.inner
    }

    fn handle(&self, below: Rc<dyn Zones>) -> Rc<dyn Zones> {
        Rc::new(RecordZones { inner: below, log: self.membership.log() })
    }
}

struct RecordZones {
    inner: Rc<dyn Zones>,
    log: Log,
}

impl RecordZones {
    /// Records a call on one zone that returns no value.
    fn change<'a, F: Future<Output = Result<()>>>(
        &'a self,
        operation: u8,
        zone: ZoneIndex,
        call: impl FnOnce(Rc<dyn Zones>) -> F + 'static,
    ) -> Call<'a, Result<()>> {
        Call::new(async move {
            let (inner, log) = (self.inner.clone(), self.log.clone());
            if inner.geometry().check_zone(zone).is_err() {
                return call(inner).await;
            }
            self.log
                .run(async move {
                    let submitted = log.submit(&SubmissionFields::new(operation, u64::from(zone.0), 0))?;
                    let result = call(inner).await;
                    log.complete(submitted, result)
                })
                .await
        })
    }
}

impl Zones for RecordZones {
    fn geometry(&self) -> &ZoneGeometry {
        self.inner.geometry()
    }

    fn staging(&self) -> Option<Rc<dyn Staging>> {
        without_cached(self.inner.staging())
    }

    fn append(&self, zone: ZoneIndex, payload: Payload) -> Call<'_, Result<ZoneAddress>> {
        Call::new(async move {
            if self.inner.geometry().check_append(zone, payload.len()).is_err() {
                return self.inner.append(zone, payload).await;
            }
            let (inner, log) = (self.inner.clone(), self.log.clone());
            self.log
                .run(async move {
                    let fields = SubmissionFields::new(5, u64::from(zone.0), payload.len() as u64);
                    let submitted = log.submit(&SubmissionFields { data: Some(&payload), ..fields })?;
                    let result = inner.append(zone, payload).await;
                    log.recorder.complete(log.device, submitted, result, |landed| landed.offset.0)
                })
                .await
        })
    }

    fn append_at(&self, at: ZoneAddress, payload: Payload) -> Call<'_, Result<()>> {
        Call::new(async move {
            if self.inner.geometry().check_append_at(at, payload.len()).is_err() {
                return self.inner.append_at(at, payload).await;
            }
            let (inner, log) = (self.inner.clone(), self.log.clone());
            self.log
                .run(async move {
                    let fields = SubmissionFields::new(12, u64::from(at.zone.0), payload.len() as u64);
                    let fields =
                        SubmissionFields { data: Some(&payload), offset: Some(at.offset.0), ..fields };
                    let submitted = log.submit(&fields)?;
                    let result = inner.append_at(at, payload).await;
                    log.recorder.complete(log.device, submitted, result, |()| at.offset.0)
                })
                .await
        })
    }

    fn open(&self, zone: ZoneIndex) -> Call<'_, Result<()>> {
        self.change(10, zone, move |inner| async move { inner.open(zone).await })
    }

    fn close(&self, zone: ZoneIndex) -> Call<'_, Result<()>> {
        self.change(11, zone, move |inner| async move { inner.close(zone).await })
    }

    fn read(&self, at: ZoneAddress, buffer: Buffer) -> Call<'_, ReadOutcome> {
        self.inner.read(at, buffer)
    }

    fn flush<'a>(&'a self, zones: &'a [ZoneIndex]) -> Call<'a, Result<()>> {
        Call::new(async move {
            let (inner, log, zones) = (self.inner.clone(), self.log.clone(), zones.to_vec());
            self.log
                .run(async move {
                    let fields = SubmissionFields::new(6, 0, 0);
                    let submitted = log.submit(&SubmissionFields { zones: &zones, ..fields })?;
                    let result = inner.flush(&zones).await;
                    log.complete(submitted, result)
                })
                .await
        })
    }

    fn finish(&self, zone: ZoneIndex) -> Call<'_, Result<()>> {
        self.change(7, zone, move |inner| async move { inner.finish(zone).await })
    }

    fn reset(&self, zone: ZoneIndex, erase: EraseGuarantee) -> Call<'_, Result<u64>> {
        Call::new(async move {
            if self.inner.geometry().check_zone(zone).is_err() {
                return self.inner.reset(zone, erase).await;
            }
            let (inner, log) = (self.inner.clone(), self.log.clone());
            self.log
                .run(async move {
                    let mut fields = SubmissionFields::new(8, u64::from(zone.0), 0);
                    fields.mode = erase as u8;
                    let submitted = log.submit(&fields)?;
                    let result = inner.reset(zone, erase).await;
                    log.recorder.complete(log.device, submitted, result, |generation| *generation)
                })
                .await
        })
    }

    fn reserve(&self, zone: ZoneIndex, bytes: u64) -> Call<'_, Result<()>> {
        self.inner.reserve(zone, bytes)
    }

    fn rewind(&self, at: ZoneAddress) -> Call<'_, Result<()>> {
        self.inner.rewind(at)
    }

    fn report(&self, first: ZoneIndex, count: u32) -> Call<'_, Result<Vec<ZoneReport>>> {
        self.inner.report(first, count)
    }
}
