//! Cache of the paths to the leaves that were found last: operations often return to the leaf of a directory
//! and to those of its newest names and inodes.
//!
//! A path is valid until a node is split or merged; then all paths are dropped. The search within the leaf
//! isn't cached.

use super::Path;
use super::key::Key;
use std::cell::Cell;

/// Number of cached paths: to the inode of a directory, to its new name and to the new inode.
const KEPT: usize = 3;

/// A path, with the range of keys of its leaf.
#[derive(Debug, Clone, Copy)]
struct Way {
    /// Smallest key.
    from: Key,
    /// The key after the last one; `None` for the last leaf of the tree.
    to: Option<Key>,
    path: Path,
}

/// Paths that were found last.
#[derive(Debug, Clone, Default)]
pub(super) struct Ways {
    kept: [Cell<Option<Way>>; KEPT],
    /// Index of the path that is replaced next.
    next: Cell<u8>,
}

impl Ways {
    /// Returns the path to the leaf that may have this key, and the smallest permitted key of the next leaf;
    /// `None` if it isn't cached.
    #[inline]
    pub fn find(&self, key: &Key) -> Option<(Path, Option<Key>)> {
        let leads_to = |way: &Way| way.from.is_at_most(key) && way.to.is_none_or(|to| !to.is_at_most(key));
        let way = self.kept.iter().filter_map(Cell::get).find(leads_to)?;
        Some((way.path, way.to))
    }

    /// Caches a path.
    pub fn keep(&self, path: &Path, from: Key, to: Option<Key>) {
        let next = self.next.get();
        self.next.set((next + 1) % KEPT as u8);
        self.kept[usize::from(next)].set(Some(Way { from, to, path: *path }));
    }

    /// Drops all paths, because nodes are split or merged.
    pub fn forget(&self) {
        self.kept.iter().for_each(|way| way.set(None));
    }
}
