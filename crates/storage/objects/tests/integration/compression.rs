//! Compressed volumes: what was appended comes back, by few requests, whatever the key says at the next
//! start, and damaged or invented lengths are errors.

use crate::common::{handle, options, read, settings, world};
use block::{Data, EraseGuarantee, Error, Part, ZoneIndex, Zones, ZonesPart};
use object_store::testing::Bucket;
use objects::{Compression, Encryption, NewVolume, ObjectsPart, Options, ReaderPart, Settings, Volume};
use runtime::Random;
use std::sync::Arc;
use std::time::Duration;

const CHUNK: usize = 64 << 10;
/// Bytes before the index of a compressed object.
const HEADER: usize = 64;

fn of(format: Option<(u64, u64)>, compression: Compression, key: Option<u8>) -> Options {
    let piece_size = format.map_or(256 << 10, |(_, piece_size)| piece_size);
    let format = format.map(|(zone_size, _)| NewVolume { zones: 8, zone_size, probe: false });
    let key = key.map(|key| Arc::new(crypt::secret::copy_of(&[key; 32]).unwrap()));
    let encryption = key.map(|key| Encryption { key, key_store: None });
    let memory = (4 * piece_size).max(1 << 20);
    let settings = Settings { piece_size, memory, max_append: 256 << 10, compression, ..settings() };
    Options { format, settings, encryption, ..options(false) }
}

async fn open(format: Option<(u64, u64)>, compression: Compression, key: Option<u8>) -> ObjectsPart {
    ObjectsPart::open(of(format, compression, key)).await.unwrap()
}

/// Bytes of which about `noise` percent, in runs, can't be compressed.
fn contents(seed: u64, length: usize, noise: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    let mut bytes = Vec::with_capacity(length);
    while bytes.len() < length {
        let run = (512 << random.below(9)).min(length - bytes.len());
        let from = bytes.len();
        bytes.resize(from + run, b'a' + random.below(26) as u8);
        if random.below(100) < noise {
            random.fill(&mut bytes[from..]);
        }
    }
    bytes
}

async fn append(zones: &dyn Zones, zone: u32, bytes: &[u8]) {
    for part in bytes.chunks(200 << 10) {
        zones.append(ZoneIndex(zone), Data::copy_of(part).into()).await.unwrap();
    }
}

fn keys(bucket: &Bucket, part: &str) -> Vec<String> {
    bucket.objects.borrow().keys().filter(|key| key.contains(part)).cloned().collect()
}

/// Bytes of all pieces in the bucket.
fn stored(bucket: &Bucket) -> usize {
    keys(bucket, "zones/").iter().map(|key| bucket.objects.borrow()[key].bytes.len()).sum()
}

/// Reads ranges of a zone that has these bytes.
async fn verify(zones: &dyn Zones, zone: u32, expected: &[u8], random: &mut Random) {
    assert!(read(zones, zone, 0, expected.len()).await.unwrap() == expected, "zone {zone}");
    for _ in 0..12 {
        let blocks = expected.len() as u64 / 512;
        let first = random.below(blocks);
        let (at, count) =
            (first as usize * 512, 512 * (1 + random.below((blocks - first).min(300)) as usize));
        let found = read(zones, zone, at as u64, count).await.unwrap();
        assert!(found == expected[at..at + count], "zone {zone}, {count} bytes at {at}");
    }
}

/// Pieces of all lengths, of bytes that shrink, that don't, and that do in part: from memory, from the
/// bucket, and after an opening that doesn't compress. The status has the lengths of the objects.
#[test]
fn pieces_of_all_sizes_come_back() {
    for (key, seed) in [(None, 1), (Some(5), 2)] {
        world(seed, move |bucket| async move {
            let part = open(Some((1 << 20, 1 << 20)), Compression::Lz4, key).await;
            let zones = handle(&part).await;
            let mut random = Random::new(seed);
            let mut all = Vec::new();
            for (zone, length) in (0_u32..).zip([4, 60, 64, 65, 200, 700, 1024]) {
                let (mut written, noise) = (Vec::new(), [0, 100, 40][zone as usize % 3]);
                while written.len() < 500 << 10 {
                    let bytes = contents(random.next_u64(), length << 10, noise);
                    append(&*zones, zone, &bytes).await;
                    written.extend_from_slice(&bytes);
                    // Whole chunks and a rest that aren't uploaded.
                    if random.chance(0.1) {
                        verify(&*zones, zone, &written, &mut random).await;
                    }
                    zones.flush(&[ZoneIndex(zone)]).await.unwrap();
                }
                verify(&*zones, zone, &written, &mut random).await;
                all.push(written);
            }
            let status = part.status().await;
            assert_eq!(status["compression"], "lz4");
            part.close().await.unwrap();
            let part = open(None, Compression::None, key).await;
            let zones = handle(&part).await;
            for (zone, written) in (0..).zip(&all) {
                verify(&*zones, zone, written, &mut random).await;
            }
            // What was merged before.
            part.message("gc").await.unwrap();
            runtime::sleep(Duration::from_secs(200)).await;
            let status = part.status().await;
            assert_eq!(status["object_bytes"], stored(&bucket), "{status:?}");
            let bytes: usize = all.iter().map(Vec::len).sum();
            assert_eq!(status["stored_bytes"], bytes);
            assert!(stored(&bucket) < bytes * 2 / 3, "{} of {bytes} bytes", stored(&bucket));
        });
    }
}

/// A piece that is read from its start on, or is short, needs no request for its index; another one a single
/// one, however many reads need it. Opening reads no piece.
#[test]
fn reads_of_compressed_pieces_need_few_requests() {
    world(3, |bucket| async move {
        let part = open(Some((8 << 20, 8 << 20)), Compression::Lz4, None).await;
        let (zones, mut random) = (handle(&part).await, Random::new(3));
        let whole = contents(1, 8 << 20, 40);
        for zone in 0..3 {
            append(&*zones, zone, &whole).await;
        }
        for number in 0..20 {
            append(&*zones, 3, &whole[number << 16..(number + 1) << 16]).await;
            zones.flush(&[ZoneIndex(3)]).await.unwrap();
        }
        zones.flush(&[ZoneIndex(0), ZoneIndex(1), ZoneIndex(2)]).await.unwrap();
        drop(zones);
        part.close().await.unwrap();
        assert!(stored(&bucket) < 17 << 20, "{}", stored(&bucket));
        let pieces = |bucket: &Bucket| {
            let asked = bucket.asked.borrow();
            asked.iter().filter(|(method, key)| method == "GET" && key.contains("zones/")).count()
        };
        let part = open(None, Compression::None, None).await;
        let zones = handle(&part).await;
        assert_eq!(pieces(&bucket), 0);
        let mut expect = 0;
        let mut check = |requests: usize, what: &str| {
            expect += requests;
            assert_eq!(pieces(&bucket), expect, "{what}");
        };
        let has = async |zone: u32, at: usize, length: usize| {
            assert!(read(&*zones, zone, at as u64, length).await.unwrap() == whole[at..at + length]);
        };
        for at in (0..8 << 20).step_by(128 << 10) {
            has(0, at, 128 << 10).await;
        }
        check(64, "one for each read from the start on");
        has(1, 0, 8 << 20).await;
        check(8, "one for each MiB");
        has(2, 5 << 20, 4096).await;
        check(2, "a read in the middle, and its index");
        for _ in 0..10 {
            has(2, random.below(2000) as usize * 4096, 4096).await;
        }
        check(10, "the index is known");
        has(3, 9 << 16, 4096).await;
        check(1, "a short piece");
        // Many reads at the same time, by a writer that knows no index.
        let part = open(None, Compression::None, None).await;
        let zones = handle(&part).await;
        let reads = (1..8).map(|number| read(&*zones, 2, number << 20, 4096));
        assert!(runtime::join_all(reads).await.iter().all(Result::is_ok));
        check(8, "one index");
    });
}

/// The key is that of new objects: old ones stay as they are, until they are merged.
#[test]
fn the_key_may_change_at_each_start() {
    world(4, |bucket| async move {
        let format = (256 << 10, 48 << 10);
        open(Some(format), Compression::None, None).await.close().await.unwrap();
        let mut written = Vec::new();
        let mut flags = Vec::new();
        let kinds = [Compression::None, Compression::Lz4, Compression::None, Compression::Lz4];
        for (round, compression) in (0..).zip(kinds) {
            let part = open(None, compression, None).await;
            let zones = handle(&part).await;
            for number in 0..12 {
                let bytes = contents(round * 100 + number, 4096, 0);
                append(&*zones, 1, &bytes).await;
                zones.flush(&[ZoneIndex(1)]).await.unwrap();
                written.extend_from_slice(&bytes);
            }
            verify(&*zones, 1, &written, &mut Random::new(round)).await;
            let last = keys(&bucket, &format!("manifest/{:08x}", round + 2)).pop().unwrap();
            flags.push(bucket.objects.borrow()[&last].bytes[12]);
            drop(zones);
            part.close().await.unwrap();
        }
        assert_eq!(flags, [0, 4, 0, 4], "earlier programs refuse manifests with compressed pieces");
        let base =
            |epoch: u32| keys(&bucket, &format!("manifest/{epoch:08x}/0000000000000001")).pop().unwrap();
        let flags = [3, 4, 5].map(|epoch| bucket.objects.borrow()[&base(epoch)].bytes[12]);
        assert_eq!(flags, [0, 4, 4]);
        let reader = of(None, Compression::None, None);
        let reader = ReaderPart::open(reader, Duration::from_secs(10)).await.unwrap();
        verify(&*reader.open().await.unwrap(), 1, &written, &mut Random::new(9)).await;
        let volume = Volume::new(of(None, Compression::None, None)).unwrap();
        let report = volume.check(true, &|_| (), &|_, _| ()).await.unwrap();
        assert_eq!((report.is_damaged(), report.verified_bytes), (false, Some(written.len() as u64)));
        let status = volume.status(false, &|_| ()).await.unwrap();
        assert_eq!(status["object_bytes"], report.pieces.bytes);
        // All of them are merged, and then compressed.
        let part = open(None, Compression::Lz4, None).await;
        let zones = handle(&part).await;
        zones.finish(ZoneIndex(1)).await.unwrap();
        for number in 0..8 {
            append(&*zones, 2, &contents(number, 4096, 100)).await;
            zones.flush(&[ZoneIndex(2)]).await.unwrap();
        }
        runtime::sleep(Duration::from_secs(200)).await;
        verify(&*zones, 1, &written, &mut Random::new(10)).await;
        let status = part.status().await;
        assert!(status["pieces"].as_u64().unwrap() < 16, "{status:?}");
        assert_eq!(status["object_bytes"], stored(&bucket));
        assert!(stored(&bucket) < written.len() / 2, "{} bytes", stored(&bucket));
        zones.reset(ZoneIndex(1), EraseGuarantee::None).await.unwrap();
        runtime::sleep(Duration::from_secs(200)).await;
        assert_eq!(part.status().await["object_bytes"], stored(&bucket));
    });
}

/// Bytes that can't be compressed are stored as without compression: the same objects and manifests.
#[test]
fn what_does_not_shrink_costs_nothing() {
    world(5, |bucket| async move {
        let mut found = Vec::new();
        for compression in [Compression::None, Compression::Lz4] {
            let part = open(Some((1 << 20, 300 << 10)), compression, None).await;
            let zones = handle(&part).await;
            append(&*zones, 0, &contents(1, 1 << 20, 100)).await;
            zones.flush(&[ZoneIndex(0)]).await.unwrap();
            let objects = bucket.objects.borrow();
            let object = |key: &String| objects[key].bytes[..16].to_vec();
            let lengths: Vec<usize> =
                keys(&bucket, "zones/").iter().map(|key| objects[key].bytes.len()).collect();
            let versions: Vec<Vec<u8>> = keys(&bucket, "").iter().map(object).collect();
            found.push((lengths, versions));
            drop(objects);
            bucket.objects.borrow_mut().clear();
        }
        assert_eq!(found[0], found[1]);
    });
}

fn crc(bytes: &[&[u8]]) -> [u8; 4] {
    (crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &bytes.concat()) as u32).to_le_bytes()
}

/// Checksum of a chunk, or with `!offset` of the index, of a piece with this object.
fn place_checksum(object: &[u8], at: u64, bytes: &[u8]) -> [u8; 4] {
    let (volume, zone, epoch, generation) =
        (&object[16..32], &object[32..36], &object[36..40], &object[40..48]);
    crc(&[volume, zone, epoch, generation, &at.to_le_bytes(), bytes])
}

/// Answers of a damaged or hostile store, with checksums that fit: an error with the object's key, in bounded
/// memory, and a check finds it.
#[test]
fn damaged_and_invented_lengths_are_errors() {
    for key in [None, Some(5)] {
        world(6, move |bucket| async move {
            let part = open(Some((1 << 20, 1 << 20)), Compression::Lz4, key).await;
            let zones = handle(&part).await;
            let first = [contents(2, 20 << 10, 100), vec![7; 44 << 10]].concat();
            let bytes = [first, contents(1, 236 << 10, 20)].concat();
            for zone in [0, 0, 1] {
                append(&*zones, zone, &bytes).await;
                zones.flush(&[ZoneIndex(zone)]).await.unwrap();
            }
            let pieces = keys(&bucket, "zones/");
            let (first, other) = (&pieces[0], bucket.objects.borrow()[&pieces[1]].bytes.clone());
            let sound = bucket.objects.borrow()[first].bytes.clone();
            let seal = if key.is_some() { 40 } else { 4 };
            let index = HEADER..HEADER + 10;
            let chunks = index.end + seal;
            let lengths: Vec<usize> = sound[index.clone()]
                .chunks(2)
                .map(|of| usize::from(u16::from_le_bytes([of[0], of[1]])) + 1)
                .collect();
            if key.is_none() {
                assert_eq!(lengths.iter().map(|length| length + seal).sum::<usize>(), sound.len() - chunks);
                assert!(lengths[0] < CHUNK && lengths[0] != lengths[1], "{lengths:?}");
            }
            let with_index = |lengths: [usize; 5]| {
                let of: Vec<u8> = lengths
                    .iter()
                    .flat_map(|length| (*length as u16).wrapping_sub(1).to_le_bytes())
                    .collect();
                [&sound[..index.start], &of, &place_checksum(&sound, !0, &of), &sound[chunks..]].concat()
            };
            let with_chunk = |stored: &[u8]| {
                let (from, sum) = (sound[..chunks].to_vec(), place_checksum(&sound, 0, stored));
                [&from[..], stored, &sum, &sound[chunks + lengths[0] + 4..]].concat()
            };
            let flipped = |at: usize| {
                let mut bytes = sound.clone();
                bytes[at] ^= 1;
                bytes
            };
            let mut altered = vec![
                ("the index", flipped(index.start)),
                ("the end of the index", flipped(chunks - 1)),
                ("a chunk", flipped(chunks + 3)),
                ("the index of another piece", [&other[..chunks], &sound[chunks..]].concat()),
                ("another piece", other.clone()),
                ("shorter", sound[..sound.len() - 1].to_vec()),
                ("the index alone", sound[..chunks].to_vec()),
                ("within the index", sound[..chunks - 3].to_vec()),
                ("nothing", Vec::new()),
                ("longer", [&sound[..], &[0]].concat()),
            ];
            if key.is_none() {
                let of = <[usize; 5]>::try_from(&lengths[..]).unwrap();
                let [a, b, rest @ ..] = of;
                altered.extend([
                    ("lengths exchanged", with_index([b, a, rest[0], rest[1], rest[2]])),
                    ("the longest lengths", with_index([CHUNK; 5])),
                    ("the shortest lengths", with_index([1; 5])),
                    ("another sum", with_index([a + 1, b, rest[0], rest[1], rest[2]])),
                    ("zeros in place of what was compressed", with_chunk(&vec![0; a])),
                    ("a long run", with_chunk(&[&[0x1f, 0, 1, 0][..], &vec![255; a - 4]].concat())),
                ]);
            }
            for (what, bytes_then) in altered {
                let mut object = bucket.objects.borrow()[first].clone();
                object.headers.clear();
                object.bytes = bytes_then;
                bucket.objects.borrow_mut().insert(first.clone(), object);
                // Without an index in memory.
                let reader = of(None, Compression::None, key);
                let reader = ReaderPart::open(reader, Duration::from_secs(1000)).await.unwrap();
                let zones = reader.open().await.unwrap();
                let error = read(&*zones, 0, 0, 300 << 10).await.unwrap_err();
                let is_named = error.to_string().contains(&**first);
                assert!(matches!(error, Error::Corrupt(_)) && is_named, "{what}: {error}");
                assert!(read(&*zones, 1, 0, 300 << 10).await.unwrap() == bytes, "the rest is served");
                let volume = Volume::new(of(None, Compression::None, key)).unwrap();
                let report = volume.check(true, &|_| (), &|_, _| ()).await.unwrap();
                assert!(report.damage.iter().all(|damage| damage.object == *first), "{what}: {report:?}");
                assert!(report.is_damaged() && report.lost_bytes <= 300 << 10, "{what}: {report:?}");
                let is_short = volume.check(false, &|_| (), &|_, _| ()).await.unwrap().is_damaged();
                let length = bucket.objects.borrow()[first].bytes.len();
                assert_eq!(is_short, length != sound.len(), "{what}: a check of the lengths");
            }
        });
    }
}
