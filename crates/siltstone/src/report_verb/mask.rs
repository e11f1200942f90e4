//! Replacement of secrets in texts: values of keys for passwords and the like, and passwords in addresses.
//!
//! A key is one for secrets if its name says so ([`is_secret`]), unless it only ever has a path in the kinds
//! of parts: `password_file` names a file. The values found in the stack are also replaced where other texts
//! quote them without their key.

use stack::{Registry, ValueKind};
use std::collections::BTreeSet;

/// Replacement of a secret.
pub const MASKED: &str = "(masked)";

/// Words in the name of a key for secrets.
const SECRET: [&str; 6] = ["password", "passwd", "passphrase", "secret", "token", "credential"];
/// Shortest value that is replaced where it has no key: shorter ones occur by chance.
const MIN_QUOTED: usize = 4;
/// Limit of the secrets that are remembered.
const MAX_LEARNT: usize = 1000;

/// Whether a name is one of a key for secrets, or for a file with secrets.
fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let is_key = name.split(['_', '-']).any(|word| word == "key");
    is_key || SECRET.iter().any(|word| name.contains(word))
}

/// Masks secrets, and counts them.
pub struct Mask {
    /// Names of keys that have paths.
    paths: BTreeSet<&'static str>,
    learnt: BTreeSet<String>,
    count: u64,
}

impl Mask {
    /// Creates a mask that knows the keys of these kinds.
    pub fn new(registry: &Registry) -> Mask {
        let keys = || registry.kinds.iter().flat_map(|kind| kind.keys);
        let is_path = |value: &ValueKind| matches!(value, ValueKind::Path);
        let others: BTreeSet<&str> = keys().filter(|key| !is_path(&key.value)).map(|key| key.name).collect();
        let paths = keys().filter(|key| is_path(&key.value)).map(|key| key.name);
        let paths = paths.filter(|name| !others.contains(name)).collect();
        Mask { paths, learnt: BTreeSet::new(), count: 0 }
    }

    /// Number of secrets that were replaced.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Remembers the secrets of a text, longest first when they are replaced.
    pub fn learn(&mut self, text: &str) {
        for (start, end) in self.secrets(text) {
            let value = text[start..end].trim_matches(['"', '\'']);
            if value.len() >= MIN_QUOTED && self.learnt.len() < MAX_LEARNT {
                self.learnt.insert(value.to_owned());
            }
        }
    }

    /// Returns the text without secrets.
    pub fn apply(&mut self, text: &str) -> String {
        // Remembered secrets first: a quotation of a value may end elsewhere than the value does.
        let mut text = text.to_owned();
        let mut learnt: Vec<&String> = self.learnt.iter().collect();
        learnt.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        for secret in learnt {
            self.count += text.matches(secret.as_str()).count() as u64;
            text = text.replace(secret.as_str(), MASKED);
        }
        let mut masked = String::with_capacity(text.len());
        let mut copied = 0;
        for (start, end) in self.secrets(&text) {
            if text[start..].starts_with(MASKED) {
                continue;
            }
            masked.push_str(&text[copied..start]);
            masked.push_str(MASKED);
            copied = end;
            self.count += 1;
        }
        masked.push_str(&text[copied..]);
        masked
    }

    /// Returns the places of secrets, in order and apart from each other.
    fn secrets(&self, text: &str) -> Vec<(usize, usize)> {
        let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
        let bytes = text.as_bytes();
        let (mut found, mut at) = (Vec::new(), 0);
        while at < bytes.len() {
            if bytes[at..].starts_with(b"://") {
                at += 3;
                if let Some(range) = user(bytes, at) {
                    at = range.1;
                    found.push(range);
                }
                continue;
            }
            if !is_word(bytes[at]) {
                at += 1;
                continue;
            }
            let end =
                bytes[at..].iter().position(|byte| !is_word(*byte)).map_or(bytes.len(), |count| at + count);
            let name = &text[at..end];
            at = end;
            if is_secret(name)
                && !self.paths.contains(name)
                && let Some(range) = value(bytes, end)
            {
                at = range.1;
                found.push(range);
            }
        }
        found
    }
}

/// Returns the place of a user and password that begin at `start`, before an `@`.
fn user(bytes: &[u8], start: usize) -> Option<(usize, usize)> {
    let is_end = |byte: &u8| byte.is_ascii_whitespace() || matches!(byte, b'/' | b'"' | b'\'' | b'?');
    let length = bytes[start..].iter().position(is_end).unwrap_or(bytes.len() - start);
    // A password may contain the character as well.
    let end = start + bytes[start..start + length].iter().rposition(|byte| *byte == b'@')?;
    (end > start).then_some((start, end))
}

/// Returns the place of the value of a key whose name ends at `at`: after `=` or `:`, in quotes or brackets,
/// or up to the next separator.
fn value(bytes: &[u8], mut at: usize) -> Option<(usize, usize)> {
    let blanks = |bytes: &[u8]| bytes.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
    if matches!(bytes.get(at)?, b'"' | b'\'') {
        at += 1;
    }
    at += blanks(&bytes[at..]);
    if !matches!(bytes.get(at)?, b'=' | b':') || bytes[at..].starts_with(b"://") {
        return None;
    }
    at += 1;
    at += blanks(&bytes[at..]);
    let end = end_of_value(&bytes[at..]) + at;
    (end > at).then_some((at, end))
}

fn end_of_value(bytes: &[u8]) -> usize {
    let after = |mark: &[u8]| {
        let inside = &bytes[mark.len()..];
        let end = inside.windows(mark.len()).position(|window| window == mark);
        end.map_or(bytes.len(), |end| end + 2 * mark.len())
    };
    match bytes {
        [b'"', b'"', b'"', ..] => after(b"\"\"\""),
        [b'\'', b'\'', b'\'', ..] => after(b"'''"),
        [b'\'', ..] => after(b"'"),
        [b'"', rest @ ..] => {
            let mut is_escaped = false;
            for (index, byte) in rest.iter().enumerate() {
                match byte {
                    _ if is_escaped => is_escaped = false,
                    b'\\' => is_escaped = true,
                    b'"' => return index + 2,
                    _ => {}
                }
            }
            bytes.len()
        }
        [open @ (b'[' | b'{'), rest @ ..] => {
            let close = if *open == b'[' { b']' } else { b'}' };
            rest.iter().position(|byte| *byte == close).map_or(bytes.len(), |end| end + 2)
        }
        _ => {
            let is_end =
                |byte: &u8| byte.is_ascii_whitespace() || matches!(byte, b',' | b')' | b'#' | b'}' | b']');
            bytes.iter().position(is_end).unwrap_or(bytes.len())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::registry;

    #[test]
    fn values_of_secret_keys_are_masked() {
        let mut mask = Mask::new(&registry());
        for (text, expected) in [
            ("password = \"pa\\\"ss\"\nx = 1", "password = (masked)\nx = 1"),
            ("a(b, password=hunter2, size=1MiB)", "a(b, password=(masked), size=1MiB)"),
            ("password_file = \"/etc/p\"", "password_file = \"/etc/p\""),
            ("api-key: 'x y'", "api-key: (masked)"),
            ("\"auth_token\": \"abc\", \"keys\": 7", "\"auth_token\": (masked), \"keys\": 7"),
            ("secrets = [\"a\", \"b\"] # c", "secrets = (masked) # c"),
            ("passphrase = \"\"\"\na\nb\"\"\"\nc", "passphrase = (masked)\nc"),
            ("passphrase = \"never closed\nb", "passphrase = (masked)"),
            ("redis://user:pass@host:6379/0", "redis://(masked)@host:6379/0"),
            ("redis://user:p@ss@host", "redis://(masked)@host"),
            ("nbd://host/x@y", "nbd://host/x@y"),
            ("the password was wrong", "the password was wrong"),
            ("key=", "key="),
        ] {
            assert_eq!(mask.apply(text), expected, "{text}");
        }
        assert_eq!(mask.count(), 9);
    }

    #[test]
    fn learnt_values_are_masked_everywhere() {
        let mut mask = Mask::new(&registry());
        mask.learn("password = \"hunter2\"\ntoken = \"hunter22\"\nkey = \"abc\"");
        assert_eq!(mask.apply("a hunter22, a hunter2 and abc"), "a (masked), a (masked) and abc");
        // As in JSON, where the quotes of the value are escaped.
        mask.learn("password = \"correct horse\"");
        let quoted = mask.apply(r#"{"stack":"x(password=\"correct horse\")"}"#);
        assert!(!quoted.contains("correct") && !quoted.contains("horse"), "{quoted}");
    }

    #[test]
    fn any_text_is_taken() {
        let mut random = runtime::Random::new(3);
        let mut mask = Mask::new(&registry());
        for _ in 0..2000 {
            let words = ["password", "=", "\"", "'", "ä", "://", "@", "[", "\n", " ", "x", "\\", "key", ":"];
            let count = random.below(12);
            let text: String = (0..count).map(|_| words[random.below(words.len() as u64) as usize]).collect();
            mask.learn(&text);
            mask.apply(&text);
        }
    }
}
