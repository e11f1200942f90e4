//! Builds the tests of the workspace and runs each in a process of its own, several at a time, each with its
//! own time limit; before that, installs what the tests with foreign programs need. `scripts/test` builds
//! and calls this program.
//!
//! - A test is ended, and failed, after its limit, or after [`SILENT`] without output and without processor
//!   time. There is no limit for all tests together, so a slow machine takes longer and fails nothing.
//! - Tests of different programs run side by side, so a test that waits doesn't leave a processor idle. The
//!   number of running tests of a group ([`schedule::GROUPS`]), which share a resource of the machine, is
//!   limited.
//! - Everything is built once, for all packages together: a single package would get its dependencies with
//!   other features. This program itself is built before, with the features that the workspace's crates
//!   select, so that nothing is built twice.
//! - Left to others: documentation tests (rustdoc), the choice of seeds (`conformance::budget`).

mod arguments;
mod attempt;
mod documentation;
mod needs;
mod programs;
mod schedule;
mod summary;

use arguments::Arguments;
use attempt::{Finished, Limits};
use programs::{Built, Program};
use std::ffi::OsString;
use std::io::Write;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;
use summary::{Counts, Summary};

/// Limit of the time in which a test neither prints anything nor uses a processor.
const SILENT: Duration = Duration::from_secs(300);

/// Prints a line about the run.
fn say(text: &str) {
    println!("scripts/test: {text}");
}

/// Value of a variable of the environment; `None` if it is empty.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Refuses packages that the workspace doesn't have.
fn check_packages(packages: &[String]) -> Result<(), String> {
    for package in packages {
        let output = Command::new("cargo").args(["pkgid", package]).output();
        let output = output.map_err(|error| format!("can't run cargo: {error}"))?;
        if !output.status.success() {
            return Err(format!("-p {package}: {}", String::from_utf8_lossy(&output.stderr).trim_end()));
        }
    }
    Ok(())
}

/// Builds all tests and the programs that they start.
fn build() -> Result<Built, String> {
    let mut command = Command::new("cargo");
    command.args(["test", "--workspace", "--no-run", "--message-format=json-render-diagnostics"]);
    // A wrapper of the caller, such as one that caches, stays.
    if variable("RUSTC_WRAPPER").is_none() {
        let folder = std::env::current_dir().map_err(|error| format!("no current folder: {error}"))?;
        command.env("RUSTC_WRAPPER", folder.join("tests/runner/rustc"));
    }
    let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output();
    let output = output.map_err(|error| format!("can't run cargo: {error}"))?;
    if !output.status.success() {
        return Err("the tests can't be built".to_owned());
    }
    Built::parse(&String::from_utf8_lossy(&output.stdout))
}

/// Variables of the tests' environment.
fn variables(arguments: &Arguments, built: &Built) -> Vec<(&'static str, OsString)> {
    let mut variables = Vec::new();
    if let Some(program) = built.other("siltstone")
        && variable("SILTSTONE_BIN").is_none()
    {
        variables.push(("SILTSTONE_BIN", program.into()));
    }
    if arguments.is_long {
        variables.push(("SILTSTONE_TEST_SECONDS", "long".into()));
    }
    variables
}

/// Runs the selected tests and prints what they report at the end.
fn run_tests(arguments: &Arguments, programs: &[Program], limits: Limits) -> Result<Counts, String> {
    let tests = programs::tests(programs, &arguments.texts)?;
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
    // Written as tests end, so that a run that is ended early has some of them.
    let times = arguments.times.as_ref().map(|path| {
        let wrong = |error| format!("--times {}: {error}; expected a file to write", path.display());
        std::fs::File::create(path).map_err(wrong)
    });
    let times = times.transpose()?;
    let note = |test: &Finished| {
        if let Some(mut file) = times.as_ref() {
            // A line that is missing fails no test.
            let _ = file.write_all(summary::line_of_times(test).as_bytes());
        }
    };
    let results = schedule::run_all(&tests, arguments.jobs(processors), limits, &note);
    let summary = Summary::of(&results);
    summary.print();
    // Seeds that are asked for have no budget, and so no shares.
    let asks_for_seeds = ["SILTSTONE_SEED", "SILTSTONE_SEEDS"].iter().any(|name| variable(name).is_some());
    let has_all_shares = arguments.is_whole() && !asks_for_seeds;
    Ok(summary.judge(has_all_shares))
}

/// Runs everything that the arguments select.
fn run(arguments: &Arguments, limit: Duration) -> Result<Counts, String> {
    let installs = variable("SILTSTONE_NO_INSTALL").is_none();
    needs::install_missing(installs);
    needs::fetch_sources(installs);
    say("builds the tests and the server that foreign programs talk to");
    let built = std::thread::scope(|scope| {
        // Runs beside the compiler, because it mostly waits for the network.
        scope.spawn(|| {
            needs::fetch_guest(installs);
            needs::install_object_store(installs);
        });
        build()
    })?;
    // What the compiler wrote would otherwise slow the first tests that wait for the disk, some by minutes.
    let _written = Command::new("sync").status();
    say("runs the tests");
    let (begun, used) = (attempt::now(), attempt::children_of_this());
    let limits = Limits { whole: limit, silent: SILENT };
    let counts = std::thread::scope(|scope| {
        // Examples in the documentation run beside the other tests: they are mostly built.
        let documentation = arguments.is_whole().then(|| scope.spawn(|| documentation::run(limits)));
        let ended = built.programs_of(&arguments.packages).and_then(|mut programs| {
            let variables = variables(arguments, &built);
            programs.iter_mut().for_each(|program| program.variables.clone_from(&variables));
            run_tests(arguments, &programs, limits)
        });
        let counts = ended.unwrap_or_else(|error| {
            say(&error);
            Counts { failed: 1, ..Counts::default() }
        });
        let documented = documentation.and_then(|thread| thread.join().ok());
        let documented = documented.unwrap_or_else(|| Ok(Counts::default()));
        documented.map(|documented| counts + documented)
    });
    let counts = counts.map_err(|error| format!("can't run the documentation tests: {error}"))?;
    let used = attempt::children_of_this().saturating_sub(used).as_secs();
    say(&format!("{} s, processors {used} s", begun.elapsed().as_secs()));
    Ok(counts)
}

/// Counts that are printed: a run of no test fails.
fn judge(counts: Counts) -> Counts {
    if counts.all() == 0 {
        say("no test has such a name");
        return Counts { failed: 1, ..counts };
    }
    counts
}

fn main() -> ExitCode {
    let arguments = Arguments::parse(std::env::args().skip(1)).and_then(|arguments| {
        let limit = arguments.limit(variable("SILTSTONE_TEST_MINUTES").as_deref())?;
        check_packages(&arguments.packages)?;
        Ok((arguments, limit))
    });
    let ended = match arguments {
        Ok((arguments, limit)) => run(&arguments, limit).map_err(|error| (error, ExitCode::FAILURE)),
        Err(error) => Err((error, ExitCode::from(2))),
    };
    match ended {
        Ok(counts) => {
            let counts = judge(counts);
            println!("{counts}");
            if counts.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err((error, code)) => {
            say(&error);
            code
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_of_no_test_fails() {
        let none = judge(Counts::default());
        assert_eq!(none.to_string(), "0 passed, 1 failed, 0 skipped");
        let skipped = Counts { skipped: 2, ..Counts::default() };
        assert_eq!(judge(skipped), skipped);
    }
}
