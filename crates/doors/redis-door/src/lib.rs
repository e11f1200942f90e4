//! The door of the key-value store: the kind `kv` of a stack, which opens a store and serves it to redis
//! clients.
//!
//! Without I/O: `command` and `table` (commands and their arguments), `pattern` and `scan_cursors` (of
//! `SCAN`), `transaction` (refusal of transactions), `facts` (state of the server and of a connection).
//! `execute` executes commands on the store; `server_commands` has those about the server itself.
//! `connection` serves one client; [`server`] listens and distributes connections to shards. [`client`] is
//! the client of the command line. [`kind`] is the part of a stack; [`storage`] opens its store.
//!
//! Elsewhere: the protocol (`resp`), the store (`kv`).
#![doc = include_str!("../DESIGN.md")]

pub mod client;
mod command;
mod connection;
mod execute;
mod facts;
#[doc(hidden)]
pub mod fuzzing;
pub mod kind;
mod password_hash;
mod pattern;
mod scan_cursors;
pub mod server;
mod server_commands;
pub mod storage;
mod table;
mod transaction;
pub mod users;

pub use kind::KIND;
