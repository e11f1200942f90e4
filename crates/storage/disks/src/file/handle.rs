//! One shard's handle on a file.

use super::Shared;
use block::{
    BlockCount, BlockIndex, BlockRange, Buffer, CachedBytes, Call, Data, Device, DeviceGeometry, Durability,
    Error, Extent, ExtentState, Payload, ReadOutcome, Result, ZeroMode,
};
use runtime::file::File;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Most extents that one call returns.
const MAX_EXTENTS: usize = 256;
/// Bytes of zeros in one write if the file system can't zero a range.
const ZEROS: usize = 1 << 20;

/// State that is shared with calls that continue when their callers drop them.
pub(super) struct FileHandle(pub(super) Rc<Inner>);

pub(super) struct Inner {
    /// File description of this handle, for all operations except syncs.
    pub(super) file: File,
    /// Descriptor of the part's file description, for syncs only.
    pub(super) syncs: File,
    /// Memory alignment that O_DIRECT needs, in bytes; 1: none.
    pub(super) memory_alignment: usize,
    pub(super) knows_holes: bool,
    /// Whether the file was opened with O_DIRECT.
    pub(super) direct: bool,
    /// Whether the page cache was asked for, so that small writes may stay in it.
    pub(super) is_cached: bool,
    pub(super) shared: Arc<Shared>,
}

impl Inner {
    #[inline]
    fn geometry(&self) -> &DeviceGeometry {
        self.shared.geometry.get()
    }

    #[inline]
    fn offset(&self, at: BlockIndex) -> u64 {
        self.geometry().block_size.offset_of(at).0
    }

    /// Offset and length of a range, in bytes.
    fn bytes(&self, range: BlockRange) -> (u64, u64) {
        (self.offset(range.start), self.geometry().block_size.bytes_of(range.count))
    }

    #[inline]
    fn is_aligned(&self, payload: &Payload) -> bool {
        let mask = self.memory_alignment - 1;
        payload.slices().iter().all(|data| (data.as_ptr() as usize | data.len()) & mask == 0)
    }

    #[inline]
    async fn write_bytes(&self, offset: u64, payload: Payload, durability: Durability) -> Result<()> {
        let payload = if self.is_aligned(&payload) { payload } else { self.aligned_copy(&payload) };
        self.file.write_at(offset, payload, durability).await
    }

    async fn write_durably(&self, offset: u64, payload: Payload) -> Result<()> {
        let durability = &self.shared.durability;
        durability.check(self.file.name())?;
        let result = self.write_bytes(offset, payload, Durability::Durable).await;
        if let Err(error) = &result
            && !self.was_refused(error)
        {
            durability.fail();
        }
        result
    }

    /// Whether this error of a durable write has no significance for earlier writes. The error may come from
    /// the write or from its sync. Only lack of space with O_DIRECT can be identified: the kernel allocates
    /// when such a write is submitted, and then syncs nothing. Lack of space during write-back of cached
    /// pages is also an error of the file, which the next sync reports. In the page cache a write may reserve
    /// space that its write-back then can't allocate, and other data of the same pages is lost.
    fn was_refused(&self, error: &Error) -> bool {
        self.direct && matches!(error, Error::NoSpace(_))
    }

    #[inline]
    async fn read_bytes(&self, offset: u64, buffer: Buffer) -> ReadOutcome {
        if buffer.address() as usize & (self.memory_alignment - 1) == 0 {
            return self.file.read_exact_at(offset, buffer).await;
        }
        // The buffer is a piece of another one, split at an unaligned offset.
        let mut buffer = buffer;
        let (result, aligned) = self.file.read_exact_at(offset, Buffer::new(buffer.len())).await;
        if result.is_ok() {
            buffer.append(aligned.filled());
        }
        (result, buffer)
    }

    #[cold]
    fn aligned_copy(&self, payload: &Payload) -> Payload {
        self.shared.copied_writes.fetch_add(1, Ordering::Relaxed);
        let mut buffer = Buffer::new(payload.len());
        payload.slices().iter().for_each(|data| buffer.append(data));
        buffer.into()
    }

    /// Makes a range read as zeros, by the first method that the file system supports.
    async fn zero(&self, range: BlockRange, mode: ZeroMode) -> Result<()> {
        let (offset, length) = self.bytes(range);
        if length == 0 {
            return Ok(());
        }
        if mode == ZeroMode::MayDeallocate {
            match self.file.punch_hole(offset, length).await {
                Err(Error::Unsupported(_)) => {}
                other => return other,
            }
        }
        match self.file.zero_range(offset, length).await {
            Err(Error::Unsupported(_)) => self.write_zeros(offset, length).await,
            other => other,
        }
    }

    async fn write_zeros(&self, offset: u64, length: u64) -> Result<()> {
        let zeros: Data = Buffer::zeroed(ZEROS.min(length as usize)).freeze();
        let mut done = 0;
        while done < length {
            let part = (length - done).min(zeros.len() as u64);
            let payload = zeros.slice(0..part as usize).into();
            self.write_bytes(offset + done, payload, Durability::Visible).await?;
            done += part;
        }
        Ok(())
    }

    async fn sync(&self) -> Result<()> {
        self.shared.durability.sync(&self.syncs).await
    }

    /// Extents of the file system, in whole blocks: a block that is partly data is data.
    fn find_extents(&self, range: BlockRange) -> Result<Vec<Extent>> {
        let block_size = self.geometry().block_size;
        let mut extents: Vec<Extent> = Vec::new();
        let mut at = range.start;
        while at < range.end() && extents.len() < MAX_EXTENTS {
            let begin = self.offset(at);
            let end = self.offset(range.end());
            let data = self.file.seek(begin, false)?.unwrap_or(end);
            let (next, state) = if data >= begin + block_size.bytes() {
                (BlockIndex(data.min(end) >> block_size.shift()), ExtentState::Hole)
            } else {
                let hole = self.file.seek(data.max(begin), true)?.unwrap_or(end).min(end);
                (BlockIndex(hole.div_ceil(block_size.bytes())), ExtentState::Data)
            };
            let next = next.max(at + BlockCount(1)).min(range.end());
            match extents.last_mut() {
                Some(last) if last.state == state => last.range.count.0 += (next - at).0,
                _ => extents.push(Extent { range: BlockRange { start: at, count: next - at }, state }),
            }
            at = next;
        }
        Ok(extents)
    }
}

impl Device for FileHandle {
    fn geometry(&self) -> &DeviceGeometry {
        self.0.geometry()
    }

    fn read(&self, at: BlockIndex, mut buffer: Buffer) -> Call<'_, ReadOutcome> {
        Call::new(async move {
            buffer.clear();
            match self.0.geometry().range(at, buffer.len()) {
                Ok(_) => self.0.read_bytes(self.0.offset(at), buffer).await,
                Err(error) => (Err(error), buffer),
            }
        })
    }

    fn write(&self, at: BlockIndex, payload: Payload, durability: Durability) -> Call<'_, Result<()>> {
        if let Err(error) = self.0.geometry().writable_range(at, payload.len()) {
            return Call::ready(Err(error));
        }
        let offset = self.0.offset(at);
        match durability {
            Durability::Visible => {
                Call::new(async move { self.0.write_bytes(offset, payload, Durability::Visible).await })
            }
            // The kernel reports an error once: it must be recorded even if the caller has dropped the call.
            Durability::Durable => {
                let handle = self.0.clone();
                runtime::carry(async move { handle.write_durably(offset, payload).await })
            }
        }
    }

    fn flush(&self) -> Call<'_, Result<()>> {
        if self.0.geometry().read_only {
            return Call::ready(Ok(()));
        }
        let handle = self.0.clone();
        runtime::carry(async move { handle.sync().await })
    }

    fn discard(&self, range: BlockRange) -> Call<'_, Result<()>> {
        Call::new(async move {
            self.0.geometry().check_writable()?;
            self.0.geometry().check(range)?;
            self.0.zero(range, ZeroMode::MayDeallocate).await
        })
    }

    fn write_zeroes(
        &self,
        range: BlockRange,
        mode: ZeroMode,
        durability: Durability,
    ) -> Call<'_, Result<()>> {
        Call::new(async move {
            self.0.geometry().check_writable()?;
            self.0.geometry().check(range)?;
            self.0.zero(range, mode).await?;
            match durability {
                Durability::Visible => Ok(()),
                Durability::Durable => self.flush().await,
            }
        })
    }

    fn extents(&self, range: BlockRange) -> Call<'_, Result<Vec<Extent>>> {
        Call::new(async move {
            self.0.geometry().check(range)?;
            if range.is_empty() {
                return Ok(Vec::new());
            }
            match self.0.knows_holes {
                true => self.0.find_extents(range),
                false => Ok(vec![Extent { range, state: ExtentState::Data }]),
            }
        })
    }

    fn open_cached(&self, range: BlockRange) -> Option<Box<dyn CachedBytes>> {
        let geometry = self.0.geometry();
        if !self.0.is_cached || geometry.read_only || geometry.check(range).is_err() {
            return None;
        }
        let (offset, length) = self.0.bytes(range);
        Some(Box::new(CachedRange { handle: self.0.clone(), offset, length }))
    }
}

/// Bytes of a file in the page cache.
struct CachedRange {
    handle: Rc<Inner>,
    offset: u64,
    length: u64,
}

impl CachedRange {
    /// Place in the file of `length` bytes at `offset` of the range.
    fn place(&self, offset: u64, length: usize) -> Result<u64> {
        match offset.checked_add(length as u64).is_some_and(|end| end <= self.length) {
            true => Ok(self.offset + offset),
            false => Err(Error::invalid(format!(
                "{length} bytes at {offset} of a range of {}: expected a place inside of its {} bytes",
                self.handle.file.name(),
                self.length
            ))),
        }
    }
}

impl CachedBytes for CachedRange {
    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.handle.file.read_cached(self.place(offset, bytes.len())?, bytes)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        // After a failed sync the loss of a page may be reported nowhere.
        self.handle.shared.durability.check(self.handle.file.name())?;
        self.handle.file.write_cached(self.place(offset, bytes.len())?, bytes)
    }
}
