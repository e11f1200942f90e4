//! Changes: what operations do to the metadata of a shard, as records of the log have them.
//!
//! An operation is a list of changes that take effect together. Those of names and attributes take effect when the operation is
//! submitted, those that give blocks to files when the record is written: only then it is known where the blocks are.
//!
//! A checkpoint shows operations on names and attributes whose records aren't written yet, and doesn't wait for these. A record
//! marks the changes of such operations ([`Recorded::is_submitted`]), and a checkpoint counts those that it shows
//! ([`State::shown`](crate::format::State::shown)): these aren't replayed. Replaying them would not be right where the power
//! was cut between two of their records: after the first of two renames, for instance, the file would have a name too many.

use crate::encoding::{Numbers, length, put};
use crate::extents::Place;
use crate::inode::{InodeNumber, Time};
use crate::tree::Key;
use block::{Error, Result};
use smallvec::SmallVec;

/// Changes of one operation. A rename has the most.
pub type Changes = SmallVec<[Change; 2]>;

/// Attributes that are set; those that are `None` stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Attributes {
    /// Type and permissions.
    pub mode: Option<u32>,
    /// Number of names.
    pub links: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size in bytes.
    pub size: Option<u64>,
    /// Time of the last access.
    pub accessed: Option<Time>,
    /// Time of the last change of the data.
    pub modified: Option<Time>,
    /// Time of the last change of the inode.
    pub changed: Option<Time>,
    /// Directory that a directory is in.
    pub parent: Option<InodeNumber>,
}

impl Attributes {
    fn numbers(&self) -> [Option<u64>; 9] {
        let wide = |number: Option<u32>| number.map(u64::from);
        let time = |time: Option<Time>| time.map(|time| time as u64);
        [
            wide(self.mode),
            wide(self.links),
            wide(self.uid),
            wide(self.gid),
            self.size,
            time(self.accessed),
            time(self.modified),
            time(self.changed),
            self.parent,
        ]
    }

    fn of_numbers(numbers: [Option<u64>; 9]) -> Result<Self> {
        let [mode, links, uid, gid, size, accessed, modified, changed, parent] = numbers;
        let narrow = |number: Option<u64>| match number.map(u32::try_from) {
            None => Ok(None),
            Some(Ok(number)) => Ok(Some(number)),
            Some(Err(_)) => Err(Error::corrupt("a change sets an attribute of 32 bits to a larger number")),
        };
        let time = |number: Option<u64>| number.map(|number| number as Time);
        Ok(Attributes {
            mode: narrow(mode)?,
            links: narrow(links)?,
            uid: narrow(uid)?,
            gid: narrow(gid)?,
            size,
            accessed: time(accessed),
            modified: time(modified),
            changed: time(changed),
            parent,
        })
    }
}

/// In place of [`Change::Map::modified`]: the write leaves the times of the file, because a kernel that had cached it sets them.
pub const KEEP_TIMES: Time = Time::MIN;

/// One change. Blocks are those of the log, of 4 KiB.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Puts an item into the tree.
    Put {
        /// Its key.
        key: Key,
        /// Its value.
        value: Vec<u8>,
    },
    /// Removes an item.
    Delete {
        /// Its key.
        key: Key,
    },
    /// Sets attributes of an inode.
    Set {
        /// The inode.
        inode: InodeNumber,
        /// The attributes.
        attributes: Attributes,
    },
    /// Gives the next data blocks of the record to a file, which is at least `size` bytes long then.
    Map {
        /// The file.
        inode: InodeNumber,
        /// First block of the file.
        block: u64,
        /// Number of blocks.
        blocks: u32,
        /// Size of the file in bytes, unless it is larger.
        size: u64,
        /// Time of the write, or [`KEEP_TIMES`].
        modified: Time,
    },
    /// Takes blocks from a file: those from `from` on, up to and without `to`.
    Unmap {
        /// The file.
        inode: InodeNumber,
        /// First block.
        from: u64,
        /// The block after the last one.
        to: u64,
    },
    /// Gives a file blocks without data where it has none.
    Preallocate {
        /// The file.
        inode: InodeNumber,
        /// First block.
        from: u64,
        /// The block after the last one.
        to: u64,
    },
    /// Removes an inode with all that belongs to it.
    Remove {
        /// The inode.
        inode: InodeNumber,
    },
    /// Gives the next data blocks of the record to a file instead of those that lie at a place: the cleaner has moved them.
    /// Blocks of the file that are elsewhere by then stay.
    Move {
        /// The file.
        inode: InodeNumber,
        /// First block of the file.
        block: u64,
        /// Number of blocks.
        blocks: u32,
        /// Place of the first one before.
        from: Place,
    },
}

/// A change as a record has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recorded {
    /// The change.
    pub change: Change,
    /// It took effect when it was submitted, before the record was written.
    pub is_submitted: bool,
}

/// Marks the kind of a change that took effect when it was submitted.
const SUBMITTED: u8 = 0x80;

const PUT: u8 = 1;
const DELETE: u8 = 2;
const SET: u8 = 3;
const MAP: u8 = 4;
const UNMAP: u8 = 5;
const PREALLOCATE: u8 = 6;
const REMOVE: u8 = 7;
const MOVE: u8 = 8;

/// A bit for each attribute that is set.
fn bits_of(numbers: &[Option<u64>; 9]) -> u64 {
    let set = numbers.iter().enumerate().filter(|(_, number)| number.is_some());
    set.fold(0, |bits, (bit, _)| bits | 1 << bit)
}

fn put_key(meta: &mut Vec<u8>, key: &Key) {
    put(meta, key.inode);
    meta.push(key.kind);
    put(meta, key.offset);
}

fn key_length(key: &Key) -> usize {
    length(key.inode) + 1 + length(key.offset)
}

fn take_key(numbers: &mut Numbers<'_>) -> Result<Key> {
    Ok(Key { inode: numbers.take()?, kind: numbers.byte()?, offset: numbers.take()? })
}

impl Change {
    /// Most bytes of a change with blocks.
    pub const LONGEST_WITH_BLOCKS: usize = 1 + 10 + 10 + 5 + 10 + 10;

    /// Number of data blocks.
    pub fn blocks(&self) -> u32 {
        match self {
            Change::Map { blocks, .. } | Change::Move { blocks, .. } => *blocks,
            _ => 0,
        }
    }

    /// Length of the change in bytes.
    pub fn length(&self) -> usize {
        let all = |numbers: &[u64]| numbers.iter().map(|number| length(*number)).sum::<usize>();
        1 + match self {
            Change::Put { key, value } => key_length(key) + length(value.len() as u64) + value.len(),
            Change::Delete { key } => key_length(key),
            Change::Set { inode, attributes } => {
                let numbers = attributes.numbers();
                all(&[*inode, bits_of(&numbers)])
                    + numbers.iter().flatten().map(|it| length(*it)).sum::<usize>()
            }
            Change::Map { inode, block, blocks, size, modified } => {
                all(&[*inode, *block, u64::from(*blocks), *size, *modified as u64])
            }
            Change::Unmap { inode, from, to } | Change::Preallocate { inode, from, to } => {
                all(&[*inode, *from, *to])
            }
            Change::Remove { inode } => length(*inode),
            Change::Move { inode, block, blocks, from } => {
                all(&[*inode, *block, u64::from(*blocks), u64::from(from.zone), u64::from(from.position)])
            }
        }
    }

    /// Appends the change to a record's meta, with the mark of one that took effect when it was submitted.
    pub fn encode_submitted(&self, meta: &mut Vec<u8>) {
        let kind = meta.len();
        self.encode(meta);
        meta[kind] |= SUBMITTED;
    }

    /// Appends the change to a record's meta.
    pub fn encode(&self, meta: &mut Vec<u8>) {
        let kind = meta.len();
        meta.push(0);
        let mut all = |numbers: &[u64]| numbers.iter().for_each(|number| put(meta, *number));
        let code = match self {
            Change::Put { key, value } => {
                put_key(meta, key);
                put(meta, value.len() as u64);
                meta.extend_from_slice(value);
                PUT
            }
            Change::Delete { key } => {
                put_key(meta, key);
                DELETE
            }
            Change::Set { inode, attributes } => {
                let numbers = attributes.numbers();
                all(&[*inode, bits_of(&numbers)]);
                numbers.iter().flatten().for_each(|number| put(meta, *number));
                SET
            }
            Change::Map { inode, block, blocks, size, modified } => {
                all(&[*inode, *block, u64::from(*blocks), *size, *modified as u64]);
                MAP
            }
            Change::Unmap { inode, from, to } => {
                all(&[*inode, *from, *to]);
                UNMAP
            }
            Change::Preallocate { inode, from, to } => {
                all(&[*inode, *from, *to]);
                PREALLOCATE
            }
            Change::Remove { inode } => {
                put(meta, *inode);
                REMOVE
            }
            Change::Move { inode, block, blocks, from } => {
                all(&[*inode, *block, u64::from(*blocks), u64::from(from.zone), u64::from(from.position)]);
                MOVE
            }
        };
        meta[kind] = code;
    }

    /// Decodes the changes of a record.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for bytes that are not whole changes.
    pub fn decode_all(meta: &[u8]) -> Result<Vec<Recorded>> {
        let mut numbers = Numbers::new(meta, "a record of the file system");
        let mut changes = Vec::new();
        while !numbers.rest().is_empty() {
            changes.push(Self::decode(&mut numbers)?);
        }
        Ok(changes)
    }

    fn decode(numbers: &mut Numbers<'_>) -> Result<Recorded> {
        let kind = numbers.byte()?;
        let change = match kind & !SUBMITTED {
            PUT => {
                let (key, length) = (take_key(numbers)?, numbers.take()?);
                let value = numbers.bytes(usize::try_from(length).unwrap_or(usize::MAX))?;
                Change::Put { key, value: value.to_vec() }
            }
            DELETE => Change::Delete { key: take_key(numbers)? },
            SET => {
                let (inode, bits) = (numbers.take()?, numbers.take()?);
                if bits >> 9 != 0 {
                    return Err(numbers.strange(&format!("sets attributes that aren't known ({bits:#x})")));
                }
                let mut values = [None; 9];
                for (bit, value) in values.iter_mut().enumerate() {
                    *value = if bits >> bit & 1 == 1 { Some(numbers.take()?) } else { None };
                }
                Change::Set { inode, attributes: Attributes::of_numbers(values)? }
            }
            MAP => Change::Map {
                inode: numbers.take()?,
                block: numbers.take()?,
                blocks: numbers.take_u32()?,
                size: numbers.take()?,
                modified: numbers.take()? as Time,
            },
            UNMAP => Change::Unmap { inode: numbers.take()?, from: numbers.take()?, to: numbers.take()? },
            PREALLOCATE => {
                Change::Preallocate { inode: numbers.take()?, from: numbers.take()?, to: numbers.take()? }
            }
            REMOVE => Change::Remove { inode: numbers.take()? },
            MOVE => Change::Move {
                inode: numbers.take()?,
                block: numbers.take()?,
                blocks: numbers.take_u32()?,
                from: Place { zone: numbers.take_u32()?, position: numbers.take_u32()? },
            },
            _ => return Err(numbers.strange(&format!("has a change of the unknown kind {kind}"))),
        };
        match &change {
            Change::Map { block, blocks, .. } | Change::Move { block, blocks, .. }
                if *blocks == 0 || block.checked_add(u64::from(*blocks)).is_none() =>
            {
                Err(numbers.strange(&format!("has {blocks} blocks from block {block} of a file on")))
            }
            Change::Put { value, .. } if value.len() > crate::tree::MAX_VALUE => {
                Err(numbers.strange(&format!("has an item of {} bytes", value.len())))
            }
            // Those with blocks take effect with their record.
            Change::Map { .. } | Change::Move { .. } if kind & SUBMITTED != 0 => {
                Err(numbers.strange("has data of an operation on names or attributes"))
            }
            _ => Ok(Recorded { change, is_submitted: kind & SUBMITTED != 0 }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn every_kind() -> Vec<Change> {
        let key = Key { inode: 7, kind: 4, offset: 99 };
        let attributes = Attributes {
            mode: Some(0o100_644),
            size: Some(1 << 40),
            modified: Some(-3),
            parent: Some(1),
            ..Attributes::default()
        };
        vec![
            Change::Put { key, value: b"value".to_vec() },
            Change::Delete { key },
            Change::Set { inode: 7, attributes },
            Change::Set { inode: 7, attributes: Attributes::default() },
            Change::Map { inode: 7, block: 3, blocks: 2, size: 20_000, modified: -1 },
            Change::Unmap { inode: 7, from: 3, to: u64::MAX },
            Change::Preallocate { inode: 7, from: 0, to: 5 },
            Change::Remove { inode: 7 },
            Change::Move { inode: 7, block: 3, blocks: 2, from: Place { zone: 9, position: 12 } },
        ]
    }

    #[test]
    fn changes_are_read_as_they_were_encoded() {
        let mut meta = Vec::new();
        for change in every_kind() {
            let before = meta.len();
            change.encode(&mut meta);
            assert_eq!(meta.len() - before, change.length(), "{change:?}");
        }
        let expected = every_kind().into_iter().map(|change| Recorded { change, is_submitted: false });
        assert_eq!(Change::decode_all(&meta), Ok(expected.collect()));
    }

    #[test]
    fn a_record_tells_which_changes_had_taken_effect_before_it() {
        let mut meta = Vec::new();
        let without_blocks = || every_kind().into_iter().filter(|change| change.blocks() == 0);
        without_blocks().for_each(|change| change.encode_submitted(&mut meta));
        assert_eq!(meta.len(), without_blocks().map(|change| change.length()).sum::<usize>());
        let expected = without_blocks().map(|change| Recorded { change, is_submitted: true });
        assert_eq!(Change::decode_all(&meta), Ok(expected.collect()));
    }

    #[test]
    fn other_bytes_are_refused() {
        for change in every_kind() {
            let mut meta = Vec::new();
            change.encode(&mut meta);
            for length in 1..meta.len() {
                assert!(Change::decode_all(&meta[..length]).is_err(), "{length} bytes of {change:?}");
            }
        }
        assert!(Change::decode_all(&[200]).is_err());
        let mut none = Vec::new();
        Change::Map { inode: 7, block: u64::MAX, blocks: 2, size: 0, modified: 0 }.encode(&mut none);
        assert!(Change::decode_all(&none).is_err());
    }
}
