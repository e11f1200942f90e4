//! Calls that have to be refused without an effect.

use super::model::{Suite, read};
use crate::suite::{Check, ensure, fails, invalid, succeeds};
use block::{Data, EraseGuarantee, Error, Payload, ZoneAddress, ZoneIndex, ZoneState};

fn junk(length: u64) -> Payload {
    Data::copy_of(&vec![0x99; length as usize]).into()
}

/// Checks that calls that don't fit the geometry fail with [`block::Error::Invalid`].
pub(super) async fn refusals(suite: &mut Suite) -> Check {
    suite.empty_all().await?;
    suite.append(0, suite.geometry.append_granularity as usize).await?;
    let before = suite.report().await?;
    let handle = suite.first();
    let unit = u64::from(suite.geometry.append_granularity);
    let mut lengths = vec![0, suite.geometry.max_append / unit * unit + unit];
    if unit > 1 {
        lengths.extend([1, unit - 1, unit + 1]);
    }
    for length in lengths {
        let what = format!("an append of {length} bytes");
        for zone in [0, 1] {
            fails(handle.append(ZoneIndex(zone), junk(length)).await, &invalid(), &what)?;
        }
    }
    for zone in [suite.geometry.zones, suite.geometry.zones + 1, u32::MAX] {
        let what = |call: &str| format!("{call} zone {zone} of {}", suite.geometry.zones);
        let index = ZoneIndex(zone);
        fails(handle.append(index, junk(unit)).await, &invalid(), what("an append to"))?;
        fails(handle.finish(index).await, &invalid(), what("finish of"))?;
        fails(handle.reset(index, EraseGuarantee::None).await, &invalid(), what("reset of"))?;
        let length = suite.geometry.read_granularity as usize;
        let outcome = read(&*handle, ZoneAddress::new(zone, 0), length, true).await?;
        fails(outcome, &invalid(), what("a read of"))?;
    }
    refused_reads(suite).await?;
    let beyond = handle.report(ZoneIndex(suite.geometry.zones - 1), u32::MAX).await;
    let beyond = succeeds(beyond, "a report that asks for more zones than there are")?;
    ensure(beyond.len() == 1, || format!("a report of the last zone and more has {} entries", beyond.len()))?;
    let after = suite.report().await?;
    ensure(before == after, || "a call that was refused has changed a zone".into())?;
    suite.check_all().await
}

/// Checks reads that aren't multiples of the granularity, or that leave the zone.
async fn refused_reads(suite: &Suite) -> Check {
    let handle = suite.first();
    let (unit, capacity) = (u64::from(suite.geometry.read_granularity), suite.geometry.zone_capacity);
    let last = capacity / unit * unit;
    let mut places =
        vec![(last, unit + capacity % unit), (last - unit, 2 * unit), (u64::MAX / unit * unit, unit)];
    if unit > 1 {
        places.extend([(1, unit), (0, unit - 1), (0, unit + 1), (unit / 2, unit)]);
    }
    for (offset, length) in places {
        let at = ZoneAddress::new(0, offset);
        let outcome = read(&*handle, at, length as usize, true).await?;
        fails(outcome, &invalid(), format!("a read of {length} bytes at {at}, of a capacity of {capacity}"))?;
    }
    Ok(())
}

/// Checks that as many zones as the limit permits can be open. One more is refused and remains empty until
/// another one is finished or reset.
pub(super) async fn limits(suite: &mut Suite) -> Check {
    suite.empty_all().await?;
    let unit = suite.geometry.append_granularity as usize;
    let limit = suite.limit();
    let most = suite.geometry.zones.min(limit).min(suite.zones.len() as u32);
    for zone in 0..most {
        suite.append(zone, unit).await?;
    }
    if most < limit || limit >= suite.zones.len() as u32 {
        return suite.check_all().await;
    }
    let busy = Error::busy("Error::Busy");
    for attempt in 0..2 {
        let outcome = suite.any_handle().append(ZoneIndex(most), junk(unit as u64)).await;
        fails(outcome, &busy, format!("an append to a zone beyond the {limit} that may be open"))?;
        let report = suite.report_of(most).await?;
        ensure(report.state == ZoneState::Empty, || {
            format!("zone {most} was refused and is {:?}", report.state)
        })?;
        // Open zones still take appends.
        suite.append(0, unit).await?;
        if attempt == 0 {
            suite.finish(0).await?;
        } else {
            suite.reset(most, EraseGuarantee::None).await?;
            suite.reset(0, EraseGuarantee::None).await?;
        }
        suite.append(most, unit).await?;
        suite.reset(most, EraseGuarantee::None).await?;
        suite.reset(0, EraseGuarantee::None).await?;
        suite.append(0, unit).await?;
    }
    // Concurrent first appends succeed at most up to the limit.
    suite.empty_all().await?;
    let handle = suite.first();
    let appends = (0..suite.zones.len() as u32).map(|zone| handle.append(ZoneIndex(zone), junk(unit as u64)));
    let outcomes = runtime::join_all(appends).await;
    let opened = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
    for outcome in outcomes.into_iter().filter(|outcome| outcome.is_err()) {
        fails(outcome, &busy, "a first append beside others")?;
    }
    ensure(opened <= limit as usize && opened > 0, || {
        format!("{opened} zones opened at once, of at most {limit}")
    })?;
    suite.empty_all().await
}
