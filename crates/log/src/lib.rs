//! The log-structured device and its maps.
//!
//! - [`map`]: where each block of a volume lies: one trait, several structures behind it, to be compared.
//!
//! Left to others: zones, records, roots and cleaning policies (`zones`), and running the calls (`runtime`).

pub mod map;
