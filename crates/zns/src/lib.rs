//! An emulated drive with zoned namespaces.
//!
//! - [`machine`]: zone states, commands and status codes of the specification, without I/O.

pub mod machine;
