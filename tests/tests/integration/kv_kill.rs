//! The server of a key-value store dies by SIGKILL while redis clients write to it: all acknowledged writes
//! are there when it is opened again.
#![expect(clippy::disallowed_methods, reason = "waits for real processes; nothing here runs in the runtime")]

use rustix::process::Signal;
use siltstone_tests::foreign::{Server, binary, run};
use siltstone_tests::oracle::seed;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::Duration;

/// Clients, each with its own keys.
const CLIENTS: u64 = 4;
/// Keys of a client.
const KEYS: usize = 200;
/// Commands that are sent before their replies are read.
const PIPELINED: usize = 16;
/// Kills of a test.
const KILLS: u64 = 3;

/// State of a key for its client: the numbers of its writes, of which even ones set it and odd ones delete
/// it.
#[derive(Debug, Clone, Copy, Default)]
struct Known {
    acknowledged: u64,
    sent: u64,
}

fn key(client: u64, number: usize) -> String {
    format!("client{client}:key{number}")
}

fn value(write: u64) -> String {
    format!("{write}:{}", "x".repeat((write * 37 % 500) as usize))
}

/// A command in the form of the protocol.
pub(crate) fn command(words: &[&str]) -> String {
    let encoded: String = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len())).collect();
    format!("*{}\r\n{encoded}", words.len())
}

/// Receives a line; `None` at the end of the connection.
pub(crate) fn line(stream: &mut UnixStream) -> Option<String> {
    let mut bytes = Vec::new();
    let mut byte = [0];
    while !bytes.ends_with(b"\r\n") {
        match stream.read(&mut byte) {
            Ok(1) => bytes.push(byte[0]),
            _ => return None,
        }
    }
    String::from_utf8(bytes).ok()
}

/// Writes until the connection to the server is lost.
fn write(socket: &Path, client: u64, seed: u64, mut known: Vec<Known>) -> Vec<Known> {
    let mut random = runtime::Random::new(seed);
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    loop {
        let mut batch = String::new();
        let mut numbers = Vec::new();
        for _ in 0..=random.below(PIPELINED as u64) {
            let number = random.below(KEYS as u64) as usize;
            let of_key = &mut known[number];
            // Most commands set a key.
            of_key.sent += if of_key.sent.is_multiple_of(2) && random.below(4) > 0 { 2 } else { 1 };
            numbers.push((number, of_key.sent));
            let (name, text) = (key(client, number), value(of_key.sent));
            batch += &match of_key.sent % 2 {
                0 => command(&["SET", &name, &text]),
                _ => command(&["DEL", &name]),
            };
        }
        if stream.write_all(batch.as_bytes()).is_err() {
            return known;
        }
        for (number, write) in numbers {
            let Some(reply) = line(&mut stream) else { return known };
            assert!(reply == "+OK\r\n" || reply.starts_with(':'), "{reply}");
            known[number].acknowledged = write;
        }
    }
}

/// Reads all keys of a client, and compares them with the acknowledged writes.
fn check(socket: &Path, client: u64, known: &mut [Known]) {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    for (number, of_key) in known.iter_mut().enumerate() {
        let name = key(client, number);
        stream.write_all(command(&["GET", &name]).as_bytes()).unwrap();
        let header = line(&mut stream).unwrap();
        let length: i64 =
            header.trim_start_matches('$').trim().parse().unwrap_or_else(|_| panic!("{name}: {header}"));
        let Known { acknowledged, sent } = *of_key;
        if length < 0 {
            // The key was never set, or one of the last deletions has taken effect.
            let is_deleted = acknowledged == 0 || (acknowledged..=sent).any(|write| write % 2 == 1);
            assert!(is_deleted, "{name} is lost: {of_key:?}");
            *of_key = Known { acknowledged: sent + 1 + sent % 2, sent: sent + 1 + sent % 2 };
            continue;
        }
        let mut bytes = vec![0; length as usize + 2];
        stream.read_exact(&mut bytes).unwrap();
        let text = String::from_utf8(bytes).unwrap();
        let write: u64 = text.split_once(':').unwrap().0.parse().unwrap();
        assert_eq!(text.trim_end(), value(write), "{name}");
        assert!((acknowledged..=sent).contains(&write), "{name} has write {write}: {of_key:?}");
        let next = sent + sent % 2;
        *of_key = Known { acknowledged: write, sent: next };
    }
}

fn survives(name: &str, parts: &str) {
    let folder = tempfile::tempdir().unwrap();
    survives_in(folder.path(), name, parts, |_, _| {});
}

/// Kills the server of a stack in this folder, and looks for all acknowledged writes. `around` is called
/// with the number of the kill before it (true) and before the next server (false).
pub(crate) fn survives_in(folder: &Path, name: &str, parts: &str, mut around: impl FnMut(u64, bool)) {
    let first = seed(name, 1);
    let (stack, socket) = (folder.join("kv.toml"), folder.join("kv.sock"));
    let listen =
        "listen = \"unix:kv.sock\"\nbuffer = \"256KiB\"\ntable_size = \"128KiB\"\nlevel_size = \"256KiB\"";
    std::fs::write(&stack, format!("{parts}\n{listen}\n")).unwrap();
    let stack = stack.display().to_string();
    let mut server = Server::start_with(&["kv", "serve", &stack, "--format"], socket.clone());
    let mut known = vec![vec![Known::default(); KEYS]; CLIENTS as usize];
    for round in first..first + KILLS {
        let mut random = runtime::Random::new(round);
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let (socket, known) = (socket.clone(), known[client as usize].clone());
                thread::spawn(move || write(&socket, client, round * CLIENTS + client, known))
            })
            .collect();
        thread::sleep(Duration::from_millis(300 + random.below(700)));
        around(round - first, true);
        server.process.signal(Signal::KILL);
        assert!(!server.process.wait().success(), "the server was killed");
        known = clients.into_iter().map(|client| client.join().unwrap()).collect();
        let writes: u64 = known.iter().flatten().map(|known| known.acknowledged).sum();
        println!("SILTSTONE_SEED={round}: {writes} acknowledged writes or so");
        assert!(writes > 0, "nothing was acknowledged");
        around(round - first, false);
        server = Server::restart_with(&["kv", "serve", &stack], socket.clone());
        for (client, known) in (0..).zip(&mut known) {
            check(&socket, client, known);
        }
    }
    server.stop();
    run(&binary().display().to_string(), &["kv", "check", &stack]).ok();
}

/// Data that was passed to the kernel survives the end of the process.
#[test]
fn written_to_a_file_survives_a_kill() {
    survives(
        "written_to_a_file_survives_a_kill",
        "[stack]\nshards = 2\n\n[device.disk]\nkind = \"file\"\npath = \"disk.img\"\nsize = \"64MiB\"\n\n\
         [door.store]\nkind = \"kv\"\non = \"disk\"\nacknowledge = \"written\"",
    );
}

/// The drive ends with the process: as after a power cut, it has only flushed data.
#[test]
fn flushed_to_an_emulated_drive_survives_a_kill() {
    survives(
        "flushed_to_an_emulated_drive_survives_a_kill",
        "[zones.flash]\nkind = \"zns-emulator\"\npath = \"kv.zns\"\nzones = 32\nzone_size = \"2MiB\"\ntime = \"none\"\n\n\
         [door.store]\nkind = \"kv\"\non = \"flash\"\nacknowledge = \"flushed\"\ndelete_persistence = \"2s\"",
    );
}
