//! Memory of holders and servers, on which the kernel may depend when memory is short.

/// Lets this process and its children work when memory is short: swapping and write-back may depend on them.
pub fn protect() {
    let failed = |what: &str, error: &dyn std::fmt::Display| tracing::warn!("{what}: {error}");
    if let Err(error) = rustix::process::configure_io_flusher_behavior(true) {
        failed("PR_SET_IO_FLUSHER", &error);
    }
    if let Err(error) = std::fs::write("/proc/self/oom_score_adj", "-1000") {
        failed("/proc/self/oom_score_adj", &error);
    }
    name_thread();
    lock_memory();
}

/// Loads and locks the present and future memory of this process. Children don't inherit it.
///
/// Locked memory also keeps recoveries free of errors: if a server is killed while the kernel copies a
/// request to a page that isn't present, the kernel fails the request (EIO) instead of sending it to the next
/// server.
pub fn lock_memory() {
    if let Err(error) = runtime::locked_memory::lock() {
        tracing::warn!("locking memory: {error}");
    }
}

/// Bytes of the heap that a server of swap space loads before it serves: requests in flight (64 of ublk; 128
/// of NBD and of a loop device; each of at most [`MAX_SWAP_REQUEST`] bytes), blocks in flight to nodes, and
/// receive buffers.
const HEAP_RESERVE: usize = 48 << 20;
/// Limit of a request to swap space, in bytes. Larger requests would save little time; [`HEAP_RESERVE`]
/// bounds their sum.
pub const MAX_SWAP_REQUEST: u64 = 128 << 10;

/// Keeps a server of swap space from waiting for memory. Call it after [`lock_memory`], before other threads
/// start.
pub fn prepare_for_swap() {
    runtime::write_back::reserve_heap(HEAP_RESERVE);
    if let Err(error) = runtime::write_back::use_page_reserve() {
        tracing::warn!("SCHED_RR: {error}; the server may wait for memory that its own writes would free");
    }
}

/// Sets the calling thread's name to the program's; otherwise it is that of the link that started it.
pub fn name_thread() {
    // For `ps` only.
    let _named = rustix::thread::set_name(c"siltstone");
}
