//! The counters of `engine`, the smallest owner of a log, in simulated worlds: several clients, faults, power
//! cuts at any time (also while they are opened, formatted or closed), checked against a model.

use block::Result;
use runtime::Random;
use siltstone_tests::engine::device::{CountersDevice, Stamp};
use siltstone_tests::engine::{Counters, Options};
use siltstone_tests::worlds::{Disks, File, Life, Subject, World, keeps_its_promises, pick, stamped};
use std::sync::Arc;

/// As many as take about a minute on two quiet cores.
const USUAL_SEEDS: u64 = 400;
const STAMP: Stamp = Stamp { offset: 8, contents: |block, number| stamped(4096, block, 1, number) };

/// Setup of the counters, constant over all lives of a seed.
#[derive(Debug, Clone)]
struct Setup {
    disk_bytes: u64,
    sector: u64,
    zone_size: u64,
    shards: usize,
    options: Options,
}

impl Subject for Setup {
    type Part = CountersDevice;
    type Memory = ();

    fn draw(random: &mut Random) -> Self {
        let (disk_bytes, zone_size) =
            (pick(random, &[1 << 20, 2 << 20]), pick(random, &[32 << 10, 48 << 10]));
        let options = Options {
            counters: pick(random, &[1, 8, 20]),
            shards: pick(random, &[1, 2]),
            checkpoint_blocks: pick(random, &[4, 16, 1 << 20]),
            erase: false,
            check_sums: random.below(2) == 0,
            prepare_zones: random.below(2) == 0,
            broken: None,
        };
        Setup {
            disk_bytes,
            sector: pick(random, &[512, 4096]),
            zone_size,
            shards: pick(random, &[1, 2]),
            options,
        }
    }

    fn files(&self) -> Vec<File> {
        vec![File { path: "/disk", bytes: self.disk_bytes, sector: self.sector }]
    }

    fn shards(&self) -> usize {
        self.shards
    }

    async fn open(&self, disks: &Disks, life: &Life) -> Result<Arc<CountersDevice>> {
        let zone_size = life.format.then_some(self.zone_size);
        let on_device = zones::on_device::Options { format: life.format, zone_size, ..Default::default() };
        let zones = Arc::new(zones::OnDevice::open(disks.open(0).await?, on_device).await?);
        let counters = match life.format {
            true => Counters::format(zones, self.options).await?,
            false => Counters::open(zones, self.options).await?,
        };
        Ok(Arc::new(CountersDevice::new(counters, STAMP)))
    }

    fn closes_durably(&self) -> bool {
        true
    }

    fn is_ordered(&self, _life: &Life) -> bool {
        self.options.shards == 1
    }

    async fn opened(_world: &World<Self>, part: &CountersDevice) -> Result<(), String> {
        part.counters().check_counts().await.map_err(|error| error.to_string())
    }

    async fn ended(_world: &World<Self>, part: &CountersDevice) -> Result<(), String> {
        part.counters().check_counts().await.map_err(|error| error.to_string())
    }
}

#[test]
fn counters_keep_their_promises_in_simulated_worlds() {
    keeps_its_promises::<Setup>(1, USUAL_SEEDS);
}
