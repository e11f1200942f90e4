//! Counters of a write cache of zones.

use std::cell::Cell;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters since the cache was opened.
        #[derive(Debug, Default)]
        pub struct Counters {
            $($(#[$doc])* pub $name: Cell<u64>,)*
        }

        impl Counters {
            /// Names and values.
            pub fn all(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name.get()),)*].into_iter()
            }
        }
    };
}

counters! {
    /// Records written to the fast device.
    records,
    /// Appends written to the fast device.
    appends,
    /// Bytes of these appends.
    appended_bytes,
    /// Flushes by users, with those of finishes and resets.
    flushes,
    /// Flushes of the fast device.
    fast_flushes,
    /// Appends that waited because the lag was at its limit.
    waits,
    /// Appends to the origin.
    origin_appends,
    /// Bytes appended to the origin.
    uploaded_bytes,
    /// Flushes of the origin.
    origin_flushes,
    /// Finishes and resets of zones at the origin.
    origin_changes,
    /// Failed attempts at the origin.
    origin_errors,
    /// Reads of the log.
    log_reads,
    /// Reads of the origin.
    origin_reads,
}

pub(crate) use counters;

/// Adds to a counter.
#[inline]
pub fn count(counter: &Cell<u64>, number: u64) {
    counter.set(counter.get() + number);
}
