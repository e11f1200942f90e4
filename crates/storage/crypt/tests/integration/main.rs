//! Tests of the encryption of devices.

mod luks;
mod plain;
mod suite;
