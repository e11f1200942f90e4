//! Base manifests that are written beside the deltas.
//!
//! # Promises
//! - A base of manifest `n` has the state after it. Deltas continue while it is written; those after that
//!   link to it. So a commit waits for a base only when [`MAX_CHAIN`] deltas, or half of [`MAX_DELTA_BYTES`],
//!   have no newer one.
//! - What the new base replaces is garbage once a durable delta links to it: until then opening needs it.
//!
//! Left to others: the deltas (`manifest_log`), and the first base of an epoch (`opening`).

use crate::format::{Kind, Manifest};
use crate::manifest_log::Position;
use crate::manifests::{Identity, MAX_MANIFEST, Manifests};
use crate::names::Name;
use crate::table::Table;
use block::{Data, Error, Result};
use object_store::Condition;
use std::cell::{Cell, RefCell};

/// Most deltas without a newer base, less than an opening reads.
pub(crate) const MAX_CHAIN: u64 = 896;
/// Numbers of deltas after which a base follows: fewer for a small one.
const CHAIN: (u64, u64) = (256, 512);
/// Bytes of a base for which a delta more is permitted, so that bases of small flushes are few bytes.
const BYTES_PER_DELTA: u64 = 4096;
/// Bytes of deltas after which a base follows, unless the base is larger.
const MAX_DELTAS: usize = 1 << 20;
/// Most bytes of all deltas that opening reads.
pub(crate) const MAX_DELTA_BYTES: usize = MAX_MANIFEST;

/// Bases of a writer.
#[derive(Debug, Default)]
pub(crate) struct Bases {
    /// Number of the base that is being written.
    writing: Cell<Option<u64>>,
    /// Bytes of deltas since that.
    delta_bytes: Cell<usize>,
    /// Garbage once a delta links to the newest base.
    replaced: RefCell<Vec<Name>>,
}

/// Whether a base follows the manifest at this position.
fn is_due(position: &Position) -> bool {
    let deltas = (position.base_bytes as u64 / BYTES_PER_DELTA).clamp(CHAIN.0, CHAIN.1);
    position.number - position.base > deltas
        || position.delta_bytes > position.base_bytes.clamp(MAX_DELTAS, MAX_DELTA_BYTES / 4)
}

/// Whether a delta has to wait for a newer base, so that opening reads a bounded number of bounded length.
pub(crate) fn must_end(position: &Position) -> bool {
    position.number - position.base >= MAX_CHAIN || position.delta_bytes > MAX_DELTA_BYTES / 2
}

/// Name of a base: that of the first manifest of an epoch is in the sequence of the others.
pub(crate) fn name(epoch: u32, number: u64) -> Name {
    match number {
        1 => Name::Manifest { epoch, number },
        _ => Name::Base { epoch, number },
    }
}

impl Bases {
    /// The base after the manifest at this position, if one is to be written now.
    pub fn begin(&self, position: &Position, identity: &Identity, table: &Table) -> Option<Manifest> {
        if self.writing.get().is_some() || !is_due(position) {
            return None;
        }
        self.writing.set(Some(position.number));
        self.delta_bytes.set(position.delta_bytes);
        Some(identity.manifest(position.number, Kind::Base, position.number, table.encode()))
    }

    /// Writes the base that was begun, by one attempt. It may be called again with the same bytes after an
    /// error: no other writer creates objects of this epoch but seals.
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn write(&self, manifests: &Manifests, identity: &Identity, bytes: &Data) -> Result<()> {
        let Some(number) = self.writing.get() else { return Ok(()) };
        let key = manifests.names.key(name(identity.epoch, number));
        // It was written by an attempt before if it is there.
        manifests.store.put(&key, bytes.clone().into(), &Condition::Absent).await.map(drop)
    }

    /// Position after the base was written.
    pub fn end(&self, position: Position, epoch: u32, bytes: usize) -> Position {
        let Some(base) = self.writing.take() else { return position };
        let deltas = (position.base + 1..=base).map(|number| Name::Manifest { epoch, number });
        self.replaced.borrow_mut().extend(deltas.chain([name(epoch, position.base)]));
        let delta_bytes = position.delta_bytes.saturating_sub(self.delta_bytes.get());
        Position { base, base_bytes: bytes, delta_bytes, ..position }
    }

    /// Takes what isn't needed any more, after a delta that links to the newest base was created.
    pub fn replaced(&self) -> Vec<Name> {
        self.replaced.take()
    }
}

/// Refuses a table whose base couldn't be written.
///
/// # Errors
/// [`Error::NoSpace`] with the number of pieces.
pub(crate) fn check_length(table: &Table) -> Result<()> {
    match table.longest_encoding() + MANIFEST_HEADER {
        length if length <= MAX_MANIFEST => Ok(()),
        length => Err(Error::no_space(format!(
            "the zone table has {} pieces, a manifest of {length} bytes; expected at most {MAX_MANIFEST}: flush less often, so that pieces are larger",
            table.stored().0
        ))),
    }
}

/// Bytes of a manifest without its body, at most.
pub(crate) const MANIFEST_HEADER: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bases_follow_many_deltas_or_long_ones() {
        let position = |deltas: u64, base_bytes, delta_bytes| Position {
            number: 7 + deltas,
            base: 7,
            base_bytes,
            delta_bytes,
        };
        for (deltas, base_bytes, delta_bytes, expected) in [
            (256, 100, 1000, false),
            (257, 100, 1000, true),
            (3, 100, 1 << 20, false),
            (3, 100, (1 << 20) + 1, true),
            // A TiB in pieces of 8 MiB.
            (512, 2 << 20, 1 << 21, false),
            (513, 2 << 20, 0, true),
            (3, 2 << 20, (2 << 20) + 1, true),
        ] {
            let position = position(deltas, base_bytes, delta_bytes);
            assert_eq!(is_due(&position), expected, "{position:?}");
        }
        const { assert!(CHAIN.1 < MAX_CHAIN && MAX_CHAIN < 1024) };
    }
}
