//! Concurrent calls in random order.

use super::model::{Known, Suite, check_append, read};
use crate::stamp::append_bytes;
use crate::suite::{Check, begin_and_drop, ensure, succeeds};
use block::{EraseGuarantee, Error, Result, ZoneAddress, ZoneIndex, ZoneState, Zones};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

/// Result of one call of a round.
enum Event {
    Appended(u64, usize, Result<ZoneAddress>),
    /// With the write pointer just after the finish returned.
    Finished(Result<()>, u64),
    Reset(Result<u64>),
    Opened(Result<()>),
    Closed(Result<()>),
    Checked(Check),
}

type Running = Pin<Box<dyn Future<Output = (u32, Event)>>>;

fn append_call(suite: &mut Suite, zone: u32, length: usize) -> Running {
    let (id, payload) = suite.payload(length);
    let handle = suite.any_handle();
    Box::pin(
        async move { (zone, Event::Appended(id, length, handle.append(ZoneIndex(zone), payload).await)) },
    )
}

fn finish_call(suite: &mut Suite, zone: u32) -> Running {
    let handle = suite.any_handle();
    Box::pin(async move {
        let outcome = handle.finish(ZoneIndex(zone)).await;
        let pointer = match handle.report(ZoneIndex(zone), 1).await.as_deref() {
            Ok([report]) => report.write_pointer,
            _ => 0,
        };
        (zone, Event::Finished(outcome, pointer))
    })
}

fn reset_call(suite: &mut Suite, zone: u32) -> Running {
    let (handle, erase) = (suite.any_handle(), suite.any_guarantee());
    Box::pin(async move { (zone, Event::Reset(handle.reset(ZoneIndex(zone), erase).await)) })
}

fn append_at_call(suite: &mut Suite, zone: u32, offset: u64, length: usize) -> Running {
    let (id, payload) = suite.payload(length);
    let handle = suite.any_handle();
    let at = ZoneAddress::new(zone, offset);
    Box::pin(
        async move { (zone, Event::Appended(id, length, handle.append_at(at, payload).await.map(|()| at))) },
    )
}

fn open_call(suite: &mut Suite, zone: u32) -> Running {
    let handle = suite.any_handle();
    Box::pin(async move { (zone, Event::Opened(handle.open(ZoneIndex(zone)).await)) })
}

fn close_call(suite: &mut Suite, zone: u32) -> Running {
    let handle = suite.any_handle();
    Box::pin(async move { (zone, Event::Closed(handle.close(ZoneIndex(zone)).await)) })
}

fn check_call(suite: &mut Suite, zone: u32, known: Known) -> Running {
    let (handle, seed): (Rc<dyn Zones>, u64) = (suite.any_handle(), suite.seed);
    Box::pin(async move { (zone, Event::Checked(check_append(&*handle, seed, zone, known).await)) })
}

/// Rounds of calls on several zones at once, compared with the model.
pub(super) async fn rounds(suite: &mut Suite, rounds: usize) -> Check {
    suite.empty_all().await?;
    for round in 0..rounds {
        one_round(suite).await.map_err(|broken| format!("round {round}: {broken}"))?;
        if round % 25 == 0 {
            suite.check_all().await.map_err(|broken| format!("after round {round}: {broken}"))?;
        }
    }
    suite.check_all().await
}

async fn one_round(suite: &mut Suite) -> Check {
    let mut running: Vec<Running> = Vec::new();
    let mut asked = vec![0_u64; suite.zones.len()];
    let zones: Vec<u32> = suite.all_zones().collect();
    for zone in zones {
        let appends = suite.zones[zone as usize].appends.clone();
        let what = suite.random.below(14);
        // Zones that are being reset aren't read.
        if what != 0 && !appends.is_empty() {
            for _ in 0..suite.random.below(3) {
                let known = appends[suite.random.below(appends.len() as u64) as usize];
                running.push(check_call(suite, zone, known));
            }
        }
        match what {
            0 => running.push(reset_call(suite, zone)),
            1 => running.push(finish_call(suite, zone)),
            2..=6 => {
                for _ in 0..1 + suite.random.below(4) {
                    let length = suite.any_length(suite.geometry.zone_capacity);
                    asked[zone as usize] += length as u64;
                    // Some appends name a place that they reach in some orders.
                    let end = suite.zones[zone as usize].end() + asked[zone as usize] - length as u64;
                    if end <= suite.geometry.zone_capacity && suite.random.below(4) == 0 {
                        running.push(append_at_call(suite, zone, end, length));
                    } else {
                        running.push(append_call(suite, zone, length));
                    }
                }
            }
            7..=8 => running.push(open_call(suite, zone)),
            9..=10 => running.push(close_call(suite, zone)),
            _ => {}
        }
    }
    let before: Vec<u64> = suite.zones.iter().map(|zone| zone.end()).collect();
    let before_states: Vec<ZoneState> = suite.zones.iter().map(|zone| zone.state).collect();
    for (zone, event) in runtime::join_all(running).await {
        let index = zone as usize;
        match event {
            Event::Appended(id, length, outcome) => {
                let room = suite.geometry.zone_capacity - before[index];
                let refused = appended(suite, zone, (id, length), outcome, before_states[index])?;
                let fits = asked[index] <= room;
                ensure(!(refused && fits), || {
                    format!("append of {length} bytes to zone {zone} found no space, and {room} were left")
                })?;
            }
            Event::Finished(outcome, _) => {
                succeeds(outcome, format!("finish of zone {zone}"))?;
                suite.zones[index].state = ZoneState::Full;
            }
            Event::Reset(outcome) => {
                let generation = succeeds(outcome, format!("reset of zone {zone}"))?;
                suite.was_reset(zone, generation)?;
            }
            Event::Opened(outcome) => match (outcome, before_states[index]) {
                (Ok(()), before) if before != ZoneState::Full => {
                    suite.zones[index].state = ZoneState::ExplicitlyOpen;
                }
                (Err(Error::Invalid(_)), ZoneState::Full) => {}
                (Err(Error::Busy(_)), ZoneState::Empty | ZoneState::Closed) if suite.limit() != u32::MAX => {}
                (other, before) => return Err(format!("opening {before:?} zone {zone}: {other:?}")),
            },
            Event::Closed(outcome) => match (outcome, before_states[index]) {
                (Ok(()), before) if before.is_active() => suite.zones[index].state = ZoneState::Closed,
                (Err(Error::Invalid(_)), ZoneState::Empty | ZoneState::Full) => {}
                (other, before) => return Err(format!("closing {before:?} zone {zone}: {other:?}")),
            },
            Event::Checked(outcome) => outcome?,
        }
    }
    // A zone whose capacity is used up may already be full.
    let reports = suite.report().await?;
    for (model, report) in suite.zones.iter_mut().zip(reports) {
        let filled_up =
            report.state == ZoneState::Full && report.write_pointer == suite.geometry.zone_capacity;
        // A zone may also be open if all its appends were refused.
        let opened = report.state == ZoneState::ImplicitlyOpen
            && matches!(model.state, ZoneState::Empty | ZoneState::Closed)
            && asked[report.zone.0 as usize] > 0;
        if (filled_up && model.state.is_active()) || opened {
            model.state = report.state;
        }
        ensure(report.state == model.state, || {
            format!("zone {} must be {:?}, and is {:?}", report.zone, model.state, report.state)
        })?;
        ensure(report.write_pointer >= model.end() && report.generation == model.generation, || {
            format!("{report:?}, and an append of generation {} ends at {}", model.generation, model.end())
        })?;
    }
    Ok(())
}

/// Judges an append of a round. Returns whether it was refused for lack of space.
fn appended(
    suite: &mut Suite,
    zone: u32,
    (id, length): (u64, usize),
    outcome: Result<ZoneAddress>,
    before: ZoneState,
) -> Check<bool> {
    let what = format!("append of {length} bytes to {before:?} zone {zone}");
    match (outcome, before) {
        (Ok(_), ZoneState::Full) => Err(format!("{what}: expected an error (Error::Invalid), got success")),
        (Ok(at), _) => suite.landed(zone, id, length, at).map(|_| false),
        (Err(Error::Invalid(_)), ZoneState::Full) => Ok(false),
        (Err(Error::Misplaced(_)), before) if before != ZoneState::Full => Ok(false),
        // A zone that other appends filled may already be full.
        (Err(Error::NoSpace(_) | Error::Invalid(_)), before) if before != ZoneState::Full => Ok(true),
        (Err(Error::Busy(_)), ZoneState::Empty | ZoneState::Closed) if suite.limit() != u32::MAX => Ok(false),
        (Err(error), _) => Err(format!("{what}: {error}")),
    }
}

/// Checks appends beside a finish or a reset of their zone: each lands before or after it, or is refused.
/// None lands partly, and none reappears after the reset.
pub(super) async fn changes_under_appends(suite: &mut Suite) -> Check {
    suite.empty_all().await?;
    for round in 0..30 {
        let reset = round % 2 == 0;
        suite.append(0, suite.geometry.append_granularity as usize).await?;
        let mut running: Vec<Running> = Vec::new();
        // The calls begin in this order: the first half of the appends is in flight when the zone changes.
        let mut first_half = 0;
        for turn in 0..8 {
            if turn == 4 {
                first_half = suite.payload(0).0;
                running.push(if reset { reset_call(suite, 0) } else { finish_call(suite, 0) });
            }
            let length = suite.any_length(suite.geometry.zone_capacity / 16);
            running.push(append_call(suite, 0, length));
        }
        let (mut landed, mut finished_at) = (Vec::new(), 0);
        for (zone, event) in runtime::join_all(running).await {
            match event {
                Event::Appended(id, length, Ok(at)) => landed.push((id, length, at)),
                Event::Appended(_, _, Err(Error::Invalid(_) | Error::NoSpace(_))) => {}
                Event::Appended(_, length, Err(error)) => {
                    return Err(format!("append of {length} bytes beside a change of zone {zone}: {error}"));
                }
                Event::Finished(outcome, pointer) => {
                    finished_at = pointer;
                    succeeds(outcome, format!("finish of zone {zone} under appends"))?;
                    suite.zones[0].state = ZoneState::Full;
                }
                Event::Reset(outcome) => {
                    let generation = succeeds(outcome, format!("reset of zone {zone} under appends"))?;
                    suite.was_reset(zone, generation)?;
                }
                Event::Opened(_) | Event::Closed(_) => {}
                Event::Checked(outcome) => outcome?,
            }
        }
        if reset {
            // The order of these appends and the reset is unknown. The zone's contents are known again from
            // here.
            let report = suite.report_of(0).await?;
            ensure(report.state == ZoneState::Empty || report.state.is_open(), || {
                format!("zone 0 is {:?} after a reset under appends", report.state)
            })?;
            ensure(report.generation == suite.zones[0].generation, || {
                format!(
                    "zone 0: a reset returned generation {}, and the report says {}",
                    suite.zones[0].generation, report.generation
                )
            })?;
            suite.zones[0].state = report.state;
            for (id, length, at) in landed.iter().filter(|(id, ..)| *id < first_half) {
                ensure(!is_there(suite, *id, *length, *at, report.write_pointer).await?, || {
                    format!("an append in flight when zone 0 was reset is there afterwards, at {at}")
                })?;
            }
            let known = suite.append(0, suite.geometry.append_granularity as usize).await?;
            ensure(known.offset >= report.write_pointer, || {
                format!("an append landed at byte {} of zone 0, where something was before", known.offset)
            })?;
        } else {
            for (id, length, at) in landed {
                let known = suite.landed(0, id, length, at)?;
                ensure(known.offset + length as u64 <= finished_at, || {
                    format!(
                        "zone 0: its finish had returned at byte {finished_at}, then an append landed at {at}"
                    )
                })?;
            }
            suite.zones[0].state = ZoneState::Full;
        }
        suite.check_zone(0).await?;
        suite.reset(0, EraseGuarantee::None).await?;
    }
    Ok(())
}

/// Whether the zone has this append's bytes where it landed. Appends of less than 16 bytes are ignored: they
/// may match by accident.
async fn is_there(suite: &Suite, id: u64, length: usize, at: ZoneAddress, written: u64) -> Check<bool> {
    if length < 16 || at.offset.0 + length as u64 > written {
        return Ok(false);
    }
    let found = read(&*suite.first(), at, length, false).await?;
    Ok(found.is_ok_and(|buffer| buffer.filled() == append_bytes(suite.seed, id, length)))
}

/// Checks that an append whose call was dropped after it had begun still lands, and that a finish waits for
/// it.
pub(super) async fn dropped_calls(suite: &mut Suite) -> Check {
    suite.empty_all().await?;
    let unit = suite.geometry.append_granularity as usize;
    let length = unit * 64_usize.div_ceil(unit);
    if (length as u64) > suite.geometry.max_append || 4 * length as u64 > suite.geometry.zone_capacity {
        return Ok(());
    }
    for round in 0..16 {
        // The dropped call is the zone's first append, or follows another one.
        if round % 2 == 0 {
            suite.append(0, length).await?;
        }
        let (id, payload) = suite.payload(length);
        let handle = suite.any_handle();
        match begin_and_drop(handle.append(ZoneIndex(0), payload)).await {
            Some(outcome) => {
                let at = succeeds(outcome, "an append")?;
                suite.landed(0, id, length, at)?;
            }
            None => {
                let wanted = append_bytes(suite.seed, id, length);
                // A finish could overtake a first append before it opens the zone, so the append begins
                // first.
                wait_until_open(suite).await?;
                suite.finish(0).await?;
                let found = find(suite, &wanted).await?;
                ensure(found, || "an append whose call was dropped isn't in its zone after a finish".into())?;
            }
        }
        suite.check_zone(0).await?;
        if round % 3 == 0 {
            let mut generation = suite.zones[0].generation;
            let handle = suite.any_handle();
            drop(begin_and_drop(handle.reset(ZoneIndex(0), EraseGuarantee::None)).await);
            for _ in 0..1000 {
                let report = suite.report_of(0).await?;
                if report.generation > generation && report.state == ZoneState::Empty {
                    generation = report.generation;
                    break;
                }
                runtime::sleep(std::time::Duration::from_millis(5)).await;
            }
            suite
                .was_reset(0, generation)
                .map_err(|_| "a reset whose call was dropped never ended".to_owned())?;
        } else {
            suite.reset(0, EraseGuarantee::None).await?;
        }
    }
    Ok(())
}

/// Waits until the dropped append has its place: the zone's write pointer shows it.
async fn wait_until_open(suite: &Suite) -> Check {
    let end = suite.zones[0].end();
    for _ in 0..1000 {
        if suite.report_of(0).await?.write_pointer > end {
            return Ok(());
        }
        runtime::sleep(std::time::Duration::from_millis(5)).await;
    }
    Err("an append whose call was dropped never took effect in zone 0".into())
}

/// Whether zone 0 has these bytes.
async fn find(suite: &Suite, wanted: &[u8]) -> Check<bool> {
    let report = suite.report_of(0).await?;
    let unit = u64::from(suite.geometry.append_granularity);
    let mut offset = 0;
    while offset + wanted.len() as u64 <= report.write_pointer {
        let at = ZoneAddress::new(0, offset);
        if let Ok(buffer) = read(&*suite.first(), at, wanted.len(), false).await?
            && buffer.filled() == wanted
        {
            return Ok(true);
        }
        offset += unit;
    }
    Ok(false)
}
