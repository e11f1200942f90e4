//! The store for programs on other executors, on files.

use runtime::Random;
use siltstone_kv::embedded::{Acknowledge, Batch, Compression, Error, Options, Pending, Store};
use std::collections::BTreeMap;
use std::future::Future;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::pin::Pin;
use std::process::{Command, Stdio};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

fn small(shards: usize) -> Options {
    Options { size: 128 << 20, shards, cache_bytes: 1 << 20, ..Options::default() }
}

fn open(path: &Path, shards: usize) -> Store {
    Store::open(path, small(shards)).blocking().unwrap()
}

fn key(thread: usize, number: usize) -> String {
    format!("{thread:02}-{number:06}")
}

fn is_shared<T: Send + Sync + Clone + 'static>(_: &T) {}
fn is_send<T: Send>(future: T) -> T {
    future
}

/// Begins a call; `None` if it succeeded at once.
fn in_flight(mut call: Pending<()>) -> Option<Pending<()>> {
    match Pin::new(&mut call).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Pending => Some(call),
        Poll::Ready(result) => {
            result.unwrap();
            None
        }
    }
}

fn begin<T: Send + 'static>(call: &mut Pending<T>) {
    drop(Pin::new(call).poll(&mut Context::from_waker(Waker::noop())));
}

#[test]
fn threads_write_and_read_on_all_shards_and_a_dropped_store_has_everything() {
    let folder = tempfile::tempdir().unwrap();
    for (shards, threads) in [(1, 1), (1, 32), (2, 8), (8, 4), (8, 32)] {
        let path = folder.path().join(format!("{shards}-{threads}.kv"));
        let (store, count) = (open(&path, shards), 640 / threads);
        is_shared(&store);
        std::thread::scope(|scope| {
            for thread in 0..threads {
                let store = store.clone();
                scope.spawn(move || {
                    for number in 0..count {
                        let key = key(thread, number);
                        store.insert(&key, format!("value of {key}")).blocking().unwrap();
                        let value = store.get(&key).blocking().unwrap().unwrap();
                        assert_eq!(value, format!("value of {key}").into_bytes());
                        if number % 4 == 3 {
                            store.remove(&key).blocking().unwrap();
                            assert!(!store.contains_key(&key).blocking().unwrap());
                        }
                    }
                });
            }
        });
        drop(store);
        // Another number of threads serves the same store.
        let store = open(&path, 3);
        let left: Vec<_> = store.iter().blocking().map(|pair| pair.unwrap().0).collect();
        let all = (0..threads).flat_map(|thread| (0..count).map(move |number| (thread, number)));
        let kept = all.filter(|(_, number)| number % 4 != 3);
        assert!(left.into_iter().eq(kept.map(|(thread, number)| key(thread, number).into_bytes())));
        store.close().blocking().unwrap();
    }
}

#[test]
fn ranges_prefixes_and_snapshots_agree_with_a_map() {
    let seed = 7;
    println!("seed {seed}");
    let mut random = Random::new(seed);
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder.path().join("data.kv"), 3);
    let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    // More than several pages.
    for _ in 0..20 {
        let mut batch = Batch::new();
        for _ in 0..300 {
            let key = (random.next_u64() % 8000).to_be_bytes()[5..].to_vec();
            match random.next_u64() % 4 {
                0 => {
                    batch.remove(&key);
                    model.remove(&key);
                }
                _ => {
                    let value = vec![7; (random.next_u64() % 300) as usize];
                    batch.insert(&key, &value);
                    model.insert(key, value);
                }
            }
        }
        assert_eq!((batch.len(), batch.is_empty()), (300, false));
        store.write(batch).blocking().unwrap();
    }
    let snapshot = store.snapshot().blocking().unwrap();
    let mut batch = Batch::new();
    batch.remove_range("", [9, 9, 9, 9]);
    batch.insert("only", "one");
    store.write(batch).blocking().unwrap();
    assert_eq!(store.iter().blocking().count(), 1, "the snapshot keeps what was removed");
    let all =
        |range: siltstone_kv::embedded::Range| -> Vec<_> { range.blocking().map(Result::unwrap).collect() };
    let pairs: Vec<_> = model.clone().into_iter().collect();
    assert_eq!(all(snapshot.iter()), pairs);
    assert!(all(snapshot.iter().rev()).into_iter().eq(pairs.iter().rev().cloned()));
    for _ in 0..20 {
        let mut bounds = [random.next_u64() % 8000, random.next_u64() % 8000];
        bounds.sort_unstable();
        let [from, to] = bounds.map(|bound| bound.to_be_bytes()[5..].to_vec());
        let some = |pairs: std::collections::btree_map::Range<'_, Vec<u8>, Vec<u8>>| -> Vec<_> {
            pairs.map(|(key, value)| (key.clone(), value.clone())).collect()
        };
        assert_eq!(all(snapshot.range(&from[..]..&to[..])), some(model.range(from.clone()..to.clone())));
        assert_eq!(all(snapshot.range(&from[..]..=&to[..])), some(model.range(from.clone()..=to.clone())));
        assert_eq!(snapshot.get(&from).blocking().unwrap(), model.get(&from).cloned());
        let prefix = &from[..2];
        let with_prefix: Vec<_> = pairs.iter().filter(|(key, _)| key.starts_with(prefix)).cloned().collect();
        assert_eq!(all(snapshot.prefix(prefix)), with_prefix);
    }
    assert_eq!(all(snapshot.range([1_u8]..[1_u8])), []);
    drop(snapshot);
    store.insert([u8::MAX, u8::MAX], "last").blocking().unwrap();
    assert_eq!(all(store.prefix([u8::MAX])).len(), 1, "a prefix without a next one");
    store.insert_expiring("soon", "over", Duration::ZERO).blocking().unwrap();
    assert_eq!(store.get("soon").blocking().unwrap(), None);
    store.flush().blocking().unwrap();
    store.compact().blocking().unwrap();
    assert_eq!(store.status().blocking().unwrap()["snapshots"], 0, "all snapshots are released");
}

#[test]
fn a_second_open_is_refused_until_the_store_is_closed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.kv");
    let store = open(&path, 1);
    let error = Store::open(&path, small(1)).blocking().unwrap_err();
    assert!(matches!(&error, Error::Busy(_)) && error.to_string().contains("data.kv"), "{error}");
    store.close().blocking().unwrap();
    // The closed handle still exists.
    let again = open(&path, 1);
    assert!(matches!(store.get("key").blocking(), Err(Error::Closed(_))));
    again.close().blocking().unwrap();
}

#[test]
fn files_without_a_store_and_missing_files_are_refused_with_their_path() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.kv");
    let existing = Options { create: false, ..small(1) };
    let error = Store::open(&path, existing.clone()).blocking().unwrap_err();
    assert!(matches!(&error, Error::NotFound(_)) && error.to_string().contains("data.kv"), "{error}");
    // A path that is also a word of the message.
    let error = Store::open("such", existing).blocking().unwrap_err();
    assert!(matches!(&error, Error::NotFound(_)) && error.to_string().starts_with("such: "), "{error}");
    std::fs::write(&path, vec![1; 1 << 20]).unwrap();
    let error = Store::open(&path, small(1)).blocking().unwrap_err();
    assert!(matches!(&error, Error::Protocol(_)) && error.to_string().contains("data.kv"), "{error}");
    let tiny = Options { size: 1 << 20, ..Options::default() };
    let small_path = folder.path().join("tiny.kv");
    assert!(matches!(Store::open(&small_path, tiny).blocking(), Err(Error::Invalid(_))));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left of a failed creation");
    // An empty file, such as a new temporary file, becomes a store; other files aren't touched.
    std::fs::write(&path, []).unwrap();
    let other = folder.path().join("data.kv.new");
    std::fs::write(&other, "a restored copy").unwrap();
    open(&path, 1).close().blocking().unwrap();
    assert_eq!(std::fs::read_to_string(other).unwrap(), "a restored copy");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
}

#[test]
fn close_while_calls_are_in_flight_lets_them_end_and_refuses_others() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.kv");
    let store = open(&path, 2);
    let calls = (0..200).map(|number| store.insert(key(0, number), "value"));
    let begun: Vec<_> = calls.filter_map(in_flight).collect();
    let not_begun = store.insert("later", "value");
    store.close().blocking().unwrap();
    for call in begun {
        call.blocking().unwrap();
    }
    assert!(matches!(not_begun.blocking(), Err(Error::Closed(_))));
    assert!(matches!(store.iter().blocking().next(), Some(Err(Error::Closed(_)))));
    assert_eq!(open(&path, 2).iter().blocking().count(), 200);
}

#[test]
fn writes_whose_futures_are_dropped_halfway_take_effect() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.kv");
    let store = open(&path, 2);
    for number in 0..100 {
        let mut call = store.insert(key(0, number), "value");
        begin(&mut call);
        drop(call);
        drop(store.insert(key(1, number), "never begun"));
        let mut snapshot = store.snapshot();
        begin(&mut snapshot);
    }
    drop(store);
    let store = open(&path, 1);
    assert_eq!(store.iter().blocking().count(), 100);
}

#[test]
fn a_panic_in_a_callback_reaches_its_caller_only_and_writes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder.path().join("data.kv"), 1);
    store.insert("count", "1").blocking().unwrap();
    let call = store.fetch_update("count", |_| panic!("on purpose"));
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| call.blocking())).unwrap_err();
    assert_eq!(panic.downcast_ref::<&str>(), Some(&"on purpose"));
    let add = |before: Option<&[u8]>| Some([before.unwrap_or_default(), b"+"].concat());
    assert_eq!(store.fetch_update("count", add).blocking().unwrap(), Some(b"1".to_vec()));
    assert_eq!(store.fetch_update("new", add).blocking().unwrap(), None);
    assert_eq!(store.get("count").blocking().unwrap(), Some(b"1+".to_vec()));
    assert_eq!(store.fetch_update("count", |_| None).blocking().unwrap(), Some(b"1+".to_vec()));
    assert!(!store.contains_key("count").blocking().unwrap());
    store.close().blocking().unwrap();
}

#[test]
fn a_full_store_refuses_writes_and_still_reads_and_closes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.kv");
    let store = Store::open(&path, Options { size: 32 << 20, compression: Compression::None, ..small(1) })
        .blocking()
        .unwrap();
    let value = vec![7; 64 << 10];
    let mut written = 0;
    let error = loop {
        match store.insert(key(0, written), &value).blocking() {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
        assert!(written < 1024, "32 MiB don't have space for 64 MiB");
    };
    assert!(matches!(error, Error::NoSpace(_)), "{error}");
    assert_eq!(store.iter().blocking().filter(|pair| pair.as_ref().unwrap().1 == value).count(), written);
    let too_large = store.insert(vec![0; siltstone_kv::MAX_KEY_BYTES + 1], "");
    assert!(matches!(too_large.blocking(), Err(Error::Invalid(_))));
    store.close().blocking().unwrap();
    let store = Store::open(&path, small(1)).blocking().unwrap();
    assert_eq!(store.iter().blocking().count(), written);
}

async fn on_any_executor(store: Store) {
    let writers: Vec<_> = (0..16)
        .map(|task| {
            let store = store.clone();
            tokio::spawn(is_send(async move {
                for number in 0..50 {
                    store.insert(key(task, number), "value").await.unwrap();
                }
                let mut range = store.prefix(format!("{task:02}-"));
                let mut found = 0;
                while let Some((_, value)) = range.next().await.unwrap() {
                    assert_eq!(value, b"value");
                    found += 1;
                }
                found
            }))
        })
        .collect();
    for writer in writers {
        assert_eq!(writer.await.unwrap(), 50);
    }
    store.close().await.unwrap();
}

#[test]
fn tokio_runs_the_futures_on_one_thread_and_on_several() {
    let folder = tempfile::tempdir().unwrap();
    let one = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let several = tokio::runtime::Builder::new_multi_thread().worker_threads(3).build().unwrap();
    for (executor, name) in [(one, "one.kv"), (several, "several.kv")] {
        let path = folder.path().join(name);
        executor.block_on(async move {
            let store = is_send(Store::open(path, small(2))).await.unwrap();
            // The last handle is dropped inside of the executor.
            on_any_executor(store).await;
        });
    }
}

/// Path of the store, in the environment of the process that is killed.
const VICTIM: &str = "SILTSTONE_TEST_VICTIM";

#[test]
fn a_killed_process_leaves_all_acknowledged_writes() {
    if let Some(path) = std::env::var_os(VICTIM) {
        let store = open(Path::new(&path), 2);
        for number in 0.. {
            store.insert(key(0, number), "value").blocking().unwrap();
            println!("\nacknowledged {number}");
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.kv");
    let test = "embedded::a_killed_process_leaves_all_acknowledged_writes";
    for acknowledged in [1, 300, 1000] {
        let mut victim = Command::new(std::env::current_exe().unwrap())
            .args([test, "--exact", "--nocapture"])
            .env(VICTIM, &path)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(victim.stdout.take().unwrap()).lines().map(Result::unwrap);
        let numbers = lines.filter_map(|line| line.strip_prefix("acknowledged ")?.parse::<usize>().ok());
        let last = numbers.take(acknowledged).last().unwrap();
        victim.kill().unwrap();
        victim.wait().unwrap();
        let store = open(&path, 1);
        for number in 0..=last {
            assert!(store.contains_key(key(0, number)).blocking().unwrap(), "key {number} of {last} is lost");
        }
    }
}

#[test]
fn buffered_writes_are_kept_by_a_drop() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.kv");
    let options = Options { acknowledge: Acknowledge::Buffered, ..small(2) };
    let store = Store::open(&path, options).blocking().unwrap();
    (0..500).for_each(|number| store.insert(key(0, number), "value").blocking().unwrap());
    drop(store);
    assert_eq!(open(&path, 1).iter().blocking().count(), 500);
}

#[path = "../../examples/kv-threads.rs"]
#[allow(dead_code)]
mod threads_example;
#[path = "../../examples/kv-tokio.rs"]
#[allow(dead_code)]
mod tokio_example;

#[test]
fn the_examples_run() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("users.kv");
    threads_example::fill(&path).unwrap();
    let store = open(&path, 1);
    assert_eq!(store.iter().blocking().count(), 2 * 4 * 1000 - 1);
    let path = folder.path().join("words.kv");
    let executor = tokio::runtime::Builder::new_multi_thread().build().unwrap();
    executor.block_on(tokio_example::count_words(path.clone())).unwrap();
    let counts: Vec<_> = open(&path, 1).iter().blocking().map(|pair| pair.unwrap().1).collect();
    assert_eq!(counts, [[33], [34], [33]]);
}
