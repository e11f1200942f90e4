//! One connection to a server. Commands are pipelined and replies arrive in their order; one task sends and
//! one receives.
//!
//! The first error ends a connection for good: an error of the kernel, an unexpected reply, or a reply that
//! takes too long. All commands in flight, and later ones, then fail with it. `failure` interprets error
//! replies.

use crate::failure::{Failure, shown, unexpected};
use crate::leaf::Credentials;
use block::{Buffer, Data, Error, Payload, Result};
use resp::{Head, Reply, Scanner, put_command, put_length, put_words};
use runtime::net::{Address, Shutdown, Stream};
use runtime::sync::{Notify, OneshotSender, StopSource, oneshot};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::rc::Rc;
use std::time::Duration;

/// Time limit of a reply.
pub(crate) const REPLY_LIMIT: Duration = Duration::from_secs(2);
/// Largest reply without data, in bytes: the table of a large cluster.
const MAX_REPLY_BYTES: usize = 1 << 20;
/// Limit of the commands in flight: more than a handle has at a time, unless it has stopped waiting for many.
const MAX_IN_FLIGHT: usize = 320;
/// Bytes of one receive, unless they go to a caller's buffer.
const RECEIVE_BYTES: usize = 64 << 10;

/// A command in its encoded form.
#[derive(Clone)]
pub(crate) struct Command {
    bytes: Payload,
    /// Whether the command changes data of the server.
    pub changes: bool,
}

impl Command {
    /// Encodes a command that changes nothing.
    pub fn reading(words: &[&[u8]]) -> Self {
        let mut bytes = Vec::new();
        put_command(&mut bytes, words);
        Command { bytes: Data::copy_of(&bytes).into(), changes: false }
    }

    /// Encodes a command that changes data.
    pub fn changing(words: &[&[u8]]) -> Self {
        Command { changes: true, ..Self::reading(words) }
    }

    /// Encodes a command that changes data, with `data` as its last word.
    pub fn with_data(words: &[&[u8]], data: &Payload) -> Self {
        let mut head = Vec::new();
        put_words(&mut head, words.len() + 1, words);
        put_length(&mut head, b'$', data.len());
        let mut bytes = Payload::with_capacity(data.slices().len() + 2);
        bytes.push(Data::copy_of(&head));
        data.slices().iter().for_each(|slice| bytes.push(slice.clone()));
        bytes.push(Data::copy_of(b"\r\n"));
        Command { bytes, changes: true }
    }
}

/// Reply to a command.
pub(crate) struct Answer {
    /// The reply. Data that went to the buffer is replaced by its number of bytes.
    pub result: Result<Reply>,
    /// The caller's buffer, empty if there is no data.
    pub buffer: Option<Buffer>,
    /// Whether the server may have received the command.
    pub was_sent: bool,
}

/// A command in flight.
struct Pending {
    buffer: Option<Buffer>,
    waiter: OneshotSender<Answer>,
}

impl Pending {
    fn answer(self, result: Result<Reply>) {
        let Pending { mut buffer, waiter } = self;
        if result.is_err() {
            buffer.iter_mut().for_each(Buffer::clear);
        }
        // The future of the caller may have been dropped.
        let _ = waiter.send(Answer { result, buffer, was_sent: true });
    }
}

/// A connection.
pub(crate) struct Connection {
    address: Address,
    /// Identifier of the server's run, which changes with a restart.
    pub run_id: String,
    state: Rc<State>,
}

#[derive(Default)]
struct State {
    queues: RefCell<Queues>,
    has_outgoing: Notify,
    stop: StopSource,
}

#[derive(Default)]
struct Queues {
    outgoing: Payload,
    in_flight: VecDeque<Pending>,
    failure: Option<Error>,
}

impl State {
    /// Ends the connection.
    fn fail(&self, error: &Error) {
        let queues = &mut *self.queues.borrow_mut();
        if queues.failure.is_none() {
            queues.failure = Some(error.clone());
            queues.outgoing.clear();
            queues.in_flight.drain(..).for_each(|pending| pending.answer(Err(error.clone())));
            self.stop.stop();
        }
    }

    /// Sends queued commands until the connection ends.
    async fn send(&self, stream: &Stream) {
        let stop = self.stop.token();
        loop {
            let has_outgoing = self.has_outgoing.notified();
            let outgoing = std::mem::take(&mut self.queues.borrow_mut().outgoing);
            let sent = match outgoing.is_empty() {
                true => stop.unless_stopped(has_outgoing).await.map(Ok),
                false => stop.unless_stopped(stream.send(outgoing)).await.map(|(sent, _)| sent),
            };
            match sent {
                Some(Ok(())) => {}
                Some(Err(error)) => self.fail(&error),
                None => break,
            }
        }
        // The receive in progress ends and returns its buffer.
        let _is_shut = stream.shutdown(Shutdown::Both).await;
    }

    /// Receives replies until the connection ends.
    async fn receive(&self, stream: &Stream, server: &str) -> Result<Infallible> {
        let mut received = Received { stream, bytes: Vec::new(), used: 0, spare: Buffer::new(RECEIVE_BYTES) };
        loop {
            if received.rest().is_empty() {
                received.more().await?;
            }
            let next = self.queues.borrow_mut().in_flight.pop_front();
            let Some(mut pending) = next else {
                return Err(unexpected("no command in flight", "none"));
            };
            let result = match pending.buffer.take() {
                None => received.reply().await,
                Some(buffer) => {
                    let (result, buffer) = received.data(buffer).await;
                    pending.buffer = Some(buffer);
                    result
                }
            };
            let ended = result.as_ref().map(drop).map_err(Error::clone);
            let failure = self.queues.borrow().failure.clone();
            pending.answer(result.map_err(|error| failure.unwrap_or_else(|| error.in_context(server))));
            ended?;
        }
    }
}

impl Connection {
    /// Connects, and logs in if there are credentials.
    ///
    /// # Errors
    /// Errors of the connection; [`Error::PermissionDenied`]; [`Error::Invalid`] if the server's policy
    /// evicts data.
    pub async fn connect(address: &Address, credentials: Option<&Credentials>) -> Result<Rc<Connection>> {
        let stream = Stream::connect(address).await?;
        let state = Rc::<State>::default();
        let (sending, sender) = (state.clone(), stream.clone());
        runtime::spawn(async move { sending.send(&sender).await }).detach();
        let (receiving, server) = (state.clone(), format!("redis server {address}"));
        runtime::spawn(async move {
            let Err(error) = receiving.receive(&stream, &server).await;
            receiving.fail(&error.in_context(&server));
        })
        .detach();
        // Dropping it ends the connection if this function fails or is cancelled.
        let mut connection = Connection { address: address.clone(), run_id: String::new(), state };
        if let Some(Credentials { username, password }) = credentials {
            let words = [Some("AUTH"), username.as_deref(), Some(password)];
            let words: Vec<&[u8]> = words.iter().flatten().map(|word| word.as_bytes()).collect();
            connection.request(&words).await?;
        }
        let Reply::Bulk(Some(info)) = connection.request(&[b"INFO"]).await? else {
            return Err(connection.unexpected("no bulk string to INFO", "its sections"));
        };
        let info = String::from_utf8_lossy(&info);
        let field = |name: &str| {
            let mut fields = info.lines().filter_map(|line| line.trim_end().split_once(':'));
            fields.find(|(field, _)| *field == name).map_or("", |(_, value)| value)
        };
        let policy = field("maxmemory_policy");
        if policy.starts_with("allkeys") && field("maxmemory") != "0" {
            return Err(Error::invalid(format!(
                "redis server {address}: maxmemory-policy is {policy}: when memory is short it would drop blocks, which then read as zeros; expected \
                 noeviction, or a policy for keys that expire"
            )));
        }
        connection.run_id = field("run_id").to_owned();
        if connection.run_id.is_empty() {
            return Err(connection.unexpected("INFO without run_id", "run_id, which tells restarts"));
        }
        Ok(Rc::new(connection))
    }

    fn unexpected(&self, found: &str, expected: &str) -> Error {
        unexpected(found, expected).in_context(format!("redis server {}", self.address))
    }

    /// Whether the connection hasn't ended.
    pub fn is_alive(&self) -> bool {
        self.state.queues.borrow().failure.is_none()
    }

    /// Sends a command whose reply has no data, and returns the reply.
    ///
    /// # Errors
    /// As [`call`](Self::call); the server's error reply.
    pub async fn request(&self, words: &[&[u8]]) -> Result<Reply> {
        match self.call(&Command::reading(words), false, None).await.result? {
            Reply::Error(text) => match Failure::parse(&text, &self.address) {
                Failure::Later(error) | Failure::Final(error) => Err(error),
                Failure::Moved(_) | Failure::Ask(_) => {
                    Err(self.unexpected("a redirection of a command without a key", "its result"))
                }
            },
            reply => Ok(reply),
        }
    }

    /// Sends a command, after ASKING if `asking`, and waits for its reply, whose data goes to the buffer. An
    /// error reply is returned as a reply.
    ///
    /// Ends the connection if the reply takes longer than [`REPLY_LIMIT`]. Dropping the future ends only the
    /// wait.
    pub async fn call(&self, command: &Command, asking: bool, buffer: Option<Buffer>) -> Answer {
        if self.state.queues.borrow().in_flight.len() >= MAX_IN_FLIGHT {
            self.state.fail(&Error::timed_out(format!("redis server {}: it answers nothing", self.address)));
        }
        let (waiter, mut answer) = oneshot();
        {
            let queues = &mut *self.state.queues.borrow_mut();
            if let Some(error) = &queues.failure {
                return Answer { result: Err(error.clone()), buffer, was_sent: false };
            }
            if asking {
                // The reply to ASKING is ignored: an error also shows in the reply to the command.
                queues.in_flight.push_back(Pending { buffer: None, waiter: oneshot().0 });
                Command::reading(&[b"ASKING"]).put(&mut queues.outgoing);
            }
            queues.in_flight.push_back(Pending { buffer, waiter });
            command.put(&mut queues.outgoing);
        }
        self.state.has_outgoing.notify_all();
        let answered = match runtime::timeout(REPLY_LIMIT, answer.receive()).await {
            Ok(answered) => answered,
            Err(_) => {
                let error = format!("redis server {}: no reply within {REPLY_LIMIT:?}", self.address);
                self.state.fail(&Error::timed_out(error));
                // The connection's end completes the receive that may own the buffer.
                answer.receive().await
            }
        };
        // A command is dropped without an answer only when the shard ends.
        let ended = || Err(Error::cancelled("the shard ends"));
        answered.unwrap_or_else(|| Answer { result: ended(), buffer: None, was_sent: true })
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.state.fail(&Error::closed(format!("the connection to redis server {} is closed", self.address)));
    }
}

impl Command {
    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    fn put(&self, outgoing: &mut Payload) {
        self.bytes.slices().iter().for_each(|slice| outgoing.push(slice.clone()));
    }
}

/// Received bytes, and the stream that they come from.
struct Received<'s> {
    stream: &'s Stream,
    bytes: Vec<u8>,
    used: usize,
    spare: Buffer,
}

impl Received<'_> {
    fn rest(&self) -> &[u8] {
        &self.bytes[self.used..]
    }

    /// Receives at least one byte more.
    async fn more(&mut self) -> Result<()> {
        self.bytes.drain(..std::mem::take(&mut self.used));
        let (count, spare) = self.stream.receive(std::mem::replace(&mut self.spare, Buffer::new(0))).await;
        self.bytes.extend_from_slice(spare.filled());
        self.spare = spare;
        self.spare.clear();
        match count? {
            0 => Err(Error::disconnected("it closed the connection")),
            _ => Ok(()),
        }
    }

    /// Receives a reply.
    async fn reply(&mut self) -> Result<Reply> {
        let mut scanner = Scanner::new(MAX_REPLY_BYTES);
        loop {
            if scanner.next(self.rest())?.is_some()
                && let Some((reply, length)) = resp::parse(self.rest(), MAX_REPLY_BYTES)?
            {
                self.used += length;
                return Ok(reply);
            }
            self.more().await?;
        }
    }

    /// Receives data into the empty buffer. The data may be shorter than the buffer.
    async fn data(&mut self, mut buffer: Buffer) -> (Result<Reply>, Buffer) {
        let count = match self.data_head(buffer.len()).await {
            Ok(Ok(count)) => count,
            Ok(Err(reply)) => return (Ok(reply), buffer),
            Err(error) => return (Err(error), buffer),
        };
        let mut received = Ok(());
        while received.is_ok() && buffer.filled().len() < count {
            if self.rest().is_empty() && count == buffer.len() {
                (received, buffer) = self.stream.receive_exact(buffer).await;
            } else if self.rest().is_empty() {
                received = self.more().await;
            } else {
                let here = self.rest().len().min(count - buffer.filled().len());
                buffer.append(&self.bytes[self.used..self.used + here]);
                self.used += here;
            }
        }
        while received.is_ok() && self.rest().len() < 2 {
            received = self.more().await;
        }
        if received.is_ok() && !self.rest().starts_with(b"\r\n") {
            received = Err(resp::invalid("a bulk string isn't followed by CRLF"));
        }
        match received {
            Ok(()) => self.used += 2,
            Err(_) => buffer.clear(),
        }
        (received.map(|()| Reply::Integer(count as i64)), buffer)
    }

    /// Receives the length of the data, at most `most`, or an error reply.
    async fn data_head(&mut self, most: usize) -> Result<Result<usize, Reply>> {
        loop {
            if let Some((head, length)) = resp::head(self.rest())? {
                let head = match head {
                    Head::Bulk(Some(count)) if count <= most => Ok(count),
                    Head::Error(text) => Err(Reply::Error(text.to_owned())),
                    other => {
                        let found = shown(&format!("{other:?}"));
                        return Err(unexpected(&found, &format!("a bulk string of up to {most} bytes")));
                    }
                };
                self.used += length;
                return Ok(head);
            }
            self.more().await?;
        }
    }
}
