//! The crash oracle on the counters of `engine`, the smallest owner of a log, and on versions of it that
//! break one rule each, which the oracle must notice.

use block::{BlockCount, BlockRange, BlockSize, DevicePart, Result};
use layers::record::replay::Search;
use siltstone_tests::engine::device::{CountersDevice, Stamp};
use siltstone_tests::engine::{Broken, Counters, Options};
use siltstone_tests::oracle::{Opening, Oracle, Report, Violation, in_simulation, seed, stamp};
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const STAMP: Stamp = Stamp {
    offset: 16,
    contents: |block, number| {
        stamp::stamped(BlockRange::new(block, 1), number, BlockSize::new(4096).unwrap())
    },
};

async fn open(disk: Arc<dyn DevicePart>, opening: Opening, options: Options) -> Result<CountersDevice> {
    let format = opening == Opening::Format;
    let on_device = zones::on_device::Options { format, zone_size: Some(32 << 10), ..Default::default() };
    let zones = Arc::new(zones::OnDevice::open(disk, on_device).await?);
    let counters = match format {
        true => Counters::format(zones, options).await?,
        false => Counters::open(zones, options).await?,
    };
    Ok(CountersDevice::new(counters, STAMP))
}

type Outcome = (Result<Report, Box<Violation>>, Arc<logkit::Counters>);

fn run(oracle: Oracle, options: Options) -> Outcome {
    let seed = oracle.seed;
    let main = move || async move {
        let kit: RefCell<Arc<logkit::Counters>> = RefCell::default();
        let open = async |disk: Arc<dyn DevicePart>, opening: Opening| {
            let part = open(disk, opening, options).await?;
            if opening == Opening::Format {
                *kit.borrow_mut() = part.counters().kit().clone();
            }
            Ok(Arc::new(part) as Arc<dyn DevicePart>)
        };
        let report = oracle.run(open).await;
        (report, kit.take())
    };
    in_simulation(seed, main)
}

fn oracle(seed: u64) -> Oracle {
    let mut oracle = Oracle::limited(seed, 1);
    oracle.disk.blocks = BlockCount(240);
    oracle.workload.operations = 160;
    oracle.prefix = true;
    oracle
}

const OPTIONS: Options = Options {
    counters: 40,
    shards: 1,
    checkpoint_blocks: 16,
    erase: false,
    check_sums: false,
    prepare_zones: false,
    broken: None,
};

fn holds(name: &str, oracle: Oracle, options: Options) -> (Report, Arc<logkit::Counters>) {
    let (report, kit) = run(oracle, options);
    let report = report.unwrap_or_else(|violation| panic!("{name}: {violation}"));
    let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    println!(
        "{name}: {report:?}; {} records, {} blocks moved, {} zones reset, {} checkpoints",
        value(&kit.user_records),
        value(&kit.moved_blocks),
        value(&kit.reset_zones),
        value(&kit.checkpoints)
    );
    assert!(report.states > 1000, "{name}: only {} states", report.states);
    (report, kit)
}

#[test]
fn counters_survive_every_cut() {
    let name = "counters";
    let (_, kit) = holds(name, oracle(seed(name, 301)), OPTIONS);
    assert!(kit.moved_blocks.load(Ordering::Relaxed) > 0, "the cleaner had nothing to do");
    assert!(kit.reset_zones.load(Ordering::Relaxed) > 10, "no zone of the log was used again");
    assert!(kit.checkpoints.load(Ordering::Relaxed) > 3, "hardly any checkpoints were taken");
}

#[test]
fn recoveries_of_counters_that_are_cut() {
    let name = "recoveries of counters";
    let mut oracle = oracle(seed(name, 302));
    oracle.workload.operations = 120;
    oracle.again_every = 331;
    let (report, _) = holds(name, oracle, OPTIONS);
    assert!(report.recoveries > 100 || !report.is_whole(), "{name}: only {} cuts", report.recoveries);
}

/// Zones are opened ahead, so some are open and empty at a cut; all blocks are checked when they are read.
#[test]
fn counters_whose_zones_are_opened_ahead_survive_every_cut() {
    let ahead = Options { check_sums: true, prepare_zones: true, ..OPTIONS };
    let name = "counters with zones opened ahead";
    let mut one = oracle(seed(name, 304));
    one.again_every = 331;
    let (_, kit) = holds(name, one, ahead);
    assert!(kit.moved_blocks.load(Ordering::Relaxed) > 0, "the cleaner had nothing to do");
    assert!(kit.reset_zones.load(Ordering::Relaxed) > 10, "no zone of the log was used again");
    let name = "counters of two shards with zones opened ahead";
    let mut two = oracle(seed(name, 305));
    two.prefix = false;
    holds(name, two, Options { shards: 2, ..ahead });
}

/// Each shard has its own streams, so a cut doesn't leave a prefix of all values that were set.
#[test]
fn counters_of_two_shards_survive_every_cut() {
    let name = "counters of two shards";
    let mut oracle = oracle(seed(name, 303));
    oracle.prefix = false;
    oracle.again_every = 331;
    let (_, kit) = holds(name, oracle, Options { shards: 2, ..OPTIONS });
    assert!(kit.moved_blocks.load(Ordering::Relaxed) > 0, "the cleaner had nothing to do");
    assert!(kit.reset_zones.load(Ordering::Relaxed) > 10, "no zone of the log was used again");
}

/// Breaks a rule, which must be noticed with one of 32 seeds. There are few zones, so that all of them are
/// used again soon.
fn is_caught(broken: Broken, operations: u64, expected: &str) {
    is_caught_with(1, broken, operations, expected);
}

/// Text of a violation that was found at a cut, after a run without errors.
const AT_A_CUT: &str = "power cut before event";

fn is_caught_with(shards: u32, broken: Broken, operations: u64, expected: &str) {
    let name = format!("{broken:?}");
    let first = seed(&name, 310);
    for seed in first..first + 32 {
        let mut oracle = Oracle::new(seed);
        oracle.disk.blocks = BlockCount(if shards == 1 { 144 } else { 208 });
        oracle.workload.operations = operations;
        oracle.search = Search::brief(seed);
        oracle.prefix = shards == 1;
        let (report, _) = run(oracle, Options { broken: Some(broken), counters: 12, shards, ..OPTIONS });
        if let Err(violation) = report {
            println!("{name}: caught: {violation}");
            let text = violation.to_string();
            assert!(text.contains(expected), "{name}: expected \"{expected}\" in: {text}");
            return;
        }
    }
    panic!("{name}: the oracle has not noticed it");
}

#[test]
fn a_root_before_its_checkpoint_is_durable_is_caught() {
    is_caught(Broken::RootBeforeFlush, 60, AT_A_CUT);
}

#[test]
fn a_reset_before_what_made_the_zone_dead_is_durable_is_caught() {
    is_caught(Broken::ResetBeforeFlush, 100, AT_A_CUT);
}

#[test]
fn a_reset_of_records_that_are_not_covered_is_caught() {
    is_caught(Broken::CoversEarly, 100, AT_A_CUT);
}

#[test]
fn a_checkpoint_whose_state_is_older_than_its_cut_is_caught() {
    is_caught(Broken::LateCut, 100, AT_A_CUT);
}

#[test]
fn a_live_block_that_is_not_counted_is_caught() {
    is_caught(Broken::CountsTooFew, 100, AT_A_CUT);
}

/// The kit doesn't reset a zone whose live blocks it didn't hear of, so nothing is lost, and no zone is free
/// in the end.
#[test]
fn a_live_block_that_the_cleaner_is_not_told_of_is_caught() {
    is_caught(Broken::ForgetsCounter, 1500, "no space");
}

#[test]
fn a_move_over_a_newer_value_is_caught() {
    is_caught(Broken::MovesAlways, 100, AT_A_CUT);
}

#[test]
fn a_flush_that_does_nothing_is_caught() {
    is_caught(Broken::NeverFlushes, 60, AT_A_CUT);
}

#[test]
fn a_root_before_another_shard_has_flushed_is_caught() {
    is_caught_with(2, Broken::FlushesHomeOnly, 100, AT_A_CUT);
}

#[test]
fn a_checkpoint_of_two_shards_whose_state_is_older_than_its_cut_is_caught() {
    is_caught_with(2, Broken::LateCut, 100, AT_A_CUT);
}

#[test]
fn two_counters_that_are_set_by_two_records_are_caught() {
    is_caught_with(2, Broken::SplitsPairs, 100, AT_A_CUT);
}
