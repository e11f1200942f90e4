//! Server that listens and hands each connection to a shard.
//!
//! # Promises
//! - Connections are accepted on shard 0; the n-th one is served on shard n mod the number of shards, through
//!   that shard's own handle of the store.
//! - There are at most `max_connections`; further ones are closed at once.
//! - With certificates every connection is in TLS; a handshake that fails, or takes longer than
//!   [`tls::HANDSHAKE_LIMIT`], ends its connection only.
//! - With passwords a client has [`LOGIN_LIMIT`](crate::users::LOGIN_LIMIT) to log in, from its connection on
//!   and including the handshake.
//! - Addresses other than unix sockets and loopback are refused unless `allow_remote` is set, or TLS is with
//!   certificates of clients or with passwords.
//! - [`Server::stop`] refuses new clients, completes the commands in execution (their replies are sent for at
//!   most [`STOP_LIMIT`]), closes the connections and drops the handles.
//!
//! The protocol on a connection is in `connection`.

use crate::connection::{End, serve};
use crate::facts::Facts;
use crate::users::Users;
use block::{Error, Result, Status};
use kv::Store;
use runtime::PerShard;
use runtime::net::acceptor::{ClientPermit, Clients, Connections, accept};
use runtime::net::{self, Access, Address, Listener, RemoteStream};
use runtime::sync::{StopSource, StopToken};
use serde_json::json;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tls::Stream;

/// Time limit for clients to receive their last replies when the server stops.
pub const STOP_LIMIT: Duration = Duration::from_secs(5);
/// Default maximum number of connected clients.
pub const MAX_CONNECTIONS: usize = 1024;

/// Configuration of a server.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// Addresses to listen on.
    pub addresses: Vec<Address>,
    /// Owner and permissions of unix sockets.
    pub access: Access,
    /// Maximum number of connected clients.
    pub max_connections: usize,
    /// Whether addresses that other machines can reach are permitted without TLS or authentication.
    pub allow_remote: bool,
    /// Certificates; `None` serves plain text.
    pub tls: Option<tls::ServerConfig>,
    /// Users and passwords.
    pub users: Users,
}

impl ServerConfig {
    /// Returns the configuration of a server on one address, with default limits.
    pub fn new(address: Address) -> Self {
        let access = Access::default();
        ServerConfig {
            addresses: vec![address],
            access,
            max_connections: MAX_CONNECTIONS,
            allow_remote: false,
            tls: None,
            users: Users::default(),
        }
    }
}

impl ServerConfig {
    /// Whether strangers of the network can neither read nor change anything.
    pub fn is_protected(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.verifies_clients() || !self.users.admits_strangers())
    }
}

/// Permission of an address that other machines can reach, in error messages.
pub(crate) const PERMISSION: &str = "set tls, with certificates of clients or passwords, or allow_remote = true if you trust all machines of the network";

/// Server of a store, listening or not.
pub struct Server {
    config: ServerConfig,
    running: Mutex<Option<Running>>,
}

struct Running {
    shared: Arc<Shared>,
    addresses: Vec<Address>,
    stop: StopSource,
    /// Raised when the listeners are closed.
    closed: StopToken,
    /// Errors of closing the listeners.
    failures: Arc<Mutex<Vec<Error>>>,
}

struct Shared {
    facts: Arc<Facts>,
    tls: Option<tls::ServerConfig>,
    parts: PerShard<ShardPart>,
}

/// A connection of a shard, as the server tracks it.
struct Watch {
    stream: net::Stream,
    stopping: Rc<Cell<bool>>,
}

/// State of a server on one shard.
struct ShardPart {
    /// `None` once the server has stopped.
    store: RefCell<Option<Store>>,
    connections: Connections<Watch>,
}

impl ShardPart {
    fn new(store: Store) -> Self {
        ShardPart { store: RefCell::new(Some(store)), connections: Connections::default() }
    }

    /// Ends the connections of this shard and drops its handle.
    async fn close(&self) {
        let stop = |watch: &Watch| watch.stopping.set(true);
        if !self.connections.close(STOP_LIMIT, |watch| &watch.stream, stop).await {
            // A connection may wait for the store, for example for a compaction; closing the store ends the
            // wait.
            let _still = runtime::timeout(STOP_LIMIT, self.connections.all_ended()).await;
        }
        drop(self.store.take());
    }
}

impl Server {
    /// Creates a server after checking the configuration; opens nothing.
    ///
    /// # Errors
    /// [`Error::Invalid`] without an address, or for one that [`Address::check_reach`] refuses.
    pub fn new(config: ServerConfig) -> Result<Self> {
        if config.addresses.is_empty() {
            return Err(Error::invalid(
                "redis door without an address: expected a unix socket or a TCP address",
            ));
        }
        for address in &config.addresses {
            let checked = address.check_reach(config.allow_remote || config.is_protected(), PERMISSION);
            checked.map_err(|error| error.in_context("redis door"))?;
        }
        Ok(Server { config, running: Mutex::new(None) })
    }

    fn running(&self) -> std::sync::MutexGuard<'_, Option<Running>> {
        // Nothing panics while the lock is held.
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Listens, and serves the store on every shard; returns once clients can connect. Called on shard 0.
    ///
    /// # Errors
    /// [`Error::Busy`] if the server is running already or another process listens at an address; errors of
    /// the kernel.
    pub async fn start(&self, store: &Store) -> Result<()> {
        if self.running().is_some() {
            return Err(Error::busy(format!("redis door {}: running already", self.config.addresses[0])));
        }
        let mut listeners = Vec::new();
        let opened = self.open(&mut listeners, store.clone()).await;
        let (shared, addresses) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                for listener in listeners {
                    // The caller gets the first error.
                    let _ = listener.close().await;
                }
                return Err(error);
            }
        };
        let (stop, closed, failures) =
            (StopSource::new(), StopSource::new(), Arc::new(Mutex::new(Vec::new())));
        let closed_token = closed.token();
        let accepting =
            listeners.into_iter().zip(self.config.addresses.clone()).map(|(listener, address)| {
                let (shared, stop, failures) = (shared.clone(), stop.token(), failures.clone());
                runtime::spawn(async move {
                    // As in redis; a client that doesn't read the error sees the end of the connection.
                    let is_plain = shared.tls.is_none();
                    let refuse = move |stream: &net::Stream| {
                        if is_plain {
                            let _ = stream.try_send(b"-ERR max number of clients reached\r\n");
                        }
                    };
                    let clients = shared.facts.clients.clone();
                    let serve = move |remote, permit| run_connection(shared.clone(), remote, permit);
                    let server = ("redis door", &address);
                    accept(server, (&listener, &stop), &clients, refuse, serve).await;
                    if let Err(error) = listener.close().await {
                        failures.lock().unwrap_or_else(PoisonError::into_inner).push(error);
                    }
                })
            });
        let accepting: Vec<_> = accepting.collect();
        runtime::spawn(async move {
            for task in accepting {
                task.await;
            }
            closed.stop();
        })
        .detach();
        *self.running() = Some(Running { shared, addresses, stop, closed: closed_token, failures });
        Ok(())
    }

    async fn open(&self, listeners: &mut Vec<Listener>, store: Store) -> Result<(Arc<Shared>, Vec<Address>)> {
        for address in &self.config.addresses {
            let listening = Listener::replace_stale(address, self.config.access).await;
            listeners.push(listening.map_err(|error| error.in_context("redis door"))?);
        }
        let addresses: Vec<Address> =
            listeners.iter().map(|listener| listener.local_address().clone()).collect();
        let port = addresses.iter().find_map(|address| match address {
            Address::Tcp(tcp) => Some(tcp.port()),
            Address::Unix(_) => None,
        });
        let names = addresses.iter().map(Address::to_string).collect();
        let facts = Arc::new(Facts::new(
            names,
            port.unwrap_or(0),
            Clients::new(self.config.max_connections),
            self.config.users.clone(),
        ));
        let shared = Arc::new(Shared { facts, tls: self.config.tls.clone(), parts: PerShard::new() });
        let opening = shared.parts.open(move || {
            let store = store.clone();
            async move { Ok(ShardPart::new(store)) }
        });
        opening.await?;
        Ok((shared, addresses))
    }

    /// Stops serving. Does nothing if the server isn't running.
    ///
    /// # Errors
    /// Errors of [`Listener::close`]; all other steps are completed nevertheless.
    pub async fn stop(&self) -> Result<()> {
        let Some(running) = self.running().take() else { return Ok(()) };
        running.stop.stop();
        running.closed.stopped().await;
        running.shared.parts.close(async |part: &ShardPart| part.close().await).await;
        let failures = std::mem::take(&mut *running.failures.lock().unwrap_or_else(PoisonError::into_inner));
        failures.into_iter().next().map_or(Ok(()), Err)
    }

    /// Whether clients connect in TLS.
    pub fn is_tls(&self) -> bool {
        self.config.tls.is_some()
    }

    /// Addresses of the server; while it is running, with the actual ports.
    pub fn addresses(&self) -> Vec<Address> {
        self.running()
            .as_ref()
            .map_or_else(|| self.config.addresses.clone(), |running| running.addresses.clone())
    }

    /// Addresses, connections and counters.
    pub fn status(&self) -> Status {
        let addresses: Vec<String> = self.addresses().iter().map(Address::to_string).collect();
        let mut status = Status::new();
        status.insert("addresses".into(), json!(addresses));
        status.insert("max_connections".into(), json!(self.config.max_connections));
        if let Some(running) = &*self.running() {
            let facts = &running.shared.facts;
            status.insert("connections".into(), json!(facts.clients.connected()));
            status.insert("accepted_connections".into(), json!(facts.accepted()));
            status.insert("refused_connections".into(), json!(facts.clients.refused()));
            status.insert("cut_off_connections".into(), json!(facts.cut_off()));
            status.insert("failed_logins".into(), json!(facts.failed_logins()));
            status.insert("commands".into(), json!(facts.commands()));
            status.insert("buffer_bytes".into(), json!(facts.buffered()));
        }
        status
    }
}

/// Serves a connection on its shard; the shard lists it until it ends.
async fn run_connection(shared: Arc<Shared>, remote: RemoteStream, permit: ClientPermit) {
    let Some(part) = shared.parts.here() else { return };
    let Some(store) = part.store.borrow().clone() else { return };
    let begin = runtime::now();
    let watch = Rc::new(Watch { stream: remote.into_stream(), stopping: Rc::default() });
    let number = part.connections.add(&watch);
    let accepted = Stream::accept(watch.stream.clone(), shared.tls.as_ref(), tls::HANDSHAKE_LIMIT).await;
    let end = match accepted {
        Ok(stream) => {
            let end = serve(&stream, store, shared.facts.clone(), watch.stopping.clone(), begin).await;
            if !matches!(end, End::Lost(_) | End::Silent | End::Stranger) {
                stream.say_goodbye().await;
            }
            end
        }
        Err(Error::Protocol(text) | Error::PermissionDenied(text) | Error::TimedOut(text)) => {
            End::Violation(text.into_owned())
        }
        Err(error) => End::Lost(error),
    };
    match end {
        End::Goodbye | End::Stopped => tracing::debug!("redis door: {end}"),
        End::Lost(_) => tracing::info!("redis door: {end}"),
        End::Silent | End::Stranger | End::Violation(_) | End::Http => shared.facts.count_cut_off(end),
    }
    part.connections.remove(number, (watch, permit));
}

#[cfg(test)]
mod tests {
    use super::*;
    use runtime::ShardIndex;

    #[test]
    fn connections_are_on_all_shards() {
        let main = || async {
            let shape =
                zns::Shape { zones: 64, zone_size: 1 << 20, zone_capacity: 1 << 20, ..Default::default() };
            let zones = Arc::new(zns::Zns::in_memory(&shape, zns::Settings::default()).unwrap());
            let settings = kv::Settings { buffer_bytes: 1 << 20, ..Default::default() };
            let store = Store::format(zones, &settings).await.unwrap();
            let server = Server::new(ServerConfig::new("127.0.0.1:6379".parse().unwrap())).unwrap();
            server.start(&store).await.unwrap();
            let mut clients = Vec::new();
            for _ in 0..4 {
                let client = net::Stream::connect(&server.addresses()[0]).await.unwrap();
                client.send(block::Data::copy_of(b"PING\r\n").into()).await.0.unwrap();
                client.receive_exact(block::Buffer::new(7)).await.0.unwrap();
                clients.push(client);
            }
            let shared = server.running().as_ref().unwrap().shared.clone();
            for shard in 0..2 {
                let shared = shared.clone();
                let count = async move || shared.parts.here().unwrap().connections.count();
                assert_eq!(runtime::spawn_on(ShardIndex(shard), count).await, Ok(2));
            }
            drop(shared);
            server.stop().await.unwrap();
            store.close().await.unwrap();
        };
        let simulation = runtime::Simulation { shards: 2, ..runtime::Simulation::new(1) };
        runtime::simulate(simulation, main).unwrap();
    }
}
