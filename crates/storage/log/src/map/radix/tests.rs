//! The model of all maps, with slabs so small that a history fills many middle nodes and roots.

#[path = "../../../tests/integration/map_property/map_model.rs"]
mod map_model;

use super::*;
use std::cell::RefCell;

/// Words on the heap, in slabs of 32, and seats for some of the pages.
#[derive(Debug)]
struct Small(Box<[std::sync::atomic::AtomicU32]>, Box<[std::sync::atomic::AtomicU32]>);

/// Number of pages with seats.
const SEATS: usize = 150;

impl Memory for Small {
    type Word = std::sync::atomic::AtomicU32;
    type Roots = Small;
    const SLAB_SHIFT: u32 = 5;

    fn reserve(slabs: u32) -> Result<Self> {
        let slabs = slabs.min(1 << 11) as usize;
        let words = |slabs: usize| (0..slabs << Self::SLAB_SHIFT).map(|_| Default::default()).collect();
        Ok(Small(words(slabs), words(SEATS)))
    }

    fn grow(&self, slabs: u32) -> Result<()> {
        assert!((slabs as usize) << Self::SLAB_SHIFT <= self.0.len(), "{slabs} slabs");
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

#[test]
fn a_tree_of_small_nodes_is_like_the_model_and_gives_all_memory_back() {
    let last: RefCell<Option<Arc<Family<Small>>>> = RefCell::new(None);
    map_model::check(
        400,
        |blocks| {
            let map = Radix::<Small>::in_memory(blocks).unwrap();
            last.replace(Some(map.family.clone()));
            Arc::new(map)
        },
        |_| {
            let family = last.take().unwrap();
            let state = &family.lock().state;
            assert_eq!(state.allocator.in_use(), 1, "slabs in use beside the first, of an empty map");
        },
    );
}

#[test]
fn what_is_retired_is_used_again_only_after_its_own_grace_period() {
    let map = Radix::new(1 << 20).unwrap();
    let mut to = 1;
    let mut change = |count: u64| {
        // Each change replaces one leaf of one run.
        for page in 0..count {
            map.insert(page * PAGE_BLOCKS..(page + 1) * PAGE_BLOCKS, Physical(to), &mut |_| {});
            to += 5000;
        }
    };
    change(100);
    assert_eq!(map.retired_bytes(), 0);
    change(3);
    let first = map.begin_grace();
    assert_eq!(map.retired_bytes(), 3 * 64);
    change(5);
    let second = map.begin_grace();
    change(7);
    assert_eq!(map.retired_bytes(), 15 * 64);
    map.end_grace(first);
    assert_eq!(map.retired_bytes(), 12 * 64, "only what was retired before the first one began");
    map.end_grace(second);
    assert_eq!(map.retired_bytes(), 7 * 64);
    map.end_grace(first);
    map.end_grace(map.begin_grace());
    assert_eq!(map.retired_bytes(), 0);
    let bytes = map.bytes();
    for _ in 0..1000 {
        change(100);
        map.end_grace(map.begin_grace());
    }
    assert!(map.bytes() < bytes + 100_000, "{} bytes grew to {}: nothing was used again", bytes, map.bytes());
}

/// A dense page: locations of its even blocks start at `even`, those of its odd ones at `odd`.
fn striped(even: u32, odd: u32) -> Vec<u32> {
    (0..PAGE_BLOCKS as u32).map(|block| block + if block % 2 == 0 { even } else { odd }).collect()
}

/// Locations of the blocks of page 0, looked up singly and in batches.
fn page_of(map: &dyn Map) -> Vec<u32> {
    let blocks: Vec<u64> = (0..PAGE_BLOCKS).collect();
    let mut found = vec![Physical::NONE; blocks.len()];
    map.lookup_batch(&blocks, &mut found);
    let single: Vec<u32> = blocks.iter().map(|block| map.lookup(*block).0).collect();
    assert!(found.iter().map(|found| found.0).eq(single.iter().copied()), "in batches and one by one");
    single
}

/// Whether a version has recorded that its leaf of page 0 is in its seat.
fn knows<M: Memory>(map: &Radix<M>) -> bool {
    map.seated.words()[0].get() & 1 != 0
}

#[test]
fn a_leaf_whose_seat_several_versions_know_stays_there_when_the_cleaner_moves_its_blocks() {
    let map = Radix::new(1 << 20).unwrap();
    map.load_page(0, &striped(1000, 1_000_000));
    assert!(knows(&map));
    let snapshot = map.snapshot();
    let mut moved = 0;
    map.compare_and_move(0..PAGE_BLOCKS, Physical(1_000_000), Physical(1000), &mut |piece| {
        moved += piece.count
    });
    assert_eq!(moved, PAGE_BLOCKS / 2);
    map.end_grace(map.begin_grace());
    // The page is now one run, but only a sole version could replace it by a leaf of runs.
    assert!(page_of(&map) == striped(1000, 1000) && page_of(&*snapshot) == striped(1000, 1000));
    drop(snapshot);
    map.load_page(0, &striped(5000, 1_000_000));
    map.compare_and_move(0..PAGE_BLOCKS, Physical(1_000_000), Physical(5000), &mut |_| {});
    map.end_grace(map.begin_grace());
    assert!(!knows(&map) && page_of(&map) == striped(5000, 5000));
}

#[test]
fn a_copied_leaf_comes_back_to_its_seat_once_nobody_has_it() {
    let map = Radix::new(1 << 20).unwrap();
    let (old, mut new) = (striped(1000, 1_000_000), striped(1000, 1_000_000));
    map.load_page(0, &old);
    let snapshot = map.snapshot();
    let mut change = |block: u64, to: u32| {
        map.insert(block..block + 1, Physical(to), &mut |_| {});
        new[block as usize] = to;
        assert!(page_of(&map) == new);
    };
    change(3, 7);
    assert!(!knows(&map) && page_of(&*snapshot) == old);
    drop(snapshot);
    change(4, 8);
    assert!(!knows(&map), "a lookup that began before may still be in the seat");
    map.end_grace(map.begin_grace());
    change(5, 9);
    assert!(knows(&map));
    map.end_grace(map.begin_grace());
    change(6, 10);
    // The zero slab, a middle node, and the leaf.
    assert_eq!(map.family.lock().state.allocator.in_use(), 3);
}

#[test]
fn memory_of_leaves_that_are_dense_no_more_is_given_back() {
    const PAGES: u64 = 1024;
    let map = Radix::new(PAGES * PAGE_BLOCKS).unwrap();
    let empty = map.bytes();
    let load = |pages: Range<u64>| pages.for_each(|page| map.load_page(page, &striped(1000, 1_000_000)));
    let unmap = |pages: Range<u64>| {
        map.insert(pages.start * PAGE_BLOCKS..pages.end * PAGE_BLOCKS, Physical::NONE, &mut |_| {});
        map.end_grace(map.begin_grace());
    };
    // First a few dense leaves, in small pages; then all of them, which become huge pages; then leaves of
    // runs.
    load(0..20);
    let few = map.bytes();
    assert!((20 * 4096..30 * 4096).contains(&(few - empty)), "{few} bytes, {empty} before");
    unmap(5..15);
    assert!(map.bytes() <= few - 10 * 4096, "{} bytes, {few} before", map.bytes());
    load(0..PAGES);
    assert!(map.bytes() - empty >= PAGES * 4096, "{} bytes", map.bytes());
    for page in 0..PAGES {
        let range = page * PAGE_BLOCKS..(page + 1) * PAGE_BLOCKS;
        map.insert(range, Physical(1 + 5000 * page as u32), &mut |_| {});
    }
    map.end_grace(map.begin_grace());
    assert!(map.bytes() - empty < PAGES * 200, "{} bytes with one run per leaf", map.bytes());
    load(0..PAGES);
    assert!(page_of(&map) == striped(1000, 1_000_000));
    unmap(0..PAGES);
    // Some free slabs keep their memory.
    assert!(map.bytes() - empty < 300 << 10, "{} bytes of an empty map, {empty} of a new one", map.bytes());
}

/// Expectations change only the page size of memory, whether they are met or not.
#[test]
fn leaves_that_were_expected_are_like_others_and_their_memory_goes_back_as_a_whole() {
    const PAGES: u64 = 2048;
    let map = Radix::new(PAGES * PAGE_BLOCKS).unwrap();
    let empty = map.bytes();
    let load = |page: u64| map.load_page(page, &striped(1000 + page as u32, 1_000_000));
    let holds = |page: u64| {
        let mut entries = vec![0; PAGE_BLOCKS as usize];
        map.save_page(page, &mut entries);
        entries == striped(1000 + page as u32, 1_000_000)
    };
    // Without evidence that leaves are dense, nothing is expected.
    map.expect_pages(&[600, 601]);
    assert_eq!(map.bytes(), empty);
    (0..40).for_each(load);
    let before = map.bytes();
    // A region with only one of the pages, one that is in use, one after the end, and one that will fill up.
    map.expect_pages(&[50, 51, 600, 1030, 1031, 1500, 5000, 5001]);
    let (expected, huge) = (map.bytes() - before, 2 << 20);
    assert!(expected == 0 || (huge..huge + 8192).contains(&expected), "{expected} bytes");
    for round in 0..3 {
        // Leaves are loaded while their memory is faulted in.
        std::thread::scope(|scope| {
            scope.spawn(|| map.expect_pages(&[1030, 1031, 1032]));
            (1024..1536).for_each(load);
        });
        assert!((0..40).chain(1024..1536).all(holds) && !holds(600), "round {round}");
        map.insert(1024 * PAGE_BLOCKS..1536 * PAGE_BLOCKS, Physical::NONE, &mut |_| {});
        map.end_grace(map.begin_grace());
        assert!(map.bytes() < before + (300 << 10), "{} bytes, {before} before", map.bytes());
        // A single leaf may take the memory of the whole region again, which is counted.
        load(1033);
        assert!(holds(1033) && !holds(1034) && map.bytes() >= before + expected);
        map.insert(1033 * PAGE_BLOCKS..1034 * PAGE_BLOCKS, Physical::NONE, &mut |_| {});
        map.end_grace(map.begin_grace());
    }
}
