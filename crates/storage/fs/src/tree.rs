//! Ordered maps from [`Key`]s to bytes: path-copying B+trees of packed pages.
//!
//! - Cloning a [`Tree`] takes O(1), and changes to one clone don't affect the other: they share nodes, and
//!   a shared node is copied with the path to it before it is changed.
//! - A node is a page of [`PAGE`] bytes, and leaves are packed in memory as on the medium.
//! - A page that was written has a [place](block::ZoneBlock). When the page changes, it loses its place,
//!   and so do its ancestors, which contain the places of their children. The place is released
//!   ([`Released`]) once no tree has the page any more.
//!
//! A checkpoint of a tree:
//! 1. `frozen = tree.clone()` and `batch = released.take()`, without a change in between.
//! 2. [`Tree::unstored`] on `frozen` yields the pages to write. `tree` may change meanwhile.
//! 3. [`Tree::stored`] of `frozen` describes the tree on the medium. Once it is durable, the places of
//!    `batch` are dead. If the checkpoint fails, they are added to the next checkpoint's batch.
//! 4. `drop(frozen)` releases places that die with the next checkpoint.
//!
//! [`Load`] reads a tree from the medium; its caller does the I/O. In other modules: writing, checksums, and
//! the meaning of items.

mod balance;
mod branch;
mod differences;
mod key;
mod layout;
mod leaf;
mod load;
mod node;
mod page;
mod places;
mod read;
mod share;
mod store;
mod ways;

#[cfg(test)]
mod tests;

pub use differences::visit_differences;
pub use key::Key;
pub use leaf::MAX_VALUE;
pub use load::{Known, Load, SinglePage};
pub use node::Released;
pub use page::PAGE;
pub use read::Range;
pub use store::{Page, Stored, Unstored};

use branch::Branch;
use leaf::{Change, Leaf};
use node::{Family, Node};
use std::rc::Rc;
use ways::Ways;

/// Ordered map from keys to values of 0 to [`MAX_VALUE`] bytes. Cloning takes O(1).
#[derive(Debug, Clone)]
pub struct Tree {
    /// Root; `None` for an empty tree: every leaf has an item.
    root: Option<Node>,
    /// Level of the root.
    level: u8,
    items: u64,
    pages: usize,
    family: Rc<Family>,
    ways: Ways,
}

/// Most branch levels in a path: more than a tree can grow to from the greatest level that is loaded.
const MAX_HEIGHT: usize = page::MAX_LEVEL as usize + 4;

/// Path from the root to a leaf: the index of the child at each branch, beginning at the root.
#[derive(Debug, Clone, Copy)]
struct Path {
    indexes: [u16; MAX_HEIGHT],
    /// Whether the leaf is the last one of the tree.
    is_last: bool,
}

impl Path {
    fn index(&self, depth: usize) -> usize {
        usize::from(self.indexes[depth])
    }
}

impl Tree {
    /// Returns an empty tree. Places of its pages will be released to `released`.
    pub fn new(released: &Released) -> Self {
        Self::empty(Family::new(released))
    }

    /// Returns an empty tree of this tree's family: their pages are counted together, and released to the
    /// same list.
    pub fn beside(&self) -> Self {
        Self::empty(self.family.clone())
    }

    fn empty(family: Rc<Family>) -> Self {
        Tree { root: None, level: 0, items: 0, pages: 0, family, ways: Ways::default() }
    }

    /// Number of items.
    pub fn len(&self) -> u64 {
        self.items
    }

    /// Whether the tree has no items.
    pub fn is_empty(&self) -> bool {
        self.items == 0
    }

    /// Number of pages of this tree.
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// Number of pages without a place, of this tree, its clones and the trees loaded beside it. Without
    /// clones, this is the number of pages that the next checkpoint writes; while a clone is being stored, it
    /// is an upper bound.
    pub fn unstored_pages(&self) -> usize {
        self.family.unstored()
    }

    /// Number of pages of this tree, its clones and the trees loaded beside it, shared pages counted once.
    pub fn family_pages(&self) -> usize {
        self.family.nodes()
    }

    /// Bytes of memory of this tree, its clones and the trees loaded beside it, shared pages counted once.
    /// The overhead of the allocator isn't counted.
    pub fn memory(&self) -> usize {
        self.family.memory()
    }

    /// Inserts an item or replaces its value. Returns whether an item with this key existed.
    ///
    /// # Panics
    /// If the value is longer than [`MAX_VALUE`] bytes.
    pub fn put(&mut self, key: &Key, value: &[u8]) -> bool {
        assert!(value.len() <= MAX_VALUE, "value of {} bytes; expected at most {MAX_VALUE}", value.len());
        let Some((path, leaf, _)) = self.find(key) else {
            self.root = Some(Node::Leaf(Leaf::of(&self.family, &[(*key, value)])));
            (self.items, self.pages) = (1, 1);
            return false;
        };
        let (index, replaces) = match leaf.search(key) {
            Ok(index) => (index, true),
            Err(index) => (index, false),
        };
        self.items += u64::from(!replaces);
        let change = Change { index, key: *key, value, replaces };
        let leaf = self.change_leaf(&path);
        if leaf.change(&change) {
            return replaces;
        }
        if leaf.ends_run(&change, path.is_last) {
            let next = Leaf::of(leaf.slot.family(), &[(*key, value)]);
            self.add_leaves(&path, vec![(*key, Node::Leaf(next))]);
        } else {
            let leaves = leaf.split(&change, path.is_last);
            self.replace_leaf(&path, leaves);
        }
        replaces
    }

    /// Calls `change` with the mutable value of an item, and returns the result; `None` if the item doesn't
    /// exist.
    pub fn update<R>(&mut self, key: &Key, change: impl FnOnce(&mut [u8]) -> R) -> Option<R> {
        let (path, leaf, _) = self.find(key)?;
        let index = leaf.search(key).ok()?;
        Some(change(self.change_leaf(&path).value_mut(index)))
    }

    /// Removes an item. Returns whether it existed.
    pub fn remove(&mut self, key: &Key) -> bool {
        let Some((path, leaf, _)) = self.find(key) else { return false };
        let Ok(index) = leaf.search(key) else { return false };
        self.items -= 1;
        let leaf = self.change_leaf(&path);
        leaf.remove(index);
        if leaf.used() < balance::LEAF_LOW {
            self.shrink(&path);
        }
        true
    }

    /// Returns the leaf that may have this key, the path to it, and the smallest permitted key of the next
    /// leaf; `None` if the tree is empty.
    fn find(&self, key: &Key) -> Option<(Path, &Leaf, Option<Key>)> {
        let mut node = self.root.as_ref()?;
        if let Some((path, upper)) = self.ways.find(key) {
            let mut depth = 0;
            loop {
                match node {
                    Node::Leaf(leaf) => return Some((path, leaf, upper)),
                    Node::Branch(branch) => node = &branch.children[path.index(depth)],
                }
                depth += 1;
            }
        }
        let mut path = Path { indexes: [0; MAX_HEIGHT], is_last: true };
        let (mut lower, mut upper) = (Key::MIN, None);
        let mut depth = 0;
        loop {
            match node {
                Node::Leaf(leaf) => {
                    self.ways.keep(&path, lower, upper);
                    return Some((path, leaf, upper));
                }
                Node::Branch(branch) => {
                    let index = branch.index_of(key);
                    path.indexes[depth] = index as u16;
                    path.is_last &= index + 1 == branch.len();
                    lower = branch.keys[index];
                    upper = branch.keys.get(index + 1).copied().or(upper);
                    node = &branch.children[index];
                    depth += 1;
                }
            }
        }
    }

    /// Makes all nodes of a path above `depth` unshared and without places, and returns the node at `depth`.
    fn node_mut(&mut self, path: &Path, depth: usize) -> &mut Node {
        let mut node = self.root.as_mut().expect("a way begins at a root");
        for depth in 0..depth {
            let branch = node.change_branch().expect("nodes above the leaf are branches");
            node = &mut branch.children[path.index(depth)];
        }
        node
    }

    fn change_branch(&mut self, path: &Path, depth: usize) -> &mut Branch {
        self.node_mut(path, depth).change_branch().expect("nodes above the leaf are branches")
    }

    fn change_leaf(&mut self, path: &Path) -> &mut Leaf {
        let depth = usize::from(self.level);
        self.node_mut(path, depth).change_leaf().expect("a way ends at a leaf")
    }
}
