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
    fn values_of_secret_keys_are_masked() {
        let mut mask = Mask::default();
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
            ("tokens = [[\"a]\", \"b\"], [\"c\"]]\nx = [1]", "tokens = (masked)\nx = [1]"),
            ("secret = { a = [\"x\"], b = { c = 1 } }, d", "secret = (masked), d"),
            ("secret = [\"never\", [\"closed\"]", "secret = (masked)"),
            ("redis://user:a/b?c=d@host/0", "redis://(masked)@host/0"),
            ("nbd://[::1]:10809/x@y", "nbd://[::1]:10809/x@y"),
            ("pwd=abc apikey=def, apiKey: ghi", "pwd=(masked) apikey=(masked), apiKey: (masked)"),
            ("user=a auth=b author=c requirepass=d", "user=a auth=(masked) author=c requirepass=(masked)"),
            ("password => abc, secret := 'd'", "password => (masked), secret := (masked)"),
            ("Authorization: Bearer abc\nHost: x", "Authorization: (masked)\nHost: x"),
            (r#"{"t":"{\"password\":\"a\\\"b\",\"x\":1}"}"#, r#"{"t":"{\"password\":(masked),\"x\":1}"}"#),
            (
                "ä-----BEGIN PRIVATE KEY-----\nMIIE\nvQ==\n-----END PRIVATE KEY-----\nrest",
                "ä-----BEGIN (masked)-----END PRIVATE KEY-----\nrest",
            ),
            ("-----BEGIN RSA PRIVATE KEY-----\nMIIE", "-----BEGIN (masked)"),
        ] {
            assert_eq!(mask.apply(text), expected, "{text}");
        }
        assert_eq!(mask.count(), 24);
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
