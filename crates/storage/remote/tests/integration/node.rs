//! A memory node whose failures a test controls.

use block::{
    BlockIndex, BlockRange, BlockSize, Buffer, Call, Device, DeviceGeometry, DevicePart, Durability, Error,
    Part, Payload, ReadOutcome, Result, Status, ZeroMode,
};
use disks::ram::RamPart;
use remote::Config;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A request to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    Open,
    Status,
    Read,
    Write,
    Discard,
}

/// Behaviour of a node.
#[derive(Debug, Default)]
pub struct Controls {
    /// Calls and connections fail.
    pub is_dead: AtomicBool,
    /// Number of restarts: handles from before a restart are disconnected.
    pub epoch: AtomicU64,
    /// Duration of a call in microseconds.
    pub delay: AtomicU64,
    /// Calls never end.
    pub is_stalled: AtomicBool,
    /// Request at which calls begin to stall, and number of such requests before it.
    silence: Mutex<Option<(Request, u64)>>,
    /// One in this number of reads returns other bytes; 0 for none.
    pub garbage_one_in: AtomicU64,
    /// Number of further reads that fail with EIO.
    pub failing_reads: AtomicU64,
    /// Number of further writes that fail with EIO.
    pub failing_writes: AtomicU64,
    /// Writes are acknowledged, but not carried out.
    pub loses_writes: AtomicBool,
    /// Number of bytes that the node reports as being reclaimed.
    pub reclaim: AtomicU64,
    /// Writes fail for lack of space.
    pub is_full: AtomicBool,
}

/// A node in memory.
pub struct TestNode {
    ram: RamPart,
    pub controls: Arc<Controls>,
}

impl TestNode {
    /// Creates a node with `mib` MiB.
    pub fn new(mib: u64) -> Arc<Self> {
        let ram = RamPart::new(mib << 20, BlockSize::new(4096).unwrap()).unwrap();
        Arc::new(TestNode { ram, controls: Arc::default() })
    }

    /// Bytes of memory that the node uses.
    pub async fn taken(&self) -> u64 {
        self.ram.status().await["memory_bytes"].as_u64().unwrap()
    }

    /// Restarts the node at once: its contents and connections are lost.
    pub async fn restart(&self) {
        self.controls.epoch.fetch_add(1, Ordering::Relaxed);
        self.forget().await;
    }

    /// Discards the contents, as a restart does.
    pub async fn forget(&self) {
        let ram = self.ram.open().await.unwrap();
        ram.discard(self.ram.geometry().whole()).await.unwrap();
    }
}

/// A device on these nodes with blocks in groups of 1 MiB, and the smallest cache.
pub fn config(nodes: &[Arc<TestNode>]) -> Config {
    let nodes = nodes.iter().enumerate().map(|(number, node)| {
        let node: Arc<dyn DevicePart> = node.clone();
        (format!("node {number}"), node)
    });
    Config { cache: 32 << 20, group: 1 << 20, ..Config::new(nodes.collect()) }
}

impl Part for TestNode {
    fn kind(&self) -> &'static str {
        "test"
    }

    fn status(&self) -> Call<'_, Status> {
        Call::new(async {
            self.controls.note(Request::Status);
            if self.controls.is_stalled.load(Ordering::Relaxed) {
                std::future::pending::<()>().await;
            }
            let mut status = Status::new();
            status.insert("reclaim_bytes".into(), self.controls.reclaim.load(Ordering::Relaxed).into());
            status
        })
    }
}

impl DevicePart for TestNode {
    fn geometry(&self) -> &DeviceGeometry {
        self.ram.geometry()
    }

    fn open(&self) -> Call<'_, Result<Rc<dyn Device>>> {
        Call::new(async {
            let epoch = self.controls.epoch.load(Ordering::Relaxed);
            self.controls.wait(Request::Open, epoch).await?;
            let ram = self.ram.open().await?;
            Ok(Rc::new(TestDevice { ram, epoch, controls: self.controls.clone() }) as Rc<dyn Device>)
        })
    }
}

impl Controls {
    /// Stalls the node at a request of this kind, after `count` others of the kind.
    pub fn silent_after(&self, request: Request, count: u64) {
        *self.silence.lock().unwrap() = Some((request, count));
    }

    fn note(&self, request: Request) {
        let silence = &mut *self.silence.lock().unwrap();
        match silence {
            Some((known, 0)) if *known == request => {
                *silence = None;
                self.is_stalled.store(true, Ordering::Relaxed);
            }
            Some((known, count)) if *known == request => *count -= 1,
            _ => {}
        }
    }

    async fn wait(&self, request: Request, epoch: u64) -> Result<()> {
        self.note(request);
        if self.is_stalled.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        let delay = self.delay.load(Ordering::Relaxed);
        if delay > 0 {
            runtime::sleep(Duration::from_micros(delay)).await;
        }
        match self.is_dead.load(Ordering::Relaxed) || self.epoch.load(Ordering::Relaxed) != epoch {
            true => Err(Error::disconnected("the node is dead")),
            false => Ok(()),
        }
    }
}

/// Decrements a number unless it is 0. Returns whether it did.
fn take_one(number: &AtomicU64) -> bool {
    number.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |number| number.checked_sub(1)).is_ok()
}

struct TestDevice {
    ram: Rc<dyn Device>,
    /// Number of restarts of the node before the handle was opened.
    epoch: u64,
    controls: Arc<Controls>,
}

impl Device for TestDevice {
    fn geometry(&self) -> &DeviceGeometry {
        self.ram.geometry()
    }

    fn read(&self, at: BlockIndex, buffer: Buffer) -> Call<'_, ReadOutcome> {
        Call::new(async move {
            let length = buffer.len();
            if let Err(error) = self.controls.wait(Request::Read, self.epoch).await {
                return (Err(error), Buffer::new(length));
            }
            if take_one(&self.controls.failing_reads) {
                return (Err(Error::io("a bad sector")), Buffer::new(length));
            }
            let (outcome, mut buffer) = self.ram.read(at, buffer).await;
            let one_in = self.controls.garbage_one_in.load(Ordering::Relaxed);
            if outcome.is_ok() && one_in > 0 && runtime::random_u64().is_multiple_of(one_in) {
                buffer.filled_mut().iter_mut().step_by(97).for_each(|byte| *byte ^= 0x55);
            }
            (outcome, buffer)
        })
    }

    fn write(&self, at: BlockIndex, payload: Payload, durability: Durability) -> Call<'_, Result<()>> {
        Call::new(async move {
            self.controls.wait(Request::Write, self.epoch).await?;
            if self.controls.is_full.load(Ordering::Relaxed) {
                return Err(Error::no_space("the node is full"));
            }
            if take_one(&self.controls.failing_writes) {
                return Err(Error::io("a bad sector"));
            }
            match self.controls.loses_writes.load(Ordering::Relaxed) {
                true => Ok(()),
                false => self.ram.write(at, payload, durability).await,
            }
        })
    }

    fn flush(&self) -> Call<'_, Result<()>> {
        Call::ready(Ok(()))
    }

    fn discard(&self, range: BlockRange) -> Call<'_, Result<()>> {
        Call::new(async move {
            self.controls.wait(Request::Discard, self.epoch).await?;
            self.ram.discard(range).await
        })
    }

    fn write_zeroes(
        &self,
        range: BlockRange,
        mode: ZeroMode,
        durability: Durability,
    ) -> Call<'_, Result<()>> {
        self.ram.write_zeroes(range, mode, durability)
    }
}
