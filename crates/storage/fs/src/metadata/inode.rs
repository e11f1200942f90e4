//! Inodes: attributes of files, without names and data.

use crate::tree::Key;
use block::{Error, Result};
use logkit::leb128::Numbers;
use smallvec::SmallVec;

/// Block size of the log, in bytes.
pub const BLOCK: u64 = 4096;

/// Largest size of a file in bytes. The kernel has the same limit: it refuses larger writes at once, and
/// would cache writes that only the file system refuses.
pub const MAX_FILE: u64 = i64::MAX as u64;

/// Value of an item. Inodes and most names are stored inline, without an allocation.
pub type Value = SmallVec<[u8; 40]>;

/// Number of an inode. A number isn't reused during the lifetime of the file system.
pub type InodeNumber = u64;

/// Largest number of an inode: nodes of a mount use the other 16 bits.
pub const MAX_INODE: InodeNumber = (1 << 48) - 1;

/// Nanoseconds since 1970, from 1677 to 2262.
pub type Time = i64;

/// Inode number of the root directory.
pub const ROOT: InodeNumber = 1;

/// Value of [`Inode::device`] in a stripe of a directory.
pub const STRIPE: u32 = 1;

/// Number of numbers in an inode's encoding.
const NUMBERS: usize = 12;
/// Bytes for the lengths of these numbers.
const LENGTHS: usize = NUMBERS / 2;
/// Longest encoding of an inode in bytes.
const LONGEST: usize = LENGTHS + 8 * NUMBERS;

/// Kinds of an inode's items in the tree, in the order of their keys.
pub mod kind {
    /// The inode itself.
    pub const INODE: u8 = 1;
    /// An extended attribute.
    pub const ATTRIBUTE: u8 = 2;
    /// The target of a symbolic link.
    pub const TARGET: u8 = 3;
    /// A name in a directory.
    pub const ENTRY: u8 = 4;
    /// Blocks of a file.
    pub const EXTENT: u8 = 5;
    /// Item of inode 0: an inode without names, which is removed when its last open file is closed.
    pub const ORPHAN: u8 = 6;
    /// Item of the keeper of an inode group (`shared`): blocks of a zone with several
    /// owners.
    pub const SHARED: u8 = 7;
    /// Item of inode 0: the stripes of a directory.
    pub const STRIPES: u8 = 8;
}

/// Type of a file: the bits `S_IFMT` of its mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum FileType {
    /// Regular file.
    Regular = libc::S_IFREG,
    /// Directory.
    Directory = libc::S_IFDIR,
    /// Symbolic link.
    Link = libc::S_IFLNK,
    /// Named pipe.
    Pipe = libc::S_IFIFO,
    /// Unix socket.
    Socket = libc::S_IFSOCK,
    /// Character device.
    Character = libc::S_IFCHR,
    /// Block device.
    Block = libc::S_IFBLK,
}

impl FileType {
    const ALL: [FileType; 7] = [
        FileType::Regular,
        FileType::Directory,
        FileType::Link,
        FileType::Pipe,
        FileType::Socket,
        FileType::Character,
        FileType::Block,
    ];

    /// Type of a file with this mode; `None` for a mode without a valid type.
    pub fn of(mode: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|it| *it as u32 == mode & libc::S_IFMT)
    }

    /// Type as in directory entries (`d_type`).
    pub fn code(self) -> u8 {
        (self as u32 >> 12) as u8
    }
}

/// Attributes of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Inode {
    /// Type and permissions, as in `st_mode`.
    pub mode: u32,
    /// Number of names; for a directory, 2 plus the number of its subdirectories.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Size in bytes.
    pub size: u64,
    /// Number of blocks of 4 KiB, preallocated ones included.
    pub blocks: u64,
    /// Time of the last access.
    pub accessed: Time,
    /// Time of the last change of the data.
    pub modified: Time,
    /// Time of the last change of the inode.
    pub changed: Time,
    /// Time of creation.
    pub created: Time,
    /// Device number of a device node; [`STRIPE`] for a stripe of a directory.
    pub device: u32,
    /// Parent of a directory; for a stripe, its directory; 0 for other files.
    pub parent: InodeNumber,
}

impl Inode {
    /// Returns the inode of the root directory of a new file system.
    pub fn root_directory(now: Time) -> Self {
        Inode {
            mode: FileType::Directory as u32 | 0o755,
            links: 2,
            uid: 0,
            gid: 0,
            size: 0,
            blocks: 0,
            accessed: now,
            modified: now,
            changed: now,
            created: now,
            device: 0,
            parent: ROOT,
        }
    }

    /// Returns the inode of a new stripe of a directory, without names. Its times are the earliest
    /// possible, so those of the directory are newer.
    pub fn stripe(directory: InodeNumber, mode: u32) -> Self {
        Inode {
            mode,
            links: 0,
            uid: 0,
            gid: 0,
            size: 0,
            blocks: 0,
            accessed: Time::MIN,
            modified: Time::MIN,
            changed: Time::MIN,
            created: Time::MIN,
            device: STRIPE,
            parent: directory,
        }
    }

    /// Whether the inode is a stripe of a directory.
    pub fn is_stripe(&self) -> bool {
        self.is_directory() && self.device == STRIPE
    }

    /// Directory that contains the files whose names are stored in this inode, which has the number `number`:
    /// for a stripe its directory, else itself.
    pub fn as_parent(&self, number: InodeNumber) -> InodeNumber {
        if self.is_stripe() { self.parent } else { number }
    }

    /// Key of an inode.
    pub fn key(inode: InodeNumber) -> Key {
        Key { inode, kind: kind::INODE, offset: 0 }
    }

    /// File type of the inode.
    pub fn file_type(&self) -> FileType {
        FileType::of(self.mode).unwrap_or(FileType::Regular)
    }

    /// Whether the inode is a directory.
    pub fn is_directory(&self) -> bool {
        self.mode & libc::S_IFMT == libc::S_IFDIR
    }

    /// Encodes the value of an item: the lengths of the numbers in bytes, four bits each, then the numbers,
    /// little-endian. Times are differences to the first one, so most inodes take 20 to 30 bytes. Every
    /// change of a file or a directory decodes and encodes an inode, so the format permits finding each
    /// number without parsing those before it bit by bit.
    pub fn encode(&self) -> Value {
        let since = |time: Time| from_signed(time.wrapping_sub(self.created));
        let numbers: [u64; NUMBERS] = [
            self.mode.into(),
            self.links.into(),
            self.uid.into(),
            self.gid.into(),
            self.device.into(),
            self.size,
            self.blocks,
            self.parent,
            self.created as u64,
            since(self.accessed),
            since(self.modified),
            since(self.changed),
        ];
        let mut value = [0; LONGEST];
        let (mut at, mut lengths) = (LENGTHS, 0_u64);
        for (index, number) in numbers.into_iter().enumerate() {
            let length = 8 - number.leading_zeros() as usize / 8;
            // 8 bytes are always available.
            if let Some(place) = value[at..].first_chunk_mut() {
                *place = number.to_le_bytes();
            }
            lengths |= (length as u64) << (4 * index);
            at += length;
        }
        value[..LENGTHS].copy_from_slice(&lengths.to_le_bytes()[..LENGTHS]);
        Value::from_slice(&value[..at])
    }

    /// Decodes the value of an item.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for bytes that aren't an inode.
    pub fn decode(value: &[u8]) -> Result<Self> {
        let strange = |how: &str| Numbers::new(value, "an inode").strange(how);
        let mut bytes = [0; LONGEST];
        match bytes.get_mut(..value.len()) {
            Some(bytes) => bytes.copy_from_slice(value),
            None => return Err(strange("is too long")),
        }
        let number_at = |at: usize| bytes[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let lengths = number_at(0);
        let (mut numbers, mut at) = ([0; NUMBERS], LENGTHS);
        for (index, number) in numbers.iter_mut().enumerate() {
            let length = (lengths >> (4 * index)) as usize & 0xF;
            *number = match length {
                0 => 0,
                1..=8 => number_at(at) & u64::MAX >> (64 - 8 * length),
                _ => return Err(strange("has a number of more than 64 bits")),
            };
            at += length;
        }
        if at != value.len() {
            return Err(strange(&format!("has {} bytes; expected {at}", value.len())));
        }
        let [mode, links, uid, gid, device, size, blocks, parent, created, accessed, modified, changed] =
            numbers;
        if (mode | links | uid | gid | device) >> 32 != 0 {
            return Err(strange("has a number of more than 32 bits where 32 bits are expected"));
        }
        let (mode, created) = (mode as u32, created as Time);
        if FileType::of(mode).is_none() {
            return Err(strange(&format!("has the mode {mode:o}, which is of no type of file")));
        }
        if size > MAX_FILE {
            return Err(strange(&format!("has {size} bytes; expected at most {MAX_FILE}")));
        }
        let time = |since: u64| created.wrapping_add(to_signed(since));
        Ok(Inode {
            mode,
            links: links as u32,
            uid: uid as u32,
            gid: gid as u32,
            size,
            blocks,
            accessed: time(accessed),
            modified: time(modified),
            changed: time(changed),
            created,
            device: device as u32,
            parent,
        })
    }
}

/// Encodes a signed number as an unsigned one, with the sign in the lowest bit (zigzag encoding).
const fn from_signed(number: i64) -> u64 {
    ((number << 1) ^ (number >> 63)) as u64
}

/// Inverse of [`from_signed`].
const fn to_signed(number: u64) -> i64 {
    (number >> 1) as i64 ^ -((number & 1) as i64)
}

/// Returns the end of a range.
///
/// # Errors
/// EFBIG for an end beyond [`MAX_FILE`].
pub fn end_of(offset: u64, length: u64) -> Result<u64> {
    match offset.checked_add(length) {
        Some(end) if end <= MAX_FILE => Ok(end),
        _ => Err(Error::from_errno(
            libc::EFBIG,
            format!(
                "range of {length} bytes from byte {offset} on ends beyond the largest size of a file; expected an end of at most {MAX_FILE}"
            ),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signed_numbers_survive_and_small_ones_stay_small() {
        let signed = [0, -1, 1, 64, -65, i64::MAX, i64::MIN];
        signed.iter().for_each(|number| assert_eq!(to_signed(from_signed(*number)), *number));
        assert_eq!([0, -1, 1, -2].map(from_signed), [0, 1, 2, 3]);
    }

    #[test]
    fn an_inode_is_read_as_it_was_encoded_and_takes_few_bytes() {
        let created = 1_800_000_000_123_456_789;
        let inode = Inode {
            mode: libc::S_IFREG | 0o644,
            links: 1,
            uid: 1000,
            gid: 1000,
            size: 70_000,
            blocks: 18,
            accessed: created,
            modified: created + 1_000_000,
            changed: created - 5,
            created,
            device: 0,
            parent: 0,
        };
        let value = inode.encode();
        assert_eq!(Inode::decode(&value), Ok(inode));
        assert!(value.len() <= 36, "{}", value.len());
        for length in 0..value.len() {
            assert!(Inode::decode(&value[..length]).is_err());
        }
        assert!(Inode::decode(&Inode { mode: 0o644, ..inode }.encode()).is_err());
    }
}
