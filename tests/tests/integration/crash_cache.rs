//! The crash oracle on a cache: its two devices are halves of one disk and are cut at the same moment, while
//! blocks are promoted and evicted, marked dirty, written back and marked clean. The fast device is also lost
//! at any of these moments.

use block::{BlockRange, DevicePart, Part, Result};
use cache::{CachePart, Mode, Options};
use layers::linear::part_of;
use siltstone_tests::oracle::{Opening, Oracle, Report, Violation, in_simulation, seed};
use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

/// The cache's own counts after a run.
type Counts = block::Status;

/// State of the fast device after the cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fast {
    Stays,
    Lost,
    /// The table marks all dirty blocks as clean: broken on purpose.
    Wrong,
}

#[derive(Debug, Clone)]
struct Setup {
    fast: u64,
    slow: u64,
    options: Options,
    becomes: Fast,
    /// Mode after the cut.
    then: Mode,
    /// Whether messages promote and evict blocks all the time.
    is_warmed: bool,
}

fn setup(mode: Mode, slots: u64, slow: u64) -> Setup {
    let options = Options {
        mode,
        block_size: 32 << 10,
        settle_every: Duration::from_micros(300),
        checks_origin: false,
        ..Options::default()
    };
    // Superblocks and journal, the head of the chunk, the slots.
    Setup { fast: 24 + 8 + 8 * slots, slow, options, becomes: Fast::Stays, then: mode, is_warmed: false }
}

async fn open(disk: Arc<dyn DevicePart>, opening: Opening, setup: &Setup) -> Result<Arc<dyn DevicePart>> {
    let part = |from, count| {
        Ok::<_, block::Error>(
            Arc::new(part_of(disk.clone(), BlockRange::new(from, count))?) as Arc<dyn DevicePart>
        )
    };
    let (fast, slow) = (part(0, setup.fast)?, part(setup.fast, setup.slow)?);
    let options = match opening {
        Opening::Format => Options { format: true, ..setup.options.clone() },
        Opening::Recover => Options { mode: setup.then, ..setup.options.clone() },
    };
    if opening == Opening::Recover && setup.becomes == Fast::Lost {
        return Ok(slow);
    }
    if opening == Opening::Recover && setup.becomes == Fast::Wrong {
        // As if nothing had been dirty: a new, empty cache.
        let options = Options { format: true, ..options };
        return Ok(Arc::new(CachePart::open(slow, fast, "slow", &options).await?));
    }
    let part = Arc::new(CachePart::open(slow, fast, "slow", &options).await?);
    if setup.is_warmed && opening == Opening::Format {
        warm(&part, setup.slow * 4096);
    }
    Ok(part)
}

/// Promotes and evicts blocks until the cache is closed.
fn warm(part: &Arc<CachePart>, bytes: u64) {
    let part = Arc::downgrade(part);
    runtime::spawn(async move {
        let mut random = runtime::Random::new(77);
        loop {
            runtime::sleep(Duration::from_micros(random.below(300))).await;
            let Some(part) = part.upgrade() else { return };
            let verb = ["fetch main/1/0", "fetch small/1/0", "evict"][random.below(3) as usize];
            let from = random.below(bytes);
            let message = format!("warm {verb} {from}+{}", 1 + random.below(bytes - from));
            if part.message(&message).await.is_err() {
                return;
            }
        }
    })
    .detach();
}

fn run(
    name: &str,
    usual_seed: u64,
    setup: Setup,
    change: impl FnOnce(&mut Oracle),
) -> (Result<Report, Box<Violation>>, Counts) {
    let mut oracle = Oracle::new(seed(name, usual_seed));
    oracle.disk.blocks.0 = setup.fast + setup.slow;
    change(&mut oracle);
    let seed = oracle.seed;
    let main = move || async move {
        let part: RefCell<Option<Arc<dyn DevicePart>>> = RefCell::default();
        let opening = async |disk, opening| {
            let opened = open(disk, opening, &setup).await?;
            if opening == Opening::Format {
                *part.borrow_mut() = Some(opened.clone());
            }
            Ok(opened)
        };
        let report = oracle.run(opening).await;
        let counts = match part.take() {
            Some(part) => part.status().await,
            None => Counts::default(),
        };
        (report, counts)
    };
    in_simulation(seed, main)
}

fn holds(name: &str, usual_seed: u64, setup: Setup, change: impl FnOnce(&mut Oracle)) -> Counts {
    let (report, counts) = run(name, usual_seed, setup, |oracle| {
        change(oracle);
        oracle.limit(1);
    });
    let report = report.unwrap_or_else(|violation| panic!("{name}: {violation}"));
    let count = |name: &str| counts[name].as_u64().expect("it is a number");
    println!(
        "{name}: {report:?}; {} promotions, {} demotions, {} written back, {} marks, {} records, {} pages",
        count("promotions"),
        count("demotions"),
        count("write_backs"),
        count("table_marks"),
        count("journal_records"),
        count("table_pages"),
    );
    assert!(report.states > 1000, "{name}: only {} states", report.states);
    counts
}

fn many(oracle: &mut Oracle) {
    oracle.workload.operations = 160;
}

#[test]
fn writeback() {
    let counts = holds("writeback", 201, setup(Mode::Writeback, 4, 96), many);
    assert!(counts["demotions"].as_u64() > Some(0), "no block left: {counts:?}");
    assert!(counts["write_backs"].as_u64() > Some(0), "nothing was written back: {counts:?}");
}

#[test]
fn writeback_with_room_for_all_of_it() {
    let counts = holds("writeback, all of it", 202, setup(Mode::Writeback, 8, 48), many);
    assert!(counts["table_marks"].as_u64() > Some(0), "nothing was marked: {counts:?}");
}

#[test]
fn writethrough() {
    let counts = holds("writethrough", 203, setup(Mode::Writethrough, 4, 96), many);
    assert!(counts["demotions"].as_u64() > Some(0), "no block left: {counts:?}");
}

#[test]
fn writethrough_with_room_for_all_of_it() {
    let counts = holds("writethrough, all of it", 206, setup(Mode::Writethrough, 8, 48), many);
    assert!(counts["table_marks"].as_u64() > Some(0), "nothing was marked: {counts:?}");
}

#[test]
fn writethrough_without_its_cache() {
    let setup = Setup { becomes: Fast::Lost, ..setup(Mode::Writethrough, 4, 96) };
    holds("writethrough, cache lost", 204, setup, many);
}

#[test]
fn passthrough() {
    holds("passthrough", 205, setup(Mode::Passthrough, 4, 64), |_| {});
}

#[test]
fn another_mode_after_the_cut() {
    for (number, (mode, then)) in [
        (Mode::Writeback, Mode::Writethrough),
        (Mode::Writeback, Mode::Passthrough),
        (Mode::Writethrough, Mode::Writeback),
    ]
    .into_iter()
    .enumerate()
    {
        let setup = Setup { then, ..setup(mode, 4, 96) };
        holds(&format!("{mode:?}, then {then:?}"), 210 + number as u64, setup, |_| {});
    }
}

#[test]
fn many_operations_at_a_time_and_discards_of_everything() {
    for (number, mode) in [Mode::Writeback, Mode::Writethrough].into_iter().enumerate() {
        let name = format!("many operations, {mode:?}");
        holds(&name, 220 + number as u64, setup(mode, 4, 96), |oracle| {
            oracle.workload.queue_depth = 16;
            oracle.workload.discards_all = true;
        });
    }
}

#[test]
fn warmed_all_the_time() {
    for (number, mode) in [Mode::Writeback, Mode::Writethrough].into_iter().enumerate() {
        let setup = Setup { is_warmed: true, ..setup(mode, 8, 96) };
        let counts = holds(&format!("warmed, {mode:?}"), 250 + number as u64, setup, many);
        assert!(counts["prefetched_bytes"].as_u64() > Some(0), "nothing was promoted: {counts:?}");
    }
}

#[test]
fn cuts_during_a_recovery() {
    for (number, mode) in [Mode::Writeback, Mode::Writethrough].into_iter().enumerate() {
        let name = format!("recoveries, {mode:?}");
        holds(&name, 230 + number as u64, setup(mode, 4, 64), |oracle| {
            oracle.workload.operations = 150;
            oracle.again_every = 61;
        });
    }
}

#[test]
fn a_cache_that_is_thrown_away_is_caught() {
    let setup = Setup { becomes: Fast::Wrong, ..setup(Mode::Writeback, 4, 96) };
    let (report, _) = run("thrown away", 240, setup, |_| {});
    println!("{}", report.expect_err("lost dirty blocks are noticed"));
}
