//! Differences between two trees.

use super::node::Node;
use super::{Key, Tree};

/// Calls `visitor` with each item of `old` that isn't byte-identical in `new`, in ascending order of keys.
/// Nodes that both trees share are skipped, so the work is proportional to the number of pages that differ.
pub fn visit_differences(old: &Tree, new: &Tree, mut visitor: impl FnMut(&Key, &[u8])) {
    if let Some(root) = &old.root {
        visit(root, old.level, new, &mut visitor);
    }
}

/// Visits a node of a level, and those below it. Recurses to the height of the tree.
fn visit(node: &Node, level: u8, new: &Tree, visitor: &mut impl FnMut(&Key, &[u8])) {
    // A shared node is on the path to its first key in both trees, at the same level.
    if new.node_of(&node.first_key(), level).is_some_and(|other| other.is_same(node)) {
        return;
    }
    match node {
        Node::Branch(branch) => {
            branch.children.iter().for_each(|child| visit(child, level - 1, new, visitor))
        }
        Node::Leaf(leaf) => {
            let mut found = new.leaf_of(&leaf.key(0));
            for (key, value) in leaf.items() {
                if found.is_some_and(|(_, upper)| upper.is_some_and(|upper| key >= upper)) {
                    found = new.leaf_of(&key);
                }
                let other = found.and_then(|(leaf, _)| leaf.search(&key).ok().map(|index| leaf.value(index)));
                if other != Some(value) {
                    visitor(&key, value);
                }
            }
        }
    }
}
