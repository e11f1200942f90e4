//! An emulated drive with zoned namespaces.
//!
//! - [`machine`]: zone states, commands and status codes of the specification, without I/O.
//! - [`flash`]: placement of zones on dies and blocks, and the schedule of operations on them.
//! - [`profile`]: figures of drives, with their sources.
//! - [`reliability`]: bit errors by wear, retention, reads, page, layer and value; failing blocks.
//! - [`format`]: the bytes of a drive's file.

pub mod flash;
pub mod format;
pub mod machine;
pub mod profile;
pub mod reliability;
