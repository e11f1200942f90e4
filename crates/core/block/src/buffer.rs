//! I/O buffers, passed by ownership.
//!
//! - [`Buffer`]: unique, for filling; a read takes it and returns it. Only bytes that were written to it
//!   since it was taken from the pool can be read, never those of an earlier user.
//! - [`Data`]: frozen and reference-counted; a slice of a former buffer. A mirror and a promotion share it.
//! - [`Payload`]: input of a write: slices in order, up to [`INLINE_SLICES`] of them without an allocation.
//!
//! Memory comes from the [`pool`] of the thread, aligned to [`ALIGNMENT`], and is returned there by the
//! thread that drops it last. This module bounds neither the size of a buffer (the caller does) nor
//! outstanding memory (the bounded queues do).
#![allow(unsafe_code)] // The kernel writes into these bytes; each use states who may access them, and when.

pub mod pool;

use crate::error::{Error, Result};
use pool::Block;
use smallvec::SmallVec;
use std::cell::RefCell;
use std::fmt;
use std::ops::{Deref, Range};
use std::ptr::NonNull;

/// Alignment of every buffer in memory, in bytes: enough for O_DIRECT on any device.
pub const ALIGNMENT: usize = 4096;

/// Largest number of slices that a [`Payload`] holds without an allocation.
pub const INLINE_SLICES: usize = 4;

/// Bytes that are being filled, with one owner.
///
/// `len` is the number of bytes to fill, `filled` the bytes filled so far, from the start. After a split each
/// piece owns its own bytes, and the pieces share the memory.
pub struct Buffer {
    block: NonNull<Block>,
    offset: u32,
    length: u32,
    filled: u32,
}

// SAFETY: a Buffer has exclusive access to its bytes, and a block's count is atomic.
unsafe impl Send for Buffer {}

impl Buffer {
    /// Returns an empty buffer for `length` bytes, aligned to [`ALIGNMENT`].
    ///
    /// # Panics
    /// If `length` is above 2 GiB: lengths from outside must be checked against a limit earlier.
    #[inline]
    pub fn new(length: usize) -> Self {
        assert!(length <= 1 << 31, "buffer of {length} bytes: expected at most 2 GiB");
        Buffer { block: pool::take(length), offset: 0, length: length as u32, filled: 0 }
    }

    /// Returns a buffer with a copy of these bytes.
    pub fn copy_of(bytes: &[u8]) -> Self {
        let mut buffer = Buffer::new(bytes.len());
        buffer.append(bytes);
        buffer
    }

    /// Returns a buffer filled with zeros.
    pub fn zeroed(length: usize) -> Self {
        let mut buffer = Buffer::new(length);
        buffer.append_zeroes(length);
        buffer
    }

    /// Number of bytes to fill.
    #[inline]
    pub fn len(&self) -> usize {
        self.length as usize
    }

    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Number of bytes not filled yet.
    #[inline]
    pub fn missing(&self) -> usize {
        (self.length - self.filled) as usize
    }

    /// Bytes filled so far.
    #[inline]
    pub fn filled(&self) -> &[u8] {
        // SAFETY: these bytes were written since the buffer was taken, and only this buffer may access them.
        unsafe { std::slice::from_raw_parts(self.address(), self.filled as usize) }
    }

    /// Bytes filled so far, mutable.
    #[inline]
    pub fn filled_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `filled`, with an exclusive borrow.
        unsafe { std::slice::from_raw_parts_mut(self.address(), self.filled as usize) }
    }

    /// Appends bytes to those filled so far.
    ///
    /// # Panics
    /// If there are more of them than are [missing](Self::missing).
    pub fn append(&mut self, bytes: &[u8]) {
        assert!(
            bytes.len() <= self.missing(),
            "appending {} bytes: expected at most {}",
            bytes.len(),
            self.missing()
        );
        // SAFETY: the memory after `filled` belongs to this buffer and is large enough.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.spare_address(), bytes.len()) }
        self.filled += bytes.len() as u32;
    }

    /// Appends zeros to the bytes filled so far.
    ///
    /// # Panics
    /// If there are more of them than are [missing](Self::missing).
    pub fn append_zeroes(&mut self, count: usize) {
        assert!(count <= self.missing(), "appending {count} zeros: expected at most {}", self.missing());
        // SAFETY: as in `append`.
        unsafe { std::ptr::write_bytes(self.spare_address(), 0, count) }
        self.filled += count as u32;
    }

    /// Empties the buffer and keeps its length.
    #[inline]
    pub fn clear(&mut self) {
        self.filled = 0;
    }

    /// Keeps the first `count` filled bytes and drops the rest.
    pub fn truncate_filled(&mut self, count: usize) {
        self.filled = self.filled.min(count as u32);
    }

    /// Reduces the number of bytes to fill to `length`.
    ///
    /// # Panics
    /// If `length` is above the current length.
    pub fn shorten(&mut self, length: usize) {
        assert!(length <= self.len(), "shortening {} bytes to {length}", self.length);
        self.length = length as u32;
        self.filled = self.filled.min(self.length);
    }

    /// Address of the first byte, for the kernel.
    #[inline]
    pub fn address(&self) -> *mut u8 {
        // SAFETY: the offset is inside the block's memory.
        unsafe { Block::memory(self.block).add(self.offset as usize) }
    }

    /// Address of the first byte not filled yet, for the kernel.
    #[inline]
    pub fn spare_address(&self) -> *mut u8 {
        // SAFETY: `filled` is at most `length`, which is inside the block's memory.
        unsafe { self.address().add(self.filled as usize) }
    }

    /// Marks the next `count` bytes as filled.
    ///
    /// # Safety
    /// The next `count` bytes were written, by the kernel or through [`spare_address`](Self::spare_address).
    #[inline]
    pub unsafe fn add_filled(&mut self, count: usize) {
        assert!(
            count <= self.missing(),
            "marking {count} bytes as filled: expected at most {}",
            self.missing()
        );
        self.filled += count as u32;
    }

    /// Whether the memory is part of the region that this thread's pool has registered with its ring.
    #[inline]
    pub fn is_registered_here(&self) -> bool {
        Block::is_registered_here(self.block)
    }

    /// Splits the buffer: this one keeps the first `at` bytes, the returned one gets the rest. Each is filled
    /// independently; [`join`](Self::join) reverses the split.
    ///
    /// # Panics
    /// If `at` is more than the length.
    pub fn split_off(&mut self, at: usize) -> Buffer {
        assert!(at <= self.len(), "splitting {} bytes at {at}", self.length);
        let at = at as u32;
        Block::add_reference(self.block);
        let rest = Buffer {
            block: self.block,
            offset: self.offset + at,
            length: self.length - at,
            filled: self.filled.saturating_sub(at),
        };
        self.length = at;
        self.filled = self.filled.min(at);
        rest
    }

    /// Reverses [`split_off`](Self::split_off). If this piece isn't full, the filled bytes of the other one
    /// are dropped.
    ///
    /// # Panics
    /// If the two aren't adjacent in one piece of memory.
    pub fn join(&mut self, rest: Buffer) {
        let adjacent = self.block == rest.block && self.offset + self.length == rest.offset;
        assert!(adjacent, "joining two buffers that aren't adjacent in memory");
        if self.missing() == 0 {
            self.filled += rest.filled;
        }
        self.length += rest.length;
    }

    /// Converts the filled bytes to immutable, shareable data.
    #[inline]
    pub fn freeze(self) -> Data {
        let this = std::mem::ManuallyDrop::new(self);
        Data { block: this.block, offset: this.offset, length: this.filled }
    }
}

impl Drop for Buffer {
    #[inline]
    fn drop(&mut self) {
        Block::release(self.block);
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Buffer({} of {} bytes)", self.filled, self.length)
    }
}

/// Slice of frozen, reference-counted bytes.
pub struct Data {
    block: NonNull<Block>,
    offset: u32,
    length: u32,
}

// SAFETY: the bytes of a Data don't change while it lives, and the block's count is atomic.
unsafe impl Send for Data {}
// SAFETY: as above.
unsafe impl Sync for Data {}

impl Data {
    /// Returns data with a copy of these bytes.
    pub fn copy_of(bytes: &[u8]) -> Self {
        Buffer::copy_of(bytes).freeze()
    }

    /// Returns a part of these bytes, which shares the memory.
    ///
    /// # Panics
    /// If the range isn't inside the data.
    #[inline]
    pub fn slice(&self, range: Range<usize>) -> Data {
        let inside = range.start <= range.end && range.end <= self.len();
        assert!(inside, "slice {}..{} of {} bytes", range.start, range.end, self.length);
        Block::add_reference(self.block);
        Data {
            block: self.block,
            offset: self.offset + range.start as u32,
            length: (range.end - range.start) as u32,
        }
    }

    /// Whether the memory is part of the region that this thread's pool has registered with its ring.
    #[inline]
    pub fn is_registered_here(&self) -> bool {
        Block::is_registered_here(self.block)
    }
}

impl Deref for Data {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the bytes were filled before they were frozen, and don't change while the data lives.
        unsafe {
            let start = Block::memory(self.block).add(self.offset as usize);
            std::slice::from_raw_parts(start, self.length as usize)
        }
    }
}

impl Clone for Data {
    #[inline]
    fn clone(&self) -> Self {
        self.slice(0..self.len())
    }
}

impl Drop for Data {
    #[inline]
    fn drop(&mut self) {
        Block::release(self.block);
    }
}

impl fmt::Debug for Data {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Data({} bytes)", self.length)
    }
}

impl PartialEq for Data {
    fn eq(&self, other: &Data) -> bool {
        **self == **other
    }
}

impl Eq for Data {}

/// Input of a write: slices of frozen bytes that are written one after the other.
#[derive(Clone, Debug, Default)]
pub struct Payload {
    slices: SmallVec<[Data; INLINE_SLICES]>,
    length: usize,
}

impl Payload {
    /// Returns an empty payload.
    pub fn new() -> Self {
        Payload::default()
    }

    /// Returns an empty payload with capacity for `slices` slices. Reuses memory of a payload that was
    /// dropped on this thread.
    pub fn with_capacity(slices: usize) -> Self {
        if slices <= INLINE_SLICES {
            return Payload::default();
        }
        let mut list = LISTS.try_with(|lists| lists.borrow_mut().pop()).ok().flatten().unwrap_or_default();
        list.reserve(slices);
        Payload { slices: SmallVec::from_vec(list), length: 0 }
    }

    /// Appends a slice; ignores an empty one.
    pub fn push(&mut self, data: Data) {
        if !data.is_empty() {
            self.length += data.len();
            self.slices.push(data);
        }
    }

    /// Drops the slices and keeps the capacity.
    pub fn clear(&mut self) {
        self.slices.clear();
        self.length = 0;
    }

    /// Number of bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether the payload has no bytes.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The slices, in order, none of them empty.
    #[inline]
    pub fn slices(&self) -> &[Data] {
        &self.slices
    }

    /// Returns a part of the bytes, which shares the memory.
    ///
    /// # Panics
    /// If the range isn't inside the payload.
    pub fn slice(&self, range: Range<usize>) -> Payload {
        let inside = range.start <= range.end && range.end <= self.length;
        assert!(inside, "slice {}..{} of {} bytes", range.start, range.end, self.length);
        let mut part = Payload::new();
        let mut begin = 0;
        for data in &self.slices {
            let end = begin + data.len();
            if range.start < end && begin < range.end {
                part.push(data.slice(range.start.max(begin) - begin..range.end.min(end) - begin));
            }
            begin = end;
        }
        part
    }

    /// Returns the bytes in one piece: shared if there is one slice, copied if there are more.
    pub fn to_data(&self) -> Data {
        if let [one] = self.slices.as_slice() {
            return one.clone();
        }
        let mut buffer = Buffer::new(self.length);
        self.slices.iter().for_each(|slice| buffer.append(slice));
        buffer.freeze()
    }

    /// Copies all bytes to `target`.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the lengths differ.
    pub fn copy_to(&self, target: &mut [u8]) -> Result<()> {
        if target.len() != self.length {
            return Err(Error::invalid(format!(
                "payload of {} bytes: expected {}, the length of the target",
                self.length,
                target.len()
            )));
        }
        let mut rest = target;
        for data in &self.slices {
            let (here, after) = rest.split_at_mut(data.len());
            here.copy_from_slice(data);
            rest = after;
        }
        Ok(())
    }
}

thread_local! {
    /// Empty lists of slices, kept for reuse.
    static LISTS: RefCell<Vec<Vec<Data>>> = const { RefCell::new(Vec::new()) };
}

/// Most lists of slices that a thread keeps.
const MAX_LISTS: usize = 8;
/// Most slices for which a list is kept.
const MAX_SLICES: usize = 1024;

impl Drop for Payload {
    #[inline]
    fn drop(&mut self) {
        if self.slices.spilled() {
            keep_list(std::mem::take(&mut self.slices));
        }
    }
}

fn keep_list(slices: SmallVec<[Data; INLINE_SLICES]>) {
    let mut list = slices.into_vec();
    list.clear();
    if list.capacity() > MAX_SLICES {
        return;
    }
    // A thread that is ending keeps none.
    let _ = LISTS.try_with(|lists| {
        let mut lists = lists.borrow_mut();
        if lists.len() < MAX_LISTS {
            lists.push(list);
        }
    });
}

impl From<Data> for Payload {
    #[inline]
    fn from(data: Data) -> Self {
        let mut payload = Payload::new();
        payload.push(data);
        payload
    }
}

impl From<Buffer> for Payload {
    #[inline]
    fn from(buffer: Buffer) -> Self {
        buffer.freeze().into()
    }
}

impl FromIterator<Data> for Payload {
    fn from_iter<I: IntoIterator<Item = Data>>(slices: I) -> Self {
        let mut payload = Payload::new();
        slices.into_iter().for_each(|data| payload.push(data));
        payload
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn memory_is_aligned_and_old_bytes_are_never_shown() {
        for length in [1, 512, 4096, 5000, 1 << 20, 3 << 20] {
            let mut buffer = Buffer::copy_of(&vec![0xAA; length]);
            assert_eq!(buffer.address() as usize % ALIGNMENT, 0);
            assert_eq!(buffer.filled().len(), length);
            buffer.clear();
            assert!(buffer.filled().is_empty());
            drop(buffer);
            assert!(Buffer::new(length).filled().is_empty());
        }
    }

    #[test]
    fn memory_comes_back_from_another_thread() {
        let buffer = Buffer::new(4096);
        let address = buffer.address() as usize;
        // Keeps the local list empty, so that the next buffer must come from the other thread's returned
        // ones.
        let thread = std::thread::Builder::new().spawn(move || drop(buffer)).expect("a thread starts");
        thread.join().expect("the thread ends");
        let again: Vec<Buffer> = (0..64).map(|_| Buffer::new(4096)).collect();
        assert!(again.iter().any(|buffer| buffer.address() as usize == address));
    }

    #[test]
    fn data_outlives_the_thread_it_came_from() {
        let thread = std::thread::Builder::new().spawn(|| Data::copy_of(b"abc")).expect("a thread starts");
        let data = thread.join().expect("the thread ends");
        assert_eq!(&*data, b"abc");
    }

    #[test]
    fn split_pieces_fill_on_their_own() {
        let mut first = Buffer::new(8);
        let mut second = first.split_off(5);
        second.append(b"xyz");
        first.append(b"abcde");
        first.join(second);
        assert_eq!(first.filled(), b"abcdexyz");
        let mut second = first.split_off(5);
        first.truncate_filled(2);
        second.append(b"");
        first.join(second);
        assert_eq!(first.filled(), b"ab");
        assert_eq!(first.missing(), 6);
    }

    proptest! {
        #[test]
        fn a_payload_slices_like_its_bytes(
            pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 0..8),
            cut in any::<(u8, u8)>(),
        ) {
            let whole: Vec<u8> = pieces.concat();
            let payload: Payload = pieces.iter().map(|piece| Data::copy_of(piece)).collect();
            prop_assert_eq!(&*payload.to_data(), whole.as_slice());
            let (a, b) = (cut.0 as usize % (whole.len() + 1), cut.1 as usize % (whole.len() + 1));
            let range = a.min(b)..a.max(b);
            let part = payload.slice(range.clone());
            let mut copy = vec![0; part.len()];
            part.copy_to(&mut copy).expect("lengths agree");
            prop_assert_eq!(copy.as_slice(), &whole[range]);
        }
    }
}
