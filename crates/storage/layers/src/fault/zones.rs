//! `fault` over zones.

use super::decide::{Decider, Faults, Plan, torn_length};
use super::device::{begin, corrupted, faulty_read};
use super::rule::{Action, Distance, Operation, Rule};
use super::{FaultPart, FaultZonesPart};
use block::layer::ZonesLayer;
use block::{
    Buffer, Call, EraseGuarantee, Payload, ReadOutcome, Result, Staging, ZoneAddress, ZoneGeometry,
    ZoneIndex, ZoneReport, Zones, ZonesPart, without_cached,
};
use std::rc::Rc;
use std::sync::Arc;

impl FaultZonesPart {
    /// Applies the rules to the calls to `inner`; random choices depend on `seed`.
    pub fn new(inner: Arc<dyn ZonesPart>, rules: Vec<Rule>, seed: u64) -> Self {
        FaultPart { inner, faults: Faults::new(rules, seed), changing: None }
    }
}

impl ZonesLayer for FaultZonesPart {
    fn below(&self) -> &Arc<dyn ZonesPart> {
        &self.inner
    }

    fn handle(&self, below: Rc<dyn Zones>) -> Rc<dyn Zones> {
        Rc::new(FaultZones { inner: below, decider: self.faults.open() })
    }
}

struct FaultZones {
    inner: Rc<dyn Zones>,
    decider: Decider,
}

impl FaultZones {
    /// Decides about an operation. Invalid requests aren't counted by rules.
    fn decide(&self, operation: Operation, zone: ZoneIndex, checked: Result<()>) -> Option<Plan> {
        checked.ok()?;
        let zone = u64::from(zone.0);
        self.decider.decide(operation, Some(zone..zone + 1))
    }

    /// Decides about a flush, which touches all zones from the first to the last of its list.
    fn decide_flush(&self, zones: &[ZoneIndex]) -> Option<Plan> {
        let first = zones.iter().min()?.0;
        let last = zones.iter().max()?.0;
        self.decider.decide(Operation::Flush, Some(u64::from(first)..u64::from(last) + 1))
    }
}

impl Zones for FaultZones {
    fn geometry(&self) -> &ZoneGeometry {
        self.inner.geometry()
    }

    fn staging(&self) -> Option<Rc<dyn Staging>> {
        without_cached(self.inner.staging())
    }

    fn append(&self, zone: ZoneIndex, payload: Payload) -> Call<'_, Result<ZoneAddress>> {
        if self.decider.is_idle() {
            return self.inner.append(zone, payload);
        }
        Call::new(async move {
            let checked = self.inner.geometry().check_append(zone, payload.len());
            let Some(plan) = self.decide(Operation::Append, zone, checked) else {
                return self.inner.append(zone, payload).await;
            };
            let inner = self.inner.clone();
            runtime::spawn(faulty_append(inner, plan, zone, None, payload)).await
        })
    }

    fn append_at(&self, at: ZoneAddress, payload: Payload) -> Call<'_, Result<()>> {
        if self.decider.is_idle() {
            return self.inner.append_at(at, payload);
        }
        Call::new(async move {
            let checked = self.inner.geometry().check_append_at(at, payload.len());
            let Some(plan) = self.decide(Operation::Append, at.zone, checked) else {
                return self.inner.append_at(at, payload).await;
            };
            let inner = self.inner.clone();
            runtime::spawn(faulty_append(inner, plan, at.zone, Some(at), payload)).await.map(drop)
        })
    }

    // Rules don't match open and close: a failed open would appear at the first append, a failed close has no
    // effect.
    fn open(&self, zone: ZoneIndex) -> Call<'_, Result<()>> {
        self.inner.open(zone)
    }

    fn close(&self, zone: ZoneIndex) -> Call<'_, Result<()>> {
        self.inner.close(zone)
    }

    fn read(&self, at: ZoneAddress, buffer: Buffer) -> Call<'_, ReadOutcome> {
        if self.decider.is_idle() {
            return self.inner.read(at, buffer);
        }
        Call::new(async move {
            let checked = self.inner.geometry().check_read(at, buffer.len());
            let Some(plan) = self.decide(Operation::Read, at.zone, checked) else {
                return self.inner.read(at, buffer).await;
            };
            let inner = self.inner.clone();
            let read =
                move |action, buffer| async move { inner.read(elsewhere(&*inner, action, at), buffer).await };
            runtime::spawn(faulty_read(plan, buffer, read)).await
        })
    }

    fn flush<'a>(&'a self, zones: &'a [ZoneIndex]) -> Call<'a, Result<()>> {
        if self.decider.is_idle() {
            return self.inner.flush(zones);
        }
        Call::new(async move {
            let Some(plan) = self.decide_flush(zones) else { return self.inner.flush(zones).await };
            let (inner, zones) = (self.inner.clone(), zones.to_vec());
            runtime::spawn(async move {
                let (action, error) = begin(&plan).await?;
                if action.is_none() {
                    inner.flush(&zones).await?;
                }
                error
            })
            .await
        })
    }

    fn finish(&self, zone: ZoneIndex) -> Call<'_, Result<()>> {
        if self.decider.is_idle() {
            return self.inner.finish(zone);
        }
        Call::new(async move {
            let checked = self.inner.geometry().check_zone(zone);
            let Some(plan) = self.decide(Operation::Finish, zone, checked) else {
                return self.inner.finish(zone).await;
            };
            let inner = self.inner.clone();
            runtime::spawn(async move {
                let (action, error) = begin(&plan).await?;
                if action.is_none() {
                    inner.finish(zone).await?;
                }
                error
            })
            .await
        })
    }

    fn reset(&self, zone: ZoneIndex, erase: EraseGuarantee) -> Call<'_, Result<u64>> {
        if self.decider.is_idle() {
            return self.inner.reset(zone, erase);
        }
        Call::new(async move {
            let checked = self.inner.geometry().check_zone(zone);
            let Some(plan) = self.decide(Operation::Reset, zone, checked) else {
                return self.inner.reset(zone, erase).await;
            };
            let inner = self.inner.clone();
            runtime::spawn(async move {
                let (_, error) = begin(&plan).await?;
                let generation = inner.reset(zone, erase).await?;
                error.map(|()| generation)
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

/// Appends to a zone, at `wanted` if that is given.
async fn faulty_append(
    inner: Rc<dyn Zones>,
    mut plan: Plan,
    zone: ZoneIndex,
    wanted: Option<ZoneAddress>,
    payload: Payload,
) -> Result<ZoneAddress> {
    let (action, error) = begin(&plan).await?;
    let length = payload.len();
    let append = async |payload: Payload| match wanted {
        Some(at) => inner.append_at(at, payload).await.map(|()| at),
        None => inner.append(zone, payload).await,
    };
    let address = match action {
        Some(Action::Drop) => append(Buffer::zeroed(length).into()).await?,
        Some(Action::Torn { at }) => {
            let arrives = torn_length(at, length as u64, &mut plan.random) as usize;
            let mut torn = payload.slice(0..arrives);
            torn.push(Buffer::zeroed(length - arrives).freeze());
            append(torn).await?
        }
        Some(Action::Corrupt { bits }) => append(corrupted(&payload, bits, &mut plan)?).await?,
        Some(Action::Misdirect { by: Distance::Units(by) }) => {
            let count = u64::from(inner.geometry().zones);
            let other = ZoneIndex(((u64::from(zone.0) + by % count) % count) as u32);
            // The caller gets an address in the zone that it requested.
            let actual = inner.append(other, payload).await?;
            ZoneAddress { zone, offset: wanted.map_or(actual.offset, |at| at.offset) }
        }
        _ => append(payload).await?,
    };
    error.map(|()| address)
}

/// Returns the address of a misdirected read: as many zones later as the rule says, modulo their number.
fn elsewhere(inner: &dyn Zones, action: Option<Action>, mut at: ZoneAddress) -> ZoneAddress {
    if let Some(Action::Misdirect { by: Distance::Units(by) }) = action {
        let count = u64::from(inner.geometry().zones);
        at.zone = ZoneIndex(((u64::from(at.zone.0) + by % count) % count) as u32);
    }
    at
}
