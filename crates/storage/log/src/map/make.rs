//! Maps by name.

use super::{Btree, Hash, Map, MutexBtree, Radix, SkipList, Versioned};
use block::{Error, Result};
use std::sync::Arc;

/// Names of all maps, the default first.
pub const NAMES: [&str; 5] = ["radix", "hash", "skiplist", "btree", "mutex-btree"];

/// Returns an empty map of `blocks` blocks by its name.
///
/// # Errors
/// [`Error::Invalid`] for an unknown name; [`Error::OutOfMemory`] if the map's tables don't fit.
pub fn make(name: &str, blocks: u64) -> Result<Arc<dyn Map>> {
    Ok(match name {
        "radix" => Arc::new(Radix::new(blocks)?),
        "hash" => Arc::new(Versioned::new(Hash::default(), blocks)),
        "skiplist" => Arc::new(Versioned::new(SkipList::default(), blocks)),
        "btree" => Arc::new(Versioned::new(Btree::default(), blocks)),
        "mutex-btree" => Arc::new(Versioned::new(MutexBtree::default(), blocks)),
        other => {
            let text = format!("map {other:?}: expected one of {}", NAMES.join(", "));
            return Err(Error::invalid(text));
        }
    })
}
