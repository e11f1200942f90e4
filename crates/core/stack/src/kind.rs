//! Declaration of a kind of part, and the list of all kinds.
//!
//! Each part's file exports one `pub const KIND: Kind`; the program lists them in a [`Registry`]. Planning a
//! stack uses only these declarations and opens nothing.

use crate::arguments::Arguments;
use crate::contract::{Built, Contract};
use crate::key::{Key, WARN_AT};
use crate::metric::Metric;
use crate::shape::Shape;
use block::{Call, Result};
use std::fmt;

/// Syntax and help of one message of a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Form {
    /// Syntax, such as `snapshot diff NAME [OTHER]`. A word in capital letters is a value; `[…]` is optional;
    /// a word that ends in `…` may be repeated. Words in lower case come first.
    pub words: &'static str,
    /// Effect, as an imperative phrase without a full stop.
    pub does: &'static str,
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
    /// Messages to the kind's parts ([`block::Part::message`]); empty for none.
    pub messages: &'static [Form],
    /// Numbers of the status for monitoring systems, in groups that kinds may share; empty for none.
    pub metrics: &'static [&'static [Metric]],
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

    /// Returns the declarations of all metrics, with that of the fullness of parts that warn about it.
    pub fn all_metrics(&self) -> impl Iterator<Item = &'static Metric> + Clone + use<> {
        let warns = self.keys.iter().any(|key| key.name == WARN_AT.name);
        let fullness = warns.then_some(&USED_RATIO);
        self.metrics.iter().copied().flatten().chain(fullness)
    }

    /// Names of all keys, separated by commas.
    pub fn key_list(&self) -> String {
        self.keys.iter().map(|key| key.name).collect::<Vec<_>>().join(", ")
    }
}

/// Fullness in the status of a stack ([`BuiltStack::status`](crate::BuiltStack::status)).
static USED_RATIO: Metric =
    Metric::gauge("fullness.percent", "used_ratio", "Used share of the limit that warnings are about")
        .times(0.01);

impl fmt::Debug for Kind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Kind({} {})", self.contract, self.name)
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
}
