//! Guarantees of single calls: durability after a sync, errors, and behaviour after closing.

use crate::world::{BASE as SETUP, Files, Setup, checked, empty, zones};
use block::{Data, Error};
use fs::core::Core;
use fs::metadata::change::{Change, Changes};
use fs::metadata::inode::Value;
use fs::names::namespace::Renaming;
use fs::tree::Key;
use fs::{FileSystem, OpenOptions, Properties};
use runtime::{Random, SimulatedFaults, Simulation};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

fn world<T: 'static, F: Future<Output = T> + 'static>(
    seed: u64,
    files: Files,
    faults: SimulatedFaults,
    main: impl FnOnce() -> F,
) -> T {
    let world = Simulation { trace_lines: 0, ..Simulation::new(seed) };
    runtime::simulate(world.with_files(files).with_faults(faults), main).unwrap().value
}

fn in_world<T: 'static, F: Future<Output = T> + 'static>(files: Files, main: impl FnOnce() -> F) -> T {
    world(1, files, SimulatedFaults::default(), main)
}

fn data(length: usize, byte: u8) -> Data {
    Data::copy_of(&vec![byte; length])
}

fn existing() -> OpenOptions {
    OpenOptions::default()
}

/// Runs `before` on a new file system, cuts the power, and runs `after`.
fn over_a_cut<A, B>(
    before: impl FnOnce(FileSystem) -> A + 'static,
    after: impl FnOnce(FileSystem) -> B + 'static,
) where
    A: Future<Output = ()> + 'static,
    B: Future<Output = ()> + 'static,
{
    let cut = in_world(empty(SETUP.disk), || async move {
        before(SETUP.format().await.unwrap()).await;
        runtime::power_cut()
    });
    in_world(cut, || async move {
        let report = checked(&zones(None).await.unwrap()).await.unwrap();
        assert!(report.is_sound(), "{report:?}");
        after(SETUP.open().await.unwrap()).await;
    });
}

#[test]
fn a_file_that_was_made_and_synced_is_there_after_a_power_cut() {
    over_a_cut(
        |files| async move {
            let file = files.open_file("/a", OpenOptions { create_new: true, ..existing() }).await.unwrap();
            file.sync().await.unwrap();
        },
        |files| async move {
            files.attributes("/a").await.unwrap();
        },
    );
}

#[test]
fn a_sync_of_a_file_that_was_opened_again_makes_durable_what_was_written_before() {
    over_a_cut(
        |files| async move {
            let file = files.create("/a").await.unwrap();
            file.write_at(0, data(5000, 7)).await.unwrap();
            drop(file);
            // Enough other files for its unused node to be removed.
            for number in 0..200 {
                files.create(&format!("/other{number}")).await.unwrap();
            }
            runtime::sleep(Duration::from_millis(1)).await;
            files.open_file("/a", existing()).await.unwrap().sync().await.unwrap();
        },
        |files| async move {
            let file = files.open_file("/a", existing()).await.unwrap();
            assert_eq!(file.read_at(0, 9000).await.unwrap().to_data()[..], vec![7; 5000]);
        },
    );
}

#[test]
fn preallocated_blocks_of_a_new_file_are_counted_once_after_a_power_cut() {
    over_a_cut(
        |files| async move {
            let file = files.create("/a").await.unwrap();
            file.preallocate(0..40_960).await.unwrap();
            files.take_checkpoint().await.unwrap();
            file.sync().await.unwrap();
        },
        |files| async move {
            assert_eq!(files.attributes("/a").await.unwrap().blocks, 10);
            files.unlink("/a").await.unwrap();
            let report = files.check().await.unwrap();
            assert!(report.is_sound(), "{report:?}");
        },
    );
}

/// Runs in a world with a disk that takes 0.3 s for each operation.
fn on_a_slow_disk<T: 'static, F: Future<Output = T> + 'static>(files: Files, main: impl FnOnce() -> F) -> T {
    let world = Simulation { trace_lines: 0, latency: 300_000_000..300_000_001, ..Simulation::new(1) };
    runtime::simulate(world.with_files(files), main).unwrap().value
}

/// Allocations take effect on submission, and writes when their records are written: the size is the maximum
/// in either order.
#[test]
fn an_allocation_beside_a_write_in_flight_leaves_the_larger_size_and_all_data() {
    const MIB: u64 = 1 << 20;
    let setup = Setup { disk: 24 << 20, zone: 256 << 10, ..SETUP };
    for (zeroes, checkpoint) in [(false, false), (true, false), (false, true), (true, true)] {
        let made = in_world(empty(setup.disk), move || async move {
            setup.format().await.unwrap().close().await.unwrap();
            runtime::power_cut()
        });
        let cut = on_a_slow_disk(made, move || async move {
            let files = setup.open().await.unwrap();
            let file = files.create("/a").await.unwrap();
            let write = |at: u64| {
                let file = file.clone();
                runtime::spawn(async move { file.write_at(at, data(MIB as usize, 7)).await.unwrap() })
            };
            let writes: Vec<_> = (1..4).map(|part| write(part * MIB)).collect();
            runtime::sleep(Duration::from_millis(100)).await;
            if zeroes {
                file.punch(0..MIB / 2).await.unwrap();
            }
            file.allocate(0..MIB / 2).await.unwrap();
            assert_eq!(file.attributes().await.unwrap().size, MIB / 2, "the writes are in flight");
            if checkpoint {
                files.take_checkpoint().await.unwrap();
            }
            runtime::join_all(writes).await;
            file.sync().await.unwrap();
            runtime::power_cut()
        });
        in_world(cut, move || async move {
            let files = setup.open().await.unwrap();
            let file = files.open_file("/a", existing()).await.unwrap();
            let found = file.read_at(0, 5 * MIB as usize).await.unwrap().to_data();
            let expected = [vec![0; MIB as usize], vec![7; 3 * MIB as usize]].concat();
            assert_eq!(found.len(), expected.len(), "zeroes: {zeroes}, checkpoint: {checkpoint}");
            assert!(found[..] == expected[..]);
            let report = files.check().await.unwrap();
            assert!(report.is_sound(), "{report:?}");
        });
    }
}

#[test]
fn the_time_of_a_later_change_stays_when_a_write_in_flight_takes_effect() {
    let setup = Setup { disk: 24 << 20, zone: 256 << 10, ..SETUP };
    let made = in_world(empty(setup.disk), move || async move {
        setup.format().await.unwrap().close().await.unwrap();
        runtime::power_cut()
    });
    let cut = on_a_slow_disk(made, move || async move {
        let files = setup.open().await.unwrap();
        let file = files.create("/a").await.unwrap();
        file.write_at(0, data(8192, 1)).await.unwrap();
        let writer = file.clone();
        let write = runtime::spawn(async move { writer.write_at(1 << 20, data(4096, 7)).await.unwrap() });
        runtime::sleep(Duration::from_millis(100)).await;
        file.punch(0..4096).await.unwrap();
        let punched = file.attributes().await.unwrap().modified;
        write.await;
        assert_eq!(file.attributes().await.unwrap().modified, punched);
        // A write replaces a time ahead of the clock.
        let ahead = fs::metadata::change::Attributes { modified: Some(i64::MAX), ..Default::default() };
        file.set_attributes(ahead).await.unwrap();
        file.write_at(0, data(4096, 7)).await.unwrap();
        let written = file.attributes().await.unwrap().modified;
        assert!(written > punched && written < i64::MAX);
        file.sync().await.unwrap();
        runtime::power_cut()
    });
    in_world(cut, move || async move {
        let files = setup.open().await.unwrap();
        assert!(files.attributes("/a").await.unwrap().modified < i64::MAX);
    });
}

#[test]
fn a_large_file_is_removed_in_the_background_also_after_a_power_cut() {
    const DISK_BYTES: u64 = 64 << 20;
    let setup = Setup { disk: DISK_BYTES, zone: 1 << 20, ..SETUP };
    for cut_after in [0, 200, 500, 1000, 5000] {
        let cut = in_world(empty(DISK_BYTES), move || async move {
            let files = setup.format().await.unwrap();
            let file = files.create("/large").await.unwrap();
            // Every second block, so that each is an extent.
            for block in 0..1100 {
                file.write_at(block * 8192, data(4096, block as u8)).await.unwrap();
            }
            file.preallocate(1100 * 8192..1100 * 8192 + (3200 << 12)).await.unwrap();
            drop(file);
            runtime::sleep(Duration::from_millis(1)).await;
            files.sync().await.unwrap();
            files.unlink("/large").await.unwrap();
            files.sync().await.unwrap();
            runtime::sleep(Duration::from_micros(cut_after)).await;
            runtime::power_cut()
        });
        in_world(cut, move || async move {
            let report = checked(&zones(None).await.unwrap()).await.unwrap();
            assert!(report.is_sound(), "cut after {cut_after} µs: {report:?}");
            let files = setup.open().await.unwrap();
            runtime::sleep(Duration::from_millis(100)).await;
            let report = files.check().await.unwrap();
            assert!(report.is_sound() && report.orphans == 0 && report.blocks == 0, "{report:?}");
            let statistics = files.statistics().await.unwrap();
            assert_eq!((statistics.free, statistics.inodes), (statistics.blocks, 1));
            files.close().await.unwrap();
        });
    }
}

#[test]
fn an_error_of_a_sync_stays() {
    let faults = SimulatedFaults { sync_error: 1.0, ..SimulatedFaults::default() };
    let made = in_world(empty(SETUP.disk), || async {
        let files = SETUP.format().await.unwrap();
        files.close().await.unwrap();
        runtime::power_cut()
    });
    // Opening syncs, so with these faults it must fail.
    let opened = world(1, made.clone(), faults, || async { SETUP.open().await.map(drop) });
    assert!(opened.is_err());
    let faults = SimulatedFaults { sync_error: 0.3, ..SimulatedFaults::default() };
    let mut failed = 0;
    for seed in 1..40 {
        failed += world(seed, made.clone(), faults, move || async move {
            let Ok(files) = SETUP.open().await else { return 0 };
            let mut has_failed = 0;
            for number in 0..20 {
                let Ok(file) = files.create(&format!("/{number}")).await else { break };
                let written = file.write_at(0, data(4096, 1)).await;
                let synced = file.sync().await;
                assert!(has_failed == 0 || synced.is_err(), "seed {seed}: {written:?}, {synced:?}");
                has_failed = has_failed.max(u32::from(synced.is_err()));
            }
            has_failed
        });
    }
    assert!(failed > 5, "a sync failed in {failed} worlds");
}

#[test]
fn writes_whose_callers_are_gone_do_not_outlive_a_truncate() {
    over_a_cut(
        |files| async move {
            let file = files.create("/a").await.unwrap();
            for round in 0..50 {
                // The caller is dropped while the write is queued or in flight.
                let write = file.write_at(20_000, data(8192, 1));
                runtime::timeout(Duration::from_micros(3 * round), write).await.ok();
                file.truncate(0).await.unwrap();
                runtime::sleep(Duration::from_millis(2)).await;
                assert_eq!(file.attributes().await.unwrap().size, 0, "round {round}");
            }
            file.append(data(10, 2)).await.unwrap();
            file.sync().await.unwrap();
        },
        |files| async move {
            let file = files.open_file("/a", existing()).await.unwrap();
            assert_eq!(file.read_at(0, 9000).await.unwrap().to_data()[..], [2; 10]);
        },
    );
}

#[test]
fn appends_whose_callers_are_gone_leave_no_holes_for_later_ones() {
    in_world(empty(SETUP.disk), || async {
        let files = SETUP.format().await.unwrap();
        let file = files.create("/a").await.unwrap();
        for round in 0..30 {
            let before = file.attributes().await.unwrap().size;
            let first = runtime::spawn({
                let file = file.clone();
                async move { file.append(data(100, 1)).await.unwrap() }
            });
            runtime::sleep(Duration::from_nanos(100)).await;
            // The append waits for the same block, and is dropped.
            let given_up = runtime::timeout(Duration::from_nanos(100), file.append(data(50, 2))).await;
            assert!(given_up.is_err());
            let third = file.append(data(10, 3)).await.unwrap();
            assert_eq!((first.await, third), (before, before + 100), "round {round}");
        }
    });
}

#[test]
fn an_append_beside_a_truncate_has_no_hole_before_it() {
    in_world(empty(SETUP.disk), || async {
        let files = SETUP.format().await.unwrap();
        let file = files.create("/a").await.unwrap();
        for round in 0..30_u64 {
            file.truncate(0).await.unwrap();
            file.append(data(10_000, 1)).await.unwrap();
            let (cutter, adder) = (file.clone(), file.clone());
            let first = runtime::spawn({
                let file = file.clone();
                async move { file.append(data(3000, 2)).await.unwrap() }
            });
            let cut = runtime::spawn(async move {
                runtime::sleep(Duration::from_micros(round)).await;
                cutter.truncate(0).await.unwrap();
            });
            let second = runtime::spawn(async move {
                runtime::sleep(Duration::from_micros(round + 1)).await;
                adder.append(data(3000, 3)).await.unwrap()
            });
            first.await;
            cut.await;
            second.await;
            let size = file.attributes().await.unwrap().size as usize;
            let found = file.read_at(0, size).await.unwrap().to_data();
            assert!(!found[..].contains(&0), "round {round}: a hole in {size} bytes");
        }
    });
}

#[test]
fn times_that_were_set_stay_whatever_was_in_flight() {
    in_world(empty(SETUP.disk), || async {
        let files = SETUP.format().await.unwrap();
        let file = files.create("/a").await.unwrap();
        let write = runtime::spawn({
            let file = file.clone();
            async move { file.write_at(0, data(4096, 1)).await.unwrap() }
        });
        runtime::sleep(Duration::from_nanos(100)).await;
        let wanted = fs::metadata::change::Attributes { modified: Some(1_000), ..Default::default() };
        file.set_attributes(wanted).await.unwrap();
        write.await;
        assert_eq!(file.attributes().await.unwrap().modified, 1_000);
    });
}

#[test]
fn closing_ends_every_operation_in_flight() {
    for seed in 1..60 {
        let ended = world(seed, empty(SETUP.disk), SimulatedFaults::default(), move || async move {
            let files = SETUP.format().await.unwrap();
            let file = files.create("/a").await.unwrap();
            file.write_at(0, data(30_000, 9)).await.unwrap();
            let clients: Vec<_> = (0..8_u64)
                .map(|client| {
                    let (file, files) = (file.clone(), files.clone());
                    runtime::spawn(async move {
                        for number in 0.. {
                            // Partial blocks are read first.
                            let written = file.write_at(client * 3000 + number, data(2000, 1)).await;
                            let made = files.create(&format!("/{client}-{number}")).await;
                            let cut = file.truncate(20_000 + number % 5000).await;
                            if written.is_err() && made.is_err() && cut.is_err() {
                                return;
                            }
                        }
                    })
                })
                .collect();
            runtime::sleep(Duration::from_micros(97 * seed)).await;
            files.close().await.unwrap();
            let ended = runtime::timeout(Duration::from_secs(100), runtime::join_all(clients)).await;
            drop(file);
            assert!(matches!(files.sync().await, Err(Error::Closed(_))));
            let report = checked(&zones(None).await.unwrap()).await.unwrap();
            assert!(report.is_sound(), "seed {seed}: {report:?}");
            ended.is_ok()
        });
        assert!(ended, "seed {seed}: operations still wait after a close");
    }
}

#[test]
fn a_file_is_dropped_outside_of_a_shard() {
    let file = in_world(empty(SETUP.disk), || async {
        let files = SETUP.format().await.unwrap();
        files.create("/a").await.unwrap()
    });
    drop(file);
}

#[test]
fn an_open_that_fails_leaves_the_file_closed() {
    in_world(empty(SETUP.disk), || async {
        let files = SETUP.format().await.unwrap();
        let file = files.create("/a").await.unwrap();
        file.write_at(0, data(4096, 1)).await.unwrap();
        drop(file);
        // The caller is dropped while the file is truncated.
        for round in 0..20 {
            let open = files.create("/a");
            runtime::timeout(Duration::from_nanos(round * 500), open).await.ok();
        }
        files.unlink("/a").await.unwrap();
        runtime::sleep(Duration::from_millis(10)).await;
        let report = files.check().await.unwrap();
        assert!(report.is_sound() && report.inodes == 1, "{report:?}");
    });
}

#[test]
fn zones_that_are_too_small_for_an_atomic_write_are_refused() {
    in_world(empty(SETUP.disk), || async {
        let zones = zones(Some(64 << 10)).await.unwrap();
        let made = FileSystem::format(zones, Properties::default(), &SETUP.settings()).await;
        assert!(matches!(made, Err(Error::Invalid(_))), "{made:?}");
    });
}

#[test]
fn a_full_file_system_lets_files_be_removed_and_takes_others_then() {
    for seed in 1..8 {
        world(seed, empty(4 << 20), SimulatedFaults::default(), move || async move {
            let setup = Setup { disk: 4 << 20, ..SETUP };
            let files = setup.format().await.unwrap();
            let mut made = 0;
            for round in 0..4 {
                loop {
                    let Ok(file) = files.create(&format!("/{made}")).await else { break };
                    made += 1;
                    match file.write_at(0, data(40_000, seed as u8)).await {
                        Ok(()) => {}
                        Err(Error::NoSpace(_)) => break,
                        Err(error) => panic!("seed {seed}: {error}"),
                    }
                }
                // Operations that need space fail, and the log continues.
                let full = files.open_file("/0", existing()).await.unwrap();
                for _ in 0..300 {
                    let attributes =
                        fs::metadata::change::Attributes { modified: Some(7), ..Default::default() };
                    full.set_attributes(attributes).await.unwrap();
                }
                // The records need far more space than is free, so zones must be freed meanwhile.
                for number in 0..4000_u64 {
                    let (from, to) = (format!("/{}", number % 2), format!("/{}", (number + 1) % 2));
                    files.rename(&from, &to, Renaming::Exchange).await.unwrap();
                    if number % 64 == 0 {
                        runtime::yield_now().await;
                    }
                }
                full.sync().await.unwrap();
                let statistics = files.statistics().await.unwrap();
                assert!(statistics.free < 20, "seed {seed}, round {round}: {statistics:?}");
                for number in (1..made).rev().take(20) {
                    files.unlink(&format!("/{number}")).await.unwrap();
                    made -= 1;
                }
                files.sync().await.unwrap();
            }
            let report = files.check().await.unwrap();
            assert!(report.is_sound(), "{report:?}");
            files.close().await.unwrap();
        });
    }
}

/// Other tasks write to the file meanwhile.
#[test]
fn a_file_is_defragmented_and_shows_the_same_all_the_while() {
    in_world(empty(SETUP.disk), || async {
        let files = SETUP.format().await.unwrap();
        let (file, other) = (files.create("/f").await.unwrap(), files.create("/other").await.unwrap());
        let mut random = Random::new(5);
        let mut contents = vec![0; 300 * 4096];
        // Backwards, so that no block is contiguous with the previous one; with a hole, and an end within a
        // block.
        for block in (0..300).rev().filter(|block| *block != 77) {
            let length = if block == 299 { 1000 } else { 4096 };
            random.fill(&mut contents[block * 4096..][..length]);
            let written = Data::copy_of(&contents[block * 4096..][..length]);
            file.write_at(block as u64 * 4096, written).await.unwrap();
            other.append(data(1000, block as u8)).await.unwrap();
        }
        contents.truncate(299 * 4096 + 1000);
        let before = file.attributes().await.unwrap();
        let writer = file.clone();
        let writing = runtime::spawn(async move {
            for number in 0..40_u64 {
                writer.write_at(number * 5 * 4096, data(4096, number as u8)).await.unwrap();
            }
        });
        let fragments = file.defragment().await.unwrap();
        writing.await;
        for number in 0..40 {
            contents[number * 5 * 4096..][..4096].fill(number as u8);
        }
        assert!(file.read_at(0, 1 << 21).await.unwrap().to_data()[..] == contents[..]);
        assert_eq!(fragments.before, 299);
        let again = file.defragment().await.unwrap();
        // A zone has space for about 30 blocks of data.
        assert!(again.after <= 26, "{fragments:?}, {again:?}");
        let mut calls = 0;
        while file.defragment().await.unwrap().blocks > 0 {
            calls += 1;
            assert!(calls < 10, "defragmentation still finds fragments");
        }
        let after = file.attributes().await.unwrap();
        assert_eq!((after.size, after.blocks), (before.size, before.blocks));
        assert!(files.check().await.unwrap().is_sound());
    });
}

/// The metadata needs more memory than the budget.
#[test]
fn a_file_system_whose_metadata_needs_more_than_its_budget_is_not_opened() {
    let disk = in_world(empty(SETUP.disk), || async {
        let files = SETUP.format().await.unwrap();
        for number in 0..300 {
            files.create(&format!("/a-name-that-takes-some-bytes-{number}")).await.unwrap();
        }
        files.close().await.unwrap();
        runtime::power_cut()
    });
    in_world(disk, || async {
        let with = |metadata_bytes| fs::Settings { metadata_bytes, ..SETUP.settings() };
        let refused = FileSystem::open(zones(None).await.unwrap(), &with(8192)).await.unwrap_err();
        assert!(matches!(refused, Error::Invalid(_)) && refused.detail().contains("8192"), "{refused}");
        let files = FileSystem::open(zones(None).await.unwrap(), &with(64 << 10)).await.unwrap();
        let mut made = 0;
        let full = loop {
            match files.create(&format!("/another-{made}")).await {
                Ok(_) => made += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(full, Error::NoSpace(_)) && (50..2000).contains(&made), "{made}: {full}");
        files.unlink("/another-0").await.unwrap();
        files.close().await.unwrap();
    });
}

/// New files are refused before the metadata needs more memory than the budget permits at the next opening.
#[test]
fn a_file_system_whose_budget_is_used_up_is_opened_again() {
    in_world(empty(SETUP.disk), || async {
        let settings = fs::Settings { metadata_bytes: 64 << 10, ..SETUP.settings() };
        for life in 0..3 {
            let files = match life {
                0 => {
                    let properties = Properties { inode_groups: 4, ..Properties::default() };
                    let zones = zones(Some(SETUP.zone)).await.unwrap();
                    FileSystem::format(zones, properties, &settings).await
                }
                _ => FileSystem::open(zones(None).await.unwrap(), &settings).await,
            };
            let files = files.unwrap_or_else(|error| panic!("life {life}: {error}"));
            let data = files.create(&format!("/data-{life}")).await.ok();
            let full = loop {
                let made =
                    files.create(&format!("/{life}-{}", files.statistics().await.unwrap().inodes)).await;
                if let Err(error) = made {
                    break error;
                }
            };
            assert!(matches!(full, Error::NoSpace(_)), "{full}");
            // Each block is an extent; writing an existing block replaces it.
            let Some(data) = data else {
                files.close().await.unwrap();
                continue;
            };
            let block = || Data::copy_of(&[7; 4096]);
            let refused = async {
                for number in 0..5000 {
                    data.write_at(number * 8192, block()).await?;
                }
                Ok(())
            };
            let refused = refused.await;
            assert!(matches!(refused, Err(Error::NoSpace(_))), "{refused:?}");
            data.write_at(0, block()).await.unwrap();
            files.close().await.unwrap();
        }
    });
}

/// A scrub doesn't wait for reads of items without data, so it must yield.
#[test]
fn a_scrub_of_many_names_gives_other_tasks_their_turns() {
    in_world(empty(SETUP.disk), || async {
        let files = SETUP.format().await.unwrap();
        for number in 0..3000 {
            files.create(&format!("/{number}")).await.unwrap();
        }
        let inode = files.create("/last").await.unwrap().inode();
        // An item that only damage can create: no key follows it.
        let key = Key::new(inode, 99, u64::MAX);
        let put = move |core: Rc<Core>| async move {
            core.submit(Changes::from_elem(Change::Put { key, value: Value::new() }, 1), None)
        };
        files.shards().of(inode).with(put).await.unwrap();
        let (turns, is_done) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
        let (counted, ended) = (turns.clone(), is_done.clone());
        let counting = runtime::spawn(async move {
            while !ended.get() {
                counted.set(counted.get() + 1);
                runtime::yield_now().await;
            }
        });
        let found = files.scrub(&Arc::default()).await.unwrap();
        is_done.set(true);
        counting.await;
        assert_eq!((found.blocks, found.damaged), (0, 0), "{found:?}");
        assert!(turns.get() > 50, "{} turns", turns.get());
    });
}

/// No zone is reset while pages are read. A writer may wait for a zone only as long as the reads of a few
/// pages take.
#[test]
fn writers_do_not_wait_for_a_scrub_of_all_pages() {
    let setup = Setup { disk: 6 << 20, ..SETUP };
    let made = in_world(empty(setup.disk), move || async move {
        let properties = Properties { inode_groups: 1, ..Properties::default() };
        let zones = zones(Some(setup.zone)).await.unwrap();
        let files = FileSystem::format(zones, properties, &setup.settings()).await.unwrap();
        for number in 0..3000 {
            files.create(&format!("/a-name-that-takes-some-bytes-{number}")).await.unwrap();
        }
        files.close().await.unwrap();
        runtime::power_cut()
    });
    on_a_slow_disk(made, move || async move {
        let files = setup.open().await.unwrap();
        let is_done = Rc::new(Cell::new(false));
        let writers: Vec<_> = (0..8)
            .map(|number| {
                let (files, is_done) = (files.clone(), is_done.clone());
                runtime::spawn(async move {
                    let file = files.create(&format!("/w{number}")).await.unwrap();
                    let mut longest = Duration::ZERO;
                    while !is_done.get() {
                        let begun = runtime::now();
                        file.write_at(0, data(64 << 10, number)).await.unwrap();
                        longest = longest.max(begun.elapsed());
                    }
                    longest
                })
            })
            .collect();
        let begun = runtime::now();
        let found = files.scrub(&Arc::default()).await.unwrap();
        is_done.set(true);
        let all = begun.elapsed();
        let longest = runtime::join_all(writers).await.into_iter().max().unwrap();
        assert!(found.damaged == 0 && found.pages > 50, "{found:?}");
        assert!(
            longest < all / 2,
            "a write took {longest:?} beside a scrub of {} pages in {all:?}",
            found.pages
        );
    });
}

#[test]
fn too_few_zones_for_a_file_system_are_refused_with_the_number_of_enough() {
    for zone in [128_u64 << 10, 1 << 20] {
        let setup = Setup { zone, ..SETUP };
        let format = |disk: u64| in_world(empty(disk), move || async move { setup.format().await.map(drop) });
        let refused = format(8 * zone).unwrap_err();
        let detail = refused.detail();
        let (_, rest) = detail.split_once("expected at least ").expect(detail);
        let least: u64 = rest.split(' ').next().unwrap().parse().unwrap();
        assert!(matches!(refused, Error::Invalid(_)) && (9..32).contains(&least), "{detail}");
        // Each zone on a device has a header before it.
        format((least + 1) * zone).unwrap();
    }
}
