//! Elements of XML texts, as stores answer with.
//!
//! A scanner finds elements by their local names; namespaces, attributes and unknown elements are ignored.
//! It takes no memory and doesn't recurse: a text of a million nested elements is ordinary input.

use std::borrow::Cow;

/// A tag of a text: its local name, and its first and last byte.
struct Tag<'t> {
    name: &'t str,
    /// Whether it is an end tag.
    is_end: bool,
    /// Whether it is both, `<name/>`.
    is_empty: bool,
    begin: usize,
    end: usize,
}

/// Next tag of a text from an offset on; `None` at its end, also if the text ends inside a tag.
fn next_tag(text: &str, mut from: usize) -> Option<Tag<'_>> {
    loop {
        let begin = from + text.get(from..)?.find('<')?;
        let rest = &text[begin..];
        // Comments, declarations and literal text have no tags.
        let skipped = [("<!--", "-->"), ("<![CDATA[", "]]>"), ("<?", "?>"), ("<!", ">")];
        if let Some((open, close)) = skipped.iter().find(|(open, _)| rest.starts_with(open)) {
            from = begin + open.len() + rest[open.len()..].find(close)? + close.len();
            continue;
        }
        let end = begin + rest.find('>')?;
        let inner = &text[begin + 1..end];
        let (is_end, is_empty) = (inner.starts_with('/'), inner.ends_with('/'));
        let inner = inner.trim_start_matches('/').trim_end_matches('/');
        let name = inner.split(|letter: char| letter.is_ascii_whitespace()).next().unwrap_or_default();
        let name = name.rsplit(':').next().unwrap_or_default();
        return Some(Tag { name, is_end, is_empty, begin, end: end + 1 });
    }
}

/// Elements of a name, in their order, without those inside of others of the same name: their contents, still
/// escaped. Ends before an element that isn't closed.
pub(crate) fn elements<'t>(text: &'t str, name: &'t str) -> impl Iterator<Item = &'t str> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let (mut begin, mut depth) = (None, 0_u64);
        loop {
            let tag = next_tag(text, at)?;
            at = tag.end;
            if tag.name != name {
                continue;
            }
            match (begin, tag.is_empty, tag.is_end) {
                (None, true, _) => return Some(""),
                (_, true, _) | (None, _, true) => {}
                (None, ..) => begin = Some(tag.end),
                (Some(_), _, false) => depth += 1,
                (Some(start), _, true) if depth == 0 => return Some(&text[start..tag.begin]),
                (Some(_), _, true) => depth -= 1,
            }
        }
    })
}

/// First element of a name, unescaped.
pub(crate) fn element<'t>(text: &'t str, name: &'t str) -> Option<Cow<'t, str>> {
    elements(text, name).next().map(unescaped)
}

/// Replaces references of characters; unknown ones remain as they are.
pub(crate) fn unescaped(text: &str) -> Cow<'_, str> {
    if !text.contains('&') {
        return Cow::Borrowed(text);
    }
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(begin) = rest.find('&') {
        plain.push_str(&rest[..begin]);
        rest = &rest[begin..];
        // The longest reference is &#x10FFFF;.
        let end = rest.bytes().take(10).position(|byte| byte == b';');
        let character = end.and_then(|end| character(&rest[1..end]));
        match (character, end) {
            (Some(character), Some(end)) => {
                plain.push(character);
                rest = &rest[end + 1..];
            }
            _ => {
                plain.push('&');
                rest = &rest[1..];
            }
        }
    }
    plain.push_str(rest);
    Cow::Owned(plain)
}

fn character(reference: &str) -> Option<char> {
    match reference {
        "amp" => Some('&'),
        "lt" => Some('<'),
        "gt" => Some('>'),
        "quot" => Some('"'),
        "apos" => Some('\''),
        _ => {
            let number = reference.strip_prefix('#')?;
            let code = match number.strip_prefix(['x', 'X']) {
                Some(digits) => u32::from_str_radix(digits, 16),
                None => number.parse(),
            };
            code.ok().and_then(char::from_u32)
        }
    }
}

/// Escapes the text of an element.
pub(crate) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Checks the scanner on any text, for fuzzing: no panic, and unescaping reverses escaping.
///
/// # Panics
/// If a check fails.
pub(crate) fn check_any_text(text: &str) {
    assert_eq!(unescaped(&escaped(text)), text);
    for name in ["Error", "e", ""] {
        let found: usize = elements(text, name).map(|inner| unescaped(inner).len()).sum();
        assert!(found <= text.len());
    }
    let inside = format!("<Error>{}</Error>", escaped(text));
    assert_eq!(element(&inside, "Error").as_deref(), Some(text));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_found_whatever_is_around_them() {
        let text = "<?xml version=\"1.0\"?><!-- <Key>no</Key> --><r xmlns=\"u\"><Key>a&amp;&#98;&quot;</Key>\
                    <x:Key a='b'>c</x:Key><Key/><Other><Key>d<Key>e</Key></Key></Other></r>";
        assert_eq!(
            elements(text, "Key").collect::<Vec<_>>(),
            ["a&amp;&#98;&quot;", "c", "", "d<Key>e</Key>"]
        );
        assert_eq!(element(text, "Key").as_deref(), Some("a&b\""));
        assert_eq!(element(text, "Missing"), None);
        assert_eq!(element("<Key>a<Key>b</Key>", "Key"), None, "it isn't closed");
        assert_eq!(unescaped("&x; &#1114112; &"), "&x; &#1114112; &");
    }

    #[test]
    fn deep_and_long_texts_are_ordinary() {
        let deep = "<a>".repeat(1 << 19);
        assert_eq!(elements(&deep, "a").count(), 0);
        assert_eq!(element(&(deep + "<Code>x</Code>"), "Code").as_deref(), Some("x"));
        let many = "<a>1</a>".repeat(1 << 16);
        assert_eq!(elements(&many, "a").count(), 1 << 16);
    }
}
