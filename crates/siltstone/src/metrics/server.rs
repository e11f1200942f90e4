//! Server of metrics: HTTP on a unix or TCP socket, in plain text or in TLS, on shard 0.
//!
//! # Promises
//! - Those of [`Clients`] about tasks and numbers. So at most one text for each client is in memory.
//! - A head that is incomplete after [`HEAD_LIMIT`], a response that isn't received after [`ANSWER_LIMIT`],
//!   and silence of [`SILENCE_LIMIT`] end a connection.
//! - The file that a killed server left at the path of a unix socket is replaced.
//! - [`MetricsServer::stop`] accepts no new clients, and ends those that are connected.

use super::http::{self, MAX_HEAD, Request, Status};
use super::{Endpoint, Format};
use crate::operator_clients::{Clients, Disconnected, PIECE_BYTES, send};
use block::{Buffer, Call, Error, Result};
use runtime::net::{self, Access, Address, LOCK_LIMIT, Listener};
use runtime::sync::StopToken;
use std::cell::OnceCell;
use std::rc::Rc;
use std::time::Duration;
use tls::Stream;

/// Time limit of a request from its first byte to the end of its head.
const HEAD_LIMIT: Duration = Duration::from_secs(10);
/// Time limit for a client to receive a response.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// Time limit of silence between requests: longer than the usual interval of scrapes.
const SILENCE_LIMIT: Duration = Duration::from_secs(330);

/// An open stack as a source of metrics.
pub trait Measured {
    /// Returns the metrics as text in this format.
    ///
    /// # Errors
    /// Errors of the encoder.
    fn metrics(&self, format: Format) -> Call<'_, Result<String>>;
}

/// Listening server of metrics.
pub struct MetricsServer {
    address: String,
    shared: Rc<Shared>,
    clients: Clients,
}

struct Shared {
    tls: Option<tls::ServerConfig>,
    /// Empty while the stack is being opened.
    stack: OnceCell<Rc<dyn Measured>>,
}

impl MetricsServer {
    /// Listens. Until [`opened`](Self::opened) is called, requests are answered by 503.
    ///
    /// # Errors
    /// [`Busy`](block::Error::Busy) if another server listens there; errors of the kernel.
    pub async fn start(endpoint: Endpoint) -> Result<MetricsServer> {
        let Endpoint { address, tls } = endpoint;
        // The kernel closes the socket of a killed server a moment after its end.
        let listen = async || Listener::replace_stale(&address, Access::default()).await;
        let listener = runtime::retry_while_busy(LOCK_LIMIT, listen).await;
        let listener = listener.map_err(|error| error.in_context("--metrics"))?;
        let scheme = if tls.is_some() { "https" } else { "http" };
        let address = match listener.local_address() {
            Address::Tcp(tcp) => format!("{scheme}://{tcp}/metrics"),
            unix => unix.to_string(),
        };
        // A client in TLS can't read a refusal without a handshake.
        let refusal = if tls.is_some() { String::new() } else { refusal(Status::Unavailable) };
        let shared = Rc::new(Shared { tls, stack: OnceCell::new() });
        let served = shared.clone();
        let clients = Clients::accept(("--metrics", listener), refusal.into(), move |socket, stop| {
            Client { shared: served.clone(), stop }.serve(socket)
        });
        tracing::info!("metrics at {address}");
        Ok(MetricsServer { address, shared, clients })
    }

    /// Sets the open stack, whose metrics are served afterwards.
    pub fn opened(&self, stack: Rc<dyn Measured>) {
        // Called once, so it isn't set yet.
        let _ = self.shared.stack.set(stack);
    }

    /// Returns the address for clients: a URL, or that of a unix socket.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Stops the server, and releases the stack.
    pub async fn stop(self) {
        self.clients.stop().await;
    }
}

/// Returns the response of a refusal, after which the connection ends.
fn refusal(status: Status) -> String {
    let text = http::explanation(status);
    http::head(status, "text/plain; charset=utf-8", text.len(), false) + &text
}

/// Connected client.
struct Client {
    shared: Rc<Shared>,
    stop: StopToken,
}

impl Client {
    async fn serve(self, socket: net::Stream) {
        let accepting = Stream::accept(socket, self.shared.tls.as_ref(), tls::HANDSHAKE_LIMIT);
        match self.stop.unless_stopped(accepting).await {
            Some(Ok(stream)) => {
                // The connection ends by the client's action or by the server's stop: neither is an error.
                let _ = self.stop.unless_stopped(self.converse(&stream)).await;
            }
            Some(Err(error)) => tracing::info!("a client of --metrics: {error}"),
            None => {}
        }
    }

    async fn converse(&self, stream: &Stream) -> Result<(), Disconnected> {
        let mut received = Vec::new();
        let mut silence_limit = HEAD_LIMIT;
        loop {
            let request = match self.next_request(stream, &mut received, silence_limit).await? {
                Ok(request) => request,
                Err(status) => {
                    send(stream, &[refusal(status).as_bytes()], ANSWER_LIMIT).await?;
                    stream.say_goodbye().await;
                    return Err(Disconnected);
                }
            };
            received.drain(..request.length);
            silence_limit = SILENCE_LIMIT;
            self.answer(stream, request).await?;
            if !request.continues {
                stream.say_goodbye().await;
                return Err(Disconnected);
            }
        }
    }

    /// Receives until the head of a request is complete; the status of a refusal if it is invalid or late.
    async fn next_request(
        &self,
        stream: &Stream,
        received: &mut Vec<u8>,
        silence_limit: Duration,
    ) -> Result<Result<Request, Status>, Disconnected> {
        let mut begun = runtime::now();
        loop {
            match http::parse(received) {
                Ok(Some(request)) => return Ok(Ok(request)),
                Ok(None) => {}
                Err(status) => return Ok(Err(status)),
            }
            let is_silent = received.is_empty();
            let limit = if is_silent { silence_limit } else { HEAD_LIMIT };
            let left = begun + limit - runtime::now();
            // The parser refuses a head of this length, so there is space.
            let space = (MAX_HEAD - received.len()).min(PIECE_BYTES);
            match runtime::timeout(left, stream.receive(Buffer::new(space))).await {
                Ok((Ok(count), buffer)) if count > 0 => received.extend_from_slice(buffer.filled()),
                Ok(_) => return Err(Disconnected),
                Err(_) if is_silent => return Err(Disconnected),
                Err(_) => return Ok(Err(Status::TimedOut)),
            }
            if is_silent {
                begun = runtime::now();
            }
        }
    }

    async fn answer(&self, stream: &Stream, request: Request) -> Result<(), Disconnected> {
        let Request { wants_body, continues, format, .. } = request;
        let metrics = match (format, self.shared.stack.get()) {
            (None, _) => Err(Status::NotFound),
            (Some(_), None) => Err(Status::Unavailable),
            (Some(format), Some(stack)) => {
                let made = runtime::timeout(ANSWER_LIMIT, stack.metrics(format)).await;
                let late =
                    |_| Err(Error::timed_out("a part of the stack hasn't reported its status for 10 s"));
                made.unwrap_or_else(late).map_err(|error| {
                    tracing::warn!("--metrics: {error}");
                    Status::Failed
                })
            }
        };
        let (status, content_type, body) = match metrics {
            Ok(text) => (Status::Ok, format.unwrap_or(Format::Prometheus).content_type(), text),
            Err(status) => (status, "text/plain; charset=utf-8", http::explanation(status)),
        };
        let head = http::head(status, content_type, body.len(), continues);
        let body = if wants_body { body.as_bytes() } else { &[] };
        // The body may have megabytes, so it isn't joined with the head.
        send(stream, &[head.as_bytes(), body], ANSWER_LIMIT).await
    }
}
