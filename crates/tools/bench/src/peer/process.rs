//! Child processes with a time limit, at which they are killed with their descendants.
//!
//! Their output goes into memory without a pipe, so that no reader is needed while they run and a program
//! with much output never blocks. Waiting is done on a pidfd in slices: no clock is read, and the stop flag
//! is checked every [`SLICE`].

use block::{Error, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use std::fs::File;
use std::io::{Read, Seek};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Length of a wait between two checks of the stop flag.
pub const SLICE: Duration = Duration::from_millis(20);

/// Most bytes of a program's output that are read.
const MAX_OUTPUT: u64 = 64 << 20;

/// Limits of a wait.
#[derive(Debug)]
pub struct Limit<'a> {
    /// Time limit.
    pub time: Duration,
    /// Stop flag, which ends the wait.
    pub stop: &'a AtomicBool,
}

/// Output of a program.
#[derive(Debug)]
pub struct Output {
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Output {
    /// Last lines of standard error, in one line.
    pub fn complaint(&self) -> String {
        let lines: Vec<&str> = self.stderr.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        lines[lines.len().saturating_sub(3)..].join(" | ")
    }
}

/// Runs a command to its end.
///
/// # Errors
/// [`Error::NotFound`] if the program doesn't exist, [`Error::Io`] with its standard error if it failed,
/// [`Error::TimedOut`] and [`Error::Cancelled`] at the limit, after killing it.
pub fn run(command: &[String], directory: &Path, limit: &Limit<'_>) -> Result<Output> {
    let mut process = Process::start(command, directory)?;
    let status = process.wait(limit)?;
    let output = process.output()?;
    match status.success() {
        true => Ok(output),
        false => {
            let mut said = output.complaint();
            if said.is_empty() {
                said = output.stdout.lines().last().unwrap_or("no output").into();
            }
            Err(Error::io(format!("{}: {status}: {said}", process.name)))
        }
    }
}

/// Running program, leader of a process group of its own; killed when dropped.
struct Process {
    name: String,
    child: Child,
    reaped: bool,
    pidfd: OwnedFd,
    stdout: File,
    stderr: File,
}

impl Process {
    fn start(command: &[String], directory: &Path) -> Result<Process> {
        let [program, arguments @ ..] = command else {
            return Err(Error::invalid("an empty command: expected a program and its arguments"));
        };
        let doing = || format!("starting {program}");
        let (stdout, stderr) = (memory_file()?, memory_file()?);
        let write_end =
            |file: &File| file.try_clone().map(Stdio::from).map_err(|error| Error::from_io(&error, &doing()));
        let mut child = Command::new(program)
            .args(arguments)
            .current_dir(directory)
            .stdin(Stdio::null())
            .stdout(write_end(&stdout)?)
            .stderr(write_end(&stderr)?)
            .process_group(0)
            .spawn()
            .map_err(|error| Error::from_io(&error, &doing()))?;
        match pidfd_open(pid_of(&child), PidfdFlags::empty()) {
            Ok(pidfd) => Ok(Process { name: program.clone(), child, reaped: false, pidfd, stdout, stderr }),
            Err(error) => {
                // The child doesn't have an owner yet that kills it when dropped.
                let _ = child.kill();
                let _ = child.wait();
                Err(Error::from_errno(error.raw_os_error(), doing()))
            }
        }
    }

    /// Waits for a slice. Returns whether the process has ended.
    fn has_ended_after(&self, slice: Duration) -> bool {
        let timeout = Timespec { tv_sec: slice.as_secs() as i64, tv_nsec: i64::from(slice.subsec_nanos()) };
        let mut watched = [PollFd::new(&self.pidfd, PollFlags::IN)];
        poll(&mut watched, Some(&timeout)).is_ok_and(|ready| ready > 0)
    }

    fn wait(&mut self, limit: &Limit<'_>) -> Result<ExitStatus> {
        let mut left = limit.time;
        while !self.has_ended_after(SLICE) {
            if limit.stop.load(Ordering::Relaxed) {
                return Err(Error::cancelled(format!("{}: stopped", self.name)));
            }
            left = left.checked_sub(SLICE).ok_or_else(|| {
                Error::timed_out(format!("{}: still running after {} s", self.name, limit.time.as_secs()))
            })?;
        }
        self.kill_group();
        let status = self.child.wait();
        self.reaped = true;
        status.map_err(|error| Error::from_io(&error, &format!("waiting for {}", self.name)))
    }

    /// Kills the process and its descendants, which may have outlived it. Must be called before the process
    /// is reaped, so that its number isn't reused. An error means that no process is left.
    fn kill_group(&self) {
        let _ = kill_process_group(pid_of(&self.child), Signal::KILL);
    }

    fn output(&mut self) -> Result<Output> {
        let read = |file: &mut File| {
            let mut bytes = Vec::new();
            let result = file.rewind().and_then(|()| file.take(MAX_OUTPUT).read_to_end(&mut bytes));
            result.map(|_| String::from_utf8_lossy(&bytes).into_owned())
        };
        let doing = |error| Error::from_io(&error, "reading what a program printed");
        Ok(Output {
            stdout: read(&mut self.stdout).map_err(doing)?,
            stderr: read(&mut self.stderr).map_err(doing)?,
        })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !self.reaped {
            self.kill_group();
            let _ = self.child.wait();
        }
    }
}

fn pid_of(child: &Child) -> Pid {
    Pid::from_child(child)
}

fn memory_file() -> Result<File> {
    rustix::fs::memfd_create("output", rustix::fs::MemfdFlags::CLOEXEC)
        .map(File::from)
        .map_err(|error| Error::from_errno(error.raw_os_error(), "making a file in memory"))
}

/// Returns a text of the form `HOST:PORT`; `None` for a path.
pub(super) fn tcp_address(socket: &str) -> Option<&str> {
    let (host, port) = socket.rsplit_once(':')?;
    (!host.contains('/') && port.parse::<u16>().is_ok()).then_some(socket)
}

/// Server that accepts connections; killed when dropped.
pub struct RunningServer {
    process: Process,
    socket: String,
}

impl RunningServer {
    /// Starts the server and waits until it accepts a connection at `socket`.
    pub fn start(command: &[String], directory: &Path, socket: &str, limit: &Limit<'_>) -> Result<Self> {
        remove_socket(socket);
        let mut server =
            RunningServer { process: Process::start(command, directory)?, socket: socket.into() };
        let mut left = limit.time;
        while !server.accepts() {
            if server.process.has_ended_after(SLICE) {
                let said = server.process.output()?.complaint();
                return Err(Error::io(format!(
                    "{} ended before it accepted connections: {said}",
                    server.process.name
                )));
            }
            if limit.stop.load(Ordering::Relaxed) {
                return Err(Error::cancelled(format!("{}: stopped", server.process.name)));
            }
            left = left.checked_sub(SLICE).ok_or_else(|| {
                let seconds = limit.time.as_secs();
                Error::timed_out(format!(
                    "{} accepts no connection at {socket} after {seconds} s",
                    server.process.name
                ))
            })?;
        }
        Ok(server)
    }

    fn accepts(&self) -> bool {
        match tcp_address(&self.socket) {
            Some(address) => TcpStream::connect(address).is_ok(),
            None => UnixStream::connect(&self.socket).is_ok(),
        }
    }

    /// CPU time of the process and its ended children so far, in seconds, from proc_pid_stat(5); resolution
    /// 10 ms.
    ///
    /// # Errors
    /// [`Error::Disconnected`] if the process has ended.
    pub fn cpu_seconds(&self) -> Result<f64> {
        let pid = self.process.child.id();
        let path = format!("/proc/{pid}/stat");
        let stat = std::fs::read_to_string(&path).map_err(|error| Error::from_io(&error, &path))?;
        let (state, ticks) = state_and_ticks(&stat)
            .ok_or_else(|| Error::protocol(format!("{path}: expected proc_pid_stat(5)")))?;
        if state == "Z" || state == "X" {
            return Err(Error::disconnected(format!("{} has ended", self.process.name)));
        }
        Ok(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
    }
}

impl Drop for RunningServer {
    fn drop(&mut self) {
        remove_socket(&self.socket);
    }
}

/// Removes the socket of a killed server, which would prevent the next one from listening.
fn remove_socket(socket: &str) {
    use std::os::unix::fs::FileTypeExt;
    let is_socket = std::fs::symlink_metadata(socket).is_ok_and(|found| found.file_type().is_socket());
    if tcp_address(socket).is_none() && is_socket {
        let _ = std::fs::remove_file(socket);
    }
}

/// State of the process, and the sum of user and system time, its own and its ended children's.
pub(super) fn state_and_ticks(stat: &str) -> Option<(&str, u64)> {
    // The name in parentheses may contain any characters, including parentheses.
    let (_, rest) = stat.rsplit_once(") ")?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let ticks = fields.get(11..15)?.iter().map(|field| field.parse::<u64>().ok()).sum::<Option<u64>>()?;
    Some((fields.first()?, ticks))
}
