//! A copy is made again while pages are rewritten.

use crate::model::simulate;
use crate::node::{TestNode, config};
use block::{BlockCount, BlockIndex, BlockRange, Buffer, Device, DevicePart, Durability, Part, Payload};
use remote::{Config, RemotePart};
use runtime::Random;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Pages of a block that can't be compressed.
const BLOCK_PAGES: u64 = 252;

fn page(number: u64, version: u64) -> Vec<u8> {
    let mut random = Random::new(number << 8 | version);
    let mut bytes = vec![0; 4096];
    random.fill(&mut bytes);
    bytes
}

async fn write(device: &Rc<dyn Device>, number: u64, version: u64) {
    let payload: Payload = block::Data::copy_of(&page(number, version)).into();
    device.write(BlockIndex(number), payload, Durability::Visible).await.unwrap();
}

/// One of two copies lacks a block, unknown to the device, and the node of the other copy reclaims its
/// memory. While that copy is made again from the first one, pages of blocks that were already read are
/// rewritten: missing pages must not be mistaken for stale ones.
#[test]
fn the_only_complete_copy_is_not_released_while_pages_are_rewritten() {
    for seed in 0..4 {
        simulate(seed, move || async move {
            let nodes = [TestNode::new(100), TestNode::new(100), TestNode::new(100)];
            let config = Config { copies: 2, group: 8 << 20, ..config(&nodes) };
            let part = RemotePart::open(config).await.unwrap();
            let device = part.open().await.unwrap();
            // All pages go to the first two nodes.
            nodes[2].controls.reclaim.store(1, Relaxed);
            runtime::sleep(Duration::from_secs(1)).await;
            let pages = 8 * BLOCK_PAGES;
            for number in 0..pages {
                // The write of block 5 begins with the first page of block 6.
                nodes[1].controls.loses_writes.store(number / BLOCK_PAGES == 6, Relaxed);
                write(&device, number, 0).await;
                if number % BLOCK_PAGES < 2 {
                    // The previous block is written to the nodes meanwhile.
                    runtime::sleep(Duration::from_millis(50)).await;
                }
            }
            nodes[1].controls.loses_writes.store(false, Relaxed);
            // More pages than local memory holds. After the discard only the group of the first pages is
            // left.
            let others = BlockRange { start: BlockIndex(4096), count: BlockCount(24 * BLOCK_PAGES) };
            for number in others.start.0..others.end().0 {
                write(&device, number, 0).await;
            }
            device.discard(others).await.unwrap();
            runtime::sleep(Duration::from_secs(5)).await;
            nodes[0].controls.delay.store(30_000, Relaxed);
            nodes[1].controls.delay.store(20_000, Relaxed);
            for number in 0..20 {
                let (outcome, _) = device.read(BlockIndex(number * 10), Buffer::new(4096)).await;
                outcome.unwrap();
            }
            let read = async || part.status().await["node_read_bytes"].as_u64().unwrap();
            let before = read().await;
            nodes[0].controls.reclaim.store(1, Relaxed);
            nodes[2].controls.reclaim.store(0, Relaxed);
            while read().await < before + ((2 + seed) << 20) {
                runtime::sleep(Duration::from_millis(1)).await;
            }
            // The first blocks have been read by now.
            let mut versions = vec![0; pages as usize];
            for number in 0..2 * BLOCK_PAGES {
                versions[number as usize] = 1;
                write(&device, number, 1).await;
            }
            runtime::sleep(Duration::from_secs(30)).await;
            for (number, version) in (0..pages).zip(versions) {
                let (outcome, found) = device.read(BlockIndex(number), Buffer::new(4096)).await;
                outcome.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
                assert!(*found.filled() == page(number, version), "seed {seed}, page {number}");
            }
            part.close().await.unwrap();
        });
    }
}

/// One copy of each group lacks pages, and the node of the other one doesn't answer: these pages can't be
/// moved, and aren't lost. The groups are read again with growing pauses, not in every pass.
#[test]
fn groups_that_lack_pages_of_an_unreachable_copy_are_read_again_with_growing_pauses() {
    simulate(31, || async {
        let nodes = [TestNode::new(100), TestNode::new(100), TestNode::new(100)];
        let part = RemotePart::open(Config { copies: 2, ..config(&nodes) }).await.unwrap();
        let device = part.open().await.unwrap();
        nodes[2].controls.reclaim.store(1, Relaxed);
        runtime::sleep(Duration::from_secs(1)).await;
        let pages = 60 * BLOCK_PAGES;
        for number in 0..pages {
            write(&device, number, 0).await;
        }
        runtime::sleep(Duration::from_secs(5)).await;
        nodes[1].controls.is_dead.store(true, Relaxed);
        nodes[0].restart().await;
        nodes[2].controls.reclaim.store(0, Relaxed);
        runtime::sleep(Duration::from_secs(60)).await;
        let read = async || part.status().await["node_read_bytes"].as_u64().unwrap();
        let before = read().await;
        runtime::sleep(Duration::from_secs(60)).await;
        let read = (read().await - before) >> 20;
        // Each group is read a few times in a pass.
        assert!(read < 60 * 50, "{read} MiB were read");
        assert_eq!(part.status().await["lost_pages"], 0);
        // Once the copy is reachable, nothing waits for the pause.
        nodes[1].controls.is_dead.store(false, Relaxed);
        runtime::sleep(Duration::from_secs(5)).await;
        for number in 0..pages {
            let (outcome, found) = device.read(BlockIndex(number), Buffer::new(4096)).await;
            outcome.unwrap();
            assert!(*found.filled() == page(number, 0), "page {number}");
        }
        part.close().await.unwrap();
    });
}
