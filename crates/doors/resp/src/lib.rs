//! The protocol RESP 2, and 3 for replies, in both directions, without I/O
//! (<https://redis.io/docs/latest/develop/reference/protocol-spec/>).
//!
//! - Client: [`put_command`] appends a command, [`parse`] and [`Scanner`] parse replies.
//! - Server: [`Parser`] parses commands, [`Replies`] collects replies.

mod replies;
mod reply;
mod request;

pub use replies::{ENOUGH, Protocol, Replies};
pub use reply::{Head, Reply, Scanner, check_any_bytes, head, invalid, parse};
pub use request::{
    Arguments, MAX_ARGUMENTS, MAX_COMMAND_BYTES, MAX_LINE_BYTES, Parser, ProtocolError, Step, integer,
    put_command, put_length, put_words,
};
