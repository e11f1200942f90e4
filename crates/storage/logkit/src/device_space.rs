//! Known space of the device below the log ([`space`](crate::space) says what is done without any).

use crate::pool::ZonePool;
use crate::zone_writer::ZoneWriter;
use block::{Error, Result};
use runtime::sync::Semaphore;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Space of the underlying device, for all shards. Reads of `is_short`, `is_doubtful` and `unfilled` take no
/// lock.
#[derive(Debug, Default)]
pub(crate) struct SharedSpace {
    /// Error for changes that find no space, and the time of the last ENOSPC; `None` while there may be
    /// space. Locked while the pool changes, so that free zones are counted by their known space exactly
    /// while there is an error.
    short: Mutex<Option<(Error, runtime::Instant)>>,
    /// Whether `short` has an error.
    is_short: AtomicBool,
    /// Set by ENOSPC, cleared by the first record that is written after all free zones are counted again.
    pub(crate) is_doubtful: AtomicBool,
    /// Number of records that no zone has taken so far.
    pub(crate) unfilled: AtomicU32,
}

impl SharedSpace {
    pub(crate) fn short(&self) -> MutexGuard<'_, Option<(Error, runtime::Instant)>> {
        self.short.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets or clears the error, and makes the pool count free zones by their known space or all of them.
    /// Returns whether an error was set before.
    pub(crate) fn set_short(
        &self,
        mut short: MutexGuard<'_, Option<(Error, runtime::Instant)>>,
        error: Option<Error>,
        pool: &ZonePool,
    ) -> bool {
        let is_short = error.is_some();
        pool.set_only_backed(is_short);
        self.is_short.store(is_short, Ordering::Release);
        std::mem::replace(&mut *short, error.map(|error| (error, runtime::now()))).is_some()
    }
}

/// The space of the underlying device, on one shard.
#[derive(Debug)]
pub struct Space {
    shared: Arc<SharedSpace>,
    /// Open zone for records without data.
    pub(crate) filler: RefCell<Option<ZoneWriter>>,
    /// Held while a record is written to the filler.
    pub(crate) filling: Rc<Semaphore>,
    /// Time of the last reservation that failed.
    pub(crate) reserved_in_vain: Cell<Option<runtime::Instant>>,
}

impl Space {
    pub(crate) fn new(shared: Arc<SharedSpace>) -> Self {
        Space {
            shared,
            filler: RefCell::default(),
            filling: Semaphore::new(1),
            reserved_in_vain: Cell::new(None),
        }
    }

    pub(crate) fn shared(&self) -> &SharedSpace {
        &self.shared
    }

    /// Returns whether free zones are counted by their known space, because the device below has no other.
    pub fn is_short(&self) -> bool {
        self.shared().is_short.load(Ordering::Acquire)
    }

    /// Returns whether the device below had no space, and no record has been written since all free zones are
    /// counted again.
    pub fn is_doubtful(&self) -> bool {
        self.shared().is_doubtful.load(Ordering::Acquire)
    }

    /// Returns the error for changes that find no space; `None` while there may be space.
    pub fn error(&self) -> Option<Error> {
        match self.is_short() {
            true => self.shared().short().as_ref().map(|(error, _)| error.clone()),
            false => None,
        }
    }

    /// Returns whether a record waits for space, on any shard.
    pub(crate) fn has_unfilled(&self) -> bool {
        self.shared().unfilled.load(Ordering::Acquire) > 0
    }

    /// Refuses changes while a record waits for space, on any shard, because no later record can commit.
    ///
    /// # Errors
    /// [`Error::NoSpace`].
    pub fn check(&self) -> Result<()> {
        match self.has_unfilled() {
            false => Ok(()),
            true => Err(self
                .error()
                .unwrap_or_else(|| Error::no_space("the device below the log has no space; give it more"))),
        }
    }
}
