//! Messages between operators and a holder: lines of text, over the socket in the attachment's folder. The
//! holder answers a request with [`RECEIVED`] at once, and with its outcome once it was carried out.

use super::folder::Folder;
use crate::unix_connect;
use block::{Error, Result};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Request to detach the node and end the holder.
pub const DETACH: &str = "detach";
/// First answer to a request, without which the holder's process is stopped or stuck.
pub const RECEIVED: &str = "received";
/// Answer to a request that was carried out. All others are texts of errors.
pub const DONE: &str = "done";
/// Longest line in bytes.
pub const LONGEST: usize = 4096;

/// Sends a request to a holder, and waits for the answer; `None` without a holder.
///
/// # Errors
/// The holder's error; those of the connection, [`Error::TimedOut`] for a holder that accepts none or doesn't
/// receive the request.
pub fn ask(folder: &Folder, request: &str) -> Result<Option<()>> {
    let failed =
        |error: std::io::Error| Error::from_io(&error, &format!("asking the holder of {}", folder.name()));
    let stream = match unix_connect::connect(&folder.socket()) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {
            return Ok(None);
        }
        Err(error) => return Err(failed(error)),
        Ok(stream) => stream,
    };
    let answer = converse(&stream, request, unix_connect::LIMIT).map_err(failed)?;
    match answer.trim_end() {
        DONE => Ok(Some(())),
        "" => Err(Error::closed(format!("the holder of {} ended before it answered", folder.name()))),
        error => Err(Error::busy(error.to_owned())),
    }
}

/// Sends a request. Returns the outcome, for which there is no time limit once the holder has received the
/// request.
fn converse(mut stream: &UnixStream, request: &str, limit: Duration) -> std::io::Result<String> {
    stream.write_all(format!("{request}\n").as_bytes())?;
    let mut answers = BufReader::new(stream.take(2 * LONGEST as u64));
    let mut answer = String::new();
    stream.set_read_timeout(Some(limit))?;
    answers.read_line(&mut answer).map_err(|error| match error.kind() {
        ErrorKind::WouldBlock => std::io::Error::new(
            ErrorKind::TimedOut,
            format!("the request wasn't received in {} s: is its process stopped?", limit.as_secs()),
        ),
        _ => error,
    })?;
    if answer.trim_end() == RECEIVED {
        answer.clear();
        stream.set_read_timeout(None)?;
        answers.read_line(&mut answer)?;
    }
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_that_accepts_and_never_receives_is_given_up() {
        let (client, _holder) = UnixStream::pair().unwrap();
        let error = converse(&client, DETACH, Duration::from_millis(20)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
        assert!(error.to_string().contains("stopped"), "{error}");
    }

    #[test]
    fn a_holder_that_has_received_the_request_is_waited_for_without_limit() {
        let (client, mut holder) = UnixStream::pair().unwrap();
        holder.write_all(b"received\ndone\n").unwrap();
        assert_eq!(converse(&client, DETACH, Duration::from_millis(20)).unwrap(), "done\n");
        assert_eq!(client.read_timeout().unwrap(), None);
    }

    #[test]
    fn a_refusal_may_be_the_first_answer() {
        let (client, mut holder) = UnixStream::pair().unwrap();
        holder.write_all(b"in use\n").unwrap();
        assert_eq!(converse(&client, DETACH, Duration::from_millis(20)).unwrap(), "in use\n");
    }
}
