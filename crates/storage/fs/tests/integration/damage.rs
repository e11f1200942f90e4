//! Damaged media: flipped bits anywhere, and truncated images. An image that can be opened shows the written
//! data or errors; the checker describes the damage and doesn't panic.

use crate::model::{Model, View, apply, draw, view_of};
use crate::world::{BASE, DISK, Files, Setup, checked, zones};
use block::{Data, Error, Result};
use conformance::budget::Budget;
use fs::OpenOptions;
use runtime::{Random, Simulation};
use std::sync::Arc;
use std::time::Duration;

const SETUP: Setup = Setup { disk: 6 << 20, checkpoint_after: 256 << 10, ..BASE };

/// An image, and the views that it may show. A closed file system has one view. One that wasn't closed may
/// also show views before its last operations, because a damaged record at the end of a log looks like one
/// that wasn't written.
struct Image {
    files: Files,
    views: Vec<View>,
}

fn image(seed: u64, closed: bool) -> Image {
    let main = move || async move {
        let files = SETUP.format().await.unwrap();
        let (mut model, mut views, mut random) = (Model::default(), vec![], Random::new(seed));
        for number in 0..220 {
            let operation = draw(&mut random, number, SETUP.blocks);
            if number == 150 {
                files.take_checkpoint().await.unwrap();
                views = vec![model.view()];
            }
            if model.is_atomic(&operation) && apply(&files, "", &operation).await.is_ok() {
                model.apply(&operation).unwrap();
                views.push(model.view());
            }
        }
        files.sync().await.unwrap();
        if closed {
            files.close().await.unwrap();
            views = vec![model.view()];
        }
        views.reverse();
        (runtime::power_cut(), views)
    };
    let world = Simulation { trace_lines: 0, ..Simulation::new(seed) };
    let (files, views) =
        runtime::simulate(world.with_files(crate::world::empty(SETUP.disk)), main).unwrap().value;
    Image { files, views }
}

/// Result of opening a damaged image.
#[derive(Debug, PartialEq, Eq, Clone, Copy, PartialOrd, Ord)]
enum Shows {
    /// Opening fails with a clear error.
    Refused,
    /// Opening succeeds, and some data can't be read.
    Errors,
    /// Opening succeeds, and all data is right; an older state is also right if the end of the log may be
    /// lost.
    Right,
}

/// Reads all readable data, and compares it with the written data.
async fn read(views: &[View]) -> std::result::Result<Shows, String> {
    let report = match zones(None).await {
        Ok(zones) => checked(&zones).await,
        Err(error) => Err(error),
    };
    let files = match SETUP.open().await {
        Ok(files) => files,
        Err(error @ (Error::Corrupt(_) | Error::Protocol(_) | Error::Io(_) | Error::Invalid(_))) => {
            return match report {
                Ok(report) if report.is_sound() => Err(format!("the checker finds nothing: {error}")),
                _ => Ok(Shows::Refused),
            };
        }
        Err(error) => return Err(format!("opening: {error}")),
    };
    let view = view_of(&files, "").await;
    let scrubbed = files.scrub(&Arc::default()).await.map_err(|error| format!("scrubbing: {error}"))?;
    if (scrubbed.damaged > 0) != matches!(view, Err(Error::Corrupt(_))) {
        return Err(format!("reading everything: {:?}; scrubbing: {scrubbed:?}", view.map(|_| "right")));
    }
    match view {
        Ok(view) if views.contains(&view) => Ok(Shows::Right),
        Ok(_) => Err("shows what was never written".to_owned()),
        Err(Error::Corrupt(_)) => {
            if report.is_ok_and(|report| report.is_sound()) {
                return Err("the checker finds nothing".to_owned());
            }
            intact_files(&files, views).await.map(|()| Shows::Errors).map_err(|error| error.to_string())
        }
        Err(error) => Err(format!("reading: {error}")),
    }
}

/// Reads each file of the newest view. It must have its contents in some view, or return an error.
async fn intact_files(files: &fs::FileSystem, views: &[View]) -> Result<()> {
    let paths: Vec<&String> = views[0].keys().collect();
    for path in paths {
        let Ok(file) = files.open_file(path, OpenOptions::default()).await else { continue };
        let Ok(found) = file.read_at(0, 1 << 20).await else { continue };
        let is_known = views.iter().any(|view| match view.get(path) {
            Some(crate::model::Shown::File { contents, .. }) => contents[..] == found.to_data()[..],
            Some(_) => true,
            None => false,
        });
        if !is_known {
            return Err(Error::corrupt(format!("{path} has contents that were never written")));
        }
    }
    Ok(())
}

fn shows(files: Files, views: &[View]) -> std::result::Result<Shows, String> {
    let views = views.to_vec();
    let world = Simulation { trace_lines: 0, most_events: 10_000_000, ..Simulation::new(1) };
    let main = move || async move { read(&views).await };
    runtime::simulate(world.with_files(files), main).map_err(|error| error.to_string())?.value
}

fn flips(closed: bool) {
    let Image { files, views } = image(3, closed);
    assert_eq!(shows(files.clone(), &views), Ok(Shows::Right));
    let used: Vec<usize> = {
        let bytes = &files.iter().find(|(path, _)| path.as_os_str() == DISK).unwrap().1;
        // Sectors with data.
        let sectors = bytes.chunks(512).enumerate();
        sectors.filter(|(_, sector)| sector.iter().any(|byte| *byte != 0)).map(|(number, _)| number).collect()
    };
    let budget = Budget::of(1);
    let mut counts = std::collections::BTreeMap::new();
    for seed in 1..=2000 {
        if !budget.allows_more(2000) {
            break;
        }
        let mut random = Random::new(seed);
        let mut damaged = files.clone();
        let bytes = &mut damaged.iter_mut().find(|(path, _)| path.as_os_str() == DISK).unwrap().1;
        let mut places = Vec::new();
        for _ in 0..1 + random.below(3) {
            let sector = used[random.below(used.len() as u64) as usize];
            let (byte, bit) = (sector * 512 + random.below(512) as usize, random.below(8));
            bytes[byte] ^= 1 << bit;
            places.push((byte, bit));
        }
        let found = shows(damaged, &views);
        let found = found.unwrap_or_else(|error| panic!("closed: {closed}, flips {places:?}: {error}"));
        *counts.entry(found).or_insert(0) += 1;
    }
    println!("closed: {closed}: {counts:?}");
}

#[test]
fn flipped_bits_of_a_closed_file_system_are_noticed_or_do_no_harm() {
    flips(true);
}

#[test]
fn flipped_bits_of_a_file_system_that_was_not_closed_are_noticed_or_do_no_harm() {
    flips(false);
}

#[test]
fn an_image_that_was_cut_off_is_refused_or_intact() {
    let Image { files, views } = image(5, true);
    let length = SETUP.disk as usize;
    for left in [0, 4096, 65_536, length / 4, length / 2, length - 131_072, length - 4096] {
        let mut cut = files.clone();
        cut.iter_mut().for_each(|(_, bytes)| bytes.truncate(left));
        let found = shows(cut, &views);
        assert!(matches!(found, Ok(Shows::Refused | Shows::Right)), "{left} of {length} bytes: {found:?}");
    }
}

#[test]
fn other_bytes_are_no_file_system() {
    for seed in 1..20 {
        let mut random = Random::new(seed);
        let mut bytes = vec![0; SETUP.disk as usize];
        if seed > 1 {
            random.fill(&mut bytes);
        }
        let found = shows(vec![(DISK.into(), bytes)], &[]);
        assert_eq!(found, Ok(Shows::Refused), "seed {seed}");
    }
}

/// Creates a file system with a few files of one block each, syncs it, idles for `pause`, and cuts the power.
/// The last file is also the last record with data.
fn synced(pause: Duration) -> Files {
    let main = move || async move {
        let files = SETUP.format().await.unwrap();
        for name in ["a", "b", "c"] {
            let file = files.create(name).await.unwrap();
            file.write_at(0, Data::copy_of(&[name.as_bytes()[0]; 4096])).await.unwrap();
            file.sync().await.unwrap();
        }
        runtime::sleep(pause).await;
        runtime::power_cut()
    };
    let world = Simulation { trace_lines: 0, ..Simulation::new(1) };
    runtime::simulate(world.with_files(crate::world::empty(SETUP.disk)), main).unwrap().value
}

/// Flips a bit in the data of file "c", or in the header of its record.
fn flip_last(files: &mut Files, in_header: bool) {
    let bytes = &mut files.iter_mut().find(|(path, _)| path.as_os_str() == DISK).unwrap().1;
    let data = bytes.chunks(4096).rposition(|block| block.iter().all(|byte| *byte == b'c')).unwrap();
    bytes[if in_header { (data - 1) * 4096 + 40 } else { data * 4096 + 77 }] ^= 1;
}

/// Contents of the files "a", "b" and "c", or the error of mounting; and the report of the check.
fn mounted(files: Files) -> (Result<Vec<Result<Vec<u8>>>>, fs::check::Report) {
    let main = || async {
        let report = checked(&zones(None).await.unwrap()).await.unwrap();
        let files = match SETUP.open().await {
            Ok(files) => files,
            Err(error) => return (Err(error), report),
        };
        let mut found = Vec::new();
        for name in ["a", "b", "c"] {
            let contents = match files.open_file(name, OpenOptions::default()).await {
                Ok(file) => file.read_at(0, 8192).await.map(|data| data.to_data().to_vec()),
                Err(error) => Err(error),
            };
            found.push(contents);
        }
        (Ok(found), report)
    };
    let world = Simulation { trace_lines: 0, ..Simulation::new(1) };
    runtime::simulate(world.with_files(files), main).unwrap().value
}

#[test]
fn a_damaged_block_of_the_last_file_costs_that_block_once_the_file_system_was_idle() {
    let whole = |name: u8| Ok(vec![name; 4096]);
    let files = synced(Duration::from_secs(5));
    let (found, report) = mounted(files.clone());
    assert_eq!(found.unwrap(), [whole(b'a'), whole(b'b'), whole(b'c')]);
    assert!(report.is_sound() && report.notes.is_empty(), "{report:?}");

    let mut damaged = files.clone();
    flip_last(&mut damaged, false);
    let (found, report) = mounted(damaged);
    let found = found.expect("it mounts");
    assert_eq!(found[..2], [whole(b'a'), whole(b'b')]);
    assert!(matches!(&found[2], Err(Error::Corrupt(_))), "{:?}", found[2]);
    assert!(report.has(fs::check::Kind::Data), "{report:?}");

    // The header of a record identifies the files of its data, which are unknown if it is damaged.
    let mut damaged = files;
    flip_last(&mut damaged, true);
    let (found, report) = mounted(damaged);
    assert!(matches!(found, Err(Error::Corrupt(_))), "{found:?}");
    assert!(report.has(fs::check::Kind::Log), "{report:?}");
}

#[test]
fn damage_right_before_the_end_is_told_as_what_was_dropped() {
    let mut damaged = synced(Duration::ZERO);
    flip_last(&mut damaged, false);
    let (found, report) = mounted(damaged);
    let found = found.expect("it mounts");
    assert_eq!(found[..2], [Ok(vec![b'a'; 4096]), Ok(vec![b'b'; 4096])]);
    assert!(
        matches!(found[2], Err(Error::NotFound(_))),
        "its creation is in the same record: {:?}",
        found[2]
    );
    assert!(report.is_sound() && report.notes[0].contains("dropped"), "{report:?}");
}

/// If the header of a zone is damaged, only the files in the zone are lost.
#[test]
fn an_offline_zone_costs_what_is_in_it() {
    for is_closed in [true, false] {
        let main = move || async move {
            let files = SETUP.format().await.unwrap();
            for number in 0..60 {
                let file = files.create(&format!("f{number}")).await.unwrap();
                file.write_at(0, Data::copy_of(&[number as u8 + 1; 8192])).await.unwrap();
            }
            files.sync().await.unwrap();
            files.take_checkpoint().await.unwrap();
            match is_closed {
                true => files.close().await.unwrap(),
                false => {
                    files.create("last").await.unwrap();
                    files.sync().await.unwrap();
                }
            }
            runtime::power_cut()
        };
        let world = Simulation { trace_lines: 0, ..Simulation::new(1) };
        let mut files =
            runtime::simulate(world.with_files(crate::world::empty(SETUP.disk)), main).unwrap().value;
        let bytes = &mut files.iter_mut().find(|(path, _)| path.as_os_str() == DISK).unwrap().1;
        // The zone of the first file, which is full.
        let data = bytes.chunks(4096).position(|block| block.iter().all(|byte| *byte == 1)).unwrap() * 4096;
        let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize;
        let (zone_size, first_zone) = (number(40), number(48));
        let zone = (data - first_zone) / zone_size;
        let main = move || async move {
            let report = checked(&zones(None).await.unwrap()).await.unwrap();
            let files = SETUP.open().await.unwrap();
            let (mut lost, mut right) = (0, 0);
            for number in 0..60 {
                let file = files.open_file(&format!("f{number}"), OpenOptions::default()).await.unwrap();
                match file.read_at(0, 8192).await {
                    Ok(found) => {
                        assert!(found.to_data()[..] == [number as u8 + 1; 8192], "file {number}");
                        right += 1;
                    }
                    Err(error) => {
                        assert!(error.to_string().contains(&format!("zone {zone}")), "{error}");
                        lost += 1;
                    }
                }
            }
            assert!(lost > 0 && right > 0, "{lost} files are lost, {right} right");
            assert!(!report.is_sound(), "{report:?}");
            // The file system still accepts changes.
            let file = files.create("new").await.unwrap();
            file.write_at(0, Data::copy_of(&[7; 4096])).await.unwrap();
            file.sync().await.unwrap();
            files.close().await.unwrap();
            let files = SETUP.open().await.unwrap();
            let file = files.open_file("new", OpenOptions::default()).await.unwrap();
            assert!(file.read_at(0, 4096).await.unwrap().to_data()[..] == [7; 4096]);
        };
        // An invalid header of a zone.
        bytes[(2 + zone) * 4096 + 40] ^= 1;
        let world = Simulation { trace_lines: 0, ..Simulation::new(1) };
        runtime::simulate(world.with_files(files), main).unwrap();
    }
}

/// Flips a bit in the only block whose bytes all are `byte`.
fn flip_block(files: &mut Files, byte: u8) {
    let bytes = &mut files.iter_mut().find(|(path, _)| path.as_os_str() == DISK).unwrap().1;
    let at: Vec<_> = (0..bytes.len() / 4096)
        .filter(|at| bytes[at * 4096..][..4096].iter().all(|it| *it == byte))
        .collect();
    assert_eq!(at.len(), 1, "blocks of {byte}: {at:?}");
    bytes[at[0] * 4096 + 99] ^= 1;
}

/// Check and scrub describe damage with the path of the file, on one shard and on several, including striped
/// directories. For a file that only a snapshot has, they name the snapshot; for a file with two names, one
/// of them; for a file without a name, only the inode.
#[test]
fn damage_is_described_with_paths() {
    for (shards, stripe_above) in [(1, 1000), (2, 1000), (2, 1)] {
        let setup = Setup { disk: 24 << 20, shards, stripe_above, ..SETUP };
        let block = |byte: u8| Data::copy_of(&[byte; 4096]);
        let simulation =
            move || Simulation { trace_lines: 0, ..Simulation::new(1) }.with_shards(shards as usize);
        let main = move || async move {
            let files = setup.format().await.unwrap();
            files.make_directory("/a").await.unwrap();
            files.make_directory("/a/deep one").await.unwrap();
            for number in 0..6 {
                files.create(&format!("/a/deep one/other{number}")).await.unwrap();
                files.create(&format!("/a/other{number}")).await.unwrap();
            }
            let file = files.create("/a/deep one/b.txt").await.unwrap();
            for (at, byte) in [(0, 201), (1, 202), (3, 203)] {
                file.write_at(at * 4096, block(byte)).await.unwrap();
            }
            let file = files.create("/changed").await.unwrap();
            file.write_at(0, block(204)).await.unwrap();
            let removed = files.create("/a/removed").await.unwrap();
            removed.write_at(0, block(205)).await.unwrap();
            files.create_snapshot("before").await.unwrap();
            file.write_at(0, block(206)).await.unwrap();
            files.unlink("/a/removed").await.unwrap();
            let linked = files.create("/link").await.unwrap();
            linked.write_at(0, block(207)).await.unwrap();
            files.link("/link", "/a/another").await.unwrap();
            let orphan = files.create("/orphan").await.unwrap();
            orphan.write_at(0, block(208)).await.unwrap();
            files.unlink("/orphan").await.unwrap();
            files.sync().await.unwrap();
            runtime::sleep(Duration::from_secs(10)).await;
            runtime::power_cut()
        };
        let empty = crate::world::empty(setup.disk);
        let mut cut = runtime::simulate(simulation().with_files(empty), main).unwrap().value;
        [203, 204, 205, 207, 208].into_iter().for_each(|byte| flip_block(&mut cut, byte));
        let main = move || async move {
            let report = checked(&zones(None).await.unwrap()).await.unwrap();
            let checked: Vec<String> = report.problems.iter().map(|it| it.detail.clone()).collect();
            let files = setup.open().await.unwrap();
            let scrubbed = files.scrub(&Arc::default()).await.unwrap();
            (checked, scrubbed.damage)
        };
        let (checked, scrubbed) = runtime::simulate(simulation().with_files(cut), main).unwrap().value;
        for (what, found) in [("check", &checked), ("scrub", &scrubbed)] {
            let has = |path: &str, block: u64| {
                let right = |it: &&String| {
                    it.contains(path) && it.contains(&format!("block {block}: wrong checksum"))
                };
                let found_here: Vec<_> = found.iter().filter(right).collect();
                assert_eq!(found_here.len(), 1, "{shards} shards, {what}: {path}: {found:?}");
            };
            has("file \"a/deep one/b.txt\" (inode ", 3);
            has("snapshot \"before\": file \"changed\" (inode ", 0);
            has("snapshot \"before\": file \"a/removed\" (inode ", 0);
            let is_link = |it: &String| {
                it.contains("file \"link\" (inode ") || it.contains("file \"a/another\" (inode ")
            };
            assert_eq!(
                found.iter().filter(|it| is_link(it)).count(),
                1,
                "{shards} shards, {what}: {found:?}"
            );
        }
        // The open file system has removed the inode.
        let orphans = |found: &[String]| found.iter().filter(|it| it.starts_with("inode ")).count();
        assert_eq!((orphans(&checked), orphans(&scrubbed)), (1, 0), "{checked:?}, {scrubbed:?}");
    }
}
