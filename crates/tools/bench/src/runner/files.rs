//! Jobs of a job file on its files, or on one stack.
//!
//! Each file becomes a stack with one `file` part. A missing file is created with the size that its jobs
//! need, and written once if they read, as in fio; an existing one is never truncated or extended.

use super::drive::{Fill, Target, Work};
use super::{GUESS, On, Setting, stacks, traces};
use crate::job::{Amount, Job};
use crate::results::{Measurement, RunResult, Workload};
use block::{Error, Result};
use stack::Stack;
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

/// Device of jobs.
struct JobDevice {
    /// Name as given by the user: a file, or a stack.
    name: String,
    /// Text from which [`Stack::load`] creates the stack.
    text: String,
    stack: stack::Plan,
    /// Whether the device is written before the jobs run.
    fill: bool,
}

/// Jobs and their devices.
pub(super) struct Files {
    pub name: String,
    places: Vec<JobDevice>,
    /// Jobs with the number of their device; their names are unique.
    jobs: Vec<(usize, Job)>,
    /// Whether the user's stack is formatted; `None` for files.
    pub(super) on_stack: Option<bool>,
}

/// Jobs that run at the same time.
pub(super) struct Group {
    pub name: String,
    pub expected: Duration,
    /// Numbers of the jobs.
    pub jobs: Vec<usize>,
}

impl Files {
    /// Implements [`Benchmark::of_job_file`](super::Benchmark::of_job_file).
    pub fn new(
        file: &str,
        jobs: Vec<Job>,
        on: Option<On<'_>>,
        setting: Setting<'_>,
        notes: &mut Vec<String>,
    ) -> Result<Files, String> {
        note_reports(&jobs, notes);
        let name =
            Path::new(file).file_stem().map_or_else(|| file.into(), |stem| stem.to_string_lossy().into());
        let mut jobs = jobs;
        let wrong = traces::prepare(&mut jobs, setting.directory);
        let of_job =
            |(number, problem): &(usize, String)| format!("{file}: [{}]: {problem}", jobs[*number].name);
        let mut problems: Vec<String> = wrong.iter().map(of_job).collect();
        let mut targets: Vec<String> = Vec::new();
        let mut placed: Vec<(usize, Job)> = Vec::new();
        for (number, mut job) in jobs.into_iter().enumerate() {
            if wrong.iter().any(|(wrong, _)| *wrong == number) {
                continue;
            }
            let target = match on {
                Some(on) => Ok(on.stack.to_owned()),
                None => file_of(&job, setting.directory),
            };
            let target = match target {
                Ok(target) => target,
                Err(problem) => {
                    problems.push(format!("{file}: [{}]: {problem}", job.name));
                    continue;
                }
            };
            let place = targets.iter().position(|known| *known == target).unwrap_or_else(|| {
                targets.push(target);
                targets.len() - 1
            });
            job.name = another_name(&job.name, |name| placed.iter().any(|(_, other)| other.name == name));
            placed.push((place, job));
        }
        let on_stack = on.map(|on| on.format);
        let mut places = Vec::new();
        for (number, target) in targets.into_iter().enumerate() {
            let jobs: Vec<&Job> =
                placed.iter().filter(|(place, _)| *place == number).map(|(_, job)| job).collect();
            match JobDevice::new(file, target, &jobs, on_stack, setting, notes) {
                Ok(place) => places.push(place),
                Err(problem) => problems.push(problem),
            }
        }
        match problems.is_empty() {
            true => Ok(Files { name, places, jobs: placed, on_stack }),
            false => Err(problems.join("\n\n")),
        }
    }

    /// Stacks of the jobs.
    pub fn stacks(&self) -> impl Iterator<Item = &stack::Plan> {
        self.places.iter().map(|place| &place.stack)
    }

    /// Names of the jobs.
    pub fn job_names(&self) -> impl Iterator<Item = &str> {
        self.jobs.iter().map(|(_, job)| job.name.as_str())
    }

    /// Keeps the jobs for which `is_wanted` returns true.
    pub fn retain(&mut self, is_wanted: impl Fn(&str) -> bool) {
        self.jobs.retain(|(_, job)| is_wanted(&job.name));
    }

    /// Groups that run one after the other.
    pub fn steps(&self) -> Vec<Group> {
        let numbers: BTreeSet<usize> = self.jobs.iter().map(|(_, job)| job.group).collect();
        let group = |number: usize| {
            let jobs: Vec<usize> =
                (0..self.jobs.len()).filter(|index| self.jobs[*index].1.group == number).collect();
            let members = || jobs.iter().map(|index| &self.jobs[*index].1);
            let time = |job: &Job| job.expected_time().unwrap_or(GUESS);
            let names: Vec<&str> = members().map(|job| job.name.as_str()).collect();
            let expected = members().map(time).max().unwrap_or_default();
            Group { name: names.join(" + "), expected, jobs }
        };
        numbers.into_iter().map(group).collect()
    }

    /// Work of these jobs.
    ///
    /// # Errors
    /// A file that has changed since the check of the job file.
    pub fn work(&self, jobs: &[usize], setting: Setting<'_>) -> Result<Work> {
        let mut used: Vec<usize> = Vec::new();
        let mut assigned = Vec::new();
        for index in jobs {
            let (place, job) = &self.jobs[*index];
            let mut job = job.clone();
            // Also surveys logs that an earlier group has written.
            job.prepare(setting.directory).map_err(Error::invalid)?;
            let target = used.iter().position(|known| known == place).unwrap_or_else(|| {
                used.push(*place);
                used.len() - 1
            });
            assigned.push((target, job));
        }
        let mut targets = Vec::new();
        for number in used {
            let place = &self.places[number];
            let is_first = !self.jobs[..jobs[0]].iter().any(|(earlier, _)| *earlier == number);
            let stack = match is_first {
                true => place.stack.clone(),
                // Files below the stack exist by now, so the stack is loaded again.
                false => load(&place.text, self.on_stack, setting).map_err(Error::invalid)?,
            };
            let fill = if place.fill && is_first { Fill::First } else { Fill::No };
            targets.push(Target { stack, device: None, fill, fill_at_random: false });
        }
        let clones: usize = assigned.iter().map(|(_, job)| job.numjobs as usize).sum();
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let shards = match (self.on_stack, targets.first()) {
            (Some(_), Some(target)) => target.stack.stack().shards(),
            // fio has a process for each clone.
            _ => clones.clamp(1, processors),
        };
        Ok(Work { shards, targets, rounds: vec![assigned], server: None })
    }

    /// Result of one of the jobs.
    pub fn result(&self, index: usize, measurement: Measurement) -> RunResult {
        let (place, job) = &self.jobs[index];
        let place = &self.places[*place];
        RunResult {
            name: format!("{}/{}/1", place.name, job.name),
            subject: place.name.clone(),
            stack: place.stack.stack().to_line().unwrap_or_else(|_| place.text.clone()),
            workload: Workload::new(job.name.clone(), job),
            repetition: 1,
            peer: false,
            measurement,
        }
    }
}

impl JobDevice {
    fn new(
        file: &str,
        target: String,
        jobs: &[&Job],
        on_stack: Option<bool>,
        setting: Setting<'_>,
        notes: &mut Vec<String>,
    ) -> Result<JobDevice, String> {
        let mut fill = false;
        let text = match on_stack {
            Some(_) => target.clone(),
            None => {
                let exists = setting.directory.join(&target).exists();
                let reads = jobs.iter().any(|job| job.reads() && job.verify.is_none_or(|it| !it.only));
                fill = !exists && reads;
                file_line(&target, jobs, exists).map_err(|problem| format!("{file}: {problem}"))?
            }
        };
        if fill {
            notes.push(format!(
                "{target} didn't exist: it was created and written once, so that reads find data"
            ));
        }
        let stack = load(&text, on_stack, setting)?;
        stacks::check_jobs(&stack, None, jobs.iter().copied())
            .map_err(|problem| format!("{target}: {problem}"))?;
        Ok(JobDevice { name: target, text, stack, fill })
    }
}

fn load(text: &str, on_stack: Option<bool>, setting: Setting<'_>) -> Result<stack::Plan, String> {
    let stack = match on_stack {
        Some(_) => Stack::load(text, setting.registry),
        None => Stack::from_line("filename", text, setting.registry)
            .map(|stack| stack.with_base_directory(setting.directory)),
    };
    stack.and_then(|stack| stack.check(on_stack.unwrap_or(false))).map_err(|problems| problems.to_string())
}

/// Stack of a file name, as one line.
fn file_line(path: &str, jobs: &[&Job], exists: bool) -> Result<String, String> {
    let mut keys = vec![stack::quote(path)];
    if exists {
        let writes = jobs.iter().any(|job| job.writes() || job.trims());
        keys.extend((!writes).then(|| "read_only=true".to_owned()));
    } else {
        keys.push(format!("size={}", size_of_file(path, jobs)?));
    }
    let direct = jobs.iter().filter(|job| job.direct).count();
    match direct {
        0 => keys.push("direct=off".into()),
        all if all == jobs.len() => {}
        _ => {
            return Err(format!(
                "{path}: jobs with direct=1 and with direct=0 on one file: expected one of them"
            ));
        }
    }
    let block_size = block_size(jobs);
    if block_size != DEFAULT_BLOCK_SIZE {
        keys.push(format!("block_size={block_size}"));
    }
    Ok(format!("file({})", keys.join(", ")))
}

/// File of a job.
fn file_of(job: &Job, directory: &Path) -> Result<String, String> {
    let missing = || "expected filename=PATH, or a stack for all jobs with --on STACK".to_owned();
    if !job.is_replay() || job.replay.redirect.is_some() || job.logs.is_empty() {
        return job.replay.redirect.clone().or_else(|| job.filename.clone()).ok_or_else(missing);
    }
    // As in fio, a log names the files of its requests.
    let mut named = job.logs.iter().flat_map(|log| &log.survey.files);
    let first = named.next().cloned().ok_or_else(missing)?;
    let is_another = |other: &String| directory.join(other) != directory.join(&first);
    if let Some(other) = named.find(|other| is_another(other)) {
        return Err(format!(
            "the logs name several files, {first} and {other}: name the one on which all are replayed, replay_redirect=PATH"
        ));
    }
    match &job.filename {
        Some(filename) if is_another(filename) => Err(format!(
            "filename={filename} with read_iolog: fio takes the file that the log names, {first}; to replay it on \
             {filename}: replay_redirect={filename}"
        )),
        _ => Ok(first),
    }
}

/// Size that a file needs for its jobs, in bytes.
fn size_of_file(path: &str, jobs: &[&Job]) -> Result<u64, String> {
    let bytes = |amount: Amount| match amount {
        Amount::Bytes(bytes) => Some(bytes),
        Amount::Percent(_) => None,
    };
    let end = |job: &&Job| match job.is_replay() {
        true => job.end_of_logs(),
        false => Some(bytes(job.offset)? + bytes(job.size?)?),
    };
    jobs.iter()
        .filter_map(end)
        .max()
        .ok_or_else(|| format!("{path} doesn't exist, and no job has its size: expected size=BYTES"))
}

const DEFAULT_BLOCK_SIZE: u64 = 4096;

/// Largest block size that divides all requests and offsets, from a sector to the default.
fn block_size(jobs: &[&Job]) -> u64 {
    let fits = |block: u64| {
        jobs.iter().all(|job| {
            let places = [Some(job.offset), job.size].into_iter().flatten();
            let mut numbers = places.filter_map(|amount| match amount {
                Amount::Bytes(bytes) => Some(bytes),
                Amount::Percent(_) => None,
            });
            if job.is_replay() {
                return job.logs.iter().all(|log| log.survey.is_whole(block));
            }
            numbers.all(|number| number.is_multiple_of(block))
                && job.used_block_sizes().all(|sizes| sizes.min.is_multiple_of(block))
        })
    };
    [4096, 2048, 1024].into_iter().find(|block| fits(*block)).unwrap_or(512)
}

fn another_name(name: &str, is_taken: impl Fn(&str) -> bool) -> String {
    let mut found = name.to_owned();
    let mut number = 2;
    while is_taken(&found) {
        found = format!("{name} {number}");
        number += 1;
    }
    found
}

/// Adds notes on differences from fio's reports: clones are reported as one and jobs one by one.
fn note_reports(jobs: &[Job], notes: &mut Vec<String>) {
    let merges = |job: &Job| {
        job.group_reporting
            && jobs.iter().filter(|other| other.group == job.group && other.group_reporting).count() > 1
    };
    if jobs.iter().any(merges) {
        notes.push("group_reporting: the clones of a job are reported as one, its group job by job".into());
    }
    if jobs.iter().any(|job| job.numjobs > 1 && !job.group_reporting) {
        notes.push("numjobs: the clones of a job are reported as one, as with group_reporting".into());
    }
}
