//! The radix map's lookups with a concurrent writer under shuttle, which runs the threads one step at a time
//! in random orders: every load and store of the map's memory is a step. (It doesn't reorder them as some
//! processors do.)

use super::*;
use runtime::Random;
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use std::sync::atomic::AtomicU32;

/// Words that shuttle tracks, in slabs of 32, and seats for pages 0 and 1.
#[derive(Debug)]
struct Watched(Box<[shuttle::sync::atomic::AtomicU32]>, Box<[shuttle::sync::atomic::AtomicU32]>);

impl Word for shuttle::sync::atomic::AtomicU32 {
    fn get(&self) -> u32 {
        self.load(Ordering::Acquire)
    }

    fn set(&self, value: u32) {
        self.store(value, Ordering::Release);
    }
}

impl Memory for Watched {
    type Word = shuttle::sync::atomic::AtomicU32;
    type Roots = Watched;
    const SLAB_SHIFT: u32 = 5;

    fn reserve(_slabs: u32) -> Result<Self> {
        let words = |slabs: usize| (0..slabs << Self::SLAB_SHIFT).map(|_| Self::Word::new(0)).collect();
        Ok(Watched(words(32), words(2)))
    }

    fn grow(&self, slabs: u32) -> Result<()> {
        assert!(slabs <= 32, "{slabs} slabs: what is retired should be used again before");
        Ok(())
    }

    fn words(&self) -> &[Self::Word] {
        &self.0
    }

    const SEATS: bool = true;

    fn seats(&self) -> &[Self::Word] {
        &self.1
    }
}

const BLOCKS: u64 = 96;
const READERS: usize = 2;
const CHANGES: u32 = 10;
const LOOKUPS: usize = 6;

/// Location of a block in version `version`; every fourth version unmaps it.
fn place(version: u32, block: u64) -> u32 {
    if version.is_multiple_of(4) { 0 } else { version * 1000 + block as u32 + 1 }
}

struct World {
    map: Radix<Watched>,
    /// For each block, the versions that it may have: the last completed and the last begun one. Shuttle
    /// doesn't track these: between its steps they agree with the map.
    done: Vec<AtomicU32>,
    begun: Vec<AtomicU32>,
    /// For each reader, a number that is odd during a lookup.
    lookups: [AtomicU64; READERS],
}

impl World {
    fn lookup(&self, reader: usize, block: u64) {
        self.lookups[reader].fetch_add(1, Ordering::SeqCst);
        let done = self.done[block as usize].load(Ordering::SeqCst);
        let found = self.map.lookup(block);
        let begun = self.begun[block as usize].load(Ordering::SeqCst);
        let possible = (done..=begun).any(|version| place(version, block) == found.0);
        assert!(possible, "block {block} at {found}, in versions {done} to {begun}");
        self.lookups[reader].fetch_add(1, Ordering::SeqCst);
        shuttle::thread::yield_now();
    }

    fn end_grace(&self, waits: bool) {
        let grace = self.map.begin_grace();
        for lookups in &self.lookups {
            let before = lookups.load(Ordering::SeqCst);
            while waits && before % 2 == 1 && lookups.load(Ordering::SeqCst) == before {
                shuttle::thread::yield_now();
            }
        }
        self.map.end_grace(grace);
    }

    fn change(&self, random: &mut Random, version: u32) {
        let start = random.below(BLOCKS);
        let most = [3, 40, BLOCKS][random.below(3) as usize];
        let count = 1 + random.below(most);
        let range = start..BLOCKS.min(start + count);
        let old = self.done[start as usize].load(Ordering::SeqCst);
        let moves = random.chance(0.3) && place(old, start) != 0 && place(version, start) != 0;
        let touched: Vec<u64> = range
            .clone()
            .filter(|block| !moves || self.done[*block as usize].load(Ordering::SeqCst) == old)
            .collect();
        let set = |versions: &[AtomicU32]| {
            touched.iter().for_each(|block| versions[*block as usize].store(version, Ordering::SeqCst));
        };
        set(&self.begun);
        let to = Physical(place(version, start));
        if moves {
            self.map.compare_and_move(range, Physical(place(old, start)), to, &mut |_| {});
        } else {
            self.map.insert(range, to, &mut |_| {});
        }
        set(&self.done);
    }

    /// Cuts a leaf into as many runs as it has blocks, so that it becomes dense.
    fn scatter(&self, random: &mut Random, version: u32) {
        let first = random.below(BLOCKS / 32) * 32;
        for block in (first..first + 32).step_by(2) {
            self.begun[block as usize].store(version, Ordering::SeqCst);
            self.map.insert(block..block + 1, Physical(place(version, block)), &mut |_| {});
            self.done[block as usize].store(version, Ordering::SeqCst);
        }
    }
}

/// Runs one history of a writer, with concurrent readers. `waits` is whether grace periods are kept.
fn history(seed: u64, waits: bool) {
    let mut random = Random::new(seed);
    let map = Radix::in_memory(BLOCKS).unwrap();
    let versions = || (0..BLOCKS).map(|_| AtomicU32::new(0)).collect();
    let world = Arc::new(World { map, done: versions(), begun: versions(), lookups: Default::default() });
    // Contents for the first lookups.
    world.map.insert(0..BLOCKS, Physical(place(1, 0)), &mut |_| {});
    world.done.iter().chain(&world.begun).for_each(|version| version.store(1, Ordering::SeqCst));
    let readers: Vec<_> = (0..READERS)
        .map(|reader| {
            let (world, mut random) = (world.clone(), Random::new(seed ^ (reader as u64 + 1)));
            let read = move || (0..LOOKUPS).for_each(|_| world.lookup(reader, random.below(BLOCKS)));
            shuttle::thread::spawn(read)
        })
        .collect();
    let mut snapshot = None;
    for version in 2..2 + CHANGES {
        match random.below(8) {
            0 if place(version, 0) != 0 => world.scatter(&mut random, version),
            1 => snapshot = Some(world.map.snapshot()),
            2 => snapshot = None,
            _ => world.change(&mut random, version),
        }
        if random.chance(0.6) {
            world.end_grace(waits);
        }
    }
    drop(snapshot);
    for reader in readers {
        reader.join().unwrap();
    }
    for block in 0..BLOCKS {
        let version = world.done[block as usize].load(Ordering::SeqCst);
        assert_eq!(world.map.lookup(block).0, place(version, block));
    }
}

fn explore(scheduler: impl Scheduler + 'static, waits: bool) {
    let seed = AtomicU64::new(0);
    let runner = shuttle::Runner::new(scheduler, shuttle::Config::default());
    runner.run(move || history(seed.fetch_add(1, Ordering::SeqCst), waits));
}

#[test]
fn lookups_see_the_old_or_the_new_place_in_any_order_of_steps() {
    let histories = if conformance::budget::is_long() { 1500 } else { 200 };
    explore(RandomScheduler::new_from_seed(1, histories), true);
    explore(PctScheduler::new_from_seed(2, 3, histories), true);
}

#[test]
#[should_panic(expected = "in versions")]
fn memory_that_is_used_again_too_early_is_caught() {
    explore(PctScheduler::new_from_seed(2, 3, 20_000), false);
}
