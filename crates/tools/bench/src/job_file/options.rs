//! fio's options of jobs, and their effects. Job files and plans share this table, so that an option means
//! the same in both.

use super::number::{self, Units};
use crate::job::{Amount, BlockSizes, Distribution, Job, PerDirection, ReadWrite, Verify};
use stack::did_you_mean;
use std::collections::BTreeSet;

/// Sets an option. The error is the expected value.
type Apply = fn(&mut Job, &str, Units) -> Result<(), String>;

/// An option: its name, its aliases, whether its value may be omitted (a boolean that is then true), and its
/// effect.
pub struct JobOption {
    /// fio's name.
    pub name: &'static str,
    /// fio's aliases.
    pub aliases: &'static [&'static str],
    /// Whether the value may be omitted.
    pub bare: bool,
    apply: Apply,
}

const fn option(name: &'static str, aliases: &'static [&'static str], apply: Apply) -> JobOption {
    JobOption { name, aliases, bare: false, apply }
}

const fn switch(name: &'static str, aliases: &'static [&'static str], apply: Apply) -> JobOption {
    JobOption { name, aliases, bare: true, apply }
}

/// All supported options, in the order of fio's manual.
pub const OPTIONS: &[JobOption] = &[
    option("description", &[], |job, text, _| {
        job.description = Some(text.into());
        Ok(())
    }),
    option("filename", &[], filename),
    option("rw", &["readwrite"], read_write),
    option("bs", &["blocksize"], |job, text, units| {
        block_sizes(job, text, |text| number::bytes(text, units).map(BlockSizes::fixed))
    }),
    option("bsrange", &["blocksize_range"], |job, text, units| {
        block_sizes(job, text, |text| {
            let (min, max) =
                text.split_once(['-', ':']).ok_or(format!("{text}: expected a range, such as 4k-64k"))?;
            Ok(BlockSizes { min: number::bytes(min, units)?, max: number::bytes(max, units)? })
        })
    }),
    option("ioengine", &[], |job, text, _| {
        job.ioengine = Some(text.into());
        Ok(())
    }),
    option("iodepth", &[], |job, text, _| within(text, 1, 65_536).map(|depth| job.iodepth = depth)),
    option("numjobs", &[], |job, text, _| within(text, 1, 4096).map(|clones| job.numjobs = clones)),
    option("runtime", &["timeout"], |job, text, _| {
        let time = number::time(text)?;
        job.runtime = (!time.is_zero()).then_some(time);
        Ok(())
    }),
    switch("time_based", &[], |job, text, _| boolean(text).map(|value| job.time_based = value)),
    option("ramp_time", &[], |job, text, _| number::time(text).map(|time| job.ramp_time = time)),
    option("offset", &["fileoffset"], |job, text, units| amount(text, units).map(|value| job.offset = value)),
    option("size", &[], |job, text, units| {
        let value = amount(text, units)?;
        job.size = (value != Amount::Bytes(0)).then_some(value);
        Ok(())
    }),
    option("io_size", &["io_limit"], |job, text, units| {
        let value = amount(text, units)?;
        job.io_size = (value != Amount::Bytes(0)).then_some(value);
        Ok(())
    }),
    option("rwmixread", &[], |job, text, _| within(text, 0, 100).map(|share| job.rwmixread = share)),
    option("rwmixwrite", &[], |job, text, _| within(text, 0, 100).map(|share| job.rwmixread = 100 - share)),
    option("random_distribution", &[], distribution),
    switch("norandommap", &[], |job, text, _| boolean(text).map(|value| job.norandommap = value)),
    option("randseed", &[], |job, text, _| number::count(text).map(|seed| job.randseed = Some(seed))),
    switch("randrepeat", &[], |job, text, _| boolean(text).map(|value| job.randrepeat = value)),
    option("rate_iops", &[], rate),
    option("thinktime", &[], |job, text, _| {
        // A number without a unit is in microseconds, as in fio.
        let is_number = text.bytes().all(|letter| letter.is_ascii_digit());
        let time = number::time(&if is_number { format!("{text}us") } else { text.to_owned() });
        time.map(|time| job.thinktime = time)
            .map_err(|_| format!("{text}: expected a time, such as 500 (microseconds), 500us, 20ms, 10s"))
    }),
    option("thinktime_blocks", &[], |job, text, _| {
        let blocks = number::count(text)?;
        job.thinktime_blocks = blocks;
        if blocks > 0 { Ok(()) } else { Err(format!("{text}: expected at least 1")) }
    }),
    switch("zero_buffers", &[], |job, text, _| boolean(text).map(|value| job.zero_buffers = value)),
    option("buffer_pattern", &[], |job, text, _| pattern(text).map(|bytes| job.buffer_pattern = Some(bytes))),
    option("fsync", &[], |job, text, _| within(text, 0, u32::MAX).map(|every| job.fsync = every)),
    option("fdatasync", &[], |job, text, _| within(text, 0, u32::MAX).map(|every| job.fdatasync = every)),
    option("sync", &[], |job, text, _| {
        job.sync = match text {
            "0" | "none" => false,
            "1" | "sync" | "dsync" => true,
            _ => return Err(format!("{text}: expected none, sync or dsync")),
        };
        Ok(())
    }),
    option("verify", &[], verify),
    switch("do_verify", &[], |job, text, _| {
        with_verify(job, |it| boolean(text).map(|value| it.after_writes = value))
    }),
    switch("verify_only", &[], |job, text, _| {
        with_verify(job, |it| boolean(text).map(|value| it.only = value))
    }),
    switch("verify_fatal", &[], |job, text, _| {
        with_verify(job, |it| boolean(text).map(|value| it.fatal = value))
    }),
    option("write_iolog", &[], |job, text, _| {
        job.write_iolog = Some(text.replace("\\:", ":"));
        if text.is_empty() { Err("expected the name of a file".into()) } else { Ok(()) }
    }),
    option("read_iolog", &[], read_iolog),
    switch("replay_no_stall", &[], |job, text, _| boolean(text).map(|value| job.replay.no_stall = value)),
    option("replay_time_scale", &[], |job, text, _| {
        within(text, 1, u32::MAX).map(|percent| job.replay.time_scale = percent)
    }),
    option("replay_redirect", &[], |job, text, _| {
        job.replay.redirect = (!text.is_empty()).then(|| text.replace("\\:", ":"));
        Ok(())
    }),
    option("replay_align", &[], |job, text, units| {
        let bytes = number::bytes(text, units)?;
        job.replay.align = bytes;
        match bytes {
            0 => Ok(()),
            bytes if bytes.is_power_of_two() => Ok(()),
            _ => Err(format!("{text}: expected a power of two, such as 512 or 4k")),
        }
    }),
    option("replay_scale", &[], |job, text, _| number::count(text).map(|factor| job.replay.scale = factor)),
    switch("direct", &[], |job, text, _| boolean(text).map(|value| job.direct = value)),
    switch("buffered", &[], |job, text, _| boolean(text).map(|value| job.direct = !value)),
    switch("group_reporting", &[], |job, text, _| boolean(text).map(|value| job.group_reporting = value)),
];

/// Returns the option of this name, or the text of a refusal.
pub fn find(name: &str) -> Result<&'static JobOption, String> {
    if let Some(option) = OPTIONS.iter().find(|option| option.name == name || option.aliases.contains(&name))
    {
        return Ok(option);
    }
    if let Some((_, reason)) = REFUSED.iter().find(|(refused, _)| *refused == name) {
        return Err(format!("option \"{name}\": {reason}"));
    }
    if KNOWN_TO_FIO.split_whitespace().any(|known| known == name) {
        return Err(format!(
            "option \"{name}\" is fio's, and not supported here: leave it out, or run this with fio"
        ));
    }
    let known = OPTIONS.iter().flat_map(|option| option.aliases.iter().copied().chain([option.name]));
    Err(format!("option \"{name}\" is not known{}", did_you_mean(name, known.chain(["stonewall"]))))
}

impl JobOption {
    /// Sets the option.
    pub fn apply(&self, job: &mut Job, value: &str, units: Units) -> Result<(), String> {
        (self.apply)(job, value, units).map_err(|error| format!("{}={error}", self.name))
    }
}

/// Checks combinations of options. Each problem has its option.
pub fn check(job: &Job, said: &BTreeSet<&'static str>) -> Vec<(&'static str, String)> {
    let mut problems = Vec::new();
    let mut refuse = |is_wrong: bool, option, message: &str| {
        if is_wrong {
            problems.push((option, message.to_owned()));
        }
    };
    let has_verify = job.verify.is_some();
    refuse(
        job.time_based && job.runtime.is_none(),
        "time_based",
        "time_based without runtime would never end: add runtime=30s",
    );
    refuse(
        job.thinktime.is_zero() && said.contains("thinktime_blocks"),
        "thinktime_blocks",
        "thinktime_blocks without thinktime: add thinktime=1s",
    );
    refuse(
        has_verify && job.rw.trims(),
        "verify",
        "verify with discards: discarded blocks have nothing to check",
    );
    if job.is_replay() {
        for option in DRAWN_BY.iter().filter(|option| said.contains(**option)) {
            refuse(
                true,
                option,
                &format!("{option} with read_iolog: the log has the requests; leave {option} out"),
            );
        }
    }
    for option in said.iter().filter(|option| option.starts_with("replay_") && !job.is_replay()) {
        refuse(
            true,
            option,
            &format!("{option} without read_iolog: name the log to replay, read_iolog=FILE"),
        );
    }
    refuse(
        job.write_iolog.is_some() && job.is_replay(),
        "write_iolog",
        "write_iolog with read_iolog: the new log would be the old one; leave one of them out",
    );
    refuse(
        job.write_iolog.is_some() && job.numjobs > 1,
        "write_iolog",
        "write_iolog with numjobs above 1: a log is of one clone; write one section for each",
    );
    for option in ["do_verify", "verify_only", "verify_fatal"] {
        let without = said.contains(option) && !said.contains("verify");
        refuse(
            without,
            option,
            &format!("{option} without verify: add verify=crc32c, or leave {option} out"),
        );
    }
    problems
}

/// Options of drawn requests, which a replay doesn't support.
const DRAWN_BY: &[&str] = &[
    "rw",
    "bs",
    "bsrange",
    "time_based",
    "offset",
    "size",
    "io_size",
    "rwmixread",
    "rwmixwrite",
    "random_distribution",
    "norandommap",
    "rate_iops",
    "thinktime",
    "thinktime_blocks",
    "fsync",
    "fdatasync",
    "verify",
];

/// Parses one log for each clone, with a colon between them.
fn read_iolog(job: &mut Job, text: &str, _: Units) -> Result<(), String> {
    if text == "-" {
        return Err("-: a log is read twice, so it must be a file".into());
    }
    // NUL, which no name contains, temporarily replaces an escaped colon.
    let names = text.replace("\\:", "\0");
    let names: Vec<String> = names.split(':').map(|name| name.replace('\0', ":")).collect();
    if names.iter().any(String::is_empty) {
        return Err(format!("{text}: expected a log, or several with a colon between them"));
    }
    job.read_iolog = names;
    Ok(())
}

fn boolean(text: &str) -> Result<bool, String> {
    match text {
        "1" => Ok(true),
        "0" => Ok(false),
        _ => Err(format!("{text}: expected 0 or 1")),
    }
}

fn within(text: &str, min: u32, max: u32) -> Result<u32, String> {
    let value = number::count(text)?;
    u32::try_from(value)
        .ok()
        .filter(|value| (min..=max).contains(value))
        .ok_or_else(|| format!("{text}: expected {min} to {max}"))
}

fn amount(text: &str, units: Units) -> Result<Amount, String> {
    match text.strip_suffix('%') {
        Some(percent) => {
            within(percent, 0, 100).map(Amount::Percent).map_err(|error| format!("{error} percent"))
        }
        None => number::bytes(text, units).map(Amount::Bytes),
    }
}

fn filename(job: &mut Job, text: &str, _: Units) -> Result<(), String> {
    if text.replace("\\:", "").contains(':') {
        return Err(format!(
            "{text}: several files are not supported: one job for each, or write a colon of a name as \\:"
        ));
    }
    job.filename = Some(text.replace("\\:", ":"));
    Ok(())
}

fn read_write(job: &mut Job, text: &str, _: Units) -> Result<(), String> {
    match ReadWrite::NAMES.iter().find(|(name, _)| *name == text) {
        Some((_, value)) => job.rw = *value,
        None => {
            let names = ReadWrite::NAMES.iter().map(|(name, _)| *name);
            let list = names.clone().collect::<Vec<_>>().join(", ");
            return Err(format!("{text}: expected one of {list}{}", did_you_mean(text, names)));
        }
    }
    Ok(())
}

/// Parses fio's comma form: a single value applies to all directions; of two, the second applies to writes
/// and discards; an empty one keeps the previous value.
fn comma<T>(
    text: &str,
    into: &mut PerDirection<T>,
    mut parse: impl FnMut(&str) -> Result<T, String>,
) -> Result<(), String>
where
    T: Copy,
{
    let parts: Vec<&str> = text.split(',').map(str::trim).collect();
    let (read, write, trim) = match parts[..] {
        [all] => (all, all, all),
        [read, rest] => (read, rest, rest),
        [read, write, trim] => (read, write, trim),
        _ => return Err(format!("{text}: expected at most three values, for reads, writes and discards")),
    };
    let mut set = |part: &str, into: &mut T| {
        if !part.is_empty() || parts.len() == 1 {
            *into = parse(part)?;
        }
        Ok(())
    };
    set(read, &mut into.read)
        .and_then(|()| set(write, &mut into.write))
        .and_then(|()| set(trim, &mut into.trim))
}

/// Largest request, in bytes: buffers must fit into memory.
const MAX_REQUEST: u64 = 256 << 20;

fn block_sizes(
    job: &mut Job,
    text: &str,
    parse: impl Fn(&str) -> Result<BlockSizes, String>,
) -> Result<(), String> {
    comma(text, &mut job.block_size, |text| {
        let sizes = parse(text)?;
        if sizes.min == 0 || sizes.max < sizes.min {
            return Err(format!("{text}: expected at least one byte, and the smaller size first"));
        }
        if sizes.max > MAX_REQUEST {
            return Err(format!("{text}: expected at most {MAX_REQUEST} bytes"));
        }
        Ok(sizes)
    })
}

fn rate(job: &mut Job, text: &str, _: Units) -> Result<(), String> {
    comma(text, &mut job.rate_iops, |text| {
        let rate = number::count(text)?;
        Ok((rate > 0).then_some(rate))
    })
}

fn distribution(job: &mut Job, text: &str, _: Units) -> Result<(), String> {
    let expected =
        || format!("{text}: expected random, or zipf:THETA with THETA above 0 and not 1, such as zipf:1.2");
    job.random_distribution = match text.split_once(':') {
        None if text == "random" || text == "uniform" => Distribution::Uniform,
        None if text == "zipf" => Distribution::Zipf { theta: 1.1 },
        Some(("zipf", theta)) => {
            let theta: f64 = theta.parse().map_err(|_| expected())?;
            if !(theta > 0.0 && theta < 100.0) || theta == 1.0 {
                return Err(expected());
            }
            Distribution::Zipf { theta }
        }
        _ => return Err(expected()),
    };
    Ok(())
}

/// Longest pattern that fio accepts, in bytes.
const MAX_PATTERN: usize = 512;

/// Parses fio's pattern: hexadecimal digits, byte by byte in order, and texts in quotes, one after the other.
fn pattern(text: &str) -> Result<Vec<u8>, String> {
    let expected = || {
        format!(
            "{text}: expected hexadecimal digits or a text in double quotes, such as 0xdeadface or \"abcd\""
        )
    };
    let mut bytes = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        if let Some(quoted) = rest.strip_prefix('"') {
            let (inside, tail) = quoted.split_once('"').ok_or_else(expected)?;
            bytes.extend_from_slice(inside.as_bytes());
            rest = tail;
            continue;
        }
        let digits = rest.strip_prefix("0x").or_else(|| rest.strip_prefix("0X")).ok_or_else(expected)?;
        let end = digits.find(|letter: char| !letter.is_ascii_hexdigit()).unwrap_or(digits.len());
        let (digits, tail) = digits.split_at(end);
        // An odd number of digits gets a leading zero.
        let digits = if end % 2 == 1 { format!("0{digits}") } else { digits.to_owned() };
        let pairs = (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16));
        bytes.extend(pairs.collect::<Result<Vec<u8>, _>>().map_err(|_| expected())?);
        rest = tail;
    }
    match bytes.len() {
        0 => Err(expected()),
        1..=MAX_PATTERN => Ok(bytes),
        length => Err(format!("{text}: {length} bytes; expected at most {MAX_PATTERN}")),
    }
}

fn verify(job: &mut Job, text: &str, _: Units) -> Result<(), String> {
    match text {
        "0" => job.verify = None,
        "crc32c" | "crc32c-intel" | "meta" | "pattern" => {
            job.verify = Some(job.verify_settings);
        }
        _ => {
            return Err(format!(
                "{text}: expected crc32c (or crc32c-intel, meta, pattern, which are the same here: offset, \
                 sequence, seed and checksum in every block)"
            ));
        }
    }
    Ok(())
}

fn with_verify(job: &mut Job, set: impl FnOnce(&mut Verify) -> Result<(), String>) -> Result<(), String> {
    set(&mut job.verify_settings)?;
    // Before `verify`, these options only prepare it; a verification that is switched off remains off.
    job.verify = job.verify.map(|_| job.verify_settings);
    Ok(())
}

/// Options with a refusal text of their own.
const REFUSED: &[(&str, &str)] = &[
    ("name", "a job's name stands in brackets above its options: [name]"),
    ("include", "one file at a time: put the other file's options here"),
    ("directory", "not supported: give the whole path with filename="),
    ("nrfiles", "not supported: one file, by filename="),
    ("bssplit", "not supported: use bs= or bsrange="),
    ("thinktime_spin", "not supported: a waiting clone sleeps"),
    ("thinktime_iotime", "not supported: use thinktime_blocks="),
    ("rate", "not supported: give it in operations per second, rate_iops="),
    ("verify_pattern", "the contents of checked blocks are made here: use verify=crc32c without a pattern"),
    ("offset_increment", "not supported: write one section for each, with offset="),
    ("loops", "not supported: use io_size=, or time_based with runtime="),
    ("end_fsync", "not supported: use fsync=N"),
];

/// Names of fio's options, which distinguish a refusal from a misspelling.
const KNOWN_TO_FIO: &str = "allow_file_create allow_mounted_write allrandrepeat atomic ba blockalign \
    block_error_percentiles bs_unaligned blocksize_unaligned buffer_compress_chunk \
    buffer_compress_percentage bwavgtime cgroup cgroup_nodelete cgroup_weight clat_percentiles \
    clocksource cmdprio_percentage continue_on_error cpumask cpus_allowed cpus_allowed_policy create_fsync \
    create_on_open create_only create_serialize dedupe_global dedupe_mode dedupe_percentage \
    dedupe_working_set_percentage disable_bw_measurement disable_clat disable_lat disable_slat disk_util \
    error_dump exec_postrun exec_prerun exit_what exitall exitall_on_error experimental_verify fadvise_hint \
    fallocate file_append file_service_type filename_format filesize fill_device fixedbufs flow flow_id \
    flow_sleep fsync_on_close gid gtod_cpu gtod_reduce hipri hugepage-size ignore_error ignore_zone_limits \
    invalidate io_submit_mode iodepth_batch iodepth_batch_complete iodepth_batch_complete_max \
    iodepth_batch_complete_min iodepth_batch_submit iodepth_low iopsavgtime ioscheduler job_max_open_zones \
    kb_base lat_percentiles latency_percentile latency_run latency_target latency_window lockfile lockmem \
    log_avg_msec log_compression log_hist_coarseness log_hist_msec log_max_value log_offset log_prio \
    log_unix_epoch max_latency max_open_zones mem iomem new_group nice number_ios numa_cpu_nodes \
    numa_mem_policy offset_align opendir openfiles overwrite per_job_logs percentage_random percentile_list \
    pre_read prio prioclass profile random_generator rate_cycle rate_ignore_thinktime rate_iops_min rate_min \
    rate_process read_beyond_wp read_iolog_chunked refill_buffers registerfiles replay_skip rw_sequencer scramble_buffers \
    serialize_overlap significant_figures slat_percentiles softrandommap sqthread_poll startdelay stats \
    steadystate steadystate_duration steadystate_ramp_time sync_file_range \
    thinktime_blocks_type thread trim_backlog trim_backlog_batch \
    trim_percentage trim_verify_zero uid unified_rw_reporting unique_filename unit_base unlink \
    unlink_each_loop uri userspace_reap verify_async verify_backlog verify_backlog_batch verify_dump \
    verify_interval verify_offset verify_state_load verify_state_save wait_for wait_for_previous write_barrier \
    write_bw_log write_hint write_hist_log write_iops_log write_lat_log \
    zone_reset_frequency zone_reset_threshold zonecapacity zonemode zonerange zonesize zoneskip";
