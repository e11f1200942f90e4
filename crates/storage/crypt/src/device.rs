//! Part and handles: requests are encrypted and decrypted on the shard that sends them.
//!
//! - A write is copied, and the copy is encrypted: the caller's bytes don't change. A read is decrypted in
//!   the caller's buffer. A write in flight takes one buffer of its length more than the device below does.
//! - Of two requests that overlap and of which one writes only one is in flight below at a time: a cipher
//!   block with bytes of both would decrypt to neither (`overlaps`).
//! - The shard runs other tasks after each 64 KiB of a request. A write whose call is dropped is carried on,
//!   as one below is; zeros end with the write in flight.
//! - Zeros are written as any other data, also by `write_zeroes`, so that dm-crypt reads them as zeros.
//! - A discard writes zeros, so that the device below doesn't show which blocks are in use. With `discard` it
//!   is passed on, and 512 bytes of the device below that are all zeros read as zeros.

use crate::overlaps::{Overlaps, Writing};
use crate::xts::{MIN_SECTOR, Xts};
use block::layer::DeviceLayer;
use block::{
    BlockCount, BlockIndex, BlockRange, BlockSize, Buffer, Call, Device, DeviceGeometry, DevicePart,
    Durability, Error, Extent, Part, Payload, ReadOutcome, Result, Status, ZeroMode, extents,
};
use runtime::locked_memory::LockedBox;
use std::rc::Rc;
use std::sync::Arc;

/// Bytes that are encrypted or decrypted at once.
const STEP: usize = 64 << 10;
/// Bytes of zeros that are written at once, unless a block is larger.
const ZEROS: u64 = 1 << 20;

/// Location and form of the encrypted data on the device below.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Offset of the first sector, in bytes.
    pub offset: u64,
    /// Number of bytes; `None` for all that follow.
    pub bytes: Option<u64>,
    /// Tweak of the first sector.
    pub tweak: u64,
    /// Bytes that are encrypted as one sector: a power of two from 512 to 4096.
    pub sector_size: usize,
}

/// A segment on a device below.
#[derive(Debug)]
struct Layout {
    geometry: DeviceGeometry,
    segment: Segment,
    /// Binary logarithm of the number of blocks below per block.
    shift: u32,
    /// First block of the segment, in blocks below.
    first: u64,
    discards: bool,
}

impl Layout {
    fn new(below: &DeviceGeometry, segment: Segment, discards: bool) -> Result<Layout> {
        let block_size = BlockSize::new(below.block_size.bytes().max(segment.sector_size as u64))?;
        let available = below.bytes().saturating_sub(segment.offset);
        let bytes = segment.bytes.unwrap_or(available);
        if !segment.offset.is_multiple_of(block_size.bytes()) {
            return Err(Error::invalid(format!(
                "crypt: the data begins at byte {}; expected a multiple of the block size, {block_size}",
                segment.offset
            )));
        }
        if bytes > available || bytes < block_size.bytes() {
            return Err(Error::invalid(format!(
                "crypt: {bytes} bytes of data at byte {} of a device of {} bytes; expected at least one block of {block_size} \
                 bytes, inside the device",
                segment.offset,
                below.bytes()
            )));
        }
        let geometry =
            DeviceGeometry { block_size, blocks: BlockCount(bytes >> block_size.shift()), ..below.clone() };
        let shift = block_size.shift() - below.block_size.shift();
        let first = segment.offset >> below.block_size.shift();
        Ok(Layout { geometry, segment, shift, first, discards })
    }

    /// Blocks below of a range inside the device.
    fn below(&self, range: BlockRange) -> BlockRange {
        BlockRange::new(self.first + (range.start.0 << self.shift), range.count.0 << self.shift)
    }

    /// Tweak of the sector that is `bytes` after the start of a block.
    fn tweak(&self, block: BlockIndex, bytes: usize) -> u64 {
        let offset = self.geometry.block_size.offset_of(block).0 + bytes as u64;
        self.segment.tweak.wrapping_add(offset / MIN_SECTOR as u64)
    }
}

/// An encrypted device.
pub struct CryptPart {
    below: Arc<dyn DevicePart>,
    cipher: Arc<LockedBox<Xts>>,
    layout: Arc<Layout>,
    overlaps: Arc<Overlaps>,
    status: Status,
}

impl CryptPart {
    /// Encrypts a segment of a device. With `discards`, discards are passed on, and 512 bytes of the device
    /// below that are all zeros read as zeros.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a segment that isn't inside the device, or that doesn't begin at a block.
    pub fn new(
        below: Arc<dyn DevicePart>,
        cipher: LockedBox<Xts>,
        segment: Segment,
        discards: bool,
    ) -> Result<CryptPart> {
        let layout = Layout::new(below.geometry(), segment, discards)?;
        let mut status = Status::new();
        status.insert("cipher".into(), cipher.name().into());
        status.insert("sector_size".into(), segment.sector_size.into());
        status.insert("data_offset".into(), segment.offset.into());
        status.insert("bytes".into(), layout.geometry.bytes().into());
        status.insert("discard".into(), discards.into());
        let overlaps = Arc::new(Overlaps::new(layout.geometry.block_size.shift()));
        Ok(CryptPart { below, cipher: Arc::new(cipher), layout: Arc::new(layout), overlaps, status })
    }

    /// Bytes that are encrypted as one sector.
    pub fn sector_size(&self) -> usize {
        self.layout.segment.sector_size
    }

    /// Whether discards are passed on.
    pub fn discards(&self) -> bool {
        self.layout.discards
    }

    /// Adds a field to the status.
    pub fn with_status(mut self, name: &str, value: impl Into<serde_json::Value>) -> CryptPart {
        self.status.insert(name.into(), value.into());
        self
    }
}

impl Part for CryptPart {
    fn kind(&self) -> &'static str {
        crate::KIND.name
    }

    fn status(&self) -> Call<'_, Status> {
        Call::ready(self.status.clone())
    }
}

impl DeviceLayer for CryptPart {
    fn below(&self) -> &Arc<dyn DevicePart> {
        &self.below
    }

    fn own_geometry(&self) -> Option<&DeviceGeometry> {
        Some(&self.layout.geometry)
    }

    fn handle(&self, below: Rc<dyn Device>) -> Rc<dyn Device> {
        let (cipher, layout, overlaps) = (self.cipher.clone(), self.layout.clone(), self.overlaps.clone());
        Rc::new(CryptDevice(Rc::new(Core { below, cipher, layout, overlaps })))
    }
}

/// Handle of one shard.
struct CryptDevice(Rc<Core>);

/// State of a handle; a write that is carried on shares it.
struct Core {
    below: Rc<dyn Device>,
    cipher: Arc<LockedBox<Xts>>,
    layout: Arc<Layout>,
    overlaps: Arc<Overlaps>,
}

impl Core {
    /// Encrypts at most [`STEP`] bytes that are `offset` bytes after the start of a block.
    fn encrypt(&self, block: BlockIndex, offset: usize, bytes: &mut [u8]) {
        self.cipher.encrypt(bytes, self.layout.segment.sector_size, self.layout.tweak(block, offset));
    }

    /// Decrypts as [`encrypt`](Self::encrypt) encrypts.
    fn decrypt(&self, block: BlockIndex, offset: usize, bytes: &mut [u8]) {
        let zeros = if self.layout.discards { zero_pieces(bytes) } else { 0 };
        self.cipher.decrypt(bytes, self.layout.segment.sector_size, self.layout.tweak(block, offset));
        for (number, piece) in bytes.chunks_mut(MIN_SECTOR).enumerate().filter(|_| zeros != 0) {
            if zeros >> number & 1 == 1 {
                piece.fill(0);
            }
        }
    }

    /// Returns an encrypted copy of a payload for block `at`.
    async fn encrypted(&self, at: BlockIndex, payload: Payload) -> Buffer {
        let mut buffer = Buffer::new(payload.len());
        let mut done = 0;
        for slice in payload.slices() {
            let mut rest = &**slice;
            while !rest.is_empty() {
                let (now, later) = rest.split_at(rest.len().min(done + STEP - buffer.filled().len()));
                buffer.append(now);
                rest = later;
                let filled = buffer.filled().len();
                if filled - done == STEP || buffer.missing() == 0 {
                    self.encrypt(at, done, &mut buffer.filled_mut()[done..]);
                    done = filled;
                    if buffer.missing() > 0 {
                        runtime::yield_now().await;
                    }
                }
            }
        }
        buffer
    }

    /// Writes a payload that isn't empty and fits the device. The range is held until the write below has
    /// ended, so this is carried on if it is dropped.
    fn write(
        self: &Rc<Self>,
        range: BlockRange,
        payload: Payload,
        durability: Durability,
    ) -> Call<'static, Result<()>> {
        let core = self.clone();
        runtime::carry(async move {
            let buffer = core.encrypted(range.start, payload).await;
            let _writing: Writing<'_> = core.overlaps.write(range).await;
            core.below.write(core.layout.below(range).start, buffer.into(), durability).await
        })
    }

    /// Discards a range that isn't empty on the device below; as [`write`](Self::write).
    fn discard(self: &Rc<Self>, range: BlockRange) -> Call<'static, Result<()>> {
        let core = self.clone();
        runtime::carry(async move {
            let _writing: Writing<'_> = core.overlaps.write(range).await;
            core.below.discard(core.layout.below(range)).await
        })
    }

    /// Reads the ciphertext of a range that isn't empty, while no write to it is in flight.
    async fn read(&self, range: BlockRange, buffer: Buffer) -> ReadOutcome {
        let first = self.layout.below(range).start;
        let quiet = self.overlaps.quiet(range);
        let mut buffer = buffer;
        if quiet.is_some() {
            let (read, filled) = self.below.read(first, buffer).await;
            if read.is_err() || self.overlaps.quiet(range) == quiet {
                return (read, filled);
            }
            buffer = filled;
            buffer.clear();
        }
        let _held = self.overlaps.hold(range).await;
        self.below.read(first, buffer).await
    }

    /// Writes encrypted zeros.
    async fn write_zeros(self: &Rc<Self>, range: BlockRange, durability: Durability) -> Result<()> {
        let step = (ZEROS >> self.layout.geometry.block_size.shift()).max(1);
        let mut rest = range;
        while !rest.is_empty() {
            let now = BlockRange::new(rest.start.0, rest.count.0.min(step));
            rest = BlockRange { start: now.end(), count: rest.end() - now.end() };
            let bytes = self.layout.geometry.block_size.bytes_of(now.count) as usize;
            self.write(now, Buffer::zeroed(bytes).into(), durability).await?;
        }
        Ok(())
    }

    /// Checks a range that is to be written.
    fn writable(&self, range: BlockRange) -> Result<()> {
        self.layout.geometry.check_writable().and_then(|()| self.layout.geometry.check(range))
    }
}

/// Returns a bit for each 512 bytes of at most [`STEP`] that are all zeros, beginning with the lowest.
fn zero_pieces(bytes: &[u8]) -> u128 {
    const { assert!(STEP / MIN_SECTOR == u128::BITS as usize) };
    bytes.chunks(MIN_SECTOR).enumerate().fold(0, |zeros, (number, piece)| {
        // Ciphertext isn't zero for long.
        let is_zero = piece[..16] == [0; 16] && piece.iter().all(|byte| *byte == 0);
        zeros | u128::from(is_zero) << number
    })
}

impl Device for CryptDevice {
    fn geometry(&self) -> &DeviceGeometry {
        &self.0.layout.geometry
    }

    fn read(&self, at: BlockIndex, mut buffer: Buffer) -> Call<'_, ReadOutcome> {
        let range = match self.0.layout.geometry.range(at, buffer.len()) {
            Ok(range) if !range.is_empty() => range,
            other => {
                buffer.clear();
                return Call::ready((other.map(drop), buffer));
            }
        };
        Call::new(async move {
            let (read, mut buffer) = self.0.read(range, buffer).await;
            if read.is_ok() {
                for (number, bytes) in buffer.filled_mut().chunks_mut(STEP).enumerate() {
                    if number > 0 {
                        runtime::yield_now().await;
                    }
                    self.0.decrypt(at, number * STEP, bytes);
                }
            }
            (read, buffer)
        })
    }

    fn write(&self, at: BlockIndex, payload: Payload, durability: Durability) -> Call<'_, Result<()>> {
        match self.0.layout.geometry.writable_range(at, payload.len()) {
            Ok(range) if !range.is_empty() => self.0.write(range, payload, durability),
            other => Call::ready(other.map(drop)),
        }
    }

    fn flush(&self) -> Call<'_, Result<()>> {
        self.0.below.flush()
    }

    fn discard(&self, range: BlockRange) -> Call<'_, Result<()>> {
        match self.0.writable(range) {
            Ok(()) if range.is_empty() => Call::ready(Ok(())),
            Ok(()) if self.0.layout.discards => self.0.discard(range),
            Ok(()) => Call::new(self.0.write_zeros(range, Durability::Visible)),
            Err(error) => Call::ready(Err(error)),
        }
    }

    fn write_zeroes(
        &self,
        range: BlockRange,
        _mode: ZeroMode,
        durability: Durability,
    ) -> Call<'_, Result<()>> {
        match self.0.writable(range) {
            Ok(()) => Call::new(self.0.write_zeros(range, durability)),
            Err(error) => Call::ready(Err(error)),
        }
    }

    fn extents(&self, range: BlockRange) -> Call<'_, Result<Vec<Extent>>> {
        let checked = self.0.layout.geometry.check(range);
        Call::new(async move {
            checked?;
            if range.is_empty() {
                return Ok(Vec::new());
            }
            if !self.0.layout.discards {
                return Ok(vec![Extent { range, state: block::ExtentState::Data }]);
            }
            let below = self.0.layout.below(range);
            let found = self.0.below.extents(below).await?;
            Ok(extents::in_blocks(range, below.start.0, self.0.layout.shift, &found))
        })
    }
}
