//! The crash oracle on the log: zones are small, so that all of them are used again while the cleaner,
//! checkpoints and roots are cut at every event.

use block::{
    BlockCount, BlockIndex, BlockRange, BlockSize, Buffer, Call, Device, DeviceGeometry, DevicePart,
    Durability, Extent, Part, Payload, ReadOutcome, Result, ZeroMode,
};
use log::core::Acknowledge;
use log::kind::{Options, open};
use logkit::Counters;
use siltstone_tests::oracle::{Opening, Oracle, Report, Violation, in_simulation, seed};
use std::cell::RefCell;
use std::rc::Rc;
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

fn striped(shards: u32, disk_blocks: u64, volume_blocks: u64) -> (u64, Options) {
    let (blocks, options) = small(disk_blocks, volume_blocks);
    (blocks, Options { shards: Some(shards), stripe_blocks: 8, ..options })
}

/// Shard of a block, by the number of shards.
fn group_of(shards: u32) -> fn(u64) -> u32 {
    match shards {
        2 => |block| (block / 8 % 2) as u32,
        3 => |block| (block / 8 % 3) as u32,
        8 => |block| (block / 8 % 8) as u32,
        _ => |_| 0,
    }
}

/// Each shard's blocks are a prefix of the writes to them, with everything that was flushed.
#[test]
fn several_home_shards() {
    for (shards, acknowledge) in
        [(1, Acknowledge::Log), (2, Acknowledge::Log), (3, Acknowledge::Buffer), (8, Acknowledge::Log)]
    {
        let (blocks, options) = striped(shards, 280 + 120 * u64::from(shards), 72);
        let options = Options { acknowledge, ..options };
        let name = format!("{shards} home shards, {acknowledge:?}");
        holds_with(&name, 80 + u64::from(shards), (blocks, options), 250, |oracle| {
            oracle.group_of = group_of(shards);
        });
    }
}

#[test]
fn cuts_during_a_recovery_of_several_home_shards() {
    for shards in [2, 3] {
        let name = format!("recoveries of {shards} home shards");
        let on = striped(shards, 280 + 120 * u64::from(shards), 72);
        let (report, _) = tried(&name, 110 + u64::from(shards), on, 120, |oracle| {
            oracle.group_of = group_of(shards);
            oracle.again_every = 331;
        });
        assert!(report.recoveries > 500 || !report.is_whole(), "{name}: {} recoveries", report.recoveries);
    }
}

/// A log of two shards whose flush reaches the first one only.
struct HalfFlushing(Arc<log::LogPart>);

struct HalfFlushed {
    log: Arc<log::LogPart>,
    device: Rc<dyn Device>,
}

impl Part for HalfFlushing {
    fn kind(&self) -> &'static str {
        "half-flushing"
    }

    fn close(&self) -> Call<'_, Result<()>> {
        self.0.close()
    }
}

impl DevicePart for HalfFlushing {
    fn geometry(&self) -> &DeviceGeometry {
        self.0.geometry()
    }

    fn open(&self) -> Call<'_, Result<Rc<dyn Device>>> {
        Call::new(async move {
            let device = self.0.open().await?;
            Ok(Rc::new(HalfFlushed { log: self.0.clone(), device }) as Rc<dyn Device>)
        })
    }
}

impl Device for HalfFlushed {
    fn geometry(&self) -> &DeviceGeometry {
        self.device.geometry()
    }

    fn read(&self, at: BlockIndex, buffer: Buffer) -> Call<'_, ReadOutcome> {
        self.device.read(at, buffer)
    }

    fn write(&self, at: BlockIndex, payload: Payload, durability: Durability) -> Call<'_, Result<()>> {
        self.device.write(at, payload, durability)
    }

    fn flush(&self) -> Call<'_, Result<()>> {
        Call::new(
            self.log.home.with(|core: Rc<log::core::Core>| async move { core.flush_acknowledged().await }),
        )
    }

    fn discard(&self, range: BlockRange) -> Call<'_, Result<()>> {
        self.device.discard(range)
    }

    fn write_zeroes(
        &self,
        range: BlockRange,
        mode: ZeroMode,
        durability: Durability,
    ) -> Call<'_, Result<()>> {
        self.device.write_zeroes(range, mode, durability)
    }

    fn extents(&self, range: BlockRange) -> Call<'_, Result<Vec<Extent>>> {
        self.device.extents(range)
    }
}

/// The oracle finds a flush that leaves out a shard.
#[test]
fn a_flush_that_leaves_out_a_shard_is_caught() {
    let mut oracle = Oracle::new(seed("a flush of one shard", 5));
    let (blocks, options) = striped(2, 520, 72);
    oracle.disk.blocks = BlockCount(blocks);
    oracle.workload.operations = 200;
    let main = move || async move {
        let open = async |disk: Arc<dyn DevicePart>, opening: Opening| {
            let options = Options { format: opening == Opening::Format, ..options.clone() };
            Ok(Arc::new(HalfFlushing(Arc::new(open(disk, &options).await?))) as Arc<dyn DevicePart>)
        };
        oracle.run(open).await
    };
    let found = in_simulation(5, main);
    println!("{}", found.expect_err("a flush of one shard isn't one"));
}
