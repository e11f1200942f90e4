//! Workload engine: runs jobs on a device, as fio would, and measures them.
//!
//! Each clone of a job runs on one shard, with `iodepth` tasks that each keep one operation in flight. Every
//! operation is timed, from before it is submitted until its task runs again. An operation allocates nothing
//! and takes no lock.
//!
//! [`addresses`] draws the offset of an operation; [`pace`] decides when it may start; [`stamp`] creates and
//! checks the contents of verified blocks; `replay` makes the requests of a log instead. An error of the
//! device ends its clone, as in fio.

pub mod addresses;
mod clone;
pub mod pace;
mod replay;
pub mod stamp;
mod tally;

use crate::job::Job;
use crate::results::Measurement;
use block::{BlockIndex, Buffer, Data, Device, DevicePart, Durability, Error, Result};
use clone::{Clone, Phase};
use runtime::sync::StopToken;
use runtime::{Random, ShardIndex};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tally::Tally;

/// A job and the device that it runs on.
#[derive(Clone)]
pub struct Assignment {
    /// Job to run.
    pub job: Job,
    /// Device to run it on.
    pub part: Arc<dyn DevicePart>,
}

/// Progress of a run, readable from any thread during the run.
#[derive(Debug, Default)]
pub struct Progress {
    operations: AtomicU64,
    bytes: AtomicU64,
    wanted_bytes: AtomicU64,
    started: AtomicU64,
    wanted_time: AtomicU64,
    verifying: AtomicBool,
}

impl Progress {
    /// Number of completed operations, including those of a ramp.
    pub fn operations(&self) -> u64 {
        self.operations.load(Ordering::Relaxed)
    }

    /// Number of transferred bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Whether the run is reading back its writes.
    pub fn is_verifying(&self) -> bool {
        self.verifying.load(Ordering::Relaxed)
    }

    /// Progress from 0 to 1: the larger one of the shares of time and of bytes.
    pub fn fraction(&self) -> f64 {
        let share = |part: u64, whole: u64| if whole == 0 { 0.0 } else { part as f64 / whole as f64 };
        let started = self.started.load(Ordering::Relaxed);
        let elapsed = runtime::now().nanoseconds().saturating_sub(started) * u64::from(started > 0);
        let by_time = share(elapsed, self.wanted_time.load(Ordering::Relaxed));
        by_time.max(share(self.bytes(), self.wanted_bytes.load(Ordering::Relaxed))).min(1.0)
    }

    fn begin(&self, wanted_bytes: u64, wanted_time: Duration) {
        self.wanted_bytes.store(wanted_bytes, Ordering::Relaxed);
        self.wanted_time.store(wanted_time.as_nanos() as u64, Ordering::Relaxed);
        self.started.store(runtime::now().nanoseconds(), Ordering::Relaxed);
    }

    fn add(&self, operations: u64, bytes: u64) {
        self.operations.fetch_add(operations, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// Runs jobs at the same time, and returns one measurement per job, its clones merged, in the same order.
///
/// Clone c runs on shard c modulo the number of shards. CPU time is that of the process while the jobs were
/// measured; with several jobs it is divided in proportion to their operations. A stop ends the run early.
///
/// # Errors
/// Errors of [`Job::region`], of a job that can't be verified, and of a part that can't be opened. Errors of
/// single operations are part of the measurement.
pub async fn run(
    assignments: Vec<Assignment>,
    progress: Arc<Progress>,
    stop: StopToken,
) -> Result<Vec<Measurement>> {
    let plans = assignments.into_iter().map(Planned::new).collect::<Result<Arc<[Planned]>>>()?;
    let longest = plans.iter().filter_map(Planned::longest_time).max().unwrap_or_default();
    let bytes = if plans.iter().all(|plan| plan.assignment.job.time_based) {
        0
    } else {
        plans.iter().map(Planned::bytes).sum()
    };
    progress.begin(bytes, longest);
    let cpu =
        CpuTime::watch(plans.iter().map(|plan| plan.assignment.job.ramp_time).min().unwrap_or_default());
    let shards = runtime::shard_count();
    let handles = (0..shards).map(|shard| {
        let (plans, progress, stop) = (plans.clone(), progress.clone(), stop.clone());
        runtime::spawn_on(
            ShardIndex(shard),
            move || async move { run_here(&plans, shard, progress, stop).await },
        )
    });
    let handles: Vec<_> = handles.collect();
    let mut tallies: Vec<Tally> = plans.iter().map(|_| Tally::new()).collect();
    let mut failure = None;
    for handle in handles {
        match handle.await? {
            Ok(results) => results.into_iter().for_each(|(index, tally)| tallies[index].merge(tally)),
            Err(error) => failure = failure.or(Some(error)),
        }
    }
    if let Some(error) = failure {
        return Err(error);
    }
    let cpu = cpu.since().as_secs_f64();
    let all: u64 = tallies.iter().map(|tally| tally.operations).sum();
    let measured = tallies.into_iter().map(|tally| {
        let share = if all == 0 { 0.0 } else { tally.operations as f64 / all as f64 };
        tally.into_measurement(cpu * share)
    });
    Ok(measured.collect())
}

/// Job whose region has been checked.
struct Planned {
    assignment: Assignment,
    region: crate::job::Region,
}

impl Planned {
    fn new(assignment: Assignment) -> Result<Planned> {
        let (job, geometry) = (&assignment.job, assignment.part.geometry());
        if (job.is_replay() && job.logs.is_empty()) || (job.write_iolog.is_some() && job.log_to.is_none()) {
            return Err(Error::invalid(format!("job {}: its logs were not prepared", job.name)));
        }
        let region = job.region(geometry.bytes(), geometry.block_size.bytes())?;
        if job.verify.is_some() {
            stamp::check_job(job)?;
        }
        if (job.writes() || job.trims()) && geometry.read_only {
            let what = if job.is_replay() { "a log with writes".into() } else { format!("rw={}", job.rw) };
            return Err(Error::read_only(format!("job {}: {what} on a read-only device", job.name)));
        }
        Ok(Planned { assignment, region })
    }

    fn longest_time(&self) -> Option<Duration> {
        self.assignment.job.expected_time()
    }

    fn bytes(&self) -> u64 {
        self.assignment.job.transfer(&self.region)
    }
}

/// Runs the clones of one shard: each part is opened once, and the clones run at the same time.
async fn run_here(
    plans: &[Planned],
    shard: usize,
    progress: Arc<Progress>,
    stop: StopToken,
) -> Result<Vec<(usize, Tally)>> {
    let mut clones = Vec::new();
    for (index, planned) in plans.iter().enumerate() {
        let job = &planned.assignment.job;
        let numbers = (0..job.numjobs).filter(|clone| *clone as usize % runtime::shard_count() == shard);
        let mut device: Option<Rc<dyn Device>> = None;
        for number in numbers {
            let device = match &device {
                Some(device) => device.clone(),
                None => device.insert(planned.assignment.part.open().await?).clone(),
            };
            let clone = Clone::new(job, &planned.region, number, device, progress.clone(), stop.clone())?;
            let clone = clone.with_logs(job, number).await?;
            clones.push((index, Rc::new(clone)));
        }
    }
    let running = clones.iter().map(|(index, clone)| {
        let (index, clone) = (*index, clone.clone());
        runtime::spawn(async move {
            clone.run(Phase::Work).await;
            if clone.has_to_verify() {
                clone.progress.verifying.store(true, Ordering::Relaxed);
                clone.run(Phase::Verify).await;
            }
            (index, clone.take_tally())
        })
    });
    let running: Vec<_> = running.collect();
    Ok(runtime::join_all(running).await)
}

/// CPU time of the process after the end of the ramp.
struct CpuTime(Rc<Cell<Duration>>);

impl CpuTime {
    fn watch(ramp: Duration) -> CpuTime {
        let start = Rc::new(Cell::new(runtime::process_cpu_time()));
        if !ramp.is_zero() {
            let start = start.clone();
            runtime::spawn(async move {
                runtime::sleep(ramp).await;
                start.set(runtime::process_cpu_time());
            })
            .detach();
        }
        CpuTime(start)
    }

    fn since(&self) -> Duration {
        runtime::process_cpu_time().saturating_sub(self.0.get())
    }
}

/// Returns incompressible bytes to write, from a seed: slices of them begin at multiples of 4 KiB, so that
/// few writes are alike.
pub(crate) fn incompressible(seed: u64, largest: usize) -> Data {
    const SPARE: usize = 1 << 20;
    let mut buffer = Buffer::zeroed(largest + SPARE);
    Random::new(seed).fill(buffer.filled_mut());
    buffer.freeze()
}

/// Returns `length` bytes that repeat the pattern.
pub(crate) fn repeated(pattern: &[u8], length: usize) -> Data {
    let mut buffer = Buffer::zeroed(length);
    buffer.filled_mut().iter_mut().zip(pattern.iter().cycle()).for_each(|(byte, from)| *byte = *from);
    buffer.freeze()
}

/// Writes the whole device once, 1 MiB at a time, with incompressible bytes, and flushes it.
///
/// # Errors
/// Errors of the device, and [`Error::Cancelled`] after a stop.
pub async fn fill(part: &Arc<dyn DevicePart>, progress: Arc<Progress>, stop: StopToken) -> Result<()> {
    const STEP: u64 = 1 << 20;
    const DEPTH: usize = 4;
    let device = part.open().await?;
    let geometry = device.geometry().clone();
    let block = geometry.block_size.bytes();
    let step = STEP.max(block);
    progress.begin(geometry.bytes(), Duration::ZERO);
    let next = Rc::new(Cell::new(0_u64));
    let data = incompressible(0x00F1_77ED, step as usize);
    let writers = (0..DEPTH).map(|_| {
        let (next, device, data) = (next.clone(), device.clone(), data.clone());
        let (progress, stop, capacity) = (progress.clone(), stop.clone(), geometry.bytes());
        runtime::spawn(async move {
            loop {
                let offset = next.get();
                if offset >= capacity {
                    return Ok(());
                }
                if stop.is_stopped() {
                    return Err(Error::cancelled("filling the device was stopped"));
                }
                let length = step.min(capacity - offset) as usize;
                next.set(offset + length as u64);
                let begin = (offset / block * 4096) as usize % (1 << 20);
                let piece = data.slice(begin..begin + length);
                device.write(BlockIndex(offset / block), piece.into(), Durability::Visible).await?;
                progress.add(1, length as u64);
            }
        })
    });
    let writers: Vec<_> = writers.collect();
    let results: Vec<Result<()>> = runtime::join_all(writers).await;
    results.into_iter().collect::<Result<()>>()?;
    device.flush().await
}

/// Writes every 4 KiB of the device once, in a fixed random order, and flushes it. After a sequential fill,
/// this brings a volume to the state of one in use.
///
/// # Errors
/// Errors of the device, and [`Error::Cancelled`] after a stop.
pub async fn overwrite_at_random(
    part: &Arc<dyn DevicePart>,
    progress: Arc<Progress>,
    stop: StopToken,
) -> Result<()> {
    let mut job = Job::new("fill");
    job.rw = crate::job::ReadWrite::RandWrite;
    let block = part.geometry().block_size.bytes();
    job.block_size = crate::job::PerDirection::all(crate::job::BlockSizes::fixed(block.max(4096)));
    job.iodepth = 32;
    let measured = run(vec![Assignment { job, part: part.clone() }], progress, stop.clone()).await?;
    if stop.is_stopped() {
        return Err(Error::cancelled("filling the device was stopped"));
    }
    match measured.into_iter().find_map(|measured| measured.first_error) {
        Some(error) => Err(Error::io(format!("filling the device: {error}"))),
        None => part.open().await?.flush().await,
    }
}
