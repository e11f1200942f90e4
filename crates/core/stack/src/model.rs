//! A stack that was parsed and is consistent: every kind and key is known, every value has its type, every
//! name refers to a part, there are no cycles. [`Stack::check`] checks whether sizes fit.

use crate::contract::Contract;
use crate::graph::Reference;
use crate::kind::Kind;
use crate::problem::Source;
use crate::raw::Span;
use crate::value::Value;
use block::Error;
use std::path::{Path, PathBuf};

/// One section of a stack.
#[derive(Debug, Clone)]
pub struct Part {
    pub(crate) name: String,
    pub(crate) name_span: Span,
    pub(crate) kind: &'static Kind,
    /// Given values, in the order of the kind's keys.
    pub(crate) values: Vec<Given>,
    /// References to other parts, in the order of the kind's keys.
    pub(crate) references: Vec<Reference>,
}

/// A key that was given.
#[derive(Debug, Clone)]
pub(crate) struct Given {
    pub key: &'static str,
    pub key_span: Span,
    pub value: Value,
}

impl Part {
    /// Name of the part; doors have names of their own, so a door and a device may have the same one.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Kind of the part.
    pub fn kind(&self) -> &'static Kind {
        self.kind
    }

    /// Given keys with their values, in the order of the kind's keys.
    pub fn values(&self) -> impl Iterator<Item = (&'static str, &Value)> {
        self.values.iter().map(|given| (given.key, &given.value))
    }

    /// Value of a key; `None` if it wasn't given.
    pub fn value(&self, key: &str) -> Option<&Value> {
        self.values.iter().find(|given| given.key == key).map(|given| &given.value)
    }

    /// Whether no part is below this one.
    pub fn is_leaf(&self) -> bool {
        self.references.is_empty()
    }

    /// Position of a key, or else of the part's name.
    pub(crate) fn place_of(&self, key: Option<&str>) -> Span {
        let given = self.values.iter().find(|given| Some(given.key) == key);
        given.map_or_else(|| self.name_span.clone(), |given| given.key_span.clone())
    }
}

/// Two parts are equal if their contents are, at any positions in the text.
impl PartialEq for Part {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name && self.kind.name == other.kind.name && self.values().eq(other.values())
    }
}

/// Parts, their references, and the number of shards. Parsing a stack makes all checks for which its text
/// suffices.
#[derive(Debug, Clone)]
pub struct Stack {
    pub(crate) source: Source,
    /// Folder, absolute or relative to the working directory of the program.
    pub(crate) base_directory: PathBuf,
    pub(crate) shards: usize,
    pub(crate) parts: Vec<Part>,
    /// Numbers of the parts from the bottom up.
    pub(crate) order: Vec<usize>,
}

impl Stack {
    /// Most shards.
    pub const MAX_SHARDS: usize = 256;

    /// Sets the folder against which relative paths are resolved.
    #[must_use]
    pub fn with_base_directory(mut self, folder: &Path) -> Stack {
        self.base_directory = folder.to_owned();
        self
    }

    /// Makes a path of the stack's text absolute.
    ///
    /// # Errors
    /// [`block::Error::Io`] without a working directory.
    pub fn absolute(&self, path: &Path) -> block::Result<PathBuf> {
        let joined = self.base_directory.join(path);
        std::path::absolute(&joined)
            .map_err(|error| block::Error::from_io(&error, &joined.display().to_string()))
    }

    /// Sets the number of shards, from 1 to [`MAX_SHARDS`](Self::MAX_SHARDS).
    #[must_use]
    pub fn with_shards(mut self, shards: usize) -> Stack {
        self.shards = shards.clamp(1, Self::MAX_SHARDS);
        self
    }

    /// Gives a part another value of a key, of the key's type. A key that its kind doesn't have is left out.
    #[must_use]
    pub fn with_value(mut self, part: &str, key: &str, value: Value) -> Stack {
        let mut parts = self.parts.iter_mut().filter(|part| part.kind.contract != Contract::Door);
        let Some(part) = parts.find(|found| found.name == part) else { return self };
        let Some(key) = part.kind.key(key) else { return self };
        part.values.retain(|given| given.key != key.name);
        part.values.push(Given { key: key.name, key_span: part.name_span.clone(), value });
        let place = |given: &Given| part.kind.keys.iter().position(|key| key.name == given.key);
        part.values.sort_by_key(place);
        self
    }

    /// Text of the stack.
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// Number of shards that the stack runs on.
    pub fn shards(&self) -> usize {
        self.shards
    }

    /// All parts, including doors, in the order of the text; from the bottom up for the one-line form.
    pub fn parts(&self) -> impl Iterator<Item = &Part> {
        self.parts.iter()
    }

    /// Returns the device or zones with this name.
    pub fn part(&self, name: &str) -> Option<&Part> {
        self.parts.iter().find(|part| part.kind.contract != Contract::Door && part.name == name)
    }

    /// Names of the parts directly below a part of this stack, in the order of its kind's keys.
    pub fn below<'a>(&'a self, part: &'a Part) -> impl Iterator<Item = &'a str> {
        part.references.iter().map(|reference| self.parts[reference.part].name.as_str())
    }

    /// Returns the door with this name.
    pub fn door(&self, name: &str) -> Option<&Part> {
        self.parts.iter().find(|part| part.kind.contract == Contract::Door && part.name == name)
    }

    /// Returns the part with this name, or the only part of this kind.
    pub fn part_or_kind(&self, word: &str) -> Option<&Part> {
        let mut of_kind = self.parts.iter().filter(|part| part.kind.name == word);
        let only = of_kind.next().filter(|_| of_kind.next().is_none());
        self.part(word).or(only)
    }

    /// Numbers of the parts below no device or zones; doors don't count as users.
    pub(crate) fn tops(&self) -> Vec<usize> {
        let mut used = vec![false; self.parts.len()];
        for part in self.parts.iter().filter(|part| part.kind.contract != Contract::Door) {
            part.references.iter().for_each(|reference| used[reference.part] = true);
        }
        let is_top = |number: &usize| !used[*number] && self.parts[*number].kind.contract != Contract::Door;
        (0..self.parts.len()).filter(is_top).collect()
    }

    /// Returns the only device below no other device or zones; in a stack without such a device, the only
    /// zones.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there are none, or several.
    pub fn top(&self) -> Result<&Part, Error> {
        let of = |contract: Contract| {
            let tops = self.tops().into_iter().map(|number| &self.parts[number]);
            tops.filter(|part| part.kind.contract == contract).collect::<Vec<_>>()
        };
        let tops = Some(of(Contract::Device)).filter(|devices| !devices.is_empty());
        match tops.unwrap_or_else(|| of(Contract::Zones)).as_slice() {
            [top] => Ok(top),
            [] => Err(Error::invalid("this stack has no device and no zones on top; expected one")),
            several => {
                let names = several.iter().map(|part| part.name()).collect::<Vec<_>>().join(", ");
                let what = match several[0].kind.contract {
                    Contract::Zones => "several sets of zones",
                    _ => "several devices",
                };
                Err(Error::invalid(format!("this stack has {what} on top: {names}; expected one")))
            }
        }
    }
}

/// Two stacks are equal if they have the same shards and the same parts, in any order.
impl PartialEq for Stack {
    fn eq(&self, other: &Self) -> bool {
        let sorted = |stack: &'_ Self| {
            let mut parts = stack.parts.clone();
            parts.sort_by(|a, b| (a.kind.contract, &a.name).cmp(&(b.kind.contract, &b.name)));
            parts
        };
        self.shards == other.shards && sorted(self) == sorted(other)
    }
}
