//! Names in directories, as items of the tree. The key contains a hash of the name, so a directory is sorted
//! by hash, and a reader finds its position again after names are added or removed.
//!
//! Names with the same hash have consecutive keys, up to [`MAX_ALIKE`].

use crate::metadata::change::{Change, Changes};

use crate::metadata::forest::Forest;
use crate::metadata::inode::{FileType, InodeNumber, Value, kind};
use crate::tree::Key;
use block::{Error, Result};
use crc_fast::{CrcAlgorithm, checksum};
use logkit::leb128::Numbers;

/// Longest name in bytes.
pub const MAX_NAME: usize = 255;
/// Most names of a directory with the same hash.
pub const MAX_ALIKE: u64 = 256;
/// Bits of an offset that distinguish names with the same hash.
const ALIKE_BITS: u32 = 8;

/// A name in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Offset at which [`entries`] continues after this name.
    pub next: u64,
    /// Inode that the name refers to.
    pub inode: InodeNumber,
    /// Type of the file, as in `d_type`.
    pub code: u8,
    /// The name.
    pub name: Vec<u8>,
}

/// Bits of a hash.
pub const HASH_BITS: u32 = 54;

/// Returns the hash of a name: 54 bits, so that offsets derived from it are positive for programs; at least
/// 1.
pub fn hash(name: &[u8]) -> u64 {
    // CRC-64 alone doesn't mix: names that differ only in their last bytes would have neighbouring hashes.
    let mut hash = checksum(CrcAlgorithm::Crc64Nvme, name);
    hash = (hash ^ (hash >> 32)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    ((hash ^ (hash >> 29)) >> 10).max(1)
}

/// Hash of the names at an offset.
pub fn hash_at(offset: u64) -> u64 {
    offset >> ALIKE_BITS
}

/// First offset of the names with a hash.
pub fn offset_of(hash: u64) -> u64 {
    hash << ALIKE_BITS
}

/// Key of a name if no other name of the directory has its hash.
pub fn first_key(directory: InodeNumber, name: &[u8]) -> Key {
    Key { inode: directory, kind: kind::ENTRY, offset: offset_of(hash(name)) }
}

/// Refuses an invalid file name.
///
/// # Errors
/// ENAMETOOLONG; [`Error::Invalid`] for other invalid names.
pub fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > MAX_NAME {
        let long = format!("a name of {} bytes; expected at most {MAX_NAME}", name.len());
        return Err(Error::from_errno(libc::ENAMETOOLONG, long));
    }
    match name {
        b"" | b"." | b".." => Err(Error::invalid(format!("\"{}\" is no name for a file", show(name)))),
        _ if name.contains(&b'/') || name.contains(&0) => {
            Err(Error::invalid(format!("\"{}\": a name contains neither / nor NUL", show(name))))
        }
        _ => Ok(()),
    }
}

/// A name for error messages.
pub fn show(name: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(name)
}

/// Encodes the value of an item: a byte with the type (low four bits) and the length of the inode number in
/// bytes (high four bits), the inode number, little-endian, and the name.
pub fn encode(inode: InodeNumber, code: u8, name: &[u8]) -> Value {
    let length = 8 - inode.leading_zeros() as usize / 8;
    let mut value = Value::with_capacity(1 + length + name.len());
    value.push(code & 0xF | (length as u8) << 4);
    value.extend_from_slice(&inode.to_le_bytes()[..length]);
    value.extend_from_slice(name);
    value
}

/// Decodes an item into inode, type and name.
///
/// # Errors
/// [`Error::Corrupt`] for bytes that aren't an entry.
pub fn decode(value: &[u8]) -> Result<(InodeNumber, u8, &[u8])> {
    let mut numbers = Numbers::new(value, "an entry of a directory");
    let first = numbers.byte()?;
    let length = usize::from(first >> 4);
    let mut inode = [0; 8];
    match inode.get_mut(..length) {
        Some(bytes) => bytes.copy_from_slice(numbers.bytes(length)?),
        None => return Err(numbers.strange(&format!("has a number of an inode of {length} bytes"))),
    }
    Ok((InodeNumber::from_le_bytes(inode), first & 0xF, numbers.rest()))
}

/// Result of looking up a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// Key of the name's item.
    pub key: Key,
    /// Inode that the name refers to.
    pub inode: InodeNumber,
    /// Type of the file, as in `d_type`.
    pub code: u8,
}

impl Found {
    /// File type of the inode.
    pub fn file_type(&self) -> FileType {
        FileType::of(u32::from(self.code) << 12).unwrap_or(FileType::Regular)
    }

    /// Whether the file is a directory.
    pub fn is_directory(&self) -> bool {
        self.code == FileType::Directory.code()
    }
}

/// Items of the names of a directory with the same hash as `name`.
pub fn alike<'a>(
    items: &'a Forest,
    directory: InodeNumber,
    name: &[u8],
) -> impl Iterator<Item = (Key, &'a [u8])> + 'a {
    from_hash(items, first_key(directory, name))
}

fn from_hash(items: &Forest, first: Key) -> impl Iterator<Item = (Key, &[u8])> + '_ {
    items.range(&first).take_while(move |(key, _)| {
        (key.inode, key.kind) == (first.inode, first.kind) && key.offset - first.offset < MAX_ALIKE
    })
}

/// Looks a name up from the key `first`. Returns the inode that it refers to, or the key that it would get.
fn look_from(items: &Forest, first: Key, name: &[u8]) -> Result<std::result::Result<Found, Key>> {
    let mut free = first;
    for (key, value) in from_hash(items, first) {
        let (inode, code, other) = decode(value)?;
        if other == name {
            return Ok(Ok(Found { key, inode, code }));
        }
        if key.offset == free.offset {
            free.offset += 1;
        }
    }
    Ok(Err(free))
}

/// Looks a name up. Returns the inode that it refers to, or the key that it would get.
///
/// # Errors
/// [`Error::Corrupt`] for a damaged item.
pub fn look(items: &Forest, directory: InodeNumber, name: &[u8]) -> Result<std::result::Result<Found, Key>> {
    look_from(items, first_key(directory, name), name)
}

/// Looks a name up. Returns the inode that it refers to, or a free key for it.
///
/// # Errors
/// [`Error::Corrupt`] for a damaged item; [`Error::NoSpace`] if the directory has [`MAX_ALIKE`] names of
/// this hash.
pub fn find_or_vacant(
    items: &Forest,
    directory: InodeNumber,
    name: &[u8],
) -> Result<std::result::Result<Found, Key>> {
    let first = first_key(directory, name);
    match look_from(items, first, name)? {
        Err(key) if key.offset - first.offset >= MAX_ALIKE => Err(too_many_alike(directory, name)),
        found => Ok(found),
    }
}

/// Looks a name up.
///
/// # Errors
/// [`Error::Corrupt`] for a damaged item.
pub fn find(items: &Forest, directory: InodeNumber, name: &[u8]) -> Result<Option<Found>> {
    look(items, directory, name).map(std::result::Result::ok)
}

/// Refuses the key of a name if the directory has [`MAX_ALIKE`] names of its hash.
///
/// # Errors
/// [`Error::NoSpace`] with the name.
pub fn check_key(key: Key, directory: InodeNumber, name: &[u8]) -> Result<()> {
    match key.offset - first_key(directory, name).offset < MAX_ALIKE {
        true => Ok(()),
        false => Err(too_many_alike(directory, name)),
    }
}

#[cold]
fn too_many_alike(directory: InodeNumber, name: &[u8]) -> Error {
    Error::no_space(format!(
        "directory {directory} has {MAX_ALIKE} names with the hash of \"{}\"; choose another one",
        show(name)
    ))
}

/// Names of a directory at or after an offset, which is 0 or an [`Entry::next`].
pub fn entries(
    items: &Forest,
    directory: InodeNumber,
    from: u64,
) -> impl Iterator<Item = Result<Entry>> + '_ {
    let first = Key { inode: directory, kind: kind::ENTRY, offset: from };
    let own = move |key: &Key| key.inode == directory && key.kind == kind::ENTRY;
    items.range(&first).take_while(move |(key, _)| own(key)).map(|(key, value)| {
        let (inode, code, name) = decode(value)?;
        Ok(Entry { next: key.offset + 1, inode, code, name: name.to_vec() })
    })
}

/// Returns changes that remove the items of the first names of a directory, at most `most`, and change
/// nothing else.
pub fn removal(items: &Forest, directory: InodeNumber, most: usize) -> Changes {
    let first = Key { inode: directory, kind: kind::ENTRY, offset: 0 };
    let own = items.range(&first).map(|(key, _)| key);
    let own = own.take_while(|key| (key.inode, key.kind) == (directory, kind::ENTRY));
    own.take(most).map(|key| Change::Delete { key }).collect()
}

/// Whether a directory has no names.
pub fn is_empty(items: &Forest, directory: InodeNumber) -> bool {
    entries(items, directory, 0).next().is_none()
}
