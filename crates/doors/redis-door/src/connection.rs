//! Service of one client by one task, on one shard.
//!
//! # Promises
//! - All complete commands of a receive are executed before the next receive, and answered by one send,
//!   unless their replies are long. While replies wait for the client, nothing more is received or executed.
//! - A connection has [`RECEIVE_BYTES`] for commands. A longer command takes at most twice its length, within
//!   the server's total for all connections ([`BUFFER_BYTES`](super::facts::BUFFER_BYTES)); beyond that the
//!   client is refused. A client that is silent for [`SILENCE_LIMIT`] in the middle of such a command is
//!   disconnected; an idle client isn't.
//! - Before a client has logged in, if it has to, a command has at most half of [`RECEIVE_BYTES`], and all
//!   receives and sends together take at most [`LOGIN_LIMIT`].
//! - A connection that sends `POST` or `Host:` is closed before any command of the same receive is executed:
//!   the client is a browser.
//! - `GET` and `SET` allocate nothing beyond the allocations of the store.

use crate::execute::{Executor, Flow};
use crate::facts::Facts;
use crate::transaction::inline_bytes;
use crate::users::LOGIN_LIMIT;
use block::{Buffer, Error, Result};
use kv::{MAX_VALUE_BYTES, Store};
use resp::{MAX_COMMAND_BYTES, MAX_LINE_BYTES, Parser, Step};
use runtime::Instant;
use std::cell::Cell;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tls::Stream;

/// Size of the buffer that commands are received into, in bytes.
pub const RECEIVE_BYTES: usize = 64 << 10;
/// Time limit for a client to be silent in the middle of a command that is longer than [`RECEIVE_BYTES`].
pub const SILENCE_LIMIT: Duration = Duration::from_secs(30);
/// Maximum size of the buffer: the longest command, and the line after which the next one is refused.
const MAX_BYTES: usize = MAX_COMMAND_BYTES + 2 * MAX_LINE_BYTES;
/// Reply to a command of more than half of [`RECEIVE_BYTES`] before the login.
const TOO_LONG_FOR_STRANGERS: &[u8] = b"Protocol error: unauthenticated bulk length";
/// Time after which a connection with many commands yields to other tasks.
pub(super) const MAX_TURN: Duration = Duration::from_millis(1);
/// Number of commands between two reads of the clock.
pub(super) const CLOCK_INTERVAL: u32 = 32;

/// Reason for the end of a connection.
#[derive(Debug)]
pub(super) enum End {
    /// The client closed the connection, or sent QUIT.
    Goodbye,
    /// The server is stopping.
    Stopped,
    /// The client was silent in the middle of a long command.
    Silent,
    /// The client didn't log in.
    Stranger,
    /// The client violated the protocol.
    Violation(String),
    /// The client sent an HTTP request.
    Http,
    /// The connection failed.
    Lost(Error),
}

impl End {
    /// End after a receive or send that failed: records of TLS that aren't valid are the client's fault.
    fn of_transfer(error: Error, executor: &Executor) -> End {
        match error {
            Error::Protocol(text) => End::Violation(text.into_owned()),
            Error::TimedOut(_) if !executor.is_admitted() => End::Stranger,
            error => End::Lost(error),
        }
    }
}

impl fmt::Display for End {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            End::Goodbye => formatter.write_str("the client disconnected"),
            End::Stopped => formatter.write_str("the server stops"),
            End::Silent => {
                let seconds = SILENCE_LIMIT.as_secs();
                write!(
                    formatter,
                    "the client was silent for {seconds} s in the middle of a command and was cut off"
                )
            }
            End::Stranger => {
                let seconds = LOGIN_LIMIT.as_secs();
                write!(formatter, "the client didn't log in within {seconds} s and was cut off")
            }
            End::Violation(text) => write!(formatter, "the client was cut off: {text}"),
            End::Http => formatter.write_str(
                "Possible SECURITY ATTACK detected: a client sent POST or Host:, probably a browser on behalf of a web page; it was cut off",
            ),
            End::Lost(error) => write!(formatter, "the connection broke: {}", error.detail()),
        }
    }
}

/// Received bytes that aren't consumed yet.
struct Input {
    facts: Arc<Facts>,
    /// `None` while the buffer is being filled.
    buffer: Option<Buffer>,
    used: usize,
    /// Bytes beyond [`RECEIVE_BYTES`], taken from the server's total.
    taken: usize,
}

impl Input {
    fn new(facts: Arc<Facts>) -> Self {
        Input { facts, buffer: Some(Buffer::new(RECEIVE_BYTES)), used: 0, taken: 0 }
    }

    fn rest(&self) -> &[u8] {
        self.buffer.as_ref().map_or(&[], |buffer| &buffer.filled()[self.used..])
    }

    /// Whether a command fills more than half of the buffer.
    fn is_full(&self) -> bool {
        self.rest().len() > RECEIVE_BYTES / 2
    }

    /// Returns a buffer with the unused bytes and free space after them; `None` if the server's memory for
    /// commands is exhausted.
    fn take_with_room(&mut self) -> Option<Buffer> {
        let mut buffer = self.buffer.take()?;
        let rest = buffer.filled().len() - self.used;
        if rest == 0 {
            if buffer.len() > RECEIVE_BYTES {
                buffer = Buffer::new(RECEIVE_BYTES);
                self.facts.give_buffer(std::mem::take(&mut self.taken));
            }
            buffer.clear();
        } else if buffer.missing() >= RECEIVE_BYTES / 4 {
            return Some(buffer);
        } else if rest <= buffer.len() / 2 {
            buffer.filled_mut().copy_within(self.used.., 0);
            buffer.truncate_filled(rest);
        } else {
            let length = (2 * buffer.len()).min(MAX_BYTES);
            let more = length - buffer.len();
            if more == 0 || !self.facts.take_buffer(more) {
                return None;
            }
            self.taken += more;
            let mut longer = Buffer::new(length);
            longer.append(&buffer.filled()[self.used..]);
            buffer = longer;
        }
        self.used = 0;
        Some(buffer)
    }
}

impl Drop for Input {
    fn drop(&mut self) {
        self.facts.give_buffer(self.taken);
    }
}

/// Serves a client, accepted at the time `accepted`, until the connection ends. Once `stopping` is set, the
/// command in execution is answered, and no further one begins.
pub(super) async fn serve(
    stream: &Stream,
    store: Store,
    facts: Arc<Facts>,
    stopping: Rc<Cell<bool>>,
    accepted: Instant,
) -> End {
    let mut executor = Executor::new(store, facts.clone(), stream.clone(), stopping.clone(), accepted);
    let mut parser = Parser::new(MAX_VALUE_BYTES);
    let mut input = Input::new(facts);
    loop {
        match carry_out(&mut executor, &mut parser, &mut input, &stopping).await {
            Ok(None) => {}
            Ok(Some(end)) => return end,
            Err(error) => return End::of_transfer(error, &executor),
        }
        if !executor.is_admitted() && input.is_full() {
            return refuse(&mut executor, TOO_LONG_FOR_STRANGERS).await;
        }
        let Some(buffer) = input.take_with_room() else {
            let text =
                b"Protocol error: too big a command, or too many long commands of all clients at a time";
            return refuse(&mut executor, text).await;
        };
        let receiving = stream.receive(buffer);
        let received = match executor.time_to_log_in() {
            Some(limit) => runtime::timeout(limit, receiving).await.map_err(|_| End::Stranger),
            None if input.taken == 0 => Ok(receiving.await),
            None => runtime::timeout(SILENCE_LIMIT, receiving).await.map_err(|_| End::Silent),
        };
        let (result, buffer) = match received {
            Ok(received) => received,
            Err(end) => return end,
        };
        input.buffer = Some(buffer);
        match result {
            Ok(0) if stopping.get() => return End::Stopped,
            Ok(0) => return End::Goodbye,
            Ok(_) => {}
            Err(error) => return End::of_transfer(error, &executor),
        }
    }
}

/// Executes and answers all complete commands. Returns the reason if the connection ends.
async fn carry_out(
    executor: &mut Executor,
    parser: &mut Parser,
    input: &mut Input,
    stopping: &Cell<bool>,
) -> Result<Option<End>> {
    let mut turn = runtime::now();
    let mut commands = 0;
    // Bytes of inline commands that were checked for HTTP.
    let mut seen = 0;
    loop {
        if stopping.get() {
            executor.finish().await?;
            return Ok(Some(End::Stopped));
        }
        if seen == 0 && input.rest().first() != Some(&b'*') {
            match inline_bytes(input.rest()) {
                Some(bytes) => seen = bytes,
                None => return Ok(Some(End::Http)),
            }
        }
        let bytes = match parser.next(input.rest()) {
            Ok(Step::Incomplete) => break,
            Ok(Step::Empty(bytes)) => bytes,
            Ok(Step::Command(bytes)) => {
                if !executor.is_admitted() && bytes > RECEIVE_BYTES / 2 {
                    return Ok(Some(refuse(executor, TOO_LONG_FOR_STRANGERS).await));
                }
                match executor.execute(parser.arguments(input.rest())).await? {
                    Flow::Continue => {}
                    Flow::Close => {
                        executor.finish().await?;
                        return Ok(Some(End::Goodbye));
                    }
                    Flow::Http => return Ok(Some(End::Http)),
                }
                bytes
            }
            Err(error) => return Ok(Some(refuse(executor, &error.text()).await)),
        };
        input.used += bytes;
        seen = seen.saturating_sub(bytes);
        commands += 1;
        if commands % CLOCK_INTERVAL == 0 && turn.elapsed() > MAX_TURN {
            runtime::yield_now().await;
            turn = runtime::now();
        }
    }
    executor.finish().await?;
    Ok(None)
}

/// Replies with a protocol error, which ends the connection.
async fn refuse(executor: &mut Executor, text: &[u8]) -> End {
    executor.refuse(text).await;
    match executor.finish().await {
        Ok(()) => End::Violation(String::from_utf8_lossy(text).into_owned()),
        Err(error) => End::of_transfer(error, executor),
    }
}
