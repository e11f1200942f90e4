//! Writes a stack as one line, if it is a tree.

use crate::contract::Contract;
use crate::key::Key;
use crate::line_syntax::is_word_character;
use crate::model::{Part, Stack};
use crate::problem::{Problem, shown};
use crate::value::Value;

/// Writes a text as a value of the one-line form: bare, or in quotes if it has characters that need them.
pub fn quote(text: &str) -> String {
    // Fewer characters than the grammar permits, so that a line is readable.
    let bare =
        |letter: char| is_word_character(letter) && !matches!(letter, '\'' | '\\' | '`' | '$' | ';' | '#');
    if !text.is_empty() && text.chars().all(bare) {
        return text.to_owned();
    }
    quoted(text, |control| format!("\\u{{{control:x}}}"))
}

/// Writes a text in quotes, on one line. `escape` writes control characters, by their numbers.
pub(crate) fn quoted(text: &str, escape: impl Fn(u32) -> String) -> String {
    let mut quoted = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            control if control.is_control() => quoted.push_str(&escape(control.into())),
            other => quoted.push(other),
        }
    }
    quoted.push('"');
    quoted
}

impl Stack {
    /// Writes the stack as one line, which parses to the same stack with generated names.
    ///
    /// # Errors
    /// If two parts share a third, or there is more than one top or door: only trees can be one line.
    pub fn to_line(&self) -> Result<String, Problem> {
        let root = root(self)?;
        let mut line = part(self, &self.parts[root]);
        if self.shards != 1 {
            line.push_str(&format!(" shards={}", self.shards));
        }
        Ok(line)
    }
}

/// Returns the only part without users; every other part has one user.
fn root(stack: &Stack) -> Result<usize, Problem> {
    let refuse = |part: &Part, what: String| {
        let message = format!("{what}: one line holds only a tree, so keep this stack in TOML");
        Err(stack.source.problem(part.name_span.clone(), message))
    };
    let mut used = vec![0; stack.parts.len()];
    for reference in stack.parts.iter().flat_map(|part| &part.references) {
        used[reference.part] += 1;
    }
    if let Some(number) = used.iter().position(|users| *users > 1) {
        let part = &stack.parts[number];
        return refuse(part, format!("\"{}\" is used {} times", shown(&part.name), used[number]));
    }
    let roots = (0..used.len()).filter(|number| used[*number] == 0).collect::<Vec<_>>();
    match roots.as_slice() {
        [root] => Ok(*root),
        [first, second, ..] => {
            let name = |number: &usize| {
                let part = &stack.parts[*number];
                let door = if part.kind.contract == Contract::Door { "door " } else { "" };
                format!("{door}\"{}\"", shown(&part.name))
            };
            let what = format!("no part is above {} or {}", name(first), name(second));
            refuse(&stack.parts[*second], what)
        }
        [] => Err(stack.source.problem(0..0, "no part is on top")),
    }
}

/// Writes a part and the parts below it. Recurses as deep as the stack, which is bounded when it is parsed.
fn part(stack: &Stack, of: &Part) -> String {
    let mut arguments = Vec::new();
    // Names may be omitted before the first positional key that isn't given.
    let mut in_order = true;
    for key in of.kind.keys.iter().filter(|key| key.positional) {
        match of.value(key.name) {
            Some(value) if in_order => arguments.push(positional(stack, of, key, value)),
            Some(value) => arguments.push(format!("{}={}", key.name, text(stack, of, key, value))),
            None => in_order = false,
        }
    }
    for key in of.kind.keys.iter().filter(|key| !key.positional) {
        if let Some(value) = of.value(key.name) {
            arguments.push(format!("{}={}", key.name, text(stack, of, key, value)));
        }
    }
    match arguments.as_slice() {
        [] => of.kind.name.to_owned(),
        arguments => format!("{}({})", of.kind.name, arguments.join(", ")),
    }
}

/// Writes a value without its key's name: a list then needs no brackets, unless it is empty.
fn positional(stack: &Stack, of: &Part, key: &Key, value: &Value) -> String {
    let items = items(stack, of, key, value);
    if items.is_empty() { "[]".to_owned() } else { items.join(", ") }
}

fn text(stack: &Stack, of: &Part, key: &Key, value: &Value) -> String {
    let items = items(stack, of, key, value).join(", ");
    if key.value.is_list() { format!("[{items}]") } else { items }
}

fn items(stack: &Stack, of: &Part, key: &Key, value: &Value) -> Vec<String> {
    match value {
        Value::Part(_) | Value::Parts(_) => {
            let children = of.references.iter().filter(|reference| reference.key == key.name);
            children.map(|reference| part(stack, &stack.parts[reference.part])).collect()
        }
        Value::Texts(texts) => texts.iter().map(|text| quote(text)).collect(),
        value => vec![quote(&value.to_text())],
    }
}
