//! Parts: built once, from a stack file, and shared by all shards.

use crate::call::Call;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::geometry::{DeviceGeometry, ZoneGeometry};
use crate::zones::Zones;
use std::rc::Rc;
use std::sync::Arc;

/// Status of a part: a JSON object, shown to operators as a table and to programs as it is.
pub type Status = serde_json::Map<String, serde_json::Value>;

/// Operations of every part, whichever contract it implements. Called from any shard.
pub trait Part: Send + Sync {
    /// Name of this kind of part in a stack: `file`, `cache`, `log`.
    fn kind(&self) -> &'static str;

    /// Returns the present counters and state, the same on every shard: a part whose state belongs to one shard asks
    /// there. Cheap, and never waits for I/O. A part that is closed, or whose shard has ended, may return `error`
    /// alone.
    fn status(&self) -> Call<'_, Status> {
        Call::ready(Status::new())
    }

    /// Carries out an operator's message, as `dmsetup message` does (`flush`, `clear_stats`), and returns the answer. A
    /// part that doesn't know the message returns [`Error::Unsupported`] naming it.
    fn message<'a>(&'a self, message: &'a str) -> Call<'a, Result<String>> {
        Call::new(async move {
            Err(Error::unsupported(format!("message \"{message}\": {} takes no messages", self.kind())))
        })
    }

    /// Makes all acknowledged changes durable, flushed or not, and records a clean stop. The last call, on one shard,
    /// after every handle has been dropped.
    ///
    /// Parts are closed from the top of the stack down. Once this and the same call of all parts below have returned
    /// `Ok`, a power cut loses nothing. A part that only passes calls on does nothing here. One that holds changes back
    /// hands them down. One whose record of a clean stop relies on the parts below flushes those first.
    ///
    /// # Errors
    /// The changes that may not be durable, and why. The only remedy is to open the part again.
    fn close(&self) -> Call<'_, Result<()>> {
        Call::ready(Ok(()))
    }

    /// Use that this part makes of a part directly below it. It is asked after this part's close.
    fn use_of(&self, _below: &dyn Part) -> PartUse {
        PartUse::Needed
    }
}

/// Use that a part makes of a part below it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PartUse {
    /// Requests are in flight that the part below doesn't answer: closing it might never end. Whether that matters is part of the result
    /// of the close of the part above.
    Stalled,
    /// All data is elsewhere. The part below is closed, and an error of that doesn't matter.
    Unneeded,
    /// The part below has to be closed.
    Needed,
}

/// A part that is a device.
pub trait DevicePart: Part {
    /// Geometry, the same as that of every handle: the number of blocks may grow. A part that computed its own layout from it keeps
    /// the layout.
    fn geometry(&self) -> &DeviceGeometry;

    /// Opens a handle for the calling shard. A shard opens a part once and shares the handle.
    fn open(&self) -> Call<'_, Result<Rc<dyn Device>>>;

    /// Number of bytes that this device holds in a cache and has not yet written to the device that it caches; `None` without such a
    /// cache. A part that passes its calls on answers for the parts below it.
    fn only_in_cache(&self) -> Option<u64> {
        None
    }

    /// Whether acknowledged writes survive the end of this process without a flush, though not that of the machine: they are in
    /// another one's hands, such as the kernel's. No request of this process may be carried out after those of the next one. A part
    /// that can't tell returns false.
    fn keeps_acknowledged(&self) -> bool {
        false
    }

    /// Whether flushed data survives the end of this process, though not that of the machine. Memory of this process doesn't.
    fn keeps_flushed(&self) -> bool {
        true
    }

    /// Returns an earlier version of the device, or another one that began as a copy, by the name that it was given
    /// when it was created. It is closed before this part is. A part that keeps no versions returns
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

    /// Whether acknowledged writes survive the end of this process without a flush, though not that of the machine: they are in
    /// another one's hands, such as the kernel's. No request of this process may be carried out after those of the next one. A part
    /// that can't tell returns false.
    fn keeps_acknowledged(&self) -> bool {
        false
    }

    /// Opens a handle for the calling shard. A shard opens a part once and shares the handle.
    fn open(&self) -> Call<'_, Result<Rc<dyn Zones>>>;
}
