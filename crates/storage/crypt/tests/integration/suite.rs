//! Encryption keeps the promises of its contract.

use block::{BlockSize, DevicePart};
use conformance::device::Options;
use crypt::device::{CryptPart, Segment};
use crypt::{luks, secret};
use disks::ram::RamPart;
use std::sync::Arc;

/// Memory of `bytes`, with this block size: it mixes the bytes of overlapping requests of two shards.
pub fn disk_of(bytes: u64, block_size: u64) -> Arc<dyn DevicePart> {
    Arc::new(RamPart::new(bytes, BlockSize::new(block_size).expect("a size")).expect("address space"))
}

/// The suite with `operations` random ones on two shards, of the kernel's runtime and of a simulated one.
fn holds(operations: usize, make: impl AsyncFn() -> Arc<dyn DevicePart> + Clone + Send + 'static) {
    let (real, simulated) = (make.clone(), make);
    let options = move || Options { operations, ..Options::default() };
    let config = runtime::Config::default().with_shards(2);
    let suite = async move || conformance::device::run(real, options()).await;
    runtime::run(config, suite).expect("the runtime starts").unwrap_or_else(|broken| panic!("{broken}"));
    let simulation = runtime::Simulation::new(7).with_shards(2);
    let suite = async move || conformance::device::run(simulated, options()).await;
    let run = runtime::simulate(simulation, suite).expect("it ends");
    run.value.unwrap_or_else(|broken| panic!("simulated: {broken}"));
}

fn plain(key: usize, block_size: u64, sector_size: usize, discards: bool) {
    holds(1000, async move || {
        let segment = Segment { offset: 0, bytes: None, tweak: 0, sector_size };
        let cipher = secret::expand(&vec![7; key]).expect("a key");
        let part = CryptPart::new(disk_of(4 << 20, block_size), cipher, segment, discards);
        Arc::new(part.expect("it fits")) as Arc<dyn DevicePart>
    });
}

#[test]
fn plain_on_blocks_of_a_sector() {
    plain(64, 512, 4096, false);
}

#[test]
fn plain_on_larger_blocks() {
    plain(32, 8192, 4096, false);
}

#[test]
fn plain_with_small_sectors_and_discards() {
    plain(64, 4096, 512, true);
}

#[test]
fn plain_with_discards() {
    plain(64, 512, 4096, true);
}

#[test]
fn luks_on_blocks_of_a_sector() {
    holds(400, async || {
        let disk = disk_of(20 << 20, 512);
        let passphrase = || secret::copy_of(b"passphrase").expect("a page");
        let format = luks::NewVolume { sector_size: 4096, discards: false, memory: 64 << 10, iterations: 1 };
        luks::format(&disk, passphrase(), format).await.expect("it fits");
        Arc::new(luks::open(disk, passphrase(), luks::MAX_MEMORY).await.expect("it opens"))
            as Arc<dyn DevicePart>
    });
}
