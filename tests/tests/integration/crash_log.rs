//! The crash oracle on the log: zones are small, so that all of them are used again while the cleaner,
//! checkpoints and roots are cut at every event.

use block::{BlockCount, BlockSize, DevicePart, Result};
use log::core::Acknowledge;
use log::kind::{Options, open};
use logkit::Counters;
use siltstone_tests::oracle::{Opening, Oracle, Report, Violation, in_simulation, seed};
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

fn run(oracle: Oracle, options: Options) -> (Result<Report, Box<Violation>>, Arc<Counters>) {
    let seed = oracle.seed;
    let main = move || async move {
        let counters: RefCell<Arc<Counters>> = RefCell::default();
        let open = async |disk: Arc<dyn DevicePart>, opening: Opening| {
            let options = Options { format: opening == Opening::Format, ..options.clone() };
            let part = open(disk, &options).await?;
            if opening == Opening::Format {
                *counters.borrow_mut() = part.counters().clone();
            }
            Ok(Arc::new(part) as Arc<dyn DevicePart>)
        };
        let report = oracle.run(open).await;
        (report, counters.take())
    };
    in_simulation(seed, main)
}

fn small(disk_blocks: u64, volume_blocks: u64) -> (u64, Options) {
    let options = Options {
        size: Some(volume_blocks * 4096),
        zone_size: Some(32 << 10),
        checkpoint_after: 64 << 10,
        ..Options::default()
    };
    (disk_blocks, options)
}

fn holds(name: &str, usual_seed: u64, on: (u64, Options), operations: u64) -> Arc<Counters> {
    holds_with(name, usual_seed, on, operations, |_| {})
}

fn holds_with(
    name: &str,
    usual_seed: u64,
    on: (u64, Options),
    operations: u64,
    change: impl FnOnce(&mut Oracle),
) -> Arc<Counters> {
    tried(name, usual_seed, on, operations, change).1
}

fn tried(
    name: &str,
    usual_seed: u64,
    (disk_blocks, options): (u64, Options),
    operations: u64,
    change: impl FnOnce(&mut Oracle),
) -> (Report, Arc<Counters>) {
    let mut oracle = Oracle::limited(seed(name, usual_seed), 1);
    oracle.disk.blocks = BlockCount(disk_blocks);
    oracle.workload.operations = operations;
    oracle.prefix = true;
    change(&mut oracle);
    let (report, counters) = run(oracle, options);
    let report = report.unwrap_or_else(|violation| panic!("{name}: {violation}"));
    let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    println!(
        "{name}: {report:?}; {} records, {} blocks moved, {} zones reset, {} checkpoints",
        value(&counters.user_records),
        value(&counters.moved_blocks),
        value(&counters.reset_zones),
        value(&counters.checkpoints)
    );
    assert!(report.states > 1000, "{name}: only {} states", report.states);
    (report, counters)
}

#[test]
fn records_and_roots() {
    holds("records and roots", 21, small(640, 40), 200);
}

#[test]
fn cleaning_and_checkpoints() {
    let counters = holds("cleaning and checkpoints", 22, small(320, 60), 500);
    assert!(counters.moved_blocks.load(Ordering::Relaxed) > 0, "the cleaner had nothing to do");
    assert!(counters.reset_zones.load(Ordering::Relaxed) > 10, "no zone of the log was used again");
}

#[test]
fn acknowledged_from_the_buffer() {
    let (blocks, options) = small(400, 60);
    let options = Options { acknowledge: Acknowledge::Buffer, ..options };
    holds("acknowledged from the buffer", 23, (blocks, options), 300);
}

#[test]
fn every_map() {
    for (number, map) in log::map::NAMES.into_iter().enumerate().skip(1) {
        let (blocks, options) = small(320, 60);
        let options = Options { map: map.to_owned(), ..options };
        holds(&format!("map {map}"), 40 + number as u64, (blocks, options), 120);
    }
}

/// Recoveries that are cut in turn.
#[test]
fn cuts_during_a_recovery() {
    for (number, map) in ["radix", "hash", "btree"].into_iter().enumerate() {
        let (blocks, options) = small(320, 60);
        let options = Options { map: map.to_owned(), ..options };
        let name = format!("recoveries, map {map}");
        let (report, _) =
            tried(&name, 100 + number as u64, (blocks, options), 120, |oracle| oracle.again_every = 331);
        assert!(
            report.recoveries > 500 || !report.is_whole(),
            "{name}: only {} states of recoveries were tried",
            report.recoveries
        );
    }
}

/// One operation at a time: the contents after a cut are exactly the result of some prefix.
#[test]
fn a_sequential_client_finds_a_prefix() {
    for (number, acknowledge) in [Acknowledge::Log, Acknowledge::Buffer].into_iter().enumerate() {
        let (blocks, options) = small(320, 60);
        let options = Options { acknowledge, ..options };
        let name = format!("sequential, {acknowledge:?}");
        holds_with(&name, 60 + number as u64, (blocks, options), 200, |oracle| {
            oracle.workload.queue_depth = 1
        });
    }
}

#[test]
fn many_operations_in_flight_and_little_dirty_data() {
    for (number, appends_in_flight) in [1, 3].into_iter().enumerate() {
        let (blocks, options) = small(400, 60);
        let options = Options { appends_in_flight, dirty: 16 << 10, ..options };
        let name = format!("{appends_in_flight} appends in flight");
        holds_with(&name, 70 + number as u64, (blocks, options), 200, |oracle| {
            oracle.workload.queue_depth = 16
        });
    }
}

#[test]
fn other_cleaning_policies() {
    for (number, cleaning) in ["lifetime", "threshold"].into_iter().enumerate() {
        let (blocks, options) = small(400, 60);
        let options = Options { cleaning: cleaning.to_owned(), ..options };
        holds(cleaning, 80 + number as u64, (blocks, options), 200);
    }
}

#[test]
fn a_disk_without_a_volatile_cache() {
    holds_with("no volatile cache", 90, small(320, 60), 200, |oracle| oracle.disk.volatile_cache = false);
}

#[test]
fn a_disk_of_sectors_of_512_bytes() {
    holds_with("sectors of 512 bytes", 91, small(320, 60), 200, |oracle| {
        oracle.disk.block_size = BlockSize::new(512).expect("a block size");
        oracle.disk.blocks = BlockCount(320 * 8);
    });
}

#[test]
fn everything_discarded_now_and_then() {
    holds_with("discards of everything", 92, small(320, 60), 200, |oracle| {
        oracle.workload.discards_all = true
    });
}
