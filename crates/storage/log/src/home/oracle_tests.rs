//! The crash oracle of a map's home: a seeded history of maps, zones and versions, cut between and within all
//! fences. The reopened home must equal the last transaction that was acknowledged at the cut, or the
//! transaction in flight.

use super::recorded::{Broken, Event, Image, Recorded};
use super::{Known, MapHome, Moment, Places};
use crate::directory::VersionEntry;
use crate::format::USER;
use crate::format::VersionId;
use crate::map::{Map, Physical};
use crate::versions::{Version, Versions};
use block::Error;
use logkit::record::Identity;
use logkit::{Usage, Zone, ZonePool};
use runtime::Random;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use zones::on_device::format::Uuid;

const ZONES: u32 = 40;
const BLOCKS: u64 = 5 << 19;
const IDENTITY: Identity = Identity { uuid: Uuid::from_bytes([5; 16]), key: 0x1234_5678_9abc_def0 };

/// A version: its number, its parent's number, its name, and the extents of its blocks.
type Told = (u32, Option<u32>, String, Vec<(u64, u64, u32)>);

/// All contents of a home, in comparable form.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Contents {
    moment: Moment,
    versions: Vec<Told>,
    zones: Vec<String>,
}

fn mapped(map: &dyn Map) -> Vec<(u64, u64, u32)> {
    let mut all = Vec::new();
    map.lookup_range(0..map.blocks(), &mut |piece| {
        all.extend(piece.physical.is_mapped().then_some((piece.block, piece.count, piece.physical.0)));
    });
    all
}

fn contents_of(known: &Known, maps: &[impl Map]) -> Contents {
    let versions = known.versions.iter().zip(maps).map(|((version, _), map)| {
        (version.id.0, version.parent.map(|id| id.0), version.name.clone(), mapped(map))
    });
    Contents {
        moment: known.moment,
        versions: versions.collect(),
        zones: known.zones.iter().map(|zone| format!("{zone:?}")).collect(),
    }
}

/// The state that a home records, without a log.
struct World {
    random: Random,
    versions: Versions,
    pool: ZonePool,
    clock: u64,
}

impl World {
    fn new(seed: u64, map: Arc<dyn Map>) -> World {
        let head = Version::new(VersionEntry::head(BLOCKS, 1), map);
        let versions = Versions { list: vec![head], next: 2, ..Versions::default() };
        let pool = ZonePool::new(ZONES);
        (0..ZONES).for_each(|zone| pool.set_free(zone, 1));
        World { random: Random::new(seed), versions, pool, clock: 0 }
    }

    fn moment(&self) -> Moment {
        Moment { epoch: 1, clock: self.clock, covered: [self.clock, 3], next_version: 0, slabs: 0 }
    }

    /// Returns the contents of a home with this state.
    fn contents(&self, slabs: u32) -> Contents {
        let known = |(number, zone): (u32, Zone)| {
            let line = super::format::bytes_of(&super::state::encode_zone(number, &zone, 0));
            super::state::decode_zone(number, &line, 0).unwrap()
        };
        let versions = self.versions.list.iter().map(|version| {
            (version.id.0, version.parent.map(|id| id.0), version.name.clone(), mapped(&*version.map))
        });
        Contents {
            moment: Moment { next_version: self.versions.next, slabs, ..self.moment() },
            versions: versions.collect(),
            zones: self.pool.list().into_iter().filter_map(known).map(|zone| format!("{zone:?}")).collect(),
        }
    }

    fn change(&mut self) {
        self.clock += 1;
        let World { random, versions, pool, clock } = self;
        let zone = random.below(u64::from(ZONES)) as u32;
        pool.restore(zone, |entry| {
            entry.usage = [Usage::Open, Usage::Full, Usage::Free][random.below(3) as usize];
            entry.live = random.below(3) as u32;
            (entry.committed, entry.last) = (random.below(99) as u32, [(USER, *clock)].into_iter().collect());
        });
        let position = random.below(versions.list.len() as u64) as usize;
        let id = versions.list[position].id;
        match random.below(40) {
            0 if versions.list.len() < 4 => {
                let name = format!("s{}", versions.next);
                let writable = id != VersionId::HEAD && random.below(2) == 0;
                versions.create(VersionId(versions.next), id, writable, *clock, &name).unwrap();
            }
            1 if id != VersionId::HEAD => {
                versions.delete(id).unwrap();
                while versions.release(u64::MAX, &mut |_| {}) {}
            }
            _ => {
                let block = random.below(BLOCKS - 4000);
                let block = if random.below(4) > 0 { block % 9000 } else { block };
                let count = [1, 1, 3, 300, 4000][random.below(5) as usize];
                let to = Physical(if random.below(6) == 0 { 0 } else { random.below(1 << 30) as u32 + 1 });
                versions.insert(position, block, count, to, &mut |_, _| {});
                let map = &versions.list[0].map;
                if random.below(3) == 0 {
                    map.end_grace(map.begin_grace());
                }
            }
        }
    }
}

/// Recording of one epoch.
struct Life {
    medium: Rc<Recorded>,
    /// Contents of each transaction.
    contents: BTreeMap<u64, Contents>,
    /// Transactions, and the number of events before each was acknowledged.
    acknowledged: Vec<(usize, u64)>,
}

impl Life {
    /// Returns the last transaction that was acknowledged before this cut.
    fn promised(&self, cut: usize) -> Option<u64> {
        self.acknowledged.iter().rfind(|(events, _)| *events <= cut).map(|(_, sequence)| *sequence)
    }
}

async fn live(seed: u64, transactions: u64, broken: Broken) -> Life {
    let medium = Recorded::new(Image::new(), broken);
    let places = Places::with_journal(ZONES, 24 << 10);
    let (home, map) = MapHome::create(medium.clone(), IDENTITY, ZONES, BLOCKS, places).await.expect("a home");
    let mut world = World::new(seed, Arc::new(map));
    let mut life = Life { medium, contents: BTreeMap::new(), acknowledged: Vec::new() };
    while home.sequence() < transactions {
        let size = [1, 3, 10, 30][world.random.below(4) as usize];
        (0..size).for_each(|_| world.change());
        let collected = home.collect(&world.versions, &world.pool, world.moment()).expect("changes");
        let contents = world.contents(collected.moment().slabs);
        // Later changes belong to the next transaction.
        (0..world.random.below(4)).for_each(|_| world.change());
        life.contents.insert(home.sequence() + 1, contents);
        if world.random.below(12) == 0 {
            home.give_back(&collected, &world.pool);
            continue;
        }
        home.commit(collected, &world.pool).await.expect("it commits");
        life.acknowledged.push((life.medium.done(), home.sequence()));
        if world.random.below(10) == 0 {
            home.family.forget_private();
        }
    }
    life
}

/// Opens the medium in the state after a cut, and checks the contents.
async fn open(life: &Life, cut: usize, image: &Image, look_only: bool) -> Result<Rc<Recorded>, String> {
    let medium = Recorded::new(image.clone(), Broken::Not);
    let promised = life.promised(cut);
    let opened = MapHome::open(medium.clone(), IDENTITY, ZONES, promised.unwrap_or(0), look_only).await;
    let opened = match opened {
        Ok(opened) => opened,
        Err(_) if promised.is_none() => return Ok(medium),
        Err(error) => return Err(format!("transaction {promised:?} was promised: {error}")),
    };
    let found = contents_of(&opened.known, &opened.maps);
    let sequence = opened.known.sequence;
    if sequence > promised.unwrap_or(0) + 1 {
        return Err(format!("transaction {sequence}, and {promised:?} was the last"));
    }
    match life.contents.get(&sequence) {
        Some(expected) if *expected == found => Ok(medium),
        Some(_) => Err(format!("the contents aren't those of transaction {sequence}")),
        None => Err(format!("there was no transaction {sequence}")),
    }
}

/// Cuts an epoch in each interval between two fences, several times; returns the number of states that were
/// opened.
async fn search(seed: u64, life: &Life) -> Result<u64, String> {
    let mut random = Random::new(seed ^ 0xC07);
    let events = life.medium.events();
    let mut tried = 0;
    let mut from = 0;
    let mut before = life.medium.cuts();
    for end in 1..=events.len() {
        if end < events.len() && events[end - 1] != Event::Fence {
            continue;
        }
        for choice in 0..8 {
            let cut = match choice {
                // Just before the fence: no store since the last fence is certain.
                0 | 1 | 6 => end - 1,
                _ => from + random.below((end - from) as u64) as usize,
            };
            let (share, whole_lines) = [
                (0, false),
                (100, false),
                (50, false),
                (10, false),
                (90, false),
                (50, false),
                (50, true),
                (80, true),
            ][choice];
            let mut here = before.clone();
            here.advance(&events, cut);
            let image = here.choose(whole_lines, || random.below(100) < share);
            let what = |wrong: String| format!("seed {seed}, cut before event {cut}, {share} %: {wrong}");
            let recovery = open(life, cut, &image, false).await.map_err(what)?;
            tried += 1;
            if choice == 2 {
                open(life, cut, &image, true).await.map_err(what)?;
            }
            // Opening also writes, and may be cut.
            if choice > 2 && recovery.done() > 0 {
                let second = random.below(recovery.done() as u64 + 1) as usize;
                let image = recovery.after_power_cut(second, || random.below(2) == 0);
                let what = |wrong: String| format!("{}, and {second} of its recovery", what(wrong));
                open(life, cut, &image, false).await.map_err(what)?;
                tried += 1;
            }
        }
        from = end;
        before.advance(&events, end);
    }
    Ok(tried)
}

fn run<T: Send + 'static>(main: impl AsyncFnOnce() -> T + Send + 'static) -> T {
    runtime::run(runtime::Config::default(), move || async move { main().await }).expect("the runtime starts")
}

#[test]
fn every_cut_leaves_the_last_transaction_or_the_next() {
    run(async || {
        let budget = conformance::budget::Budget::of(2);
        for seed in 1..=4 {
            if !budget.allows_more(4) {
                break;
            }
            let life = live(seed, 50, Broken::Not).await;
            let tried = search(seed, &life).await.unwrap_or_else(|wrong| panic!("{wrong}"));
            println!("seed {seed}: {} events, {tried} states", life.medium.done());
            assert!(tried > 500, "{tried} states");
        }
    });
}

#[test]
fn what_forgets_a_fence_or_a_flush_is_caught() {
    for broken in [Broken::WriteWithoutFence, Broken::PersistWithoutFence, Broken::StoreWithoutFlush] {
        let is_caught = (1..=8).any(|seed| {
            let search = move || run(async move || search(seed, &live(seed, 40, broken).await).await.err());
            // An assertion of the map may also detect the fault.
            let found = std::panic::catch_unwind(search).unwrap_or(Some("the map panics".to_owned()));
            found.inspect(|wrong| println!("{broken:?}, seed {seed}: {wrong}")).is_some()
        });
        assert!(is_caught, "{broken:?} was not caught");
    }
}

/// A transaction that finds no space changes nothing, and the next one includes its changes.
#[test]
fn without_space_nothing_is_lost() {
    run(async || {
        let medium = Recorded::new(Image::new(), Broken::Not);
        let places = Places::with_journal(ZONES, 24 << 10);
        let (home, map) =
            MapHome::create(medium.clone(), IDENTITY, ZONES, BLOCKS, places).await.expect("a home");
        let mut world = World::new(9, Arc::new(map));
        let mut refused = 0;
        let mut last = None;
        for round in 0..40 {
            (0..150).for_each(|_| world.change());
            medium.leave_space([1 << 30, 0, 1 << 13][round % 3]);
            let collected = home.collect(&world.versions, &world.pool, world.moment()).expect("changes");
            let contents = world.contents(collected.moment().slabs);
            match home.commit(collected, &world.pool).await {
                Ok(()) => last = Some(contents),
                Err(Error::NoSpace(_)) => refused += 1,
                Err(error) => panic!("{error}"),
            }
            let now = medium.after_power_cut(medium.done(), || true);
            let opened =
                MapHome::open(Recorded::new(now, Broken::Not), IDENTITY, ZONES, home.sequence(), true);
            let opened = opened.await.expect("it opens");
            assert!(Some(contents_of(&opened.known, &opened.maps)) == last, "round {round}");
        }
        assert!(refused > 5 && !home.is_broken(), "{refused} were refused");
    });
}
