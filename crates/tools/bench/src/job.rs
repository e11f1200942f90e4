//! One workload in fio's terms, with a value for every option.
//!
//! A [`Job`] describes the work, neither the device nor the program: job files and plans create jobs, the
//! engine and the peers run them. Defaults and meanings are fio's ([fio's manual, "Job file parameters"]);
//! the parsers refuse unsupported options. [`Job::region`] fits a job to a device; [`Job::options`] returns
//! it as fio's options, for results and for peers.
//!
//! [fio's manual, "Job file parameters"]: https://fio.readthedocs.io/en/latest/fio_doc.html

use crate::iolog::{Log, Settings, Survey, survey, writer};
use block::{Error, Result};
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Type of the requests of a job, as fio's `rw`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ReadWrite {
    /// `read`: sequential reads.
    #[default]
    Read,
    /// `write`: sequential writes.
    Write,
    /// `trim`: sequential discards.
    Trim,
    /// `randread`: random reads.
    RandRead,
    /// `randwrite`: random writes.
    RandWrite,
    /// `randtrim`: random discards.
    RandTrim,
    /// `rw`, `readwrite`: sequential reads and writes, `rwmixread` percent of them reads.
    Mixed,
    /// `randrw`: random reads and writes, `rwmixread` percent of them reads.
    RandMixed,
}

impl ReadWrite {
    /// All values, by fio's name.
    pub const NAMES: &'static [(&'static str, ReadWrite)] = &[
        ("read", ReadWrite::Read),
        ("write", ReadWrite::Write),
        ("trim", ReadWrite::Trim),
        ("randread", ReadWrite::RandRead),
        ("randwrite", ReadWrite::RandWrite),
        ("randtrim", ReadWrite::RandTrim),
        ("rw", ReadWrite::Mixed),
        ("readwrite", ReadWrite::Mixed),
        ("randrw", ReadWrite::RandMixed),
    ];

    /// fio's name.
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, value)| *value == self).map_or("", |(name, _)| *name)
    }

    /// Whether addresses are random.
    pub fn is_random(self) -> bool {
        matches!(self, Self::RandRead | Self::RandWrite | Self::RandTrim | Self::RandMixed)
    }

    /// Whether there are reads.
    pub fn reads(self) -> bool {
        matches!(self, Self::Read | Self::RandRead | Self::Mixed | Self::RandMixed)
    }

    /// Whether there are writes.
    pub fn writes(self) -> bool {
        matches!(self, Self::Write | Self::RandWrite | Self::Mixed | Self::RandMixed)
    }

    /// Whether there are discards.
    pub fn trims(self) -> bool {
        matches!(self, ReadWrite::Trim | ReadWrite::RandTrim)
    }

    /// Whether it is a mix of reads and writes.
    pub fn is_mixed(self) -> bool {
        self.reads() && self.writes()
    }
}

impl fmt::Display for ReadWrite {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// A value for each direction, as fio's comma form `reads,writes,trims`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PerDirection<T> {
    /// Value for reads.
    pub read: T,
    /// Value for writes.
    pub write: T,
    /// Value for discards.
    pub trim: T,
}

impl<T: Copy> PerDirection<T> {
    /// The same value for all three.
    pub const fn all(value: T) -> Self {
        PerDirection { read: value, write: value, trim: value }
    }
}

/// Size of a request: `min` to `max` bytes in steps of `min`, each equally likely (`bsrange`); `bs` makes the
/// two equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockSizes {
    /// Smallest request and the step, in bytes.
    pub min: u64,
    /// Largest request, in bytes.
    pub max: u64,
}

impl BlockSizes {
    /// Requests of `bytes` bytes.
    pub const fn fixed(bytes: u64) -> Self {
        BlockSizes { min: bytes, max: bytes }
    }

    /// Whether all requests are equally large.
    pub fn is_fixed(self) -> bool {
        self.min == self.max
    }
}

/// Distribution of random addresses, as fio's `random_distribution`.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Distribution {
    /// `random` (or `uniform`): every block equally likely. Unless `norandommap`, each block once before any
    /// is repeated.
    #[default]
    Uniform,
    /// `zipf:theta`: the block of rank k with probability proportional to k^-theta; the rank of each block is
    /// drawn from the seed. There is no map: blocks are repeated.
    Zipf {
        /// Exponent: above 0 and not 1.
        theta: f64,
    },
}

/// Amount of bytes, or a share of the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Amount {
    /// In bytes.
    Bytes(u64),
    /// In percent of the whole device, 0 to 100.
    Percent(u32),
}

impl Amount {
    /// Number of bytes on a device of `capacity` bytes.
    pub fn of(self, capacity: u64) -> u64 {
        match self {
            Amount::Bytes(bytes) => bytes,
            Amount::Percent(percent) => (u128::from(capacity) * u128::from(percent) / 100) as u64,
        }
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Amount::Bytes(bytes) => bytes.fmt(formatter),
            Amount::Percent(percent) => write!(formatter, "{percent}%"),
        }
    }
}

/// Verification, as fio's `verify` and its companions.
///
/// There is one form, for all of fio's values (`crc32c`, `crc32c-intel`, `meta`, `pattern`): each written
/// block has its own byte offset, a sequence number, the job's seed and a checksum, so that a torn, damaged,
/// stale or misplaced block is detected. Other checksums are refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verify {
    /// Whether the written blocks are read back and checked once the writes have ended (`do_verify`, true by
    /// default). Reads of a job are always checked.
    pub after_writes: bool,
    /// Whether nothing is written: the same addresses and contents are computed, and only checked
    /// (`verify_only`).
    pub only: bool,
    /// Whether the first bad block ends the job (`verify_fatal`); otherwise all are counted.
    pub fatal: bool,
}

impl Default for Verify {
    fn default() -> Self {
        Verify { after_writes: true, only: false, fatal: false }
    }
}

/// One workload.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    /// Name of the job's section in a job file or a plan.
    pub name: String,
    /// Purpose (`description`); has no effect.
    pub description: Option<String>,
    /// Type of the job's requests.
    pub rw: ReadWrite,
    /// Size of the requests, per direction (`bs`, `bsrange`).
    pub block_size: PerDirection<BlockSizes>,
    /// Number of requests in flight, per clone.
    pub iodepth: u32,
    /// Number of clones that run at the same time, each with the whole job.
    pub numjobs: u32,
    /// Limit of the job's time, without `ramp_time` (`runtime`).
    pub runtime: Option<Duration>,
    /// Whether the job starts over until `runtime` has passed if it completes sooner. The parsers refuse it
    /// without `runtime`.
    pub time_based: bool,
    /// Time before the measurement begins.
    pub ramp_time: Duration,
    /// Start of the job's region (`offset`).
    pub offset: Amount,
    /// Length of the job's region; `None`: to the end of the device.
    pub size: Option<Amount>,
    /// Bytes that are transferred in total, for any size of the region; `None`: the length of the region.
    pub io_size: Option<Amount>,
    /// Percentage of reads in a mix, 0 to 100.
    pub rwmixread: u32,
    /// Distribution of random addresses.
    pub random_distribution: Distribution,
    /// Whether random addresses may be repeated before all were used once.
    pub norandommap: bool,
    /// Seed of the random numbers. `None` with `randrepeat`: a fixed seed.
    pub randseed: Option<u64>,
    /// Whether every run without `randseed` draws the same numbers (true by default).
    pub randrepeat: bool,
    /// Limit of operations per second that each clone starts, per direction.
    pub rate_iops: PerDirection<Option<u64>>,
    /// Pause of each clone after every `thinktime_blocks` operations, once those in flight have ended.
    pub thinktime: Duration,
    /// Number of operations between pauses, at least 1.
    pub thinktime_blocks: u64,
    /// Whether writes are zeros, rather than incompressible bytes (`zero_buffers`).
    pub zero_buffers: bool,
    /// Pattern that every write repeats from its first byte (`buffer_pattern`); has precedence over
    /// `zero_buffers`. The stamps of `verify` have precedence over both.
    pub buffer_pattern: Option<Vec<u8>>,
    /// Number of writes between flushes; 0: none. The engine's devices have one flush, so `fsync` and
    /// `fdatasync` are the same for them; peers get the given one.
    pub fsync: u32,
    /// As `fsync`, by `fdatasync`.
    pub fdatasync: u32,
    /// Whether every write is FUA: durable before it is acknowledged (`sync=1`, `sync=dsync`).
    pub sync: bool,
    /// Verification; `None` without.
    pub verify: Option<Verify>,
    /// Settings of a verification: options beside `verify`, which may precede it.
    pub(crate) verify_settings: Verify,
    /// Logs whose requests the job makes instead of drawing them (`read_iolog`): clone c uses log number c,
    /// modulo the number of logs. Options of drawn requests then have no effect. Empty: none.
    pub read_iolog: Vec<String>,
    /// Settings of the replay (`replay_…`).
    pub replay: Settings,
    /// Log of the job's requests that is written (`write_iolog`).
    pub write_iolog: Option<String>,
    /// Logs that [`Job::prepare`] has surveyed.
    pub(crate) logs: Arc<[Log]>,
    /// Target of the written log, set by [`Job::prepare`].
    pub(crate) log_to: Option<writer::Target>,
    /// Whether the page cache is bypassed (`direct`; `buffered` is its opposite).
    pub direct: bool,
    /// fio's engine as given. This program's engine replaces it; peers use it.
    pub ioengine: Option<String>,
    /// File or device as given.
    pub filename: Option<String>,
    /// Whether the clones, and all jobs of the group, are reported as one.
    pub group_reporting: bool,
    /// Number of the job's group: jobs of one group run at the same time, groups one after the other. A
    /// section with `stonewall` begins a new group.
    pub group: usize,
}

/// Seed of repeatable jobs.
const REPEATED_SEED: u64 = 0x5117_5704_e000_0001;

impl Job {
    /// Job of this name with fio's defaults.
    pub fn new(name: impl Into<String>) -> Self {
        Job {
            name: name.into(),
            description: None,
            rw: ReadWrite::default(),
            block_size: PerDirection::all(BlockSizes::fixed(4096)),
            iodepth: 1,
            numjobs: 1,
            runtime: None,
            time_based: false,
            ramp_time: Duration::ZERO,
            offset: Amount::Bytes(0),
            size: None,
            io_size: None,
            rwmixread: 50,
            random_distribution: Distribution::default(),
            norandommap: false,
            randseed: None,
            randrepeat: true,
            rate_iops: PerDirection::all(None),
            thinktime: Duration::ZERO,
            thinktime_blocks: 1,
            zero_buffers: false,
            buffer_pattern: None,
            fsync: 0,
            fdatasync: 0,
            sync: false,
            verify: None,
            verify_settings: Verify::default(),
            read_iolog: Vec::new(),
            replay: Settings::default(),
            write_iolog: None,
            logs: Arc::default(),
            log_to: None,
            direct: false,
            ioengine: None,
            filename: None,
            group_reporting: false,
            group: 0,
        }
    }

    /// Seed of clone number `clone`, or `None` if every run draws other numbers. Different clones have
    /// different seeds.
    pub fn seed(&self, clone: u32) -> Option<u64> {
        let first = self.randseed.or(self.randrepeat.then_some(REPEATED_SEED))?;
        Some(first.wrapping_add(u64::from(clone).wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }

    /// Whether the job replays logs.
    pub fn is_replay(&self) -> bool {
        !self.read_iolog.is_empty()
    }

    /// Surveys the job's logs, which blocks, and resolves the target of the written one; relative names are
    /// resolved against `directory`. Required before a job with logs runs. A second call doesn't survey
    /// again.
    ///
    /// # Errors
    /// All problems of the logs as text, and an existing file at the target that isn't a log.
    pub fn prepare(&mut self, directory: &Path) -> Result<(), String> {
        if self.is_replay() && self.logs.is_empty() {
            self.logs = survey::logs(&self.read_iolog, directory, &self.replay)?.into();
        }
        if let Some(name) = &self.write_iolog {
            let path = directory.join(name);
            writer::check(&path)?;
            let device = self.filename.as_ref().map(|device| directory.join(device));
            self.log_to = Some(writer::Target { path, device });
        }
        Ok(())
    }

    fn surveys(&self) -> impl Iterator<Item = &Survey> {
        self.logs.iter().map(|log| &log.survey)
    }

    /// Whether the surveyed logs of a replay satisfy `has`; true before the survey.
    fn logs_have(&self, has: impl Fn(&PerDirection<u64>) -> bool) -> bool {
        self.logs.is_empty() || self.surveys().any(|survey| has(&survey.operations))
    }

    /// Whether there are reads.
    pub fn reads(&self) -> bool {
        if self.is_replay() { self.logs_have(|it| it.read > 0) } else { self.rw.reads() }
    }

    /// Whether there are writes.
    pub fn writes(&self) -> bool {
        if self.is_replay() { self.logs_have(|it| it.write > 0) } else { self.rw.writes() }
    }

    /// Whether there are discards.
    pub fn trims(&self) -> bool {
        if self.is_replay() { self.logs_have(|it| it.trim > 0) } else { self.rw.trims() }
    }

    /// Largest end of the requests of the logs, in bytes of the device; `None` without surveyed logs.
    pub fn end_of_logs(&self) -> Option<u64> {
        self.surveys().map(Survey::end).max()
    }

    /// Log of clone number `clone`.
    pub(crate) fn log_of(&self, clone: u32) -> Option<&Log> {
        self.logs.get(clone as usize % self.logs.len().max(1))
    }

    /// Limit of the job's duration, with its ramp; `None` if it isn't known.
    pub fn expected_time(&self) -> Option<Duration> {
        let by_logs = || {
            let longest = self.surveys().map(|survey| survey.duration).max()?;
            let scaled = longest.as_secs_f64() * 100.0 / f64::from(self.replay.time_scale.max(1));
            (!self.replay.no_stall).then(|| Duration::try_from_secs_f64(scaled).unwrap_or(Duration::MAX))
        };
        match (self.runtime, by_logs()) {
            (Some(runtime), Some(logs)) => Some((runtime + self.ramp_time).min(logs)),
            (Some(runtime), None) => Some(runtime + self.ramp_time),
            (None, logs) => logs,
        }
    }

    /// Bytes that all clones of the job transfer in this region of the device.
    pub(crate) fn transfer(&self, region: &Region) -> u64 {
        let of_clone = |clone| self.log_of(clone).map_or(region.transfer, |log| log.survey.transfer());
        (0..self.numjobs).map(of_clone).fold(0, u64::saturating_add)
    }

    /// Number of writes between flushes; `None`: no flushes.
    pub fn flush_every(&self) -> Option<u32> {
        [self.fsync, self.fdatasync].into_iter().filter(|every| *every > 0).min()
    }

    /// Block sizes of the job's directions.
    pub fn used_block_sizes(&self) -> impl Iterator<Item = BlockSizes> {
        let PerDirection { read, write, trim } = self.block_size;
        let used = [(self.rw.reads(), read), (self.rw.writes(), write), (self.rw.trims(), trim)];
        used.into_iter().filter(|(is_used, _)| *is_used).map(|(_, sizes)| sizes)
    }

    /// Smallest request, in bytes: the unit of the job's addresses.
    pub fn smallest_request(&self) -> u64 {
        self.used_block_sizes().map(|sizes| sizes.min).min().expect("every job has a direction")
    }

    /// Largest request, in bytes; for a replay, the largest read or write.
    pub fn largest_request(&self) -> u64 {
        if self.is_replay() {
            return self
                .surveys()
                .map(|survey| survey.longest.read.max(survey.longest.write))
                .max()
                .unwrap_or(0);
        }
        self.used_block_sizes().map(|sizes| sizes.max).max().expect("every job has a direction")
    }

    /// Fits the job to a device of `capacity` bytes in blocks of `block_size` bytes.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the region reaches beyond the device, if the smallest request doesn't fit into
    /// it, or if offset or request sizes are not whole blocks. The length is rounded down to whole requests.
    pub fn region(&self, capacity: u64, block_size: u64) -> Result<Region> {
        let name = &self.name;
        let block_size = block_size.max(1);
        if self.is_replay() {
            for log in &*self.logs {
                let refuse = |message| Error::invalid(format!("job {name}: {message}"));
                log.survey.check(&log.name, capacity, block_size).map_err(refuse)?;
            }
            let transfer = self.surveys().map(Survey::transfer).max().unwrap_or(0);
            return Ok(Region { offset: 0, length: capacity, transfer });
        }
        let mut smallest = 0;
        for sizes in self.used_block_sizes() {
            smallest = sizes.min.max(smallest);
            if sizes.min == 0 || !sizes.min.is_multiple_of(block_size) {
                return Err(Error::invalid(format!(
                    "job {name}: bs={}: expected a multiple of the device's block size, {block_size}",
                    sizes.min
                )));
            }
        }
        // A share of the device is rounded to whole blocks; a number must be whole blocks itself.
        let offset = match self.offset {
            Amount::Bytes(bytes) if !bytes.is_multiple_of(block_size) => {
                return Err(Error::invalid(format!(
                    "job {name}: offset={bytes}: expected a multiple of the device's block size, {block_size}"
                )));
            }
            amount => amount.of(capacity) / block_size * block_size,
        };
        let room = capacity.checked_sub(offset).filter(|room| *room > 0).ok_or_else(|| {
            Error::invalid(format!("job {name}: offset={offset}: the device has only {capacity} bytes"))
        })?;
        let length = match self.size {
            None => room,
            Some(percent @ Amount::Percent(_)) => percent.of(capacity).min(room),
            Some(Amount::Bytes(bytes)) if bytes <= room => bytes,
            Some(Amount::Bytes(bytes)) => {
                return Err(Error::invalid(format!(
                    "job {name}: size={bytes} at offset {offset}: the device has only {room} bytes there; make \
                     it larger or the job smaller"
                )));
            }
        };
        let step = self.smallest_request();
        let length = length / step * step;
        if length < smallest {
            return Err(Error::invalid(format!(
                "job {name}: its region of {length} bytes is smaller than a request of {smallest}"
            )));
        }
        let transfer = self.io_size.map_or(length, |amount| amount.of(length));
        Ok(Region { offset, length, transfer })
    }

    /// Returns the job as fio's options, except those with fio's default value: `("rw", "randread"), ("bs",
    /// "4096")…`. `name`, `filename`, `ioengine`, `direct`, `description` and the groups are not included:
    /// they describe the device, not the work.
    ///
    /// A replay has its logs instead of `rw` and `bs`.
    pub fn options(&self) -> Vec<(&'static str, String)> {
        let mut options = Vec::new();
        let mut push = |is_said: bool, key, value: String| {
            if is_said {
                options.push((key, value));
            }
        };
        let draws = !self.is_replay();
        push(draws, "rw", self.rw.to_string());
        let PerDirection { read, write, trim } = self.block_size;
        let same = read == write && write == trim;
        let sizes = if same { vec![read] } else { vec![read, write, trim] };
        let fixed = sizes.iter().all(|sizes| sizes.is_fixed());
        let words = sizes.iter().map(|sizes| match fixed {
            true => sizes.min.to_string(),
            false => format!("{}-{}", sizes.min, sizes.max),
        });
        push(draws, if fixed { "bs" } else { "bsrange" }, words.collect::<Vec<_>>().join(","));
        push(true, "iodepth", self.iodepth.to_string());
        push(self.numjobs != 1, "numjobs", self.numjobs.to_string());
        push(self.offset != Amount::Bytes(0), "offset", self.offset.to_string());
        push(self.size.is_some(), "size", self.size.map_or_else(String::new, |size| size.to_string()));
        push(
            self.io_size.is_some(),
            "io_size",
            self.io_size.map_or_else(String::new, |size| size.to_string()),
        );
        push(self.runtime.is_some(), "runtime", in_time(self.runtime.unwrap_or_default()));
        push(self.time_based, "time_based", "1".into());
        push(!self.ramp_time.is_zero(), "ramp_time", in_time(self.ramp_time));
        push(self.rw.is_mixed() && self.rwmixread != 50, "rwmixread", self.rwmixread.to_string());
        if let Distribution::Zipf { theta } = self.random_distribution {
            push(self.rw.is_random(), "random_distribution", format!("zipf:{theta}"));
        }
        push(self.norandommap, "norandommap", "1".into());
        push(self.randseed.is_some(), "randseed", self.randseed.unwrap_or_default().to_string());
        push(!self.randrepeat, "randrepeat", "0".into());
        let PerDirection { read, write, trim } = self.rate_iops;
        let has_rate = read.or(write).or(trim).is_some();
        let rates = [read, write, trim].map(|rate| rate.map_or_else(String::new, |rate| rate.to_string()));
        let same = read == write && write == trim;
        push(has_rate, "rate_iops", if same { rates[0].clone() } else { rates.join(",") });
        push(!self.thinktime.is_zero(), "thinktime", in_time(self.thinktime));
        push(self.thinktime_blocks != 1, "thinktime_blocks", self.thinktime_blocks.to_string());
        push(self.zero_buffers, "zero_buffers", "1".into());
        let hexadecimal = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let pattern = self.buffer_pattern.as_deref();
        push(pattern.is_some(), "buffer_pattern", format!("0x{}", hexadecimal(pattern.unwrap_or_default())));
        push(self.fsync > 0, "fsync", self.fsync.to_string());
        push(self.fdatasync > 0, "fdatasync", self.fdatasync.to_string());
        push(self.sync, "sync", "dsync".into());
        if let Some(verify) = self.verify {
            push(true, "verify", "crc32c".into());
            push(!verify.after_writes, "do_verify", "0".into());
            push(verify.only, "verify_only", "1".into());
            push(verify.fatal, "verify_fatal", "1".into());
        }
        push(!draws, "read_iolog", {
            let names = self.read_iolog.iter().map(|name| name.replace(':', "\\:"));
            names.collect::<Vec<_>>().join(":")
        });
        let Settings { no_stall, time_scale, align, scale, redirect } = &self.replay;
        push(*no_stall, "replay_no_stall", "1".into());
        push(*time_scale != 100, "replay_time_scale", time_scale.to_string());
        push(*align > 0, "replay_align", align.to_string());
        push(*scale > 0, "replay_scale", scale.to_string());
        let escaped = |name: &Option<String>| name.as_deref().unwrap_or_default().replace(':', "\\:");
        push(redirect.is_some(), "replay_redirect", escaped(redirect));
        push(self.write_iolog.is_some(), "write_iolog", escaped(&self.write_iolog));
        options
    }

    /// Guarantee of an acknowledged write, for the figure's caption; `None` without writes.
    pub fn acknowledged(&self) -> Option<String> {
        if !self.writes() {
            return None;
        }
        if self.is_replay() && !self.sync {
            return Some("in the device's cache; flushed where the log says so".into());
        }
        Some(match (self.sync, self.flush_every()) {
            (true, _) => "durable: every write is FUA".into(),
            (false, Some(1)) => "in the device's cache; flushed after every write".into(),
            (false, Some(every)) => format!("in the device's cache; flushed every {every} writes"),
            (false, None) => "in the device's cache; never flushed".into(),
        })
    }
}

/// Formats a time for fio: whole seconds as `30s`, otherwise milli- or microseconds.
fn in_time(time: Duration) -> String {
    match time.as_micros() {
        micros if micros.is_multiple_of(1_000_000) => format!("{}s", micros / 1_000_000),
        micros if micros.is_multiple_of(1000) => format!("{}ms", micros / 1000),
        micros => format!("{micros}us"),
    }
}

/// Region of a job on a device, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Region {
    /// Start.
    pub offset: u64,
    /// Length.
    pub length: u64,
    /// Number of bytes that are transferred before the job ends (or, if time-based, starts over).
    pub transfer: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn job(offset: Amount, size: Option<Amount>, io_size: Option<Amount>) -> Job {
        Job { offset, size, io_size, ..Job::new("x") }
    }

    /// Regions of fio 3.33 on a file of 64 MiB with the same options.
    #[test]
    fn regions_as_fio_cuts_them() {
        use Amount::{Bytes, Percent};
        for (offset, size, io_size, expected) in [
            (Bytes(16 * MIB), Some(Bytes(32 * MIB)), None, (16, 32, 32)),
            (Bytes(16 * MIB), None, None, (16, 48, 48)),
            (Bytes(16 * MIB), Some(Percent(50)), None, (16, 32, 32)),
            (Percent(50), Some(Percent(100)), None, (32, 32, 32)),
            (Bytes(0), Some(Bytes(16 * MIB)), Some(Bytes(40 * MIB)), (0, 16, 40)),
            (Bytes(0), Some(Bytes(32 * MIB)), Some(Percent(50)), (0, 32, 16)),
        ] {
            let region = job(offset, size, io_size).region(64 * MIB, 4096).unwrap();
            let found = (region.offset / MIB, region.length / MIB, region.transfer / MIB);
            assert_eq!(found, expected, "{offset} {size:?} {io_size:?}");
        }
    }

    #[test]
    fn regions_that_do_not_fit_are_refused() {
        let error =
            |job: &Job, capacity, block_size| job.region(capacity, block_size).unwrap_err().to_string();
        let large = job(Amount::Bytes(16 * MIB), Some(Amount::Bytes(60 * MIB)), None);
        assert!(error(&large, 64 * MIB, 4096).contains("only 50331648 bytes there"));
        assert!(error(&job(Amount::Bytes(MIB), None, None), MIB, 4096).contains("has only 1048576 bytes"));
        assert!(
            error(&job(Amount::Bytes(100), None, None), MIB, 4096)
                .contains("multiple of the device's block size")
        );
        assert!(error(&Job::new("x"), MIB, 8192).contains("bs=4096: expected a multiple"));
        assert!(error(&Job::new("x"), 2048, 512).contains("smaller than a request"));
        let odd = job(Amount::Percent(33), None, None).region(MIB + 4096, 4096).unwrap();
        assert_eq!((odd.offset % 4096, odd.length % 4096), (0, 0));
    }

    #[test]
    fn clones_draw_different_numbers_and_runs_the_same() {
        let mut job = Job::new("x");
        assert_eq!(job.seed(0), Job::new("y").seed(0));
        assert_ne!(job.seed(0), job.seed(1));
        job.randrepeat = false;
        assert_eq!(job.seed(0), None);
        job.randseed = Some(7);
        assert_eq!(job.seed(0), Some(7));
    }
}
