//! Runs every test of the given test programs in a process of its own, several at a time, each with its own
//! time limit. `scripts/test` builds the programs and calls this.
//!
//! - A test is ended, and failed, after `--minutes`, or after `--silent-minutes` without output and without
//!   processor time. There is no limit for all tests together, so a slow machine takes longer and fails
//!   nothing.
//! - Tests of different programs run side by side, so a test that waits doesn't leave a processor idle. The
//!   number of running tests of a group ([`schedule::GROUPS`]), which share a resource of the machine, is
//!   limited.
//! - Left to others: building (cargo), documentation tests (rustdoc), the choice of seeds
//!   (`conformance::budget`).

mod attempt;
mod programs;
mod schedule;
mod summary;

use clap::Parser;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Runs tests, each in a process of its own.
#[derive(Parser)]
struct Arguments {
    /// Output of `cargo test --no-run --message-format=json`: the test programs.
    #[arg(long, value_name = "FILE")]
    programs: PathBuf,
    /// Only the tests of this package; may be repeated.
    #[arg(long, short, value_name = "NAME")]
    package: Vec<String>,
    /// Tests that run at the same time [default: half as many again as there are processors].
    #[arg(long, value_name = "NUMBER")]
    jobs: Option<NonZeroUsize>,
    /// Time limit of one test, in minutes.
    #[arg(long, value_name = "MINUTES", default_value_t = 15.0)]
    minutes: f64,
    /// Limit of the time in which a test neither prints anything nor uses a processor, in minutes.
    #[arg(long, value_name = "MINUTES", default_value_t = 5.0)]
    silent_minutes: f64,
    /// Fail if the tests didn't take all shares of the budget of seeds and power cuts.
    #[arg(long)]
    all_shares: bool,
    /// Write the numbers of passed, failed and skipped tests to this file, on one line.
    #[arg(long, value_name = "FILE")]
    counts: Option<PathBuf>,
    /// Only tests with one of these texts in their names.
    #[arg(value_name = "TEXT")]
    texts: Vec<String>,
}

fn run(arguments: &Arguments) -> Result<bool, String> {
    let text = std::fs::read_to_string(&arguments.programs)
        .map_err(|error| format!("can't read {}: {error}", arguments.programs.display()))?;
    let programs = programs::parse(&text, &arguments.package)?;
    let tests = programs::tests(&programs, &arguments.texts)?;
    let processors = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let jobs = arguments.jobs.map_or((processors * 3).div_ceil(2), NonZeroUsize::get);
    let limits = attempt::Limits {
        whole: Duration::from_secs_f64(arguments.minutes * 60.0),
        silent: Duration::from_secs_f64(arguments.silent_minutes * 60.0),
    };
    let results = schedule::run_all(&tests, jobs, limits);
    let summary = summary::Summary::of(&results);
    summary.print();
    let counts = format!("{} {} {}\n", summary.passed, summary.failed, summary.skipped);
    if let Some(path) = &arguments.counts {
        std::fs::write(path, counts).map_err(|error| format!("can't write {}: {error}", path.display()))?;
    }
    let shares = !arguments.all_shares || summary.took_all_shares();
    Ok(summary.failed == 0 && shares)
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("test runner: {message}");
            ExitCode::from(2)
        }
    }
}
