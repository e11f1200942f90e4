//! A device on redis servers: scripted ones, that break the rules, and real ones.

#![allow(clippy::unwrap_used)]

mod cluster;
mod failover;
mod fake;
mod hostile;
mod plain;
mod servers;
mod support;
