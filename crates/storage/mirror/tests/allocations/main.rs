//! Allocations of the mirror in steady state, with all legs present and all bits of the bitmap set: none for
//! a read or a write, and about two for each write on a lagging leg: its task, and the task's data.
//!
//! The counts are of the whole process, so this binary has a single test.

use block::{BlockSize, DevicePart, Part};
use conformance::allocations::{CLIENTS, Counting, counted, reads, writes};
use mirror::{MirrorPart, Permissions, Plan, Settings};
use std::sync::Arc;
use std::time::Duration;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const BLOCK: usize = 4096;

/// Allocations for 200 writes and 1000 reads per client of a mirror; `write_behind` limits the outstanding
/// writes of the second leg.
fn of(write_behind: u64) -> (u64, u64) {
    let found = runtime::run(runtime::Config::default(), move || async move {
        let ram = || {
            let part = disks::ram::RamPart::new(64 << 20, BlockSize::new(BLOCK as u64).expect("a size"));
            Arc::new(part.expect("memory")) as Arc<dyn DevicePart>
        };
        let settings = Settings {
            write_mostly: if write_behind == 0 { 0 } else { 0b10 },
            write_behind,
            behind_bytes: 64 << 20,
            fast_flush: false,
            bitmap_delay: Duration::from_secs(3600),
            sync_speed_max: 0,
            first_leg: false,
            timeout: Duration::from_secs(30),
        };
        let plan = Plan {
            legs: vec![("a".to_owned(), ram()), ("b".to_owned(), ram())],
            settings,
            permissions: Permissions { degraded: false, rebuild: 0 },
            format: true,
            bitmap_chunk: None,
        };
        let part = MirrorPart::open(plan).await.expect("it is made");
        let device = part.open().await.expect("a handle");
        while part.status().await["chunks_to_copy"] != 0 {
            runtime::sleep(Duration::from_millis(1)).await;
        }
        counted(&device, writes, 200).await;
        counted(&device, reads, 100).await;
        let written = counted(&device, writes, 200).await;
        device.flush().await.expect("flushed");
        let read = counted(&device, reads, 1000).await;
        drop(device);
        part.close().await.expect("it closes");
        (written, read)
    });
    found.expect("the runtime runs")
}

#[test]
fn writes_and_reads_allocate_nothing() {
    let requests = 200 * CLIENTS;
    for write_behind in [0, 64] {
        let (written, read) = of(write_behind);
        println!(
            "write_behind {write_behind}: {written} allocations for {requests} writes, {read} for reads"
        );
        // One in 512 reads is a probe, on a task of its own: two allocations.
        assert!(read < 1000 * CLIENTS / 128, "{read} allocations for {} reads", 1000 * CLIENTS);
        let most = if write_behind == 0 { 10 } else { 4 * requests };
        assert!(written < most, "{written} allocations for {requests} writes");
    }
}
