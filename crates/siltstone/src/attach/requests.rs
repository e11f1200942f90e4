//! Messages between operators and a holder: one line of text each, over the socket in the attachment's folder.

use super::folder::Folder;
use crate::unix_connect;
use block::{Error, Result};
use std::io::{BufRead, BufReader, Read, Write};

/// Request to detach the node and to end.
pub const DETACH: &str = "detach";
/// Answer to a request that was carried out. All others are texts of errors.
pub const DONE: &str = "done";
/// Longest line in bytes.
pub const LONGEST: usize = 4096;

/// Asks a holder; `None` if there is none.
///
/// # Errors
/// The holder's error; those of the connection, [`Error::TimedOut`] for a holder that accepts none.
pub fn ask(folder: &Folder, request: &str) -> Result<Option<()>> {
    let failed =
        |error: std::io::Error| Error::from_io(&error, &format!("asking the holder of {}", folder.name()));
    let mut stream = match unix_connect::connect(&folder.socket()) {
        Err(error) if error.kind() == std::io::ErrorKind::TimedOut => return Err(failed(error)),
        Err(_) => return Ok(None),
        Ok(stream) => stream,
    };
    stream.write_all(format!("{request}\n").as_bytes()).map_err(failed)?;
    let mut answer = String::new();
    BufReader::new(stream.take(LONGEST as u64)).read_line(&mut answer).map_err(failed)?;
    match answer.trim_end() {
        DONE => Ok(Some(())),
        "" => Err(Error::closed(format!("the holder of {} ended before it answered", folder.name()))),
        error => Err(Error::busy(error.to_owned())),
    }
}
