//! Permits for open zones, where tasks need more than there are: zones are given from task to task, without
//! waste, and none waits for ever.

use crate::bare::{Bare, Item, LANES, zones};
use crate::failing::{Classes, Failing, simulate};
use block::{Error, Result};
use logkit::pool::Usage;
use logkit::pool::budget::{Demand, Purpose};
use logkit::{Mover, Owner, checkpoint, lane};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

/// Blocks of a zone of 1 MiB: one is the device's.
const ZONE_BLOCKS: usize = 255;

fn two_classes() -> Box<Classes> {
    Box::new(Classes { users: 1, all: 2 })
}

/// Zones in which these owners' entries have committed.
fn zones_of<'a>(owners: impl IntoIterator<Item = &'a Rc<Bare>>) -> BTreeSet<u32> {
    let seen = |owner: &Rc<Bare>| owner.seen.borrow().committed.iter().map(|(zone, ..)| *zone).collect();
    owners.into_iter().flat_map(|owner| -> Vec<u32> { seen(owner) }).collect()
}

/// Zones of 1 MiB whose appends take this long.
async fn slow(append: Duration, max_open: u32) -> Result<Rc<Failing>> {
    let failing = Failing::on(zones(200, 1 << 20, max_open).await?.open().await?);
    failing.append_takes.set(append);
    Ok(failing)
}

/// Appends `records` entries of one block to each of these owners, two at a time. Returns the longest time
/// that one took.
async fn append_to_all(owners: &[Rc<Bare>], records: u32) -> Duration {
    let clients = owners.iter().flat_map(|owner| [owner.clone(), owner.clone()]);
    let clients: Vec<_> = clients
        .map(|owner| {
            runtime::spawn(async move {
                let mut longest = Duration::ZERO;
                for number in 0..records / 2 {
                    let begun = runtime::now();
                    owner.append(Item::new(number as u8, 1, 8)).await;
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
    longest
}

/// Two shards with busy lanes share one permit. Returns the number of zones, and the longest time that an
/// entry took.
async fn busy_shards(append: Duration, records: u32) -> Result<(usize, Duration)> {
    let zones = slow(append, 0).await?;
    let home = Bare::with_policy(zones, false, two_classes()).await?;
    home.kit().budget().set(ONE_PERMIT);
    let other = Bare::join(&home, two_classes());
    let owners = [home, other];
    owners.iter().for_each(lane::start);
    let longest = append_to_all(&owners, records).await;
    let used = zones_of(&owners).len();
    for owner in owners.iter().rev() {
        owner.close().await;
        assert_eq!((owner.kit().failure(), owner.seen.borrow().refused.len()), (None, 0));
    }
    Ok((used, longest))
}

const ONE_PERMIT: Demand = Demand { limit: Some(3), log: 2 * LANES, tables: 2 };

#[test]
fn busy_lanes_with_one_permit_fill_half_of_each_zone() {
    simulate(async || {
        let (used, longest) = busy_shards(Duration::from_millis(1), 1000).await?;
        // Each record has a block of header.
        let needed = (2 * 2 * 1000_usize).div_ceil(ZONE_BLOCKS);
        assert!(used <= 2 * needed, "{used} zones for {needed}");
        assert!(longest < Duration::from_millis(500), "{longest:?}");
        Ok(())
    });
}

#[test]
fn no_task_waits_longer_than_a_quantum_for_the_zone_of_a_slow_lane() {
    simulate(async || {
        let (used, longest) = busy_shards(Duration::from_millis(100), 100).await?;
        assert!(longest < Duration::from_millis(2500), "{longest:?}");
        // Three lanes wait, so a quantum has three records at least.
        assert!(used <= 2 * 100 / 3, "{used} zones");
        Ok(())
    });
}

/// Returns the longest time that an entry took on 32 busy shards that share one permit.
async fn longest_of_32_shards(append: Duration, records: u32) -> Result<Duration> {
    let zones = Failing::on(zones(400, 4 << 20, 0).await?.open().await?);
    zones.append_takes.set(append);
    zones.finish_takes.set(Duration::from_millis(1));
    let home = Bare::with_shards(zones, false, two_classes(), 32, LANES).await?;
    home.kit().budget().set(ONE_PERMIT);
    let mut owners = vec![home.clone()];
    owners.extend((1..32).map(|shard| Bare::join_as(&home, shard, two_classes())));
    owners.iter().for_each(lane::start);
    let longest = append_to_all(&owners, records).await;
    println!("appends of {append:?}: the longest put took {longest:?}, in {} zones", zones_of(&owners).len());
    for owner in owners.iter().rev() {
        owner.close().await;
        assert_eq!((owner.kit().failure(), owner.seen.borrow().refused.len()), (None, 0));
    }
    Ok(longest)
}

/// A turn is a record, 50 ms of records, the rest of the last one, and the seal: a summary and 1 ms. The 63
/// other lanes have turns before one that waits.
#[test]
fn no_put_waits_longer_than_a_turn_of_each_lane() {
    simulate(async || {
        for (append, records) in [(1, 300), (5, 60), (20, 40)] {
            let longest = longest_of_32_shards(Duration::from_millis(append), records).await?;
            assert!(longest < 64 * Duration::from_millis(50 + 3 * append + 1), "{longest:?}");
        }
        Ok(())
    });
}

/// A lane that finds no permit leaves its request when the lane with the permit has taken the entries.
#[test]
fn two_records_at_a_time_with_one_permit_stay_in_one_zone() {
    simulate(async || {
        let zones = slow(Duration::from_millis(1), 0).await?;
        let owner = Bare::with_policy(zones, false, two_classes()).await?;
        owner.kit().budget().set(ONE_PERMIT);
        lane::start(&owner);
        for _ in 0..30 {
            append_to_all(std::slice::from_ref(&owner), 2).await;
            runtime::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(zones_of([&owner]).len(), 1);
        owner.close().await;
        assert_eq!(owner.kit().failure(), None);
        Ok(())
    });
}

/// The request of the lane that left must not keep another shard from its turn.
#[test]
fn an_idle_lane_gives_its_zone_to_another_shard_at_once() {
    simulate(async || {
        let zones = slow(Duration::from_millis(1), 0).await?;
        let home = Bare::with_policy(zones, false, two_classes()).await?;
        home.kit().budget().set(ONE_PERMIT);
        let other = Bare::join(&home, two_classes());
        lane::start(&home);
        lane::start(&other);
        for _ in 0..5 {
            for owner in [&home, &other] {
                let longest = append_to_all(std::slice::from_ref(owner), 2).await;
                assert!(longest < Duration::from_millis(10), "{longest:?}");
            }
        }
        other.close().await;
        home.close().await;
        assert_eq!(home.kit().failure(), None);
        Ok(())
    });
}

/// xorshift64*.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % limit
    }
}

/// A task of the random test: appends entries of users, or moves, with pauses.
async fn append_at_random(owner: Rc<Bare>, users: bool, mut random: Random) {
    let mut mover = Mover::new(3);
    for _ in 0..20 {
        let (class, begun) = (random.below(2) as u8, runtime::now());
        let item = Item::new(class, 1 + random.below(3) as u32, 8);
        match users {
            true => owner.append_to(class, item).await,
            false => {
                mover.append(&owner, 2, [item]).await.expect("a zone");
                mover.close(&*owner).await;
            }
        }
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
        runtime::sleep(Duration::from_micros([0, 0, 0, 100, 5000][random.below(5) as usize])).await;
    }
}

/// Shards with lanes of two classes and movers, under random limits of the budget and of the drive.
#[test]
fn every_task_gets_a_zone_under_random_limits() {
    for seed in 1..=60_u64 {
        println!("seed {seed}");
        simulate(async move || {
            let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
            let max_open = [0, 0, 3, 4][random.below(4) as usize];
            let zones = slow(Duration::from_micros([10, 500][random.below(2) as usize]), max_open).await?;
            let policy = || Box::new(Classes { users: 2, all: 3 });
            let home = Bare::with_policy(zones, false, policy()).await?;
            let limit = Some(3 + random.below(4) as u32);
            home.kit().budget().set(Demand { limit, log: 2 * 2 * LANES, tables: 2 });
            let owners = [home.clone(), Bare::join(&home, policy())];
            owners.iter().for_each(lane::start);
            let mut tasks = Vec::new();
            for (owner, users) in
                owners.iter().flat_map(|owner| [(owner, true), (owner, true), (owner, false)])
            {
                let random = Random(random.below(u64::MAX - 1) + 1);
                tasks.push(runtime::spawn(append_at_random(owner.clone(), users, random)));
            }
            for task in tasks {
                task.await;
            }
            for owner in owners.iter().rev() {
                owner.close().await;
                assert_eq!((owner.kit().failure(), owner.seen.borrow().refused.len()), (None, 0));
            }
            checkpoint::seal(home.kit()).await;
            assert_eq!(home.kit().budget().held(), 0);
            Ok(())
        });
    }
}

#[test]
fn a_filler_that_is_in_use_is_sealed_for_a_task_afterwards() {
    simulate(async || {
        let failing = Failing::new().await?;
        let owner = Bare::format(failing.clone(), false).await?;
        lane::start(&owner);
        owner.kit().budget().set(ONE_PERMIT);
        failing.append_takes.set(Duration::from_millis(100));
        failing.fail([Error::no_space("the file system is full")]);
        owner.append(Item::new(1, 2, 8)).await;
        // The record without data is being appended to the filler.
        while owner.kit().budget().held() < 2 {
            runtime::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(owner.seen.borrow().refused.len(), 1);
        let begun = runtime::now();
        drop(owner.kit().budget().take(Purpose::Log).await);
        assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
        owner.close().await;
        assert_eq!(owner.kit().failure(), None);
        Ok(())
    });
}

#[test]
fn a_close_waits_for_seals_that_requests_have_begun() {
    simulate(async || {
        let failing = Failing::new().await?;
        let home = Bare::with_policy(failing.clone(), false, two_classes()).await?;
        let other = Bare::join(&home, two_classes());
        lane::start(&home);
        lane::start(&other);
        failing.finish_takes.set(Duration::from_secs(1));
        failing.is_shut.set(true);
        let append = {
            let other = other.clone();
            runtime::spawn(async move { other.append(Item::new(1, 1, 8)).await })
        };
        // The home seals its zone of checkpoints for the other shard.
        runtime::sleep(Duration::from_millis(100)).await;
        assert_eq!(failing.finishing.get(), 1);
        home.close().await;
        assert_eq!(failing.finishing.get(), 0, "the zones could be closed now");
        failing.is_shut.set(false);
        append.await;
        other.close().await;
        Ok(())
    });
}

#[test]
fn an_owner_seals_the_zones_of_lanes_that_it_names() {
    simulate(async || {
        let failing = Failing::new().await?;
        let owner = Bare::with_policy(failing, false, Box::new(Classes { users: 2, all: 3 })).await?;
        lane::start(&owner);
        let mut mover = Mover::new(3);
        for class in 0..2 {
            owner.append_to(class, Item::new(class, 1, 8)).await;
        }
        mover.append(&owner, 2, [Item::new(2, 1, 8)]).await?;
        let zones: Vec<u32> = owner.seen.borrow().committed.iter().map(|(zone, ..)| *zone).collect();
        owner.kit().seal_lanes([zones[0]]);
        mover.answer(&*owner).await;
        runtime::sleep(Duration::from_millis(10)).await;
        let usages: Vec<Usage> = zones.iter().map(|zone| owner.kit().pool.get(*zone).usage).collect();
        assert_eq!(usages, [Usage::Full, Usage::Open, Usage::Open]);
        // Zones that aren't open are ignored.
        owner.kit().seal_lanes([zones[0], 30]);
        owner.append_to(0, Item::new(3, 1, 8)).await;
        mover.close(&*owner).await;
        owner.close().await;
        Ok(())
    });
}
