//! Real swap on memory nodes: a program with more memory than its control group permits, whose pages are all
//! checked, while servers and a node are killed, or a node needs its memory for another program.

use rustix::process::Signal;
use siltstone_tests::foreign::{Attached, Background, binary, can_attach, lock_swap, run, run_shell, skip};
use siltstone_tests::need;
use std::path::{Path, PathBuf};
use tempfile::tempdir;

const PAGES: &str = env!("CARGO_BIN_EXE_siltstone-guest-pages");

/// A node on the machine of its borrower sees waits for swapped pages as pressure, and would reclaim memory
/// because of them.
const ANY_PRESSURE: [&str; 2] = ["--pressure-limit", "100"];

/// Fills pages, half of each with numbers that can't be compressed; reads and changes them at random, and
/// checks every page.
const PROGRAM: &str = r#"
import random, sys, time
pages = 128 << 8
memory = bytearray(pages << 12)
versions = [0] * pages
def content(page):
    noise = random.Random(page << 20 | versions[page])
    return noise.randbytes(2048) + page.to_bytes(8, "little") * 256
for page in range(pages):
    memory[page << 12:(page + 1) << 12] = content(page)
choice, end = random.Random(7), time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    page = choice.randrange(pages)
    assert memory[page << 12:(page + 1) << 12] == content(page), page
    if choice.randrange(4) == 0:
        versions[page] += 1
        memory[page << 12:(page + 1) << 12] = content(page)
for page in range(pages):
    assert memory[page << 12:(page + 1) << 12] == content(page), page
used = [line.split() for line in open("/proc/swaps").read().splitlines()[1:]]
assert sum(int(line[3]) for line in used) > 32 << 10, used
print("all pages are right")
"#;

fn siltstone(arguments: &[&str]) -> siltstone_tests::foreign::Finished {
    run(&binary().display().to_string(), arguments)
}

#[test]
fn every_page_comes_back_though_servers_and_a_node_are_killed() {
    need!("mkswap", "swapon", "python3", "jq", "losetup");
    if !can_attach() {
        return;
    }
    if !Path::new("/sys/fs/cgroup/memory/memory.limit_in_bytes").exists() {
        return skip("there is no memory controller of cgroups v1");
    }
    let Some(_lock) = lock_swap() else { return };
    let folder = tempdir().expect("a folder");
    let (name, at) = (format!("test-far-{}", std::process::id()), folder.path().display().to_string());
    let nodes: Vec<Background> = ["one", "two"]
        .iter()
        .map(|node| {
            let listen = format!("unix:{at}/{node}");
            let arguments =
                ["memory-node", "--capacity", "256MiB", "--reserve", "64MiB", "--listen", &listen];
            Background::start(&binary().display().to_string(), &[&arguments[..], &ANY_PRESSURE].concat())
        })
        .collect();
    run_shell(&format!(
        "for try in $(seq 200); do test -S {at}/one -a -S {at}/two && exit; sleep 0.05; done; exit 1"
    ))
    .ok();
    let stack = format!("{at}/far.toml");
    let node = |name: &str| {
        format!("[device.{name}]\nkind = \"memory-node\"\naddress = \"unix:{at}/{name}\"\nname = \"far\"\n")
    };
    let remote =
        "[device.far]\nkind = \"remote\"\nnodes = [\"one\", \"two\"]\ncopies = 2\ncache = \"32MiB\"\n";
    std::fs::write(&stack, format!("{}{}{remote}", node("one"), node("two"))).expect("a file");
    let group = format!("/sys/fs/cgroup/memory/siltstone-{name}");
    let said = siltstone(&["swap", "on", &stack, "--name", &name]).ok();
    assert!(said.contains("swapping to /dev/"), "{said}");
    let mut program = Background::start(
        "sh",
        &[
            "-c",
            &format!(
                "mkdir {group}; echo 48M > {group}/memory.limit_in_bytes; echo $$ > {group}/cgroup.procs; exec python3 -c \"$1\" 8"
            ),
            "sh",
            PROGRAM,
        ],
    );
    let killed = run_shell(&format!(
        "for round in 1 2; do
             sleep 2
             kill -9 $({siltstone} list --json | jq '.[] | select(.name == \"{name}\") | .server')
         done
         sleep 2",
        siltstone = binary().display()
    ));
    nodes[0].signal(Signal::KILL);
    let ended = program.wait();
    let status = siltstone(&["swap", "status", "--json"]).ok();
    let off = run_shell(&format!("{} swap off {name}", binary().display()));
    run_shell(&format!(
        "rmdir {group} || true; test ! -e /run/siltstone/{name} || cat /run/siltstone/{name}/log"
    ))
    .ok();
    assert!(ended.success(), "{}{status}", program.err());
    killed.ok();
    off.ok();
    let status: serde_json::Value = serde_json::from_str(&status).expect("JSON");
    let own = status
        .as_array()
        .expect("a list")
        .iter()
        .find(|space| space["name"] == name.as_str())
        .expect("it is listed");
    assert_eq!((&own["lost_servers"], &own["device"]["lost_pages"]), (&2.into(), &0.into()), "{own}");
    assert_eq!(own["device"]["nodes"][0]["state"], "down", "{own}");
}

/// Memory control groups of version 1, removed when dropped.
struct Groups([PathBuf; 2]);

impl Groups {
    /// Creates groups with these limits. Only memory of the second group is swapped out.
    fn create(&self, first: &str, second: &str) {
        for (group, limit) in self.0.iter().zip([first, second]) {
            std::fs::create_dir(group).expect("a control group");
            std::fs::write(group.join("memory.limit_in_bytes"), limit).expect("a limit");
        }
        std::fs::write(self.0[0].join("memory.swappiness"), "0").expect("a setting");
    }

    fn read(&self, group: usize, file: &str) -> String {
        std::fs::read_to_string(self.0[group].join(file)).expect("a file of the group")
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        for group in &self.0 {
            // The group may not have been created.
            let _removed = std::fs::remove_dir(group);
        }
    }
}

/// Swap space of this name; switched off when dropped.
struct SwapSpace(String);

impl Drop for SwapSpace {
    fn drop(&mut self) {
        run_shell(&format!(
            "test ! -e /run/siltstone/{0} || {{ cat /run/siltstone/{0}/log; {1} swap off {0}; }}",
            self.0,
            binary().display()
        ));
    }
}

/// A file in shared memory; removed when dropped.
struct TakenMemory(String);

impl Drop for TakenMemory {
    fn drop(&mut self) {
        // The file may not have been created.
        let _removed = std::fs::remove_file(&self.0);
    }
}

/// Two nodes; each page is on one of them. The first one is in a control group with another program, which
/// takes its memory.
#[test]
fn a_node_under_pressure_is_drained_before_the_kernel_would_kill_it() {
    need!("mkswap", "swapon", "jq", "losetup");
    if !can_attach() {
        return;
    }
    let controller = Path::new("/sys/fs/cgroup/memory");
    if !controller.join("memory.limit_in_bytes").exists() {
        return skip("there is no memory controller of cgroups v1");
    }
    let Some(_lock) = lock_swap() else { return };
    let folder = tempdir().expect("a folder");
    let (name, at) = (format!("test-drain-{}", std::process::id()), folder.path().display().to_string());
    let groups =
        Groups(["node", "program"].map(|group| controller.join(format!("siltstone-{name}-{group}"))));
    groups.create("192M", "32M");
    let siltstone_path = binary().display().to_string();
    let enter = |group: &Path, line: &str| {
        let line = format!("echo $$ > {}/cgroup.procs; {line}", group.display());
        Background::start("sh", &["-euc", &line])
    };
    let mut pressed = enter(
        &groups.0[0],
        &format!(
            "exec {siltstone_path} memory-node --capacity 160MiB --reserve 48MiB --listen unix:{at}/one {}",
            ANY_PRESSURE.join(" ")
        ),
    );
    let arguments =
        ["memory-node", "--capacity", "1GiB", "--reserve", "64MiB", "--listen", &format!("unix:{at}/two")];
    let mut other = Background::start(&siltstone_path, &[&arguments[..], &ANY_PRESSURE].concat());
    for node in [&mut pressed, &mut other] {
        node.wait_until("it listens", |node| node.out().ends_with('\n'));
    }
    let stack = format!("{at}/drain.toml");
    let node = |node: &str| {
        format!("[device.{node}]\nkind = \"memory-node\"\naddress = \"unix:{at}/{node}\"\nname = \"far\"\n")
    };
    let remote = "[device.far]\nkind = \"remote\"\nnodes = [\"one\", \"two\"]\ncache = \"32MiB\"\ncompression = \"none\"\n";
    std::fs::write(&stack, format!("{}{}{remote}", node("one"), node("two"))).expect("a file");
    siltstone(&["swap", "on", &stack, "--name", &name]).ok();
    let swap = SwapSpace(name.clone());
    let over = folder.path().join("over");
    let mut program = enter(&groups.0[1], &format!("exec {PAGES} 192 {}", over.display()));
    // All nodes in the status, by their position in the stack; and the status of the node itself.
    let status = || -> serde_json::Value {
        let all = siltstone(&["swap", "status", "--json"]).ok();
        let all: serde_json::Value = serde_json::from_str(&all).expect("JSON");
        let own = all.as_array().expect("a list").iter().find(|space| space["name"] == name.as_str());
        own.expect("it is listed")["device"].clone()
    };
    let used = |status: &serde_json::Value| status["nodes"][0]["used_bytes"].as_u64().expect("a number");
    let lent = || {
        let leaf = format!("memory-node(\"unix:{at}/one\", name=far)");
        let status = siltstone(&["status", &leaf, "--json"]).ok();
        let status: serde_json::Value = serde_json::from_str(&status).expect("JSON");
        status["devices"]["top"]["node_lent_bytes"].as_u64().expect("a number")
    };
    program.wait_until("the first node lends 40 MiB", |_| lent() >= 40 << 20);
    let before = (lent(), used(&status()));
    // 140 MiB at about 15 MiB/s: more than the group has besides the lent memory. This memory can't be
    // reclaimed without swapping.
    let taken = format!("/dev/shm/siltstone-{name}");
    let file = TakenMemory(taken.clone());
    let mut taker = enter(
        &groups.0[0],
        &format!(
            "for part in $(seq 70); do head -c 2M /dev/zero >>{taken}; sleep 0.1; done; echo taken; exec sleep 1000"
        ),
    );
    taker.wait_until("the memory is taken", |taker| taker.out().contains("taken"));
    let after = (lent(), used(&status()));
    std::fs::write(&over, "").expect("a file");
    let ended = program.wait();
    let at_end = status();
    let failures = groups.read(0, "memory.failcnt");
    let killed = groups.read(0, "memory.oom_control");
    drop(file);
    siltstone(&["swap", "off", &name]).ok();
    drop(swap);
    assert!(ended.success(), "{}{}", program.out(), program.err());
    println!(
        "lent and used by the first node: {before:?}, then {after:?}; {failures} failures; {}",
        program.out()
    );
    assert!(after.0 + (16 << 20) <= before.0, "{before:?} {after:?}");
    assert!(pressed.is_alive() && taker.is_alive(), "{}", pressed.err());
    assert_eq!(failures.trim(), "0", "the limit was never reached");
    assert!(killed.contains("oom_kill 0"), "{killed}");
    assert_eq!((&at_end["lost_pages"], &at_end["nodes"][0]["losses"]), (&0.into(), &0.into()), "{at_end}");
    assert!(at_end["zones_copied"].as_u64() > Some(0), "{at_end}");
}

/// The kernel gives the node of an attachment that has lost its holder to another attachment.
#[test]
fn a_lost_attachment_has_no_part_in_the_swap_space_of_another_one() {
    need!("mkswap", "swapon", "jq", "losetup");
    if !can_attach() {
        return;
    }
    let Some(_lock) = lock_swap() else { return };
    let lost = Attached::new("lost", "ram(size=16MiB)", &["--via=fuse"]);
    let listed = lost.listed();
    run_shell(&format!(
        "kill -9 {} {}; sleep 0.5; losetup -d {}",
        listed["holder"], listed["server"], lost.node
    ))
    .ok();
    let name = format!("test-heir-{}", std::process::id());
    siltstone(&["swap", "on", "ram(64MiB)", "--name", &name, "--via=fuse"]).ok();
    let swap = SwapSpace(name.clone());
    let names = || {
        let all: serde_json::Value =
            serde_json::from_str(&siltstone(&["swap", "status", "--json"]).ok()).expect("JSON");
        let names = all.as_array().expect("a list").iter().map(|space| space["name"].clone());
        names.collect::<Vec<_>>()
    };
    assert_eq!(names(), [name.as_str()]);
    let said = siltstone(&["swap", "off", lost.name()]);
    assert!(said.err.contains("isn't used as swap space"), "{said:?}");
    said.ok();
    // The attachment is detached; its node belongs to another one.
    std::mem::forget(lost);
    assert_eq!(names(), [name.as_str()]);
    siltstone(&["swap", "off", &name]).ok();
    drop(swap);
}

#[test]
fn wrong_use_is_told() {
    let folder = tempdir().expect("a folder");
    let disk = format!("file({}, size=64MiB)", folder.path().join("disk").display());
    let said = |arguments: &[&str]| siltstone(arguments).refused();
    let cases: &[(&[&str], &str)] = &[
        (&["swap", "on", &disk], "whose contents would be lost; expected kind remote or ram, or --overwrite"),
        (&["swap", "on", "remote(ram(8MiB))", "--name", "test-small"], "expected at least"),
        (&["swap", "off", "nothing-of-this-name"], "nothing of this name is attached"),
        (&["swap", "on", "ram(64MiB)", "--priority", "70000"], "0..=32767"),
        (&["stack", "check", "remote(ram(1GiB), copies=7)"], "1 to 3"),
    ];
    for (arguments, expected) in cases {
        let text = said(arguments);
        assert!(text.contains(expected), "{arguments:?}: {text}");
    }
    assert!(!folder.path().join("disk").exists(), "nothing was made");
}
