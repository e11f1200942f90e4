//! Memory of a volume with a full TiB, and of appends that aren't uploaded.

#![allow(clippy::unwrap_used)]

#[path = "../integration/common.rs"]
#[allow(dead_code)] // Other tests use the rest.
mod common;

use block::{Part, ZoneIndex, ZonesPart};
use conformance::allocations::{Counting, bytes};
use objects::{NewVolume, ObjectsPart, Settings};
use std::time::Duration;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Settings of a stack without keys.
fn open(format: Option<NewVolume>) -> impl Future<Output = block::Result<ObjectsPart>> {
    ObjectsPart::open(objects::Options { format, settings: Settings::default(), ..common::options(false) })
}

#[test]
fn a_full_tib_has_the_memory_that_the_book_says() {
    common::world(1, |bucket| async move {
        let new = NewVolume { zones: 8192, zone_size: 128 << 20, probe: false };
        open(Some(new)).await.unwrap();
        common::fill_table(&bucket, 8192, 8152, 16);
        // The other ends of connections have buffers here as well.
        bucket.closes.set(true);
        // The store's copies of the manifests aren't counted twice.
        let stored = || -> usize { bucket.objects.borrow().values().map(|object| object.bytes.len()).sum() };
        let (before, stored_before) = (bytes(), stored());
        let part = open(None).await.unwrap();
        runtime::sleep(Duration::from_secs(600)).await;
        let taken = bytes() - before - (stored() - stored_before) as u64;
        println!("an open TiB: {taken} bytes");
        // With buffers of simulated sockets, which hold a base of 2 MiB up to three times.
        assert!(taken < 12 << 20, "{taken} bytes");
        // Appends of 4 KiB to all open zones, less than a piece each.
        let zones = part.open().await.unwrap();
        let before = bytes();
        for round in 0..8192_u32 {
            let zone = ZoneIndex(8152 + round % 40);
            zones.append(zone, common::bytes(1, 4096)).await.unwrap();
        }
        let held = bytes() - before;
        println!("32 MiB of appends: {held} bytes");
        assert_eq!(part.status().await["unsaved_bytes"], 32 << 20);
        assert!(held < 38 << 20, "{held} bytes");
    });
}
