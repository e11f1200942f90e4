//! Keys of a tree.

use std::fmt;

/// Key of an item, ordered by inode, then kind, then offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Number of the inode that the item belongs to.
    pub inode: u64,
    /// Kind of the item within its inode.
    pub kind: u8,
    /// Position among the inode's items of this kind, in a unit that the kind defines.
    pub offset: u64,
}

impl Key {
    /// Smallest key.
    pub const MIN: Key = Key::new(0, 0, 0);

    /// Greatest key.
    pub const MAX: Key = Key::new(u64::MAX, u8::MAX, u64::MAX);

    /// Returns the key of these fields.
    pub const fn new(inode: u64, kind: u8, offset: u64) -> Self {
        Key { inode, kind, offset }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "inode {} kind {} offset {}", self.inode, self.kind, self.offset)
    }
}
