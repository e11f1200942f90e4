//! The device mapper's write cache and cache, md's RAID1, and our own parts for the same purposes, in a stock
//! kernel: the same random sequence of writes, FUA writes, flushes, discards, zeroes and reads gets the same
//! answers, block by block.
//!
//! `siltstone-guest-sequence` runs it in the guest on the kernel's device and on ours, on disks of the same
//! sizes, and on the host on a plain file: if two differ, the third one shows which is wrong. Each is closed
//! in the middle and opened again. Caches are smaller than the written data, so that write-back runs, which
//! the test confirms by their counters. In the end the disks themselves are compared on the host.
//!
//! **Discards.** The kernel promises nothing about reads after a discard (`BLKDISCARD`; zeros are the promise
//! of `BLKZEROOUT`), our Device contract promises zeros. Observed: QEMU's virtio disk reads as zeros after a
//! discard, to the sector, if the drive has `discard=unmap` (without it a discard does nothing).
//! dm-writecache drops the cached blocks and passes the discard on, and md's RAID1 passes it to all legs, so
//! both read as zeros, as ours do. dm-cache passes it on as well but keeps its cached blocks, and continues
//! to return them: so on dm-cache the sequence writes discarded blocks at once. `discard` of our `file` on a
//! block device asks for zeros and never reaches the kernel as a discard; so the sequence sends the kernel's
//! devices discards by ioctl.

use siltstone_tests::foreign::run;
use siltstone_tests::guest::{Guest, Options};
use siltstone_tests::need_guest;
use siltstone_tests::oracle::seed;
use std::path::{Path, PathBuf};

const SEQUENCE: &str = env!("CARGO_BIN_EXE_siltstone-guest-sequence");
const MIB: u64 = 1 << 20;
/// Bytes that the sequence uses; the origins have exactly this size.
const BYTES: u64 = 4 * MIB;
/// Number of operations before the devices are closed and opened again, and of all.
const HALF: u64 = 260;
const ALL: u64 = 450;

/// Disks and output files, on the host.
struct Machine {
    guest: Guest,
    folder: tempfile::TempDir,
    disks: Vec<PathBuf>,
    seed: u64,
}

impl Machine {
    /// A machine with disks of these sizes, in MiB.
    fn new(guest: Guest, sizes: &[u64], seed: u64) -> Machine {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(folder.path().join("share")).expect("a folder");
        let disk = |(number, size): (usize, &u64)| {
            let path = folder.path().join(format!("disk{number}"));
            std::fs::File::create(&path).expect("a file").set_len(size * MIB).expect("a sparse file");
            path
        };
        let disks = sizes.iter().enumerate().map(disk).collect();
        Machine { guest, folder, disks, seed }
    }

    /// Runs lines in the guest, which may use `first NAME STACK DISCARD WORD...` and `second`, the two halves
    /// of the sequence under one name: DISCARD is the block device for discards by ioctl, or `-`.
    fn run(&self, modules: Vec<&'static str>, lines: &str) {
        // No power is cut here, so a flush need not wait for the host's disk.
        let disks = self.disks.iter().map(|disk| format!("{},discard=unmap,cache=unsafe", disk.display()));
        let share = self.folder.path().join("share");
        let options =
            Options { disks: disks.collect(), shares: vec![share.clone()], modules, ..Options::default() };
        let functions = format!(
            "share={}
             sequence() {{
                 file=$share/$1.$2; stack=$3; discard=$4; from=$5; to=$6; shift 6
                 [ $discard = - ] || set -- \"$@\" discard-on=$discard
                 if ! {SEQUENCE} \"$stack\" {} $from $to {BYTES} \"$@\" >$file 2>$file.said; then
                     echo \"$stack\" >&2; cat $file.said >&2; return 1
                 fi
             }}
             first() {{ name=$1; stack=$2; discard=$3; shift 3; sequence $name 1 \"$stack\" $discard 1 {HALF} \"$@\"; }}
             second() {{ name=$1; stack=$2; discard=$3; shift 3; sequence $name 2 \"$stack\" $discard {HALF} {ALL} \"$@\"; }}
             # Files that a program had open are released a moment after its end.
             soon() {{ for try in 1 2 3 4 5 6 7 8 9; do \"$@\" 2>/dev/null && return; sleep 0.2; done; \"$@\"; }}\n",
            share.display(),
            self.seed,
        );
        let said = self.guest.run(&(functions + lines), &options);
        print!("{}", said.err);
        said.ok();
    }

    fn shared(&self, name: &str) -> String {
        let path = self.folder.path().join("share").join(name);
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    /// Answers and final contents of a plain file.
    fn expected(&self, block_size: u64, words: &[&str]) -> Expected {
        let path = self.folder.path().join(format!("plain{block_size}"));
        let stack = format!("file(\"{}\", size={BYTES}, block_size={block_size})", path.display());
        let half = |from: u64, to: u64| {
            let mut arguments = vec![stack.clone()];
            arguments.extend([self.seed, from, to, BYTES].map(|number| number.to_string()));
            arguments.extend(words.iter().map(|word| (*word).to_owned()));
            run(SEQUENCE, &arguments).ok()
        };
        let answers = [half(1, HALF), half(HALF, ALL)];
        let reads = answers.iter().flat_map(|half| half.lines()).filter(|line| line.contains("write "));
        let count = reads.count();
        assert!(count > 60, "only {count} reads answer with what was written");
        let disk = std::fs::read(&path).expect("the plain file");
        Expected { answers, disk, seed: self.seed }
    }
}

/// Expected answers and contents.
struct Expected {
    answers: [String; 2],
    disk: Vec<u8>,
    seed: u64,
}

impl Expected {
    /// Checks that the answers of this name are the expected ones in both halves.
    #[track_caller]
    fn answers(&self, machine: &Machine, name: &str) {
        for (half, expected) in self.answers.iter().enumerate() {
            let found = machine.shared(&format!("{name}.{}", half + 1));
            let mut lines = found.lines();
            for expected in expected.lines() {
                let found = lines.next();
                assert_eq!(found, Some(expected), "{name}, half {}, SILTSTONE_SEED={}", half + 1, self.seed);
            }
            assert_eq!(lines.next(), None, "{name} says more than a plain file");
        }
    }

    /// Checks that a disk has the expected contents from this byte on.
    #[track_caller]
    fn disk(&self, disk: &Path, offset: usize, name: &str) {
        let found = &std::fs::read(disk).expect("a disk")[offset..];
        let is_wrong = |at: &usize| found[at * 512..][..512] != self.disk[at * 512..][..512];
        let wrong: Vec<usize> = (0..self.disk.len() / 512).filter(is_wrong).collect();
        assert!(wrong.is_empty(), "{name}, SILTSTONE_SEED={}: sectors {wrong:?} of the disk", self.seed);
    }
}

/// Tries again if the guest's kernel crashes. Linux 6.12.117 does so in dm-writecache now and then (twice in
/// some forty runs): `list_del corruption` in its `writecache_writeback`.
fn unless_the_kernel_crashes<T>(attempt: impl Fn() -> T) -> T {
    for _ in 0..3 {
        match std::panic::catch_unwind(std::panic::AssertUnwindSafe(&attempt)) {
            Ok(done) => return done,
            Err(failure) => match failure.downcast_ref::<String>() {
                Some(text) if text.contains("Kernel panic") => println!("the guest's kernel crashed: again"),
                _ => std::panic::resume_unwind(failure),
            },
        }
    }
    attempt()
}

/// A number in the output of `dmsetup status`, counted from 0 after the target's name.
#[track_caller]
fn field(status: &str, number: usize) -> u64 {
    let word = status.split_whitespace().nth(3 + number).unwrap_or_default();
    word.parse().unwrap_or_else(|error| panic!("word {number} of {status:?}: {error}"))
}

/// A number in a stack's status.
#[track_caller]
fn status(said: &str, key: &str) -> u64 {
    let json = said.lines().find(|line| line.starts_with('{')).unwrap_or_default();
    let value: serde_json::Value =
        serde_json::from_str(json).unwrap_or_else(|error| panic!("{error}: {said}"));
    value["devices"]["top"][key].as_u64().unwrap_or_else(|| panic!("no {key} in {value:#}"))
}

#[test]
fn writecache_answers_as_dm_writecache() {
    if conformance::budget::is_left_out() {
        return;
    }
    let guest = need_guest!();
    let seed = seed("writecache_answers_as_dm_writecache", 41);
    let lines = |block_size: u64, disks: [&str; 4]| {
        let [origin, cache, our_origin, our_cache] = disks;
        format!(
            "
            make() {{
                dmsetup create wc --table '0 {} writecache s /dev/{origin} /dev/{cache} {block_size} 6 \
                    high_watermark 20 low_watermark 10 autocommit_time 50'
            }}
            make
            first kernel{block_size} 'file(/dev/mapper/wc, block_size={block_size})' /dev/mapper/wc
            soon dmsetup remove wc
            make
            second kernel{block_size} 'file(/dev/mapper/wc, block_size={block_size})' /dev/mapper/wc
            dmsetup message wc 0 flush
            dmsetup status wc >$share/status{block_size}
            soon dmsetup remove wc
            size=block_size={block_size}
            ours=\"writecache(file(/dev/{our_origin}, $size), file(/dev/{our_cache}, $size), \
                high_watermark=20, low_watermark=10, autocommit_time=50ms)\"
            first ours{block_size} \"$ours\" - format
            second ours{block_size} \"$ours\" - message=flush\n",
            BYTES / 512,
        )
    };
    let runs = [(4096, ["vda", "vdb", "vdc", "vdd"]), (512, ["vde", "vdf", "vdg", "vdh"])];
    let all: String = runs.iter().map(|(block_size, disks)| lines(*block_size, *disks)).collect();
    let attempt = || {
        let machine = Machine::new(guest, &[4, 1, 4, 1, 4, 1, 4, 1], seed);
        machine.run(vec!["dm-writecache"], &all);
        machine
    };
    let machine = unless_the_kernel_crashes(attempt);
    let (of_4096, of_512) = (machine.expected(4096, &[]), machine.expected(512, &[]));
    for ((block_size, _), origins) in runs.into_iter().zip([[0, 2], [4, 6]]) {
        let (kernel, ours) = (format!("kernel{block_size}"), format!("ours{block_size}"));
        let expected = if block_size == 512 { &of_512 } else { &of_4096 };
        expected.answers(&machine, &kernel);
        expected.answers(&machine, &ours);
        for (name, origin) in [&kernel, &ours].into_iter().zip(origins) {
            expected.disk(&machine.disks[origin], 0, name);
        }
        // Documentation/admin-guide/device-mapper/writecache.rst: errors, blocks, free ones, those under
        // write-back, reads, their hits, writes, their hits (uncommitted, committed), writes around, and
        // allocated ones.
        let said = machine.shared(&format!("status{block_size}"));
        print!("dm-writecache, {block_size}: {said}");
        assert_eq!(field(&said, 0), 0, "errors: {said}");
        assert_eq!(
            field(&said, 1),
            field(&said, 2),
            "not all blocks are free after the message flush: {said}"
        );
        assert!(field(&said, 10) > 0, "the kernel's cache took nothing: {said}");
        let said = machine.shared(&format!("{ours}.2.said"));
        let (written_back, left) = (status(&said, "written_back"), status(&said, "cached_blocks"));
        let around = status(&said, "writes_around");
        println!("writecache, {block_size}: {written_back} blocks were written back, {around} went around");
        assert!(written_back > 0 && left == 0 && around == 0, "{said}");
    }
}

#[test]
fn mirror_answers_as_raid1() {
    if conformance::budget::is_left_out() {
        return;
    }
    let guest = need_guest!();
    let seed = seed("mirror_answers_as_raid1", 42);
    let machine = Machine::new(guest, &[16, 16, 8, 8], seed);
    // With this version of the superblock the data is at the beginning of the legs.
    let lines = "
        mdadm --create /dev/md0 --run --assume-clean --metadata=1.0 --level=1 --raid-devices=2 --bitmap=internal \
            --bitmap-chunk=64K --write-behind=64 /dev/vda --write-mostly /dev/vdb 2>/dev/null
        first kernel 'file(/dev/md0)' /dev/md0
        cat /sys/block/md0/md/bitmap/max_backlog_used >$share/behind
        soon mdadm --stop /dev/md0
        mdadm --assemble --run /dev/md0 /dev/vda /dev/vdb
        second kernel 'file(/dev/md0)' /dev/md0
        soon mdadm --stop /dev/md0
        ours='mirror(file(/dev/vdc), file(/dev/vdd), write_mostly=[1], write_behind=64, bitmap_chunk=64KiB)'
        first ours \"$ours\" - format
        second ours \"$ours\" -";
    machine.run(vec!["raid1"], lines);
    let expected = machine.expected(4096, &[]);
    expected.answers(&machine, "kernel");
    expected.answers(&machine, "ours");
    for leg in &machine.disks[..2] {
        expected.disk(leg, 0, "md RAID1");
    }
    for leg in &machine.disks[2..] {
        // book/src/formats/mirror.md
        let superblock = std::fs::read(leg).expect("a leg");
        let data_offset = u64::from_le_bytes(superblock[48..56].try_into().expect("8 bytes"));
        expected.disk(leg, data_offset as usize, "mirror");
    }
    let behind = machine.shared("behind");
    println!("md's write-mostly leg was behind by up to {} writes", behind.trim());
    assert_ne!(behind.trim(), "0", "it never was behind");
}

#[test]
fn cache_answers_as_dm_cache() {
    if conformance::budget::is_left_out() {
        return;
    }
    let guest = need_guest!();
    let seed = seed("cache_answers_as_dm_cache", 43);
    // For each mode: metadata, cache and origin of the kernel's device, and cache and origin of ours.
    let machine = Machine::new(guest, &[4, 1, 4, 1, 4, 4, 1, 4, 1, 4, 4, 1, 4, 1, 4], seed);
    let lines = |mode: &str, [metadata, cache, origin, our_cache, our_origin]: [&str; 5]| {
        format!(
            "
            disks='/dev/{metadata} /dev/{cache} /dev/{origin} 64'
            make() {{ dmsetup create c --table \"0 {sectors} cache $disks 1 {mode} smq 0\"; }}
            make
            first {mode} 'file(/dev/mapper/c)' /dev/mapper/c rewrite
            soon dmsetup remove c
            make
            second {mode} 'file(/dev/mapper/c)' /dev/mapper/c rewrite
            dmsetup status c >$share/status-{mode}
            dmsetup suspend c
            dmsetup reload c --table \"0 {sectors} cache $disks 1 {mode} cleaner 0\"
            dmsetup resume c
            dirty() {{ dmsetup status c | cut -d ' ' -f 14; }}
            until [ $(dirty) = 0 ]; do sleep 0.1; done
            soon dmsetup remove c
            ours='cache(file(/dev/{our_origin}), file(/dev/{our_cache}), mode={mode}, block_size=32KiB)'
            first ours-{mode} \"$ours\" - rewrite format
            second ours-{mode} \"$ours\" - rewrite message=detach until=detach=done\n",
            sectors = BYTES / 512,
        )
    };
    let writeback = lines("writeback", ["vda", "vdb", "vdc", "vdd", "vde"]);
    let writethrough = lines("writethrough", ["vdf", "vdg", "vdh", "vdi", "vdj"]);
    let passthrough = lines("passthrough", ["vdk", "vdl", "vdm", "vdn", "vdo"]);
    machine.run(vec!["dm-cache", "dm-cache-smq"], &(writeback + &writethrough + &passthrough));
    let expected = machine.expected(4096, &["rewrite"]);
    let disks = [("writeback", [2, 4]), ("writethrough", [7, 9]), ("passthrough", [12, 14])];
    for (mode, [kernels, own]) in disks {
        let ours = format!("ours-{mode}");
        for (name, origin) in [(mode, kernels), (&ours, own)] {
            expected.answers(&machine, name);
            expected.disk(&machine.disks[origin], 0, name);
        }
        // Documentation/admin-guide/device-mapper/cache.rst: the block size of the metadata, its used and
        // total blocks, the block size of the cache, its used and total blocks, hits and misses of reads, of
        // writes, demotions, promotions, dirty blocks.
        let said = machine.shared(&format!("status-{mode}"));
        print!("dm-cache, {mode}: {said}");
        let (hits, promotions) = (field(&said, 4) + field(&said, 6), field(&said, 9));
        let our = machine.shared(&format!("{ours}.2.said"));
        let [our_hits, our_promotions] = ["write_hits", "promotions"].map(|key| status(&our, key));
        println!("cache, {mode}: {our_hits} writes hit, {our_promotions} blocks were promoted");
        if mode == "passthrough" {
            assert_eq!((promotions, our_promotions), (0, 0), "something was promoted: {said}{our}");
            continue;
        }
        assert!(hits > 0 && promotions > 0, "nothing was cached: {said}");
        assert!(our_hits > 0 && our_promotions > 0, "nothing was cached: {our}");
    }
}

/// Proof that answers can differ: a device that loses some of the writes.
#[test]
fn lost_writes_are_found_out() {
    let seed = seed("lost_writes_are_found_out", 44);
    let answers = |stack: &str| {
        let arguments = [stack.to_owned(), seed.to_string(), "1".into(), HALF.to_string(), BYTES.to_string()];
        run(SEQUENCE, &arguments).ok()
    };
    let right = answers("ram(4MiB)");
    assert_eq!(answers("fault(ram(4MiB), \"read delay=1us..200us\")"), right);
    assert_ne!(answers("fault(ram(4MiB), \"write drop every=20\")"), right);
}
