//! Splits of full nodes, and merges of underfull ones, from a leaf up to the root.

use super::branch::{Branch, MAX_CHILDREN};
use super::leaf::{Item, Leaf, encoded_size, middle};
use super::node::{Family, Node};
use super::page::PAGE;
use super::{Key, Path, Tree};
use std::rc::Rc;

/// A leaf that uses fewer bytes is merged with a neighbour, or takes items from it.
pub(super) const LEAF_LOW: usize = PAGE / 4;

/// Two leaves are merged if the result has at most this many bytes, so that it isn't split soon.
const LEAF_MERGED: usize = PAGE * 3 / 4;

/// A branch with fewer children is merged with a neighbour, or takes children from it.
const BRANCH_LOW: usize = MAX_CHILDREN / 4;

/// Two branches are merged if the result has at most this many children.
const BRANCH_MERGED: usize = MAX_CHILDREN * 3 / 4;

impl Tree {
    /// Replaces the leaf at the end of a path, which `change_leaf` has returned, by one or more leaves.
    pub(super) fn replace_leaf(&mut self, path: &Path, leaves: Vec<Rc<Leaf>>) {
        let mut leaves = leaves.into_iter().map(Node::Leaf);
        let depth = usize::from(self.level);
        *self.node_mut(path, depth) = leaves.next().expect("a split leaf leaves leaves");
        self.add_leaves(path, leaves.map(|leaf| (leaf.first_key(), leaf)).collect());
    }

    /// Adds leaves, each with its first key, after the leaf at the end of a path.
    pub(super) fn add_leaves(&mut self, path: &Path, mut added: Vec<(Key, Node)>) {
        self.ways.forget();
        self.pages += added.len();
        let depth = usize::from(self.level);
        for depth in (0..depth).rev() {
            if added.is_empty() {
                return;
            }
            let branch = self.change_branch(path, depth);
            let at = path.index(depth) + 1;
            let is_end = path.is_last && at == branch.len();
            for (more, (key, node)) in added.drain(..).enumerate() {
                branch.keys.insert(at + more, key);
                branch.children.insert(at + more, node);
            }
            if branch.len() > MAX_CHILDREN {
                // At the right edge of the tree, the left branch is kept full, as leaves are.
                let cut = if is_end { MAX_CHILDREN } else { branch.len() / 2 };
                let right = branch.split_off(cut);
                added.push((right.keys[0], Node::Branch(Rc::new(right))));
                self.pages += 1;
            }
        }
        if !added.is_empty()
            && let Some(root) = self.root.take()
        {
            let children = std::iter::once((Key::MIN, root)).chain(added);
            self.root = Some(Node::Branch(Rc::new(Branch::of(&self.family, children))));
            self.level += 1;
            self.pages += 1;
        }
    }

    /// Merges underfull nodes on a path whose leaf has lost an item, and removes empty ones.
    pub(super) fn shrink(&mut self, path: &Path) {
        for depth in (0..usize::from(self.level)).rev() {
            let family = self.family.clone();
            let parent = self.change_branch(path, depth);
            let index = path.index(depth);
            let removed = match &parent.children[index] {
                Node::Leaf(leaf) if leaf.len() == 0 => {
                    parent.remove_empty(index);
                    true
                }
                Node::Leaf(leaf) if leaf.used() >= LEAF_LOW => break,
                Node::Branch(branch) if branch.len() >= BRANCH_LOW => break,
                Node::Leaf(_) if parent.len() > 1 => balance_leaves(&family, parent, index.saturating_sub(1)),
                Node::Branch(_) if parent.len() > 1 => {
                    balance_branches(&family, parent, index.saturating_sub(1))
                }
                Node::Branch(branch) if branch.len() == 0 => {
                    parent.remove_empty(index);
                    true
                }
                // An only child is underfull until its parent is merged with a neighbour.
                _ => false,
            };
            self.pages -= usize::from(removed);
            self.ways.forget();
        }
        self.lower_root();
    }

    /// Removes roots with an only child, and an empty root.
    fn lower_root(&mut self) {
        loop {
            match &mut self.root {
                Some(Node::Leaf(leaf)) if leaf.len() == 0 => {
                    self.ways.forget();
                    self.root = None;
                    self.pages -= 1;
                }
                Some(Node::Branch(branch)) if branch.len() <= 1 => {
                    self.ways.forget();
                    self.root = branch.children.first().cloned();
                    self.level = if self.root.is_some() { self.level - 1 } else { 0 };
                    self.pages -= 1;
                }
                _ => return,
            }
        }
    }
}

/// Merges the leaf at `left` with the next one, or moves items between them. Returns whether they were
/// merged.
fn balance_leaves(family: &Rc<Family>, parent: &mut Branch, left: usize) -> bool {
    let (Node::Leaf(one), Node::Leaf(two)) = (&parent.children[left], &parent.children[left + 1]) else {
        return false;
    };
    let items: Vec<Item<'_>> = one.items().chain(two.items()).collect();
    if encoded_size(&items) <= LEAF_MERGED {
        let merged = Leaf::of(family, &items);
        parent.children[left] = Node::Leaf(merged);
        parent.children.remove(left + 1);
        parent.keys.remove(left + 1);
        return true;
    }
    let (first, second) = items.split_at(middle(&items));
    // Keys that are far apart may need such wide columns that only the present division fits.
    if encoded_size(first) <= PAGE && encoded_size(second) <= PAGE {
        let leaves = [Leaf::of(family, first), Leaf::of(family, second)].map(Node::Leaf);
        parent.keys[left + 1] = leaves[1].first_key();
        parent.children.splice(left..left + 2, leaves);
    }
    false
}

/// Merges the branch at `left` with the next one, or moves children between them. Returns whether they were
/// merged.
fn balance_branches(family: &Rc<Family>, parent: &mut Branch, left: usize) -> bool {
    let (Node::Branch(one), Node::Branch(two)) = (&parent.children[left], &parent.children[left + 1]) else {
        return false;
    };
    let children = |branch: &Branch| -> Vec<(Key, Node)> {
        branch.keys.iter().copied().zip(branch.children.iter().cloned()).collect()
    };
    let mut all = children(one);
    all.extend(children(two));
    // If the left branch is empty, the right one takes over its lower bound.
    let lower = parent.keys[left];
    if let Some((key, child)) = all.first_mut()
        && *key != lower
    {
        *key = lower;
        set_lower(child, lower);
    }
    let is_merged = all.len() <= BRANCH_MERGED;
    let second = if is_merged { Vec::new() } else { all.split_off(all.len() / 2) };
    let branch = |children: Vec<(Key, Node)>| Node::Branch(Rc::new(Branch::of(family, children.into_iter())));
    parent.children[left] = branch(all);
    if is_merged {
        parent.children.remove(left + 1);
        parent.keys.remove(left + 1);
    } else {
        parent.keys[left + 1] = second[0].0;
        parent.children[left + 1] = branch(second);
    }
    is_merged
}

/// Sets the smallest permitted key of a node, and of the first node of each level below it.
fn set_lower(mut node: &mut Node, lower: Key) {
    while let Some(branch) = node.change_branch() {
        branch.keys[0] = lower;
        node = &mut branch.children[0];
    }
}
