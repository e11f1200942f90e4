//! Sharing pages again: trees of a family that got the same changes have equal pages, of which one suffices.

use super::node::Node;
use super::{Key, Tree};
use std::rc::Rc;

impl Tree {
    /// Replaces the pages on the path to a key by equal ones of another tree of the family. Pages with a
    /// place, and those that a third tree shares, aren't replaced.
    pub fn share_way(&mut self, other: &Tree, key: &Key) {
        if let Some(root) = &mut self.root {
            share(root, self.level, other, key);
        }
    }
}

/// Recurses to the height of the tree.
fn share(node: &mut Node, level: u8, other: &Tree, key: &Key) {
    let theirs = other.node_of(key, level);
    if node.place().is_some() || theirs.is_some_and(|theirs| theirs.is_same(node)) {
        return;
    }
    if let Node::Branch(branch) = node {
        let Some(branch) = Rc::get_mut(branch) else { return };
        let index = branch.index_of(key);
        share(&mut branch.children[index], level - 1, other, key);
    }
    let is_equal = match (theirs, &*node) {
        (Some(Node::Leaf(theirs)), Node::Leaf(own)) => theirs.items().eq(own.items()),
        (Some(Node::Branch(theirs)), Node::Branch(own)) => {
            theirs.keys == own.keys
                && theirs.children.iter().zip(&own.children).all(|(theirs, own)| theirs.is_same(own))
        }
        _ => false,
    };
    if let Some(theirs) = theirs.filter(|_| is_equal) {
        *node = theirs.clone();
    }
}

#[cfg(test)]
mod tests {
    use super::super::Released;
    use super::*;

    #[test]
    fn trees_that_were_changed_alike_share_all_pages_again() {
        let mut present = Tree::new(&Released::new());
        let key = |number: u64| Key::new(number, 3, 0);
        (0..40_000).for_each(|number| {
            present.put(&key(number), &number.to_le_bytes());
        });
        let mut versions = vec![present.clone(), present.clone()];
        let pages = present.pages();
        for number in (0..40_000).step_by(7) {
            present.put(&key(number), b"moved");
            let mut newer = present.clone();
            for version in &mut versions {
                version.put(&key(number), b"moved");
                version.share_way(&newer, &key(number));
                newer = version.clone();
            }
        }
        assert_eq!(present.family_pages(), pages);
        for version in &versions {
            assert!(version.range(&Key::MIN).eq(present.range(&Key::MIN)));
            assert_eq!(version.pages(), pages);
        }
        // Pages that differ aren't shared.
        present.put(&key(7), b"other");
        let newer = present.clone();
        versions[0].put(&key(7), b"third");
        versions[0].share_way(&newer, &key(7));
        assert_eq!(versions[0].get(&key(7)), Some(b"third".as_slice()));
        assert_eq!(versions[1].get(&key(7)), Some(b"moved".as_slice()));
    }
}
