//! `siltstone serve` and other programs that run until they are stopped, as child processes.
#![expect(clippy::disallowed_methods, reason = "waits for real processes; nothing here runs in the runtime")]

use super::process::is_installed;
use rustix::process::{Pid, Signal, kill_process};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::Duration;
use tempfile::TempDir;

/// Time between two checks of a process.
const LOOK: Duration = Duration::from_millis(5);
/// Number of checks before a test fails: 60 seconds, more on a busy machine.
const LOOKS: u32 = 12_000;

/// Path of the server program: `SILTSTONE_BIN`, or the program that cargo builds.
///
/// # Panics
/// If it can't be built.
pub fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| match std::env::var_os("SILTSTONE_BIN") {
        Some(path) => PathBuf::from(path),
        None => build(),
    })
}

fn build() -> PathBuf {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args([
        "build",
        "--quiet",
        "--package",
        "siltstone",
        "--bin",
        "siltstone",
        "--features",
        "map-home",
        "--message-format=json",
    ]);
    let output = command.current_dir(env!("CARGO_MANIFEST_DIR")).output().expect("cargo runs");
    assert!(output.status.success(), "cargo build: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("cargo writes UTF-8");
    let messages = text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let mut programs = messages.filter_map(|message| message["executable"].as_str().map(PathBuf::from));
    programs.next_back().expect("cargo names the program that it built")
}

/// A program that runs until it is stopped. It is killed when this is dropped, or when the test's thread
/// ends.
pub struct Background {
    name: String,
    child: Child,
    folder: TempDir,
}

impl Background {
    /// Starts a program.
    ///
    /// # Panics
    /// If it can't be started.
    pub fn start<A: AsRef<str>>(program: &str, arguments: &[A]) -> Background {
        let folder = tempfile::tempdir().expect("a folder for what it says");
        let to_file = |name| Stdio::from(std::fs::File::create(folder.path().join(name)).expect("a file"));
        // With setpriv the kernel kills the program if this process dies. It stays the same process.
        let mut command = match is_installed("setpriv") {
            true => Command::new("setpriv"),
            false => Command::new("env"),
        };
        if is_installed("setpriv") {
            command.args(["--pdeathsig", "KILL"]);
        }
        command.arg(program).args(arguments.iter().map(AsRef::as_ref));
        command.stdin(Stdio::null()).stdout(to_file("out")).stderr(to_file("err"));
        let child = command.spawn().expect("setpriv or env is there");
        Background { name: program.to_owned(), child, folder }
    }

    /// Standard output so far.
    pub fn out(&self) -> String {
        self.said("out")
    }

    /// Standard error so far.
    pub fn err(&self) -> String {
        self.said("err")
    }

    fn said(&self, file: &str) -> String {
        let bytes = std::fs::read(self.folder.path().join(file)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until `is_so` returns true.
    ///
    /// # Panics
    /// If the program ends before, or it takes too long.
    #[track_caller]
    pub fn wait_until(&mut self, what: &str, mut is_so: impl FnMut(&Background) -> bool) {
        for _ in 0..LOOKS {
            if is_so(self) {
                return;
            }
            if let Some(status) = self.child.try_wait().expect("it is a child of ours") {
                panic!("{} ended ({status}) before {what}: {}{}", self.name, self.out(), self.err());
            }
            std::thread::sleep(LOOK);
        }
        panic!("{}: waited too long for: {what}: {}{}", self.name, self.out(), self.err());
    }

    /// Whether the program still runs.
    pub fn is_alive(&mut self) -> bool {
        self.child.try_wait().expect("it is a child of ours").is_none()
    }

    /// Sends a signal.
    ///
    /// # Panics
    /// If the process has ended.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("a child that was not waited for is there");
    }

    /// Stops the process where it is (SIGSTOP), as a power cut does that reaches the devices a moment later.
    ///
    /// # Panics
    /// If it ends before, or it takes too long.
    #[track_caller]
    pub fn stop(&mut self) {
        self.signal(Signal::STOP);
        let threads = format!("/proc/{}/task", self.pid());
        // The state follows the name, which is in parentheses. Each thread continues until it is scheduled
        // again, and first waits for its requests to the kernel.
        let is_stopped = |_: &Background| {
            let mut threads = std::fs::read_dir(&threads).expect("the process is there").flatten();
            threads.all(|thread| {
                let text = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
                text.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('T'))
            })
        };
        self.wait_until("stopped", is_stopped);
    }

    /// Waits for the end of the program.
    ///
    /// # Panics
    /// If it takes too long.
    #[track_caller]
    pub fn wait(&mut self) -> ExitStatus {
        for _ in 0..LOOKS {
            if let Some(status) = self.child.try_wait().expect("it is a child of ours") {
                return status;
            }
            std::thread::sleep(LOOK);
        }
        panic!("{} does not end: {}{}", self.name, self.out(), self.err());
    }

    /// Resident memory, in bytes.
    ///
    /// # Panics
    /// If the process has ended.
    pub fn resident_bytes(&self) -> u64 {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("the process is there");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a process has memory");
        let kibibytes: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number");
        kibibytes << 10
    }

    /// Number of open files and sockets.
    ///
    /// # Panics
    /// If the process has ended.
    pub fn open_files(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.pid())).expect("the process is there").count()
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        // Errors mean that it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            println!("{} said: {}{}", self.name, self.out(), self.err());
        }
    }
}

/// `siltstone serve`, ready for clients.
pub struct Server {
    /// Process of the server.
    pub process: Background,
    /// Addresses that it printed, one for each export.
    pub addresses: Vec<String>,
    /// Path of its unix socket.
    pub socket: PathBuf,
}

impl Server {
    /// Serves this stack (one line, or a file) on a unix socket in this folder.
    ///
    /// # Panics
    /// If the server isn't ready in time.
    #[track_caller]
    pub fn start(folder: &Path, stack: &str) -> Server {
        let socket = folder.join("nbd.sock");
        Self::start_with(&["serve", stack, "--nbd", &format!("unix:{}", socket.display())], socket)
    }

    /// Like [`start`](Self::start), after a server of the same name and files was killed.
    ///
    /// The kernel dismantles the ring of a killed process, and closes the files of its requests in flight
    /// (the socket, the file's lock), a moment after the process has ended: until then the new server is
    /// refused and reports that.
    ///
    /// # Panics
    /// If the server isn't ready in time.
    #[track_caller]
    pub fn restart(folder: &Path, stack: &str) -> Server {
        let socket = folder.join("nbd.sock");
        Self::restart_with(&["serve", stack, "--nbd", &format!("unix:{}", socket.display())], socket)
    }

    /// Like [`start_with`](Self::start_with), after a server of the same files was killed.
    ///
    /// # Panics
    /// If the server isn't ready in time.
    #[track_caller]
    pub fn restart_with(arguments: &[&str], socket: PathBuf) -> Server {
        let program = binary().display().to_string();
        for _ in 0..LOOKS {
            let mut process = Background::start(&program, arguments);
            while process.is_alive() && !process.out().ends_with('\n') {
                std::thread::sleep(LOOK);
            }
            if process.is_alive() || !process.err().contains("(busy)") {
                return Self::ready(process, socket);
            }
        }
        panic!("the killed server's socket and files are still in use");
    }

    /// Serves a stack in TOML that has a door on the socket `nbd.sock` in this folder.
    ///
    /// # Panics
    /// If the server isn't ready in time.
    #[track_caller]
    pub fn start_toml(folder: &Path, toml: &str) -> Server {
        let file = folder.join("stack.toml");
        std::fs::write(&file, toml).expect("the test's folder can be written");
        Self::start_with(&["serve", &file.display().to_string()], folder.join("nbd.sock"))
    }

    /// Runs the program with these arguments and waits for its addresses.
    ///
    /// # Panics
    /// If the server isn't ready in time.
    #[track_caller]
    pub fn start_with(arguments: &[&str], socket: PathBuf) -> Server {
        let program = binary().display().to_string();
        Self::ready(Background::start(&program, arguments), socket)
    }

    /// Waits for the addresses of a server that the caller has started.
    ///
    /// # Panics
    /// If the server isn't ready in time.
    #[track_caller]
    pub fn ready(mut process: Background, socket: PathBuf) -> Server {
        process.wait_until("it printed its addresses", |process| process.out().ends_with('\n'));
        let addresses = process.out().lines().map(str::to_owned).collect();
        Server { process, addresses, socket }
    }

    /// Address of the first export, as a URI.
    ///
    /// # Panics
    /// If there is none.
    pub fn uri(&self) -> &str {
        self.addresses.first().expect("a ready server has printed an address")
    }

    /// Sends SIGTERM to the server and waits until it has ended without an error.
    ///
    /// # Panics
    /// If it doesn't end, or ends with an error.
    #[track_caller]
    pub fn stop(mut self) {
        self.process.signal(Signal::TERM);
        let status = self.process.wait();
        assert!(status.success(), "after SIGTERM: {status}: {}", self.process.err());
        assert!(!self.socket.exists(), "the socket's file is still there");
    }
}
