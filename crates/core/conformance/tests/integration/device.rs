//! The suite for devices accepts a correct device and rejects every faulty one.

use block::{
    BlockCount, BlockIndex, BlockRange, BlockSize, Buffer, Call, Device, DeviceGeometry, DevicePart,
    Durability, Error, Extent, ExtentState, Part, Payload, ReadOutcome, Result, ZeroMode,
};
use conformance::device::{Options, VolatileDisk, run, run_close};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

/// Injected fault of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    ForgetsWrites,
    TearsSectors,
    SwapsBlocks,
    OverwritesNeighbour,
    IgnoresDiscard,
    DiscardsTooMuch,
    ZeroesTooLittle,
    HolesOverData,
    StaleHoles,
    GapsInExtents,
    OverlappingExtents,
    AcceptsOutside,
    WritesPartOutside,
    AcceptsUnaligned,
    ShowsAfterFailure,
    KeepsUsedBuffer,
    FillsHalf,
    AnotherBuffer,
    DropsAbandoned,
    AcknowledgesEarly,
    CachesPerHandle,
    ForgetsOnClose,
    ReversesSlices,
    RefusesEmpty,
    WrongErrorKind,
    FlushLosesABlock,
    FuaIsIgnored,
    ShardsApart,
    TinyAtomicWrite,
}

const ALL: [Fault; 29] = [
    Fault::ForgetsWrites,
    Fault::TearsSectors,
    Fault::SwapsBlocks,
    Fault::OverwritesNeighbour,
    Fault::IgnoresDiscard,
    Fault::DiscardsTooMuch,
    Fault::ZeroesTooLittle,
    Fault::HolesOverData,
    Fault::StaleHoles,
    Fault::GapsInExtents,
    Fault::OverlappingExtents,
    Fault::AcceptsOutside,
    Fault::WritesPartOutside,
    Fault::AcceptsUnaligned,
    Fault::ShowsAfterFailure,
    Fault::KeepsUsedBuffer,
    Fault::FillsHalf,
    Fault::AnotherBuffer,
    Fault::DropsAbandoned,
    Fault::AcknowledgesEarly,
    Fault::CachesPerHandle,
    Fault::ForgetsOnClose,
    Fault::ReversesSlices,
    Fault::RefusesEmpty,
    Fault::WrongErrorKind,
    Fault::FlushLosesABlock,
    Fault::FuaIsIgnored,
    Fault::ShardsApart,
    Fault::TinyAtomicWrite,
];

const BLOCK: usize = 4096;
const SECTOR: usize = 512;

struct Medium {
    bytes: Vec<u8>,
    hole: Vec<bool>,
    writes: u64,
}

struct TestPart {
    geometry: DeviceGeometry,
    medium: Arc<Mutex<Medium>>,
    fault: Fault,
}

impl TestPart {
    fn new(blocks: usize, fault: Fault, read_only: bool) -> TestPart {
        let medium = Medium { bytes: vec![0; blocks * BLOCK], hole: vec![true; blocks], writes: 0 };
        let atomic_write = if fault == Fault::TinyAtomicWrite { 100 } else { 512 };
        let geometry = DeviceGeometry {
            block_size: BlockSize::default(),
            blocks: BlockCount(blocks as u64),
            atomic_write,
            volatile_cache: true,
            read_only,
        };
        TestPart { geometry, medium: Arc::new(Mutex::new(medium)), fault }
    }
}

impl Part for TestPart {
    fn kind(&self) -> &'static str {
        "test"
    }

    fn close(&self) -> Call<'_, Result<()>> {
        if self.fault == Fault::ForgetsOnClose {
            self.medium.lock().unwrap().bytes[5 * BLOCK..6 * BLOCK].fill(1);
        }
        Call::ready(Ok(()))
    }
}

impl DevicePart for TestPart {
    fn geometry(&self) -> &DeviceGeometry {
        &self.geometry
    }

    fn open(&self) -> Call<'_, Result<Rc<dyn Device>>> {
        let medium = match self.fault {
            Fault::ShardsApart if runtime::current_shard().0 != 0 => {
                Arc::new(Mutex::new(Medium { bytes: vec![0; 1 << 20], hole: vec![true; 256], writes: 0 }))
            }
            _ => self.medium.clone(),
        };
        let (geometry, fault) = (self.geometry.clone(), self.fault);
        Call::ready(Ok(Rc::new(Handle { geometry, medium, fault, cache: RefCell::default() })))
    }
}

struct Handle {
    geometry: DeviceGeometry,
    medium: Arc<Mutex<Medium>>,
    fault: Fault,
    cache: RefCell<BTreeMap<u64, Vec<u8>>>,
}

impl Handle {
    fn check(&self, at: BlockIndex, bytes: usize) -> Result<BlockRange> {
        let checked = self.geometry.range(at, bytes);
        if checked.is_err() && self.fault == Fault::WrongErrorKind {
            return Err(Error::io("no such block"));
        }
        if bytes == 0 && self.fault == Fault::RefusesEmpty {
            return Err(Error::invalid("nothing to do"));
        }
        checked
    }

    fn zero(&self, range: BlockRange, deallocate: bool) {
        let mut medium = self.medium.lock().unwrap();
        for block in range.start.0 as usize..range.end().0 as usize {
            medium.bytes[block * BLOCK..(block + 1) * BLOCK].fill(0);
            medium.hole[block] = deallocate;
        }
    }
}

/// Yields a few times, depending on the number, so that calls interleave.
async fn turns(number: u64) {
    for _ in 0..number % 4 {
        runtime::yield_now().await;
    }
}

async fn apply(medium: Arc<Mutex<Medium>>, at: usize, bytes: Vec<u8>, fault: Fault) {
    let number = {
        let mut medium = medium.lock().unwrap();
        medium.writes += 1;
        medium.writes
    };
    turns(number).await;
    let (mut at, mut bytes) = (at, bytes);
    if fault == Fault::ForgetsWrites && number % 97 == 0 {
        return;
    }
    if fault == Fault::SwapsBlocks && bytes.len() >= 2 * BLOCK && number % 13 == 0 {
        let (first, second) = bytes.split_at_mut(BLOCK);
        first.swap_with_slice(&mut second[..BLOCK]);
    }
    if fault == Fault::OverwritesNeighbour && at >= BLOCK && number % 31 == 0 {
        at -= BLOCK;
        bytes.splice(0..0, [0x5A; BLOCK]);
    }
    let piece = if fault == Fault::TearsSectors { SECTOR / 2 } else { SECTOR };
    let pieces = bytes.len().div_ceil(piece);
    for (index, sector) in bytes.chunks(piece).enumerate() {
        // The second half of the last sector isn't written.
        if fault == Fault::TearsSectors && index + 1 == pieces && number.is_multiple_of(3) {
            continue;
        }
        {
            let mut medium = medium.lock().unwrap();
            let start = at + index * piece;
            medium.bytes[start..start + sector.len()].copy_from_slice(sector);
            if fault != Fault::StaleHoles {
                medium.hole[start / BLOCK] = false;
            }
        }
        if (number + index as u64).is_multiple_of(5) {
            runtime::yield_now().await;
        }
    }
}

impl Device for Handle {
    fn geometry(&self) -> &DeviceGeometry {
        &self.geometry
    }

    fn read(&self, at: BlockIndex, mut buffer: Buffer) -> Call<'_, ReadOutcome> {
        if self.fault != Fault::KeepsUsedBuffer && self.fault != Fault::ShowsAfterFailure {
            buffer.clear();
        }
        if let Err(error) = self.check(at, buffer.len()) {
            return Call::ready((Err(error), buffer));
        }
        if self.fault == Fault::ShowsAfterFailure {
            buffer.clear();
        }
        Call::new(async move {
            turns(at.0).await;
            if self.fault == Fault::AnotherBuffer {
                buffer = Buffer::new(buffer.len());
            }
            let start = at.0 as usize * BLOCK + buffer.filled().len();
            while buffer.missing() > 0 {
                let place = start + buffer.filled().len();
                let block = (place / BLOCK) as u64;
                let sector = self.medium.lock().unwrap().bytes[place..place + SECTOR].to_vec();
                if self.fault == Fault::CachesPerHandle {
                    let mut cache = self.cache.borrow_mut();
                    let old = cache.entry(place as u64).or_insert(sector);
                    buffer.append(old);
                } else {
                    buffer.append(&sector);
                }
                if place as u64 % 7 == block % 7 {
                    runtime::yield_now().await;
                }
            }
            if self.fault == Fault::FillsHalf && buffer.len() > 8 * BLOCK {
                buffer.truncate_filled(BLOCK);
            }
            (Ok(()), buffer)
        })
    }

    fn write(&self, at: BlockIndex, payload: Payload, durability: Durability) -> Call<'_, Result<()>> {
        if self.geometry.read_only {
            return match self.fault {
                Fault::None => Call::ready(Err(Error::read_only("test"))),
                _ => Call::ready(Ok(())),
            };
        }
        let start = at.0.wrapping_mul(BLOCK as u64) as usize;
        if self.geometry.range(at, payload.len()).is_err() {
            let aligned = payload.len().is_multiple_of(BLOCK);
            if self.fault == Fault::AcceptsOutside && aligned
                || self.fault == Fault::AcceptsUnaligned && !aligned
            {
                return Call::ready(Ok(()));
            }
            if self.fault == Fault::WritesPartOutside && aligned && at.0 < self.geometry.blocks.0 {
                self.medium.lock().unwrap().bytes[start..].fill(0x99);
            }
        }
        if let Err(error) = self.check(at, payload.len()) {
            return Call::ready(Err(error));
        }
        let mut slices = payload.slices().to_vec();
        if self.fault == Fault::ReversesSlices {
            slices.reverse();
        }
        let bytes: Vec<u8> = slices.iter().flat_map(|slice| slice.to_vec()).collect();
        if self.fault == Fault::FuaIsIgnored && durability == Durability::Durable {
            return Call::ready(Ok(()));
        }
        if self.fault == Fault::CachesPerHandle {
            self.cache
                .borrow_mut()
                .retain(|place, _| (*place as usize) < start || *place as usize >= start + bytes.len());
        }
        let applied = apply(self.medium.clone(), start, bytes, self.fault);
        match self.fault {
            Fault::DropsAbandoned => Call::new(async move {
                runtime::yield_now().await;
                applied.await;
                Ok(())
            }),
            Fault::AcknowledgesEarly => {
                runtime::spawn(applied).detach();
                Call::ready(Ok(()))
            }
            _ => Call::new(async move {
                runtime::spawn(applied).await;
                Ok(())
            }),
        }
    }

    fn flush(&self) -> Call<'_, Result<()>> {
        if self.fault == Fault::FlushLosesABlock {
            self.medium.lock().unwrap().bytes[..BLOCK].fill(7);
        }
        Call::ready(Ok(()))
    }

    fn discard(&self, range: BlockRange) -> Call<'_, Result<()>> {
        if self.geometry.read_only {
            return Call::ready(Err(Error::read_only("test")));
        }
        if let Err(error) = self.geometry.check(range) {
            return Call::ready(Err(error));
        }
        let mut range = range;
        if self.fault == Fault::DiscardsTooMuch
            && range.count.0 == 3
            && range.end() < BlockIndex(self.geometry.blocks.0)
        {
            range.count.0 += 1;
        }
        if self.fault != Fault::IgnoresDiscard || !range.count.0.is_multiple_of(3) {
            self.zero(range, true);
        }
        if self.fault == Fault::CachesPerHandle {
            self.cache.borrow_mut().clear();
        }
        Call::ready(Ok(()))
    }

    fn write_zeroes(&self, range: BlockRange, mode: ZeroMode, _: Durability) -> Call<'_, Result<()>> {
        if self.geometry.read_only {
            return Call::ready(Err(Error::read_only("test")));
        }
        if let Err(error) = self.geometry.check(range) {
            return Call::ready(Err(error));
        }
        let mut range = range;
        if self.fault == Fault::ZeroesTooLittle && mode == ZeroMode::KeepAllocated && range.count.0 > 4 {
            range.count.0 -= 1;
        }
        self.zero(range, mode == ZeroMode::MayDeallocate);
        if self.fault == Fault::CachesPerHandle {
            self.cache.borrow_mut().clear();
        }
        Call::ready(Ok(()))
    }

    fn extents(&self, range: BlockRange) -> Call<'_, Result<Vec<Extent>>> {
        if let Err(error) = self.geometry.check(range) {
            return Call::ready(Err(error));
        }
        let medium = self.medium.lock().unwrap();
        let mut extents: Vec<Extent> = (range.start.0..range.end().0)
            .map(|block| {
                let hole = medium.hole[block as usize] || self.fault == Fault::HolesOverData && block == 9;
                let state = if hole { ExtentState::Hole } else { ExtentState::Data };
                Extent { range: BlockRange::new(block, 1), state }
            })
            .collect();
        if self.fault == Fault::GapsInExtents && extents.len() > 3 {
            extents.remove(2);
        }
        if self.fault == Fault::OverlappingExtents && extents.len() > 3 {
            extents[1].range.count.0 = 2;
        }
        Call::ready(Ok(extents))
    }
}

fn judge(fault: Fault, read_only: bool, shards: usize) -> Result<(), String> {
    judge_seed(fault, read_only, shards, None)
}

fn judge_seed(fault: Fault, read_only: bool, shards: usize, seed: Option<u64>) -> Result<(), String> {
    let config = runtime::Config::default().with_shards(shards);
    let judged = runtime::run(config, move || async move {
        let part = Arc::new(TestPart::new(256, fault, read_only));
        let make = async || part.clone() as Arc<dyn DevicePart>;
        let options = Options { seed, operations: 1500, window_bytes: 128 * BLOCK as u64, persistent: true };
        run(make, options).await
    });
    judged.expect("the runtime runs")
}

#[test]
fn a_right_device_passes() {
    for (read_only, shards) in [(false, 1), (false, 2), (true, 1)] {
        judge(Fault::None, read_only, shards).expect("the device keeps its promises");
    }
}

#[test]
fn every_wrong_device_is_caught() {
    for fault in ALL {
        // A single run may miss a fault that depends on how requests interleave.
        let caught = (1..=5).find_map(|seed| judge_seed(fault, false, 2, Some(seed)).err());
        let broken = caught.unwrap_or_else(|| panic!("{fault:?} must be caught"));
        println!("{fault:?}: {broken}");
        assert!(broken.contains("SILTSTONE_SEED="), "{fault:?}: {broken}");
    }
}

#[test]
fn a_read_only_device_that_accepts_writes_is_caught() {
    let broken = judge(Fault::ForgetsWrites, true, 1).expect_err("must be caught");
    assert!(broken.contains("Error::ReadOnly"), "{broken}");
}

/// A part whose close doesn't close the disk below it.
struct LeftOpen(VolatileDisk);

impl Part for LeftOpen {
    fn kind(&self) -> &'static str {
        "left-open"
    }
}

impl DevicePart for LeftOpen {
    fn geometry(&self) -> &DeviceGeometry {
        DevicePart::geometry(&self.0)
    }

    fn open(&self) -> Call<'_, Result<Rc<dyn Device>>> {
        self.0.open()
    }
}

fn judge_close(leaves_open: bool) -> Result<(), String> {
    let judged = runtime::run(runtime::Config::default().with_shards(2), move || async move {
        let disk = VolatileDisk::new(256, BlockSize::default());
        let make = async || match leaves_open {
            true => Arc::new(LeftOpen(disk.clone())) as Arc<dyn DevicePart>,
            false => Arc::new(disk.clone()),
        };
        let options = Options { operations: 100, window_bytes: 128 * BLOCK as u64, ..Options::default() };
        run_close(make, || disk.cut_power(), options).await
    });
    judged.expect("the runtime runs")
}

#[test]
fn a_disk_whose_power_can_be_cut_passes() {
    judge_close(false).expect("it keeps everything when it is closed");
    let judged = runtime::run(runtime::Config::default(), || async {
        let make = async || Arc::new(VolatileDisk::new(600, BlockSize::default())) as Arc<dyn DevicePart>;
        run(make, Options::default()).await
    });
    judged.expect("the runtime runs").expect("it keeps its promises");
}

#[test]
fn a_device_that_loses_what_was_not_flushed_when_it_is_closed_is_caught() {
    let broken = judge_close(true).expect_err("must be caught");
    assert!(broken.contains("after a close and a power cut"), "{broken}");
}
