//! Clients of a server's socket that isn't a door: the control socket, or metrics. Shard 0 serves them.
//!
//! # Promises
//! - Each client has its own task: a slow, silent or hostile one doesn't delay others, nor the doors.
//! - At most [`MAX_CLIENTS`] are connected. A further one is disconnected after a refusal, which it has
//!   [`REFUSAL_LIMIT`] to receive.
//! - [`Clients::stop`] accepts no new clients, and ends when all have disconnected. Their tasks end soon
//!   after the stop signal that they are given.

use block::{Data, Payload};
use runtime::net::{self, Listener};
use runtime::sync::{Notify, StopSource, StopToken};
use runtime::{JoinHandle, WarningLimit, spawn, timeout};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

/// Limit of connected clients.
pub const MAX_CLIENTS: usize = 16;
/// Bytes per receive.
pub const PIECE_BYTES: usize = 16 << 10;
/// Bytes per send. Metrics may have megabytes, and each send is a turn of the shard.
const SENT_BYTES: usize = 64 << 10;
/// Time limit for a refused client to receive the reason.
const REFUSAL_LIMIT: Duration = Duration::from_millis(100);

/// Interval between two warnings about refused clients.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);

/// The connection has ended.
pub struct Disconnected;

/// Accepted clients of one socket.
pub struct Clients {
    count: Rc<Count>,
    stop: StopSource,
    accepting: JoinHandle<()>,
}

#[derive(Default)]
struct Count {
    connected: Cell<usize>,
    /// Notified when a client has disconnected.
    disconnected: Notify,
}

/// Client, counted until it is dropped.
struct Client(Rc<Count>);

impl Drop for Client {
    fn drop(&mut self) {
        self.0.connected.set(self.0.connected.get() - 1);
        self.0.disconnected.notify_all();
    }
}

impl Clients {
    /// Accepts clients of the socket with this name in messages, and serves each in a task. One beyond the
    /// limit gets `refusal`.
    pub fn accept<F: Future<Output = ()> + 'static>(
        (name, listener): (&'static str, Listener),
        refusal: Vec<u8>,
        serve: impl Fn(net::Stream, StopToken) -> F + 'static,
    ) -> Clients {
        let (count, stop) = (Rc::new(Count::default()), StopSource::new());
        let (counted, token) = (count.clone(), stop.token());
        let accepting = spawn(async move {
            let warnings = WarningLimit::new(WARNING_INTERVAL);
            while let Some(socket) = listener.accept_until(&token).await {
                if counted.connected.get() >= MAX_CLIENTS {
                    warnings.warn(format_args!(
                        "a client of {name} was refused: the limit of {MAX_CLIENTS} clients is reached"
                    ));
                    // It fits into the empty socket buffer. The connection is closed in any case.
                    let sending = socket.send(Data::copy_of(&refusal).into());
                    let _ = token.unless_stopped(timeout(REFUSAL_LIMIT, sending)).await;
                    continue;
                }
                counted.connected.set(counted.connected.get() + 1);
                let (client, serving) = (Client(counted.clone()), serve(socket, token.clone()));
                spawn(async move {
                    serving.await;
                    drop(client);
                })
                .detach();
            }
            if let Err(error) = listener.close().await {
                tracing::warn!("{name}: {error}");
            }
        });
        Clients { count, stop, accepting }
    }

    /// Stops, and waits until all clients have disconnected and what serves them is released.
    pub async fn stop(self) {
        self.stop.stop();
        self.accepting.await;
        while self.count.connected.get() > 0 {
            self.count.disconnected.notified().await;
        }
    }
}

/// Sends messages one after the other in pieces, which bounds the memory in flight, all within a time limit.
pub async fn send(stream: &tls::Stream, messages: &[&[u8]], limit: Duration) -> Result<(), Disconnected> {
    let sending = timeout(limit, async {
        for piece in messages.iter().flat_map(|message| message.chunks(SENT_BYTES)) {
            let (sent, _) = stream.send(Payload::from(Data::copy_of(piece))).await;
            if sent.is_err() {
                return Err(Disconnected);
            }
        }
        Ok(())
    });
    sending.await.unwrap_or(Err(Disconnected))
}
