//! Runs of our own engine: builds the stacks in a runtime of their own, runs jobs on them, closes them.

use super::{Observer, Step, amplification, has_measured, hits};
use crate::engine::{self, Assignment, Progress};
use crate::job::Job;
use crate::peer::process::RunningServer;
use crate::results::Measurement;
use block::{BlockIndex, Buffer, DevicePart, Error, Result};
use runtime::sync::StopToken;
use stack::BuiltStack;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

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
    /// Whether filling it overwrites it in random order, too.
    pub fill_at_random: bool,
}

/// What is to be done.
pub(super) struct Work {
    pub shards: usize,
    pub targets: Vec<Target>,
    /// One after the other; each has jobs that run at the same time, with the numbers of their targets.
    pub rounds: Vec<Vec<(usize, Job)>>,
    /// The server that the stacks talk to, whose CPU time is measured, too.
    pub server: Option<Arc<RunningServer>>,
}

/// Tells an observer what is being done: a step for each round; one for filling, where that is all.
pub(super) struct Watch {
    pub observer: Arc<dyn Observer>,
    pub steps: Vec<Step>,
}

impl Watch {
    fn begin(&self, number: usize) -> Arc<Progress> {
        let progress = Arc::new(Progress::default());
        if let Some(step) = self.steps.get(number) {
            self.observer.begin(step, &progress);
        }
        progress
    }

    fn end(&self, number: usize, outcome: &Round) {
        if let Some(step) = self.steps.get(number) {
            let first = outcome.as_ref().map(|all| all.iter().find(|it| has_measured(it)).cloned());
            self.observer.end(step, &first.map_err(Error::clone));
        }
    }
}

/// What a round gave: a measurement for each job.
pub(super) type Round = Result<Vec<Measurement>>;

/// Does it, and gives what each round gave; none where there was only something to fill, fewer after a stop.
///
/// # Errors
/// What building, filling and closing say; those of a round are its own, and the next one begins all the same.
pub(super) fn drive(work: Work, watch: Watch, stop: StopToken) -> Result<Vec<Round>> {
    let config = runtime::Config::default().with_shards(work.shards);
    runtime::run(config, move || run(work, watch, stop))?
}

async fn run(work: Work, watch: Watch, stop: StopToken) -> Result<Vec<Round>> {
    let progress = watch.begin(0);
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
    let mut parts = Vec::new();
    if outcome.is_ok() {
        match prepare(&work, &built, &progress, &stop).await {
            Ok(prepared) => parts = prepared,
            Err(error) => outcome = Err(error),
        }
    }
    match &mut outcome {
        Ok(rounds) => *rounds = measure_all(&work, &built, &parts, (progress, &watch), &stop).await,
        Err(error) => watch.end(0, &Err(error.clone())),
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

/// What is driven of each target, filled.
async fn prepare(
    work: &Work,
    built: &[BuiltStack],
    progress: &Arc<Progress>,
    stop: &StopToken,
) -> Result<Vec<Arc<dyn DevicePart>>> {
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
            let shown = || if target.fill == Fill::Only { progress.clone() } else { Arc::default() };
            engine::fill(&part, shown(), stop.clone()).await?;
            if target.fill_at_random {
                engine::overwrite_at_random(&part, shown(), stop.clone()).await?;
            }
            // What was counted by then isn't the run's. Most parts count nothing, and say so.
            for part in stack.parts() {
                let _ = part.built.part().message("clear_stats").await;
            }
        }
        parts.push(part);
    }
    Ok(parts)
}

async fn measure_all(
    work: &Work,
    built: &[BuiltStack],
    parts: &[Arc<dyn DevicePart>],
    (progress, watch): (Arc<Progress>, &Watch),
    stop: &StopToken,
) -> Vec<Round> {
    let mut rounds = Vec::new();
    if work.rounds.is_empty() {
        watch.end(0, &Ok(Vec::new()));
    }
    let mut progress = Some(progress);
    for (number, jobs) in work.rounds.iter().enumerate() {
        if stop.is_stopped() && number > 0 {
            break;
        }
        let progress = progress.take().unwrap_or_else(|| watch.begin(number));
        let outcome = measure(work, jobs, (built, parts), progress, stop.clone()).await;
        watch.end(number, &outcome);
        rounds.push(outcome);
    }
    rounds
}

async fn measure(
    work: &Work,
    jobs: &[(usize, Job)],
    (built, parts): (&[BuiltStack], &[Arc<dyn DevicePart>]),
    progress: Arc<Progress>,
    stop: StopToken,
) -> Round {
    let before = work.server.as_ref().map(|server| server.cpu_seconds()).transpose()?;
    let assignments =
        jobs.iter().map(|(target, job)| Assignment { job: job.clone(), part: parts[*target].clone() });
    let ramp = jobs.iter().map(|(_, job)| job.ramp_time).min().unwrap_or_default();
    let running = engine::run(assignments.collect(), progress, stop);
    let look = async || runtime::join_all(built.iter().map(layers)).await;
    let (measured, counted) = beside(running, ramp, look).await;
    let mut measured = measured?;
    for (measurement, (target, job)) in measured.iter_mut().zip(jobs) {
        if let (Some(server), Some(before)) = (&work.server, before) {
            // As for peers: the server also worked during the ramp, whose operations nobody counted.
            let share = measurement.seconds / (measurement.seconds + job.ramp_time.as_secs_f64());
            let seconds = (server.cpu_seconds()? - before) * share;
            measurement.server_cpu_seconds = Some(seconds).filter(|seconds| seconds.is_finite());
        }
        measurement.layers = layers(&built[*target]).await;
        let before = counted.get(*target);
        measurement.write_amplification =
            before.and_then(|it| amplification::between(it, &measurement.layers));
        measurement.hit_ratios = before.map(|it| hits::between(it, &measurement.layers)).unwrap_or_default();
    }
    Ok(measured)
}

/// Waits for a future, and looks at something once, `after` so much time; sooner if the future ends before.
async fn beside<T, L>(future: impl Future<Output = T>, after: Duration, look: impl AsyncFn() -> L) -> (T, L) {
    if after.is_zero() {
        let seen = look().await;
        return (future.await, seen);
    }
    let mut future = std::pin::pin!(future);
    let mut seen = None;
    let mut looking = std::pin::pin!(async {
        runtime::sleep(after).await;
        look().await
    });
    let output = std::future::poll_fn(|context| {
        if seen.is_none()
            && let Poll::Ready(looked) = looking.as_mut().poll(context)
        {
            seen = Some(looked);
        }
        future.as_mut().poll(context)
    })
    .await;
    match seen {
        Some(seen) => (output, seen),
        None => (output, look().await),
    }
}

/// What each layer says about itself, by its name in the stack.
async fn layers(stack: &BuiltStack) -> serde_json::Map<String, serde_json::Value> {
    let mut layers = serde_json::Map::new();
    if let serde_json::Value::Object(contracts) = stack.status().await {
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
