//! Sessions with the kernel, and with a peer that sends arbitrary bytes.

mod hostile;
mod kernel;
mod memory;
