//! A file system whose root is one regular file: a device.
//!
//! # Promises
//! - Any offset and length can be read and written. Reads and writes are short only at the end of the device;
//!   a write that begins there fails with ENOSPC.
//! - A write of part of a block excludes every other write to the block, across open files and shards, so no
//!   acknowledged write is lost.
//! - The size never changes.
//!
//! The kernel's page cache is bypassed (FOPEN_DIRECT_IO), so an acknowledged write has reached the device,
//! and the kernel sends requests in parallel.

use crate::served::export::{Export, Tally};
use crate::served::work::{ByteRange, Operation as Request};
use block::{
    BlockRange, Buffer, Call, Device, DevicePart, Durability, Error, ExtentState, Payload, Result, Status,
    ZeroMode,
};
use fuse::protocol::{ROOT, open_flag};
use fuse::{
    Attributes, CachedAttributes, Context, FileSystem, FileSystemPart, Opened, Operation, Read, Reply,
    SetAttributes, Statistics, Timestamp, Write,
};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Time for which the kernel may cache the attributes; only the kernel itself changes them.
const ATTRIBUTES_TIME: Duration = Duration::from_secs(3600);
/// Calls of `extents` by one seek after which other tasks run.
const EXTENTS_PER_TURN: usize = 64;

/// A device as a file, shared by all shards.
pub(super) struct DeviceFile {
    device: Arc<dyn DevicePart>,
    export: Export,
    started: Timestamp,
    mode: AtomicU32,
    uid: AtomicU32,
    gid: AtomicU32,
}

impl DeviceFile {
    /// Returns the file of a device, accessible only to its user and group.
    pub(super) fn new(device: &Arc<dyn DevicePart>, read_only: bool, shards: usize) -> Self {
        let export = Export::new(device, read_only, shards);
        let since = runtime::wall_clock();
        DeviceFile {
            device: device.clone(),
            started: Timestamp { seconds: since.as_secs() as i64, nanoseconds: since.subsec_nanos() },
            mode: AtomicU32::new(if export.read_only { 0o400 } else { 0o600 }),
            uid: AtomicU32::new(rustix::process::getuid().as_raw()),
            gid: AtomicU32::new(rustix::process::getgid().as_raw()),
            export,
        }
    }

    /// Whether writes are refused, by configuration or by the device.
    pub(super) fn is_read_only(&self) -> bool {
        self.export.read_only
    }

    /// Totals of the requests.
    pub(super) fn counters(&self) -> Status {
        self.export.counters.status()
    }

    fn bytes(&self) -> u64 {
        self.export.geometry().bytes()
    }

    /// Part of a range of bytes that lies inside the device.
    fn clip(&self, offset: u64, length: u64) -> ByteRange {
        let offset = offset.min(self.bytes());
        ByteRange { offset, length: length.min(self.bytes() - offset) }
    }

    fn attributes(&self) -> CachedAttributes {
        let attributes = Attributes {
            node: ROOT,
            size: self.bytes(),
            blocks: self.bytes() / 512,
            accessed: self.started,
            modified: self.started,
            changed: self.started,
            mode: libc::S_IFREG | self.mode.load(Ordering::Relaxed),
            links: 1,
            uid: self.uid.load(Ordering::Relaxed),
            gid: self.gid.load(Ordering::Relaxed),
            device: 0,
            block_size: (self.export.geometry().block_size.bytes() as u32).max(4096),
        };
        (attributes, ATTRIBUTES_TIME)
    }

    fn set(&self, set: &SetAttributes) -> Result<CachedAttributes> {
        if let Some(size) = set.size.filter(|size| *size != self.bytes()) {
            return Err(Error::unsupported(format!(
                "changing the size to {size} bytes: expected {}, the size of the device",
                self.bytes()
            )));
        }
        for (value, place) in [(set.uid, &self.uid), (set.gid, &self.gid)] {
            if let Some(value) = value {
                place.store(value, Ordering::Relaxed);
            }
        }
        if let Some(mode) = set.mode {
            self.mode.store(mode & 0o7777, Ordering::Relaxed);
        }
        Ok(self.attributes())
    }
}

/// Part for a session.
pub(super) struct FilePart(pub(super) Arc<DeviceFile>);

impl FileSystemPart for FilePart {
    fn open(&self) -> Call<'_, Result<Rc<dyn FileSystem>>> {
        Call::new(async move {
            let device = self.0.device.open().await?;
            let shard = runtime::current_shard().0;
            Ok(Rc::new(OpenFile { file: self.0.clone(), device, shard }) as Rc<dyn FileSystem>)
        })
    }
}

/// The file on one shard.
struct OpenFile {
    file: Arc<DeviceFile>,
    device: Rc<dyn Device>,
    shard: usize,
}

fn errno(number: i32, text: &'static str) -> Error {
    Error::Os(number, text.into())
}

impl OpenFile {
    /// Executes a request to the device and counts it.
    async fn carry_out(
        &self,
        range: ByteRange,
        request: Request,
        payload: Option<Buffer>,
    ) -> Result<Payload> {
        let target = self.file.export.target(&*self.device, self.shard);
        let result = match request.changes() && self.file.export.read_only {
            true => Err(errno(libc::EROFS, "the file is read-only")),
            false => target.begin(range, request, payload).await,
        };
        let mut tally = Tally::default();
        match &result {
            Ok(_) => tally.count(request, range.length),
            Err(_) => tally.errors = 1,
        }
        self.file.export.counters.add(&mut tally);
        Ok(result?.map(Payload::from).unwrap_or_default())
    }

    fn open(&self, flags: i32) -> Result<Reply> {
        if self.file.export.read_only && flags & libc::O_ACCMODE != libc::O_RDONLY {
            return Err(errno(libc::EROFS, "the file is read-only"));
        }
        let flags = open_flag::DIRECT_IO | open_flag::PARALLEL_DIRECT_WRITES | open_flag::NOFLUSH;
        Ok(Opened { handle: 0, flags }.into())
    }

    fn statistics(&self) -> Statistics {
        // The block size: the loop driver also uses it as the granularity of discards.
        let geometry = self.file.export.geometry();
        Statistics {
            block_size: geometry.block_size.bytes() as u32,
            blocks: geometry.blocks.0,
            nodes: 1,
            name_bytes: 255,
            ..Statistics::default()
        }
    }

    async fn read(&self, read: Read) -> Result<Reply> {
        let range = self.file.clip(read.offset, u64::from(read.size));
        match range.length {
            0 => Ok(Payload::new().into()),
            _ => self.carry_out(range, Request::Read, None).await.map(Reply::Bytes),
        }
    }

    async fn write(&self, mut write: Write) -> Result<Reply> {
        let length = write.data.filled().len();
        if length == 0 {
            return Ok(Reply::Written(0));
        }
        let range = self.file.clip(write.offset, length as u64);
        if range.length == 0 {
            return Err(errno(libc::ENOSPC, "beyond the end of the device"));
        }
        write.data.shorten(range.length as usize);
        let durability = match write.flags & libc::O_DSYNC {
            0 => Durability::Visible,
            _ => Durability::Durable,
        };
        self.carry_out(range, Request::Write(durability), Some(write.data)).await?;
        Ok(Reply::Written(range.length))
    }

    async fn flush(&self) -> Result<Reply> {
        let nothing = ByteRange { offset: 0, length: 0 };
        self.carry_out(nothing, Request::Flush, None).await.map(|_| Reply::Done)
    }

    async fn allocate(&self, offset: u64, length: u64, mode: i32) -> Result<Reply> {
        let is = |bits| mode & !libc::FALLOC_FL_KEEP_SIZE == bits;
        let zero_mode = if is(libc::FALLOC_FL_PUNCH_HOLE) {
            ZeroMode::MayDeallocate
        } else if is(libc::FALLOC_FL_ZERO_RANGE) {
            ZeroMode::KeepAllocated
        } else {
            return Err(errno(libc::EOPNOTSUPP, "neither FALLOC_FL_PUNCH_HOLE nor FALLOC_FL_ZERO_RANGE"));
        };
        let range = self.file.clip(offset, length);
        let extends = mode & libc::FALLOC_FL_KEEP_SIZE == 0;
        if extends && range.length < length {
            return Err(errno(libc::ENOSPC, "beyond the end of the device"));
        }
        if range.length == 0 {
            return Ok(Reply::Done);
        }
        let request = Request::WriteZeroes(zero_mode, Durability::Visible);
        self.carry_out(range, request, None).await.map(|_| Reply::Done)
    }

    async fn seek(&self, offset: u64, whence: i32) -> Result<Reply> {
        let wants_data = match whence {
            libc::SEEK_DATA => true,
            libc::SEEK_HOLE => false,
            _ => return Err(errno(libc::EINVAL, "neither SEEK_DATA nor SEEK_HOLE")),
        };
        let (bytes, block_size) = (self.file.bytes(), self.file.export.geometry().block_size);
        if offset >= bytes {
            return Err(errno(libc::ENXIO, "beyond the end of the device"));
        }
        let mut block = offset >> block_size.shift();
        let end = self.file.export.geometry().blocks.0;
        for turn in 1.. {
            let extents = self.device.extents(BlockRange::new(block, end - block)).await?;
            let mut next = block;
            for extent in &extents {
                let (start, after) = (extent.range.start.0.max(block), extent.range.end().0.min(end));
                if (extent.state == ExtentState::Data) == wants_data && start < after {
                    return Ok(Reply::Offset((start << block_size.shift()).max(offset)));
                }
                next = next.max(after);
            }
            if next == block || next >= end {
                break;
            }
            block = next;
            if turn % EXTENTS_PER_TURN == 0 {
                runtime::yield_now().await;
            }
        }
        match wants_data {
            true => Err(errno(libc::ENXIO, "no data up to the end of the device")),
            false => Ok(Reply::Offset(bytes)),
        }
    }
}

impl FileSystem for OpenFile {
    fn serve<'a>(&'a self, _: Context, operation: Operation<'a>) -> Call<'a, Result<Reply>> {
        let known = match operation {
            Operation::Read(read) => return Call::new(self.read(read)),
            Operation::Write(write) => return Call::new(self.write(write)),
            Operation::Sync { .. } => return Call::new(self.flush()),
            Operation::Allocate { offset, length, mode, .. } => {
                return Call::new(self.allocate(offset, length, mode));
            }
            Operation::Seek { offset, whence, .. } => return Call::new(self.seek(offset, whence)),
            Operation::Lookup { .. } => Err(errno(libc::ENOTDIR, "the root is a file")),
            Operation::GetAttributes { .. } => Ok(self.file.attributes().into()),
            Operation::SetAttributes(set) => self.file.set(&set).map(Reply::from),
            Operation::Open { flags } => self.open(flags),
            Operation::Release { .. } => Ok(Reply::Done),
            Operation::Statistics => Ok(self.statistics().into()),
            _ => Err(fuse::not_implemented()),
        };
        Call::ready(known)
    }
}
