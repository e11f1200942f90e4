//! The package and its services: its tree of files, units, the helpers of mount(8) on a real mount, the
//! protocol of systemd, and the file of messages.

use crate::documents::root;
use rustix::process::Signal;
use serde_json::Value;
use siltstone_tests::foreign::{Background, binary, has_fuse, is_installed, run, skip};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::Path;
use std::time::Duration;
use tempfile::tempdir;

/// Longest wait for something that takes milliseconds on a quiet machine.
const LIMIT: Duration = Duration::from_secs(60);

/// Returns the names in a folder, in order.
fn names_in(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries.map(|it| it.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn the_tree_has_what_an_installation_needs() {
    let folder = tempdir().unwrap();
    let tree = folder.path().join("root");
    let script = root().join("scripts/package").display().to_string();
    let arguments = ["--stage", &binary().display().to_string(), &tree.display().to_string()];
    run(&script, &arguments).ok();
    for file in [
        "usr/bin/siltstone",
        "usr/share/man/man1/siltstone-fs-mount.1",
        "usr/share/bash-completion/completions/siltstone",
        "usr/share/zsh/vendor-completions/_siltstone",
        "usr/share/fish/vendor_completions.d/siltstone.fish",
        "usr/lib/systemd/system/siltstone-serve@.service",
        "usr/lib/sysusers.d/siltstone.conf",
        "usr/lib/udev/rules.d/60-siltstone.rules",
        "usr/sbin/mount.siltstone",
        "usr/sbin/umount.fuse.siltstone",
        "usr/share/doc/siltstone/examples/kv.toml",
        "usr/share/doc/siltstone/grafana.json",
    ] {
        assert!(tree.join(file).is_file(), "{file}");
    }
    assert_eq!(names_in(&tree), ["usr"]);
    let manifest = std::fs::read_to_string(root().join("crates/siltstone/Cargo.toml")).unwrap();
    for name in names_in(&tree.join("usr")) {
        let asset = format!("[\"../../target/package/root/usr/{name}/");
        assert!(manifest.contains(&asset), "usr/{name} isn't in the assets of the Debian package");
    }
    let description = manifest.lines().find_map(|line| line.strip_prefix("description = \"")).unwrap();
    assert!(description.len() <= 80, "longer than the first line of a package's description: {description}");
    let scripts = root().join("packaging/debian");
    assert_eq!(names_in(&scripts), ["postinst", "postrm", "prerm"]);
    for name in names_in(&scripts) {
        run("sh", &["-n", scripts.join(name).to_str().unwrap()]).ok();
    }
    assert_eq!(run(&script, &["--stage"]).code, Some(2));
}

#[test]
fn units_limit_what_their_services_can_do() {
    if !is_installed("systemd-analyze") {
        return skip("systemd-analyze is not installed");
    }
    let units = std::fs::read_dir(root().join("packaging/systemd")).unwrap();
    let units: Vec<_> = units.map(|entry| entry.unwrap().path()).collect();
    assert_eq!(units.len(), 5);
    for unit in units {
        // Exposure of 4.0 of 10 at most.
        let arguments =
            ["security", "--no-pager", "--offline=true", "--threshold=40", unit.to_str().unwrap()];
        let rated = run("systemd-analyze", &arguments);
        assert_eq!(rated.code, Some(0), "{}: {}", unit.display(), rated.out);
        // systemd gives the whole tree of a StateDirectory to the unit's user.
        let text = std::fs::read_to_string(&unit).unwrap();
        assert_eq!(
            text.contains("\nStateDirectory="),
            text.contains("\nUser=siltstone") && !text.contains("memory-node"),
            "{}",
            unit.display()
        );
    }
}

#[test]
fn the_unit_of_a_node_loads_the_modules_of_all_drivers() {
    let unit = std::fs::read_to_string(root().join("packaging/systemd/siltstone-attach@.service")).unwrap();
    for key in ["Wants=", "After="] {
        let line = unit.lines().find(|line| line.starts_with(key)).expect("a line");
        for module in ["ublk_drv", "nbd", "fuse", "loop"] {
            assert!(line.contains(&format!("modprobe@{module}.service")), "{line}");
        }
    }
}

/// Mount point, which is unmounted if its test fails.
struct MountPoint(String);

impl Drop for MountPoint {
    fn drop(&mut self) {
        if std::thread::panicking() {
            run("umount", &["-i", "-l", &self.0]);
        }
    }
}

#[test]
fn mount_helpers_mount_and_unmount() {
    if !has_fuse() {
        return;
    }
    let folder = tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let (mounting, unmounting) = (at("mount.siltstone"), at("umount.fuse.siltstone"));
    for helper in [&mounting, &unmounting] {
        std::os::unix::fs::symlink(binary(), helper).unwrap();
    }
    let (image, directory, log) = (at("vol.img"), at("mnt"), at("log"));
    std::fs::create_dir(&directory).unwrap();
    let _mount_point = MountPoint(directory.clone());
    run(&binary().display().to_string(), &["fs", "format", &image, "--size", "64MiB"]).ok();
    let log_to = format!("log_to={log}");
    // `run` waits for the end of both outputs: the server in the background keeps none of them.
    let options = format!("rw,noatime,nofail,x-systemd.automount,uid=12,gid=34,{log_to}");
    run(&mounting, &[&image, &directory, "-n", "-o", &options]).ok();
    std::fs::write(Path::new(&directory).join("file"), "contents").unwrap();
    let shown = run("stat", &["-c", "%u %g", &format!("{directory}/file")]).ok();
    assert_eq!(shown.trim(), "12 34");
    let listed = run("ls", &["-ln", &directory]).ok();
    assert!(listed.contains(" 12 34 "), "{listed}");
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let line = mounts.lines().find(|line| line.contains(&directory)).expect("it is mounted");
    assert!(line.contains("noatime"), "{line}");
    run(&unmounting, &[&directory]).ok();
    // The image is closed now: the next mount has nothing to replay.
    run(&mounting, &[&image, &directory, "-o", &format!("ro,{log_to}")]).ok();
    assert!(std::fs::write(Path::new(&directory).join("other"), "").is_err(), "the mount is read-only");
    let status = run(&binary().display().to_string(), &["fs", "status", &directory, "--json"]).ok();
    let status: Value = serde_json::from_str(&status).unwrap();
    assert_eq!(status["replayed_records"], 0, "{status}");
    let busy = run(&mounting, &[&image, &directory, "-o", &log_to]);
    assert_eq!(busy.code, Some(32), "{}{}", busy.out, busy.err);
    run(&unmounting, &[&directory]).ok();
    for (arguments, status, text) in [
        (vec![&*image, &directory, "-o", "rw,discard"], 1, "discard"),
        (vec![&*image], 1, "usage"),
        (vec!["missing.img", &directory], 1, "missing.img"),
        (vec![&*image, &directory, "-o", "remount,ro"], 1, "remount"),
        (vec![&*image, &directory, "-f"], 0, ""),
    ] {
        let refused = run(&mounting, &arguments);
        assert_eq!(refused.code, Some(status), "{arguments:?}: {}", refused.err);
        assert!(refused.err.contains(text), "{arguments:?}: {}", refused.err);
    }
}

/// Receives states of a service until one of them is there.
fn receive(socket: &UnixDatagram, wanted: &str) {
    let mut buffer = [0; 256];
    loop {
        let length = socket.recv(&mut buffer).unwrap_or_else(|error| panic!("{wanted}: {error}"));
        if buffer[..length] == *wanted.as_bytes() {
            return;
        }
    }
}

#[test]
fn a_service_is_ready_alive_and_stopping() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    let nbd = format!("unix:{}", folder.path().join("nbd").display());
    let environment = [format!("NOTIFY_SOCKET={}", path.display()), "WATCHDOG_USEC=100000".to_owned()];
    let mut arguments = environment.to_vec();
    let program = binary().display().to_string();
    arguments.extend([&program, "serve", "ram(1MiB)", "--nbd", &nbd, "--no-control"].map(str::to_owned));
    let mut server = Background::start("env", &arguments);
    receive(&socket, "READY=1");
    receive(&socket, "WATCHDOG=1");
    receive(&socket, "WATCHDOG=1");
    server.signal(Signal::TERM);
    receive(&socket, "STOPPING=1");
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn a_hangup_makes_the_program_open_its_log_again() {
    let folder = tempdir().unwrap();
    let (log, old) = (folder.path().join("log"), folder.path().join("log.1"));
    let socket = folder.path().join("nbd");
    let nbd = format!("unix:{}", socket.display());
    let shown = log.display().to_string();
    let arguments =
        ["serve", "ram(1MiB)", "--nbd", &nbd, "--no-control", "--log", "trace", "--log-to", &shown];
    let mut server = Background::start(&binary().display().to_string(), &arguments);
    // The server logs each connection.
    let has_messages = |_: &Background| {
        let _ended = UnixStream::connect(&socket);
        std::fs::metadata(&log).is_ok_and(|metadata| metadata.len() > 0)
    };
    server.wait_until("it has logged something", has_messages);
    std::fs::rename(&log, &old).unwrap();
    server.signal(Signal::HUP);
    server.wait_until("it has opened its log again", has_messages);
    server.signal(Signal::TERM);
    assert_eq!(server.wait().code(), Some(0));
    let refused = run(&binary().display().to_string(), &["--log-to", "/none/log", "stack", "kinds"]);
    assert_eq!(refused.code, Some(2));
    assert!(refused.err.contains("--log-to /none/log"), "{}", refused.err);
}

#[test]
fn a_passed_socket_serves_its_waiting_clients_and_stays() {
    if !is_installed("systemd-socket-activate") || !is_installed("redis-cli") {
        return skip("systemd-socket-activate or redis-cli is not installed");
    }
    let folder = tempdir().unwrap();
    let path = folder.path().join("kv.sock").display().to_string();
    let store = format!("kv(ram(size=64MiB), listen=\"unix:{path}\")");
    let program = binary().display().to_string();
    let arguments = ["--listen", &path, &program, "serve", &store, "--format", "--no-control"];
    let mut server = Background::start("systemd-socket-activate", &arguments);
    server.wait_until("systemd listens", |_| Path::new(&path).exists());
    // This connection starts the server.
    let set = run("redis-cli", &["-s", &path, "set", "greeting", "hello"]).ok();
    assert_eq!(set.trim(), "OK");
    assert_eq!(run("redis-cli", &["-s", &path, "get", "greeting"]).ok().trim(), "hello");
    server.signal(Signal::TERM);
    assert_eq!(server.wait().code(), Some(0), "{}", server.err());
    assert!(Path::new(&path).exists(), "the socket is systemd's");
}
