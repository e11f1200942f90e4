//! `siltstone top`: rates, latencies, queue depth and fullness of the parts of a served stack, on a terminal
//! or as lines.
//!
//! One concept per module: [`link`] connection that is never waited for, [`sampler`] samples at an interval,
//! [`sample`] their counts and differences, [`rows`] one row for each part, [`columns`] figures of a row,
//! [`app`] state and keys, [`draw`] and [`details`] pages, [`screen`] the terminal, [`choice`] of a server.

mod app;
mod choice;
mod columns;
mod details;
mod draw;
mod link;
mod rows;
mod sample;
mod sampler;
mod screen;

use crate::arguments::{Operated, Top};
use crate::control::client::Client;
use crate::control::reach;
use crate::failure::Failure;
use crate::kinds::registry;
use crate::output::{print_while_read, say};
use crate::table::plain;
use bench::units;
use choice::Candidate;
use sample::Sample;
use sampler::{News, Sampler};
use screen::Screen;
use serde_json::{Value, json};
use std::path::PathBuf;

/// Shows a server.
///
/// # Errors
/// A wrong stack; no server, or several without a terminal to choose on; the server ends.
pub fn top(arguments: &Top) -> Result<(), Failure> {
    let is_batch = arguments.batch || arguments.once || arguments.json || arguments.iterations.is_some();
    if !is_batch && !screen::is_possible() {
        return Err(Failure::Usage(
            "siltstone top: standard input and output aren't both a terminal; expected one for the screen, or \
             --batch, --once or --json to print lines"
                .into(),
        ));
    }
    let mut candidates = find(arguments)?;
    let iterations = if arguments.once { Some(1) } else { arguments.iterations };
    if is_batch {
        if candidates.len() > 1 {
            return Err(several(&candidates));
        }
        let mut sampler = Sampler::new(candidates.remove(0).path, arguments.interval);
        return print_samples(&mut sampler, iterations, arguments.json);
    }
    let mut screen = Screen::new()?;
    let chosen = match candidates.len() {
        1 => candidates.remove(0),
        _ => match screen.choose(candidates)? {
            Some(chosen) => chosen,
            None => return Ok(()),
        },
    };
    screen.show(&mut Sampler::new(chosen.path, arguments.interval))
}

/// Finds the server, or all of this user.
fn find(arguments: &Top) -> Result<Vec<Candidate>, Failure> {
    let candidate = |path: PathBuf| vec![Candidate { path, text: String::new() }];
    if let Some(path) = &arguments.control {
        return Client::at(path).map(|_| candidate(path.clone()));
    }
    if let Some(stack) = &arguments.stack {
        let operated = Operated { stack: stack.clone(), control: None };
        return match reach::server(&operated, &registry())? {
            Some(client) => Ok(candidate(client.path().to_owned())),
            None => Err(Failure::World(format!(
                "{stack}: not served; expected a stack that has a server; start one with siltstone serve, or leave the stack \
                 out to choose among the servers of this user"
            ))),
        };
    }
    let candidates = choice::servers()?;
    match candidates.is_empty() {
        false => Ok(candidates),
        true => Err(Failure::World(
            "no server of this user has a control socket in the usual folders; start one with siltstone serve, or give \
             --control PATH"
                .into(),
        )),
    }
}

fn several(candidates: &[Candidate]) -> Failure {
    let list =
        |candidate: &Candidate| format!("  --control {}    {}", candidate.path.display(), candidate.text);
    Failure::Usage(format!(
        "siltstone top: this user has {} servers; choose one:\n{}",
        candidates.len(),
        candidates.iter().map(list).collect::<Vec<_>>().join("\n")
    ))
}

/// Prints the rows of each interval, until there were `iterations`, the reader has closed the pipe, or the
/// server ends.
fn print_samples(sampler: &mut Sampler, iterations: Option<u64>, as_json: bool) -> Result<(), Failure> {
    let mut before: Option<Sample> = None;
    let mut printed = 0;
    let mut is_told = false;
    while iterations.is_none_or(|iterations| printed < iterations) {
        match sampler.turn()? {
            News::Nothing => {}
            News::Refused(why) => say(&format!("siltstone top: {why}")),
            News::Sample(sample) => {
                if let Some(before) = before.as_ref().filter(|before| sample.continues(before)) {
                    let text =
                        if as_json { json_line(before, &sample) } else { page(before, &sample, printed > 0) };
                    if !print_while_read(&text)? {
                        return Ok(());
                    }
                    printed += 1;
                } else if before.is_some() {
                    say("siltstone top: the server was started again: counting from then on");
                }
                before = Some(*sample);
            }
        }
        if sampler.late().is_some() != is_told {
            is_told = !is_told;
            say(if is_told {
                "siltstone top: the server doesn't answer"
            } else {
                "siltstone top: it answers again"
            });
        }
        let descriptors: Vec<_> = sampler.descriptor().into_iter().collect();
        if iterations.is_none_or(|iterations| printed < iterations) {
            link::wait(&descriptors, sampler.wake_at())?;
        }
    }
    Ok(())
}

fn page(before: &Sample, sample: &Sample, has_one_before: bool) -> String {
    let stack = sample.server("stack").and_then(Value::as_str).unwrap_or("");
    let (seconds, empty) = (runtime::wall_clock().as_secs(), if has_one_before { "\n" } else { "" });
    format!(
        "{empty}{}  {}:{:02} UTC\n{}",
        plain(stack),
        units::date(seconds),
        seconds % 60,
        details::plain_table(&rows::rows(Some(before), sample))
    )
}

fn json_line(before: &Sample, sample: &Sample) -> String {
    let rows = rows::rows(Some(before), sample);
    let line = json!({
        "time": runtime::wall_clock().as_secs_f64(),
        "seconds": (sample.nanoseconds - before.nanoseconds) as f64 / 1e9,
        "stack": sample.server("stack"),
        "process": sample.server("process"),
        "rows": rows.iter().filter(|row| !row.is_repeated).map(rows::Row::to_json).collect::<Vec<_>>(),
    });
    format!("{line}\n")
}
