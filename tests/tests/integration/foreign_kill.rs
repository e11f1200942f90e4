//! The server dies by SIGKILL while real programs write through stacks of several disks: fio, which verifies
//! its own writes, and the kernel's ext4, which must have every file that had been fsynced. `foreign_crash`
//! does the same with a client that knows exactly which writes must survive.
#![expect(clippy::disallowed_methods, reason = "waits for real processes; nothing here runs in the runtime")]

use conformance::budget::Budget;
use rustix::process::Signal;
use siltstone_tests::foreign::{
    Background, Fuse, KILLED, Killed, Server, binary, can_mount_loop, has_fuse, is_installed, run, run_shell,
    skip,
};
use siltstone_tests::oracle::seed;
use siltstone_tests::{need, need_root};
use std::path::Path;
use std::time::Duration;
use tempfile::tempdir;

const FIO_BYTES: u64 = 16 << 20;
const EXT4_BYTES: u64 = 48 << 20;
/// Number of files; each is different, and `STEP` bytes longer than the one before.
const FILES: u64 = 40;
const STEP: usize = 1733;

fn made(killed: &Killed, folder: &Path, bytes: u64) -> String {
    let stack = format!("{} shards=2", killed.line(folder, bytes));
    run(&binary().display().to_string(), &["format", &stack]).ok();
    stack
}

/// fio writes all blocks, flushes, and then writes all of them again and again, each time with the same
/// verifiable contents except for the time in its header. So after a kill at any time each block is whole and
/// in its place, and none has its contents from before the first flush.
#[test]
fn fio_verifies_what_a_killed_server_kept() {
    let budget = Budget::of(3);
    if !has_fio() {
        return;
    }
    let first = seed("fio_verifies_what_a_killed_server_kept", 1);
    for (round, killed) in (first..).zip(KILLED) {
        if !budget.allows_more(KILLED.len() as u64) {
            break;
        }
        let mut random = runtime::Random::new(round);
        let folder = tempdir().expect("a folder");
        let stack = made(killed, folder.path(), FIO_BYTES);
        println!("SILTSTONE_SEED={round}, {}: {stack}", killed.name);
        let mut server = Server::restart(folder.path(), &stack);
        let job = job(&server, round);
        run_shell(&format!("{job} --do_verify=0 --end_fsync=1")).ok();
        for _ in 0..2 {
            let again = format!("while {job} --do_verify=0; do echo pass; done");
            let mut fio = Background::start("sh", &["-c", &again]);
            let enough = 1 + random.below(2) as usize;
            fio.wait_until("it has written all some times", |fio| passes(fio) >= enough);
            std::thread::sleep(Duration::from_millis(random.below(100)));
            server.process.signal(Signal::KILL);
            assert!(!server.process.wait().success(), "the server was killed");
            fio.wait();
            server = Server::restart(folder.path(), &stack);
            run_shell(&format!("{job} --verify_only=1")).ok();
        }
        server.stop();
    }
}

/// Proof that fio notices missing writes.
#[test]
fn fio_finds_writes_that_were_dropped() {
    if !has_fio() {
        return;
    }
    let folder = tempdir().expect("a folder");
    let disk = folder.path().join("disk.img");
    let stack =
        format!("fault(file({}, size={FIO_BYTES}), \"write drop every=1000\", seed=1)", disk.display());
    let server = Server::start(folder.path(), &stack);
    let job = job(&server, 1);
    run_shell(&format!("{job} --do_verify=0 --end_fsync=1")).ok();
    run_shell(&format!("{job} --verify_only=1")).refused();
    server.stop();
}

fn has_fio() -> bool {
    let has = is_installed("fio") && run("fio", &["--enghelp"]).ok().contains("nbd");
    if !has {
        skip("there is no fio with an nbd engine");
    }
    has
}

/// fio's arguments for writing all blocks, in an order and with contents that the seed decides.
fn job(server: &Server, seed: u64) -> String {
    format!(
        "fio --name=kill --ioengine=nbd --iodepth=16 --bs=4k --rw=randwrite --size={FIO_BYTES} --uri={} --randseed={seed} \
         --verify=crc32c --verify_fatal=1 --verify_state_save=0 --fsync=64",
        server.uri()
    )
}

/// Number of passes that fio has completed.
fn passes(fio: &Background) -> usize {
    fio.out().lines().filter(|line| *line == "pass").count()
}

/// Copies files until the disk fails; prints `done` for each that was fsynced. Now and then it copies one
/// without fsync.
const FILL: &str = "
    number=0
    while cp TREE/file$((number % FILES)) MOUNT/file$number && sync MOUNT/file$number; do
        echo $number >> DONE
        number=$((number + 1))
        if test $((number % 8)) = 0; then cat TREE/* > MOUNT/unsynced$number; fi
        if test $number -gt 60 -a $((number % 3)) = 0; then echo again > MOUNT/file1 && sync MOUNT/file1 || break; fi
    done";

/// Compares each file with its source.
const COMPARE: &str = "
    while read number; do
        if test $number != 1; then cmp TREE/file$((number % FILES)) MOUNT/file$number; fi
    done < DONE";

#[test]
fn ext4_on_a_killed_server_has_what_was_fsynced() {
    let budget = Budget::of(3);
    need!("nbdfuse", "mkfs.ext4", "e2fsck");
    need_root!("mount");
    if !has_fuse() || !can_mount_loop() {
        return;
    }
    let first = seed("ext4_on_a_killed_server_has_what_was_fsynced", 1);
    for (round, killed) in (first..).zip(KILLED) {
        if !budget.allows_more(KILLED.len() as u64) {
            break;
        }
        let mut random = runtime::Random::new(round);
        let folder = tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        for name in ["nbd", "mnt", "tree"] {
            std::fs::create_dir(at(name)).expect("a folder");
        }
        for number in 0..FILES {
            let bytes: Vec<u8> =
                (0..number as usize * STEP).map(|at| (at as u64 * 31 + number) as u8).collect();
            std::fs::write(at("tree").join(format!("file{number}")), bytes).expect("a file");
        }
        let path = |name: &str| at(name).display().to_string();
        let script = |text: &str| {
            let words = [("TREE", "tree"), ("MOUNT", "mnt"), ("DONE", "done")];
            let text = text.replace("FILES", &FILES.to_string());
            words.iter().fold(text, |text, (word, name)| text.replace(word, &path(name)))
        };
        let stack = made(killed, folder.path(), EXT4_BYTES);
        println!("SILTSTONE_SEED={round}, {}: {stack}", killed.name);
        let mut server = Server::restart(folder.path(), &stack);
        let fuse = Fuse::start(&at("nbd"), server.uri());
        run("mkfs.ext4", &["-q", "-F", &fuse.export()]).ok();
        run("mount", &["-o", "loop", &fuse.export(), &path("mnt")]).ok();
        let mounted = Mounted(path("mnt"));
        let mut filling = Background::start("sh", &["-uc", &script(FILL)]);
        let enough = 60 + random.below(120) as usize;
        let fsynced = || std::fs::read_to_string(at("done")).map_or(0, |text| text.lines().count());
        filling.wait_until("enough files were fsynced", |_| fsynced() > enough);
        server.process.signal(Signal::KILL);
        assert!(!server.process.wait().success(), "the server was killed");
        filling.wait();
        drop(mounted);
        fuse.give_up();
        println!("{} files were fsynced", fsynced());

        let server = Server::restart(folder.path(), &stack);
        let fuse = Fuse::start(&at("nbd"), server.uri());
        run_shell(&format!("mount -o loop {} {}", fuse.export(), path("mnt"))).ok();
        let mounted = Mounted(path("mnt"));
        run_shell(&script(COMPARE)).ok();
        drop(mounted);
        run("e2fsck", &["-f", "-n", &fuse.export()]).ok();
        fuse.close();
        server.stop();
    }
}

/// A mounted file system, whose device may have disappeared.
struct Mounted(String);

impl Drop for Mounted {
    fn drop(&mut self) {
        run_shell(&format!("umount {0} || umount -l {0}", self.0));
    }
}
