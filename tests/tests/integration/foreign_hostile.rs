//! Hostile clients against the real server: after each of them the next client is served as usual, and the
//! server has neither grown nor kept a file or socket open.

use siltstone_tests::foreign::{Command, RawClient, Server, option, request, run};
use siltstone_tests::need;
use siltstone_tests::oracle::seed;
use std::io::Write;
use std::path::Path;
use tempfile::{TempDir, tempdir};

const EINVAL: u32 = 22;
const OPTION_INFO: u32 = 6;
const OPTION_GO: u32 = 7;
/// Limit in bytes on the memory of a server with a file after all clients.
const MAX_BYTES: u64 = 64 << 20;
/// Limit in bytes on the memory for one client that reads no replies, with some space for the allocator.
const MAX_OF_A_CLIENT: u64 = 80 << 20;

/// A server, and its memory and open files before the hostile clients.
struct Victim {
    folder: TempDir,
    server: Server,
    open_files: usize,
}

impl Victim {
    fn new() -> Victim {
        let folder = tempdir().expect("a folder");
        let stack = format!("file({}, size=64MiB) shards=2", folder.path().join("disk.img").display());
        let server = Server::start(folder.path(), &stack);
        let mut victim = Victim { folder, server, open_files: 0 };
        victim.serves_others("nothing yet");
        victim.open_files = victim.server.process.open_files();
        victim
    }

    fn socket(&self) -> &Path {
        &self.server.socket
    }

    fn open(&self) -> RawClient {
        RawClient::open(self.socket()).expect("the server answers")
    }

    fn greet(&self) -> RawClient {
        RawClient::greet(self.socket()).expect("the server answers")
    }

    /// Checks that a well-behaved client is served.
    #[track_caller]
    fn serves_others(&mut self, after: &str) {
        let info = run("nbdinfo", &["--size", self.server.uri()]);
        assert!(info.code == Some(0) && info.out.trim() == "67108864", "after {after}: {info:?}");
        assert!(self.server.process.is_alive(), "after {after}: {}", self.server.process.err());
        let resident = self.server.process.resident_bytes();
        assert!(resident < MAX_BYTES, "after {after} the server has {resident} bytes of memory");
    }

    /// Checks that as few files are open as at the beginning, once the server has noticed the ended
    /// connections.
    #[track_caller]
    fn ends(mut self) {
        let at_most = self.open_files;
        let is_closed = |process: &siltstone_tests::foreign::Background| process.open_files() <= at_most;
        self.server.process.wait_until("it had closed all connections", is_closed);
        self.server.stop();
        drop(self.folder);
    }
}

/// Sends bytes; the server may close the connection before it has read all of them.
fn push(client: &mut RawClient, bytes: &[u8]) {
    let _ = client.stream.write_all(bytes);
}

#[test]
fn wrong_handshakes() {
    need!("nbdinfo");
    let mut victim = Victim::new();
    let info_with = |data: &[u8]| [option(OPTION_INFO, data.len() as u32), data.to_vec()].concat();
    let cases: [(&str, Vec<u8>); 9] = [
        ("another magic number", b"GET / HTTP/1.1\r\nHost: siltstone\r\n\r\n".to_vec()),
        ("an option of 4 GiB", option(OPTION_GO, u32::MAX)),
        ("an export's name of 2 GiB", option(1, 1 << 31)),
        ("an export's name that isn't text", [option(1, 4), vec![0xff; 4]].concat()),
        ("a name longer than its option", info_with(&[0xff, 0xff, 0xff, 0xff, 0, 0])),
        ("more information requests than there are", info_with(&[0, 0, 0, 0, 0xff, 0xff])),
        ("an option without the bytes that it announces", option(OPTION_GO, 64)),
        ("an unknown option", [option(0x7777, 3), b"abc".to_vec()].concat()),
        ("a thousand options", option(3, 0).repeat(1000)),
    ];
    for (what, bytes) in cases {
        let mut client = victim.greet();
        push(&mut client, &bytes);
        victim.serves_others(what);
        client.stream.shutdown(std::net::Shutdown::Write).ok();
        assert!(client.is_closed_by_server(), "after {what} the connection stays");
    }
    let mut flags = RawClient::connect(victim.socket()).expect("it listens");
    push(&mut flags, &[0xff; 4]);
    assert!(flags.is_closed_by_server(), "unknown client flags are taken");
    victim.serves_others("unknown client flags");
    victim.ends();
}

#[test]
fn wrong_requests_are_answered_and_the_session_goes_on() {
    need!("nbdinfo");
    let mut victim = Victim::new();
    let mut client = victim.open();
    let size = client.size;
    let cases = [
        ("a read beyond the end", Command::Read, size - 512, 1024),
        ("a read that starts beyond the end", Command::Read, size, 512),
        ("a read whose end is beyond 2^64", Command::Read, u64::MAX - 511, 1024),
        ("a read of 4 GiB", Command::Read, 0, u32::MAX),
        ("a discard beyond the end", Command::Trim, size, 4096),
        ("zeroes beyond the end", Command::WriteZeroes, size - 4096, 8192),
        ("zeroes whose end is beyond 2^64", Command::WriteZeroes, u64::MAX, 2),
    ];
    for (what, command, offset, length) in cases {
        let error = client.call(command, offset, length, &[]).expect("the session continues");
        assert_ne!(error, 0, "{what} succeeded");
        if command == Command::Read {
            assert_eq!(error, EINVAL, "{what}");
        }
        let read = client.read(0, 512).expect("the session continues");
        assert!(read.iter().all(|&byte| byte == 0), "{what} left something");
        victim.serves_others(what);
    }
    let beyond = client.call(Command::Write, size - 512, 1024, &[7; 1024]).expect("the session continues");
    assert_ne!(beyond, 0, "a write beyond the end succeeded");
    assert!(client.read(size - 512, 512).expect("the session continues").iter().all(|&byte| byte == 0));
    drop(client);
    victim.ends();
}

#[test]
fn what_cannot_go_on_is_cut_off() {
    need!("nbdinfo");
    let mut victim = Victim::new();
    let mut wrong = victim.open();
    push(&mut wrong, &[0x42; 28]);
    assert!(wrong.is_closed_by_server(), "a wrong magic number is taken");
    victim.serves_others("a wrong magic number");

    let mut huge = victim.open();
    push(&mut huge, &request(Command::Write, 1, 0, u32::MAX));
    push(&mut huge, &vec![1; 1 << 20]);
    huge.stream.shutdown(std::net::Shutdown::Write).ok();
    assert!(huge.is_closed_by_server(), "a write of 4 GiB stays");
    victim.serves_others("a write of 4 GiB");

    // The server can't know whether a payload follows: it answers, and reads nothing after it.
    let mut unknown = victim.open();
    assert_eq!(unknown.call(Command::Unknown, 0, 0, &[]).expect("an answer"), EINVAL);
    assert!(unknown.is_closed_by_server(), "after an unknown command the connection stays");
    victim.serves_others("an unknown command");
    victim.ends();
}

#[test]
fn silence_and_sudden_ends() {
    need!("nbdinfo");
    let mut victim = Victim::new();
    let mut silent = Vec::new();
    let write = [request(Command::Write, 7, 4096, 65536).as_slice(), &[9; 65536]].concat();
    for cut in [1, 27, 28, 29, 5000, write.len() - 1] {
        let (mut stays, mut leaves) = (victim.open(), victim.open());
        push(&mut stays, &write[..cut]);
        push(&mut leaves, &write[..cut]);
        drop(leaves);
        silent.push(stays);
        victim.serves_others(&format!("half a request of {cut} bytes"));
    }
    silent.push(RawClient::connect(victim.socket()).expect("it listens"));
    silent.push(victim.greet());
    victim.serves_others("silent clients");
    // None of the writes was complete, so none of them may be written.
    let mut client = victim.open();
    assert!(
        client.read(0, 1 << 17).expect("read").iter().all(|&byte| byte == 0),
        "half a write was carried out"
    );
    drop((silent, client));
    victim.ends();
}

#[test]
fn a_client_that_takes_no_replies() {
    need!("nbdinfo");
    let mut victim = Victim::new();
    let clients: Vec<RawClient> = (0..4)
        .map(|_| {
            let mut client = victim.open();
            client.stream.set_nonblocking(true).expect("a socket");
            // Until the server reads no more requests, which must happen early; these ask for 64 GiB.
            for cookie in 0..65536 {
                if client.send(Command::Read, cookie, 0, 1 << 20, &[]).is_err() {
                    return client;
                }
            }
            panic!("the server has taken 65536 requests of a MiB although no reply is read");
        })
        .collect();
    let info = run("nbdinfo", &["--size", victim.server.uri()]);
    assert_eq!(info.ok().trim(), "67108864");
    let resident = victim.server.process.resident_bytes();
    println!("four such clients: {} MiB", resident >> 20);
    assert!(resident < MAX_BYTES + 4 * MAX_OF_A_CLIENT, "four such clients cost {resident} bytes");
    drop(clients);
    let at_most = victim.open_files;
    victim.server.process.wait_until("they are gone", |process| process.open_files() <= at_most);
    let error = victim.open().call(Command::Write, 0, 4, b"data").expect("the server answers");
    assert_eq!(error, 0);
    assert!(victim.server.process.is_alive());
    victim.ends();
}

#[test]
fn thousands_of_connects() {
    need!("nbdinfo");
    let mut victim = Victim::new();
    for index in 0..3000 {
        match index % 3 {
            0 => drop(RawClient::connect(victim.socket()).expect("it listens")),
            1 => drop(victim.greet()),
            _ => drop(victim.open()),
        }
    }
    victim.serves_others("3000 connects");
    // More connections than the server takes: the surplus ones are closed at once, until others end.
    let mut held: Vec<RawClient> = (0..400).filter_map(|_| RawClient::open(victim.socket()).ok()).collect();
    assert!((200..=256).contains(&held.len()), "{} clients at a time", held.len());
    for client in &mut held {
        assert_eq!(client.call(Command::Flush, 0, 0, &[]).expect("an accepted client is served"), 0);
    }
    held.clear();
    let at_most = victim.open_files;
    victim.server.process.wait_until("they are gone", |process| process.open_files() <= at_most);
    victim.serves_others("400 connections at a time");
    victim.ends();
}

#[test]
fn seeded_garbage() {
    need!("nbdinfo");
    let mut victim = Victim::new();
    let mut random = runtime::Random::new(seed("seeded_garbage", 1));
    for round in 0..200 {
        let mut client = if round % 2 == 0 { victim.greet() } else { victim.open() };
        // After a few valid bytes, so that more than the first magic number is parsed.
        let mut bytes = match round % 4 {
            0 => option(random.below(12) as u32, random.below(64) as u32),
            1 => request(Command::Read, 1, random.below(1 << 27), random.below(1 << 16) as u32).to_vec(),
            2 => Vec::new(),
            _ => request(Command::Write, 1, random.below(1 << 27), random.below(1 << 10) as u32).to_vec(),
        };
        bytes.extend((0..random.below(2048)).map(|_| random.next_u64() as u8));
        push(&mut client, &bytes);
        client.stream.shutdown(std::net::Shutdown::Write).ok();
        assert!(client.is_closed_by_server(), "round {round}: the connection stays");
    }
    victim.serves_others("garbage");
    victim.ends();
}
