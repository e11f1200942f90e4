//! Large zeroed memory for structures that many threads read while some change them.
//!
//! [`ZeroedWords`] promises a fixed number of atomic words, zero at first, that the kernel provides as they are
//! touched; in huge pages (2 MiB, by advice) where there are enough of them for one, so that random reads of
//! gigabytes don't miss the processor's table of pages each time. What the words mean is left to others.
#![allow(unsafe_code)] // Memory that isn't touched, and huge pages, can only be had from the kernel itself.

use crate::error::{Error, Result};
use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;

/// The size of a huge page, in bytes. From this size on [`ZeroedWords`] asks for them.
pub const HUGE_PAGE: usize = 2 << 20;

/// Zeroed words in memory of their own. Dereferences to them.
pub struct ZeroedWords {
    start: NonNull<AtomicU32>,
    count: usize,
    /// What was mapped: where it starts, and bytes.
    mapped: (NonNull<u8>, usize),
}

// SAFETY: the words are atomic, and the mapping belongs to this value alone until it is dropped.
unsafe impl Send for ZeroedWords {}
// SAFETY: as above.
unsafe impl Sync for ZeroedWords {}

impl ZeroedWords {
    /// So many words, all zero. No memory is taken before they are touched.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if the kernel has no room for them; [`Error::Invalid`] for none.
    pub fn new(count: usize) -> Result<Self> {
        if count == 0 || count > isize::MAX as usize / 8 {
            return Err(Error::invalid(format!("memory for {count} words: expected 1 to 2^60")));
        }
        let bytes = count * size_of::<AtomicU32>();
        let huge = bytes >= HUGE_PAGE;
        // Mappings are aligned to small pages: one huge page more gives room to align to huge ones.
        let length = if huge { bytes.next_multiple_of(HUGE_PAGE) + HUGE_PAGE } else { bytes };
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: asks for new pages wherever the kernel likes.
        let mapping = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, -1, 0) };
        let mapping = NonNull::new(mapping.cast::<u8>()).filter(|_| mapping != libc::MAP_FAILED);
        let mapping = mapping.ok_or_else(|| {
            let error = std::io::Error::last_os_error();
            Error::out_of_memory(format!("{bytes} bytes of memory: {error}; give this process more"))
        })?;
        let skipped = if huge { mapping.as_ptr().align_offset(HUGE_PAGE) } else { 0 };
        // SAFETY: for huge pages one more than needed was mapped, and less than one is skipped.
        let start = unsafe { mapping.add(skipped) };
        if huge {
            // SAFETY: whole pages inside our own mapping. It's advice: a kernel without huge pages ignores it.
            unsafe {
                libc::madvise(start.as_ptr().cast(), bytes.next_multiple_of(HUGE_PAGE), libc::MADV_HUGEPAGE)
            };
        }
        Ok(ZeroedWords { start: start.cast(), count, mapped: (mapping, length) })
    }
}

impl Deref for ZeroedWords {
    type Target = [AtomicU32];

    #[inline]
    fn deref(&self) -> &[AtomicU32] {
        // SAFETY: `count` words lie inside the mapping from `start` on, aligned to a page; the kernel's zeros are
        // valid words, and nobody touches them but through this slice.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.count) }
    }
}

impl Drop for ZeroedWords {
    fn drop(&mut self) {
        // SAFETY: our own mapping, and nobody uses it any more.
        unsafe { libc::munmap(self.mapped.0.as_ptr().cast(), self.mapped.1) };
    }
}

impl fmt::Debug for ZeroedWords {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "ZeroedWords({})", self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn words_are_zero_and_stay_apart() {
        for count in [1, 1023, HUGE_PAGE / 4 - 1, HUGE_PAGE / 4, HUGE_PAGE / 2 + 5] {
            let (first, second) = (ZeroedWords::new(count).unwrap(), ZeroedWords::new(count).unwrap());
            assert_eq!(first.len(), count);
            for at in BTreeSet::from([0, count / 2, count - 1]) {
                assert_eq!(first[at].load(Relaxed), 0);
                first[at].store(at as u32 + 1, Relaxed);
            }
            assert!(second.iter().all(|word| word.load(Relaxed) == 0));
            assert_eq!(first[count - 1].load(Relaxed), count as u32);
            if count * 4 >= HUGE_PAGE {
                assert_eq!(first.as_ptr().align_offset(HUGE_PAGE), 0);
            }
        }
    }

    #[test]
    fn what_can_not_be_had_is_an_error() {
        assert!(matches!(ZeroedWords::new(0), Err(Error::Invalid(_))));
        assert!(matches!(ZeroedWords::new(1 << 50), Err(Error::OutOfMemory(_))));
    }
}
