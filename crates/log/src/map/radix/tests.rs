//! The same model as for every map, with slabs so small that a history fills many middle nodes and roots.

#[path = "../../../tests/map_model/mod.rs"]
mod map_model;

use super::*;
use std::cell::RefCell;

/// Words on the heap, in slabs of 32, and seats for some of the pages.
#[derive(Debug)]
struct Small(Box<[std::sync::atomic::AtomicU32]>, Box<[std::sync::atomic::AtomicU32]>);

/// So many pages have seats.
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

    fn bytes_for(slabs: u32) -> u64 {
        u64::from(slabs) << (Self::SLAB_SHIFT + 2)
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
        // Each replaces one leaf of one run.
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
