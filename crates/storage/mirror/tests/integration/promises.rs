//! Promises of a running mirror with legs that fail, lag and join again: the contract's suite, and more.

use crate::{settled, simulated};
use block::{
    BlockCount, BlockIndex, BlockRange, BlockSize, DeviceGeometry, DevicePart, Durability, Error, Part,
    ZeroMode,
};
use conformance::requests::{full, read, write};
use layers::fault::{FaultDevicePart, parse_rules};
use layers::record::replay::ImageDisk;
use mirror::{MirrorPart, MissingLeg, Permissions, Plan, Settings};
use stack::Contract;
use std::sync::Arc;
use std::time::Duration;
use writecache::{Options, WriteCachePart};

fn disk(blocks: u64, block_size: u64) -> Arc<dyn DevicePart> {
    Arc::new(ImageDisk::empty(DeviceGeometry {
        block_size: BlockSize::new(block_size).unwrap(),
        blocks: BlockCount(blocks * 4096 / block_size),
        atomic_write: 512,
        volatile_cache: true,
        read_only: false,
    }))
}

fn settings() -> Settings {
    Settings {
        write_mostly: 0,
        write_behind: 0,
        behind_bytes: 64 << 20,
        fast_flush: false,
        bitmap_delay: Duration::from_secs(5),
        sync_speed_max: 0,
        first_leg: false,
        timeout: Duration::from_secs(30),
    }
}

fn plan(legs: &[Arc<dyn DevicePart>], format: bool) -> Plan {
    let names = ["a", "b", "c"].into_iter().map(str::to_owned);
    Plan {
        legs: names.zip(legs.iter().cloned()).collect(),
        settings: settings(),
        permissions: Permissions::default(),
        format,
        bitmap_chunk: format.then_some(16 << 10),
    }
}

fn suite(make: impl Fn() -> Plan + Send + 'static) {
    let config = runtime::Config::default().with_shards(2);
    let main = move || async move {
        let make = async || Arc::new(MirrorPart::open(make()).await.unwrap()) as Arc<dyn DevicePart>;
        conformance::device::run(make, Default::default()).await
    };
    runtime::run(config, main).unwrap().unwrap_or_else(|broken| panic!("{broken}"));
}

#[test]
fn the_suite_on_two_legs_of_different_blocks() {
    suite(|| plan(&[disk(700, 512), disk(800, 4096)], true));
}

#[test]
fn the_suite_on_three_legs_one_of_which_lags() {
    suite(|| {
        let rules = parse_rules(&["any delay=0us..300us probability=0.5".into()], Contract::Device).unwrap();
        let slow = Arc::new(FaultDevicePart::new(disk(700, 4096), rules, 5).unwrap());
        let mut plan = plan(&[disk(700, 4096), slow, disk(700, 4096)], true);
        plan.settings = Settings {
            write_mostly: 0b10,
            write_behind: 8,
            bitmap_delay: Duration::from_millis(1),
            ..plan.settings
        };
        plan
    });
}

fn faulty(disk: &Arc<dyn DevicePart>, rule: &str) -> Arc<dyn DevicePart> {
    let rules = parse_rules(&[rule.to_owned()], Contract::Device).unwrap();
    Arc::new(FaultDevicePart::new(disk.clone(), rules, 3).unwrap())
}

/// All data of a leg, which begins at block 3 on legs of this size.
async fn data_of(leg: &Arc<dyn DevicePart>, blocks: usize) -> Vec<u8> {
    read(&*leg.open().await.unwrap(), 3, blocks).await.unwrap()
}

async fn state_of(part: &MirrorPart, leg: usize) -> String {
    part.status().await["legs"][leg]["state"].as_str().unwrap().to_owned()
}

async fn refused(plan: Plan, words: &str) {
    let error = MirrorPart::open(plan).await.err().expect("it is refused");
    assert!(error.detail().contains(words), "{error}");
}

#[test]
fn a_leg_that_fails_a_write_is_left_behind_for_good() {
    simulated(|| async {
        let (a, b) = (disk(64, 4096), disk(64, 4096));
        let legs = [a.clone(), faulty(&b, "write error=EIO after=30")];
        let part = MirrorPart::open(plan(&legs, true)).await.unwrap();
        let handle = part.open().await.unwrap();
        for block in 0..61 {
            write(&*handle, block, block as u8 + 1).await.unwrap();
        }
        assert_eq!((state_of(&part, 0).await, state_of(&part, 1).await), ("active".into(), "faulty".into()));
        assert_eq!(part.status().await["state"], "degraded");
        assert_eq!(part.status().await["one_copy_bytes"], part.geometry().bytes());
        drop(handle);
        part.close().await.unwrap();
        // The superblock of the leg that was left behind doesn't record that.
        refused(plan(std::slice::from_ref(&b), false), "leg 0 of 2 of the mirror is missing").await;
        // With the other leg, its superblock isn't authoritative.
        let part = MirrorPart::open(plan(&[b.clone(), a.clone()], false)).await.unwrap();
        let handle = part.open().await.unwrap();
        for block in 0..61 {
            assert_eq!(read(&*handle, block, 1).await.unwrap()[0], block as u8 + 1);
        }
        // The leg joins again by the bitmap, and then has all data.
        let error = part.message("add b").await.unwrap_err();
        assert!(matches!(error, Error::NotFound(_)) || state_of(&part, 0).await == "faulty", "{error}");
        let said = part.message("re-add 0").await.unwrap();
        assert!(said.contains("joins again"), "{said}");
        settled(&part).await;
        assert_eq!(state_of(&part, 0).await, "active");
        part.message("fail 1").await.unwrap();
        for block in 0..61 {
            assert_eq!(read(&*handle, block, 1).await.unwrap()[0], block as u8 + 1);
        }
        let error = part.message("fail 0").await.unwrap_err();
        assert!(error.detail().contains("only active leg"), "{error}");
        drop(handle);
        part.close().await.unwrap();
        assert_eq!(data_of(&a, 61).await, data_of(&b, 61).await);
    });
}

#[test]
fn legs_that_each_went_on_alone_are_refused_until_one_is_named() {
    simulated(|| async {
        let (a, b) = (disk(64, 4096), disk(64, 4096));
        let part = MirrorPart::open(plan(&[a.clone(), b.clone()], true)).await.unwrap();
        settled(&part).await;
        part.close().await.unwrap();
        for (leg, byte) in [(&a, 1), (&b, 2)] {
            let permissions = Permissions { degraded: true, rebuild: 0 };
            let part = MirrorPart::open(Plan { permissions, ..plan(std::slice::from_ref(leg), false) })
                .await
                .unwrap();
            write(&*part.open().await.unwrap(), 7, byte).await.unwrap();
            part.close().await.unwrap();
        }
        let both = plan(&[a.clone(), b.clone()], false);
        refused(both.clone(), "each used without the other").await;
        let permissions = Permissions { degraded: false, rebuild: 0b01 };
        let part = MirrorPart::open(Plan { permissions, ..both.clone() }).await.unwrap();
        settled(&part).await;
        assert_eq!(read(&*part.open().await.unwrap(), 7, 1).await.unwrap()[0], 2);
        part.close().await.unwrap();
        assert_eq!(data_of(&a, 61).await, data_of(&b, 61).await);
        // Afterwards both legs are members again.
        MirrorPart::open(both).await.unwrap().close().await.unwrap();
    });
}

#[test]
fn a_new_leg_in_place_of_a_lost_one() {
    simulated(|| async {
        let (a, b, new) = (disk(64, 4096), disk(64, 4096), disk(80, 4096));
        let part = MirrorPart::open(plan(&[a.clone(), b.clone()], true)).await.unwrap();
        write(&*part.open().await.unwrap(), 9, 9).await.unwrap();
        part.close().await.unwrap();
        let both = plan(&[new.clone(), b.clone()], false);
        refused(both.clone(), "\"a\" holds nothing but zeros").await;
        let permissions = Permissions { degraded: false, rebuild: 0b01 };
        let rebuilding = Plan { permissions: permissions.clone(), ..both.clone() };
        let part = MirrorPart::open(rebuilding.clone()).await.unwrap();
        assert_eq!(part.status().await["state"], "degraded, rebuilding");
        settled(&part).await;
        part.close().await.unwrap();
        assert_eq!(data_of(&new, 61).await, data_of(&b, 61).await);
        // The `rebuild` list is harmless, and no longer needed; the old leg is known to be replaced.
        let part = MirrorPart::open(rebuilding).await.unwrap();
        assert_eq!(part.status().await["state"], "clean");
        part.close().await.unwrap();
        MirrorPart::open(both).await.unwrap().close().await.unwrap();
        let part = MirrorPart::open(plan(&[new, a, b], false)).await.unwrap();
        assert_eq!(
            (state_of(&part, 1).await, part.status().await["state"].clone()),
            ("not a member".into(), "clean".into())
        );
        part.close().await.unwrap();
    });
}

#[test]
fn a_leg_that_cant_be_opened_is_missing() {
    simulated(|| async {
        let (a, b) = (disk(64, 4096), disk(64, 512));
        let gone: Arc<dyn DevicePart> = Arc::new(MissingLeg::new(Error::not_found("b.img: it is gone")));
        refused(plan(&[a.clone(), gone.clone()], true), "leg \"b\": b.img: it is gone").await;
        let part = MirrorPart::open(plan(&[a.clone(), b.clone()], true)).await.unwrap();
        write(&*part.open().await.unwrap(), 7, 7).await.unwrap();
        settled(&part).await;
        part.close().await.unwrap();

        // The missing leg may have newer data as long as its loss isn't recorded.
        let without = plan(&[a.clone(), gone.clone()], false);
        refused(without.clone(), "is missing (\"b\" can't be read: b.img: it is gone").await;
        let rebuild = Permissions { degraded: true, rebuild: 0b10 };
        refused(Plan { permissions: rebuild, ..without.clone() }, "rebuild: leg \"b\" can't be read: b.img")
            .await;
        let permissions = Permissions { degraded: true, rebuild: 0 };
        for plan in [Plan { permissions, ..without.clone() }, without] {
            let part = MirrorPart::open(plan).await.unwrap();
            let status = part.status().await;
            assert_eq!(
                (&status["state"], &status["legs"][1]["state"]),
                (&"degraded".into(), &"missing".into())
            );
            assert!(status["legs"][1]["error"].as_str().unwrap().contains("b.img: it is gone"), "{status:?}");
            let handle = part.open().await.unwrap();
            assert_eq!(read(&*handle, 7, 1).await.unwrap()[0], 7);
            write(&*handle, 8, 8).await.unwrap();
            handle.flush().await.unwrap();
            for message in ["add b", "re-add b", "remove b"] {
                let error = part.message(message).await.unwrap_err();
                assert!(error.detail().contains("b.img: it is gone"), "{message}: {error}");
            }
            drop(handle);
            part.close().await.unwrap();
        }
        refused(plan(&[gone.clone(), gone], false), "\"a\" can't be read: b.img: it is gone").await;

        // A leg in use isn't missing.
        let used = Arc::new(MissingLeg::new(Error::busy("b.img is in use")));
        let permissions = Permissions { degraded: true, rebuild: 0 };
        refused(Plan { permissions, ..plan(&[a.clone(), used], false) }, "leg \"b\": b.img is in use").await;

        // The leg is present again, and waits for an operator's message.
        let part = MirrorPart::open(plan(&[a.clone(), b.clone()], false)).await.unwrap();
        assert_eq!(state_of(&part, 1).await, "faulty");
        part.message("re-add b").await.unwrap();
        settled(&part).await;
        part.close().await.unwrap();
        assert_eq!(data_of(&a, 61).await, read(&*b.open().await.unwrap(), 24, 61).await.unwrap());
    });
}

#[test]
fn a_block_that_a_leg_can_not_read_is_written_anew() {
    simulated(|| async {
        let (a, b) = (disk(64, 4096), disk(64, 4096));
        // Data begins at block 3.
        let legs = [faulty(&a, "read error=EBADMSG range=40KiB..44KiB times=2"), b];
        let part = MirrorPart::open(plan(&legs, true)).await.unwrap();
        let handle = part.open().await.unwrap();
        settled(&part).await;
        write(&*handle, 7, 7).await.unwrap();
        let legs = part.status().await["legs"].clone();
        assert_eq!((&legs[0]["corrected"], &legs[0]["state"]), (&0.into(), &"active".into()));
        for _ in 0..20 {
            assert_eq!(read(&*handle, 6, 3).await.unwrap()[4096], 7);
        }
        runtime::sleep(Duration::from_millis(10)).await;
        let legs = part.status().await["legs"].clone();
        assert!(legs[0]["read_errors"].as_u64().unwrap() > 0, "{legs}");
        assert_eq!(legs[0]["state"], "active", "{legs}");
        drop(handle);
        part.close().await.unwrap();
    });
}

/// A mirror whose leg b takes 10 ms for each write.
async fn lagging(flush_fast: bool) -> (MirrorPart, Arc<dyn DevicePart>, Arc<dyn DevicePart>) {
    let (a, b) = (disk(64, 4096), disk(64, 4096));
    let mut plan = plan(&[a.clone(), faulty(&b, "write delay=10ms")], true);
    plan.settings = Settings { write_mostly: 0b10, write_behind: 8, fast_flush: flush_fast, ..plan.settings };
    let part = MirrorPart::open(plan).await.unwrap();
    settled(&part).await;
    (part, a, b)
}

#[test]
fn writes_go_at_the_fast_legs_speed_up_to_the_bound() {
    simulated(|| async {
        let (part, a, b) = lagging(false).await;
        let handle = part.open().await.unwrap();
        let began = runtime::now();
        // Writes of one block: the slow leg gets them one after the other, and no write waits for it.
        for byte in 1..=8 {
            write(&*handle, 5, byte).await.unwrap();
        }
        assert!(began.elapsed() < Duration::from_millis(10), "{:?}", began.elapsed());
        assert_eq!(part.status().await["behind_writes"], 8);
        assert_eq!(part.status().await["behind_bytes"], 8 * 4096);
        assert_eq!(part.status().await["one_copy_bytes"], 8 * 4096);
        assert_eq!(data_of(&b, 61).await[5 * 4096], 0);
        assert_eq!(read(&*handle, 5, 1).await.unwrap()[0], 8);
        // The ninth write exceeds the limit: it waits for the slow leg, and so for all writes before it.
        write(&*handle, 5, 9).await.unwrap();
        assert!(began.elapsed() >= Duration::from_millis(90), "{:?}", began.elapsed());
        write(&*handle, 6, 6).await.unwrap();
        handle.flush().await.unwrap();
        assert_eq!(part.status().await["behind_writes"], 0);
        assert_eq!(part.status().await["behind_bytes"], 0);
        assert_eq!(data_of(&a, 61).await, data_of(&b, 61).await);
        assert_eq!(data_of(&b, 61).await[5 * 4096], 9);
        drop(handle);
        part.close().await.unwrap();
    });
}

#[test]
fn what_a_slow_leg_has_in_a_cache_only_is_in_one_copy() {
    simulated(|| async {
        let (fast, log, slow) = (disk(64, 4096), disk(130, 4096), disk(64, 4096));
        // The write cache keeps all blocks until the message `flush`.
        let options = Options { format: true, high_watermark: 100, low_watermark: 100, ..Options::default() };
        let behind = Arc::new(WriteCachePart::open(slow, log, options).await.unwrap());
        let mut plan = plan(&[fast, behind.clone()], true);
        plan.settings = Settings { write_mostly: 0b10, ..plan.settings };
        let part = MirrorPart::open(plan).await.unwrap();
        settled(&part).await;
        behind.message("flush").await.unwrap();
        let one_copy = async || part.status().await["one_copy_bytes"].as_u64().unwrap();
        assert_eq!(one_copy().await, 0);
        let handle = part.open().await.unwrap();
        for block in 0..8 {
            write(&*handle, block, 7).await.unwrap();
        }
        handle.flush().await.unwrap();
        // No write is outstanding, but only the fast device has the data.
        assert_eq!(part.status().await["behind_bytes"], 0);
        assert_eq!(one_copy().await, 8 * 4096);
        assert_eq!(part.status().await["legs"][1]["only_in_cache_bytes"], 8 * 4096);
        assert!(part.status().await["legs"][0].get("only_in_cache_bytes").is_none());
        behind.message("flush").await.unwrap();
        assert_eq!(one_copy().await, 0);
        drop(handle);
        part.close().await.unwrap();
        behind.close().await.unwrap();
    });
}

/// The figure of a write cache passes through every layer between it and the mirror.
#[test]
fn what_is_in_one_copy_is_seen_through_layers() {
    simulated(|| async {
        let (fast, log, slow) = (disk(64, 4096), disk(130, 4096), disk(64, 4096));
        let options = Options { format: true, high_watermark: 100, low_watermark: 100, ..Options::default() };
        let behind = Arc::new(WriteCachePart::open(slow, log, options).await.unwrap());
        let counted = Arc::new(layers::stats::StatsDevicePart::new(behind.clone()));
        let faulty = Arc::new(layers::fault::FaultDevicePart::new(counted, Vec::new(), 1).unwrap());
        let leg: Arc<dyn DevicePart> = Arc::new(layers::linear::linear(vec![faulty]).unwrap());
        let mut plan = plan(&[fast, leg], true);
        plan.settings = Settings { write_mostly: 0b10, ..plan.settings };
        let part = MirrorPart::open(plan).await.unwrap();
        settled(&part).await;
        behind.message("flush").await.unwrap();
        let handle = part.open().await.unwrap();
        write(&*handle, 3, 7).await.unwrap();
        handle.flush().await.unwrap();
        assert_eq!(part.status().await["one_copy_bytes"], 4096);
        assert_eq!(part.status().await["legs"][1]["only_in_cache_bytes"], 4096);
        behind.message("flush").await.unwrap();
        assert_eq!(part.status().await["one_copy_bytes"], 0);
        drop(handle);
        part.close().await.unwrap();
        behind.close().await.unwrap();
    });
}

#[test]
fn what_is_behind_without_data_holds_no_bytes() {
    simulated(|| async {
        let (a, b) = (disk(64, 4096), disk(64, 4096));
        let mut plan = plan(&[a, faulty(&b, "any delay=10ms")], true);
        plan.settings = Settings { write_mostly: 0b10, write_behind: 8, ..plan.settings };
        let part = MirrorPart::open(plan).await.unwrap();
        settled(&part).await;
        let handle = part.open().await.unwrap();
        let behind = async || {
            let status = part.status().await;
            (status["behind_writes"].clone(), status["behind_bytes"].clone())
        };
        handle.discard(BlockRange::new(3, 20)).await.unwrap();
        handle
            .write_zeroes(BlockRange::new(30, 5), ZeroMode::KeepAllocated, Durability::Visible)
            .await
            .unwrap();
        assert_eq!(behind().await, (2.into(), 0.into()));
        write(&*handle, 5, 5).await.unwrap();
        assert_eq!(behind().await, (3.into(), 4096.into()));
        handle.flush().await.unwrap();
        assert_eq!(behind().await, (0.into(), 0.into()));
        // A faulty leg has no outstanding writes.
        write(&*handle, 5, 6).await.unwrap();
        part.message("fail b").await.unwrap();
        runtime::sleep(Duration::from_millis(50)).await;
        assert_eq!(behind().await, (0.into(), 0.into()));
        drop(handle);
        part.close().await.unwrap();
    });
}

#[test]
fn a_flush_of_all_waits_and_one_of_the_fast_does_not() {
    for fast in [false, true] {
        simulated(move || async move {
            let (part, _, b) = lagging(fast).await;
            let handle = part.open().await.unwrap();
            write(&*handle, 5, 5).await.unwrap();
            let began = runtime::now();
            handle.flush().await.unwrap();
            handle.write(BlockIndex(6), full(6, 1), Durability::Durable).await.unwrap();
            let took = began.elapsed();
            assert_eq!(took < Duration::from_millis(10), fast, "{took:?}");
            assert_eq!(data_of(&b, 61).await[5 * 4096], if fast { 0 } else { 5 });
            assert_eq!(part.status().await["flush"], if fast { "fast" } else { "all" });
            drop(handle);
            part.close().await.unwrap();
            assert_eq!(data_of(&b, 61).await[6 * 4096], 6, "closing waits for all");
        });
    }
}

#[test]
fn when_only_the_lagging_leg_is_left_reads_wait_for_it() {
    simulated(|| async {
        let (part, _, _) = lagging(false).await;
        let handle = part.open().await.unwrap();
        for byte in 1..=5 {
            write(&*handle, 5, byte).await.unwrap();
        }
        part.message("fail a").await.unwrap();
        assert_eq!(read(&*handle, 5, 1).await.unwrap()[0], 5);
        write(&*handle, 5, 6).await.unwrap();
        assert_eq!(read(&*handle, 5, 1).await.unwrap()[0], 6);
        handle.flush().await.unwrap();
        drop(handle);
        part.close().await.unwrap();
    });
}

/// Settings without a stack have no limits. With such a delay the loop that clears the bitmap never waits,
/// and must still yield to other tasks; otherwise this test doesn't end.
#[test]
fn a_bitmap_that_is_cleared_at_once_leaves_the_shard_to_the_others() {
    for delay in [Duration::ZERO, Duration::from_nanos(3)] {
        let run = move || async move {
            let mut plan = plan(&[disk(64, 4096), disk(64, 4096)], true);
            plan.settings.bitmap_delay = delay;
            let part = MirrorPart::open(plan).await.unwrap();
            let handle = part.open().await.unwrap();
            settled(&part).await;
            write(&*handle, 5, 5).await.unwrap();
            for _ in 0..1000 {
                runtime::sleep(Duration::from_millis(1)).await;
                if part.status().await["dirty_chunks"] == 0 {
                    break;
                }
            }
            assert_eq!(part.status().await["dirty_chunks"], 0);
            drop(handle);
            part.close().await.unwrap();
        };
        simulated(run);
        // The same in real time.
        conformance::requests::on_a_shard(run);
    }
}

#[test]
fn memory_of_what_is_behind_is_bounded() {
    simulated(|| async {
        let (a, b) = (disk(64, 4096), disk(64, 4096));
        let mut plan = plan(&[a, faulty(&b, "write delay=10ms")], true);
        plan.settings =
            Settings { write_mostly: 0b10, write_behind: 100, behind_bytes: 3 * 4096, ..plan.settings };
        let part = MirrorPart::open(plan).await.unwrap();
        settled(&part).await;
        let handle = part.open().await.unwrap();
        let mut most = 0;
        for block in 0..20 {
            write(&*handle, block, 1).await.unwrap();
            most = most.max(part.status().await["behind_bytes"].as_u64().unwrap());
        }
        assert_eq!(most, 3 * 4096);
        drop(handle);
        part.close().await.unwrap();
    });
}

#[test]
fn a_scrub_counts_what_differs_and_repairs_it_when_told() {
    simulated(|| async {
        let (a, b) = (disk(64, 4096), disk(64, 4096));
        let part = MirrorPart::open(plan(&[a.clone(), b.clone()], true)).await.unwrap();
        let handle = part.open().await.unwrap();
        for block in 0..61 {
            write(&*handle, block, 3).await.unwrap();
        }
        settled(&part).await;
        let rotten = b.open().await.unwrap();
        write(&*rotten, 3 + 20, 9).await.unwrap();
        for (message, mismatches) in [("check", 8), ("repair", 8), ("check", 0)] {
            part.message(message).await.unwrap();
            while part.status().await["sync_action"] != "idle" {
                runtime::sleep(Duration::from_millis(1)).await;
            }
            assert_eq!(part.status().await["mismatch_sectors"], mismatches, "{message}");
            assert_eq!(part.status().await["scrubbed_bytes"], 61 * 4096);
        }
        assert_eq!(data_of(&a, 61).await, data_of(&b, 61).await);
        part.message("check").await.unwrap();
        assert!(part.message("repair").await.is_err(), "one at a time");
        part.message("idle").await.unwrap();
        assert!(part.message("scrub").await.unwrap_err().detail().contains(r#""check", "repair", "idle""#));
        drop(handle);
        part.close().await.unwrap();
    });
}

/// The status reports `idle` only when nothing is left to copy or compare: scripts wait for it.
#[test]
fn the_sync_action_says_what_is_copied_or_compared() {
    simulated(|| async {
        let (a, b) = (disk(64, 4096), disk(64, 4096));
        // Comparing takes at least 5 ms, and copying all data a quarter of a second.
        let mut slow = plan(&[a, faulty(&b, "read delay=5ms")], true);
        slow.settings.sync_speed_max = 1 << 20;
        let part = MirrorPart::open(slow).await.unwrap();
        let all_in_turn = async || {
            let mut words: Vec<String> = Vec::new();
            for _ in 0..5_000 {
                let status = part.status().await;
                let word = status["sync_action"].as_str().unwrap().to_owned();
                if word == "idle" {
                    assert_eq!((&status["chunks_to_copy"], &status["state"]), (&0.into(), &"clean".into()));
                    return words.join(", ");
                }
                if words.last() != Some(&word) {
                    words.push(word);
                }
                runtime::sleep(Duration::from_millis(1)).await;
            }
            panic!("{words:?}, and never idle: {:?}", part.status().await);
        };
        assert_eq!(part.message("idle").await.unwrap(), "no check or repair in progress; a resync continues");
        assert_eq!(all_in_turn().await, "resync");
        let handle = part.open().await.unwrap();
        part.message("fail b").await.unwrap();
        assert_eq!(part.status().await["sync_action"], "idle", "nothing is copied to a leg that is faulty");
        write(&*handle, 7, 7).await.unwrap();
        part.message("re-add b").await.unwrap();
        // The check begins when the leg has all data.
        part.message("check").await.unwrap();
        assert_eq!(all_in_turn().await, "recover, check");
        assert_eq!(state_of(&part, 1).await, "active");
        part.message("repair").await.unwrap();
        assert_eq!(all_in_turn().await, "repair");
        assert_eq!(part.status().await["mismatch_sectors"], 0);
        drop(handle);
        part.close().await.unwrap();
    });
}

#[test]
fn reads_leave_a_slow_leg_alone() {
    simulated(|| async {
        let (a, b) = (disk(64, 4096), disk(64, 4096));
        let legs = [faulty(&a, "read delay=5ms"), faulty(&b, "read delay=100us")];
        let part = MirrorPart::open(plan(&legs, true)).await.unwrap();
        settled(&part).await;
        let handle = part.open().await.unwrap();
        // Each leg is read once at first.
        for block in [1, 2] {
            read(&*handle, block, 1).await.unwrap();
        }
        let began = runtime::now();
        for number in 0..1000 {
            read(&*handle, number * 7 % 61, 1).await.unwrap();
        }
        let took = began.elapsed();
        assert!(took < Duration::from_millis(101), "1000 reads take {took:?}");
        let legs = part.status().await["legs"].clone();
        // Only occasional probes, which run in the background.
        assert!((1..=4).contains(&legs[0]["reads"].as_u64().unwrap()), "{legs}");
        drop(handle);
        part.close().await.unwrap();
    });
}

#[test]
fn copying_goes_on_where_it_was_after_a_restart() {
    simulated(|| async {
        let (a, b) = (disk(64, 4096), disk(64, 4096));
        let mut slow = plan(&[a.clone(), b.clone()], true);
        slow.settings.bitmap_delay = Duration::from_millis(5);
        slow.settings.sync_speed_max = 1 << 20;
        slow.bitmap_chunk = Some(4096);
        let part = MirrorPart::open(slow.clone()).await.unwrap();
        runtime::sleep(Duration::from_millis(100)).await;
        let left = part.status().await["chunks_to_copy"].as_u64().unwrap();
        assert!((20..50).contains(&left), "{left} of 61");
        part.close().await.unwrap();
        slow.format = false;
        let part = MirrorPart::open(slow).await.unwrap();
        let after = part.status().await["chunks_to_copy"].as_u64().unwrap();
        assert!(after <= left && after > 10, "{after} of {left}");
        assert_eq!(part.status().await["state"], "resyncing");
        settled(&part).await;
        part.close().await.unwrap();
    });
}

#[test]
fn when_all_legs_fail_nobody_is_left_behind() {
    simulated(|| async {
        let of_a = "write error=EIO range=80KiB..84KiB times=1";
        // The first write to this range was that of the format.
        let of_b = "write error=EIO range=80KiB..84KiB after=1 times=1";
        let legs = [faulty(&disk(64, 4096), of_a), faulty(&disk(64, 4096), of_b)];
        let part = MirrorPart::open(plan(&legs, true)).await.unwrap();
        settled(&part).await;
        let handle = part.open().await.unwrap();
        assert!(write(&*handle, 17, 1).await.is_err());
        // The legs are made equal by copying from one of them.
        settled(&part).await;
        write(&*handle, 17, 2).await.unwrap();
        assert_eq!((state_of(&part, 0).await, state_of(&part, 1).await), ("active".into(), "active".into()));
        drop(handle);
        part.close().await.unwrap();
    });
}
