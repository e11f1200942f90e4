//! A store that alters or loses objects: errors that name the object, and everything else is served.

use crate::common::{append, create, handle, options, read, reopen, world};
use block::{Error, Part, ZoneIndex};
use object_store::testing::Bucket;
use objects::ObjectsPart;
use std::cell::Cell;
use std::rc::Rc;

fn keys(bucket: &Bucket, part: &str) -> Vec<String> {
    bucket.objects.borrow().keys().filter(|key| key.contains(part)).cloned().collect()
}

async fn written(close: bool) {
    let part = create().await;
    let handle = handle(&part).await;
    for zone in 0..2 {
        append(&*handle, zone, 3, 90 << 10).await;
        handle.flush(&[ZoneIndex(zone)]).await.unwrap();
    }
    drop(handle);
    if close {
        part.close().await.unwrap();
    }
}

#[test]
fn altered_pieces_are_never_returned() {
    world(1, |bucket| async move {
        written(true).await;
        let part = reopen().await;
        let handle = handle(&part).await;
        let pieces = keys(&bucket, "zones/00000000.");
        assert_eq!(pieces.len(), 2, "of 48 and 42 KiB");
        let mut random = runtime::Random::new(1);
        for key in &pieces {
            for _ in 0..20 {
                let length = bucket.objects.borrow()[key].bytes.len();
                // The header isn't read.
                let at = 64 + random.below(length as u64 - 64) as usize;
                let flip =
                    |bucket: &Rc<Bucket>| bucket.objects.borrow_mut().get_mut(key).unwrap().bytes[at] ^= 4;
                flip(&bucket);
                let error = read(&*handle, 0, 0, 90 << 10).await.unwrap_err();
                assert!(matches!(error, Error::Corrupt(_)) && error.to_string().contains(&**key), "{error}");
                assert_eq!(read(&*handle, 1, 0, 90 << 10).await.unwrap(), vec![3; 90 << 10]);
                flip(&bucket);
            }
        }
        assert_eq!(read(&*handle, 0, 0, 90 << 10).await.unwrap(), vec![3; 90 << 10]);
        // Other pieces in their place: of another zone, shorter, none.
        let other = bucket.objects.borrow()[&keys(&bucket, "zones/00000001.")[0]].clone();
        for change in [
            Some(other.clone()),
            Some(object_store::testing::Stored { bytes: other.bytes[..900].to_vec(), ..other }),
            None,
        ] {
            let kept = bucket.objects.borrow_mut().remove(&pieces[0]).unwrap();
            if let Some(other) = change {
                bucket.objects.borrow_mut().insert(pieces[0].clone(), other);
            }
            let error = read(&*handle, 0, 0, 4096).await.unwrap_err();
            assert!(matches!(error, Error::Corrupt(_)) && error.to_string().contains(&*pieces[0]), "{error}");
            bucket.objects.borrow_mut().insert(pieces[0].clone(), kept);
        }
    });
}

/// No part of the chain of manifests is ignored: an acknowledged flush would be lost.
#[test]
fn damaged_and_lost_manifests_are_refused() {
    world(2, |bucket| async move {
        written(false).await;
        let manifests = keys(&bucket, "manifest/");
        assert_eq!(manifests.len(), 4, "a claim, a base, and two deltas: {manifests:?}");
        // A lost last one can't be distinguished from one that was never written.
        for (number, key) in manifests.iter().enumerate() {
            let kept = bucket.objects.borrow()[key].clone();
            for is_lost in [false, true] {
                match is_lost {
                    true => drop(bucket.objects.borrow_mut().remove(key)),
                    false => bucket.objects.borrow_mut().get_mut(key).unwrap().bytes[60] ^= 1,
                }
                if number > 0 && !(is_lost && number == 3) {
                    let error = ObjectsPart::open(options(false)).await.unwrap_err();
                    assert!(matches!(error, Error::Corrupt(_)), "{error}");
                    assert!(error.to_string().contains(&**key), "{error}");
                }
                bucket.objects.borrow_mut().insert(key.clone(), kept.clone());
            }
        }
        reopen().await.close().await.unwrap();
    });
}

#[test]
fn formatting_replaces_a_damaged_volume_and_leaves_no_object_of_it() {
    world(3, |bucket| async move {
        written(false).await;
        let last = keys(&bucket, "manifest/").pop().unwrap();
        bucket.objects.borrow_mut().get_mut(&last).unwrap().bytes[60] ^= 1;
        let part = create().await;
        let handle = handle(&part).await;
        append(&*handle, 1, 8, 4096).await;
        handle.flush(&[ZoneIndex(1)]).await.unwrap();
        assert_eq!(keys(&bucket, "zones/").len(), 5);
        let said = part.message("gc").await.unwrap();
        // The damaged one may be a seal.
        assert!(said.starts_with("6 objects"), "four pieces, a base and a delta: {said}");
        runtime::sleep(std::time::Duration::from_secs(61)).await;
        assert_eq!(keys(&bucket, "zones/").len(), 1);
        assert_eq!(
            keys(&bucket, "manifest/").len(),
            6,
            "two claims, a seal and a damaged one, a base and a delta"
        );
        assert_eq!(read(&*handle, 1, 0, 4096).await.unwrap(), vec![8; 4096]);
        assert_eq!(part.message("gc").await.unwrap(), "0 objects will be deleted");
    });
}

#[test]
fn opening_is_refused_without_a_volume_and_with_other_keys() {
    world(4, |bucket| async move {
        let error = ObjectsPart::open(options(false)).await.unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, Error::NotFound(_)) && text.contains("--format"), "{text}");
        assert!(text.contains("10.0.0.1/vol"), "the bucket: {text}");
        let part = create().await;
        let old = handle(&part).await;
        let mut other = options(false);
        other.expected.1 = Some(1 << 20);
        let error = ObjectsPart::open(other).await.unwrap_err();
        assert!(matches!(error, Error::Invalid(_)), "{error}");
        append(&*old, 0, 1, 512).await;
        old.flush(&[ZoneIndex(0)]).await.unwrap();
        assert!(bucket.objects.borrow().keys().all(|key| key.starts_with("db1/")));
    });
}

/// An answer with a status and the code of an error.
fn refusal(status: u16, code: &str) -> Vec<u8> {
    let body = format!("<Error><Code>{code}</Code></Error>");
    format!("HTTP/1.1 {status} x\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

/// Stores refuse requests with the statuses of missing and short objects for other reasons: nothing is lost.
#[test]
fn a_refused_read_is_no_damage() {
    for (status, code) in [(400, "ExpiredToken"), (404, "NoSuchBucket"), (404, "NoSuchKey"), (416, "x")] {
        world(5, move |bucket| async move {
            written(true).await;
            let part = reopen().await;
            let handle = handle(&part).await;
            let is_refusing = Rc::new(Cell::new(true));
            let (switch, is_expired) = (is_refusing.clone(), status == 400);
            bucket.follow(move |asked| {
                let is_asked = asked.key.contains("/zones/") && (asked.method == "GET" || is_expired);
                let head = format!("HTTP/1.1 {status} x\r\n\r\n").into_bytes();
                let answer = if asked.method == "HEAD" { head } else { refusal(status, code) };
                (switch.get() && is_asked).then_some(answer)
            });
            let error = read(&*handle, 0, 0, 4096).await.unwrap_err();
            assert!(!matches!(error, Error::Corrupt(_)), "{error}");
            is_refusing.set(false);
            assert_eq!(read(&*handle, 0, 0, 90 << 10).await.unwrap(), vec![3; 90 << 10]);
        });
    }
}

#[test]
fn a_bucket_that_does_not_exist_is_named() {
    world(6, |bucket| async move {
        bucket.follow(|asked| {
            let head = b"HTTP/1.1 404 x\r\n\r\n".to_vec();
            Some(if asked.method == "HEAD" { head } else { refusal(404, "NoSuchBucket") })
        });
        let error = ObjectsPart::open(options(false)).await.unwrap_err().to_string();
        assert!(error.contains("/vol\"") && error.contains("NoSuchBucket"), "{error}");
        assert!(!error.contains("--format"), "{error}");
    });
}
