//! A device that is served: its geometry, its gate for writes, and its counters. Shared by all shards.

use super::counters::counters;
use super::work::{Operation, Target};
use super::write_gate::WriteGate;
use block::{Device, DeviceGeometry, DevicePart};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// One served device.
pub struct Export {
    device: Arc<dyn DevicePart>,
    /// Whether writes are refused, by configuration or by the device.
    pub read_only: bool,
    /// Totals of the requests that have ended.
    pub counters: Counters,
    gate: Arc<WriteGate>,
}

impl Export {
    /// Returns the export of a device to requests of this many shards.
    pub fn new(device: &Arc<dyn DevicePart>, read_only: bool, shards: usize) -> Self {
        let read_only = read_only || device.geometry().read_only;
        Export {
            device: device.clone(),
            read_only,
            gate: gate_of(device, shards),
            counters: Counters::default(),
        }
    }

    /// Geometry of the device, which may grow.
    #[inline]
    pub fn geometry(&self) -> &DeviceGeometry {
        self.device.geometry()
    }

    /// Returns the target of the requests of a shard; `device` is the shard's handle.
    pub fn target<'d>(&'d self, device: &'d dyn Device, shard: usize) -> Target<'d> {
        Target { device, gate: &self.gate, shard, block_shift: self.geometry().block_size.shift() }
    }
}

/// Returns the gate of a device, which all servers of this process that serve it share.
fn gate_of(device: &Arc<dyn DevicePart>, shards: usize) -> Arc<WriteGate> {
    /// Gates by the device's address: a gate's users keep the device, so that no other device can have that
    /// address.
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

counters! {
    Counters, Tally:
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
}

impl Tally {
    /// Counts a request of this many bytes.
    #[inline]
    pub fn count(&mut self, operation: Operation, bytes: u64) {
        match operation {
            Operation::Read => (self.reads, self.read_bytes) = (self.reads + 1, self.read_bytes + bytes),
            Operation::Write(_) => {
                (self.writes, self.written_bytes) = (self.writes + 1, self.written_bytes + bytes)
            }
            Operation::Flush => self.flushes += 1,
            Operation::Trim(_) => {
                (self.trims, self.trimmed_bytes) = (self.trims + 1, self.trimmed_bytes + bytes)
            }
            Operation::WriteZeroes(..) => {
                (self.write_zeroes, self.zeroed_bytes) = (self.write_zeroes + 1, self.zeroed_bytes + bytes);
            }
        }
    }
}
