//! Pace of the cleaner: users' writes find free zones, and cleaning early costs next to nothing.
//!
//! Runs on a disk in memory with fixed seeds. `-- --nocapture` prints the counts.

use block::{BlockIndex, BlockSize, Buffer, Device, DevicePart, Durability, Error, Part};
use log::kind::{Options, open};
use runtime::Random;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const BLOCK: usize = 4096;
const DISK: u64 = 256 << 20;
const ZONE: u64 = 1 << 20;
const DEPTH: u64 = 16;

/// Counts of a measurement.
#[derive(Debug)]
struct Counted {
    user: u64,
    moved: u64,
    waits: u64,
    zones: u64,
}

impl Counted {
    fn amplification(&self) -> f64 {
        1.0 + self.moved as f64 / self.user as f64
    }
}

fn disk() -> Arc<dyn DevicePart> {
    Arc::new(disks::ram::RamPart::new(DISK, BlockSize::new(BLOCK as u64).unwrap()).unwrap())
}

/// Overwrites `blocks` blocks at random, `DEPTH` at a time.
async fn overwrite(device: &Rc<dyn Device>, blocks: u64, seed: u64) {
    let clients = (0..DEPTH).map(|client| {
        let device = device.clone();
        runtime::spawn(async move {
            let mut random = Random::new(seed * DEPTH + client);
            for _ in 0..blocks / DEPTH {
                let block = BlockIndex(random.below(device.geometry().blocks.0));
                let data = Buffer::zeroed(BLOCK).into();
                device.write(block, data, Durability::Visible).await?;
            }
            Ok::<(), Error>(())
        })
    });
    for outcome in runtime::join_all(clients.collect::<Vec<_>>()).await {
        outcome.unwrap();
    }
}

/// Fills a volume of 80 % of the available space, overwrites it for long, and then counts.
fn steady(options: Options) -> Counted {
    let counted = runtime::run(runtime::Config::default(), move || async move {
        let options = Options { format: true, zone_size: Some(ZONE), ..options };
        // Without `size`, the volume takes 90 %.
        let most = open(disk(), &options).await.unwrap();
        let size = most.geometry().blocks.0 * 8 / 9 * BLOCK as u64;
        most.close().await.unwrap();
        let part = open(disk(), &Options { size: Some(size), ..options }).await.unwrap();
        let device = part.open().await.unwrap();
        let blocks = device.geometry().blocks.0;
        for block in (0..blocks).step_by(32) {
            let count = 32.min(blocks - block) as usize;
            let data = Buffer::zeroed(count * BLOCK).into();
            device.write(BlockIndex(block), data, Durability::Visible).await.unwrap();
        }
        overwrite(&device, 2 * blocks, 1).await;
        let counters = part.counters().clone();
        let values = || {
            let all =
                [&counters.user_blocks, &counters.moved_blocks, &counters.zone_waits, &counters.reset_zones];
            all.map(|counter: &AtomicU64| counter.load(Ordering::Relaxed))
        };
        let before = values();
        overwrite(&device, blocks, 2).await;
        let after = values();
        let [user, moved, waits, zones] = std::array::from_fn(|at| after[at] - before[at]);
        drop(device);
        part.close().await.unwrap();
        Counted { user, moved, waits, zones }
    });
    counted.unwrap()
}

#[test]
fn in_steady_state_users_find_free_zones() {
    // Write amplification of greedy with a cleaner at full speed whenever fewer than `high` zones were free.
    let before = 2.98;
    let policies = if conformance::budget::is_long() { &["greedy", "lifetime"][..] } else { &["greedy"] };
    for cleaning in policies {
        let counted = steady(Options { cleaning: (*cleaning).to_owned(), ..Options::default() });
        println!("{cleaning}: write amplification {:.2}, {counted:?}", counted.amplification());
        assert!(counted.amplification() < before * 1.05, "{cleaning}: {:.2}", counted.amplification());
        assert!(
            counted.waits * 50 < counted.zones,
            "{cleaning}: {} waits, {} zones",
            counted.waits,
            counted.zones
        );
    }
}

/// A higher watermark keeps more zones free, and costs more moves.
#[test]
fn marks_are_kept() {
    if conformance::budget::is_left_out() {
        return;
    }
    let with = |high_watermark| {
        steady(Options { high_watermark, cleaning: "greedy".to_owned(), ..Options::default() })
    };
    let (usual, high) = (with(1.0), with(12.0));
    println!("{usual:?}, {high:?}");
    assert!(high.amplification() > usual.amplification() * 1.1);
}
