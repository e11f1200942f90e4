//! The doors: NBD over real sockets, with its own client, clients that speak bytes, and hostile ones; FUSE against the kernel.

mod fuse;
mod fuse_support;
mod hostile;
mod kinds;
mod lifecycle;
mod memory;
mod requests;
mod silence;
mod support;
mod two_ends;
