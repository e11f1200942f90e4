//! The log kit: what everything log-structured stands on. It knows nothing of maps, versions, files or keys.
//!
//! - [`record`]: the records that an owner appends; [`summary`]: the records of a full zone, listed at its end.
//! - [`cleaning`]: which zone is cleaned next, and which data is written together.
//!
//! Left to others: what records mean (the log device, the file system, the key-value store), zones (`zones`), and running
//! the calls (`runtime`).

pub mod cleaning;
pub mod record;
pub mod summary;
