//! Helpers of the tests: a node on a machine whose memory a test sets.

use block::{
    BlockIndex, BlockRange, Buffer, Data, Device, DevicePart, Durability, Error, Part, Result, Status,
};
use memory_node::{Measurement, MemoryNode, MemoryNodePart, NodeConfig};
use runtime::net::Address;
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub const MIB: u64 = 1 << 20;
pub const BLOCK: usize = 4096;

/// A machine whose memory is set by a test. Lent memory reduces the available memory only if the test sets
/// that.
#[derive(Clone)]
pub struct Machine(Arc<Mutex<Result<Measurement>>>);

impl Machine {
    pub fn new(available: u64) -> Machine {
        let measured =
            Measurement { total: 1 << 30, available, some_avg10: Some(0.0), cgroup: Default::default() };
        Machine(Arc::new(Mutex::new(Ok(measured))))
    }

    pub fn change(&self, change: impl FnOnce(&mut Measurement)) {
        change(self.0.lock().unwrap().as_mut().unwrap());
    }

    pub fn fail(&self) {
        *self.0.lock().unwrap() = Err(Error::io("reading /proc/meminfo"));
    }

    pub fn measure(&self) -> impl Fn() -> Result<Measurement> + Send + Sync + 'static {
        let measured = self.0.clone();
        move || measured.lock().unwrap().clone()
    }
}

/// Configuration: 64 MiB, 48 MiB for each of 3 borrowers, with a reserve of 64 MiB.
pub fn config(address: &Address) -> NodeConfig {
    NodeConfig {
        address: address.clone(),
        tls: None,
        allow_remote: false,
        capacity: 64 * MIB,
        quota: 48 * MIB,
        reserve: 64 * MIB,
        pressure_limit: 10.0,
        max_borrowers: 3,
        forget_after: Duration::from_secs(600),
    }
}

pub async fn node(config: NodeConfig, machine: &Machine) -> MemoryNode {
    let node = MemoryNode::new(config, machine.measure()).unwrap();
    node.start().await.unwrap();
    node
}

/// Runs a test in a simulated world, with the address for a node that the test starts.
pub fn simulated<Fut: Future<Output = ()> + 'static>(
    seed: u64,
    test: impl FnOnce(Address) -> Fut + Send + 'static,
) {
    println!("seed {seed}");
    let simulation = runtime::Simulation::new(seed).with_shards(2);
    let address = "127.0.0.1:10810".parse().unwrap();
    runtime::simulate(simulation, move || test(address)).expect("the simulation ends");
}

pub async fn borrow(address: &Address, name: &str) -> MemoryNodePart {
    MemoryNodePart::connect(address.clone(), name.to_owned(), 1, None).await.unwrap()
}

/// Blocks of this many bytes in total: none is zeros, and all differ.
pub fn pattern(bytes: u64, seed: u8) -> Data {
    let mut data = vec![seed; bytes as usize];
    data.chunks_mut(BLOCK)
        .enumerate()
        .for_each(|(number, block)| block[..8].copy_from_slice(&(number as u64 + 1).to_le_bytes()));
    Data::copy_of(&data)
}

pub async fn write(device: &dyn Device, offset: u64, data: Data) -> Result<()> {
    let at = BlockIndex(offset / BLOCK as u64);
    device.write(at, data.into(), Durability::Visible).await
}

pub async fn read(device: &dyn Device, offset: u64, bytes: u64) -> Vec<u8> {
    let (result, buffer) = device.read(BlockIndex(offset / BLOCK as u64), Buffer::new(bytes as usize)).await;
    result.unwrap();
    buffer.filled().to_vec()
}

pub async fn discard(device: &dyn Device, offset: u64, bytes: u64) {
    device.discard(BlockRange::new(offset / BLOCK as u64, bytes / BLOCK as u64)).await.unwrap();
}

/// Waits until the status of the part satisfies `condition`; panics after ten seconds.
pub async fn status_when(part: &MemoryNodePart, what: &str, condition: impl Fn(&Status) -> bool) -> Status {
    for _ in 0..200 {
        let status = part.status().await;
        if condition(&status) {
            return status;
        }
        runtime::sleep(Duration::from_millis(50)).await;
    }
    panic!("{what}: {:?}", part.status().await);
}

pub fn number(status: &Status, key: &str) -> u64 {
    status[key].as_u64().unwrap_or_else(|| panic!("{key} is a number: {status:?}"))
}

/// A device of the part, on this shard.
pub async fn open(part: &MemoryNodePart) -> std::rc::Rc<dyn Device> {
    part.open().await.unwrap()
}
