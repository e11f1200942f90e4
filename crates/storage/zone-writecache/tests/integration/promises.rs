//! Promises beyond the contract: the order of uploads, outages, the pairing of fast device and origin.

use crate::origins::{Mode, Switched};
use crate::{copy_of, fast_device, open, options, ram_zones, with_faults};
use block::{
    Buffer, Data, DevicePart, EraseGuarantee, Error, Part, Payload, ZoneAddress, ZoneIndex, ZoneState, Zones,
    ZonesPart,
};
use runtime::Simulation;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use zone_writecache::{Options, ZoneWriteCachePart};

pub const KIB: usize = 1024;

pub fn simulated<F: Future<Output = ()> + 'static>(main: impl FnOnce() -> F) {
    runtime::simulate(Simulation::new(7), main).unwrap();
}

pub fn filled(byte: u8, length: usize) -> Payload {
    Data::copy_of(&vec![byte; length]).into()
}

pub async fn read(handle: &Rc<dyn Zones>, at: ZoneAddress, length: usize) -> block::Result<Vec<u8>> {
    let (outcome, buffer) = handle.read(at, Buffer::new(length)).await;
    outcome.map(|()| buffer.filled().to_vec())
}

pub async fn number(part: &dyn Part, name: &str) -> u64 {
    let status = part.status().await;
    status.get(name).and_then(serde_json::Value::as_u64).unwrap_or_else(|| panic!("{name} in {status:?}"))
}

pub async fn text(part: &dyn Part, name: &str) -> String {
    part.status().await.get(name).map_or_else(String::new, |value| value.to_string())
}

#[test]
fn everything_is_uploaded_by_age_and_read_before_and_after() {
    simulated(|| async {
        let (fast, origin) = (fast_device(), ram_zones());
        let part = open(&fast, origin.clone(), true).await.unwrap();
        let handle = part.open().await.unwrap();
        let below = origin.open().await.unwrap();
        let at = handle.append(ZoneIndex(3), filled(5, 8 * KIB)).await.unwrap();
        handle.flush(&[ZoneIndex(3)]).await.unwrap();
        assert_eq!(read(&handle, at, 8 * KIB).await.unwrap(), [5; 8 * KIB]);
        assert_eq!(number(&*part, "lag_bytes").await, 8 * KIB as u64);
        assert_eq!(below.report(ZoneIndex(3), 1).await.unwrap()[0].write_pointer, 0);
        runtime::sleep(Duration::from_secs(3)).await;
        assert_eq!(number(&*part, "lag_bytes").await, 0);
        assert_eq!(below.report(ZoneIndex(3), 1).await.unwrap()[0].write_pointer, 8 * KIB as u64);
        assert_eq!(number(&*part, "origin_reads").await, 0, "the ring still has the data");
        assert_eq!(read(&handle, at, 8 * KIB).await.unwrap(), [5; 8 * KIB]);
        handle.finish(ZoneIndex(3)).await.unwrap();
        assert_eq!(handle.reset(ZoneIndex(4), EraseGuarantee::None).await.unwrap(), 2);
        assert!(handle.reset(ZoneIndex(4), EraseGuarantee::Erased).await.is_err());
        part.message("flush").await.unwrap();
        let reports = below.report(ZoneIndex(3), 2).await.unwrap();
        assert_eq!((reports[0].state, reports[1].generation), (ZoneState::Full, 2));
        // Ten minutes without users: no call to the origin.
        let changes = number(&*part, "origin_appends").await + number(&*part, "origin_flushes").await;
        runtime::sleep(Duration::from_secs(600)).await;
        assert_eq!(number(&*part, "origin_appends").await + number(&*part, "origin_flushes").await, changes);
        part.close().await.unwrap();
    });
}

/// The ring is overwritten many times; overwritten data is read from the origin.
#[test]
fn a_ring_is_overwritten_many_times() {
    simulated(|| async {
        let (fast, origin) = (fast_device(), ram_zones());
        let mut part = open(&fast, origin.clone(), true).await.unwrap();
        let mut handle = part.open().await.unwrap();
        let mut last = [0_u8; 12];
        for round in 0..30_u8 {
            for zone in 0..12_u32 {
                if round > 0 {
                    handle.reset(ZoneIndex(zone), EraseGuarantee::None).await.unwrap();
                }
                last[zone as usize] = round.wrapping_mul(12).wrapping_add(zone as u8);
                for _ in 0..4 {
                    handle.append(ZoneIndex(zone), filled(last[zone as usize], 64 * KIB)).await.unwrap();
                }
                handle.flush(&[ZoneIndex(zone)]).await.unwrap();
            }
            if round % 7 == 3 {
                drop(handle);
                part.close().await.unwrap();
                part = open(&fast, origin.clone(), false).await.unwrap();
                handle = part.open().await.unwrap();
            }
        }
        part.message("flush").await.unwrap();
        let below = origin.open().await.unwrap();
        for zone in 0..12 {
            for handle in [&handle, &below] {
                let found = read(handle, ZoneAddress::new(zone, 0), 256 * KIB).await.unwrap();
                assert!(found.iter().all(|byte| *byte == last[zone as usize]), "zone {zone}");
            }
        }
        part.close().await.unwrap();
    });
}

/// An origin that fails, is full or doesn't answer makes appends wait at the limit of the lag, and nothing
/// else.
#[test]
fn an_outage_makes_appends_wait() {
    for mode in [Mode::Fails, Mode::IsFull, Mode::Hangs] {
        simulated(move || async move {
            let (fast, zones) = (fast_device(), ram_zones());
            let (origin, switch) = Switched::new(zones.clone());
            let part = open(&fast, origin, true).await.unwrap();
            let handle = part.open().await.unwrap();
            switch.set(mode);
            let mut acknowledged = 0;
            let append =
                |number: u64| handle.append(ZoneIndex((number / 4) as u32), filled(number as u8, 64 * KIB));
            // The last append completes later.
            while let Ok(outcome) = runtime::timeout(Duration::from_secs(60), append(acknowledged)).await {
                outcome.unwrap();
                acknowledged += 1;
                // Flushes and reads continue.
                handle.flush(&[ZoneIndex(0)]).await.unwrap();
                assert_eq!(read(&handle, ZoneAddress::new(0, 0), KIB).await.unwrap(), [0; KIB]);
            }
            let lag = number(&*part, "lag_bytes").await;
            assert!((512 << 10..=1 << 20).contains(&lag), "{lag} bytes of lag after {acknowledged} appends");
            assert_eq!(number(&*part, "waiting_appends").await, 1);
            assert_eq!(part.fullness().await.unwrap().used_bytes, lag);
            if mode != Mode::Hangs {
                assert!(text(&*part, "origin_error").await.contains("the "), "{:?}", part.status().await);
            }
            // An hour later the origin works again.
            runtime::sleep(Duration::from_secs(3600)).await;
            assert_eq!(number(&*part, "waiting_appends").await, 1);
            switch.set(Mode::Works);
            runtime::sleep(Duration::from_secs(60)).await;
            assert_eq!((number(&*part, "waiting_appends").await, number(&*part, "lag_bytes").await), (0, 0));
            let below = zones.open().await.unwrap();
            for number in 0..=acknowledged {
                let at = ZoneAddress::new((number / 4) as u32, number % 4 * 64 * KIB as u64);
                assert_eq!(
                    read(&below, at, 64 * KIB).await.unwrap(),
                    [number as u8; 64 * KIB],
                    "append {number}"
                );
            }
            drop(handle);
            part.close().await.unwrap();
        });
    }
}

/// A close doesn't wait for an origin that never answers; nothing that was flushed is lost.
#[test]
fn a_close_during_an_outage_keeps_the_log() {
    simulated(|| async {
        let (fast, zones) = (fast_device(), ram_zones());
        let (origin, switch) = Switched::new(zones.clone());
        let part = open(&fast, origin.clone(), true).await.unwrap();
        let handle = part.open().await.unwrap();
        switch.set(Mode::Hangs);
        let at = handle.append(ZoneIndex(1), filled(9, 64 * KIB)).await.unwrap();
        runtime::sleep(Duration::from_secs(20)).await;
        drop(handle);
        runtime::timeout(Duration::from_secs(30), part.close()).await.unwrap().unwrap();
        assert_eq!(part.use_of(&*origin), block::PartUse::Stalled);
        assert_eq!(switch.changes(), 0);
        zones.crash(&mut runtime::Random::new(3));
        let part = open(&fast, zones.clone(), false).await.unwrap();
        let handle = part.open().await.unwrap();
        assert_eq!(handle.report(ZoneIndex(1), 1).await.unwrap()[0].state, ZoneState::Closed);
        assert_eq!(read(&handle, at, 64 * KIB).await.unwrap(), [9; 64 * KIB]);
        handle.append(ZoneIndex(1), filled(10, KIB)).await.unwrap();
        part.message("flush").await.unwrap();
        let below = zones.open().await.unwrap();
        assert_eq!(read(&below, at, 64 * KIB).await.unwrap(), [9; 64 * KIB]);
        assert_eq!(below.report(ZoneIndex(1), 1).await.unwrap()[0].write_pointer, 65 * KIB as u64);
        part.close().await.unwrap();
    });
}

#[test]
fn a_fast_device_that_fails_ends_changes_with_its_error() {
    simulated(|| async {
        let fast = with_faults(fast_device(), ["write error=EIO after=40"], 1);
        let part = open(&fast, ram_zones(), true).await.unwrap();
        let handle = part.open().await.unwrap();
        let mut failed = None;
        for _ in 0..200 {
            if let Err(error) = handle.append(ZoneIndex(0), filled(1, KIB)).await {
                failed = Some(error);
                break;
            }
        }
        let error = failed.unwrap();
        assert!(error.detail().contains("the fast device failed"), "{error}");
        for outcome in [handle.flush(&[]).await, handle.finish(ZoneIndex(0)).await] {
            assert!(matches!(outcome, Err(Error::Io(_))), "{outcome:?}");
        }
        assert_eq!(read(&handle, ZoneAddress::new(0, 0), KIB).await.unwrap(), [1; KIB], "reads continue");
        assert!(part.close().await.is_err());
    });
}

/// Uses a cache, uploads everything, and closes it. Returns its fast device and its origin.
async fn used(zone: u32) -> (Arc<dyn DevicePart>, Arc<zones::RamZones>) {
    let (fast, origin) = (fast_device(), ram_zones());
    let part = open(&fast, origin.clone(), true).await.unwrap();
    let handle = part.open().await.unwrap();
    handle.append(ZoneIndex(zone), filled(zone as u8, 4 * KIB)).await.unwrap();
    handle.finish(ZoneIndex(zone)).await.unwrap();
    part.message("flush").await.unwrap();
    drop(handle);
    part.close().await.unwrap();
    (fast, origin)
}

#[test]
fn only_the_pair_that_was_used_together_opens() {
    simulated(|| async {
        let (fast, origin) = used(1).await;
        let (_, other) = used(2).await;
        let older = copy_of(&fast).await;
        let refused = async |fast: &Arc<dyn DevicePart>, origin: &Arc<zones::RamZones>, what: &str| {
            let handle = origin.open().await.unwrap();
            let before = handle.report(ZoneIndex(0), 12).await.unwrap();
            let error = open(fast, origin.clone(), false).await.err().expect(what);
            assert!(matches!(error, Error::Protocol(_)), "{error}");
            assert!(error.detail().contains(what), "{error}");
            assert_eq!(handle.report(ZoneIndex(0), 12).await.unwrap(), before, "nothing was written");
        };
        refused(&fast, &other, "it is older than the fast device").await;
        refused(&fast, &ram_zones(), "it is older than the fast device").await;
        // The origin is written with a newer copy of the fast device, and directly.
        let part = open(&fast, origin.clone(), false).await.unwrap();
        let handle = part.open().await.unwrap();
        handle.reset(ZoneIndex(1), EraseGuarantee::None).await.unwrap();
        part.message("flush").await.unwrap();
        drop(handle);
        part.close().await.unwrap();
        refused(&older, &origin, "it was written without the fast device").await;
        let direct = origin.open().await.unwrap();
        direct.append(ZoneIndex(5), filled(1, KIB)).await.unwrap();
        direct.flush(&[ZoneIndex(5)]).await.unwrap();
        refused(&fast, &origin, "it was written without the fast device").await;
    });
}

#[test]
fn a_lost_fast_device_is_replaced_only_on_request() {
    simulated(|| async {
        let (_, origin) = used(1).await;
        let empty = fast_device();
        let error = open(&empty, origin.clone(), false).await.err().expect("it holds no cache");
        assert!(matches!(&error, Error::NotFound(text) if text.contains("new_fast=true")), "{error}");
        let replaced = Options { new_fast: true, ..options(false) };
        let part = ZoneWriteCachePart::open(empty.clone(), origin.clone(), replaced).await.unwrap();
        let handle = part.open().await.unwrap();
        assert_eq!(read(&handle, ZoneAddress::new(1, 0), 4 * KIB).await.unwrap(), [1; 4 * KIB]);
        handle.append(ZoneIndex(2), filled(2, KIB)).await.unwrap();
        drop(handle);
        part.close().await.unwrap();
        // The key has no effect on a device with a cache, and overwrites nothing else.
        let part = ZoneWriteCachePart::open(empty, origin.clone(), replaced).await.unwrap();
        let handle = part.open().await.unwrap();
        assert_eq!(read(&handle, ZoneAddress::new(2, 0), KIB).await.unwrap(), [2; KIB]);
        drop(handle);
        part.close().await.unwrap();
        let other = fast_device();
        let device = other.open().await.unwrap();
        device.write(block::BlockIndex(0), filled(7, 4 * KIB), block::Durability::Durable).await.unwrap();
        let error =
            ZoneWriteCachePart::open(other, origin, replaced).await.err().expect("it holds other data");
        assert!(matches!(error, Error::NotFound(_)), "{error}");
    });
}

/// A damaged record of the log that was flushed is an error, not the end of the log.
#[test]
fn a_damaged_record_is_refused() {
    simulated(|| async {
        let (fast, zones) = (fast_device(), ram_zones());
        let (origin, switch) = Switched::new(zones.clone());
        let part = open(&fast, origin, true).await.unwrap();
        let handle = part.open().await.unwrap();
        switch.set(Mode::Fails);
        for byte in 1..=6 {
            handle.append(ZoneIndex(0), filled(byte, 4 * KIB)).await.unwrap();
            handle.flush(&[ZoneIndex(0)]).await.unwrap();
        }
        let copy = copy_of(&fast).await;
        let device = copy.open().await.unwrap();
        let (_, buffer) = device.read(block::BlockIndex(0), Buffer::new(crate::FAST as usize)).await;
        let find = |byte: u8| {
            let blocks = buffer.filled().chunks_exact(4 * KIB);
            blocks.zip(0..).find(|(block, _)| block.iter().all(|it| *it == byte)).unwrap().1
        };
        // The data of the last record is torn: no later record shows that it was durable.
        let last = find(6);
        device.write(block::BlockIndex(last), filled(99, 4 * KIB), block::Durability::Durable).await.unwrap();
        let torn = copy_of(&copy).await;
        let part = open(&torn, zones.clone(), false).await.unwrap();
        let handle = part.open().await.unwrap();
        assert_eq!(handle.report(ZoneIndex(0), 1).await.unwrap()[0].write_pointer, 20 * KIB as u64);
        // The header of an earlier record is torn, and a later record shows that it was durable.
        device
            .write(block::BlockIndex(find(3) - 1), filled(98, 4 * KIB), block::Durability::Durable)
            .await
            .unwrap();
        let error = open(&copy, ram_zones(), false).await.err().expect("a record is missing");
        assert!(matches!(&error, Error::Corrupt(text) if text.contains("record 3")), "{error}");
    });
}
