//! Files in use: locks on ranges that are being written, and counts of how often each file is open.

use crate::metadata::inode::InodeNumber;
use runtime::range_lock::RangeLock;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;
use std::rc::Rc;

/// Least number of entries at which entries of unused files are removed.
const MIN_SWEPT: usize = 64;

/// A file in use on its shard.
#[derive(Debug)]
pub struct Node {
    /// Inode of the file.
    pub inode: InodeNumber,
    /// Lock on the blocks that are being written or removed.
    pub lock: RangeLock,
    /// Number of times that the file is open.
    opens: Cell<u32>,
    /// Number of times that a mount has the file open.
    pub mount_opens: Cell<u32>,
    /// Number of times that a mount has the file open for writing: the kernel's cache may have data that the
    /// server doesn't have.
    pub writers: Cell<u32>,
    /// Whether a write that a mount's kernel had cached found no space. Then the next write(2) fails, until
    /// there is space or no writer has the file open.
    pub has_lost_writes: Cell<bool>,
    /// Offset of the next append; beyond the size while appends are in flight.
    pub end: Cell<u64>,
    /// Number of appends in flight.
    pub appends: Cell<u32>,
    /// Whether the file may have lost its last name: then the inode is removed when it is closed.
    pub has_lost_names: Cell<bool>,
    /// Number of the last operation on the file.
    pub ticket: Cell<u64>,
    /// End of those appends in flight whose data is queued.
    queued_end: Cell<u64>,
    /// Number of times that the offsets of waiting appends became invalid, because the file was truncated or
    /// an append failed.
    cuts: Cell<u64>,
}

/// An append in flight; dropping it ends the append.
#[derive(Debug)]
pub struct Appending<'a> {
    node: &'a Node,
    range: Range<u64>,
    /// Value of [`Node::cuts`] when the append began.
    cuts: u64,
    /// Whether the data of the append is queued.
    is_queued: Cell<bool>,
}

impl Appending<'_> {
    /// Whether the append's offset is no longer the end of the file, which has `size` bytes: the file was
    /// truncated, or an earlier append ended without its data.
    pub fn is_misplaced(&self, size: u64) -> bool {
        self.cuts != self.node.cuts.get() || size > self.range.start
    }

    /// Notes that the data is being queued, so that no other append gets this range.
    pub fn is_being_queued(&self) {
        self.is_queued.set(true);
        self.node.queued_end.set(self.node.queued_end.get().max(self.range.end));
    }
}

impl Drop for Appending<'_> {
    fn drop(&mut self) {
        self.node.appends.set(self.node.appends.get() - 1);
        if !self.is_queued.get() && self.cuts == self.node.cuts.get() {
            // Waiting appends restart here, or after the appends whose data is queued.
            self.node.end.set(self.range.start.max(self.node.queued_end.get()));
            self.node.cuts.set(self.node.cuts.get() + 1);
        }
    }
}

impl Node {
    /// Begins an append to this range. The next one begins at its end while this one is in flight.
    pub fn begin_append(&self, range: Range<u64>) -> Appending<'_> {
        self.end.set(range.end);
        if self.appends.get() == 0 {
            self.queued_end.set(0);
        }
        self.appends.set(self.appends.get() + 1);
        Appending { node: self, range, cuts: self.cuts.get(), is_queued: Cell::new(false) }
    }

    /// Notes that the file was truncated or cut: waiting appends restart at the new size.
    pub fn was_cut(&self, size: u64) {
        self.end.set(size);
        self.queued_end.set(0);
        self.cuts.set(self.cuts.get() + 1);
    }

    /// Whether the file is open.
    pub fn is_open(&self) -> bool {
        self.opens.get() > 0
    }

    /// Counts the file as opened once more.
    pub fn opened(&self) {
        self.opens.set(self.opens.get() + 1);
    }

    /// Counts the file as closed once. Returns whether it is no longer open.
    pub fn closed(&self) -> bool {
        self.opens.set(self.opens.get() - 1);
        self.opens.get() == 0
    }

    /// Notes the number of an operation on the file.
    pub fn note(&self, ticket: u64) {
        self.ticket.set(self.ticket.get().max(ticket));
    }
}

/// Files in use.
#[derive(Debug, Default)]
pub struct Nodes {
    nodes: RefCell<BTreeMap<InodeNumber, Rc<Node>>>,
    /// Numbers of references of a mount's kernel, which may use these inodes without opening them.
    references: RefCell<BTreeMap<InodeNumber, u64>>,
    /// Number of entries at which entries of unused files are removed.
    sweep_at: Cell<usize>,
}

impl Nodes {
    /// Returns a file if it is in use.
    pub fn find(&self, inode: InodeNumber) -> Option<Rc<Node>> {
        self.nodes.borrow().get(&inode).cloned()
    }

    /// Returns the node of a file, which is in use while it is open or the node is held. `issued` is the
    /// number of the last operation, which may have been on this file.
    pub fn get(&self, inode: InodeNumber, issued: u64) -> Rc<Node> {
        let mut nodes = self.nodes.borrow_mut();
        let entry = match nodes.entry(inode) {
            Entry::Occupied(entry) => return entry.get().clone(),
            Entry::Vacant(entry) => entry,
        };
        let node = Rc::new(Node {
            inode,
            lock: RangeLock::default(),
            opens: Cell::new(0),
            mount_opens: Cell::new(0),
            writers: Cell::new(0),
            has_lost_writes: Cell::new(false),
            end: Cell::new(0),
            appends: Cell::new(0),
            has_lost_names: Cell::new(false),
            ticket: Cell::new(issued),
            queued_end: Cell::new(0),
            cuts: Cell::new(0),
        });
        entry.insert(node.clone());
        if nodes.len() > self.sweep_at.get().max(MIN_SWEPT) {
            // A cancelled write keeps its range lock.
            nodes.retain(|_, node| node.is_open() || Rc::strong_count(node) > 1 || !node.lock.is_free());
            self.sweep_at.set(2 * nodes.len());
        }
        node
    }

    /// Whether a file is open, or the kernel refers to it.
    pub fn is_open(&self, inode: InodeNumber) -> bool {
        let is_open = self.nodes.borrow().get(&inode).is_some_and(|node| node.is_open());
        is_open || self.references.borrow().contains_key(&inode)
    }

    /// Adds a reference: the inode is kept until all references have been dropped.
    pub fn refer(&self, inode: InodeNumber) {
        *self.references.borrow_mut().entry(inode).or_default() += 1;
    }

    /// Files that a mount has open for writing.
    pub fn written_by_mount(&self) -> Vec<InodeNumber> {
        let nodes = self.nodes.borrow();
        nodes.values().filter(|node| node.writers.get() > 0).map(|node| node.inode).collect()
    }

    /// Drops references. Returns whether none is left.
    pub fn unrefer(&self, inode: InodeNumber, count: u64) -> bool {
        match self.references.borrow_mut().entry(inode) {
            Entry::Occupied(entry) if *entry.get() <= count => {
                entry.remove();
                true
            }
            Entry::Occupied(mut entry) => {
                *entry.get_mut() -= count;
                false
            }
            Entry::Vacant(_) => false,
        }
    }

    /// Closes each file as often as an ended mount has it open, and drops all references.
    pub fn end_mount(&self) {
        self.references.borrow_mut().clear();
        for node in self.nodes.borrow().values() {
            node.opens.set(node.opens.get().saturating_sub(node.mount_opens.take()));
            node.writers.set(0);
            node.has_lost_writes.set(false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inode_is_in_use_until_its_last_reference_is_dropped() {
        let nodes = Nodes::default();
        (0..3).for_each(|_| nodes.refer(7));
        assert!(nodes.is_open(7) && !nodes.is_open(8));
        assert!(!nodes.unrefer(7, 2) && nodes.is_open(7));
        assert!(nodes.unrefer(7, 1) && !nodes.is_open(7));
        assert!(!nodes.unrefer(7, 1), "no reference is left");
        nodes.refer(7);
        nodes.end_mount();
        assert!(!nodes.is_open(7));
    }

    #[test]
    fn the_end_of_a_mount_closes_what_the_mount_has_open_and_nothing_else() {
        let nodes = Nodes::default();
        for inode in [7, 8] {
            let node = nodes.get(inode, 0);
            node.opened();
            node.opened();
            node.mount_opens.set(if inode == 7 { 2 } else { 1 });
        }
        nodes.end_mount();
        nodes.end_mount();
        assert!(!nodes.is_open(7) && nodes.is_open(8));
    }
}
