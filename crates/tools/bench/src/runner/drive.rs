//! Runs of this program's engine: builds the stacks in a runtime of their own, runs jobs on them, closes
//! them.

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

/// Filling of a stack from start to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fill {
    /// None.
    No,
    /// Filling only, without jobs.
    Only,
    /// Before the jobs run.
    First,
    /// Before the jobs run, if the stack has lost its contents, as memory does.
    IfForgotten,
}

/// Stack, and the device in it that is driven.
pub(super) struct Target {
    pub stack: stack::Plan,
    /// Name of the device; `None` is the top.
    pub device: Option<String>,
    pub fill: Fill,
    /// Whether filling also overwrites the device in random order.
    pub fill_at_random: bool,
}

/// Work on one setup.
pub(super) struct Work {
    pub shards: usize,
    pub targets: Vec<Target>,
    /// Rounds, one after the other; each has jobs that run at the same time, with the numbers of their
    /// targets.
    pub rounds: Vec<Vec<(usize, Job)>>,
    /// Server that the stacks use, whose CPU time is also measured.
    pub server: Option<Arc<RunningServer>>,
}

/// Reports steps to an observer: one for each round, or one for filling without rounds.
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

/// Result of a round: a measurement for each job.
pub(super) type Round = Result<Vec<Measurement>>;

/// Executes the work and returns the result of each round: none if the work was only filling, fewer after a
/// stop.
///
/// # Errors
/// Errors of building, filling and closing. The error of a round is in its result, and the next one still
/// begins.
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
    // An earlier error has precedence over those of closing.
    for stack in built.iter().rev() {
        outcome = match (outcome, stack.close().await) {
            (Ok(_), Err(error)) => Err(error),
            (outcome, _) => outcome,
        };
    }
    outcome
}

/// Opens and fills the device of each target.
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
            // If a run follows, the progress bar shows only the run.
            let shown = || if target.fill == Fill::Only { progress.clone() } else { Arc::default() };
            engine::fill(&part, shown(), stop.clone()).await?;
            if target.fill_at_random {
                engine::overwrite_at_random(&part, shown(), stop.clone()).await?;
            }
            // Earlier counts aren't part of the run. Most parts have no counters and refuse the message.
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
            // As for peers, the server also worked during the ramp, whose operations aren't counted.
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

/// Waits for a future, and calls `look` once: after the time `after`, or when the future ends if that is
/// sooner.
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

/// Status of each layer, by its name in the stack.
async fn layers(stack: &BuiltStack) -> serde_json::Map<String, serde_json::Value> {
    let mut layers = serde_json::Map::new();
    if let serde_json::Value::Object(contracts) = stack.status().await {
        for (_, parts) in contracts {
            layers.extend(parts.as_object().cloned().unwrap_or_default());
        }
    }
    layers
}

/// Number of blocks that are sampled for data.
const SAMPLES: u64 = 64;

/// Whether any of the sampled blocks, including the first and the last, is all zeros.
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
