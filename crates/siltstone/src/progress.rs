//! Progress of a benchmark: a bar on a terminal, else a line per run; and a bar for verbs that read a whole
//! disk.

use crate::output::say;
use bench::engine::Progress;
use bench::results::Measurement;
use bench::runner::{Observer, Step};
use bench::units;
use block::Result;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use runtime::Instant;
use std::io::IsTerminal;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Number of steps of a full bar.
const WHOLE: u64 = 10_000;

/// Output of progress to standard error.
pub struct Screen {
    bar: Option<ProgressBar>,
    current: Mutex<Option<Current>>,
}

/// Running step of the benchmark.
struct Current {
    step: Step,
    progress: Arc<Progress>,
    began: Instant,
    /// Time of the last update, with the numbers of operations and bytes at that time.
    last: (Instant, u64, u64),
}

impl Screen {
    /// Creates the output, with a bar if standard error is a terminal.
    pub fn new() -> Arc<Screen> {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(Some(WHOLE), ProgressDrawTarget::stderr());
            let style = ProgressStyle::with_template("{bar:24.cyan/blue.dim} {percent:>3} %  {wide_msg}");
            bar.set_style(style.expect("the template is constant and valid").progress_chars("━╸─"));
            bar
        });
        Arc::new(Screen { bar, current: Mutex::new(None) })
    }

    /// Whether there is anything to draw.
    pub fn has_bar(&self) -> bool {
        self.bar.is_some()
    }

    /// Draws the current progress.
    pub fn draw(&self) {
        let Some(bar) = &self.bar else { return };
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(current) = current.as_mut() else { return };
        let (step, now) = (&current.step, runtime::now());
        let (operations, bytes) = (current.progress.operations(), current.progress.bytes());
        let (then, operations_then, bytes_then) =
            std::mem::replace(&mut current.last, (now, operations, bytes));
        let seconds = (now - then).as_secs_f64();
        let rate = |count: u64, before: u64| count.saturating_sub(before) as f64 / seconds.max(1e-3);
        // A peer reports nothing until it ends: its progress is estimated by its expected time.
        let by_time = (now - current.began).as_secs_f64() / step.expected.as_secs_f64().max(1e-3);
        let fraction = match operations {
            0 => by_time.min(0.95),
            _ => current.progress.fraction(),
        };
        let done = step.before + step.expected.mul_f64(fraction);
        let share = done.as_secs_f64() / step.total.as_secs_f64().max(1e-3);
        bar.set_position((share * WHOLE as f64) as u64);
        let left = minutes(step.total.saturating_sub(done));
        let doing = if current.progress.is_verifying() { "  verifying" } else { "" };
        let rates = match operations {
            0 => String::new(),
            _ => format!(
                "  {} IOPS  {}",
                units::count(rate(operations, operations_then).round()),
                units::bandwidth(rate(bytes, bytes_then))
            ),
        };
        let Step { number, count, name, .. } = step;
        bar.set_message(format!("{left} left  {number}/{count} {name}{rates}{doing}"));
    }

    /// Removes the bar.
    pub fn clear(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    fn say(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.println(text),
            None => say(text),
        }
    }
}

/// Bar for reading a disk, if standard error is a terminal.
pub struct Reading(Option<ProgressBar>);

impl Reading {
    /// Creates a bar at 0.
    pub fn new() -> Reading {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
            let style = "{bar:24.cyan/blue.dim} {percent:>3} %  {bytes} of {total_bytes}  {bytes_per_sec}  {eta} left";
            let style = ProgressStyle::with_template(style);
            bar.set_style(style.expect("the template is constant and valid").progress_chars("━╸─"));
            bar
        });
        Reading(bar)
    }

    /// Shows that `done` of `total` bytes have been read.
    pub fn at(&self, done: u64, total: u64) {
        if let Some(bar) = &self.0 {
            bar.set_length(total);
            bar.set_position(done);
        }
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

/// Number of objects that were listed, and deleted, if standard error is a terminal.
pub struct Listing(Option<ProgressBar>);

impl Listing {
    /// Creates it, with nothing listed.
    pub fn new() -> Listing {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            let style = ProgressStyle::with_template("{spinner} {wide_msg}");
            bar.set_style(style.expect("the template is constant and valid"));
            bar
        });
        Listing(bar)
    }

    /// Shows that `objects` have been listed.
    pub fn at(&self, objects: u64) {
        self.say(|| format!("{} objects listed", units::count(objects as f64)));
    }

    /// Shows that `done` of `total` objects have been deleted.
    pub fn deleted(&self, done: u64, total: u64) {
        self.say(|| {
            format!("{} of {} objects deleted", units::count(done as f64), units::count(total as f64))
        });
    }

    /// Removes the line.
    pub fn clear(&self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }

    fn say(&self, text: impl FnOnce() -> String) {
        if let Some(bar) = &self.0 {
            bar.set_message(text());
            bar.tick();
        }
    }
}

impl Drop for Listing {
    fn drop(&mut self) {
        self.clear();
    }
}

fn minutes(time: Duration) -> String {
    format!("{}:{:02}", time.as_secs() / 60, time.as_secs() % 60)
}

impl Observer for Screen {
    fn begin(&self, step: &Step, progress: &Arc<Progress>) {
        let now = runtime::now();
        let current =
            Current { step: step.clone(), progress: progress.clone(), began: now, last: (now, 0, 0) };
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = Some(current);
    }

    fn end(&self, step: &Step, outcome: &Result<Option<Measurement>>) {
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = None;
        let width = step.count.to_string().len();
        let name = format!("[{:>width$}/{}] {}", step.number, step.count, step.name);
        match outcome {
            Err(error) => self.say(&format!("{name}: {error}")),
            Ok(_) if self.has_bar() => {}
            Ok(None) => self.say(&format!("{name}: done")),
            Ok(Some(measured)) => self.say(&format!("{name}: {}", in_short(measured))),
        }
    }
}

fn in_short(measured: &Measurement) -> String {
    let mut words =
        vec![format!("{} IOPS", units::count(measured.iops)), units::bandwidth(measured.bandwidth)];
    if let Some(latency) = &measured.latency_ns {
        words.push(format!("p50 {}", units::nanoseconds(latency.p50 as f64)));
        words.push(format!("p99 {}", units::nanoseconds(latency.p99 as f64)));
    }
    if measured.errors > 0 {
        words.push(format!("{} ERRORS", measured.errors));
    }
    words.join(", ")
}
