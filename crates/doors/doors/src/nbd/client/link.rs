//! One connection of a client, driven by one task: it sends requests and receives replies.
//!
//! Requests that are made before the task's next turn are sent in one vectored send. A request ends even if
//! its caller was dropped. A request without progress within the time limit ends the connection
//! ([`TimeLimit`]): the data of a large reply, and replies to requests that aren't younger, are progress. At
//! most [`MAX_REQUESTS`] are in flight; further ones wait. When the connection ends, requests in flight and
//! later ones fail. [`reply_stream`](super::reply_stream) interprets replies; [`table`](super::table) has the
//! requests in flight.

use super::handshake::RemoteExport;
use super::reply_stream::ReplyStream;
use super::table::{Answer, Table};
use crate::nbd::protocol::{Request, command};
use block::{Buffer, Call, Error, Payload, Result};
use runtime::net::{SendWatch, Shutdown};
use runtime::sync::Semaphore;
use runtime::{LimitedRequest, TimeLimit};
use std::cell::RefCell;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;
use tls::Stream;

/// Limit of requests in flight on a connection.
pub(super) const MAX_REQUESTS: usize = 256;
const RECEIVE_BYTES: usize = 256 << 10;

/// A connection. Its task ends after [`close`](Self::close) when no request is in flight.
pub(super) struct Link {
    table: RefCell<Table>,
    permits: Rc<Semaphore>,
}

impl Link {
    /// Takes ownership of a connection that has finished its handshake.
    pub(super) fn start(stream: Stream, remote: &RemoteExport, limit: Duration) -> Rc<Link> {
        let limit = TimeLimit::new(limit);
        let table = RefCell::new(Table::new(limit.clone()));
        let link = Rc::new(Link { table, permits: Semaphore::new(MAX_REQUESTS) });
        let (driven, structured) = (link.clone(), remote.structured);
        runtime::spawn(async move {
            let watch = SendWatch::default();
            let mut driver = Driver::new(&driven, (&stream, &watch), structured, &limit);
            poll_fn(|context| driver.poll(context)).await;
            drop(driver);
            stream.say_goodbye().await;
        })
        .detach();
        link
    }

    /// Sends a request, whose cookie is chosen here, and waits for its end.
    pub(super) async fn call(
        &self,
        request: Request,
        payload: Option<Payload>,
        buffer: Option<Buffer>,
    ) -> Answer {
        let permit = match self.permits.try_acquire(1) {
            Some(permit) => permit,
            None => self.permits.acquire(1).await,
        };
        let submitted = self.table.borrow_mut().submit(request, payload, buffer, permit);
        let index = match submitted {
            Ok(index) => index,
            Err(answer) => return answer,
        };
        let waiting = Waiting { link: self, index };
        poll_fn(|context| waiting.link.table.borrow_mut().poll(waiting.index, context)).await
    }

    /// Waits for the requests in flight, sends DISC and disconnects, in the background.
    pub(super) fn close(&self) {
        self.table.borrow_mut().close();
    }
}

/// Waiter for the request in this slot.
struct Waiting<'a> {
    link: &'a Link,
    index: usize,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.link.table.borrow_mut().leave(self.index);
    }
}

struct Driver<'l> {
    link: &'l Link,
    stream: &'l Stream,
    sends: &'l SendWatch,
    replies: ReplyStream,
    /// Received bytes, and the number of used ones; `None` while a receive into them is in progress.
    received: Option<(Buffer, usize)>,
    used: usize,
    receiving: Option<Call<'l, (Result<usize>, Buffer)>>,
    /// Whether the receive in progress goes to a caller's buffer.
    direct: bool,
    sending: Option<Call<'l, (Result<()>, Payload)>>,
    shutting_down: Option<Call<'l, Result<()>>>,
    spare: Payload,
    /// Time limit that detects a request without an answer.
    silence: LimitedRequest,
    limit: Duration,
    said_goodbye: bool,
    ended: bool,
}

impl<'l> Driver<'l> {
    fn new(
        link: &'l Link,
        (stream, sends): (&'l Stream, &'l SendWatch),
        structured: bool,
        limit: &TimeLimit,
    ) -> Self {
        Driver {
            link,
            stream,
            sends,
            replies: ReplyStream::new(structured),
            received: Some((Buffer::new(RECEIVE_BYTES), 0)),
            used: 0,
            receiving: None,
            direct: false,
            sending: None,
            shutting_down: None,
            spare: Payload::new(),
            silence: limit.watch(),
            limit: limit.limit(),
            said_goodbye: false,
            ended: false,
        }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.link.table.borrow_mut().set_driver(context.waker());
        if self.silence.poll_failed(context).is_ready() {
            // Dropping the operations cancels them; the runtime keeps their memory until they have ended.
            (self.receiving, self.sending, self.shutting_down) = (None, None, None);
            let limit = stack::format_duration(self.limit);
            self.fail(Error::timed_out(format!(
                "the NBD server didn't answer within {limit}; the connection is closed"
            )));
            return Poll::Ready(());
        }
        loop {
            let mut progress = self.poll_receive(context);
            progress |= self.poll_send(context);
            if let Some(call) = &mut self.shutting_down
                && Pin::new(call).poll(context).is_ready()
            {
                self.shutting_down = None;
            }
            if self.ended || (self.said_goodbye && self.sending.is_none()) {
                return Poll::Ready(());
            }
            self.start_receive();
            progress |= self.poll_receive(context);
            if !progress {
                return Poll::Pending;
            }
        }
    }

    fn fail(&mut self, error: Error) {
        self.ended = true;
        self.link.table.borrow_mut().fail(&error);
    }

    fn poll_receive(&mut self, context: &mut Context<'_>) -> bool {
        let Some(receiving) = &mut self.receiving else { return false };
        let Poll::Ready((result, buffer)) = Pin::new(receiving).poll(context) else { return false };
        self.receiving = None;
        let broken = match result {
            Ok(0) => Some(Error::disconnected("the NBD server closed the connection")),
            Ok(_) => None,
            Err(error) => Some(error.in_context("the connection to the NBD server")),
        };
        let table = &mut *self.link.table.borrow_mut();
        let taken = if self.direct {
            self.replies.give_back(buffer, table, broken.is_some())
        } else {
            let taken = self.replies.feed(&buffer.filled()[self.used..], table);
            self.received = Some((buffer, self.used));
            taken.map(|taken| self.use_up(taken))
        };
        let broken = broken.or(taken.err());
        if let Some(error) = broken {
            self.ended = true;
            table.fail(&error);
        }
        true
    }

    /// Uses `taken` received bytes and makes space after the rest.
    fn use_up(&mut self, taken: usize) {
        let Some((buffer, used)) = &mut self.received else { return };
        *used += taken;
        let rest = buffer.filled().len() - *used;
        if rest > 0 && buffer.missing() < RECEIVE_BYTES / 2 {
            buffer.filled_mut().copy_within(*used.., 0);
            buffer.truncate_filled(rest);
            *used = 0;
        } else if rest == 0 {
            buffer.clear();
            *used = 0;
        }
    }

    fn start_receive(&mut self) {
        if self.receiving.is_some() || self.ended {
            return;
        }
        let nothing_left =
            self.received.as_ref().is_some_and(|(buffer, used)| buffer.filled().len() == *used);
        let direct =
            if nothing_left { self.replies.take_direct(&mut self.link.table.borrow_mut()) } else { None };
        self.direct = direct.is_some();
        let buffer = direct.or_else(|| {
            let (buffer, used) = self.received.take()?;
            self.used = used;
            Some(buffer)
        });
        if let Some(buffer) = buffer {
            self.receiving = Some(self.stream.start_receive(buffer));
        }
    }

    fn poll_send(&mut self, context: &mut Context<'_>) -> bool {
        let mut progress = false;
        loop {
            if let Some(sending) = &mut self.sending {
                let Poll::Ready((result, payload)) = Pin::new(sending).poll(context) else { return progress };
                self.sending = None;
                self.spare = payload;
                self.spare.clear();
                progress = true;
                if result.is_err() && self.receiving.is_some() {
                    // The receive in progress has a caller's buffer: it ends with an error before the task
                    // does.
                    self.shutting_down = Some(Call::new(self.stream.shutdown(Shutdown::Both)));
                } else if let Err(error) = result {
                    self.fail(error.in_context("the connection to the NBD server"));
                }
            }
            if self.ended || self.said_goodbye || self.shutting_down.is_some() {
                return progress;
            }
            let mut table = self.link.table.borrow_mut();
            if !table.take_outgoing(&mut self.spare) {
                if !table.is_closed() {
                    return progress;
                }
                let goodbye = Request { flags: 0, command: command::DISC, cookie: 0, offset: 0, length: 0 };
                self.spare.push(block::Data::copy_of(&goodbye.encode()));
                self.said_goodbye = true;
            }
            self.sending = Some(self.stream.start_send_watched(std::mem::take(&mut self.spare), self.sends));
        }
    }
}
