//! Promises after a power cut.

use super::Crash;
use super::model::{Known, Suite};
use crate::suite::{Check, begin_and_drop, ensure, fails, invalid, succeeds};
use block::{Data, Durable, ZoneAddress, ZoneIndex, ZoneReport, ZoneState};

/// Guarantees for a zone before the cut.
struct Before {
    state: ZoneState,
    generation: u64,
    /// Appends that must survive.
    durable: Vec<Known>,
    /// Whether the zone was, or may have been, appended to since its reset.
    touched: bool,
}

/// Uses some zones, cuts the power with calls in flight, checks every zone, and resets them.
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

/// Appends to zones, then finishes some, flushes some and resets some.
async fn use_zones(suite: &mut Suite) -> Check<Vec<Before>> {
    let mut all = Vec::new();
    let zones: Vec<u32> = suite.all_zones().collect();
    for zone in zones {
        let open = suite.zones.iter().filter(|zone| zone.state.is_active()).count() as u32;
        if open >= suite.limit() || suite.random.below(5) == 0 {
            continue;
        }
        match suite.random.below(8) {
            0 => suite.open(zone).await?,
            1 => {
                suite.open(zone).await?;
                append_some(suite, zone).await?;
            }
            2 => {
                append_some(suite, zone).await?;
                // A zone that was filled may already be full.
                if suite.report_of(zone).await?.state.is_open() {
                    suite.close_zone(zone).await?;
                }
            }
            _ => append_some(suite, zone).await?,
        }
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
    // In a third of the cases nothing is flushed: the promises of a finish mustn't depend on a flush.
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

/// Appends to some zones again after the flush, and finishes some: durable data remains so.
async fn use_again(suite: &mut Suite, zone: u32, before: &mut Before) -> Check {
    let takes_more = before.state.is_active() && suite.report_of(zone).await?.state.is_active();
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
        if about.state.is_active() && suite.random.below(4) == 0 {
            drop(begin_and_drop(handle.finish(ZoneIndex(zone))).await);
        }
    }
}

/// Checks that durable data survived, and that the zone's report agrees.
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
        // Appends in flight may have reached the medium or not.
        (ZoneState::Empty, true) => &[ZoneState::Empty, ZoneState::Interrupted],
        _ if before.durable.is_empty() => &[ZoneState::Empty, ZoneState::Interrupted, ZoneState::Full],
        _ => &[ZoneState::Interrupted, ZoneState::Full],
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

/// Checks that an interrupted zone refuses appends, that a finish keeps its durable data, and that a reset
/// empties it.
async fn end_of_zone(suite: &mut Suite, zone: u32, before: &Before) -> Check {
    let report = suite.report_of(zone).await?;
    if report.state == ZoneState::Interrupted {
        let index = ZoneIndex(zone);
        let junk = Data::copy_of(&vec![0x99; suite.geometry.append_granularity as usize]);
        let what = |call: &str| format!("{call} zone {zone}, which a power cut interrupted");
        let outcome = suite.any_handle().append(index, junk.clone().into()).await;
        fails(outcome, &invalid(), what("an append to"))?;
        let end = ZoneAddress::new(zone, report.write_pointer);
        let outcome = suite.any_handle().append_at(end, junk.into()).await;
        fails(outcome, &invalid(), what("an append at the end of"))?;
        fails(suite.any_handle().open(index).await, &invalid(), what("opening"))?;
        fails(suite.any_handle().close(index).await, &invalid(), what("closing"))?;
        ensure(suite.report_of(zone).await? == report, || what("calls that were refused changed"))?;
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
