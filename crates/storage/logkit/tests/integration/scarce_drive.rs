//! Drives that permit fewer open zones than lanes are busy, where the budget has no limit: the lanes take
//! turns as with a budget, and neither waste zones nor wait for ever.

use crate::bare::{Bare, Item, zones};
use crate::failing::{Classes, Failing, simulate};
use block::Result;
use logkit::{Owner, checkpoint, lane};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

/// Blocks of a zone of 1 MiB: one is the device's.
const ZONE_BLOCKS: usize = 255;
/// Duration of an append, and of a finish.
const APPEND: Duration = Duration::from_millis(2);
const LEAST_QUANTUM: Duration = Duration::from_millis(50);
/// Duration of the busy time.
const BUSY: Duration = Duration::from_secs(2);

/// Zones and time of busy lanes.
#[derive(Debug)]
struct Used {
    zones: usize,
    /// Zones that the records would fill.
    full: usize,
    longest: Duration,
    took: Duration,
}

/// Twice as many clients as lanes append to each of these shards for a time, each one entry after the other.
async fn keep_busy(owners: &[Rc<Bare>], lanes: u32) -> Used {
    let begun = runtime::now();
    let clients = owners.iter().flat_map(|owner| (0..2 * lanes).map(|_| owner.clone()));
    let clients: Vec<_> = clients
        .map(|owner| {
            runtime::spawn(async move {
                let mut longest = Duration::ZERO;
                while begun.elapsed() < BUSY {
                    let begun = runtime::now();
                    owner.append_alone(Item::new(1, 1, 8)).await;
                    longest = longest.max(begun.elapsed());
                }
                longest
            })
        })
        .collect();
    let mut longest = Duration::ZERO;
    for client in clients {
        longest = longest.max(client.await);
    }
    let took = begun.elapsed();
    let mut zones = BTreeSet::new();
    let mut places = BTreeSet::new();
    for owner in owners {
        for (zone, position, _) in &owner.seen.borrow().committed {
            zones.insert(*zone);
            // A record has a block of header.
            places.extend([(*zone, *position), (*zone, position - 1)]);
        }
    }
    Used { zones: zones.len(), full: places.len().div_ceil(ZONE_BLOCKS), longest, took }
}

async fn busy_lanes(shards: u16, lanes: u32, slots: u32) -> Result<Used> {
    // One is the newest root's.
    let failing = Failing::on(zones(1200, 1 << 20, slots + 1).await?.open().await?);
    failing.append_takes.set(APPEND);
    failing.finish_takes.set(APPEND);
    let policy = || Box::new(Classes { users: 1, all: 2 });
    let home = Bare::with_shards(failing, false, policy(), shards, lanes).await?;
    checkpoint::seal(home.kit()).await;
    let mut owners = vec![home.clone()];
    owners.extend((1..shards).map(|shard| Bare::join_as(&home, shard, policy())));
    owners.iter().for_each(lane::start);
    let used = keep_busy(&owners, lanes).await;
    for owner in owners.iter().rev() {
        owner.close().await;
        assert_eq!((owner.kit().failure(), owner.seen.borrow().refused.len()), (None, 0));
    }
    Ok(used)
}

/// A lane may have a record in hand when the drive refuses it first, so it may have to wait for a turn of
/// each other lane: a record, 50 ms of records or its share of a second, the rest of the last one, and the
/// seal. Each lane may then have begun a zone for one record. Later zones end half full or after 50 ms, or
/// because nothing is queued for a moment.
#[test]
fn busy_lanes_take_turns_on_a_drive_with_too_few_open_zones() {
    for (shards, lanes) in [(1, 1), (1, 2), (1, 4), (1, 32), (2, 1), (4, 1), (4, 2), (32, 1)] {
        for slots in [1, 3] {
            simulate(async move || {
                let used = busy_lanes(shards, lanes, slots).await?;
                let case = format!("{shards} shards of {lanes} lanes, {slots} slots: {used:?}");
                println!("{case}");
                let all = u32::from(shards) * lanes;
                let quantum = (Duration::from_secs(1) / all).max(LEAST_QUANTUM);
                assert!(used.longest <= all * (quantum + 6 * APPEND), "{case}");
                let turns = slots * used.took.div_duration_f64(LEAST_QUANTUM).ceil() as u32;
                assert!(used.zones <= 2 * used.full + (all + 2 * turns) as usize, "{case}");
                Ok(())
            });
        }
    }
}
