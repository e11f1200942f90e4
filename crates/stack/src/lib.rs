//! Stacks from a TOML file or one line: parsed, checked, drawn and built.
//!
//! A stack says which parts there are, of which [`Kind`], and what stands on what. This crate promises:
//!
//! - Both forms say the same and convert into each other: [`Stack::from_toml`], [`Stack::from_line`],
//!   [`Stack::to_toml`], [`Stack::to_line`]. Only made-up names and comments don't survive the trip.
//! - Whatever is wrong is said before anything is opened or written, all of it at once, each with file, line,
//!   column, what was found, what was expected and the nearest known word: [`Problems`].
//! - [`Stack::check`] gives a [`Plan`], whose sizes fit; [`Plan::build`] builds it from the bottom up, and
//!   [`BuiltStack::close`] takes it down from the top.
//!
//! What is left to others: what a kind does (each part's own file exports its [`Kind`]), which kinds there are
//! (the program gives a [`Registry`]), and running the calls (`runtime`).
//!
//! One concept per module: [`kind`] what a kind declares, [`arguments`] what it is given, [`model`] the parsed
//! stack, `toml_form` and `line_form` its two texts, `resolve` from text to meaning, `graph` the order of
//! building, [`plan`] sizes and building, `claims` the files that parts open, [`built`] what is running, `draw`
//! pictures, [`message`] what parts can be told, [`problem`] errors, [`units`] sizes and durations.

pub mod arguments;
pub mod built;
mod claims;
mod draw;
mod graph;
pub mod kind;
mod line_form;
mod line_syntax;
mod line_writer;
pub mod message;
pub mod model;
pub mod plan;
pub mod problem;
mod raw;
mod resolve;
mod toml_form;
pub mod units;
mod value;

pub use arguments::Arguments;
pub use built::{BuiltPart, BuiltStack};
pub use claims::{LockFile, LockedFile};
pub use kind::{Built, Contract, Door, Key, Kind, Registry, Shape, ValueKind};
pub use line_writer::quote;
pub use message::{Form, FromWords, Message, Tell, Words};
pub use model::{Part, Stack};
pub use plan::{Format, Plan};
pub use problem::{Collector, Problem, Problems, Source, did_you_mean, nearest};
pub use raw::{At, RawSetting, RawValue, Span};
pub use toml_form::document;
pub use units::{format_duration, format_size, parse_duration, parse_size};
pub use value::Value;
