//! The places of all pages of a tree, and taking them from the pages.

use super::node::Node;
use super::{Key, Place, Tree};

impl Tree {
    /// Returns the places of all pages that have one.
    pub fn places(&self) -> Vec<Place> {
        let mut places = Vec::new();
        self.visit_places(|_, _, place| places.push(place));
        places
    }

    /// Takes the place from each page whose place is wanted, as [`forget_place`](Self::forget_place) does. Returns their number.
    pub fn forget_places(&mut self, is_wanted: impl Fn(Place) -> bool) -> usize {
        let mut found = Vec::new();
        self.visit_places(|key, level, place| {
            if is_wanted(place) {
                found.push((key, level, place));
            }
        });
        // A page may have lost its place with one below it.
        found.into_iter().filter(|(key, level, place)| self.forget_place(key, *level, *place)).count()
    }

    fn visit_places(&self, mut visit: impl FnMut(Key, u8, Place)) {
        let mut nodes: Vec<(&Node, u8)> = self.root.iter().map(|root| (root, self.level)).collect();
        while let Some((node, level)) = nodes.pop() {
            if let Some(place) = node.place() {
                visit(node.first_key(), level, place);
            }
            if let Node::Branch(branch) = node {
                nodes.extend(branch.children.iter().map(|child| (child, level - 1)));
            }
        }
    }
}
