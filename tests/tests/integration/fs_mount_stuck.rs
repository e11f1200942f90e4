//! A mount whose kernel waits for its server: seeks on files with cached writes, kills meanwhile, and
//! abandoned mounts.
#![expect(clippy::disallowed_methods, reason = "waits for real processes; nothing here runs in the runtime")]

use rustix::fs::SeekFrom;
use rustix::process::Signal;
use siltstone_tests::foreign::{
    Background, Finished, Mount, Server, binary, has_fuse, is_root, run, run_shell,
};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Longest wait of these tests.
const LIMIT: Duration = Duration::from_secs(40);
/// Files at a time: as many as a shard has workers.
const FILES: usize = 64;

/// Whether there is FUSE, and mounts can be aborted.
fn can_abort() -> bool {
    has_fuse() && is_root()
}

fn siltstone(arguments: &[&str]) -> Finished {
    run(&binary().display().to_string(), arguments)
}

/// Aborts the mounts below a directory when it is dropped, so that no process of a test waits for them.
struct Guard(PathBuf);

impl Drop for Guard {
    fn drop(&mut self) {
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        for at in mounts.lines().filter_map(|line| line.split(' ').nth(1)) {
            if Path::new(at).starts_with(&self.0) {
                run_shell(&format!("umount -f -l '{at}' 2>/dev/null || fusermount3 -uz '{at}' || true"));
            }
        }
    }
}

/// Opens files, each with a hole followed by cached writes of `bytes` bytes. They stay open for writing.
fn dirty_files(mount: &Mount, bytes: usize) -> Vec<File> {
    let data = vec![7; bytes];
    let open = |number: usize| {
        let path = mount.at(&format!("f{number}"));
        let file = File::options().read(true).write(true).create_new(true).open(path).expect("a file");
        file.write_all_at(&data, 1 << 20).expect("cached");
        file
    };
    (0..FILES).map(open).collect()
}

/// Seeks data in all files at once. The results come over the channel.
fn seek_all(files: Vec<File>) -> (mpsc::Receiver<rustix::io::Result<u64>>, Vec<JoinHandle<()>>) {
    let (sender, receiver) = mpsc::channel();
    let seek = |file: File| {
        let sender = sender.clone();
        std::thread::spawn(move || {
            let _gone = sender.send(rustix::fs::seek(&file, SeekFrom::Data(0)));
        })
    };
    let threads = files.into_iter().map(seek).collect();
    (receiver, threads)
}

/// Waits for threads for at most the limit.
fn join(threads: Vec<JoinHandle<()>>) {
    let begun = Instant::now();
    while threads.iter().any(|thread| !thread.is_finished()) {
        assert!(begun.elapsed() < LIMIT, "programs wait for the mount");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Runs a test on a thread of its own. After the limit its mounts are aborted, and it fails.
fn within_limit(test: impl FnOnce(Mount) + Send + 'static) {
    let mount = Mount::new(&[]);
    let _guard = Guard(mount.beside(""));
    let (sender, receiver) = mpsc::channel();
    let running = std::thread::spawn(move || {
        test(mount);
        let _gone = sender.send(());
    });
    match receiver.recv_timeout(2 * LIMIT) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("the test waits for its mount"),
        _ => {
            if let Err(panic) = running.join() {
                std::panic::resume_unwind(panic);
            }
        }
    }
}

#[test]
fn seeks_on_as_many_dirty_files_as_there_are_workers_end_and_find_the_data() {
    if !has_fuse() {
        return;
    }
    within_limit(|mount| {
        // While more seeks than workers are in progress, a snapshot is taken, which makes the same call.
        let mut files = dirty_files(&mount, 256 << 10);
        let again: Vec<_> = files.iter().map(|file| file.try_clone().expect("a descriptor")).collect();
        files.extend(again);
        let (found, threads) = seek_all(files);
        std::fs::create_dir(mount.at(".snapshots/taken")).expect("a snapshot");
        join(threads);
        let found: Vec<_> = found.iter().collect();
        assert_eq!(found, vec![Ok(1 << 20); 2 * FILES]);
        assert_eq!(
            mount.at(".snapshots/taken/f63").metadata().expect("there").len(),
            (1 << 20) + (256 << 10)
        );
        let mount = mount.unmounted();
        mount.is_sound();
    });
}

#[test]
fn a_server_that_is_killed_during_seeks_ends_and_frees_its_image() {
    if !has_fuse() {
        return;
    }
    within_limit(|mount| {
        let (found, threads) = seek_all(dirty_files(&mount, 4 << 20));
        // The others are in progress.
        found.recv_timeout(LIMIT).expect("a seek ends").expect("it finds data");
        let begun = Instant::now();
        let mount = mount.killed();
        // The test doesn't abort the connection itself.
        join(threads);
        assert!(found.iter().any(|found| found.is_err()), "the seeks had ended before the kill");
        let mount = mount.mounted();
        assert!(begun.elapsed() < LIMIT / 2, "{:?}", begun.elapsed());
        std::fs::write(mount.at("after"), b"works").expect("it serves");
        mount.unmounted();
    });
}

#[test]
fn a_server_that_is_killed_while_it_unmounts_ends_and_frees_its_image() {
    if !has_fuse() {
        return;
    }
    within_limit(|mount| {
        drop(dirty_files(&mount, 4096));
        let path = mount.at("large");
        // The close of a mapping alone leaves the data in the cache: unmounting writes it back.
        let mapped = run_shell(&format!(
            "python3 -c \"
import mmap, os
f = os.open('{}', os.O_RDWR | os.O_CREAT); os.ftruncate(f, 64 << 20)
m = mmap.mmap(f, 64 << 20); os.close(f)
for i in range(0, 64 << 20, 4096): m[i] = 1
\"",
            path.display()
        ));
        mapped.ok();
        let pid = rustix::process::Pid::from_raw(mount.server_pid() as i32).expect("a process");
        rustix::process::kill_process(pid, Signal::TERM).expect("there");
        std::thread::sleep(Duration::from_millis(60));
        let mount = mount.killed().mounted();
        mount.unmounted();
    });
}

#[test]
fn a_mount_over_one_whose_server_does_not_answer_replaces_it_if_it_has_the_image() {
    if !can_abort() {
        return;
    }
    let mount = Mount::without_image();
    let _guard = Guard(mount.beside(""));
    let (image, at) = (mount.image(), text(&mount.beside("mnt")));
    siltstone(&["fs", "format", &image, "--size", "64MiB"]).ok();
    // A connection without a server to answer it, like that of a server that can't end.
    let script = format!(
        "import ctypes, os, time
f = os.open('/dev/fuse', os.O_RDWR)
o = b'fd=%d,rootmode=40000,user_id=0,group_id=0' % f
assert ctypes.CDLL(None).mount(b'{image}', b'{at}', b'fuse.siltstone', 0, o) == 0
print('mounted', flush=True)
time.sleep(60)"
    );
    let mut other = Background::start("python3", &["-c", &script]);
    other.wait_until("mounted", |other| other.out().contains("mounted"));
    let mut server = Server::start_with(&["fs", "mount", &image, &at], PathBuf::new());
    std::fs::write(mount.at("f"), b"works").expect("it serves");
    assert!(server.process.err().contains("aborted its connection"), "{}", server.process.err());
    run("umount", &[&at]).ok();
    assert!(server.process.wait().success(), "{}", server.process.err());
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

#[test]
fn unmount_ends_when_the_image_is_closed() {
    if !has_fuse() {
        return;
    }
    within_limit(|mount| {
        std::fs::write(mount.at("f"), vec![7; 32 << 20]).expect("written");
        let said = siltstone(&["fs", "unmount", &text(&mount.at(""))]).ok();
        assert!(said.contains("its server has ended"), "{said}");
        // Nothing here waits for the server.
        assert_eq!(mount.status()["replayed_records"], 0);
    });
}

#[test]
fn more_signals_do_not_end_a_server_that_unmounts() {
    if !has_fuse() {
        return;
    }
    within_limit(|mount| {
        let held = File::create(mount.at("held")).expect("a file");
        let pid = rustix::process::Pid::from_raw(mount.server_pid() as i32).expect("a process");
        for _ in 0..3 {
            rustix::process::kill_process(pid, Signal::TERM).expect("it is there");
            std::thread::sleep(Duration::from_millis(200));
        }
        drop(held);
        let status = once_free(&mount, "status");
        assert_eq!(status["replayed_records"], 0);
    });
}

/// JSON of a verb for the image, once its server has ended.
fn once_free(mount: &Mount, verb: &str) -> serde_json::Value {
    let begun = Instant::now();
    loop {
        let said = siltstone(&["fs", verb, &mount.image(), "--json"]);
        if said.code == Some(0) || begun.elapsed() > LIMIT {
            return serde_json::from_str(&said.ok()).expect("JSON");
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_server_whose_only_door_was_unmounted_ends() {
    if !can_abort() {
        return;
    }
    let disk = "[device.disk]\nkind = \"file\"\npath = \"disk\"\nsize = \"64MiB\"\n";
    let mount = Mount::of_stack(&format!("{disk}{DOOR}"));
    std::fs::write(mount.at("f"), b"works").expect("it serves");
    mount.unmounted();
}

/// Door of a file system on `disk`.
const DOOR: &str = "[door.files]\nkind = \"fs\"\non = \"disk\"\nmount = \"mnt\"\n";

/// Ends the server of a file system by two signals, while its disk doesn't answer.
fn two_signals_end_a_server(is_of_stack: bool) {
    let mount = Mount::without_image();
    let _guard = Guard(mount.beside(""));
    let mut disk =
        Server::start(&mount.beside(""), &format!("file({}, size=64MiB)", text(&mount.beside("disk"))));
    // Its own limit would end the wait.
    let client = format!(
        "[device.disk]\nkind = \"nbd-client\"\naddress = \"unix:{}\"\nblock_size = 4096\ntimeout = \"24h\"\n",
        disk.socket.display()
    );
    let (stack, image, at) = (mount.beside("stack.toml"), mount.beside("image.toml"), mount.beside("mnt"));
    std::fs::write(&stack, format!("{client}{DOOR}")).expect("a file");
    std::fs::write(&image, client).expect("a file");
    let (stack, image, at) = (text(&stack), text(&image), text(&at));
    let served = match is_of_stack {
        true => vec!["serve", &stack, "--no-control"],
        false => vec!["fs", "mount", &image, &at],
    };
    siltstone(&["fs", "format", &image]).ok();
    let mut server = Server::start_with(&served, PathBuf::new());
    let durable = File::create(mount.at("durable")).expect("a file");
    durable.write_all_at(b"data", 0).expect("written");
    durable.sync_all().expect("durable");
    disk.process.stop();
    let lost = File::create(mount.at("lost")).expect("a file");
    // So near the end of space the write isn't cached, and waits for the disk itself.
    let syncing =
        std::thread::spawn(move || lost.write_all_at(&[7; 65536], 0).and_then(|()| lost.sync_all()));
    std::thread::sleep(Duration::from_millis(200));
    assert!(!syncing.is_finished(), "fsync has returned although the disk doesn't answer");
    let begun = Instant::now();
    for _ in 0..2 {
        server.process.signal(Signal::TERM);
        std::thread::sleep(Duration::from_millis(200));
    }
    assert_eq!(server.process.wait().code(), Some(1), "{}", server.process.err());
    assert!(begun.elapsed() < LIMIT, "{:?}", begun.elapsed());
    let said = server.process.err();
    assert!(said.contains("changes that weren't durable are lost"), "{said}");
    assert!(syncing.join().expect("no panic").is_err(), "the data isn't durable");
    let mounts = std::fs::read_to_string("/proc/self/mounts").expect("mounts");
    assert!(!mounts.contains(&at), "the mount point is left");
    disk.process.signal(Signal::CONT);
    let said = siltstone(&["fs", "check", &image, "--data"]).ok();
    assert!(said.ends_with("no damage\n"), "{said}");
    let mut server = Server::restart_with(&served, PathBuf::new());
    assert_eq!(std::fs::read(mount.at("durable")).expect("there"), b"data");
    server.process.signal(Signal::TERM);
    assert!(server.process.wait().success(), "{}", server.process.err());
}

#[test]
fn two_signals_end_a_mount_whose_storage_does_not_answer() {
    if can_abort() {
        two_signals_end_a_server(false);
    }
}

#[test]
fn two_signals_end_a_served_stack_whose_storage_does_not_answer() {
    if can_abort() {
        two_signals_end_a_server(true);
    }
}

#[test]
fn an_aborted_mount_frees_files_that_were_removed_while_they_were_open() {
    if !can_abort() {
        return;
    }
    let mount = Mount::formatted(&["--size", "64MiB"]);
    let held = File::create(mount.at("removed")).expect("a file");
    held.write_all_at(&[7; 65536], 0).expect("written");
    held.sync_all().expect("durable");
    std::fs::remove_file(mount.at("removed")).expect("removed");
    run("umount", &["-f", "-l", &text(&mount.beside("mnt"))]).ok();
    // The check doesn't open the file system, which would remove it.
    let checked = once_free(&mount, "check");
    assert_eq!((&checked["sound"], &checked["orphans"]), (&true.into(), &0.into()), "{checked}");
    drop(held);
}
