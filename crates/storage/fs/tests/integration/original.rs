//! Bugs of the prototype of this file system (SeastarFS); each test is named after one.

use crate::broken::removed_and_reset;
use crate::sequences::{owned, synced_append};
use crate::world::{Setup, empty};
use block::{Data, Error};
use fs::OpenOptions;
use fs::broken::{Broken, with_broken};
use runtime::{Random, Simulation};
use std::time::Duration;

/// The prototype's fsync returned without a flush of the device.
#[test]
fn fsync_that_never_flushes() {
    synced_append().unwrap_or_else(|error| panic!("{error}"));
    let noticed = with_broken([Broken::NeverFlushes], synced_append).unwrap_err();
    assert!(noticed.contains("it shows neither"), "{noticed}");
}

/// The prototype wrote to the clusters of a removed file while the removal was only in memory.
#[test]
fn clusters_reused_before_the_log_that_freed_them_is_durable() {
    let seeds = 1..40;
    for seed in seeds.clone() {
        removed_and_reset(seed).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
    let mut seeds = seeds;
    let is_noticed =
        with_broken([Broken::DiesWhenSubmitted], || seeds.any(|seed| removed_and_reset(seed).is_err()));
    assert!(is_noticed, "it isn't noticed");
}

/// After a mount, the prototype didn't know which clusters were partly dead, so it never cleaned them.
#[test]
fn old_clusters_never_cleaned_after_a_remount() {
    const FILES: usize = 24;
    for (seed, is_killed) in [(1, false), (2, true), (3, false), (4, true)] {
        let setup =
            Setup { disk: 8 << 20, zone: 128 << 10, block_size: 4096, ..Setup::draw(&mut Random::new(seed)) };
        let world = || Simulation { trace_lines: 0, ..Simulation::new(seed) };
        let first = move || async move {
            let files = setup.format().await.unwrap();
            let mut blocks = Vec::new();
            'full: for number in 0..FILES {
                let file = files.create(&format!("/{number}")).await.unwrap();
                for block in 0..120 {
                    let written = file.write_at(block * 4096, Data::copy_of(&[block as u8 + 1; 4096])).await;
                    if matches!(written, Err(Error::NoSpace(_))) {
                        break 'full;
                    }
                    written.unwrap();
                    blocks.push((file.clone(), block));
                }
            }
            // A third of each zone stays live.
            for (file, block) in blocks.into_iter().filter(|(_, block)| block % 3 != 0) {
                file.punch(block * 4096..(block + 1) * 4096).await.unwrap();
            }
            match is_killed {
                true => files.sync().await.unwrap(),
                false => files.close().await.unwrap(),
            }
            runtime::power_cut()
        };
        let left = runtime::simulate(world().with_files(empty(setup.disk)), first).unwrap().value;
        let second = move || async move {
            let files = setup.open().await.unwrap();
            let kept: Vec<Vec<u8>> = contents(&files, FILES).await;
            let free = files.statistics().await.unwrap().free;
            assert!(free > 500, "seed {seed}: {free} blocks are free");
            // All free space is written several times.
            for round in 0..4_u8 {
                for block in 0..free * 9 / 10 {
                    let data = Data::copy_of(&[round + 1; 4096]);
                    let file =
                        files.open_file("/new", OpenOptions { create: true, ..OpenOptions::default() });
                    let written = file.await.unwrap().write_at(block * 4096, data).await;
                    written
                        .unwrap_or_else(|error| panic!("seed {seed}, round {round}, block {block}: {error}"));
                }
            }
            let cleaned = files.counters().cleaned_zones.load(std::sync::atomic::Ordering::Relaxed);
            assert!(cleaned > 0, "seed {seed}: no zone was cleaned");
            let after = contents(&files, FILES).await;
            assert!(after == kept, "seed {seed}: moved blocks have changed");
            let report = files.check().await.unwrap();
            assert!(report.is_sound(), "{report:?}");
            files.close().await.unwrap();
        };
        runtime::simulate(world().with_files(left), second).unwrap();
    }
}

/// Returns the contents of the first `count` files that exist.
async fn contents(files: &fs::FileSystem, count: usize) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for number in 0..count {
        let Ok(file) = files.open_file(&format!("/{number}"), OpenOptions::default()).await else { break };
        let size = file.attributes().await.unwrap().size;
        all.push(file.read_at(0, size as usize).await.unwrap().to_data().to_vec());
    }
    all
}

/// A block that is freed and reallocated never shows data of the previous file: the prototype allocated
/// without writing.
#[test]
fn data_of_a_removed_file_is_never_in_another_one() {
    const SECRET: u8 = 0xAA;
    for seed in 1..25 {
        let mut random = Random::new(seed);
        let setup = Setup { disk: 4 << 20, zone: 128 << 10, ..Setup::draw(&mut random) };
        let cut_after = Duration::from_micros(random.below(40_000));
        let world = || Simulation { trace_lines: 0, ..Simulation::new(seed) };
        let main = move || async move {
            let files = setup.format().await.unwrap();
            let work = async {
                for round in 0_u64.. {
                    let secret = files.create("/secret").await?;
                    secret.write_at(0, Data::copy_of(&vec![SECRET; 500_000])).await?;
                    if round % 2 == 0 {
                        secret.sync().await?;
                    }
                    drop(secret);
                    files.unlink("/secret").await?;
                    let other = files.create(&owned("/other")).await?;
                    other.preallocate(0..200_000).await?;
                    other.truncate(300_000).await?;
                    for _ in 0..10 {
                        let length = 1 + random.below(9000) as usize;
                        other.write_at(random.below(290_000), Data::copy_of(&vec![0xBB; length])).await?;
                    }
                    other.punch(random.below(200_000)..250_000).await?;
                    if round % 3 == 0 {
                        other.sync().await?;
                    }
                    is_clean(&files).await?;
                }
                Ok::<_, Error>(())
            };
            if let Ok(failed) = runtime::timeout(cut_after, work).await {
                failed.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            }
            runtime::power_cut()
        };
        let left = runtime::simulate(world().with_files(empty(setup.disk)), main).unwrap().value;
        let after = move || async move {
            let files = setup.open().await.unwrap();
            is_clean(&files).await.unwrap();
        };
        runtime::simulate(world().with_files(left), after).unwrap();
    }

    async fn is_clean(files: &fs::FileSystem) -> block::Result<()> {
        match files.open_file("/other", OpenOptions::default()).await {
            Ok(file) => {
                // No data is returned beyond the end, whatever the last block holds there.
                let found = file.read_at(0, 1 << 20).await?.to_data();
                assert!(!found[..].contains(&SECRET), "data of a removed file is visible");
                Ok(())
            }
            Err(Error::NotFound(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }
}
