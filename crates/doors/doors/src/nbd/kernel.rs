//! The kernel's NBD client (drivers/block/nbd.c, module `nbd`), controlled over generic netlink: block
//! devices `/dev/nbdN` on connections that this module negotiates. All functions block their thread.
//!
//! # Promises
//! - A device carries an identifier, its backend. Only a device with the given identifier is changed.
//! - While all connections are dead, new requests wait for [`reconnect`] as long as [`Client::dead_limit`];
//!   then they fail.
//! - The kernel resends requests that were in flight on a dead connection when their timer fires, after
//!   [`reconnect`]. With one connection the timer is [`RESEND_TIME`], and slow requests aren't affected. With
//!   several it is 30 s, the default of the block layer, and the kernel also shuts down a connection that
//!   hasn't answered a request by then. The server then has to end and another one to be started, since it
//!   may carry out that request after the kernel has resent it.
//!
//! The module `netlink` encodes the messages.

mod netlink;

use crate::sysfs;
use block::{Error, Result};
use netlink::{Answer, CONTROLLER, Request};
use rustix::io::retry_on_intr;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Time after which requests in flight on a lost connection are resent, with one connection.
pub const RESEND_TIME: Duration = Duration::from_secs(5);
/// Time limit of an answer. The kernel answers before the request's send returns.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// Limit of the datagrams of an answer.
const MAX_DATAGRAMS: usize = 16;
/// Longest datagram in bytes: an error contains the request.
const LONGEST: usize = 16 << 10;
/// First version of Linux whose devices have a backend.
const FIRST_VERSION: (u32, u32) = (5, 14);
const FAMILY_NAME: &str = "nbd";

mod controller {
    pub(super) const GET_FAMILY: u8 = 3;
    pub(super) const FAMILY_ID: u16 = 1;
    pub(super) const FAMILY_NAME: u16 = 2;
}

/// Commands (include/uapi/linux/nbd-netlink.h).
mod command {
    pub(super) const CONNECT: u8 = 1;
    pub(super) const DISCONNECT: u8 = 2;
    pub(super) const RECONFIGURE: u8 = 3;
}

/// Attributes (include/uapi/linux/nbd-netlink.h).
mod attribute {
    pub(super) const INDEX: u16 = 1;
    pub(super) const SIZE_BYTES: u16 = 2;
    pub(super) const BLOCK_SIZE_BYTES: u16 = 3;
    pub(super) const TIMEOUT: u16 = 4;
    pub(super) const SERVER_FLAGS: u16 = 5;
    pub(super) const CLIENT_FLAGS: u16 = 6;
    pub(super) const SOCKETS: u16 = 7;
    pub(super) const DEAD_CONN_TIMEOUT: u16 = 8;
    pub(super) const BACKEND_IDENTIFIER: u16 = 10;
    /// Inside SOCKETS.
    pub(super) const SOCK_ITEM: u16 = 1;
    /// Inside SOCK_ITEM.
    pub(super) const SOCK_FD: u16 = 1;
}

/// A device to connect.
#[derive(Debug, Clone)]
pub struct Client {
    /// Size in bytes.
    pub bytes: u64,
    /// Logical block size in bytes: 512 to 4096.
    pub sector_size: u32,
    /// Transmission flags of the export.
    pub flags: u16,
    /// Time for which requests wait for another server, rounded up to whole seconds, at least one.
    pub dead_limit: Duration,
}

/// A netlink socket, and NBD's family.
struct Control {
    socket: OwnedFd,
    family: u16,
    sequence: u32,
}

fn failed(error: rustix::io::Errno, doing: &str) -> Error {
    Error::from_io(&error.into(), doing)
}

impl Control {
    /// Looks the family up, which loads the module if it is installed.
    ///
    /// # Errors
    /// [`Error::Unsupported`] without the module; errors of the kernel.
    fn open() -> Result<Control> {
        let doing = "opening a netlink socket";
        let protocol = Some(rustix::net::netlink::GENERIC);
        let (family, kind) = (AddressFamily::NETLINK, SocketType::RAW);
        let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, protocol);
        let socket = socket.map_err(|error| failed(error, doing))?;
        for direction in [sockopt::Timeout::Recv, sockopt::Timeout::Send] {
            sockopt::set_socket_timeout(&socket, direction, Some(ANSWER_LIMIT))
                .map_err(|error| failed(error, doing))?;
        }
        let mut control = Control { socket, family: CONTROLLER, sequence: 0 };
        let request = control.request(controller::GET_FAMILY).text(controller::FAMILY_NAME, FAMILY_NAME);
        let answer = control.call(request, "looking up the family nbd").map_err(|error| match error {
            Error::NotFound(_) => Error::unsupported(
                "the kernel's NBD client isn't there: load the module with modprobe nbd".to_owned(),
            ),
            error => error,
        })?;
        control.family = answer.u16(controller::FAMILY_ID).ok_or_else(|| missing("the family's number"))?;
        Ok(control)
    }

    fn request(&mut self, command: u8) -> Request {
        self.sequence += 1;
        Request::new(self.family, command, self.sequence)
    }

    /// Sends the last request that was begun, and receives the answer.
    fn call(&mut self, request: Request, doing: &str) -> Result<Answer> {
        let bytes = request.encode();
        retry_on_intr(|| rustix::net::send(&self.socket, &bytes, SendFlags::empty()))
            .map_err(|error| failed(error, doing))?;
        let mut answer = Answer::to(self.family, self.sequence);
        let mut buffer = vec![0; LONGEST];
        for _ in 0..MAX_DATAGRAMS {
            let mut receive = || rustix::net::recv(&self.socket, buffer.as_mut_slice(), RecvFlags::empty());
            let (length, _) = retry_on_intr(&mut receive).map_err(|error| match error {
                rustix::io::Errno::AGAIN => Error::timed_out(format!(
                    "{doing}: no answer of the kernel within {} s",
                    ANSWER_LIMIT.as_secs()
                )),
                error => failed(error, doing),
            })?;
            match answer.take(&buffer[..length])? {
                None => {}
                Some(Ok(())) => return Ok(answer),
                Some(Err(number)) => {
                    return Err(Error::from_io(&std::io::Error::from_raw_os_error(number), doing));
                }
            }
        }
        Err(Error::protocol(format!(
            "{doing}: more than {MAX_DATAGRAMS} datagrams without an acknowledgement"
        )))
    }
}

fn missing(what: &str) -> Error {
    Error::protocol(format!("netlink: an answer without {what}"))
}

fn sockets(request: Request, sockets: &[OwnedFd]) -> Request {
    request.nested(attribute::SOCKETS, |request| {
        sockets.iter().fold(request, |request, socket| {
            let descriptor = socket.as_raw_fd() as u32;
            request.nested(attribute::SOCK_ITEM, |item| item.u32(attribute::SOCK_FD, descriptor))
        })
    })
}

/// Checks that the kernel's client can be used: it is installed, and new enough to identify its devices.
/// Loads the module if it is installed.
///
/// # Errors
/// [`Error::Unsupported`] with the reason; errors of the kernel.
pub fn check() -> Result<()> {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    if version(&release).is_some_and(|version| version < FIRST_VERSION) {
        return Err(Error::unsupported(format!(
            "Linux {}: its NBD client doesn't identify its devices; expected Linux {}.{} or newer",
            release.trim(),
            FIRST_VERSION.0,
            FIRST_VERSION.1
        )));
    }
    Control::open().map(drop)
}

fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|character: char| !character.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// Path of the block device of this number.
fn node(index: u32) -> PathBuf {
    format!("/dev/nbd{index}").into()
}

fn index(node: &Path) -> Result<u32> {
    let index = node.to_str().and_then(|path| path.strip_prefix("/dev/nbd")?.parse().ok());
    index.ok_or_else(|| Error::invalid(format!("{}: expected a path /dev/nbdN", node.display())))
}

/// Whether the device exists and has this identifier; a disconnected device exists as long as it has users.
pub fn is_of(node: &Path, backend: &str) -> bool {
    sysfs::attribute(node, "backend").is_some_and(|text| text == backend)
}

/// The devices with an identifier.
pub fn all_of(backend: &str) -> Vec<PathBuf> {
    sysfs::nodes(|node| index(node).is_ok() && is_of(node, backend))
}

/// Connects a block device with this identifier to a server, over connections that have finished the
/// handshake without structured replies. Returns the node. The kernel keeps the connections; during the call
/// it reads the partition table.
///
/// # Errors
/// Errors of the kernel; EINVAL for several connections to an export that doesn't allow them.
pub fn connect(client: &Client, backend: &str, connections: &[OwnedFd]) -> Result<PathBuf> {
    let doing = "connecting the kernel's NBD client";
    let mut control = Control::open()?;
    let seconds = client.dead_limit.as_nanos().div_ceil(1_000_000_000).max(1) as u64;
    let request = control
        .request(command::CONNECT)
        .u64(attribute::SIZE_BYTES, client.bytes)
        .u64(attribute::BLOCK_SIZE_BYTES, u64::from(client.sector_size))
        .u64(attribute::SERVER_FLAGS, u64::from(client.flags))
        // The device remains when it is disconnected or closed: otherwise its number could be reused.
        .u64(attribute::CLIENT_FLAGS, 0)
        // Only the block layer's time limit, which an earlier client may have changed.
        .u64(attribute::TIMEOUT, 0)
        .u64(attribute::DEAD_CONN_TIMEOUT, seconds)
        .text(attribute::BACKEND_IDENTIFIER, backend);
    let answer = control.call(sockets(request, connections), doing)?;
    let index = answer.u32(attribute::INDEX).ok_or_else(|| missing("the device's number"))?;
    let node = node(index);
    if connections.len() == 1 {
        set_timer(&node);
    }
    match node.exists() {
        true => {
            // The kernel reads the partition table at the first open of the node.
            drop(std::fs::File::open(&node));
            Ok(node)
        }
        false => {
            let missing = Error::unsupported(format!(
                "{}: the kernel has the device, but not this node; expected a devtmpfs on /dev: mount one",
                node.display()
            ));
            disconnect(&node, backend).and(Err(missing))
        }
    }
}

/// Shortens the timer of requests. The client's own time limit is off, so when the timer fires the client
/// only checks whether the request's connection was replaced.
fn set_timer(node: &Path) {
    let Some(path) = sysfs::folder(node).map(|folder| folder.join("queue/io_timeout")) else { return };
    if let Err(error) = std::fs::write(&path, RESEND_TIME.as_millis().to_string()) {
        tracing::warn!("{}: {error}; requests of a lost server are sent again after 30 s", path.display());
    }
}

/// Replaces dead connections of a device by new ones. New connections without a dead one are closed.
///
/// # Errors
/// [`Error::NotFound`] if the device doesn't exist any more; errors of the kernel.
pub fn reconnect(node: &Path, backend: &str, connections: &[OwnedFd]) -> Result<()> {
    if !is_of(node, backend) {
        return Err(Error::not_found(format!(
            "{}: the device isn't that of {backend} any more",
            node.display()
        )));
    }
    let mut control = Control::open()?;
    let request = control
        .request(command::RECONFIGURE)
        .u32(attribute::INDEX, index(node)?)
        .text(attribute::BACKEND_IDENTIFIER, backend);
    let doing = format!("reconnecting {}", node.display());
    control.call(sockets(request, connections), &doing).map(drop)
}

/// Disconnects a device, whose users get I/O errors afterwards. Does nothing if the device doesn't exist or
/// has another identifier.
///
/// # Errors
/// Errors of the kernel.
pub fn disconnect(node: &Path, backend: &str) -> Result<()> {
    if !is_of(node, backend) {
        return Ok(());
    }
    let mut control = Control::open()?;
    let request = control.request(command::DISCONNECT).u32(attribute::INDEX, index(node)?);
    control.call(request, &format!("disconnecting {}", node.display())).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_begin_with_a_version() {
        assert_eq!(version("6.12.117+deb12-amd64\n"), Some((6, 12)));
        assert_eq!(version("5.4\n"), Some((5, 4)));
        assert_eq!(version(""), None);
    }

    #[test]
    fn nodes_have_numbers() {
        assert_eq!(index(&node(12)), Ok(12));
        for path in ["/dev/nbd", "/dev/nbd1p2", "/dev/loop1"] {
            assert!(matches!(index(Path::new(path)), Err(Error::Invalid(_))), "{path}");
        }
    }

    /// The controller of families answers on every kernel with networking.
    #[test]
    fn the_kernel_answers() {
        match Control::open() {
            Ok(control) => assert_ne!(control.family, CONTROLLER),
            Err(Error::Unsupported(text)) => assert!(text.contains("modprobe nbd"), "{text}"),
            Err(error) => println!("SKIPPED: {error}"),
        }
    }

    #[test]
    fn devices_of_others_are_left_alone() {
        assert_eq!(disconnect(Path::new("/dev/nbd0"), "/nowhere/to/be/found"), Ok(()));
        assert_eq!(all_of("/nowhere/to/be/found"), Vec::<PathBuf>::new());
        let reconnected = reconnect(Path::new("/dev/nbd0"), "/nowhere/to/be/found", &[]);
        assert!(reconnected.is_err());
    }
}
