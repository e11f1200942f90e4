//! `siltstone trace` of a served stack with real clients.

use crate::common::{Ran, command, run, signal, wait_for};
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A program that is killed when a failed test drops it.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    fn end(mut self) -> Ran {
        let status = self.0.wait().unwrap();
        let mut ran = Ran { code: status.code(), stdout: String::new(), stderr: String::new() };
        if let Some(mut stdout) = self.0.stdout.take() {
            stdout.read_to_string(&mut ran.stdout).unwrap();
        }
        self.0.stderr.take().unwrap().read_to_string(&mut ran.stderr).unwrap();
        ran
    }
}

/// Serves a stack on a file with a second shard, and a control socket in the folder.
fn serve(folder: &Path) -> Running {
    let text = "[stack]\nshards = 2\n[device.disk]\nkind = \"file\"\npath = \"disk.img\"\nsize = \"4MiB\"\n\
                [device.faulty]\nkind = \"fault\"\non = \"disk\"\nrules = [\"write error=EIO range=2MiB..3MiB\"]\n\
                [door.vol]\nkind = \"nbd\"\ndevice = \"faulty\"\nsocket = \"vol.sock\"\n";
    std::fs::write(folder.join("s.toml"), text).unwrap();
    let mut server =
        command(folder, &["serve", "s.toml", "--control", "c.sock", "--nbd", "127.0.0.1:0", "--json"])
            .spawn()
            .unwrap();
    wait_for(server.stdout.as_mut().unwrap(), "addresses");
    Running(server)
}

/// Begins a trace, and waits until calls are traced.
fn trace(folder: &Path, arguments: &[&str]) -> (Running, BufReader<std::process::ChildStdout>) {
    let mut tracing =
        command(folder, &[&["trace", "s.toml", "--control", "c.sock"], arguments].concat()).spawn().unwrap();
    let mut lines = BufReader::new(tracing.stdout.take().unwrap());
    let mut heading = String::new();
    lines.read_line(&mut heading).unwrap();
    assert!(heading.starts_with("TIME "), "{heading}");
    (Running(tracing), lines)
}

/// Runs qemu-io on the export; `false` if it isn't installed.
fn io(folder: &Path, words: &[&str]) -> bool {
    let commands = words.iter().flat_map(|word| ["-c", word]);
    let arguments = ["-f", "raw", "-t", "writeback"]
        .into_iter()
        .chain(commands)
        .chain(["nbd+unix:///faulty?socket=vol.sock"]);
    let ran = Command::new("qemu-io").args(arguments).current_dir(folder).stdin(Stdio::null()).output();
    let Ok(ran) = ran else {
        println!("SKIPPED: qemu-io is not installed");
        return false;
    };
    let said = String::from_utf8_lossy(&[ran.stdout, ran.stderr].concat()).into_owned();
    assert!(!said.contains("can't open"), "{said}");
    true
}

#[test]
fn requests_are_lines_with_their_client() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let server = serve(folder);
    let (tracing, mut lines) = trace(folder, &["--call", "read,write", "--count", "3"]);
    if !io(folder, &["write 64k 8k", "read 128k 4k", "write 2M 4k"]) {
        return;
    }
    let mut text = String::new();
    lines.read_to_string(&mut text).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 3, "{text}");
    let expected = [
        ("write", "block 16 ", "8 KiB", "-"),
        ("read", "block 32 ", "4 KiB", "-"),
        ("write", "block 512 ", "4 KiB", "Input/output error (os error 5)"),
    ];
    for (line, (call, position, bytes, error)) in lines.iter().zip(expected) {
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!((words[1], words[2], words[4]), ("vol", "process", "(qemu-io)"), "{line}");
        assert_eq!((words[5], words[6]), ("faulty", call), "{line}");
        assert!(line.contains(position) && line.contains(bytes) && line.ends_with(error), "{line}");
    }
    let ended = tracing.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stderr.contains("3 calls\n") && ended.stderr.contains("door \"vol\"  write"), "{ended:?}");

    // Another trace, of the calls below, ends with a signal.
    let (tracing, mut lines) = trace(folder, &["--part", "disk", "--call", "read"]);
    let second = run(folder, &["trace", "s.toml", "--control", "c.sock"]);
    assert_eq!(second.code, Some(1), "{second:?}");
    assert!(second.stderr.contains("traced already; expected one trace at a time"), "{second:?}");
    io(folder, &["read 0 4k"]);
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    let words: Vec<&str> = line.split_whitespace().collect();
    assert_eq!((words[1], words[2], words[5]), ("-", "process", "disk"), "{line}");
    signal(&tracing.0, "INT");
    let ended = tracing.end();
    assert!(ended.code == Some(0) && ended.stderr.contains("call"), "{ended:?}");

    // The reader of the lines ends.
    let (tracing, lines) = trace(folder, &[]);
    drop(lines);
    let ended = tracing.end();
    assert!(ended.code == Some(0) && ended.stderr.contains("0 calls"), "{ended:?}");

    // The server ends.
    let (tracing, _lines) = trace(folder, &["--slow", "1h"]);
    signal(&server.0, "TERM");
    let ended = tracing.end();
    assert!(ended.code == Some(1) && ended.stderr.contains("s.toml: its server has ended"), "{ended:?}");
    assert_eq!(server.end().code, Some(0));
}

#[test]
fn a_peer_of_tcp_is_an_address() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let text = "[device.disk]\nkind = \"ram\"\nsize = \"1MiB\"\n";
    std::fs::write(folder.join("s.toml"), text).unwrap();
    let mut server = Running(
        command(folder, &["serve", "s.toml", "--control", "c.sock", "--nbd", "127.0.0.1:0", "--json"])
            .spawn()
            .unwrap(),
    );
    let said = wait_for(server.0.stdout.as_mut().unwrap(), "addresses");
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    let arguments =
        ["trace", "s.toml", "--control", "c.sock", "--json", "--parts", "--call", "read", "--count", "9"];
    let mut tracing = Running(command(folder, &arguments).spawn().unwrap());
    let uri = said["addresses"][0].as_str().unwrap();
    // Reads until enough of them were traced.
    loop {
        let read = Command::new("qemu-io").args(["-f", "raw", "-c", "read 0 4k", uri]).output();
        if read.is_err() {
            return println!("SKIPPED: qemu-io is not installed");
        }
        if tracing.0.try_wait().unwrap().is_some() {
            break;
        }
    }
    let ended = tracing.end();
    let lines = ended.stdout.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let lines: Vec<_> = lines.collect();
    assert_eq!(lines.len(), 9, "{ended:?}");
    for line in &lines {
        assert!(line["client"].as_str().unwrap().starts_with("127.0.0.1:"), "{line}");
        assert_eq!((&line["part"], &line["call"]), (&"disk".into(), &"read".into()));
    }
    // Those of the door and of the part, in the order of their ends; each answer reads two clocks.
    let number = |line: &serde_json::Value, key: &str| line[key].as_u64().unwrap();
    let milliseconds = |line| (number(line, "time_ns") + number(line, "took_ns")) >> 20;
    assert!(lines.is_sorted_by(|one, next| milliseconds(one) <= milliseconds(next) + 1), "{ended:?}");
    assert!([true, false].map(|is| lines.iter().any(|line| line["door"].is_null() == is)) == [true; 2]);
}

/// Records of the log have no client, since they may have commands of several.
#[test]
fn commands_of_a_store_are_calls_to_its_zones() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let text = "[device.mem]\nkind = \"ram\"\nsize = \"256MiB\"\n\
                [door.store]\nkind = \"kv\"\non = \"mem\"\nlisten = \"unix:kv.sock\"\n";
    std::fs::write(folder.join("s.toml"), text).unwrap();
    let arguments = ["serve", "s.toml", "--format", "--control", "c.sock", "--json"];
    let mut server = Running(command(folder, &arguments).spawn().unwrap());
    wait_for(server.0.stdout.as_mut().unwrap(), "addresses");
    let (tracing, mut lines) =
        trace(folder, &["--door", "store", "--call", "write,write_fua", "--count", "1"]);
    let set =
        Command::new("redis-cli").args(["-s", "kv.sock", "set", "key", "value"]).current_dir(folder).output();
    let Ok(set) = set else { return println!("SKIPPED: redis-cli is not installed") };
    assert_eq!(String::from_utf8_lossy(&set.stdout).trim(), "OK");
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    let words: Vec<&str> = line.split_whitespace().collect();
    assert_eq!(words[1..4], ["store", "-", "mem"], "{line}");
    assert_eq!(tracing.end().code, Some(0));
}

#[test]
fn what_is_not_served_is_not_traced() {
    let folder = tempfile::tempdir().unwrap();
    let ran = run(folder.path(), &["trace", "ram(1MiB)"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(
        ran.stderr.contains("ram(1MiB): not served; expected a stack that siltstone serve serves"),
        "{ran:?}"
    );
}
