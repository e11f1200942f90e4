//! What both forms of a stack are read into: sections, keys and values as they were written, each with its place,
//! before anything is known about what they mean.

use crate::kind::Contract;
use std::ops::Range;

/// Bytes of the text.
pub(crate) type Span = Range<usize>;

/// A thing and its place.
#[derive(Debug, Clone)]
pub(crate) struct At<T> {
    pub value: T,
    pub span: Span,
}

impl<T> At<T> {
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
#[derive(Debug)]
pub(crate) struct RawSetting {
    pub key: At<String>,
    pub value: At<RawValue>,
}

/// A value whose type isn't checked yet.
#[derive(Debug, Clone)]
pub(crate) enum RawValue {
    /// A bare word of the one-line form: its key decides what it is.
    Word(String),
    /// A quoted text.
    Text(String),
    /// A whole number, as it was written; none if it is larger than 64 bits or negative.
    Integer(Option<u64>, String),
    /// A number with a point or an exponent.
    Float(f64),
    Bool(bool),
    List(Vec<At<RawValue>>),
    /// The name of a part that the one-line form has right there.
    Child(String),
    /// Something that no key takes, in words.
    Other(&'static str),
}
