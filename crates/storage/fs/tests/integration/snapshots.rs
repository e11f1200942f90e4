//! Guarantees of snapshots: existence, contents, cost, and the space that deleting them frees.

use crate::world::{BASE as SETUP, Files, Setup, checked, empty, zones};
use block::{Data, Error};
use fs::broken::{Broken, with_broken};
use fs::names::namespace::Renaming;
use fs::{FileSystem, OpenOptions, Properties, Settings, SnapshotView};
use runtime::Simulation;
use stack::{Registry, Stack};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

fn in_world<T: 'static, F: Future<Output = T> + 'static>(files: Files, main: impl FnOnce() -> F) -> T {
    let world = Simulation { trace_lines: 0, ..Simulation::new(1) };
    runtime::simulate(world.with_files(files), main).unwrap().value
}

fn data(length: usize, byte: u8) -> Data {
    Data::copy_of(&vec![byte; length])
}

async fn write(files: &FileSystem, path: &str, length: usize, byte: u8) -> block::Result<()> {
    let options = OpenOptions { create: true, ..OpenOptions::default() };
    files.open_file(path, options).await?.write_at(0, data(length, byte)).await
}

async fn read(view: &SnapshotView, path: &str) -> block::Result<Vec<u8>> {
    let file = view.open_file(path).await?;
    let size = file.attributes().await?.size as usize;
    Ok(file.read_at(0, size + 1).await?.to_data().to_vec())
}

async fn names(files: &FileSystem) -> Vec<String> {
    files.snapshots().await.unwrap().into_iter().map(|info| info.name).collect()
}

async fn sound(files: &FileSystem) {
    let report = files.check().await.unwrap();
    assert!(report.is_sound(), "{report:?}");
}

/// Checks the disk of the world, with all data.
async fn sound_on_disk() -> fs::check::Report {
    let report = checked(&zones(None).await.unwrap()).await.unwrap();
    assert!(report.is_sound(), "{report:?}");
    report
}

#[test]
fn a_snapshot_shows_what_was_there_whatever_becomes_of_it_and_survives_a_power_cut() {
    let cut = in_world(empty(SETUP.disk), || async {
        let files = SETUP.format().await.unwrap();
        files.make_directory("/d").await.unwrap();
        write(&files, "/d/a", 300_000, 1).await.unwrap();
        write(&files, "/b", 10, 2).await.unwrap();
        files.symbolic_link("d/a", "/link").await.unwrap();
        let info = files.create_snapshot("before").await.unwrap();
        assert_eq!((info.name.as_str(), info.number), ("before", 1));
        write(&files, "/d/a", 100_000, 3).await.unwrap();
        files.unlink("/b").await.unwrap();
        files.rename("/d", "/e", Renaming::Replace).await.unwrap();
        files.sync().await.unwrap();
        write(&files, "/never-synced", 10, 2).await.unwrap();
        sound(&files).await;
        runtime::power_cut()
    });
    in_world(cut, || async {
        assert_eq!(sound_on_disk().await.snapshots, 1);
        let files = SETUP.open().await.unwrap();
        assert_eq!(names(&files).await, ["before"]);
        let view = files.snapshot("before").await.unwrap();
        assert_eq!(read(&view, "/d/a").await.unwrap(), vec![1; 300_000]);
        assert_eq!(read(&view, "/link").await.unwrap(), vec![1; 300_000]);
        assert_eq!(read(&view, "b").await.unwrap(), vec![2; 10]);
        assert_eq!(view.read_link("/link").await.unwrap(), b"d/a");
        let mut found: Vec<_> =
            view.read_directory("/").await.unwrap().into_iter().map(|entry| entry.name).collect();
        found.sort();
        assert_eq!(found, [b"b".to_vec(), b"d".to_vec(), b"link".to_vec()]);
        assert!(matches!(view.attributes("/e").await, Err(Error::NotFound(_))));
        assert_eq!(view.open_file("/d").await.unwrap_err().errno(), libc::EISDIR);
        assert_eq!(view.read_directory("/b").await.unwrap_err().errno(), libc::ENOTDIR);
        let now = files.open_file("/e/a", OpenOptions::default()).await.unwrap();
        let now = now.read_at(0, 300_000).await.unwrap().to_data();
        assert!(now[..100_000] == [3; 100_000] && now[100_000..] == [1; 200_000]);
        sound(&files).await;
    });
}

#[test]
fn deleting_a_snapshot_frees_what_it_alone_had() {
    in_world(empty(SETUP.disk), || async {
        let files = SETUP.format().await.unwrap();
        let free = async || files.statistics().await.unwrap().free;
        write(&files, "/a", 400_000, 1).await.unwrap();
        files.create_snapshot("one").await.unwrap();
        files.create_snapshot("two").await.unwrap();
        let before = free().await;
        write(&files, "/a", 400_000, 2).await.unwrap();
        files.sync().await.unwrap();
        assert!(free().await <= before - 97, "the snapshots have the old blocks");
        files.delete_snapshot("one").await.unwrap();
        assert!(free().await <= before - 97, "the other snapshot also has the old blocks");
        let view = files.snapshot("two").await.unwrap();
        files.create_snapshot("three").await.unwrap();
        files.delete_snapshot("two").await.unwrap();
        sound(&files).await;
        assert_eq!(view.attributes("/a").await.unwrap_err().errno(), libc::ESTALE);
        assert!(free().await >= before - 2, "{} of {before} are free", free().await);
        files.unlink("/a").await.unwrap();
        files.delete_snapshot("three").await.unwrap();
        sound(&files).await;
        assert!(free().await >= before + 98 - 2);
        assert!(names(&files).await.is_empty());
        files.close().await.unwrap();
        sound_on_disk().await;
    });
}

#[test]
fn a_file_system_full_of_snapshots_says_so_and_takes_writes_again_when_they_are_deleted() {
    in_world(empty(SETUP.disk), || async {
        let files = SETUP.format().await.unwrap();
        let mut taken = 0;
        let full = loop {
            let written = write(&files, "/a", 700_000, taken).await;
            match written {
                Ok(()) => {}
                Err(error) => break error,
            }
            match files.create_snapshot(&taken.to_string()).await {
                Ok(_) => taken += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(full, Error::NoSpace(_)) && full.detail().contains("snapshots"), "{full}");
        assert!((3..12).contains(&taken), "{taken} snapshots");
        // Removing files succeeds, but frees nothing.
        write(&files, "/small", 1, 1).await.ok();
        files.unlink("/a").await.unwrap();
        assert!(matches!(write(&files, "/b", 700_000, 1).await, Err(Error::NoSpace(_))));
        sound(&files).await;
        for number in 0..taken {
            files.delete_snapshot(&number.to_string()).await.unwrap();
            sound(&files).await;
        }
        write(&files, "/b", 3_000_000, 1).await.unwrap();
        files.close().await.unwrap();
        sound_on_disk().await;
    });
}

#[test]
fn a_snapshot_has_a_write_in_flight_or_not() {
    in_world(empty(SETUP.disk), || async {
        let files = SETUP.format().await.unwrap();
        let file = files.create("/a").await.unwrap();
        let mut with = 0;
        for round in 0..40_u8 {
            file.write_at(0, data(40_000, round)).await.unwrap();
            let writing = runtime::spawn({
                let file = file.clone();
                async move { file.write_at(0, data(40_000, round + 100)).await.unwrap() }
            });
            runtime::sleep(Duration::from_micros(u64::from(round) * 5)).await;
            let files = files.clone();
            files.create_snapshot("now").await.unwrap();
            writing.await;
            let found = read(&files.snapshot("now").await.unwrap(), "/a").await.unwrap();
            assert!(found == vec![round; 40_000] || found == vec![round + 100; 40_000], "round {round}");
            with += u32::from(found[0] == round + 100);
            files.delete_snapshot("now").await.unwrap();
        }
        assert!((1..40).contains(&with), "{with} of 40 have it");
        sound(&files).await;
    });
}

#[test]
fn snapshots_stay_when_the_number_of_shards_changes() {
    let mut disk = in_world(empty(24 << 20), || async {
        let files = Setup { disk: 24 << 20, shards: 2, ..SETUP }.format().await.unwrap();
        for number in 0..12 {
            files.make_directory(&format!("/{number}")).await.unwrap();
            write(&files, &format!("/{number}/a"), 20_000, number).await.unwrap();
        }
        files.create_snapshot("all").await.unwrap();
        for number in 0..12 {
            files
                .rename(&format!("/{number}/a"), &format!("/{}/b", (number + 1) % 12), Renaming::Replace)
                .await
                .unwrap();
        }
        files.sync().await.unwrap();
        runtime::power_cut()
    });
    for shards in [1, 3, 2] {
        disk = in_world(disk, move || async move {
            sound_on_disk().await;
            let files = Setup { disk: 24 << 20, shards, ..SETUP }.open().await.unwrap();
            let view = files.snapshot("all").await.unwrap();
            for number in 0..12 {
                assert_eq!(read(&view, &format!("/{number}/a")).await.unwrap(), vec![number; 20_000]);
                assert!(view.attributes(&format!("/{number}/b")).await.is_err());
            }
            sound(&files).await;
            files.create_snapshot(&format!("with {shards} shards")).await.unwrap();
            runtime::power_cut()
        });
    }
}

#[test]
fn names_and_the_number_of_snapshots_are_bounded() {
    in_world(empty(24 << 20), || async {
        let files = Setup { disk: 24 << 20, ..SETUP }.format().await.unwrap();
        for name in ["", ".", "a/b", "a\nb"] {
            assert!(matches!(files.create_snapshot(name).await, Err(Error::Invalid(_))), "{name:?}");
        }
        assert_eq!(files.create_snapshot(&"x".repeat(256)).await.unwrap_err().errno(), libc::ENAMETOOLONG);
        let missing = files.delete_snapshot("a").await.unwrap_err();
        assert!(matches!(missing, Error::NotFound(_)) && missing.detail().contains("no snapshots"));
        for number in 0..256 {
            files.create(&format!("/{number}")).await.unwrap();
            files.create_snapshot(&number.to_string()).await.unwrap();
        }
        let again = files.create_snapshot("7").await.unwrap_err();
        assert!(matches!(again, Error::AlreadyExists(_)), "{again}");
        let more = files.create_snapshot("more").await.unwrap_err();
        assert!(more.detail().contains("256"), "{more}");
        files.close().await.unwrap();
        sound_on_disk().await;
        let files = Setup { disk: 24 << 20, ..SETUP }.open().await.unwrap();
        for number in [0, 100, 255] {
            let view = files.snapshot(&number.to_string()).await.unwrap();
            assert_eq!(view.read_directory("/").await.unwrap().len(), number + 1);
        }
        for number in 0..256 {
            files.delete_snapshot(&number.to_string()).await.unwrap();
        }
        sound(&files).await;
    });
}

#[test]
fn snapshots_survive_that_their_blocks_are_moved() {
    in_world(empty(SETUP.disk), || async {
        let files = SETUP.format().await.unwrap();
        for number in 0..40_u8 {
            write(&files, &format!("/{number}"), 16_384, number).await.unwrap();
        }
        files.create_snapshot("one").await.unwrap();
        for number in (0..40_u8).step_by(2) {
            write(&files, &format!("/{number}"), 8192, number + 100).await.unwrap();
        }
        files.create_snapshot("two").await.unwrap();
        files.unlink("/1").await.unwrap();
        // Enough writes for each zone to be cleaned several times.
        for round in 0..1200_u32 {
            write(&files, "/churn", 40_000 + (round as usize % 7) * 4096, round as u8).await.unwrap();
            write(&files, &format!("/churn{}", round % 9), 4096, round as u8).await.unwrap();
        }
        let moved = files.counters().cleaned_zones.load(std::sync::atomic::Ordering::Relaxed);
        assert!(moved > 10, "{moved} zones were cleaned");
        sound(&files).await;
        for (name, odd) in [("one", 0), ("two", 100)] {
            let view = files.snapshot(name).await.unwrap();
            for number in 0..40_u8 {
                let found = read(&view, &format!("/{number}")).await.unwrap();
                let first = if number.is_multiple_of(2) { number + odd } else { number };
                assert!(
                    found[..8192] == [first; 8192] && found[8192..] == [number; 8192],
                    "{name}: {number}"
                );
            }
        }
        files.close().await.unwrap();
        sound_on_disk().await;
    });
}

#[test]
fn a_snapshot_of_several_shards_is_of_one_moment() {
    for seed in 1..4 {
        takes_while_shards_change(seed).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        let slow = with_broken([Broken::SlowSnapshots], || takes_while_shards_change(seed));
        slow.unwrap_or_else(|error| panic!("seed {seed}, slow: {error}"));
    }
    let is_noticed = with_broken([Broken::SlowSnapshots, Broken::OpenGates], || {
        (1..10).any(|seed| takes_while_shards_change(seed).is_err())
    });
    assert!(is_noticed, "snapshots of shards at different moments aren't noticed");
}

/// A client writes the next number to files of all shards, one after the other, while others move files
/// between directories of all shards. A snapshot that includes a number must include those written before,
/// and each file must have exactly one name.
fn takes_while_shards_change(seed: u64) -> Result<(), String> {
    const FILES: u64 = 6;
    const MOVERS: usize = 4;
    let setup = Setup { disk: 24 << 20, shards: 3, ..SETUP };
    let main = move || async move {
        let files = setup.format().await.unwrap();
        for number in 0..FILES {
            files.make_directory(&format!("/{number}")).await.unwrap();
            write(&files, &format!("/{number}/a"), 8, 0).await.unwrap();
        }
        for mover in 0..MOVERS {
            files.create(&format!("/0/moved{mover}")).await.unwrap();
        }
        let is_done = Rc::new(Cell::new(false));
        let writer = files.clone();
        let writing = runtime::spawn(async move {
            for round in 1..40_u64 {
                for number in 0..FILES {
                    let file = writer.open_file(&format!("/{number}/a"), OpenOptions::default()).await?;
                    file.write_at(0, Data::copy_of(&round.to_le_bytes())).await?;
                }
            }
            Ok::<_, Error>(())
        });
        let moving = (0..MOVERS).map(|mover| {
            let (files, is_done) = (files.clone(), is_done.clone());
            runtime::spawn(async move {
                let name = |round: u64| format!("/{}/moved{mover}", round % FILES);
                for round in 0.. {
                    if is_done.get() {
                        break;
                    }
                    files.rename(&name(round), &name(round + 1), Renaming::Replace).await?;
                }
                Ok::<_, Error>(())
            })
        });
        let moving: Vec<_> = moving.collect();
        for taken in 0..12_u64 {
            files.create_snapshot("now").await.unwrap();
            let view = files.snapshot("now").await.unwrap();
            let (mut before, mut moved) = (u64::MAX, vec![0; MOVERS]);
            for number in 0..FILES {
                let found = read(&view, &format!("/{number}/a")).await.unwrap();
                let round = u64::from_le_bytes(found.try_into().unwrap());
                if round > before || before != u64::MAX && round + 1 < before {
                    return Err(format!("snapshot {taken}: {round} after {before} in file {number}"));
                }
                before = round;
                for (mover, names) in moved.iter_mut().enumerate() {
                    *names += u32::from(view.attributes(&format!("/{number}/moved{mover}")).await.is_ok());
                }
            }
            if moved.iter().any(|names| *names != 1) {
                return Err(format!("snapshot {taken}: the moved files have {moved:?} names"));
            }
            files.delete_snapshot("now").await.unwrap();
        }
        writing.await.unwrap();
        is_done.set(true);
        for moving in moving {
            moving.await.unwrap();
        }
        files.create_snapshot("last").await.unwrap();
        sound(&files).await;
        files.close().await.unwrap();
        Ok(())
    };
    let world =
        Simulation { trace_lines: 0, most_events: 60_000_000, ..Simulation::new(seed) }.with_shards(3);
    let run = runtime::simulate(world.with_files(empty(setup.disk)), main);
    run.map_err(|error| error.to_string())?.value
}

/// Clients write the next number to a file, and then truncate a file of another shard, within a block, to a
/// size that encodes the number. A snapshot that includes the truncation must include the write before it. A
/// write takes about as long as taking a snapshot on all shards.
fn takes_while_files_are_cut_off(seed: u64) -> Result<(), String> {
    const ROUNDS: u64 = 60;
    const CLIENTS: u64 = 3;
    // The snapshot may include the first part of a write.
    let length = move |client: u64| (20_000 * (1 + client) + 11_000 * seed) as usize;
    let main = move || async move {
        let registry = Registry::new(vec![&disks::ram::KIND, &layers::model::KIND]);
        let line = format!("model(ram(128MiB, block_size=4096), sata-ssd, seed={seed})");
        let plan = Stack::from_line("test", &line, &registry).unwrap().check(false).unwrap();
        let device = plan.build().await.unwrap().top().unwrap();
        let options =
            zones::on_device::Options { format: true, zone_size: Some(1 << 20), ..Default::default() };
        let zones = Arc::new(zones::OnDevice::open(device, options).await.unwrap());
        let settings = Settings { shards: Some(3), ..Settings::default() };
        let files = FileSystem::format(zones, Properties::default(), &settings).await.unwrap();
        for client in 0..CLIENTS {
            files.make_directory(&format!("/{client}")).await.unwrap();
            write(&files, &format!("/{client}/cut"), 4000, 0).await.unwrap();
            write(&files, &format!("/{client}/written"), 8, 0).await.unwrap();
        }
        let of = |client: u64| (format!("/{client}/written"), format!("/{}/cut", (client + 1) % CLIENTS));
        let running = Rc::new(Cell::new(CLIENTS));
        let clients = (0..CLIENTS).map(|client| {
            let (files, running, (written, cut)) = (files.clone(), running.clone(), of(client));
            runtime::spawn(async move {
                let written = files.open_file(&written, OpenOptions::default()).await?;
                let cut = files.open_file(&cut, OpenOptions::default()).await?;
                for round in 1..ROUNDS {
                    let number = vec![round; length(client)];
                    let bytes: Vec<u8> = number.into_iter().flat_map(u64::to_le_bytes).collect();
                    written.write_at(0, Data::copy_of(&bytes)).await?;
                    cut.truncate(4000 - round).await?;
                }
                running.set(running.get() - 1);
                Ok::<_, Error>(())
            })
        });
        let clients: Vec<_> = clients.collect();
        while running.get() > 0 {
            files.create_snapshot("now").await.unwrap();
            let view = files.snapshot("now").await.unwrap();
            for client in 0..CLIENTS {
                let (written, cut) = of(client);
                let last = 8 * (length(client) as u64 - 1);
                let number =
                    view.open_file(&written).await.unwrap().read_at(last, 8).await.unwrap().to_data();
                let number = number[..].try_into().map_or(0, u64::from_le_bytes);
                let cuts = 4000 - view.attributes(&cut).await.unwrap().size;
                if cuts > number {
                    return Err(format!("client {client}: cut {cuts} after write {number}"));
                }
            }
            files.delete_snapshot("now").await.unwrap();
        }
        for client in clients {
            client.await.unwrap();
        }
        sound(&files).await;
        files.close().await.unwrap();
        Ok(())
    };
    let world =
        Simulation { trace_lines: 0, most_events: 60_000_000, ..Simulation::new(seed) }.with_shards(3);
    runtime::simulate(world, main).map_err(|error| error.to_string())?.value
}

#[test]
fn a_snapshot_of_several_shards_shows_no_cut_without_what_was_before_it() {
    for seed in 1..6 {
        with_broken([Broken::SlowSnapshots], || takes_while_files_are_cut_off(seed))
            .unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
}

/// Programs may have files of a deleted snapshot open, so its number isn't reused during the lifetime of the
/// file system.
#[test]
fn the_number_of_a_snapshot_is_never_given_again() {
    let mut files = empty(SETUP.disk);
    let mut last = 0;
    for life in 0..4 {
        (files, last) = in_world(files, move || async move {
            let files = if life == 0 { SETUP.format().await.unwrap() } else { SETUP.open().await.unwrap() };
            let mut last = last;
            for name in ["a", "b"] {
                files.create_snapshot(name).await.unwrap();
                let number = files.snapshots().await.unwrap().last().unwrap().number;
                assert!(number > last, "life {life}: number {number} after {last}");
                last = number;
                files.delete_snapshot(name).await.unwrap();
            }
            if life % 2 == 0 {
                files.close().await.unwrap();
            }
            (runtime::power_cut(), last)
        });
    }
}
