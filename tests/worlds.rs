//! Simulated worlds for any stack of devices: several clients, faults, power cuts at any time (also while it
//! is formatted, opened or closed), disks that are lost; several epochs, here called lives; checked against a
//! model.
//!
//! A test declares its stack as a [`Subject`] and calls [`keeps_its_promises`]. A seed decides everything.
//! `SILTSTONE_SEED=7` is the first seed to try, `SILTSTONE_SEEDS=10000` the number of seeds. A failure names
//! its seed, which repeats the run exactly: `SILTSTONE_SEED=7 SILTSTONE_SEEDS=1`, which also prints the drawn
//! options.
//!
//! `model` decides which contents are legal, `client` and `stamp` are the clients' operations and data,
//! `life` is one life with its disks, `loss` is the loss of a disk between two lives, `run` runs them,
//! `drawn` has options that several stacks draw. Left to the crash oracle: every single cut of a run, and the
//! states of the disks that it may leave.

mod client;
mod drawn;
mod life;
mod loss;
mod model;
mod run;
mod stamp;

pub use client::{read_all, unit_of, units_per_block, versions};
pub use drawn::{cache_options, pick, write_cache_options};
pub use life::{Disks, End, File, Files, Life};
pub use loss::{Change, Finds, Loss};
pub use model::{Model, Stop, Version};
pub use run::{keeps_its_promises, try_seed};
pub use stamp::{stamped, version_of};

use block::{DevicePart, Error, Result};
use runtime::Random;
use std::fmt::Debug;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// Subject of a test: a stack, constant over all lives of a seed, and its promises beyond a device's
/// contract. The default of each function is the contract of any device.
pub trait Subject: Debug + Clone + Send + Sync + Sized + 'static {
    /// Part at the top of the stack.
    type Part: DevicePart + 'static;
    /// State that the test keeps over all lives besides the model.
    type Memory: Debug + Default + Send + 'static;

    /// Draws sizes and options.
    fn draw(random: &mut Random) -> Self;

    /// Disks of the stack, which are zeros at first.
    fn files(&self) -> Vec<File>;

    /// Number of shards on which clients run.
    fn shards(&self) -> usize;

    /// Opens or formats the stack.
    fn open(&self, disks: &Disks, life: &Life) -> impl Future<Output = Result<Arc<Self::Part>>>;

    /// Options drawn for this life alone, for the output.
    fn describe(&self, _life: &Life) -> String {
        String::new()
    }

    /// State of the old contents after a format; `None` if all contents are zeros then.
    fn format_leaves(&self) -> Option<Stop> {
        None
    }

    /// Whether a power cut leaves a prefix of all operations: if one is visible, all that had completed
    /// before it was submitted are visible.
    fn is_ordered(&self, _life: &Life) -> bool {
        false
    }

    /// Whether all acknowledged operations survive the end of the process in this life.
    fn survives_kill(&self, _life: &Life) -> bool {
        true
    }

    /// Whether closing makes all acknowledged operations durable; a device promises that only of a flush.
    fn closes_durably(&self) -> bool {
        false
    }

    /// Whether an operation may fail with this error although no fault is injected.
    fn may_refuse(&self, _error: &Error, _is_write: bool) -> bool {
        false
    }

    /// Prepares a life before it begins, and may change its faults.
    fn prepare(&self, _memory: &mut Self::Memory, _life: &mut Life) {}

    /// Whether an operation may fail now, or opening.
    fn may_fail(world: &World<Self>) -> bool {
        world.life.may_fail()
    }

    /// Longest request, in blocks; a short one has up to four.
    fn longest(&self) -> u64 {
        64
    }

    /// Reads in addition to the usual 14 of a hundred operations.
    fn more_reads(&self) -> u64 {
        0
    }

    /// Losses that may happen at the end of a life.
    fn losses(&self, _memory: &Self::Memory) -> Vec<Loss> {
        Vec::new()
    }

    /// Opens the rest of a stack that can't be used as a whole after a loss. Also returns which contents are
    /// legal. The next life formats the stack, and finds those contents or newer ones.
    fn survivors(
        &self,
        _disks: &Disks,
        loss: &Loss,
        _stop: Stop,
    ) -> impl Future<Output = Result<(Arc<dyn DevicePart>, Stop)>> {
        async move { Err(Error::unsupported(format!("nothing is left after {loss:?}"))) }
    }

    /// Makes the stack read data that no client's request reaches, to find hidden damage.
    fn search(_part: &Self::Part) -> impl Future<Output = Result<()>> {
        async { Ok(()) }
    }

    /// Notes that a life has ended with this stop.
    fn stopped(_memory: &mut Self::Memory, _stop: Stop) {}

    /// Checks the number of blocks of the opened stack, where the model has `known`.
    ///
    /// # Errors
    /// A number that isn't legal.
    fn check_size(_world: &World<Self>, blocks: u64, known: Option<u64>) -> Result<(), String> {
        match known {
            Some(known) if known != blocks => Err(format!("it has {blocks} blocks, not {known}")),
            _ => Ok(()),
        }
    }

    /// Called when the stack has been opened, before any request.
    fn opened(_world: &World<Self>, _part: &Self::Part) -> impl Future<Output = Result<(), String>> {
        async { Ok(()) }
    }

    /// Called when all of the opened stack has been read, and its contents are legal.
    fn was_read(_world: &World<Self>, _part: &Self::Part) -> impl Future<Output = Result<(), String>> {
        async { Ok(()) }
    }

    /// Whether [`Subject::meanwhile`] does anything.
    fn is_operated(&self) -> bool {
        false
    }

    /// Acts as an operator while clients work; ends when [`World::is_over`].
    fn meanwhile(
        _world: Arc<World<Self>>,
        _part: Arc<Self::Part>,
    ) -> impl Future<Output = Result<(), String>> + 'static {
        async { Ok(()) }
    }

    /// Called when the clients and the operator have ended.
    fn ended(_world: &World<Self>, _part: &Self::Part) -> impl Future<Output = Result<(), String>> {
        async { Ok(()) }
    }

    /// Called when the stack was closed without an error.
    fn closed(_world: &World<Self>, _part: &Self::Part) -> impl Future<Output = ()> {
        async {}
    }
}

/// State that all tasks of a life share.
#[derive(Debug)]
pub struct World<S: Subject> {
    /// Stack under test.
    pub subject: S,
    /// Plan of this life.
    pub life: Life,
    /// Stop before this life.
    pub stop: Stop,
    /// `None` before the stack has been formatted.
    model: Mutex<Option<Model>>,
    memory: Mutex<S::Memory>,
    started: AtomicU64,
    /// 1 once the stack has been opened with legal contents.
    opened: AtomicU64,
    refused: AtomicU64,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("the first panic has ended the world")
}

impl<S: Subject> World<S> {
    /// Calls a function on the model.
    ///
    /// # Panics
    /// If the stack has not been opened yet.
    pub fn model<T>(&self, work: impl FnOnce(&mut Model) -> T) -> T {
        work(locked(&self.model).as_mut().expect("the stack has been made"))
    }

    /// State that the test keeps over all lives.
    pub fn memory(&self) -> MutexGuard<'_, S::Memory> {
        locked(&self.memory)
    }

    /// Whether the clients have begun all their operations.
    pub fn is_over(&self) -> bool {
        self.started.load(Ordering::Relaxed) >= self.life.operations
    }

    /// Counts an error of an operation.
    ///
    /// # Errors
    /// The error, if it isn't permitted in this life.
    pub fn judge(&self, what: &str, error: Error, is_write: bool) -> Result<(), String> {
        let is_allowed = match &error {
            Error::Corrupt(_) => false,
            error => S::may_fail(self) || self.subject.may_refuse(error, is_write),
        };
        self.refused.fetch_add(1, Ordering::Relaxed);
        if is_allowed { Ok(()) } else { Err(format!("{what}: {error}")) }
    }
}
