//! Shows with the counters of `engine` that an append allocates nothing, neither in an owner nor in the kit.
//!
//! Allocations that are amortised over thousands of appends are permitted: checkpoints, opening and sealing
//! zones, the cleaner, and lists that grow when more happens at a time than in the warm-up. So appends are
//! counted within a zone, and nothing has to be moved.
//!
//! The counts are of the whole process, so this binary has a single test.
#![allow(clippy::unwrap_used)]

use block::{BlockSize, DevicePart};
use conformance::allocations::{Counting, everywhere};
use siltstone_tests::engine::{Counters, Options};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const CLIENTS: u32 = 16;
/// Counters of each client.
const OWN: u32 = 8;
const SETS: u64 = 100;

async fn client(counters: Rc<Counters>, number: u32, sets: u64) {
    for value in 1..=sets {
        counters.set(number * OWN + value as u32 % OWN, value).await.unwrap();
    }
}

/// Number of allocations while each client sets counters `sets` times, without those for starting the
/// clients.
async fn allocations(counters: &Rc<Counters>, sets: u64) -> u64 {
    let run = async |sets| {
        let before = everywhere();
        let tasks: Vec<_> =
            (0..CLIENTS).map(|number| runtime::spawn(client(counters.clone(), number, sets))).collect();
        for task in tasks {
            task.await;
        }
        everywhere() - before
    };
    let tasks = run(0).await;
    run(sets).await.saturating_sub(tasks)
}

#[test]
fn an_append_allocates_nothing() {
    let found = runtime::run(runtime::Config::default(), || async {
        let disk = disks::ram::RamPart::new(512 << 20, BlockSize::default()).unwrap();
        let disk: Arc<dyn DevicePart> = Arc::new(disk);
        // Zones that are large enough for the whole test, and no checkpoint meanwhile.
        let on_device =
            zones::on_device::Options { format: true, zone_size: Some(32 << 20), ..Default::default() };
        let zones = Arc::new(zones::OnDevice::open(disk, on_device).await.unwrap());
        let options = Options {
            counters: CLIENTS * OWN,
            shards: 1,
            checkpoint_blocks: u64::MAX,
            erase: false,
            broken: None,
            check_sums: false,
            prepare_zones: false,
        };
        let counters = Rc::new(Counters::format(zones, options).await.unwrap());
        for _ in 0..3 {
            allocations(&counters, SETS).await;
        }
        let records = || counters.kit().user_records.load(Ordering::Relaxed);
        let before = records();
        let allocated = allocations(&counters, SETS).await;
        let records = records() - before;
        counters.close().await.unwrap();
        (allocated, records)
    });
    let (allocated, records) = found.unwrap();
    println!(
        "{allocated} allocations for {} appended blocks in {records} records",
        u64::from(CLIENTS) * SETS
    );
    assert!(records >= SETS, "only {records} records");
    assert!(allocated <= 4, "{allocated} allocations for {records} records");
}
