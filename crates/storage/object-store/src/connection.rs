//! One connection in HTTP/1.1: one request at a time.
//!
//! The head of a response is received while the request is still being sent: a store that is overloaded
//! answers before it has read the body. Such a connection isn't used again, nor is one whose request was
//! dropped: its bytes would belong to another response. While a connection is idle a receive is in flight,
//! which finds bytes that belong to no response, and the end of the connection.

use crate::http::{Chunks, Framing, Head, Method, framing, parse_head};
use block::{Buffer, Data, Error, Payload, Result};
use runtime::net::{self, Address};
use std::cell::Cell;
use std::fmt::Write;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tls::{ClientConfig, Stream};

/// Bytes of one receive, unless they go to a body of known length.
const RECEIVE_BYTES: usize = 32 << 10;
/// Bytes of the receive that is in flight while a connection is idle: the head of the next response.
const IDLE_RECEIVE_BYTES: usize = 4 << 10;
/// Limit of the interim responses before a response.
const MAX_INTERIM: usize = 8;
/// Largest body of a response that isn't a success, in bytes: the description of an error.
pub(crate) const MAX_ERROR_BODY: usize = 64 << 10;

/// Largest body of any response, in bytes, even if the caller permits more: half of the largest [`Buffer`].
pub const MAX_BODY: usize = 1 << 30;

/// A request, without the headers `host` and `content-length`.
pub(crate) struct Request<'r> {
    pub method: Method,
    /// Path and query.
    pub target: &'r str,
    pub headers: &'r [(&'static str, String)],
    pub body: Payload,
    /// Largest body of a response that is a success, in bytes.
    pub max_body: usize,
}

/// A complete response.
#[derive(Debug)]
pub(crate) struct Response {
    pub head: Head,
    pub body: Buffer,
}

impl Response {
    /// The body as text; other bytes are replaced.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(self.body.filled()).into_owned()
    }
}

/// A receive in flight.
type Receive = Pin<Box<dyn Future<Output = (Result<usize>, Buffer)>>>;

/// An open connection without a request.
pub(crate) struct Connection {
    stream: Stream,
    host: String,
    received: Vec<u8>,
    /// Receive that began while the connection was idle.
    waiting: Option<Receive>,
    /// Whether a byte has arrived since the last request.
    pub is_answered: bool,
    /// Time of the last response; `None` before the first one.
    pub used: Option<runtime::Instant>,
}

impl Connection {
    /// Connects to the first address that takes the connection within `limit`, which is for each of them.
    /// `host` is the value of the header.
    ///
    /// # Errors
    /// The last address's error.
    pub async fn open(
        addresses: &[SocketAddr],
        host: &str,
        tls: Option<&ClientConfig>,
        limit: Duration,
    ) -> Result<Connection> {
        let mut error = Error::not_found(format!("no address of {host}; expected a host that resolves"));
        for address in addresses {
            let address = Address::Tcp(*address);
            let connecting = async {
                let socket = net::Stream::connect(&address).await?;
                Box::pin(Stream::connect(socket, tls, limit)).await
            };
            match runtime::timeout(limit, connecting).await {
                Ok(Ok(stream)) => {
                    return Ok(Connection {
                        stream,
                        host: host.to_owned(),
                        received: Vec::new(),
                        waiting: None,
                        is_answered: false,
                        used: None,
                    });
                }
                Ok(Err(failed)) => error = failed,
                Err(_) => error = Error::timed_out(format!("connecting to {address}: not within {limit:?}")),
            }
        }
        Err(error)
    }

    /// Sends a request and receives its response. Also returns whether the connection can be used again.
    /// `first_byte` gets the time from the start to the head, which is set as soon as it is there.
    ///
    /// # Errors
    /// Errors of the connection; [`Error::TimedOut`] if the first byte takes longer than `limit` after the
    /// request was sent; [`Error::Protocol`] for a response that isn't HTTP/1.1, or is larger than permitted.
    pub async fn exchange(
        &mut self,
        request: &Request<'_>,
        limit: Duration,
        first_byte: &Cell<Option<Duration>>,
    ) -> Result<(Response, bool)> {
        let began = runtime::now();
        self.is_answered = false;
        let message = self.encode(request)?;
        let stream = self.stream.clone();
        let (head, is_sent) = {
            let (mut sending, mut receiving) = (pin!(stream.send(message)), pin!(self.receive_head()));
            let (mut sent, mut waiting) = (None, None);
            std::future::poll_fn(|context| {
                if sent.is_none()
                    && let Poll::Ready((outcome, _)) = sending.as_mut().poll(context)
                {
                    sent = Some(outcome);
                    waiting = Some(Box::pin(runtime::sleep(limit)));
                }
                if let Poll::Ready(head) = receiving.as_mut().poll(context) {
                    // A failed send explains more than the end of the connection that it is a part of.
                    let head = match (head, sent.take()) {
                        (Err(_), Some(Err(error))) => Err(error),
                        (head, outcome) => head.map(|head| (head, matches!(outcome, Some(Ok(()))))),
                    };
                    return Poll::Ready(head);
                }
                match waiting.as_mut().map(|waiting| waiting.as_mut().poll(context)) {
                    Some(Poll::Ready(())) => {
                        let text = format!("no response within {limit:?} after the request was sent");
                        Poll::Ready(Err(Error::timed_out(text)))
                    }
                    _ => Poll::Pending,
                }
            })
            .await?
        };
        first_byte.set(Some(began.elapsed()));
        let framing = framing(&head, request.method == Method::Head)?;
        let is_success = (200..300).contains(&head.status);
        let max_body = if is_success { request.max_body.min(MAX_BODY) } else { MAX_ERROR_BODY };
        if !is_success && matches!(framing, Framing::Length(length) if length > max_body as u64) {
            return Ok((Response { head, body: Buffer::new(0) }, false));
        }
        let body = self.receive_body(framing, max_body).await?;
        let continues = is_sent && head.keeps_alive && self.received.is_empty();
        self.used = Some(runtime::now());
        Ok((Response { head, body }, continues))
    }

    /// Whether the server has sent nothing since the last response, nor closed the connection. The receive
    /// that shows it remains in flight, for the next response. Where the server has, the connection can't be
    /// used again.
    pub fn is_silent(&mut self) -> bool {
        let waiting: &mut Receive = self.waiting.get_or_insert_with(|| {
            let stream = self.stream.clone();
            Box::pin(async move { stream.receive(Buffer::new(IDLE_RECEIVE_BYTES)).await })
        });
        waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending()
    }

    /// Encodes a request.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a header that would be more than one; its value may be a secret.
    fn encode(&self, request: &Request<'_>) -> Result<Payload> {
        let Request { method, target, headers, body, .. } = request;
        let mut head = format!("{} {target} HTTP/1.1\r\nhost: {}\r\n", method.name(), self.host);
        if matches!(method, Method::Put | Method::Post) {
            let _ = write!(head, "content-length: {}\r\n", body.len());
        }
        for (name, value) in *headers {
            if value.bytes().any(|byte| !matches!(byte, b' '..=b'~')) {
                return Err(Error::invalid(format!("header {name}: its value isn't printable ASCII")));
            }
            let _ = write!(head, "{name}: {value}\r\n");
        }
        head.push_str("user-agent: siltstone\r\n\r\n");
        let mut message = Payload::with_capacity(body.slices().len() + 1);
        message.push(Data::copy_of(head.as_bytes()));
        body.slices().iter().for_each(|slice| message.push(slice.clone()));
        Ok(message)
    }

    /// Receives at least one byte more.
    async fn receive_more(&mut self, expected: &str) -> Result<()> {
        let (count, buffer) = match self.waiting.take() {
            Some(waiting) => waiting.await,
            None => self.stream.receive(Buffer::new(RECEIVE_BYTES)).await,
        };
        match count? {
            0 => Err(Error::disconnected(format!("the server closed the connection before {expected}"))),
            _ => {
                self.is_answered = true;
                self.received.extend_from_slice(buffer.filled());
                Ok(())
            }
        }
    }

    /// Receives the head of the response. Interim ones are skipped.
    async fn receive_head(&mut self) -> Result<Head> {
        let mut interim = 0;
        loop {
            match parse_head(&self.received)? {
                Some((head, length)) => {
                    self.received.drain(..length);
                    if !head.is_interim() {
                        return Ok(head);
                    }
                    interim += 1;
                    if head.status == 101 || interim > MAX_INTERIM {
                        let text = format!("interim response {}; expected a final one", head.status);
                        return Err(Error::protocol(text));
                    }
                }
                None => self.receive_more("a response").await?,
            }
        }
    }

    async fn receive_body(&mut self, framing: Framing, max_body: usize) -> Result<Buffer> {
        match framing {
            Framing::Empty => Ok(Buffer::new(0)),
            Framing::Length(length) => {
                let Some(length) = usize::try_from(length).ok().filter(|length| *length <= max_body) else {
                    return Err(Error::protocol(format!(
                        "a body of {length} bytes; expected at most {max_body}"
                    )));
                };
                let mut body = Buffer::new(length);
                let there = self.received.len().min(length);
                body.append(&self.received[..there]);
                self.received.drain(..there);
                let (received, body) = self.stream.receive_exact(body).await;
                received.map(|()| body)
            }
            Framing::Chunked => {
                let (mut chunks, mut body) = (Chunks::new(max_body as u64), Vec::new());
                loop {
                    let used = chunks.decode(&self.received, &mut body)?;
                    self.received.drain(..used);
                    if chunks.is_complete() {
                        return Ok(Buffer::copy_of(&body));
                    }
                    self.receive_more("the last chunk of the body").await?;
                }
            }
        }
    }
}
