//! Writes that go straight to the origin, in the mode `cleaner`.
//!
//! Writes go around once the cache is empty and sealed. Until then they are cached, or wait while the last
//! batch is written back.
//!
//! A write that waited for free space when the cache became empty is still cached, and may overtake a write
//! to the same block that is in flight around the cache. Write-back of a batch therefore waits for the writes
//! in flight around the cache that began before the batch.

use crate::grace::{GracePeriods, InFlight};
use crate::origin::Origin;
use block::Result;
use std::cell::Cell;

/// Changes that go around the cache.
#[derive(Debug)]
pub struct Around {
    in_flight: GracePeriods,
    /// Number of completed changes, and one for all changes of earlier epochs.
    completed: Cell<u64>,
    /// Completed changes after which the origin was flushed.
    flushed: Cell<u64>,
}

impl Around {
    /// Creates the account. A process that was killed may have left changes on the origin that no flush
    /// covers: the first flush flushes the origin, unless a completed change is durable there.
    pub fn new(is_volatile: bool) -> Self {
        Around {
            in_flight: GracePeriods::default(),
            completed: Cell::new(is_volatile.into()),
            flushed: Cell::new(0),
        }
    }

    /// Enters a change, until the guard is dropped.
    pub fn enter(&self) -> InFlight<'_> {
        self.in_flight.enter()
    }

    /// Notes that a change has completed.
    pub fn completed(&self) {
        self.completed.set(self.completed.get() + 1);
    }

    /// Waits for the changes in flight. One caller at a time.
    pub async fn wait(&self) {
        self.in_flight.wait().await;
    }

    /// Makes the completed changes durable.
    ///
    /// # Errors
    /// Errors of the origin.
    pub async fn flush(&self, origin: &Origin) -> Result<()> {
        let completed = self.completed.get();
        if self.flushed.get() < completed {
            origin.device().flush().await?;
            self.flushed.set(self.flushed.get().max(completed));
        }
        Ok(())
    }
}
