//! Reads of single items and of ranges.

use super::leaf::{Item, Leaf};
use super::node::Node;
use super::{Key, Tree};

impl Tree {
    /// Returns the value of an item; `None` if it doesn't exist.
    pub fn get(&self, key: &Key) -> Option<&[u8]> {
        let (leaf, _) = self.leaf_of(key)?;
        leaf.search(key).ok().map(|index| leaf.value(index))
    }

    /// Returns the first item whose key is at least `key`.
    pub fn first_from(&self, key: &Key) -> Option<(Key, &[u8])> {
        let (leaf, upper) = self.leaf_of(key)?;
        let index = leaf.search(key).unwrap_or_else(|index| index);
        if index < leaf.len() {
            return Some(leaf.item(index));
        }
        let (leaf, _) = self.leaf_of(&upper?)?;
        Some(leaf.item(0))
    }

    /// Returns the last item whose key is at most `key`.
    pub fn last_before(&self, key: &Key) -> Option<(Key, &[u8])> {
        let mut node = self.root.as_ref()?;
        // Nearest subtree on the path with only smaller keys.
        let mut below = None;
        loop {
            match node {
                Node::Branch(branch) => {
                    let index = branch.index_of(key);
                    below = index.checked_sub(1).map(|index| &branch.children[index]).or(below);
                    node = &branch.children[index];
                }
                Node::Leaf(leaf) => {
                    return match leaf.search(key) {
                        Ok(index) => Some(leaf.item(index)),
                        Err(0) => last_of(below?),
                        Err(index) => Some(leaf.item(index - 1)),
                    };
                }
            }
        }
    }

    /// Returns an iterator over the items whose keys are at least `from`, in ascending order.
    pub fn range(&self, from: &Key) -> Range<'_> {
        let (leaf, upper) = match self.leaf_of(from) {
            Some((leaf, upper)) => (Some(leaf), upper),
            None => (None, None),
        };
        let index = leaf.map_or(0, |leaf| leaf.search(from).unwrap_or_else(|index| index));
        Range { tree: self, leaf, index, upper }
    }

    /// Returns the leaf that may have `key`, and the smallest permitted key of the next leaf.
    pub(super) fn leaf_of(&self, key: &Key) -> Option<(&Leaf, Option<Key>)> {
        self.find(key).map(|(_, leaf, upper)| (leaf, upper))
    }

    /// Returns the node of this level on the path to `key`.
    pub(super) fn node_of(&self, key: &Key, level: u8) -> Option<&Node> {
        let mut node = self.root.as_ref()?;
        for _ in 0..self.level.checked_sub(level)? {
            let Node::Branch(branch) = node else { return None };
            node = &branch.children[branch.index_of(key)];
        }
        Some(node)
    }
}

/// Last item below a node.
pub(super) fn last_of(mut node: &Node) -> Option<Item<'_>> {
    loop {
        match node {
            Node::Branch(branch) => node = branch.children.last()?,
            Node::Leaf(leaf) => return leaf.len().checked_sub(1).map(|index| leaf.item(index)),
        }
    }
}

/// Iterator over the items of a tree at or after a key. It doesn't allocate.
#[derive(Debug, Clone)]
pub struct Range<'a> {
    tree: &'a Tree,
    leaf: Option<&'a Leaf>,
    index: usize,
    upper: Option<Key>,
}

impl<'a> Iterator for Range<'a> {
    type Item = (Key, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let mut leaf = self.leaf?;
        if self.index == leaf.len() {
            self.leaf = None;
            let upper = self.upper?;
            (leaf, self.upper) = self.tree.leaf_of(&upper)?;
            self.leaf = Some(leaf);
            self.index = 0;
        }
        self.index += 1;
        Some(leaf.item(self.index - 1))
    }
}

impl std::iter::FusedIterator for Range<'_> {}
