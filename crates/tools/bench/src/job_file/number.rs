//! Numbers with suffixes, in fio's syntax for job files and in IEC units for plans.
//!
//! The two differ in one point, which fio's manual explains by old scripts: with its default `kb_base=1024`,
//! fio takes `k` and `kb` as 1024 and `kib` as 1000. A plan takes `KiB` as 1024 and refuses `kb`.

use std::time::Duration;

/// Syntax of suffixes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Units {
    /// fio's, with `kb_base=1024`.
    Fio,
    /// `KiB`, `MiB`, `GiB`, `TiB`, or their first letters.
    Iec,
}

/// Parses a number of bytes: `4k`, `1m`, `0x1000`.
pub fn bytes(text: &str, units: Units) -> Result<u64, String> {
    let expected = || match units {
        Units::Fio => format!("{text}: expected a number of bytes, such as 4096, 4k or 1g"),
        Units::Iec => format!("{text}: expected a number of bytes, such as 4096, \"4KiB\" or \"1GiB\""),
    };
    let (digits, suffix) = split(text);
    let number = whole(digits).ok_or_else(expected)?;
    let suffix = suffix.to_ascii_lowercase();
    let mut letters = suffix.chars();
    let power = match letters.next() {
        None => 0,
        Some('b') if suffix.len() == 1 => 0,
        Some(letter) => "kmgtp".find(letter).map(|index| index as u32 + 1).ok_or_else(expected)?,
    };
    let base: u64 = match (letters.as_str(), units) {
        ("", _) | ("i", Units::Fio) | ("b", Units::Fio) => 1024,
        ("ib", Units::Fio) => 1000,
        ("ib", Units::Iec) => 1024,
        ("b", Units::Iec) => {
            return Err(format!(
                "{text}: is that 1000 or 1024? write {digits}{}iB",
                &suffix[..1].to_uppercase()
            ));
        }
        _ => return Err(expected()),
    };
    let bytes = base.checked_pow(power).and_then(|unit| number.checked_mul(unit));
    bytes.ok_or_else(|| format!("{text}: more than 2^64 bytes"))
}

/// Whether fio interprets this as powers of 1000 although its suffix means 1024.
pub fn is_decimal_to_fio(text: &str) -> bool {
    let (_, suffix) = split(text.trim());
    let suffix = suffix.to_ascii_lowercase();
    suffix.len() == 3 && suffix.ends_with("ib")
}

/// Parses a time: `30` (seconds), `30s`, `500ms`, `2m`, `1h`.
pub fn time(text: &str) -> Result<Duration, String> {
    let expected = || format!("{text}: expected a time, such as 30 or 30s, 500ms, 2m, 1h");
    let (digits, suffix) = split(text);
    let number = whole(digits).ok_or_else(expected)?;
    let microseconds: u64 = match suffix.to_ascii_lowercase().as_str() {
        "us" | "usec" => 1,
        "ms" | "msec" => 1000,
        "" | "s" => 1_000_000,
        "m" => 60_000_000,
        "h" => 3_600_000_000,
        "d" => 86_400_000_000,
        _ => return Err(expected()),
    };
    let total = number.checked_mul(microseconds).ok_or_else(|| format!("{text}: too long a time"))?;
    Ok(Duration::from_micros(total))
}

/// Parses a count: digits, hexadecimal with `0x`, or with `k`, `m`, `g` as powers of 1000 (rates are not
/// bytes).
pub fn count(text: &str) -> Result<u64, String> {
    let (digits, suffix) = split(text);
    let unit: u64 = match suffix {
        "" => 1,
        "k" | "K" => 1000,
        "m" | "M" => 1_000_000,
        "g" | "G" => 1_000_000_000,
        _ => return Err(format!("{text}: expected a whole number")),
    };
    whole(digits)
        .and_then(|number| number.checked_mul(unit))
        .ok_or_else(|| format!("{text}: expected a whole number"))
}

fn split(text: &str) -> (&str, &str) {
    if text.starts_with("0x") || text.starts_with("0X") {
        return (text, "");
    }
    let end = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    (&text[..end], &text[end..])
}

fn whole(digits: &str) -> Option<u64> {
    match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        Some(hexadecimal) if !hexadecimal.starts_with('+') => u64::from_str_radix(hexadecimal, 16).ok(),
        Some(_) => None,
        None => digits.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_as_fio_reads_them() {
        for (text, expected) in [
            ("4k", 4096),
            ("4K", 4096),
            ("4kb", 4096),
            ("4ki", 4096),
            ("4kib", 4000),
            ("4096b", 4096),
            ("0x1000", 4096),
            ("1g", 1 << 30),
        ] {
            assert_eq!(bytes(text, Units::Fio), Ok(expected), "{text}");
        }
        for text in
            ["", "k", "4x", "-4k", "4k4", "1.5m", "99999999999999999999", "99999999p", "0x", "+4", "0x+4"]
        {
            assert!(bytes(text, Units::Fio).is_err(), "{text}");
        }
    }

    #[test]
    fn bytes_in_a_plan() {
        assert_eq!(bytes("4KiB", Units::Iec), Ok(4096));
        assert_eq!(bytes("1g", Units::Iec), Ok(1 << 30));
        assert!(bytes("4kb", Units::Iec).unwrap_err().contains("4KiB"));
    }

    #[test]
    fn times() {
        assert_eq!(time("30"), Ok(Duration::from_secs(30)));
        assert_eq!(time("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(time("2m"), Ok(Duration::from_secs(120)));
        assert!(time("1m30s").is_err());
        assert!(time("99999999999999d").is_err());
    }
}
