//! Conversion of written values to the types of their keys, and back to text.

use crate::key::{Key, ValueKind};
use crate::problem::{meant, nearest, shown};
use crate::raw::{At, RawValue};
use crate::units::{format_duration, format_size, parse_duration, parse_size};
use std::time::Duration;

/// A value of the type that its key declares.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Bytes.
    Size(u64),
    /// A whole number.
    Integer(u64),
    /// A number.
    Float(f64),
    /// True or false.
    Bool(bool),
    /// A text.
    Text(String),
    /// A path, as written.
    Path(String),
    /// A span of time.
    Duration(Duration),
    /// Percentages, in ascending order; empty for `never`.
    Percentages(Vec<u8>),
    /// One of the words that the key accepts.
    Choice(&'static str),
    /// The name of a part.
    Part(String),
    /// The names of parts.
    Parts(Vec<String>),
    /// Texts.
    Texts(Vec<String>),
}

/// Problem of a value: the text after the key's name, and the word that was probably meant.
#[derive(Debug)]
pub(crate) struct Wrong {
    pub message: String,
    pub nearest: Option<&'static str>,
}

impl std::fmt::Display for Wrong {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.message)
    }
}

impl From<String> for Wrong {
    fn from(message: String) -> Self {
        Wrong { message, nearest: None }
    }
}

impl Value {
    /// Parses a bare word.
    pub(crate) fn from_word(key: &Key, word: &str) -> Result<Value, Wrong> {
        Value::from_raw(key, &RawValue::Word(word.to_owned()))
    }

    /// Converts a written value to the type of its key. Names aren't resolved here but in `resolve`.
    pub(crate) fn from_raw(key: &Key, raw: &RawValue) -> Result<Value, Wrong> {
        let mismatch = || {
            let whose = key.as_in.map(|system| format!(", as {system} takes")).unwrap_or_default();
            Wrong::from(format!("found {}, expected {}{whose}", raw.describe(), key.value))
        };
        let text = match raw {
            RawValue::Word(text) | RawValue::Text(text) => Some(text.as_str()),
            _ => None,
        };
        let word = match raw {
            RawValue::Word(word) => Some(word.as_str()),
            _ => None,
        };
        let whole = || match raw {
            RawValue::Integer(number, _) => *number,
            _ => word.and_then(|word| word.parse().ok()),
        };
        match key.value {
            ValueKind::Size => match (raw, text) {
                (RawValue::Integer(Some(bytes), _), _) => Ok(Value::Size(*bytes)),
                (_, Some(text)) => parse_size(text).map(Value::Size).map_err(|error| unit_error(&error)),
                _ => Err(mismatch()),
            },
            ValueKind::Duration => match (raw, text) {
                (RawValue::Integer(Some(0), _), _) => Ok(Value::Duration(Duration::ZERO)),
                (_, Some(text)) => {
                    parse_duration(text).map(Value::Duration).map_err(|error| unit_error(&error))
                }
                _ => Err(mismatch()),
            },
            ValueKind::DurationOrCount => match (whole(), text) {
                (Some(count), _) if count > 0 => Ok(Value::Integer(count)),
                (None, Some(text)) => {
                    parse_duration(text).map(Value::Duration).map_err(|error| unit_error(&error))
                }
                _ => Err(mismatch()),
            },
            ValueKind::Integer { min, max } => {
                let allowed = whole().filter(|number| (min..=max).contains(number));
                allowed.map(Value::Integer).ok_or_else(mismatch)
            }
            ValueKind::Float { min, max } => {
                let number = match raw {
                    RawValue::Integer(_, text) => text.parse().ok(),
                    RawValue::Float(number, _) => Some(*number),
                    _ => word.and_then(|word| word.parse::<f64>().ok()),
                };
                let allowed = number.filter(|number| number.is_finite() && (min..=max).contains(number));
                // Zero has two equal forms, of which only the positive one is used.
                allowed.map(|number| Value::Float(number + 0.0)).ok_or_else(mismatch)
            }
            ValueKind::Bool => match (raw, word) {
                (RawValue::Bool(value), _) => Ok(Value::Bool(*value)),
                (_, Some("true")) => Ok(Value::Bool(true)),
                (_, Some("false")) => Ok(Value::Bool(false)),
                _ => Err(mismatch()),
            },
            ValueKind::Text => text.map(|text| Value::Text(text.to_owned())).ok_or_else(mismatch),
            ValueKind::Path => match text {
                Some(text) if text.contains('\0') || text.is_empty() => {
                    Err(format!("found \"{}\", expected a path that isn't empty", shown(text)).into())
                }
                Some(text) => Ok(Value::Path(text.to_owned())),
                None => Err(mismatch()),
            },
            ValueKind::Percentages => percentages(raw).map(Value::Percentages).ok_or_else(mismatch),
            ValueKind::Choice(words) => {
                let Some(text) = text else { return Err(mismatch()) };
                let known = words.iter().find(|word| **word == text).copied();
                known.map(Value::Choice).ok_or_else(|| {
                    let nearest = nearest(text, words.iter().copied());
                    let message = format!(
                        "found \"{}\"{} It takes {}",
                        shown(text),
                        or_stop(nearest),
                        words.join(", ")
                    );
                    Wrong { message, nearest }
                })
            }
            ValueKind::Device | ValueKind::Zones | ValueKind::DeviceOrZones => {
                part_name(raw).map(Value::Part).ok_or_else(mismatch)
            }
            ValueKind::Devices => list(key, raw, part_name).map(Value::Parts),
            ValueKind::Texts => {
                let item = |raw: &RawValue| match raw {
                    RawValue::Word(text) | RawValue::Text(text) => Some(text.clone()),
                    _ => None,
                };
                list(key, raw, item).map(Value::Texts)
            }
        }
    }

    /// Names of parts in this value.
    pub fn children(&self) -> &[String] {
        match self {
            Value::Part(name) => std::slice::from_ref(name),
            Value::Parts(names) => names,
            _ => &[],
        }
    }

    /// Returns the value as text for operators; a list with commas.
    pub fn to_text(&self) -> String {
        match self {
            Value::Size(bytes) => format_size(*bytes),
            Value::Integer(number) => number.to_string(),
            Value::Float(number) => format!("{number:?}"),
            Value::Bool(value) => value.to_string(),
            Value::Text(text) | Value::Path(text) | Value::Part(text) => text.clone(),
            Value::Duration(duration) => format_duration(*duration),
            Value::Choice(word) => (*word).to_owned(),
            Value::Percentages(list) => percentages_text(list),
            Value::Parts(list) | Value::Texts(list) => list.join(", "),
        }
    }

    /// Returns the value as JSON: sizes in bytes, durations as text.
    pub fn to_json(&self) -> serde_json::Value {
        match self {
            Value::Size(number) | Value::Integer(number) => (*number).into(),
            Value::Float(number) => (*number).into(),
            Value::Bool(value) => (*value).into(),
            Value::Parts(list) | Value::Texts(list) => list.clone().into(),
            _ => self.to_text().into(),
        }
    }
}

/// Parses percentages; `None` for any other value.
fn percentages(raw: &RawValue) -> Option<Vec<u8>> {
    let in_range = |number: u64| u8::try_from(number).ok().filter(|percent| (1..=100).contains(percent));
    let of_text = |text: &str| {
        let number = text.trim();
        in_range(number.strip_suffix('%').unwrap_or(number).trim_end().parse().ok()?)
    };
    let one = |raw: &RawValue| match raw {
        RawValue::Integer(number, _) => in_range((*number)?),
        RawValue::Word(text) | RawValue::Text(text) => of_text(text),
        _ => None,
    };
    let mut list = match raw {
        RawValue::Word(text) | RawValue::Text(text) if text.trim() == "never" => Vec::new(),
        RawValue::Word(text) | RawValue::Text(text) => {
            text.split(',').map(of_text).collect::<Option<Vec<u8>>>()?
        }
        RawValue::List(items) => items.iter().map(|item| one(&item.value)).collect::<Option<Vec<u8>>>()?,
        other => vec![one(other)?],
    };
    list.sort_unstable();
    list.dedup();
    Some(list)
}

fn percentages_text(list: &[u8]) -> String {
    match list {
        [] => "never".to_owned(),
        list => list.iter().map(|percent| format!("{percent}%")).collect::<Vec<_>>().join(", "),
    }
}

/// Parses percentages as the value of a key: `80%, 90%`, or `never`. For options of verbs.
///
/// # Errors
/// [`block::Error::Invalid`] for any other text.
pub fn parse_percentages(text: &str) -> block::Result<Vec<u8>> {
    percentages(&RawValue::Text(text.to_owned())).ok_or_else(|| {
        block::Error::invalid(format!("\"{}\": expected {}", shown(text), ValueKind::Percentages))
    })
}

fn or_stop(nearest: Option<&'static str>) -> String {
    if nearest.is_some() { meant(nearest) } else { ".".to_owned() }
}

fn unit_error(error: &block::Error) -> Wrong {
    shown_detail(error.detail()).into()
}

/// Escapes the details of the unit parsers, which quote the input.
fn shown_detail(detail: &str) -> String {
    detail.chars().filter(|letter| !letter.is_control()).take(400).collect()
}

fn part_name(raw: &RawValue) -> Option<String> {
    match raw {
        RawValue::Text(name) | RawValue::Child(name) => Some(name.clone()),
        _ => None,
    }
}

fn list(key: &Key, raw: &RawValue, item: impl Fn(&RawValue) -> Option<String>) -> Result<Vec<String>, Wrong> {
    let RawValue::List(items) = raw else {
        return Err(format!("found {}, expected {}, in brackets", raw.describe(), key.value).into());
    };
    if items.is_empty() && key.required {
        return Err(format!("found an empty list, expected {} with at least one element", key.value).into());
    }
    let take = |At { value, .. }: &At<RawValue>| {
        item(value)
            .ok_or_else(|| format!("found {} in the list, expected {}", value.describe(), key.value).into())
    };
    items.iter().map(take).collect()
}
