//! Acceptor of a server's connections: each is handed to a shard, up to a limit, and all end when the server
//! stops.

use super::{Address, Listener, RemoteStream, Shutdown, Stream};
use crate::ShardIndex;
use crate::sync::{Notify, StopToken};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// Number of connected clients of a server, and its limit.
#[derive(Debug)]
pub struct Clients {
    /// Maximum number of connected clients.
    pub max: usize,
    connected: AtomicUsize,
    refused: AtomicU64,
}

impl Clients {
    /// Returns a server's number of clients, at most `max`.
    pub fn new(max: usize) -> Arc<Self> {
        Arc::new(Clients { max, connected: AtomicUsize::new(0), refused: AtomicU64::new(0) })
    }

    /// Counts a client, also beyond the limit.
    pub fn add(self: &Arc<Self>) -> ClientPermit {
        self.connected.fetch_add(1, Ordering::Relaxed);
        ClientPermit(self.clone())
    }

    /// Number of connected clients.
    pub fn connected(&self) -> usize {
        self.connected.load(Ordering::Relaxed)
    }

    /// Number of clients that were refused because of the limit.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }
}

/// Counts a connection against the limit until it is dropped.
pub struct ClientPermit(Arc<Clients>);

impl Drop for ClientPermit {
    fn drop(&mut self) {
        self.0.connected.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Accepts connections until the stop signal; the n-th one is served on shard n mod the number of shards.
/// Connections beyond the limit are closed after `refuse`, with a warning that names the server and its
/// configured address. The requests of a connection are attributed to its peer
/// ([`requester`](crate::requester())).
/// All callers for one limit are on the same shard.
pub async fn accept<F: Future<Output = ()> + 'static>(
    (server, address): (&str, &Address),
    (listener, stop): (&Listener, &StopToken),
    clients: &Arc<Clients>,
    refuse: impl Fn(&Stream),
    serve: impl Fn(RemoteStream, ClientPermit) -> F + Clone + Send + 'static,
) {
    let mut count = 0;
    while let Some(stream) = listener.accept_until(stop).await {
        // Only tasks of this shard add connections, so the check and the increment can't race.
        if clients.connected() >= clients.max {
            clients.refused.fetch_add(1, Ordering::Relaxed);
            refuse(&stream);
            let max = clients.max;
            tracing::warn!(
                "{server}: a client of {address} was refused: the limit of {max} connections is reached"
            );
            continue;
        }
        let requester = stream.requester();
        let remote = match stream.into_remote() {
            Ok(remote) => remote,
            Err(error) => {
                tracing::warn!("{error}");
                continue;
            }
        };
        let (serve, permit) = (serve.clone(), clients.add());
        let shard = ShardIndex(count % crate::shard_count());
        crate::remote::spawn_on_for(requester, shard, move || serve(remote, permit)).detach();
        count += 1;
    }
}

/// Connections of a server on one shard.
pub struct Connections<W> {
    watches: RefCell<BTreeMap<u64, Rc<W>>>,
    next: Cell<u64>,
    ended: Notify,
}

impl<W> Default for Connections<W> {
    fn default() -> Self {
        Connections { watches: RefCell::default(), next: Cell::new(0), ended: Notify::new() }
    }
}

impl<W> Connections<W> {
    /// Adds a connection; returns its number.
    pub fn add(&self, watch: &Rc<W>) -> u64 {
        let number = self.next.replace(self.next.get() + 1);
        self.watches.borrow_mut().insert(number, watch.clone());
        number
    }

    /// Removes a connection that has ended, and drops what it `held`.
    pub fn remove<H>(&self, number: u64, held: H) {
        let listed = self.watches.borrow_mut().remove(&number);
        drop((listed, held));
        self.ended.notify_all();
    }

    /// All connections.
    pub fn all(&self) -> Vec<Rc<W>> {
        self.watches.borrow().values().cloned().collect()
    }

    /// Number of connections.
    pub fn count(&self) -> usize {
        self.watches.borrow().len()
    }

    /// Waits until no connection is left.
    pub async fn all_ended(&self) {
        while self.count() > 0 {
            self.ended.notified().await;
        }
    }

    /// Calls `stop` for all connections and ends their receiving; after `limit` also their sending. Returns
    /// whether all have ended within the limit.
    pub async fn close(&self, limit: Duration, stream: impl Fn(&W) -> &Stream, stop: impl Fn(&W)) -> bool {
        for watch in self.all() {
            stop(&watch);
            // The stream may be closed already.
            let _ = stream(&watch).shutdown(Shutdown::Read).await;
        }
        let have_ended = crate::timeout(limit, self.all_ended()).await.is_ok();
        for watch in self.all() {
            let _ = stream(&watch).shutdown(Shutdown::Both).await;
        }
        have_ended
    }
}
