//! Locked memory, which the kernel never pages out, for a process that the kernel waits for.
//!
//! [`lock`] loads all memory at once, including later mappings. A part whose mapping may be far larger than
//! its use excludes it with [`map_on_fault`]: pages are then locked at their first use.
#![allow(unsafe_code)] // mmap, mlock2, mprotect.

use std::io::{Error, Result};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};

static IS_LOCKED: AtomicBool = AtomicBool::new(false);

/// Loads and locks the current and all future memory of this process. Children don't inherit it.
///
/// # Errors
/// Errors of mlockall(2): it needs CAP_IPC_LOCK, or a sufficient limit of locked memory (RLIMIT_MEMLOCK).
pub fn lock() -> Result<()> {
    // SAFETY: no memory is passed.
    match unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE) } {
        0 => {
            IS_LOCKED.store(true, Ordering::Relaxed);
            Ok(())
        }
        _ => Err(Error::last_os_error()),
    }
}

/// Whether [`lock`] has locked the memory of this process.
pub fn is_locked() -> bool {
    IS_LOCKED.load(Ordering::Relaxed)
}

/// Maps `length` bytes of private zeroed memory, which takes pages only at their first use, also where memory
/// is [locked](lock).
///
/// # Errors
/// Errors of mmap(2), mlock2(2) and mprotect(2).
pub fn map_on_fault(length: usize) -> Result<NonNull<u8>> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // Without access the kernel has nothing to load.
    // SAFETY: asks for new pages wherever the kernel likes.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), length, libc::PROT_NONE, flags, -1, 0) };
    let Some(pages) = NonNull::new(start.cast::<u8>()).filter(|_| start != libc::MAP_FAILED) else {
        return Err(Error::last_os_error());
    };
    // SAFETY: the mapping was created above.
    let is_ready = unsafe {
        (!is_locked() || libc::mlock2(start, length, libc::MLOCK_ONFAULT as _) == 0)
            && libc::mprotect(start, length, libc::PROT_READ | libc::PROT_WRITE) == 0
    };
    if !is_ready {
        let error = Error::last_os_error();
        // SAFETY: the mapping was created above, and its address isn't used elsewhere.
        unsafe { libc::munmap(start, length) };
        return Err(error);
    }
    Ok(pages)
}
