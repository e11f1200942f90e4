//! Cost of the cache in simulated time and, in ignored tests, in real time:
//!
//! `cargo test --release --workspace cache_cost:: -- --ignored --nocapture --test-threads 1`

use block::{BlockIndex, BlockSize, Buffer, Data, Device, DevicePart, Durability, Part};
use cache::{CachePart, Mode, Options};
use layers::model::{ModelPart, profile};
use runtime::Random;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

const DEPTH: u64 = 32;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Load {
    Read,
    Write,
}

fn ram(bytes: u64) -> Arc<dyn DevicePart> {
    Arc::new(disks::ram::RamPart::new(bytes, BlockSize::default()).unwrap())
}

fn model(name: &str, bytes: u64) -> Arc<dyn DevicePart> {
    let profile = profile::known().unwrap().remove(name).unwrap();
    Arc::new(ModelPart::new(ram(bytes), name, profile, 1))
}

/// Runs random requests of 4 KiB in the first `blocks` blocks for `time`. Returns operations per second, and
/// CPU time of each.
async fn run(device: &Rc<dyn Device>, blocks: u64, load: Load, time: Duration) -> (f64, Duration) {
    let done = Rc::new(Cell::new(0_u64));
    let (begun, cpu) = (runtime::now(), runtime::thread_cpu_time());
    let data = Data::copy_of(&[7; 4096]);
    let clients = (0..DEPTH).map(|number| {
        let (device, done, data) = (device.clone(), done.clone(), data.clone());
        runtime::spawn(async move {
            let mut random = Random::new(number);
            let mut buffer = Buffer::new(4096);
            while begun.elapsed() < time {
                let at = BlockIndex(random.below(blocks));
                match load {
                    Load::Read => {
                        let (outcome, same) = device.read(at, buffer).await;
                        outcome.unwrap();
                        buffer = same;
                    }
                    Load::Write => {
                        device.write(at, data.clone().into(), Durability::Visible).await.unwrap();
                    }
                }
                done.set(done.get() + 1);
            }
        })
    });
    runtime::join_all(clients.collect::<Vec<_>>()).await;
    let count = done.get().max(1);
    let each = (runtime::thread_cpu_time() - cpu) / u32::try_from(count).unwrap();
    (count as f64 / begun.elapsed().as_secs_f64(), each)
}

fn on_a_shard<Fut: Future<Output = ()> + 'static>(main: impl FnOnce() -> Fut + Send) {
    runtime::run(runtime::Config::default(), main).unwrap();
}

#[test]
#[ignore = "it measures"]
fn cpu_of_an_operation_over_ram() {
    on_a_shard(|| async {
        let (blocks, time) = (16_384, Duration::from_millis(800));
        let alone = ram(128 << 20).open().await.unwrap();
        for mode in [Mode::Writeback, Mode::Writethrough] {
            let options = Options { format: true, mode, sequential_threshold: 0, ..Options::default() };
            let part = CachePart::open(ram(128 << 20), ram(160 << 20), "slow", &options).await.unwrap();
            let cached = part.open().await.unwrap();
            // Fills the cache with all blocks.
            for block in 0..blocks {
                cached
                    .write(BlockIndex(block), Data::copy_of(&[1; 4096]).into(), Durability::Visible)
                    .await
                    .unwrap();
            }
            for load in [Load::Read, Load::Write] {
                let mut costs: Vec<(i64, Duration, Duration)> = Vec::new();
                for _ in 0..3 {
                    let (_, with) = run(&cached, blocks, load, time).await;
                    let (_, without) = run(&alone, blocks, load, time).await;
                    costs.push((with.as_nanos() as i64 - without.as_nanos() as i64, with, without));
                }
                costs.sort_unstable();
                let (cost, with, without) = costs[1];
                println!("{mode:?}, {load:?}: {cost} ns each ({with:?} with the cache, {without:?} without)");
            }
            drop(cached);
            part.close().await.unwrap();
        }
    });
}

/// Random writes per second of the model of a solid-state device, alone and as the cache of a model of a
/// disk, during `time`.
async fn on_models(time: Duration) -> (f64, f64) {
    let blocks = 200_000;
    let alone = model("as2280p4u", 1 << 30).open().await.unwrap();
    let (before, _) = run(&alone, blocks, Load::Write, time).await;
    let options = Options { format: true, mode: Mode::Writeback, ..Options::default() };
    let (slow, fast) = (model("wd43purz", 1 << 30), model("as2280p4u", 1 << 30));
    let part = CachePart::open(slow, fast, "slow", &options).await.unwrap();
    let cached = part.open().await.unwrap();
    let (with, cpu) = run(&cached, blocks, Load::Write, time).await;
    println!("{before:.0} IOPS alone, {with:.0} with the cache: {:.4} ({cpu:?} CPU each)", with / before);
    println!("{:?}", part.status().await);
    // The cache isn't closed: write-back to the model of the disk would take long.
    (before, with)
}

/// Simulated time, in which only the devices take any.
#[test]
fn random_writes_on_models_go_as_fast_as_the_cache_device() {
    let simulation = runtime::Simulation { trace_lines: 0, ..runtime::Simulation::new(1) };
    let simulated = runtime::simulate(simulation, || on_models(Duration::from_secs(2)));
    let (before, with) = simulated.unwrap().value;
    assert!(with >= 0.99 * before, "{with} IOPS with the cache, {before} alone");
}

#[test]
#[ignore = "it measures"]
fn random_writes_on_models_in_real_time() {
    on_a_shard(|| async {
        let mut ratios = Vec::new();
        for _ in 0..3 {
            let (before, with) = on_models(Duration::from_secs(3)).await;
            ratios.push(with / before);
        }
        ratios.sort_by(f64::total_cmp);
        println!("median {:.4}", ratios[1]);
    });
}
