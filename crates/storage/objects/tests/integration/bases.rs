//! Bases beside the deltas: other bytes under their keys replace nothing, and `gc` finds garbage of the
//! writer's own epoch that didn't fit into the list of garbage.

use crate::common::{append, create, handle, read, reopen, world};
use block::{Part, ZoneIndex, Zones};
use object_store::testing::{Bucket, Stored};
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

const BLOCK: usize = 512;
/// The first delta, which the first further base replaces.
const FIRST: &str = "db1/manifest/00000001/0000000000000002";

/// Stores other bytes in place of the first `count` bases, and answers with their checksum. Returns their
/// keys.
fn damage_bases(bucket: &Rc<Bucket>, count: usize) -> Rc<RefCell<Vec<String>>> {
    let damaged: Rc<RefCell<Vec<String>>> = Rc::default();
    let (own, keys) = (Rc::downgrade(bucket), damaged.clone());
    bucket.follow(move |asked| {
        let is_base = asked.method == "PUT" && asked.key.ends_with(".base");
        if !is_base || keys.borrow().len() == count || keys.borrow().contains(&asked.key) {
            return None;
        }
        let mut bytes = asked.body.clone();
        match keys.borrow().len() {
            0 => bytes.truncate(70),
            at => bytes[60 + at] ^= 1,
        }
        let altered = Stored { bytes, etag: "\"1\"".to_owned(), headers: Vec::new() };
        own.upgrade()?.objects.borrow_mut().insert(asked.key.clone(), altered);
        keys.borrow_mut().push(asked.key.clone());
        let head =
            "HTTP/1.1 200 x\r\netag: \"1\"\r\nx-amz-checksum-crc32c: AAAAAA==\r\ncontent-length: 0\r\n\r\n";
        Some(head.as_bytes().to_vec())
    });
    damaged
}

async fn flush(zones: &dyn Zones) {
    append(zones, 0, 1, BLOCK).await;
    zones.flush(&[ZoneIndex(0)]).await.unwrap();
}

#[test]
fn other_bytes_in_place_of_a_base_replace_nothing() {
    world(1, |bucket| async move {
        let part = create().await;
        let zones = handle(&part).await;
        let (damaged, mut flushes) = (damage_bases(&bucket, 3), 0);
        while damaged.borrow().len() < 3 {
            flush(&*zones).await;
            flushes += 1;
            runtime::sleep(Duration::from_millis(100)).await;
        }
        runtime::sleep(Duration::from_secs(100)).await;
        let first = bucket.objects.borrow().get(FIRST).cloned().expect("no base replaces it");
        assert_eq!(read(&*zones, 0, 0, flushes * BLOCK).await, Ok(vec![1; flushes * BLOCK]));
        // The base after the next delta is as it was written, and another delta links to it.
        let base = || bucket.objects.borrow().keys().find(|key| key.ends_with(".base")).cloned();
        assert_eq!(base(), None, "garbage");
        for _ in 0..2 {
            flush(&*zones).await;
            runtime::sleep(Duration::from_secs(1)).await;
        }
        let base = base().unwrap();
        runtime::sleep(Duration::from_secs(100)).await;
        assert!(!bucket.objects.borrow().contains_key(FIRST) && !damaged.borrow().contains(&base));
        // Garbage that doesn't fit into the list: a delta, a base, and a piece of an earlier attempt. A
        // later piece may be one that is being uploaded.
        assert_eq!(part.message("gc").await.unwrap(), "0 objects will be deleted");
        let piece =
            |serial: u64| format!("db1/zones/00000007.0000000000000001.00000001/000000000000.{serial:016x}");
        let old = [FIRST.to_owned(), format!("{FIRST}.base"), piece(0)];
        for key in old.iter().cloned().chain([piece(u64::MAX)]) {
            bucket.objects.borrow_mut().insert(key, first.clone());
        }
        assert_eq!(part.message("gc").await.unwrap(), "3 objects will be deleted");
        runtime::sleep(Duration::from_secs(100)).await;
        assert!(old.iter().all(|key| !bucket.objects.borrow().contains_key(key)));
        assert!(bucket.objects.borrow().contains_key(&piece(u64::MAX)));
        assert_eq!(part.status().await["dropped_objects"], 0);
        let zones = handle(&reopen().await).await;
        let length = (flushes + 2) * BLOCK;
        assert_eq!(read(&*zones, 0, 0, length).await, Ok(vec![1; length]));
    });
}
