//! The erase obligation of the counters of `engine`: once a value is reported as erased, the disk holds no
//! older value.

use block::{BlockIndex, BlockSize, Buffer, Device, DevicePart, Result};
use disks::ram::RamPart;
use siltstone_tests::engine::{Broken, Counters, Options};
use siltstone_tests::oracle::in_simulation;
use std::rc::Rc;
use std::sync::Arc;

const COUNTERS: u32 = 20;
const SECRET: u32 = 6;
const DISK: u64 = 1 << 20;

/// Whether any block of the disk holds this value of the counter.
async fn is_on_disk(disk: &Rc<dyn Device>, counter: u32, value: u64) -> Result<bool> {
    let length = disk.geometry().block_size.bytes_of(disk.geometry().blocks) as usize;
    let (outcome, buffer) = disk.read(BlockIndex(0), Buffer::new(length)).await;
    outcome?;
    let mut wanted = counter.to_le_bytes().to_vec();
    wanted.extend(value.to_le_bytes());
    Ok(buffer.filled().chunks_exact(4096).any(|block| block.starts_with(&wanted)))
}

/// Sets a counter, overwrites the value, sets counters until the old value is reported as erased, and looks
/// for it on the disk.
async fn is_left(shards: u32, broken: Option<Broken>) -> Result<bool> {
    let disk: Arc<dyn DevicePart> = Arc::new(RamPart::new(DISK, BlockSize::default())?);
    let handle = disk.open().await?;
    let on_device =
        zones::on_device::Options { format: true, zone_size: Some(32 << 10), ..Default::default() };
    let zones = Arc::new(zones::OnDevice::open(disk, on_device).await?);
    let options = Options {
        counters: COUNTERS,
        shards,
        checkpoint_blocks: 16,
        erase: true,
        check_sums: true,
        prepare_zones: true,
        broken,
    };
    let counters = Counters::format(zones, options).await?;
    let secret = u64::MAX / 7;
    counters.set_both([(SECRET, secret), (SECRET + 1, secret)]).await?;
    counters.flush().await?;
    assert!(is_on_disk(&handle, SECRET, secret).await?, "it was written");
    counters.set(SECRET, 1).await?;
    counters.set(SECRET + 1, 1).await?;
    assert!(!counters.older_values_are_erased(SECRET).await?, "nothing has been reset");
    let mut rounds = 0;
    while !counters.older_values_are_erased(SECRET).await? {
        rounds += 1;
        assert!(rounds < 100_000, "the zones are never reset");
        counters.set((rounds % u64::from(COUNTERS)) as u32 & !7, rounds).await?;
    }
    println!("{shards} shards: erased after {rounds} blocks");
    let is_left = is_on_disk(&handle, SECRET, secret).await?;
    counters.close().await?;
    Ok(is_left)
}

#[test]
fn what_is_said_to_be_erased_is_not_on_the_disk() {
    for shards in [1, 2] {
        assert!(!in_simulation(1, move || is_left(shards, None)).unwrap());
    }
}

#[test]
fn contents_that_a_reset_leaves_are_found() {
    assert!(in_simulation(1, || is_left(1, Some(Broken::ErasesNothing))).unwrap());
}
