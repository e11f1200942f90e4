//! Checking a log: healthy logs have no finding however they ended, and every loss by a flipped byte is
//! reported.

use block::{
    BlockCount, BlockIndex, BlockRange, BlockSize, Buffer, Device, DeviceGeometry, DevicePart, Durability,
    Part, Result,
};
use layers::record::replay::ImageDisk;
use log::check::{CheckReport, Finding, check_device, open_zones};
use log::dump::dump;
use log::kind::{Options, open};
use serde_json::Value;
use std::rc::Rc;
use std::sync::Arc;

const BLOCK: usize = 4096;
const VOLUME: u64 = 200;
/// Block that is written last, so that its record names all earlier ones as durable.
const LAST: u64 = VOLUME - 1;

fn geometry(blocks: u64) -> DeviceGeometry {
    DeviceGeometry {
        block_size: BlockSize::default(),
        blocks: BlockCount(blocks),
        atomic_write: 512,
        volatile_cache: true,
        read_only: false,
    }
}

fn options() -> Options {
    Options {
        size: Some(VOLUME * BLOCK as u64),
        zone_size: Some(64 << 10),
        checkpoint_after: 256 << 10,
        // Few classes, so that a small disk needs cleaning.
        cleaning: "greedy".to_owned(),
        ..Options::default()
    }
}

fn run<T: Send + 'static>(main: impl AsyncFnOnce() -> T + Send + 'static) -> T {
    runtime::run(runtime::Config::default(), move || async move { main().await }).expect("the runtime starts")
}

/// All bytes of a disk.
#[derive(Clone, PartialEq)]
struct Image(Vec<u8>);

impl Image {
    async fn of(disk: &dyn DevicePart) -> Image {
        let device = disk.open().await.expect("it opens");
        let bytes = disk.geometry().bytes() as usize;
        let mut image = Vec::with_capacity(bytes);
        while image.len() < bytes {
            let buffer = Buffer::new((1 << 20).min(bytes - image.len()));
            let (outcome, buffer) = device.read(BlockIndex((image.len() / BLOCK) as u64), buffer).await;
            outcome.expect("it can be read");
            image.extend_from_slice(buffer.filled());
        }
        Image(image)
    }

    async fn disk(&self) -> Arc<dyn DevicePart> {
        let disk = ImageDisk::empty(geometry((self.0.len() / BLOCK) as u64));
        let device = disk.open().await.expect("it opens");
        for (number, block) in self.0.chunks(BLOCK).enumerate() {
            if block.iter().any(|byte| *byte != 0) {
                write(&*device, number as u64, block).await;
            }
        }
        Arc::new(disk)
    }

    /// Byte offset of a block of a zone, by the superblock of the zones.
    fn offset(&self, zone: u64, block: u64) -> usize {
        let number = |at: usize| u64::from_le_bytes(self.0[at..at + 8].try_into().expect("eight bytes"));
        let (zone_size, first_zone) = (number(40), number(48));
        (first_zone + zone * zone_size + block * BLOCK as u64) as usize
    }

    fn place(&self, offset: usize) -> (u32, u32) {
        (0..)
            .map(|zone| (zone, self.offset(zone, 0)))
            .take_while(|(_, start)| *start <= offset)
            .last()
            .map_or((0, 0), |(zone, start)| (zone as u32, ((offset - start) / BLOCK) as u32))
    }

    fn flipped(&self, offset: usize) -> Image {
        let mut image = self.clone();
        image.0[offset] ^= 0x20;
        image
    }

    /// Offsets of the blocks with these contents.
    fn copies(&self, contents: &[u8]) -> Vec<usize> {
        let blocks = self.0.chunks(BLOCK).enumerate();
        blocks.filter(|(_, block)| *block == contents).map(|(number, _)| number * BLOCK).collect()
    }

    async fn dump(&self, zone: Option<u32>) -> Value {
        let zones = open_zones(self.disk().await).await.expect("the zones open");
        dump(zones, None, zone.map(block::ZoneIndex)).await.expect("it is a log")
    }

    async fn check(&self) -> Result<CheckReport> {
        let disk = self.disk().await;
        let report = check_device(disk.clone(), &|_, _| {}).await;
        assert!(*self == Image::of(&*disk).await, "checking has written something");
        report
    }
}

async fn write(device: &dyn Device, block: u64, data: &[u8]) {
    let mut buffer = Buffer::new(data.len());
    buffer.append(data);
    device.write(BlockIndex(block), buffer.into(), Durability::Visible).await.expect("it can be written");
}

fn contents(block: u64, version: u64) -> Vec<u8> {
    let mut random = runtime::Random::new(block << 32 | version);
    (0..BLOCK / 8).flat_map(|_| random.next_u64().to_le_bytes()).collect()
}

/// A client of a log, with the contents that it expects.
struct Client {
    disk: Arc<dyn DevicePart>,
    log: Arc<dyn DevicePart>,
    /// `None` once the log is closed: handles are dropped before their part.
    device: Option<Rc<dyn Device>>,
    expected: Vec<Option<u64>>,
    version: u64,
}

impl Client {
    async fn new(disk_blocks: u64) -> Client {
        let disk: Arc<dyn DevicePart> = Arc::new(ImageDisk::empty(geometry(disk_blocks)));
        let log = open(disk.clone(), &Options { format: true, ..options() }).await.expect("it can be made");
        let log: Arc<dyn DevicePart> = Arc::new(log);
        let device = Some(log.open().await.expect("it opens"));
        Client { disk, log, device, expected: vec![None; VOLUME as usize], version: 0 }
    }

    fn device(&self) -> &dyn Device {
        self.device.as_deref().expect("it is open")
    }

    async fn write(&mut self, block: u64) {
        self.version += 1;
        self.expected[block as usize] = Some(self.version);
        write(self.device(), block, &contents(block, self.version)).await;
    }

    async fn discard(&mut self, block: u64, count: u64) {
        self.device().discard(BlockRange::new(block, count)).await.expect("it can be discarded");
        self.expected[block as usize..(block + count) as usize].fill(None);
    }

    /// Random writes, discards and flushes.
    async fn work(&mut self, seed: u64, operations: u64) {
        let mut random = runtime::Random::new(seed);
        for _ in 0..operations {
            match random.below(20) {
                0 => self.device().flush().await.expect("it can be flushed"),
                1 => {
                    let count = 1 + random.below(8);
                    self.discard(random.below(LAST - count), count).await;
                }
                _ => self.write(random.below(LAST)).await,
            }
        }
    }

    async fn reopen(&mut self) {
        self.close().await;
        self.log = Arc::new(open(self.disk.clone(), &options()).await.expect("it opens again"));
        self.device = Some(self.log.open().await.expect("it opens"));
    }

    async fn close(&mut self) {
        self.device = None;
        self.log.close().await.expect("it can be closed");
    }

    /// Image of the disk after a power cut that follows a flush, if the disk keeps everything.
    async fn cut(&mut self) -> Image {
        self.device().flush().await.expect("it can be flushed");
        self.write(LAST).await;
        self.device().flush().await.expect("it can be flushed");
        Image::of(&*self.disk).await
    }

    async fn closed(&mut self) -> Image {
        self.close().await;
        Image::of(&*self.disk).await
    }
}

fn is_silent(name: &str, report: Result<CheckReport>) -> CheckReport {
    let report = report.unwrap_or_else(|error| panic!("{name}: {error}"));
    assert!(report.damage.is_empty() && report.notes.is_empty(), "{name}: {report:#?}");
    report
}

#[test]
fn healthy_logs_are_silent() {
    run(async || {
        let mut client = Client::new(1024).await;
        let report = is_silent("just made", client.cut().await.check().await);
        assert_eq!((report.checked.versions, report.checked.mapped_blocks), (1, 1));
        for round in 0..6 {
            client.work(round, 700).await;
            let report = is_silent("after a power cut", client.cut().await.check().await);
            assert!(!report.clean && report.replayed > 0 && report.epoch == round + 1, "{report:?}");
            client.reopen().await;
        }
        let moved = client.closed().await;
        let report = is_silent("closed", moved.check().await);
        let mapped = client.expected.iter().flatten().count() as u64;
        assert!(report.clean && report.checked.mapped_blocks == mapped && report.replayed == 0, "{report:?}");
        assert!(report.checked.pages > 0 && report.checked.summaries > 0 && report.checked.roots > 0);
        assert!(report.checked.data_blocks >= mapped && report.checked.records > 10, "{report:?}");
    });
}

#[test]
fn logs_that_were_recovered_and_cleaned_are_silent() {
    run(async || {
        let mut client = Client::new(640).await;
        client.work(1, 3000).await;
        let image = client.cut().await;
        let has_moves = |dump: &Value| dump["tail"]["last"]["cleaner"].as_u64() > Some(0);
        assert!(has_moves(&image.dump(None).await), "the cleaner had nothing to do");
        is_silent("in the middle", image.check().await);
        // Recovered several times, with only roots written.
        let disk = image.disk().await;
        for _ in 0..3 {
            let log = open(disk.clone(), &options()).await.expect("it opens");
            let image = Image::of(&*disk).await;
            is_silent("recovered", image.check().await);
            log.close().await.expect("it can be closed");
            is_silent("recovered and closed", Image::of(&*disk).await.check().await);
        }
    });
}

async fn message(client: &Client, text: &str) {
    client.log.message(text).await.unwrap_or_else(|error| panic!("{text}: {error}"));
}

#[test]
fn snapshots_and_clones_are_held_against_the_records_too() {
    run(async || {
        let mut client = Client::new(1536).await;
        client.work(1, 500).await;
        client.write(150).await;
        let kept = contents(150, client.version);
        message(&client, "snapshot create monday").await;
        client.work(2, 300).await;
        client.write(150).await;
        message(&client, "snapshot clone monday experiment").await;
        let clone = client.log.version("experiment").await.expect("it is there");
        let device = clone.open().await.expect("it opens");
        for block in 0..40 {
            write(&*device, block, &contents(block, 1 << 20)).await;
        }
        device.discard(BlockRange::new(50, 20)).await.expect("it can be discarded");
        message(&client, "checkpoint").await;
        message(&client, "snapshot create tuesday").await;
        client.work(3, 900).await;
        let report = is_silent("cut", client.cut().await.check().await);
        assert_eq!(report.checked.versions, 4);
        message(&client, "snapshot delete tuesday").await;
        client.work(4, 900).await;
        is_silent("a snapshot less", client.cut().await.check().await);
        drop(device);
        drop(clone);
        let image = client.closed().await;
        let report = is_silent("closed", image.check().await);
        assert_eq!(report.checked.versions, 3);

        // Blocks that only the snapshot and the clone have, at any location.
        let copies = image.copies(&kept);
        let flipped = copies.iter().fold(image.clone(), |image, at| image.flipped(at + 9));
        let report = flipped.check().await.expect("it can be checked");
        let finding = the_damage(report);
        let hits: Vec<_> = finding.hits.iter().map(|hit| (hit.name.as_str(), hit.block, hit.count)).collect();
        assert_eq!(hits, [("monday", 150, 1), ("experiment", 150, 1)]);
    });
}

/// Clones that lost the same blocks share a page that their parent doesn't have.
#[test]
fn pages_that_only_clones_share_are_counted_once() {
    run(async || {
        let mut client = Client::new(1536).await;
        for block in 0..LAST {
            client.write(block).await;
        }
        message(&client, "snapshot create monday").await;
        message(&client, "checkpoint").await;
        for name in ["one", "two"] {
            message(&client, &format!("snapshot clone monday {name}")).await;
            let clone = client.log.version(name).await.expect("it is there");
            let device = clone.open().await.expect("it opens");
            device.discard(BlockRange::new(5, 3)).await.expect("it can be discarded");
        }
        message(&client, "checkpoint").await;
        is_silent("two clones", client.cut().await.check().await);
    });
}

/// Returns the only finding, which must be damage.
fn the_damage(report: CheckReport) -> Finding {
    assert!(report.is_damaged() && report.damage.len() == 1, "{report:#?}");
    report.damage[0].clone()
}

fn the_note(report: &CheckReport) -> &Finding {
    assert!(!report.is_damaged() && report.notes.len() == 1, "{report:#?}");
    &report.notes[0]
}

fn place_of(finding: &Finding) -> (u32, u32) {
    (finding.zone.expect("it has a zone"), finding.block.expect("it has a block"))
}

#[test]
fn damaged_data_is_found_with_its_owner() {
    run(async || {
        let mut client = Client::new(1024).await;
        for block in 0..100 {
            client.write(block).await;
        }
        let old = contents(77, client.expected[77].expect("it was written"));
        client.write(77).await;
        let new = contents(77, client.version);
        for name in ["cut", "closed"] {
            let image = if name == "cut" { client.cut().await } else { client.closed().await };
            let [at] = image.copies(&new)[..] else { panic!("{name}: block 77 is there once") };
            let report = image.flipped(at + 1234).check().await.expect("it can be checked");
            assert_eq!(report.damaged_blocks, 1, "{name}: {report:#?}");
            let findings = report.damage.iter();
            let [finding] = findings.filter(|finding| !finding.hits.is_empty()).collect::<Vec<_>>()[..]
            else {
                panic!("{name}: {report:#?}");
            };
            let (zone, block) = image.place(at);
            // Also in the tail: the record is part of the log, and one of its blocks is damaged.
            assert_eq!(report.damage.len(), 1, "{name}: {report:#?}");
            assert_eq!((place_of(finding), finding.blocks), ((zone, block), 1), "{name}: {finding:?}");
            let hit = &finding.hits[0];
            assert_eq!((hit.version, hit.block, hit.count, finding.hits.len()), (1, 77, 1, 1), "{name}");
        }
        let image = Image::of(&*client.disk).await;
        let [at] = image.copies(&old)[..] else { panic!("the old block 77 is there once") };
        let report = image.flipped(at).check().await.expect("it can be checked");
        let note = the_note(&report);
        assert_eq!(place_of(note), image.place(at));
        assert!(note.what.contains("nothing needs it") && report.damaged_blocks == 0, "{note:?}");
    });
}

#[test]
fn damaged_metadata_is_found() {
    run(async || {
        let mut client = Client::new(1024).await;
        client.work(5, 300).await;
        let image = client.closed().await;
        let flip = async |zone: &Value, block: u64, byte: usize| {
            let offset = image.offset(zone.as_u64().expect("a number"), block) + byte;
            image.flipped(offset).check().await.expect("it can be checked")
        };
        let dump = image.dump(None).await;
        assert!(dump["clean"] == true && dump["trouble"].is_null(), "{dump}");
        let zones = dump["zone_list"].as_array().expect("zones");
        let used = |wanted: &str| {
            let found = zones.iter().find(|zone| zone["use"] == wanted && zone["live"].as_u64() > Some(0));
            found.unwrap_or_else(|| panic!("a zone for {wanted}"))
        };

        // Nothing is lost of a header that the zone's summary also has, or of a summary whose headers are
        // intact.
        let data = used("data");
        for byte in [0, 20, 100] {
            let report = flip(&data["zone"], 0, byte).await;
            let note = the_note(&report);
            assert_eq!(place_of(note), (data["zone"].as_u64().expect("a number") as u32, 0));
            assert!(note.what.contains("the summary of the zone has it"), "{note:?}");
        }
        let end = data["end"].as_u64().expect("a number");
        for byte in [0, 9, 30, 44, 70] {
            let report = flip(&data["zone"], end - 1, byte).await;
            let note = the_note(&report);
            assert!(note.what.contains("the summary of the zone is unusable"), "byte {byte}: {note:?}");
        }

        // A page: everything that its version maps there is lost.
        let number = used("checkpoints")["zone"].as_u64().expect("a number") as u32;
        let records = image.dump(Some(number)).await["records"].take();
        let records = records.as_array().expect("records");
        let page = records.iter().rfind(|record| record["entries"][0]["page"] == 0).expect("a page");
        let block = page["block"].as_u64().expect("a number") + 1;
        let finding = the_damage(flip(&number.into(), block, 40).await);
        assert_eq!(place_of(&finding), (number, block as u32));
        assert_eq!((finding.hits[0].block, finding.hits[0].count), (0, VOLUME), "{finding:?}");

        // The directory.
        let roots = dump["roots"].as_array().expect("roots");
        let newest = roots.last().expect("a root");
        let piece = &newest["directory"][0];
        let report = flip(&piece["zone"], piece["block"].as_u64().expect("a number"), 11).await;
        assert!(report.damage[0].what.contains("the directory") && report.is_damaged(), "{report:#?}");

        // The newest root, and an older one.
        let block = newest["block"].as_u64().expect("a number");
        let report = flip(&newest["zone"], block, 13).await;
        assert!(report.damage[0].what.contains("the log is opened by root"), "{report:#?}");
        assert!(roots.len() > 1, "{dump}");

        // The header of a zone.
        let header = (2 + data["zone"].as_u64().expect("a number") as usize) * BLOCK;
        let report = image.flipped(header + 40).check().await.expect("it can be checked");
        let finding = the_damage(report);
        assert!(finding.what.contains("offline") && !finding.hits.is_empty(), "{finding:?}");
    });
}

/// Reads the volume; `None` if the log can't be opened.
async fn read_all(image: &Image) -> Option<Vec<u8>> {
    let log = open(image.disk().await, &options()).await.ok()?;
    let device = log.open().await.expect("it opens");
    let (outcome, buffer) = device.read(BlockIndex(0), Buffer::new(LAST as usize * BLOCK)).await;
    let bytes = outcome.ok().map(|()| buffer.filled().to_vec());
    drop(device);
    let _ = log.close().await;
    bytes
}

/// Flips any byte. If the check reports no loss, all data is intact; if it reports a loss, that data is lost.
fn no_flip_is_missed(seed: u64, is_closed: bool) {
    println!("seed {seed}");
    run(async move || {
        let mut client = Client::new(640).await;
        client.work(seed, 2500).await;
        let image = if is_closed { client.closed().await } else { client.cut().await };
        let mut expected = vec![0; LAST as usize * BLOCK];
        for (block, version) in client.expected.iter().take(LAST as usize).enumerate() {
            if let Some(version) = version {
                let contents = contents(block as u64, *version);
                expected[block * BLOCK..][..BLOCK].copy_from_slice(&contents);
            }
        }
        assert!(read_all(&image).await.as_deref() == Some(&expected), "the image is good");
        let mut random = runtime::Random::new(seed);
        let (mut damaged, mut noted, mut silent) = (0, 0, 0);
        // After the superblocks, which don't belong to the log; the beginnings of blocks more often.
        for _ in 0..400 {
            let block = 2 + random.below((image.0.len() / BLOCK - 2) as u64) as usize;
            let byte = if random.below(2) == 0 { random.below(160) } else { random.below(BLOCK as u64) };
            let offset = block * BLOCK + byte as usize;
            if image.0[offset] == 0 && random.below(4) > 0 {
                continue;
            }
            let flipped = image.flipped(offset);
            let report = flipped.check().await;
            let lost = report.as_ref().map_or(true, CheckReport::is_damaged);
            let found = read_all(&flipped).await;
            let place = image.place(offset);
            if !lost {
                let is_all_there = found.as_deref() == Some(&expected);
                assert!(is_all_there, "byte {byte} of block {block}, {place:?}: missed; {report:#?}");
            }
            match report {
                Ok(report) if !lost && report.notes.is_empty() => silent += 1,
                Ok(_) if !lost => noted += 1,
                _ => damaged += 1,
            }
        }
        println!("{damaged} damaged, {noted} noted, {silent} silent");
        assert!(damaged > 50 && noted > 20, "{damaged} damaged, {noted} noted, {silent} silent");
    });
}

#[test]
fn no_flip_in_a_closed_log_is_missed() {
    no_flip_is_missed(11, true);
}

#[test]
fn no_flip_in_a_log_that_was_cut_is_missed() {
    no_flip_is_missed(12, false);
}

#[test]
fn a_dump_shows_records_with_their_entries() {
    run(async || {
        let mut client = Client::new(1024).await;
        for block in [7, 9, 10, 11] {
            client.write(block).await;
        }
        client.discard(9, 3).await;
        let image = client.cut().await;
        let dump = image.dump(None).await;
        assert_eq!(dump["versions"][0]["mapped_blocks"], 2, "{dump}");
        let zones = dump["zone_list"].as_array().expect("zones");
        let data = zones.iter().find(|zone| zone["use"] == "data").expect("a zone with data");
        let number = data["zone"].as_u64().expect("a number") as u32;
        let dump = image.dump(Some(number)).await;
        let entries: Vec<&Value> = dump["records"]
            .as_array()
            .expect("records")
            .iter()
            .flat_map(|record| record["entries"].as_array())
            .flatten()
            .collect();
        let is = |entry: &&Value, change: &str, block: u64, count: u64| {
            entry["change"] == change && entry["block"] == block && entry["count"] == count
        };
        assert!(entries.iter().any(|entry| is(entry, "write", 7, 1)), "{dump}");
        assert!(entries.iter().any(|entry| is(entry, "unmap", 9, 3)), "{dump}");
        let zones = open_zones(image.disk().await).await.expect("the zones open");
        assert!(dump_refuses(zones).await);
    });
}

async fn dump_refuses(zones: Arc<dyn block::ZonesPart>) -> bool {
    matches!(dump(zones, None, Some(block::ZoneIndex(1_000_000))).await, Err(block::Error::Invalid(text)) if text.contains("zone 1000000"))
}

#[test]
fn what_is_no_log_is_refused() {
    run(async || {
        let disk: Arc<dyn DevicePart> = Arc::new(ImageDisk::empty(geometry(512)));
        assert!(matches!(check_device(disk.clone(), &|_, _| {}).await, Err(block::Error::Protocol(_))));
        let zones = zones::on_device::Options {
            format: true,
            zone_size: Some(64 << 10),
            ..zones::on_device::Options::default()
        };
        zones::OnDevice::open(disk.clone(), zones).await.expect("zones can be made");
        let refused = check_device(disk, &|_, _| {}).await;
        assert!(matches!(refused, Err(block::Error::Protocol(_))), "{refused:?}");
    });
}
