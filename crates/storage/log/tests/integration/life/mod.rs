//! A log on a disk in memory over several epochs. An epoch without a close ends like a process that dies.
#![allow(dead_code)] // Each file of tests uses a part.

pub mod controlled;

use block::{
    BlockCount, BlockIndex, BlockRange, BlockSize, Buffer, Data, Device, DeviceGeometry, DevicePart,
    Durability, Part, Result,
};
use layers::record::replay::{Choice, Cursor, History, Image, ImageDisk};
use layers::record::{RecordDevicePart, Recorder, Role};
use log::LogPart;
use log::kind::{Options, open};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Size of a block in bytes.
pub const BLOCK: usize = 4096;

/// Number of the write that a block's contents came with; 0 for zeros.
pub type Version = u64;

/// Creates a disk of `mebibytes` MiB, with a volatile cache and sectors of 512 bytes.
pub fn disk(mebibytes: u64) -> Arc<dyn DevicePart> {
    Arc::new(ImageDisk::empty(DeviceGeometry {
        block_size: BlockSize::default(),
        blocks: BlockCount(mebibytes << 8),
        atomic_write: 512,
        volatile_cache: true,
        read_only: false,
    }))
}

/// Options with zones of 64 KiB and frequent checkpoints.
pub fn small() -> Options {
    Options { zone_size: Some(64 << 10), checkpoint_after: 256 << 10, ..Options::default() }
}

/// Runs one epoch.
pub fn run<T: Send + 'static, Fut: Future<Output = T> + 'static>(main: impl FnOnce() -> Fut + Send) -> T {
    runtime::run(runtime::Config::default(), main).expect("the runtime starts")
}

/// Contents of blocks: each is filled with its number and the version.
pub fn stamped(block: u64, count: u64, version: Version) -> Data {
    let mut buffer = Buffer::zeroed(count as usize * BLOCK);
    for (bytes, block) in buffer.filled_mut().chunks_exact_mut(BLOCK).zip(block..) {
        for word in bytes.as_chunks_mut::<16>().0 {
            word[..8].copy_from_slice(&(block ^ 0x5117).to_le_bytes());
            word[8..].copy_from_slice(&version.to_le_bytes());
        }
    }
    buffer.freeze()
}

/// Version of a stamped block.
pub fn version_of(block: u64, bytes: &[u8]) -> Result<Version, String> {
    if bytes.iter().all(|byte| *byte == 0) {
        return Ok(0);
    }
    let version = u64::from_le_bytes(bytes[8..16].try_into().expect("eight bytes"));
    match *stamped(block, 1, version) == *bytes {
        true => Ok(version),
        false => Err(format!("block {block} is damaged, or another block's: {:?}", &bytes[..16])),
    }
}

/// An open volume.
pub struct Volume {
    pub part: Arc<LogPart>,
    pub device: Rc<dyn Device>,
}

impl Volume {
    /// Creates a volume.
    pub async fn make(disk: &Arc<dyn DevicePart>, options: &Options) -> Volume {
        let options = Options { format: true, ..options.clone() };
        Volume::on(open(disk.clone(), &options).await.expect("the log is made")).await
    }

    /// Opens an existing volume.
    pub async fn open(disk: &Arc<dyn DevicePart>, options: &Options) -> Volume {
        Volume::try_open(disk, options).await.expect("the log opens")
    }

    /// Opens an existing volume, or returns the error.
    pub async fn try_open(disk: &Arc<dyn DevicePart>, options: &Options) -> Result<Volume> {
        let options = Options { zone_size: None, size: None, format: false, ..options.clone() };
        Ok(Volume::on(open(disk.clone(), &options).await?).await)
    }

    async fn on(part: LogPart) -> Volume {
        let device = part.open().await.expect("a handle");
        Volume { part: Arc::new(part), device }
    }

    /// Number of blocks.
    pub fn blocks(&self) -> u64 {
        self.device.geometry().blocks.0
    }

    /// Writes stamped blocks.
    pub async fn try_write(&self, block: u64, count: u64, version: Version) -> Result<()> {
        let data = stamped(block, count, version);
        self.device.write(BlockIndex(block), data.into(), Durability::Visible).await
    }

    /// Writes stamped blocks; panics on errors.
    pub async fn write(&self, block: u64, count: u64, version: Version) {
        self.try_write(block, count, version).await.expect("it writes");
    }

    /// Writes stamped blocks from another shard, one request per block.
    pub async fn write_on(&self, shard: usize, block: u64, count: u64, version: Version) -> Result<()> {
        let part = self.part.clone();
        let write = move || async move {
            let device = part.open().await?;
            for block in block..block + count {
                let data = stamped(block, 1, version);
                device.write(BlockIndex(block), data.into(), Durability::Visible).await?;
            }
            Ok(())
        };
        runtime::spawn_on(runtime::ShardIndex(shard), write).await?
    }

    /// Flushes; panics on errors.
    pub async fn flush(&self) {
        self.device.flush().await.expect("it flushes");
    }

    /// Discards blocks; panics on errors.
    pub async fn discard(&self, block: u64, count: u64) {
        self.device.discard(BlockRange::new(block, count)).await.expect("it discards");
    }

    /// Reads bytes.
    pub async fn bytes(&self, block: u64, count: u64) -> Result<Vec<u8>> {
        let (outcome, buffer) =
            self.device.read(BlockIndex(block), Buffer::new(count as usize * BLOCK)).await;
        outcome.map(|()| buffer.filled().to_vec())
    }

    /// Versions of blocks.
    pub async fn versions(&self, block: u64, count: u64) -> Vec<Version> {
        let bytes = self.bytes(block, count).await.expect("it reads");
        let blocks = bytes.chunks_exact(BLOCK).zip(block..);
        blocks.map(|(bytes, block)| version_of(block, bytes).expect("a whole block")).collect()
    }

    /// Versions of all blocks.
    pub async fn all(&self) -> Vec<Version> {
        let mut found = Vec::new();
        while (found.len() as u64) < self.blocks() {
            let at = found.len() as u64;
            found.extend(self.versions(at, 256.min(self.blocks() - at)).await);
        }
        found
    }

    /// Closes the log; panics on errors.
    pub async fn close(self) {
        drop(self.device);
        self.part.close().await.expect("it closes");
    }

    /// Numbers of reset zones and of moved blocks.
    pub fn cleaned(&self) -> (u64, u64) {
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        (value(&self.part.counters().reset_zones), value(&self.part.counters().moved_blocks))
    }
}

/// A disk whose unflushed writes can be lost.
pub struct Losing {
    recorder: Arc<Recorder>,
    number: u16,
    /// The disk to use.
    pub disk: Arc<dyn DevicePart>,
}

impl Losing {
    /// Wraps a disk that is all zeros.
    pub fn new(disk: Arc<dyn DevicePart>) -> Losing {
        let recorder = Recorder::in_memory();
        let disk = RecordDevicePart::new(disk, recorder.clone(), "disk", Role::Disk).expect("it records");
        Losing { recorder, number: disk.number(), disk: Arc::new(disk) }
    }

    /// Returns the disk after a power cut now.
    pub fn after_power_cut(&self, choice: Choice) -> Arc<dyn DevicePart> {
        let timeline = self.recorder.timeline().expect("it is in memory");
        let history = History::new(&timeline, self.number).expect("the disk is in it");
        let mut cursor = Cursor::new(history.clone());
        cursor.advance_to(history.events());
        Arc::new(ImageDisk::new(Image::new(&cursor, choice)))
    }
}

/// All bytes of a disk.
pub async fn raw(disk: &Arc<dyn DevicePart>) -> Vec<u8> {
    let device = disk.open().await.expect("a handle");
    let (outcome, buffer) = device.read(BlockIndex(0), Buffer::new(device.geometry().bytes() as usize)).await;
    outcome.expect("it reads");
    buffer.filled().to_vec()
}

/// A disk with these bytes.
pub async fn copy_of(bytes: &[u8]) -> Arc<dyn DevicePart> {
    let copy = disk(bytes.len() as u64 >> 20);
    let device = copy.open().await.expect("a handle");
    // Most of a disk is zeros, as the new one is.
    const PIECE: usize = 16 * BLOCK;
    for (number, piece) in (0..).zip(bytes.chunks(PIECE)) {
        if *piece != [0; PIECE][..piece.len()] {
            let at = BlockIndex(number * (PIECE / BLOCK) as u64);
            let written = device.write(at, Buffer::copy_of(piece).into(), Durability::Durable).await;
            written.expect("it writes");
        }
    }
    copy
}
