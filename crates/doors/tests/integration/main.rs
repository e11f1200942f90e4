//! The NBD door over real sockets: its own client, clients that speak bytes, and hostile ones.

mod hostile;
mod kinds;
mod lifecycle;
mod memory;
mod requests;
mod silence;
mod support;
mod two_ends;
