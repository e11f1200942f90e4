//! Memory that another process shares through a descriptor, such as the memory of a virtual machine.
//!
//! # Promises
//! - The other process may change any byte at any time. So there are no references to these bytes: they are
//!   copied in and out, or are atomics. A copy of bytes that change meanwhile is any mixture of old and new
//!   ones.
//! - The other process may truncate the file, and an access beyond its end raises SIGBUS. The signal's
//!   handler replaces the whole mapping by private zeroed memory, and [`SharedMemory::is_intact`] returns
//!   false afterwards. A caller checks it after a copy and before it uses the bytes.
//!
//! The caller has checked the offsets; one out of range is a panic.
#![allow(unsafe_code)] // Mappings, and the handler of a signal.

use block::{Buffer, Error, Result};
use rustix::fs::{MemfdFlags, SealFlags};
use std::fmt;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Largest number of mappings of a process at a time.
pub const MAX_MAPPINGS: usize = 1024;

/// A mapping as the signal handler reads it.
struct Guarded {
    /// Address of the first byte; 0 for a free entry.
    start: AtomicUsize,
    length: AtomicUsize,
    replaced: AtomicBool,
}

static GUARDED: [Guarded; MAX_MAPPINGS] = [const {
    Guarded { start: AtomicUsize::new(0), length: AtomicUsize::new(0), replaced: AtomicBool::new(false) }
}; MAX_MAPPINGS];

/// Held while an entry of [`GUARDED`] is taken.
static TAKING: Mutex<()> = Mutex::new(());

/// Action for SIGBUS before the handler of this module.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// Installs the handler, once per process.
fn install_handler() {
    let _taking = TAKING.lock().unwrap_or_else(PoisonError::into_inner);
    if BEFORE.get().is_some() {
        return;
    }
    // SAFETY: an action of zeros is a valid one; the kernel only writes to it.
    let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: the signal exists, and the pointers are valid or null. The previous action is known before this
    // handler can run.
    unsafe { libc::sigaction(libc::SIGBUS, std::ptr::null(), &mut before) };
    let _ = BEFORE.set(before);
    // SAFETY: as above.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_bus_error as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: `on_bus_error` is a handler of this form, and calls only what a handler may call.
    unsafe { libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut()) };
}

extern "C" fn on_bus_error(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid description, which has an address for SIGBUS.
    let address = unsafe { (*info).si_addr() } as usize;
    for guarded in &GUARDED {
        let (start, length) = (guarded.start.load(Ordering::Acquire), guarded.length.load(Ordering::Acquire));
        if start == 0 || !(start..start + length).contains(&address) {
            continue;
        }
        // Set before the mapping is replaced: a copy that returns zeros is followed by a check of this flag.
        guarded.replaced.store(true, Ordering::SeqCst);
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
        // SAFETY: exactly the range of a mapping of this module, which is in use (it has just been accessed)
        // and so isn't unmapped meanwhile; accesses to it are by raw pointers and atomics. mmap(2) is a plain
        // system call.
        let there = unsafe { libc::mmap(start as *mut _, length, protection, flags, -1, 0) };
        if there != libc::MAP_FAILED {
            return;
        }
    }
    let Some(before) = BEFORE.get() else { return };
    match before.sa_sigaction {
        // SAFETY: the default action is restored. The instruction fails again after the handler returns,
        // which ends the process.
        libc::SIG_DFL | libc::SIG_IGN => unsafe {
            libc::signal(libc::SIGBUS, libc::SIG_DFL);
        },
        handler if before.sa_flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: the flag says that it is a handler of this form.
            let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
                unsafe { std::mem::transmute(handler) };
            handler(signal, info, context);
        }
        handler => {
            // SAFETY: without the flag it is a handler of this form.
            let handler: extern "C" fn(libc::c_int) = unsafe { std::mem::transmute(handler) };
            handler(signal);
        }
    }
}

/// Whether a descriptor of another process is memory: of tmpfs or hugetlbfs, as memfd_create(2) returns it.
/// Only such files have seals (fcntl(2), F_GET_SEALS), used or not, so no file system, which could block, is
/// involved.
pub fn is_memory(descriptor: &OwnedFd) -> bool {
    rustix::fs::fcntl_get_seals(descriptor).is_ok()
}

/// A mapping of a shared file.
pub struct SharedMemory {
    start: NonNull<u8>,
    length: usize,
    /// Mapped bytes before `start`.
    before: usize,
    /// Entry of [`GUARDED`].
    guarded: usize,
}

// SAFETY: the bytes are only accessed by copies through raw pointers and by atomics, from any thread.
unsafe impl Send for SharedMemory {}
// SAFETY: as above.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// Maps `length` bytes of a file, starting at byte `offset`.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a range that is empty or ends after the file; [`Error::Busy`] at
    /// [`MAX_MAPPINGS`]; errors of the kernel.
    pub fn map(descriptor: &OwnedFd, offset: u64, length: u64) -> Result<SharedMemory> {
        let status = rustix::fs::fstat(descriptor)
            .map_err(|error| Error::from_io(&error.into(), "looking at shared memory"))?;
        let file_length = u64::try_from(status.st_size).unwrap_or(0);
        if length == 0 || offset.checked_add(length).is_none_or(|end| end > file_length) {
            return Err(Error::invalid(format!(
                "shared memory: {length} bytes from byte {offset} on of a file of {file_length} bytes; expected a range in the \
                 file"
            )));
        }
        // Huge pages (hugetlbfs) are mapped whole; their size is the file's block size.
        let block = usize::try_from(status.st_blksize).unwrap_or(0);
        let page = rustix::param::page_size();
        let unit = if block.is_power_of_two() { block.max(page) } else { page };
        let before = (offset % unit as u64) as usize;
        let too_large = || Error::out_of_memory(format!("mapping {length} bytes of shared memory"));
        let length = usize::try_from(length).map_err(|_| too_large())?;
        let mapped = (before + length).checked_next_multiple_of(unit).ok_or_else(too_large)?;
        install_handler();
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
        let from = (offset - before as u64) as libc::off_t;
        // SAFETY: asks for addresses wherever the kernel likes.
        let start = unsafe {
            libc::mmap(std::ptr::null_mut(), mapped, protection, flags, descriptor.as_raw_fd(), from)
        };
        let start = match NonNull::new(start.cast::<u8>()) {
            Some(start) if start.as_ptr().cast() != libc::MAP_FAILED => start,
            _ => {
                let error = std::io::Error::last_os_error();
                return Err(Error::from_io(&error, "mapping shared memory"));
            }
        };
        let Some(guarded) = guard(start.as_ptr() as usize, mapped) else {
            // SAFETY: just mapped; there are no references to it.
            unsafe { libc::munmap(start.as_ptr().cast(), mapped) };
            return Err(Error::busy(format!(
                "shared memory: {MAX_MAPPINGS} mappings of this process; expected fewer"
            )));
        };
        // SAFETY: `before` is less than the mapped length.
        let start = unsafe { start.add(before) };
        Ok(SharedMemory { start, length, before, guarded })
    }

    /// Creates zeroed memory to share, and returns it with its descriptor. Its size can't be changed.
    ///
    /// # Errors
    /// Errors of memfd_create(2), ftruncate(2) and mmap(2).
    pub fn create(name: &str, length: u64) -> Result<(SharedMemory, OwnedFd)> {
        let failed = |error: rustix::io::Errno| Error::from_io(&error.into(), "creating shared memory");
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let descriptor = rustix::fs::memfd_create(name, flags).map_err(failed)?;
        rustix::fs::ftruncate(&descriptor, length).map_err(failed)?;
        let seals = SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&descriptor, seals).map_err(failed)?;
        Ok((SharedMemory::map(&descriptor, 0, length)?, descriptor))
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Always false: a mapping has at least one byte.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Whether every access so far was to the shared file: false once the other process has truncated it too
    /// far.
    #[inline]
    pub fn is_intact(&self) -> bool {
        !GUARDED[self.guarded].replaced.load(Ordering::SeqCst)
    }

    /// Whether the address of a byte in this process is a multiple of `alignment`.
    pub fn is_aligned(&self, at: usize, alignment: usize) -> bool {
        (self.start.as_ptr() as usize).wrapping_add(at).is_multiple_of(alignment)
    }

    /// Address of bytes inside the mapping.
    #[inline]
    fn address(&self, at: usize, count: usize) -> *mut u8 {
        let inside = at.checked_add(count).is_some_and(|end| end <= self.length);
        assert!(inside, "{count} bytes at {at} of {} bytes of shared memory", self.length);
        // SAFETY: inside the mapping.
        unsafe { self.start.as_ptr().add(at) }
    }

    /// Copies bytes out.
    ///
    /// # Panics
    /// If the bytes aren't inside the mapping.
    #[inline]
    pub fn read(&self, at: usize, target: &mut [u8]) {
        let from = self.address(at, target.len());
        // SAFETY: mapped while this value lives; the target is borrowed exclusively. A race with the other
        // process yields any mixture.
        unsafe { std::ptr::copy_nonoverlapping(from, target.as_mut_ptr(), target.len()) }
    }

    /// Copies `count` bytes to the end of a buffer, which has space for them.
    ///
    /// # Panics
    /// If the bytes aren't inside the mapping, or don't fit into the buffer.
    #[inline]
    pub fn append_to(&self, at: usize, count: usize, buffer: &mut Buffer) {
        let from = self.address(at, count);
        assert!(count <= buffer.missing(), "appending {count} bytes: expected at most {}", buffer.missing());
        // SAFETY: mapped while this value lives; the buffer owns its memory, which was checked to be large
        // enough.
        unsafe {
            std::ptr::copy_nonoverlapping(from, buffer.spare_address(), count);
            buffer.add_filled(count);
        }
    }

    /// Copies bytes in.
    ///
    /// # Panics
    /// If the bytes don't fit inside the mapping.
    #[inline]
    pub fn write(&self, at: usize, bytes: &[u8]) {
        let to = self.address(at, bytes.len());
        // SAFETY: mapped while this value lives; no references to these bytes exist.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) }
    }

    fn aligned(&self, at: usize, size: usize) -> *mut u8 {
        let address = self.address(at, size);
        assert!((address as usize).is_multiple_of(size), "{size} bytes at {at}: expected them to be aligned");
        address
    }

    /// Returns a byte as an atomic.
    ///
    /// # Panics
    /// If the byte isn't inside the mapping.
    #[inline]
    pub fn u8(&self, at: usize) -> &AtomicU8 {
        // SAFETY: inside the mapping, aligned, and any bytes are valid; other accesses may mix, which yields
        // any value.
        unsafe { &*self.aligned(at, 1).cast() }
    }

    /// Returns two bytes as an atomic.
    ///
    /// # Panics
    /// If the bytes aren't inside the mapping and aligned.
    #[inline]
    pub fn u16(&self, at: usize) -> &AtomicU16 {
        // SAFETY: as above.
        unsafe { &*self.aligned(at, 2).cast() }
    }

    /// Returns eight bytes as an atomic.
    ///
    /// # Panics
    /// If the bytes aren't inside the mapping and aligned.
    #[inline]
    pub fn u64(&self, at: usize) -> &AtomicU64 {
        // SAFETY: as above.
        unsafe { &*self.aligned(at, 8).cast() }
    }
}

/// Takes an entry for a mapping; `None` if there is none.
fn guard(start: usize, length: usize) -> Option<usize> {
    let _taking = TAKING.lock().unwrap_or_else(PoisonError::into_inner);
    let free = GUARDED.iter().position(|guarded| guarded.start.load(Ordering::Acquire) == 0)?;
    let guarded = &GUARDED[free];
    guarded.replaced.store(false, Ordering::SeqCst);
    guarded.length.store(length, Ordering::Release);
    guarded.start.store(start, Ordering::Release);
    Some(free)
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        let guarded = &GUARDED[self.guarded];
        let length = guarded.length.load(Ordering::Acquire);
        // SAFETY: the mapping belongs to this value, and there are no references to it. Its entry is freed
        // afterwards, so that a later mapping at the same addresses doesn't have two.
        unsafe { libc::munmap(self.start.as_ptr().sub(self.before).cast(), length) };
        guarded.start.store(0, Ordering::Release);
    }
}

impl fmt::Debug for SharedMemory {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "SharedMemory({} bytes)", self.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_mappings_of_a_file_show_the_same_bytes() {
        let (memory, descriptor) = SharedMemory::create("test", 3 * 4096).unwrap();
        let other = SharedMemory::map(&descriptor, 4096 + 16, 4096).unwrap();
        memory.write(4096 + 16, b"shared");
        let mut bytes = [0; 6];
        other.read(0, &mut bytes);
        assert_eq!(&bytes, b"shared");
        other.u16(8).store(77, Ordering::SeqCst);
        assert_eq!(memory.u16(4096 + 24).load(Ordering::SeqCst), 77);
        let mut buffer = Buffer::new(100);
        other.append_to(0, 6, &mut buffer);
        assert_eq!(buffer.filled(), b"shared");
        for (offset, length) in [(0, 0), (0, 3 * 4096 + 1), (u64::MAX, 2), (3 * 4096, 1)] {
            let refused = SharedMemory::map(&descriptor, offset, length);
            assert!(matches!(refused, Err(Error::Invalid(_))), "{offset} {length}");
        }
        assert!(memory.is_intact());
    }

    #[test]
    fn a_file_that_is_made_shorter_is_noticed_and_ends_nothing() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 20).unwrap();
        let descriptor = OwnedFd::from(file.try_clone().unwrap());
        let memory = SharedMemory::map(&descriptor, 0, 1 << 20).unwrap();
        let whole = SharedMemory::map(&descriptor, 0, 4096).unwrap();
        memory.write(1 << 19, b"there");
        assert!(memory.is_intact());
        file.set_len(4096).unwrap();
        let mut bytes = [1; 5];
        memory.read(1 << 19, &mut bytes);
        assert_eq!(bytes, [0; 5]);
        assert!(!memory.is_intact());
        assert!(whole.is_intact(), "it is still complete");
        memory.write(1 << 18, b"nowhere");
        drop(memory);
        let (fresh, _descriptor) = SharedMemory::create("test", 4096).unwrap();
        assert!(fresh.is_intact());
    }
}
