//! Memory of this process as a device: as fast as a device can be, and gone with the process.
//!
//! It has no volatile cache in the sense of the contract: a flush adds nothing to what a write has already
//! done, and a power cut takes everything either way.
#![allow(unsafe_code)] // The blocks are memory that all shards share, as those of a disk are.

use crate::{SECTOR, queued, size};
use block::{
    BlockCount, BlockIndex, BlockRange, BlockSize, Buffer, Call, Device, DeviceGeometry, DevicePart,
    Durability, Error, Extent, ExtentState, Part, Payload, ReadOutcome, Result, Status, ZeroMode,
};
use stack::{Built, Contract, Key, Kind, Shape, ValueKind};
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// `ram(size=1GiB)`.
pub const KIND: Kind = Kind {
    name: "ram",
    contract: Contract::Device,
    summary: "memory of this process; gone when it ends",
    keys: &[
        Key::required("size", ValueKind::Size, "the capacity; memory is taken as it is written").positional(),
        size::BLOCK_SIZE,
    ],
    shareable: false,
    example: "ram(1GiB)",
    plan: |arguments| {
        let (bytes, block_size) = size::capacity(arguments)?;
        Ok(Shape::new(bytes, block_size.bytes() as u32))
    },
    build: |arguments| {
        Call::new(async move {
            let (bytes, block_size) = size::capacity(&arguments)?;
            Ok(Built::Device(Arc::new(RamPart::new(bytes, block_size)?)))
        })
    },
};

/// The unit in which it is remembered whether anything was written, in bytes.
const CHUNK: u64 = 64 << 10;

/// Zeroed pages that are taken when they are first written.
struct Memory {
    start: NonNull<u8>,
    bytes: usize,
    /// Per [`CHUNK`], whether it may hold anything but zeros.
    written: Vec<AtomicBool>,
}

// SAFETY: the pages are raw memory that is only ever copied from and to. Requests that overlap in time and
// place may mix their bytes, as the Device contract says of every device; nothing is ever made of the bytes
// in place.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    fn new(bytes: u64) -> Result<Self> {
        let length = usize::try_from(bytes).unwrap_or(usize::MAX);
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: asks for new pages wherever the kernel likes.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, -1, 0) };
        let start = NonNull::new(start.cast()).filter(|_| start != libc::MAP_FAILED);
        let start = start.ok_or_else(|| {
            let error = std::io::Error::last_os_error();
            Error::out_of_memory(format!(
                "ram of {bytes} bytes: {error}; take less than the machine's memory"
            ))
        })?;
        let written = (0..bytes.div_ceil(CHUNK)).map(|_| AtomicBool::new(false)).collect();
        Ok(Memory { start, bytes: length, written })
    }

    /// Where these bytes are. The caller has checked them against the geometry.
    #[inline]
    fn at(&self, offset: u64, length: usize) -> *mut u8 {
        assert!(offset as usize + length <= self.bytes, "a range was not checked");
        // SAFETY: inside the mapping.
        unsafe { self.start.as_ptr().add(offset as usize) }
    }

    #[inline]
    fn mark_written(&self, offset: u64, length: u64) {
        for chunk in offset / CHUNK..(offset + length).div_ceil(CHUNK) {
            let written = &self.written[chunk as usize];
            if !written.load(Ordering::Relaxed) {
                written.store(true, Ordering::Relaxed);
            }
        }
    }

    #[inline]
    fn read(&self, offset: u64, buffer: &mut Buffer) {
        buffer.clear();
        let (source, length) = (self.at(offset, buffer.len()), buffer.len());
        // SAFETY: the source lies inside the mapping, the target is the buffer's own, and they are apart.
        unsafe {
            std::ptr::copy_nonoverlapping(source, buffer.address(), length);
            buffer.add_filled(length);
        }
    }

    #[inline]
    fn write(&self, offset: u64, payload: &Payload) {
        self.mark_written(offset, payload.len() as u64);
        let mut at = offset;
        for data in payload.slices() {
            let target = self.at(at, data.len());
            // SAFETY: the target lies inside the mapping and apart from the data.
            unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), target, data.len()) };
            at += data.len() as u64;
        }
    }

    /// Zeros; whole pages are given back if that is wanted.
    fn zero(&self, offset: u64, length: u64, give_back: bool) {
        const PAGE: u64 = 4096;
        let end = offset + length;
        let (first_page, last_page) = (offset.next_multiple_of(PAGE), end - end % PAGE);
        if !give_back || first_page >= last_page {
            return self.fill_with_zeros(offset, length);
        }
        self.fill_with_zeros(offset, first_page - offset);
        let pages = self.at(first_page, (last_page - first_page) as usize);
        // SAFETY: whole pages of our own private mapping, which read as zeros afterwards.
        let advised =
            unsafe { libc::madvise(pages.cast(), (last_page - first_page) as usize, libc::MADV_DONTNEED) };
        if advised != 0 {
            self.fill_with_zeros(first_page, last_page - first_page);
        }
        self.fill_with_zeros(last_page, end - last_page);
        for chunk in offset.div_ceil(CHUNK)..end / CHUNK {
            self.written[chunk as usize].store(false, Ordering::Relaxed);
        }
    }

    fn fill_with_zeros(&self, offset: u64, length: u64) {
        let target = self.at(offset, length as usize);
        // SAFETY: inside the mapping.
        unsafe { std::ptr::write_bytes(target, 0, length as usize) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: our own mapping, and nobody uses it any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// The part: the memory and its geometry.
pub struct RamPart {
    geometry: DeviceGeometry,
    memory: Arc<Memory>,
}

impl RamPart {
    /// A device of this many bytes.
    ///
    /// # Errors
    /// [`Error::Invalid`] if they aren't whole blocks; [`Error::OutOfMemory`] if the kernel won't have it.
    pub fn new(bytes: u64, block_size: BlockSize) -> Result<Self> {
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
        Ok(RamPart { geometry, memory: Arc::new(Memory::new(bytes)?) })
    }
}

impl Part for RamPart {
    fn kind(&self) -> &'static str {
        KIND.name
    }

    fn status(&self) -> Status {
        let chunks = self.memory.written.iter().filter(|written| written.load(Ordering::Relaxed)).count();
        let mut status = Status::new();
        status.insert("bytes".into(), self.geometry.bytes().into());
        status.insert(
            "written_bytes_at_most".into(),
            (chunks as u64 * CHUNK).min(self.geometry.bytes()).into(),
        );
        status
    }
}

impl DevicePart for RamPart {
    fn geometry(&self) -> &DeviceGeometry {
        &self.geometry
    }

    fn open(&self) -> Call<'_, Result<Rc<dyn Device>>> {
        let ram = Ram { geometry: self.geometry.clone(), memory: self.memory.clone() };
        Call::ready(Ok(Rc::new(ram) as Rc<dyn Device>))
    }
}

struct Ram {
    geometry: DeviceGeometry,
    memory: Arc<Memory>,
}

impl Ram {
    fn zero(&self, range: BlockRange, give_back: bool) -> Result<()> {
        self.geometry.check(range)?;
        let offset = self.geometry.block_size.offset_of(range.start).0;
        self.memory.zero(offset, self.geometry.block_size.bytes_of(range.count), give_back);
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
        let checked = self.geometry.range(at, payload.len()).map(drop);
        if checked.is_ok() {
            self.memory.write(self.geometry.block_size.offset_of(at).0, &payload);
        }
        queued(checked)
    }

    fn flush(&self) -> Call<'_, Result<()>> {
        queued(Ok(()))
    }

    fn discard(&self, range: BlockRange) -> Call<'_, Result<()>> {
        queued(self.zero(range, true))
    }

    fn write_zeroes(
        &self,
        range: BlockRange,
        mode: ZeroMode,
        _durability: Durability,
    ) -> Call<'_, Result<()>> {
        queued(self.zero(range, mode == ZeroMode::MayDeallocate))
    }

    fn extents(&self, range: BlockRange) -> Call<'_, Result<Vec<Extent>>> {
        Call::ready(self.geometry.check(range).map(|()| self.known_extents(range)))
    }
}

impl Ram {
    /// What the chunks tell of a range; at most this many extents of it.
    fn known_extents(&self, range: BlockRange) -> Vec<Extent> {
        const MOST: usize = 256;
        let block_size = self.geometry.block_size;
        let mut extents: Vec<Extent> = Vec::new();
        let mut at = range.start;
        while at < range.end() {
            let begin = block_size.offset_of(at).0;
            // The chunks under this block, or the blocks under this chunk, whichever is larger.
            let end = (begin / CHUNK + 1) * CHUNK;
            let next = BlockIndex(end.div_ceil(block_size.bytes())).max(at + BlockCount(1)).min(range.end());
            let chunks = begin / CHUNK..block_size.offset_of(next).0.div_ceil(CHUNK);
            let data =
                chunks.into_iter().any(|chunk| self.memory.written[chunk as usize].load(Ordering::Relaxed));
            let state = if data { ExtentState::Data } else { ExtentState::Hole };
            let piece = BlockRange { start: at, count: next - at };
            let full = extents.len() == MOST;
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
