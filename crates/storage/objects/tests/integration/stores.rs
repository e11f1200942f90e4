//! The log directly on zones in a bucket, with crashes of its writers.

use crate::common::{options, world};
use block::{BlockIndex, Buffer, Data, Device, DevicePart, Durability, Part, ZonesPart};
use log::LogPart;
use log::kind::Options;
use object_store::testing::Faults;
use objects::{NewVolume, ObjectsPart};
use std::rc::Rc;
use std::sync::Arc;

/// Opens a log, or creates it with its zones.
async fn open(format: bool) -> (Arc<dyn ZonesPart>, LogPart) {
    let new = NewVolume { zones: 24, zone_size: 256 << 10, probe: format };
    let options = objects::Options { format: format.then_some(new), ..options(format) };
    let zones: Arc<dyn ZonesPart> = Arc::new(ObjectsPart::open(options).await.unwrap());
    let of_log = Options { format, size: Some(1 << 20), ..Options::default() };
    let part = log::kind::open_on_zones(zones.clone(), &of_log).await.unwrap();
    (zones, part)
}

async fn write(device: &dyn Device, block: u64, value: u8) -> block::Result<()> {
    device.write(BlockIndex(block), Data::copy_of(&[value; 4096]).into(), Durability::Visible).await
}

async fn read(device: &dyn Device, block: u64) -> u8 {
    let (outcome, buffer) = device.read(BlockIndex(block), Buffer::new(4096)).await;
    outcome.unwrap();
    assert!(buffer.filled().iter().all(|byte| *byte == buffer.filled()[0]));
    buffer.filled()[0]
}

/// Writes, flushes, and crashes again and again, with cleaning: flushed data is there each time.
#[test]
fn a_log_in_a_bucket_survives_crashes_and_cleaning() {
    for seed in 1..=2 {
        world(seed, move |bucket| async move {
            let (_, part) = open(true).await;
            let mut device: Rc<dyn Device> = part.open().await.unwrap();
            let mut expected = [0_u8; 256];
            let mut random = runtime::Random::new(seed);
            let faults = Faults { lost_answer: 0.03, internal: 0.03, duplicate: 0.05, ..Faults::default() };
            for round in 0..5_u32 {
                bucket.faults.set(faults);
                for _ in 0..60 {
                    let (first, count, value) =
                        (random.below(240), 1 + random.below(16), random.below(255) as u8);
                    for block in first..first + count {
                        write(&*device, block, value).await.unwrap();
                        expected[block as usize] = value;
                    }
                }
                device.flush().await.unwrap();
                bucket.faults.set(Faults::default());
                drop(device);
                let (zones, part) = open(false).await;
                device = part.open().await.unwrap();
                for (block, value) in (0..).zip(expected) {
                    assert_eq!(
                        read(&*device, block).await,
                        value,
                        "seed {seed}, round {round}, block {block}"
                    );
                }
                // The writer before is fenced, and its log refuses writes.
                let status = zones.status().await;
                assert_eq!(status["epoch"], round + 2);
                if round == 4 {
                    drop(device);
                    part.close().await.unwrap();
                    zones.close().await.unwrap();
                    break;
                }
            }
        });
    }
}
