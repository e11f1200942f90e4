//! Tests of memory nodes: borrowing, limits of lending, hostile peers.

#![allow(clippy::unwrap_used)]

mod borrowing;
mod hostile;
mod limits;
mod support;
mod tls_borrowers;
