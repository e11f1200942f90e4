//! The crash oracle on the log: small zones, so that it goes round while the cleaner, checkpoints and roots are cut at
//! every event.

use block::{BlockCount, DevicePart, Result};
use log::core::Counters;
use log::kind::{Options, open};
use siltstone_tests::oracle::{Opening, Oracle, Report, Violation, seed};
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

fn run(oracle: Oracle, options: Options) -> (Result<Report, Box<Violation>>, Arc<Counters>) {
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
    runtime::run(runtime::Config::default(), main).expect("the runtime starts")
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

fn holds(
    name: &str,
    usual_seed: u64,
    (disk_blocks, options): (u64, Options),
    operations: u64,
) -> Arc<Counters> {
    let mut oracle = Oracle::new(seed(name, usual_seed));
    oracle.disk.blocks = BlockCount(disk_blocks);
    oracle.workload.operations = operations;
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
    assert!(report.states > 1000, "{name}: only {} states were tried", report.states);
    counters
}

#[test]
fn records_and_roots() {
    holds("records and roots", 21, small(640, 40), 200);
}

#[test]
fn cleaning_and_checkpoints() {
    let counters = holds("cleaning and checkpoints", 22, small(360, 50), 500);
    assert!(counters.moved_blocks.load(Ordering::Relaxed) > 0, "the cleaner had nothing to do");
    assert!(counters.reset_zones.load(Ordering::Relaxed) > 10, "the log did not go round");
}

#[test]
fn acknowledged_from_the_buffer() {
    let (blocks, options) = small(400, 60);
    let options = Options { acknowledge: log::core::Acknowledge::Buffer, ..options };
    holds("acknowledged from the buffer", 23, (blocks, options), 300);
}

#[test]
fn every_map() {
    for (number, map) in log::map::NAMES.into_iter().enumerate().skip(1) {
        let (blocks, options) = small(360, 50);
        let options = Options { map: map.to_owned(), ..options };
        holds(&format!("map {map}"), 40 + number as u64, (blocks, options), 200);
    }
}
