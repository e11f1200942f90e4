//! Redis clients: the protocol RESP 2 and 3, the commands on strings, and the server.
//!
//! Without I/O: `resp` (parsing of requests), `reply` (replies), `command` and `table` (commands and their
//! arguments), `pattern` and `scan_cursors` (of `SCAN`), `transaction` (refusal of transactions), `facts`
//! (state of the server and of a connection). `execute` executes commands on the store; `server_commands` has
//! those about the server itself. `connection` serves one client; [`server`] listens and distributes
//! connections to shards. [`client`] is the client of the command line.

pub mod client;
pub(crate) mod command;
mod connection;
mod execute;
mod facts;
mod pattern;
mod reply;
pub(crate) mod resp;
mod scan_cursors;
pub mod server;
mod server_commands;
mod table;
mod transaction;
