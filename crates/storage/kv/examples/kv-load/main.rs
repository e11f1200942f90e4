//! Load generator for the key-value store as a library. Options are those of RocksDB's `db_bench`; output is
//! fio's JSON, for plans.
//!
//! ```text
//! kv-load --file=PATH|--zns=memory|--zns=PATH --benchmarks=NAME[,NAME…] [--num=N] [--key_size=BYTES] [--value_size=BYTES] [--threads=N]
//!         [--reads=N] [--writes=N] [--operations=N] [--duration=SECONDS] [--seek_nexts=N] [--sync=0|1] [--acknowledge=buffered|written|flushed] [--shards=N]
//!         [--size=BYTES] [--zone_size=BYTES] [--direct=0|1] [--timed=0|1] [--use_existing_db=0|1] [--compaction=POLICY] [--placement=POLICY]
//!         [--delete_persistence=SECONDS] [--compaction_rate=BYTES] [--cache_size=BYTES] [--write_buffer_size=BYTES] [--target_file_size_base=BYTES]
//!         [--max_bytes_for_level_base=BYTES] [--max_bytes_for_level_multiplier=N] [--level0_file_num_compaction_trigger=N] [--block_size=BYTES]
//!         [--bloom_bits=N] [--compression_type=lz4|none] [--compression_ratio=SHARE] [--turn=N] [--poll=0|1] [--seed=N]
//!         [--benchmark_write_rate_limit=BYTES] [--deletes=PERCENT] [--threshold=PERCENT] [--rate=N] [--read_rate=N] [--phase=2|3]
//! ```
//!
//! The store is on zones of a file, opened with O_DIRECT unless `--direct=0`, or on an emulated ZNS drive in
//! memory or in a file. It is formatted with `--size` bytes, unless `--use_existing_db=1`. The whole file is
//! written once before, so that no run measures its allocation.
//!
//! Benchmarks run in sequence; the last measured one is printed. They do what those of `db_bench` do:
//! - `fillseq`, `fillrandom`, `overwrite`, `deleterandom`: each client writes `--writes` keys of `--num`; the
//!   default is all of them.
//! - `fillsync`: as `fillrandom`, with each write durable, and a thousandth of the keys.
//! - `readrandom`, `seekrandom`: each client reads `--reads` keys, or seeks and reads `--seek_nexts` pairs.
//! - `readwhilewriting`: as `readrandom`, while another client writes at most `--benchmark_write_rate_limit`
//!   bytes per second; its writes aren't measured.
//! - `flush`, `waitforcompaction`: write buffers to tables, and wait until no compaction is due; not
//!   measured.
//! - `deletion`: inserts, updates and deletes, then reads, with deletes that are persistent in time: see its
//!   module.
//!
//! With `--duration` the last benchmark runs for this time instead of a number of operations. A client has
//! one outstanding request. Clients are tasks, distributed over the shards; each yields to other tasks after
//! `--turn` operations. Keys are 8 bytes, big-endian, padded with zeros; a value compresses to
//! `--compression_ratio`. `--operations` is the number of writes of all clients together, and replaces
//! `--writes`. `--shards=0` is one for each processor, at most one for each client. Latencies include the
//! generation of the key, as with `db_bench`.
//!
//! Apart from the fields that plans read, the output has `write_amplification`: bytes written to the medium
//! from the start of the last measured benchmark until no compaction is due, divided by the bytes of its keys
//! and values; and `store`, the status of the store.

extern crate siltstone_kv as kv;

mod arguments;
mod deletion;
mod generate;
mod medium;
mod report;

use arguments::Job;
use block::{Error, Result};
use generate::{Keys, Values};
use kv::{Acknowledge, Batch, Scan, Store};
use medium::Medium;
use runtime::histogram::Histogram;
use runtime::{Instant, Random, ShardIndex, now};
use std::time::Duration;

/// Latencies in nanoseconds.
type Latencies = Histogram<7>;

/// Operation that clients repeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    WriteInOrder,
    Write,
    Delete,
    Read,
    Seek,
}

impl Work {
    fn writes(self) -> bool {
        matches!(self, Work::WriteInOrder | Work::Write | Work::Delete)
    }
}

/// Measurements of one client.
#[derive(Debug, Default)]
struct Measured {
    latencies: Latencies,
    /// Number of keys that were found.
    found: u64,
    /// Bytes of keys and values.
    bytes: u64,
    ended: Option<Instant>,
}

impl Measured {
    fn merge(&mut self, other: &Measured) {
        self.latencies.merge(&other.latencies);
        self.found += other.found;
        self.bytes += other.bytes;
        self.ended = self.ended.max(other.ended);
    }
}

/// A client: its operation, keys and end.
#[derive(Debug, Clone)]
struct Client {
    work: Work,
    number: u64,
    seed: u64,
    keys: Keys,
    operations: u64,
    until: Option<Instant>,
    acknowledge: Acknowledge,
    /// Limit in bytes of keys and values per second; 0 is unlimited.
    rate: u64,
}

impl Client {
    async fn run(self, job: Job, store: Store) -> Result<Measured> {
        let mut random = Random::new(self.seed.wrapping_add(self.number));
        let mut values = Values::new(&job, self.number);
        let mut measured = Measured::default();
        let mut key = vec![b'0'; job.key_size];
        let first = now();
        let mut begun = first;
        for operation in 0..self.operations {
            let number = match self.work {
                Work::WriteInOrder => operation % self.keys.count,
                _ => random.below(self.keys.count),
            };
            self.keys.write(number, &mut key);
            let (is_found, bytes) = self.request(&job, &store, &key, &mut values).await?;
            measured.found += u64::from(is_found);
            measured.bytes += bytes;
            let ended = now();
            measured.latencies.record((ended - begun).as_nanos() as u64);
            begun = ended;
            if self.until.is_some_and(|until| ended >= until) {
                break;
            }
            if let Some(due) = (measured.bytes * 1_000_000_000).checked_div(self.rate) {
                let ahead = first + Duration::from_nanos(due) - ended;
                if ahead >= MIN_SLEEP {
                    runtime::sleep(ahead).await;
                    begun = now();
                }
            }
            if (operation + 1) % job.turn == 0 {
                runtime::yield_now().await;
            }
        }
        measured.ended = Some(begun);
        Ok(measured)
    }

    /// Carries out a request. Returns whether the key was found, and the bytes of the key and the value.
    async fn request(
        &self,
        job: &Job,
        store: &Store,
        key: &[u8],
        values: &mut Values,
    ) -> Result<(bool, u64)> {
        let key_bytes = key.len() as u64;
        match self.work {
            Work::WriteInOrder | Work::Write => {
                let value = values.next();
                match self.acknowledge == job.settings.acknowledge {
                    true => store.put(key, value).await?,
                    false => {
                        let mut batch = Batch::new();
                        batch.put(key, value);
                        store.write(batch, self.acknowledge).await?;
                    }
                }
                Ok((true, key_bytes + value.len() as u64))
            }
            Work::Delete => store.delete(key).await.map(|()| (true, key_bytes)),
            Work::Read => {
                let found = store.get(key).await?;
                Ok((found.is_some(), found.map_or(0, |found| key_bytes + found.value.len() as u64)))
            }
            Work::Seek => {
                let scan = Scan::from(key.to_vec(), job.seek_nexts.max(1));
                let (pairs, _) = store.scan(None, scan).await?;
                let bytes = pairs.bytes() as u64;
                Ok((pairs.get(0).is_some_and(|found| found.key == key), bytes))
            }
        }
    }
}

/// Result of a measured benchmark.
#[derive(Debug)]
struct Outcome {
    name: String,
    writes: bool,
    measured: Measured,
    time: Duration,
    /// Processor time of the whole process.
    cpu: Duration,
    /// Bytes that had been written to the medium when the benchmark began.
    written_before: u64,
}

/// Runs a measured benchmark.
async fn measure(
    job: &Job,
    store: &Store,
    medium: &Medium,
    (at, name): (usize, &str),
    is_last: bool,
) -> Result<Outcome> {
    let work = match name {
        "fillseq" => Work::WriteInOrder,
        "fillrandom" | "fillsync" | "overwrite" => Work::Write,
        "deleterandom" => Work::Delete,
        "readrandom" | "readwhilewriting" => Work::Read,
        "seekrandom" => Work::Seek,
        _ => {
            return Err(Error::invalid(format!(
                "--benchmarks: {name} is unknown; see the head of the program"
            )));
        }
    };
    let (keys, acknowledge) = match name {
        "fillsync" => (Keys { count: (job.num / 1000).max(1) }, Acknowledge::Flushed),
        _ => (Keys { count: job.num }, job.settings.acknowledge),
    };
    let given = if work.writes() { job.writes } else { job.reads };
    let duration = job.duration.filter(|_| is_last);
    let operations = match duration {
        Some(_) => u64::MAX,
        None => given.unwrap_or(keys.count),
    };
    let written_before = medium.written().await?;
    let (from, cpu) = (now(), runtime::process_cpu_time());
    let until = duration.map(|duration| from + duration);
    let shards = runtime::shard_count() as u64;
    let start = |client: Client| {
        let (job, store) = (job.clone(), store.clone());
        runtime::spawn_on(ShardIndex((client.number % shards) as usize), move || client.run(job, store))
    };
    // Each benchmark has its own random keys.
    let seed = job.seed.wrapping_add(at as u64 * 1000);
    let client = |number: u64| Client { work, seed, number, keys, operations, until, acknowledge, rate: 0 };
    let clients: Vec<_> = (0..job.threads).map(|number| start(client(number))).collect();
    let writer = (name == "readwhilewriting").then(|| {
        let until = Some(until.unwrap_or(from + MAX_WRITER));
        let rate = job.write_rate;
        start(Client { work: Work::Write, operations: u64::MAX, until, rate, ..client(job.threads) })
    });
    let mut measured = Measured::default();
    for client in clients {
        measured.merge(&client.await??);
    }
    // Without a duration the writer runs until the program ends.
    if let Some(writer) = writer.filter(|_| until.is_some()) {
        writer.await??;
    }
    let time = measured.ended.map_or(Duration::ZERO, |ended| ended - from);
    let cpu = runtime::process_cpu_time() - cpu;
    Ok(Outcome { name: name.to_owned(), writes: work.writes(), measured, time, cpu, written_before })
}

/// Clients that are ahead of their rate by less than this don't sleep.
const MIN_SLEEP: Duration = Duration::from_millis(1);
/// Longest time of the writer of `readwhilewriting` without a duration.
const MAX_WRITER: Duration = Duration::from_secs(3600);

async fn run(job: &Job) -> Result<()> {
    let medium = Medium::open(job).await?;
    let store = match job.use_existing_db {
        true => Store::open(medium.zones.clone(), &job.settings).await?,
        false => Store::format(medium.zones.clone(), &job.settings).await?,
    };
    if job.benchmarks == ["deletion"] {
        let outcome = deletion::run(job, &store, &medium).await;
        if outcome.is_err() {
            let status = store.status().await?;
            eprintln!("kv-load: the store: {}", serde_json::Value::from(status));
        }
        return outcome.and(store.close().await);
    }
    let is_measured = |name: &str| !matches!(name, "flush" | "waitforcompaction");
    let last = job.benchmarks.iter().rposition(|name| is_measured(name));
    let mut outcome = None;
    for (number, name) in job.benchmarks.iter().enumerate() {
        match name.as_str() {
            "flush" => store.flush_buffers().await?,
            "waitforcompaction" => store.wait_for_compactions().await?,
            name => {
                let found = measure(job, &store, &medium, (number, name), Some(number) == last).await?;
                let rate = found.measured.latencies.count() as f64 / found.time.as_secs_f64().max(1e-9);
                eprintln!("{name}: {rate:.0} operations per second, {:.3} s", found.time.as_secs_f64());
                outcome = Some(found);
            }
        }
    }
    let Some(outcome) = outcome else {
        return Err(Error::invalid(
            "--benchmarks: expected one that is measured; see the head of the program",
        ));
    };
    store.flush_buffers().await?;
    store.wait_for_compactions().await?;
    let written = medium.written().await? - outcome.written_before;
    let status = store.status().await?;
    report::print(&outcome, written, &status);
    store.close().await
}

fn main() -> std::process::ExitCode {
    let outcome = Job::parse(std::env::args().skip(1)).and_then(|job| {
        let config = runtime::Config::default().with_shards(job.shards);
        let config = if job.poll { config.polling() } else { config };
        runtime::run(config, move || async move { run(&job).await })?
    });
    match outcome {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("kv-load: {error}");
            std::process::ExitCode::FAILURE
        }
    }
}
