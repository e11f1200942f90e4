//! The model that every map is compared with: a list of locations per version, and random changes to both.
//!
//! A module that includes this one must have `Map`, `Mapping`, `Physical` and `PAGE_BLOCKS` in the parent's
//! scope.

use super::{Map, Mapping, PAGE_BLOCKS, Physical};
use conformance::budget::Budget;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestCaseError, TestRunner};
use std::ops::Range;
use std::sync::Arc;

/// A random number that is interpreted by the current state.
type Any = u32;

#[derive(Debug, Clone)]
enum Change {
    Insert { version: Any, range: Place, to: Target },
    Unmap { version: Any, range: Place },
    Move { version: Any, range: Place, shift: Any, to: Target },
    Load { version: Any, page: Any, pattern: Vec<(u16, Target)> },
    Snapshot { version: Any },
    Drop { version: Any },
    Grow { version: Any, by: u16 },
    BeginGrace { version: Any },
    EndGrace { version: Any },
}

#[derive(Debug, Clone)]
enum Place {
    Anywhere { start: Any, count: Any },
    NearPage { page: Any, before: u8, count: u16 },
    First { count: u16 },
    Last { count: u16 },
    Page { page: Any, count: u8 },
    All,
}

#[derive(Debug, Clone)]
enum Target {
    /// After all earlier locations, as in a log, with a gap.
    Log { gap: u8 },
    /// Among few locations, so that neighbours are often contiguous.
    Near { place: u16 },
    /// At the end of the address space.
    High { before: u8 },
}

fn place() -> impl Strategy<Value = Place> {
    prop_oneof![
        6 => (any::<Any>(), prop_oneof![Just(0_u32), 0..4_u32, 0..300_u32, 254..256_u32, 0..3000_u32])
            .prop_map(|(start, count)| Place::Anywhere { start, count }),
        3 => (any::<Any>(), 0..4_u8, 0..1100_u16).prop_map(|(page, before, count)| Place::NearPage { page, before, count }),
        1 => (0..1100_u16).prop_map(|count| Place::First { count }),
        1 => (0..1100_u16).prop_map(|count| Place::Last { count }),
        1 => (any::<Any>(), 0..3_u8).prop_map(|(page, count)| Place::Page { page, count }),
        1 => Just(Place::All),
    ]
}

fn target() -> impl Strategy<Value = Target> {
    prop_oneof![
        4 => (0..3_u8).prop_map(|gap| Target::Log { gap }),
        3 => any::<u16>().prop_map(|place| Target::Near { place }),
        1 => any::<u8>().prop_map(|before| Target::High { before }),
    ]
}

fn change() -> impl Strategy<Value = Change> {
    let version = any::<Any>;
    prop_oneof![
        12 => (version(), place(), target()).prop_map(|(version, range, to)| Change::Insert { version, range, to }),
        4 => (version(), place()).prop_map(|(version, range)| Change::Unmap { version, range }),
        5 => (version(), place(), 0..3_u32, target())
            .prop_map(|(version, range, shift, to)| Change::Move { version, range, shift, to }),
        2 => (version(), any::<Any>(), prop::collection::vec((prop_oneof![20 => 0..6_u16, 1 => 0..400_u16], target()), 0..300))
            .prop_map(|(version, page, pattern)| Change::Load { version, page, pattern }),
        2 => version().prop_map(|version| Change::Snapshot { version }),
        2 => version().prop_map(|version| Change::Drop { version }),
        1 => (version(), 0..1500_u16).prop_map(|(version, by)| Change::Grow { version, by }),
        2 => version().prop_map(|version| Change::BeginGrace { version }),
        2 => version().prop_map(|version| Change::EndGrace { version }),
    ]
}

/// Most versions at a time.
const VERSIONS: usize = 4;

struct Version {
    map: Arc<dyn Map>,
    places: Vec<u32>,
}

struct State {
    versions: Vec<Version>,
    /// Next location of the log.
    next: u32,
    grace: Vec<u64>,
}

impl State {
    fn choose(&self, version: Any) -> usize {
        version as usize % self.versions.len()
    }

    fn range(&self, version: usize, place: &Place) -> Range<u64> {
        let blocks = self.versions[version].places.len() as u64;
        let pages = blocks.div_ceil(PAGE_BLOCKS);
        let (start, count) = match *place {
            Place::Anywhere { start, count } => (u64::from(start) % blocks, u64::from(count) + 1),
            Place::NearPage { page, before, count } => {
                let page = u64::from(page) % pages * PAGE_BLOCKS;
                (page.saturating_sub(before.into()), u64::from(count) + 1)
            }
            Place::First { count } => (0, u64::from(count) + 1),
            Place::Last { count } => (blocks.saturating_sub(u64::from(count) + 1), blocks),
            Place::Page { page, count } => {
                (u64::from(page) % pages * PAGE_BLOCKS, (u64::from(count) + 1) * PAGE_BLOCKS)
            }
            Place::All => (0, blocks),
        };
        start..(start + count).min(blocks)
    }

    fn target(&mut self, target: &Target, count: u64) -> u32 {
        let count = count as u32;
        match *target {
            Target::Log { gap } => {
                let place = self.next + u32::from(gap);
                self.next = place + count;
                place
            }
            Target::Near { place } => u32::from(place % 1024) + 1,
            Target::High { before } => u32::MAX - (count - 1) - u32::from(before % 4),
        }
    }
}

/// Checks that pieces are in order and not empty, and expands them to blocks.
fn spread(pieces: &[Mapping]) -> Result<Vec<(u64, u32)>, TestCaseError> {
    let mut all = Vec::new();
    let mut behind = 0;
    for piece in pieces {
        prop_assert!(piece.count > 0 && piece.block >= behind, "pieces out of order: {pieces:?}");
        behind = piece.block + piece.count;
        all.extend((0..piece.count).map(|at| (piece.block + at, piece.physical.offset(at).0)));
    }
    Ok(all)
}

/// Compares a range of a version with its model, through each kind of lookup.
fn compare(version: &Version, range: Range<u64>) -> Result<(), TestCaseError> {
    let Version { map, places } = version;
    prop_assert_eq!(map.blocks(), places.len() as u64);
    let expected = &places[range.start as usize..range.end as usize];
    let mut pieces = Vec::new();
    map.lookup_range(range.clone(), &mut |piece| pieces.push(piece));
    let found = spread(&pieces)?;
    prop_assert_eq!(found.len(), expected.len(), "lookup_range({:?}) doesn't cover it", range);
    let blocks: Vec<u64> = range.clone().collect();
    let mut batch = vec![Physical(77); blocks.len()];
    map.lookup_batch(&blocks, &mut batch);
    for (at, block) in blocks.iter().enumerate() {
        let expected = expected[at];
        prop_assert_eq!(found[at], (*block, expected), "lookup_range({:?})", range);
        prop_assert_eq!(batch[at].0, expected, "lookup_batch: block {}", block);
        prop_assert_eq!(map.lookup(*block).0, expected, "lookup({})", block);
    }
    let mut page = vec![9; PAGE_BLOCKS as usize];
    for number in range.start / PAGE_BLOCKS..range.end.div_ceil(PAGE_BLOCKS) {
        map.save_page(number, &mut page);
        for (at, entry) in page.iter().enumerate() {
            let block = number as usize * PAGE_BLOCKS as usize + at;
            prop_assert_eq!(*entry, places.get(block).copied().unwrap_or(0), "save_page: block {}", block);
        }
    }
    Ok(())
}

fn compare_all(state: &State) -> Result<(), TestCaseError> {
    state.versions.iter().try_for_each(|version| compare(version, 0..version.places.len() as u64))
}

fn apply(state: &mut State, change: &Change) -> Result<(), TestCaseError> {
    let touched = match change {
        Change::Insert { version, range, to } => {
            let version = state.choose(*version);
            let range = state.range(version, range);
            let to = state.target(to, range.end - range.start);
            insert(&mut state.versions[version], range.clone(), to)?;
            range
        }
        Change::Unmap { version, range } => {
            let version = state.choose(*version);
            let range = state.range(version, range);
            insert(&mut state.versions[version], range.clone(), 0)?;
            range
        }
        Change::Move { version, range, shift, to } => {
            let version = state.choose(*version);
            let range = state.range(version, range);
            let to = state.target(to, range.end - range.start);
            let from = state.versions[version].places[range.start as usize].wrapping_sub(*shift);
            if from == 0 || u64::from(from) + (range.end - range.start) > u64::from(u32::MAX) {
                return Ok(());
            }
            compare_and_move(state, version, range.clone(), from, to)?;
            range
        }
        Change::Load { version, page, pattern } => {
            let version = state.choose(*version);
            let pages = (state.versions[version].places.len() as u64).div_ceil(PAGE_BLOCKS);
            let page = u64::from(*page) % pages;
            let mut entries = Vec::new();
            for (count, to) in pattern {
                let to = state.target(to, u64::from(*count) + 1);
                entries.extend((0..u32::from(*count)).map(|at| to + at));
                entries.push(0);
            }
            entries.resize(PAGE_BLOCKS as usize, 0);
            let Version { map, places } = &mut state.versions[version];
            let first = (page * PAGE_BLOCKS) as usize;
            let end = places.len().min(first + PAGE_BLOCKS as usize);
            entries[end - first..].fill(0);
            map.load_page(page, &entries);
            places[first..end].copy_from_slice(&entries[..end - first]);
            first as u64..end as u64
        }
        Change::Snapshot { version } => {
            let from = &state.versions[state.choose(*version)];
            let new = Version { map: from.map.snapshot(), places: from.places.clone() };
            if state.versions.len() == VERSIONS {
                state.versions.remove(0);
            }
            state.versions.push(new);
            return compare_all(state);
        }
        Change::Drop { version } => {
            if state.versions.len() > 1 {
                state.versions.remove(state.choose(*version));
            }
            return compare_all(state);
        }
        Change::Grow { version, by } => {
            let version = state.choose(*version);
            let version = &mut state.versions[version];
            let blocks = version.places.len() + usize::from(*by);
            version.map.grow(blocks as u64);
            version.places.resize(blocks, 0);
            version.map.grow(1);
            return compare(version, 0..blocks as u64);
        }
        Change::BeginGrace { version } => {
            let grace = state.versions[state.choose(*version)].map.begin_grace();
            state.grace.push(grace);
            return Ok(());
        }
        Change::EndGrace { version } => {
            if !state.grace.is_empty() {
                // Grace periods end in any order.
                let grace = state.grace.remove(*version as usize % state.grace.len());
                state.versions[state.choose(*version)].map.end_grace(grace);
            }
            return compare_all(state);
        }
    };
    for version in &state.versions {
        let end = version.places.len() as u64;
        compare(version, touched.start.saturating_sub(2).min(end)..(touched.end + 2).min(end))?;
    }
    Ok(())
}

fn insert(version: &mut Version, range: Range<u64>, to: u32) -> Result<(), TestCaseError> {
    let mut displaced = Vec::new();
    version.map.insert(range.clone(), Physical(to), &mut |piece| displaced.push(piece));
    let mut expected = Vec::new();
    for block in range.clone() {
        let place = &mut version.places[block as usize];
        if *place != 0 {
            expected.push((block, *place));
        }
        *place = Physical(to).offset(block - range.start).0;
    }
    prop_assert_eq!(spread(&displaced)?, expected, "displaced by insert({:?}, {})", range, to);
    Ok(())
}

fn compare_and_move(
    state: &mut State,
    version: usize,
    range: Range<u64>,
    from: u32,
    to: u32,
) -> Result<(), TestCaseError> {
    let mut moved = Vec::new();
    state.versions[version].map.compare_and_move(range.clone(), Physical(from), Physical(to), &mut |piece| {
        moved.push(piece);
    });
    let mut expected = Vec::new();
    for (number, Version { map, places }) in state.versions.iter_mut().enumerate() {
        for block in range.start..range.end.min(places.len() as u64) {
            let offset = (block - range.start) as u32;
            let place = &mut places[block as usize];
            if *place == from + offset {
                if number == version {
                    *place = to + offset;
                    expected.push((block, to + offset));
                } else if map.lookup(block).0 == to + offset {
                    // Other versions may also see the move.
                    *place = to + offset;
                }
            }
        }
    }
    prop_assert_eq!(spread(&moved)?, expected, "moved by compare_and_move({:?}, {}, {})", range, from, to);
    Ok(())
}

/// Compares maps with the model over random histories, as many as the budget permits. The seed is fixed;
/// `PROPTEST_RNG_SEED` sets another. `finish` gets one map at each history's end, after it was emptied and
/// every grace period has ended.
pub fn check(cases: u32, make: impl Fn(u64) -> Arc<dyn Map>, finish: impl Fn(&dyn Map)) {
    let mut config =
        Config { cases, failure_persistence: None, max_shrink_iters: 20_000, ..Config::default() };
    if config.rng_seed == RngSeed::Random {
        config.rng_seed = RngSeed::Fixed(7);
    }
    println!("seed: {:?}", config.rng_seed);
    let histories = (1..6000_u64, prop::collection::vec(change(), 1..80));
    let budget = Budget::of(2);
    let result = TestRunner::new(config).run(&histories, |(blocks, changes)| {
        if !budget.allows_more(cases.into()) {
            return Ok(());
        }
        let first = Version { map: make(blocks), places: vec![0; blocks as usize] };
        let mut state = State { versions: vec![first], next: 100_000, grace: Vec::new() };
        for change in &changes {
            apply(&mut state, change)?;
        }
        compare_all(&state)?;
        let Version { map, places } = state.versions.remove(0);
        state.versions.clear();
        map.insert(0..places.len() as u64, Physical::NONE, &mut |_| {});
        map.end_grace(map.begin_grace());
        prop_assert_eq!(map.retired_bytes(), 0);
        compare(&Version { map: map.clone(), places: vec![0; places.len()] }, 0..places.len() as u64)?;
        finish(&*map);
        Ok(())
    });
    if let Err(failure) = result {
        panic!("{failure}");
    }
}
