//! Server that listens and hands each connection to a shard.
//!
//! # Promises
//! - Connections are accepted on shard 0; the n-th one is served on shard n mod the number of shards, through
//!   that shard's own handles, which are opened once per shard and export.
//! - There are never more than `max_connections`; further ones are closed at once. All connections together
//!   buffer at most [`BUFFER_BYTES`] of requests and replies, plus 512 KiB per connection, and
//!   [`tls::MAX_CONNECTION_BYTES`] for one in TLS.
//! - [`Server::stop`] accepts no new clients, lets requests in flight end (their replies are sent for at most
//!   [`STOP_LIMIT`]; devices always end theirs), closes the connections and drops the handles.
//! - A unix socket's file is created and removed as [`runtime::net`] promises: one that a killed server left
//!   is replaced; any other file at its path remains and is an error.
//!
//! `connection` has the protocol of a connection.

use super::budget::Budget;
use super::connection::{End, Offered, Watch, serve};
use super::negotiation::ExportDescription;
use super::protocol::MAX_STRING;
use super::source::ExportSource;
use super::uri::uri;
use crate::served::export::Export;
use block::{Device, DevicePart, Error, Result, Status};
use runtime::net::acceptor::{ClientPermit, Clients, Connections, accept};
use runtime::net::{Access, Address, Listener, RemoteStream, Shutdown};
use runtime::sync::{StopSource, StopToken};
use runtime::{PerShard, ShardIndex, WarningLimit};
use serde_json::json;
use std::cell::{Cell, RefCell};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

/// Time limit for clients to receive their last replies when the server stops.
pub const STOP_LIMIT: Duration = Duration::from_secs(10);
/// Limit of the bytes of requests and replies of all connections of a server, beyond 512 KiB per connection.
pub const BUFFER_BYTES: u64 = 256 << 20;
/// Minimum time between two warnings of clients that were cut off.
const WARNING_INTERVAL: Duration = Duration::from_secs(1);
/// Interval of checking deadlines.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// Configuration of an export.
pub struct ExportConfig {
    /// Name by which clients ask for it: at most 4096 bytes, no NUL.
    pub name: String,
    /// Text for users; may be empty.
    pub description: String,
    /// Device to serve.
    pub device: Arc<dyn DevicePart>,
    /// Whether writes are refused even if the device accepts them.
    pub read_only: bool,
}

impl ExportConfig {
    /// Properties that the handshake announces.
    pub(super) fn describe(&self) -> ExportDescription {
        let geometry = self.device.geometry();
        ExportDescription {
            name: self.name.clone(),
            description: self.description.clone(),
            size: geometry.bytes(),
            read_only: self.read_only || geometry.read_only,
            several_connections: true,
            preferred_block: (geometry.block_size.bytes() as u32).max(4096),
        }
    }
}

/// Certificates of a server, and whether clients have to use TLS.
#[derive(Debug, Clone)]
pub struct ServerTls {
    /// Certificates and rules.
    pub config: tls::ServerConfig,
    /// Whether clients without TLS are refused.
    pub required: bool,
}

impl ServerTls {
    /// Whether only clients with a certificate get an export.
    pub fn keeps_strangers_out(&self) -> bool {
        self.required && self.config.verifies_clients()
    }
}

/// Permission of an address that other machines can reach, in error messages.
pub(super) const PERMISSION: &str =
    "set tls, with certificates of clients, or allow_remote = true if you trust all machines of the network";

/// Configuration of a server.
pub struct ServerConfig {
    /// Address to listen on.
    pub address: Address,
    /// Owner and permissions of a unix socket.
    pub access: Access,
    /// Exports; the first one is also the default export.
    pub exports: Vec<ExportConfig>,
    /// Limit of connected clients.
    pub max_connections: usize,
    /// Whether an address that other machines can reach is permitted without certificates of clients.
    pub allow_remote: bool,
    /// TLS; `None` offers none.
    pub tls: Option<ServerTls>,
}

/// A server, listening or not.
pub struct Server {
    shared: Arc<Shared>,
    running: Mutex<Option<Running>>,
}

struct Running {
    address: Address,
    stop: StopSource,
    /// Raised when the listener is closed.
    closed: StopToken,
    /// Error of closing the listener.
    close_failure: Arc<OnceLock<Error>>,
}

struct Shared {
    address: Address,
    access: Access,
    tls: Option<ServerTls>,
    clients: Arc<Clients>,
    descriptions: Vec<ExportDescription>,
    devices: Vec<Arc<dyn DevicePart>>,
    read_only: Vec<bool>,
    /// Created at the first start, when the number of shards is known.
    exports: OnceLock<Vec<Export>>,
    budget: Arc<Budget>,
    cut_off: AtomicU64,
    /// Warnings of clients that were cut off; strangers can cause any number of them.
    warnings: WarningLimit,
    on_end: OnceLock<EndObserver>,
    source: OnceLock<Arc<dyn ExportSource>>,
    parts: PerShard<ShardPart>,
}

type EndObserver = Box<dyn Fn(Result<()>) + Send + Sync>;

impl Shared {
    fn tell_end(&self, end: &End) {
        if let Some(observer) = self.on_end.get() {
            observer(match end {
                End::Goodbye | End::Stopped => Ok(()),
                end => Err(Error::disconnected(end.to_string())),
            });
        }
    }
}

/// State of a server on one shard.
struct ShardPart {
    shared: Arc<Shared>,
    /// Empty once the server has stopped, so that remaining users of this state keep no device open.
    devices: RefCell<Vec<Rc<dyn Device>>>,
    connections: Connections<Watch>,
    watching: Cell<bool>,
}

impl Server {
    /// Checks the configuration; opens nothing.
    ///
    /// # Errors
    /// [`Error::Invalid`] without an export, for a name that is invalid or used twice, or for an address that
    /// [`Address::check_reach`] refuses.
    pub fn new(config: ServerConfig) -> Result<Server> {
        let is_protected = config.tls.as_ref().is_some_and(ServerTls::keeps_strangers_out);
        let reached = config.address.check_reach(config.allow_remote || is_protected, PERMISSION);
        reached.map_err(|error| error.in_context("NBD server"))?;
        if config.exports.is_empty() {
            return Err(Error::invalid("an NBD server without exports: expected at least one device"));
        }
        let mut descriptions: Vec<ExportDescription> = Vec::new();
        for export in &config.exports {
            let name = &export.name;
            if descriptions.iter().any(|other| other.name == *name) {
                return Err(Error::invalid(format!(
                    "export \"{name}\" is named twice: expected different names"
                )));
            }
            for text in [name, &export.description] {
                if text.len() > MAX_STRING || text.contains('\0') {
                    return Err(Error::invalid(format!(
                        "export \"{}\": its name and description have at most {MAX_STRING} bytes and no NUL",
                        name.escape_default()
                    )));
                }
            }
            let several_connections = config.max_connections > 1;
            descriptions.push(ExportDescription { several_connections, ..export.describe() });
        }
        let shared = Shared {
            address: config.address,
            access: config.access,
            tls: config.tls,
            clients: Clients::new(config.max_connections),
            descriptions,
            read_only: config.exports.iter().map(|export| export.read_only).collect(),
            devices: config.exports.into_iter().map(|export| export.device).collect(),
            exports: OnceLock::new(),
            budget: Arc::new(Budget::new(BUFFER_BYTES)),
            cut_off: AtomicU64::new(0),
            warnings: WarningLimit::new(WARNING_INTERVAL),
            on_end: OnceLock::new(),
            source: OnceLock::new(),
            parts: PerShard::new(),
        };
        Ok(Server { shared: Arc::new(shared), running: Mutex::new(None) })
    }

    fn running(&self) -> std::sync::MutexGuard<'_, Option<Running>> {
        // Nothing panics while the lock is held.
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the devices on every shard and listens; returns once clients can connect.
    ///
    /// # Errors
    /// [`Error::Busy`] if the server is running already or another process listens at the address; errors of
    /// the devices and of the kernel.
    pub async fn start(&self) -> Result<()> {
        if self.running().is_some() {
            return Err(Error::busy(format!("the server on {} is running already", self.shared.address)));
        }
        self.shared.exports.get_or_init(|| self.shared.make_exports(runtime::shard_count()));
        let shared = self.shared.clone();
        self.shared.parts.open(move || open_part(shared.clone())).await?;
        let stop = StopSource::new();
        let closed = StopSource::new();
        let close_failure = Arc::new(OnceLock::new());
        let (shared, token, closed_token) = (self.shared.clone(), stop.token(), closed.token());
        let failure = close_failure.clone();
        let listening = runtime::spawn_on(ShardIndex(0), move || async move {
            let listener = Listener::replace_stale(&shared.address, shared.access).await?;
            let address = listener.local_address().clone();
            runtime::spawn(async move {
                let (server, clients) = (("NBD door", &shared.address), &shared.clients);
                let of_connection = shared.clone();
                let serve = move |remote, permit| run_connection(of_connection.clone(), remote, permit);
                accept(server, (&listener, &token), clients, |_| {}, serve).await;
                if let Err(error) = listener.close().await {
                    let _ = failure.set(error);
                }
                closed.stop();
            })
            .detach();
            Ok(address)
        });
        match listening.await.and_then(|listening| listening) {
            Ok(address) => {
                *self.running() = Some(Running { address, stop, closed: closed_token, close_failure });
                Ok(())
            }
            Err(error) => {
                self.shared.parts.close(close_part).await;
                Err(error)
            }
        }
    }

    /// Opens the devices on every shard, and serves one client that is connected already, on shard 0. Nothing
    /// listens. The token is raised when the connection has ended, with its requests.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub async fn start_with(&self, connection: OwnedFd) -> Result<StopToken> {
        if self.running().is_some() {
            return Err(Error::busy(format!("the server on {} is running already", self.shared.address)));
        }
        self.shared.exports.get_or_init(|| self.shared.make_exports(runtime::shard_count()));
        let shared = self.shared.clone();
        self.shared.parts.open(move || open_part(shared.clone())).await?;
        let permit = self.shared.clients.add();
        let (shared, ended) = (self.shared.clone(), StopSource::new());
        let (stop, closed, token) = (StopSource::new(), StopSource::new(), ended.token());
        closed.stop();
        let serve = move || async move {
            run_connection(shared, connection.into(), permit).await;
            ended.stop();
        };
        runtime::spawn_on(ShardIndex(0), serve).detach();
        *self.running() = Some(Running {
            address: self.shared.address.clone(),
            stop,
            closed: closed.token(),
            close_failure: Arc::default(),
        });
        Ok(token)
    }

    /// Stops serving. Does nothing if the server isn't running.
    ///
    /// # Errors
    /// Errors of [`Listener::close`]; all other steps are done even then.
    pub async fn stop(&self) -> Result<()> {
        let Some(running) = self.running().take() else { return Ok(()) };
        running.stop.stop();
        running.closed.stopped().await;
        self.shared.parts.close(close_part).await;
        running.close_failure.get().map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Address of the server; while it is running, with the actual port.
    pub fn address(&self) -> Address {
        self.running().as_ref().map_or_else(|| self.shared.address.clone(), |running| running.address.clone())
    }

    /// URI of each export, as the document "NBD URI" defines it.
    pub fn addresses(&self) -> Vec<String> {
        let address = self.address();
        let is_tls = self.shared.tls.as_ref().is_some_and(|tls| tls.required);
        self.shared.descriptions.iter().map(|export| uri(&address, &export.name, is_tls)).collect()
    }

    /// Number of connected clients.
    pub fn connections(&self) -> usize {
        self.shared.clients.connected()
    }

    /// Calls `observer` at the end of each connection, on the connection's shard, before its requests in
    /// flight have ended. Its argument is [`Error::Disconnected`] unless the client ended the connection by
    /// DISC or ABORT, or the server stops. A server has one observer: later calls have no effect.
    pub fn on_end(&self, observer: impl Fn(Result<()>) + Send + Sync + 'static) {
        let _first_stays = self.shared.on_end.set(Box::new(observer));
    }

    /// Asks `source` for names that no export of the configuration has. A server has one source: later calls
    /// have no effect.
    pub fn set_source(&self, source: Arc<dyn ExportSource>) {
        let _first_stays = self.shared.source.set(source);
    }

    /// Connections, and the counters of each export of the configuration.
    pub fn status(&self) -> Status {
        let shared = &self.shared;
        let mut status = Status::new();
        status.insert("address".into(), json!(self.address().to_string()));
        status.insert("connections".into(), json!(self.connections()));
        status.insert("max_connections".into(), json!(shared.clients.max));
        status.insert("refused_connections".into(), json!(shared.clients.refused()));
        status.insert("cut_off_connections".into(), json!(shared.cut_off.load(Ordering::Relaxed)));
        status.insert("buffer_bytes".into(), json!(shared.budget.taken()));
        status.insert("max_buffer_bytes".into(), json!(shared.budget.bytes()));
        status.insert("waiting_connections".into(), json!(shared.budget.waiting()));
        let exports = shared.exports.get().map(Vec::as_slice).unwrap_or_default();
        let named = shared.descriptions.iter().zip(exports);
        let exports =
            named.map(|(description, export)| (description.name.clone(), export.counters.status().into()));
        status.insert("exports".into(), serde_json::Value::Object(exports.collect()));
        status
    }
}

impl Shared {
    fn make_exports(&self, shards: usize) -> Vec<Export> {
        let parts = self.devices.iter().zip(&self.read_only);
        parts.map(|(device, read_only)| Export::new(device, *read_only, shards)).collect()
    }
}

/// Opens every export's device on this shard.
async fn open_part(shared: Arc<Shared>) -> Result<ShardPart> {
    let mut devices = Vec::new();
    for (device, description) in shared.devices.iter().zip(&shared.descriptions) {
        let opened = device.open().await;
        devices
            .push(opened.map_err(|error| error.in_context(format_args!("export \"{}\"", description.name)))?);
    }
    Ok(ShardPart {
        shared,
        devices: RefCell::new(devices),
        connections: Connections::default(),
        watching: Cell::new(false),
    })
}

/// Ends the connections of this shard and drops its handles.
async fn close_part(part: &ShardPart) {
    if !part.connections.close(STOP_LIMIT, |watch| &watch.stream, Watch::stop).await {
        part.connections.all_ended().await;
    }
    // The task that checks deadlines looks at this part once more before it ends. The devices below may then
    // be closed.
    drop(part.devices.take());
}

/// Serves a connection on its shard; it is in the shard's list until it ends.
async fn run_connection(shared: Arc<Shared>, remote: RemoteStream, permit: ClientPermit) {
    let Some(part) = shared.parts.here() else { return };
    let watch = Rc::new(Watch::new(remote.into_stream(), Box::new(move |end| shared.tell_end(end))));
    let number = part.connections.add(&watch);
    if !part.watching.replace(true) {
        runtime::spawn(keep_watch(part.clone())).detach();
    }
    let exports = part.shared.exports.get().map(Vec::as_slice).unwrap_or_default();
    let devices = part.devices.borrow().clone();
    let served: Vec<(&Export, &dyn Device)> =
        exports.iter().zip(devices.iter().map(|device| &**device)).collect();
    let shared = &part.shared;
    let offered = Offered {
        descriptions: &shared.descriptions,
        exports: &served,
        source: shared.source.get().map(|source| &**source),
        tls: shared.tls.as_ref(),
    };
    let end = serve(&watch, &offered, &shared.budget, runtime::current_shard().0).await;
    match end {
        End::Goodbye | End::Stopped => tracing::debug!("{}: {end}", part.shared.address),
        End::HungUp | End::Lost(_) => tracing::info!("{}: {end}", part.shared.address),
        End::Silent | End::Stalled | End::Slow | End::Violation(_) => {
            part.shared.cut_off.fetch_add(1, Ordering::Relaxed);
            part.shared.warnings.warn(format_args!("{}: {end}", part.shared.address));
        }
    }
    watch.tell_end(&end);
    drop(served);
    part.connections.remove(number, (watch, permit, devices));
}

/// Disconnects the connections of this shard whose deadline has passed, or whose client receives nothing or
/// is too slow while another connection waits for memory. Ends with the last connection.
async fn keep_watch(part: Rc<ShardPart>) {
    let mut looked = runtime::now();
    while part.connections.count() > 0 {
        runtime::sleep(WATCH_INTERVAL).await;
        let now = runtime::now();
        // Time in which this shard didn't run doesn't count against clients.
        let passed = (now - std::mem::replace(&mut looked, now)).min(2 * WATCH_INTERVAL);
        let waiting = part.shared.budget.waiting();
        for watch in part.connections.all() {
            watch.check_send(now);
            if watch.is_late(now, passed, waiting) && !watch.expired.replace(true) {
                // The stream may be closed already.
                let _ = watch.stream.shutdown(Shutdown::Both).await;
            }
        }
    }
    part.watching.set(false);
}
