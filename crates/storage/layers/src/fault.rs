//! `fault`: injects faults into calls, by rule and seed, on either contract.
//!
//! Promises: without rules a call passes through. With rules an operation gets exactly the faults of the
//! rules that fire, or passes unchanged. Which rules fire depends only on the seed and on the order of the
//! operations on each shard. An operation that a rule affects completes also if its future is dropped.
//! [`parse`] describes the language of the rules. The messages `rules off` and `rules on` switch all rules;
//! operations that pass while they are off aren't counted by `every`, `after` and `times`.
//!
//! A flush with `lie` loses acknowledged writes only together with a power cut, which `record` and its replay
//! simulate.

mod decide;
mod device;
pub mod parse;
pub mod rule;
mod zones;

pub use parse::parse_rules;
pub use rule::Rule;

use block::{Call, DevicePart, Part, Result, Status, ZonesPart};
use decide::Faults;
use runtime::range_lock::SharedRangeLock;
use stack::{Arguments, Built, Contract, Key, Kind, Message as _, Metric, Tell, ValueKind};
use std::sync::Arc;

const RULES: Key =
    Key::optional("rules", ValueKind::Texts, "faults to inject, such as \"read error=EIO probability=0.01\"")
        .positional();
const SEED: Key = Key::optional(
    "seed",
    ValueKind::Integer { min: 0, max: u64::MAX },
    "seed of random choices; default: a random one, which status shows",
);

/// `fault` on a device.
pub const KIND: Kind = Kind {
    name: "fault",
    contract: Contract::Device,
    summary: "makes operations fail, wait, tear, corrupt or misdirect data, by rule and seed",
    keys: &[
        Key::required("on", ValueKind::Device, "the device to inject faults into").positional(),
        RULES,
        SEED,
    ],
    messages: Message::FORMS,
    metrics: &[METRICS],
    shareable: false,
    example: "fault(ram(size=64MiB), \"read error=EIO probability=0.01\", \"any delay=5ms every=100\", seed=7)",
    plan: |arguments| rules(arguments, Contract::Device).and_then(|_| arguments.shape("on")),
    build: |arguments| {
        Call::ready((|| {
            let rules = rules(&arguments, Contract::Device)?;
            let part = FaultDevicePart::new(arguments.device("on")?, rules, seed(&arguments)?)?;
            Ok(Built::Device(Arc::new(part)))
        })())
    },
};

/// `fault` on zones.
pub const ZONES_KIND: Kind = Kind {
    name: "zone-fault",
    contract: Contract::Zones,
    summary: "makes operations on zones fail, wait, tear, corrupt or misdirect data, by rule and seed",
    keys: &[
        Key::required("on", ValueKind::Zones, "the zones to inject faults into").positional(),
        RULES,
        SEED,
    ],
    messages: Message::FORMS,
    metrics: &[METRICS],
    shareable: false,
    example: "zone-fault(zones(ram(size=64MiB), zone_size=1MiB), \"append torn every=100\", seed=7)",
    plan: |arguments| rules(arguments, Contract::Zones).and_then(|_| arguments.shape("on")),
    build: |arguments| {
        Call::ready((|| {
            let rules = rules(&arguments, Contract::Zones)?;
            let part = FaultZonesPart::new(arguments.zones("on")?, rules, seed(&arguments)?);
            Ok(Built::Zones(Arc::new(part)))
        })())
    },
};

/// Numbers of the status for monitoring systems.
const METRICS: &[Metric] =
    &[Metric::counter("rules.*.injected", "fault_injected_faults", "Operations to which a rule was applied")
        .of_each("rule", "rule")];

fn rules(arguments: &Arguments, contract: Contract) -> Result<Vec<Rule>> {
    let texts = arguments.texts("rules")?;
    parse_rules(&texts, contract).map_err(|error| arguments.refuse("rules", error.detail().to_owned()))
}

fn seed(arguments: &Arguments) -> Result<u64> {
    Ok(arguments.optional_integer("seed")?.unwrap_or_else(runtime::random_u64))
}

/// A contract whose calls get faults.
pub trait Faulty: Send + Sync {
    /// Kind of the layer.
    const KIND: &'static Kind;
}

impl Faulty for dyn DevicePart {
    const KIND: &'static Kind = &KIND;
}

impl Faulty for dyn ZonesPart {
    const KIND: &'static Kind = &ZONES_KIND;
}

/// A device or zones with faults by rule.
pub struct FaultPart<P: ?Sized> {
    inner: Arc<P>,
    faults: Arc<Faults>,
    /// Locks of blocks being changed through any shard's handle; set if a rule tears writes to a device. A
    /// torn write reads the block that it tears, changes its beginning and writes it back. A concurrent write
    /// of the block would be undone by that.
    changing: Option<SharedRangeLock>,
}

/// A device with faults by rule.
pub type FaultDevicePart = FaultPart<dyn DevicePart>;
/// Zones with faults by rule.
pub type FaultZonesPart = FaultPart<dyn ZonesPart>;

impl<P: Faulty + ?Sized> Part for FaultPart<P> {
    fn kind(&self) -> &'static str {
        P::KIND.name
    }

    fn status(&self) -> Call<'_, Status> {
        Call::ready(self.faults.status())
    }

    fn message<'a>(&'a self, message: &'a str) -> Call<'a, Result<String>> {
        self.tell_text(P::KIND, message)
    }
}

impl<P: Faulty + ?Sized> Tell for FaultPart<P> {
    type Message = Message;

    fn tell(&self, message: Message) -> Call<'_, Result<String>> {
        Call::ready(Ok(self.faults.tell(message)))
    }
}

stack::messages! {
    /// A message to `fault`.
    Message;
    "rules on" => RulesOn, "apply the rules to operations";
    "rules off" => RulesOff, "pass operations unchanged; every, after and times don't count them";
}
