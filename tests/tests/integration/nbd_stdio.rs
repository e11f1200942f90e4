//! `siltstone serve -s`: one client on standard input and output, as libnbd, inetd and ssh start servers.

use siltstone_tests::foreign::{Finished, binary, option, run};
use siltstone_tests::need;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Number of the option ABORT.
const ABORT: u32 = 2;

fn program() -> String {
    binary().display().to_string()
}

/// Starts a server with pipes, and reads its greeting.
fn piped(stack: &str) -> Child {
    let mut command = Command::new(binary());
    command.args(["serve", "-s", stack]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut greeting = [0; 18];
    child.stdout.as_mut().unwrap().read_exact(&mut greeting).unwrap();
    assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
    child
}

/// Waits for the end of a server. Returns its exit status, the rest of its output, and its messages.
fn ended(child: Child) -> (Option<i32>, Vec<u8>, String) {
    let output = child.wait_with_output().unwrap();
    (output.status.code(), output.stdout, String::from_utf8(output.stderr).unwrap())
}

/// Runs a script of nbdsh with a client of this stack, whose server writes its exit status to a file.
fn session(folder: &Path, stack: &str, script: &str) -> Finished {
    let status = folder.join("status");
    let _removed = std::fs::remove_file(&status);
    let server = format!("{} serve -s '{stack}'; echo $? > {}", program(), status.display());
    let connect = format!("h.connect_command(['sh', '-c', {server:?}])");
    let said = run("nbdsh", &["-c", &connect, "-c", script, "-c", "h.shutdown()"]);
    // libnbd waits for the process when the handle is closed.
    let status = std::fs::read_to_string(status).unwrap_or_default();
    assert_eq!(status.trim(), "0", "{said:#?}");
    said
}

#[test]
fn a_client_of_libnbd_starts_its_server_and_finds_its_data_again() {
    need!("nbdsh");
    for shards in [1, 4] {
        let folder = tempfile::tempdir().unwrap();
        let disk = folder.path().join("disk.img").display().to_string();
        run(&program(), &["format", &format!("log(file({disk}, size=64MiB))")]).ok();
        let stack = format!("log(file({disk}, size=64MiB)) shards={shards}");
        // Without a flush: the end makes it durable.
        let write = "h.pwrite(b'x' * 65536, 8192); assert h.can_flush()";
        assert_eq!(session(folder.path(), &stack, write).ok(), "");
        let read = "assert h.pread(65536, 8192) == b'x' * 65536; assert h.pread(512, 0) == bytes(512); print('found')";
        assert_eq!(session(folder.path(), &stack, read).ok(), "found\n");
        let sound = run(&program(), &["check", &format!("log(file({disk}, size=64MiB))")]).ok();
        assert!(sound.contains("no damage"), "{sound}");
    }
}

#[test]
fn nbdinfo_starts_servers_of_the_same_stack() {
    need!("nbdinfo");
    let command = ["--", "[", &program(), "serve", "-s", "ram(64MiB)", "]"];
    assert_eq!(run("nbdinfo", &[&["--size"][..], &command].concat()).ok(), "67108864\n");
    let first = piped("ram(64MiB)");
    assert!(run("nbdinfo", &[&["--can", "trim"][..], &command].concat()).ok().is_empty());
    // Another connection would be another server.
    assert_eq!(run("nbdinfo", &[&["--can", "multi-conn"][..], &command].concat()).code, Some(2));
    let list = run("nbdinfo", &[&["--list"][..], &command].concat()).ok();
    assert!(list.contains("export-size: 67108864"), "{list}");
    drop(first);
}

#[test]
fn a_client_over_pipes_that_hangs_up_ends_the_server() {
    // During the handshake.
    let mut child = piped("ram(1MiB)");
    drop(child.stdin.take());
    assert_eq!(ended(child).0, Some(0));
    // With the option ABORT, to which the server replies.
    let mut child = piped("ram(1MiB)");
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(&[&3_u32.to_be_bytes()[..], &option(ABORT, 0)].concat()).unwrap();
    let (status, reply, messages) = ended(child);
    assert_eq!((status, reply.len()), (Some(0), 20), "{messages}");
    drop(stdin);
}

#[test]
fn sigterm_ends_the_server_of_a_connected_client() {
    let child = piped("ram(1MiB)");
    run("kill", &["-TERM", &child.id().to_string()]).ok();
    let (status, output, messages) = ended(child);
    assert_eq!((status, output.len()), (Some(0), 0), "{messages}");
}

#[test]
fn what_is_no_connection_is_refused() {
    let refused = |arguments: &[&str], text: &str| {
        let ran = run(&program(), &[&["serve", "-s"], arguments].concat());
        assert_eq!((ran.code, ran.out.as_str()), (Some(2), ""), "{ran:#?}");
        assert!(ran.err.contains(text), "{}", ran.err);
    };
    refused(
        &["ram(1MiB)"],
        "-s: standard input is closed, or a device such as /dev/null; expected a connection to an NBD client",
    );
    refused(&["nbd(ram(1MiB), socket=s)"], "the stack has doors");
    refused(&["ram(1MiB)", "--nbd=unix:s"], "cannot be used with");
    refused(&["-"], "standard input is the connection");
    need!("script");
    let on_terminal = format!("script -qec \"{} serve -s 'ram(1MiB)'\" /dev/null < /dev/null", program());
    let ran = run("sh", &["-c", &on_terminal]);
    assert_eq!(ran.code, Some(2), "{ran:#?}");
    assert!(ran.out.contains("-s: standard input and output are a terminal"), "{ran:#?}");
}
