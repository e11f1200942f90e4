//! Helpers of the tests: devices, and blocks whose contents identify their version.

use block::{BlockIndex, BlockRange, Buffer, Data, Device, DevicePart, Durability, Result, Status};
use redis_device::{Config, RedisPart};
use runtime::net::Address;
use std::rc::Rc;

pub const MIB: u64 = 1 << 20;
pub const BLOCK: u64 = 4096;

pub fn config(addresses: &[Address], name: &str, size: u64) -> Config {
    Config { addresses: addresses.to_vec(), name: name.to_owned(), size, credentials: None }
}

pub async fn connect(addresses: &[Address], name: &str, size: u64) -> Result<RedisPart> {
    RedisPart::connect(config(addresses, name, size)).await
}

pub async fn open(part: &RedisPart) -> Rc<dyn Device> {
    part.open().await.unwrap()
}

/// Random bytes of a block's version.
pub fn content(block: u64, version: u64) -> Data {
    let mut random = runtime::Random::new(block << 24 | version);
    let mut bytes = vec![0; BLOCK as usize];
    bytes.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&random.next_u64().to_le_bytes()));
    Data::copy_of(&bytes)
}

pub async fn write(device: &dyn Device, block: u64, data: Data) -> Result<()> {
    device.write(BlockIndex(block), data.into(), Durability::Visible).await
}

pub async fn read(device: &dyn Device, block: u64, blocks: u64) -> Result<Vec<u8>> {
    let (result, buffer) = device.read(BlockIndex(block), Buffer::new((blocks * BLOCK) as usize)).await;
    assert!(result.is_ok() || buffer.filled().is_empty(), "a failed read shows bytes");
    result.map(|()| buffer.filled().to_vec())
}

pub async fn discard(device: &dyn Device, block: u64, blocks: u64) -> Result<()> {
    device.discard(BlockRange::new(block, blocks)).await
}

pub fn number(status: &Status, key: &str) -> u64 {
    status[key].as_u64().unwrap_or_else(|| panic!("{key} is a number: {status:?}"))
}
