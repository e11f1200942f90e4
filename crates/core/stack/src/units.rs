//! Sizes and durations as text, exactly: a formatted value parses back to the same value.

use block::{Error, Result};
use std::time::Duration;

const SIZE_UNITS: [(&str, u32); 6] =
    [("EiB", 60), ("PiB", 50), ("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];

/// Units of time and their length in nanoseconds.
const TIME_UNITS: [(&str, u64); 6] = [
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

/// Parses a size in bytes: `4096`, `64KiB`, `4GiB`; `64k`, `4G` have the same units, as in fio. Upper and
/// lower case are equivalent. Powers of ten (`KB`) are refused, because many users mean powers of two.
///
/// # Errors
/// [`Error::Invalid`] with the text and the expected form.
pub fn parse_size(text: &str) -> Result<u64> {
    let expected = "expected whole bytes, with KiB, MiB, GiB or TiB where wanted, as in 4096 or 4GiB";
    let (number, unit) = split(text).ok_or_else(|| Error::invalid(format!("size \"{text}\": {expected}")))?;
    let shift = if unit.is_empty() {
        0
    } else {
        let known = |(name, _): &&(&str, u32)| {
            unit.eq_ignore_ascii_case(name) || unit.eq_ignore_ascii_case(&name[..1])
        };
        match SIZE_UNITS.iter().find(known) {
            Some((_, shift)) => *shift,
            None => {
                return Err(Error::invalid(format!("size \"{text}\": unknown unit \"{unit}\", {expected}")));
            }
        }
    };
    number
        .checked_mul(1 << shift)
        .ok_or_else(|| Error::invalid(format!("size \"{text}\": more than 2^64 bytes, expected less")))
}

/// Writes a size with the largest unit that divides it: `4GiB`, `1536MiB`, `4097`.
pub fn format_size(bytes: u64) -> String {
    for (unit, shift) in SIZE_UNITS {
        if bytes != 0 && bytes.trailing_zeros() >= shift {
            return format!("{}{unit}", bytes >> shift);
        }
    }
    bytes.to_string()
}

/// Parses a duration: `500ns`, `250us`, `10ms`, `1s`, `2m`, `1h`; only `0` needs no unit.
///
/// # Errors
/// [`Error::Invalid`] with the text and the expected form.
pub fn parse_duration(text: &str) -> Result<Duration> {
    let expected = "expected a whole number with ns, us, ms, s, m or h, as in 250us or 10ms";
    let wrong = || Error::invalid(format!("duration \"{text}\": {expected}"));
    let (number, unit) = split(text).ok_or_else(wrong)?;
    if number == 0 && unit.is_empty() {
        return Ok(Duration::ZERO);
    }
    let unit = if unit == "µs" { "us" } else { unit };
    let (_, length) =
        TIME_UNITS.iter().find(|(name, _)| unit.eq_ignore_ascii_case(name)).ok_or_else(wrong)?;
    let nanoseconds = number
        .checked_mul(*length)
        .ok_or_else(|| Error::invalid(format!("duration \"{text}\": more than 500 years, expected less")))?;
    Ok(Duration::from_nanos(nanoseconds))
}

/// Writes a duration with the largest unit that divides it: `10ms`, `90s`, `1500us`. Durations above 500
/// years, which [`parse_duration`] never returns, are truncated.
pub fn format_duration(duration: Duration) -> String {
    let nanoseconds = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    for (unit, length) in TIME_UNITS {
        if nanoseconds != 0 && nanoseconds % length == 0 {
            return format!("{}{unit}", nanoseconds / length);
        }
    }
    "0".to_owned()
}

/// Returns the digits and the rest of the text; `None` if there are no digits or too many.
fn split(text: &str) -> Option<(u64, &str)> {
    let end = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    Some((digits.parse().ok()?, unit.trim_start_matches(' ')))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("4KiB", 4096),
            ("4k", 4096),
            ("4 KiB", 4096),
            ("1MiB", 1 << 20),
            ("2GiB", 2 << 30),
            ("2g", 2 << 30),
            ("1TiB", 1 << 40),
            ("15EiB", 15 << 60),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for text in
            ["", "KiB", "-1", "1.5GiB", "4KB", "4Kib ", "16EiB", "18446744073709551616", "4 4", "0x10"]
        {
            let error = parse_size(text).expect_err(text);
            assert!(error.detail().contains(&format!("\"{text}\"")), "{error}");
        }
        assert_eq!(format_size(0), "0");
        assert_eq!(format_size(4097), "4097");
        assert_eq!(format_size(1536 << 20), "1536MiB");
        assert_eq!(format_size(4 << 30), "4GiB");
    }

    #[test]
    fn durations() {
        for (text, nanoseconds) in [
            ("0", 0),
            ("7ns", 7),
            ("250us", 250_000),
            ("250µs", 250_000),
            ("10ms", 10_000_000),
            ("1s", 1_000_000_000),
            ("2m", 120_000_000_000),
            ("1h", 3_600_000_000_000),
        ] {
            assert_eq!(parse_duration(text), Ok(Duration::from_nanos(nanoseconds)), "{text}");
        }
        for text in ["", "10", "ms", "1.5s", "-1s", "10 sec", "99999999999h"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
        assert_eq!(format_duration(Duration::from_millis(1500)), "1500ms");
        assert_eq!(format_duration(Duration::from_secs(120)), "2m");
        assert_eq!(format_duration(Duration::ZERO), "0");
    }

    proptest! {
        #[test]
        fn sizes_come_back(bytes in any::<u64>(), shift in 0_u32..60) {
            let bytes = bytes >> shift << shift;
            prop_assert_eq!(parse_size(&format_size(bytes)), Ok(bytes));
        }

        #[test]
        fn durations_come_back(nanoseconds in any::<u64>(), scale in prop::sample::select(vec![1, 1_000, 1_000_000_000])) {
            let duration = Duration::from_nanos(nanoseconds / scale * scale);
            prop_assert_eq!(parse_duration(&format_duration(duration)), Ok(duration));
        }

        #[test]
        fn any_text_is_taken_or_refused(text in ".{0,40}") {
            let _ = (parse_size(&text), parse_duration(&text));
        }
    }
}
