//! Sessions against the kernel, and against a peer that sends any bytes.

mod hostile;
mod kernel;
mod memory;
