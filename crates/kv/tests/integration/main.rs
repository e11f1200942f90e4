//! Tests of the key-value store through its public interface.
#![allow(clippy::unwrap_used)]

mod redis;
