//! The kernel's swap space, which all programs of the machine share.

use super::skip;
use rustix::fs::FlockOperation;
use std::fs::File;

/// Priority of the tests' swap spaces, the default of `siltstone swap on`. The kernel uses a lower one only
/// once this one is full, and alternates between equal ones.
pub const SWAP_PRIORITY: i32 = 100;

/// Waits until no other test swaps, and excludes other tests until the result is dropped: otherwise pages of
/// one test's program would go to the device of another. If the kernel would swap elsewhere, returns `None`
/// and reports that the test is skipped.
///
/// The lock is a file's, because each test is a process; it is released when its holder ends.
pub fn lock_swap() -> Option<File> {
    let path = std::env::temp_dir().join("siltstone-tests-swap.lock");
    let guard = File::options()
        .create(true)
        .append(true)
        .open(&path)
        .expect("the lock of the swap tests can be opened");
    rustix::fs::flock(&guard, FlockOperation::LockExclusive).expect("the swap tests can be locked");
    let list = std::fs::read_to_string("/proc/swaps").unwrap_or_default();
    let priority = |line: &str| line.split_whitespace().last().and_then(|last| last.parse::<i32>().ok());
    match list.lines().skip(1).find(|line| priority(line) >= Some(SWAP_PRIORITY)) {
        Some(line) => {
            skip(&format!("another swap space has a priority of {SWAP_PRIORITY} or more: {line}"));
            None
        }
        None => Some(guard),
    }
}
