//! `siltstone serve -s`: the connection to the one client, which is standard input, or standard input and
//! output.
//!
//! libnbd (`nbd_connect_command`), inetd and ssh pass a socket. Pipes are copied to and from one, by two
//! threads. nbdinfo and nbdcopy (`[ COMMAND ]`) pass a socket that listens, as systemd does, and connect to
//! it: the first client is served.

use crate::failure::Failure;
use rustix::fs::{FileType, OFlags};
use std::fs::File;
use std::io::{IsTerminal, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// Bytes that are copied at once.
const PIECE_BYTES: usize = 256 << 10;
/// Time limit for a client to receive the last replies.
const LAST_REPLIES_LIMIT: Duration = Duration::from_secs(5);

/// Copying between pipes and the connection; nothing for a socket.
#[derive(Debug, Default)]
pub struct Relay(Option<Receiver<()>>);

impl Relay {
    /// Waits until the last replies are in the pipe, for a limited time. The connection is closed.
    pub fn finish(&self) {
        // The sender is dropped at the end of the copy.
        let _ended = self.0.as_ref().map(|ended| ended.recv_timeout(LAST_REPLIES_LIMIT));
    }
}

/// Returns the connection to the client.
///
/// # Errors
/// A terminal, or anything else that isn't a connection; errors of the kernel.
pub fn connection() -> Result<(OwnedFd, Relay), Failure> {
    let world = |error: std::io::Error| Failure::World(format!("-s: the client's connection: {error}"));
    if let Some(listener) = runtime::net::take_only_passed_socket() {
        let connection = rustix::net::accept_with(&listener, rustix::net::SocketFlags::CLOEXEC);
        return Ok((connection.map_err(|error| world(error.into()))?, Relay::default()));
    }
    let (input, output) = (std::io::stdin(), std::io::stdout());
    if input.is_terminal() || output.is_terminal() {
        return Err(Failure::Usage(
            "-s: standard input and output are a terminal; expected a connection to an NBD client, which starts the server: \
             nbdinfo -- [ siltstone serve -s STACK ]; to serve clients at an address, give --nbd instead"
                .into(),
        ));
    }
    let input = input.as_fd().try_clone_to_owned().map_err(world)?;
    let output = output.as_fd().try_clone_to_owned().map_err(world)?;
    match (type_of(&input)?, type_of(&output)?) {
        (FileType::Socket, _) => {
            check_stream(&input)?;
            // The runtime waits for the kernel, not for readiness.
            let flags = rustix::fs::fcntl_getfl(&input).map_err(|error| world(error.into()))?;
            rustix::fs::fcntl_setfl(&input, flags - OFlags::NONBLOCK).map_err(|error| world(error.into()))?;
            Ok((input, Relay::default()))
        }
        (FileType::Fifo, FileType::Fifo | FileType::Socket) => {
            let (ours, theirs) = UnixStream::pair().map_err(world)?;
            let relay = copy(input, output, theirs).map_err(world)?;
            Ok((ours.into(), relay))
        }
        (found, _) => Err(Failure::Usage(format!(
            "-s: standard input is {}; expected a connection to an NBD client: a socket, or pipes as standard input and output",
            word(found)
        ))),
    }
}

fn type_of(descriptor: &OwnedFd) -> Result<FileType, Failure> {
    match rustix::fs::fstat(descriptor) {
        Ok(status) => Ok(FileType::from_raw_mode(status.st_mode)),
        Err(error) => Err(Failure::World(format!("-s: standard input or output: {error}"))),
    }
}

fn word(found: FileType) -> &'static str {
    match found {
        FileType::RegularFile => "a file",
        FileType::Directory => "a directory",
        FileType::Fifo => "a pipe, and standard output isn't one",
        // The runtime of Rust opens /dev/null for a closed one.
        FileType::CharacterDevice => "closed, or a device such as /dev/null",
        _ => "a device",
    }
}

/// Refuses sockets of datagrams and those that listen.
fn check_stream(socket: &OwnedFd) -> Result<(), Failure> {
    let kind = rustix::net::sockopt::socket_type(socket);
    let listens = rustix::net::sockopt::socket_acceptconn(socket);
    match (kind, listens) {
        (Ok(rustix::net::SocketType::STREAM), Ok(false)) => Ok(()),
        _ => Err(Failure::Usage(
            "-s: standard input is a socket without a client; expected a connected stream socket".into(),
        )),
    }
}

/// Copies until the end, and passes on what there is at once: `std::io::copy` lets the kernel wait for more.
fn relay(from: &mut impl Read, to: &mut impl Write) -> std::io::Result<()> {
    let mut buffer = vec![0; PIECE_BYTES];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(length) => to.write_all(&buffer[..length])?,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Copies in both directions until either end closes. The threads end with the process at the latest.
fn copy(input: OwnedFd, output: OwnedFd, socket: UnixStream) -> std::io::Result<Relay> {
    let (ending, ended) = channel::<()>();
    let (mut input, mut output) = (File::from(input), File::from(output));
    let (mut receiver, mut sender) = (socket.try_clone()?, socket);
    let thread = |name: &str| std::thread::Builder::new().name(name.to_owned());
    thread("stdin").spawn(move || {
        // An error is the end of the client, as the end of the pipe is.
        let _ended = relay(&mut input, &mut sender);
        let _closed = sender.shutdown(std::net::Shutdown::Write);
    })?;
    thread("stdout").spawn(move || {
        let _ending = ending;
        let _ended = relay(&mut receiver, &mut output);
        // Requests without a reader for their replies aren't executed.
        let _closed = receiver.shutdown(std::net::Shutdown::Both);
    })?;
    Ok(Relay(Some(ended)))
}
