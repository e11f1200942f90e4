//! The Zones contract: append-only zones, read anywhere, reset as a whole.

use crate::address::{ZoneAddress, ZoneIndex};
use crate::buffer::{Buffer, Payload};
use crate::call::Call;
use crate::device::{CachedBytes, ReadOutcome};
use crate::error::Result;
use crate::geometry::{EraseGuarantee, ZoneGeometry};
use std::rc::Rc;

/// State of a zone: the zone state machine of the NVM Express Zoned Namespace Command Set Specification,
/// revision 1.1, and [`Interrupted`](Self::Interrupted), which the specification doesn't have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ZoneState {
    /// Reset, and neither opened nor appended to since.
    Empty,
    /// Opened by an append; accepts appends. Counts against `max_open` and `max_active`.
    ImplicitlyOpen,
    /// Opened by [`Zones::open`]; accepts appends. Counts against `max_open` and `max_active`.
    ExplicitlyOpen,
    /// Begun, and not open: closed by [`Zones::close`], or open at a clean stop. An append opens it again and
    /// continues at the write pointer. Counts against `max_active`.
    Closed,
    /// Begun before an unclean stop, or left with a hole by an append, a finish or a reset that failed. It is
    /// readable, and can be scanned, finished or reset, never continued. Counts against `max_active`.
    Interrupted,
    /// Accepts no more appends.
    Full,
    /// The medium accepts no more writes to the zone; its contents can be read.
    ReadOnly,
    /// The medium lost the contents of the zone.
    Offline,
}

impl ZoneState {
    /// Whether the zone is open, implicitly or explicitly, and counts against `max_open`.
    pub fn is_open(self) -> bool {
        matches!(self, ZoneState::ImplicitlyOpen | ZoneState::ExplicitlyOpen)
    }

    /// Whether the zone was begun and not finished, and counts against `max_active`.
    pub fn is_active(self) -> bool {
        self.is_open() || matches!(self, ZoneState::Closed | ZoneState::Interrupted)
    }
}

/// State of one zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ZoneReport {
    /// Index of the zone.
    pub zone: ZoneIndex,
    /// State in the zone state machine.
    pub state: ZoneState,
    /// Upper bound of the appended bytes: none are at or after this offset, and appends in flight end before
    /// it. In an [`Interrupted`](ZoneState::Interrupted) zone there may be holes below it.
    pub write_pointer: u64,
    /// Generation: raised by every reset of the zone. Every record carries it, so that a record from before a
    /// reset is never valid afterwards.
    pub generation: u64,
}

/// A change of a zone, of those that [`Zones::change_together`] makes durable together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ZoneChange {
    /// As [`Zones::flush`] of this zone.
    Flush(ZoneIndex),
    /// As [`Zones::finish`].
    Finish(ZoneIndex),
    /// As [`Zones::reset`] without a guarantee of erasure.
    Reset(ZoneIndex),
}

impl ZoneChange {
    /// The zone that is changed.
    pub fn zone(self) -> ZoneIndex {
        let (ZoneChange::Flush(zone) | ZoneChange::Finish(zone) | ZoneChange::Reset(zone)) = self;
        zone
    }
}

/// Bytes beside the zones that are overwritten in place: a store keeps acknowledged writes there until their
/// records are in a zone. All handles share them.
pub trait Staging {
    /// Number of bytes.
    fn bytes(&self) -> u64;

    /// Reads all of them.
    fn read(&self) -> Call<'_, Result<Buffer>>;

    /// Overwrites all of them with zeros, durably.
    fn erase(&self) -> Call<'_, Result<()>>;

    /// Returns synchronous access; `None` where the device below has none. What was written can be read and
    /// erased also through a handle without this access.
    fn open_cached(&self) -> Option<Box<dyn CachedBytes>>;
}

/// Staging area of the zones below a layer that doesn't see synchronous writes: it is read and erased, never
/// written.
pub fn without_cached(below: Option<Rc<dyn Staging>>) -> Option<Rc<dyn Staging>> {
    below.map(|below| Rc::new(WithoutCached(below)) as Rc<dyn Staging>)
}

struct WithoutCached(Rc<dyn Staging>);

impl Staging for WithoutCached {
    fn bytes(&self) -> u64 {
        self.0.bytes()
    }

    fn read(&self) -> Call<'_, Result<Buffer>> {
        self.0.read()
    }

    fn erase(&self) -> Call<'_, Result<()>> {
        self.0.erase()
    }

    fn open_cached(&self) -> Option<Box<dyn CachedBytes>> {
        None
    }
}

/// A handle of one shard on a set of zones.
///
/// # Promises
/// - An append is contiguous inside its zone. Its address is known when it completes and not before; appends
///   that are in flight at the same time, through any handles, land in any order.
/// - After its completion, an append can be read through every handle. A read of bytes that no completed
///   append wrote is an error or returns undefined bytes, but never another zone's.
/// - `geometry().durable` is the moment at which an append is durable. An append that failed may have left a
///   hole; the zone then takes no more appends if its medium can't skip it.
/// - After a clean stop a zone that was open is [`Closed`](ZoneState::Closed), or full where zones are
///   durable on finish.
/// - After an unclean stop a zone that was begun and not full is [`Interrupted`](ZoneState::Interrupted): its
///   write pointer is an upper bound, over holes. It is scanned and finished or reset, never continued.
/// - Only [`close`](Self::close) closes a zone. NVMe lets a controller close an implicitly open zone to open
///   another one; these zones return [`Error::Busy`](crate::Error::Busy) instead, so that the open zones are
///   those that the caller opened. An implementation over a device that does close zones opens them
///   explicitly there.
/// - `reset` gives at least the requested guarantee, or fails with
///   [`Error::Unsupported`](crate::Error::Unsupported) and leaves the zone unchanged.
/// - Dropping a call ends the wait, never the operation.
///
/// [`Error::NoSpace`](crate::Error::NoSpace): an append doesn't fit the rest of its zone;
/// [`Error::Misplaced`](crate::Error::Misplaced): an append named an offset other than the write pointer;
/// [`Error::Busy`](crate::Error::Busy): `max_open` or `max_active` is reached;
/// [`Error::Invalid`](crate::Error::Invalid): a zone doesn't exist or isn't in a state for the call (full,
/// interrupted, offline; empty for a close), or a length or offset violates the geometry.
pub trait Zones {
    /// Geometry of the zones. It does not change while a handle is open.
    fn geometry(&self) -> &ZoneGeometry;

    /// Appends the payload to a zone that is empty, open or closed, and returns its address. A zone that
    /// isn't open is opened implicitly.
    fn append(&self, zone: ZoneIndex, payload: Payload) -> Call<'_, Result<ZoneAddress>>;

    /// Appends the payload as [`append`](Self::append) does, at exactly this address. The address must be the
    /// write pointer of its zone, after all appends in flight.
    ///
    /// # Errors
    /// [`Error::Misplaced`](crate::Error::Misplaced) with the write pointer if it differs. Then nothing has
    /// been written, and the zone's state is unchanged, except that an empty or closed zone may have been
    /// opened implicitly.
    fn append_at(&self, at: ZoneAddress, payload: Payload) -> Call<'_, Result<()>>;

    /// Explicitly opens a zone that is empty, closed or implicitly open. Opening an explicitly open zone does
    /// nothing.
    ///
    /// # Errors
    /// [`Error::Busy`](crate::Error::Busy) where `max_open` or `max_active` is reached; the zone is
    /// unchanged.
    fn open(&self, zone: ZoneIndex) -> Call<'_, Result<()>>;

    /// Closes an open zone: it no longer counts against `max_open`. Appends in flight still complete. Closing
    /// a closed zone does nothing.
    fn close(&self, zone: ZoneIndex) -> Call<'_, Result<()>>;

    /// Fills the buffer with the bytes at this address.
    fn read(&self, at: ZoneAddress, buffer: Buffer) -> Call<'_, ReadOutcome>;

    /// Makes every append to these zones that completed before this call durable. Where zones are durable on
    /// finish it finishes them.
    fn flush<'a>(&'a self, zones: &'a [ZoneIndex]) -> Call<'a, Result<()>>;

    /// Finishes a zone: it accepts no more appends, and its contents are durable when this returns. Appends
    /// in flight complete first. Finishing a full zone does nothing.
    fn finish(&self, zone: ZoneIndex) -> Call<'_, Result<()>>;

    /// Resets a zone, which empties it, and durably raises its generation, which is returned. Appends in
    /// flight complete first and are lost. The caller ensures that the zone has no readers.
    fn reset(&self, zone: ZoneIndex, erase: EraseGuarantee) -> Call<'_, Result<u64>>;

    /// Changes zones, each named once, and makes that durable together: after an unclean stop all of it is
    /// there or nothing. A reset gives no guarantee of erasure. Zones whose part keeps the order of calls
    /// ([`ZonesPart::keep_order`](crate::ZonesPart::keep_order)) support it, and begin it as one call.
    ///
    /// # Errors
    /// [`Error::Unsupported`](crate::Error::Unsupported) for all other zones, and for a reset of zones with
    /// [`EraseGuarantee::Key`]; [`Error::Invalid`](crate::Error::Invalid) for a zone that is named twice.
    /// Then nothing is changed.
    fn change_together(&self, changes: Vec<ZoneChange>) -> Call<'_, Result<()>> {
        Call::ready(Err(crate::Error::unsupported(format!(
            "{} changes together: these zones don't keep the order of changes",
            changes.len()
        ))))
    }

    /// Allocates space for the next `bytes` of appends to a zone, if the medium below allocates space at the
    /// first write (a file with holes). Allocates less if the zone has less left. The zone must have no
    /// append in flight meanwhile. The default does nothing.
    ///
    /// # Errors
    /// [`Error::NoSpace`](crate::Error::NoSpace) if the medium has no free space; a part of it may have been
    /// allocated.
    fn reserve(&self, zone: ZoneIndex, bytes: u64) -> Call<'_, Result<()>> {
        let _ = (zone, bytes);
        Call::ready(Ok(()))
    }

    /// Moves the write pointer of a begun zone back to `at` and closes the zone, so that appends can be
    /// repeated that an unclean stop or a failed append may have lost. An interrupted zone accepts appends
    /// again. Appends in flight complete first.
    ///
    /// The caller guarantees that everything below `at` is durable, and that the repeated appends write the
    /// same bytes at the same offsets. An implementation guarantees that data at or after `at` that was
    /// durable remains so; until it is appended again, a read of it may fail.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) for a zone that is neither open, closed nor interrupted, and
    /// for an address after its write pointer; [`Error::Unsupported`](crate::Error::Unsupported) if
    /// [`ZonesPart::can_rewind`](crate::ZonesPart::can_rewind) is false.
    fn rewind(&self, at: ZoneAddress) -> Call<'_, Result<()>> {
        Call::ready(Err(crate::Error::unsupported(format!(
            "rewinding to {at}: these zones continue no interrupted zone"
        ))))
    }

    /// Returns the staging area; `None` for zones without one. A layer over zones passes it on: acknowledged
    /// writes may be in it.
    fn staging(&self) -> Option<Rc<dyn Staging>> {
        None
    }

    /// Returns the state of `count` zones, starting with `first`; fewer at the end of the device.
    fn report(&self, first: ZoneIndex, count: u32) -> Call<'_, Result<Vec<ZoneReport>>>;
}
