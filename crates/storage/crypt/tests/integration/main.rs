//! Tests of the encryption of devices.
#![allow(clippy::unwrap_used)]

mod luks;
mod plain;
mod suite;
