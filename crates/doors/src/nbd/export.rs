//! What all connections of an export share, on whichever shard: its gate for writes and its counters.

use super::write_gate::WriteGate;
use block::{DeviceGeometry, Status};
use serde_json::json;
use std::sync::atomic::{AtomicU64, Ordering};

/// One export as all shards see it.
pub(super) struct Export {
    pub(super) geometry: DeviceGeometry,
    pub(super) read_only: bool,
    pub(super) gate: WriteGate,
    pub(super) counters: Counters,
}

impl Export {
    pub(super) fn new(geometry: DeviceGeometry, read_only: bool, shards: usize) -> Self {
        let read_only = read_only || geometry.read_only;
        Export { geometry, read_only, gate: WriteGate::new(shards), counters: Counters::default() }
    }
}

macro_rules! counters {
    ($($name:ident),*) => {
        /// What has been done since the start; added to once per turn of a connection.
        #[derive(Default)]
        pub(super) struct Counters {
            $($name: AtomicU64,)*
        }

        /// What a connection has done and not added to the counters yet.
        #[derive(Default, Clone, Copy, PartialEq)]
        pub(super) struct Tally {
            $(pub(super) $name: u64,)*
        }

        impl Counters {
            /// Adds a tally and clears it.
            #[inline]
            pub(super) fn add(&self, tally: &mut Tally) {
                $(if tally.$name != 0 {
                    self.$name.fetch_add(tally.$name, Ordering::Relaxed);
                })*
                *tally = Tally::default();
            }

            pub(super) fn status(&self) -> Status {
                let mut status = Status::new();
                $(status.insert(stringify!($name).into(), json!(self.$name.load(Ordering::Relaxed)));)*
                status
            }
        }
    };
}

counters!(
    connections,
    reads,
    read_bytes,
    writes,
    written_bytes,
    flushes,
    trims,
    trimmed_bytes,
    write_zeroes,
    zeroed_bytes,
    block_statuses,
    errors
);
