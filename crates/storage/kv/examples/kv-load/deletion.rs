//! Deletion workload: the cost of persistent deletes for each design of compaction and placement.
//!
//! It follows the workload generator of Lethe (Sarkar et al., SIGMOD 2020): uniformly distributed updates,
//! inserts and deletes of existing keys, with concurrent point reads. It has three phases:
//! 1. `--num` keys are inserted and compacted.
//! 2. `--operations` writes run at a fixed `--rate`: `--deletes` percent of them delete, as many insert, so
//!    that the number of keys stays constant, and the others update. `--read_rate` reads per second run
//!    concurrently.
//! 3. Only reads run, for `--duration`.
//!
//! The fixed rate gives all designs the same time: phase 2 takes operations / rate, and deletes must be
//! persistent within `--threshold` percent of it. `saturation` doesn't promise this. Bytes and amplification
//! are measured in phase 2. `--phase` selects the reads that fio's JSON reports.

use crate::Latencies;
use crate::arguments::Job;
use crate::generate::Values;
use crate::medium::Medium;
use bench::peer::output::latencies;
use block::Result;
use kv::Store;
use runtime::{Instant, Random, now};
use serde_json::{Value, json};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

/// Interval of samples of the state.
const SAMPLE: Duration = Duration::from_millis(100);
/// Number of operations between two reads of the clock.
const BATCH: u64 = 8;

/// Planned duration of phase 2.
pub fn planned(job: &Job) -> Duration {
    Duration::from_secs_f64(job.operations.unwrap_or(job.num) as f64 / job.rate.max(1) as f64)
}

/// Time within which deletes must be persistent.
pub fn persistence(job: &Job) -> Duration {
    planned(job).mul_f64(job.threshold as f64 / 100.0)
}

/// Keys that exist.
struct Live {
    numbers: RefCell<Vec<u64>>,
    next: Cell<u64>,
}

impl Live {
    /// Adds a key and returns its number.
    fn insert(&self) -> u64 {
        let number = self.next.replace(self.next.get() + 1);
        self.numbers.borrow_mut().push(number);
        number
    }

    fn any(&self, random: &mut Random) -> u64 {
        let numbers = self.numbers.borrow();
        numbers[random.below(numbers.len() as u64) as usize]
    }

    fn remove(&self, random: &mut Random) -> u64 {
        let mut numbers = self.numbers.borrow_mut();
        let at = random.below(numbers.len() as u64) as usize;
        numbers.swap_remove(at)
    }
}

/// Writes the key of a number. Consecutive numbers get keys in no particular order.
fn key(number: u64, key: &mut [u8]) {
    let mut mixed = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    mixed = (mixed ^ mixed >> 32).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    key[..8].copy_from_slice(&(mixed ^ mixed >> 32).to_be_bytes());
}

/// Monotonic counters of the store.
#[derive(Debug, Clone, Copy)]
struct Counters {
    appended: u64,
    client: u64,
    flushed: u64,
    compaction_read: u64,
    compaction_written: u64,
    moved: u64,
}

/// Number with this name in the store's status; 0 if it is missing.
fn of(status: &block::Status, name: &str) -> u64 {
    status.get(name).and_then(Value::as_u64).unwrap_or(0)
}

impl Counters {
    async fn read(store: &Store, medium: &Medium) -> Result<Counters> {
        let status = store.status().await?;
        Ok(Counters {
            appended: medium.written().await?,
            client: of(&status, "client_bytes"),
            flushed: of(&status, "flushed_bytes"),
            compaction_read: of(&status, "compacted_bytes"),
            compaction_written: of(&status, "written_bytes"),
            moved: of(&status, "moved_bytes"),
        })
    }

    fn since(self, before: Counters) -> Counters {
        Counters {
            appended: self.appended - before.appended,
            client: self.client - before.client,
            flushed: self.flushed - before.flushed,
            compaction_read: self.compaction_read - before.compaction_read,
            compaction_written: self.compaction_written - before.compaction_written,
            moved: self.moved - before.moved,
        }
    }
}

/// Waits for the due time of an operation at `rate` operations per second.
async fn pace(from: Instant, operation: u64, rate: u64) {
    if rate > 0 && operation.is_multiple_of(BATCH) {
        let due =
            from + Duration::from_nanos((u128::from(operation) * 1_000_000_000 / u128::from(rate)) as u64);
        match now() < due {
            true => runtime::sleep_until(due).await,
            false => runtime::yield_now().await,
        }
    }
}

/// Runs the writes of phase 2 and counts deletes in `deletes`.
async fn write(job: Job, store: Store, live: Rc<Live>, deletes: Rc<Cell<u64>>) -> Result<()> {
    let (mut random, mut values) = (Random::new(job.seed + 1), Values::new(&job, 2));
    let mut bytes = vec![b'0'; job.key_size];
    let from = now();
    for operation in 0..job.operations.unwrap_or(job.num) {
        pace(from, operation, job.rate).await;
        let draw = random.below(100);
        if draw < job.deletes {
            key(live.remove(&mut random), &mut bytes);
            store.delete(&bytes).await?;
            deletes.set(deletes.get() + 1);
            continue;
        }
        let number = if draw < 2 * job.deletes { live.insert() } else { live.any(&mut random) };
        key(number, &mut bytes);
        store.put(&bytes, values.next()).await?;
    }
    Ok(())
}

/// Reads existing keys at a rate, until a time or until `stop`. Returns the latencies.
async fn read(
    job: Job,
    store: Store,
    live: Rc<Live>,
    until: Option<Instant>,
    stop: Rc<Cell<bool>>,
    rate: u64,
) -> Result<Latencies> {
    let mut random = Random::new(job.seed + 3);
    let mut bytes = vec![b'0'; job.key_size];
    let mut latencies = Latencies::new();
    let from = now();
    for operation in 0.. {
        pace(from, operation, rate).await;
        let begun = now();
        if stop.get() || until.is_some_and(|until| begun >= until) {
            break;
        }
        key(live.any(&mut random), &mut bytes);
        store.get(&bytes).await?;
        latencies.record((now() - begun).as_nanos() as u64);
        if rate == 0 && operation % job.turn == 0 {
            runtime::yield_now().await;
        }
    }
    Ok(latencies)
}

/// Samples the size of the tables, the tombstones and the deletes until `stop`.
async fn sample(
    store: Store,
    from: Instant,
    deletes: Rc<Cell<u64>>,
    stop: Rc<Cell<bool>>,
) -> Result<Vec<Value>> {
    let mut samples = Vec::new();
    while !stop.get() {
        let status = store.status().await?;
        samples.push(json!({
            "seconds": from.elapsed().as_secs_f64(),
            "table_bytes": of(&status, "table_bytes"),
            "tombstones": of(&status, "tombstones"),
            "free_zones": of(&status, "free_zones"),
            "deletes": deletes.get(),
        }));
        runtime::sleep(SAMPLE).await;
    }
    Ok(samples)
}

/// Ages in seconds of the oldest tombstone of each table, with the table's number of tombstones, in ascending
/// order.
async fn ages(store: &Store) -> Result<Vec<(f64, u64)>> {
    let present = kv::now();
    let tables = store.tables().await?;
    let mut ages: Vec<(f64, u64)> = tables
        .iter()
        .filter(|table| table.tombstones > 0)
        .map(|table| {
            (
                present.saturating_sub(table.oldest_tombstone.unwrap_or(present)) as f64 / 1000.0,
                table.tombstones,
            )
        })
        .collect();
    ages.sort_by(|a, b| a.0.total_cmp(&b.0));
    Ok(ages)
}

/// Runs the workload and prints the measurements.
pub async fn run(job: &Job, store: &Store, medium: &Medium) -> Result<()> {
    let live = Rc::new(Live { numbers: RefCell::default(), next: Cell::new(0) });
    let mut values = Values::new(job, 1);
    let mut bytes = vec![b'0'; job.key_size];
    for inserted in 0..job.num {
        key(live.insert(), &mut bytes);
        store.put(&bytes, values.next()).await?;
        if inserted % job.turn == 0 {
            runtime::yield_now().await;
        }
    }
    store.flush_buffers().await?;
    store.wait_for_compactions().await?;

    let before = Counters::read(store, medium).await?;
    let (stop, deletes) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(0)));
    let (from, cpu) = (now(), runtime::process_cpu_time());
    let reading =
        runtime::spawn(read(job.clone(), store.clone(), live.clone(), None, stop.clone(), job.read_rate));
    let sampling = runtime::spawn(sample(store.clone(), from, deletes.clone(), stop.clone()));
    let written = write(job.clone(), store.clone(), live.clone(), deletes.clone()).await;
    stop.set(true);
    written?;
    let seconds = from.elapsed().as_secs_f64();
    let beside = reading.await?;
    let over_time = sampling.await?;
    let counters = Counters::read(store, medium).await?.since(before);
    let ages = ages(store).await?;
    let levels = store.status().await?.get("levels").cloned();

    let duration = job.duration.unwrap_or(Duration::from_secs(2));
    let begun = now();
    let alone =
        read(job.clone(), store.clone(), live.clone(), Some(begun + duration), Rc::new(Cell::new(false)), 0)
            .await?;
    let alone_seconds = begun.elapsed().as_secs_f64();
    // Waits until the last deletes are due.
    let missing = persistence(job).saturating_sub(begun.elapsed());
    if job.settings.delete_persistence.is_some() {
        runtime::sleep(missing + Duration::from_millis(50)).await;
    }
    let status = store.status().await?;
    let left = self::ages(store).await?;
    let overdue: u64 = left
        .iter()
        .filter(|(age, _)| *age > persistence(job).as_secs_f64())
        .map(|(_, tombstones)| tombstones)
        .sum();
    let factor = counters.appended as f64 / counters.client as f64;
    let (shown, shown_seconds) = if job.phase == 2 { (&beside, seconds) } else { (&alone, alone_seconds) };
    let fio = json!({
        "jobname": format!("deletion {} {}", job.settings.compaction, job.settings.placement),
        "error": 0,
        "usr_cpu": 100.0 * (runtime::process_cpu_time() - cpu).as_secs_f64() / from.elapsed().as_secs_f64(),
        "sys_cpu": 0.0,
        "job_runtime": shown_seconds * 1000.0,
        "read": {
            "total_ios": shown.count(),
            "io_bytes": shown.count() * (job.key_size + job.value_size) as u64,
            "runtime": shown_seconds * 1000.0,
            "iops": shown.count() as f64 / shown_seconds,
            "bw_bytes": (shown.count() * (job.key_size + job.value_size) as u64) as f64 / shown_seconds,
            "lat_ns": latencies(shown),
        },
        "write_amplification": {"data": factor, "all": factor},
    });
    let deletion = json!({
        "compaction": job.settings.compaction,
        "placement": job.settings.placement,
        "deletes_percent": job.deletes,
        "threshold_percent": job.threshold,
        "persistence_seconds": persistence(job).as_secs_f64(),
        "planned_seconds": planned(job).as_secs_f64(),
        "seconds": seconds,
        "deletes": deletes.get(),
        "client_bytes": counters.client,
        "appended_bytes": counters.appended,
        "flushed_bytes": counters.flushed,
        "compaction_read_bytes": counters.compaction_read,
        "compaction_written_bytes": counters.compaction_written,
        "moved_bytes": counters.moved,
        "write_amplification": factor,
        "over_time": over_time,
        "ages": ages,
        "levels": levels,
        "tombstones_at_end": left.iter().map(|(_, tombstones)| tombstones).sum::<u64>(),
        "overdue_tombstones": overdue,
        "promise": status.get("delete_persistence"),
        "reads_beside_writes": latencies(&beside),
        "reads_alone": latencies(&alone),
    });
    println!("{}", json!({"jobs": [fio], "deletion": deletion, "store": status}));
    Ok(())
}
