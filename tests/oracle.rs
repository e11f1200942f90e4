//! The crash oracle: runs a seeded workload over a stack, cuts the power after every event of the run, and
//! checks that the stack, opened again on what its disk then holds, has kept the promises of a device.
//!
//! ```text
//! workload ─ record(role=client) ─ stack under test ─ record(role=disk) ─ delays ─ disk
//! ```
//! Both records share one timeline. For every cut, and for many of the states that the disk may be in there
//! (see [`layers::record::replay`]), the stack is opened on a disk with these contents and read as a whole.
//! Each piece of `atomic_write` bytes must hold the last version that was durable for the client at the cut,
//! or a later one that had been submitted, complete and in its own place. Writes after the recovery must be
//! read back.
//!
//! In a simulated world ([`in_simulation`]) everything follows from the seed. On the real runtime the
//! completion order of requests in flight doesn't. A failure names the seed, the cut and the choice, and
//! shows the contents that were found. Left to the conformance suite: promises that only a running stack can
//! keep.

mod again;
mod older;
mod prefix;
pub mod stamp;
mod workload;

pub use workload::Workload;

use block::{
    BlockIndex, BlockRange, BlockSize, Buffer, Device, DeviceGeometry, DevicePart, Durability, Result,
};
use conformance::budget::Budget;
use layers::fault::{FaultDevicePart, parse_rules};
use layers::record::replay::{CrashState, CrashStates, Cursor, History, ImageDisk, Mismatch, Search};
use layers::record::{RecordDevicePart, Recorder, Role};
use runtime::Simulation;
use std::fmt;
use std::ops::RangeInclusive;
use std::rc::Rc;
use std::sync::Arc;

/// Delays of the disk's requests, so that many are in flight at the same time.
const DELAYS: &str = "any delay=0us..300us probability=0.7";
/// One of this many states is also written to after its recovery.
const WRITE_EVERY: u64 = 16;

/// Reason for which the stack under test is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opening {
    /// On a disk that is all zeros: a persistent layer formats it.
    Format,
    /// After a power cut.
    Recover,
}

/// Options of a search.
#[derive(Debug, Clone)]
pub struct Oracle {
    /// Decides the workload and the states that are tried.
    pub seed: u64,
    /// Workload of the client.
    pub workload: Workload,
    /// Selection of the states that are tried at each cut.
    pub search: Search,
    /// Geometry of the disk, if the oracle makes it.
    pub disk: DeviceGeometry,
    /// One of this many states is recovered twice: the first recovery is cut in turn, at each of its events.
    /// 0: none.
    pub again_every: u64,
    /// Whether the contents must also be a prefix: if an operation is visible, then also every operation that
    /// had completed before it was submitted. A device doesn't promise this; a log does.
    pub prefix: bool,
    /// Group of a block: each group's contents are a prefix of their own.
    pub group_of: fn(u64) -> u32,
    /// Whether older states are legal: those that a cut could have left at this moment or at an earlier one.
    /// A device behind a cache may lag behind it.
    pub older: bool,
    /// Time for the states. Those that are tried are evenly spread between the first and the last cut.
    pub budget: Arc<Budget>,
}

/// Counts of a search without a violation.
#[derive(Debug, Clone, Copy)]
pub struct Report {
    /// Events of the whole run.
    pub events: u64,
    /// States of the disk that a power cut could have left.
    pub states: u64,
    /// Number of these states from which the stack was opened again: all, if the budget was large enough.
    pub tried: u64,
    /// States of the disk in which a recovery was cut.
    pub recoveries: u64,
    /// Comparisons of a whole device with its legal contents at a cut.
    pub checks: u64,
}

/// A promise that was broken.
#[derive(Debug, Clone)]
pub struct Violation {
    seed: u64,
    state: Option<CrashState>,
    cut: u64,
    what: String,
}

impl Report {
    /// Whether the budget was large enough for all states.
    pub fn is_whole(&self) -> bool {
        self.tried == self.states
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}\n  SILTSTONE_SEED={}", self.what, self.seed)?;
        if let Some(state) = &self.state {
            let (from, choice, cut) = (state.cuts.start(), state.choice, self.cut);
            write!(formatter, ", power cut before event {cut}, the disk as at {from} with {choice}")?;
        }
        Ok(())
    }
}

/// Seed of a test: `SILTSTONE_SEED` of the environment, or this one. Prints it, so that a failure can be
/// repeated.
pub fn seed(test: &str, usual: u64) -> u64 {
    let asked = std::env::var("SILTSTONE_SEED").ok();
    let seed = asked.map_or(usual, |text| text.trim().parse().expect("SILTSTONE_SEED is a whole number"));
    println!("{test}: SILTSTONE_SEED={seed}");
    seed
}

/// Runs `main` in a simulated world, where the order and the times of everything follow from the seed.
///
/// # Panics
/// If `main` waits for something that never happens.
pub fn in_simulation<T: 'static, Fut: Future<Output = T> + 'static>(
    seed: u64,
    main: impl FnOnce() -> Fut,
) -> T {
    let world = Simulation { most_events: u64::MAX, trace_lines: 0, ..Simulation::new(seed) };
    let ended = runtime::simulate(world, main);
    ended.unwrap_or_else(|error| panic!("SILTSTONE_SEED={seed}: {error}")).value
}

impl Oracle {
    /// Search over a run of moderate length on a small disk with a volatile cache and sectors of 512 bytes.
    pub fn new(seed: u64) -> Self {
        let disk = DeviceGeometry {
            block_size: BlockSize::default(),
            blocks: block::BlockCount(48),
            atomic_write: 512,
            volatile_cache: true,
            read_only: false,
        };
        Oracle {
            seed,
            workload: Workload::new(seed),
            search: Search::new(seed),
            disk,
            again_every: 0,
            prefix: false,
            group_of: |_| 0,
            older: false,
            budget: Arc::new(Budget::unlimited()),
        }
    }

    /// Like [`new`](Self::new), with a [limit](Self::limit).
    pub fn limited(seed: u64, shares: u32) -> Self {
        let mut oracle = Oracle::new(seed);
        oracle.limit(shares);
        oracle
    }

    /// Limits the search to the states that fit into this number of shares of the budget
    /// ([`conformance::budget`]).
    pub fn limit(&mut self, shares: u32) {
        self.budget = Arc::new(Budget::of(shares));
    }

    /// Tries the stack that `open` opens, on a disk in memory.
    ///
    /// # Errors
    /// The first promise that was broken.
    pub async fn run<F>(&self, open: F) -> Result<Report, Box<Violation>>
    where
        F: AsyncFn(Arc<dyn DevicePart>, Opening) -> Result<Arc<dyn DevicePart>>,
    {
        self.run_on(Arc::new(ImageDisk::empty(self.disk.clone())), open).await
    }

    /// Like [`run`](Self::run), with this disk during the run; it must be all zeros.
    ///
    /// # Errors
    /// The first promise that was broken.
    pub async fn run_on<F>(&self, disk: Arc<dyn DevicePart>, open: F) -> Result<Report, Box<Violation>>
    where
        F: AsyncFn(Arc<dyn DevicePart>, Opening) -> Result<Arc<dyn DevicePart>>,
    {
        let recorder = Recorder::in_memory();
        let run = self.record(&recorder, disk, &open).await;
        let run = run.map_err(|error| self.violation(0, None, format!("the run itself failed: {error}")))?;
        let timeline = recorder.timeline().expect("a recorder in memory has its timeline");
        let history = |device| History::new(&timeline, device).expect("both devices are in the timeline");
        let (disk, client) = (history(run.disk), history(run.client));
        let last = disk.events();
        let mut check = Check {
            oracle: self,
            open: &open,
            cursors: vec![Cursor::new(client)],
            cuts: 0..=0,
            states: 0,
            tried: 0,
            recoveries: 0,
            checks: 0,
        };
        for state in CrashStates::new(disk, run.first..last + 1, self.search) {
            check.states += 1;
            if self.budget.allows(*state.cuts.start() - run.first, last - run.first) {
                check.tried += 1;
                check.state(state).await?;
            }
        }
        let Check { states, tried, recoveries, checks, .. } = check;
        Ok(Report { events: last, states, tried, recoveries, checks })
    }

    async fn record<F>(&self, recorder: &Arc<Recorder>, disk: Arc<dyn DevicePart>, open: &F) -> Result<Run>
    where
        F: AsyncFn(Arc<dyn DevicePart>, Opening) -> Result<Arc<dyn DevicePart>>,
    {
        let delays = parse_rules(&[DELAYS.to_owned()], stack::Contract::Device)?;
        let slow = Arc::new(FaultDevicePart::new(disk, delays, self.seed)?);
        let disk = Arc::new(RecordDevicePart::new(slow, recorder.clone(), "disk", Role::Disk)?);
        let stack = open(disk.clone(), Opening::Format).await?;
        let client =
            Arc::new(RecordDevicePart::new(stack.clone(), recorder.clone(), "client", Role::Client)?);
        let first = recorder.events();
        let handle = client.open().await?;
        self.workload.run(&handle).await?;
        drop(handle);
        // Cuts while the stack closes are part of the run.
        stack.close().await?;
        Ok(Run { first, disk: disk.number(), client: client.number() })
    }

    fn violation(&self, cut: u64, state: Option<CrashState>, what: String) -> Box<Violation> {
        Box::new(Violation { seed: self.seed, state, cut, what })
    }
}

/// Facts about a recorded run.
struct Run {
    /// First cut that is tried: the stack has been opened, and nothing else has happened.
    first: u64,
    disk: u16,
    client: u16,
}

/// Iterates over the states and knows the legal contents at their cuts.
struct Check<'a, F> {
    oracle: &'a Oracle,
    open: &'a F,
    /// The client's device at each cut of the current state at which its legal contents differ.
    cursors: Vec<Cursor>,
    cuts: RangeInclusive<u64>,
    states: u64,
    tried: u64,
    recoveries: u64,
    checks: u64,
}

impl<F> Check<'_, F>
where
    F: AsyncFn(Arc<dyn DevicePart>, Opening) -> Result<Arc<dyn DevicePart>>,
{
    async fn state(&mut self, state: CrashState) -> Result<(), Box<Violation>> {
        self.move_to(&state.cuts);
        let write_too = self.tried.is_multiple_of(WRITE_EVERY);
        let contents = match self.reopened(&state, write_too).await {
            Ok(contents) => contents,
            Err(error) => {
                let what = format!("the stack can't be used after the cut: {error}");
                return Err(self.oracle.violation(*state.cuts.start(), Some(state), what));
            }
        };
        if let Err((cut, what)) = self.compare(&contents) {
            return Err(self.oracle.violation(cut, Some(state), what));
        }
        match self.oracle.again_every {
            0 => Ok(()),
            every if !self.tried.is_multiple_of(every) => Ok(()),
            _ => self.recover_again(&state).await,
        }
    }

    /// Compares contents with the legal ones. An error has the cut at which they aren't legal, and why.
    fn compare(&mut self, contents: &[u8]) -> Result<(), (u64, String)> {
        if self.oracle.prefix
            && let Some(cursor) = self.cursors.last()
            && let Err(broken) = prefix::check(cursor.history(), contents, self.oracle.group_of)
        {
            return Err((cursor.cut(), broken));
        }
        if self.oracle.older {
            self.checks += 1;
            let Some(cursor) = self.cursors.last() else { return Ok(()) };
            return older::check(cursor.history(), cursor.cut(), contents)
                .map_err(|found| (cursor.cut(), explain(&found.0, &found.1)));
        }
        for cursor in &self.cursors {
            self.checks += 1;
            if let Err(mismatch) = cursor.check(0, contents) {
                return Err((cursor.cut(), explain(cursor, &mismatch)));
            }
        }
        Ok(())
    }

    fn move_to(&mut self, cuts: &RangeInclusive<u64>) {
        if self.cuts == *cuts {
            return;
        }
        self.cuts = cuts.clone();
        let Some(mut cursor) = self.cursors.pop() else { return };
        cursor.advance_to(*cuts.start());
        self.cursors = vec![cursor.clone()];
        while let Some(next) = cursor.next_change().filter(|next| next <= cuts.end()) {
            cursor.advance_to(next);
            self.cursors.push(cursor.clone());
        }
    }

    /// Opens the stack on the state and reads all of it.
    async fn reopened(&self, state: &CrashState, write_too: bool) -> Result<Vec<u8>> {
        let disk = Arc::new(ImageDisk::new(state.image.clone()));
        let part = (self.open)(disk, Opening::Recover).await?;
        let handle = part.open().await?;
        let contents = read_all(&*handle).await?;
        if write_too {
            self.write_and_read(&handle).await?;
        }
        drop(handle);
        part.close().await?;
        Ok(contents)
    }

    /// Checks that a stack works after its recovery.
    async fn write_and_read(&self, handle: &Rc<dyn Device>) -> Result<()> {
        let geometry = handle.geometry();
        let block = self.states % geometry.blocks.0;
        let data = stamp::stamped(BlockRange::new(block, 1), u64::MAX - self.states, geometry.block_size);
        handle.write(BlockIndex(block), data.clone().into(), Durability::Durable).await?;
        handle.flush().await?;
        let (result, found) = handle.read(BlockIndex(block), Buffer::new(data.len())).await;
        result?;
        if found.filled() != &*data {
            let text = format!("block {block}, written after the recovery, reads as something else");
            return Err(block::Error::corrupt(text));
        }
        Ok(())
    }
}

async fn read_all(device: &dyn Device) -> Result<Vec<u8>> {
    const STEP: u64 = 256 << 10;
    let geometry = device.geometry();
    let mut contents = Vec::with_capacity(geometry.bytes() as usize);
    while (contents.len() as u64) < geometry.bytes() {
        let at = contents.len() as u64;
        let length = (geometry.bytes() - at).min(STEP.max(geometry.block_size.bytes()));
        let block = BlockIndex(at >> geometry.block_size.shift());
        let (result, buffer) = device.read(block, Buffer::new(length as usize)).await;
        result?;
        contents.extend_from_slice(buffer.filled());
    }
    Ok(contents)
}

/// Describes the contents that were found and the legal ones, in the terms of the workload.
fn explain(cursor: &Cursor, mismatch: &Mismatch) -> String {
    let size = cursor.history().geometry().block_size;
    let block = mismatch.range.start >> size.shift();
    let mut legal = Vec::new();
    for version in &mismatch.legal {
        legal.push(match version {
            None => "the zeros of the beginning".to_owned(),
            Some(index) => {
                let operation = &cursor.history().operations()[*index];
                let mut bytes = vec![0; mismatch.found.len()];
                operation.copy_to(mismatch.range.start, &mut bytes);
                format!("{} (submitted in event {})", stamp::describe(&bytes), operation.submitted)
            }
        });
    }
    format!(
        "block {block}, bytes {}..{}: found {}; legal: {}",
        mismatch.range.start,
        mismatch.range.end,
        stamp::describe(&mismatch.found),
        legal.join("; ")
    )
}
