mod model;

use super::*;
use block::Buffer;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const CHUNK: u64 = 64 * KIB;

fn cache(bytes: u64) -> ReadCache {
    ReadCache::new(Region::new(0, bytes, 4096, 512, 1 << 30), 12)
}

fn zone(generation: u64, durable: u64) -> ZoneEnd {
    ZoneEnd { zone: ZoneIndex(3), generation, durable }
}

/// Ends a fetch whose chunks enter the cache.
fn complete(cache: &ReadCache, fetch: &Rc<Fetch>) {
    fetch.finish(Ok(Buffer::zeroed(fetch.length as usize).freeze()));
    let mut at = 0;
    while at < fetch.length {
        let length = CHUNK.min(fetch.length - at);
        let slot = cache.take_slot().unwrap();
        cache.admit(fetch, fetch.at.offset.0 + at, length, slot, Sums::default());
        at += length;
    }
    cache.end_fetch(fetch);
}

/// Describes the pieces of a plan, and ends its reads of chunks.
fn words(cache: &ReadCache, plan: &Plan) -> Vec<(u64, String)> {
    let word = |(bytes, source): &(usize, Source)| {
        let word = match source {
            Source::Slot(part) => {
                cache.end_read(part, true);
                format!("slot {}", part.bytes.start)
            }
            Source::Fetch(fetch, skipped) => format!("fetch {}+{skipped}", fetch.at.offset.0),
            Source::Origin => "origin".to_owned(),
        };
        (*bytes as u64, word)
    };
    plan.pieces.iter().map(word).collect()
}

fn piece(bytes: u64, word: &str) -> (u64, String) {
    (bytes, word.to_owned())
}

fn requests(plan: &Plan) -> Vec<(u64, u64)> {
    plan.fetches.iter().map(|fetch| (fetch.at.offset.0, fetch.length)).collect()
}

#[test]
fn missing_chunks_are_fetched_together_and_once() {
    let cache = cache(4 * MIB);
    let first = cache.plan(zone(1, MIB), 10 * KIB, 200 * KIB);
    assert_eq!(requests(&first), [(0, 4 * CHUNK)]);
    assert_eq!(words(&cache, &first), [piece(200 * KIB, "fetch 0+10240")]);
    let joined = cache.plan(zone(1, MIB), 100 * KIB, 4 * KIB);
    assert_eq!((requests(&joined), words(&cache, &joined)), (vec![], vec![piece(4 * KIB, "fetch 0+102400")]));
    complete(&cache, &first.fetches[0]);
    // The chunks before and after one that is there are two requests.
    let other = cache.plan(zone(1, MIB), 6 * CHUNK, 1);
    complete(&cache, &other.fetches[0]);
    let mixed = cache.plan(zone(1, MIB), 3 * CHUNK + 512, 5 * CHUNK);
    assert_eq!(requests(&mixed), [(4 * CHUNK, 2 * CHUNK), (7 * CHUNK, 2 * CHUNK)]);
    let expected = [
        piece(CHUNK - 512, "slot 512"),
        piece(2 * CHUNK, "fetch 262144+0"),
        piece(CHUNK, "slot 0"),
        piece(CHUNK + 512, "fetch 458752+0"),
    ];
    assert_eq!(words(&cache, &mixed), expected);
}

#[test]
fn a_large_read_is_a_few_requests() {
    let cache = cache(64 * MIB);
    let plan = cache.plan(zone(1, 8 * MIB), CHUNK, 3 * MIB);
    assert_eq!(
        requests(&plan),
        [(CHUNK, MIB - CHUNK), (MIB, MIB), (2 * MIB, MIB), (3 * MIB, CHUNK)],
        "they end at multiples of a MiB"
    );
}

#[test]
fn only_what_is_durable_at_the_origin_is_admitted() {
    let cache = cache(4 * MIB);
    let end = CHUNK + 10 * KIB;
    let plan = cache.plan(zone(1, end + 100), 0, 2 * CHUNK);
    assert_eq!(requests(&plan), [(0, end)], "whole units of reads");
    assert_eq!(words(&cache, &plan), [piece(end, "fetch 0+0"), piece(2 * CHUNK - end, "origin")]);
    complete(&cache, &plan.fetches[0]);
    // The zone has grown: the last chunk is fetched as a whole.
    let plan = cache.plan(zone(1, 2 * CHUNK), 0, 2 * CHUNK);
    assert_eq!(requests(&plan), [(CHUNK, CHUNK)]);
    let later = cache.plan(zone(1, 3 * CHUNK), CHUNK, 2 * CHUNK);
    assert_eq!(requests(&later), [(2 * CHUNK, CHUNK)]);
    complete(&cache, &plan.fetches[0]);
    complete(&cache, &later.fetches[0]);
    let plan = cache.plan(zone(1, 3 * CHUNK), 0, 3 * CHUNK);
    assert_eq!(
        words(&cache, &plan),
        [piece(CHUNK, "slot 0"), piece(CHUNK, "slot 0"), piece(CHUNK, "slot 0")]
    );
    // The origin has another generation, or nothing of this one.
    let plan = cache.plan(zone(2, 0), 0, CHUNK);
    assert_eq!((requests(&plan), words(&cache, &plan)), (vec![], vec![piece(CHUNK, "origin")]));
}

#[test]
fn no_chunk_of_an_earlier_generation_is_found() {
    for is_forgotten in [true, false] {
        let cache = cache(4 * MIB);
        let plan = cache.plan(zone(1, MIB), 0, CHUNK);
        complete(&cache, &plan.fetches[0]);
        let in_flight = cache.plan(zone(1, MIB), CHUNK, CHUNK);
        if is_forgotten {
            cache.forget_zone(ZoneIndex(3), 1, MIB);
        }
        for offset in [0, CHUNK] {
            let plan = cache.plan(zone(2, MIB), offset, CHUNK);
            assert_eq!(requests(&plan), [(offset, CHUNK)]);
            plan.fetches.iter().for_each(|fetch| cache.end_fetch(fetch));
        }
        // A fetch that ends after the reset doesn't change that.
        complete(&cache, &in_flight.fetches[0]);
        assert_eq!(requests(&cache.plan(zone(2, MIB), CHUNK, CHUNK)), [(CHUNK, CHUNK)]);
    }
}

#[test]
fn fetches_have_a_limit_after_which_the_origin_is_read() {
    let cache = cache(64 * MIB);
    let mut plans = Vec::new();
    for number in 0..16 {
        let plan = cache.plan(zone(1, 1 << 30), number * MIB, MIB);
        assert_eq!(requests(&plan), [(number * MIB, MIB)]);
        plans.push(plan);
    }
    let over = cache.plan(zone(1, 1 << 30), 20 * MIB, 2 * MIB);
    assert_eq!((requests(&over), words(&cache, &over)), (vec![], vec![piece(2 * MIB, "origin")]));
    complete(&cache, &plans[0].fetches[0]);
    assert_eq!(cache.plan(zone(1, 1 << 30), 20 * MIB, MIB).fetches.len(), 1);
}

#[test]
fn a_sequential_read_fetches_ahead_what_is_missing() {
    let cache = cache(1 << 30);
    let state = zone(1, 64 * MIB);
    let (mut ahead, mut bytes) = (Vec::new(), 0);
    for step in 0..512 {
        let offset = step * 16 * KIB;
        let plan = cache.plan(state, offset, 16 * KIB);
        plan.fetches.iter().for_each(|fetch| complete(&cache, fetch));
        words(&cache, &plan);
        if let Some(wanted) = plan.ahead {
            // The log has the bytes from 4 MiB to 5 MiB.
            let is_held = |at: ZoneAddress, _| (4 * MIB..5 * MIB).contains(&at.offset.0);
            ahead.extend(cache.begin_ahead(state, wanted, is_held));
        }
        while let Some(fetch) = ahead.pop() {
            bytes += fetch.length;
            assert!(fetch.at.offset.0 >= 5 * MIB || fetch.at.offset.0 + fetch.length <= 4 * MIB, "{fetch:?}");
            complete(&cache, &fetch);
        }
    }
    let counters = &cache.counters;
    assert_eq!(counters.read_ahead_bytes.get(), bytes);
    let demanded = counters.read_cache_filled_bytes.get() - bytes;
    assert_eq!(demanded, MIB + CHUNK, "the first chunk, and those that the log had");
    assert_eq!(counters.read_ahead_used_bytes.get(), 8 * MIB - demanded);
    let left = counters.read_ahead_bytes.get() - counters.read_ahead_used_bytes.get();
    assert!((6 * MIB..=9 * MIB).contains(&left), "{left}");
    cache.forget_zone(ZoneIndex(3), 1, 64 * MIB);
    assert_eq!(counters.read_ahead_wasted_bytes.get(), left);
}

#[test]
fn without_a_region_the_origin_is_read() {
    let cache = ReadCache::new(None, 12);
    for step in 0..10 {
        let plan = cache.plan(zone(1, MIB), step * 4096, 4096);
        assert_eq!((words(&cache, &plan), plan.ahead), (vec![piece(4096, "origin")], None));
    }
    let mut status = Status::new();
    cache.add_status(&mut status);
    assert_eq!(status["read_cache_bytes"], 0);
}
