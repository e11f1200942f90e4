//! LUKS2: volumes of our own, damaged headers, hostile ones.

use crate::suite::disk_of;
use block::{BlockIndex, Buffer, Data, DevicePart, Durability, Error, Payload};
use conformance::requests::on_a_shard;
use crypt::luks::{self, NewVolume};
use crypt::secret::{self, Secret};
use layers::fault::{FaultDevicePart, parse_rules};
use layers::record::replay::{CrashStates, History, ImageDisk, Search};
use layers::record::{RecordDevicePart, Recorder, Role};
use std::collections::BTreeSet;
use std::sync::Arc;

const FORMAT: NewVolume = NewVolume { sector_size: 4096, discards: false, memory: 64 << 10, iterations: 1 };

/// Bytes of a copy of the header.
const COPY: usize = 16 << 10;

fn passphrase(text: &str) -> Secret {
    secret::copy_of(text.as_bytes()).unwrap()
}

async fn formatted(block_size: u64, format: NewVolume) -> Arc<dyn DevicePart> {
    let disk = disk_of(20 << 20, block_size);
    luks::format(&disk, passphrase("right"), format).await.unwrap();
    disk
}

/// Error of opening; `None` if it opens.
async fn refusal(disk: &Arc<dyn DevicePart>, text: &str) -> Option<Error> {
    luks::open(disk.clone(), passphrase(text), luks::MAX_MEMORY).await.err()
}

/// Overwrites bytes of a disk with blocks of 512 bytes.
async fn damage(disk: &Arc<dyn DevicePart>, at: u64, byte: u8) {
    let device = disk.open().await.unwrap();
    let bytes = Data::copy_of(&[byte; 512]);
    device.write(BlockIndex(at / 512), bytes.into(), Durability::Visible).await.unwrap();
}

#[test]
fn a_volume_opens_with_its_passphrase_and_keeps_its_data() {
    on_a_shard(|| async {
        for (block_size, sector_size) in [(512, 4096), (4096, 512), (1 << 20, 4096)] {
            let disk = formatted(block_size, NewVolume { sector_size, ..FORMAT }).await;
            let block = block_size.max(sector_size as u64) as usize;
            for turn in 0..2 {
                let part = luks::open(disk.clone(), passphrase("right"), luks::MAX_MEMORY).await.unwrap();
                assert_eq!(part.geometry().bytes(), 4 << 20);
                assert_eq!(part.geometry().block_size.bytes(), block as u64);
                let device = part.open().await.unwrap();
                if turn == 0 {
                    let payload = Payload::from(Data::copy_of(&vec![7; block]));
                    device.write(BlockIndex(1), payload, Durability::Durable).await.unwrap();
                }
                let (read, buffer) = device.read(BlockIndex(1), Buffer::new(block)).await;
                read.unwrap();
                assert!(buffer.filled().iter().all(|byte| *byte == 7));
            }
            let error = refusal(&disk, "wrong").await.unwrap();
            assert!(
                matches!(&error, Error::PermissionDenied(text) if text.contains("opens no key slot")),
                "{error}"
            );
        }
    });
}

#[test]
fn two_volumes_have_different_keys_and_the_flag_of_discards_is_kept() {
    on_a_shard(|| async {
        let mut ciphertexts = Vec::new();
        for discards in [false, true] {
            let disk = formatted(4096, NewVolume { discards, ..FORMAT }).await;
            let part = luks::open(disk.clone(), passphrase("right"), luks::MAX_MEMORY).await.unwrap();
            assert_eq!(part.discards(), discards);
            let zeros = Data::copy_of(&[0; 4096]);
            part.open().await.unwrap().write(BlockIndex(0), zeros.into(), Durability::Visible).await.unwrap();
            let below = disk.open().await.unwrap();
            let (read, buffer) = below.read(BlockIndex(luks::DATA / 4096), Buffer::new(4096)).await;
            read.unwrap();
            ciphertexts.push(buffer.filled().to_vec());
        }
        assert!(ciphertexts[0] != ciphertexts[1] && ciphertexts[0] != [0; 4096]);
    });
}

#[test]
fn one_copy_of_the_header_suffices_and_damage_is_told() {
    on_a_shard(|| async {
        for (damaged, opens) in [
            (&[0][..], true),
            (&[8192], true),
            (&[16384], true),
            (&[30000 / 512 * 512], true),
            (&[0, 16384], false),
            (&[4096, 20480], false),
        ] {
            let disk = formatted(512, FORMAT).await;
            for at in damaged {
                damage(&disk, *at, 0xa5).await;
            }
            let error = refusal(&disk, "right").await;
            assert_eq!(error.is_none(), opens, "{damaged:?}: {error:?}");
        }
        // A key slot has no second copy.
        let disk = formatted(512, FORMAT).await;
        damage(&disk, 32768 + 100 * 512, 0).await;
        assert!(matches!(refusal(&disk, "right").await, Some(Error::PermissionDenied(_))));
    });
}

#[test]
fn what_is_no_volume_is_named() {
    on_a_shard(|| async {
        let error = refusal(&disk_of(1 << 20, 512), "right").await.unwrap().to_string();
        assert!(error.contains("no LUKS header at byte 0, but nothing but zeros"), "{error}");
        assert!(refusal(&disk_of(512, 512), "right").await.is_some());
        let small = disk_of(luks::DATA, 512);
        let error = luks::format(&small, passphrase("right"), FORMAT).await.unwrap_err();
        assert!(error.to_string().contains("expected more than 16777216"), "{error}");
        // An image that was copied in part.
        let disk = formatted(4096, FORMAT).await.open().await.unwrap();
        for (bytes, expected) in [
            (8 << 10, "header is cut off: the device has 8192 bytes; expected at least 16384"),
            (1 << 20, "volume is cut off: the device has 1048576 bytes; expected at least 16781312"),
            (16 << 20, "volume is cut off: the device has 16777216 bytes"),
        ] {
            let (read, start) = disk.read(BlockIndex(0), Buffer::new(bytes)).await;
            read.unwrap();
            let part = disk_of(bytes as u64, 512);
            let device = part.open().await.unwrap();
            let start = Data::copy_of(start.filled());
            device.write(BlockIndex(0), start.into(), Durability::Visible).await.unwrap();
            let error = refusal(&part, "right").await.unwrap();
            assert!(matches!(&error, Error::Corrupt(text) if text.contains(expected)), "{error}");
        }
        // A header that asks for more memory than is permitted.
        let disk = formatted(4096, NewVolume { memory: 2 << 20, ..FORMAT }).await;
        let error = luks::open(disk.clone(), passphrase("right"), 1 << 20).await.err().unwrap();
        assert!(error.to_string().contains("2048 KiB of memory; expected at most 1024 KiB"), "{error}");
    });
}

/// Records what is done to a disk of 20 MiB in blocks of 4096 bytes.
fn recorded() -> (Arc<dyn DevicePart>, impl Fn() -> Arc<History>) {
    let recorder = Recorder::in_memory();
    let disk = RecordDevicePart::new(disk_of(20 << 20, 4096), recorder.clone(), "disk", Role::Disk).unwrap();
    let number = disk.number();
    (Arc::new(disk), move || History::new(&recorder.timeline().unwrap(), number).unwrap())
}

/// A power cut at any moment of formatting leaves no header, or one that a passphrase opens: the new one, or
/// that of the earlier volume as long as its header is there.
#[test]
fn formatting_that_is_cut_short_leaves_no_header_that_nothing_opens() {
    on_a_shard(|| async {
        let (disk, history) = recorded();
        for text in ["earlier", "right"] {
            luks::format(&disk, passphrase(text), FORMAT).await.unwrap();
        }
        let history = history();
        let events = history.events() + 1;
        let (mut opened, mut absent) = ([0; 2], 0);
        for state in CrashStates::new(history, 0..events, Search::new(1)) {
            let after: Arc<dyn DevicePart> = Arc::new(ImageDisk::new(state.image));
            match refusal(&after, "right").await {
                None => opened[1] += 1,
                Some(Error::NotFound(_) | Error::Corrupt(_)) => absent += 1,
                Some(error) => {
                    let earlier = refusal(&after, "earlier").await;
                    assert!(earlier.is_none(), "{:?} {}: {error}", state.cuts, state.choice);
                    opened[0] += 1;
                }
            }
        }
        assert!(absent > 10 && opened[0] > 2 && opened[1] > 2, "{absent} {opened:?}");
    });
}

/// Changes the metadata in both copies of a header.
async fn change(disk: &Arc<dyn DevicePart>, how: impl Fn(&mut serde_json::Value)) {
    let device = disk.open().await.unwrap();
    let block = device.geometry().block_size.bytes();
    for at in [0, COPY as u64] {
        let (read, buffer) = device.read(BlockIndex(at / block), Buffer::new(COPY)).await;
        read.unwrap();
        let mut bytes = buffer.filled().to_vec();
        let text = bytes[4096..].split(|byte| *byte == 0).next().unwrap();
        let mut json = serde_json::from_slice(text).unwrap();
        how(&mut json);
        let text = json.to_string();
        bytes[4096..].fill(0);
        bytes[4096..4096 + text.len()].copy_from_slice(text.as_bytes());
        bytes[448..512].fill(0);
        let sum = ring::digest::digest(&ring::digest::SHA256, &bytes);
        bytes[448..480].copy_from_slice(sum.as_ref());
        device
            .write(BlockIndex(at / block), Data::copy_of(&bytes).into(), Durability::Visible)
            .await
            .unwrap();
    }
}

/// A device may keep what blocks had that were only made to read as zeros.
#[test]
fn formatting_overwrites_all_that_an_earlier_volume_had_before_its_data() {
    on_a_shard(|| async {
        // Bytes of the earlier header, or more than is plausible: then only its largest size counts.
        for (data, expected) in [(luks::DATA, luks::DATA), (17 << 20, 17 << 20), (1 << 40, 20 << 20)] {
            let (disk, history) = recorded();
            luks::format(&disk, passphrase("earlier"), FORMAT).await.unwrap();
            change(&disk, |json| json["segments"]["0"]["offset"] = data.to_string().into()).await;
            let before = history().operations().len();
            luks::format(&disk, passphrase("right"), FORMAT).await.unwrap();
            let history = history();
            let operations = &history.operations()[before..];
            assert!(operations.iter().all(|operation| !operation.is_zeros()));
            let mut covered: Vec<_> = operations.iter().map(|operation| operation.range.clone()).collect();
            covered.sort_by_key(|range| range.start);
            let end = covered
                .iter()
                .fold(0, |end, range| if range.start <= end { end.max(range.end) } else { end });
            assert_eq!(end, expected);
            // What isn't the header is random: no two pieces are alike, and none is zeros.
            let device = disk.open().await.unwrap();
            let (read, buffer) = device.read(BlockIndex(0), Buffer::new(expected as usize)).await;
            read.unwrap();
            let pieces: BTreeSet<&[u8]> = buffer.filled()[1 << 20..].chunks(64).collect();
            assert_eq!(pieces.len(), (expected as usize - (1 << 20)) / 64);
        }
    });
}

/// A passphrase that may be right isn't called wrong.
#[test]
fn a_slot_of_an_unknown_kind_is_named() {
    on_a_shard(|| async {
        let disk = formatted(4096, FORMAT).await;
        change(&disk, |json| json["keyslots"]["0"]["kdf"]["type"] = "scrypt".into()).await;
        let error = refusal(&disk, "right").await.unwrap();
        let expected =
            "key slot 0: the LUKS2 volume: key derivation \"scrypt\"; expected argon2id, argon2i, pbkdf2";
        assert!(matches!(&error, Error::Unsupported(text) if text.contains(expected)), "{error}");
        change(&disk, |json| json["keyslots"]["0"]["priority"] = 0.into()).await;
        let error = refusal(&disk, "right").await.unwrap();
        assert!(matches!(&error, Error::NotFound(text) if text.contains("no key slot in use")), "{error}");
    });
}

/// Slots that can't be read or have odd fields don't keep another one from being opened.
#[test]
fn a_slot_that_cant_be_tried_doesnt_keep_others_from_being_tried() {
    on_a_shard(|| async {
        let disk = formatted(4096, FORMAT).await;
        change(&disk, |json| {
            for (number, offset) in [("1", "1048576"), ("2", "0")] {
                let mut slot = json["keyslots"]["0"].clone();
                slot["priority"] = 2.into();
                slot["area"]["offset"] = offset.into();
                json["keyslots"][number] = slot;
                json["digests"]["0"]["keyslots"].as_array_mut().unwrap().push(number.into());
            }
        })
        .await;
        let rules = parse_rules(&["read range=1MiB..2MiB error=EIO".to_owned()], stack::Contract::Device);
        let disk: Arc<dyn DevicePart> = Arc::new(FaultDevicePart::new(disk, rules.unwrap(), 1).unwrap());
        let part = luks::open(disk.clone(), passphrase("right"), luks::MAX_MEMORY).await.unwrap();
        let part: Arc<dyn DevicePart> = Arc::new(part);
        assert_eq!(part.status().await["key_slot"], 0);
        let error = refusal(&disk, "wrong").await.unwrap();
        assert!(matches!(error, Error::Os(..) | Error::Io(_)), "{error:?}");
        let error = error.to_string();
        for expected in
            ["opens no key slot", "key slot 1: reading", "key slot 2: the LUKS2 metadata", "out of range"]
        {
            assert!(error.contains(expected), "{error}");
        }
    });
}
