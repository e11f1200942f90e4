//! A device on a Redis or Valkey server or cluster: each MiB of the device is one string, read and written by
//! range commands.
//!
//! # Promises
//! - A read returns the bytes of the server that has the string at that moment; missing bytes are zeros. An
//!   unexpected or too long reply is an error that closes the connection; other connections are unaffected.
//! - A command is retried for at most 1.9 seconds, its wait for a permit included, and an attempt takes at
//!   most 3 seconds. Redirections, a failover and resharding are followed within this time. A write whose
//!   connection broke before its reply is an error and isn't repeated: the server may have carried it out, or
//!   may still do so.
//! - A handle never returns data of a server that restarted under it: all its calls fail from then on, and a
//!   new handle has to be opened.
//! - A handle has at most 128 requests in flight, or less than 8 MiB of data. In addition, each server needs
//!   memory for a reply of 1 MiB.
//!
//! # Limits
//! A failover loses writes that were acknowledged and not yet replicated: reads then return older bytes or
//! zeros. Only a layer with checksums of its own detects that, such as `remote`. Replication, persistence and
//! limits of memory are up to the cluster.
//!
//! # Structure
//! `slots`: hash slots and the table of a cluster. `failure`: classification of failed commands.
//! `connection`: one connection. `client`: servers of a handle, redirections and retries. `device`: the calls
//! of a device. `leaf`: the kind `redis`.

mod client;
mod connection;
mod device;
mod failure;
mod leaf;
mod slots;

pub use leaf::{Config, Credentials, KIND, RedisPart};
