//! Standard output and standard error. A reader that has closed them is no error.

use crate::failure::Failure;
use std::io::{ErrorKind, Write};

/// Prints a text unchanged, at once.
///
/// # Errors
/// [`Failure::World`] if it can't be written; a closed reader, such as `head`, is no error.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::World(format!("writing to standard output: {error}")))
        }
        _ => Ok(()),
    }
}

/// Prints a text and a newline.
///
/// # Errors
/// As [`print()`].
pub fn print_line(text: &str) -> Result<(), Failure> {
    print(&format!("{}\n", text.trim_end_matches('\n')))
}

/// Prints a value as JSON.
///
/// # Errors
/// As [`print()`].
pub fn print_json(value: &serde_json::Value) -> Result<(), Failure> {
    print_line(&format!("{value:#}"))
}

/// Prints a text to standard error.
pub fn say(text: &str) {
    // A measurement goes on, and is written to its files, whether or not anybody listens.
    let _ = writeln!(std::io::stderr(), "{text}");
}
