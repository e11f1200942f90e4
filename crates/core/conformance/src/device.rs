//! The suite for [`block::Device`].
//!
//! Writes to the first [`Options::window_bytes`] of the device and to its last block: from one handle, from
//! another one of the same shard, and from the other shards if there are any. Compares each sector of 512
//! bytes with the contents that are permitted.

mod concurrent;
mod model;
mod refusals;
mod single;
mod volatile;

pub use volatile::VolatileDisk;

use crate::suite::{Check, ensure, section, seed, succeeds};
use block::{BlockSize, Device, DeviceGeometry, DevicePart};
use model::Model;
use runtime::Random;
use std::rc::Rc;
use std::sync::Arc;

/// Extent of a run of the suite.
#[derive(Debug, Clone)]
pub struct Options {
    /// Seed; `None` takes `SILTSTONE_SEED`, or 1.
    pub seed: Option<u64>,
    /// Number of random operations that are compared with the model.
    pub operations: usize,
    /// Bytes at the start of the device that are written to, rounded down to whole blocks.
    pub window_bytes: u64,
    /// Whether a second call of `make`, after a close of the part, opens the same device with its data.
    pub persistent: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options { seed: None, operations: 4000, window_bytes: 2 << 20, persistent: false }
    }
}

/// Runs the suite on the device that `make` creates, whose data is destroyed.
///
/// # Errors
/// The first broken promise, with its block and the seed.
pub async fn run(make: impl AsyncFn() -> Arc<dyn DevicePart>, options: Options) -> Result<(), String> {
    let seed = seed(options.seed, "a device")?;
    let part = make().await;
    section("geometry", seed, async { check_geometry(part.geometry()) }).await?;
    let handle = section("open", seed, async { succeeds(part.open().await, "opening a handle") }).await?;
    section("geometry of a handle", seed, async {
        ensure(handle.geometry() == part.geometry(), || {
            format!("the handle says {:?}, the part {:?}", handle.geometry(), part.geometry())
        })
    })
    .await?;
    if part.geometry().read_only {
        section("a read-only device", seed, refusals::read_only_device(&*handle)).await?;
        drop(handle);
        return section("close", seed, async { succeeds(part.close().await, "closing the part") }).await;
    }
    let mut suite = Suite::new(part.clone(), handle, seed, &options).await?;
    section("first writes", seed, single::fill(&mut suite)).await?;
    section("writes and reads", seed, single::writes_and_reads(&mut suite)).await?;
    section("discard and write_zeroes", seed, single::zeroes(&mut suite)).await?;
    section("buffers", seed, single::buffers(&mut suite)).await?;
    section("refusals", seed, refusals::refusals(&mut suite)).await?;
    section("empty ranges", seed, refusals::empty_ranges(&mut suite)).await?;
    section("extents of the whole device", seed, single::all_extents(&mut suite)).await?;
    section("several handles", seed, concurrent::handles(&mut suite)).await?;
    section("overlapping calls", seed, concurrent::overlapping(&mut suite)).await?;
    section("random operations", seed, concurrent::random(&mut suite, options.operations)).await?;
    // The contents after dropped writes are certain only after the close, so these sections are the last
    // ones.
    section("dropped calls", seed, concurrent::dropped_calls(&mut suite)).await?;
    let after = options.operations / 10;
    section("operations after dropped calls", seed, concurrent::random(&mut suite, after)).await?;
    section("contents at the end", seed, suite.check_everything()).await?;
    let mut model = suite.into_model();
    section("close", seed, async { succeeds(part.close().await, "closing the part") }).await?;
    model.closed();
    drop(part);
    if options.persistent {
        let reopened = async {
            let part = make().await;
            let handle = succeeds(part.open().await, "opening a handle after a close")?;
            model
                .check_all(&*handle)
                .await
                .map_err(|broken| format!("after a close and a new open, {broken}"))?;
            drop(handle);
            succeeds(part.close().await, "closing the part")
        };
        section("reopening", seed, reopened).await?;
    }
    Ok(())
}

/// Checks that a close makes every acknowledged write durable, flushed or not. `make` creates the part;
/// `cut_power` is called after its close; the second call of `make` opens the same part again. The part's
/// close must also close the parts below it, as a stack's does.
///
/// # Errors
/// As [`run`].
pub async fn run_close(
    make: impl AsyncFn() -> Arc<dyn DevicePart>,
    cut_power: impl Fn(),
    options: Options,
) -> Result<(), String> {
    let seed = seed(options.seed, "closing a device")?;
    let part = make().await;
    let handle = section("open", seed, async { succeeds(part.open().await, "opening a handle") }).await?;
    let mut suite = Suite::new(part.clone(), handle, seed, &options).await?;
    section("first writes", seed, single::fill(&mut suite)).await?;
    section("random operations", seed, concurrent::random(&mut suite, options.operations)).await?;
    let mut model = suite.into_model();
    section("close", seed, async { succeeds(part.close().await, "closing the part") }).await?;
    drop(part);
    cut_power();
    let reopened = async {
        let part = make().await;
        let handle = succeeds(part.open().await, "opening a handle after a close")?;
        let checked = model.check_all(&*handle).await;
        checked.map_err(|broken| format!("after a close and a power cut, {broken}"))?;
        drop(handle);
        succeeds(part.close().await, "closing the part")
    };
    section("power cut after a close", seed, reopened).await
}

fn check_geometry(geometry: &DeviceGeometry) -> Check {
    let size = geometry.block_size;
    ensure(BlockSize::new(size.bytes()).is_ok(), || format!("block size {size} isn't allowed"))?;
    ensure(geometry.blocks.0 >= 2, || format!("{} blocks: this suite needs at least 2", geometry.blocks))?;
    let fits = geometry.blocks.0.checked_mul(size.bytes()).is_some();
    ensure(fits, || format!("{} blocks of {size} bytes are more than 2^64 bytes", geometry.blocks))?;
    ensure(geometry.atomic_write >= SECTOR_BYTES && geometry.atomic_write.is_power_of_two(), || {
        format!("atomic_write {}: expected a power of two from 512 on", geometry.atomic_write)
    })
}

const SECTOR_BYTES: u32 = crate::stamp::SECTOR as u32;

/// State that the sections share.
struct Suite {
    part: Arc<dyn DevicePart>,
    device: Rc<dyn Device>,
    /// Second handle of the same shard.
    other: Rc<dyn Device>,
    model: Model,
    random: Random,
}

impl Suite {
    async fn new(
        part: Arc<dyn DevicePart>,
        device: Rc<dyn Device>,
        seed: u64,
        options: &Options,
    ) -> Check<Suite> {
        let other = succeeds(part.open().await, "opening a second handle")?;
        let model = Model::new(part.geometry(), seed, options.window_bytes);
        Ok(Suite { part, device, other, model, random: Random::new(seed) })
    }

    fn handle(&mut self) -> Rc<dyn Device> {
        if self.random.below(2) == 0 { self.device.clone() } else { self.other.clone() }
    }

    async fn check_everything(&mut self) -> Check {
        self.model.check_all(&*self.other).await
    }

    /// Drops the handles.
    fn into_model(self) -> Model {
        self.model
    }
}
