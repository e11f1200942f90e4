//! A guest machine: an emulated stock Debian kernel that sees the root file system of this machine, for
//! features that this machine's kernel lacks.
//!
//! Promises: a test gets a command's output and status, or cuts the guest's power; every guest has a time
//! limit and ends with its test; guests of several tests share nothing but the host's root, which they can't
//! change. `guest/fetch` decides what the guest is made of, `guest/run` how it runs. An emulated machine is
//! many times slower than a real one, so nothing is measured in it.
#![expect(clippy::disallowed_methods, reason = "waits for a real process; nothing here runs in the runtime")]

pub mod numbered;

use crate::foreign::{Background, Finished, binary, is_installed, run};
use rustix::process::{Pid, Signal, kill_process};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

/// Time between two checks of a guest.
const LOOK: Duration = Duration::from_millis(20);
/// Exit statuses of `run` itself: the time limit, and a guest that ended before its command.
const TOO_LONG: i32 = 124;
const ENDED_BEFORE: i32 = 125;

/// Options of a guest. Files must exist.
#[derive(Debug, Clone)]
pub struct Options {
    /// Disks: `/dev/vda` and so on. A file or an address of QEMU's (`nbd+unix:///?socket=PATH`), then keys of
    /// its `-drive`: `FILE,format=qcow2`.
    pub disks: Vec<String>,
    /// Sockets of vhost-user-blk servers, whose disks come after `disks`.
    pub vhost_user_disks: Vec<PathBuf>,
    /// Socket that is connected to the second serial port, /dev/ttyS1.
    pub serial: Option<PathBuf>,
    /// Files that hold non-volatile memory, in multiples of 128 MiB: `/dev/pmem0` and so on.
    pub nvdimms: Vec<PathBuf>,
    /// Folders that the guest writes to, under the same names.
    pub shares: Vec<PathBuf>,
    /// Arguments for QEMU, unchanged: devices of other kinds.
    pub qemu: Vec<String>,
    /// Modules of the kernel that are loaded before the command runs.
    pub modules: Vec<&'static str>,
    /// Number of processors.
    pub processors: u32,
    /// Memory, in MiB.
    pub memory: u32,
    /// Time limit from start to end, in seconds. Ten times the usual duration is right: other tests run at
    /// the same time.
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

/// Proof that guests can run here.
#[derive(Debug, Clone, Copy)]
pub struct Guest(());

/// Returns the guest machine, or ends the test as skipped, with the reason.
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
    /// Checks that everything a guest needs is there.
    ///
    /// # Errors
    /// Why there can be no guest machine here, and what to do.
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
    /// If it takes too long, or the guest ends by itself before.
    #[track_caller]
    pub fn run(self, lines: &str, options: &Options) -> Finished {
        self.start(lines, options).wait()
    }

    /// Runs lines of bash in `/run` of a guest, with the program as `$siltstone` and functions that start
    /// servers and attach stacks.
    ///
    /// # Panics
    /// As [`run`](Self::run); if the lines fail, or the guest's kernel warns.
    #[track_caller]
    pub fn run_siltstone(self, lines: &str, options: &Options) {
        let lines = format!(
            "siltstone={}; cd /run
             set -E; trap 'echo \"failed: $BASH_COMMAND\" >&2' ERR
             # Serves a stack, as process $server. Its addresses and messages are in `addresses` and `said`.
             start() {{
                 rm -f addresses
                 $siltstone serve \"$@\" >addresses 2>said & server=$!
                 until [ -s addresses ]; do kill -0 $server || {{ cat said >&2; exit 1; }}; sleep 0.1; done
             }}
             stop() {{ kill $server; wait $server; }}
             # Attaches a stack under a name. The link and messages are in `path` and `said`.
             attach() {{ $siltstone attach \"$2\" --name $1 ${{@:3}} 2>said >path || {{ cat said >&2; exit 1; }}; }}
             # A number in the record of an attachment.
             field() {{ grep -o \"\\\"$2\\\": [0-9]*\" siltstone/$1/attachment.json | grep -o '[0-9]*'; }}
             {lines}
             if dmesg | grep -E 'WARNING|BUG:|blocked for more'; then exit 1; fi
             echo done",
            binary().display(),
        );
        let finished = self.run(&lines, options);
        print!("{}{}", finished.out, finished.err);
        finished.ok();
    }

    /// Starts lines of bash as root in a guest.
    ///
    /// # Panics
    /// If the guest can't be started.
    #[track_caller]
    pub fn start(self, lines: &str, options: &Options) -> Running {
        let control = tempfile::tempdir().expect("a folder for the guest");
        let path = |path: &Path| path.display().to_string();
        let mut arguments = vec!["--control".to_owned(), path(control.path())];
        let mut more = |name: &str, value: String| arguments.extend([name.to_owned(), value]);
        options.disks.iter().for_each(|disk| more("--disk", disk.clone()));
        options.vhost_user_disks.iter().for_each(|socket| more("--vhost-user-blk", path(socket)));
        if let Some(socket) = &options.serial {
            // The first serial port is the console.
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

/// A running guest. Dropping this ends it.
pub struct Running {
    process: Background,
    control: TempDir,
    lines: String,
}

impl Running {
    /// Standard output of the command so far.
    pub fn out(&self) -> String {
        self.process.out()
    }

    /// Waits until `is_so` is true for the command's output.
    ///
    /// # Panics
    /// If the guest ends before, or it takes too long.
    #[track_caller]
    pub fn wait_until(&mut self, what: &str, is_so: impl Fn(&str) -> bool) {
        while !is_so(&self.out()) {
            // `run` enforces the time limit and ends then.
            assert!(self.process.is_alive(), "the guest ended before {what}: {}", self.said());
            std::thread::sleep(LOOK);
        }
    }

    /// Cuts the guest's power. Returns the command's standard output until then.
    ///
    /// # Panics
    /// If the guest has ended already.
    #[track_caller]
    pub fn cut_power(mut self) -> String {
        let file = self.control.path().join("qemu.pid");
        let pid = std::fs::read_to_string(file).ok().and_then(|text| text.trim().parse().ok());
        let pid = pid.and_then(Pid::from_raw).expect("a guest that runs has QEMU's process id there");
        assert!(self.process.is_alive(), "the guest ended before its power was cut: {}", self.said());
        // `run` is alive and has not reaped QEMU, so the process id is still QEMU's.
        kill_process(pid, Signal::KILL).expect("QEMU is a process of ours");
        let finished = self.ended();
        assert_eq!(finished.code, Some(ENDED_BEFORE), "expected a cut of {finished:#?}");
        finished.out
    }

    /// Waits for the command's end.
    ///
    /// # Panics
    /// If it takes too long, or the guest ends by itself before.
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
