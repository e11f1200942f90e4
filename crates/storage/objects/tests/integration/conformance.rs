//! The suite of the contract, with crashes: a new writer claims the volume while requests of the last one are
//! still in flight.

use crate::common::options;
use block::{Call, DevicePart, ZonesPart};
use conformance::zones::{Options, run};
use object_store::testing::{Bucket, Faults};
use objects::{Encryption, ObjectsPart};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

/// Encryption of the zones.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Keys {
    None,
    Key,
    /// With a key store.
    Store,
}

fn encryption(keys: Keys) -> Option<Encryption> {
    let key = Arc::new(crypt::secret::copy_of(&[5; 32]).unwrap());
    let store = || disks::ram::RamPart::new(64 << 10, block::BlockSize::new(512).unwrap()).unwrap();
    let key_store = (keys == Keys::Store).then(|| Arc::new(store()) as Arc<dyn DevicePart>);
    (keys != Keys::None).then_some(Encryption { key, key_store })
}

async fn open(format: bool, encryption: Option<Encryption>) -> Arc<dyn ZonesPart> {
    let options = objects::Options { encryption, ..options(format) };
    Arc::new(ObjectsPart::open(options).await.unwrap())
}

async fn on_the_store(faults: Faults, crashes: usize, keys: Keys) -> Result<(), String> {
    let bucket = Bucket::start(Faults::default());
    let (is_formatted, encryption) = (Cell::new(false), encryption(keys));
    let of_crash = encryption.clone();
    let make = async || {
        let part = open(!is_formatted.replace(true), encryption.clone()).await;
        bucket.faults.set(faults);
        part
    };
    let crash = move |_: Arc<dyn ZonesPart>| Call::new(open(false, of_crash.clone()));
    run(
        make,
        Options { persistent: true, crash: Some(Rc::new(crash)), crashes, rounds: 150, ..Options::default() },
    )
    .await
}

#[test]
fn zones_in_a_bucket_keep_the_promises() {
    for (seed, shards, keys, faults) in [
        (1, 1, Keys::None, Faults::default()),
        (2, 2, Keys::Key, Faults::default()),
        (
            3,
            2,
            Keys::None,
            Faults {
                lost_answer: 0.05,
                lost_request: 0.05,
                internal: 0.05,
                duplicate: 0.1,
                ..Faults::default()
            },
        ),
        (4, 2, Keys::Store, Faults { lost_answer: 0.05, internal: 0.05, ..Faults::default() }),
    ] {
        // A writer that still runs isn't locked out of a key store in memory, as it would be out of a file.
        let crashes = if keys == Keys::Store { 0 } else { 12 };
        let simulation =
            runtime::Simulation { shards, most_events: 400_000_000, ..runtime::Simulation::new(seed) };
        let judged = runtime::simulate(simulation, move || on_the_store(faults, crashes, keys));
        judged.unwrap().value.unwrap_or_else(|broken| panic!("seed {seed}: {broken}"));
    }
}
