//! Salvage of a damaged log: data that doesn't depend on the damage is read, reads of other data fail and
//! never return wrong data, and the medium is unchanged.

use crate::damage::{CHECKPOINT, ROOT, Record, flipped, newest, records};
use crate::life::{BLOCK, Version, Volume, copy_of, disk, raw, run, small, stamped, version_of};
use block::{
    BlockIndex, BlockRange, Buffer, DevicePart, Durability, EraseGuarantee, Error, Part, ZoneIndex, ZonesPart,
};
use log::kind::{MapPlace, Options};
use runtime::Random;
use serde_json::Value;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

const PAGE: u64 = log::map::PAGE_BLOCKS;
const VOLUME: u64 = 3 * PAGE - 100;
/// Blocks that are written, in three pages.
const WRITTEN: [std::ops::Range<u64>; 3] = [0..60, PAGE..PAGE + 60, 2 * PAGE..2 * PAGE + 60];
/// Blocks that are written after the checkpoint, each by a record of its own.
const TAIL: [u64; 9] =
    [10, PAGE + 200, 2 * PAGE + 5, 11, PAGE + 201, 2 * PAGE + 6, 12, PAGE + 202, 2 * PAGE + 7];

/// Blocks that are read: those that are written, and neighbours.
fn looked_at() -> impl Iterator<Item = u64> {
    (0..3).flat_map(|page| (0..80).chain(195..210).map(move |block| page * PAGE + block))
}

fn options() -> Options {
    Options { size: Some(VOLUME * BLOCK as u64), checkpoint_after: 1 << 40, ..small() }
}

fn salvage() -> Options {
    Options { salvage: true, ..small() }
}

/// Versions of blocks; all others are zeros.
type Model = BTreeMap<u64, Version>;

/// A log with a snapshot and records after its checkpoint, whose process dies or closes it there.
#[derive(Clone)]
struct World {
    bytes: Vec<u8>,
    snapshot: Model,
    /// The volume at the checkpoint.
    before: Model,
    /// The volume at the end.
    head: Model,
}

fn world(closes: bool) -> World {
    let disk = disk(24);
    run({
        let disk = disk.clone();
        move || async move {
            let volume = Volume::make(&disk, &options()).await;
            let mut model = Model::new();
            let mut version = 0;
            for range in WRITTEN {
                for block in range {
                    version += 1;
                    volume.write(block, 1, version).await;
                    model.insert(block, version);
                }
            }
            volume.part.message("snapshot create old").await.expect("a snapshot");
            let snapshot = model.clone();
            for block in 0..20 {
                version += 1;
                volume.write(block, 1, version).await;
                model.insert(block, version);
            }
            // Further checkpoints, so that directories are in a later zone than the pages.
            for _ in 0..4 {
                volume.part.message("checkpoint").await.expect("a checkpoint");
            }
            volume.close().await;
            let before = model.clone();
            let volume = Volume::open(&disk, &options()).await;
            for block in TAIL {
                version += 1;
                volume.write(block, 1, version).await;
                volume.flush().await;
                model.insert(block, version);
            }
            if closes {
                volume.close().await;
            }
            World { bytes: raw(&disk).await, snapshot, before, head: model }
        }
    })
}

impl World {
    /// First byte of a zone, by the superblock of the zones.
    fn zone_start(&self, zone: u32) -> usize {
        let number = |at: usize| u64::from_le_bytes(self.bytes[at..at + 8].try_into().unwrap());
        (number(48) + u64::from(zone) * number(40)) as usize
    }

    fn zone_of(&self, offset: usize) -> u32 {
        (0..).take_while(|zone| self.zone_start(*zone) <= offset).last().unwrap()
    }

    /// Offset of a block's contents, which must be on the disk only once.
    fn data_at(&self, block: u64, version: Version) -> usize {
        let contents = stamped(block, 1, version);
        let mut all = self.bytes.chunks(BLOCK).enumerate().filter(|(_, found)| **found == *contents);
        let (at, _) = all.next().unwrap();
        assert!(all.next().is_none(), "block {block} is there twice");
        at * BLOCK
    }

    /// Offset of the newest copy of a page that was written for this version.
    fn page_at(&self, version: u64, page: u64) -> usize {
        let mut found = None;
        let all = records(&self.bytes).into_iter().filter(|record| record.stream == CHECKPOINT);
        let zones: std::collections::BTreeSet<u32> =
            all.map(|record| self.zone_of(record.block * BLOCK)).collect();
        for zone in zones {
            let dump = self.dump(zone);
            for record in dump["records"].as_array().unwrap() {
                let entries = record["entries"].as_array().into_iter().flatten().enumerate();
                for (number, _) in
                    entries.filter(|(_, entry)| entry["page"] == page && entry["version"] == version)
                {
                    let at = record["block"].as_u64().unwrap() as usize + 1 + number;
                    found =
                        found.max(Some((record["sequence"].as_u64(), self.zone_start(zone) + at * BLOCK)));
                }
            }
        }
        found.unwrap_or_else(|| panic!("page {page} of version {version}")).1
    }

    fn dump(&self, zone: u32) -> Value {
        let bytes = self.bytes.clone();
        run(move || async move {
            let zones = log::check::open_zones(copy_of(&bytes).await).await.unwrap();
            log::dump::dump(zones, None, Some(block::ZoneIndex(zone))).await.unwrap()
        })
    }

    /// Bytes of the disk with the header of a zone damaged.
    fn offline(&self, zone: u32) -> Vec<u8> {
        flipped(&self.bytes, (2 + zone as usize) * BLOCK + 40)
    }

    /// Bytes of the disk with zeros for the header of a zone.
    fn without_header(&self, zone: u32) -> Vec<u8> {
        let (mut bytes, header) = (self.bytes.clone(), (2 + zone as usize) * BLOCK);
        bytes[header..header + BLOCK].fill(0);
        bytes
    }

    /// Bytes of the disk after a zone was reset and, if `is_filled`, filled with valid data of other blocks.
    fn reset(&self, zone: u32, is_filled: bool) -> Vec<u8> {
        let (bytes, first) = (self.bytes.clone(), self.data_at(2 * PAGE + 1, self.snapshot[&(2 * PAGE + 1)]));
        let start = self.zone_start(self.zone_of(first));
        run(move || async move {
            let disk = copy_of(&bytes).await;
            let options = zones::on_device::Options::default();
            let part = zones::OnDevice::open(disk.clone(), options).await.unwrap();
            let zones = part.open().await.unwrap();
            zones.reset(ZoneIndex(zone), EraseGuarantee::None).await.unwrap();
            if is_filled {
                let other = Buffer::copy_of(&bytes[start..start + 12 * BLOCK]);
                zones.append(ZoneIndex(zone), other.into()).await.unwrap();
                zones.flush(&[ZoneIndex(zone)]).await.unwrap();
            }
            drop(zones);
            part.close().await.unwrap();
            raw(&disk).await
        })
    }

    /// Records of users after the checkpoint, in order.
    fn tail(&self) -> Vec<Record> {
        let mut all: Vec<Record> =
            records(&self.bytes).into_iter().filter(|record| record.stream == 0).collect();
        all.sort_by_key(|record| record.sequence);
        all.retain(|record| record.data_blocks > 0);
        all.split_off(all.len() - TAIL.len())
    }
}

/// Contents of a salvaged log.
struct Salvaged {
    head: BTreeMap<u64, Result<Version, Error>>,
    snapshot: BTreeMap<u64, Result<Version, Error>>,
    lost: Vec<String>,
    count: u64,
}

async fn read_all(part: &dyn DevicePart) -> BTreeMap<u64, Result<Version, Error>> {
    let device = part.open().await.expect("a handle");
    let mut found = BTreeMap::new();
    for block in looked_at().filter(|block| *block < part.geometry().blocks.0) {
        let (outcome, buffer) = device.read(BlockIndex(block), Buffer::new(BLOCK)).await;
        found.insert(block, outcome.map(|()| version_of(block, buffer.filled()).expect("the block")));
    }
    // A read that also covers readable neighbours fails as well.
    let (outcome, _) = device.read(BlockIndex(0), Buffer::new(64 * BLOCK)).await;
    assert_eq!(outcome.is_err(), found.range(0..64).any(|(_, found)| found.is_err()), "one large read");
    found
}

/// Salvages a disk with these bytes, and checks that no request changes it.
fn salvaged(bytes: &[u8], options: &Options) -> Result<Salvaged, Error> {
    let (bytes, options) = (bytes.to_vec(), options.clone());
    run(move || async move {
        let disk = copy_of(&bytes).await;
        let volume = match Volume::try_open(&disk, &options).await {
            Ok(volume) => volume,
            Err(error) => {
                assert!(raw(&disk).await == bytes, "a refusal has written something");
                return Err(error);
            }
        };
        assert!(volume.device.geometry().read_only && !volume.device.geometry().volatile_cache);
        let head = read_all(&*volume.part).await;
        let snapshot = match volume.part.version("old").await {
            Ok(part) => {
                let found = read_all(&*part).await;
                part.close().await.unwrap();
                found
            }
            Err(error) => {
                assert!(matches!(error, Error::NotFound(_)), "{error}");
                BTreeMap::new()
            }
        };
        let data = stamped(1, 1, 1).into();
        let write = volume.device.write(BlockIndex(1), data, Durability::Durable).await;
        let discard = volume.device.discard(BlockRange::new(0, 10)).await;
        let mut refused = vec![write.unwrap_err(), discard.unwrap_err()];
        for message in ["snapshot create new", "snapshot delete old", "resize 1TiB", "checkpoint"] {
            refused.push(volume.part.message(message).await.unwrap_err());
        }
        assert!(refused.iter().all(|error| matches!(error, Error::ReadOnly(_))), "{refused:?}");
        volume.part.message("snapshot list").await.expect("a list");
        volume.device.flush().await.unwrap();
        let status = volume.part.status().await;
        let lines = status["lost"].as_array().unwrap();
        let lost = lines.iter().map(|line| line.as_str().unwrap().to_owned()).collect();
        let count = status["lost_count"].as_u64().unwrap();
        volume.close().await;
        assert!(raw(&disk).await == bytes, "salvaging has written something");
        Ok(Salvaged { head, snapshot, lost, count })
    })
}

/// Expected result of reading a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Whole,
    Unreadable,
    /// State at the checkpoint.
    Old,
}

/// A kind of damage, with the expected losses.
struct Case<'a> {
    name: &'a str,
    bytes: Vec<u8>,
    /// Error of a normal open; `None` if the log opens.
    refusal: Option<&'a str>,
    /// Reported losses.
    lost: &'a [&'a str],
    head: Box<dyn Fn(u64) -> Fate + 'a>,
    snapshot: Box<dyn Fn(u64) -> Fate + 'a>,
}

impl Case<'_> {
    fn check(&self, world: &World) {
        let name = self.name;
        let bytes = self.bytes.clone();
        let opened = run(move || async move {
            let disk = copy_of(&bytes).await;
            let error = Volume::try_open(&disk, &small()).await.map(drop).err();
            assert!(error.is_none() || raw(&disk).await == bytes, "a refusal has written something");
            error
        });
        match (&opened, self.refusal) {
            (None, None) => {}
            (Some(error), Some(words)) => {
                let text = error.to_string();
                assert!(text.contains(words) && text.contains("salvage = true"), "{name}: {text}");
            }
            _ => panic!("{name}: opened normally: {opened:?}"),
        }
        let found = salvaged(&self.bytes, &salvage()).unwrap_or_else(|error| panic!("{name}: {error}"));
        println!("{name}: {} lost: {:#?}", found.count, found.lost);
        assert_eq!(found.count == 0, self.lost.is_empty(), "{name}: {:?}", found.lost);
        for words in self.lost {
            assert!(found.lost.iter().any(|line| line.contains(words)), "{name}: {words}: {:#?}", found.lost);
        }
        let old = (&found.snapshot, &world.snapshot, &world.snapshot, &self.snapshot);
        let now = (&found.head, &world.head, &world.before, &self.head);
        for (title, (found, whole, before, fate)) in [("snapshot", old), ("volume", now)] {
            assert!(!found.is_empty());
            for (block, found) in found {
                let is_right = match fate(*block) {
                    Fate::Whole => found.as_ref().ok() == Some(whole.get(block).unwrap_or(&0)),
                    Fate::Old => found.as_ref().ok() == Some(before.get(block).unwrap_or(&0)),
                    Fate::Unreadable => {
                        found.as_ref().is_err_and(|it| matches!(it, Error::Corrupt(_) | Error::Io(_)))
                    }
                };
                assert!(is_right, "{name}: block {block} of the {title}: {found:?}, {:?}", fate(*block));
            }
        }
    }
}

fn whole<'a>() -> Box<dyn Fn(u64) -> Fate + 'a> {
    Box::new(|_| Fate::Whole)
}

/// Blocks of a page are unreadable, except those that records after the checkpoint have written.
fn without_page<'a>(page: u64, with_tail: bool) -> Box<dyn Fn(u64) -> Fate + 'a> {
    Box::new(move |block| match block / PAGE == page && !(with_tail && TAIL.contains(&block)) {
        true => Fate::Unreadable,
        false => Fate::Whole,
    })
}

/// Records with index `from` and later are lost.
fn without_tail<'a>(from: usize) -> Box<dyn Fn(u64) -> Fate + 'a> {
    Box::new(move |block| match TAIL[from..].contains(&block) {
        true => Fate::Old,
        false => Fate::Whole,
    })
}

/// Blocks in a zone are unreadable.
fn without_zone<'a>(world: &'a World, zone: u32, model: &'a Model) -> Box<dyn Fn(u64) -> Fate + 'a> {
    Box::new(move |block| match model.get(&block) {
        Some(version) if world.zone_of(world.data_at(block, *version)) == zone => Fate::Unreadable,
        _ => Fate::Whole,
    })
}

#[test]
fn what_does_not_depend_on_the_damage_is_salvaged() {
    let world = world(false);
    let newest_at = |stream: u8| newest(&world.bytes, stream).block * BLOCK;
    let (page_0_head, page_0_old, page_1) = (world.page_at(1, 0), world.page_at(2, 0), world.page_at(2, 1));
    let page_zone = world.zone_of(page_1);
    assert_eq!(page_zone, world.zone_of(page_0_head), "all pages are in one zone");
    let directory_zone = world.zone_of(newest_at(CHECKPOINT));
    assert_ne!(page_zone, directory_zone);
    let tail = world.tail();
    let tail_zones = tail.iter().map(|record| world.zone_of(record.block * BLOCK)).collect::<Vec<_>>();
    // The last zone with records has no summary yet.
    let (first_zone, last_zone) = (tail_zones[0], tail_zones[8]);
    let last = tail_zones.iter().position(|zone| *zone == last_zone).unwrap();
    assert!(first_zone != last_zone && last > 0 && last < 8, "{tail_zones:?}");
    let data_zone = world.zone_of(world.data_at(PAGE + 1, world.snapshot[&(PAGE + 1)]));
    let root_zone = world.zone_of(newest_at(ROOT));
    assert!(root_zone < 2 && data_zone != page_zone && !tail_zones.contains(&data_zone));
    let case =
        |name, bytes, refusal, lost, head, snapshot| Case { name, bytes, refusal, lost, head, snapshot };
    let cases = [
        case("no damage", world.bytes.clone(), None, &[], whole(), whole()),
        case(
            "a page of the volume",
            flipped(&world.bytes, page_0_head + 9),
            Some("page 0 of a map"),
            &["blocks 0..1024 of the volume: where they lie is unknown"],
            without_page(0, true),
            whole(),
        ),
        case(
            "a page of the snapshot",
            flipped(&world.bytes, page_0_old + 9),
            Some("page 0 of a map"),
            &["blocks 0..1024 of \"old\": where they lie is unknown"],
            whole(),
            without_page(0, false),
        ),
        case(
            "a page of both",
            flipped(&world.bytes, page_1 + 9),
            Some("page 1 of a map"),
            &["blocks 1024..2048 of \"old\": where they lie is unknown"],
            without_page(1, true),
            without_page(1, false),
        ),
        case(
            "a record that had been durable",
            flipped(&world.bytes, tail[last].block * BLOCK + 47),
            Some("of stream 0 is damaged or missing"),
            &["of stream 0 is damaged or missing"],
            without_tail(last),
            whole(),
        ),
        case(
            "data of a record that had been durable",
            flipped(&world.bytes, (tail[last].block + 1) * BLOCK + 47),
            None,
            &["1 data blocks are damaged"],
            Box::new(move |block| if block == TAIL[last] { Fate::Unreadable } else { Fate::Whole }),
            whole(),
        ),
        case(
            "an offline zone with data",
            world.offline(data_zone),
            None,
            &["is offline or was reset"],
            without_zone(&world, data_zone, &world.head),
            without_zone(&world, data_zone, &world.snapshot),
        ),
        case(
            "an offline zone with the last records",
            world.offline(last_zone),
            Some("is offline and may hold records after the newest checkpoint"),
            &["is offline and may hold records after the newest checkpoint"],
            without_tail(last),
            whole(),
        ),
        case(
            "an offline zone with the first records after the checkpoint",
            world.offline(first_zone),
            Some("is offline and may hold records after the newest checkpoint"),
            &["is offline and may hold records after the newest checkpoint"],
            without_tail(0),
            whole(),
        ),
        case(
            "an offline zone with pages",
            world.offline(page_zone),
            Some("reading a page of the newest checkpoint"),
            &["where they lie is unknown: reading a page"],
            Box::new(|block| if TAIL.contains(&block) { Fate::Whole } else { Fate::Unreadable }),
            Box::new(|_| Fate::Unreadable),
        ),
        case(
            "a zone with pages that was reset",
            world.reset(page_zone, false),
            Some("isn't there any more"),
            &["where they lie is unknown"],
            Box::new(|block| if TAIL.contains(&block) { Fate::Whole } else { Fate::Unreadable }),
            Box::new(|_| Fate::Unreadable),
        ),
        case(
            "a zone that was reset",
            world.reset(data_zone, false),
            Some("which is empty"),
            &["which has been reset since"],
            without_zone(&world, data_zone, &world.head),
            without_zone(&world, data_zone, &world.snapshot),
        ),
        case(
            "a zone that was reset and filled again",
            world.reset(data_zone, true),
            Some("was reset since and holds no record of the log"),
            &["which has been reset since"],
            without_zone(&world, data_zone, &world.head),
            without_zone(&world, data_zone, &world.snapshot),
        ),
        case(
            "a root zone without a header",
            world.without_header(root_zone),
            Some("may hold the newest root"),
            &["the newest checkpoint can't be read"],
            without_tail(0),
            whole(),
        ),
        case(
            "an offline root zone",
            world.offline(root_zone),
            Some(""),
            &["the newest checkpoint can't be read"],
            without_tail(0),
            whole(),
        ),
        case(
            "the newest root",
            flipped(&world.bytes, newest_at(ROOT) + 60),
            Some("the newest root that can be read is of epoch 1"),
            &["the newest root that can be read is of epoch 1"],
            without_tail(0),
            whole(),
        ),
        case(
            "the directory",
            flipped(&world.bytes, newest_at(CHECKPOINT) + BLOCK + 60),
            Some("the directory"),
            &["the newest checkpoint can't be read"],
            without_tail(0),
            whole(),
        ),
        case(
            "the other root zone",
            world.offline(1 - root_zone),
            Some(""),
            &["the newest checkpoint can't be read"],
            whole(),
            whole(),
        ),
    ];
    let check = |case: &&Case<'_>| catch_unwind(AssertUnwindSafe(|| case.check(&world))).is_err();
    let failed: Vec<&str> = cases.iter().filter(check).map(|case| case.name).collect();
    assert!(failed.is_empty(), "{failed:?}");

    // The directories of older checkpoints are in that zone as well, or have been overwritten.
    let both = World { bytes: world.offline(page_zone), ..world.clone() };
    let error = salvaged(&both.offline(directory_zone), &salvage()).err().expect("no checkpoint is left");
    assert!(error.to_string().contains("nothing can be salvaged"), "{error}");
}

/// A log with cleaned zones, several checkpoints and a snapshot. Returns its bytes, and the contents of its
/// volume and its snapshot.
fn busy(map: &str, seed: u64, closes: bool) -> (Vec<u8>, Vec<Version>, Vec<Version>) {
    let options = Options {
        zone_size: Some(32 << 10),
        size: Some(256 << 10),
        checkpoint_after: 128 << 10,
        map: map.to_owned(),
        ..small()
    };
    run(move || async move {
        let disk = disk(2);
        let volume = Volume::make(&disk, &options).await;
        let mut random = Random::new(seed);
        let (mut model, mut snapshot) = (vec![0; 64], Vec::new());
        for version in 1..=700 {
            if version == 350 {
                volume.part.message("snapshot create old").await.unwrap();
                snapshot.clone_from(&model);
            }
            let block = random.below(if version < 350 { 64 } else { 20 });
            volume.write(block, 1, version).await;
            model[block as usize] = version;
            if version % 5 == 0 {
                volume.flush().await;
            }
        }
        volume.flush().await;
        assert!(volume.cleaned().0 > 10, "{:?}", volume.cleaned());
        if closes {
            volume.close().await;
        }
        (raw(&disk).await, model, snapshot)
    })
}

#[test]
fn a_log_without_damage_is_salvaged_as_a_whole() {
    for (seed, map) in (1..).zip(log::map::NAMES) {
        println!("seed {seed}, {map}");
        for closes in [false, true] {
            let (bytes, model, old) = busy(map, seed, closes);
            let found = salvaged(&bytes, &Options { map: map.to_owned(), ..salvage() }).unwrap();
            assert_eq!((found.count, found.lost), (0, Vec::new()), "{map}, closed: {closes}");
            for (found, model) in [(&found.head, &model), (&found.snapshot, &old)] {
                assert!(found.len() == 64, "{map}");
                for (block, found) in found {
                    assert_eq!(found.as_ref().ok(), Some(&model[*block as usize]), "{map}, block {block}");
                }
            }
        }
    }
}

/// Flips any byte, or takes any zone offline, or resets it. A block never has another block's contents, and
/// if no loss is reported, all contents are intact. Only the flipped bit may be in data, which reads don't
/// verify.
#[test]
fn nothing_else_is_ever_read() {
    let seed = 9;
    println!("seed {seed}");
    let (mut lossy, mut refused, mut unharmed) = (0, 0, 0);
    for closes in [false, true] {
        let (bytes, model, old) = busy("radix", seed, closes);
        let mut random = Random::new(seed);
        let world =
            World { bytes: bytes.clone(), snapshot: Model::new(), before: Model::new(), head: Model::new() };
        let zones =
            (0..).take_while(|zone| world.zone_start(*zone) + (32 << 10) <= bytes.len()).count() as u32;
        let blocks = (0..bytes.len() / BLOCK)
            .filter(|block| bytes[block * BLOCK..][..BLOCK].iter().any(|byte| *byte != 0));
        let flips: Vec<usize> = blocks.map(|block| block * BLOCK + random.below(128) as usize).collect();
        let flips = flips.into_iter().map(|at| (format!("byte {at}"), Some(at), flipped(&bytes, at)));
        let offline = (0..zones).map(|zone| (format!("zone {zone} offline"), None, world.offline(zone)));
        for (what, at, damaged) in flips.chain(offline) {
            let what = format!("closed: {closes}, {what}");
            let Some(found) = salvaged_bytes(&damaged) else {
                refused += 1;
                continue;
            };
            let mut wrong = 0;
            for ((block, found), right) in found.blocks.iter().zip(model.iter().chain(&old)) {
                let Ok(found) = found else {
                    wrong += 1;
                    continue;
                };
                match version_of(*block, found) {
                    Ok(version) if version == *right => {}
                    Ok(version) => {
                        wrong += 1;
                        assert!(version < *right, "{what}: block {block} is newer than it was");
                    }
                    Err(text) => {
                        let at = at.unwrap_or_else(|| panic!("{what}: {text}"));
                        let mut mended = found.clone();
                        mended[at % BLOCK] ^= 1;
                        assert!(version_of(*block, &mended).is_ok(), "{what}: {text}");
                    }
                }
            }
            // Damage of the newest record is indistinguishable from a record that was never written.
            let is_tail = !closes && wrong <= 5 && found.count == 0;
            assert!(
                wrong == 0 || found.count > 0 || is_tail,
                "{what}: {wrong} blocks are wrong, and nothing is told"
            );
            match found.count {
                0 => unharmed += 1,
                _ => lossy += 1,
            }
        }
    }
    println!("{refused} refused, {lossy} with losses, {unharmed} without");
    assert!(lossy > 30 && unharmed > 30);
}

/// Blocks of the volume and of its snapshot.
struct Bytes {
    blocks: Vec<(u64, Result<Vec<u8>, Error>)>,
    count: u64,
}

/// Salvages like [`salvaged`], without comparing contents; `None` if nothing can be salvaged.
fn salvaged_bytes(bytes: &[u8]) -> Option<Bytes> {
    let bytes = bytes.to_vec();
    run(move || async move {
        let disk = copy_of(&bytes).await;
        let volume = Volume::try_open(&disk, &salvage()).await.ok()?;
        let mut blocks = Vec::new();
        for block in 0..64 {
            blocks.push((block, volume.bytes(block, 1).await));
        }
        if let Ok(old) = volume.part.version("old").await {
            let device = old.open().await.unwrap();
            for block in 0..64 {
                let (outcome, buffer) = device.read(BlockIndex(block), Buffer::new(BLOCK)).await;
                blocks.push((block, outcome.map(|()| buffer.filled().to_vec())));
            }
        }
        let count = volume.part.status().await["lost_count"].as_u64().unwrap();
        volume.close().await;
        assert!(raw(&disk).await == bytes, "salvaging has written something");
        Some(Bytes { blocks, count })
    })
}

/// Zones that another program has reset since hold other data.
#[test]
fn a_zone_that_was_used_again_gives_nothing() {
    let world = world(false);
    let zone = world.zone_of(world.data_at(PAGE + 1, world.snapshot[&(PAGE + 1)]));
    let found = salvaged(&world.reset(zone, true), &salvage()).expect("it can be salvaged");
    let lost = |block: &u64, model: &Model| {
        model.get(block).is_some_and(|version| world.zone_of(world.data_at(*block, *version)) == zone)
    };
    for (found, model) in [(&found.head, &world.head), (&found.snapshot, &world.snapshot)] {
        let mut count = 0;
        for (block, found) in found {
            assert_eq!(found.is_err(), lost(block, model), "block {block}: {found:?}");
            count += u64::from(found.is_err());
        }
        assert!(count > 5);
    }
}

/// The map's home is part of the log: salvage only reads it, and fails without it.
#[test]
fn a_log_with_its_map_at_home_needs_the_home() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("map.pmem");
    let options = Options { map_home: MapPlace::Pmem(path.clone()), ..small() };
    let bytes = run({
        let options = options.clone();
        move || async move {
            let disk = disk(4);
            let volume = Volume::make(&disk, &options).await;
            for block in 0..40 {
                volume.write(block, 1, block + 1).await;
            }
            volume.flush().await;
            raw(&disk).await
        }
    });
    let home = std::fs::read(&path).unwrap();
    let options = Options { salvage: true, ..options };
    let found = salvaged(&bytes, &options).expect("it can be salvaged");
    assert_eq!((found.count, found.lost), (0, Vec::new()));
    for (block, found) in &found.head {
        assert_eq!(found.as_ref().ok(), Some(&if *block < 40 { block + 1 } else { 0 }), "block {block}");
    }
    assert!(std::fs::read(&path).unwrap() == home, "salvaging has written to the home");
    std::fs::write(&path, vec![7; home.len()]).unwrap();
    let error = salvaged(&bytes, &options).err().expect("its map is lost");
    assert!(error.to_string().contains("nothing can be salvaged without the map's home"), "{error}");
    let error = salvaged(&bytes, &salvage()).err().expect("its map is elsewhere");
    assert!(error.to_string().contains("map_home"), "{error}");
}

/// The check continues in every log that can be salvaged.
#[test]
fn a_check_goes_on_after_a_zone_that_is_offline() {
    let world = world(false);
    let tail = world.tail();
    let zone = world.zone_of(tail[0].block * BLOCK);
    for (bytes, words) in [
        (world.offline(zone), "the records behind the checkpoint can't be read"),
        (flipped(&world.bytes, tail[7].block * BLOCK + 47), "is damaged or missing"),
    ] {
        let (bytes, rot) = (bytes, world.data_at(PAGE + 1, world.snapshot[&(PAGE + 1)]) + 5);
        let report = run(move || async move {
            // With additional damage of data elsewhere.
            let disk = copy_of(&flipped(&bytes, rot)).await;
            log::check::check_device(disk, &|_, _| {}).await.unwrap()
        });
        assert!(report.damage.iter().any(|finding| finding.what.contains(words)), "{report:#?}");
        assert!(report.damage.iter().any(|finding| !finding.hits.is_empty()), "{report:#?}");
    }
}
