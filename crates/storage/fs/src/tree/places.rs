//! Places of all pages of a tree, and their removal.

use super::node::Node;
use super::{Key, Tree};
use block::ZoneBlock;

impl Tree {
    /// Returns the places of all pages that have one.
    pub fn places(&self) -> Vec<ZoneBlock> {
        let mut places = Vec::new();
        self.visit_own_places(None, |place| places.push(place));
        places
    }

    /// Visits the places of the pages that this tree doesn't share with `newer`; with `None`, those of all
    /// pages.
    pub fn visit_own_places(&self, newer: Option<&Tree>, mut visit: impl FnMut(ZoneBlock)) {
        if let Some(root) = &self.root {
            visit_own(root, self.level, newer, &mut visit);
        }
    }

    /// As [`visit_own_places`](Self::visit_own_places), for pages whose first key is at least `from`, in
    /// order, and for about `most` pages. Returns the key at which to continue; `None` at the end. Each page
    /// that doesn't change between two calls is visited by one of them.
    pub fn visit_own_places_from(
        &self,
        newer: Option<&Tree>,
        from: &Key,
        most: usize,
        visit: impl FnMut(ZoneBlock),
    ) -> Option<Key> {
        let mut walk = Walk { newer, from: *from, left: most, last: None, next: None, visit };
        if let Some(root) = &self.root {
            walk.go_on(root, self.level);
        }
        walk.next
    }

    /// Removes the place of each page whose place is wanted, and of its ancestors, for all trees that share
    /// them: the next checkpoint writes them elsewhere, once. Must be called for all trees of the family,
    /// newest first, with the previous tree as `newer`: pages that both share aren't visited again. No clone
    /// may be in the process of being stored.
    pub fn withdraw_places(&self, newer: Option<&Tree>, is_wanted: impl Fn(ZoneBlock) -> bool) {
        if let Some(root) = &self.root {
            withdraw(root, self.level, newer, &is_wanted);
        }
    }
}

/// Whether a tree shares this node. A shared node is on the path to its first key in both trees, at the same
/// level.
fn has(tree: Option<&Tree>, node: &Node, level: u8) -> bool {
    tree.and_then(|tree| tree.node_of(&node.first_key(), level)).is_some_and(|other| other.is_same(node))
}

/// Visits own places. Recurses to the height of the tree.
fn visit_own(node: &Node, level: u8, newer: Option<&Tree>, visit: &mut impl FnMut(ZoneBlock)) {
    if has(newer, node, level) {
        return;
    }
    node.place().into_iter().for_each(&mut *visit);
    if let Node::Branch(branch) = node {
        branch.children.iter().for_each(|child| visit_own(child, level - 1, newer, visit));
    }
}

/// A traversal of some of the pages of a tree.
struct Walk<'a, V> {
    newer: Option<&'a Tree>,
    from: Key,
    /// Number of places left to visit.
    left: usize,
    /// First key of the last page: a page and its first child may have the same.
    last: Option<Key>,
    /// First key of the first page that isn't visited.
    next: Option<Key>,
    visit: V,
}

impl<V: FnMut(ZoneBlock)> Walk<'_, V> {
    /// Visits a node and those below it. Returns false once enough have been visited. Recurses to the height
    /// of the tree.
    fn go_on(&mut self, node: &Node, level: u8) -> bool {
        if has(self.newer, node, level) {
            return true;
        }
        let first = node.first_key();
        if first >= self.from {
            if self.left == 0 && self.last != Some(first) {
                self.next = Some(first);
                return false;
            }
            if let Some(place) = node.place() {
                (self.visit)(place);
                self.left = self.left.saturating_sub(1);
            }
            self.last = Some(first);
        }
        let Node::Branch(branch) = node else { return true };
        let children = &branch.children[branch.index_of(&self.from)..];
        children.iter().all(|child| self.go_on(child, level - 1))
    }
}

/// Returns whether the node has no place afterwards. Recurses to the height of the tree.
fn withdraw(node: &Node, level: u8, newer: Option<&Tree>, is_wanted: &impl Fn(ZoneBlock) -> bool) -> bool {
    if !has(newer, node, level) {
        let mut has_lost = false;
        if let Node::Branch(branch) = node {
            for child in &branch.children {
                has_lost |= withdraw(child, level - 1, newer, is_wanted);
            }
        }
        if node.place().is_some_and(|place| has_lost || is_wanted(place)) {
            node.slot().change();
        }
    }
    node.place().is_none()
}
