//! Foreign programs on volumes in a bucket: file systems of the kernel on an attached node, PostgreSQL on a
//! mount, and fio, while servers are killed and the store stops. All of these are long tests.

use super::servers::{Program, Server as Store};
use super::{Machine, Volume, credentials, disturb, number, siltstone, status_of, wait_until};
use crate::fs_mount_programs::{Cluster, postgresql};
use rustix::process::Signal;
use siltstone_tests::foreign::{
    Attached, Background, Mount, can_attach, has_fuse, is_installed, random_file, run_shell, skip,
};
use siltstone_tests::{need, need_root};
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;

/// A stack with a log of 128 MiB as its only device, for a node.
fn node(folder: &Path, volume: Volume) -> String {
    let parts = volume.parts(&credentials(folder), false);
    let log = "[device.vol]\nkind = \"log\"\non = \"local\"\nsize = \"128MiB\"\n";
    let path = folder.join("stack.toml");
    std::fs::write(&path, parts + log).unwrap();
    path.display().to_string()
}

/// A folder with a mount point, and files to copy with their checksums in `sums`.
fn with_tree() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in ["mnt", "tree"] {
        std::fs::create_dir(folder.path().join(name)).unwrap();
    }
    for number in 0..24 {
        random_file(&folder.path().join(format!("tree/file{number}")), 1 + number * 2, number as u64);
    }
    run_shell(&format!(
        "cd {}/tree; find . -type f -print0 | xargs -0 sha256sum > ../sums",
        folder.path().display()
    ))
    .ok();
    folder
}

/// Copies files to a file system on an attached node, while the store is stopped for `outage`, the server is
/// killed, and both. Then the node is attached with what an S3 client could have copied: the bucket.
fn carries_on(name: &str, make: &str, check: &str) {
    if conformance::budget::is_left_out() || !can_attach() {
        return;
    }
    let Some(mut store) = Store::start(Program::VersityGw) else { return };
    let outage = Duration::from_secs(60);
    let folder = with_tree();
    let stack = node(folder.path(), Volume::large(store.port));
    let attached = Attached::new(name, &stack, &["--format", "--recover-within", "5m"]);
    let (link, top) = (attached.link.clone(), folder.path().display().to_string());
    run_shell(&format!("{make} {link}; mount {link} {top}/mnt")).ok();
    let copies = "for copy in 1 2 3 4; do cp -r TOP/tree TOP/mnt/$copy; sync -f TOP/mnt; echo $copy; done";
    let mut copying = Background::start("sh", &["-euc", &copies.replace("TOP", &top)]);
    copying.wait_until("a copy", |copying| copying.out().contains('1'));
    attached.kill_server();
    store.freeze(true);
    std::thread::sleep(outage);
    store.freeze(false);
    copying.wait_until("two copies", |copying| copying.out().contains('2'));
    store.kill();
    // The next server waits for the store.
    let killed = attached.listed()["server"].to_string();
    run_shell(&format!("kill -9 {killed}")).ok();
    std::thread::sleep(outage);
    store.restart();
    assert!(copying.wait().success(), "{}", copying.err());
    let sums = format!("{top}/sums");
    let compare =
        format!("for copy in 1 2 3 4; do (cd {top}/mnt/$copy; sha256sum --quiet --check {sums}); done");
    run_shell(&format!(
        "echo 3 >/proc/sys/vm/drop_caches; {compare}; rm -r {top}/mnt/1; fstrim {top}/mnt
         umount {top}/mnt; {check} {link}"
    ))
    .ok();
    // Everything is in the bucket after the message: the fast device isn't needed any more.
    siltstone(&["message", &stack, "local", "flush"]).ok();
    attached.detach();
    std::fs::remove_file(folder.path().join("fast.img")).unwrap();
    let text = std::fs::read_to_string(&stack).unwrap().replace("new_fast = false", "new_fast = true");
    std::fs::write(&stack, text).unwrap();
    let attached = Attached::new(name, &stack, &[]);
    let compare = compare.replace("1 2 3 4", "2 3 4");
    run_shell(&format!("mount -o ro {} {top}/mnt; trap 'umount {top}/mnt' EXIT; {compare}", attached.link))
        .ok();
    attached.detach();
}

#[test]
fn ext4_in_a_bucket_carries_on() {
    need!("mkfs.ext4", "jq", "losetup");
    carries_on("bucket-ext4", "mkfs.ext4 -q", "e2fsck -f -n");
}

#[test]
fn xfs_in_a_bucket_carries_on() {
    need!("mkfs.xfs", "jq", "losetup");
    carries_on("bucket-xfs", "mkfs.xfs -q -f -m reflink=0 -l size=16m --unsupported", "xfs_repair -n");
}

#[test]
fn postgresql_in_a_bucket_recovers_all_transactions() {
    if conformance::budget::is_left_out() {
        return;
    }
    let Some(programs) = postgresql() else { return };
    need!("runuser", "ps");
    need_root!("run PostgreSQL as another user");
    if !has_fuse() {
        return;
    }
    let Some(mut store) = Store::start(Program::VersityGw) else { return };
    let folder = tempfile::tempdir().unwrap();
    let volume = Volume { zones: 512, ..Volume::large(store.port) };
    let door = "[door.files]\nkind = \"fs\"\non = \"local\"\nmount = \"mnt\"\n";
    let mount = Mount::of_stack(&(volume.parts(&credentials(folder.path()), false) + door));
    let mut cluster = Cluster::new(programs, mount);
    cluster.start();
    cluster.program("pgbench", "-i -q -s 1 postgres");
    for kill in 0..3 {
        let pid = cluster.mount.server_pid();
        let acknowledged = cluster.transactions_until(|| {
            disturb(&mut store, kill, true);
            std::thread::sleep(Duration::from_secs(2));
            run_shell(&format!("kill -KILL {pid}")).ok();
        });
        cluster.kill();
        disturb(&mut store, kill, false);
        cluster.mount = cluster.mount.killed().served();
        cluster.start();
        cluster.check(acknowledged);
    }
    // The store stops for a while, and nothing fails.
    let stack = cluster.mount.beside("stack.toml").display().to_string();
    let before = cluster.mount.server_pid();
    let acknowledged = cluster.transactions_until(|| {
        store.freeze(true);
        std::thread::sleep(Duration::from_secs(20));
        store.freeze(false);
        let local = || status_of(&stack)["zones"]["local"].clone();
        let uploaded = number(&local(), "uploaded_bytes");
        wait_until("uploads", || number(&local(), "uploaded_bytes") > uploaded);
        cluster.kill();
    });
    assert_eq!(cluster.mount.server_pid(), before);
    cluster.start();
    cluster.check(acknowledged);
    cluster.stop();
    cluster.mount.stopped();
}

/// As `foreign_kill` does it: each block is whole and in its place, and none has its contents from before
/// the first flush.
#[test]
fn fio_verifies_what_is_in_a_bucket() {
    if conformance::budget::is_left_out() {
        return;
    }
    if !is_installed("fio") || !run_shell("fio --enghelp").ok().contains("nbd") {
        return skip("there is no fio with an nbd engine");
    }
    let Some(mut store) = Store::start(Program::VersityGw) else { return };
    let machine = Machine::formatted(Volume::small(store.port));
    let mut server = machine.serve();
    let job = format!(
        "fio --name=bucket --ioengine=nbd --iodepth=16 --bs=4k --rw=randwrite --size=2M --uri={} --randseed=3 \
         --verify=crc32c --verify_fatal=1 --verify_state_save=0 --fsync=64",
        server.uri()
    );
    run_shell(&format!("{job} --do_verify=0 --end_fsync=1")).ok();
    for round in 0..12 {
        let again = format!("while {job} --do_verify=0; do echo pass; done");
        let mut fio = Background::start("sh", &["-c", &again]);
        fio.wait_until("passes", |fio| fio.out().lines().count() > 2);
        disturb(&mut store, round, true);
        std::thread::sleep(Duration::from_millis(round * 331 % 1000));
        server.process.signal(Signal::KILL);
        server.process.wait();
        fio.wait();
        disturb(&mut store, round, false);
        server = machine.serve();
        run_shell(&format!("{job} --verify_only=1")).ok();
    }
    server.stop();
}
