//! Server of metrics: HTTP on a unix or TCP socket, in plain text or in TLS, on shard 0.
//!
//! # Promises
//! - Each client has its own task: a slow, silent or hostile one doesn't delay others, nor the doors.
//! - At most [`MAX_CLIENTS`] are connected; further ones are refused. A head that is incomplete after
//!   [`HEAD_LIMIT`], a response that isn't received after [`ANSWER_LIMIT`], and silence of [`SILENCE_LIMIT`]
//!   end a connection. So at most one text for each client is in memory.
//! - The file that a killed server left at the path of a unix socket is replaced.
//! - [`MetricsServer::stop`] accepts no new clients, and ends those that are connected.

use super::http::{self, MAX_HEAD, Request, Status};
use super::{Endpoint, Format};
use block::{Buffer, Call, Data, Error, Payload, Result};
use runtime::net::{Access, Address, LOCK_LIMIT, Listener};
use runtime::sync::{Notify, StopSource, StopToken};
use runtime::{JoinHandle, WarningLimit, net};
use std::cell::{Cell, OnceCell};
use std::rc::Rc;
use std::time::Duration;
use tls::Stream;

/// Limit of connected clients.
const MAX_CLIENTS: usize = 16;
/// Time limit of a request from its first byte to the end of its head.
const HEAD_LIMIT: Duration = Duration::from_secs(10);
/// Time limit for a client to receive a response.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// Time limit of silence between requests: longer than the usual interval of scrapes.
const SILENCE_LIMIT: Duration = Duration::from_secs(330);
/// Time limit for a refused client to receive the reason.
const REFUSAL_LIMIT: Duration = Duration::from_millis(100);
/// Interval between two warnings about refused clients.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);
/// Bytes per receive and send.
const PIECE: usize = 16 << 10;

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
    stop: StopSource,
    accepting: JoinHandle<()>,
}

struct Shared {
    tls: Option<tls::ServerConfig>,
    /// Empty while the stack is being opened.
    stack: OnceCell<Rc<dyn Measured>>,
    clients: Cell<usize>,
    /// Notified when a client has disconnected.
    gone: Notify,
    stop: StopToken,
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
        let stop = StopSource::new();
        let (stack, clients, gone) = (OnceCell::new(), Cell::new(0), Notify::new());
        let shared = Rc::new(Shared { tls, stack, clients, gone, stop: stop.token() });
        let accepting = runtime::spawn(accept(shared.clone(), listener));
        tracing::info!("metrics at {address}");
        Ok(MetricsServer { address, shared, stop, accepting })
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
        self.stop.stop();
        self.accepting.await;
        while self.shared.clients.get() > 0 {
            self.shared.gone.notified().await;
        }
    }
}

async fn accept(shared: Rc<Shared>, listener: Listener) {
    let warnings = WarningLimit::new(WARNING_INTERVAL);
    while let Some(socket) = listener.accept_until(&shared.stop).await {
        if shared.clients.get() < MAX_CLIENTS {
            let client = Client::new(shared.clone());
            runtime::spawn(client.serve(socket)).detach();
            continue;
        }
        warnings.warn(format_args!(
            "a client of --metrics was refused: the limit of {MAX_CLIENTS} clients is reached"
        ));
        if shared.tls.is_none() {
            let response = refusal(Status::Unavailable);
            // It fits into the empty socket buffer. The connection is closed even if it isn't received.
            let sending = socket.send(Data::copy_of(response.as_bytes()).into());
            let _ = shared.stop.unless_stopped(runtime::timeout(REFUSAL_LIMIT, sending)).await;
        }
    }
    if let Err(error) = listener.close().await {
        tracing::warn!("--metrics: {error}");
    }
}

/// Returns the response of a refusal, after which the connection ends.
fn refusal(status: Status) -> String {
    let text = http::explanation(status);
    http::head(status, "text/plain; charset=utf-8", text.len(), false) + &text
}

/// Client, counted until it is dropped.
struct Client {
    shared: Rc<Shared>,
}

impl Drop for Client {
    fn drop(&mut self) {
        self.shared.clients.set(self.shared.clients.get() - 1);
        self.shared.gone.notify_all();
    }
}

/// The connection has ended.
struct Over;

impl Client {
    fn new(shared: Rc<Shared>) -> Client {
        shared.clients.set(shared.clients.get() + 1);
        Client { shared }
    }

    async fn serve(self, socket: net::Stream) {
        let accepting = Stream::accept(socket, self.shared.tls.as_ref(), tls::HANDSHAKE_LIMIT);
        match self.shared.stop.unless_stopped(accepting).await {
            Some(Ok(stream)) => {
                // The connection ends by the client's action or by the server's stop: neither is an error.
                let _ = self.shared.stop.unless_stopped(self.converse(&stream)).await;
            }
            Some(Err(error)) => tracing::info!("a client of --metrics: {error}"),
            None => {}
        }
    }

    async fn converse(&self, stream: &Stream) -> Result<(), Over> {
        let mut received = Vec::new();
        let mut silence_limit = HEAD_LIMIT;
        loop {
            let request = match self.next_request(stream, &mut received, silence_limit).await? {
                Ok(request) => request,
                Err(status) => {
                    send(stream, refusal(status).as_bytes()).await?;
                    stream.say_goodbye().await;
                    return Err(Over);
                }
            };
            received.drain(..request.length);
            silence_limit = SILENCE_LIMIT;
            self.answer(stream, request).await?;
            if !request.continues {
                stream.say_goodbye().await;
                return Err(Over);
            }
        }
    }

    /// Receives until the head of a request is complete; the status of a refusal if it is invalid or late.
    async fn next_request(
        &self,
        stream: &Stream,
        received: &mut Vec<u8>,
        silence_limit: Duration,
    ) -> Result<Result<Request, Status>, Over> {
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
            let space = (MAX_HEAD - received.len()).min(PIECE);
            match runtime::timeout(left, stream.receive(Buffer::new(space))).await {
                Ok((Ok(count), buffer)) if count > 0 => received.extend_from_slice(buffer.filled()),
                Ok(_) => return Err(Over),
                Err(_) if is_silent => return Err(Over),
                Err(_) => return Ok(Err(Status::TimedOut)),
            }
            if is_silent {
                begun = runtime::now();
            }
        }
    }

    async fn answer(&self, stream: &Stream, request: Request) -> Result<(), Over> {
        let Request { wants_body, continues, format, .. } = request;
        let metrics = match (format, self.shared.stack.get()) {
            (None, _) => Err(Status::NotFound),
            (Some(_), None) => Err(Status::Unavailable),
            (Some(format), Some(stack)) => {
                let made = runtime::timeout(ANSWER_LIMIT, stack.metrics(format)).await;
                let late = |_| Err(Error::timed_out("a part of the stack hasn't told its status for 10 s"));
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
        let mut response = http::head(status, content_type, body.len(), continues);
        if wants_body {
            response += &body;
        }
        send(stream, response.as_bytes()).await
    }
}

/// Sends a response in pieces, which bounds the memory in flight.
async fn send(stream: &Stream, bytes: &[u8]) -> Result<(), Over> {
    let sending = runtime::timeout(ANSWER_LIMIT, async {
        for piece in bytes.chunks(PIECE) {
            let (sent, _) = stream.send(Payload::from(Data::copy_of(piece))).await;
            if sent.is_err() {
                return Err(Over);
            }
        }
        Ok(())
    });
    sending.await.unwrap_or(Err(Over))
}
