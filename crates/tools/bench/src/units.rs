//! Figures for display: three significant digits and a unit.

/// Formats three significant digits: `1.23`, `12.3`, `123`.
fn three(value: f64) -> String {
    match value {
        v if v >= 99.95 => format!("{v:.0}"),
        v if v >= 9.995 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

/// Formats the value in the largest unit in which it is at least 1; rounding never shows 1000 of a unit.
fn in_units(value: f64, base: f64, units: &[&str]) -> String {
    let (mut value, mut index) = (value, 0);
    while index + 1 < units.len() && value >= base * 0.9995 {
        value /= base;
        index += 1;
    }
    let number = if index == 0 && value.fract() == 0.0 { format!("{value:.0}") } else { three(value) };
    match units[index] {
        "" => number,
        unit => format!("{number} {unit}"),
    }
}

/// Formats a number without a unit: `7`, `1.86`, `133`.
pub fn number(value: f64) -> String {
    if value.fract() == 0.0 { format!("{value:.0}") } else { three(value) }
}

/// Formats a count: `950`, `189 k`, `1.25 M`.
pub fn count(value: f64) -> String {
    in_units(value, 1000.0, &["", "k", "M", "G"])
}

/// Formats a time in nanoseconds: `850 ns`, `12.3 µs`, `1.20 ms`.
pub fn nanoseconds(value: f64) -> String {
    in_units(value, 1000.0, &["ns", "µs", "ms", "s"])
}

/// Formats a number of bytes: `512 B`, `4 KiB`, `1.50 GiB`.
pub fn bytes(value: f64) -> String {
    let text = in_units(value, 1024.0, &["B", "KiB", "MiB", "GiB", "TiB", "PiB"]);
    // Configured sizes are whole: 4 KiB, not 4.00 KiB.
    text.replacen(".00 ", " ", 1).replacen(".0 ", " ", 1)
}

/// Formats bytes per second.
pub fn bandwidth(value: f64) -> String {
    format!("{}/s", in_units(value, 1024.0, &["B", "KiB", "MiB", "GiB", "TiB", "PiB"]))
}

/// Formats a ratio: `×1.04`, `×0.0021`.
pub fn ratio(value: f64) -> String {
    match value {
        v if v >= 99.95 => format!("×{v:.0}"),
        v if v >= 9.995 => format!("×{v:.1}"),
        v if v >= 0.0995 => format!("×{v:.2}"),
        v => format!("×{v:.4}"),
    }
}

/// Formats date and time, UTC, from seconds since 1970: `2026-11-21 04:00`.
pub fn date(seconds: u64) -> String {
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    // Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms": years begin in March.
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year}-{month:02}-{day:02} {:02}:{:02}", of_day / 3600, of_day % 3600 / 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits_and_a_unit() {
        for (value, expected) in [
            (0.0, "0"),
            (7.0, "7"),
            (950.4, "950"),
            (999.9, "1.00 k"),
            (189_234.0, "189 k"),
            (1_250_000.0, "1.25 M"),
        ] {
            assert_eq!(count(value), expected);
        }
        assert_eq!(nanoseconds(850.0), "850 ns");
        assert_eq!(nanoseconds(12_345.0), "12.3 µs");
        assert_eq!(bytes(4096.0), "4 KiB");
        assert_eq!(bytes(1.5 * 1024.0 * 1024.0), "1.50 MiB");
        assert_eq!(bandwidth(782_237_696.0), "746 MiB/s");
        assert_eq!([ratio(1.044), ratio(0.104), ratio(0.0021)], ["×1.04", "×0.10", "×0.0021"]);
    }

    #[test]
    fn dates() {
        assert_eq!(date(0), "1970-01-01 00:00");
        assert_eq!(date(1_795_234_546), "2026-11-21 04:15");
        assert_eq!(date(951_782_399), "2000-02-28 23:59");
        assert_eq!(date(951_782_400), "2000-02-29 00:00");
    }
}
