//! Sources of credentials: a file, and the metadata service of an instance.

use crate::real::{payload, written};
use block::Error;
use object_store::testing::{Asked, Bucket, Faults, config, simulated};
use object_store::{Condition, Config, CredentialSource, Limits, Store};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

const METADATA: &str = "169.254.169.254:80";

fn store(credentials: CredentialSource) -> Store {
    let limits = Limits { operation: Duration::from_secs(30), ..Limits::default() };
    Store::new(Config { credentials, ..config(limits) }).unwrap()
}

async fn put(store: &Store) {
    written(store.put("key", payload(1, &[10]), &Condition::Always).await.unwrap());
}

/// Access key of each request that the bucket gets.
fn record_keys(bucket: &Bucket, keys: &Rc<Cell<Vec<String>>>) {
    let keys = keys.clone();
    bucket.follow(move |asked| {
        let mut all = keys.take();
        let key = asked.query("X-Amz-Credential").unwrap().split('/').next().unwrap().to_owned();
        all.push(format!("{key} {}", asked.query("X-Amz-Security-Token").unwrap_or("-")));
        keys.set(all);
        None
    });
}

fn text(status: u16, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status} x\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len())
        .into_bytes()
}

/// A metadata service whose credentials are numbered and are valid for an hour.
fn metadata(asked: &Asked, number: &Cell<u32>) -> Vec<u8> {
    let is_session = asked.header("x-aws-ec2-metadata-token") == Some("session-1");
    match (&*asked.method, &*asked.key) {
        ("PUT", "/latest/api/token") if asked.header("x-aws-ec2-metadata-token-ttl-seconds").is_some() => {
            text(200, "session-1")
        }
        ("GET", "/latest/meta-data/iam/security-credentials/") if is_session => text(200, "role"),
        ("GET", "/latest/meta-data/iam/security-credentials/role") if is_session => {
            number.set(number.get() + 1);
            // The simulated day begins at 22:13:20.
            let hour = runtime::wall_clock().as_secs() + 3600;
            let expires = jiff::Timestamp::from_second(hour as i64).unwrap();
            let number = number.get();
            text(
                200,
                &format!(
                    "{{\"AccessKeyId\": \"k{number}\", \"SecretAccessKey\": \"hidden\", \"Token\": \"t{number}\", \"Expiration\": \"{expires}\"}}"
                ),
            )
        }
        _ => text(401, ""),
    }
}

#[test]
fn an_instance_has_credentials_that_are_renewed_before_their_end() {
    simulated(1, || async {
        let (bucket, keys) = (Bucket::start(Faults::default()), Rc::default());
        record_keys(&bucket, &keys);
        let service = Bucket::start_at(METADATA, None, Faults::default());
        let number = Cell::new(0);
        service.follow(move |asked| Some(metadata(asked, &number)));
        let store =
            store(CredentialSource::Instance { endpoint: object_store::INSTANCE_METADATA.to_owned() });
        runtime::join_all((0..10).map(|_| put(&store))).await;
        assert_eq!(service.asked.borrow().len(), 3, "they are asked for once");
        runtime::sleep(Duration::from_secs(3600 - 310)).await;
        put(&store).await;
        runtime::sleep(Duration::from_secs(20)).await;
        put(&store).await;
        // While the service is silent they are used to their end.
        service.follow(|_| Some(Vec::new()));
        runtime::sleep(Duration::from_secs(3590 - 100)).await;
        put(&store).await;
        let keys = keys.take();
        assert_eq!(keys[..11], vec!["k1 t1"; 11]);
        assert_eq!(keys[11..], ["k2 t2", "k2 t2"]);
        runtime::sleep(Duration::from_secs(200)).await;
        let error = store.head("key").await.unwrap_err().to_string();
        assert!(
            error.contains("credentials of the instance") || error.contains("renewing credentials"),
            "{error}"
        );
        assert!(!error.contains("hidden") && !error.contains("session"), "{error}");
    });
}

#[test]
fn expired_credentials_are_asked_for_again_once() {
    simulated(1, || async {
        let bucket = Bucket::start(Faults::default());
        let service = Bucket::start_at(METADATA, None, Faults::default());
        let number = Cell::new(0);
        service.follow(move |asked| Some(metadata(asked, &number)));
        let expired = text(400, "<Error><Code>ExpiredToken</Code></Error>");
        let answer = expired.clone();
        bucket
            .follow(move |asked| (asked.query("X-Amz-Security-Token") == Some("t1")).then(|| answer.clone()));
        let store = store(CredentialSource::Instance { endpoint: format!("http://{METADATA}") });
        // Those that the source has just returned are its newest.
        let error = store.get("key", 10).await.unwrap_err().to_string();
        assert!(error.contains("status 400 ExpiredToken") && !error.contains("attempts"), "{error}");
        runtime::sleep(Duration::from_secs(61)).await;
        runtime::join_all((0..10).map(|_| put(&store))).await;
        assert_eq!((store.counts().retries, service.asked.borrow().len()), (10, 6));
        bucket.follow(move |_| Some(expired.clone()));
        runtime::sleep(Duration::from_secs(61)).await;
        let error = store.get("key", 10).await.unwrap_err().to_string();
        assert!(error.contains("status 400 ExpiredToken") && error.contains("attempts: 2"), "{error}");
        assert!(!store.head("key").await.unwrap_err().to_string().contains("attempts"), "without a text");
        assert_eq!((store.counts().retries, service.asked.borrow().len()), (11, 9));
    });
}

#[test]
fn a_forbidden_head_leaves_valid_credentials() {
    simulated(1, || async {
        let (bucket, keys) = (Bucket::start(Faults::default()), Rc::default());
        let service = Bucket::start_at(METADATA, None, Faults::default());
        let number = Cell::new(0);
        service.follow(move |asked| Some(metadata(asked, &number)));
        let store = store(CredentialSource::Instance { endpoint: format!("http://{METADATA}") });
        let heads = async |count| {
            // The answer of a store to a role that may not list, for a key that doesn't exist.
            bucket.follow(|asked| (asked.method == "HEAD").then(|| text(403, "")));
            for _ in 0..count {
                let error = store.head("missing").await.unwrap_err();
                assert!(matches!(error, Error::PermissionDenied(_)), "{error}");
            }
            record_keys(&bucket, &keys);
            put(&store).await;
            (keys.take().remove(0), bucket.count("HEAD"), service.asked.borrow().len())
        };
        assert_eq!(heads(10).await, ("k1 t1".to_owned(), 10, 3));
        // While the service fails, they are used as long as they are valid, and it is asked once a minute.
        service.follow(|_| Some(text(500, "")));
        runtime::sleep(Duration::from_secs(61)).await;
        assert_eq!(heads(10).await, ("k1 t1".to_owned(), 21, 4));
        let number = Cell::new(1);
        service.follow(move |asked| Some(metadata(asked, &number)));
        runtime::sleep(Duration::from_secs(61)).await;
        assert_eq!(heads(10).await, ("k2 t2".to_owned(), 32, 7));
    });
}

#[test]
fn credentials_that_expire_after_another_failure_are_renewed() {
    simulated(1, || async {
        let bucket = Bucket::start(Faults::default());
        let service = Bucket::start_at(METADATA, None, Faults::default());
        let number = Cell::new(0);
        service.follow(move |asked| Some(metadata(asked, &number)));
        let slow_down = text(503, "<Error><Code>SlowDown</Code></Error>");
        let expired = text(403, "<Error><Code>ExpiredToken</Code></Error>");
        let mut answers = vec![slow_down.clone(), expired, slow_down];
        let store = store(CredentialSource::Instance { endpoint: format!("http://{METADATA}") });
        put(&store).await;
        runtime::sleep(Duration::from_secs(61)).await;
        bucket.follow(move |_| answers.pop());
        put(&store).await;
        assert_eq!((store.counts().retries, service.asked.borrow().len()), (3, 6));
    });
}

#[test]
fn hostile_metadata_is_refused() {
    simulated(1, || async {
        let _bucket = Bucket::start(Faults::default());
        let service = Bucket::start_at(METADATA, None, Faults::default());
        for (place, body) in [
            ("/latest/api/token", "a\r\nb: c".to_owned()),
            ("/latest/meta-data/iam/security-credentials/", "../ role".to_owned()),
            ("/latest/meta-data/iam/security-credentials/", String::new()),
            ("/latest/meta-data/iam/security-credentials/role", "{\"AccessKeyId\": 1}".to_owned()),
            ("/latest/meta-data/iam/security-credentials/role", "[".repeat(10_000)),
            ("/latest/meta-data/iam/security-credentials/role", "x".repeat(20_000)),
        ] {
            let number = Cell::new(0);
            service.follow(move |asked| match asked.key == place {
                true => Some(text(200, &body)),
                false => Some(metadata(asked, &number)),
            });
            let store = store(CredentialSource::Instance { endpoint: format!("http://{METADATA}") });
            let error = store.head("key").await.unwrap_err().to_string();
            assert!(error.contains("credentials of the instance") && error.len() < 400, "{error}");
        }
    });
}

#[test]
fn a_file_has_the_credentials_of_a_profile() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("credentials");
    let text = "[default]\naws_access_key_id = one\naws_secret_access_key = hidden\n[two]\naws_access_key_id = two\n";
    std::fs::write(&path, text).unwrap();
    simulated(1, move || async move {
        let (bucket, keys) = (Bucket::start(Faults::default()), Rc::default());
        record_keys(&bucket, &keys);
        let file = |profile: &str| CredentialSource::File { path: path.clone(), profile: profile.to_owned() };
        put(&store(file("default"))).await;
        assert_eq!(keys.take(), ["one -"]);
        for (source, said) in [
            (file("two"), "profile \"two\": expected aws_access_key_id"),
            (file("three"), "it doesn't exist"),
            (
                CredentialSource::File { path: "/missing".into(), profile: "a".into() },
                "credentials file \"/missing\"",
            ),
        ] {
            let error = store(source).head("key").await.unwrap_err();
            // Not as a missing object.
            let is_refused = matches!(error, Error::PermissionDenied(_));
            assert!(is_refused && error.to_string().contains(said), "{error}");
            assert!(!error.to_string().contains("hidden"), "{error}");
        }
    });
}
