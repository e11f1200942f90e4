//! A stack that was parsed and is consistent: every kind and key is known, every value has its type, every
//! name refers to a part, there are no cycles. [`Stack::check`] checks whether sizes fit.

use crate::graph::Reference;
use crate::kind::{Contract, Kind, Registry};
use crate::plan::{Format, Plan};
use crate::problem::{Collector, Problem, Problems, Source};
use crate::raw::Span;
use crate::value::Value;
use crate::{draw, line_form, line_writer, resolve, toml_form};
use block::Error;
use std::path::{Path, PathBuf};

/// Longest text of a stack, in bytes.
pub const MAX_TEXT: usize = 1 << 20;

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

    /// Parses a stack from TOML. `name` precedes line and column in problems, and is usually the path of the
    /// file. Relative paths are resolved against the working directory, unless
    /// [`with_base_directory`](Self::with_base_directory) sets another folder.
    ///
    /// # Errors
    /// All problems of the text.
    pub fn from_toml(name: &str, text: &str, registry: &Registry) -> Result<Stack, Problems> {
        read(name, text, registry, toml_form::read)
    }

    /// Parses a stack from its one-line form, as [`from_toml`](Self::from_toml) does from TOML.
    ///
    /// # Errors
    /// All problems of the text.
    pub fn from_line(name: &str, text: &str, registry: &Registry) -> Result<Stack, Problems> {
        read(name, text, registry, |source, problems| line_form::read(source, registry, problems))
    }

    /// Loads the stack of a command line's argument: a TOML file if there is one with this path or the
    /// argument ends in `.toml`, else the one-line form. Relative paths in a file are resolved against its
    /// folder.
    ///
    /// # Errors
    /// All problems of the text, or the error of reading the file.
    pub fn load(argument: &str, registry: &Registry) -> Result<Stack, Problems> {
        let path = Path::new(argument);
        if !argument.ends_with(".toml") && !path.is_file() {
            return Stack::from_line("stack", argument, registry);
        }
        let text = std::fs::read_to_string(path).map_err(|error| {
            let message = format!("can't read this stack file: {error}");
            Problems::from(Problem::without_place(argument, message))
        })?;
        let stack = Stack::from_toml(argument, &text, registry)?;
        Ok(stack.with_base_directory(path.parent().unwrap_or(Path::new(""))))
    }

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

    /// Returns the door with this name.
    pub fn door(&self, name: &str) -> Option<&Part> {
        self.parts.iter().find(|part| part.kind.contract == Contract::Door && part.name == name)
    }

    /// Writes the stack as TOML that parses to an equal stack. Comments are lost.
    pub fn to_toml(&self) -> String {
        toml_form::write(self)
    }

    /// Returns the part with this name, or the only part of this kind.
    pub fn part_or_kind(&self, word: &str) -> Option<&Part> {
        let mut of_kind = self.parts.iter().filter(|part| part.kind.name == word);
        let only = of_kind.next().filter(|_| of_kind.next().is_none());
        self.part(word).or(only)
    }

    /// Writes the stack as one line, which parses to the same stack with generated names.
    ///
    /// # Errors
    /// If two parts share a third, or there is more than one top or door: only trees can be one line.
    pub fn to_line(&self) -> Result<String, Problem> {
        line_writer::write(self)
    }

    /// Runs [`Kind::plan`] of every part from the bottom up, so that the parts of the resulting plan fit
    /// together. `format` names the parts to format; `true` selects all.
    ///
    /// # Errors
    /// All problems, each at its key or section.
    pub fn check(&self, format: impl Into<Format>) -> Result<Plan, Problems> {
        Plan::of(self.clone(), format.into())
    }

    /// Draws the stack as text.
    pub fn draw(&self) -> String {
        draw::draw(self, None)
    }

    /// Returns the stack as JSON: `shards`, `line` (null if there is no one-line form) and `parts`.
    pub fn to_json(&self) -> serde_json::Value {
        draw::to_json(self, None)
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

fn read(
    name: &str,
    text: &str,
    registry: &Registry,
    form: impl FnOnce(&Source, &mut Collector) -> crate::raw::RawStack,
) -> Result<Stack, Problems> {
    if text.len() > MAX_TEXT {
        let message = format!(
            "stack of {} bytes: expected at most {MAX_TEXT}; a file that holds data is a device of a stack, such as 'file({name})'",
            text.len()
        );
        return Err(Problem::without_place(name, message).into());
    }
    let source = Source::new(name, text);
    let mut problems = Collector::default();
    let raw = form(&source, &mut problems);
    resolve::resolve(source, raw, registry, problems)
}
