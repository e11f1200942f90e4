//! Storage that stops answering, stepped wall clocks, and idle file systems.
//!
//! The file system has no time limit of its own for storage: operations that need the storage wait for it.
//! Names, attributes and operations without data are in memory and continue.

use crate::world::checked;
use block::{BlockSize, Data, DevicePart, Part, ZoneIndex, ZonesPart};
use conformance::device::VolatileDisk;
use fs::{FileSystem, OpenOptions, Properties, Settings};
use layers::fault::{FaultZonesPart, parse_rules};
use runtime::Simulation;
use std::sync::Arc;
use std::time::Duration;

/// Longest permitted time of an operation that doesn't need the storage.
const PATIENCE: Duration = Duration::from_secs(1);
/// Time for which the storage doesn't answer.
const STUCK: Duration = Duration::from_secs(600);
const HOUR: i64 = 3600;
const DAY: Duration = Duration::from_secs(86_400);

/// Operation in progress when the storage stops answering.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum During {
    Open,
    Write,
    Read,
    Sync,
    /// A sync of one file.
    SyncFile,
    Checkpoint,
    /// Overwrites for which the cleaner has to free zones.
    Cleaning,
    Close,
}

async fn new_zones() -> Arc<zones::OnDevice> {
    // A volatile cache, so that a flush has an effect.
    let disk: Arc<dyn DevicePart> =
        Arc::new(VolatileDisk::new((16 << 20) / 4096, BlockSize::new(4096).unwrap()));
    let options =
        zones::on_device::Options { format: true, zone_size: Some(256 << 10), ..Default::default() };
    Arc::new(zones::OnDevice::open(disk, options).await.unwrap())
}

fn data(byte: u8) -> Data {
    Data::copy_of(&[byte; 32_768])
}

async fn fill(files: &FileSystem, round: u8) {
    for number in 0..100 {
        let file = files.create(&format!("/d/{number}")).await.unwrap();
        file.write_at(0, data(round)).await.unwrap();
    }
}

/// Checks that operations that need no storage complete.
async fn answers(what: &str, files: &FileSystem, number: u64) {
    let all = async {
        assert!(files.attributes("/d/7").await.unwrap().size > 0);
        assert!(files.read_directory("/d").await.unwrap().len() >= 100);
        files.statistics().await.unwrap();
        files.create(&format!("/d/new{number}")).await.unwrap();
        files
            .rename(
                &format!("/d/new{number}"),
                &format!("/d/renamed{number}"),
                fs::names::namespace::Renaming::Replace,
            )
            .await
            .unwrap();
    };
    runtime::timeout(PATIENCE, all).await.unwrap_or_else(|_| panic!("{what}: no answer"));
}

fn stuck(operation: &'static str, during: During, shards: u32) {
    let main = move || async move {
        let what = format!("{operation} during {during:?}, {shards} shards");
        let rules = vec![format!("{operation} delay={}s", STUCK.as_secs())];
        let lower = new_zones().await;
        let rules = parse_rules(&rules, stack::Contract::Zones).unwrap();
        let faulty = Arc::new(FaultZonesPart::new(lower.clone(), rules, 1));
        faulty.message("rules off").await.unwrap();
        let settings = Settings { checkpoint_after: 1 << 20, ..Settings::default() };
        let mut files = FileSystem::format(faulty.clone(), Properties::default(), &settings).await.unwrap();
        files.make_directory("/d").await.unwrap();
        fill(&files, 1).await;
        files.sync().await.unwrap();
        if during == During::Open {
            files.close().await.unwrap();
            faulty.message("rules on").await.unwrap();
            let opening = runtime::spawn({
                let (faulty, settings) = (faulty.clone(), settings.clone());
                async move { FileSystem::open(faulty, &settings).await }
            });
            runtime::sleep(PATIENCE).await;
            faulty.message("rules off").await.unwrap();
            files = opening.await.unwrap_or_else(|error| panic!("{what}: {error}"));
        } else {
            faulty.message("rules on").await.unwrap();
            let begun = runtime::now();
            let waiting = runtime::spawn({
                let files = files.clone();
                async move {
                    let file = files.open_file("/d/7", OpenOptions::default()).await.unwrap();
                    match during {
                        During::Write => file.write_at(0, data(2)).await.unwrap(),
                        During::Read => {
                            assert!(file.read_at(0, 4096).await.unwrap().to_data()[..] == [1; 4096])
                        }
                        During::Sync => {
                            files.create("/d/synced").await.unwrap();
                            files.sync().await.unwrap();
                        }
                        During::SyncFile => {
                            files.link("/d/7", "/d/linked").await.unwrap();
                            file.sync().await.unwrap();
                        }
                        During::Checkpoint => files.take_checkpoint().await.unwrap(),
                        During::Cleaning => {
                            for round in 0..8 {
                                fill(&files, round).await;
                            }
                        }
                        During::Close | During::Open => {}
                    }
                }
            });
            for number in 0..3 {
                runtime::sleep(PATIENCE).await;
                answers(&what, &files, number).await;
            }
            if during == During::Close {
                let closing = runtime::spawn(async move { files.close().await });
                runtime::sleep(PATIENCE).await;
                faulty.message("rules off").await.unwrap();
                closing.await.unwrap_or_else(|error| panic!("{what}: {error}"));
                files = FileSystem::open(faulty, &settings).await.unwrap();
            } else {
                faulty.message("rules off").await.unwrap();
            }
            runtime::timeout(3 * STUCK, waiting).await.unwrap_or_else(|_| panic!("{what}: it doesn't end"));
            // This ensures that the storage stopped answering.
            if matches!(
                (during, operation),
                (During::Read, "read")
                    | (During::Write | During::Sync | During::SyncFile, "append")
                    | (During::Sync | During::SyncFile, "flush")
            ) {
                assert!(begun.elapsed() >= STUCK, "{what}: it waited {:?}", begun.elapsed());
            }
        }
        answers(&what, &files, 9).await;
        files.close().await.unwrap();
        let report = checked(&lower).await.unwrap();
        assert!(report.is_sound(), "{what}: {report:?}");
    };
    let world = Simulation { trace_lines: 0, ..Simulation::new(1) }.with_shards(shards as usize);
    runtime::simulate(world, main).unwrap();
}

#[test]
fn storage_that_stops_answering_holds_back_only_what_needs_it() {
    use During::{Checkpoint, Cleaning, Close, Open, Read, Sync, SyncFile, Write};
    for shards in [1, 2] {
        for during in [Open, Write, Read, Sync, SyncFile, Checkpoint, Cleaning, Close] {
            for operation in ["read", "append", "flush", "finish", "reset"] {
                stuck(operation, during, shards);
            }
        }
    }
}

/// Write pointers of all zones: every write changes them.
async fn activity(zones: &Arc<zones::OnDevice>) -> Vec<u64> {
    let handle = zones.open().await.unwrap();
    let count = handle.geometry().zones;
    handle.report(ZoneIndex(0), count).await.unwrap().iter().map(|zone| zone.write_pointer).collect()
}

/// The wall clock affects only the times of files; an idle file system writes nothing for a day.
#[test]
fn steps_of_the_wall_clock_change_the_times_of_files_only() {
    for shards in [1, 2] {
        for steps in [&[][..], &[HOUR], &[-HOUR], &[HOUR, -HOUR], &[-HOUR, HOUR]] {
            let main = move || async move {
                let case = format!("{shards} shards, steps {steps:?}");
                let zones = new_zones().await;
                let settings = Settings { checkpoint_after: 1 << 20, ..Settings::default() };
                let mut files = FileSystem::format(zones.clone(), Properties::default(), &settings)
                    .await
                    .unwrap()
                    .on_lent_zones();
                files.make_directory("/d").await.unwrap();
                fill(&files, 1).await;
                let mut offset = 0;
                for (round, step) in (2_u8..).zip(steps) {
                    files.create_snapshot(&format!("before{round}")).await.unwrap();
                    let before = files.attributes("/d/7").await.unwrap().modified;
                    runtime::step_simulated_wall_clock(*step);
                    offset += step;
                    let work = async {
                        fill(&files, round).await;
                        files.sync().await.unwrap();
                        files.delete_snapshot(&format!("before{round}")).await.unwrap();
                    };
                    runtime::timeout(Duration::from_secs(60), work)
                        .await
                        .unwrap_or_else(|_| panic!("{case}: no end"));
                    let after = files.attributes("/d/7").await.unwrap().modified;
                    let moved = (i128::from(after) - i128::from(before)) / 1_000_000_000;
                    assert!((moved - i128::from(*step)).abs() < 120, "{case}: moved by {moved} s");
                    files.close().await.unwrap();
                    files = FileSystem::open(zones.clone(), &settings).await.unwrap().on_lent_zones();
                }
                runtime::sleep(Duration::from_secs(120)).await;
                let before = activity(&zones).await;
                runtime::sleep(DAY / 2).await;
                runtime::step_simulated_wall_clock(-offset);
                runtime::sleep(DAY / 2).await;
                assert_eq!(activity(&zones).await, before, "{case}: an idle file system writes nothing");
                let last = 1 + steps.len() as u8;
                let file = files.open_file("/d/7", OpenOptions::default()).await.unwrap();
                assert!(file.read_at(0, 32_768).await.unwrap().to_data()[..] == data(last)[..], "{case}");
                files.close().await.unwrap();
                assert!(checked(&zones).await.unwrap().is_sound(), "{case}");
                zones.close().await.unwrap();
            };
            let world = Simulation { trace_lines: 0, ..Simulation::new(1) }.with_shards(shards as usize);
            runtime::simulate(world, main).unwrap();
        }
    }
}
