//! Keys and values on the command line and on the terminal: bytes, with unprintable ones escaped, or in
//! hexadecimal.

use crate::failure::Failure;
use serde_json::{Map, Value};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// Returns the bytes of an argument, which is in hexadecimal if `hex` is set.
///
/// # Errors
/// [`Failure::Usage`] for anything but pairs of hexadecimal digits.
pub fn bytes_of(name: &str, argument: &OsStr, hex: bool) -> Result<Vec<u8>, Failure> {
    let bytes = argument.as_bytes();
    if !hex {
        return Ok(bytes.to_vec());
    }
    let digit = |byte: &u8| char::from(*byte).to_digit(16).map(|digit| digit as u8);
    let pair = |pair: &[u8]| match pair {
        [high, low] => Some(digit(high)? << 4 | digit(low)?),
        _ => None,
    };
    let decoded: Option<Vec<u8>> = bytes.chunks(2).map(pair).collect();
    decoded.ok_or_else(|| {
        Failure::Usage(format!(
            "{name} \"{}\": expected pairs of hexadecimal digits, as --hex says",
            escaped(bytes)
        ))
    })
}

fn push_hex(text: &mut String, byte: u8) {
    text.push_str(&format!("\\x{byte:02x}"));
}

/// Formats bytes as text: printable characters unchanged, a backslash doubled, all other bytes as `\xNN`.
pub fn escaped(bytes: &[u8]) -> String {
    let mut text = String::new();
    for chunk in bytes.utf8_chunks() {
        for letter in chunk.valid().chars() {
            match letter {
                '\\' => text.push_str("\\\\"),
                letter if letter.is_control() => {
                    let mut buffer = [0; 4];
                    letter.encode_utf8(&mut buffer).bytes().for_each(|byte| push_hex(&mut text, byte));
                }
                letter => text.push(letter),
            }
        }
        chunk.invalid().iter().for_each(|byte| push_hex(&mut text, *byte));
    }
    text
}

/// Formats bytes for the terminal.
pub fn shown(bytes: &[u8], hex: bool) -> String {
    match hex {
        true => bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
        false => escaped(bytes),
    }
}

/// Inserts bytes into an object: as text under `name`, or in hexadecimal under `name_hex` if `hex` is set or
/// they aren't UTF-8.
pub fn insert(object: &mut Map<String, Value>, name: &str, bytes: &[u8], hex: bool) {
    match std::str::from_utf8(bytes) {
        Ok(text) if !hex => object.insert(name.to_owned(), text.into()),
        _ => object.insert(format!("{name}_hex"), shown(bytes, true).into()),
    };
}

/// Returns the first key after all keys that begin with `prefix`; `None` if there is none.
pub fn end_of_prefix(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|byte| *byte < u8::MAX)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_escaped_and_read_in_hexadecimal() {
        assert_eq!(escaped("a\u{e4}\\b\n\u{1b}\u{85}".as_bytes()), "a\u{e4}\\\\b\\x0a\\x1b\\xc2\\x85");
        assert_eq!(escaped(b"\xFF\x00z"), "\\xff\\x00z");
        assert_eq!(bytes_of("KEY", OsStr::new("00fFa1"), true).unwrap(), [0, 0xFF, 0xA1]);
        assert_eq!(bytes_of("KEY", OsStr::new("0f"), false).unwrap(), b"0f");
        for wrong in ["0", "0g", "xx"] {
            assert!(matches!(bytes_of("KEY", OsStr::new(wrong), true), Err(Failure::Usage(_))));
        }
        assert_eq!(shown(b"\x01\xAB", true), "01ab");
    }

    #[test]
    fn a_prefix_ends_before_the_next_key() {
        assert_eq!(end_of_prefix(b"ab"), Some(b"ac".to_vec()));
        assert_eq!(end_of_prefix(b"a\xFF\xFF"), Some(b"b".to_vec()));
        assert_eq!(end_of_prefix(b"\xFF"), None);
        assert_eq!(end_of_prefix(b""), None);
    }
}
