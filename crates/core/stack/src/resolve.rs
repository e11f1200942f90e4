//! Resolves kinds, keys, types and names against the known ones. Both forms of a stack use it, so their
//! errors have the same text.

use crate::contract::Contract;
use crate::graph::{self, Node, Reference};
use crate::key::{Key, ValueKind};
use crate::kind::{Kind, Registry};
use crate::model::{Given, Part, Stack};
use crate::problem::{Collector, Problems, Source, meant, nearest, shown};
use crate::raw::{At, RawSection, RawSetting, RawStack, RawValue};
use crate::value::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Most parts of a stack.
const MAX_PARTS: usize = 1024;

const SHARDS: Key = Key::optional(
    "shards",
    ValueKind::Integer { min: 1, max: Stack::MAX_SHARDS as u64 },
    "number of threads that run the stack, each with a ring of its own",
);

/// Section whose kind and values were looked up as far as they are known.
struct Section {
    name: At<String>,
    /// Contract, by its header or its kind; `None` if neither is known.
    contract: Option<Contract>,
    kind: Option<&'static Kind>,
    values: Vec<Given>,
    named: Vec<Named>,
}

/// A key that names parts, and the names.
struct Named {
    key: &'static Key,
    names: Vec<At<String>>,
}

/// Makes all checks for which the text suffices.
pub(crate) fn resolve(
    source: Source,
    mut raw: RawStack,
    registry: &Registry,
    mut problems: Collector,
) -> Result<Stack, Problems> {
    let mut resolver = Resolver { source: &source, registry, problems: &mut problems };
    let shards = resolver.shards(raw.settings);
    resolver.check_count(&raw.sections);
    raw.sections.truncate(MAX_PARTS);
    let sections = raw.sections.into_iter().map(|section| resolver.section(section)).collect::<Vec<_>>();
    let references = resolver.references(&sections);
    let node = |(section, references)| {
        let Section { name, kind, .. }: &Section = section;
        let references: &Vec<Reference> = references;
        Node { name: &name.value, name_span: name.span.clone(), kind: *kind, references }
    };
    let nodes = sections.iter().zip(&references).map(node).collect::<Vec<_>>();
    let order = graph::check(&source, &nodes, &mut problems);
    let part = |(section, references): (Section, Vec<Reference>)| {
        let At { value: name, span: name_span } = section.name;
        // An unknown kind has been reported, so no part of a valid stack is omitted.
        section.kind.map(|kind| Part { name, name_span, kind, values: section.values, references })
    };
    let parts = sections.into_iter().zip(references).filter_map(part).collect();
    problems.finish(Stack { source, base_directory: PathBuf::new(), shards, parts, order })
}

struct Resolver<'a> {
    source: &'a Source,
    registry: &'a Registry,
    problems: &'a mut Collector,
}

impl Resolver<'_> {
    fn shards(&mut self, settings: Vec<RawSetting>) -> usize {
        let mut shards = None;
        for RawSetting { key, value } in settings {
            if key.value != SHARDS.name {
                self.problems.add(|| {
                    let nearest = nearest(&key.value, [SHARDS.name]);
                    let hint = if nearest.is_some() { meant(nearest) } else { ".".to_owned() };
                    let message = format!(
                        "unknown key \"{}\" for the stack itself{hint} It takes {}",
                        shown(&key.value),
                        SHARDS.name
                    );
                    self.source.problem(key.span, message).with_nearest(nearest)
                });
                continue;
            }
            if shards.is_some() {
                self.problems.add(|| self.source.problem(key.span, "key \"shards\" is given twice"));
                continue;
            }
            match Value::from_raw(&SHARDS, &value.value) {
                Ok(Value::Integer(number)) => shards = Some(number as usize),
                Ok(_) => {}
                Err(wrong) => self.problems.add(|| {
                    let message = format!("key \"shards\" of the stack itself: {wrong}");
                    self.source.problem(value.span, message)
                }),
            }
        }
        shards.unwrap_or(1)
    }

    fn check_count(&mut self, sections: &[RawSection]) {
        if let Some(section) = sections.get(MAX_PARTS) {
            let message = format!("{} parts: expected at most {MAX_PARTS}", sections.len());
            self.problems.add(|| self.source.problem(section.name.span.clone(), message));
        }
        if sections.is_empty() && self.problems.count() == 0 {
            let message = "no parts: expected at least one [device.NAME] or [zones.NAME] with its kind below";
            self.problems.add(|| self.source.problem(0..0, message));
        }
    }

    fn section(&mut self, raw: RawSection) -> Section {
        let kind = self.kind(&raw);
        let contract = raw.contract.or(kind.map(|kind| kind.contract));
        if raw.name.value.is_empty() || raw.name.value.chars().any(char::is_control) {
            self.problems.add(|| {
                let message =
                    "the name of a part: expected one or more characters, none of them a control one";
                self.source.problem(raw.name.span.clone(), message)
            });
        }
        let mut section = Section { name: raw.name, contract, kind, values: Vec::new(), named: Vec::new() };
        if let Some(kind) = kind {
            self.settings(kind, raw.settings, &mut section);
        }
        section
    }

    /// Returns the kind of a section, which must have the contract of its header.
    fn kind(&mut self, raw: &RawSection) -> Option<&'static Kind> {
        let fits = |kind: &Kind| raw.contract.is_none_or(|contract| kind.contract == contract);
        let names = || self.registry.kinds.iter().filter(|kind| fits(kind)).map(|kind| kind.name);
        let of = raw.contract.map_or_else(String::new, |contract| format!(" of [{contract}.NAME]"));
        let known = || format!("Kinds{of}: {}", names().collect::<Vec<_>>().join(", "));
        let Some(At { value, span }) = &raw.kind else {
            self.problems.add(|| {
                let message = format!("\"{}\" has no key \"kind\". {}", shown(&raw.name.value), known());
                self.source.problem(raw.name.span.clone(), message)
            });
            return None;
        };
        let RawValue::Text(word) = value else {
            self.problems.add(|| {
                let message =
                    format!("key \"kind\": found {}, expected a text. {}", value.describe(), known());
                self.source.problem(span.clone(), message)
            });
            return None;
        };
        match self.registry.kind(word) {
            Some(kind) if fits(kind) => return Some(kind),
            Some(kind) => self.problems.add(|| {
                let (is, header) = (kind.contract.noun(), raw.contract.map_or("", Contract::section));
                let message = format!(
                    "kind \"{word}\" is {is}: expected a section [{}.NAME] for it, not [{header}.NAME]",
                    kind.contract
                );
                self.source.problem(span.clone(), message)
            }),
            None => self.problems.add(|| {
                let nearest = nearest(word, names());
                let hint = if nearest.is_some() { meant(nearest) } else { ".".to_owned() };
                let message = format!("unknown kind \"{}\"{hint} {}", shown(word), known());
                self.source.problem(span.clone(), message).with_nearest(nearest)
            }),
        }
        None
    }

    fn settings(&mut self, kind: &'static Kind, settings: Vec<RawSetting>, section: &mut Section) {
        let mut seen: Vec<&str> = Vec::new();
        for RawSetting { key, value } in settings {
            let Some(declared) = kind.key(&key.value) else {
                self.unknown_key(kind, &key);
                continue;
            };
            if seen.contains(&declared.name) {
                self.problems.add(|| {
                    let message =
                        format!("key \"{}\" of kind \"{}\" is given twice", declared.name, kind.name);
                    self.source.problem(key.span, message)
                });
                continue;
            }
            seen.push(declared.name);
            match Value::from_raw(declared, &value.value) {
                Ok(typed) => {
                    if declared.value.names_parts() {
                        section.named.push(Named { key: declared, names: names(&value, &typed) });
                    }
                    section.values.push(Given { key: declared.name, key_span: key.span, value: typed });
                }
                Err(wrong) => self.problems.add(|| {
                    let message = format!("key \"{}\" of kind \"{}\": {wrong}", declared.name, kind.name);
                    self.source.problem(value.span, message).with_nearest(wrong.nearest)
                }),
            }
        }
        let position = |name: &str| kind.keys.iter().position(|key| key.name == name);
        section.values.sort_by_key(|given| position(given.key));
        section.named.sort_by_key(|named| position(named.key.name));
        for key in kind.keys.iter().filter(|key| key.required && !seen.contains(&key.name)) {
            self.problems.add(|| {
                let message = format!(
                    "\"{}\" has no key \"{}\": kind \"{}\" needs it ({}), expected {}",
                    shown(&section.name.value),
                    key.name,
                    kind.name,
                    key.help,
                    key.value
                );
                self.source.problem(section.name.span.clone(), message)
            });
        }
    }

    fn unknown_key(&mut self, kind: &'static Kind, key: &At<String>) {
        self.problems.add(|| {
            let known = kind.keys.iter().find(|known| known.known_as.contains(&key.value.as_str()));
            let near = || nearest(&key.value, kind.keys.iter().map(|key| key.name));
            let nearest = known.map(|known| known.name).or_else(near);
            let hint = if nearest.is_some() { meant(nearest) } else { ".".to_owned() };
            let takes = if kind.keys.is_empty() { "no keys".to_owned() } else { kind.key_list() };
            let message = format!(
                "unknown key \"{}\" for kind \"{}\"{hint} It takes {takes}",
                shown(&key.value),
                kind.name
            );
            self.source.problem(key.span.clone(), message).with_nearest(nearest)
        });
    }

    /// Resolves the references of all parts; each part's references are in the order of its keys.
    fn references(&mut self, sections: &[Section]) -> Vec<Vec<Reference>> {
        let mut parts: BTreeMap<&str, usize> = BTreeMap::new();
        for (number, section) in sections.iter().enumerate() {
            if section.contract == Some(Contract::Door) {
                continue;
            }
            let earlier = *parts.entry(&section.name.value).or_insert(number);
            if earlier != number {
                self.problems.add(|| {
                    let message = format!(
                        "there are both [device.{0}] and [zones.{0}]: expected two names, since keys name parts of both sorts",
                        shown(&section.name.value)
                    );
                    self.source.problem(section.name.span.clone(), message)
                });
            }
        }
        let references_of = |section: &Section| {
            let named =
                section.named.iter().flat_map(|named| named.names.iter().map(|name| (named.key, name)));
            named.filter_map(|(key, name)| self.reference(sections, &parts, key, name)).collect()
        };
        sections.iter().map(references_of).collect()
    }

    fn reference(
        &mut self,
        sections: &[Section],
        parts: &BTreeMap<&str, usize>,
        key: &'static Key,
        name: &At<String>,
    ) -> Option<Reference> {
        let span = name.span.clone();
        let Some(part) = parts.get(name.value.as_str()).copied() else {
            self.problems.add(|| {
                let nearest = nearest(&name.value, parts.keys().copied());
                let hint = if nearest.is_some() { meant(nearest) } else { ".".to_owned() };
                let some = parts.keys().take(20).map(|name| shown(name)).collect::<Vec<_>>().join(", ");
                let message = format!(
                    "key \"{}\": no part has the name \"{}\"{hint} Parts: {some}",
                    key.name,
                    shown(&name.value)
                );
                self.source.problem(span, message).with_nearest(nearest)
            });
            return None;
        };
        let expected = key.value.children();
        if let Some(found) = sections[part].contract
            && !expected.contains(&found)
        {
            self.problems.add(|| {
                let kind = sections[part].kind.map_or("", |kind| kind.name);
                let expected =
                    expected.iter().map(|contract| contract.noun()).collect::<Vec<_>>().join(" or ");
                let message = format!(
                    "key \"{}\": \"{}\" is {} (kind \"{kind}\"), expected {}",
                    key.name,
                    shown(&name.value),
                    found.noun(),
                    expected
                );
                self.source.problem(span, message)
            });
            return None;
        }
        Some(Reference { key: key.name, part, span })
    }
}

/// Names in a value that has its type, each with its position.
fn names(raw: &At<RawValue>, typed: &Value) -> Vec<At<String>> {
    let spans = match &raw.value {
        RawValue::List(items) => items.iter().map(|item| item.span.clone()).collect(),
        _ => vec![raw.span.clone()],
    };
    typed.children().iter().cloned().zip(spans).map(|(name, span)| At::new(name, span)).collect()
}
