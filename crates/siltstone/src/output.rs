//! Standard output and standard error, whose readers may go away: then there is nobody left to tell.

use crate::failure::Failure;
use std::io::{ErrorKind, Write};

/// Prints a text as it is, at once.
///
/// # Errors
/// [`Failure::World`] where it can't be written; a reader that has gone away, as `head` does, is none.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::World(format!("writing to standard output: {error}")))
        }
        _ => Ok(()),
    }
}

/// Prints a text and ends the line.
///
/// # Errors
/// As [`print()`].
pub fn print_line(text: &str) -> Result<(), Failure> {
    print(&format!("{}\n", text.trim_end_matches('\n')))
}

/// Prints a value for machines.
///
/// # Errors
/// As [`print()`].
pub fn print_json(value: &serde_json::Value) -> Result<(), Failure> {
    print_line(&format!("{value:#}"))
}

/// Says something on standard error.
pub fn say(text: &str) {
    // A measurement goes on, and is written to its files, whether or not anybody listens.
    let _ = writeln!(std::io::stderr(), "{text}");
}
