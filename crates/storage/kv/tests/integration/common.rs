//! Stores on zones in memory, and simulated runs.

use block::ZonesPart;
use kv::{Settings, Store};
use std::sync::Arc;
use zns::{Shape, Zns};

/// Runs `main` on `shards` simulated shards.
pub fn simulate<F: Future<Output = ()> + 'static>(
    seed: u64,
    shards: usize,
    main: impl FnOnce() -> F + Send + 'static,
) {
    let world = runtime::Simulation { shards, ..runtime::Simulation::new(seed) };
    runtime::simulate(world, main).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
}

/// An emulated drive in memory with `count` zones of 1 MiB and a capacity of 768 KiB each.
pub fn drive(count: u32) -> Arc<Zns> {
    let shape = Shape {
        zones: count,
        zone_size: 1 << 20,
        zone_capacity: 768 << 10,
        seed: Some(5),
        ..Shape::default()
    };
    Arc::new(Zns::in_memory(&shape, zns::Settings::default()).unwrap())
}

/// An emulated drive in memory with `count` zones of `zone_size` bytes and at most `most_open` open ones; 0
/// is unlimited.
pub fn limited_drive(count: u32, zone_size: u64, most_open: u32) -> Arc<dyn ZonesPart> {
    let shape =
        Shape { zones: count, zone_size, zone_capacity: zone_size, seed: Some(5), ..Shape::default() };
    let settings = zns::Settings { max_open: most_open, max_active: most_open, ..zns::Settings::default() };
    Arc::new(Zns::in_memory(&shape, settings).unwrap())
}

/// A drive as zones.
pub fn zones(count: u32) -> Arc<dyn ZonesPart> {
    drive(count)
}

/// Settings with small buffers and tables, so that little data fills many levels.
pub fn small() -> Settings {
    Settings {
        buffer_bytes: 64 << 10,
        table_bytes: 32 << 10,
        level_bytes: 96 << 10,
        multiplier: 4,
        cache_bytes: 256 << 10,
        ..Settings::default()
    }
}

/// Formats a store.
pub async fn format(zones: &Arc<dyn ZonesPart>, settings: &Settings) -> Store {
    Store::format(zones.clone(), settings).await.unwrap().on_lent_zones()
}

/// Opens the store on these zones.
pub async fn open(zones: &Arc<dyn ZonesPart>, settings: &Settings) -> Store {
    Store::open(zones.clone(), settings).await.unwrap().on_lent_zones()
}
