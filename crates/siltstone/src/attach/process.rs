//! Processes that the kernel may depend on when memory is short: holders and servers.

/// Keeps this process, and its children, working when memory is short: they may be what swaps and writes back.
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

/// Loads and locks the memory that this process has and will have. Children don't inherit it.
///
/// Beside paging, this keeps recoveries free of errors: when a server is killed while the kernel copies a request to a page that isn't
/// there yet, the kernel fails the request (EIO) instead of sending it to the next server.
pub fn lock_memory() {
    use rustix::mm::MlockAllFlags;
    if let Err(error) = rustix::mm::mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE) {
        tracing::warn!("locking memory: {error}");
    }
}

/// Gives the calling thread the program's name; it has that of the link by which it was started.
pub fn name_thread() {
    // For `ps` only.
    let _named = rustix::thread::set_name(c"siltstone");
}
