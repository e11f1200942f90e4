//! Writes that are staged: what is there after the end of the process, and when nothing is staged.

use super::common::{simulate, small};
use block::{
    BlockCount, BlockIndex, BlockSize, Buffer, DeviceGeometry, DevicePart, Durability, Error, ZonesPart,
};
use kv::{Acknowledge, Broken, DeletePersistence, Goal, Settings, Store, with_broken};
use layers::fault::{FaultDevicePart, FaultZonesPart, parse_rules};
use layers::record::replay::ImageDisk;
use std::cell::{Cell, RefCell};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

const DISK: u64 = 16 << 20;
const ZONE: u64 = 64 << 10;
const STAGING: u64 = 128 << 10;
/// First bytes of a staged block.
const MAGIC: &[u8] = b"SILTSTAG";

fn disk() -> Arc<ImageDisk> {
    let block_size = BlockSize::default();
    let blocks = BlockCount(DISK / block_size.bytes());
    let geometry =
        DeviceGeometry { block_size, blocks, atomic_write: 512, volatile_cache: true, read_only: false };
    Arc::new(ImageDisk::empty(geometry))
}

async fn zones<D: DevicePart + 'static>(disk: &Arc<D>, format: bool) -> Arc<dyn ZonesPart> {
    let options = zones::on_device::Options {
        format,
        zone_size: format.then_some(ZONE),
        staging: Some(STAGING),
        ..Default::default()
    };
    Arc::new(zones::OnDevice::open(disk.clone(), options).await.unwrap())
}

fn settings(shards: u16) -> Settings {
    Settings { shards: Some(shards), ..small() }
}

async fn format<D: DevicePart + 'static>(disk: &Arc<D>, settings: &Settings) -> Store {
    Store::format(zones(disk, true).await, settings).await.unwrap()
}

async fn open<D: DevicePart + 'static>(disk: &Arc<D>, settings: &Settings) -> Store {
    Store::open(zones(disk, false).await, settings).await.unwrap()
}

async fn contents(disk: &Arc<ImageDisk>) -> Vec<u8> {
    let handle = disk.open().await.unwrap();
    let (read, buffer) = handle.read(BlockIndex(0), Buffer::new(DISK as usize)).await;
    read.unwrap();
    buffer.filled().to_vec()
}

/// The disk as the end of the process leaves it now: the disk has no delays, so no write is in flight.
fn after_kill(disk: &Arc<ImageDisk>) -> Arc<ImageDisk> {
    Arc::new(disk.copy())
}

async fn with_contents(bytes: &[u8]) -> Arc<ImageDisk> {
    let copy = self::disk();
    let handle = copy.open().await.unwrap();
    handle.write(BlockIndex(0), Buffer::copy_of(bytes).into(), Durability::Visible).await.unwrap();
    copy
}

/// Places of staged blocks.
fn staged_blocks(bytes: &[u8]) -> Vec<usize> {
    (0..bytes.len()).step_by(4096).filter(|at| bytes[*at..].starts_with(MAGIC)).collect()
}

async fn number(store: &Store, name: &str) -> u64 {
    store.status().await.unwrap()[name].as_u64().unwrap()
}

fn key(number: u64) -> Vec<u8> {
    format!("key {number:06}").into_bytes()
}

async fn put(store: &Store, numbers: std::ops::Range<u64>) {
    for number in numbers {
        store.put(&key(number), &number.to_le_bytes()).await.unwrap();
    }
}

async fn missing(store: &Store, numbers: std::ops::Range<u64>) -> Vec<u64> {
    let mut missing = Vec::new();
    for number in numbers {
        let found = store.get(&key(number)).await.unwrap();
        if found.is_none_or(|found| found.value != number.to_le_bytes()) {
            missing.push(number);
        }
    }
    missing
}

#[test]
fn acknowledged_writes_are_there_after_a_kill_on_any_number_of_shards() {
    for shards in [1, 2, 7, 16] {
        simulate(u64::from(shards), 4, move || async move {
            let disk = disk();
            let store = format(&disk, &settings(shards)).await;
            let mut written = 0;
            for more in [1, 2, 50, 500, 1, 3000] {
                put(&store, written..written + more).await;
                written += more;
                let killed = after_kill(&disk);
                let zones = zones(&killed, false).await;
                let handle = zones.open().await.unwrap();
                let report = kv::check::check(&*handle, 10, &|_, _| {}).await.unwrap();
                assert!(report.is_sound() && report.log_bytes > 0, "{shards} shards: {report:?}");
                let other = Store::open(zones, &settings(shards)).await.unwrap();
                assert_eq!(missing(&other, 0..written).await, [0; 0], "{shards} shards, {written} writes");
                assert!(staged_blocks(&contents(&killed).await).is_empty(), "erased before it serves");
                other.close().await.unwrap();
            }
            let staged = number(&store, "staged_bytes").await;
            assert!(staged > written * 16, "{shards} shards: {staged} bytes of {written} writes are staged");
            store.close().await.unwrap();
            let store = open(&disk, &settings(shards)).await;
            assert_eq!(missing(&store, 0..written).await, [0; 0]);
            store.close().await.unwrap();
        });
    }
}

/// Staged blocks of an earlier epoch that go on where the log of this one ends.
async fn stale_blocks() -> Vec<u64> {
    let disk = disk();
    let store = format(&disk, &settings(1)).await;
    // Two blocks of 16 KiB, and no record yet.
    put(&store, 0..700).await;
    let mut bytes = contents(&disk).await;
    let blocks = staged_blocks(&bytes);
    assert!(blocks.len() >= 2, "{blocks:?}");
    // A power cut loses the first block, and every record.
    let first = u64::from_le_bytes(bytes[blocks[1] + 40..blocks[1] + 48].try_into().unwrap());
    bytes[blocks[0]..blocks[0] + 4096].fill(0);
    let killed = with_contents(&bytes).await;
    let store = open(&killed, &settings(1)).await;
    for number in 1..first {
        let mut batch = kv::Batch::new();
        batch.put(&key(5000 + number), b"value");
        store.write(batch, Acknowledge::Flushed).await.unwrap();
    }
    let again = after_kill(&killed);
    let store = open(&again, &settings(1)).await;
    let mut found = Vec::new();
    for number in 0..700 {
        if store.get(&key(number)).await.unwrap().is_some() {
            found.push(number);
        }
    }
    found
}

#[test]
fn blocks_of_an_earlier_epoch_are_erased_before_the_next_takes_writes() {
    simulate(1, 1, || async { assert_eq!(stale_blocks().await, [0; 0]) });
    let found = with_broken(Some(Broken::KeepsStaged), || {
        let world = runtime::Simulation { shards: 1, ..runtime::Simulation::new(1) };
        runtime::simulate(world, || async { stale_blocks().await }).unwrap().value
    });
    assert!(!found.is_empty(), "the broken rule is noticed");
}

#[test]
fn a_write_after_one_that_was_only_buffered_brings_it_along() {
    simulate(2, 1, || async {
        let disk = disk();
        let store = format(&disk, &settings(1)).await;
        for number in 0..100 {
            let mut batch = kv::Batch::new();
            batch.put(&key(number), &number.to_le_bytes());
            let acknowledge = if number % 3 == 1 { Acknowledge::Buffered } else { Acknowledge::Written };
            store.write(batch, acknowledge).await.unwrap();
            if acknowledge == Acknowledge::Written {
                let other = open(&after_kill(&disk), &settings(1)).await;
                assert_eq!(missing(&other, 0..number + 1).await, [0; 0], "{number}");
            }
        }
        store.close().await.unwrap();
    });
}

#[test]
fn nothing_stays_staged_on_an_idle_store() {
    simulate(3, 2, || async {
        let disk = disk();
        let store = format(&disk, &settings(2)).await;
        put(&store, 0..20).await;
        runtime::sleep(Duration::from_millis(200)).await;
        let mut bytes = contents(&disk).await;
        for at in staged_blocks(&bytes) {
            bytes[at..at + 4096].fill(0);
        }
        let other = open(&with_contents(&bytes).await, &settings(2)).await;
        assert_eq!(missing(&other, 0..20).await, [0; 0], "the records have them");
    });
}

/// Openings that fail or end before the staging area is erased begin epochs, and lose nothing.
#[test]
fn openings_that_are_interrupted_lose_nothing() {
    simulate(4, 1, || async {
        let disk = disk();
        let store = format(&disk, &settings(1)).await;
        put(&store, 0..50).await;
        let mut killed = after_kill(&disk);
        for _ in 0..4 {
            let place = staged_blocks(&contents(&killed).await)[0];
            let rules = format!("write error=EIO range={place}..{}", place + 4096);
            let rules = parse_rules(&[rules], stack::Contract::Device).unwrap();
            let failing = Arc::new(FaultDevicePart::new(killed.clone(), rules, 1).unwrap());
            let refused = Store::open(zones(&failing, false).await, &settings(1)).await;
            assert!(matches!(refused, Err(Error::Io(_))), "{:?}", refused.err());
            killed = after_kill(&killed);
        }
        let store = open(&killed, &settings(1)).await;
        assert_eq!(missing(&store, 0..50).await, [0; 0]);
        store.close().await.unwrap();
    });
}

/// Writes go by records as soon as staging fails, and are acknowledged when these are written.
#[test]
fn a_failed_write_of_the_staging_area_is_never_acknowledged() {
    for error in ["EIO", "ENOSPC"] {
        simulate(5, 1, move || async move {
            let disk = disk();
            let store = format(&disk, &settings(1)).await;
            put(&store, 0..1).await;
            store.close().await.unwrap();
            let place = staged_blocks(&contents(&disk).await)[0] as u64;
            let rules = format!("write error={error} range={place}..{} after=7", place + STAGING);
            let rules = parse_rules(&[rules], stack::Contract::Device).unwrap();
            let failing = Arc::new(FaultDevicePart::new(disk.clone(), rules, 1).unwrap());
            let store = open(&failing, &settings(1)).await;
            for number in 0..100 {
                put(&store, number..number + 1).await;
                let other = open(&after_kill(&disk), &settings(1)).await;
                assert_eq!(missing(&other, 0..number + 1).await, [0; 0], "{error}, {number}");
            }
            let staged = number(&store, "staged_bytes").await;
            assert!(staged > 0 && staged < 10 * 64, "{error}: {staged} bytes are staged");
            store.close().await.unwrap();
        });
    }
}

#[test]
fn nothing_is_staged_with_persistent_deletes_and_earlier_writes_are_erased() {
    simulate(6, 1, || async {
        let disk = disk();
        let store = format(&disk, &settings(1)).await;
        put(&store, 0..50).await;
        let killed = after_kill(&disk);
        let persistent = Settings {
            compaction: "fade".to_owned(),
            delete_persistence: Some(DeletePersistence::Time(Duration::from_secs(600))),
            ..settings(1)
        };
        let store = open(&killed, &persistent).await;
        put(&store, 50..100).await;
        assert!(staged_blocks(&contents(&killed).await).is_empty());
        assert_eq!(missing(&store, 0..100).await, [0; 0]);
        assert_eq!(number(&store, "staged_bytes").await, 0);
        store.close().await.unwrap();
    });
}

#[test]
fn buffered_and_flushed_writes_are_not_staged() {
    simulate(7, 1, || async {
        for acknowledge in [Acknowledge::Buffered, Acknowledge::Flushed] {
            let disk = disk();
            let store = format(&disk, &Settings { acknowledge, ..settings(1) }).await;
            put(&store, 0..20).await;
            assert_eq!(number(&store, "staged_bytes").await, 0, "{acknowledge:?}");
            store.close().await.unwrap();
        }
    });
}

/// Through a layer that doesn't pass synchronous writes on, staged writes are found and no new ones are
/// staged.
#[test]
fn staged_writes_are_found_through_a_layer_that_can_not_stage() {
    simulate(8, 1, || async {
        let disk = disk();
        let store = format(&disk, &settings(1)).await;
        put(&store, 0..50).await;
        let killed = after_kill(&disk);
        let layer = FaultZonesPart::new(zones(&killed, false).await, Vec::new(), 1);
        let store = Store::open(Arc::new(layer), &settings(1)).await.unwrap();
        put(&store, 50..60).await;
        assert_eq!(missing(&store, 0..60).await, [0; 0]);
        assert_eq!(number(&store, "staged_bytes").await, 0);
        store.close().await.unwrap();
    });
}

#[test]
fn a_salvaged_store_shows_staged_writes_and_leaves_them() {
    simulate(9, 1, || async {
        let disk = disk();
        let store = format(&disk, &settings(1)).await;
        put(&store, 0..50).await;
        let killed = after_kill(&disk);
        let before = contents(&killed).await;
        let overlay = zones::Overlay::new(zones(&killed, false).await, 64 << 20);
        let salvage = Settings { goal: Goal::Salvage, ..settings(1) };
        let store = Store::open(Arc::new(overlay), &salvage).await.unwrap();
        assert_eq!(missing(&store, 0..50).await, [0; 0]);
        store.close().await.unwrap();
        assert!(contents(&killed).await == before, "nothing is written");
    });
}

fn incompressible(number: u64) -> Vec<u8> {
    let mut bytes = vec![0; 1500];
    runtime::Random::new(number).fill(&mut bytes);
    bytes
}

#[test]
fn a_full_store_keeps_what_it_acknowledged() {
    simulate(10, 2, || async {
        let disk = disk();
        let store = format(&disk, &settings(2)).await;
        let mut kept = Vec::new();
        for number in 0..20_000_u64 {
            match store.put(&key(number), &incompressible(number)).await {
                Ok(()) => kept.push(number),
                Err(Error::NoSpace(_)) => break,
                Err(error) => panic!("{error}"),
            }
        }
        assert!(kept.len() < 20_000 && number(&store, "staged_bytes").await > 1 << 20, "{}", kept.len());
        let other = open(&after_kill(&disk), &settings(2)).await;
        for number in kept {
            let found = other.get(&key(number)).await.unwrap();
            assert_eq!(found.map(|found| found.value), Some(incompressible(number)), "{number}");
        }
    });
}

/// A disk whose requests take time; `disk` shows what was written.
fn slow(disk: &Arc<ImageDisk>, seed: u64) -> Arc<FaultDevicePart> {
    let rules = parse_rules(&["any delay=50us..500us".to_owned()], stack::Contract::Device).unwrap();
    Arc::new(FaultDevicePart::new(disk.clone(), rules, seed).unwrap())
}

/// Keys of acknowledged writes, with the lengths of their values.
type Known = Rc<RefCell<Vec<(Vec<u8>, usize)>>>;

/// Writes 8 new keys at once, the first of them with a value of `length` bytes: keys of one shard, or of any
/// if `shard` is none.
async fn write_several(store: Store, known: Known, (shard, shards): (Option<u16>, u16), length: usize) {
    let first = known.borrow().len() as u64 * 1000 + length as u64 * 1_000_000;
    let is_there = |key: &Vec<u8>| shard.is_none_or(|shard| kv::shard_of_key(key, shards.into()) == shard);
    let keys: Vec<Vec<u8>> = (first..).map(key).filter(is_there).take(8).collect();
    let mut batch = kv::Batch::new();
    let mut written = Vec::new();
    for (number, key) in keys.into_iter().enumerate() {
        let mut value = vec![0; if number == 0 { length } else { 10 }];
        runtime::Random::new(first).fill(&mut value);
        batch.put(&key, &value);
        written.push((key, value.len()));
    }
    store.write(batch, Acknowledge::Written).await.unwrap();
    known.borrow_mut().extend(written);
}

/// Keys of acknowledged writes that aren't there after the end of the process.
async fn missing_after_kill(disk: &Arc<ImageDisk>, settings: &Settings, known: &Known) -> Vec<String> {
    let store = open(&after_kill(disk), settings).await;
    let mut missing = Vec::new();
    let known = known.borrow().clone();
    for (key, length) in known {
        let found = store.get(&key).await.unwrap();
        if found.is_none_or(|found| found.value.len() != length) {
            missing.push(String::from_utf8(key).unwrap());
        }
    }
    missing
}

/// Writes of several records, and batches of several shards, one beside the other.
async fn write_large_ones(store: &Store, known: &Known, shards: u16, random: &mut runtime::Random) {
    let clients: Vec<_> = (0..3_u16)
        .map(|client| {
            let (store, known) = (store.clone(), known.clone());
            let wait = Duration::from_micros(random.below(1500));
            let is_joint = shards > 1 && client == 0;
            let lengths: &[usize] = if is_joint { &[10, 20_000] } else { &[3000, 30_000, 60_000, 130_000] };
            let length = lengths[random.below(lengths.len() as u64) as usize] + usize::from(client);
            let shard = (!is_joint).then(|| random.below(shards.into()) as u16);
            async move {
                runtime::sleep(wait).await;
                write_several(store, known, (shard, shards), length).await;
            }
        })
        .collect();
    runtime::join_all(clients).await;
}

/// Result of `main` in a simulation, while a rule is broken.
fn simulated<F: Future<Output = Vec<String>> + 'static>(
    (seed, rule): (u64, Option<Broken>),
    main: impl FnOnce() -> F + Send + 'static,
) -> Vec<String> {
    with_broken(rule, || {
        let world = runtime::Simulation { shards: 1, ..runtime::Simulation::new(seed) };
        runtime::simulate(world, main).unwrap_or_else(|error| panic!("seed {seed}: {error}")).value
    })
}

/// Writes that are missing after kills of a store with staged writes after large ones.
fn missing_after_large_ones(seed: u64, shards: u16, rule: Option<Broken>) -> Vec<String> {
    simulated((seed, rule), move || async move {
        let disk = disk();
        let settings = Settings { buffer_bytes: u64::from(shards) * (64 << 10), ..settings(shards) };
        let store = format(&slow(&disk, seed), &settings).await;
        let (mut random, known) = (runtime::Random::new(seed), Known::default());
        let mut missing = Vec::new();
        for _ in 0..8 {
            write_large_ones(&store, &known, shards, &mut random).await;
            runtime::sleep(Duration::from_micros(random.below(5000))).await;
            for _ in 0..4 {
                let shard = random.below(shards.into()) as u16;
                write_several(store.clone(), known.clone(), (Some(shard), shards), 11).await;
                missing.extend(missing_after_kill(&disk, &settings, &known).await);
            }
        }
        assert!(number(&store, "staged_bytes").await > 0);
        store.close().await.unwrap();
        missing
    })
}

/// A buffer is frozen, and its table written, while a write is in the log in part.
#[test]
fn staged_writes_after_large_ones_survive_a_kill() {
    for (seed, shards) in (1..=10).flat_map(|seed| [(seed, 1), (seed, 2)]) {
        let missing = missing_after_large_ones(seed, shards, None);
        assert_eq!(missing, [""; 0], "seed {seed}, {shards} shards");
    }
    for shards in [1, 2] {
        let is_noticed = |seed| !missing_after_large_ones(seed, shards, Some(Broken::CountsTwice)).is_empty();
        assert!((1..=10).any(is_noticed), "{shards} shards: the broken rule is noticed");
    }
}

/// Writes that are missing after kills in an opening.
fn missing_after_openings(seed: u64, rule: Option<Broken>) -> Vec<String> {
    simulated((seed, rule), move || async move {
        let disk = disk();
        let large = Settings { buffer_bytes: 4 << 20, ..settings(1) };
        let store = format(&slow(&disk, seed), &large).await;
        let (mut random, known) = (runtime::Random::new(seed), Known::default());
        for _ in 0..4 {
            write_large_ones(&store, &known, 1, &mut random).await;
        }
        for _ in 0..4 {
            write_several(store.clone(), known.clone(), (None, 1), 11).await;
        }
        let killed = after_kill(&disk);
        let settings = Settings { buffer_bytes: 16 << 10, ..settings(1) };
        let is_open = Rc::new(Cell::new(false));
        let opening = runtime::spawn({
            let (slow, settings, is_open) = (slow(&killed, seed), settings.clone(), is_open.clone());
            async move {
                let store = open(&slow, &settings).await;
                is_open.set(true);
                store
            }
        });
        let (mut looks, mut missing) = (0, Vec::new());
        while !is_open.get() {
            runtime::sleep(Duration::from_micros(300)).await;
            missing.extend(missing_after_kill(&killed, &settings, &known).await);
            looks += 1;
        }
        assert!(looks > 5, "{looks} looks");
        opening.await.close().await.unwrap();
        missing
    })
}

/// Replay fills several buffers, some of which are in tables when the opening ends.
#[test]
fn openings_that_are_killed_at_any_time_lose_nothing() {
    for seed in 1..=10 {
        assert_eq!(missing_after_openings(seed, None), [""; 0], "seed {seed}");
    }
    let is_noticed = |seed| !missing_after_openings(seed, Some(Broken::DividesRecords)).is_empty();
    assert!((1..=10).any(is_noticed), "the broken rule is noticed");
}

/// Puts and deletes alternate while only deletes may take the last zones: each kind has entries of its own,
/// and a staged write counts as committed only once its own has.
#[test]
fn puts_beside_deletes_on_a_nearly_full_store_are_kept() {
    simulate(11, 1, || async {
        let disk = disk();
        // So large tables that zones for one of them are kept, in which small writes are staged.
        let settings = Settings { buffer_bytes: 1 << 20, table_bytes: 1 << 20, ..settings(1) };
        let store = format(&disk, &settings).await;
        let mut kept = Vec::new();
        for number in 0..20_000_u64 {
            match store.put(&key(number), &incompressible(number)).await {
                Ok(()) => kept.push(number),
                Err(Error::NoSpace(_)) => break,
                Err(error) => panic!("{error}"),
            }
            store.delete(&key(100_000 + number)).await.unwrap();
        }
        assert!(kept.len() < 20_000, "{}", kept.len());
        let other = open(&after_kill(&disk), &settings).await;
        for number in kept {
            let found = other.get(&key(number)).await.unwrap();
            assert_eq!(found.map(|found| found.value), Some(incompressible(number)), "{number}");
        }
    });
}

/// Their sequences aren't known, so older values could hide newer ones.
#[test]
fn a_salvaged_store_drops_staged_writes_after_damaged_ones() {
    simulate(12, 1, || async {
        let disk = disk();
        let store = format(&disk, &settings(1)).await;
        let mut batch = kv::Batch::new();
        let value: Vec<u8> = (0..6).flat_map(incompressible).collect();
        batch.put(b"long", &value);
        store.write(batch, Acknowledge::Flushed).await.unwrap();
        runtime::sleep(Duration::from_secs(5)).await;
        put(&store, 0..10).await;
        let mut bytes = contents(&disk).await;
        let at = conformance::images::find_all(&bytes, &value[..100])[0];
        bytes[at + 20] ^= 1;
        let damaged = with_contents(&bytes).await;
        let overlay = zones::Overlay::new(zones(&damaged, false).await, 64 << 20);
        let salvage = Settings { goal: Goal::Salvage, ..settings(1) };
        let store = Store::open(Arc::new(overlay), &salvage).await.unwrap();
        let lost = store.status().await.unwrap()["lost"].to_string();
        assert!(lost.contains("staged writes of shard 0"), "{lost}");
        assert_eq!(missing(&store, 0..10).await.len(), 10);
        store.close().await.unwrap();
    });
}

const VICTIM: &str = "SILTSTONE_STAGING_VICTIM";

/// Stack of a store in a file whose writes stay in the page cache.
fn line(path: &Path) -> String {
    format!("zones(file({}, size=512MiB, direct=off), zone_size=4MiB)", path.display())
}

async fn file_zones(path: &Path, format: bool) -> Arc<dyn ZonesPart> {
    let registry = stack::Registry::new(vec![&disks::file::KIND, &zones::on_device::KIND]);
    let stack = stack::Stack::from_line("test", &line(path), &registry).unwrap();
    let built = stack.check(format).unwrap().build().await.unwrap();
    let found = built.parts().find_map(|part| match &part.built {
        stack::Built::Zones(zones) => Some(zones.clone()),
        _ => None,
    });
    found.unwrap()
}

fn run<F: Future<Output = ()> + 'static>(main: impl FnOnce() -> F + Send + 'static) {
    runtime::run(runtime::Config { shards: 1, ..Default::default() }, main).unwrap();
}

#[test]
fn a_killed_process_leaves_what_it_staged_in_the_page_cache() {
    if let Some(path) = std::env::var_os(VICTIM) {
        run(move || async move {
            let path = Path::new(&path);
            let is_new = !path.exists();
            let zones = file_zones(path, is_new).await;
            let store = match is_new {
                true => Store::format(zones, &Settings::default()).await.unwrap(),
                false => Store::open(zones, &Settings::default()).await.unwrap(),
            };
            for at in 0.. {
                put(&store, at..at + 1).await;
                println!("\nacknowledged {at} staged {}", number(&store, "staged_bytes").await);
            }
        });
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk.img");
    let test = "staging::a_killed_process_leaves_what_it_staged_in_the_page_cache";
    for acknowledged in [1, 300, 5000] {
        let mut victim = Command::new(std::env::current_exe().unwrap())
            .args([test, "--exact", "--nocapture"])
            .env(VICTIM, &path)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(victim.stdout.take().unwrap()).lines().map(Result::unwrap);
        let numbers = lines.filter_map(|line| {
            let (number, staged) = line.strip_prefix("acknowledged ")?.split_once(" staged ")?;
            Some((number.parse::<u64>().ok()?, staged.parse::<u64>().ok()?))
        });
        let (last, staged) = numbers.take(acknowledged).last().unwrap();
        victim.kill().unwrap();
        victim.wait().unwrap();
        assert!(staged > 0, "the writes are staged");
        let path = path.clone();
        run(move || async move {
            let store = Store::open(file_zones(&path, false).await, &Settings::default()).await.unwrap();
            assert_eq!(missing(&store, 0..last + 1).await, [0; 0]);
            store.close().await.unwrap();
        });
    }
}
