//! Control socket of a server: accepts operators' requests on shard 0.
//!
//! # Promises
//! - Those of [`Clients`] about tasks and numbers; a client beyond the limit gets an error. The requests of
//!   one client are executed in order.
//! - A line that is incomplete after [`LINE_LIMIT`], an answer that isn't received after [`ANSWER_LIMIT`],
//!   and silence of [`SILENCE_LIMIT`] end a connection.
//! - A client that disconnects ends the wait for its request, not the request.
//! - One client at a time traces. The trace ends when the client disconnects, at the latest with its next
//!   answer, or asks for nothing for [`TRACE_SILENCE_LIMIT`].
//! - [`ControlServer::stop`] accepts no new clients, waits for the requests in progress, sends their answers
//!   for at most [`STOP_LIMIT`], and removes the socket's file.

use super::operated::{Operated, hello, not_traced};
use super::place::ControlAddress;
use super::protocol::{self, Answer, Lines, Refusal, Request, TraceRequest};
use super::socket;
use super::traced::Tracing;
use crate::operator_clients::{self, Clients, Disconnected, MAX_CLIENTS, PIECE_BYTES};
use block::{Buffer, Error, Result};
use runtime::Instant;
use runtime::net::Listener;
use runtime::sync::StopToken;
use std::cell::{OnceCell, RefCell};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;
use tls::Stream;

/// Time limit of a request from its first byte to the end of its line.
pub const LINE_LIMIT: Duration = Duration::from_secs(30);
/// Time limit for a client to receive an answer.
pub const ANSWER_LIMIT: Duration = Duration::from_secs(30);
/// Time limit of silence between requests.
pub const SILENCE_LIMIT: Duration = Duration::from_secs(600);
/// Time limit of silence of a client that traces.
pub const TRACE_SILENCE_LIMIT: Duration = Duration::from_secs(60);
/// Time limit for clients to receive their last answers when the server stops.
pub const STOP_LIMIT: Duration = Duration::from_secs(2);

/// Listening control socket.
pub struct ControlServer {
    path: Option<PathBuf>,
    operated: Opened,
    clients: Clients,
}

/// Stack or chip; empty while it is being opened.
type Opened = Rc<OnceCell<Rc<dyn Operated>>>;

impl ControlServer {
    /// Listens. Until [`opened`](Self::opened) is called, requests get the error that the stack is being
    /// opened.
    ///
    /// # Errors
    /// [`Error::Busy`] if another server listens there; errors of the kernel.
    pub async fn start(place: &ControlAddress) -> Result<ControlServer> {
        let (path, listener) = socket::take(place).await?;
        tracing::info!("control socket {}", path.display());
        Ok(Self::listening(Some(path), listener))
    }

    fn listening(path: Option<PathBuf>, listener: Listener) -> ControlServer {
        let error =
            Error::busy(format!("the control socket has {MAX_CLIENTS} clients, its limit: try again later"));
        let refusal = protocol::encode(&Err(error.into()));
        let operated = Opened::default();
        let shared = operated.clone();
        let clients = Clients::accept(("the control socket", listener), refusal, move |socket, stop| {
            let client =
                Client { operated: shared.clone(), stop, stream: socket.into(), tracing: RefCell::default() };
            // The connection ends by the client's action or by the server's stop: neither is an error here.
            async move { drop(client.converse().await) }
        });
        ControlServer { path, operated, clients }
    }

    /// Sets the open stack or chip, to which requests go afterwards.
    pub fn opened(&self, operated: Rc<dyn Operated>) {
        // Called once, so it isn't set yet.
        let _ = self.operated.set(operated);
    }

    /// Returns the path of the socket's file; `None` without one.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Stops the server, and releases the stack or chip.
    pub async fn stop(self) {
        self.clients.stop().await;
    }
}

/// Connected client.
struct Client {
    operated: Opened,
    stop: StopToken,
    stream: Stream,
    /// Trace of this client; `None` without one, and while it waits for calls.
    tracing: RefCell<Option<Tracing>>,
}

impl Client {
    async fn converse(&self) -> Result<(), Disconnected> {
        let mut lines = Lines::default();
        let mut buffer = Buffer::new(PIECE_BYTES);
        // Start of the silence, or of the incomplete line.
        let mut begun = runtime::now();
        loop {
            if self.answer_whole_lines(&mut lines).await? {
                begun = runtime::now();
            }
            let (limit, what) = match lines.rest().is_empty() {
                true if self.tracing.borrow().is_some() => (TRACE_SILENCE_LIMIT, "silence during a trace"),
                true => (SILENCE_LIMIT, "silence"),
                false => (LINE_LIMIT, "waiting for the end of a line"),
            };
            let received = self.receive(buffer, begun + limit).await?;
            let Some((count, filled)) = received else {
                let error = Error::timed_out(format!(
                    "after {} s of {what} the connection is closed",
                    limit.as_secs()
                ));
                return self.send(&Err(Refusal::wrongly_asked(error))).await.and(Err(Disconnected));
            };
            buffer = filled;
            if count == 0 {
                // The input of `printf | nc` may lack the end of its last line.
                let last = lines.rest();
                return if last.is_empty() {
                    Err(Disconnected)
                } else {
                    self.send(&self.answer(last).await).await
                };
            }
            if lines.rest().is_empty() {
                begun = runtime::now();
            }
            lines.push(buffer.filled());
            buffer.clear();
        }
    }

    /// Answers every complete request, and returns whether there was one.
    async fn answer_whole_lines(&self, lines: &mut Lines) -> Result<bool, Disconnected> {
        let mut any = false;
        loop {
            let answer = match lines.next_line() {
                Ok(Some(line)) => self.answer(line).await,
                Ok(None) => return Ok(any),
                Err(too_long) => return self.send(&Err(too_long)).await.and(Err(Disconnected)),
            };
            any = true;
            self.send(&answer).await?;
            if self.stop.is_stopped() {
                return Err(Disconnected);
            }
        }
    }

    async fn answer(&self, line: &[u8]) -> Answer {
        match Request::parse(line)? {
            Request::Trace(asked) => self.begin_trace(&asked).await,
            Request::TraceNext => {
                let Some(mut tracing) = self.tracing.take() else {
                    return Err(Refusal::wrongly_asked(Error::invalid(
                        "trace_next without a trace; expected {\"verb\":\"trace\"} before it",
                    )));
                };
                let calls = tracing.next(&self.stop).await;
                self.tracing.replace(Some(tracing));
                Ok(calls)
            }
            request => self.carry_out(&request).await,
        }
    }

    /// Begins a trace, after the end of an earlier one of this client.
    async fn begin_trace(&self, asked: &TraceRequest) -> Answer {
        drop(self.tracing.take());
        let operated = self.operated.get().ok_or_else(still_opening)?;
        let observation = operated.observation().ok_or_else(not_traced)?;
        self.tracing.replace(Some(Tracing::begin(observation, asked).await?));
        Ok(serde_json::Value::Null)
    }

    /// Receives bytes; `None` if none arrive in time.
    async fn receive(
        &self,
        buffer: Buffer,
        deadline: Instant,
    ) -> Result<Option<(usize, Buffer)>, Disconnected> {
        let left = deadline - runtime::now();
        let receiving = runtime::timeout(left, self.stream.receive(buffer));
        match self.stop.unless_stopped(receiving).await {
            Some(Ok((Ok(count), buffer))) => Ok(Some((count, buffer))),
            Some(Err(_)) => Ok(None),
            Some(Ok((Err(_), _))) | None => Err(Disconnected),
        }
    }

    /// Sends an answer in pieces, which bounds the memory in flight.
    async fn send(&self, answer: &Answer) -> Result<(), Disconnected> {
        let line = protocol::encode(answer);
        let messages: [&[u8]; 1] = [&line];
        let mut sending = pin!(operator_clients::send(&self.stream, &messages, ANSWER_LIMIT));
        match self.stop.unless_stopped(sending.as_mut()).await {
            Some(sent) => sent,
            None => runtime::timeout(STOP_LIMIT, sending).await.unwrap_or(Err(Disconnected)),
        }
    }

    async fn carry_out(&self, request: &Request) -> Answer {
        match self.operated.get() {
            Some(operated) => operated.carry_out(request).await,
            None if *request == Request::Hello => {
                let mut hello = hello();
                hello["opening"] = true.into();
                Ok(hello)
            }
            None => Err(still_opening()),
        }
    }
}

fn still_opening() -> Refusal {
    Error::busy("what is served here is still being opened: try again later").into()
}

#[cfg(test)]
mod tests;
