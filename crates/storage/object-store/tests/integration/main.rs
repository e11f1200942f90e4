//! The client on real stores, and on simulated ones that lose answers, lie and violate the protocol.

#![allow(clippy::unwrap_used)]

mod credentials;
mod hostile;
mod probe;
mod real;
mod retries;
mod servers;
mod worlds;
