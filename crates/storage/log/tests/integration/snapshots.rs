//! Snapshots and clones in the ways that operators use them.

use block::{BlockCount, BlockIndex, BlockSize, Buffer, DeviceGeometry, DevicePart, Durability, Error, Part};
use layers::fault::{FaultDevicePart, parse_rules};
use layers::record::replay::ImageDisk;
use log::kind::{Options, open};
use serde_json::Value;
use std::sync::Arc;
use std::task::Poll;

const BLOCKS: u64 = 300;

fn disk() -> Arc<dyn DevicePart> {
    Arc::new(ImageDisk::empty(DeviceGeometry {
        block_size: BlockSize::default(),
        blocks: BlockCount(16384),
        atomic_write: 512,
        volatile_cache: true,
        read_only: false,
    }))
}

fn run(test: impl AsyncFnOnce() + Send + 'static) {
    runtime::run(runtime::Config::default(), move || async move { test().await })
        .expect("the runtime starts");
}

async fn fill(device: &dyn DevicePart, byte: u8) {
    let handle = device.open().await.expect("it opens");
    for at in 0..BLOCKS {
        let data = Buffer::copy_of(&[byte; 4096]).into();
        handle.write(BlockIndex(at), data, Durability::Visible).await.expect("a write");
    }
    handle.flush().await.expect("a flush");
}

async fn holds(device: &dyn DevicePart, byte: u8) {
    let handle = device.open().await.expect("it opens");
    for at in 0..BLOCKS {
        let (outcome, buffer) = handle.read(BlockIndex(at), Buffer::new(4096)).await;
        outcome.expect("a read");
        assert!(buffer.filled().iter().all(|found| *found == byte), "block {at}: expected {byte}");
    }
}

async fn ask(log: &impl Part, message: &str) -> Value {
    let answer = log.message(message).await.unwrap_or_else(|error| panic!("{message}: {error}"));
    serde_json::from_str(&answer).expect("the answer is JSON")
}

fn options(map: &str, format: bool) -> Options {
    Options {
        format,
        map: map.to_owned(),
        size: Some(16 << 20),
        zone_size: Some(128 << 10),
        ..Options::default()
    }
}

/// A snapshot with a clone, until its deletion: each version keeps its contents whatever is written to the
/// others, over cleaning and reopening, with every map; deletion returns the space.
#[test]
fn versions_keep_what_they_have() {
    run(async || {
        for map in log::map::NAMES {
            println!("{map}");
            let disk = disk();
            let log = open(disk.clone(), &options(map, true)).await.expect("it is made");
            fill(&log, 1).await;
            ask(&log, "snapshot create monday").await;
            fill(&log, 2).await;
            ask(&log, "snapshot clone monday experiment").await;
            let clone = log.version("experiment").await.expect("the clone is there");
            holds(&*clone, 1).await;
            fill(&*clone, 3).await;
            let busy = log.message("snapshot delete experiment").await;
            assert!(matches!(busy, Err(Error::Busy(_))), "{busy:?}");
            clone.close().await.expect("the clone closes");
            for round in 4..12 {
                fill(&log, round).await;
            }
            log.close().await.expect("it closes");

            let log = open(disk.clone(), &options(map, false)).await.expect("it opens again");
            for (name, byte) in [("monday", 1), ("experiment", 3)] {
                let version = log.version(name).await.expect("it is there");
                holds(&*version, byte).await;
                version.close().await.expect("it closes");
            }
            holds(&log, 11).await;
            let list = ask(&log, "snapshot list").await;
            let names: Vec<&str> = list["snapshots"]
                .as_array()
                .expect("a list")
                .iter()
                .map(|it| it["name"].as_str().expect("a name"))
                .collect();
            assert_eq!(names, ["monday", "experiment"]);
            let diff = ask(&log, "snapshot diff monday").await;
            assert_eq!(diff["ranges"], serde_json::json!([[0, BLOCKS]]));
            let before = log.status().await["live_blocks"].as_u64().expect("a number");
            ask(&log, "snapshot delete experiment").await;
            ask(&log, "snapshot delete monday").await;
            let after = log.status().await["live_blocks"].as_u64().expect("a number");
            assert_eq!(before - after, 2 * BLOCKS, "{map}: {before} to {after}");
            holds(&log, 11).await;
            log.close().await.expect("it closes");
        }
    });
}

/// A snapshot with several dependent versions disappears at its deletion, and its blocks are freed once one
/// of these versions is left; over a reopening, in every order of the deletions.
#[test]
fn a_snapshot_with_several_clones_is_deleted() {
    run(async || {
        for (map, order) in [("radix", ["a", "b"]), ("radix", ["b", "a"]), ("hash", ["a", "b"])] {
            let disk = disk();
            let mut log = open(disk.clone(), &options(map, true)).await.expect("it is made");
            fill(&log, 1).await;
            ask(&log, "snapshot create monday").await;
            for clone in order {
                ask(&log, &format!("snapshot clone monday {clone}")).await;
            }
            // Of monday's blocks, the volume releases all, and each clone the first one.
            fill(&log, 2).await;
            for clone in order {
                let part = log.version(clone).await.expect("it is there");
                let handle = part.open().await.expect("it opens");
                let data = Buffer::copy_of(&[3; 4096]).into();
                handle.write(BlockIndex(0), data, Durability::Visible).await.expect("a write");
                drop(handle);
                part.close().await.expect("it closes");
            }
            let live =
                async |log: &log::LogPart| log.status().await["live_blocks"].as_u64().expect("a number");
            assert_eq!(live(&log).await, BLOCKS + BLOCKS + 2);
            ask(&log, "snapshot delete monday").await;
            assert_eq!(live(&log).await, BLOCKS + BLOCKS + 2);
            let gone = log.message("snapshot diff monday").await;
            assert!(matches!(gone, Err(Error::NotFound(_))), "{gone:?}");
            // The name can be used again.
            ask(&log, "snapshot create monday").await;
            ask(&log, "snapshot delete monday").await;
            log.close().await.expect("it closes");
            log = open(disk.clone(), &options(map, false)).await.expect("it opens again");
            let list = ask(&log, "snapshot list").await;
            let told: Vec<(&str, &Value)> = list["snapshots"]
                .as_array()
                .expect("a list")
                .iter()
                .map(|it| (it["name"].as_str().expect("a name"), &it["parent"]))
                .collect();
            assert_eq!(told, order.map(|name| (name, &Value::Null)));
            for round in 4..12 {
                fill(&log, round).await;
            }
            ask(&log, &format!("snapshot delete {}", order[0])).await;
            assert_eq!(live(&log).await, BLOCKS + BLOCKS + 1);
            let left = log.version(order[1]).await.expect("it is there");
            let handle = left.open().await.expect("it opens");
            let (outcome, buffer) = handle.read(BlockIndex(0), Buffer::new(2 * 4096)).await;
            outcome.expect("a read");
            assert_eq!((buffer.filled()[0], buffer.filled()[4096]), (3, 1));
            drop((handle, left));
            ask(&log, &format!("snapshot delete {}", order[1])).await;
            assert_eq!(live(&log).await, BLOCKS);
            holds(&log, 11).await;
            log.close().await.expect("it closes");
        }
    });
}

#[test]
fn a_snapshot_survives_a_discard_of_everything() {
    run(async || {
        let log = open(disk(), &options("radix", true)).await.expect("it is made");
        fill(&log, 7).await;
        ask(&log, "snapshot create before").await;
        let handle = log.open().await.expect("it opens");
        handle.discard(handle.geometry().whole()).await.expect("a discard");
        drop(handle);
        holds(&log, 0).await;
        for round in 0..4 {
            fill(&log, 20 + round).await;
        }
        let snapshot = log.version("before").await.expect("it is there");
        holds(&*snapshot, 7).await;
        let refused = snapshot.open().await.expect("it opens");
        let write = refused.write(BlockIndex(0), Buffer::zeroed(4096).into(), Durability::Visible).await;
        assert!(matches!(write, Err(Error::ReadOnly(_))), "{write:?}");
        drop(refused);
        snapshot.close().await.expect("it closes");
        log.close().await.expect("it closes");
    });
}

/// The deletion's record fails after its caller has stopped waiting: the snapshot is unchanged.
#[test]
fn a_deletion_that_fails_while_nobody_waits_leaves_the_snapshot() {
    run(async || {
        let rules = parse_rules(&["write error=EIO".to_owned()], stack::Contract::Device).expect("rules");
        let faulty = Arc::new(FaultDevicePart::new(disk(), rules, 35).expect("a part"));
        faulty.message("rules off").await.expect("it obeys");
        let log = open(faulty.clone(), &options("radix", true)).await.expect("it is made");
        fill(&log, 1).await;
        ask(&log, "snapshot create monday").await;
        fill(&log, 2).await;
        faulty.message("rules on").await.expect("it obeys");
        let mut call = log.message("snapshot delete monday");
        let polled =
            std::future::poll_fn(|context| Poll::Ready(std::pin::Pin::new(&mut call).poll(context))).await;
        assert!(polled.is_pending(), "its record is on its way");
        drop(call);
        let mut turns = 0;
        let snapshot = loop {
            match log.version("monday").await {
                Ok(snapshot) if log.status().await.contains_key("failed") => break snapshot,
                _ => turns += 1,
            }
            assert!(turns < 10_000, "the snapshot can't be opened: {:?}", log.status().await.get("failed"));
            runtime::sleep(std::time::Duration::from_millis(1)).await;
        };
        holds(&*snapshot, 1).await;
        drop(snapshot);
        log.close().await.expect_err("the log has failed");
    });
}

#[test]
fn declared_messages_are_read() {
    let values = [("NAME", "before"), ("NEW", "after"), ("OTHER", "now"), ("SIZE", "1GiB")];
    conformance::check_messages::<log::snapshot::Message>(&log::KIND, &values);
}

#[test]
fn wrong_words_are_answered() {
    run(async || {
        let log = open(disk(), &options("radix", true)).await.expect("it is made");
        ask(&log, "snapshot create one").await;
        let asked = [
            ("snapshot create one", "already"),
            ("snapshot delete two", "expected one of one"),
            ("snapshot clone two three", "expected one of one"),
            ("snapshot diff two", "expected one of one"),
            ("snapshot", "unknown to log; expected one of"),
            ("resize ten", "a size, such as"),
            ("resize 4096", "expected a multiple of 4096, at least"),
        ];
        for (message, expected) in asked {
            let error = log.message(message).await.expect_err(message);
            assert!(error.to_string().contains(expected), "{message}: {error}");
        }
        log.close().await.expect("it closes");
    });
}

#[test]
fn a_volume_grows() {
    run(async || {
        let disk = disk();
        let log = open(disk.clone(), &options("radix", true)).await.expect("it is made");
        fill(&log, 5).await;
        ask(&log, "snapshot create small").await;
        ask(&log, &format!("resize {}", 24 << 20)).await;
        log.close().await.expect("it closes");
        let grown = Options { size: None, ..options("radix", false) };
        let log = open(disk, &grown).await.expect("it opens again");
        assert_eq!(log.geometry().bytes(), 24 << 20);
        holds(&log, 5).await;
        let handle = log.open().await.expect("it opens");
        let last = BlockIndex(handle.geometry().blocks.0 - 1);
        handle.write(last, Buffer::copy_of(&[9; 4096]).into(), Durability::Visible).await.expect("a write");
        drop(handle);
        let snapshot = log.version("small").await.expect("it is there");
        assert_eq!(snapshot.geometry().bytes(), 16 << 20);
        snapshot.close().await.expect("it closes");
        log.close().await.expect("it closes");
    });
}
