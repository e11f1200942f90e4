//! What a mirror promises while it runs: legs that fail, lag, are brought back; on the contract's own suite and beyond it.
#![allow(clippy::unwrap_used)] // All of this is tests.

mod common;

use block::{BlockCount, BlockIndex, BlockSize, DeviceGeometry, DevicePart, Durability, Error, Part};
use common::{full, on_a_shard, read, write};
use layers::fault::{FaultDevicePart, parse_rules};
use layers::mirror::{Mask, MirrorPart, Plan, Settings, Wishes};
use layers::record::replay::ImageDisk;
use stack::Contract;
use std::sync::Arc;
use std::time::Duration;

fn disk(blocks: u64, block_size: u64) -> Arc<dyn DevicePart> {
    Arc::new(ImageDisk::empty(DeviceGeometry {
        block_size: BlockSize::new(block_size).unwrap(),
        blocks: BlockCount(blocks * 4096 / block_size),
        atomic_write: 512,
        volatile_cache: true,
        read_only: false,
    }))
}

fn settings() -> Settings {
    Settings {
        write_mostly: 0,
        write_behind: 0,
        behind_bytes: 64 << 20,
        fast_flush: false,
        bitmap_delay: Duration::from_secs(5),
        sync_speed_max: 0,
        first_leg: false,
    }
}

fn plan(legs: &[Arc<dyn DevicePart>], format: bool) -> Plan {
    let names = ["a", "b", "c"].into_iter().map(str::to_owned);
    Plan {
        legs: names.zip(legs.iter().cloned()).collect(),
        settings: settings(),
        wishes: Wishes::default(),
        format,
        bitmap_chunk: format.then_some(16 << 10),
    }
}

fn suite(make: impl Fn() -> Plan + Send + 'static) {
    let config = runtime::Config::default().with_shards(2);
    let main = move || async move {
        let make = async || Arc::new(MirrorPart::open(make()).await.unwrap()) as Arc<dyn DevicePart>;
        conformance::device::run(make, Default::default()).await
    };
    runtime::run(config, main).unwrap().unwrap_or_else(|broken| panic!("{broken}"));
}

#[test]
fn the_suite_on_two_legs_of_different_blocks() {
    suite(|| plan(&[disk(700, 512), disk(800, 4096)], true));
}

#[test]
fn the_suite_on_three_legs_one_of_which_lags() {
    suite(|| {
        let rules = parse_rules(&["any delay=0us..300us probability=0.5".into()], Contract::Device).unwrap();
        let slow = Arc::new(FaultDevicePart::new(disk(700, 4096), rules, 5).unwrap());
        let mut plan = plan(&[disk(700, 4096), slow, disk(700, 4096)], true);
        plan.settings = Settings {
            write_mostly: 0b10,
            write_behind: 8,
            bitmap_delay: Duration::from_millis(1),
            ..plan.settings
        };
        plan
    });
}
