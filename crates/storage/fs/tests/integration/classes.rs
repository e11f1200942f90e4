//! I/O classes on modelled disks, in simulated time.

use block::{Data, Error, Result};
use fs::broken::{Broken, with_broken};
use fs::{Class, File, FileSystem, OpenOptions, Properties, Settings};
use runtime::{Instant, Random, SimulatedFaults, Simulation, now};
use stack::{Registry, Stack};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

const BLOCK: u64 = 4096;
/// Bytes of each read of a compaction.
const READ: usize = 256 << 10;
/// Bytes of each file that is read.
const FILE: u64 = 8 << 20;
const SECOND: Duration = Duration::from_secs(1);
/// Time in which reads are counted, and the warm-up time before.
const MEASURED: Duration = Duration::from_millis(400);
const RAMP: Duration = Duration::from_millis(50);

fn world<T: 'static, F: Future<Output = T> + 'static>(main: impl FnOnce() -> F) -> T {
    let world = Simulation { trace_lines: 0, ..Simulation::new(1) };
    runtime::simulate(world.with_faults(SimulatedFaults::default()), main).unwrap().value
}

/// Creates a file system on a modelled disk.
async fn format(profile: &str, settings: &Settings) -> FileSystem {
    format_on(profile, (64 << 20, 1 << 20), settings).await
}

async fn format_on(profile: &str, (bytes, zone): (u64, u64), settings: &Settings) -> FileSystem {
    let registry = Registry::new(vec![&disks::ram::KIND, &layers::model::KIND]);
    let line = format!("model(ram({bytes}, block_size=4096), {profile}, seed=1)");
    let plan = Stack::from_line("test", &line, &registry).unwrap().check(false).unwrap();
    let device = plan.build().await.unwrap().top().unwrap();
    let options = zones::on_device::Options { format: true, zone_size: Some(zone), ..Default::default() };
    let zones = Arc::new(zones::OnDevice::open(device, options).await.unwrap());
    FileSystem::format(zones, Properties::default(), settings).await.unwrap()
}

async fn filled(files: &FileSystem, path: &str) -> File {
    let file = files.create(path).await.unwrap();
    for at in (0..FILE).step_by(1 << 20) {
        file.write_at(at, Data::copy_of(&vec![at as u8; 1 << 20])).await.unwrap();
    }
    file
}

/// Reads at random positions until `end`, with `depth` reads in flight. Returns the number of bytes that were
/// read after `from`.
fn read(
    file: &File,
    class: &Class,
    (length, depth): (usize, u64),
    (from, end): (Instant, Instant),
) -> Rc<Cell<u64>> {
    let bytes = Rc::new(Cell::new(0));
    for seed in 0..depth {
        let (file, bytes) = (file.clone().in_class(class), bytes.clone());
        runtime::spawn(async move {
            let mut random = Random::new(seed + 1);
            while now() < end {
                let place = random.below((FILE - length as u64) / BLOCK);
                file.read_at(place * BLOCK, length).await.unwrap();
                if (from..end).contains(&now()) {
                    bytes.set(bytes.get() + length as u64);
                }
            }
        })
        .detach();
    }
    bytes
}

fn after(time: Duration) -> Instant {
    now() + time
}

/// Returns the numbers of bytes that two classes with these shares read concurrently.
async fn compete(files: &FileSystem, shares: (u32, u32), length: usize, depth: u64) -> (f64, f64) {
    let file = filled(files, "/a").await;
    let one = files.class("one", shares.0).await.unwrap();
    let other = files.class("other", shares.1).await.unwrap();
    let time = (after(RAMP), after(RAMP + MEASURED));
    let counts = [&one, &other].map(|class| read(&file, class, (length, depth), time));
    runtime::sleep_until(time.1).await;
    (counts[0].get() as f64, counts[1].get() as f64)
}

#[test]
fn classes_that_compete_are_served_by_their_shares() {
    for (profile, length) in [("sata-ssd", READ), ("sata-ssd", 4096), ("optane-900p", READ), ("qlc", READ)] {
        let (one, other) = world(move || async move {
            let files = format(profile, &Settings::default()).await;
            compete(&files, (100, 300), length, if length == READ { 32 } else { 256 }).await
        });
        let ratio = other / one;
        assert!((2.85..3.15).contains(&ratio), "{profile}, {length}: {one} and {other} bytes: {ratio}");
    }
}

#[test]
fn a_scheduler_that_ignores_shares_is_noticed() {
    let (one, other) = world(|| async {
        let settings = Settings { io_depth: u64::MAX, ..Settings::default() };
        compete(&format("sata-ssd", &settings).await, (100, 300), READ, 32).await
    });
    assert!(other / one < 1.2, "{one} and {other} bytes");
}

#[test]
fn a_class_alone_gets_what_the_disk_has() {
    for profile in ["sata-ssd", "optane-900p", "qlc"] {
        let alone = |shares: Option<u32>| {
            world(move || async move {
                let files = format(profile, &Settings::default()).await;
                let file = filled(&files, "/a").await;
                let class = files.class("default", 100).await.unwrap();
                let class = match shares {
                    Some(shares) => files.class("compaction", shares).await.unwrap(),
                    None => class,
                };
                let time = (after(RAMP), after(RAMP + MEASURED));
                let bytes = read(&file, &class, (READ, 32), time);
                runtime::sleep_until(time.1).await;
                bytes.get() as f64
            })
        };
        let (unbounded, bounded) = (alone(None), alone(Some(1)));
        assert!(bounded > 0.97 * unbounded, "{profile}: {bounded} of {unbounded} bytes");
    }
}

#[test]
fn the_smallest_shares_are_served_beside_the_largest() {
    let (one, other) = world(|| async {
        compete(&format("sata-ssd", &Settings::default()).await, (1, 1000), 4096, 256).await
    });
    assert!(one > 0.0 && other > 500.0 * one, "{one} and {other} bytes");
}

#[test]
fn shares_are_changed_while_classes_compete() {
    let (first, second) = world(|| async {
        let files = format("sata-ssd", &Settings::default()).await;
        let first = compete(&files, (100, 300), READ, 32).await;
        runtime::sleep(SECOND).await;
        let file = files.open_file("/a", OpenOptions::default()).await.unwrap();
        let one = files.class("one", 100).await.unwrap();
        let other = files.class("other", 300).await.unwrap();
        let time = (after(2 * RAMP), after(2 * RAMP + MEASURED));
        let counts = [&one, &other].map(|class| read(&file, class, (READ, 32), time));
        runtime::sleep(RAMP).await;
        files.class("one", 600).await.unwrap();
        runtime::sleep_until(time.1).await;
        (first.1 / first.0, counts[0].get() as f64 / counts[1].get() as f64)
    });
    assert!((2.85..3.15).contains(&first) && (1.9..2.1).contains(&second), "{first}, {second}");
}

/// 99th percentile of the time of commits during the reads of a compaction, and the bytes that it read.
fn commits(shares: Option<(u32, u32)>, settings: Settings) -> (Duration, u64) {
    world(move || async move {
        let files = format("sata-ssd", &settings).await;
        let (file, log) = (filled(&files, "/a").await, files.create("/log").await.unwrap());
        let mut classes = Vec::new();
        for (name, shares) in [("log", shares.map(|it| it.0)), ("compaction", shares.map(|it| it.1))] {
            let (name, shares) = shares.map_or(("default", 100), |shares| (name, shares));
            classes.push(files.class(name, shares).await.unwrap());
        }
        let log = log.in_class(&classes[0]);
        let time = (now(), after(SECOND));
        let bytes = read(&file, &classes[1], (READ, 64), time);
        runtime::sleep(SECOND / 10).await;
        let mut took = Vec::new();
        while now() < time.1 {
            let begun = now();
            log.append(Data::copy_of(&[1; BLOCK as usize])).await.unwrap();
            log.sync().await.unwrap();
            took.push(now() - begun);
            if took.len() % 256 == 0 {
                log.truncate(0).await.unwrap();
            }
        }
        took.sort_unstable();
        (took[took.len() * 99 / 100], bytes.get())
    })
}

#[test]
fn a_commit_log_is_not_held_up_by_a_compaction_in_another_class() {
    let (without, read_without) = commits(None, Settings::default());
    let (with, read_with) = commits(Some((1000, 100)), Settings::default());
    let unbounded = Settings { io_depth: u64::MAX, ..Settings::default() };
    let (unbounded, _) = commits(Some((1000, 100)), unbounded);
    // The depth takes 2 ms on this disk, and a commit has two turns and a flush of 1 ms.
    assert!(with < Duration::from_millis(8), "{with:?}");
    assert!(without > 3 * with, "{without:?} without classes, {with:?} with them");
    assert!(unbounded > 3 * with, "{unbounded:?} where requests start in order of arrival");
    assert!(read_with as f64 > 0.95 * read_without as f64, "{read_with} of {read_without} bytes");
}

#[test]
fn requests_whose_callers_are_gone_give_their_places_and_turns_back() {
    world(|| async {
        let files = format("sata-ssd", &Settings { io_depth: 64 << 10, ..Settings::default() }).await;
        let file = filled(&files, "/a").await;
        let class = files.class("one", 10).await.unwrap();
        let file = file.in_class(&class);
        let mut random = Random::new(3);
        for _ in 0..300 {
            // Some requests are waiting, some have just been started, some are in flight.
            let limit = Duration::from_micros(random.below(3000));
            let requests: Vec<_> = (0..8_u64)
                .map(|number| {
                    let file = file.clone();
                    runtime::spawn(async move {
                        let request = async {
                            match number {
                                0..5 => file.read_at(number * BLOCK, 65_536).await.map(drop),
                                5..7 => file.write_at(number * 7000, Data::copy_of(&[1; 9000])).await,
                                _ => file.sync().await,
                            }
                        };
                        runtime::timeout(limit + Duration::from_micros(100 * number), request).await.ok();
                    })
                })
                .collect();
            runtime::join_all(requests).await;
        }
        runtime::sleep(SECOND).await;
        // The whole depth is free again: it permits four of these reads.
        let before = files.classes().await.unwrap()[2].clone();
        let reads = (0..8).map(|number| file.read_at(number * 65_536, 1500));
        let reads = runtime::timeout(SECOND, runtime::join_all(reads)).await.unwrap();
        assert!(reads.into_iter().all(|read| read.is_ok()));
        let after = files.classes().await.unwrap()[2].clone();
        assert_eq!((after.requests - before.requests, after.waited() - before.waited()), (8, 4), "{after:?}");
        assert!(before.waited() > 100 && before.wait_quantile(0.99) > Duration::ZERO);
    });
}

#[test]
fn the_background_gets_its_shares_beside_files_of_no_class() {
    let (read_bytes, scrubbed) = world(|| async {
        let settings = Settings { background_shares: 25, io_depth: 512 << 10, ..Settings::default() };
        let files = format("sata-ssd", &settings).await;
        let file = filled(&files, "/a").await;
        let class = files.class("default", 100).await.unwrap();
        let time = (now(), after(2 * SECOND));
        let bytes = read(&file, &class, (READ, 32), time);
        let scrubbed = Arc::new(std::sync::atomic::AtomicU64::new(0));
        while now() < time.1 {
            let found = files.scrub(&scrubbed).await.unwrap();
            assert_eq!(found.damaged, 0);
        }
        (bytes.get() as f64, 4096.0 * scrubbed.load(std::sync::atomic::Ordering::Relaxed) as f64)
    });
    // A scrub reads one megabyte at a time, so it leaves some of its shares to others.
    let share = scrubbed / read_bytes;
    assert!((0.05..0.27).contains(&share), "{scrubbed} beside {read_bytes}: {share}");
}

/// Overwrites a file on a nearly full disk, so that writers that hold all turns wait for the cleaner. Returns
/// whether the writes end.
fn overwrites_end() -> bool {
    world(move || async move {
        let settings = Settings { background_shares: 1, io_depth: 64 << 10, ..Settings::default() };
        let files = format_on("optane-900p", (16 << 20, 128 << 10), &settings).await;
        let class = files.class("one", 1000).await.unwrap();
        let file = files.create("/a").await.unwrap().in_class(&class);
        let blocks = files.statistics().await.unwrap().free * 9 / 10;
        for block in 0..blocks {
            file.write_at(block * BLOCK, Data::copy_of(&[1; BLOCK as usize])).await.unwrap();
        }
        let writers = (0..16_u64).map(|writer| {
            let file = file.clone();
            runtime::spawn(async move {
                let mut random = Random::new(writer + 1);
                for _ in 0..300 {
                    let at = random.below(blocks) * BLOCK;
                    file.write_at(at, Data::copy_of(&[2; BLOCK as usize])).await.unwrap();
                }
            })
        });
        let ended = runtime::timeout(60 * SECOND, runtime::join_all(writers)).await.is_ok();
        let moved = files.counters().moved_blocks.load(std::sync::atomic::Ordering::Relaxed);
        assert!(moved > 500 || !ended, "{moved} blocks moved");
        ended
    })
}

#[test]
fn writers_that_have_all_turns_do_not_hold_up_the_cleaner_that_they_wait_for() {
    assert!(overwrites_end());
    assert!(
        !with_broken([Broken::CleanerWaits], overwrites_end),
        "a cleaner that waits for its turn isn't noticed"
    );
}

#[test]
fn classes_have_limits() {
    world(|| async {
        let files = format("optane-900p", &Settings::default()).await;
        let refused = |made: Result<Class>| matches!(made, Err(Error::Invalid(_)));
        for (name, shares) in [("a", 0), ("a", 1001), ("", 1), (&"a".repeat(65)[..], 1)] {
            assert!(refused(files.class(name, shares).await), "{name}, {shares}");
        }
        for number in 2..32 {
            files.class(&format!("class-{number}"), 1000).await.unwrap();
        }
        assert!(refused(files.class("one-too-many", 1).await));
        files.class("class-31", 7).await.unwrap();
        files.class("background", 9).await.unwrap();
        let all = files.classes().await.unwrap();
        assert_eq!((all.len(), all[1].shares, &*all[31].name, all[31].shares), (32, 9, "class-31", 7));
        let file = files.create("/a").await.unwrap();
        file.write_at(0, Data::copy_of(&[1; 5000])).await.unwrap();
        file.sync().await.unwrap();
        let status = files.status().await.unwrap();
        let default = &status["classes"][0];
        assert_eq!((&default["class"], &default["shares"]), (&"default".into(), &100.into()));
        assert_eq!(
            (&default["requests"], &default["bytes"], &default["waited"]),
            (&2.into(), &8192.into(), &0.into())
        );
        assert_eq!(status["classes"][31]["class"], "class-31");
    });
}

#[test]
fn a_read_beyond_the_end_counts_as_what_it_can_read() {
    world(|| async {
        let files = format("sata-ssd", &Settings::default()).await;
        let large = filled(&files, "/large").await;
        let (one, other) = (files.class("one", 100).await.unwrap(), files.class("other", 100).await.unwrap());
        let small = files.create("/small").await.unwrap().in_class(&one);
        small.write_at(0, Data::copy_of(&[7; BLOCK as usize])).await.unwrap();
        let begun = now();
        // Programs may pass any length to read the whole file.
        for length in [1 << 40, usize::MAX, 1 << 40] {
            let found = small.read_at(BLOCK - 100, length).await.unwrap();
            assert_eq!(found.to_data()[..], [7; 100]);
        }
        read(&large, &other, (READ, 8), (begun, after(SECOND)));
        runtime::sleep(RAMP).await;
        let next = runtime::timeout(SECOND / 2, small.read_at(0, 100)).await;
        assert_eq!(next.expect("its class has as many shares as the other one").unwrap().len(), 100);
    });
}
