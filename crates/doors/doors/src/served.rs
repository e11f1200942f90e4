//! Common parts of the doors: devices that are served, whatever the protocol.
//!
//! - [`in_flight`]: the calls of many requests, driven by one task.
//! - [`work`]: execution of an operation on bytes of a device, partial blocks included.
//! - [`write_gate`]: protection of writes of partial blocks against lost updates.
//! - [`export`]: a device that is served, with its gate and its counters.
//! - `counters`: the declaration of counters; `metrics`: that of their metrics.
//! - [`unix_socket`]: keys of a door's unix socket.
//!
//! The doors have their protocols, check a request against its export, and bound the memory.

pub(crate) mod counters;
pub mod export;
pub mod in_flight;
pub(crate) mod metrics;
pub mod unix_socket;
pub mod work;
pub mod write_gate;
