//! Getters for the keys of a plan, which collect problems and continue.

use crate::job_file::number;
use stack::{Collector, RawSetting, RawValue, Source, Span, did_you_mean};
use std::ops::RangeInclusive;
use std::time::Duration;

/// Key and its value.
pub(super) type Entry = RawSetting;

/// Value of a key that takes a boolean or one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Choice {
    No,
    Yes,
    Word,
}

/// Reader of a plan, which collects its problems.
pub(super) struct Reader {
    pub source: Source,
    pub problems: Collector,
}

impl Reader {
    pub fn refuse(&mut self, span: &Span, message: impl Into<String>) {
        self.problems.add(|| self.source.problem(span.clone(), message));
    }

    /// Refuses every key that isn't in `known`.
    pub fn check_keys(&mut self, what: &str, entries: &[Entry], known: &[&str]) {
        for Entry { key, .. } in entries.iter().filter(|entry| !known.contains(&entry.key.value.as_str())) {
            let near = did_you_mean(&key.value, known.iter().copied());
            let list = known.join(", ");
            self.refuse(&key.span, format!("{what}: unknown key \"{}\"{near} (known: {list})", key.value));
        }
    }

    fn take<'a, T>(
        &mut self,
        Entry { key, value }: &'a Entry,
        expected: &str,
        take: impl FnOnce(&'a RawValue) -> Option<T>,
    ) -> Option<T> {
        let taken = take(&value.value);
        if taken.is_none() {
            let found = value.value.describe();
            self.refuse(&value.span, format!("{}: expected {expected}, found {found}", key.value));
        }
        taken
    }

    pub fn table<'a>(&mut self, entry: &'a Entry) -> &'a [Entry] {
        self.take(entry, "a table", table_of).unwrap_or_default()
    }

    pub fn text(&mut self, entries: &[Entry], key: &str) -> Option<String> {
        let text = |value: &RawValue| text_of(value).filter(|text| !text.trim().is_empty());
        self.take(find(entries, key)?, "a text that isn't empty", text)
    }

    pub fn boolean(&mut self, entries: &[Entry], key: &str) -> Option<bool> {
        self.take(find(entries, key)?, "true or false", |value| match value {
            RawValue::Bool(value) => Some(*value),
            _ => None,
        })
    }

    pub fn boolean_or(&mut self, entries: &[Entry], key: &str, word: &str) -> Option<Choice> {
        self.take(find(entries, key)?, &format!("true, false or \"{word}\""), |value| match value {
            RawValue::Bool(false) => Some(Choice::No),
            RawValue::Bool(true) => Some(Choice::Yes),
            RawValue::Text(text) if text == word => Some(Choice::Word),
            _ => None,
        })
    }

    pub fn integer(&mut self, entries: &[Entry], key: &str, range: RangeInclusive<u32>) -> Option<u32> {
        let expected = format!("a whole number from {} to {}", range.start(), range.end());
        self.take(find(entries, key)?, &expected, |value| match value {
            RawValue::Integer(number, _) => {
                u32::try_from((*number)?).ok().filter(|number| range.contains(number))
            }
            _ => None,
        })
    }

    pub fn time(&mut self, entries: &[Entry], key: &str) -> Option<Duration> {
        let entry = find(entries, key)?;
        let text = self.take(entry, "a time, such as \"1s\"", option_of)?;
        let refuse = |message| self.refuse(&entry.value.span, format!("{key} = {message}"));
        number::time(&text).map_err(refuse).ok()
    }

    pub fn texts(&mut self, entries: &[Entry], key: &str) -> Option<Vec<String>> {
        self.take(find(entries, key)?, "a list of texts, such as [\"program\", \"argument\"]", texts_of)
    }

    pub fn lists_of_texts(&mut self, entries: &[Entry], key: &str) -> Option<Vec<Vec<String>>> {
        let lists = |value: &RawValue| list_of(value, texts_of);
        self.take(find(entries, key)?, "a list of lists of texts, such as [[\"a\", \"b\"]]", lists)
    }
}

/// Returns the entry of this key.
pub(super) fn find<'a>(entries: &'a [Entry], key: &str) -> Option<&'a Entry> {
    entries.iter().find(|entry| entry.key.value == key)
}

/// Position of the value of this key, or of `entry` if the key is missing.
pub(super) fn place<'a>(entries: &'a [Entry], key: &str, entry: &'a Entry) -> &'a Span {
    find(entries, key).map_or(&entry.key.span, |found| &found.value.span)
}

/// Returns the keys and values of a table.
pub(super) fn table_of(value: &RawValue) -> Option<&[Entry]> {
    match value {
        RawValue::Table(entries) => Some(entries),
        _ => None,
    }
}

/// Formats a value as fio writes an option; `None` if no option can have it.
pub(super) fn option_of(value: &RawValue) -> Option<String> {
    match value {
        RawValue::Integer(Some(number), _) => Some(number.to_string()),
        RawValue::Text(text) | RawValue::Integer(None, text) | RawValue::Float(_, text) => Some(text.clone()),
        RawValue::Bool(value) => Some(u8::from(*value).to_string()),
        _ => None,
    }
}

/// Returns the elements of a list; `None` if the value isn't a list or `take` refuses an element.
pub(super) fn list_of<T>(value: &RawValue, take: impl Fn(&RawValue) -> Option<T>) -> Option<Vec<T>> {
    match value {
        RawValue::List(items) => items.iter().map(|item| take(&item.value)).collect(),
        _ => None,
    }
}

fn text_of(value: &RawValue) -> Option<String> {
    match value {
        RawValue::Text(text) => Some(text.clone()),
        _ => None,
    }
}

fn texts_of(value: &RawValue) -> Option<Vec<String>> {
    list_of(value, text_of)
}
