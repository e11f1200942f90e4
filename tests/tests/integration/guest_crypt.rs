//! `crypt` and dm-crypt of a stock kernel, opened by cryptsetup: each reads what the other has written, on
//! the same disks, plain and with a LUKS2 header.

use block::{BlockIndex, Buffer, Data, DevicePart, Durability};
use conformance::requests::on_a_shard;
use crypt::device::{CryptPart, Segment};
use crypt::{luks, secret};
use disks::file::FilePart;
use siltstone_tests::guest::Options;
use siltstone_tests::{need, need_guest};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const MIB: u64 = 1 << 20;
/// Bytes of data.
const BYTES: usize = 1 << 20;
const PASSPHRASE: &[u8] = b"correct horse";

/// Volume of the test: bytes of its key, and of its sectors; no key is LUKS2.
const VOLUMES: [(&str, usize, usize); 4] = [("a", 64, 4096), ("b", 32, 512), ("c", 64, 512), ("d", 0, 4096)];

fn key(length: usize) -> Vec<u8> {
    (0..length).map(|byte| byte as u8 * 3 + 1).collect()
}

fn random(seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; BYTES];
    runtime::Random::new(seed).fill(&mut bytes);
    bytes
}

async fn open(path: &Path, key_size: usize, sector_size: usize) -> CryptPart {
    let disk: Arc<dyn DevicePart> = Arc::new(disk(path).await);
    match key_size {
        0 => luks::open(disk, secret::copy_of(PASSPHRASE).unwrap(), luks::MAX_MEMORY).await.unwrap(),
        _ => {
            let segment = Segment { offset: 0, bytes: None, tweak: 0, sector_size };
            CryptPart::new(disk, secret::expand(&key(key_size)).unwrap(), segment, false).unwrap()
        }
    }
}

async fn disk(path: &Path) -> FilePart {
    FilePart::open_path(path, None).await.unwrap()
}

/// Writes the data of a seed at the beginning of a volume.
async fn write(path: &Path, key_size: usize, sector_size: usize, seed: u64) {
    let part = open(path, key_size, sector_size).await;
    let payload = Data::copy_of(&random(seed)).into();
    part.open().await.unwrap().write(BlockIndex(0), payload, Durability::Durable).await.unwrap();
}

/// Reads as many bytes at the offset of `BYTES`.
async fn read(path: &Path, key_size: usize, sector_size: usize) -> Vec<u8> {
    let device = open(path, key_size, sector_size).await.open().await.unwrap();
    let at = BYTES as u64 >> device.geometry().block_size.shift();
    let (read, buffer) = device.read(BlockIndex(at), Buffer::new(BYTES)).await;
    read.unwrap();
    buffer.filled().to_vec()
}

#[test]
fn dm_crypt_and_crypt_read_each_others_volumes() {
    if conformance::budget::is_left_out() {
        return;
    }
    need!("cryptsetup");
    let guest = need_guest!();
    let folder = tempfile::tempdir().expect("a folder");
    let share = folder.path().join("share");
    std::fs::create_dir(&share).expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let paths: Vec<PathBuf> = VOLUMES.iter().map(|(name, ..)| at(name)).collect();
    for path in &paths {
        std::fs::File::create(path).and_then(|file| file.set_len(24 * MIB)).expect("a sparse file");
    }
    let (made, last) = (paths.clone(), paths[3].clone());
    on_a_shard(move || async move {
        let format = luks::NewVolume { sector_size: 4096, discards: false, memory: MIB, iterations: 1 };
        let luks_disk: Arc<dyn DevicePart> = Arc::new(disk(&last).await);
        luks::format(&luks_disk, secret::copy_of(PASSPHRASE).unwrap(), format).await.unwrap();
        drop(luks_disk);
        for ((path, (_, key_size, sector_size)), seed) in made.iter().zip(VOLUMES).zip(1..) {
            write(path, key_size, sector_size, seed).await;
        }
    });
    for (seed, (name, key_size, _)) in (1..).zip(VOLUMES) {
        std::fs::write(share.join(format!("{name}.ours")), random(seed)).expect("a file");
        std::fs::write(share.join(format!("{name}.theirs")), random(100 + seed)).expect("a file");
        let secret = if key_size == 0 { PASSPHRASE.to_vec() } else { key(key_size) };
        std::fs::write(share.join(format!("{name}.key")), secret).expect("a file");
        let mode = PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(share.join(format!("{name}.key")), mode).expect("its owner");
    }
    let plain = |disk: &str, name: &str, bits: u32, sector_size: u32| {
        format!(
            "volume {disk} {name} --type plain --cipher aes-xts-plain64 --key-size {bits} --sector-size {sector_size}\n"
        )
    };
    let lines = format!(
        "cd {}; export DM_DISABLE_UDEV=1
         volume() {{
             disk=$1; name=$2; shift 2
             cryptsetup open --batch-mode --key-file $name.key \"$@\" /dev/$disk $name
             cmp -n {BYTES} $name.ours /dev/mapper/$name
             dd if=$name.theirs of=/dev/mapper/$name bs=64k oflag=seek_bytes seek={BYTES} conv=fsync status=none
             dmsetup table $name | cut -d ' ' -f 3-4,6- ; cryptsetup close $name; echo $name is right
         }}
         {}{}{}volume vdd d --type luks2\n",
        share.display(),
        plain("vda", "a", 512, 4096),
        plain("vdb", "b", 256, 512),
        plain("vdc", "c", 512, 512),
    );
    let disks = paths.iter().map(|path| format!("{},cache=unsafe", path.display())).collect();
    let modules = vec!["dm-crypt", "xts", "algif_skcipher"];
    let options = Options { disks, shares: vec![share], modules, ..Options::default() };
    let said = guest.run(&lines, &options);
    print!("{}{}", said.out, said.err);
    let out = said.ok();
    assert!(VOLUMES.iter().all(|(name, ..)| out.contains(&format!("{name} is right"))), "{out}");
    on_a_shard(move || async move {
        for ((path, (name, key_size, sector_size)), seed) in paths.iter().zip(VOLUMES).zip(101..) {
            assert!(read(path, key_size, sector_size).await == random(seed), "volume {name}");
        }
    });
}
