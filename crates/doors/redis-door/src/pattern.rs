//! Patterns of keys as in redis: `*`, `?`, `[abc]`, `[a-z]`, `[^a]`, and `\` before a literal character.
//!
//! The number of steps of a match is at most the product of the lengths of key and pattern; a pattern has at
//! most [`MAX_BYTES`].

use crate::command::Failure;

/// Maximum length of a pattern, in bytes.
pub const MAX_BYTES: usize = 1024;

/// Set of characters, one bit for each.
type Set = [u64; 4];

#[derive(Debug, Clone, PartialEq, Eq)]
enum Token {
    /// Any number of bytes, including none.
    Any,
    /// One byte.
    One,
    Byte(u8),
    Set(Box<Set>),
}

impl Token {
    /// Whether the token matches this single byte.
    fn matches(&self, byte: u8) -> bool {
        match self {
            Token::Any => false,
            Token::One => true,
            Token::Byte(own) => *own == byte,
            Token::Set(set) => set[usize::from(byte / 64)] >> (byte % 64) & 1 == 1,
        }
    }
}

/// A parsed pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    tokens: Vec<Token>,
    ignores_case: bool,
}

impl Pattern {
    /// Parses a pattern. Any bytes of at most [`MAX_BYTES`] are valid: an unclosed set ends with the
    /// pattern.
    ///
    /// # Errors
    /// A failure if the pattern is too long.
    pub fn parse(text: &[u8]) -> Result<Pattern, Failure> {
        if text.len() > MAX_BYTES {
            let length = text.len();
            return Err(Failure::new(format!("ERR pattern of {length} bytes; expected at most {MAX_BYTES}")));
        }
        let mut tokens = Vec::new();
        let mut rest = text;
        while let [first, after @ ..] = rest {
            rest = after;
            let token = match (first, after) {
                (b'*', _) => Token::Any,
                (b'?', _) => Token::One,
                (b'[', _) => Token::Set(Box::new(parse_set(&mut rest))),
                (b'\\', [escaped, after @ ..]) => {
                    rest = after;
                    Token::Byte(*escaped)
                }
                (byte, _) => Token::Byte(*byte),
            };
            if token != Token::Any || tokens.last() != Some(&Token::Any) {
                tokens.push(token);
            }
        }
        Ok(Pattern { tokens, ignores_case: false })
    }

    /// Parses a pattern for lower-case names, which ignores the case of letters.
    ///
    /// # Errors
    /// A failure if the pattern is too long.
    pub fn parse_name(text: &[u8]) -> Result<Pattern, Failure> {
        let pattern = Pattern::parse(&text.to_ascii_lowercase())?;
        Ok(Pattern { ignores_case: true, ..pattern })
    }

    /// Whether every key matches.
    pub fn is_any(&self) -> bool {
        self.tokens == [Token::Any]
    }

    /// Whether a key matches.
    pub fn matches(&self, key: &[u8]) -> bool {
        let (mut token, mut byte) = (0, 0);
        // Token after the last `*`, and first byte that the `*` doesn't cover.
        let mut retry = None;
        while byte < key.len() {
            let own = if self.ignores_case { key[byte].to_ascii_lowercase() } else { key[byte] };
            match (self.tokens.get(token), retry) {
                (Some(Token::Any), _) => {
                    token += 1;
                    retry = Some((token, byte));
                }
                (Some(one), _) if one.matches(own) => (token, byte) = (token + 1, byte + 1),
                (_, Some((after, first))) => {
                    (token, byte) = (after, first + 1);
                    retry = Some((after, first + 1));
                }
                (_, None) => return false,
            }
        }
        self.tokens[token..].iter().all(|token| *token == Token::Any)
    }
}

/// Parses a set after its `[`, including the closing bracket.
fn parse_set(rest: &mut &[u8]) -> Set {
    let mut set = [0; 4];
    let mut add = |from: u8, to: u8| {
        for byte in from.min(to)..=from.max(to) {
            set[usize::from(byte / 64)] |= 1 << (byte % 64);
        }
    };
    let is_inverse = rest.first() == Some(&b'^');
    let mut text = &rest[usize::from(is_inverse)..];
    loop {
        text = match text {
            [] => break,
            [b']', after @ ..] => {
                text = after;
                break;
            }
            [b'\\', escaped, after @ ..] => {
                add(*escaped, *escaped);
                after
            }
            [from, b'-', to, after @ ..] => {
                add(*from, *to);
                after
            }
            [one, after @ ..] => {
                add(*one, *one);
                after
            }
        };
    }
    *rest = text;
    if is_inverse { set.map(|bits| !bits) } else { set }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn matches(pattern: &str, key: &str) -> bool {
        Pattern::parse(pattern.as_bytes()).expect("short").matches(key.as_bytes())
    }

    #[test]
    fn patterns_match_as_in_redis() {
        let yes = [
            ("", ""),
            ("*", ""),
            ("*", "abc"),
            ("**", "a"),
            ("a*c", "abbc"),
            ("a*c", "acbc"),
            ("*b*", "abc"),
            ("?", "a"),
            ("h[ae]llo", "hallo"),
            ("h[a-c]llo", "hbllo"),
            ("h[c-a]llo", "hbllo"),
            ("h[^e]llo", "hallo"),
            ("\\*", "*"),
            ("a\\", "a\\"),
            ("[\\]]", "]"),
            ("[a", "a"),
            ("[]-a]", "-a]"),
            ("[^]", "x"),
            ("*[0-9]?", "key12"),
            ("*.*.x", "a.b.c.x"),
            ("user:*:name", "user:1:2:name"),
        ];
        for (pattern, key) in yes {
            let expected = pattern != "[]-a]";
            assert_eq!(matches(pattern, key), expected, "{pattern} on {key}");
        }
        let no = [
            ("", "a"),
            ("?", ""),
            ("?", "ab"),
            ("a*c", "ab"),
            ("h[^e]llo", "hello"),
            ("[]", "a"),
            ("\\*", "a"),
            ("A", "a"),
            ("[a", "b"),
            ("*a", "ab"),
            ("a*", "ba"),
        ];
        for (pattern, key) in no {
            assert!(!matches(pattern, key), "{pattern} on {key}");
        }
        assert!(Pattern::parse_name(b"MAX*").expect("short").matches(b"maxMemory"));
        assert!(Pattern::parse(&[b'*'; MAX_BYTES + 1]).is_err());
        assert!(Pattern::parse(b"**").expect("short").is_any());
    }

    #[test]
    fn many_stars_take_bounded_time() {
        let pattern = Pattern::parse("a*".repeat(500).as_bytes()).expect("short");
        assert!(!pattern.matches(&[b"a".repeat(400), vec![b'b'; 30_000]].concat()));
    }

    /// Reference implementation: tries every length for every star.
    fn tried(tokens: &[Token], key: &[u8]) -> bool {
        match tokens {
            [] => key.is_empty(),
            [Token::Any, rest @ ..] => (0..=key.len()).any(|skip| tried(rest, &key[skip..])),
            [one, rest @ ..] => key.first().is_some_and(|byte| one.matches(*byte)) && tried(rest, &key[1..]),
        }
    }

    proptest! {
        #[test]
        fn one_place_to_return_to_is_enough(pattern in "[ab?*\\[\\]^-]{0,10}", key in "[ab-]{0,10}") {
            let pattern = Pattern::parse(pattern.as_bytes()).expect("short");
            prop_assert_eq!(pattern.matches(key.as_bytes()), tried(&pattern.tokens, key.as_bytes()));
        }
    }
}
