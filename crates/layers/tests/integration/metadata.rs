//! The mark of a file system's metadata arrives below every layer that passes payloads on, and `metadata_only` goes by it.

use crate::common::{full, on_a_shard, read};
use block::{
    BlockIndex, BlockRange, Buffer, Call, Device, DeviceGeometry, DevicePart, Durability, Part, Payload,
    ReadOutcome, Result, Status, ZeroMode,
};
use stack::{Built, BuiltStack, Contract, Key, Kind, Registry, Stack, ValueKind};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A device that counts the bytes that were marked, and those that weren't.
struct Witness {
    inner: Arc<dyn DevicePart>,
    marked: Arc<AtomicU64>,
    plain: Arc<AtomicU64>,
}

const WITNESS: Kind = Kind {
    name: "witness",
    contract: Contract::Device,
    summary: "counts bytes of metadata and others",
    keys: &[Key::required("on", ValueKind::Device, "what is written to").positional()],
    shareable: false,
    example: "witness(ram(1MiB))",
    plan: |arguments| arguments.shape("on"),
    build: |arguments| {
        Call::ready(arguments.device("on").map(|inner| {
            Built::Device(Arc::new(Witness { inner, marked: Arc::default(), plain: Arc::default() }))
        }))
    },
};

impl Part for Witness {
    fn kind(&self) -> &'static str {
        WITNESS.name
    }

    fn status(&self) -> Status {
        let mut status = Status::new();
        status.insert("marked".into(), self.marked.load(Ordering::Relaxed).into());
        status.insert("plain".into(), self.plain.load(Ordering::Relaxed).into());
        status
    }
}

impl DevicePart for Witness {
    fn geometry(&self) -> &DeviceGeometry {
        self.inner.geometry()
    }

    fn open(&self) -> Call<'_, Result<Rc<dyn Device>>> {
        Call::new(async move {
            let (marked, plain) = (self.marked.clone(), self.plain.clone());
            Ok(Rc::new(Handle { inner: self.inner.open().await?, marked, plain }) as Rc<dyn Device>)
        })
    }
}

struct Handle {
    inner: Rc<dyn Device>,
    marked: Arc<AtomicU64>,
    plain: Arc<AtomicU64>,
}

impl Device for Handle {
    fn geometry(&self) -> &DeviceGeometry {
        self.inner.geometry()
    }

    fn read(&self, at: BlockIndex, buffer: Buffer) -> Call<'_, ReadOutcome> {
        self.inner.read(at, buffer)
    }

    fn write(&self, at: BlockIndex, payload: Payload, durability: Durability) -> Call<'_, Result<()>> {
        let counter = if payload.is_metadata() { &self.marked } else { &self.plain };
        counter.fetch_add(payload.len() as u64, Ordering::Relaxed);
        self.inner.write(at, payload, durability)
    }

    fn flush(&self) -> Call<'_, Result<()>> {
        self.inner.flush()
    }

    fn discard(&self, range: BlockRange) -> Call<'_, Result<()>> {
        self.inner.discard(range)
    }

    fn write_zeroes(
        &self,
        range: BlockRange,
        mode: ZeroMode,
        durability: Durability,
    ) -> Call<'_, Result<()>> {
        self.inner.write_zeroes(range, mode, durability)
    }
}

fn registry() -> Registry {
    Registry::new(vec![
        &layers::stats::KIND,
        &layers::fault::KIND,
        &layers::record::KIND,
        &layers::linear::KIND,
        &layers::stripe::KIND,
        &layers::cache::KIND,
        &layers::writecache::KIND,
        &layers::mirror::KIND,
        &layers::model::KIND,
        &disks::ram::KIND,
        &WITNESS,
    ])
}

async fn built(line: &str, folder: &std::path::Path) -> BuiltStack {
    let parsed = Stack::from_line("line", line, &registry()).unwrap().with_base_directory(folder);
    parsed.check(true).unwrap().build().await.unwrap()
}

fn number(stack: &BuiltStack, device: &str, key: &str) -> u64 {
    stack.device(device).unwrap().status()[key].as_u64().unwrap()
}

/// So many blocks from here on, one write each of 16 blocks.
async fn fill(device: &dyn Device, blocks: u64, is_metadata: bool) {
    for block in (0..blocks).step_by(16) {
        let payload = full(7, 16).with_metadata(is_metadata);
        device.write(BlockIndex(block), payload, Durability::Visible).await.unwrap();
    }
    device.flush().await.unwrap();
}

#[test]
fn the_mark_arrives_below_every_layer() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_owned();
    on_a_shard(move || async move {
        // Each leg of the stripe gets a third of what is written; chunks are smaller than the writes.
        let line = "stats(record(fault(stripe(\
                        mirror(witness(ram(4MiB)), witness(ram(4MiB))), \
                        cache(witness(ram(4MiB)), witness(ram(2MiB)), block_size=32KiB), \
                        linear(model(witness(ram(2MiB)), optane-900p), witness(ram(2MiB))), \
                    chunk_size=16KiB), \"write corrupt bits=1 every=9\", seed=1), run.timeline))";
        let stack = built(line, &path).await;
        let device = stack.device("top").unwrap().open().await.unwrap();
        let legs: [&[&str]; 4] = [&["witness1"], &["witness2"], &["witness3", "witness4"], &["witness5"]];
        let marked = |legs: &[&str]| legs.iter().map(|leg| number(&stack, leg, "marked")).sum::<u64>();
        fill(&*device, 192, false).await;
        assert_eq!(legs.map(marked), [0; 4], "nothing was metadata");
        fill(&*device, 192, true).await;
        for leg in legs {
            // A cache may write both of its devices.
            assert!(marked(leg) >= 64 * 4096, "{leg:?}: only {} bytes were marked", marked(leg));
        }
        drop(device);
        stack.close().await.unwrap();
    });
}

#[test]
fn only_metadata_is_cached_wherever_the_cache_stands() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_owned();
    on_a_shard(move || async move {
        let cache = "writecache(witness(ram(4MiB)), witness(ram(1MiB)), metadata_only=true, order=none, high_watermark=100)";
        let line = format!("stats(stripe({cache}, {cache}, chunk_size=16KiB))");
        let stack = built(&line, &path).await;
        let device = stack.device("top").unwrap().open().await.unwrap();
        let both = |key| ["writecache1", "writecache2"].map(|name| number(&stack, name, key));
        fill(&*device, 64, false).await;
        assert_eq!((both("cached_blocks"), both("writes_around")), ([0; 2], [32; 2]));
        fill(&*device, 64, true).await;
        assert_eq!((both("cached_blocks"), both("writes_around")), ([32; 2], [32; 2]));
        // What is cached stays so, whatever it carries.
        fill(&*device, 128, false).await;
        assert_eq!((both("cached_blocks"), both("writes_around")), ([32; 2], [64; 2]));
        assert_eq!(read(&*device, 0, 128).await.unwrap(), vec![7; 128 * 4096]);
        drop(device);
        stack.close().await.unwrap();
    });
}
