//! Parts of which only some bytes are cached or changed: at the end of an origin that has grown, and at the
//! edges of discarded ranges.

use crate::disk;
use block::{BlockIndex, BlockRange, Buffer, Device, DevicePart, Durability, Error, Part, ZeroMode};
use cache::{CachePart, Mode, Options};
use conformance::requests::on_a_shard;
use layers::fault::{FaultDevicePart, parse_rules};
use layers::linear::part_of;
use std::sync::Arc;
use std::time::Duration;

/// The first bytes of a device.
fn first(device: &Arc<dyn DevicePart>, bytes: u64) -> Arc<dyn DevicePart> {
    let blocks = bytes / device.geometry().block_size.bytes();
    Arc::new(part_of(device.clone(), BlockRange::new(0, blocks)).expect("it fits"))
}

fn faulty(device: Arc<dyn DevicePart>, rule: &str) -> Arc<dyn DevicePart> {
    let rules = parse_rules(&[rule.to_owned()], stack::Contract::Device).expect("the rule is right");
    Arc::new(FaultDevicePart::new(device, rules, 1).expect("the rule fits"))
}

async fn read(device: &dyn Device, at: u64, length: u64) -> Vec<u8> {
    let block = BlockIndex(at / device.geometry().block_size.bytes());
    let (outcome, buffer) = device.read(block, Buffer::new(length as usize)).await;
    outcome.expect("it can be read");
    buffer.filled().to_vec()
}

async fn write(device: &dyn Device, at: u64, bytes: &[u8]) {
    let block = BlockIndex(at / device.geometry().block_size.bytes());
    device.write(block, Buffer::copy_of(bytes).into(), Durability::Visible).await.expect("it can be written");
}

/// Copies a device to a new one with blocks of this size.
async fn copy(device: &Arc<dyn DevicePart>, block_size: u64) -> Arc<dyn DevicePart> {
    let bytes = device.geometry().bytes();
    let other = disk(bytes, block_size);
    let (from, to) = (device.open().await.expect("it opens"), other.open().await.expect("it opens"));
    write(&*to, 0, &read(&*from, 0, bytes).await).await;
    to.flush().await.expect("it is flushed");
    other
}

fn options(mode: Mode, block_size: u64) -> Options {
    Options { mode, block_size, settle_every: Duration::from_millis(5), ..Options::default() }
}

/// Waits until a status field has this value.
async fn until(part: &CachePart, name: &str, value: impl Into<serde_json::Value>) {
    let value = value.into();
    for _ in 0..5000 {
        if part.status().await[name] == value {
            return;
        }
        runtime::sleep(Duration::from_millis(2)).await;
    }
    panic!("{name} never became {value}: {:?}", part.status().await);
}

async fn detach(part: &CachePart) {
    part.message("detach").await.expect("it is taken");
    until(part, "detach", "done").await;
}

/// An origin that ends inside a part, and grows.
#[derive(Debug, Clone, Copy)]
struct Growth {
    /// Block size of both devices, and of the fast one after the origin has grown.
    device_blocks: (u64, u64),
    block: u64,
    /// Sizes of the origin: the first one, and those after each growth.
    sizes: &'static [u64],
}

/// Cache block with parts of 1 KiB on devices with blocks of 512 bytes.
const BLOCK: u64 = 64 << 10;
/// Cache block with parts of 8 KiB.
const LARGE: u64 = 512 << 10;
/// Cache block with parts of 64 KiB, of which the last one is half as long.
const ODD: u64 = 101 * (32 << 10);

const GROWTHS: [Growth; 5] = [
    Growth { device_blocks: (512, 512), block: BLOCK, sizes: &[2 * BLOCK + 21 * 512, 3 * BLOCK] },
    Growth { device_blocks: (512, 512), block: BLOCK, sizes: &[512, 1024] },
    // The old end is also inside a block of the later devices.
    Growth { device_blocks: (512, 1024), block: BLOCK, sizes: &[2 * BLOCK + 21 * 512, 3 * BLOCK] },
    Growth { device_blocks: (4096, 4096), block: LARGE, sizes: &[LARGE + 3 * 4096, LARGE + 4 * 4096] },
    Growth {
        device_blocks: (4096, 4096),
        block: ODD,
        sizes: &[ODD - (28 << 10), ODD - (16 << 10), ODD + 4096],
    },
];

/// Devices of a cache before the origin grew. The origin is filled with ones, and extends past the cached
/// size; its last cached block was promoted or, with `is_dirty`, is filled with twos in the cache alone.
async fn before_it_grew(growth: Growth, is_dirty: bool) -> (Arc<dyn DevicePart>, Arc<dyn DevicePart>) {
    let Growth { device_blocks: (size, later), block, sizes, .. } = growth;
    let (slow, fast) = (disk(*sizes.last().unwrap(), size), disk(8 << 20, size));
    let origin = slow.open().await.unwrap();
    write(&*origin, 0, &vec![1; *sizes.last().unwrap() as usize]).await;
    origin.flush().await.unwrap();
    let made = Options { format: true, ..options(Mode::Writeback, block) };
    let part = CachePart::open(first(&slow, sizes[0]), fast.clone(), "slow", &made).await.unwrap();
    let handle = part.open().await.unwrap();
    let copies;
    if is_dirty {
        write(&*handle, sizes[0] - size, &vec![2; size as usize]).await;
        handle.flush().await.unwrap();
        // Simulates a crash before anything is written back.
        copies = (copy(&slow, size).await, copy(&fast, later).await);
        drop(handle);
        part.close().await.unwrap();
    } else {
        read(&*handle, sizes[0] - size, size).await;
        until(&part, "promotions", 1).await;
        drop(handle);
        part.close().await.unwrap();
        copies = (copy(&slow, size).await, copy(&fast, later).await);
    }
    copies
}

/// Contents of the origin after the growth.
fn expected(growth: Growth, is_dirty: bool, size: u64) -> Vec<u8> {
    let mut bytes = vec![1; size as usize];
    if is_dirty {
        let end = growth.sizes[0] as usize;
        bytes[end - growth.device_blocks.0 as usize..end].fill(2);
    }
    bytes
}

#[track_caller]
fn assert_same(found: &[u8], expected: &[u8], what: &str) {
    let differs = found.iter().zip(expected).position(|(found, expected)| found != expected);
    let at = differs.map(|at| (at, found[at], expected[at]));
    assert!(found.len() == expected.len() && at.is_none(), "{what}: place, found, expected: {at:?}");
}

#[test]
fn behind_the_old_end_of_a_grown_origin_is_what_the_origin_has() {
    on_a_shard(|| async {
        for growth in GROWTHS {
            for is_dirty in [false, true] {
                let what = format!("{growth:?}, dirty {is_dirty}");
                let (slow, fast) = before_it_grew(growth, is_dirty).await;
                for (number, size) in growth.sizes.iter().enumerate().skip(1) {
                    let options = options(Mode::Writeback, growth.block);
                    let part = CachePart::open(first(&slow, *size), fast.clone(), "slow", &options);
                    let part = part.await.unwrap_or_else(|error| panic!("{what}: {error}"));
                    let status = part.status().await;
                    assert_eq!(status["used_blocks"], 1, "{what}: {status:?}");
                    let handle = part.open().await.unwrap();
                    let found = read(&*handle, 0, *size).await;
                    assert_same(&found, &expected(growth, is_dirty, *size), &what);
                    drop(handle);
                    if number + 1 == growth.sizes.len() {
                        detach(&part).await;
                    }
                    part.close().await.unwrap();
                }
                // Nothing else was written back.
                let size = *growth.sizes.last().unwrap();
                let origin = slow.open().await.unwrap();
                let found = read(&*origin, 0, size).await;
                assert_same(&found, &expected(growth, is_dirty, size), &format!("the origin of {what}"));
            }
        }
    });
}

#[test]
fn a_growth_that_fails_in_the_middle_is_made_up_for_by_the_next_opening() {
    on_a_shard(|| async {
        let growth = GROWTHS[4];
        let size = growth.sizes[1];
        // Opening writes a superblock, then the bytes after the old end, then another superblock.
        for (on_slow, rule) in [
            (true, "read error=EIO range=3280896..3293184"),
            (true, "flush error=EIO"),
            (false, "write error=EIO after=1"),
            (false, "write error=EIO after=2"),
            (false, "flush error=EIO"),
        ] {
            for is_dirty in [false, true] {
                let what = format!("{rule}, dirty {is_dirty}");
                let (slow, fast) = before_it_grew(growth, is_dirty).await;
                let (slow, options) = (first(&slow, size), options(Mode::Writeback, growth.block));
                let failed = match on_slow {
                    true => CachePart::open(faulty(slow.clone(), rule), fast.clone(), "slow", &options).await,
                    false => {
                        CachePart::open(slow.clone(), faulty(fast.clone(), rule), "slow", &options).await
                    }
                };
                let error = failed.err().unwrap_or_else(|| panic!("{what}: nothing went wrong"));
                assert!(matches!(error, Error::Io(_)), "{what}: {error}");
                let part = CachePart::open(slow, fast, "slow", &options).await.unwrap();
                let handle = part.open().await.unwrap();
                let found = read(&*handle, 0, size).await;
                assert_same(&found, &expected(growth, is_dirty, size), &what);
                drop(handle);
                part.close().await.unwrap();
            }
        }
    });
}

/// After a discard that failed in the middle, cache and origin agree, so contents don't change on eviction.
#[test]
fn what_a_failed_discard_leaves_stays_when_blocks_leave() {
    on_a_shard(|| async {
        let size = 2 * BLOCK;
        // From the middle of a part to the middle of a part.
        let (start, end) = (BLOCK / 2 + 512, BLOCK + BLOCK / 2 + 512);
        let cases = [
            (Mode::Writethrough, false),
            (Mode::Writeback, false),
            // Only the cache has a part at the second edge.
            (Mode::Writeback, true),
        ];
        for ((mode, is_dirty), fails) in cases.into_iter().flat_map(|case| [(case, 1), (case, 0)]) {
            for zeroes in [false, true] {
                let what = format!("{mode:?}, dirty {is_dirty}, after {fails}, zeroes {zeroes}");
                let (slow, fast) = (disk(size, 512), disk(8 << 20, 512));
                let origin = slow.open().await.unwrap();
                write(&*origin, 0, &vec![1; size as usize]).await;
                let made = Options { format: true, ..options(mode, BLOCK) };
                let part = CachePart::open(slow.clone(), fast.clone(), "slow", &made).await.unwrap();
                let handle = part.open().await.unwrap();
                for block in 0..2 {
                    read(&*handle, block * BLOCK, BLOCK).await;
                }
                until(&part, "promotions", 2).await;
                drop(handle);
                part.close().await.unwrap();
                let fast = faulty(fast, &format!("write_zeroes error=EIO after={fails}"));
                let part = CachePart::open(slow.clone(), fast, "slow", &options(mode, BLOCK)).await.unwrap();
                let handle = part.open().await.unwrap();
                if is_dirty {
                    write(&*handle, end - 512, &[2; 1024]).await;
                    handle.flush().await.unwrap();
                }
                let range = BlockRange::new(start / 512, (end - start) / 512);
                let outcome = match zeroes {
                    false => handle.discard(range).await,
                    true => handle.write_zeroes(range, ZeroMode::MayDeallocate, Durability::Visible).await,
                };
                assert!(matches!(outcome, Err(Error::Io(_))), "{what}: {outcome:?}");
                let found = read(&*handle, 0, size).await;
                let outside = found[..start as usize].iter().all(|byte| *byte == 1);
                let written = if is_dirty { 2 } else { 1 };
                assert!(outside, "{what}: something before it has changed");
                assert_eq!(found[end as usize], written, "{what}: something behind it has changed");
                detach(&part).await;
                assert_same(&read(&*handle, 0, size).await, &found, &what);
                let status = part.status().await;
                assert_eq!(
                    (&status["cache_errors"], &status["origin_errors"]),
                    (&1.into(), &0.into()),
                    "{what}"
                );
                drop(handle);
                part.close().await.unwrap();
            }
        }
    });
}

/// A part that is durable in the cache alone is discarded, then promoted again or written to both, without a
/// flush of the origin. Another part of its slot is then committed to the table. A power cut must leave the
/// durable version or a later one.
#[test]
fn the_table_keeps_what_counts_where_a_discard_is_not_durable_yet() {
    const PART: usize = 8192;
    runtime::simulate(runtime::Simulation::new(1), || async {
        for is_written in [false, true] {
            let (slow, fast) = (disk(LARGE, 512), disk(8 << 20, 512));
            let origin = slow.open().await.unwrap();
            write(&*origin, 0, &vec![1; LARGE as usize]).await;
            origin.flush().await.unwrap();
            let made = Options { format: true, ..options(Mode::Writeback, LARGE) };
            let part = CachePart::open(slow.clone(), fast.clone(), "slow", &made).await.unwrap();
            let handle = part.open().await.unwrap();
            // In the table the cache is authoritative for the first part, and the second part is clean.
            write(&*handle, 0, &[2; PART]).await;
            handle.flush().await.unwrap();
            read(&*handle, PART as u64, 512).await;
            runtime::sleep(Duration::from_millis(50)).await;
            assert_eq!(part.status().await["dirty_blocks"], 1, "it was written back");
            let (durable, fast_then) = (copy(&slow, 512).await, copy(&fast, 512).await);
            drop(handle);
            part.close().await.unwrap();

            let (slow, fast) = (copy(&durable, 512).await, fast_then);
            let slowed = faulty(slow, "flush delay=10s");
            let settle_every = Duration::from_secs(3600);
            let options = Options { settle_every, ..options(Mode::Writeback, LARGE) };
            let part = CachePart::open(slowed, fast.clone(), "slow", &options).await.unwrap();
            let handle = part.open().await.unwrap();
            let began = runtime::now();
            write(&*handle, LARGE - PART as u64, &[2; PART]).await;
            handle.discard(BlockRange::new(0, PART as u64 / 512)).await.unwrap();
            if !is_written {
                assert_eq!(read(&*handle, 0, 512).await, [0; 512]);
                runtime::sleep(Duration::from_millis(5)).await;
            }
            let commits = part.status().await["table_commits"].as_u64().unwrap();
            part.message("mode writethrough").await.unwrap();
            if is_written {
                write(&*handle, 0, &[3; PART]).await;
            }
            // The cleaner commits the last part to the table.
            until(&part, "table_commits", commits + 1).await;
            assert!(began.elapsed() < Duration::from_secs(1), "the origin was flushed");
            // Power cut: the origin loses everything that was not flushed, the cache nothing.
            let fast = copy(&fast, 512).await;
            drop(handle);
            part.close().await.unwrap();
            let part = CachePart::open(durable, fast, "slow", &options).await.unwrap();
            let handle = part.open().await.unwrap();
            let found = read(&*handle, 0, 512).await[0];
            let permitted = if is_written { [2, 0, 3] } else { [2, 0, 0] };
            assert!(permitted.contains(&found), "written {is_written}: an older version is there: {found}");
            drop(handle);
            part.close().await.unwrap();
        }
    })
    .unwrap();
}
