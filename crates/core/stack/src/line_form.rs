//! A stack in one line: `log(file(disk.img, size=4GiB), map=radix)`.
//!
//! Values in parentheses belong to the keys of the kind: with a key's name, or without one to the positional
//! keys in their order. Parts have no names in this form, so names are generated: `top` for the part without
//! users (and for its door, if there is one), else the kind and a number.

use crate::contract::Contract;
use crate::key::{Key, ValueKind};
use crate::kind::{Kind, Registry};
use crate::line_syntax::{Argument, Line, Node, parse};
use crate::problem::{Collector, Source, meant, nearest, shown};
use crate::raw::{At, RawSection, RawSetting, RawStack, RawValue};
use std::collections::{BTreeMap, BTreeSet};

/// Name of the part without users.
pub(crate) const TOP: &str = "top";

/// Parses the line as far as it follows the grammar.
pub(crate) fn read(source: &Source, registry: &Registry, problems: &mut Collector) -> RawStack {
    let Line { root, settings } = match parse(source) {
        Ok(line) => line,
        Err(problem) => {
            problems.add(|| problem);
            return RawStack::default();
        }
    };
    let mut lowering = Lowering {
        source,
        registry,
        problems,
        stack: RawStack::default(),
        used: BTreeSet::from([TOP.to_owned()]),
        numbers: BTreeMap::new(),
        top_is_free: true,
    };
    lowering.root(root);
    let setting = |(key, value): (At<String>, At<String>)| RawSetting {
        key,
        value: At::new(RawValue::Word(value.value), value.span),
    };
    RawStack { settings: settings.into_iter().map(setting).collect(), ..lowering.stack }
}

struct Lowering<'a> {
    source: &'a Source,
    registry: &'a Registry,
    problems: &'a mut Collector,
    stack: RawStack,
    used: BTreeSet<String>,
    numbers: BTreeMap<String, usize>,
    /// Whether the next part is the top: the first one, or the only one below a door at the root.
    top_is_free: bool,
}

impl Lowering<'_> {
    fn root(&mut self, root: At<Node>) {
        match root.value {
            Node::Word { word, arguments } => {
                let kind = self.registry.kind(&word.value);
                let is_door = kind.is_some_and(|kind| kind.contract == Contract::Door);
                if !is_door {
                    self.top_is_free = false;
                }
                self.section(TOP.to_owned(), word, arguments.unwrap_or_default());
            }
            _ => self.problems.add(|| {
                self.source.problem(root.span, "expected a kind such as file(disk.img), not a text or a list")
            }),
        }
    }

    /// Adds a part and its arguments, from the bottom up.
    fn section(&mut self, name: String, word: At<String>, arguments: Vec<Argument>) {
        let kind = self.registry.kind(&word.value);
        let settings = match kind {
            Some(kind) => self.settings(kind, &word, arguments),
            // `resolve` reports the unknown kind; its arguments can't be interpreted.
            None => Vec::new(),
        };
        let name = At::new(name, word.span.clone());
        let kind = Some(At::new(RawValue::Text(word.value), word.span));
        self.stack.sections.push(RawSection { contract: None, name, kind, settings });
    }

    fn settings(
        &mut self,
        kind: &'static Kind,
        word: &At<String>,
        arguments: Vec<Argument>,
    ) -> Vec<RawSetting> {
        let mut positional = kind.keys.iter().filter(|key| key.positional);
        let mut rest: Option<(&Key, RawSetting)> = None;
        let mut settings = Vec::new();
        for Argument { key, value } in arguments {
            if let Some(key) = key {
                let declared = kind.key(&key.value);
                let value = self.value(declared, value);
                settings.push(RawSetting { key, value });
                continue;
            }
            if let Some((key, RawSetting { value: list, .. })) = &mut rest {
                let item = self.element(key, value);
                list.span.end = item.span.end;
                if let RawValue::List(items) = &mut list.value {
                    items.push(item);
                }
                continue;
            }
            let Some(declared) = positional.next() else {
                self.too_many(kind, &word.value, &value);
                continue;
            };
            let key = At::new(declared.name.to_owned(), value.span.clone());
            let in_brackets = matches!(value.value, Node::List(_));
            if declared.value.is_list() && !in_brackets {
                let span = value.span.clone();
                let items = vec![self.element(declared, value)];
                let value = At::new(RawValue::List(items), span);
                rest = Some((declared, RawSetting { key, value }));
            } else {
                let value = self.value(Some(declared), value);
                settings.push(RawSetting { key, value });
            }
        }
        settings.extend(rest.map(|(_, setting)| setting));
        settings
    }

    fn too_many(&mut self, kind: &Kind, word: &str, value: &At<Node>) {
        self.problems.add(|| {
            let named = match &value.value {
                Node::Word { word, arguments: None } => {
                    nearest(&word.value, kind.keys.iter().map(|key| key.name))
                }
                _ => None,
            };
            let takes = kind.keys.iter().filter(|key| key.positional).map(|key| key.name).collect::<Vec<_>>();
            let takes = match takes.as_slice() {
                [] => "no value without a key".to_owned(),
                names => format!("only {} without a key", names.join(", ")),
            };
            let message = format!(
                "a value too many for kind \"{}\"{} It takes {takes}, and KEY=VALUE with {}",
                shown(word),
                if named.is_some() { meant(named) } else { ".".to_owned() },
                kind.key_list()
            );
            self.source.problem(value.span.clone(), message).with_nearest(named)
        });
    }

    fn value(&mut self, key: Option<&Key>, node: At<Node>) -> At<RawValue> {
        match node.value {
            Node::List(items) => {
                let items = items
                    .into_iter()
                    .map(|item| match key {
                        Some(key) => self.element(key, item),
                        None => At::new(RawValue::Other("a value"), item.span),
                    })
                    .collect();
                At::new(RawValue::List(items), node.span)
            }
            _ => match key {
                Some(key) => self.element(key, node),
                None => At::new(RawValue::Other("a value"), node.span),
            },
        }
    }

    /// Parses one value: a part where the key accepts parts, else a word or a text.
    fn element(&mut self, key: &Key, node: At<Node>) -> At<RawValue> {
        let At { value, span } = node;
        let raw = match value {
            Node::Word { word, arguments } if key.value.names_parts() => {
                let name = self.made_up_name(key, &word.value);
                self.section(name.clone(), word, arguments.unwrap_or_default());
                RawValue::Child(name)
            }
            Node::Word { word, arguments: None } => RawValue::Word(word.value),
            Node::Word { .. } => RawValue::Other("a part"),
            // Parts have no names in this form, so a text can't name one.
            Node::Text(_) if key.value.names_parts() => RawValue::Other("a text"),
            Node::Text(text) => RawValue::Text(text),
            Node::List(_) => RawValue::Other("a list"),
        };
        At::new(raw, span)
    }

    fn made_up_name(&mut self, key: &Key, kind: &str) -> String {
        if std::mem::take(&mut self.top_is_free) && key.value != ValueKind::Devices {
            return TOP.to_owned();
        }
        let number = self.numbers.entry(kind.to_owned()).or_insert(0);
        loop {
            *number += 1;
            let name = format!("{kind}{number}");
            if self.used.insert(name.clone()) {
                return name;
            }
        }
    }
}
