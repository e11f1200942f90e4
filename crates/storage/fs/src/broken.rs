//! Rules that tests break on purpose, to show that they would detect it.
//!
//! Only the feature `broken-rules` compiles them, and only this crate's own tests enable it. Without it
//! `if_broken!` is nothing.

#[cfg(feature = "broken-rules")]
pub(crate) use enabled::is_broken;
#[cfg(feature = "broken-rules")]
pub use enabled::{Broken, with_broken};

/// `if_broken!(RULE, EXPRESSION)` evaluates an expression, mostly a `return`, while a test breaks this rule.
macro_rules! if_broken {
    ($rule:ident, $otherwise:expr) => {
        #[cfg(feature = "broken-rules")]
        if $crate::broken::is_broken($crate::broken::Broken::$rule) {
            $otherwise;
        }
    };
}

pub(crate) use if_broken;

#[cfg(feature = "broken-rules")]
mod enabled {
    use std::cell::Cell;

    /// Rule that the file systems of a simulation break.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Broken {
        /// Syncs return at once.
        NeverFlushes,
        /// Blocks die when the operation that frees them is submitted, not when its record is written.
        DiesWhenSubmitted,
        /// Pages of the previous checkpoint die before the next one is durable.
        FreesPagesEarly,
        /// Changes that the checkpoint includes are replayed.
        ReplaysShown,
        /// The live blocks of one file aren't subtracted when its name is removed.
        ForgetsLost,
        /// Inodes without names aren't removed.
        KeepsOrphans,
        /// An operation on inodes of several shards is written as one record for each shard.
        SplitsOperations,
        /// Blocks that the present version loses die even if a snapshot has them.
        ForgetsSnapshots,
        /// The extents of the source of a clone aren't marked as shared: its blocks die with it.
        ForgetsSource,
        /// The cleaner moves shared blocks only for the file that they were written for.
        IgnoresShared,
        /// Breaks nothing: the shards pause for long between cloning their trees for a snapshot.
        SlowSnapshots,
        /// The gates stay open while a snapshot is taken.
        OpenGates,
        /// A directory is made striped before the copies of its names are written.
        StripesEarly,
        /// The names of a directory are copied to its stripes while others change them.
        StripesUnlocked,
        /// An operation on a name that has waited doesn't check whether its directory has become striped.
        ForgetsStripes,
        /// The cleaner waits for its turn even if writers wait for the cleaner.
        CleanerWaits,
    }

    thread_local! {
        /// Set of rules, one bit each.
        static BROKEN: Cell<u32> = const { Cell::new(0) };
    }

    /// Restores the set of rules, also after a panic.
    struct Restored(u32);

    impl Drop for Restored {
        fn drop(&mut self) {
            BROKEN.set(self.0);
        }
    }

    /// Runs `work` while all file systems of this thread break these rules. A simulation has one thread for
    /// all of its shards.
    pub fn with_broken<R>(rules: impl IntoIterator<Item = Broken>, work: impl FnOnce() -> R) -> R {
        let rules = rules.into_iter().fold(0, |set, rule| set | 1 << rule as u32);
        let _outer = Restored(BROKEN.replace(rules));
        work()
    }

    pub(crate) fn is_broken(rule: Broken) -> bool {
        BROKEN.get() & (1 << rule as u32) != 0
    }
}
