//! Memory of a `ram`: address space for all of it, pages for the written parts.
//!
//! A page (4 KiB) of zeros uses no memory until other bytes are written to it; writing zeros to it and
//! reading it use none either, not even for the kernel's page tables. So a device may be far larger than the
//! machine's memory. A write without memory for it fails with "no space", and may have been done in part.
//!
//! A bit per page records whether it was written. It is set after the page's bytes are written, and cleared
//! before they are freed: a page with any byte that isn't zero always has its bit set, so that a write of
//! zeros is never skipped for it.
#![allow(unsafe_code)] // The blocks are memory that all shards share, as those of a disk are.

use super::budget::{Budget, machine};
use super::copy::copy_past_caches;
use block::{Buffer, Error, Payload, Result};
use runtime::locked_memory;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering};

/// Unit of allocation, in bytes.
const PAGE: u64 = 4096;

/// Unit of extents, in bytes: the pages of one word of bits.
pub(super) const CHUNK: u64 = PAGE * u16::BITS as u64;

/// Bytes of memory that one step of a discard returns, which takes the kernel some 100 µs.
const DISCARDED_AT_ONCE: u64 = 4 << 20;

/// Chunks that one step of a discard checks: 8 GiB, whose bits are read in some 100 µs.
const LOOKS_AT_ONCE: u64 = 1 << 17;

/// Method of writing bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Copying {
    /// For memory that was probably just used, or that the processor prefetches.
    Plain,
    /// For memory that is probably not cached.
    PastCaches,
}

/// Zeroed pages that are allocated at the first write of other bytes.
pub(super) struct Memory {
    start: NonNull<u8>,
    bytes: usize,
    /// A bit for each page that may have bytes that aren't zero, by [`CHUNK`].
    written: Box<[AtomicU16]>,
    budget: Budget,
}

// SAFETY: the pages are raw memory that is only ever copied from and to. Requests that overlap in time and
// place may mix their bytes, as the Device contract permits for every device; no references to the bytes
// exist.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Reserves address space for `bytes` bytes, which are allocated from this budget.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if the kernel has no address space for them.
    pub fn new(bytes: u64, budget: Budget) -> Result<Self> {
        let length = usize::try_from(bytes).unwrap_or(usize::MAX);
        budget.check_locked(bytes, locked_memory::is_locked())?;
        let start = locked_memory::map_on_fault(length).map_err(|error| {
            Error::out_of_memory(format!(
                "ram of {bytes} bytes: {error}; take less: a process has some tens of TiB of addresses, and with \
                 vm.overcommit_memory=2 no more than the machine has memory"
            ))
        })?;
        let is_scattered = budget.is_shared() || machine().is_some_and(|(_, total)| bytes > total / 2);
        if is_scattered {
            // Where the kernel uses huge pages by default, each scattered written page would take 2 MiB.
            // SAFETY: advice about this mapping. Kernels without huge pages refuse it, which has no effect.
            unsafe { libc::madvise(start.as_ptr().cast(), length, libc::MADV_NOHUGEPAGE) };
        }
        // The kernel allocates zeroed memory at its first use: the bits of a device may be many megabytes.
        let bits = vec![0_u16; bytes.div_ceil(CHUNK) as usize].into_boxed_slice();
        // SAFETY: an atomic number has the size, alignment and values of the plain one.
        let written = unsafe { Box::from_raw(Box::into_raw(bits) as *mut [AtomicU16]) };
        Ok(Memory { start, bytes: length, written, budget })
    }

    /// Memory in use, in bytes.
    pub fn taken(&self) -> u64 {
        self.budget.taken()
    }

    /// Whether [`CHUNK`] number `chunk` may have bytes that aren't zero.
    pub fn may_hold_data(&self, chunk: u64) -> bool {
        self.written[chunk as usize].load(Ordering::Acquire) != 0
    }

    /// Address of these bytes. The caller has checked them against the geometry.
    #[inline]
    fn at(&self, offset: u64, length: usize) -> *mut u8 {
        assert!(offset as usize + length <= self.bytes, "a range was not checked");
        // SAFETY: inside the mapping.
        unsafe { self.start.as_ptr().add(offset as usize) }
    }

    /// Word of a page's bit, and the bit in it.
    #[inline]
    fn bit(&self, page: u64) -> (&AtomicU16, u16) {
        (&self.written[(page / u64::from(u16::BITS)) as usize], 1 << (page % u64::from(u16::BITS)))
    }

    #[inline]
    fn is_written(&self, page: u64) -> bool {
        let (word, bit) = self.bit(page);
        word.load(Ordering::Acquire) & bit != 0
    }

    /// Number of bytes at `offset`, at most `length`, whose pages were all written or all not, and which of
    /// the two.
    #[inline]
    fn run(&self, offset: u64, length: u64) -> (u64, bool) {
        let end = offset + length;
        let is_written = self.is_written(offset / PAGE);
        let mut next = (offset / PAGE + 1) * PAGE;
        while next < end && self.is_written(next / PAGE) == is_written {
            next += PAGE;
        }
        (next.min(end) - offset, is_written)
    }

    #[inline]
    pub fn read(&self, offset: u64, buffer: &mut Buffer) {
        buffer.clear();
        let (mut offset, mut left) = (offset, buffer.len() as u64);
        let mut target = buffer.address();
        while left > 0 {
            let (bytes, is_written) = self.run(offset, left);
            let length = bytes as usize;
            // SAFETY: the source is inside the mapping, the target belongs to the buffer, and they don't
            // overlap; all bytes up to `add_filled` were written.
            unsafe {
                match is_written {
                    true => std::ptr::copy_nonoverlapping(self.at(offset, length), target, length),
                    false => std::ptr::write_bytes(target, 0, length),
                }
                target = target.add(length);
                buffer.add_filled(length);
            }
            (offset, left) = (offset + bytes, left - bytes);
        }
    }

    /// # Errors
    /// [`Error::NoSpace`] if there is no memory for it; a part of it may have been written.
    #[inline]
    pub fn write(&self, offset: u64, payload: &Payload, copying: Copying) -> Result<()> {
        let mut offset = offset;
        for data in payload.slices() {
            let mut rest = &data[..];
            while !rest.is_empty() {
                let left = rest.len() as u64;
                let is_written = self.is_written(offset / PAGE);
                let bytes = match is_written {
                    true => self.run(offset, left).0,
                    // New pages are checked and allocated one by one.
                    false => left.min(PAGE - offset % PAGE),
                };
                let (piece, after) = rest.split_at(bytes as usize);
                if is_written || !is_zero(piece) {
                    self.put(offset, piece, is_written, copying)?;
                }
                (offset, rest) = (offset + bytes, after);
            }
        }
        Ok(())
    }

    /// Copies bytes to pages that all were written, or to a single page that wasn't.
    #[inline]
    fn put(&self, offset: u64, piece: &[u8], is_written: bool, copying: Copying) -> Result<()> {
        if !is_written {
            self.budget.take(PAGE)?;
        }
        let target = self.at(offset, piece.len());
        // SAFETY: the target is inside the mapping and doesn't overlap the data.
        unsafe {
            match copying {
                // A new page is cached, since the kernel has just cleared it.
                Copying::PastCaches if is_written => copy_past_caches(piece.as_ptr(), target, piece.len()),
                _ => std::ptr::copy_nonoverlapping(piece.as_ptr(), target, piece.len()),
            }
        }
        // Also for pages that had their bits: a discard may have cleared them since.
        for page in offset / PAGE..=(offset + piece.len() as u64 - 1) / PAGE {
            match (is_written, self.is_written(page)) {
                (true, true) => {}
                (true, false) => {
                    let added = self.mark(page);
                    self.budget.add(if added { PAGE } else { 0 });
                }
                (false, _) => {
                    let added = self.mark(page);
                    self.budget.give_back(if added { 0 } else { PAGE });
                }
            }
        }
        Ok(())
    }

    /// Sets a page's bit. Returns whether it was clear.
    fn mark(&self, page: u64) -> bool {
        let (word, bit) = self.bit(page);
        word.fetch_or(bit, Ordering::AcqRel) & bit == 0
    }

    /// Zeroes the start of a range and returns the number of bytes zeroed: at most [`DISCARDED_AT_ONCE`] of
    /// allocated memory and [`LOOKS_AT_ONCE`] unallocated chunks per call.
    pub fn discard_some(&self, offset: u64, length: u64) -> u64 {
        let end = offset + length;
        let (mut at, mut looks, mut taken) = (offset, 0, 0);
        while at < end && looks < LOOKS_AT_ONCE && taken < DISCARDED_AT_ONCE {
            taken += if self.may_hold_data(at / CHUNK) { CHUNK } else { 0 };
            looks += 1;
            at = ((at / CHUNK + 1) * CHUNK).min(end);
        }
        if taken > 0 {
            self.discard(offset, at - offset);
        }
        at - offset
    }

    /// Zeroes a range; whole pages are freed.
    pub fn discard(&self, offset: u64, length: u64) {
        let end = offset + length;
        let (first_page, last_page) = (offset.next_multiple_of(PAGE), end - end % PAGE);
        if first_page >= last_page {
            return self.zero_written(offset, length);
        }
        self.zero_written(offset, first_page - offset);
        let given_back = self.clear(first_page / PAGE, last_page / PAGE);
        self.budget.give_back(given_back * PAGE);
        if given_back > 0 {
            let bytes = (last_page - first_page) as usize;
            let pages = self.at(first_page, bytes);
            // SAFETY: whole pages of this private mapping, which read as zeros afterwards.
            let advised = unsafe { libc::madvise(pages.cast(), bytes, libc::MADV_DONTNEED) };
            if advised != 0 {
                // The pages and their bits remain.
                self.fill_with_zeros(first_page, last_page - first_page);
                let stay = (first_page / PAGE..last_page / PAGE).filter(|page| self.mark(*page)).count();
                self.budget.add(stay as u64 * PAGE);
            }
        }
        self.zero_written(last_page, end - last_page);
    }

    /// Clears the bits of these pages. Returns the number of bits that were set.
    fn clear(&self, first: u64, end: u64) -> u64 {
        let width = u64::from(u16::BITS);
        let (mut page, mut cleared) = (first, 0);
        while page < end {
            let next = ((page / width + 1) * width).min(end);
            let bits = (u16::MAX >> (width - (next - page))) << (page % width);
            let word = &self.written[(page / width) as usize];
            if word.load(Ordering::Acquire) & bits != 0 {
                cleared += u64::from((word.fetch_and(!bits, Ordering::AcqRel) & bits).count_ones());
            }
            page = next;
        }
        cleared
    }

    /// Zeroes a range in allocated memory, so that a later write can't fail for lack of it.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if there is no memory for it; a part of it may have been zeroed.
    pub fn zero_and_keep(&self, offset: u64, length: u64) -> Result<()> {
        const ZEROS: [u8; PAGE as usize] = [0; PAGE as usize];
        let end = offset + length;
        let mut at = offset;
        while at < end {
            let bytes = (PAGE - at % PAGE).min(end - at);
            self.put(at, &ZEROS[..bytes as usize], self.is_written(at / PAGE), Copying::Plain)?;
            at += bytes;
        }
        Ok(())
    }

    /// Zeroes the pages that have other bytes.
    fn zero_written(&self, offset: u64, length: u64) {
        let (mut offset, mut left) = (offset, length);
        while left > 0 {
            let (bytes, is_written) = self.run(offset, left);
            if is_written {
                self.fill_with_zeros(offset, bytes);
            }
            (offset, left) = (offset + bytes, left - bytes);
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
        // SAFETY: the mapping belongs to this value, and there are no references to it.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// Whether all bytes are zero. In other data, one of the first bytes usually isn't.
#[inline]
fn is_zero(bytes: &[u8]) -> bool {
    // Each byte is compared with the one before it, by memcmp.
    bytes.split_last().is_none_or(|(_, before)| bytes[0] == 0 && bytes[1..] == *before)
}

#[cfg(test)]
#[path = "memory/tests.rs"]
mod tests;
