//! A guest machine: a stock Debian kernel, emulated, that sees this machine's root, for what this machine's kernel lacks.
//!
//! Promises: a command's output and status, or its end by the power; every guest has a time limit and ends with its test;
//! guests of several tests share nothing but the host's root, which they can't change. What the guest is made of is the
//! matter of `guest/fetch`, how it runs that of `guest/run`. An emulated machine is many times slower than a real one:
//! nothing that it does is a measurement.
#![expect(clippy::disallowed_methods, reason = "waits for a real process; nothing here runs in the runtime")]

pub mod numbered;

use crate::foreign::{Background, Finished, is_installed, run};
use rustix::process::{Pid, Signal, kill_process};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

/// Between two looks at a guest.
const LOOK: Duration = Duration::from_millis(20);
/// `run`'s own statuses: the time limit, and a guest that ended before its command.
const TOO_LONG: i32 = 124;
const ENDED_BEFORE: i32 = 125;

/// What a guest has. Files must be there before.
#[derive(Debug, Clone)]
pub struct Options {
    /// Disks: `/dev/vda` and so on. A file or an address of QEMU's (`nbd+unix:///?socket=PATH`), then keys of its `-drive`:
    /// `FILE,format=qcow2`.
    pub disks: Vec<String>,
    /// Sockets of vhost-user-blk servers, whose disks follow.
    pub vhost_user_disks: Vec<PathBuf>,
    /// Socket of what is on the other end of the second serial port, /dev/ttyS1.
    pub serial: Option<PathBuf>,
    /// Files that hold non-volatile memory, of whole multiples of 128 MiB: `/dev/pmem0` and so on.
    pub nvdimms: Vec<PathBuf>,
    /// Folders that the guest writes to, under the same names.
    pub shares: Vec<PathBuf>,
    /// Arguments of QEMU, as they are: devices of other kinds.
    pub qemu: Vec<String>,
    /// Modules of the kernel that are loaded before.
    pub modules: Vec<&'static str>,
    /// Number of processors.
    pub processors: u32,
    /// Memory, in MiB.
    pub memory: u32,
    /// How long it may take from its start to its end, in seconds. Ten times what it takes is right: other tests run beside it.
    pub limit: u32,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            disks: Vec::new(),
            vhost_user_disks: Vec::new(),
            serial: None,
            nvdimms: Vec::new(),
            shares: Vec::new(),
            qemu: Vec::new(),
            modules: Vec::new(),
            processors: 1,
            memory: 1024,
            limit: 240,
        }
    }
}

/// That guests can be had here.
#[derive(Debug, Clone, Copy)]
pub struct Guest(());

/// The guest machine, or the end of the test as skipped, with the reason.
#[macro_export]
macro_rules! need_guest {
    () => {
        match $crate::guest::Guest::new() {
            Ok(guest) => guest,
            Err(reason) => {
                $crate::foreign::skip(&reason);
                return;
            }
        }
    };
}

impl Guest {
    /// Looks whether there is everything.
    ///
    /// # Errors
    /// The reason why there is no guest machine here, and what to do.
    pub fn new() -> Result<Guest, String> {
        if !is_installed("qemu-system-x86_64") {
            return Err("qemu-system-x86_64 is not installed".into());
        }
        let place = run("bash", &["-euc", "source \"$0\"; printf %s \"$place\"", &script("places")]).ok();
        match Path::new(&place).join("ready").exists() {
            true => Ok(Guest(())),
            false => Err(format!("there is no kernel for a guest in {place}: run tests/guest/fetch")),
        }
    }

    /// Runs lines of bash as root in a guest to their end; they end at the first failure.
    ///
    /// # Panics
    /// It takes too long, or the guest ends by itself before.
    #[track_caller]
    pub fn run(self, lines: &str, options: &Options) -> Finished {
        self.start(lines, options).wait()
    }

    /// Starts them.
    ///
    /// # Panics
    /// The guest couldn't be started.
    #[track_caller]
    pub fn start(self, lines: &str, options: &Options) -> Running {
        let control = tempfile::tempdir().expect("a folder for the guest");
        let path = |path: &Path| path.display().to_string();
        let mut arguments = vec!["--control".to_owned(), path(control.path())];
        let mut more = |name: &str, value: String| arguments.extend([name.to_owned(), value]);
        options.disks.iter().for_each(|disk| more("--disk", disk.clone()));
        options.vhost_user_disks.iter().for_each(|socket| more("--vhost-user-blk", path(socket)));
        if let Some(socket) = &options.serial {
            // The first one is the console.
            more("--qemu", "-serial".to_owned());
            more("--qemu", format!("unix:{}", path(socket)));
        }
        options.nvdimms.iter().for_each(|file| more("--nvdimm", path(file)));
        options.shares.iter().for_each(|folder| more("--share", path(folder)));
        options.qemu.iter().for_each(|argument| more("--qemu", argument.clone()));
        options.modules.iter().for_each(|module| more("--module", (*module).to_owned()));
        more("--processors", options.processors.to_string());
        more("--memory", format!("{}M", options.memory));
        more("--timeout", options.limit.to_string());
        arguments.extend(["--", "bash", "-euc", lines].map(str::to_owned));
        let process = Background::start(&script("run"), &arguments);
        Running { process, control, lines: lines.to_owned() }
    }
}

fn script(name: &str) -> String {
    format!("{}/guest/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// A guest that runs. It is ended when this is dropped.
pub struct Running {
    process: Background,
    control: TempDir,
    lines: String,
}

impl Running {
    /// What the command has written to its standard output so far.
    pub fn out(&self) -> String {
        self.process.out()
    }

    /// Waits until its output is so.
    ///
    /// # Panics
    /// It ends before, or takes too long.
    #[track_caller]
    pub fn wait_until(&mut self, what: &str, is_so: impl Fn(&str) -> bool) {
        while !is_so(&self.out()) {
            // The time limit is kept by `run`, which then ends.
            assert!(self.process.is_alive(), "the guest ended before {what}: {}", self.said());
            std::thread::sleep(LOOK);
        }
    }

    /// Takes its power away, as it stands; gives what the command had written to its standard output.
    ///
    /// # Panics
    /// It has ended already.
    #[track_caller]
    pub fn cut_power(mut self) -> String {
        let file = self.control.path().join("qemu.pid");
        let pid = std::fs::read_to_string(file).ok().and_then(|text| text.trim().parse().ok());
        let pid = pid.and_then(Pid::from_raw).expect("a guest that runs has QEMU's process id there");
        assert!(self.process.is_alive(), "the guest ended before its power was cut: {}", self.said());
        // `run` is alive, and has not waited for it: it is still the process of this number.
        kill_process(pid, Signal::KILL).expect("QEMU is a process of ours");
        let finished = self.ended();
        assert_eq!(finished.code, Some(ENDED_BEFORE), "expected a cut of {finished:#?}");
        finished.out
    }

    /// Waits for the command's end.
    ///
    /// # Panics
    /// It takes too long, or the guest ends by itself before.
    #[track_caller]
    pub fn wait(mut self) -> Finished {
        let finished = self.ended();
        let is_its_own = finished.code.is_some_and(|code| code != TOO_LONG && code != ENDED_BEFORE);
        assert!(is_its_own, "a guest that took too long, or didn't come to its end: {finished:#?}");
        finished
    }

    fn ended(&mut self) -> Finished {
        while self.process.is_alive() {
            std::thread::sleep(LOOK);
        }
        let status = self.process.wait();
        let (out, err) = (self.process.out(), self.process.err());
        Finished { line: format!("in a guest: {}", self.lines), code: status.code(), out, err }
    }

    fn said(&self) -> String {
        format!("{}{}", self.process.out(), self.process.err())
    }
}
