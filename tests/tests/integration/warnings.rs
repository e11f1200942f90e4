//! Warnings of real servers whose parts fill up: the command of the operator, the log and the status.

use serde_json::Value;
use siltstone_tests::foreign::{Attached, Mount, Server, binary, can_attach, has_fuse, run};
use siltstone_tests::need;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A program for `--warn-command`, and the file with a line for each of its runs.
struct Notifier {
    folder: TempDir,
}

impl Notifier {
    fn new() -> Notifier {
        let notifier = Notifier { folder: tempfile::tempdir().unwrap() };
        let script = "#!/bin/sh\necho \"$SILTSTONE_KIND|$*|$SILTSTONE_MESSAGE\" >> \"${0%/*}/told\"\n";
        std::fs::write(notifier.program(), script).unwrap();
        std::fs::set_permissions(notifier.program(), std::fs::Permissions::from_mode(0o755)).unwrap();
        notifier
    }

    fn program(&self) -> PathBuf {
        self.folder.path().join("warn")
    }

    fn option(&self) -> String {
        format!("--warn-command={}", self.program().display())
    }

    fn lines(&self) -> Vec<String> {
        let told = std::fs::read_to_string(self.folder.path().join("told")).unwrap_or_default();
        told.split_inclusive('\n').filter(|line| line.ends_with('\n')).map(str::to_owned).collect()
    }

    /// Waits for the next run after `known` ones. Returns its kind, part, level, used and limit.
    #[track_caller]
    fn next(&self, server: &mut Server, known: usize) -> (String, String, u64, u64, u64) {
        server.process.wait_until("it runs the program", |_| self.lines().len() > known);
        self.run(known)
    }

    /// Returns a run.
    #[track_caller]
    fn run(&self, number: usize) -> (String, String, u64, u64, u64) {
        let lines = self.lines();
        let line = &lines[number];
        let [kind, arguments, message] = line.trim().split('|').collect::<Vec<_>>()[..] else {
            panic!("{line}")
        };
        let [part, level, used, limit] = arguments.split(' ').collect::<Vec<_>>()[..] else {
            panic!("{line}")
        };
        let start = format!("{kind} \"{part}\": ");
        assert!(
            message.starts_with(&start) && message.contains(&format!("(warning level {level}%)")),
            "{line}"
        );
        let number = |text: &str| text.parse().unwrap();
        (kind.to_owned(), part.to_owned(), number(level), number(used), number(limit))
    }
}

fn siltstone(arguments: &[&str]) -> String {
    run(&binary().display().to_string(), arguments).ok()
}

fn json(arguments: &[&str]) -> Value {
    serde_json::from_str(&siltstone(&[arguments, &["--json"]].concat())).unwrap()
}

/// Writes this range of MiB over NBD.
#[track_caller]
fn write(server: &Server, from: u64, to: u64) {
    let script = format!("for at in range({from}, {to}): h.pwrite(bytes([at + 1]) * 2**20, at * 2**20)");
    run("nbdsh", &["-u", server.uri(), "-c", &script, "-c", "h.flush()"]).ok();
}

/// Serves a log that its users can fill, on shards of this number.
fn serve_log(folder: &Path, notifier: &Notifier, shards: u32) -> (Server, String) {
    let stack = format!("log(ram(64MiB), size=128MiB, zone_size=1MiB, warn_at=[80%, 50%]) shards={shards}");
    let (nbd, control) = (folder.join("nbd.sock"), folder.join("control"));
    let control = control.display().to_string();
    let nbd_option = format!("--nbd=unix:{}", nbd.display());
    let arguments = ["serve", &stack, "--format", "--control", &control, &nbd_option, &notifier.option()];
    (Server::start_with(&arguments, nbd), control)
}

#[test]
fn a_log_that_is_filled_over_nbd_runs_the_command_once_for_each_level() {
    need!("nbdsh");
    let (folder, notifier) = (tempfile::tempdir().unwrap(), Notifier::new());
    let (mut server, control) = serve_log(folder.path(), &notifier, 1);
    write(&server, 0, 34);
    let (kind, part, level, used, limit) = notifier.next(&mut server, 0);
    assert_eq!((kind.as_str(), part.as_str(), level), ("log", "top", 50));
    assert!(used >= 34 << 20 && used * 100 >= limit * 50 && used * 100 < limit * 80, "{used} of {limit}");
    write(&server, 34, 42);
    let (_, _, level, used, _) = notifier.next(&mut server, 1);
    assert_eq!(level, 80);
    assert!(used >= 42 << 20, "{used}");
    let status = json(&["status", "-", "--control", &control]);
    let fullness = &status["devices"]["top"]["fullness"];
    assert_eq!(
        (&fullness["warned_at"], &fullness["limit_bytes"]),
        (&"80%".into(), &limit.into()),
        "{status}"
    );
    let log = server.process.err();
    assert_eq!(log.matches("of its space is used (warning level ").count(), 2, "{log}");
    assert_eq!(notifier.lines().len(), 2);
    server.stop();
}

#[test]
fn a_full_log_of_several_shards_still_warns() {
    need!("nbdsh");
    let (folder, notifier) = (tempfile::tempdir().unwrap(), Notifier::new());
    let (mut server, _) = serve_log(folder.path(), &notifier, 4);
    let script = "try:\n for at in range(128): h.pwrite(bytes([at + 1]) * 2**20, at * 2**20)\n\
                  except nbd.Error as error:\n assert error.errno == 'ENOSPC'; print('full')";
    assert_eq!(run("nbdsh", &["-u", server.uri(), "-c", script]).ok().trim(), "full");
    // The first question may have come while it was being filled.
    let (_, _, level, ..) = notifier.next(&mut server, 0);
    if level == 50 {
        assert_eq!(notifier.next(&mut server, 1).2, 80);
    }
    server.stop();
}

#[test]
fn a_store_and_a_command_that_fails() {
    let (folder, notifier) = (tempfile::tempdir().unwrap(), Notifier::new());
    let stack = folder.path().join("kv.toml");
    let socket = folder.path().join("kv.sock");
    let text = "[door.store]\nkind = \"kv\"\non = \"flash\"\nlisten = \"unix:kv.sock\"\nwarn_at = 1\ncompression = \"none\"\n\n\
                [zones.flash]\nkind = \"zns-emulator\"\npath = \"kv.zns\"\nzones = 32\nzone_size = \"1MiB\"\ntime = \"none\"\n";
    std::fs::write(&stack, text).unwrap();
    let stack = stack.display().to_string();
    let server = Server::start_with(&["kv", "serve", &stack, "--format"], socket.clone());
    let value = "v".repeat(100_000);
    for number in 0..10 {
        siltstone(&["kv", "put", &stack, &format!("key{number}"), &value]);
    }
    server.stop();
    std::fs::OpenOptions::new()
        .append(true)
        .open(notifier.program())
        .and_then(|mut file| std::io::Write::write_all(&mut file, b"exit 7\n"))
        .unwrap();
    let mut server = Server::start_with(&["kv", "serve", &stack, &notifier.option()], socket);
    let (kind, part, level, used, _) = notifier.next(&mut server, 0);
    assert_eq!((kind.as_str(), part.as_str(), level), ("kv", "store", 1));
    assert!(used >= 1_000_000, "{used}");
    server.process.wait_until("the failure is logged", |process| {
        process.err().contains("it ended with exit status: 7")
    });
    let status = json(&["status", &stack]);
    assert_eq!(status["doors"]["store"]["fullness"]["warned_at"], "1%", "{status}");
    let status = json(&["kv", "status", &stack]);
    assert_eq!(status["fullness"]["used_bytes"].as_u64(), Some(used), "{status}");
    server.stop();
}

#[test]
fn a_mounted_file_system() {
    if !has_fuse() {
        return;
    }
    let notifier = Notifier::new();
    let mount = Mount::formatted(&["--size", "64MiB"]);
    mount.shell("head -c 30M /dev/zero > large");
    let status = |mount: &Mount| json(&["fs", "status", &mount.at("").display().to_string()]);
    assert!(status(&mount)["fullness"]["warned_at"].is_null());
    let option = notifier.option();
    let mut mount = mount.unmounted().mounted_with(&["--warn-at", "30%, 99%", &option]);
    let (kind, part, level, used, limit) = notifier.next(mount.server(), 0);
    assert_eq!((kind.as_str(), part == mount.image(), level), ("fs", true, 30));
    assert!(used >= 30_000_000 && used < limit, "{used} of {limit}");
    let found = status(&mount);
    assert_eq!(found["fullness"]["warned_at"], "30%", "{found}");
    let found = mount.unmounted().status();
    assert_eq!(found["fullness"]["limit_bytes"].as_u64(), Some(limit), "{found}");
}

#[test]
fn an_attachment() {
    if !can_attach() {
        return;
    }
    let (folder, notifier) = (tempfile::tempdir().unwrap(), Notifier::new());
    let disk = folder.path().join("disk.img");
    let stack = format!("log(file({}, size=64MiB), size=128MiB, zone_size=1MiB, warn_at=50)", disk.display());
    let socket = folder.path().join("nbd.sock");
    let nbd = format!("--nbd=unix:{}", socket.display());
    let server = Server::start_with(&["serve", &stack, "--format", &nbd], socket);
    write(&server, 0, 40);
    server.stop();
    let attached = Attached::new("warning", &stack, &[&notifier.option()]);
    let begun = runtime::now();
    while notifier.lines().is_empty() && begun.elapsed().as_secs() < 60 {
        run("sleep", &["0.05"]).ok();
    }
    let (kind, part, level, ..) = notifier.run(0);
    assert_eq!((kind.as_str(), part.as_str(), level), ("log", "top", 50));
    attached.detach();
}

#[test]
fn wrong_options_are_refused_before_anything_is_opened() {
    let folder = tempfile::tempdir().unwrap();
    let disk = folder.path().join("disk.img");
    let program = binary().display().to_string();
    let refused = |stack: &str, option: &str, text: &str| {
        let ran = run(&program, &["serve", stack, "--nbd=unix:sock", option]);
        assert_eq!(ran.code, Some(2), "{ran:#?}");
        assert!(ran.err.contains(text), "{}", ran.err);
        assert!(!disk.exists());
    };
    let log = format!("log(file({}, size=64MiB)", disk.display());
    let none = folder.path().join("none").display().to_string();
    refused(&format!("{log})"), &format!("--warn-command={none}"), "expected the path of an executable file");
    for wrong in ["0", "101%", "\"80%, x\"", "[80, 1000]", "\"\""] {
        let text = "expected percentages from 1% to 100% such as";
        refused(&format!("{log}, warn_at={wrong})"), "--log=warn", text);
    }
}
