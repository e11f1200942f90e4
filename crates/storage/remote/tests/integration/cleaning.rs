//! The cleaner at zones that can't be emptied.

use crate::model::{settle, simulate};
use crate::node::{TestNode, config};
use block::{BlockCount, BlockIndex, BlockRange, Buffer, Device, DevicePart, Durability, Part, Payload};
use remote::{Config, RemotePart};
use runtime::Random;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Pages of a block that can't be compressed.
const BLOCK_PAGES: u64 = 252;
/// The block that one node lacks.
const LACKED: u64 = 3;

fn page(number: u64) -> Vec<u8> {
    let mut random = Random::new(number);
    let mut bytes = vec![0; 4096];
    random.fill(&mut bytes);
    bytes
}

async fn write(device: &Rc<dyn Device>, number: u64) {
    let payload: Payload = block::Data::copy_of(&page(number)).into();
    device.write(BlockIndex(number), payload, Durability::Visible).await.unwrap();
}

/// The node that is up lacks a block, and the other copy's node is down: no pass moves the live pages of that
/// zone, and they aren't lost. Few zones are free, so the cleaner would choose that zone again and again.
#[test]
fn a_zone_whose_pages_cannot_be_moved_is_not_chosen_again_at_once() {
    simulate(61, || async {
        let nodes = [TestNode::new(40), TestNode::new(40)];
        let size = Some(60 << 20);
        let config = Config { copies: 2, size, may_overcommit: true, ..config(&nodes) };
        let part = RemotePart::open(config).await.unwrap();
        let device = part.open().await.unwrap();
        for number in 0..36 * BLOCK_PAGES {
            // A block is written to the nodes when the next one has been opened.
            nodes[0].controls.loses_writes.store(number / BLOCK_PAGES == LACKED + 1, Relaxed);
            write(&device, number).await;
            if number % BLOCK_PAGES < 2 {
                runtime::sleep(Duration::from_millis(50)).await;
            }
        }
        nodes[1].controls.is_dead.store(true, Relaxed);
        settle().await;
        nodes[0].controls.delay.store(10_000, Relaxed);
        let read = async || part.status().await["node_read_bytes"].as_u64().unwrap();
        let before = read().await;
        let discarded = BlockRange { start: BlockIndex(LACKED * BLOCK_PAGES), count: BlockCount(20) };
        device.discard(discarded).await.unwrap();
        runtime::sleep(Duration::from_secs(8)).await;
        let blocks = (read().await - before) >> 20;
        assert!((1..10).contains(&blocks), "{blocks} blocks were read in 8 s");
        // The pages are still there when the other node answers again.
        nodes[1].controls.is_dead.store(false, Relaxed);
        settle().await;
        for number in discarded.end().0..36 * BLOCK_PAGES {
            let (outcome, found) = device.read(BlockIndex(number), Buffer::new(4096)).await;
            outcome.unwrap_or_else(|error| panic!("page {number}: {error}"));
            assert!(*found.filled() == page(number), "page {number}");
        }
        part.close().await.unwrap();
    });
}
