//! The crash oracle on a log whose map is at home: its disk and the home are cut at the same moment, while
//! the cleaner, resets of zones, transactions and roots are in progress.

use block::{BlockCount, DevicePart, Result};
use layers::record::replay::Search;
use log::core::Acknowledge;
use log::kind::Options;
use logkit::Counters;
use siltstone_tests::halves;
use siltstone_tests::oracle::{Opening, Oracle, Report, Violation, in_simulation, seed};
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Blocks of the home.
const HOME: u64 = 400;

fn run(
    name: &str,
    usual_seed: u64,
    (disk_blocks, options): (u64, Options),
    is_lying: bool,
    change: impl FnOnce(&mut Oracle),
) -> (Result<Report, Box<Violation>>, Arc<Counters>) {
    let mut oracle = Oracle::new(seed(name, usual_seed));
    oracle.disk.blocks = BlockCount(disk_blocks + HOME);
    oracle.workload.operations = 150;
    oracle.prefix = true;
    change(&mut oracle);
    let seed = oracle.seed;
    let main = move || async move {
        let counters: RefCell<Arc<Counters>> = RefCell::default();
        let open = async |disk: Arc<dyn DevicePart>, opening: Opening| {
            let format = opening == Opening::Format;
            let zone_size = format.then_some(32 << 10);
            let options = Options { format, zone_size, ..options.clone() };
            let part = halves::open(disk, disk_blocks, &options, is_lying).await?;
            if format {
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
    let options =
        Options { size: Some(volume_blocks * 4096), checkpoint_after: 64 << 10, ..Options::default() };
    (disk_blocks, options)
}

fn holds(name: &str, usual_seed: u64, on: (u64, Options), change: impl FnOnce(&mut Oracle)) -> Arc<Counters> {
    let (report, counters) = run(name, usual_seed, on, false, |oracle| {
        change(oracle);
        oracle.limit(1);
    });
    let report = report.unwrap_or_else(|violation| panic!("{name}: {violation}"));
    let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    println!(
        "{name}: {report:?}; {} records, {} blocks moved, {} zones reset, {} transactions",
        value(&counters.user_records),
        value(&counters.moved_blocks),
        value(&counters.reset_zones),
        value(&counters.checkpoints)
    );
    assert!(report.states > 1000, "{name}: only {} states", report.states);
    counters
}

#[test]
fn transactions_and_roots() {
    holds("transactions and roots", 121, small(640, 40), |_| {});
}

#[test]
fn cleaning() {
    let counters = holds("cleaning", 122, small(288, 66), |oracle| oracle.workload.operations = 450);
    assert!(counters.moved_blocks.load(Ordering::Relaxed) > 0, "the cleaner had nothing to do");
    assert!(counters.reset_zones.load(Ordering::Relaxed) > 10, "no zone of the log was used again");
}

#[test]
fn acknowledged_from_the_buffer() {
    let (blocks, options) = small(400, 60);
    holds("from the buffer", 123, (blocks, Options { acknowledge: Acknowledge::Buffer, ..options }), |_| {});
}

#[test]
fn one_operation_at_a_time_and_discards_of_everything() {
    holds("sequential", 124, small(320, 60), |oracle| {
        oracle.workload.queue_depth = 1;
        oracle.workload.discards_all = true;
    });
}

#[test]
fn a_home_that_lies_is_caught() {
    let (report, _) = run("a home that lies", 3, small(320, 60), true, |oracle| {
        oracle.search = Search::brief(oracle.seed);
        oracle.workload.operations = 110;
    });
    println!("{}", report.expect_err("a write that isn't durable is noticed"));
}
