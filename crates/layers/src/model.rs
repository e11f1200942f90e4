//! `model`: a device that behaves like another one, from a profile of a few numbers; over memory, a disk that isn't there.
//!
//! Promises: data, errors and order are those of what is below; an operation is answered when the profile says, or, where what
//! is below takes longer, as soon as it has answered: `status` counts those (`late`). In simulated time nothing is late. A
//! device with a volatile cache loses nothing by that here: cutting its power is left to `record` and its replay, and what a
//! layer costs by itself is not to be measured on a model in simulated time, which hides it.
//!
//! How a device without moving parts is computed is described in `solid`, one with an arm in `disk`; [`fit`](mod@fit) finds a
//! profile for a real device, from a run of fio, [`fill`] its write buffer.

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
use stack::{Arguments, Built, Contract, Key, Kind, ValueKind};
use std::sync::Arc;

/// `model(ram(1GiB), optane-900p)`.
pub const KIND: Kind = Kind {
    name: "model",
    contract: Contract::Device,
    summary: "behaves like another device, by a profile of it",
    keys: &[
        Key::required(
            "on",
            ValueKind::Device,
            "the device that holds the data, faster than what is modelled",
        )
        .positional(),
        Key::required("profile", ValueKind::Text, "the name of the profile, such as optane-900p or wd43purz")
            .positional(),
        Key::optional(
            "profiles",
            ValueKind::Path,
            "a TOML file of profiles; without it, those that are known",
        ),
        Key::optional(
            "seed",
            ValueKind::Integer { min: 0, max: u64::MAX },
            "decides what is left to chance; without it a new one",
        ),
    ],
    messages: Message::FORMS,
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

/// The profile that the keys name.
fn profile(arguments: &Arguments) -> Result<(String, Profile)> {
    let name = arguments.text("profile")?;
    let (mut profiles, place) = match arguments.optional_path("profiles")? {
        None => (profile::known()?, "what is known".to_owned()),
        Some(path) => {
            let place = path.display().to_string();
            let text = std::fs::read_to_string(&path)
                .map_err(|error| arguments.refuse("profiles", format!("{place}: {error}")))?;
            let profiles = profile::parse(&text)
                .map_err(|error| arguments.refuse("profiles", format!("{place}: {}", error.detail())))?;
            (profiles, place)
        }
    };
    match profiles.remove(&name) {
        Some(profile) => Ok((name, profile)),
        None => {
            let known = profiles.keys().cloned().collect::<Vec<_>>().join(", ");
            let text = format!("profile \"{name}\": {place} has only {known}");
            Err(arguments.refuse("profile", text))
        }
    }
}
