//! The server dies by SIGKILL in the middle of writes: what was flushed, or written with FUA, is there afterwards.
//!
//! This is a process's death, not a power cut: it shows that nothing which was acknowledged as durable was held
//! back in the server. What a power cut leaves is the crash oracle's matter.

use rustix::process::Signal;
use siltstone_tests::foreign::{Command, KILLED, RawClient, Server, binary, request, run};
use siltstone_tests::oracle::seed;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

const BLOCKS: u64 = 512;
const BLOCK: usize = 4096;
/// Requests in flight.
const DEPTH: usize = 16;
const FORCE_UNIT_ACCESS: u16 = 1;
const ROUNDS: u64 = 10;

/// A block's contents: which block it is and which write made it, all over.
fn stamped(block: u64, version: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(BLOCK);
    while bytes.len() < BLOCK {
        bytes.extend_from_slice(&block.to_le_bytes());
        bytes.extend_from_slice(&version.to_le_bytes());
    }
    bytes
}

/// The version that a block holds; 0 where it was never written.
fn version_of(block: u64, bytes: &[u8]) -> Result<u64, String> {
    let version = u64::from_le_bytes(bytes[8..16].try_into().expect("eight bytes"));
    let expected = match version {
        0 => vec![0; BLOCK],
        version => stamped(block, version),
    };
    match bytes == expected {
        true => Ok(version),
        false => Err(format!("block {block} is torn, or another block's: it begins with {:?}", &bytes[..32])),
    }
}

/// What happened before the server died. Versions number all writes; at any time at most one to a block is under way.
#[derive(Default)]
struct Log {
    next_version: u64,
    /// By block: the last version that was sent, acknowledged, and promised to be durable.
    sent: BTreeMap<u64, u64>,
    acknowledged: BTreeMap<u64, u64>,
    durable: BTreeMap<u64, u64>,
    flushes: u64,
}

#[derive(Clone)]
enum Sent {
    Write { block: u64, version: u64, durable: bool },
    Flush { covers: BTreeMap<u64, u64> },
}

/// Writes and flushes until the connection breaks.
fn write_until_it_dies(
    mut client: RawClient,
    random: &mut runtime::Random,
    log: &mut Log,
    done: &AtomicU64,
) -> io::Result<()> {
    let mut in_flight: BTreeMap<u64, Sent> = BTreeMap::new();
    for cookie in 1.. {
        while in_flight.len() >= DEPTH {
            receive(&mut client, &mut in_flight, log, done)?;
        }
        if random.below(12) == 0 {
            let covers = log.acknowledged.clone();
            in_flight.insert(cookie, Sent::Flush { covers });
            client.send(Command::Flush, cookie, 0, 0, &[])?;
            continue;
        }
        let block = random.below(BLOCKS);
        let is_same = |sent: &Sent| matches!(sent, Sent::Write { block: other, .. } if *other == block);
        while in_flight.values().any(is_same) {
            receive(&mut client, &mut in_flight, log, done)?;
        }
        log.next_version += 1;
        let (version, durable) = (log.next_version, random.below(16) == 0);
        log.sent.insert(block, version);
        in_flight.insert(cookie, Sent::Write { block, version, durable });
        let mut bytes = request(Command::Write, cookie, block * BLOCK as u64, BLOCK as u32).to_vec();
        if durable {
            bytes[4..6].copy_from_slice(&FORCE_UNIT_ACCESS.to_be_bytes());
        }
        bytes.extend_from_slice(&stamped(block, version));
        client.stream.write_all(&bytes)?;
    }
    Ok(())
}

fn receive(
    client: &mut RawClient,
    in_flight: &mut BTreeMap<u64, Sent>,
    log: &mut Log,
    done: &AtomicU64,
) -> io::Result<()> {
    let (error, cookie) = client.reply()?;
    assert_eq!(error, 0, "a request failed");
    match in_flight.remove(&cookie).expect("a reply to a request") {
        Sent::Write { block, version, durable } => {
            log.acknowledged.insert(block, version);
            if durable {
                keep_latest(&mut log.durable, block, version);
            }
        }
        Sent::Flush { covers } => {
            log.flushes += 1;
            covers.into_iter().for_each(|(block, version)| keep_latest(&mut log.durable, block, version));
        }
    }
    done.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

fn keep_latest(durable: &mut BTreeMap<u64, u64>, block: u64, version: u64) {
    let latest = durable.entry(block).or_insert(version);
    *latest = version.max(*latest);
}

/// Kills the server after so many replies, from a thread of its own; gives what the client saw.
fn run_and_kill(server: &mut Server, random: &mut runtime::Random, log: &mut Log, most: u64) {
    let client = RawClient::open(&server.socket).expect("a ready server answers");
    assert_eq!(client.size, BLOCKS * BLOCK as u64);
    let (after, done) = (200 + random.below(most), AtomicU64::new(0));
    let process = &mut server.process;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            process.wait_until("there were enough replies", |_| done.load(Ordering::Relaxed) >= after);
            process.signal(Signal::KILL);
        });
        let broken = write_until_it_dies(client, random, log, &done);
        broken.expect_err("the connection breaks when the server is killed");
    });
    assert!(!server.process.wait().success(), "the server was killed");
}

/// What of a client's writes must be there after a kill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kept {
    /// What was promised to be durable.
    Durable,
    /// Everything that was acknowledged: nothing is held back in the server.
    Acknowledged,
}

/// Three lives on the same file: the lock of a killed server is gone with it.
fn live_three_times(
    stack: &str,
    folder: &Path,
    random: &mut runtime::Random,
    kept: Kept,
) -> Result<Log, String> {
    let mut log = Log::default();
    for _ in 0..3 {
        let mut server = Server::restart(folder, stack);
        // An append of a log is several operations of its disk.
        let is_one = ["file(", "stats(", "fault("].iter().any(|kind| stack.starts_with(kind));
        let most = if is_one { 4000 } else { 1200 };
        run_and_kill(&mut server, random, &mut log, most);
        let server = Server::restart(folder, stack);
        check(&server, &mut log, kept)?;
        server.stop();
    }
    Ok(log)
}

/// Each block holds its last durable version or a later one that was sent, whole. What is there is durable from now
/// on: a process's death loses no page of the kernel's.
fn check(server: &Server, log: &mut Log, kept: Kept) -> Result<(), String> {
    let mut client = RawClient::open(&server.socket).expect("a ready server answers");
    for block in 0..BLOCKS {
        let bytes = client.read(block * BLOCK as u64, BLOCK as u32).expect("a block is read");
        let found = version_of(block, &bytes)?;
        let at = |versions: &BTreeMap<u64, u64>| versions.get(&block).copied().unwrap_or(0);
        let (durable, sent) = (at(&log.durable), at(&log.sent));
        let least = match kept {
            Kept::Durable => durable,
            Kept::Acknowledged => at(&log.acknowledged).max(durable),
        };
        if !(least..=sent).contains(&found) {
            return Err(format!(
                "block {block} holds version {found}: {least} was {kept:?}, {sent} was the last one sent"
            ));
        }
        log.sent.insert(block, found);
        log.acknowledged.insert(block, found);
        keep_latest(&mut log.durable, block, found);
    }
    Ok(())
}

fn file_in(folder: &Path) -> String {
    format!("file({}, size={}", folder.join("disk.img").display(), BLOCKS * BLOCK as u64)
}

#[test]
fn a_killed_server_has_kept_what_was_flushed() {
    let first = seed("a_killed_server_has_kept_what_was_flushed", 1);
    for (round, layers) in (first..first + ROUNDS).zip(["file", "direct", "stats"].into_iter().cycle()) {
        let folder = tempfile::tempdir().expect("a folder");
        let file = file_in(folder.path());
        let stack = match layers {
            "file" => format!("{file}, direct=off) shards=2"),
            "direct" => format!("{file}, block_size=4KiB)"),
            _ => format!("stats({file})) shards=2"),
        };
        println!("SILTSTONE_SEED={round}, {layers}");
        let log = live_three_times(&stack, folder.path(), &mut runtime::Random::new(round), Kept::Durable);
        let log = log.unwrap_or_else(|broken| panic!("{broken}"));
        println!("{} writes, {} flushes", log.next_version, log.flushes);
        assert!(log.flushes > 10 && !log.durable.is_empty(), "too little happened before the end");
    }
}

/// A log on a file: small zones, so that it is killed while it cleans, checkpoints and recovers. Everything that was
/// acknowledged from the log is there, and what was promised to be durable where it is acknowledged from memory.
#[test]
fn a_killed_log_has_kept_what_it_acknowledged() {
    let first = seed("a_killed_log_has_kept_what_it_acknowledged", 100);
    let modes = [("ack=log", Kept::Acknowledged), ("ack=buffer", Kept::Durable)];
    for (round, (mode, kept)) in (first..first + 6).zip(modes.into_iter().cycle()) {
        let folder = tempfile::tempdir().expect("a folder");
        let disk = folder.path().join("disk.img");
        let shards = 1 + round % 2;
        let stack = format!(
            "log(file({}, size=6MiB), size={}, zone_size=64KiB, checkpoint_after=256KiB, {mode}) shards={shards}",
            disk.display(),
            BLOCKS * BLOCK as u64
        );
        println!("SILTSTONE_SEED={round}, {stack}");
        run(&binary().display().to_string(), &["format", &stack]).ok();
        let log = live_three_times(&stack, folder.path(), &mut runtime::Random::new(round), kept);
        let log = log.unwrap_or_else(|broken| panic!("{broken}"));
        println!("{} writes, {} flushes", log.next_version, log.flushes);
        assert!(log.flushes > 10 && !log.durable.is_empty(), "too little happened before the end");
    }
}

/// A write cache on two files, smaller than its origin, so that it is killed while it writes back. The kernel keeps what a
/// process had written, so everything that was acknowledged is there.
#[test]
fn a_killed_write_cache_has_kept_what_it_acknowledged() {
    let first = seed("a_killed_write_cache_has_kept_what_it_acknowledged", 200);
    let modes = ["order=flushes", "order=none", "high_watermark=0, low_watermark=0", "cleaner=true"];
    for (round, mode) in (first..first + 4).zip(modes) {
        let folder = tempfile::tempdir().expect("a folder");
        let stack = format!(
            "writecache({}), file({}, size=1MiB), {mode}) shards={}",
            file_in(folder.path()),
            folder.path().join("fast.img").display(),
            1 + round % 2
        );
        println!("SILTSTONE_SEED={round}, {stack}");
        run(&binary().display().to_string(), &["format", &stack]).ok();
        let kept = if mode.starts_with("cleaner") { Kept::Durable } else { Kept::Acknowledged };
        let log = live_three_times(&stack, folder.path(), &mut runtime::Random::new(round), kept);
        let log = log.unwrap_or_else(|broken| panic!("{broken}"));
        println!("{} writes, {} flushes", log.next_version, log.flushes);
        assert!(log.flushes > 10 && !log.durable.is_empty(), "too little happened before the end");
    }
}

/// Stacks of several disks, each smaller than what is written to it.
#[test]
fn a_killed_stack_of_several_disks_has_kept_what_it_promised() {
    let first = seed("a_killed_stack_of_several_disks_has_kept_what_it_promised", 300);
    for (round, killed) in (first..).zip(KILLED) {
        let folder = tempfile::tempdir().expect("a folder");
        let line = killed.line(folder.path(), BLOCKS * BLOCK as u64);
        let stack = format!("{line} shards={}", 1 + round % 2);
        println!("SILTSTONE_SEED={round}, {}: {stack}", killed.name);
        run(&binary().display().to_string(), &["format", &stack]).ok();
        let kept = if killed.keeps_acknowledged { Kept::Acknowledged } else { Kept::Durable };
        let log = live_three_times(&stack, folder.path(), &mut runtime::Random::new(round), kept);
        let log = log.unwrap_or_else(|broken| panic!("{}: {broken}", killed.name));
        println!("{} writes, {} flushes", log.next_version, log.flushes);
        assert!(log.flushes > 10 && !log.durable.is_empty(), "too little happened before the end");
    }
}

/// The proof that the tests above can fail.
#[test]
fn writes_that_were_dropped_are_found_out() {
    for rule in ["write drop every=40", "write torn at=512 every=40", "write misdirect by=32KiB every=40"] {
        let folder = tempfile::tempdir().expect("a folder");
        let stack = format!("fault({}), \"{rule}\", seed=1)", file_in(folder.path()));
        let broken = live_three_times(&stack, folder.path(), &mut runtime::Random::new(1), Kept::Durable);
        println!("{rule}: {}", broken.err().expect("what the disk lost is found"));
    }
}
