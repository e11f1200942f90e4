//! Simulated worlds for any stack of devices: several clients, faults, power cuts at any time (also while it is formatted,
//! opened or closed), disks that are lost, several lives, checked against a model.
//!
//! A test declares its stack as a [`Subject`] and calls [`keeps_its_promises`]. A seed decides everything. `SILTSTONE_SEED=7`
//! begins there, `SILTSTONE_SEEDS=10000` tries so many; a failure names its seed, which repeats exactly:
//! `SILTSTONE_SEED=7 SILTSTONE_SEEDS=1`, which also prints what it draws.
//!
//! `model` says what may be there, `client` and `stamp` what clients do, `life` what a life is and which disks it has, `loss`
//! what may be lost between two of them, `run` runs them, `drawn` has options that several stacks draw. Left to others: every single cut of a run, and the states of the
//! disks that it may leave (the crash oracle).

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

/// What is tried: a stack, which stays the same over all lives of a seed, and what it promises beyond a device's contract.
/// Whatever isn't overridden is what any device promises.
pub trait Subject: Debug + Clone + Send + Sync + Sized + 'static {
    /// What is opened.
    type Part: DevicePart + 'static;
    /// What the test remembers over all lives besides the model.
    type Memory: Debug + Default + Send + 'static;

    /// Draws sizes and options.
    fn draw(random: &mut Random) -> Self;

    /// Its disks; they are zeros at first.
    fn files(&self) -> Vec<File>;

    /// How many shards its clients are on.
    fn shards(&self) -> usize;

    /// Opens it, or makes it anew.
    fn open(&self, disks: &Disks, life: &Life) -> impl Future<Output = Result<Arc<Self::Part>>>;

    /// What it draws for this life alone, for people.
    fn describe(&self, _life: &Life) -> String {
        String::new()
    }

    /// What is left of its contents when it is made anew; none if those are zeros then.
    fn format_leaves(&self) -> Option<Stop> {
        None
    }

    /// Whether a power cut leaves a prefix of all operations: where one is there, so is everything that had completed before
    /// it was submitted.
    fn is_ordered(&self, _life: &Life) -> bool {
        false
    }

    /// Whether everything that was acknowledged survives the end of its process in this life.
    fn survives_kill(&self, _life: &Life) -> bool {
        true
    }

    /// Whether closing makes everything durable that was acknowledged; a device promises that of a flush alone.
    fn closes_durably(&self) -> bool {
        false
    }

    /// Whether an operation may fail so although no fault is injected.
    fn may_refuse(&self, _error: &Error, _is_write: bool) -> bool {
        false
    }

    /// Before a life begins: it may change what goes wrong in it.
    fn prepare(&self, _memory: &mut Self::Memory, _life: &mut Life) {}

    /// Whether an operation may fail now, or opening.
    fn may_fail(world: &World<Self>) -> bool {
        world.life.may_fail()
    }

    /// How many blocks a long request has at most; a short one has four.
    fn longest(&self) -> u64 {
        64
    }

    /// How many reads more than usual there are to a hundred operations; usual are 14 of a hundred.
    fn more_reads(&self) -> u64 {
        0
    }

    /// What may be lost at the end of a life.
    fn losses(&self, _memory: &Self::Memory) -> Vec<Loss> {
        Vec::new()
    }

    /// Opens what a loss after such a stop has left where the whole can't be used any more; says what may be in it. The next
    /// life makes the stack anew, and finds that or what is newer.
    fn survivors(
        &self,
        _disks: &Disks,
        loss: &Loss,
        _stop: Stop,
    ) -> impl Future<Output = Result<(Arc<dyn DevicePart>, Stop)>> {
        async move { Err(Error::unsupported(format!("nothing is left after {loss:?}"))) }
    }

    /// Brings to light what may have rotted and can't be read by a client.
    fn search(_part: &Self::Part) -> impl Future<Output = Result<()>> {
        async { Ok(()) }
    }

    /// Something ended so, and this is what is remembered of it.
    fn stopped(_memory: &mut Self::Memory, _stop: Stop) {}

    /// It was opened with so many blocks, where the model has `known`.
    ///
    /// # Errors
    /// That it can't be so.
    fn check_size(_world: &World<Self>, blocks: u64, known: Option<u64>) -> Result<(), String> {
        match known {
            Some(known) if known != blocks => Err(format!("it has {blocks} blocks, not {known}")),
            _ => Ok(()),
        }
    }

    /// It has been opened, and nothing was asked of it yet.
    fn opened(_world: &World<Self>, _part: &Self::Part) -> impl Future<Output = Result<(), String>> {
        async { Ok(()) }
    }

    /// All of it was read after it was opened, and is as it may be.
    fn was_read(_world: &World<Self>, _part: &Self::Part) -> impl Future<Output = Result<(), String>> {
        async { Ok(()) }
    }

    /// Whether [`Subject::meanwhile`] does anything.
    fn is_operated(&self) -> bool {
        false
    }

    /// What an operator does while clients work; it ends when [`World::is_over`].
    fn meanwhile(
        _world: Arc<World<Self>>,
        _part: Arc<Self::Part>,
    ) -> impl Future<Output = Result<(), String>> + 'static {
        async { Ok(()) }
    }

    /// The clients and the operator have ended.
    fn ended(_world: &World<Self>, _part: &Self::Part) -> impl Future<Output = Result<(), String>> {
        async { Ok(()) }
    }

    /// It was closed in good order.
    fn closed(_world: &World<Self>, _part: &Self::Part) -> impl Future<Output = ()> {
        async {}
    }
}

/// What all tasks of a life share.
#[derive(Debug)]
pub struct World<S: Subject> {
    /// What is tried.
    pub subject: S,
    /// What is to happen.
    pub life: Life,
    /// What had happened before.
    pub stop: Stop,
    /// None before the stack has been made.
    model: Mutex<Option<Model>>,
    memory: Mutex<S::Memory>,
    started: AtomicU64,
    /// It has been opened, and holds what it may.
    opened: AtomicU64,
    refused: AtomicU64,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("the first panic has ended the world")
}

impl<S: Subject> World<S> {
    /// Does something with the model.
    ///
    /// # Panics
    /// Before the stack has been opened.
    pub fn model<T>(&self, work: impl FnOnce(&mut Model) -> T) -> T {
        work(locked(&self.model).as_mut().expect("the stack has been made"))
    }

    /// What the test remembers over all lives.
    pub fn memory(&self) -> MutexGuard<'_, S::Memory> {
        locked(&self.memory)
    }

    /// Whether the clients have begun all that they had to do.
    pub fn is_over(&self) -> bool {
        self.started.load(Ordering::Relaxed) >= self.life.operations
    }

    /// Counts an error that an operation ended with.
    ///
    /// # Errors
    /// One that mustn't be in this life breaks it.
    pub fn judge(&self, what: &str, error: Error, is_write: bool) -> Result<(), String> {
        let is_allowed = match &error {
            Error::Corrupt(_) => false,
            error => S::may_fail(self) || self.subject.may_refuse(error, is_write),
        };
        self.refused.fetch_add(1, Ordering::Relaxed);
        if is_allowed { Ok(()) } else { Err(format!("{what}: {error}")) }
    }
}
