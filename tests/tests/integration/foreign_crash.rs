//! The server dies by SIGKILL in the middle of writes: data that was flushed, or written with FUA, is there
//! afterwards.
//!
//! A process dies here, and the power isn't cut: this shows that the server held back nothing that it had
//! acknowledged as durable. Power cuts are tested by the crash oracle.

use conformance::budget::Budget;
use siltstone_tests::foreign::{KILLED, Promised, Server, binary, run};
use siltstone_tests::oracle::seed;
use siltstone_tests::worlds::Stop;
use std::path::Path;

const BLOCKS: u64 = 512;
const ROUNDS: u64 = 10;
/// Writes that were promised to be durable are there.
const DURABLE: Stop = Stop::PowerCut;
/// All acknowledged writes are there: the server holds nothing back.
const ACKNOWLEDGED: Stop = Stop::Orderly;

/// Three servers in turn on the same file: the lock of a killed server is released.
fn live_three_times(
    stack: &str,
    folder: &Path,
    random: &mut runtime::Random,
    kept: Stop,
) -> Result<Promised, String> {
    let mut promised = Promised::new(BLOCKS);
    for _ in 0..3 {
        let mut server = Server::restart(folder, stack);
        // An append of a log is several operations of its disk.
        let is_one = ["file(", "stats(", "fault("].iter().any(|kind| stack.starts_with(kind));
        let most = if is_one { 4000 } else { 1200 };
        promised.work_until_killed(&mut server, random, most);
        let server = Server::restart(folder, stack);
        promised.check(&server, kept)?;
        server.stop();
    }
    Ok(promised)
}

fn held(promised: Result<Promised, String>, name: &str) {
    let promised = promised.unwrap_or_else(|broken| panic!("{name}: {broken}"));
    println!("{} writes, {} flushes", promised.writes, promised.flushes);
    assert!(promised.flushes > 10, "{name}: too little happened before the end");
}

fn file_in(folder: &Path) -> String {
    format!("file({}, size={}", folder.join("disk.img").display(), BLOCKS * 4096)
}

#[test]
fn a_killed_server_has_kept_what_was_flushed() {
    let first = seed("a_killed_server_has_kept_what_was_flushed", 1);
    let budget = Budget::of(2);
    for (round, layers) in (first..first + ROUNDS).zip(["file", "direct", "stats"].into_iter().cycle()) {
        if !budget.allows_more(ROUNDS) {
            break;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let file = file_in(folder.path());
        let stack = match layers {
            "file" => format!("{file}, direct=off) shards=2"),
            "direct" => format!("{file}, block_size=4KiB)"),
            _ => format!("stats({file})) shards=2"),
        };
        println!("SILTSTONE_SEED={round}, {layers}");
        let promised = live_three_times(&stack, folder.path(), &mut runtime::Random::new(round), DURABLE);
        held(promised, &stack);
    }
}

/// A log on a file: small zones, so that it is killed while it cleans, checkpoints and recovers. All writes
/// that it acknowledged from the log are there; of those that it acknowledged from memory, the flushed ones.
#[test]
fn a_killed_log_has_kept_what_it_acknowledged() {
    let first = seed("a_killed_log_has_kept_what_it_acknowledged", 100);
    let modes = [("ack=log", ACKNOWLEDGED), ("ack=buffer", DURABLE)];
    let budget = Budget::of(2);
    for (round, (mode, kept)) in (first..first + 6).zip(modes.into_iter().cycle()) {
        if !budget.allows_more(6) {
            break;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let disk = folder.path().join("disk.img");
        let shards = 1 + round % 2;
        let stack = format!(
            "log(file({}, size=6MiB), size={}, zone_size=64KiB, checkpoint_after=256KiB, {mode}) shards={shards}",
            disk.display(),
            BLOCKS * 4096
        );
        println!("SILTSTONE_SEED={round}, {stack}");
        run(&binary().display().to_string(), &["format", &stack]).ok();
        let promised = live_three_times(&stack, folder.path(), &mut runtime::Random::new(round), kept);
        held(promised, &stack);
    }
}

/// A write cache on two files, smaller than its origin, so that it is killed while it writes back. The kernel
/// keeps data that a process had written, so all acknowledged writes are there.
#[test]
fn a_killed_write_cache_has_kept_what_it_acknowledged() {
    let first = seed("a_killed_write_cache_has_kept_what_it_acknowledged", 200);
    let modes = ["order=flushes", "order=none", "high_watermark=0, low_watermark=0", "cleaner=true"];
    let budget = Budget::of(2);
    for (round, mode) in (first..first + 4).zip(modes) {
        if !budget.allows_more(4) {
            break;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let stack = format!(
            "writecache({}), file({}, size=1MiB), {mode}) shards={}",
            file_in(folder.path()),
            folder.path().join("fast.img").display(),
            1 + round % 2
        );
        println!("SILTSTONE_SEED={round}, {stack}");
        run(&binary().display().to_string(), &["format", &stack]).ok();
        let kept = if mode.starts_with("cleaner") { DURABLE } else { ACKNOWLEDGED };
        let promised = live_three_times(&stack, folder.path(), &mut runtime::Random::new(round), kept);
        held(promised, &stack);
    }
}

/// Stacks of several disks, whose caches are smaller than the data that is written.
#[test]
fn a_killed_stack_of_several_disks_has_kept_what_it_promised() {
    let first = seed("a_killed_stack_of_several_disks_has_kept_what_it_promised", 300);
    let budget = Budget::of(2);
    for (round, killed) in (first..).zip(KILLED) {
        if !budget.allows_more(KILLED.len() as u64) {
            break;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let line = killed.line(folder.path(), BLOCKS * 4096);
        let stack = format!("{line} shards={}", 1 + round % 2);
        println!("SILTSTONE_SEED={round}, {}: {stack}", killed.name);
        run(&binary().display().to_string(), &["format", &stack]).ok();
        let kept = if killed.keeps_acknowledged { ACKNOWLEDGED } else { DURABLE };
        let promised = live_three_times(&stack, folder.path(), &mut runtime::Random::new(round), kept);
        held(promised, killed.name);
    }
}

/// Proof that the tests above can fail.
#[test]
fn writes_that_were_dropped_are_found_out() {
    for rule in ["write drop every=40", "write torn at=512 every=40", "write misdirect by=32KiB every=40"] {
        let folder = tempfile::tempdir().expect("a folder");
        let stack = format!("fault({}), \"{rule}\", seed=1)", file_in(folder.path()));
        let broken = live_three_times(&stack, folder.path(), &mut runtime::Random::new(1), DURABLE);
        println!("{rule}: {}", broken.expect_err("the disk's lost writes are noticed"));
    }
}
