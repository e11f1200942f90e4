//! The kernel's swap space, which all programs of the machine share.

use std::sync::{Mutex, MutexGuard, PoisonError};

static SWAP: Mutex<()> = Mutex::new(());

/// Waits until no other test swaps, and keeps them out until it is dropped. Otherwise pages of one test's program would go to the device of
/// another, which loses them when it fails.
pub fn lock_swap() -> MutexGuard<'static, ()> {
    // A test that failed has switched its swap space off as far as it could.
    SWAP.lock().unwrap_or_else(PoisonError::into_inner)
}
