//! The write cache of zones: its promises, and the suite of the contract.
#![allow(clippy::unwrap_used)] // All of this is tests, the functions that they share as well.

mod ack;
mod bucket;
#[path = "../../../zones/tests/integration/common/mod.rs"]
mod crash_disk;
mod fence;
mod flushes;
mod origins;
mod promises;
mod read_cache;
mod recovery;
mod stalls;
mod suite;
mod time;
mod together;
mod uploads;
mod writers;

use block::{BlockIndex, BlockSize, Buffer, DevicePart, Durability, ZonesPart};
use layers::fault::{FaultDevicePart, parse_rules};
use std::sync::Arc;
use std::time::Duration;
use zone_writecache::{MaxLag, Options, ZoneWriteCachePart};
use zones::ram::{self, RamZones};

/// Bytes of a fast device.
const FAST: u64 = 12 << 20;

fn fast_device() -> Arc<dyn DevicePart> {
    Arc::new(disks::ram::RamPart::new(FAST, BlockSize::default()).unwrap())
}

/// A device with these rules of faults, whose probabilities are drawn by this seed.
fn with_faults(
    device: Arc<dyn DevicePart>,
    rules: impl IntoIterator<Item = impl Into<String>>,
    seed: u64,
) -> Arc<dyn DevicePart> {
    let rules: Vec<String> = rules.into_iter().map(Into::into).collect();
    let rules = parse_rules(&rules, stack::Contract::Device).unwrap();
    Arc::new(FaultDevicePart::new(device, rules, seed).unwrap())
}

/// Origin in memory, durable on flush.
fn ram_zones() -> Arc<RamZones> {
    let options = ram::Options {
        zones: 12,
        zone_size: 256 << 10,
        max_append: 64 << 10,
        durable: block::Durable::OnFlush,
        ..ram::Options::default()
    };
    Arc::new(RamZones::new(options).unwrap())
}

fn options(format: bool) -> Options {
    let max_lag = MaxLag { bytes: 1 << 20, age: Duration::from_secs(5) };
    Options { format, max_lag, timeout: Duration::from_secs(20), ..Options::default() }
}

async fn open(
    fast: &Arc<dyn DevicePart>,
    origin: Arc<dyn ZonesPart>,
    format: bool,
) -> block::Result<Arc<ZoneWriteCachePart>> {
    ZoneWriteCachePart::open(fast.clone(), origin, options(format)).await.map(Arc::new)
}

/// Copy of a device as it is now: the state that a kill of the process leaves.
async fn copy_of(fast: &Arc<dyn DevicePart>) -> Arc<dyn DevicePart> {
    let copy = fast_device();
    let (from, to) = (fast.open().await.unwrap(), copy.open().await.unwrap());
    let (outcome, buffer) = from.read(BlockIndex(0), Buffer::new(FAST as usize)).await;
    outcome.unwrap();
    to.write(BlockIndex(0), buffer.into(), Durability::Durable).await.unwrap();
    copy
}
