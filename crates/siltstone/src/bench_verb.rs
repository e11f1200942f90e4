//! `siltstone bench`: determines the types of the arguments, runs the benchmarks, and writes the report.

use crate::arguments::Bench;
use crate::failure::Failure;
use crate::input;
use crate::kinds::registry;
use crate::output::{print, print_line, say};
use crate::overwriting;
use crate::progress::Screen;
use bench::job_file::JobFile;
use bench::plan::Plan;
use bench::results::Results;
use bench::runner::{Benchmark, Observer, On, Outcome, Setting, Stop};
use bench::{report, table};
use runtime::{Config, StopSignals};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Interval between updates of the progress bar.
const DRAW_INTERVAL: Duration = Duration::from_millis(200);

/// Runs all arguments, one after the other.
///
/// # Errors
/// Problems of a plan, job file or stack, before any run; failed runs; a stop.
pub fn bench(arguments: &Bench) -> Result<(), Failure> {
    let arguments = arguments.clone();
    // Signals and the bar need a runtime; the benchmark creates another one for each run, on its own thread.
    let config = Config { registered_bytes: 0, ..Config::default() };
    runtime::run(config, move || async move {
        let (stop, screen) = (Stop::new(), Screen::new());
        let (on_signal, drawn) = (stop.clone(), screen.clone());
        runtime::spawn(async move {
            let Ok(signals) = StopSignals::catch_first() else { return };
            if signals.next().await.is_ok() {
                on_signal.stop();
            }
        })
        .detach();
        runtime::spawn(async move {
            while drawn.has_bar() {
                drawn.draw();
                runtime::sleep(DRAW_INTERVAL).await;
            }
        })
        .detach();
        runtime::blocking(move || run_all(&arguments, &stop, &screen)).await
    })?
}

/// Type of an argument.
#[derive(Debug)]
enum ArgumentKind {
    Plan { text: String },
    JobFile { text: String },
    Stack,
}

fn what_is(argument: &str) -> Result<ArgumentKind, Failure> {
    let path = Path::new(argument);
    let has_ending = |ending: &str| path.extension().is_some_and(|found| found == ending);
    let is_meant_as_file = has_ending("fio") || has_ending("toml");
    if !is_meant_as_file && path.exists() {
        return Err(Failure::Usage(format!(
            "{argument}: expected a plan (.toml), a fio job file (.fio) or a stack; to measure this file: {}",
            shell_quoted(&format!("file({})", stack::quote(argument)))
        )));
    }
    if !is_meant_as_file {
        input::check_line(argument)?;
        return Ok(ArgumentKind::Stack);
    }
    let expected = "a plan or a stack (.toml), or a fio job file (.fio)";
    let text =
        std::fs::read_to_string(path).map_err(|error| input::unreadable("file", path, &error, expected))?;
    if has_ending("fio") {
        return Ok(ArgumentKind::JobFile { text });
    }
    let mut lines = text.lines().map(str::trim);
    // A command of a plan may have the text of a stack.
    let is_plan = lines.clone().any(|line| line == "[plan]");
    let is_stack =
        lines.any(|line| ["[device.", "[zones.", "[door."].iter().any(|section| line.starts_with(section)));
    Ok(if is_stack && !is_plan { ArgumentKind::Stack } else { ArgumentKind::Plan { text } })
}

fn shell_quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// Returns the base of relative names in an argument.
fn folder_of(argument: &str, what: &ArgumentKind) -> std::io::Result<PathBuf> {
    match what {
        // In a job file names are relative to the working directory; a stack file resolves its own.
        ArgumentKind::JobFile { .. } | ArgumentKind::Stack => std::env::current_dir(),
        ArgumentKind::Plan { .. } => {
            let path = std::path::absolute(argument)?;
            Ok(path.parent().map(Path::to_owned).unwrap_or(path))
        }
    }
}

fn run_all(arguments: &Bench, stop: &Stop, screen: &Arc<Screen>) -> Result<(), Failure> {
    let here = |error: std::io::Error| Failure::World(format!("finding the current folder: {error}"));
    let program = std::env::current_exe()
        .map_err(|error| Failure::World(format!("finding this program's own file: {error}")))?;
    let registry = registry();
    let mut named = Vec::new();
    for argument in &arguments.what {
        let what = what_is(argument)?;
        named.push((argument, folder_of(argument, &what).map_err(here)?, what));
    }
    // All arguments are checked before the first benchmark starts.
    let mut benchmarks = Vec::new();
    for (argument, directory, what) in &named {
        let setting = Setting { registry: &registry, directory, program: &program };
        let benchmark = prepare(argument, what, arguments, setting)?;
        let benchmark = benchmark.only(&arguments.only).map_err(Failure::Usage)?;
        for stack in benchmark.formatted_stacks() {
            overwriting::check(
                &stack,
                &true.into(),
                "if it may be lost, run siltstone format with --force first, and bench again",
            )?;
        }
        benchmarks.push(benchmark);
    }
    let names = distinct(benchmarks.iter().map(|benchmark| folder_name(benchmark.name())));
    let mut outcome = Ok(());
    for (benchmark, name) in benchmarks.into_iter().zip(names) {
        let folder = match (&arguments.out, named.len()) {
            (Some(out), 1) => out.clone(),
            (Some(out), _) => out.join(name),
            (None, _) => Path::new("bench-out").join(name),
        };
        // Fails before the measurements if the results can't be kept.
        std::fs::create_dir_all(&folder)
            .map_err(|error| Failure::World(format!("making the folder {}: {error}", folder.display())))?;
        let Outcome { results, failures } = benchmark.run(&(screen.clone() as Arc<dyn Observer>), stop);
        screen.clear();
        tell(&results, &folder, arguments.json)?;
        if results.interrupted {
            return Err(Failure::Interrupted);
        }
        if failures > 0 {
            outcome = Err(Failure::Said);
        }
    }
    outcome
}

fn prepare<'a>(
    argument: &str,
    what: &ArgumentKind,
    arguments: &Bench,
    setting: Setting<'a>,
) -> Result<Benchmark<'a>, Failure> {
    let stem = Path::new(argument).file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into());
    let refuse =
        |option: &str, what: &str| Err(Failure::Usage(format!("{argument}: {option} is for {what}")));
    match what {
        ArgumentKind::Plan { .. } | ArgumentKind::Stack if arguments.on.is_some() => {
            refuse("--on", "fio job files")
        }
        ArgumentKind::Plan { .. } | ArgumentKind::JobFile { .. } if arguments.writes => {
            refuse("--writes", "a stack; a plan and a job file define their writes")
        }
        ArgumentKind::JobFile { .. } | ArgumentKind::Stack if arguments.repetitions.is_some() => {
            refuse("--repetitions", "plans")
        }
        ArgumentKind::JobFile { .. } | ArgumentKind::Stack if arguments.runtime.is_some() => {
            refuse("--runtime", "plans")
        }
        ArgumentKind::JobFile { .. } | ArgumentKind::Stack if arguments.full => refuse("--full", "plans"),
        ArgumentKind::Plan { text } => {
            let mut plan = Plan::parse(argument, text)?;
            if arguments.full {
                let text = format!("{argument}: --full: this plan has no table [full]");
                plan = *plan.full.take().ok_or(Failure::Usage(text))?;
            }
            plan.shorten(arguments.repetitions, arguments.runtime);
            Benchmark::of_plan(plan, setting).map_err(Failure::Usage)
        }
        ArgumentKind::JobFile { text } => {
            let jobs = JobFile::parse(argument, text, &|name| std::env::var(name).ok())?;
            let on = arguments.on.as_deref().map(|stack| On { stack, format: arguments.format });
            Benchmark::of_job_file(argument, jobs, on, setting).map_err(Failure::Usage)
        }
        ArgumentKind::Stack => {
            let kind = argument.split('(').next().unwrap_or_default();
            let name = if argument.ends_with(".toml") { &stem } else { kind };
            Benchmark::of_stack(name, argument, arguments.writes, setting).map_err(Failure::Usage)
        }
    }
}

/// Returns a name that is valid for a folder.
fn folder_name(name: &str) -> String {
    let letter = |letter: char| match letter {
        letter if letter.is_alphanumeric() || "-_.+ ".contains(letter) => letter,
        _ => '-',
    };
    let name: String = name.trim_matches(['.', ' ']).chars().map(letter).collect();
    if name.is_empty() { "results".into() } else { name }
}

fn distinct(names: impl Iterator<Item = String>) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for name in names {
        let mut found = name.clone();
        let mut number = 2;
        while all.contains(&found) {
            found = format!("{name}-{number}");
            number += 1;
        }
        all.push(found);
    }
    all
}

/// Writes the files, and prints the table or the figures.
fn tell(results: &Results, folder: &Path, as_json: bool) -> Result<(), Failure> {
    let (page, figures) = (folder.join("report.html"), folder.join("results.json"));
    let json = results.to_json();
    for (path, text) in [(&figures, &json), (&page, &report::render(results))] {
        std::fs::write(path, text)
            .map_err(|error| Failure::World(format!("writing {}: {error}", path.display())))?;
    }
    let places = format!("report:  {}\nfigures: {}", page.display(), figures.display());
    match as_json {
        true => {
            say(&places);
            print_line(&json)
        }
        false => print(&format!("{}\n{places}\n", table::render(results))),
    }
}
