//! A device that loses unflushed data when its power is cut, and fails on request.
#![allow(dead_code)] // Each test uses a part of it.

use block::{
    BlockCount, BlockIndex, BlockRange, BlockSize, Buffer, Call, Device, DeviceGeometry, DevicePart,
    Durability, Error, Extent, ExtentState, Part, Payload, ReadOutcome, Result, ZeroMode,
};
use runtime::Random;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Size of a sector, which a power cut never tears.
const SECTOR: usize = 512;

struct Medium {
    /// Contents that reads return.
    visible: Vec<u8>,
    /// Contents that survive any power cut.
    durable: Vec<u8>,
    /// Offsets of writes since the last flush, in order, with their bytes.
    pending: Vec<(usize, Vec<u8>)>,
    power: bool,
}

pub struct CrashDisk {
    geometry: DeviceGeometry,
    medium: Arc<Mutex<Medium>>,
    /// Whether later writes fail.
    pub fail_writes: Arc<AtomicBool>,
    /// Number of failing reads of each block before one succeeds.
    pub fail_reads: Arc<AtomicU64>,
    /// Block whose reads always fail; none if it is after the end.
    pub bad_block: Arc<AtomicU64>,
    /// Whether all blocks are reported as holes, one by one.
    pub has_holes: Arc<AtomicBool>,
    /// Number of writes.
    pub writes: Arc<AtomicU64>,
}

impl CrashDisk {
    pub fn new(bytes: usize, block_size: u64, volatile_cache: bool) -> CrashDisk {
        CrashDisk::with(vec![0; bytes], block_size, volatile_cache)
    }

    pub fn with(bytes: Vec<u8>, block_size: u64, volatile_cache: bool) -> CrashDisk {
        let geometry = DeviceGeometry {
            block_size: BlockSize::new(block_size).unwrap(),
            blocks: BlockCount(bytes.len() as u64 / block_size),
            atomic_write: SECTOR as u32,
            volatile_cache,
            read_only: false,
        };
        let medium = Medium { visible: bytes.clone(), durable: bytes, pending: Vec::new(), power: true };
        CrashDisk {
            geometry,
            medium: Arc::new(Mutex::new(medium)),
            fail_writes: Arc::default(),
            fail_reads: Arc::default(),
            bad_block: Arc::new(AtomicU64::new(u64::MAX)),
            has_holes: Arc::default(),
            writes: Arc::default(),
        }
    }

    pub fn read_only(mut self) -> CrashDisk {
        self.geometry.read_only = true;
        self
    }

    /// Returns the present contents of the disk.
    pub fn bytes(&self) -> Vec<u8> {
        self.medium.lock().unwrap().visible.clone()
    }

    /// Changes bytes without a write.
    pub fn damage(&self, at: usize, bytes: &[u8]) {
        let mut medium = self.medium.lock().unwrap();
        medium.visible[at..at + bytes.len()].copy_from_slice(bytes);
        medium.durable[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Returns the disk after a power cut: each unflushed sector survives or not, independently.
    pub fn crash(&self, random: &mut Random) -> CrashDisk {
        let mut medium = self.medium.lock().unwrap();
        medium.power = false;
        let mut left = medium.durable.clone();
        let keeps = random.below(4);
        for (at, bytes) in &medium.pending {
            for (index, sector) in bytes.chunks(SECTOR).enumerate() {
                if random.below(3) < keeps {
                    let start = at + index * SECTOR;
                    left[start..start + sector.len()].copy_from_slice(sector);
                }
            }
        }
        CrashDisk::with(left, self.geometry.block_size.bytes(), self.geometry.volatile_cache)
    }
}

impl Part for CrashDisk {
    fn kind(&self) -> &'static str {
        "crash-disk"
    }
}

impl DevicePart for CrashDisk {
    fn geometry(&self) -> &DeviceGeometry {
        &self.geometry
    }

    fn open(&self) -> Call<'_, Result<Rc<dyn Device>>> {
        Call::ready(Ok(Rc::new(Handle {
            geometry: self.geometry.clone(),
            medium: self.medium.clone(),
            fail_writes: self.fail_writes.clone(),
            fail_reads: self.fail_reads.clone(),
            bad_block: self.bad_block.clone(),
            has_holes: self.has_holes.clone(),
            failed_reads: RefCell::default(),
            writes: self.writes.clone(),
        })))
    }
}

struct Handle {
    geometry: DeviceGeometry,
    medium: Arc<Mutex<Medium>>,
    fail_writes: Arc<AtomicBool>,
    fail_reads: Arc<AtomicU64>,
    bad_block: Arc<AtomicU64>,
    has_holes: Arc<AtomicBool>,
    failed_reads: RefCell<BTreeMap<u64, u64>>,
    writes: Arc<AtomicU64>,
}

impl Handle {
    fn offset(&self, at: BlockIndex) -> usize {
        self.geometry.block_size.offset_of(at).0 as usize
    }

    /// Writes after a few turns, even if the call is dropped.
    fn put(&self, at: BlockIndex, bytes: Vec<u8>, durability: Durability) -> Call<'_, Result<()>> {
        let checked = self.geometry.writable_range(at, bytes.len());
        if checked.is_err() || bytes.is_empty() {
            return Call::ready(checked.map(|_| ()));
        }
        let number = self.writes.fetch_add(1, Ordering::AcqRel);
        let failed = self.fail_writes.load(Ordering::Acquire);
        let (start, medium) = (self.offset(at), self.medium.clone());
        let durable = durability == Durability::Durable || !self.geometry.volatile_cache;
        let work = async move {
            for _ in 0..number % 4 {
                runtime::yield_now().await;
            }
            let mut medium = medium.lock().unwrap();
            if failed || !medium.power {
                return Err(Error::io("the test wants this write to fail"));
            }
            let end = start + bytes.len();
            medium.visible[start..end].copy_from_slice(&bytes);
            if durable {
                // Older pending writes of the same bytes must not return.
                for (at, old) in &mut medium.pending {
                    let (from, to) = (start.max(*at), end.min(*at + old.len()));
                    if from < to {
                        old[from - *at..to - *at].copy_from_slice(&bytes[from - start..to - start]);
                    }
                }
                medium.durable[start..end].copy_from_slice(&bytes);
            } else {
                medium.pending.push((start, bytes));
            }
            Ok(())
        };
        Call::new(async move { runtime::spawn(work).await })
    }
}

impl Device for Handle {
    fn geometry(&self) -> &DeviceGeometry {
        &self.geometry
    }

    fn read(&self, at: BlockIndex, mut buffer: Buffer) -> Call<'_, ReadOutcome> {
        buffer.clear();
        if let Err(error) = self.geometry.range(at, buffer.len()) {
            return Call::ready((Err(error), buffer));
        }
        let blocks = at.0..at.0 + (buffer.len() >> self.geometry.block_size.shift()) as u64;
        if blocks.contains(&self.bad_block.load(Ordering::Acquire)) {
            return Call::ready((Err(Error::io("this block can't be read")), buffer));
        }
        let mut failed = self.failed_reads.borrow_mut();
        let failed = failed.entry(at.0).or_default();
        if *failed < self.fail_reads.load(Ordering::Acquire) {
            *failed += 1;
            return Call::ready((Err(Error::io("reads fail")), buffer));
        }
        let start = self.offset(at);
        buffer.append(&self.medium.lock().unwrap().visible[start..start + buffer.len()]);
        Call::ready((Ok(()), buffer))
    }

    fn write(&self, at: BlockIndex, payload: Payload, durability: Durability) -> Call<'_, Result<()>> {
        self.put(at, payload.to_data().to_vec(), durability)
    }

    fn flush(&self) -> Call<'_, Result<()>> {
        let mut medium = self.medium.lock().unwrap();
        let pending = std::mem::take(&mut medium.pending);
        for (at, bytes) in pending {
            medium.durable[at..at + bytes.len()].copy_from_slice(&bytes);
        }
        Call::ready(Ok(()))
    }

    fn discard(&self, range: BlockRange) -> Call<'_, Result<()>> {
        self.write_zeroes(range, ZeroMode::MayDeallocate, Durability::Visible)
    }

    fn write_zeroes(&self, range: BlockRange, _: ZeroMode, durability: Durability) -> Call<'_, Result<()>> {
        if let Err(error) = self.geometry.check_writable().and_then(|()| self.geometry.check(range)) {
            return Call::ready(Err(error));
        }
        let length = self.geometry.block_size.bytes_of(range.count) as usize;
        self.put(range.start, vec![0; length], durability)
    }

    fn extents(&self, range: BlockRange) -> Call<'_, Result<Vec<Extent>>> {
        let extent = match self.has_holes.load(Ordering::Acquire) {
            true => Extent {
                range: BlockRange { count: range.count.min(BlockCount(1)), ..range },
                state: ExtentState::Hole,
            },
            false => Extent { range, state: ExtentState::Data },
        };
        let checked = self.geometry.check(range);
        Call::ready(checked.map(|()| if range.is_empty() { Vec::new() } else { vec![extent] }))
    }
}
