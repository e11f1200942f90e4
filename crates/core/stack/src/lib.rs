//! Stacks from a TOML file or one line: parsed, checked, drawn and built.
//!
//! A stack names its parts, the [`Kind`] of each, and the parts below each. This crate promises:
//!
//! - Both forms are equivalent and convert into each other: [`Stack::from_toml`], [`Stack::from_line`],
//!   [`Stack::to_toml`], [`Stack::to_line`]. Only generated names and comments are lost.
//! - All problems are reported together, before any file is opened or written, each with file, line, column,
//!   the found and the expected text and the nearest known word: [`Problems`].
//! - [`Stack::check`] returns a [`Plan`], whose sizes fit; [`Plan::build`] builds it from the bottom up, and
//!   [`BuiltStack::close`] closes it from the top down.
//!
//! Each part's own file exports its [`Kind`] and implements it, the program provides the list of kinds
//! ([`Registry`]), and `runtime` runs the calls.
//!
//! One concept per module, without import cycles: [`contract`] contracts and built parts, [`kind`], [`key`]
//! and [`shape`] the declaration of a kind, `verify` its check, [`arguments`] those of a part, [`model`] the
//! parsed stack, `read` its reading, `toml_form` and `line_form` its two texts, `resolve` from text to
//! meaning, `graph` the order of building, [`plan`] sizes and building, `claims` the files that
//! parts open, [`built`] the open stack, `draw` pictures, [`message`] messages to parts, [`problem`] errors,
//! [`secrets`] texts that these don't quote, [`password_file`] files with passwords, [`units`] sizes and
//! durations, [`warning`] levels of fullness.
#![doc = include_str!("../DESIGN.md")]

pub mod arguments;
pub mod built;
mod claims;
pub mod contract;
mod draw;
mod graph;
pub mod key;
pub mod kind;
mod line_form;
mod line_syntax;
mod line_writer;
pub mod message;
pub mod metric;
pub mod model;
pub mod password_file;
pub mod plan;
pub mod problem;
mod raw;
mod read;
mod resolve;
pub mod secrets;
pub mod shape;
mod toml_form;
pub mod units;
mod value;
mod verify;
pub mod warning;

pub use arguments::{Arguments, DurationOrCount};
pub use built::BuiltStack;
pub use claims::{LockFile, LockedFile};
pub use contract::{Built, BuiltPart, Contract, Door};
pub use key::{Key, ValueKind, WARN_AT};
pub use kind::{Form, Kind, Registry};
pub use line_writer::quote;
pub use message::{FromWords, Message, Size, Tell, Words};
pub use metric::{Metric, MetricType, Number};
pub use model::{Part, Stack};
pub use plan::{Format, Observe, Plan, User};
pub use problem::{Collector, Problem, Problems, Source, did_you_mean, nearest};
pub use raw::{At, RawSetting, RawValue, Span};
pub use read::read_file;
pub use shape::Shape;
pub use toml_form::document;
pub use units::{format_duration, format_size, parse_duration, parse_size};
pub use value::{Value, parse_percentages};
pub use warning::FullnessWarning;
