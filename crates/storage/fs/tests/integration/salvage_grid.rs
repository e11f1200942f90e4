//! Salvage of damaged file systems: data that doesn't depend on the damage is read as it was written, other
//! data is listed as lost, and the medium isn't written.

use crate::world::{BASE, DISK, Files, Setup, empty};
use block::{Data, Error};
use fs::{FileSystem, Goal, OpenOptions};
use runtime::Simulation;
use stack::{Registry, Stack};
use std::sync::Arc;
use std::time::Duration;

const FILES: u64 = 150;
const ZONE: usize = 128 << 10;
const SETUP: Setup = Setup { zone: ZONE as u64, checkpoint_after: 256 << 10, ..BASE };

fn world() -> Simulation {
    Simulation { trace_lines: 0, ..Simulation::new(1) }
}

fn contents(number: u64) -> Data {
    Data::copy_of(&vec![number as u8; 3000 + 67 * number as usize])
}

fn path(number: u64) -> String {
    format!("/{}/file-with-a-name-{number}", number % 5)
}

/// Creates a file system with files in a checkpoint and later ones, closed or killed 5 s after a sync.
fn image(is_closed: bool) -> Files {
    let main = move || async move {
        let files = SETUP.format().await.unwrap();
        for number in 0..5 {
            files.make_directory(&format!("/{number}")).await.unwrap();
        }
        for number in 0..FILES {
            if number == FILES * 2 / 3 {
                files.take_checkpoint().await.unwrap();
            }
            files.create(&path(number)).await.unwrap().write_at(0, contents(number)).await.unwrap();
        }
        files.sync().await.unwrap();
        runtime::sleep(Duration::from_secs(5)).await;
        if is_closed {
            files.close().await.unwrap();
        }
        runtime::power_cut()
    };
    runtime::simulate(world().with_files(empty(SETUP.disk)), main).unwrap().value
}

/// Returns the image with one byte changed.
fn flipped(image: &Files, at: usize) -> Files {
    let mut image = image.clone();
    image.iter_mut().for_each(|(_, bytes)| bytes[at] ^= 0xFF);
    image
}

/// Salvages an image. Returns the number of files with their contents and of listed losses; `None` if no
/// checkpoint can be read.
fn salvaged(image: Files) -> Option<(u64, u64)> {
    let before = image.clone();
    let main = move || async move {
        let registry = Registry::new(vec![&disks::file::KIND]);
        let stack = Stack::from_line("test", &format!("file({DISK}, block_size=4096)"), &registry).unwrap();
        let device = stack.check(false).unwrap().build().await.unwrap().top().unwrap();
        let zones = fs::sizes::zones_to_read(device).await.unwrap();
        let settings = fs::Settings { goal: Goal::Salvage, ..SETUP.settings() };
        let files = match FileSystem::open(zones, &settings).await {
            Ok(files) => files,
            Err(error) => {
                assert!(error.detail().contains("no checkpoint of the log can be read"), "{error}");
                return (None, runtime::power_cut());
            }
        };
        let lost = files.lost().await.unwrap();
        let (mut found, mut failed) = (0, 0);
        for number in 0..FILES {
            let read = async {
                let file = files.open_file(&path(number), OpenOptions::default()).await?;
                file.read_at(0, 1 << 20).await
            };
            match read.await {
                Ok(bytes) if bytes.to_data()[..] == contents(number)[..] => found += 1,
                // Only records after a gap may be missing: the contents are those after the last readable
                // record.
                Ok(bytes) => {
                    let is_older = bytes.is_empty() && lost.count > 0;
                    assert!(is_older, "file {number} has {} bytes of other contents", bytes.len());
                }
                Err(Error::NotFound(_)) => {
                    assert!(lost.count > 0, "file {number} is missing, and nothing is lost")
                }
                Err(error) => {
                    let is_of_medium = matches!(error, Error::Corrupt(_) | Error::Io(_) | Error::Invalid(_));
                    // The inode of a name may be lost.
                    assert!(is_of_medium || lost.count > 0, "file {number}: {error}");
                    failed += 1;
                }
            }
        }
        assert!(lost.count > 0 || found + failed == FILES);
        let refused = [
            files.create("/new").await.map(drop),
            files.unlink(&path(1)).await,
            files.make_directory("/new").await,
            files.take_checkpoint().await,
        ];
        for refused in refused {
            let is_right = matches!(refused, Err(Error::ReadOnly(_) | Error::NotFound(_)));
            assert!(is_right, "{refused:?}");
        }
        files.sync().await.unwrap();
        files.close().await.unwrap();
        (Some((found, lost.count)), runtime::power_cut())
    };
    let (outcome, after) = runtime::simulate(world().with_files(image), main).unwrap().value;
    assert!(after == before, "the medium was written to");
    outcome
}

#[test]
fn what_can_be_read_of_a_damaged_file_system_is_salvaged() {
    for is_closed in [true, false] {
        let image = image(is_closed);
        assert_eq!(salvaged(image.clone()), Some((FILES, 0)), "an undamaged one");
        // Each zone in turn is offline, with an invalid header.
        let zones = SETUP.disk as usize / ZONE - 1;
        let mut kept: Vec<u64> = (0..zones)
            .map(|zone| salvaged(flipped(&image, (2 + zone) * 4096 + 40)).map_or(0, |(found, _)| found))
            .collect();
        kept.sort_unstable();
        println!("closed: {is_closed}: files without one zone: {kept:?}");
        // Only the zones of the only root and of the only checkpoint may lose everything.
        assert!(kept[2] > FILES / 2, "{kept:?}");
        // One damaged block: a root, a directory, a page, a header, data.
        let bytes = &image[0].1;
        let step = if conformance::budget::is_long() { 1 } else { 17 };
        let used =
            (1 << 17..bytes.len()).step_by(4096 * step).filter(|at| bytes[*at..*at + 4096] != [0; 4096]);
        let mut kept: Vec<u64> =
            used.map(|at| salvaged(flipped(&image, at + 45)).map_or(0, |(found, _)| found)).collect();
        kept.sort_unstable();
        println!("closed: {is_closed}: files without one block: {:?}", &kept[..10]);
        assert!(kept[1] > FILES / 3 && kept[kept.len() / 2] >= FILES - 1, "{kept:?}");
    }
}

/// An inode group whose metadata is completely unreadable doesn't affect the root directory and the other
/// inode groups. The number of shards for the salvage is that of the machine, and may differ from the
/// number that wrote the file system.
#[test]
fn a_file_system_is_salvaged_by_several_shards() {
    for (shards, salvaging) in [(3, 3), (2, 7), (7, 16), (16, 2)] {
        salvage_by(shards, salvaging);
    }
}

fn salvage_by(shards: u32, salvaging: u32) {
    // More shards need more zones.
    let disk = match shards.max(salvaging) {
        ..4 => 16 << 20,
        4..8 => 32 << 20,
        _ => 64 << 20,
    };
    let setup = Setup { shards, disk, ..SETUP };
    let world = |shards: u32| Simulation { shards: shards as usize, ..world() };
    let main = move || async move {
        let properties = fs::Properties { inode_groups: 16, ..fs::Properties::default() };
        let zones = crate::world::zones(Some(setup.zone)).await.unwrap();
        let files = FileSystem::format(zones, properties, &setup.settings()).await.unwrap();
        assert_eq!(files.shards().count(), shards);
        for number in 0..60 {
            files.create(&format!("/{number}")).await.unwrap().write_at(0, contents(number)).await.unwrap();
        }
        files.close().await.unwrap();
        runtime::power_cut()
    };
    let image = runtime::simulate(world(shards).with_files(empty(disk)), main).unwrap().value;
    let zones = disk as usize / ZONE - 1;
    // Damage of unwritten zones loses nothing.
    let is_written =
        |zone: &usize| image[0].1[(zone + 1) * ZONE..(zone + 2) * ZONE].iter().any(|it| *it != 0);
    let (mut opened, mut tried) = (0, 0);
    for zone in (0..zones).filter(is_written).step_by(if disk > 32 << 20 { 3 } else { 1 }) {
        let damaged = flipped(&image, (2 + zone) * 4096 + 40);
        let main = move || async move {
            let settings = fs::Settings { goal: Goal::Salvage, shards: Some(salvaging), ..setup.settings() };
            let zones = crate::world::zones(None).await.unwrap();
            let Ok(files) = FileSystem::open(zones as Arc<dyn block::ZonesPart>, &settings).await else {
                return 0;
            };
            assert_eq!(files.shards().count(), salvaging);
            let lost = files.lost().await.unwrap();
            let (mut listed, mut right) = (0, 0);
            for entry in files.read_directory("/").await.unwrap() {
                let name = String::from_utf8(entry.name).unwrap();
                let Ok(number) = name.parse::<u64>() else { continue };
                listed += 1;
                let Ok(file) = files.open_file(&format!("/{number}"), OpenOptions::default()).await else {
                    continue;
                };
                if let Ok(data) = file.read_at(0, 1 << 20).await {
                    assert!(data.is_empty() || data.to_data()[..] == contents(number)[..], "file {number}");
                    right += usize::from(!data.is_empty());
                }
            }
            let is_whole = (listed, right) == (60, 60);
            assert!(lost.count > 0 || is_whole, "{listed} names and {right} files, and nothing is lost");
            files.close().await.unwrap();
            1
        };
        tried += 1;
        opened += runtime::simulate(world(salvaging).with_files(damaged), main).unwrap().value;
    }
    println!("{shards} shards, salvaged by {salvaging}: {opened} of {tried}");
    assert!(
        tried > 2 && opened >= tried - 2,
        "{shards} shards, salvaged by {salvaging}: {opened} of {tried}"
    );
}
