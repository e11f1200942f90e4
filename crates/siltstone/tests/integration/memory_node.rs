//! `siltstone memory-node` and its leaf in a stack, as operators use them.

use crate::common::{Ran, command, run, signal, wait_for};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const MIB: u64 = 1 << 20;
const LEND: [&str; 8] =
    ["memory-node", "--capacity", "64MiB", "--quota", "32MiB", "--listen", "unix:node.sock", "--json"];

/// Running node, killed when dropped.
struct Node(Child);

impl Node {
    fn start(mut command: Command) -> Node {
        let mut child = command.spawn().unwrap();
        let line = wait_for(child.stdout.take().unwrap(), "address");
        let printed: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert!(printed["address"].as_str().unwrap().ends_with("node.sock"), "{printed}");
        Node(child)
    }

    /// Sends SIGTERM; returns the exit code.
    fn stop(mut self) -> Option<i32> {
        signal(&self.0, "TERM");
        self.0.wait().unwrap().code()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // The process may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the status of the leaf, in a stack that is opened for the request.
fn borrowed(folder: &Path, name: &str) -> serde_json::Value {
    let ran = run(folder, &["status", &format!("memory-node(unix:node.sock, name={name})"), "--json"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let status: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    status["devices"]["top"].clone()
}

/// Waits until the status of the borrower `one` satisfies `condition`; panics after ten seconds.
#[expect(clippy::disallowed_methods, reason = "waits for a real process; nothing here runs in the runtime")]
fn status_when(
    folder: &Path,
    what: &str,
    condition: impl Fn(&serde_json::Value) -> bool,
) -> serde_json::Value {
    for _ in 0..100 {
        let status = borrowed(folder, "one");
        if condition(&status) {
            return status;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    panic!("{what}: {}", borrowed(folder, "one"));
}

/// Runs another program; `None` if it isn't installed.
fn foreign(folder: &Path, program: &str, arguments: &[&str]) -> Option<Ran> {
    let output = Command::new(program).args(arguments).current_dir(folder).output();
    let Ok(output) = output else {
        println!("SKIPPED: {program} is not installed");
        return None;
    };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Some(Ran { code: output.status.code(), stdout: text(&output.stdout), stderr: text(&output.stderr) })
}

/// Returns bytes without a page of zeros.
fn pattern(bytes: u64) -> Vec<u8> {
    (0..bytes / 8).flat_map(|number| (number + 1).to_le_bytes()).collect()
}

#[test]
fn memory_is_lent_and_the_leaf_borrows_it() {
    let folder = tempfile::tempdir().unwrap();
    let node = Node::start(command(folder.path(), &LEND));
    let status = borrowed(folder.path(), "swap0");
    assert_eq!(status["bytes"], 32 * MIB, "{status}");
    assert_eq!((status["capacity_bytes"].as_u64(), status["lent_bytes"].as_u64()), (Some(64 * MIB), Some(0)));
    assert_eq!(status["reclaim_bytes"], 0);
    assert!(status["status_error"].is_null(), "{status}");
    let wrong = run(folder.path(), &["status", "memory-node(unix:node.sock, name=\"a/b\")"]);
    assert_eq!(wrong.code, Some(2), "{wrong:?}");
    assert!(wrong.stderr.contains("1 to 64 letters, digits"), "{wrong:?}");
    assert_eq!(node.stop(), Some(0));
    let ran = run(folder.path(), &["status", "memory-node(unix:node.sock, name=swap0)"]);
    assert_eq!(ran.code, Some(1), "the node has ended: {ran:?}");
}

#[test]
fn wrong_arguments_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |arguments: &[&str], expected: &str| {
        let ran = run(folder.path(), &[&["memory-node", "--capacity", "64MiB"], arguments].concat());
        assert_eq!(ran.code, Some(2), "{ran:?}");
        assert!(ran.stderr.contains(expected), "{expected}: {ran:?}");
    };
    refused(
        &["--listen", "0.0.0.0:0"],
        "to serve other machines, give --tls, or --allow-remote if you trust all machines of the network",
    );
    refused(&["--listen", "unix:n.sock", "--quota", "1GiB"], "expected at most the capacity");
    refused(&["--listen", "unix:n.sock", "--pressure-limit", "0"], "at most 100");
    refused(&["--listen", "unix:n.sock", "--max-borrowers", "129"], "1..=128");
    refused(&[], "--listen");
}

#[test]
fn foreign_clients_see_the_exports() {
    let folder = tempfile::tempdir().unwrap();
    let node = Node::start(command(folder.path(), &LEND));
    let uri = |export: &str| format!("nbd+unix:///{export}?socket=node.sock");
    let Some(shown) = foreign(folder.path(), "nbdinfo", &["--size", &uri("memory/one")]) else { return };
    assert_eq!(shown.stdout.trim(), (32 * MIB).to_string(), "{shown:?}");
    let listed = foreign(folder.path(), "nbdinfo", &["--list", "--json", &uri("")]).unwrap();
    let listed: serde_json::Value = serde_json::from_str(&listed.stdout).unwrap();
    let names = listed["exports"].as_array().unwrap().iter().map(|export| &export["export-name"]);
    assert_eq!(names.collect::<Vec<_>>(), ["status", "memory/one"]);
    let unknown = foreign(folder.path(), "nbdinfo", &[&uri("other")]).unwrap();
    assert_ne!(unknown.code, Some(0), "{unknown:?}");
    let data = pattern(32 * MIB);
    std::fs::write(folder.path().join("data"), &data).unwrap();
    let Some(copied) = foreign(folder.path(), "nbdcopy", &["data", &uri("memory/one")]) else { return };
    assert_eq!(copied.code, Some(0), "{copied:?}");
    let copied = foreign(folder.path(), "nbdcopy", &[&uri("memory/one"), "back"]).unwrap();
    assert_eq!(copied.code, Some(0), "{copied:?}");
    assert!(std::fs::read(folder.path().join("back")).unwrap() == data);
    let status = foreign(folder.path(), "nbdcopy", &[&uri("status"), "-"]).unwrap();
    assert_eq!(status.stdout.len(), 64 << 10);
    let status: serde_json::Value = serde_json::from_str(&status.stdout).unwrap();
    assert_eq!((status["version"].as_u64(), status["lent_bytes"].as_u64()), (Some(1), Some(32 * MIB)));
    assert_eq!(status["borrowers"]["one"]["lent_bytes"], 32 * MIB);
    assert_eq!(node.stop(), Some(0));
}

/// Memory control group of version 1, removed when dropped.
struct Group {
    folder: PathBuf,
    name: String,
}

impl Group {
    /// Creates a group with this limit in bytes; `None` without root or without the memory controller.
    fn new(name: &str, limit: u64) -> Option<Group> {
        let name = format!("siltstone-{name}-{}", std::process::id());
        let group = Group { folder: Path::new("/sys/fs/cgroup/memory").join(&name), name };
        std::fs::create_dir(&group.folder).ok()?;
        std::fs::write(group.folder.join("memory.limit_in_bytes"), limit.to_string()).ok()?;
        Some(group)
    }

    /// Returns a command that runs `line` in the group; `$0` is the program.
    fn command(&self, folder: &Path, line: &str) -> Command {
        let mut shell = Command::new("sh");
        let line = format!("echo $$ > {}/cgroup.procs && {line}", self.folder.display());
        shell.args(["-c", &line, env!("CARGO_BIN_EXE_siltstone")]).current_dir(folder);
        shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        shell
    }

    fn number(&self, file: &str) -> u64 {
        std::fs::read_to_string(self.folder.join(file)).unwrap().trim().parse().unwrap()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The group may not have been created.
        let _ = std::fs::remove_dir(&self.folder);
    }
}

/// File in shared memory, which another program of a control group allocates. Removed when dropped.
struct SharedMemoryFile(PathBuf);

impl Drop for SharedMemoryFile {
    fn drop(&mut self) {
        // The file may not have been created.
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn near_the_limit_of_its_control_group_a_node_stops_lending_and_reclaims() {
    let Some(group) = Group::new("lends", 160 * MIB) else {
        return println!("SKIPPED: a memory control group of version 1 needs root");
    };
    let folder = tempfile::tempdir().unwrap();
    let line = "exec \"$0\" memory-node --capacity 1GiB --reserve 32MiB --listen unix:node.sock --json";
    let node = Node::start(group.command(folder.path(), line));
    std::fs::write(folder.path().join("data"), pattern(256 * MIB)).unwrap();
    let uri = "nbd+unix:///memory/one?socket=node.sock";
    let Some(copied) = foreign(folder.path(), "nbdcopy", &["data", uri]) else { return };
    assert!(copied.stderr.contains("No space left on device"), "{copied:?}");
    let status = borrowed(folder.path(), "one");
    let lent = status["lent_bytes"].as_u64().unwrap();
    assert!((64 * MIB..=124 * MIB).contains(&lent), "{status}");
    assert_eq!(status["reclaim_bytes"], 0, "{status}");
    // Another program of the group takes half of the reserve, and the memory that the node leaves beside it.
    let file = SharedMemoryFile(Path::new("/dev/shm").join(&group.name));
    let bytes = 144 * MIB - group.number("memory.usage_in_bytes");
    let line = format!("head -c {bytes} /dev/zero > {}", file.0.display());
    let taken = group.command(folder.path(), &line).output().unwrap();
    assert!(taken.status.success(), "{taken:?}");
    // The reserve and the upper watermark are 4 MiB apart. An earlier status may precede the program's last
    // allocation.
    let reclaims = |status: &serde_json::Value| status["reclaim_bytes"].as_u64() >= Some(12 * MIB);
    let reclaiming = status_when(folder.path(), "reclaiming", reclaims);
    assert!(reclaiming["reclaim_bytes"].as_u64() <= Some(28 * MIB), "{reclaiming}");
    assert_eq!(reclaiming["free_bytes"], 0, "{reclaiming}");
    drop(file);
    // The node is near its upper watermark, which other memory of the group may have moved: the borrower
    // discards 8 MiB.
    std::fs::File::create(folder.path().join("zeros")).unwrap().set_len(8 * MIB).unwrap();
    let discarded = foreign(folder.path(), "nbdcopy", &["zeros", uri]).unwrap();
    assert_eq!(discarded.code, Some(0), "{discarded:?}");
    status_when(folder.path(), "reclaiming has ended", |status| status["reclaim_bytes"] == 0);
    assert_eq!(group.number("memory.failcnt"), 0, "the limit was never reached");
    assert_eq!(node.stop(), Some(0), "it was not killed");
}
