//! What both forms of a stack are read into: sections, keys and values as they were written, each with its place,
//! before anything is known about what they mean.

use crate::kind::Contract;
use crate::problem::shown;
use std::ops::Range;

/// Bytes of the text.
pub type Span = Range<usize>;

/// A thing and its place.
#[derive(Debug, Clone)]
pub struct At<T> {
    /// The thing.
    pub value: T,
    /// Its place.
    pub span: Span,
}

impl<T> At<T> {
    /// A thing at its place.
    pub fn new(value: T, span: Span) -> Self {
        At { value, span }
    }
}

/// A whole stack.
#[derive(Debug, Default)]
pub(crate) struct RawStack {
    /// The settings of the stack itself.
    pub settings: Vec<RawSetting>,
    /// In the order of the text, or for the one-line form from the bottom up.
    pub sections: Vec<RawSection>,
}

/// One part.
#[derive(Debug)]
pub(crate) struct RawSection {
    /// Which section it stands in; none in the one-line form, where the kind tells.
    pub contract: Option<Contract>,
    pub name: At<String>,
    /// None where the key `kind` is missing.
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
    /// A bare word of the one-line form: its key decides what it is.
    Word(String),
    /// A quoted text.
    Text(String),
    /// A whole number and how it was written; `None` if it is negative or larger than 64 bits.
    Integer(Option<u64>, String),
    /// A number with a point or an exponent, and how it was written.
    Float(f64, String),
    /// True or false.
    Bool(bool),
    /// Values in brackets.
    List(Vec<At<RawValue>>),
    /// Keys and their values, in the order of the text.
    Table(Vec<RawSetting>),
    /// The name of a part that the one-line form has right there.
    Child(String),
    /// Something that no key takes, in words.
    Other(&'static str),
}

impl RawValue {
    /// The value in words, for a message.
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
