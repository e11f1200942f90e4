//! A process that the kernel waits for when memory is short: a server of swap space.
//!
//! The kernel waits for such a server to write pages, so the server must not wait for free pages. Two kinds of allocation
//! would: those of its own heap ([`reserve_heap`]), and those of the kernel on its behalf, such as the buffers of a socket ([`use_page_reserve`]).
#![allow(unsafe_code)] // Settings of the C library's allocator, of the scheduler and of locked memory.

use std::sync::atomic::{AtomicBool, Ordering};

/// Whether memory that this process maps is loaded and locked.
static IS_LOCKED: AtomicBool = AtomicBool::new(false);

/// Loads and locks the memory that this process has and will have, except for what is [mapped on fault](mapped_on_fault). Children don't inherit it.
///
/// # Errors
/// Those of mlockall(2).
pub fn lock_memory() -> std::io::Result<()> {
    // SAFETY: no memory is passed.
    match unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE) } {
        0 => {
            IS_LOCKED.store(true, Ordering::SeqCst);
            Ok(())
        }
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// Calls `map`, which maps memory. Where memory is locked, pages of this mapping are loaded and locked when they are first used: a device in memory
/// takes what was written to it, and not its size.
pub fn mapped_on_fault<T>(map: impl FnOnce() -> T) -> T {
    if !IS_LOCKED.load(Ordering::SeqCst) {
        return map();
    }
    // Without MCL_CURRENT this concerns future mappings only. What other threads map meanwhile is locked on fault, too.
    // SAFETY: no memory is passed. A failure leaves the setting as it was.
    unsafe { libc::mlockall(libc::MCL_FUTURE | libc::MCL_ONFAULT) };
    let mapped = map();
    // SAFETY: as above.
    unsafe { libc::mlockall(libc::MCL_FUTURE) };
    mapped
}

/// Reserves `bytes` bytes of heap, and keeps the allocator from mapping memory and from returning any.
///
/// Where memory is locked (`mlockall` with `MCL_FUTURE`) the reserve is loaded at once, and an allocation that fits in it needs no page of the
/// kernel. Call it before other threads allocate: they would have heaps of their own. With another C library than glibc it does nothing.
pub fn reserve_heap(bytes: usize) {
    #[cfg(target_env = "gnu")]
    {
        let settings =
            [(libc::M_ARENA_MAX, 1), (libc::M_MMAP_MAX, 0), (libc::M_TRIM_THRESHOLD, libc::c_int::MAX)];
        for (parameter, value) in settings {
            // SAFETY: mallopt changes settings of the allocator only.
            if unsafe { libc::mallopt(parameter, value) } == 0 {
                tracing::warn!("mallopt({parameter}, {value}): refused by the C library");
            }
        }
        // Freed memory at the top of the heap stays there.
        drop(std::hint::black_box(Vec::<u8>::with_capacity(bytes)));
    }
    #[cfg(not(target_env = "gnu"))]
    let _ = bytes;
}

/// Lets allocations of the kernel on behalf of the calling thread, and of threads that it starts later, use half of the pages that the kernel
/// keeps free (`vm.min_free_kbytes`): it permits that to threads with a real-time policy (`ALLOC_MIN_RESERVE` in mm/page_alloc.c).
///
/// The policy is SCHED_RR of the lowest priority. Without it, and with PR_SET_IO_FLUSHER, sending to a socket while no page can be
/// reclaimed waits without end, and doesn't invoke the out-of-memory killer.
///
/// # Errors
/// Those of sched_setscheduler(2): it needs CAP_SYS_NICE.
pub fn use_page_reserve() -> std::io::Result<()> {
    // SAFETY: a structure of integers; all of them may be zero.
    let mut parameters: libc::sched_param = unsafe { std::mem::zeroed() };
    parameters.sched_priority = 1;
    // SAFETY: `parameters` is valid for the call.
    match unsafe { libc::sched_setscheduler(0, libc::SCHED_RR, &raw const parameters) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}
