//! `--rw=simulation`: a long run on a database's files as in S3 (its `fs_perf`), on the library or on a
//! mounted file system.
//!
//! Each client has 16 files for small operations, of 8 to 128 KiB, and 16 for large ones, of 16 to 20 MiB.
//! `--writes` percent of the operations are writes, which append; the others are reads. `--small` percent of
//! the writes and 10 % of the reads are small. Each operation is on a random file for its size. Once a
//! client's files have more than half of its part of the disk, they are truncated by amounts of the same
//! sizes until they have less than a quarter.
//!
//! Before the measurement the disk is aged: filled by the same rules without reads, up to the first
//! truncation. The measurement ends after `--size` written bytes.

use crate::{Job, Measured, pattern};
use block::{Data, Error, Payload, Result};
use fs::{Directory, File, OpenOptions};
use runtime::{Random, now};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of files of a client for operations of each size.
const FILES: usize = 16;
/// Unit of sizes: direct I/O is in whole blocks.
const BLOCK: u64 = 4096;
/// Percentage of small reads, and of small truncations.
const SMALL_READS: u64 = 10;
/// Bytes of a buffer.
const PIECE: usize = 1 << 20;
const SMALL: std::ops::Range<u64> = 8 << 10..128 << 10;
const LARGE: std::ops::Range<u64> = 16 << 20..20 << 20;

/// Number of bytes that all clients have written.
#[derive(Debug, Default)]
pub struct Totals(AtomicU64);

/// Next operation of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Write { file: usize, bytes: u64 },
    Read { file: usize, offset: u64, bytes: u64 },
    Cut { file: usize, size: u64 },
}

/// State from which the steps of a client are drawn.
struct Plan {
    random: Random,
    /// Sizes of the files; those for small operations first.
    sizes: [u64; 2 * FILES],
    /// Bytes of the client's part of the disk.
    disk: u64,
    writes: u64,
    small_writes: u64,
    is_cutting: bool,
}

impl Plan {
    fn new(job: &Job, seed: u64) -> Plan {
        Plan {
            random: Random::new(seed),
            sizes: [0; 2 * FILES],
            disk: job.disk() / job.jobs,
            writes: job.writes,
            small_writes: job.small,
            is_cutting: false,
        }
    }

    /// Draws a file and an amount, which is small with a probability of `small` percent.
    fn draw(&mut self, small: u64) -> (usize, u64) {
        let is_small = self.random.below(100) < small;
        let (first, range) = if is_small { (0, SMALL) } else { (FILES, LARGE) };
        let bytes = range.start + self.random.below(range.end - range.start + 1);
        (first + self.random.below(FILES as u64) as usize, bytes / BLOCK * BLOCK)
    }

    /// Whether half of the client's part of the disk is used.
    fn is_filled(&self) -> bool {
        self.sizes.iter().sum::<u64>() > self.disk / 2
    }

    /// Draws the next step.
    fn next(&mut self, reads: bool) -> Step {
        let used: u64 = self.sizes.iter().sum();
        self.is_cutting = self.is_filled() || self.is_cutting && used >= self.disk / 4;
        if self.is_cutting {
            let (file, bytes) = self.draw(SMALL_READS);
            return Step::Cut { file, size: self.sizes[file].saturating_sub(bytes) };
        }
        if !reads || self.random.below(100) < self.writes {
            let (file, bytes) = self.draw(self.small_writes);
            return Step::Write { file, bytes };
        }
        let (file, bytes) = self.draw(SMALL_READS);
        let bytes = bytes.min(self.sizes[file]);
        let places = (self.sizes[file] - bytes) / BLOCK + 1;
        Step::Read { file, offset: self.random.below(places) * BLOCK, bytes }
    }
}

impl Totals {
    /// Updates the plan and the totals after a step.
    fn note(&self, plan: &mut Plan, step: Step) {
        match step {
            Step::Write { file, bytes } => {
                self.0.fetch_add(bytes, Ordering::Relaxed);
                plan.sizes[file] += bytes;
            }
            Step::Cut { file, size } => plan.sizes[file] = size,
            Step::Read { .. } => {}
        }
    }

    /// Begins the measurement.
    pub fn begin(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Whether fewer than `size` bytes have been written since the beginning.
    fn goes_on(&self, size: u64) -> bool {
        self.0.load(Ordering::Relaxed) < size
    }
}

/// A client that uses the library.
pub struct Client {
    files: Vec<File>,
    plan: Plan,
    /// Data of all writes. The same buffer is reused: large buffers would take the huge pages that reads
    /// need.
    data: Data,
}

fn name(number: usize) -> String {
    format!("file-{number}")
}

impl Client {
    /// Creates the files of a client, and fills its part of the disk.
    pub async fn aged(job: &Job, directory: &Directory, totals: &Totals, seed: u64) -> Result<Client> {
        let options = OpenOptions { create: true, ..OpenOptions::default() };
        let mut files = Vec::new();
        for number in 0..2 * FILES {
            files.push(directory.open_file(&name(number), options).await?);
        }
        let mut client = Client { files, plan: Plan::new(job, seed), data: pattern(PIECE, seed) };
        while !client.plan.is_filled() {
            client.step(totals, false).await?;
        }
        Ok(client)
    }

    async fn step(&mut self, totals: &Totals, reads: bool) -> Result<Step> {
        let step = self.plan.next(reads);
        match step {
            Step::Write { file, bytes } => {
                let mut data = Payload::with_capacity(bytes as usize / PIECE + 1);
                for at in (0..bytes as usize).step_by(PIECE) {
                    data.push(self.data.slice(0..PIECE.min(bytes as usize - at)));
                }
                self.files[file].append(data).await.map(drop)?;
            }
            Step::Read { file, offset, bytes } => {
                self.files[file].read_at(offset, bytes as usize).await.map(drop)?;
            }
            Step::Cut { file, size } => self.files[file].truncate(size).await?,
        }
        totals.note(&mut self.plan, step);
        Ok(step)
    }

    /// Runs the client until all clients have written enough.
    pub async fn run(mut self, job: Job, totals: &Totals) -> Result<Measured> {
        let mut measured = Measured::default();
        while totals.goes_on(job.size) {
            let begun = now();
            let step = self.step(totals, true).await?;
            measured.note_step(step_bytes(step), begun);
        }
        Ok(measured)
    }
}

/// Bytes that a step writes; `None` for other steps.
fn step_bytes(step: Step) -> Option<u64> {
    match step {
        Step::Write { bytes, .. } => Some(bytes),
        _ => None,
    }
}

/// A client that uses a mounted file system.
pub struct MountedClient {
    files: Vec<std::fs::File>,
    plan: Plan,
    buffer: block::Buffer,
}

impl MountedClient {
    /// As [`Client::aged`].
    pub fn aged(job: &Job, folder: &std::path::Path, totals: &Totals, seed: u64) -> std::io::Result<Self> {
        use std::os::unix::fs::OpenOptionsExt;
        let mut options = std::fs::File::options();
        options.read(true).write(true).create(true).truncate(true).custom_flags(libc::O_DIRECT);
        let files = (0..2 * FILES).map(|number| options.open(folder.join(name(number))));
        let files = files.collect::<std::io::Result<Vec<_>>>()?;
        let mut buffer = block::Buffer::zeroed(LARGE.end as usize);
        Random::new(seed).fill(buffer.filled_mut());
        let mut client = MountedClient { files, plan: Plan::new(job, seed), buffer };
        while !client.plan.is_filled() {
            client.step(totals, false)?;
        }
        Ok(client)
    }

    fn step(&mut self, totals: &Totals, reads: bool) -> std::io::Result<Step> {
        let step = self.plan.next(reads);
        match step {
            Step::Write { file, bytes } => {
                let size = self.plan.sizes[file];
                self.files[file].write_all_at(&self.buffer.filled()[..bytes as usize], size)?;
            }
            Step::Read { file, offset, bytes } => {
                self.files[file].read_exact_at(&mut self.buffer.filled_mut()[..bytes as usize], offset)?;
            }
            Step::Cut { file, size } => self.files[file].set_len(size)?,
        }
        totals.note(&mut self.plan, step);
        Ok(step)
    }

    /// As [`Client::run`].
    pub fn run(mut self, job: &Job, totals: &Totals) -> std::io::Result<Measured> {
        let mut measured = Measured::default();
        while totals.goes_on(job.size) {
            let begun = now();
            let step = self.step(totals, true)?;
            measured.note_step(step_bytes(step), begun);
        }
        Ok(measured)
    }
}

/// Refuses arguments out of range.
pub fn check(job: &Job) -> Result<()> {
    match job.writes <= 100 && job.small <= 100 && job.disk() > 0 {
        true => Ok(()),
        false => Err(Error::invalid(
            "--rw=simulation: expected --writes and --small of at most 100 percent, and --format or --disk in bytes",
        )),
    }
}
