//! Memory of this process as a device: the fastest device, lost when the process ends.
//!
//! It has no volatile cache in the sense of the contract: a flush adds nothing to a completed write, and a
//! power cut loses everything. It may be far larger than the machine's memory: blocks to which only zeros
//! were written use no memory (`memory`), and a write without memory for it fails with "no space" (`budget`).

mod budget;
mod copy;
mod memory;

use crate::{SECTOR, queued, size};
use block::{
    BlockCount, BlockIndex, BlockRange, BlockSize, Buffer, Call, Device, DeviceGeometry, DevicePart,
    Durability, Error, Extent, ExtentState, Part, Payload, ReadOutcome, Result, Status, ZeroMode,
};
use budget::Budget;
pub use budget::Pool;
use memory::{CHUNK, Copying, Memory};
use stack::{Built, Contract, Key, Kind, Metric, Shape, ValueKind};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

/// `ram(size=1GiB)`.
pub const KIND: Kind = Kind {
    name: "ram",
    contract: Contract::Device,
    summary: "memory of this process; lost when it ends",
    keys: &[
        Key::required("size", ValueKind::Size, "capacity; memory is taken when it is written").positional(),
        Key::optional(
            "limit",
            ValueKind::Size,
            "limit of the allocated memory; default: all but 1/32 of the machine's",
        ),
        size::BLOCK_SIZE,
    ],
    messages: &[],
    metrics: &[METRICS],
    shareable: false,
    example: "ram(1GiB)",
    plan: |arguments| {
        let (bytes, block_size) = size::capacity(arguments)?;
        Ok(Shape::new(bytes, block_size.bytes() as u32))
    },
    build: |arguments| {
        Call::new(async move {
            let (bytes, block_size) = size::capacity(&arguments)?;
            let limit = arguments.optional_size("limit")?;
            Ok(Built::Device(Arc::new(RamPart::with_limit(bytes, block_size, limit)?)))
        })
    },
};

/// Numbers of the status for monitoring systems.
const METRICS: &[Metric] = &[
    Metric::gauge("bytes", "device_bytes", "Capacity of the device"),
    Metric::gauge("memory_bytes", "memory_bytes", "Memory that the part has taken"),
];

/// Bytes that are zeroed in allocated memory before other tasks run: writing them, and clearing new pages,
/// takes some 100 µs.
const KEPT_AT_ONCE: u64 = 1 << 20;

/// The part: the memory and its geometry.
pub struct RamPart {
    geometry: DeviceGeometry,
    memory: Arc<Memory>,
}

impl RamPart {
    /// Creates a device of `bytes` bytes.
    ///
    /// # Errors
    /// [`Error::Invalid`] if they aren't whole blocks; [`Error::OutOfMemory`] if the kernel has no address
    /// space for them.
    pub fn new(bytes: u64, block_size: BlockSize) -> Result<Self> {
        Self::with_limit(bytes, block_size, None)
    }

    /// Creates a device of `bytes` bytes, which uses at most `limit` bytes of memory.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub fn with_limit(bytes: u64, block_size: BlockSize, limit: Option<u64>) -> Result<Self> {
        Self::with_budget(bytes, block_size, Budget::new(limit))
    }

    /// Creates a device of `bytes` bytes with memory from a pool: memory is returned when blocks are
    /// discarded, and when the part and its handles are dropped.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub fn with_pool(bytes: u64, block_size: BlockSize, pool: Arc<dyn Pool>) -> Result<Self> {
        Self::with_budget(bytes, block_size, Budget::of_pool(pool))
    }

    fn with_budget(bytes: u64, block_size: BlockSize, budget: Budget) -> Result<Self> {
        if bytes == 0 || !bytes.is_multiple_of(block_size.bytes()) {
            let text = format!("ram of {bytes} bytes: expected a multiple of the block size, {block_size}");
            return Err(Error::invalid(text));
        }
        let geometry = DeviceGeometry {
            block_size,
            blocks: BlockCount(bytes >> block_size.shift()),
            atomic_write: SECTOR,
            volatile_cache: false,
            read_only: false,
        };
        Ok(RamPart { geometry, memory: Arc::new(Memory::new(bytes, budget)?) })
    }

    /// Memory in use, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.memory.taken()
    }
}

impl Part for RamPart {
    fn kind(&self) -> &'static str {
        KIND.name
    }

    fn status(&self) -> Call<'_, Status> {
        let mut status = Status::new();
        status.insert("bytes".into(), self.geometry.bytes().into());
        status.insert("memory_bytes".into(), self.memory.taken().into());
        Call::ready(status)
    }
}

impl DevicePart for RamPart {
    fn geometry(&self) -> &DeviceGeometry {
        &self.geometry
    }

    fn keeps_flushed(&self) -> bool {
        false
    }

    fn open(&self) -> Call<'_, Result<Rc<dyn Device>>> {
        let ram = Ram { geometry: self.geometry.clone(), memory: self.memory.clone(), next: Cell::new(0) };
        Call::ready(Ok(Rc::new(ram) as Rc<dyn Device>))
    }
}

struct Ram {
    geometry: DeviceGeometry,
    memory: Arc<Memory>,
    /// End of the last write, in bytes.
    next: Cell<u64>,
}

impl Ram {
    #[inline]
    fn put(&self, at: BlockIndex, payload: &Payload) -> Result<()> {
        self.geometry.range(at, payload.len())?;
        let offset = self.geometry.block_size.offset_of(at).0;
        let follows = self.next.replace(offset + payload.len() as u64) == offset;
        self.memory.write(offset, payload, if follows { Copying::Plain } else { Copying::PastCaches })
    }

    /// Zeroes a range. A long one is zeroed in pieces, and other tasks of the shard run between them.
    fn zero(&self, range: BlockRange, mode: ZeroMode) -> Call<'_, Result<()>> {
        if let Err(error) = self.geometry.check(range) {
            return queued(Err(error));
        }
        let offset = self.geometry.block_size.offset_of(range.start).0;
        let zeroing =
            Zeroing { at: offset, end: offset + self.geometry.block_size.bytes_of(range.count), mode };
        match zeroing.step(&self.memory) {
            Ok(Some(rest)) => runtime::carry(rest.finish(self.memory.clone())),
            done => queued(done.map(drop)),
        }
    }
}

/// Rest of a range that is being zeroed.
struct Zeroing {
    at: u64,
    end: u64,
    mode: ZeroMode,
}

impl Zeroing {
    /// Zeroes a piece, which takes well below a millisecond. Returns the rest, if there is any.
    fn step(self, memory: &Memory) -> Result<Option<Self>> {
        let Zeroing { at, end, mode } = self;
        let done = match mode {
            ZeroMode::MayDeallocate => memory.discard_some(at, end - at),
            ZeroMode::KeepAllocated => {
                let bytes = KEPT_AT_ONCE.min(end - at);
                memory.zero_and_keep(at, bytes)?;
                bytes
            }
        };
        Ok((at + done < end).then_some(Zeroing { at: at + done, end, mode }))
    }

    async fn finish(self, memory: Arc<Memory>) -> Result<()> {
        let mut left = Some(self);
        while let Some(zeroing) = left {
            runtime::yield_now().await;
            left = zeroing.step(&memory)?;
        }
        Ok(())
    }
}

impl Device for Ram {
    fn geometry(&self) -> &DeviceGeometry {
        &self.geometry
    }

    fn read(&self, at: BlockIndex, mut buffer: Buffer) -> Call<'_, ReadOutcome> {
        let checked = self.geometry.range(at, buffer.len()).map(drop);
        match checked {
            Ok(()) => self.memory.read(self.geometry.block_size.offset_of(at).0, &mut buffer),
            Err(_) => buffer.clear(),
        }
        queued((checked, buffer))
    }

    fn write(&self, at: BlockIndex, payload: Payload, _durability: Durability) -> Call<'_, Result<()>> {
        queued(self.put(at, &payload))
    }

    fn flush(&self) -> Call<'_, Result<()>> {
        queued(Ok(()))
    }

    fn discard(&self, range: BlockRange) -> Call<'_, Result<()>> {
        self.zero(range, ZeroMode::MayDeallocate)
    }

    fn write_zeroes(
        &self,
        range: BlockRange,
        mode: ZeroMode,
        _durability: Durability,
    ) -> Call<'_, Result<()>> {
        self.zero(range, mode)
    }

    fn extents(&self, range: BlockRange) -> Call<'_, Result<Vec<Extent>>> {
        Call::ready(self.geometry.check(range).map(|()| self.known_extents(range)))
    }
}

impl Ram {
    /// Returns the extents of the start of a range: at most 256 extents, of at most the first 256 MiB.
    fn known_extents(&self, range: BlockRange) -> Vec<Extent> {
        const MAX: usize = 256;
        const MAX_BYTES: u64 = 256 << 20;
        let block_size = self.geometry.block_size;
        let mut extents: Vec<Extent> = Vec::new();
        let mut at = range.start;
        let last = range.end().min(at + BlockCount(MAX_BYTES / block_size.bytes()));
        while at < last {
            let begin = block_size.offset_of(at).0;
            // The chunks of this block, or the blocks of this chunk, whichever is larger.
            let end = (begin / CHUNK + 1) * CHUNK;
            let next = BlockIndex(end.div_ceil(block_size.bytes())).max(at + BlockCount(1)).min(last);
            let chunks = begin / CHUNK..block_size.offset_of(next).0.div_ceil(CHUNK);
            let data = chunks.into_iter().any(|chunk| self.memory.may_hold_data(chunk));
            let state = if data { ExtentState::Data } else { ExtentState::Hole };
            let piece = BlockRange { start: at, count: next - at };
            let full = extents.len() == MAX;
            match extents.last_mut() {
                Some(last) if last.state == state => last.range.count.0 += piece.count.0,
                _ if full => break,
                _ => extents.push(Extent { range: piece, state }),
            }
            at = next;
        }
        extents
    }
}
