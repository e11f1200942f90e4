//! Maps by name.

use super::{Map, Radix};
use block::{Error, Result};
use std::sync::Arc;

/// The names of all maps, the default first.
pub const NAMES: [&str; 1] = ["radix"];

/// An empty map of this kind, of so many blocks.
///
/// # Errors
/// [`Error::Invalid`] if there is none of this name; [`Error::OutOfMemory`] where its tables don't fit.
pub fn make(name: &str, blocks: u64) -> Result<Arc<dyn Map>> {
    Ok(match name {
        "radix" => Arc::new(Radix::new(blocks)?),
        other => {
            let text = format!("map {other:?}: expected one of {}", NAMES.join(", "));
            return Err(Error::invalid(text));
        }
    })
}
