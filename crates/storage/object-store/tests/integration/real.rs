//! Each operation against real stores.

use crate::servers::{Program, Server};
use block::{Data, Error, Payload};
use object_store::{Addressing, Condition, Config, CredentialSource, Credentials, Kind, Limits, Put, Store};
use std::rc::Rc;

impl Server {
    /// Client of the bucket.
    pub fn store(&self, limits: Limits) -> Store {
        self.client("vol", "hidden", limits)
    }

    /// Client of a bucket, with a secret.
    pub fn client(&self, bucket: &str, secret: &str, limits: Limits) -> Store {
        Store::new(Config {
            endpoint: format!("http://127.0.0.1:{}", self.port),
            bucket: bucket.to_owned(),
            region: "us-east-1".to_owned(),
            addressing: Addressing::Path,
            credentials: CredentialSource::Given(Credentials::new("key", secret, None)),
            tls: None,
            limits,
        })
        .unwrap()
    }
}

/// A payload in pieces, with random bytes.
pub fn payload(seed: u64, pieces: &[usize]) -> Payload {
    let mut random = runtime::Random::new(seed);
    pieces
        .iter()
        .map(|length| {
            let mut bytes = vec![0; *length];
            random.fill(&mut bytes);
            Data::copy_of(&bytes)
        })
        .collect()
}

/// Runs a test on a real store, unless that isn't installed.
fn on<Fut: Future<Output = ()> + 'static>(
    program: Program,
    limits: Limits,
    test: impl FnOnce(Store) -> Fut + Send + 'static,
) {
    let Some(server) = Server::start(program) else { return };
    runtime::run(runtime::Config::default(), move || {
        let store = server.store(limits);
        async move {
            test(store).await;
            drop(server);
        }
    })
    .unwrap();
}

/// The ETag of a write that must succeed.
pub fn written(put: Put) -> String {
    match put {
        Put::Written(etag) => etag,
        Put::ConditionFailed => panic!("a write whose condition is met"),
    }
}

async fn objects_are_read_as_they_were_written(store: Store) {
    let body = payload(1, &[4096, 1, 70_000]);
    let etag = written(store.put("db/zone-1", body.slice(0..body.len()), &Condition::Always).await.unwrap());
    let object = store.get("db/zone-1", 1 << 20).await.unwrap();
    assert_eq!((&object.etag, object.is_verified, object.length), (&etag, true, body.len() as u64));
    assert_eq!(object.data.filled(), &*body.to_data());
    let range = store.get_range("db/zone-1", 4090, 10).await.unwrap();
    assert_eq!((range.data.filled(), range.length), (&*body.slice(4090..4100).to_data(), body.len() as u64));
    let beyond = store.get_range("db/zone-1", 70_000, 10_000).await.unwrap_err();
    assert!(matches!(beyond, Error::Invalid(_)) && beyond.to_string().contains("74097 bytes"), "{beyond}");
    assert!(matches!(store.get_range("db/zone-1", 1 << 40, 1).await, Err(Error::Invalid(_))));
    assert!(matches!(store.get("db/zone-1", 1000).await, Err(Error::Protocol(_))), "it is longer");
    let found = store.head("db/zone-1").await.unwrap().unwrap();
    assert_eq!((found.etag, found.length), (etag, body.len() as u64));
    assert_eq!(store.head("db/zone-2").await, Ok(None));
    let missing = store.get("db/zone-2", 1).await.unwrap_err();
    let text = missing.to_string();
    assert!(
        matches!(missing, Error::NotFound(_)) && text.contains("/vol\": GET db/zone-2: status 404 NoSuchKey"),
        "{text}"
    );
    assert_eq!(written(store.put("empty", Payload::new(), &Condition::Always).await.unwrap()).len(), 34);
    assert_eq!(store.get("empty", 0).await.unwrap().data.len(), 0);
    for _ in 0..2 {
        store.delete("db/zone-1").await.unwrap();
    }
    assert_eq!(store.head("db/zone-1").await, Ok(None));
}

async fn refusals_have_reasons(store: Store, other: impl Fn(&str, &str) -> Store) {
    written(store.put("key", payload(1, &[3]), &Condition::Always).await.unwrap());
    let secret = other("vol", "another").get("key", 3).await.unwrap_err();
    let text = secret.to_string();
    assert!(
        matches!(secret, Error::PermissionDenied(_)) && text.contains("status 403 SignatureDoesNotMatch"),
        "{text}"
    );
    assert!(!text.contains("another") && !text.contains("X-Amz"), "{text}");
    let missing = other("missing", "hidden");
    let condition = Condition::Matches("\"a\"".to_owned());
    let put = missing.put("key", payload(1, &[3]), &condition).await.map(drop);
    for outcome in [put, missing.delete("key").await, missing.list("", None).await.map(drop)] {
        let error = outcome.unwrap_err();
        assert!(matches!(error, Error::NotFound(_)) && error.to_string().contains("NoSuchBucket"), "{error}");
    }
}

async fn conditions_are_kept(store: Store) {
    let put = async |seed, condition: &Condition| {
        store.put("root", payload(seed, &[100]), condition).await.unwrap()
    };
    let matches = |etag: &str| Condition::Matches(etag.to_owned());
    assert_eq!(put(1, &matches("\"0123456789abcdef0123456789abcdef\"")).await, Put::ConditionFailed);
    let first = written(put(1, &Condition::Absent).await);
    assert_eq!(put(2, &Condition::Absent).await, Put::ConditionFailed);
    let second = written(put(2, &matches(&first)).await);
    assert_eq!(put(3, &matches(&first)).await, Put::ConditionFailed);
    assert_eq!(store.get("root", 100).await.unwrap().etag, second);
}

async fn listings_have_pages_and_batches_delete(store: Store, count: usize) {
    let keys: Vec<String> = (0..count).map(|number| format!("many/{number:04}")).collect();
    let puts = keys.iter().map(|key| store.put(key, payload(1, &[3]), &Condition::Always));
    runtime::join_limited(16, puts).await.into_iter().for_each(|put| drop(written(put.unwrap())));
    store.put("other", payload(1, &[3]), &Condition::Always).await.unwrap();
    let list = async || {
        let (mut listed, mut from, mut pages) = (Vec::new(), None, 0);
        loop {
            let page = store.list("many/", from.as_deref()).await.unwrap();
            listed.extend(page.objects);
            (from, pages) = (page.next, pages + 1);
            if from.is_none() {
                return (listed, pages);
            }
        }
    };
    let (listed, pages) = list().await;
    assert_eq!((listed.len(), pages), (count, count.div_ceil(1000)));
    assert!(listed.iter().zip(&keys).all(|(listed, key)| listed.key == *key && listed.length == 3));
    store.delete_batch(&keys).await.unwrap();
    store.delete_batch(&keys[..2]).await.unwrap();
    assert_eq!(list().await, (Vec::new(), 1));
    assert_eq!(store.counts().requests(Kind::DeleteBatch), count.div_ceil(1000) as u64 + 1);
    assert!(store.head("other").await.unwrap().is_some());
}

async fn large_objects_go_in_parts(store: Store) {
    let body = payload(7, &[5 << 20, 5 << 20, 12_345]);
    let copy = || body.slice(0..body.len());
    let etag = written(store.put("large", copy(), &Condition::Absent).await.unwrap());
    let object = store.get("large", 16 << 20).await.unwrap();
    assert!(object.is_verified && object.data.filled() == &*body.to_data() && object.etag == etag);
    assert_eq!(store.put("large", copy(), &Condition::Absent).await, Ok(Put::ConditionFailed));
    let counts = store.counts();
    let kinds = [Kind::CreateUpload, Kind::UploadPart, Kind::CompleteUpload, Kind::AbortUpload, Kind::Put];
    assert_eq!(kinds.map(|kind| counts.requests(kind)), [2, 6, 2, 1, 0]);
}

async fn probed(store: Store) {
    store.probe("db/").await.unwrap();
    assert_eq!(store.list("", None).await.unwrap().objects, [], "the probe's objects are deleted");
}

fn parts() -> Limits {
    Limits { part: 5 << 20, parts_above: 8 << 20, ..Limits::default() }
}

#[test]
fn versitygw_has_objects() {
    on(Program::VersityGw, Limits::default(), objects_are_read_as_they_were_written);
}

#[test]
fn versitygw_keeps_conditions() {
    on(Program::VersityGw, Limits::default(), conditions_are_kept);
}

#[test]
fn versitygw_lists_and_deletes() {
    on(Program::VersityGw, Limits::default(), |store| listings_have_pages_and_batches_delete(store, 1003));
}

#[test]
fn versitygw_takes_parts() {
    on(Program::VersityGw, parts(), large_objects_go_in_parts);
}

#[test]
fn versitygw_refuses_with_reasons() {
    let Some(server) = Server::start(Program::VersityGw) else { return };
    runtime::run(runtime::Config::default(), move || async move {
        let other = |bucket: &str, secret: &str| server.client(bucket, secret, Limits::default());
        refusals_have_reasons(server.store(Limits::default()), other).await;
    })
    .unwrap();
}

#[test]
fn versitygw_passes_the_probe() {
    on(Program::VersityGw, Limits::default(), probed);
}

#[test]
fn versitygw_keeps_connections_and_an_idle_client_sends_nothing() {
    on(Program::VersityGw, Limits::default(), async |store| {
        let store = Rc::new(store);
        for number in 0..20 {
            store.put("key", payload(number, &[100]), &Condition::Always).await.unwrap();
        }
        let counts = store.counts();
        assert_eq!((counts.connections, counts.total(), counts.retries, counts.sent_bytes), (1, 20, 0, 2000));
    });
}

/// Moto checks no signature, and its conditions aren't atomic: it is a second opinion of the protocol.
#[test]
fn moto_has_objects_lists_and_parts() {
    on(Program::Moto, parts(), async |store| {
        objects_are_read_as_they_were_written(store.clone()).await;
        listings_have_pages_and_batches_delete(store.clone(), 30).await;
        conditions_are_kept(store.clone()).await;
    });
}
