//! Declaration of a key of a kind: its name, the type of its values, its default.

use crate::contract::Contract;
use crate::warning::DEFAULT_LEVELS;
use std::fmt;

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
    /// Percentages from 1 to 100 as one text or a list, in any order, or `never`: `"80%, 90%"`, `90`,
    /// `[80, 90]`.
    Percentages,
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
            ValueKind::Percentages => {
                formatter.write_str("percentages from 1% to 100% such as \"80%, 90%\", or \"never\"")
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

/// Key `warn_at` of every kind whose parts have a [`Fullness`](block::Fullness).
pub const WARN_AT: Key = Key::optional(
    "warn_at",
    ValueKind::Percentages,
    "levels at which its server warns once, in percent of the limit: see fullness in its status; never: no warning",
)
.or(DEFAULT_LEVELS)
.known_as(&["low_water_mark", "space_warning"]);

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
    /// order of [`Kind::keys`](crate::Kind::keys); a list takes all remaining values, so it must be the last
    /// positional key.
    pub positional: bool,
    /// Default value, in the one-line form. With `None`, the kind's code decides, through the getters of
    /// [`Arguments`](crate::Arguments) that begin with `optional_`.
    pub default: Option<&'static str>,
    /// Whether the kind is built even if parts that this key names can't be: it gets their errors instead
    /// ([`devices_or_errors`](crate::Arguments::devices_or_errors)). Has no effect when the kind is
    /// formatted.
    pub may_be_missing: bool,
    /// Whether the parts that this key names have the contents of earlier openings: unless the kind is
    /// formatted, a missing one isn't created empty
    /// ([`Arguments::must_exist`](crate::Arguments::must_exist)).
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

    /// Creates the key `timeout` with this default, read by
    /// [`Arguments::time_limit`](crate::Arguments::time_limit).
    pub const fn time_limit(help: &'static str, default: &'static str) -> Self {
        Key::optional("timeout", ValueKind::Duration, help).or(default)
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
