//! Real servers, from Debian's package redis-tools: redis-server is another name of redis-check-rdb.

use resp::Reply;
use runtime::net::Address;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

const PROGRAM: &str = "/usr/bin/redis-check-rdb";
/// Number of attempts of a check, and the time between two.
const TRIES: u32 = 1500;
const BETWEEN: Duration = Duration::from_millis(10);

/// A running server on loopback, without persistence.
pub struct Server {
    process: Child,
    folder: PathBuf,
    arguments: Vec<String>,
    pub port: u16,
    pub bus_port: u16,
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

/// Waits until the condition holds.
pub fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..TRIES {
        if is_so() {
            return;
        }
        pause();
    }
    panic!("{what}: not within {:?}", BETWEEN * TRIES);
}

impl Server {
    /// Starts a server; `None` if the test is skipped.
    pub fn start(folder: &Path, arguments: &[&str]) -> Option<Server> {
        if !Path::new(PROGRAM).is_file() {
            let thread = std::thread::current();
            println!("SKIPPED: {}: {PROGRAM} is not installed", thread.name().unwrap_or("a test"));
            return None;
        }
        let (port, bus_port) = (free_port(), free_port());
        let arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        let process = spawn(folder, port, bus_port, &arguments);
        let server = Server { process, folder: folder.to_owned(), arguments, port, bus_port };
        server.wait();
        Some(server)
    }

    pub fn address(&self) -> Address {
        format!("127.0.0.1:{}", self.port).parse().unwrap()
    }

    fn wait(&self) {
        wait_for("a server that listens", || TcpStream::connect(("127.0.0.1", self.port)).is_ok());
    }

    /// Sends a command and returns its reply: the text of a bulk string, else the raw reply.
    pub fn ask(&self, words: &[&str]) -> String {
        ask(self.port, words)
    }

    /// Field of INFO or CLUSTER INFO.
    pub fn field(&self, command: &[&str], name: &str) -> String {
        let text = self.ask(command);
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap_or_default().trim_end().to_owned()
    }

    /// Kills the server.
    pub fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Restarts the server, empty.
    pub fn start_again(&mut self) {
        self.process = spawn(&self.folder, self.port, self.bus_port, &self.arguments);
        self.wait();
    }

    /// Sends a signal, such as `STOP`.
    pub fn signal(&self, name: &str) {
        let arguments = [&format!("-{name}"), &self.process.id().to_string()];
        assert!(Command::new("kill").args(arguments).status().unwrap().success());
    }
}

fn spawn(folder: &Path, port: u16, bus_port: u16, arguments: &Vec<String>) -> Child {
    let own = folder.join(port.to_string());
    std::fs::create_dir_all(&own).unwrap();
    let (port, bus_port) = (port.to_string(), bus_port.to_string());
    let mut command = Command::new(PROGRAM);
    command.arg0("redis-server").args([
        "--bind",
        "127.0.0.1",
        "--save",
        "",
        "--port",
        &port,
        "--cluster-port",
        &bus_port,
    ]);
    command.args(arguments).current_dir(own).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().unwrap()
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Sends a command to the server at a port, as [`Server::ask`] does.
pub fn ask(port: u16, words: &[&str]) -> String {
    let mut bytes = Vec::new();
    let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
    resp::put_command(&mut bytes, &words);
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.write_all(&bytes).unwrap();
    let mut received = Vec::new();
    let mut piece = [0; 16384];
    loop {
        if let Some((reply, length)) = resp::parse(&received, 1 << 24).unwrap() {
            return match reply {
                Reply::Bulk(Some(text)) => String::from_utf8(text).unwrap(),
                _ => String::from_utf8_lossy(&received[..length]).trim_end().to_owned(),
            };
        }
        let count = stream.read(&mut piece).unwrap();
        assert!(count > 0, "the server closes");
        received.extend_from_slice(&piece[..count]);
    }
}

/// A cluster: its masters, followed by one replica of each.
pub struct Cluster {
    pub servers: Vec<Server>,
    pub masters: usize,
    /// Identifiers of the servers.
    pub ids: Vec<String>,
}

impl Cluster {
    /// Starts a cluster and waits until it works; `None` if the test is skipped. `node_timeout` is the time
    /// in milliseconds after which a silent master fails.
    pub fn start(folder: &Path, masters: usize, has_replicas: bool, node_timeout: &str) -> Option<Cluster> {
        let arguments = [
            "--cluster-enabled",
            "yes",
            "--cluster-node-timeout",
            node_timeout,
            "--cluster-replica-validity-factor",
            "0",
            "--repl-diskless-sync-delay",
            "0",
            "--repl-ping-replica-period",
            "1",
        ];
        let count = if has_replicas { 2 * masters } else { masters };
        let servers: Option<Vec<Server>> = (0..count).map(|_| Server::start(folder, &arguments)).collect();
        let servers = servers?;
        let ids: Vec<String> = servers.iter().map(|server| server.ask(&["CLUSTER", "MYID"])).collect();
        let border = |number: usize| number * 16384 / masters;
        for (number, server) in servers.iter().enumerate() {
            assert_eq!(server.ask(&["CLUSTER", "SET-CONFIG-EPOCH", &(number + 1).to_string()]), "+OK");
            if number < masters {
                let (first, last) = (border(number).to_string(), (border(number + 1) - 1).to_string());
                assert_eq!(server.ask(&["CLUSTER", "ADDSLOTSRANGE", &first, &last]), "+OK");
            }
            let (port, bus_port) = (server.port.to_string(), server.bus_port.to_string());
            assert_eq!(servers[0].ask(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus_port]), "+OK");
        }
        let info = |server: &Server, name| server.field(&["CLUSTER", "INFO"], name);
        wait_for("servers that know each other", || {
            servers.iter().all(|server| info(server, "cluster_known_nodes") == count.to_string())
        });
        for number in masters..count {
            wait_for("a replica", || {
                servers[number].ask(&["CLUSTER", "REPLICATE", &ids[number - masters]]) == "+OK"
            });
        }
        wait_for("a cluster that works", || {
            servers.iter().enumerate().all(|(number, server)| {
                let is_linked = || server.field(&["INFO", "replication"], "master_link_status") == "up";
                info(server, "cluster_state") == "ok" && (number < masters || is_linked())
            })
        });
        Some(Cluster { servers, masters, ids })
    }

    pub fn addresses(&self) -> Vec<Address> {
        self.servers[..self.masters].iter().map(Server::address).collect()
    }
}
