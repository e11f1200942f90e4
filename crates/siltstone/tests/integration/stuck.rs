//! Storage that stops answering: signals end the server of it in a bounded time.
#![expect(clippy::disallowed_methods, reason = "waits for real processes; nothing here runs in the runtime")]

use crate::common::{command, signal, wait_for};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Child, ExitStatus, Output};
use std::time::{Duration, Instant};

/// Longest wait for the end of a program.
const LIMIT: Duration = Duration::from_secs(40);

/// A disk of another server.
struct Disk(Child);

impl Disk {
    fn serve(folder: &Path) -> Disk {
        let mut server = command(folder, &["serve", "file(disk, size=64MiB)", "--nbd", "unix:disk.sock"]);
        let mut server = server.spawn().unwrap();
        wait_for(server.stdout.take().unwrap(), "disk.sock");
        Disk(server)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Waits until something is so, and returns whether it was within the limit.
fn is_in_time(mut is_so: impl FnMut() -> bool) -> bool {
    let begun = Instant::now();
    while begun.elapsed() < LIMIT {
        if is_so() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    false
}

/// Waits for the end of a program, which is killed after the limit.
fn end(mut program: Child) -> (ExitStatus, Output) {
    let has_ended = is_in_time(|| program.try_wait().unwrap().is_some());
    assert!(has_ended || program.kill().is_err(), "the program doesn't end");
    let output = program.wait_with_output().unwrap();
    (output.status, output)
}

/// The client's own limit would end the wait.
const DISK: &str = "nbd-client(\"unix:disk.sock\", block_size=4096, timeout=24h)";

#[test]
fn signals_end_a_server_whose_storage_does_not_answer() {
    let folder = tempfile::tempdir().unwrap();
    let disk = Disk::serve(folder.path());
    let log = format!("log({DISK})");
    let mut server = command(folder.path(), &["serve", &log, "--format", "--nbd", "unix:log.sock"]);
    let mut server = server.spawn().unwrap();
    wait_for(server.stdout.take().unwrap(), "log.sock");
    signal(&disk.0, "STOP");
    // Two signals of one kind end it at once, without a message; two that are received together are one.
    // After the first it closes its door.
    signal(&server, "TERM");
    assert!(is_in_time(|| !folder.path().join("log.sock").exists()), "the door isn't closed");
    signal(&server, "INT");
    let (status, output) = end(server);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(status.code(), Some(1), "{said}");
    assert!(said.contains("the storage hasn't answered a request for 1"), "{said}");
    assert!(said.contains("changes that weren't durable are lost"), "{said}");
}

#[test]
fn one_signal_ends_a_program_that_opens_or_formats_a_disk_that_does_not_answer() {
    let (log, kv) = (format!("log({DISK})"), format!("kv({DISK}, listen=\"127.0.0.1:0\")"));
    for arguments in [
        ["serve", &log, "--nbd", "unix:log.sock"].as_slice(),
        &["format", &log, "--force"],
        &["kv", "serve", &kv],
        &["fs", "format", "disk.toml"],
    ] {
        let folder = tempfile::tempdir().unwrap();
        let stack = "[device.disk]\nkind = \"nbd-client\"\naddress = \"unix:disk.sock\"\n";
        std::fs::write(folder.path().join("disk.toml"), stack).unwrap();
        // Accepts a connection and says nothing: a client of NBD waits for the server's greeting.
        let disk = UnixListener::bind(folder.path().join("disk.sock")).unwrap();
        disk.set_nonblocking(true).unwrap();
        let program = command(folder.path(), arguments).spawn().unwrap();
        let mut connection = None;
        let is_open = is_in_time(|| {
            connection = disk.accept().ok();
            connection.is_some()
        });
        assert!(is_open, "{arguments:?}: no connection: {:?}", end(program));
        signal(&program, "TERM");
        let (status, output) = end(program);
        // Not by itself, after a limit of its own.
        assert_eq!(status.code(), None, "{arguments:?}: ended by the signal: {output:?}");
    }
}

/// A pipe that takes no more bytes; the reader keeps it open.
fn full_pipe() -> (std::io::PipeReader, std::io::PipeWriter) {
    let (reader, writer) = std::io::pipe().unwrap();
    let flags = rustix::fs::fcntl_getfl(&writer).unwrap();
    rustix::fs::fcntl_setfl(&writer, flags | rustix::fs::OFlags::NONBLOCK).unwrap();
    while std::io::Write::write(&mut &writer, &[b'.'; 4096]).is_ok() {}
    rustix::fs::fcntl_setfl(&writer, flags).unwrap();
    (reader, writer)
}

/// The server's message before its end waits for the reader of standard error, and its shard with it.
#[test]
fn signals_end_a_server_whose_shard_hangs_in_a_call_to_the_kernel() {
    let folder = tempfile::tempdir().unwrap();
    let disk = Disk::serve(folder.path());
    let log = format!("log({DISK})");
    let (_reader, writer) = full_pipe();
    let mut server = command(folder.path(), &["serve", &log, "--format", "--nbd", "unix:log.sock"]);
    let mut server = server.stderr(writer).spawn().unwrap();
    wait_for(server.stdout.take().unwrap(), "log.sock");
    signal(&disk.0, "STOP");
    for name in ["TERM", "INT"] {
        signal(&server, name);
        std::thread::sleep(Duration::from_secs(2));
    }
    assert_eq!(end(server).0.code(), Some(1));
}
