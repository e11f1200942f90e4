//! Signals of a real process: each test starts its own program again as a child.

use runtime::{AbortOnHang, Config, HangLimits, StopSignals};
use std::io::{BufRead, BufReader};
use std::os::fd::AsRawFd;
use std::process::{Child, Command, ExitStatus, Stdio};

const CHILD: &str = "SILTSTONE_TEST_HANGING_CHILD";

/// Program whose only shard waits in the kernel for ever, in a call that isn't the ring's.
#[test]
#[ignore = "runs as a child of the other tests"]
fn hanging_child() {
    let Some(log) = std::env::var_os(CHILD) else { return };
    let log = std::fs::File::create(log).unwrap();
    let main = move || async move {
        let signals = StopSignals::catch().unwrap();
        let message = "shard 0 hangs\n".to_owned();
        let logged = Some((log.as_raw_fd(), "logged\n".to_owned()));
        signals.limit_hangs(HangLimits { first: 60, further: 1, message, log: logged }).unwrap();
        let _aborted = AbortOnHang::new(log.try_clone().unwrap().into()).unwrap();
        drop(AbortOnHang::new(log.try_clone().unwrap().into()));
        signals.still_ending();
        eprintln!("ready");
        // Each task of the shard waits with it.
        loop {
            std::thread::park();
        }
    };
    let _: () = runtime::run(Config::default(), main).unwrap();
}

fn signal(child: &Child, name: &str) {
    let sent = Command::new("kill").args([&format!("-{name}"), &child.id().to_string()]).status().unwrap();
    assert!(sent.success(), "the process lives");
}

/// Status, messages and log of a child that gets these signals once its shard hangs.
fn ended_by(names: &[&str]) -> (ExitStatus, Vec<String>, String) {
    let log = tempfile::NamedTempFile::new().unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "signals::hanging_child", "--ignored", "--nocapture"])
        .env(CHILD, log.path())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    assert!(lines.any(|line| line == "ready"));
    for name in names {
        signal(&child, name);
    }
    let status = child.wait().unwrap();
    (status, lines.collect(), std::fs::read_to_string(log.path()).unwrap())
}

#[test]
fn further_signals_end_a_process_whose_shard_hangs() {
    let (status, lines, log) = ended_by(&["TERM", "INT", "TERM"]);
    assert_eq!(status.code(), Some(1), "{lines:?}");
    assert_eq!(lines, ["shard 0 hangs"]);
    assert_eq!(log, "1logged\n", "connections are aborted first");
}
