//! Connection to a server that is asked now and then, and never waited for.
//!
//! The socket doesn't block. There is at most one request in flight, so the memory is bounded by the longest
//! answer. A server that accepts no connection is tried again with each request. One that has closed the
//! connection may be replaced by another on the same socket within [`GRACE`]; it has ended otherwise.

use crate::control::protocol::{self, MAX_ANSWER, Request, VERSION};
use crate::failure::Failure;
use runtime::Instant;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde_json::Value;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Time within which a server that closed the connection is looked for again.
const GRACE: Duration = Duration::from_secs(1);
/// Interval between two attempts within it.
const RETRY: Duration = Duration::from_millis(100);
/// Bytes that one turn reads at most.
const TURN: usize = 1 << 20;

/// Connection to the server that listens on a socket, for one kind of request.
pub struct Link {
    path: PathBuf,
    request: Request,
    stream: Option<UnixStream>,
    incoming: Vec<u8>,
    /// Received bytes that have no end of a line.
    searched: usize,
    /// Time of the request in flight.
    asked: Option<Instant>,
    /// Time since which no server listens.
    lost: Option<Instant>,
    /// Whether the next answer is the version, which each connection asks for first.
    greets: bool,
}

/// Result of a turn.
#[derive(Debug, PartialEq)]
pub enum Heard {
    /// Nothing yet.
    Nothing,
    /// Answer to the request.
    Answer(Value),
    /// The server refused the request; the text says why. It may be asked again.
    Refused(String),
    /// No server listens.
    Ended,
}

impl Link {
    /// Creates a connection that is made with the first request.
    pub fn new(path: PathBuf, request: Request) -> Link {
        Link {
            path,
            request,
            stream: None,
            incoming: Vec::new(),
            searched: 0,
            asked: None,
            lost: None,
            greets: false,
        }
    }

    /// Returns the path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the connection, for poll(2).
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.stream.as_ref().map(AsFd::as_fd)
    }

    /// Returns the time of the request in flight.
    pub fn asked(&self) -> Option<Instant> {
        self.asked
    }

    /// Whether no server listened when it was last looked for.
    pub fn is_lost(&self) -> bool {
        self.lost.is_some()
    }

    /// Returns the time after which a turn may find something even if the connection has no bytes.
    pub fn retry_at(&self) -> Option<Instant> {
        (self.asked.is_some() && self.stream.is_none()).then(|| runtime::now() + RETRY)
    }

    /// Sends the request, unless it is in flight.
    pub fn ask(&mut self) {
        if self.asked.is_none() {
            self.asked = Some(runtime::now());
            self.incoming.clear();
            self.searched = 0;
            self.send(&self.request.to_line());
        }
    }

    /// Receives what there is.
    ///
    /// # Errors
    /// Bytes that aren't those of a server, another version, errors of the kernel.
    pub fn turn(&mut self) -> Result<Heard, Failure> {
        if self.stream.is_none() {
            if self.asked.is_none() {
                return Ok(Heard::Nothing);
            }
            if !self.connect()? {
                let lost = *self.lost.get_or_insert_with(runtime::now);
                return Ok(if lost.elapsed() > GRACE { Heard::Ended } else { Heard::Nothing });
            }
        }
        self.receive()?;
        while let Some(end) = self.incoming[self.searched..].iter().position(|byte| *byte == b'\n') {
            let end = self.searched + end;
            self.searched = 0;
            let rest = self.incoming.split_off(end + 1);
            let line = std::mem::replace(&mut self.incoming, rest);
            if let Some(heard) = self.hear(&line)? {
                return Ok(heard);
            }
        }
        self.searched = self.incoming.len();
        if self.stream.is_none() {
            // Whether there is another server is found by asking it.
            self.asked.get_or_insert_with(runtime::now);
        }
        Ok(Heard::Nothing)
    }

    fn hear(&mut self, line: &[u8]) -> Result<Option<Heard>, Failure> {
        if self.asked.is_none() {
            return Ok(None);
        }
        let answer = protocol::decode(line).map_err(|error| self.failed(&error.to_string()))?;
        let greets = std::mem::replace(&mut self.greets, false);
        match answer {
            Ok(hello) if greets => self.check(&hello).map(|()| None),
            Ok(answer) => {
                self.asked = None;
                Ok(Some(Heard::Answer(answer)))
            }
            Err(refusal) if refusal.wrongly_asked => Err(self.failed(&refusal.to_string())),
            Err(refusal) => {
                self.close();
                self.asked = None;
                Ok(Some(Heard::Refused(refusal.to_string())))
            }
        }
    }

    fn check(&self, hello: &Value) -> Result<(), Failure> {
        match hello["protocol"] == VERSION {
            true => Ok(()),
            false => Err(self.failed(&format!(
                "its server (process {}) speaks version {} of the protocol, and this program {VERSION}: use the \
                 program that the server was started with",
                hello["process"], hello["protocol"]
            ))),
        }
    }

    /// Connects, and sends the request in flight. Returns false if no server listens.
    fn connect(&mut self) -> Result<bool, Failure> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let connected = SocketAddrUnix::new(&self.path).and_then(|address| {
            let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
            rustix::net::connect(&socket, &address).map(|()| socket)
        });
        match connected {
            Ok(socket) => {
                (self.stream, self.lost, self.greets) = (Some(socket.into()), None, true);
                (self.incoming, self.searched) = (Vec::new(), 0);
                self.send(&(Request::Hello.to_line() + &self.request.to_line()));
                Ok(true)
            }
            Err(Errno::NOENT | Errno::CONNREFUSED) => Ok(false),
            // The queue of a server that accepts no connections is full.
            Err(Errno::AGAIN | Errno::INTR) => Ok(true),
            Err(error) => Err(self.failed(&std::io::Error::from(error).to_string())),
        }
    }

    /// Sends a short text. The socket takes it at once, as nothing else is in flight, unless the server has
    /// closed the connection, which receiving finds.
    fn send(&mut self, text: &str) {
        if let Some(stream) = &mut self.stream {
            let _ = stream.write_all(text.as_bytes());
        }
    }

    fn receive(&mut self) -> Result<(), Failure> {
        let Some(stream) = &mut self.stream else { return Ok(()) };
        let mut piece = [0; 16 << 10];
        for _ in 0..TURN / piece.len() {
            match stream.read(&mut piece) {
                Ok(0) => {
                    self.close();
                    break;
                }
                Ok(count) => self.incoming.extend_from_slice(&piece[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::ConnectionReset => {
                    self.close();
                    break;
                }
                Err(error) => return Err(self.failed(&error.to_string())),
            }
            if self.incoming.len() > MAX_ANSWER {
                return Err(self.failed(&format!("an answer of more than {MAX_ANSWER} bytes")));
            }
        }
        Ok(())
    }

    fn close(&mut self) {
        self.stream = None;
    }

    fn failed(&self, what: &str) -> Failure {
        Failure::World(format!("control socket {}: {what}", self.path.display()))
    }
}

/// Waits until one of these can be read, or until a time, or for a signal; at most a second.
///
/// # Errors
/// Errors of the kernel.
pub fn wait(descriptors: &[BorrowedFd<'_>], until: Instant) -> Result<(), Failure> {
    let limit = (until - runtime::now()).min(Duration::from_secs(1));
    let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: i64::from(limit.subsec_nanos()) };
    let mut polled: Vec<_> =
        descriptors.iter().map(|descriptor| PollFd::from_borrowed_fd(*descriptor, PollFlags::IN)).collect();
    match rustix::event::poll(&mut polled, Some(&limit)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(Failure::World(format!("waiting for the server: {}", std::io::Error::from(error)))),
    }
}

#[cfg(test)]
mod tests;
