//! Promises after a power cut.

use super::Crash;
use super::model::{Known, Suite};
use crate::suite::{Check, begin_and_drop, ensure, fails, invalid, succeeds};
use block::{Data, Durable, ZoneIndex, ZoneReport, ZoneState};

/// What was promised about a zone before the cut.
struct Before {
    state: ZoneState,
    generation: u64,
    /// Appends that have to be there.
    durable: Vec<Known>,
    /// Whether the zone was appended to, or may have been, since its reset.
    touched: bool,
}

/// Uses some zones, cuts the power with calls in flight, and checks every zone; leaves them reset.
pub(super) async fn cut_and_check(suite: &mut Suite, crash: &Crash) -> Check {
    suite.empty_all().await?;
    let mut before = use_zones(suite).await?;
    begin_more(suite, &mut before).await;
    let part = suite.take_part();
    suite.reopen(crash(part).await).await?;
    let reports = suite.report().await?;
    for (zone, before) in before.iter().enumerate() {
        check_zone(suite, before, &reports[zone]).await?;
    }
    for (zone, before) in before.iter().enumerate() {
        end_of_zone(suite, zone as u32, before).await?;
    }
    suite.empty_all().await
}

/// Appends, and then finishes some zones, flushes some, resets some.
async fn use_zones(suite: &mut Suite) -> Check<Vec<Before>> {
    let mut all = Vec::new();
    let zones: Vec<u32> = suite.all_zones().collect();
    for zone in zones {
        let open = suite.zones.iter().filter(|zone| zone.state == ZoneState::Open).count() as u32;
        if open >= suite.limit() || suite.random.below(5) == 0 {
            continue;
        }
        append_some(suite, zone).await?;
        match suite.random.below(6) {
            0 => suite.finish(zone).await?,
            kind @ 1..=2 => {
                if kind == 2 {
                    suite.finish(zone).await?;
                }
                let erase = suite.any_guarantee();
                suite.reset(zone, erase).await?;
            }
            _ => {}
        }
    }
    let mut asked: Vec<ZoneIndex> = suite.all_zones().map(ZoneIndex).collect();
    asked.retain(|_| suite.random.below(2) == 0);
    // One time in three nothing is flushed, so that what a finish promises isn't kept by a flush.
    if suite.random.below(3) == 0 {
        asked.clear();
    } else {
        let handle = suite.any_handle();
        succeeds(handle.flush(&asked).await, "a flush")?;
    }
    for (zone, model) in suite.zones.iter().enumerate() {
        let was_flushed = asked.contains(&ZoneIndex(zone as u32));
        let durable =
            was_flushed || model.state == ZoneState::Full || suite.geometry.durable == Durable::OnAppend;
        all.push(Before {
            state: model.state,
            generation: model.generation,
            durable: if durable { model.appends.clone() } else { Vec::new() },
            touched: model.state != ZoneState::Empty,
        });
    }
    for (zone, before) in all.iter_mut().enumerate() {
        use_again(suite, zone as u32, before).await?;
    }
    Ok(all)
}

/// Appends to some zones again after the flush, and finishes some: what was durable stays so.
async fn use_again(suite: &mut Suite, zone: u32, before: &mut Before) -> Check {
    let takes_more = before.state == ZoneState::Open && suite.report_of(zone).await?.state == ZoneState::Open;
    if !takes_more || suite.random.below(2) == 0 {
        return Ok(());
    }
    append_some(suite, zone).await?;
    let finishes = suite.random.below(3) == 0;
    if finishes {
        suite.finish(zone).await?;
        before.state = ZoneState::Full;
    }
    if finishes || suite.geometry.durable == Durable::OnAppend {
        before.durable = suite.zones[zone as usize].appends.clone();
    }
    Ok(())
}

async fn append_some(suite: &mut Suite, zone: u32) -> Check {
    for _ in 0..1 + suite.random.below(6) {
        let room = suite.geometry.zone_capacity - suite.zones[zone as usize].end();
        if room < u64::from(suite.geometry.append_granularity) {
            break;
        }
        let length = suite.any_length(room);
        suite.append(zone, length).await?;
    }
    Ok(())
}

/// Leaves calls in flight: appends to open and empty zones, and a finish.
async fn begin_more(suite: &mut Suite, before: &mut [Before]) {
    let zones: Vec<u32> = suite.all_zones().collect();
    for zone in zones {
        let about = &mut before[zone as usize];
        if about.state == ZoneState::Full || suite.random.below(3) != 0 {
            continue;
        }
        about.touched = true;
        let length = suite.any_length(suite.geometry.zone_capacity);
        let (_, payload) = suite.payload(length);
        let handle = suite.any_handle();
        drop(begin_and_drop(handle.append(ZoneIndex(zone), payload)).await);
        if about.state == ZoneState::Open && suite.random.below(4) == 0 {
            drop(begin_and_drop(handle.finish(ZoneIndex(zone))).await);
        }
    }
}

/// What was durable is there, and the zone says so.
async fn check_zone(suite: &mut Suite, before: &Before, report: &ZoneReport) -> Check {
    let zone = report.zone.0;
    ensure(report.generation == before.generation, || {
        format!(
            "zone {zone}: generation {} after a power cut, expected {}",
            report.generation, before.generation
        )
    })?;
    let expected: &[ZoneState] = match (before.state, before.touched) {
        (ZoneState::Full, _) => &[ZoneState::Full],
        (ZoneState::Empty, false) => &[ZoneState::Empty],
        // Whatever was in flight may have reached the medium or not.
        (ZoneState::Empty, true) => &[ZoneState::Empty, ZoneState::Closed],
        _ if before.durable.is_empty() => &[ZoneState::Empty, ZoneState::Closed, ZoneState::Full],
        _ => &[ZoneState::Closed, ZoneState::Full],
    };
    ensure(expected.contains(&report.state), || {
        format!(
            "zone {zone} was {:?} and is {:?} after a power cut; expected one of {expected:?}",
            before.state, report.state
        )
    })?;
    let handle = suite.any_handle();
    for known in &before.durable {
        let end = known.offset + known.length as u64;
        ensure(report.write_pointer >= end, || {
            format!(
                "zone {zone}: write pointer {} after a power cut, and a durable append ends at {end}",
                report.write_pointer
            )
        })?;
        let read = suite.check_one(&*handle, zone, *known).await;
        read.map_err(|broken| format!("after a power cut, of a durable append: {broken}"))?;
    }
    Ok(())
}

/// A closed zone is never continued; it can be finished, keeps what was durable, and reset.
async fn end_of_zone(suite: &mut Suite, zone: u32, before: &Before) -> Check {
    let report = suite.report_of(zone).await?;
    if report.state == ZoneState::Closed {
        let junk = Data::copy_of(&vec![0x99; suite.geometry.append_granularity as usize]).into();
        let outcome = suite.any_handle().append(ZoneIndex(zone), junk).await;
        fails(outcome, &invalid(), format!("an append to zone {zone}, which a power cut closed"))?;
        if suite.random.below(2) == 0 {
            suite.finish(zone).await?;
            let report = suite.report_of(zone).await?;
            ensure(report.state == ZoneState::Full, || {
                format!("finished zone {zone} is {:?}", report.state)
            })?;
        }
        let handle = suite.any_handle();
        for known in &before.durable {
            suite.check_one(&*handle, zone, *known).await?;
        }
    }
    Ok(())
}
