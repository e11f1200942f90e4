//! A process that the kernel waits for when memory is short: a server of swap space.
//!
//! The kernel waits for such a server to write pages, so the server must not wait for free pages. Two kinds
//! of allocation would: those of its own heap ([`reserve_heap`]), and those of the kernel on its behalf, such
//! as the buffers of a socket ([`use_page_reserve`]).
#![allow(unsafe_code)] // Settings of the C library's allocator and of the scheduler.

/// Reserves `bytes` bytes of heap, and keeps the allocator from mapping memory and from returning any.
///
/// Where memory is locked (`mlockall` with `MCL_FUTURE`) the reserve is loaded at once, and an allocation
/// that fits in it needs no page of the kernel. Call it before other threads allocate: they would have heaps
/// of their own. Does nothing with a C library other than glibc.
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
        // Freed memory at the top of the heap remains there.
        drop(std::hint::black_box(Vec::<u8>::with_capacity(bytes)));
    }
    #[cfg(not(target_env = "gnu"))]
    let _ = bytes;
}

/// Lets allocations of the kernel on behalf of the calling thread, and of threads that it starts later, use
/// half of the pages that the kernel keeps free (`vm.min_free_kbytes`): it permits that to threads with a
/// real-time policy (`ALLOC_MIN_RESERVE` in mm/page_alloc.c).
///
/// The policy is SCHED_RR of the lowest priority. Without it, and with PR_SET_IO_FLUSHER, sending to a socket
/// while no page can be reclaimed waits without end, and doesn't invoke the out-of-memory killer.
///
/// # Errors
/// Errors of sched_setscheduler(2): it needs CAP_SYS_NICE.
pub fn use_page_reserve() -> std::io::Result<()> {
    set_policy(libc::SCHED_RR, 1)
}

/// Takes back [`use_page_reserve`] for the calling thread, and for programs that it starts. Does nothing
/// else.
pub fn leave_page_reserve() {
    // A thread may always give up a real-time policy.
    let _left = set_policy(libc::SCHED_OTHER, 0);
}

fn set_policy(policy: libc::c_int, priority: libc::c_int) -> std::io::Result<()> {
    // SAFETY: a structure of integers; all of them may be zero.
    let mut parameters: libc::sched_param = unsafe { std::mem::zeroed() };
    parameters.sched_priority = priority;
    // SAFETY: `parameters` is valid for the call.
    match unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}
