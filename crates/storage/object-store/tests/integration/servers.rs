//! Real stores: VersityGW, which `scripts/test` installs if Go is installed, and moto, a package of Python.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tempfile::TempDir;

/// Number of attempts of a check, and the time between two.
const TRIES: u32 = 1500;
const BETWEEN: Duration = Duration::from_millis(20);

/// A program that serves objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program {
    VersityGw,
    Moto,
}

/// A running store on loopback with an empty bucket `vol`.
pub struct Server {
    process: Child,
    program: PathBuf,
    kind: Program,
    pub port: u16,
    /// Folder of the store.
    #[allow(dead_code, reason = "only tests that alter objects use it")]
    pub folder: TempDir,
}

/// Path of a program, in `PATH` or in the folder that `scripts/test` installs into.
fn find(name: &str) -> Option<PathBuf> {
    let mut folders: Vec<PathBuf> =
        std::env::var_os("PATH").map(|path| std::env::split_paths(&path).collect()).unwrap_or_default();
    folders.extend(std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache/siltstone-store")));
    folders.iter().map(|folder| folder.join(name)).find(|path| path.is_file())
}

/// Returns an unused port, different for each test of this process and outside of the range of ephemeral
/// ports.
fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let number = std::process::id().wrapping_mul(64) + NEXT.fetch_add(1, Ordering::Relaxed);
        let port = 10_000 + (number % 20_000) as u16;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "a test of real servers, before and beside the runtime")]
fn pause() {
    std::thread::sleep(BETWEEN);
}

impl Server {
    /// Starts a store; `None` if the test is skipped.
    pub fn start(program: Program) -> Option<Server> {
        let name = match program {
            Program::VersityGw => "versitygw",
            Program::Moto => "moto_server",
        };
        let skipped = |reason: &str| {
            let thread = std::thread::current();
            println!("SKIPPED: {}: {name} {reason}", thread.name().unwrap_or("a test"));
            None
        };
        let Some(path) = find(name) else { return skipped("is not installed") };
        let (folder, port) = (tempfile::tempdir().unwrap(), free_port());
        if program == Program::VersityGw {
            std::fs::create_dir(folder.path().join("vol")).unwrap();
        }
        let process = Server::spawn(program, &path, port, &folder);
        let mut server = Server { process, program: path, kind: program, port, folder };
        if !server.is_ready() {
            return skipped("ends at once; expected a folder for temporary files with extended attributes");
        }
        if program == Program::Moto {
            server.ask("PUT /vol");
        }
        Some(server)
    }

    fn spawn(kind: Program, program: &Path, port: u16, folder: &TempDir) -> Child {
        let mut command = Command::new(program);
        match kind {
            Program::VersityGw => {
                let address = format!("127.0.0.1:{port}");
                command.args(["--keep-alive", "--quiet", "--access", "key", "--secret", "hidden"]);
                command.args(["--port", &address, "posix"]).arg(folder.path());
            }
            Program::Moto => {
                command.args(["-H", "127.0.0.1", "-p", &port.to_string()]);
            }
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().unwrap()
    }

    /// Stops the server where it is, or lets it continue: SIGSTOP and SIGCONT.
    #[allow(dead_code, reason = "for tests of outages in another crate")]
    pub fn freeze(&self, is_frozen: bool) {
        let signal = if is_frozen { "-STOP" } else { "-CONT" };
        let status = Command::new("kill").args([signal, &self.process.id().to_string()]).status();
        assert!(status.unwrap().success(), "the store has ended");
    }

    /// Ends the server by SIGKILL; VersityGW keeps its objects.
    #[allow(dead_code, reason = "for tests of outages in another crate")]
    pub fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Starts the server again, with the same objects and address.
    #[allow(dead_code, reason = "for tests of outages in another crate")]
    pub fn restart(&mut self) {
        self.process = Server::spawn(self.kind, &self.program, self.port, &self.folder);
        assert!(self.is_ready(), "the store ends");
    }

    /// Waits until the server listens; false if it has ended.
    fn is_ready(&mut self) -> bool {
        for _ in 0..TRIES {
            if TcpStream::connect(("127.0.0.1", self.port)).is_ok() {
                return true;
            }
            if self.process.try_wait().unwrap().is_some() {
                return false;
            }
            pause();
        }
        panic!("a server that listens: not within {:?}", BETWEEN * TRIES);
    }

    /// Sends an unsigned request without a body.
    pub fn ask(&self, request: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        write!(stream, "{request} HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
