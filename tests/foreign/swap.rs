//! The kernel's swap space, which all programs of the machine share.

use super::skip;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Priority of the tests' swap space: the kernel uses others only once it is full, unless their priority isn't lower.
const PRIORITY: i32 = 100;

static SWAP: Mutex<()> = Mutex::new(());

/// Waits until no other test swaps, and keeps them out until it is dropped: otherwise pages of one test's program would go to the device of
/// another one. Says why the test is skipped, if they would go elsewhere.
pub fn lock_swap() -> Option<MutexGuard<'static, ()>> {
    // A test that failed has switched its swap space off as far as it could.
    let guard = SWAP.lock().unwrap_or_else(PoisonError::into_inner);
    let list = std::fs::read_to_string("/proc/swaps").unwrap_or_default();
    let priority = |line: &str| line.split_whitespace().last().and_then(|last| last.parse::<i32>().ok());
    match list.lines().skip(1).find(|line| priority(line) >= Some(PRIORITY)) {
        Some(line) => {
            skip(&format!("another swap space has a priority of {PRIORITY} or more: {line}"));
            None
        }
        None => Some(guard),
    }
}
