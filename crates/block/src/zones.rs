//! The Zones contract: append-only zones, read anywhere, reset as a whole.

use crate::address::{ZoneAddress, ZoneIndex};
use crate::buffer::{Buffer, Payload};
use crate::call::Call;
use crate::device::ReadOutcome;
use crate::error::Result;
use crate::geometry::{EraseGuarantee, ZoneGeometry};

/// State of a zone: those of the zone state machine of the NVM Express Zoned Namespace Command Set Specification, revision
/// 1.1, and [`Interrupted`](Self::Interrupted), which that has not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ZoneState {
    /// Reset, and neither opened nor appended to since.
    Empty,
    /// Opened by an append; takes more. Counts against `max_open` and `max_active`.
    ImplicitlyOpen,
    /// Opened by [`Zones::open`]; takes appends. Counts against `max_open` and `max_active`.
    ExplicitlyOpen,
    /// Begun, and not open: closed by [`Zones::close`], or open at a clean stop. An append opens it again and goes on at the
    /// write pointer. Counts against `max_active`.
    Closed,
    /// Begun before an unclean stop, or left with a hole by an append, a finish or a reset that failed: readable, and to be
    /// scanned, finished or reset, never continued. Counts against `max_active`.
    Interrupted,
    /// Takes no more appends.
    Full,
    /// The medium takes no more writes here; what is there can be read.
    ReadOnly,
    /// The medium lost it.
    Offline,
}

impl ZoneState {
    /// Whether the zone is open, implicitly or explicitly: whether it counts against `max_open`.
    pub fn is_open(self) -> bool {
        matches!(self, ZoneState::ImplicitlyOpen | ZoneState::ExplicitlyOpen)
    }

    /// Whether the zone was begun and not finished: whether it counts against `max_active`.
    pub fn is_active(self) -> bool {
        self.is_open() || matches!(self, ZoneState::Closed | ZoneState::Interrupted)
    }
}

/// What is known about one zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ZoneReport {
    /// Which zone.
    pub zone: ZoneIndex,
    /// Where it is in its life.
    pub state: ZoneState,
    /// Nothing was appended at this offset or behind it, in bytes; places of appends in flight are below it. For an
    /// [`Interrupted`](ZoneState::Interrupted) zone only an upper bound, and there may be holes below it.
    pub write_pointer: u64,
    /// How many times the zone has been reset; every record carries it, so that what was there before a
    /// reset never validates again.
    pub generation: u64,
}

/// A handle of one shard on a set of zones.
///
/// # Promises
/// - An append is contiguous inside its zone. Its address is known when it completes and not before;
///   appends that are in flight at the same time, through whichever handles, land in any order.
/// - From its completion on, an append can be read through every handle. A read of bytes that no completed
///   append wrote is an error or returns bytes of which nothing is promised, never another zone's.
/// - What is durable, and when, is `geometry().durable`. An append that failed may have left a hole; the
///   zone then takes no more appends if its medium can't skip it.
/// - After a clean stop a zone that was open is [`Closed`](ZoneState::Closed), or full where zones are durable on finish.
/// - After an unclean stop a zone that was begun and not full is [`Interrupted`](ZoneState::Interrupted): its write pointer is
///   an upper bound, over holes. It is scanned and finished or reset, never continued.
/// - A zone is closed by [`close`](Self::close) alone. NVMe lets a controller close an implicitly open zone to open another
///   one; these zones return [`Error::Busy`](crate::Error::Busy) instead, so that the open zones are those that the caller
///   opened. An implementation over a device that does close zones opens them explicitly there.
/// - `reset` gives at least the guarantee that was asked for or fails with
///   [`Error::Unsupported`](crate::Error::Unsupported), leaving the zone as it was.
/// - Dropping a call stops the waiting, never the operation.
///
/// [`Error::NoSpace`](crate::Error::NoSpace) says that an append doesn't fit what is left of its zone;
/// [`Error::Misplaced`](crate::Error::Misplaced), that an append named another offset than the write pointer;
/// [`Error::Busy`](crate::Error::Busy), that `max_open` or `max_active` is reached;
/// [`Error::Invalid`](crate::Error::Invalid), that a zone doesn't exist or isn't in a state for the call (full, interrupted,
/// offline; to be closed and empty), or that a length or offset breaks the geometry.
pub trait Zones {
    /// The shape of the zones. It does not change while a handle is open.
    fn geometry(&self) -> &ZoneGeometry;

    /// Appends the payload to a zone that is empty, open or closed, and says where it landed. A zone that isn't open is
    /// opened implicitly.
    fn append(&self, zone: ZoneIndex, payload: Payload) -> Call<'_, Result<ZoneAddress>>;

    /// Appends the payload as [`append`](Self::append) does, at this address and nowhere else. The address must be the write
    /// pointer of its zone, behind the places of all appends in flight.
    ///
    /// # Errors
    /// [`Error::Misplaced`](crate::Error::Misplaced) with the write pointer if it is elsewhere. Nothing has been written then,
    /// and the zone's state is as before, except that a zone that was empty or closed may have been opened implicitly.
    fn append_at(&self, at: ZoneAddress, payload: Payload) -> Call<'_, Result<()>>;

    /// Opens a zone explicitly that is empty, closed or implicitly open. Opening an explicitly open zone does nothing.
    ///
    /// # Errors
    /// [`Error::Busy`](crate::Error::Busy) where `max_open` or `max_active` is reached; the zone is as it was.
    fn open(&self, zone: ZoneIndex) -> Call<'_, Result<()>>;

    /// Closes an open zone: it no longer counts against `max_open`. Appends in flight land in it all the same. Closing a
    /// closed zone does nothing.
    fn close(&self, zone: ZoneIndex) -> Call<'_, Result<()>>;

    /// Fills the buffer from this address on.
    fn read(&self, at: ZoneAddress, buffer: Buffer) -> Call<'_, ReadOutcome>;

    /// Makes every append to these zones that completed before this call durable. Where zones are durable on
    /// finish it finishes them.
    fn flush<'a>(&'a self, zones: &'a [ZoneIndex]) -> Call<'a, Result<()>>;

    /// Ends a zone: it takes no more appends, and what it has is durable when this returns. Appends that are
    /// in flight complete first. Finishing a full zone does nothing.
    fn finish(&self, zone: ZoneIndex) -> Call<'_, Result<()>>;

    /// Empties a zone and raises its generation, which is returned, durably. Appends in flight complete first
    /// and are gone. The caller makes sure that nobody reads it.
    fn reset(&self, zone: ZoneIndex, erase: EraseGuarantee) -> Call<'_, Result<u64>>;

    /// Takes the space for the next `bytes` of appends to a zone, where the medium below takes space when it is first written:
    /// a file with holes. Fewer where the zone has less left. No append to the zone is in flight meanwhile. The default
    /// does nothing.
    ///
    /// # Errors
    /// [`Error::NoSpace`](crate::Error::NoSpace) where the medium has none; some of it may have been taken.
    fn reserve(&self, zone: ZoneIndex, bytes: u64) -> Call<'_, Result<()>> {
        let _ = (zone, bytes);
        Call::ready(Ok(()))
    }

    /// What is known about `count` zones from `first` on; fewer at the end of the device.
    fn report(&self, first: ZoneIndex, count: u32) -> Call<'_, Result<Vec<ZoneReport>>>;
}
