//! Every stack keeps acknowledged, unflushed writes over a clean close and a power cut, on disks that lose
//! all data that was not flushed.

use block::{BlockSize, Call, DevicePart};
use conformance::Whole;
use conformance::device::{Options, VolatileDisk, run_close};
use stack::{Built, BuiltStack, Contract, Kind, Registry, Shape, Stack};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

/// Size of a disk, in blocks of 4096 bytes.
const BLOCKS: u64 = 4096;

thread_local! {
    /// Disks by the names of their parts.
    static DISKS: RefCell<BTreeMap<String, VolatileDisk>> = const { RefCell::new(BTreeMap::new()) };
}

fn disk(name: &str) -> VolatileDisk {
    DISKS.with_borrow_mut(|disks| {
        disks
            .entry(name.to_owned())
            .or_insert_with(|| VolatileDisk::new(BLOCKS, BlockSize::default()))
            .clone()
    })
}

/// A disk that lives as long as the test.
static VOLATILE: Kind = Kind {
    name: "volatile",
    contract: Contract::Device,
    summary: "a disk that loses what isn't flushed",
    keys: &[],
    messages: &[],
    metrics: &[],
    shareable: false,
    example: "volatile",
    plan: |_| Ok(Shape::new(BLOCKS * 4096, 4096)),
    build: |arguments| Call::new(async move { Ok(Built::Device(Arc::new(disk(arguments.name())))) }),
};

fn registry() -> Registry {
    Registry::new(vec![
        &VOLATILE,
        &layers::stats::KIND,
        &layers::fault::KIND,
        &layers::record::KIND,
        &layers::model::KIND,
        &layers::linear::KIND,
        &layers::stripe::KIND,
        &cache::KIND,
        &writecache::KIND,
        &mirror::KIND,
        &crypt::KIND,
        &layers::stats::ZONES_KIND,
        &layers::fault::ZONES_KIND,
        &zones::on_device::KIND,
        &log::KIND,
        &doors::nbd::client::KIND,
        &doors::nbd::door::KIND,
    ])
}

async fn build(line: &str, folder: &Path, format: bool) -> BuiltStack {
    let stack = Stack::from_line("line", line, &registry()).unwrap_or_else(|problems| panic!("{problems}"));
    let plan = stack.with_base_directory(folder).check(format);
    plan.unwrap_or_else(|problems| panic!("{problems}")).build().await.expect("the stack opens")
}

async fn judge(line: &str, folder: &Path) -> std::result::Result<(), String> {
    let made = Cell::new(false);
    let make = async || {
        let built = build(line, folder, !made.replace(true)).await;
        Arc::new(Whole::new(built).expect("a device on top")) as Arc<dyn DevicePart>
    };
    let cut = || DISKS.with_borrow(|disks| disks.values().for_each(VolatileDisk::cut_power));
    run_close(make, cut, Options { operations: 400, ..Options::default() }).await
}

fn holds(line: &'static str) {
    println!("{line}");
    let main = move || async move {
        DISKS.take();
        let folder = tempfile::tempdir().expect("a folder");
        // A key, or a passphrase.
        let secret = folder.path().join("secret");
        std::fs::write(&secret, [b'k'; 64]).expect("a file");
        std::fs::set_permissions(&secret, PermissionsExt::from_mode(0o600)).expect("its owner");
        judge(line, folder.path()).await
    };
    let judged = runtime::run(runtime::Config::default(), main).expect("the runtime starts");
    judged.unwrap_or_else(|broken| panic!("{line}: {broken}"));
}

#[test]
fn of_layers_that_pass_calls_on() {
    holds("volatile");
    holds("stats(volatile)");
    holds("fault(volatile, \"any delay=0us..50us probability=0.2\")");
    holds("record(volatile, run.timeline, overwrite=true)");
    holds("model(volatile, optane-900p)");
    holds("linear(volatile, volatile)");
    holds("stripe(volatile, volatile, volatile)");
}

#[test]
fn of_a_cache() {
    holds("cache(volatile, volatile, mode=writeback)");
    holds("cache(volatile, volatile, mode=writethrough)");
}

#[test]
fn of_a_write_cache() {
    holds("writecache(volatile, volatile)");
    holds("writecache(volatile, volatile, cleaner=true)");
}

#[test]
fn of_a_mirror() {
    holds("mirror(volatile, volatile)");
    holds("mirror(volatile, volatile, write_mostly=[1], write_behind=256, flush=fast)");
    holds(
        "mirror(volatile, writecache(volatile, volatile, high_watermark=0, low_watermark=0), write_mostly=[1])",
    );
}

#[test]
fn of_encryption() {
    holds("crypt(volatile, key_file=secret)");
    holds("crypt(volatile, key_file=secret, discard=true)");
    holds("log(crypt(volatile, key_file=secret), size=8MiB, zone_size=256KiB)");
    holds("crypt(linear(volatile, volatile), passphrase_file=secret, pbkdf_memory=64KiB)");
}

#[test]
fn of_a_log() {
    holds("log(volatile, size=8MiB, zone_size=256KiB)");
    holds("log(volatile, size=8MiB, zone_size=256KiB, ack=buffer)");
    holds("log(zone-stats(zones(volatile, zone_size=256KiB)), size=8MiB, ack=buffer)");
}

#[test]
fn of_a_client_whose_server_goes_on() {
    let main = || async {
        DISKS.take();
        let folder = tempfile::tempdir().expect("a folder");
        let server = build("nbd(volatile, socket=disk.sock)", folder.path(), true).await;
        server.start().await.expect("it starts");
        let judged = judge("nbd-client(unix:disk.sock)", folder.path()).await;
        server.close().await.expect("it closes");
        judged
    };
    let judged = runtime::run(runtime::Config::default(), main).expect("the runtime starts");
    judged.unwrap_or_else(|broken| panic!("{broken}"));
}
