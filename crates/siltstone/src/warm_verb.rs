//! `siltstone warm`: lists, saves and loads the hot blocks of a cache, and prefetches or evicts blocks. It
//! corresponds to vmtouch and mincore for the page cache.
//!
//! One concept per module: [`cache`] requests to the cache, step by step; [`held`] contents of the cache;
//! [`saved`] file of saved heat; [`targets`] wanted ranges; [`picture`] output for operators.

mod cache;
mod held;
mod picture;
mod saved;
mod targets;

use crate::arguments::{Pace, WarmVerb, Where, WhichCache};
use crate::failure::Failure;
use crate::output::{counted, print, print_json, print_line, say};
use crate::progress::Reading;
use ::cache::Heat;
use bench::units;
use cache::{Doing, Outcome, with_cache};
use saved::HotRange;
use serde_json::{Value, json};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Runs one of the verbs.
///
/// # Errors
/// A wrong stack, cache, range or file; the cache's error; [`Failure::Interrupted`] after a stop.
pub fn warm(verb: WarmVerb) -> Result<(), Failure> {
    match verb {
        WarmVerb::List { which, where_, top, json } => list(which, where_, top, json),
        WarmVerb::Save { which, file, most, json } => save(which, &file, most, json),
        WarmVerb::Load { which, file, pace } => load(which, file, &pace),
        WarmVerb::Prefetch { which, where_, heat, pace } => prefetch(which, where_, heat, &pace),
        WarmVerb::Evict { which, where_, json } => evict(which, where_, json),
    }
}

fn list(which: WhichCache, where_: Where, top: usize, as_json: bool) -> Result<(), Failure> {
    let (facts, ranges, wanted) = with_cache(which, async move |cache| {
        let (facts, ranges) = held::held(cache).await?;
        let wanted = targets::resolve(&where_, facts.bytes)?;
        Ok((facts, held::within(ranges, wanted.as_deref()), wanted))
    })?;
    match as_json {
        true => print_json(&picture::as_json(&facts, &ranges, wanted.as_deref())),
        false => print(&picture::page(&facts, &ranges, wanted.as_deref(), top)),
    }
}

fn save(which: WhichCache, file: &Path, most: Option<u64>, as_json: bool) -> Result<(), Failure> {
    let (facts, ranges) = with_cache(which, async |cache| held::held(cache).await)?;
    let hottest = held::hottest_first(&ranges, most);
    saved::write(file, facts.bytes, facts.block_size, &hottest)?;
    let bytes = hottest.iter().map(|(_, range)| range.end - range.start).sum::<u64>();
    match as_json {
        true => print_json(&json!({ "ranges": hottest.len(), "bytes": bytes })),
        false => print_line(&format!(
            "{}: {} in {}",
            file.display(),
            units::bytes(bytes as f64),
            counted(hottest.len() as u64, "range", "ranges")
        )),
    }
}

fn load(which: WhichCache, file: PathBuf, pace: &Pace) -> Result<(), Failure> {
    // A wrong file is reported before a stack is opened.
    let expected = saved::check(&file)?;
    let rate = pace.rate;
    let outcome = with_cache(which, async move |cache| {
        let facts = held::facts(cache).await?;
        if facts.bytes != expected.origin_bytes {
            say(&format!(
                "{}: it was saved from an origin of {} bytes, and this one has {}: loaded as far as that goes",
                file.display(),
                expected.origin_bytes,
                facts.bytes
            ));
        }
        // Heat of cached blocks first: otherwise fetches would evict blocks that the file lists as hot.
        let mut reader = saved::Reader::open(&file)?;
        let heated = cache.steps(Doing::Heat, || reader.next_range(), None, &|_| {}).await?;
        if heated.is_stopped {
            return Ok((expected.bytes, heated));
        }
        let mut reader = saved::Reader::open(&file)?;
        let bar = Reading::new();
        let progress = |done| bar.at(done, expected.bytes);
        let outcome = cache.steps(Doing::Fetch, || reader.next_range(), rate, &progress).await?;
        Ok((expected.bytes, outcome))
    })?;
    fetched(outcome, pace.json)
}

fn prefetch(which: WhichCache, where_: Where, heat: Heat, pace: &Pace) -> Result<(), Failure> {
    let rate = pace.rate;
    let outcome = with_cache(which, async move |cache| {
        let facts = held::facts(cache).await?;
        let ranges = needed(&where_, facts.bytes)?;
        let total = ranges.iter().map(|range| range.end - range.start).sum();
        let mut ranges = ranges.into_iter().map(|range| (heat, range));
        let bar = Reading::new();
        let progress = |done| bar.at(done, total);
        let next = || Ok::<Option<HotRange>, Failure>(ranges.next());
        Ok((total, cache.steps(Doing::Fetch, next, rate, &progress).await?))
    })?;
    fetched(outcome, pace.json)
}

/// Returns the wanted ranges, in order, without overlap.
fn needed(where_: &Where, bytes: u64) -> Result<Vec<Range<u64>>, Failure> {
    match targets::resolve(where_, bytes)? {
        Some(ranges) => Ok(held::merged(&ranges)),
        None => Err(Failure::Usage(
            "no range: expected --range FROM..TO or --file PATH; --range .. is everything".to_owned(),
        )),
    }
}

/// Prints the result of a fetch.
fn fetched((wanted, outcome): (u64, Outcome), as_json: bool) -> Result<(), Failure> {
    let sums = &outcome.sums;
    let left = wanted.saturating_sub(sums.done);
    // The remaining ranges are no hotter, so the cache has no space for them either.
    let no_room = sums.no_room + if outcome.is_full { left } else { 0 };
    if as_json {
        let mut answer = json!({
            "wanted": wanted, "fetched": sums.fetched, "present": sums.present, "no_room": no_room, "busy": sums.busy,
            "failed": sums.failed, "past_end": sums.past_end, "stopped": outcome.is_stopped,
        });
        if let Some(error) = &outcome.error {
            answer["error"] = error.as_str().into();
        }
        print_json(&answer)?;
    } else {
        let text = sentence(&[
            (sums.fetched, "fetched"),
            (sums.present, "cached already"),
            (no_room, "without space: all cached blocks are as hot, dirty or in use"),
            (sums.busy, "skipped, being written"),
            (sums.past_end, "after the end of this origin"),
            (sums.failed, "FAILED"),
        ]);
        print_line(&format!("{} requested: {text}", units::bytes(wanted as f64)))?;
    }
    ended(&outcome, left)
}

fn evict(which: WhichCache, where_: Where, as_json: bool) -> Result<(), Failure> {
    let (wanted, outcome) = with_cache(which, async move |cache| {
        let facts = held::facts(cache).await?;
        let ranges = needed(&where_, facts.bytes)?;
        let total = ranges.iter().map(|range| range.end - range.start).sum::<u64>();
        let mut ranges = ranges.into_iter().map(|range| (Heat::PREFETCHED, range));
        let next = || Ok::<Option<HotRange>, Failure>(ranges.next());
        Ok((total, cache.steps(Doing::Evict, next, None, &|_| {}).await?))
    })?;
    let sums = &outcome.sums;
    match as_json {
        true => {
            let answer: Value = json!({
                "wanted": wanted, "evicted": sums.evicted, "dirty": sums.dirty, "busy": sums.busy, "absent": sums.absent,
                "stopped": outcome.is_stopped,
            });
            print_json(&answer)?;
        }
        false => {
            let text = sentence(&[
                (sums.evicted, "evicted"),
                (sums.dirty, "kept, in dirty blocks"),
                (sums.busy, "kept, in use"),
                (sums.absent, "not cached"),
            ]);
            print_line(&format!("{} requested: {text}", units::bytes(wanted as f64)))?;
        }
    }
    ended(&outcome, wanted.saturating_sub(sums.done))
}

/// Joins the nonzero amounts with commas.
fn sentence(parts: &[(u64, &str)]) -> String {
    let said = parts.iter().filter(|(bytes, _)| *bytes > 0);
    let said: Vec<String> =
        said.map(|(bytes, what)| format!("{} {what}", units::bytes(*bytes as f64))).collect();
    if said.is_empty() { "nothing to do".to_owned() } else { said.join(", ") }
}

fn ended(outcome: &Outcome, left: u64) -> Result<(), Failure> {
    if let Some(error) = &outcome.error {
        return Err(Failure::World(crate::table::plain(error)));
    }
    if outcome.is_stopped {
        say(&format!("stopped, {} left: the same command continues from here", units::bytes(left as f64)));
        return Err(Failure::Interrupted);
    }
    Ok(())
}
