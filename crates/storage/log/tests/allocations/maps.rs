//! The size that maps report is what they take, and the radix map keeps to its budget.

use conformance::allocations;
use log::map::{Map, NAMES, PAGE_BLOCKS, Physical, Radix, make};
use runtime::Random;

/// Resident memory of this process, in bytes.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").expect("Linux has it");
    let pages: u64 = text.split(' ').nth(1).and_then(|word| word.parse().ok()).expect("the second number");
    pages * 4096
}

/// A permutation of the numbers below `count`.
fn shuffled(count: u64, seed: u64) -> Vec<u32> {
    let mut random = Random::new(seed);
    let mut numbers: Vec<u32> = (0..count as u32).collect();
    for at in (1..numbers.len()).rev() {
        numbers.swap(at, random.below(at as u64 + 1) as usize);
    }
    numbers
}

/// Maps every block to a location of its own, one by one in random order. Returns the largest value of
/// `bytes` meanwhile.
fn write_at_random(map: &dyn Map) -> u64 {
    let mut most = 0;
    for (place, block) in (1..).zip(shuffled(map.blocks(), 3)) {
        map.insert(u64::from(block)..u64::from(block) + 1, Physical(place), &mut |_| {});
        if place % 1024 == 0 {
            map.end_grace(map.begin_grace());
            most = most.max(map.bytes());
        }
    }
    most
}

/// Maps every block, in extents of 255, each after a header.
fn write_sequentially(map: &dyn Map) -> u64 {
    let (mut block, mut place, mut most) = (0, 1, 0);
    while block < map.blocks() {
        let count = 255.min(map.blocks() - block);
        map.insert(block..block + count, Physical(place), &mut |_| {});
        block += count;
        place += count as u32 + 1;
        if block % (64 * 255) == 0 {
            map.end_grace(map.begin_grace());
            most = most.max(map.bytes());
        }
    }
    most
}

fn radix_keeps_to_its_budget() {
    const BLOCKS: u64 = 1 << 22;
    const PER_TEBIBYTE: u64 = (1 << 28) / BLOCKS;
    // Memory is allocated in huge pages, and the last one isn't full.
    const ROUNDING: u64 = 2 << 20;
    let before = resident();
    let map = Radix::new(BLOCKS).expect("memory for the tables");
    let most = write_at_random(&map);
    let budget = (1.01 * (1 << 30) as f64) as u64 / PER_TEBIBYTE;
    println!("at random: {} bytes, {most} at most, budget {budget}", map.bytes());
    assert!(map.bytes() <= budget + ROUNDING, "{} bytes at random, budget {budget}", map.bytes());
    // While leaves of runs become dense both exist.
    assert!(most <= budget + budget / 20 + ROUNDING, "{most} bytes at most, budget {budget}");
    let taken = resident().saturating_sub(before);
    assert!(taken <= map.bytes() + ROUNDING, "{taken} bytes resident, {} reported", map.bytes());
    assert!(taken >= map.bytes() / 10 * 8, "{taken} bytes resident, {} reported", map.bytes());
    drop(map);

    let map = Radix::new(BLOCKS).expect("memory for the tables");
    let most = write_sequentially(&map);
    let budget = (64 << 20) / PER_TEBIBYTE;
    println!("sequentially: {} bytes, {most} at most, budget {budget}", map.bytes());
    assert!(most <= budget, "{most} bytes sequentially, budget {budget}");

    // A map that was full of single blocks doesn't grow when it is rewritten sequentially.
    let map = Radix::new(BLOCKS).expect("memory for the tables");
    write_at_random(&map);
    let dense = map.bytes();
    write_sequentially(&map);
    map.end_grace(map.begin_grace());
    assert!(map.bytes() <= dense + dense / 20, "{} bytes, {dense} before", map.bytes());
}

fn what_a_map_says_is_what_the_allocator_counts() {
    const BLOCKS: u64 = 256 * PAGE_BLOCKS;
    for name in NAMES.iter().filter(|name| **name != "radix") {
        for (fill, what) in [
            (write_at_random as fn(&dyn Map) -> u64, "at random"),
            (write_sequentially as fn(&dyn Map) -> u64, "sequentially"),
        ] {
            let before = allocations::bytes();
            let map = make(name, BLOCKS).expect("a known name");
            fill(&*map);
            let (taken, said) = (allocations::bytes().saturating_sub(before), map.bytes());
            let ratio = said as f64 / taken as f64;
            println!("{name} {what}: {taken} bytes allocated, {said} said ({ratio:.2})");
            assert!((0.7..1.4).contains(&ratio), "{name} {what}: {taken} bytes allocated, {said} reported");
        }
    }
}

pub fn memory_is_what_maps_say_and_within_the_budget() {
    radix_keeps_to_its_budget();
    what_a_map_says_is_what_the_allocator_counts();
}
