//! Whether a volume is in use: in memory, and according to the superblock on the medium.
//!
//! A change of a zone first becomes the owner of the zone, and then calls [`begin`](Usage::begin). A close
//! first calls [`close`](Usage::close), and then waits for the owners of zones. So a change either is
//! refused, or has ended when the close writes its superblock.

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
    gate: Gate,
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
        // Pairs with the one in `close`: either this load finds the volume closed, or the close finds the
        // zone owned.
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

    /// Refuses changes from now on. Returns whether the volume is marked as in use; `None` if it was closed
    /// before.
    pub(super) async fn close(&self) -> Option<bool> {
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
