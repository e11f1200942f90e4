//! All items of a file system, in one tree for each inode group.
//!
//! An inode's number determines its inode group; the number of inode groups is fixed when a file system is
//! made. While the file system is open, each inode group belongs to one shard. The forest of a shard has
//! empty trees for the inode groups of other shards.

use crate::metadata::inode::InodeNumber;
use crate::tree::{Key, Range, Released, Tree};
use block::{Error, Result, ZoneBlock};

/// Number of an inode group.
pub type InodeGroup = u32;

/// Trees of items, one for each inode group.
#[derive(Debug, Clone)]
pub struct Forest {
    trees: Vec<Tree>,
    pages: usize,
}

impl Forest {
    /// Returns `groups` empty trees, at least one. Places of their pages will be released to `released`.
    pub fn new(groups: u32, released: &Released) -> Self {
        let first = Tree::new(released);
        Forest { trees: (0..groups.max(1)).map(|_| first.beside()).collect(), pages: 0 }
    }

    /// Number of inode groups.
    pub fn groups(&self) -> u32 {
        self.trees.len() as u32
    }

    /// Inode group of an inode.
    #[inline]
    pub fn group_of(&self, inode: InodeNumber) -> InodeGroup {
        (inode % self.trees.len() as u64) as InodeGroup
    }

    /// Inode group of an item: that of its inode; for items of inode 0, that of the inode in the offset.
    #[inline]
    fn group_of_key(&self, key: &Key) -> usize {
        self.group_of(if key.inode == 0 { key.offset } else { key.inode }) as usize
    }

    /// Tree of an inode group.
    pub fn tree(&self, group: InodeGroup) -> &Tree {
        &self.trees[group as usize]
    }

    /// Replaces the tree of an inode group by one of the same family.
    pub fn set_tree(&mut self, group: InodeGroup, tree: Tree) {
        self.pages += tree.pages();
        let old = std::mem::replace(&mut self.trees[group as usize], tree);
        self.pages -= old.pages();
    }

    /// Changes the tree of an item, and counts its pages.
    #[inline]
    fn change<R>(&mut self, key: &Key, change: impl FnOnce(&mut Tree) -> R) -> R {
        let group = self.group_of_key(key);
        let tree = &mut self.trees[group];
        let before = tree.pages();
        let result = change(tree);
        self.pages = self.pages + tree.pages() - before;
        result
    }

    /// Value of an item; `None` if it doesn't exist.
    #[inline]
    pub fn get(&self, key: &Key) -> Option<&[u8]> {
        self.trees[self.group_of_key(key)].get(key)
    }

    /// Last item of the inode group whose key is at most `key`.
    #[inline]
    pub fn last_before(&self, key: &Key) -> Option<(Key, &[u8])> {
        self.trees[self.group_of_key(key)].last_before(key)
    }

    /// Items of the inode group with keys at or after `from`, in ascending order.
    #[inline]
    pub fn range(&self, from: &Key) -> Range<'_> {
        self.trees[self.group_of_key(from)].range(from)
    }

    /// Inserts an item, or replaces its value. Returns whether an item with this key existed.
    #[inline]
    pub fn put(&mut self, key: &Key, value: &[u8]) -> bool {
        self.change(key, |tree| tree.put(key, value))
    }

    /// Changes the value of an item in place; `None` if the item doesn't exist.
    #[inline]
    pub fn update<R>(&mut self, key: &Key, change: impl FnOnce(&mut [u8]) -> R) -> Option<R> {
        let group = self.group_of_key(key);
        self.trees[group].update(key, change)
    }

    /// Removes an item. Returns whether it existed.
    #[inline]
    pub fn remove(&mut self, key: &Key) -> bool {
        self.change(key, |tree| tree.remove(key))
    }

    /// All items, inode group by inode group.
    pub fn items(&self) -> impl Iterator<Item = (Key, &[u8])> + '_ {
        self.trees.iter().flat_map(|tree| tree.range(&Key::MIN))
    }

    /// Number of pages.
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// Number of pages that the next checkpoint writes; while one is being written, an upper bound.
    pub fn unstored_pages(&self) -> usize {
        self.trees[0].unstored_pages()
    }

    /// Bytes of memory of the trees and their clones, without the allocator's overhead.
    pub fn memory(&self) -> usize {
        self.trees[0].memory()
    }

    /// Places of all pages that have one.
    pub fn places(&self) -> Vec<ZoneBlock> {
        self.trees.iter().flat_map(Tree::places).collect()
    }

    /// Visits the places of pages that this forest doesn't share with `newer`.
    pub fn visit_own_places(&self, newer: &Forest, mut visit: impl FnMut(ZoneBlock)) {
        let trees = self.trees.iter().zip(&newer.trees);
        trees.for_each(|(tree, newer)| tree.visit_own_places(Some(newer), &mut visit));
    }

    /// Removes the place of each page whose place is wanted, so that the next checkpoint writes the page
    /// elsewhere ([`Tree::withdraw_places`]).
    pub fn withdraw_places(&self, newer: Option<&Forest>, is_wanted: impl Fn(ZoneBlock) -> bool) {
        for (group, tree) in self.trees.iter().enumerate() {
            tree.withdraw_places(newer.map(|newer| &newer.trees[group]), &is_wanted);
        }
    }

    /// Shares the pages on the path to a key with a newer version, where both are equal.
    pub fn share_way(&mut self, newer: &Forest, key: &Key) {
        let group = self.group_of_key(key);
        self.trees[group].share_way(&newer.trees[group], key);
    }

    /// Number of pages of the trees and of those that share pages with them, each counted once.
    pub fn family_pages(&self) -> usize {
        self.trees[0].family_pages()
    }

    /// Whether an item belongs to an inode group.
    pub fn is_of_group(&self, key: &Key, group: InodeGroup) -> bool {
        self.group_of_key(key) == group as usize
    }

    /// Checks that a tree has only items of an inode group.
    ///
    /// # Errors
    /// [`Error::Corrupt`] with the first item of another inode group.
    pub fn check_tree(&self, tree: &Tree, group: InodeGroup) -> Result<()> {
        match tree.range(&Key::MIN).find(|(key, _)| !self.is_of_group(key, group)) {
            None => Ok(()),
            Some((key, _)) => Err(Error::corrupt(format!(
                "the tree of inode group {group} has the item \"{key}\" of another inode group"
            ))),
        }
    }
}
