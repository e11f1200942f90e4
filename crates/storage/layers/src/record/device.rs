//! `record` over a device.

use super::format::{DeviceEntry, RecordType, Role, Shape, SubmissionFields};
use super::recorder::Recorder;
use block::layer::DeviceLayer;
use block::{
    BlockIndex, BlockRange, Buffer, CachedBytes, Call, Device, DeviceGeometry, DevicePart, Durability, Error,
    Extent, Part, Payload, ReadOutcome, Result, Status, ZeroMode,
};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Longest write that can be recorded, in bytes.
pub(super) const MAX_WRITE: usize = 1 << 30;

/// A device whose writes, discards and flushes are recorded.
pub struct RecordDevicePart {
    inner: Arc<dyn DevicePart>,
    /// Geometry in the timeline, which a growth of the inner device doesn't change.
    geometry: DeviceGeometry,
    membership: Membership,
    contents: Contents,
}

/// Optional contents of the recording.
#[derive(Debug, Clone, Copy)]
pub struct Contents {
    /// Whether ranges of reads are recorded.
    pub reads: bool,
    /// Whether written data is recorded; otherwise zeros in its place.
    pub data: bool,
}

/// A layer's membership in a timeline, which ends once.
pub(super) struct Membership {
    pub recorder: Arc<Recorder>,
    pub number: u16,
    role: Role,
    left: AtomicBool,
}

impl Membership {
    pub fn join(recorder: Arc<Recorder>, entry: &DeviceEntry) -> Result<Self> {
        let number = recorder.join(entry)?;
        Ok(Membership { recorder, number, role: entry.role, left: AtomicBool::new(false) })
    }

    pub fn status(&self) -> Status {
        let mut status = self.recorder.status();
        status.insert("device".into(), self.number.into());
        status.insert("role".into(), if self.role == Role::Client { "client" } else { "disk" }.into());
        status
    }

    /// Access of a handle to the recorder.
    pub fn log(&self) -> Log {
        Log { recorder: self.recorder.clone(), device: self.number }
    }

    pub async fn leave(&self) -> Result<()> {
        if self.left.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        self.recorder.leave().await
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        if !self.left.swap(true, Ordering::AcqRel) {
            self.recorder.abandon();
        }
    }
}

impl RecordDevicePart {
    /// Records the calls to `inner` under this name.
    pub fn new(inner: Arc<dyn DevicePart>, recorder: Arc<Recorder>, name: &str, role: Role) -> Result<Self> {
        let geometry = inner.geometry().clone();
        let shape = Shape::Device(geometry.clone());
        let entry = DeviceEntry { name: name.to_owned(), role, shape };
        let contents = Contents { reads: false, data: true };
        Ok(RecordDevicePart { inner, geometry, membership: Membership::join(recorder, &entry)?, contents })
    }

    /// Sets the optional contents.
    #[must_use]
    pub fn with_contents(self, contents: Contents) -> Self {
        RecordDevicePart { contents, ..self }
    }

    /// Number of this device in the timeline.
    pub fn number(&self) -> u16 {
        self.membership.number
    }
}

impl Part for RecordDevicePart {
    fn kind(&self) -> &'static str {
        "record"
    }

    fn status(&self) -> Call<'_, Status> {
        Call::ready(self.membership.status())
    }

    fn close(&self) -> Call<'_, Result<()>> {
        Call::new(self.membership.leave())
    }
}

impl DeviceLayer for RecordDevicePart {
    fn below(&self) -> &Arc<dyn DevicePart> {
        &self.inner
    }

    fn own_geometry(&self) -> Option<&DeviceGeometry> {
        Some(&self.geometry)
    }

    fn handle(&self, below: Rc<dyn Device>) -> Rc<dyn Device> {
        let (geometry, log) = (self.geometry.clone(), self.membership.log());
        Rc::new(RecordDevice { inner: below, geometry, log, contents: self.contents })
    }
}

/// A handle's access to the recorder.
#[derive(Clone)]
pub(super) struct Log {
    pub recorder: Arc<Recorder>,
    pub device: u16,
}

impl Log {
    pub fn submit(&self, fields: &SubmissionFields<'_>) -> Result<u64> {
        let length = fields.data.map_or(0, Payload::len);
        if length > MAX_WRITE {
            return Err(Error::overflow(format!(
                "record: a write of {length} bytes is too long; expected at most 1 GiB"
            )));
        }
        let data = if fields.leaves_out_data { 0 } else { length + length / 128 };
        let mut body = Vec::with_capacity(64 + data);
        fields.encode(&mut body);
        self.recorder.record(RecordType::Submit, self.device, &body)
    }

    /// Runs a recorded operation: directly while the buffer has capacity; otherwise in a task that waits for
    /// capacity, because dropping a call must not stop its operation.
    pub async fn run<T: 'static>(&self, operation: impl Future<Output = Result<T>> + 'static) -> Result<T> {
        let recorder = self.recorder.clone();
        if recorder.has_capacity() {
            return operation.await;
        }
        runtime::spawn(async move {
            recorder.capacity().await;
            operation.await
        })
        .await
    }

    pub fn complete(&self, submitted: u64, result: Result<()>) -> Result<()> {
        self.recorder.complete(self.device, submitted, result, |()| 0)
    }
}

struct RecordDevice {
    inner: Rc<dyn Device>,
    /// Geometry in the timeline, which a growth of the inner device doesn't change.
    geometry: DeviceGeometry,
    log: Log,
    contents: Contents,
}

impl RecordDevice {
    /// Whether a valid change changes anything.
    fn writes(&self, range: BlockRange) -> Result<bool> {
        self.geometry.check_writable().and_then(|()| self.geometry.check(range)).map(|()| !range.is_empty())
    }

    fn fields(&self, operation: u8, range: BlockRange) -> SubmissionFields<'static> {
        let size = self.geometry.block_size;
        let fields =
            SubmissionFields::new(operation, size.offset_of(range.start).0, size.bytes_of(range.count));
        SubmissionFields { leaves_out_data: !self.contents.data, ..fields }
    }
}

// Invalid and empty requests aren't recorded.
impl Device for RecordDevice {
    fn geometry(&self) -> &DeviceGeometry {
        &self.geometry
    }

    fn read(&self, at: BlockIndex, buffer: Buffer) -> Call<'_, ReadOutcome> {
        let range = match self.geometry.range(at, buffer.len()) {
            Ok(range) if self.contents.reads && !range.is_empty() => range,
            Ok(_) => return self.inner.read(at, buffer),
            Err(error) => {
                let mut buffer = buffer;
                buffer.clear();
                return Call::ready((Err(error), buffer));
            }
        };
        Call::new(async move {
            if !self.log.recorder.has_capacity() {
                self.log.recorder.capacity().await;
            }
            let submitted = match self.log.submit(&self.fields(9, range)) {
                Ok(submitted) => submitted,
                Err(error) => return (Err(error), buffer),
            };
            let (result, mut buffer) = self.inner.read(at, buffer).await;
            let result = self.log.complete(submitted, result);
            if result.is_err() {
                buffer.clear();
            }
            (result, buffer)
        })
    }

    fn write(&self, at: BlockIndex, payload: Payload, durability: Durability) -> Call<'_, Result<()>> {
        Call::new(async move {
            let range = self.geometry.writable_range(at, payload.len())?;
            if range.is_empty() {
                return self.inner.write(at, payload, durability).await;
            }
            let (inner, log, mut fields) = (self.inner.clone(), self.log.clone(), self.fields(1, range));
            fields.durable = durability == Durability::Durable;
            self.log
                .run(async move {
                    let submitted = log.submit(&SubmissionFields { data: Some(&payload), ..fields })?;
                    let result = inner.write(at, payload, durability).await;
                    log.complete(submitted, result)
                })
                .await
        })
    }

    fn flush(&self) -> Call<'_, Result<()>> {
        Call::new(async move {
            let (inner, log) = (self.inner.clone(), self.log.clone());
            self.log
                .run(async move {
                    let submitted = log.submit(&SubmissionFields::new(4, 0, 0))?;
                    let result = inner.flush().await;
                    log.complete(submitted, result)
                })
                .await
        })
    }

    fn discard(&self, range: BlockRange) -> Call<'_, Result<()>> {
        Call::new(async move {
            if !self.writes(range)? {
                return self.inner.discard(range).await;
            }
            let (inner, log, fields) = (self.inner.clone(), self.log.clone(), self.fields(3, range));
            self.log
                .run(async move {
                    let submitted = log.submit(&fields)?;
                    let result = inner.discard(range).await;
                    log.complete(submitted, result)
                })
                .await
        })
    }

    fn write_zeroes(
        &self,
        range: BlockRange,
        mode: ZeroMode,
        durability: Durability,
    ) -> Call<'_, Result<()>> {
        Call::new(async move {
            if !self.writes(range)? {
                return self.inner.write_zeroes(range, mode, durability).await;
            }
            let (inner, log, mut fields) = (self.inner.clone(), self.log.clone(), self.fields(2, range));
            fields.durable = durability == Durability::Durable;
            fields.mode = u8::from(mode == ZeroMode::KeepAllocated);
            self.log
                .run(async move {
                    let submitted = log.submit(&fields)?;
                    let result = inner.write_zeroes(range, mode, durability).await;
                    log.complete(submitted, result)
                })
                .await
        })
    }

    fn extents(&self, range: BlockRange) -> Call<'_, Result<Vec<Extent>>> {
        match self.geometry.check(range) {
            Ok(()) => self.inner.extents(range),
            Err(error) => Call::ready(Err(error)),
        }
    }

    fn open_cached(&self, range: BlockRange) -> Option<Box<dyn CachedBytes>> {
        self.geometry.check(range).ok()?;
        let inner = self.inner.open_cached(range)?;
        let (log, geometry) = (self.log.clone(), self.geometry.clone());
        let leaves_out_data = !self.contents.data;
        Some(Box::new(RecordedBytes { inner, log, range, geometry, leaves_out_data }))
    }
}

/// Synchronous access to a range of the device. A write is recorded as one of the whole blocks that it
/// changes, submitted and completed at this moment, as the page cache writes them back. It doesn't wait for
/// capacity of the recorder, which it can't.
struct RecordedBytes {
    inner: Box<dyn CachedBytes>,
    log: Log,
    range: BlockRange,
    geometry: DeviceGeometry,
    leaves_out_data: bool,
}

impl CachedBytes for RecordedBytes {
    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.inner.read(offset, bytes)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let size = self.geometry.block_size;
        let end = offset.saturating_add(bytes.len() as u64);
        if bytes.is_empty() || end > size.bytes_of(self.range.count) {
            return self.inner.write(offset, bytes);
        }
        let first = offset >> size.shift() << size.shift();
        let mut blocks = Buffer::zeroed((end.next_multiple_of(size.bytes()) - first) as usize);
        self.inner.read(first, blocks.filled_mut())?;
        let from = (offset - first) as usize;
        blocks.filled_mut()[from..from + bytes.len()].copy_from_slice(bytes);
        let payload = Payload::from(blocks);
        let place = size.offset_of(self.range.start).0 + first;
        let fields = SubmissionFields::new(1, place, payload.len() as u64);
        let leaves_out_data = self.leaves_out_data;
        let submitted =
            self.log.submit(&SubmissionFields { data: Some(&payload), leaves_out_data, ..fields })?;
        let result = self.inner.write(offset, bytes);
        self.log.complete(submitted, result)
    }
}
