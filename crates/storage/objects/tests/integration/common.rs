//! Zones on the simulated store.

use block::{Buffer, Data, Payload, ZoneAddress, ZoneIndex, Zones, ZonesPart};
use object_store::Limits;
use object_store::testing::{Bucket, Faults, config};
use objects::{NewVolume, ObjectsPart, Options, Settings};
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

/// Options to open a volume, or to create it without a probe.
pub fn options(format: bool) -> Options {
    Options {
        store: config(Limits { operation: Duration::from_secs(30), ..Limits::default() }),
        prefix: "db1".to_owned(),
        writer: "a test".to_owned(),
        format: format.then_some(NewVolume { zones: ZONES, zone_size: ZONE_SIZE, probe: false }),
        expected: (None, None),
        settings: settings(),
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
