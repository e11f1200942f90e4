//! Bytes as hexadecimal text.

/// Returns the bytes as pairs of lower-case digits, with a separator between them.
pub fn text(bytes: &[u8], separator: &str) -> String {
    use std::fmt::Write;
    let mut text = String::with_capacity(bytes.len() * (2 + separator.len()));
    for (n, byte) in bytes.iter().enumerate() {
        let between = if n == 0 { "" } else { separator };
        // A String takes any text.
        let _ = write!(text, "{between}{byte:02x}");
    }
    text
}

/// Reads pairs of digits, with white space anywhere; `None` for anything else.
pub fn bytes(text: &str) -> Option<Vec<u8>> {
    let mut digits = text.chars().filter(|c| !c.is_whitespace());
    let mut bytes = Vec::with_capacity(text.len() / 2);
    while let Some(high) = digits.next() {
        let (high, low) = (high.to_digit(16)?, digits.next()?.to_digit(16)?);
        bytes.push((high << 4 | low) as u8);
    }
    Some(bytes)
}

#[cfg(test)]
#[test]
fn text_and_bytes_are_inverse() {
    let all: Vec<u8> = (0..=255).collect();
    for separator in ["", " ", "\n"] {
        assert_eq!(bytes(&text(&all, separator)), Some(all.clone()));
    }
    assert_eq!((text(&[0x0A, 0xF0], " "), bytes(" Ef 4 0")), ("0a f0".to_owned(), Some(vec![0xEF, 0x40])));
    assert_eq!((bytes("1"), bytes("1g"), bytes("")), (None, None, Some(Vec::new())));
}
