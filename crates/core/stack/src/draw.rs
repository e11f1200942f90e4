//! Pictures of a stack: a text tree from the doors down, and JSON.

use crate::contract::Contract;
use crate::model::{Part, Stack};
use crate::shape::Shape;
use crate::units::format_size;
use crate::value::Value;
use serde_json::json;

impl Stack {
    /// Draws the stack as text.
    pub fn draw(&self) -> String {
        draw(self, None)
    }

    /// Returns the stack as JSON: `shards`, `line` (null if there is no one-line form) and `parts`.
    pub fn to_json(&self) -> serde_json::Value {
        to_json(self, None)
    }
}

/// Draws a tree from each door and each part without users. A part with several users is drawn in full once.
/// Recurses as deep as the stack, which is bounded when it is parsed.
pub(crate) fn draw(stack: &Stack, shapes: Option<&[Shape]>) -> String {
    let mut used = vec![false; stack.parts.len()];
    for reference in stack.parts.iter().flat_map(|part| &part.references) {
        used[reference.part] = true;
    }
    let mut picture = Picture { stack, shapes, drawn: vec![false; stack.parts.len()], text: String::new() };
    if stack.shards() != 1 {
        picture.text.push_str(&format!("{} shards\n", stack.shards()));
    }
    for root in (0..used.len()).filter(|number| !used[*number]) {
        picture.part(root, None, "", "");
    }
    picture.text
}

struct Picture<'a> {
    stack: &'a Stack,
    shapes: Option<&'a [Shape]>,
    drawn: Vec<bool>,
    text: String,
}

impl Picture<'_> {
    /// Draws a part; `before` precedes its own line, `below` those of its children.
    fn part(&mut self, number: usize, key: Option<&str>, before: &str, below: &str) {
        let part = &self.stack.parts[number];
        let key = key.map_or_else(String::new, |key| format!("{key}: "));
        let title = format!("{before}{key}{} \"{}\"", part.kind().name, plain(part.name()));
        if std::mem::replace(&mut self.drawn[number], true) && !part.references.is_empty() {
            self.text.push_str(&format!("{title}  (see above)\n"));
            return;
        }
        self.text.push_str(&title);
        self.details(number, part);
        self.text.push('\n');
        let keys_differ = part.references.windows(2).any(|pair| pair[0].key != pair[1].key);
        let last = part.references.len().saturating_sub(1);
        for (index, reference) in part.references.iter().enumerate() {
            let (branch, line) = if index == last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
            // A single key for all parts isn't shown.
            let key = keys_differ.then_some(reference.key);
            self.part(reference.part, key, &format!("{below}{branch}"), &format!("{below}{line}"));
        }
    }

    fn details(&mut self, number: usize, part: &Part) {
        let shape = self.shapes.map(|shapes| shapes[number].clone()).unwrap_or_default();
        if let Some(bytes) = shape.bytes {
            self.text.push_str(&format!("  {}", format_size(bytes)));
        }
        if let Some(block_size) = shape.block_size {
            self.text.push_str(&format!(" in blocks of {}", format_size(block_size.into())));
        }
        for (key, value) in part.values().filter(|(_, value)| value.children().is_empty()) {
            // The part's size is shown already.
            if matches!(value, Value::Size(bytes) if key == "size" && shape.bytes == Some(*bytes)) {
                continue;
            }
            self.text.push_str(&format!("  {key}={}", plain(&value.to_text())));
        }
    }
}

/// Returns a name or text without the characters that would break the picture.
fn plain(text: &str) -> String {
    text.chars().map(|letter| if letter.is_control() { '?' } else { letter }).collect()
}

/// Returns `shards`, `line` (null if the stack is no tree) and `parts`, in the order of the stack.
pub(crate) fn to_json(stack: &Stack, shapes: Option<&[Shape]>) -> serde_json::Value {
    let part = |(number, part): (usize, &Part)| {
        let keys = part.values().map(|(key, value)| (key.to_owned(), value.to_json()));
        let below = part.references.iter().map(|reference| stack.parts[reference.part].name());
        let mut object = json!({
            "name": part.name(),
            "contract": part.kind().contract.section(),
            "kind": part.kind().name,
            "keys": serde_json::Value::Object(keys.collect()),
            "stands_on": below.collect::<Vec<_>>(),
        });
        if let Some(shapes) = shapes
            && part.kind().contract != Contract::Door
        {
            object["bytes"] = json!(shapes[number].bytes);
            object["block_size"] = json!(shapes[number].block_size);
        }
        object
    };
    json!({
        "shards": stack.shards(),
        "line": stack.to_line().ok(),
        "parts": stack.parts.iter().enumerate().map(part).collect::<Vec<_>>(),
    })
}
