//! Damage: one flipped bit of a recently written record after an unclean stop, and an offline zone. Losses
//! are reported, and no older value appears instead.

use super::common::{simulate, small};
use block::{
    BlockIndex, BlockSize, Buffer, Device, DevicePart, Durability, Error, ZoneIndex, ZoneState, ZonesPart,
};
use conformance::images::find_all;
use disks::ram::RamPart;
use kv::{Acknowledge, Batch, Scan, Settings, Store};
use logkit::recovery::Goal;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

const BLOCK: usize = 4096;
const ZONE: u64 = 1 << 20;

async fn zones_on(disk: Arc<dyn DevicePart>, format: bool) -> Arc<dyn ZonesPart> {
    let zone_size = format.then_some(ZONE);
    let options = zones::on_device::Options { format, zone_size, ..Default::default() };
    Arc::new(zones::OnDevice::open(disk, options).await.unwrap())
}

async fn disk() -> (Arc<dyn DevicePart>, Rc<dyn Device>) {
    disk_of(33 * ZONE).await
}

async fn disk_of(bytes: u64) -> (Arc<dyn DevicePart>, Rc<dyn Device>) {
    let part: Arc<dyn DevicePart> = Arc::new(RamPart::new(bytes, BlockSize::default()).unwrap());
    let device = part.open().await.unwrap();
    (part, device)
}

async fn bytes_of(device: &Rc<dyn Device>) -> Vec<u8> {
    let size = device.geometry().bytes() as usize;
    let (outcome, buffer) = device.read(BlockIndex(0), Buffer::new(size)).await;
    outcome.unwrap();
    buffer.filled().to_vec()
}

/// A disk with these bytes, one bit of which is flipped.
async fn flipped(bytes: &[u8], at: usize) -> Arc<dyn DevicePart> {
    let mut bytes = Buffer::copy_of(bytes);
    bytes.filled_mut()[at] ^= 1;
    let (part, device) = disk_of(bytes.filled().len() as u64).await;
    device.write(BlockIndex(0), bytes.into(), Durability::Durable).await.unwrap();
    part
}

/// Incompressible values that are too large for the header of a record.
fn value(number: u8) -> Vec<u8> {
    static MADE: [OnceLock<Vec<u8>>; 256] = [const { OnceLock::new() }; 256];
    let make = || {
        let mut bytes = vec![0; 9000];
        runtime::Random::new(u64::from(number)).fill(&mut bytes);
        bytes
    };
    MADE[usize::from(number)].get_or_init(make).clone()
}

/// A disk after two values of one key and one of another, followed by a pause; and the offset of the last
/// value.
async fn written(pause: Duration) -> (Vec<u8>, usize) {
    let (part, device) = disk().await;
    let settings = Settings { shards: Some(1), ..small() };
    let store = Store::format(zones_on(part, true).await, &settings).await.unwrap();
    for (key, number) in [(b"a", 1), (b"b", 2), (b"a", 3)] {
        store.put(key, &value(number)).await.unwrap();
        store.flush().await.unwrap();
    }
    runtime::sleep(pause).await;
    let bytes = bytes_of(&device).await;
    let at = *find_all(&bytes, &value(3)[..100]).last().unwrap();
    (bytes, at)
}

#[test]
fn damaged_writes_that_had_been_durable_are_never_replaced_by_older_ones() {
    simulate(1, 1, || async {
        let settings = Settings { shards: Some(1), ..small() };
        let open = async |part| Store::open(zones_on(part, false).await, &settings).await;
        let (bytes, at) = written(Duration::from_secs(5)).await;
        for at in [at + 20, at / BLOCK * BLOCK - BLOCK + 40] {
            let error = open(flipped(&bytes, at).await).await.expect_err("the writes can't be known");
            assert!(matches!(error, Error::Corrupt(_)), "{error}");
            let zones = zones_on(flipped(&bytes, at).await, false).await.open().await.unwrap();
            let report = kv::check::check(&*zones, 10, &|_, _| {}).await.unwrap();
            assert!(!report.is_sound(), "{report:?}");
        }
        // Without a pause the records may be torn, which is reported as dropped.
        let (bytes, at) = written(Duration::ZERO).await;
        let zones = zones_on(flipped(&bytes, at + 20).await, false).await.open().await.unwrap();
        let report = kv::check::check(&*zones, 10, &|_, _| {}).await.unwrap();
        assert!(report.is_sound() && report.notes[0].contains("dropped"), "{report:?}");
        let store = open(flipped(&bytes, at + 20).await).await.unwrap();
        assert_eq!(store.get(b"a").await.unwrap().unwrap().value, value(1));
        assert_eq!(store.get(b"b").await.unwrap().unwrap().value, value(2));
    });
}

#[test]
fn damage_in_a_table_that_was_just_written_costs_the_keys_of_its_block() {
    simulate(1, 1, || async {
        let (part, device) = disk().await;
        let settings = Settings { shards: Some(1), cache_bytes: 0, table_bytes: 1 << 20, ..small() };
        let store = Store::format(zones_on(part, true).await, &settings).await.unwrap();
        for number in 0..20 {
            store.put(&[b'k', number], &value(number)).await.unwrap();
        }
        store.flush_buffers().await.unwrap();
        runtime::sleep(Duration::from_secs(5)).await;
        let bytes = bytes_of(&device).await;
        // The newest copy of a value is in a table; that of the log is at a lower address.
        let copies = find_all(&bytes, &value(7)[..100]);
        let mut lost = 0;
        for at in copies {
            let zones = zones_on(flipped(&bytes, at + 20).await, false).await;
            let Ok(store) = Store::open(zones, &settings).await else { panic!("the store opens") };
            for number in 0..20 {
                match store.get(&[b'k', number]).await {
                    Ok(found) => assert!(found.unwrap().value == value(number), "key {number}"),
                    Err(error) => {
                        assert!(matches!(error, Error::Corrupt(_)), "{error}");
                        lost += 1;
                    }
                }
            }
        }
        assert!((1..5).contains(&lost), "{lost} keys");
    });
}

#[test]
fn an_offline_zone_costs_what_is_in_it() {
    for is_closed in [true, false] {
        simulate(1, 1, move || async move {
            let (part, device) = disk().await;
            let settings = Settings { shards: Some(1), cache_bytes: 0, ..small() };
            let zones = zones_on(part, true).await;
            let store = Store::format(zones.clone(), &settings).await.unwrap().on_lent_zones();
            for number in 0..200 {
                store.put(&[b'k', number], &value(number)).await.unwrap();
            }
            store.flush_buffers().await.unwrap();
            store.wait_for_compactions().await.unwrap();
            store.close().await.unwrap();
            if !is_closed {
                let store = Store::open(zones.clone(), &settings).await.unwrap();
                store.put(b"new", b"1").await.unwrap();
                store.flush().await.unwrap();
            } else {
                zones.close().await.unwrap();
            }
            let bytes = bytes_of(&device).await;
            let (mut served, mut refused) = (0, 0);
            for zone in 2..32 {
                // The header of the zone is damaged.
                let part = flipped(&bytes, (2 + zone) * BLOCK + 40).await;
                let zones = zones_on(part, false).await;
                let report = zones.open().await.unwrap().report(ZoneIndex(zone as u32), 1).await.unwrap()[0];
                assert_eq!(report.state, ZoneState::Offline);
                let store = match Store::open(zones, &settings).await {
                    Ok(store) => store,
                    Err(error) => {
                        assert!(error.to_string().contains(&format!("zone {zone}")), "{error}");
                        refused += 1;
                        continue;
                    }
                };
                let mut lost = 0;
                for number in 0..200 {
                    match store.get(&[b'k', number]).await {
                        Ok(found) => assert!(found.unwrap().value == value(number), "key {number}"),
                        Err(error) => {
                            assert!(error.to_string().contains(&format!("zone {zone}")), "{error}");
                            lost += 1;
                        }
                    }
                }
                // A key is also unreadable if a newer table that may have it is unreadable.
                served += u32::from((1..200).contains(&lost));
                store.put(b"more", b"2").await.unwrap();
            }
            println!("closed: {is_closed}: {served} served with what is left, {refused} refused");
            assert!(served > 0);
        });
    }
}

/// A disk with 200 keys in tables and 20 newer ones in the log, after a kill following a pause, or after a
/// close. With several shards, the newer keys are in records of more than one shard.
async fn much_written(shards: u16, is_closed: bool) -> Vec<u8> {
    let zones = kv::fewest_zones(shards).max(28) + 4;
    let (part, device) = disk_of((u64::from(zones) + 1) * ZONE).await;
    let settings = Settings {
        shards: Some(shards),
        buffer_bytes: u64::from(shards) * (64 << 10),
        cache_bytes: 0,
        ..small()
    };
    let store = Store::format(zones_on(part.clone(), true).await, &settings).await.unwrap();
    for number in 0..200 {
        store.put(&[b'k', number], &value(number)).await.unwrap();
    }
    store.flush_buffers().await.unwrap();
    store.wait_for_compactions().await.unwrap();
    store.close().await.unwrap();
    let store = Store::open(zones_on(part, false).await, &settings).await.unwrap();
    for first in (200..220).step_by(4) {
        let mut batch = Batch::new();
        (first..first + 4).for_each(|number| batch.put(&[b'k', number], &value(number)));
        store.write(batch, Acknowledge::Written).await.unwrap();
    }
    match is_closed {
        true => store.close().await.unwrap(),
        false => {
            store.flush().await.unwrap();
            runtime::sleep(Duration::from_secs(5)).await;
        }
    }
    bytes_of(&device).await
}

/// Salvages the store on a disk; returns the number of keys that are found, and of those whose read fails;
/// zeros if no checkpoint can be read.
async fn salvaged(disk: Arc<dyn DevicePart>) -> (usize, usize) {
    let device = disk.open().await.unwrap();
    let before = bytes_of(&device).await;
    let settings = Settings { goal: Goal::Salvage, cache_bytes: 0, ..small() };
    let options = zones::on_device::Options { read_only: true, ..Default::default() };
    let zones = Arc::new(zones::OnDevice::open(disk, options).await.unwrap());
    let store = match Store::open(zones, &settings).await {
        Ok(store) => store,
        Err(error) => {
            assert!(error.to_string().contains("no checkpoint of the log can be read"), "{error}");
            return (0, 0);
        }
    };
    let (mut found, mut failed) = (Vec::new(), 0);
    for number in 0..220 {
        match store.get(&[b'k', number]).await {
            Ok(Some(stored)) => {
                assert!(stored.value == value(number), "key {number}");
                found.push(number);
            }
            Ok(None) => {}
            Err(error) => {
                assert!(matches!(error, Error::Corrupt(_) | Error::Io(_) | Error::Invalid(_)), "{error}");
                failed += 1;
            }
        }
    }
    // Scans skip unreadable parts, in both directions, and report them.
    for is_backward in [false, true] {
        let mut scan = Scan { is_backward, ..Scan::from(Vec::new(), 1000) };
        let mut scanned = Vec::new();
        loop {
            let (pairs, has_more) = store.scan(None, scan.clone()).await.unwrap();
            for pair in pairs.iter() {
                assert!(pair.value == value(pair.key[1]), "key {}", pair.key[1]);
                scanned.push(pair.key[1]);
                match is_backward {
                    true => scan.to = Some(pair.key.to_vec()),
                    false => scan.from = [pair.key, &[0]].concat(),
                }
            }
            if !has_more {
                break;
            }
        }
        scanned.sort_unstable();
        assert!(found.iter().all(|number| scanned.contains(number)), "{scanned:?} without some of {found:?}");
    }
    let status = store.status().await.unwrap();
    let lost = status["lost_count"].as_u64().unwrap();
    assert!(
        lost > 0 || found.len() == 220,
        "{} keys are found, and nothing is lost: {status:?}",
        found.len()
    );
    assert_eq!(status["lost"].as_array().unwrap().len() as u64, lost);
    // A salvaged store takes no writes, and is closed without any.
    for refused in [
        store.put(b"more", b"2").await,
        store.delete(b"k").await,
        store.delete_range(b"a", b"z").await,
        store.compact().await,
    ] {
        assert!(matches!(refused, Err(Error::ReadOnly(_))), "{refused:?}");
    }
    store.close().await.unwrap();
    assert!(bytes_of(&device).await == before, "the disk was written to");
    (found.len(), failed)
}

/// Salvages a store of `shards` shards with each of its zones offline in turn, and, if it wasn't closed, with
/// a flipped bit.
async fn salvage_of(shards: u16, is_closed: bool) {
    let bytes = much_written(shards, is_closed).await;
    let (part, device) = disk_of(bytes.len() as u64).await;
    device.write(BlockIndex(0), Buffer::copy_of(&bytes).into(), Durability::Durable).await.unwrap();
    assert_eq!(salvaged(part).await, (220, 0), "an undamaged one");
    // Includes the zones of roots and of the checkpoint.
    let (mut kept, mut failed) = (Vec::new(), 0);
    let zones = bytes.len() / ZONE as usize - 1;
    let is_long = conformance::budget::is_long();
    // The short test with several shards tries fewer places.
    let rarer = if shards > 1 && !is_long { 4 } else { 1 };
    for zone in (0..zones).step_by(if is_closed { 3 } else { rarer }) {
        let (found, errors) = salvaged(flipped(&bytes, (2 + zone) * BLOCK + 40).await).await;
        kept.push(found);
        failed += errors;
    }
    kept.sort_unstable();
    println!("{shards} shards, closed: {is_closed}: {failed} reads failed, keys without one zone: {kept:?}");
    // Only the zone of the single checkpoint may lose everything.
    assert!((failed > 0 || rarer > 1) && kept[1] > 100);
    if is_closed {
        return;
    }
    // One flipped bit in a root, a header, a list of tables, an index, or data.
    let (step, mut found) = (if is_long { 1 } else { 37 * rarer }, Vec::new());
    for block in (0..bytes.len() / BLOCK).step_by(step) {
        let at = block * BLOCK;
        if at >= ZONE as usize && bytes[at..at + BLOCK] != [0; BLOCK] {
            found.push(salvaged(flipped(&bytes, at + 45).await).await.0);
        }
    }
    found.sort_unstable();
    println!("{shards} shards, one bit: at least {}, at the median {}", found[0], found[found.len() / 2]);
    assert!(found[found.len() / 2] > 200);
}

#[test]
fn what_can_be_read_of_a_damaged_store_is_salvaged() {
    for is_closed in [true, false] {
        simulate(1, 1, move || salvage_of(1, is_closed));
    }
}

#[test]
fn what_can_be_read_of_a_damaged_store_of_several_shards_is_salvaged() {
    for (shards, is_closed) in [(2, true), (2, false), (4, false), (7, false)] {
        simulate(1, 2, move || salvage_of(shards, is_closed));
    }
}

/// Lines that are logged on this thread.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

impl tracing::field::Visit for Lines {
    fn record_debug(&mut self, _field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        self.0.lock().unwrap().push(format!("{value:?}"));
    }
}

impl tracing::Subscriber for Lines {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::WARN
    }
    fn new_span(&self, _span: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _span: &tracing::span::Id, _values: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _span: &tracing::span::Id, _follows: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        event.record(&mut self.clone());
    }
    fn enter(&self, _span: &tracing::span::Id) {}
    fn exit(&self, _span: &tracing::span::Id) {}
}

#[test]
fn a_lost_part_is_logged_once() {
    let lines = Lines::default();
    let told = Arc::new(AtomicU32::new(0));
    tracing::subscriber::with_default(lines.clone(), || {
        let (lines, told) = (lines.clone(), told.clone());
        simulate(1, 1, move || async move {
            let bytes = much_written(1, false).await;
            for zone in (0..32).step_by(3) {
                lines.0.lock().unwrap().clear();
                salvaged(flipped(&bytes, (2 + zone) * BLOCK + 40).await).await;
                let logged = lines.0.lock().unwrap().clone();
                for line in &logged {
                    let Some(lost) = line.strip_prefix("salvaging the store: ") else { continue };
                    told.fetch_add(1, Relaxed);
                    assert_eq!(logged.iter().filter(|line| line.contains(lost)).count(), 1, "{logged:?}");
                }
            }
        });
    });
    assert!(told.load(Relaxed) > 0);
}
