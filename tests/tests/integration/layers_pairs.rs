//! Every layer over every other one, and over itself: each pair keeps the contract, and has lost nothing when
//! it is opened again after a close and a power cut. Pairs are built from lines, so the layers' declarations
//! are also checked to fit together. The simulated world's seed decides all orders; waiting takes no real
//! time.

use block::{BlockSize, Call, DevicePart};
use conformance::Whole;
use conformance::device::{Options, VolatileDisk};
use layers::{fault, linear, model, record, stats, stripe};
use runtime::Simulation;
use stack::{Built, Contract, Kind, Registry, Shape, Stack};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// Size of a disk, in blocks of 4096 bytes.
const BLOCKS: u64 = 160;
/// Size of the range that the suite writes: more than the first of two disks, less than a layer over two
/// layers.
const WINDOW_BYTES: u64 = 768 << 10;

/// A layer in a line: `LOWER` is replaced by each device below it, `FILE` by a file that no other layer has.
type Line = &'static str;

const LAYERS: [Line; 10] = [
    "linear(LOWER, LOWER)",
    "stripe(LOWER, LOWER, chunk_size=16KiB)",
    "cache(LOWER, LOWER, mode=writeback, block_size=32KiB)",
    "cache(LOWER, LOWER, mode=writethrough, block_size=32KiB)",
    "writecache(LOWER, LOWER)",
    "mirror(LOWER, LOWER, bitmap_chunk=64KiB, bitmap_delay=10ms)",
    "model(LOWER, as2280p4u, seed=1)",
    "stats(LOWER)",
    "fault(LOWER)",
    "record(LOWER, FILE, overwrite=true, buffer=1MiB)",
];

/// A disk that exists as long as the pair, and loses unflushed data.
static DISK: Kind = Kind {
    name: "disk",
    contract: Contract::Device,
    summary: "a disk that loses what isn't flushed",
    keys: &[],
    messages: &[],
    metrics: &[],
    shareable: false,
    example: "disk",
    plan: |_| Ok(Shape::new(BLOCKS * 4096, 4096)),
    build: |arguments| Call::new(async move { Ok(Built::Device(Arc::new(disk(arguments.name())))) }),
};

thread_local! {
    /// Disks by the names of their parts.
    static DISKS: RefCell<BTreeMap<String, VolatileDisk>> = const { RefCell::new(BTreeMap::new()) };
}

fn disk(name: &str) -> VolatileDisk {
    DISKS.with_borrow_mut(|disks| {
        disks
            .entry(name.to_owned())
            .or_insert_with(|| VolatileDisk::new(BLOCKS, BlockSize::default()))
            .clone()
    })
}

fn registry() -> Registry {
    Registry::new(vec![
        &DISK,
        &linear::KIND,
        &stripe::KIND,
        &cache::KIND,
        &writecache::KIND,
        &mirror::KIND,
        &model::KIND,
        &stats::KIND,
        &fault::KIND,
        &record::KIND,
    ])
}

async fn build(line: &str, format: bool) -> Arc<dyn DevicePart> {
    let stack = Stack::from_line("line", line, &registry()).unwrap_or_else(|problems| panic!("{problems}"));
    let plan = stack.with_base_directory(Path::new("/")).check(format);
    let built = plan.unwrap_or_else(|problems| panic!("{line}: {problems}")).build().await;
    let built = built.unwrap_or_else(|error| panic!("{line}: {error}"));
    Arc::new(Whole::new(built).expect("it has one device on top"))
}

/// Line of a pair. Each of its devices is separate, and no other pair has its files: pairs run at the same
/// time, and layers of one process that name the same timeline share it.
fn pair(upper: usize, lower: usize) -> String {
    let line = LAYERS[upper].replace("LOWER", &LAYERS[lower].replace("LOWER", "disk"));
    let mut pieces = line.split("FILE");
    let first = pieces.next().unwrap_or_default().to_owned();
    pieces
        .enumerate()
        .fold(first, |line, (number, piece)| format!("{line}pair-{upper}-{lower}-{number}.timeline{piece}"))
}

fn seed() -> u64 {
    let asked = std::env::var("SILTSTONE_SEED").ok();
    asked.map_or(1, |text| text.trim().parse().expect("SILTSTONE_SEED is a whole number"))
}

fn judge(line: &str, seed: u64) -> std::result::Result<(), String> {
    let line = line.to_owned();
    let main = move || async move {
        DISKS.take();
        let is_made = Cell::new(false);
        let make = async || {
            DISKS.with_borrow(|disks| disks.values().for_each(VolatileDisk::cut_power));
            build(&line, !is_made.replace(true)).await
        };
        let options =
            Options { seed: Some(seed), operations: 200, window_bytes: WINDOW_BYTES, persistent: true };
        conformance::device::run(make, options).await
    };
    let simulated = runtime::simulate(Simulation::new(seed).with_shards(2), main);
    simulated.map_err(|error| error.to_string())?.value
}

/// Runs the suite on this layer over every layer.
fn over_all(upper: usize) {
    let seed = seed();
    for lower in 0..LAYERS.len() {
        let line = pair(upper, lower);
        judge(&line, seed).unwrap_or_else(|broken| panic!("SILTSTONE_SEED={seed}, {line}: {broken}"));
    }
}

macro_rules! over_all {
    ($($name:ident: $number:literal)*) => {
        $(
            #[test]
            fn $name() {
                over_all($number);
            }
        )*

        /// No layer is left out.
        #[test]
        fn all_layers_are_tried() {
            assert!([$($number),*].into_iter().eq(0..LAYERS.len()));
        }
    };
}

over_all! {
    linear_over_all: 0
    stripe_over_all: 1
    a_cache_that_is_written_back_over_all: 2
    a_cache_that_is_written_through_over_all: 3
    a_write_cache_over_all: 4
    a_mirror_over_all: 5
    model_over_all: 6
    stats_over_all: 7
    fault_without_rules_over_all: 8
    record_over_all: 9
}

/// Proof that the suite can fail: a device that drops or misdirects writes, below a layer that doesn't
/// notice.
#[test]
fn what_goes_wrong_below_a_layer_is_found_out() {
    for rule in ["write drop every=50", "write misdirect by=1 blocks every=50"] {
        for upper in
            ["stats(LOWER)", "linear(LOWER, LOWER)", "stripe(LOWER, LOWER)", "model(LOWER, as2280p4u)"]
        {
            let line = upper.replace("LOWER", &format!("fault(disk, \"{rule}\", seed=1)"));
            let broken = judge(&line, 1).expect_err(&line);
            println!("{line}: {broken}");
        }
    }
}
