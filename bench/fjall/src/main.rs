//! Load on fjall, with the arguments and the workloads of `bench/db-bench`: it prints fio's JSON.
//!
//! ```text
//! fjall-load DIRECTORY BENCHMARK VALUE_SIZE THREADS NUM SECONDS buffered|written|flushed CACHE_SIZE WRITE_RATE
//! ```
//!
//! Acknowledgement: `buffered` is `manual_journal_persist`, `written` is fjall's default (the journal is in
//! the page cache), and `flushed` adds `persist(SyncData)` after each write. fjall has no direct I/O: tables
//! and the journal go through the page cache with all of them.

use fjall::compaction::Leveled;
use fjall::config::{BlockSizePolicy, BloomConstructionPolicy, CompressionPolicy, FilterPolicy, FilterPolicyEntry};
use fjall::{CompressionType, Database, Keyspace, KeyspaceCreateOptions, PersistMode};
use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const KEY_BYTES: usize = 16;
const SEEK_NEXTS: usize = 10;
const PERCENTILES: [f64; 7] = [50.0, 90.0, 95.0, 99.0, 99.9, 99.99, 100.0];

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

struct Job {
    directory: PathBuf,
    benchmark: String,
    value_size: usize,
    threads: u64,
    num: u64,
    seconds: Duration,
    acknowledge: String,
    cache_size: u64,
    /// Bytes per second of the client of `readwhilewriting` that writes; 0 for no limit.
    write_rate: u64,
}

impl Job {
    fn parse() -> Outcome<Job> {
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        let [directory, benchmark, value_size, threads, num, seconds, acknowledge, cache_size, write_rate] = &arguments[..] else {
            return Err("expected DIRECTORY BENCHMARK VALUE_SIZE THREADS NUM SECONDS ACKNOWLEDGE CACHE_SIZE WRITE_RATE".into());
        };
        if !["buffered", "written", "flushed"].contains(&acknowledge.as_str()) {
            return Err(format!("{acknowledge}: expected buffered, written or flushed").into());
        }
        Ok(Job {
            directory: PathBuf::from(directory).join("kv-plan-fjall"),
            benchmark: benchmark.clone(),
            value_size: value_size.parse()?,
            threads: threads.parse()?,
            num: num.parse()?,
            seconds: Duration::from_secs_f64(seconds.parse()?),
            acknowledge: acknowledge.clone(),
            cache_size: cache_size.parse()?,
            write_rate: write_rate.parse()?,
        })
    }

    fn is_durable(&self) -> bool {
        self.acknowledge == "flushed" || self.benchmark == "fillsync"
    }
}

/// Seeded numbers (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(end)) >> 64) as u64
    }
}

fn key(number: u64) -> [u8; KEY_BYTES] {
    let mut key = [b'0'; KEY_BYTES];
    key[..8].copy_from_slice(&number.to_be_bytes());
    key
}

/// Bytes from which values are cut, of which each hundred compress to a half.
fn bytes(seed: u64, length: usize) -> Vec<u8> {
    let mut random = Random(seed);
    let mut bytes = Vec::with_capacity(length);
    while bytes.len() < length {
        let fresh: Vec<u8> = (0..50).map(|_| b' ' + random.below(95) as u8).collect();
        bytes.extend_from_slice(&fresh);
        bytes.extend_from_slice(&fresh);
    }
    bytes
}

#[derive(Clone, Copy, PartialEq)]
enum Work {
    Write,
    Read,
    Seek,
}

struct Client<'a> {
    job: &'a Job,
    database: &'a Database,
    items: &'a Keyspace,
    work: Work,
    is_durable: bool,
    seed: u64,
    operations: u64,
    until: Option<Instant>,
    stop: Option<&'a AtomicBool>,
    /// Most bytes of keys and values per second; 0 for no limit.
    rate: u64,
}

impl Client<'_> {
    /// Runs requests one after another. Returns their latencies in nanoseconds.
    fn run(&self) -> Outcome<Vec<u64>> {
        let mut random = Random(self.seed);
        let size = self.job.value_size;
        let source = bytes(self.seed, size.max(1 << 20));
        let (mut at, mut latencies) = (0, Vec::new());
        let (first, mut written) = (Instant::now(), 0);
        let mut begun = first;
        for _ in 0..self.operations {
            let key = key(random.below(self.job.num));
            match self.work {
                Work::Write => {
                    at = if at + size > source.len() { 0 } else { at };
                    self.items.insert(key, &source[at..at + size])?;
                    at += size;
                    written += (KEY_BYTES + size) as u64;
                    if self.is_durable {
                        self.database.persist(PersistMode::SyncData)?;
                    }
                }
                Work::Read => {
                    std::hint::black_box(self.items.get(key)?);
                }
                Work::Seek => {
                    for pair in self.items.range(key..).take(SEEK_NEXTS) {
                        std::hint::black_box(pair.into_inner()?);
                    }
                }
            }
            let ended = Instant::now();
            latencies.push((ended - begun).as_nanos() as u64);
            begun = ended;
            let is_stopped = || self.stop.is_some_and(|stop| stop.load(Ordering::Relaxed));
            if self.until.is_some_and(|until| ended >= until) || is_stopped() {
                break;
            }
            if let Some(due) = (written * 1_000_000_000).checked_div(self.rate) {
                let ahead = (first + Duration::from_nanos(due)).saturating_duration_since(ended);
                if ahead >= Duration::from_millis(1) {
                    std::thread::sleep(ahead);
                    begun = Instant::now();
                }
            }
        }
        Ok(latencies)
    }
}

fn run_all(clients: Vec<Client<'_>>) -> Outcome<Vec<u64>> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = clients.iter().map(|client| scope.spawn(|| client.run())).collect();
        let mut all = Vec::new();
        for thread in threads {
            all.extend(thread.join().map_err(|_| "a client panicked")??);
        }
        Ok(all)
    })
}

/// Writes the memtable as a table, and waits until no compaction runs.
fn settle(database: &Database, items: &Keyspace) -> Outcome<()> {
    items.rotate_memtable_and_wait()?;
    let mut quiet = 0;
    while quiet < 10 {
        let is_quiet = database.outstanding_flushes() == 0 && database.active_compactions() == 0;
        quiet = if is_quiet { quiet + 1 } else { 0 };
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// A number from a file of the kernel about this process.
fn account(path: &str, name: &str) -> Outcome<u64> {
    let text = std::fs::read_to_string(path)?;
    let found = text.lines().find_map(|line| line.strip_prefix(name)?.trim_start_matches(':').trim().parse().ok());
    found.ok_or_else(|| format!("{path}: expected a line {name}").into())
}

/// Processor time of this process in seconds: fields 14 and 15 of its statistics, in hundredths.
fn processor_time() -> Outcome<f64> {
    let text = std::fs::read_to_string("/proc/self/stat")?;
    let after = text.rsplit_once(')').ok_or("/proc/self/stat: expected a name in brackets")?.1;
    let ticks: Vec<u64> = after.split_whitespace().skip(11).take(2).filter_map(|word| word.parse().ok()).collect();
    Ok(ticks.iter().sum::<u64>() as f64 / 100.0)
}

fn run(job: &Job) -> Outcome<()> {
    let _ignored = std::fs::remove_dir_all(&job.directory);
    let is_manual = job.acknowledge != "written";
    let database = Database::builder(&job.directory).cache_size(job.cache_size).manual_journal_persist(is_manual).open()?;
    let strategy = Leveled::default().with_table_target_size(64 << 20);
    let options = || {
        KeyspaceCreateOptions::default()
            .max_memtable_size(64 << 20)
            .manual_journal_persist(is_manual)
            .data_block_size_policy(BlockSizePolicy::all(4096))
            .data_block_compression_policy(CompressionPolicy::all(CompressionType::Lz4))
            .filter_policy(FilterPolicy::all(FilterPolicyEntry::Bloom(BloomConstructionPolicy::BitsPerKey(10.0))))
            .compaction_strategy(Arc::new(strategy))
    };
    let items = database.keyspace("items", options)?;
    let client = |work: Work, seed: u64| Client {
        job,
        database: &database,
        items: &items,
        work,
        is_durable: false,
        seed,
        operations: u64::MAX,
        until: None,
        stop: None,
        rate: 0,
    };
    let work = match job.benchmark.as_str() {
        "fillrandom" | "overwrite" | "fillsync" => Work::Write,
        "readrandom" | "readwhilewriting" => Work::Read,
        "seekrandom" => Work::Seek,
        other => return Err(format!("{other}: unknown benchmark").into()),
    };
    if !job.benchmark.starts_with("fill") {
        run_all(vec![Client { operations: job.num, ..client(Work::Write, 1000) }])?;
        settle(&database, &items)?;
    }
    let is_counted = matches!(job.benchmark.as_str(), "fillrandom" | "overwrite");
    let written = account("/proc/self/io", "write_bytes")?;
    let (begun, cpu) = (Instant::now(), processor_time()?);
    let clients = (0..job.threads).map(|number| Client {
        is_durable: job.is_durable(),
        operations: if is_counted { job.num / job.threads } else { u64::MAX },
        until: (!is_counted).then_some(begun + job.seconds),
        ..client(work, number + 1)
    });
    let ended = AtomicBool::new(false);
    let writer = Client { stop: Some(&ended), rate: job.write_rate, ..client(Work::Write, 2000) };
    let mut latencies = std::thread::scope(|scope| {
        let writing = (job.benchmark == "readwhilewriting").then(|| scope.spawn(|| writer.run()));
        let latencies = run_all(clients.collect());
        ended.store(true, Ordering::Relaxed);
        if let Some(writing) = writing {
            writing.join().map_err(|_| "the writer panicked")??;
        }
        latencies
    })?;
    let time = begun.elapsed().as_secs_f64();
    let cpu = processor_time()? - cpu;
    settle(&database, &items)?;
    let written = account("/proc/self/io", "write_bytes")? - written;
    latencies.sort_unstable();
    print(job, &latencies, work == Work::Write, time, cpu, written);
    drop((items, database));
    std::fs::remove_dir_all(&job.directory)?;
    Ok(())
}

fn print(job: &Job, latencies: &[u64], writes: bool, time: f64, cpu: f64, written: u64) {
    let count = latencies.len();
    let bytes = (count * (KEY_BYTES + job.value_size)) as f64;
    let at = |percent: f64| {
        let rank = (count as f64 * percent / 100.0).ceil() as usize;
        latencies.get(rank.clamp(1, count.max(1)) - 1).copied().unwrap_or(0)
    };
    let percentiles: Vec<String> =
        PERCENTILES.iter().map(|percent| format!("\"{percent:.6}\": {}", at(*percent))).collect();
    let factor = written as f64 / bytes.max(1.0);
    let amplification = match writes {
        true => format!(", \"write_amplification\": {{\"data\": {factor:.4}, \"all\": {factor:.4}}}"),
        false => String::new(),
    };
    println!(
        "{{\"jobs\": [{{\"jobname\": \"fjall {}\", \"error\": 0, \"usr_cpu\": {:.3}, \"sys_cpu\": 0.0, \"job_runtime\": {:.0}, \"{}\": {{\
         \"total_ios\": {count}, \"io_bytes\": {bytes:.0}, \"runtime\": {:.3}, \"iops\": {:.3}, \"bw_bytes\": {:.0}, \"lat_ns\": {{\
         \"min\": {}, \"mean\": {:.1}, \"max\": {}, \"percentile\": {{{}}}}}}}{amplification}}}]}}",
        job.benchmark,
        100.0 * cpu / time,
        1000.0 * time,
        if writes { "write" } else { "read" },
        1000.0 * time,
        count as f64 / time,
        bytes / time,
        at(0.0),
        latencies.iter().sum::<u64>() as f64 / count.max(1) as f64,
        at(100.0),
        percentiles.join(", ")
    );
}

fn main() -> std::process::ExitCode {
    match Job::parse().and_then(|job| run(&job)) {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fjall-load: {error}");
            std::process::ExitCode::FAILURE
        }
    }
}
