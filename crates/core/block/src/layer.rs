//! Layers with the promises of the part below them: each implements only its own additions.
//!
//! [`DeviceLayer`] and [`ZonesLayer`] pass the questions to a part on to the part below. [`Observed`] is a
//! handle that shows every call to an [`Observer`] and changes none; [`ObservedPart`] is a part with such
//! handles that is otherwise the part itself, for programs that observe a part without a layer in the stack.

use crate::address::{BlockIndex, BlockRange, ZoneAddress, ZoneIndex};
use crate::buffer::{Buffer, Payload};
use crate::call::Call;
use crate::claim::{Claim, ClaimToken};
use crate::device::{CachedBytes, Device, Durability, Extent, ReadOutcome, ZeroMode};
use crate::error::{Error, Result};
use crate::fullness::Fullness;
use crate::geometry::{DeviceGeometry, EraseGuarantee, ZoneGeometry};
use crate::part::{DevicePart, Part, PartUse, Status, View, ZonesPart};
use crate::zones::{Staging, ZoneReport, Zones};
use std::rc::Rc;
use std::sync::Arc;

/// A layer over one device, with that device's answers to all questions of [`DevicePart`] but the geometry.
pub trait DeviceLayer: Part {
    /// The device below.
    fn below(&self) -> &Arc<dyn DevicePart>;

    /// Geometry of the layer; `None` for that of the device below.
    fn own_geometry(&self) -> Option<&DeviceGeometry> {
        None
    }

    /// Makes the layer's handle over one of the device below, on the same shard.
    fn handle(&self, below: Rc<dyn Device>) -> Rc<dyn Device>;
}

impl<L: DeviceLayer> DevicePart for L {
    fn geometry(&self) -> &DeviceGeometry {
        self.own_geometry().unwrap_or_else(|| self.below().geometry())
    }

    fn open(&self) -> Call<'_, Result<Rc<dyn Device>>> {
        Call::new(async move { Ok(self.handle(self.below().open().await?)) })
    }

    fn only_in_cache(&self) -> Option<u64> {
        self.below().only_in_cache()
    }

    fn keeps_acknowledged(&self) -> bool {
        self.below().keeps_acknowledged()
    }

    fn keeps_flushed(&self) -> bool {
        self.below().keeps_flushed()
    }
}

/// A layer over zones, with their answers to all questions of [`ZonesPart`].
pub trait ZonesLayer: Part {
    /// The zones below.
    fn below(&self) -> &Arc<dyn ZonesPart>;

    /// Makes the layer's handle over one of the zones below, on the same shard.
    fn handle(&self, below: Rc<dyn Zones>) -> Rc<dyn Zones>;
}

impl<L: ZonesLayer> ZonesPart for L {
    fn geometry(&self) -> &ZoneGeometry {
        self.below().geometry()
    }

    fn keeps_acknowledged(&self) -> bool {
        self.below().keeps_acknowledged()
    }

    fn can_rewind(&self) -> bool {
        self.below().can_rewind()
    }

    fn flushes_atomically(&self) -> bool {
        self.below().flushes_atomically()
    }

    fn last_claim(&self) -> Call<'_, Result<Option<Claim>>> {
        self.below().last_claim()
    }

    fn claim(&self, token: ClaimToken) -> Call<'_, Result<Option<Claim>>> {
        self.below().claim(token)
    }

    fn open(&self) -> Call<'_, Result<Rc<dyn Zones>>> {
        Call::new(async move { Ok(self.handle(self.below().open().await?)) })
    }
}

/// Kinds of calls to a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // The methods of `Device`.
pub enum DeviceCall {
    Read,
    Write,
    /// A write that is durable once it is acknowledged.
    WriteDurable,
    Flush,
    Discard,
    WriteZeroes,
    Extents,
}

/// Kinds of calls to zones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // The methods of `Zones`; `append_at` is an `Append`.
pub enum ZonesCall {
    Append,
    Read,
    Flush,
    Finish,
    Reset,
    Report,
    Open,
    Close,
    Reserve,
}

/// Position of a call: a block, or a zone and a byte in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Position {
    /// The call concerns the whole part, or several zones.
    Whole,
    /// First block of a call to a device.
    Block(BlockIndex),
    /// A zone.
    Zone(ZoneIndex),
    /// An address in a zone.
    Address(ZoneAddress),
}

/// Observer of calls of kind `C`.
pub trait Observer<C> {
    /// A call in flight. Dropping it ends a call that was cancelled.
    type InFlight<'a>
    where
        Self: 'a;

    /// Whether calls are observed now. If not, a call costs this question only. The answer at its start holds
    /// for the whole call.
    #[inline]
    fn is_on(&self) -> bool {
        true
    }

    /// Notes the start of a call, when it is first polled.
    fn begin(&self, call: C, at: Position) -> Self::InFlight<'_>;

    /// Notes the end of a call, with its error; `bytes` is the number of bytes read, written, discarded or
    /// zeroed.
    fn end(&self, call: Self::InFlight<'_>, bytes: u64, error: Option<&Error>);
}

/// Handle of a device or of zones whose calls are observed.
pub struct Observed<H: ?Sized, O> {
    below: Rc<H>,
    observer: Rc<O>,
}

impl<H: ?Sized, O> Observed<H, O> {
    /// Observes the calls to a handle.
    pub fn new(below: Rc<H>, observer: O) -> Rc<Self> {
        Rc::new(Observed { below, observer: Rc::new(observer) })
    }
}

/// Makes a call inside of an observation. A macro, so that the future holds only the call's arguments.
macro_rules! observed {
    ($self:ident, $kind:expr, $at:expr, $bytes:expr, $call:expr) => {
        observed!($self, $kind, $at, $bytes, $call, |result| result.as_ref().err())
    };
    ($self:ident, $kind:expr, $at:expr, $bytes:expr, $call:expr, |$result:ident| $error:expr) => {{
        if !$self.observer.is_on() {
            return $call;
        }
        Call::new(async move {
            let bytes = $bytes as u64;
            let in_flight = $self.observer.begin($kind, $at);
            let $result = $call.await;
            $self.observer.end(in_flight, bytes, $error);
            $result
        })
    }};
}

impl<O: Observer<DeviceCall>> Observed<dyn Device, O> {
    fn bytes_of(&self, range: BlockRange) -> u64 {
        self.below.geometry().block_size.bytes_of(range.count)
    }
}

impl<O: Observer<DeviceCall> + 'static> Device for Observed<dyn Device, O> {
    fn geometry(&self) -> &DeviceGeometry {
        self.below.geometry()
    }

    #[inline]
    fn read(&self, at: BlockIndex, buffer: Buffer) -> Call<'_, ReadOutcome> {
        observed!(
            self,
            DeviceCall::Read,
            Position::Block(at),
            buffer.len(),
            self.below.read(at, buffer),
            |read| read.0.as_ref().err()
        )
    }

    #[inline]
    fn write(&self, at: BlockIndex, payload: Payload, durability: Durability) -> Call<'_, Result<()>> {
        let kind = |durability| match durability {
            Durability::Durable => DeviceCall::WriteDurable,
            Durability::Visible => DeviceCall::Write,
        };
        observed!(
            self,
            kind(durability),
            Position::Block(at),
            payload.len(),
            self.below.write(at, payload, durability)
        )
    }

    fn flush(&self) -> Call<'_, Result<()>> {
        observed!(self, DeviceCall::Flush, Position::Whole, 0, self.below.flush())
    }

    fn discard(&self, range: BlockRange) -> Call<'_, Result<()>> {
        observed!(
            self,
            DeviceCall::Discard,
            Position::Block(range.start),
            self.bytes_of(range),
            self.below.discard(range)
        )
    }

    fn write_zeroes(
        &self,
        range: BlockRange,
        mode: ZeroMode,
        durability: Durability,
    ) -> Call<'_, Result<()>> {
        let call = move || self.below.write_zeroes(range, mode, durability);
        observed!(self, DeviceCall::WriteZeroes, Position::Block(range.start), self.bytes_of(range), call())
    }

    fn extents(&self, range: BlockRange) -> Call<'_, Result<Vec<Extent>>> {
        observed!(self, DeviceCall::Extents, Position::Block(range.start), 0, self.below.extents(range))
    }

    fn open_cached(&self, range: BlockRange) -> Option<Box<dyn CachedBytes>> {
        let below = self.below.open_cached(range)?;
        Some(Box::new(ObservedBytes { below, observer: self.observer.clone(), start: range.start }))
    }
}

/// Synchronous access to a range of an observed device.
struct ObservedBytes<O> {
    below: Box<dyn CachedBytes>,
    observer: Rc<O>,
    start: BlockIndex,
}

impl<O: Observer<DeviceCall>> ObservedBytes<O> {
    fn observe(&self, call: DeviceCall, bytes: usize, made: impl FnOnce() -> Result<()>) -> Result<()> {
        if !self.observer.is_on() {
            return made();
        }
        let in_flight = self.observer.begin(call, Position::Block(self.start));
        let result = made();
        self.observer.end(in_flight, bytes as u64, result.as_ref().err());
        result
    }
}

impl<O: Observer<DeviceCall>> CachedBytes for ObservedBytes<O> {
    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.observe(DeviceCall::Read, bytes.len(), || self.below.read(offset, bytes))
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.observe(DeviceCall::Write, bytes.len(), || self.below.write(offset, bytes))
    }
}

impl<O: Observer<ZonesCall>> Zones for Observed<dyn Zones, O> {
    fn geometry(&self) -> &ZoneGeometry {
        self.below.geometry()
    }

    fn append(&self, zone: ZoneIndex, payload: Payload) -> Call<'_, Result<ZoneAddress>> {
        observed!(
            self,
            ZonesCall::Append,
            Position::Zone(zone),
            payload.len(),
            self.below.append(zone, payload)
        )
    }

    fn append_at(&self, at: ZoneAddress, payload: Payload) -> Call<'_, Result<()>> {
        observed!(
            self,
            ZonesCall::Append,
            Position::Address(at),
            payload.len(),
            self.below.append_at(at, payload)
        )
    }

    fn open(&self, zone: ZoneIndex) -> Call<'_, Result<()>> {
        observed!(self, ZonesCall::Open, Position::Zone(zone), 0, self.below.open(zone))
    }

    fn close(&self, zone: ZoneIndex) -> Call<'_, Result<()>> {
        observed!(self, ZonesCall::Close, Position::Zone(zone), 0, self.below.close(zone))
    }

    fn read(&self, at: ZoneAddress, buffer: Buffer) -> Call<'_, ReadOutcome> {
        observed!(
            self,
            ZonesCall::Read,
            Position::Address(at),
            buffer.len(),
            self.below.read(at, buffer),
            |read| read.0.as_ref().err()
        )
    }

    fn flush<'a>(&'a self, zones: &'a [ZoneIndex]) -> Call<'a, Result<()>> {
        observed!(self, ZonesCall::Flush, Position::Whole, 0, self.below.flush(zones))
    }

    fn finish(&self, zone: ZoneIndex) -> Call<'_, Result<()>> {
        observed!(self, ZonesCall::Finish, Position::Zone(zone), 0, self.below.finish(zone))
    }

    fn reset(&self, zone: ZoneIndex, erase: EraseGuarantee) -> Call<'_, Result<u64>> {
        observed!(self, ZonesCall::Reset, Position::Zone(zone), 0, self.below.reset(zone, erase))
    }

    fn reserve(&self, zone: ZoneIndex, bytes: u64) -> Call<'_, Result<()>> {
        observed!(self, ZonesCall::Reserve, Position::Zone(zone), 0, self.below.reserve(zone, bytes))
    }

    fn rewind(&self, at: ZoneAddress) -> Call<'_, Result<()>> {
        self.below.rewind(at)
    }

    fn staging(&self) -> Option<Rc<dyn Staging>> {
        self.below.staging()
    }

    fn report(&self, first: ZoneIndex, count: u32) -> Call<'_, Result<Vec<ZoneReport>>> {
        observed!(self, ZonesCall::Report, Position::Zone(first), 0, self.below.report(first, count))
    }
}

/// Makes observers for the handles of a part.
pub trait ObserveHandles: Send + Sync {
    /// Observer of one handle, on its shard.
    type Observer: Observer<DeviceCall> + Observer<ZonesCall> + 'static;

    /// Makes the observer of another handle.
    fn observer(&self) -> Self::Observer;

    /// Passes on a call to the part itself: opening a handle, a message, or closing.
    fn call<'a, T: 'a>(&'a self, call: Call<'a, T>) -> Call<'a, T> {
        call
    }
}

/// A part whose handles are observed. It answers everything else as the part itself.
pub struct ObservedPart<P: ?Sized, W> {
    inner: Arc<P>,
    observers: Arc<W>,
}

impl<P: ?Sized, W> ObservedPart<P, W> {
    /// Observes the handles of a part.
    pub fn new(inner: Arc<P>, observers: W) -> Self {
        ObservedPart { inner, observers: Arc::new(observers) }
    }
}

impl<P: Part + ?Sized, W: ObserveHandles> Part for ObservedPart<P, W> {
    fn kind(&self) -> &'static str {
        self.inner.kind()
    }

    fn status(&self) -> Call<'_, Status> {
        self.inner.status()
    }

    fn message<'a>(&'a self, message: &'a str) -> Call<'a, Result<String>> {
        self.observers.call(self.inner.message(message))
    }

    fn close(&self) -> Call<'_, Result<()>> {
        self.observers.call(self.inner.close())
    }

    fn use_of(&self, below: &dyn Part) -> PartUse {
        self.inner.use_of(below)
    }

    fn fullness(&self) -> Call<'_, Option<Fullness>> {
        self.inner.fullness()
    }
}

impl<W: ObserveHandles> DevicePart for ObservedPart<dyn DevicePart, W> {
    fn geometry(&self) -> &DeviceGeometry {
        self.inner.geometry()
    }

    fn open(&self) -> Call<'_, Result<Rc<dyn Device>>> {
        Call::new(async move {
            let inner = self.observers.call(self.inner.open()).await?;
            Ok(Observed::new(inner, self.observers.observer()) as Rc<dyn Device>)
        })
    }

    fn only_in_cache(&self) -> Option<u64> {
        self.inner.only_in_cache()
    }

    fn keeps_acknowledged(&self) -> bool {
        self.inner.keeps_acknowledged()
    }

    fn keeps_flushed(&self) -> bool {
        self.inner.keeps_flushed()
    }

    fn version<'a>(&'a self, name: &'a str) -> Call<'a, Result<Arc<dyn DevicePart>>> {
        self.inner.version(name)
    }
}

impl<W: ObserveHandles + 'static> ZonesPart for ObservedPart<dyn ZonesPart, W> {
    fn geometry(&self) -> &ZoneGeometry {
        self.inner.geometry()
    }

    fn keeps_acknowledged(&self) -> bool {
        self.inner.keeps_acknowledged()
    }

    fn can_rewind(&self) -> bool {
        self.inner.can_rewind()
    }

    fn flushes_atomically(&self) -> bool {
        self.inner.flushes_atomically()
    }

    fn last_claim(&self) -> Call<'_, Result<Option<Claim>>> {
        self.inner.last_claim()
    }

    fn claim(&self, token: ClaimToken) -> Call<'_, Result<Option<Claim>>> {
        self.inner.claim(token)
    }

    fn view(&self) -> Call<'_, Result<Option<View>>> {
        Call::new(async move {
            let view = self.observers.call(self.inner.view()).await?;
            Ok(view.map(|View { number, zones }| {
                let observed = ObservedPart { inner: zones, observers: self.observers.clone() };
                View { number, zones: Arc::new(observed) }
            }))
        })
    }

    fn state(&self) -> Call<'_, Result<u64>> {
        self.inner.state()
    }

    fn open(&self) -> Call<'_, Result<Rc<dyn Zones>>> {
        Call::new(async move {
            let inner = self.observers.call(self.inner.open()).await?;
            Ok(Observed::new(inner, self.observers.observer()) as Rc<dyn Zones>)
        })
    }
}
