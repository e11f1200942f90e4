//! Salvage of damaged images: data that doesn't depend on the damaged part is read as it was written, other
//! data is an error or listed as lost, and the medium doesn't change.

use crate::world::{BASE, DISK, Files, INODE_GROUPS, Setup, empty, zones};
use block::{Data, EraseGuarantee, Error, Part, Result, ZoneBlock, ZoneIndex, ZonesPart};
use fs::format::{OWNER, State};
use fs::tree::{Load, PAGE, Released};
use fs::{FileSystem, Goal, LostParts, OpenOptions, Settings};
use logkit::recovery::Opening;
use logkit::scan::Found;
use runtime::Simulation;
use std::collections::BTreeSet;
use std::time::Duration;

const SETUP: Setup = Setup { disk: 12 << 20, ..BASE };
/// Number of files in the newest checkpoint, and of files that only later records have.
const OLD: usize = 400;
const NEW: usize = 20;
const BYTES: usize = 8192;

fn path(number: usize) -> String {
    format!("/d{}/a file with number {number}", number % 8)
}

fn contents(number: usize) -> Vec<u8> {
    let word = (number as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes();
    word.iter().copied().cycle().take(BYTES).collect()
}

fn world(files: Files) -> Simulation {
    Simulation { trace_lines: 0, ..Simulation::new(1) }.with_files(files)
}

async fn write(files: &FileSystem, number: usize) {
    let file = files.create(&path(number)).await.unwrap();
    file.write_at(0, Data::copy_of(&contents(number))).await.unwrap();
}

/// Returns an image whose records are known to be durable, except for the last ones of a killed file system.
fn image(is_closed: bool) -> Files {
    let main = move || async move {
        let files = SETUP.format().await.unwrap();
        for number in 0..8 {
            files.make_directory(&format!("/d{number}")).await.unwrap();
        }
        for number in 0..OLD / 2 {
            write(&files, number).await;
        }
        files.take_checkpoint().await.unwrap();
        for number in OLD / 2..OLD {
            write(&files, number).await;
        }
        files.take_checkpoint().await.unwrap();
        for number in OLD..OLD + NEW {
            write(&files, number).await;
            files.sync().await.unwrap();
        }
        runtime::sleep(Duration::from_secs(5)).await;
        if is_closed {
            files.close().await.unwrap();
        }
        runtime::power_cut()
    };
    runtime::simulate(world(empty(SETUP.disk)), main).unwrap().value
}

fn disk(files: &mut Files) -> &mut Vec<u8> {
    &mut files.iter_mut().find(|(path, _)| path.as_os_str() == DISK).unwrap().1
}

/// Offset on the disk of a block of a zone, by the superblock.
fn byte_of(disk: &[u8], zone: u32, position: u32) -> usize {
    let number = |at: usize| u64::from_le_bytes(disk[at..at + 8].try_into().unwrap()) as usize;
    number(48) + zone as usize * number(40) + position as usize * 4096
}

/// Locations of structures on an image.
#[derive(Debug)]
struct Places {
    root_zone: u32,
    directory: ZoneBlock,
    /// Pages of the largest tree below its root, and that root.
    leaves: Vec<ZoneBlock>,
    tree_root: ZoneBlock,
}

fn places(files: &Files) -> Places {
    let main = || async {
        let handle = zones(None).await.unwrap().open().await.unwrap();
        let newest = logkit::root::find(&*handle).await.unwrap();
        let opening: Opening<Found> = logkit::recovery::open(&*handle, OWNER, Goal::Serve).await.unwrap();
        let state = State::decode(&opening.own).unwrap();
        let stored = state.groups.iter().map(|it| it.tree).max_by_key(|tree| tree.items).unwrap();
        assert!(stored.level == 1, "the tree has leaves below its root");
        let tree_root = stored.root.unwrap();
        let mut load = Load::new(&stored, &Released::new()).unwrap();
        let layout = opening.layout;
        let at = layout.address(tree_root.zone.0, tree_root.block);
        let (outcome, mut page) = handle.read(at, block::Buffer::new(PAGE)).await;
        outcome.unwrap();
        let page: &mut [u8; PAGE] = page.filled_mut().try_into().unwrap();
        // The checksum, which is verified elsewhere.
        page[28..32].fill(0);
        load.supply(0, page).unwrap();
        let extent = &newest.root.directory[0];
        Places {
            root_zone: newest.zone,
            directory: ZoneBlock::new(extent.zone, extent.position),
            leaves: load.wanted().to_vec(),
            tree_root,
        }
    };
    runtime::simulate(world(files.clone()), main).unwrap().value
}

/// Result of reading a file system: numbers of intact files and of files with errors, and the listed losses.
#[derive(Debug)]
struct Shows {
    right: BTreeSet<usize>,
    failed: BTreeSet<usize>,
    lost: LostParts,
    /// Number of files in `lost+found`, each with the contents of some file.
    found: usize,
}

fn settings(goal: Goal) -> Settings {
    Settings { goal, ..SETUP.settings() }
}

/// Opens an image and reads everything. Fails the test if a file has contents that weren't written.
fn show(files: &Files, goal: Goal) -> Result<Shows> {
    let before = files.clone();
    let main = move || async move {
        let options = zones::on_device::Options { read_only: goal == Goal::Salvage, ..Default::default() };
        let zones = crate::world::zones_with(options).await?;
        let opened = FileSystem::open(zones, &settings(goal)).await;
        let files = opened?;
        let (mut right, mut failed) = (BTreeSet::new(), BTreeSet::new());
        for number in 0..OLD + NEW {
            let data = match files.open_file(&path(number), OpenOptions::default()).await {
                Ok(file) => file.read_at(0, BYTES).await.map(|data| data.to_data().to_vec()),
                Err(error) => Err(error),
            };
            match data {
                // The creation has a record before that of the data, which may be lost.
                Ok(data) if data.is_empty() && number >= OLD => _ = failed.insert(number),
                Ok(data) => {
                    assert!(data == contents(number), "file {number} has contents that aren't its own");
                    right.insert(number);
                }
                Err(Error::Invalid(detail)) => panic!("file {number}: unexpected invalid request: {detail}"),
                Err(_) => _ = failed.insert(number),
            }
        }
        let mut found = 0;
        for entry in files.read_directory("/lost+found").await.unwrap_or_default() {
            let name = String::from_utf8(entry.name).unwrap();
            let Ok(file) = files.open_file(&format!("/lost+found/{name}"), OpenOptions::default()).await
            else {
                continue;
            };
            if let Ok(data) = file.read_at(0, BYTES).await {
                let data = data.to_data();
                assert!(
                    data.is_empty() || (0..OLD + NEW).any(|number| contents(number) == data[..]),
                    "{name}"
                );
                found += usize::from(!data.is_empty());
            }
        }
        let lost = files.lost().await?;
        if goal == Goal::Salvage {
            let refused = files.create("/new").await;
            assert!(matches!(refused, Err(Error::ReadOnly(_))), "{refused:?}");
            let refused = files.unlink(&path(0)).await;
            assert!(
                matches!(refused, Err(Error::ReadOnly(_) | Error::NotFound(_) | Error::Os(..))),
                "{refused:?}"
            );
            runtime::sleep(Duration::from_secs(10)).await;
            files.sync().await?;
        }
        files.close().await?;
        Ok((Shows { right, failed, lost, found }, runtime::power_cut()))
    };
    let outcome = runtime::simulate(world(files.clone()), main).unwrap().value;
    outcome.map(|(shows, after)| {
        if goal == Goal::Salvage {
            assert!(after == before, "the salvage has changed the medium");
        }
        shows
    })
}

/// Salvages an image, and checks that at least `least` files are intact.
fn salvage(what: &str, files: &Files, least: usize) -> Shows {
    let shows = show(files, Goal::Salvage).unwrap_or_else(|error| panic!("{what}: {error}"));
    println!(
        "{what}: {} right, {} failed, {} in lost+found; {} lost: {:?}",
        shows.right.len(),
        shows.failed.len(),
        shows.found,
        shows.lost.count,
        shows.lost.lines.iter().take(3).collect::<Vec<_>>()
    );
    assert!(shows.right.len() >= least, "{what}: {} files are right: {:?}", shows.right.len(), shows.lost);
    assert!(shows.failed.is_empty() || shows.lost.count > 0 || least < OLD, "{what}: no loss is listed");
    shows
}

/// Inodes of the files, and those of their directories.
fn inodes(files: &Files) -> Vec<(u64, u64)> {
    let main = || async {
        let files = SETUP.open().await.unwrap();
        let mut directories = std::collections::BTreeMap::new();
        for entry in files.read_directory("/").await.unwrap() {
            directories.insert(String::from_utf8(entry.name).unwrap(), entry.inode);
        }
        let mut inodes = Vec::new();
        for number in 0..OLD + NEW {
            let file = files.open_file(&path(number), OpenOptions::default()).await.unwrap();
            inodes.push((file.inode(), directories[&format!("d{}", number % 8)]));
        }
        files.close().await.unwrap();
        inodes
    };
    runtime::simulate(world(files.clone()), main).unwrap().value
}

/// Range of inodes that a line lists as lost: the first and last number.
fn told(line: &str) -> Option<(u64, u64)> {
    let number = |text: &str| text.split([' ', ':', ',']).next().and_then(|word| word.parse().ok());
    match line.split_once("metadata of inodes ") {
        Some((_, range)) => {
            let (from, to) = range.split_once(" to ")?;
            Some((number(from)?, to.strip_prefix("inode ").and_then(number).unwrap_or(u64::MAX)))
        }
        None => {
            let inode = number(line.split_once("inode ")?.1)?;
            Some((inode, inode))
        }
    }
}

/// Checks that each unreadable file is listed with its inode or that of its directory.
fn check_told(what: &str, shows: &Shows, inodes: &[(u64, u64)]) {
    let told: Vec<(u64, u64)> = shows.lost.lines.iter().filter_map(|line| told(line)).collect();
    for number in &shows.failed {
        let (inode, directory) = inodes[*number];
        let is_told = |it: u64| told.iter().any(|(from, to)| (*from..=*to).contains(&it));
        let path = path(*number);
        assert!(is_told(inode) || is_told(directory), "{what}: {path}: not listed: {:?}", shows.lost.lines);
    }
}

fn is_refused(what: &str, files: &Files) {
    let error = show(files, Goal::Serve).err().unwrap_or_else(|| panic!("{what}: it is mounted"));
    assert!(matches!(error, Error::Corrupt(_) | Error::Io(_)), "{what}: {error}");
}

#[test]
fn an_undamaged_image_is_salvaged_whole() {
    for is_closed in [true, false] {
        let files = image(is_closed);
        let shows = salvage("undamaged", &files, OLD + NEW);
        assert_eq!((shows.lost, shows.found), (LostParts::default(), 0), "closed: {is_closed}");
    }
}

#[test]
fn a_damaged_checkpoint_costs_what_followed_the_one_before() {
    let files = image(false);
    let places = places(&files);
    let mut damaged = files.clone();
    let bytes = disk(&mut damaged);
    let at = byte_of(bytes, places.directory.zone.0, places.directory.block);
    bytes[at + 20] ^= 1;
    is_refused("directory", &damaged);
    // The records after the previous checkpoint still exist.
    assert_eq!(salvage("directory", &damaged, OLD + NEW).lost.count, 1);

    let mut damaged = files;
    let bytes = disk(&mut damaged);
    let zone = byte_of(bytes, places.root_zone, 0)..byte_of(bytes, places.root_zone + 1, 0);
    let mut newest =
        zone.clone().step_by(512).filter(|at| bytes[*at..at + 512].iter().any(|byte| *byte != 0));
    let newest = newest.next_back().unwrap();
    let byte = (newest..newest + 512).find(|at| bytes[*at] != 0).unwrap();
    bytes[byte] ^= 1;
    salvage("newest root", &damaged, OLD + NEW);
}

#[test]
fn a_damaged_page_of_metadata_costs_its_items() {
    for is_closed in [true, false] {
        let files = image(is_closed);
        let (places, inodes) = (places(&files), inodes(&files));
        for (number, page) in places.leaves.iter().enumerate().step_by(3) {
            let mut damaged = files.clone();
            let bytes = disk(&mut damaged);
            let at = byte_of(bytes, page.zone.0, page.block);
            bytes[at + 200] ^= 1;
            let what = format!("page {number} of {}", places.leaves.len());
            is_refused(&what, &damaged);
            let shows = salvage(&what, &damaged, OLD / 2);
            assert!(shows.lost.count > 0, "{what}");
            check_told(&what, &shows, &inodes);
        }
        let mut damaged = files.clone();
        let bytes = disk(&mut damaged);
        let at = byte_of(bytes, places.tree_root.zone.0, places.tree_root.block);
        bytes[at + 200] ^= 1;
        is_refused("root of a tree", &damaged);
        let shows = salvage("root of a tree", &damaged, OLD / usize::try_from(INODE_GROUPS).unwrap());
        assert!(shows.lost.count > 0);
        check_told("root of a tree", &shows, &inodes);
    }
}

#[test]
fn a_damaged_record_costs_what_follows_it() {
    let mut damaged = image(false);
    let bytes = disk(&mut damaged);
    // Not in a sealed zone: its summary has the contents of the header.
    let last = OLD + NEW - 2;
    let wanted = contents(last);
    let data = bytes.chunks(4096).position(|block| *block == wanted[..4096]).unwrap();
    bytes[(data - 1) * 4096 + 40] ^= 1;
    is_refused("header", &damaged);
    let shows = salvage("header", &damaged, last);
    assert_eq!((shows.failed, shows.lost.count), ((last..OLD + NEW).collect(), 1));
}

#[test]
fn a_zone_that_is_offline_or_was_reset_costs_what_is_in_it() {
    let files = image(false);
    let (places, inodes) = (places(&files), inodes(&files));
    let check = |what: &str, shows: &Shows| match what {
        // The zone has only data of files: exactly these files are listed.
        "data" => {
            check_told(what, shows, &inodes);
            assert_eq!(shows.lost.count, shows.failed.len() as u64, "{:?}", shows.lost);
        }
        "pages" => check_told(what, shows, &inodes),
        // The changes of the damaged record and later ones are listed as one loss; blocks in the zone that
        // the checkpoint refers to are listed by inode.
        _ => {
            let failed = shows.failed.iter().copied().filter(|number| *number < OLD).collect();
            check_told(
                what,
                &Shows { failed, right: BTreeSet::new(), lost: shows.lost.clone(), found: 0 },
                &inodes,
            );
            assert!(shows.lost.lines.iter().any(|line| line.starts_with("record ")), "{:?}", shows.lost);
        }
    };
    let zone_of = |number: usize| {
        let mut files = files.clone();
        let bytes = disk(&mut files);
        let data = bytes.chunks(4096).position(|block| *block == contents(number)[..4096]).unwrap() * 4096;
        ((data - byte_of(bytes, 0, 0)) / (byte_of(bytes, 1, 0) - byte_of(bytes, 0, 0))) as u32
    };
    let (data, pages, records) = (zone_of(0), places.tree_root.zone.0, zone_of(OLD + NEW - 1));
    for (what, zone, least) in [("data", data, OLD / 2), ("pages", pages, 0), ("records", records, OLD / 2)] {
        let mut damaged = files.clone();
        // An invalid header of a zone.
        disk(&mut damaged)[(2 + zone as usize) * 4096 + 40] ^= 1;
        let shows = salvage(&format!("offline: {what}"), &damaged, least);
        assert!(!shows.failed.is_empty(), "{what}");
        check(what, &shows);

        let main = move || async move {
            let zones = zones(None).await.unwrap();
            let handle = zones.open().await.unwrap();
            handle.reset(ZoneIndex(zone), EraseGuarantee::None).await.unwrap();
            zones.close().await.unwrap();
            runtime::power_cut()
        };
        let reset = runtime::simulate(world(files.clone()), main).unwrap().value;
        let shows = salvage(&format!("reset: {what}"), &reset, least);
        assert!(!shows.failed.is_empty() && shows.lost.count > 0, "{what}");
        check(what, &shows);
    }
}
