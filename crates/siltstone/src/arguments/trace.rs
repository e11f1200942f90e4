//! Command line: `trace`.

use super::{Operated, duration};
use clap::Args;
use std::time::Duration;

/// Print a line for each request to a served stack as it ends
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  siltstone trace stack.toml                              print the requests of all doors, until Ctrl-C
  siltstone trace stack.toml --slow 10ms                  only requests that took 10 ms or longer
  siltstone trace stack.toml --errors                     only requests that failed
  siltstone trace stack.toml --door vol --call write,write_fua,flush
  siltstone trace stack.toml --part disk                  calls to the part named \"disk\", of all parts above it
  siltstone trace stack.toml --parts --count 1000         calls to every part, and the end after 1000
  siltstone trace stack.toml --json | jq -r 'select(.took_ns > 1e6).client'

A line has the time of the request's begin (UTC), the door, the client (a process or an address), the part that the door \
calls, the kind of call, the block or the zone and the bytes in it, the length, the latency and the error. A dash is a client that \
isn't known, or work of the stack itself. Kinds of calls to devices: read, write, write_fua, flush, discard, write_zeroes, extents; to \
zones: append, read, flush, finish, reset, report, open, close.

Requests that end faster than they can be printed are counted as lost; the server doesn't wait. One trace of a stack at a time. A \
summary is printed at the end.")]
pub struct Trace {
    #[command(flatten)]
    pub operated: Operated,
    /// Print the calls to this part, from all parts above it
    #[arg(long, value_name = "NAME", conflicts_with = "parts")]
    pub part: Option<String>,
    /// Print the calls to every part, besides those of the doors
    #[arg(long)]
    pub parts: bool,
    /// Print only requests of this door, by its name or, for a door of the command line, its address
    #[arg(long, value_name = "NAME", conflicts_with = "parts")]
    pub door: Option<String>,
    /// Print only these kinds of calls
    #[arg(long, value_name = "CALL,…", value_delimiter = ',')]
    pub call: Vec<String>,
    /// Print only requests that took this time or longer, such as 10ms
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub slow: Option<Duration>,
    /// Print only requests that failed
    #[arg(long)]
    pub errors: bool,
    /// End after this number of requests
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// Print a JSON object per line
    #[arg(long)]
    pub json: bool,
}
