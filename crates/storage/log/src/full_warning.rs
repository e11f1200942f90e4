//! Warning of a log that refuses writes because it is full: one, and the next one only after a part of its
//! capacity was free again. Warnings before a log is full are those of its server (`stack::warning`).

use std::sync::atomic::{AtomicBool, Ordering};

/// Used percentage of the capacity below which a log isn't full any more.
const NOT_FULL: u64 = 95;

/// Decides when the warning is due; all shards share it.
#[derive(Debug, Default)]
pub struct FullWarning {
    has_refused: AtomicBool,
}

impl FullWarning {
    /// Notes the used blocks; `refused` is whether a write was refused. Returns whether the warning is due.
    pub fn note(&self, used: u64, capacity: u64, refused: bool) -> bool {
        let has_refused = self.has_refused.load(Ordering::Relaxed);
        if !has_refused && !refused {
            return false;
        }
        let was_full = self.is_full(used, capacity);
        self.has_refused.store(was_full || refused, Ordering::Relaxed);
        refused && !was_full
    }

    /// Whether a write was refused, and 95% of the capacity or more have been used since then.
    pub fn is_full(&self, used: u64, capacity: u64) -> bool {
        self.has_refused.load(Ordering::Relaxed)
            && u128::from(used) * 100 >= u128::from(capacity) * u128::from(NOT_FULL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_writes_warn_once_until_there_is_space() {
        let warning = FullWarning::default();
        let note = |used, refused| (warning.note(used, 1000, refused), warning.is_full(used, 1000));
        assert_eq!(note(999, false), (false, false));
        assert_eq!(note(1000, true), (true, true));
        assert_eq!(note(1000, true), (false, true));
        assert_eq!(note(950, false), (false, true));
        assert_eq!(note(949, false), (false, false));
        assert_eq!(note(1000, false), (false, false));
        assert_eq!(note(1000, true), (true, true));
        // A large write may be refused while much is free.
        assert_eq!(note(10, false), (false, false));
        assert!(note(10, true).0);
    }
}
