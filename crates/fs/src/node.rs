//! Files that are in use: the ranges that are being written, and who has them open.

use crate::inode::InodeNumber;
use runtime::range_lock::RangeLock;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// Least number of entries at which those of files that are no longer used are looked for.
const FEWEST_SWEPT: usize = 64;

/// A file in use on its shard.
#[derive(Debug)]
pub struct Node {
    /// The file.
    pub inode: InodeNumber,
    /// Its blocks, while they are written or cut off.
    pub lock: RangeLock,
    /// Number of times that it is open.
    opens: Cell<u32>,
    /// Where the next append begins, beyond the size while appends are in flight.
    pub end: Cell<u64>,
    /// Appends in flight.
    pub appends: Cell<u32>,
    /// It may be an inode without names, which is removed when it is closed.
    pub has_lost_names: Cell<bool>,
    /// Number of the last operation on it.
    pub ticket: Cell<u64>,
    /// Number of times that it was cut off.
    pub cuts: Cell<u64>,
}

/// An append in flight, until this is dropped.
#[derive(Debug)]
pub struct Appending<'a>(&'a Node);

impl Drop for Appending<'_> {
    fn drop(&mut self) {
        self.0.appends.set(self.0.appends.get() - 1);
    }
}

impl Node {
    /// Begins an append up to this byte; the next one begins there while this one is in flight.
    pub fn begin_append(&self, end: u64) -> Appending<'_> {
        self.end.set(end);
        self.appends.set(self.appends.get() + 1);
        Appending(self)
    }

    /// Notes that the file was cut off here: appends that wait begin here, too.
    pub fn was_cut(&self, size: u64) {
        self.end.set(size);
        self.cuts.set(self.cuts.get() + 1);
    }

    /// Whether it is open.
    pub fn is_open(&self) -> bool {
        self.opens.get() > 0
    }

    /// Notes that it was opened once more.
    pub fn opened(&self) {
        self.opens.set(self.opens.get() + 1);
    }

    /// Notes that it was closed; returns whether it is no longer open.
    pub fn closed(&self) -> bool {
        self.opens.set(self.opens.get() - 1);
        self.opens.get() == 0
    }

    /// Notes the number of an operation on it.
    pub fn note(&self, ticket: u64) {
        self.ticket.set(self.ticket.get().max(ticket));
    }
}

/// Files in use.
#[derive(Debug, Default)]
pub struct Nodes {
    nodes: RefCell<BTreeMap<InodeNumber, Rc<Node>>>,
    /// Number of entries at which those of files that are no longer used are removed.
    sweep_at: Cell<usize>,
}

impl Nodes {
    /// A file that is in use.
    pub fn find(&self, inode: InodeNumber) -> Option<Rc<Node>> {
        self.nodes.borrow().get(&inode).cloned()
    }

    /// A file, which is in use as long as it is open or the result is held. `issued` is the number of the last operation: it may
    /// have been one on this file, whoever carried it out.
    pub fn get(&self, inode: InodeNumber, issued: u64) -> Rc<Node> {
        if let Some(node) = self.find(inode) {
            return node;
        }
        let node = Rc::new(Node {
            inode,
            lock: RangeLock::default(),
            opens: Cell::new(0),
            end: Cell::new(0),
            appends: Cell::new(0),
            has_lost_names: Cell::new(false),
            ticket: Cell::new(issued),
            cuts: Cell::new(0),
        });
        let mut nodes = self.nodes.borrow_mut();
        nodes.insert(inode, node.clone());
        if nodes.len() > self.sweep_at.get().max(FEWEST_SWEPT) {
            nodes.retain(|_, node| node.is_open() || Rc::strong_count(node) > 1);
            self.sweep_at.set(2 * nodes.len());
        }
        node
    }

    /// Whether a file is open.
    pub fn is_open(&self, inode: InodeNumber) -> bool {
        self.find(inode).is_some_and(|node| node.is_open())
    }
}
