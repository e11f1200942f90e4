//! All state that must outlive the process that serves a device, in one piece of shared memory: the map, the
//! zones, the staged blocks and the cache.
//!
//! The memory is a file of the kernel's (memfd). The pages exist as long as a process has the descriptor, and
//! the next process continues with them. So the process may be killed between any two stores: a slot is
//! complete before the map names it, and state that can be computed from the map isn't kept here.
//!
//! ```text
//! header 4 KiB │ map: 8 B a page │ zones: 64 B each │ staged blocks: 16 B each │ frames: 8 B each │ staged blocks: 1 MiB each │ frames: 4 KiB each
//! ```

use crate::entry::Entry;
use crate::slot::{GRANULE, PAGE};
use block::{Error, Result};
use runtime::shared_memory::SharedMemory;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

/// Size of a block in bytes: the unit in which pages are packed and written to nodes.
pub const BLOCK: usize = 1 << 20;
/// Granules of a block.
pub const BLOCK_GRANULES: u64 = (BLOCK / GRANULE) as u64;

const MAGIC: u64 = u64::from_le_bytes(*b"SILTSWAP");
const VERSION: u64 = 1;
const HEADER: usize = 4096;
/// Words of a zone's record.
pub const ZONE_WORDS: usize = 8;

/// Layout of the kept memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// Pages of the device.
    pub pages: u64,
    /// Zones: block groups.
    pub zones: u32,
    /// Blocks of a zone.
    pub zone_blocks: u32,
    /// Staged blocks.
    pub staged: u32,
    /// Frames of the cache.
    pub frames: u32,
    /// Distinguishes this set of nodes from others.
    pub identity: u64,
}

impl Sizes {
    fn words(&self) -> [u64; 6] {
        let Sizes { pages, zones, zone_blocks, staged, frames, identity } = *self;
        [pages, zones.into(), zone_blocks.into(), staged.into(), frames.into(), identity]
    }

    fn map(&self) -> usize {
        HEADER
    }

    fn zone_records(&self) -> usize {
        self.map() + self.pages as usize * 8
    }

    fn staged_tags(&self) -> usize {
        self.zone_records() + self.zones as usize * ZONE_WORDS * 8
    }

    fn frame_tags(&self) -> usize {
        self.staged_tags() + self.staged as usize * 16
    }

    fn staged_blocks(&self) -> usize {
        (self.frame_tags() + self.frames as usize * 8).next_multiple_of(PAGE)
    }

    fn frame_bytes(&self) -> usize {
        self.staged_blocks() + self.staged as usize * BLOCK
    }

    /// Bytes of the memory.
    pub fn total(&self) -> u64 {
        (self.frame_bytes() + self.frames as usize * PAGE) as u64
    }

    /// Bytes of metadata: everything but staged blocks and frames.
    pub fn map_bytes(&self) -> u64 {
        self.staged_blocks() as u64
    }
}

/// The memory.
pub struct Arena {
    memory: SharedMemory,
    sizes: Sizes,
}

impl Arena {
    /// Opens the memory of a process that has ended, or creates new memory of zeros. Returns whether it had
    /// been used.
    ///
    /// # Errors
    /// [`Error::Invalid`] for memory of another device; errors of the kernel.
    pub fn open(kept: Option<&OwnedFd>, sizes: Sizes) -> Result<(Self, bool)> {
        let Some(kept) = kept else {
            let (memory, _descriptor) = SharedMemory::create("siltstone-remote", sizes.total())?;
            let arena = Arena { memory, sizes };
            arena.write_header();
            return Ok((arena, false));
        };
        let failed = |error: rustix::io::Errno| Error::from_io(&error.into(), "looking at kept memory");
        let length = rustix::fs::fstat(kept).map_err(failed)?.st_size as u64;
        if length == 0 {
            rustix::fs::ftruncate(kept, sizes.total()).map_err(failed)?;
        } else if length != sizes.total() {
            return Err(other_device(format!("{length} bytes; expected {}", sizes.total())));
        }
        let arena = Arena { memory: SharedMemory::map(kept, 0, sizes.total())?, sizes };
        // The magic number was written last: without it nothing was stored.
        let is_used = arena.word(0) == MAGIC;
        if !is_used {
            arena.write_header();
            return Ok((arena, false));
        }
        if arena.word(1) != VERSION {
            return Err(other_device(format!("version {}; expected {VERSION}", arena.word(1))));
        }
        for (number, expected) in sizes.words().into_iter().enumerate() {
            let found = arena.word(2 + number);
            if found != expected {
                return Err(other_device(format!("{found} in field {number}; expected {expected}")));
            }
        }
        Ok((arena, true))
    }

    fn write_header(&self) {
        for (number, word) in self.sizes.words().into_iter().enumerate() {
            self.set_word(2 + number, word);
        }
        self.set_word(1, VERSION);
        self.set_word(0, MAGIC);
    }

    fn word(&self, number: usize) -> u64 {
        self.memory.u64(number * 8).load(Ordering::Acquire)
    }

    fn set_word(&self, number: usize, value: u64) {
        self.memory.u64(number * 8).store(value, Ordering::Release);
    }

    /// Layout of the memory.
    pub fn sizes(&self) -> &Sizes {
        &self.sizes
    }

    /// Entry of a page in the map.
    #[inline]
    pub fn entry(&self, page: u32) -> Entry {
        Entry::decode(self.memory.u64(self.sizes.map() + page as usize * 8).load(Ordering::Acquire))
    }

    /// Sets the entry of a page in the map.
    #[inline]
    pub fn set_entry(&self, page: u32, entry: Entry) {
        self.memory.u64(self.sizes.map() + page as usize * 8).store(entry.encode(), Ordering::Release);
    }

    /// The record of a zone.
    pub fn zone(&self, zone: u32) -> [u64; ZONE_WORDS] {
        let at = self.sizes.zone_records() + zone as usize * ZONE_WORDS * 8;
        std::array::from_fn(|number| self.memory.u64(at + number * 8).load(Ordering::Acquire))
    }

    /// Changes words of the record of a zone, in this order.
    pub fn set_zone(&self, zone: u32, stores: impl Iterator<Item = (usize, u64)>) {
        let at = self.sizes.zone_records() + zone as usize * ZONE_WORDS * 8;
        for (number, word) in stores {
            self.memory.u64(at + number * 8).store(word, Ordering::Release);
        }
    }

    /// The tag of a staged block.
    pub fn staged_tag(&self, staged: u32) -> [u64; 2] {
        let at = self.sizes.staged_tags() + staged as usize * 16;
        [0, 8].map(|offset| self.memory.u64(at + offset).load(Ordering::Acquire))
    }

    /// Changes the tag of a staged block; its first word last.
    pub fn set_staged_tag(&self, staged: u32, tag: [u64; 2]) {
        let at = self.sizes.staged_tags() + staged as usize * 16;
        self.memory.u64(at + 8).store(tag[1], Ordering::Release);
        self.memory.u64(at).store(tag[0], Ordering::Release);
    }

    /// The tag of a frame.
    pub fn frame_tag(&self, frame: u32) -> u64 {
        self.memory.u64(self.sizes.frame_tags() + frame as usize * 8).load(Ordering::Acquire)
    }

    /// Changes the tag of a frame.
    pub fn set_frame_tag(&self, frame: u32, tag: u64) {
        self.memory.u64(self.sizes.frame_tags() + frame as usize * 8).store(tag, Ordering::Release);
    }

    /// Copies bytes of a staged block out.
    pub fn read_staged(&self, staged: u32, at: usize, target: &mut [u8]) {
        self.memory.read(self.sizes.staged_blocks() + staged as usize * BLOCK + at, target);
    }

    /// Copies bytes into a staged block.
    pub fn write_staged(&self, staged: u32, at: usize, bytes: &[u8]) {
        self.memory.write(self.sizes.staged_blocks() + staged as usize * BLOCK + at, bytes);
    }

    /// Appends bytes of a staged block to a buffer.
    pub fn append_staged(&self, staged: u32, count: usize, buffer: &mut block::Buffer) {
        self.memory.append_to(self.sizes.staged_blocks() + staged as usize * BLOCK, count, buffer);
    }

    /// Copies bytes of a frame out.
    pub fn read_frame(&self, frame: u32, at: usize, target: &mut [u8]) {
        self.memory.read(self.sizes.frame_bytes() + frame as usize * PAGE + at, target);
    }

    /// Copies a page into a frame.
    pub fn write_frame(&self, frame: u32, bytes: &[u8]) {
        self.memory.write(self.sizes.frame_bytes() + frame as usize * PAGE, bytes);
    }
}

fn other_device(what: String) -> Error {
    Error::invalid(format!(
        "kept memory is that of another device ({what}); detach it, or start it with the stack that it had"
    ))
}
