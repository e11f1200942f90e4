//! `siltstone warm` as operators use it: on served and unserved stacks, with other sizes, with invalid files,
//! and with a file system on the device.

use crate::common::{Ran, command, signal, wait_for};
use block::{BlockIndex, Buffer, DevicePart};
use doors::nbd::client::{ClientConfig, NbdClient, USUAL_TIMEOUT};
use serde_json::Value;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// User with a working directory.
struct User {
    folder: tempfile::TempDir,
}

/// Server, killed when dropped by a failed test.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Server {
    fn stop(mut self) {
        signal(&self.0, "TERM");
        assert_eq!(self.0.wait().unwrap().code(), Some(0));
    }
}

const ORIGIN: usize = 16 << 20;
const BLOCK: u64 = 64 << 10;

impl User {
    /// Creates an origin whose blocks of 4 KiB are each filled with their number.
    fn new() -> User {
        let user = User { folder: tempfile::tempdir().unwrap() };
        std::fs::create_dir(user.path("run")).unwrap();
        let bytes: Vec<u8> = (0..ORIGIN).map(|at| (at / 4096) as u8).collect();
        std::fs::write(user.path("slow.img"), bytes).unwrap();
        user
    }

    /// Creates a stack with a cache of this size.
    fn stack(&self, name: &str, fast: &str, options: &str) {
        let text = format!(
            "[device.slow]\nkind = \"file\"\npath = \"slow.img\"\n[device.fast]\nkind = \"file\"\npath = \"{name}.fast\"\n\
             size = \"{fast}\"\n[device.disk]\nkind = \"cache\"\non = \"slow\"\ncache = \"fast\"\n{options}\n\
             [door.vol]\nkind = \"nbd\"\ndevice = \"disk\"\nsocket = \"{name}.sock\"\n"
        );
        std::fs::write(self.path(name), text).unwrap();
        self.fine(&["format", name, "disk"]);
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = command(self.folder.path(), arguments);
        command.env("XDG_RUNTIME_DIR", self.path("run"));
        command
    }

    fn run(&self, arguments: &[&str]) -> Ran {
        let output = self.command(arguments).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Ran { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }

    fn fine(&self, arguments: &[&str]) -> String {
        let ran = self.run(arguments);
        assert_eq!(ran.code, Some(0), "{arguments:?}: {ran:?}");
        ran.stdout
    }

    fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.fine(&[arguments, &["--json"]].concat())).unwrap()
    }

    fn serve(&self, name: &str) -> Server {
        let mut child = self.command(&["serve", name]).spawn().unwrap();
        wait_for(child.stdout.take().unwrap(), "nbd+unix");
        Server(child)
    }

    /// Returns a counter of the cache.
    fn count(&self, stack: &str, name: &str) -> u64 {
        self.json(&["status", stack])["devices"]["disk"][name].as_u64().unwrap()
    }

    /// Reads whole blocks of the cache in sequence through the door, and checks their contents.
    fn read(&self, stack: &str, blocks: impl IntoIterator<Item = u64>) {
        let blocks: Vec<u64> = blocks.into_iter().collect();
        let address = format!("unix:{}", self.path(&format!("{stack}.sock")).display()).parse().unwrap();
        runtime::run(runtime::Config::default(), move || async move {
            let config = ClientConfig {
                address,
                export: String::new(),
                connections: 1,
                block_size: Some(4096),
                timeout: USUAL_TIMEOUT,
                tls: None,
            };
            let client = NbdClient::connect(config).await.unwrap();
            let handle = client.open().await.unwrap();
            for block in blocks {
                let first = block * BLOCK / 4096;
                let (outcome, found) = handle.read(BlockIndex(first), Buffer::new(BLOCK as usize)).await;
                outcome.unwrap();
                for (number, bytes) in found.filled().chunks(4096).enumerate() {
                    assert_eq!(bytes, vec![(first as usize + number) as u8; 4096], "block {block}");
                }
            }
        })
        .unwrap();
    }
}

/// Waits until a condition is true.
#[expect(clippy::disallowed_methods, reason = "waits for a real process; nothing here runs in the runtime")]
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(60), "timed out: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Creates a cache with 20 blocks that were read once, of which 5 were read repeatedly.
fn heated(user: &User, stack: &str) {
    // In two halves: while `migration_threshold`, 1 MiB, is in flight, blocks that miss aren't promoted.
    for half in [0..10, 10..20] {
        let end = half.end;
        user.read(stack, half.map(|number| 3 * number));
        until("all blocks are promoted", || user.count(stack, "promotions") == end);
    }
    for _ in 0..4 {
        user.read(stack, (0..5).map(|number| 3 * number));
    }
}

#[test]
fn a_cache_is_saved_and_another_one_has_the_same_afterwards() {
    let user = User::new();
    user.stack("a.toml", "4MiB", "");
    let server = user.serve("a.toml");
    heated(&user, "a.toml");
    let listed = user.json(&["warm", "list", "a.toml"]);
    assert_eq!(listed["cached_bytes"], 20 * BLOCK, "{listed}");
    let ranges = listed["ranges"].as_array().unwrap().clone();
    let hot = |range: &&Value| range["level"].as_u64().unwrap() > 1;
    let hottest: Vec<u64> =
        ranges.iter().filter(hot).map(|range| range["offset"].as_u64().unwrap()).collect();
    assert_eq!(hottest, (0..5).map(|number| 3 * number * BLOCK).collect::<Vec<_>>(), "{listed}");
    let page = user.fine(&["warm", "list", "a.toml", "disk", "--top", "3"]);
    assert!(
        page.contains("1.25 MiB of 16 MiB cached, 7.8 % of the origin") && page.contains("… 17 more"),
        "{page}"
    );

    let said = user.fine(&["warm", "save", "a.toml", "disk", "a.warm"]);
    assert!(said.contains("a.warm: 1.25 MiB in 20 ranges"), "{said}");
    let text = std::fs::read_to_string(user.path("a.warm")).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[..3], ["siltstone-warm 1", "origin_bytes 16777216", "block_size 65536"]);
    assert!(lines[3].starts_with("small/3/") && lines[23] == "end 20", "{text}");
    user.fine(&["warm", "save", "a.toml", "few.warm", "--most", "320KiB"]);
    assert!(std::fs::read_to_string(user.path("few.warm")).unwrap().ends_with("end 5\n"));

    // All blocks are evicted and loaded again; afterwards no read misses.
    let gone = user.json(&["warm", "evict", "a.toml", "--range", ".."]);
    assert_eq!((&gone["evicted"], &gone["wanted"]), (&(20 * BLOCK).into(), &ORIGIN.into()), "{gone}");
    assert_eq!(user.count("a.toml", "used_blocks"), 0);
    let loaded = user.json(&["warm", "load", "a.toml", "a.warm"]);
    assert_eq!((&loaded["fetched"], &loaded["present"]), (&(20 * BLOCK).into(), &0.into()), "{loaded}");
    assert_eq!(user.json(&["warm", "list", "a.toml"])["ranges"], Value::Array(ranges), "as hot as before");
    let missed = user.count("a.toml", "read_misses");
    user.read("a.toml", (0..20).map(|number| 3 * number));
    assert_eq!(user.count("a.toml", "read_misses"), missed, "nothing misses");
    server.stop();

    // After reopening, heat is unknown; a load sets it, and moves no block.
    let loaded = user.run(&["warm", "load", "a.toml", "disk", "a.warm"]);
    assert_eq!(loaded.code, Some(0), "{loaded:?}");
    assert_eq!(loaded.stdout, "1.25 MiB requested: 1.25 MiB cached already\n", "{loaded:?}");
    assert!(loaded.stderr.starts_with("not served: "), "{loaded:?}");

    // Other caches of the same origin: one with larger blocks, and one with space for only the hottest.
    user.stack("b.toml", "8MiB", "mode = \"writeback\"\nblock_size = \"256KiB\"");
    let server = user.serve("b.toml");
    let loaded = user.json(&["warm", "load", "b.toml", "a.warm"]);
    assert_eq!(loaded["fetched"], 20 * BLOCK, "{loaded}");
    user.read("b.toml", (0..20).map(|number| 3 * number));
    assert_eq!(user.count("b.toml", "read_misses"), 0, "nothing misses");
    server.stop();
    user.stack("c.toml", "1MiB", "block_size = \"32KiB\"");
    let server = user.serve("c.toml");
    let loaded = user.run(&["warm", "load", "c.toml", "a.warm"]);
    assert!(loaded.code == Some(0) && loaded.stdout.contains("without space"), "{loaded:?}");
    user.read("c.toml", (0..5).map(|number| 3 * number));
    assert_eq!(user.count("c.toml", "read_misses"), 0, "the hottest came first");
    assert!(user.count("c.toml", "used_blocks") < 40);
    server.stop();
}

#[test]
fn ranges_come_in_and_go() {
    let user = User::new();
    user.stack("a.toml", "4MiB", "");
    let server = user.serve("a.toml");
    let arguments = ["warm", "prefetch", "a.toml", "--range", "1MiB..2MiB", "--range", "1536KiB+1MiB"];
    let came = user.json(&arguments);
    assert_eq!((&came["wanted"], &came["fetched"]), (&(1536 << 10).into(), &(1536 << 10).into()), "{came}");
    let part = user.json(&["warm", "list", "a.toml", "--range", "2MiB..3MiB"]);
    assert_eq!(
        (&part["wanted_bytes"], &part["cached_bytes"]),
        (&(1 << 20).into(), &(512 << 10).into()),
        "{part}"
    );
    user.read("a.toml", 16..40);
    assert_eq!(user.count("a.toml", "read_misses"), 0);
    let gone = user.run(&["warm", "evict", "a.toml", "--range", "..1536KiB"]);
    assert_eq!(gone.stdout, "1.50 MiB requested: 512 KiB evicted, 1 MiB not cached\n", "{gone:?}");
    assert_eq!(user.count("a.toml", "used_blocks"), 16);
    // The whole device: fetched until the cache is full, and then it ends.
    let came = user.json(&["warm", "prefetch", "a.toml", "--range", "..", "--heat", "main/1/0"]);
    let sum = ["fetched", "present", "no_room"].iter().map(|key| came[*key].as_u64().unwrap()).sum::<u64>();
    assert_eq!(sum, ORIGIN as u64, "{came}");
    assert!(came["no_room"].as_u64().unwrap() > ORIGIN as u64 / 2, "{came}");
    server.stop();
}

#[test]
fn what_is_stopped_goes_on_from_there() {
    let user = User::new();
    user.stack("a.toml", "4MiB", "");
    let server = user.serve("a.toml");
    let all = ["warm", "prefetch", "a.toml", "--range", "..2MiB"];
    let slow = [&all[..], &["--rate", "64KiB", "--json"]].concat();
    let child = user.command(&slow).spawn().unwrap();
    until("something has come in", || user.count("a.toml", "prefetched_bytes") > 0);
    signal(&child, "INT");
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(130), "{said}");
    assert!(said.contains("the same command continues from here"), "{said}");
    let first: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(first["stopped"], true);
    let then = user.json(&all);
    assert_eq!(
        then["fetched"].as_u64().unwrap() + first["fetched"].as_u64().unwrap(),
        2 << 20,
        "{first} {then}"
    );
    assert_eq!(then["present"], first["fetched"]);
    server.stop();
    // The same on an unserved stack, which is closed cleanly.
    user.stack("b.toml", "4MiB", "");
    let arguments = ["warm", "prefetch", "b.toml", "--range", "4KiB..2MiB", "--rate", "64KiB"];
    let mut child = user.command(&arguments).spawn().unwrap();
    until("the cache's file holds the fetched blocks", || {
        let bytes = std::fs::read(user.path("b.toml.fast")).unwrap();
        bytes.chunks(4096).any(|bytes| bytes == [1; 4096])
    });
    signal(&child, "TERM");
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let status = user.json(&["status", "b.toml"]);
    assert_eq!(status["devices"]["disk"]["was_clean"], true, "{status}");
}

#[test]
fn what_is_wrong_is_refused_before_anything_comes_in() {
    let user = User::new();
    user.stack("a.toml", "4MiB", "");
    let server = user.serve("a.toml");
    let fine = "siltstone-warm 1\norigin_bytes 16777216\nblock_size 65536\nmain/3/1 0+65536\n";
    for (text, expected) in [
        ("", "a.warm:1: it ends before"),
        ("\u{7f}ELF\u{1}\u{2}\n", "a.warm:1: expected plain letters"),
        ("siltstone-warm 9\n", "a.warm:1: version \"9\""),
        (fine, "a.warm:5: it ends before its line \"end N\""),
        (&format!("{fine}end 7\n"), "a.warm:5: \"end 7\" where there are 1 ranges"),
        (
            &format!("{fine}main/1/1 16777215+2\nend 2\n"),
            "a.warm:5: \"main/1/1 16777215+2\" ends after the origin's",
        ),
        (&format!("{fine}main/1/1 0+1 detach\nend 2\n"), "a.warm:5: \"main/1/1 0+1 detach\": expected HEAT"),
    ] {
        std::fs::write(user.path("a.warm"), text).unwrap();
        let refused = user.run(&["warm", "load", "a.toml", "a.warm"]);
        assert!(refused.code == Some(2) && refused.stderr.contains(expected), "{expected}: {refused:?}");
        assert!(!refused.stderr.contains('\u{1b}'));
    }
    assert_eq!(user.count("a.toml", "prefetched_bytes"), 0);
    // Of another origin: loaded up to the end of this one.
    let larger = fine.replace("16777216", "33554432") + "small/0/1 16711680+131072\nend 2\n";
    std::fs::write(user.path("a.warm"), larger).unwrap();
    let loaded = user.run(&["warm", "load", "a.toml", "a.warm"]);
    assert!(loaded.code == Some(0) && loaded.stderr.contains("loaded as far as that goes"), "{loaded:?}");
    assert_eq!(loaded.stdout, "192 KiB requested: 128 KiB fetched, 64 KiB after the end of this origin\n");
    server.stop();

    let other = user.path("none/a.warm").display().to_string();
    let here = user.path("a.toml").display().to_string();
    for (arguments, code, expected) in [
        (&["list", "ram(1MiB)"][..], 2, "this stack has no part of kind \"cache\""),
        (&["list", "a.toml", "dsik"], 2, "there is no part \"dsik\": did you mean \"disk\"?"),
        (&["list", "a.toml", "slow"], 1, "unknown to file; expected one of \"resize SIZE\""),
        (&["list", "a.toml", "--range", "2..1"], 2, "no bytes: expected FROM..TO"),
        (&["prefetch", "a.toml"], 2, "expected --range FROM..TO or --file PATH"),
        (&["prefetch", "a.toml", "--range", "16MiB.."], 2, "the cache's device has 16777216 bytes (16MiB)"),
        (&["prefetch", "a.toml", "--range", "0..17MiB"], 2, "--range 0..17MiB: the cache's device has"),
        (&["prefetch", "a.toml", "--range", "..", "--heat", "hot"], 2, "expected QUEUE/HITS/AGE"),
        (&["prefetch", "a.toml", "--range", "..", "--rate", "0"], 2, "expected more than 0"),
        (&["prefetch", "a.toml", "--device", "/dev/null"], 2, "--file"),
        (&["prefetch", "a.toml", "--file", "none"], 2, "--file none: No such file"),
        (
            &["prefetch", "a.toml", "--file", "/proc/self/stat"],
            2,
            "its file system isn't on one block device",
        ),
        (
            &["prefetch", "a.toml", "--file", &here, "--device", "/dev/null"],
            2,
            "--device /dev/null: expected a block device",
        ),
        (&["load", "a.toml", "none.warm"], 2, "none.warm"),
        (&["load", "a.toml", "/dev/zero"], 2, "/dev/zero: expected a file of \"siltstone warm save\""),
        (&["save", "a.toml", &other], 1, "none/a.warm"),
        (&["save", "a.toml"], 2, "required arguments were not provided"),
    ] {
        let refused = user.run(&[&["warm"], arguments].concat());
        assert_eq!((refused.code, refused.stdout.as_str()), (Some(code), ""), "{arguments:?}: {refused:?}");
        assert!(refused.stderr.contains(expected), "{arguments:?}, {expected}: {}", refused.stderr);
    }
    // A cache in this mode admits no blocks.
    user.stack("p.toml", "4MiB", "mode = \"passthrough\"");
    let refused = user.run(&["warm", "prefetch", "p.toml", "--range", ".."]);
    assert!(refused.code == Some(1) && refused.stderr.contains("the cache admits no blocks"), "{refused:?}");
}

/// Mount, unmounted when dropped, with its loop device.
struct Mount(PathBuf);

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

fn succeeds(program: &str, arguments: &[&str]) -> bool {
    let ran = Command::new(program).args(arguments).output();
    ran.is_ok_and(|output| output.status.success())
}

/// The origin is the disk of a file system; the kernel uses it through a loop device of the same size.
#[test]
fn the_blocks_of_a_file_come_in() {
    let user = User::new();
    let image = user.path("slow.img").display().to_string();
    let folder = user.path("mounted");
    std::fs::create_dir(&folder).unwrap();
    let mounted = folder.display().to_string();
    let can =
        succeeds("mkfs.ext4", &["-q", "-F", &image]) && succeeds("mount", &["-o", "loop", &image, &mounted]);
    if !can {
        println!("SKIPPED: a file system on a loop device needs root, loop devices and mkfs.ext4");
        return;
    }
    let content: Vec<u8> = (0..300_000_u32).map(|at| (at / 7 % 251) as u8).collect();
    let mount = Mount(folder.clone());
    std::fs::write(folder.join("large"), &content).unwrap();
    std::fs::write(folder.join("other"), vec![1; 100_000]).unwrap();
    drop(mount);
    assert!(succeeds("mount", &["-o", "loop,ro,noload", &image, &mounted]));
    let mount = Mount(folder.clone());
    user.stack("a.toml", "4MiB", "");
    let path = folder.join("large").display().to_string();
    let came = user.json(&["warm", "prefetch", "a.toml", "--file", &path]);
    let bytes = came["fetched"].as_u64().unwrap();
    assert!((300_000..320_000).contains(&bytes), "whole blocks of the file system: {came}");
    let file = user.json(&["warm", "list", "a.toml", "--file", &path]);
    assert_eq!((&file["cached_bytes"], &file["wanted_bytes"]), (&bytes.into(), &bytes.into()), "{file}");
    // The cached ranges of the image are those of the file.
    let disk = std::fs::read(&image).unwrap();
    let mut cached = Vec::new();
    for range in file["ranges"].as_array().unwrap() {
        let number = |key: &str| range[key].as_u64().unwrap() as usize;
        cached.extend_from_slice(&disk[number("offset")..][..number("bytes")]);
    }
    assert!(cached.starts_with(&content), "{file}");
    let other = folder.join("other").display().to_string();
    let other = user.json(&["warm", "list", "a.toml", "--file", &other]);
    assert!(other["cached_bytes"].as_u64() < other["wanted_bytes"].as_u64(), "{other}");
    // On a device of another size the offsets have no meaning.
    std::fs::copy(user.path("slow.img"), user.path("copy.img")).unwrap();
    let copy = std::fs::OpenOptions::new().write(true).open(user.path("copy.img")).unwrap();
    copy.set_len(20 << 20).unwrap();
    let text = std::fs::read_to_string(user.path("a.toml")).unwrap().replace("slow.img", "copy.img");
    std::fs::write(user.path("b.toml"), text.replace("a.toml", "b.toml")).unwrap();
    user.fine(&["format", "b.toml", "disk"]);
    let refused = user.run(&["warm", "prefetch", "b.toml", "--file", &path]);
    assert!(
        refused.code == Some(2) && refused.stderr.contains("and the cache's device has 20971520"),
        "{refused:?}"
    );
    drop(mount);
}
