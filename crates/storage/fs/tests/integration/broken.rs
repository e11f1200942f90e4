//! Invariants that are violated on purpose: the tests must detect each of them.

use crate::lives::lives;
use crate::world::{BASE, INODE_GROUPS, Setup, checked, empty, zones};
use block::Data;
use fs::broken::{Broken, with_broken};
use fs::core::Core;
use fs::metadata::change::Attributes;
use fs::{FileSystem, OpenOptions};
use runtime::{Random, Simulation};
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

/// Violates an invariant, which must be detected with one of these seeds.
fn is_caught(broken: Broken, seeds: Range<u64>, draw: impl Fn(&mut Random) -> Setup) {
    for seed in seeds.clone() {
        if let Err(error) = with_broken([broken], || lives(seed, &draw, false)) {
            println!("{broken:?}: seed {seed} of {seeds:?}: {error}");
            return;
        }
    }
    panic!("{broken:?} isn't noticed with the seeds {seeds:?}");
}

#[test]
fn syncs_that_return_at_once_are_noticed() {
    is_caught(Broken::NeverFlushes, 1..50, Setup::draw);
}

/// Removes a file that fills zones, resets dead zones, and cuts the power before the removal is durable.
/// Afterwards the file is intact, or doesn't exist.
pub fn removed_and_reset(seed: u64) -> Result<(), String> {
    let mut random = Random::new(seed);
    let setup = Setup { clients: 1, disk: 8 << 20, zone: 128 << 10, ..Setup::draw(&mut random) };
    let contents = vec![seed as u8; 1 << 20];
    let written = Data::copy_of(&contents);
    let cut = move || async move {
        let files = setup.format().await?;
        files.create("/a").await?.write_at(0, written).await?;
        files.sync().await?;
        // This checkpoint includes the records of the file.
        files.take_checkpoint().await?;
        files.unlink("/a").await?;
        files.home().with(|core: Rc<Core>| async move { logkit::reset::reset_dead(&core).await }).await?;
        Ok::<_, block::Error>(runtime::power_cut())
    };
    let read = async move |found: &FileSystem| match found.open_file("/a", OpenOptions::default()).await {
        Ok(file) => file.read_at(0, contents.len()).await.map(|found| found.to_data()[..] == contents[..]),
        Err(error) => Err(error),
    };
    let world = || Simulation { trace_lines: 0, ..Simulation::new(seed) };
    let cut =
        runtime::simulate(world().with_files(empty(setup.disk)), cut).map_err(|error| error.to_string())?;
    let files = cut.value.map_err(|error| error.to_string())?;
    let main = move || async move {
        let files = setup.open().await.map_err(|error| format!("opening: {error}"))?;
        match read(&files).await {
            Ok(true) | Err(block::Error::NotFound(_)) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    };
    runtime::simulate(world().with_files(files), main).map_err(|error| error.to_string())?.value
}

#[test]
fn pages_that_die_before_the_next_checkpoint_is_durable_are_noticed() {
    let seeds = 1..60;
    for seed in seeds.clone().take(8) {
        checkpoints_and_resets(seed).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
    let notice = |seed| checkpoints_and_resets(seed).err().map(|error| (seed, error));
    let noticed = with_broken([Broken::FreesPagesEarly], || seeds.clone().find_map(notice));
    let (seed, error) = noticed.unwrap_or_else(|| panic!("it isn't noticed with the seeds {seeds:?}"));
    println!("FreesPagesEarly: seed {seed}: {error}");
}

/// Changes every page between checkpoints, with zones reset all the time, and cuts the power at any time.
/// Afterwards the file system must open.
fn checkpoints_and_resets(seed: u64) -> Result<(), String> {
    let mut random = Random::new(seed);
    let setup = Setup { disk: 8 << 20, zone: 128 << 10, ..Setup::draw(&mut random) };
    let cut_after = Duration::from_micros(3000 + random.below(30_000));
    let cut = move || async move {
        let files = setup.format().await?;
        for number in 0..300 {
            files.symbolic_link(&"x".repeat(200), &format!("/{number}")).await?;
        }
        files.sync().await?;
        let resets = files.clone();
        runtime::spawn(async move {
            let reset = |core: Rc<Core>| async move { logkit::reset::reset_dead(&core).await };
            while resets.home().with(reset).await.is_ok() {
                runtime::sleep(Duration::from_micros(20)).await;
            }
        })
        .detach();
        let checkpoints = async {
            for round in 0.. {
                let now = Attributes { modified: Some(round), ..Attributes::default() };
                files
                    .home()
                    .with(move |core: Rc<Core>| async move {
                        // Files are in the inode group of their directory.
                        for inode in (1..).step_by(INODE_GROUPS as usize).take(300) {
                            core.set_attributes(inode, now).await?;
                        }
                        Ok(())
                    })
                    .await?;
                files.take_checkpoint().await?;
            }
            Ok::<_, block::Error>(())
        };
        if let Ok(failed) = runtime::timeout(cut_after, checkpoints).await {
            failed?;
        }
        Ok::<_, block::Error>(runtime::power_cut())
    };
    let world = || Simulation { trace_lines: 0, ..Simulation::new(seed) };
    let cut =
        runtime::simulate(world().with_files(empty(setup.disk)), cut).map_err(|error| error.to_string())?;
    let files = cut.value.map_err(|error| error.to_string())?;
    let main = move || async move {
        let report = checked(&zones(None).await?).await?;
        match report.is_sound() && report.inodes == 301 {
            true => Ok(()),
            false => Err(block::Error::corrupt(format!("{report:?}"))),
        }
    };
    let found = runtime::simulate(world().with_files(files), main).map_err(|error| error.to_string())?.value;
    found.map_err(|error| error.to_string())
}

/// Reads the clone of a file after a power cut. The file is emptied after it was cloned, a checkpoint shows
/// both operations, and their records are written after it. A replay of the first one would share what the
/// file has in the checkpoint: nothing.
fn cloned_before_a_checkpoint() -> Result<Vec<u8>, block::Error> {
    const BYTES: u64 = 4096;
    // Of each operation of the disk.
    const LATENCY: Duration = Duration::from_millis(300);
    let cut = move || async move {
        let files = BASE.format().await?;
        let (file, clone) = (files.create("/a").await?, files.create("/b").await?);
        file.write_at(0, Data::copy_of(&[7; BYTES as usize])).await?;
        files.sync().await?;
        let began = runtime::now();
        assert_eq!(clone.clone_range(&file, 0, BYTES, 0).await?.shared, BYTES);
        file.truncate(0).await?;
        assert!(began.elapsed() < LATENCY, "their records are in flight");
        files.take_checkpoint().await?;
        files.sync().await?;
        Ok::<_, block::Error>(runtime::power_cut())
    };
    let read = move || async move {
        let files = BASE.open().await?;
        assert_eq!(files.attributes("/a").await?.size, 0);
        let clone = files.open_file("/b", OpenOptions::default()).await?;
        Ok(clone.read_at(0, BYTES as usize).await?.to_data().to_vec())
    };
    let latency = LATENCY.as_nanos() as u64;
    let world = Simulation { trace_lines: 0, latency: latency..latency + 1, ..Simulation::new(1) };
    let left = runtime::simulate(world.with_files(empty(BASE.disk)), cut).unwrap().value?;
    let world = Simulation { trace_lines: 0, ..Simulation::new(1) };
    runtime::simulate(world.with_files(left), read).unwrap().value
}

#[test]
fn replaying_what_the_checkpoint_shows_is_noticed() {
    assert_eq!(cloned_before_a_checkpoint(), Ok(vec![7; 4096]));
    let replayed = with_broken([Broken::ReplaysShown], cloned_before_a_checkpoint);
    assert_eq!(replayed, Ok(vec![0; 4096]));
}

#[test]
fn lost_blocks_that_are_not_counted_are_noticed() {
    is_caught(Broken::ForgetsLost, 1..50, Setup::draw);
}

#[test]
fn files_without_names_that_stay_are_noticed() {
    is_caught(Broken::KeepsOrphans, 1..100, Setup::draw_full);
}

#[test]
fn blocks_of_snapshots_that_die_are_noticed() {
    is_caught(Broken::ForgetsSnapshots, 1..50, Setup::draw_snapshots);
}

#[test]
fn sources_of_clones_that_take_their_blocks_with_them_are_noticed() {
    is_caught(Broken::ForgetsSource, 1..50, Setup::draw);
}
