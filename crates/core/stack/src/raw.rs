//! Result of parsing either form of a stack: sections, keys and values as written, each with its position,
//! before their meaning is resolved.

use crate::contract::Contract;
use crate::problem::shown;
use std::ops::Range;

/// Range of bytes in the text.
pub type Span = Range<usize>;

/// A value and its position.
#[derive(Debug, Clone)]
pub struct At<T> {
    /// The value.
    pub value: T,
    /// Position in the text.
    pub span: Span,
}

impl<T> At<T> {
    /// Value at a position.
    pub fn new(value: T, span: Span) -> Self {
        At { value, span }
    }
}

/// A whole stack.
#[derive(Debug, Default)]
pub(crate) struct RawStack {
    /// Settings of the stack itself.
    pub settings: Vec<RawSetting>,
    /// Sections in the order of the text; from the bottom up for the one-line form.
    pub sections: Vec<RawSection>,
}

/// One part.
#[derive(Debug)]
pub(crate) struct RawSection {
    /// Contract of the section's header; `None` in the one-line form, where the kind determines it.
    pub contract: Option<Contract>,
    pub name: At<String>,
    /// `None` if the key `kind` is missing.
    pub kind: Option<At<RawValue>>,
    pub settings: Vec<RawSetting>,
}

/// A key and its value.
#[derive(Debug, Clone)]
pub struct RawSetting {
    /// The key.
    pub key: At<String>,
    /// The value.
    pub value: At<RawValue>,
}

/// A value whose type isn't checked yet.
#[derive(Debug, Clone)]
pub enum RawValue {
    /// A bare word of the one-line form, whose meaning depends on its key.
    Word(String),
    /// A quoted text.
    Text(String),
    /// A whole number and its text; `None` if it is negative or larger than 64 bits.
    Integer(Option<u64>, String),
    /// A number with a point or an exponent, and its text.
    Float(f64, String),
    /// True or false.
    Bool(bool),
    /// Values in brackets.
    List(Vec<At<RawValue>>),
    /// Keys and their values, in the order of the text.
    Table(Vec<RawSetting>),
    /// Generated name of a part that is inline in the one-line form.
    Child(String),
    /// Description of a value that no key accepts.
    Other(&'static str),
}

impl RawValue {
    /// Describes the value, for a message.
    pub fn describe(&self) -> String {
        match self {
            RawValue::Text(text) => format!("the text \"{}\"", shown(text)),
            RawValue::Word(text) | RawValue::Integer(_, text) | RawValue::Float(_, text) => shown(text),
            RawValue::Bool(value) => value.to_string(),
            RawValue::List(_) => "a list".to_owned(),
            RawValue::Table(_) => "a table".to_owned(),
            RawValue::Child(_) => "a part".to_owned(),
            RawValue::Other(what) => (*what).to_owned(),
        }
    }
}
