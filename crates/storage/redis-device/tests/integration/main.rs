//! The device on scripted servers that violate the protocol, and on real ones.

#![allow(clippy::unwrap_used)]

mod cluster;
mod failover;
mod fake;
mod hostile;
mod plain;
mod servers;
mod support;
