//! Writers and readers in simulated worlds, with every fault of [`Faults`]: the outcomes of writes are true,
//! and reads return what was written.

use crate::real::payload;
use block::{Data, Error};
use conformance::Seeds;
use object_store::testing::{Bucket, Faults, client, simulated};
use object_store::{Condition, Limits, Put, Store};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

/// Faults of a world: none in some, else up to a tenth of the requests with each.
fn drawn(random: &mut runtime::Random) -> Faults {
    let mut fault = || if random.chance(0.4) { random.unit() / 10.0 } else { 0.0 };
    Faults {
        lost_answer: 2.0 * fault(),
        lost_request: fault(),
        duplicate: fault(),
        slow_down: fault(),
        internal: fault(),
        late: fault(),
        cut: fault(),
        damaged: fault(),
        stale: fault(),
    }
}

fn limits() -> Limits {
    Limits {
        connections: 4,
        parts_above: 6 << 20,
        part: 5 << 20,
        operation: Duration::from_secs(40),
        ..Limits::default()
    }
}

/// Writers that each try to create the same objects: the object's writer never hears that its condition
/// failed, and no other one hears that it has written.
async fn writers_race(bucket: Rc<Bucket>) {
    const WRITERS: u8 = 4;
    let writers = (0..WRITERS).map(|writer| async move {
        let store = client(limits());
        let mut said = Vec::new();
        for number in 0..8 {
            let body = Data::copy_of(&[writer; 10]);
            said.push(store.put(&format!("root/{number}"), body.into(), &Condition::Absent).await);
        }
        said
    });
    let said = runtime::join_all(writers).await;
    for number in 0..8 {
        let objects = bucket.objects.borrow();
        let owner = objects.get(&format!("root/{number}")).map(|stored| stored.bytes[0]);
        for (writer, said) in (0..WRITERS).zip(&said) {
            match &said[number] {
                Ok(Put::Written(_)) => assert_eq!(owner, Some(writer), "it has written {number}"),
                Ok(Put::ConditionFailed) => {
                    assert!(owner.is_some() && owner != Some(writer), "its own write of {number} is there");
                }
                // Nothing is known.
                Err(_) => {}
            }
        }
    }
}

/// Writers that replace an object by its ETag: no version has two of them.
async fn writers_count(bucket: Rc<Bucket>) {
    const WRITERS: u8 = 3;
    bucket.faults.set(Faults::default());
    let first = client(limits());
    first.put("count", Data::copy_of(&[0, 0]).into(), &Condition::Absent).await.unwrap();
    bucket.faults.set(drawn(&mut runtime::Random::new(runtime::random_u64())));
    let writers = (1..=WRITERS).map(|writer| async move {
        let store = client(limits());
        let mut written = Vec::new();
        for _ in 0..6 {
            let Ok(found) = store.get("count", 2).await else { continue };
            let version = found.data.filled()[0] + 1;
            let body = Data::copy_of(&[version, writer]);
            if let Ok(Put::Written(_)) =
                store.put("count", body.into(), &Condition::Matches(found.etag)).await
            {
                written.push((version, writer));
            }
        }
        written
    });
    let mut versions = BTreeMap::new();
    for (version, writer) in runtime::join_all(writers).await.into_iter().flatten() {
        let other = versions.insert(version, writer);
        assert_eq!(other, None, "version {version} has two writers");
    }
    let last = bucket.objects.borrow()["count"].bytes[0];
    assert!(
        versions.keys().all(|version| *version <= last),
        "an acknowledged version is lost: {versions:?}, {last}"
    );
}

/// Objects of any size, some in parts: a read returns what was written, or an error.
async fn readers_verify(bucket: Rc<Bucket>) {
    let store = client(limits());
    let (mut written, has_parts) = (BTreeMap::new(), runtime::random_u64().is_multiple_of(10));
    for number in 0..12_u64 {
        let pieces: &[usize] =
            if number == 5 && has_parts { &[5 << 20, (1 << 20) + 77] } else { &[100, 7000] };
        let (key, body) = (format!("data/{number}"), payload(number, pieces));
        if let Ok(put) = store.put(&key, body.slice(0..body.len()), &Condition::Always).await {
            assert!(matches!(put, Put::Written(_)));
            written.insert(key, body.to_data());
        }
    }
    for (key, expected) in &written {
        match store.get(key, 8 << 20).await {
            Ok(object) => assert_eq!(object.data.filled(), &**expected, "{key}"),
            Err(error) => assert!(!matches!(error, Error::NotFound(_)), "{error}"),
        }
        if let Ok(object) = store.get_range(key, 10, 50).await {
            assert_eq!(object.data.filled(), &expected[10..60], "{key}");
        }
    }
    bucket.faults.set(Faults::default());
    check_listing(&store, &bucket, &written).await;
}

async fn check_listing(store: &Store, bucket: &Bucket, written: &BTreeMap<String, Data>) {
    let (mut listed, mut from) = (Vec::new(), None);
    loop {
        // The retry budget may be used up.
        let page = store.list("data/", from.as_deref()).await.unwrap();
        listed.extend(page.objects.into_iter().map(|object| object.key));
        from = page.next;
        if from.is_none() {
            break;
        }
    }
    assert!(written.keys().all(|key| listed.contains(key)));
    store.delete_batch(&listed).await.unwrap();
    assert!(bucket.objects.borrow().is_empty());
}

/// Runs a test in the worlds that fit its budget.
fn worlds<Fut: Future<Output = ()> + 'static>(test: impl Fn(Rc<Bucket>) -> Fut + Copy + 'static) {
    for seed in Seeds::within(4, 10_000) {
        simulated(seed, move || async move {
            let bucket = Bucket::start(drawn(&mut runtime::Random::new(seed)));
            test(bucket).await;
        });
    }
}

#[test]
fn one_writer_creates_an_object_whatever_is_lost() {
    worlds(writers_race);
}

#[test]
fn one_writer_replaces_an_object_whatever_is_lost() {
    worlds(writers_count);
}

#[test]
fn reads_return_what_was_written_whatever_is_damaged() {
    worlds(readers_verify);
}
