//! Whether a volume is in use: in memory, and according to the superblock on the medium.
//!
//! A change of a zone first becomes the owner of the zone, and then calls [`begin`](Usage::begin). A close
//! first calls [`close`](Usage::close), and then waits for the owners of zones. So a change either is
//! refused, or has ended when the close writes its superblock. [Reservations of space](Usage::reserve) own
//! no zones; they are counted, and a close waits until none is in progress.
//!
//! A volume is closed once. Further closes wait for the first one and return its outcome: after a failure the
//! medium still marks the volume as in use.

use crate::gate::Gate;
use block::{Error, Result};
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Mutex, PoisonError};

/// Nothing was changed since the volume was opened.
const UNUSED: u64 = 0;
/// The superblock is being written.
const BEGINNING: u64 = 1;
/// The superblock durably marks the volume as in use.
const IN_USE: u64 = 2;
/// The volume is closed, or is being closed: it takes no more changes.
const CLOSED: u64 = 3;

const STATE_BITS: u32 = 2;

fn state_of(word: u64) -> u64 {
    word & ((1 << STATE_BITS) - 1)
}

/// The state, shared by all shards.
#[derive(Debug, Default)]
pub(super) struct Usage {
    /// Bits 0..2: the state. The others: the number of attempts to mark the volume that failed.
    word: AtomicU64,
    /// Error of the last such attempt. The lock is held only to copy it.
    failure: Mutex<Option<Error>>,
    /// Number of reservations of space in progress.
    reserving: AtomicU64,
    /// Outcome of the close; `None` until it has ended. The lock is held only to copy it.
    outcome: Mutex<Option<Result<()>>>,
    gate: Gate,
}

/// A reservation of space in progress; dropping it ends the reservation.
#[derive(Debug)]
pub(super) struct Reserving<'a>(&'a Usage);

impl Drop for Reserving<'_> {
    fn drop(&mut self) {
        if self.0.reserving.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.gate.open();
        }
    }
}

impl Usage {
    fn load(&self) -> u64 {
        self.word.load(Ordering::Acquire)
    }

    fn replace(&self, old: u64, new: u64) -> bool {
        self.word.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Number of attempts to mark the volume that have failed. A change reads it before it waits for
    /// anything.
    pub(super) fn failures(&self) -> u64 {
        self.load() >> STATE_BITS
    }

    pub(super) fn is_closed(&self) -> bool {
        state_of(self.load()) == CLOSED
    }

    /// Marks the volume as in use with `mark`, unless it is marked. Called by a change that owns its zone;
    /// `failures` is the number when the change began.
    ///
    /// # Errors
    /// [`Error::Closed`]; that of `mark`. An attempt of another change that fails after this change began is
    /// not repeated: its error is returned.
    pub(super) async fn begin(&self, failures: u64, mark: impl Future<Output = Result<()>>) -> Result<()> {
        // Pairs with the one in `refuse_changes`: either this load finds the volume closed, or the close
        // finds the zone owned.
        fence(Ordering::SeqCst);
        let before = loop {
            let word = self.load();
            match state_of(word) {
                IN_USE => return Ok(()),
                BEGINNING => self.gate.wait_until(|| self.load() != word).await,
                UNUSED => {
                    if word >> STATE_BITS != failures
                        && let Some(error) =
                            self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
                    {
                        return Err(error);
                    }
                    if self.replace(word, word | BEGINNING) {
                        break word;
                    }
                }
                _ => return Err(closed()),
            }
        };
        let marked = mark.await;
        let after = match &marked {
            Ok(()) => before | IN_USE,
            Err(error) => {
                *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.clone());
                before + (1 << STATE_BITS)
            }
        };
        self.word.store(after, Ordering::Release);
        self.gate.open();
        marked
    }

    /// Begins a reservation of space.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub(super) fn reserve(&self) -> Result<Reserving<'_>> {
        self.reserving.fetch_add(1, Ordering::AcqRel);
        let reserving = Reserving(self);
        // Pairs with the one in `refuse_changes`: either this load finds the volume closed, or the close
        // finds the reservation.
        fence(Ordering::SeqCst);
        match self.is_closed() {
            true => Err(closed()),
            false => Ok(reserving),
        }
    }

    /// Closes the volume with `close`, which gets whether the volume is marked as in use. A further close
    /// waits for the first one, which must not be dropped before its end.
    ///
    /// # Errors
    /// Errors of the first `close`.
    pub(super) async fn close<F: Future<Output = Result<()>>>(
        &self,
        close: impl FnOnce(bool) -> F,
    ) -> Result<()> {
        let Some(is_in_use) = self.refuse_changes().await else {
            self.gate.wait_until(|| self.outcome().is_some()).await;
            return self.outcome().unwrap_or(Ok(()));
        };
        self.gate.wait_until(|| self.reserving.load(Ordering::Acquire) == 0).await;
        let outcome = close(is_in_use).await;
        *self.outcome.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome.clone());
        self.gate.open();
        outcome
    }

    fn outcome(&self) -> Option<Result<()>> {
        self.outcome.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Refuses changes from now on. Returns whether the volume is marked as in use; `None` if it was closed
    /// before.
    async fn refuse_changes(&self) -> Option<bool> {
        loop {
            let word = self.load();
            match state_of(word) {
                CLOSED => return None,
                BEGINNING => self.gate.wait_until(|| self.load() != word).await,
                state if self.replace(word, word | CLOSED) => {
                    fence(Ordering::SeqCst);
                    return Some(state == IN_USE);
                }
                _ => {}
            }
        }
    }
}

/// The error of changes of a closed volume.
pub(super) fn closed() -> Error {
    Error::closed("the zones are closed")
}
