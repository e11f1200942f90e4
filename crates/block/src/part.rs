//! What is built once, from a stack file, and shared by all shards.

use crate::call::Call;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::geometry::{DeviceGeometry, ZoneGeometry};
use crate::zones::Zones;
use std::rc::Rc;
use std::sync::Arc;

/// What a part says about itself: a JSON object, for people through a table and for machines as it is.
pub type Status = serde_json::Map<String, serde_json::Value>;

/// What every part can do, whichever contract it implements. Called from any shard.
pub trait Part: Send + Sync {
    /// The word by which a stack names this kind of part: `file`, `cache`, `log`.
    fn kind(&self) -> &'static str;

    /// Counters and state as they are now, the same on every shard: a part whose state belongs to one shard asks there.
    /// Cheap, and never waits for I/O. A part that is closed, or whose shard has ended, may say no more than that, as
    /// `error`.
    fn status(&self) -> Call<'_, Status> {
        Call::ready(Status::new())
    }

    /// Carries out an operator's message, as `dmsetup message` does (`flush`, `clear_stats`), and returns
    /// what there is to say about it. A part that doesn't know the message returns
    /// [`Error::Unsupported`] naming it.
    fn message<'a>(&'a self, message: &'a str) -> Call<'a, Result<String>> {
        Call::new(async move {
            Err(Error::unsupported(format!("message \"{message}\": {} takes no messages", self.kind())))
        })
    }

    /// The last call, on one shard, after every handle has been dropped: makes everything durable that was acknowledged,
    /// flushed or not, and notes a clean stop.
    ///
    /// Parts are closed from the top of the stack down. Once this and the same call of all parts below have returned
    /// `Ok`, a power cut loses nothing. So a part that only passes calls on has nothing to do here; one that holds
    /// something back hands it down, and one whose note of a clean stop relies on what lies below flushes that first.
    ///
    /// # Errors
    /// What may not be durable, and why. Nothing can be done about it any more but to open the part again.
    fn close(&self) -> Call<'_, Result<()>> {
        Call::ready(Ok(()))
    }
}

/// A part that is a device.
pub trait DevicePart: Part {
    /// The shape, before any handle is opened.
    fn geometry(&self) -> &DeviceGeometry;

    /// Opens a handle for the shard that calls. A shard opens a part once and shares the handle.
    fn open(&self) -> Call<'_, Result<Rc<dyn Device>>>;

    /// Number of bytes that this device holds in a cache and has not yet written to the device that it caches; `None` without such a
    /// cache. A part that passes its calls on answers for the parts below it.
    fn only_in_cache(&self) -> Option<u64> {
        None
    }

    /// An earlier version of the device, or another one that began as a copy, by the name that it was given when it was
    /// made. It is closed before this part is. A part that keeps no versions returns [`Error::Unsupported`].
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
    /// The shape, before any handle is opened.
    fn geometry(&self) -> &ZoneGeometry;

    /// Opens a handle for the shard that calls. A shard opens a part once and shares the handle.
    fn open(&self) -> Call<'_, Result<Rc<dyn Zones>>>;
}
