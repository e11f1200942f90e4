//! Command line of `siltstone top`.

use clap::Args;
use std::path::PathBuf;
use std::time::Duration;

/// Shortest interval between two samples.
const MIN_INTERVAL: Duration = Duration::from_millis(100);
/// Longest interval.
const MAX_INTERVAL: Duration = Duration::from_secs(3600);

/// Show what each part of a served stack is doing: rates, latencies, queue depth, fullness
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  siltstone top                                  show the only server of this user, or choose one
  siltstone top stack.toml                       show the server of a stack
  siltstone top --control vol.control            show the server of a control socket
  siltstone top stack.toml --interval 500ms      take new figures twice a second
  siltstone top stack.toml --batch -n 10         print ten tables, one each interval
  siltstone top stack.toml --once                print one table and end
  siltstone top stack.toml --json | jq '.rows[] | select(.errors_per_second > 0)'

Doors are on top, each with the calls of its clients; the parts below have the calls of all their users. Keys: \
q quits, h lists all keys and explains the columns, < and > sort, t returns to the order of the stack, enter shows the \
details of a part. Figures are those of the last interval. --batch and --json print after each whole interval, --json an object a line.

The server counts calls only while top or another reader asks for them. If it ends, top ends with exit status 1.")]
pub struct Top {
    /// Stack as given to its server [default: the only server of this user, or one of a list]
    pub stack: Option<String>,
    /// Show the server that listens on this control socket
    #[arg(long, value_name = "PATH", conflicts_with = "stack")]
    pub control: Option<PathBuf>,
    /// Set the time between two samples, from 100ms to 1h, with a unit or in seconds
    #[arg(long, short = 'd', value_name = "TIME", default_value = "2s", value_parser = parse_interval)]
    pub interval: Duration,
    /// Print plain tables instead of a screen
    #[arg(long, short = 'b')]
    pub batch: bool,
    /// End after N tables; implies --batch
    #[arg(long, short = 'n', value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub iterations: Option<u64>,
    /// Print one table and end; the same as --batch -n 1
    #[arg(long, conflicts_with = "iterations")]
    pub once: bool,
    /// Print an object for each interval, one a line; implies --batch
    #[arg(long)]
    pub json: bool,
}

/// Parses an interval: with a unit, or a number of seconds, as top does.
///
/// # Errors
/// Message with the expected form or range.
pub fn parse_interval(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let interval = match seconds {
        Some(seconds) => seconds,
        None => stack::parse_duration(text).map_err(|error| error.detail().to_owned())?,
    };
    match (MIN_INTERVAL..=MAX_INTERVAL).contains(&interval) {
        true => Ok(interval),
        false => Err(format!("interval \"{text}\": expected 100ms to 1h")),
    }
}
