//! Client of a control socket.

use super::place;
use super::protocol::{self, Answer, MAX_ANSWER, Request, VERSION};
use crate::failure::Failure;
use crate::unix_connect;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// Connection to a server that has answered.
pub struct Client {
    path: PathBuf,
    stream: BufReader<UnixStream>,
    /// Process number of a server that had not opened its stack yet.
    opening: Option<u32>,
}

/// Reason for a missing answer.
enum Lost {
    /// The server closed the connection.
    Gone,
    /// Another reason, as text.
    Otherwise(String),
}

impl Client {
    /// Connects to the control socket that an operator names.
    ///
    /// # Errors
    /// [`Failure::World`] if no server listens there, and as [`new`](Self::new).
    pub fn at(path: &Path) -> Result<Client, Failure> {
        let found = match place::connect(path)? {
            Some(stream) => Client::new(path.to_owned(), stream)?
                .ok_or("no server answers there: the connection was closed"),
            None => Err(match std::fs::metadata(path) {
                Ok(found) if !found.file_type().is_socket() => "it isn't a socket",
                _ => "no server listens there",
            }),
        };
        found.map_err(|what| {
            Failure::World(format!(
                "control socket {}: {what}; expected that of a running server of siltstone; start it, or check the path",
                path.display()
            ))
        })
    }

    /// Checks that a server answers; `None` if none does, because it was killed or has just ended.
    ///
    /// # Errors
    /// [`Failure::World`] if the peer isn't a server, has another version, or doesn't answer in time.
    pub fn new(path: PathBuf, stream: UnixStream) -> Result<Option<Client>, Failure> {
        let limit = |limit| stream.set_read_timeout(limit).and_then(|()| stream.set_write_timeout(limit));
        let set = limit(Some(unix_connect::LIMIT));
        set.map_err(|error| Failure::World(format!("control socket {}: {error}", path.display())))?;
        let mut client = Client { path, stream: BufReader::new(stream), opening: None };
        let hello = match client.exchange(&Request::Hello) {
            Ok(Ok(hello)) => hello,
            Ok(Err(refusal)) => return Err(client.failed(&refusal.to_string())),
            Err(Lost::Gone) => return Ok(None),
            Err(Lost::Otherwise(why)) => return Err(client.failed(&why)),
        };
        if hello["protocol"] != VERSION {
            let (theirs, process) = (&hello["protocol"], &hello["process"]);
            return Err(client.failed(&format!(
                "its server (process {process}) speaks version {theirs} of the protocol, and this program {VERSION}: \
                 use the program that the server was started with"
            )));
        }
        let process = hello["process"].as_u64().unwrap_or(0) as u32;
        client.opening = (hello["opening"] == true).then_some(process);
        // A message has no time limit.
        let stream = client.stream.get_ref();
        let unset = stream.set_read_timeout(None).and_then(|()| stream.set_write_timeout(None));
        unset.map_err(|error| client.failed(&error.to_string()))?;
        Ok(Some(client))
    }

    /// Returns the process number of the server, if it had not opened its stack yet.
    pub fn is_opening(&self) -> Option<u32> {
        self.opening
    }

    /// Returns the path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the connection.
    pub fn stream(&self) -> &UnixStream {
        self.stream.get_ref()
    }

    /// Sends a request, and waits for the answer without a time limit.
    ///
    /// # Errors
    /// [`Failure::World`] if the server closes the connection.
    pub fn ask(&mut self, request: &Request) -> Result<Answer, Failure> {
        self.exchange(request).map_err(|lost| match lost {
            Lost::Gone => {
                self.failed("the server ended before it had answered; the request may have been carried out")
            }
            Lost::Otherwise(why) => self.failed(&why),
        })
    }

    /// Sends a request, and waits for the answer; `None` if the server closes the connection.
    ///
    /// # Errors
    /// [`Failure::World`] for another failure of the connection.
    pub fn ask_unless_gone(&mut self, request: &Request) -> Result<Option<Answer>, Failure> {
        match self.exchange(request) {
            Ok(answer) => Ok(Some(answer)),
            Err(Lost::Gone) => Ok(None),
            Err(Lost::Otherwise(why)) => Err(self.failed(&why)),
        }
    }

    /// Lets later requests fail that aren't answered within [`unix_connect::LIMIT`].
    ///
    /// # Errors
    /// [`Failure::World`] for errors of the kernel.
    pub fn limit_answers(&self) -> Result<(), Failure> {
        let (stream, limit) = (self.stream.get_ref(), Some(unix_connect::LIMIT));
        let set = stream.set_read_timeout(limit).and_then(|()| stream.set_write_timeout(limit));
        set.map_err(|error| self.failed(&error.to_string()))
    }

    fn failed(&self, what: &str) -> Failure {
        Failure::World(format!("control socket {}: {what}", self.path.display()))
    }

    fn exchange(&mut self, request: &Request) -> Result<Answer, Lost> {
        // A server without a free connection sends an error and closes before it receives: its answer takes
        // precedence over the failed write.
        let sent = self.stream.get_mut().write_all(request.to_line().as_bytes());
        let mut line = Vec::new();
        let most = MAX_ANSWER as u64 + 1;
        let read = match self.stream.fill_buf() {
            // Other servers may begin to talk, and then wait for an answer.
            Ok([first, ..]) if *first != b'{' => {
                return Err(Lost::Otherwise(
                    "what listens there isn't a control socket; expected that of a server of siltstone; check the path".into(),
                ));
            }
            Err(error) if error.kind() != ErrorKind::Interrupted => Err(error),
            _ => self.stream.by_ref().take(most).read_until(b'\n', &mut line),
        };
        if line.last() == Some(&b'\n') {
            return protocol::decode(&line).map_err(|error| Lost::Otherwise(error.to_string()));
        }
        match sent.and(read) {
            Ok(count) if count as u64 == most => {
                Err(Lost::Otherwise(format!("an answer of more than {MAX_ANSWER} bytes")))
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                let seconds = unix_connect::LIMIT.as_secs();
                Err(Lost::Otherwise(format!("its server has not answered in {seconds} s: is it stopped?")))
            }
            Ok(_) => Err(Lost::Gone),
            Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => {
                Err(Lost::Gone)
            }
            Err(error) => Err(Lost::Otherwise(error.to_string())),
        }
    }
}
