//! Redis clients: the protocol RESP 2 and 3, the commands on strings, and the server.
//!
//! Without I/O of their own: [`resp`] (parsing of requests), [`reply`] (replies), [`command`] and [`table`] (the commands and their
//! arguments), [`pattern`] and [`cursors`] (of `SCAN`), [`gate`] (a lock), [`facts`] (state of the server and of a connection). [`execute`] carries
//! commands out on a [`store::Store`], which `served` implements for the key-value store; `server_commands` has those about the server itself. `connection` serves one
//! client; [`server`] listens and hands connections to shards. [`client`] is the client of the command line.

pub mod client;
pub mod command;
mod connection;
pub mod cursors;
pub mod execute;
pub mod facts;
pub mod gate;
pub mod pattern;
pub mod reply;
pub mod resp;
mod served;
pub mod server;
mod server_commands;
pub mod store;
pub mod table;
