//! Load generator for vhost-user-blk servers: it replaces the virtual machine and the guest's driver.
//!
//! ```text
//! vhost-user-load --socket=PATH [--rw=randread] [--bs=BYTES] [--iodepth=N] [--size=BYTES] [--runtime=SECONDS] [--ramp_time=SECONDS]
//! ```
//!
//! One queue with `--iodepth` requests in flight, each a chain in an indirect table with aligned buffers, as
//! a Linux guest's driver writes them. The data remains in guest memory: the client copies and compares
//! nothing, so its cost per request is small and the same for every server. Prints fio's JSON, so that a plan
//! can use it as the command of a peer.

#[allow(dead_code, reason = "the tests use the rest")]
#[path = "../tests/integration/vhost/front_end.rs"]
mod front_end;

use bench::peer::output::Output;
use block::{Error, Result};
use doors::vhost_user::config::{MAX_SEGMENT_BYTES, feature};
use doors::vhost_user::request::kind;
use front_end::{FrontEnd, GUEST, Layout, Settings, Shared};
use runtime::event::{EventSignal, EventWait};
use runtime::histogram::Histogram;
use runtime::{Instant, Random};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

/// Bytes of a request's header, status and indirect table, before its data.
const HEAD_BYTES: usize = 4096;
const STATUS_AT: usize = 16;
const TABLE_AT: usize = 64;

struct Job {
    socket: String,
    is_random: bool,
    writes: bool,
    bytes: usize,
    depth: usize,
    size: Option<u64>,
    runtime: Duration,
    ramp_time: Duration,
}

/// Counters of a measurement.
#[derive(Default)]
struct Measured {
    latencies: Histogram<7>,
    failed: u64,
}

impl Job {
    /// Parses arguments of the form `--key=value`.
    fn parse(arguments: impl Iterator<Item = String>) -> Result<Job> {
        let mut job = Job {
            socket: String::new(),
            is_random: true,
            writes: false,
            bytes: 4096,
            depth: 1,
            size: None,
            runtime: Duration::from_secs(5),
            ramp_time: Duration::ZERO,
        };
        for argument in arguments {
            let unknown = || {
                Error::invalid(format!(
                    "{argument}: unknown; expected one of the options in the program's head"
                ))
            };
            let (key, value) =
                argument.strip_prefix("--").and_then(|rest| rest.split_once('=')).ok_or_else(unknown)?;
            let wrong = || Error::invalid(format!("{argument}: expected a number"));
            let number = || value.parse::<u64>().map_err(|_| wrong());
            let seconds = || {
                let parsed = value.parse::<f64>().ok();
                parsed.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).ok_or_else(wrong)
            };
            match key {
                "socket" => job.socket = value.to_owned(),
                "rw" => match value {
                    "read" | "write" | "randread" | "randwrite" => {
                        job.is_random = value.starts_with("rand");
                        job.writes = value.ends_with("write");
                    }
                    _ => {
                        let text = format!("{argument}: expected read, write, randread or randwrite");
                        return Err(Error::invalid(text));
                    }
                },
                "bs" => job.bytes = number()? as usize,
                "iodepth" => job.depth = number()? as usize,
                "size" => job.size = Some(number()?),
                "runtime" => job.runtime = seconds()?,
                "ramp_time" => job.ramp_time = seconds()?,
                _ => return Err(unknown()),
            }
        }
        let is_valid = !job.socket.is_empty()
            && (1..=128).contains(&job.depth)
            && (512..=4 << 20).contains(&job.bytes)
            && job.bytes.is_multiple_of(512);
        match is_valid {
            true => Ok(job),
            false => Err(Error::invalid(
                "expected --socket=PATH, --iodepth of 1 to 128, --bs of 512 bytes to 4 MiB",
            )),
        }
    }
}

/// The driver of queue 0: a slot for each request in flight.
struct Driver {
    shared: Arc<Shared>,
    layout: Layout,
    has_event_index: bool,
    kick: EventSignal,
    next_available: u16,
    next_used: u16,
    slot_bytes: usize,
}

impl Driver {
    /// Writes the chains; requests only change their sectors.
    fn new(shared: Arc<Shared>, job: &Job) -> Result<Driver> {
        const NEXT: u16 = 1;
        const WRITE: u16 = 2;
        const INDIRECT: u16 = 4;
        if shared.features & feature::INDIRECT_DESC == 0 {
            return Err(Error::unsupported("a server without indirect descriptors"));
        }
        let layout = shared.settings.layout(0);
        let slot_bytes = HEAD_BYTES + shared.settings.request_bytes;
        for slot in 0..job.depth {
            let at = layout.slots + slot * slot_bytes;
            let guest = GUEST + at as u64;
            let mut header = [0; 16];
            header[..4].copy_from_slice(&(if job.writes { kind::OUT } else { kind::IN }).to_le_bytes());
            shared.memory.write(at, &header);
            let pattern: Vec<u8> = (0..job.bytes).map(|index| (index / 512 + slot) as u8).collect();
            shared.memory.write(at + HEAD_BYTES, &pattern);
            let segments = job.bytes.div_ceil(MAX_SEGMENT_BYTES as usize);
            let table = at + TABLE_AT;
            shared.describe(table, 0, guest, 16, NEXT, 1);
            for segment in 0..segments {
                let offset = segment * MAX_SEGMENT_BYTES as usize;
                let length = (job.bytes - offset).min(MAX_SEGMENT_BYTES as usize) as u32;
                let flags = NEXT | if job.writes { 0 } else { WRITE };
                let address = guest + (HEAD_BYTES + offset) as u64;
                shared.describe(table, segment + 1, address, length, flags, segment as u16 + 2);
            }
            shared.describe(table, segments + 1, guest + STATUS_AT as u64, 1, WRITE, 0);
            let length = (segments as u32 + 2) * 16;
            shared.describe(layout.descriptors, slot, GUEST + table as u64, length, INDIRECT, 0);
        }
        let kick =
            shared.kicks[0].try_clone().map_err(|error| Error::from_io(&error, "copying a descriptor"))?;
        Ok(Driver {
            has_event_index: shared.features & feature::EVENT_IDX != 0,
            kick: EventSignal::new(kick)?,
            next_available: 0,
            next_used: 0,
            slot_bytes,
            layout,
            shared,
        })
    }

    fn slot(&self, slot: usize) -> usize {
        self.layout.slots + slot * self.slot_bytes
    }

    /// Writes a request into the ring; [`show`](Self::show) makes it available.
    fn add(&mut self, slot: usize, sector: u64) {
        let at = self.slot(slot);
        self.shared.memory.write(at + 8, &sector.to_le_bytes());
        self.shared.memory.u8(at + STATUS_AT).store(0xFF, Ordering::Relaxed);
        let entry = usize::from(self.next_available) % self.layout.size;
        self.shared.store(self.layout.available + 4 + 2 * entry, slot as u16);
        self.next_available = self.next_available.wrapping_add(1);
    }

    /// Makes the requests since the index `before` available, with a kick if the server wants one.
    fn show(&self, before: u16) -> Result<()> {
        self.shared.store(self.layout.available + 2, self.next_available);
        fence(Ordering::SeqCst);
        let wants_kick = match self.has_event_index {
            true => {
                let event = self.shared.load(self.layout.used + 4 + 8 * self.layout.size);
                let since = self.next_available.wrapping_sub(event).wrapping_sub(1);
                since < self.next_available.wrapping_sub(before)
            }
            false => self.shared.load(self.layout.used) & 1 == 0,
        };
        if wants_kick { self.kick.signal() } else { Ok(()) }
    }

    /// Next completed request and whether it succeeded.
    fn completed(&mut self) -> Option<(usize, bool)> {
        if self.shared.load(self.layout.used + 2) == self.next_used {
            return None;
        }
        let mut head = [0; 4];
        let entry = usize::from(self.next_used) % self.layout.size;
        self.shared.memory.read(self.layout.used + 4 + 8 * entry, &mut head);
        self.next_used = self.next_used.wrapping_add(1);
        let slot = u32::from_le_bytes(head) as usize;
        let status = self.shared.memory.u8(self.slot(slot) + STATUS_AT).load(Ordering::Acquire);
        Some((slot, status == 0))
    }

    /// Asks for a notification of the next completion. Returns whether a completion is already available.
    fn ask(&self) -> bool {
        if self.has_event_index {
            self.shared.store(self.layout.available + 4 + 2 * self.layout.size, self.next_used);
        }
        fence(Ordering::SeqCst);
        self.shared.load(self.layout.used + 2) != self.next_used
    }
}

/// Runs the job; returns the measurement after the ramp time, and its duration.
async fn measure(job: &Job, front_end: &FrontEnd) -> Result<(Measured, Duration)> {
    let shared = front_end.shared.clone();
    let capacity = (u64::from(front_end.config_u32(0)) | u64::from(front_end.config_u32(4)) << 32) * 512;
    let requests = job.size.unwrap_or(capacity).min(capacity) / job.bytes as u64;
    if requests == 0 {
        return Err(Error::invalid("the disk is smaller than a request"));
    }
    let call = shared.calls[0].try_clone().map_err(|error| Error::from_io(&error, "copying a descriptor"))?;
    let (call, mut driver) = (EventWait::new(call)?, Driver::new(shared, job)?);
    let (mut random, mut next) = (Random::new(1), 0);
    let mut sector = || {
        let request = if job.is_random { random.below(requests) } else { next % requests };
        next += 1;
        request * (job.bytes as u64 / 512)
    };
    let mut begun = vec![runtime::now(); job.depth];
    let (start, mut measured) = (runtime::now(), Measured::default());
    let (measured_from, end) = (start + job.ramp_time, start + job.ramp_time + job.runtime);
    let before = driver.next_available;
    for slot in 0..job.depth {
        driver.add(slot, sector());
    }
    driver.show(before)?;
    let mut in_flight = job.depth;
    let mut last = start;
    while in_flight > 0 {
        let before = driver.next_available;
        let now = runtime::now();
        while let Some((slot, succeeded)) = driver.completed() {
            if (measured_from..end).contains(&now) {
                measured.latencies.record(nanoseconds(begun[slot], now));
                measured.failed += u64::from(!succeeded);
                last = now;
            }
            match now < end {
                true => {
                    begun[slot] = now;
                    driver.add(slot, sector());
                }
                false => in_flight -= 1,
            }
        }
        if driver.next_available != before {
            driver.show(before)?;
        }
        if in_flight > 0 && !driver.ask() {
            call.wait().await?;
        }
    }
    Ok((measured, last - measured_from))
}

fn nanoseconds(from: Instant, to: Instant) -> u64 {
    (to - from).as_nanos() as u64
}

/// Prints fio's JSON, with the fields that plans read.
fn print(job: &Job, measured: &Measured, time: Duration) {
    let wall = job.runtime + job.ramp_time;
    let output = Output {
        name: "vhost-user-load",
        writes: job.writes,
        latencies: &measured.latencies,
        bytes: measured.latencies.count() * job.bytes as u64,
        time,
        cpu: runtime::process_cpu_time(),
        wall,
        failed: measured.failed > 0,
    };
    println!("{}", serde_json::json!({ "jobs": [output.job()] }));
}

fn main() -> std::process::ExitCode {
    let outcome = Job::parse(std::env::args().skip(1)).and_then(|job| {
        runtime::run(runtime::Config::default(), move || async move {
            let address = format!("unix:{}", job.socket).parse()?;
            let settings = Settings {
                depth: job.depth,
                request_bytes: job.bytes.next_multiple_of(4096),
                ..Settings::default()
            };
            let front_end = FrontEnd::connect(&address, settings).await?;
            let (measured, time) = measure(&job, &front_end).await?;
            print(&job, &measured, time);
            Ok(())
        })?
    });
    match outcome {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("vhost-user-load: {error}");
            std::process::ExitCode::FAILURE
        }
    }
}
