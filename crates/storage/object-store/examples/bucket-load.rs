//! Load generator on a bucket by the client alone, for performance plans: what a stack in a bucket can reach at
//! most. Prints JSON in the format of fio.
//!
//! ```text
//! bucket-load --endpoint=URL [--bucket=vol] [--rw=write] [--bs=BYTES] [--iodepth=N] [--objects=N]
//!             [--runtime=SECONDS] [--ramp_time=SECONDS]
//! ```
//!
//! `write` creates objects of `--bs` bytes under new keys, with the condition that they are absent. `read` reads
//! ranges of `--bs` bytes, one after the other, of `--objects` objects of 8 MiB that it creates before.
//! `--iodepth` requests are in flight. The credentials are those of the environment. All objects are deleted
//! at the end.

use bench::peer::output::Output;
use block::{Buffer, Data, Error, Result};
use object_store::{Addressing, Condition, Config, CredentialSource, Limits, Store};
use runtime::histogram::Histogram;
use runtime::{Instant, Random, now};
use std::cell::{Cell, RefCell};
use std::process::ExitCode;
use std::time::Duration;

/// Bytes of an object that is read.
const OBJECT: usize = 8 << 20;

#[derive(Debug, Clone)]
struct Job {
    endpoint: String,
    bucket: String,
    writes: bool,
    bytes: usize,
    depth: usize,
    objects: u64,
    runtime: Duration,
    ramp_time: Duration,
}

impl Job {
    fn parse(arguments: impl Iterator<Item = String>) -> Result<Job> {
        let mut job = Job {
            endpoint: String::new(),
            bucket: "vol".into(),
            writes: true,
            bytes: OBJECT,
            depth: 16,
            objects: 32,
            runtime: Duration::from_secs(5),
            ramp_time: Duration::ZERO,
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
                "endpoint" => job.endpoint = value.to_owned(),
                "bucket" => job.bucket = value.to_owned(),
                "rw" => job.writes = value == "write",
                "bs" => job.bytes = number()? as usize,
                "iodepth" => job.depth = number()? as usize,
                "objects" => job.objects = number()?,
                "runtime" => job.runtime = seconds()?,
                "ramp_time" => job.ramp_time = seconds()?,
                _ => return Err(unknown()),
            }
        }
        match job.endpoint.is_empty() || job.bytes == 0 || job.depth == 0 || OBJECT % job.bytes != 0 {
            true => {
                Err(Error::invalid("expected --endpoint=URL, --iodepth above 0, and --bs that divides 8 MiB"))
            }
            false => Ok(job),
        }
    }

    fn store(&self) -> Result<Store> {
        Store::new(Config {
            endpoint: self.endpoint.clone(),
            bucket: self.bucket.clone(),
            region: "us-east-1".into(),
            addressing: Addressing::Path,
            credentials: CredentialSource::Environment,
            tls: None,
            limits: Limits { connections: self.depth, ..Limits::default() },
        })
    }
}

fn pattern(bytes: usize) -> Data {
    let mut buffer = Buffer::zeroed(bytes);
    Random::new(1).fill(buffer.filled_mut());
    buffer.freeze()
}

/// Requests of all workers.
struct Load<'j> {
    job: &'j Job,
    store: &'j Store,
    data: Data,
    /// Number of the next request.
    next: Cell<u64>,
    from: Instant,
    end: Instant,
    latencies: RefCell<Histogram<7>>,
    last: Cell<Instant>,
}

impl Load<'_> {
    async fn request(&self, number: u64) -> Result<()> {
        if self.job.writes {
            let key = format!("load/{number:016x}");
            return self.store.put(&key, self.data.clone().into(), &Condition::Absent).await.map(drop);
        }
        let offset = number * self.job.bytes as u64;
        let object = offset / OBJECT as u64 % self.job.objects;
        let key = format!("load/{object:016x}");
        self.store.get_range(&key, offset % OBJECT as u64, self.job.bytes).await.map(drop)
    }

    async fn work(&self) -> Result<()> {
        while now() < self.end {
            let begun = now();
            self.request(self.next.replace(self.next.get() + 1)).await?;
            let time = now();
            if time >= self.from && time < self.end {
                self.latencies.borrow_mut().record((time - begun).as_nanos() as u64);
                self.last.set(time);
            }
        }
        Ok(())
    }
}

async fn delete(store: &Store, count: u64) -> Result<()> {
    let keys: Vec<String> = (0..count).map(|number| format!("load/{number:016x}")).collect();
    store.delete_batch(&keys).await
}

async fn run(job: Job) -> Result<()> {
    let (started, store) = (now(), job.store()?);
    let size = if job.writes { job.bytes } else { OBJECT };
    let data = pattern(size);
    if !job.writes {
        let puts = (0..job.objects).map(|number| {
            let (store, data) = (&store, data.clone());
            async move { store.put(&format!("load/{number:016x}"), data.into(), &Condition::Always).await }
        });
        for put in runtime::join_limited(job.depth, puts).await {
            put?;
        }
    }
    let from = now() + job.ramp_time;
    let load = Load {
        job: &job,
        store: &store,
        data,
        next: Cell::new(0),
        from,
        end: from + job.runtime,
        latencies: RefCell::default(),
        last: Cell::new(from),
    };
    for worker in runtime::join_all((0..job.depth).map(|_| load.work())).await {
        worker?;
    }
    let (wall, cpu) = (started.elapsed(), runtime::process_cpu_time());
    delete(&store, if job.writes { load.next.get() } else { job.objects }).await?;
    let latencies = load.latencies.into_inner();
    let output = Output {
        name: "bucket-load",
        writes: job.writes,
        latencies: &latencies,
        bytes: latencies.count() * job.bytes as u64,
        time: load.last.get() - from,
        cpu,
        wall,
        failed: false,
    };
    println!("{}", serde_json::json!({ "jobs": [output.job()] }));
    Ok(())
}

fn main() -> ExitCode {
    let outcome = Job::parse(std::env::args().skip(1))
        .and_then(|job| runtime::run(runtime::Config::default(), move || run(job))?);
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bucket-load: {error}");
            ExitCode::FAILURE
        }
    }
}
