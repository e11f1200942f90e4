//! `model`: gives a device the latencies and bandwidths of another one, from a profile; over memory, it
//! models a disk.
//!
//! Promises: data, errors and order are those of the inner device. An operation completes at the time that
//! the profile gives or, if the inner device takes longer, as soon as that has completed; `status` counts
//! these operations (`late`). In simulated time nothing is late. A modelled volatile cache loses no data:
//! power cuts are left to `record` and its replay. Simulated time doesn't include the CPU time of layers, so
//! don't measure a layer's cost with it.
//!
//! `solid` computes solid-state devices, `disk` disks with one arm; [`fit`](mod@fit) fits a profile to a run
//! of fio on a real device, [`fill`] its write buffer.

mod device;
mod disk;
pub mod fill;
pub mod fit;
pub mod profile;
mod solid;
pub mod trial;

pub use device::ModelPart;
pub use profile::Profile;

pub use crate::clear_stats::Message;
use block::{Call, Result};
use stack::Message as _;
use stack::{Arguments, Built, Contract, Key, Kind, Metric, ValueKind};
use std::sync::Arc;

/// `model(ram(1GiB), optane-900p)`.
pub const KIND: Kind = Kind {
    name: "model",
    contract: Contract::Device,
    summary: "gives a device the latencies of another one, from a profile",
    keys: &[
        Key::required("on", ValueKind::Device, "the device with the data, faster than the modelled one")
            .positional(),
        Key::required("profile", ValueKind::Text, "the name of the profile, such as optane-900p or wd43purz")
            .positional(),
        Key::optional("profiles", ValueKind::Path, "a TOML file of profiles; default: the built-in profiles"),
        Key::optional(
            "seed",
            ValueKind::Integer { min: 0, max: u64::MAX },
            "seed of random choices; default: a random one",
        ),
    ],
    messages: Message::FORMS,
    metrics: &[METRICS],
    shareable: false,
    example: "model(ram(1GiB), optane-900p)",
    plan: |arguments| {
        // A file may still be written before the stack is opened.
        if !arguments.given("profiles") {
            profile(arguments)?;
        }
        arguments.shape("on")
    },
    build: |arguments| {
        Call::ready((|| {
            let (name, profile) = profile(&arguments)?;
            let seed = arguments.optional_integer("seed")?.unwrap_or_else(runtime::random_u64);
            Ok(Built::Device(Arc::new(ModelPart::new(arguments.device("on")?, &name, profile, seed))))
        })())
    },
};

/// Numbers of the status for monitoring systems.
const METRICS: &[Metric] = &[
    Metric::counter("operations", "model_operations", "Operations that were given a latency"),
    Metric::counter("late", "model_late_operations", "Operations that took longer than the profile says"),
    Metric::gauge("latest_ns", "model_latest_seconds", "Largest excess over the latency of the profile")
        .times(1e-9),
];

/// Returns the profile that the keys name.
fn profile(arguments: &Arguments) -> Result<(String, Profile)> {
    let name = arguments.text("profile")?;
    let (mut profiles, source) = match arguments.optional_path("profiles")? {
        None => (profile::known()?, "the built-in profiles".to_owned()),
        Some(path) => {
            let source = path.display().to_string();
            let text = std::fs::read_to_string(&path)
                .map_err(|error| arguments.refuse("profiles", format!("{source}: {error}")))?;
            let profiles = profile::parse(&text)
                .map_err(|error| arguments.refuse("profiles", format!("{source}: {}", error.detail())))?;
            (profiles, source)
        }
    };
    match profiles.remove(&name) {
        Some(profile) => Ok((name, profile)),
        None => {
            let known = profiles.keys().cloned().collect::<Vec<_>>().join(", ");
            let text = format!("profile \"{name}\": not in {source}; expected one of {known}");
            Err(arguments.refuse("profile", text))
        }
    }
}
