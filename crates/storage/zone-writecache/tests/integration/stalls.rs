//! An origin that is slow or doesn't answer delays only calls that need it, and a close for a limited time.

use crate::origins::{Mode, Switched};
use crate::promises::{KIB, filled, number, read, simulated};
use crate::{fast_device, open, ram_zones};
use block::{EraseGuarantee, Error, Part, ZoneAddress, ZoneIndex, ZoneState, ZonesPart};
use std::time::Duration;

/// A read that waits for the origin holds no space of the ring, and ends with a close.
#[test]
fn a_read_of_the_origin_that_never_returns_stops_neither_the_writer_nor_a_close() {
    simulated(|| async {
        let (fast, zones) = (fast_device(), ram_zones());
        let part = open(&fast, zones.clone(), true).await.unwrap();
        let handle = part.open().await.unwrap();
        handle.append(ZoneIndex(0), filled(1, 64 * KIB)).await.unwrap();
        part.message("flush").await.unwrap();
        // The ring loses the first half.
        for round in 0..60_u32 {
            let zone = ZoneIndex(1 + round % 11);
            handle.reset(zone, EraseGuarantee::None).await.unwrap();
            for _ in 0..4 {
                handle.append(zone, filled(2, 64 * KIB)).await.unwrap();
            }
        }
        part.message("flush").await.unwrap();
        drop(handle);
        part.close().await.unwrap();
        let (origin, switch) = Switched::new(zones.clone());
        let part = open(&fast, origin.clone(), false).await.unwrap();
        let handle = part.open().await.unwrap();
        handle.append(ZoneIndex(0), filled(1, 64 * KIB)).await.unwrap();
        switch.set(Mode::HangsReads);
        let begin = || {
            let handle = handle.clone();
            runtime::spawn(async move { read(&handle, ZoneAddress::new(0, 0), 128 * KIB).await })
        };
        let first = begin();
        runtime::sleep(Duration::from_millis(100)).await;
        assert!(number(&*part, "origin_reads").await > 0, "a part of the read is at the origin");
        let writes = async {
            for round in 0..60_u32 {
                let zone = ZoneIndex(1 + round % 11);
                handle.reset(zone, EraseGuarantee::None).await.unwrap();
                for _ in 0..4 {
                    handle.append(zone, filled(3, 64 * KIB)).await.unwrap();
                }
            }
        };
        runtime::timeout(Duration::from_secs(600), writes).await.expect("the writer has stopped");
        switch.set(Mode::Works);
        assert_eq!(first.await.unwrap(), [1; 128 * KIB]);
        switch.set(Mode::HangsReads);
        let second = begin();
        runtime::sleep(Duration::from_secs(20)).await;
        runtime::timeout(Duration::from_secs(60), part.close()).await.expect("a close ends").unwrap();
        assert!(matches!(second.await, Err(Error::Closed(_))));
        assert_eq!(part.use_of(&*origin), block::PartUse::Stalled);
    });
}

/// A close that can't upload everything returns the error, and closes the cache.
#[test]
fn a_close_that_uploads_everything_ends_without_the_origin() {
    for mode in [Mode::Fails, Mode::Hangs] {
        simulated(move || async move {
            let (fast, zones) = (fast_device(), ram_zones());
            let (origin, switch) = Switched::new(zones.clone());
            let part = open(&fast, origin.clone(), true).await.unwrap();
            let handle = part.open().await.unwrap();
            part.message("flush_on_suspend").await.unwrap();
            runtime::sleep(Duration::from_secs(1)).await;
            switch.set(mode);
            let at = handle.append(ZoneIndex(1), filled(9, 64 * KIB)).await.unwrap();
            let closed = runtime::timeout(Duration::from_secs(300), part.close()).await;
            let error = closed.expect("a close ends").expect_err("the origin lacks data");
            assert!(error.detail().contains("origin"), "{error}");
            assert_eq!(
                part.use_of(&*origin),
                block::PartUse::Stalled,
                "a clean close of the origin would seem to have everything"
            );
            // The cache was closed cleanly.
            let part = open(&fast, zones.clone(), false).await.unwrap();
            let handle = part.open().await.unwrap();
            assert_eq!(handle.report(ZoneIndex(1), 1).await.unwrap()[0].state, ZoneState::Closed);
            assert_eq!(read(&handle, at, 64 * KIB).await.unwrap(), [9; 64 * KIB]);
            part.close().await.unwrap();
        });
    }
}

/// A small append doesn't overtake a larger one that waits.
#[test]
fn appends_wait_in_their_order() {
    simulated(|| async {
        let (fast, zones) = (fast_device(), ram_zones());
        let (origin, switch) = Switched::new(zones);
        let part = open(&fast, origin, true).await.unwrap();
        let handle = part.open().await.unwrap();
        runtime::sleep(Duration::from_secs(1)).await;
        switch.set(Mode::Hangs);
        for zone in 0..15 {
            handle.append(ZoneIndex(zone / 4), filled(1, 64 * KIB)).await.unwrap();
        }
        handle.append(ZoneIndex(4), filled(2, 32 * KIB)).await.unwrap();
        let append = |zone, length| {
            let handle = handle.clone();
            runtime::spawn(async move { handle.append(ZoneIndex(zone), filled(3, length)).await })
        };
        let mut large = append(5, 64 * KIB);
        runtime::sleep(Duration::from_millis(10)).await;
        let mut small = append(6, 4 * KIB);
        let second = Duration::from_secs(1);
        assert!(runtime::timeout(second, &mut large).await.is_err(), "it exceeds the limit");
        assert!(runtime::timeout(second, &mut small).await.is_err(), "it arrived later");
        switch.set(Mode::Works);
        large.await.unwrap();
        small.await.unwrap();
        assert_eq!(number(&*part, "waiting_appends").await, 0);
        drop(handle);
        part.close().await.unwrap();
    });
}
