//! Another writer claims the bucket: uploads end, and appends and flushes fail with the store's error.

use crate::bucket::{How, empty_disk, open_bucket, open_cache, open_log, world};
use block::{
    BlockIndex, Data, DevicePart, Durability, EraseGuarantee, Error, Part, Result, ZoneIndex, ZonesPart,
};
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

fn assert_fenced<T: Debug>(outcome: Result<T>) {
    let error = outcome.unwrap_err();
    assert!(matches!(error, Error::ReadOnly(_)) && error.detail().contains("fenced"), "{error}");
}

fn filled(value: u8) -> block::Payload {
    Data::copy_of(&[value; 4096]).into()
}

#[test]
fn a_fenced_write_cache_acknowledges_nothing_more() {
    world(1, |bucket| async move {
        let cache = open_cache(Arc::new(empty_disk()), How::Format).await.unwrap();
        let handle = cache.open().await.unwrap();
        handle.append(ZoneIndex(0), filled(1)).await.unwrap();
        handle.flush(&[ZoneIndex(0)]).await.unwrap();
        cache.message("flush").await.unwrap();
        let other = open_bucket(false).await;
        let other_handle = other.open().await.unwrap();
        // Only the next upload notices the fence.
        handle.append(ZoneIndex(0), filled(2)).await.unwrap();
        handle.flush(&[ZoneIndex(0)]).await.unwrap();
        assert!(cache.status().await.get("conflict").is_none());
        runtime::sleep(Duration::from_secs(5)).await;
        assert!(cache.status().await["conflict"].as_str().unwrap().contains("fenced"));
        assert_fenced(handle.append(ZoneIndex(0), filled(3)).await);
        assert_fenced(handle.flush(&[ZoneIndex(0)]).await);
        assert_fenced(handle.flush(&[]).await);
        assert_fenced(handle.finish(ZoneIndex(0)).await);
        assert_fenced(handle.reset(ZoneIndex(1), EraseGuarantee::None).await);
        assert_fenced(cache.message("flush").await);
        // Uploads have ended.
        let sent = bucket.count("PUT");
        runtime::sleep(Duration::from_secs(600)).await;
        assert_eq!(bucket.count("PUT"), sent);
        let report = other_handle.report(ZoneIndex(0), 1).await.unwrap()[0];
        assert_eq!(report.write_pointer, 4096, "only what was uploaded before the fence");
        drop(handle);
        cache.close().await.unwrap();
    });
}

/// Calls that wait when the fence is found end with it.
#[test]
fn appends_that_wait_for_space_end_with_the_fence() {
    world(2, |_bucket| async move {
        let cache = open_cache(Arc::new(empty_disk()), How::Format).await.unwrap();
        let handle = cache.open().await.unwrap();
        handle.append(ZoneIndex(0), filled(1)).await.unwrap();
        cache.message("flush").await.unwrap();
        let _other = open_bucket(false).await;
        let appends = (0..600_u32).map(|number| handle.append(ZoneIndex(number % 12), filled(2)));
        let outcomes = runtime::timeout(Duration::from_secs(60), runtime::join_all(appends)).await.unwrap();
        let refused: Vec<_> = outcomes.into_iter().filter(Result::is_err).collect();
        assert!(refused.len() > 300, "{} appends were refused", refused.len());
        refused.into_iter().for_each(assert_fenced);
        assert_fenced(handle.flush(&[]).await);
    });
}

/// A log on the cache returns the error to its clients.
#[test]
fn clients_of_a_log_see_the_fence() {
    world(3, |_bucket| async move {
        let (cache, log) = open_log(Arc::new(empty_disk()), How::Format).await.unwrap();
        let device = log.open().await.unwrap();
        let write = async || {
            device.write(BlockIndex(1), filled(1), Durability::Visible).await?;
            device.flush().await
        };
        write().await.unwrap();
        cache.message("flush").await.unwrap();
        let _other = open_bucket(false).await;
        write().await.unwrap();
        runtime::sleep(Duration::from_secs(5)).await;
        assert_fenced(write().await);
        assert_fenced(device.write(BlockIndex(2), filled(1), Durability::Durable).await);
    });
}
