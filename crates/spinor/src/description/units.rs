//! Durations, clocks, hexadecimal text, and places in a file.

/// Reads a duration such as `0.7 ms`, of up to eleven days, into nanoseconds.
pub(super) fn duration(text: &str) -> Option<u64> {
    let (number, unit) = text.trim().split_once(' ')?;
    let factor = match unit.trim() {
        "ns" => 1.0,
        "us" | "µs" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        _ => return None,
    };
    let number: f64 = number.parse().ok()?;
    (number.is_finite() && (0.0..=1e15).contains(&(number * factor)))
        .then_some((number * factor).round() as u64)
}

/// Reads hexadecimal digits, with white space anywhere between bytes.
pub(super) fn hex(text: &str) -> Option<Vec<u8>> {
    let digits: Vec<u32> =
        text.chars().filter(|c| !c.is_whitespace()).map(|c| c.to_digit(16)).collect::<Option<_>>()?;
    digits
        .len()
        .is_multiple_of(2)
        .then(|| digits.chunks(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect())
}

/// Returns line and column, both from 1 on, of a byte offset.
pub(super) fn place(text: &str, offset: usize) -> (usize, usize) {
    let mut offset = offset.min(text.len());
    while !text.is_char_boundary(offset) {
        offset -= 1;
    }
    let before = &text[..offset];
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or("").chars().count() + 1;
    (line, column)
}
