//! What the tests that cross crates share.

pub mod oracle;
pub mod foreign;
