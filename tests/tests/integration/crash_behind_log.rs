//! A mirror whose slow leg is behind a write cache on the fast device: the cache's log records which blocks
//! the slow leg lacks. All devices are parts of one disk, so that every cut is a cut of all of them.
//!
//! ```text
//!            ┌ leg a (fast)
//! mirror ────┤
//!            └ writecache ─┬ cache (on the fast device, too)
//!                          └ leg b (slow)
//! ```

use block::{
    BlockCount, BlockIndex, BlockRange, BlockSize, Buffer, DeviceGeometry, DevicePart, Durability, Part,
    Result,
};
use layers::linear::part_of;
use layers::record::replay::ImageDisk;
use mirror::{MirrorPart, Permissions, Plan, Settings};
use siltstone_tests::oracle::{Opening, Oracle, Report, Violation, in_simulation, seed};
use std::sync::Arc;
use std::time::Duration;
use writecache::{Options, WriteCachePart};

/// Sizes of all devices.
#[derive(Clone, Copy)]
struct Sizes {
    /// Blocks of a leg.
    leg: u64,
    /// Blocks of the cache.
    cache: u64,
    /// Bytes that a bit of the bitmap covers.
    chunk: u64,
    /// Percentages of the cache between which it is written back.
    watermarks: [u64; 2],
}

/// Few enough blocks for all states of all cuts; some of the written blocks stay in the cache.
const SMALL: Sizes = Sizes { leg: 40, cache: 66, chunk: 16 << 10, watermarks: [10, 20] };
/// 64 chunks, after three blocks of the mirror's own; the cache writes everything back at once.
const LARGE: Sizes = Sizes { leg: 3 + 64 * 16, cache: 300, chunk: 64 << 10, watermarks: [0, 0] };

/// Devices that are left after a cut.
#[derive(Clone, Copy, PartialEq)]
enum Survivors {
    All,
    /// The fast device is lost: one leg, and the log of the blocks that the other one lacks.
    SlowLeg,
}

async fn mirror(
    legs: Vec<(String, Arc<dyn DevicePart>)>,
    sizes: Sizes,
    format: bool,
    degraded: bool,
) -> Result<MirrorPart> {
    let settings = Settings {
        write_mostly: 1 << (legs.len() - 1),
        write_behind: 0,
        behind_bytes: 1 << 20,
        fast_flush: false,
        bitmap_delay: Duration::from_millis(2),
        sync_speed_max: 0,
        first_leg: false,
        timeout: Duration::from_secs(30),
    };
    let permissions = Permissions { degraded, rebuild: 0 };
    MirrorPart::open(Plan {
        legs,
        settings,
        permissions,
        format,
        bitmap_chunk: format.then_some(sizes.chunk),
    })
    .await
}

async fn open(
    disk: Arc<dyn DevicePart>,
    sizes: Sizes,
    opening: Opening,
    survivors: Survivors,
) -> Result<Arc<dyn DevicePart>> {
    let Sizes { leg, cache, watermarks: [low_watermark, high_watermark], .. } = sizes;
    let part = |at: u64, blocks: u64| -> Result<Arc<dyn DevicePart>> {
        Ok(Arc::new(part_of(disk.clone(), BlockRange::new(at, blocks))?))
    };
    let slow = part(leg + cache, leg)?;
    let format = opening == Opening::Format;
    if !format && survivors == Survivors::SlowLeg {
        return Ok(Arc::new(mirror(vec![("slow".into(), slow)], sizes, false, true).await?));
    }
    let options = Options { format, batch: 32 << 10, high_watermark, low_watermark, ..Options::default() };
    let behind = Arc::new(WriteCachePart::open(slow, part(leg, cache)?, options).await?);
    let legs =
        vec![("fast".to_owned(), part(0, leg)?), ("slow".to_owned(), behind.clone() as Arc<dyn DevicePart>)];
    let mirror = mirror(legs, sizes, format, false).await?;
    if format {
        // From now on the slow device alone holds a whole leg.
        behind.message("flush").await?;
    }
    Ok(Arc::new(mirror))
}

fn run(oracle: Oracle, survivors: Survivors) -> Result<Report, Box<Violation>> {
    let seed = oracle.seed;
    let main = move || async move {
        oracle
            .run(async |disk: Arc<dyn DevicePart>, opening: Opening| {
                open(disk, SMALL, opening, survivors).await
            })
            .await
    };
    in_simulation(seed, main)
}

fn holds(name: &str, usual_seed: u64, survivors: Survivors, change: impl FnOnce(&mut Oracle)) {
    let mut oracle = Oracle::limited(seed(name, usual_seed), 1);
    oracle.disk.blocks = BlockCount(2 * SMALL.leg + SMALL.cache);
    oracle.workload.operations = 160;
    change(&mut oracle);
    let report = run(oracle, survivors).unwrap_or_else(|violation| panic!("{name}: {violation}"));
    println!("{name}: {report:?}");
    assert!(report.states > 1000, "{name}: only {} states", report.states);
}

#[test]
fn a_restart_continues() {
    holds("behind log", 401, Survivors::All, |_| {});
}

#[test]
fn the_slow_leg_alone_is_an_older_state() {
    holds("behind log, slow leg alone", 402, Survivors::SlowLeg, |oracle| oracle.older = true);
}

/// Waits until a field of `status` has this value.
async fn until(part: &dyn DevicePart, field: &str, value: impl Into<serde_json::Value>) {
    let value = value.into();
    for _ in 0..10_000 {
        if part.status().await[field] == value {
            return;
        }
        runtime::sleep(Duration::from_millis(1)).await;
    }
    panic!("{field} never is {value}: {:?}", part.status().await);
}

/// The slow leg recovers by its log; the bitmap is used as well, and its chunks are copied whole.
#[test]
fn a_restart_copies_what_was_written_lately_and_no_more() {
    let disk: Arc<dyn DevicePart> = Arc::new(ImageDisk::empty(DeviceGeometry {
        block_size: BlockSize::default(),
        blocks: BlockCount(2 * LARGE.leg + LARGE.cache),
        atomic_write: 512,
        volatile_cache: true,
        read_only: false,
    }));
    let all = (LARGE.leg - 3) * 4096;
    let first = disk.clone();
    let killed = move || async move {
        let part = open(first, LARGE, Opening::Format, Survivors::All).await.expect("it is made");
        let device = part.open().await.expect("a handle");
        let write = async |block: u64, byte: u8, blocks: u64| {
            let bytes = vec![byte; (blocks * 4096) as usize];
            device.write(BlockIndex(block), Buffer::copy_of(&bytes).into(), Durability::Visible).await
        };
        until(&*part, "chunks_to_copy", 0).await;
        for chunk in 0..64 {
            write(chunk * 16, 1 + chunk as u8, 16).await.expect("all of it is written");
        }
        device.flush().await.expect("and flushed");
        until(&*part, "dirty_chunks", 0).await;
        for block in [3, 100, 101, 1000] {
            write(block, 200, 1).await.expect("some of it is written again");
        }
        // The count precedes the clearing of the bits, which happens two checks later.
        until(&*part, "dirty_chunks", 3).await;
        // The part isn't closed.
    };
    runtime::simulate(runtime::Simulation::new(403), killed).expect("the first life ends");
    let restarted = move || async move {
        let part = open(disk, LARGE, Opening::Recover, Survivors::All).await.expect("it is opened again");
        until(&*part, "chunks_to_copy", 0).await;
        let copied = part.status().await["copied_bytes"].as_u64().expect("a number");
        assert!((1..=3 * LARGE.chunk).contains(&copied), "{copied} of {all} bytes were copied");
        part.message("check").await.expect("the legs are compared");
        until(&*part, "sync_action", "idle").await;
        assert_eq!(
            (&part.status().await["scrubbed_bytes"], &part.status().await["mismatch_sectors"]),
            (&all.into(), &0.into())
        );
        part.close().await.expect("it is closed");
    };
    runtime::simulate(runtime::Simulation::new(404), restarted).expect("the second life ends");
}
