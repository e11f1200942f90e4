//! Load generator for the file system as a library, for performance plans: prints JSON in the format of fio.
//!
//! ```text
//! fs-load --image=PATH [--format=BYTES] [--block_size=BYTES] [--zone_size=BYTES] [--rw=write] [--bs=BYTES]
//!         [--iodepth=N] [--size=BYTES] [--jobs=N] [--lanes=N] [--shards=N] [--runtime=SECONDS] [--ramp_time=SECONDS]
//!         [--writes=PERCENT] [--small=PERCENT] [--disk=BYTES] [--cleaning=POLICY] [--k=SHARE] [--m=BYTES]
//!         [--victims=planned|fragments|whole] [--shares=N:N] [--compaction_bs=BYTES] [--compaction_depth=N] [--depth_bytes=BYTES] [--ram=1]
//!         [--stripe_above=NAMES] [--stack=LINE]
//! ```
//!
//! The image is a file, opened with O_DIRECT, or memory with `--ram=1`, or zones by a line of a stack with
//! `--stack`, such as `zone-writecache(file(fast.img), objects("http://127.0.0.1:7070", bucket=vol))`, which
//! `--format` formats, whatever its size. With `--format`, a file system of
//! that size is created first, with blocks of `--block_size`. `--depth_bytes` bounds the I/O in flight where
//! classes compete. `--cleaning` is one of the kit's policies. `--k` and `--m` are the parameters of its
//! policy `threshold` (that of S3): zones with a live share below `--k` are cleaned once they have about
//! `--m` bytes of live data. `--victims` are read as the kit plans it, in fragments without the gaps between
//! them, or as a whole. Each of `--shards` has at most `--lanes` appends in flight. Directories with more
//! names than `--stripe_above` are striped, and every client runs on the core that has its directory. `--rw`:
//! - `write`, `randwrite`, `read`, `randread`: on one file of `--size` bytes for each of `--jobs`, in a
//!   directory of its own, with `--iodepth` requests in flight on each. The file is written first if it
//!   doesn't exist; `write` wraps around at its end.
//! - `append`: files grow by requests without an offset; a full file is truncated.
//! - `append-sync`: `--iodepth` files, each with one writer that appends and syncs it.
//! - `create`, `unlink`: files in a directory for each of `--iodepth` writers. `unlink` first creates
//!   100,000 files for each, before the measured time.
//! - `small-files`: as `create`, and each file gets one write of `--bs` bytes, which completes before the
//!   next file is created. Every writer creates at most 10,000 files, so that they fit with large blocks.
//!   With a fixed number of files, there is no ramp time, and the run ends with the last file if that is
//!   earlier.
//! - `commit-log`: `append-sync` concurrently with a compaction: random reads of `--compaction_bs` bytes
//!   of a file of `--size` bytes on the same core, with `--compaction_depth` in flight. With
//!   `--shares=LOG:COMPACTION` each has an I/O class. The latencies are those of the commits; the last line
//!   of standard error has the bytes that the compaction read.
//! - `simulation`: a long run on a database's files by `--jobs` clients, on a disk that is aged first: see
//!   its module.
//!
//! With `--directory=PATH` instead of the image, threads run `create`, `unlink`, `small-files` or
//! `simulation` on a mounted file system, with writes by O_DIRECT. `--disk` is its size, for `simulation`.

extern crate siltstone_fs as fs;

mod simulation;
mod volume;

use bench::peer::output::Output;
use block::{Buffer, Data, Error, Result};
use fs::{Directory, File, FileSystem, OpenOptions, Settings};
use runtime::histogram::Histogram;
use runtime::{Instant, Random, ShardIndex, now};
use std::cell::{Cell, RefCell};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::Barrier;
use std::time::Duration;

/// Files that a writer creates before it removes them.
const FILES: u64 = 100_000;
/// Files of one writer of `small-files`.
const SMALL_FILES: u64 = 10_000;

#[derive(Debug, Clone)]
struct Job {
    image: String,
    /// Zones to use instead of an image.
    stack: Option<String>,
    /// Mounted file system to use instead of the library.
    directory: Option<std::path::PathBuf>,
    format: Option<u64>,
    block_size: Option<u64>,
    zone_size: Option<u64>,
    rw: String,
    bytes: usize,
    depth: usize,
    jobs: u64,
    size: u64,
    runtime: Duration,
    ramp_time: Duration,
    lanes: u32,
    shards: usize,
    /// Shares of the log and of the compaction.
    shares: Option<(u32, u32)>,
    compaction_bytes: usize,
    compaction_depth: u64,
    depth_bytes: u64,
    ram: bool,
    /// Percentage of writes among the operations of a simulation, and of small ones among the writes.
    writes: u64,
    small: u64,
    disk: u64,
    cleaning: Option<String>,
    live_share: Option<f64>,
    read_request_bytes: u64,
    read_at_once: Option<u64>,
    stripe_above: Option<u64>,
}

impl Job {
    fn parse(arguments: impl Iterator<Item = String>) -> Result<Job> {
        let mut job = Job {
            image: String::new(),
            stack: None,
            stripe_above: Settings::default().stripe_above,
            directory: None,
            format: None,
            block_size: None,
            zone_size: None,
            rw: "write".into(),
            bytes: 4096,
            depth: 1,
            jobs: 1,
            size: 1 << 30,
            runtime: Duration::from_secs(5),
            ramp_time: Duration::ZERO,
            lanes: Settings::default().appends_in_flight,
            shards: 1,
            shares: None,
            compaction_bytes: 256 << 10,
            compaction_depth: 32,
            depth_bytes: Settings::default().io_depth,
            ram: false,
            writes: 80,
            small: 10,
            disk: 0,
            cleaning: None,
            live_share: None,
            read_request_bytes: Settings::default().read_request_bytes,
            read_at_once: None,
        };
        for argument in arguments {
            let unknown = || Error::invalid(format!("{argument}: unknown; see the head of the program"));
            let (key, value) =
                argument.strip_prefix("--").and_then(|rest| rest.split_once('=')).ok_or_else(unknown)?;
            let number =
                || value.parse::<u64>().map_err(|_| Error::invalid(format!("{argument}: expected a number")));
            let seconds = || {
                let parsed = value.parse::<f64>().ok();
                let time = parsed.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
                time.ok_or_else(|| Error::invalid(format!("{argument}: expected seconds")))
            };
            match key {
                "image" => job.image = value.to_owned(),
                "stack" => job.stack = Some(value.to_owned()),
                "stripe_above" => job.stripe_above = Some(number()?),
                "directory" => job.directory = Some(value.into()),
                "format" => job.format = Some(number()?),
                "block_size" => job.block_size = Some(number()?),
                "zone_size" => job.zone_size = Some(number()?),
                "rw" => job.rw = value.to_owned(),
                "bs" => job.bytes = number()? as usize,
                "iodepth" => job.depth = number()? as usize,
                "jobs" => job.jobs = number()?,
                "size" => job.size = number()?,
                "runtime" => job.runtime = seconds()?,
                "lanes" => job.lanes = number()? as u32,
                "shards" => job.shards = number()? as usize,
                "shares" => {
                    let both = value
                        .split_once(':')
                        .and_then(|(log, other)| Some((log.parse().ok()?, other.parse().ok()?)));
                    let expected = || Error::invalid(format!("{argument}: expected two numbers, as in 10:1"));
                    job.shares = Some(both.ok_or_else(expected)?);
                }
                "compaction_bs" => job.compaction_bytes = number()? as usize,
                "compaction_depth" => job.compaction_depth = number()?,
                "depth_bytes" => job.depth_bytes = number()?,
                "ram" => job.ram = number()? > 0,
                "ramp_time" => job.ramp_time = seconds()?,
                "writes" => job.writes = number()?,
                "small" => job.small = number()?,
                "disk" => job.disk = number()?,
                "cleaning" => job.cleaning = Some(value.to_owned()),
                "victims" => {
                    job.read_request_bytes = match value {
                        "planned" => Settings::default().read_request_bytes,
                        "fragments" => 0,
                        "whole" => u64::MAX,
                        _ => {
                            let expected = "expected planned, fragments or whole";
                            return Err(Error::invalid(format!("{argument}: {expected}")));
                        }
                    }
                }
                "k" => job.live_share = Some(value.parse().map_err(|_| unknown())?),
                "m" => job.read_at_once = Some(number()?),
                _ => return Err(unknown()),
            }
        }
        if job.block_size.is_some() && job.format.is_none() {
            return Err(Error::invalid("--block_size: expected --format=BYTES, too"));
        }
        if (job.live_share.is_some() || job.read_at_once.is_some())
            && job.cleaning.as_deref() != Some("threshold")
        {
            return Err(Error::invalid("--k and --m: expected --cleaning=threshold, too"));
        }
        match job.image.is_empty() && job.directory.is_none() && job.stack.is_none() && !job.ram
            || job.depth == 0
            || job.bytes == 0
            || job.jobs == 0
            || job.shards == 0
        {
            true => Err(Error::invalid(
                "expected --image=PATH, --stack=LINE or --directory=PATH, and --iodepth, --bs, --jobs and --shards above 0",
            )),
            false => Ok(job),
        }
    }

    fn writes(&self) -> bool {
        !matches!(self.rw.as_str(), "read" | "randread")
    }

    /// Whether the load ends after a fixed number of files.
    fn has_fixed_files(&self) -> bool {
        matches!(self.rw.as_str(), "unlink" | "small-files")
    }

    /// Start and end of the measured time if the load begins now. With a fixed number of files there is no
    /// ramp time, which would use them up.
    fn measured_time(&self) -> (Instant, Instant) {
        let from = now() + if self.has_fixed_files() { Duration::ZERO } else { self.ramp_time };
        (from, from + self.runtime)
    }

    /// Size of the disk in bytes.
    fn disk(&self) -> u64 {
        self.format.unwrap_or(self.disk)
    }
}

/// Results of a measurement.
#[derive(Default)]
struct Measured {
    latencies: Histogram<7>,
    /// Number of bytes, if requests differ in size; else `None`.
    bytes: Option<u64>,
    last: Option<Instant>,
}

impl Measured {
    /// Notes a step of a simulation, and the number of bytes that it has written.
    fn note_step(&mut self, written: Option<u64>, begun: Instant) {
        let time = now();
        if let Some(bytes) = written {
            self.latencies.record((time - begun).as_nanos() as u64);
            self.bytes = Some(self.bytes.unwrap_or(0) + bytes);
        }
        self.last = Some(time);
    }

    fn merge(&mut self, other: &Measured) {
        self.latencies.merge(&other.latencies);
        self.bytes = [self.bytes, other.bytes].into_iter().flatten().reduce(|a, b| a + b);
        self.last = self.last.max(other.last);
    }
}

/// Measured time of a run, with the results of a core.
struct Clock {
    from: Instant,
    end: Instant,
    measured: RefCell<Measured>,
}

impl Clock {
    fn new((from, end): (Instant, Instant)) -> Rc<Self> {
        Rc::new(Clock { from, end, measured: RefCell::default() })
    }

    fn goes_on(&self) -> bool {
        now() < self.end
    }

    fn note(&self, begun: Instant) {
        let time = now();
        if time >= self.from && time < self.end {
            let mut measured = self.measured.borrow_mut();
            measured.latencies.record((time - begun).as_nanos() as u64);
            measured.last = Some(time);
        }
    }
}

fn pattern(bytes: usize, seed: u64) -> Data {
    let mut buffer = Buffer::zeroed(bytes);
    Random::new(seed).fill(buffer.filled_mut());
    buffer.freeze()
}

/// Opens the directory of a client, creating it if it doesn't exist.
async fn directory(files: &FileSystem, name: &str) -> Result<Directory> {
    match files.make_directory(name).await {
        Ok(()) | Err(Error::AlreadyExists(_)) => files.directory(name).await,
        Err(error) => Err(error),
    }
}

/// Opens a file of the job's size, filling it if it is shorter.
async fn filled(job: &Job, files: &FileSystem, number: u64) -> Result<File> {
    let options = OpenOptions { create: true, ..OpenOptions::default() };
    let file = directory(files, &format!("job-{number}")).await?.open_file("file", options).await?;
    let mut at = file.attributes().await?.size;
    if job.rw == "append" {
        return Ok(file);
    }
    let data = pattern(1 << 20, number);
    while at < job.size {
        let length = (job.size - at).min(1 << 20);
        file.write_at(at, data.slice(0..length as usize)).await?;
        at += length;
    }
    Ok(file)
}

/// Sends requests on one file.
async fn requests(job: Job, file: File, clock: Rc<Clock>, next: Rc<Cell<u64>>, seed: u64) -> Result<()> {
    let (mut random, data) = (Random::new(seed), pattern(job.bytes, seed));
    let bytes = job.bytes as u64;
    let places = (job.size / bytes).max(1);
    while clock.goes_on() {
        let place = match job.rw.starts_with("rand") {
            true => random.below(places),
            false => next.replace(next.get() + 1) % places,
        };
        if job.rw == "append" && place == 0 && next.get() > 1 {
            file.truncate(0).await?;
        }
        let begun = now();
        match job.rw.as_str() {
            "write" | "randwrite" => file.write_at(place * bytes, data.clone()).await?,
            "append" => file.append(data.clone()).await.map(drop)?,
            _ => file.read_at(place * bytes, job.bytes).await.map(drop)?,
        }
        clock.note(begun);
    }
    Ok(())
}

async fn append_and_sync(job: Job, file: File, clock: Rc<Clock>, seed: u64) -> Result<()> {
    let data = pattern(job.bytes, seed);
    let mut size = 0;
    while clock.goes_on() {
        let begun = now();
        file.append(data.clone()).await?;
        file.sync().await?;
        clock.note(begun);
        size += job.bytes as u64;
        if size >= job.size {
            file.truncate(0).await?;
            size = 0;
        }
    }
    Ok(())
}

async fn create(directory: Directory, clock: Rc<Clock>) -> Result<()> {
    let options = OpenOptions { create: true, truncate: true, ..OpenOptions::default() };
    let mut number = 0_u64;
    while clock.goes_on() {
        let begun = now();
        directory.open_file(&format!("file-{number}"), options).await?;
        clock.note(begun);
        number += 1;
    }
    Ok(())
}

/// Creates files with data: a creation and its write are one operation.
async fn small_files(job: Job, directory: Directory, clock: Rc<Clock>, seed: u64) -> Result<()> {
    let options = OpenOptions { create: true, truncate: true, ..OpenOptions::default() };
    let data = pattern(job.bytes, seed);
    for number in 0..SMALL_FILES {
        if !clock.goes_on() {
            break;
        }
        let begun = now();
        let file = directory.open_file(&format!("file-{number}"), options).await?;
        file.write_at(0, data.clone()).await?;
        clock.note(begun);
    }
    Ok(())
}

async fn unlink(directory: Directory, clock: Rc<Clock>) -> Result<()> {
    for number in 0..FILES {
        if !clock.goes_on() {
            break;
        }
        let begun = now();
        directory.unlink(&format!("file-{number}")).await?;
        clock.note(begun);
    }
    Ok(())
}

/// Reads as a compaction does. Returns the number of bytes.
async fn compact(job: Job, file: File, clock: Rc<Clock>, seed: u64) -> Result<u64> {
    let (mut random, mut bytes) = (Random::new(seed), 0);
    let places = (job.size / job.compaction_bytes as u64).max(1);
    while clock.goes_on() {
        let place = random.below(places) * job.compaction_bytes as u64;
        let read = file.read_at(place, job.compaction_bytes).await?;
        if now() >= clock.from {
            bytes += read.len() as u64;
        }
    }
    Ok(bytes)
}

/// A client with its files.
#[derive(Clone)]
enum Client {
    /// Requests on one file, and their number in flight.
    Requests(File, usize),
    Appends(File),
    Compaction(File),
    Names(Directory),
}

impl Client {
    fn shard(&self) -> ShardIndex {
        match self {
            Client::Requests(file, _) | Client::Appends(file) | Client::Compaction(file) => file.shard(),
            Client::Names(directory) => directory.shard(),
        }
    }
}

/// Creates the clients, with their files.
async fn clients(job: &Job, files: &FileSystem) -> Result<Vec<Client>> {
    let mut clients = Vec::new();
    match job.rw.as_str() {
        "write" | "randwrite" | "read" | "randread" | "append" => {
            for number in 0..job.jobs {
                clients.push(Client::Requests(filled(job, files, number).await?, job.depth));
            }
        }
        "append-sync" | "create" | "small-files" | "unlink" => {
            for writer in 0..job.depth {
                let directory = directory(files, &format!("writer-{writer}")).await?;
                let options = OpenOptions { create: true, ..OpenOptions::default() };
                for number in (0..FILES).filter(|_| job.rw == "unlink") {
                    directory.open_file(&format!("file-{number}"), options).await?;
                }
                clients.push(match job.rw == "append-sync" {
                    true => Client::Appends(directory.open_file("file", options).await?),
                    false => Client::Names(directory),
                });
            }
        }
        "commit-log" => {
            let options = OpenOptions { create: true, ..OpenOptions::default() };
            let mut compaction = filled(job, files, 0).await?;
            let log = match job.shares {
                Some((log, other)) => {
                    compaction = compaction.in_class(&files.class("compaction", other).await?);
                    Some(files.class("log", log).await?)
                }
                None => None,
            };
            let writers = directory(files, "job-0").await?;
            for writer in 0..job.depth {
                let file = writers.open_file(&format!("log-{writer}"), options).await?;
                clients.push(Client::Appends(match &log {
                    Some(class) => file.in_class(class),
                    None => file,
                }));
            }
            clients.push(Client::Compaction(compaction));
        }
        other => return Err(Error::invalid(format!("--rw={other}: see the head of the program"))),
    }
    Ok(clients)
}

/// Runs clients on their core.
async fn run_here(job: Job, clients: Vec<(u64, Client)>, time: (Instant, Instant)) -> Result<Measured> {
    let (clock, mut tasks, mut compaction) = (Clock::new(time), Vec::new(), Vec::new());
    for (number, client) in clients {
        match client {
            Client::Requests(file, depth) => {
                let next = Rc::new(Cell::new(0));
                for writer in 0..depth as u64 {
                    let seed = number * depth as u64 + writer + 1;
                    let task = requests(job.clone(), file.clone(), clock.clone(), next.clone(), seed);
                    tasks.push(runtime::spawn(task));
                }
            }
            Client::Appends(file) => {
                tasks.push(runtime::spawn(append_and_sync(job.clone(), file, clock.clone(), number + 1)));
            }
            Client::Compaction(file) => {
                for reader in 0..job.compaction_depth {
                    let task = compact(job.clone(), file.clone(), clock.clone(), 1000 + reader);
                    compaction.push(runtime::spawn(task));
                }
            }
            Client::Names(directory) => tasks.push(match job.rw.as_str() {
                "create" => runtime::spawn(create(directory, clock.clone())),
                "small-files" => {
                    runtime::spawn(small_files(job.clone(), directory, clock.clone(), number + 1))
                }
                _ => runtime::spawn(unlink(directory, clock.clone())),
            }),
        }
    }
    for task in tasks {
        task.await?;
    }
    let (mut compacted, has_compaction) = (0, !compaction.is_empty());
    for task in compaction {
        compacted += task.await?;
    }
    if has_compaction {
        let mebibytes = compacted as f64 / (1 << 20) as f64;
        eprintln!("compaction: {:.0} MiB/s", mebibytes / job.runtime.as_secs_f64());
    }
    Ok(clock.measured.take())
}

/// Runs one thread of `create`, `small-files` or `unlink` on a mounted file system.
fn on_mounted(job: &Job, clock: (Instant, Instant), folder: &std::path::Path) -> std::io::Result<Measured> {
    let mut measured = Measured::default();
    let data = pattern(job.bytes, 1);
    let files = match job.rw.as_str() {
        "create" => u64::MAX,
        "small-files" => SMALL_FILES,
        _ => FILES,
    };
    let mut direct = std::fs::File::options();
    direct.write(true).create(true).truncate(true).custom_flags(libc::O_DIRECT);
    for number in 0..files {
        let begun = now();
        if begun >= clock.1 {
            break;
        }
        let path = folder.join(format!("file-{number}"));
        match job.rw.as_str() {
            "create" => drop(std::fs::File::create(path)?),
            "small-files" => direct.open(path)?.write_all_at(&data, 0)?,
            _ => std::fs::remove_file(path)?,
        }
        let time = now();
        if time >= clock.0 && time < clock.1 {
            measured.latencies.record((time - begun).as_nanos() as u64);
            measured.last = Some(time);
        }
    }
    Ok(measured)
}

/// Runs `create`, `small-files` or `unlink` on a mounted file system, with threads.
fn run_mounted(job: &Job, directory: &std::path::Path) -> Result<(Measured, Duration)> {
    if job.rw == "simulation" {
        return simulate_mounted(job, directory);
    }
    if !matches!(job.rw.as_str(), "create" | "small-files" | "unlink") {
        return Err(Error::invalid(format!(
            "--rw={}: expected create, small-files, unlink or simulation with --directory",
            job.rw
        )));
    }
    let wrong = |error: std::io::Error| Error::from_io(&error, "files of a mounted file system");
    let folders: Vec<_> = (0..job.depth).map(|writer| directory.join(format!("writer-{writer}"))).collect();
    for folder in &folders {
        std::fs::create_dir(folder).map_err(wrong)?;
        for number in (0..FILES).filter(|_| job.rw == "unlink") {
            std::fs::File::create(folder.join(format!("file-{number}"))).map_err(wrong)?;
        }
    }
    let clock = job.measured_time();
    let from = clock.0;
    let all: Vec<std::io::Result<Measured>> = std::thread::scope(|scope| {
        let start = |folder: &std::path::PathBuf| {
            scope.spawn({
                let folder = folder.clone();
                move || on_mounted(job, clock, &folder)
            })
        };
        let threads: Vec<_> = folders.iter().map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Ok(Measured::default()))).collect()
    });
    let mut whole = Measured::default();
    for measured in all {
        whole.merge(&measured.map_err(wrong)?);
    }
    let time = whole.last.unwrap_or(from) - from;
    Ok((whole, time))
}

/// Runs a simulation on a mounted file system, with threads.
fn simulate_mounted(job: &Job, directory: &std::path::Path) -> Result<(Measured, Duration)> {
    simulation::check(job)?;
    let totals = simulation::Totals::default();
    let aged = Barrier::new(job.jobs as usize + 1);
    let client = |number: u64| -> std::io::Result<Measured> {
        let folder = directory.join(format!("job-{number}"));
        let client = std::fs::create_dir(&folder)
            .and_then(|()| simulation::MountedClient::aged(job, &folder, &totals, number + 1));
        // The last thread to be aged begins the measured time for all.
        aged.wait();
        aged.wait();
        client?.run(job, &totals)
    };
    let (all, from) = std::thread::scope(|scope| {
        let client = &client;
        let threads: Vec<_> = (0..job.jobs).map(|number| scope.spawn(move || client(number))).collect();
        aged.wait();
        totals.begin();
        let from = now();
        aged.wait();
        let ended = threads.into_iter().map(|thread| thread.join());
        (
            ended
                .map(|it| it.unwrap_or_else(|_| Err(std::io::Error::other("a client panicked"))))
                .collect::<Vec<_>>(),
            from,
        )
    });
    let mut whole = Measured::default();
    for measured in all {
        whole.merge(&measured.map_err(|error| Error::from_io(&error, "a client of the simulation"))?);
    }
    let time = whole.last.unwrap_or(from) - from;
    Ok((whole, time))
}

/// Runs a simulation on the library, each client on the core that has its directory.
async fn simulate(job: &Job, files: &FileSystem) -> Result<(Measured, Duration)> {
    simulation::check(job)?;
    let totals = Arc::new(simulation::Totals::default());
    let mut aging = Vec::new();
    for number in 0..job.jobs {
        let directory = directory(files, &format!("job-{number}")).await?;
        let (shard, job, totals) = (directory.shard(), job.clone(), totals.clone());
        let age =
            move || async move { simulation::Client::aged(&job, &directory, &totals, number + 1).await };
        aging.push((shard, runtime::spawn_on(shard, age)));
    }
    let mut clients = Vec::new();
    for (shard, client) in aging {
        clients.push((shard, client.await??));
    }
    totals.begin();
    let from = now();
    let mut running = Vec::new();
    for (shard, client) in clients {
        let (job, totals) = (job.clone(), totals.clone());
        running.push(runtime::spawn_on(shard, move || async move { client.run(job, &totals).await }));
    }
    let mut whole = Measured::default();
    for client in running {
        whole.merge(&client.await??);
    }
    let time = whole.last.unwrap_or(from) - from;
    Ok((whole, time))
}

/// Closes the file system, and prints its counters.
async fn close(files: FileSystem) -> Result<()> {
    let of = |counter: &std::sync::atomic::AtomicU64| counter.load(std::sync::atomic::Ordering::Relaxed);
    let counted = files.counters().clone();
    files.close().await?;
    eprintln!(
        "{} records, {} checkpoints of {} blocks, {} blocks moved, {} zones reset, {} waits for zones",
        of(&counted.user_records),
        of(&counted.checkpoints),
        of(&counted.checkpoint_blocks),
        of(&counted.moved_blocks),
        of(&counted.reset_zones),
        of(&counted.zone_waits)
    );
    Ok(())
}

async fn run(job: &Job) -> Result<(Measured, Duration)> {
    let (built, zones) = volume::build(job).await?;
    let files = volume::open(job, zones).await?;
    let measured = measure(job, files).await?;
    built.close().await?;
    Ok(measured)
}

async fn measure(job: &Job, files: FileSystem) -> Result<(Measured, Duration)> {
    if job.rw == "simulation" {
        let measured = simulate(job, &files).await?;
        close(files).await?;
        return Ok(measured);
    }
    let clients: Vec<Client> = clients(job, &files).await?;
    files.sync().await?;
    let time = job.measured_time();
    let from = time.0;
    let mut running = Vec::new();
    for shard in (0..runtime::shard_count()).map(ShardIndex) {
        let its = (0..).zip(&clients).filter(|(_, client)| client.shard() == shard);
        let (its, job) = (its.map(|(number, client)| (number, client.clone())).collect(), job.clone());
        running.push(runtime::spawn_on(shard, move || run_here(job, its, time)));
    }
    let mut measured = Measured::default();
    for on_shard in running {
        measured.merge(&on_shard.await??);
    }
    let ended = measured.last.unwrap_or(from);
    drop(clients);
    close(files).await?;
    Ok((measured, ended - from))
}

/// Prints JSON in fio's format, with the fields that plans read.
fn print(job: &Job, measured: &Measured, time: Duration, started: Instant) {
    let latencies = &measured.latencies;
    let bytes = measured.bytes.unwrap_or(latencies.count() * job.bytes as u64);
    // If the work is fixed instead of the time, the processor time is that of the whole program.
    let wall = match measured.bytes.is_some() || job.has_fixed_files() {
        true => now() - started,
        false => job.runtime + job.ramp_time,
    };
    let output = Output {
        name: "fs-load",
        writes: job.writes(),
        latencies,
        bytes,
        time,
        cpu: runtime::process_cpu_time(),
        wall,
        failed: false,
    };
    println!("{}", serde_json::json!({ "jobs": [output.job()] }));
}

fn main() -> std::process::ExitCode {
    let outcome = Job::parse(std::env::args().skip(1)).and_then(|job| {
        runtime::run(runtime::Config::default().with_shards(job.shards), move || async move {
            let started = now();
            let (measured, time) = match job.directory.clone() {
                Some(directory) => run_mounted(&job, &directory)?,
                None => run(&job).await?,
            };
            print(&job, &measured, time, started);
            Ok(())
        })?
    });
    match outcome {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fs-load: {error}");
            std::process::ExitCode::FAILURE
        }
    }
}
