//! `siltstone warm --file` in its usual place: a file system on the block device `/dev/nbd0`, which the
//! kernel has from our server, and on a partition of it.
//!
//! The host made the file systems, so it can find the bytes of a file on the disk. The guest serves the cache
//! on that disk, mounts it through its own NBD client, and warms one file. The cache must then report all of
//! that file as cached, and nothing of the other file.

use siltstone_tests::foreign::{binary, run};
use siltstone_tests::guest::Options;
use siltstone_tests::{need, need_guest};
use std::ops::Range;
use std::path::Path;

const MIB: u64 = 1 << 20;
/// First byte of the partition.
const START: u64 = 2 * MIB;
/// Bytes of a disk.
const BYTES: u64 = 48 * MIB;
/// Bytes of a file; not a multiple of any block size.
const FILE: usize = 5 * MIB as usize + 12_345;
/// Bytes of a block of the cache.
const BLOCK: u64 = 64 << 10;

/// Creates a disk with an ext4 from this byte on, with two files. Returns their ranges on the disk.
fn make_disk(folder: &Path, name: &str, start: u64) -> [Range<u64>; 2] {
    let (disk, files) = (folder.join(name), folder.join(format!("{name}.files")));
    std::fs::create_dir(&files).expect("a folder");
    let mut random = runtime::Random::new(start + 1);
    let contents = ["wanted", "other"].map(|file| {
        let content: Vec<u8> = std::iter::repeat_with(|| random.next_u64() as u8).take(FILE).collect();
        std::fs::write(files.join(file), &content).expect("a file");
        content
    });
    std::fs::File::create(&disk).expect("a file").set_len(BYTES).expect("a sparse file");
    let text = |path: &Path| path.display().to_string();
    let (offset, size) = (format!("offset={start}"), format!("{}k", (BYTES - start) / 1024));
    run(
        "mke2fs",
        &["-q", "-t", "ext4", "-b", "4096", "-E", &offset, "-d", &text(&files), &text(&disk), &size],
    )
    .ok();
    let mut bytes = std::fs::read(&disk).expect("the disk");
    if start > 0 {
        // A master boot record with one partition: sectors in 32 bits each, the type for Linux.
        let entry = &mut bytes[446..462];
        entry[4] = 0x83;
        entry[8..12].copy_from_slice(&((start / 512) as u32).to_le_bytes());
        entry[12..16].copy_from_slice(&(((BYTES - start) / 512) as u32).to_le_bytes());
        bytes[510..512].copy_from_slice(&[0x55, 0xAA]);
        std::fs::write(&disk, &bytes).expect("the disk");
    }
    contents.map(|content| {
        let blocks = bytes.chunks(4096).collect::<Vec<_>>();
        let first = blocks.iter().position(|block| **block == content[..4096]).expect("the file is there");
        let at = first * 4096;
        assert!(bytes[at..at + FILE] == content, "the file lies in one piece");
        at as u64..(at + FILE) as u64
    })
}

/// Cached ranges by a saved list.
fn saved(share: &Path, name: &str) -> Vec<Range<u64>> {
    let text = std::fs::read_to_string(share.join(name)).expect("what was saved");
    let range = |line: &str| {
        let (from, length) = line.split(' ').nth(1)?.split_once('+')?;
        let (from, length): (u64, u64) = (from.parse().ok()?, length.parse().ok()?);
        Some(from..from + length)
    };
    text.lines().filter_map(range).collect()
}

/// Number of these bytes that are cached.
fn held(ranges: &[Range<u64>], bytes: &Range<u64>) -> u64 {
    ranges.iter().map(|range| range.end.min(bytes.end).saturating_sub(range.start.max(bytes.start))).sum()
}

#[test]
fn a_file_on_a_device_of_the_kernels_and_on_a_partition_of_one() {
    need!("mke2fs", "nbd-client");
    let guest = need_guest!();
    let folder = tempfile::tempdir().expect("a folder");
    let share = folder.path().join("share");
    std::fs::create_dir(&share).expect("a folder");
    let starts = [("whole", 0), ("part", START)];
    let files = starts.map(|(name, start)| make_disk(folder.path(), name, start));
    let disks = starts.map(|(name, _)| format!("{},cache=unsafe", folder.path().join(name).display()));
    let lines = format!(
        "siltstone={}; share={}
         serve() {{
             stack=/run/$1.toml
             printf '[device.slow]\\nkind = \"file\"\\npath = \"%s\"\\n[device.fast]\\nkind = \"ram\"\\nsize = \"32MiB\"\\n
                 [device.cached]\\nkind = \"cache\"\\non = \"slow\"\\ncache = \"fast\"\\nblock_size = \"{BLOCK}\"\\n' $2 >$stack
             $siltstone serve $stack --format --nbd unix:/run/$1.sock >/run/$1.addresses & server=$!
             until [ -s /run/$1.addresses ]; do kill -0 $server; sleep 0.1; done
             nbd-client -unix /run/$1.sock $3 >/dev/null 2>&1
             blockdev --rereadpt $3 2>/dev/null || true
         }}
         misses() {{ $siltstone status $stack --json 2>/dev/null | grep -o '\"read_misses\": *[0-9]*'; }}
         try() {{
             mount -o ro,noload $2 /mnt
             $siltstone warm prefetch $stack --file /mnt/wanted
             $siltstone warm save $stack $share/$1.fetched
             before=$(misses)
             dd if=/mnt/wanted iflag=direct bs=64k status=none >/dev/null
             [ \"$before\" = \"$(misses)\" ]
             $siltstone warm evict $stack --file /mnt/wanted --device $3
             $siltstone warm save $stack $share/$1.evicted
             umount /mnt; nbd-client -d $3 >/dev/null; kill $server; wait $server
         }}
         modprobe nbd
         serve whole /dev/vda /dev/nbd0; try whole /dev/nbd0 /dev/nbd0
         serve part /dev/vdb /dev/nbd1; try part /dev/nbd1p1 /dev/nbd1
         echo done",
        binary().display(),
        share.display(),
    );
    let options = Options { disks: disks.to_vec(), shares: vec![share.clone()], ..Options::default() };
    let finished = guest.run(&lines, &options);
    print!("{}{}", finished.out, finished.err);
    finished.ok();
    for ((name, _), [wanted, other]) in starts.iter().zip(&files) {
        let fetched = saved(&share, &format!("{name}.fetched"));
        assert_eq!(held(&fetched, wanted), FILE as u64, "{name}: {wanted:?} of {fetched:?}");
        // Except for blocks of the cache that the file shares with others.
        assert!(held(&fetched, other) <= 2 * BLOCK, "{name}: {other:?} of {fetched:?}");
        let evicted = saved(&share, &format!("{name}.evicted"));
        assert_eq!(held(&evicted, wanted), 0, "{name}: {wanted:?} of {evicted:?}");
    }
}
