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

    /// Returns a key with these fields.
    pub const fn new(inode: u64, kind: u8, offset: u64) -> Self {
        Key { inode, kind, offset }
    }

    /// Smallest key greater than this one; `None` for the greatest.
    pub fn next(&self) -> Option<Self> {
        let Key { inode, kind, offset } = *self;
        match (offset.checked_add(1), kind.checked_add(1)) {
            (Some(offset), _) => Some(Key { offset, ..*self }),
            (None, Some(kind)) => Some(Key::new(inode, kind, 0)),
            (None, None) => inode.checked_add(1).map(|inode| Key::new(inode, 0, 0)),
        }
    }

    /// Whether this key is at most `other`. Unlike the operator `<=`, it has no mispredictable branches,
    /// which matters in searches.
    #[inline]
    pub(super) fn is_at_most(&self, other: &Key) -> bool {
        let is_offset = self.offset <= other.offset;
        let is_kind = (self.kind < other.kind) | ((self.kind == other.kind) & is_offset);
        (self.inode < other.inode) | ((self.inode == other.inode) & is_kind)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "inode {} kind {} offset {}", self.inode, self.kind, self.offset)
    }
}

/// Number of indexes below `count` for which `is_before` returns true; these must be a prefix. A binary
/// search without mispredictable branches.
#[inline]
pub(super) fn partition(count: usize, is_before: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut left) = (0, count);
    while left > 1 {
        let half = left / 2;
        low += half * usize::from(is_before(low + half - 1));
        left -= half;
    }
    low + usize::from(left == 1 && is_before(low))
}
