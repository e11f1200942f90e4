//! A file system and a key-value store in a bucket, behind a write cache: what is there after kills of the
//! server, after the loss of the fast device, and after another machine has taken the volume over.

use super::servers::{Program, Server as Store};
use super::{Volume, credentials, disturb, number, siltstone, status_of, wait_until};
use crate::kv_kill::{command, line, survives_in};
use siltstone_tests::foreign::{Mount, Server, has_fuse};
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

/// Bytes of a record of a file.
const RECORD: u64 = 512;
const FILES: [&str; 2] = ["first", "second"];

fn record(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(RECORD as usize / 8)
}

/// Appends records to two files in turn and syncs each of them, until a call fails. Returns the number of
/// records that were synced, those of earlier runs included.
fn append_until_it_fails(folder: &Path, before: u64) -> u64 {
    let files = FILES.map(|name| {
        File::options().create(true).truncate(false).write(true).open(folder.join(name)).unwrap()
    });
    if File::open(folder).and_then(|folder| folder.sync_all()).is_err() {
        return before;
    }
    for number in before.. {
        let (file, place) = (&files[(number % 2) as usize], number / 2);
        let written = file.write_all_at(&record(number), place * RECORD).and_then(|()| file.sync_data());
        if written.is_err() {
            return number;
        }
    }
    unreachable!("a run ends")
}

/// Number of records that the files have, which is a prefix of all.
fn records(folder: &Path) -> u64 {
    let counts = [0, 1].map(|place| {
        let bytes = std::fs::read(folder.join(FILES[place])).unwrap_or_else(|error| {
            assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{}: {error}", FILES[place]);
            Vec::new()
        });
        assert_eq!(bytes.len() as u64 % RECORD, 0, "{}: a part of a record", FILES[place]);
        for (number, found) in (0..).zip(bytes.chunks_exact(RECORD as usize)) {
            assert_eq!(found, record(number * 2 + place as u64), "{}: record {number}", FILES[place]);
        }
        bytes.len() as u64 / RECORD
    });
    assert!(counts[0] == counts[1] || counts[0] == counts[1] + 1, "no prefix: {counts:?}");
    counts[0] + counts[1]
}

/// The stack of a file system.
fn files(volume: Volume, credentials: &Path, new_fast: bool) -> String {
    let door = "[door.files]\nkind = \"fs\"\non = \"local\"\nmount = \"mnt\"\n";
    volume.parts(credentials, new_fast) + door
}

/// A mount of a volume that exists, by a machine with an empty fast device.
fn elsewhere(volume: Volume, credentials: &Path) -> Mount {
    let mount = Mount::without_image();
    std::fs::write(mount.beside("stack.toml"), files(volume, credentials, true)).unwrap();
    volume.empty_fast(&mount.beside(""));
    mount.served()
}

fn local(mount: &Mount) -> serde_json::Value {
    let control = mount.beside("control").display().to_string();
    let said = siltstone(&["status", "-", "--control", &control, "--json"]).ok();
    let status: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    status["zones"]["local"].clone()
}

#[test]
fn a_mount_in_a_bucket_keeps_what_was_synced() {
    if !has_fuse() {
        return;
    }
    let Some(mut store) = Store::start(Program::VersityGw) else { return };
    let folder = tempfile::tempdir().unwrap();
    let (volume, credentials) = (Volume::large(store.port), credentials(folder.path()));
    let mut mount = Mount::of_stack(&files(volume, &credentials, false));
    let mut synced = 0;
    for round in 0..if conformance::budget::is_long() { 30 } else { 3 } {
        let (at, begun) = (mount.at(""), synced);
        synced = std::thread::scope(|scope| {
            let writer = scope.spawn(|| append_until_it_fails(&at, begun));
            let before = number(&local(&mount), "flushes");
            wait_until("syncs", || number(&local(&mount), "flushes") > before + 100);
            disturb(&mut store, round, true);
            std::thread::sleep(Duration::from_millis(round * 37 % 200));
            mount.server().process.signal(rustix::process::Signal::KILL);
            writer.join().unwrap()
        });
        assert!(synced > begun, "nothing was synced");
        disturb(&mut store, round, false);
        mount = mount.killed().served();
        let found = records(&mount.at(""));
        println!("kill {round}: {synced} records were synced, {found} are there");
        assert!(found == synced || found == synced + 1, "{synced} were synced, {found} are there");
        synced = found;
    }
    // The fast device is lost. What was synced before is uploaded first.
    let at = mount.at("");
    wait_until("the uploads", || number(&local(&mount), "lag_bytes") == 0);
    let until = std::thread::scope(|scope| {
        let writer = scope.spawn(|| append_until_it_fails(&at, synced));
        let before = number(&local(&mount), "uploaded_bytes");
        wait_until("an upload", || number(&local(&mount), "uploaded_bytes") > before + (256 << 10));
        mount.server().process.signal(rustix::process::Signal::KILL);
        writer.join().unwrap()
    });
    let lost = mount.killed();
    let mount = elsewhere(volume, &credentials);
    let found = records(&mount.at(""));
    println!("loss: {until} records were synced, {found} are there");
    assert!(found >= synced && found <= until + 1, "{synced} were uploaded, {until} synced, {found} found");
    std::fs::write(mount.at("more"), b"another machine").unwrap();
    let mount = mount.stopped().served();
    drop(lost);
    assert_eq!(records(&mount.at("")), found);
    mount.stopped();
}

#[test]
fn a_mount_is_fenced_by_another_machine() {
    if !has_fuse() {
        return;
    }
    let Some(store) = Store::start(Program::VersityGw) else { return };
    let folder = tempfile::tempdir().unwrap();
    let (volume, credentials) = (Volume::large(store.port), credentials(folder.path()));
    let first = Mount::of_stack(&files(volume, &credentials, false));
    let at = first.at("");
    let (second, synced) = std::thread::scope(|scope| {
        let writer = scope.spawn(|| append_until_it_fails(&at, 0));
        wait_until("an upload", || number(&local(&first), "uploaded_bytes") > 256 << 10);
        let second = elsewhere(volume, &credentials);
        (second, writer.join().unwrap())
    });
    let found = records(&second.at(""));
    println!("{synced} records were synced on the first machine, {found} are in the bucket");
    assert!(found > 0 && found <= synced + 1);
    let conflict = local(&first)["conflict"].as_str().unwrap_or_default().to_owned();
    assert!(conflict.contains("fenced"), "{conflict}");
    let refused =
        std::fs::write(first.at("new"), b"x").and_then(|()| File::open(first.at("new"))?.sync_all());
    assert!(refused.is_err(), "a write is taken after the fence");
    // What the kernel has cached is read, and everything else refused.
    for name in FILES {
        match std::fs::read(first.at(name)) {
            Ok(bytes) => assert!(bytes.len() as u64 >= synced / 2 * RECORD, "{name}: {} bytes", bytes.len()),
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem, "{name}: {error}"),
        }
    }
    std::fs::write(second.at("new"), b"of the second one").unwrap();
    drop(first.killed());
    let second = second.stopped().served();
    assert_eq!(std::fs::read(second.at("new")).unwrap(), b"of the second one");
    let second = second.stopped();
    let stack = second.beside("check.toml").display().to_string();
    std::fs::write(&stack, volume.parts(&credentials, false)).unwrap();
    let said = siltstone(&["fs", "check", &stack, "--data"]).ok();
    assert!(said.ends_with("no damage\n"), "{said}");
}

/// The stack of a key-value store, without its socket.
fn keys(volume: Volume, credentials: &Path, new_fast: bool, acknowledge: &str) -> String {
    let door = "[door.store]\nkind = \"kv\"\non = \"local\"\n";
    volume.parts(credentials, new_fast) + door + &format!("acknowledge = \"{acknowledge}\"")
}

#[test]
fn a_killed_store_in_a_bucket_has_kept_what_it_acknowledged() {
    let Some(mut store) = Store::start(Program::VersityGw) else { return };
    let folder = tempfile::tempdir().unwrap();
    let parts = keys(Volume::large(store.port), &credentials(folder.path()), false, "written");
    let name = "a_killed_store_in_a_bucket_has_kept_what_it_acknowledged";
    survives_in(folder.path(), name, &parts, |kill, is_before| disturb(&mut store, kill, is_before));
}

/// A machine with a key-value store.
struct Machine {
    folder: TempDir,
}

impl Machine {
    fn new(volume: Volume, new_fast: bool) -> Machine {
        let folder = tempfile::tempdir().unwrap();
        let parts = keys(volume, &credentials(folder.path()), new_fast, "flushed");
        let listen = "\nlisten = \"unix:kv.sock\"\n";
        std::fs::write(folder.path().join("kv.toml"), parts + listen).unwrap();
        if new_fast {
            volume.empty_fast(folder.path());
        }
        Machine { folder }
    }

    fn stack(&self) -> String {
        self.folder.path().join("kv.toml").display().to_string()
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("kv.sock")
    }

    fn serve(&self, options: &[&str]) -> Server {
        let stack = self.stack();
        Server::restart_with(&[&["kv", "serve", &stack], options].concat(), self.socket())
    }

    fn status(&self) -> serde_json::Value {
        status_of(&self.stack())["zones"]["local"].clone()
    }
}

/// Sets keys one after the other until the connection ends, or a command fails. Returns the number of
/// acknowledged ones, and the last reply.
fn set_until_it_fails(socket: &Path) -> (u64, String) {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    for number in 0_u64.. {
        let sent = command(&["SET", &format!("key{number}"), &"v".repeat(1000)]);
        let reply = match stream.write_all(sent.as_bytes()) {
            Ok(()) => line(&mut stream),
            Err(_) => None,
        };
        match reply {
            Some(reply) if reply == "+OK\r\n" => {}
            reply => return (number, reply.unwrap_or_default()),
        }
    }
    unreachable!("a run ends")
}

/// Number of keys, which are a prefix of those that were set.
fn count(socket: &Path, most: u64) -> u64 {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut exists = |number: u64| {
        stream.write_all(command(&["EXISTS", &format!("key{number}")]).as_bytes()).unwrap();
        line(&mut stream).unwrap() == ":1\r\n"
    };
    let found = (0..most).take_while(|number| exists(*number)).count() as u64;
    for number in found..most {
        assert!(!exists(number), "key {number} is there, and {found} isn't");
    }
    found
}

#[test]
fn a_store_in_a_bucket_is_an_earlier_state_after_a_loss_and_fenced_by_another_machine() {
    let Some(store) = Store::start(Program::VersityGw) else { return };
    let volume = Volume::large(store.port);
    let first = Machine::new(volume, false);
    let mut server = first.serve(&["--format"]);
    let socket = first.socket();
    let (set, _) = std::thread::scope(|scope| {
        let writer = scope.spawn(|| set_until_it_fails(&socket));
        wait_until("an upload", || number(&first.status(), "uploaded_bytes") > 256 << 10);
        server.process.signal(rustix::process::Signal::KILL);
        writer.join().unwrap()
    });
    server.process.wait();
    let second = Machine::new(volume, true);
    let server = second.serve(&[]);
    let found = count(&second.socket(), set + 1);
    println!("{set} keys were acknowledged, {found} are in the bucket");
    assert!(found > 0);
    let (third, socket) = (Machine::new(volume, true), second.socket());
    let (set, reply, other) = std::thread::scope(|scope| {
        let writer = scope.spawn(|| set_until_it_fails(&socket));
        let before = number(&second.status(), "uploaded_bytes");
        wait_until("an upload", || number(&second.status(), "uploaded_bytes") > before + (256 << 10));
        let other = third.serve(&[]);
        let (set, reply) = writer.join().unwrap();
        (set, reply, other)
    });
    assert!(reply.starts_with('-'), "an error: {reply}");
    let found = count(&third.socket(), set + 1);
    println!("{set} keys were acknowledged before the fence, {found} are in the bucket; {reply}");
    assert!(found > 0);
    drop(server);
    other.stop();
    let said = siltstone(&["kv", "check", &third.stack()]).refused();
    assert!(said.contains("\"local\" (zone-writecache)") && said.contains("--writable"), "{said}");
    let said = siltstone(&["kv", "check", &third.stack(), "--writable"]).ok();
    assert!(said.ends_with("no damage\n"), "{said}");
}
