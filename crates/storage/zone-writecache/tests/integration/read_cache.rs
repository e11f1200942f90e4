//! The read cache: hits, data that must not be read from it, failures of the fast device, and reads ahead.

mod ahead;
mod crash;
mod races;

use crate::crash_disk::CrashDisk;
use crate::promises::{KIB, number, read, simulated};
use crate::{FAST, fast_device, options, with_faults};
use block::{
    Buffer, Call, Data, DevicePart, EraseGuarantee, Error, Part, Payload, ReadOutcome, Result, ZoneAddress,
    ZoneGeometry, ZoneIndex, ZoneReport, Zones, ZonesPart,
};
use runtime::Random;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use zone_writecache::{Options, ZoneWriteCachePart};
use zones::ram::{self, RamZones};

const MIB: usize = KIB * KIB;
const CHUNK: usize = 64 * KIB;
const ZONE: usize = 256 * KIB;

/// Origin whose reads take time and are recorded. A reset of a zone that is being read is a failure.
pub struct Slow {
    inner: Arc<RamZones>,
    record: Arc<Record>,
    /// Whether the power was cut: calls fail from then on.
    is_cut: Arc<AtomicBool>,
}

impl Slow {
    fn of(inner: Arc<RamZones>, delay: Duration) -> (Arc<Self>, Arc<Record>) {
        let record = Arc::new(Record { delay, ..Record::default() });
        (Arc::new(Slow { inner, record: record.clone(), is_cut: Arc::default() }), record)
    }

    /// Cuts the power. Returns the zones as they are after that.
    fn crash(&self, random: &mut Random) -> Arc<Self> {
        self.is_cut.store(true, Ordering::Relaxed);
        self.inner.crash(random);
        Self::of(self.inner.clone(), self.record.delay).0
    }
}

#[derive(Default)]
pub struct Record {
    delay: Duration,
    /// Zone, offset and length of each read.
    reads: Mutex<Vec<(u32, u64, usize)>>,
    in_flight: Mutex<BTreeMap<u32, usize>>,
    most: Mutex<usize>,
}

impl Record {
    /// Reads since the last call.
    fn take(&self) -> Vec<(u32, u64, usize)> {
        std::mem::take(&mut self.reads.lock().unwrap())
    }
}

/// An origin in memory with this number of zones of 256 KiB.
fn slow(zones: u32, zone_size: usize, delay: Duration) -> (Arc<Slow>, Arc<Record>) {
    let inner = RamZones::new(ram::Options {
        zones,
        zone_size: zone_size as u64,
        max_append: 64 << 10,
        durable: block::Durable::OnFlush,
        ..ram::Options::default()
    });
    Slow::of(Arc::new(inner.unwrap()), delay)
}

impl Part for Slow {
    fn kind(&self) -> &'static str {
        "slow"
    }
}

impl ZonesPart for Slow {
    fn geometry(&self) -> &ZoneGeometry {
        self.inner.geometry()
    }

    fn can_rewind(&self) -> bool {
        self.inner.can_rewind()
    }

    fn open(&self) -> Call<'_, Result<Rc<dyn Zones>>> {
        Call::new(async move {
            let inner = self.inner.open().await?;
            let (record, is_cut) = (self.record.clone(), self.is_cut.clone());
            Ok(Rc::new(Handle { inner, record, is_cut }) as Rc<dyn Zones>)
        })
    }
}

struct Handle {
    inner: Rc<dyn Zones>,
    record: Arc<Record>,
    is_cut: Arc<AtomicBool>,
}

impl Handle {
    fn check(&self) -> Result<()> {
        match self.is_cut.load(Ordering::Relaxed) {
            true => Err(Error::disconnected("the power was cut")),
            false => Ok(()),
        }
    }
}

impl Zones for Handle {
    fn geometry(&self) -> &ZoneGeometry {
        self.inner.geometry()
    }

    fn append(&self, zone: ZoneIndex, payload: Payload) -> Call<'_, Result<ZoneAddress>> {
        self.inner.append(zone, payload)
    }

    fn append_at(&self, at: ZoneAddress, payload: Payload) -> Call<'_, Result<()>> {
        Call::new(async move { self.check().map(|()| self.inner.append_at(at, payload))?.await })
    }

    fn open(&self, zone: ZoneIndex) -> Call<'_, Result<()>> {
        self.inner.open(zone)
    }

    fn close(&self, zone: ZoneIndex) -> Call<'_, Result<()>> {
        Call::new(async move { self.check().map(|()| self.inner.close(zone))?.await })
    }

    fn read(&self, at: ZoneAddress, buffer: Buffer) -> Call<'_, ReadOutcome> {
        Call::new(async move {
            let record = &self.record;
            record.reads.lock().unwrap().push((at.zone.0, at.offset.0, buffer.len()));
            let all: usize = {
                let mut in_flight = record.in_flight.lock().unwrap();
                *in_flight.entry(at.zone.0).or_default() += 1;
                in_flight.values().sum()
            };
            let before = *record.most.lock().unwrap();
            *record.most.lock().unwrap() = before.max(all);
            runtime::sleep(record.delay).await;
            let outcome = match self.check() {
                Ok(()) => self.inner.read(at, buffer).await,
                Err(error) => (Err(error), buffer),
            };
            *record.in_flight.lock().unwrap().get_mut(&at.zone.0).unwrap() -= 1;
            outcome
        })
    }

    fn flush<'a>(&'a self, zones: &'a [ZoneIndex]) -> Call<'a, Result<()>> {
        Call::new(async move { self.check().map(|()| self.inner.flush(zones))?.await })
    }

    fn finish(&self, zone: ZoneIndex) -> Call<'_, Result<()>> {
        Call::new(async move { self.check().map(|()| self.inner.finish(zone))?.await })
    }

    fn reset(&self, zone: ZoneIndex, erase: EraseGuarantee) -> Call<'_, Result<u64>> {
        let reads = self.record.in_flight.lock().unwrap().get(&zone.0).copied().unwrap_or(0);
        assert_eq!(reads, 0, "zone {zone} is reset while it is read");
        Call::new(async move { self.check().map(|()| self.inner.reset(zone, erase))?.await })
    }

    fn rewind(&self, at: ZoneAddress) -> Call<'_, Result<()>> {
        Call::new(async move { self.check().map(|()| self.inner.rewind(at))?.await })
    }

    fn report(&self, first: ZoneIndex, count: u32) -> Call<'_, Result<Vec<ZoneReport>>> {
        Call::new(async move { self.check().map(|()| self.inner.report(first, count))?.await })
    }
}

/// Bytes with their zone, generation and offset.
fn stamped(zone: u32, generation: u64, from: usize, length: usize) -> Vec<u8> {
    let word = |at: usize| u64::from(zone) << 56 | generation << 40 | at as u64;
    assert!(from.is_multiple_of(512) && length.is_multiple_of(512));
    (from / 512..(from + length) / 512).flat_map(|at| word(at).to_le_bytes().repeat(64)).collect()
}

fn with_cache(read_cache: Option<u64>, format: bool) -> Options {
    Options { read_cache, ..options(format) }
}

async fn open(
    fast: &Arc<dyn DevicePart>,
    origin: Arc<dyn ZonesPart>,
    options: Options,
) -> Arc<ZoneWriteCachePart> {
    Arc::new(ZoneWriteCachePart::open(fast.clone(), origin, options).await.unwrap())
}

/// Fills zones with stamps of generation 1, and closes the cache, so that only the origin has them after the
/// next open.
async fn filled(
    fast: &Arc<dyn DevicePart>,
    origin: &Arc<Slow>,
    zones: std::ops::Range<u32>,
    length: usize,
    options: Options,
) {
    let part = open(fast, origin.clone(), options).await;
    let handle = part.open().await.unwrap();
    for zone in zones {
        for at in (0..length).step_by(64 * KIB) {
            let bytes = stamped(zone, 1, at, (length - at).min(64 * KIB));
            handle.append(ZoneIndex(zone), Data::copy_of(&bytes).into()).await.unwrap();
        }
    }
    part.message("flush").await.unwrap();
    drop(handle);
    part.close().await.unwrap();
}

/// Reads bytes of a zone, and compares them with their stamps.
async fn check(handle: &Rc<dyn Zones>, zone: u32, generation: u64, from: usize, length: usize) {
    let found = read(handle, ZoneAddress::new(zone, from as u64), length).await.unwrap();
    assert!(found == stamped(zone, generation, from, length), "zone {zone}, {length} bytes at {from}");
}

/// Waits until fills in flight have ended.
async fn settle() {
    runtime::sleep(Duration::from_millis(10)).await;
}

#[test]
fn a_second_read_is_read_from_the_fast_device() {
    for (read_cache, bytes) in [(None, 4 * MIB), (Some(MIB as u64), MIB), (Some(0), 0)] {
        simulated(move || async move {
            let (origin, record) = slow(12, ZONE, Duration::from_millis(20));
            let fast = fast_device();
            let options = with_cache(read_cache, true);
            filled(&fast, &origin, 0..4, ZONE - 512, options).await;
            let part = open(&fast, origin, with_cache(read_cache, false)).await;
            let handle = part.open().await.unwrap();
            let size = number(&*part, "read_cache_bytes").await as usize;
            assert!((bytes..=bytes + MIB / 2).contains(&size), "{size}, {read_cache:?}");
            // Parts of chunks, with and without whole units, over chunks, and at the end of a zone.
            let reads =
                [(1536, 512), (8192, 4096), (CHUNK - 4096, 8192), (ZONE - 1024, 512), (2560, 140_288)];
            for (from, length) in reads {
                check(&handle, 2, 1, from, length).await;
            }
            assert!(!record.take().is_empty());
            settle().await;
            for (from, length) in reads {
                check(&handle, 2, 1, from, length).await;
            }
            let again = record.take().len();
            assert_eq!(again, if bytes == 0 { reads.len() } else { 0 });
            if bytes > 0 {
                assert!(number(&*part, "read_cache_hits").await >= reads.len() as u64);
                assert!(number(&*part, "read_cache_used_bytes").await >= 4 * CHUNK as u64);
                assert_eq!(number(&*part, "read_cache_errors").await, 0);
            }
            part.close().await.unwrap();
        });
    }
}

/// Readers of a chunk that is being fetched wait for it.
#[test]
fn a_chunk_is_fetched_once() {
    simulated(|| async {
        let (origin, record) = slow(12, ZONE, Duration::from_millis(20));
        let fast = fast_device();
        filled(&fast, &origin, 0..2, ZONE, options(true)).await;
        let part = open(&fast, origin, options(false)).await;
        let handle = part.open().await.unwrap();
        // Not in an order that is sequential.
        let reads = (0..32).map(|number| check(&handle, 1, 1, number % 2 * 32 * KIB, 4096));
        runtime::join_all(reads).await;
        assert_eq!(record.take(), [(1, 0, CHUNK)]);
        // Consecutive missing chunks of a read are one request.
        check(&handle, 1, 1, 0, ZONE).await;
        assert_eq!(record.take(), [(1, CHUNK as u64, ZONE - CHUNK)]);
        part.close().await.unwrap();
    });
}

/// A device that was formatted without a read cache opens, and a larger one has space for it.
#[test]
fn a_device_without_a_region_opens() {
    simulated(|| async {
        let (origin, record) = slow(12, ZONE, Duration::from_millis(20));
        let fast = fast_device();
        filled(&fast, &origin, 0..2, ZONE, with_cache(Some(0), true)).await;
        let part = open(&fast, origin.clone(), with_cache(Some(MIB as u64), false)).await;
        let handle = part.open().await.unwrap();
        assert_eq!(number(&*part, "read_cache_bytes").await, 0);
        for _ in 0..2 {
            check(&handle, 1, 1, 0, 4096).await;
            assert_eq!(record.take(), [(1, 0, 4096)]);
        }
        drop(handle);
        part.close().await.unwrap();
        let larger = CrashDisk::new(FAST as usize + 2 * MIB, 4096, true);
        let device = fast.open().await.unwrap();
        let (_, buffer) = device.read(block::BlockIndex(0), Buffer::new(FAST as usize)).await;
        larger.damage(0, buffer.filled());
        let larger: Arc<dyn DevicePart> = Arc::new(larger);
        let part = open(&larger, origin, options(false)).await;
        assert_eq!(number(&*part, "read_cache_bytes").await, 2 * MIB as u64);
        part.close().await.unwrap();
    });
}

/// The largest region on a sparse device: the memory is bounded by larger chunks.
#[test]
fn the_largest_region() {
    simulated(|| async {
        let (origin, record) = slow(8, 4 * MIB, Duration::from_millis(20));
        let device = disks::ram::RamPart::new((64 << 30) + (64 << 20), block::BlockSize::default());
        let fast: Arc<dyn DevicePart> = Arc::new(device.unwrap());
        let largest = Some(64 << 30);
        filled(&fast, &origin, 0..2, 4 * MIB, with_cache(largest, true)).await;
        let part = open(&fast, origin, with_cache(largest, false)).await;
        let handle = part.open().await.unwrap();
        assert_eq!(number(&*part, "read_cache_bytes").await, 64 << 30);
        assert_eq!(number(&*part, "read_cache_chunk_bytes").await, MIB as u64);
        for from in [0, 3 * MIB + 4096] {
            check(&handle, 1, 1, from, 4096).await;
        }
        assert_eq!(record.take(), [(1, 0, MIB), (1, 3 * MIB as u64, MIB)]);
        settle().await;
        for from in [MIB - 4096, 3 * MIB] {
            check(&handle, 1, 1, from, 4096).await;
        }
        assert_eq!(record.take(), []);
        part.close().await.unwrap();
    });
}

/// A scan of twice the cache evicts no chunk of the hot set.
#[test]
fn a_scan_evicts_no_chunk_of_the_hot_set() {
    simulated(|| async {
        let (origin, record) = slow(40, ZONE, Duration::from_millis(1));
        let fast = fast_device();
        let options = |format| with_cache(Some(4 * MIB as u64), format);
        filled(&fast, &origin, 0..40, ZONE, options(true)).await;
        let part = open(&fast, origin, options(false)).await;
        let handle = part.open().await.unwrap();
        let hot: Vec<(u32, usize)> =
            (0..8).flat_map(|zone| (0..ZONE).step_by(CHUNK).map(move |at| (zone, at))).collect();
        for round in 0..4 {
            for (zone, at) in &hot {
                check(&handle, *zone, 1, *at + round * 4096, 4096).await;
            }
            settle().await;
        }
        record.take();
        for zone in 8..40 {
            check(&handle, zone, 1, 0, ZONE).await;
        }
        settle().await;
        assert!(number(&*part, "read_cache_fills").await >= (32 + 128), "the scan went through the cache");
        record.take();
        for (zone, at) in &hot {
            check(&handle, *zone, 1, *at, 4096).await;
        }
        assert_eq!(record.take(), [], "the hot set is still there");
        part.close().await.unwrap();
    });
}

/// After a flipped bit on the fast device the origin is read.
#[test]
fn a_flipped_bit_is_not_read() {
    simulated(|| async {
        let (origin, record) = slow(12, ZONE, Duration::from_millis(20));
        let disk = Arc::new(CrashDisk::new(FAST as usize, 4096, true));
        let fast: Arc<dyn DevicePart> = disk.clone();
        filled(&fast, &origin, 0..2, ZONE, options(true)).await;
        let part = open(&fast, origin, options(false)).await;
        let handle = part.open().await.unwrap();
        check(&handle, 1, 1, 0, ZONE).await;
        settle().await;
        let chunk = stamped(1, 1, CHUNK, CHUNK);
        let place = disk.bytes().chunks(4096).rposition(|block| block == &chunk[..4096]).unwrap() * 4096;
        disk.damage(place + 9000, &[chunk[9000] ^ 4]);
        record.take();
        check(&handle, 1, 1, CHUNK, 8192).await;
        assert_eq!(record.take(), [], "other units of the chunk are good");
        check(&handle, 1, 1, CHUNK + 8192, 4096).await;
        assert_eq!(record.take(), [(1, (CHUNK + 8192) as u64, 4096)]);
        assert_eq!(number(&*part, "read_cache_errors").await, 1);
        assert_eq!(number(&*part, "read_cache_lost_bytes").await, CHUNK as u64);
        // The chunk gets another slot.
        check(&handle, 1, 1, CHUNK + 8192, 4096).await;
        settle().await;
        record.take();
        check(&handle, 1, 1, CHUNK, CHUNK).await;
        assert_eq!(record.take(), []);
        part.close().await.unwrap();
    });
}

/// A failure of the region fails no read, no append and no close.
#[test]
fn a_failing_region_fails_no_call() {
    for rule in [
        "write error=EIO",
        "read error=EIO",
        "write corrupt bits=1 probability=0.5",
        "write drop probability=0.5",
    ] {
        simulated(move || async move {
            let (origin, _) = slow(16, ZONE, Duration::from_millis(1));
            let disk: Arc<dyn DevicePart> = Arc::new(CrashDisk::new(FAST as usize, 4096, true));
            let options = |format| with_cache(Some(4 * MIB as u64), format);
            filled(&disk, &origin, 0..16, ZONE, options(true)).await;
            let rules = [format!("{rule} range={}..{FAST}", FAST - 4 * MIB as u64)];
            let fast = with_faults(disk, rules, 3);
            let part = open(&fast, origin, options(false)).await;
            let handle = part.open().await.unwrap();
            for round in 0..4 {
                for zone in 0..15 {
                    for at in (0..ZONE).step_by(4 * CHUNK / (round + 1)) {
                        check(&handle, zone, 1, at / 512 * 512, 8192.min(ZONE - at / 512 * 512)).await;
                    }
                }
                settle().await;
            }
            assert!(number(&*part, "read_cache_errors").await > 0, "{rule}");
            assert!(number(&*part, "read_cache_lost_bytes").await > 0, "{rule}");
            handle.reset(ZoneIndex(15), EraseGuarantee::None).await.unwrap();
            let bytes = Data::copy_of(&stamped(15, 2, 0, CHUNK));
            handle.append(ZoneIndex(15), bytes.into()).await.unwrap();
            part.message("flush").await.unwrap();
            check(&handle, 15, 2, 0, CHUNK).await;
            drop(handle);
            part.close().await.unwrap();
        });
    }
}
