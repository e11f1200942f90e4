//! Full file systems, and devices below them that run out of space or fail.

use crate::model::{Bytes, Model, Operation, apply, is_alike, is_of_medium, view_of};
use crate::sequences::{operations, owned, start, zones_on};
use crate::world::{BASE, Setup, checked, empty};
use block::{BlockCount, BlockSize, Data, DeviceGeometry, DevicePart, Error};
use fs::metadata::change::Attributes;
use fs::names::namespace::Renaming;
use fs::{FileSystem, OpenOptions, Properties, Settings};
use layers::fault::{FaultDevicePart, parse_rules};
use layers::record::replay::ImageDisk;
use runtime::{Random, Simulation};
use std::sync::Arc;
use std::time::Duration;

fn world(seed: u64) -> Simulation {
    Simulation { trace_lines: 0, ..Simulation::new(seed) }
}

/// Creates files in the file system and the model until there is no space. Each is a part of a block larger
/// than the previous one.
async fn fill(files: &FileSystem, model: &mut Model, directory: &str) -> u64 {
    let mut made = 0;
    for length in [60_000, 4096, 1] {
        loop {
            let path = format!("{directory}/fill{made}");
            let create = Operation::Create(path.clone());
            let write = Operation::Write(path.clone(), 0, Bytes::draw(length, made));
            if matches!(apply(files, "", &create).await, Err(Error::NoSpace(_))) {
                break;
            }
            model.apply(&create).unwrap();
            made += 1;
            match apply(files, "", &write).await {
                Ok(()) => model.apply(&write).unwrap(),
                Err(Error::NoSpace(_)) => break,
                Err(error) => panic!("{path}: {error}"),
            }
        }
    }
    made
}

/// Operations that may need space, on existing paths.
fn needing_space() -> Vec<Operation> {
    let mut all = operations(1);
    all.push(Operation::Append(owned("/a"), Bytes::draw(9000, 1)));
    all.push(Operation::Rename(owned("/a"), format!("/{}", "long".repeat(50)), Renaming::Replace));
    all
}

#[test]
fn every_operation_on_a_full_file_system_is_done_or_refused_as_a_whole_and_files_can_be_removed() {
    let mut refused_once = std::collections::BTreeSet::new();
    for (seed, operation) in (1..).zip(needing_space()) {
        let setup =
            Setup { disk: 4 << 20, zone: 128 << 10, block_size: 4096, ..Setup::draw(&mut Random::new(1)) };
        let main = move || async move {
            let files = setup.format().await.unwrap();
            let mut model = Model::default();
            for operation in start().into_iter().chain([Operation::MakeDirectory(owned("/fill"))]) {
                model.apply(&operation).unwrap();
                apply(&files, "", &operation).await.unwrap();
            }
            let made = fill(&files, &mut model, "/fill").await;
            let mut next = model.clone();
            let expected = next.apply(&operation);
            let done = apply(&files, "", &operation).await;
            let is_refused = matches!(done, Err(Error::NoSpace(_)));
            match is_refused {
                true => assert!(!operation.needs_no_space(), "{operation:?} is refused: {done:?}"),
                false => {
                    assert!(is_alike(&expected, &done), "{operation:?}: {done:?}, expected {expected:?}");
                    model = next;
                }
            }
            let refused_parts = is_refused && !model.is_atomic(&operation);
            let shown = view_of(&files, "").await.unwrap();
            assert!(refused_parts || shown == model.view(), "{operation:?}: {done:?}");
            // Operations that need no space succeed, and are durable.
            files.open_file("/fill/fill0", OpenOptions::default()).await.unwrap().sync().await.unwrap();
            for number in 0..made {
                let unlink = Operation::Unlink(format!("/fill/fill{number}"));
                apply(&files, "", &unlink).await.unwrap_or_else(|error| panic!("{unlink:?}: {error}"));
                model.apply(&unlink).unwrap();
            }
            files.sync().await.unwrap();
            if is_refused {
                let done = apply(&files, "", &operation).await;
                assert!(done.is_ok(), "{operation:?} after files were removed: {done:?}");
                model.apply(&operation).unwrap();
            }
            files.sync().await.unwrap();
            (runtime::power_cut(), model, is_refused.then(|| format!("{operation:?}")))
        };
        let run = runtime::simulate(world(seed).with_files(empty(setup.disk)), main).unwrap();
        let (left, model, refused) = run.value;
        refused_once.extend(refused.map(|text| text.split('(').next().unwrap().to_owned()));
        let after = move || async move {
            let files = setup.open().await.unwrap();
            assert!(view_of(&files, "").await.unwrap() == model.view(), "after a power cut");
            let report = files.check().await.unwrap();
            assert!(report.is_sound(), "{report:?}");
        };
        runtime::simulate(world(seed).with_files(left), after).unwrap();
    }
    let names = [
        "Append",
        "Clone",
        "Create",
        "Link",
        "MakeDirectory",
        "Preallocate",
        "Rename",
        "SetAttribute",
        "SymbolicLink",
        "Write",
    ];
    for name in names {
        assert!(refused_once.contains(name), "{name} was never refused: {refused_once:?}");
    }
}

/// The device allocates space of its host when it is written, and the host has less space than the size of
/// the device.
#[test]
fn a_device_below_without_space_makes_operations_fail_and_lets_files_be_removed() {
    for seed in 1..6 {
        let main = move || async move {
            let registry = stack::Registry::new(vec![&disks::ram::KIND]);
            let stack = stack::Stack::from_line("test", "ram(16MiB, limit=6MiB)", &registry).unwrap();
            let disk = stack.check(true).unwrap().build().await.unwrap().top().unwrap();
            let settings = Settings::default();
            let zones = zones_on(disk.clone(), true).await.unwrap();
            let files = FileSystem::format(zones, Properties::default(), &settings).await.unwrap();
            let mut model = Model::default();
            for operation in start() {
                model.apply(&operation).unwrap();
                apply(&files, "", &operation).await.unwrap();
            }
            let made = fill(&files, &mut model, "").await;
            assert!((20..110).contains(&made), "{made} files");
            assert!(view_of(&files, "").await.unwrap() == model.view());
            files.sync().await.unwrap();
            // Removals, and writes of most of the freed space.
            for round in 0..3 {
                for number in round * 20..round * 20 + 20 {
                    let unlink = Operation::Unlink(format!("/fill{number}"));
                    let done = apply(&files, "", &unlink).await;
                    done.unwrap_or_else(|error| panic!("seed {seed}, round {round}: {unlink:?}: {error}"));
                    model.apply(&unlink).unwrap();
                }
                files.sync().await.unwrap();
                let since = runtime::now();
                for number in 0..16 {
                    let path = format!("/new{round}-{number}");
                    let write = Operation::Write(path.clone(), 0, Bytes::draw(60_000, number));
                    for operation in [Operation::Create(path), write] {
                        // The cleaner may not have freed a zone yet.
                        loop {
                            match apply(&files, "", &operation).await {
                                Ok(()) => break model.apply(&operation).unwrap(),
                                Err(Error::NoSpace(_)) if since.elapsed() < Duration::from_secs(4) => {
                                    runtime::sleep(Duration::from_millis(50)).await;
                                }
                                Err(error) => panic!("seed {seed}, round {round}: {operation:?}: {error}"),
                            }
                        }
                    }
                }
                files.sync().await.unwrap();
                assert!(view_of(&files, "").await.unwrap() == model.view(), "seed {seed}, round {round}");
            }
            files.close().await.unwrap();
            let zones = zones_on(disk, false).await.unwrap();
            let report = checked(&zones).await.unwrap();
            assert!(report.is_sound(), "{report:?}");
            let files = FileSystem::open(zones, &settings).await.unwrap();
            assert!(view_of(&files, "").await.unwrap() == model.view(), "seed {seed}: opened again");
        };
        runtime::simulate(world(seed), main).unwrap();
    }
}

/// The device fails permanently after some call. All operations end with errors, the first error of an fsync
/// is permanent, and synced data exists once the device works again.
#[test]
fn a_device_below_that_dies_makes_every_fsync_fail_and_loses_nothing_that_was_synced() {
    let mut failed = 0;
    for calls in (0..120).step_by(3) {
        let main = move || async move {
            let geometry = DeviceGeometry {
                block_size: BlockSize::default(),
                blocks: BlockCount((4 << 20) / BlockSize::default().bytes()),
                atomic_write: 512,
                volatile_cache: true,
                read_only: false,
            };
            let disk: Arc<dyn DevicePart> = Arc::new(ImageDisk::empty(geometry));
            let settings = Settings::default();
            let zones = zones_on(disk.clone(), true).await.unwrap();
            let files = FileSystem::format(zones, Properties::default(), &settings).await.unwrap();
            files.close().await.unwrap();
            let rule = format!("write flush write_zeroes discard after={calls} dead");
            let rules = parse_rules(&[rule], stack::Contract::Device).unwrap();
            let failing = Arc::new(FaultDevicePart::new(disk.clone(), rules, 1).unwrap());
            let mut has_failed = false;
            let mut synced = 0;
            if let Ok(zones) = zones_on(failing, false).await
                && let Ok(files) = FileSystem::open(zones, &settings).await
            {
                for number in 0..40_u8 {
                    let Ok(file) = files.create(&format!("/{number}")).await else {
                        break;
                    };
                    let written = file.write_at(0, Data::copy_of(&[number; 5000])).await;
                    let done = file.sync().await;
                    assert!(
                        written.is_ok() || done.is_err(),
                        "a write failed and its fsync didn't: {written:?}"
                    );
                    match done {
                        Ok(()) => {
                            assert!(!has_failed, "calls {calls}: an fsync succeeds after one that failed");
                            synced = number + 1;
                        }
                        Err(error) => {
                            assert!(is_of_medium(&error), "calls {calls}: {error}");
                            has_failed = true;
                        }
                    }
                    for refused in [files.sync().await, files.unlink("/0").await] {
                        assert!(!has_failed || refused.is_err(), "calls {calls}: {refused:?}");
                    }
                    if !has_failed && number > 0 {
                        // The removed file is created again.
                        drop(files.create("/0").await);
                    }
                }
                assert!(!has_failed || files.close().await.is_err());
            }
            let files = FileSystem::open(zones_on(disk, false).await.unwrap(), &settings).await.unwrap();
            for number in 1..synced {
                let file = files.open_file(&format!("/{number}"), OpenOptions::default()).await.unwrap();
                let found = file.read_at(0, 9000).await.unwrap().to_data();
                assert_eq!(found[..], [number; 5000], "calls {calls}: file {number}");
            }
            let report = files.check().await.unwrap();
            assert!(report.is_sound(), "{report:?}");
            has_failed
        };
        failed += u32::from(runtime::simulate(world(1), main).unwrap().value);
    }
    assert!(failed > 20, "an fsync failed in {failed} of 40 runs");
}

/// Changes of attributes fill few zones, but make all pages of metadata dirty. Checkpoints must be written
/// before these pages need more zones than are free.
#[test]
fn attributes_of_all_files_of_a_full_file_system_change_and_are_kept() {
    let setup =
        Setup { disk: 24 << 20, zone: 128 << 10, block_size: 4096, ..Setup::draw(&mut Random::new(1)) };
    let main = move || async move {
        let files = setup.format().await.unwrap();
        let data = Data::copy_of(&[7; 4096]);
        let mut made = 0;
        for number in 0.. {
            let file = match files.create(&format!("/{number}{}", "n".repeat(200))).await {
                Ok(file) => file,
                Err(Error::NoSpace(_)) => break,
                Err(error) => panic!("file {number}: {error}"),
            };
            made = number + 1;
            match file.write_at(0, data.clone()).await {
                Ok(()) => {}
                Err(Error::NoSpace(_)) => break,
                Err(error) => panic!("file {number}: {error}"),
            }
        }
        // All zones have some dead blocks, and only the reserved zones are free.
        for step in 0..made {
            let path = format!("/{}{}", step * 7919 % made, "n".repeat(200));
            let file = files.open_file(&path, OpenOptions::default()).await.unwrap();
            match file.write_at(0, data.clone()).await {
                Ok(()) | Err(Error::NoSpace(_)) => {}
                Err(error) => panic!("file {path}: {error}"),
            }
        }
        files.sync().await.unwrap();
        for mode in [0o600, 0o640, 0o644] {
            for number in 0..made {
                let file = files
                    .open_file(&format!("/{number}{}", "n".repeat(200)), OpenOptions::default())
                    .await
                    .unwrap();
                let attributes = Attributes { mode: Some(0o100_000 | mode), ..Attributes::default() };
                let set = file.set_attributes(attributes).await;
                set.unwrap_or_else(|error| panic!("file {number} of {made}, mode {mode:o}: {error}"));
            }
        }
        files.sync().await.unwrap();
        for number in 0..made {
            files.unlink(&format!("/{number}{}", "n".repeat(200))).await.unwrap();
        }
        files.sync().await.unwrap();
        files.create("/again").await.unwrap().write_at(0, data).await.unwrap();
        files.close().await.unwrap();
        println!("{made} files");
    };
    runtime::simulate(world(1).with_files(empty(setup.disk)), main).unwrap();
}

/// Takes a snapshot of most of a full file system, and overwrites its files until writes are refused. The
/// snapshot is deleted while other tasks try to write. Afterwards, its whole space can be written at once,
/// before another checkpoint.
#[test]
fn what_a_large_snapshot_had_is_accepted_again_once_it_is_deleted() {
    for (shards, disk) in [(1, 8 << 20), (1, 32 << 20), (4, 48 << 20)] {
        let setup = Setup { disk, shards, checkpoint_after: 256 << 20, ..BASE };
        let main = move || async move {
            const FILE: usize = 64 << 10;
            let data = |byte: u64| block::Data::copy_of(&vec![byte as u8 + 1; FILE]);
            let files = setup.format().await.unwrap();
            let free = files.statistics().await.unwrap().free * 4096;
            // Somewhat less than half.
            let count = free * 2 / 5 / FILE as u64;
            for number in 0..count {
                let file = files.create(&format!("/{number}")).await.unwrap();
                file.write_at(0, data(number % 200)).await.unwrap();
            }
            for round in 0..3 {
                files.create_snapshot("large").await.unwrap();
                for number in 0..count {
                    let file = files.create(&format!("/{number}")).await.unwrap();
                    file.write_at(0, data(200 + round)).await.unwrap();
                }
                let mut more = 0;
                loop {
                    let file = files.create(&format!("/more{more}")).await;
                    let Ok(file) = file else { break };
                    if file.write_at(0, data(210)).await.is_err() {
                        break;
                    }
                    more += 1;
                }
                files.sync().await.unwrap();
                let before = files.statistics().await.unwrap().free;
                let stop = std::rc::Rc::new(std::cell::Cell::new(false));
                let writer = runtime::spawn({
                    let (files, stop) = (files.clone(), stop.clone());
                    async move {
                        let mut refused = 0;
                        while !stop.get() {
                            let file = files.open_file("/0", OpenOptions::default()).await.unwrap();
                            match file.write_at(0, data(200 + round)).await {
                                Ok(()) => {}
                                Err(Error::NoSpace(_)) => refused += 1,
                                Err(error) => panic!("{setup:?}: {error}"),
                            }
                            runtime::sleep(Duration::from_micros(100)).await;
                        }
                        refused
                    }
                });
                let deleted = runtime::timeout(Duration::from_secs(30), files.delete_snapshot("large")).await;
                deleted.expect("it ends").unwrap();
                stop.set(true);
                assert_eq!(writer.await, 0, "{setup:?}: an overwrite needs no space");
                let after = files.statistics().await.unwrap().free;
                let found = (after - before) * 4096 / FILE as u64;
                assert!(found + 4 >= count, "{setup:?}: {found} of {count} files are free");
                for number in 0..count - 4 {
                    let file = files.create(&format!("/again{number}")).await.unwrap();
                    let written = file.write_at(0, data(211)).await;
                    written.unwrap_or_else(|error| {
                        panic!("{setup:?}: round {round}, file {number} of {count}: {error}")
                    });
                }
                files.sync().await.unwrap();
                for number in 0..count - 4 {
                    files.unlink(&format!("/again{number}")).await.unwrap();
                }
                for number in 0..=more {
                    files.unlink(&format!("/more{number}")).await.ok();
                }
                files.sync().await.unwrap();
            }
            files.close().await.unwrap();
            let report = checked(&crate::world::zones(None).await.unwrap()).await.unwrap();
            assert!(report.is_sound(), "{setup:?}: {report:?}");
        };
        let world = Simulation { trace_lines: 0, ..Simulation::new(1) }.with_shards(shards as usize);
        runtime::simulate(world.with_files(empty(disk)), main).unwrap();
    }
}
