//! Stores that violate the protocol: a clear error in bounded time, and the next request works.

use crate::real::{payload, written};
use block::{Error, Payload};
use object_store::testing::{Asked, Bucket, Faults, client, simulated};
use object_store::{Addressing, Condition, Limits, Put, Store};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

/// Answers the next request of a method by these bytes; the usual answers follow.
fn once(method: &'static str, bytes: impl Into<Vec<u8>>) -> impl FnMut(&Asked) -> Option<Vec<u8>> {
    let mut bytes = Some(bytes.into());
    move |asked| (asked.method == method).then(|| bytes.take()).flatten()
}

fn with_body(headers: &str, body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\netag: \"a\"\r\n{headers}\r\n\r\n{body}")
}

async fn put(store: &Store, body: Payload) {
    written(store.put("key", body, &Condition::Always).await.unwrap());
}

#[test]
fn answers_that_are_not_the_expected_ones_are_errors_of_their_request() {
    simulated(1, || async {
        let bucket = Bucket::start(Faults::default());
        let store = client(Limits::default());
        put(&store, payload(1, &[100])).await;
        let deep = format!("HTTP/1.1 403 x\r\ncontent-length: 60000\r\n\r\n{}", "<a>".repeat(20_000));
        let answers = [
            ("HTTP/2 200\r\n\r\n".to_owned(), "isn't HTTP/1.1"),
            ("\0\0\0\0\0\0".to_owned(), "isn't HTTP/1.1"),
            (with_body("content-length: 1001", ""), "1001 bytes; expected at most 1000"),
            (with_body("content-length: 99999999999999", ""), "expected at most 1000"),
            (with_body("content-length: -1", ""), "invalid Content-Length"),
            (with_body("content-length: 1\r\ncontent-length: 2", "a"), "more than one length"),
            (with_body("x: y", "a"), "unknown length"),
            (with_body("transfer-encoding: chunked", "5g\r\n"), "invalid size"),
            (with_body("transfer-encoding: chunked", "ffffff\r\n"), "longer than expected"),
            (with_body(&"x: y\r\n".repeat(70), ""), "more than 64 headers"),
            (with_body(&format!("x: {}", "y".repeat(20_000)), ""), "exceeds 16384 bytes"),
            ("HTTP/1.1 100 x\r\n\r\n".repeat(20), "interim response 100"),
            ("HTTP/1.1 101 x\r\n\r\n".to_owned(), "interim response 101"),
            ("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n".to_owned(), "no ETag"),
            ("HTTP/1.1 206 x\r\ncontent-length: 0\r\n\r\n".to_owned(), "status 206; expected 200"),
            ("HTTP/1.1 301 x\r\ncontent-length: 0\r\n\r\n".to_owned(), "the region of the bucket"),
            ("HTTP/1.1 403 x\r\ncontent-length: 9999999\r\n\r\n".to_owned(), "status 403"),
            (deep, "status 403"),
            (
                "HTTP/1.1 400 x\r\ncontent-length: 45\r\n\r\n<Error><Code>A\n\x1b</Code><Message>b</Message></E>".to_owned(),
                "status 400",
            ),
        ];
        for (answer, said) in answers {
            bucket.follow(once("GET", answer.clone()));
            let began = runtime::now();
            let error = store.get("key", 1000).await.unwrap_err().to_string();
            let context = "object store \"http://10.0.0.1/vol\": GET key: ";
            assert!(error.starts_with(context) && error.contains(said), "{said}: {error}");
            assert!(
                !error.contains("hidden") && !error.contains("Signature") && !error.contains('\n'),
                "{error}"
            );
            assert!(error.len() < 500 && began.elapsed() < Duration::from_secs(1), "{error}");
            assert_eq!(store.get("key", 1000).await.unwrap().data.len(), 100, "the next one");
        }
        assert_eq!(store.counts().retries, 0);
        // More than a buffer can have.
        bucket.follow(once("GET", with_body("content-length: 3000000000", "")));
        let error = store.get("key", usize::MAX).await.unwrap_err().to_string();
        assert!(error.contains("3000000000 bytes; expected at most 1073741824"), "{error}");
    });
}

#[test]
fn ranges_are_exactly_those_that_were_asked_for() {
    simulated(1, || async {
        let bucket = Bucket::start(Faults::default());
        let store = client(Limits::default());
        put(&store, payload(1, &[100])).await;
        let ranged = |range: &str, length: usize| {
            let body = "x".repeat(length);
            format!("HTTP/1.1 206 x\r\netag: a\r\n{range}content-length: {length}\r\n\r\n{body}")
        };
        for (answer, said) in [
            (ranged("", 10), "no range; expected bytes 5-14"),
            (ranged("content-range: bytes 0-9/100\r\n", 10), "bytes 0-9/100; expected"),
            (ranged("content-range: bytes 5-14/100\r\n", 9), "a body of 9 bytes; expected 10"),
            (ranged("content-range: bytes 5-9/10\r\n", 5), "the object has 10 bytes"),
            (ranged("content-range: bytes 5-13/100\r\n", 9), "expected bytes 5-14"),
            (with_body("content-length: 10", "0123456789"), "status 200; expected 206"),
        ] {
            bucket.follow(once("GET", answer));
            let error = store.get_range("key", 5, 10).await.unwrap_err().to_string();
            assert!(error.contains(said), "{said}: {error}");
        }
        assert_eq!(
            store.get_range("key", 5, 10).await.unwrap().data.filled(),
            &payload(1, &[100]).to_data()[5..15]
        );
        assert!(matches!(store.get_range("key", 5, 0).await, Err(Error::Invalid(_))));
        assert!(matches!(store.get_range("key", u64::MAX, 1).await, Err(Error::Invalid(_))));
    });
}

#[test]
fn damage_is_read_again_and_lasting_damage_is_an_error() {
    simulated(1, || async {
        let bucket = Bucket::start(Faults::default());
        let store = client(Limits { operation: Duration::from_secs(5), ..Limits::default() });
        put(&store, payload(1, &[100])).await;
        let own = Rc::downgrade(&bucket);
        let damaged = move |asked: &Asked| {
            (asked.method == "GET").then(|| {
                let objects = own.upgrade().unwrap();
                let mut text = "HTTP/1.1 200 OK\r\ncontent-length: 100\r\netag: a\r\n".to_owned();
                for (name, value) in &objects.objects.borrow()["key"].headers {
                    text += &format!("{name}: {value}\r\n");
                }
                (text + "\r\n" + &"x".repeat(100)).into_bytes()
            })
        };
        let (count, twice) = (Cell::new(0), damaged.clone());
        bucket.follow(move |asked| {
            count.set(count.get() + 1);
            if count.get() <= 2 { twice(asked) } else { None }
        });
        assert_eq!(store.get("key", 100).await.unwrap().data.filled(), &*payload(1, &[100]).to_data());
        assert_eq!(store.counts().retries, 2);
        bucket.follow(damaged);
        // More than the retry budget has: damage of objects isn't a failure of the store.
        for number in 1..=60 {
            let error = store.get("key", 100).await.unwrap_err();
            assert!(
                matches!(error, Error::Corrupt(_))
                    && error.to_string().contains("with the checksum")
                    && error.to_string().contains("attempts: 3, 3 of them with damaged bytes"),
                "{error}"
            );
            assert_eq!(
                (bucket.count("GET"), store.counts().retries),
                (3 + 3 * number, 2 + 2 * number as u64)
            );
        }
        bucket.follow(once("GET", "HTTP/1.1 503 x\r\ncontent-length: 0\r\n\r\n"));
        assert_eq!(store.get("key", 100).await.unwrap().data.len(), 100);
    });
}

#[test]
fn a_conditional_write_that_the_store_has_damaged_is_no_success() {
    simulated(1, || async {
        let bucket = Bucket::start(Faults::default());
        let store = client(Limits::default());
        let mut condition = Condition::Absent;
        for number in 1..=2 {
            let (own, mut is_first) = (Rc::downgrade(&bucket), true);
            bucket.follow(move |asked| {
                let is_one = asked.method == "PUT" && std::mem::take(&mut is_first);
                is_one.then(|| {
                    let _stored = own.upgrade().unwrap().carry_out(asked, None);
                    with_body("x-amz-checksum-crc32c: AAAAAA==\r\ncontent-length: 0", "").into_bytes()
                })
            });
            let error = store.put("root", payload(number, &[100]), &condition).await.unwrap_err();
            assert!(
                matches!(error, Error::Corrupt(_))
                    && error.to_string().contains("PUT root: the store has the checksum AAAAAA=="),
                "{error}"
            );
            assert_eq!(
                bucket.count("PUT"),
                2 * number as usize,
                "the second one was refused by its condition"
            );
            condition = Condition::Matches(store.head("root").await.unwrap().unwrap().etag);
        }
        // Another writer's object is there.
        let other = store.put("root", payload(3, &[100]), &Condition::Absent).await;
        assert_eq!(other.unwrap(), Put::ConditionFailed);
    });
}

#[test]
fn keys_and_configurations_that_cant_be_are_refused() {
    simulated(1, || async {
        let bucket = Bucket::start(Faults::default());
        let store = client(Limits::default());
        for key in ["", "/a", "a/", "a//b", "a/../b", ".", "a b", "a?b", "ä", "a\r\nx: y", &"a".repeat(1025)]
        {
            let error = store.put(key, Payload::new(), &Condition::Always).await.unwrap_err();
            assert!(matches!(error, Error::Invalid(_)), "{error}");
        }
        let etag = Condition::Matches("a\r\nx: y".to_owned());
        let error = store.put("a", Payload::new(), &etag).await.unwrap_err();
        assert!(matches!(error, Error::Invalid(_)) && error.to_string().contains("if-match"), "{error}");
        assert_eq!(bucket.asked.borrow().len(), 0);
        let mut elsewhere = object_store::testing::config(Limits::default());
        (elsewhere.endpoint, elsewhere.addressing) = ("http://example.com".into(), Addressing::VirtualHost);
        assert_eq!(format!("{:?}", Store::new(elsewhere).unwrap()), "Store(\"http://vol.example.com\")");
        let refused = |change: fn(&mut object_store::Config)| {
            let mut config = object_store::testing::config(Limits::default());
            change(&mut config);
            Store::new(config).unwrap_err().to_string()
        };
        assert!(refused(|config| config.bucket = "a/b".into()).contains("bucket \"a/b\""));
        assert!(
            refused(|config| config.endpoint = "https://host".into()).contains("https without certificates")
        );
        assert!(refused(|config| config.limits.part = 1 << 20).contains("parts of 1048576 bytes"));
    });
}
