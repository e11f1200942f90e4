//! The ways to the leaves that were found last: operations come back to the leaf of a directory and to those of its newest names and inodes.
//!
//! A way stays right until a node is split or merged, and then all are forgotten. What is in the leaf is searched anew each time.

use super::Path;
use super::key::Key;
use std::cell::Cell;

/// Number of ways that are kept: to the inode of a directory, to its new name and to the new inode.
const KEPT: usize = 3;

/// A way, and the keys to whose leaf it leads.
#[derive(Debug, Clone, Copy)]
struct Way {
    /// Smallest key.
    from: Key,
    /// The key after the last one; none for the last leaf of the tree.
    to: Option<Key>,
    path: Path,
}

/// Ways that were found last.
#[derive(Debug, Clone, Default)]
pub(super) struct Ways {
    kept: [Cell<Option<Way>>; KEPT],
    /// The one that the next takes the place of.
    next: Cell<u8>,
}

impl Ways {
    /// Way to the leaf that may have this key, and the smallest permitted key of the leaf after it.
    #[inline]
    pub fn find(&self, key: &Key) -> Option<(Path, Option<Key>)> {
        let leads_to = |way: &Way| way.from.is_at_most(key) && way.to.is_none_or(|to| !to.is_at_most(key));
        let way = self.kept.iter().filter_map(Cell::get).find(leads_to)?;
        Some((way.path, way.to))
    }

    /// Keeps a way.
    pub fn keep(&self, path: &Path, from: Key, to: Option<Key>) {
        let next = self.next.get();
        self.next.set((next + 1) % KEPT as u8);
        self.kept[usize::from(next)].set(Some(Way { from, to, path: *path }));
    }

    /// Forgets all ways: nodes are split or merged.
    pub fn forget(&self) {
        self.kept.iter().for_each(|way| way.set(None));
    }
}
