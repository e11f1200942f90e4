//! Thin devices: their host has less space than their size. Space that removals freed must become usable
//! without another mount.

use crate::world::checked;
use block::{Data, DevicePart, Error, Part};
use fs::core::Core;
use fs::metadata::attributes::Setting;
use fs::names::namespace::Renaming;
use fs::{FileSystem, OpenOptions, Properties, Settings};
use layers::fault::{FaultZonesPart, parse_rules};
use runtime::Simulation;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

const BLOCK: usize = 4096;
/// Longest permitted time until freed space is found; it is looked for once a second.
const PATIENCE: Duration = Duration::from_secs(4);

/// Returns a device whose host has less space. Trimmed space isn't returned to the host.
async fn thin(size: &str, limit: &str) -> Arc<dyn DevicePart> {
    let registry = stack::Registry::new(vec![&disks::ram::KIND]);
    let stack = stack::Stack::from_line("test", &format!("ram({size}, limit={limit})"), &registry).unwrap();
    stack.check(true).unwrap().build().await.unwrap().top().unwrap()
}

async fn zones_of(disk: Arc<dyn DevicePart>, format: Option<u64>) -> Arc<zones::OnDevice> {
    let options =
        zones::on_device::Options { format: format.is_some(), zone_size: format, ..Default::default() };
    Arc::new(zones::OnDevice::open(disk, options).await.unwrap())
}

/// Files of a test with their sizes in blocks.
struct Filled {
    files: FileSystem,
    names: BTreeMap<u64, usize>,
    next: u64,
}

fn contents(number: u64, blocks: usize) -> Data {
    Data::copy_of(&vec![(number % 251) as u8 + 1; blocks * BLOCK])
}

impl Filled {
    /// Creates a file of `blocks` blocks. Returns false if there is no space for it.
    async fn make(&mut self, blocks: usize) -> bool {
        let path = format!("/{}", self.next);
        let made = async {
            let options = OpenOptions { create_new: true, ..OpenOptions::default() };
            let file = self.files.open_file(&path, options).await?;
            let written = file.write_at(0, contents(self.next, blocks)).await;
            if written.is_err() {
                self.files.unlink(&path).await?;
            }
            written
        };
        match made.await {
            Ok(()) => {
                self.names.insert(self.next, blocks);
                self.next += 1;
                true
            }
            Err(Error::NoSpace(_)) => false,
            Err(error) => panic!("{path}: {error}"),
        }
    }

    /// Creates files until there is no space for another one within the time limit. Returns the number of
    /// their blocks.
    async fn fill(&mut self, blocks: usize) -> usize {
        let mut all = 0;
        let mut since = runtime::now();
        while since.elapsed() < PATIENCE {
            match self.make(blocks).await {
                true => {
                    all += blocks;
                    since = runtime::now();
                }
                false => runtime::sleep(Duration::from_millis(100)).await,
            }
        }
        all
    }

    /// Removes these files. Returns the number of their blocks.
    async fn remove(&mut self, is_removed: impl Fn(usize) -> bool) -> usize {
        let mut blocks = 0;
        let chosen: Vec<u64> =
            self.names.keys().enumerate().filter(|(at, _)| is_removed(*at)).map(|(_, name)| *name).collect();
        for name in chosen {
            let removed = self.files.unlink(&format!("/{name}")).await;
            removed.unwrap_or_else(|error| panic!("/{name}: {error}"));
            blocks += self.names.remove(&name).unwrap();
        }
        blocks
    }

    async fn check(&self) {
        for (number, blocks) in &self.names {
            let file = self.files.open_file(&format!("/{number}"), OpenOptions::default()).await.unwrap();
            let found = file.read_at(0, blocks * BLOCK).await.unwrap().to_data();
            assert!(found[..] == contents(*number, *blocks)[..], "file {number}");
        }
    }

    /// Blocks of all files.
    fn blocks(&self) -> usize {
        self.names.values().sum()
    }

    async fn free(&self) -> u64 {
        self.files.statistics().await.unwrap().free
    }
}

/// Bytes of a zone, size of the device, space of its host, and blocks of each file.
type Case = (u64, &'static str, &'static str, usize);

/// End of a file system between two rounds.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Ends {
    Never,
    Killed,
    Closed,
}

/// State between two epochs: the disk, the files, the number of the next file, and the number of blocks that
/// fitted at first.
type Left = (Arc<dyn DevicePart>, BTreeMap<u64, usize>, u64, usize);

/// Fills, removes files, and writes as much again, many times. With `ends` other than [`Ends::Never`], each
/// round runs in a world of its own.
fn rounds((zone, size, limit, blocks): Case, ends: Ends, is_removed: fn(usize, usize) -> bool, items: bool) {
    let mut kept: Option<Left> = None;
    // The ends of zones and the reserve of the log vary between rounds; no space is lost permanently.
    let least = move |first: usize| first - first / 8 - 2 * zone as usize / BLOCK;
    for life in 0..if ends == Ends::Never { 1 } else { 8 } {
        let left = kept.take();
        let main = move || async move {
            let settings = Settings::default();
            let (disk, mut it, first) = match left {
                None => {
                    let disk = thin(size, limit).await;
                    let zones = zones_of(disk.clone(), Some(zone)).await;
                    let files = FileSystem::format(zones, Properties::default(), &settings).await.unwrap();
                    let options = OpenOptions { create_new: true, ..OpenOptions::default() };
                    files.open_file("/item", options).await.unwrap();
                    let mut it = Filled { files, names: BTreeMap::new(), next: 0 };
                    let first = it.fill(blocks).await;
                    (disk, it, first)
                }
                Some((disk, names, next, first)) => {
                    let zones = zones_of(disk.clone(), None).await;
                    let report = checked(&zones).await.unwrap();
                    assert!(report.is_sound(), "{report:?}");
                    let files = FileSystem::open(zones, &settings).await.unwrap();
                    let mut it = Filled { files, names, next };
                    it.fill(blocks).await;
                    it.check().await;
                    let found = it.blocks();
                    assert!(found >= least(first), "life {life}: {found} of {first} blocks");
                    (disk, it, first)
                }
            };
            for round in 0..if ends == Ends::Never { 8 } else { 1 } {
                if items {
                    use_last_zones(&it.files).await;
                }
                it.files.sync().await.unwrap();
                let count = it.names.len();
                let before = it.free().await;
                let removed = it.remove(|at| is_removed(at, count)).await;
                it.files.sync().await.unwrap();
                assert!(removed > 0, "round {round}");
                let freed = it.free().await - before;
                assert!(freed as usize >= removed - removed / 16, "{freed} of {removed} blocks are free");
                if ends == Ends::Never {
                    it.fill(blocks).await;
                    it.check().await;
                    let found = it.blocks();
                    assert!(found >= least(first), "round {round}: {found} of {first} blocks");
                }
            }
            if ends != Ends::Killed {
                it.files.close().await.unwrap();
                let report = checked(&zones_of(disk.clone(), None).await).await.unwrap();
                assert!(report.is_sound(), "{report:?}");
            }
            (disk, it.names, it.next, first)
        };
        let world = Simulation { trace_lines: 0, ..Simulation::new(2) };
        kept = Some(runtime::simulate(world, main).unwrap().value);
    }
}

/// Carries out operations without data until one is refused.
async fn use_last_zones(files: &FileSystem) {
    let inode = files.open_file("/item", OpenOptions::default()).await.unwrap().inode();
    for _ in 0..12_u32 {
        for number in 0..60_u32 {
            let value = vec![number as u8; 3000];
            let set = move |core: Rc<Core>| async move {
                core.set_attribute(inode, b"user.x", &value, Setting::default()).await
            };
            let outcomes = [
                files.home().with(set).await,
                files.rename("/item", "/a longer name of it", Renaming::NoReplace).await,
                files.rename("/a longer name of it", "/item", Renaming::NoReplace).await,
            ];
            let is_right = |outcome: &block::Result<()>| match outcome {
                Ok(()) | Err(Error::NoSpace(_)) => true,
                Err(error) => error.errno() == libc::ENOENT,
            };
            assert!(outcomes.iter().all(is_right), "{outcomes:?}");
            if outcomes.iter().all(|outcome| outcome.is_err()) {
                break;
            }
            files.sync().await.unwrap();
        }
        runtime::sleep(Duration::from_millis(400)).await;
    }
}

fn first_half(at: usize, count: usize) -> bool {
    at < count / 2
}

fn every_other(at: usize, _: usize) -> bool {
    at.is_multiple_of(2)
}

fn all(_: usize, _: usize) -> bool {
    true
}

/// Zone sizes, devices and their hosts, and the blocks of the files: several or few files in a zone, few and
/// more zones.
const SMALL_ZONES: Case = (128 << 10, "16MiB", "6MiB", 15);
const SMALL_FILES: Case = (128 << 10, "16MiB", "4MiB", 1);
const ZONES: Case = (512 << 10, "64MiB", "16MiB", 15);
const LARGE_ZONES: Case = (1 << 20, "64MiB", "40MiB", 40);

#[test]
fn space_that_removals_free_is_used_again_and_again() {
    rounds(SMALL_ZONES, Ends::Never, first_half, false);
    rounds(SMALL_ZONES, Ends::Never, all, false);
    rounds(SMALL_FILES, Ends::Never, every_other, false);
    rounds(ZONES, Ends::Never, every_other, false);
    rounds(ZONES, Ends::Never, first_half, false);
    rounds(LARGE_ZONES, Ends::Never, every_other, false);
}

#[test]
fn operations_without_data_leave_removals_what_they_need() {
    rounds(SMALL_ZONES, Ends::Never, every_other, true);
    rounds(SMALL_FILES, Ends::Never, every_other, true);
    rounds(ZONES, Ends::Never, first_half, true);
}

#[test]
fn space_that_removals_freed_is_found_after_a_crash() {
    rounds(SMALL_ZONES, Ends::Killed, every_other, false);
    rounds(SMALL_FILES, Ends::Killed, first_half, true);
    rounds(ZONES, Ends::Killed, every_other, true);
}

#[test]
fn space_that_removals_freed_is_found_by_the_next_mount() {
    rounds(SMALL_ZONES, Ends::Closed, every_other, false);
    rounds(SMALL_FILES, Ends::Closed, first_half, false);
    rounds(ZONES, Ends::Closed, every_other, true);
}

/// Returns a file system whose zones have no space after `rules on`, and have some again after `rules off`.
async fn without_space() -> (Arc<FaultZonesPart>, FileSystem) {
    let zones = zones_of(thin("32MiB", "32MiB").await, Some(128 << 10)).await;
    let rules = parse_rules(&["append error=ENOSPC".to_owned()], stack::Contract::Zones).unwrap();
    let zones = Arc::new(FaultZonesPart::new(zones, rules, 1));
    zones.message("rules off").await.unwrap();
    let files = FileSystem::format(zones.clone(), Properties::default(), &Settings::default()).await.unwrap();
    (zones, files)
}

#[test]
fn files_that_lose_their_last_name_while_there_is_no_space_are_removed_once_there_is() {
    let main = || async {
        let (zones, files) = without_space().await;
        let free = files.statistics().await.unwrap().free;
        let mut open = Vec::new();
        for path in ["/one", "/other"] {
            let file = files.create(path).await.unwrap();
            file.write_at(0, contents(1, 300)).await.unwrap();
            files.unlink(path).await.unwrap();
            open.push(file);
        }
        files.sync().await.unwrap();
        zones.message("rules on").await.unwrap();
        // The record of this operation waits for space.
        files.make_directory("/directory").await.unwrap();
        runtime::sleep(Duration::from_secs(2)).await;
        assert!(matches!(files.make_directory("/refused").await, Err(Error::NoSpace(_))));
        drop(open.pop());
        runtime::sleep(Duration::from_secs(2)).await;
        zones.message("rules off").await.unwrap();
        runtime::sleep(PATIENCE).await;
        drop(open.pop());
        runtime::sleep(PATIENCE).await;
        files.sync().await.unwrap();
        let found = files.statistics().await.unwrap();
        assert_eq!(found.inodes, 2, "the root and a directory");
        assert!(found.free + 10 > free, "{} of {free} blocks are free", found.free);
        files.close().await.unwrap();
    };
    let world = Simulation { trace_lines: 0, ..Simulation::new(1) };
    runtime::simulate(world, main).unwrap();
}

#[test]
fn syncs_are_answered_while_there_is_no_space_and_succeed_once_there_is() {
    let main = || async {
        let (zones, files) = without_space().await;
        let file = files.create("/file").await.unwrap();
        file.sync().await.unwrap();
        zones.message("rules on").await.unwrap();
        files.make_directory("/directory").await.unwrap();
        file.truncate(1 << 20).await.unwrap();
        for _ in 0..2 {
            let syncs = (
                runtime::timeout(PATIENCE, files.sync()).await,
                runtime::timeout(PATIENCE, file.sync()).await,
            );
            assert!(matches!(syncs, (Ok(Err(Error::NoSpace(_))), Ok(Err(Error::NoSpace(_))))), "{syncs:?}");
        }
        zones.message("rules off").await.unwrap();
        runtime::sleep(PATIENCE).await;
        file.sync().await.unwrap();
        files.close().await.unwrap();
        let files = FileSystem::open(zones, &Settings::default()).await.unwrap();
        assert!(files.attributes("/directory").await.unwrap().is_directory());
        assert_eq!(files.attributes("/file").await.unwrap().size, 1 << 20);
        files.close().await.unwrap();
    };
    let world = Simulation { trace_lines: 0, ..Simulation::new(1) };
    runtime::simulate(world, main).unwrap();
}

#[test]
fn a_close_waits_for_space_and_ends_once_there_is() {
    let main = || async {
        let (zones, files) = without_space().await;
        zones.message("rules on").await.unwrap();
        files.make_directory("/directory").await.unwrap();
        let its = files.clone();
        let closing = runtime::spawn(async move { its.close().await });
        runtime::sleep(PATIENCE).await;
        assert!(files.is_waiting_for_space());
        zones.message("rules off").await.unwrap();
        closing.await.unwrap();
        assert!(!files.is_waiting_for_space());
        let files = FileSystem::open(zones, &Settings::default()).await.unwrap();
        assert!(files.attributes("/directory").await.unwrap().is_directory());
        files.close().await.unwrap();
    };
    let world = Simulation { trace_lines: 0, most_events: 300_000, ..Simulation::new(1) };
    runtime::simulate(world, main).unwrap();
}

/// Appends fail for minutes although their space is reserved, as on a copy-on-write host. Each attempt to
/// write the record uses up a zone.
#[test]
fn zones_are_left_when_space_comes_back_after_minutes() {
    let main = || async {
        let (zones, files) = without_space().await;
        let file = files.create("/file").await.unwrap();
        file.sync().await.unwrap();
        for round in 1..4 {
            zones.message("rules on").await.unwrap();
            file.truncate(round << 20).await.unwrap();
            runtime::sleep(Duration::from_secs(300)).await;
            assert!(matches!(file.sync().await, Err(Error::NoSpace(_))));
            zones.message("rules off").await.unwrap();
            // Longer than the longest time between attempts.
            runtime::sleep(Duration::from_secs(40)).await;
            file.sync().await.unwrap();
        }
        files.close().await.unwrap();
    };
    let world = Simulation { trace_lines: 0, most_events: 3_000_000, ..Simulation::new(1) };
    runtime::simulate(world, main).unwrap();
}

/// Creates the directories /0 to /7. Returns the number of one that is on another shard than /0.
async fn directories_on_two_shards(files: &FileSystem) -> usize {
    let mut shards = Vec::new();
    for number in 0..8 {
        let path = format!("/{number}");
        files.make_directory(&path).await.unwrap();
        shards.push(files.directory(&path).await.unwrap().shard());
    }
    shards.iter().position(|shard| *shard != shards[0]).expect("a directory of the other shard")
}

/// The record of a rename to another shard waits for space. The rename is answered with an error, and may
/// take effect later, but it must not undo later operations.
#[test]
fn operations_on_several_shards_that_wait_for_space_keep_their_inodes() {
    let main = || async {
        let (zones, files) = without_space().await;
        let other = directories_on_two_shards(&files).await;
        files.rename("/0", "/a", Renaming::Replace).await.unwrap();
        files.rename(&format!("/{other}"), "/b", Renaming::Replace).await.unwrap();
        files.create("/a/file").await.unwrap();
        files.sync().await.unwrap();
        zones.message("rules on").await.unwrap();
        let renamed = files.rename("/a/file", "/b/file", Renaming::Replace).await;
        assert!(matches!(renamed, Err(Error::NoSpace(_))), "{renamed:?}");
        assert!(matches!(files.create("/b/early").await, Err(Error::NoSpace(_))));
        zones.message("rules off").await.unwrap();
        runtime::sleep(Duration::from_secs(40)).await;
        files.create("/b/late").await.unwrap();
        files.unlink("/b/late").await.unwrap();
        files.create("/a/late").await.unwrap();
        files.sync().await.unwrap();
        let listed = async |files: &FileSystem| {
            let mut names = Vec::new();
            for path in ["/a", "/b"] {
                for entry in files.read_directory(path).await.unwrap() {
                    names.push(format!("{path}/{}", String::from_utf8(entry.name.to_vec()).unwrap()));
                }
            }
            names.sort_unstable();
            names
        };
        let before = listed(&files).await;
        assert!(before.contains(&"/a/late".to_owned()) && before.len() == 2, "{before:?}");
        files.close().await.unwrap();
        let files = FileSystem::open(zones, &Settings::default()).await.unwrap();
        assert_eq!(listed(&files).await, before);
        files.close().await.unwrap();
    };
    let world = Simulation { trace_lines: 0, most_events: 3_000_000, ..Simulation::new(1) }.with_shards(2);
    runtime::simulate(world, main).unwrap();
}

/// Taking a snapshot blocks new operations until those on several shards have ended. One of these that waits
/// for space ends once a removal frees some.
#[test]
fn a_snapshot_does_not_wait_for_an_operation_that_waits_for_space() {
    let main = |begins_after: u64| async move {
        let (zones, files) = without_space().await;
        let other = directories_on_two_shards(&files).await;
        files.create("/0/file").await.unwrap();
        files.sync().await.unwrap();
        zones.message("rules on").await.unwrap();
        let renaming = runtime::spawn({
            let files = files.clone();
            async move { files.rename("/0/file", &format!("/{other}/file"), Renaming::Replace).await }
        });
        // The operation is in progress, and its record isn't written yet.
        for _ in 0..begins_after {
            runtime::yield_now().await;
        }
        let taken = runtime::timeout(PATIENCE, files.create_snapshot("s")).await;
        assert!(matches!(taken, Ok(Err(Error::NoSpace(_)))), "after {begins_after} turns: {taken:?}");
        assert!(matches!(renaming.await, Err(Error::NoSpace(_))));
        zones.message("rules off").await.unwrap();
        runtime::sleep(Duration::from_secs(40)).await;
        files.create_snapshot("s").await.unwrap();
        assert_eq!(files.snapshots().await.unwrap().len(), 1);
        files.close().await.unwrap();
    };
    for begins_after in 1..12 {
        let world =
            Simulation { trace_lines: 0, most_events: 3_000_000, ..Simulation::new(1) }.with_shards(2);
        runtime::simulate(world, move || main(begins_after)).unwrap();
    }
}
