//! Memory-mapped files: [`PrivateWords`], whose changes remain in memory, and [`SharedLines`], whose changes
//! go to the file.
//!
//! A store to a private mapping never reaches the file, whenever the kernel writes back. Words that were not
//! stored to are read from the file's own pages (on a DAX file system, from the medium itself). Only stores
//! to the shared mapping change the file. They are durable
//! - where [`SharedLines::is_direct`], after a flush followed by a fence (MAP_SYNC,
//!   Documentation/filesystems/dax.rst of the kernel),
//! - otherwise, after a sync of the file.
//!
//! The file must not be truncated while it is mapped, and the medium must not fail: the kernel then ends the
//! process (SIGBUS). A store to a hole of the file allocates space; the caller has allocated it before.
#![allow(unsafe_code)] // Mappings and cache lines exist only at the kernel's and the processor's border.

use crate::file::File;
use block::{Error, Result};
use std::fmt;
use std::ops::{Deref, Range};
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Cache line of the processor, in bytes: the unit of a flush.
pub const LINE: usize = 64;
/// Page size in which private words are copied on change and forgotten, in bytes.
pub const PAGE: usize = 4096;
/// Smallest step by which a file is extended and words become usable, in bytes.
const STEP: usize = 1 << 20;
/// Smallest length that is tried where address space is short, in bytes.
const FEWEST: usize = 64 << 20;

/// Reserved address space, released when dropped.
struct Addresses {
    start: NonNull<u8>,
    length: usize,
}

impl Addresses {
    /// Maps `most` bytes. If the process can't have that much address space, tries half of that, and so on.
    fn map(most: usize, protection: i32, flags: i32, file: Option<(&OwnedFd, u64)>) -> Result<Self> {
        let page = page_size();
        let mut length = most.max(1).next_multiple_of(page);
        loop {
            let (descriptor, offset) =
                file.map_or((-1, 0), |(file, offset)| (file.as_raw_fd(), offset as i64));
            // SAFETY: asks for addresses wherever the kernel likes.
            let start =
                unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, descriptor, offset) };
            if start != libc::MAP_FAILED
                && let Some(start) = NonNull::new(start.cast::<u8>())
            {
                return Ok(Addresses { start, length });
            }
            let error = std::io::Error::last_os_error();
            match error.raw_os_error() {
                Some(libc::ENOMEM) if length > FEWEST => length = (length / 2).next_multiple_of(page),
                Some(libc::ENOMEM) => {
                    return Err(Error::out_of_memory(format!("mapping {length} bytes of a file: {error}")));
                }
                _ => return Err(Error::from_io(&error, &format!("mapping {length} bytes of a file"))),
            }
        }
    }
}

impl Drop for Addresses {
    fn drop(&mut self) {
        // SAFETY: the mapping belongs to this value, and there are no references to it.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.length) };
    }
}

fn page_size() -> usize {
    rustix::param::page_size()
}

fn check_start(offset: u64) -> Result<()> {
    match offset.is_multiple_of(page_size() as u64) {
        true => Ok(()),
        false => Err(Error::invalid(format!(
            "mapping a file from byte {offset} on: expected a multiple of {}, the size of a page",
            page_size()
        ))),
    }
}

/// Words with the initial contents of a file, whose changes are visible only here. Growing never moves them.
/// Dereferences to the usable words.
pub struct PrivateWords {
    addresses: Addresses,
    usable: AtomicUsize,
    /// The file and the offset of the first word in it; `None` for words that are zero at first.
    file: Option<(OwnedFd, u64)>,
}

// SAFETY: the words are atomic, and the mapping belongs to this value alone until it is dropped.
unsafe impl Send for PrivateWords {}
// SAFETY: as above; `usable` grows only after the kernel has made more words usable.
unsafe impl Sync for PrivateWords {}

impl PrivateWords {
    /// Reserves address space for at most `most` words of a file, starting at byte `offset`, none of them
    /// usable yet; fewer if the process can't have that much.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] without address space; [`Error::Invalid`] for an offset inside of a page;
    /// [`Error::Unsupported`] for a simulated file, or one that can't be mapped.
    pub fn of_file(file: &File, offset: u64, most: usize) -> Result<Self> {
        check_start(offset)?;
        let file = (file.duplicate_descriptor()?, offset);
        let flags = libc::MAP_PRIVATE | libc::MAP_NORESERVE;
        let bytes = most.saturating_mul(size_of::<u32>());
        let addresses = Addresses::map(bytes, libc::PROT_NONE, flags, Some((&file.0, offset)))?;
        Ok(PrivateWords { addresses, usable: AtomicUsize::new(0), file: Some(file) })
    }

    /// As [`of_file`](Self::of_file), without a file: the words are zero.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] without address space.
    pub fn anonymous(most: usize) -> Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let bytes = most.saturating_mul(size_of::<u32>());
        let addresses = Addresses::map(bytes, libc::PROT_NONE, flags, None)?;
        Ok(PrivateWords { addresses, usable: AtomicUsize::new(0), file: None })
    }

    /// Makes at least the first `count` words usable, and extends the file accordingly. Calls of several
    /// threads must not overlap, and the file's length must not be changed elsewhere meanwhile.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] without address space or memory for them; errors of extending the file.
    pub fn grow(&self, count: usize) -> Result<()> {
        let usable = self.usable.load(Ordering::Acquire);
        if count <= usable {
            return Ok(());
        }
        let most = self.addresses.length;
        let wanted = count.saturating_mul(size_of::<u32>());
        if wanted > most {
            let text = format!(
                "{wanted} bytes of a mapped file: expected at most {most}, the reserved address space"
            );
            return Err(Error::out_of_memory(text));
        }
        // Grows by at least half, up to 64 MiB at a time, so that the kernel is called rarely.
        let more = (usable * size_of::<u32>() / 2).min(64 << 20);
        let bytes = wanted.max(usable * size_of::<u32>() + more).next_multiple_of(STEP).min(most);
        if let Some((file, offset)) = &self.file {
            lengthen(file, offset + bytes as u64)?;
        }
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: inside this value's mapping, from its start; usable words keep their contents.
        if unsafe { libc::mprotect(self.addresses.start.as_ptr().cast(), bytes, protection) } != 0 {
            let error = std::io::Error::last_os_error();
            return Err(Error::out_of_memory(format!(
                "growing to {bytes} bytes of a mapped file: {error}; give this process more memory"
            )));
        }
        self.usable.fetch_max(bytes / size_of::<u32>(), Ordering::Release);
        Ok(())
    }

    /// Discards the changes of these words and frees their memory; they read as the contents of the file
    /// again. They must be whole pages ([`PAGE`]) of usable words. Does nothing without a file.
    ///
    /// # Panics
    /// If they aren't usable.
    pub fn forget(&self, words: Range<usize>) {
        assert!(words.start <= words.end && words.end <= self.len(), "{words:?} of {}", self.len());
        let (from, to) = (words.start * size_of::<u32>(), words.end * size_of::<u32>());
        if self.file.is_none() || !from.is_multiple_of(page_size()) || !to.is_multiple_of(page_size()) {
            return;
        }
        // SAFETY: whole pages of this value's mapping. Readers of the atomic words see the old value or the
        // file's.
        unsafe {
            libc::madvise(self.addresses.start.as_ptr().add(from).cast(), to - from, libc::MADV_DONTNEED);
        }
    }

    /// Prefetches a word into the processor's cache. An index out of range is ignored.
    #[inline]
    pub fn prefetch(&self, word: usize) {
        if let Some(word) = self.get(word) {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a prefetch is a hint that affects only the processor's caches.
            unsafe {
                use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
                _mm_prefetch(std::ptr::from_ref(word).cast(), _MM_HINT_T0);
            }
            #[cfg(not(target_arch = "x86_64"))]
            let _ = word;
        }
    }
}

/// Makes a file at least `length` bytes long, by a hole.
fn lengthen(file: &OwnedFd, length: u64) -> Result<()> {
    let doing = |error: rustix::io::Errno| {
        Error::from_io(&error.into(), &format!("making a mapped file {length} bytes long"))
    };
    let status = rustix::fs::fstat(file).map_err(doing)?;
    match u64::try_from(status.st_size).unwrap_or(0) >= length {
        true => Ok(()),
        false => rustix::fs::ftruncate(file, length).map_err(doing),
    }
}

impl Deref for PrivateWords {
    type Target = [AtomicU32];

    #[inline]
    fn deref(&self) -> &[AtomicU32] {
        // SAFETY: `usable` words lie inside the mapping after `start`, which is aligned to a page. They were
        // made readable and writable, and the file was extended, before `usable` grew. All bytes are valid
        // words, and they are accessed only through this slice.
        unsafe {
            std::slice::from_raw_parts(
                self.addresses.start.as_ptr().cast(),
                self.usable.load(Ordering::Acquire),
            )
        }
    }
}

impl fmt::Debug for PrivateWords {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "PrivateWords({} of {})", self.len(), self.addresses.length / size_of::<u32>())
    }
}

/// Instruction that writes back a cache line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flush {
    /// None: the file is synced.
    Not,
    #[cfg(target_arch = "x86_64")]
    Clflush,
    #[cfg(target_arch = "x86_64")]
    Clflushopt,
    #[cfg(target_arch = "x86_64")]
    Clwb,
}

/// Best instruction of this processor (Intel SDM volume 2, CPUID leaf 7).
#[cfg(target_arch = "x86_64")]
fn best_flush() -> Flush {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    if __cpuid(0).eax < 7 {
        return Flush::Clflush;
    }
    match __cpuid_count(7, 0).ebx {
        features if features & 1 << 24 != 0 => Flush::Clwb,
        features if features & 1 << 23 != 0 => Flush::Clflushopt,
        _ => Flush::Clflush,
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn best_flush() -> Flush {
    Flush::Not
}

/// Bytes of a file, as 8-byte words in lines of [`LINE`]. A store may reach the file at any later time, each
/// word atomically.
pub struct SharedLines {
    addresses: Addresses,
    file: OwnedFd,
    /// Lower bound of the file's length, in bytes.
    usable: AtomicU64,
    flush: Flush,
}

// SAFETY: the words are accessed only as atomics, and the mapping belongs to this value alone until it is
// dropped.
unsafe impl Send for SharedLines {}
// SAFETY: as above.
unsafe impl Sync for SharedLines {}

impl SharedLines {
    /// Maps at most `most` bytes of a file, starting at its first; fewer if the process can't have that much
    /// address space.
    ///
    /// # Errors
    /// As [`PrivateWords::of_file`].
    pub fn of_file(file: &File, most: usize) -> Result<Self> {
        let file = file.duplicate_descriptor()?;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let map = |flags| Addresses::map(most, protection, flags, Some((&file, 0)));
        let best = best_flush();
        // Only a file system with direct access accepts MAP_SYNC. Without it, a flush may not cover the
        // file's metadata.
        let direct = match best {
            Flush::Not => None,
            _ => map(libc::MAP_SHARED_VALIDATE | libc::MAP_SYNC).ok(),
        };
        let (addresses, flush) = match direct {
            Some(addresses) => (addresses, best),
            None => (map(libc::MAP_SHARED)?, Flush::Not),
        };
        Ok(SharedLines { addresses, file, usable: AtomicU64::new(0), flush })
    }

    /// Whether [`flush`](Self::flush) and [`fence`](Self::fence) make stores durable, because the mapping is
    /// the medium itself. Otherwise a sync of the file does.
    pub fn is_direct(&self) -> bool {
        self.flush != Flush::Not
    }

    /// Reads the length of the file, so that all its bytes can be used. The file must not become shorter
    /// afterwards.
    ///
    /// # Errors
    /// Errors of fstat(2).
    pub fn reach(&self) -> Result<()> {
        let status = rustix::fs::fstat(&self.file)
            .map_err(|error| Error::from_io(&error.into(), "asking for the length of a mapped file"))?;
        let length = u64::try_from(status.st_size).unwrap_or(0).min(self.addresses.length as u64);
        self.usable.fetch_max(length, Ordering::Release);
        Ok(())
    }

    fn words(&self, offset: u64, count: usize) -> &[AtomicU64] {
        let usable = self.usable.load(Ordering::Acquire);
        let end = offset.saturating_add((count * size_of::<u64>()) as u64);
        assert!(
            offset.is_multiple_of(8) && end <= usable,
            "{count} words at byte {offset} of a file of {usable} bytes"
        );
        // SAFETY: inside the mapping and the file, as checked above, aligned, and all bytes are valid words.
        unsafe {
            std::slice::from_raw_parts(self.addresses.start.as_ptr().add(offset as usize).cast(), count)
        }
    }

    /// Copies words out, starting at byte `offset`, a multiple of 8.
    ///
    /// # Panics
    /// If the range is beyond the known length of the file.
    pub fn load(&self, offset: u64, words: &mut [u64]) {
        let there = self.words(offset, words.len());
        for (word, from) in words.iter_mut().zip(there) {
            *word = from.load(Ordering::Relaxed);
        }
    }

    /// Stores words, starting at byte `offset`, a multiple of 8. The file must have space allocated there.
    ///
    /// # Panics
    /// As [`load`](Self::load).
    pub fn store(&self, offset: u64, words: &[u64]) {
        for (word, to) in words.iter().zip(self.words(offset, words.len())) {
            to.store(*word, Ordering::Relaxed);
        }
    }

    /// Begins the write-back of the cache lines of these bytes; a [`fence`](Self::fence) completes it. Does
    /// nothing unless [`is_direct`](Self::is_direct).
    ///
    /// # Panics
    /// As [`load`](Self::load).
    pub fn flush(&self, offset: u64, length: usize) {
        let first = offset / LINE as u64 * LINE as u64;
        let count = (offset + length as u64 - first).div_ceil(8) as usize;
        for line in self.words(first, count).chunks(LINE / 8) {
            flush_line(self.flush, line.as_ptr().cast());
        }
    }

    /// Waits until the flushed lines have reached the medium.
    pub fn fence(&self) {
        #[cfg(target_arch = "x86_64")]
        if self.is_direct() {
            // SAFETY: every x86-64 processor has the instruction; it orders stores and flushes and changes no
            // memory.
            unsafe { std::arch::x86_64::_mm_sfence() };
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn flush_line(how: Flush, line: *const u8) {
    use std::arch::asm;
    match how {
        Flush::Not => {}
        // SAFETY: writes back a mapped line and leaves the memory unchanged. The same holds for the other
        // instructions; CPUID was checked for each.
        Flush::Clflush => unsafe { std::arch::x86_64::_mm_clflush(line) },
        // SAFETY: see above.
        Flush::Clflushopt => unsafe {
            asm!("clflushopt [{}]", in(reg) line, options(nostack, preserves_flags));
        },
        // SAFETY: see above.
        Flush::Clwb => unsafe { asm!("clwb [{}]", in(reg) line, options(nostack, preserves_flags)) },
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn flush_line(_how: Flush, _line: *const u8) {}

impl fmt::Debug for SharedLines {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "SharedLines({} bytes, {:?})", self.usable.load(Ordering::Relaxed), self.flush)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::OpenOptions;
    use std::path::Path;

    fn with_file(test: impl AsyncFn(File, &Path) + Send + 'static) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mapped");
        crate::run(crate::Config::default(), move || async move {
            let options = OpenOptions { create: true, ..OpenOptions::read_write() };
            let file = File::open(&path, options).await.unwrap();
            test(file, &path).await;
            drop(folder);
        })
        .unwrap();
    }

    #[test]
    fn private_words_begin_with_the_file_and_never_change_it() {
        with_file(async |file, path| {
            let shared = SharedLines::of_file(&file, 1 << 30).unwrap();
            let words = PrivateWords::of_file(&file, 8192, 1 << 28).unwrap();
            assert_eq!(words.len(), 0);
            words.grow(2048).unwrap();
            assert!(words.len() >= 2048);
            file.allocate(0, 16384).await.unwrap();
            shared.reach().unwrap();
            shared.store(8192 + 64, &[7, 8]);
            assert_eq!(words[16].load(Ordering::Relaxed), 7, "what wasn't changed is the file's");
            words[17].store(9, Ordering::Relaxed);
            shared.store(8192 + 64, &[1, 2]);
            assert_eq!(words[16].load(Ordering::Relaxed), 7, "a page that was changed is private");
            let mut there = [0; 2];
            shared.load(8192 + 64, &mut there);
            assert_eq!(there, [1, 2], "a private change is not in the file");
            words.forget(0..1024);
            assert_eq!([16, 17, 18].map(|word| words[word].load(Ordering::Relaxed)), [1, 0, 2]);
            // Growing adds words and lengthens the file; existing words don't move.
            let start = words.as_ptr();
            words.grow(4 << 20).unwrap();
            assert_eq!((words.as_ptr(), words[16].load(Ordering::Relaxed)), (start, 1));
            assert!(std::fs::metadata(path).unwrap().len() >= 16 << 20);
            words[(4 << 20) - 1].store(1, Ordering::Relaxed);
            file.sync_data().await.unwrap();
        });
    }

    #[test]
    fn every_way_to_flush_keeps_what_is_there() {
        let memory: Vec<u64> = (0..64).collect();
        #[cfg(target_arch = "x86_64")]
        {
            let best = best_flush();
            let all = [Flush::Clflush, Flush::Clflushopt, Flush::Clwb];
            let known = all.iter().position(|how| *how == best).unwrap();
            println!("this processor: {best:?}");
            for how in &all[..=known] {
                memory.chunks(8).for_each(|line| flush_line(*how, line.as_ptr().cast()));
            }
        }
        assert!(memory.iter().enumerate().all(|(number, word)| number as u64 == *word));
    }

    #[test]
    #[should_panic(expected = "of a file of 4096 bytes")]
    fn behind_the_end_of_the_file_there_is_nothing() {
        with_file(async |file, _| {
            file.set_len(4096).await.unwrap();
            let shared = SharedLines::of_file(&file, 1 << 20).unwrap();
            shared.reach().unwrap();
            shared.load(4096 - 64, &mut [0; 8]);
            shared.load(4096 - 56, &mut [0; 8]);
        });
    }
}
