//! One test in a process of its own: started, watched, ended at its limits.
//!
//! Its output goes to a file and not through a pipe, so that a process that the test leaves behind can't keep
//! the runner waiting.

use crate::programs::Test;
use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Time limits of a test.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// From start to end.
    pub whole: Duration,
    /// Without output and without processor time.
    pub silent: Duration,
}

/// Outcome of a test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Passed,
    /// The reason is `None` if the output contains it.
    Failed(Option<String>),
    Ignored,
}

/// A test that has ended.
#[derive(Debug)]
pub struct Finished {
    /// Package and name.
    pub title: String,
    pub outcome: Outcome,
    /// All that it printed.
    pub output: String,
    pub took: Duration,
    /// Processor time of its processes.
    pub processor: Duration,
}

/// Processor time below which a process counts as waiting, for each [`LOOK`].
const IDLE: Duration = Duration::from_millis(20);
/// Time between two checks of a test's processor time.
const LOOK: Duration = Duration::from_secs(10);
/// Shortest and longest pause between two looks for the end of a test.
const PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));
/// Time in which the kernel ends a killed process. A process that waits in a driver may never end.
const KILLED: Duration = Duration::from_secs(20);

/// Runs one test.
pub fn run(test: &Test<'_>, limits: Limits) -> Finished {
    let title = format!("{} {}", test.program.package, test.name);
    let begun = now();
    let (outcome, output, processor) = if test.is_ignored {
        (Outcome::Ignored, String::new(), Duration::ZERO)
    } else {
        start_and_watch(test, limits)
            .unwrap_or_else(|error| (Outcome::Failed(Some(error.to_string())), String::new(), Duration::ZERO))
    };
    Finished { title, outcome, output, took: begun.elapsed(), processor }
}

fn start_and_watch(test: &Test<'_>, limits: Limits) -> std::io::Result<(Outcome, String, Duration)> {
    let mut command = test.program.command();
    command.args(["--exact", &test.name, "--nocapture"]);
    let Ended { status, output, processor } = run_command(&mut command, limits)?;
    let outcome = match status {
        Err(reason) => Outcome::Failed(Some(reason)),
        Ok(status) => judge(status, &output),
    };
    Ok((outcome, output, processor))
}

/// A command that has ended, with all processes of its group.
#[derive(Debug)]
pub struct Ended {
    /// The error is the limit at which the command was ended.
    pub status: Result<ExitStatus, String>,
    /// All that it printed.
    pub output: String,
    /// Processor time of its processes.
    pub processor: Duration,
}

/// Runs a command to its end, or to one of the limits.
pub fn run_command(command: &mut Command, limits: Limits) -> std::io::Result<Ended> {
    let mut output = unnamed_file()?;
    command.process_group(0).stdin(Stdio::null());
    let mut child = command.stdout(output.try_clone()?).stderr(output.try_clone()?).spawn()?;
    let (status, processor) = watch(&mut child, &output, limits)?;
    end_group(&mut child);
    let mut bytes = Vec::new();
    output.rewind()?;
    output.read_to_end(&mut bytes)?;
    Ok(Ended { status, output: String::from_utf8_lossy(&bytes).into_owned(), processor })
}

/// Creates a file that is deleted when its last descriptor is closed.
fn unnamed_file() -> std::io::Result<File> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("siltstone-test-{}-{number}", std::process::id()));
    let file = File::options().read(true).write(true).create_new(true).open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}

/// Outcome by the exit status and the counts of the test program, which runs no test for a name that it
/// doesn't know.
fn judge(status: ExitStatus, output: &str) -> Outcome {
    match status.success() {
        true if output.contains("test result: ok. 1 passed") => Outcome::Passed,
        true => Outcome::Failed(Some("the program ended without having run the test".to_owned())),
        false if status.code() == Some(101) => Outcome::Failed(None),
        false => Outcome::Failed(Some(format!("the test program ended with {status}"))),
    }
}

/// Waits for the end of a test, or for a limit, which is returned as an error; and its processor time.
fn watch(
    child: &mut Child,
    output: &File,
    limits: Limits,
) -> std::io::Result<(Result<ExitStatus, String>, Duration)> {
    let begun = now();
    let (mut looked, mut active, mut seen) = (begun, begun, (0, Duration::ZERO));
    loop {
        // An ended process has its final figures until it is waited for, which removes its entry.
        let Usage { processor, has_ended } = usage(child.id());
        if has_ended && let Some(status) = child.try_wait()? {
            return Ok((Ok(status), processor));
        }
        if begun.elapsed() > limits.whole {
            let reason = format!("not done after {} s, the limit of a test", limits.whole.as_secs());
            return Ok((Err(reason), processor));
        }
        if looked.elapsed() >= LOOK.min(limits.silent / 4) {
            looked = now();
            let next = (output.metadata()?.len(), processor + children_processor_time(child.id()));
            if next.0 != seen.0 || next.1 > seen.1 + IDLE {
                (active, seen) = (looked, next);
            } else if active.elapsed() > limits.silent {
                let reason = format!("neither output nor processor time for {} s", limits.silent.as_secs());
                return Ok((Err(reason), processor));
            }
        }
        // A short test isn't waited for much longer than it takes.
        wait((begun.elapsed() / 8).clamp(PAUSES.0, PAUSES.1));
    }
}

/// Ends the rest of a test's process group.
fn end_group(child: &mut Child) {
    // The shell's own `kill`, as the standard library ends only single processes. Fails if no process is
    // left.
    let line = format!("kill -s KILL -- -{}", child.id());
    let _ = Command::new("sh").args(["-c", &line]).stdin(Stdio::null()).stderr(Stdio::null()).status();
    // In case the shell couldn't start; an ended test is left alone.
    let _ = child.kill();
    let killed = now();
    while matches!(child.try_wait(), Ok(None)) && killed.elapsed() < KILLED {
        wait(Duration::from_millis(20));
    }
}

/// State of a process in `/proc`.
#[derive(Debug, Default, PartialEq, Eq)]
struct Usage {
    /// Processor time, user and system, of the process, its threads and the children that it has waited for.
    processor: Duration,
    /// Whether the process has ended, and its exit status hasn't been read.
    has_ended: bool,
}

impl Usage {
    /// Reads a text of proc_pid_stat(5): the state is field 3, the processor times are fields 14 to 17.
    fn parse(stat: &str) -> Usage {
        // The second field is the program's name in brackets and may contain any character.
        let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
        let mut fields = fields.split_whitespace();
        let has_ended = fields.next() == Some("Z");
        Usage {
            processor: fields.skip(10).take(4).filter_map(|field| field.parse().ok()).map(ticks).sum(),
            has_ended,
        }
    }
}

/// The unit is 1/100 s on all of Linux's architectures (USER_HZ).
fn ticks(count: u64) -> Duration {
    Duration::from_millis(count * 10)
}

/// State of a process; nothing was used if there is none of this number.
fn usage(process: u32) -> Usage {
    Usage::parse(&std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default())
}

/// Processor time of all children of this process that have ended, and of theirs (fields 16 and 17).
pub fn children_of_this() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields).split_whitespace();
    fields.skip(13).take(2).filter_map(|field| field.parse().ok()).map(ticks).sum()
}

/// Processor time of the living children of a process.
fn children_processor_time(process: u32) -> Duration {
    let children =
        std::fs::read_to_string(format!("/proc/{process}/task/{process}/children")).unwrap_or_default();
    children
        .split_whitespace()
        .filter_map(|child| child.parse().ok())
        .map(|child| usage(child).processor)
        .sum()
}

#[expect(clippy::disallowed_methods, reason = "the runner is no shard: its threads wait for processes")]
fn wait(pause: Duration) {
    std::thread::sleep(pause);
}

#[expect(clippy::disallowed_methods, reason = "limits of real tests are in real time")]
pub fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { whole: Duration::from_secs(20), silent: Duration::from_millis(400) };

    fn ended(line: &str, limits: Limits) -> Ended {
        run_command(Command::new("sh").args(["-c", line]), limits).expect("sh runs")
    }

    fn watched(line: &str, limits: Limits) -> Result<ExitStatus, String> {
        ended(line, limits).status
    }

    #[test]
    fn a_process_that_ends_is_judged_by_its_status() {
        assert!(watched("exit 0", LIMITS).expect("it ends").success());
        assert_eq!(watched("exit 101", LIMITS).expect("it ends").code(), Some(101));
    }

    #[test]
    fn a_process_that_waits_is_ended() {
        let reason = watched("sleep 60", LIMITS).expect_err("it waits");
        assert!(reason.contains("neither output nor processor time"), "{reason}");
    }

    #[test]
    fn a_process_that_works_in_silence_has_the_whole_time() {
        // A machine with other work gives the loop little processor time.
        let limits = Limits { whole: Duration::from_secs(4), silent: Duration::from_secs(3) };
        let reason = watched("while :; do :; done", limits).expect_err("it takes too long");
        assert!(reason.contains("the limit of a test"), "{reason}");
    }

    #[test]
    fn the_state_of_a_process_is_read() {
        let stat = "7 (a) R (b) Z 1 7 7 0 -1 4194304 500 9 0 0 30 4 200 1000 20 0 1 0 100 0 0";
        assert_eq!(Usage::parse(stat), Usage { processor: Duration::from_millis(12340), has_ended: true });
        assert!(!Usage::parse(&stat.replace("Z", "S")).has_ended);
        assert_eq!(Usage::parse(""), Usage::default());
    }

    /// The shell reports its processor time, and ends: figures from before that would miss some of it.
    #[test]
    fn processor_time_includes_all_until_the_end_and_that_of_children() {
        let work = "number=0; while [ $number -lt 200000 ]; do number=$((number + 1)); done";
        let ended = ended(&format!("{work}; sh -c '{work}'; times"), LIMITS);
        // Minutes and seconds of the shell and of its children: 0m0.120s 0m0.010s.
        let times = ended.output.split_whitespace().map(|time| {
            let (minutes, seconds) = time.trim_end_matches('s').split_once('m').expect("minutes");
            minutes.parse::<f64>().unwrap() * 60.0 + seconds.parse::<f64>().unwrap()
        });
        let times: Vec<f64> = times.collect();
        // Each of four figures is rounded down to 10 ms.
        let (reported, found) = (times.iter().sum::<f64>(), ended.processor.as_secs_f64() + 0.04);
        assert!(times.len() == 4 && times[2] > 0.0 && found >= reported, "{found}: {times:?}");
    }

    #[test]
    fn a_test_that_did_not_run_has_not_passed() {
        let success = watched("exit 0", LIMITS).expect("it ends");
        assert_eq!(judge(success, "test result: ok. 1 passed; 0 failed"), Outcome::Passed);
        assert!(matches!(judge(success, "test result: ok. 0 passed; 0 failed"), Outcome::Failed(Some(_))));
    }
}
