//! Clients whose requests the current task carries out, for observers of calls.
//!
//! A door wraps the futures of a client by [`attributed`]; whoever is called below it on the same task learns
//! the client by [`origin`]. Calls to other shards keep it. A task that is spawned has none, since it may serve
//! several clients.

use std::cell::Cell;
use std::fmt;
use std::future::poll_fn;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::pin::pin;

/// Client of a door.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Origin {
    /// No client, or an unknown one.
    #[default]
    Nobody,
    /// Process of this machine, by its number.
    Process(u32),
    /// Address and port of another machine, or of this one by TCP; an IPv4 address is mapped to IPv6.
    Peer([u8; 16], u16),
}

impl Origin {
    /// Returns the origin of the requests of a process; 0 is an unknown one.
    pub fn of_process(number: u32) -> Origin {
        if number == 0 { Origin::Nobody } else { Origin::Process(number) }
    }

    /// Returns the origin of the requests of a peer.
    pub fn of_peer(peer: SocketAddr) -> Origin {
        let address = match peer.ip() {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => address,
        };
        Origin::Peer(address.octets(), peer.port())
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Nobody => formatter.write_str("-"),
            Origin::Process(number) => write!(formatter, "process {number}"),
            Origin::Peer(octets, port) => {
                let address = Ipv6Addr::from(*octets).to_canonical();
                SocketAddr::new(address, *port).fmt(formatter)
            }
        }
    }
}

thread_local! {
    static ORIGIN: Cell<Origin> = const { Cell::new(Origin::Nobody) };
}

/// Returns the client whose requests the current task carries out.
#[inline]
pub fn origin() -> Origin {
    ORIGIN.get()
}

/// Attributes the calls that a future makes to a client.
pub async fn attributed<F: Future>(origin: Origin, future: F) -> F::Output {
    let mut future = pin!(future);
    poll_fn(move |context| {
        let outer = ORIGIN.replace(origin);
        let polled = future.as_mut().poll(context);
        // After a panic, which ends the run, nothing asks for the origin.
        ORIGIN.set(outer);
        polled
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Simulation, simulate, spawn, spawn_on, yield_now};

    #[test]
    fn an_origin_is_that_of_its_calls_only() {
        let main = || async {
            let client = Origin::of_process(7);
            let task = spawn(attributed(client, async {
                let before = origin();
                yield_now().await;
                let inner = attributed(Origin::of_process(8), async { origin() }).await;
                let distant = spawn_on(crate::ShardIndex(1), || async {
                    yield_now().await;
                    origin()
                });
                let spawned = spawn(async { origin() }).await;
                (before, inner, distant.await.unwrap(), spawned, origin())
            }));
            yield_now().await;
            assert_eq!(origin(), Origin::Nobody, "that of another task");
            assert_eq!(task.await, (client, Origin::Process(8), client, Origin::Nobody, client));
        };
        simulate(Simulation { shards: 2, ..Simulation::new(1) }, main).unwrap();
    }

    #[test]
    fn origins_are_shown() {
        for (address, expected) in
            [("10.0.0.1:80", "10.0.0.1:80"), ("[::1]:5", "[::1]:5"), ("[fe80::1]:9", "[fe80::1]:9")]
        {
            assert_eq!(Origin::of_peer(address.parse().unwrap()).to_string(), expected);
        }
        assert_eq!(Origin::of_process(0).to_string(), "-");
        assert!(size_of::<Origin>() <= 20);
    }
}
