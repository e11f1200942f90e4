//! Counters as a device, for the crash oracle and the worlds: block n is counter n, and its contents follow
//! from the value.
//!
//! The tools write blocks with stamps that identify the write; [`Stamp`] says where its number is in a block,
//! and which contents belong to a number. Zeros are the value 0.

use super::Counters;
use block::{
    BlockCount, BlockIndex, BlockRange, BlockSize, Buffer, Call, Data, Device, DeviceGeometry, DevicePart,
    Durability, Part, Payload, ReadOutcome, Result, ZeroMode,
};
use std::rc::Rc;
use std::sync::Arc;

/// Stamp that a tool puts into the blocks that it writes.
#[derive(Debug, Clone, Copy)]
pub struct Stamp {
    /// Offset of the number in a block, eight bytes.
    pub offset: usize,
    /// Contents of a block that was written under this number.
    pub contents: fn(u64, u64) -> Data,
}

/// Counters as a device.
#[derive(Debug)]
pub struct CountersDevice {
    counters: Arc<Counters>,
    stamp: Stamp,
    geometry: DeviceGeometry,
}

impl CountersDevice {
    /// Creates a device whose blocks are these counters.
    pub fn new(counters: Counters, stamp: Stamp) -> Self {
        let block_size = BlockSize::default();
        // Two counters are set together if the first one is even.
        let atomic_write = if counters.number().is_multiple_of(2) { 2 } else { 1 };
        let geometry = DeviceGeometry {
            block_size,
            blocks: BlockCount(counters.number().into()),
            atomic_write: atomic_write * block_size.bytes() as u32,
            volatile_cache: true,
            read_only: false,
        };
        CountersDevice { counters: Arc::new(counters), stamp, geometry }
    }

    /// The counters.
    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }
}

impl Part for CountersDevice {
    fn kind(&self) -> &'static str {
        "counters"
    }

    fn close(&self) -> Call<'_, Result<()>> {
        Call::new(self.counters.close())
    }
}

impl DevicePart for CountersDevice {
    fn geometry(&self) -> &DeviceGeometry {
        &self.geometry
    }

    fn open(&self) -> Call<'_, Result<Rc<dyn Device>>> {
        let handle =
            Handle { counters: self.counters.clone(), stamp: self.stamp, geometry: self.geometry.clone() };
        Call::ready(Ok(Rc::new(handle)))
    }
}

struct Handle {
    counters: Arc<Counters>,
    stamp: Stamp,
    geometry: DeviceGeometry,
}

impl Handle {
    /// Sets the counters of these blocks, all at once.
    async fn set(&self, range: BlockRange, value: impl Fn(u64) -> u64, durability: Durability) -> Result<()> {
        let (mut sets, mut block) = (Vec::new(), range.start.0);
        while block < range.end().0 {
            let is_pair = block.is_multiple_of(2) && block + 1 < range.end().0;
            let first = (block as u32, value(block));
            let second = is_pair.then(|| (block as u32 + 1, value(block + 1)));
            block += if is_pair { 2 } else { 1 };
            sets.push(async move {
                match second {
                    Some(second) => self.counters.set_both([first, second]).await,
                    None => self.counters.set(first.0, first.1).await,
                }
            });
        }
        runtime::join_all(sets).await.into_iter().collect::<Result<()>>()?;
        match durability {
            Durability::Visible => Ok(()),
            Durability::Durable => self.counters.flush().await,
        }
    }
}

impl Device for Handle {
    fn geometry(&self) -> &DeviceGeometry {
        &self.geometry
    }

    fn read(&self, at: BlockIndex, mut buffer: Buffer) -> Call<'_, ReadOutcome> {
        Call::new(async move {
            buffer.clear();
            let block = self.geometry.block_size.bytes() as usize;
            for number in (at.0..).take(buffer.len() / block) {
                match self.counters.get(number as u32).await {
                    Ok(0) => buffer.append_zeroes(block),
                    Ok(value) => buffer.append(&(self.stamp.contents)(number, value)),
                    Err(error) => return (Err(error), buffer),
                }
            }
            (Ok(()), buffer)
        })
    }

    fn write(&self, at: BlockIndex, payload: Payload, durability: Durability) -> Call<'_, Result<()>> {
        Call::new(async move {
            let range = self.geometry.writable_range(at, payload.len())?;
            let (bytes, block) = (payload.to_data(), self.geometry.block_size.bytes() as usize);
            let value = |number: u64| {
                let from = (number - at.0) as usize * block + self.stamp.offset;
                u64::from_le_bytes(std::array::from_fn(|byte| bytes[from + byte]))
            };
            self.set(range, value, durability).await
        })
    }

    fn flush(&self) -> Call<'_, Result<()>> {
        Call::new(self.counters.flush())
    }

    fn discard(&self, range: BlockRange) -> Call<'_, Result<()>> {
        Call::new(self.set(range, |_| 0, Durability::Visible))
    }

    fn write_zeroes(
        &self,
        range: BlockRange,
        _mode: ZeroMode,
        durability: Durability,
    ) -> Call<'_, Result<()>> {
        Call::new(self.set(range, |_| 0, durability))
    }
}
