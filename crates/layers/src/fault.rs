//! `fault`: makes what is below it go wrong, by rule and seed, on either contract.
//!
//! Promises: without rules a call passes straight through; with rules an operation either meets exactly what
//! its rules say or passes unchanged; what happens is decided by the seed and by the order of the operations
//! on each shard, and by nothing else. Dropping a call never stops an operation that a rule has touched. The
//! language of the rules is described in [`parse`]. The messages `rules off` and `rules on` switch all
//! rules; operations that pass while they are off aren't counted by `every`, `after` and `times`.
//!
//! A flush that lies here is a device that loses acknowledged writes only if the power fails, too: cutting
//! it is left to `record` and its replay.

mod decide;
mod device;
pub mod parse;
pub mod rule;
mod zones;

pub use device::FaultDevicePart;
pub use parse::parse_rules;
pub use rule::Rule;
pub use zones::FaultZonesPart;

use block::{Call, Result};
use stack::{Arguments, Built, Contract, Key, Kind, Message as _, ValueKind};
use std::sync::Arc;

const RULES: Key =
    Key::optional("rules", ValueKind::Texts, "what goes wrong, such as \"read error=EIO probability=0.01\"")
        .positional();
const SEED: Key = Key::optional(
    "seed",
    ValueKind::Integer { min: 0, max: u64::MAX },
    "decides what is left to chance; without it a new one, which status shows",
);

/// `fault` on a device.
pub const KIND: Kind = Kind {
    name: "fault",
    contract: Contract::Device,
    summary: "makes operations fail, wait, tear, rot or go astray, by rule and seed",
    keys: &[Key::required("on", ValueKind::Device, "the device that goes wrong").positional(), RULES, SEED],
    messages: Message::FORMS,
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
    name: ZONES_NAME,
    contract: Contract::Zones,
    summary: "makes operations on zones fail, wait, tear, rot or go astray, by rule and seed",
    keys: &[Key::required("on", ValueKind::Zones, "the zones that go wrong").positional(), RULES, SEED],
    messages: Message::FORMS,
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

fn rules(arguments: &Arguments, contract: Contract) -> Result<Vec<Rule>> {
    let texts = arguments.texts("rules")?;
    parse_rules(&texts, contract).map_err(|error| arguments.refuse("rules", error.detail().to_owned()))
}

fn seed(arguments: &Arguments) -> Result<u64> {
    Ok(arguments.optional_integer("seed")?.unwrap_or_else(runtime::random_u64))
}

/// What the Zones form of the layer is called in a stack.
const ZONES_NAME: &str = "zone-fault";

stack::messages! {
    /// A message to `fault`.
    Message;
    "rules on" => RulesOn, "apply the rules to operations";
    "rules off" => RulesOff, "pass operations unchanged; every, after and times don't count them";
}
