//! Files: positioned reads and writes, and operations on names.
//!
//! A [`File`] belongs to the shard that opened it; each shard opens its own. Errors name the operation and
//! the file.
#![allow(unsafe_code)] // fcntl, flock, ioctl and statx have no safe form here; add_filled after the kernel wrote.

mod replacement;

pub use replacement::replace;

use crate::in_flight::submit;
use crate::operation::{Descriptor, Operation};
use crate::remote::blocking;
use crate::shard;
use block::{Buffer, Durability, Error, Payload, Result};
use std::ffi::CString;
use std::fmt;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Flags for opening a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenOptions {
    /// For reading.
    pub read: bool,
    /// For writing.
    pub write: bool,
    /// Create the file if it doesn't exist.
    pub create: bool,
    /// Create the file; an error if it exists.
    pub create_new: bool,
    /// Truncate it to 0 bytes.
    pub truncate: bool,
    /// Bypass the page cache (O_DIRECT): offsets, lengths and memory must be aligned.
    pub direct: bool,
    /// Claim a block device (O_EXCL) while the file is open: opening fails if it is mounted or claimed by
    /// another program, and later attempts to mount or claim it fail. Has no effect on regular files.
    pub exclusive: bool,
}

impl Default for OpenOptions {
    fn default() -> Self {
        OpenOptions {
            read: true,
            write: false,
            create: false,
            create_new: false,
            truncate: false,
            direct: false,
            exclusive: false,
        }
    }
}

impl OpenOptions {
    /// For reading and writing.
    pub fn read_write() -> Self {
        OpenOptions { write: true, ..OpenOptions::default() }
    }

    fn flags(self) -> i32 {
        let access = match (self.read, self.write) {
            (true, true) => libc::O_RDWR,
            (false, true) => libc::O_WRONLY,
            (_, false) => libc::O_RDONLY,
        };
        let mut flags = access | libc::O_CLOEXEC;
        for (wanted, flag) in [
            (self.create || self.create_new, libc::O_CREAT),
            (self.create_new || self.exclusive, libc::O_EXCL),
            (self.truncate, libc::O_TRUNC),
            (self.direct, libc::O_DIRECT),
        ] {
            flags |= if wanted { flag } else { 0 };
        }
        debug_assert!(!(self.exclusive && self.create), "O_EXCL with O_CREAT refuses a file that is there");
        flags
    }
}

pub use crate::metadata::Metadata;

/// An open file of this shard.
#[derive(Clone)]
pub struct File {
    descriptor: Rc<Descriptor>,
    name: Rc<str>,
}

impl fmt::Debug for File {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "File({})", self.name)
    }
}

fn c_path(path: &Path) -> Result<CString> {
    CString::new(path.as_os_str().as_bytes())
        .map_err(|_| Error::invalid(format!("path {}: it has a NUL byte", path.display())))
}

/// Returns the result of an operation, or its error. The text is formatted only for an error.
#[inline]
fn checked(result: i32, doing: impl FnOnce() -> String) -> Result<usize> {
    if result >= 0 {
        return Ok(result as usize);
    }
    Err(os_error(-result, doing()))
}

/// Repeats a system call that a signal interrupts.
fn again<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    loop {
        match call() {
            Err(rustix::io::Errno::INTR) => {}
            other => return other,
        }
    }
}

#[cold]
pub(crate) fn os_error(errno: i32, doing: String) -> Error {
    Error::from_errno(errno, format!("{doing}: {}", std::io::Error::from_raw_os_error(errno)))
}

/// An open file that any shard can use: one open file description, with one position in the file's sequence
/// of write-back errors, one `flock` lock and one claim on a block device. Open as long as this or one of its
/// [`File`]s is.
#[derive(Debug)]
pub struct SharedFile {
    descriptor: SharedDescriptor,
    name: String,
}

#[derive(Debug)]
enum SharedDescriptor {
    Kernel(OwnedFd),
    Simulated(u64),
}

impl Drop for SharedDescriptor {
    fn drop(&mut self) {
        if let SharedDescriptor::Simulated(handle) = self {
            shard::close_simulated(*handle);
        }
    }
}

impl SharedFile {
    /// Returns a descriptor of this shard for the same open file description.
    pub fn here(&self) -> Result<File> {
        match &self.descriptor {
            SharedDescriptor::Kernel(fd) => Ok(File::from_descriptor(duplicate(fd, &self.name)?, &self.name)),
            SharedDescriptor::Simulated(handle) => {
                let descriptor = Descriptor::Simulated(shard::share_simulated(*handle));
                Ok(File { descriptor: Rc::new(descriptor), name: self.name.as_str().into() })
            }
        }
    }

    /// Opens the same file again on this shard, even if its path now refers to another file. The new open
    /// file description has its own flags and its own position in the sequence of write-back errors.
    ///
    /// # Errors
    /// [`Error::NotFound`] without a proc file system at `/proc`; errors of [`File::open`].
    pub async fn reopen(&self, options: OpenOptions) -> Result<File> {
        let number = match &self.descriptor {
            SharedDescriptor::Kernel(fd) => fd.as_raw_fd() as u64,
            SharedDescriptor::Simulated(handle) => *handle,
        };
        let path = format!("/proc/self/fd/{number}");
        let opened = File::open_as(Path::new(&path), options, &self.name).await;
        opened.map_err(|error| match error {
            Error::NotFound(_) => error.with_detail(format!(
                "opening {} again: no {path}; expected the proc file system at /proc; mount it: mount -t proc proc /proc",
                self.name
            )),
            other => other,
        })
    }
}

fn duplicate(fd: &OwnedFd, name: &str) -> Result<OwnedFd> {
    fd.try_clone().map_err(|error| Error::from_io(&error, &format!("duplicating a descriptor of {name}")))
}

/// Longest time for which the kernel may still hold the lock of a killed process.
pub const RESTART_LIMIT: std::time::Duration = std::time::Duration::from_secs(1);

impl File {
    /// Opens a file on this shard. A file that it creates has mode 0600 (readable and writable by its owner
    /// only), because files hold the data of clients.
    pub async fn open(path: &Path, options: OpenOptions) -> Result<File> {
        Self::open_as(path, options, &path.display().to_string()).await
    }

    /// Opens a file, with another name for error messages.
    async fn open_as(path: &Path, options: OpenOptions, name: &str) -> Result<File> {
        let c_path = c_path(path)?;
        let (result, _) = submit(Operation::Open { path: c_path, flags: options.flags(), mode: 0o600 }).await;
        let fd = checked(result, || format!("opening {name}"))?;
        Ok(shard::with_current(|shard| {
            let descriptor = match shard.world() {
                Some(_) => Descriptor::Simulated(fd as u64),
                // SAFETY: the kernel has just opened it for this operation.
                None => shard.adopt(unsafe { OwnedFd::from_raw_fd(fd as i32) }),
            };
            File { descriptor: Rc::new(descriptor), name: name.into() }
        }))
    }

    /// Takes ownership of an open descriptor: an eventfd, a passed file.
    pub fn from_descriptor(fd: OwnedFd, name: &str) -> File {
        let descriptor = shard::with_current(|shard| shard.adopt(fd));
        File { descriptor: Rc::new(descriptor), name: name.into() }
    }

    /// Returns the same open file description for all shards.
    pub fn share(&self) -> Result<SharedFile> {
        let descriptor = match &*self.descriptor {
            Descriptor::Kernel { fd, .. } => SharedDescriptor::Kernel(duplicate(fd, &self.name)?),
            Descriptor::Simulated(handle) => SharedDescriptor::Simulated(shard::share_simulated(*handle)),
        };
        Ok(SharedFile { descriptor, name: self.name.to_string() })
    }

    /// Returns another descriptor of the same open file, for mappings.
    pub(crate) fn duplicate_descriptor(&self) -> Result<OwnedFd> {
        match &*self.descriptor {
            Descriptor::Kernel { fd, .. } => duplicate(fd, &self.name),
            Descriptor::Simulated(_) => {
                Err(Error::unsupported(format!("{}: simulated files can't be mapped", self.name)))
            }
        }
    }

    /// Name in error messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Reads at `offset` into the unfilled part of the buffer and returns the number of bytes read: 0 at the
    /// end of the file. After an error the buffer is unchanged.
    #[inline]
    pub async fn read_at(&self, offset: u64, buffer: Buffer) -> (Result<usize>, Buffer) {
        let missing = buffer.missing();
        let (result, operation) =
            submit(Operation::Read { file: self.descriptor.clone(), offset, buffer }).await;
        let Operation::Read { mut buffer, .. } = operation else { unreachable!("a read comes back as one") };
        let doing = || format!("reading {missing} bytes at {offset} of {}", self.name);
        let result = checked(result, doing);
        if let Ok(count) = result {
            // SAFETY: the kernel reports that it wrote this many bytes.
            unsafe { buffer.add_filled(count) };
        }
        (result, buffer)
    }

    /// Reads until the buffer is full.
    ///
    /// # Errors
    /// [`Error::Io`] if the file ends first; the buffer is then empty.
    #[inline]
    pub async fn read_exact_at(&self, offset: u64, mut buffer: Buffer) -> (Result<()>, Buffer) {
        let begin = buffer.filled().len();
        while buffer.missing() > 0 {
            let at = offset + (buffer.filled().len() - begin) as u64;
            let (result, returned) = self.read_at(at, buffer).await;
            buffer = returned;
            let failure = match result {
                Ok(0) => Error::io(format!("reading at {at} of {}: the file ends there", self.name)),
                Ok(_) => continue,
                Err(error) => error,
            };
            buffer.truncate_filled(begin);
            return (Err(failure), buffer);
        }
        (Ok(()), buffer)
    }

    /// Writes the whole payload at `offset`; [`Durability::Durable`] by RWF_DSYNC. Once begun, the write
    /// completes even if the kernel cuts it short or the caller drops the future.
    #[inline]
    pub async fn write_at(&self, offset: u64, payload: Payload, durability: Durability) -> Result<()> {
        let length = payload.len();
        if length == 0 {
            return Ok(());
        }
        let durable = durability == Durability::Durable;
        let file = self.descriptor.clone();
        let (result, _) = submit(Operation::Write { file, offset, payload, skip: 0, durable }).await;
        let doing = || format!("writing {length} bytes at {offset} of {}", self.name);
        match checked(result, doing)? {
            0 => Err(Error::no_space(doing())),
            _ => Ok(()),
        }
    }

    /// Reads at `offset` until `bytes` are filled, on this thread: for cached pages, as other tasks of the
    /// shard wait meanwhile.
    ///
    /// # Errors
    /// [`Error::Io`] if the file ends first.
    pub fn read_cached(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let doing = |length: usize| format!("reading {length} bytes at {offset} of {}", self.name);
        let length = bytes.len();
        let mut done = 0;
        while done < length {
            let at = offset + done as u64;
            let count = match &*self.descriptor {
                Descriptor::Simulated(handle) => {
                    let read = shard::with_world(|world| world.read_file(*handle, at, &mut bytes[done..]));
                    checked(read, || doing(length))?
                }
                Descriptor::Kernel { fd, .. } => again(|| rustix::io::pread(fd, &mut bytes[done..], at))
                    .map_err(|error| os_error(error.raw_os_error(), doing(length)))?,
            };
            if count == 0 {
                return Err(Error::io(format!("{}: the file ends before", doing(length))));
            }
            done += count;
        }
        Ok(())
    }

    /// Writes all of `bytes` at `offset`, on this thread: into cached pages this takes about a microsecond,
    /// while a small buffered write by the ring takes a thread of the kernel. Other tasks of the shard wait
    /// meanwhile. After an error a part of the bytes may have been written.
    pub fn write_cached(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let doing = || format!("writing {} bytes at {offset} of {}", bytes.len(), self.name);
        let mut done = 0;
        while done < bytes.len() {
            let at = offset + done as u64;
            let count = match &*self.descriptor {
                Descriptor::Simulated(handle) => {
                    let written = shard::with_world(|world| world.write_file(*handle, at, &bytes[done..]));
                    checked(written, doing)?
                }
                Descriptor::Kernel { fd, .. } => again(|| rustix::io::pwrite(fd, &bytes[done..], at))
                    .map_err(|error| os_error(error.raw_os_error(), doing()))?,
            };
            if count == 0 {
                return Err(Error::no_space(doing()));
            }
            done += count;
        }
        Ok(())
    }

    /// Makes the data durable, with the metadata that reading it needs (fdatasync).
    pub async fn sync_data(&self) -> Result<()> {
        self.sync(false).await
    }

    /// Makes data and metadata durable (fsync).
    pub async fn sync_all(&self) -> Result<()> {
        self.sync(true).await
    }

    async fn sync(&self, metadata: bool) -> Result<()> {
        let (result, _) = submit(Operation::Sync { file: self.descriptor.clone(), metadata }).await;
        checked(result, || format!("syncing {}", self.name)).map(drop)
    }

    async fn fallocate(&self, mode: i32, offset: u64, length: u64, what: &str) -> Result<()> {
        let file = self.descriptor.clone();
        let (result, _) = submit(Operation::Allocate { file, mode, offset, length }).await;
        checked(result, || format!("{what} {length} bytes at {offset} of {}", self.name)).map(drop)
    }

    /// Deallocates a range, which reads as zeros afterwards.
    pub async fn punch_hole(&self, offset: u64, length: u64) -> Result<()> {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        self.fallocate(mode, offset, length, "punching a hole of").await
    }

    /// Makes a range read as zeros; its space remains or becomes allocated.
    pub async fn zero_range(&self, offset: u64, length: u64) -> Result<()> {
        let mode = libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE;
        self.fallocate(mode, offset, length, "zeroing").await
    }

    /// Allocates space for a range and makes the file at least that long.
    pub async fn allocate(&self, offset: u64, length: u64) -> Result<()> {
        self.fallocate(0, offset, length, "allocating").await
    }

    /// Sets the length: truncates the file, or extends it by a hole.
    pub async fn set_len(&self, length: u64) -> Result<()> {
        let (result, _) = submit(Operation::Truncate { file: self.descriptor.clone(), length }).await;
        checked(result, || format!("setting the length of {} to {length}", self.name)).map(drop)
    }

    /// Whether a path leads to this file: false after the file was removed or replaced. A simulated file is
    /// always at its path.
    ///
    /// # Errors
    /// Errors of stat(2), except ENOENT.
    pub fn is_at(&self, path: &Path) -> Result<bool> {
        use std::os::unix::fs::MetadataExt;
        let Descriptor::Kernel { fd, .. } = &*self.descriptor else { return Ok(true) };
        let doing = |error: std::io::Error| Error::from_io(&error, &format!("looking at {}", path.display()));
        let there = match std::fs::metadata(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
            other => other.map_err(doing)?,
        };
        let own = fd.try_clone().map(std::fs::File::from).and_then(|file| file.metadata()).map_err(doing)?;
        Ok((there.dev(), there.ino()) == (own.dev(), own.ino()))
    }

    /// Returns type and size of the file.
    pub fn metadata(&self) -> Result<Metadata> {
        let doing = |error: std::io::Error| Error::from_io(&error, &format!("looking at {}", self.name));
        let length = self.length()?;
        let Descriptor::Kernel { fd, .. } = &*self.descriptor else {
            return Ok(Metadata::simulated(length, false));
        };
        let found =
            fd.try_clone().map(std::fs::File::from).and_then(|file| file.metadata()).map_err(doing)?;
        Ok(Metadata::of(&found, length))
    }

    /// Length in bytes; the capacity of a block device.
    pub fn length(&self) -> Result<u64> {
        match &*self.descriptor {
            Descriptor::Simulated(handle) => shard::with_world(|world| world.file_length(*handle)),
            Descriptor::Kernel { fd, .. } => {
                // SAFETY: no memory is passed; the file position is unused.
                match unsafe { libc::lseek(fd.as_raw_fd(), 0, libc::SEEK_END) } {
                    length if length >= 0 => Ok(length as u64),
                    _ => Err(Error::from_io(&std::io::Error::last_os_error(), &self.name)),
                }
            }
        }
    }

    /// Locks the file as [`File::lock`] does. While another open file holds the lock, retries for at most
    /// [`RESTART_LIMIT`]: the lock may be that of a killed process.
    ///
    /// # Errors
    /// As [`File::lock`].
    pub async fn lock_patiently(&self, exclusive: bool) -> Result<()> {
        crate::retry_while_busy(RESTART_LIMIT, async || self.lock(exclusive)).await
    }

    /// Locks the file against all others that lock it: exclusively, or shared with other readers. The lock is
    /// held until the file is closed.
    ///
    /// # Errors
    /// [`Error::Busy`] if another open file holds the lock.
    pub fn lock(&self, exclusive: bool) -> Result<()> {
        let Descriptor::Kernel { fd, .. } = &*self.descriptor else { return Ok(()) };
        let how = if exclusive { libc::LOCK_EX } else { libc::LOCK_SH };
        // SAFETY: no memory is passed.
        if unsafe { libc::flock(fd.as_raw_fd(), how | libc::LOCK_NB) } == 0 {
            return Ok(());
        }
        let error = std::io::Error::last_os_error();
        match error.kind() {
            std::io::ErrorKind::WouldBlock => Err(Error::busy(format!(
                "{} is in use by another process (or by another part of this one): stop it first",
                self.name
            ))),
            _ => Err(Error::from_io(&error, &format!("locking {}", self.name))),
        }
    }

    /// Alignment that O_DIRECT needs for memory and for offsets, in bytes; 0 if the file doesn't support it
    /// or the kernel doesn't report it (statx, STATX_DIOALIGN, Linux 6.1).
    pub fn direct_alignment(&self) -> (u32, u32) {
        let Descriptor::Kernel { fd, .. } = &*self.descriptor else { return (512, 512) };
        // SAFETY: the kernel fills one statx, which is a local variable; the path is empty and has its NUL.
        unsafe {
            let mut status: libc::statx = std::mem::zeroed();
            let flags = libc::AT_EMPTY_PATH;
            match libc::statx(fd.as_raw_fd(), c"".as_ptr(), flags, libc::STATX_DIOALIGN, &mut status) {
                0 if status.stx_mask & libc::STATX_DIOALIGN != 0 => {
                    (status.stx_dio_mem_align, status.stx_dio_offset_align)
                }
                _ => (0, 0),
            }
        }
    }

    /// Returns the first byte at or after `offset` that holds data (SEEK_DATA) or, with `hole`, that is in a
    /// hole (SEEK_HOLE); `None` if there is none before the end.
    pub fn seek(&self, offset: u64, hole: bool) -> Result<Option<u64>> {
        let Descriptor::Kernel { fd, .. } = &*self.descriptor else { return Ok(Some(offset)) };
        let whence = if hole { libc::SEEK_HOLE } else { libc::SEEK_DATA };
        // SAFETY: no memory is passed; the file position is unused.
        match unsafe { libc::lseek(fd.as_raw_fd(), offset as libc::off_t, whence) } {
            found if found >= 0 => Ok(Some(found as u64)),
            _ => {
                let error = std::io::Error::last_os_error();
                match error.raw_os_error() {
                    Some(libc::ENXIO) => Ok(None),
                    _ => Err(Error::from_io(&error, &format!("looking for holes in {}", self.name))),
                }
            }
        }
    }
}

/// Returns type and size of the file at a path, without opening it.
///
/// # Errors
/// [`Error::NotFound`] if the path has no file.
pub fn metadata(path: &Path) -> Result<Metadata> {
    if let Some(found) =
        shard::try_with_current(|shard| shard.world().map(|world| world.metadata(path))).flatten()
    {
        return found;
    }
    let found =
        std::fs::metadata(path).map_err(|error| Error::from_io(&error, &path.display().to_string()))?;
    let is_block_device = found.file_type().is_block_device();
    let length = if is_block_device { block_device_length(path)? } else { found.len() };
    Ok(Metadata::of(&found, length))
}

fn block_device_length(path: &Path) -> Result<u64> {
    use std::io::{Seek, SeekFrom};
    let doing = |error: std::io::Error| Error::from_io(&error, &path.display().to_string());
    let mut device = std::fs::File::open(path).map_err(doing)?;
    device.seek(SeekFrom::End(0)).map_err(doing)
}

/// Renames a file and replaces the file at the new name, if there is one.
pub async fn rename(from: &Path, to: &Path) -> Result<()> {
    let (result, _) = submit(Operation::Rename { from: c_path(from)?, to: c_path(to)? }).await;
    checked(result, || format!("renaming {} to {}", from.display(), to.display())).map(drop)
}

/// Removes a name of a file.
pub async fn unlink(path: &Path) -> Result<()> {
    let (result, _) = submit(Operation::Unlink { path: c_path(path)? }).await;
    checked(result, || format!("removing {}", path.display())).map(drop)
}

/// Makes the entries of a directory durable.
pub async fn sync_directory(path: &Path) -> Result<()> {
    let directory = File::open(path, OpenOptions::default()).await?;
    directory.sync_all().await
}

/// Returns the paths of the entries of a directory, sorted.
pub async fn list(path: &Path) -> Result<Vec<PathBuf>> {
    if let Some(found) = shard::with_current(|shard| shard.world().map(|world| world.list(path))) {
        return found;
    }
    let owned = path.to_path_buf();
    let names = blocking(move || -> std::io::Result<Vec<PathBuf>> {
        let mut names = std::fs::read_dir(&owned)?
            .map(|entry| entry.map(|entry| PathBuf::from(entry.file_name())))
            .collect::<std::io::Result<Vec<_>>>()?;
        names.sort();
        Ok(names)
    })
    .await;
    names.map_err(|error| Error::from_io(&error, &format!("listing {}", path.display())))
}
