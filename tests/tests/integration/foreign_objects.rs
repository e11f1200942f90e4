//! Everything in a bucket of a real store (VersityGW): the server is killed, the store stops and ends, the
//! fast device is lost, and another machine opens the bucket.
//!
//! `engines`: what a file system and a key-value store keep. `programs`: PostgreSQL, fio, and file systems of
//! the kernel. `format`: what an S3 client sees in the bucket. Here: helpers, and the log.
#![expect(clippy::disallowed_methods, reason = "waits for real processes; nothing here runs in the runtime")]

mod engines;
mod format;
mod programs;
#[path = "../../../crates/storage/object-store/tests/integration/servers.rs"]
pub mod servers;

use rustix::process::Signal;
use serde_json::Value;
use servers::Program;
use siltstone_tests::foreign::{Command, Promised, RawClient, Server, binary, run};
use siltstone_tests::oracle::seed;
use siltstone_tests::worlds::Stop;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const BLOCK: u64 = 4096;
const BLOCKS: u64 = 512;
const KILLS: u64 = 3;
/// Time limit of everything that a test waits for.
const LIMIT: Duration = Duration::from_secs(60);

/// A volume in a bucket.
#[derive(Debug, Clone, Copy)]
struct Volume {
    port: u16,
    zone_size: &'static str,
    zones: u32,
    /// Size of the fast device, and limit of what the bucket lacks.
    fast: &'static str,
    max_lag: &'static str,
}

impl Volume {
    /// Small zones, so that they are finished, cleaned and reset within a test.
    fn small(port: u16) -> Volume {
        Volume { port, zone_size: "256KiB", zones: 32, fast: "16MiB", max_lag: "1MiB or 1s" }
    }

    /// Space for a file system.
    fn large(port: u16) -> Volume {
        Volume { port, zone_size: "1MiB", zones: 256, fast: "64MiB", max_lag: "8MiB or 1s" }
    }

    /// The parts of a stack: zones with the name `local`, behind a write cache on `fast.img`.
    fn parts(&self, credentials: &Path, new_fast: bool) -> String {
        let Volume { port, zone_size, zones, fast, max_lag } = self;
        let credentials = credentials.display();
        format!(
            "[device.ssd]\nkind = \"file\"\npath = \"fast.img\"\nsize = \"{fast}\"\n\n\
             [zones.bucket]\nkind = \"objects\"\nendpoint = \"http://127.0.0.1:{port}\"\nbucket = \"vol\"\n\
             prefix = \"db1/\"\ncredentials_file = \"{credentials}\"\nzone_size = \"{zone_size}\"\n\
             zones = {zones}\npiece_size = \"128KiB\"\ngrace = \"1s\"\n\n\
             [zones.local]\nkind = \"zone-writecache\"\nfast = \"ssd\"\norigin = \"bucket\"\n\
             max_lag = \"{max_lag}\"\nnew_fast = {new_fast}\n\n"
        )
    }
}

impl Volume {
    /// Creates an empty fast device in a folder.
    fn empty_fast(&self, folder: &Path) {
        run(
            "truncate",
            &["-s", self.fast.trim_end_matches("iB"), &folder.join("fast.img").display().to_string()],
        )
        .ok();
    }
}

/// A file with the credentials of the store.
fn credentials(folder: &Path) -> PathBuf {
    let path = folder.join("credentials");
    std::fs::write(&path, "[default]\naws_access_key_id = key\naws_secret_access_key = hidden\n").unwrap();
    path
}

/// A machine with a fast device of its own, and a log on the volume that an NBD door serves.
struct Machine {
    folder: TempDir,
}

impl Machine {
    /// A machine that never saw the volume.
    fn new(volume: Volume, new_fast: bool) -> Machine {
        let folder = tempfile::tempdir().unwrap();
        let parts = volume.parts(&credentials(folder.path()), new_fast);
        let log = format!("[device.vol]\nkind = \"log\"\non = \"local\"\nsize = {}\n\n", BLOCKS * BLOCK);
        let door = "[door.vol]\nkind = \"nbd\"\ndevice = \"vol\"\nsocket = \"nbd.sock\"\n";
        std::fs::write(folder.path().join("stack.toml"), format!("{parts}{log}{door}")).unwrap();
        if new_fast {
            volume.empty_fast(folder.path());
        }
        Machine { folder }
    }

    /// A machine that has formatted the volume.
    fn formatted(volume: Volume) -> Machine {
        let machine = Machine::new(volume, false);
        siltstone(&["format", &machine.stack()]).ok();
        machine
    }

    fn stack(&self) -> String {
        self.folder.path().join("stack.toml").display().to_string()
    }

    fn serve(&self) -> Server {
        Server::restart_with(&["serve", &self.stack()], self.folder.path().join("nbd.sock"))
    }

    /// Status of the write cache.
    fn status(&self) -> Value {
        status_of(&self.stack())["zones"]["local"].clone()
    }
}

fn siltstone(arguments: &[&str]) -> siltstone_tests::foreign::Finished {
    run(&binary().display().to_string(), arguments)
}

/// Status of all parts of a stack that is served.
fn status_of(stack: &str) -> Value {
    let said = siltstone(&["status", stack, "--json"]).ok();
    serde_json::from_str(&said).expect("JSON")
}

/// A number of a status.
fn number(status: &Value, key: &str) -> u64 {
    status[key].as_u64().unwrap_or_else(|| panic!("no number {key}: {status}"))
}

/// Waits until `is_so` returns true.
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < LIMIT, "not within {LIMIT:?}: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Stops or ends the store around a kill of the server.
fn disturb(store: &mut servers::Server, kill: u64, is_before: bool) {
    match (kill % 3, is_before) {
        (1, frozen) => store.freeze(frozen),
        (2, true) => store.kill(),
        (2, false) => store.restart(),
        _ => {}
    }
}

/// A log on zones in this store without a write cache, as one line.
fn alone(folder: &Path, port: u16) -> String {
    format!(
        "log(objects(\"http://127.0.0.1:{port}\", bucket=vol, prefix=\"db1/\", credentials_file={}, \
         zone_size=256KiB, zones=32, piece_size=128KiB), size={})",
        credentials(folder).display(),
        BLOCKS * BLOCK
    )
}

#[test]
fn a_killed_server_has_kept_in_the_bucket_what_was_flushed() {
    let Some(store) = servers::Server::start(Program::VersityGw) else { return };
    let first = seed("a_killed_server_has_kept_in_the_bucket_what_was_flushed", 1);
    let folder = tempfile::tempdir().unwrap();
    let stack = alone(folder.path(), store.port);
    siltstone(&["format", &stack]).ok();
    let (mut promised, mut random) = (Promised::new(BLOCKS), runtime::Random::new(first));
    for round in 0..KILLS {
        let mut server = Server::restart(folder.path(), &stack);
        promised.work_until_killed(&mut server, &mut random, 600);
        let server = Server::restart(folder.path(), &stack);
        promised.check(&server, Stop::PowerCut).unwrap_or_else(|broken| panic!("kill {round}: {broken}"));
        server.stop();
    }
    println!("{} writes, {} flushes", promised.writes, promised.flushes);
    assert!(promised.flushes > 10, "too little happened before the end");
}

/// The fast device is a file, whose pages the kernel keeps: all acknowledged writes are there. The store is
/// stopped, or ends, before the server does.
#[test]
fn a_killed_log_behind_a_write_cache_has_kept_what_it_acknowledged() {
    let Some(mut store) = servers::Server::start(Program::VersityGw) else { return };
    let first = seed("a_killed_log_behind_a_write_cache_has_kept_what_it_acknowledged", 1);
    let machine = Machine::formatted(Volume::small(store.port));
    let (mut promised, mut random) = (Promised::new(BLOCKS), runtime::Random::new(first));
    let rounds = if conformance::budget::is_long() { 30 } else { KILLS };
    for round in 0..rounds {
        let mut server = machine.serve();
        promised.work_until_killed(&mut server, &mut random, 600);
        disturb(&mut store, round, true);
        disturb(&mut store, round, false);
        let server = machine.serve();
        promised.check(&server, Stop::Orderly).unwrap_or_else(|broken| panic!("kill {round}: {broken}"));
        server.stop();
    }
    println!("{} writes, {} flushes", promised.writes, promised.flushes);
    assert!(promised.flushes > 10, "too little happened before the end");
    let said = siltstone(&["check", &machine.stack()]).refused();
    assert!(said.contains("\"local\" (zone-writecache)") && said.contains("--writable"), "{said}");
    let said = siltstone(&["check", &machine.stack(), "--writable"]).ok();
    assert!(said.ends_with("no damage\n"), "{said}");
}

/// Waits until the write cache has reached its limit, and looks for a while whether it keeps it.
fn stays_at_the_limit(machine: &Machine) -> Value {
    wait_until("appends wait for the store", || number(&machine.status(), "waiting_appends") > 0);
    let begun = Instant::now();
    let mut status = machine.status();
    while begun.elapsed() < Duration::from_millis(1500) {
        assert!(number(&status, "lag_bytes") <= number(&status, "max_lag_bytes"), "{status}");
        assert!(status["conflict"].is_null() && status["error"].is_null(), "{status}");
        std::thread::sleep(Duration::from_millis(250));
        status = machine.status();
    }
    status
}

#[test]
fn writes_wait_at_the_limit_while_the_store_is_away_and_continue() {
    let Some(mut store) = servers::Server::start(Program::VersityGw) else { return };
    let first = seed("writes_wait_at_the_limit_while_the_store_is_away_and_continue", 1);
    let machine = Machine::formatted(Volume::small(store.port));
    let (mut promised, mut random) = (Promised::new(BLOCKS), runtime::Random::new(first));
    let (server, is_over) = (machine.serve(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let (promised, random, server, is_over) = (&mut promised, &mut random, &server, &is_over);
        scope.spawn(move || promised.work_until(server, random, || is_over.load(Ordering::Relaxed)));
        // After a failed check the client would work for ever.
        let _over = Over(is_over);
        for outage in 0..2 {
            let before = number(&machine.status(), "appended_bytes");
            wait_until("writes", || number(&machine.status(), "appended_bytes") > before + (256 << 10));
            if outage == 0 {
                store.freeze(true)
            } else {
                store.kill()
            }
            let status = stays_at_the_limit(&machine);
            if outage == 0 {
                store.freeze(false)
            } else {
                store.restart()
            }
            let before = number(&status, "appended_bytes");
            wait_until("writes continue", || {
                number(&machine.status(), "appended_bytes") > before + (2 << 20)
            });
        }
    });
    promised.check(&server, Stop::Orderly).unwrap();
    server.stop();
    let server = machine.serve();
    promised.check(&server, Stop::Orderly).unwrap();
    server.stop();
    println!("{} writes, {} flushes", promised.writes, promised.flushes);
}

/// Sets a flag when it is dropped.
struct Over<'f>(&'f AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn the_bucket_alone_is_an_earlier_state_after_the_loss_of_the_fast_device() {
    let Some(store) = servers::Server::start(Program::VersityGw) else { return };
    let first = seed("the_bucket_alone_is_an_earlier_state_after_the_loss_of_the_fast_device", 1);
    let volume = Volume::small(store.port);
    let mut machine = Machine::formatted(volume);
    let (mut promised, mut random) = (Promised::new(BLOCKS), runtime::Random::new(first));
    for round in 0..if conformance::budget::is_long() { 20 } else { 2 } {
        let mut server = machine.serve();
        promised.work_until_killed(&mut server, &mut random, 1200);
        let stranger = Machine::new(volume, false);
        volume.empty_fast(stranger.folder.path());
        let said = siltstone(&["status", &stranger.stack()]).refused();
        assert!(said.contains("new_fast"), "{said}");
        machine = Machine::new(volume, true);
        let server = machine.serve();
        promised.check(&server, Stop::Older).unwrap_or_else(|broken| panic!("loss {round}: {broken}"));
        let said = server.process.err();
        assert!(said.contains("only the former fast device had are lost"), "{said}");
        server.stop();
    }
}

/// Writes all blocks in turn, from write number `first` on and each of them durably, until an error. Returns
/// the number of durable ones, and the error's number.
fn write_until_an_error(socket: &Path, first: u64) -> (u64, u32) {
    let mut client = RawClient::open(socket).unwrap();
    for number in first.. {
        let bytes = (number + 1).to_le_bytes().repeat(BLOCK as usize / 8);
        let offset = number % BLOCKS * BLOCK;
        let error = match client.call(Command::Write, offset, BLOCK as u32, &bytes).unwrap() {
            0 => client.call(Command::Flush, 0, 0, &[]).unwrap(),
            error => error,
        };
        if error != 0 {
            return (number, error);
        }
    }
    unreachable!("the number of blocks ends");
}

/// Number of the last write of [`write_until_an_error`] that a volume has: all before are there as well.
fn last_write(socket: &Path) -> u64 {
    let mut client = RawClient::open(socket).unwrap();
    let found: Vec<u64> = (0..BLOCKS)
        .map(|block| {
            let bytes = client.read(block * BLOCK, BLOCK as u32).unwrap();
            let number = u64::from_le_bytes(bytes[..8].try_into().unwrap());
            assert_eq!(bytes, number.to_le_bytes().repeat(BLOCK as usize / 8), "block {block} is torn");
            number
        })
        .collect();
    let last = found.iter().copied().max().unwrap_or(0);
    for (block, number) in (0..).zip(&found) {
        let newest = (1..=last).rev().find(|number| (number - 1) % BLOCKS == block).unwrap_or(0);
        assert_eq!(*number, newest, "block {block}, of {last} writes");
    }
    last
}

/// The first machine's changes fail within the time that the book gives it, with the name of the other
/// writer. Its fast device is refused afterwards, and the other machine's data is unchanged.
#[test]
fn another_machine_fences_the_first_one() {
    let Some(store) = servers::Server::start(Program::VersityGw) else { return };
    let volume = Volume::small(store.port);
    let (first, second) = (Machine::formatted(volume), Machine::new(volume, true));
    let server = first.serve();
    let (written, error, found) = std::thread::scope(|scope| {
        let writer = scope.spawn(|| write_until_an_error(&server.socket, 0));
        wait_until("writes", || number(&first.status(), "uploaded_bytes") > 1 << 20);
        let other = second.serve();
        let fenced = Instant::now();
        let (written, error) = writer.join().unwrap();
        // Half of the time of the limit, and the processes.
        assert!(fenced.elapsed() < Duration::from_secs(20), "{:?}", fenced.elapsed());
        let found = last_write(&other.socket);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| write_until_an_error(&other.socket, found));
            wait_until("writes of the second one", || number(&second.status(), "uploaded_bytes") > 1 << 20);
            other.process.signal(Signal::KILL);
            // It panics, as its connection breaks.
            writer.join().unwrap_err();
        });
        (written, error, found)
    });
    println!("{written} writes were durable on the first machine, {found} in the bucket; error {error}");
    assert!(found <= written + 1 && found > 0, "{found} of {written}");
    let status = first.status();
    let conflict = status["conflict"].as_str().unwrap_or_default();
    assert!(conflict.contains("fenced") && conflict.contains("process"), "{status}");
    // What was acknowledged is still read; the flush after the last write may be the one that failed.
    assert!((written..=written + 1).contains(&last_write(&server.socket)));
    drop(server);
    let said = siltstone(&["status", &first.stack()]).refused();
    assert!(said.contains("local") && said.contains("take_over="), "{said}");
    let server = second.serve();
    assert!(last_write(&server.socket) > found);
    server.stop();
}
