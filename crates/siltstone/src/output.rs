//! Standard output and standard error. A closed reader isn't an error.

use crate::failure::Failure;
use crate::log_target;
use crate::table::plain;
use std::fmt::Display;
use std::io::{ErrorKind, Write};

/// Prints a text unchanged, at once.
///
/// # Errors
/// [`Failure::World`] for a failed write; a closed reader, such as `head`, isn't an error.
pub fn print(text: &str) -> Result<(), Failure> {
    print_while_read(text).map(drop)
}

/// Prints a text unchanged, at once, and returns whether it still has a reader.
///
/// # Errors
/// Errors of [`print()`].
pub fn print_while_read(text: &str) -> Result<bool, Failure> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::World(format!("writing to standard output: {error}"))),
    }
}

/// Prints a text and a newline.
///
/// # Errors
/// Errors of [`print()`].
pub fn print_line(text: &str) -> Result<(), Failure> {
    print(&format!("{}\n", text.trim_end_matches('\n')))
}

/// Prints a value as JSON.
///
/// # Errors
/// Errors of [`print()`].
pub fn print_json(value: &serde_json::Value) -> Result<(), Failure> {
    print_line(&format!("{value:#}"))
}

/// Prints a text to the target of messages: standard error, unless `--log-to` names another one.
pub fn say(text: &str) {
    log_target::write_line(text);
}

/// Formats the findings of a check: the first problems, the number of further ones, notes and the result.
pub fn findings(problems: &[impl Display], further: u64, notes: &[impl Display], is_sound: bool) -> String {
    let problems = problems.iter().map(|problem| plain(&problem.to_string()));
    let further = (further > 0).then(|| format!("and {further} more"));
    let notes = notes.iter().map(|note| format!("note: {note}"));
    let result = if is_sound { "no damage" } else { "DAMAGED" };
    problems.chain(further).chain(notes).chain([result.to_owned()]).map(|line| line + "\n").collect()
}

/// Formats a count and its noun, in the singular or the plural.
pub fn counted(count: u64, one: &str, several: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { several })
}
