//! Opening zones ahead: a lane's next zone is open on the medium before the lane needs it.
//!
//! The first append to an empty zone opens it. On zones in a device that takes a durable write of the zone's
//! header, which would add to the tail latency of users' records. So once little space is left in a lane's
//! zone, a background task opens a free zone, which is then *prepared*.
//!
//! A prepared zone is still free: it is counted as free everywhere, and any task may take it. Lanes take
//! prepared zones first; the cleaner, checkpoints and the filler take them last. A prepared zone therefore
//! never blocks the log, and a zone is opened ahead only while more zones are free than users leave to the
//! cleaner and to checkpoints. While it is being opened, a zone is not free; the cleaner refuses no writer in
//! that time, and the end of opening wakes it and the writers.
//!
//! Zones may limit the number of open ones. The limit for prepared zones leaves out all that lanes, seals,
//! the cleaner, checkpoints and roots may have open on all shards.
//!
//! After a power cut, an open zone without records is recovered like one whose first append was cut off: it
//! is scanned, found empty, and reset. When the log is closed, prepared zones are reset.

use crate::kit::Kit;
use crate::layout::ROOT_ZONES;
use crate::owner::Owner;
use crate::zone_writer::ZoneWriter;
use block::{EraseGuarantee, Error, ZoneIndex};
use std::rc::Rc;

/// The next zone is opened once less than 1/4 of a zone is left. A lane then has the time of writing that
/// much for it: a flush of the device below takes as long as many records.
const SHARE_LEFT: u32 = 4;
/// The next zone is also opened once fewer than this many records as large as the last one fit.
const RECORDS_LEFT: u32 = 4;

/// Whether the next zone should be opened, after a record of `record` blocks that ended at block `position`.
fn is_nearly_full(position: u32, capacity: u32, record: u32) -> bool {
    let left = capacity.saturating_sub(position);
    left < (capacity / SHARE_LEFT).max(record.saturating_mul(RECORDS_LEFT))
}

/// Number of zones, those that are opened ahead excluded, that may be open on all shards of a log. `users`
/// and `movers` are the numbers of classes that lanes and the cleaner write.
fn needed_open(shards: u32, lanes: u32, users: u32, movers: u32) -> u32 {
    // On each shard: one per lane and class, one per class of the cleaner, one being sealed per lane, and the
    // filler.
    let of_shard = lanes * users + movers + lanes + 1;
    // The next root zone may be opened while the other is written; one zone is for checkpoints.
    shards * of_shard + 1 + ROOT_ZONES
}

/// Most zones that are opened ahead at a time: `wanted`, as far as `limit` permits; a limit of 0 is none.
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

/// Begins to open the next zone of a lane if this one is nearly full, after a record of `record` blocks.
pub(crate) fn look_ahead<O: Owner>(owner: &Rc<O>, zone: &mut ZoneWriter, record: u32) {
    let kit = owner.kit();
    if !kit.settings.prepare_zones || zone.has_next() || kit.is_closing() {
        return;
    }
    if !is_nearly_full(zone.position(), zone.capacity(), record)
        || kit.budget().drive().is_scarce(runtime::now())
    {
        return;
    }
    let Some(next) = kit.pool.begin_preparing(owner.kept_zones(), most_now(kit)) else { return };
    zone.set_next();
    let opener = kit.clone();
    kit.tasks.spawn(async move { open_ahead(&opener, next).await }).detach();
}

async fn open_ahead(kit: &Kit, zone: u32) {
    match kit.zones.open(ZoneIndex(zone)).await {
        Ok(()) => {
            kit.budget().drive().note_opened();
            kit.pool.end_preparing(zone, true);
        }
        // The zone is unchanged: more zones are open than are counted here.
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

/// Resets the prepared zones of a log that is being closed. They are empty, so no erasure is needed.
pub(crate) async fn put_back(kit: &Kit) {
    while kit.failure().is_none()
        && let Some(zone) = kit.pool.begin_discarding()
    {
        match kit.zones.reset(ZoneIndex(zone), EraseGuarantee::None).await {
            Ok(generation) => {
                kit.budget().drive().note_finished();
                kit.pool.end_discarding(zone, generation);
            }
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

/// Wakes tasks that found no zone meanwhile.
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
