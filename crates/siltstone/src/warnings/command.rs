//! The command of `--warn-command`: a program that runs once for each warning, on threads of its own.
//!
//! The program is started without a copy of this process (posix_spawn), so that a server with much memory
//! doesn't stop for it. At most one runs for each part; a warning meanwhile waits, and a later one of the
//! same part replaces it. One that runs for more than a minute is killed with its process group.

use super::Warning;
use crate::failure::Failure;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::time::Duration;

/// Time limit of the program.
const LIMIT: Duration = Duration::from_secs(60);

/// Variables of systemd that are for the server alone.
const OF_SERVER: [&str; 6] =
    ["NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"];

/// A program that operators have named for warnings.
#[derive(Debug)]
pub struct WarnCommand {
    program: Rc<Path>,
    /// Parts for which the program runs, each with the warning that comes next.
    running: Rc<RefCell<BTreeMap<String, Option<Warning>>>>,
}

impl WarnCommand {
    /// Returns the command that runs this program.
    pub fn new(program: PathBuf) -> WarnCommand {
        WarnCommand { program: program.into(), running: Rc::default() }
    }

    /// Runs the program for a warning; doesn't wait for it. A failure is logged.
    pub fn start(&self, warning: Warning) {
        let part = warning.part.clone();
        if let Some(next) = self.running.borrow_mut().get_mut(&part) {
            *next = Some(warning);
            return;
        }
        self.running.borrow_mut().insert(part.clone(), None);
        let (program, running) = (self.program.clone(), self.running.clone());
        let all = async move {
            let mut warning = Some(warning);
            while let Some(now) = warning {
                let path = program.to_path_buf();
                let ran = runtime::try_blocking(move || run(&path, &now, LIMIT)).await;
                if let Err(error) = ran.map_err(|error| error.to_string()).flatten() {
                    tracing::warn!("--warn-command {}: {error}", program.display());
                }
                warning = running.borrow_mut().get_mut(&part).and_then(Option::take);
            }
            running.borrow_mut().remove(&part);
        };
        drop(runtime::spawn(all));
    }
}

/// Checks the value of the option `--warn-command`, if it is given, and makes it absolute: servers may have
/// another working directory.
///
/// # Errors
/// A path that isn't an executable file.
pub fn warn_command(program: Option<&Path>) -> Result<Option<PathBuf>, Failure> {
    let Some(program) = program else { return Ok(None) };
    let shown = program.display();
    let refuse = |found: &str| {
        Failure::Usage(format!("--warn-command {shown}: {found}; expected the path of an executable file"))
    };
    let found = std::fs::metadata(program).map_err(|error| refuse(&error.to_string()))?;
    if !found.is_file() {
        return Err(refuse("it isn't a file"));
    }
    if found.permissions().mode() & 0o111 == 0 {
        return Err(refuse("it isn't executable"));
    }
    std::path::absolute(program).map(Some).map_err(|error| refuse(&error.to_string()))
}

/// Runs the program and waits for its end.
fn run(program: &Path, warning: &Warning, limit: Duration) -> Result<(), String> {
    // The program isn't on the way of swapped pages.
    runtime::write_back::leave_page_reserve();
    let fullness = &warning.fullness;
    let [level, used, limit_bytes] = [warning.level.into(), fullness.used_bytes, fullness.limit_bytes]
        .map(|number: u64| number.to_string());
    let mut command = Command::new(program);
    command.args([&warning.part, &level, &used, &limit_bytes]);
    command.env("SILTSTONE_KIND", warning.kind).env("SILTSTONE_PART", &warning.part);
    command.env("SILTSTONE_LEVEL_PERCENT", &level);
    command.env("SILTSTONE_USED_BYTES", &used).env("SILTSTONE_LIMIT_BYTES", &limit_bytes);
    command.env("SILTSTONE_MESSAGE", warning.to_string());
    for name in OF_SERVER {
        command.env_remove(name);
    }
    // Standard output may be a connection to clients.
    command.stdin(Stdio::null()).stdout(Stdio::null());
    // Ctrl-C is for the server only.
    command.process_group(0);
    let mut child = command.spawn().map_err(|error| format!("it can't be started: {error}"))?;
    if !has_ended(&child, limit) {
        // The leader isn't waited for yet, so that the number of its group isn't used again.
        let _killed = rustix::process::kill_process_group(Pid::from_child(&child), Signal::KILL);
        let _ended = child.wait();
        return Err(format!("it ran for more than {limit:?}, and was killed"));
    }
    match child.wait() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("it ended with {status}")),
        Err(error) => Err(format!("waiting for it: {error}")),
    }
}

/// Waits until a child has ended, for a limited time. Returns whether it has.
fn has_ended(child: &Child, limit: Duration) -> bool {
    let begun = runtime::now();
    // Without a descriptor it is killed at once, rather than waited for without a limit.
    let Ok(process) = rustix::process::pidfd_open(Pid::from_child(child), PidfdFlags::empty()) else {
        return false;
    };
    loop {
        let Some(left) = limit.checked_sub(begun.elapsed()) else { return false };
        let left = Timespec::try_from(left).ok();
        // A signal interrupts it.
        if let Ok(1) = rustix::event::poll(&mut [PollFd::new(&process, PollFlags::IN)], left.as_ref()) {
            return true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::Fullness;

    fn warning(level: u8) -> Warning {
        let (used_bytes, limit_bytes) = (u64::from(level) * 10, 1000);
        let (resource, remedy) = ("space", "discard some data");
        let fullness = Fullness { resource, used_bytes, limit_bytes, can_fill: true, remedy };
        Warning { kind: "log", part: "my vol".to_owned(), level, fullness }
    }

    /// A program that is a script for the shell.
    fn script(folder: &Path, text: &str) -> PathBuf {
        let path = folder.join("warn");
        std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    #[test]
    fn a_program_gets_the_warning() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("out");
        let print = "printf '%s|' \"$@\" \"$SILTSTONE_KIND\" \"$SILTSTONE_PART\" \"$SILTSTONE_LEVEL_PERCENT\" \
                     \"$SILTSTONE_USED_BYTES\" \"$SILTSTONE_LIMIT_BYTES\" \"$SILTSTONE_MESSAGE\"";
        let program = script(folder.path(), &format!("{print} > {}", out.display()));
        run(&program, &warning(90), LIMIT).unwrap();
        assert_eq!(
            std::fs::read_to_string(out).unwrap(),
            "my vol|90|900|1000|log|my vol|90|900|1000|log \"my vol\": 90% of its space is used (warning \
             level 90%): 900 B of 1000 B; discard some data|"
        );
    }

    #[test]
    fn a_program_that_fails_or_hangs_is_reported_and_leaves_no_process() {
        let folder = tempfile::tempdir().unwrap();
        let program = script(folder.path(), "exit 3");
        let failed = run(&program, &warning(90), LIMIT).unwrap_err();
        assert_eq!(failed, "it ended with exit status: 3");
        let pid = folder.path().join("pid");
        let program = script(folder.path(), &format!("sleep 1000 & echo $! > {}; wait", pid.display()));
        let failed = run(&program, &warning(90), Duration::from_millis(300)).unwrap_err();
        assert_eq!(failed, "it ran for more than 300ms, and was killed");
        // Its child is killed as well, and is a zombie at most until init has waited for it.
        let pid = std::fs::read_to_string(pid).unwrap_or_default();
        let is_alive = || {
            let state = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
            !state.is_empty() && !state.contains(") Z ")
        };
        while is_alive() {
            std::thread::yield_now();
        }
        std::fs::remove_file(&program).unwrap();
        assert!(run(&program, &warning(90), LIMIT).unwrap_err().starts_with("it can't be started: "));
    }

    #[test]
    fn one_program_at_a_time_runs_for_a_part() {
        let folder = tempfile::tempdir().unwrap();
        let (go, out) = (folder.path().join("go"), folder.path().join("out"));
        let made = Command::new("mkfifo").arg(&go).status().unwrap();
        assert!(made.success());
        let program =
            script(folder.path(), &format!("echo $2 >> {}; read word < {}", out.display(), go.display()));
        let shown = out.clone();
        runtime::run(runtime::Config::default(), move || async move {
            let command = WarnCommand::new(program);
            [80, 90, 95].into_iter().for_each(|level| command.start(warning(level)));
            let pause = || runtime::sleep(Duration::from_millis(5));
            for lines in ["80\n", "80\n95\n"] {
                while std::fs::read_to_string(&shown).unwrap_or_default() != lines {
                    pause().await;
                }
                // Opening the pipe waits for the program.
                let go = go.clone();
                runtime::blocking(move || std::fs::write(go, "go\n").unwrap()).await;
            }
            while !command.running.borrow().is_empty() {
                pause().await;
            }
        })
        .unwrap();
        assert_eq!(std::fs::read_to_string(out).unwrap(), "80\n95\n");
    }

    #[test]
    fn only_programs_are_accepted() {
        let folder = tempfile::tempdir().unwrap();
        let program = script(folder.path(), "exit 0");
        assert_eq!(warn_command(None).unwrap(), None);
        assert_eq!(warn_command(Some(&program)).unwrap(), Some(program.clone()));
        let refused = |path: &Path, found: &str| {
            let error = warn_command(Some(path)).unwrap_err();
            assert!(matches!(error, Failure::Usage(_)) && error.to_string().contains(found), "{error}");
        };
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o644)).unwrap();
        refused(&program, "it isn't executable");
        refused(folder.path(), "it isn't a file");
        refused(&folder.path().join("none"), "No such file");
    }
}
