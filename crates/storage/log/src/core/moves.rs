//! Zones to which the home's cleaner moves blocks of another shard.

use super::Core;
use crate::entry::LogEntry;
use block::{Error, Result};
use logkit::Mover;
use std::cell::RefCell;
use std::rc::Rc;

/// Mover of a shard; unused on the home, whose cleaner has one of its own.
#[derive(Debug)]
pub(super) struct Moves(RefCell<Option<Mover>>);

impl Moves {
    /// Returns a mover for this number of classes.
    pub(super) fn new(classes: u8) -> Self {
        Moves(RefCell::new(Some(Mover::new(classes))))
    }

    /// Appends moves of blocks of `core`, for the home's cleaner.
    ///
    /// # Errors
    /// [`Error::Closed`]; errors of appending.
    pub(super) async fn append(&self, core: &Rc<Core>, class: u8, entries: Vec<LogEntry>) -> Result<()> {
        let taken = self.0.borrow_mut().take();
        let Some(mut mover) = taken else {
            return Err(Error::closed("log: it is being closed; open it again"));
        };
        let outcome = mover.append(core, class, entries).await;
        mover.answer(&**core).await;
        *self.0.borrow_mut() = Some(mover);
        outcome
    }

    /// Seals the open zones that a task asked for, while the mover is idle.
    pub(super) async fn seal_idle(&self, core: &Core) {
        let idle = self.0.borrow_mut().as_mut().map(|mover| mover.take_asked(core));
        if let Some(mut idle) = idle {
            idle.close(core).await;
        }
    }

    /// Seals the zones and takes no further moves.
    pub(super) async fn close(&self, core: &Core) {
        let mover = self.0.borrow_mut().take();
        if let Some(mut mover) = mover {
            mover.close(core).await;
        }
    }
}
