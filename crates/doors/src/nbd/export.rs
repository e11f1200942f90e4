//! State that all connections of an export share, on all shards: its device's gate for writes, and its counters.

use super::write_gate::WriteGate;
use block::{DeviceGeometry, DevicePart, Status};
use serde_json::json;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// One export, shared by all shards.
pub(super) struct Export {
    pub(super) geometry: DeviceGeometry,
    pub(super) read_only: bool,
    pub(super) gate: Arc<WriteGate>,
    pub(super) counters: Counters,
}

impl Export {
    pub(super) fn new(device: &Arc<dyn DevicePart>, read_only: bool, shards: usize) -> Self {
        let geometry = device.geometry().clone();
        let read_only = read_only || geometry.read_only;
        Export { geometry, read_only, gate: gate_of(device, shards), counters: Counters::default() }
    }
}

/// Returns the gate of a device, which all servers of this process that serve it share.
fn gate_of(device: &Arc<dyn DevicePart>, shards: usize) -> Arc<WriteGate> {
    /// Gates by the device's address: a gate's users keep the device, so that no other device can have that address.
    static GATES: Mutex<Vec<(usize, Weak<WriteGate>)>> = Mutex::new(Vec::new());
    let address = Arc::as_ptr(device).cast::<()>() as usize;
    let mut gates = GATES.lock().unwrap_or_else(PoisonError::into_inner);
    gates.retain(|(_, gate)| gate.strong_count() > 0);
    let known = gates.iter().find(|entry| entry.0 == address).and_then(|entry| entry.1.upgrade());
    known.unwrap_or_else(|| {
        let gate = Arc::new(WriteGate::new(shards));
        gates.push((address, Arc::downgrade(&gate)));
        gate
    })
}

macro_rules! counters {
    ($($name:ident),*) => {
        /// Totals since the start; added to once per turn of a connection.
        #[derive(Default)]
        pub(super) struct Counters {
            $($name: AtomicU64,)*
        }

        /// Work of a connection that isn't added to the counters yet.
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
