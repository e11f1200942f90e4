//! Writing trees: the pages to write, and their places.

use super::Tree;
use super::branch::Branch;
use super::node::Node;
use super::page::PAGE;
use block::ZoneBlock;
use std::rc::Rc;

/// Description of a tree on the medium.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stored {
    /// Place of the root; `None` for an empty tree.
    pub root: Option<ZoneBlock>,
    /// Level of the root: 0 for a leaf and for an empty tree.
    pub level: u8,
    /// Number of items.
    pub items: u64,
}

impl Tree {
    /// Returns the description of the tree on the medium; `None` while pages have no place.
    pub fn stored(&self) -> Option<Stored> {
        let root = match &self.root {
            Some(root) => Some(root.place()?),
            None => None,
        };
        Some(Stored { root, level: self.level, items: self.items })
    }

    /// Returns a cursor over the pages without a place. It is meant for a clone of a tree that continues to
    /// change: it shares the pages with this tree, without borrowing it.
    pub fn unstored(&self) -> Unstored {
        let root = self.root.clone().filter(|root| root.place().is_none());
        Unstored { root, height: self.level, level: 0, way: Vec::new(), has_begun: false }
    }
}

/// Cursor over the pages without a place: level by level from the leaves to the root, in ascending order of
/// keys in each level.
///
/// The cursor may be kept while trees change. It keeps the pages of its tree in memory.
#[derive(Debug)]
pub struct Unstored {
    root: Option<Node>,
    /// Level of the root.
    height: u8,
    /// Level of the pages that are being returned.
    level: u8,
    /// Branches from the root downwards, each with the index of the next child to visit.
    way: Vec<(Rc<Branch>, usize)>,
    /// Whether the pass over this level has begun.
    has_begun: bool,
}

impl Iterator for Unstored {
    type Item = Page;

    /// Returns the next page to write. Pages of one level may be written concurrently. Before a page is
    /// encoded, the pages of the level below must have their places.
    fn next(&mut self) -> Option<Page> {
        while let Some(root) = &self.root {
            if self.level == self.height {
                return self.root.take().map(|node| Page { node, level: self.level });
            }
            if !self.has_begun
                && let Node::Branch(branch) = root
            {
                self.way.push((branch.clone(), 0));
                self.has_begun = true;
            }
            while let Some((branch, next)) = self.way.last_mut() {
                let Some(child) = branch.children.get(*next).cloned() else {
                    self.way.pop();
                    continue;
                };
                *next += 1;
                // All pages below a page with a place also have places.
                if child.place().is_some() {
                    continue;
                }
                match child {
                    Node::Branch(branch)
                        if usize::from(self.height) - self.way.len() > usize::from(self.level) =>
                    {
                        self.way.push((branch, 0));
                    }
                    node => return Some(Page { node, level: self.level }),
                }
            }
            self.level += 1;
            self.has_begun = false;
        }
        None
    }
}

/// Page to write. It doesn't change when trees change.
#[derive(Debug, Clone)]
pub struct Page {
    node: Node,
    level: u8,
}

impl Page {
    /// Level of the page: 0 for a leaf.
    pub fn level(&self) -> u8 {
        self.level
    }

    /// Encodes the page.
    ///
    /// # Panics
    /// If a page of the level below, whose place this one contains, has no place yet.
    pub fn encode(&self, page: &mut [u8; PAGE]) {
        self.node.encode(self.level, page);
    }

    /// Place of the page.
    pub fn place(&self) -> Option<ZoneBlock> {
        self.node.place()
    }

    /// Sets the place of the page, for all trees that share it. If it has been stored through another tree
    /// meanwhile, it keeps that place, this one is released, and the result is false.
    pub fn set_place(&self, place: ZoneBlock) -> bool {
        self.node.slot().set(place)
    }
}
