//! Messages to running parts: [`messages!`](crate::messages) declares the enum of a kind's messages and their
//! text forms, [`Message::parse`] parses a text, [`Tell`] executes a message.

use crate::kind::{Form, Kind};
use crate::problem::shown;
use crate::units::parse_size;
use block::{Call, Error, Result};
use std::fmt::Display;
use std::str::FromStr;

/// The messages of a kind, implemented by [`messages!`](crate::messages).
pub trait Message: Sized {
    /// Forms of the message's text.
    const FORMS: &'static [Form];

    /// Parses a message to a part of this kind.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the text matches no form, [`Error::Invalid`] if a value doesn't parse.
    fn parse(kind: &Kind, text: &str) -> Result<Self>;
}

/// A part that accepts messages.
pub trait Tell {
    /// Messages of the part's kind.
    type Message: Message;

    /// Executes a message; returns the answer as [`block::Part::message`] does.
    fn tell(&self, message: Self::Message) -> Call<'_, Result<String>>;

    /// Parses a text as a message to this kind and executes it: the body of [`block::Part::message`].
    fn tell_text<'a>(&'a self, kind: &'static Kind, text: &'a str) -> Call<'a, Result<String>> {
        match Self::Message::parse(kind, text) {
            Ok(message) => self.tell(message),
            Err(error) => Call::ready(Err(error)),
        }
    }
}

/// Cursor over the words of a message.
#[derive(Debug, Clone)]
pub struct Words<'a> {
    kind: &'a Kind,
    text: &'a str,
    left: std::str::SplitWhitespace<'a>,
}

impl<'a> Words<'a> {
    /// All words of a message to a part of this kind.
    pub fn new(kind: &'a Kind, text: &'a str) -> Self {
        Words { kind, text, left: text.split_whitespace() }
    }

    /// Returns a cursor after the fixed words of `form`; `None` if the message doesn't begin with them.
    pub fn values(&self, form: &str) -> Option<Self> {
        let mut values = self.clone();
        let fixed = |word: &&str| word.starts_with(|letter: char| letter.is_ascii_lowercase());
        form.split(' ').take_while(fixed).all(|word| values.left.next() == Some(word)).then_some(values)
    }

    /// Whether all words have been read.
    pub fn is_empty(&self) -> bool {
        self.left.clone().next().is_none()
    }

    /// Parses the next word with `read`, which returns `None` if the word is invalid. `expected` is for the
    /// error.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if no word is left, [`Error::Invalid`] if `read` returns `None`.
    pub fn read<T>(&mut self, expected: impl Display, read: impl FnOnce(&str) -> Option<T>) -> Result<T> {
        let word = self.left.next().ok_or_else(|| self.unknown())?;
        read(word).ok_or_else(|| {
            let (text, word) = (shown(self.text), shown(word));
            Error::invalid(format!("message \"{text}\": \"{word}\": expected {expected}"))
        })
    }

    /// Returns the error for a message that has none of the kind's forms.
    pub fn unknown(&self) -> Error {
        let forms: Vec<_> = self.kind.messages.iter().map(|form| format!("\"{}\"", form.words)).collect();
        let (text, kind, forms) = (shown(self.text), self.kind.name, forms.join(", "));
        Error::unsupported(format!("message \"{text}\": unknown to {kind}; expected one of {forms}"))
    }
}

/// A value in a message.
pub trait FromWords: Sized {
    /// Parses the words of one value.
    ///
    /// # Errors
    /// As [`Words::read`].
    fn from_words(words: &mut Words<'_>) -> Result<Self>;
}

impl FromWords for String {
    fn from_words(words: &mut Words<'_>) -> Result<Self> {
        words.read("a word", |word| Some(word.to_owned()))
    }
}

impl FromWords for u32 {
    fn from_words(words: &mut Words<'_>) -> Result<Self> {
        words.read("a whole number below 2^32", |word| u32::from_str(word).ok())
    }
}

impl FromWords for u64 {
    fn from_words(words: &mut Words<'_>) -> Result<Self> {
        words.read("a whole number below 2^64", |word| u64::from_str(word).ok())
    }
}

/// A size in bytes, in the syntax of a stack's keys: `4096`, `4GiB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size(pub u64);

impl FromWords for Size {
    fn from_words(words: &mut Words<'_>) -> Result<Self> {
        words.read("a size, such as 4096 or 4GiB", |word| parse_size(word).ok().map(Size))
    }
}

impl<T: FromWords> FromWords for Option<T> {
    fn from_words(words: &mut Words<'_>) -> Result<Self> {
        (!words.is_empty()).then(|| T::from_words(words)).transpose()
    }
}

/// One value or more, up to the end of the message.
impl<T: FromWords> FromWords for Vec<T> {
    fn from_words(words: &mut Words<'_>) -> Result<Self> {
        let mut values = vec![T::from_words(words)?];
        while !words.is_empty() {
            values.push(T::from_words(words)?);
        }
        Ok(values)
    }
}

/// Declares an enum of messages and implements [`Message`] for it. Each line is
/// `"form" => Variant(types of the values), "effect";`.
#[macro_export]
macro_rules! messages {
    ($(#[$meta:meta])* $name:ident; $($form:literal => $variant:ident $(($($type:ty),+))?, $does:literal;)+) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum $name {
            $(#[doc = concat!("`", $form, "`: ", $does, ".")] $variant $(($($type),+))?,)+
        }

        impl $crate::Message for $name {
            const FORMS: &'static [$crate::Form] = &[$($crate::Form { words: $form, does: $does }),+];

            fn parse(kind: &$crate::Kind, text: &str) -> block::Result<Self> {
                let words = $crate::Words::new(kind, text);
                $(if let Some(mut _values) = words.values($form) {
                    let message = $name::$variant $(($(<$type as $crate::FromWords>::from_words(&mut _values)?),+))?;
                    if _values.is_empty() {
                        return Ok(message);
                    }
                })+
                Err(words.unknown())
            }
        }
    };
}
