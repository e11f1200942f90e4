//! Extended attributes, as items of the tree. The key has a hash of the name; an attribute longer than an
//! item is divided into parts.

use crate::metadata::Metadata;
use crate::metadata::change::{Attributes, Change, Changes};
use crate::metadata::directory::show;
use crate::metadata::inode::{InodeNumber, Time, Value, kind};
use crate::tree::Key;
use block::{Error, Result};
use crc_fast::{CrcAlgorithm, checksum};
use logkit::leb128::{Numbers, put};

/// Longest name in bytes, the same as `XATTR_NAME_MAX` of Linux.
pub const MAX_NAME: usize = 255;
/// Longest value in bytes: name and value fit in one record.
pub const MAX_VALUE: usize = 3072;
/// Most bytes of an attribute in one item.
const PART: usize = 1024;
/// Bits of an offset that number the parts of an attribute and the names with one hash.
const PART_BITS: u32 = 4;
const ALIKE_BITS: u32 = 8;

/// Condition of `set` on whether the attribute exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Setting {
    /// Creates or replaces the attribute.
    #[default]
    Any,
    /// Fails if the attribute exists (`XATTR_CREATE`).
    Create,
    /// Fails if the attribute doesn't exist (`XATTR_REPLACE`).
    Replace,
}

fn missing(inode: InodeNumber, name: &[u8]) -> Error {
    Error::from_errno(libc::ENODATA, format!("inode {inode} has no attribute \"{}\"", show(name)))
}

fn first_key(inode: InodeNumber, name: &[u8]) -> Key {
    let hash = checksum(CrcAlgorithm::Crc64Nvme, name) >> (PART_BITS + ALIKE_BITS);
    Key { inode, kind: kind::ATTRIBUTE, offset: hash << (PART_BITS + ALIKE_BITS) }
}

/// Attributes of an inode at or after the key `first`: key of the first part, name, value.
fn attributes(metadata: &Metadata, first: Key) -> impl Iterator<Item = Result<(Key, Vec<u8>, Vec<u8>)>> + '_ {
    let is_own = move |key: &Key| (key.inode, key.kind) == (first.inode, kind::ATTRIBUTE);
    let mut items = metadata.items.range(&first).take_while(move |(key, _)| is_own(key)).peekable();
    std::iter::from_fn(move || {
        let (key, part) = items.next()?;
        let mut whole = part.to_vec();
        while let Some((_, part)) =
            items.next_if(|(next, _)| next.offset >> PART_BITS == key.offset >> PART_BITS)
        {
            whole.extend_from_slice(part);
        }
        Some(decode(&whole).map(|(name, value)| (key, name, value)))
    })
}

fn decode(whole: &[u8]) -> Result<(Vec<u8>, Vec<u8>)> {
    let mut numbers = Numbers::new(whole, "an extended attribute");
    let (name, value) = (numbers.take()?, numbers.take()?);
    let name = numbers.bytes(usize::try_from(name).unwrap_or(usize::MAX))?.to_vec();
    let value = numbers.bytes(usize::try_from(value).unwrap_or(usize::MAX))?.to_vec();
    numbers.end()?;
    Ok((name, value))
}

type Located = (Key, Vec<u8>);

/// Looks an attribute up. Returns its first key and value, or `Err` with the key that a new attribute of this
/// name gets.
fn find(metadata: &Metadata, inode: InodeNumber, name: &[u8]) -> Result<std::result::Result<Located, Key>> {
    let mut key = first_key(inode, name);
    let last = key.offset + (((1 << ALIKE_BITS) - 1) << PART_BITS);
    for attribute in attributes(metadata, key) {
        let (found, other, value) = attribute?;
        if found.offset > last {
            break;
        }
        if other == name {
            return Ok(Ok((found, value)));
        }
        if found.offset == key.offset {
            key.offset += 1 << PART_BITS;
        }
    }
    match key.offset <= last {
        true => Ok(Err(key)),
        false => Err(Error::no_space(format!(
            "inode {inode} has too many attributes with the hash of \"{}\"; choose another name",
            show(name)
        ))),
    }
}

/// Value of an attribute.
///
/// # Errors
/// ENODATA; ESTALE.
pub(crate) fn get(metadata: &Metadata, inode: InodeNumber, name: &[u8]) -> Result<Vec<u8>> {
    metadata.inode(inode)?;
    match find(metadata, inode, name)? {
        Ok((_, value)) => Ok(value),
        Err(_) => Err(missing(inode, name)),
    }
}

/// Names of all attributes.
///
/// # Errors
/// ESTALE.
pub(crate) fn names(metadata: &Metadata, inode: InodeNumber) -> Result<Vec<Vec<u8>>> {
    metadata.inode(inode)?;
    let first = Key { inode, kind: kind::ATTRIBUTE, offset: 0 };
    attributes(metadata, first).map(|attribute| attribute.map(|(_, name, _)| name)).collect()
}

fn parts(length: usize) -> u64 {
    length.div_ceil(PART) as u64
}

fn length(name: &[u8], value: &[u8]) -> usize {
    encode(name, value).len()
}

fn encode(name: &[u8], value: &[u8]) -> Vec<u8> {
    let mut whole = Vec::with_capacity(name.len() + value.len() + 8);
    put(&mut whole, name.len() as u64);
    put(&mut whole, value.len() as u64);
    whole.extend_from_slice(name);
    whole.extend_from_slice(value);
    whole
}

fn touched(inode: InodeNumber, now: Time) -> Change {
    Change::set(inode, Attributes { changed: Some(now), ..Attributes::default() })
}

/// Returns the changes that set an attribute.
///
/// # Errors
/// ERANGE for a name that is empty or too long; E2BIG for a value that is too long; [`Error::AlreadyExists`]
/// or ENODATA where `setting` isn't met.
pub(crate) fn set(
    metadata: &Metadata,
    inode: InodeNumber,
    name: &[u8],
    value: &[u8],
    setting: Setting,
    now: Time,
) -> Result<Changes> {
    metadata.inode(inode)?;
    if name.is_empty() || name.len() > MAX_NAME {
        let long = format!("inode {inode}: attribute name of {} bytes; expected 1 to {MAX_NAME}", name.len());
        return Err(Error::from_errno(libc::ERANGE, long));
    }
    if value.len() > MAX_VALUE {
        let long =
            format!("inode {inode}: attribute value of {} bytes; expected at most {MAX_VALUE}", value.len());
        return Err(Error::from_errno(libc::E2BIG, long));
    }
    let (first, old) = match find(metadata, inode, name)? {
        Ok(_) if setting == Setting::Create => {
            return Err(Error::already_exists(format!(
                "inode {inode} has the attribute \"{}\" already",
                show(name)
            )));
        }
        Err(_) if setting == Setting::Replace => return Err(missing(inode, name)),
        Ok((key, old)) => (key, parts(length(name, &old))),
        Err(key) => (key, 0),
    };
    let mut changes = Changes::new();
    let whole = encode(name, value);
    for (part, bytes) in whole.chunks(PART).enumerate() {
        let key = Key { offset: first.offset + part as u64, ..first };
        changes.push(Change::Put { key, value: Value::from_slice(bytes) });
    }
    changes.extend(
        (parts(whole.len())..old)
            .map(|part| Change::Delete { key: Key { offset: first.offset + part, ..first } }),
    );
    changes.push(touched(inode, now));
    Ok(changes)
}

/// Returns the changes that remove an attribute.
///
/// # Errors
/// ENODATA; ESTALE.
pub(crate) fn remove(metadata: &Metadata, inode: InodeNumber, name: &[u8], now: Time) -> Result<Changes> {
    metadata.inode(inode)?;
    let Ok((first, value)) = find(metadata, inode, name)? else { return Err(missing(inode, name)) };
    let keys = (0..parts(length(name, &value))).map(|part| Key { offset: first.offset + part, ..first });
    let mut changes: Changes = keys.map(|key| Change::Delete { key }).collect();
    changes.push(touched(inode, now));
    Ok(changes)
}
