//! Opening zones ahead: a lane's next zone is open on the medium before the lane needs it.
//!
//! The first append to an empty zone opens it, which takes a durable write of its header where zones lie on a device. In the path
//! of a record of users that is the tail latency. So once little is left of a lane's zone, a task of its own opens a free zone,
//! which is *prepared* then.
//!
//! A prepared zone stays free: it counts as free everywhere, and is put back by nothing but its being taken. Lanes take prepared
//! zones first; the cleaner, checkpoints and the filler take them last, but do take them. So a prepared zone never keeps the log
//! from making progress, and a zone is opened ahead only while more are free than users leave to the cleaner and to checkpoints.
//! While it is being opened, a zone is not free; the cleaner refuses no writer in that time, and the end wakes it and the writers.
//!
//! Zones may have limits on how many are open. Zones are opened ahead as far as these allow it beside those that lanes, seals, the
//! cleaner, checkpoints and roots may have open on all shards.
//!
//! A zone without records that is open when the power is cut is recovered as one whose first append was cut: it is scanned, nothing
//! valid is found in it, and it is reset. When the log is closed, prepared zones are reset.

use crate::kit::Kit;
use crate::layout::ROOT_ZONES;
use crate::owner::Owner;
use crate::zone_writer::ZoneWriter;
use block::{EraseGuarantee, Error, ZoneIndex};
use std::rc::Rc;

/// The next zone is opened when this share of a zone is left, so that a lane has as much time for it as writing that much takes:
/// a flush of the device below takes as long as many records.
const SHARE_LEFT: u32 = 4;
/// And no later than when the zone takes only so many more records as large as the last one.
const RECORDS_LEFT: u32 = 4;

/// Whether so little is left of a zone that the next one is opened, after a record of so many blocks.
fn is_nearly_full(position: u32, capacity: u32, record: u32) -> bool {
    let left = capacity.saturating_sub(position);
    left < (capacity / SHARE_LEFT).max(record.saturating_mul(RECORDS_LEFT))
}

/// Number of zones that may be open beside those that are opened ahead, on all shards of a log: `users` and `movers` are the numbers of
/// classes that lanes and the cleaner write.
fn needed_open(shards: u32, lanes: u32, users: u32, movers: u32) -> u32 {
    // On each shard: one per lane and class, one per class of the cleaner, those that are being sealed, and the filler.
    let of_shard = lanes * users + movers + lanes + 1;
    // The next root zone may be opened while one is written; and one zone for checkpoints.
    shards * of_shard + 1 + ROOT_ZONES
}

/// Most zones that are opened ahead at a time: `wanted`, as far as the limit allows it (0 is none).
fn most_prepared(limit: u32, needed: u32, wanted: u32) -> u32 {
    match limit {
        0 => wanted,
        limit => wanted.min(limit.saturating_sub(needed)),
    }
}

fn most_now(kit: &Kit) -> u32 {
    let geometry = kit.zones.geometry();
    let limits = [geometry.max_open, geometry.max_active].into_iter().filter(|limit| *limit != 0);
    let (shards, lanes) = (kit.shared().members(), kit.settings.appends_in_flight);
    let classes = kit.policy.borrow().classes();
    let users = (0..classes).filter(|class| kit.is_users(*class)).count() as u32;
    let needed = needed_open(shards, lanes, users, u32::from(classes) - users);
    // One for each zone that a lane fills.
    most_prepared(limits.min().unwrap_or(0), needed, shards * lanes * users)
}

/// Begins to open the next zone of a lane once this one is nearly full, after a record of so many blocks.
pub(crate) fn look_ahead<O: Owner>(owner: &Rc<O>, zone: &mut ZoneWriter, record: u32) {
    let kit = owner.kit();
    if !kit.settings.prepare_zones || zone.has_next() || kit.is_closing() {
        return;
    }
    if !is_nearly_full(zone.position(), zone.capacity(), record) {
        return;
    }
    let Some(next) = kit.pool.begin_preparing(owner.kept_zones(), most_now(kit)) else { return };
    zone.set_next();
    let opener = kit.clone();
    kit.tasks.spawn(async move { open_ahead(&opener, next).await }).detach();
}

async fn open_ahead(kit: &Kit, zone: u32) {
    match kit.zones.open(ZoneIndex(zone)).await {
        Ok(()) => kit.pool.end_preparing(zone, true),
        // The zone is as it was: more zones are open than are accounted for here.
        Err(error @ Error::Busy(_)) => {
            tracing::debug!("opening zone {zone} ahead: {error}");
            kit.pool.end_preparing(zone, false);
        }
        Err(error) => {
            tracing::warn!("opening zone {zone} ahead: {error}");
            kit.pool.fail_preparing(zone);
            kit.abandon(zone, 0).await;
            kit.note_no_space(&error);
        }
    }
    wake(kit);
    if kit.is_closing() {
        put_back(kit).await;
    }
}

/// Resets the prepared zones of a log that is being closed. They are empty, so nothing has to be erased.
pub(crate) async fn put_back(kit: &Kit) {
    while kit.failure().is_none()
        && let Some(zone) = kit.pool.begin_discarding()
    {
        match kit.zones.reset(ZoneIndex(zone), EraseGuarantee::None).await {
            Ok(generation) => kit.pool.end_discarding(zone, generation),
            Err(error) => {
                tracing::warn!(
                    "resetting zone {zone}: {error}; it isn't used again before the log is reopened"
                );
                kit.pool.fail_preparing(zone);
                kit.set_damaged(zone);
            }
        }
        wake(kit);
    }
}

/// Wakes those that found no zone meanwhile.
fn wake(kit: &Kit) {
    kit.events.freed.notify_all();
    kit.events.cleaner.notify_all();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_zone_is_opened_when_a_quarter_or_a_few_records_are_left() {
        let first = |capacity, record| {
            (0..capacity).find(|position| is_nearly_full(*position, capacity, record)).expect("it fills")
        };
        assert_eq!((first(1024, 2), first(1024, 33), first(1024, 100)), (769, 769, 625));
        assert_eq!(first(8, 2), 1, "a small zone after its first record");
        assert_eq!(first(8, u32::MAX), 0);
    }

    #[test]
    fn limits_of_open_zones_leave_out_what_others_may_have_open() {
        let needed = needed_open(1, 2, 1, 1);
        assert_eq!(needed, 2 + 1 + 2 + 1 + 3);
        assert_eq!(most_prepared(0, needed, 2), 2, "no limit");
        let most = |limit| most_prepared(limit, needed, 2);
        assert_eq!([most(1), most(9), most(10), most(11), most(99)], [0, 0, 1, 2, 2]);
        assert_eq!(needed_open(3, 2, 2, 3), 3 * (4 + 3 + 2 + 1) + 3);
    }
}
