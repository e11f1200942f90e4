//! Two writers of a bucket: one that was fenced doesn't claim the volume again by itself, and of two that
//! open at the same time the opening of the second one to claim fails.

use crate::bucket::{bucket_options, world};
use crate::{copy_of, fast_device, options, with_faults};
use block::{Buffer, Data, DevicePart, Error, Part, Payload, Result, ZoneAddress, ZoneIndex, ZonesPart};
use conformance::Seeds;
use object_store::Limits;
use object_store::testing::{Asked, Bucket};
use objects::ObjectsPart;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use zone_writecache::{Ack, MaxLag, Options, ZoneWriteCachePart};

const BLOCK: usize = 4096;
/// The writer with a fast device, and another one without.
const A: &str = "a";
const B: &str = "b";

fn filled(value: u8) -> Payload {
    Data::copy_of(&[value; BLOCK]).into()
}

/// Options of a writer. Its requests have its name in the region of their signature; it waits for answers for
/// hours.
fn of_writer(writer: &str, format: bool) -> objects::Options {
    let mut options = bucket_options(format);
    let hours = Duration::from_secs(10 * 3600);
    options.store.limits =
        Limits { first_byte: hours, request: hours, operation: hours, hedged: false, ..Limits::default() };
    options.store.region = format!("{writer}-1");
    options.writer = format!("host {writer}, process 1");
    options
}

/// Writer of a request.
fn writer_of(asked: &Asked) -> &'static str {
    let signed = asked.query("X-Amz-Credential").unwrap_or_default();
    [A, B].into_iter().find(|writer| signed.contains(&format!("/{writer}-1/"))).unwrap_or("other")
}

/// Opens the write cache of writer A, whose uploads don't begin by age.
async fn open_a(
    fast: &Arc<dyn DevicePart>,
    format: bool,
    options: Options,
) -> Result<Arc<ZoneWriteCachePart>> {
    let bucket = ObjectsPart::find(of_writer(A, format)).await?;
    let max_lag = MaxLag { bytes: 1 << 20, age: Duration::from_secs(24 * 3600) };
    let options = Options { format, max_lag, ..options };
    ZoneWriteCachePart::open(fast.clone(), Arc::new(bucket), options).await.map(Arc::new)
}

async fn read(part: &dyn ZonesPart, zone: u32, offset: u64) -> Result<Vec<u8>> {
    let handle = part.open().await?;
    let (outcome, buffer) = handle.read(ZoneAddress::new(zone, offset), Buffer::new(BLOCK)).await;
    outcome.map(|()| buffer.filled().to_vec())
}

/// Appends a block to a zone and flushes it. Returns its offset.
async fn write(part: &dyn ZonesPart, zone: u32, value: u8) -> Result<u64> {
    let handle = part.open().await?;
    let at = handle.append(ZoneIndex(zone), filled(value)).await?;
    handle.flush(&[ZoneIndex(zone)]).await?;
    Ok(at.offset.0)
}

/// Fast device of a writer A that was killed: zone 0 has block 1 in the bucket as well, and block 2 only
/// here.
async fn killed() -> Arc<dyn DevicePart> {
    let fast = fast_device();
    let cache = open_a(&fast, true, options(true)).await.unwrap();
    write(&*cache, 0, 1).await.unwrap();
    cache.message("flush").await.unwrap();
    write(&*cache, 0, 2).await.unwrap();
    copy_of(&fast).await
}

fn assert_refused(outcome: Result<Arc<ZoneWriteCachePart>>, expected: &[&str]) {
    let error = outcome.err().expect("another writer has the bucket");
    assert!(matches!(error, Error::Busy(_)), "{error}");
    for text in expected {
        assert!(error.detail().contains(text), "{text}: {error}");
    }
}

/// Options with a value of `take_over`. `new_fast` has no effect: the fast device isn't empty.
fn with_take_over(claim: Option<u64>) -> Options {
    Options { take_over: claim, new_fast: true, ..options(false) }
}

#[test]
fn a_restart_of_a_fenced_writer_leaves_the_other_one_alone() {
    world(1, |bucket| async move {
        let fast = killed().await;
        let other = ObjectsPart::open(of_writer(B, false)).await.unwrap();
        write(&other, 1, 3).await.unwrap();
        let keys = || bucket.objects.borrow().keys().cloned().collect::<Vec<_>>();
        let before = keys();
        for claim in [None, Some(1), Some(3)] {
            let refused = open_a(&fast, false, with_take_over(claim)).await;
            let both = ["\"host b, process 1\" with claim 2", "claim 1 by \"host a, process 1\""];
            assert_refused(refused, &both);
        }
        let expected = ["1 changes with 4096 bytes", "take_over=2", "nothing was changed"];
        assert_refused(open_a(&fast, false, with_take_over(None)).await, &expected);
        assert_eq!(keys(), before, "the refused writer changed nothing");
        write(&other, 1, 4).await.unwrap();

        let cache = open_a(&fast, false, with_take_over(Some(2))).await.unwrap();
        assert!(write(&other, 1, 5).await.is_err(), "it is fenced");
        let report = cache.open().await.unwrap().report(ZoneIndex(0), 2).await.unwrap();
        let ends: Vec<u64> = report.iter().map(|report| report.write_pointer).collect();
        assert_eq!(ends, [4096, 8192], "the state of the other writer");
        assert_eq!(read(&*cache, 1, 4096).await.unwrap(), [4; BLOCK]);
        write(&*cache, 2, 6).await.unwrap();
        cache.close().await.unwrap();
        // The key that was left in the stack has no effect any more.
        let cache = open_a(&fast, false, with_take_over(Some(2))).await.unwrap();
        assert_eq!(read(&*cache, 2, 0).await.unwrap(), [6; BLOCK]);
        cache.close().await.unwrap();
        ObjectsPart::open(of_writer(B, false)).await.unwrap();
        assert_refused(open_a(&fast, false, with_take_over(Some(2))).await, &["claim 5", "take_over=5"]);
    });
}

/// A write cache with another fast device is another writer, also if it changes nothing.
#[test]
fn every_claim_of_another_writer_is_found() {
    world(2, |_bucket| async move {
        let fast = killed().await;
        let empty = fast_device();
        let bucket = Arc::new(ObjectsPart::find(of_writer(B, false)).await.unwrap());
        let new = Options { new_fast: true, ..options(false) };
        let other = ZoneWriteCachePart::open(empty.clone(), bucket, new).await.unwrap();
        write(&other, 3, 1).await.unwrap();
        assert_refused(open_a(&fast, false, options(false)).await, &["host b", "take_over=2"]);
        // The other writer may open again.
        let bucket = Arc::new(ObjectsPart::find(of_writer(B, false)).await.unwrap());
        let copy = copy_of(&empty).await;
        let other = ZoneWriteCachePart::open(copy, bucket, options(false)).await.unwrap();
        assert_eq!(read(&other, 3, 0).await.unwrap(), [1; BLOCK]);
        let cache = open_a(&fast, false, with_take_over(Some(3))).await.unwrap();
        cache.close().await.unwrap();
    });
}

#[test]
fn an_older_copy_of_the_fast_device_is_refused() {
    world(3, |_bucket| async move {
        let fast = killed().await;
        let older = copy_of(&fast).await;
        let cache = open_a(&fast, false, options(false)).await.unwrap();
        // It has the same zones.
        cache.close().await.unwrap();
        assert_refused(open_a(&older, false, options(false)).await, &["an older copy of the fast device"]);
        open_a(&fast, false, options(false)).await.unwrap();
    });
}

/// The fast device fails after the claim: it keeps its log, and the next refusal names the claim that was
/// made.
#[test]
fn take_over_is_needed_again_after_a_failure_between_the_claim_and_the_new_cache() {
    world(5, |_bucket| async move {
        let fast = killed().await;
        ObjectsPart::open(of_writer(B, false)).await.unwrap();
        let broken = with_faults(fast.clone(), ["write error"], 1);
        assert!(matches!(open_a(&broken, false, with_take_over(Some(2))).await, Err(Error::Io(_))));
        let expected = ["\"host a, process 1\" with claim 3", "1 changes with 4096 bytes", "take_over=3"];
        assert_refused(open_a(&fast, false, with_take_over(Some(2))).await, &expected);
        let cache = open_a(&fast, false, with_take_over(Some(3))).await.unwrap();
        let report = cache.open().await.unwrap().report(ZoneIndex(0), 1).await.unwrap()[0];
        assert_eq!(report.write_pointer, 4096);
    });
}

/// Loses the requests of writer A, beginning with number `from`. The store carries out the first lost request
/// late: before request `late` of writer A's next opening.
fn lose(bucket: &Rc<Bucket>, from: usize, late: Option<usize>) -> Rc<Cell<bool>> {
    let (own, is_first, lost) = (Rc::downgrade(bucket), Rc::new(Cell::new(true)), RefCell::new(None));
    let (number, kept) = (Cell::new(0), is_first.clone());
    bucket.follow(move |asked| {
        if writer_of(asked) != A {
            return None;
        }
        let now = number.replace(number.get() + 1);
        if kept.get() {
            if now < from {
                return None;
            }
            lost.borrow_mut().get_or_insert_with(|| asked.clone());
            // No answer.
            number.set(from);
            return Some(Vec::new());
        }
        if now >= from + late.unwrap_or(0)
            && let Some(lost) = lost.borrow_mut().take()
        {
            own.upgrade()?.carry_out(&lost, None);
        }
        None
    });
    is_first
}

/// A claim whose answer was lost, or that the store carries out later, is the cache's own.
#[test]
fn claims_without_an_answer_are_known() {
    let mut claims = 0;
    for from in 0..20 {
        for late in [None, Some(0), Some(6), Some(8), Some(9), Some(10)] {
            claims += world(4, move |bucket| async move {
                let fast = killed().await;
                let is_first = lose(&bucket, from, late);
                let begun = open_a(&fast, false, options(false));
                let is_open = runtime::timeout(Duration::from_secs(60), begun).await.is_ok();
                is_first.set(false);
                let left = copy_of(&fast).await;
                let mut opened = open_a(&left, false, options(false)).await;
                if opened.is_err() {
                    // The late claim was carried out between the comparison and the own claim.
                    opened = open_a(&left, false, options(false)).await;
                }
                let cache = opened.unwrap_or_else(|error| panic!("from {from}, late {late:?}: {error}"));
                assert_eq!(read(&*cache, 0, 4096).await.unwrap(), [2; BLOCK]);
                u32::from(!is_open)
            });
        }
    }
    assert!(claims > 20, "{claims} openings were cut");
}

/// Delays of the requests of both writers, by their numbers, and the number of writer A's request at which
/// writer B begins.
#[derive(Clone)]
struct Schedule {
    a: Vec<Duration>,
    b: Vec<Duration>,
    begin: usize,
}

/// Result of a race.
struct Outcome {
    /// Acknowledged blocks that the bucket lacks at the end.
    lost: Vec<(u32, u64, u8)>,
    /// Whether A claimed directly after B.
    has_reclaimed: bool,
    /// Requests of A and B.
    requests: (usize, usize),
    /// Whether A and B were opened.
    opened: (bool, bool),
}

#[derive(Clone, Copy, PartialEq)]
enum Broken {
    Nothing,
    /// Flushes wait for the fast device alone.
    AckFast,
    /// `take_over` names B's claim from the start.
    NamedClaim,
    /// The store ignores the conditions of manifests.
    Conditions,
}

/// Writers of the claims of all epochs, in order.
fn claimants(bucket: &Bucket) -> Vec<char> {
    let objects = bucket.objects.borrow();
    let claims =
        objects.iter().filter(|(key, _)| key.contains("/manifest/") && key.ends_with("/0000000000000000"));
    // The name is after 88 bytes: "host a, process 1".
    claims.map(|(_, stored)| char::from(stored.bytes[88 + 5])).collect()
}

/// Writer A starts again with a fast device, and B opens the bucket at some request of that. Each writes and
/// flushes a block.
fn race(seed: u64, schedule: Schedule, broken: Broken) -> Outcome {
    world(seed, move |bucket| async move {
        let fast = killed().await;
        bucket.latency.set(Duration::ZERO);
        let (own, counts) = (Rc::downgrade(&bucket), Rc::new(Cell::new((0, 0))));
        let (counted, Schedule { a, b, begin }) = (counts.clone(), schedule);
        bucket.follow(move |asked| {
            let (of_a, of_b) = counted.get();
            let bucket = own.upgrade()?;
            let latency = match writer_of(asked) {
                A => {
                    counted.set((of_a + 1, of_b));
                    a.get(of_a).or(a.last())
                }
                B => {
                    counted.set((of_a, of_b + 1));
                    b.get(of_b).or(b.last())
                }
                _ => None,
            };
            bucket.latency.set(latency.copied().unwrap_or_default());
            if broken == Broken::Conditions && asked.method == "PUT" && asked.key.contains("/manifest/") {
                let mut asked = asked.clone();
                asked.headers.retain(|(name, _)| name != "if-none-match");
                bucket.carry_out(&asked, None);
                return Some(b"HTTP/1.1 200 x\r\netag: \"x\"\r\ncontent-length: 0\r\n\r\n".to_vec());
            }
            None
        });
        let acknowledged = Rc::new(RefCell::new(Vec::new()));
        let (known, fast) = (acknowledged.clone(), fast.clone());
        let first = runtime::spawn(async move {
            let options = Options {
                ack: if broken == Broken::AckFast { Ack::Fast } else { Ack::Origin },
                take_over: (broken == Broken::NamedClaim).then_some(2),
                ..options(false)
            };
            let Ok(cache) = open_a(&fast, false, options).await else { return None };
            for value in 5..8 {
                if let Ok(at) = write(&*cache, 2, value).await {
                    known.borrow_mut().push((2, at, value));
                }
            }
            Some(cache)
        });
        let (known, started) = (acknowledged.clone(), counts.clone());
        let second = runtime::spawn(async move {
            while started.get().0 < begin {
                runtime::sleep(Duration::from_micros(50)).await;
            }
            let Ok(part) = ObjectsPart::open(of_writer(B, false)).await else { return None };
            for value in 15..17 {
                if let Ok(at) = write(&part, 3, value).await {
                    known.borrow_mut().push((3, at, value));
                }
            }
            Some(part)
        });
        let limit = Duration::from_secs(3000);
        let cache = runtime::timeout(limit, first).await.expect("A ends");
        let part = match begin {
            usize::MAX => None,
            _ => runtime::timeout(limit, second).await.expect("B ends"),
        };
        let requests = counts.get();
        bucket.latency.set(Duration::ZERO);
        bucket.follow(|_| None);
        let order = claimants(&bucket);
        let mut lost = Vec::new();
        match ObjectsPart::open(of_writer("c", false)).await {
            Ok(last) => {
                for (zone, offset, value) in acknowledged.take() {
                    if read(&last, zone, offset).await != Ok(vec![value; BLOCK]) {
                        lost.push((zone, offset, value));
                    }
                }
            }
            // The whole volume.
            Err(_) => lost.push((u32::MAX, 0, 0)),
        }
        let has_reclaimed = order.windows(2).any(|pair| pair == ['b', 'a']);
        Outcome { lost, has_reclaimed, requests, opened: (cache.is_some(), part.is_some()) }
    })
}

/// The requests of B up to number `pause` are between A's requests `begin` and `begin + 1`; the others are
/// after all of A's.
fn pause(begin: usize, pause: usize) -> Schedule {
    let at = |number: usize, delay: u64| {
        let mut delays = vec![Duration::ZERO; number];
        delays.extend([Duration::from_secs(delay), Duration::ZERO]);
        delays
    };
    // A client that the store has never answered fails after 30 s.
    Schedule { a: at(begin.saturating_sub(1), 12), b: at(pause, 28), begin }
}

/// All interleavings in which B begins at a request of A, is paused at a request of its own until A has
/// ended, and then continues, as long as `look` returns true. Returns the numbers of openings of A, of B, and
/// of both.
fn all_pauses(broken: Broken, mut look: impl FnMut(&Schedule, &Outcome) -> bool) -> [u32; 3] {
    let alone = Schedule { a: vec![Duration::ZERO], b: vec![Duration::ZERO], begin: usize::MAX };
    let (of_a, _) = race(1, alone.clone(), broken).requests;
    let (_, of_b) = race(1, Schedule { begin: 0, ..alone }, broken).requests;
    println!("A has {of_a} requests, B up to {of_b}");
    let mut opened = [0; 3];
    for begin in 0..=of_a {
        for at in 0..=of_b {
            let schedule = pause(begin, at);
            let outcome = race(1, schedule.clone(), broken);
            let (a, b) = outcome.opened;
            for (count, is_open) in opened.iter_mut().zip([a, b, a && b]) {
                *count += u32::from(is_open);
            }
            if !look(&schedule, &outcome) {
                return opened;
            }
        }
    }
    opened
}

#[test]
fn a_claim_between_the_comparison_and_the_own_claim_fails_the_opening() {
    let mut neither = 0;
    let opened = all_pauses(Broken::Nothing, |schedule, outcome| {
        let (begin, of_b) = (schedule.begin, schedule.b.len() - 2);
        assert!(!outcome.has_reclaimed, "begin {begin}, pause {of_b}: A claimed after B");
        assert!(outcome.lost.is_empty(), "begin {begin}, pause {of_b}: lost {:?}", outcome.lost);
        neither += u32::from(outcome.opened == (false, false));
        true
    });
    println!(
        "A was opened {} times, B {} times, both {} times, none {neither} times",
        opened[0], opened[1], opened[2]
    );
    assert!(opened.iter().all(|count| *count > 3), "{opened:?}");
    assert_eq!(neither, 0, "one of them has to win");
}

/// Random delays of all requests.
#[test]
fn requests_of_two_openings_in_any_order_leave_one_writer() {
    for seed in Seeds::of(if conformance::budget::is_long() { 3000 } else { 60 }) {
        let mut random = runtime::Random::new(seed);
        let mut delays =
            || (0..60).map(|_| Duration::from_millis(random.below(8) * 1000)).collect::<Vec<_>>();
        let schedule = Schedule { a: delays(), b: delays(), begin: (seed % 4) as usize };
        let outcome = race(seed, schedule, Broken::Nothing);
        assert!(!outcome.has_reclaimed && outcome.lost.is_empty(), "seed {seed}: lost {:?}", outcome.lost);
        assert_ne!(outcome.opened, (false, false), "seed {seed}");
    }
}

/// The same interleavings find each rule that is broken on purpose.
#[test]
fn broken_rules_of_two_writers_are_found() {
    for (broken, is_found) in [
        (Broken::AckFast, (|outcome| !outcome.lost.is_empty()) as fn(&Outcome) -> bool),
        (Broken::NamedClaim, |outcome| outcome.has_reclaimed),
        (Broken::Conditions, |outcome| outcome.has_reclaimed || !outcome.lost.is_empty()),
    ] {
        let mut found = false;
        all_pauses(broken, |_, outcome| {
            found |= is_found(outcome);
            !found
        });
        assert!(found, "a broken rule isn't found");
    }
}
