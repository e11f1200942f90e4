//! Handle of other shards on a device with a home shard: each call is sent there with its buffer, and made
//! through a handle of the home shard that exists for the call only.
//!
//! Arguments are checked on the home shard. A call whose future is dropped completes there.

use crate::home::Home;
use block::{
    BlockIndex, BlockRange, Buffer, Call, Device, DeviceGeometry, Durability, Extent, Payload, ReadOutcome,
    Result, ZeroMode,
};
use std::rc::Rc;

/// A handle on another shard than the home shard of `C`, whose handles there are `H`.
pub struct Distant<C, H> {
    geometry: DeviceGeometry,
    home: Home<C>,
    /// Creates the handle for one call on the home shard.
    handle: fn(DeviceGeometry, Rc<C>) -> H,
}

impl<C: 'static, H: Device + 'static> Distant<C, H> {
    /// Returns a handle for this shard; `handle` creates one on the home shard.
    pub fn open(
        geometry: DeviceGeometry,
        home: Home<C>,
        handle: fn(DeviceGeometry, Rc<C>) -> H,
    ) -> Rc<dyn Device> {
        Rc::new(Distant { geometry, home, handle })
    }

    fn forward<R: Send + 'static>(
        &self,
        call: impl for<'a> FnOnce(&'a H) -> Call<'a, Result<R>> + Send + 'static,
    ) -> Call<'_, Result<R>> {
        let (geometry, handle) = (self.geometry.clone(), self.handle);
        Call::new(self.home.with(move |core| async move { call(&handle(geometry, core)).await }))
    }
}

impl<C: 'static, H: Device + 'static> Device for Distant<C, H> {
    fn geometry(&self) -> &DeviceGeometry {
        &self.geometry
    }

    fn read(&self, at: BlockIndex, mut buffer: Buffer) -> Call<'_, ReadOutcome> {
        let (geometry, handle) = (self.geometry.clone(), self.handle);
        Call::new(async move {
            let length = buffer.len();
            let read = move |core: Result<Rc<C>>| async move {
                match core {
                    Ok(core) => handle(geometry, core).read(at, buffer).await,
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
