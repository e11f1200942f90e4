//! The cache keeps the promises of its contract in every mode, while blocks are promoted and evicted.

use crate::disk;
use block::DevicePart;
use cache::{CachePart, Mode, Options};
use layers::fault::{FaultDevicePart, parse_rules};
use std::sync::Arc;

/// Runs the suite on a cache on devices of these sizes and block sizes, and again on the devices as a close
/// left them.
fn holds(options: Options, slow: (u64, u64), fast: (u64, u64), delays: &'static [&'static str]) {
    let config = runtime::Config::default().with_shards(2);
    let main = move || async move {
        let (slow, fast) = (disk(slow.0, slow.1), disk(fast.0, fast.1));
        let with_delays = |device: Arc<dyn DevicePart>, seed| {
            let rules: Vec<String> = delays.iter().map(|rule| (*rule).to_owned()).collect();
            let rules = parse_rules(&rules, stack::Contract::Device).expect("the rules are right");
            Arc::new(FaultDevicePart::new(device, rules, seed).expect("the rules fit"))
        };
        let (slow, fast) = (with_delays(slow, 1), with_delays(fast, 2));
        let opened = std::cell::Cell::new(0);
        let make = async || {
            let options = Options { format: opened.replace(opened.get() + 1) == 0, ..options.clone() };
            let part = CachePart::open(slow.clone(), fast.clone(), "slow", &options).await;
            Arc::new(part.expect("it opens")) as Arc<dyn DevicePart>
        };
        let suite = conformance::device::Options { persistent: true, ..Default::default() };
        conformance::device::run(make, suite).await
    };
    runtime::run(config, main).expect("the runtime starts").unwrap_or_else(|broken| panic!("{broken}"));
}

fn options(mode: Mode, block_size: u64) -> Options {
    Options { mode, block_size, sequential_threshold: 256 << 10, ..Options::default() }
}

const DELAYS: &[&str] = &["any delay=0us..50us probability=0.2"];

#[test]
fn writethrough() {
    holds(options(Mode::Writethrough, 32 << 10), (4 << 20, 4096), (1 << 20, 4096), DELAYS);
}

#[test]
fn writeback() {
    holds(options(Mode::Writeback, 32 << 10), (4 << 20, 4096), (1 << 20, 4096), DELAYS);
}

#[test]
fn passthrough() {
    holds(options(Mode::Passthrough, 32 << 10), (4 << 20, 4096), (1 << 20, 4096), DELAYS);
}

#[test]
fn writeback_with_room_for_all_of_it() {
    holds(options(Mode::Writeback, 64 << 10), (4 << 20, 4096), (8 << 20, 4096), &[]);
}

#[test]
fn few_large_blocks_of_which_parts_are_written_in_part() {
    for mode in [Mode::Writeback, Mode::Writethrough] {
        holds(options(mode, 1 << 20), (4 << 20, 512), (5 << 19, 4096), DELAYS);
    }
}

#[test]
fn blocks_of_different_sizes_and_an_origin_that_ends_inside_of_a_block() {
    holds(options(Mode::Writeback, 96 << 10), ((4 << 20) + 20480, 512), (1 << 20, 4096), DELAYS);
    holds(options(Mode::Writethrough, 96 << 10), ((4 << 20) + 20480, 4096), (1 << 20, 512), DELAYS);
}
