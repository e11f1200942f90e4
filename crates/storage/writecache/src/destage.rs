//! Writes of one batch to the origin: discarded ranges first, then the blocks, in runs.

use crate::batch::{Batch, Run};
use crate::core::Core;
use crate::counters::count;
use crate::format::Action;
use block::{Durability, Error, Result, ZeroMode};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Limit to one write to the origin, in blocks.
const MAX_RUN: u64 = 256;
/// Limit to the discards in flight.
const DISCARDS: usize = 16;

/// Writes a batch to the origin.
///
/// # Errors
/// Errors of the origin.
pub async fn write(core: &Rc<Core>, batch: &Rc<Batch>) -> Result<()> {
    discard_ranges(core, batch).await?;
    write_runs(core, batch).await
}

/// Makes the written blocks durable, unless their writes were durable.
///
/// # Errors
/// Errors of the origin.
pub async fn flush(core: &Core) -> Result<()> {
    let origin = core.origin.device();
    if core.settings.fua || !origin.geometry().volatile_cache {
        return Ok(());
    }
    let flushed = origin.flush().await.map_err(|error| error.in_context("flushing the origin"));
    count(&core.counters.origin_flushes, 1);
    flushed
}

fn durability(core: &Core) -> Durability {
    if core.settings.fua { Durability::Durable } else { Durability::Visible }
}

async fn discard_ranges(core: &Core, batch: &Batch) -> Result<()> {
    let discards = batch.ranges().map(|entry| async move {
        let (origin, range) = (core.origin.device(), core.origin.range(entry.block, entry.count));
        let durability = durability(core);
        match (entry.action, durability) {
            (Action::Discard, Durability::Visible) => origin.discard(range).await,
            // A discard has no FUA.
            (Action::Discard, Durability::Durable) => {
                origin.write_zeroes(range, ZeroMode::MayDeallocate, durability).await
            }
            _ => origin.write_zeroes(range, ZeroMode::KeepAllocated, durability).await,
        }
    });
    let outcomes = runtime::join_limited(DISCARDS, discards).await;
    outcomes.into_iter().collect::<Result<()>>().map_err(|error| error.in_context("discarding on the origin"))
}

/// The runs of a batch, shared by the workers that write them.
struct Work {
    core: Rc<Core>,
    batch: Rc<Batch>,
    runs: Vec<Run>,
    next: Cell<usize>,
    failed: RefCell<Option<Error>>,
}

impl Work {
    /// Writes runs, one after the other, until none is left or one has failed.
    async fn work(self: Rc<Self>) {
        while self.failed.borrow().is_none()
            && let Some(run) = self.runs.get(self.next.get())
        {
            self.next.set(self.next.get() + 1);
            let (block, payload) = self.batch.run(*run);
            let origin = &self.core.origin;
            let outcome = origin.device().write(origin.block(block), payload, durability(&self.core)).await;
            if let Err(error) = outcome {
                *self.failed.borrow_mut() = Some(error.in_context(format!("block {block} of the origin")));
                break;
            }
        }
    }
}

/// Writes all runs, `jobs` of them at a time.
async fn write_runs(core: &Rc<Core>, batch: &Rc<Batch>) -> Result<()> {
    let runs: Vec<Run> = batch.runs(MAX_RUN).collect();
    let jobs = core.settings.jobs.min(runs.len());
    let (next, failed) = (Cell::new(0), RefCell::default());
    let work = Rc::new(Work { core: core.clone(), batch: batch.clone(), runs, next, failed });
    let workers: Vec<_> = (0..jobs).map(|_| runtime::spawn(work.clone().work())).collect();
    for worker in workers {
        worker.await;
    }
    match work.failed.take() {
        None => Ok(()),
        Some(error) => Err(error),
    }
}
