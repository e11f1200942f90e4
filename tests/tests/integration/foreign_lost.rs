//! RAID10 under two caches, as in `examples/raid10.toml`: its server is killed in the middle of writes, one
//! or two of its six files are lost, and it is opened again. The promises in the head of the example must
//! hold: nothing is lost with one disk of each mirror, nor with the cache that writes through. With the write
//! cache, writes that were not written back are lost, and the disks are then in a state that an earlier power
//! cut could have left.
//!
//! The processes and the files are real. Power cuts are tested by the crash oracle (`crash_tiers`).

use siltstone_tests::foreign::{Promised, Server, binary, run};
use siltstone_tests::oracle::seed;
use siltstone_tests::worlds::Stop;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Size of the volume, in blocks of 4096 bytes.
const BLOCKS: u64 = 512;
/// A server is killed after 200 to 200 + `MAX` replies.
const MAX: u64 = 1200;

/// Attempts of a proof that depends on the clock.
const ATTEMPTS: usize = 10;

/// The example, with small files.
fn example() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/raid10.toml");
    let text = std::fs::read_to_string(path).expect("the example is there");
    // Two superblocks and a page of the bitmap.
    let leg = BLOCKS / 2 * 4096 + 3 * 4096;
    let sizes =
        [("\"1GiB\"", leg), ("\"512MiB\"", 1 << 20), ("\"256MiB\"", 1 << 20), ("\"512KiB\"", 32 << 10)];
    let small = sizes.iter().fold(text, |text, (size, bytes)| {
        assert!(text.contains(size), "the example has no {size} any more");
        text.replace(size, &format!("\"{bytes}\""))
    });
    // The tests use a door of their own.
    cut(&small, "[door.nbd]")
}

/// Text before a section, which is one of the last.
fn cut(text: &str, section: &str) -> String {
    text.split_once(section).expect("the example has this section").0.to_owned()
}

/// Adds a line to every section of a kind.
fn with(text: &str, kind: &str, line: &str) -> String {
    let kind = format!("kind = \"{kind}\"");
    assert!(text.contains(&kind), "the example has no {kind}");
    text.replace(&kind, &format!("{kind}\n{line}"))
}

/// A folder with the stack, and the promises to its client.
struct Volume {
    folder: TempDir,
    promised: Promised,
}

impl Volume {
    /// Formats a stack, writes, kills the server, opens the stack again, writes, and kills again.
    fn killed(text: &str, random: &mut runtime::Random) -> Volume {
        let mut volume =
            Volume { folder: tempfile::tempdir().expect("a folder"), promised: Promised::new(BLOCKS) };
        volume.format(text, &[]);
        volume.live(text, random);
        let server = volume.restart(text);
        volume.promised.check(&server, Stop::Orderly).expect("nothing was lost yet");
        server.stop();
        volume.live(text, random);
        assert!(volume.promised.flushes > 10, "too little happened before the end");
        volume
    }

    fn live(&mut self, text: &str, random: &mut runtime::Random) {
        let mut server = self.restart(text);
        self.promised.work_until_killed(&mut server, random, MAX);
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(format!("raid10-{name}.img"))
    }

    fn stack(&self, text: &str) -> String {
        let path = self.folder.path().join("raid10.toml");
        std::fs::write(&path, text).expect("the test's folder can be written");
        path.display().to_string()
    }

    fn restart(&self, text: &str) -> Server {
        Server::restart(self.folder.path(), &self.stack(text))
    }

    /// Runs the program on the stack. Files of a killed server stay in use for a moment.
    fn program(&self, verb: &str, text: &str, more: &[&str]) -> siltstone_tests::foreign::Finished {
        let stack = self.stack(text);
        loop {
            let arguments = [&[verb, stack.as_str()], more].concat();
            let finished = run(&binary().display().to_string(), &arguments);
            if !finished.err.contains("(busy)") {
                return finished;
            }
        }
    }

    fn format(&self, text: &str, parts: &[&str]) {
        self.program("format", text, parts).ok();
    }

    /// Checks that opening the stack fails with these words.
    fn refuses(&self, text: &str, words: &str) {
        let said = self.program("status", text, &[]).refused();
        assert!(said.contains(words), "expected \"{words}\" in: {said}");
    }

    fn lose(&self, name: &str) {
        std::fs::remove_file(self.at(name)).expect("the file was there");
    }

    /// Replaces a lost device with an empty one.
    fn replace(&self, name: &str) {
        let length = std::fs::metadata(self.at(name)).expect("the file is there").len();
        let file = std::fs::File::create(self.at(name)).expect("the file can be written");
        file.set_len(length).expect("the file can be written");
    }

    /// Opens the stack, and compares its contents with the promises.
    fn holds(&mut self, text: &str, stop: Stop) -> Result<(), String> {
        let server = self.restart(text);
        let held = self.promised.check(&server, stop);
        server.stop();
        held
    }
}

/// Random generators with `count` seeds.
fn rounds(test: &str, usual_seed: u64, count: u64) -> impl Iterator<Item = runtime::Random> {
    let first = seed(test, usual_seed);
    (first..first + count).map(|round| {
        println!("SILTSTONE_SEED={round}");
        runtime::Random::new(round)
    })
}

#[test]
fn a_disk_of_each_mirror_is_lost_and_nothing_with_it() {
    let lost: [&[&str]; 3] = [&["a"], &["b", "c"], &["a", "c"]];
    for (lost, mut random) in lost.into_iter().zip(rounds("a disk of each mirror", 1, 3)) {
        let text = example();
        let mut volume = Volume::killed(&text, &mut random);
        println!("{lost:?} lost after {} writes", volume.promised.writes);
        lost.iter().for_each(|name| volume.lose(name));
        volume.refuses(&text, "of the mirror is missing");
        let degraded = with(&text, "mirror", "degraded = true");
        volume.holds(&degraded, Stop::Orderly).expect("nothing is lost with a leg");
        // The stack continues without the legs; once it has noted their loss, `degraded` isn't needed any
        // more.
        volume.live(&text, &mut random);
        volume.holds(&text, Stop::Orderly).expect("nothing is lost without a leg");
    }
}

#[test]
fn a_disk_that_cannot_be_opened_is_one_that_is_lost() {
    let mut random = runtime::Random::new(seed("a disk that can't be opened", 10));
    let text = example();
    let mut volume = Volume::killed(&text, &mut random);
    volume.lose("d");
    // Without a size no other file is created in its place.
    let text = text.replace("raid10-d.img\"\nsize", "raid10-d.img\"\n# size");
    volume.refuses(&text, "of the mirror is missing");
    volume
        .holds(&with(&text, "mirror", "degraded = true"), Stop::Orderly)
        .expect("nothing is lost with a leg");
    assert!(!volume.at("d").exists(), "it was made again");
}

#[test]
fn the_cache_that_writes_through_is_lost_and_nothing_with_it() {
    for mut random in rounds("the cache that writes through", 20, 2) {
        let text = example();
        let mut volume = Volume::killed(&text, &mut random);
        volume.replace("flash");
        volume.refuses(&text, "expected the cache of \"disks\"");
        volume.format(&text, &["cached"]);
        volume.holds(&text, Stop::Orderly).expect("nothing is lost with what is written through");
    }
}

/// The stack without the write cache is read.
#[test]
fn the_write_cache_is_lost_and_the_disks_are_an_older_state() {
    for mut random in rounds("the write cache", 30, 3) {
        let text = example();
        let mut volume = Volume::killed(&text, &mut random);
        volume.replace("fast");
        volume.refuses(&text, "the origin alone may be an older");
        volume.holds(&cut(&text, "[device.fast]"), Stop::Older).expect("it is an older state");
    }
}

/// Proof that the tests above can fail.
#[test]
fn what_is_lost_is_missed() {
    let mut random = runtime::Random::new(seed("what is lost", 40));
    let missed = |volume: &mut Volume, text: &str, stop: Stop, what: &str| {
        let broken = volume.holds(text, stop).expect_err(what);
        println!("{what}: {broken}");
    };
    // A leg that missed writes while the other one was used alone, and is the only one left.
    let text = example();
    let degraded = with(&text, "mirror", "degraded = true");
    let mut volume = Volume::killed(&text, &mut random);
    volume.holds(&text, Stop::Orderly).expect("nothing is lost yet");
    let kept = volume.folder.path().join("kept");
    std::fs::copy(volume.at("b"), &kept).expect("a copy");
    volume.live(&text, &mut random);
    volume.lose("a");
    std::fs::copy(&kept, volume.at("b")).expect("a copy");
    missed(&mut volume, &degraded, Stop::Orderly, "a leg of yesterday");
    // Data that is in the cache alone, or is written back without order: its amount when the server is killed
    // depends on the clock, so only some of these losses are noticed.
    let some_is_missed =
        |what: &str, random: &mut runtime::Random, lose: fn(&mut runtime::Random) -> Result<(), String>| {
            let broken = (0..ATTEMPTS).find_map(|_| lose(random).err());
            println!("{what}: {}", broken.unwrap_or_else(|| panic!("{what}: nothing was missed")));
        };
    some_is_missed("a cache that is written back", &mut random, |random| {
        let text = example().replace("mode = \"writethrough\"", "mode = \"writeback\"");
        let mut volume = Volume::killed(&text, random);
        volume.lose("flash");
        volume.format(&text, &["cached"]);
        volume.holds(&text, Stop::Orderly)
    });
    some_is_missed("a write cache without order", &mut random, |random| {
        let text = with(&example(), "writecache", "order = \"none\"");
        let mut volume = Volume::killed(&text, random);
        volume.lose("fast");
        volume.holds(&cut(&text, "[device.fast]"), Stop::Older)
    });
}
