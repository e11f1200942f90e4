//! Allocations of the cache in steady state, with all blocks cached: none for a read in any mode, and none
//! for a write with writeback.
//!
//! The counts are of the whole process, so this binary has a single test.

use block::{BlockSize, DevicePart, Part};
use cache::{CachePart, Mode, Options};
use conformance::allocations::{CLIENTS, Counting, counted, reads, writes};
use std::sync::Arc;
use std::time::Duration;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const BLOCK: usize = 4096;

/// Allocations for 200 writes and 1000 reads per client of a cache with this mode, and the number of read
/// misses.
fn of(mode: Mode) -> (u64, u64, u64) {
    let found = runtime::run(runtime::Config::default(), move || async move {
        let ram = |bytes| {
            let part = disks::ram::RamPart::new(bytes, BlockSize::new(BLOCK as u64).expect("a size"));
            Arc::new(part.expect("memory")) as Arc<dyn DevicePart>
        };
        // No request bypasses the cache, and nothing is recorded in the table meanwhile.
        let options = Options {
            format: true,
            mode: Mode::Writeback,
            sequential_threshold: 0,
            settle_every: Duration::from_secs(3600),
            ..Options::default()
        };
        let part = CachePart::open(ram(64 << 20), ram(64 << 20), "slow", &options).await.expect("it is made");
        let device = part.open().await.expect("a handle");
        counted(&device, writes, 100).await;
        part.message(&format!("mode {}", mode.name())).await.expect("it knows the mode");
        // The new mode begins with the write-back of all dirty blocks, which allocates.
        while mode != Mode::Writeback && part.status().await["dirty_blocks"].as_u64() != Some(0) {
            runtime::sleep(Duration::from_millis(1)).await;
        }
        counted(&device, writes, 100).await;
        counted(&device, reads, 100).await;
        let written = counted(&device, writes, 200).await;
        let read = counted(&device, reads, 1000).await;
        let misses = part.status().await["read_misses"].as_u64().expect("a count");
        drop(device);
        part.close().await.expect("it closes");
        (written, read, misses)
    });
    found.expect("the runtime runs")
}

#[test]
fn hits_allocate_nothing() {
    for mode in [Mode::Writeback, Mode::Writethrough] {
        let (written, read, misses) = of(mode);
        println!("{mode:?}: {written} allocations for {} writes, {read} for reads", 200 * CLIENTS);
        assert_eq!(misses, 0, "{mode:?}: reads aren't answered from the cache");
        assert_eq!(read, 0, "{mode:?}: allocations for {} reads", 1000 * CLIENTS);
        assert!(written < 10, "{mode:?}: {written} allocations for {} writes", 200 * CLIENTS);
    }
}
