//! Instructions per 4 KiB random write of the log over memory. Ignored: measured with an external tool.
//!
//! ```text
//! DEPTH=32 valgrind --tool=callgrind INTEGRATION_BINARY --ignored --exact log_cost::writes_over_ram
//! ```
//!
//! `WRITES` is the number of writes: the difference of two runs, divided by the difference of their numbers,
//! excludes the start. The volume is overwritten, so the cleaner runs; with `VOLUME` (in MiB) far below the
//! disk's size it finds zones without live blocks.

use block::{BlockIndex, BlockSize, Data, Device, DevicePart, Durability, Part};
use log::kind::{Options, open};
use runtime::Random;
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

#[test]
#[ignore = "it is measured from outside"]
fn writes_to_ram_alone() {
    let main = || async {
        let device = disk().open().await.unwrap();
        write_randomly(&device, (number("VOLUME", 16) << 20) / 4096).await;
    };
    runtime::run(runtime::Config::default(), main).unwrap();
}
