//! The kernel's swap space, which all programs of the machine share.

use super::skip;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Priority of the tests' swap spaces, the default of `siltstone swap on`. The kernel uses a lower one only once this is full, and takes turns between equal ones.
pub const SWAP_PRIORITY: i32 = 100;

static SWAP: Mutex<()> = Mutex::new(());

/// Waits until no other test swaps, and keeps them out until it is dropped: otherwise pages of one test's program would go to the device of
/// another one. `None` if the kernel would swap elsewhere; says then that the test is skipped.
pub fn lock_swap() -> Option<MutexGuard<'static, ()>> {
    // A test that failed has switched its swap space off as far as it could.
    let guard = SWAP.lock().unwrap_or_else(PoisonError::into_inner);
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
