//! Locked memory, which the kernel never pages out, for a process that the kernel waits for.
//!
//! [`lock`] loads all memory at once, including later mappings. A part whose mapping may be far larger than
//! its use excludes it with [`map_on_fault`]: pages are then locked at their first use. [`LockedBox`] keeps
//! one value, such as a key, on locked pages of its own.
#![allow(unsafe_code)] // mmap, mlock, mlock2, mprotect, madvise, getrandom; values on pages of their own.

use std::fmt;
use std::io::{Error, Result};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};

static IS_LOCKED: AtomicBool = AtomicBool::new(false);

/// Loads and locks the current and all future memory of this process. Children don't inherit it.
///
/// # Errors
/// Errors of mlockall(2): it needs CAP_IPC_LOCK, or a sufficient limit of locked memory (RLIMIT_MEMLOCK).
pub fn lock() -> Result<()> {
    // SAFETY: no memory is passed.
    match unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE) } {
        0 => {
            IS_LOCKED.store(true, Ordering::Relaxed);
            Ok(())
        }
        _ => Err(Error::last_os_error()),
    }
}

/// Whether [`lock`] has locked the memory of this process.
pub fn is_locked() -> bool {
    IS_LOCKED.load(Ordering::Relaxed)
}

/// Maps `length` bytes of private zeroed memory, which takes pages only at their first use, also where memory
/// is [locked](lock).
///
/// # Errors
/// Errors of mmap(2), mlock2(2) and mprotect(2).
pub fn map_on_fault(length: usize) -> Result<NonNull<u8>> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // Without access the kernel has nothing to load.
    // SAFETY: asks for new pages wherever the kernel likes.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), length, libc::PROT_NONE, flags, -1, 0) };
    let Some(pages) = NonNull::new(start.cast::<u8>()).filter(|_| start != libc::MAP_FAILED) else {
        return Err(Error::last_os_error());
    };
    // SAFETY: the mapping was created above.
    let is_ready = unsafe {
        (!is_locked() || libc::mlock2(start, length, libc::MLOCK_ONFAULT as _) == 0)
            && libc::mprotect(start, length, libc::PROT_READ | libc::PROT_WRITE) == 0
    };
    if !is_ready {
        let error = Error::last_os_error();
        // SAFETY: the mapping was created above, and its address isn't used elsewhere.
        unsafe { libc::munmap(start, length) };
        return Err(error);
    }
    Ok(pages)
}

/// Fills the bytes with random ones from the kernel, good enough for keys (getrandom(2)).
pub(crate) fn fill_random(bytes: &mut [u8]) {
    for some in bytes.chunks_mut(256) {
        // SAFETY: these bytes are written. A call for at most 256 bytes is neither interrupted nor short.
        let filled = unsafe { libc::getrandom(some.as_mut_ptr().cast(), some.len(), 0) };
        assert!(filled == some.len() as isize, "getrandom gave {filled} of {} bytes", some.len());
    }
}

/// A value on pages of its own, for secrets. The kernel doesn't page them out, leaves them out of core dumps,
/// and gives children zeros instead of them. They are overwritten with zeros when the box is dropped.
///
/// A value that is moved into the box may leave a copy where it was: a secret is best written in place,
/// through [`DerefMut`]. `Debug` doesn't show it.
pub struct LockedBox<T> {
    value: NonNull<T>,
}

// SAFETY: the box owns its value as a `Box` does.
unsafe impl<T: Send> Send for LockedBox<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for LockedBox<T> {}

impl<T> LockedBox<T> {
    /// Bytes of the mapping: whole pages, at least one.
    fn length() -> usize {
        size_of::<T>().max(1).next_multiple_of(rustix::param::page_size())
    }

    /// Moves a value to pages of its own.
    ///
    /// # Errors
    /// Errors of mmap(2), mlock(2) and madvise(2): locking needs CAP_IPC_LOCK, or a sufficient limit
    /// of locked memory (RLIMIT_MEMLOCK).
    pub fn new(value: T) -> Result<LockedBox<T>> {
        const { assert!(align_of::<T>() <= 4096, "a page is aligned enough") };
        let (length, protection) = (Self::length(), libc::PROT_READ | libc::PROT_WRITE);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: asks for new pages wherever the kernel likes.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, -1, 0) };
        let Some(pages) = NonNull::new(start.cast::<T>()).filter(|_| start != libc::MAP_FAILED) else {
            return Err(Error::last_os_error());
        };
        // SAFETY: the mapping was created above.
        let is_locked = unsafe {
            libc::mlock(start, length) == 0
                && libc::madvise(start, length, libc::MADV_DONTDUMP) == 0
                && libc::madvise(start, length, libc::MADV_WIPEONFORK) == 0
        };
        if !is_locked {
            let error = Error::last_os_error();
            // SAFETY: the mapping was created above, and its address isn't used elsewhere.
            unsafe { libc::munmap(start, length) };
            return Err(error);
        }
        // SAFETY: the pages are writable, large and aligned enough, and nothing else refers to them.
        unsafe { pages.as_ptr().write(value) };
        Ok(LockedBox { value: pages })
    }
}

impl<T> Deref for LockedBox<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the value lives until the box is dropped.
        unsafe { self.value.as_ref() }
    }
}

impl<T> DerefMut for LockedBox<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`, with an exclusive borrow.
        unsafe { self.value.as_mut() }
    }
}

impl<T> Drop for LockedBox<T> {
    fn drop(&mut self) {
        let start = self.value.as_ptr();
        // SAFETY: the value isn't used afterwards, and the pages belong to this box alone. Volatile stores
        // aren't removed because of the unmapping.
        unsafe {
            start.drop_in_place();
            let words = start.cast::<u64>();
            (0..Self::length() / 8).for_each(|word| words.add(word).write_volatile(0));
            libc::munmap(start.cast(), Self::length());
        }
    }
}

impl<T> fmt::Debug for LockedBox<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("LockedBox")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::rc::Rc;

    /// Kilobytes of the mapping at this address that are locked, and its flags (proc(5), `smaps`).
    fn mapping_of(address: usize) -> (String, String) {
        let maps = std::fs::read_to_string("/proc/self/smaps").expect("the kernel lists mappings");
        let mut lines = maps.lines().skip_while(|line| {
            let range = line.split(' ').next().and_then(|range| range.split_once('-'));
            let ends = range.map(|(from, to)| [from, to].map(|end| usize::from_str_radix(end, 16)));
            !matches!(ends, Some([Ok(from), Ok(to)]) if (from..to).contains(&address))
        });
        let mut field =
            |name: &str| lines.find_map(|line| line.strip_prefix(name)).expect("a field").to_owned();
        (field("Locked:"), field("VmFlags:"))
    }

    #[test]
    fn a_secret_is_on_locked_pages_that_arent_dumped() {
        let mut secret = LockedBox::new([0_u8; 5000]).expect("two pages can be locked");
        secret[4999] = 7;
        let (locked, flags) = mapping_of(secret.as_ptr() as usize);
        assert_eq!(locked.split_whitespace().next(), Some("8"), "{locked}");
        for flag in ["lo", "dd", "wf"] {
            assert!(flags.split_whitespace().any(|it| it == flag), "{flag} in {flags}");
        }
        assert_eq!((secret[0], secret[4999]), (0, 7));
        assert_eq!(format!("{secret:?}"), "LockedBox");
    }

    #[test]
    fn the_value_is_dropped_with_the_box() {
        struct Count(Rc<Cell<u32>>);
        impl Drop for Count {
            fn drop(&mut self) {
                self.0.set(self.0.get() + 1);
            }
        }
        let drops = Rc::new(Cell::new(0));
        drop(LockedBox::new(Count(drops.clone())).expect("a page can be locked"));
        assert_eq!(drops.get(), 1);
    }
}
