//! Simulated sockets: pairs of queues of bytes.

use super::{SimulatedFaults, Step, put};
use crate::address::Address;
use crate::random::Random;
use block::{Buffer, Error, Result};
use std::collections::{BTreeMap, VecDeque};

/// Limit of the bytes in flight in one direction. At the limit the sender waits.
const ROOM: usize = 256 << 10;

struct Socket {
    /// `None` before the connection, and after the peer has closed.
    peer: Option<u64>,
    incoming: VecDeque<u8>,
    /// Whether the peer has ended its stream.
    ended: bool,
    /// Whether this side has ended its stream.
    shut: bool,
    descriptors: u32,
}

impl Socket {
    fn new(peer: Option<u64>) -> Self {
        Socket { peer, incoming: VecDeque::new(), ended: false, shut: false, descriptors: 1 }
    }
}

struct Backlog {
    address: Address,
    arrived: VecDeque<u64>,
}

#[derive(Default)]
pub(super) struct Network {
    sockets: BTreeMap<u64, Socket>,
    listeners: BTreeMap<u64, Backlog>,
}

impl Network {
    pub(super) fn listen(&mut self, handle: u64, address: &Address) -> Result<u64> {
        if self.listeners.values().any(|other| other.address == *address) {
            let text = format!("listening on {address}: address in use");
            return Err(Error::from_errno(libc::EADDRINUSE, text));
        }
        self.listeners.insert(handle, Backlog { address: address.clone(), arrived: VecDeque::new() });
        Ok(handle)
    }

    pub(super) fn new_socket(&mut self, handle: u64) {
        self.sockets.insert(handle, Socket::new(None));
    }

    pub(super) fn share(&mut self, handle: u64) {
        if let Some(socket) = self.sockets.get_mut(&handle) {
            socket.descriptors += 1;
        }
    }

    pub(super) fn accept(&mut self, listener: u64) -> Step {
        match self.listeners.get_mut(&listener).map(|backlog| backlog.arrived.pop_front()) {
            Some(Some(handle)) => Step::Done(handle as i32),
            Some(None) => Step::WaitFor(listener),
            None => Step::Done(-libc::EBADF),
        }
    }

    /// Connects. Also returns the sockets whose waiters have to try again.
    pub(super) fn connect(&mut self, socket: u64, accepted: u64, address: &Address) -> (Step, Option<u64>) {
        let listener = self.listeners.iter_mut().find(|(_, backlog)| backlog.address == *address);
        let Some((listener, backlog)) = listener else { return (Step::Done(-libc::ECONNREFUSED), None) };
        let Some(ours) = self.sockets.get_mut(&socket) else { return (Step::Done(-libc::EBADF), None) };
        ours.peer = Some(accepted);
        backlog.arrived.push_back(accepted);
        self.sockets.insert(accepted, Socket::new(Some(socket)));
        (Step::Done(0), Some(*listener))
    }

    pub(super) fn receive(
        &mut self,
        socket: u64,
        buffer: &mut Buffer,
        random: &mut Random,
        faults: &SimulatedFaults,
    ) -> (Step, Option<u64>) {
        let Some(ours) = self.sockets.get_mut(&socket) else { return (Step::Done(-libc::EBADF), None) };
        if ours.incoming.is_empty() && buffer.missing() > 0 {
            return match ours.ended {
                true => (Step::Done(0), None),
                false => (Step::WaitFor(socket), None),
            };
        }
        let mut count = ours.incoming.len().min(buffer.missing());
        if count > 1 && random.chance(faults.short) {
            count = 1 + random.below(count as u64 - 1) as usize;
        }
        let bytes: Vec<u8> = ours.incoming.drain(..count).collect();
        put(buffer, &bytes);
        (Step::Done(count as i32), ours.peer)
    }

    pub(super) fn send(
        &mut self,
        socket: u64,
        bytes: &[u8],
        random: &mut Random,
        faults: &SimulatedFaults,
    ) -> (Step, Option<u64>) {
        let Some(ours) = self.sockets.get(&socket) else { return (Step::Done(-libc::EBADF), None) };
        let peer = ours.peer.filter(|_| !ours.shut);
        let Some(theirs) = peer.and_then(|peer| self.sockets.get_mut(&peer)) else {
            return (Step::Done(-libc::EPIPE), None);
        };
        let room = ROOM - theirs.incoming.len().min(ROOM);
        if room == 0 {
            return (Step::WaitFor(socket), None);
        }
        let mut count = bytes.len().min(room);
        if count > 1 && random.chance(faults.short) {
            count = 1 + random.below(count as u64 - 1) as usize;
        }
        theirs.incoming.extend(&bytes[..count]);
        (Step::Done(count as i32), peer)
    }

    pub(super) fn shutdown(&mut self, socket: u64, how: i32) -> Option<u64> {
        let ours = self.sockets.get_mut(&socket)?;
        if how != libc::SHUT_WR {
            ours.ended = true;
        }
        if how == libc::SHUT_RD {
            return None;
        }
        ours.shut = true;
        let peer = ours.peer?;
        self.sockets.get_mut(&peer)?.ended = true;
        Some(peer)
    }

    pub(super) fn close(&mut self, handle: u64) -> Option<u64> {
        if let Some(backlog) = self.listeners.remove(&handle) {
            for socket in backlog.arrived {
                self.close(socket);
            }
        }
        let socket = self.sockets.get_mut(&handle)?;
        socket.descriptors -= 1;
        if socket.descriptors > 0 {
            return None;
        }
        let peer = self.sockets.remove(&handle)?.peer?;
        let theirs = self.sockets.get_mut(&peer)?;
        theirs.ended = true;
        theirs.peer = None;
        Some(peer)
    }
}
