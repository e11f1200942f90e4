//! Devices that are carried out on their home shard, and the handles of all shards on them.
//!
//! The handle of the home shard calls the object. A handle of another shard sends each call there with its
//! buffer, where it is made through a handle that exists for the call only. A call whose future is dropped
//! completes there. Handles check arguments on the home shard, and answer empty requests themselves.

use crate::home::Home;
use crate::task_group::{GroupMember, TaskGroup};
use block::{
    BlockIndex, BlockRange, Buffer, Call, Device, DeviceGeometry, Durability, Extent, Payload, ReadOutcome,
    Result, ZeroMode,
};
use std::rc::Rc;

/// Object that carries out the calls of a device on its home shard, with the promises of [`Device`].
///
/// The caller guarantees ranges that are inside the device and not empty, and changes only of a device that
/// isn't read-only.
pub trait HomeDevice: 'static {
    /// Group that calls of other shards belong to, if a close waits for them.
    fn calls(&self) -> Option<&TaskGroup>;

    /// Implements [`Device::read`]; the buffer has the length of the range.
    fn read(self: &Rc<Self>, range: BlockRange, buffer: Buffer) -> Call<'_, ReadOutcome>;

    /// Implements [`Device::write`]; the payload has the length of the range.
    fn write(
        self: &Rc<Self>,
        range: BlockRange,
        payload: Payload,
        durability: Durability,
    ) -> Call<'_, Result<()>>;

    /// Implements [`Device::flush`].
    fn flush(self: &Rc<Self>) -> Call<'_, Result<()>>;

    /// Implements [`Device::discard`].
    fn discard(self: &Rc<Self>, range: BlockRange) -> Call<'_, Result<()>>;

    /// Implements [`Device::write_zeroes`].
    fn write_zeroes(
        self: &Rc<Self>,
        range: BlockRange,
        mode: ZeroMode,
        durability: Durability,
    ) -> Call<'_, Result<()>>;

    /// Implements [`Device::extents`].
    fn extents(self: &Rc<Self>, range: BlockRange) -> Call<'_, Result<Vec<Extent>>>;
}

impl<C: HomeDevice> Home<C> {
    /// Returns a handle of this shard on the device, which has this geometry.
    ///
    /// # Errors
    /// [`Error::Closed`](block::Error::Closed) on the home shard, once the object has been forgotten.
    pub fn open(&self, geometry: &DeviceGeometry) -> Result<Rc<dyn Device>> {
        let geometry = geometry.clone();
        Ok(match self.is_here() {
            true => Rc::new(Handle { geometry, core: self.get()?, _call: None }),
            false => Rc::new(Distant { geometry, home: self.clone() }),
        })
    }
}

/// A handle of the home shard.
struct Handle<C> {
    geometry: DeviceGeometry,
    core: Rc<C>,
    /// Membership of a handle that exists for one call of another shard; `None` for a handle that a shard
    /// keeps, perhaps for ever.
    _call: Option<GroupMember>,
}

impl<C: HomeDevice> Handle<C> {
    /// Creates a handle for one call of another shard.
    fn for_call(geometry: DeviceGeometry, core: Rc<C>) -> Self {
        let call = core.calls().map(TaskGroup::enter);
        Handle { geometry, core, _call: call }
    }

    /// Makes a change of a range.
    fn change<'a>(
        &'a self,
        range: Result<BlockRange>,
        change: impl FnOnce(&'a Rc<C>, BlockRange) -> Call<'a, Result<()>>,
    ) -> Call<'a, Result<()>> {
        match range {
            Ok(range) if !range.is_empty() => change(&self.core, range),
            other => Call::ready(other.map(drop)),
        }
    }

    fn writable(&self, range: BlockRange) -> Result<BlockRange> {
        self.geometry.check_writable()?;
        self.geometry.check(range)?;
        Ok(range)
    }
}

impl<C: HomeDevice> Device for Handle<C> {
    fn geometry(&self) -> &DeviceGeometry {
        &self.geometry
    }

    fn read(&self, at: BlockIndex, mut buffer: Buffer) -> Call<'_, ReadOutcome> {
        buffer.clear();
        match self.geometry.range(at, buffer.len()) {
            Ok(range) if !range.is_empty() => self.core.read(range, buffer),
            other => Call::ready((other.map(drop), buffer)),
        }
    }

    fn write(&self, at: BlockIndex, payload: Payload, durability: Durability) -> Call<'_, Result<()>> {
        let range = self.geometry.writable_range(at, payload.len());
        self.change(range, |core, range| core.write(range, payload, durability))
    }

    fn flush(&self) -> Call<'_, Result<()>> {
        self.core.flush()
    }

    fn discard(&self, range: BlockRange) -> Call<'_, Result<()>> {
        self.change(self.writable(range), |core, range| core.discard(range))
    }

    fn write_zeroes(
        &self,
        range: BlockRange,
        mode: ZeroMode,
        durability: Durability,
    ) -> Call<'_, Result<()>> {
        self.change(self.writable(range), |core, range| core.write_zeroes(range, mode, durability))
    }

    fn extents(&self, range: BlockRange) -> Call<'_, Result<Vec<Extent>>> {
        match self.geometry.check(range) {
            Ok(()) if !range.is_empty() => self.core.extents(range),
            other => Call::ready(other.map(|()| Vec::new())),
        }
    }
}

/// A handle of another shard.
struct Distant<C> {
    geometry: DeviceGeometry,
    home: Home<C>,
}

impl<C: HomeDevice> Distant<C> {
    fn forward<R: Send + 'static>(
        &self,
        call: impl for<'a> FnOnce(&'a Handle<C>) -> Call<'a, Result<R>> + Send + 'static,
    ) -> Call<'_, Result<R>> {
        let geometry = self.geometry.clone();
        Call::new(self.home.with(move |core| async move { call(&Handle::for_call(geometry, core)).await }))
    }
}

impl<C: HomeDevice> Device for Distant<C> {
    fn geometry(&self) -> &DeviceGeometry {
        &self.geometry
    }

    fn read(&self, at: BlockIndex, mut buffer: Buffer) -> Call<'_, ReadOutcome> {
        let geometry = self.geometry.clone();
        Call::new(async move {
            let length = buffer.len();
            let read = move |core: Result<Rc<C>>| async move {
                match core {
                    Ok(core) => Handle::for_call(geometry, core).read(at, buffer).await,
                    Err(error) => {
                        buffer.clear();
                        (Err(error), buffer)
                    }
                }
            };
            // The buffer is lost only if the home shard has ended.
            self.home.visit(read).await.unwrap_or_else(|error| (Err(error), Buffer::new(length)))
        })
    }

    fn write(&self, at: BlockIndex, payload: Payload, durability: Durability) -> Call<'_, Result<()>> {
        self.forward(move |handle| handle.write(at, payload, durability))
    }

    fn flush(&self) -> Call<'_, Result<()>> {
        self.forward(|handle| handle.flush())
    }

    fn discard(&self, range: BlockRange) -> Call<'_, Result<()>> {
        self.forward(move |handle| handle.discard(range))
    }

    fn write_zeroes(
        &self,
        range: BlockRange,
        mode: ZeroMode,
        durability: Durability,
    ) -> Call<'_, Result<()>> {
        self.forward(move |handle| handle.write_zeroes(range, mode, durability))
    }

    fn extents(&self, range: BlockRange) -> Call<'_, Result<Vec<Extent>>> {
        self.forward(move |handle| handle.extents(range))
    }
}
