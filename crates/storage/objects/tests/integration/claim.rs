//! Finding a volume changes nothing; a claim depends on the one that was found.

use crate::common::{ZONES, append, bytes, create, handle, options, read, world};
use block::{ClaimToken, EraseGuarantee, Error, Part, ZoneIndex, ZonesPart};
use object_store::testing::Bucket;
use objects::{ObjectsPart, Options};
use runtime::ShardIndex;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

async fn find(format: bool) -> ObjectsPart {
    ObjectsPart::find(options(format)).await.unwrap()
}

/// Objects of the bucket: keys and contents.
fn all(bucket: &Rc<Bucket>) -> BTreeMap<String, Vec<u8>> {
    let objects = bucket.objects.borrow();
    objects.iter().map(|(key, stored)| (key.clone(), stored.bytes.clone())).collect()
}

fn token(owner: u8, count: u64) -> ClaimToken {
    ClaimToken { owner: [owner; 16], count }
}

#[test]
fn a_volume_that_is_found_keeps_its_writer_until_the_first_handle() {
    world(1, |bucket| async move {
        let first = create().await;
        let old = handle(&first).await;
        append(&*old, 0, 1, 4096).await;
        old.flush(&[ZoneIndex(0)]).await.unwrap();
        let before = all(&bucket);
        let second = find(false).await;
        assert_eq!(second.geometry().zones, ZONES);
        let status = second.status().await;
        assert_eq!((&status["state"], &status["epoch"]), (&"not claimed".into(), &1.into()));
        let claim = second.last_claim().await.unwrap().unwrap();
        assert_eq!((claim.number, &*claim.writer, claim.token), (1, "a test", None));
        find(false).await.close().await.unwrap();
        assert_eq!(all(&bucket), before, "nothing was changed");
        // The claim finds manifests that the writer adds after that.
        append(&*old, 0, 2, 4096).await;
        old.flush(&[ZoneIndex(0)]).await.unwrap();
        let new = handle(&second).await;
        assert_eq!(read(&*new, 0, 4096, 4096).await.unwrap(), vec![2; 4096]);
        append(&*old, 0, 3, 4096).await;
        assert!(matches!(old.flush(&[ZoneIndex(0)]).await, Err(Error::ReadOnly(_))));
        assert_eq!(second.status().await["epoch"], 2);
        assert_eq!(second.last_claim().await.unwrap().unwrap().number, 2);
        second.close().await.unwrap();
    });
}

#[test]
fn a_claim_fails_after_another_one_than_the_one_that_was_found() {
    world(2, |_bucket| async move {
        create().await;
        let (first, second) = (find(false).await, find(false).await);
        let claim = first.claim(token(7, 3)).await.unwrap().unwrap();
        assert_eq!((claim.number, claim.token), (2, Some(token(7, 3))));
        let handle = handle(&first).await;
        let refused = second.open().await.map(drop).unwrap_err();
        assert!(
            matches!(&refused, Error::Busy(text) if text.contains("epoch 2") && text.contains("a test")),
            "{refused}"
        );
        assert_eq!(second.status().await["state"], "fenced or ended");
        assert!(matches!(second.claim(token(8, 1)).await, Err(Error::Busy(_))), "it has to be opened again");
        second.close().await.unwrap();
        // The winner has no seal in its epoch.
        append(&*handle, 0, 1, 4096).await;
        handle.flush(&[ZoneIndex(0)]).await.unwrap();
        assert!(matches!(first.claim(token(7, 4)).await, Err(Error::Busy(_))), "it is claimed");
        let third = find(false).await;
        assert_eq!(third.last_claim().await.unwrap(), Some(claim));
    });
}

#[test]
fn a_new_volume_is_created_by_its_claim_or_its_close() {
    world(3, |bucket| async move {
        let part = find(true).await;
        assert_eq!(part.last_claim().await.unwrap(), None);
        assert!(bucket.objects.borrow().is_empty());
        part.close().await.unwrap();
        assert_eq!(bucket.objects.borrow().len(), 3, "a claim, a base and a clean stop");
        let part = find(true).await;
        assert_eq!(part.last_claim().await.unwrap().unwrap().number, 1);
        let claim = part.claim(token(1, 1)).await.unwrap().unwrap();
        assert_eq!((claim.number, part.last_claim().await.unwrap()), (2, Some(claim)));
        part.close().await.unwrap();
        let part = find(false).await;
        assert_eq!(part.status().await["epoch"], 2);
    });
}

/// Handles of many shards that are opened at the same time belong to one claim.
#[test]
fn the_first_handles_of_many_shards_are_one_claim() {
    for shards in [1, 7, 32] {
        let main = move || async move {
            let _bucket = Bucket::start(object_store::testing::Faults::default());
            create().await;
            let part = Arc::new(find(false).await);
            let opened: Vec<_> = (0..shards)
                .map(|shard| {
                    let part = part.clone();
                    runtime::spawn_on(ShardIndex(shard), move || async move {
                        let handle = part.open().await.unwrap();
                        let zone = ZoneIndex(shard as u32 % ZONES);
                        handle.append(zone, bytes(1, 512)).await.unwrap();
                        handle.flush(&[zone]).await.unwrap();
                    })
                })
                .collect();
            for opened in opened {
                opened.await.unwrap();
            }
            assert_eq!(part.status().await["epoch"], 2);
            part.close().await.unwrap();
        };
        runtime::simulate(runtime::Simulation::new(4).with_shards(shards), main).unwrap();
    }
}

/// A message also needs a claim: objects that another writer needs aren't garbage.
#[test]
fn a_search_for_garbage_claims_first() {
    world(5, |_bucket| async move {
        let first = create().await;
        let old = handle(&first).await;
        let part = find(false).await;
        part.message("gc").await.unwrap();
        assert_eq!(part.status().await["epoch"], 2);
        assert!(matches!(old.reset(ZoneIndex(0), EraseGuarantee::None).await, Err(Error::ReadOnly(_))));
    });
}

/// Damaged bytes under the next number end the writer with the kind that layers above take as final; an
/// answer that the store refuses doesn't.
#[test]
fn damaged_manifests_end_a_writer_with_read_only_and_refused_requests_are_repeated() {
    world(6, |bucket| async move {
        let part = create().await;
        let handle = handle(&part).await;
        let own = Rc::downgrade(&bucket);
        let mut refusals = ["403", "507", "404", "400"].into_iter();
        bucket.follow(move |asked| {
            let is_manifest = asked.method == "PUT" && asked.key.contains("/manifest/");
            let status = is_manifest.then(|| refusals.next())??;
            own.upgrade()?;
            Some(format!("HTTP/1.1 {status} x\r\ncontent-length: 0\r\n\r\n").into_bytes())
        });
        append(&*handle, 0, 1, 4096).await;
        handle.flush(&[ZoneIndex(0)]).await.unwrap();
        bucket.follow(|_| None);
        let next = part.status().await["manifest"].as_u64().unwrap() + 1;
        let key = format!("db1/manifest/00000001/{next:016x}");
        let etag = "\"damaged\"".to_owned();
        let damaged = object_store::testing::Stored { bytes: vec![7; 100], etag, headers: Vec::new() };
        bucket.objects.borrow_mut().insert(key.clone(), damaged);
        append(&*handle, 0, 2, 4096).await;
        let error = handle.flush(&[ZoneIndex(0)]).await.unwrap_err();
        assert!(
            matches!(&error, Error::ReadOnly(text) if text.contains("have ended") && text.contains(&key)),
            "{error}"
        );
        assert!(error.detail().contains("corrupt data"), "{error}");
        let status = part.status().await;
        assert_eq!(status["state"], "fenced or ended");
        assert!(status["error"].as_str().unwrap().contains(&key));
    });
}

/// Options are compared before anything is changed.
#[test]
fn a_volume_of_another_size_is_refused_before_its_writer_is_fenced() {
    world(7, |bucket| async move {
        let first = create().await;
        let old = handle(&first).await;
        let before = all(&bucket);
        let other = Options { expected: (Some(ZONES + 1), None), ..options(false) };
        assert!(matches!(ObjectsPart::find(other).await, Err(Error::Invalid(_))));
        assert_eq!(all(&bucket), before);
        old.reset(ZoneIndex(0), EraseGuarantee::None).await.unwrap();
    });
}
