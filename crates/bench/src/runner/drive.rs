//! One run of our own engine: builds the stacks in a runtime of their own, runs jobs on them, closes them.

use crate::engine::{self, Assignment, Progress};
use crate::job::Job;
use crate::peer::process::RunningServer;
use crate::results::Measurement;
use block::{BlockIndex, Buffer, DevicePart, Result};
use runtime::sync::StopToken;
use stack::BuiltStack;
use std::sync::Arc;

/// Whether a stack is written from start to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fill {
    /// It is left as it is.
    No,
    /// That is all that is done.
    Only,
    /// Before the jobs run.
    First,
    /// Before the jobs run, if it has forgotten what was written to it: memory does.
    IfForgotten,
}

/// A stack, and what of it is driven.
pub(super) struct Target {
    pub stack: stack::Plan,
    /// The device's name; none is the top.
    pub device: Option<String>,
    pub fill: Fill,
}

/// What is to be done.
pub(super) struct Work {
    pub shards: usize,
    pub targets: Vec<Target>,
    /// Jobs that run at the same time, each with the number of its target.
    pub jobs: Vec<(usize, Job)>,
    /// The server that the stacks talk to, whose CPU time is measured, too.
    pub server: Option<Arc<RunningServer>>,
}

/// Does it, and gives a measurement for each job; none where there was only something to fill.
pub(super) fn drive(work: Work, progress: Arc<Progress>, stop: StopToken) -> Result<Vec<Measurement>> {
    let config = runtime::Config::default().with_shards(work.shards);
    runtime::run(config, move || run(work, progress, stop))?
}

async fn run(work: Work, progress: Arc<Progress>, stop: StopToken) -> Result<Vec<Measurement>> {
    let mut built = Vec::new();
    let mut outcome = Ok(Vec::new());
    for target in &work.targets {
        match target.stack.build().await {
            Ok(stack) => built.push(stack),
            Err(error) => {
                outcome = Err(error);
                break;
            }
        }
    }
    if outcome.is_ok() {
        outcome = measure(&work, &built, progress, stop).await;
    }
    // The reason for the end is more than what closing says about it.
    for stack in built.iter().rev() {
        outcome = match (outcome, stack.close().await) {
            (Ok(_), Err(error)) => Err(error),
            (outcome, _) => outcome,
        };
    }
    outcome
}

async fn measure(
    work: &Work,
    built: &[BuiltStack],
    progress: Arc<Progress>,
    stop: StopToken,
) -> Result<Vec<Measurement>> {
    let mut parts = Vec::new();
    for (target, stack) in work.targets.iter().zip(built) {
        let part = match &target.device {
            Some(name) => stack.device(name)?,
            None => stack.top()?,
        };
        let is_due = match target.fill {
            Fill::No => false,
            Fill::Only | Fill::First => true,
            Fill::IfForgotten => has_forgotten(&part).await?,
        };
        if is_due {
            // The bar of a run that is only preceded by it is the run's.
            let shown = if target.fill == Fill::Only { progress.clone() } else { Arc::default() };
            engine::fill(&part, shown, stop.clone()).await?;
            // What was counted by then isn't the run's. Most parts count nothing, and say so.
            for part in stack.parts() {
                let _ = part.built.part().message("clear_stats").await;
            }
        }
        parts.push(part);
    }
    if work.targets.iter().any(|target| target.fill == Fill::Only) {
        return Ok(Vec::new());
    }
    let before = work.server.as_ref().map(|server| server.cpu_seconds()).transpose()?;
    let assignments =
        work.jobs.iter().map(|(target, job)| Assignment { job: job.clone(), part: parts[*target].clone() });
    let mut measured = engine::run(assignments.collect(), progress, stop).await?;
    for (measurement, (target, job)) in measured.iter_mut().zip(&work.jobs) {
        if let (Some(server), Some(before)) = (&work.server, before) {
            // As for peers: the server also worked during the ramp, whose operations nobody counted.
            let share = measurement.seconds / (measurement.seconds + job.ramp_time.as_secs_f64());
            let seconds = (server.cpu_seconds()? - before) * share;
            measurement.server_cpu_seconds = Some(seconds).filter(|seconds| seconds.is_finite());
        }
        measurement.layers = layers(&built[*target]);
    }
    Ok(measured)
}

/// What each layer says about itself, by its name in the stack.
fn layers(stack: &BuiltStack) -> serde_json::Map<String, serde_json::Value> {
    let mut layers = serde_json::Map::new();
    if let serde_json::Value::Object(contracts) = stack.status() {
        for (_, parts) in contracts {
            layers.extend(parts.as_object().cloned().unwrap_or_default());
        }
    }
    layers
}

/// In how many places it is looked whether there is anything but zeros.
const SAMPLES: u64 = 64;

/// Whether any of some blocks, the first and the last among them, is all zeros.
async fn has_forgotten(part: &Arc<dyn DevicePart>) -> Result<bool> {
    let device = part.open().await?;
    let (blocks, block_size) = (device.geometry().blocks.0, device.geometry().block_size.bytes() as usize);
    for sample in 0..SAMPLES {
        let block = (u128::from(blocks - 1) * u128::from(sample) / u128::from(SAMPLES - 1)) as u64;
        let (result, buffer) = device.read(BlockIndex(block), Buffer::new(block_size)).await;
        result?;
        if buffer.filled().iter().all(|byte| *byte == 0) {
            return Ok(true);
        }
    }
    Ok(false)
}
