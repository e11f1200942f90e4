//! Clients whose requests the current task carries out, for observers of calls.
//!
//! A door wraps the futures of a client by [`attributed`]; parts that are called below it on the same task
//! learn the client by [`requester`]. Calls to other shards keep it. A task that is spawned has none, since
//! it may serve several clients.
#![allow(unsafe_code)] // A pointer to the requester of the future that is being polled.

use std::cell::Cell;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll};

/// Client of a door.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Requester {
    /// No client, or an unknown one.
    #[default]
    Nobody,
    /// Process of this machine, by its number.
    Process(u32, ProcessName),
    /// Address and port of another machine, or of this one by TCP; an IPv4 address is mapped to IPv6.
    Peer([u8; 16], u16),
}

/// Name of the program of a process, of at most 15 bytes; empty if it isn't known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ProcessName([u8; 15]);

impl ProcessName {
    /// Returns the name of a process; empty once it has ended. Reads a file of procfs.
    pub fn of(number: u32) -> ProcessName {
        let mut name = ProcessName::default();
        if let Ok(text) = std::fs::read(format!("/proc/{number}/comm")) {
            let text = text.trim_ascii_end();
            let length = text.len().min(name.0.len());
            name.0[..length].copy_from_slice(&text[..length]);
        }
        name
    }

    /// Whether the name isn't known.
    pub fn is_empty(&self) -> bool {
        self.0[0] == 0
    }
}

impl fmt::Display for ProcessName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let length = self.0.iter().position(|byte| *byte == 0).unwrap_or(self.0.len());
        String::from_utf8_lossy(&self.0[..length]).fmt(formatter)
    }
}

impl Requester {
    /// Returns a process as the requester; 0 is an unknown one. The name isn't looked up.
    pub fn of_process(number: u32) -> Requester {
        if number == 0 { Requester::Nobody } else { Requester::Process(number, ProcessName::default()) }
    }

    /// Returns the requester with the name of its process, if it has one and isn't named yet.
    #[must_use]
    pub fn named(self) -> Requester {
        match self {
            Requester::Process(number, name) if name.is_empty() => {
                Requester::Process(number, ProcessName::of(number))
            }
            requester => requester,
        }
    }

    /// Returns a peer as the requester.
    pub fn of_peer(peer: SocketAddr) -> Requester {
        let address = match peer.ip() {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => address,
        };
        Requester::Peer(address.octets(), peer.port())
    }
}

impl fmt::Display for Requester {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Requester::Nobody => formatter.write_str("-"),
            Requester::Process(number, name) if name.is_empty() => write!(formatter, "process {number}"),
            Requester::Process(number, name) => write!(formatter, "process {number} ({name})"),
            Requester::Peer(octets, port) => {
                let address = Ipv6Addr::from(*octets).to_canonical();
                SocketAddr::new(address, *port).fmt(formatter)
            }
        }
    }
}

thread_local! {
    /// Requester of the innermost [`attributed`] future that is being polled; null without one. A pointer,
    /// because every poll of a connection sets it.
    static REQUESTER: Cell<*const Requester> = const { Cell::new(std::ptr::null()) };
}

/// Resets the requester when a poll ends, also with a panic.
struct Outer(*const Requester);

impl Drop for Outer {
    #[inline]
    fn drop(&mut self) {
        REQUESTER.set(self.0);
    }
}

/// Returns the client whose requests the current task carries out.
#[inline]
pub fn requester() -> Requester {
    let requester = REQUESTER.get();
    // SAFETY: it is null, or points into a future that is being polled: `Outer` resets it when the poll ends.
    unsafe { requester.as_ref() }.copied().unwrap_or_default()
}

/// Attributes the calls that a future makes to a client.
pub fn attributed<F: Future>(requester: Requester, future: F) -> Attributed<F> {
    Attributed { requester, future }
}

/// Future of [`attributed`]. Not an `async` block, whose state would cost as much as the requester.
#[must_use = "a future does nothing until it is awaited"]
pub struct Attributed<F> {
    requester: Requester,
    future: F,
}

impl<F: Future> Future for Attributed<F> {
    type Output = F::Output;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        // SAFETY: the future is pinned as a field of this, and never moved out; nothing here has a `Drop`.
        let this = unsafe { self.get_unchecked_mut() };
        let _outer = Outer(REQUESTER.replace(&raw const this.requester));
        // SAFETY: as above.
        unsafe { Pin::new_unchecked(&mut this.future) }.poll(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Simulation, simulate, spawn, spawn_on, yield_now};

    #[test]
    fn a_requester_is_that_of_its_calls_only() {
        let main = || async {
            let client = Requester::of_process(7);
            let task = spawn(attributed(client, async {
                let before = requester();
                yield_now().await;
                let inner = attributed(Requester::of_process(8), async { requester() }).await;
                let distant = spawn_on(crate::ShardIndex(1), || async {
                    yield_now().await;
                    requester()
                });
                let spawned = spawn(async { requester() }).await;
                (before, inner, distant.await.unwrap(), spawned, requester())
            }));
            yield_now().await;
            assert_eq!(requester(), Requester::Nobody, "that of another task");
            assert_eq!(task.await, (client, Requester::of_process(8), client, Requester::Nobody, client));
        };
        simulate(Simulation { shards: 2, ..Simulation::new(1) }, main).unwrap();
    }

    #[test]
    fn requesters_are_shown() {
        for (address, expected) in
            [("10.0.0.1:80", "10.0.0.1:80"), ("[::1]:5", "[::1]:5"), ("[fe80::1]:9", "[fe80::1]:9")]
        {
            assert_eq!(Requester::of_peer(address.parse().unwrap()).to_string(), expected);
        }
        assert_eq!(Requester::of_process(0).to_string(), "-");
        let own = Requester::of_process(std::process::id()).named();
        assert!(own.to_string().starts_with(&format!("process {} (", std::process::id())), "{own}");
        assert_eq!(Requester::of_process(u32::MAX).named().to_string(), format!("process {}", u32::MAX));
    }
}
