//! Discarding a huge range and deleting a snapshot are done in pieces: other requests run in between, and a
//! stop in the middle loses nothing.

use crate::life::{BLOCK, Volume, run, version_of};
use block::{BlockIndex, BlockRange, BlockSize, Buffer, Device, DevicePart, Durability, Part};
use log::kind::{Options, open};
use logkit::Owner;
use std::rc::Rc;
use std::sync::Arc;

/// Number of blocks in one piece here.
const AT_ONCE: u64 = 2048;
/// A read takes two turns of the executor, in each of which two lanes may commit a record.
const MAX: u64 = 4 * AT_ONCE;
/// Number of contiguous blocks of data; more than `MAX`.
const DENSE: u64 = 16384;

fn ram(mebibytes: u64) -> Arc<dyn DevicePart> {
    Arc::new(disks::ram::RamPart::new(mebibytes << 20, BlockSize::new(BLOCK as u64).unwrap()).unwrap())
}

async fn fill(device: &dyn Device, byte: u8) {
    for block in (0..DENSE).step_by(256) {
        let data = Buffer::copy_of(&vec![byte; 256 * BLOCK]).into();
        device.write(BlockIndex(block), data, Durability::Visible).await.unwrap();
    }
}

/// Reads the last block repeatedly until `work` has ended. Returns the number of reads, and the largest
/// decrease of live blocks between two of them.
async fn reads_beside(
    part: &log::LogPart,
    device: &Rc<dyn Device>,
    work: impl Future<Output = ()> + 'static,
) -> (u64, u64) {
    let core = part.home.get().unwrap();
    let last = BlockIndex(device.geometry().blocks.0 - 1);
    let work = runtime::spawn(work);
    let (mut reads, mut most, mut before) = (0, 0, core.kit().pool.live_data());
    while !work.is_finished() {
        let (outcome, buffer) = device.read(last, Buffer::new(BLOCK)).await;
        outcome.unwrap();
        assert!(buffer.filled().iter().all(|byte| *byte == 9));
        reads += 1;
        let now = core.kit().pool.live_data();
        most = most.max(before.saturating_sub(now));
        before = now;
        runtime::yield_now().await;
    }
    work.await;
    (reads, most)
}

/// A thin volume of 1 TiB on a small disk in memory, with dense and scattered data.
async fn tebibyte() -> (Arc<log::LogPart>, Rc<dyn Device>) {
    let options = Options {
        format: true,
        size: Some(1 << 40),
        zone_size: Some(1 << 20),
        blocks_at_once: AT_ONCE,
        ..Options::default()
    };
    let part = open(ram(256), &options).await.unwrap();
    let device = part.open().await.unwrap();
    fill(&*device, 1).await;
    let blocks = device.geometry().blocks.0;
    for block in (DENSE..blocks).step_by(1 << 18) {
        device.write(BlockIndex(block), Buffer::zeroed(BLOCK).into(), Durability::Visible).await.unwrap();
    }
    let last = Buffer::copy_of(&[9; BLOCK]).into();
    device.write(BlockIndex(blocks - 1), last, Durability::Visible).await.unwrap();
    (Arc::new(part), device)
}

#[test]
fn a_discard_of_a_tebibyte_lets_reads_through() {
    run(|| async {
        let (part, device) = tebibyte().await;
        let blocks = device.geometry().blocks.0;
        let discarded = device.clone();
        let (reads, most) = reads_beside(&part, &device, async move {
            discarded.discard(BlockRange::new(0, blocks - 1)).await.unwrap();
        })
        .await;
        println!("{reads} reads beside the discard, {most} blocks at once");
        // At least one turn per piece.
        assert!(3 * reads >= blocks / AT_ONCE, "{reads} reads");
        assert!(most > 0 && most <= MAX, "{most} blocks were discarded between two reads");
        assert_eq!(part.status().await["live_blocks"], 1);
        // Unmapped ranges cost a checkpoint nothing: only the 1024 scattered locations and the dense range
        // are dirty.
        assert!(
            part.status().await["dirty_pages"].as_u64().unwrap() < 2000,
            "{:?}",
            part.status().await["dirty_pages"]
        );
        drop(device);
        part.close().await.unwrap();
    });
}

#[test]
fn deleting_a_snapshot_of_a_tebibyte_lets_reads_through() {
    run(|| async {
        let (part, device) = tebibyte().await;
        let blocks = device.geometry().blocks.0;
        part.message("snapshot create before").await.unwrap();
        let both = part.status().await["live_blocks"].as_u64().unwrap();
        fill(&*device, 2).await;
        assert_eq!(part.status().await["live_blocks"], both + DENSE);
        let asked = part.clone();
        let (reads, most) = reads_beside(&part, &device, async move {
            asked.message("snapshot delete before").await.unwrap();
        })
        .await;
        println!("{reads} reads beside the deletion, {most} blocks at once");
        assert!(3 * reads >= blocks / AT_ONCE, "{reads} reads");
        assert!(most > 0 && most <= MAX, "{most} blocks were given up between two reads");
        assert_eq!(part.status().await["live_blocks"], both);
        drop(device);
        part.close().await.unwrap();
    });
}

/// A snapshot is half deleted when the log ends, or writes a checkpoint first, or both versions continue.
#[test]
fn a_deletion_that_is_stopped_in_the_middle_is_as_good_as_done() {
    for with_checkpoint in [false, true] {
        let disk = crate::life::disk(16);
        let options = Options { blocks_at_once: 8, ..crate::life::small() };
        let (first, made) = (options.clone(), disk.clone());
        let (model, live) = run(move || async move {
            let volume = Volume::make(&made, &first).await;
            let volume = Rc::new(volume);
            for block in (0..800).step_by(8) {
                volume.write(block, 8, 1).await;
            }
            volume.part.message("snapshot create before").await.unwrap();
            for block in (0..800).step_by(16) {
                volume.write(block, 8, 2).await;
            }
            let core = volume.part.home.get().unwrap();
            let before = core.kit().pool.live_data();
            let asked = volume.clone();
            let deletion =
                runtime::spawn(async move { asked.part.message("snapshot delete before").await.map(drop) });
            while before - core.kit().pool.live_data() < 100 {
                runtime::yield_now().await;
            }
            assert!(!deletion.is_finished() && before - core.kit().pool.live_data() < 400);
            // Blocks that only the snapshot had, that were shared, and that no version had.
            for (block, version) in [(700, 3), (708, 4), (900, 5)] {
                volume.write(block, 8, version).await;
            }
            volume.discard(720, 16).await;
            if with_checkpoint {
                volume.part.message("checkpoint").await.unwrap();
            }
            assert!(!deletion.is_finished(), "it was to end in the middle");
            let mut model: Vec<u64> =
                (0..volume.blocks()).map(|block| if block < 800 { 2 - block / 8 % 2 } else { 0 }).collect();
            for (block, version) in [(700, 3), (708, 4), (900, 5), (720, 0), (728, 0)] {
                model[block..block + 8].fill(version);
            }
            assert_eq!(volume.all().await, model);
            volume.flush().await;
            let live = model.iter().filter(|version| **version != 0).count() as u64;
            (model, live)
        });
        run(move || async move {
            let volume = Volume::open(&disk, &options).await;
            let core = volume.part.home.get().unwrap();
            assert_eq!(core.kit().pool.live_data(), live, "checkpoint {with_checkpoint}");
            drop(core);
            assert!(volume.part.message("snapshot delete before").await.is_err(), "it is gone");
            assert_eq!(volume.all().await, model, "checkpoint {with_checkpoint}");
            let bytes = volume.bytes(700, 1).await.unwrap();
            assert_eq!(version_of(700, &bytes), Ok(3));
            volume.close().await;
        });
    }
}
