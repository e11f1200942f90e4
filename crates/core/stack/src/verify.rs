//! Check of the declarations of all kinds.

use crate::key::ValueKind;
use crate::kind::{Kind, Registry};
use crate::metric;
use crate::model::Stack;
use crate::value::Value;

impl Registry {
    /// Checks the declarations: names are words and unique, defaults have the type of their key, a positional
    /// list is the last positional key, metrics of one name have one meaning, examples are stacks with a part
    /// of that kind. A program has one test that calls this.
    ///
    /// # Errors
    /// The first invalid declaration.
    pub fn verify(&self) -> Result<(), String> {
        for (number, kind) in self.kinds.iter().enumerate() {
            if self.kinds[..number].iter().any(|other| other.name == kind.name) {
                return Err(format!("kind \"{}\" is listed twice", kind.name));
            }
            let allowed = |letter: char| matches!(letter, 'a'..='z' | '0'..='9' | '_' | '-');
            if kind.name.is_empty() || !kind.name.chars().all(allowed) {
                return Err(format!("kind \"{}\": expected lower-case letters, digits, _ and -", kind.name));
            }
            verify_keys(kind)?;
            let earlier = self.kinds[..number].iter().flat_map(|other| other.all_metrics());
            metric::verify(kind.all_metrics(), earlier)
                .map_err(|error| format!("kind \"{}\": {error}", kind.name))?;
            let example = Stack::from_line("example", kind.example, self)
                .map_err(|problems| format!("kind \"{}\": {problems}", kind.name))?;
            if !example.parts().any(|part| part.kind().name == kind.name) {
                return Err(format!("kind \"{}\": its example has no part of this kind", kind.name));
            }
        }
        Ok(())
    }
}

fn verify_keys(kind: &Kind) -> Result<(), String> {
    let mut list_before = false;
    for (number, key) in kind.keys.iter().enumerate() {
        let of = format!("key \"{}\" of kind \"{}\"", key.name, kind.name);
        let allowed = |letter: char| matches!(letter, 'a'..='z' | '0'..='9' | '_');
        if key.name.is_empty() || key.name == "kind" || !key.name.chars().all(allowed) {
            return Err(format!("{of}: expected lower-case letters, digits and _, and not \"kind\""));
        }
        if kind.keys[..number].iter().any(|other| other.name == key.name) {
            return Err(format!("{of} is declared twice"));
        }
        if key.positional && list_before {
            return Err(format!(
                "{of} is positional after a positional list, which takes all remaining values"
            ));
        }
        list_before |= key.positional && key.value.is_list();
        if key.may_be_missing && key.value != ValueKind::Devices {
            return Err(format!("{of} names no list of devices, so it can't do without one"));
        }
        if key.holds_contents && !key.value.names_parts() {
            return Err(format!("{of} names no parts, so none has contents"));
        }
        let Some(default) = key.default else { continue };
        if key.required || key.value.names_parts() || key.value.is_list() {
            return Err(format!("{of} can't have a default: it is required, a part or a list"));
        }
        Value::from_word(key, default).map_err(|problem| format!("{of}: its default {problem}"))?;
    }
    Ok(())
}
