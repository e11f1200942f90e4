//! Zones on the simulated store.

use block::{Buffer, Data, Payload, ZoneAddress, ZoneIndex, Zones, ZonesPart};
use object_store::Limits;
use object_store::testing::{Bucket, Faults, config};
use objects::{Compression, NewVolume, ObjectsPart, Options, Settings};
use std::rc::Rc;
use std::time::Duration;

/// Zones of the tests.
pub const ZONES: u32 = 8;
pub const ZONE_SIZE: u64 = 256 << 10;

/// Settings with small pieces.
pub fn settings() -> Settings {
    Settings {
        piece_size: 48 << 10,
        memory: 256 << 10,
        max_append: 96 << 10,
        grace: Duration::from_secs(60),
        ..Settings::default()
    }
}

/// Settings with small pieces, which are compressed in half of the worlds.
pub fn settings_of(seed: u64) -> Settings {
    let compression = if seed.is_multiple_of(2) { Compression::None } else { Compression::Lz4 };
    Settings { compression, ..settings() }
}

/// Options to open a volume, or to create it without a probe.
pub fn options(format: bool) -> Options {
    Options {
        store: config(Limits { operation: Duration::from_secs(30), ..Limits::default() }),
        prefix: "db1".to_owned(),
        writer: "a test".to_owned(),
        format: format.then_some(NewVolume { zones: ZONES, zone_size: ZONE_SIZE, probe: false }),
        expected: (None, None),
        settings: settings(),
        encryption: None,
        follow: None,
    }
}

/// Creates a volume.
pub async fn create() -> ObjectsPart {
    ObjectsPart::open(options(true)).await.unwrap()
}

/// Opens the volume.
pub async fn reopen() -> ObjectsPart {
    ObjectsPart::open(options(false)).await.unwrap()
}

/// Bytes of one value.
pub fn bytes(value: u8, length: usize) -> Payload {
    Data::copy_of(&vec![value; length]).into()
}

/// Reads bytes of a zone.
pub async fn read(handle: &dyn Zones, zone: u32, offset: u64, length: usize) -> block::Result<Vec<u8>> {
    let (outcome, buffer) = handle.read(ZoneAddress::new(zone, offset), Buffer::new(length)).await;
    outcome.map(|()| buffer.filled().to_vec())
}

/// Appends to a zone.
pub async fn append(handle: &dyn Zones, zone: u32, value: u8, length: usize) -> u64 {
    handle.append(ZoneIndex(zone), bytes(value, length)).await.unwrap().offset.0
}

/// Runs a test in a simulated world with an empty bucket.
pub fn world<Fut: Future<Output = ()> + 'static>(seed: u64, test: impl FnOnce(Rc<Bucket>) -> Fut + 'static) {
    let simulation = runtime::Simulation { most_events: 200_000_000, ..runtime::Simulation::new(seed) };
    let run = || async move {
        let bucket = Bucket::start(Faults::default());
        test(bucket).await;
    };
    runtime::simulate(simulation, run).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
}

/// Opens a handle.
pub async fn handle(part: &ObjectsPart) -> Rc<dyn Zones> {
    part.open().await.unwrap()
}

/// Replaces the base of a volume that was just created: its first `full` zones are full of equal pieces,
/// whose objects don't exist.
pub fn fill_table(bucket: &Bucket, zones: u32, full: u32, pieces: u32) {
    let key = "db1/manifest/00000001/0000000000000001";
    let mut stored = bucket.objects.borrow_mut().remove(key).unwrap();
    let name_length = usize::from(stored.bytes[54]);
    let body = 88 + name_length;
    let zone_size = u64::from_le_bytes(stored.bytes[body + 4..][..8].try_into().unwrap());
    stored.bytes.truncate(body + 12);
    assert_eq!(stored.bytes[body..][..4], zones.to_le_bytes());
    let mut put = |bytes: &[u8]| stored.bytes.extend_from_slice(bytes);
    put(&full.to_le_bytes());
    for zone in 0..full {
        put(&zone.to_le_bytes());
        put(&1_u64.to_le_bytes());
        put(&[2]);
        put(&pieces.to_le_bytes());
        for number in 0..pieces {
            put(&((zone_size / u64::from(pieces)) as u32).to_le_bytes());
            put(&1_u32.to_le_bytes());
            put(&u64::from(zone * pieces + number).to_le_bytes());
        }
    }
    let length = (stored.bytes.len() - body) as u32;
    stored.bytes[80..84].copy_from_slice(&length.to_le_bytes());
    let sum = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &stored.bytes) as u32;
    stored.bytes.extend_from_slice(&sum.to_le_bytes());
    stored.headers.clear();
    bucket.objects.borrow_mut().insert(key.to_owned(), stored);
}

/// Opens the volume with a store that refuses the first manifest after the claim.
pub async fn claim_only(bucket: &Bucket, epoch: u32) {
    let base = format!("db1/manifest/{epoch:08}/0000000000000001");
    bucket.follow(move |asked| {
        let is_base = asked.method == "PUT" && asked.key == base;
        is_base.then(|| b"HTTP/1.1 403 x\r\ncontent-length: 0\r\n\r\n".to_vec())
    });
    assert!(ObjectsPart::open(options(false)).await.is_err());
    bucket.follow(|_| None);
}

/// Has the next `listings` of the manifests of an epoch show these keys alone.
pub fn show_earlier(bucket: &Bucket, epoch: u32, keys: &[String], mut listings: usize) {
    let size = |key: &String| bucket.objects.borrow().get(key).map_or(200, |stored| stored.bytes.len());
    let listed: String = keys
        .iter()
        .map(|key| format!("<Contents><Key>{key}</Key><Size>{}</Size></Contents>", size(key)))
        .collect();
    let body = format!("<ListBucketResult><IsTruncated>false</IsTruncated>{listed}</ListBucketResult>");
    let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    let prefix = format!("db1/manifest/{epoch:08}/");
    bucket.follow(move |asked| {
        let is_listing = asked.method == "GET" && asked.query("prefix") == Some(&*prefix);
        if !is_listing || listings == 0 {
            return None;
        }
        listings -= 1;
        Some(answer.clone().into_bytes())
    });
}
