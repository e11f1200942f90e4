//! Runs a benchmark: a plan, a job file, or one stack with the default workloads.
//!
//! Problems that can be detected early are reported before any part is opened ([`Benchmark::of_plan`] and its
//! siblings refuse them). A later failure of one run or one peer becomes a note, and the others continue.
//! Each run has a runtime of its own, so that it begins with new shards, and its stack is built before it and
//! closed after it; the points of a matrix with one setup share theirs. A [`Stop`] ends the benchmark with
//! the measurements so far.
//!
//! It blocks its thread, which must not be a shard's. An [`Observer`] shows progress, the command line writes
//! results, and [`engine`](crate::engine) and [`peer`](crate::peer) measure runs.

mod amplification;
mod drive;
mod files;
mod hits;
mod stacks;
mod tables;
mod traces;

use crate::engine::Progress;
use crate::environment::Environment;
use crate::job::Job;
use crate::job_file::JobFile;
use crate::peer::{Context, Peer, Server, find_program};
use crate::plan::{Filling, Formatting, Plan, Role, Run, StackSubject, Subject};
use crate::results::{Measurement, Results, RunResult, SCHEMA, Workload};
use block::{Error, Result};
use drive::{Fill, Round, Target, Watch, Work, drive};
use runtime::sync::{StopSource, StopToken};
use stack::{Registry, Stack};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Stops a benchmark from any thread.
#[derive(Clone, Default)]
pub struct Stop {
    source: StopSource,
    /// Stop flag for peers, which wait without a runtime.
    flag: Arc<AtomicBool>,
}

impl Stop {
    /// Creates a stop that isn't raised.
    pub fn new() -> Self {
        Stop::default()
    }

    /// Stops the benchmark: the current run ends at once, and no other begins.
    pub fn stop(&self) {
        self.flag.store(true, Ordering::SeqCst);
        self.source.stop();
    }

    /// Whether the benchmark was stopped.
    pub fn is_stopped(&self) -> bool {
        self.flag.load(Ordering::SeqCst)
    }

    fn token(&self) -> StopToken {
        self.source.token()
    }
}

/// Step of a benchmark, for observers.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// Number, from 1.
    pub number: usize,
    /// Number of steps.
    pub count: usize,
    /// Subject, workload and repetition.
    pub name: String,
    /// Expected duration; estimated without a runtime.
    pub expected: Duration,
    /// Expected duration of the steps before.
    pub before: Duration,
    /// Expected duration of all steps.
    pub total: Duration,
}

/// Observer of a benchmark. Called from the threads that run it, one at a time.
pub trait Observer: Send + Sync {
    /// A step begins; `progress` changes if the engine runs it.
    fn begin(&self, step: &Step, progress: &Arc<Progress>);

    /// A step has ended, with a measurement if it has one.
    fn end(&self, step: &Step, outcome: &Result<Option<Measurement>>);
}

/// Surroundings of a benchmark.
#[derive(Clone, Copy)]
pub struct Setting<'a> {
    /// Kinds of parts that stacks may have.
    pub registry: &'a Registry,
    /// Base of relative names: the plan's folder; for a job file the working directory.
    pub directory: &'a Path,
    /// Path of this program, for plans that call it.
    pub program: &'a Path,
}

/// Stack on which a job file's jobs run instead of their files.
#[derive(Debug, Clone, Copy)]
pub struct On<'a> {
    /// Stack file or one line.
    pub stack: &'a str,
    /// Whether the stack is formatted whenever it is built, once per group of jobs: for stacks on memory.
    pub format: bool,
}

/// Outcome of a benchmark.
#[derive(Debug)]
pub struct Outcome {
    /// Measurements.
    pub results: Results,
    /// Number of runs that failed, or had failed operations.
    pub failures: usize,
}

/// Assumed duration of a run without a runtime.
const GUESS: Duration = Duration::from_secs(5);

/// Benchmark whose stacks and sizes were checked.
pub struct Benchmark<'a> {
    setting: Setting<'a>,
    what: What,
    notes: Vec<String>,
}

enum What {
    Plan(Plan),
    Files(files::Files),
}

impl<'a> Benchmark<'a> {
    /// Benchmark of a plan. Peers for which a program is missing are omitted, with a note.
    ///
    /// # Errors
    /// All problems of its stacks as text, and workloads that don't fit them.
    pub fn of_plan(mut plan: Plan, setting: Setting<'a>) -> Result<Self, String> {
        let notes = plan.leave_out_missing(&|program| find_program(program).is_some());
        let jobs = plan.workloads.iter_mut().map(|workload| &mut workload.job);
        let problems = traces::prepare(jobs, setting.directory);
        if !problems.is_empty() {
            return Err(problems.into_iter().map(|(_, problem)| problem).collect::<Vec<_>>().join("\n"));
        }
        stacks::check_plan(&plan, setting)?;
        Ok(Benchmark { setting, what: What::Plan(plan), notes })
    }

    /// Benchmark of a stack, with the default workloads: reads, and with `writes` also writes, which
    /// overwrite the stack.
    ///
    /// # Errors
    /// As [`of_plan`](Self::of_plan).
    pub fn of_stack(name: &str, argument: &str, writes: bool, setting: Setting<'a>) -> Result<Self, String> {
        // Checked by itself first, so that its problems don't refer to a plan.
        let stack = Stack::load(argument, setting.registry).and_then(|stack| stack.check(false));
        stack.map_err(|problems| problems.to_string())?;
        let plan = stacks::usual_plan(name, argument, writes)?;
        Self::of_plan(plan, setting)
    }

    /// Benchmark of a job file, on its `filename=`s or, if given, on one stack. `file` is its name.
    ///
    /// # Errors
    /// Text of the problem: the stack is invalid, a job has no file, a file doesn't exist and has no size, or
    /// a job doesn't fit.
    pub fn of_job_file(
        file: &str,
        jobs: JobFile,
        on: Option<On<'_>>,
        setting: Setting<'a>,
    ) -> Result<Self, String> {
        let mut notes = jobs.notes;
        let files = files::Files::new(file, jobs.jobs, on, setting, &mut notes)?;
        Ok(Benchmark { setting, what: What::Files(files), notes })
    }

    /// Name.
    pub fn name(&self) -> &str {
        match &self.what {
            What::Plan(plan) => &plan.name,
            What::Files(files) => &files.name,
        }
    }

    /// Stacks that a run formats, which overwrites the disks below them.
    pub fn formatted_stacks(&self) -> Vec<Stack> {
        stacks::formatted(&self.what, self.setting)
    }

    /// Keeps only the workloads (or jobs of a job file) whose names contain one of these words; all of them
    /// without words.
    ///
    /// # Errors
    /// Text with a word that no name contains.
    pub fn only(mut self, words: &[String]) -> Result<Self, String> {
        let names: Vec<String> = match &self.what {
            What::Plan(plan) => plan.workloads.iter().map(|workload| workload.name.clone()).collect(),
            What::Files(files) => files.job_names().map(str::to_owned).collect(),
        };
        if let Some(word) = words.iter().find(|word| !names.iter().any(|name| name.contains(*word))) {
            let known = names.join(", ");
            return Err(format!("{}: no workload has \"{word}\" in its name (known: {known})", self.name()));
        }
        let is_wanted = |name: &str| words.is_empty() || words.iter().any(|word| name.contains(word));
        match &mut self.what {
            What::Plan(plan) => plan.workloads.retain(|workload| is_wanted(&workload.name)),
            What::Files(files) => files.retain(is_wanted),
        }
        Ok(self)
    }

    /// Runs the benchmark.
    pub fn run(self, observer: &Arc<dyn Observer>, stop: &Stop) -> Outcome {
        let mut environment = Environment::collect();
        stacks::describe(&self.what, self.setting, &mut environment);
        let mut session = Session {
            setting: self.setting,
            observer,
            stop,
            failures: 0,
            formatted: BTreeSet::new(),
            rates: BTreeMap::new(),
            results: Results {
                schema: SCHEMA.into(),
                name: self.name().into(),
                title: None,
                started: runtime::wall_clock().as_secs(),
                interrupted: false,
                environment,
                notes: self.notes,
                tables: Vec::new(),
                runs: Vec::new(),
                comparisons: Vec::new(),
                published: Vec::new(),
                published_in: None,
            },
        };
        match &self.what {
            What::Plan(plan) => session.plan(plan),
            What::Files(files) => session.files(files),
        }
        Outcome { results: session.results, failures: session.failures }
    }
}

/// Benchmark in progress.
struct Session<'a> {
    setting: Setting<'a>,
    observer: &'a Arc<dyn Observer>,
    stop: &'a Stop,
    failures: usize,
    /// Stacks that were already formatted as their plan demands.
    formatted: BTreeSet<String>,
    /// Rate of which a workload uses a share, by workload.
    rates: BTreeMap<String, f64>,
    results: Results,
}

impl Session<'_> {
    fn plan(&mut self, plan: &Plan) {
        self.results.title.clone_from(&plan.title);
        let runs: Vec<Run<'_>> = plan.runs().into_iter().filter(|run| !is_in_vain(run)).collect();
        let tables = plan.tables.iter().map(|_| GUESS);
        let expected: Vec<Duration> =
            tables.chain(runs.iter().map(|run| expected(&run.job, run.role))).collect();
        for (index, table) in plan.tables.iter().enumerate() {
            if self.is_stopped() {
                break;
            }
            self.table(table, &step(index, format!("table {}", table.name), &expected));
        }
        let mut index = plan.tables.len();
        for batch in runs.chunk_by(|_, next| next.continues) {
            if self.is_stopped() {
                break;
            }
            let steps = batch.iter().enumerate();
            let steps = steps.map(|(number, run)| step(index + number, run.name(), &expected)).collect();
            index += batch.len();
            self.batch(plan, batch, steps);
        }
        self.results.compare(&plan.pairs);
        self.results.set_beside(&plan.published);
        self.results.published_in.clone_from(&plan.published_in);
    }

    /// Executes the runs of one subject on one setup; of a peer, a single run.
    fn batch(&mut self, plan: &Plan, batch: &[Run<'_>], mut steps: Vec<Step>) {
        let mut runs: Vec<(&Run<'_>, Job)> = Vec::new();
        for run in batch {
            match (&run.rate_share, self.rates.get(&run.workload)) {
                (None, _) => runs.push((run, run.job.clone())),
                (Some(share), Some(rate)) => runs.push((run, share.apply(&run.job, *rate))),
                // The failure to find the rate has been reported.
                (Some(_), None) => steps.retain(|step| step.name != run.name()),
            }
        }
        // Also surveys logs that an earlier run has written.
        for (run, job) in &mut runs {
            if let Err(problem) = job.prepare(self.setting.directory) {
                let step = &steps[0];
                let error = Error::invalid(problem);
                self.observer.begin(step, &Arc::default());
                self.observer.end(step, &Err(error.clone()));
                return self.fail(&format!("{}/{}", run.subject.name(), run.workload), &error);
            }
        }
        let Some((first, job)) = runs.first() else { return };
        let server = plan.server_of(first.subject);
        let outcome = match first.subject {
            Subject::Stack(stack) => {
                let watch = Watch { observer: self.observer.clone(), steps };
                let jobs = runs.iter().map(|(_, job)| job.clone()).collect();
                self.stack_run(stack, server, jobs, first.role, watch)
            }
            Subject::Peer(peer) => {
                let step = &steps[0];
                self.observer.begin(step, &Arc::default());
                let outcome = self.peer_run(peer, server, job);
                let measured = outcome.as_ref().map(|(_, measured)| Some(measured.clone()));
                self.observer.end(step, &measured.map_err(Error::clone));
                outcome.map(|(text, measured)| (text, vec![Ok(vec![measured])]))
            }
        };
        match outcome {
            Err(error) => self.fail(&format!("{}/{}", first.subject.name(), first.workload), &error),
            Ok((stack, rounds)) => {
                for ((run, job), round) in runs.iter().zip(rounds) {
                    self.account(plan, run, job, (&stack, round));
                }
            }
        }
    }

    /// Records the result of a run.
    fn account(&mut self, plan: &Plan, run: &Run<'_>, job: &Job, (stack, round): (&str, Round)) {
        let measured = match round {
            Ok(measured) => measured.into_iter().next().filter(has_measured),
            Err(error) => {
                self.fail(&format!("{}/{}", run.subject.name(), run.workload), &error);
                None
            }
        };
        match (measured, run.role) {
            (Some(measured), Role::Calibration) => {
                self.rates.insert(run.workload.clone(), measured.iops);
            }
            (Some(measurement), Role::Measured) => self.keep(RunResult {
                name: run.name(),
                subject: run.subject.name().into(),
                stack: stack.into(),
                workload: match plan.workloads.iter().find(|it| it.name == run.workload) {
                    Some(point) => Workload::of_point(point, job),
                    None => Workload::new(run.workload.clone(), job),
                },
                repetition: run.repetition,
                peer: run.subject.is_peer(),
                measurement,
            }),
            _ => {}
        }
    }

    fn stack_run(
        &mut self,
        subject: &StackSubject,
        named: Option<&Server>,
        jobs: Vec<Job>,
        role: Role,
        watch: Watch,
    ) -> Result<(String, Vec<Round>)> {
        let steps = watch.steps.clone();
        let prepared = self.prepared(subject, named, jobs, role);
        let (text, work) = prepared.inspect_err(|error| {
            self.observer.begin(&steps[0], &Arc::default());
            self.observer.end(&steps[0], &Err(error.clone()));
        })?;
        let rounds = drive(work, watch, self.stop.token())?;
        self.formatted.insert(subject.name.clone());
        Ok((text, rounds))
    }

    /// Text of a stack, and its preparation.
    fn prepared(
        &self,
        subject: &StackSubject,
        named: Option<&Server>,
        jobs: Vec<Job>,
        role: Role,
    ) -> Result<(String, Work)> {
        let context = self.context();
        let job = jobs.first().cloned().unwrap_or_else(|| Job::new("nothing"));
        let server = named.map(|server| server.start(&job, &context)).transpose()?.map(Arc::new);
        let format = match subject.format {
            Formatting::No => false,
            Formatting::Once => !self.formatted.contains(&subject.name),
            Formatting::Always => true,
        };
        let planned = stacks::plan_subject(subject, (&job, named), self.setting, format);
        let planned = planned.map_err(Error::invalid)?;
        let text = planned.stack().to_line().unwrap_or_else(|_| planned.stack().source().name().to_owned());
        let fill = match (role, subject.fill, subject.format) {
            (Role::Fill, ..) => Fill::Only,
            (_, Filling::No, _) => Fill::No,
            (_, _, Formatting::Always) => Fill::First,
            _ => Fill::IfForgotten,
        };
        let shards = planned.stack().shards();
        let fill_at_random = subject.fill == Filling::AtRandom;
        let targets = vec![Target { stack: planned, device: subject.device.clone(), fill, fill_at_random }];
        let rounds = match role {
            Role::Fill => Vec::new(),
            _ => jobs.into_iter().map(|job| vec![(0, job)]).collect(),
        };
        Ok((text, Work { shards, targets, rounds, server }))
    }

    fn peer_run(&self, peer: &Peer, server: Option<&Server>, job: &Job) -> Result<(String, Measurement)> {
        let context = self.context();
        let text = command_text(&peer.command(job, server, &context), &context);
        peer.run(job, server, &context).map(|measured| (text, measured))
    }

    fn files(&mut self, files: &files::Files) {
        let steps = files.steps();
        let expected: Vec<Duration> = steps.iter().map(|step| step.expected).collect();
        for (index, group) in steps.into_iter().enumerate() {
            if self.is_stopped() {
                break;
            }
            let step = step(index, group.name, &expected);
            let watch = Watch { observer: self.observer.clone(), steps: vec![step.clone()] };
            let outcome = match files.work(&group.jobs, self.setting) {
                Ok(work) => drive(work, watch, self.stop.token()),
                Err(error) => {
                    self.observer.begin(&step, &Arc::default());
                    self.observer.end(&step, &Err(error.clone()));
                    Err(error)
                }
            };
            match outcome.and_then(|rounds| rounds.into_iter().next().unwrap_or_else(|| Ok(Vec::new()))) {
                Err(error) => self.fail(&step.name, &error),
                Ok(measured) => {
                    for (index, measurement) in group.jobs.iter().zip(measured) {
                        if has_measured(&measurement) {
                            self.keep(files.result(*index, measurement));
                        }
                    }
                }
            }
        }
    }

    fn context(&self) -> Context<'_> {
        Context { directory: self.setting.directory, program: self.setting.program, stop: &self.stop.flag }
    }

    fn is_stopped(&mut self) -> bool {
        self.results.interrupted |= self.stop.is_stopped();
        self.results.interrupted
    }

    fn keep(&mut self, run: RunResult) {
        if run.measurement.errors > 0 {
            self.failures += 1;
            let first = run.measurement.first_error.as_deref().unwrap_or("no reason was given");
            let note = format!("{}: {} errors, the first: {first}", run.name, run.measurement.errors);
            self.results.notes.push(note);
        }
        self.results.interrupted |= self.stop.is_stopped();
        self.results.runs.push(run);
    }

    fn fail(&mut self, name: &str, error: &Error) {
        if self.stop.is_stopped() {
            self.results.interrupted = true;
            return;
        }
        self.failures += 1;
        // Repetitions often fail alike: each note is added once.
        let note = format!("{name} failed: {error}");
        if !self.results.notes.contains(&note) {
            self.results.notes.push(note);
        }
    }
}

/// Whether a stopped run has a result: it needs a measurement or an error.
fn has_measured(measurement: &Measurement) -> bool {
    measurement.operations > 0 || measurement.errors > 0
}

/// Whether filling has no effect: the memory of a new server, or of a stack that is formatted each time, is
/// empty for every run.
fn is_in_vain(run: &Run<'_>) -> bool {
    let forgets = |stack: &StackSubject| stack.server.is_some() || stack.format == Formatting::Always;
    run.role == Role::Fill && matches!(run.subject, Subject::Stack(stack) if forgets(stack))
}

fn expected(job: &Job, role: Role) -> Duration {
    match role {
        Role::Fill => GUESS,
        _ => job.expected_time().unwrap_or(GUESS),
    }
}

fn step(index: usize, name: String, expected: &[Duration]) -> Step {
    Step {
        number: index + 1,
        count: expected.len(),
        name,
        expected: expected[index],
        before: expected[..index].iter().sum(),
        total: expected.iter().sum(),
    }
}

/// Command line for the plan's folder.
fn command_text(words: &[String], context: &Context<'_>) -> String {
    let folder = format!("{}/", context.directory.display());
    let program = context.program.display().to_string();
    let words = words.iter().map(|word| {
        let word = if *word == program { "siltstone".to_owned() } else { word.replace(&folder, "") };
        let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_=./:,%+@".contains(letter);
        match !word.is_empty() && word.chars().all(is_plain) {
            true => word,
            false => format!("'{}'", word.replace('\'', "'\\''")),
        }
    });
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
#[path = "runner/tests.rs"]
mod tests;
