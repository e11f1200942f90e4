//! Rules that tests break on purpose, to show that the crash oracle, worlds and the audit detect it.
//!
//! Only the feature `broken-rules` compiles them, and only this crate's own tests enable it. Without it
//! `if_broken!` is nothing.

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
pub(crate) use enabled::is_broken;

#[cfg(feature = "broken-rules")]
mod enabled {
    use std::cell::Cell;

    /// Rule that the stores of a simulation break.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Broken {
        /// The record of a flush is before the first part of an incomplete entry, and its sequence counts
        /// writes after that.
        CountsTwice,
        /// A checkpoint covers writes that aren't in tables.
        CoversBuffers,
        /// Replay freezes a buffer after some of the entries that end in a record.
        DividesRecords,
        /// Compaction drops tombstones although older versions are below.
        DropsTombstones,
        /// Zones with deleted data aren't erased in time.
        ForgetsZones,
        /// Opening doesn't erase the staging area.
        KeepsStaged,
        /// Writes are acknowledged as staged that aren't.
        StagesNothing,
    }

    thread_local! {
        static BROKEN: Cell<Option<Broken>> = const { Cell::new(None) };
    }

    /// Runs `work` while all stores of this thread break a rule; `None` breaks none. A simulation has one
    /// thread for all of its shards.
    pub fn with_broken<R>(rule: Option<Broken>, work: impl FnOnce() -> R) -> R {
        let outer = BROKEN.replace(rule);
        let result = work();
        BROKEN.set(outer);
        result
    }

    pub(crate) fn is_broken(rule: Broken) -> bool {
        BROKEN.get() == Some(rule)
    }
}
