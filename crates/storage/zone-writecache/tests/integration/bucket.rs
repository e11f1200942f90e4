//! A log on a write cache of zones whose origin is a bucket: power cuts, the loss of the fast device, and an
//! outage of the store.

use crate::crash_disk::CrashDisk;
use crate::{FAST, options, with_faults};
use block::{BlockIndex, Buffer, Data, Device, DevicePart, Durability, Part, Result, ZonesPart};
use log::LogPart;
use object_store::Limits;
use object_store::testing::{Bucket, Faults, Stored, config};
use objects::{NewVolume, ObjectsPart};
use runtime::Random;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use zone_writecache::{Ack, Options, ZoneWriteCachePart};

const BLOCK: usize = 4096;
const BLOCKS: u64 = 192;

/// Reason for which the parts are opened.
#[derive(Clone, Copy, PartialEq)]
pub enum How {
    Format,
    Again,
    /// The fast device was lost, and is empty.
    NewFast,
}

/// Options of the bucket as zones.
pub fn bucket_options(format: bool) -> objects::Options {
    objects::Options {
        store: config(Limits { operation: Duration::from_secs(30), ..Limits::default() }),
        prefix: "db1".to_owned(),
        writer: "a test".to_owned(),
        format: format.then_some(NewVolume { zones: 24, zone_size: 256 << 10, probe: false }),
        expected: (None, None),
        settings: objects::Settings {
            piece_size: 128 << 10,
            memory: 1 << 20,
            max_append: 96 << 10,
            ..objects::Settings::default()
        },
        follow: None,
        encryption: None,
    }
}

/// Opens the bucket as zones, which fences its last writer.
pub async fn open_bucket(format: bool) -> Arc<ObjectsPart> {
    Arc::new(ObjectsPart::open(bucket_options(format)).await.unwrap())
}

/// Opens the write cache over the bucket.
pub async fn open_cache(fast: Arc<dyn DevicePart>, how: How) -> Result<Arc<ZoneWriteCachePart>> {
    open_cache_with(fast, how, Ack::Fast).await
}

/// As [`open_cache`], with a value of the key `ack`.
pub async fn open_cache_with(
    fast: Arc<dyn DevicePart>,
    how: How,
    ack: Ack,
) -> Result<Arc<ZoneWriteCachePart>> {
    let bucket = ObjectsPart::find(bucket_options(how == How::Format)).await?;
    let options = Options { new_fast: how == How::NewFast, ack, ..options(how == How::Format) };
    ZoneWriteCachePart::open(fast, Arc::new(bucket), options).await.map(Arc::new)
}

/// Opens the log over the write cache.
pub async fn open_log(fast: Arc<dyn DevicePart>, how: How) -> Result<(Arc<ZoneWriteCachePart>, LogPart)> {
    open_log_with(fast, how, Ack::Fast).await
}

async fn open_log_with(
    fast: Arc<dyn DevicePart>,
    how: How,
    ack: Ack,
) -> Result<(Arc<ZoneWriteCachePart>, LogPart)> {
    let cache = open_cache_with(fast, how, ack).await?;
    let format = how == How::Format;
    let of_log = log::kind::Options { format, size: Some(1 << 20), ..log::kind::Options::default() };
    let log = log::kind::open_on_zones(cache.clone() as Arc<dyn ZonesPart>, &of_log).await?;
    if format {
        // So that the bucket alone has a log.
        cache.message("flush").await?;
    }
    Ok((cache, log))
}

pub fn empty_disk() -> CrashDisk {
    CrashDisk::new(FAST as usize, BLOCK as u64, true)
}

/// Writes that were begun, by their numbers, and flushes that have returned.
#[derive(Clone)]
struct Model {
    last: u32,
    /// Numbers of the writes of each block, ascending.
    writes: Vec<Vec<u32>>,
    /// Number of the last write before each flush.
    flushes: Vec<u32>,
}

impl Model {
    fn new() -> Rc<RefCell<Model>> {
        Rc::new(RefCell::new(Model { last: 0, writes: vec![vec![0]; BLOCKS as usize], flushes: vec![0] }))
    }

    fn last_flush(&self) -> usize {
        self.flushes.len() - 1
    }

    /// Whether a power cut between this flush and the next one could have left these writes.
    fn fits(&self, found: &[u32], flush: usize) -> bool {
        let least = self.flushes[flush];
        let most = self.flushes.get(flush + 1).copied().unwrap_or(u32::MAX);
        self.writes.iter().zip(found).all(|(writes, found)| {
            let flushed = writes.iter().rfind(|number| **number <= least);
            writes.contains(found) && flushed.is_some_and(|flushed| found >= flushed) && *found <= most
        })
    }
}

/// Bytes of a write: its block and its number.
fn stamped(block: u64, number: u32) -> Data {
    let stamp = [(block as u32).to_le_bytes(), number.to_le_bytes()].concat();
    Data::copy_of(&stamp.repeat(BLOCK / 8))
}

/// Numbers of the writes that all blocks hold.
async fn found(device: &dyn Device) -> Vec<u32> {
    let mut all = Vec::new();
    for block in 0..BLOCKS {
        let (outcome, buffer) = device.read(BlockIndex(block), Buffer::new(BLOCK)).await;
        outcome.unwrap();
        let number = u32::from_le_bytes(buffer.filled()[4..8].try_into().unwrap());
        let whole = if number == 0 { Data::copy_of(&[0; BLOCK]) } else { stamped(block, number) };
        assert!(*buffer.filled() == *whole, "block {block} isn't write {number} as a whole");
        all.push(number);
    }
    all
}

/// Writes and flushes.
async fn work(
    device: Rc<dyn Device>,
    model: Rc<RefCell<Model>>,
    mut random: Random,
    flushes: u32,
) -> Result<()> {
    for _ in 0..flushes {
        for _ in 0..=random.below(8) {
            let block = random.below(BLOCKS);
            let number = model.borrow().last + 1;
            model.borrow_mut().last = number;
            model.borrow_mut().writes[block as usize].push(number);
            device.write(BlockIndex(block), stamped(block, number).into(), Durability::Visible).await?;
        }
        device.flush().await?;
        let last = model.borrow().last;
        model.borrow_mut().flushes.push(last);
        runtime::sleep(Duration::from_millis(random.below(20))).await;
    }
    Ok(())
}

/// State after a power cut of the machine, and the client's writes.
struct AfterCut {
    objects: BTreeMap<String, Stored>,
    fast: CrashDisk,
    model: Model,
}

/// Runs a test in a simulated world. Returns its result.
pub fn world<T: 'static, Fut: Future<Output = T> + 'static>(
    seed: u64,
    test: impl FnOnce(Rc<Bucket>) -> Fut + 'static,
) -> T {
    let simulation = runtime::Simulation { most_events: 200_000_000, ..runtime::Simulation::new(seed) };
    let run = || async move {
        let bucket = Bucket::start(Faults::default());
        bucket.latency.set(Duration::from_millis(20));
        test(bucket).await
    };
    runtime::simulate(simulation, run).unwrap_or_else(|error| panic!("seed {seed}: {error}")).value
}

/// Writes and flushes, and cuts the power at a random moment. With `lies` the fast device acknowledges
/// flushes that it doesn't carry out.
fn cut(seed: u64, lies: bool, ack: Ack) -> AfterCut {
    world(seed, move |bucket| async move {
        let disk = Arc::new(empty_disk());
        let fast = with_faults(disk.clone(), lies.then_some("flush lie"), 1);
        let (_cache, log) = open_log_with(fast, How::Format, ack).await.unwrap();
        let (model, mut random) = (Model::new(), Random::new(seed));
        let device = log.open().await.unwrap();
        runtime::spawn(work(device, model.clone(), Random::new(seed + 1), 500)).detach();
        runtime::sleep(Duration::from_millis(random.below(5000))).await;
        let model = model.borrow().clone();
        AfterCut { objects: bucket.objects.borrow().clone(), fast: disk.crash(&mut random), model }
    })
}

/// Opens the state after a power cut, with the fast device or without it. Returns the writes that are found.
fn reopened(seed: u64, left: &AfterCut, how: How) -> Result<Vec<u32>> {
    let fast = match how {
        How::NewFast => empty_disk(),
        _ => CrashDisk::with(left.fast.bytes(), BLOCK as u64, true),
    };
    let objects = left.objects.clone();
    world(seed, move |bucket| async move {
        bucket.objects.replace(objects);
        let (cache, log) = open_log(Arc::new(fast), how).await?;
        let device = log.open().await.unwrap();
        let before = found(&*device).await;
        // The stack can be used, and the bucket receives everything.
        device.write(BlockIndex(200), stamped(200, 1).into(), Durability::Durable).await.unwrap();
        drop(device);
        log.close().await.unwrap();
        cache.message("flush").await.unwrap();
        cache.close().await.unwrap();
        let (_, log) = open_log(Arc::new(empty_disk()), How::NewFast).await?;
        assert_eq!(found(&*log.open().await.unwrap()).await, before, "seed {seed}: the bucket after a drain");
        Ok(before)
    })
}

#[test]
fn after_a_power_cut_no_flushed_write_is_lost_and_the_bucket_alone_has_an_older_state() {
    let (mut behind, mut advanced) = (0, 0);
    for seed in 1..=8 {
        println!("seed {seed}");
        let left = cut(seed, false, Ack::Fast);
        let (model, last) = (&left.model, left.model.last_flush());
        let both = reopened(seed, &left, How::Again).unwrap();
        assert!(model.fits(&both, last), "seed {seed}: lost what flush {last} covered");
        let alone = reopened(seed, &left, How::NewFast).unwrap();
        let state = (0..=last).rev().find(|flush| model.fits(&alone, *flush));
        let state = state.unwrap_or_else(|| panic!("seed {seed}: the bucket was never in this state"));
        println!("flush {state} of {last} is in the bucket");
        behind += u32::from(state < last);
        advanced += u32::from(state > 0);
    }
    assert!(behind > 0 && advanced > 0, "{behind} behind, {advanced} advanced: the seeds show nothing");
}

/// With `ack = origin` the bucket alone has everything that was flushed.
#[test]
fn the_bucket_alone_has_every_flush_that_waited_for_it() {
    let mut flushes = 0;
    for seed in 1..=6 {
        let left = cut(seed, false, Ack::Origin);
        let last = left.model.last_flush();
        let alone = reopened(seed, &left, How::NewFast).unwrap();
        assert!(left.model.fits(&alone, last), "seed {seed}: the bucket lacks what flush {last} covered");
        let both = reopened(seed, &left, How::Again).unwrap();
        assert!(left.model.fits(&both, last), "seed {seed}: lost what flush {last} covered");
        flushes += last;
    }
    assert!(flushes > 50, "{flushes} flushes: the seeds show nothing");
}

/// The comparison finds a fast device that acknowledges flushes without carrying them out.
#[test]
fn a_fast_device_that_lies_is_found() {
    let is_lost = |seed| {
        let left = cut(seed, true, Ack::Fast);
        let found = reopened(seed, &left, How::Again);
        !found.is_ok_and(|found| left.model.fits(&found, left.model.last_flush()))
    };
    assert!((1..=8).any(is_lost));
}

/// During an outage of a minute writes continue up to the limit of the lag. Then they wait; nothing fails.
#[test]
fn an_outage_of_the_store_makes_writes_wait() {
    let (objects, model) = world(1, |bucket| async move {
        let (cache, log) = open_log(Arc::new(empty_disk()), How::Format).await.unwrap();
        let device = log.open().await.unwrap();
        let model = Model::new();
        work(device.clone(), model.clone(), Random::new(1), 50).await.unwrap();
        let is_down = Rc::new(Cell::new(true));
        let switch = is_down.clone();
        let answer = b"HTTP/1.1 503 x\r\ncontent-length: 0\r\n\r\n";
        bucket.follow(move |_| switch.get().then(|| answer.to_vec()));
        let before = model.borrow().last_flush();
        let working = runtime::spawn(work(device.clone(), model.clone(), Random::new(2), 400));
        runtime::sleep(Duration::from_secs(60)).await;
        let during = model.borrow().last_flush();
        let status = cache.status().await;
        println!("{} flushes, {status:?}", during - before);
        assert!(status["lag_bytes"].as_u64().unwrap() <= 1 << 20, "{status:?}");
        assert!(during > before + 5 && !working.is_finished(), "{} flushes", during - before);
        is_down.set(false);
        working.await.unwrap();
        cache.message("flush").await.unwrap();
        assert_eq!(cache.status().await["lag_bytes"], 0);
        (bucket.objects.borrow().clone(), model.borrow().clone())
    });
    let left = AfterCut { objects, fast: empty_disk(), model };
    let alone = reopened(2, &left, How::NewFast).unwrap();
    assert!(left.model.fits(&alone, left.model.last_flush()), "everything is in the bucket");
}
