//! Lookups on several threads with a concurrent writer: each block has its location before or after a change,
//! and is seen unmapped only if it was.

use log::map::{Map, NAMES, Physical, make};
use runtime::Random;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};

const BLOCKS: u64 = 5000;
const READERS: usize = 2;

/// Location of a block in version `version`; every seventh version unmaps it.
fn place(version: u32, block: u64) -> u32 {
    if version.is_multiple_of(7) { 0 } else { version * BLOCKS as u32 + block as u32 + 1 }
}

/// Versions that a block may have: from `done` to `begun`.
struct Versions {
    done: Vec<AtomicU32>,
    begun: Vec<AtomicU32>,
    /// For each reader, a number that is odd during a lookup.
    lookups: [AtomicU64; READERS],
    stop: AtomicBool,
}

impl Versions {
    fn check(&self, name: &str, block: u64, done: u32, found: Physical) {
        let begun = self.begun[block as usize].load(SeqCst);
        let possible = (done..=begun).any(|version| place(version, block) == found.0);
        assert!(possible, "{name}: block {block} at {found}, in versions {done} to {begun}");
    }

    fn done(&self, block: u64) -> u32 {
        self.done[block as usize].load(SeqCst)
    }

    fn read(&self, map: &dyn Map, number: usize) {
        let mut random = Random::new(number as u64);
        let range = |random: &mut Random| {
            let start = random.below(BLOCKS);
            start..BLOCKS.min(start + 1 + random.below(300))
        };
        let mut rounds = 0;
        while !self.stop.load(SeqCst) || rounds == 0 {
            rounds += 1;
            self.lookups[number].fetch_add(1, SeqCst);
            for _ in 0..50 {
                let block = random.below(BLOCKS);
                let done = self.done(block);
                self.check(map.name(), block, done, map.lookup(block));
            }
            let range = range(&mut random);
            let done: Vec<u32> = range.clone().map(|block| self.done(block)).collect();
            let mut next = range.start;
            let mut check = |block: u64, found: Physical| {
                assert_eq!(block, next);
                self.check(map.name(), block, done[(block - range.start) as usize], found);
                next += 1;
            };
            if random.chance(0.5) {
                map.lookup_range(range.clone(), &mut |piece| {
                    (0..piece.count).for_each(|at| check(piece.block + at, piece.physical.offset(at)));
                });
            } else {
                let blocks: Vec<u64> = range.clone().collect();
                let mut found = vec![Physical::NONE; blocks.len()];
                map.lookup_batch(&blocks, &mut found);
                blocks.iter().zip(found).for_each(|(block, found)| check(*block, found));
            }
            assert_eq!(next, range.end);
            self.lookups[number].fetch_add(1, SeqCst);
        }
    }

    /// Waits until every current lookup has returned.
    fn grace(&self, map: &dyn Map) {
        let grace = map.begin_grace();
        for lookups in &self.lookups {
            let before = lookups.load(SeqCst);
            while before % 2 == 1 && lookups.load(SeqCst) == before && !self.stop.load(SeqCst) {
                std::thread::yield_now();
            }
        }
        map.end_grace(grace);
    }

    /// Changes a range to a new version.
    fn insert(&self, map: &dyn Map, range: Range<u64>, version: u32) {
        let to = Physical(place(version, range.start));
        range.clone().for_each(|block| self.begun[block as usize].store(version, SeqCst));
        map.insert(range.clone(), to, &mut |_| {});
        range.for_each(|block| self.done[block as usize].store(version, SeqCst));
    }

    /// Moves the blocks of a range that have the first block's version to a new version, as the cleaner does.
    fn compare_and_move(&self, map: &dyn Map, range: Range<u64>, version: u32) {
        let old = self.done(range.start);
        if place(old, 0) == 0 || place(version, 0) == 0 {
            return;
        }
        let same: Vec<u64> = range.clone().filter(|block| self.done(*block) == old).collect();
        same.iter().for_each(|block| self.begun[*block as usize].store(version, SeqCst));
        let (from, to) = (place(old, range.start), place(version, range.start));
        let mut moved = 0;
        map.compare_and_move(range, Physical(from), Physical(to), &mut |piece| moved += piece.count);
        assert_eq!(moved, same.len() as u64);
        same.iter().for_each(|block| self.done[*block as usize].store(version, SeqCst));
    }
}

fn check(name: &str, changes: u32) {
    let map = make(name, BLOCKS).expect("a known name");
    let zeros = || (0..BLOCKS).map(|_| AtomicU32::new(0)).collect();
    let versions =
        Versions { done: zeros(), begun: zeros(), lookups: Default::default(), stop: AtomicBool::new(false) };
    std::thread::scope(|scope| {
        /// Ends the readers even if the writer panics.
        struct Stop<'a>(&'a AtomicBool);
        impl Drop for Stop<'_> {
            fn drop(&mut self) {
                self.0.store(true, SeqCst);
            }
        }
        let stop = Stop(&versions.stop);
        let readers: Vec<_> = (0..READERS)
            .map(|number| {
                let (map, versions) = (&*map, &versions);
                scope.spawn(move || {
                    // A reader that fails must not leave the writer waiting.
                    let _stop = Stop(&versions.stop);
                    versions.read(map, number);
                })
            })
            .collect();
        let mut random = Random::new(99);
        let mut snapshot = None;
        for version in 1..=changes {
            let start = random.below(BLOCKS);
            let most = [1, 30, 300, 2000, BLOCKS][random.below(5) as usize];
            let range = start..BLOCKS.min(start + 1 + random.below(most));
            if random.chance(0.3) && snapshot.is_none() {
                versions.compare_and_move(&*map, range, version);
            } else {
                versions.insert(&*map, range, version);
            }
            if random.chance(0.03) {
                snapshot = match snapshot {
                    None => {
                        let done: Vec<u32> = (0..BLOCKS).map(|block| versions.done(block)).collect();
                        Some((map.snapshot(), done))
                    }
                    Some((snapshot, done)) => {
                        let mut found = vec![Physical::NONE; BLOCKS as usize];
                        snapshot.lookup_batch(&(0..BLOCKS).collect::<Vec<_>>(), &mut found);
                        for (block, version) in done.into_iter().enumerate() {
                            assert_eq!(found[block].0, place(version, block as u64), "{name}: {block}");
                        }
                        None
                    }
                };
            }
            if random.chance(0.2) {
                versions.grace(&*map);
            }
            if versions.stop.load(SeqCst) {
                break;
            }
        }
        drop(stop);
        for reader in readers {
            if let Err(panic) = reader.join() {
                std::panic::resume_unwind(panic);
            }
        }
    });
}

#[test]
fn lookups_beside_a_writer_see_the_old_or_the_new_place() {
    for name in NAMES {
        check(name, 1000);
    }
}
