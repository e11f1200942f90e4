//! Messages between operators and a holder: lines of text, over the socket in the attachment's folder.
//!
//! A holder has the version that attached the node; operators may have another one. So the words of requests
//! and the answers to each never change: a new answer needs a new request.

use super::folder::Folder;
use crate::unix_connect;
use block::{Error, Result};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Request to detach the node and end the holder. The only answer is the outcome.
pub const DETACH: &str = "detach";
/// As [`DETACH`]; the first answer is [`RECEIVED`], or a refusal.
pub const DETACH_ACKNOWLEDGED: &str = "detach-acknowledged";
/// Request to replace the server by one of the installed program. The first answer is [`RECEIVED`].
pub const RELOAD: &str = "reload";
/// First answer to [`DETACH_ACKNOWLEDGED`] and [`RELOAD`], without which the holder's process is stopped or
/// stuck.
pub const RECEIVED: &str = "received";
/// Part of the answer of a holder that has detached the node, although its server failed.
pub const DETACHED_BUT: &str = "detached, but";
/// Answer to a request that was carried out. All others are texts of errors.
pub const DONE: &str = "done";
/// Beginning of the answer to a request that the holder's version doesn't have. It is sent at once.
pub const UNKNOWN: &str = "unknown request";
/// Longest line in bytes.
pub const LONGEST: usize = 4096;

/// Requests a holder to detach its node, and waits for the outcome; `None` without a holder.
///
/// # Errors
/// The holder's error; those of the connection, [`Error::TimedOut`] for a holder that accepts none or doesn't
/// receive the request.
pub fn detach(folder: &Folder) -> Result<Option<()>> {
    let failed =
        |error: std::io::Error| Error::from_io(&error, &format!("asking the holder of {}", folder.name()));
    let answer = match request_detach(&folder.socket(), unix_connect::LIMIT) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {
            return Ok(None);
        }
        answer => answer.map_err(failed)?,
    };
    match answer.trim_end() {
        DONE => Ok(Some(())),
        "" => Err(Error::closed(format!("the holder of {} ended before it answered", folder.name()))),
        error if error.contains(DETACHED_BUT) => Err(Error::io(error.to_owned())),
        error => Err(Error::busy(error.to_owned())),
    }
}

/// Requests a holder to replace its server by one of the installed program, and waits until that one serves.
///
/// # Errors
/// The holder's error; those of the connection, as of [`detach`]; [`Error::Closed`] without a holder.
pub fn reload(folder: &Folder) -> Result<()> {
    let failed =
        |error: std::io::Error| Error::from_io(&error, &format!("asking the holder of {}", folder.name()));
    let connected = unix_connect::connect(&folder.socket());
    let answer = connected.and_then(|stream| converse(&stream, RELOAD, Some(unix_connect::LIMIT)));
    match answer.map_err(failed)?.trim_end() {
        DONE => Ok(()),
        "" => Err(Error::closed(format!("the holder of {} ended before it answered", folder.name()))),
        error if error.starts_with(UNKNOWN) => Err(Error::unsupported(format!(
            "the holder of {0} has a version without reload: unmount it, detach {0} and attach it again",
            folder.name()
        ))),
        error => Err(Error::busy(error.to_owned())),
    }
}

/// Requests the holder at a socket to detach its node. Returns the outcome, for which there is no time limit
/// once the holder has answered.
fn request_detach(socket: &Path, limit: Duration) -> std::io::Result<String> {
    let stream = unix_connect::connect(socket)?;
    let answer = converse(&stream, DETACH_ACKNOWLEDGED, Some(limit))?;
    if !answer.starts_with(UNKNOWN) {
        return Ok(answer);
    }
    // A holder of an older version: it has just answered, so its process isn't stopped.
    converse(&unix_connect::connect(socket)?, DETACH, None)
}

/// Sends a request. Returns the outcome; `limit` is the time limit of the first answer.
fn converse(mut stream: &UnixStream, request: &str, limit: Option<Duration>) -> std::io::Result<String> {
    stream.write_all(format!("{request}\n").as_bytes())?;
    let mut answers = BufReader::new(stream.take(2 * LONGEST as u64));
    let mut answer = String::new();
    stream.set_read_timeout(limit)?;
    answers.read_line(&mut answer).map_err(|error| match (error.kind(), limit) {
        (ErrorKind::WouldBlock, Some(limit)) => std::io::Error::new(
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
    use std::os::unix::net::UnixListener;

    const SHORT: Duration = Duration::from_millis(20);

    #[test]
    fn a_holder_that_accepts_and_never_receives_is_given_up() {
        let (client, _holder) = UnixStream::pair().unwrap();
        let error = converse(&client, DETACH_ACKNOWLEDGED, Some(SHORT)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
        assert!(error.to_string().contains("stopped"), "{error}");
    }

    #[test]
    fn a_holder_that_has_received_the_request_is_waited_for_without_limit() {
        let (client, mut holder) = UnixStream::pair().unwrap();
        holder.write_all(b"received\ndone\n").unwrap();
        assert_eq!(converse(&client, DETACH_ACKNOWLEDGED, Some(SHORT)).unwrap(), "done\n");
        assert_eq!(client.read_timeout().unwrap(), None);
    }

    #[test]
    fn a_refusal_may_be_the_first_answer() {
        let (client, mut holder) = UnixStream::pair().unwrap();
        holder.write_all(b"in use\n").unwrap();
        assert_eq!(converse(&client, DETACH_ACKNOWLEDGED, Some(SHORT)).unwrap(), "in use\n");
    }

    /// A holder of a version before [`DETACH_ACKNOWLEDGED`] may take longer than the limit of a first answer.
    #[test]
    fn a_holder_that_knows_only_the_first_request_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("socket");
        let listener = UnixListener::bind(&socket).unwrap();
        let holder = || {
            loop {
                let (mut stream, _) = listener.accept().unwrap();
                let mut line = String::new();
                BufReader::new(&stream).read_line(&mut line).unwrap();
                if line.is_empty() {
                    return;
                }
                if line == "detach\n" {
                    stream.set_read_timeout(Some(30 * SHORT)).unwrap();
                    let gone = stream.read(&mut [0]);
                    assert!(gone.is_err_and(|error| error.kind() == ErrorKind::WouldBlock));
                    return stream.write_all(b"done\n").unwrap();
                }
                let answer = format!("unknown request \"{}\"; expected detach\n", line.trim_end());
                stream.write_all(answer.as_bytes()).unwrap();
            }
        };
        std::thread::scope(|scope| {
            let holder = scope.spawn(holder);
            let answer = request_detach(&socket, 25 * SHORT);
            // Ends a holder that waits for another request.
            drop(UnixStream::connect(&socket));
            holder.join().unwrap();
            assert_eq!(answer.unwrap(), "done\n");
        });
    }
}
