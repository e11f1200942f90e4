//! Replacement of secrets in the files of a report ([`secrets`]). The values found in the stack are also
//! replaced where other texts quote them without their key.

use stack::secrets::{MASKED, secrets};
use std::collections::BTreeSet;

/// Shortest value that is replaced where it has no key: shorter ones occur by chance.
const MIN_QUOTED: usize = 4;
/// Limit of the secrets that are remembered.
const MAX_LEARNT: usize = 1000;

/// Masks secrets, and counts them.
#[derive(Default)]
pub struct Mask {
    learnt: BTreeSet<String>,
    count: u64,
}

impl Mask {
    /// Number of secrets that were replaced.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Remembers the secrets of a text, longest first when they are replaced.
    pub fn learn(&mut self, text: &str) {
        for range in secrets(text) {
            let value = &text[range];
            // Each value of a list.
            let values = value.strip_prefix(['[', '{']).map_or(vec![value], |list| list.split(',').collect());
            for value in values {
                let is_mark = |letter: char| letter.is_whitespace() || "\"'\\[]{}".contains(letter);
                let value = value.trim_matches(is_mark);
                if value.len() >= MIN_QUOTED && self.learnt.len() < MAX_LEARNT {
                    self.learnt.insert(value.to_owned());
                }
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
        for range in secrets(&text) {
            if text[range.start..].starts_with(MASKED) {
                continue;
            }
            masked.push_str(&text[copied..range.start]);
            masked.push_str(MASKED);
            copied = range.end;
            self.count += 1;
        }
        masked.push_str(&text[copied..]);
        masked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masked_values_are_counted() {
        let mut mask = Mask::default();
        let masked = mask.apply("password = (masked), token = \"abc\"\nredis://user:pass@host");
        assert_eq!(masked, "password = (masked), token = (masked)\nredis://(masked)@host");
        assert_eq!(mask.count(), 2);
    }

    #[test]
    fn learnt_values_are_masked_everywhere() {
        let mut mask = Mask::default();
        mask.learn("password = \"hunter2\"\ntoken = \"hunter22\"\nkey = \"abc\"");
        assert_eq!(mask.apply("a hunter22, a hunter2 and abc"), "a (masked), a (masked) and abc");
        // As in JSON, where the quotes of the value are escaped.
        mask.learn("password = \"correct horse\"");
        let quoted = mask.apply(r#"{"stack":"x(password=\"correct horse\")"}"#);
        assert!(!quoted.contains("correct") && !quoted.contains("horse"), "{quoted}");
        mask.learn("tokens = [\"first\", [\"second\"]]");
        assert_eq!(mask.apply("first or second"), "(masked) or (masked)");
    }

    #[test]
    fn any_text_is_taken() {
        let mut random = runtime::Random::new(3);
        let mut mask = Mask::default();
        for _ in 0..4000 {
            let words = [
                "password",
                "=",
                "\"",
                "'",
                "ä",
                "://",
                "@",
                "[",
                "]",
                "{",
                "\n",
                " ",
                "x",
                "\\",
                "key",
                ":",
                ">",
                "/",
                "-----BEGIN ",
                "-----END ",
                "Bearer ",
            ];
            let count = random.below(12);
            let text: String = (0..count).map(|_| words[random.below(words.len() as u64) as usize]).collect();
            mask.learn(&text);
            mask.apply(&text);
        }
    }
}
