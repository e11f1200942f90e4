//! Counters of a write cache for operators, since it was opened or since the last `clear_stats`.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters for operators.
        #[derive(Debug, Default)]
        pub struct Counters {
            $($(#[$doc])* pub $name: AtomicU64,)*
        }

        impl Counters {
            /// Names and values.
            pub fn all(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name.load(Ordering::Relaxed)),)*]
            }

            /// Sets all counters to zero.
            pub fn clear(&self) {
                $(self.$name.store(0, Ordering::Relaxed);)*
            }
        }
    };
}

counters! {
    /// Blocks that clients read.
    read_blocks,
    /// Blocks that clients read from the cache.
    read_hits,
    /// Blocks that clients wrote.
    write_blocks,
    /// Blocks that clients wrote over a version that was still cached.
    write_hits,
    /// Blocks written straight to the origin, in the mode `cleaner`.
    writes_around,
    /// Waits of the record at the head of the queue for free space.
    writes_blocked,
    /// Flushes by clients.
    flush_requests,
    /// Discards by clients.
    discard_requests,
    /// Records written to the cache device.
    records,
    /// Blocks of the ring that hold no data: headers, and the unused ends of segments.
    overhead_blocks,
    /// Blocks written back.
    written_back,
    /// Blocks that were not written back because a newer version of the same flush epoch was.
    superseded,
    /// Batches of write-back.
    batches,
    /// Flushes of the origin by write-back.
    origin_flushes,
    /// Unreadable blocks released by `give_up_rotten`: the origin keeps their older version.
    lost_blocks,
    /// Failed attempts at write-back.
    writeback_errors,
}

/// Adds to a counter. Only the home shard writes counters.
#[inline]
pub fn count(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Ordering::Relaxed) + by, Ordering::Relaxed);
}
