//! The map at home in non-volatile memory, on file systems of a stock kernel with direct access.
//!
//! The guest's server is killed, then the guest's power is cut, each in the middle of writes: afterwards the
//! volume holds the result of a prefix of the writes, with all flushed ones. The disk is a qcow2 image, which
//! loses much of its unflushed data when QEMU is killed (QEMU holds its tables of clusters until then), and
//! the memory loses nothing: so a transaction of the home that is ahead of the log would be noticed. No
//! emulator shows the loss of lines that were not flushed from the processor's caches;
//! `crates/storage/log/src/home/oracle_tests.rs` tests it by cutting the home at every fence.

use serde_json::Value;
use siltstone_tests::foreign::{binary, run};
use siltstone_tests::guest::{Guest, Options, numbered};
use siltstone_tests::oracle::seed;
use siltstone_tests::{need, need_guest};
use std::path::PathBuf;

/// Number of writes between flushes.
const FLUSH_EVERY: u64 = 7;
const MAKE_EXT4: &str = "mkfs.ext4 -q -b 4096 /dev/pmem0";
// The file system makes nothing durable by itself meanwhile: its metadata are there after the cut because of
// MAP_SYNC. Without that flag the home has no length then.
const MOUNT_EXT4: &str = "mount -o dax=always,commit=3000 /dev/pmem0 /mnt";
const MOUNT_XFS: &str = "
    modprobe xfs; echo 720000 >/proc/sys/fs/xfs/xfssyncd_centisecs
    mount -o dax=always /dev/pmem0 /mnt";
const CLIENT: &str = env!("CARGO_BIN_EXE_siltstone-guest-client");

/// State that survives a guest: its disk, its memory, and the folder that it shares with the test.
struct Machine {
    guest: Guest,
    folder: tempfile::TempDir,
    /// Mounts the file system, which `make` has created before.
    mount: &'static str,
    stack: String,
}

impl Machine {
    fn new(guest: Guest, memory: u64, mount: &'static str, stack: String) -> Machine {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir(at("share")).expect("a folder");
        let nvdimm = std::fs::File::create(at("nvdimm")).expect("a file");
        nvdimm.set_len(memory).expect("a sparse file");
        let disk = at("disk.qcow2").display().to_string();
        run("qemu-img", &["create", "-q", "-f", "qcow2", "-o", "cluster_size=4k", &disk, "24M"]).ok();
        Machine { guest, folder, mount, stack }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn options(&self) -> Options {
        Options {
            disks: vec![format!("{},format=qcow2", self.path("disk.qcow2").display())],
            nvdimms: vec![self.path("nvdimm")],
            shares: vec![self.path("share")],
            ..Options::default()
        }
    }

    /// Shell for the guest: functions, and the file system mounted after `before`. The files of a killed
    /// server are released a moment after its end; until then another server is refused.
    fn lines(&self, before: &str, then: &str) -> String {
        format!(
            "siltstone={}; client={CLIENT}; share={}; stack='{}'
             serve() {{
                 rm -f /run/addresses
                 $siltstone serve \"$stack\" --nbd unix:/run/nbd.sock >/run/addresses 2>/run/refused & server=$!
                 until [ -s /run/addresses ]; do
                     if ! kill -0 $server 2>/dev/null; then
                         cat /run/refused >&2; grep -q '(busy)' /run/refused; serve; return
                     fi
                     sleep 0.1
                 done
             }}
             status() {{ $siltstone status \"$stack\" --json 2>/dev/null | tr -d '\\n' >$share/$1; }}
             copy() {{ $client /run/nbd.sock read $share/$1; }}
             {before}
             {}
             {then}",
            binary().display(),
            self.path("share").display(),
            self.stack,
            self.mount,
        )
    }

    /// Number of writes in the copy that a guest made.
    fn counted(&self, copy: &str, seed: u64) -> Result<u64, String> {
        numbered::count(seed, &std::fs::read(self.path("share").join(copy)).expect("the guest's copy"))
    }

    fn status(&self, name: &str) -> Value {
        let text = std::fs::read_to_string(self.path("share").join(name)).expect("the guest's status");
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }
}

/// Number in the last line that begins with `word`.
fn number_after(word: &str, out: &str) -> Option<u64> {
    // The last line may be incomplete.
    let (whole, _) = out.rsplit_once('\n')?;
    whole.lines().rev().find_map(|line| line.strip_prefix(word)?.parse().ok())
}

/// Formats a log in a new guest, kills its server in the middle of writes, serves it again, continues to
/// write and cuts the power. Returns the number of writes that had been flushed by then.
fn live_until_the_cut(machine: &Machine, make: &str, seed: u64) -> u64 {
    let lines = machine.lines(
        make,
        &format!(
            "$siltstone format \"$stack\"
             serve
             $client /run/nbd.sock write {seed} 1 100000 {FLUSH_EVERY} >/run/said 2>/run/err & client_process=$!
             until grep -q 'flushed 7.' /run/said; do kill -0 $client_process; sleep 0.05; done
             kill -9 $server; wait $server $client_process || true
             tail -n 1 /run/said
             serve; status after_kill.json; copy after_kill.img
             kept=$($client count {seed} $share/after_kill.img)
             echo kept $kept
             $client /run/nbd.sock write {seed} $((kept + 1)) 100000 {FLUSH_EVERY}"
        ),
    );
    let mut running = machine.guest.start(&lines, &machine.options());
    running.wait_until("enough was flushed after the kill", |out| {
        number_after("kept ", out).is_some_and(|kept| number_after("flushed ", out) >= Some(kept + 150))
    });
    let out = running.cut_power();
    let (before, _) = out.split_once("kept").expect("it was waited for");
    let killed_at = number_after("flushed ", before).expect("the client has flushed before the kill");
    let kept = machine.counted("after_kill.img", seed).unwrap_or_else(|broken| panic!("{broken}"));
    println!("killed after {killed_at} flushed writes: {kept} are there");
    assert!(killed_at >= 70 && kept >= killed_at, "{kept} of {killed_at} flushed writes are there: {out}");
    number_after("flushed ", &out).expect("more was flushed")
}

/// With the power back, checks the log and counts the writes that are there. Then closes and checks the log
/// again.
fn count_after_the_cut(machine: &Machine, seed: u64) -> Result<u64, String> {
    let lines = machine.lines(
        "",
        "$siltstone check \"$stack\" >&2
         serve; status after_cut.json; copy after_cut.img; kill $server; wait $server
         $siltstone check \"$stack\" >&2",
    );
    let finished = machine.guest.run(&lines, &machine.options());
    match finished.code {
        Some(0) => machine.counted("after_cut.img", seed),
        _ => Err(finished.err),
    }
}

/// A log on the disk, with its map in the memory; `disk` is the part below the log.
fn stack_on(disk: &str) -> String {
    format!("log({disk}, size=4MiB, zone_size=256KiB, map_home=\"pmem:/mnt/map\")")
}

fn survives(guest: Guest, name: &str, memory: u64, make: &str, mount: &'static str, durable_by: &str) {
    let seed = seed(name, 1);
    let machine = Machine::new(guest, memory, mount, stack_on("file(/dev/vda)"));
    let promised = live_until_the_cut(&machine, make, seed);
    let kept = count_after_the_cut(&machine, seed).unwrap_or_else(|broken| panic!("{broken}"));
    println!("power cut after {promised} flushed writes: {kept} are there");
    assert!(kept >= promised, "{kept} of {promised} flushed writes are there");
    for status in ["after_kill.json", "after_cut.json"] {
        let status = machine.status(status);
        let home = find(&status, "map_home").unwrap_or_else(|| panic!("no map_home in {status:#}"));
        assert_eq!(home["durable_by"], durable_by, "{home:#}");
    }
}

/// First value of this name, at any depth.
fn find<'a>(value: &'a Value, name: &str) -> Option<&'a Value> {
    match value {
        Value::Object(fields) => {
            fields.get(name).or_else(|| fields.values().find_map(|value| find(value, name)))
        }
        _ => None,
    }
}

#[test]
fn a_home_on_ext4_with_direct_access_keeps_what_was_flushed() {
    if conformance::budget::is_left_out() {
        return;
    }
    let guest = need_guest!();
    need!("qemu-img");
    let name = "a_home_on_ext4_with_direct_access_keeps_what_was_flushed";
    survives(guest, name, 128 << 20, MAKE_EXT4, MOUNT_EXT4, "flush");
}

#[test]
fn a_home_on_xfs_with_direct_access_keeps_what_was_flushed() {
    if conformance::budget::is_left_out() {
        return;
    }
    let guest = need_guest!();
    need!("qemu-img");
    let name = "a_home_on_xfs_with_direct_access_keeps_what_was_flushed";
    // XFS needs at least 300 MiB.
    survives(guest, name, 384 << 20, "mkfs.xfs -q /dev/pmem0", MOUNT_XFS, "flush");
}

/// Proof that the tests above can fail: the memory keeps a map of writes that the disk has lost.
#[test]
fn a_disk_that_does_not_flush_is_found_out() {
    if conformance::budget::is_left_out() {
        return;
    }
    let guest = need_guest!();
    need!("qemu-img");
    let seed = seed("a_disk_that_does_not_flush_is_found_out", 1);
    let machine =
        Machine::new(guest, 128 << 20, MOUNT_EXT4, stack_on("fault(file(/dev/vda), \"flush lie\")"));
    let promised = live_until_the_cut(&machine, MAKE_EXT4, seed);
    let found = count_after_the_cut(&machine, seed);
    println!("{promised} writes had been flushed: {found:?}");
    match found {
        Ok(kept) => assert!(kept < promised, "{kept} of {promised} writes are there"),
        Err(said) => assert!(said.contains("DAMAGED"), "expected what `check` says, found {said}"),
    }
}
