//! The key-value store in simulated worlds: several clients, faults, power cuts at any time (also while it is
//! opened, formatted or closed), checked against a model.

use block::{BlockSize, Result};
use kv::{DeletePersistence, Settings, Store};
use runtime::Random;
use siltstone_tests::engine::device::Stamp;
use siltstone_tests::key_value::KeysDevice;
use siltstone_tests::worlds::{Disks, File, Life, Subject, World, keeps_its_promises, pick, stamped};
use std::sync::Arc;
use std::time::Duration;

/// As many as take about a minute on two quiet cores.
const USUAL_SEEDS: u64 = 300;
const STAMP: Stamp = Stamp { offset: 8, contents: |block, number| stamped(4096, block, 1, number) };

/// Setup of the store, constant over all lives of a seed.
#[derive(Debug, Clone)]
struct Setup {
    disk_bytes: u64,
    sector: u64,
    zone_size: u64,
    shards: usize,
    keys: u64,
    value_bytes: usize,
    settings: Settings,
}

impl Subject for Setup {
    type Part = KeysDevice;
    type Memory = ();

    fn draw(random: &mut Random) -> Self {
        let names = ["saturation", "fade", "zap"];
        let settings = Settings {
            shards: Some(pick(random, &[1, 1, 2])),
            buffer_bytes: pick(random, &[4 << 10, 16 << 10]),
            table_bytes: pick(random, &[4 << 10, 16 << 10]),
            level_bytes: 16 << 10,
            multiplier: 2,
            cache_bytes: pick(random, &[0, 64 << 10]),
            level0_tables: pick(random, &[1, 2, 4]),
            compaction: pick(random, &names).to_owned(),
            placement: pick(random, &["lifetime", "zap"]).to_owned(),
            delete_persistence: pick(
                random,
                &[None, Some(DeletePersistence::Time(Duration::from_millis(200)))],
            ),
            erase: block::EraseGuarantee::None,
            ..Settings::default()
        };
        let has_deadline = settings.delete_persistence.is_some();
        let settings = match settings.compaction.as_str() {
            "saturation" if has_deadline => Settings { compaction: "zap".to_owned(), ..settings },
            _ => settings,
        };
        // A write of several records must belong to one shard.
        let longest = if settings.shards == Some(1) { 10_000 } else { 3000 };
        let value_bytes = pick(random, &[8, 200, 3000, longest]);
        // There is space for all writes in flight.
        let disk_bytes = if value_bytes > 3000 { 4 << 20 } else { pick(random, &[2 << 20, 4 << 20]) };
        Setup {
            disk_bytes,
            sector: pick(random, &[512, 4096]),
            zone_size: pick(random, &[48 << 10, 64 << 10]),
            shards: pick(random, &[1, 2]),
            // Merges need space besides the live data.
            keys: pick(random, &[4, 40, 400]).min(disk_bytes / 16 / value_bytes as u64),
            value_bytes,
            settings,
        }
    }

    fn files(&self) -> Vec<File> {
        vec![File { path: "/disk", bytes: self.disk_bytes, sector: self.sector }]
    }

    fn shards(&self) -> usize {
        self.shards
    }

    async fn open(&self, disks: &Disks, life: &Life) -> Result<Arc<KeysDevice>> {
        let zone_size = life.format.then_some(self.zone_size);
        let on_device = zones::on_device::Options { format: life.format, zone_size, ..Default::default() };
        let zones = Arc::new(zones::OnDevice::open(disks.open(0).await?, on_device).await?);
        let store = match life.format {
            true => Store::format(zones, &self.settings).await?,
            false => Store::open(zones, &self.settings).await?,
        };
        debug_assert_eq!(BlockSize::default().bytes(), 4096);
        Ok(Arc::new(KeysDevice::new(store, self.keys, self.value_bytes, STAMP)))
    }

    fn closes_durably(&self) -> bool {
        true
    }

    fn is_ordered(&self, _life: &Life) -> bool {
        self.settings.shards == Some(1)
    }

    async fn opened(_world: &World<Self>, part: &KeysDevice) -> Result<(), String> {
        part.check_scan().await.map_err(|error| error.to_string())
    }

    async fn ended(_world: &World<Self>, part: &KeysDevice) -> Result<(), String> {
        part.check_scan().await.map_err(|error| error.to_string())
    }
}

#[test]
fn keys_keep_their_promises_in_simulated_worlds() {
    keeps_its_promises::<Setup>(1, USUAL_SEEDS);
}
