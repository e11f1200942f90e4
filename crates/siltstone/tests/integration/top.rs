//! `siltstone top` at real servers: as lines, and on a terminal that script(1) makes.

use crate::common::{Ran, in_own_run, isolated, wait_for};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

/// Folder of a user, with the folder for sockets.
struct User {
    folder: tempfile::TempDir,
}

/// Process, killed when dropped.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl User {
    fn new() -> User {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("run")).unwrap();
        User { folder }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = isolated(self.folder.path(), arguments);
        command.env("XDG_RUNTIME_DIR", self.folder.path().join("run"));
        command
    }

    /// Starts a server at the socket `NAME.sock`, and returns its control socket as well.
    fn serve(&self, stack: &str, name: &str) -> (Process, PathBuf) {
        let address = format!("unix:{name}.sock");
        let mut child = self.command(&["serve", stack, "--nbd", &address, "--json"]).spawn().unwrap();
        let said = wait_for(child.stdout.take().unwrap(), "addresses");
        let said: serde_json::Value = serde_json::from_str(&said).unwrap();
        (Process(child), said["control"].as_str().unwrap().into())
    }

    fn top(&self, arguments: &[&str]) -> Ran {
        let output = self.command(&[&["top"], arguments].concat()).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Ran { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }

    /// Runs `siltstone top` in a terminal of 80 columns, with its modes before and after it.
    fn terminal(&self, arguments: &str) -> Terminal {
        let program = env!("CARGO_BIN_EXE_siltstone");
        let line = format!(
            "stty cols 80 rows 24; stty -a; {program} top {arguments}; echo \"status=$?.\"; stty -a; echo end of the terminal"
        );
        let mut command = in_own_run("script");
        command.args(["-q", "-c", &line, "/dev/null"]).current_dir(self.folder.path());
        command.env("XDG_RUNTIME_DIR", self.folder.path().join("run")).env("TERM", "xterm");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let output = child.stdout.take().unwrap();
        Terminal { child: Process(child), output, seen: Vec::new() }
    }
}

struct Terminal {
    child: Process,
    output: ChildStdout,
    seen: Vec<u8>,
}

impl Terminal {
    /// Reads until there is this text.
    fn wait_for(&mut self, text: &str) {
        let mut piece = [0; 4096];
        while !self.seen().contains(text) {
            let count = self.output.read(&mut piece).unwrap();
            assert!(count > 0, "no {text:?} in {}", self.seen());
            self.seen.extend_from_slice(&piece[..count]);
        }
    }

    fn seen(&self) -> String {
        String::from_utf8_lossy(&self.seen).into_owned()
    }

    fn keys(&mut self, keys: &[u8]) {
        self.child.0.stdin.as_mut().unwrap().write_all(keys).unwrap();
    }

    /// Checks that the terminal is left as it was, and returns the exit status.
    fn end(mut self) -> String {
        self.wait_for("end of the terminal");
        let seen = self.seen();
        let (inside, after) = seen.split_once("\u{1b}[?1049l").expect("it leaves the second screen");
        assert!(
            inside.contains("\u{1b}[?1049h") && seen.rfind("\u{1b}[?25h") > seen.rfind("\u{1b}[?25l"),
            "{seen:?}"
        );
        let modes = |text: &str| {
            let start = text.find("speed").unwrap();
            text[start..]
                .lines()
                .take_while(|line| !line.contains('\u{1b}') && !line.contains("end of"))
                .map(str::trim_end)
                .collect::<String>()
        };
        let first = &seen[..seen.find("\u{1b}[?1049h").unwrap()];
        assert_eq!(modes(first), modes(after), "the modes of the terminal");
        let status = after.split_once("status=").unwrap().1;
        status[..status.find('.').unwrap()].to_owned()
    }
}

fn has_script() -> bool {
    let found = Command::new("script").arg("--version").output().is_ok();
    if !found {
        println!("SKIPPED: script is not installed");
    }
    found
}

#[test]
fn lines_have_the_rates_of_a_client() {
    let user = User::new();
    let (_server, control) = user.serve("stats(ram(64MiB))", "vol");
    let job = "[reads]\nrw=randread\nbs=4k\niodepth=4\nsize=16m\ntime_based\nruntime=600\n";
    std::fs::write(user.folder.path().join("load.fio"), job).unwrap();
    let load = ["bench", "load.fio", "--on", "nbd-client(unix:vol.sock)", "--json"];
    let _load = Process(user.command(&load).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    let mut top = user.command(&["top", "stats(ram(64MiB))", "--json", "-d", "200ms"]);
    let mut top = Process(top.spawn().unwrap());
    // The load needs some time to begin.
    let lines = BufReader::new(top.0.stdout.take().unwrap()).lines();
    let reads =
        |line: &serde_json::Value, row: usize| line["rows"][row]["reads_per_second"].as_f64().unwrap();
    let parsed = lines.map(|line| serde_json::from_str::<serde_json::Value>(&line.unwrap()).unwrap());
    let line = parsed.take(1000).find(|line| reads(line, 0) > 0.0 && reads(line, 2) > 0.0).expect("reads");
    let rows = line["rows"].as_array().unwrap();
    let name = |row: usize| (rows[row]["kind"].as_str().unwrap(), rows[row]["depth"].as_u64().unwrap());
    assert_eq!((rows.len(), name(0), name(1), name(2)), (3, ("nbd", 0), ("stats", 1), ("ram", 2)), "{line}");
    for row in rows {
        let bytes = row["read_bytes_per_second"].as_f64().unwrap();
        assert!((bytes - 4096.0 * row["reads_per_second"].as_f64().unwrap()).abs() < 1.0, "{row}");
        assert!(row["p50_ns"].as_u64() <= row["p99_ns"].as_u64() && row["writes_per_second"] == 0.0, "{row}");
    }
    // Tables, and a reader that has enough.
    let ran = user.top(&["--control", control.to_str().unwrap(), "-n", "2", "-d", "100ms"]);
    assert_eq!((ran.code, ran.stdout.matches("rMiB/s").count()), (Some(0), 2), "{ran:?}");
    let mut piped = Process(user.command(&["top", "--batch", "-d", "100ms"]).spawn().unwrap());
    drop(piped.0.stdout.take());
    assert_eq!(piped.0.wait().unwrap().code(), Some(0));
}

#[test]
fn without_a_server_or_a_terminal_it_says_what_to_do() {
    let user = User::new();
    let code_and = |arguments: &[&str], expected: &str| {
        let ran = user.top(arguments);
        assert!(ran.stderr.contains(expected) && ran.stdout.is_empty(), "{arguments:?}: {ran:?}");
        ran.code
    };
    assert_eq!(code_and(&[], "--batch, --once or --json"), Some(2));
    assert_eq!(code_and(&["ram(1MiB)", "--once"], "not served"), Some(1));
    assert_eq!(code_and(&["--control", "none.control", "--once"], "no server listens there"), Some(1));
    assert_eq!(code_and(&["--control", "/dev/null", "--once"], "/dev/null: it isn't a socket"), Some(1));
    assert_eq!(code_and(&["--once", "-d", "50ms"], "expected 100ms to 1h"), Some(2));
    let (one, path) = user.serve("ram(1MiB)", "one");
    // An NBD server greets its client, and waits for an answer.
    assert_eq!(code_and(&["--control", "one.sock", "--once"], "isn't a control socket"), Some(1));
    let (_two, _) = user.serve("ram(2MiB)", "two");
    let ran = user.top(&["--once"]);
    assert!(ran.code == Some(2) && ran.stderr.contains(path.to_str().unwrap()), "{ran:?}");
    assert!(ran.stderr.contains("ram(2MiB), process "), "{ran:?}");
    // A killed server leaves its socket; the other one is the only one then.
    drop(one);
    let ran = user.top(&["--once", "-d", "100ms"]);
    assert!(path.exists() && ran.code == Some(0) && ran.stdout.starts_with("ram(2MiB)"), "{ran:?}");
}

#[test]
fn keys_and_the_end_of_the_server_leave_the_terminal_as_it_was() {
    if !has_script() {
        return;
    }
    let user = User::new();
    let (server, _) = user.serve("stats(ram(1MiB))", "vol");
    let mut terminal = user.terminal("-d 100ms");
    terminal.wait_for("rMiB/s");
    terminal.keys(b"h");
    terminal.wait_for("Ctrl-Z");
    terminal.keys(b"qq");
    assert_eq!(terminal.end(), "0");
    let mut terminal = user.terminal("-d 100ms");
    terminal.wait_for("rMiB/s");
    terminal.keys(b"\x03");
    assert_eq!(terminal.end(), "130");
    let mut terminal = user.terminal("-d 100ms");
    terminal.wait_for("rMiB/s");
    drop(server);
    terminal.wait_for("the server has ended");
    assert_eq!(terminal.end(), "1");
}

#[test]
fn one_of_several_servers_is_chosen() {
    if !has_script() {
        return;
    }
    let user = User::new();
    let (_one, _) = user.serve("ram(1MiB)", "one");
    let (_two, _) = user.serve("ram(2MiB)", "two");
    let mut terminal = user.terminal("");
    terminal.wait_for("choose a server");
    terminal.keys(b"j\r");
    terminal.wait_for("two.sock");
    assert!(!terminal.seen().contains("one.sock"), "{}", terminal.seen());
    terminal.keys(b"q");
    assert_eq!(terminal.end(), "0");
}

/// A stopped server neither blocks keys nor ends the program.
#[test]
fn a_stopped_server_is_told() {
    if !has_script() {
        return;
    }
    let user = User::new();
    let (server, _) = user.serve("ram(1MiB)", "vol");
    let mut terminal = user.terminal("-d 100ms");
    terminal.wait_for("rMiB/s");
    crate::common::signal(&server.0, "STOP");
    terminal.wait_for("no answer for");
    terminal.keys(b"q");
    assert_eq!(terminal.end(), "0");
    assert!(Path::new("/proc").join(server.0.id().to_string()).exists());
}
