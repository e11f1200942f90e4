//! Grid of geometries: numbers of shards, zones and open zones, and sizes of requests. A log either works
//! with them, or the plan refuses it with the numbers.

use crate::life::{BLOCK, Version, stamped, version_of};
use block::{
    BlockCount, BlockIndex, BlockRange, BlockSize, Buffer, Device, DeviceGeometry, DevicePart, Durability,
};
use runtime::{Random, ShardIndex, Simulation};
use stack::{BuiltStack, Registry, Stack};
use std::rc::Rc;
use std::sync::Arc;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

fn registry() -> Registry {
    Registry::new(vec![&disks::file::KIND, &zones::on_device::KIND, &layers::stats::ZONES_KIND, &log::KIND])
}

/// Storage of a log, and its options.
#[derive(Debug, Clone, Copy)]
struct Line {
    shards: usize,
    zones: u64,
    zone_size: u64,
    /// Limits of open and of active zones; 0 for none.
    most_open: u64,
    /// Whether the log divides a device into zones by itself.
    on_device: bool,
    options: &'static str,
    /// Bytes of a request.
    request: u64,
    /// Most bytes to write in total.
    bytes: u64,
}

impl Line {
    fn text(&self) -> String {
        let Line { zone_size, most_open, options, .. } = self;
        let size = disk_size(self.zones, *zone_size);
        if self.on_device {
            return format!("log(file(/disk, size={size}), zone_size={zone_size}{options})");
        }
        format!(
            "log(zone-stats(zones(file(/disk, size={size}), zone_size={zone_size}, max_append=1MiB, max_open={most_open}, \
             max_active={most_open})){options})"
        )
    }

    /// Returns the problems of the plan; `None` if the plan accepts the log.
    fn refused(&self) -> Option<String> {
        let plan = Stack::from_line("line", &self.text(), &registry()).and_then(|stack| stack.check(true));
        plan.err().map(|problems| problems.to_string())
    }

    async fn build(&self, format: bool) -> BuiltStack {
        let plan = Stack::from_line("line", &self.text(), &registry()).and_then(|stack| stack.check(format));
        let plan = plan.unwrap_or_else(|problems| panic!("{self:?}: {problems}"));
        plan.build().await.unwrap_or_else(|error| panic!("{self:?}: {error}"))
    }
}

/// Smallest size of a device that is divided into `wanted` zones.
fn disk_size(wanted: u64, zone_size: u64) -> u64 {
    let zones = |bytes: u64| {
        let geometry = DeviceGeometry {
            block_size: BlockSize::new(4096).unwrap(),
            blocks: BlockCount(bytes >> 12),
            atomic_write: 4096,
            volatile_cache: true,
            read_only: false,
        };
        zones::on_device::geometry(&geometry, zone_size, MIB).map_or(0, |zones| u64::from(zones.zones))
    };
    let sizes = (0..4 * MIB / BLOCK as u64).map(|blocks| wanted * zone_size + blocks * BLOCK as u64);
    sizes.into_iter().find(|bytes| zones(*bytes) >= wanted).expect("superblocks take less than 4 MiB")
}

/// Blocks of one shard, with the version of each.
struct Stripe {
    first: u64,
    versions: Vec<Version>,
}

/// Writes, overwrites and discards blocks of a stripe, and reads all of it.
async fn drive(device: Rc<dyn Device>, line: Line, mut stripe: Stripe, seed: u64) -> Stripe {
    let mut random = Random::new(seed);
    let length = stripe.versions.len() as u64;
    let request = (line.request / BLOCK as u64).min(length);
    // First the stripe twice, then at random.
    let writes = (5 * length / request).min(line.bytes / line.shards as u64 / line.request).max(2);
    for number in 0..writes {
        let at = match (number * request) < 2 * length {
            true => (number * request % length).min(length - request),
            false => random.below(length - request + 1),
        };
        let version = seed * 1_000_000 + number + 1;
        let (place, blocks) = (stripe.first + at, at as usize..(at + request) as usize);
        if random.below(10) == 0 {
            device
                .discard(BlockRange::new(place, request))
                .await
                .unwrap_or_else(|error| panic!("{line:?}: {error}"));
            stripe.versions[blocks].fill(0);
        } else {
            let data = stamped(place, request, version).into();
            let written = device.write(BlockIndex(place), data, Durability::Visible).await;
            written.unwrap_or_else(|error| panic!("{line:?}: write {number} of {writes}: {error}"));
            stripe.versions[blocks].fill(version);
        }
    }
    device.flush().await.unwrap();
    check(&device, &line, &stripe).await;
    stripe
}

async fn check(device: &Rc<dyn Device>, line: &Line, stripe: &Stripe) {
    let count = stripe.versions.len() as u64;
    for at in (0..count).step_by(64) {
        let blocks = 64.min(count - at);
        let (outcome, buffer) =
            device.read(BlockIndex(stripe.first + at), Buffer::new(blocks as usize * BLOCK)).await;
        outcome.unwrap_or_else(|error| panic!("{line:?}: {error}"));
        for (bytes, number) in buffer.filled().chunks_exact(BLOCK).zip(at..) {
            let found = version_of(stripe.first + number, bytes).unwrap();
            assert_eq!(found, stripe.versions[number as usize], "{line:?}: block {}", stripe.first + number);
        }
    }
}

/// Drives the stripes of all shards concurrently.
async fn drive_all(top: &Arc<dyn DevicePart>, line: Line, stripes: Vec<Stripe>, seed: u64) -> Vec<Stripe> {
    let tasks = stripes.into_iter().enumerate().map(|(shard, stripe)| {
        let top = top.clone();
        runtime::spawn_on(ShardIndex(shard), move || async move {
            let device = top.open().await.unwrap();
            check(&device, &line, &stripe).await;
            drive(device, line, stripe, seed * 100 + shard as u64).await
        })
    });
    runtime::join_all(tasks).await.into_iter().map(|ended| ended.unwrap()).collect()
}

/// Creates a log, writes, closes and opens it, and writes more.
async fn works(line: Line) {
    let mut stripes = Vec::new();
    for epoch in 0..3 {
        let built = line.build(epoch == 0).await;
        let top = built.top().unwrap();
        let blocks = top.geometry().blocks.0;
        assert!(blocks > 0, "{line:?}");
        if epoch == 0 {
            let each = (blocks / line.shards as u64).min(2048);
            let stripe = |shard| Stripe { first: shard * each, versions: vec![0; each as usize] };
            stripes = (0..line.shards as u64).map(stripe).collect();
            stripes.retain(|stripe: &Stripe| !stripe.versions.is_empty());
        }
        stripes = drive_all(&top, line, stripes, epoch + 1).await;
        let status = built.status().await;
        if let Some(counted) = status["zones"].get("zone-stats1") {
            assert_eq!(counted["append"]["errors"], 0, "{line:?}: appends that failed");
        }
        drop(top);
        built.close().await.unwrap_or_else(|error| panic!("{line:?}: {error}"));
        if epoch < 2 {
            // The simulated file's contents survive the program: the next epoch opens it.
            runtime::sleep(std::time::Duration::from_secs(1)).await;
        }
    }
}

fn run(line: Line) -> Option<String> {
    if let Some(refused) = line.refused() {
        return Some(refused);
    }
    let world = Simulation::new(7).with_shards(line.shards);
    runtime::simulate(world, move || works(line)).unwrap_or_else(|error| panic!("{line:?}: {error}"));
    None
}

/// Fewest open zones of a log with the options of a line, as `kind.rs` computes them; found by trial.
fn fewest_open(line: Line) -> u64 {
    (1..100)
        .find(|most_open| Line { most_open: *most_open, ..line }.refused().is_none())
        .expect("less than 100")
}

fn fewest_zones(line: Line) -> u64 {
    (3..200).find(|zones| Line { zones: *zones, ..line }.refused().is_none()).expect("less than 200")
}

/// Runs lines with each combination of values that `is_wanted` accepts.
fn check_grid(shards: usize, bytes: u64, is_wanted: impl Fn(&Line) -> bool) {
    for options in
        ["", ", ack=buffer", ", appends_in_flight=1, cleaning=greedy, checkpoint_after=256KiB", ", shards=3"]
    {
        let line = Line {
            shards,
            zones: 256,
            zone_size: 256 * KIB,
            most_open: 0,
            on_device: false,
            options,
            request: 4 * KIB,
            bytes,
        };
        let fewest = fewest_zones(line);
        for (zones, zone_size) in [(fewest, 256 * KIB), (fewest + 6, 8 * MIB), (512, 64 * KIB)] {
            let open = fewest_open(Line { zones, zone_size, ..line });
            for (most_open, on_device) in [(open, false), (14, false), (0, false), (0, true)] {
                for request in [4 * KIB, 64 * KIB, 2 * MIB] {
                    let line = Line { zones, zone_size, most_open, on_device, request, ..line };
                    if !is_wanted(&line) {
                        continue;
                    }
                    println!("{line:?}");
                    let refused = run(line);
                    if most_open != 0 && most_open < open {
                        let told = format!("max_open={most_open}; expected 0 (no limit) or at least {open}");
                        assert!(
                            refused.as_ref().is_some_and(|error| error.contains(&told)),
                            "{line:?}: {refused:?}"
                        );
                    } else {
                        assert_eq!(refused, None, "{line:?}");
                    }
                }
            }
            let refused = Line { zones, zone_size, most_open: open - 1, ..line }.refused().unwrap();
            let told = format!("max_open={}; expected 0 (no limit) or at least {open}", open - 1);
            assert!(refused.contains(&told), "{refused}");
        }
        let refused = Line { zones: fewest - 1, ..line }.refused().unwrap();
        let told = format!("{} zones of ", fewest - 1);
        let needed = format!("expected at least {fewest} zones of this size");
        assert!(refused.contains(&told) && refused.contains(&needed), "{refused}");
    }
}

#[test]
fn a_log_works_on_every_geometry_or_is_refused_with_the_numbers() {
    // The longer test runs the other lines.
    for (number, shards) in [1, 4, 7, 32].into_iter().enumerate() {
        let is_wanted = |line: &Line| match line.options {
            "" => line.request == 64 * KIB && line.on_device == (number % 2 == 1) && line.most_open != 14,
            _ => {
                line.request == 4 * KIB
                    && line.most_open == 0
                    && line.on_device
                    && line.zone_size == 256 * KIB
            }
        };
        check_grid(shards, MIB, is_wanted);
    }
}

/// Runs all lines with `shards` shards.
fn check_all(shards: usize) {
    if !conformance::budget::is_left_out() {
        check_grid(shards, 8 * MIB, |_| true);
    }
}

#[test]
fn every_geometry_of_one_or_two_shards() {
    [1, 2].into_iter().for_each(check_all);
}

#[test]
fn every_geometry_of_three_or_four_shards() {
    [3, 4].into_iter().for_each(check_all);
}

#[test]
fn every_geometry_of_seven_shards() {
    check_all(7);
}

#[test]
fn every_geometry_of_eight_shards() {
    check_all(8);
}

#[test]
fn every_geometry_of_sixteen_shards() {
    check_all(16);
}

#[test]
fn every_geometry_of_thirty_two_shards() {
    check_all(32);
}
