//! Instructions per 4 KiB random write of the log over memory. Ignored: measured with an external tool.
//!
//! ```text
//! DEPTH=32 valgrind --tool=callgrind INTEGRATION_BINARY --ignored --exact log_cost::writes_over_ram
//! ```
//!
//! `WRITES` is the number of writes: the difference of two runs, divided by the difference of their numbers,
//! excludes the start. The volume is overwritten, so the cleaner runs; with `VOLUME` (in MiB) far below the
//! disk's size it finds zones without live blocks.
//!
//! `writes_of_shards_over_ram` has `SHARDS` threads with `DEPTH` clients each, and `HOMES` home shards.

use block::{BlockIndex, BlockSize, Data, Device, DevicePart, Durability, Part};
use log::kind::{Options, open};
use runtime::{Random, ShardIndex};
use std::rc::Rc;
use std::sync::Arc;

const DISK: u64 = 256 << 20;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().unwrap())
}

fn disk() -> Arc<dyn DevicePart> {
    Arc::new(disks::ram::RamPart::new(DISK, BlockSize::new(4096).unwrap()).unwrap())
}

async fn write_randomly(device: &Rc<dyn Device>, blocks: u64) {
    let (depth, writes) = (number("DEPTH", 32), number("WRITES", 20_000));
    let data = Data::copy_of(&[7; 4096]);
    let clients = (0..depth).map(|client| {
        let (device, data) = (device.clone(), data.clone());
        runtime::spawn(async move {
            let mut random = Random::new(client);
            for _ in 0..writes / depth {
                let at = BlockIndex(random.below(blocks));
                device.write(at, data.clone().into(), Durability::Visible).await.unwrap();
            }
        })
    });
    let cpu = runtime::thread_cpu_time();
    runtime::join_all(clients.collect::<Vec<_>>()).await;
    println!("{:?} CPU each", (runtime::thread_cpu_time() - cpu) / u32::try_from(writes).unwrap());
}

#[test]
#[ignore = "it is measured from outside"]
fn writes_over_ram() {
    let main = || async {
        let size = Some(number("VOLUME", 16) << 20);
        let options = Options { format: true, zone_size: Some(4 << 20), size, ..Options::default() };
        let part = open(disk(), &options).await.unwrap();
        let device = part.open().await.unwrap();
        write_randomly(&device, device.geometry().blocks.0).await;
        drop(device);
        println!("{:?}", part.status().await);
        part.close().await.unwrap();
    };
    runtime::run(runtime::Config::default(), main).unwrap();
}

/// Clients on all threads, so that most writes are sent to another one.
#[test]
#[ignore = "it is measured from outside"]
fn writes_of_shards_over_ram() {
    let (shards, homes) = (number("SHARDS", 2), number("HOMES", 2));
    let main = move || async move {
        let options = Options {
            format: true,
            zone_size: Some(1 << 20),
            size: Some(number("VOLUME", 16) << 20),
            shards: u32::try_from(homes).ok(),
            ..Options::default()
        };
        let part = Arc::new(open(disk(), &options).await.unwrap());
        let clients = (0..shards).map(|shard| {
            let part = part.clone();
            runtime::spawn_on(ShardIndex(shard as usize), move || async move {
                let device = part.open().await.unwrap();
                write_randomly(&device, device.geometry().blocks.0).await;
            })
        });
        runtime::join_all(clients.collect::<Vec<_>>()).await;
        part.close().await.unwrap();
    };
    runtime::run(runtime::Config::default().with_shards(shards as usize), main).unwrap();
}

#[test]
#[ignore = "it is measured from outside"]
fn writes_to_ram_alone() {
    let main = || async {
        let device = disk().open().await.unwrap();
        write_randomly(&device, (number("VOLUME", 16) << 20) / 4096).await;
    };
    runtime::run(runtime::Config::default(), main).unwrap();
}
