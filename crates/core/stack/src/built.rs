//! An open stack: its parts by name, its doors, and its shutdown.

use crate::contract::{Built, BuiltPart, Contract, Door};
use crate::model::Part;
use crate::problem::nearest;
use crate::warning;
use block::{Call, DevicePart, Error, PartUse, Result, Status, ZonesPart};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

/// Result of [`Plan::build`](crate::Plan::build). It can be shared by all shards.
#[derive(Debug)]
pub struct BuiltStack {
    /// Parts in the order of building, each with its number in the stack.
    parts: Vec<(usize, BuiltPart)>,
    /// Numbers of the parts directly below each part.
    below: Vec<Vec<usize>>,
    /// Parts that couldn't be built and that their users work without.
    missing: Vec<(usize, MissingPart)>,
    /// Numbers of the parts below no device or zones.
    tops: Vec<usize>,
}

/// A part that couldn't be built.
#[derive(Debug)]
struct MissingPart {
    name: String,
    kind: &'static str,
    contract: Contract,
    error: Error,
}

impl BuiltStack {
    pub(crate) fn new(tops: Vec<usize>) -> Self {
        BuiltStack { parts: Vec::new(), below: Vec::new(), missing: Vec::new(), tops }
    }

    pub(crate) fn push(&mut self, number: usize, part: BuiltPart, below: Vec<usize>) {
        self.parts.push((number, part));
        self.below.push(below);
    }

    pub(crate) fn push_missing(&mut self, number: usize, part: &Part, error: Error) {
        let (name, kind, contract) = (part.name.clone(), part.kind.name, part.kind.contract);
        self.missing.push((number, MissingPart { name, kind, contract, error }));
    }

    /// Build error of a part; `None` if it isn't missing.
    pub(crate) fn error_of(&self, number: usize) -> Option<&Error> {
        self.missing.iter().find(|(other, _)| *other == number).map(|(_, part)| &part.error)
    }

    /// Names and errors of the parts that couldn't be built and that their users work without.
    pub fn missing(&self) -> impl Iterator<Item = (&str, &Error)> {
        self.missing.iter().map(|(_, part)| (part.name.as_str(), &part.error))
    }

    pub(crate) fn by_number(&self, number: usize) -> Option<&BuiltPart> {
        self.parts.iter().find(|(other, _)| *other == number).map(|(_, part)| part)
    }

    /// All parts, including doors, from the bottom up.
    pub fn parts(&self) -> impl Iterator<Item = &BuiltPart> {
        self.parts.iter().map(|(_, part)| part)
    }

    /// Doors, in the order of building.
    pub fn doors(&self) -> impl Iterator<Item = (&str, &Arc<dyn Door>)> {
        self.parts().filter_map(|part| match &part.built {
            Built::Door(door) => Some((part.name.as_str(), door)),
            _ => None,
        })
    }

    /// Returns the device with this name.
    ///
    /// # Errors
    /// [`Error::NotFound`] with the names of the existing devices.
    pub fn device(&self, name: &str) -> Result<Arc<dyn DevicePart>> {
        self.devices().find(|(other, _)| *other == name).map(|(_, device)| device.clone()).ok_or_else(|| {
            let known = self.devices().map(|(name, _)| name).collect::<Vec<_>>().join(", ");
            Error::not_found(format!("device \"{name}\": expected one of {known}"))
        })
    }

    /// Returns the zones with this name.
    ///
    /// # Errors
    /// [`Error::NotFound`] with the names of the existing zones.
    pub fn zones(&self, name: &str) -> Result<Arc<dyn ZonesPart>> {
        let zones = || {
            self.parts().filter_map(|part| match &part.built {
                Built::Zones(zones) => Some((part.name.as_str(), zones)),
                _ => None,
            })
        };
        zones().find(|(other, _)| *other == name).map(|(_, zones)| zones.clone()).ok_or_else(|| {
            let known = zones().map(|(name, _)| name).collect::<Vec<_>>().join(", ");
            Error::not_found(format!("zones \"{name}\": expected one of {known}"))
        })
    }

    /// Returns the part with an operator's name for it: the device or zones with this name, else the door
    /// with this name, else the only part of this kind.
    ///
    /// # Errors
    /// [`Error::NotFound`] with the existing parts, [`Error::Invalid`] if several parts are of this kind.
    pub fn part(&self, word: &str) -> Result<&BuiltPart> {
        let is_door = |part: &&BuiltPart| part.built.contract() == Contract::Door;
        let named = || self.parts().filter(|part| part.name == word);
        if let Some(part) = named().find(|part| !is_door(part)).or_else(|| named().next()) {
            return Ok(part);
        }
        if self.parts().any(|part| part.kind == word) {
            return self.part_of_kind(word);
        }
        if let Some((_, part)) = self.missing.iter().find(|(_, part)| part.name == word) {
            return Err(part.error.in_context(format!("part \"{word}\" is missing")));
        }
        let words = self.parts().flat_map(|part| [part.name.as_str(), part.kind]);
        let meant =
            nearest(word, words).map_or_else(String::new, |near| format!(" did you mean \"{near}\"?"));
        let known = self.list(|_| true);
        Err(Error::not_found(format!("there is no part \"{word}\":{meant} expected one of {known}")))
    }

    /// Returns the only part of this kind.
    ///
    /// # Errors
    /// [`Error::NotFound`] with the existing parts if there is none, [`Error::Invalid`] with the names if
    /// there are several.
    pub fn part_of_kind(&self, kind: &str) -> Result<&BuiltPart> {
        let mut found = self.parts().filter(|part| part.kind == kind);
        match (found.next(), found.count()) {
            (Some(part), 0) => Ok(part),
            (Some(_), more) => Err(Error::invalid(format!(
                "{} parts are of kind \"{kind}\": expected the name of one of them: {}",
                more + 1,
                self.list(|part| part.kind == kind)
            ))),
            (None, _) => Err(Error::not_found(format!(
                "this stack has no part of kind \"{kind}\": its parts are {}",
                self.list(|_| true)
            ))),
        }
    }

    /// Lists names and kinds, from the top down.
    fn list(&self, wanted: impl Fn(&BuiltPart) -> bool) -> String {
        let wanted = self.parts.iter().rev().map(|(_, part)| part).filter(|part| wanted(part));
        wanted.map(|part| format!("\"{}\" ({})", part.name, part.kind)).collect::<Vec<_>>().join(", ")
    }

    /// Returns the only device that isn't below another part, except doors.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is none or more than one, with their names.
    pub fn top(&self) -> Result<Arc<dyn DevicePart>> {
        let tops = self.tops.iter().filter_map(|number| self.by_number(*number));
        let devices = tops
            .filter_map(|part| match &part.built {
                Built::Device(device) => Some((part.name.as_str(), device)),
                _ => None,
            })
            .collect::<Vec<_>>();
        match devices.as_slice() {
            [(_, device)] => Ok(Arc::clone(device)),
            [] => Err(Error::invalid("this stack has no device on top, only zones: expected a device there")),
            several => {
                let names = several.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
                Err(Error::invalid(format!(
                    "this stack has {} devices on top ({names}): name one of them",
                    several.len()
                )))
            }
        }
    }

    /// Returns the status of every part: an object with `devices`, `zones` and `doors`, each an object by
    /// name; `kind` is part of each status, and `fullness` of those with a limited resource. A missing part
    /// has only `missing`, its error.
    pub fn status(&self) -> Call<'_, serde_json::Value> {
        Call::new(async move {
            // Inserted and not by `json!`, which would copy all of it.
            let mut status = Status::new();
            for (section, contract) in
                [("devices", Contract::Device), ("zones", Contract::Zones), ("doors", Contract::Door)]
            {
                status.insert(section.to_owned(), self.status_of(contract).await.into());
            }
            status.into()
        })
    }

    async fn status_of(&self, contract: Contract) -> Status {
        let of_contract = self.parts().filter(|part| part.built.contract() == contract);
        let mut all: Status = join_all(of_contract.map(|part| Call::new(status_of_part(part)))).await;
        for (_, part) in self.missing.iter().filter(|(_, part)| part.contract == contract) {
            let status = serde_json::json!({"kind": part.kind, "missing": part.error.to_string()});
            all.insert(part.name.clone(), status);
        }
        all
    }

    /// Starts every door.
    ///
    /// # Errors
    /// The first error of a door, with its name. Doors that were started before it have been stopped.
    pub fn start(&self) -> Call<'_, Result<()>> {
        Call::new(async move {
            for (number, (name, door)) in self.doors().enumerate() {
                if let Err(error) = door.start().await {
                    for (_, started) in self.doors().take(number) {
                        let _ = started.stop().await;
                    }
                    return Err(error.in_context(format!("door \"{name}\"")));
                }
            }
            Ok(())
        })
    }

    /// Stops the doors, then closes every part from the top down, even if one of them fails. The caller has
    /// dropped the handles that it opened. An error of a part that isn't needed by any part above it
    /// ([`block::Part::use_of`]) is only logged, and a part that doesn't answer its user isn't closed.
    ///
    /// There is no time limit, as for [`block::Part::close`]: `runtime::timeout` around this call gives one,
    /// after which the process can only end without its storage.
    ///
    /// # Errors
    /// The first error, with the name of the part.
    pub fn close(&self) -> Call<'_, Result<()>> {
        Call::new(async move {
            let mut outcome = Ok(());
            for (name, door) in self.doors() {
                let stopped = door.stop().await;
                outcome =
                    outcome.and(stopped.map_err(|error| error.in_context(format!("stopping \"{name}\""))));
            }
            let mut uses = vec![PartUse::Needed; self.parts.len()];
            for (index, (number, part)) in self.parts.iter().enumerate().rev() {
                uses[index] = self.use_of(*number, part, &uses);
                if uses[index] == PartUse::Stalled {
                    tracing::warn!("{} \"{}\" doesn't answer; it isn't closed", part.kind, part.name);
                    continue;
                }
                let closed = part.built.part().close().await;
                let named = closed
                    .map_err(|error| error.in_context(format!("closing {} \"{}\"", part.kind, part.name)));
                match named {
                    Err(error) if uses[index] == PartUse::Unneeded => {
                        tracing::warn!("{error}; the parts above it do without it");
                    }
                    named => outcome = outcome.and(named),
                }
            }
            outcome
        })
    }

    /// Use of a part by the parts directly above it, whose own `uses` are known: the largest of all.
    fn use_of(&self, number: usize, part: &BuiltPart, uses: &[PartUse]) -> PartUse {
        let users = self.below.iter().enumerate().filter(|(_, below)| below.contains(&number));
        let of = |(user, _): (usize, &Vec<usize>)| {
            self.parts[user].1.built.part().use_of(part.built.part()).min(uses[user])
        };
        users.map(of).max().unwrap_or(PartUse::Needed)
    }

    fn devices(&self) -> impl Iterator<Item = (&str, &Arc<dyn DevicePart>)> {
        self.parts().filter_map(|part| match &part.built {
            Built::Device(device) => Some((part.name.as_str(), device)),
            _ => None,
        })
    }
}

/// Returns the name of a part and its status.
async fn status_of_part(part: &BuiltPart) -> (String, serde_json::Value) {
    let mut status = Status::new();
    status.insert("kind".to_owned(), part.kind.into());
    status.extend(part.built.part().status().await);
    if let Some(fullness) = part.built.part().fullness().await {
        status.insert("fullness".to_owned(), warning::status(&fullness, part.warning.as_deref()));
    }
    (part.name.clone(), status.into())
}

/// Waits for all calls at the same time, so that messages to one shard are sent together. Collects
/// the results in the order of the calls.
async fn join_all<'a, T, C: FromIterator<T>>(calls: impl Iterator<Item = Call<'a, T>>) -> C {
    let mut waiting: Vec<_> = calls.map(|call| (Some(call), None)).collect();
    std::future::poll_fn(|context| {
        for (call, output) in waiting.iter_mut() {
            if let Some(running) = call
                && let Poll::Ready(value) = Pin::new(running).poll(context)
            {
                (*call, *output) = (None, Some(value));
            }
        }
        if waiting.iter().all(|(call, _)| call.is_none()) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    waiting.into_iter().filter_map(|(_, output)| output).collect()
}
