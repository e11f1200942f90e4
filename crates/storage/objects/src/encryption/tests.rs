//! Persistent deletes in a bucket that keeps every version: an attacker with all of them, the operator's key
//! and the key store finds no deleted key.

use super::Encryption;
use crate::compression::{Compression, Size};
use crate::format::{chunk_range, open_index, verify};
use crate::key_store::KeyStore;
use crate::names::{Name, Names};
use crate::part::{NewVolume, ObjectsPart, Options};
use crate::seal::{KEY, Keys};
use block::{BlockIndex, BlockSize, Buffer, DevicePart, Durability, EraseGuarantee, ZonesPart};
use disks::ram::RamPart;
use kv::audit::{Findings, audit};
use kv::{DeletePersistence, Settings, Store};
use object_store::Limits;
use object_store::testing::{Bucket, Faults, config};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

const OPERATOR: [u8; KEY] = [5; KEY];
const DEVICE: usize = 64 << 10;
const ZONE_SIZE: u64 = 256 << 10;
const PERSISTENCE: Duration = Duration::from_secs(4);

/// Every object that the bucket has ever had.
type Versions = BTreeMap<String, Vec<u8>>;

fn device() -> Arc<dyn DevicePart> {
    Arc::new(RamPart::new(DEVICE as u64, BlockSize::new(512).unwrap()).unwrap())
}

async fn copy(part: &Arc<dyn DevicePart>) -> Arc<dyn DevicePart> {
    let (to, from) = (device(), part.open().await.unwrap());
    let (outcome, bytes) = from.read(BlockIndex(0), Buffer::new(DEVICE)).await;
    outcome.unwrap();
    let handle = to.open().await.unwrap();
    handle.write(BlockIndex(0), bytes.into(), Durability::Visible).await.unwrap();
    to
}

/// Searches all versions for keys, with the secrets of this key store.
async fn attack(versions: &Versions, part: &Arc<dyn DevicePart>, wanted: &[Vec<u8>]) -> Findings {
    let (keys, store) = (Keys::new(&OPERATOR, true).unwrap(), KeyStore::open(part).await.unwrap());
    let names = Names::new("").unwrap();
    let mut generations = BTreeMap::<(u32, u64), Vec<u8>>::new();
    for (key, bytes) in versions {
        let Some(Name::Piece(name)) = names.parse(key) else { continue };
        let Ok(secret) = store.secret(name.zone, name.generation) else { continue };
        let volume: [u8; 16] = bytes[16..32].try_into().unwrap();
        let length: u64 = u32::from_le_bytes(bytes[56..60].try_into().unwrap()).into();
        let sealer = keys.zone(&volume, name.zone, name.generation, &secret[..]);
        let size = Size { length, compressed: bytes.len() as u32 };
        let open = || open_index(&volume, &name, size, Some(&sealer), &mut bytes.clone()).unwrap();
        let index = (bytes[12] & 4 > 0).then(open);
        let plain = || chunk_range(length, 0..length, true);
        let range = index.as_ref().map_or_else(plain, |index| index.range(0..length));
        let mut object = bytes[range.at as usize..][..range.bytes].to_vec();
        let cells =
            generations.entry((name.zone, name.generation)).or_insert_with(|| vec![0; ZONE_SIZE as usize]);
        let mut at = name.offset as usize;
        let opened = verify(&volume, &name, &range, (index.as_ref(), Some(&sealer)), &mut object, |bytes| {
            cells[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        });
        opened.unwrap();
    }
    let generations: Vec<Vec<u8>> = generations.into_values().collect();
    audit(generations.len() as u32, async |generation| Ok(generations[generation as usize].clone()), wanted)
        .await
        .unwrap()
}

fn doomed() -> Vec<Vec<u8>> {
    (0..20).map(|number| format!("doomed-{number:04}-key").into_bytes()).collect()
}

async fn work(store: &Store, time: Duration, from: u32) {
    for round in 0..time.as_millis() as u32 / 100 {
        let value = format!("{:0200}", round * 7);
        store
            .put(format!("key-{:06}", (from + round) * 7919 % 400).as_bytes(), value.as_bytes())
            .await
            .unwrap();
        runtime::sleep(Duration::from_millis(100)).await;
    }
}

async fn run(bucket: Rc<Bucket>) {
    let versions = Rc::new(RefCell::new(Versions::new()));
    let (own, kept) = (Rc::downgrade(&bucket), versions.clone());
    let keep = move || {
        let Some(bucket) = own.upgrade() else { return };
        for (key, object) in &*bucket.objects.borrow() {
            kept.borrow_mut().entry(key.clone()).or_insert_with(|| object.bytes.clone());
        }
    };
    let on_request = keep.clone();
    bucket.follow(move |_| {
        on_request();
        None
    });
    let key_store = device();
    let options = Options {
        store: config(Limits::default()),
        prefix: String::new(),
        writer: "a test".to_owned(),
        format: Some(NewVolume { zones: 40, zone_size: ZONE_SIZE, probe: false }),
        expected: (None, None),
        settings: crate::Settings {
            piece_size: 64 << 10,
            grace: Duration::from_secs(1),
            compression: Compression::Lz4,
            ..Default::default()
        },
        encryption: Some(Encryption {
            key: Arc::new(crypt::secret::copy_of(&OPERATOR).unwrap()),
            key_store: Some(key_store.clone()),
        }),
        follow: None,
    };
    let zones: Arc<dyn ZonesPart> = Arc::new(ObjectsPart::open(options).await.unwrap());
    let settings = Settings {
        buffer_bytes: 16 << 10,
        table_bytes: 16 << 10,
        level_bytes: 32 << 10,
        multiplier: 4,
        cache_bytes: 64 << 10,
        compaction: "zap".to_owned(),
        placement: "zap".to_owned(),
        delete_persistence: Some(DeletePersistence::Time(PERSISTENCE)),
        erase: EraseGuarantee::Key,
        shards: Some(1),
        ..Settings::default()
    };
    let store = Store::format(zones.clone(), &settings).await.unwrap().on_lent_zones();
    for round in 0..2 {
        for key in doomed() {
            store.put(&key, format!("value {round}").as_bytes()).await.unwrap();
        }
        work(&store, PERSISTENCE / 2, round * 1000).await;
    }
    let before = copy(&key_store).await;
    for key in doomed() {
        store.delete(&key).await.unwrap();
    }
    work(&store, PERSISTENCE * 2, 5000).await;
    keep();
    let status = store.status().await.unwrap();
    assert_eq!(status["delete_persistence"]["zones_late"], 0, "{status:?}");
    let versions = versions.take();
    let found = attack(&versions, &before, &doomed()).await.found.len();
    assert!(found >= 20, "the key store of before opens the versions: {found} keys");
    let found = attack(&versions, &key_store, &doomed()).await;
    assert_eq!(found.found, [], "{status:?}");
    assert!(found.blocks > 0, "what was kept can be read: {found:?}");
    store.close().await.unwrap();
    zones.close().await.unwrap();
}

#[test]
fn deleted_keys_cannot_be_read_in_a_bucket_that_keeps_all_versions() {
    let simulation = runtime::Simulation { most_events: 200_000_000, ..runtime::Simulation::new(3) };
    runtime::simulate(simulation, || async { run(Bucket::start(Faults::default())).await }).unwrap();
}
