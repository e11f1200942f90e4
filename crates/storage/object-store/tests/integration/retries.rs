//! Retries, limits, hedged reads and connections.

use crate::real::{payload, written};
use block::{Data, Error};
use conformance::certificates::Authority;
use object_store::testing::{Asked, Bucket, Faults, SERVER, client, config, simulated};
use object_store::{Condition, Counts, Kind, Limits, Put, Store};
use runtime::net::{Address, Listener};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

const SLOW_DOWN: &[u8] = b"HTTP/1.1 503 x\r\ncontent-length: 36\r\n\r\n<Error><Code>SlowDown</Code></Error>";

async fn put(store: &Store, key: &str) {
    written(store.put(key, payload(1, &[1000]), &Condition::Always).await.unwrap());
}

/// Script that acts on the first `count` requests of a method.
fn first(count: usize, method: &'static str, bytes: &'static [u8]) -> impl FnMut(&Asked) -> Option<Vec<u8>> {
    let left = Cell::new(count);
    move |asked| {
        let is_one = asked.method == method && left.get() > 0;
        left.set(left.get() - usize::from(is_one));
        is_one.then(|| bytes.to_vec())
    }
}

#[test]
fn a_storm_of_503_is_waited_out_with_growing_pauses() {
    simulated(1, || async {
        let bucket = Bucket::start(Faults::default());
        let store = client(Limits::default());
        bucket.follow(first(6, "PUT", SLOW_DOWN));
        let began = runtime::now();
        put(&store, "key").await;
        let Counts { retries, slow_downs, .. } = store.counts();
        assert_eq!((retries, slow_downs, bucket.count("PUT")), (6, 6, 7));
        // At least 250 ms each, and at most 50 ms, 100 ms, … 1.6 s more.
        assert!((Duration::from_millis(1500)..Duration::from_secs(6)).contains(&began.elapsed()));
    });
}

#[test]
fn an_outage_ends_an_operation_at_its_limit_and_the_budget_ends_a_storm() {
    simulated(1, || async {
        let store = client(Limits { operation: Duration::from_secs(20), ..Limits::default() });
        let began = runtime::now();
        let error = store.head("key").await.unwrap_err().to_string();
        assert!(
            error.contains("HEAD key: connecting to 10.0.0.1:80") && error.contains(", within 20s"),
            "{error}"
        );
        assert!((Duration::from_secs(10)..Duration::from_secs(21)).contains(&began.elapsed()));
        let bucket = Bucket::start(Faults::default());
        bucket.follow(first(usize::MAX, "DELETE", SLOW_DOWN));
        let used = runtime::join_all((0..32).map(|_| store.delete("key"))).await;
        assert!(used.iter().all(|outcome| matches!(outcome, Err(Error::Io(_)))));
        let text = used.last().unwrap().as_ref().unwrap_err().to_string();
        assert!(
            text.contains("status 503 SlowDown") && text.contains("the retry budget of 100 is used up"),
            "{text}"
        );
        assert!(bucket.count("DELETE") <= 132, "{} requests", bucket.count("DELETE"));
        let attempts = bucket.count("DELETE");
        assert!(store.delete("key").await.is_err());
        assert_eq!(bucket.count("DELETE"), attempts + 1, "without a budget there is one attempt");
    });
}

#[test]
fn silence_is_bounded_wherever_it_begins() {
    let limits = || Limits {
        first_byte: Duration::from_secs(1),
        request: Duration::from_secs(3),
        operation: Duration::from_secs(10),
        hedged: false,
        ..Limits::default()
    };
    simulated(1, move || async move {
        // One that accepts nothing, as its queue is never served, then one that never ends its body.
        let listener = Listener::bind(&SERVER.parse::<Address>().unwrap()).unwrap();
        let store = client(limits());
        let began = runtime::now();
        let error = store.get("key", 10).await.unwrap_err();
        assert!(
            matches!(error, Error::TimedOut(_)) && error.to_string().contains("no response within 1s"),
            "{error}"
        );
        // A payload that doesn't fit the socket is never sent completely.
        let body = payload(1, &[1 << 20]);
        let error = store.put("key", body, &Condition::Always).await.unwrap_err();
        assert!(matches!(error, Error::TimedOut(_)) && error.to_string().contains("within 3s"), "{error}");
        assert!(began.elapsed() < Duration::from_secs(21), "{:?}", began.elapsed());
        assert!(store.counts().timeouts >= 4);
        drop(listener);
        let bucket = Bucket::start(Faults::default());
        bucket.follow(first(usize::MAX, "GET", b"HTTP/1.1 200 x\r\netag: a\r\ncontent-length: 5\r\n\r\nabc"));
        let error = store.get("key", 10).await.unwrap_err();
        assert!(
            matches!(error, Error::TimedOut(_)) && error.to_string().contains("no complete response"),
            "{error}"
        );
    });
}

#[test]
fn a_lost_answer_of_a_conditional_write_is_distinguished_from_another_writer() {
    for (lost, duplicate) in [(1.0, 0.0), (0.0, 1.0)] {
        simulated(1, move || async move {
            let bucket = Bucket::start(Faults { lost_answer: lost, duplicate, ..Faults::default() });
            let store = client(Limits { part: 5 << 20, parts_above: 5 << 20, ..Limits::default() });
            let own = bucket.clone();
            // Answers are lost for two seconds.
            runtime::spawn(async move {
                runtime::sleep(Duration::from_secs(2)).await;
                own.faults.set(Faults::default());
            })
            .detach();
            let first = store.put("root", payload(1, &[100]), &Condition::Absent).await.unwrap();
            assert_eq!(written(first), bucket.objects.borrow()["root"].etag);
            let other = store.put("root", payload(2, &[100]), &Condition::Absent).await.unwrap();
            assert_eq!(other, Put::ConditionFailed);
            // The same for the completion of an upload.
            bucket.faults.set(Faults::default());
            let (own, mut is_first) = (Rc::downgrade(&bucket), true);
            bucket.follow(move |asked| {
                let is_end = asked.method == "POST" && asked.query("uploadId").is_some();
                (is_end && std::mem::take(&mut is_first)).then(|| {
                    let _lost = own.upgrade().unwrap().carry_out(asked, None);
                    SLOW_DOWN.to_vec()
                })
            });
            let large = store.put("large", payload(3, &[6 << 20]), &Condition::Absent).await.unwrap();
            assert_eq!(written(large), bucket.objects.borrow()["large"].etag);
            assert!(bucket.uploads.borrow().is_empty());
        });
    }
}

#[test]
fn a_failed_upload_is_aborted() {
    simulated(1, || async {
        let bucket = Bucket::start(Faults::default());
        let store = client(Limits { part: 5 << 20, parts_above: 5 << 20, ..Limits::default() });
        bucket.follow(|asked| {
            let is_part = asked.query("partNumber") == Some("2");
            is_part.then(|| b"HTTP/1.1 403 x\r\ncontent-length: 0\r\n\r\n".to_vec())
        });
        let error = store.put("large", payload(3, &[6 << 20]), &Condition::Always).await.unwrap_err();
        assert!(matches!(error, Error::PermissionDenied(_)), "{error}");
        assert!(bucket.uploads.borrow().is_empty() && bucket.objects.borrow().is_empty());
        assert_eq!(store.counts().requests(Kind::AbortUpload), 1);
    });
}

#[test]
fn a_failed_part_ends_its_upload() {
    simulated(1, || async {
        let bucket = Bucket::start(Faults::default());
        let store = client(Limits { part: 5 << 20, parts_above: 5 << 20, ..Limits::default() });
        bucket.follow(|asked| {
            let is_part = asked.query("partNumber") == Some("1");
            is_part.then(|| b"HTTP/1.1 403 x\r\ncontent-length: 0\r\n\r\n".to_vec())
        });
        let error = store.put("large", payload(3, &[60 << 20]), &Condition::Always).await.unwrap_err();
        assert!(matches!(error, Error::PermissionDenied(_)), "{error}");
        let counts = store.counts();
        assert_eq!((counts.requests(Kind::UploadPart), counts.requests(Kind::AbortUpload)), (4, 1));
        assert!(bucket.uploads.borrow().is_empty());
    });
}

#[test]
fn slow_reads_get_a_hedged_one_within_a_tenth() {
    simulated(7, || async {
        let bucket = Bucket::start(Faults::default());
        let store = client(Limits::default());
        put(&store, "key").await;
        for _ in 0..50 {
            store.get("key", 1000).await.unwrap();
        }
        assert_eq!(store.counts().hedges, 0, "none is slow");
        // One in twenty is silent for up to 20 seconds.
        let mut number = 0;
        let own = Rc::downgrade(&bucket);
        bucket.follow(move |asked| {
            number += usize::from(asked.method == "GET");
            let late = if number % 20 == 0 { 1.0 } else { 0.0 };
            own.upgrade()?.faults.set(Faults { late, ..Faults::default() });
            None
        });
        let began = runtime::now();
        for _ in 0..190 {
            assert_eq!(store.get("key", 1000).await.unwrap().data.len(), 1000);
        }
        let Counts { hedges, hedge_wins, timeouts, .. } = store.counts();
        assert!(
            (8..=24).contains(&hedges) && hedge_wins >= 8 && timeouts == 0,
            "{hedges} {hedge_wins} {timeouts}"
        );
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
        // The connection of the slower one is closed as soon as the store sees it.
        runtime::sleep(Duration::from_secs(30)).await;
        assert_eq!(bucket.connections.get(), 1);
    });
}

#[test]
fn connections_are_bounded_kept_and_closed_by_a_dropped_request() {
    simulated(1, || async {
        let bucket = Bucket::start(Faults::default());
        let store = client(Limits { connections: 3, ..Limits::default() });
        let keys: Vec<String> = (0..20).map(|number| format!("key-{number}")).collect();
        runtime::join_all(keys.iter().map(|key| put(&store, key))).await;
        assert_eq!((store.counts().connections, bucket.connections.get()), (3, 3));
        bucket.follow(first(1, "GET", b""));
        let dropped = runtime::timeout(Duration::from_millis(50), store.get("key-1", 1000)).await;
        assert!(dropped.is_err());
        runtime::sleep(Duration::from_millis(10)).await;
        assert_eq!(bucket.connections.get(), 2, "only the dropped one's");
        assert_eq!(store.get("key-1", 1000).await.unwrap().data.len(), 1000);
        let asked = store.counts().total();
        runtime::sleep(Duration::from_secs(600)).await;
        assert_eq!(store.counts().total(), asked, "nothing is sent while nothing is asked");
        // Those that were idle for ten minutes aren't used.
        put(&store, "key").await;
        assert_eq!((store.counts().connections, store.counts().retries), (4, 0));
    });
}

#[test]
fn a_connection_that_the_store_closed_while_it_was_idle_is_replaced_at_once() {
    simulated(1, || async {
        let bucket = Bucket::start(Faults::default());
        let store = client(Limits::default());
        bucket.closes.set(true);
        put(&store, "key").await;
        runtime::sleep(Duration::from_secs(1)).await;
        bucket.closes.set(false);
        put(&store, "key").await;
        assert_eq!((store.counts().retries, store.counts().connections, bucket.count("PUT")), (0, 2, 2));
    });
}

#[test]
fn bytes_that_arrive_while_a_connection_is_idle_answer_no_request() {
    simulated(1, || async {
        let bucket = Bucket::start(Faults::default());
        let store = client(Limits::default());
        for stray in
            ["HTTP/1.1 200 x\r\netag: \"stray\"\r\ncontent-length: 0\r\n\r\n", "\r", "HTTP/1.1 100 x\r\n\r\n"]
        {
            let before = store.counts().connections;
            put(&store, "first").await;
            bucket.stray.replace(stray.into());
            put(&store, "first").await;
            runtime::sleep(Duration::from_secs(1)).await;
            let second = store.put("second", payload(1, &[10]), &Condition::Always).await.unwrap();
            assert_eq!(written(second), bucket.objects.borrow()["second"].etag);
            let after = store.counts();
            assert_eq!((after.connections - before.max(1), after.retries), (1, 0), "{stray:?}");
        }
    });
}

#[test]
fn a_connection_that_ends_in_the_middle_of_a_response_is_a_failure() {
    simulated(1, || async {
        let bucket = Bucket::start(Faults::default());
        let store = client(Limits::default());
        put(&store, "key").await;
        // Without a byte of it, the request is sent again at once.
        let (own, mut is_first) = (Rc::downgrade(&bucket), true);
        bucket.follow(move |_| {
            let lost_request = f64::from(u8::from(std::mem::take(&mut is_first)));
            own.upgrade()?.faults.set(Faults { lost_request, ..Faults::default() });
            None
        });
        put(&store, "key").await;
        assert_eq!((store.counts().retries, store.counts().connections, bucket.count("PUT")), (0, 2, 3));
        for (number, part) in ["HTTP/1.1 2", "HTTP/1.1 100 x\r\n\r\n"].into_iter().enumerate() {
            let (own, mut is_first) = (Rc::downgrade(&bucket), true);
            bucket.follow(move |_| {
                let is_cut = std::mem::take(&mut is_first);
                own.upgrade().unwrap().closes.set(is_cut);
                is_cut.then(|| part.into())
            });
            put(&store, "key").await;
            let number = number as u64 + 1;
            assert_eq!((store.counts().retries, store.counts().connections), (number, 2 + number));
        }
    });
}

#[test]
fn an_answer_before_the_end_of_the_request_is_taken() {
    simulated(1, || async {
        let listener = Listener::bind(&SERVER.parse::<Address>().unwrap()).unwrap();
        let server = runtime::spawn(async move {
            let stream = listener.accept().await.unwrap();
            // Refuses after the head, without receiving the body.
            let (count, _) = stream.receive(block::Buffer::new(1000)).await;
            assert!(count.unwrap() > 0);
            let refusal = "HTTP/1.1 403 x\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
            stream.send(Data::copy_of(refusal.as_bytes()).into()).await.0.unwrap();
            stream
        });
        let store = client(Limits::default());
        let error = store.put("key", payload(1, &[4 << 20]), &Condition::Always).await.unwrap_err();
        assert!(
            matches!(error, Error::PermissionDenied(_)) && error.to_string().contains("status 403"),
            "{error}"
        );
        drop(server.await);
    });
}

#[test]
fn requests_work_in_tls() {
    let folder = tempfile::tempdir().unwrap();
    Authority::new("an authority").fill(folder.path());
    let folder = tls::Folder::new(folder.path().to_owned());
    let (server, certificates) = (folder.server(false).unwrap(), folder.client("127.0.0.1").unwrap());
    simulated(1, || async {
        let bucket = Bucket::start_at("127.0.0.1:443", Some(server), Faults::default());
        let mut config = config(Limits::default());
        (config.endpoint, config.tls) = ("https://127.0.0.1".to_owned(), Some(certificates));
        let store = Store::new(config).unwrap();
        let body = payload(1, &[300_000]);
        written(store.put("key", body.slice(0..300_000), &Condition::Absent).await.unwrap());
        assert_eq!(store.get("key", 300_000).await.unwrap().data.filled(), &*body.to_data());
        assert_eq!((bucket.connections.get(), store.counts().connections), (1, 1));
    });
}

/// A condition is checked for one PUT, so what depends on it is written by one, whatever its length.
#[test]
fn a_whole_put_has_no_parts() {
    simulated(1, || async {
        let bucket = Bucket::start(Faults::default());
        let store = client(Limits { part: 5 << 20, parts_above: 5 << 20, ..Limits::default() });
        let body = payload(1, &[6 << 20]);
        let expected = body.to_data();
        written(store.put_whole("key", body.slice(0..body.len()), &Condition::Absent).await.unwrap());
        assert_eq!((bucket.count("PUT"), bucket.count("POST")), (1, 0));
        assert_eq!(store.get("key", 8 << 20).await.unwrap().data.filled(), &*expected);
        let again = store.put_whole("key", body, &Condition::Absent).await.unwrap();
        assert_eq!(again, Put::ConditionFailed);
    });
}
