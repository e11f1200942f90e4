//! Declaration of a kind of part, and the list of all kinds.
//!
//! Each part's file exports one `pub const KIND: Kind`; the program lists them in a [`Registry`]. Planning a
//! stack uses only these declarations and opens nothing.

use crate::arguments::Arguments;
use crate::message::Form;
use crate::model::Stack;
use crate::value::Value;
use block::{BlockCount, BlockSize, Call, DeviceGeometry, DevicePart, Part, Result, ZoneGeometry, ZonesPart};
use std::fmt;
use std::sync::Arc;

/// Contract of a part for its users.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Contract {
    /// Blocks, read and written in place: a `[device.NAME]`.
    Device,
    /// Append-only zones: a `[zones.NAME]`.
    Zones,
    /// Access to the stack for other programs; no part is above it: a `[door.NAME]`.
    Door,
}

impl Contract {
    /// All contracts, in the order of a stack file.
    pub const ALL: [Contract; 3] = [Contract::Device, Contract::Zones, Contract::Door];

    /// First half of a section's name in TOML: `device`, `zones`, `door`.
    pub fn section(self) -> &'static str {
        match self {
            Contract::Device => "device",
            Contract::Zones => "zones",
            Contract::Door => "door",
        }
    }

    /// Noun for a sentence: `a device`, `zones`, `a door`.
    pub fn noun(self) -> &'static str {
        match self {
            Contract::Device => "a device",
            Contract::Zones => "zones",
            Contract::Door => "a door",
        }
    }
}

impl fmt::Display for Contract {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.section())
    }
}

/// Type of a key's values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ValueKind {
    /// Bytes: `4096`, `"64KiB"`, `"4GiB"`.
    Size,
    /// Whole number in a range that includes both ends.
    Integer {
        /// Smallest value.
        min: u64,
        /// Largest value.
        max: u64,
    },
    /// Number in a range that includes both ends; never infinite or NaN.
    Float {
        /// Smallest value.
        min: f64,
        /// Largest value.
        max: f64,
    },
    /// `true` or `false`.
    Bool,
    /// Any text.
    Text,
    /// A path; relative ones are resolved against the folder of the stack file.
    Path,
    /// A span of time: `"250us"`, `"10ms"`, `"1s"`, `"2m"`.
    Duration,
    /// A span of time, or a count from 1: `"10m"`, `1000000`.
    DurationOrCount,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// The name of a device of this stack.
    Device,
    /// The name of zones of this stack.
    Zones,
    /// The name of a device or of zones of this stack.
    DeviceOrZones,
    /// The names of devices of this stack, in order.
    Devices,
    /// A list of texts.
    Texts,
}

impl ValueKind {
    /// Contracts of the parts that a value of this key may name; empty for keys that don't name parts.
    pub fn children(&self) -> &'static [Contract] {
        match self {
            ValueKind::Device | ValueKind::Devices => &[Contract::Device],
            ValueKind::Zones => &[Contract::Zones],
            ValueKind::DeviceOrZones => &[Contract::Device, Contract::Zones],
            _ => &[],
        }
    }

    /// Whether the key names parts.
    pub fn names_parts(&self) -> bool {
        !self.children().is_empty()
    }

    /// Whether the key accepts a list.
    pub fn is_list(&self) -> bool {
        matches!(self, ValueKind::Devices | ValueKind::Texts)
    }
}

/// Formats the text after the word "expected" in errors.
impl fmt::Display for ValueKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ValueKind::Size => formatter.write_str("a size such as 4096, \"64KiB\" or \"4GiB\""),
            ValueKind::Integer { min, max } => write!(formatter, "a whole number from {min} to {max}"),
            ValueKind::Float { min, max } => write!(formatter, "a number from {min} to {max}"),
            ValueKind::Bool => formatter.write_str("true or false"),
            ValueKind::Text => formatter.write_str("a text"),
            ValueKind::Path => formatter.write_str("a path"),
            ValueKind::Duration => formatter.write_str("a duration such as \"250us\", \"10ms\" or \"1s\""),
            ValueKind::DurationOrCount => {
                formatter.write_str("a duration such as \"10ms\" or \"10m\", or a count such as 1000000")
            }
            ValueKind::Choice(words) => write!(formatter, "one of {}", words.join(", ")),
            ValueKind::Device => formatter.write_str("a device"),
            ValueKind::Zones => formatter.write_str("zones"),
            ValueKind::DeviceOrZones => formatter.write_str("a device or zones"),
            ValueKind::Devices => formatter.write_str("a list of devices"),
            ValueKind::Texts => formatter.write_str("a list of texts"),
        }
    }
}

/// One key of a kind.
#[derive(Debug, Clone, Copy)]
pub struct Key {
    /// Name before the `=`: lower-case letters, digits and `_`; not `kind`.
    pub name: &'static str,
    /// Type of the key's values.
    pub value: ValueKind,
    /// Whether a stack without this key is refused. A required list has at least one element.
    pub required: bool,
    /// Whether the one-line form may omit the key's name. Positional values fill the positional keys in the
    /// order of [`Kind::keys`]; a list takes all remaining values, so it must be the last positional key.
    pub positional: bool,
    /// Default value, in the one-line form. With `None`, the kind's code decides, through the getters of
    /// [`Arguments`] that begin with `optional_`.
    pub default: Option<&'static str>,
    /// Whether the kind is built even if parts that this key names can't be: it gets their errors instead
    /// ([`Arguments::devices_or_errors`]). Has no effect when the kind is formatted.
    pub may_be_missing: bool,
    /// Whether the parts that this key names have the contents of earlier openings: unless the kind is
    /// formatted, a missing one isn't created empty ([`Arguments::must_exist`]).
    pub holds_contents: bool,
    /// Another system with the same values, for users who know the key from there.
    pub as_in: Option<&'static str>,
    /// Names of the key in other systems; an error for such a name suggests this key.
    pub known_as: &'static [&'static str],
    /// Purpose in a few words, without a full stop.
    pub help: &'static str,
}

impl Key {
    /// Creates a key that must be given.
    pub const fn required(name: &'static str, value: ValueKind, help: &'static str) -> Self {
        Key { required: true, ..Key::optional(name, value, help) }
    }

    /// Creates a key that may be omitted.
    pub const fn optional(name: &'static str, value: ValueKind, help: &'static str) -> Self {
        Key {
            name,
            value,
            required: false,
            positional: false,
            default: None,
            may_be_missing: false,
            holds_contents: false,
            as_in: None,
            known_as: &[],
            help,
        }
    }

    /// Makes the key positional: the one-line form also accepts its values without its name.
    pub const fn positional(self) -> Self {
        Key { positional: true, ..self }
    }

    /// Lets the kind be built without the key's parts: see [`Key::may_be_missing`].
    pub const fn may_be_missing(self) -> Self {
        Key { may_be_missing: true, ..self }
    }

    /// Keeps missing parts from being created empty: see [`Key::holds_contents`].
    pub const fn holds_contents(self) -> Self {
        Key { holds_contents: true, ..self }
    }

    /// Names another system with the same values, for errors.
    pub const fn as_in(self, system: &'static str) -> Self {
        Key { as_in: Some(system), ..self }
    }

    /// Names the key in other systems.
    pub const fn known_as(self, names: &'static [&'static str]) -> Self {
        Key { known_as: names, ..self }
    }

    /// Sets the default value.
    pub const fn or(self, default: &'static str) -> Self {
        Key { default: Some(default), ..self }
    }
}

/// Properties of a part that are known before it is opened.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Shape {
    /// Capacity in bytes; `None` if it is known only after opening.
    pub bytes: Option<u64>,
    /// Block size in bytes; `None` if it is known only after opening, and for zones and doors.
    pub block_size: Option<u32>,
    /// Geometry of zones; `None` if it is known only after opening, and for devices and doors. Zones whose
    /// appends are durable at once may be declared durable on flush if only opening can show that.
    pub zones: Option<ZoneGeometry>,
}

impl Shape {
    /// Creates a shape with known capacity and block size.
    pub const fn new(bytes: u64, block_size: u32) -> Self {
        Shape { bytes: Some(bytes), block_size: Some(block_size), zones: None }
    }

    /// Creates the shape of zones with this geometry.
    pub fn of_zones(geometry: ZoneGeometry) -> Self {
        Shape { bytes: Some(geometry.capacity()), block_size: None, zones: Some(geometry) }
    }

    /// Returns the geometry of a device of this shape, to plan a part on it: writable, with a volatile cache,
    /// with writes of one block that aren't torn. `None` if capacity or block size are known only after
    /// opening.
    ///
    /// # Errors
    /// [`Error::Invalid`](block::Error::Invalid) for a block size out of range.
    pub fn device(&self) -> Result<Option<DeviceGeometry>> {
        let (Some(bytes), Some(block_size)) = (self.bytes, self.block_size) else { return Ok(None) };
        let size = BlockSize::new(block_size.into())?;
        Ok(Some(DeviceGeometry {
            block_size: size,
            blocks: BlockCount(bytes >> size.shift()),
            atomic_write: block_size,
            volatile_cache: true,
            read_only: false,
        }))
    }
}

/// A kind of part: its name in a stack, its keys, and its construction.
#[derive(Clone, Copy)]
pub struct Kind {
    /// Name after `kind =`: lower-case letters, digits, `_` and `-`.
    pub name: &'static str,
    /// Contract of the kind's parts for their users.
    pub contract: Contract,
    /// Purpose in a few words.
    pub summary: &'static str,
    /// Keys, in the order of display.
    pub keys: &'static [Key],
    /// Messages to the kind's parts ([`Part::message`]); empty for none.
    pub messages: &'static [Form],
    /// Whether several parts may use one part of this kind. Doors may always share a device with each other.
    pub shareable: bool,
    /// One-line stack with a part of this kind, for the help.
    pub example: &'static str,
    /// Returns the shape, or an error if a value doesn't fit. Called from the bottom up, with the children's
    /// shapes, before any part of the stack is opened. May inspect files (`stat`), but doesn't open or write
    /// them. Files that don't exist yet are left to `build`. [`Arguments::refuse`] gives the error the
    /// position of a key.
    pub plan: fn(&Arguments) -> Result<Shape>,
    /// Builds the part; its children are built.
    pub build: fn(Arguments) -> Call<'static, Result<Built>>,
}

impl Kind {
    /// Returns the declaration of the key with this name.
    pub fn key(&self, name: &str) -> Option<&'static Key> {
        self.keys.iter().find(|key| key.name == name)
    }

    /// Names of all keys, separated by commas.
    pub fn key_list(&self) -> String {
        self.keys.iter().map(|key| key.name).collect::<Vec<_>>().join(", ")
    }
}

impl fmt::Debug for Kind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Kind({} {})", self.contract, self.name)
    }
}

/// A door: a part that gives other programs access.
pub trait Door: Part {
    /// Starts serving; returns once clients can connect.
    fn start(&self) -> Call<'_, Result<()>>;

    /// Stops serving: accepts no new clients, finishes the current ones, drops the handles. Does nothing if
    /// the door isn't serving.
    fn stop(&self) -> Call<'_, Result<()>>;

    /// Addresses for clients, in their syntax (`nbd+unix:///vol?socket=vol.sock`), one per export.
    fn addresses(&self) -> Vec<String>;

    /// Informs the door of devices that may have grown. Called after each message that a part of the stack
    /// has executed, on any shard; doesn't wait.
    fn refresh(&self) {}

    /// Whether the door is a mount: without its server every access to it would fail.
    fn is_mount(&self) -> bool {
        false
    }

    /// Whether the door's end waits until its storage has space.
    fn is_waiting_for_space(&self) -> bool {
        false
    }

    /// Removes the mount without its storage: requests of its users fail. For a server that ends although
    /// [`stop`](Self::stop) or closing hasn't returned.
    ///
    /// # Errors
    /// Errors of the kernel.
    fn abort(&self) -> Call<'_, Result<()>> {
        Call::ready(Ok(()))
    }

    /// Waits until the door is ended otherwise than by [`stop`](Self::stop), as umount(8) does with a mount.
    /// Never returns for a door that can't be ended otherwise.
    ///
    /// # Errors
    /// The reason for any other end of a mount.
    fn ended(&self) -> Call<'_, Result<()>> {
        Call::new(std::future::pending())
    }
}

/// Result of [`Kind::build`], of the contract that the kind declares.
#[derive(Clone)]
pub enum Built {
    /// A device.
    Device(Arc<dyn DevicePart>),
    /// Zones.
    Zones(Arc<dyn ZonesPart>),
    /// A door, not started yet.
    Door(Arc<dyn Door>),
}

impl Built {
    /// Contract of the part.
    pub fn contract(&self) -> Contract {
        match self {
            Built::Device(_) => Contract::Device,
            Built::Zones(_) => Contract::Zones,
            Built::Door(_) => Contract::Door,
        }
    }

    /// The part, through the trait of all parts.
    pub fn part(&self) -> &dyn Part {
        match self {
            Built::Device(part) => part.as_ref(),
            Built::Zones(part) => part.as_ref(),
            Built::Door(door) => door.as_ref(),
        }
    }
}

impl fmt::Debug for Built {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Built({} {})", self.contract(), self.part().kind())
    }
}

/// All kinds of a program.
#[derive(Debug, Clone, Default)]
pub struct Registry {
    /// Kinds, in the order of listing.
    pub kinds: Vec<&'static Kind>,
}

impl Registry {
    /// Registry of these kinds.
    pub fn new(kinds: Vec<&'static Kind>) -> Self {
        Registry { kinds }
    }

    /// Returns the kind with this name.
    pub fn kind(&self, name: &str) -> Option<&'static Kind> {
        self.kinds.iter().copied().find(|kind| kind.name == name)
    }

    /// Checks the declarations: names are words and unique, defaults have the type of their key, a positional
    /// list is the last positional key, examples are stacks with a part of that kind. A program has one test
    /// that calls this.
    ///
    /// # Errors
    /// The first invalid declaration.
    pub fn verify(&self) -> Result<(), String> {
        for (number, kind) in self.kinds.iter().enumerate() {
            if self.kinds[..number].iter().any(|other| other.name == kind.name) {
                return Err(format!("kind \"{}\" is listed twice", kind.name));
            }
            let allowed = |letter: char| matches!(letter, 'a'..='z' | '0'..='9' | '_' | '-');
            if kind.name.is_empty() || !kind.name.chars().all(allowed) {
                return Err(format!("kind \"{}\": expected lower-case letters, digits, _ and -", kind.name));
            }
            verify_keys(kind)?;
            let example = Stack::from_line("example", kind.example, self)
                .map_err(|problems| format!("kind \"{}\": {problems}", kind.name))?;
            if !example.parts().any(|part| part.kind().name == kind.name) {
                return Err(format!("kind \"{}\": its example has no part of this kind", kind.name));
            }
        }
        Ok(())
    }
}

fn verify_keys(kind: &Kind) -> Result<(), String> {
    let mut list_before = false;
    for (number, key) in kind.keys.iter().enumerate() {
        let of = format!("key \"{}\" of kind \"{}\"", key.name, kind.name);
        let allowed = |letter: char| matches!(letter, 'a'..='z' | '0'..='9' | '_');
        if key.name.is_empty() || key.name == "kind" || !key.name.chars().all(allowed) {
            return Err(format!("{of}: expected lower-case letters, digits and _, and not \"kind\""));
        }
        if kind.keys[..number].iter().any(|other| other.name == key.name) {
            return Err(format!("{of} is declared twice"));
        }
        if key.positional && list_before {
            return Err(format!(
                "{of} is positional after a positional list, which takes all remaining values"
            ));
        }
        list_before |= key.positional && key.value.is_list();
        if key.may_be_missing && key.value != ValueKind::Devices {
            return Err(format!("{of} names no list of devices, so it can't do without one"));
        }
        if key.holds_contents && !key.value.names_parts() {
            return Err(format!("{of} names no parts, so none has contents"));
        }
        let Some(default) = key.default else { continue };
        if key.required || key.value.names_parts() || key.value.is_list() {
            return Err(format!("{of} can't have a default: it is required, a part or a list"));
        }
        Value::from_word(key, default).map_err(|problem| format!("{of}: its default {problem}"))?;
    }
    Ok(())
}
