//! The log's encoding in a record: owners of its data blocks, and changes to the volume without data.
//!
//! The meta of a record of the streams [`USER`] and [`CLEANER`] is a sequence of extents; a
//! [`Change::Create`] is followed by its name. The book's page "The log on the medium" describes them byte by
//! byte. Decoding accepts untrusted bytes.

use crate::map::Physical;
use crate::stripes::Stripes;
use block::{Error, Result};
use logkit::StreamId;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Stream of users' writes of a log with one shard, in the order in which they were submitted.
pub const USER: StreamId = StreamId(0);
/// Stream of blocks that the cleaner moved, of a log with one shard.
pub const CLEANER: StreamId = StreamId(1);
/// Number of streams of a log with one shard.
pub const STREAMS: usize = 2;

/// Size of an extent in bytes.
pub const EXTENT: usize = size_of::<Raw>();
/// The longest name of a snapshot or clone, in bytes.
pub const MAX_NAME: usize = 255;

/// Number of a version of the volume: the volume itself, a snapshot or a clone. Never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VersionId(pub u32);

impl VersionId {
    /// The volume itself.
    pub const HEAD: VersionId = VersionId(1);
}

/// One entry of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Change {
    /// The next `count` data blocks of the record are blocks `block..block + count` of this version.
    Write { version: VersionId, block: u64, count: u32 },
    /// These blocks are no longer mapped.
    Unmap { version: VersionId, block: u64, count: u32 },
    /// The next `count` data blocks were at `from` and are mapped here by every version that mapped them
    /// there.
    Move { version: VersionId, block: u64, count: u32, from: Physical },
    /// Creates a version with the current contents of `parent`.
    Create { version: VersionId, parent: VersionId, writable: bool, created: u64, name: String },
    /// The version is deleted.
    Delete { version: VersionId },
    /// Changes the version's number of blocks.
    Grow { version: VersionId, blocks: u64 },
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    kind: u8,
    flags: u8,
    name_length: u8,
    reserved: u8,
    version: U32,
    block: U64,
    count: U32,
    other: U32,
}

const WRITE: u8 = 1;
const UNMAP: u8 = 2;
const MOVE: u8 = 3;
const CREATE: u8 = 4;
const DELETE: u8 = 5;
const GROW: u8 = 6;
const WRITABLE: u8 = 1;

impl Change {
    /// Returns the number of data blocks of the change.
    pub fn data_blocks(&self) -> u32 {
        match self {
            Change::Write { count, .. } | Change::Move { count, .. } => *count,
            _ => 0,
        }
    }

    /// Returns the first block of the change's data; `None` for a change without data.
    pub fn first_block(&self) -> Option<u64> {
        match self {
            Change::Write { block, .. } | Change::Move { block, .. } => Some(*block),
            _ => None,
        }
    }

    /// Removes the first `blocks` blocks of a change with data and returns them as a change.
    ///
    /// # Panics
    /// If the change has no data.
    #[must_use]
    pub fn cut(&mut self, blocks: u32) -> Change {
        let first = match self {
            Change::Write { version, block, .. } => {
                Change::Write { version: *version, block: *block, count: blocks }
            }
            Change::Move { version, block, from, .. } => {
                Change::Move { version: *version, block: *block, count: blocks, from: *from }
            }
            other => unreachable!("a change without data fits a record: {other:?}"),
        };
        if let Change::Move { from, .. } = self {
            *from = from.offset(u64::from(blocks));
        }
        if let Change::Write { block, count, .. } | Change::Move { block, count, .. } = self {
            *block += u64::from(blocks);
            *count -= blocks;
        }
        first
    }

    /// Returns the number of bytes of meta that the change takes.
    #[inline]
    pub fn encoded_length(&self) -> usize {
        match self {
            Change::Create { name, .. } => EXTENT + name.len().next_multiple_of(8),
            _ => EXTENT,
        }
    }

    /// Appends the change to `meta`.
    pub fn encode(&self, meta: &mut Vec<u8>) {
        let raw = |kind, flags, version: VersionId, block: u64, count: u32, other: u32| Raw {
            kind,
            flags,
            name_length: 0,
            reserved: 0,
            version: version.0.into(),
            block: block.into(),
            count: count.into(),
            other: other.into(),
        };
        let raw = match self {
            Change::Write { version, block, count } => raw(WRITE, 0, *version, *block, *count, 0),
            Change::Unmap { version, block, count } => raw(UNMAP, 0, *version, *block, *count, 0),
            Change::Move { version, block, count, from } => raw(MOVE, 0, *version, *block, *count, from.0),
            Change::Create { version, parent, writable, created, name } => Raw {
                name_length: name.len() as u8,
                ..raw(CREATE, if *writable { WRITABLE } else { 0 }, *version, *created, 0, parent.0)
            },
            Change::Delete { version } => raw(DELETE, 0, *version, 0, 0, 0),
            Change::Grow { version, blocks } => raw(GROW, 0, *version, *blocks, 0, 0),
        };
        meta.extend_from_slice(raw.as_bytes());
        if let Change::Create { name, .. } = self {
            meta.extend_from_slice(name.as_bytes());
            meta.resize(meta.len().next_multiple_of(8), 0);
        }
    }

    /// Decodes all entries of a record.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for bytes that no version of this program writes.
    pub fn decode_all(meta: &[u8]) -> Result<Vec<Change>> {
        let mut changes = Vec::with_capacity(meta.len() / EXTENT);
        for change in Self::decode_each(meta) {
            changes.push(change?);
        }
        Ok(changes)
    }

    /// Decodes the entries of a record one by one. Bytes that no version of this program writes yield
    /// [`Error::Corrupt`] and end the iteration.
    pub fn decode_each(meta: &[u8]) -> impl Iterator<Item = Result<Change>> + '_ {
        let mut rest = meta;
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let change = Self::decode(&mut rest);
            if change.is_err() {
                rest = &[];
            }
            Some(change)
        })
    }

    /// Decodes the first entry, and advances `rest` past it.
    ///
    /// # Errors
    /// Errors of [`decode_all`](Self::decode_all).
    pub(crate) fn decode(rest: &mut &[u8]) -> Result<Change> {
        let wrong = |what: &str| Error::corrupt(format!("entry of a record: {what}"));
        let (raw, behind) = Raw::ref_from_prefix(rest).map_err(|_| wrong("cut short"))?;
        *rest = behind;
        let (version, block, count) = (VersionId(raw.version.get()), raw.block.get(), raw.count.get());
        if matches!(raw.kind, WRITE | UNMAP | MOVE)
            && (count == 0 || block.checked_add(count.into()).is_none_or(|end| end > 1 << 40))
        {
            return Err(wrong(&format!("blocks out of range: block={block}, count={count}")));
        }
        Ok(match raw.kind {
            WRITE => Change::Write { version, block, count },
            UNMAP => Change::Unmap { version, block, count },
            MOVE => Change::Move { version, block, count, from: Physical(raw.other.get()) },
            CREATE => {
                let length = usize::from(raw.name_length);
                let padded = length.next_multiple_of(8);
                let bytes = behind.get(..padded).ok_or_else(|| wrong("name cut short"))?;
                *rest = &behind[padded..];
                let name = std::str::from_utf8(&bytes[..length]).map_err(|_| wrong("name is not UTF-8"))?;
                Change::Create {
                    version,
                    parent: VersionId(raw.other.get()),
                    writable: raw.flags & WRITABLE != 0,
                    created: block,
                    name: name.to_owned(),
                }
            }
            DELETE => Change::Delete { version },
            GROW => Change::Grow { version, blocks: block },
            other => return Err(wrong(&format!("unknown kind {other}"))),
        })
    }
}

/// The log device's part of a root.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Own {
    /// Oldest transaction of the map's home that the log can be opened with; `None` without a home. A log
    /// with a home has no checkpoints: the home holds their contents.
    pub home: Option<u64>,
    /// Number of home shards and number of blocks of a stripe ([`Stripes`]); `None`
    /// for one shard. Only a log with one shard has a home of its map.
    pub stripes: Option<(u32, u32)>,
}

/// First bytes of the part of a log with several shards.
const STRIPES: &[u8; 4] = b"SHRD";

/// Kind of the owner in a root.
pub const OWNER: [u8; 8] = *b"log     ";

impl Own {
    /// Encodes the part.
    pub fn encode(&self) -> Vec<u8> {
        match (self.home, self.stripes) {
            (Some(sequence), _) => sequence.to_le_bytes().to_vec(),
            (None, Some((shards, blocks))) => [*STRIPES, shards.to_le_bytes(), blocks.to_le_bytes()].concat(),
            (None, None) => Vec::new(),
        }
    }

    /// Returns the division of the volume's blocks among shards.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for one that no version of this program writes.
    pub fn division(&self) -> Result<Stripes> {
        let Some((shards, blocks)) = self.stripes else { return Ok(Stripes::ONE) };
        let division = Stripes::new(shards, blocks);
        division.map_err(|error| Error::corrupt(format!("root of the log: {}", error.detail())))
    }

    /// Decodes the part from untrusted bytes.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for bytes that no version of this program writes.
    pub fn decode(bytes: &[u8]) -> Result<Own> {
        let words = bytes.as_chunks::<4>();
        match (bytes, <[u8; 8]>::try_from(bytes), words) {
            ([], ..) => Ok(Own::default()),
            (_, Ok(sequence), _) => Ok(Own { home: Some(u64::from_le_bytes(sequence)), stripes: None }),
            (.., ([magic, shards, blocks], [])) if magic == STRIPES => Ok(Own {
                home: None,
                stripes: Some((u32::from_le_bytes(*shards), u32::from_le_bytes(*blocks))),
            }),
            _ => Err(Error::corrupt(format!(
                "root of the log: the log device's part has {} bytes; expected 0, 8, or 12 that begin with \"SHRD\"",
                bytes.len()
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn change() -> impl Strategy<Value = Change> {
        let place = (1_u32..5, 0_u64..1 << 30, 1_u32..1000);
        prop_oneof![
            place.clone().prop_map(|(v, block, count)| Change::Write { version: VersionId(v), block, count }),
            place.clone().prop_map(|(v, block, count)| Change::Unmap { version: VersionId(v), block, count }),
            (place, any::<u32>()).prop_map(|((v, block, count), from)| Change::Move {
                version: VersionId(v),
                block,
                count,
                from: Physical(from)
            }),
            (any::<u32>(), any::<u32>(), any::<bool>(), any::<u64>(), "[a-zä]{0,100}").prop_map(
                |(version, parent, writable, created, name)| Change::Create {
                    version: VersionId(version),
                    parent: VersionId(parent),
                    writable,
                    created,
                    name
                }
            ),
            any::<u32>().prop_map(|version| Change::Delete { version: VersionId(version) }),
            (any::<u32>(), any::<u64>())
                .prop_map(|(version, blocks)| Change::Grow { version: VersionId(version), blocks }),
        ]
    }

    #[test]
    fn the_part_of_a_root_is_read() {
        let stripes = Stripes::new(7, 256).expect("a division");
        for own in [
            Own::default(),
            Own { home: Some(5), stripes: None },
            Own { home: None, stripes: stripes.in_root() },
        ] {
            assert_eq!(Own::decode(&own.encode()), Ok(own));
        }
        assert_eq!(Own { home: None, stripes: stripes.in_root() }.division(), Ok(stripes));
        assert_eq!(Own::default().division(), Ok(Stripes::ONE));
        assert!(Own::default().encode().is_empty());
        for stripes in [(0, 8), (17, 8), (2, 7)] {
            let wrong = Own { home: None, stripes: Some(stripes) };
            assert!(matches!(wrong.division(), Err(Error::Corrupt(_))));
        }
        assert!(Own::decode(&[0; 12]).is_err() && Own::decode(&[0; 5]).is_err());
    }

    proptest! {
        #![proptest_config(ProptestConfig { rng_seed: proptest::test_runner::RngSeed::Fixed(1), ..Default::default() })]

        #[test]
        fn what_was_written_is_read(changes in prop::collection::vec(change(), 0..20)) {
            let mut meta = Vec::new();
            changes.iter().for_each(|change| change.encode(&mut meta));
            prop_assert_eq!(Change::decode_all(&meta).expect("it was encoded"), changes);
        }

        #[test]
        fn any_bytes_are_taken(mut bytes in prop::collection::vec(any::<u8>(), 0..200), kind in 0_u8..8) {
            if let Some(first) = bytes.first_mut() {
                *first = kind;
            }
            let _ = Change::decode_all(&bytes);
        }
    }
}
