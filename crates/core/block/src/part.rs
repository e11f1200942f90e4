//! Parts: built once, from a stack file, and shared by all shards.

use crate::call::Call;
use crate::claim::{Claim, ClaimToken};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::fullness::Fullness;
use crate::geometry::{DeviceGeometry, ZoneGeometry};
use crate::zones::Zones;
use std::rc::Rc;
use std::sync::Arc;

/// Status of a part: a JSON object, displayed to operators as a table and to programs unchanged.
pub type Status = serde_json::Map<String, serde_json::Value>;

/// Operations of every part of either contract. Called from any shard.
pub trait Part: Send + Sync {
    /// Name of this kind of part in a stack: `file`, `cache`, `log`.
    fn kind(&self) -> &'static str;

    /// Returns the current counters and state, the same on every shard: a part whose state belongs to one
    /// shard sends the call there. Cheap, and never waits for I/O. A part that is closed, or whose shard has
    /// ended, may return `error` alone.
    fn status(&self) -> Call<'_, Status> {
        Call::ready(Status::new())
    }

    /// Returns how much of its limited resource this part uses, the same on every shard; `None` for a part
    /// without a limit, and for one that is closed. Cheap, and never waits for I/O.
    fn fullness(&self) -> Call<'_, Option<Fullness>> {
        Call::ready(None)
    }

    /// Executes an operator's message, as `dmsetup message` does (`flush`, `clear_stats`), and returns the
    /// answer. For an unknown message the part returns [`Error::Unsupported`] with its text.
    fn message<'a>(&'a self, message: &'a str) -> Call<'a, Result<String>> {
        Call::new(async move {
            Err(Error::unsupported(format!("message \"{message}\": {} takes no messages", self.kind())))
        })
    }

    /// Makes all acknowledged changes durable, flushed or not, and records a clean stop. The last call, on
    /// one shard, after every handle has been dropped.
    ///
    /// Parts are closed from the top of the stack down. Once this and the same call of all parts below have
    /// returned `Ok`, a power cut loses nothing. A part that only passes calls on does nothing here. One with
    /// unwritten changes writes them to the parts below. One whose record of a clean stop relies on the parts
    /// below flushes those first.
    ///
    /// There is no time limit: a part below that never answers is waited for without end. Dropping the call
    /// ends the waiting only. A program that must end gives up after a limit of its own (`runtime::timeout`),
    /// and ends its process: changes that weren't durable are lost then.
    ///
    /// Dropping a part isn't a close: its tasks may write to the parts below until the runtime ends. Those
    /// must not be opened for another part before this has returned or the runtime has ended.
    ///
    /// # Errors
    /// The changes that may not be durable, with the reason. The only remedy is to open the part again.
    fn close(&self) -> Call<'_, Result<()>> {
        Call::ready(Ok(()))
    }

    /// Use that this part makes of a part directly below it. Called after this part's close.
    fn use_of(&self, _below: &dyn Part) -> PartUse {
        PartUse::Needed
    }
}

/// Use that a part makes of a part below it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PartUse {
    /// Requests are in flight that the part below doesn't answer: closing it might never end. The result of
    /// the close of the part above says whether that is an error.
    Stalled,
    /// All data is elsewhere. The part below is closed, and its error is ignored.
    Unneeded,
    /// The part below has to be closed.
    Needed,
}

/// A part that is a device.
pub trait DevicePart: Part {
    /// Geometry, the same as that of every handle: the number of blocks may grow. A part that has computed a
    /// layout from it keeps the layout.
    fn geometry(&self) -> &DeviceGeometry;

    /// Opens a handle for the calling shard. A shard opens a part once and shares the handle.
    fn open(&self) -> Call<'_, Result<Rc<dyn Device>>>;

    /// Number of bytes in the cache of this device that haven't been written to the device below; `None`
    /// without such a cache. A part that passes its calls on returns the value of the parts below it.
    fn only_in_cache(&self) -> Option<u64> {
        None
    }

    /// Whether acknowledged writes survive the end of this process without a flush, though not a crash of the
    /// machine, because another process or the kernel has them. Requests of this process must not be executed
    /// after those of the next one. A part that can't determine this returns false.
    fn keeps_acknowledged(&self) -> bool {
        false
    }

    /// Whether flushed data survives the end of this process, though not a crash of the machine. Memory of
    /// this process doesn't.
    fn keeps_flushed(&self) -> bool {
        true
    }

    /// Returns an earlier version of the device, or another one that began as a copy, by the name that it was
    /// given when it was created. It is closed before this part is. A part without versions returns
    /// [`Error::Unsupported`].
    fn version<'a>(&'a self, name: &'a str) -> Call<'a, Result<Arc<dyn DevicePart>>> {
        Call::new(async move {
            Err(Error::unsupported(format!(
                "version \"{name}\": {} keeps no versions of itself",
                self.kind()
            )))
        })
    }
}

/// A part that is a set of zones.
pub trait ZonesPart: Part {
    /// Geometry, before any handle is opened.
    fn geometry(&self) -> &ZoneGeometry;

    /// Whether acknowledged writes survive the end of this process without a flush, though not a crash of the
    /// machine, because another process or the kernel has them. Requests of this process must not be executed
    /// after those of the next one. A part that can't determine this returns false.
    fn keeps_acknowledged(&self) -> bool {
        false
    }

    /// Whether [`Zones::rewind`] is supported: a layer above can repeat lost appends to an interrupted zone.
    fn can_rewind(&self) -> bool {
        false
    }

    /// Whether an unclean stop leaves exactly the appends that were flushed, and a flush makes the appends to
    /// all its zones durable together: all or none of them.
    fn flushes_atomically(&self) -> bool {
        false
    }

    /// Asks that flushes, finishes, resets and [changes together](Zones::change_together) that this shard
    /// begins one after the other become durable in this order from now on, and returns whether they do:
    /// after an unclean stop none is there without all before it. A call begins when it is polled first, and
    /// no finish, reset or rewind of its zones may be in progress then. A caller can have many in flight:
    /// what is durable is always a state of the past. A layer that delays calls doesn't pass this on.
    fn keep_order(&self) -> bool {
        false
    }

    /// For zones that another machine changes: returns their present state, which stays as it is until the
    /// view is closed. `None` for all others.
    fn view(&self) -> Call<'_, Result<Option<View>>> {
        Call::ready(Ok(None))
    }

    /// Number of the present state of zones with views; it grows when they change.
    fn state(&self) -> Call<'_, Result<u64>> {
        Call::ready(Ok(0))
    }

    /// Returns the last claim of zones that have one writer at a time: the one that was found when the part
    /// was opened, or its own once that is made. `None` for new zones, and for zones without claims.
    ///
    /// # Errors
    /// Errors of the zones.
    fn last_claim(&self) -> Call<'_, Result<Option<Claim>>> {
        Call::ready(Ok(None))
    }

    /// Claims the zones with a token, which ends their writer before. The claim succeeds only if no other
    /// writer has claimed them since the claim that [`last_claim`](Self::last_claim) returned: a layer
    /// compares that with its own state first, and calls this before it opens a handle. Returns the claim;
    /// `None` for zones without claims.
    ///
    /// # Errors
    /// [`Error::Busy`] if another writer was faster, or the zones are claimed by this part already; errors of
    /// the zones. Then the part has to be opened again.
    fn claim(&self, token: ClaimToken) -> Call<'_, Result<Option<Claim>>> {
        let _ = token;
        Call::ready(Ok(None))
    }

    /// Opens a handle for the calling shard. A shard opens a part once and shares the handle. The first
    /// handle claims zones that have claims and aren't claimed yet.
    fn open(&self) -> Call<'_, Result<Rc<dyn Zones>>>;
}

/// Zones in one state.
#[derive(Clone)]
pub struct View {
    /// Number of the state.
    pub number: u64,
    /// The zones, which take no changes.
    pub zones: Arc<dyn ZonesPart>,
}

/// Returns the zones as a store uses them that keeps its knowledge of their contents in memory, and whether
/// they are lent: those that another machine changes in their present state, which the store has to close.
///
/// # Errors
/// [`Error::ReadOnly`] for such zones unless the store is only read.
pub async fn zones_of_store(
    zones: Arc<dyn ZonesPart>,
    is_only_read: bool,
) -> Result<(Arc<dyn ZonesPart>, bool)> {
    match zones.view().await? {
        None => Ok((zones, true)),
        Some(View { zones, .. }) if is_only_read => Ok((zones, false)),
        Some(View { zones, .. }) => {
            zones.close().await?;
            Err(Error::read_only(
                "the zones are written by another machine; expected salvage=true, which reads their present state, or zones of \
                 this machine",
            ))
        }
    }
}
