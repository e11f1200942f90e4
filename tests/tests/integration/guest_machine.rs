//! Tests of the guest machine itself: the properties that other tests rely on.

use siltstone_tests::guest::Options;
use siltstone_tests::need_guest;
use std::path::Path;

fn file(folder: &Path, name: &str, bytes: u64) -> String {
    let path = folder.join(name);
    std::fs::File::create(&path).expect("a file").set_len(bytes).expect("a sparse file");
    path.display().to_string()
}

/// Status and output are those of the command; a share is writable, the root isn't; a disk is the file.
#[test]
fn passes_on_what_a_command_says_and_writes() {
    let guest = need_guest!();
    let folder = tempfile::tempdir().expect("a folder");
    let share = folder.path().join("a share");
    std::fs::create_dir(&share).expect("a folder");
    let disk = file(folder.path(), "disk", 1 << 20);
    let options = Options { disks: vec![disk.clone()], shares: vec![share.clone()], ..Options::default() };
    let lines = format!(
        "echo to out; echo to err >&2; [ $(id -u) = 0 ]
         echo shared > '{}/said'; echo lost > {}/lost; cat {1}/lost
         printf written | dd of=/dev/vda bs=512 seek=3 conv=fsync,sync status=none
         uname -r; exit 42",
        share.display(),
        folder.path().display(),
    );
    let finished = guest.run(&lines, &options);
    assert_eq!(finished.code, Some(42), "{finished:#?}");
    assert!(finished.out.starts_with("to out\nlost\n"), "{finished:#?}");
    assert_eq!(finished.err, "to err\n");
    assert_eq!(std::fs::read_to_string(share.join("said")).expect("what was shared"), "shared\n");
    assert!(!folder.path().join("lost").exists(), "the guest has changed the host's root");
    assert!(std::fs::read(&disk).expect("the disk")[3 * 512..].starts_with(b"written"));
}

/// The guest has drivers that the host's kernel may lack: the device mapper, md, direct access to
/// non-volatile memory.
#[test]
fn has_the_drivers_that_tests_come_for() {
    if conformance::budget::is_left_out() {
        return;
    }
    let guest = need_guest!();
    let folder = tempfile::tempdir().expect("a folder");
    let disks = vec![file(folder.path(), "first", 32 << 20), file(folder.path(), "second", 32 << 20)];
    let nvdimm = folder.path().join("nvdimm");
    file(folder.path(), "nvdimm", 128 << 20);
    let modules = vec!["dm-writecache", "dm-cache", "raid1"];
    let options = Options { disks, nvdimms: vec![nvdimm], modules, ..Options::default() };
    let lines = "
        dmsetup create half --table '0 16384 linear /dev/vda 16384'
        printf mapped | dd of=/dev/mapper/half bs=512 conv=fsync,sync status=none
        dd if=/dev/vda bs=512 skip=16384 count=1 iflag=direct status=none | head -c 6; echo
        dmsetup targets | cut -d ' ' -f 1 | tr '\\n' ' '
        dmsetup remove half
        mdadm --create /dev/md0 --run --metadata=1.2 --level=1 --raid-devices=2 /dev/vda /dev/vdb 2>/dev/null
        grep -o 'raid1 vd.*' /proc/mdstat
        mkfs.ext4 -q -b 4096 /dev/pmem0 && mount -o dax=always /dev/pmem0 /mnt && grep -o 'dax=always' /proc/mounts";
    let out = guest.run(lines, &options).ok();
    println!("{out}");
    let mut said = out.lines();
    assert_eq!(said.next(), Some("mapped"));
    let targets = said.next().unwrap_or_default();
    assert!(["writecache", "cache", "linear"].iter().all(|name| targets.split(' ').any(|has| has == *name)));
    assert!(targets.contains("raid1 vdb[1] vda[0]"), "{out}");
    assert_eq!(said.next(), Some("dax=always"));
}

/// Guests that run side by side are independent; cutting the power of one ends it at once and leaves the
/// other alone.
#[test]
fn two_at_a_time_and_one_loses_its_power() {
    let guest = need_guest!();
    let options = Options::default();
    let mut cut =
        guest.start("echo only in one > /run/mine; cat /run/mine; sleep 1000; echo never", &options);
    let other = guest.start("sleep 1; [ ! -e /run/mine ]; echo alone", &options);
    cut.wait_until("its first line", |out| out.ends_with('\n'));
    assert_eq!(cut.cut_power(), "only in one\n");
    assert_eq!(other.wait().ok(), "alone\n");
}

/// A guest that hangs is ended, and the test fails.
#[test]
fn has_a_time_limit() {
    let guest = need_guest!();
    let options = Options { limit: 3, ..Options::default() };
    let outcome = std::panic::catch_unwind(|| guest.run("sleep 1000", &options));
    let failure = outcome.expect_err("it has ended by itself");
    let text = failure.downcast_ref::<String>().expect("a text");
    assert!(text.contains("took longer than 3 s"), "{text}");
}
