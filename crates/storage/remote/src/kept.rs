//! Memory that outlives the process: the holder of an attachment passes its descriptor to each server that it
//! starts.

use std::os::fd::OwnedFd;
use std::sync::Mutex;

static KEPT: Mutex<Option<OwnedFd>> = Mutex::new(None);

/// Sets the memory that the next device of this process uses.
pub fn set(descriptor: OwnedFd) {
    *KEPT.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(descriptor);
}

/// Takes the memory; `None` if none was set.
pub(crate) fn take() -> Option<OwnedFd> {
    KEPT.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take()
}
