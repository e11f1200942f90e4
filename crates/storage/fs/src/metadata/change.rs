//! Changes of the metadata of an inode group, in the encoding of log records.
//!
//! An operation is a list of changes that take effect together. Changes of names and attributes take effect
//! when the operation is submitted. Changes that give blocks to files take effect when the record is written,
//! because the blocks have no place before.
//!
//! A checkpoint includes operations on names and attributes whose records aren't written yet, and doesn't
//! wait for these records. A record marks the changes of such operations ([`Recorded::is_submitted`]), and
//! the checkpoint stores the number of changes that it already includes
//! ([`State::shown`](crate::format::State::shown)): replay skips these. Replaying them would be wrong if the
//! power was cut between two of their records: after the first of two renames, for instance, the file would
//! have both names.
//!
//! So changes that take effect on submission and changes that take effect with their record have different
//! orders in memory and in a replay. State that both kinds change is updated by operations that commute: by
//! maximum (sizes, times of writes) or by difference (numbers of blocks). An absolute value is set
//! ([`Change::Set`]) only while the blocks concerned (for a size) or all blocks (for times) are locked, so
//! that no write of them is in flight.

use crate::metadata::directory;
use crate::metadata::inode::{BLOCK, Inode, InodeNumber, MAX_FILE, Time, Value, kind};
use crate::tree::Key;
use block::{Error, Result, ZoneBlock};
use logkit::leb128::{Numbers, length, put};
use smallvec::SmallVec;

/// Changes of one operation. A rename has the most; creating and removing a file take three.
pub type Changes = SmallVec<[Change; 3]>;

/// Attributes to set; `None` leaves an attribute unchanged.
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
            Some(Err(_)) => Err(Error::corrupt(
                "a change sets an attribute to a number above 2^32 - 1; expected at most 32 bits",
            )),
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

/// Value of [`Change::Map::modified`] for a write that leaves the times of the file unchanged, because the
/// kernel that cached the write sets them. Other times are at least those of writes that take effect before.
pub const KEEP_TIMES: Time = Time::MIN;

/// One change. Blocks are those of the log, of 4 KiB.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Puts an item into the tree.
    Put {
        /// Key of the item.
        key: Key,
        /// Value of the item.
        value: Value,
    },
    /// Removes an item.
    Delete {
        /// Key of the item.
        key: Key,
    },
    /// Sets attributes of an inode.
    Set {
        /// The inode.
        inode: InodeNumber,
        /// The attributes.
        attributes: Box<Attributes>,
    },
    /// Sets both times of an inode whose data changes, for example a directory in which a name is created or
    /// removed.
    Touch {
        /// The inode.
        inode: InodeNumber,
        /// Time of the last change of the data, and of the inode.
        time: Time,
    },
    /// Maps the next data blocks of the record into a file, and raises its size to at least `size` bytes.
    Map {
        /// The file.
        inode: InodeNumber,
        /// First block of the file.
        block: u64,
        /// Number of blocks.
        blocks: u32,
        /// Least size of the file afterwards, in bytes.
        size: u64,
        /// Time of the write, or [`KEEP_TIMES`].
        modified: Time,
    },
    /// Unmaps the blocks `from..to` of a file.
    Unmap {
        /// The file.
        inode: InodeNumber,
        /// First block.
        from: u64,
        /// The block after the last one.
        to: u64,
    },
    /// Preallocates the unmapped blocks of a range.
    Preallocate {
        /// The file.
        inode: InodeNumber,
        /// First block.
        from: u64,
        /// The block after the last one.
        to: u64,
    },
    /// Raises the size of a file to at least `size` bytes.
    Grow {
        /// The file.
        inode: InodeNumber,
        /// Least size of the file afterwards, in bytes.
        size: u64,
    },
    /// Shares the blocks of a range with a file of the same inode group, or with another range of the same
    /// file. The shared blocks replace those of the target range; holes are copied as holes. Raises the
    /// size to at least `size` bytes.
    Share {
        /// The file.
        inode: InodeNumber,
        /// First block of the file.
        block: u64,
        /// Number of blocks.
        count: u64,
        /// The source.
        from_inode: InodeNumber,
        /// First block of the source.
        from_block: u64,
        /// Least size of the file afterwards, in bytes.
        size: u64,
        /// Time of the operation, or [`KEEP_TIMES`].
        modified: Time,
    },
    /// Removes an inode with all of its items.
    Remove {
        /// The inode.
        inode: InodeNumber,
    },
    /// Moves blocks of a file, for the cleaner: the next data blocks of the record replace those at the old
    /// place. Blocks that the file no longer has at the old place are not moved.
    Move {
        /// The file.
        inode: InodeNumber,
        /// First block of the file.
        block: u64,
        /// Number of blocks.
        blocks: u32,
        /// Old place of the first block.
        from: ZoneBlock,
    },
}

/// A change as it is in a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recorded {
    /// The change.
    pub change: Change,
    /// Whether the change took effect when it was submitted, before the record was written.
    pub is_submitted: bool,
}

/// Flag in the kind of a change that took effect when it was submitted.
const SUBMITTED: u8 = 0x80;

const PUT: u8 = 1;
const DELETE: u8 = 2;
const SET: u8 = 3;
const MAP: u8 = 4;
const UNMAP: u8 = 5;
const PREALLOCATE: u8 = 6;
const REMOVE: u8 = 7;
const MOVE: u8 = 8;
const TOUCH: u8 = 9;
/// [`PUT`] of an inode.
const PUT_INODE: u8 = 10;
/// [`PUT`] of a name that is the first of its hash in the directory.
const PUT_ENTRY: u8 = 11;
/// [`TOUCH`] with the time at the end of the preceding [`PUT`]'s value: usually the time of a new inode.
const TOUCH_AT_ONCE: u8 = 12;
const SHARE: u8 = 13;
const GROW: u8 = 14;

/// Bit mask of the attributes that are set.
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

fn take_value(numbers: &mut Numbers<'_>) -> Result<Value> {
    let length = numbers.take()?;
    numbers.bytes(usize::try_from(length).unwrap_or(usize::MAX)).map(Value::from_slice)
}

/// Key of a name's item if the directory has no other name with this hash.
fn key_of_entry(directory: InodeNumber, value: &[u8]) -> Result<Key> {
    directory::decode(value).map(|(_, _, name)| directory::first_key(directory, name))
}

impl Change {
    /// Longest encoding in bytes of a change with blocks.
    pub const MAX_WITH_BLOCKS: usize = 1 + 10 + 10 + 5 + 10 + 10;

    /// Returns the change that sets these attributes.
    pub fn set(inode: InodeNumber, attributes: Attributes) -> Self {
        Change::Set { inode, attributes: Box::new(attributes) }
    }

    /// Inode that is changed; for an item of inode 0, the inode in its offset.
    pub fn inode(&self) -> InodeNumber {
        match self {
            Change::Put { key, .. } | Change::Delete { key } if key.inode == 0 => key.offset,
            Change::Put { key, .. } | Change::Delete { key } => key.inode,
            Change::Set { inode, .. }
            | Change::Touch { inode, .. }
            | Change::Map { inode, .. }
            | Change::Unmap { inode, .. }
            | Change::Preallocate { inode, .. }
            | Change::Grow { inode, .. }
            | Change::Share { inode, .. }
            | Change::Remove { inode }
            | Change::Move { inode, .. } => *inode,
        }
    }

    /// Number of data blocks.
    pub fn blocks(&self) -> u32 {
        match self {
            Change::Map { blocks, .. } | Change::Move { blocks, .. } => *blocks,
            _ => 0,
        }
    }

    /// Length of the encoded change in bytes.
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
            Change::Touch { inode, time } => length(*inode) + size_of_val(time),
            Change::Map { inode, block, blocks, size, modified } => {
                all(&[*inode, *block, u64::from(*blocks), *size, *modified as u64])
            }
            Change::Unmap { inode, from, to } | Change::Preallocate { inode, from, to } => {
                all(&[*inode, *from, *to])
            }
            Change::Share { inode, block, count, from_inode, from_block, size, modified } => {
                all(&[*inode, *block, *count, *from_inode, *from_block, *size, *modified as u64])
            }
            Change::Grow { inode, size } => all(&[*inode, *size]),
            Change::Remove { inode } => length(*inode),
            Change::Move { inode, block, blocks, from } => {
                all(&[*inode, *block, u64::from(*blocks), u64::from(from.zone.0), u64::from(from.block)])
            }
        }
    }

    /// Appends the changes of an operation to a record's meta, marked as submitted where they took effect on
    /// submission. Frequent changes have shorter forms than those of [`encode`](Self::encode), so that a
    /// record holds more operations.
    pub fn encode_submitted(changes: &[Change], meta: &mut Vec<u8>) {
        let mut before: Option<&Change> = None;
        for change in changes {
            let start = meta.len();
            change.encode_short(before, meta);
            meta[start] |= SUBMITTED;
            before = Some(change);
        }
    }

    /// Appends the change to a record's meta, in a short form where `before`, the preceding change, allows
    /// it.
    fn encode_short(&self, before: Option<&Change>, meta: &mut Vec<u8>) {
        let mut of_inode = |kind: u8, inode: InodeNumber| {
            meta.push(kind);
            put(meta, inode);
        };
        match (self, before) {
            (Change::Put { key, value }, _) if *key == Inode::key(key.inode) => {
                of_inode(PUT_INODE, key.inode);
                put(meta, value.len() as u64);
                meta.extend_from_slice(value);
            }
            (Change::Put { key, value }, _)
                if key.kind == kind::ENTRY && key_of_entry(key.inode, value) == Ok(*key) =>
            {
                of_inode(PUT_ENTRY, key.inode);
                put(meta, value.len() as u64);
                meta.extend_from_slice(value);
            }
            (Change::Touch { inode, time }, Some(Change::Put { value, .. }))
                if value.last_chunk() == Some(&time.to_le_bytes()) =>
            {
                of_inode(TOUCH_AT_ONCE, *inode);
            }
            _ => self.encode(meta),
        }
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
            Change::Touch { inode, time } => {
                put(meta, *inode);
                meta.extend_from_slice(&time.to_le_bytes());
                TOUCH
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
            Change::Share { inode, block, count, from_inode, from_block, size, modified } => {
                all(&[*inode, *block, *count, *from_inode, *from_block, *size, *modified as u64]);
                SHARE
            }
            Change::Grow { inode, size } => {
                all(&[*inode, *size]);
                GROW
            }
            Change::Remove { inode } => {
                put(meta, *inode);
                REMOVE
            }
            Change::Move { inode, block, blocks, from } => {
                all(&[*inode, *block, u64::from(*blocks), u64::from(from.zone.0), u64::from(from.block)]);
                MOVE
            }
        };
        meta[kind] = code;
    }

    /// Decodes the changes of a record.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for bytes that aren't a sequence of whole changes.
    pub fn decode_all(meta: &[u8]) -> Result<Vec<Recorded>> {
        let mut numbers = Numbers::new(meta, "a record of the file system");
        let mut changes: Vec<Recorded> = Vec::new();
        while !numbers.rest().is_empty() {
            let next = Self::decode(&mut numbers, changes.last().map(|before| &before.change))?;
            changes.push(next);
        }
        Ok(changes)
    }

    /// Decodes the changes of a record; `blocks` is its number of data blocks.
    ///
    /// # Errors
    /// [`Error::Corrupt`] as for [`decode_all`](Self::decode_all), and if the changes map a number of blocks
    /// other than `blocks`.
    pub fn decode_record(meta: &[u8], blocks: u32) -> Result<Vec<Recorded>> {
        let changes = Self::decode_all(meta)?;
        let found: u64 = changes.iter().map(|it| u64::from(it.change.blocks())).sum();
        match found == u64::from(blocks) {
            true => Ok(changes),
            false => Err(Error::corrupt(format!(
                "a record of the file system has changes with {found} blocks, and {blocks} blocks of data"
            ))),
        }
    }

    /// Decodes the next change; `before` is the preceding one.
    fn decode(numbers: &mut Numbers<'_>, before: Option<&Change>) -> Result<Recorded> {
        let kind = numbers.byte()?;
        let change = match kind & !SUBMITTED {
            PUT_INODE => {
                let key = Inode::key(numbers.take()?);
                Change::Put { key, value: take_value(numbers)? }
            }
            PUT_ENTRY => {
                let (directory, value) = (numbers.take()?, take_value(numbers)?);
                Change::Put { key: key_of_entry(directory, &value)?, value }
            }
            TOUCH_AT_ONCE => {
                let inode = numbers.take()?;
                let time = match before {
                    Some(Change::Put { value, .. }) => value.last_chunk().copied(),
                    _ => None,
                };
                let time = time.ok_or_else(|| {
                    numbers.strange("repeats the time of the change before it, which has none")
                })?;
                Change::Touch { inode, time: Time::from_le_bytes(time) }
            }
            PUT => {
                let key = take_key(numbers)?;
                Change::Put { key, value: take_value(numbers)? }
            }
            DELETE => Change::Delete { key: take_key(numbers)? },
            SET => {
                let (inode, bits) = (numbers.take()?, numbers.take()?);
                if bits >> 9 != 0 {
                    return Err(numbers.strange(&format!("sets unknown attributes: bits {bits:#x}")));
                }
                let mut values = [None; 9];
                for (bit, value) in values.iter_mut().enumerate() {
                    *value = if bits >> bit & 1 == 1 { Some(numbers.take()?) } else { None };
                }
                Change::Set { inode, attributes: Box::new(Attributes::of_numbers(values)?) }
            }
            TOUCH => {
                const LENGTH: usize = size_of::<Time>();
                let (inode, mut time) = (numbers.take()?, [0; LENGTH]);
                time.copy_from_slice(numbers.bytes(LENGTH)?);
                Change::Touch { inode, time: Time::from_le_bytes(time) }
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
            SHARE => Change::Share {
                inode: numbers.take()?,
                block: numbers.take()?,
                count: numbers.take()?,
                from_inode: numbers.take()?,
                from_block: numbers.take()?,
                size: numbers.take()?,
                modified: numbers.take()? as Time,
            },
            GROW => Change::Grow { inode: numbers.take()?, size: numbers.take()? },
            REMOVE => Change::Remove { inode: numbers.take()? },
            MOVE => Change::Move {
                inode: numbers.take()?,
                block: numbers.take()?,
                blocks: numbers.take_u32()?,
                from: ZoneBlock::new(numbers.take_u32()?, numbers.take_u32()?),
            },
            _ => return Err(numbers.strange(&format!("has a change of the unknown kind {kind}"))),
        };
        match &change {
            Change::Map { block, blocks, .. } | Change::Move { block, blocks, .. }
                if *blocks == 0 || block.checked_add(u64::from(*blocks)).is_none() =>
            {
                Err(numbers.strange(&format!(
                    "has a range out of bounds: {blocks} blocks from block {block} of a file"
                )))
            }
            Change::Share { block, count, from_block, .. }
                if block.checked_add(*count).is_none() || from_block.checked_add(*count).is_none() =>
            {
                Err(numbers.strange(&format!(
                    "shares ranges out of bounds: {count} blocks from block {from_block} to block {block}"
                )))
            }
            Change::Unmap { from, to, .. } if from > to => {
                Err(numbers.strange(&format!("takes blocks {from} to {to} from a file")))
            }
            Change::Grow { size, .. } | Change::Map { size, .. } | Change::Share { size, .. }
                if *size > MAX_FILE =>
            {
                Err(numbers.strange(&format!(
                    "raises the size of a file to {size} bytes; expected at most {MAX_FILE}"
                )))
            }
            Change::Set { attributes, .. } if attributes.size.is_some_and(|size| size > MAX_FILE) => {
                Err(numbers.strange(&format!(
                    "sets the size of a file to {:?} bytes; expected at most {MAX_FILE}",
                    attributes.size
                )))
            }
            // Blocks are preallocated one extent after another, so a huge range would take long.
            Change::Preallocate { from, to, .. } if from > to || *to > MAX_FILE.div_ceil(BLOCK) => {
                Err(numbers.strange(&format!("preallocates blocks {from} to {to} of a file")))
            }
            Change::Put { value, .. } if value.len() > crate::tree::MAX_VALUE => Err(numbers.strange(
                &format!("has an item of {} bytes; expected at most {}", value.len(), crate::tree::MAX_VALUE),
            )),
            // Changes with data blocks take effect with their record.
            Change::Map { .. } | Change::Move { .. } if kind & SUBMITTED != 0 => Err(numbers
                .strange("marks a change with data as submitted; expected a change of names or attributes")),
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
            Change::Put { key, value: Value::from_slice(b"value") },
            Change::Touch { inode: 7, time: -3 },
            Change::Delete { key },
            Change::set(7, attributes),
            Change::set(7, Attributes::default()),
            Change::Map { inode: 7, block: 3, blocks: 2, size: 20_000, modified: -1 },
            Change::Unmap { inode: 7, from: 3, to: u64::MAX },
            Change::Preallocate { inode: 7, from: 0, to: 5 },
            Change::Grow { inode: 7, size: 20_000 },
            Change::Share {
                inode: 7,
                block: 3,
                count: 2,
                from_inode: 71,
                from_block: 9,
                size: 20_000,
                modified: -1,
            },
            Change::Remove { inode: 7 },
            Change::Move { inode: 7, block: 3, blocks: 2, from: ZoneBlock::new(9, 12) },
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
        let without_blocks: Vec<Change> =
            every_kind().into_iter().filter(|change| change.blocks() == 0).collect();
        Change::encode_submitted(&without_blocks, &mut meta);
        assert!(meta.len() <= without_blocks.iter().map(Change::length).sum::<usize>());
        let expected = without_blocks.into_iter().map(|change| Recorded { change, is_submitted: true });
        assert_eq!(Change::decode_all(&meta), Ok(expected.collect()));
    }

    #[test]
    fn making_and_removing_a_file_take_few_bytes() {
        let now = 1_800_000_000_123_456_789_i64;
        let (mode, uid, gid) = (libc::S_IFREG | 0o644, 1000, 1000);
        let inode = Inode {
            mode,
            links: 1,
            uid,
            gid,
            size: 0,
            blocks: 0,
            accessed: now,
            modified: now,
            changed: now,
            created: now,
            device: 0,
            parent: 0,
        };
        let (directory, number, name) = (65, 1_000_000, b"file-12345");
        let key = directory::first_key(directory, name);
        let value = directory::encode(number, 8, name);
        let touch = Change::Touch { inode: directory, time: now };
        let make = [
            Change::Put { key: Inode::key(number), value: inode.encode() },
            touch.clone(),
            Change::Put { key, value: value.clone() },
        ];
        // A name that isn't the first of its hash, and a time other than the inode's.
        let alike = Change::Put { key: Key { offset: key.offset + 1, ..key }, value };
        let later = Change::Touch { inode: directory, time: now + 1 };
        let remove = [Change::Delete { key }, touch, Change::Remove { inode: number }];
        let others = [make[0].clone(), later, alike];
        for (changes, most) in [(&make, 48), (&remove, 27), (&others, 80)] {
            let mut meta = Vec::new();
            Change::encode_submitted(changes, &mut meta);
            assert!(meta.len() <= most, "{} bytes", meta.len());
            let decoded = Change::decode_all(&meta).expect("it was encoded");
            let decoded: Vec<Change> = decoded.into_iter().map(|recorded| recorded.change).collect();
            assert_eq!(decoded, changes);
        }
        // A short touch needs a preceding change.
        assert!(Change::decode_all(&[TOUCH_AT_ONCE, 7]).is_err());
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

    #[test]
    fn ranges_that_no_operation_has_are_refused() {
        let is_refused = |change: Change| {
            let mut meta = Vec::new();
            change.encode(&mut meta);
            Change::decode_all(&meta).is_err()
        };
        assert!(is_refused(Change::Unmap { inode: 7, from: 5, to: 3 }));
        assert!(is_refused(Change::Preallocate { inode: 7, from: 5, to: 3 }));
        assert!(
            is_refused(Change::Preallocate { inode: 7, from: 0, to: u64::MAX }),
            "more than any file has"
        );
        let size = MAX_FILE + 1;
        assert!(is_refused(Change::Grow { inode: 7, size }));
        assert!(is_refused(Change::Map { inode: 7, block: 0, blocks: 1, size, modified: 0 }));
        let share =
            Change::Share { inode: 7, block: 0, count: 1, from_inode: 8, from_block: 0, size, modified: 0 };
        assert!(is_refused(share));
        assert!(is_refused(Change::set(7, Attributes { size: Some(size), ..Attributes::default() })));
    }

    #[test]
    fn changes_of_more_or_fewer_blocks_than_the_record_has_are_refused() {
        let map = |blocks| Change::Map { inode: 7, block: 0, blocks, size: 0, modified: 0 };
        let mut meta = Vec::new();
        [map(3), map(2)].iter().for_each(|change| change.encode(&mut meta));
        assert_eq!(Change::decode_record(&meta, 5).map(|changes| changes.len()), Ok(2));
        assert!(Change::decode_record(&meta, 4).is_err() && Change::decode_record(&meta, 6).is_err());
        [map(u32::MAX), map(u32::MAX)].iter().for_each(|change| change.encode(&mut meta));
        assert!(Change::decode_record(&meta, 3).is_err());
    }
}
