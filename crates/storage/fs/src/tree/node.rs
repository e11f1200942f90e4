//! Nodes with their places on the medium, and state that the trees of a family share: released places and
//! counters.

use super::branch::Branch;
use super::leaf::Leaf;
use super::{Key, page};
use block::ZoneBlock;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Places of pages that no tree in memory uses any more, for all trees that were created with this handle.
///
/// A place is added when the page that was stored there is changed or dropped by its last owner. The newest
/// checkpoint on the medium may still refer to the place, until the next one is durable.
#[derive(Debug, Clone, Default)]
pub struct Released(Rc<RefCell<Vec<ZoneBlock>>>);

impl Released {
    /// Returns an empty list.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the places released since the last call, in the order of their release, and empties the list.
    pub fn take(&self) -> Vec<ZoneBlock> {
        std::mem::take(&mut self.0.borrow_mut())
    }

    /// Number of places in the list.
    pub fn len(&self) -> usize {
        self.0.borrow().len()
    }

    /// Whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns places that [`take`](Self::take) returned to the list, because the checkpoint that would have
    /// made them dead failed.
    pub fn put_back(&self, places: Vec<ZoneBlock>) {
        self.0.borrow_mut().extend(places);
    }

    fn push(&self, place: ZoneBlock) {
        self.0.borrow_mut().push(place);
    }
}

/// State that a tree, its clones and the trees loaded beside it share; these may share nodes.
#[derive(Debug)]
pub(super) struct Family {
    pub released: Released,
    leaves: Cell<usize>,
    branches: Cell<usize>,
    unstored: Cell<usize>,
}

impl Family {
    pub fn new(released: &Released) -> Rc<Self> {
        Rc::new(Family {
            released: released.clone(),
            leaves: Cell::new(0),
            branches: Cell::new(0),
            unstored: Cell::new(0),
        })
    }

    /// Number of nodes in memory without a place.
    pub fn unstored(&self) -> usize {
        self.unstored.get()
    }

    /// Number of nodes in memory.
    pub fn nodes(&self) -> usize {
        self.leaves.get() + self.branches.get()
    }

    /// Bytes of all nodes in memory, without the allocator's overhead.
    pub fn memory(&self) -> usize {
        self.leaves.get() * Leaf::MEMORY + self.branches.get() * Branch::MEMORY
    }
}

fn add(counter: &Cell<usize>, number: isize) {
    counter.set(counter.get().wrapping_add_signed(number));
}

/// Place of a node, released when the node changes or is dropped. A clone of the node has no place.
#[derive(Debug)]
pub(super) struct Slot {
    place: Cell<Option<ZoneBlock>>,
    is_leaf: bool,
    family: Rc<Family>,
}

impl Slot {
    pub fn new(family: &Rc<Family>, is_leaf: bool) -> Self {
        let slot = Slot { place: Cell::new(None), is_leaf, family: family.clone() };
        add(slot.nodes(), 1);
        add(&family.unstored, 1);
        slot
    }

    fn nodes(&self) -> &Cell<usize> {
        if self.is_leaf { &self.family.leaves } else { &self.family.branches }
    }

    pub fn family(&self) -> &Rc<Family> {
        &self.family
    }

    pub fn place(&self) -> Option<ZoneBlock> {
        self.place.get()
    }

    /// Sets the place of a node that has just been written. If it already has one, that is kept, the new one
    /// is released, and the result is false.
    pub fn set(&self, place: ZoneBlock) -> bool {
        if self.place.get().is_some() {
            self.family.released.push(place);
            return false;
        }
        self.place.set(Some(place));
        add(&self.family.unstored, -1);
        true
    }

    /// Releases the place of the node, which is changed in place.
    pub fn change(&self) {
        if let Some(place) = self.place.take() {
            self.family.released.push(place);
            add(&self.family.unstored, 1);
        }
    }
}

impl Clone for Slot {
    fn clone(&self) -> Self {
        Slot::new(&self.family, self.is_leaf)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        add(self.nodes(), -1);
        match self.place.get() {
            Some(place) => self.family.released.push(place),
            None => add(&self.family.unstored, -1),
        }
    }
}

/// Shared reference to a node.
#[derive(Debug, Clone)]
pub(super) enum Node {
    Leaf(Rc<Leaf>),
    Branch(Rc<Branch>),
}

impl Node {
    pub fn slot(&self) -> &Slot {
        match self {
            Node::Leaf(leaf) => &leaf.slot,
            Node::Branch(branch) => &branch.slot,
        }
    }

    pub fn place(&self) -> Option<ZoneBlock> {
        self.slot().place()
    }

    pub fn is_same(&self, other: &Node) -> bool {
        match (self, other) {
            (Node::Leaf(one), Node::Leaf(two)) => Rc::ptr_eq(one, two),
            (Node::Branch(one), Node::Branch(two)) => Rc::ptr_eq(one, two),
            _ => false,
        }
    }

    /// Smallest key of a leaf; smallest permitted key of a branch.
    pub fn first_key(&self) -> Key {
        match self {
            Node::Leaf(leaf) => leaf.key(0),
            Node::Branch(branch) => branch.keys[0],
        }
    }

    /// Makes a branch unshared and without a place, and returns it; `None` for a leaf.
    pub fn change_branch(&mut self) -> Option<&mut Branch> {
        let Node::Branch(branch) = self else { return None };
        let branch = Rc::make_mut(branch);
        branch.slot.change();
        Some(branch)
    }

    /// Makes a leaf unshared and without a place, and returns it; `None` for a branch.
    pub fn change_leaf(&mut self) -> Option<&mut Leaf> {
        let Node::Leaf(leaf) = self else { return None };
        let leaf = Rc::make_mut(leaf);
        leaf.slot.change();
        Some(leaf)
    }

    /// Encodes the node as a page.
    ///
    /// # Panics
    /// If a child has no place.
    pub fn encode(&self, level: u8, page: &mut [u8; page::PAGE]) {
        match self {
            Node::Leaf(leaf) => leaf.encode(page),
            Node::Branch(branch) => branch.encode(level, page),
        }
    }
}
