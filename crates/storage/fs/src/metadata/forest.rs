//! All items of a file system, in one tree for each shard.
//!
//! An inode's number determines its shard; the number of shards is fixed when a file system is made. While
//! the file system is open, each shard belongs to one core. The forest of a core has empty trees for the
//! shards of other cores.

use crate::metadata::inode::InodeNumber;
use crate::tree::{Key, Place, Range, Released, Tree};
use block::{Error, Result};

/// Number of a shard.
pub type Shard = u32;

/// Trees of items, one for each shard.
#[derive(Debug, Clone)]
pub struct Forest {
    trees: Vec<Tree>,
    pages: usize,
}

impl Forest {
    /// Returns `shards` empty trees, at least one. Places of their pages will be released to `released`.
    pub fn new(shards: u32, released: &Released) -> Self {
        let first = Tree::new(released);
        Forest { trees: (0..shards.max(1)).map(|_| first.beside()).collect(), pages: 0 }
    }

    /// Number of shards.
    pub fn shards(&self) -> u32 {
        self.trees.len() as u32
    }

    /// Shard of an inode.
    #[inline]
    pub fn shard_of(&self, inode: InodeNumber) -> Shard {
        (inode % self.trees.len() as u64) as Shard
    }

    /// Shard of an item: that of its inode; for items of inode 0, that of the inode in the offset.
    #[inline]
    fn shard_of_key(&self, key: &Key) -> usize {
        self.shard_of(if key.inode == 0 { key.offset } else { key.inode }) as usize
    }

    /// Tree of a shard.
    pub fn tree(&self, shard: Shard) -> &Tree {
        &self.trees[shard as usize]
    }

    /// Replaces the tree of a shard by one of the same family.
    pub fn set_tree(&mut self, shard: Shard, tree: Tree) {
        self.pages += tree.pages();
        let old = std::mem::replace(&mut self.trees[shard as usize], tree);
        self.pages -= old.pages();
    }

    /// Changes the tree of an item, and counts its pages.
    #[inline]
    fn change<R>(&mut self, key: &Key, change: impl FnOnce(&mut Tree) -> R) -> R {
        let shard = self.shard_of_key(key);
        let tree = &mut self.trees[shard];
        let before = tree.pages();
        let result = change(tree);
        self.pages = self.pages + tree.pages() - before;
        result
    }

    /// Value of an item; `None` if it doesn't exist.
    #[inline]
    pub fn get(&self, key: &Key) -> Option<&[u8]> {
        self.trees[self.shard_of_key(key)].get(key)
    }

    /// Last item of the shard whose key is at most `key`.
    #[inline]
    pub fn last_before(&self, key: &Key) -> Option<(Key, &[u8])> {
        self.trees[self.shard_of_key(key)].last_before(key)
    }

    /// Items of the shard with keys at or after `from`, in ascending order.
    #[inline]
    pub fn range(&self, from: &Key) -> Range<'_> {
        self.trees[self.shard_of_key(from)].range(from)
    }

    /// Inserts an item, or replaces its value. Returns whether an item with this key existed.
    #[inline]
    pub fn put(&mut self, key: &Key, value: &[u8]) -> bool {
        self.change(key, |tree| tree.put(key, value))
    }

    /// Changes the value of an item in place; `None` if the item doesn't exist.
    #[inline]
    pub fn update<R>(&mut self, key: &Key, change: impl FnOnce(&mut [u8]) -> R) -> Option<R> {
        let shard = self.shard_of_key(key);
        self.trees[shard].update(key, change)
    }

    /// Removes an item. Returns whether it existed.
    #[inline]
    pub fn remove(&mut self, key: &Key) -> bool {
        self.change(key, |tree| tree.remove(key))
    }

    /// All items, shard by shard.
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
    pub fn places(&self) -> Vec<Place> {
        self.trees.iter().flat_map(Tree::places).collect()
    }

    /// Visits the places of pages that this forest doesn't share with `newer`.
    pub fn visit_own_places(&self, newer: &Forest, mut visit: impl FnMut(Place)) {
        let trees = self.trees.iter().zip(&newer.trees);
        trees.for_each(|(tree, newer)| tree.visit_own_places(Some(newer), &mut visit));
    }

    /// Removes the place of each page whose place is wanted, so that the next checkpoint writes the page
    /// elsewhere ([`Tree::withdraw_places`]).
    pub fn withdraw_places(&self, newer: Option<&Forest>, is_wanted: impl Fn(Place) -> bool) {
        for (shard, tree) in self.trees.iter().enumerate() {
            tree.withdraw_places(newer.map(|newer| &newer.trees[shard]), &is_wanted);
        }
    }

    /// Shares the pages on the path to a key with a newer version, where both are equal.
    pub fn share_way(&mut self, newer: &Forest, key: &Key) {
        let shard = self.shard_of_key(key);
        self.trees[shard].share_way(&newer.trees[shard], key);
    }

    /// Number of pages of the trees and of those that share pages with them, each counted once.
    pub fn family_pages(&self) -> usize {
        self.trees[0].family_pages()
    }

    /// Whether an item belongs to a shard.
    pub fn is_of_shard(&self, key: &Key, shard: Shard) -> bool {
        self.shard_of_key(key) == shard as usize
    }

    /// Checks that a tree has only items of a shard.
    ///
    /// # Errors
    /// [`Error::Corrupt`] with the first item of another shard.
    pub fn check_tree(&self, tree: &Tree, shard: Shard) -> Result<()> {
        match tree.range(&Key::MIN).find(|(key, _)| !self.is_of_shard(key, shard)) {
            None => Ok(()),
            Some((key, _)) => Err(Error::corrupt(format!(
                "the tree of shard {shard} has the item \"{key}\" of another shard"
            ))),
        }
    }
}
