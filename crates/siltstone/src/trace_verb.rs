//! `siltstone trace`: one line for each call to a served stack, as it ends.
//!
//! # Promises
//! - Whole lines are printed as soon as the server gives them. A closed reader ends the trace, and isn't an
//!   error.
//! - Lost calls are reported where they are missing. Names are printed without control characters.

mod page;

use crate::arguments::Trace;
use crate::control::client::Client;
use crate::control::protocol::{Request, TraceRequest};
use crate::control::reach;
use crate::failure::Failure;
use crate::kinds::registry;
use crate::output::{self, say};
use page::Page;
use runtime::{Config, StopSignals};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Value, json};
use std::fmt::Write;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Prints the calls to a stack until a signal, the wanted number of calls, or the end of the reader.
///
/// # Errors
/// A wrong stack, part, door or kind of call; a stack that isn't served or is traced already; the end of its
/// server.
pub fn trace(arguments: Trace) -> Result<(), Failure> {
    let name = arguments.operated.stack.clone();
    let Some(mut client) = reach::server(&arguments.operated, &registry())? else {
        return Err(Failure::World(format!(
            "{name}: not served; expected a stack that siltstone serve serves"
        )));
    };
    client.limit_answers()?;
    let asked = TraceRequest {
        slow: arguments.slow.unwrap_or_default(),
        part: arguments.part.clone(),
        door: arguments.door.clone(),
        calls: arguments.call.clone(),
        errors: arguments.errors,
        parts: arguments.parts,
    };
    if let Err(refusal) = client.ask(&Request::Trace(asked))? {
        let text = format!("{name}: {}", refusal.error.detail());
        return Err(if refusal.wrongly_asked { Failure::Usage(text) } else { Failure::World(text) });
    }
    let connection = client.stream().try_clone();
    let connection = connection.map_err(|error| Failure::World(format!("{name}: {error}")))?;
    runtime::run(Config::default(), move || follow_until_stopped(client, connection, arguments))?
}

async fn follow_until_stopped(
    client: Client,
    connection: UnixStream,
    arguments: Trace,
) -> Result<(), Failure> {
    let is_stopped = Arc::new(AtomicBool::new(false));
    let at_signal = is_stopped.clone();
    let signals = StopSignals::catch_first()?;
    runtime::spawn(async move {
        if signals.next().await.is_ok() {
            at_signal.store(true, Ordering::SeqCst);
            // Ends the wait for the next answer. The server may have ended already.
            let _ = connection.shutdown(Shutdown::Both);
        }
    })
    .detach();
    // Printing waits for a slow reader, such as a pager.
    runtime::blocking(move || {
        let mut page = Page::default();
        let followed = follow(client, &arguments, &mut page, &is_stopped);
        if !arguments.json {
            say(&page.summary());
        }
        followed
    })
    .await
}

fn follow(
    mut client: Client,
    arguments: &Trace,
    page: &mut Page,
    is_stopped: &AtomicBool,
) -> Result<(), Failure> {
    let mut left = arguments.count.unwrap_or(u64::MAX);
    if !arguments.json && !output::print_while_read(&page.heading())? {
        return Ok(());
    }
    loop {
        let answer = client.ask_unless_gone(&Request::TraceNext);
        if is_stopped.load(Ordering::SeqCst) {
            return Ok(());
        }
        let Some(answer) = answer? else {
            let name = &arguments.operated.stack;
            return Err(Failure::World(format!("{name}: its server has ended")));
        };
        let answer = answer.map_err(|refusal| Failure::from(refusal.error))?;
        let text = lines(&answer, arguments, page, &mut left);
        let is_read = match text.is_empty() {
            true => has_reader(),
            false => output::print_while_read(&text)?,
        };
        if !is_read || left == 0 {
            return Ok(());
        }
    }
}

/// Formats at most `left` calls of an answer, and the number of lost ones.
fn lines(answer: &Value, arguments: &Trace, page: &mut Page, left: &mut u64) -> String {
    let mut text = String::new();
    for event in answer["events"].as_array().into_iter().flatten() {
        if *left == 0 {
            return text;
        }
        *left -= 1;
        page.count(event);
        match arguments.json {
            true => {
                let _ = writeln!(text, "{event}");
            }
            false => page.line(event, &mut text),
        }
    }
    let lost = answer["lost"].as_u64().unwrap_or(0);
    if lost > 0 {
        page.lost += lost;
        let _ = match arguments.json {
            true => writeln!(text, "{}", json!({ "lost": lost })),
            false => writeln!(text, "# {lost} calls lost: they ended faster than they were printed"),
        };
    }
    text
}

/// Whether standard output has a reader.
fn has_reader() -> bool {
    let stdout = std::io::stdout();
    let mut polled = [PollFd::new(&stdout, PollFlags::empty())];
    let polling = poll(&mut polled, Some(&Timespec::default()));
    polling.is_err() || !polled[0].revents().intersects(PollFlags::ERR)
}
