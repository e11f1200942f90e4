//! A device on a Redis or Valkey server or cluster: each MiB of the device is one string, read and written by range commands.
//!
//! # Promises
//! - A read returns what the server that has the string at that moment returns; missing bytes are zeros. A reply that isn't the expected one,
//!   or is longer than it may be, is an error, and the connection is closed: nothing else is harmed.
//! - A command isn't sent again later than 1.9 seconds after it was given, its wait for a turn included; an attempt takes 3 seconds at most:
//!   redirections, a failover and resharding are followed within this time. A write whose connection broke before its reply isn't repeated: it
//!   is an error, since nothing tells whether it was carried out, or still will be.
//! - A handle never shows what a server holds that was restarted under it: it fails from then on, and another one has to be opened.
//! - A handle has 128 requests in flight at most, or less than 8 MiB of data. Other memory: a reply of 1 MiB for each server.
//!
//! # What is left to others
//! A failover loses writes that were acknowledged and not yet replicated: older bytes, or zeros, are read. Only a layer with checksums of its own
//! notices, such as `remote`. Copies, persistence and limits of memory are the cluster's.
//!
//! # Structure
//! `slots`: hash slots and the table of a cluster. `failure`: error replies, and what follows from them. `connection`: one connection.
//! `client`: the servers of a handle, redirections and retries. `device`: the calls of a device. `leaf`: the kind of stacks.

mod client;
mod connection;
mod device;
mod failure;
mod leaf;
mod slots;

pub use leaf::{Config, Credentials, KIND, RedisPart};
