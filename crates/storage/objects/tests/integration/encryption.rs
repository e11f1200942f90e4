//! Encrypted volumes: a store that alters, moves and replays objects, keys that don't fit, keys that a reset
//! destroys, crashes, and nonces.

use crate::common::{ZONES, append, bytes, handle, options, read, settings_of, world};
use crate::crash::{Acknowledged, Model, Objects, judge, step};
use crate::merge::{fill, has};
use block::{DevicePart, EraseGuarantee, Error, Part, ZoneAddress, ZoneIndex, ZoneState, Zones, ZonesPart};
use conformance::budget::Budget;
use crypt::secret;
use disks::file::FilePart;
use disks::ram::RamPart;
use object_store::testing::{Bucket, Faults};
use objects::{Encryption, ObjectsPart, Options};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// A chunk of a piece in its object, with its nonce and its tag, and the header before the first one.
const CHUNK: usize = (64 << 10) + 40;
const HEADER: usize = 64;

/// Options of an encrypted volume.
pub fn with_key(format: bool, key: u8, key_store: Option<Arc<dyn DevicePart>>) -> Options {
    let key = Arc::new(secret::copy_of(&[key; 32]).unwrap());
    Options { encryption: Some(Encryption { key, key_store }), ..options(format) }
}

pub async fn open(format: bool, key_store: Option<Arc<dyn DevicePart>>) -> ObjectsPart {
    ObjectsPart::open(with_key(format, 5, key_store)).await.unwrap()
}

/// Returns a key store in memory, a new volume with it, and a handle of its zones.
pub async fn new_volume() -> (Arc<dyn DevicePart>, ObjectsPart, Rc<dyn Zones>) {
    let store = memory();
    let part = open(true, Some(store.clone())).await;
    let zones = handle(&part).await;
    (store, part, zones)
}

pub fn memory() -> Arc<dyn DevicePart> {
    Arc::new(RamPart::new(64 << 10, block::BlockSize::new(4096).unwrap()).unwrap())
}

fn keys(bucket: &Bucket, part: &str) -> Vec<String> {
    bucket.objects.borrow().keys().filter(|key| key.contains(part)).cloned().collect()
}

/// With a checksum at the end that fits, as an attacker would write it.
fn resummed(mut bytes: Vec<u8>) -> Vec<u8> {
    let at = bytes.len() - 4;
    let sum = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &bytes[..at]) as u32;
    bytes[at..].copy_from_slice(&sum.to_le_bytes());
    bytes
}

/// Replaces the contents of an object, and removes the checksum in its metadata.
fn replace(bucket: &Bucket, key: &str, bytes: Vec<u8>) {
    let mut objects = bucket.objects.borrow_mut();
    let object = objects.get_mut(key).unwrap();
    object.headers.clear();
    object.bytes = bytes;
}

#[test]
fn the_bucket_has_ciphertext_and_reads_have_what_was_appended() {
    for has_store in [false, true] {
        world(1, move |bucket| async move {
            let store = has_store.then(memory);
            let part = open(true, store.clone()).await;
            let zones = handle(&part).await;
            for (value, length) in [(1, 512), (2, 90 << 10), (3, 20 << 10)] {
                append(&*zones, 1, value, length).await;
            }
            let expected = [vec![1; 512], vec![2; 90 << 10], vec![3; 20 << 10]].concat();
            // From memory, sealed and not, and from the bucket.
            assert_eq!(read(&*zones, 1, 0, expected.len()).await.unwrap(), expected);
            zones.flush(&[ZoneIndex(1)]).await.unwrap();
            for (at, length) in [(0, expected.len()), (512, 1024), (47 << 10, 4096), (100 << 10, 10 << 10)] {
                let found = read(&*zones, 1, at as u64, length).await.unwrap();
                assert_eq!(found, expected[at..at + length]);
            }
            append(&*zones, 1, 4, 4096).await;
            drop(zones);
            part.close().await.unwrap();
            let part = open(false, store).await;
            let zones = handle(&part).await;
            assert_eq!(read(&*zones, 1, 0, expected.len()).await.unwrap(), expected);
            let status = part.status().await;
            assert_eq!(status["encryption"], "XAES-256-GCM");
            assert_eq!(status["erase"], if has_store { "key" } else { "none" });
            assert!(!format!("{status:?}").contains("0505"), "{status:?}");
            for (key, object) in &*bucket.objects.borrow() {
                let has_run = object.bytes.windows(24).any(|bytes| bytes[0] > 0 && bytes == [bytes[0]; 24]);
                assert!(!has_run, "object {key} has text that can be read");
            }
        });
    }
}

/// Each alteration is an error of the reads of what was there, with the object's key, and nothing else.
#[test]
fn altered_moved_and_replayed_pieces_are_never_returned() {
    world(2, |bucket| async move {
        let settings = objects::Settings { piece_size: 160 << 10, ..crate::common::settings() };
        let part = ObjectsPart::open(Options { settings, ..with_key(true, 5, None) }).await.unwrap();
        let zones = handle(&part).await;
        let fill = async |zone: u32, value: u8| {
            append(&*zones, zone, value, 80 << 10).await;
            append(&*zones, zone, value + 1, 80 << 10).await;
            append(&*zones, zone, value + 2, 30 << 10).await;
            zones.flush(&[ZoneIndex(zone)]).await.unwrap();
        };
        fill(0, 1).await;
        let old = keys(&bucket, "zones/00000000.0000000000000001");
        let old: Vec<Vec<u8>> = old.iter().map(|key| bucket.objects.borrow()[key].bytes.clone()).collect();
        zones.reset(ZoneIndex(0), EraseGuarantee::None).await.unwrap();
        fill(0, 1).await;
        fill(1, 1).await;
        let pieces = keys(&bucket, "zones/00000000.0000000000000002");
        let others = keys(&bucket, "zones/00000001.");
        assert_eq!((pieces.len(), others.len(), old.len()), (2, 2, 2));
        let first = bucket.objects.borrow()[&pieces[0]].bytes.clone();
        let second = bucket.objects.borrow()[&pieces[1]].bytes.clone();
        let other = bucket.objects.borrow()[&others[0]].bytes.clone();
        assert_eq!(
            (first.len(), other.len(), old[0].len()),
            (HEADER + 2 * CHUNK + (32 << 10) + 40, first.len(), first.len())
        );
        let flipped = |at: usize| {
            let mut bytes = first.clone();
            bytes[at] ^= 1;
            bytes
        };
        let (a, b) = (HEADER..HEADER + CHUNK, HEADER + CHUNK..HEADER + 2 * CHUNK);
        let swapped = [&first[..HEADER], &first[b.clone()], &first[a.clone()], &first[b.end..]].concat();
        let foreign = [&first[..HEADER], &other[a.clone()], &first[a.end..]].concat();
        let nonce_of_other =
            [&first[..a.end - 40], &first[b.end - 40..b.end - 16], &first[a.end - 16..]].concat();
        for (what, altered) in [
            ("the first byte", flipped(HEADER)),
            ("a byte in the middle", flipped(HEADER + 1000)),
            ("the last byte of a chunk", flipped(a.end - 41)),
            ("the first byte of a nonce", flipped(a.end - 40)),
            ("the number in a nonce", flipped(a.end - 20)),
            ("the first byte of a tag", flipped(a.end - 16)),
            ("the last byte of a tag", flipped(a.end - 1)),
            ("two chunks swapped", swapped),
            ("a chunk of another zone", foreign),
            ("the nonce of another chunk", nonce_of_other),
            ("the piece of another zone", other.clone()),
            ("the piece of the generation before", old[0].clone()),
            ("another piece of the zone", second.clone()),
            ("a shorter object", first[..first.len() - 1].to_vec()),
            ("an object without its last chunk", first[..b.end].to_vec()),
            ("a longer object", [&first[..], &[0]].concat()),
            ("zeros", vec![0; first.len()]),
        ] {
            replace(&bucket, &pieces[0], altered);
            let error = read(&*zones, 0, 0, 160 << 10).await.unwrap_err();
            let is_named = error.to_string().contains(&*pieces[0]);
            assert!(matches!(error, Error::Corrupt(_)) && is_named, "{what}: {error}");
            // The rest is served.
            assert_eq!(read(&*zones, 0, 160 << 10, 30 << 10).await.unwrap(), vec![3; 30 << 10]);
            assert_eq!(read(&*zones, 1, 0, 80 << 10).await.unwrap(), vec![1; 80 << 10]);
        }
        replace(&bucket, &pieces[0], first);
        assert_eq!(read(&*zones, 0, 0, 80 << 10).await.unwrap(), vec![1; 80 << 10]);
    });
}

/// An altered manifest is refused at opening, whatever its checksum says.
#[test]
fn altered_and_moved_manifests_are_refused() {
    world(3, |bucket| async move {
        let part = open(true, None).await;
        let zones = handle(&part).await;
        for value in 1..=2 {
            append(&*zones, 1, value, 4096).await;
            zones.flush(&[ZoneIndex(1)]).await.unwrap();
        }
        drop((zones, part));
        let manifests = keys(&bucket, "manifest/00000001/");
        assert_eq!(manifests.len(), 4, "a claim, a base and two deltas");
        let before = bucket.objects.borrow().clone();
        for (number, key) in manifests.iter().enumerate().skip(1) {
            let kept = before[key].bytes.clone();
            let mut altered: Vec<(String, Vec<u8>)> = (0..kept.len() - 4)
                .step_by(3)
                .map(|at| {
                    let mut bytes = kept.clone();
                    bytes[at] ^= 1;
                    (format!("byte {at}"), resummed(bytes))
                })
                .collect();
            // Another manifest of the chain, with its number; and one without protection.
            let mut moved = before[&manifests[if number == 2 { 3 } else { 2 }]].bytes.clone();
            moved[56] = number as u8;
            altered.push(("another manifest".to_owned(), resummed(moved)));
            let mut by_seal = 0;
            for (what, bytes) in altered {
                replace(&bucket, key, bytes);
                let error = ObjectsPart::open(with_key(false, 5, None)).await.unwrap_err();
                let is_damage = matches!(error, Error::Corrupt(_) | Error::Unsupported(_));
                assert!(is_damage && error.to_string().contains(&**key), "{key}, {what}: {error}");
                by_seal += usize::from(error.to_string().contains("was altered"));
            }
            assert!(by_seal > kept.len() / 6, "{by_seal} alterations were noticed by the seal");
            replace(&bucket, key, kept);
            assert_eq!(bucket.objects.borrow().len(), before.len(), "nothing was written");
        }
        open(false, None).await.close().await.unwrap();
    });
}

/// Keys that don't fit are refused before anything is written, and errors don't have them.
#[test]
fn wrong_and_missing_keys_are_refused_before_anything_is_written() {
    for has_store in [false, true] {
        world(4, move |bucket| async move {
            let store = has_store.then(memory);
            let part = open(true, store.clone()).await;
            let zones = handle(&part).await;
            append(&*zones, 1, 1, 4096).await;
            zones.flush(&[ZoneIndex(1)]).await.unwrap();
            let before: Vec<String> = keys(&bucket, "");
            let other: Arc<dyn DevicePart> = memory();
            let mut refused = vec![
                (options(false), "encrypted; expected key_file"),
                (with_key(false, 6, store.clone()), "another key than that of key_file"),
            ];
            match has_store {
                true => {
                    refused.push((with_key(false, 5, None), "expected key_store"));
                    refused.push((with_key(false, 5, Some(other.clone())), "no key store of zones"));
                }
                false => {
                    let created =
                        Options { prefix: "b".to_owned(), ..with_key(true, 5, Some(other.clone())) };
                    ObjectsPart::open(created).await.unwrap();
                    refused
                        .push((with_key(false, 5, Some(other.clone())), "no key store; leave key_store out"));
                }
            }
            let count = keys(&bucket, "db1/").len();
            for (options, expected) in refused {
                let error = ObjectsPart::open(options).await.unwrap_err();
                let text = format!("{error} {error:?}");
                assert!(text.contains(expected), "{text}; expected: {expected}");
                assert!(!text.contains("5, 5, 5") && !text.contains("0505"), "{text}");
            }
            assert_eq!(keys(&bucket, "db1/").len(), count);
            assert!(before.iter().all(|key| bucket.objects.borrow().contains_key(key)));
            // The writer isn't fenced.
            append(&*zones, 1, 2, 4096).await;
            zones.flush(&[ZoneIndex(1)]).await.unwrap();
            if has_store {
                let foreign = Options { prefix: "b".to_owned(), ..with_key(true, 5, Some(other.clone())) };
                ObjectsPart::open(foreign).await.unwrap();
                let error = ObjectsPart::open(with_key(false, 5, Some(other))).await.unwrap_err();
                assert!(error.to_string().contains("the secrets of another volume"), "{error}");
                zones.flush(&[ZoneIndex(1)]).await.unwrap();
            }
            assert_eq!(
                format!("{:?}", with_key(false, 5, store).encryption),
                format!("Some(Encryption {{ key_store: {has_store} }})")
            );
        });
    }
}

#[test]
fn a_volume_keeps_the_encryption_that_it_was_made_with_until_it_is_formatted() {
    world(5, |bucket| async move {
        let part = crate::common::create().await;
        let zones = handle(&part).await;
        append(&*zones, 1, 1, 4096).await;
        zones.flush(&[ZoneIndex(1)]).await.unwrap();
        assert!(
            bucket
                .objects
                .borrow()
                .values()
                .all(|object| object.bytes[8] < 3 && object.bytes[12..16] == [0; 4])
        );
        let error = ObjectsPart::open(with_key(false, 5, None)).await.unwrap_err();
        assert!(error.to_string().contains("isn't encrypted"), "{error}");
        // Formatting fences the writer, with another key as well.
        for key in [5, 6] {
            let part = ObjectsPart::open(with_key(true, key, None)).await.unwrap();
            let new = handle(&part).await;
            append(&*new, 1, 1, 4096).await;
            new.flush(&[ZoneIndex(1)]).await.unwrap();
        }
        append(&*zones, 1, 1, 4096).await;
        let fenced = zones.flush(&[ZoneIndex(1)]).await.unwrap_err();
        assert!(matches!(fenced, Error::ReadOnly(_)), "{fenced}");
        let part = ObjectsPart::open(with_key(false, 6, None)).await.unwrap();
        part.message("gc").await.unwrap();
        runtime::sleep(Duration::from_secs(61)).await;
        assert_eq!(keys(&bucket, "zones/").len(), 1);
        let seals = |epoch: u32| keys(&bucket, &format!("manifest/{epoch:08x}/")).len();
        assert_eq!([1, 2, 3].map(seals), [2; 3], "a claim and a seal of each epoch, also with another key");
        assert_eq!(read(&*handle(&part).await, 1, 0, 4096).await.unwrap(), vec![1; 4096]);
    });
}

pub type Files = Vec<(PathBuf, Vec<u8>)>;

const KEY_STORE: &str = "/keys.img";

/// The key store in a file of the world.
async fn file() -> Option<Arc<dyn DevicePart>> {
    Some(Arc::new(FilePart::open_path(Path::new(KEY_STORE), Some(64 << 10)).await.unwrap()))
}

/// Runs a test in a world with this bucket and these files, and returns what it returns.
pub fn in_world<T: 'static, Fut: Future<Output = T> + 'static>(
    seed: u64,
    (objects, files): (Objects, Files),
    test: impl FnOnce(Rc<Bucket>) -> Fut + 'static,
) -> T {
    let (outcome, simulation) = (Rc::new(RefCell::new(None)), runtime::Simulation::new(seed));
    let simulation = runtime::Simulation { most_events: 200_000_000, files, ..simulation };
    let slot = outcome.clone();
    let run = || async move {
        let bucket = Bucket::start(Faults::default());
        bucket.objects.replace(objects);
        let returned = test(bucket).await;
        *slot.borrow_mut() = Some(returned);
    };
    runtime::simulate(simulation, run).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    outcome.take().unwrap()
}

/// A bucket that keeps all versions, the operator's key, and the key store as a reset has left it.
#[test]
fn what_a_reset_has_erased_stays_erased_in_a_bucket_with_versions() {
    for erase in [EraseGuarantee::Key, EraseGuarantee::Erased, EraseGuarantee::None] {
        let (versions, before, after) = in_world(6, Default::default(), move |bucket| async move {
            let part = open(true, file().await).await;
            assert_eq!(part.geometry().erase, EraseGuarantee::Key);
            let zones = handle(&part).await;
            for zone in 1..=2 {
                append(&*zones, zone, 1, 4096).await;
            }
            zones.flush(&[ZoneIndex(1), ZoneIndex(2)]).await.unwrap();
            let (versions, before) = (bucket.objects.borrow().clone(), runtime::power_cut());
            zones.reset(ZoneIndex(1), erase).await.unwrap();
            append(&*zones, 1, 2, 512).await;
            assert_eq!(read(&*zones, 1, 0, 512).await.unwrap(), vec![2; 512]);
            zones.flush(&[ZoneIndex(1)]).await.unwrap();
            (versions, before, runtime::power_cut())
        });
        let read_old = |files: Files| {
            in_world(60, (versions.clone(), files), |_| async {
                let part = ObjectsPart::open(with_key(false, 5, file().await)).await?;
                read(&*handle(&part).await, 1, 0, 4096).await
            })
        };
        assert_eq!(
            read_old(before).unwrap(),
            vec![1; 4096],
            "the key store of before opens the old versions"
        );
        let error = read_old(after).unwrap_err();
        assert!(matches!(error, Error::Corrupt(_)) && error.to_string().contains("rolled back"), "{error}");
    }
}

/// An older copy of the key store loses the zones that were reset since, and no others.
#[test]
fn an_older_key_store_loses_only_what_it_lacks() {
    let (objects, files) = in_world(7, Default::default(), |bucket| async move {
        let part = open(true, file().await).await;
        let zones = handle(&part).await;
        append(&*zones, 2, 2, 4096).await;
        let files = runtime::power_cut();
        zones.reset(ZoneIndex(1), EraseGuarantee::Key).await.unwrap();
        append(&*zones, 1, 1, 4096).await;
        drop(zones);
        part.close().await.unwrap();
        (bucket.objects.borrow().clone(), files)
    });
    in_world(70, (objects, files), |_| async {
        let part = open(false, file().await).await;
        assert_eq!(part.status().await["zones_without_key"], 1);
        let zones = handle(&part).await;
        assert_eq!(read(&*zones, 2, 0, 4096).await.unwrap(), vec![2; 4096]);
        let error = read(&*zones, 1, 0, 4096).await.unwrap_err();
        assert!(matches!(error, Error::Corrupt(_)) && error.to_string().contains("zone 1"), "{error}");
        zones.append(ZoneIndex(1), bytes(1, 512)).await.unwrap_err();
        zones.reset(ZoneIndex(1), EraseGuarantee::Key).await.unwrap();
        append(&*zones, 1, 3, 4096).await;
        assert_eq!(read(&*zones, 1, 0, 4096).await.unwrap(), vec![3; 4096]);
    });
}

/// A moment: what the store and a power cut of this machine leave, and what was acknowledged.
struct Moment {
    objects: Objects,
    files: Files,
    acknowledged: Vec<Acknowledged>,
}

/// Runs a workload on an encrypted volume, and returns moments before its requests and between its writes to
/// the key store.
fn moments(seed: u64, has_store: bool) -> Vec<Moment> {
    in_world(seed, Default::default(), move |bucket| async move {
        let key_store = if has_store { file().await } else { None };
        let options = Options { settings: settings_of(seed), ..with_key(true, 5, key_store) };
        let part = ObjectsPart::open(options).await.unwrap();
        let handle = handle(&part).await;
        let model: Model = Rc::new(RefCell::new(Acknowledged::none()));
        let moments = Rc::new(RefCell::new(Vec::<Moment>::new()));
        let is_done = Rc::new(Cell::new(false));
        let (own, at, kept, done) = (bucket.clone(), model.clone(), moments.clone(), is_done.clone());
        let watch = runtime::spawn(async move {
            while !done.get() {
                let (count, files) = (own.objects.borrow().len(), runtime::power_cut());
                let is_new = kept
                    .borrow()
                    .last()
                    .is_none_or(|last| last.objects.len() != count || last.files != files);
                if is_new {
                    let (objects, acknowledged) = (own.objects.borrow().clone(), at.borrow().clone());
                    kept.borrow_mut().push(Moment { objects, files, acknowledged });
                }
                runtime::sleep(Duration::from_micros(30)).await;
            }
        });
        let mut random = runtime::Random::new(seed);
        for _ in 0..60 {
            step(&*handle, &model, &mut random).await;
        }
        is_done.set(true);
        watch.await;
        drop(handle);
        moments.take()
    })
}

#[test]
fn every_state_of_the_store_and_of_the_key_store_has_what_was_acknowledged() {
    let budget = Budget::of(2);
    let seeds = if conformance::budget::is_long() { 100 } else { 10 };
    'seeds: for seed in 1..=seeds {
        println!("SILTSTONE_SEED={seed}");
        let moments = moments(seed, true);
        let count = moments.len() as u64;
        let mut torn = BTreeSet::new();
        for (number, Moment { objects, files, acknowledged }) in moments.into_iter().enumerate() {
            if !budget.allows_more(seeds * count) {
                break 'seeds;
            }
            torn.insert(files.clone());
            let judged = in_world(1000 + seed, (objects, files), |bucket| async move {
                // A listing that shows an earlier moment isn't a rollback.
                bucket.faults.set(Faults { stale: 0.3, ..Faults::default() });
                let part = open(false, file().await).await;
                assert_eq!(part.status().await["zones_without_key"], 0);
                judge(&part, &acknowledged).await
            });
            judged.unwrap_or_else(|broken| panic!("seed {seed}, moment {number}: {broken}"));
        }
        assert!(torn.len() > 3, "seed {seed}: {} states of the key store", torn.len());
    }
}

/// Sealed texts with their tags, by zone, generation and nonce, or of manifests by nonce; and those of each
/// place.
#[derive(Default)]
struct Ciphertexts {
    by_nonce: BTreeMap<(String, [u8; 24]), Vec<u8>>,
    by_place: BTreeMap<(String, usize), BTreeSet<Vec<u8>>>,
}

impl Ciphertexts {
    fn add(&mut self, key: String, place: usize, nonce: &[u8], ciphertext: &[u8]) {
        let known = self.by_nonce.entry((key.clone(), nonce.try_into().unwrap()));
        let known = known.or_insert_with(|| ciphertext.to_vec());
        assert_eq!(known, ciphertext, "{key}: a nonce was used for two texts");
        self.by_place.entry((key, place)).or_default().insert(ciphertext.to_vec());
    }

    fn add_all(&mut self, objects: &Objects) {
        for (key, object) in objects {
            let bytes = &object.bytes;
            if let Some(name) = key.strip_prefix("db1/zones/") {
                // Zone and generation, whose key it is; the offset.
                let (folder, file) = name.split_once('/').unwrap();
                let offset = usize::from_str_radix(file.split_once('.').unwrap().0, 16).unwrap();
                let (is_compressed, index) = (bytes[12] & 4 == 4, HEADER..HEADER + 42);
                if is_compressed {
                    let index = &bytes[index.clone()];
                    self.add(folder[..25].to_owned(), !offset, &index[2..26], index);
                }
                // Compressed ones are shorter than a chunk.
                let chunks = if is_compressed { index.end } else { HEADER };
                for (number, chunk) in bytes[chunks..].chunks(CHUNK).enumerate() {
                    let nonce = &chunk[chunk.len() - 40..][..24];
                    self.add(folder[..25].to_owned(), offset + number, nonce, chunk);
                }
            } else if bytes[12] & 1 == 1 {
                // The associated data as well.
                let nonce = &bytes[bytes.len() - 44..][..24];
                self.add("manifests".to_owned(), 0, nonce, bytes);
            }
        }
    }
}

/// Crashed writers have uploaded pieces that no manifest names; the next ones write other bytes there, in
/// several worlds that follow the same moment, as after a rollback by the store. No nonce is used twice.
#[test]
fn no_nonce_is_used_for_two_texts_after_crashes_rewinds_and_rollbacks() {
    let mut seen = Ciphertexts::default();
    for seed in 1..=2 {
        for (number, moment) in moments(seed, false).into_iter().enumerate() {
            seen.add_all(&moment.objects);
            if number % 4 > 0 {
                continue;
            }
            for world in 1..=2_u64 {
                let seed = 1_000_000 * world + 1000 * seed + number as u64;
                let start = (moment.objects.clone(), Files::new());
                let written = in_world(seed, start, move |bucket| async move {
                    let zones = handle(&open(false, None).await).await;
                    let reports = zones.report(ZoneIndex(0), ZONES).await.unwrap();
                    for report in reports.iter().filter(|report| report.state != ZoneState::Full) {
                        if report.state == ZoneState::Interrupted {
                            let to = report.write_pointer / 1024 * 512;
                            zones.rewind(ZoneAddress::new(report.zone.0, to)).await.unwrap();
                        }
                        let _ = zones.append(report.zone, bytes(100 + world as u8, 40 << 10)).await;
                    }
                    let all: Vec<ZoneIndex> = (0..ZONES).map(ZoneIndex).collect();
                    zones.flush(&all).await.unwrap();
                    bucket.objects.borrow().clone()
                });
                seen.add_all(&written);
            }
        }
    }
    // Places with other texts under the same key: with nonces by place this test fails.
    let places = seen.by_place.iter().filter(|((key, _), texts)| key != "manifests" && texts.len() > 1);
    let (places, nonces) = (places.count(), seen.by_nonce.len());
    println!("{nonces} nonces; {places} places with several texts");
    assert!(places > 40 && nonces > 400, "{nonces} nonces; {places} places with several texts");
}

/// In an outage pieces are uploaded under several names, with the same seal.
#[test]
fn repeated_uploads_have_one_text_for_each_nonce() {
    let mut seen = Ciphertexts::default();
    let objects = in_world(8, Default::default(), |bucket| async move {
        let part = open(true, None).await;
        let zones = handle(&part).await;
        bucket.faults.set(Faults { internal: 1.0, ..Faults::default() });
        let own = bucket.clone();
        let heal = runtime::spawn(async move {
            runtime::sleep(Duration::from_secs(100)).await;
            own.faults.set(Faults::default());
        });
        for zone in 0..4 {
            append(&*zones, zone, zone as u8, 20 << 10).await;
        }
        let all: Vec<ZoneIndex> = (0..ZONES).map(ZoneIndex).collect();
        zones.flush(&all).await.unwrap();
        heal.await;
        bucket.objects.borrow().clone()
    });
    seen.add_all(&objects);
    let names = objects.keys().filter(|key| key.contains("/zones/")).count();
    assert!(names > 4, "{names} names of 4 pieces");
}

/// After a rollback two writers have the same epoch, and write to the same places with the same key.
#[test]
fn chunks_of_two_histories_are_not_exchanged() {
    let before = in_world(9, Default::default(), |bucket| async move {
        let part = open(true, None).await;
        append(&*handle(&part).await, 0, 9, 4096).await;
        part.close().await.unwrap();
        bucket.objects.borrow().clone()
    });
    let histories = [1, 2].map(|value| {
        in_world(90 + u64::from(value), (before.clone(), Files::new()), move |bucket| async move {
            let part = open(false, None).await;
            let zones = handle(&part).await;
            append(&*zones, 1, value, 40 << 10).await;
            zones.flush(&[ZoneIndex(1)]).await.unwrap();
            drop(zones);
            part.close().await.unwrap();
            bucket.objects.borrow().clone()
        })
    });
    in_world(99, (histories[1].clone(), Files::new()), move |bucket| async move {
        let zones = handle(&open(false, None).await).await;
        let piece = |objects: &Objects| {
            let mut pieces = objects.iter().filter(|(key, _)| key.contains("zones/00000001."));
            let (key, object) = pieces.next().unwrap();
            (key.clone(), object.bytes.clone())
        };
        let ((other, ours), (key, kept)) = (piece(&histories[0]), piece(&histories[1]));
        assert_ne!(other, key, "names of the two");
        assert_eq!(other[..other.len() - 16], key[..key.len() - 16], "at the same place");
        assert_eq!(read(&*zones, 1, 0, 4096).await.unwrap(), vec![2; 4096]);
        replace(&bucket, &key, ours);
        let error = read(&*zones, 1, 0, 4096).await.unwrap_err();
        assert!(matches!(error, Error::Corrupt(_)), "{error}");
        replace(&bucket, &key, kept);
        assert_eq!(read(&*zones, 1, 0, 4096).await.unwrap(), vec![2; 4096]);
    });
}

/// Merged pieces are sealed as others, also by a later writer, and no nonce is used twice.
#[test]
fn merged_pieces_are_sealed_with_the_key_of_their_zone() {
    world(10, |bucket| async move {
        let (store, versions) = (memory(), Rc::new(RefCell::new(Objects::new())));
        let (own, kept) = (Rc::downgrade(&bucket), versions.clone());
        bucket.follow(move |_| {
            kept.borrow_mut().append(&mut own.upgrade()?.objects.borrow().clone());
            None
        });
        let part = open(true, Some(store.clone())).await;
        let zones = handle(&part).await;
        fill(&*zones, 0, 0..60).await;
        zones.finish(ZoneIndex(0)).await.unwrap();
        fill(&*zones, 1, 0..20).await;
        runtime::sleep(Duration::from_secs(100)).await;
        let merged = part.status().await["merged_objects"].as_u64().unwrap();
        assert!(merged >= 40, "{merged} objects were merged");
        has(&*zones, 0, 0..60).await;
        has(&*zones, 1, 0..20).await;
        let part = open(false, Some(store)).await;
        let zones = handle(&part).await;
        has(&*zones, 0, 0..60).await;
        let mut seen = Ciphertexts::default();
        seen.add_all(&versions.borrow());
    });
}

/// A reset at any moment of a merge: nothing of the erased generation is uploaded once it has returned, and
/// what is appended afterwards is there.
#[test]
fn a_reset_that_erases_keys_cancels_a_merge_at_any_moment() {
    let (mut before, mut reading, mut uploaded) = (0, 0, 0);
    for moment in 0..10 {
        let (reads, uploads) = in_world(11, Default::default(), move |bucket| async move {
            let part = open(true, Some(memory())).await;
            let zones = handle(&part).await;
            // After a failure of the store nothing is merged for a while.
            let mut fails = 1;
            bucket.follow(move |_| {
                let answer = (fails > 0).then(|| b"HTTP/1.1 500 x\r\ncontent-length: 0\r\n\r\n".to_vec());
                fails = 0;
                answer
            });
            fill(&*zones, 0, 0..40).await;
            runtime::sleep(Duration::from_secs(11)).await;
            assert_eq!(part.status().await["merged_objects"], 0, "everything is left for the merge");
            bucket.latency.set(Duration::from_millis(50));
            let is_erased = Rc::new(Cell::new(false));
            let [late, reads, uploads] = [(); 3].map(|()| Rc::new(Cell::new(0)));
            let (switch, counts) = (is_erased.clone(), [&late, &reads, &uploads].map(Rc::clone));
            bucket.follow(move |asked| {
                let [late, reads, uploads] = &counts;
                let count = |counter: &Cell<usize>, is: bool| counter.set(counter.get() + usize::from(is));
                let is_old = asked.key.contains("zones/00000000.0000000000000001.");
                count(reads, is_old && asked.method == "GET");
                count(uploads, is_old && asked.method == "PUT");
                count(late, is_old && asked.method == "PUT" && switch.get());
                None
            });
            append(&*zones, 1, 1, 512).await;
            zones.flush(&[ZoneIndex(1)]).await.unwrap();
            runtime::sleep(Duration::from_millis(moment * 15)).await;
            let read = reads.get();
            assert_eq!(zones.reset(ZoneIndex(0), EraseGuarantee::Key).await, Ok(2));
            is_erased.set(true);
            fill(&*zones, 0, 0..40).await;
            runtime::sleep(Duration::from_secs(100)).await;
            assert_eq!(late.get(), 0, "moment {moment}: an upload of what was erased");
            has(&*zones, 0, 0..40).await;
            (read, uploads.get())
        });
        println!("moment {moment}: {reads} reads before the reset, {uploads} uploads");
        match (reads, uploads) {
            (0, _) => before += 1,
            (_, 0) => reading += 1,
            _ => uploaded += 1,
        }
    }
    println!("resets: {before} before a merge, {reading} while it reads, {uploaded} from its upload on");
    assert!(reading >= 3 && uploaded >= 2, "{before}, {reading}, {uploaded}");
}

/// A writer may reset zones until it is fenced: the next one doesn't use what it has read of the key store
/// before.
#[test]
fn secrets_that_were_renewed_before_the_fence_are_known_after_it() {
    world(12, |bucket| async move {
        let (store, _part, zones) = new_volume().await;
        append(&*zones, 1, 1, 4096).await;
        zones.flush(&[ZoneIndex(1)]).await.unwrap();
        // The first request of the next writer, which has read the key store.
        bucket.latency.set(Duration::from_secs(3));
        let opening = runtime::spawn(open(false, Some(store)));
        runtime::sleep(Duration::from_secs(1)).await;
        bucket.latency.set(Duration::ZERO);
        zones.reset(ZoneIndex(1), EraseGuarantee::Key).await.unwrap();
        append(&*zones, 1, 2, 4096).await;
        zones.flush(&[ZoneIndex(1)]).await.unwrap();
        assert!(!opening.is_finished());
        let part = opening.await;
        assert_eq!(part.status().await["zones_without_key"], 0);
        let zones = handle(&part).await;
        assert_eq!(read(&*zones, 1, 0, 4096).await.unwrap(), vec![2; 4096]);
    });
}
