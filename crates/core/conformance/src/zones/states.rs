//! Opening and closing zones, their limits, and appends at a place.

use super::model::Suite;
use crate::stamp::append_bytes;
use crate::suite::{Check, begin_and_drop, ensure, fails, invalid, succeeds};
use block::{Data, EraseGuarantee, Error, Payload, Result, ZoneAddress, ZoneIndex, ZoneState, Zones};
use runtime::ShardIndex;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

fn junk(length: u64) -> Payload {
    Data::copy_of(&vec![0x99; length as usize]).into()
}

fn busy() -> Error {
    Error::busy("Error::Busy")
}

/// Checks that an append elsewhere is refused with the write pointer, and leaves the zone unchanged.
async fn is_misplaced(suite: &mut Suite, zone: u32, offset: u64, length: u64) -> Check {
    let before = suite.report_of(zone).await?;
    let at = ZoneAddress::new(zone, offset);
    let what = format!("an append at {at}, where the write pointer is at byte {}", before.write_pointer);
    let outcome = suite.any_handle().append_at(at, junk(length)).await;
    let says = outcome.as_ref().err().map(|error| error.detail().to_owned()).unwrap_or_default();
    fails(outcome, &Error::misplaced("Error::Misplaced"), &what)?;
    ensure(says.contains(&before.write_pointer.to_string()), || {
        format!("{what}: the error doesn't say where it is: {says}")
    })?;
    let after = suite.report_of(zone).await?;
    ensure(before == after, || format!("{what}: {before:?} became {after:?}"))
}

/// Checks that an append at the write pointer lands there, and that one elsewhere is refused without a
/// change.
pub(super) async fn appends_at_a_place(suite: &mut Suite) -> Check {
    suite.empty_all().await?;
    let (unit, capacity) = (u64::from(suite.geometry.append_granularity), suite.geometry.zone_capacity);
    is_misplaced(suite, 0, unit, unit).await?;
    let mut end = 0;
    for _ in 0..20 {
        let room = capacity / unit * unit - end;
        if room < 2 * unit {
            break;
        }
        let length = suite.any_length(room / 2);
        if suite.random.below(3) == 0 {
            suite.append(0, length).await?;
        } else {
            suite.append_at(0, end, length).await?;
        }
        end += length as u64;
        ensure(suite.zones[0].end() == end, || format!("zone 0 must end at byte {end}"))?;
        for offset in [0, end - unit, end + unit] {
            is_misplaced(suite, 0, offset, unit).await?;
        }
    }
    suite.check_zone(0).await?;
    if unit > 1 {
        let outcome = suite.first().append_at(ZoneAddress::new(0, end + 1), junk(unit)).await;
        fails(outcome, &invalid(), "an append at a place that isn't a multiple of the granularity")?;
    }
    for (zone, offset, length) in
        [(0, u64::MAX / unit * unit, unit), (0, end, 0), (suite.geometry.zones, 0, unit)]
    {
        let at = ZoneAddress::new(zone, offset);
        let outcome = suite.first().append_at(at, junk(length)).await;
        fails(outcome, &invalid(), format!("an append of {length} bytes at {at}"))?;
    }
    let room = capacity - end;
    if room + unit <= suite.geometry.max_append {
        let length = (room / unit + 1) * unit;
        let outcome = suite.first().append_at(ZoneAddress::new(0, end), junk(length)).await;
        fails(outcome, &Error::no_space("Error::NoSpace"), format!("{length} bytes where {room} are left"))?;
    }
    suite.finish(0).await?;
    let outcome = suite.first().append_at(ZoneAddress::new(0, end), junk(unit)).await;
    fails(outcome, &invalid(), "an append at the end of a full zone")?;
    suite.check_all().await
}

/// Checks concurrent appends at a place: each that succeeds has the place that it named, and the write
/// pointer is after the places of all appends in flight.
pub(super) async fn races_for_a_place(suite: &mut Suite) -> Check {
    suite.empty_all().await?;
    let unit = u64::from(suite.geometry.append_granularity);
    for round in 0..40 {
        if suite.geometry.zone_capacity - suite.zones[0].end() < 20 * unit {
            suite.reset(0, EraseGuarantee::None).await?;
        }
        let start = suite.zones[0].end();
        let mut running = Vec::new();
        for number in 0..8_u64 {
            let (id, payload) = suite.payload(unit as usize);
            let handle = suite.any_handle();
            // All name the same place, or consecutive ones, with plain appends between them.
            let place = if round % 2 == 0 { start } else { start + number / 2 * unit };
            let at = (round % 3 == 0 || number % 2 == 0).then(|| ZoneAddress::new(0, place));
            running.push(async move {
                let outcome = match at {
                    Some(at) => handle.append_at(at, payload).await.map(|()| at),
                    None => handle.append(ZoneIndex(0), payload).await,
                };
                (id, at, outcome)
            });
        }
        let mut at_start = 0;
        let mut is_contended = false;
        for (id, at, outcome) in runtime::join_all(running).await {
            is_contended |= at.is_none();
            match (outcome, at) {
                (Err(Error::Misplaced(_)), Some(_)) => {}
                (outcome, _) => {
                    let landed = succeeds(outcome, "an append beside appends at a place")?;
                    at_start += u32::from(landed.offset.0 == start);
                    suite.landed(0, id, unit as usize, landed)?;
                }
            }
        }
        ensure(at_start == 1 || is_contended, || {
            format!("of several appends at byte {start} of zone 0 {at_start} landed there; expected one")
        })?;
        suite.check_zone(0).await?;
    }
    suite.reset(0, EraseGuarantee::None).await?;
    // An append in flight has its place even if its call was dropped.
    for _ in 0..8 {
        let old = suite.zones[0].end();
        let (id, payload) = suite.payload(unit as usize);
        let handle = suite.any_handle();
        drop(begin_and_drop(handle.append(ZoneIndex(0), payload)).await);
        for turn in 0.. {
            if suite.report_of(0).await?.write_pointer > old {
                break;
            }
            ensure(turn < 1000, || "an append whose call was dropped never took effect in zone 0".into())?;
            runtime::sleep(std::time::Duration::from_millis(1)).await;
        }
        is_misplaced(suite, 0, old, unit).await?;
        suite.append_at(0, old + unit, unit as usize).await?;
        // The dropped append may still be in flight: it can be read once the zone is finished.
        let at = ZoneAddress::new(0, old);
        suite.landed(0, id, unit as usize, at)?;
    }
    suite.finish(0).await?;
    suite.check_zone(0).await
}

/// Every shard repeatedly appends at the write pointer that it reads: each place is taken once.
pub(super) async fn compare_and_append(suite: &mut Suite) -> Check {
    const EACH: usize = 8;
    suite.empty_all().await?;
    let unit = suite.geometry.append_granularity as usize;
    if (runtime::shard_count() * EACH * unit) as u64 > suite.geometry.zone_capacity {
        return Ok(());
    }
    let seed = suite.seed;
    let mut running = Vec::new();
    for shard in 0..runtime::shard_count() {
        let ids: Vec<u64> = (0..EACH).map(|_| suite.payload(unit).0).collect();
        let part = suite.part();
        let work = move || async move {
            let handle = succeeds(part.open().await, "opening a handle")?;
            let mut landed = Vec::new();
            for id in ids {
                for attempt in 0.. {
                    let report = succeeds(handle.report(ZoneIndex(0), 1).await, "a report")?;
                    let at = ZoneAddress::new(0, report[0].write_pointer);
                    let payload = Data::copy_of(&append_bytes(seed, id, unit)).into();
                    match handle.append_at(at, payload).await {
                        Err(Error::Misplaced(_)) if attempt < 100_000 => runtime::yield_now().await,
                        outcome => {
                            succeeds(outcome, format!("an append at {at}, attempt {attempt}"))?;
                            landed.push((id, at));
                            break;
                        }
                    }
                }
            }
            Check::Ok(landed)
        };
        running.push(runtime::spawn_on(ShardIndex(shard), work));
    }
    for answer in runtime::join_all(running).await {
        for (id, at) in succeeds(answer, "running on another shard")?? {
            suite.landed(0, id, unit, at)?;
        }
    }
    let total = (runtime::shard_count() * EACH * unit) as u64;
    ensure(suite.zones[0].end() == total, || format!("{total} bytes were appended one after the other"))?;
    suite.check_zone(0).await
}

/// Checks that a zone opens, closes, continues and is finished from every state that permits it.
pub(super) async fn open_and_close(suite: &mut Suite) -> Check {
    suite.empty_all().await?;
    let unit = suite.geometry.append_granularity as usize;
    let refused = async |suite: &mut Suite, opens: bool| {
        let before = suite.report_of(0).await?;
        let handle = suite.any_handle();
        let outcome = if opens { handle.open(ZoneIndex(0)).await } else { handle.close(ZoneIndex(0)).await };
        let call = if opens { "opening" } else { "closing" };
        fails(outcome, &invalid(), format!("{call} zone 0, which is {:?}", before.state))?;
        let after = suite.report_of(0).await?;
        ensure(before == after, || format!("{call}, refused, changed {before:?} to {after:?}"))
    };
    refused(suite, false).await?;
    for index in [suite.geometry.zones, u32::MAX].map(ZoneIndex) {
        fails(suite.first().open(index).await, &invalid(), format!("opening zone {index}"))?;
        fails(suite.first().close(index).await, &invalid(), format!("closing zone {index}"))?;
    }
    for _ in 0..2 {
        suite.open(0).await?;
        suite.check_zone(0).await?;
    }
    for _ in 0..3 {
        suite.append(0, unit).await?;
        suite.check_zone(0).await?;
    }
    for _ in 0..2 {
        suite.close_zone(0).await?;
        suite.check_zone(0).await?;
    }
    // An append opens the zone implicitly and continues at the write pointer; so does one at a place.
    let end = suite.report_of(0).await?.write_pointer;
    let known = suite.append(0, unit).await?;
    ensure(known.offset == end, || {
        format!("a closed zone ended at byte {end} and goes on at {}", known.offset)
    })?;
    suite.check_zone(0).await?;
    suite.close_zone(0).await?;
    suite.append_at(0, end + unit as u64, unit).await?;
    suite.check_zone(0).await?;
    suite.open(0).await?;
    suite.check_zone(0).await?;
    suite.close_zone(0).await?;
    suite.open(0).await?;
    suite.append(0, unit).await?;
    suite.check_zone(0).await?;
    suite.finish(0).await?;
    suite.check_zone(0).await?;
    for opens in [true, false] {
        refused(suite, opens).await?;
    }
    end_from_each_state(suite).await
}

/// Checks a finish and a reset from each state.
async fn end_from_each_state(suite: &mut Suite) -> Check {
    let unit = suite.geometry.append_granularity as usize;
    for finishes in [true, false] {
        for state in 0..5 {
            suite.reset(0, EraseGuarantee::None).await?;
            match state {
                0 => {}
                1 => suite.open(0).await?,
                2 => {
                    suite.open(0).await?;
                    suite.close_zone(0).await?;
                }
                3 => {
                    suite.append(0, unit).await?;
                }
                _ => {
                    suite.append(0, unit).await?;
                    suite.close_zone(0).await?;
                }
            }
            suite.check_zone(0).await?;
            match finishes {
                true => suite.finish(0).await?,
                false => suite.reset(0, EraseGuarantee::None).await?,
            }
            suite.check_zone(0).await?;
        }
    }
    suite.empty_all().await
}

/// Result of one call of [`races`].
enum Outcome {
    Appended(u64, Result<ZoneAddress>),
    Opened(Result<()>),
    Closed(Result<()>),
}

type Running = Pin<Box<dyn Future<Output = (u32, Outcome)>>>;

/// Checks concurrent opens, closes and appends: each is atomic, and the limits count every zone exactly once.
pub(super) async fn races(suite: &mut Suite) -> Check {
    suite.empty_all().await?;
    let unit = suite.geometry.append_granularity as usize;
    let zones = (suite.zones.len() as u64).min(4);
    for round in 0..40 {
        let mut running: Vec<Running> = Vec::new();
        for _ in 0..12 {
            let zone = suite.random.below(zones) as u32;
            let index = ZoneIndex(zone);
            let handle: Rc<dyn Zones> = suite.any_handle();
            running.push(match suite.random.below(4) {
                0 => Box::pin(async move { (zone, Outcome::Opened(handle.open(index).await)) }),
                1 => Box::pin(async move { (zone, Outcome::Closed(handle.close(index).await)) }),
                _ if suite.zones[zone as usize].end() + 12 * unit as u64 > suite.geometry.zone_capacity => {
                    continue;
                }
                _ => {
                    let (id, payload) = suite.payload(unit);
                    Box::pin(
                        async move { (zone, Outcome::Appended(id, handle.append(index, payload).await)) },
                    )
                }
            });
        }
        let is_limited = suite.limit() != u32::MAX;
        for (zone, outcome) in runtime::join_all(running).await {
            match outcome {
                Outcome::Appended(id, Ok(at)) => {
                    suite.landed(zone, id, unit, at)?;
                }
                Outcome::Appended(_, Err(Error::Busy(_))) | Outcome::Opened(Err(Error::Busy(_)))
                    if is_limited => {}
                Outcome::Opened(Ok(())) | Outcome::Closed(Ok(()) | Err(Error::Invalid(_))) => {}
                Outcome::Appended(_, Err(error)) => return Err(format!("append to zone {zone}: {error}")),
                Outcome::Opened(other) | Outcome::Closed(other) => {
                    return Err(format!("opening or closing zone {zone} beside others: {other:?}"));
                }
            }
        }
        let reports = suite.report().await?;
        let open = reports.iter().filter(|report| report.state.is_open()).count();
        let active = reports.iter().filter(|report| report.state.is_active()).count();
        let is_within = |count: usize, limit: u32| limit == 0 || count <= limit as usize;
        ensure(
            is_within(open, suite.geometry.max_open) && is_within(active, suite.geometry.max_active),
            || format!("{open} zones are open and {active} active at the same time"),
        )?;
        for (model, report) in suite.zones.iter_mut().zip(reports) {
            let is_begun = report.state == ZoneState::Closed || report.state.is_open();
            ensure(is_begun || (report.state == ZoneState::Empty && model.appends.is_empty()), || {
                format!("{report:?} after opens, closes and appends")
            })?;
            model.state = report.state;
        }
        suite.check_all().await?;
        if round % 8 == 7 {
            suite.empty_all().await?;
        }
    }
    suite.empty_all().await
}

/// Checks that a zone that is refused for a limit remains as it is, and so do all others.
async fn is_refused(suite: &mut Suite, zone: u32) -> Check {
    let unit = u64::from(suite.geometry.append_granularity);
    let before = suite.report().await?;
    let at = ZoneAddress::new(zone, before[zone as usize].write_pointer);
    let what = |call: &str| format!("{call} zone {zone}, one more than may be open or active");
    fails(suite.any_handle().open(at.zone).await, &busy(), what("opening"))?;
    fails(suite.any_handle().append(at.zone, junk(unit)).await, &busy(), what("an append to"))?;
    fails(suite.any_handle().append_at(at, junk(unit)).await, &busy(), what("an append at the end of"))?;
    let after = suite.report().await?;
    ensure(before == after, || format!("{before:?} became {after:?} while zone {zone} was refused"))
}

/// Checks `max_open` and `max_active` with zones that are opened and closed.
pub(super) async fn limits(suite: &mut Suite) -> Check {
    suite.empty_all().await?;
    let unit = suite.geometry.append_granularity as usize;
    let (max_open, max_active) = (suite.geometry.max_open, suite.geometry.max_active);
    let zones = suite.zones.len() as u32;
    // At the limit of open zones, half of them explicitly, another one can be opened only after one is
    // closed. The closed zone keeps its data.
    if max_open != 0 && max_open < zones && (max_active == 0 || max_active > max_open) {
        for zone in 0..max_open {
            if zone % 2 == 0 {
                suite.open(zone).await?;
            }
            suite.append(zone, unit).await?;
        }
        let other = max_open;
        is_refused(suite, other).await?;
        for zone in 0..max_open {
            suite.close_zone(zone).await?;
            suite.append(other, unit).await?;
            // A closed zone isn't opened beyond the limit either.
            is_refused(suite, zone).await?;
            suite.check_zone(zone).await?;
            match zone % 3 {
                0 => suite.close_zone(other).await?,
                1 => suite.finish(other).await?,
                _ => suite.reset(other, EraseGuarantee::None).await?,
            }
            suite.open(zone).await?;
            suite.check_zone(zone).await?;
            is_refused_or_full(suite, other).await?;
            suite.reset(other, EraseGuarantee::None).await?;
        }
        suite.check_all().await?;
    }
    // Closed zones count as active until they are finished or reset.
    suite.empty_all().await?;
    if max_active != 0 && max_active < zones {
        for zone in 0..max_active {
            if zone % 2 == 0 {
                suite.open(zone).await?;
            } else {
                suite.append(zone, unit).await?;
            }
            suite.close_zone(zone).await?;
        }
        for zone in 0..max_active {
            is_refused(suite, max_active).await?;
            // An active zone can still be opened.
            suite.append(zone, unit).await?;
            if zone % 2 == 0 {
                suite.close_zone(zone).await?;
                suite.finish(zone).await?;
            } else {
                suite.reset(zone, EraseGuarantee::None).await?;
            }
            suite.open(max_active).await?;
            suite.check_zone(max_active).await?;
            suite.reset(max_active, EraseGuarantee::None).await?;
            suite.reset(zone, EraseGuarantee::None).await?;
            suite.open(zone).await?;
            suite.close_zone(zone).await?;
        }
        suite.check_all().await?;
    }
    suite.empty_all().await
}

async fn is_refused_or_full(suite: &mut Suite, zone: u32) -> Check {
    match suite.zones[zone as usize].state {
        ZoneState::Full => Ok(()),
        _ => is_refused(suite, zone).await,
    }
}
