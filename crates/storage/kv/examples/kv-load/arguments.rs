//! Command-line arguments, named as those of `db_bench` where it has them.

use block::{Error, Result};
use kv::{Acknowledge, Compression, DeletePersistence, Settings};
use std::time::Duration;

/// Parsed arguments: benchmarks, medium and settings of the store.
#[derive(Debug, Clone)]
pub struct Job {
    pub benchmarks: Vec<String>,
    pub file: Option<String>,
    /// Path of an emulated drive, or `memory`.
    pub zns: Option<String>,
    pub size: u64,
    pub zone_size: u64,
    pub direct: bool,
    /// Whether the emulated drive simulates latencies.
    pub timed: bool,
    pub use_existing_db: bool,
    pub num: u64,
    pub key_size: usize,
    pub value_size: usize,
    pub compression_ratio: f64,
    pub threads: u64,
    pub reads: Option<u64>,
    pub writes: Option<u64>,
    /// Number of writes of all clients together.
    pub operations: Option<u64>,
    pub duration: Option<Duration>,
    /// Limit of the writing client of `readwhilewriting`, in bytes per second; 0 is unlimited.
    pub write_rate: u64,
    pub seek_nexts: usize,
    pub shards: usize,
    pub turn: u64,
    pub poll: bool,
    pub seed: u64,
    /// Percentage of the writes of `deletion` that delete.
    pub deletes: u64,
    /// Percentage of phase 2 within which deletes must become persistent.
    pub threshold: u64,
    /// Writes and reads per second of `deletion`; 0 is unlimited.
    pub rate: u64,
    pub read_rate: u64,
    /// Phase of `deletion` whose reads are printed.
    pub phase: u64,
    pub settings: Settings,
}

impl Default for Job {
    fn default() -> Self {
        let settings = Settings {
            acknowledge: Acknowledge::Written,
            buffer_bytes: 64 << 20,
            table_bytes: 64 << 20,
            level_bytes: 256 << 20,
            cache_bytes: 8 << 20,
            ..Settings::default()
        };
        Job {
            benchmarks: Vec::new(),
            file: None,
            zns: None,
            size: 4 << 30,
            zone_size: 64 << 20,
            direct: true,
            timed: false,
            use_existing_db: false,
            num: 1_000_000,
            key_size: 16,
            value_size: 100,
            compression_ratio: 0.5,
            threads: 1,
            reads: None,
            writes: None,
            operations: None,
            duration: None,
            write_rate: 0,
            seek_nexts: 0,
            shards: 1,
            turn: 1,
            poll: false,
            seed: 1,
            deletes: 10,
            threshold: 16,
            rate: 20_000,
            read_rate: 2_000,
            phase: 3,
            settings,
        }
    }
}

impl Job {
    /// Parses the arguments.
    pub fn parse(arguments: impl Iterator<Item = String>) -> Result<Job> {
        let mut job = Job::default();
        for argument in arguments {
            let both = argument.strip_prefix("--").and_then(|rest| rest.split_once('='));
            let (key, value) = both.ok_or_else(|| unknown(&argument))?;
            job.set(&argument, key, value)?;
        }
        if job.shards == 0 {
            let processors = std::thread::available_parallelism().map_or(1, |processors| processors.get());
            job.shards = processors.min(job.threads as usize);
        }
        if job.benchmarks == ["deletion"] && job.settings.compaction != Settings::default().compaction {
            job.settings.delete_persistence =
                Some(DeletePersistence::Time(crate::deletion::persistence(&job)));
        }
        job.writes = job.operations.map(|operations| operations / job.threads).or(job.writes);
        job.check()?;
        Ok(job)
    }

    fn set(&mut self, argument: &str, key: &str, value: &str) -> Result<()> {
        let number = || value.parse::<u64>().map_err(|_| expected(argument, "a number"));
        let positive =
            || number().and_then(|it| if it > 0 { Ok(it) } else { Err(expected(argument, "at least 1")) });
        let seconds = || {
            let time = value.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
            time.ok_or_else(|| expected(argument, "seconds"))
        };
        let flag = || number().map(|it| it > 0);
        let settings = &mut self.settings;
        match key {
            "benchmarks" => self.benchmarks = value.split(',').map(str::to_owned).collect(),
            "file" => self.file = Some(value.to_owned()),
            "zns" => self.zns = Some(value.to_owned()),
            "size" => self.size = positive()?,
            "zone_size" => self.zone_size = positive()?,
            "direct" => self.direct = flag()?,
            "timed" => self.timed = flag()?,
            "use_existing_db" => self.use_existing_db = flag()?,
            "num" => self.num = positive()?,
            "key_size" => self.key_size = positive()? as usize,
            "value_size" => self.value_size = number()? as usize,
            "compression_ratio" => {
                let share = value.parse().ok().filter(|share| (0.0..=1.0).contains(share));
                self.compression_ratio = share.ok_or_else(|| expected(argument, "a share from 0 to 1"))?;
            }
            "threads" => self.threads = positive()?,
            "reads" => self.reads = Some(number()?),
            "writes" => self.writes = Some(number()?),
            "operations" => self.operations = Some(number()?),
            "duration" => self.duration = Some(seconds()?).filter(|time| !time.is_zero()),
            "benchmark_write_rate_limit" => self.write_rate = number()?,
            "seek_nexts" => self.seek_nexts = number()? as usize,
            "shards" => self.shards = number()? as usize,
            "turn" => self.turn = positive()?,
            "poll" => self.poll = flag()?,
            "seed" => self.seed = number()?,
            "deletes" => self.deletes = number()?,
            "threshold" => self.threshold = number()?,
            "rate" => self.rate = number()?,
            "read_rate" => self.read_rate = number()?,
            "phase" => self.phase = number()?,
            "sync" => {
                settings.acknowledge = if flag()? { Acknowledge::Flushed } else { settings.acknowledge }
            }
            "acknowledge" => {
                settings.acknowledge = match value {
                    "buffered" => Acknowledge::Buffered,
                    "written" => Acknowledge::Written,
                    "flushed" => Acknowledge::Flushed,
                    _ => return Err(expected(argument, "buffered, written or flushed")),
                }
            }
            "compaction" => settings.compaction = value.to_owned(),
            "placement" => settings.placement = value.to_owned(),
            "delete_persistence" => {
                let time = Some(seconds()?).filter(|time| !time.is_zero());
                settings.delete_persistence = time.map(DeletePersistence::Time)
            }
            "compaction_rate" => settings.compaction_rate = positive()?,
            "cache_size" => settings.cache_bytes = number()?,
            "write_buffer_size" => settings.buffer_bytes = positive()?,
            "target_file_size_base" => settings.table_bytes = positive()?,
            "max_bytes_for_level_base" => settings.level_bytes = positive()?,
            "max_bytes_for_level_multiplier" => settings.multiplier = positive()?,
            "level0_file_num_compaction_trigger" => settings.level0_tables = positive()? as usize,
            "block_size" => settings.table.block_bytes = positive()? as usize,
            "bloom_bits" => settings.table.filter_bits = number()? as u32,
            "compression_type" => {
                settings.table.compression = match value {
                    "lz4" => Compression::Lz4,
                    "none" => Compression::None,
                    _ => return Err(expected(argument, "lz4 or none")),
                }
            }
            _ => return Err(unknown(argument)),
        }
        Ok(())
    }

    fn check(&self) -> Result<()> {
        if self.benchmarks.is_empty() || self.file.is_some() == self.zns.is_some() {
            return Err(Error::invalid("expected --benchmarks, and either --file=PATH or --zns=memory|PATH"));
        }
        let fills = |name: &String| name.starts_with("fill");
        if self.benchmarks.iter().skip(1).any(fills)
            || self.use_existing_db && self.benchmarks.iter().any(fills)
        {
            let message =
                "--benchmarks: a fill needs a new store; expected it first, without --use_existing_db";
            return Err(Error::invalid(message));
        }
        if self.benchmarks.iter().any(|name| name == "deletion")
            && (self.benchmarks.len() > 1 || self.deletes > 50)
        {
            return Err(Error::invalid(
                "--benchmarks=deletion: expected it alone, with --deletes of at most 50",
            ));
        }
        if self.key_size < 8 {
            return Err(Error::invalid(format!("--key_size={}: expected at least 8", self.key_size)));
        }
        Ok(())
    }
}

fn unknown(argument: &str) -> Error {
    Error::invalid(format!("{argument}: unknown; see the head of the program"))
}

fn expected(argument: &str, what: &str) -> Error {
    Error::invalid(format!("{argument}: expected {what}"))
}
