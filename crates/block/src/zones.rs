//! The Zones contract: append-only zones, read anywhere, reset as a whole.

use crate::address::{ZoneAddress, ZoneIndex};
use crate::buffer::{Buffer, Payload};
use crate::call::Call;
use crate::device::ReadOutcome;
use crate::error::Result;
use crate::geometry::{EraseGuarantee, ZoneGeometry};

/// Where a zone is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ZoneState {
    /// Reset and not appended to since.
    Empty,
    /// Appended to; takes more. Counts against `max_open` and `max_active`.
    Open,
    /// Begun before an unclean stop, or put aside: readable, and to be scanned, finished or reset, never
    /// continued. Counts against `max_active`.
    Closed,
    /// Takes no more appends.
    Full,
    /// The medium takes no more writes here; what is there can be read.
    ReadOnly,
    /// The medium lost it.
    Offline,
}

/// What is known about one zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ZoneReport {
    /// Which zone.
    pub zone: ZoneIndex,
    /// Where it is in its life.
    pub state: ZoneState,
    /// Nothing was appended at this offset or behind it, in bytes. For a [`Closed`](ZoneState::Closed) zone
    /// only an upper bound, and there may be holes below it.
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
/// - After an unclean stop a zone that wasn't full is [`Closed`](ZoneState::Closed): its write pointer is an
///   upper bound, over holes. It is scanned and finished or reset, never continued.
/// - `reset` gives at least the guarantee that was asked for or fails with
///   [`Error::Unsupported`](crate::Error::Unsupported), leaving the zone as it was.
/// - Dropping a call stops the waiting, never the operation.
///
/// [`Error::NoSpace`](crate::Error::NoSpace) says that an append doesn't fit what is left of its zone;
/// [`Error::Busy`](crate::Error::Busy), that `max_open` or `max_active` is reached;
/// [`Error::Invalid`](crate::Error::Invalid), that a zone doesn't exist, is full or closed, or that a length
/// or offset breaks the geometry.
pub trait Zones {
    /// The shape of the zones. It does not change while a handle is open.
    fn geometry(&self) -> &ZoneGeometry;

    /// Appends the payload to a zone that is empty or open, and says where it landed.
    fn append(&self, zone: ZoneIndex, payload: Payload) -> Call<'_, Result<ZoneAddress>>;

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
