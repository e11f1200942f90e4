//! Striped directories: the names of a large directory are divided by their hashes among stripes on all
//! shards, so that creates aren't limited by one shard.
//!
//! A stripe is a directory without a name, in another inode group, whose parent is the striped directory.
//! Operations on names treat it as a directory: it is the holder of the name. So creating a file in a striped
//! directory involves one shard.
//!
//! Each stripe has a range of hashes; stripes are in the order of their ranges. Keys of names are the same in
//! a directory and in its stripes, so a listing has the same order and the same offsets before and after the
//! names are divided (`striping`).
//!
//! A directory is striped until it is removed. Its item ([`key`]) lists the inodes of its stripes; while a
//! file system is open, all shards know these ([`StripedDirectories`]). Setting the mode, the owner or times
//! of the directory also sets those of all stripes; a change of names sets the times of one stripe.

use crate::metadata::change::{Change, Changes};
use crate::metadata::directory::{self, HASH_BITS, hash, hash_at};
use crate::metadata::forest::Forest;
use crate::metadata::inode::{Inode, InodeNumber, Value, kind};
use crate::metadata::orphan;
use crate::tree::Key;
use block::Result;
use logkit::leb128::{Numbers, put};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// Most stripes of a directory: at least two for each shard. Changes of all stripes fit in one record.
pub const MAX_STRIPES: usize = 32;
/// Names that are counted at a time to estimate the size of a directory.
const COUNTED: u64 = 64;
/// The size is estimated at one of this number of new names.
const COUNTS_EVERY: u64 = 16;

/// Stripes of a directory, in the order of their hash ranges.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stripes(Arc<[InodeNumber]>);

/// Item of a striped directory, decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Striped {
    /// Stripes of the directory.
    pub stripes: Stripes,
    /// Whether the directory itself may still have names that were copied to the stripes. These are ignored,
    /// and are being removed.
    pub has_leftovers: bool,
}

/// Key of the item of a striped directory.
pub fn key(directory: InodeNumber) -> Key {
    Key { inode: 0, kind: kind::STRIPES, offset: directory }
}

impl Stripes {
    /// Returns stripes with these inodes, at least one.
    pub fn new(inodes: &[InodeNumber]) -> Self {
        Stripes(inodes.into())
    }

    /// Inodes of the stripes.
    pub fn all(&self) -> &[InodeNumber] {
        &self.0
    }

    /// Index of the stripe with a hash; for hashes above the largest one, the number of stripes.
    fn index_of(&self, hash: u64) -> usize {
        let index = (u128::from(hash) * self.0.len() as u128) >> HASH_BITS;
        (index as usize).min(self.0.len())
    }

    /// Stripe that holds a name, or would hold it.
    pub fn of_name(&self, name: &[u8]) -> InodeNumber {
        self.0[self.index_of(hash(name))]
    }

    /// Stripe that holds the name with this offset; `None` after the last one.
    pub fn at(&self, offset: u64) -> Option<InodeNumber> {
        self.0.get(self.index_of(hash_at(offset))).copied()
    }

    /// Offset at which the names of a stripe begin, by its index.
    pub fn first_offset(&self, index: usize) -> u64 {
        let first = (index as u128) << HASH_BITS;
        directory::offset_of(first.div_ceil(self.0.len() as u128) as u64)
    }

    /// Stripes with names at or after an offset.
    pub fn from(&self, offset: u64) -> &[InodeNumber] {
        &self.0[self.index_of(hash_at(offset))..]
    }
}

impl Striped {
    /// Encodes the item: a byte that is 1 if there may be leftovers, and the inodes of the stripes.
    pub fn encode(&self) -> Value {
        let mut bytes = vec![u8::from(self.has_leftovers)];
        self.stripes.all().iter().for_each(|inode| put(&mut bytes, *inode));
        Value::from_vec(bytes)
    }

    /// Decodes the item.
    ///
    /// # Errors
    /// [`Corrupt`](block::Error::Corrupt) for bytes that aren't a valid item.
    pub fn decode(value: &[u8]) -> Result<Self> {
        let mut numbers = Numbers::new(value, "the item of a striped directory");
        let has_leftovers = match numbers.byte()? {
            0 => false,
            1 => true,
            other => return Err(numbers.strange(&format!("begins with {other}; expected 0 or 1"))),
        };
        let mut inodes = Vec::new();
        while !numbers.rest().is_empty() {
            inodes.push(numbers.take()?);
        }
        match (1..=MAX_STRIPES).contains(&inodes.len()) {
            true => Ok(Striped { stripes: Stripes::new(&inodes), has_leftovers }),
            false => {
                Err(numbers.strange(&format!("has {} stripes; expected 1 to {MAX_STRIPES}", inodes.len())))
            }
        }
    }
}

/// Stripes of a directory, and whether it may have leftovers; `None` if it isn't striped.
///
/// # Errors
/// [`Corrupt`](block::Error::Corrupt) for a damaged item.
pub fn read(items: &Forest, directory: InodeNumber) -> Result<Option<Striped>> {
    items.get(&key(directory)).map(Striped::decode).transpose()
}

/// Whether a directory has no names, including those in its stripes.
///
/// # Errors
/// [`Corrupt`](block::Error::Corrupt) for a damaged item.
pub fn is_empty(items: &Forest, directory: InodeNumber) -> Result<bool> {
    Ok(match read(items, directory)? {
        None => directory::is_empty(items, directory),
        Some(striped) => striped.stripes.all().iter().all(|stripe| directory::is_empty(items, *stripe)),
    })
}

/// Returns the changes that remove the stripes of a directory that is being removed, if it is striped. The
/// directory's item is removed with its inode.
///
/// # Errors
/// [`Corrupt`](block::Error::Corrupt) for a damaged item.
pub fn removal(items: &Forest, directory: InodeNumber) -> Result<Changes> {
    let striped = read(items, directory)?;
    let stripes = striped.iter().flat_map(|striped| striped.stripes.all());
    Ok(stripes.map(|stripe| Change::Remove { inode: *stripe }).collect())
}

/// Returns the changes that make a directory striped, once its stripes have all names; `subdirectories` has
/// the number of directories in each stripe.
pub fn switch(directory: (InodeNumber, &Inode), stripes: &Stripes, subdirectories: &[u32]) -> Changes {
    let (number, own) = directory;
    let striped = Striped { stripes: stripes.clone(), has_leftovers: true };
    let mut changes = Changes::new();
    changes.push(Change::Put { key: key(number), value: striped.encode() });
    let links = crate::metadata::change::Attributes { links: Some(2), ..Default::default() };
    changes.push(Change::set(number, links));
    for (stripe, count) in stripes.all().iter().zip(subdirectories) {
        let attributes = crate::metadata::change::Attributes {
            mode: Some(own.mode),
            uid: Some(own.uid),
            gid: Some(own.gid),
            links: Some(2 + count),
            ..Default::default()
        };
        changes.push(Change::set(*stripe, attributes));
        changes.push(Change::Delete { key: orphan(*stripe) });
    }
    changes
}

/// Estimates whether a directory has more than `above` names: names are counted in the part of the hashes
/// that begins with that of a new name. The result is exact for `above` up to 64.
pub fn is_large(items: &Forest, directory: InodeNumber, name: &[u8], above: u64) -> bool {
    let keys = |from: u64| {
        let first = Key { inode: directory, kind: kind::ENTRY, offset: from };
        let own = move |key: &Key| (key.inode, key.kind) == (directory, kind::ENTRY);
        items.range(&first).map(|(key, _)| key).take_while(own)
    };
    if above <= COUNTED {
        return keys(0).take(above as usize + 1).count() as u64 > above;
    }
    let first = hash(name);
    if !first.is_multiple_of(COUNTS_EVERY) {
        return false;
    }
    let end = first.saturating_add((1 << HASH_BITS) / (above / COUNTED));
    let counted = keys(directory::offset_of(first)).take_while(|key| hash_at(key.offset) < end);
    end <= 1 << HASH_BITS && counted.take(COUNTED as usize).count() as u64 == COUNTED
}

/// Merges the times and the number of subdirectories of a stripe into the attributes of its directory.
pub fn merge(own: &mut Inode, stripe: &Inode) {
    own.modified = own.modified.max(stripe.modified);
    own.changed = own.changed.max(stripe.changed);
    own.links = own.links.saturating_add(stripe.links.saturating_sub(2));
}

/// Striped directories of an open file system, shared by all shards, so that each shard finds the holder of a
/// name without a request to the directory's shard.
///
/// The shard of a directory adds it before unlocking it, so this is exact on that shard. A shard that reads
/// earlier sends its request to the directory's shard, which reads again. Takes about 400 bytes for each
/// striped directory.
#[derive(Debug, Default)]
pub struct StripedDirectories {
    /// Number of striped directories: if it is 0, lookups end here.
    count: AtomicUsize,
    all: RwLock<BTreeMap<InodeNumber, Stripes>>,
}

impl StripedDirectories {
    /// Calls `found` with the stripes of a directory; `None` if it isn't striped.
    pub fn look<R>(&self, directory: InodeNumber, found: impl FnOnce(&Stripes) -> R) -> Option<R> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        self.all.read().unwrap_or_else(PoisonError::into_inner).get(&directory).map(found)
    }

    /// The stripes of a directory; `None` if it isn't striped.
    pub fn find(&self, directory: InodeNumber) -> Option<Stripes> {
        self.look(directory, Stripes::clone)
    }

    /// Whether a directory is striped.
    #[inline]
    pub fn has(&self, directory: InodeNumber) -> bool {
        self.look(directory, |_| ()).is_some()
    }

    /// Sets the stripes of a directory; `None` if it isn't striped.
    pub fn set(&self, directory: InodeNumber, stripes: Option<Stripes>) {
        if stripes.is_none() && !self.has(directory) {
            return;
        }
        let mut all = self.all.write().unwrap_or_else(PoisonError::into_inner);
        match stripes {
            Some(stripes) => all.insert(directory, stripes),
            None => all.remove(&directory),
        };
        self.count.store(all.len(), Ordering::Release);
    }
}

/// Holder of a name: the directory, or the stripe of it that stores the name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holder {
    /// Directory of the name.
    pub directory: InodeNumber,
    /// Inode whose items include the name: the directory itself, or a stripe.
    pub inode: InodeNumber,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::directory::first_key;
    use crate::tree::Released;

    fn stripes(count: u64) -> Stripes {
        Stripes::new(&(1..=count).map(|number| number * 1000).collect::<Vec<_>>())
    }

    #[test]
    fn a_stripe_has_the_names_of_a_range_of_hashes_in_their_order() {
        for count in [1, 3, 32] {
            let stripes = stripes(count);
            let mut counts = BTreeMap::new();
            for number in 0..3000 {
                let name = format!("name {number}").into_bytes();
                let stripe = stripes.of_name(&name);
                let offset = first_key(7, &name).offset;
                assert_eq!((stripes.at(offset), stripes.from(offset)[0]), (Some(stripe), stripe));
                *counts.entry(stripe).or_insert(0) += 1;
            }
            assert_eq!(counts.len() as u64, count);
            assert!(counts.values().all(|names| *names > 3000 / count / 2), "{counts:?}");
            assert_eq!(stripes.from(0), stripes.all());
            assert!(stripes.from(u64::MAX).is_empty() && stripes.at(u64::MAX).is_none());
        }
    }

    #[test]
    fn the_item_is_read_as_it_was_encoded_and_other_bytes_are_refused() {
        let striped = Striped { stripes: stripes(32), has_leftovers: true };
        assert_eq!(Striped::decode(&striped.encode()), Ok(striped));
        for bytes in [&[][..], &[0], &[2, 7], &[0, 0x80], &[1; 34]] {
            assert!(matches!(Striped::decode(bytes), Err(block::Error::Corrupt(_))), "{bytes:?}");
        }
    }

    #[test]
    fn changes_of_all_stripes_fit_one_record() {
        let largest: Vec<InodeNumber> = (0..MAX_STRIPES as u64).map(|at| (1 << 47) + at).collect();
        let stripes = Stripes::new(&largest);
        let inode = Inode { mode: u32::MAX, uid: u32::MAX, gid: u32::MAX, ..Inode::stripe(1 << 47, 0o40755) };
        let changes = switch((1 << 47, &inode), &stripes, &[u32::MAX - 2; MAX_STRIPES]);
        let length: usize = changes.iter().map(Change::length).sum();
        // A header has one block. In addition to the changes it has links of 16 bytes for 16 shards.
        assert!(length <= 4096 - 96 - 17 * 16, "{length}");
    }

    #[test]
    fn a_directory_is_large_from_about_its_limit_on() {
        let mut items = Forest::new(1, &Released::new());
        let add = |items: &mut Forest, number: u64| {
            let name = format!("file {number}").into_bytes();
            items.put(&first_key(7, &name), &directory::encode(9, 8, &name));
            name
        };
        let first = (0..20_000).find(|number| {
            let name = add(&mut items, *number);
            is_large(&items, 7, &name, 4096)
        });
        let first = first.expect("the directory becomes large");
        assert!((2500..5500).contains(&first), "{first}");
        let mut few = Forest::new(1, &Released::new());
        for number in 0..6 {
            let name = add(&mut few, number);
            assert_eq!(is_large(&few, 7, &name, 4), number >= 4);
        }
    }
}
