//! Sockets: unix and TCP streams.
//!
//! # Promises
//! - An accepted TCP connection whose peer's machine is down ends after [`SILENT_PEER_LIMIT`], idle or with
//!   unacknowledged data. An outgoing one does while it is idle; otherwise after the kernel's retransmissions
//!   (15 minutes).
//! - A unix socket's file is removed only by the listener that created it (`socket_file`). It has its owner
//!   and permissions before the first connection is possible (`access`).
#![allow(unsafe_code)] // Making sockets; add_filled after the kernel wrote.

use crate::address::SocketAddress;
use crate::file::os_error;
use crate::in_flight::submit;
use crate::operation::{Descriptor, Operation};
use crate::requester::Requester;
use crate::shard;
use crate::slots::Key;
use crate::sync::StopToken;
use block::{Buffer, Error, Payload, Result};
use std::cell::Cell;
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

pub mod acceptor;
mod access;
mod descriptors;
mod direct;
mod inherited;
mod socket_file;

pub use crate::address::Address;
pub use access::{Access, Owner};
pub use descriptors::{MAX_DESCRIPTORS, is_socket};
pub use inherited::{take_only_passed_socket, unused_passed_sockets};
pub use socket_file::{LOCK_LIMIT, SocketFolder, is_listened_on};

/// Pause after a connection that couldn't be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Time after which a TCP connection ends whose peer acknowledges neither data nor keep-alive probes.
pub const SILENT_PEER_LIMIT: Duration = Duration::from_secs(120);
/// Seconds without traffic until the first keep-alive probe.
const KEEP_ALIVE_IDLE: libc::c_int = 60;
/// Seconds between keep-alive probes.
const KEEP_ALIVE_INTERVAL: libc::c_int = 10;
/// Keep-alive probes without an answer that end a connection.
const KEEP_ALIVE_PROBES: libc::c_int = 6;

const _: () = assert!(
    KEEP_ALIVE_IDLE + KEEP_ALIVE_INTERVAL * KEEP_ALIVE_PROBES == SILENT_PEER_LIMIT.as_secs() as libc::c_int,
    "idle and busy connections end after the same time"
);

fn last_error(doing: String) -> Error {
    let error = std::io::Error::last_os_error();
    os_error(error.raw_os_error().unwrap_or(libc::EIO), doing)
}

/// Creates a socket for this address; `flags` go to socket(2).
fn new_socket(address: &Address, flags: libc::c_int) -> Result<OwnedFd> {
    let family = match address {
        Address::Unix(_) => libc::AF_UNIX,
        Address::Tcp(SocketAddr::V4(_)) => libc::AF_INET,
        Address::Tcp(SocketAddr::V6(_)) => libc::AF_INET6,
    };
    // SAFETY: no memory is passed.
    let fd = unsafe { libc::socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC | flags, 0) };
    match fd {
        // SAFETY: just created.
        0.. => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(last_error(format!("making a socket for {address}"))),
    }
}

fn set_option(fd: &OwnedFd, level: i32, option: i32, value: libc::c_int) {
    let length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the option's value is read from `value`. A connection works without these options.
    unsafe { libc::setsockopt(fd.as_raw_fd(), level, option, std::ptr::from_ref(&value).cast(), length) };
}

/// Sets the options of every TCP connection: no delay, and keep-alive.
fn set_tcp_options(fd: &OwnedFd) {
    set_option(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1);
    set_option(fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1);
    set_option(fd, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, KEEP_ALIVE_IDLE);
    set_option(fd, libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, KEEP_ALIVE_INTERVAL);
    set_option(fd, libc::IPPROTO_TCP, libc::TCP_KEEPCNT, KEEP_ALIVE_PROBES);
}

/// Socket that accepts connections.
pub struct Listener {
    descriptor: Rc<Descriptor>,
    address: Address,
    /// File to remove at the end; `None` for TCP, and after a plain `bind`.
    file: Option<socket_file::SocketFile>,
}

impl Listener {
    /// Listens. For TCP, port 0 takes a free one, which [`local_address`](Self::local_address) returns. A
    /// unix socket's file must not exist, and remains when the listener is closed; servers use
    /// [`replace_stale`](Self::replace_stale).
    ///
    /// # Errors
    /// Errors of socket(2), bind(2) and listen(2).
    pub fn bind(address: &Address) -> Result<Listener> {
        Self::bind_with(address, |_| Ok(()), || Ok(()))
    }

    /// Listens; `before_bind` is called on the socket before its file exists, `before_listen` before the
    /// first connection is possible.
    fn bind_with(
        address: &Address,
        before_bind: impl FnOnce(&OwnedFd) -> rustix::io::Result<()>,
        before_listen: impl FnOnce() -> Result<()>,
    ) -> Result<Listener> {
        if let Some(world) = shard::current_world() {
            let handle = world.listen(address)?;
            let descriptor = Rc::new(Descriptor::Simulated(handle));
            return Ok(Listener { descriptor, address: address.clone(), file: None });
        }
        let fd = new_socket(address, 0)?;
        if matches!(address, Address::Tcp(_)) {
            set_option(&fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1);
        }
        before_bind(&fd)
            .map_err(|error| Error::from_io(&error.into(), &format!("listening on {address}")))?;
        let kernel = SocketAddress::of(address)?;
        // SAFETY: the address is valid for its length during the call.
        if unsafe { libc::bind(fd.as_raw_fd(), kernel.as_ptr(), kernel.len()) } != 0 {
            return Err(last_error(format!("listening on {address}")));
        }
        before_listen()?;
        // SAFETY: no memory is passed.
        if unsafe { libc::listen(fd.as_raw_fd(), 128) } != 0 {
            return Err(last_error(format!("listening on {address}")));
        }
        let address = match address {
            Address::Unix(_) => address.clone(),
            Address::Tcp(_) => Address::Tcp(bound_port(&fd)?),
        };
        let descriptor = Rc::new(shard::with_current(|shard| shard.adopt(fd)));
        Ok(Listener { descriptor, address, file: None })
    }

    /// Address of the listener.
    pub fn local_address(&self) -> &Address {
        &self.address
    }

    /// Waits for a connection.
    pub async fn accept(&self) -> Result<Stream> {
        let (result, _) = submit(Operation::Accept { listener: self.descriptor.clone() }).await;
        if result < 0 {
            return Err(os_error(-result, format!("accepting a connection on {}", self.address)));
        }
        Ok(Stream::from_result(result, matches!(self.address, Address::Tcp(_))))
    }

    /// Waits for a connection. An error, such as the limit of open files, is logged, and the next attempt
    /// follows after a pause.
    pub async fn accept_retrying(&self) -> Stream {
        loop {
            match self.accept().await {
                Ok(stream) => return stream,
                Err(error) => tracing::warn!("{error}"),
            }
            crate::sleep(ACCEPT_PAUSE).await;
        }
    }

    /// Waits for a connection as [`accept_retrying`](Self::accept_retrying) does, until the stop signal:
    /// `None` then.
    pub async fn accept_until(&self, stop: &StopToken) -> Option<Stream> {
        stop.unless_stopped(self.accept_retrying()).await
    }
}

fn bound_port(fd: &OwnedFd) -> Result<SocketAddr> {
    // SAFETY: duplicated, so that the standard library's socket can be dropped.
    let copy = fd.try_clone().map_err(|error| Error::from_io(&error, "asking for a socket's address"))?;
    let listener = std::net::TcpListener::from(copy);
    listener.local_addr().map_err(|error| Error::from_io(&error, "asking for a socket's address"))
}

/// The send in flight on a stream, for a task that ends it if the peer receives nothing.
#[derive(Debug, Default)]
pub struct SendWatch {
    in_flight: Cell<Option<Key>>,
}

/// Identifies one step of a send: between two steps the peer has received at least a byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SendStep(Key);

impl SendWatch {
    /// Step in flight; `None` while nothing is being sent.
    #[inline]
    pub fn step(&self) -> Option<SendStep> {
        self.in_flight.get().map(SendStep)
    }

    /// Ends the step in flight. If the peer has received a part of it, the send continues with another step;
    /// if it has received nothing since the step began, the send fails with [`Error::TimedOut`].
    pub fn interrupt(&self) {
        if let Some(key) = self.in_flight.get() {
            shard::with_current(|shard| shard.cancel(key));
        }
    }
}

/// Direction to shut down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shutdown {
    /// No more receives.
    Read,
    /// No more sends; the peer sees the end of the stream.
    Write,
    /// Both directions.
    Both,
}

/// A connection of this shard. Clones share it, so that one task receives while another one sends; it is
/// closed when the last clone is dropped.
#[derive(Clone)]
pub struct Stream {
    descriptor: Rc<Descriptor>,
}

impl fmt::Debug for Stream {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Stream")
    }
}

impl Stream {
    fn from_result(result: i32, tcp: bool) -> Stream {
        let descriptor = shard::with_current(|shard| match shard.world() {
            Some(_) => Descriptor::Simulated(result as u64),
            None => {
                // SAFETY: the kernel has just created it for this operation.
                let fd = unsafe { OwnedFd::from_raw_fd(result) };
                if tcp {
                    set_tcp_options(&fd);
                    // Not for outgoing connections: the option also ends a connection whose peer is alive and
                    // receives nothing, and a server may keep its clients waiting.
                    let limit = SILENT_PEER_LIMIT.as_millis() as libc::c_int;
                    set_option(&fd, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, limit);
                }
                shard.adopt(fd)
            }
        });
        Stream { descriptor: Rc::new(descriptor) }
    }

    /// Connects to an address.
    pub async fn connect(address: &Address) -> Result<Stream> {
        let descriptor = match shard::current_world() {
            Some(world) => Descriptor::Simulated(world.new_socket()),
            None => {
                let fd = new_socket(address, 0)?;
                if matches!(address, Address::Tcp(_)) {
                    set_tcp_options(&fd);
                }
                shard::with_current(|shard| shard.adopt(fd))
            }
        };
        let descriptor = Rc::new(descriptor);
        let operation = Operation::Connect { socket: descriptor.clone(), address: address.clone() };
        let (result, _) = submit(operation).await;
        match result {
            0.. => Ok(Stream { descriptor }),
            _ => Err(os_error(-result, format!("connecting to {address}"))),
        }
    }

    /// Receives bytes into the unfilled part of the buffer; 0 at the end of the stream. After an error the
    /// buffer is unchanged.
    #[inline]
    pub async fn receive(&self, buffer: Buffer) -> (Result<usize>, Buffer) {
        let (result, operation) =
            submit(Operation::Receive { socket: self.descriptor.clone(), buffer }).await;
        let Operation::Receive { mut buffer, .. } = operation else {
            unreachable!("a receive comes back as one")
        };
        if result < 0 {
            return (Err(os_error(-result, "receiving".into())), buffer);
        }
        // SAFETY: the kernel reports that it wrote this many bytes.
        unsafe { buffer.add_filled(result as usize) };
        (Ok(result as usize), buffer)
    }

    /// Receives until the buffer is full.
    ///
    /// # Errors
    /// [`Error::Disconnected`] if the stream ends first.
    pub async fn receive_exact(&self, mut buffer: Buffer) -> (Result<()>, Buffer) {
        while buffer.missing() > 0 {
            let (result, returned) = self.receive(buffer).await;
            buffer = returned;
            match result {
                Ok(0) => {
                    let missing = buffer.missing();
                    let error =
                        Error::disconnected(format!("the peer closed with {missing} bytes still to come"));
                    return (Err(error), buffer);
                }
                Ok(_) => {}
                Err(error) => return (Err(error), buffer),
            }
        }
        (Ok(()), buffer)
    }

    /// Sends the whole payload, in as few calls as the kernel allows, and returns it.
    #[inline]
    pub async fn send(&self, payload: Payload) -> (Result<()>, Payload) {
        self.send_watched(payload, &SendWatch::default()).await
    }

    /// Sends as [`send`](Self::send) does, while another task of the shard may look at `watch` and interrupt
    /// it.
    ///
    /// # Errors
    /// [`Error::TimedOut`] after [`SendWatch::interrupt`], if the peer received nothing.
    #[inline]
    pub async fn send_watched(&self, mut payload: Payload, watch: &SendWatch) -> (Result<()>, Payload) {
        let mut skip = 0;
        while skip < payload.len() {
            let socket = self.descriptor.clone();
            let sending = submit(Operation::Send { socket, payload, skip });
            watch.in_flight.set(sending.key());
            let (result, operation) = sending.await;
            watch.in_flight.set(None);
            let Operation::Send { payload: returned, .. } = operation else {
                unreachable!("a send comes back as one")
            };
            payload = returned;
            match result {
                0.. => skip += result as usize,
                _ if result == -libc::ECANCELED => {
                    return (Err(Error::timed_out("sending: the peer takes nothing")), payload);
                }
                _ => return (Err(os_error(-result, "sending".into())), payload),
            }
        }
        (Ok(()), payload)
    }

    /// Shuts a direction down.
    pub async fn shutdown(&self, direction: Shutdown) -> Result<()> {
        let how = match direction {
            Shutdown::Read => libc::SHUT_RD,
            Shutdown::Write => libc::SHUT_WR,
            Shutdown::Both => libc::SHUT_RDWR,
        };
        let (result, _) = submit(Operation::Shutdown { socket: self.descriptor.clone(), how }).await;
        match result {
            0.. => Ok(()),
            _ => Err(os_error(-result, "shutting a connection down".into())),
        }
    }

    /// Returns the peer, whose requests arrive here: the process that connected to a unix socket, or the
    /// address of a TCP connection; [`Requester::Nobody`] under simulation.
    pub fn requester(&self) -> Requester {
        let Descriptor::Kernel { fd, .. } = &*self.descriptor else { return Requester::Nobody };
        match rustix::net::getpeername(fd).ok().flatten().map(SocketAddr::try_from) {
            Some(Ok(peer)) => Requester::of_peer(peer),
            // Another family: a unix socket.
            Some(Err(_)) => Requester::of_process(crate::peer_process(fd.as_fd()).unwrap_or(0)).named(),
            None => Requester::Nobody,
        }
    }

    /// Converts the connection to a descriptor, for the kernel or another process.
    ///
    /// # Errors
    /// [`Error::Unsupported`] under simulation; errors of the kernel.
    pub fn into_descriptor(self) -> Result<OwnedFd> {
        match self.into_remote()?.0 {
            Remote::Kernel(descriptor) => Ok(descriptor),
            Remote::Simulated(_) => Err(Error::unsupported("the descriptor of a simulated connection")),
        }
    }

    /// Converts the connection to a form that can go to another shard. Its other clones remain usable here.
    pub fn into_remote(self) -> Result<RemoteStream> {
        match &*self.descriptor {
            Descriptor::Kernel { fd, .. } => {
                let fd = fd.try_clone().map_err(|error| Error::from_io(&error, "moving a connection"))?;
                Ok(RemoteStream(Remote::Kernel(fd)))
            }
            Descriptor::Simulated(handle) => {
                Ok(RemoteStream(Remote::Simulated(shard::share_simulated(*handle))))
            }
        }
    }
}

enum Remote {
    Kernel(OwnedFd),
    Simulated(u64),
}

/// A connection that is being moved between two shards.
pub struct RemoteStream(Remote);

/// A connected stream socket of another program, which blocks.
impl From<OwnedFd> for RemoteStream {
    fn from(socket: OwnedFd) -> Self {
        RemoteStream(Remote::Kernel(socket))
    }
}

impl RemoteStream {
    /// Returns the connection, on this shard.
    pub fn into_stream(self) -> Stream {
        let descriptor = match self.0 {
            Remote::Kernel(fd) => shard::with_current(|shard| shard.adopt(fd)),
            Remote::Simulated(handle) => Descriptor::Simulated(handle),
        };
        Stream { descriptor: Rc::new(descriptor) }
    }
}

#[cfg(test)]
#[path = "net/tests.rs"]
mod tests;
