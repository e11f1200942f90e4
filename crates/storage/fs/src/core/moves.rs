//! Zones to which the cleaner moves blocks of a shard.

use crate::core::entry::FsEntry;
use block::{Error, Result};
use logkit::{Mover, Owner};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Mover of a shard; unused on the home, whose cleaner has one of its own.
pub(crate) struct Moves {
    mover: RefCell<Option<Mover>>,
    /// Whether the drive limits the number of open zones.
    is_limited: bool,
    /// With such a limit, the first class that the policy chose, which is used for all moves, so that the
    /// mover of a shard has one open zone.
    class: Cell<Option<u8>>,
}

impl Moves {
    /// Returns a mover for this number of classes.
    pub fn new(classes: u8, is_limited: bool) -> Self {
        Moves { mover: RefCell::new(Some(Mover::new(classes))), is_limited, class: Cell::new(None) }
    }

    /// Class for moves for which the policy chose `chosen`.
    pub fn class_for(&self, chosen: u8) -> u8 {
        match self.is_limited {
            true => {
                let class = self.class.get().unwrap_or(chosen);
                self.class.set(Some(class));
                class
            }
            false => chosen,
        }
    }

    /// Appends moves of blocks of `core`, for the home's cleaner.
    ///
    /// # Errors
    /// [`Error::Closed`]; errors of appending.
    pub async fn append<O: Owner<Entry = FsEntry>>(
        &self,
        core: &Rc<O>,
        class: u8,
        entries: impl Iterator<Item = FsEntry>,
    ) -> Result<()> {
        let taken = self.mover.borrow_mut().take();
        let Some(mut mover) = taken else {
            return Err(Error::closed("the file system is being closed; open it again"));
        };
        let outcome = mover.append(core, class, entries).await;
        mover.answer(&**core).await;
        *self.mover.borrow_mut() = Some(mover);
        outcome
    }

    /// Seals the open zones that a task asked for, while the mover is idle.
    pub async fn seal_idle<O: Owner>(&self, core: &O) {
        let idle = self.mover.borrow_mut().as_mut().map(|mover| mover.take_asked(core));
        if let Some(mut idle) = idle {
            idle.close(core).await;
        }
    }

    /// Seals the zones and takes no further moves.
    pub async fn close<O: Owner>(&self, core: &O) {
        let mover = self.mover.borrow_mut().take();
        if let Some(mut mover) = mover {
            mover.close(core).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_moves_have_the_first_class_where_open_zones_are_limited() {
        let classes = |is_limited| {
            let moves = Moves::new(3, is_limited);
            [2, 1, 0].map(|chosen| moves.class_for(chosen))
        };
        assert_eq!((classes(true), classes(false)), ([2; 3], [2, 1, 0]));
    }
}
