//! A device below a layer with a limit of the time of its requests: a leg, an origin, a fast device.
//!
//! # Promises
//! - A request that the device doesn't answer within the limit ([`TimeLimit`]) fails with
//!   [`Error::TimedOut`], and so do all others in flight through the same handle.
//! - The device continues such a request, whose data stays with a task. As long as one of them is in flight,
//!   on any shard, the device is *stalled*: requests fail at once, so that none is overtaken by an earlier
//!   one that was reported as failed.
//! - Discards and zeroes are cut into pieces of [`MAX_PIECE`], each with its own limit.

use crate::carry::carry;
use crate::task::spawn;
use crate::time_limit::{LimitedRequest, TimeLimit};
use crate::timer::timeout;
use block::{
    BlockIndex, BlockRange, Buffer, Call, Device, DeviceGeometry, DevicePart, Durability, Error, Extent,
    Part, PartUse, Payload, ReadOutcome, Result, ZeroMode,
};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

/// Longest discard or write of zeros that is passed on as one request, in bytes.
const MAX_PIECE: u64 = 64 << 20;

/// A part below a layer, with the limit of its requests; shared by all shards.
pub struct LimitedPart {
    part: Arc<dyn DevicePart>,
    /// The part in errors: `leg "a"`.
    name: String,
    limit: Duration,
    /// Requests in flight that were reported as failed.
    abandoned: AtomicU64,
}

impl LimitedPart {
    /// Limits the requests to a part, which errors call `name`.
    pub fn new(part: Arc<dyn DevicePart>, name: impl Into<String>, limit: Duration) -> Arc<LimitedPart> {
        Arc::new(LimitedPart { part, name: name.into(), limit, abandoned: AtomicU64::new(0) })
    }

    /// The part itself, without the limit.
    pub fn part(&self) -> &Arc<dyn DevicePart> {
        &self.part
    }

    /// Whether it is this part.
    pub fn is(&self, part: &dyn Part) -> bool {
        std::ptr::addr_eq(Arc::as_ptr(&self.part), part)
    }

    /// Whether requests in flight were reported as failed.
    #[inline]
    pub fn is_stalled(&self) -> bool {
        self.abandoned.load(Ordering::Acquire) > 0
    }

    #[cold]
    fn error(&self) -> Error {
        Error::timed_out(format!("{} didn't answer within {:?}", self.name, self.limit))
    }

    /// Use of `part`, one of `parts`, at the close of the layer above: answers
    /// [`Part::use_of`](block::Part::use_of).
    pub fn use_among(parts: &[Arc<LimitedPart>], part: &dyn Part) -> PartUse {
        match parts.iter().any(|limited| limited.is(part) && limited.is_stalled()) {
            true => PartUse::Stalled,
            false => PartUse::Needed,
        }
    }

    /// Opens a handle of this shard within the limit.
    ///
    /// # Errors
    /// Errors of the device; [`Error::TimedOut`] after the limit.
    pub async fn open(self: &Arc<Self>) -> Result<Rc<dyn Device>> {
        match timeout(self.limit, self.part.open()).await {
            Ok(device) => Ok(self.handle(device?)),
            Err(_) => Err(self.error()),
        }
    }

    /// Wraps a handle of this shard.
    fn handle(self: &Arc<Self>, device: Rc<dyn Device>) -> Rc<dyn Device> {
        Rc::new(LimitedDevice(Rc::new(Handle {
            device,
            limit: TimeLimit::new(self.limit),
            limited: self.clone(),
        })))
    }
}

/// State of a handle.
struct Handle {
    device: Rc<dyn Device>,
    limit: TimeLimit,
    limited: Arc<LimitedPart>,
}

impl Handle {
    /// Begins a request; `failed` is its result if it fails for the limit.
    #[inline]
    fn begin<T: 'static>(
        &self,
        length: usize,
        failed: fn(Error, usize) -> T,
        request: impl Future<Output = T> + 'static,
    ) -> Call<'_, T> {
        if self.limited.is_stalled() {
            return Call::ready(failed(self.limited.error(), length));
        }
        let waiting = self.limit.begin();
        Call::new(Request { handle: self, call: Some(Call::new(request)), waiting, length, failed })
    }

    #[inline]
    fn change(&self, request: impl Future<Output = Result<()>> + 'static) -> Call<'_, Result<()>> {
        self.begin(0, |error, _| Err(error), request)
    }
}

/// A request in flight.
struct Request<'a, T: 'static> {
    handle: &'a Handle,
    call: Option<Call<'static, T>>,
    waiting: LimitedRequest,
    /// Length of a read's buffer.
    length: usize,
    failed: fn(Error, usize) -> T,
}

impl<T: 'static> Future for Request<'_, T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let this = &mut *self;
        let call = this.call.as_mut().expect("a request is not polled again once it has ended");
        if let Poll::Ready(outcome) = Pin::new(call).poll(context) {
            this.call = None;
            return Poll::Ready(outcome);
        }
        if this.waiting.poll_failed(context).is_pending() {
            return Poll::Pending;
        }
        let limited = this.handle.limited.clone();
        if limited.abandoned.fetch_add(1, Ordering::AcqRel) == 0 {
            tracing::warn!(
                "{}; its requests fail until those in flight have ended",
                limited.error().detail()
            );
        }
        let error = limited.error();
        let call = this.call.take();
        spawn(async move {
            if let Some(call) = call {
                call.await;
            }
            limited.abandoned.fetch_sub(1, Ordering::AcqRel);
        })
        .detach();
        Poll::Ready((this.failed)(error, this.length))
    }
}

/// Handle of a device whose requests have a limit.
struct LimitedDevice(Rc<Handle>);

impl LimitedDevice {
    /// Carries out a change of a range in pieces.
    fn in_pieces<F>(
        &self,
        range: BlockRange,
        change: fn(Rc<dyn Device>, BlockRange, F) -> Change,
        with: F,
    ) -> Call<'_, Result<()>>
    where
        F: Copy + 'static,
    {
        let handle = &self.0;
        let largest = (MAX_PIECE >> handle.device.geometry().block_size.shift()).max(1);
        if range.count.0 <= largest {
            return handle.change(change(handle.device.clone(), range, with));
        }
        if let Err(error) = handle.device.geometry().check(range) {
            return Call::ready(Err(error));
        }
        let handle = handle.clone();
        carry(async move {
            let mut at = range.start.0;
            while at < range.end().0 {
                let count = largest.min(range.end().0 - at);
                handle.change(change(handle.device.clone(), BlockRange::new(at, count), with)).await?;
                at += count;
            }
            Ok(())
        })
    }
}

type Change = Call<'static, Result<()>>;

impl Device for LimitedDevice {
    fn geometry(&self) -> &DeviceGeometry {
        self.0.device.geometry()
    }

    fn read(&self, at: BlockIndex, buffer: Buffer) -> Call<'_, ReadOutcome> {
        let (device, length) = (self.0.device.clone(), buffer.len());
        let failed = |error, length| (Err(error), Buffer::new(length));
        self.0.begin(length, failed, async move { device.read(at, buffer).await })
    }

    fn write(&self, at: BlockIndex, payload: Payload, durability: Durability) -> Call<'_, Result<()>> {
        let device = self.0.device.clone();
        self.0.change(async move { device.write(at, payload, durability).await })
    }

    fn flush(&self) -> Call<'_, Result<()>> {
        let device = self.0.device.clone();
        self.0.change(async move { device.flush().await })
    }

    fn discard(&self, range: BlockRange) -> Call<'_, Result<()>> {
        let discard =
            |device: Rc<dyn Device>, range, ()| Call::new(async move { device.discard(range).await });
        self.in_pieces(range, discard, ())
    }

    fn write_zeroes(
        &self,
        range: BlockRange,
        mode: ZeroMode,
        durability: Durability,
    ) -> Call<'_, Result<()>> {
        let zero = |device: Rc<dyn Device>, range, (mode, durability)| {
            Call::new(async move { device.write_zeroes(range, mode, durability).await })
        };
        self.in_pieces(range, zero, (mode, durability))
    }

    fn extents(&self, range: BlockRange) -> Call<'_, Result<Vec<Extent>>> {
        let device = self.0.device.clone();
        self.0.begin(0, |error, _| Err(error), async move { device.extents(range).await })
    }
}
