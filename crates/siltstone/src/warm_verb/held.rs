//! Contents of a cache: requested page by page, and merged to ranges.
//!
//! The cache is in use between two pages: a block that moves may be listed twice, or not at all. The server
//! may have another version, so an unexpected answer is an error.

use super::cache::Cache;
use super::saved::HotRange;
use crate::failure::Failure;
use cache::Heat;
use serde_json::Value;
use std::collections::BTreeSet;
use std::ops::Range;

/// Number of slots per request.
const PAGE: u64 = 4096;

/// Sizes of the cache and its origin, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    /// Size of the origin, which is also the size of the device.
    pub bytes: u64,
    /// Size of a block of the cache.
    pub block_size: u64,
    /// Size of a part of a block.
    pub part_size: u64,
    /// Number of blocks of the cache, used or not.
    pub total_blocks: u64,
}

/// Cached range of the origin: all bytes are dirty, or none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CachedRange {
    /// Range in bytes.
    pub bytes: Range<u64>,
    /// Heat of the range.
    pub heat: Heat,
    /// Whether the range is dirty.
    pub is_dirty: bool,
}

impl CachedRange {
    /// Length in bytes.
    pub fn length(&self) -> u64 {
        self.bytes.end - self.bytes.start
    }

    /// Number of dirty bytes.
    pub fn dirty(&self) -> u64 {
        if self.is_dirty { self.length() } else { 0 }
    }
}

/// Block of the cache in an answer.
#[derive(Debug, Clone, Copy)]
struct Row {
    block: u64,
    valid: u64,
    dirty: u64,
    heat: Heat,
}

/// Returns the sizes.
///
/// # Errors
/// Errors of the cache and of the connection.
pub async fn facts(cache: &mut Cache<'_>) -> Result<Facts, Failure> {
    let answer = cache.ask("warm list 0 0").await?;
    facts_of(&answer).ok_or_else(|| strange(&answer))
}

fn strange(answer: &Value) -> Failure {
    let start: String = answer.to_string().chars().take(200).collect();
    Failure::World(format!("the cache answered what this program doesn't understand: {start}"))
}

fn facts_of(answer: &Value) -> Option<Facts> {
    let number = |key: &str| answer[key].as_u64();
    let facts = Facts {
        bytes: number("bytes")?,
        block_size: number("block_size")?,
        part_size: number("part_size")?,
        total_blocks: number("total_blocks")?,
    };
    let is_possible = facts.block_size > 0
        && facts.part_size > 0
        && facts.block_size.div_ceil(facts.part_size) <= 64
        && facts.bytes <= u64::MAX - facts.block_size;
    is_possible.then_some(facts)
}

/// Returns the whole contents of a cache, in the order of the origin.
///
/// # Errors
/// Errors of the cache and of the connection.
pub async fn held(cache: &mut Cache<'_>) -> Result<(Facts, Vec<CachedRange>), Failure> {
    let facts = facts(cache).await?;
    let mut rows = Vec::new();
    let mut from = 0;
    while from < facts.total_blocks {
        let answer = cache.ask(&format!("warm list {from} {PAGE}")).await?;
        let next = page(&answer, &facts, &mut rows).ok_or_else(|| strange(&answer))?;
        match next {
            Some(next) if next > from => from = next,
            Some(_) => return Err(strange(&answer)),
            None => break,
        }
    }
    Ok((facts, ranges(&facts, rows)))
}

/// Parses a page; returns the start of the next one, if there is one. `None` for an unexpected answer.
fn page(answer: &Value, facts: &Facts, rows: &mut Vec<Row>) -> Option<Option<u64>> {
    for row in answer["blocks"].as_array()? {
        let (block, valid, dirty) = (row[0].as_u64()?, row[1].as_u64()?, row[2].as_u64()?);
        let heat = Heat::parse(row[3].as_str()?)?;
        if block.checked_mul(facts.block_size)? >= facts.bytes {
            return None;
        }
        rows.push(Row { block, valid, dirty: dirty & valid, heat });
    }
    match &answer["next"] {
        Value::Null => Some(None),
        next => next.as_u64().map(Some),
    }
}

/// Merges adjacent rows with the same heat and dirtiness, in order.
fn ranges(facts: &Facts, mut rows: Vec<Row>) -> Vec<CachedRange> {
    rows.sort_by_key(|row| row.block);
    let mut seen = BTreeSet::new();
    let mut ranges: Vec<CachedRange> = Vec::new();
    for row in rows {
        // The block moved between two pages, and was listed twice.
        if !seen.insert(row.block) {
            continue;
        }
        let base = row.block * facts.block_size;
        for part in 0..64 {
            let bit = 1 << part;
            let from = base.saturating_add(part * facts.part_size);
            let to = from.saturating_add(facts.part_size).min(base + facts.block_size).min(facts.bytes);
            if row.valid & bit == 0 || from >= to {
                continue;
            }
            let is_dirty = row.dirty & bit != 0;
            match ranges.last_mut() {
                Some(last)
                    if last.bytes.end == from && last.heat == row.heat && last.is_dirty == is_dirty =>
                {
                    last.bytes.end = to;
                }
                _ => ranges.push(CachedRange { bytes: from..to, heat: row.heat, is_dirty }),
            }
        }
    }
    ranges
}

/// Sorts ranges by heat, the hottest first, equal ones in the order of the origin. Limits them to `most`
/// bytes.
pub fn hottest_first(ranges: &[CachedRange], most: Option<u64>) -> Vec<HotRange> {
    let mut sorted: Vec<HotRange> = ranges.iter().map(|range| (range.heat, range.bytes.clone())).collect();
    sorted.sort_by_key(|(heat, range)| (std::cmp::Reverse(heat.level()), heat.age, range.start));
    sorted.dedup_by(|next, last| {
        let goes_on = next.0 == last.0 && next.1.start == last.1.end;
        if goes_on {
            last.1.end = next.1.end;
        }
        goes_on
    });
    let mut left = most.unwrap_or(u64::MAX);
    sorted.retain_mut(|(_, range)| {
        range.end = range.end.min(range.start.saturating_add(left));
        left -= range.end - range.start;
        !range.is_empty()
    });
    sorted
}

/// Intersects ranges with the wanted ones; `None` returns all of them.
pub fn within(ranges: Vec<CachedRange>, wanted: Option<&[Range<u64>]>) -> Vec<CachedRange> {
    let Some(wanted) = wanted else { return ranges };
    let wanted = merged(wanted);
    let mut found = Vec::new();
    for range in ranges {
        let first = wanted.partition_point(|wanted| wanted.end <= range.bytes.start);
        for wanted in wanted[first..].iter().take_while(|wanted| wanted.start < range.bytes.end) {
            let bytes = wanted.start.max(range.bytes.start)..wanted.end.min(range.bytes.end);
            found.push(CachedRange { bytes, ..range.clone() });
        }
    }
    found
}

/// Merges overlapping and adjacent ranges; returns them in order.
pub fn merged(ranges: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut sorted = ranges.to_vec();
    sorted.sort_by_key(|range| range.start);
    let mut merged: Vec<Range<u64>> = Vec::new();
    for range in sorted {
        match merged.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const FACTS: Facts = Facts { bytes: 1000, block_size: 400, part_size: 100, total_blocks: 5 };

    fn read(answer: &Value) -> Option<Vec<CachedRange>> {
        let mut rows = Vec::new();
        page(answer, &FACTS, &mut rows)?;
        Some(ranges(&FACTS, rows))
    }

    fn range(bytes: Range<u64>, heat: &str, is_dirty: bool) -> CachedRange {
        CachedRange { bytes, heat: Heat::parse(heat).unwrap(), is_dirty }
    }

    #[test]
    fn pages_become_ranges() {
        let answer = json!({ "next": null, "blocks": [
            [2, 0b1111, 0b10, "main/1/3"], [0, 0b1010, 0, "small/0/1"], [1, 0b0001, 1, "small/0/1"], [0, 1, 0, "main/0/0"],
        ] });
        let expected = [
            range(100..200, "small/0/1", false),
            range(300..400, "small/0/1", false),
            range(400..500, "small/0/1", true),
            range(800..900, "main/1/3", false),
            range(900..1000, "main/1/3", true),
        ];
        let found = read(&answer).unwrap();
        assert_eq!(found, expected, "the origin's last block is short; what comes twice counts once");
        let text = |range: &HotRange| format!("{} {}..{}", range.0, range.1.start, range.1.end);
        let hottest: Vec<String> = hottest_first(&found, Some(350)).iter().map(text).collect();
        assert_eq!(hottest, ["main/1/3 800..1000", "small/0/1 100..200", "small/0/1 300..350"]);
        assert!(hottest_first(&found, Some(0)).is_empty());
        let within = within(found, Some(&[900..2000, 150..350, 0..10]));
        let expected = [
            range(150..200, "small/0/1", false),
            range(300..350, "small/0/1", false),
            range(900..1000, "main/1/3", true),
        ];
        assert_eq!(within, expected);
    }

    #[test]
    fn strange_answers_are_no_panic() {
        for answer in [
            json!(7),
            json!({ "blocks": 7 }),
            json!({ "blocks": [[1]] }),
            json!({ "blocks": [[3, 1, 0, "main/1/3"]], "next": null }),
            json!({ "blocks": [[u64::MAX, 1, 0, "main/1/3"]], "next": null }),
            json!({ "blocks": [[0, 1, 0, "hot"]], "next": null }),
            json!({ "blocks": [], "next": "soon" }),
        ] {
            assert_eq!(read(&answer), None, "{answer}");
        }
        assert_eq!(read(&json!({ "blocks": [[2, u64::MAX, u64::MAX, "main/1/3"]] })).unwrap().len(), 1);
        for (key, value) in [("part_size", 1), ("part_size", 0), ("block_size", 0), ("bytes", u64::MAX)] {
            let mut facts = json!({ "bytes": 1000, "block_size": 400, "part_size": 100, "total_blocks": 5 });
            assert!(facts_of(&facts).is_some());
            facts[key] = value.into();
            assert_eq!(facts_of(&facts), None, "{facts}");
        }
    }
}
