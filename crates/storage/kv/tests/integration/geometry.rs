//! Grid of geometries: with each number of shards, zones and open zones a store works, or is refused with the
//! numbers.

use super::common::{format, limited_drive, open, simulate, small};
use block::{BlockSize, DevicePart, ZonesPart};
use disks::ram::RamPart;
use kv::{Acknowledge, Settings, Store};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Number of concurrent writers.
const WRITERS: u32 = 4;
/// Maximum number of keys per writer.
const MAX_KEYS: u32 = 300;
const MIB: u64 = 1 << 20;

/// A geometry and a workload.
#[derive(Debug, Clone, Copy)]
struct Line {
    shards: u16,
    zones: u32,
    zone_size: u64,
    most_open: u32,
    value: usize,
    /// Total bytes that are written.
    bytes: u64,
    acknowledge: Acknowledge,
}

impl Line {
    /// Number of keys per writer: values take up to a twelfth of the zones, since a store with the minimum
    /// number of zones has about 3 for data.
    fn keys(&self) -> u32 {
        let fit = u64::from(self.zones) * self.zone_size / 12 / self.value as u64 / u64::from(WRITERS);
        fit.clamp(1, u64::from(MAX_KEYS)) as u32
    }

    fn settings(&self) -> Settings {
        Settings {
            shards: Some(self.shards),
            acknowledge: self.acknowledge,
            buffer_bytes: u64::from(self.shards) * (64 << 10),
            ..small()
        }
    }
}

fn key(writer: u32, number: u32) -> Vec<u8> {
    format!("key {writer} {number:05}").into_bytes()
}

fn value(line: &Line, number: u32, round: u32) -> Vec<u8> {
    let mut value = format!("{number} {round} ").into_bytes();
    // Incompressible values.
    let mut state = u64::from(number) << 32 | u64::from(round) | 1;
    while value.len() < line.value {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        value.extend_from_slice(&state.to_le_bytes());
    }
    value.truncate(line.value);
    value
}

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// Writes, overwrites and deletes keys of one writer; a tenth of the writes are deletes.
async fn write(store: &Store, line: Line, writer: u32, first: u32) -> Model {
    let mut model = Model::new();
    let writes = line.bytes / line.value as u64 / u64::from(WRITERS);
    for (at, number) in (first..).zip(0..writes as u32) {
        let name = key(writer, number.wrapping_mul(7919) % line.keys());
        match number % 10 {
            9 => {
                store.delete(&name).await.unwrap_or_else(|error| panic!("{line:?}: {error}"));
                model.remove(&name);
            }
            _ => {
                let value = value(&line, number, at);
                store.put(&name, &value).await.unwrap_or_else(|error| panic!("{line:?}: {error}"));
                model.insert(name, value);
            }
        }
    }
    model
}

async fn write_all(store: &Store, line: Line, first: u32) -> Model {
    let writers = (0..WRITERS).map(|writer| {
        let store = store.clone();
        runtime::spawn(async move { write(&store, line, writer, first).await })
    });
    runtime::join_all(writers.collect::<Vec<_>>()).await.into_iter().flatten().collect()
}

async fn check(store: &Store, line: &Line, model: &Model) {
    for writer in 0..WRITERS {
        for number in 0..line.keys() {
            let name = key(writer, number);
            let found = store.get(&name).await.unwrap().map(|stored| stored.value);
            assert!(found.as_ref() == model.get(&name), "{line:?}: key {name:?}");
        }
    }
}

/// Formats, writes, closes and reopens a store; returns the error if it was refused.
async fn drive(zones: &Arc<dyn ZonesPart>, line: Line) -> Option<String> {
    let store = match Store::format(zones.clone(), &line.settings()).await {
        Ok(store) => store.on_lent_zones(),
        Err(error) => return Some(error.to_string()),
    };
    let model = write_all(&store, line, 0).await;
    check(&store, &line, &model).await;
    store.close().await.unwrap();
    let store = Store::open(zones.clone(), &line.settings()).await.unwrap().on_lent_zones();
    check(&store, &line, &model).await;
    let newer = write_all(&store, line, 1000).await;
    store.flush_buffers().await.unwrap();
    check(&store, &line, &newer).await;
    store.close().await.unwrap();
    None
}

fn run(line: Line) -> Option<String> {
    let refused = std::sync::Arc::new(std::sync::Mutex::new(None));
    let told = refused.clone();
    simulate(7, 2, move || async move {
        let zones = limited_drive(line.zones, line.zone_size, line.most_open);
        let outcome = drive(&zones, line).await;
        *told.lock().unwrap() = outcome;
    });
    refused.lock().unwrap().take()
}

/// Minimum numbers of zones and open zones of a new store.
fn fewest(shards: u16) -> (u32, u32) {
    (kv::fewest_zones(shards), 3 + 2 * u32::from(shards))
}

fn grid(shards: u16) -> Vec<Line> {
    let (zones, open) = fewest(shards);
    let mut lines = Vec::new();
    for (zones, zone_size) in [(zones, MIB), (zones + 8, 8 * MIB), (4 * zones, MIB / 2)] {
        for most_open in [open, 14, 0] {
            for value in [100, 4000] {
                let bytes = if value < 1000 { 300 << 10 } else { 4 << 20 };
                let acknowledge = if zones % 2 == 0 { Acknowledge::Written } else { Acknowledge::Buffered };
                lines.push(Line { shards, zones, zone_size, most_open, value, bytes, acknowledge });
            }
        }
    }
    lines
}

fn check_grid(shards: u16, is_wanted: impl Fn(&Line) -> bool) {
    for line in grid(shards).into_iter().filter(|line| is_wanted(line)) {
        let fits = line.most_open == 0 || line.most_open >= fewest(shards).1;
        match run(line) {
            None => assert!(fits && shards <= kv::MAX_SHARDS, "{line:?}: the store was formatted"),
            Some(error) if shards > kv::MAX_SHARDS => {
                assert!(error.contains("expected 1 to 16"), "{line:?}: {error}");
            }
            Some(error) => {
                let needed =
                    format!("at least {}, the open zones of a store of {shards} shards", fewest(shards).1);
                assert!(!fits && error.contains(&needed), "{line:?}: {error}");
            }
        }
    }
}

#[test]
fn a_store_works_on_every_geometry_or_is_refused_with_the_numbers() {
    // The long test has the other lines.
    for shards in [1, 4, 7, 32] {
        check_grid(shards, |line| line.value == 4000 && line.zone_size == MIB);
    }
}

#[test]
fn every_geometry() {
    if conformance::budget::is_left_out() {
        return;
    }
    for shards in [1, 2, 3, 4, 7, 8, 16, 32] {
        check_grid(shards, |_| true);
    }
}

#[test]
fn four_shards_write_and_delete_on_a_drive_with_14_open_zones() {
    for acknowledge in [Acknowledge::Written, Acknowledge::Buffered] {
        let line = Line {
            shards: 4,
            zones: 128,
            zone_size: MIB,
            most_open: 14,
            value: 1000,
            bytes: 12 << 20,
            acknowledge,
        };
        assert_eq!(run(line), None);
    }
}

#[test]
fn zones_that_are_too_few_or_too_rarely_open_are_refused_with_what_is_needed() {
    let line = Line {
        shards: 1,
        zones: 64,
        zone_size: MIB,
        most_open: 3,
        value: 100,
        bytes: 0,
        acknowledge: Acknowledge::Written,
    };
    let refused = run(line).unwrap();
    assert!(refused.contains("max_open=3, max_active=3; expected 0 (no limit) or at least 5"), "{refused}");
    let refused = run(Line { zones: fewest(4).0 - 1, shards: 4, most_open: 14, ..line }).unwrap();
    let needed = format!(
        "{} zones are too few for a store of 4 shards; expected at least {}",
        fewest(4).0 - 1,
        fewest(4).0
    );
    assert!(refused.contains(&needed), "{refused}");
}

#[test]
fn the_default_number_of_shards_fits_the_zones() {
    for (most_open, zones, shards) in [(14, 64, 5), (7, 64, 2), (0, 64, 8), (5, kv::fewest_zones(1), 1)] {
        simulate(3, 8, move || async move {
            let zones = limited_drive(zones, MIB, most_open);
            let store = Store::format(zones, &Settings { buffer_bytes: 512 << 10, ..small() }).await.unwrap();
            assert_eq!(store.shards(), shards, "most_open={most_open}");
            store.close().await.unwrap();
        });
    }
}

/// Zones on a disk in memory with a limit of `most_open` open ones, independent of earlier limits.
async fn zones_on(disk: &Arc<dyn DevicePart>, most_open: u32, format: bool) -> Arc<dyn ZonesPart> {
    let options = zones::on_device::Options {
        format,
        zone_size: format.then_some(MIB / 2),
        max_open: most_open,
        max_active: most_open,
        ..Default::default()
    };
    Arc::new(zones::OnDevice::open(disk.clone(), options).await.unwrap())
}

/// A store of `shards` shards that was formatted without a limit, on a drive with the lowest permitted limit
/// of open zones.
async fn in_turns(shards: u16, acknowledge: Acknowledge) {
    let zones = 2 * kv::fewest_zones(shards);
    let disk = RamPart::new(u64::from(zones + 1) * MIB / 2, BlockSize::default()).unwrap();
    let disk: Arc<dyn DevicePart> = Arc::new(disk);
    let line = Line {
        shards,
        zones,
        zone_size: MIB / 2,
        most_open: MIN_OPEN,
        value: 1000,
        bytes: 1 << 20,
        acknowledge,
    };
    let settings = line.settings();
    let unlimited = zones_on(&disk, 0, true).await;
    let store = format(&unlimited, &settings).await;
    let model = write_all(&store, line, 0).await;
    store.close().await.unwrap();
    unlimited.close().await.unwrap();
    drop(unlimited);

    let limited = zones_on(&disk, MIN_OPEN, false).await;
    let store = open(&limited, &settings).await;
    check(&store, &line, &model).await;
    let model = write_all(&store, line, 1000).await;
    store.compact().await.unwrap();
    check(&store, &line, &model).await;
    store.close().await.unwrap();
    let store = open(&limited, &settings).await;
    check(&store, &line, &model).await;
    // As FLUSHALL, with a concurrent write.
    let beside = b"a write beside".to_vec();
    let put = {
        let (store, beside) = (store.clone(), beside.clone());
        runtime::spawn(async move { store.put(b"other", &beside).await })
    };
    store.delete_range(b"key 0", b"key 9").await.unwrap();
    put.await.unwrap();
    check(&store, &line, &Model::new()).await;
    let model = write_all(&store, line, 2000).await;
    store.close().await.unwrap();
    let store = open(&limited, &settings).await;
    check(&store, &line, &model).await;
    assert_eq!(store.get(b"other").await.unwrap().unwrap().value, beside);
    store.close().await.unwrap();
    limited.close().await.unwrap();
}

/// Minimum number of open zones for opening a store.
const MIN_OPEN: u32 = 5;

fn in_turns_ends(shards: u16, acknowledge: Acknowledge) {
    simulate(11, 2, move || async move {
        let ended = runtime::timeout(Duration::from_secs(3600), in_turns(shards, acknowledge)).await;
        assert!(ended.is_ok(), "{shards} shards, {acknowledge:?}: the run hangs");
    });
}

#[test]
fn stores_with_more_shards_than_open_zones_use_zones_in_turns() {
    for shards in [1, 3, 7, 9] {
        in_turns_ends(shards, Acknowledge::Written);
    }
    in_turns_ends(16, Acknowledge::Buffered);
}

#[test]
fn stores_of_every_number_of_shards_use_zones_in_turns() {
    if conformance::budget::is_left_out() {
        return;
    }
    for shards in 1..=kv::MAX_SHARDS {
        for acknowledge in [Acknowledge::Written, Acknowledge::Buffered, Acknowledge::Flushed] {
            in_turns_ends(shards, acknowledge);
        }
    }
}
