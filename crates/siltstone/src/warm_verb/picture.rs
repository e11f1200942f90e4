//! Contents of a cache as text: sums, a picture of the origin, levels, and the hottest ranges.

use super::held::{CachedRange, Facts, hottest_first, merged};
use bench::table::{Cell, Grid};
use bench::units;
use serde_json::{Value, json};
use std::fmt::Write;
use std::ops::Range;

/// Width of the picture in columns.
const PLACES: u64 = 64;
/// Highest level of heat.
const LEVELS: u8 = 7;

/// Formats the contents for operators.
pub fn page(facts: &Facts, ranges: &[CachedRange], wanted: Option<&[Range<u64>]>, top: usize) -> String {
    let mut out = String::new();
    let wanted = wanted.map(merged);
    let total = wanted.as_ref().map_or(facts.bytes, |wanted| length(wanted));
    let cached: u64 = ranges.iter().map(CachedRange::length).sum();
    let dirty: u64 = ranges.iter().map(CachedRange::dirty).sum();
    let share = if total == 0 { 0.0 } else { 100.0 * cached as f64 / total as f64 };
    let of = if wanted.is_some() { "what was asked for" } else { "the origin" };
    let _ = writeln!(
        out,
        "{} of {} cached, {share:.1} % of {of}; {} dirty; space for {} in blocks of {}",
        units::bytes(cached as f64),
        units::bytes(total as f64),
        units::bytes(dirty as f64),
        units::bytes(facts.total_blocks as f64 * facts.block_size as f64),
        units::bytes(facts.block_size as f64),
    );
    if facts.bytes > 0 {
        picture(&mut out, facts, ranges);
    }
    if !ranges.is_empty() {
        levels(&mut out, ranges);
        list(&mut out, ranges, top);
    }
    out
}

fn length(ranges: &[Range<u64>]) -> u64 {
    ranges.iter().map(|range| range.end - range.start).sum()
}

/// Draws the origin from start to end.
fn picture(out: &mut String, facts: &Facts, ranges: &[CachedRange]) {
    let place = facts.bytes.div_ceil(PLACES).max(1);
    let places = facts.bytes.div_ceil(place) as usize;
    let mut cached = vec![0_u64; places];
    let mut hottest = vec![0_u8; places];
    for range in ranges {
        let mut at = range.bytes.start;
        while at < range.bytes.end {
            let number = (at / place) as usize;
            let end = ((at / place + 1) * place).min(range.bytes.end);
            cached[number] += end - at;
            hottest[number] = hottest[number].max(range.heat.level());
            at = end;
        }
    }
    let full = |number: usize| place.min(facts.bytes - number as u64 * place);
    let amount = |(number, cached): (usize, &u64)| match *cached {
        0 => ' ',
        some if some < full(number) => 'o',
        _ => 'O',
    };
    let amounts: String = cached.iter().enumerate().map(amount).collect();
    let digit = |level: &u8| if *level == 0 { ' ' } else { char::from(b'0' + level) };
    let levels: String = hottest.iter().map(digit).collect();
    let _ = writeln!(out, "\n  [{amounts}]  a place is {}", units::bytes(place as f64));
    let _ = writeln!(out, "  [{levels}]  its hottest level");
}

/// Writes the number of bytes of each level.
fn levels(out: &mut String, ranges: &[CachedRange]) {
    let words = [
        "small queue, requested once",
        "small queue, once more",
        "main queue, not since its turn came",
        "small queue, to be moved to the main one",
        "main queue, once since its turn came",
        "main queue, twice",
        "main queue, three times or more",
    ];
    let mut table = Grid::new(&["level", "bytes", "dirty", "meaning"]);
    for level in (1..=LEVELS).rev() {
        let its = ranges.iter().filter(|range| range.heat.level() == level);
        let (bytes, dirty) =
            its.fold((0, 0), |(bytes, dirty), range| (bytes + range.length(), dirty + range.dirty()));
        if bytes > 0 {
            table.push(vec![
                Cell::Figure(level.to_string()),
                Cell::Figure(units::bytes(bytes as f64)),
                Cell::Figure(units::bytes(dirty as f64)),
                Cell::Word(words[usize::from(level) - 1].to_owned()),
            ]);
        }
    }
    out.push('\n');
    table.write(2, out);
}

fn list(out: &mut String, ranges: &[CachedRange], top: usize) {
    if top == 0 {
        return;
    }
    let mut table = Grid::new(&["offset", "bytes", "level", "heat", "requests ago"]);
    let hottest = hottest_first(ranges, None);
    for (heat, range) in hottest.iter().take(top) {
        let ago = match heat.age {
            0 => "0".to_owned(),
            age => format!("< {}", 1_u64 << age),
        };
        table.push(vec![
            Cell::Figure(range.start.to_string()),
            Cell::Figure(units::bytes((range.end - range.start) as f64)),
            Cell::Figure(heat.level().to_string()),
            Cell::Word(heat.to_string()),
            Cell::Figure(ago),
        ]);
    }
    let _ = writeln!(out, "\nhottest ranges");
    table.write(2, out);
    if hottest.len() > top {
        let _ = writeln!(out, "  … {} more", hottest.len() - top);
    }
}

/// Returns all ranges as JSON, in the order of the origin.
pub fn as_json(facts: &Facts, ranges: &[CachedRange], wanted: Option<&[Range<u64>]>) -> Value {
    let wanted = wanted.map_or(facts.bytes, |wanted| length(&merged(wanted)));
    let cached: u64 = ranges.iter().map(CachedRange::length).sum();
    let dirty: u64 = ranges.iter().map(CachedRange::dirty).sum();
    let range = |range: &CachedRange| {
        json!({
            "offset": range.bytes.start,
            "bytes": range.length(),
            "level": range.heat.level(),
            "heat": range.heat.to_string(),
            "dirty": range.is_dirty,
        })
    };
    json!({
        "bytes": facts.bytes,
        "block_size": facts.block_size,
        "total_blocks": facts.total_blocks,
        "wanted_bytes": wanted,
        "cached_bytes": cached,
        "dirty_bytes": dirty,
        "ranges": ranges.iter().map(range).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use cache::Heat;

    #[test]
    fn a_page() {
        let facts = Facts { bytes: 128 << 20, block_size: 65536, part_size: 4096, total_blocks: 100 };
        let range = |from: u64, to: u64, heat: &str, is_dirty| CachedRange {
            bytes: from..to,
            heat: Heat::parse(heat).unwrap(),
            is_dirty,
        };
        let ranges = [
            range(0, 4 << 20, "small/0/7", false),
            range((6 << 20) - 65536, 6 << 20, "main/2/3", true),
            range((128 << 20) - 65536, 128 << 20, "main/3/0", false),
        ];
        let expected = "\
4.12 MiB of 128 MiB cached, 3.2 % of the origin; 64 KiB dirty; space for 6.25 MiB in blocks of 64 KiB

  [OOo                                                            o]  a place is 2 MiB
  [116                                                            7]  its hottest level

  level   bytes   dirty  meaning
      7  64 KiB     0 B  main queue, three times or more
      6  64 KiB  64 KiB  main queue, twice
      1   4 MiB     0 B  small queue, requested once

hottest ranges
     offset   bytes  level  heat      requests ago
  134152192  64 KiB      7  main/3/0             0
    6225920  64 KiB      6  main/2/3           < 8
  … 1 more
";
        assert_eq!(page(&facts, &ranges, None, 2), expected);
        let empty = page(&facts, &[], Some(&[0..4096, 4096..8192]), 10);
        assert!(empty.starts_with("0 B of 8 KiB cached, 0.0 % of what was asked for"), "{empty}");
        let json = as_json(&facts, &ranges, None);
        assert_eq!((&json["cached_bytes"], &json["ranges"][1]["dirty"]), (&4_325_376.into(), &true.into()));
    }
}
