//! Comparison with redis itself, and tests with its clients. They are in Debian's package redis-tools:
//! redis-server is another name of redis-check-rdb.

use super::client::{LAST, served, shown};
use super::replies::{SAME, SAME_RESP3, VIOLATIONS};
use redis_door::server::ServerConfig;
use runtime::net::Address;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Returns the path of a program of redis; prints that the test is skipped if it is missing.
fn program(name: &str) -> Option<PathBuf> {
    let path = Path::new("/usr/bin").join(name);
    if path.is_file() {
        return Some(path);
    }
    let thread = std::thread::current();
    println!("SKIPPED: {}: {name} is not installed", thread.name().unwrap_or("a test"));
    None
}

/// A running redis-server.
struct Redis {
    process: Child,
    socket: PathBuf,
}

impl Redis {
    fn start(folder: &Path) -> Option<Redis> {
        let socket = folder.join("redis.sock");
        let mut command = Command::new(program("redis-check-rdb")?);
        command.arg0("redis-server").args(["--port", "0", "--save", "", "--unixsocket"]).arg(&socket);
        let process =
            command.current_dir(folder).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        Some(Redis { process, socket })
    }

    /// Waits until redis accepts connections, and connects.
    async fn connect(&self) -> UnixStream {
        for _ in 0..1000 {
            if let Ok(stream) = UnixStream::connect(&self.socket) {
                stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
                return stream;
            }
            runtime::sleep(Duration::from_millis(10)).await;
        }
        panic!("redis-server doesn't start");
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Sends commands to redis; returns the replies up to that of the last command.
fn ask(stream: &mut UnixStream, bytes: &[u8]) -> Vec<u8> {
    stream.write_all(&[bytes, LAST.0].concat()).unwrap();
    let mut replies = Vec::new();
    let mut piece = [0; 4096];
    while !replies.ends_with(LAST.1) {
        let count = stream.read(&mut piece).unwrap();
        assert!(count > 0, "redis closes after {}", String::from_utf8_lossy(&replies));
        replies.extend(&piece[..count]);
    }
    replies.truncate(replies.len() - LAST.1.len());
    replies
}

#[test]
fn redis_gives_the_expected_replies() {
    let folder = tempfile::tempdir().unwrap();
    let Some(redis) = Redis::start(folder.path()) else { return };
    let test = || async move {
        let mut stream = redis.connect().await;
        // The order of KEYS is undefined in redis.
        for (line, reply) in SAME.iter().filter(|(line, _)| !line.starts_with("KEYS [")) {
            assert_eq!(shown(&ask(&mut stream, format!("{line}\r\n").as_bytes())), *reply, "{line}");
        }
        ask(&mut stream, b"HELLO 3\r\n");
        for (line, reply) in SAME_RESP3 {
            assert_eq!(shown(&ask(&mut stream, format!("{line}\r\n").as_bytes())), *reply, "{line}");
        }
        for (bytes, reply) in VIOLATIONS {
            let mut stream = redis.connect().await;
            stream.write_all(bytes.as_bytes()).unwrap();
            let mut replies = Vec::new();
            stream.read_to_end(&mut replies).unwrap();
            assert_eq!(shown(&replies), *reply, "{bytes:?}");
        }
    };
    runtime::run(runtime::Config::default(), test).unwrap();
}

/// DBSIZE is missing: redis counts expired keys until it removes them.
const COMMANDS: &[&str] = &[
    "GET k",
    "SET k v",
    "SET k n",
    "SET k v o",
    "SET k v o o",
    "SETNX k v",
    "GETDEL k",
    "GETEX k",
    "GETEX k o",
    "DEL k",
    "DEL k k k",
    "EXISTS k k",
    "TTL k",
    "PERSIST k",
    "STRLEN k",
    "APPEND k v",
    "INCR k",
    "DECR k",
    "INCRBY k n",
    "DECRBY k n",
    "MGET k k",
    "MSET k v k n",
    "MSETNX k v k v",
    "TYPE k",
    "o k",
    "PING v",
    "UNLINK k",
    "SET k",
    "MSET k v k",
];
/// Relative times; only the rounded TTL reads them.
const RELATIVE: &[&str] = &[
    "SET k v r t",
    "SET k v r t o",
    "SETEX k t v",
    "PSETEX k t v",
    "GETEX k r t",
    "EXPIRE k t",
    "PEXPIRE k t",
];
/// Absolute times, which can be compared.
const ABSOLUTE: &[&str] = &[
    "SET k v a t",
    "SET k v o a t",
    "GETEX k a t",
    "EXPIREAT k t",
    "PEXPIREAT k t",
    "EXPIREAT k t c",
    "PEXPIREAT k t c",
    "PEXPIREAT k t c c",
    "EXPIRETIME k",
    "PEXPIRETIME k",
];

/// A random command, usually a valid one, on few keys.
fn draw(random: &mut runtime::Random, times: &[&'static str]) -> String {
    let mut pick = |list: &[&'static str]| list[random.below(list.len() as u64) as usize];
    let commands = pick(&["other", "other", "times"]);
    let words = pick(if commands == "times" { times } else { COMMANDS }).split(' ').map(|word| match word {
        "k" => pick(&["a", "b", "c", "d"]),
        "v" => pick(&["x", "12", "\"\"", "'two words'"]),
        "n" => pick(&[
            "0",
            "1",
            "-1",
            "17",
            "9223372036854775807",
            "-9223372036854775808",
            "01",
            "x",
            "9999999999999999999",
        ]),
        "t" => pick(&[
            "5000000",
            "100000000",
            "33177117420",
            "33177117420500",
            "0",
            "-1",
            "x",
            "9223372036854775807",
        ]),
        "o" => pick(&["NX", "XX", "GET", "KEEPTTL", "EX", "pxat", "PERSIST", "0"]),
        "r" => pick(&["EX", "PX"]),
        "a" => pick(&["exat", "pxat"]),
        "c" => pick(&["NX", "XX", "GT", "LT", "x"]),
        word => word,
    });
    words.collect::<Vec<_>>().join(" ")
}

#[test]
fn random_commands_are_answered_as_redis_answers_them() {
    let folder = tempfile::tempdir().unwrap();
    let Some(redis) = Redis::start(folder.path()) else { return };
    let seed = std::env::var("SILTSTONE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let test = move || async move {
        let mut stream = redis.connect().await;
        let served = served(ServerConfig::new("127.0.0.1:0".parse().unwrap())).await;
        let client = served.client().await;
        let mut random = runtime::Random::new(seed);
        for round in 0..300 {
            let times = if round % 2 == 0 { RELATIVE } else { ABSOLUTE };
            let lines: Vec<String> = (0..100).map(|_| draw(&mut random, times)).collect();
            let bytes = format!("FLUSHALL\r\n{}\r\n", lines.join("\r\n"));
            let mut both = (Vec::new(), Vec::new());
            // The remaining time may differ if a second ends between the two; only a persistent difference is
            // an error.
            for _ in 0..3 {
                both = (client.ask(bytes.as_bytes()).await, ask(&mut stream, bytes.as_bytes()));
                if both.0 == both.1 {
                    break;
                }
            }
            let (ours, theirs) = both;
            if ours != theirs {
                let (ours, theirs) = (shown(&ours), shown(&theirs));
                panic!("seed {seed}, round {round}: {lines:#?}\nours:   {ours}\nredis's: {theirs}");
            }
        }
        served.stop().await;
    };
    runtime::run(runtime::Config::default(), test).unwrap();
}

/// Runs a program with these arguments against a server of a store, and returns its output.
fn run_client(name: &'static str, arguments: &'static [&'static str]) -> Option<String> {
    let program = program(name)?;
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("kv.sock");
    let test = move || async move {
        let served = served(ServerConfig::new(Address::Unix(socket.clone()))).await;
        let running = runtime::blocking(move || {
            let mut command = Command::new("timeout");
            command.args(["--kill-after=5", "100"]).arg(program).arg("-s").arg(socket).args(arguments);
            command.stdin(Stdio::null()).output().unwrap()
        });
        let output = running.await;
        served.stop().await;
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text).into_owned();
        assert!(output.status.success(), "{name} {arguments:?}: {text}");
        text
    };
    Some(runtime::run(runtime::Config::default(), test).unwrap())
}

#[test]
fn redis_cli_sets_reads_and_scans() {
    for (arguments, expected) in [
        (&["set", "a", "1"][..], "OK\n"),
        (&["-3", "get", "a"], "\n"),
        (&["-3", "config", "get", "maxmemory"], "maxmemory 0\n"),
        (&["--scan"], ""),
        (&["incr", "n"], "1\n"),
        (&["get"], "ERR wrong number of arguments for 'get' command\n\n"),
    ] {
        let Some(text) = run_client("redis-cli", arguments) else { return };
        assert_eq!(text, expected, "{arguments:?}");
    }
}

#[test]
fn redis_benchmark_runs_with_pipelines() {
    const COUNT: &str = "20000";
    for protocol in [&[][..], &["-3"]] {
        let arguments =
            ["-q", "-t", "ping,set,get,incr,mset", "-P", "16", "-c", "20", "-r", "1000", "-n", COUNT];
        let arguments: Vec<&'static str> = arguments.iter().chain(protocol).copied().collect();
        let Some(text) = run_client("redis-benchmark", arguments.leak()) else { return };
        println!("{}", text.replace('\r', "\n"));
        for test in ["PING_INLINE", "PING_MBULK", "SET", "GET", "INCR", "MSET (10 keys)"] {
            let line = text.split(['\r', '\n']).rfind(|line| line.starts_with(test));
            assert!(line.is_some_and(|line| line.contains("requests per second")), "{test} in {text}");
        }
        assert!(!text.contains("WARNING") && !text.contains("rror"), "{text}");
    }
}
