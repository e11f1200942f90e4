//! Striped directories: behaviour for programs before, while and after the names are divided among all
//! shards.

use crate::world::{INODE_GROUPS, Setup, checked, empty, zones};
use block::{Error, Part};
use conformance::Seeds;
use fs::broken::{Broken, with_broken};
use fs::metadata::change::Attributes;
use fs::metadata::directory::Entry;
use fs::metadata::inode::{FileType, Inode, InodeNumber};
use fs::names::namespace::Renaming;
use fs::{FileSystem, OpenOptions};
use runtime::{Random, Simulation};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

const ABOVE: u64 = 20;

fn setup(random: &mut Random) -> Setup {
    let shards = 3;
    Setup { disk: 24 << 20, zone: 128 << 10, shards, stripe_above: ABOVE, ..Setup::draw(random) }
}

/// Runs a test in a world with a new file system on three shards.
fn in_world<Fut>(work: impl FnOnce(FileSystem) -> Fut + Send + 'static)
where
    Fut: Future<Output = Result<(), Error>> + 'static,
{
    let setup = setup(&mut Random::new(7));
    let world = Simulation { trace_lines: 0, ..Simulation::new(7) }.with_files(empty(setup.disk));
    let life = move || async move {
        let files = setup.format().await?;
        work(files.clone()).await?;
        let report = files.check().await?;
        assert!(report.is_sound(), "{report:?}");
        files.close().await?;
        let zones = zones(None).await?;
        let report = checked(&zones).await?;
        assert!(report.is_sound() && report.orphans == 0, "{report:?}");
        zones.close().await
    };
    runtime::simulate(world, life).unwrap().value.unwrap();
}

async fn inode_of(files: &FileSystem, directory: &str, name: &str) -> Result<InodeNumber, Error> {
    let entries = files.read_directory(directory).await?;
    Ok(entries.iter().find(|entry| entry.name == name.as_bytes()).unwrap().inode)
}

/// Waits until a directory is striped.
async fn striped(files: &FileSystem, inode: InodeNumber) {
    for _ in 0..1000 {
        if files.shards().striped().has(inode) {
            return;
        }
        runtime::sleep(Duration::from_millis(1)).await;
    }
    panic!("directory {inode} isn't striped");
}

/// Creates a directory with this number of files, and waits until it is striped.
async fn make(files: &FileSystem, path: &str, count: u64) -> Result<InodeNumber, Error> {
    files.make_directory(path).await?;
    for number in 0..count {
        files.create(&format!("{path}/f{number}")).await?;
    }
    let (above, name) = path.rsplit_once('/').unwrap();
    let inode = inode_of(files, above, name).await?;
    striped(files, inode).await;
    Ok(inode)
}

fn names(entries: &[Entry]) -> BTreeSet<String> {
    entries.iter().map(|entry| String::from_utf8(entry.name.clone()).unwrap()).collect()
}

#[test]
fn the_names_of_a_large_directory_are_on_all_shards_in_the_same_order() {
    in_world(|files| async move {
        files.make_directory("/d").await?;
        for number in 0..ABOVE {
            files.create(&format!("/d/f{number}")).await?;
        }
        files.make_directory("/d/below").await?;
        let inode = inode_of(&files, "", "d").await?;
        let before = files.read_directory("/d").await?;
        striped(&files, inode).await;
        // The names have the same offsets: a listing in progress continues.
        let after = files.read_directory("/d").await?;
        assert_eq!(before, after);
        assert!(after.windows(2).all(|pair| pair[0].next < pair[1].next));
        // New files are on the shard of their stripe.
        let mut made = [0; 3];
        for number in 0..300 {
            let file = files.create(&format!("/d/n{number}")).await?;
            made[files.shards().index_of(file.inode()) as usize] += 1;
        }
        assert!(made.iter().all(|count| *count > 40), "{made:?}");
        assert_eq!(files.read_directory("/d").await?.len() as u64, ABOVE + 301);
        let entries = files.read_directory("/d").await?;
        assert!(entries.windows(2).all(|pair| pair[0].next < pair[1].next));
        // `..` in a subdirectory refers to the striped directory.
        files.create("/d/below/file").await?;
        let up = files.attributes("/d/below/../n7").await?;
        assert_eq!(up, files.attributes("/d/n7").await?);
        Ok(())
    });
}

#[test]
fn attributes_of_a_striped_directory_are_those_of_one_directory() {
    in_world(|files| async move {
        let inode = make(&files, "/d", ABOVE + 1).await?;
        let links = async || files.attributes("/d").await.map(|found| found.links);
        assert_eq!(links().await?, 2);
        for number in 0..12 {
            files.make_directory(&format!("/d/s{number}")).await?;
        }
        assert_eq!(links().await?, 14);
        files.remove_directory("/d/s3").await?;
        files.rename("/d/s4", "/s4", Renaming::NoReplace).await?;
        files.rename("/d/s5", "/d/moved", Renaming::NoReplace).await?;
        assert_eq!((links().await?, files.attributes("/").await?.links), (12, 4));
        assert_eq!(files.attributes("/d/moved/..").await?, files.attributes("/d").await?);
        // Times that were set are kept until a new name changes them.
        let set = Attributes {
            mode: Some(FileType::Directory as u32 | 0o2770),
            gid: Some(33),
            modified: Some(1_000_000),
            ..Attributes::default()
        };
        let change = move |core: Rc<fs::core::Core>| async move { core.set_attributes(inode, set).await };
        files.shards().of(inode).with(change).await?;
        let found = files.attributes("/d").await?;
        assert_eq!((found.mode & 0o7777, found.gid, found.modified), (0o2770, 33, 1_000_000));
        for number in 0..8 {
            files.make_directory(&format!("/d/t{number}")).await?;
            let Inode { mode, gid, .. } = files.attributes(&format!("/d/t{number}")).await?;
            assert_eq!((mode & libc::S_ISGID, gid), (libc::S_ISGID, 33));
        }
        assert!(files.attributes("/d").await?.modified > 1_000_000);
        Ok(())
    });
}

#[test]
fn a_striped_directory_is_moved_exchanged_replaced_and_removed_as_others() {
    in_world(|files| async move {
        let inode = make(&files, "/d", ABOVE + 1).await?;
        let is = |outcome: Result<(), Error>, errno: i32| {
            assert_eq!(outcome.err().map(|error| error.errno()), Some(errno));
        };
        files.make_directory("/other").await?;
        is(files.remove_directory("/d").await, libc::ENOTEMPTY);
        is(files.unlink("/d").await, libc::EISDIR);
        is(files.rename("/other", "/d", Renaming::Replace).await, libc::ENOTEMPTY);
        is(files.rename("/d", "/d/below", Renaming::Replace).await, libc::EINVAL);
        files.make_directory("/d/s").await?;
        is(files.rename("/d", "/d/s/t", Renaming::Replace).await, libc::EINVAL);
        files.rename("/d/f1", "/d/f2", Renaming::Replace).await?;
        files.rename("/d/f3", "/d/f4", Renaming::Exchange).await?;
        files.link("/d/f5", "/d/link").await?;
        files.rename("/d/s", "/other", Renaming::Exchange).await?;
        files.rename("/d", "/other/d", Renaming::NoReplace).await?;
        let found = names(&files.read_directory("/other/d").await?);
        assert!(found.contains("s") && found.contains("link") && !found.contains("f1"), "{found:?}");
        let file = files.create("/other/d/f2").await?;
        for name in found.iter().filter(|name| *name != "s") {
            files.unlink(&format!("/other/d/{name}")).await?;
        }
        files.remove_directory("/other/d/s").await?;
        assert_eq!(files.read_directory("/other/d").await?, []);
        files.make_directory("/empty").await?;
        files.rename("/empty", "/other/d", Renaming::Replace).await?;
        drop(file);
        files.create("/other/d/new").await?;
        is(files.attributes("/other/d/f5").await.map(drop), libc::ENOENT);
        for _ in 0..1000 {
            if !files.shards().striped().has(inode) {
                break;
            }
            runtime::sleep(Duration::from_millis(1)).await;
        }
        assert!(!files.shards().striped().has(inode), "a replaced directory is still known as striped");
        // The root also becomes striped.
        for number in 0..30 {
            files.create(&format!("/r{number}")).await?;
        }
        striped(&files, fs::metadata::inode::ROOT).await;
        files.make_directory("/made").await?;
        files.create("/made/file").await?;
        assert_eq!(files.read_directory("/").await?.len(), 32);
        Ok(())
    });
}

#[test]
fn a_removed_striped_directory_that_is_open_takes_no_names() {
    in_world(|files| async move {
        let inode = make(&files, "/d", ABOVE + 1).await?;
        let directory = files.directory("/d").await?;
        let open = move |core: Rc<fs::core::Core>| async move { core.open(inode).map(drop) };
        files.shards().of(inode).with(open).await?;
        for number in 0..=ABOVE {
            directory.unlink(&format!("f{number}")).await?;
        }
        files.remove_directory("/d").await?;
        let create = OpenOptions { create: true, ..OpenOptions::default() };
        for name in ["a", "b", "c", "d", "e"] {
            let refused = directory.open_file(name, create).await.unwrap_err();
            assert!(matches!(refused, Error::NotFound(_)), "{refused}");
        }
        assert_eq!(directory.unlink("f1").await.unwrap_err().errno(), libc::ENOENT);
        let close = move |core: Rc<fs::core::Core>| async move {
            core.close(&core.nodes().find(inode).unwrap());
            Ok(())
        };
        files.shards().of(inode).with(close).await?;
        runtime::sleep(Duration::from_millis(100)).await;
        assert!(!files.shards().striped().has(inode));
        Ok(())
    });
}

#[test]
fn a_snapshot_has_a_directory_as_it_was_before_and_after_it_was_striped() {
    in_world(|files| async move {
        files.make_directory("/d").await?;
        for number in 0..ABOVE {
            files.create(&format!("/d/f{number}")).await?;
        }
        files.create_snapshot("before").await?;
        files.make_directory("/d/s").await?;
        striped(&files, inode_of(&files, "", "d").await?).await;
        files.create_snapshot("after").await?;
        for number in 0..ABOVE {
            files.unlink(&format!("/d/f{number}")).await?;
        }
        files.remove_directory("/d/s").await?;
        files.remove_directory("/d").await?;
        for (name, count, links) in [("before", ABOVE, 2), ("after", ABOVE + 1, 3)] {
            let view = files.snapshot(name).await?;
            let found = view.read_directory("/d").await?;
            assert_eq!((found.len() as u64, view.attributes("/d").await?.links), (count, links));
            for entry in &found {
                let name = String::from_utf8(entry.name.clone()).unwrap();
                view.attributes(&format!("/d/{name}")).await?;
            }
        }
        Ok(())
    });
}

/// Creates files in directories of all shards, and cuts the power at a time when a directory may become
/// striped. Durable files must exist afterwards.
fn cut(seed: u64) -> Result<(), String> {
    let mut random = Random::new(seed);
    let setup = setup(&mut random);
    // Becoming striped takes 50 to 130 ms on such a disk.
    let after = Duration::from_micros(30_000 + random.below(100_000));
    let simulation = |seed| Simulation { trace_lines: 0, most_events: 60_000_000, ..Simulation::new(seed) };
    let life = move || async move {
        let files = setup.format().await?;
        for directory in 0..6 {
            files.make_directory(&format!("/d{directory}")).await?;
        }
        for number in 0..ABOVE {
            files.create(&format!("/d0/f{number}")).await?;
        }
        files.sync().await?;
        for client in 0..9 {
            let files = files.clone();
            runtime::spawn(async move {
                for number in 0.. {
                    let path = format!("/d{}/c{client}n{number}", 1 + (client + number) % 5);
                    if files.create(&path).await.is_err() || files.unlink(&path).await.is_err() {
                        break;
                    }
                }
            })
            .detach();
        }
        files.create("/d0/last").await?;
        runtime::sleep(after).await;
        Ok::<_, Error>(runtime::power_cut())
    };
    let faults = runtime::SimulatedFaults { slow: 0.1, ..Default::default() };
    let before = simulation(seed).with_files(empty(setup.disk)).with_faults(faults);
    let disk = runtime::simulate(before, life).map_err(|error| error.to_string())?.value;
    let disk = disk.map_err(|error| format!("before the power cut: {error}"))?;
    let look = move || async move {
        let zones = zones(None).await?;
        let report = checked(&zones).await?;
        zones.close().await?;
        if !report.is_sound() {
            return Err(Error::corrupt(format!("after the power cut: {report:?}")));
        }
        let files = Setup { shards: 1 + (seed % INODE_GROUPS as u64) as u32, ..setup }.open().await?;
        let found = names(&files.read_directory("/d0").await?);
        for number in 0..ABOVE {
            files.attributes(&format!("/d0/f{number}")).await?;
        }
        files.close().await?;
        Ok(found.len() as u64)
    };
    let found =
        runtime::simulate(simulation(seed).with_files(disk), look).map_err(|error| error.to_string())?;
    let found = found.value.map_err(|error| error.to_string())?;
    match (ABOVE..=ABOVE + 1).contains(&found) {
        true => Ok(()),
        false => Err(format!("{found} names; expected {ABOVE} or one more")),
    }
}

#[test]
fn names_that_were_durable_are_there_whenever_the_power_is_cut_while_they_are_copied() {
    for seed in Seeds::within(2, 200) {
        cut(seed).unwrap_or_else(|error| panic!("SILTSTONE_SEED={seed}: {error}"));
    }
}

#[test]
fn directories_that_are_striped_before_their_names_are_written_are_noticed() {
    let noticed = with_broken([Broken::StripesEarly], || {
        (1..200).find_map(|seed| cut(seed).err().map(|error| (seed, error)))
    });
    println!("{noticed:?}");
    assert!(noticed.is_some(), "it isn't noticed");
}

/// An unmount removes inodes without names. Stripes that are being made have no names.
#[test]
fn an_unmount_removes_stripes_that_are_being_made_and_no_names() {
    // While stripes are created, and while names are copied to them.
    for delay in (0..60).map(|step| Duration::from_micros(20 * step)) {
        in_world(move |files| async move {
            files.make_directory("/d").await?;
            let inode = inode_of(&files, "/", "d").await?;
            for number in 0..=ABOVE {
                files.create(&format!("/d/f{number}")).await?;
            }
            runtime::sleep(delay).await;
            for core in files.shards().all() {
                let unmount = |core: Rc<fs::core::Core>| async move {
                    core.remove_orphans();
                    Ok(())
                };
                core.with(unmount).await?;
            }
            runtime::sleep(Duration::from_millis(50)).await;
            let expected: BTreeSet<String> = (0..=ABOVE).map(|number| format!("f{number}")).collect();
            assert_eq!(names(&files.read_directory("/d").await?), expected, "after {delay:?}");
            // If the stripes were removed, the next new name tries again.
            files.create("/d/g").await?;
            striped(&files, inode).await;
            assert_eq!(files.read_directory("/d").await?.len(), expected.len() + 1);
            Ok(())
        });
    }
}
