//! Messages between holder and server, over a socket pair whose one end is the server's standard input: one
//! message in each direction, with the descriptors of `/dev/fuse`, or of the connections for the kernel's NBD
//! client. The last descriptor of the holder's message is memory that it keeps for the stack.
//!
//! After a reload the two have different versions, and a server that doesn't understand its holder is
//! replaced by one of the holder's version: add fields with a default.
//!
//! The holder's message has the connection of the previous server, if there was one. The server answers when
//! clients are served.

use super::driver::Driver;
use block::{Error, Result};
use fuse::Negotiated;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use serde::{Deserialize, Serialize};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Limit of the descriptors of a message, by the kernel (SCM_MAX_FD). Each shard has one, and kept memory has
/// one.
pub const MAX_DESCRIPTORS: usize = 253;
/// Longest message in bytes; the stack's text is the longest part.
const LONGEST: usize = 128 << 10;

/// Connection between kernel and server, which outlives the server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Connection {
    /// A FUSE session; its descriptors are sent with the message.
    Fuse(Negotiated),
    /// Number of a ublk device.
    Ublk(u32),
    /// Transmission flags of an NBD export. The server passes its connections, for the kernel; the holder
    /// doesn't keep them.
    Nbd(u16),
}

/// Message of the holder to a new server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    /// Driver of the node.
    pub driver: Driver,
    /// Path of the volume in the attachment's folder.
    pub volume: std::path::PathBuf,
    /// The stack in TOML, used in place of its file, which may have changed since; `None` for a stack of one
    /// line.
    pub text: Option<String>,
    /// Connection that the previous server left; `None` for the first server.
    pub left: Option<Connection>,
}

/// Message of a server when clients are served.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {
    /// Connection to the kernel.
    pub connection: Connection,
    /// Size of the device in bytes.
    pub bytes: u64,
    /// Block size of the device in bytes.
    pub block_size: u32,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Whether zones are served.
    pub is_zoned: bool,
    /// Whether acknowledged writes survive the server; otherwise no other server may take over.
    pub keeps_acknowledged: bool,
}

impl Ready {
    /// Reason why no other server may take over; `None` if one may.
    pub fn why_not_replaced(&self, driver: Driver) -> Option<&'static str> {
        if self.is_zoned {
            return Some("zones that were open when their server was lost accept no more writes");
        }
        match self.keeps_acknowledged {
            false => Some("this stack acknowledges writes from its server's memory, which are lost"),
            true => driver.node_driver().why_not_replaced(&self.connection),
        }
    }

    /// Whether a server with the properties `other` can answer requests to this device: the device may have
    /// grown, the node keeps its size.
    pub fn can_be_answered_by(&self, other: &Ready) -> bool {
        self.bytes <= other.bytes && (self.block_size, self.read_only) == (other.block_size, other.read_only)
    }
}

fn failed(error: rustix::io::Errno, doing: &str) -> Error {
    Error::from_io(&error.into(), doing)
}

/// Creates the two ends of a connection. The server's end is passed to the server; otherwise neither survives
/// an exec.
///
/// # Errors
/// Errors of the kernel.
pub fn pair() -> Result<(OwnedFd, OwnedFd)> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let made = rustix::net::socketpair(family, kind, SocketFlags::CLOEXEC, None);
    made.map_err(|error| failed(error, "creating a pair of sockets"))
}

/// Sends a message with descriptors. Blocks the thread.
///
/// # Errors
/// [`Error::Invalid`] for more than [`MAX_DESCRIPTORS`] descriptors; errors of the kernel.
pub fn send(
    socket: &OwnedFd,
    message: &impl Serialize,
    descriptors: &[OwnedFd],
    kept_memory: Option<&OwnedFd>,
) -> Result<()> {
    let most = MAX_DESCRIPTORS - 1;
    if descriptors.len() > most {
        return Err(Error::invalid(format!(
            "{} shards: an attached stack can have at most {most}; set shards = {most} or less",
            descriptors.len()
        )));
    }
    let text = serde_json::to_vec(message).map_err(|error| Error::invalid(error.to_string()))?;
    if text.len() > LONGEST {
        return Err(Error::invalid(format!(
            "stack file: {} bytes; expected at most {LONGEST}; remove comments",
            text.len()
        )));
    }
    let descriptors: Vec<BorrowedFd<'_>> = descriptors.iter().chain(kept_memory).map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let _fits = ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
    let sent = rustix::net::sendmsg(socket, &[IoSlice::new(&text)], &mut ancillary, SendFlags::NOSIGNAL);
    sent.map(|_| ()).map_err(|error| failed(error, "sending a message of an attachment"))
}

/// Receives a message with descriptors. Blocks the thread until it arrives.
///
/// # Errors
/// [`Error::Closed`] if the other process has ended; [`Error::Protocol`] for another message; errors of the
/// kernel.
pub fn receive<T: for<'a> Deserialize<'a>>(socket: &OwnedFd) -> Result<(T, Vec<OwnedFd>)> {
    let mut text = vec![0; LONGEST];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::io::retry_on_intr(|| {
        let mut slices = [IoSliceMut::new(&mut text)];
        rustix::net::recvmsg(socket, &mut slices, &mut ancillary, RecvFlags::CMSG_CLOEXEC)
    });
    let length = received.map_err(|error| failed(error, "receiving a message of an attachment"))?.bytes;
    let mut descriptors = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            descriptors.extend(received);
        }
    }
    if length == 0 {
        return Err(Error::closed("the other process of the attachment has ended"));
    }
    let message = serde_json::from_slice(&text[..length]);
    message.map(|message| (message, descriptors)).map_err(|error| {
        Error::protocol(format!("message of an attachment: {error}; use one version of the program for both"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    #[test]
    fn descriptors_come_with_their_message() {
        let (one, other) = pair().unwrap();
        let (reader, writer) = std::io::pipe().unwrap();
        let start = Start {
            driver: Driver::Fuse,
            volume: "/run/siltstone/vol/volume".into(),
            text: Some("x".repeat(99_999)),
            left: Some(Connection::Ublk(3)),
        };
        send(&one, &start, &[], Some(&OwnedFd::from(writer))).unwrap();
        let (received, mut descriptors): (Start, _) = receive(&other).unwrap();
        assert_eq!(received, start);
        let mut writer = std::fs::File::from(descriptors.pop().unwrap());
        writer.write_all(b"text").unwrap();
        drop((writer, descriptors));
        let mut text = String::new();
        std::fs::File::from(OwnedFd::from(reader)).read_to_string(&mut text).unwrap();
        assert_eq!(text, "text");
    }

    #[test]
    fn the_end_of_the_other_process_and_other_messages_are_errors() {
        let (one, other) = pair().unwrap();
        send(&one, &"text", &[], None).unwrap();
        assert!(matches!(receive::<Start>(&other), Err(Error::Protocol(_))));
        drop(one);
        assert!(matches!(receive::<Start>(&other), Err(Error::Closed(_))));
    }
}
