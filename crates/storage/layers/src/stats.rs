//! `stats`: counts and times every call, on either contract.
//!
//! Promises: a call passes through unchanged. Its cost is two clock reads and a few stores, so that the layer
//! can always be on. [`status`](block::Part::status) returns, per kind of call and over all shards, the
//! operations, bytes, errors, calls in flight and a summary of the latency histogram. The message
//! `clear_stats` resets the counters. Rates are left to readers that take differences.

pub(crate) mod counters;

pub use crate::clear_stats::Message;
use block::layer::{DeviceCall, DeviceLayer, Observed, Observer, Position, ZonesCall, ZonesLayer};
use block::{Call, Device, DevicePart, Error, Part, Result, Status, Zones, ZonesPart};
pub use counters::CallCounts;
use counters::{Counting, PartCounters, Running};
use stack::Message as _;
use stack::{Built, Contract, Key, Kind, Tell, ValueKind};
use std::rc::Rc;
use std::sync::Arc;

/// `stats` on a device.
pub const KIND: Kind = Kind {
    name: "stats",
    contract: Contract::Device,
    summary: "counts and times every call: operations, bytes, errors, latencies",
    keys: &[Key::required("on", ValueKind::Device, "the device whose calls are counted").positional()],
    messages: Message::FORMS,
    metrics: &[],
    shareable: false,
    example: "stats(ram(size=64MiB))",
    plan: |arguments| arguments.shape("on"),
    build: |arguments| {
        Call::ready(arguments.device("on").map(|on| Built::Device(Arc::new(StatsDevicePart::new(on)))))
    },
};

/// `stats` on zones.
pub const ZONES_KIND: Kind = Kind {
    name: "zone-stats",
    contract: Contract::Zones,
    summary: "counts and times every call to zones: operations, bytes, errors, latencies",
    keys: &[Key::required("on", ValueKind::Zones, "the zones whose calls are counted").positional()],
    messages: Message::FORMS,
    metrics: &[],
    shareable: false,
    example: "zone-stats(zones(ram(size=64MiB), zone_size=1MiB))",
    plan: |arguments| arguments.shape("on"),
    build: |arguments| {
        Call::ready(arguments.zones("on").map(|on| Built::Zones(Arc::new(StatsZonesPart::new(on)))))
    },
};

/// A contract whose calls are counted.
pub trait Counted: Send + Sync {
    /// Kind of the layer.
    const KIND: &'static Kind;
    /// Names of the counters, in the order of `counter_of` or `zones_counter_of`.
    const NAMES: &'static [&'static str];
}

impl Counted for dyn DevicePart {
    const KIND: &'static Kind = &KIND;
    const NAMES: &'static [&'static str] =
        &["read", "write", "write_fua", "flush", "discard", "write_zeroes", "extents"];
}

/// Reservations aren't counted.
impl Counted for dyn ZonesPart {
    const KIND: &'static Kind = &ZONES_KIND;
    const NAMES: &'static [&'static str] =
        &["append", "read", "flush", "finish", "reset", "report", "open", "close"];
}

/// A device or zones whose calls are counted and timed.
pub struct StatsPart<P: ?Sized> {
    inner: Arc<P>,
    counters: Arc<PartCounters>,
}

/// A device whose calls are counted and timed.
pub type StatsDevicePart = StatsPart<dyn DevicePart>;
/// Zones whose calls are counted and timed.
pub type StatsZonesPart = StatsPart<dyn ZonesPart>;

impl<P: Counted + ?Sized> StatsPart<P> {
    /// Counts the calls to `inner`.
    pub fn new(inner: Arc<P>) -> Self {
        StatsPart { inner, counters: PartCounters::new(P::NAMES) }
    }

    /// Number of handles that are open: each has counters of its own.
    pub fn open_handles(&self) -> usize {
        self.counters.open_handles()
    }
}

impl<P: Counted + ?Sized> Part for StatsPart<P> {
    fn kind(&self) -> &'static str {
        P::KIND.name
    }

    fn status(&self) -> Call<'_, Status> {
        Call::ready(self.counters.status())
    }

    fn message<'a>(&'a self, message: &'a str) -> Call<'a, Result<String>> {
        self.tell_text(P::KIND, message)
    }
}

impl<P: Counted + ?Sized> Tell for StatsPart<P> {
    type Message = Message;

    fn tell(&self, Message::ClearStats: Message) -> Call<'_, Result<String>> {
        self.counters.clear();
        Call::ready(Ok("cleared".into()))
    }
}

impl DeviceLayer for StatsDevicePart {
    fn below(&self) -> &Arc<dyn DevicePart> {
        &self.inner
    }

    fn handle(&self, below: Rc<dyn Device>) -> Rc<dyn Device> {
        Observed::new(below, self.counters.open())
    }
}

impl ZonesLayer for StatsZonesPart {
    fn below(&self) -> &Arc<dyn ZonesPart> {
        &self.inner
    }

    fn handle(&self, below: Rc<dyn Zones>) -> Rc<dyn Zones> {
        Observed::new(below, self.counters.open())
    }
}

/// Number of the counter of a kind of call to a device.
#[inline]
pub(crate) const fn counter_of(call: DeviceCall) -> usize {
    match call {
        DeviceCall::Read => 0,
        DeviceCall::Write => 1,
        DeviceCall::WriteDurable => 2,
        DeviceCall::Flush => 3,
        DeviceCall::Discard => 4,
        DeviceCall::WriteZeroes => 5,
        DeviceCall::Extents => 6,
    }
}

/// Number of the counter of a kind of call to zones; `None` for a reservation.
#[inline]
pub(crate) const fn zones_counter_of(call: ZonesCall) -> Option<usize> {
    Some(match call {
        ZonesCall::Append => 0,
        ZonesCall::Read => 1,
        ZonesCall::Flush => 2,
        ZonesCall::Finish => 3,
        ZonesCall::Reset => 4,
        ZonesCall::Report => 5,
        ZonesCall::Open => 6,
        ZonesCall::Close => 7,
        ZonesCall::Reserve => return None,
    })
}

impl Observer<DeviceCall> for Counting {
    type InFlight<'a> = Running<'a>;

    #[inline]
    fn begin(&self, call: DeviceCall, _: Position) -> Running<'_> {
        Counting::begin(self, counter_of(call))
    }

    #[inline]
    fn end(&self, call: Running<'_>, bytes: u64, error: Option<&Error>) {
        call.end(bytes, error.is_none());
    }
}

impl Observer<ZonesCall> for Counting {
    type InFlight<'a> = Option<Running<'a>>;

    #[inline]
    fn begin(&self, call: ZonesCall, _: Position) -> Option<Running<'_>> {
        zones_counter_of(call).map(|counter| Counting::begin(self, counter))
    }

    #[inline]
    fn end(&self, call: Option<Running<'_>>, bytes: u64, error: Option<&Error>) {
        if let Some(call) = call {
            call.end(bytes, error.is_none());
        }
    }
}
