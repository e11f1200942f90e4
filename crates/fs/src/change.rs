//! Changes: what operations do to the metadata of a shard, as records of the log have them.
//!
//! An operation is a list of changes that take effect together. Those of names and attributes take effect when the operation is
//! submitted, those that give blocks to files when the record is written: only then it is known where the blocks are.
//!
//! Replaying changes over a state that has them already gives the same state again, if all later ones are replayed, too:
//! each sets what it changes to a value, whatever it was. So a checkpoint needn't wait for the records of what it shows.

use crate::extents::Place;
use crate::inode::{InodeNumber, Time};
use crate::tree::Key;
use block::{Error, Result};
use smallvec::SmallVec;
use zones::bytes::{Reader, Writer};

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

const PUT: u8 = 1;
const DELETE: u8 = 2;
const SET: u8 = 3;
const MAP: u8 = 4;
const UNMAP: u8 = 5;
const PREALLOCATE: u8 = 6;
const REMOVE: u8 = 7;
const MOVE: u8 = 8;

fn put_key(writer: &mut Writer, key: &Key) {
    writer.u64(key.inode);
    writer.u8(key.kind);
    writer.u64(key.offset);
}

fn take_key(reader: &mut Reader<'_>) -> Result<Key> {
    Ok(Key { inode: reader.u64()?, kind: reader.u8()?, offset: reader.u64()? })
}

impl Change {
    /// Length of a [`Map`](Self::Map) in bytes, the longest change with blocks.
    pub const LONGEST_WITH_BLOCKS: usize = 1 + 8 + 8 + 4 + 8 + 8;

    /// Number of data blocks.
    pub fn blocks(&self) -> u32 {
        match self {
            Change::Map { blocks, .. } | Change::Move { blocks, .. } => *blocks,
            _ => 0,
        }
    }

    /// Length of the change in bytes.
    pub fn length(&self) -> usize {
        match self {
            Change::Put { value, .. } => 1 + 17 + 4 + value.len(),
            Change::Delete { .. } => 1 + 17,
            Change::Set { attributes, .. } => 1 + 8 + 4 + 8 * attributes.numbers().iter().flatten().count(),
            Change::Map { .. } => Self::LONGEST_WITH_BLOCKS,
            Change::Unmap { .. } | Change::Preallocate { .. } => 1 + 8 + 16,
            Change::Remove { .. } => 1 + 8,
            Change::Move { .. } => 1 + 8 + 8 + 4 + 8,
        }
    }

    /// Appends the change to a record's meta.
    pub fn encode(&self, meta: &mut Vec<u8>) {
        let mut writer = Writer(std::mem::take(meta));
        match self {
            Change::Put { key, value } => {
                writer.u8(PUT);
                put_key(&mut writer, key);
                writer.u32(value.len() as u32);
                writer.0.extend_from_slice(value);
            }
            Change::Delete { key } => {
                writer.u8(DELETE);
                put_key(&mut writer, key);
            }
            Change::Set { inode, attributes } => {
                let numbers = attributes.numbers();
                let bits = numbers.iter().enumerate().filter(|(_, number)| number.is_some());
                writer.u8(SET);
                writer.u64(*inode);
                writer.u32(bits.fold(0, |bits, (bit, _)| bits | 1 << bit));
                numbers.iter().flatten().for_each(|number| writer.u64(*number));
            }
            Change::Map { inode, block, blocks, size, modified } => {
                writer.u8(MAP);
                writer.u64(*inode);
                writer.u64(*block);
                writer.u32(*blocks);
                writer.u64(*size);
                writer.u64(*modified as u64);
            }
            Change::Unmap { inode, from, to } | Change::Preallocate { inode, from, to } => {
                writer.u8(if matches!(self, Change::Unmap { .. }) { UNMAP } else { PREALLOCATE });
                [inode, from, to].iter().for_each(|number| writer.u64(**number));
            }
            Change::Remove { inode } => {
                writer.u8(REMOVE);
                writer.u64(*inode);
            }
            Change::Move { inode, block, blocks, from } => {
                writer.u8(MOVE);
                writer.u64(*inode);
                writer.u64(*block);
                writer.u32(*blocks);
                writer.u32(from.zone);
                writer.u32(from.position);
            }
        }
        *meta = writer.0;
    }

    /// Decodes the changes of a record.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for bytes that are not whole changes.
    pub fn decode_all(meta: &[u8]) -> Result<Vec<Change>> {
        let mut reader = Reader::new(meta, "a record of the file system");
        let mut changes = Vec::new();
        while reader.remaining() > 0 {
            changes.push(Self::decode(&mut reader)?);
        }
        Ok(changes)
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Change> {
        let change = match reader.u8()? {
            PUT => {
                let key = take_key(reader)?;
                let length = reader.count(1)?;
                Change::Put { key, value: reader.bytes(length)?.to_vec() }
            }
            DELETE => Change::Delete { key: take_key(reader)? },
            SET => {
                let (inode, bits) = (reader.u64()?, reader.u32()?);
                if bits >> 9 != 0 {
                    return Err(reader.strange(&format!("sets attributes that aren't known ({bits:#x})")));
                }
                let mut numbers = [None; 9];
                for (bit, number) in numbers.iter_mut().enumerate() {
                    *number = if bits >> bit & 1 == 1 { Some(reader.u64()?) } else { None };
                }
                Change::Set { inode, attributes: Attributes::of_numbers(numbers)? }
            }
            MAP => Change::Map {
                inode: reader.u64()?,
                block: reader.u64()?,
                blocks: reader.u32()?,
                size: reader.u64()?,
                modified: reader.u64()? as Time,
            },
            UNMAP => Change::Unmap { inode: reader.u64()?, from: reader.u64()?, to: reader.u64()? },
            PREALLOCATE => {
                Change::Preallocate { inode: reader.u64()?, from: reader.u64()?, to: reader.u64()? }
            }
            REMOVE => Change::Remove { inode: reader.u64()? },
            MOVE => Change::Move {
                inode: reader.u64()?,
                block: reader.u64()?,
                blocks: reader.u32()?,
                from: Place { zone: reader.u32()?, position: reader.u32()? },
            },
            other => return Err(reader.strange(&format!("has a change of the unknown kind {other}"))),
        };
        match &change {
            Change::Map { block, blocks, .. } | Change::Move { block, blocks, .. }
                if *blocks == 0 || block.checked_add(u64::from(*blocks)).is_none() =>
            {
                Err(reader.strange(&format!("has {blocks} blocks from block {block} of a file on")))
            }
            Change::Put { value, .. } if value.len() > crate::tree::MAX_VALUE => {
                Err(reader.strange(&format!("has an item of {} bytes", value.len())))
            }
            _ => Ok(change),
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
        assert_eq!(Change::decode_all(&meta), Ok(every_kind()));
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
