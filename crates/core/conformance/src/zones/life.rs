//! The life of a zone from empty to full and through resets.

use super::model::{Suite, check_append};
use crate::stamp::append_bytes;
use crate::suite::{Check, ensure, fails, invalid, succeeds, unsupported};
use block::{Data, Durable, EraseGuarantee, Error, ZoneAddress, ZoneIndex, ZoneState};
use runtime::ShardIndex;

/// Checks that appends of all lengths are contiguous, don't overlap, and can be read at once, whole and in
/// part.
pub(super) async fn appends(suite: &mut Suite) -> Check {
    let zones = suite.limit().min(3);
    for zone in 0..zones {
        for _ in 0..30 {
            let room = suite.geometry.zone_capacity - suite.zones[zone as usize].end();
            if room < u64::from(suite.geometry.append_granularity) {
                break;
            }
            let length = suite.any_length(room);
            let known = suite.append(zone, length).await?;
            let handle = suite.any_handle();
            suite.check_one(&*handle, zone, known).await?;
        }
        suite.check_zone(zone).await?;
        read_in_parts(suite, zone).await?;
    }
    suite.check_all().await
}

/// Checks reads that begin and end at any multiple of the read granularity.
async fn read_in_parts(suite: &mut Suite, zone: u32) -> Check {
    let unit = u64::from(suite.geometry.read_granularity);
    for known in suite.zones[zone as usize].appends.clone() {
        let units = known.length as u64 / unit;
        let (from, count) = (suite.random.below(units), 1 + suite.random.below(units));
        let (from, length) = (from * unit, count.min(units - from) * unit);
        let at = ZoneAddress::new(zone, known.offset + from);
        let handle = suite.any_handle();
        let buffer = super::model::read(&*handle, at, length as usize, false).await?;
        let buffer = succeeds(buffer, format!("a read of {length} bytes at {at}"))?;
        let whole = append_bytes(suite.seed, known.id, known.length);
        let expected = &whole[from as usize..(from + length) as usize];
        ensure(buffer.filled() == expected, || {
            format!("a read of {length} bytes at {at}, a part of append {}: other bytes", known.id)
        })?;
    }
    Ok(())
}

/// Checks that concurrent appends through both handles don't overlap.
pub(super) async fn concurrent_appends(suite: &mut Suite) -> Check {
    suite.empty_all().await?;
    let zones = suite.limit().min(3);
    for _ in 0..10 {
        let mut running = Vec::new();
        for _ in 0..12 {
            let zone = suite.random.below(u64::from(zones)) as u32;
            let length = suite.any_length(suite.geometry.zone_capacity / 200);
            let (id, payload) = suite.payload(length);
            let handle = suite.any_handle();
            running.push(async move { (zone, id, length, handle.append(ZoneIndex(zone), payload).await) });
        }
        for (zone, id, length, outcome) in runtime::join_all(running).await {
            if let Err(Error::NoSpace(_)) = outcome
                && suite.zones[zone as usize].end() + 12 * length as u64 > suite.geometry.zone_capacity
            {
                continue;
            }
            let at = succeeds(outcome, format!("append of {length} bytes to zone {zone}, beside others"))?;
            suite.landed(zone, id, length, at)?;
        }
    }
    suite.check_all().await
}

/// Checks that all shards can append to one zone at the same time, and that each reads the appends of the
/// others.
pub(super) async fn several_shards(suite: &mut Suite) -> Check {
    suite.empty_all().await?;
    let unit = suite.geometry.append_granularity as usize;
    let seed = suite.seed;
    let each = (suite.geometry.zone_capacity / unit as u64 / runtime::shard_count() as u64).min(20);
    let mut running = Vec::new();
    for shard in 0..runtime::shard_count() {
        let ids: Vec<u64> = (0..each).map(|_| suite.payload(unit).0).collect();
        let part = suite.part();
        let work = move || async move {
            let handle = succeeds(part.open().await, format!("opening a handle on shard {shard}"))?;
            let appends = ids.iter().map(|id| {
                let payload = Data::copy_of(&append_bytes(seed, *id, unit)).into();
                handle.append(ZoneIndex(0), payload)
            });
            let landed = runtime::join_all(appends).await;
            ids.iter()
                .zip(landed)
                .map(|(id, at)| succeeds(at, format!("an append on shard {shard}")).map(|at| (*id, at)))
                .collect::<Check<Vec<_>>>()
        };
        running.push(runtime::spawn_on(ShardIndex(shard), work));
    }
    for answer in runtime::join_all(running).await {
        for (id, at) in succeeds(answer, "running on another shard")?? {
            suite.landed(0, id, unit, at)?;
        }
    }
    suite.check_zone(0).await?;
    for shard in 0..runtime::shard_count() {
        let (part, appends) = (suite.part(), suite.zones[0].appends.clone());
        let work = move || async move {
            let handle = succeeds(part.open().await, format!("opening a handle on shard {shard}"))?;
            for known in appends {
                check_append(&*handle, seed, 0, known).await?;
            }
            Check::Ok(())
        };
        let read = succeeds(runtime::spawn_on(ShardIndex(shard), work).await, "running on another shard")?;
        read.map_err(|broken| format!("on shard {shard}, {broken}"))?;
    }
    Ok(())
}

/// Checks that a zone takes exactly its capacity, and that a full zone takes nothing and keeps its data.
pub(super) async fn fill_and_finish(suite: &mut Suite) -> Check {
    suite.empty_all().await?;
    let unit = u64::from(suite.geometry.append_granularity);
    let usable = suite.geometry.zone_capacity / unit * unit;
    loop {
        let room = usable - suite.zones[0].end();
        if room == 0 {
            break;
        }
        // An append that exceeds the remaining capacity is refused, and the zone remains open.
        let too_much = room + unit;
        if too_much <= suite.geometry.max_append {
            let (_, payload) = suite.payload(too_much as usize);
            let outcome = suite.first().append(ZoneIndex(0), payload).await;
            let no_space = Error::no_space("Error::NoSpace");
            fails(outcome, &no_space, format!("an append of {too_much} bytes where {room} are left"))?;
        }
        let length = suite.geometry.max_append.min(room) / unit * unit;
        // The last appends are small.
        let length = if room > length { length } else { (length / 2 / unit).max(1) * unit };
        suite.append(0, length as usize).await?;
    }
    let (_, payload) = suite.payload(unit as usize);
    match suite.first().append(ZoneIndex(0), payload).await {
        Err(Error::NoSpace(_) | Error::Invalid(_)) => {}
        other => {
            return Err(format!(
                "an append to zone 0, which has no room: expected NoSpace or Invalid, got {other:?}"
            ));
        }
    }
    suite.check_zone(0).await?;
    suite.finish(0).await?;
    suite.check_zone(0).await?;
    // One zone that is partly written, and one that is empty.
    suite.append(1, unit as usize).await?;
    for zone in [1, 2] {
        suite.finish(zone).await?;
    }
    for zone in 0..3 {
        let (_, payload) = suite.payload(unit as usize);
        let outcome = suite.any_handle().append(ZoneIndex(zone), payload).await;
        fails(outcome, &invalid(), format!("an append to full zone {zone}"))?;
        let before = suite.report_of(zone).await?;
        suite.finish(zone).await?;
        let after = suite.report_of(zone).await?;
        ensure(before == after, || format!("finishing full zone {zone} changed {before:?} to {after:?}"))?;
        suite.check_zone(zone).await?;
    }
    Ok(())
}

/// Checks that a reset empties the zone and raises its generation. One whose guarantee isn't supported is
/// refused without an effect.
pub(super) async fn resets(suite: &mut Suite) -> Check {
    suite.empty_all().await?;
    let all =
        [EraseGuarantee::None, EraseGuarantee::Deallocated, EraseGuarantee::Erased, EraseGuarantee::Key];
    for erase in all {
        for finished in [false, true] {
            let length = suite.any_length(suite.geometry.zone_capacity / 4);
            suite.append(0, length).await?;
            if finished {
                suite.finish(0).await?;
            }
            if erase > suite.geometry.erase {
                let before = suite.report_of(0).await?;
                let outcome = suite.any_handle().reset(ZoneIndex(0), erase).await;
                fails(outcome, &unsupported(), format!("a reset with the guarantee {erase}"))?;
                let after = suite.report_of(0).await?;
                ensure(before == after, || format!("a refused reset changed {before:?} to {after:?}"))?;
                suite.check_zone(0).await?;
                suite.reset(0, EraseGuarantee::None).await?;
            } else {
                suite.reset(0, erase).await?;
            }
            suite.check_zone(0).await?;
            erased_is_gone(suite, erase, length).await?;
        }
    }
    // Empty zones can also be reset.
    suite.reset(1, EraseGuarantee::None).await?;
    suite.check_all().await
}

/// Checks that erased data can't be read, before and after the zone is used again.
async fn erased_is_gone(suite: &mut Suite, erase: EraseGuarantee, length: usize) -> Check {
    if erase == EraseGuarantee::None || erase > suite.geometry.erase {
        return Ok(());
    }
    let last_id = suite.payload(0).0 - 1;
    let (old, unit) = (append_bytes(suite.seed, last_id, length), suite.geometry.append_granularity as usize);
    if unit < 16 {
        return Ok(()); // So few bytes may match by accident.
    }
    let handle = suite.any_handle();
    if let Ok(buffer) = super::model::read(&*handle, ZoneAddress::new(0, 0), length, false).await? {
        let shows_old = buffer.filled().chunks(unit).zip(old.chunks(unit)).any(|(found, old)| found == old);
        ensure(!shows_old, || format!("zone 0 still shows what a reset with the guarantee {erase} erased"))?;
    }
    Ok(())
}

/// Checks that a flush of zones succeeds, keeps everything, and finishes zones that become durable only by a
/// finish.
pub(super) async fn flushes(suite: &mut Suite) -> Check {
    suite.empty_all().await?;
    let zones = suite.limit().min(2);
    for zone in 0..zones {
        suite.append(zone, suite.geometry.append_granularity as usize).await?;
    }
    succeeds(suite.first().flush(&[]).await, "a flush of no zones")?;
    suite.check_all().await?;
    let asked: Vec<ZoneIndex> = (0..zones).map(ZoneIndex).collect();
    succeeds(suite.any_handle().flush(&asked).await, "a flush")?;
    for zone in 0..zones {
        if suite.geometry.durable == Durable::OnFinish {
            suite.zones[zone as usize].state = ZoneState::Full;
        }
        suite.check_zone(zone).await?;
    }
    let wrong = ZoneIndex(suite.geometry.zones);
    fails(suite.first().flush(&[wrong]).await, &invalid(), "a flush of a zone that doesn't exist")?;
    // A flush also takes zones that don't need it.
    let all: Vec<ZoneIndex> = suite.all_zones().map(ZoneIndex).collect();
    succeeds(suite.any_handle().flush(&all).await, "a flush of all zones")?;
    for zone in 0..zones {
        for known in suite.zones[zone as usize].appends.clone() {
            let handle = suite.any_handle();
            suite.check_one(&*handle, zone, known).await?;
        }
    }
    Ok(())
}

/// Leaves zones of every state for a close: 0 full, 1 open, 2 reset, 3 full without an append; 4 closed and 5
/// explicitly open if the limits allow it.
pub(super) async fn leave_traces(suite: &mut Suite) -> Check {
    suite.empty_all().await?;
    for zone in [0, 2] {
        for _ in 0..3 {
            let length = suite.any_length(suite.geometry.zone_capacity / 4);
            suite.append(zone, length).await?;
        }
        suite.finish(zone).await?;
    }
    suite.finish(3).await?;
    suite.reset(2, suite.geometry.erase).await?;
    for _ in 0..3 {
        let length = suite.any_length(suite.geometry.zone_capacity / 4);
        suite.append(1, length).await?;
    }
    if suite.zones.len() > 5 && suite.limit() >= 3 {
        let length = suite.any_length(suite.geometry.zone_capacity / 4);
        suite.append(4, length).await?;
        suite.close_zone(4).await?;
        suite.open(5).await?;
    }
    suite.check_all().await
}

/// Checks that a close keeps all data. Partly written zones are closed and continue at their write pointer,
/// or are full.
pub(super) async fn check_traces(suite: &mut Suite) -> Check {
    let begun: Vec<u32> =
        suite.all_zones().filter(|zone| suite.zones[*zone as usize].state.is_active()).collect();
    for zone in &begun {
        let is_finished = suite.report_of(*zone).await?.state == ZoneState::Full;
        suite.zones[*zone as usize].state = if is_finished { ZoneState::Full } else { ZoneState::Closed };
    }
    suite.check_all().await.map_err(|broken| format!("after a close and a new open, {broken}"))?;
    for zone in begun {
        let report = suite.report_of(zone).await?;
        if report.state == ZoneState::Closed {
            let length = suite.geometry.append_granularity as usize;
            suite.append_at(zone, report.write_pointer, length).await?;
            suite.check_zone(zone).await?;
            suite.finish(zone).await?;
        }
    }
    suite.append(2, suite.geometry.append_granularity as usize).await?;
    suite.check_zone(2).await?;
    let zones: Vec<u32> = suite.all_zones().collect();
    for zone in zones {
        suite.reset(zone, EraseGuarantee::None).await?;
    }
    suite.check_all().await
}
