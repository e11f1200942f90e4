//! Peers: other programs that run the same workloads, and the servers that they use.
//!
//! A peer is fio, or any command that prints fio's JSON; both result in a [`Measurement`], as the engine
//! does. A [`Server`] is restarted for every run, and its CPU time is measured from outside. The functions
//! wait for processes and belong on a thread of their own (`runtime::blocking`). The plan lists the peers.

pub mod fio;
pub mod output;
pub mod process;

use crate::job::Job;
use crate::results::Measurement;
use block::{Error, Result};
use fio::Fio;
use process::{Limit, RunningServer};
use std::io::{Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Program to compare with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Name in the plan.
    pub name: String,
    /// Command.
    pub kind: PeerKind,
    /// Name of its server in the plan.
    pub server: Option<String>,
    /// Programs that must be installed besides the first word of its command.
    pub requires: Vec<String>,
    /// Whether the measured program is part of Siltstone although another program measures it: a client of a
    /// Siltstone server.
    pub ours: bool,
}

/// Command of a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeerKind {
    /// fio, with the workload's options.
    Fio(Fio),
    /// A command that prints fio's JSON. [`Context::fill_in`] lists the placeholders of its words.
    Command(Vec<String>),
}

/// A server that is started for a run and killed after it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    /// Name in the plan.
    pub name: String,
    /// Command; it must remain in the foreground.
    pub command: Vec<String>,
    /// Commands that are run to their end before the server is started.
    pub prepare: Vec<Vec<String>>,
    /// Commands that are run to their end between the first accepted connection and the measurement, for
    /// example to fill the device.
    pub after_start: Vec<Vec<String>>,
    /// Address: the path of a unix socket, or `HOST:PORT`. The run begins when connections are accepted
    /// there.
    pub socket: String,
    /// Programs that must be installed besides the first word of its command.
    pub requires: Vec<String>,
}

/// Surroundings of a run.
#[derive(Debug, Clone)]
pub struct Context<'a> {
    /// Folder of the plan: base of relative file names, and working directory of commands.
    pub directory: &'a Path,
    /// Path of this program, for commands that call it as `{siltstone}`.
    pub program: &'a Path,
    /// Stop flag, set by another thread: a run then ends at once with [`Error::Cancelled`].
    pub stop: &'a AtomicBool,
}

/// Time limit for a server until it accepts connections.
const SERVER_START: Duration = Duration::from_secs(20);

impl Peer {
    /// Programs that must be installed for the peer.
    pub fn programs(&self) -> Vec<&str> {
        let first = match &self.kind {
            PeerKind::Fio(_) => Some("fio"),
            PeerKind::Command(command) => command.first().map(String::as_str),
        };
        needed(first, &self.requires)
    }

    /// Command line, for display and for results.
    pub fn command(&self, job: &Job, server: Option<&Server>, context: &Context<'_>) -> Vec<String> {
        match &self.kind {
            PeerKind::Fio(fio) => {
                let mut words = vec!["fio".to_owned()];
                let arguments = fio.arguments(job, context.directory);
                words.extend(arguments.iter().map(|word| context.fill_in(word, job, server)));
                words
            }
            PeerKind::Command(command) => {
                let mut words = Vec::new();
                for word in command {
                    match word.as_str() {
                        "{fio_arguments}" => words.extend(fio::job_arguments(job)),
                        word => words.push(context.fill_in(word, job, server)),
                    }
                }
                words
            }
        }
    }

    /// Runs a workload once, with a server of its own if the peer uses one, and measures it.
    ///
    /// # Errors
    /// If a program can't be started, fails, has unknown output or doesn't end; if a file doesn't exist or is
    /// too small for the workload.
    pub fn run(&self, job: &Job, server: Option<&Server>, context: &Context<'_>) -> Result<Measurement> {
        if let PeerKind::Fio(fio) = &self.kind {
            check_file(fio, job, context.directory)?;
        }
        let running = server.map(|server| server.start(job, context)).transpose()?;
        let before = running.as_ref().map(RunningServer::cpu_seconds).transpose()?;
        let limit = Limit { time: time_limit(job), stop: context.stop };
        let output = process::run(&self.command(job, server, context), context.directory, &limit)?;
        let mut measurement = fio::measurement(&output.stdout).map_err(|error| {
            let said = output.complaint();
            error.in_context(format!(
                "peer {}{}",
                self.name,
                if said.is_empty() { said } else { format!(" ({said})") }
            ))
        })?;
        if let (Some(running), Some(before)) = (&running, before) {
            // The server also worked during the ramp, whose operations aren't counted.
            let measured = measurement.seconds / (measurement.seconds + job.ramp_time.as_secs_f64());
            let cpu_seconds = (running.cpu_seconds()? - before) * measured;
            measurement.server_cpu_seconds = Some(cpu_seconds).filter(|seconds| seconds.is_finite());
        }
        Ok(measurement)
    }
}

impl Server {
    /// Programs that must be installed for the server.
    pub fn programs(&self) -> Vec<&str> {
        let prepared = self
            .prepare
            .iter()
            .chain(&self.after_start)
            .filter_map(|command| command.first().map(String::as_str));
        let mut programs = needed(self.command.first().map(String::as_str), &self.requires);
        programs.extend(prepared.filter(|program| !is_ours(program)));
        programs
    }

    /// Prepares and starts the server, and waits until it accepts connections.
    pub fn start(&self, job: &Job, context: &Context<'_>) -> Result<RunningServer> {
        let words = |command: &[String]| -> Vec<String> {
            command.iter().map(|word| context.fill_in(word, job, Some(self))).collect()
        };
        let run_all = |commands: &[Vec<String>]| -> Result<()> {
            for command in commands {
                let limit = Limit { time: Duration::from_secs(120), stop: context.stop };
                process::run(&words(command), context.directory, &limit)
                    .map_err(|error| error.in_context(format!("preparing server {}", self.name)))?;
            }
            Ok(())
        };
        run_all(&self.prepare)?;
        let limit = Limit { time: SERVER_START, stop: context.stop };
        let socket = context.socket(self);
        let running = RunningServer::start(&words(&self.command), context.directory, &socket, &limit)
            .map_err(|error| error.in_context(format!("server {}", self.name)))?;
        run_all(&self.after_start)?;
        Ok(running)
    }
}

/// Whether a program comes with the plan: siltstone itself, or a file beside the plan. Such a program isn't
/// looked up among the installed ones.
fn is_ours(program: &str) -> bool {
    program == "{siltstone}" || program.starts_with("{directory}/")
}

pub(crate) fn needed<'a>(first: Option<&'a str>, requires: &'a [String]) -> Vec<&'a str> {
    let others = requires.iter().map(String::as_str);
    first.into_iter().chain(others).filter(|program| !is_ours(program)).collect()
}

impl Context<'_> {
    /// Address of a server: `HOST:PORT` unchanged, a path made absolute.
    fn socket(&self, server: &Server) -> String {
        match process::tcp_address(&server.socket) {
            Some(address) => address.to_owned(),
            None => self.directory.join(&server.socket).display().to_string(),
        }
    }

    /// Replaces the placeholders: the job's name `{workload}`, its `{rw}`, `{bs}`, `{iodepth}`, `{numjobs}`,
    /// `{size}`, `{runtime}` and `{ramp_time}` (in seconds) and `{rate_iops}`; `{socket}` of the server;
    /// `{directory}`, the plan's; `{siltstone}`, this program. Other braces are unchanged.
    pub fn fill_in(&self, word: &str, job: &Job, server: Option<&Server>) -> String {
        if !word.contains('{') {
            return word.into();
        }
        let option = |name: &str| {
            let options = job.options();
            options.into_iter().find(|(key, _)| *key == name).map(|(_, value)| value).unwrap_or_default()
        };
        let mut filled = word.to_owned();
        for name in ["rw", "bs", "iodepth", "size", "rate_iops"] {
            filled = filled.replace(&format!("{{{name}}}"), &option(name));
        }
        for (name, value) in [
            ("{workload}", job.name.clone()),
            ("{numjobs}", job.numjobs.to_string()),
            ("{runtime}", job.runtime.unwrap_or_default().as_secs_f64().to_string()),
            ("{ramp_time}", job.ramp_time.as_secs_f64().to_string()),
            ("{socket}", server.map(|server| self.socket(server)).unwrap_or_default()),
            ("{directory}", self.directory.display().to_string()),
            ("{siltstone}", self.program.display().to_string()),
        ] {
            filled = filled.replace(name, &value);
        }
        filled
    }
}

/// Placeholders of [`Context::fill_in`] and [`Peer::command`].
pub const PLACEHOLDERS: &[&str] = &[
    "workload",
    "rw",
    "bs",
    "iodepth",
    "numjobs",
    "size",
    "runtime",
    "ramp_time",
    "rate_iops",
    "socket",
    "directory",
    "siltstone",
    "fio_arguments",
];

/// Time limit of a run: twice the job's expected time and half a minute; ten minutes without a runtime.
fn time_limit(job: &Job) -> Duration {
    match job.expected_time() {
        Some(time) => time.saturating_mul(2) + Duration::from_secs(30),
        None => Duration::from_secs(600),
    }
}

/// Refuses a file that doesn't exist or is too small: fio would extend it or, without permission, remove it.
fn check_file(fio: &Fio, job: &Job, directory: &Path) -> Result<()> {
    let Some(filename) = &fio.filename else { return Ok(()) };
    let path = directory.join(filename);
    let doing = || format!("opening {} for fio", path.display());
    let mut file = std::fs::File::open(&path).map_err(|error| Error::from_io(&error, &doing()))?;
    let length = file.seek(SeekFrom::End(0)).map_err(|error| Error::from_io(&error, &doing()))?;
    job.region(length, 1).map(|_| ()).map_err(|error| error.in_context(path.display()))
}

/// Finds the path of a program, as a shell would.
pub fn find_program(name: &str) -> Option<PathBuf> {
    use std::os::unix::fs::PermissionsExt;
    let is_executable = |path: &PathBuf| {
        std::fs::metadata(path).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    if name.contains('/') {
        return Some(PathBuf::from(name)).filter(is_executable);
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|directory| directory.join(name)).find(is_executable)
}

#[cfg(test)]
#[path = "peer/tests.rs"]
mod tests;
