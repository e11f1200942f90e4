//! Plain mode: bytes below and above, zeros, discards, declarations of the kind.

use crate::suite::disk_of;
use block::{BlockIndex, BlockRange, Buffer, Data, Device, DevicePart, Durability, ExtentState, ZeroMode};
use conformance::requests::on_a_shard;
use crypt::device::{CryptPart, Segment};
use crypt::secret;
use crypt::xts::Xts;
use stack::{Registry, Stack};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

const KEY: [u8; 64] = [9; 64];

/// Handles above and below, on a disk of 1 MiB in blocks of 512 bytes; data begins at `offset`.
async fn pair(segment: Segment, discards: bool) -> (Rc<dyn Device>, Rc<dyn Device>) {
    let disk = disk_of(1 << 20, 512);
    let part = CryptPart::new(disk.clone(), secret::expand(&KEY).unwrap(), segment, discards).unwrap();
    (part.open().await.unwrap(), disk.open().await.unwrap())
}

async fn read(device: &dyn Device, at: u64, bytes: usize) -> Vec<u8> {
    let (read, buffer) = device.read(BlockIndex(at), Buffer::new(bytes)).await;
    read.unwrap();
    buffer.filled().to_vec()
}

fn random(bytes: usize) -> Vec<u8> {
    let mut data = vec![0; bytes];
    runtime::Random::new(3).fill(&mut data);
    data
}

const WHOLE: Segment = Segment { offset: 0, bytes: None, tweak: 0, sector_size: 4096 };

#[test]
fn the_device_below_has_the_ciphertext_of_numbered_sectors() {
    on_a_shard(|| async {
        for segment in [
            WHOLE,
            Segment { offset: 64 << 10, tweak: 77, ..WHOLE },
            Segment { offset: 4096, bytes: Some(512 << 10), tweak: u64::MAX - 3, sector_size: 512 },
        ] {
            let (above, below) = pair(segment, false).await;
            let plain = random(300 << 10);
            // In slices that end anywhere.
            let data = Data::copy_of(&plain);
            let cuts = [0, 5, 4096, 70_001, 200_000, plain.len()];
            let slices = cuts.windows(2).map(|cut| data.slice(cut[0]..cut[1])).collect();
            let block_size = above.geometry().block_size.bytes();
            let at = 8192 / block_size;
            above.write(BlockIndex(at), slices, Durability::Visible).await.unwrap();
            assert_eq!(&data[..], plain, "the caller's bytes");
            let mut expected = plain.clone();
            let tweak = segment.tweak.wrapping_add(16);
            Xts::new(&KEY).unwrap().encrypt(&mut expected, segment.sector_size, tweak);
            assert!(read(&*below, (segment.offset + 8192) / 512, plain.len()).await == expected);
            assert!(read(&*above, at, plain.len()).await == plain);
        }
    });
}

#[test]
fn zeros_are_written_as_ciphertext_and_discards_only_if_they_may_be_seen() {
    on_a_shard(|| async {
        for discards in [false, true] {
            let (above, below) = pair(WHOLE, discards).await;
            above
                .write(BlockIndex(0), Data::copy_of(&random(128 << 10)).into(), Durability::Visible)
                .await
                .unwrap();
            above
                .write_zeroes(BlockRange::new(0, 4), ZeroMode::MayDeallocate, Durability::Durable)
                .await
                .unwrap();
            above.discard(BlockRange::new(8, 4)).await.unwrap();
            let mut zeros = vec![0; 16384];
            assert!(read(&*above, 0, 16384).await == zeros && read(&*above, 8, 16384).await == zeros);
            let discarded = read(&*below, 64, 16384).await;
            assert_eq!(discarded == zeros, discards);
            Xts::new(&KEY).unwrap().encrypt(&mut zeros, 4096, 0);
            assert!(read(&*below, 0, 16384).await == zeros);
            // A block of which half was written reads as zeros elsewhere only with discards.
            let state = above.extents(BlockRange::new(0, 12)).await.unwrap()[0].state;
            assert_eq!(state, ExtentState::Data);
        }
    });
}

/// A power cut may leave half of a block that was discarded before.
#[test]
fn half_a_block_over_a_hole_has_the_new_half_and_zeros() {
    on_a_shard(|| async {
        let (above, below) = pair(WHOLE, true).await;
        let plain = random(4096);
        above.write(BlockIndex(5), Data::copy_of(&plain).into(), Durability::Visible).await.unwrap();
        below.discard(BlockRange::new(44, 4)).await.unwrap();
        let half = [&plain[..2048], &[0; 2048]].concat();
        assert!(read(&*above, 5, 4096).await == half);
        // A piece with one byte that isn't zero was never discarded.
        let nearly = [&[0; 511][..], &[1]].concat();
        below.write(BlockIndex(48), Data::copy_of(&nearly).into(), Durability::Visible).await.unwrap();
        assert!(read(&*above, 6, 4096).await[..512] != [0; 512]);
    });
}

#[test]
fn segments_that_dont_fit_are_refused() {
    let refused = |segment, block_size| {
        let cipher = secret::expand(&KEY).unwrap();
        CryptPart::new(disk_of(1 << 20, block_size), cipher, segment, false).err().map(|it| it.to_string())
    };
    assert_eq!(refused(WHOLE, 512), None);
    let text = |segment, block_size| refused(segment, block_size).unwrap_or_default();
    assert!(text(Segment { offset: 512, ..WHOLE }, 512).contains("a multiple of the block size, 4096"));
    assert!(text(Segment { offset: 4096, ..WHOLE }, 65536).contains("a multiple of the block size, 65536"));
    assert!(text(Segment { bytes: Some(2 << 20), ..WHOLE }, 512).contains("inside the device"));
    assert!(text(Segment { offset: 1 << 20, ..WHOLE }, 512).contains("at least one block"));
    assert!(text(Segment { offset: u64::MAX << 12, ..WHOLE }, 512).contains("at least one block"));
}

fn registry() -> Registry {
    Registry::new(vec![&crypt::KIND, &disks::file::KIND, &disks::ram::KIND])
}

pub fn write_secret(path: &Path, bytes: &[u8]) {
    std::fs::write(path, bytes).unwrap();
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o600)).unwrap();
}

/// Error of planning or building a stack, with its text form; `None` if it is built.
fn refusal(folder: &Path, line: &str, format: bool) -> Option<String> {
    let stack = match Stack::from_line("line", line, &registry()) {
        Ok(stack) => stack.with_base_directory(folder),
        Err(problems) => return Some(problems.to_string()),
    };
    match stack.check(format) {
        Err(problems) => Some(problems.to_string()),
        Ok(plan) => on_a_shard(move || async move {
            match plan.build().await {
                Ok(built) => built.close().await.err().map(|error| error.to_string()),
                Err(error) => Some(error.to_string()),
            }
        }),
    }
}

#[test]
fn keys_that_dont_fit_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    write_secret(&folder.path().join("key"), &KEY);
    registry().verify().unwrap();
    for (line, expected) in [
        ("crypt(ram(1MiB))", "neither key_file nor passphrase_file"),
        ("crypt(ram(1MiB), key_file=key, passphrase_file=key)", "expected one of them"),
        ("crypt(ram(1MiB), key_file=key, sector_size=8KiB)", "sector_size 8KiB: expected 512"),
        ("crypt(ram(1MiB), key_file=key, sector_size=1000)", "sector_size 1000: expected 512"),
        ("crypt(ram(1MiB), key_file=key, pbkdf_memory=1MiB)", "pbkdf_memory without passphrase_file"),
        ("crypt(ram(1MiB), passphrase_file=key, pbkdf_memory=8GiB)", "expected 32KiB to 4GiB"),
        ("crypt(ram(16MiB), passphrase_file=key)", "expected more than 16777216"),
        ("crypt(ram(1MiB), key_file=other)", "key_file \""),
        ("crypt(ram(1MiB), key_file=key, allow_discards=true)", "discard"),
    ] {
        let error = refusal(folder.path(), line, true).unwrap_or_default();
        assert!(error.contains(expected), "{line}: {error}");
    }
    assert_eq!(refusal(folder.path(), "crypt(ram(1MiB), key_file=key)", false), None);
}

/// Nothing is created if the key can't be read.
#[test]
fn files_are_read_before_anything_is_created() {
    let folder = tempfile::tempdir().unwrap();
    let line = "crypt(file(disk.img, size=1MiB), key_file=key)";
    let refused = |expected: &str| {
        let error = refusal(folder.path(), line, true).unwrap_or_default();
        assert!(error.contains(expected), "{error}");
        assert!(!folder.path().join("disk.img").exists());
    };
    refused("No such file");
    write_secret(&folder.path().join("key"), &KEY);
    std::fs::set_permissions(folder.path().join("key"), PermissionsExt::from_mode(0o644)).unwrap();
    refused("chmod 600");
    write_secret(&folder.path().join("key"), &KEY[..63]);
    refused("expected 32 bytes");
    write_secret(&folder.path().join("key"), &KEY);
    assert_eq!(refusal(folder.path(), line, true), None);
    assert_eq!(refusal(folder.path(), line, false), None);
    std::fs::remove_file(folder.path().join("disk.img")).unwrap();
    assert!(refusal(folder.path(), line, false).is_some(), "a missing disk isn't created");
}

#[test]
fn no_text_shows_a_key() {
    let part = CryptPart::new(disk_of(1 << 20, 512), secret::expand(&KEY).unwrap(), WHOLE, false).unwrap();
    let status = on_a_shard(move || async move {
        let part: Arc<dyn DevicePart> = Arc::new(part);
        serde_json::to_string(&part.status().await).unwrap()
    });
    assert!(status.contains("aes-256-xts-plain64") && !status.contains("9,9"), "{status}");
    assert_eq!(format!("{:?}", Xts::new(&KEY).unwrap()), "aes-256-xts-plain64");
    assert_eq!(format!("{:?}", secret::copy_of(&KEY).unwrap()), "LockedBox");
}

/// Plain writes would destroy a LUKS header, and with it all data.
#[test]
fn a_device_with_a_luks_header_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    write_secret(&folder.path().join("key"), &KEY);
    let mut disk = vec![0; 1 << 20];
    disk[..6].copy_from_slice(b"LUKS\xba\xbe");
    std::fs::write(folder.path().join("disk.img"), &disk).unwrap();
    let line = "crypt(file(disk.img), key_file=key)";
    let error = refusal(folder.path(), line, false).unwrap_or_default();
    assert!(error.contains("has a LUKS header; expected one without"), "{error}");
    assert_eq!(std::fs::read(folder.path().join("disk.img")).unwrap(), disk);
    assert_eq!(refusal(folder.path(), line, true), None);
    assert_eq!(refusal(folder.path(), line, false), None);
}
