//! Base manifests that are written beside the deltas.
//!
//! # Promises
//! - A base of manifest `n` has the state after it. Deltas continue while it is written; those after that
//!   link to it. So a commit waits for a base only when [`MAX_CHAIN`] deltas, or half of [`MAX_DELTA_BYTES`],
//!   have no newer one.
//! - What the new base replaces is garbage once a durable delta links to it: until then opening needs it.
//! - A base is valid only if the store has its bytes: other ones under its key are garbage, and the base
//!   after a later delta is written instead.
//!
//! Left to others: the deltas (`manifest_log`), and the first base of an epoch (`opening`).

use crate::format::{Kind, Manifest};
use crate::manifests::{Identity, MAX_MANIFEST, Manifests};
use crate::names::Name;
use crate::table::Table;
use block::{Data, Error, Result};
use object_store::{Condition, Put};
use std::cell::{Cell, RefCell};
use std::ops::RangeInclusive;

/// Most deltas without a newer base: at this number a commit waits for one.
pub(crate) const MAX_CHAIN: u64 = 896;
/// Most deltas without a newer base while each base is abandoned: at this number the writer ends.
const MAX_CHAIN_ABANDONED: u64 = 1000;
/// Most deltas of a chain that opening reads: a longer one isn't of this program.
pub(crate) const MAX_CHAIN_READ: u64 = 1024;
/// Numbers of deltas after which a base follows: fewer for a small one.
const DELTAS_PER_BASE: RangeInclusive<u64> = 256..=512;
/// Bytes of a base for which a delta more is permitted, so that bases of small flushes are few bytes.
const BYTES_PER_DELTA: u64 = 4096;
/// Bytes of deltas after which a base follows, unless the base is larger.
const MIN_BYTES_PER_BASE: usize = 1 << 20;
/// Most bytes of all deltas that opening reads.
pub(crate) const MAX_DELTA_BYTES: usize = MAX_MANIFEST;

/// Position in the manifests of an epoch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Position {
    /// Number of the last manifest.
    pub number: u64,
    /// Number of the base before it.
    pub base: u64,
    /// Bytes of the base, and of the deltas after it.
    pub base_bytes: usize,
    pub delta_bytes: usize,
}

/// Bases of a writer.
#[derive(Debug, Default)]
pub(crate) struct Bases {
    /// Number of the base that is being written.
    writing: Cell<Option<u64>>,
    /// Bytes of deltas since that.
    delta_bytes: Cell<usize>,
    /// Last number whose base was abandoned.
    abandoned: Cell<u64>,
    /// Garbage once a delta links to the newest base.
    replaced: RefCell<Vec<Name>>,
}

/// Whether a base follows the manifest at this position.
fn is_due(position: &Position) -> bool {
    let deltas = (position.base_bytes as u64 / BYTES_PER_DELTA)
        .clamp(*DELTAS_PER_BASE.start(), *DELTAS_PER_BASE.end());
    position.number - position.base > deltas
        || position.delta_bytes > position.base_bytes.clamp(MIN_BYTES_PER_BASE, MAX_DELTA_BYTES / 4)
}

/// Whether a delta has to wait for a newer base, so that opening reads a bounded number of bounded length.
fn must_end(position: &Position) -> bool {
    position.number - position.base >= MAX_CHAIN || position.delta_bytes > MAX_DELTA_BYTES / 2
}

/// Whether no further delta is permitted without a newer base.
fn is_full(position: &Position) -> bool {
    position.number - position.base >= MAX_CHAIN_ABANDONED || position.delta_bytes > MAX_DELTA_BYTES / 4 * 3
}

/// Whether an object of an epoch isn't needed any more, once its last delta links to base `linked`: deltas up
/// to that, and earlier bases. The first base has a number of its own among the deltas.
pub(crate) fn is_replaced(name: Name, of_epoch: u32, linked: u64) -> bool {
    match name {
        Name::Manifest { epoch, number } => epoch == of_epoch && linked > 1 && (1..=linked).contains(&number),
        Name::Base { epoch, number } => epoch == of_epoch && number < linked,
        Name::Piece(_) => false,
    }
}

impl Bases {
    /// The base after the manifest at this position, if one is to be written now.
    pub fn begin(&self, position: &Position, identity: &Identity, table: &Table) -> Option<Manifest> {
        let is_abandoned = self.abandoned.get() == position.number;
        if self.writing.get().is_some() || is_abandoned || !is_due(position) {
            return None;
        }
        self.writing.set(Some(position.number));
        self.delta_bytes.set(position.delta_bytes);
        let mut base = identity.manifest(position.number, Kind::Base, position.number, table.encode());
        base.is_compressed = table.stored().has_compressed();
        Some(base)
    }

    /// Writes the base that was begun, by one attempt, and returns whether the store has it: false if other
    /// bytes are under its key, such as those of an attempt that were damaged. It may be called again with
    /// the same bytes after an error.
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn write(&self, manifests: &Manifests, identity: &Identity, bytes: &Data) -> Result<bool> {
        let Some(number) = self.writing.get() else { return Ok(true) };
        let (store, key) = (&manifests.store, manifests.names.key(Name::base(identity.epoch, number)));
        if let Put::Written(_) = store.put(&key, bytes.clone().into(), &Condition::Absent).await? {
            return Ok(true);
        }
        // Of an attempt before, or others.
        match store.head(&key).await? {
            Some(found) if found.length != bytes.len() as u64 => return Ok(false),
            _ => {}
        }
        match store.get(&key, bytes.len()).await {
            Ok(found) => Ok(found.data.filled() == &bytes[..]),
            Err(Error::Corrupt(_) | Error::Protocol(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Abandons the base that was begun: other bytes have its key. Returns its name, which is garbage.
    pub fn abandon(&self, epoch: u32) -> Option<Name> {
        let number = self.writing.take()?;
        self.abandoned.set(number);
        Some(Name::base(epoch, number))
    }

    /// Whether a delta has to wait for a newer base, that of this position or one that is being written.
    ///
    /// # Errors
    /// [`Error::Io`] if it can't be written, and opening wouldn't read further deltas.
    pub fn must_wait(&self, position: &Position) -> Result<bool> {
        let is_abandoned = self.abandoned.get() == position.number;
        match must_end(position) {
            true if !is_abandoned => Ok(true),
            true if is_full(position) => Err(Error::io(format!(
                "the object store has other bytes under the keys of all base manifests after number {}; open the zones again, which begins another epoch",
                position.base
            ))),
            _ => Ok(false),
        }
    }

    /// Position after the base was written.
    pub fn end(&self, position: Position, epoch: u32, bytes: usize) -> Position {
        let Some(base) = self.writing.take() else { return position };
        let deltas = (position.base + 1..=base).map(|number| Name::Manifest { epoch, number });
        self.replaced.borrow_mut().extend(deltas.chain([Name::base(epoch, position.base)]));
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
            table.stored().pieces
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
        const {
            assert!(
                *DELTAS_PER_BASE.end() < MAX_CHAIN
                    && MAX_CHAIN < MAX_CHAIN_ABANDONED
                    && MAX_CHAIN_ABANDONED < MAX_CHAIN_READ
            )
        };
    }

    #[test]
    fn a_base_that_is_abandoned_delays_a_few_deltas_and_ends_the_writer_later() {
        let identity = Identity {
            volume: [1; 16],
            epoch: 3,
            writer: crate::format::Writer { id: [2; 16], name: String::new() },
        };
        let (bases, table) = (Bases::default(), Table::new(1, 512).unwrap());
        let at = |number| Position { number, base: 1, base_bytes: 100, delta_bytes: 0 };
        assert!(bases.begin(&at(300), &identity, &table).is_some());
        assert!(bases.begin(&at(301), &identity, &table).is_none(), "one is being written");
        assert_eq!(bases.abandon(3), Some(Name::Base { epoch: 3, number: 300 }));
        assert_eq!(bases.abandon(3), None);
        assert_eq!(bases.end(at(301), 3, 5).base, 1, "it replaces nothing");
        assert!(bases.begin(&at(300), &identity, &table).is_none() && bases.replaced().is_empty());
        for number in 301..=MAX_CHAIN_ABANDONED {
            assert_eq!(bases.must_wait(&at(number)), Ok(number > MAX_CHAIN), "{number}");
            assert!(bases.begin(&at(number), &identity, &table).is_some());
            bases.abandon(3);
            assert_eq!(bases.must_wait(&at(number)), Ok(false), "{number}");
        }
        bases.begin(&at(MAX_CHAIN_ABANDONED + 1), &identity, &table);
        assert_eq!(bases.must_wait(&at(MAX_CHAIN_ABANDONED + 1)), Ok(true));
        bases.abandon(3);
        assert!(matches!(bases.must_wait(&at(MAX_CHAIN_ABANDONED + 1)), Err(Error::Io(_))));
    }
}
