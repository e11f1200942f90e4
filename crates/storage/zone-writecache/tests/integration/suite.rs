//! The conformance suite.

use crate::{copy_of, fast_device, open, ram_zones};
use block::{BlockSize, Call, DevicePart, ZonesPart};
use conformance::zones::{Options, run};
use runtime::Random;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use zones::{OnDevice, on_device};

/// Over zones in memory. A crash kills the process and cuts the power of the origin.
async fn over_ram_zones() -> Result<(), String> {
    let fast = Rc::new(Mutex::new(fast_device()));
    let origin = ram_zones();
    let formatted = Mutex::new(false);
    let (held, zones) = (fast.clone(), origin.clone());
    let make = async || {
        let format = !std::mem::replace(&mut *formatted.lock().unwrap(), true);
        let device = held.lock().unwrap().clone();
        open(&device, zones.clone(), format).await.unwrap() as Arc<dyn ZonesPart>
    };
    let crash = move |_: Arc<dyn ZonesPart>| {
        let (fast, origin) = (fast.clone(), origin.clone());
        Call::new(async move {
            let before = fast.lock().unwrap().clone();
            let copy = copy_of(&before).await;
            *fast.lock().unwrap() = copy.clone();
            origin.crash(&mut Random::new(runtime::random_u64()));
            open(&copy, origin, false).await.unwrap() as Arc<dyn ZonesPart>
        })
    };
    run(make, Options { persistent: true, crash: Some(Rc::new(crash)), ..Options::default() }).await
}

/// Over zones on a device, with limits of open and active zones.
async fn over_zones_on_a_device() -> Result<(), String> {
    let device: Arc<dyn DevicePart> =
        Arc::new(disks::ram::RamPart::new(10 << 20, BlockSize::default()).unwrap());
    let fast = fast_device();
    let formatted = Mutex::new(false);
    let origin = Rc::new(Mutex::new(None::<Arc<dyn ZonesPart>>));
    let make = async || {
        let format = !std::mem::replace(&mut *formatted.lock().unwrap(), true);
        let before = origin.lock().unwrap().take();
        if let Some(before) = before {
            before.close().await.unwrap();
        }
        let zone_size = format.then_some(512 << 10);
        let options =
            on_device::Options { format, zone_size, max_open: 4, max_active: 6, ..Default::default() };
        let zones: Arc<dyn ZonesPart> = Arc::new(OnDevice::open(device.clone(), options).await.unwrap());
        *origin.lock().unwrap() = Some(zones.clone());
        open(&fast, zones, format).await.unwrap() as Arc<dyn ZonesPart>
    };
    run(make, Options { persistent: true, ..Options::default() }).await
}

#[test]
fn the_cache_keeps_the_promises() {
    for shards in [1, 2] {
        let config = || runtime::Config::default().with_shards(shards);
        runtime::run(config(), over_ram_zones).unwrap().unwrap();
        runtime::run(config(), over_zones_on_a_device).unwrap().unwrap();
    }
}

#[test]
fn simulated_orders_keep_the_promises() {
    for seed in if conformance::budget::is_long() { 1..=5 } else { 1..=1 } {
        let simulation =
            || runtime::Simulation { shards: 2, most_events: 200_000_000, ..runtime::Simulation::new(seed) };
        runtime::simulate(simulation(), over_ram_zones).unwrap().value.unwrap();
        runtime::simulate(simulation(), over_zones_on_a_device).unwrap().value.unwrap();
    }
}
