//! The newest durable checkpoint of a log.

use crate::layout::Layout;
use crate::root::{Root, RootWriter};
use crate::stream::{Sequences, Streams};
use crate::zone_writer::ZoneWriter;
use std::cell::{Cell, Ref, RefCell};

/// The newest durable root of a log, the location of the next one, and the open zone of checkpoints.
#[derive(Debug)]
pub struct Checkpoints {
    pub(crate) newest: RefCell<Root>,
    pub(crate) writer: RefCell<RootWriter>,
    pub(crate) zone: RefCell<Option<ZoneWriter>>,
    /// Number of the last record of checkpoints.
    pub(crate) sequence: Cell<u64>,
    /// Committed sequences at the start of the last successful checkpoint since the log was opened; `None`
    /// before the first.
    pub(crate) committed: RefCell<Option<Sequences>>,
}

impl Checkpoints {
    /// Creates the state for a log with this newest root.
    pub fn new(newest: Root, writer: RootWriter) -> Self {
        let sequence = Cell::new(newest.checkpoint);
        let (newest, writer) = (RefCell::new(newest), RefCell::new(writer));
        Checkpoints { newest, writer, zone: RefCell::default(), sequence, committed: RefCell::default() }
    }

    /// Whether a new checkpoint could cover more than the last one: a record has committed since that one
    /// began. An owner may cover less than has committed.
    pub(crate) fn could_cover_more(&self, committed: &Sequences) -> bool {
        self.committed.borrow().as_ref() != Some(committed)
    }

    /// Returns the newest durable root.
    pub fn root(&self) -> Ref<'_, Root> {
        self.newest.borrow()
    }

    /// Sets the state of the newest checkpoint, for owners whose checkpoint is recorded elsewhere than in the
    /// root.
    pub fn note(&self, streams: &Streams, root: Root) {
        streams.set_covered(&root.covered);
        *self.newest.borrow_mut() = root;
    }

    /// Whether the owner has to take a checkpoint before the log is written to: the log is new, or the root
    /// has no space for the boundary of another epoch.
    pub fn is_due_at_open(&self) -> bool {
        let newest = self.newest.borrow();
        newest.directory.is_empty()
            || newest.boundaries.len() >= Root::most_epochs(newest.covered.numbers().len())
    }

    /// Number of blocks of the newest checkpoint's directory.
    pub fn directory_blocks(&self, layout: &Layout) -> u64 {
        layout.blocks_in(self.newest.borrow().directory_length)
    }
}
