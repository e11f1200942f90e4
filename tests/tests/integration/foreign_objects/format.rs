//! Objects of a bucket as an S3 client sees them (curl): each of them is one that
//! `book/src/formats/objects.md` describes, byte by byte. Nothing here uses the code that wrote them.

use super::servers::{Program, Server as Store};
use super::{BLOCKS, Machine, Volume};
use siltstone_tests::foreign::{Promised, Server, run};
use siltstone_tests::need;
use siltstone_tests::worlds::Stop;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

/// An object: its metadata, and its bytes.
struct Object {
    metadata: BTreeMap<String, String>,
    bytes: Vec<u8>,
}

/// Header that signs a request without a body.
const UNSIGNED: &str = "x-amz-content-sha256: UNSIGNED-PAYLOAD";

/// Text between two others.
fn between<'t>(text: &'t str, begin: &str, end: &str) -> Option<&'t str> {
    Some(text.split_once(begin)?.1.split_once(end)?.0)
}

/// Reads all objects of the bucket.
fn objects(folder: &Path, port: u16) -> BTreeMap<String, Object> {
    let signed =
        ["-sS", "--fail", "-H", UNSIGNED, "--aws-sigv4", "aws:amz:us-east-1:s3", "--user", "key:hidden"];
    let url = format!("http://127.0.0.1:{port}/vol");
    let listed = run("curl", &[&signed[..], &[&format!("{url}?list-type=2&max-keys=1000")]].concat()).ok();
    assert_eq!(between(&listed, "<IsTruncated>", "<"), Some("false"), "more than a page");
    let keys: Vec<&str> =
        listed.split("<Contents>").skip(1).filter_map(|text| between(text, "<Key>", "<")).collect();
    // One process for all of them.
    let mut config = String::new();
    for (number, key) in keys.iter().enumerate() {
        let _ = writeln!(
            config,
            "{next}url = \"{url}/{key}\"\nheader = \"{UNSIGNED}\"\naws-sigv4 = \"aws:amz:us-east-1:s3\"\nuser = \"key:hidden\"\nfail\nsilent\n\
             output = \"{folder}/{number}.body\"\ndump-header = \"{folder}/{number}.head\"",
            next = if number == 0 { "" } else { "next\n" },
            folder = folder.display()
        );
    }
    let file = folder.join("config");
    std::fs::write(&file, config).unwrap();
    run("curl", &["-K", &file.display().to_string()]).ok();
    let object = |number: usize| {
        let head = std::fs::read_to_string(folder.join(format!("{number}.head"))).unwrap();
        let fields = head.lines().filter_map(|line| line.split_once(": "));
        let metadata = fields.filter_map(|(name, value)| {
            let name = name.to_ascii_lowercase();
            Some((name.strip_prefix("x-amz-meta-")?.to_owned(), value.trim().to_owned()))
        });
        let bytes = std::fs::read(folder.join(format!("{number}.body"))).unwrap_or_default();
        Object { metadata: metadata.collect(), bytes }
    };
    keys.iter().enumerate().map(|(number, key)| ((*key).to_owned(), object(number))).collect()
}

/// CRC-32C (Castagnoli, reflected).
fn crc(parts: &[&[u8]]) -> u32 {
    let mut sum = u32::MAX;
    for byte in parts.iter().flat_map(|part| part.iter()) {
        sum ^= u32::from(*byte);
        for _ in 0..8 {
            sum = (sum >> 1) ^ (0x82F6_3B78 & (sum & 1).wrapping_neg());
        }
    }
    !sum
}

/// Fields of an object, one after the other.
struct Fields<'b> {
    bytes: &'b [u8],
    at: Cell<usize>,
}

impl<'b> Fields<'b> {
    fn new(bytes: &'b [u8]) -> Self {
        Fields { bytes, at: Cell::new(0) }
    }

    fn take(&self, length: usize) -> &'b [u8] {
        let at = self.at.replace(self.at.get() + length);
        self.bytes.get(at..at + length).expect("a field inside of the object")
    }

    fn number(&self, length: usize) -> u64 {
        let mut bytes = [0; 8];
        bytes[..length].copy_from_slice(self.take(length));
        u64::from_le_bytes(bytes)
    }

    fn is_over(&self) -> bool {
        self.at.get() == self.bytes.len()
    }
}

/// Hexadecimal digits of a fixed width.
fn digits(text: &str, width: usize) -> Option<u64> {
    let is_number = text.len() == width && text.bytes().all(|it| b"0123456789abcdef".contains(&it));
    u64::from_str_radix(text, 16).ok().filter(|_| is_number)
}

/// Zone, generation, epoch, offset and serial of a piece.
type PieceKey = (u64, u64, u64, u64, u64);

fn piece_key(key: &str) -> Option<PieceKey> {
    let (folder, file) = key.strip_prefix("db1/zones/")?.split_once('/')?;
    let (zone, rest) = folder.split_once('.')?;
    let (generation, epoch) = rest.split_once('.')?;
    let (offset, serial) = file.split_once('.')?;
    let first = (digits(zone, 8)?, digits(generation, 16)?, digits(epoch, 8)?);
    Some((first.0, first.1, first.2, digits(offset, 12)?, digits(serial, 16)?))
}

/// Epoch and number of a manifest, and whether it is a base beside the others.
fn manifest_key(key: &str) -> Option<((u64, u64), bool)> {
    let (epoch, file) = key.strip_prefix("db1/manifest/")?.split_once('/')?;
    let number = file.strip_suffix(".base").unwrap_or(file);
    Some(((digits(epoch, 8)?, digits(number, 16)?), number != file))
}

/// A manifest, by the table of the book.
struct Manifest<'b> {
    kind: u64,
    link: u64,
    is_clean: bool,
    volume: &'b [u8],
    body: &'b [u8],
}

fn manifest(bytes: &[u8], (epoch, number): (u64, u64)) -> Manifest<'_> {
    let fields = Fields::new(bytes);
    assert_eq!((fields.take(8), fields.number(4), fields.number(4)), (&b"SltObjMf"[..], 2, 0));
    let (volume, _writer) = (fields.take(16), fields.take(16));
    assert_eq!(fields.number(4), epoch);
    let (kind, clean, name) = (fields.number(1), fields.number(1), fields.number(1));
    assert!(kind <= 3 && clean <= 1 && fields.number(1) == 0);
    assert_eq!(fields.number(8), number);
    let (link, _time, body) = (fields.number(8), fields.number(8), fields.number(4));
    assert_eq!((fields.number(4), fields.at.get()), (0, 88));
    std::str::from_utf8(fields.take(name as usize)).expect("a name in UTF-8");
    let body = fields.take(body as usize);
    let covered = &bytes[..fields.at.get()];
    assert_eq!(fields.number(4), u64::from(crc(&[covered])));
    assert!(fields.is_over());
    Manifest { kind, link, is_clean: clean == 1, volume, body }
}

/// A zone of the state: its generation, its state, and the pieces with their lengths.
#[derive(Default)]
struct Zone {
    generation: u64,
    state: u64,
    pieces: Vec<(PieceKey, u64)>,
}

impl Zone {
    fn end(&self) -> u64 {
        self.pieces.last().map_or(0, |((_, _, _, offset, _), length)| offset + length)
    }
}

/// Zones by the body of a base.
fn base(body: &[u8]) -> Vec<Zone> {
    let fields = Fields::new(body);
    let (count, _size, entries) = (fields.number(4), fields.number(8), fields.number(4));
    let mut zones: Vec<Zone> = (0..count).map(|_| Zone { generation: 1, ..Zone::default() }).collect();
    for _ in 0..entries {
        let number = fields.number(4);
        let zone = &mut zones[number as usize];
        (zone.generation, zone.state) = (fields.number(8), fields.number(1));
        for _ in 0..fields.number(4) {
            let (length, epoch, serial) = (fields.number(4), fields.number(4), fields.number(8));
            zone.pieces.push(((number, zone.generation, epoch, zone.end(), serial), length));
        }
    }
    assert!(fields.is_over());
    zones
}

/// Applies the body of a delta of an epoch.
fn apply(zones: &mut [Zone], epoch: u64, body: &[u8]) {
    let fields = Fields::new(body);
    for _ in 0..fields.number(4) {
        let (kind, number) = (fields.number(1), fields.number(4));
        let zone = &mut zones[number as usize];
        match kind {
            1 => {
                let (offset, length, serial) = (fields.number(8), fields.number(4), fields.number(8));
                assert_eq!(offset, zone.end(), "a piece without a gap");
                zone.pieces.push(((number, zone.generation, epoch, offset, serial), length));
                zone.state = 1;
            }
            2 => zone.state = fields.number(1),
            3 => {
                let generation = fields.number(8);
                assert_eq!(generation, zone.generation + 1);
                *zone = Zone { generation, ..Zone::default() };
            }
            4 => {
                let (offset, length, serial) = (fields.number(8), fields.number(4), fields.number(8));
                let place = |at: u64| zone.pieces.iter().position(|((_, _, _, offset, _), _)| *offset == at);
                let first = place(offset).expect("a piece at the first byte");
                let end = if offset + length == zone.end() {
                    Some(zone.pieces.len())
                } else {
                    place(offset + length)
                };
                let end = end.expect("a piece that ends at the last byte");
                assert!(end >= first + 2, "several pieces");
                let merged = ((number, zone.generation, epoch, offset, serial), length);
                drop(zone.pieces.splice(first..end, [merged]));
            }
            _ => panic!("change {kind}"),
        }
    }
    assert!(fields.is_over());
}

/// Checks a piece. Returns the number of its bytes.
fn piece(volume: &[u8], key: PieceKey, bytes: &[u8]) -> u64 {
    let (zone, generation, epoch, offset, _) = key;
    let fields = Fields::new(bytes);
    assert_eq!((fields.take(8), fields.number(4), fields.number(4)), (&b"SltObjPc"[..], 1, 0));
    assert_eq!(fields.take(16), volume);
    assert_eq!((fields.number(4), fields.number(4)), (zone, epoch));
    assert_eq!((fields.number(8), fields.number(8)), (generation, offset));
    let length = fields.number(4);
    assert_eq!(fields.number(4), u64::from(crc(&[&bytes[..60]])));
    let mut at = 0;
    while at < length {
        let chunk = fields.take((length - at).min(65536) as usize);
        let numbers = [&zone.to_le_bytes()[..4], &epoch.to_le_bytes()[..4]].concat();
        let place = [volume, &numbers, &generation.to_le_bytes(), &(offset + at).to_le_bytes()].concat();
        assert_eq!((place.len(), fields.number(4)), (40, u64::from(crc(&[&place, chunk]))));
        at += chunk.len() as u64;
    }
    assert!(fields.is_over());
    length
}

/// Writes and flushes for some hundred replies.
fn work(promised: &mut Promised, server: &Server, random: &mut runtime::Random) {
    let rest = Cell::new(800);
    promised.work_until(server, random, || rest.replace(rest.get() - 1) == 0);
}

#[test]
fn each_object_is_one_that_the_book_describes() {
    need!("curl");
    let Some(store) = Store::start(Program::VersityGw) else { return };
    let volume = Volume::small(store.port);
    let (mut promised, mut random) = (Promised::new(BLOCKS), runtime::Random::new(5));
    let first = Machine::formatted(volume);
    let mut server = first.serve();
    promised.work_until_killed(&mut server, &mut random, 600);
    let second = Machine::new(volume, true);
    let server = second.serve();
    promised.check(&server, Stop::Older).unwrap();
    work(&mut promised, &server, &mut random);
    server.stop();
    let folder = tempfile::tempdir().unwrap();
    let objects = objects(folder.path(), store.port);
    let (mut manifests, mut bases) = (BTreeMap::new(), BTreeMap::new());
    for (key, object) in &objects {
        assert!(piece_key(key).is_some() || manifest_key(key).is_some(), "object {key}");
        let sum = format!("{:08x}", crc(&[&object.bytes]));
        assert_eq!(object.metadata["siltstone-crc32c"], sum, "{key}");
        assert!(u128::from_str_radix(&object.metadata["siltstone-nonce"], 16).is_ok(), "{key}");
        assert_eq!(object.metadata.len(), 2, "{key}: {:?}", object.metadata);
        if let Some((place, is_base)) = manifest_key(key) {
            let of_kind = if is_base { &mut bases } else { &mut manifests };
            of_kind.insert(place, manifest(&object.bytes, place));
        }
    }
    let epoch = manifests.keys().map(|(epoch, _)| *epoch).max().unwrap();
    for epoch in 1..=epoch {
        let claim = &manifests[&(epoch, 0)];
        // The write cache claims with a token.
        assert_eq!((claim.kind, claim.link, claim.body.len()), (0, epoch - 1, 24), "epoch {epoch}");
    }
    let (_, newest) = manifests.range((epoch, 1)..).next_back().expect("a manifest of the last epoch");
    let mut last = newest.link;
    let newest = if last == 1 { &manifests[&(epoch, 1)] } else { &bases[&(epoch, last)] };
    assert_eq!((newest.kind, newest.link), (1, last), "the base to which the last manifest links");
    let (mut zones, volume) = (base(newest.body), newest.volume);
    for ((_, number), manifest) in manifests.range((epoch, last + 1)..) {
        assert_eq!((manifest.kind, *number, manifest.volume), (2, last + 1, volume));
        apply(&mut zones, epoch, manifest.body);
        last = *number;
    }
    assert!(manifests[&(epoch, last)].is_clean, "the last server was stopped");
    let (mut count, mut bytes) = (0, 0);
    for (key, object) in &objects {
        if let Some(key) = piece_key(key) {
            let length = piece(volume, key, &object.bytes);
            count += 1;
            bytes += length;
        }
    }
    // The others are garbage, which the next server deletes on demand.
    for zone in &zones {
        for (key, length) in &zone.pieces {
            let (number, generation, epoch, offset, serial) = key;
            let key =
                format!("db1/zones/{number:08x}.{generation:016x}.{epoch:08x}/{offset:012x}.{serial:016x}");
            let found = objects.get(&key).unwrap_or_else(|| panic!("{key} is missing"));
            assert_eq!(found.bytes.len() as u64, 64 + length + 4 * length.div_ceil(65536), "{key}");
        }
        assert!(zone.state <= 3);
    }
    let named: usize = zones.iter().map(|zone| zone.pieces.len()).sum();
    println!(
        "{} manifests; {count} pieces of {bytes} bytes, of which manifests name {named}",
        manifests.len()
    );
    assert!(named > 0 && epoch >= 3);
}
