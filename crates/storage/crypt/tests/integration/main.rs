//! Tests of the encryption of devices.
#![allow(clippy::unwrap_used)]

mod luks;
mod overlaps;
mod plain;
mod suite;
