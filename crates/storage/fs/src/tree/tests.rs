//! Tests of trees: against a model, on a medium, with damaged pages, and for memory and time per item.

mod cost;
mod damage;
mod medium;
mod model;

use super::branch::MAX_CHILDREN;
use super::page::HEADER;
use super::*;
use block::ZoneBlock;
use std::collections::{BTreeMap, BTreeSet};

/// Random numbers: splitmix64.
#[derive(Debug, Clone, Copy)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        bits ^ (bits >> 31)
    }

    /// Number below `end`.
    fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(end)) >> 64) as u64
    }

    fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.next() as u8).collect()
    }
}

type Model = BTreeMap<Key, Vec<u8>>;

/// Counts and addresses found in a tree.
#[derive(Debug, Default)]
struct Found {
    items: u64,
    pages: usize,
    places: BTreeSet<ZoneBlock>,
    /// Addresses of leaves, of branches, and of nodes without a place.
    leaves: BTreeSet<usize>,
    branches: BTreeSet<usize>,
    unstored: BTreeSet<usize>,
}

/// Traverses a tree, and panics if it is malformed.
fn check(tree: &Tree) -> Found {
    let mut found = Found::default();
    match &tree.root {
        None => assert_eq!(tree.level, 0),
        Some(root) => {
            check_node(root, tree.level, Key::MIN, None, &mut found);
            if let Node::Branch(branch) = root {
                assert!(branch.len() >= 2);
            }
        }
    }
    assert_eq!((found.items, found.pages), (tree.len(), tree.pages()));
    found
}

fn check_node(node: &Node, level: u8, lower: Key, upper: Option<Key>, found: &mut Found) {
    found.pages += 1;
    let address = match node {
        Node::Leaf(leaf) => Rc::as_ptr(leaf) as usize,
        Node::Branch(branch) => Rc::as_ptr(branch) as usize,
    };
    match node.place() {
        Some(place) => assert!(found.places.insert(place), "{place} twice"),
        None => assert!(found.unstored.insert(address)),
    }
    match node {
        Node::Leaf(leaf) => {
            found.leaves.insert(address);
            assert_eq!(level, 0);
            assert!(leaf.len() > 0);
            assert!(leaf.used() <= PAGE);
            found.items += leaf.len() as u64;
            let keys: Vec<Key> = leaf.items().map(|(key, _)| key).collect();
            assert!(keys.is_sorted_by(|one, two| one < two));
            assert!(keys[0] >= lower && upper.is_none_or(|upper| keys[keys.len() - 1] < upper));
        }
        Node::Branch(branch) => {
            found.branches.insert(address);
            assert_eq!(branch.keys.len(), branch.children.len());
            assert!((1..=MAX_CHILDREN).contains(&branch.len()));
            assert_eq!(branch.keys[0], lower);
            for (index, child) in branch.children.iter().enumerate() {
                assert!(
                    node.place().is_none() || child.place().is_some(),
                    "a stored page names its children"
                );
                let upper = branch.keys.get(index + 1).copied().or(upper);
                check_node(child, level - 1, branch.keys[index], upper, found);
            }
        }
    }
}

/// Compares all items of a tree with those of a model.
fn compare(tree: &Tree, model: &Model) {
    check(tree);
    assert!(tree.range(&Key::MIN).eq(model.iter().map(|(key, value)| (*key, value.as_slice()))));
}

/// Page with contents that the test overwrites.
fn empty_page() -> Box<[u8; PAGE]> {
    Box::new([0xEE; PAGE])
}

/// Simulated medium: pages by their places.
#[derive(Debug, Clone, Default)]
struct Medium {
    pages: BTreeMap<ZoneBlock, Box<[u8; PAGE]>>,
    next: u32,
}

impl Medium {
    fn allocate(&mut self) -> ZoneBlock {
        self.next += 1;
        ZoneBlock::new(self.next / 100, self.next % 100)
    }

    /// Writes one page.
    fn write(&mut self, page: &Page) -> bool {
        let place = self.allocate();
        let mut bytes = empty_page();
        page.encode(&mut bytes);
        self.pages.insert(place, bytes);
        page.set_place(place)
    }

    /// Writes all pages of a tree that have no place.
    fn store(&mut self, tree: &Tree) -> Stored {
        tree.unstored().for_each(|page| assert!(self.write(&page)));
        tree.stored().unwrap()
    }

    fn read(&self, mut load: Load) -> block::Result<Tree> {
        while !load.wanted().is_empty() {
            // In reverse order, since any order is permitted.
            for (index, place) in load.wanted().to_vec().into_iter().enumerate().rev() {
                let page =
                    self.pages.get(&place).ok_or_else(|| block::Error::io(format!("no page at {place}")))?;
                load.supply(index, page)?;
            }
        }
        load.finish()
    }

    fn load(&self, stored: &Stored, released: &Released) -> block::Result<Tree> {
        self.read(Load::new(stored, released)?)
    }
}

#[test]
fn an_empty_tree() {
    let released = Released::new();
    let mut tree = Tree::new(&released);
    let key = Key::new(1, 2, 3);
    assert_eq!((tree.get(&key), tree.first_from(&key), tree.last_before(&key)), (None, None, None));
    assert_eq!((tree.range(&key).next(), tree.unstored().next().is_none()), (None, true));
    assert!(!tree.remove(&key) && tree.update(&key, |_| ()).is_none());
    assert_eq!((tree.pages(), tree.memory(), tree.is_empty()), (0, 0, true));
    let stored = tree.stored().unwrap();
    assert_eq!(stored, Stored { root: None, level: 0, items: 0 });
    assert!(Medium::default().load(&stored, &released).unwrap().is_empty());
    assert!(!tree.put(&key, b""));
    assert_eq!((tree.stored(), tree.unstored_pages()), (None, 1));
    assert_eq!(tree.get(&key), Some(&b""[..]));
    assert!(tree.remove(&key));
    assert_eq!((tree.stored(), tree.unstored_pages(), tree.memory()), (Some(stored), 0, 0));
}

#[test]
#[should_panic(expected = "value of 1025 bytes; expected at most 1024")]
fn a_value_that_is_too_long() {
    Tree::new(&Released::new()).put(&Key::MIN, &[0; MAX_VALUE + 1]);
}
