//! Warming: the list of cached blocks and its transfer to another cache; which blocks are displaced and which
//! stay; every step ends.

use block::{BlockIndex, Device, DevicePart, Durability, Error, Part};
use cache::{CachePart, Heat, Mode, Options};
use conformance::requests::{full, on_a_shard, read, write};
use layers::fault::{FaultDevicePart, parse_rules};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

fn disk(blocks: u64) -> Arc<dyn DevicePart> {
    crate::disk(blocks * 4096, 4096)
}

/// A disk whose block n is full of n.
async fn numbered(blocks: u64) -> Arc<dyn DevicePart> {
    let disk = disk(blocks);
    let handle = disk.open().await.unwrap();
    for block in 0..blocks {
        handle.write(BlockIndex(block), full(block as u8, 1), Durability::Visible).await.unwrap();
    }
    disk
}

const BLOCK: u64 = 32 << 10;

fn made(mode: Mode) -> Options {
    let settle_every = Duration::from_millis(5);
    Options { format: true, mode, block_size: BLOCK, settle_every, ..Options::default() }
}

async fn cache(slow: &Arc<dyn DevicePart>, fast: u64, options: &Options) -> CachePart {
    CachePart::open(slow.clone(), disk(fast), "slow", options).await.unwrap()
}

async fn count(part: &CachePart, name: &str) -> u64 {
    part.status().await[name].as_u64().unwrap()
}

async fn tell(part: &CachePart, message: &str) -> Value {
    let answer = part.message(message).await.unwrap_or_else(|error| panic!("{message}: {error}"));
    serde_json::from_str(&answer).unwrap()
}

/// Repeats steps until all ranges are done, and adds up their answers.
async fn all(part: &CachePart, verb: &str, wants: &[(Heat, u64, u64)]) -> BTreeMap<String, u64> {
    let mut sums: BTreeMap<String, u64> = BTreeMap::new();
    let mut wants = wants.to_vec();
    while !wants.is_empty() {
        let words = wants.iter().map(|(heat, from, to)| match verb {
            "evict" => format!(" {from}+{}", to - from),
            _ => format!(" {heat} {from}+{}", to - from),
        });
        let answer = tell(part, &format!("warm {verb}{}", words.collect::<String>())).await;
        let mut done = answer["done"].as_u64().unwrap();
        assert!(done > 0, "a step does something: {answer}");
        for (key, value) in answer.as_object().unwrap() {
            *sums.entry(key.clone()).or_default() += value.as_u64().unwrap_or(0);
        }
        while done > 0 {
            let (_, from, to) = &mut wants[0];
            let taken = done.min(*to - *from);
            (*from, done) = (*from + taken, done - taken);
            if from == to {
                wants.remove(0);
            }
        }
    }
    sums
}

/// Lists all cached blocks: valid parts, dirty parts and heat by block.
async fn listed(part: &CachePart, page: u32) -> BTreeMap<u64, (u64, u64, Heat)> {
    let mut found = BTreeMap::new();
    let mut from = Some(0);
    while let Some(at) = from {
        let answer = tell(part, &format!("warm list {at} {page}")).await;
        for row in answer["blocks"].as_array().unwrap() {
            let number = |at: usize| row[at].as_u64().unwrap();
            let heat = Heat::parse(row[3].as_str().unwrap()).unwrap();
            assert!(found.insert(number(0), (number(1), number(2), heat)).is_none(), "listed twice: {row}");
        }
        from = answer["next"].as_u64();
    }
    found
}

fn heat(text: &str) -> Heat {
    Heat::parse(text).unwrap()
}

/// Reads a whole block of the cache, and lets it be promoted.
async fn ask(handle: &dyn Device, block: u64) {
    let found = read(handle, block * BLOCK / 4096, 8).await.unwrap();
    for (number, bytes) in found.chunks(4096).enumerate() {
        assert_eq!(bytes, vec![(block * 8) as u8 + number as u8; 4096], "block {block}");
    }
    runtime::sleep(Duration::from_micros(100)).await;
}

/// Reads blocks 0 to 59 once, then blocks 0 to 9 repeatedly.
async fn heated(part: &CachePart) {
    let handle = part.open().await.unwrap();
    for block in 0..60 {
        ask(&*handle, block).await;
    }
    for _ in 0..5 {
        for block in 0..10 {
            ask(&*handle, block).await;
        }
    }
}

#[test]
fn another_cache_holds_it_afterwards_as_hot_whatever_its_blocks_are() {
    on_a_shard(|| async {
        let slow = numbered(1024).await;
        let part = cache(&slow, 768, &made(Mode::Writethrough)).await;
        heated(&part).await;
        let saved = listed(&part, 7).await;
        assert_eq!(saved.len(), 60, "{saved:?}");
        assert_eq!(listed(&part, 4096).await, saved, "pages are all of it");
        let hot: Vec<u64> =
            saved.iter().filter(|(_, (_, _, heat))| heat.level() > 1).map(|(block, _)| *block).collect();
        assert_eq!(hot, (0..10).collect::<Vec<_>>());
        part.close().await.unwrap();

        let mut wants: Vec<_> =
            saved.iter().map(|(block, row)| (row.2, block * BLOCK, (block + 1) * BLOCK)).collect();
        wants.sort_by_key(|(heat, from, _)| (std::cmp::Reverse(heat.level()), heat.age, *from));
        for block_size in [32 << 10, 64 << 10, 96 << 10] {
            let options = Options { block_size, ..made(Mode::Writeback) };
            let part = cache(&slow, 1024, &options).await;
            let sums = all(&part, "fetch", &wants).await;
            assert_eq!((sums["done"], sums["past_end"]), (60 * BLOCK, 0), "{sums:?}");
            assert_eq!(sums["fetched"], 60 * BLOCK, "{sums:?}");
            assert_eq!(count(&part, "prefetched_bytes").await, 60 * BLOCK);
            assert_eq!(all(&part, "fetch", &wants).await["present"], 60 * BLOCK, "again costs nothing");
            let again = listed(&part, 4096).await;
            if block_size == BLOCK {
                let parts = |rows: &BTreeMap<u64, (u64, u64, Heat)>| {
                    rows.iter().map(|(block, row)| (*block, row.0, row.2)).collect::<Vec<_>>()
                };
                assert_eq!(parts(&again), parts(&saved), "where it was, as hot as it was");
            }
            let before = (count(&part, "read_hits").await, count(&part, "read_misses").await);
            let handle = part.open().await.unwrap();
            for block in 0..60 {
                ask(&*handle, block).await;
            }
            assert_eq!(count(&part, "read_misses").await, before.1, "nothing misses");
            assert!(count(&part, "read_hits").await >= before.0 + 60);
            drop(handle);
            part.close().await.unwrap();
        }
    });
}

#[test]
fn what_is_hotter_stays_and_what_is_colder_makes_room() {
    on_a_shard(|| async {
        let slow = numbered(4096).await;
        let part = cache(&slow, 768, &made(Mode::Writethrough)).await;
        let slots = count(&part, "total_blocks").await;
        let range = |from: u64, to: u64, word: &str| (heat(word), from * BLOCK, to * BLOCK);
        // More blocks than the cache has slots.
        let sums = all(&part, "fetch", &[range(0, 200, "main/2/5")]).await;
        let in_it = sums["fetched"] / BLOCK;
        assert!(in_it < slots && in_it > slots * 8 / 10, "some are kept free for others: {in_it} of {slots}");
        assert_eq!(sums["no_room"], (200 - in_it) * BLOCK, "{sums:?}");
        let first = listed(&part, 4096).await;
        for word in ["small/0/0", "small/3/0", "main/0/0", "main/2/0"] {
            let sums = all(&part, "fetch", &[range(300, 340, word)]).await;
            assert_eq!(sums["no_room"], 40 * BLOCK, "{word}: {sums:?}");
            assert_eq!(listed(&part, 4096).await, first, "{word} displaces nothing");
        }
        // Ten blocks become hotter; then hotter ones displace all others but these.
        let sums = all(&part, "heat", &[range(20, 30, "main/3/1"), range(500, 501, "main/3/1")]).await;
        assert_eq!((sums["present"], sums["absent"]), (10 * BLOCK, BLOCK), "{sums:?}");
        let sums = all(&part, "fetch", &[range(300, 400, "main/3/0")]).await;
        let now = listed(&part, 4096).await;
        assert_eq!(sums["fetched"], (in_it - 10) * BLOCK, "{sums:?}");
        assert!((20..30).all(|block| now.contains_key(&block)), "{now:?}");
        assert_eq!(now.keys().filter(|block| **block < 300).count(), 10, "{now:?}");
        assert_eq!(
            count(&part, "total_blocks").await - count(&part, "used_blocks").await,
            slots - in_it,
            "no more is free"
        );
        // Setting a lower heat leaves a block as hot as it is.
        all(&part, "heat", &[range(20, 30, "small/0/0")]).await;
        assert!((20..30).all(|block| now[&block].2.level() == 7));
        // Misses of clients still find slots.
        let handle = part.open().await.unwrap();
        for block in 0..20 {
            ask(&*handle, block).await;
            runtime::sleep(Duration::from_millis(5)).await;
        }
        // The blocks pass through the small queue.
        assert!(count(&part, "promotions").await > 10, "{:?}", part.status().await);
        drop(handle);
        part.close().await.unwrap();
    });
}

#[test]
fn what_is_dirty_stays() {
    on_a_shard(|| async {
        let slow = disk(4096);
        let part = cache(&slow, 768, &made(Mode::Writeback)).await;
        let handle = part.open().await.unwrap();
        for block in 0..40 {
            write(&*handle, 8 * block, block as u8 + 1).await.unwrap();
        }
        let wants = [(heat("main/3/0"), 50 * BLOCK, 400 * BLOCK), (heat("main/3/0"), 0, 40 * BLOCK)];
        let sums = all(&part, "fetch", &wants).await;
        assert!(sums["no_room"] > 0, "{sums:?}");
        // The missing parts of dirty blocks were fetched around the dirty ones.
        for block in 0..40 {
            let expected = [vec![block as u8 + 1; 4096], vec![0; 7 * 4096]].concat();
            assert_eq!(read(&*handle, 8 * block, 8).await.unwrap(), expected, "block {block}");
        }
        let rows = listed(&part, 4096).await;
        assert!((0..40).all(|block| rows[&block].0 == 0xFF), "{rows:?}");
        let sums = all(&part, "evict", &[(heat("main/3/0"), 0, 4096 * 4096)]).await;
        assert_eq!(sums["done"], 4096 * 4096, "{sums:?}");
        let dirty = count(&part, "dirty_blocks").await * BLOCK;
        assert!(
            sums["dirty"] >= dirty && count(&part, "used_blocks").await * BLOCK == sums["dirty"],
            "{sums:?}"
        );
        for block in 0..40 {
            assert_eq!(read(&*handle, 8 * block, 1).await.unwrap(), vec![block as u8 + 1; 4096]);
        }
        drop(handle);
        part.close().await.unwrap();
        let origin = slow.open().await.unwrap();
        for block in 0..40 {
            let found = read(&*origin, 8 * block, 1).await.unwrap();
            assert!(found == vec![0; 4096] || found == vec![block as u8 + 1; 4096]);
        }
    });
}

#[test]
fn every_step_ends_and_says_how_far_it_got() {
    on_a_shard(|| async {
        let slow = disk(1 << 20);
        let part = cache(&slow, 32 << 10, &made(Mode::Writethrough)).await;
        let size = count(&part, "bytes").await;
        let answer = tell(&part, &format!("warm fetch 0+{}", size + 1000)).await;
        let done = answer["done"].as_u64().unwrap();
        assert!((1 << 20..=20 << 20).contains(&done) && answer["fetched"] == done, "{answer}");
        for verb in ["fetch", "heat", "evict"] {
            let sums = all(&part, verb, &[(Heat::PREFETCHED, 0, size + 1000)]).await;
            assert_eq!((sums["done"], sums["past_end"]), (size + 1000, 1000), "{verb}: {sums:?}");
        }
        assert_eq!(count(&part, "used_blocks").await, 0);
        let far = tell(&part, &format!("warm fetch {size}+18446744000000000000")).await;
        assert_eq!(far["past_end"], 18_446_744_000_000_000_000_u64);
        part.close().await.unwrap();
        let closed = part.message("warm fetch 0+1").await;
        assert!(matches!(closed, Err(Error::Closed(_))), "{closed:?}");
    });
}

#[test]
fn where_nothing_comes_in_it_says_so() {
    on_a_shard(|| async {
        let slow = disk(1024);
        let part = cache(&slow, 768, &made(Mode::Passthrough)).await;
        let refused = part.message("warm fetch 0+1").await.unwrap_err();
        assert!(refused.to_string().contains("the cache admits no blocks"), "{refused}");
        part.message("mode writeback").await.unwrap();
        assert_eq!(tell(&part, "warm fetch 0+1").await["fetched"], 1);
        let refused = part.message("warm list 5000 1").await.unwrap_err();
        assert!(matches!(refused, Error::Invalid(_)), "{refused}");
        part.close().await.unwrap();
    });
}

#[test]
fn errors_are_counted_and_the_rest_comes_in() {
    on_a_shard(|| async {
        let slow = numbered(1024).await;
        // Block 3 of the cache can't be read.
        let rules = ["range=96KiB..128KiB read error=EIO".to_owned()];
        let rules = parse_rules(&rules, stack::Contract::Device).unwrap();
        let broken: Arc<dyn DevicePart> = Arc::new(FaultDevicePart::new(slow, rules, 1).unwrap());
        let options = Options { checks_origin: false, ..made(Mode::Writeback) };
        let part = CachePart::open(broken, disk(768), "slow", &options).await.unwrap();
        let answer = tell(&part, &format!("warm fetch 0+{}", 10 * BLOCK)).await;
        assert_eq!((&answer["fetched"], &answer["failed"]), (&(9 * BLOCK).into(), &BLOCK.into()), "{answer}");
        assert!(answer["error"].as_str().unwrap().contains("input/output error"), "{answer}");
        assert_eq!(count(&part, "used_blocks").await, 9, "nothing is left of it");
        let handle = part.open().await.unwrap();
        for block in [0, 1, 2, 4, 9] {
            ask(&*handle, block).await;
        }
        assert_eq!(count(&part, "read_misses").await, 0);
        drop(handle);
        part.close().await.unwrap();
    });
}

/// Clients write and read while all blocks are fetched and evicted repeatedly.
#[test]
fn clients_go_on_meanwhile() {
    on_a_shard(|| async {
        for mode in [Mode::Writeback, Mode::Writethrough] {
            let slow = disk(1024);
            let part = std::rc::Rc::new(cache(&slow, 768, &made(mode)).await);
            let (warmed, is_over) = (part.clone(), std::rc::Rc::new(std::cell::Cell::new(false)));
            let over = is_over.clone();
            let warming = runtime::spawn(async move {
                let mut fetched = 0;
                while !over.get() {
                    fetched += all(&warmed, "fetch", &[(heat("main/1/0"), 0, 1024 * 4096)]).await["fetched"];
                    all(&warmed, "evict", &[(Heat::PREFETCHED, 0, 1024 * 4096)]).await;
                }
                fetched
            });
            let handle = part.open().await.unwrap();
            let mut random = runtime::Random::new(11);
            let mut model = vec![0_u8; 1024];
            for round in 0..4000 {
                let block = random.below(1024);
                if random.chance(0.5) {
                    let byte = random.next_u64() as u8;
                    write(&*handle, block, byte).await.unwrap();
                    model[block as usize] = byte;
                } else {
                    let found = read(&*handle, block, 1).await.unwrap();
                    assert_eq!(
                        found,
                        vec![model[block as usize]; 4096],
                        "{mode:?}, round {round}, block {block}"
                    );
                }
                runtime::yield_now().await;
            }
            is_over.set(true);
            assert!(warming.await > 0, "something came in");
            drop(handle);
            part.close().await.unwrap();
        }
    });
}
