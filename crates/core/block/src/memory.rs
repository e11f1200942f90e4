//! Large zeroed memory for structures that many threads read and some change.
//!
//! [`GrowingWords`] are atomic words, initially zero, that never move when more of them are made usable, so
//! no table is needed to reach them. After the first [`HUGE_PAGE`] bytes they are in huge pages (2 MiB, by
//! advice), so that random reads of gigabytes miss the TLB less often. Memory is allocated when it is first
//! touched. A caller that touches only some of the words requests small pages, and huge pages for the words
//! that have filled up.
#![allow(unsafe_code)] // Address space without memory, and huge pages, can only be had from the kernel itself.

use crate::error::{Error, Result};
use std::fmt;
use std::ops::{Deref, Range};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// Size of a huge page, in bytes.
pub const HUGE_PAGE: usize = 2 << 20;

/// Unit in which memory is returned, in bytes. With larger small pages, the processor's page is the unit.
const SMALL_PAGE: usize = 4096;

/// Smallest amount by which usable memory grows, in bytes; a multiple of every processor's small pages.
const STEP: usize = 64 << 10;

/// Zeroed words that become usable step by step. Dereferences to the usable ones.
pub struct GrowingWords {
    start: NonNull<AtomicU32>,
    usable: AtomicUsize,
    most: usize,
    /// Address space: start and length in bytes.
    reserved: (NonNull<u8>, usize),
}

// SAFETY: the words are atomic, and the mapping belongs to this value alone until it is dropped.
unsafe impl Send for GrowingWords {}
// SAFETY: as above; `usable` grows only after the kernel has made more words usable.
unsafe impl Sync for GrowingWords {}

impl GrowingWords {
    /// Reserves address space for `most` words, none of them usable yet. Allocates no memory.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if the process can't have that much address space; [`Error::Invalid`] for 0
    /// words.
    pub fn reserve(most: usize) -> Result<Self> {
        Self::reserve_in(most, true)
    }

    /// As [`reserve`](Self::reserve), in small pages: only touched pages use memory, until
    /// [`collapse`](Self::collapse) is called. (A kernel whose `transparent_hugepage/enabled` is `always`
    /// still uses huge pages.)
    ///
    /// # Errors
    /// As [`reserve`](Self::reserve).
    pub fn reserve_small(most: usize) -> Result<Self> {
        Self::reserve_in(most, false)
    }

    fn reserve_in(most: usize, in_huge_pages: bool) -> Result<Self> {
        let bytes = most.checked_mul(size_of::<AtomicU32>()).filter(|bytes| (1..=1 << 60).contains(bytes));
        let Some(bytes) = bytes else {
            return Err(Error::invalid(format!("memory for {most} words: expected 1 to 2^58")));
        };
        // Mappings are aligned to small pages: an extra huge page allows alignment to huge pages.
        let length = bytes.next_multiple_of(STEP) + HUGE_PAGE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: asks for new pages at an address of the kernel's choice.
        let mapping = unsafe { libc::mmap(std::ptr::null_mut(), length, libc::PROT_NONE, flags, -1, 0) };
        let reserved = NonNull::new(mapping.cast::<u8>()).filter(|_| mapping != libc::MAP_FAILED);
        let reserved = reserved.ok_or_else(|| failed(bytes, "reserving address space"))?;
        // SAFETY: a huge page more than needed was mapped, and less than one is skipped.
        let start = unsafe { reserved.add(reserved.as_ptr().align_offset(HUGE_PAGE)) };
        let huge = bytes.next_multiple_of(STEP).saturating_sub(HUGE_PAGE);
        if in_huge_pages && huge > 0 {
            // SAFETY: whole pages inside this mapping. It's advice, which a kernel without huge pages
            // ignores.
            unsafe { libc::madvise(start.as_ptr().add(HUGE_PAGE).cast(), huge, libc::MADV_HUGEPAGE) };
        }
        Ok(GrowingWords {
            start: start.cast(),
            usable: AtomicUsize::new(0),
            most,
            reserved: (reserved, length),
        })
    }

    /// Makes at least the first `count` words usable. Calls of several threads must not overlap.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] without address space or memory for them.
    pub fn grow(&self, count: usize) -> Result<()> {
        let usable = self.usable.load(Ordering::Acquire);
        if count <= usable {
            return Ok(());
        }
        if count > self.most {
            let text = format!(
                "memory for {count} words: expected at most {}, the reserved address space",
                self.most
            );
            return Err(Error::out_of_memory(text));
        }
        // Grows by at least half, up to 64 MiB at a time, so that the kernel is called rarely.
        let more = (usable / 2).min(16 << 20);
        let count = count.max(usable + more).next_multiple_of(STEP / size_of::<AtomicU32>()).min(self.most);
        let bytes = count * size_of::<AtomicU32>();
        // SAFETY: inside this mapping, from its aligned start; usable words keep their contents.
        let result =
            unsafe { libc::mprotect(self.start.as_ptr().cast(), bytes, libc::PROT_READ | libc::PROT_WRITE) };
        if result != 0 {
            return Err(failed(bytes, "growing"));
        }
        self.usable.fetch_max(count, Ordering::Release);
        Ok(())
    }

    /// Number of words reserved.
    pub fn most(&self) -> usize {
        self.most
    }

    /// Collapses the whole huge pages inside this range into huge pages, including words that haven't been
    /// touched; some words of each page must have been. Returns whether the kernel did; otherwise the words
    /// are unchanged. Takes at least 0.4 ms per huge page, during which accesses to it wait. (MADV_COLLAPSE,
    /// Linux 6.1.)
    pub fn collapse(&self, words: Range<usize>) -> bool {
        // SAFETY: whole usable pages inside this mapping. They keep their contents, also for concurrent
        // readers.
        self.in_huge_pages(words, |start, bytes| unsafe { libc::madvise(start, bytes, libc::MADV_COLLAPSE) })
    }

    /// Requests huge pages for the whole huge pages inside this range, none of whose words may have been
    /// touched. Returns whether the kernel accepts; it then allocates a huge page at the first access.
    /// (MADV_HUGEPAGE.)
    pub fn expect(&self, words: Range<usize>) -> bool {
        // SAFETY: whole usable pages inside this mapping. It changes the allocation of memory, not its
        // contents.
        self.in_huge_pages(words, |start, bytes| unsafe { libc::madvise(start, bytes, libc::MADV_HUGEPAGE) })
    }

    /// Allocates the memory of the whole huge pages inside this range, if they have none, so that no later
    /// access has to wait for it while it holds a lock. Other threads may use the words at the same time.
    /// (MADV_POPULATE_WRITE, Linux 5.14.)
    pub fn take(&self, words: Range<usize>) {
        // SAFETY: as above; existing contents are kept, and new pages are zero, as if they were touched.
        self.in_huge_pages(words, |start, bytes| unsafe {
            libc::madvise(start, bytes, libc::MADV_POPULATE_WRITE)
        });
    }

    /// Calls `call` with start and length, in bytes, of the whole huge pages inside this range, if there are
    /// any. Returns whether it returned 0.
    fn in_huge_pages(&self, words: Range<usize>, call: impl FnOnce(*mut libc::c_void, usize) -> i32) -> bool {
        let page = HUGE_PAGE / size_of::<AtomicU32>();
        let (first, end) = (words.start.next_multiple_of(page), words.end.min(self.len()) / page * page);
        // Inside the usable words, so it can't wrap.
        first < end
            && call(self.start.as_ptr().wrapping_add(first).cast(), (end - first) * size_of::<AtomicU32>())
                == 0
    }

    /// Frees the memory of the whole small pages inside this range: their words are zero and use no memory
    /// until they are written. If only a part of a huge page is freed, the kernel may keep the rest for some
    /// time.
    pub fn forget(&self, words: Range<usize>) {
        let page = SMALL_PAGE / size_of::<AtomicU32>();
        let (first, end) = (words.start.next_multiple_of(page), words.end.min(self.len()) / page * page);
        if first < end {
            let bytes = (end - first) * size_of::<AtomicU32>();
            // SAFETY: inside this mapping, private and without a file: the effect is that of storing zeros,
            // and the words are atomic.
            unsafe { libc::madvise(self.start.as_ptr().add(first).cast(), bytes, libc::MADV_DONTNEED) };
        }
    }

    /// As [`prefetch`], for the usable words.
    #[inline]
    pub fn prefetch(&self, word: usize) {
        prefetch(self, word);
    }

    /// Upper bound of the memory of the first `count` words once they have been touched, in bytes.
    pub fn bytes_for(count: u64) -> u64 {
        let bytes = count * size_of::<AtomicU32>() as u64;
        if bytes <= HUGE_PAGE as u64 {
            bytes.next_multiple_of(4096)
        } else {
            bytes.next_multiple_of(HUGE_PAGE as u64)
        }
    }
}

/// Prefetches a word into the processor's cache. An index out of range is ignored.
#[inline]
pub fn prefetch(words: &[AtomicU32], word: usize) {
    if let Some(word) = words.get(word) {
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

#[cold]
fn failed(bytes: usize, what: &str) -> Error {
    let error = std::io::Error::last_os_error();
    Error::out_of_memory(format!("{what} for {bytes} bytes of memory: {error}; give this process more"))
}

impl Deref for GrowingWords {
    type Target = [AtomicU32];

    #[inline]
    fn deref(&self) -> &[AtomicU32] {
        // SAFETY: `usable` words are inside the mapping after `start`, which is aligned to a page, and were
        // made readable and writable before `usable` grew. The kernel's zeros are valid words, and they are
        // accessed only through this slice.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.usable.load(Ordering::Acquire)) }
    }
}

impl Drop for GrowingWords {
    fn drop(&mut self) {
        // SAFETY: the mapping belongs to this value, and there are no references to it.
        unsafe { libc::munmap(self.reserved.0.as_ptr().cast(), self.reserved.1) };
    }
}

impl fmt::Debug for GrowingWords {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "GrowingWords({} of {})", self.len(), self.most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn words_are_zero_and_stay_where_they_are() {
        let (words, other) =
            (GrowingWords::reserve(1 << 38).unwrap(), GrowingWords::reserve(3 << 20).unwrap());
        assert_eq!((words.len(), other.len()), (0, 0));
        assert_eq!(words.as_ptr().align_offset(HUGE_PAGE), 0);
        let mut written = BTreeSet::new();
        for count in [1, 1023, 1 << 14, HUGE_PAGE / 4 - 1, HUGE_PAGE / 4 + 1, 3 << 20] {
            words.grow(count).unwrap();
            other.grow(count).unwrap();
            assert!(words.len() >= count && other.len() >= count);
            for at in [0, count / 2, count - 1, words.len() - 1] {
                assert_eq!(words[at].load(Relaxed), if written.insert(at) { 0 } else { at as u32 + 1 });
                words[at].store(at as u32 + 1, Relaxed);
            }
            for at in &written {
                assert_eq!(words[*at].load(Relaxed), *at as u32 + 1);
            }
        }
        assert_eq!(other.len(), 3 << 20);
        assert!(other.iter().all(|word| word.load(Relaxed) == 0));
        words.grow(1).unwrap();
        assert!(words.len() >= 3 << 20);
    }

    #[test]
    fn collapsed_words_hold_what_they_held() {
        let words = GrowingWords::reserve_small(3 << 20).unwrap();
        words.grow((3 << 20) - 1).unwrap();
        let page = HUGE_PAGE / 4;
        for at in (page..3 * page).step_by(page / 16) {
            words[at].store(at as u32, Relaxed);
        }
        assert!(!words.collapse(page + 1..2 * page), "there is no whole huge page in it");
        assert!(!words.collapse(4 * page..5 * page));
        let collapsed = words.collapse(page..3 * page);
        println!("collapsed: {collapsed}");
        for at in page..3 * page {
            let expected = if at.is_multiple_of(page / 16) { at as u32 } else { 0 };
            assert_eq!(words[at].load(Relaxed), expected, "word {at}");
        }
    }

    #[test]
    fn words_that_were_expected_and_taken_are_zero_and_hold_what_was_stored_meanwhile() {
        let words = GrowingWords::reserve_small(3 << 20).unwrap();
        words.grow((3 << 20) - 1).unwrap();
        let page = HUGE_PAGE / 4;
        assert!(!words.expect(page + 1..2 * page), "there is no whole huge page in it");
        let expected = words.expect(page..3 * page);
        println!("expected: {expected}");
        words[page + 7].store(7, Relaxed);
        words.take(page..3 * page);
        for at in page..3 * page {
            assert_eq!(words[at].load(Relaxed), if at == page + 7 { 7 } else { 0 }, "word {at}");
        }
        words.forget(page..2 * page);
        assert_eq!(words[page + 7].load(Relaxed), 0);
    }

    #[test]
    fn forgotten_words_are_zero_and_others_are_not() {
        let words = GrowingWords::reserve_small(1 << 20).unwrap();
        words.grow(1 << 20).unwrap();
        words.iter().for_each(|word| word.store(7, Relaxed));
        words.forget(1000..3100);
        words.forget(1 << 19..usize::MAX);
        for (at, word) in words.iter().enumerate() {
            let is_forgotten = (1024..3072).contains(&at) || at >= 1 << 19;
            assert_eq!(word.load(Relaxed), if is_forgotten { 0 } else { 7 }, "word {at}");
        }
    }

    #[test]
    fn what_can_not_be_had_is_an_error() {
        assert!(matches!(GrowingWords::reserve(0), Err(Error::Invalid(_))));
        assert!(matches!(GrowingWords::reserve(1 << 50), Err(Error::OutOfMemory(_))));
        let words = GrowingWords::reserve(5000).unwrap();
        words.grow(5000).unwrap();
        assert!(matches!(words.grow(5001), Err(Error::OutOfMemory(_))));
    }
}
