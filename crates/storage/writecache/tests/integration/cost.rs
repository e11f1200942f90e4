//! Instructions per 4 KiB random write at depth 32 with continuous write-back. Ignored: an external tool
//! measures it.
//!
//! ```text
//! valgrind --tool=callgrind INTEGRATION_BINARY --ignored --exact writecache_cost::writes_over_ram
//! ```
//!
//! `WRITES` is the number of writes. The difference of two runs, divided by the difference of their numbers,
//! leaves out the start.

use block::{BlockIndex, BlockSize, Data, Device, DevicePart, Durability, Part};
use runtime::Random;
use std::rc::Rc;
use std::sync::Arc;
use writecache::{Options, WriteCachePart};

const DEPTH: u64 = 32;
const ORIGIN: u64 = 256 << 20;
const CACHE: u64 = 64 << 20;

fn ram(bytes: u64) -> Arc<dyn DevicePart> {
    Arc::new(disks::ram::RamPart::new(bytes, BlockSize::new(4096).unwrap()).unwrap())
}

fn writes() -> u64 {
    std::env::var("WRITES").map_or(20_000, |writes| writes.parse().unwrap())
}

async fn write_randomly(device: &Rc<dyn Device>) {
    let data = Data::copy_of(&[7; 4096]);
    let clients = (0..DEPTH).map(|number| {
        let (device, data) = (device.clone(), data.clone());
        runtime::spawn(async move {
            let mut random = Random::new(number);
            for _ in 0..writes() / DEPTH {
                let at = BlockIndex(random.below(ORIGIN / 4096));
                device.write(at, data.clone().into(), Durability::Visible).await.unwrap();
            }
        })
    });
    runtime::join_all(clients.collect::<Vec<_>>()).await;
}

/// The origin, written completely once, so that its memory is already allocated.
async fn origin() -> Arc<dyn DevicePart> {
    let (part, data) = (ram(ORIGIN), Data::copy_of(&[1; 1 << 20]));
    let device = part.open().await.unwrap();
    for at in (0..ORIGIN / 4096).step_by(256) {
        device.write(BlockIndex(at), data.clone().into(), Durability::Visible).await.unwrap();
    }
    part
}

fn on_a_shard<Fut: Future<Output = ()> + 'static>(main: impl FnOnce() -> Fut + Send) {
    runtime::run(runtime::Config::default(), main).unwrap();
}

#[test]
#[ignore = "it is measured from outside"]
fn writes_over_ram() {
    on_a_shard(|| async {
        let part =
            WriteCachePart::open(origin().await, ram(CACHE), Options { format: true, ..Options::default() });
        let part = part.await.unwrap();
        let device = part.open().await.unwrap();
        let cpu = runtime::thread_cpu_time();
        write_randomly(&device).await;
        let each = (runtime::thread_cpu_time() - cpu) / u32::try_from(writes()).unwrap();
        drop(device);
        let status = part.status().await;
        part.close().await.unwrap();
        println!("{each:?} CPU each; {status:?}");
    });
}

#[test]
#[ignore = "it is measured from outside"]
fn writes_to_ram_alone() {
    on_a_shard(|| async {
        let device = origin().await.open().await.unwrap();
        let cpu = runtime::thread_cpu_time();
        write_randomly(&device).await;
        println!("{:?} CPU each", (runtime::thread_cpu_time() - cpu) / u32::try_from(writes()).unwrap());
    });
}
