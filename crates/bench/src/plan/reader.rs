//! Reads TOML so that every complaint knows its place: values with line and column, in the order of the text,
//! and getters that note what is wrong and go on.

use crate::job_file::number;
use crate::problem::{Place, Problem, did_you_mean};
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::time::Duration;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// A value and where it stands.
#[derive(Debug, Clone)]
pub(super) struct Value {
    pub place: Place,
    pub kind: Kind,
}

/// What a value is.
#[derive(Debug, Clone)]
pub(super) enum Kind {
    Text(String),
    /// In the writer's digits.
    Number(String),
    Bool(bool),
    List(Vec<Value>),
    Table(Vec<Entry>),
    /// Something that no plan has: a date.
    Other,
}

/// A key and its value.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub key: String,
    pub place: Place,
    pub value: Value,
}

impl Value {
    fn kind_name(&self) -> &'static str {
        match self.kind {
            Kind::Text(_) => "a text",
            Kind::Number(_) => "a number",
            Kind::Bool(_) => "true or false",
            Kind::List(_) => "a list",
            Kind::Table(_) => "a table",
            Kind::Other => "a date",
        }
    }

    /// As an option of fio is written; None for what no option can be.
    pub fn as_option(&self) -> Option<String> {
        match &self.kind {
            Kind::Text(text) | Kind::Number(text) => Some(text.clone()),
            Kind::Bool(value) => Some(u8::from(*value).to_string()),
            Kind::List(_) | Kind::Table(_) | Kind::Other => None,
        }
    }
}

/// What a key says that takes a boolean or one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Choice {
    No,
    Yes,
    Word,
}

/// Notes what is wrong while a text is read.
#[derive(Default)]
pub(super) struct Reader {
    pub problems: Vec<Problem>,
}

impl Reader {
    /// The top of the document, with whatever of it could be read.
    pub fn document(&mut self, text: &str) -> Vec<Entry> {
        let (table, errors) = DeTable::parse_recoverable(text);
        for error in errors {
            let byte = error.span().map_or(0, |span| span.start);
            let message = error.message().lines().next().unwrap_or("not TOML").to_owned();
            self.problems
                .push(Problem { place: Place::of_byte(text, byte), message: format!("TOML: {message}") });
        }
        entries(text, table.get_ref())
    }

    pub fn refuse(&mut self, place: Place, message: impl Display) {
        self.problems.push(Problem { place, message: message.to_string() });
    }

    /// Refuses every key that isn't one of these.
    pub fn check_keys(&mut self, what: &str, entries: &[Entry], known: &[&str]) {
        for entry in entries.iter().filter(|entry| !known.contains(&entry.key.as_str())) {
            let near = did_you_mean(&entry.key, known.iter().copied());
            let list = known.join(", ");
            self.refuse(entry.place, format!("{what}: unknown key \"{}\"{near} (known: {list})", entry.key));
        }
    }

    fn expect<T>(&mut self, entry: &Entry, expected: &str, value: Option<T>) -> Option<T> {
        if value.is_none() {
            let found = entry.value.kind_name();
            self.refuse(entry.value.place, format!("{}: expected {expected}, found {found}", entry.key));
        }
        value
    }

    pub fn table<'a>(&mut self, entry: &'a Entry) -> &'a [Entry] {
        let table = match &entry.value.kind {
            Kind::Table(entries) => Some(&entries[..]),
            _ => None,
        };
        self.expect(entry, "a table", table).unwrap_or_default()
    }

    pub fn text(&mut self, entries: &[Entry], key: &str) -> Option<String> {
        let entry = find(entries, key)?;
        let text = match &entry.value.kind {
            Kind::Text(text) => Some(text.clone()),
            _ => None,
        };
        let text = self.expect(entry, "a text", text)?;
        if text.trim().is_empty() {
            self.refuse(entry.value.place, format!("{key}: expected a text, found an empty one"));
        }
        Some(text)
    }

    pub fn boolean(&mut self, entries: &[Entry], key: &str) -> Option<bool> {
        let entry = find(entries, key)?;
        let value = match entry.value.kind {
            Kind::Bool(value) => Some(value),
            _ => None,
        };
        self.expect(entry, "true or false", value)
    }

    pub fn boolean_or(&mut self, entries: &[Entry], key: &str, word: &str) -> Option<Choice> {
        let entry = find(entries, key)?;
        let value = match &entry.value.kind {
            Kind::Bool(false) => Some(Choice::No),
            Kind::Bool(true) => Some(Choice::Yes),
            Kind::Text(text) if text == word => Some(Choice::Word),
            _ => None,
        };
        self.expect(entry, &format!("true, false or \"{word}\""), value)
    }

    pub fn integer(&mut self, entries: &[Entry], key: &str, range: RangeInclusive<u32>) -> Option<u32> {
        let entry = find(entries, key)?;
        let expected = format!("a whole number from {} to {}", range.start(), range.end());
        let Kind::Number(digits) = &entry.value.kind else { return self.expect(entry, &expected, None) };
        let value = digits.parse().ok().filter(|value| range.contains(value));
        if value.is_none() {
            self.refuse(entry.value.place, format!("{key} = {digits}: expected {expected}"));
        }
        value
    }

    pub fn time(&mut self, entries: &[Entry], key: &str) -> Option<Duration> {
        let entry = find(entries, key)?;
        let text = entry.value.as_option();
        let text = self.expect(entry, "a time, such as \"1s\"", text)?;
        number::time(&text)
            .map_err(|message| self.refuse(entry.value.place, format!("{key} = {message}")))
            .ok()
    }

    pub fn texts(&mut self, entries: &[Entry], key: &str) -> Option<Vec<String>> {
        let entry = find(entries, key)?;
        let texts = texts_of(&entry.value);
        self.expect(entry, "a list of texts, such as [\"program\", \"argument\"]", texts)
    }

    pub fn lists_of_texts(&mut self, entries: &[Entry], key: &str) -> Option<Vec<Vec<String>>> {
        let entry = find(entries, key)?;
        let lists = match &entry.value.kind {
            Kind::List(items) => items.iter().map(texts_of).collect(),
            _ => None,
        };
        self.expect(entry, "a list of lists of texts, such as [[\"a\", \"b\"]]", lists)
    }
}

/// The entry of this key.
pub(super) fn find<'a>(entries: &'a [Entry], key: &str) -> Option<&'a Entry> {
    entries.iter().find(|entry| entry.key == key)
}

fn texts_of(value: &Value) -> Option<Vec<String>> {
    let Kind::List(items) = &value.kind else { return None };
    let text = |item: &Value| match &item.kind {
        Kind::Text(text) => Some(text.clone()),
        _ => None,
    };
    items.iter().map(text).collect()
}

/// The entries of a table in the order of the text.
fn entries(text: &str, table: &DeTable<'_>) -> Vec<Entry> {
    let mut pairs: Vec<_> = table.iter().collect();
    pairs.sort_by_key(|(key, _)| key.span().start);
    let entry = |(key, found): (&Spanned<_>, &Spanned<DeValue<'_>>)| Entry {
        key: AsRef::<str>::as_ref(key.get_ref() as &std::borrow::Cow<'_, str>).to_owned(),
        place: Place::of_byte(text, key.span().start),
        value: value(text, found),
    };
    pairs.into_iter().map(entry).collect()
}

fn value(text: &str, found: &Spanned<DeValue<'_>>) -> Value {
    let kind = match found.get_ref() {
        DeValue::String(value) => Kind::Text(value.to_string()),
        DeValue::Integer(value) if value.radix() == 10 => Kind::Number(value.as_str().replace('_', "")),
        DeValue::Integer(value) => {
            let number = u64::from_str_radix(&value.as_str().replace('_', ""), value.radix());
            number.map_or(Kind::Other, |number| Kind::Number(number.to_string()))
        }
        DeValue::Float(value) => Kind::Number(value.as_str().replace('_', "")),
        DeValue::Boolean(value) => Kind::Bool(*value),
        DeValue::Datetime(_) => Kind::Other,
        DeValue::Array(items) => Kind::List(items.iter().map(|item| value(text, item)).collect()),
        DeValue::Table(table) => Kind::Table(entries(text, table)),
    };
    Value { place: Place::of_byte(text, found.span().start), kind }
}
