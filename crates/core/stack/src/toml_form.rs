//! A stack as TOML: a table `[stack]`, and sections `[device.NAME]`, `[zones.NAME]`, `[door.NAME]`.

use crate::contract::Contract;
use crate::line_writer::quoted;
use crate::model::Stack;
use crate::problem::{Collector, Source, meant, nearest, shown};
use crate::raw::{At, RawSection, RawSetting, RawStack, RawValue};
use crate::value::Value;
use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

/// Help text for unknown sections.
const SECTIONS: &str = "A stack consists of [stack], [device.NAME], [zones.NAME] and [door.NAME]";

/// Keys and values of a text, as far as it is TOML.
pub fn document(source: &Source, problems: &mut Collector) -> Vec<RawSetting> {
    let (document, errors) = DeTable::parse_recoverable(source.text());
    for error in errors {
        let end = source.text().len();
        problems
            .add(|| source.problem(error.span().unwrap_or(end..end), format!("TOML: {}", error.message())));
    }
    settings(document.get_ref())
}

fn settings(table: &DeTable<'_>) -> Vec<RawSetting> {
    let setting = |(key, value): (&Spanned<DeString<'_>>, &Spanned<DeValue<'_>>)| RawSetting {
        key: At::new(key.get_ref().to_string(), key.span()),
        value: raw_value(value),
    };
    let mut settings = table.iter().map(setting).collect::<Vec<_>>();
    // The parser sorts by name; users expect the order of the file.
    settings.sort_by_key(|setting| setting.key.span.start);
    settings
}

fn raw_value(value: &Spanned<DeValue<'_>>) -> At<RawValue> {
    let raw = match value.get_ref() {
        DeValue::String(text) => RawValue::Text(text.to_string()),
        DeValue::Integer(number) => {
            let parsed = u64::from_str_radix(number.as_str(), number.radix()).ok();
            RawValue::Integer(parsed, number.to_string())
        }
        DeValue::Float(number) => {
            RawValue::Float(number.as_str().parse().unwrap_or(f64::NAN), number.to_string())
        }
        DeValue::Boolean(value) => RawValue::Bool(*value),
        DeValue::Datetime(_) => RawValue::Other("a date or time"),
        DeValue::Array(items) => RawValue::List(items.iter().map(raw_value).collect()),
        DeValue::Table(table) => RawValue::Table(settings(table)),
    };
    At::new(raw, value.span())
}

/// Parses the text as far as it is TOML.
pub(crate) fn read(source: &Source, problems: &mut Collector) -> RawStack {
    let mut stack = RawStack::default();
    for RawSetting { key, value } in document(source, problems) {
        let contract = Contract::ALL.into_iter().find(|contract| contract.section() == key.value);
        match (contract, value.value) {
            (Some(contract), RawValue::Table(sections)) => {
                read_sections(source, contract, sections, &mut stack, problems);
            }
            (Some(contract), _) => problems.add(|| {
                let message =
                    format!("\"{contract}\" is not a table: write [{contract}.NAME] and its keys below");
                source.problem(key.span, message)
            }),
            (None, RawValue::Table(settings)) if key.value == "stack" => stack.settings = settings,
            (None, _) if key.value == "stack" => problems.add(|| {
                source.problem(key.span, "\"stack\" is not a table: write [stack] and its keys below")
            }),
            (None, _) => problems.add(|| {
                let known = Contract::ALL.map(Contract::section).into_iter().chain(["stack"]);
                let nearest = nearest(&key.value, known);
                let hint = if nearest.is_some() { meant(nearest) } else { ".".to_owned() };
                let message = format!("unknown section \"{}\"{hint} {SECTIONS}", shown(&key.value));
                source.problem(key.span, message).with_nearest(nearest)
            }),
        }
    }
    stack.sections.sort_by_key(|section| section.name.span.start);
    stack
}

fn read_sections(
    source: &Source,
    contract: Contract,
    sections: Vec<RawSetting>,
    stack: &mut RawStack,
    problems: &mut Collector,
) {
    for RawSetting { key: name, value } in sections {
        let RawValue::Table(mut settings) = value.value else {
            problems.add(|| {
                let word = shown(&name.value);
                let message =
                    format!("\"{word}\" is outside of all sections: write [{contract}.NAME] above it");
                source.problem(name.span, message)
            });
            continue;
        };
        let kind = settings.iter().position(|setting| setting.key.value == "kind");
        let kind = kind.map(|at| settings.remove(at).value);
        stack.sections.push(RawSection { contract: Some(contract), name, kind, settings });
    }
}

impl Stack {
    /// Writes the stack as TOML that parses to an equal stack. Comments are lost.
    pub fn to_toml(&self) -> String {
        let mut text = String::new();
        if self.shards() != 1 {
            text.push_str(&format!("[stack]\nshards = {}\n", self.shards()));
        }
        for part in self.parts() {
            let between = if text.is_empty() { "" } else { "\n" };
            let (section, name, kind) = (part.kind().contract, key_text(part.name()), part.kind().name);
            text.push_str(&format!("{between}[{section}.{name}]\nkind = \"{kind}\"\n"));
            for (key, value) in part.values() {
                text.push_str(&format!("{key} = {}\n", value_text(value)));
            }
        }
        text
    }
}

fn value_text(value: &Value) -> String {
    match value {
        Value::Integer(_) | Value::Float(_) | Value::Bool(_) => value.to_text(),
        Value::Parts(list) | Value::Texts(list) => {
            let items = list.iter().map(|item| basic_string(item)).collect::<Vec<_>>();
            format!("[{}]", items.join(", "))
        }
        _ => basic_string(&value.to_text()),
    }
}

fn key_text(name: &str) -> String {
    let bare = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '-');
    if !name.is_empty() && name.chars().all(bare) { name.to_owned() } else { basic_string(name) }
}

/// Writes a basic string on one line.
fn basic_string(text: &str) -> String {
    quoted(text, |control| format!("\\u{control:04X}"))
}
