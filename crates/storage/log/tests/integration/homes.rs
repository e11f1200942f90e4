//! Logs with several home shards: the contract of a device, snapshots, full logs, and reopening, on fewer and
//! more shards of the runtime than the log has.

use crate::conformance::conforms;
use crate::life::controlled::{ControlledDisk, LATENCY};
use crate::life::{Volume, copy_of, disk, raw, run};
use block::{BlockIndex, Buffer, Device, DevicePart, Durability, Error, Part, Result};
use log::core::{Acknowledge, Core};
use log::kind::{Options, open};
use runtime::{Config, Random, ShardIndex, Simulation};
use std::rc::Rc;
use std::time::Duration;

/// Options of a log with stripes of a few blocks.
fn striped(shards: u32) -> Options {
    Options {
        shards: Some(shards),
        stripe_blocks: 8,
        size: Some(8 << 20),
        zone_size: Some(32 << 10),
        checkpoint_after: 256 << 10,
        ..Options::default()
    }
}

fn big_enough(shards: u32) -> u64 {
    24 + 4 * u64::from(shards)
}

/// Runs an epoch on several shards of the runtime.
fn run_on<T: Send + 'static, Fut: Future<Output = T> + 'static>(
    shards: usize,
    main: impl FnOnce() -> Fut + Send,
) -> T {
    runtime::run(Config::default().with_shards(shards), main).expect("the runtime starts")
}

#[test]
fn conform_with_any_number_of_shards() {
    for (shards, threads) in [(1, 2), (2, 1), (2, 2), (7, 2), (16, 3), (2, 32)] {
        println!("{shards} shards on {threads}");
        conforms(threads, disk(big_enough(shards)), striped(shards));
    }
}

#[test]
fn conform_acknowledged_from_the_buffer() {
    let options = Options { acknowledge: Acknowledge::Buffer, dirty: 1 << 20, ..striped(3) };
    conforms(2, disk(48), options);
}

#[test]
fn conform_with_every_map_and_whole_pages() {
    for map in log::map::NAMES {
        println!("{map}");
        let options = Options { map: map.to_owned(), ..striped(2) };
        conforms(2, disk(32), options);
    }
    let options = Options { stripe_blocks: log::stripes::STRIPE_BLOCKS, size: Some(20 << 20), ..striped(3) };
    conforms(2, disk(64), options);
}

/// Writes of all shards of the runtime, over several epochs on other numbers of them, with a process that
/// dies in between.
#[test]
fn contents_stay_on_other_numbers_of_shards() {
    const BLOCKS: u64 = 600;
    for shards in [2, 3, 8] {
        let options = striped(shards);
        let mut image = run(move || async move {
            let disk = disk(big_enough(shards));
            let volume = Volume::make(&disk, &striped(shards)).await;
            volume.close().await;
            raw(&disk).await
        });
        let mut expected = vec![0; BLOCKS as usize];
        for (epoch, threads) in [1_usize, 3, 2, 1].into_iter().enumerate() {
            let options = options.clone();
            let before = expected.clone();
            let epoch = epoch as u64 + 1;
            (image, expected) = run_on(threads, move || async move {
                let mut expected = before;
                let disk = copy_of(&image).await;
                let volume = Volume::open(&disk, &options).await;
                assert_eq!(volume.versions(0, BLOCKS).await, expected, "epoch {epoch}");
                for round in 0..4 {
                    let part = BLOCKS / threads as u64;
                    for thread in 0..threads {
                        let (at, version) = (thread as u64 * part, epoch * 100 + round);
                        volume.write_on(thread, at, part, version).await.expect("it writes");
                        expected[at as usize..(at + part) as usize].fill(version);
                    }
                    let (at, count) = (round * 37, 100);
                    volume.write(at, count, epoch * 100 + 50 + round).await;
                    expected[at as usize..(at + count) as usize].fill(epoch * 100 + 50 + round);
                    volume.discard(at + 20, 30).await;
                    expected[at as usize + 20..at as usize + 50].fill(0);
                }
                assert_eq!(volume.versions(0, BLOCKS).await, expected, "epoch {epoch}");
                volume.flush().await;
                let image = raw(&disk).await;
                if epoch.is_multiple_of(2) {
                    volume.close().await;
                    return (raw(&disk).await, expected);
                }
                (image, expected)
            });
        }
    }
}

fn is_done(outcome: Result<()>) -> bool {
    match outcome {
        Ok(()) => true,
        Err(Error::NoSpace(_)) => false,
        Err(error) => panic!("{error}"),
    }
}

/// A full log takes overwrites and discards on every shard, and what was discarded can be written again.
#[test]
fn a_full_log_takes_overwrites_and_discards() {
    for (shards, acknowledge) in
        [(2, Acknowledge::Log), (4, Acknowledge::Buffer), (8, Acknowledge::Log), (2, Acknowledge::Buffer)]
    {
        println!("{shards}, {acknowledge:?}");
        run_on(2, move || async move {
            let mebibytes = 2 + 2 * u64::from(shards);
            let disk = disk(mebibytes);
            let options = Options {
                size: Some(256 << 20),
                disk: Some(mebibytes << 20),
                acknowledge,
                checkpoint_after: 64 << 10,
                stripe_blocks: log::stripes::STRIPE_BLOCKS,
                ..striped(shards)
            };
            let mut volume = Volume::make(&disk, &options).await;
            // Stripes are pages, so that each page of the map has changes of one shard; all shards are used.
            let place = |number: u64| {
                let shards = u64::from(shards);
                number % shards * u64::from(log::stripes::STRIPE_BLOCKS) + number / shards
            };
            let mut count = 0;
            while is_done(volume.try_write(place(count), 1, 1).await) {
                count += 1;
            }
            println!("{count} blocks");
            assert!(count > 100, "{count} blocks");
            for round in 2..7_u64 {
                for number in 0..count {
                    volume.write(place(number * 7919 % count), 1, round).await;
                }
                volume.flush().await;
                match round {
                    3 => {
                        volume.close().await;
                        volume = Volume::open(&disk, &options).await;
                    }
                    5 => {
                        let after_crash = copy_of(&raw(&disk).await).await;
                        volume = Volume::open(&after_crash, &options).await;
                    }
                    _ => {}
                }
                for number in 0..count {
                    assert_eq!(volume.versions(place(number), 1).await, [round]);
                }
            }
            for number in 0..count / 2 {
                volume.discard(place(number), 1).await;
            }
            // Pages that writes in flight make dirty take a few blocks of a thin volume.
            let most = count / 2 - 40;
            for number in 0..most {
                volume.write(place(count + number), 1, 9).await;
            }
            volume.flush().await;
            volume.close().await;
        });
    }
}

/// Snapshots fill a log; after their deletion all of it can be written again.
#[test]
fn snapshots_fill_a_log_and_their_deletion_empties_it() {
    for (shards, map) in [(2, "radix"), (4, "hash"), (8, "radix")] {
        run_on(2, move || async move {
            let disk = disk(2 + u64::from(shards));
            let options = Options {
                size: Some(200 * 4096),
                map: map.to_owned(),
                checkpoint_after: 64 << 10,
                ..striped(shards)
            };
            let mut volume = Volume::make(&disk, &options).await;
            for round in 1..3_u64 {
                let mut names = Vec::new();
                for version in round * 10_000.. {
                    for block in (0..volume.blocks()).filter(|block| block % 6 == version % 6) {
                        is_done(volume.try_write(block, 1, version).await);
                    }
                    let name = format!("s{version}");
                    if !is_done(volume.part.message(&format!("snapshot create {name}")).await.map(drop)) {
                        break;
                    }
                    names.push(name);
                }
                println!("{shards} shards, {map}: {} snapshots", names.len());
                assert!(names.len() > 2, "space for {} snapshots", names.len());
                volume.flush().await;
                volume.discard(0, volume.blocks()).await;
                if round == 2 {
                    volume.close().await;
                    volume = Volume::open(&disk, &options).await;
                }
                for name in names {
                    volume.part.message(&format!("snapshot delete {name}")).await.expect("it is deleted");
                }
                volume.write(0, volume.blocks(), round).await;
                volume.flush().await;
                assert_eq!(volume.all().await, vec![round; volume.blocks() as usize]);
            }
            volume.close().await;
        });
    }
}

/// Writes on all shards go on while snapshots are taken, cloned and deleted: each snapshot has the writes
/// that were acknowledged before it began, and none that began after it had ended.
#[test]
fn a_snapshot_is_a_cut_through_all_shards() {
    const BLOCKS: u64 = 96;
    for seed in 0..6 {
        run_on(2, move || async move {
            let disk = disk(40);
            let options = Options { size: Some(BLOCKS * 4096), ..striped(3) };
            let volume = Volume::make(&disk, &options).await;
            let part = volume.part.clone();
            let writer = runtime::spawn_on(ShardIndex(1), move || async move {
                let device = part.open().await.expect("a handle");
                let mut random = Random::new(seed);
                // Each write has a higher version than all that were acknowledged before it.
                for version in 1..2000 {
                    let block = random.below(BLOCKS);
                    let data = crate::life::stamped(block, 1, version);
                    device.write(BlockIndex(block), data.into(), Durability::Visible).await.expect("a write");
                }
            });
            let mut taken = Vec::new();
            for number in 0..12 {
                let before = newest(&volume.device, BLOCKS).await;
                let name = format!("s{number}");
                volume.part.message(&format!("snapshot create {name}")).await.expect("a snapshot");
                let after = newest(&volume.device, BLOCKS).await;
                taken.push((name, before, after));
                if number % 4 == 3 {
                    let (name, ..) = taken.remove(0);
                    volume.part.message(&format!("snapshot delete {name}")).await.expect("it is deleted");
                }
            }
            writer.await.expect("the writer ends");
            for (name, before, after) in &taken {
                check(&volume, name, *before, *after).await;
            }
            volume.close().await;
            let volume = Volume::open(&disk, &options).await;
            for (name, before, after) in &taken {
                check(&volume, name, *before, *after).await;
            }
            volume.close().await;
        });
    }
}

async fn newest(device: &Rc<dyn Device>, blocks: u64) -> u64 {
    let (outcome, buffer) = device.read(BlockIndex(0), Buffer::new(blocks as usize * 4096)).await;
    outcome.expect("a read");
    let found = buffer.filled().chunks_exact(4096).zip(0..);
    found.map(|(bytes, block)| crate::life::version_of(block, bytes).expect("a block")).max().unwrap_or(0)
}

/// One client writes ever higher versions, one at a time: what a snapshot has is all up to some version,
/// which is between the newest ones before and after it.
async fn check(volume: &Volume, name: &str, before: u64, after: u64) {
    let version = volume.part.version(name).await.expect("it is there");
    let device = version.open().await.expect("it opens");
    let found = newest(&device, device.geometry().blocks.0).await;
    // The writer may be one write ahead of what is visible.
    assert!((before..=after + 1).contains(&found), "{name}: {found}, expected {before}..={after}");
    drop(device);
    version.close().await.expect("it closes");
}

#[test]
fn a_clone_is_written_on_all_shards_and_a_volume_grows() {
    run_on(2, || async {
        let disk = disk(48);
        let volume = Volume::make(&disk, &striped(3)).await;
        volume.write(0, 200, 1).await;
        volume.part.message("snapshot create monday").await.expect("a snapshot");
        volume.part.message("snapshot clone monday branch").await.expect("a clone");
        volume.write(0, 100, 2).await;
        let branch = volume.part.version("branch").await.expect("it is there");
        let device = branch.open().await.expect("it opens");
        let data = crate::life::stamped(30, 40, 3);
        device.write(BlockIndex(30), data.into(), Durability::Durable).await.expect("a write");
        drop(device);
        branch.close().await.expect("it closes");
        let list = volume.part.message("snapshot list").await.expect("a list");
        let list: serde_json::Value = serde_json::from_str(&list).expect("JSON");
        assert_eq!(list["snapshots"][1]["bytes_unique"], 40 * 4096, "{list}");
        let diff = volume.part.message("snapshot diff monday branch").await.expect("a list");
        let diff: serde_json::Value = serde_json::from_str(&diff).expect("JSON");
        assert_eq!(diff["ranges"], serde_json::json!([[30, 40]]));
        volume.part.message(&format!("resize {}", 12 << 20)).await.expect("it grows");
        volume.close().await;
        let volume = Volume::open(&disk, &striped(3)).await;
        assert_eq!(volume.blocks(), 12 << 8);
        volume.write(volume.blocks() - 40, 40, 4).await;
        assert_eq!(volume.versions(90, 20).await, [[2; 10], [1; 10]].concat());
        volume.close().await;
    });
}

#[test]
fn another_number_of_shards_is_refused() {
    run(async || {
        let disk = disk(32);
        Volume::make(&disk, &striped(2)).await.close().await;
        let error = open(disk.clone(), &Options { size: None, zone_size: None, ..striped(3) }).await;
        let error = error.expect_err("another number").to_string();
        assert!(error.contains("shards 3: expected 2"), "{error}");
        let any = Options { shards: None, ..Options::default() };
        let log = open(disk.clone(), &any).await.expect("any number");
        assert_eq!(log.status().await["shards"], 2);
        log.close().await.expect("it closes");
        let report = log::check::check_device(disk, &|_, _| {}).await.expect("a report");
        assert!(!report.is_damaged(), "{report:?}");
    });
}

/// Runs an epoch on two simulated shards.
fn simulate<Fut: Future<Output = ()> + 'static>(seed: u64, main: impl FnOnce() -> Fut) {
    let world = Simulation { trace_lines: 0, ..Simulation::new(seed) }.with_shards(2);
    runtime::simulate(world, main).expect("it ends");
}

/// Asks the home, then the other shards.
async fn ask_all(volume: &Volume, of: fn(&Core) -> u64) -> Vec<u64> {
    let ask = move |core: Rc<Core>| async move {
        let mut all = vec![of(&core)];
        all.extend(core.peers.each_other(move |core: Rc<Core>| async move { Ok(of(&core)) }).await?);
        Ok::<_, Error>(all)
    };
    volume.part.home.with(ask).await.expect("they answer")
}

/// A snapshot takes effect on one shard after the other. A checkpoint that begins in between loses no page of
/// it.
#[test]
fn a_checkpoint_during_a_snapshot_loses_no_page() {
    const ROUNDS: u64 = 24;
    for seed in 0..12 {
        println!("seed {seed}");
        simulate(seed, move || async move {
            let (disk, _controls) = ControlledDisk::over(disk(48));
            let options = Options { size: Some(64 * 4096), checkpoint_after: 64 << 20, ..striped(2) };
            let volume = Volume::make(&disk, &options).await;
            for round in 1..=ROUNDS {
                // A block of the second shard, so that the home itself has no dirty page.
                volume.write(8, 8, round).await;
                let part = volume.part.clone();
                let name = format!("snapshot create s{round}");
                let create = runtime::spawn(async move { part.message(&name).await });
                // All operations take the same time, so this ends when one of them does.
                runtime::sleep(LATENCY * (seed % 4) as u32).await;
                for _ in 0..round {
                    runtime::yield_now().await;
                }
                volume.part.message("checkpoint").await.expect("a checkpoint");
                create.await.expect("a snapshot");
            }
            volume.close().await;
            let report = log::check::check_device(disk.clone(), &|_, _| {}).await.expect("a report");
            assert!(!report.is_damaged(), "{report:?}");
            let volume = Volume::open(&disk, &options).await;
            for round in 1..=ROUNDS {
                let version = volume.part.version(&format!("s{round}")).await.expect("it is there");
                let device = version.open().await.expect("it opens");
                let (outcome, buffer) = device.read(BlockIndex(8), Buffer::new(8 * 4096)).await;
                outcome.expect("a read");
                let found = buffer.filled().chunks_exact(4096).zip(8..);
                let found =
                    found.map(|(bytes, block)| crate::life::version_of(block, bytes).expect("a block"));
                assert_eq!(found.collect::<Vec<_>>(), [round; 8], "snapshot {round}");
                drop(device);
                version.close().await.expect("it closes");
            }
            volume.close().await;
        });
    }
}

#[test]
fn all_shards_know_the_pages_that_a_recovery_made_dirty() {
    run_on(2, || async {
        let options = Options { checkpoint_after: 64 << 20, ..striped(3) };
        let disk = disk(40);
        let volume = Volume::make(&disk, &options).await;
        volume.write(0, 100, 1).await;
        volume.flush().await;
        let copy = copy_of(&raw(&disk).await).await;
        volume.close().await;
        let volume = Volume::open(&copy, &options).await;
        // Recovery gave the whole page to the home.
        assert_eq!(ask_all(&volume, Core::dirty_pages).await, [1; 3]);
        volume.close().await;
    });
}

/// A caller that doesn't wait for a change of versions: all shards count its pages nevertheless.
#[test]
fn all_shards_count_the_pages_of_a_change_whose_call_was_dropped() {
    simulate(1, || async {
        let (disk, _controls) = ControlledDisk::over(disk(48));
        let volume = Volume::make(&disk, &striped(3)).await;
        assert_eq!(ask_all(&volume, Core::most_pages).await, [2; 3]);
        let resize = format!("resize {}", 12 << 20);
        let early = runtime::timeout(Duration::from_nanos(1), volume.part.message(&resize)).await;
        assert!(early.is_err(), "the call ends first");
        runtime::sleep(Duration::from_millis(50)).await;
        assert_eq!(ask_all(&volume, Core::most_pages).await, [3; 3]);
        volume.close().await;
    });
}

/// A write that is larger than a shard admits at a time.
#[test]
fn a_large_write_is_divided() {
    const BLOCKS: u64 = log::core::MAX_REQUEST_BLOCKS * 5 / 4;
    for stripe_blocks in [8, 1 << 14] {
        run_on(2, move || async move {
            let disk = disk(128);
            let options = Options {
                size: Some(48 << 20),
                zone_size: Some(1 << 20),
                checkpoint_after: 64 << 20,
                stripe_blocks,
                ..striped(2)
            };
            let volume = Volume::make(&disk, &options).await;
            volume.write(3, BLOCKS, 1).await;
            volume.write(20, BLOCKS, 2).await;
            let found = [volume.versions(0, 24).await, volume.versions(24, BLOCKS).await].concat();
            let expected = [vec![0; 3], vec![1; 17], vec![2; BLOCKS as usize], vec![0; 4]].concat();
            assert_eq!(found, expected);
            volume.close().await;
        });
    }
}
