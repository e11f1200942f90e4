//! The key-value store as a device, for the crash oracle and the worlds: block n is key n, and its contents
//! follow from the value.
//!
//! The tools write blocks with stamps that identify the write; a value holds the stamp's number. A write of
//! several blocks is one batch, over all shards. A discard deletes keys, several by a range. Zeros are a key
//! that doesn't exist.

use crate::engine::device::Stamp;
use block::{
    BlockCount, BlockIndex, BlockRange, BlockSize, Buffer, Call, Device, DeviceGeometry, DevicePart,
    Durability, Error, Part, Payload, ReadOutcome, Result, ZeroMode,
};
use kv::{Acknowledge, Batch, Store};
use std::rc::Rc;

/// Largest number of blocks that are written together.
const MAX_TOGETHER: u64 = 4;

/// Keys as a device.
#[derive(Debug)]
pub struct KeysDevice {
    store: Store,
    stamp: Stamp,
    /// Length of a value in bytes, at least 8.
    value_bytes: usize,
    geometry: DeviceGeometry,
}

impl KeysDevice {
    /// Creates a device of `keys` blocks, one for each key.
    pub fn new(store: Store, keys: u64, value_bytes: usize, stamp: Stamp) -> Self {
        let block_size = BlockSize::default();
        let geometry = DeviceGeometry {
            block_size,
            blocks: BlockCount(keys),
            atomic_write: block_size.bytes() as u32,
            volatile_cache: true,
            read_only: false,
        };
        KeysDevice { store, stamp, value_bytes, geometry }
    }

    /// The store.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Compares a scan of all keys with reads of the single keys, at one moment. Failed reads of the disk are
    /// left out.
    ///
    /// # Errors
    /// A description of the first difference, as [`block::Error::Corrupt`]; errors of reading.
    pub async fn check_scan(&self) -> Result<()> {
        match self.compare_scan().await {
            Err(Error::Io(_) | Error::Closed(_)) => Ok(()),
            outcome => outcome,
        }
    }

    async fn compare_scan(&self) -> Result<()> {
        let mut iterator = self.store.iterate(b"", None).await?;
        iterator.seek_first().await?;
        for number in 0..self.geometry.blocks.0 {
            let found =
                self.store.get_in(iterator.snapshot(), &key(number)).await?.map(|stored| stored.value);
            let at =
                iterator.pair().filter(|(found, _)| *found == key(number)).map(|(_, value)| value.to_vec());
            if at != found {
                let stamp = |value: Option<Vec<u8>>| value.map(|value| value[..8].to_vec());
                return Err(Error::corrupt(format!(
                    "key {number}: a scan finds {:?}, a read {:?}",
                    stamp(at),
                    stamp(found)
                )));
            }
            if at.is_some() {
                iterator.next().await?;
            }
        }
        match iterator.pair() {
            None => Ok(()),
            Some((key, _)) => {
                Err(Error::corrupt(format!("a scan finds key {key:?}, which was never written")))
            }
        }
    }
}

/// Key of a block.
pub fn key(number: u64) -> Vec<u8> {
    format!("key{number:08}").into_bytes()
}

impl Part for KeysDevice {
    fn kind(&self) -> &'static str {
        "keys"
    }

    fn close(&self) -> Call<'_, Result<()>> {
        Call::new(self.store.close())
    }
}

impl DevicePart for KeysDevice {
    fn geometry(&self) -> &DeviceGeometry {
        &self.geometry
    }

    fn open(&self) -> Call<'_, Result<Rc<dyn Device>>> {
        let handle = Handle {
            store: self.store.clone(),
            stamp: self.stamp,
            value_bytes: self.value_bytes,
            geometry: self.geometry.clone(),
        };
        Call::ready(Ok(Rc::new(handle)))
    }
}

struct Handle {
    store: Store,
    stamp: Stamp,
    value_bytes: usize,
    geometry: DeviceGeometry,
}

fn acknowledge(durability: Durability) -> Acknowledge {
    match durability {
        Durability::Visible => Acknowledge::Written,
        Durability::Durable => Acknowledge::Flushed,
    }
}

impl Handle {
    fn value(&self, number: u64, block: u64) -> Vec<u8> {
        let mut value = number.to_le_bytes().to_vec();
        value.resize(self.value_bytes, block as u8);
        value
    }

    /// Deletes the keys of blocks: one by one, or by a range.
    async fn delete(&self, range: BlockRange, durability: Durability) -> Result<()> {
        let mut batch = Batch::new();
        match range.count.0 {
            1 => batch.delete(&key(range.start.0)),
            _ => batch.delete_range(&key(range.start.0), &key(range.end().0)),
        }
        self.store.write(batch, acknowledge(durability)).await
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
                match self.store.get(&key(number)).await {
                    Ok(None) => buffer.append_zeroes(block),
                    Ok(Some(found)) => {
                        let stamp = u64::from_le_bytes(std::array::from_fn(|byte| found.value[byte]));
                        match found.value == self.value(stamp, number) {
                            true => buffer.append(&(self.stamp.contents)(number, stamp)),
                            false => buffer.append(&vec![0xEE; block]),
                        }
                    }
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
            let mut first = range.start.0;
            while first < range.end().0 {
                let mut batch = Batch::new();
                let end = (first + MAX_TOGETHER).min(range.end().0);
                for number in first..end {
                    let from = (number - at.0) as usize * block + self.stamp.offset;
                    let stamp = u64::from_le_bytes(std::array::from_fn(|byte| bytes[from + byte]));
                    match stamp {
                        0 => batch.delete(&key(number)),
                        _ => batch.put(&key(number), &self.value(stamp, number)),
                    }
                }
                self.store.write(batch, acknowledge(durability)).await?;
                first = end;
            }
            Ok(())
        })
    }

    fn flush(&self) -> Call<'_, Result<()>> {
        Call::new(self.store.flush())
    }

    fn discard(&self, range: BlockRange) -> Call<'_, Result<()>> {
        Call::new(self.delete(range, Durability::Visible))
    }

    fn write_zeroes(
        &self,
        range: BlockRange,
        _mode: ZeroMode,
        durability: Durability,
    ) -> Call<'_, Result<()>> {
        Call::new(self.delete(range, durability))
    }
}
