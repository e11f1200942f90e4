//! Swap on memory nodes, for real: a program with more memory than its group may have, whose pages are all checked, while servers and a node are killed.

use rustix::process::Signal;
use siltstone_tests::foreign::{Background, binary, can_attach, run, run_shell, skip};
use siltstone_tests::need;
use std::path::Path;
use tempfile::tempdir;

/// Fills pages, half of each with numbers that can't be compressed; reads and changes them at random, and checks every one.
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
    let folder = tempdir().expect("a folder");
    let (name, at) = (format!("test-far-{}", std::process::id()), folder.path().display().to_string());
    let nodes: Vec<Background> = ["one", "two"]
        .iter()
        .map(|node| {
            let listen = format!("unix:{at}/{node}");
            let arguments =
                ["memory-node", "--capacity", "256MiB", "--reserve", "64MiB", "--listen", &listen];
            Background::start(&binary().display().to_string(), &arguments)
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
