//! The crash oracle on the write cache: origin and cache device are two parts of one disk, so that every cut
//! is a cut of both. The cache is small, so its space is used again many times.

use block::{BlockCount, BlockRange, DevicePart, Result};
use layers::linear::part_of;
use siltstone_tests::oracle::{Opening, Oracle, Report, Violation, in_simulation, seed};
use std::sync::Arc;
use writecache::{Options, Order, WriteCachePart};

/// Blocks of the origin, and of the cache device after it.
const ORIGIN: u64 = 40;
const CACHE: u64 = 66;

/// Devices that are left after a cut.
#[derive(Clone, Copy, PartialEq)]
enum Survivors {
    Both,
    /// The cache is lost.
    OriginAlone,
}

fn run(oracle: Oracle, options: Options, survivors: Survivors) -> Result<Report, Box<Violation>> {
    let seed = oracle.seed;
    let main = move || async move {
        let open = async |disk: Arc<dyn DevicePart>, opening: Opening| {
            let origin = Arc::new(part_of(disk.clone(), BlockRange::new(0, ORIGIN))?);
            if opening == Opening::Recover && survivors == Survivors::OriginAlone {
                return Ok(origin as Arc<dyn DevicePart>);
            }
            let fast = Arc::new(part_of(disk, BlockRange::new(ORIGIN, CACHE))?);
            let options = Options { format: opening == Opening::Format, ..options.clone() };
            Ok(Arc::new(WriteCachePart::open(origin, fast, options).await?) as Arc<dyn DevicePart>)
        };
        oracle.run(open).await
    };
    in_simulation(seed, main)
}

fn small() -> Options {
    Options { high_watermark: 40, low_watermark: 20, batch: 32 << 10, ..Options::default() }
}

fn holds(
    name: &str,
    usual_seed: u64,
    options: Options,
    survivors: Survivors,
    change: impl FnOnce(&mut Oracle),
) -> Report {
    let mut oracle = Oracle::limited(seed(name, usual_seed), 1);
    oracle.disk.blocks = BlockCount(ORIGIN + CACHE);
    oracle.workload.operations = 240;
    change(&mut oracle);
    let report = run(oracle, options, survivors).unwrap_or_else(|violation| panic!("{name}: {violation}"));
    println!("{name}: {report:?}");
    assert!(report.states > 1000, "{name}: only {} states", report.states);
    report
}

#[test]
fn what_is_found_is_a_prefix() {
    holds("write cache", 301, small(), Survivors::Both, |oracle| oracle.prefix = true);
}

#[test]
fn written_back_at_once() {
    let options = Options { high_watermark: 0, low_watermark: 0, ..small() };
    holds("written back at once", 302, options, Survivors::Both, |oracle| oracle.prefix = true);
}

#[test]
fn without_order() {
    let mut options = small();
    options.settings.order = Order::None;
    options.settings.fua = true;
    holds("without order", 303, options, Survivors::Both, |oracle| oracle.prefix = true);
}

#[test]
fn many_in_flight_and_everything_discarded_now_and_then() {
    holds("many in flight", 304, small(), Survivors::Both, |oracle| {
        oracle.prefix = true;
        oracle.workload.queue_depth = 16;
        oracle.workload.discards_all = true;
        oracle.workload.longest = 9;
    });
}

/// Recoveries that are cut in turn.
#[test]
fn cuts_during_a_recovery() {
    let report = holds("recoveries", 305, small(), Survivors::Both, |oracle| {
        oracle.prefix = true;
        oracle.again_every = 97;
    });
    assert!(
        report.recoveries > 300 || !report.is_whole(),
        "only {} states of recoveries were tried",
        report.recoveries
    );
}

/// The cache is lost at any moment: the origin is in a state that an earlier power cut could have left.
#[test]
fn the_origin_alone_is_an_older_state() {
    for (number, depth) in [1, 4, 16].into_iter().enumerate() {
        let name = format!("origin alone, {depth} in flight");
        holds(&name, 310 + number as u64, small(), Survivors::OriginAlone, |oracle| {
            oracle.older = true;
            oracle.workload.queue_depth = depth;
        });
    }
}

/// Proof that the check above can fail: without order the origin isn't in such a state.
#[test]
fn the_origin_alone_is_no_such_state_without_order() {
    let mut options = small();
    options.settings.order = Order::None;
    let mut oracle = Oracle::new(seed("origin alone, without order", 320));
    oracle.disk.blocks = BlockCount(ORIGIN + CACHE);
    oracle.older = true;
    assert!(run(oracle, options, Survivors::OriginAlone).is_err(), "an order was kept unasked");
}
