//! `stats`: counts and times every call, on either contract.
//!
//! Promises: a call passes through unchanged. Its cost is two clock reads and a few stores, so that the layer
//! can always be on. [`status`](block::Part::status) returns, per kind of call and over all shards, the
//! operations, bytes, errors, calls in flight and a summary of the latency histogram. The message
//! `clear_stats` resets the counters. Rates are left to readers that take differences.

mod counters;
mod device;
mod zones;

pub use device::StatsDevicePart;
pub use zones::StatsZonesPart;

pub use crate::clear_stats::Message;
use block::Call;
use stack::Message as _;
use stack::{Built, Contract, Key, Kind, ValueKind};
use std::sync::Arc;

/// `stats` on a device.
pub const KIND: Kind = Kind {
    name: "stats",
    contract: Contract::Device,
    summary: "counts and times every call: operations, bytes, errors, latencies",
    keys: &[Key::required("on", ValueKind::Device, "the device whose calls are counted").positional()],
    messages: Message::FORMS,
    shareable: false,
    example: "stats(ram(size=64MiB))",
    plan: |arguments| arguments.shape("on"),
    build: |arguments| {
        Call::ready(arguments.device("on").map(|on| Built::Device(Arc::new(StatsDevicePart::new(on)))))
    },
};

/// `stats` on zones.
pub const ZONES_KIND: Kind = Kind {
    name: ZONES_NAME,
    contract: Contract::Zones,
    summary: "counts and times every call to zones: operations, bytes, errors, latencies",
    keys: &[Key::required("on", ValueKind::Zones, "the zones whose calls are counted").positional()],
    messages: Message::FORMS,
    shareable: false,
    example: "zone-stats(zones(ram(size=64MiB), zone_size=1MiB))",
    plan: |arguments| arguments.shape("on"),
    build: |arguments| {
        Call::ready(arguments.zones("on").map(|on| Built::Zones(Arc::new(StatsZonesPart::new(on)))))
    },
};

/// Kind of the layer on zones.
const ZONES_NAME: &str = "zone-stats";
