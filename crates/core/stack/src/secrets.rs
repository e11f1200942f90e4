//! Secrets in texts: values of keys for passwords and the like, passwords in addresses, and the bodies of
//! keys and certificates in PEM form.
//!
//! The name of a key decides whether its value is a secret; a name that ends with `_file` is one for a path.
//!
//! # Promises
//! - [`secrets`] takes any text, as errors and reports quote it: stacks, JSON, HTTP headers, logs.
//! - Its time is proportional to the length of the text, for any text.
//!
//! The callers replace the secrets that are found, by [`MASKED`].

use std::ops::Range;

/// Replacement of a secret.
pub const MASKED: &str = "(masked)";

/// Texts in the names of keys whose values are secrets.
const SECRET: [&str; 6] = ["password", "passwd", "passphrase", "secret", "token", "credential"];
/// Ends of the words of such a name, between `_` and `-`.
const SECRET_ENDS: [&str; 5] = ["key", "pwd", "pass", "auth", "psk"];
/// Start and end of a text in PEM form.
const PEM: [&str; 2] = ["-----BEGIN ", "-----END "];

/// Whether the value of a key with this name is a secret.
fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    // Names such as `apikey`, `privateKey` and `requirepass` are one word.
    let is_word = |word: &str| SECRET_ENDS.iter().any(|end| word.ends_with(end)) || word == "authorization";
    let is_named = name.split(['_', '-']).any(is_word) || SECRET.iter().any(|text| name.contains(text));
    is_named && !name.ends_with("_file")
}

/// Returns the ranges of secrets in bytes of the text, in ascending order and without overlaps.
pub fn secrets(text: &str) -> Vec<Range<usize>> {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    let bytes = text.as_bytes();
    let (mut found, mut at, mut without_user) = (Vec::new(), 0, 0);
    while at < bytes.len() {
        if bytes[at..].starts_with(b"://") {
            at += 3;
            if at >= without_user {
                match user(bytes, at) {
                    Ok(range) => {
                        at = range.end;
                        found.push(range);
                    }
                    Err(end) => without_user = end,
                }
            }
        } else if bytes[at..].starts_with(PEM[0].as_bytes()) {
            let start = at + PEM[0].len();
            at = text[start..].find(PEM[1]).map_or(bytes.len(), |end| start + end);
            found.push(start..at);
        } else if is_word(bytes[at]) {
            let length = bytes[at..].iter().position(|byte| !is_word(*byte));
            let end = length.map_or(bytes.len(), |length| at + length);
            let range = is_secret(&text[at..end]).then(|| value(bytes, end)).flatten();
            at = range.as_ref().map_or(end, |range| range.end);
            found.extend(range);
        } else {
            at += 1;
        }
    }
    found
}

/// Returns the place of a user and password that begin at `start`, before an `@`; if there is none, the end
/// of the bytes that have no `@`.
fn user(bytes: &[u8], start: usize) -> std::result::Result<Range<usize>, usize> {
    let until = |is_end: &dyn Fn(u8) -> bool| {
        let length = bytes[start..].iter().position(|byte| is_end(*byte));
        length.map_or(bytes.len(), |length| start + length)
    };
    let is_end = |byte: u8| byte.is_ascii_whitespace() || matches!(byte, b'"' | b'\'');
    // A password may have `/` and `?` as well; without one, these end the host.
    let host = until(&|byte| is_end(byte) || matches!(byte, b'/' | b'?'));
    let has_password = bytes[start..host].contains(&b':') && !bytes[start..].starts_with(b"[");
    let end = if has_password { until(&is_end) } else { host };
    // A password may contain the character as well.
    match bytes[start..end].iter().rposition(|byte| *byte == b'@') {
        Some(length) if length > 0 => Ok(start..start + length),
        _ => Err(end),
    }
}

/// Returns the place of the value of a key whose name ends at `at`: after `=`, `:`, `=>` or the like, in
/// quotes or brackets, or up to the next separator. Quotes may be escaped, as in JSON inside of JSON.
fn value(bytes: &[u8], mut at: usize) -> Option<Range<usize>> {
    let blanks = |bytes: &[u8]| bytes.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
    at += usize::from(bytes.get(at) == Some(&b'\\'));
    at += usize::from(matches!(bytes.get(at)?, b'"' | b'\''));
    at += blanks(&bytes[at..]);
    if !matches!(bytes.get(at)?, b'=' | b':') || bytes[at..].starts_with(b"://") {
        return None;
    }
    at += 1;
    at += usize::from(matches!(bytes.get(at), Some(b'=' | b'>')));
    at += blanks(&bytes[at..]);
    let end = end_of_value(&bytes[at..]) + at;
    (end > at).then_some(at..end)
}

/// Returns the end of a value: of a quoted one, of a list with all that is nested in it, or of a word.
fn end_of_value(bytes: &[u8]) -> usize {
    if let [b'[' | b'{', ..] = bytes {
        let (mut depth, mut at) = (0_usize, 0);
        while at < bytes.len() {
            match bytes[at] {
                b'[' | b'{' => depth += 1,
                b']' | b'}' => depth -= 1,
                _ if is_quoted(&bytes[at..]) => at += end_of_quoted(&bytes[at..]) - 1,
                _ => {}
            }
            at += 1;
            if depth == 0 {
                return at;
            }
        }
        return bytes.len();
    }
    if is_quoted(bytes) {
        return end_of_quoted(bytes);
    }
    let is_end = |byte: &u8| byte.is_ascii_whitespace() || matches!(byte, b',' | b')' | b'#' | b'}' | b']');
    let word = |bytes: &[u8]| bytes.iter().position(is_end).unwrap_or(bytes.len());
    // The scheme of an HTTP header isn't the secret.
    let scheme = ["Bearer ", "Basic "].into_iter().find(|scheme| {
        bytes.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme.as_bytes()))
    });
    let length = scheme.map_or(0, str::len);
    length + word(&bytes[length..])
}

fn is_quoted(bytes: &[u8]) -> bool {
    matches!(bytes, [b'"' | b'\'', ..] | [b'\\', b'"', ..])
}

fn end_of_quoted(bytes: &[u8]) -> usize {
    let after = |mark: &[u8], is_escape: fn(u8) -> bool| {
        let inside = &bytes[mark.len()..];
        let ends = |at: &usize| inside[*at..].starts_with(mark) && (*at == 0 || !is_escape(inside[at - 1]));
        (0..inside.len()).find(ends).map_or(bytes.len(), |end| end + 2 * mark.len())
    };
    match bytes {
        [b'"', b'"', b'"', ..] => after(b"\"\"\"", |_| false),
        [b'\'', b'\'', b'\'', ..] => after(b"'''", |_| false),
        [b'\'', ..] => after(b"'", |_| false),
        [b'\\', ..] => after(b"\\\"", |byte| byte == b'\\'),
        _ => {
            let mut is_escaped = false;
            let ends = |byte: &u8| {
                let ends = *byte == b'"' && !is_escaped;
                is_escaped = *byte == b'\\' && !is_escaped;
                ends
            };
            bytes[1..].iter().position(ends).map_or(bytes.len(), |end| end + 2)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_found_in_any_text() {
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
            let mut masked = text.to_owned();
            for range in secrets(text).into_iter().rev() {
                masked.replace_range(range, MASKED);
            }
            assert_eq!(masked, expected, "{text}");
        }
    }
}
